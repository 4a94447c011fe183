from __future__ import annotations

import pytest

from uedp_ray.models import recorder
from uedp_ray.models.factors import Factors
from uedp_ray.updates import gradient


@pytest.fixture(params=["as chosen", "all kept"])
def kept(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Whatever has factors is kept as such: of networks as small as these, nearly everything would be formed."""
    if request.param == "all kept":
        every = property(lambda self: not self.full and self.scale is None)
        monkeypatch.setattr(Factors, "worth_keeping", every)
        monkeypatch.setattr(recorder, "smaller", lambda *of: True)
        monkeypatch.setattr(gradient, "_PROBED", {})
    return request.param

"""What the tests of this folder share."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.corpus.reading import ROWS, source_of, spacy_model
from uedp_ray.config import SourceConfig


@pytest.fixture
def spacy_source(tmp_path: Path) -> SourceConfig:
    return source_of(tmp_path, *ROWS, detector=(spacy_model(tmp_path / "model", PERSON="ann", GPE="rome"),))

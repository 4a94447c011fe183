"""The first screen of a page: what was gained, and what to know before one hands anything on."""

from __future__ import annotations

import json
import shutil

import pytest
import yaml

from tests.analysis.page import Page
from tests.analysis.sweeps import read_result
from uedp_ray.analysis.report import report

pytestmark = pytest.mark.whole


@pytest.mark.parametrize("publish", [False, True])
def test_what_was_gained_on_text_of_which_much_is_unknown_is_told_in_bits_per_byte(small, tmp_path, publish):
    """The page said "52.2% over the public model" of a model that had learnt to predict <unk>."""
    copy = shutil.copytree(small, tmp_path / "copy")
    result = read_result(copy)
    scores = {"initial_perplexity": 68.9, "perplexity": 32.9, "initial_bits_per_byte": 5.554, "bits_per_byte": 5.377}
    result["best"] |= scores | {"unk_share": 0.561}
    (copy / "result.json").write_text(json.dumps(result))
    text = Page(report([copy], publish=publish)).text
    assert "Gained 3.2% in bits/byte over the public model (5.554)" in text
    assert "52.2%" not in text
    assert (
        "Perplexity flatters the model: 56% of the words of the evaluation text are <unk>"
        in text[: text.index("What to hand on")]
    )
    assert "vocabulary.kind: public-subwords" in text[: text.index("What to hand on")]
    result["best"]["initial_bits_per_byte"] = None  # an earlier version's
    (copy / "result.json").write_text(json.dumps(result))
    assert "52.2% over the public model (68.9)" in Page(report([copy], publish=publish)).text


def test_the_first_screen_says_where_the_public_model_does_as_well(small, tmp_path):
    copy = shutil.copytree(small, tmp_path / "copy")
    tree = yaml.safe_load((copy / "sweep.yaml").read_text())
    tree["base"]["pretrain"]["text"] = [{"format": "text", "path": "public.txt"}]
    (copy / "sweep.yaml").write_text(yaml.safe_dump(tree, sort_keys=False))
    result, told = read_result(copy), "The public model that training began from scores as well"
    for initial in (result["best"]["initial_perplexity"], 1.001 * result["best"]["perplexity"]):
        result["best"]["initial_perplexity"] = initial
        (copy / "result.json").write_text(json.dumps(result))
        text = Page(report([copy])).text
        assert (told in text[: text.index("What to hand on")]) == (initial < 1.01 * result["best"]["perplexity"])

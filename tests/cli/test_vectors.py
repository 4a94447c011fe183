"""``uedp-ray vectors``: of the public text of whichever file names it."""

from __future__ import annotations

import pytest
import yaml

from uedp_ray.corpus.synthetic import generate
from uedp_ray.corpus.vectors import WORD, read_vectors

BARE = {"corpus": {"declared_num_users": 9}}
RUN = BARE | {"pretrain": {"text": [{"format": "synthetic", "part": "public", "num_users": 8, "seed": 3}]}}


@pytest.mark.parametrize("tree", [RUN, {"base": RUN, "variants": {"a": {"method": "noiseless"}}}])
def test_a_run_or_comparison_file_gets_vectors_of_its_public_words(answer, refused, tmp_path, tree):
    (tmp_path / "file.yaml").write_text(yaml.safe_dump(tree))
    command = ("vectors", tmp_path / "file.yaml", "--dimensions", 5, "--out", tmp_path / "vectors.txt")
    told = answer(*command)
    made = read_vectors(tmp_path / "vectors.txt")
    said = {word for each in generate(8, seed=3, part="public") for word in WORD.findall(each.text.lower())}
    assert set(made.words) == {word for word in said if not word.isdecimal()}
    assert (told["words"], told["dimensions"]) == made.table.shape
    refused(*command, parts=["--out", "exists"])


def test_vectors_are_not_written_into_a_run(refused, private_run, tmp_path):
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(RUN))
    out = private_run.out / "vectors.txt"
    refused("vectors", tmp_path / "run.yaml", "--out", out, parts=["--out", "holds a run, a comparison or a sweep"])
    assert not out.exists()


def test_a_file_without_public_text_is_refused(refused, tmp_path):
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(BARE))
    refused("vectors", tmp_path / "run.yaml", "--out", tmp_path / "v.txt", parts=["pretrain.text", "name public text"])
    assert not (tmp_path / "v.txt").exists()


def test_too_little_public_text_is_refused(refused, tmp_path):
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(RUN))
    command = ("vectors", tmp_path / "run.yaml", "--dimensions", 9999, "--out", tmp_path / "v.txt")
    refused(*command, parts=["--dimensions", "the public text has"])
    assert not (tmp_path / "v.txt").exists()

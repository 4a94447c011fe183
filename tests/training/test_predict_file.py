"""Answers to every text of a file: in its order, in either format, whole or not at all."""

from __future__ import annotations

import json
import stat

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.models.helpers import VOCABULARY, tiny
from tests.told import Told
from uedp_ray.config import VocabularyConfig
from uedp_ray.corpus.vocabulary import build_vocabulary
from uedp_ray.errors import InputError
from uedp_ray.models.saved import save_model
from uedp_ray.training.predict import predict
from uedp_ray.training.predict_file import predict_file

TEXTS = [" ".join(f"w{(3 * n + i) % 20}" for i in range(1 + n % 7)) for n in range(600)]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A model's folder, with its tokenizer."""
    folder = tmp_path_factory.mktemp("saved") / "model"
    save_model(tiny("gpt2"), folder)
    words = " ".join(f"w{i}" for i in range(VOCABULARY - 3))
    build_vocabulary(VocabularyConfig(kind="public-words"), public_text=lambda: [words]).save(folder, longest=8)
    return folder


@pytest.fixture
def asked(tmp_path):
    path = tmp_path / "asked.jsonl"
    path.write_text("".join(json.dumps({"id": n, "text": text}) + "\n" for n, text in enumerate(TEXTS)))
    return path


def rows(path):
    if path.suffix == ".parquet":
        return pq.read_table(path).to_pylist()
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.parametrize("into", ["answers.parquet", "answers.jsonl"])
@pytest.mark.parametrize("source", ["jsonl", "parquet"])
def test_a_file_is_answered_as_its_texts_are(model, asked, tmp_path, source, into):
    if source == "parquet":
        pq.write_table(pa.table({"text": TEXTS, "tags": [1] * len(TEXTS)}), tmp_path / "asked.parquet")
    told, done = [], []
    reporter = Told(say=told.append, answered=lambda *each: done.append(each))
    out = tmp_path / into
    answer = predict_file(model, tmp_path / f"asked.{source}", out, top=2, workers=0, reporter=reporter)
    assert stat.S_IMODE(out.stat().st_mode) == 0o600, "as private as the texts"
    assert answer == {"output": str(out), "texts": len(TEXTS)}
    for row, one in zip(rows(out), predict(model, TEXTS, top=2), strict=True):
        assert row["text"] == one["text"]
        assert [each["token"] for each in row["next"]] == [each["token"] for each in one["next"]]
        found, expected = ([each["probability"] for each in answer["next"]] for answer in (row, one))
        assert found == pytest.approx(expected, abs=2e-6), "other texts beside it change the last digit at most"
    assert (told, done) == ([], [(256, 600), (512, 600), (600, 600)])


def test_what_is_not_read_is_said_once_of_the_whole_file(model, tmp_path):
    (tmp_path / "asked.jsonl").write_text('{"text": "w1 unknown"}\n\n' + '{"text": "' + "w1 " * 20 + '"}\n')
    told: list[str] = []
    predict_file(model, tmp_path / "asked.jsonl", tmp_path / "out.jsonl", workers=0, reporter=Told(say=told.append))
    assert told == [
        "note: 1 of 2 texts are longer than the 7 tokens that the model reads: the beginning is left out",
        "note: 1 of 22 words are not in the vocabulary, and are read as <unk>",
    ]


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ('{"text": "w1"}\n{"text": "secret"', r"asked\.jsonl:2.*not JSON"),
        ('{"text": "w1"}\n{"other": "secret"}', r"asked\.jsonl:2.*text is missing"),
        ('{"text": "w1"}\n{"text": ["secret"]}', r"asked\.jsonl:2.*not a string"),
        ('{"text": "secret \\ud800"}', r"asked\.jsonl:1.*half a surrogate pair"),
        ("\n", "holds no text"),
    ],
)
def test_a_row_that_is_wrong_is_named_by_its_place_before_any_is_answered(model, tmp_path, content, told):
    (tmp_path / "asked.jsonl").write_text(content)
    (tmp_path / "out.jsonl").write_text("earlier")
    with pytest.raises(InputError, match=told) as raised:
        predict_file(model, tmp_path / "asked.jsonl", tmp_path / "out.jsonl", workers=0)
    assert "secret" not in str(raised.value)
    assert (tmp_path / "out.jsonl").read_text() == "earlier"


def test_columns_that_lack_the_text_are_refused(model, tmp_path):
    pq.write_table(pa.table({"words": ["w1"]}), tmp_path / "asked.parquet")
    with pytest.raises(InputError, match="no column text: a row needs text"):
        predict_file(model, tmp_path / "asked.parquet", tmp_path / "out.jsonl", workers=0)


def test_flags_that_do_not_fit_are_refused(model, asked, tmp_path, command):
    def refused(*flags):
        code, out, err = command("predict", model, *flags)
        assert (code, out) == (2, "")
        return err

    into = ("--output", tmp_path / "out.jsonl")
    before = asked.read_bytes()
    assert "give texts by --text" in refused()
    assert "give texts by --text" in refused("--text=w1", "--input", asked, *into)
    assert "give texts by --text" in refused("--input", asked)
    assert "--input = " in refused("--input", tmp_path / "none.jsonl", *into)
    assert "--input = " in refused("--input", tmp_path, *into)
    assert "--output = " in refused("--input", asked, "--output", tmp_path / "out.csv")
    assert "its folder does not exist" in refused("--input", asked, "--output", tmp_path / "no" / "out.jsonl")
    assert "is the file of texts itself" in refused("--input", asked, "--output", asked)
    assert "--top = 0" in refused("--input", asked, *into, "--top=0")
    assert asked.read_bytes() == before
    code, out, err = command("predict", model, "--input", asked, *into, "--workers=0", "--json")
    assert (code, json.loads(out)["texts"]) == (0, 600)
    assert "answered 600/600 texts" in err

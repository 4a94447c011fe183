"""Vocabularies: words and pieces of words of public text, published tokenizers, and words released from private text."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from uedp_ray.config import VocabularyConfig
from uedp_ray.corpus.synthetic import generate
from uedp_ray.corpus.vocabulary import (
    Vocabulary,
    build_vocabulary,
)
from uedp_ray.errors import InputError

TEXT = ["The patient left .", "the doctor didn't sign the form ,", "a form"]


def _words(text: Iterable[str] = TEXT, **settings: object) -> Vocabulary:
    return build_vocabulary(VocabularyConfig(**settings), public_text=lambda: text)  # type: ignore[arg-type]


def test_public_words_are_lower_cased_counted_and_decoded() -> None:
    vocabulary = _words()
    assert isinstance(vocabulary.tokenizer, PreTrainedTokenizerFast)
    ids = vocabulary.encode_batch(["The FORM left zebra", ""])
    assert [one.dtype for one in ids] == [np.int32, np.int32]
    assert vocabulary.decode(ids[0]) == "the form left <unk>"
    assert ids[0][0] == 3, "the most common word follows the special tokens"
    assert ids[0][3] == vocabulary.unk_id
    assert len(ids[1]) == 0
    assert len({vocabulary.unk_id, vocabulary.eos_id, vocabulary.pad_id}) == 3
    assert vocabulary.size == 3 + len({word for text in TEXT for word in text.lower().split()})


def test_case_size_and_count_limits() -> None:
    assert _words(lowercase=False).decode(_words(lowercase=False).encode_batch(["The the"])[0]) == "The the"
    assert _words(max_size=5).size == 5
    assert _words(max_size=5).decode([3, 4]) == "the form"
    assert _words(min_count=2).size == 3 + 2


def test_punctuation_is_removed_as_in_the_seeds() -> None:
    vocabulary = _words(strip_punctuation=True)
    assert vocabulary.decode(vocabulary.encode_batch(["The doctor , DIDN'T sign !"])[0]) == "the doctor didnt sign"
    assert len(vocabulary.encode_batch([". , ! ? ( ) - '"])[0]) == 0
    assert "." not in vocabulary.tokenizer.get_vocab()


@pytest.mark.parametrize("strip", [True, False])
def test_unknown_marks_in_public_text_are_the_unknown_token(strip: bool) -> None:
    """WikiText writes rare words as <unk>: they must not become a word of their own."""
    vocabulary = _words(["the <unk> left .", "<unk> <unk>"], strip_punctuation=strip)
    assert vocabulary.encode_batch(["<unk> left"])[0][0] == vocabulary.unk_id
    assert "unk" not in vocabulary.tokenizer.get_vocab()
    assert len(vocabulary.tokenizer.get_vocab()) == vocabulary.size


@pytest.mark.parametrize("text", [[], ["", "  "], ["<unk>"]])
def test_no_words_is_an_input_error(text: list[str]) -> None:
    with pytest.raises(InputError, match="public_text"):
        _words(text)


def test_saved_vocabulary_loads_here_and_through_auto_tokenizer(tmp_path: Path) -> None:
    check_saved(
        _words(s.text for s in generate(100, seed=0, part="public")), "please call the doctor , <unk> .", tmp_path
    )


def test_saved_pieces_of_words_load_here_and_through_auto_tokenizer(tmp_path: Path) -> None:
    vocabulary = _pieces((s.text for s in generate(100, seed=0, part="public")), max_size=500)
    (tmp_path / "config.json").write_text('{"model_type": "gpt2"}')  # whose own tokenizer is another
    check_saved(vocabulary, " please call the doctor , zzz .", tmp_path)


def check_saved(vocabulary: Vocabulary, decoded: str, tmp_path: Path) -> None:
    text = "Please call the doctor , zzz ."
    vocabulary.save(tmp_path)
    again, auto = Vocabulary.load(tmp_path), AutoTokenizer.from_pretrained(tmp_path)
    assert again.digest == vocabulary.digest
    assert (again.size, again.bos_id, again.eos_id, again.unk_id, again.pad_id) == (
        vocabulary.size, vocabulary.eos_id, vocabulary.eos_id, vocabulary.unk_id, vocabulary.pad_id,
    )  # fmt: skip
    ids = vocabulary.encode_batch([text])[0].tolist()
    assert again.encode_batch([text])[0].tolist() == ids
    assert auto(text, add_special_tokens=False)["input_ids"] == ids
    assert auto.decode(ids) == vocabulary.decode(ids) == decoded
    assert auto.eos_token == "</s>"


def test_the_digest_is_of_the_settings_too() -> None:
    assert _words(strip_punctuation=True).digest != _words().digest


def _pieces(text: Iterable[str] = TEXT, **settings: object) -> Vocabulary:
    return _words(text, kind="public-subwords", **{"max_size": 280, **settings})


def test_no_text_is_unknown_to_pieces_of_words_and_all_of_it_is_kept() -> None:
    vocabulary = _pieces(lowercase=False)
    assert (vocabulary.unk_id, vocabulary.size) == (None, 280)
    assert (vocabulary.eos_id, vocabulary.bos_id, vocabulary.pad_id) == (0, 0, 1)
    letters = [chr(i) for i in range(0, 0x110000, 7) if not 0xD800 <= i < 0xE000]  # less surrogates, which are no text
    texts = ["Die Datei (kann) nicht geöffnet werden: 漢字\n\t\U0001f916\x00", "<unk> the", " a  b "]
    texts += ["".join(letters[i : i + 999]) for i in range(0, len(letters), 999)]
    for text, ids in zip(texts, vocabulary.encode_batch(texts), strict=True):
        assert ids.max() < vocabulary.size
        assert vocabulary.decode(ids).removeprefix(" ") == text.removeprefix(" ")
    assert vocabulary.offsets(texts[0])[-1][1] == len(texts[0])
    assert [len(ids) for ids in vocabulary.encode_batch(["", "the form"])] == [0, 2]


def test_pieces_of_words_heed_size_count_case_and_punctuation() -> None:
    assert _pieces(max_size=258).size == 258, "bytes alone"
    assert len(_pieces(max_size=258).encode_batch(["the"])[0]) == 4
    whole = _pieces(max_size=10_000)
    assert 258 < whole.size < 400, "no more pairs to join"
    assert [whole.decode([i]) for i in whole.encode_batch(["THE doctor"])[0]] == [" the", " doctor"]
    often = _pieces(max_size=10_000, min_count=2)
    assert [often.decode([i]) for i in often.encode_batch(["the form d"])[0]] == [" the", " form", " d"]
    assert len(often.encode_batch(["doctor"])[0]) > 1, "it occurs once"
    bare = _pieces(strip_punctuation=True)
    assert bare.decode(bare.encode_batch(["The doctor, DIDN'T sign!"])[0]) == " the doctor didnt sign"
    for text, settings in (([], {}), ([""], {}), (TEXT, {"min_count": 99})):
        with pytest.raises(InputError, match=r"public_text.*name public text"):
            _pieces(text, **settings)
    with pytest.raises(InputError, match=r"max_size = 257.*a token for every byte"):
        VocabularyConfig(kind="public-subwords", max_size=257)


@pytest.mark.slow
def test_the_same_text_gives_the_same_pieces_of_words_in_every_process(tmp_path: Path) -> None:
    text = [s.text for s in generate(100, seed=0, part="public")]
    (tmp_path / "text.json").write_text(json.dumps(text))
    code = """
import json, sys
from uedp_ray.config import VocabularyConfig
from uedp_ray.corpus.vocabulary import build_vocabulary
text = json.load(open(sys.argv[1]))
build_vocabulary(VocabularyConfig(kind="public-subwords", max_size=800), public_text=lambda: text).save(sys.argv[2])
"""
    for threads, seed in (("1", "1"), ("4", "2")):
        variables = {
            "RAYON_NUM_THREADS": threads,
            "PYTHONHASHSEED": seed,
            "TOKENIZERS_PARALLELISM": str(threads != "1").lower(),
        }
        command = [sys.executable, "-c", code, str(tmp_path / "text.json"), str(tmp_path / threads)]
        subprocess.run(command, check=True, env={**os.environ, **variables})
    one, four = ({path.name: path.read_bytes() for path in (tmp_path / n).iterdir()} for n in ("1", "4"))
    assert one == four
    assert "tokenizer.json" in one
    again = Vocabulary.load(tmp_path / "1")
    assert (again.digest, again.size) == (_pieces(text, max_size=800).digest, 800)
    assert _pieces(text, max_size=801).digest != again.digest


def test_an_error_in_public_text_is_that_of_its_reader() -> None:
    def broken() -> Iterable[str]:
        yield "the"
        raise InputError("path", "public.txt", "is no text")

    with pytest.raises(InputError, match="is no text"):
        build_vocabulary(VocabularyConfig(kind="public-subwords"), public_text=broken)


def test_gpt2_tokenizer(real_models: Path, tmp_path: Path) -> None:
    vocabulary = build_vocabulary(VocabularyConfig(kind="tokenizer", path=str(real_models / "gpt2_tokenizer")))
    assert vocabulary.size == 50257
    assert vocabulary.decode([vocabulary.eos_id]) == "<|endoftext|>"
    assert vocabulary.bos_id == vocabulary.pad_id == vocabulary.eos_id
    text = "Zürich ’ s doctors signed 1,500 forms"
    ids = vocabulary.encode_batch([text])[0]
    assert vocabulary.decode(ids) == text
    assert vocabulary.eos_id not in ids, "no special token is added"
    vocabulary.save(tmp_path)
    assert Vocabulary.load(tmp_path).digest == vocabulary.digest
    from_file = Vocabulary.load(real_models / "gpt2_tokenizer" / "tokenizer.json")
    assert (from_file.size, from_file.eos_id) == (vocabulary.size, vocabulary.eos_id)


def test_bert_tokenizer_ends_with_its_separator_and_never_truncates(real_models: Path, tmp_path: Path) -> None:
    vocabulary = Vocabulary.load(real_models / "bert_tokenizer")
    assert (vocabulary.size, vocabulary.decode([vocabulary.eos_id])) == (30522, "[SEP]")
    ids = vocabulary.encode_batch(["the form " * 400, "the"])  # its file asks for 256 tokens and padding
    assert [len(one) for one in ids] == [800, 1]
    vocabulary.save(tmp_path)
    assert Vocabulary.load(tmp_path).eos_id == vocabulary.eos_id


def test_end_token_is_added_where_there_is_none() -> None:
    bare = PreTrainedTokenizerFast(tokenizer_object=_words().tokenizer.backend_tokenizer)
    assert Vocabulary(bare).eos_id == 1, "a known end token is used"
    empty = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.WordLevel({"a": 0}, unk_token="a")))
    vocabulary = Vocabulary(empty)
    assert (vocabulary.size, vocabulary.eos_id, vocabulary.unk_id) == (2, 1, None)


def test_what_is_no_tokenizer_is_an_input_error(tmp_path: Path) -> None:
    for name, content in (("config.json", '{"model_type": "gpt2"}'), ("tokenizer.json", "{}")):
        with pytest.raises(InputError, match=r"vocabulary\.path"):
            Vocabulary.load(tmp_path)
        (tmp_path / name).write_text(content)
    for path in (tmp_path, tmp_path / "tokenizer.json"):
        with pytest.raises(InputError, match=r"vocabulary\.path"):
            Vocabulary.load(path)


@pytest.mark.parametrize(
    "model",
    [
        models.WordLevel({"a": 0, "b": 1}),
        models.WordPiece({"a": 0, "b": 1}),
        models.WordLevel({"a": 0, "b": 1}, unk_token="?"),
        models.Unigram([("a", -1.0), ("b", -2.0)]),
        models.Unigram([("a", -1.0), ("b", -2.0)], byte_fallback=True),
        models.BPE({"a": 0, "b": 1}, [], unk_token="?"),
    ],
    ids=lambda model: type(model).__name__,
)
def test_a_tokenizer_that_some_text_would_trip_is_refused_whatever_the_text(tmp_path: Path, model: Any) -> None:
    """Refused for what private text holds, it would tell of that; in a sweep, of one trial."""
    tokenizer = Tokenizer(model)
    tokenizer.normalizer = normalizers.Replace(Regex("[^a-z ]"), "")  # no trial with odd letters would show it
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="b").save_pretrained(str(tmp_path))
    with pytest.raises(InputError, match="it has no tokens for some text"):
        Vocabulary.load(tmp_path)


def test_a_tokenizer_that_panics_is_refused_without_a_word_of_the_text() -> None:
    words = Tokenizer(models.WordLevel({"</s>": 0, "<unk>": 1}, unk_token="<unk>"))
    words.normalizer = normalizers.Replace(Regex("(a|aa)+$"), "")
    vocabulary = Vocabulary(PreTrainedTokenizerFast(tokenizer_object=words, eos_token="</s>", unk_token="<unk>"))
    with pytest.raises(InputError, match="it has no tokens for some text") as refused:
        vocabulary.encode_batch(["hello", "a" * 40 + "b"])
    assert "aaa" not in str(refused.value)


def test_ids_may_have_gaps_and_the_largest_has_a_row(tmp_path: Path) -> None:
    """A text with the last word would stop a run that has as many rows as there are tokens: it would tell of that word."""
    words = Tokenizer(models.WordLevel({"</s>": 0, "<unk>": 1, "the": 2, "dog": 6}, unk_token="<unk>"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(tokenizer_object=words, eos_token="</s>", unk_token="<unk>").save_pretrained(str(tmp_path))
    vocabulary = Vocabulary.load(tmp_path)
    assert vocabulary.size == 7
    assert [ids.tolist() for ids in vocabulary.encode_batch(["the dog", "a dog"])] == [[2, 6], [1, 6]]

"""The tokenised corpus: same tokens as encoding directly, memory-mapped, written once and whole."""

from __future__ import annotations

import dataclasses
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from uedp_ray.config import TaskConfig, VocabularyConfig
from uedp_ray.corpus import tokens
from uedp_ray.corpus.records import Sentence
from uedp_ray.corpus.synthetic import generate
from uedp_ray.corpus.tokens import TokenStore, encode_corpus, encode_texts
from uedp_ray.corpus.vocabulary import Vocabulary, build_vocabulary
from uedp_ray.errors import InputError
from uedp_ray.tasks.next_word import NextWord


@dataclasses.dataclass
class FakeCorpus:
    """As much of a Corpus as the encoder reads."""

    users: list[list[str]]
    digest: str = "0" * 64
    opened: int = 0

    @property
    def num_sentences(self) -> int:
        return sum(map(len, self.users))

    def texts(self) -> Iterator[tuple[int, list[str]]]:
        self.opened += 1
        yield from enumerate(self.users)


@pytest.fixture
def corpus() -> FakeCorpus:
    users: dict[str, list[str]] = {}
    for sentence in generate(12, seed=0):
        users.setdefault(sentence.user, []).append(sentence.text)
    return FakeCorpus(list(users.values()))


@pytest.fixture(scope="module")
def vocabulary() -> Vocabulary:
    config = VocabularyConfig(strip_punctuation=True)
    return build_vocabulary(config, public_text=lambda: (s.text for s in generate(40, seed=0, part="public")))


def test_store_holds_the_tokens_of_every_sentence(
    corpus: FakeCorpus, vocabulary: Vocabulary, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tokens, "_BATCH", 7)  # several batches, and one that is not full
    store = encode_corpus(corpus, vocabulary, tmp_path, max_length=9)  # type: ignore[arg-type]
    texts = [text for user in corpus.users for text in user]
    direct = [ids[:9] for ids in vocabulary.encode_batch(texts)]
    assert store.num_sentences == len(texts) == corpus.num_sentences
    assert all(np.array_equal(store.sentence(i), ids) for i, ids in enumerate(direct))
    assert store.sentence(0).dtype == np.int32
    assert store.lengths.tolist() == [len(ids) for ids in direct]
    assert max(store.lengths) == 9
    whole = sum(len(ids) for ids in vocabulary.encode_batch(texts))
    assert store.share_cut == (whole - len(store.tokens)) / whole > 0
    assert store.tokens.dtype == np.int32
    assert store.offsets.dtype == np.int64
    assert isinstance(store.tokens.base, np.memmap)
    assert not store.tokens.flags.writeable
    assert (store.path.stat().st_mode & 0o077) == 0, "as private as the text"


def test_encoding_texts_cuts_and_keeps_empty_ones(vocabulary: Vocabulary) -> None:
    ids = encode_texts(iter(["the doctor signed the form", ". !", ""]), vocabulary, 4)
    assert [len(one) for one in ids] == [4, 0, 0]
    assert ids[0].tolist() == vocabulary.encode_batch(["the doctor signed the"])[0].tolist()
    learnt = NextWord.of(vocabulary, 4, TaskConfig()).collate(ids).targets[0]
    assert learnt.tolist() == ids[0].tolist(), "no end that the text does not have"


def test_empty_sentences_keep_their_slot(vocabulary: Vocabulary, tmp_path: Path) -> None:
    corpus = FakeCorpus([["the doctor", ". !"], [], ["", "the"]])
    store = encode_corpus(corpus, vocabulary, tmp_path, max_length=8)  # type: ignore[arg-type]
    assert store.lengths.tolist() == [2, 0, 0, 1]
    assert store.share_cut == 0.0
    nothing = encode_corpus(FakeCorpus([["."]], "1"), vocabulary, tmp_path, max_length=8)  # type: ignore[arg-type]
    assert nothing.lengths.tolist() == [0]


def test_written_once_per_corpus_vocabulary_and_length(
    corpus: FakeCorpus, vocabulary: Vocabulary, tmp_path: Path
) -> None:
    first = encode_corpus(corpus, vocabulary, tmp_path, max_length=16)  # type: ignore[arg-type]
    again = encode_corpus(corpus, vocabulary, tmp_path, max_length=16)  # type: ignore[arg-type]
    assert corpus.opened == 1
    assert again.path == first.path
    other = build_vocabulary(VocabularyConfig(max_size=50), public_text=lambda: corpus.users[0])
    paths = {
        first.path,
        encode_corpus(corpus, vocabulary, tmp_path, max_length=17).path,  # type: ignore[arg-type]
        encode_corpus(corpus, other, tmp_path, max_length=16).path,  # type: ignore[arg-type]
        encode_corpus(dataclasses.replace(corpus, digest="2"), vocabulary, tmp_path, max_length=16).path,  # type: ignore[arg-type]
    }
    assert len(paths) == 4
    assert {path.name for path in tmp_path.iterdir()} == {path.name for path in paths}, "no temporary folder stays"


def test_a_failure_leaves_nothing(corpus: FakeCorpus, vocabulary: Vocabulary, tmp_path: Path) -> None:
    class Broken(FakeCorpus):
        def texts(self) -> Iterator[tuple[int, list[str]]]:
            yield 0, ["the doctor"]
            raise OSError("disk")

    with pytest.raises(OSError, match="disk"):
        encode_corpus(Broken(corpus.users), vocabulary, tmp_path, max_length=16)  # type: ignore[arg-type]
    assert not list(tmp_path.iterdir())


class Labels:
    """A task that reads labels, which are numbers, and what it was asked before."""

    longest_text = 9

    def __init__(self, kind: str = ""):
        self.kind, self.read = kind, [0.0, 0]

    def annotated(self, ids: np.ndarray, text: str, sentence: Sentence, vocabulary: Vocabulary) -> np.ndarray:
        label = int(sentence.label or 0)
        self.read = [self.read[0] + label, self.read[1] + 1]
        if self.kind == "mean":
            label -= int(self.read[0] / self.read[1])
        elif self.kind == "late":
            label += self.read[1] > 11
        elif self.kind == "in place":
            ids += 1
        return np.append(ids, label)


@pytest.mark.parametrize("kind", ["", "in place", "mean", "late"])
def test_a_task_that_remembers_what_it_read_is_refused(
    kind: str, vocabulary: Vocabulary, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tokens, "_BATCH", 7)

    class Labelled(FakeCorpus):
        def pairs(self) -> Iterator[tuple[int, list[tuple[Sentence, str]]]]:
            for user, texts in self.texts():
                yield user, [(Sentence("u", text, label=str(7 * user)), text) for text in texts]

    corpus: Any = Labelled([["the doctor", "the form"]] * 5)
    if kind in ("mean", "late"):
        with pytest.raises(InputError, match="annotated gives a sentence something else after others") as error:
            encode_corpus(corpus, vocabulary, tmp_path, max_length=9, task=Labels(kind), kind="my_task")
        assert (error.value.field, error.value.value) == ("task.kind", "my_task")
        assert not list(tmp_path.glob("*/*")), "nothing of it is kept"
    else:
        store = encode_corpus(corpus, vocabulary, tmp_path, max_length=9, task=Labels(kind), kind="my_task")
        assert [int(store.sentence(n)[-1]) for n in range(10)] == [7 * (n // 2) for n in range(10)]
    assert encode_corpus(corpus, vocabulary, tmp_path, max_length=9, task=Labels(kind), kind="classify").num_sentences


@pytest.mark.parametrize("name", ["tokens.npy", "offsets.npy"])
@pytest.mark.parametrize(
    "content", [b"", b"garbled", b"\xff\xff\xff\x7f", b"\1\0\0\0"], ids=["empty", "garbled", "out of range", "in range"]
)
def test_what_is_damaged_is_written_anew(
    corpus: FakeCorpus, vocabulary: Vocabulary, tmp_path: Path, name: str, content: bytes
) -> None:
    store = encode_corpus(corpus, vocabulary, tmp_path, max_length=16)  # type: ignore[arg-type]
    whole = (store.path / name).read_bytes()
    (store.path / name).write_bytes(whole[:-4] + content if len(content) == 4 else content)
    assert (store.path / name).read_bytes() != whole
    encode_corpus(corpus, vocabulary, tmp_path, max_length=16)  # type: ignore[arg-type]
    assert (store.path / name).read_bytes() == whole
    assert [path.name for path in tmp_path.iterdir()] == [store.path.name]


def test_a_nest_of_brackets_in_place_of_the_checksums_is_written_anew(
    corpus: FakeCorpus, vocabulary: Vocabulary, tmp_path: Path
) -> None:
    store = encode_corpus(corpus, vocabulary, tmp_path, max_length=16)  # type: ignore[arg-type]
    whole = (store.path / "checksums.json").read_bytes()
    (store.path / "checksums.json").write_bytes(b"[" * 1000)
    encode_corpus(corpus, vocabulary, tmp_path, max_length=16)  # type: ignore[arg-type]
    assert (store.path / "checksums.json").read_bytes() == whole


def test_pickles_as_its_path(corpus: FakeCorpus, vocabulary: Vocabulary, tmp_path: Path) -> None:
    store = encode_corpus(corpus, vocabulary, tmp_path, max_length=16)  # type: ignore[arg-type]
    data = pickle.dumps(store)
    assert len(data) < 1000
    again = pickle.loads(data)
    assert isinstance(again, TokenStore)
    assert np.array_equal(again.tokens, store.tokens)


def test_no_room_for_a_token_is_an_input_error(corpus: FakeCorpus, vocabulary: Vocabulary, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="max_length"):
        encode_corpus(corpus, vocabulary, tmp_path, max_length=1)  # type: ignore[arg-type]

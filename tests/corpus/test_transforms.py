"""What a transform may do, and what every corpus that one makes has: users as they were, entities of the sources."""

from __future__ import annotations

import dataclasses
import shutil
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest

from tests.corpus.reading import ROWS, row_of, source_of
from uedp_ray.config import TransformConfig
from uedp_ray.corpus.prepare import prepare
from uedp_ray.corpus.records import Sentence
from uedp_ray.corpus.store import Corpus, open_corpus
from uedp_ray.corpus.transforms import transform_of
from uedp_ray.corpus.transforms.base import Piece, Transform
from uedp_ray.corpus.transforms.derive import derive
from uedp_ray.errors import InputError

PLAIN = TransformConfig(kind="fragments", words=2, share=1.0)


class Masks(Transform):
    """Names no entity in its text, and keeps every sentence."""

    def apply(self, sentences: Sequence[Sentence], generator: np.random.Generator) -> Iterator[Piece]:
        for place, sentence in enumerate(sentences):
            text = sentence.text
            for mention in sorted(sentence.mentions, key=lambda mention: -mention.start):
                text = f"{text[: mention.start]}<{mention.category}>{text[mention.end :]}"
            yield Piece(text, sources=(place,))


class Joins(Transform):
    """Says nothing of its sources."""

    def apply(self, sentences: Sequence[Sentence], generator: np.random.Generator) -> Iterator[Piece]:
        yield Piece("all of it")


class Empties(Transform):
    def apply(self, sentences: Sequence[Sentence], generator: np.random.Generator) -> Iterator[Piece]:
        yield from ()


@pytest.fixture
def corpus(tmp_path: Path) -> Corpus:
    prepare(source_of(tmp_path, *ROWS), tmp_path / "corpus", num_shards=3)
    return open_corpus(tmp_path / "corpus")


def made(corpus: Corpus, transform: Transform | None, out: Path, **settings: int) -> Corpus:
    assert transform is not None
    derive(corpus, transform, out, **settings)
    return open_corpus(out)


def entities_of(corpus: Corpus) -> list[set[tuple[str, str]]]:
    table = corpus.entity_table()
    names = list(zip(table["category"].to_pylist(), table["form"].to_pylist(), strict=True))
    return [
        {names[entity] for entity in corpus.entity_ids[slice(*corpus.entity_offsets[number : number + 2])]}
        for number in range(corpus.num_sentences)
    ]


def test_fragments(corpus, tmp_path):
    found = made(corpus, transform_of(PLAIN), tmp_path / "out")
    assert (found.user_hash == corpus.user_hash).all()
    assert (found.user_names == corpus.user_names).all()
    pieces = dict(found.texts())
    for user, texts in corpus.texts():
        words = [text.split() for text in texts]
        expected = [" ".join(each[begin : begin + 2]) for each in words for begin in range(0, len(each), 2)]
        assert Counter(pieces[user]) == Counter(expected)
    assert found.statistics["tokens"] == corpus.statistics["tokens"]
    assert found.statistics["max_holders"] == corpus.statistics["max_holders"]


def test_a_piece_holds_the_entities_of_its_sentence_whether_it_names_them_or_not(corpus, tmp_path):
    found = made(corpus, transform_of(PLAIN), tmp_path / "out")
    texts = [text for _, texts in found.texts() for text in texts]
    of_piece = dict(zip(texts, entities_of(found), strict=True))
    assert of_piece["Ann met"] == of_piece["BOB SMITH"] == {("person", "ann"), ("person", "bob smith")}
    masked = made(corpus, Masks(PLAIN), tmp_path / "masked")
    texts = [text for _, texts in masked.texts() for text in texts]
    assert "<person> met <person>" in " ".join(" ".join(texts).split())
    assert sorted(map(sorted, entities_of(masked))) == sorted(map(sorted, entities_of(corpus)))
    assert (np.sort(masked.entity_hash) == np.sort(corpus.entity_hash)).all()


def test_a_piece_that_names_no_sources_holds_every_entity_of_its_user(corpus, tmp_path):
    found = made(corpus, Joins(PLAIN), tmp_path / "out")
    before = entities_of(corpus)
    for user, entities in enumerate(entities_of(found)):
        first, last = corpus.user_offsets[user : user + 2]
        assert entities == set().union(*before[first:last])


def test_a_user_of_whom_nothing_is_left_keeps_its_number(corpus, tmp_path):
    found = made(corpus, Empties(PLAIN), tmp_path / "out")
    assert (found.user_hash == corpus.user_hash).all()
    assert (found.num_sentences, found.num_entities) == (0, 0)
    assert not (found.user_offsets).any()


def test_categories_are_chosen_after_it(tmp_path):
    rows = (
        row_of("u1", "Ann met Bob in Rome", ("per", "Ann"), ("loc", "Rome")),
        row_of("u2", "to Rome", ("loc", "Rome")),
    )
    prepare(source_of(tmp_path, *rows), tmp_path / "corpus")
    derive(open_corpus(tmp_path / "corpus"), transform_of(PLAIN), tmp_path / "out")  # type: ignore[arg-type]
    found = open_corpus(tmp_path / "out", ["loc"])
    assert entities_of(found) == [{("loc", "rome")}] * 4
    assert found.statistics["max_holders"] == 2


def test_randomness_is_of_each_user_and_fresh_but_under_a_test_seed(tmp_path):
    text = " ".join(f"w{number}" for number in range(400))
    prepare(source_of(tmp_path, row_of("u1", text), row_of("u2", text)), tmp_path / "corpus", num_shards=1)
    corpus = open_corpus(tmp_path / "corpus")
    transform = transform_of(dataclasses.replace(PLAIN, words=1, share=0.5))

    def drawn(name: str, **settings: int) -> list[list[str]]:
        return [texts for _, texts in made(corpus, transform, tmp_path / name, **settings).texts()]

    one, two = drawn("one"), drawn("two")
    assert one[0] != one[1]
    assert one != two
    assert 120 < len(one[0]) < 280
    assert drawn("three", test_seed=7) == drawn("four", test_seed=7) != drawn("five", test_seed=8)
    prepare(source_of(tmp_path, row_of("u2", text)), tmp_path / "alone", num_shards=1)
    alone = made(open_corpus(tmp_path / "alone"), transform, tmp_path / "six", test_seed=7)
    assert [texts for _, texts in alone.texts()] == [drawn("seven", test_seed=7)[1]]


def test_mentions_of_a_transformed_corpus_are_not_taken_for_none(corpus, tmp_path):
    derive(corpus, transform_of(PLAIN), tmp_path / "out")
    source = dataclasses.replace(source_of(tmp_path, *ROWS), format="prepared", path=str(tmp_path / "out"))
    with pytest.raises(InputError, match="is a transformed corpus"):
        prepare(source, tmp_path / "again")
    with pytest.raises(InputError, match="is a transformed corpus"):
        derive(open_corpus(tmp_path / "out"), transform_of(PLAIN), tmp_path / "again")
    assert not (tmp_path / "again").exists()


def test_nothing_is_left_of_one_that_failed(corpus, tmp_path):
    class Fails(Transform):
        def apply(self, sentences, generator):
            yield Piece("one", sources=(len(sentences),))

    with pytest.raises(IndexError):
        derive(corpus, Fails(PLAIN), tmp_path / "out")
    assert not (tmp_path / "out").exists()
    derive(corpus, transform_of(PLAIN), tmp_path / "out")
    before = open_corpus(tmp_path / "out").digest
    with pytest.raises(IndexError):
        derive(corpus, Fails(PLAIN), tmp_path / "out")
    assert open_corpus(tmp_path / "out").digest == before
    shutil.rmtree(tmp_path / "out")

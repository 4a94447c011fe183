"""Each sentence is transformed alone: what becomes of it depends on no other, and nothing but its text changes."""

from __future__ import annotations

import dataclasses
import hashlib
import json

import pytest

from uedp_ray.config import SourceConfig, TransformConfig
from uedp_ray.corpus.prepare import prepare
from uedp_ray.corpus.records import Mention, Sentence
from uedp_ray.corpus.store import open_corpus
from uedp_ray.corpus.transforms.base import Generators, Transform, Transformed, transform_of
from uedp_ray.corpus.transforms.mask import Mask

MASK = TransformConfig(kind="mask")


def masked(text, *mentions):
    sentence = Sentence("u", text, mentions=tuple(Mention(*mention) for mention in mentions))
    return Mask(MASK).text_of(sentence, Generators(b"key", 0, 0))


def test_mentions_are_replaced_by_their_category():
    assert masked("Ann left Rome, and Ann wept.", ("loc", 9, 13), ("person", 19, 22), ("person", 0, 3)) == (
        "[person] left [loc], and [person] wept."
    )
    assert masked("nobody was there") == "nobody was there"


def test_nothing_of_mentions_that_overlap_is_left():
    assert masked("Bank of Oslo AS paid", ("org", 0, 15), ("gpe", 8, 12)) == "[org] paid"
    assert masked("Ann Lee Oslo", ("person", 0, 7), ("gpe", 4, 12)) == "[person]"
    assert masked("AnnOslo", ("person", 0, 3), ("gpe", 3, 7)) == "[person][gpe]"


class Shuffled(Transform):
    """Words in an order that is drawn."""

    def text_of(self, sentence, generators):
        return " ".join(generators.sentence.permutation(sentence.text.split()))


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    folder = tmp_path_factory.mktemp("corpus")
    prepare(SourceConfig(format="synthetic", num_users=12), folder, num_shards=2)
    return open_corpus(folder)


def texts(text):
    return [one for _, said in text.texts() for one in said]


def test_no_protected_form_is_left_in_any_text(corpus):
    kept = texts(Transformed(corpus, Mask(MASK), b"key"))
    mentions = [[each.text[m.start : m.end] for m in each.mentions] for _, said in corpus.sentences() for each in said]
    assert len(kept) == len(mentions) == corpus.num_sentences
    assert any(mentions)
    assert not [form for text, forms in zip(kept, mentions, strict=True) for form in forms if form in text]


def test_only_chosen_categories_are_masked(corpus):
    narrow = open_corpus(corpus.path, ["person"])
    found = set("".join(texts(Transformed(narrow, Mask(MASK), b"key"))).split("["))
    assert any(part.startswith("person]") for part in found)
    assert not any(part.startswith(("loc]", "org]", "gpe]")) for part in found)
    digests = {Transformed(each, Mask(MASK), b"key").digest for each in (corpus, narrow)}
    assert len(digests) == 2, "tokens of one choice are not taken for those of another"


def test_a_sentence_depends_on_no_other_and_on_the_key_of_its_place(corpus):
    """A null sentence, which is what an absent entity leaves, changes none of the others."""
    transform = Shuffled(TransformConfig())
    before = texts(Transformed(corpus, transform, b"key"))
    sentences = [(user, list(said)) for user, said in corpus.sentences()]
    user, said = sentences[3]
    said[1] = dataclasses.replace(said[1], text="", mentions=())
    number = int(corpus.user_offsets[user]) + 1

    class Nulled:
        digest, categories, user_offsets = corpus.digest, corpus.categories, corpus.user_offsets
        protected = corpus.protected

        def sentences(self, users, every):
            return iter(sentences)

    after = texts(Transformed(Nulled(), transform, b"key"))  # type: ignore[arg-type]
    assert [place for place, pair in enumerate(zip(before, after, strict=True)) if len(set(pair)) > 1] == [number]
    assert after[number] == ""
    assert texts(Transformed(corpus, transform, b"key")) == before
    other = texts(Transformed(corpus, transform, b"other"))
    assert other != before
    assert sorted(map(sorted, other)) == sorted(map(sorted, before))


def test_tokens_of_a_transform_that_draws_are_of_one_key(corpus):
    drawn = {Transformed(corpus, Shuffled(TransformConfig()), key).digest for key in (b"one", b"other")}
    fixed = {Transformed(corpus, Mask(MASK), key).digest for key in (b"one", b"other")}
    assert (len(drawn), len(fixed)) == (2, 1)
    assert len(drawn | fixed | {corpus.digest}) == 4


def test_a_transform_does_not_inherit_that_it_draws_nothing(corpus):
    """Under two keys the tokens were one, and the trials of a sweep trained on what the first one's key had drawn."""

    class Noisy(Mask):
        def text_of(self, sentence, generators):
            return " ".join(generators.sentence.permutation(super().text_of(sentence, generators).split()))

    assert len({Transformed(corpus, Noisy(MASK), key).digest for key in (b"one", b"other")}) == 2


def test_tokens_are_of_one_version_of_a_transform(corpus):
    """Those of changed code were taken for those of the code before."""

    class Changed(Mask):
        draws, version = False, 2

    class Same(Mask):
        draws = False

    before = Transformed(corpus, Mask(MASK), b"key").digest
    assert Transformed(corpus, Changed(MASK), b"key").digest != before
    assert Transformed(corpus, Same(MASK), b"key").digest == before
    parts = [corpus.digest, corpus.categories, {"kind": "mask"}, None]
    assert before == hashlib.sha256(json.dumps(parts).encode()).hexdigest(), "as before there were versions"


@pytest.mark.parametrize("kept_in", ["an attribute", "a dictionary"])
def test_what_a_transform_keeps_of_a_sentence_reaches_no_other(corpus, kept_in):
    class Previous(Transform):
        draws = False

        def __init__(self, config):
            super().__init__(config)
            self.last, self.kept = "", {}

        def text_of(self, sentence, generators):
            before = self.last if kept_in == "an attribute" else self.kept.get("last", "")
            self.last = self.kept["last"] = sentence.text
            return before

    assert not any(texts(Transformed(corpus, Previous(TransformConfig()), b"key")))


def test_the_transform_is_the_one_that_is_named():
    assert transform_of(TransformConfig()) is None
    assert isinstance(transform_of(MASK), Mask)

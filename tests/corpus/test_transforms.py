"""Each sentence is transformed alone: what becomes of it depends on no other, and nothing but its text changes."""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import json

import pytest

from uedp_ray.config import SourceConfig, TransformConfig
from uedp_ray.corpus.prepare import prepare
from uedp_ray.corpus.records import Mention, Sentence
from uedp_ray.corpus.retention import retention
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


def test_neighbours_of_one_category_get_one_mask():
    assert masked("Ann  Lee, Bo Oslo", ("person", 5, 8), ("person", 0, 3), ("person", 10, 12), ("gpe", 13, 17)) == (
        "[person], [person] [gpe]"
    )
    assert masked("Ann Lee Oslo", ("person", 0, 3), ("person", 4, 7), ("gpe", 4, 12)) == "[person] [gpe]"
    assert masked("Bank of Oslo AS", ("org", 0, 12), ("gpe", 8, 12), ("org", 13, 15)) == "[org]"


@pytest.mark.parametrize(
    ("style", "text", "words"),
    [
        ("category", "[person] met [gpe] ", ("[gpe]", "[person]")),
        ("token", "[entity] met [entity] ", ("[entity]",)),
        ("remove", " met  ", ()),
    ],
)
def test_a_style_says_what_takes_a_mentions_place(style, text, words):
    transform = transform_of(TransformConfig(kind="mask", style=style))
    sentence = Sentence("u", "Ann met Oslo ", mentions=(Mention("person", 0, 3), Mention("gpe", 8, 12)))
    assert transform.text_of(sentence, Generators(b"key", 0, 0)) == text
    assert transform.writes({"person", "gpe"}) == words


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


@pytest.mark.parametrize("style", ["category", "token", "remove"])
def test_no_protected_form_is_left_in_any_text_and_masks_are_as_many_as_mentions(corpus, style):
    text = Transformed(corpus, Mask(TransformConfig(kind="mask", style=style)), b"key")
    kept = texts(text)
    mentions = [[each.text[m.start : m.end] for m in each.mentions] for _, said in corpus.sentences() for each in said]
    assert len(kept) == len(mentions) == corpus.num_sentences
    assert any(mentions)
    lowered = [said.lower() for said in kept]
    assert not [form for said, forms in zip(lowered, mentions, strict=True) for form in forms if form.lower() in said]
    apart = sum(map(len, mentions)) - sum(map(_neighbours, (each for _, said in corpus.sentences() for each in said)))
    assert sum(said.count("[") for said in kept) == (0 if style == "remove" else apart)


def _neighbours(sentence):
    """Mentions that only blanks part from the one before, of the same category; those of this corpus do not overlap."""
    ordered = sorted(sentence.mentions, key=lambda each: each.start)
    pairs = [(one, other) for one, other in itertools.pairwise(ordered) if one.category == other.category]
    return sum(not sentence.text[one.end : other.start].strip() for one, other in pairs)


def test_what_a_mask_left_is_counted_by_category(corpus):
    """A mask of persons alone leaves every mention of the rest; what it keeps of a person is said twice."""
    narrow = Transformed(corpus, Mask(MASK), b"key", like=open_corpus(corpus.path, ["person"]))
    pairs = [(sentence, text) for _, found in narrow.pairs() for sentence, text in found]
    found = retention(pairs)
    mentions = [each.category for sentence, _ in pairs for each in sentence.mentions]
    assert found["by_category"] == {each: float(each != "person") for each in sorted(set(mentions))}
    assert found["all"] == pytest.approx(1 - mentions.count("person") / len(mentions))
    assert retention([(Sentence("u", "nobody"), "nobody")]) == {"all": None, "by_category": {}}
    cut = Sentence("u", "Bank  of OSLO", mentions=(Mention("org", 0, 13),))
    assert [retention([(cut, text)])["all"] for text in ("the bank of oslo.", "of OSLO Bank")] == [1.0, 0.0]


def test_fragments_are_pieces_of_their_sentence_some_of_them_dropped():
    config = TransformConfig(kind="fragments", words=4, share=0.3)
    words = [str(number) for number in range(400)]
    pieces, drawn = [" ".join(words[first : first + 4]) for first in range(0, 400, 4)], set()
    kept = 0
    for number in range(50):
        transform = transform_of(config)
        text = transform.text_of(Sentence("u", " ".join(words)), Generators(b"key", 0, number)).split()
        found = [" ".join(text[first : first + 4]) for first in range(0, len(text), 4)]
        assert len(set(found)) == len(found)
        assert set(found) <= set(pieces)
        assert found != sorted(found, key=pieces.index)
        kept += len(found)
        drawn.add(tuple(found))
    assert len(drawn) == 50
    assert abs(kept / 5000 - 0.3) < 0.04  # six standard errors: a false alarm in 10^9
    whole = transform_of(TransformConfig(kind="fragments", words=5, share=1.0))
    assert (
        whole.text_of(Sentence("u", " four words,  they  stay "), Generators(b"key", 0, 0)) == "four words, they stay"
    )
    assert transform_of(TransformConfig(kind="fragments")).draws


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

    class First(Mask):
        draws, version = False, 0

    parts = [corpus.digest, corpus.categories, {"kind": "mask"}, None]
    first = hashlib.sha256(json.dumps(parts).encode()).hexdigest()
    assert Transformed(corpus, First(MASK), b"key").digest == first, "as before there were versions"


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

"""What becomes of a text whose words are replaced: which words, how often they are drawn, and what is said of it."""

from __future__ import annotations

import os
import re

import pytest

from uedp_ray.config import SourceConfig, TransformConfig
from uedp_ray.corpus import word_mechanisms
from uedp_ray.corpus.prepare import prepare
from uedp_ray.corpus.records import Mention, Sentence
from uedp_ray.corpus.store import open_corpus
from uedp_ray.corpus.transforms.base import Generators, Transformed, transform_of
from uedp_ray.corpus.transforms.replace_words import ReplaceWords
from uedp_ray.corpus.word_mechanisms import SanText
from uedp_ray.errors import InputError

WORDS = [f"w{place}x" for place in range(40)] + ["oslo", "rome", "the"]


@pytest.fixture
def toy(tmp_path):
    """toy(**settings): a transform of made-up vectors."""
    file = tmp_path / "toy.txt"
    file.write_text("".join(f"{word} {place} {place % 7}\n" for place, word in enumerate(WORDS)))

    def make(**settings):
        return transform_of(
            TransformConfig(kind="replace_words", vectors=str(file), **{"mechanism": "random"} | settings)
        )

    return make


@pytest.fixture
def listed(tmp_path):
    file = tmp_path / "names.txt"
    file.write_text("Ada Byron\tperson\nAlan Turing\tperson\nBergen\tloc\n")
    return {"unknown": "category_list", "category_list": str(file)}


def said(text, *mentions, user="ann"):
    return Sentence(user, text, mentions=tuple(Mention(*each) for each in mentions))


def replaced(transform, sentence, *, key=b"key", user=0, number=0):
    return type(transform)(transform.config).text_of(sentence, Generators(key, user, number))


def test_every_word_is_replaced_and_what_stands_between_stays(toy):
    text = "Oslo,  «w3x» (the\tw4x-w5x)… e\u0301t\u00e9 \u0939\u093f\u0928\u094d\u0926\u0940 🙂!"
    found = replaced(toy(), said(text))
    words = [word for word in WORDS if word in found]
    assert words, found
    for word in sorted(WORDS, key=len, reverse=True):
        found = found.replace(word, "@")
    assert found == "@,  «@» (@\t@)… @ @ @!", "no accent, vowel sign or smile of the text is left"


def test_numbers_become_random_digits(toy):
    found = {replaced(toy(), said("In 1984 0.5 ٣٤"), number=number).split(" ", 1)[1] for number in range(300)}
    assert len(found) > 250
    for text in found:
        year, share, other = text.split()
        assert (len(year), len(share), len(other)) == (4, 3, 2)
        assert (year + share.replace(".", "") + other).isdecimal()
        assert text.isascii()
    assert {text[0] for text in found} == set("0123456789")


@pytest.mark.parametrize("scope", ["all", "entities"])
def test_a_word_without_a_vector_becomes_any_word_or_a_name_of_its_category_or_stays(toy, listed, scope):
    sentence = said("Zoe slept", ("person", 0, 3))

    def first(**settings):
        transform = toy(scope=scope, **settings)
        return {replaced(transform, sentence, user=n, number=n).removesuffix(" slept") for n in range(400)}

    assert {text.split()[0] for text in first()} == set(WORDS)
    names = {" ".join(text.split()[:2]) for text in first(**listed)}
    assert names == {"Ada Byron", "Alan Turing"}
    assert {text.split()[0] for text in first(unknown="copy")} == {"Zoe"}


def test_a_word_of_a_category_without_names_becomes_any_word(toy, listed):
    sentence = said("Acme slept", ("org", 0, 4))
    found = {replaced(toy(scope="entities", **listed), sentence, user=n) for n in range(400)}
    assert found == {f"{word} slept" for word in WORDS}


def test_only_mentions_are_replaced_each_as_a_whole_and_once_for_a_user(toy, listed):
    transform = toy(scope="entities", **listed)
    one = said("Ann Lee met w3x in Oslo", ("person", 0, 7), ("loc", 19, 23))
    other = said("in OSLO, ann  lee and Ann Lee", ("loc", 3, 7), ("person", 9, 17), ("person", 22, 29))
    for user in range(20):
        name, place = replaced(transform, one, user=user, number=1).split(" met w3x in ")
        assert name in ("Ada Byron", "Alan Turing")
        assert place in WORDS
        assert replaced(transform, other, user=user, number=2) == f"in {place}, {name} and {name}"
    assert len({replaced(transform, one, user=user) for user in range(20)}) > 10


def test_of_mentions_that_overlap_nothing_is_left(toy):
    sentence = said("Bank of Oslo AS paid", ("org", 0, 15), ("gpe", 8, 12))
    word, rest = replaced(toy(scope="entities"), sentence).split(" ")
    assert (word in WORDS, rest) == (True, "paid")


@pytest.mark.parametrize(("draw", "within", "across"), [("token", 2, 2), ("record", 1, 2), ("user", 1, 1)])
def test_how_often_a_word_is_drawn(toy, draw, within, across):
    """Of 15 words twice in each of two sentences: all alike, or not."""
    words = [f"w{place}x" for place in range(15)]
    transform, text = toy(draw=draw), " ".join([*words, *map(str.upper, words)])
    one, other = (replaced(transform, said(text), number=number).split() for number in (1, 2))
    assert len({tuple(one[:15]), tuple(one[15:])}) == within
    assert len({tuple(one), tuple(other)}) == across
    stranger = replaced(transform, said(text), user=1, number=3).split()
    assert stranger != one
    told = {"token": 60, "record": 30, "user": 15}[draw]
    line = transform.told([[said(text)] * 2, [said("w1x")]])
    assert line == f"a user has up to {told} draws of epsilon = 0 each, 0 in all (private: read off the text)"


def test_a_charged_draw_is_one_of_a_word_with_a_vector(toy):
    sentence = said("Zoe saw Oslo in 1984", ("loc", 8, 12))
    for scope in ("all", "entities"):
        line = toy(scope=scope, mechanism="santext", epsilon=2.5).told([[sentence]])
        assert line.startswith("a user has up to 1 draws of epsilon = 2.5 each, 2.5 in all")
    assert toy().told([]).startswith("a user has up to 0 draws")


def test_draws_are_those_of_the_key_and_the_place(toy):
    for draw in ("token", "record", "user"):
        transform, sentence = toy(draw=draw), said("w1x w2x w3x w4x")
        text = replaced(transform, sentence)
        assert replaced(transform, sentence) == text
        assert replaced(transform, sentence, key=b"other") != text
        assert (replaced(transform, sentence, number=1) == text) == (draw == "user")
        assert replaced(transform, sentence, user=1, number=2) != text


def test_no_name_gives_a_user_another_stream():
    """A sentence's stream is not a user's, nor is one name's that of another user, however names are made."""
    first = [
        Generators(b"key", user, number).sentence.integers(2**62) for user, number in ((0, 0), (0, 1), (0, 256), (1, 2))
    ]
    names = [("", 0), ("a", 0), ("a", 1), ("\x00", 0), ("\x00" * 8, 0), ("\ud800", 0)]
    first += [Generators(b"key", user, 0).of_user(name).integers(2**62) for name, user in names]
    assert len(set(first)) == len(first)
    same = [Generators(b"key", 3, number).of_user("a").integers(2**62) for number in (1, 2)]
    assert same[0] == same[1]


def test_stop_words_stay_if_they_are_to_but_not_in_mentions(toy):
    sentence = said("The Oslo of The Hague", ("loc", 12, 21))
    kept = replaced(toy(keep_stop_words=True), sentence).split()
    assert (kept[0], kept[2]) == ("The", "of")
    assert kept[1] in WORDS
    assert kept[3] in WORDS
    assert all(word in WORDS for word in replaced(toy(), sentence).split())


def test_whatever_a_text_says_it_does_not_fail(toy, listed):
    for text in ("\ud800 x", "'", "-a-", "\u2019\u2019", "½ ² ⑦", "a\x00b", "İ", "x" * 10_000, "o'clock--isn’t"):
        for settings in ({"draw": "user"}, {"scope": "entities"}, listed, {"mechanism": "vickrey"}):
            replaced(toy(**settings), said(text, ("person", 0, 1)))


@pytest.mark.parametrize("settings", [{}, {"unknown": "copy"}, {"draw": "user"}, {"keep_stop_words": True}])
def test_one_word_is_in_the_place_of_each_where_the_transform_says_so(toy, settings):
    transform = toy(**settings)
    assert transform.moves_words == ""
    blanks = ["\xa0", "\u2003", "\x1c", "\x85", "\u200b", "\u3000", "\ufeff", "\t\x0b"]
    for blank in (" ", *blanks):
        for text in ("U.S. w3x-w4x, 1,250.5 «Zoe»", "- -- ' a'b ,", "e\u0301 İ ½ \ud800 x"):
            said_so = blank.join(text.split(" "))
            found = replaced(transform, said(said_so, ("person", 0, 1)))
            assert len(re.findall(r"\S+", found)) == len(re.findall(r"\S+", said_so)), (found, said_so)


def test_a_class_that_says_nothing_of_its_words_moves_them():
    class Changed(ReplaceWords):
        """Says nothing."""

    config = TransformConfig(kind="replace_words", mechanism="random", vectors="toy.txt")
    assert (ReplaceWords(config).moves_words, Changed(config).moves_words) == ("", "kind")


def test_a_claim_is_of_its_class_alone(toy):
    """A subclass that returns the text as it was inherited "epsilon = 2 of one word", and the line on its draws."""

    class Nothing(ReplaceWords):
        def text_of(self, sentence, generators):
            return sentence.text

    transform = toy(mechanism="santext", epsilon=2.0)
    assert transform.claim().epsilon == 2.0
    assert "of epsilon = 2 each" in transform.told([[said("oslo")]])
    assert Nothing(transform.config).claim() is Nothing(transform.config).told([[said("oslo")]]) is None


def test_a_mechanism_of_others_has_no_figure_told_as_one(toy, monkeypatch):
    class Own(SanText):
        unit, epsilon, hidden_among = "word-metric", SanText.epsilon, SanText.hidden_among

    monkeypatch.setitem(word_mechanisms._MECHANISMS, "own", Own)
    transform = toy(mechanism="santext")
    object.__setattr__(transform.config, "mechanism", "own")
    assert transform.claim().epsilon == 1.0
    assert transform.told([[said("oslo")]]) is None


def test_a_claim_says_what_it_leaves_out(toy, listed):
    claim = toy(mechanism="custext", num_neighbours=8, epsilon=3.0).claim()
    assert (claim.unit, claim.epsilon) == ("word", 3.0)
    assert "Each occurrence of a word is a draw of its own" in claim.note
    assert "words that may become the same words" in claim.note
    assert toy(mechanism="custext", num_neighbours=1).claim() is None, "each word becomes itself"
    alone = toy(mechanism="custext", num_neighbours=3, mapping="aggressive").claim()
    assert alone is None or f"of {len(WORDS)} words are alone in their group, and not protected" in alone.note
    assert "Where sentences begin and end" in claim.note, "`prepare` cuts text by its words"
    assert "whoever has its private/" in claim.note
    assert "53 bits" not in claim.note, "of 3"
    assert "Beyond 15, it is of exact draws" in toy(mechanism="custext", num_neighbours=8, epsilon=16.0).claim().note
    claim = toy(mechanism="vickrey", mahalanobis=0.5, scope="entities", unknown="copy", epsilon=2.0).claim()
    assert (claim.unit, claim.epsilon) == ("word-metric", 2.0)
    for part in ("Mahalanobis distance", "drawn once for a user", "all other words stay", "UNPROTECTED", "53 bits"):
        assert part in claim.note
    claim = toy(keep_stop_words=True, **listed).claim()
    assert (claim.unit, claim.epsilon) == ("word", 0.0)
    assert "Stop-words outside mentions stay" in claim.note
    assert "category, which shows" in claim.note


def test_words_of_one_user_change_no_other_users_text(toy, tmp_path):
    """With one draw for a user too: a null sentence, which is what an absent entity leaves, changes none of the others."""
    prepare(SourceConfig(format="synthetic", num_users=6), tmp_path / "corpus")
    corpus = open_corpus(tmp_path / "corpus")
    sentences = [(user, list(each)) for user, each in corpus.sentences()]

    class Changed:
        digest, categories, user_offsets = corpus.digest, corpus.categories, corpus.user_offsets
        protected = corpus.protected

        def sentences(self, users, every):
            return iter(sentences)

    def texts():
        text = Transformed(Changed(), toy(draw="user"), b"key")
        return [one for _, each in text.texts() for one in each]

    before = texts()
    user, each = sentences[2]
    each[1] = said("")
    after = texts()
    number = int(corpus.user_offsets[user]) + 1
    assert [place for place, pair in enumerate(zip(before, after, strict=True)) if len(set(pair)) > 1] == [number]


def test_the_digest_is_of_what_the_files_say_wherever_they_are(toy, tmp_path):
    prepare(SourceConfig(format="synthetic", num_users=3), tmp_path / "corpus")
    corpus, file, moved = open_corpus(tmp_path / "corpus"), tmp_path / "toy.txt", tmp_path / "moved.txt"
    before = Transformed(corpus, toy(), b"key").digest
    assert Transformed(corpus, toy(epsilon=2.0, mechanism="santext"), b"key").digest != before
    moved.write_bytes(file.read_bytes())
    there = transform_of(TransformConfig(kind="replace_words", mechanism="random", vectors=str(moved)))
    assert Transformed(corpus, there, b"key").digest == before
    moved.write_text(moved.read_text().replace("rome", "oulu"))
    assert Transformed(corpus, there, b"key").digest != before


def test_vectors_that_change_are_read_again(tmp_path):
    file = tmp_path / "toy.txt"
    config = TransformConfig(kind="replace_words", mechanism="random", vectors=str(file))
    for number, words in enumerate((("one", "two"), ("red", "blu"))):
        file.write_text("".join(f"{word} {place}\n" for place, word in enumerate((*words, "end"))))
        os.utime(file, (number, number))
        assert {replaced(transform_of(config), said("x"), number=n) for n in range(60)} == {*words, "end"}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"draw": "dataset"}, r"draw = 'dataset': one draw for everybody would show .*: use user"),
        ({"vectors": ""}, r"vectors = '': name a file of word vectors"),
        ({"epsilon": 0.0}, "must be a finite number above 0"),
        ({"selection": 1.5}, "a probability"),
        ({"mahalanobis": 1.0}, "below 1"),
        ({"neighbour_weights": (1.0, 0.0)}, "above 0"),
        ({"num_neighbours": 0}, "must be 1 or more"),
        ({"unknown": "category_list"}, "give both"),
        ({"category_list": "names.txt"}, "give both"),
        ({"mechanism": "laplace"}, "choose one of custext, santext, fbdd, vickrey, random"),
    ],
)
def test_settings_that_are_refused(settings, message):
    with pytest.raises(InputError, match=message) as told:
        TransformConfig(**{"kind": "replace_words", "vectors": "toy.txt"} | settings)
    assert told.value.field.startswith("corpus.transform.")


def test_a_list_or_vectors_that_are_missing_are_an_error_of_their_setting(toy, listed, tmp_path):
    with pytest.raises(InputError, match=r"corpus\.transform\.category_list = 'none\.txt': no such file"):
        toy(**listed | {"category_list": "none.txt"}).check()
    toy(**listed).check()
    with pytest.raises(InputError, match=r"corpus\.transform\.vectors = .*none\.txt': cannot be read"):
        transform_of(TransformConfig(kind="replace_words", vectors=str(tmp_path / "none.txt"))).check()


def test_words_that_stay_as_they_are_hide_nobody(tmp_path):
    """Two groups of custext in each of which all but one are stop-words."""
    file = tmp_path / "toy.txt"
    file.write_text("oslo 0 0\nthe 0 1\nof 1 0\nate 9 9\nin 9 8\nto 8 9\n")
    settings = {"kind": "replace_words", "vectors": str(file), "mechanism": "custext", "mapping": "conservative"}
    settings |= {"num_neighbours": 3, "epsilon": 1.0}
    open_to_all = transform_of(TransformConfig(**settings)).claim()
    assert open_to_all.epsilon == 1.0
    assert "are taken as public" in open_to_all.note
    assert transform_of(TransformConfig(**settings, keep_stop_words=True)).claim() is None


def test_what_draws_cost_goes_by_the_distance_where_the_mechanism_does(toy):
    texts = [[said("oslo rome")]]
    assert "2 in all (private" in toy(mechanism="custext", epsilon=1.0).told(texts)
    assert "2 in all, times the distance between two words (private" in toy(mechanism="santext", epsilon=1.0).told(
        texts
    )

"""The generated corpus: reproducible, lazy, well-annotated, shared by a power law, and learnable."""

from __future__ import annotations

import hashlib
import itertools
import math
from collections import Counter, defaultdict

import pytest

from uedp_ray.corpus import _lexicon as lexicon
from uedp_ray.corpus import _names as names
from uedp_ray.corpus.records import Sentence, entity_form
from uedp_ray.corpus.synthetic import MAX_TOKENS, MIN_TOKENS, generate
from uedp_ray.errors import InputError

PARTS = ("private", "held_out", "public", "proxy")
UNIVERSAL_TAGS = {
    "ADJ", "ADP", "ADV", "AUX", "CCONJ", "DET", "INTJ", "NOUN", "NUM", "PART", "PRON", "PROPN", "PUNCT", "SCONJ", "SYM",
    "VERB", "X",
}  # fmt: skip


@pytest.fixture(scope="module")
def corpora() -> dict[str, list[Sentence]]:
    return {part: list(generate(200, seed=0, part=part)) for part in PARTS}


def _holders(sentences: list[Sentence]) -> dict[tuple[str, str], set[str]]:
    holders = defaultdict(set)
    for sentence in sentences:
        for mention in sentence.mentions:
            holders[mention.category, entity_form(sentence.text, mention)].add(sentence.user)
    return holders


@pytest.mark.parametrize("part", PARTS)
def test_same_arguments_same_text_and_a_longer_corpus_starts_with_the_shorter(part: str) -> None:
    short = list(generate(20, seed=3, part=part))
    assert short == list(generate(20, seed=3, part=part))
    assert short == list(itertools.islice(generate(1_000_000, seed=3, part=part), len(short)))
    assert short != list(itertools.islice(generate(20, seed=4, part=part), len(short)))


def test_text_is_frozen() -> None:
    """Another Python version or process must generate the same corpus: Ray workers and reruns rely on it."""
    first = next(generate(1, seed=0))
    assert (first.user, first.label, first.text) == (
        "private-0000000",
        "contracts",
        "A landlord breaches the covenant in Upper Dortastead .",
    )
    everything = "\n".join(repr(sentence) for part in PARTS for sentence in generate(20, seed=0, part=part))  # type: ignore[arg-type]
    assert hashlib.sha256(everything.encode()).hexdigest() == FROZEN


FROZEN = "6fcd39decca68227318862700979a3eb799a1c8ebd58c2ba090ebd6f3f0a6fb8"


def test_users_are_generated_lazily() -> None:
    users = itertools.groupby(generate(10**12, seed=0), key=lambda sentence: sentence.user)
    assert len({user for user, _ in itertools.islice(users, 10)}) == 10


@pytest.mark.parametrize("part", PARTS)
def test_annotations_fit_the_text(corpora: dict[str, list[Sentence]], part: str) -> None:
    looks = {
        "person": lambda s: len(s.split()) == 2 and s.istitle(),
        "gpe": lambda s: s.istitle(),
        "org": lambda s: any(s.endswith(kind) for topic in lexicon.TOPICS for kind in topic.companies),
        "phone": lambda s: s.startswith("+999 ") and s[5:].replace(" ", "").isdigit(),
        "email": lambda s: s.count("@") == 1 and s.endswith(".example"),
        "diagnosis": lambda s: len(s) > 5,
    }
    seen = set()
    for sentence in corpora[part]:
        tokens = sentence.text.split(" ")
        assert MIN_TOKENS <= len(tokens) <= MAX_TOKENS
        assert all(tokens), "one space between tokens"
        assert sentence.tags is not None
        assert len(sentence.tags) == len(tokens)
        assert set(sentence.tags) <= UNIVERSAL_TAGS
        assert tokens[-1] in ".!?"
        assert sentence.tags[-1] == "PUNCT"
        edges = set(itertools.accumulate((len(token) + 1 for token in tokens), initial=0))
        for mention in sentence.mentions:
            form = sentence.text[mention.start : mention.end]
            assert looks[mention.category](form), mention.category
            assert mention.start in edges, "begins with a token"
            assert mention.end + 1 in edges, "ends with a token"
            seen.add(mention.category)
    assert seen == set(looks)


def test_tags_agree_with_the_lexicon(corpora: dict[str, list[Sentence]]) -> None:
    """A word has one or two tags (``test`` is a noun and a verb): tags are neither random nor constant."""
    tags = defaultdict(Counter)
    for sentence in corpora["private"]:
        for word, tag in zip(sentence.text.lower().split(), sentence.tags or (), strict=True):
            tags[word][tag] += 1
    assert tags["the"].keys() == {"DET"}
    assert tags["report"].keys() >= {"VERB"}
    assert any(len(kinds) > 1 for kinds in tags.values())
    assert max(len(kinds) for kinds in tags.values()) <= 4


def test_an_adverb_follows_the_auxiliary_and_no_entity_comes_twice(corpora: dict[str, list[Sentence]]) -> None:
    adverbs = 0
    for sentence in corpora["private"]:
        words, forms = sentence.text.split(), [entity_form(sentence.text, mention) for mention in sentence.mentions]
        assert len(set(forms)) == len(forms)
        for i in {i for i, word in enumerate(words) if word in lexicon.ADVERBS}:
            adverbs += 1
            assert (sentence.tags or ())[i : i + 2] == ("ADV", "VERB")
    assert adverbs > 100


@pytest.mark.parametrize("part", PARTS)
def test_shares_and_labels(corpora: dict[str, list[Sentence]], part: str) -> None:
    sentences = corpora[part]
    sizes = Counter(sentence.user for sentence in sentences)
    assert len(sizes) == 200
    assert min(sizes.values()) >= 5
    assert max(sizes.values()) <= 30
    assert len(set(sizes.values())) > 15
    assert 0.50 < sum(bool(sentence.mentions) for sentence in sentences) / len(sentences) < 0.62
    labels = Counter(sentence.label for sentence in sentences)
    assert labels.keys() == {topic.name for topic in lexicon.TOPICS}
    per_user = defaultdict(set)
    for sentence in sentences:
        per_user[sentence.user].add(sentence.label)
    assert sum(map(len, per_user.values())) / 200 < 3, "users keep to their topics"
    assert 1000 < len({word for sentence in sentences for word in sentence.text.lower().split()}) < 4000


def test_few_entities_are_held_by_many_and_most_by_few(corpora: dict[str, list[Sentence]]) -> None:
    holders = _holders(corpora["private"])
    counts = sorted(map(len, holders.values()), reverse=True)
    assert counts[0] >= 15
    assert sum(count <= 3 for count in counts) / len(counts) > 0.85
    for category in ("person", "gpe", "org", "diagnosis"):
        of_category = [len(users) for (kind, _), users in holders.items() if kind == category]
        assert max(of_category) >= 8
    contact = [len(users) for (kind, _), users in holders.items() if kind in ("phone", "email")]
    assert sum(count == 1 for count in contact) / len(contact) > 0.75
    many = _holders(list(generate(800, seed=0)))
    assert len(many) > 2 * len(holders), "entities grow with the corpus"


def test_parts_share_no_user_and_only_private_and_held_out_share_entities(
    corpora: dict[str, list[Sentence]],
) -> None:
    users = {part: {sentence.user for sentence in corpora[part]} for part in PARTS}
    entities = {part: set(_holders(corpora[part])) for part in PARTS}
    for one, other in itertools.combinations(PARTS, 2):
        assert not users[one] & users[other]
    assert 0.05 < len(entities["private"] & entities["held_out"]) / len(entities["private"]) < 0.7
    assert not entities["public"] & (entities["private"] | entities["held_out"])


def test_private_text_differs_from_public_text_and_both_have_structure(corpora: dict[str, list[Sentence]]) -> None:
    """Held-out perplexity of an interpolated bigram model falls: unigram > public bigram > private bigram."""
    words = {part: [["<s>", *s.text.lower().split()] for s in corpora[part]] for part in PARTS}
    known = {word for sentence in words["public"] for word in sentence}

    def perplexity(train: list[list[str]], weight: float) -> float:
        read = [[word if word in known else "<unk>" for word in sentence] for sentence in train]
        one = Counter(word for sentence in read for word in sentence[1:])
        two = Counter(pair for sentence in read for pair in itertools.pairwise(sentence))
        context = Counter(word for sentence in read for word in sentence[:-1])
        total = sum(one.values())
        loss, count = 0.0, 0
        for sentence in words["held_out"]:
            for last, word in itertools.pairwise([word if word in known else "<unk>" for word in sentence]):
                flat = (one[word] + 1) / (total + len(known) + 1)
                pair = two[last, word] / context[last] if context[last] else flat
                loss -= math.log(weight * pair + (1 - weight) * flat)
                count += 1
        return math.exp(loss / count)

    assert perplexity(words["public"], 0.8) < 0.8 * perplexity(words["public"], 0.0)
    assert perplexity(words["private"], 0.8) < 0.7 * perplexity(words["public"], 0.8)
    assert perplexity(words["private"], 0.8) < 0.7 * perplexity(words["proxy"], 0.8), "it stands for other text"


def test_names_do_not_collide() -> None:
    numbers = [*range(30_000), *range(30_000_000, 30_010_000)]
    for name in (names.person, names.place, names.illness, names.address, names.phone):
        assert len({name(number) for number in numbers}) == len(numbers)
    assert len({names.company(number, 0) for number in numbers}) == len(numbers)


@pytest.mark.parametrize(
    ("base", "forms"),
    [
        ("sign", ("sign", "signs", "signed", "signed", "signing")),
        ("submit", ("submit", "submits", "submitted", "submitted", "submitting")),
        ("bandage", ("bandage", "bandages", "bandaged", "bandaged", "bandaging")),
        ("fry", ("fry", "fries", "fried", "fried", "frying")),
        ("pay", ("pay", "pays", "paid", "paid", "paying")),
        ("beat", ("beat", "beats", "beat", "beaten", "beating")),
        ("throw", ("throw", "throws", "threw", "thrown", "throwing")),
    ],
)
def test_verbs_are_inflected(base: str, forms: tuple[str, ...]) -> None:
    verb = lexicon.conjugate(base)
    assert (verb.base, verb.third, verb.past, verb.participle, verb.gerund) == forms


def test_bad_arguments_are_refused_at_once() -> None:
    with pytest.raises(InputError, match="part"):
        generate(5, seed=0, part="test")  # type: ignore[arg-type]
    with pytest.raises(InputError, match="num_users"):
        generate(0, seed=0)

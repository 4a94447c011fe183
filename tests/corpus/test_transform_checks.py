"""What is found of transforms and word mechanisms of others before a run, on words that are made up."""

from __future__ import annotations

import sys
from importlib.util import module_from_spec, spec_from_file_location

import numpy as np
import pytest
from scipy.spatial.distance import cdist

from uedp_ray.config import CorpusConfig, PrivacyConfig, RunConfig, TransformConfig
from uedp_ray.config.choices import PROVED_WORD_MECHANISMS
from uedp_ray.corpus import word_mechanisms
from uedp_ray.corpus.records import Mention, Sentence
from uedp_ray.corpus.transform_checks import check_transform
from uedp_ray.corpus.transforms.base import Generators, transform_of
from uedp_ray.corpus.word_mechanisms import ByLaw, mechanism_class
from uedp_ray.errors import InputError
from uedp_ray.training.checks import ignored, unused

HEAD = "from uedp_ray.corpus.transforms.base import Transform, with_mentions_replaced\n"
PSEUDONYMS = """
NAMES = {}
class Own(Transform):
    def text_of(self, sentence, generators):
        def by(mention):
            return f"person-{NAMES.setdefault(sentence.text[mention.start : mention.end], len(NAMES))}"
        return with_mentions_replaced(sentence, by)
"""
RUNNING = """
class Own(Transform):
    last = ""
    def text_of(self, sentence, generators):
        before, Own.last = Own.last, sentence.text.split()[0]
        return before + sentence.text
"""
UNSEEDED = """
import random
class Own(Transform):
    def text_of(self, sentence, generators):
        return str(random.random())
"""
GOOD = """
class Own(Transform):
    def text_of(self, sentence, generators):
        words = generators.sentence.permutation(sentence.text.split())
        return f"{generators.of_user('x').integers(9)} {' '.join(words)}"
"""


def named(config, **names):
    for name, value in names.items():
        object.__setattr__(config, name, value)
    return config


@pytest.fixture
def own(tmp_path, monkeypatch):
    """own(code): the settings of a transform of that code, in a file of its own."""

    def add(code):
        path = tmp_path / "own.py"
        path.write_text(f"{HEAD}{code}TRANSFORM = Own\n")
        name = "uedp_ray.corpus.transforms.own"
        spec = spec_from_file_location(name, path)
        module = module_from_spec(spec)
        monkeypatch.setitem(sys.modules, name, module)
        spec.loader.exec_module(module)
        return named(TransformConfig(), kind="own")

    return add


@pytest.mark.parametrize("code", [PSEUDONYMS, RUNNING, UNSEEDED])
def test_a_transform_that_keeps_of_one_text_for_another_is_refused(own, code):
    """Pseudonyms numbered in a module passed, and a run was private by them."""
    with pytest.raises(InputError, match=r"corpus\.transform\.kind = 'own': Own makes something else of a sentence"):
        check_transform(own(code))


def test_one_that_keeps_nothing_passes_and_what_is_tried_leaves_nothing(own):
    check_transform(own(GOOD))
    config = own(PSEUDONYMS)
    with pytest.raises(InputError):
        check_transform(config)
    sentence = Sentence("ann", "Ada", mentions=(Mention("person", 0, 3),))
    assert transform_of(config).text_of(sentence, Generators(b"key", 0, 0)) == "person-0"


class Own(ByLaw):
    """SanText as it is; others change a part of it."""

    unit = "word-metric"

    @property
    def epsilon(self):
        return self.setting

    def law(self, word):
        weights = np.exp(-self.setting * cdist(self.vectors.table[word : word + 1], self.vectors.table)[0] / 2)
        return np.arange(len(weights)), weights / weights.sum()

    def hidden_among(self, replaced=None):
        return self._everything(replaced)


class Lie(Own):
    """Keeps nearly every word, and states the epsilon of the file."""

    unit, epsilon, hidden_among = "word", Own.epsilon, Own.hidden_among

    def law(self, word):
        probabilities = np.full(len(self.vectors.words), 0.01 / len(self.vectors.words))
        probabilities[word] += 0.99
        return np.arange(len(probabilities)), probabilities


class Memo(Own):
    """The word before it, whoever said it."""

    unit, epsilon, hidden_among = "word", Own.epsilon, Own.hidden_among
    last = 0

    def law(self, word):
        before, self.last = self.last, word
        return np.array([before]), np.ones(1)


class Numbered(Own):
    """Words in the order in which they were first said, kept where a copy has it too."""

    unit, epsilon, hidden_among = "word", Own.epsilon, Own.hidden_among

    def __init__(self, config, vectors):
        super().__init__(config, vectors)
        self.seen = {}

    def law(self, word):
        return np.array([self.seen.setdefault(word, len(self.seen))]), np.ones(1)


@pytest.fixture
def toy(tmp_path, monkeypatch):
    """toy(mechanism, epsilon): the settings of words replaced by a mechanism of others, or of that name."""
    points = np.random.default_rng(0).normal(size=(40, 3))
    file = tmp_path / "toy.txt"
    rows = (" ".join(map(str, point)) for point in points.tolist())
    file.write_text(
        "".join(f"w{chr(97 + place // 26)}{chr(97 + place % 26)} {row}\n" for place, row in enumerate(rows))
    )

    def make(mechanism, epsilon=1.0, **settings):
        config = TransformConfig(kind="replace_words", vectors=str(file), epsilon=epsilon, **settings)
        if isinstance(mechanism, str):
            return named(config, mechanism=mechanism)
        monkeypatch.setitem(word_mechanisms._MECHANISMS, "own", mechanism)
        return named(config, mechanism="own")

    return make


def test_a_law_that_is_not_what_is_stated_is_refused(toy):
    """99 % of words stayed as they were, at an epsilon of 0.01 of one word."""
    check_transform(toy(Own, epsilon=2.0))
    check_transform(toy(Lie, epsilon=9.0))  # log(0.99025 / 0.00025) = 8.28
    with pytest.raises(
        InputError, match=r"Lie states that 'w\w\w' and 'w\w\w' are within 8 \(unit word\), and by its law"
    ):
        check_transform(toy(Lie, epsilon=8.0))
    sharper = type("Sharper", (Own,), {"unit": "word-metric", "epsilon": Own.epsilon, "hidden_among": Own.hidden_among})
    sharper.law = lambda self, word: Own.law(self.at(3 * self.setting, 0.0), word)
    with pytest.raises(InputError, match="Sharper states that"):
        check_transform(toy(sharper))
    silent = type("Silent", (Lie,), {})
    check_transform(toy(silent, epsilon=0.01))  # it promises nothing


@pytest.mark.parametrize(
    ("mechanism", "message"), [(Memo, "Memo changes as words"), (Numbered, "Numbered makes something")]
)
def test_a_mechanism_that_keeps_of_one_word_for_another_is_refused(toy, mechanism, message):
    with pytest.raises(InputError, match=rf"corpus\.transform\.mechanism = 'own': {message}"):
        check_transform(toy(mechanism))


def test_a_draw_leaves_nothing_for_the_next_in_the_mechanism(toy):
    transform = transform_of(toy(Memo))
    text = transform.text_of(Sentence("ann", "waf wag wah"), Generators(b"key", 0, 0))
    assert text == "waa waa waa", "Memo.last is that of a new object"


EPSILON = "corpus.transform.epsilon is ignored: corpus.transform."


def test_settings_that_a_transform_of_others_uses_are_not_said_to_be_ignored(own, toy):
    """Every setting of a transform that is not ours was, and a grid over it had one row."""

    def run(config):
        return RunConfig(
            corpus=CorpusConfig(declared_num_users=9, transform=config), privacy=PrivacyConfig(noise_multiplier=1)
        )

    def told(config):
        return [note for note in ignored(run(config)) if "transform" in note]

    config = own(GOOD)
    named(config, epsilon=2.0, num_neighbours=7)
    assert told(config) == []
    assert "corpus.transform.epsilon" not in unused(run(config))
    stated = named(own(GOOD.replace("def", "uses = ('epsilon',)\n    def")), epsilon=2.0, num_neighbours=7)
    assert told(stated) == ["corpus.transform.num_neighbours is ignored: corpus.transform.kind is own"]
    words = toy(Own, epsilon=2.0, num_neighbours=7)
    assert told(words) == []
    words = toy(type("Stated", (Own,), {"uses": ("num_neighbours",)}), epsilon=2.0, num_neighbours=7)
    assert told(words) == [f"{EPSILON}mechanism is own"]
    assert told(toy(type("Heir", (mechanism_class("own"),), {}), epsilon=2.0)) == []
    assert told(TransformConfig(kind="mask", epsilon=2.0)) == [f"{EPSILON}kind is mask"]
    assert told(TransformConfig(epsilon=2.0)) == [f"{EPSILON}kind is none"]


@pytest.mark.parametrize("epsilon", [1e-6, 3.0, 1e6])
def test_laws_of_the_package_are_what_is_stated(toy, epsilon):
    """Also where probabilities are too small for float64."""
    for name in sorted(PROVED_WORD_MECHANISMS):
        for mapping in ("aggressive", "balanced", "conservative"):
            check_transform(toy(name, epsilon=epsilon, mapping=mapping, num_neighbours=7))

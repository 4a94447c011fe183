"""Phrases of the synthetic corpus: what one user draws, and noun phrases, verbs, clauses and entities made of it."""

from __future__ import annotations

import functools
import random
from collections.abc import Callable, Sequence
from typing import TypeVar

from uedp_ray.corpus import _lexicon as lexicon
from uedp_ray.corpus import _names as names
from uedp_ray.corpus._spill import stable_hash

T = TypeVar("T")

_CONTACTS = 3  # Own people of a user; the first two have the own phone numbers and addresses.
_OWN = {"private": 0, "held_out": 1, "public": 2, "proxy": 2}  # Regions of entity numbers.
_SHARED = {"private": 3, "held_out": 3, "public": 4, "proxy": 4}  # private and held_out share one pool of entities.
_ORDERS: dict[str, Callable[[tuple], tuple]] = {
    "private": lambda items: items,
    "public": lambda items: items[::-1],
    "proxy": lambda items: items[len(items) // 2 :] + items[: len(items) // 2],
}
"""Which words a part prefers, of those in a topic's list."""


def _weighted(items: tuple, *, order: str) -> tuple:
    """``items`` repeated in proportion to 1 / (rank + 1.5), for drawing by a uniform index."""
    ordered = _ORDERS[order](items)
    return tuple(item for rank, item in enumerate(ordered) for _ in range(max(1, round(9 / (rank + 1.5)))))


class TopicTable:
    """One topic as a part uses it: tuples in which likelier entries occur more often."""

    def __init__(self, index: int, *, order: str):
        topic = lexicon.TOPICS[index]
        self.index, self.name = index, topic.name
        weigh = functools.partial(_weighted, order=order)
        self.agents = weigh(topic.agents)
        self.frames = weigh(tuple((verb, weigh(objects)) for verb, objects in topic.frames))
        self.places, self.complements = weigh(topic.places), weigh(topic.complements)
        nouns = {noun for _, objects in topic.frames for noun in objects}
        # A noun keeps to three adjectives of its topic, chosen by its spelling: the same ones in every part.
        self.adjectives = {
            noun: tuple(
                topic.adjectives[(stable_hash(noun) + step) % len(topic.adjectives)] for step in (0, 0, 0, 3, 5)
            )
            for noun in (*sorted(nouns), *topic.agents)
        }


TABLES = {order: [TopicTable(index, order=order) for index in range(len(lexicon.TOPICS))] for order in _ORDERS}
TABLES["held_out"] = TABLES["private"]
_PLURAL = {noun: lexicon.plural(noun) for table in TABLES["private"] for noun in table.adjectives}
_TENSES = ("past",) * 6 + ("present",) * 4 + ("future", "modal", "perfect", "progressive", "negated")
BE_PAST = {"s": "was", "p": "were", "I": "was"}
_BE = {"s": "is", "p": "are", "I": "am"}
_PRONOUNS = (("I", "I"), ("we", "p"), ("we", "p"), ("they", "p"), ("he", "s"), ("she", "s"))


class Writer:
    """One user: habits, topics and entities, drawn once. Writing methods append tokens and tags.

    A subject method returns how its verb agrees: ``s`` third person singular, ``p`` plural, ``I`` first person.
    """

    def __init__(self, seed: int, part: str, index: int):
        self.rng = rng = random.Random(stable_hash(f"uedp synthetic {seed} {part} {index}"))
        self.draw = rng.random
        self.user = f"{part}-{index:07d}"
        self.shared = _SHARED[part]
        tables, shares = TABLES[part], lexicon.SHARES[part]
        self.topics = rng.choices(tables, shares, k=1) * 3 + rng.choices(tables, shares, k=2)
        self.tenses = rng.choices(_TENSES, k=6)
        self.pronouns = rng.choices(_PRONOUNS, k=3)
        self.connectives, self.openers = rng.choices(lexicon.CONNECTIVES, k=4), rng.choices(lexicon.OPENERS, k=4)
        self.hedges, self.adverbs = rng.choices(lexicon.HEDGES, k=2), rng.choices(lexicon.ADVERBS, k=4)
        self.sensitive_share = 0.4 + 0.3 * self.draw()
        self.exclaims = 0.15 * self.draw()
        # The seed shifts whose contacts are whose; within one seed no two users of a region have a contact in common.
        first = index * _CONTACTS + stable_hash(f"names {seed}") % 1000
        self.contacts = [(first + k) * names.REGIONS + _OWN[part] for k in range(_CONTACTS)]
        self.topic = self.topics[0]
        self.home, self.illness = self.power_law(6.0, 0.8), self.own_illness()
        self.employer = names.company(self.power_law(4.0, 0.7), self.topic.index)
        self.words: list[str] = []
        self.tags: list[str] = []
        self.spans: list[tuple[str, int, int]] = []

    # Drawing.

    def pick(self, items: Sequence[T]) -> T:
        return items[int(self.draw() * len(items))]

    def power_law(self, flatness: float, exponent: float) -> int:
        """A shared entity's number: rank k or more with probability (1 + k / flatness) ** -exponent."""
        rank = int(flatness * ((1.0 - self.draw()) ** (-1.0 / exponent) - 1.0)) % 10_000_000
        return rank * names.REGIONS + self.shared

    def own_illness(self) -> int:
        return self.contacts[0] if self.draw() < 0.25 else self.power_law(2.0, 0.8)

    # Words and phrases.

    def put(self, word: str, tag: str) -> None:
        self.words.append(word)
        self.tags.append(tag)

    def phrase(self, phrase: lexicon.Fragment) -> None:
        self.words.extend(phrase[0])
        self.tags.extend(phrase[1])

    def noun(self, noun: str, *, agent: bool = False) -> str:
        """Determiner, perhaps adjective, noun."""
        draw = self.draw()
        adjective = self.pick(self.topic.adjectives[noun]) if self.draw() < (0.15 if agent else 0.35) else None
        many = draw > 0.82
        if draw < 0.6:
            self.put("the", "DET")
        elif draw < 0.75:
            self.put("an" if (adjective or noun)[0] in "aeiou" else "a", "DET")
        elif draw < 0.82:
            self.put("this" if draw < 0.79 else "every", "DET")
        elif draw < 0.94:
            self.put("the" if draw < 0.88 else "our", "DET")
        else:
            self.put(self.pick(lexicon.NUMBERS), "NUM")
        if adjective:
            self.put(adjective, "ADJ")
        self.put(_PLURAL[noun] if many else noun, "NOUN")
        return "p" if many else "s"

    def agent(self) -> str:
        return self.noun(self.pick(self.topic.agents), agent=True)

    def subject(self) -> str:
        if self.draw() < 0.35:
            pronoun, agreement = self.pick(self.pronouns)
            self.put(pronoun, "PRON")
            return agreement
        return self.agent()

    def entity(self, category: str, name: tuple[str, ...], tags: tuple[str, ...] | None = None) -> str:
        start = len(self.words)
        self.words.extend(name)
        self.tags.extend(tags or ("PROPN",) * len(name))
        self.spans.append((category, start, len(self.words)))
        return "s"

    def person(self) -> str:
        own = self.draw() < 0.6
        return self.entity("person", names.person(self.pick(self.contacts) if own else self.power_law(12.0, 0.6)))

    def town(self) -> names.Name:
        return names.place(self.home if self.draw() < 0.4 else self.power_law(6.0, 0.8))

    def place(self) -> str:
        return self.entity("gpe", self.town())

    def company(self) -> str:
        name = self.employer if self.draw() < 0.35 else names.company(self.power_law(3.0, 0.7), self.topic.index)
        return self.entity("org", name)

    def diagnosis(self) -> str:
        name = names.illness(self.illness if self.draw() < 0.5 else self.own_illness())
        adjective = name[0] in lexicon.ILLNESS_ADJECTIVES
        return self.entity("diagnosis", name, ("ADJ",) * adjective + ("NOUN",) * (len(name) - adjective))

    def owner(self) -> int:
        return self.contacts[int(self.draw() * 2)] if self.draw() < 0.85 else self.power_law(3.0, 0.7)

    def phone(self) -> str:
        name = names.phone(self.owner())
        return self.entity("phone", name, ("NUM",) * len(name))

    def email(self) -> str:
        return self.entity("email", names.address(self.owner()), ("X",))

    def verb(self, verb: lexicon.Verb, agreement: str, tense: str | None = None, adverb: str | None = None) -> None:
        tense = tense or self.pick(self.tenses)
        form = verb.base
        if tense == "past":
            form = verb.past
        elif tense == "present":
            form = verb.third if agreement == "s" else verb.base
        elif tense == "perfect":
            self.put("has" if agreement == "s" else "have", "AUX")
            form = verb.participle
        elif tense == "progressive":
            self.put(_BE[agreement], "AUX")
            form = verb.gerund
        elif tense == "negated":
            self.phrase((("did", "not"), ("AUX", "PART")))
        else:
            self.put("will" if tense == "future" else self.pick(lexicon.MODALS), "AUX")
        if adverb:
            self.put(adverb, "ADV")
        self.put(form, "VERB")

    def clause(
        self, subject: Callable[[], str] | None = None, tense: str | None = None, *, short: bool = False
    ) -> None:
        verb, objects = self.pick(self.topic.frames)
        agreement = (subject or self.subject)()
        adverb = self.pick(self.adverbs) if not short and self.draw() < 0.12 else None
        self.verb(verb, agreement, tense, adverb)
        self.noun(self.pick(objects))
        if not short:
            self.tail()

    def tail(self, *, timed: bool = True) -> None:
        draw = self.draw()
        if draw < 0.22:
            self.phrase(self.pick(self.topic.places))
        elif draw < (0.45 if timed else 0.6):
            self.phrase(self.pick(self.topic.complements))
        elif draw < 0.6:
            self.phrase(self.pick(lexicon.TIMES))

    def passive(self, by: Callable[[], str]) -> None:
        verb, objects = self.pick(self.topic.frames)
        agreement = self.noun(self.pick(objects))
        self.put(BE_PAST[agreement], "AUX")
        self.put(verb.participle, "VERB")
        self.put("by", "ADP")
        by()

    def about(self) -> None:
        self.put("about", "ADP")
        self.noun(self.pick(self.pick(self.topic.frames)[1]))

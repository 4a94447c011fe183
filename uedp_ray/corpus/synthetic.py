"""The embedded corpus: English-like text of any number of users, with planted entities, made from our own grammar.

    for sentence in generate(200, seed=0):
        sentence.user, sentence.text, sentence.label, sentence.tags, sentence.mentions

A user has two or three topics (the label), habits (tense, openers, sentence types) and entities: its own contacts, phone
numbers and e-mail addresses, which almost nobody else mentions, and shared people, places, organisations and diagnoses
drawn by a power law, so that a few are held by many users and most by one or few. Verbs choose their objects, nouns their
adjectives, topics their places: there is something to learn beyond word counts. ``private`` and ``held_out`` follow one
distribution and share entities but no user; ``public`` has other topic shares, the reverse order of preference among each
topic's words, and its own names. So has ``proxy``, in yet another order: public text of another source, to train
trials on.

User ``i`` depends only on ``(seed, part, i)``: a longer corpus starts with the shorter one, and memory does not grow with
``num_users``. Everything is invented, so nothing here is private. Phone numbers use the unassigned country code 999,
addresses the reserved ``.example`` domain.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Literal, get_args

from uedp_ray.corpus import _lexicon as lexicon
from uedp_ray.corpus._grammar import BE_PAST, Writer
from uedp_ray.corpus.records import Mention, Sentence
from uedp_ray.errors import InputError

Part = Literal["private", "held_out", "public", "proxy"]

MIN_TOKENS, MAX_TOKENS = 5, 25


# How often a sentence form is found among users' habits. The names are methods of _Author.
_PLAIN = {
    "simple": 4, "fronted": 3, "joined": 3, "simple_passive": 2, "conditional": 1, "hedged": 1, "request": 1,
    "question": 1, "relative": 1, "existential": 1, "counted": 1,
}  # fmt: skip
_WITH_ENTITY = {
    "person_acts": 3, "described_person_acts": 1, "company_acts": 2, "act_in_place": 2, "passive_by_person": 1,
    "passive_by_company": 1, "person_of_company": 1, "said": 1, "call": 1, "reach": 1,
}  # fmt: skip
_OF_TOPIC = {
    "medicine": {"diagnosed": 4, "treated_for": 3},
    "contracts": {"company_acts": 4, "person_of_company": 3, "write": 2},
    "support": {"call": 3, "write": 2, "reach": 3},
    "finance": {"company_acts": 4, "passive_by_company": 3, "said": 3},
    "travel": {"journey": 4, "act_in_place": 4},
    "weather": {"act_in_place": 5},
}


class _Author(Writer):
    """Sentence forms. Each returns its final mark, None for the habitual one."""

    def __init__(self, seed: int, part: str, index: int):
        super().__init__(seed, part, index)
        self.plain_forms = self.habits(_PLAIN, 10)
        self.entity_forms = {
            topic.name: self.habits(_WITH_ENTITY | _OF_TOPIC.get(topic.name, {}), 8) for topic in self.topics
        }

    def habits(self, weights: dict[str, int], count: int) -> list[Callable[[], str | None]]:
        return [getattr(self, name) for name in self.rng.choices(list(weights), list(weights.values()), k=count)]

    def simple(self) -> None:
        self.clause()

    def fronted(self) -> None:
        self.phrase(self.pick(self.openers))
        self.clause(short=True)
        self.tail(timed=False)

    def joined(self) -> None:
        self.clause(short=True)
        self.phrase(self.pick(self.connectives))
        self.clause()

    def conditional(self) -> None:
        self.put("if", "SCONJ")
        self.clause(tense="present", short=True)
        self.put(",", "PUNCT")
        self.clause(tense="future")

    def hedged(self) -> None:
        self.phrase(self.pick(self.hedges))
        self.clause()

    def simple_passive(self) -> None:
        self.passive(self.agent)
        self.tail()

    def request(self) -> None:
        self.put("please", "INTJ")
        verb, objects = self.pick(self.topic.frames)
        self.put(verb.base, "VERB")
        self.noun(self.pick(objects))
        self.phrase(self.pick(lexicon.TIMES))

    def question(self) -> str:
        self.put("did" if self.draw() < 0.6 else "will", "AUX")
        verb, objects = self.pick(self.topic.frames)
        self.subject()
        self.put(verb.base, "VERB")
        self.noun(self.pick(objects))
        self.tail()
        return "?"

    def relative(self) -> None:
        first, second = self.pick(self.topic.frames), self.pick(self.topic.frames)
        agreement = self.agent()
        self.put("who", "PRON")
        self.verb(first[0], agreement, "past")
        self.noun(self.pick(first[1]))
        self.verb(second[0], agreement)
        self.noun(self.pick(second[1]))

    def existential(self) -> None:
        noun = self.pick(self.pick(self.topic.frames)[1])
        self.put("there", "PRON")
        self.put("was", "AUX")
        self.put("no", "DET")
        self.put(self.pick(self.topic.adjectives[noun]), "ADJ")
        self.put(noun, "NOUN")
        self.phrase(self.pick(self.topic.places))

    def counted(self) -> None:
        noun = self.pick(self.pick(self.topic.frames)[1])
        self.phrase((("there", "were"), ("PRON", "AUX")))
        self.put(self.pick(lexicon.NUMBERS), "NUM")
        self.put(self.pick(self.topic.adjectives[noun]), "ADJ")
        self.put(lexicon.plural(noun), "NOUN")
        self.phrase(self.pick(self.topic.places))

    def person_acts(self) -> None:
        self.clause(self.person)

    def described_person_acts(self) -> None:
        self.person()
        self.put(",", "PUNCT")
        self.put("the", "DET")
        self.put(self.pick(self.topic.agents), "NOUN")
        self.put(",", "PUNCT")
        self.clause(lambda: "s")

    def company_acts(self) -> None:
        self.clause(self.company)

    def act_in_place(self) -> None:
        self.clause(short=True)
        self.put("in", "ADP")
        self.place()
        if self.draw() < 0.4:
            self.phrase(self.pick(lexicon.TIMES))

    def passive_by_person(self) -> None:
        self.passive(self.person)

    def passive_by_company(self) -> None:
        self.passive(self.company)
        if self.draw() < 0.3:
            self.put("in", "ADP")
            self.place()

    def person_of_company(self) -> None:
        self.person()
        self.put("from" if self.draw() < 0.5 else "of", "ADP")
        self.company()
        self.clause(lambda: "s", short=True)

    def said(self) -> None:
        self.person() if self.draw() < 0.6 else self.company()
        self.put("said", "VERB")
        self.put("that", "SCONJ")
        self.clause()

    def call(self) -> None:
        self.phrase((("please", "call"), ("INTJ", "VERB")))
        self.person() if self.draw() < 0.6 else self.agent()
        self.put("at", "ADP")
        self.phone()
        if self.draw() < 0.5:
            self.about()

    def write(self) -> None:
        self.phrase((("please", "write", "to"), ("INTJ", "VERB", "ADP")))
        self.email()
        self.about()

    def reach(self) -> None:
        self.phrase((("you", "can", "reach"), ("PRON", "AUX", "VERB")))
        self.person() if self.draw() < 0.5 else self.put("us", "PRON")
        self.put("at", "ADP")
        self.phone()
        if self.draw() < 0.35:
            self.put("or", "CCONJ")
            self.email()

    def journey(self) -> None:
        agreement = self.person() if self.draw() < 0.3 else self.subject()
        self.verb(_TRAVEL, agreement)
        origin = goal = self.town()
        while goal == origin:
            goal = self.town()
        self.put("from", "ADP")
        self.entity("gpe", origin)
        self.put("to", "ADP")
        self.entity("gpe", goal)
        self.phrase(self.pick(lexicon.TIMES))

    def diagnosed(self) -> None:
        agreement = self.person() if self.draw() < 0.6 else self.noun("patient", agent=True)
        self.put(BE_PAST[agreement], "AUX")
        self.phrase((("diagnosed", "with"), ("VERB", "ADP")))
        self.diagnosis()
        self.tail()

    def treated_for(self) -> None:
        agreement = self.agent()
        self.verb(_TREAT, agreement)
        self.person() if self.draw() < 0.4 else self.noun("patient")
        self.put("for", "ADP")
        self.diagnosis()

    def sentence(self) -> Sentence:
        """Writes until the length fits (about one in fifty attempts does not)."""
        topic = self.topic = self.pick(self.topics)
        forms = self.entity_forms[topic.name] if self.draw() < self.sensitive_share else self.plain_forms
        while True:
            self.words, self.tags, self.spans = [], [], []
            mark = self.pick(forms)()
            self.put(mark or ("!" if self.draw() < self.exclaims else "."), "PUNCT")
            if MIN_TOKENS <= len(self.words) <= MAX_TOKENS:
                break
        words, tags, spans = self.words, self.tags, self.spans
        if not (spans and spans[0][1] == 0):
            words[0] = words[0].capitalize()
        mentions = []
        for category, start, end in spans:
            at = sum(map(len, words[:start])) + start  # One space after every earlier token.
            mentions.append(Mention(category, at, at + sum(map(len, words[start:end])) + end - start - 1))
        return Sentence(self.user, " ".join(words), topic.name, tuple(tags), tuple(mentions))


_TRAVEL, _TREAT = lexicon.conjugate("travel"), lexicon.conjugate("treat")


def _sentences(num_users: int, seed: int, part: str) -> Iterator[Sentence]:
    for index in range(num_users):
        author = _Author(seed, part, index)
        for _ in range(5 + int(26 * author.draw() ** 1.5)):
            yield author.sentence()


def generate(num_users: int, *, seed: int, part: Part = "private") -> Iterator[Sentence]:
    """Sentences of ``num_users`` users, user after user, 5 to 30 each, of 5 to 25 space-separated tokens.

    Each has a label (topic), a universal part-of-speech tag for every token and the exact spans of its mentions
    (person, gpe, org, phone, email, diagnosis); about 45 % have no mention.
    Raises: InputError for an unknown part or no users.
    """
    if part not in get_args(Part):
        raise InputError("part", part, f"choose one of {', '.join(get_args(Part))}")
    if num_users < 1:
        raise InputError("num_users", num_users, "must be 1 or more")
    return _sentences(num_users, seed, part)

"""Words of the synthetic corpus and their inflection. Everything here was written for this project.

A topic lists who acts, what a verb takes as its object (selectional preference), which adjectives, places and
complements go with it, and how its organisations are called. Fragments carry tags: ``local/ADJ``, closed-class words
are looked up, the rest are nouns.
"""

# ruff: noqa: SIM905 - lists of words read best as text.

from __future__ import annotations

from dataclasses import dataclass

Fragment = tuple[tuple[str, ...], tuple[str, ...]]  # Tokens and their universal part-of-speech tags, aligned.

_CLOSED = {
    tag: words.split()
    for tag, words in {
        "DET": "the a an this that every each no our my your their its another some",
        "ADP": "in on at of for from to with without by about after before during under over near until since against "
        "through within despite between below beyond inside across",
        "PRON": "I we you they he she it there me us everyone nobody who",
        "CCONJ": "and but or so",
        "SCONJ": "because although while if when unless that once",
        "AUX": "is are am was were has have had will would should must can could may did do does be been",
        "PART": "not",
        "INTJ": "please",
        "PUNCT": ". , ? ! : ;",
        "ADV": "again soon usually often rarely quickly carefully finally already today yesterday recently early late "
        "once twice together",
        "NUM": "one two three four five six seven eight nine ten twelve twenty thirty",
    }.items()
}
_TAG_OF = {word: tag for tag, words in reversed(_CLOSED.items()) for word in words}


def fragment(text: str) -> Fragment:
    """Tokens and tags of a space-separated phrase; ``word/TAG`` overrides the closed-class table."""
    pairs = [word.split("/") if "/" in word else [word, _TAG_OF.get(word, "NOUN")] for word in text.split()]
    return tuple(pair[0] for pair in pairs), tuple(pair[1] for pair in pairs)


def fragments(text: str) -> tuple[Fragment, ...]:
    """One fragment for every ``;``-separated part."""
    return tuple(fragment(part) for part in text.split(";"))


_IRREGULAR = {
    "pay": ("paid", "paid"), "repay": ("repaid", "repaid"), "win": ("won", "won"), "lose": ("lost", "lost"),
    "sell": ("sold", "sold"), "buy": ("bought", "bought"), "break": ("broke", "broken"), "leave": ("left", "left"),
    "throw": ("threw", "thrown"), "catch": ("caught", "caught"), "see": ("saw", "seen"), "freeze": ("froze", "frozen"),
    "cut": ("cut", "cut"), "reset": ("reset", "reset"), "hit": ("hit", "hit"), "beat": ("beat", "beaten"),
    "lend": ("lent", "lent"), "lead": ("led", "led"), "show": ("showed", "shown"), "forecast": ("forecast", "forecast"),
}  # fmt: skip
_DOUBLING = frozenset("submit ship plan cancel transfer stir chop log win hit cut reset travel".split())
_PLURALS = {
    "loaf": "loaves", "potato": "potatoes", "tomato": "tomatoes", "fish": "fish", "appendix": "appendices",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Verb:
    """The five forms of a verb."""

    base: str
    third: str
    past: str
    participle: str
    gerund: str


def _ends_in_consonant_y(word: str) -> bool:
    return word.endswith("y") and word[-2] not in "aeiou"


def plural(noun: str) -> str:
    """Plural of a regular noun; the few irregular ones are listed."""
    if noun in _PLURALS:
        return _PLURALS[noun]
    if _ends_in_consonant_y(noun):
        return noun[:-1] + "ies"
    return noun + ("es" if noun.endswith(("s", "x", "ch", "sh")) else "s")


def conjugate(base: str) -> Verb:
    """All forms of a verb given its base form."""
    stem = base + base[-1] if base in _DOUBLING else base
    regular = base[:-1] + "ied" if _ends_in_consonant_y(base) else stem + ("d" if base.endswith("e") else "ed")
    past, participle = _IRREGULAR.get(base, (regular, regular))
    gerund = (base[:-1] if base.endswith("e") and not base.endswith("ee") else stem) + "ing"
    return Verb(base, plural(base), past, participle, gerund)


@dataclass(frozen=True, slots=True)
class Topic:
    """One topic's words, in order of use by private users (other parts have other orders)."""

    name: str
    agents: tuple[str, ...]
    frames: tuple[tuple[Verb, tuple[str, ...]], ...]
    adjectives: tuple[str, ...]
    places: tuple[Fragment, ...]
    complements: tuple[Fragment, ...]
    companies: tuple[str, ...]


def _topic(
    name: str, agents: str, frames: str, adjectives: str, places: str, complements: str, companies: str
) -> Topic:
    pairs = (frame.split(":") for frame in frames.split(";"))
    return Topic(
        name,
        tuple(agents.split()),
        tuple((conjugate(verb.strip()), tuple(nouns.split())) for verb, nouns in pairs),
        tuple(adjectives.split()),
        fragments(places),
        fragments(complements),
        tuple(companies.split()),
    )


TOPICS = (
    _topic(
        "medicine",
        "doctor nurse surgeon pharmacist therapist midwife specialist consultant radiologist caregiver receptionist",
        "examine: patient wound knee scan rash; treat: patient infection fracture burn ulcer; prescribe: tablet "
        "antibiotic dose ointment inhaler; review: chart scan referral dose result; schedule: operation appointment "
        "scan vaccination checkup; monitor: pulse patient fever wound recovery; order: scan biopsy test vaccine; "
        "discharge: patient newborn; sign: referral form prescription certificate; record: symptom allergy pulse dose; "
        "bandage: wound ankle burn wrist; repeat: test biopsy scan measurement; explain: result procedure risk symptom; "
        "postpone: operation checkup biopsy appointment; inject: vaccine painkiller; clean: wound burn instrument",
        "acute mild chronic swollen routine urgent painful sterile clinical stable severe minor",
        "in the clinic; on the ward; at the hospital; at the pharmacy; in the emergency room; in intensive/ADJ care",
        "after the operation; before breakfast; during the night shift; without complications; under local/ADJ "
        "anaesthesia; for a second/ADJ opinion; despite the fever; within an hour",
        "Clinic Hospital Pharmacy Laboratory",
    ),
    _topic(
        "contracts",
        "lawyer supplier tenant landlord licensor buyer seller notary contractor director trustee guarantor",
        "sign: agreement lease contract waiver amendment; terminate: agreement lease licence contract; review: clause "
        "draft contract schedule appendix; breach: contract clause covenant warranty; amend: clause agreement lease "
        "schedule; deliver: notice invoice parcel certificate; pay: deposit rent fee penalty royalty; waive: fee penalty "
        "right claim; file: claim complaint motion appeal; draft: clause agreement waiver amendment; negotiate: price "
        "term lease settlement; renew: lease licence guarantee; dispute: invoice claim penalty; transfer: title share "
        "right deposit; submit: bid claim certificate; indemnify: buyer licensee tenant",
        "binding written mutual exclusive confidential annual final partial legal governing prior void",
        "in the agreement; at the registry; before the court; in the appendix; at closing; under the lease",
        "without prior/ADJ notice; within thirty days; in good/ADJ faith; under protest; by registered/ADJ letter; for the "
        "whole/ADJ term; against payment; after the closing date",
        "Partners Holdings Legal Properties",
    ),
    _topic(
        "support",
        "customer agent engineer administrator user technician operator developer supervisor subscriber tester",
        "reset: password router account device; report: bug outage error fault; close: ticket account session request; "
        "install: update driver printer patch; restart: server router device session; escalate: ticket request outage "
        "complaint; cancel: subscription order account; reproduce: bug error crash; replace: battery cable screen "
        "printer; open: ticket account attachment; upgrade: server plan licence browser; refund: order subscription "
        "fee; test: patch cable update; lose: password connection attachment; log: error request call; ship: cable "
        "battery replacement",
        "broken urgent slow faulty recent wireless locked corrupt duplicate open expired remote",
        "on the portal; in the queue; at the help desk; in the settings menu; on the phone; in the office network",
        "after the update; without an error; for the third/ADJ time; within two hours; during the outage; before the "
        "deadline; with the old/ADJ password; since the upgrade",
        "Systems Networks Software Telecom",
    ),
    _topic(
        "finance",
        "banker analyst investor auditor broker accountant treasurer lender shareholder trader economist",
        "approve: loan budget mortgage transfer; audit: account ledger branch fund; transfer: amount balance pension "
        "payment; sell: share bond fund asset; buy: share bond stake asset; raise: rate dividend forecast target; "
        "report: loss profit margin deficit; cut: rate dividend cost forecast; lend: amount sum; repay: loan debt "
        "mortgage; reject: offer loan bid; value: asset portfolio stake; insure: portfolio deposit loan; publish: "
        "forecast report statement; close: account branch position; estimate: loss cost return",
        "quarterly annual net gross risky liquid fixed overdue modest sharp strong unsecured",
        "at the branch; in the ledger; on the market; at the exchange; in the annual/ADJ report; on the balance sheet",
        "before the close; in the third/ADJ quarter; above/ADP the forecast; below the target; for the pension fund; after "
        "the audit; at a fixed/ADJ rate; despite the loss",
        "Bank Capital Insurance Securities",
    ),
    _topic(
        "travel",
        "passenger guide pilot tourist driver traveller host porter conductor clerk steward",
        "book: flight room ferry tour seat; miss: train flight ferry connection; delay: flight departure train; visit: "
        "museum castle harbour market island; pack: suitcase tent bag; cancel: trip booking flight; recommend: hotel "
        "beach restaurant route; rent: car boat cottage bicycle; board: ferry train plane; lose: passport suitcase "
        "ticket; explore: island valley village; show: passport ticket map; change: route booking seat; leave: hotel "
        "harbour station; plan: trip tour route; cross: border bridge valley",
        "sunny crowded remote cheap early coastal quiet direct scenic ancient comfortable foreign",
        "at the airport; in the old/ADJ town; by the harbour; on the platform; at the border; on the island",
        "before sunrise; for the weekend; with a small/ADJ bag; through the mountains; during the holidays; without a "
        "map; along/ADP the coast; after the long/ADJ journey",
        "Airways Tours Hotels Railways",
    ),
    _topic(
        "sport",
        "coach striker goalkeeper captain referee runner champion defender swimmer rider rookie",
        "win: match final race medal title; lose: match final set title; score: goal point penalty; miss: penalty "
        "chance shot; train: squad team rookie; beat: champion rival team record; break: record rule; throw: ball "
        "javelin; catch: ball rival; join: team club squad; kick: ball penalty; warn: player captain fan; sign: striker "
        "defender contract; lead: race squad table; hit: post target ball; celebrate: victory goal title",
        "fast tired national young unbeaten injured narrow decisive talented brilliant defensive local",
        "in the stadium; on the pitch; at the finish line; in the locker room; on home ground; on the track",
        "in extra/ADJ time; before the break; after the whistle; by two goals; during the second/ADJ half; in front of the "
        "crowd; against the odds; for the third/ADJ season",
        "United Rovers Athletic Wanderers",
    ),
    _topic(
        "cooking",
        "chef baker cook waiter host gardener butcher farmer apprentice neighbour",
        "bake: loaf cake pie potato; chop: onion carrot herb; stir: soup sauce batter; taste: soup sauce cheese wine; "
        "serve: soup salad pie dessert; freeze: berry loaf soup; peel: potato carrot apple; fry: onion egg fish; season: "
        "soup fish potato; pour: wine sauce batter; slice: loaf cheese tomato; boil: egg potato noodle; grate: cheese "
        "carrot; wash: herb apple tomato; grill: fish tomato; mix: batter salad sauce",
        "fresh sweet salty crisp ripe creamy spicy warm tender sour homemade golden",
        "in the kitchen; in the oven; on the stove; at the market; in a deep/ADJ pan; on the table",
        "until golden/ADJ; with a little/ADJ butter; for ten minutes; over low/ADJ heat; before dinner; with fresh/ADJ "
        "herbs; in cold/ADJ water; without salt",
        "Bakery Foods Bistro Farms",
    ),
    _topic(
        "weather",
        "forecaster farmer sailor observer pilot hiker fisherman ranger warden scientist",
        "expect: storm shower frost gale; measure: wind temperature tide rainfall; predict: storm drought flood "
        "heatwave; see: rainbow cloud flash; report: gale flood storm; watch: cloud tide sky; avoid: storm flood ridge; "
        "record: temperature gust rainfall; fear: drought frost flood; forecast: shower gale heatwave; follow: storm "
        "front cloud; survive: flood frost blizzard; issue: warning bulletin; photograph: rainbow cloud flash",
        "heavy cold humid windy dry foggy gentle sudden northern clear icy mild",
        "along/ADP the coast; in the valley; over the hills; on the ridge; in the northern/ADJ islands; near the lake",
        "before dawn; by the evening; during the afternoon; after a dry/ADJ week; until the weekend; with strong/ADJ winds; "
        "for several/ADJ days; below zero/NUM",
        "Observatory Meteo Marine Almanac",
    ),
)

SHARES = {  # How often a user of the part takes each topic as one of its own, in the order of TOPICS.
    "private": (24, 22, 20, 16, 8, 6, 2, 2),
    "held_out": (24, 22, 20, 16, 8, 6, 2, 2),
    "public": (5, 5, 5, 7, 22, 22, 16, 18),
    "proxy": (8, 20, 6, 22, 6, 8, 22, 8),
}

ADVERBS = "quickly carefully quietly rarely often finally promptly gladly clearly calmly".split()
CONNECTIVES = fragments(", and; , but; because; although; while; , so; when; unless; once/SCONJ; , or")
OPENERS = fragments(
    "this week ,; today ,; in fact ,; as/SCONJ usual/ADJ ,; on Monday/PROPN ,; on Friday/PROPN ,; at night ,; "
    "this morning ,; after all/PRON ,; in March/PROPN ,; in June/PROPN ,; in October/PROPN ,; for now/ADV ,; "
    "on Tuesday/PROPN ,; at noon ,; in winter ,"
)
TIMES = fragments(  # Times that go with any tense.
    "on Monday/PROPN; on Tuesday/PROPN; on Friday/PROPN; in January/PROPN; in March/PROPN; in October/PROPN; today; "
    "this week; before noon; this month; at noon; again; twice; this morning; in the evening; after lunch"
)
HEDGES = fragments(
    "I think/VERB that/SCONJ; we hope/VERB that/SCONJ; please note/VERB that/SCONJ; everyone knows/VERB that/SCONJ; it is "
    "clear/ADJ that/SCONJ; they believe/VERB that/SCONJ; I am afraid/ADJ that/SCONJ; nobody said/VERB that/SCONJ"
)
MODALS = ("should", "must", "can", "may", "would", "could")
NUMBERS = "two three four five six seven eight nine ten twelve twenty thirty 15 40 75 120 300 1,500".split()

FIRST_STARTS = "Ar Bel Cor Da El Fen Han Jo Ka Lu Mi Nor Os Ro Ta Wil".split()
FIRST_ENDS = "na lin ric sa ton vi mar den".split()
STARTS = (
    "Al Bar Bren Cal Car Dal Dor Eld Fal Far Gar Gal Hal Har Hol Jar Kel Kor Lan Lor Mal Mar Mor Nel Nor Ol Par Pel "
    "Quin Ral Ren Ros Sal Sel Sor Stan Tal Tor Tul Ul Val Vel Ver Vor Wal Wes Yar Zan"
).split()
MIDDLES = (
    "a e i o u an en in on un ar er ir or ur al el il ol ul ba be bi bo da de di do fa fe ga ge la le li lo ma me mi mo "
    "na ne ni no pa pe ra re ri ro sa se si so ta te ti to va ve vi vo"
).split()
SURNAME_ENDS = (
    "ster man ford well son dale worth ley vik sen bury court tin ick das gart holm land mond ney rat shaw".split()
)
PLACE_ENDS = "ville ton burg mouth stead port field bridge haven grad mere wick ham gate cliff moor".split()
PLACE_PREFIXES = ["", "Port", "Upper"]
ILLNESS_ENDS = "itis osis emia algia oma plegia".split()
ILLNESS_KINDS = "syndrome fever disease deficiency disorder".split()
ILLNESS_ADJECTIVES = ["", "acute", "chronic", "juvenile"]
MAIL_HOSTS = "inbox postbox quickmail homenet webletter".split()

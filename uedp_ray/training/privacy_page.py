"""``privacy.md``: what a run guarantees, in prose that a reader can check against the ledger.

Everything in it is public: settings, what was charged, what is not covered. Nothing is computed from the private corpus. In
a run's own folder it is about that run. In an export (``training.export``) its first row is the total: the price of the
model together with how it was chosen.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from uedp_ray.calibration import extended_sampling_prob
from uedp_ray.config import RunConfig
from uedp_ray.corpus.overlap import MOST_SHARED
from uedp_ray.plan import Plan, cautions_of
from uedp_ray.privacy.events import charges, to_planned_end
from uedp_ray.privacy.guarantee import Guarantee
from uedp_ray.privacy.mechanisms import ROUNDS
from uedp_ray.privacy.statement import CHECKED, OF_ONE_RUN, OF_RECORDS, covers, part_of, show_delta, show_epsilon
from uedp_ray.redact import named_detector
from uedp_ray.storage.files import write_atomically
from uedp_ray.tasks.metric import Metric
from uedp_ray.tasks.metrics import metric_of
from uedp_ray.training.guarantees import assumed, guarantees, of_texts
from uedp_ray.units import RECORD, UNITS

_UNITS = {
    "user-entity": "one user (all of its sentences) together with one entity (every sentence of any user that holds it)",
    "user": "one user: all of its sentences",
    "entity": "one entity: every sentence, of any user, that holds it",
    RECORD: "one record: one sentence, whoever wrote it",
}

_BASES = {
    "public": "text that its owner declares public",
    "held_out_users": "text of users whom its owner declares to be outside the protected set",
}
_USERS = {True: "no user in common", False: "not compared: users, since one of the two does not name them"}
_RUNNING_TEXT = f"less than {MOST_SHARED:.0%} of the running text in common, where there is enough of it to tell"

_NOT_COVERED = """\
- An entity that the detector missed in several sentences is protected sentence by sentence, not as a whole: each such
  sentence is an entity of its own. The detector's recall is part of this statement; measure it on your text.
- What is said about an entity without naming it, and facts that many users or many entities share.
- Who holds which entity is treated as fixed where bounds are enforced (fixed graph): the guarantee compares a corpus
  with the same corpus in which the protected sentences say nothing.
- The driver of a round sees its sum un-noised, and workers see parts of it, and their users' text: all of
  them are trusted.
- Timing, memory and file sizes.
- Floating point: sums are exact, bounds hold for what was summed, and what a round released lies on a grid that the data do
  not change (of a noisy vocabulary only words and their order are released); the noise itself is taken as exactly Gaussian
  (it is a generator's, in double precision, with a fresh key of the operating system).
- The folder `private/`: anyone who has its keys knows who was sampled, and amplification by sampling is void.
"""


_NARROWED = """\
- Entities that only some of the trials protect, and sentences that hold no other: the total has no bound for them, nor has
  the choice of this run. The sentences that it protects one by one are those without an entity of any trial.
"""
_NOT_CHOSEN = {
    False: """\
- Choosing this run by its results among others, tried by hand or otherwise: that is a release of its own, and no figure
  above charges it.
""",
    True: """\
- Other runs and sweeps on the same text, and a space that was narrowed after a look at their results: they add to the
  total.
""",
}


@dataclass(frozen=True)
class Total:
    """The price of a model together with how it was chosen: at least the price of its own run."""

    epsilon: float
    """The total epsilon, at the run's delta."""
    unit: str
    """The unit that it protects: the run's. If trials protect different categories, its entities are only those that all
    of them protect."""
    rule: str
    """The rule that pays for the choice (``privacy.selection``); ``none`` if nothing was chosen by a sweep."""
    text: str
    """What the figure covers, and how to recompute it; full sentences."""
    settled_by_results: bool = False
    """Whether it is an odometer's total (``privacy.odometer.SETTLED_BY_RESULTS``); ``text`` says what that means."""

    @property
    def row(self) -> str:
        return "**TOTAL**, training" + ("" if self.rule == "none" else f" and choosing (rule {self.rule})")


def _row(what: str, unit: str, epsilon: float, delta: float, claim: str = "yes") -> str:
    guarantee = claim if math.isfinite(epsilon) else "none"
    name, separator, narrowed = unit.partition("; ")
    return f"| {what} | {_UNITS[name]}{separator}{narrowed} | {show_epsilon(epsilon)} | {show_delta(delta)} | {guarantee} |"


def _claim(total: Total, yes: str) -> str:
    return "as explained below" if total.settled_by_results else yes


def _course(rounds: int, planned: int) -> str:
    """The line that says whether the run ended as planned."""
    lost = ": what was charged twice, or charged and then lost, took the budget of the rest"
    return f"Rounds: {rounds} of {planned} planned" + (
        f". **It ended before its plan**{lost}." if rounds < planned else "."
    )


_REGROUPED = {
    "records": "Every sentence is a user of its own (`corpus.regroup: records`), also where this page speaks of users.",
    "iid": "Sentences were shuffled over all users and dealt out (`corpus.regroup: iid`), also where this page speaks of "
    "users.",
}
_TRANSFORMED = (
    "- Each sentence was transformed before training (`{}`). What is stated here is about the text before, and holds "
    "without it."
)
_NUMBERED = (
    "- The format of the text names no users: one user is {}. A person behind several such users has a larger ε than is "
    "stated here for one."
)


_ANEW = " It is of this run alone: each run makes its own draws, which cost it again, and nothing here adds that up."

_ASSUMED = {
    False: "that it keeps nothing of one user that reaches another's update; and that a sentence's loss, and its "
    "gradient, are its own, whatever the same user says in others, on which m, K and the clipping of a sentence rest; "
    "and, where words are replaced, that nothing but a label is taken from a sentence as it was.** "
    "What it leaves in the network and in other objects that it is given is put back after each user, and two made-up "
    "users were tried in turn: a guard against oversight, which does not see all.",
    True: "that what becomes of a sentence follows from that sentence, its place and the run's key alone.** It keeps "
    "nothing in its own object, and made-up text was tried in two orders: a guard against oversight, which does not see "
    "all. What it claims by itself is no guarantee.",
}


def write_statement(
    path: Path,
    plan: Plan,
    events: Sequence[Mapping[str, Any]],
    spent: Mapping[str, float],
    *,
    rounds: int | None = None,
    numbered: str | None = None,
    detectors: Sequence[str] = (),
    categories: Sequence[str] | None = None,
    compared: Mapping[str, bool] | None = None,
    total: Total | None = None,
    promised: Sequence[Guarantee] | None = None,
) -> None:
    """Writes the privacy statement of a run; see ``statement``."""
    text = statement(
        plan,
        events,
        spent,
        rounds=rounds,
        numbered=numbered,
        detectors=detectors,
        categories=categories,
        compared=compared,
        total=total,
        promised=promised,
    )
    write_atomically(path, text.encode())


def statement(
    plan: Plan,
    events: Sequence[Mapping[str, Any]],
    spent: Mapping[str, float],
    *,
    rounds: int | None = None,
    numbered: str | None = None,
    detectors: Sequence[str] = (),
    categories: Sequence[str] | None = None,
    compared: Mapping[str, bool] | None = None,
    total: Total | None = None,
    promised: Sequence[Guarantee] | None = None,
) -> str:
    """The statement as Markdown.

    Args:
      events: the whole ledger. ``spent``: its epsilon by unit.
      rounds: the number that the model was trained for (None: all planned).
      numbered: what a user is, if the format of the text numbered them.
      detectors, categories (None: all found): as the corpus was prepared.
      compared: which parts of the private and evaluation text could be compared (``guard.Compared``); None: no scoring.
      total: an export's total, for the first row.
      promised: what the run guarantees, where its files, such as the vectors of words, are no longer named; None: by them.
    """
    config, privacy, bounds = plan.config, plan.config.privacy, plan.config.bounds
    found = guarantees(plan, {}, charges(events)) if promised is None else promised
    others = [each for each in found if each.unit not in (*UNITS, "none")]
    lines = ["# Privacy statement", ""]
    if privacy.test_noise_seed is not None:
        lines += ["**NOT PRIVATE: sampling and noise come from a fixed test seed. Nothing below holds.**", ""]
    elif plan.mechanism is None and others:
        lines += [
            "**NOT PRIVATE for users and entities: no noise is added to their sum, and the table says that nothing bounds "
            "what of them is shown.**",
            "",
        ]
    elif plan.mechanism is None:
        lines += ["**NOT PRIVATE: no noise was added. No epsilon can be stated.**", ""]
    elif not plan.private:
        lines += [
            "**As published, not a guarantee: the noise is the paper's, set by a count of the private data.**",
            "",
        ]
    elif total is None and part_of(events):
        lines += [f"**Not the price of a chosen model: {covers(events[0]['header'])}.**", ""]
    if config.unit == RECORD:
        lines += [f"**Of one record. {OF_RECORDS}** {_REGROUPED[config.corpus.regroup]}", ""]
    for own in others:
        of = f"{own.told}, at δ = {show_delta(own.delta)}; relation: {own.relation}; trust: {own.trust}"
        lines += [f"{of}. {own.note}{_ANEW * bool(part_of(events))}", ""]
    stated = max(filter(math.isfinite, [total.epsilon if total else 0.0, *spent.values()]), default=0.0)
    lines += [line for caution in cautions_of(config, stated) for line in (f"**Caution: {caution}.**", "")]
    kinds = Counter(str(event["kind"]) for event in events if event["kind"] not in ("open", "plan"))
    charged = [event for event in events if event["kind"] in ROUNDS]
    alone = "this run alone: " if total or part_of(events) else ""
    yes = "if what is assumed below holds" if assumed(config) else "yes"
    claim = OF_ONE_RUN + (f", {yes}" if assumed(config) else "") if part_of(events) else yes
    replayed = len(charged) - len({event["round"] for event in charged})
    lines += [
        "| figure | unit | ε | δ | guarantee |",
        "|---|---|---|---|---|",
        *([_row(total.row, total.unit, total.epsilon, privacy.delta, _claim(total, yes))] if total else []),
        *(_row(f"{alone}{name}", name, value, privacy.delta, claim) for name, value in spent.items()),
    ]
    lines += [
        "",
        *([f"- {total.text}"] if total else []),
        *(["- What follows in this list is of this run alone."] if total and total.rule != "none" else []),
        *(_compared(config.unit, bounds.mode, numbered) if plan.mechanism is not None else []),
        *(_assumed(config) if plan.mechanism is not None or others else []),
        f"- Releases charged, by kind: {', '.join(f'{kind} {count}' for kind, count in kinds.items()) or 'none'}"
        + (f"; rounds that were repeated after a crash, and so charged again: {replayed}" if replayed else "")
        + ".",
        f"- {_course(config.training.num_rounds if rounds is None else rounds, config.training.num_rounds)}",
        *_planned(events),
        "- Sampling: none. All sentences in each epoch, which counts as a round."
        if config.training.loop == "epochs"
        else f"- Sampling: Poisson, independent in every round; users {privacy.user_sampling_prob:g}, entities "
        f"{privacy.entity_sampling_prob:g} ({privacy.entity_draw} draw), sentences without entities "
        f"{extended_sampling_prob(config):g}; sentence rule `{privacy.selection_rule}`; estimator {privacy.estimator}.",
    ]
    if plan.mechanism is not None:
        clip = "none" if privacy.sentence_clip_norm is None else f"{privacy.sentence_clip_norm:g}"
        entity = f"; so one entity moves one user's update by at most {config.entity_clip_norm:g}"
        lines += [
            f"- Noise: Gaussian, standard deviation {plan.noise_std:.6g} in the sum of user updates "
            f"(noise multiplier {plan.mechanism.noise_multiplier:.6g}), added once, before anything leaves whoever adds it.",
            f"- Clipping: a user's update {privacy.l2_clip_norm:g}; a sentence's gradient "
            f"{clip}{entity if bounds.mode != 'none' else ''}.",
        ]
    if bounds.mode != "none":
        beyond = {"m": f" ({bounds.entity_bound} beyond)", "K": f" ({bounds.holder_bound} beyond)"}
        if bounds.mode == "declared":
            beyond = dict.fromkeys(beyond, "")
        lines.append(
            f"- Contribution bounds, {bounds.mode}: sentences of one user that hold one entity: at most "
            f"{bounds.max_sentences_per_entity}{beyond['m']}; users that hold one entity: at most "
            f"{bounds.max_holders}{beyond['K']}."
        )
    delta = show_delta(privacy.delta)
    command = f"uedp-ray epsilon --ledger ledger.jsonl --delta {delta} --unit {config.unit}"
    shown = "all found" if categories is None else ", ".join(categories) or "none"
    if total and total.unit != config.unit:
        shown += " (this run alone; the total covers those of its unit)"
    lines += [
        f"- Entities found by: {', '.join(map(named_detector, detectors)) or 'not recorded'}; categories: {shown}.",
        *([_TRANSFORMED.format(kind)] if (kind := config.corpus.transform.kind) != "none" else []),
        _evaluated(metric_of(config), config.corpus.evaluation_basis, compared),
        "",
        *(_not_covered(total, config.unit) if plan.mechanism is not None else []),
        f"Recompute{' (this run alone)' if alone else ''}: `{command}`.",
        "",
    ]
    return "\n".join(lines)


def _compared(unit: str, mode: str, numbered: str | None) -> list[str]:
    """Which corpora the guarantee is about."""
    relation = "bounds declared" if mode == "declared" else "fixed graph"
    return [
        f"- Protected unit asked for: {unit}. Neighbouring relation: zero-out ({relation}); both directions.",
        *([_NUMBERED.format(numbered)] if numbered and unit != RECORD else []),
        f"- {CHECKED} They ask whether the text can be read, keeps what is declared of it, and differs from evaluation and "
        "public text.",
    ]


def _assumed(config: RunConfig) -> list[str]:
    """The lines that name code of which the proofs say nothing."""
    kinds: dict[bool, list[str]] = {False: [], True: []}
    for named in assumed(config):
        kinds[of_texts(named)].append(f"`{named}`")
    return [
        f"- **Assumed, not proved, of {' and '.join(others)}: {_ASSUMED[of]}" for of, others in kinds.items() if others
    ]


def _not_covered(total: Total | None, unit: str) -> list[str]:
    narrowed = _NARROWED if total and total.unit != unit else ""
    return ["## Not covered", "", narrowed + _NOT_COVERED + _NOT_CHOSEN[total is not None and total.rule != "none"]]


def _evaluated(metric: Metric, basis: str, compared: Mapping[str, bool] | None) -> str:
    """The line that says what the metric is computed on, and how far that was checked against the private text."""
    if compared is None:
        return f"- No {metric.title} is computed."
    return (
        f"- {metric.heading} is computed on {_BASES[basis]}. "
        "That text is not protected, nor are entities where they occur in it. "
        f"Compared with the private text before training: {_RUNNING_TEXT}; {_USERS[compared['users']]}."
    )


def _planned(events: Sequence[Mapping[str, Any]]) -> list[str]:
    charged = charges(events)
    if charged.plan is None:
        return []
    planned, whole = charged.plan.rounds, to_planned_end(charged).num_rounds
    more = f", and of {whole - planned} that were charged beyond them: {whole} in all" if whole > planned else ""
    return [f"- ε is that of the {planned} rounds planned before the first, however many of them were played{more}."]

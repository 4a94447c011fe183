"""``privacy.md``: what a run guarantees, in prose a reader can check against the ledger.

Everything in it is public: settings, what was charged, what is not covered. Nothing is read off the private corpus.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from uedp_ray.files import write_atomically
from uedp_ray.plan import Plan
from uedp_ray.privacy.published import published_epsilon
from uedp_ray.privacy.statement import show_epsilon

_UNITS = {
    "user-entity": "one user (all of its sentences) together with one entity (every sentence of any user that holds it)",
    "user": "one user: all of its sentences",
    "entity": "one entity: every sentence, of any user, that holds it",
}

_BASES = {"public": "public text", "held_out_users": "users declared to be outside the protected set"}

_NOT_COVERED = """\
- An entity that the detector missed in several sentences is protected sentence by sentence, not as a whole: each such
  sentence is an entity of its own. The detector's recall is part of this statement; measure it on your text.
- What is said about an entity without naming it, and facts that many users or many entities share.
- Who holds which entity is treated as fixed where bounds are enforced (fixed graph): the guarantee compares a corpus
  with the same corpus in which the protected sentences say nothing.
- The driver of a round sees the un-noised sum of updates, and workers see their users' text: both are trusted.
- Timing, memory and file sizes.
- Floating point: sums are exact, bounds hold for what was summed, and what was released lies on a grid that the data do
  not change; the noise itself is taken as exactly Gaussian.
- Choosing this run among others by its results: that is a release of its own; no ledger here charges it.
- The folder `private/`: whoever has its keys knows who was sampled, and amplification by sampling is void.
"""


def write_statement(
    path: Path,
    plan: Plan,
    events: Sequence[Mapping[str, Any]],
    spent: Mapping[str, float],
    *,
    detectors: Sequence[str] = (),
    categories: Sequence[str] | None = None,
) -> None:
    """Writes the privacy statement of a run; see ``statement``."""
    text = statement(plan, events, spent, detectors=detectors, categories=categories)
    write_atomically(path, text.encode())


def statement(
    plan: Plan,
    events: Sequence[Mapping[str, Any]],
    spent: Mapping[str, float],
    *,
    detectors: Sequence[str] = (),
    categories: Sequence[str] | None = None,
) -> str:
    """The statement as Markdown. ``detectors``, ``categories`` (None: all found): as the corpus was prepared."""
    config, privacy, bounds = plan.config, plan.config.privacy, plan.config.bounds
    lines = ["# Privacy statement", ""]
    if privacy.test_noise_seed is not None:
        lines += ["**NOT PRIVATE: sampling and noise come from a fixed test seed. Nothing below holds.**", ""]
    elif plan.mechanism is None:
        lines += ["**NOT PRIVATE: no noise was added. No epsilon can be stated.**", ""]
    elif not plan.private:
        lines += [
            "**As published, not a guarantee: the noise is the paper's, set by a count of the private data.**",
            "",
        ]
    kinds = Counter(str(event["kind"]) for event in events if event["kind"] != "open")
    rounds = [event for event in events if event["kind"] == "round"]
    replayed = len(rounds) - len({event["round"] for event in rounds})
    lines += [
        "| accountant | unit | ε | δ | guarantee |",
        "|---|---|---|---|---|",
        *(
            f"| {name} | {_UNITS[name]} | {show_epsilon(value)} | {privacy.delta:g} | "
            f"{'yes' if math.isfinite(value) else 'none'} |"
            for name, value in spent.items()
        ),
    ]
    if plan.mechanism is not None:
        z = privacy.noise_multiplier if privacy.noise == "published" else plan.mechanism.noise_multiplier
        assert z is not None  # the config refuses published noise without it
        figure = published_epsilon(
            method="uedp_fe",
            noise_multiplier=z,
            user_sampling_prob=privacy.user_sampling_prob,
            entity_sampling_prob=privacy.entity_sampling_prob,
            sensitive_fraction=1.0,
            rounds=max(1, len(rounds)),
            delta=privacy.delta,
        )
        lines.append(
            f"| published (estimator f_E) | as in the paper | {show_epsilon(figure)} | {privacy.delta:g} | "
            "as published, not a guarantee |"
        )
    lines += [
        "",
        f"- Protected unit asked for: {privacy.protect}. Neighbouring relation: zero-out "
        f"({'bounds declared' if bounds.mode == 'declared' else 'fixed graph'}); both directions.",
        f"- Releases charged, by kind: {', '.join(f'{kind} {count}' for kind, count in kinds.items()) or 'none'}"
        + (f"; rounds that were repeated after a crash, and so charged again: {replayed}" if replayed else "")
        + ".",
        f"- Sampling: Poisson, independent in every round; users {privacy.user_sampling_prob:g}, entities "
        f"{privacy.entity_sampling_prob:g} ({privacy.entity_draw} draw), sentences without entities "
        f"{privacy.extended_sampling_prob:g}; selection rule `{privacy.selection_rule}`; estimator {privacy.estimator}.",
    ]
    if plan.mechanism is not None:
        clip = "none" if privacy.sentence_clip_norm is None else f"{privacy.sentence_clip_norm:g}"
        lines += [
            f"- Noise: Gaussian, standard deviation {plan.noise_std:.6g} in the sum of user updates "
            f"(noise multiplier {plan.mechanism.noise_multiplier:.6g}), added once by the driver.",
            f"- Clipping: a user's update {privacy.l2_clip_norm:g}; a sentence's gradient "
            f"{clip}; so one entity moves one user's update by at most {config.entity_clip_norm:g}.",
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
    shown = "all found" if categories is None else ", ".join(categories) or "none"
    lines += [
        f"- Entities found by: {', '.join(detectors) or 'not recorded'}; categories: {shown}.",
        f"- Perplexity is computed on {_BASES[config.corpus.evaluation_basis]}.",
        "",
        "## Not covered",
        "",
        _NOT_COVERED,
        f"Recompute: `uedp-ray epsilon --ledger ledger.jsonl --delta {privacy.delta:g} --accountant {privacy.protect}`.",
        "",
    ]
    return "\n".join(lines)

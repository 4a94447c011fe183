"""Privacy profiles of one round: hockey-stick curves of labelled Gaussian mixtures.

A round is dominated by the pair (N(0, z^2), sum_i p_i N(s_i, z^2)) with a visible label n: how many other holders of the
entity were drawn (docs/accounting.md has the proof). Its profile is delta(eps) = sum_n P(n) delta_n(eps).

    >>> import numpy as np
    >>> from uedp_ray.privacy.dominating import one_round
    >>> from uedp_ray.privacy.mechanisms.poisson import RoundMechanism
    >>> one = RoundMechanism(
    ...     noise_multiplier=2.0, user_sampling_prob=0.05, entity_sampling_prob=0.5, max_holders=1, entity_clip=0.2
    ... )
    >>> add, remove = one_round(one).curve(np.array([-0.1, 0.0, 0.1]))    # delta at each of these epsilons
    >>> [round(delta, 5) for delta in add.tolist()]
    [0.09525, 0.01086, 0.00042]

Everything that is cut or rounded is cut or rounded upwards. Inputs are public. Units: beta = 1.
References: Choquette-Choo, Ganesh, Steinke, Thakurta, arXiv 2310.15526, Cor. 4.7.
"""
# Shape legend: L = labels, J = mixture components, G = grid of epsilons.

from __future__ import annotations

import math
from typing import NamedTuple, assert_never

import numpy as np

from uedp_ray.errors import InputError
from uedp_ray.privacy.any_weights import AnyWeights, Counts, mixtures, with_user
from uedp_ray.privacy.mechanisms.poisson import RoundMechanism
from uedp_ray.privacy.profiles import Family, Profile
from uedp_ray.units import KINDS, UNITS

MIN_DELTA = 1e-12
UNBOUNDED = 1 << 62  # the number of holders where there is no bound
_MAX_LABELS = 256
_MAX_COMPONENTS = 256
_RARE = 1e-6  # of a tail: how rare labels are that moments look at


def kinds(kind: str) -> tuple[str, ...]:
    """The kinds that ``kind`` stands for."""
    return KINDS if kind == "both" else (kind,)


def check_arguments(unit: str, kind: str, delta: float) -> None:
    if unit not in UNITS:
        raise InputError("unit", unit, f"choose one of {', '.join(UNITS)}")
    if kind not in ("both", *KINDS):
        raise InputError("kind", kind, "choose one of both, entity, extended")
    if not MIN_DELTA <= delta < 1.0:
        raise InputError("delta", delta, f"must lie in [{MIN_DELTA:g}, 1)")


_LEAST_CLIP = 1e-300
"""What subnormal clips count as: one over them is no number, and the accountant searched for minutes."""


def entity_part(mechanism: RoundMechanism, unit: str, kind: str) -> tuple[int, float, float]:
    """(K, q, clip) of the protected entity; K = 0 where it cannot move anything."""
    if kind == "extended":  # a sentence has one holder; q_s = 0: no such sentence is ever used
        holders, prob, clip = 1, mechanism.extended_sampling_prob, mechanism.extended_clip
    else:
        holders = UNBOUNDED if mechanism.max_holders is None else mechanism.max_holders
        prob, clip = mechanism.entity_sampling_prob, mechanism.entity_clip
        if holders and _reweighting_is_void(mechanism):
            holders = mechanism.max_users or 0
    if unit == "user" or 0.0 in (prob, clip, mechanism.user_sampling_prob):
        holders = 0
    clip = max(float(clip), _LEAST_CLIP) if clip else 0.0  # upwards
    return holders, float(prob), clip  # floats: numpy cannot multiply by an int larger than its own


def _reweights(mechanism: RoundMechanism) -> bool:
    if mechanism.holder_bound == "reweight":
        return True
    if mechanism.holder_bound == "truncate":
        return False
    assert_never(mechanism.holder_bound)


def _reweighting_is_void(mechanism: RoundMechanism) -> bool:
    """Scaling a sentence by K/H scales what it moves only if its own clip norm, not the user's, sets the bound."""
    return _reweights(mechanism) and mechanism.entity_clip >= 2.0


def depends_on_weights(mechanism: RoundMechanism, unit: str, kind: str) -> bool:
    """Whether an entity may have more than K holders, whose weights sum to K, and matters."""
    holders, prob, _ = entity_part(mechanism, unit, kind)
    always = mechanism.user_sampling_prob == 1.0 and not _entity_draw(mechanism, prob).by_each  # then K moves
    free = kind == "entity" and _reweights(mechanism) and not _reweighting_is_void(mechanism)
    return free and holders not in (0, UNBOUNDED, mechanism.max_users) and not always


class _EntityDraw(NamedTuple):
    by_each: bool
    """Whether each drawn holder draws the entity for itself."""
    for_all: float
    """Otherwise: the probability that the drawn holders use it."""


def _entity_draw(mechanism: RoundMechanism, prob: float) -> _EntityDraw:
    """The rules of ``plan.Plan.select`` as the accountant sees them; both raise for an unknown rule."""
    if mechanism.entity_draw == "global":
        by_each = False
    elif mechanism.entity_draw == "per_user":
        by_each = prob < 1.0
    else:
        assert_never(mechanism.entity_draw)
    if mechanism.selection_rule == "all":
        return _EntityDraw(by_each, prob)
    if mechanism.selection_rule == "any":
        return _EntityDraw(False, 1.0)
    assert_never(mechanism.selection_rule)


@np.errstate(over="ignore")  # shifts that overflow count as lost
def one_round(
    mechanism: RoundMechanism, unit: str = "user-entity", kind: str = "entity", *, tail: float = 1e-15
) -> Profile:
    """The profile of one round, whatever weights an entity's holders have. ``tail`` bounds the label mass that is cut."""
    trials, prob, shift = entity_part(mechanism, unit, kind)
    if trials == UNBOUNDED:
        raise InputError("max_holders", None, "entities are protected only within bounds: declare or enforce them")
    draw, user_draw = _entity_draw(mechanism, prob), mechanism.user_sampling_prob
    weighed = depends_on_weights(mechanism, unit, kind)
    if (
        weighed and draw.by_each
    ):  # which of the drawn holders drew it too is made visible: that can only raise the profile
        draw, user_draw = _EntityDraw(False, 1.0), user_draw * prob
    counts = _counts(trials, user_draw, tail, _MAX_LABELS)
    count_L, weight_L, cut = counts
    user_prob = 0.0 if unit == "entity" else mechanism.user_sampling_prob
    if draw.by_each:
        # Components that are cut count as infinite loss, like labels.
        values, masses, cuts = zip(*(_counts(int(n), prob, tail, _MAX_COMPONENTS) for n in count_L), strict=True)
        width = max(map(len, values))
        drawn_LJ = np.stack([np.pad(row, (0, width - len(row))) for row in values])
        probs_LJ = np.stack([np.pad(row, (0, width - len(row))) for row in masses])
        cut += float(weight_L @ np.array(cuts))
        parts = with_user(drawn_LJ * shift, probs_LJ, user_prob)
    else:
        parts = mixtures(count_L * shift, draw.for_all, user_prob)
    family = Family(*parts, mechanism.noise_multiplier)
    if not weighed:
        return Profile(family, weight_L, cut)
    return AnyWeights(
        family,
        weight_L,
        cut,
        counts=counts,
        rare=_counts(trials, user_draw, _RARE * tail, _MAX_LABELS),
        tail=tail,
        holders=trials,
        draw_prob=user_draw,
        shift=shift,
        user_prob=user_prob,
        for_all=draw.for_all,
    )


def _counts(trials: int, prob: float, tail: float, limit: int) -> Counts:
    """Binomial(trials, prob) as at most ``limit`` (value, mass) pairs, values rounded up, and the mass cut at the top."""
    if trials == 0 or prob in (0.0, 1.0):
        return Counts(np.array([trials if prob else 0]), np.ones(1), 0.0)
    mean, log_tail = trials * prob, -math.log(tail)
    reach = log_tail / 3 + math.sqrt(log_tail**2 / 9 + 2 * mean * (1 - prob) * log_tail)  # by Bernstein at most tail
    low, high = max(0, math.floor(mean - reach)), min(trials, math.ceil(mean + reach))
    mode = min(max(int(mean), low), high)
    n = np.arange(low, high)
    ratio = (trials - n) / (n + 1) * (prob / (1 - prob))
    mass = np.ones(high - low + 1)
    mass[mode - low + 1 :] = np.cumprod(ratio[mode - low :])
    mass[: mode - low] = np.cumprod(1 / ratio[: mode - low][::-1])[::-1]
    mass *= 1.0 / mass.sum()
    above = np.cumsum(mass[::-1])[::-1]
    end = max(1, int(np.searchsorted(-above, -tail)))  # masses from here on sum to the tail or less
    cut = (float(above[end]) if end < len(mass) else 0.0) + (tail if high < trials else 0.0)
    begin = min(int(np.searchsorted(np.cumsum(mass), tail)), end - 1)
    mass[begin] += mass[:begin].sum()
    mass = mass[begin:end]
    step = -(-len(mass) // limit)
    ends = np.arange(len(mass) - 1, -1, -step)[::-1]  # a bucket takes its largest value
    return Counts(low + begin + ends, np.add.reduceat(mass, np.append(0, ends[:-1] + 1)), cut)

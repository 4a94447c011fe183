"""What one record is promised against a server that sees only noised vectors: DP-SGD by each user, GauDP, DPNR.

    >>> from uedp_ray.privacy.local import dpnr, dpnr_as_published, gaudp, gaudp_as_published
    >>> thesis = {"clip_norm": 1.0, "noise_std": 0.75, "sampling_prob": 32 / 67_349, "steps": 67_349, "delta": 1 / 67_349}
    >>> for found in (gaudp_as_published(**thesis), gaudp(**thesis, shuffled=True), gaudp(**thesis)):
    ...     print(found.told)
    ε = 0.996 of one record, not a guarantee
    ε = 23.483 of one record
    ε = 233.893 of one record
    >>> for found in (dpnr_as_published(coordinate_epsilon=0.05), *dpnr(dimension=768, coordinate_epsilon=0.05)):
    ...     print(found.told)
    ε = 0.050 of one record, not a guarantee
    ε = 38.401 of one record
    ε = 38.401 of one word

Every number that is marked sound is an upper bound, in both directions; ``*_as_published`` repeat what was printed, and
claim nothing. All inputs are public, sizes of users included. Proofs: docs/accounting.md, "Noise of each user" and "Noised
representations". Sources: Jana and Biemann 2021 (local DP-SGD); Mo 2022 (GauDP); Lyu et al. 2020 (DPNR).
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, Literal

from scipy import optimize
from scipy.special import log_ndtr, ndtr

from uedp_ray.errors import InputError
from uedp_ray.privacy import accounting, composition, profiles
from uedp_ray.privacy.dominating import check_arguments
from uedp_ray.privacy.guarantee import Guarantee
from uedp_ray.privacy.mechanisms.base import MAX_COUNT, is_finite
from uedp_ray.privacy.mechanisms.local_round import LocalRound
from uedp_ray.privacy.mechanisms.poisson import RoundMechanism

_OF_A_SENTENCE = (
    "Of one sentence of one user, against the server and everybody who sees what it gets, if each user runs its steps by "
    "itself. Users, and entities in several sentences, have no guarantee. Here one program plays all users: whoever has "
    "its private/ has their texts, their draws and the key of their noise"
)

_BESIDE = (
    "A label that is sent beside it has no guarantee. Here one program plays all users: whoever has its private/ has their "
    "texts."
)

_OF_A_WORD = "A word is one token, and another one comes in its place. Each is dropped once, with probability"


def local_dp_sgd(mechanism: LocalRound, *, rounds: int, delta: float) -> Guarantee:
    """What ``rounds`` noised differences of a user promise of each of its sentences, if it sends one in every round.

    The same for all users: rate and steps are public settings. Relation: ``zero_out`` of one sentence.

        >>> from uedp_ray.privacy.local import local_dp_sgd
        >>> from uedp_ray.privacy.mechanisms.local_round import LocalRound
        >>> one = LocalRound(noise_multiplier=1.0, sampling_prob=0.01, steps=100)
        >>> [local_dp_sgd(one, rounds=rounds, delta=1e-5).told for rounds in (0, 1, 10)]
        ['ε = 0.000 of one record', 'ε = 0.719 of one record', 'ε = 1.829 of one record']
    """
    _count("rounds", rounds)
    step = RoundMechanism(noise_multiplier=mechanism.noise_multiplier, user_sampling_prob=mechanism.sampling_prob)
    steps = rounds * mechanism.steps
    return Guarantee(
        unit="record",
        epsilon=_bounded(accounting.epsilon(step, rounds=steps, delta=delta, unit="user")),
        delta=delta,
        relation="zero_out (of one sentence)",
        trust="local",
        accountant="pld",
        sound=True,
        note=f"{_OF_A_SENTENCE}. Charged for {steps} steps.",
    )


def of_clients(
    num_records: Iterable[int], *, batch_size: int, epochs: int, noise_multiplier: float, delta: float
) -> Guarantee:
    """The worst promise among clients of these PUBLIC sizes n that each run ``epochs`` of n / b steps at rate b / n.

    Epochs of all rounds together: what is sent again of the same records composes.

        >>> from uedp_ray.privacy.local import of_clients
        >>> settings = {"batch_size": 32, "epochs": 10, "noise_multiplier": 1.0, "delta": 1e-5}
        >>> [round(of_clients([14_987 // n] * n, **settings).epsilon, 3) for n in (1, 2, 20)]
        [0.735, 1.103, 4.402]
    """
    found = []
    for size in set(num_records):
        if not 1 <= batch_size <= size:
            raise InputError("batch_size", batch_size, f"must be an integer, 1 to a client's {size} records")
        prob, steps = batch_size / size, math.ceil(size / batch_size)
        one = LocalRound(noise_multiplier=noise_multiplier, sampling_prob=prob, steps=steps)
        found.append(local_dp_sgd(one, rounds=epochs, delta=delta))
    if not found:
        raise InputError("num_records", [], "name the size of one client or more")
    return max(found, key=lambda each: math.inf if each.epsilon is None else each.epsilon)


def gaudp(
    *,
    clip_norm: float,
    noise_std: float,
    sampling_prob: float = 1.0,
    steps: int = 1,
    delta: float,
    shuffled: bool = False,
) -> Guarantee:
    """What GauDP promises of a record whose vector, clipped to C and noised, may be sent in each of ``steps``.

    Sensitivity 2C: the server counts vectors, so records are replaced and not removed.

    Args:
      clip_norm, noise_std: C and sigma, in the units of the vector.
      sampling_prob: p. By default of each step's draw of each record, which the server sees.
      shuffled: each step's vectors are those of a fresh, secret, uniform set of a fixed number of records, p of all, and
        come in random order from nobody in particular. Only then is a record amplified by p: to be declared, as no program
        can check it.
    """
    _gaussian_arguments(clip_norm, noise_std, sampling_prob, steps, delta)
    if shuffled and 0.0 < sampling_prob < 1.0 and steps:
        step = profiles.replaced(2.0 * clip_norm, noise_std, share=sampling_prob)
        value = composition.of_profiles([(step, steps)], delta)
        sent = f"{steps} secret subsets of fixed size, {sampling_prob:g} of all, shuffled, as declared"
    else:
        one = _seen(noise_std / clip_norm, sampling_prob)
        value = accounting.epsilon(one, rounds=steps, delta=delta, unit="entity", kind="entity")
        sent = f"{_times(steps)}, each with probability {sampling_prob:g}, for the server to see"
    return Guarantee(
        unit="record",
        epsilon=_bounded(value),
        delta=delta,
        relation="replacement",
        trust="local",
        accountant="pld",
        sound=True,
        note=f"Of one record, whose vector is sent in {sent}. {_BESIDE}",
    )


def gaudp_noise(*, clip_norm: float, target_epsilon: float, steps: int, delta: float) -> float:
    """The least sigma (within a thousandth) of ``gaudp`` for this epsilon, where each record is sent in each step."""
    _positive("clip_norm", clip_norm)
    settings: dict[str, Any] = {"rounds": steps, "delta": delta, "unit": "entity", "kind": "entity"}
    return clip_norm * accounting.calibrate(_seen(1.0, 1.0), target_epsilon=target_epsilon, **settings)


def _seen(noise_multiplier: float, sampling_prob: float) -> RoundMechanism:
    """A record that is drawn for the server to see, as the theorem's row of an entity of one holder."""
    return RoundMechanism(
        noise_multiplier=noise_multiplier, user_sampling_prob=sampling_prob, max_holders=1, entity_clip=2.0
    )


def gaudp_laplace(*, clip_norm: float, scale: float, steps: int = 1) -> Guarantee:
    """The same of vectors clipped to C in L1 norm, with Laplace noise of this scale on each coordinate: T 2C / scale."""
    _positive("clip_norm", clip_norm)
    _positive("scale", scale)
    _count("steps", steps)
    note = f"Of one record, whose vector is sent in {_times(steps)}. {_BESIDE}"
    return _pure("record", steps * 2.0 * clip_norm / scale, note)


def gaudp_as_published(
    *, clip_norm: float, noise_std: float, sampling_prob: float, steps: int, delta: float
) -> Guarantee:
    """The figure of the thesis: sensitivity C, and p sqrt(T (e^(mu^2) - 1)) as if it bounded what it is the limit of."""
    _gaussian_arguments(clip_norm, noise_std, sampling_prob, steps, delta)
    with_all = math.sqrt(steps * math.expm1(min((clip_norm / noise_std) ** 2, 700.0)))
    return Guarantee(
        unit="record",
        epsilon=_epsilon_of_mu(sampling_prob * with_all, delta),
        delta=delta,
        relation="replacement",
        trust="local",
        accountant="gdp-clt",
        note="As published: two vectors in a ball of radius C may be 2C apart, not C; and the central limit is no bound.",
    )


def gaudp_noise_as_published(*, target_epsilon: float, sampling_prob: float, steps: int, delta: float) -> float:
    """sigma / C that the thesis takes for this epsilon: 1 / sqrt(ln(1 + mu^2 / (p^2 T))), with mu solved from it.

    >>> from uedp_ray.privacy.local import gaudp_noise_as_published
    >>> round(gaudp_noise_as_published(target_epsilon=1.0, sampling_prob=32 / 67_349, steps=67_349, delta=1 / 67_349), 3)
    0.748
    """
    _positive("target_epsilon", target_epsilon)
    _positive("steps", steps)
    _positive("sampling_prob", sampling_prob)
    mu = mu_as_published(target_epsilon, delta)
    return 1.0 / math.sqrt(math.log1p(mu**2 / (sampling_prob**2 * steps)))


def mu_as_published(epsilon: float, delta: float) -> float:
    """The mu at which a Gaussian mechanism has exactly this (epsilon, delta)."""
    _positive("epsilon", epsilon)
    check_arguments("user", "both", delta)
    return float(optimize.brentq(lambda mu: hockey_stick(epsilon, mu) - delta, 1e-9, 1e3 + 2 * epsilon, xtol=1e-12))


def hockey_stick(epsilon: float, mu: float) -> float:
    """delta(epsilon) of N(mu, 1) against N(0, 1): Phi(mu/2 - epsilon/mu) - e^epsilon Phi(-mu/2 - epsilon/mu).

    >>> from uedp_ray.privacy.local import hockey_stick
    >>> hockey_stick(1.0, 0.0), round(hockey_stick(1.0, 1.0), 4)
    (0.0, 0.1269)
    """
    if mu <= 0.0:
        return 0.0
    less = math.exp(min(epsilon + float(log_ndtr(-mu / 2 - epsilon / mu)), 0.0))
    return max(float(ndtr(mu / 2 - epsilon / mu)) - less, 0.0)


def dpnr(
    *, dimension: int, coordinate_epsilon: float, word_dropout: float = 0.0, uses: int = 1
) -> tuple[Guarantee, Guarantee]:
    """What DPNR promises of a record, and of one word in it: r in [0, 1]^k, with Lap(1 / epsilon) on each coordinate.

    A record moves every coordinate by up to 1: k epsilon for each use. A word that is one token is dropped before anything
    is computed with probability ``word_dropout`` mu, once for all uses and in secret, and then moves nothing: after T uses
    ln((1 - mu) e^(T k epsilon) + mu). Each draw of noise is a use: one in all if the representation is drawn once and kept.

        >>> from uedp_ray.privacy.local import dpnr
        >>> [round(dpnr(dimension=768, coordinate_epsilon=0.05, word_dropout=mu)[1].epsilon, 3) for mu in (0.0, 0.5, 0.9)]
        [38.4, 37.707, 36.097]
    """
    _count("dimension", dimension)
    _count("uses", uses)
    _positive("coordinate_epsilon", coordinate_epsilon)
    _dropout(word_dropout)
    whole = dimension * coordinate_epsilon
    drawn = f"{uses} draw{'' if uses == 1 else 's'} of noise"
    note = f"Charged for {drawn}, each of {dimension} coordinates in [0, 1]. {_BESIDE}"
    return (
        _pure("record", uses * whole, note),
        _pure("word", _with_dropout(uses * whole, word_dropout), f"{note} {_OF_A_WORD} {word_dropout:g}, in secret."),
    )


def dpnr_as_published(*, coordinate_epsilon: float, word_dropout: float = 0.0) -> Guarantee:
    """The figure of the paper: ln((1 - mu) e^epsilon + mu), as if one coordinate moved, once."""
    _positive("coordinate_epsilon", coordinate_epsilon)
    _dropout(word_dropout)
    return Guarantee(
        unit="record",
        epsilon=_with_dropout(coordinate_epsilon, word_dropout),
        delta=0.0,
        relation="replacement",
        trust="local",
        accountant="pure",
        note="As published: each of k coordinates may move by 1, so that a use costs k times epsilon; and each use costs.",
    )


def _with_dropout(epsilon: float, dropout: float) -> float:
    """ln((1 - mu) e^epsilon + mu), of any size."""
    if dropout == 1.0:
        return 0.0
    return max(0.0, epsilon + math.log1p(-dropout) + math.log1p(dropout / (1.0 - dropout) * math.exp(-epsilon)))


def _epsilon_of_mu(mu: float, delta: float) -> float:
    """The least epsilon >= 0 of a mu-GDP mechanism at delta."""
    if hockey_stick(0.0, mu) <= delta:
        return 0.0
    most = mu * mu / 2 + mu * math.sqrt(2 * math.log(1 / delta)) + 1.0
    return float(optimize.brentq(lambda epsilon: hockey_stick(epsilon, mu) - delta, 0.0, most, xtol=1e-10))


def _times(steps: int) -> str:
    return f"{steps} step{'' if steps == 1 else 's'}"


def _pure(unit: Literal["record", "word"], epsilon: float, note: str) -> Guarantee:
    return Guarantee(
        unit=unit,
        epsilon=epsilon,
        delta=0.0,
        relation="replacement",
        trust="local",
        accountant="pure",
        sound=True,
        note=note,
    )


def _bounded(epsilon: float) -> float | None:
    return epsilon if math.isfinite(epsilon) else None


def _gaussian_arguments(clip_norm: float, noise_std: float, sampling_prob: float, steps: int, delta: float) -> None:
    check_arguments("user", "both", delta)
    _positive("clip_norm", clip_norm)
    _positive("noise_std", noise_std)
    _count("steps", steps)
    if not (is_finite(sampling_prob) and 0.0 <= sampling_prob <= 1.0):
        raise InputError("sampling_prob", sampling_prob, "a probability lies in [0, 1]")


def _positive(name: str, value: float) -> None:
    if not (is_finite(value) and 1e-100 <= value <= 1e100):
        raise InputError(name, value, "must lie in [1e-100, 1e100]")


def _count(name: str, value: int) -> None:
    if type(value) is not int or not 0 <= value <= MAX_COUNT:
        raise InputError(name, value, f"must be an integer, 0 to {MAX_COUNT:g}")


def _dropout(value: float) -> None:
    if not (is_finite(value) and 0.0 <= value <= 1.0):
        raise InputError("word_dropout", value, "a probability lies in [0, 1]")

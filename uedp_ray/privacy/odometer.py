"""The price of an adaptive search: epsilon of runs whose parameters and number depend on what earlier rounds released.

    >>> import dataclasses
    >>> from uedp_ray.privacy.events import Charges
    >>> from uedp_ray.privacy.mechanisms.poisson import RoundMechanism
    >>> from uedp_ray.privacy.odometer import Odometer, filter_of
    >>> one = RoundMechanism(
    ...     noise_multiplier=2.0, user_sampling_prob=0.05, max_holders=1, entity_clip=0.2, extended_clip=0.2
    ... )
    >>> odometer = Odometer(planned=((one, 50),), runs=4, delta=1e-5)    # before the first run
    >>> run = [{"kind": "round", "private": True, "mechanism": one.to_dict()}] * 50
    >>> round(odometer.epsilon([run, run[:20]]), 3)    # of all runs so far, finished or not
    1.808
    >>> def planned(z):    # what a typical run charges
    ...     return Charges(((dataclasses.replace(one, noise_multiplier=z), 50),))
    >>> filtering = filter_of(planned, runs=4, target=2.0, delta=1e-5, unit="entity")
    >>> round(filtering.least_noise(planned), 2)    # with which 4 runs cost at most 2
    1.58

Losses of rounds that were chosen beforehand may be composed at the end. Where results decide what runs next, or
when to stop, they may not: that sum understates what was lost. An odometer fixes beforehand how it will convert Renyi
divergences: one weight for each order. The plan only says where weights are large: a wrong one costs some epsilon, and the
figure still holds. A *filter* is an odometer with a budget: it converts by one order, and every run takes an equal share at
most, so that the budget bounds all that the search releases, whatever it finds. docs/accounting.md has theorem and proof.
Inputs are public.
References: Rogers, Roth, Ullman, Vadhan, arXiv 1605.08294 (odometers and filters); Feldman, Zrnic, arXiv 2008.11193 (Renyi
filters), and Lecuyer, arXiv 2103.01379; Canonne, Kamath, Steinke, arXiv 2004.00010, Prop. 12 (conversion).
"""
# Shape legend: A = orders.

from __future__ import annotations

import dataclasses
import functools
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import optimize, special

from uedp_ray.errors import InputError
from uedp_ray.privacy import dominating, renyi
from uedp_ray.privacy.accounting import safe_root
from uedp_ray.privacy.events import Charges, charges, cost_of, to_planned_end, together
from uedp_ray.privacy.mechanisms.base import check_counts, check_of_one_run
from uedp_ray.privacy.mechanisms.poisson import RoundMechanism

ORDERS = renyi.ORDERS[::3]
"""With a mixture of them, taking all orders was seen to gain less than 2 %."""
SETTLED_BY_RESULTS = (
    "Results decided what was trained and when it stopped, and so they settled this figure too. It is read so: for any x "
    "named beforehand, epsilon = x holds for all that the search releases at a figure of x or less, and not for what it "
    "releases at a larger one."
)
"""The note to every figure of an odometer without a target: it is not an epsilon of the search whatever its outcome."""
_MOST_RUNS = 10**9
_MOST_NOISE = 1e6
"""A noise multiplier beyond any that trains a model."""
_ROOM = 1e-6
"""The part of a filter's budget that no share uses: another machine may round differently."""


@dataclass(frozen=True, kw_only=True)
class Odometer:
    """The settings to fix before the first round of a search; after it, only ``epsilon`` may look at results.

    Raises: InputError for values out of range.
    """

    planned: tuple[tuple[RoundMechanism, int], ...]
    """(mechanism, rounds) of a typical run."""
    runs: int
    """How many runs are planned: trials times seeds."""
    delta: float
    unit: str = "user-entity"
    kind: str = "both"
    threshold_delta: float = 0.0
    """The part of delta set aside for noisy vocabularies: the sum of the threshold_delta of all that may be built."""
    target: float | None = None
    """Of a filter: the epsilon that ``runs`` runs may cost together."""
    order: float | None = None
    """Of a filter: the one order by which it converts."""

    def __post_init__(self) -> None:
        dominating.check_arguments(self.unit, self.kind, self.delta)
        check_counts(self.planned)
        check_of_one_run(self.planned, "planned")
        if self._rounds == 0:
            raise InputError("planned", [], "needs at least one round")
        if type(self.runs) is not int or not 1 <= self.runs <= _MOST_RUNS:
            raise InputError("runs", self.runs, f"must be an integer from 1 to {_MOST_RUNS}")
        if not self.threshold_delta >= 0.0 or self._loss_delta <= 0.0:
            raise InputError("threshold_delta", self.threshold_delta, "must be 0 or more, and leave a part of delta")
        if (self.target is None) != (self.order is None):
            raise InputError("target, order", (self.target, self.order), "give both, or neither")
        if self.target is not None and not 0.0 < self.target < math.inf:
            raise InputError("target", self.target, "must be a finite number above 0")
        if self.order is not None and not 1.0 < self.order <= ORDERS[-1]:
            raise InputError("order", self.order, f"must be above 1 and at most {ORDERS[-1]:g}")

    @property
    def orders(self) -> tuple[float, ...]:
        """Those by which it converts."""
        return ORDERS if self.order is None else (self.order,)

    @property
    def _rounds(self) -> int:
        return sum(count for _, count in self.planned)

    @property
    def _cut_delta(self) -> float:
        """The part of delta set aside for cut labels."""
        return renyi.SHARE * self.delta

    @property
    def _loss_delta(self) -> float:
        return self.delta - self._cut_delta - self._failure_delta

    @property
    def _failure_delta(self) -> float:
        """The part of delta set aside for other releases, with room for rounding in the sum of theirs."""
        return self.threshold_delta * (1 + 1e-9)

    def epsilon(self, ledgers: Sequence[Iterable[Mapping[str, Any]] | Charges]) -> float:
        """epsilon at ``delta`` of everything that the ``ledgers`` charge together; infinity if any of it was not private.

        Args:
          ledgers: events of each run, finished or not, at a position that was fixed before the run started, such as its
            number; no events for a run that never started.

        Guarantees: with this function of the releases called E, P(M(D) in A and E <= x) <= exp(x) P(M(D') in A) + delta
        for every x and A, and the same exchanged, however runs are chosen and whenever the search is stopped. Never falls
        as rounds are added. Infinity if vocabularies take more than ``threshold_delta``, or for a release without bound.
        That of a filter is its target, which holds whatever the results. Infinity if a run was not one that it ``admits``,
        to its planned end, or if there are more than ``runs`` of them.
        Raises: UnsupportedEvent, InputError for events that cannot be read.
        """
        found = [charges(events) for events in ledgers]
        if self.target is None:
            return self._spent(found)
        if not all(map(self.admits, {to_planned_end(run)._replace(plan=None) for run in found})):
            return math.inf
        return max(self._spent(found), self.target)

    def admits(self, run: Charges) -> bool:
        """Whether a run takes its share of a filter at most: as many like it as there may be meet the target."""
        return self.excess(run) <= 0.0

    def excess(self, run: Charges) -> float:
        """By how much as many runs like this one as there may be exceed a filter's target, less what no share uses."""
        assert self.target is not None
        return self._spent([run], copies=self.runs) - self.target * (1 - _ROOM)

    def settled_by_results(self, epsilon: float) -> bool:
        """Whether results settled a figure of ``epsilon()``: see ``SETTLED_BY_RESULTS``. A filter's target is fixed."""
        return self.target is None or epsilon > self.target

    def least_noise(self, planned: Callable[[float], Charges]) -> float:
        """The least noise multiplier z, to within 0.01 %, for which the filter admits ``planned(z)``.

        Raises: InputError if no noise is enough.
        """
        high = 1.0
        while not self.admits(planned(high)):
            high *= 4.0
            if high > _MOST_NOISE:
                raise InputError("target_epsilon", self.target, f"no noise lets {self.runs} such runs meet it together")
        low = high / 4.0
        while self.admits(planned(low)):
            if low <= 1e-3:
                return low
            low, high = low / 4.0, low

        def at(log_noise: float) -> float:
            return self._spent([planned(math.exp(log_noise))], copies=self.runs)

        assert self.target is not None  # as ``excess`` compares: admitted to the bit
        return math.exp(safe_root(at, self.target * (1 - _ROOM), math.log(low), math.log(high), within=2e-5))

    def _spent(self, found: Sequence[Charges], copies: int = 1) -> float:
        """epsilon of what runs charged, at their positions, or of a filter's so many times, at any."""
        begun = copies * sum(bool(run.rounds or run.releases) for run in found)
        if not all(run.private for run in found) or (self.target is not None and begun > self.runs):
            return math.inf
        releases = together(run._replace(rounds=()) for run in found)
        parts: Counter[tuple[RoundMechanism, float]] = Counter()
        for number, run in enumerate(found):
            index = 0
            for mechanism, count in run.rounds:
                for share, many in self._limits(number, index, count):
                    parts[mechanism, share] += copies * many
                index += count
        largest = 0.0
        for kind in dominating.kinds(self.kind):
            cost = cost_of(releases, self.unit, kind)
            if cost is None or cost.rounds or copies * cost.failure_prob > self._failure_delta:
                return math.inf
            rates_A = self._rates(parts, kind)
            for sensitivity, noise_std in cost.gaussians:
                rate = (sensitivity / noise_std) * (sensitivity / noise_std) / 2
                rates_A = rates_A + np.array(self.orders) * (copies * rate)
            largest = max(largest, to_epsilon(rates_A, _log_weights(self, kind), self._loss_delta, self.orders))
        return largest

    def _limits(self, number: int, index: int, count: int) -> Iterator[tuple[float, int]]:
        """Yields the label mass that a run's rounds may each cut, from ``index`` on, and how many of ``count`` may cut it.

        It depends on nothing but the positions of run and round, and all masses sum to _cut_delta: 2^a runs of 2^b rounds,
        in units of the plan, share 2^-(a+b+2) of it, for a, b = 0, 1, ...
        """
        a = 0 if self.target is not None else (number // self.runs + 1).bit_length() - 1  # a filter admits no more runs
        while count > 0:
            b = (index // self._rounds + 1).bit_length() - 1
            many = min(count, (2 ** (b + 1) - 1) * self._rounds - index)
            yield self._cut_delta / (self.runs * self._rounds) * 4.0 ** -(a + b + 1), many
            index, count = index + many, count - many

    def _rates(self, parts: Mapping[tuple[RoundMechanism, float], int], kind: str) -> np.ndarray:
        """Renyi divergences at ``orders``; infinity if more had to be cut than the limits say."""
        rates_A = np.zeros(len(self.orders))
        rdp = functools.partial(renyi.rdp, unit=self.unit, kind=kind, orders=self.orders)
        for (mechanism, limit), count in parts.items():
            asked = limit * count / 2  # as tails of labels and components may add up to twice what is asked for
            part_A, cut = rdp([(mechanism, count)], lost=asked)
            rates_A += part_A if cut <= limit * count else math.inf
        return rates_A

    def to_dict(self) -> dict[str, Any]:
        """Plain values, complete: what to store before the search."""
        planned = [{"mechanism": mechanism.to_dict(), "rounds": count} for mechanism, count in self.planned]
        fields = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return fields | {"planned": planned}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Odometer:
        """Reads what ``to_dict`` wrote, in older versions too. Raises: InputError, KeyError, TypeError for anything else."""
        if not isinstance(values, Mapping):
            raise TypeError("an odometer must be a mapping")
        values = {_RENAMED.get(name, name): value for name, value in values.items()}
        parts = tuple((RoundMechanism.from_dict(part["mechanism"]), part["rounds"]) for part in values["planned"])
        return cls(**{**values, "planned": parts})


_RENAMED = {"accountant": "unit"}


def filter_of(
    planned: Callable[[float], Charges],
    *,
    runs: int,
    target: float,
    delta: float,
    unit: str = "user-entity",
    threshold_delta: float = 0.0,
) -> Odometer:
    """Returns the filter that asks a typical run for the least noise; ``planned(z)``: what it charges with that noise.

    Raises: InputError for values out of range, and if no noise is enough.

    Edge cases:

        >>> import math
        >>> from uedp_ray.errors import InputError
        >>> from uedp_ray.privacy.events import Charges
        >>> from uedp_ray.privacy.mechanisms.poisson import RoundMechanism
        >>> from uedp_ray.privacy.odometer import filter_of
        >>> def refused(rounds=50, runs=4, target=2.0, threshold_delta=0.0, **changed):
        ...     settings = {"user_sampling_prob": 0.05, "max_holders": 1, "entity_clip": 0.2, **changed}
        ...     def planned(z):
        ...         return Charges(((RoundMechanism(noise_multiplier=z, **settings), rounds),))
        ...     try:
        ...         filter_of(planned, runs=runs, target=target, delta=1e-5, threshold_delta=threshold_delta)
        ...     except InputError as error:
        ...         print(error)
        >>> refused(max_holders=None)    # nothing bounds what an entity costs
        target_epsilon = 2.0: no noise lets 4 such runs meet it together
        >>> refused(target=1e-9)
        target_epsilon = 1e-09: no noise lets 4 such runs meet it together
        >>> refused(rounds=0)
        planned = []: needs at least one round
        >>> refused(runs=0)
        runs = 0: must be an integer from 1 to 1000000000
        >>> refused(target=math.inf)
        target = inf: must be a finite number above 0
        >>> refused(threshold_delta=1e-5)    # vocabularies would take all of delta
        threshold_delta = 1e-05: must be 0 or more, and leave a part of delta
    """
    dominating.check_arguments(unit, "both", delta)
    settings: dict[str, Any] = {"delta": delta, "unit": unit, "threshold_delta": threshold_delta}
    # any order at which nothing but the conversion takes less than the target
    order = next((each for each in ORDERS if -math.log(delta) / (each - 1.0) < target / 2), ORDERS[-1])
    found = Odometer(planned=planned(1.0).rounds, runs=runs, target=target, order=order, **settings)
    least = math.inf
    while (z := found.least_noise(planned)) < least:  # until no order asks for less
        least, typical = z, planned(z)
        chosen = found = dataclasses.replace(found, planned=typical.rounds)
        excess = {each: dataclasses.replace(chosen, order=each).excess(typical) for each in ORDERS}
        found = dataclasses.replace(chosen, order=min(excess, key=excess.__getitem__))
    return chosen


@functools.lru_cache(maxsize=16)
def _log_weights(odometer: Odometer, kind: str) -> np.ndarray:
    """log weights of the orders, largest where the plan converts best; weights sum to 1."""
    if odometer.order is not None:
        return np.zeros(1)
    parts = [(mechanism, odometer.runs * count) for mechanism, count in odometer.planned]
    rates_A, _ = renyi.rdp(parts, lost=odometer._cut_delta, unit=odometer.unit, kind=kind, orders=ORDERS)
    orders_A = np.array(ORDERS)
    slopes_A, log_room_A = orders_A - 1.0, math.log(odometer._loss_delta) + np.log(orders_A)
    best = np.argmin(rates_A - log_room_A / slopes_A + np.log(slopes_A / orders_A))
    weights_A = (1.0 + np.abs(np.arange(len(ORDERS)) - best)) ** -2
    return np.log(weights_A / weights_A.sum())


def to_epsilon(
    rates_A: np.ndarray, log_weights_A: np.ndarray, delta: float, orders: tuple[float, ...] = ORDERS
) -> float:
    """The smallest x with (1 - exp(x - l))+ <= delta sum_a w_a exp((a - 1)(l - rate_a)) at every loss l.

    ``rates_A`` may depend on releases, ``log_weights_A`` and ``delta`` not. With all weight on one order it is the usual
    conversion. x is the largest value of l + log(1 - exp(g(l))), with g the log of the right side: a concave function,
    whose slope is 0 where exp(g) (1 + g') = 1. An error in that point changes x by its square.
    """
    if not rates_A.any():
        return 0.0
    if not np.isfinite(rates_A).all():
        return math.inf
    slopes_A, offsets_A = np.array(orders) - 1.0, math.log(delta) + log_weights_A

    def excess(loss: float) -> float:  # increases: g is convex
        if len(orders) == 1:  # as below, to the bit, in a hundredth of the time: filters are asked at every proposal
            return float(offsets_A[0] + slopes_A[0] * (loss - rates_A[0])) + math.log1p(slopes_A[0])
        terms_A = offsets_A + slopes_A * (loss - rates_A)
        return float(special.logsumexp(terms_A) + math.log1p(special.softmax(terms_A) @ slopes_A))

    low = -2.0 * math.log(max(orders[-1], 2.0)) / slopes_A[0]  # g < -2 log(largest order) there
    high = float(np.min(rates_A - offsets_A / slopes_A))  # g >= 0 there
    if excess(high) <= 0.0:  # terms of 1e17, beyond what rounding resolves
        return math.inf
    loss = optimize.brentq(excess, low, high, xtol=1e-10)
    log_right = float(special.logsumexp(offsets_A + slopes_A * (loss - rates_A)))
    return max(0.0, loss + math.log(-math.expm1(log_right)))

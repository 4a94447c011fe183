"""The random number of runs of which the best is chosen: its laws, and how it is drawn.

    >>> from uedp_ray.privacy.laws import halting, none_above
    >>> round(halting(8.0, "geometric"), 3), round(halting(8.0, "logarithmic"), 3)
    (0.125, 0.036)
    >>> round(1.0 - float(none_above(0.1, mean=8.0, law="geometric")), 3)    # that some run is among the best tenth
    0.471

All are truncated negative binomial laws with a mean m >= 1 and a number gamma, or Poisson's. phi is the probability
generating function. Source: docs/accounting.md, "Repeat and select". Inputs are public; what is drawn is secret.
"""

from __future__ import annotations

import math
import secrets
from typing import Any, Literal, get_args

import numpy as np
from scipy import optimize

from uedp_ray.errors import InputError

Law = Literal["logarithmic", "geometric", "poisson"]
LAWS: tuple[str, ...] = get_args(Law)


def check_law(mean: float, law: str) -> None:
    """Raises: InputError for an unknown law, and for a mean outside [1, 1e6]."""
    if law not in LAWS:
        raise InputError("law", law, f"choose one of {', '.join(LAWS)}")
    if isinstance(mean, bool) or not isinstance(mean, int | float) or not 1.0 <= mean <= 1e6:
        raise InputError("mean", mean, "a mean number of trials lies in [1, 1000000]")


def halting(mean: float, law: str) -> float:
    """gamma of the law with this mean, for a geometric one the probability that it stops after each run; 0 for Poisson."""
    if law == "poisson":
        return 0.0
    if law == "geometric" or mean == 1.0:
        return 1.0 / mean

    def excess(log_gamma: float) -> float:
        return math.log(math.expm1(-log_gamma) / -log_gamma / mean)

    return math.exp(optimize.brentq(excess, -2.0 * math.log(mean) - 10.0, -1e-12, xtol=1e-14, rtol=1e-14))


def weight(share: Any, *, mean: float, law: str) -> Any:
    """phi'(1 - t): how much likelier the best run is to be one of which a share t of runs are better, than a run is;
    decreasing, ``mean`` at 0.
    """
    if law == "poisson":
        return mean * np.exp(-mean * share)
    gamma, power = halting(mean, law), {"logarithmic": 1.0, "geometric": 2.0}[law]
    return mean * (gamma / (gamma + (1.0 - gamma) * share)) ** power


def none_above(share: Any, *, mean: float, law: str) -> Any:
    """phi(1 - u): the probability that no run is among the best share u of runs."""
    if law == "poisson":
        return np.exp(-mean * share)
    gamma = halting(mean, law)
    reached = gamma + (1.0 - gamma) * share
    if law == "geometric" or mean == 1.0:
        return gamma * (1.0 - share) / reached
    return np.log(reached) / math.log(gamma)


def draw_trials(*, mean: float, law: str = "geometric") -> int:
    """The random number of trials, from 128 bits of operating-system entropy; to be kept secret, and run to the end.

    At least 1 for ``logarithmic`` and ``geometric``; ``poisson`` may give 0: then nothing is run or reported. Never
    truncated: the logarithmic law often gives 1, and sometimes many times the mean.

    Edge cases:

        >>> from uedp_ray.privacy.laws import draw_trials
        >>> draw_trials(mean=1), draw_trials(mean=1, law="geometric")    # always
        (1, 1)
        >>> min(draw_trials(mean=8) for _ in range(1000)), min(draw_trials(mean=1, law="poisson") for _ in range(1000))
        (1, 0)
        >>> draw_trials(mean=0.5)
        Traceback (most recent call last):
            ...
        uedp_ray.errors.InputError: mean = 0.5: a mean number of trials lies in [1, 1000000]
    """
    check_law(mean, law)
    generator = np.random.Generator(np.random.Philox(key=secrets.randbits(128)))
    if law == "poisson":
        return int(generator.poisson(mean))
    if law == "geometric":
        return int(generator.geometric(halting(mean, law)))
    return int(generator.logseries(1.0 - halting(mean, law)))

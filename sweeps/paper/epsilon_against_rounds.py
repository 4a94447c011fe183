"""Figs. 4 and 9 of the paper: what its arithmetic prints for ε against T, and what is proved for the same noise.

    python sweeps/paper/epsilon_against_rounds.py --out runs/epsilon

Writes fig4-CORPUS.svg and fig9-CORPUS.svg. Nothing is trained and no text is read: the counts are those of the paper's
Table II, the cohorts those that give its numbers (docs/fidelity.md). Circles: what the paper prints in its text.
"""

from __future__ import annotations

import argparse
import csv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from matplotlib.axes import Axes

from uedp_ray.analysis.style import BLACK, chart, legend, line, log_ticks, svg
from uedp_ray.privacy.accounting import epsilon
from uedp_ray.privacy.mechanisms.poisson import RoundMechanism
from uedp_ray.privacy.published import Method, noise_factor, published_epsilon
from uedp_ray.privacy.statement import NO_GUARANTEE

Z, Q_E, DELTA, ORDERS = 2.0, 0.5, 1e-5, 64
ROUNDS = (1, 25, 50, 100, 200, 300, 400, 500)
HOLDERS = (1, 10, 100)
POINTS = Path(__file__).with_name("published.csv")


@dataclass(frozen=True)
class Corpus:
    """A corpus in the paper's Table II, and the cohort of its Fig. 4."""

    name: str
    users: int
    cohort: int
    sentences: int
    sensitive: Mapping[str, int]
    """Sentences with an entity, by category."""

    @property
    def q_u(self) -> float:
        return self.cohort / self.users

    def printed(self, method: Method, rounds: int, category: str = "all") -> float:
        """ε by the paper's arithmetic: no guarantee."""
        return published_epsilon(
            method=method,
            noise_multiplier=Z,
            user_sampling_prob=self.q_u,
            entity_sampling_prob=Q_E,
            sensitive_fraction=self.sensitive[category] / self.sentences,
            rounds=rounds,
            delta=DELTA,
            max_order=ORDERS,
        )

    def proved(self, unit: str, rounds: int, holders: int) -> float:
        """ε of the noise of Eq. 6 if no entity has more holders. A user's update is clipped, no sentence is."""
        noise = Z * noise_factor(self.users, self.q_u)
        mechanism = RoundMechanism(
            noise_multiplier=noise, user_sampling_prob=self.q_u, entity_sampling_prob=Q_E, max_holders=holders
        )
        return epsilon(mechanism, rounds=rounds, delta=DELTA, unit=unit)


CORPORA = (
    Corpus(
        "CoNLL-2003", 946, 50, 14_040,
        {"all": 11_176, "organisation": 5_187, "location": 5_433, "person": 4_406, "miscellaneous": 3_438},
    ),
    Corpus(
        "AG", 7_536, 500, 112_000,
        {"all": 67_157, "organisation": 58_177, "location": 39_988, "GPE": 18_506, "PII": 42_683},
    ),
    Corpus("SEC", 1_592, 100, 5_188, {"all": 2_166, "organisation": 1_955, "location": 273, "GPE": 60, "PII": 357}),
)  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description="Draws Figs. 4 and 9 of the paper, as published and proved.")
    parser.add_argument("--out", type=Path, required=True, help="folder for the figures")
    out = parser.parse_args().out
    out.mkdir(parents=True, exist_ok=True)
    with POINTS.open(encoding="utf-8", newline="") as file:
        points = [row for row in csv.DictReader(file) if row["figure"] == "4"]
    for corpus in CORPORA:
        own = [row for row in points if row["corpus"] == corpus.name]
        by_category = {f"f_E+ ({name})": ("uedp", name) for name in corpus.sensitive}
        all_entities = {"f_E+ (all)": by_category["f_E+ (all)"], "f_E (all)": ("uedp_fe", "all")}
        users = {"user-level DP": ("user_dp", "all")}
        for figure, lines in (("fig4", all_entities | users), ("fig9", by_category | users)):
            path = out / f"{figure}-{corpus.name.lower()}.svg"
            path.write_text(_drawn(corpus, lines, own, path.stem), encoding="utf-8")
            print(path)


def _drawn(
    corpus: Corpus, lines: Mapping[str, tuple[Method, str]], points: Sequence[Mapping[str, str]], name: str
) -> str:
    figure, (printed, entities, users) = chart(11.0, 4.6, 3)
    printed.set_title(f"{corpus.name}, {NO_GUARANTEE}", fontsize=9.5)
    printed.set_ylabel(f"ε (δ = {DELTA:g})")
    for index, (label, (method, category)) in enumerate(lines.items()):
        values = [corpus.printed(method, rounds, category) for rounds in ROUNDS]
        printed.plot(ROUNDS, values, label=f"as published: {label}", **line(index) | {"marker": "none"})
        for point in points:
            if point["series"] == label:
                at = {"color": line(index)["color"], "markeredgecolor": BLACK, "markersize": 7, "linestyle": "none"}
                printed.plot(float(point["x"]), float(point["y"]), "o", label="printed in the paper's text", **at)
    entities.set_title("user-entity, proved for the same noise", fontsize=9.5)
    for index, holders in enumerate(HOLDERS):
        values = [corpus.proved("user-entity", rounds, holders) for rounds in ROUNDS]
        held = f"an entity has {holders} holder{'s' * (holders > 1)} at most"
        entities.plot(ROUNDS, values, label=f"proved: {held}", **line(len(lines) + index))
    users.set_title("user, proved for the same noise", fontsize=9.5)
    values = [corpus.proved("user", rounds, 1) for rounds in ROUNDS]
    users.plot(ROUNDS, values, label="proved: a user", **line(len(lines) + len(HOLDERS)))
    for axes in (printed, entities, users):
        _log(axes)
    legend(figure, (printed, entities, users))
    return svg(figure, name)


def _log(axes: Axes) -> None:
    axes.set_xlabel("rounds T")
    axes.set_yscale("log")
    shown = [y for each in axes.get_lines() for y in map(float, each.get_ydata())]
    log_ticks(axes, "y", min(shown), max(shown))


if __name__ == "__main__":
    main()

"""Under ``budget.covers: answer`` whatever is handed on costs the budget at most: for any sweep, point, kill and failure.

Terms are fixed as in a sweep; runs are played (``played``), each as far as chance takes it; the total is that of the sweep,
and again that of ``uedp-ray epsilon --export`` from the ledgers and ``selection.json`` alone. What is tested is what is
charged, and what each run is allowed; that the price of a choice is right, ``tests/privacy`` tests (``test_best_of``,
``test_odometer``, ``test_sequence``).
"""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest import mock

import pytest
import yaml
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from tests.search.played import play
from tests.training.runs import TREE
from uedp_ray.answers import export_epsilon, ledger_epsilon
from uedp_ray.config import RunConfig
from uedp_ray.errors import InputError
from uedp_ray.privacy.events import Charges, epsilon_of_charges
from uedp_ray.privacy.ledger import Ledger, read_ledger
from uedp_ray.privacy.mechanisms import release_of
from uedp_ray.privacy.mechanisms.poisson import RoundMechanism
from uedp_ray.privacy.selection import PILOTS, SECRET, TRAINS_ANEW
from uedp_ray.search.export import _terms
from uedp_ray.search.feasibility import alone, judge
from uedp_ray.search.layout import SweepDir
from uedp_ray.search.pilots import final_allowance
from uedp_ray.search.selection_cost import allowance_of, cost_of_selection, fix_terms, planned_points
from uedp_ray.search.space import Point
from uedp_ray.search.sweep_config import SweepConfig, load_sweep_config
from uedp_ray.storage.files import make_folder
from uedp_ray.training.export import write_price
from uedp_ray.training.privacy_page import Total

MOST = 1 + 1e-9
NEARLY = 1 + 5e-3
"""Of two bounds of one epsilon: accountants round upwards, each on a grid of its own."""
MORE = os.environ.get("UEDP_EXAMPLES")
"""How many sweeps of each rule to draw anew. Else few, and the same in every run: no change is blamed for a draw."""
UNSHRUNK = (Phase.explicit, Phase.reuse, Phase.generate)
"""Of a case that fails: to make it smaller takes minutes."""
RULES = ("grid", "random", "adaptive", "repeat_and_select", "pilots", "selected_pilots", "public")
SPACE = {
    "training.num_rounds": {"choice": [1, 3]},
    "privacy.user_sampling_prob": {"choice": [0.1, 0.6]},
    "privacy.sentence_clip_norm": {"choice": [0.05, 0.3]},
    "bounds.max_holders": {"choice": [1, 4]},
    "privacy.estimator": {"choice": ["f_e", "f_e_plus"]},
}
NOISE = {"privacy.noise_multiplier": {"choice": [4.0, 30.0]}}
TEXT = {"format": "synthetic", "num_users": 9}
CUT = st.sampled_from(["killed", "killed", "torn", "lost", "interrupted"])
CUTS = st.lists(st.tuples(st.integers(1, 3), CUT), max_size=4)
ENDS = st.sampled_from([*["done"] * 5, "failed", "cut", "never"])


@st.composite
def sweeps(draw: Any, rule: str) -> dict[str, Any]:
    """The tree of a sweep by this rule."""
    base = {name: dict(section) if isinstance(section, dict) else section for name, section in TREE.items()}
    base["corpus"] |= {"source": TEXT, "evaluation": TEXT | {"part": "held_out"}}
    base["training"] |= {"num_rounds": draw(st.integers(1, 3)), "checkpoint_every": draw(st.integers(1, 3))}
    base["privacy"] = {
        "user_sampling_prob": draw(st.sampled_from([0.05, 0.3, 1.0])),
        "entity_sampling_prob": draw(st.sampled_from([0.5, 1.0])),
        "selection_rule": draw(st.sampled_from(["all", "any"])),
        "entity_draw": draw(st.sampled_from(["global", "per_user"])),
    }
    space = {key: SPACE[key] for key in draw(st.lists(st.sampled_from(sorted(SPACE)), max_size=1, unique=True))}
    base["bounds"] = {
        "mode": "enforced" if "bounds.max_holders" in space else draw(st.sampled_from(["enforced", "declared"])),
        "max_holders": draw(st.integers(1, 3)),
        "max_sentences_per_entity": draw(st.integers(1, 2)),
        "holder_bound": draw(st.sampled_from(["truncate", "fill"])),
    }
    space["training.server_learning_rate"] = {"choice": [0.01, 0.02][: draw(st.integers(1, 2))]}
    search: dict[str, Any] = {"searcher": "random", "trials": draw(st.integers(1, 12))}
    search["seeds_per_trial"] = draw(st.sampled_from([1, 1, 2]))
    budget = {
        "target_epsilon": draw(st.floats(0.3, 12.0)),
        "delta": draw(st.sampled_from([1e-3, 1e-5])),
        "unit": draw(st.sampled_from(["user-entity", "user", "entity"])),
    }
    free = rule not in ("pilots", "selected_pilots") and draw(st.integers(0, 3)) == 0
    if rule == "adaptive":
        search["searcher"] = draw(st.sampled_from(["tpe", "nsga2", "gp", "random", "grid"]))
        if search["searcher"] in ("random", "grid") or (search["searcher"] == "tpe" and draw(st.booleans())):
            search |= {"early_stopping": draw(st.sampled_from(["asha", "median"])), "seeds_per_trial": 1}
        free = (free and search["searcher"] != "gp") or search["searcher"] == "nsga2"
    elif rule == "grid" or (rule == "pilots" and draw(st.booleans())):
        search["searcher"] = "grid"
    if rule in ("random", "grid"):
        search["selection"] = "composition"
    elif rule != "adaptive":
        search["selection"] = rule
    if rule in SECRET:
        search |= {"pool_size": draw(st.integers(1, 3))}
        search |= {"law": draw(st.sampled_from(["geometric", "logarithmic", "poisson"]))}
    if rule in PILOTS:
        search["pilot_epsilon"] = budget["target_epsilon"] * draw(st.sampled_from([0.02, 0.1, 0.3]))
    if rule == "public":
        search["public"] = {"corpus.source": TEXT | {"part": "public"}, "corpus.evaluation_basis": "public"}
    if search["searcher"] == "grid":
        search["trials"] = None
    if rule in ("random", "grid", "adaptive") and draw(st.integers(0, 4)) == 0:
        base["vocabulary"] = {"kind": "noisy-threshold", "noise_multiplier": 40.0, "public_text": []}
        base["vocabulary"]["threshold_delta"] = budget["delta"] / 100
    if free:
        budget["noise"] = "free"
        space |= NOISE if rule == "adaptive" else {}
        base["privacy"]["noise_multiplier"] = draw(st.sampled_from([2.0, 10.0, 50.0]))
    return {"base": base, "space": space, "budget": budget, "search": search}


class Played:
    """A sweep whose runs go as far as chance takes them."""

    def __init__(self, sweep: SweepConfig, folder: SweepDir, data: Any):
        self.sweep, self.folder, self.draw = sweep, folder, data.draw
        self.rule = sweep.search.rule
        self.rows: list[dict[str, Any]] = []
        self.fix()
        self.allowance = alone(sweep) if self.rule == "public" else allowance_of(sweep, folder)
        self.search()
        self.handed_on = self.train_anew() if self.rule in TRAINS_ANEW else self.one_of_the_trials()

    def fix(self) -> None:
        """Fixes the terms. A secret number of trials is drawn by the law that the price is of, and may be any."""

        def drawn(*, mean: float, law: str) -> int:
            assert (mean, law) == (self.sweep.num_trials, self.sweep.search.law)
            return self.draw(st.integers(int(law != "poisson"), 5))

        make_folder(self.folder.private, private=True)
        with mock.patch("uedp_ray.search.pool.draw_trials", drawn):
            fix_terms(self.sweep, self.folder)

    def search(self) -> None:
        """A point that results decide may be any."""
        points = planned_points(self.sweep, self.folder)
        for point in points or ():
            self.trial(point)
        trained, tried = 0, 0
        while points is None and trained < self.sweep.num_trials and tried < 2 * self.sweep.num_trials:
            trained, tried = trained + self.trial(self.any_point()), tried + 1
        self.full = points is not None or trained == self.sweep.num_trials

    def any_point(self) -> Point:
        space = self.sweep.parsed_space
        return space.at({key: self.draw(st.sampled_from(each.values)) for key, each in space.items()})

    def trial(self, point: Point, ends: st.SearchStrategy[str] = ENDS) -> bool:
        """Whether it was let in."""
        config, state = judge(self.sweep, point, self.allowance).config, "done"
        if config is None:
            state = "refused"
        elif self.rule != "public":  # its trials read no private text
            for out in self.folder.runs(len(self.rows), self.sweep.suffixes):
                if not self.run(config, out, self.draw(ends)):
                    stopped = self.sweep.search.stops_early and out.exists()
                    state = "stopped" if stopped else "failed"
                    break  # its other seeds never start
        number = len(self.rows)
        rounds = [count(read_ledger(path)) for path in self.ledgers(number)] if state != "refused" else []
        row = {"number": number, "state": state, "charged": sum(rounds), "point": point}
        self.rows.append(dict.fromkeys(self.sweep.parsed_space) | point | row)
        return state != "refused"

    def run(self, config: RunConfig, out: Path, end: str, part_of: str | None = "sweep") -> bool:
        if end == "never":
            return False
        ended = play(config, out, self.draw(CUTS), end, part_of=part_of)
        if out.exists():
            assert count(read_ledger(out / "ledger.jsonl")) <= config.training.num_rounds, "replayed beyond the plan"
        return ended

    def ledgers(self, *numbers: int) -> list[Path]:
        found = [run / "ledger.jsonl" for number in numbers for run in self.folder.runs(number, self.sweep.suffixes)]
        return [path for path in found if path.exists()]

    @property
    def done(self) -> list[dict[str, Any]]:
        return [row for row in self.rows if row["state"] == "done"]

    def one_of_the_trials(self) -> Path | None:
        runs = [run for row in self.done for run in self.folder.runs(row["number"], self.sweep.suffixes)]
        return self.draw(st.sampled_from(runs)) if runs else None

    def train_anew(self) -> Path | None:
        """By the settings of a trial that may be any."""
        if not self.done:
            return None
        allowance = self.allowance if self.rule == "public" else final_allowance(self.sweep, self.folder)
        config = judge(self.sweep, self.draw(st.sampled_from(self.done))["point"], allowance).config
        assert config is not None, "the best pilot may not be trained"
        part_of = None if self.rule == "public" else "sweep"
        return self.folder.winner if self.run(config, self.folder.winner, self.draw(ENDS), part_of) else None

    def priced(self) -> dict[str, Any]:
        return cost_of_selection(self.sweep, self.folder, self.rows)

    def epsilon_of(self, ledgers: Iterable[Path]) -> float:
        """Of what these runs released, in any order, by how often it is in their ledgers."""
        events = [event for path in ledgers for event in read_ledger(path)]
        rounds = Counter(RoundMechanism.from_dict(event["mechanism"]) for event in events if event["kind"] == "round")
        others = tuple(release_of(event) for event in events if event["kind"] == "vocabulary")
        budget = self.sweep.budget
        return epsilon_of_charges(Charges(tuple(rounds.items()), others), delta=budget.delta, unit=budget.unit)

    def released(self) -> list[Path]:
        """The ledgers of all that the rule lets one hand on."""
        if self.rule in SECRET | {"public"}:
            return [self.handed_on / "ledger.jsonl"] if self.handed_on else []
        winner = self.folder.winner / "ledger.jsonl"
        return self.ledgers(*range(len(self.rows))) + [winner] * winner.exists()

    def again(self, priced: Mapping[str, Any], total: float) -> dict[str, Any]:
        """What ``uedp-ray epsilon --export`` makes of the ledgers and ``selection.json``."""
        assert self.handed_on is not None
        terms, ledgers = _terms(self.sweep, self.folder, self.rows, priced["rule"])
        stated = Total(total, self.sweep.unit, priced["rule"], "", priced["settled_by_results"])
        out = self.folder.root / "handed-on"
        make_folder(out)
        write_price(out, stated, terms, self.handed_on / "ledger.jsonl", ledgers, self.sweep.base.privacy)
        return export_epsilon(out)


def count(events: Sequence[Mapping[str, Any]]) -> int:
    return sum(event["kind"] == "round" for event in events)


def check(played: Played) -> None:
    """The total is within the budget, at least what was released, and the same from what is handed on."""
    budget, priced = played.sweep.budget, played.priced()
    assert priced["rule"] == played.rule
    total = priced["epsilon"]
    if played.handed_on is not None:
        own = ledger_epsilon(played.handed_on / "ledger.jsonl", delta=budget.delta, unit=budget.unit)["epsilon"]
        total = max(own, total)
        again = played.again(priced, total)
        assert again["epsilon"] == pytest.approx(total, rel=1e-9)
        assert again["guarantee"]
        assert "was it changed?" not in again["text"]
    assert total <= budget.target_epsilon * MOST
    released = played.epsilon_of(played.released())
    assert released <= total * NEARLY, (released, total)


def check_more(played: Played) -> None:
    """A round or a trial beyond what was planned is charged, or leaves nothing to hand on."""
    rounds = [path for path in played.ledgers(*range(len(played.rows))) if is_whole(path)]
    if rounds:
        ledger = Ledger.open(played.draw(st.sampled_from(rounds)))
        last = next(event for event in reversed(ledger.events) if event["kind"] == "round")
        ledger.append(**{key: value for key, value in last.items() if key not in ("seq", "prev", "digest")})
        priced = played.priced()
        if (
            priced["rule"] == played.rule and played.rule in SECRET
        ):  # within its candidate still: another seed had fewer
            assert math.isinf(priced["epsilon"]) or priced["epsilon"] <= played.sweep.budget.target_epsilon * MOST
        else:
            every = played.ledgers(*range(len(played.rows)))
            assert played.epsilon_of(every) <= priced["epsilon"] * NEARLY
            assert math.isinf(priced["epsilon"]) or played.rule != "pilots"
    elif played.full and played.trial(played.any_point(), st.just("done")):
        with suppress(InputError):
            assert math.isinf(played.priced()["epsilon"])


def is_whole(ledger: Path) -> bool:
    events = read_ledger(ledger)
    return count(events) == events[0]["header"]["plan"]["rounds"]


@pytest.mark.slow
@pytest.mark.parametrize("rule", RULES)
def test_whatever_is_handed_on_costs_the_budget_at_most(rule):
    told: Counter[str] = Counter()

    @settings(
        max_examples=int(MORE or 6),
        derandomize=MORE is None,
        phases=UNSHRUNK,
        suppress_health_check=list(HealthCheck),
        deadline=None,
    )
    @given(tree=sweeps(rule), data=st.data())
    def within_the_budget(tree: dict[str, Any], data: st.DataObject) -> None:
        told["all"] += 1
        with TemporaryDirectory() as work:
            path = Path(work, "sweep.yaml")
            path.write_text(yaml.safe_dump(tree))
            try:
                sweep = load_sweep_config(path)
                played = Played(sweep, SweepDir(Path(work, "out")), data)
            except InputError as error:  # refused before anything was charged
                told[error.field] += 1
                assert not list(Path(work).rglob("ledger.jsonl"))
                return
            told["priced"] += 1
            told["handed on"] += played.handed_on is not None
            check(played)
            if played.rule != "public":
                check_more(played)

    within_the_budget()
    assert told["handed on"], told

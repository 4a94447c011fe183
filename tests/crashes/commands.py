"""The commands that are killed: how each is called, and what more must hold of what it leaves.

Everything runs in this process, without Ray: trials of a sweep are handed out by the real searcher, to the real
``run_trial``.
What that leaves out is Ray itself; tests/search and tests/training/test_ray.py kill its processes.
"""

from __future__ import annotations

import json
import math
import os
import pickle
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest import mock

from optuna.trial import TrialState

from tests.crashes.command import PRETRAIN, PRIVATE, Command, run_tree
from tests.search.sweeps import Here
from uedp_ray import cli
from uedp_ray.answers import export_epsilon
from uedp_ray.corpus.store import open_corpus
from uedp_ray.interrupts import handlers_kept
from uedp_ray.privacy.ledger import read_ledger
from uedp_ray.search.export import export
from uedp_ray.search.layout import SweepDir
from uedp_ray.storage.open import open_storage


class Prepare(Command):
    def tree(self) -> dict[str, Any]:
        return {}

    def arguments(self) -> list[str]:
        return ["prepare", "", "--format", "synthetic", "--num-users", "12", "--out", str(self.out)]

    def runs(self) -> list[Path]:
        return []

    def check_end(self) -> None:
        super().check_end()
        assert sum(len(texts) for _, texts in open_corpus(self.out).texts()) == open_corpus(self.out).num_sentences


class PrepareAgain(Prepare):
    """Over a corpus that is there, whose cache of findings must stay."""

    def set_up(self) -> None:
        super().set_up()
        argv = mock.patch.object(sys, "argv", ["uedp-ray", *self.arguments()[:5], "7", "--out", str(self.out)])
        with argv, handlers_kept():
            cli.main()
        self.kept.write_bytes(b"")
        self.kept.chmod(0o600)

    @property
    def kept(self) -> Path:
        return self.out / "cache" / f"{'ab' * 32}.parquet"

    def check_end(self) -> None:
        assert self.kept.exists(), "the cache was lost"
        self.kept.unlink()
        super().check_end()


class Pretrain(Command):
    """Once its model is whole, another start is refused."""

    def tree(self) -> dict[str, Any]:
        return run_tree(pretrain=PRETRAIN)

    def arguments(self) -> list[str]:
        return ["pretrain", str(self.file), "--out", str(self.out)]

    def call(self) -> int:
        whole = (self.out / "model").exists()
        code = super().call()
        return 0 if whole and code == 2 else code

    def runs(self) -> list[Path]:
        return []


class Export(Command):
    """Of a finished run; once its folder is there it is whole, and another start is refused."""

    comparable = False

    def tree(self) -> dict[str, Any]:
        return run_tree(**PRIVATE)

    def set_up(self) -> None:
        super().set_up()
        argv = ["uedp-ray", "train", str(self.file), "--workers", "0", "--out", str(self.base / "run")]
        with mock.patch.object(sys, "argv", argv), handlers_kept():
            cli.main()

    def arguments(self) -> list[str]:
        return ["export", str(self.base / "run"), "--out", str(self.out)]

    def call(self) -> int:
        there = self.out.exists()
        code = super().call()
        return 0 if there and code == 2 else code

    def runs(self) -> list[Path]:
        return []

    def check_after_kill(self) -> None:
        if self.out.exists():
            found = export_epsilon(self.out)
            assert found["guarantee"] is not found["settled_by_results"]
            assert (self.out / "model" / "model.safetensors").exists()


class Train(Command):
    def gives_way(self) -> bool:
        ledger = self.out / "ledger.jsonl"
        return not ledger.exists() or all(event["kind"] == "open" for event in read_ledger(ledger))

    def arguments(self) -> list[str]:
        return ["train", str(self.file), "--workers", "0", "--out", str(self.out)]


class TrainPrivate(Train):
    comparable = False

    def tree(self) -> dict[str, Any]:
        noisy = {"kind": "noisy-threshold", "noise_multiplier": 0.02, "threshold_delta": 1e-5, "public_text": []}
        return run_tree(**PRIVATE, vocabulary=noisy)

    def check_end(self) -> None:
        super().check_end()
        kinds = [event["kind"] for event in read_ledger(self.out / "ledger.jsonl")]
        assert kinds.count("vocabulary") == 1, "a vocabulary was charged twice"


class AtUrl(Command):
    """The storage and the node's copy are both below the folder; the copy is lost with the node."""

    def __init__(self, base: Path):
        super().__init__(base)
        self.bucket, self.node = self.work / "bucket" / "out", self.work / "node"

    def gives_way(self) -> bool:
        return False

    @property
    def url(self) -> str:
        return f"file://{self.bucket}"

    @contextmanager
    def played(self) -> Iterator[None]:
        with mock.patch.dict(os.environ, UEDP_RAY_WORK=str(self.node)), super().played():
            yield

    def charged(self, run: Path) -> list[dict[str, Any]]:
        with mock.patch.dict(os.environ, UEDP_RAY_WORK=str(self.base / "elsewhere")):
            mirror = open_storage(f"{self.url}/{run.relative_to(self.out)}".removesuffix("/."))
            ledger = mirror.root / "ledger.jsonl"
            return super().charged(mirror.root) if mirror.restore(ledger) else []


class TrainAtUrl(AtUrl, Train):
    def arguments(self) -> list[str]:
        return ["train", str(self.file), "--workers", "0", "--out", self.url]

    def begun(self) -> bool:
        return open_storage(self.url).exists()

    def digest(self) -> dict[str, str]:
        self.out = self.bucket
        published = super().digest()
        return {name: value for name, value in published.items() if not name.startswith("private/")}


class Compare(Command):
    def tree(self) -> dict[str, Any]:
        base = run_tree(pretrain=PRETRAIN, training={"num_rounds": 2})
        return {"base": base, "variants": {"uedp": {"method": "uedp"}, "open": {"method": "noiseless"}}}

    def arguments(self) -> list[str]:
        return ["compare", str(self.file), "--workers", "0", "--out", str(self.out)]

    def begun(self) -> bool:
        return self.out.exists() and any(self.out.iterdir())

    def runs(self) -> list[Path]:
        return [self.out / name for name in ("uedp", "open")]


class Sweep(Command):
    """The driver, and the trials it runs, end together."""

    comparable = False
    at_once = 1
    arm_trial: Callable[[], None] | None = None
    disarm: Callable[[], None] | None = None

    def tree(self) -> dict[str, Any]:
        base = run_tree(**PRIVATE, pretrain=PRETRAIN, training={"num_rounds": 2})
        base["privacy"] = {"user_sampling_prob": 0.3}
        return {
            "base": base,
            "space": {"training.server_learning_rate": {"choice": [0.01, 0.02]}},
            "budget": {"target_epsilon": 8.0, "delta": 1e-4},
            "search": {"searcher": "grid"},
            "references": {"noiseless": None},
        }

    def arguments(self) -> list[str]:
        return ["sweep", str(self.file), "--out", str(self.out)]

    def begun(self) -> bool:
        return (self.out / "sweep.yaml").exists()

    def runs(self) -> list[Path]:
        return sorted((self.out / "trials").glob("[0-9]*"))

    def played(self) -> Any:
        return mock.patch.multiple(
            "uedp_ray.search.sweep",
            Beside=Here,
            tune_trials=self._tune,
            _check_room=lambda *_: (0.0, self.at_once),
        )

    def check_after_kill(self) -> None:
        super().check_after_kill()
        for run in self.runs():
            assert Counter(event["round"] for event in self.charged(run)).total() <= 8, "endless replays"

    def check_end(self) -> None:
        super().check_end()
        self.check_total(self.out)

    def check_total(self, out: Path | str) -> None:
        """What is handed on costs the budget at most, and as much again by its ledgers and ``selection.json``."""
        storage = open_storage(out)
        result = SweepDir(storage.root, storage).result
        storage.get(result)
        answer, target = json.loads(result.read_text()), self.tree()["budget"]["target_epsilon"]
        assert answer["selection"]["epsilon"] <= target
        assert answer["best"]["epsilon_with_choice"] <= target
        with TemporaryDirectory(dir=self.base) as folder:
            exported = export(out, Path(folder, "handed-on"))
            assert exported["epsilon"] == answer["best"]["epsilon_with_choice"]
            again = export_epsilon(Path(folder, "handed-on"))
            assert math.isclose(again["epsilon"], exported["epsilon"], rel_tol=1e-9)
            assert "was it changed?" not in again["text"]

    def _tune(self, config: Any, folder: Any, searcher: Any, at_once: int, gpus: float) -> None:
        while trials := self._handed_out(searcher, at_once):
            for name, trial in reversed(trials.items()):  # the last one begun is the first to end
                for _ in range(4):  # a trial whose process died is started anew, three times
                    reports = self._trial(folder, trial, partial(searcher.stops, name))
                    if reports is not None:
                        break
                with suppress(Exception):  # as Tune does
                    searcher.on_trial_complete(name, reports[-1] if reports else None, error=reports is None)
        if searcher.failure is not None:
            raise searcher.failure

    def _handed_out(self, searcher: Any, at_once: int) -> dict[str, dict[str, Any]]:
        trials: dict[str, dict[str, Any]] = {}
        for number in range(at_once):
            if isinstance(trial := searcher.suggest(name := f"trial {number}"), dict):
                trials[name] = trial
        return trials

    def _trial(
        self, folder: Any, trial: dict[str, Any], stops: Callable[[dict[str, Any]], bool]
    ) -> list[dict[str, Any]] | None:
        from uedp_ray.search.trial import run_trial

        reports: list[dict[str, Any]] = []

        def report(row: dict[str, Any]) -> None:
            reports.append({"perplexity" if key == "score" else key: value for key, value in row.items()})
            if stops(reports[-1]):
                raise _Stopped

        with suppress(_Stopped):
            run_trial(trial, root=folder.storage, report=report)
        return reports


class _Stopped(BaseException):
    """Ends a trial as Tune does: without asking it."""


class SweepAdaptive(Sweep):
    """Two trials at a time, chosen by the results of earlier ones, and stopped early by them."""

    at_once = 2

    def tree(self) -> dict[str, Any]:
        tree = super().tree()
        tree["base"]["training"] |= {"num_rounds": 3, "evaluate_every": 1}
        tree["space"] = {"training.server_learning_rate": {"log_uniform": [0.001, 0.1]}}
        tree["search"] = {"searcher": "tpe", "trials": 5, "early_stopping": "asha", "grace_rounds": 1}
        return tree

    def check_end(self) -> None:
        super().check_end()
        lines = (self.out / "study.journal").read_text().splitlines()
        ended = (line for line in map(json.loads, lines) if line.get("state", 0) and "trial_id" in line)
        states = {line["trial_id"]: line["state"] for line in ended}
        assert len(states) == 5, "trials were lost, or made up for"
        assert set(states.values()) <= {TrialState.COMPLETE, TrialState.PRUNED} | (
            {TrialState.FAIL} if self.once else set()
        )


class SweepAtUrl(AtUrl, SweepAdaptive):
    """A start that is told to say --resume says it."""

    resumed = False

    def arguments(self) -> list[str]:
        return ["sweep", str(self.file), "--out", self.url]

    def begun(self) -> bool:
        return self.resumed

    def call(self) -> int:
        code = super().call()
        if code == 2 and not self.resumed and "add --resume" in (self.base / "output").read_text():
            self.resumed = True
            code = super().call()
        return code

    def runs(self) -> list[Path]:
        return [self.out / "trials" / f"{number:04d}" for number in range(5)]

    def check_end(self) -> None:
        Command.check_end(self)  # the journal is on the node, which may be lost
        with self.played():
            self.check_total(self.url)


class SweepPublic(Sweep):
    """Rule public: the winner is trained on the private text, once."""

    def tree(self) -> dict[str, Any]:
        public = {
            "corpus.source": {"format": "synthetic", "num_users": 10, "part": "public", "seed": 5},
            "corpus.evaluation": {"format": "synthetic", "num_users": 3, "part": "public", "seed": 9},
            "corpus.evaluation_basis": "public",
        }
        return super().tree() | {"search": {"searcher": "grid", "selection": "public", "public": public}}

    def runs(self) -> list[Path]:
        return [*super().runs(), self.out / "winner"]


class SweepTrial(Sweep):
    """Only the process of the trial is killed: the driver starts it anew."""

    def _trial(
        self, folder: Any, trial: dict[str, Any], stops: Callable[[dict[str, Any]], bool]
    ) -> list[dict[str, Any]] | None:
        arm, self.arm_trial = self.arm_trial, None  # the first one only
        box = self.base / "reports"
        box.unlink(missing_ok=True)
        child = os.fork()
        if child == 0:
            if arm:
                arm()
            box.write_bytes(pickle.dumps(super()._trial(folder, trial, stops)))
            os._exit(0)
        status = os.waitpid(child, 0)[1]
        return None if os.WIFSIGNALED(status) else pickle.loads(box.read_bytes())


COMMANDS: dict[str, type[Command]] = {
    "prepare": Prepare,
    "prepare again": PrepareAgain,
    "pretrain": Pretrain,
    "train": Train,
    "train, private": TrainPrivate,
    "train at a URL": TrainAtUrl,
    "compare": Compare,
    "sweep": Sweep,
    "sweep, its trial": SweepTrial,
    "sweep, adaptive": SweepAdaptive,
    "sweep at a URL": SweepAtUrl,
    "sweep, public": SweepPublic,
    "export": Export,
}

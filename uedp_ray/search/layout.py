"""The sweep directory: names of everything in it.

sweep.yaml  study.journal  trials.parquet  trials/<id>/  result.json  report.html
    references/  pretrained/  tensorboard/  winner/
private/    prepared corpora, tokens, try-outs, the pool of ``repeat_and_select``: owner-only, never published
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

from uedp_ray.config import RunConfig, to_dict
from uedp_ray.errors import InputError
from uedp_ray.search.ended import run_names
from uedp_ray.search.preflight import PREFLIGHT
from uedp_ray.search.sweep_config import load_kept
from uedp_ray.storage.base import IN_PLACE, Storage
from uedp_ray.storage.files import make_folder
from uedp_ray.storage.locks import locked
from uedp_ray.training.paths import TEXT
from uedp_ray.training.run_vocabulary import written
from uedp_ray.training.rundir import RunDir

_WAIT = 5.0
"""Seconds to wait for the lock; a killed process holds none."""


@dataclass(frozen=True)
class SweepDir:
    """Paths under ``root``, and the storage of which it is a node's copy, if it is one."""

    root: Path
    storage: Storage = IN_PLACE

    def fetch(self) -> None:
        """Fetches what trials open into this node's copy."""
        self.storage.get(self.config, self.terms)
        for proxy in self.proxies if self.storage.is_copy else ():
            self.storage.get(self.trial_base(proxy), *corpora_at(self.corpora(proxy)))

    @property
    def proxies(self) -> tuple[str, ...]:
        """``SweepConfig.proxy_names`` of the sweep that is here. Raises: as ``load_kept``."""
        return load_kept(self.config, self.terms).proxy_names

    @property
    def address(self) -> str:
        """What a user calls the folder: itself, or the URL that it is kept at."""
        return self.storage.address(self.root)

    @property
    def names(self) -> set[str]:
        """Names of what is created in the folder itself."""
        files = (self.config, self.journal, self.table, self.result, self.terms)
        return {path.name for path in (*files, self.trials, self.winner, self.private, self.tensorboard)} | {PREFLIGHT}

    @property
    def config(self) -> Path:
        return self.root / "sweep.yaml"

    @property
    def journal(self) -> Path:
        return self.root / "study.journal"

    @property
    def table(self) -> Path:
        return self.root / "trials.parquet"

    @property
    def result(self) -> Path:
        return self.root / "result.json"

    @property
    def trials(self) -> Path:
        return self.root / "trials"

    @property
    def tensorboard(self) -> Path:
        return self.root / "tensorboard"

    @property
    def references(self) -> Path:
        return self.root / "references"

    def noiseless(self, proxy: str = "") -> Path:
        """The run without privacy."""
        return self.references / _on("noiseless", proxy)

    @property
    def winner(self) -> Path:
        """The run by the settings of the best trial; ``repeat_and_select``: the best run, fit to be handed on."""
        return self.root / "winner"

    @property
    def private(self) -> Path:
        return self.root / "private"

    @property
    def lock(self) -> Path:
        """Held by a search."""
        return self.private / "driver.lock"

    @property
    def mark(self) -> Path:
        """Created before ``config``: without it, a file of that name is somebody else's."""
        return self.private / ".sweep"

    def trial_base(self, proxy: str = "") -> Path:
        """The base of every trial on a text: the sweep's, with corpora prepared."""
        return self.private / f"{_on('base', proxy)}.yaml"

    def has_bases(self, proxies: Iterable[str]) -> bool:
        """Whether the texts of all of these were prepared, so that trials may start."""
        return all(self.trial_base(proxy).exists() for proxy in proxies)

    def corpora(self, proxy: str = "") -> Path:
        """The prepared text that trials train on and are scored on."""
        return self.private / _on("corpora", proxy)

    def text(self, proxy: str = "") -> Path:
        """Says which text it is."""
        return self.corpora(proxy) / TEXT

    @property
    def pool(self) -> Path:
        """The points fixed beforehand, if there are any; for ``repeat_and_select`` also which of them are drawn."""
        return self.private / "pool.json"

    @property
    def public_scores(self) -> Path:
        """What the public model scored before the first trial."""
        return self.private / "public-model.json"

    @property
    def terms(self) -> Path:
        """How the choice is paid for, fixed before the first trial."""
        return self.root / "selection.json"

    @property
    def tokens(self) -> Path:
        return self.private / "tokens"

    @property
    def tryouts(self) -> Path:
        """What try-outs of this machine found: see ``training.tryouts``."""
        return self.private / "tryouts"

    @property
    def is_sweep(self) -> bool:
        """Whether both files exist: a user's own sweep file may have the name of one of them."""
        return self.config.exists() and self.terms.exists()

    def runs(self, number: int, suffixes: Sequence[str] = ("",)) -> list[Path]:
        """Returns the run directories of a trial, by ``SweepConfig.suffixes``."""
        return [self.trials / f"{trial_id(number)}{suffix}" for suffix in suffixes]

    def driving(self) -> AbstractContextManager[None]:
        """Allows one search at a time among all that see this folder: a container may not see a lock beside it."""
        busy = InputError(
            "--out", self.address, "another process is searching here: wait for it, or stop one of the two"
        )
        return locked(self.lock, wait=_WAIT, busy=busy)

    def begin(self, run: Path) -> None:
        """Creates a run directory, before its first charge, so that its storage ``exists``. Returns once it is safe."""
        storage = self.storage.child(run)
        if not storage.exists():  # at a URL, where a claim takes the place of a folder
            storage.acquire()
        make_folder(run / "private", private=True)

    def lost(self, number: int, suffixes: Sequence[str]) -> list[str]:
        """Returns what ``begin`` made for a trial and is now missing, as paths or URLs."""
        parts = {run / "private": self.storage.child(run) for run in self.runs(number, suffixes)}
        return [self.storage.address(path) for path, part in parts.items() if not part.exists()]

    def started_runs(self) -> dict[str, int]:
        """Returns the existing run directories of trials: see ``ended.run_names``."""
        return run_names(self.trials)

    def pretrained(self, config: RunConfig) -> Path:
        """Returns the path of the public model of this shape, vocabulary and public text."""
        tree = to_dict(config)
        model = {key: value for key, value in tree["model"].items() if key not in _NOT_PRETRAINED}
        parts = [model, tree["vocabulary"], tree["pretrain"], tree["training"]["precision"]]
        if words := written(config):  # without any, the name is the one that it always had
            parts.append(words)
        key = json.dumps(parts, sort_keys=True)
        return self.root / "pretrained" / hashlib.sha256(key.encode()).hexdigest()[:12]


def corpora_at(folder: Path) -> tuple[Path, Path, Path]:
    """Returns what ``prepare_corpora`` makes in a folder: which text it is, the private text, and the evaluation text."""
    return folder / TEXT, folder / "private", folder / "evaluation"


def sweep_above(path: Path) -> Path | None:
    """Returns the sweep that a path is in, symbolic links followed."""
    return next((folder for folder in path.resolve().parents if SweepDir(folder).is_sweep), None)


def check_apart(out: Path, *, field: str = "--out") -> Path:
    """Returns ``out`` if a command may write there. Raises: InputError inside a run, a comparison or a sweep, which would
    take what is written for its own: another text for the private one, or a stranger for a trial; and inside a prepared
    corpus, which could not be prepared again.
    """
    for folder in out.resolve().parents:
        if all((folder / name).exists() for name in ("corpus.json", "shards")):
            remedy = f"is inside {folder}, which is a prepared corpus: name a folder outside"
            raise InputError(field, str(out), remedy)
        run, comparison = RunDir(folder), corpora_at(folder / "corpora")
        if (
            (run.config.exists() and run.key.exists())
            or SweepDir(folder).is_sweep
            or all(map(Path.exists, comparison[:2]))
        ):
            remedy = f"is inside {folder}, which holds a run, a comparison or a sweep: name a folder outside"
            raise InputError(field, str(out), remedy)
    return out


_NOT_PRETRAINED = ("trainable", "lora_rank", "lora_alpha", "lora_targets", "base_dtype", "warm_start")


def _on(name: str, proxy: str) -> str:
    """The name of what there is once for each text."""
    return f"{name}-{proxy}" if proxy else name


def trial_id(number: int) -> str:
    return f"{number:04d}"

"""A sweep at a URL: what it resumes from, what must be there for trials, and what trials left there.

    restore(folder)                                      # config, terms, journal, as the previous start left them
    base = prepared(base, folder, folder.corpora())
    rows = GatheredRows(sweep, folder)
    rows.read(study.trials)                              # fetches the ledgers and results of trials that ended

A trial that ended for the search may continue on a node that was cut off. Its run is taken over before its ledger is read,
so that the ledger holds everything it ever releases (``storage.mirror``). For a folder that every node sees, all of this
does nothing.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path

from optuna.trial import FrozenTrial

from uedp_ray.config import RunConfig, SourceConfig, load_config
from uedp_ray.errors import InputError
from uedp_ray.search.layout import SweepDir, corpora_at
from uedp_ray.search.results import Row, Rows
from uedp_ray.search.study import outcome, refused
from uedp_ray.search.sweep_config import SweepConfig
from uedp_ray.training.paths import TEXT, for_use, with_absolute_paths
from uedp_ray.training.rundir import RunDir
from uedp_ray.training.texts import prepare_corpora


def restore(folder: SweepDir) -> None:
    """Fetches what the search resumes from. The journal is there before the first trial starts: its trials may have started.

    Raises: InputError if nodes would keep their copies at another path than before: the trials' configs name it.
    """
    folder.storage.get(folder.config, folder.pool, folder.terms)
    for proxy in folder.proxies if folder.storage.is_copy and folder.config.exists() else ():
        folder.storage.get(base := folder.trial_base(proxy))
        if not base.exists():
            continue
        corpus = Path(for_use(load_config(base)).corpus.source.path)
        if not corpus.is_relative_to(folder.root):
            remedy = f"the sweep's copies were at {corpus.parents[2]}: set UEDP_RAY_WORK so that they are there again"
            raise InputError("UEDP_RAY_WORK", str(folder.root), remedy)
    if folder.storage.restore(folder.journal):
        folder.trials.mkdir(exist_ok=True)


def keep_terms(folder: SweepDir) -> None:
    """Stores the sweep and how its choice is paid for; the terms last, since what they rest on is not made again."""
    folder.storage.put(*(path for path in (folder.config, folder.pool, folder.terms) if path.exists()))
    folder.storage.publish(folder.config, folder.terms)


def prepared(base: RunConfig, folder: SweepDir, into: Path) -> RunConfig:
    """Returns the config with its corpora prepared where every node can read them. Raises: as ``prepare_corpora``."""
    fixed = bool(folder.started_runs())
    if fixed:  # by a start that may have been on another node
        folder.storage.get(*corpora_at(into))
    base = with_absolute_paths(prepare_corpora(base, into, fixed=fixed))
    used = for_use(base).corpus
    assert base.corpus.evaluation is not None  # prepare_corpora refuses it
    assert used.evaluation is not None

    def adopted(source: SourceConfig, path: Path, name: str) -> SourceConfig:
        found = folder.storage.adopt(path, into / name)
        return source if found == path else dataclasses.replace(source, path=str(found))

    folder.storage.put(into / TEXT)
    source = adopted(base.corpus.source, Path(used.source.path), "private")
    evaluation = adopted(base.corpus.evaluation, Path(used.evaluation.path), "evaluation")
    return dataclasses.replace(base, corpus=dataclasses.replace(base.corpus, source=source, evaluation=evaluation))


class GatheredRows(Rows):
    """``Rows`` that fetches run directories first, without models and what is private."""

    def __init__(self, sweep: SweepConfig, folder: SweepDir):
        super().__init__(sweep, folder)
        self._gathered: set[int] = set()

    def read(self, trials: Sequence[FrozenTrial]) -> list[Row]:
        for trial in trials:
            if trial.number not in self._gathered and outcome(trial).is_finished() and not refused(trial):
                for path in self._folder.runs(trial.number, self._sweep.suffixes):
                    storage = self._folder.storage.child(path)
                    if storage.exists():
                        RunDir(path, storage).close()
                self._gathered.add(trial.number)
        return super().read(trials)

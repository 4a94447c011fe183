"""The run directory: its layout, its private parts, and its owner.

config.yaml  ledger.jsonl  rounds.parquet  checkpoint/  model/  vocabulary/  privacy.md  result.json
private/     keys, prepared corpora, tokens, weights, diagnostics: owner-only, never published
"""

from __future__ import annotations

import dataclasses
import hmac
import os
import re
import stat
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from uedp_ray.config import RunConfig, load_config
from uedp_ray.corpus.store import of_earlier_version
from uedp_ray.corpus.textsize import SIZE
from uedp_ray.errors import InputError
from uedp_ray.fields import Check, Later, anything, flag, list_of, number, one_of, record, string
from uedp_ray.privacy.guarantee import GUARANTEES
from uedp_ray.privacy.ledger import Ledger, read_ledger
from uedp_ray.privacy.mechanisms.poisson import RoundMechanism
from uedp_ray.reporting import Reporter
from uedp_ray.storage.base import IN_PLACE, Storage
from uedp_ray.storage.files import check_regular, read_json, settle, unusable
from uedp_ray.storage.locks import locked
from uedp_ray.tasks.metric import Metric
from uedp_ray.training.guard import Compared
from uedp_ray.training.paths import TEXT
from uedp_ray.training.texts import EARLIER, copies_told
from uedp_ray.units import RECORD, UNITS

COMMIT = "state.json"
"""The file of a checkpoint that is written last."""

DRIVER_WAIT = 120.0
"""Seconds. Processes of a killed driver end within seconds; the locks of a lost node last longer (NFS: 90)."""

MADE_ANEW = "delete private/setup.json, and run again with --resume to rebuild it"

_LACKING = f"{EARLIER}. If somebody edited the file, restore the run's copy"

OF_WORKERS = r"(?:error|diagnostics)-.*\.json"
"""A regular expression, as for ``find_other``, of ``RunDir.error`` and ``RunDir.diagnostics``."""

_SETUP: dict[str, Check] = {
    **dict.fromkeys(("corpus", "corpus_digest", "tokens"), string()),
    **dict.fromkeys(("evaluation", "evaluation_digest"), string(nothing=True)),
    "evaluation_size": record(SIZE, nothing=True),
    "sentence_weight": string(),
    "compared": record({field.name: flag for field in dataclasses.fields(Compared)}, nothing=True),
    "mechanism": record({field.name: anything for field in dataclasses.fields(RoundMechanism)}, nothing=True),
    "detectors": list_of(string()),
    "categories": list_of(string(), nothing=True),
}

_RESULT: dict[str, Check] = {
    "epsilon": record(dict.fromkeys(UNITS, number(0.0, nothing=True))),
    "delta": number(0.0, 1.0),
    "unit": one_of(*UNITS, RECORD),
    "noise_multiplier": number(0.0, nothing=True),
    **dict.fromkeys(("rounds", "planned_rounds"), number(0, whole=True)),
    "private": flag,
    "covers": string(),
    "guarantees": Later(GUARANTEES),
}


@dataclass(frozen=True)
class RunDir:
    """Paths of everything in a run directory, and its storage, of which it may be a node's copy."""

    root: Path
    storage: Storage = IN_PLACE

    @property
    def config(self) -> Path:
        return self.root / "config.yaml"

    @property
    def ledger(self) -> Path:
        return self.root / "ledger.jsonl"

    @property
    def rounds(self) -> Path:
        return self.root / "rounds.parquet"

    @property
    def checkpoint(self) -> Path:
        return self.root / "checkpoint"

    @property
    def model(self) -> Path:
        return self.root / "model"

    @property
    def vocabulary(self) -> Path:
        return self.root / "vocabulary"

    @property
    def statement(self) -> Path:
        return self.root / "privacy.md"

    @property
    def result(self) -> Path:
        return self.root / "result.json"

    @property
    def progress(self) -> Path:
        return self.root / "progress.json"

    @property
    def private(self) -> Path:
        return self.root / "private"

    @property
    def key(self) -> Path:
        return self.private / "sampling.key"

    @property
    def setup(self) -> Path:
        """Where the prepared corpora are and what the bounds did; written last, so it marks a run that is ready."""
        return self.private / "setup.json"

    @property
    def text(self) -> Path:
        """Which text the run is of, from before anything is charged: ``setup`` may be deleted and rebuilt."""
        return self.private / TEXT

    @property
    def lock(self) -> Path:
        """Held by the worker of rank 0 while it runs: under Ray not the process that holds the folder."""
        return self.private / "driver.lock"

    @property
    def charged(self) -> Path:
        """Has as many bytes as the ledger had lines at the last release: a ledger with fewer lines was cut."""
        return self.private / "charged"

    def open_ledger(self, config: RunConfig) -> Ledger:
        """Opens the run's own ledger to append to.

        Raises: InputError if it is another run's, damaged, or was cut, or if nothing tells whether it was.
        """
        found = Ledger.open(self.ledger, config_digest=ledger_digest(self, config), charged=self.num_known)
        rounds = sum(event["kind"] == "round" for event in found.events)
        if rounds > 1 and not self.num_known and not self.storage.is_copy:  # a kill may leave one round that it lacks
            remedy = (
                "is missing, and without it a ledger that was cut would be continued: restore the run's copy; if an earlier "
                "version made the run, which kept none, resume it with that version"
            )
            raise InputError(self.charged.name, str(self.charged), remedy)
        return found

    @property
    def num_known(self) -> int:
        """Lines that the ledger is known to have had; 0 if nothing is known."""
        try:
            found = self.charged.lstat()
        except (FileNotFoundError, NotADirectoryError):
            return 0
        if not stat.S_ISREG(found.st_mode):  # a pipe would block, and a link's target be overwritten
            remedy = "is not a regular file: restore the run's copy"
            raise InputError(self.charged.name, str(self.charged), remedy)
        return found.st_size

    def know(self, num_events: int) -> None:
        """Records the ledger's length beside it: a restored copy may lack whole lines."""
        descriptor = os.open(self.charged, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK, 0o600)
        try:
            os.ftruncate(descriptor, num_events)
            os.fsync(descriptor)
        except OSError as error:  # an error on a descriptor names no file
            raise OSError(error.errno, error.strerror, str(self.charged)) from error
        finally:
            os.close(descriptor)

    @property
    def outcomes(self) -> tuple[Path, ...]:
        """Files that exist only after a charge."""
        return self.checkpoint, self.rounds, self.model, self.result

    @property
    def paid(self) -> bool:
        """Whether something exists that only a charge can have led to, whatever happened to the ledger."""
        return self.num_known > 0 or any(path.exists() for path in self.outcomes)

    @property
    def corpus(self) -> Path:
        """A prepared copy of the private text; there is none if the run file names a prepared corpus."""
        return self.private / "corpus"

    @property
    def evaluation(self) -> Path:
        """A copy of the evaluation text."""
        return self.private / "evaluation"

    @property
    def sentence_weight(self) -> Path:
        return self.private / "sentence_weight.npy"

    @property
    def tokens(self) -> Path:
        return self.private / "tokens"

    @property
    def drawn(self) -> Path:
        """A vocabulary of the private text, from before it is charged; once it is, it is copied to ``vocabulary``."""
        return self.private / "vocabulary"

    @property
    def vectors(self) -> Path:
        """What is kept of the vector of each sentence (``training.representation``)."""
        return self.private / "vectors.npy"

    @property
    def used(self) -> Path:
        """The config as the driver's machine opens its files (``for_use``); written at every start."""
        return self.private / "config.yaml"

    @property
    def cleared(self) -> Path:
        """Files that are about to be deleted."""
        return self.private / "cleared"

    @property
    def speed(self) -> Path:
        return self.private / "speed.json"

    @property
    def ray(self) -> Path:
        """Files of Ray Train, while it runs."""
        return self.private / "ray"

    @property
    def group(self) -> Path:
        """Names the resources that a Ray Train group holds."""
        return self.private / "group"

    def error(self, group: str) -> Path:
        """Where a worker of a group reports an error of the user's."""
        return self.private / f"error-{group}.json"

    def diagnostics(self, rank: int) -> Path:
        return self.private / f"diagnostics-{rank}.json"

    @property
    def files(self) -> tuple[Path, ...]:
        """Files in the folder itself."""
        return self.config, self.ledger, self.rounds, self.statement, self.result, self.progress

    @property
    def folders(self) -> tuple[Path, ...]:
        """Folders in the folder itself."""
        return self.private, self.checkpoint, self.model, self.vocabulary

    @property
    def private_files(self) -> tuple[Path, ...]:
        """Files in ``private/``, except those of groups and workers (``OF_WORKERS``)."""
        made = (self.key, self.setup, self.text, self.charged, self.sentence_weight, self.used, self.lock, self.group)
        return *made, self.speed, self.vectors

    def load_config(self) -> RunConfig:
        return load_config(self.config)

    @property
    def address(self) -> str:
        """The folder's name for the user: its path, or the URL that it is kept at."""
        return self.storage.address(self.root)

    @property
    def names(self) -> set[str]:
        """Names of everything made in the folder itself."""
        return {path.name for path in (*self.files, *self.folders)}

    def load_setup(self) -> dict[str, Any]:
        """Reads ``setup``. Raises: InputError if it is damaged, or an earlier version wrote less into it."""
        setup = self._read(self.setup, _SETUP, MADE_ANEW, earlier=_LACKING)
        if len({setup[f"evaluation{part}"] is None for part in ("", "_digest", "_size")}) > 1:
            raise InputError(self.setup.name, str(self.setup), f"is damaged (evaluation): {self.anew(MADE_ANEW)}")
        return setup

    def load_result(self, metric: Metric) -> dict[str, Any]:
        """Reads ``result``. Raises: InputError if it is damaged, or an earlier version wrote less into it."""
        remedy = "delete it, and run again with --resume to rebuild it"
        return self._read(self.result, _RESULT | metric.checks_of_run(), remedy)

    def _read(self, path: Path, checks: dict[str, Check], remedy: str, **how: Any) -> dict[str, Any]:
        try:
            return read_json(path, checks, remedy, **how)
        except InputError:  # only now: it takes reading the run's other files
            if not self.of_earlier_version:
                raise
        return read_json(path, checks, EARLIER, earlier=_LACKING)

    def anew(self, remedy: str) -> str:
        """The remedy for a file that a resume makes anew; in a run of an earlier version, none does, and nothing may go."""
        return EARLIER if self.of_earlier_version else remedy

    @property
    def of_earlier_version(self) -> bool:
        """Whether the run's files show that an earlier version made it, and this one cannot resume it."""
        with suppress(InputError):  # missing or damaged
            if not _SETUP.keys() <= read_json(self.setup, {}, "").keys():
                return True
        corpora = [self.corpus, self.evaluation]
        with suppress(InputError):
            named = load_config(self.used).corpus
            corpora += [Path(one.path) for one in (named.source, named.evaluation) if one and one.format == "prepared"]
        return any(map(of_earlier_version, corpora))

    def driving(self) -> AbstractContextManager[None]:
        """Admits one driver at a time: two would charge each other's rounds."""
        busy = InputError("--out", self.address, "another process is training this run: stop one of the two")
        return locked(self.lock, wait=DRIVER_WAIT, busy=busy)

    @property
    def played(self) -> bool:
        """Whether a round was charged, or something exists that only a round can have led to."""
        if self.paid:
            return True
        try:
            return self.ledger.exists() and any(event["kind"] == "round" for event in read_ledger(self.ledger))
        except InputError:  # damaged: a round may have been charged
            return True

    def copies_told(self, reporter: Reporter) -> AbstractContextManager[None]:
        """Reports that a copy of the private text stays, if the block is refused before the first round."""
        return copies_told(self.private, reporter, "corpus", "tokens", unless=lambda: self.played)

    def own(self) -> None:
        """Takes the run over, and fetches its progress from the storage into this node's copy."""
        self.storage.acquire()
        charged = self.storage.restore(self.ledger)
        self.storage.get(self.result, self.statement, since=charged)  # older ones are outdated by later charges
        self.storage.get(self.config, self.rounds)

    def close(self) -> None:
        """Takes the run over permanently, and publishes what it charged even if it never ended."""
        self.own()
        self.storage.publish(self.config, self.ledger, self.rounds)

    def fetch(self) -> None:
        """Fetches what a worker opens into this node's copy."""
        words, corpora = (self.drawn, self.vocabulary), (self.corpus, self.evaluation)
        self.storage.get(
            self.config, self.used, self.setup, self.text, self.key, *words, self.sentence_weight, *corpora
        )
        if self.setup.exists() and self.used.exists():  # corpora and a public model may be those of the sweep
            setup, start = self.load_setup(), load_config(self.used).model.warm_start
            shared = [self.root / setup[name] for name in ("corpus", "evaluation") if setup[name]]
            shared += [Path(start).parent] if start else []
            self.storage.get(*(path for path in shared if not path.is_relative_to(self.root)))


def settle_run(run: RunDir) -> None:
    """Settles changes to a run's files that a kill or a lack of descriptors interrupted, while no process uses the run."""
    settle(run.root, run.names)
    if run.config.exists():  # otherwise it is not ours
        for folder in (run.private, run.checkpoint, run.tokens):
            settle(folder)


def unused(run: RunDir) -> bool:
    """Whether nothing was charged, and nothing exists that needs a charge. The caller holds the folder."""
    if run.paid:
        return False
    if run.ledger.exists():
        return all(event["kind"] == "open" for event in read_ledger(run.ledger))
    return not run.setup.exists()  # with a setup, the ledger was lost


def ledger_digest(run: RunDir, config: RunConfig) -> str:
    """The config's digest under the run's secret key: the ledger is published, and a config's paths can be guessed."""
    return hmac.new(_read_key(run), config.digest().encode(), "sha256").hexdigest()


def sampling_key(run: RunDir, config: RunConfig) -> bytes:
    """The secret key of the Poisson draws; fixed under a test seed, so that runs can be compared.

    Raises: InputError if it is damaged: its draws cannot be repeated, so no other key may replace it.
    """
    seed = config.privacy.test_noise_seed
    return _read_key(run) if seed is None else f"test sampling key {seed:>16}".encode()


def _read_key(run: RunDir) -> bytes:
    remedy = "restore the run's copy, or train in another folder"
    try:
        check_regular(run.key, remedy, most=64)
        key = run.key.read_bytes()
    except OSError as error:
        raise unusable(error, run.key.name, run.key, remedy) from None
    if not re.fullmatch(rb"[0-9a-f]{64}", key):
        raise InputError(run.key.name, str(run.key), f"is damaged: {remedy}")
    return bytes.fromhex(key.decode())

"""The run directory: its layout, what is private in it, and making it ready for workers.

    config.yaml  ledger.jsonl  rounds.parquet  checkpoint/  model/  vocabulary/  privacy.md  result.json
    private/     keys, prepared corpora, tokens, weights, diagnostics: owner-only, never published

``prepare_run`` is a sequence of steps each of which is skipped when its outcome exists, so that a run killed while it was
being set up resumes like any other.
"""

from __future__ import annotations

import dataclasses
import hmac
import os
import re
import secrets
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from uedp_ray.config import RunConfig, SourceConfig, dump_config, load_config
from uedp_ray.corpus.bounds import Bounded, apply_bounds
from uedp_ray.corpus.overlap import Sketch
from uedp_ray.corpus.prepare import prepare
from uedp_ray.corpus.readers import source_files
from uedp_ray.corpus.store import Corpus, open_corpus
from uedp_ray.corpus.tokens import TokenStore, encode_corpus
from uedp_ray.corpus.vocabulary import SPECIAL, Vocabulary
from uedp_ray.errors import InputError, within
from uedp_ray.fields import Check, anything, flag, list_of, number, one_of, record, string
from uedp_ray.files import (
    check_regular,
    checksum,
    has_checksum,
    holds_others,
    load_array,
    make_folder,
    read_json,
    replacing,
    settle,
    to_be_removed,
    unusable,
    write_atomically,
    write_json,
)
from uedp_ray.locks import INSIDE, locked
from uedp_ray.plan import ACCOUNTANTS, Plan, cautions
from uedp_ray.privacy import statement
from uedp_ray.privacy.ledger import Ledger, read_ledger
from uedp_ray.privacy.mechanism import RoundMechanism
from uedp_ray.training.checks import check_run
from uedp_ray.training.evaluate import TextSize, text_size
from uedp_ray.training.guard import (
    TRAINED_HERE,
    Compared,
    check_evaluation,
    check_public,
    check_start,
    check_warm_start,
)
from uedp_ray.training.paths import TEXT, for_use, with_absolute_paths
from uedp_ray.training.storage import IN_PLACE, Storage, open_storage
from uedp_ray.training.words import draw_vocabulary, make_vocabulary, public_text

Say = Callable[[str], None]
_NO_WORDS = "no-words"
"""Beside a noisy vocabulary of which no word passed the threshold: an answer, which is asked for once."""
_NO_RUN = "is not empty and holds no run: name another folder"
COMMIT = "state.json"
"""The file of a checkpoint that is written last."""
DRIVER_WAIT = 120.0
"""Seconds: what a killed driver left running ends within seconds; the locks of a lost node last longer (NFS: 90)."""
_CLEARED = "cleared"
_MADE_ANEW = "delete private/setup.json, and run again with --resume to have it made anew"
_SETUP: dict[str, Check] = {
    **dict.fromkeys(("corpus", "corpus_digest", "tokens"), string()),
    **dict.fromkeys(("evaluation", "evaluation_digest"), string(nothing=True)),
    "evaluation_size": record(
        {field.name: number(0, whole=True) for field in dataclasses.fields(TextSize)}, nothing=True
    ),
    "sentence_weight": string(),
    "compared": record({field.name: flag for field in dataclasses.fields(Compared)}, nothing=True),
    "mechanism": record({field.name: anything for field in dataclasses.fields(RoundMechanism)}, nothing=True),
    "detectors": list_of(string()),
    "categories": list_of(string(), nothing=True),
}
_RESULT: dict[str, Check] = {
    **dict.fromkeys(("perplexity", "initial_perplexity", "bits_per_byte", "unk_share"), number(0.0, nothing=True)),
    "epsilon": record(dict.fromkeys(ACCOUNTANTS, number(0.0, nothing=True))),
    "delta": number(0.0, 1.0),
    "unit": one_of(*ACCOUNTANTS),
    "noise_multiplier": number(0.0, nothing=True),
    **dict.fromkeys(("rounds", "planned_rounds"), number(0, whole=True)),
    "private": flag,
    "covers": string(),
}


@dataclass(frozen=True)
class RunDir:
    """Names of everything in a run directory, and the storage that it is a node's copy of, if it is one."""

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
        """Where the prepared corpora lie and what the bounds did; written last, so it marks a run that is ready."""
        return self.private / "setup.json"

    @property
    def text(self) -> Path:
        """Which text the run is of, from before anything is charged: ``setup`` may be deleted and made anew."""
        return self.private / TEXT

    @property
    def lock(self) -> Path:
        """Held by the worker of rank 0 while it runs: under Ray another process than the one that holds the folder."""
        return self.private / "driver.lock"

    @property
    def charged(self) -> Path:
        """As many bytes as the ledger had lines when a round was released last: a ledger that has fewer was cut."""
        return self.private / "charged"

    def check_uncut(self, num_events: int) -> None:
        """Raises: InputError if the ledger has fewer lines than were charged, as far as that is known."""
        known = self.charged.stat().st_size if self.charged.exists() else 0
        if num_events < known:
            remedy = f"has {num_events} lines, of {known} that were charged: put the run's own, complete ledger back"
            raise InputError("ledger.jsonl", str(self.ledger), remedy)

    @property
    def outcomes(self) -> tuple[Path, ...]:
        """What only a charge can have led to."""
        return self.checkpoint, self.rounds, self.model, self.result

    @property
    def sentence_weight(self) -> Path:
        return self.private / "sentence_weight.npy"

    @property
    def tokens(self) -> Path:
        return self.private / "tokens"

    @property
    def drawn(self) -> Path:
        """A vocabulary of the private text, from before it is charged; once it is, ``vocabulary`` is a copy."""
        return self.private / "vocabulary"

    @property
    def used(self) -> Path:
        """The config as the driver's machine opens its files (``for_use``); written at every start."""
        return self.private / "config.yaml"

    @property
    def speed(self) -> Path:
        return self.private / "speed.json"

    def load_config(self) -> RunConfig:
        return load_config(self.config)

    @property
    def names(self) -> set[str]:
        """Of what is made in the folder itself."""
        public = (self.config, self.ledger, self.rounds, self.checkpoint, self.model, self.vocabulary)
        return {path.name for path in (*public, self.statement, self.result, self.progress, self.private)}

    def load_setup(self) -> dict[str, Any]:
        """Raises: InputError if it is damaged."""
        setup = read_json(self.setup, _SETUP, _MADE_ANEW)
        if len({setup[f"evaluation{part}"] is None for part in ("", "_digest", "_size")}) > 1:
            raise InputError(self.setup.name, str(self.setup), f"is damaged (evaluation): {_MADE_ANEW}")
        return setup

    def load_result(self) -> dict[str, Any]:
        """Raises: InputError if it is damaged."""
        return read_json(self.result, _RESULT, "delete it, and run again with --resume to have it made anew")

    def driving(self) -> AbstractContextManager[None]:
        """One driver at a time: two would charge each other's rounds."""
        busy = InputError("--out", str(self.root), "another process is training this run: stop one of the two")
        return locked(self.lock, wait=DRIVER_WAIT, busy=busy)

    @property
    def played(self) -> bool:
        """Whether a round was charged, or something is there that only a round can have led to."""
        if any(path.exists() for path in self.outcomes):
            return True
        try:
            return self.ledger.exists() and any(event["kind"] == "round" for event in read_ledger(self.ledger))
        except InputError:  # damaged: it may have been
            return True

    def copies_told(self, say: Say) -> AbstractContextManager[None]:
        """Where the block is refused before the first round, says that a copy of the private text stays."""
        return copies_told(self.private, say, "corpus", "evaluation", "tokens", unless=lambda: self.played)

    def own(self) -> None:
        """Takes the run over, and makes this node's copy what the storage holds of its course."""
        self.storage.take_over()
        charged = self.storage.restore(self.ledger)
        self.storage.get(self.result, self.statement, since=charged)  # those that others charged after are outdated
        self.storage.get(self.config, self.rounds)

    def close(self) -> None:
        """Takes the run over for good, and publishes what it charged even if it never ended."""
        self.own()
        self.storage.publish(self.config, self.ledger, self.rounds)

    def fetch(self) -> None:
        """Makes this node's copy what a worker opens."""
        words, corpora = (self.drawn, self.vocabulary), (self.private / "corpus", self.private / "evaluation")
        self.storage.get(
            self.config, self.used, self.setup, self.text, self.key, *words, self.sentence_weight, *corpora
        )
        if self.setup.exists():  # corpora and a public model may be those of the sweep
            setup, start = self.load_setup(), load_config(self.used).model.warm_start
            shared = [self.root / setup[name] for name in ("corpus", "evaluation") if setup[name]]
            shared += [Path(start).parent] if start else []
            self.storage.get(*(path for path in shared if not path.is_relative_to(self.root)))


@dataclass(frozen=True)
class Prepared:
    """What every worker opens: memory-mapped corpora and tokens, the vocabulary and the plan."""

    config: RunConfig
    used: RunConfig
    """The same settings, to open files by: see ``for_use``."""
    plan: Plan
    corpus: Corpus
    tokens: TokenStore
    sentence_weight: np.ndarray
    evaluation: TokenStore | None
    evaluation_size: TextSize | None
    vocabulary: Vocabulary

    @classmethod
    def open(cls, run: RunDir) -> Prepared:
        config, setup = run.load_config(), run.load_setup()
        if setup.get("vocabulary") not in (None, _checksums(run.vocabulary)):  # None: of an older version
            raise InputError("vocabulary", str(run.vocabulary), "has changed since the run began: put it back")
        vocabulary = Vocabulary.load(run.vocabulary)
        corpus = _unchanged(run, setup, "corpus", config.corpus.categories)
        tokens, evaluation = run.root / setup["tokens"], setup["evaluation"]
        return cls(
            config=config,
            used=load_config(run.used),
            plan=planned(config, setup),
            corpus=corpus,
            tokens=_encode(tokens, corpus, vocabulary, config),
            sentence_weight=_load_weights(run, corpus.num_sentences, setup["sentence_weight"]),
            evaluation=None
            if evaluation is None
            else _encode(tokens, _unchanged(run, setup, "evaluation"), vocabulary, config),
            evaluation_size=None if evaluation is None else TextSize(**setup["evaluation_size"]),
            vocabulary=vocabulary,
        )


def prepare_run(
    config: RunConfig,
    out: Path | str | Storage,
    *,
    resume: bool,
    tokens: Path | None = None,
    text: Path | None = None,
    part_of: str | None = None,
    public_source: bool = False,
    say: Say = lambda message: None,
) -> RunDir:
    """Makes ``out`` a run directory that workers can open, and takes it over.

    ``tokens``: an owner-only folder of tokenised text that several runs share; by default the run has its own.
    ``text``: which text it must be of, as ``prepare_corpora`` wrote it down for several runs.
    ``part_of``: as in ``host.train``; the ledger's first line keeps it, so that no copy of the run can be without it.
    ``public_source``: ``corpus.source`` is public text itself, which other public text may share.
    Raises: InputError if ``out`` holds a run and ``resume`` is not asked for, or holds a run of another config, or one of
      several that ``part_of`` does not name.
    """
    named = config.corpus.evaluation
    storage, config, used = open_storage(out), with_absolute_paths(config), for_use(config)
    run = RunDir(storage.root, storage)
    with run.copies_told(say):
        _set_up(run, config, used, named, resume, tokens, text, part_of, public_source, say)
    if not run.result.exists():  # what a worker does first, and takes long of where that is large
        say(f"trying the network on made-up sentences of up to {config.model.max_length} tokens (model.max_length)")
    return run


@contextmanager
def copies_told(folder: Path, say: Say, *names: str, unless: Callable[[], bool]) -> Iterator[None]:
    """Where the block is refused, says that ``folder`` holds a copy of private text.

    ``names``: of the copies in ``folder``. ``unless``: whether something was trained on them by then.
    """
    try:
        yield
    except InputError:
        if any((folder / name).exists() for name in names) and not unless():
            say(f"refused; {folder} holds a copy of the private text for another start: delete it if there is none")
        raise


def _set_up(
    run: RunDir,
    config: RunConfig,
    used: RunConfig,
    named: SourceConfig | None,
    resume: bool,
    tokens: Path | None,
    text: Path | None,
    part_of: str | None,
    public_source: bool,
    say: Say,
) -> None:
    storage = run.storage
    if resume and not storage.begun():
        raise InputError("--out", str(run.root), "holds no run to resume: check the name, or drop --resume")
    check_start(used)
    storage.clear()
    with run.driving() if run.private.is_dir() else nullcontext():  # not beneath one who did not see our lock beside it
        settle_run(run)
    storage.get(run.used, run.config, run.setup)
    storage.restore(run.ledger)
    _refuse_part(run, part_of)
    plan = None
    if not run.setup.exists():
        check_run(config, say)
        for caution in cautions(config):
            say(f"caution: {caution}")
        if config.privacy.noise != "published":  # whose noise follows the number of users
            say("solving the noise multiplier")
            plan = Plan.of(config)
    _claim(run, config, resume)
    run.own()
    run.fetch()
    copies = ((used.corpus.source, run.private / "corpus"), (used.corpus.evaluation, run.private / "evaluation"))
    stale = [folder for source, folder in copies if source is not None and outdated(source, folder)]
    if stale and unused(run):
        _clear(run)
    elif any(_made_of(folder).exists() for folder in stale):  # else it is an older version's, or another node's
        say("caution: the text has changed since this run's copy of it was made: it goes on with the copy")
    make_folder(run.root)
    make_folder(run.private, private=True)
    for path, written in ((run.used, used), (run.config, config)):  # in this order: see ``_claim``
        with replacing(path, private=path == run.used) as new:
            dump_config(written, new)
    storage.put(run.used, run.config)
    if not run.ledger.exists() and any(path.exists() for path in (run.setup, *run.outcomes)):
        remedy = "is gone, and what it pays for may not be: put the run's own back, or start in another folder"
        raise InputError("ledger", str(run.ledger), remedy)
    if run.setup.exists():
        with run.driving():  # a line that a killed start's worker is still writing is not a torn one
            ledger = Ledger.open(run.ledger, config_digest=ledger_digest(run, config))
        setup = run.load_setup()
        planned(config, setup).check_header(ledger.header, run.setup)
        if (setup["evaluation"] is None) != (named is None):
            raise InputError(run.setup.name, str(run.setup), f"is damaged (evaluation): {_MADE_ANEW}")
        for name in ("corpus", "evaluation"):
            if setup[name] is not None:
                _unchanged(run, setup, name)
        return
    say("reading the corpus")
    charged = not unused(run)
    with within("corpus.source"):
        folder = run.private / "corpus"
        corpus_path = storage.adopt(prepared_source(used.corpus.source, folder, fixed=charged), folder)
    corpus = open_corpus(corpus_path, config.corpus.categories)
    guarded = config.privacy.noise == "calibrated" and not public_source
    if guarded:
        check_warm_start(corpus, used.model.warm_start)
    evaluation = evaluation_path = compared = None
    if used.corpus.evaluation is not None and named is not None:
        with within("corpus.evaluation"):
            folder = run.private / "evaluation"
            found = prepared_source(used.corpus.evaluation, folder, protected=False, fixed=charged)
            evaluation_path = storage.adopt(found, folder)
        evaluation = open_corpus(evaluation_path)
        compared = check_evaluation(corpus, evaluation, named)
    if text is not None:
        keep_text(text, corpus, evaluation, fixed=True)
    keep_text(run.text, corpus, evaluation, fixed=charged)
    storage.put(run.text)
    bounded = apply_bounds(corpus, config.bounds, config.corpus.declared_num_users)
    _tell_what_counts(config, corpus, bounded, say)
    with replacing(run.sentence_weight, private=True) as new, new.open("wb") as file:
        np.save(file, bounded.sentence_weight, allow_pickle=False)
    plan = plan or Plan.of(config, corpus)
    if run.ledger.exists():
        ledger = Ledger.open(run.ledger, config_digest=ledger_digest(run, config))
    else:
        # Never older than the ledger: a sample drawn before must not be drawn again uncharged.
        write_atomically(run.key, secrets.token_hex(32).encode(), private=True)
        storage.put(run.key)
        header = plan.header() | {"config_digest": ledger_digest(run, config)}
        header |= {"part_of": part_of} if part_of else {}
        ledger = Ledger.create(run.ledger, {"run": secrets.token_hex(8), **header})
        storage.append(run.ledger)
    if not run.vocabulary.exists():
        say("building the vocabulary")
        if config.words.kind == "noisy-threshold" and not config.model.warm_start:
            _release_words(run, used, corpus, bounded.sentence_weight, ledger)
        else:
            read = Sketch()
            vocabulary = make_vocabulary(used, read)
            if guarded:
                field, sources = public_text(config)
                check_public(corpus, read.hashes, field, [source.path or source.format for source in sources])
            with replacing(run.vocabulary) as new:
                vocabulary.save(new)
        storage.put(run.vocabulary)
    if (run.vocabulary / _NO_WORDS).exists():
        remedy = (
            "no word passed the threshold, and asking was charged: in another folder take less noise, a larger "
            "vocabulary.threshold_delta or public-words, and add that run's epsilon to this one's"
        )
        raise InputError("vocabulary.noise_multiplier", config.vocabulary.noise_multiplier, remedy)
    say("tokenising")
    vocabulary = Vocabulary.load(run.vocabulary)
    tokens = (tokens or run.tokens).resolve()
    cut = _encode(tokens, corpus, vocabulary, config).share_cut
    if cut >= 0.0005:
        length = f"model.max_length = {config.model.max_length}"
        say(f"{cut:.1%} of the tokens lie beyond {length} and are not used (a private figure: read off the text)")
    size = None
    if evaluation is not None:
        _encode(tokens, evaluation, vocabulary, config)
        size = text_size(
            (text for _, texts in evaluation.texts() for text in texts), vocabulary, config.model.max_length
        )
        size.warn(say)
    write_json(
        run.setup,
        {
            "corpus": _within(run, corpus_path),
            "corpus_digest": corpus.digest,
            "evaluation": None if evaluation_path is None else _within(run, evaluation_path),
            "evaluation_digest": None if evaluation is None else evaluation.digest,
            "evaluation_size": None if size is None else dataclasses.asdict(size),
            "compared": None if compared is None else dataclasses.asdict(compared),
            "tokens": _within(run, tokens),
            "vocabulary": _checksums(run.vocabulary),
            "sentence_weight": checksum(run.sentence_weight),
            "mechanism": None if plan.mechanism is None else plan.mechanism.to_dict(),
            "detectors": corpus.detectors,
            "categories": corpus.categories,
            "dropped_share": float(bounded.dropped_share),
        },
        private=True,
    )
    storage.put(run.sentence_weight, run.setup)


def keep_text(path: Path, corpus: Corpus, evaluation: Corpus | None, *, fixed: bool) -> None:
    """Writes down in ``path`` which text is trained and scored on; if that is ``fixed``, refuses another one.

    Raises: InputError.
    """
    digests = {"corpus": corpus.digest, "evaluation": evaluation and evaluation.digest}
    if not fixed:
        write_json(path, digests, private=True)
        return
    remedy = "put it back, or train in another folder"
    known = read_json(path, {"corpus": string(), "evaluation": string(nothing=True)}, remedy)
    for field, name, found in (("source", "corpus", corpus), ("evaluation", "evaluation", evaluation)):
        if known[name] != digests[name]:
            where = None if found is None else found.path
            copied = where is not None and where.resolve().parent == path.resolve().parent
            remedy = "has changed since training on it began: put it back" + (f", and delete {where}" if copied else "")
            raise InputError(f"corpus.{field}", where and str(where), remedy)


def _release_words(run: RunDir, config: RunConfig, corpus: Corpus, sentence_weight: np.ndarray, ledger: Ledger) -> None:
    """Makes ``run.vocabulary`` of the private text. It is drawn and kept in ``private/`` before it is charged, so that a
    start after a kill releases what was charged, and charges nothing again."""
    charged = any(event["kind"] == "vocabulary" for event in ledger.events)
    if not (charged and run.drawn.exists()):
        vocabulary, event = draw_vocabulary(config, corpus, sentence_weight)
        with replacing(run.drawn, private=True) as new:
            vocabulary.save(new)
            (new / TRAINED_HERE).touch()
            if vocabulary.size <= len(SPECIAL):
                (new / _NO_WORDS).touch()
        run.storage.put(run.drawn)
        ledger.append("vocabulary", **event)
        run.storage.append(run.ledger)
    with replacing(run.vocabulary) as new:
        new.mkdir()
        for file in run.drawn.iterdir():
            shutil.copyfile(file, new / file.name)  # without its mode


def planned(config: RunConfig, setup: Mapping[str, Any]) -> Plan:
    """The plan of a run that was set up."""
    mechanism = setup["mechanism"]
    return Plan(config, None if mechanism is None else RoundMechanism.from_dict(mechanism))


def _unchanged(run: RunDir, setup: dict[str, Any], name: str, categories: Sequence[str] = ()) -> Corpus:
    """The corpus that the run was set up with. Raises: InputError if it is another: its bounds were never looked at."""
    corpus = open_corpus(run.root / setup[name], categories)
    if corpus.digest != setup[f"{name}_digest"]:
        key = {"corpus": "corpus.source", "evaluation": "corpus.evaluation"}[name]
        raise InputError(key, setup[name], "has changed since the run began: put it back")
    return corpus


def _checksums(folder: Path) -> dict[str, str]:
    """Of the files of a folder, by name, but for marks of its storage."""
    return {path.name: checksum(path) for path in sorted(folder.iterdir()) if path.is_file() and path.name[0] != "."}


def _within(run: RunDir, path: Path) -> str:
    """Relative where it lies in the run directory, which may be elsewhere on another machine."""
    return str(path.relative_to(run.root) if path.is_relative_to(run.root) else path)


def _refuse_part(run: RunDir, part_of: str | None) -> None:
    """Refuses a run that is one of several to all but those: what they say of its price would not know what it charges."""
    part = statement.part_of(read_ledger(run.ledger)) if run.ledger.exists() else None
    if part not in (None, part_of):
        what, command = ("variant", "compare") if part == "comparison" else ("run", "sweep")
        remedy = f"which would not know of more rounds: go on with the {part} (uedp-ray {command} … --resume)"
        raise InputError("--out", run.storage.address(run.root), f"is one {what} of a {part}, {remedy}")


def _claim(run: RunDir, config: RunConfig, resume: bool) -> None:
    """Refuses a folder that holds anything but the run that is asked for."""
    if run.root.exists() and not run.root.is_dir():
        raise InputError("--out", str(run.root), "is a file: name a folder")
    if run.config.exists() and unused(run):
        if not run.used.exists():  # a user's own file of that name
            raise InputError("--out", str(run.root), _NO_RUN)
        if run.load_config().digest() == config.digest():
            if not run.ledger.exists():
                return
        elif run.storage.url is None:  # there, what another start put stays
            _clear(run)  # what failed to start may be mended and tried again
    if run.config.exists():
        if not resume:
            raise InputError("--out", str(run.root), "holds a run already: add --resume, or name another folder")
        theirs = run.load_config().digest()
        if theirs != config.digest():
            raise InputError(
                "--resume",
                str(run.root),
                f"its config ({theirs[:12]}) is not this one ({config.digest()[:12]}): "
                f"resume with {run.config}, or name another folder",
            )
    elif run.root.exists() and holds_others(run.root, (run.private.name, INSIDE)):
        raise InputError("--out", str(run.root), _NO_RUN)
    elif run.private.is_dir() and holds_others(run.private, (run.used.name, run.lock.name, _CLEARED)):
        raise InputError("--out", str(run.root), _NO_RUN)  # a folder of the user's own of that name


def settle_run(run: RunDir) -> None:
    """Ends what a kill, or a lack of descriptors, interrupted among the files of a run that nobody is at work on."""
    settle(run.root, run.names)
    if run.config.exists():  # else it is not ours
        for folder in (run.private, run.checkpoint, run.tokens):
            settle(folder)


def unused(run: RunDir) -> bool:
    """Whether nothing was charged, and nothing is there that would have been. The caller holds the folder."""
    if any(path.exists() for path in run.outcomes):
        return False
    if run.ledger.exists():
        return all(event["kind"] == "open" for event in read_ledger(run.ledger))
    return not run.setup.exists()  # else the ledger was lost


def _clear(run: RunDir) -> None:
    """Forgets a run that is unused. Renamed first, the ledger before all and the configs last: a start after a kill in
    between finds it unused as before, and ``settle`` deletes what was set aside."""
    with run.driving():  # a worker of a killed process may be about to charge the first round
        if not unused(run):
            return
        aside = to_be_removed(run.private / _CLEARED)
        make_folder(aside, private=True)
        kept = {run.lock, aside, run.used}
        public = (run.ledger, run.progress, run.vocabulary)
        for path in (*public, *(each for each in run.private.iterdir() if each not in kept), run.config, run.used):
            if path.exists():
                os.replace(path, aside / path.name)
        settle(run.private)


def prepared_source(source: SourceConfig, folder: Path, *, protected: bool = True, fixed: bool = False) -> Path:
    """The prepared folder of a source: the one it names, or ``folder``, a copy, made if it is not there yet or outdated.

    ``fixed``: something was trained on the copy, which then stays, whatever became of the source.
    """
    if source.format == "prepared":
        open_corpus(source.path)
        return Path(source.path).resolve()
    if not (folder / "corpus.json").exists() or (not fixed and outdated(source, folder)):
        found, made_of = _files_of(source), _made_of(folder)
        made_of.unlink(missing_ok=True)
        prepare(source, folder, protected=protected)
        write_json(made_of, {"files": found}, private=True)
    return folder.resolve()


def outdated(source: SourceConfig, folder: Path) -> bool:
    """Whether files of a source changed since its copy in ``folder`` was made, as far as that is known. What cannot be
    looked at has not."""
    if source.format == "prepared" or not (folder / "corpus.json").exists():
        return False
    found, made_of = _files_of(source), _made_of(folder)
    if found is None:
        return False
    anew = "delete it, and the copy of the text beside it is made anew"
    return not made_of.exists() or read_json(made_of, {"files": anything}, anew)["files"] != found


def _made_of(copy: Path) -> Path:
    return copy.with_name(f"{copy.name}.source.json")


def _files_of(source: SourceConfig) -> list[list[str | int]] | None:
    """(Path, bytes, time of change) of every file of a source and of its entity lists; None if one cannot be looked at."""
    lists = [Path(spec.removeprefix("list:")) for spec in source.detector if spec.startswith("list:")]
    try:
        files = [*([] if source.format == "synthetic" else source_files(source)), *lists]
        return [[str(path), path.stat().st_size, path.stat().st_mtime_ns] for path in files]
    except (InputError, OSError):
        return None


def _encode(folder: str | Path, corpus: Corpus, vocabulary: Vocabulary, config: RunConfig) -> TokenStore:
    return encode_corpus(corpus, vocabulary, folder, max_length=config.model.max_length)


def _load_weights(run: RunDir, num_sentences: int, expected: str) -> np.ndarray:
    """(N,) weights of sentences, mapped. Raises: InputError if they are not that, or have another checksum."""
    try:
        check_regular(run.sentence_weight, _MADE_ANEW)
        weights = load_array(run.sentence_weight, mapped=True)
        good = has_checksum(run.sentence_weight, expected)
        good = good and weights.shape == (num_sentences,) and weights.dtype.kind == "f"
        good = good and bool(((weights >= 0) & (weights <= 1)).all())  # a weight above 1 would break the bound
    except ValueError:
        good = False
    except OSError as error:
        raise unusable(error, run.sentence_weight.name, run.sentence_weight, _MADE_ANEW) from None
    if not good:
        raise InputError(run.sentence_weight.name, str(run.sentence_weight), f"is damaged: {_MADE_ANEW}")
    return weights


def _tell_what_counts(config: RunConfig, corpus: Corpus, bounded: Bounded, say: Say) -> None:
    """What of the text is protected as hoped for, and used; read off the text, and so for its owner's eyes."""
    if not corpus.num_entities and config.privacy.protect != "user":
        what = "no sensitive entity was found in corpus.source, so each sentence is protected by itself and no name is"
        say(f"caution: {what}; check corpus.source.detector and corpus.categories (private: read off the text)")
    if bounded.dropped_share >= 0.05:
        parts = ", ".join(f"{name} {share:.0%}" for name, share in bounded.dropped_by.items() if share >= 0.005)
        say(f"{bounded.dropped_share:.0%} of the words do not count, by bounds: {parts} (private: read off the text)")


def ledger_digest(run: RunDir, config: RunConfig) -> str:
    """The config's digest under the run's secret key: the ledger is published, and the paths in a config may be guessed."""
    return hmac.new(_read_key(run), config.digest().encode(), "sha256").hexdigest()


def sampling_key(run: RunDir) -> bytes:
    """The secret of the Poisson draws; under a test seed a fixed one, so that runs can be compared.

    Raises: InputError if it is damaged: what it drew cannot be drawn again, so another one must not take its place.
    """
    seed = run.load_config().privacy.test_noise_seed
    return _read_key(run) if seed is None else f"test sampling key {seed:>16}".encode()


def _read_key(run: RunDir) -> bytes:
    remedy = "put the run's own back, or train in another folder"
    try:
        check_regular(run.key, remedy, most=64)
        key = run.key.read_bytes()
    except OSError as error:
        raise unusable(error, run.key.name, run.key, remedy) from None
    if not re.fullmatch(rb"[0-9a-f]{64}", key):
        raise InputError(run.key.name, str(run.key), f"is damaged: {remedy}")
    return bytes.fromhex(key.decode())

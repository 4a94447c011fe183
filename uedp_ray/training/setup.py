"""Sets up a run that workers can open, in a folder or at a URL, and takes it over.

    run = prepare_run(config, "runs/mine", resume=False)

Each step is skipped if its outcome exists, so that a run killed during its setup resumes like any other.
"""

from __future__ import annotations

import dataclasses
import os
import secrets
import shutil
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from uedp_ray.config import RunConfig, SourceConfig, dump_config
from uedp_ray.corpus.bounds import Bounded, bounded_once
from uedp_ray.corpus.overlap import Sketch
from uedp_ray.corpus.retention import tell_retention
from uedp_ray.corpus.store import Corpus, open_corpus
from uedp_ray.corpus.textsize import TextSize, tell_cut
from uedp_ray.corpus.transforms.base import Text
from uedp_ray.corpus.vocabulary import SPECIAL, Vocabulary
from uedp_ray.errors import InputError, within
from uedp_ray.plan import Plan, cautions_of
from uedp_ray.privacy.ledger import Ledger
from uedp_ray.privacy.sampling import BLOCK
from uedp_ray.reporting import SILENT, Reporter
from uedp_ray.storage.base import Storage
from uedp_ray.storage.files import check_regular, checksum, make_folder, replacing, write_json
from uedp_ray.storage.open import open_storage
from uedp_ray.tasks.metric import UNKNOWN
from uedp_ray.tasks.metrics import metric_of
from uedp_ray.training.checks import check_run
from uedp_ray.training.claim import HOLDS_RUN, NO_WORDS, VOCABULARY, check_kinds, claim, clear, refuse_part
from uedp_ray.training.guard import (
    TRAINED_HERE,
    Compared,
    check_evaluation,
    check_labels,
    check_owners,
    check_public,
    check_start,
    check_unseen,
    check_warm_start,
    owner_cautions,
)
from uedp_ray.training.paths import for_use, with_absolute_paths
from uedp_ray.training.prepared import (
    checksums,
    draw_key,
    encode,
    planned,
    put_tokens,
    regrouped,
    size_of,
    starts_of,
    trained_text,
    unchanged,
    within_run,
)
from uedp_ray.training.run_vocabulary import draw_vocabulary, make_vocabulary, public_text
from uedp_ray.training.rundir import MADE_ANEW, RunDir, ledger_digest, settle_run, unused
from uedp_ray.training.texts import EARLIER, keep_text, made_of, outdated, prepared_source


@dataclass(frozen=True)
class _Asked:
    """The arguments of a start."""

    config: RunConfig
    used: RunConfig
    """The same settings, for opening files: see ``for_use``."""
    named: SourceConfig | None
    """The evaluation text, as the run file names it."""
    tokens: Path | None
    text: Path | None
    part_of: str | None
    public_source: bool
    reporter: Reporter

    @property
    def guarded(self) -> bool:
        """Whether public text must not be the private text."""
        return self.config.guarded and not self.public_source


class _Text(NamedTuple):
    """The text to train and score on, where it is, and what a comparison of the two found."""

    corpus_path: Path
    corpus: Corpus
    trained: Corpus
    """As in ``regrouped``."""
    evaluation_path: Path | None
    evaluation: Corpus | None
    compared: Compared | None


def prepare_run(
    config: RunConfig,
    out: Path | str | Storage,
    *,
    resume: bool,
    tokens: Path | None = None,
    text: Path | None = None,
    part_of: str | None = None,
    public_source: bool = False,
    reporter: Reporter = SILENT,
) -> RunDir:
    """Makes ``out`` a run directory that workers can open, and takes it over.

    ``tokens``: an owner-only folder of tokenised text that several runs share; by default the run has its own.
    ``text``: the record of the text that it must be of, as ``prepare_corpora`` wrote it for several runs.
    ``part_of``: as in ``host.train``; kept in the ledger's first line, so that no copy of the run can lack it.
    ``public_source``: as in ``host.train``.
    Raises: InputError if ``out`` holds a run and ``resume`` is false, or holds a run of another config, or one of several
      that ``part_of`` does not name.
    """
    named = config.corpus.evaluation
    storage, config, used = open_storage(out), with_absolute_paths(config), for_use(config)
    asked = _Asked(config, used, named, tokens, text, part_of, public_source, reporter)
    run = RunDir(storage.root, storage)
    with run.copies_told(reporter):
        plan = _take_over(run, asked, resume)
        if run.setup.exists():
            _open_again(run, asked)
        else:
            _set_up(run, asked, plan)
    if not run.result.exists():  # a worker's first step, slow for long sentences
        reporter.say(
            f"testing the network on made-up sentences of up to {config.model.max_length} tokens (model.max_length)"
        )
    return run


_UNTRAINED = (
    "pretrain.text is given, and model.warm_start is not: training starts from random parameters, and most of what public "
    "text could teach has to be paid for. Run `uedp-ray pretrain` first, and name its model/ as model.warm_start"
)


def _take_over(run: RunDir, asked: _Asked, resume: bool) -> Plan | None:
    """Takes the folder over with everything in it; returns the plan, if it could be solved without the text."""
    storage, config, used, reporter = run.storage, asked.config, asked.used, asked.reporter
    if resume and not storage.exists():
        raise InputError("--out", run.address, "holds no run to resume: check the name, or drop --resume")
    if storage.is_copy and storage.exists() and not resume:  # before this node's copy goes: its worker may run here
        raise InputError("--out", run.address, HOLDS_RUN)
    check_start(used)
    check_kinds(run)
    storage.clear()
    with run.driving() if run.private.is_dir() else nullcontext():  # another process may have missed our lock
        settle_run(run)
    storage.get(run.used, run.config, run.setup)
    storage.restore(run.ledger)
    refuse_part(run, asked.part_of)
    plan = None
    if not run.setup.exists():
        if run.of_earlier_version and not unused(run):
            raise InputError("--out", run.address, f"lacks private/setup.json: {EARLIER}")
        check_run(config, reporter)
        if config.privacy.noise != "published":  # there the noise depends on the number of users
            reporter.say("solving the noise multiplier")
            plan = Plan.of(config)
        for caution in cautions_of(config):
            reporter.say(f"caution: {caution}")
        if config.pretrain.text and not config.model.warm_start and config.model.architecture != "pretrained":
            reporter.say(f"caution: {_UNTRAINED}")
    claim(run, config, resume)
    run.own()
    run.fetch()
    copies = ((used.corpus.source, run.corpus), (used.corpus.evaluation, run.evaluation))
    stale = [folder for source, folder in copies if source is not None and outdated(source, folder)]
    if unused(run) and (stale or _is_of_other_text(run)):
        clear(run)
    elif any(made_of(folder).exists() for folder in stale):  # otherwise an older version's, or another node's
        reporter.say(
            "caution: the text has changed since this run's copy of it was made: the run continues with the copy"
        )
    make_folder(run.root)
    noised = config.privacy.noise == "calibrated" and config.privacy.test_noise_seed is None
    if not noised or config.corpus.regroup != "users":  # hides no person: as private as the text
        storage.seclude()
    make_folder(run.private, private=True)
    for path, written in ((run.used, used), (run.config, config)):  # in this order: see ``claim``
        with replacing(path, private=path == run.used) as new:
            dump_config(written, new)
    storage.put(run.used, run.config)
    if not run.ledger.exists() and (run.paid or run.setup.exists()):
        remedy = "is missing, and what it pays for may not be: restore the run's copy, or start in another folder"
        raise InputError("ledger", str(run.ledger), remedy)
    return plan


def _is_of_other_text(run: RunDir) -> bool:
    """Whether a prepared corpus that the run was set up with was prepared again since."""
    if not run.setup.exists():
        return False
    setup = run.load_setup()
    try:
        for name in ("corpus", "evaluation"):
            if setup[name] is not None:
                unchanged(run, setup, name)
    except InputError:
        return True
    return False


def _open_again(run: RunDir, asked: _Asked) -> None:
    """Checks a run that was set up against its ledger and its text."""
    with run.driving():  # wait for a killed start's worker, whose unfinished line is not a torn one
        ledger = run.open_ledger(asked.config)
    setup = run.load_setup()
    planned(asked.config, setup).check_header(ledger.header, run.setup)
    if (setup["evaluation"] is None) != (asked.named is None):
        raise InputError(run.setup.name, str(run.setup), f"is damaged (evaluation): {run.anew(MADE_ANEW)}")
    corpus = unchanged(run, setup, "corpus")
    if asked.guarded:
        check_warm_start(corpus, asked.used.model.warm_start)
    if setup["evaluation"] is not None:
        unchanged(run, setup, "evaluation")
    tokens = within_run(run, (asked.tokens or run.tokens).resolve())
    if setup["tokens"] != tokens:  # the sweep was moved, or somebody edited it: it is made ours, and written to
        write_json(run.setup, setup | {"tokens": tokens, "stores": []}, private=True)
        run.storage.put(run.setup)


def _set_up(run: RunDir, asked: _Asked, plan: Plan | None) -> None:
    config, reporter, storage = asked.config, asked.reporter, run.storage
    reporter.say("reading the corpus")
    if not run.ledger.exists():
        draw_key(run)
    text = _prepare_text(run, asked)
    bounded = bounded_once(text.trained, config.bounds, config.corpus.declared_num_users)
    _tell_what_counts(config, text.corpus, bounded, reporter)
    with replacing(run.sentence_weight, private=True) as new, new.open("wb") as file:
        np.save(file, bounded.sentence_weight, allow_pickle=False)
    plan = plan or Plan.of(config, text.trained)
    ledger = _open_ledger(run, asked, plan)
    if not run.vocabulary.exists() or unused(run):  # of a start that ended here: the text may have changed since
        reporter.say("building the vocabulary")
        _make_vocabulary(run, asked, text, bounded, ledger, reporter)
        storage.put(run.vocabulary)
    if (run.vocabulary / NO_WORDS).exists():
        remedy = (
            "no word passed the threshold, and the attempt was charged: in another folder use less noise, a larger "
            "vocabulary.threshold_delta or public-words, and add that run's epsilon to this one's"
        )
        raise InputError("vocabulary.noise_multiplier", config.vocabulary.noise_multiplier, remedy)
    reporter.say("tokenising")
    tokens = (asked.tokens or run.tokens).resolve()
    size, retained = _tokenise(run, config, text, tokens, reporter)
    write_json(
        run.setup,
        {
            "corpus": within_run(run, text.corpus_path),
            "corpus_digest": text.corpus.digest,
            "evaluation": None if text.evaluation_path is None else within_run(run, text.evaluation_path),
            "evaluation_digest": None if text.evaluation is None else text.evaluation.digest,
            "evaluation_size": None if size is None else dataclasses.asdict(size),
            "compared": None if text.compared is None else dataclasses.asdict(text.compared),
            "tokens": within_run(run, tokens),
            "stores": put_tokens(run, tokens),
            "vocabulary": checksums(run.vocabulary),
            "starts": starts_of(asked.used),
            "public_source": asked.public_source,
            "draw_block": BLOCK,
            "sentence_weight": checksum(run.sentence_weight),
            "mechanism": None if plan.mechanism is None else plan.mechanism.to_dict(),
            "numbered": text.corpus.numbered,
            "detectors": text.corpus.detectors,
            "categories": text.corpus.categories,
            "dropped_share": float(bounded.dropped_share),
            "retention": retained,
        },
        private=True,
    )
    storage.put(run.sentence_weight, run.setup)


def _prepare_text(run: RunDir, asked: _Asked) -> _Text:
    """Prepares and guards the text to train and score on, and records which text it is."""
    config, used, storage = asked.config, asked.used, run.storage
    charged = not unused(run)
    with within("corpus.source"):
        folder = run.corpus
        corpus_path = storage.adopt(prepared_source(used.corpus.source, folder, fixed=charged), folder)
    corpus = open_corpus(corpus_path, config.corpus.categories)
    if asked.guarded:
        check_owners(corpus)
        check_warm_start(corpus, used.model.warm_start)
    alone = asked.text is None  # else ``prepare_corpora`` has checked the labels, once for all runs
    if alone:
        check_labels(corpus, config.task, "corpus.source")
    evaluation = evaluation_path = compared = None
    if used.corpus.evaluation is not None and asked.named is not None:
        with within("corpus.evaluation"):
            found = prepared_source(used.corpus.evaluation, run.evaluation, protected=False, fixed=charged)
            evaluation_path = storage.adopt(found, run.evaluation)
        evaluation = open_corpus(evaluation_path)
        if alone:
            check_labels(evaluation, config.task, "corpus.evaluation")
        compared = check_evaluation(corpus, evaluation, asked.named)
        if not asked.public_source:  # what only ranks settings may be familiar
            check_unseen(evaluation.text_sketch, asked.named, used.model.warm_start)
    if asked.text is not None:
        keep_text(asked.text, corpus, evaluation, fixed=True)
    keep_text(run.text, corpus, evaluation, fixed=charged)
    storage.put(run.text)
    return _Text(corpus_path, corpus, regrouped(run, config, corpus), evaluation_path, evaluation, compared)


def _open_ledger(run: RunDir, asked: _Asked, plan: Plan) -> Ledger:
    if run.ledger.exists():
        return run.open_ledger(asked.config)
    header = plan.header() | {"config_digest": ledger_digest(run, asked.config)}
    header |= {"part_of": asked.part_of} if asked.part_of else {}
    ledger = Ledger.create(run.ledger, {"run": secrets.token_hex(8), **header})
    run.storage.append(run.ledger)
    return ledger


def _make_vocabulary(
    run: RunDir, asked: _Asked, text: _Text, bounded: Bounded, ledger: Ledger, reporter: Reporter
) -> None:
    config, used = asked.config, asked.used
    if config.words.kind == "noisy-threshold" and not config.model.warm_start:
        _release_words(run, used, trained_text(run, config, text.trained), bounded.sentence_weight, ledger)
        return
    read = Sketch()
    vocabulary = make_vocabulary(used, read, reporter=reporter)
    if asked.guarded:
        field, sources = public_text(config)
        check_public(text.corpus.text_sketch, read.hashes, field, [source.where for source in sources])
    with replacing(run.vocabulary, made=VOCABULARY) as new:
        vocabulary.save(new)


def _tokenise(
    run: RunDir, config: RunConfig, text: _Text, tokens: Path, reporter: Reporter
) -> tuple[TextSize | None, dict[str, Any]]:
    """Writes the tokens of both texts; returns the size of the evaluation text, if there is one, and the retention."""
    vocabulary = Vocabulary.load(run.vocabulary)
    trained = trained_text(run, config, text.trained)
    cut = encode(tokens, trained, vocabulary, config).share_cut
    retained = tell_retention(trained, reporter)
    tell_cut(cut, config.model.max_length, reporter, "private: read off the text")
    if text.evaluation is None:
        return None, retained
    size = size_of(text.evaluation, encode(tokens, text.evaluation, vocabulary, config), vocabulary, config)
    size.warn(reporter)
    if unknown := metric_of(config).caution({UNKNOWN.name: size.unk_share}):
        reporter.say(f"caution: {unknown}")
    return size, retained


def _release_words(run: RunDir, config: RunConfig, text: Text, sentence_weight: np.ndarray, ledger: Ledger) -> None:
    """Makes ``run.vocabulary`` from the private text. It is drawn and kept in ``private/`` before it is charged, so that a
    start after a kill releases what was charged, and does not charge again. The event names the draw it pays for: a draw
    that replaced a lost one, and was never charged, is not released on the event of the other."""
    paid = {event.get("draw") for event in ledger.events if event["kind"] == "vocabulary"}
    if _draw_of(run.drawn) not in paid:
        draw = secrets.token_hex(8)
        vocabulary, event = draw_vocabulary(config, text, sentence_weight)
        with replacing(run.drawn, private=True, made=VOCABULARY) as new:
            vocabulary.save(new)
            (new / TRAINED_HERE).write_text(draw)
            if vocabulary.size <= len(SPECIAL):
                (new / NO_WORDS).touch()
        run.storage.put(run.drawn)
        event = ledger.append("vocabulary", **event, draw=draw)
        run.storage.append(run.ledger)
        run.know(event["seq"] + 1)
    with replacing(run.vocabulary, made=VOCABULARY) as new:
        new.mkdir()
        for file in run.drawn.iterdir():
            shutil.copyfile(file, new / file.name)  # without its mode


def _draw_of(folder: Path) -> str:
    """What names the draw of a vocabulary of private text; empty if there is none."""
    mark = folder / TRAINED_HERE
    if not os.path.lexists(mark):
        return ""
    check_regular(mark, "restore the run's copy", most=64)
    return mark.read_text(errors="replace")


def _tell_what_counts(config: RunConfig, corpus: Corpus, bounded: Bounded, reporter: Reporter) -> None:
    """Reports how much of the text is protected as intended, and used; private, since computed from the text."""
    for caution in owner_cautions(corpus, config.unit, config.corpus.categories):
        reporter.say(f"caution: {caution}")
    if lost := bounded.told(config.bounds):
        reporter.say(lost)

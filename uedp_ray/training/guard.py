"""Refuses text that must not be the private text: evaluation and public text, and text that rule ``public`` searches on.

    >>> from pathlib import Path
    >>> from tempfile import TemporaryDirectory
    >>> from uedp_ray.config import SourceConfig
    >>> from uedp_ray.corpus.prepare import prepare
    >>> from uedp_ray.corpus.store import open_corpus
    >>> from uedp_ray.errors import TextError
    >>> from uedp_ray.training.guard import check_evaluation, check_public
    >>> folder = TemporaryDirectory()
    >>> sources = [SourceConfig(format="synthetic", num_users=9, part=part) for part in ("private", "held_out")]
    >>> figures = [prepare(source, Path(folder.name, source.part)) for source in sources]
    >>> private, evaluation = (open_corpus(Path(folder.name, source.part)) for source in sources)
    >>> check_evaluation(private, evaluation, sources[1])    # what could be compared: these texts name no users
    Compared(users=False)
    >>> try:
    ...     check_public(private.text_sketch, private.text_sketch, "pretrain.text", "public.txt")
    ... except TextError as error:
    ...     print(error.remedy.partition(":")[0])
    shares 100% of its running text with corpus.source, where less than 10% may match
    >>> folder.cleanup()

A perplexity is an exact function of the evaluation text, and a vocabulary and a warm start are functions of public text:
none of them is charged. Nor may a model be scored on text that it was pre-trained on: the figure would not hold for other
text. ``corpus.overlap`` defines what is compared, and how much may be shared. These checks catch mistakes and prove nothing:
a paraphrase passes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np

from uedp_ray.config import RunConfig, SourceConfig, TaskConfig
from uedp_ray.config.choices import PLACED
from uedp_ray.corpus.detectors.regex import nameless
from uedp_ray.corpus.overlap import MOST_SHARED, Hashes, Sketch, shared_text, shared_users
from uedp_ray.corpus.readers import whole_users
from uedp_ray.corpus.store import Corpus
from uedp_ray.errors import InputError, TextError, one_line
from uedp_ray.storage.files import check_regular, load_array
from uedp_ray.training.paths import for_use
from uedp_ray.training.run_vocabulary import public_sentences, public_text
from uedp_ray.units import RECORD

TEXT_SKETCH = "text_sketch.npy"
"""The file beside a pre-trained model with the sketch of the public text that it and its vocabulary were made from."""

TRAINED_HERE = "trained_on_private_text"
"""The mark beside a model that a run trained, and beside words taken from private text, wherever they are copied."""

_ALIKE = "ids that differ only in case or white space are one user's"


@dataclass(frozen=True)
class Compared:
    """The parts of the private and another text that could be compared. Public: it follows from formats.

    Whether there was enough running text to compare does not, so it is not reported.
    """

    users: bool


def check_owners(private: Corpus) -> None:
    """Refuses private text unless its format states that users are whole: blanking one may move the sentences of the others,
    as it does where users were made of a text.

    Raises: InputError naming ``corpus.source``.
    """
    found = private.source_format
    if found and not whole_users(found):
        why = f"its format ({one_line(found, 40)}) does not state that its users are whole, so they may hide nobody"
        remedy = "name text with users of its own; users made of a text are for search.public"
        raise InputError("corpus.source", str(private.path), f"{why}: {remedy}")
    if not found:
        raise InputError("corpus.source", str(private.path), "does not say what format it was of: prepare it again")


def check_evaluation(private: Corpus, evaluation: Corpus, source: SourceConfig) -> Compared:
    """Refuses evaluation on protected text, as far as it can be recognised; ``source`` is the text as the user named it.

    Raises: TextError naming ``corpus.evaluation``.
    """
    return check_other(private, evaluation, "corpus.evaluation", source, name_other_users(source))


def name_other_users(evaluation: SourceConfig) -> str:
    """Returns the remedy for evaluation text that a model is trained on."""
    skip = ""
    if evaluation.format == "pseudo-users":
        skip = ", or cut both texts alike, and skip the users of corpus.source (skip_users)"
    elif evaluation.format in PLACED:
        skip = ", or rows that corpus.source leaves out (skip_rows, num_rows of both)"
    return f"no text can evaluate a model trained on it: name text of other users{skip}"


def check_other(private: Corpus, other: Corpus, field: str, source: SourceConfig, remedy: str) -> Compared:
    """Refuses ``other`` if it shares users, or much text, with the private corpus.

    Raises: TextError naming ``field`` and its ``source``.
    """
    if other.digest == private.digest:
        raise TextError(field, source.where, f"it is the text of corpus.source: {remedy}")
    return check_apart(private, other, field, source, remedy)


class Read(Protocol):
    """What is compared of a text: a prepared one, or one that was read for that."""

    @property
    def text_sketch(self) -> Hashes: ...

    @property
    def user_names(self) -> Hashes: ...


def check_apart(private: Read, other: Read, field: str, source: SourceConfig, remedy: str) -> Compared:
    """``check_other`` of texts that may not be prepared."""
    named = source.where
    users = shared_users(private.user_names, other.user_names)
    if users:
        raise TextError(field, named, f"some of its users are in corpus.source ({_ALIKE}): {remedy}")
    _refuse_shared_text(private.text_sketch, other.text_sketch, field, named, remedy)
    return Compared(users is not None)


def check_public(private: Hashes, sketch: Hashes, field: str, named: Sequence[str] | str) -> None:
    """Refuses public text that shares much with the private text. Raises: TextError naming ``field``."""
    _refuse_shared_text(private, sketch, field, named, "its epsilon would not be counted, name public text")


def check_public_text(config: RunConfig, private: Hashes | None, evaluation: Hashes | None) -> None:
    """Compares all public text that pre-training and the vocabulary would read with the private and the evaluation text,
    each if it is given: before a model is made of it, in one more reading.

    Raises: TextError naming the setting of the public or the evaluation text.
    """
    if private is None and evaluation is None:
        return
    used = for_use(config)
    texts = {"pretrain.text": used.pretrain.text}
    if not used.model.warm_start:  # which brings its own words
        texts |= [public_text(used)]
    for field, sources in texts.items():
        sketch = Sketch()
        for _ in public_sentences(sources, used.pretrain.max_words, sketch, field=field):
            pass
        if private is not None:
            check_public(private, sketch.hashes, field, [source.where for source in sources])
        if evaluation is not None and config.corpus.evaluation is not None and field == "pretrain.text":
            _refuse_seen(evaluation, config.corpus.evaluation, sketch.hashes, field)


def check_labels(corpus: Corpus, task: TaskConfig, field: str) -> None:
    """Raises InputError unless each sentence has what the task predicts, and one shows it. ``field``: the setting that names
    the text."""
    from uedp_ray.tasks.base import task_of  # here, as it loads torch, which whoever only looks at folders is spared

    kind = task_of(task.kind)
    if kind.labelled:
        labels, shown = kind.named(task.labels), False
        for _, sentences in corpus.sentences(every=True):
            said = [each for each in sentences if each.text.strip()]
            if not all(kind.fits(labels, each) for each in said):
                kind.refuse(task, field)
            shown = shown or any(kind.shows(labels, each) for each in said)
        if not shown:
            kind.refuse(task, field)


def check_unseen(evaluation: Hashes, source: SourceConfig, model: str) -> None:
    """Refuses to score on text that the model was pre-trained on, if that is on record as for ``check_warm_start``.

    Raises: TextError naming ``corpus.evaluation``.
    """
    sketch = public_sketch(model)
    if sketch is not None:
        _refuse_seen(evaluation, source, sketch, "the public text of model.warm_start")


def _refuse_seen(evaluation: Hashes, source: SourceConfig, sketch: Hashes, seen: str) -> None:
    remedy = "no text can evaluate a model trained on it, name other text"
    _refuse_shared_text(sketch, evaluation, "corpus.evaluation", source.where, remedy, seen)


def _refuse_shared_text(
    one: Hashes, other: Hashes, field: str, named: object, remedy: str, whose: str = "corpus.source"
) -> None:
    share = shared_text(one, other)
    if share is not None and share >= MOST_SHARED:
        found = f"shares {share:.0%} of its running text with {whose}, where less than {MOST_SHARED:.0%} may match"
        raise TextError(
            field,
            named,
            f"{found}: {remedy}, and remove what a template wrote in both (docs/pitfalls.md shows how to find it)",
        )


def check_start(config: RunConfig) -> None:
    """Refuses to start from the model or the words of another run, whose epsilon would not be counted.

    Raises: InputError naming ``model.warm_start``, ``model.path`` or ``vocabulary.path``.
    """
    model = config.model
    named = {"model.warm_start": model.warm_start, "model.path": model.path, "vocabulary.path": config.vocabulary.path}
    for key, start in named.items():
        if start and Path(start).exists():
            folder = Path(start) if Path(start).is_dir() else Path(start).parent
            if (folder.parent / "ledger.jsonl").exists() or (folder / TRAINED_HERE).exists():
                remedy = (
                    "comes from a run on private text, whose epsilon this run would not count: start from public text"
                )
                raise InputError(key, start, remedy)


def check_warm_start(private: Corpus, model: str) -> None:
    """Refuses a model pre-trained on private text. A model that ``pretrain`` did not write has no record of its text.

    Raises: InputError naming ``model.warm_start``.
    """
    sketch = public_sketch(model)
    if sketch is not None:
        check_public(private.text_sketch, sketch, "model.warm_start", model)


def public_sketch(model: str) -> Hashes | None:
    """The sketch of the text that a model was pre-trained on; None without a record of it.

    Raises: InputError naming ``model.warm_start``.
    """
    path = Path(model) / TEXT_SKETCH
    if not model or not path.exists():
        return None
    try:
        check_regular(path, "pre-train it again")
        sketch: Hashes = load_array(path)
        if sketch.ndim != 1 or sketch.dtype != np.uint64 or not sketch.size:
            raise ValueError
    except (OSError, ValueError):
        raise InputError("model.warm_start", model, f"its {TEXT_SKETCH} is damaged: pre-train it again") from None
    return sketch


def owner_cautions(corpus: Corpus, unit: str, chosen: Sequence[str]) -> list[str]:
    """What to tell the owner of a private text about it (``unfound`` and the rest). Private: computed from the text."""
    found = unfound(corpus, unit, chosen), "" if unit == "entity" else respelled(corpus), as_records(corpus, unit)
    return [f"{caution} (private: read off the text)" for caution in found if caution]


def as_records(corpus: Corpus, unit: str) -> str:
    """What to tell the owner of a text of which one record is hidden: how many a user has, and so is not."""
    if unit != RECORD:
        return ""
    most = int(np.diff(corpus.user_offsets).max())
    return f"one record is hidden, and no person: the user with the most sentences has {most:,}, each a record"


def respelled(corpus: Corpus) -> str:
    """What to tell the owner of a text with users whose ids differ only in case or white space; empty without any."""
    more = corpus.num_users - len(corpus.user_names) if len(corpus.user_names) else 0
    if more <= 0:
        return ""
    return (
        f"{more:,} user id{'s differ' * (more > 1) or ' differs'} from another only in case or white space: if they are of "
        "one person, epsilon is of a part of what that person wrote; write each person's id in one way"
    )


def unfound(corpus: Corpus, unit: str, chosen: Sequence[str]) -> str:
    """What to tell the owner of a text in which no entity, or no name, was found; empty for any other, and where entities
    are not protected, or only ``chosen`` categories are meant to be."""
    if unit in ("user", RECORD):
        return ""
    if not corpus.num_entities:
        return (
            "no sensitive entity was found in corpus.source, so each sentence is protected by itself and no name is; check "
            "corpus.source.detector and corpus.categories"
        )
    return "" if chosen else nameless(corpus.statistics["mentions"]) or ""

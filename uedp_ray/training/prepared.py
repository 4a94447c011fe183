"""The parts of a set-up run that every worker opens: memory-mapped corpora and tokens, the vocabulary and the plan."""

from __future__ import annotations

import operator
import os
import re
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from uedp_ray.config import RunConfig, load_config
from uedp_ray.config.files import files_of
from uedp_ray.corpus.regroup import Regrouped
from uedp_ray.corpus.store import Corpus, open_corpus
from uedp_ray.corpus.textsize import TextSize, text_size
from uedp_ray.corpus.tokens import STORE, TokenStore, encode_corpus
from uedp_ray.corpus.transforms.base import Text, Transformed, transform_of
from uedp_ray.corpus.vocabulary import MOST_BYTES, Vocabulary
from uedp_ray.errors import InputError
from uedp_ray.models.pretrained import pretrained_config
from uedp_ray.plan import Plan
from uedp_ray.privacy.mechanisms.poisson import RoundMechanism
from uedp_ray.storage.files import (
    check_regular,
    checksum,
    has_checksum,
    load_array,
    unusable,
    write_atomically,
)
from uedp_ray.tasks.base import Task, task_of
from uedp_ray.training.rundir import MADE_ANEW, RunDir, sampling_key

_OF_A_MODEL = (".json", ".safetensors", ".bin", ".npy")
"""Files of a model folder that are read, or that record which text the model has seen."""


@dataclass(frozen=True)
class Prepared:
    """The run that every worker opens: memory-mapped corpora and tokens, the vocabulary and the plan."""

    config: RunConfig
    used: RunConfig
    """The same settings, for opening files: see ``for_use``."""
    plan: Plan
    corpus: Corpus
    tokens: TokenStore
    sentence_weight: np.ndarray
    evaluation: TokenStore | None
    evaluation_size: TextSize | None
    transformed: Transformed | None
    """The evaluation text as transformed, if it is to be scored so, too; its tokens are in the folder of ``tokens``."""
    vocabulary: Vocabulary
    public_source: bool
    """As in ``host.train``."""
    draw_block: int | None
    """Of the run's sampler; None in runs of earlier versions."""

    @classmethod
    def open(cls, run: RunDir) -> Prepared:
        config, setup = run.load_config(), run.load_setup()
        if setup.get("vocabulary") not in (None, checksums(run.vocabulary)):  # None: of an older version
            raise InputError("vocabulary", str(run.vocabulary), "has changed since the run began: put it back")
        used = load_config(run.used)
        _check_starts(run, used, setup.get("starts") or {})
        vocabulary = Vocabulary.load(run.vocabulary)
        corpus = regrouped(run, config, unchanged(run, setup, "corpus", config.corpus.categories))
        tokens = run.root / setup["tokens"]
        run.storage.get(*(tokens / name for name in _stores_of(setup)))
        evaluation = None if setup["evaluation"] is None else unchanged(run, setup, "evaluation")
        return cls(
            config=config,
            used=used,
            plan=planned(config, setup),
            corpus=corpus,
            tokens=encode(tokens, trained_text(run, config, corpus), vocabulary, config),
            sentence_weight=_load_weights(run, corpus.num_sentences, setup["sentence_weight"]),
            evaluation=None if evaluation is None else encode(tokens, evaluation, vocabulary, config),
            evaluation_size=None if evaluation is None else TextSize(**setup["evaluation_size"]),
            transformed=None if evaluation is None else _to_score(run, config, evaluation, corpus),
            vocabulary=vocabulary,
            public_source=setup.get("public_source") is True,
            draw_block=block if type(block := setup.get("draw_block")) is int and block > 0 else None,
        )

    def to_score(self) -> list[tuple[list[np.ndarray], TextSize]]:
        """(sentences as ``Task.annotated``, size) of each text to score on: the evaluation text as it is and, if asked for,
        as transformed; none without evaluation text."""
        if self.evaluation is None or self.evaluation_size is None:
            return []
        texts = [(self.evaluation, self.evaluation_size)]
        if self.transformed is not None:
            tokens = encode(self.tokens.path.parent, self.transformed, self.vocabulary, self.config)
            texts.append((tokens, size_of(self.transformed, tokens, self.vocabulary, self.config)))
        return [([store.sentence(i) for i in range(store.num_sentences)], size) for store, size in texts]


def size_of(text: Text, tokens: TokenStore, vocabulary: Vocabulary, config: RunConfig) -> TextSize:
    """The size of a text to score on, and of what the task predicts of it (``tokens``)."""
    said = (one for _, found in text.texts() for one in found)
    size = text_size(said, vocabulary, config.model.max_length)
    return make_task(config, vocabulary).sized(size, map(tokens.sentence, range(tokens.num_sentences)))


def planned(config: RunConfig, setup: Mapping[str, Any]) -> Plan:
    """The plan of a run that was set up."""
    mechanism = setup["mechanism"]
    return Plan(config, None if mechanism is None else RoundMechanism.from_dict(mechanism))


def unchanged(run: RunDir, setup: dict[str, Any], name: str, categories: Sequence[str] = ()) -> Corpus:
    """The corpus that the run was set up with. Raises: InputError if it changed: its bounds were never checked."""
    corpus = open_corpus(run.root / setup[name], categories)
    if corpus.digest != setup.get(f"{name}_digest"):
        key = {"corpus": "corpus.source", "evaluation": "corpus.evaluation"}[name]
        raise InputError(key, setup[name], "has changed since the run began: put it back")
    return corpus


def starts_of(used: RunConfig) -> dict[str, dict[str, str]]:
    """The sources of the network and files of the transform, by setting: checksums of files, or the commit of a model on the
    hub.

    Frozen weights are loaded again at every start, but whether the model is public was checked only once.
    """
    model = used.model
    named = {
        "model.warm_start": model.warm_start,
        "model.path": model.path if model.architecture == "pretrained" else "",
    }
    found = {}
    for setting, path in ((setting, Path(path)) for setting, path in named.items() if path):
        if path.is_dir():
            files = [file for file in sorted(path.iterdir()) if file.suffix in _OF_A_MODEL and file.is_file()]
            found[setting] = {file.name: checksum(file) for file in files}
        else:
            found[setting] = {"commit": str(pretrained_config(model)._commit_hash)}
    for setting, file in files_of(used.corpus.transform, "corpus.transform.").items():
        found[setting] = {Path(file).name: checksum(Path(file)) if os.path.isfile(file) else "missing"}
    return found


def _check_starts(run: RunDir, used: RunConfig, known: Any) -> None:
    """Raises InputError if the network or the transform would be made of other files than the run was set up with."""
    found = starts_of(used) if known else {}
    try:
        named = {setting: operator.attrgetter(setting)(used) for setting in dict(known)}
    except (AttributeError, TypeError, ValueError):
        raise InputError(run.setup.name, str(run.setup), "is damaged (starts): restore the run's copy") from None
    for setting, path in named.items():
        if found.get(setting) != known[setting]:
            raise InputError(setting, path, "has changed since the run began: put it back, or train in another folder")


def draw_key(run: RunDir) -> None:
    """Gives a run that has no ledger yet its secret key, which so is never older: a sample that was drawn before must not be
    drawn again uncharged."""
    write_atomically(run.key, secrets.token_hex(32).encode(), private=True)
    run.storage.put(run.key)


def regrouped(run: RunDir, config: RunConfig, corpus: Corpus) -> Corpus:
    """The private text with the users that are drawn, bounded and accounted: its own, or of ``corpus.regroup``."""
    rule = config.corpus.regroup
    return corpus if rule == "users" else Regrouped(corpus, rule, sampling_key(run, config))


def trained_text(run: RunDir, config: RunConfig, corpus: Corpus) -> Text:
    """The private text (``regrouped``) as it is trained on: transformed, if it is to be."""
    transform = transform_of(config.corpus.transform)
    return corpus if transform is None else Transformed(corpus, transform, sampling_key(run, config))


def _to_score(run: RunDir, config: RunConfig, evaluation: Corpus, corpus: Corpus) -> Transformed | None:
    """The evaluation text, transformed as the private text is, if that is to be scored; it shares no draw with it."""
    transform = transform_of(config.corpus.transform)
    if transform is None or not config.corpus.transform.apply_to_evaluation:
        return None
    return Transformed(evaluation, transform, sampling_key(run, config) + b"evaluation", like=corpus)


def encode(folder: str | Path, corpus: Text, vocabulary: Vocabulary, config: RunConfig) -> TokenStore:
    """The tokens of a text, with what the task knows beside them."""
    task = make_task(config, vocabulary)
    longest = config.model.max_length
    read = task if task.labelled else None
    return encode_corpus(corpus, vocabulary, folder, max_length=longest, task=read, kind=config.task.kind)


def put_tokens(run: RunDir, tokens: Path) -> list[str]:
    """Stores a run's own tokens for workers on other nodes, who would have to make them anew; returns their names."""
    stores = sorted(tokens.iterdir()) if run.storage.is_copy and tokens == run.tokens.resolve() else []
    stores = [path for path in stores if re.fullmatch(STORE, path.name)]
    run.storage.put(*stores)
    return [path.name for path in stores]


def _stores_of(setup: Mapping[str, Any]) -> list[str]:
    """The names that ``put_tokens`` returned; none of what is no such name: ``get`` deletes what is not stored. A version
    that stored no tokens kept no names."""
    names = setup.get("stores")
    return [name for name in names if re.fullmatch(STORE, str(name))] if isinstance(names, list) else []


def within_run(run: RunDir, path: Path) -> str:
    """The path, relative if it is in the run directory, which may be elsewhere on another machine."""
    return str(path.relative_to(run.root) if path.is_relative_to(run.root) else path)


def make_task(config: RunConfig, vocabulary: Vocabulary) -> Task:
    return task_of(config.task.kind).of(vocabulary, config.model.max_length, config.task)


def _load_weights(run: RunDir, num_sentences: int, expected: str) -> np.ndarray:
    """(N,) sentence weights, memory-mapped. Raises: InputError if they are damaged or have another checksum."""
    try:
        check_regular(run.sentence_weight, MADE_ANEW)
        weights = load_array(run.sentence_weight, mapped=True)
        good = has_checksum(run.sentence_weight, expected)
        good = good and weights.shape == (num_sentences,) and weights.dtype.kind == "f"
        good = good and bool(((weights >= 0) & (weights <= 1)).all())  # a weight above 1 would break the bound
    except ValueError:
        good = False
    except OSError as error:
        raise unusable(error, run.sentence_weight.name, run.sentence_weight, MADE_ANEW) from None
    if not good:
        raise InputError(run.sentence_weight.name, str(run.sentence_weight), f"is damaged: {MADE_ANEW}")
    return weights


def checksums(folder: Path) -> dict[str, str]:
    """Checksums of a folder's files by name, except its storage's marks. Raises: InputError for a file that is not ours."""
    if not folder.is_dir():
        raise InputError(folder.name, str(folder), "is missing: restore the run's copy, or train in another folder")
    files = [path for path in sorted(folder.iterdir()) if path.name[0] != "."]
    for path in files:
        check_regular(path, "restore the run's copy", most=MOST_BYTES)
    return {path.name: checksum(path) for path in files}

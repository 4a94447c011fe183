"""What a trained model says of texts: next words, labels, tags or entities, by its task.

>>> from pathlib import Path
>>> from tempfile import TemporaryDirectory
>>> import torch
>>> from uedp_ray.config import VocabularyConfig
>>> from uedp_ray.corpus.vocabulary import build_vocabulary
>>> from uedp_ray.models.awd_lstm import AWDLSTM, AWDLSTMConfig
>>> from uedp_ray.models.saved import save_model
>>> from uedp_ray.training.predict import Predictor, predict
>>> vocabulary = build_vocabulary(VocabularyConfig(), public_text=lambda: iter(["the patient left ."]))
>>> model = AWDLSTM(AWDLSTMConfig(vocab_size=vocabulary.size, embedding_size=4, num_layers=1))
>>> embedding = torch.nn.init.zeros_(model.embedding.weight)    # the text does not matter
>>> with torch.no_grad():
...     model.decoder.bias[vocabulary.encode_batch(["left"])[0]] = 3.0    # exp(3) times as likely as any other
>>> folder = TemporaryDirectory()
>>> save_model(model, folder.name)
>>> vocabulary.save(folder.name)
>>> predict(Path(folder.name), ["the patient"], top=1)
[{'text': 'the patient', 'next': [{'token': 'left', 'probability': 0.769988}]}]
>>> predictor = Predictor(Path(folder.name))    # loaded once, for many batches
>>> [len(predictor.predict(texts, top=2)) for texts in (["the"], ["the", "patient"])]
[1, 2]
>>> folder.cleanup()

Of a run it opens ``config.yaml`` and ``model/``, and never ``private/``. Answers are as private as the texts.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor, nn

from uedp_ray.config import RunConfig, TaskConfig, load_config
from uedp_ray.corpus.vocabulary import Vocabulary
from uedp_ray.errors import InputError
from uedp_ray.fields import record, string
from uedp_ray.models.heads import saved_kind
from uedp_ray.models.saved import load_model, longest_input
from uedp_ray.reporting import SILENT, Reporter
from uedp_ray.storage.files import read_json
from uedp_ray.tasks.base import Answer, Head, Task, forward_logits, task_of
from uedp_ray.training.evaluate import batches
from uedp_ray.training.placement import best_device
from uedp_ray.training.prepared import make_task

_OWN = "restore the model's own files"
_TOKENS_AT_ONCE = 2048
"""Positions of a padded batch: with the logits of 50,000 words each, 400 MB."""


def predict(run: Path, texts: Sequence[str], *, top: int = 5, reporter: Reporter = SILENT) -> list[dict[str, Any]]:
    """``Predictor.predict`` of a model that is loaded for it, on a GPU if there is one."""
    return Predictor(run).to(best_device()).predict(texts, top=top, reporter=reporter)


@dataclass(frozen=True)
class Reading:
    """How much of some texts a model reads. Private, as the texts are."""

    texts: int = 0
    cut: int = 0
    """Texts that are too long."""
    longest: int = 0
    """Tokens that are read of each of these."""
    left_out: str = ""
    """Which part of them is not."""
    tokens: int = 0
    unknown: int = 0
    """Of these, how many the vocabulary does not have."""

    def __add__(self, other: Reading) -> Reading:
        return Reading(
            self.texts + other.texts,
            self.cut + other.cut,
            max(self.longest, other.longest),
            self.left_out or other.left_out,
            self.tokens + other.tokens,
            self.unknown + other.unknown,
        )

    def tell(self, reporter: Reporter) -> None:
        """One line if any text is too long, and one if words are unknown."""
        if self.cut:
            which = "the text is" if self.texts == 1 else f"{self.cut} of {self.texts} texts are"
            remedy = f"the {self.left_out} is left out"
            reporter.say(f"note: {which} longer than the {self.longest} tokens that the model reads: {remedy}")
        if self.unknown:
            reporter.say(
                f"note: {self.unknown} of {self.tokens} words are not in the vocabulary, and are read as <unk>"
            )


class Predictor:
    """A trained model, on the CPU until ``to``. It can be pickled, and used by several threads at once."""

    def __init__(self, run: Path):
        """Loads it.

        Args:
          run: a run directory, an export, or the ``model`` folder in one.

        Raises: InputError if there is no model, or it was trained for a task that answers nothing.
        """
        folder = run / "model" if (run / "model").is_dir() else run
        if not (folder / "config.json").exists():
            remedy = (
                _of_sweep(run) if (run / "sweep.yaml").exists() else "holds no model: name a finished run directory"
            )
            raise InputError("RUN", str(run), remedy)
        self._run, self._device = run, torch.device("cpu")
        config = _config_of(folder)
        kind, settings = (config.task.kind, config.task) if config else ("next_word", TaskConfig())
        if task_of(kind).answer is None:
            raise InputError("RUN", str(run), f"was trained for task.kind {kind}, which answers nothing")
        self._model = load_model(folder)
        if not _ends_in(self._model, task_of(kind).head(settings)):
            remedy = f"its model is not of task.kind {kind}: name the run directory that was trained for the task"
            raise InputError("RUN", str(run), remedy)
        try:
            self.vocabulary = Vocabulary.load(folder)
        except InputError as error:
            reason = "" if error.field == "vocabulary.path" else f" ({error.field} {error.remedy.partition(':')[0]})"
            raise InputError("RUN", str(run), f"no tokenizer can be read from {folder}{reason}: {_OWN}") from error
        if config and task_of(kind).labelled:
            self._task: Task = make_task(config, self.vocabulary)
        else:  # to continue a text, as much is read as the network can, also if training read less of each sentence
            self._task = task_of(kind).of(self.vocabulary, longest_input(self._model) or sys.maxsize, settings)

    @property
    def answer(self) -> Answer:
        """What it says of each text."""
        assert self._task.answer is not None  # refused at the start
        return self._task.answer

    def to(self, device: torch.device) -> Self:
        self._model, self._device = self._model.to(device), device
        return self

    def predict(self, texts: Sequence[str], *, top: int = 5, reporter: Reporter = SILENT) -> list[dict[str, Any]]:
        """What the model says of each text, in their order: ``{"text": …}`` and, by its task,

        - ``next_word``: ``next``, the ``top`` most likely next tokens with their probabilities, best first;
        - ``classify``: ``labels``, the same of labels;
        - ``tag_words``: ``tags``, the most likely tag of each word;
        - ``tag_entities``: ``entities``, each with its category and its place in characters (end exclusive).

        ``reporter`` gets one line if any text is too long (of one to continue the end is read, of any other the beginning),
        and one if words are unknown.
        Raises: InputError for a text that is not UTF-8, or ``top`` below 1.
        """
        check_top(top)
        encoded = self._encoded(texts)
        self._reading(encoded).tell(reporter)
        known = [self._task.unlabelled(self._task.read(ids)) for ids in encoded]
        answered: list[dict[str, Any]] = [{} for _ in texts]
        for places in batches([self._task.length(each) for each in known], _TOKENS_AT_ONCE):
            batch = self._task.collate([known[place] for place in places]).to(self._device)
            asked = [texts[place] for place in places]
            for place, said in zip(
                places, self._task.answers(self._model, batch, asked, self.vocabulary, top=top), strict=True
            ):
                answered[place] = {"text": texts[place], self.answer.key: said}
        return answered

    def reading(self, texts: Sequence[str]) -> Reading:
        """How much of the texts is read. Raises: as ``predict``."""
        return self._reading(self._encoded(texts))

    @torch.no_grad()
    def next_log_probs(self, contexts: np.ndarray, tokens: np.ndarray | None = None) -> Tensor:
        """The logarithms (natural) of the probabilities of the token that comes next, float64 on the CPU.

        Args:
          contexts: (N, L) tokens that follow a sentence's begin token; L is less than the network's longest input.
          tokens: (V',) those that are asked for; None: all V of the model.

        Shapes: (N, L) -> (N, V'). For a model of ``next_word`` only.
        """
        found = []
        for start in range(0, len(contexts), size := max(1, _TOKENS_AT_ONCE // (contexts.shape[1] + 1))):
            batch = self._task.collate(list(contexts[start : start + size])).to(self._device)
            scores = batch.last(forward_logits(self._model, batch)).double().log_softmax(-1)
            found.append((scores if tokens is None else scores[:, tokens]).cpu())
        return torch.cat(found)

    def _encoded(self, texts: Sequence[str]) -> list[np.ndarray]:
        for text in texts:
            try:
                text.encode()
            except UnicodeEncodeError:  # command-line bytes that are not UTF-8 become lone surrogates
                remedy = "is not UTF-8: check the encoding of the terminal or script"
                raise InputError("text", ascii(text), remedy) from None
        encoded = self.vocabulary.encode_batch(texts)
        known, own = _num_inputs(self._model), self.vocabulary
        if max(own.bos_id, own.eos_id, own.pad_id, *(int(ids.max(initial=0)) for ids in encoded)) >= known:
            remedy = f"its tokenizer has other tokens than the {known} of its model: {_OWN}"
            raise InputError("RUN", str(self._run), remedy)
        return encoded

    def _reading(self, encoded: Sequence[np.ndarray]) -> Reading:
        cut = [len(read) for ids in encoded if len(read := self._task.read(ids)) < len(ids)]
        unknown = self.vocabulary.unk_id
        return Reading(
            len(encoded),
            len(cut),
            max(cut, default=0),
            self._task.left_out,
            sum(map(len, encoded)),
            0 if unknown is None else sum(int((ids == unknown).sum()) for ids in encoded),
        )


def check_top(top: int) -> None:
    if top < 1:
        raise InputError("top", top, "ask for 1 or more")


def _num_inputs(model: nn.Module) -> int:
    """How many tokens a network knows."""
    embedding: Any = model.get_input_embeddings()  # type: ignore[operator]
    return int(embedding.weight.shape[0])


def _ends_in(model: nn.Module, head: Head) -> bool:
    hub: Any = getattr(model, "config", None)
    if hub is None:  # a network of our own
        return bool(model.config_dict().get("num_labels", 0) == head.num_labels)  # type: ignore[operator]
    return saved_kind(hub) == head.kind and (head.predicts_words or hub.num_labels == head.num_labels)


def _config_of(folder: Path) -> RunConfig | None:
    """The settings beside a model in a run or an export; None of a model by itself, or if they cannot be read."""
    try:
        return load_config(folder.parent / "config.yaml") if folder.name == "model" else None
    except InputError:
        return None


def _of_sweep(sweep: Path) -> str:
    """The remedy for a sweep's folder: the run to name instead."""
    try:
        fields = {"best": record({"run_dir": string(r"trials/[\w-]{1,64}|winner")})}
        best = read_json(sweep / "result.json", fields, "")["best"]["run_dir"]
        return f"is a sweep: name its best run, {sweep / best}"
    except (OSError, ValueError, LookupError, TypeError):  # it has none yet
        return f"is a sweep: name one of its finished runs in {sweep / 'trials'}"

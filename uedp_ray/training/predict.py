"""The most likely next words after a text, from a trained model.

>>> from pathlib import Path
>>> from tempfile import TemporaryDirectory
>>> import torch
>>> from uedp_ray.config import VocabularyConfig
>>> from uedp_ray.corpus.vocabulary import build_vocabulary
>>> from uedp_ray.models.awd_lstm import AWDLSTM, AWDLSTMConfig
>>> from uedp_ray.models.saved import save_model
>>> from uedp_ray.training.predict import predict
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
>>> folder.cleanup()
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from uedp_ray.config import load_config
from uedp_ray.corpus.vocabulary import Vocabulary
from uedp_ray.errors import InputError
from uedp_ray.fields import record, string
from uedp_ray.models.saved import load_model, longest_input
from uedp_ray.reporting import SILENT, Reporter
from uedp_ray.storage.files import read_json
from uedp_ray.tasks.base import Batch, forward_logits

_OWN = "restore the model's own files"


def predict(run: Path, texts: list[str], *, top: int = 5, reporter: Reporter = SILENT) -> list[dict[str, Any]]:
    """Predicts the ``top`` next tokens of each text with their probabilities, best first.

    Args:
      run: a run directory, or the ``model`` folder in one.
      texts: the beginnings of sentences to continue. Of a long text the model sees the last words that fit.
      reporter: gets one warning if any text is too long, and one if words are unknown.

    Raises: InputError if there is no model.
    """
    folder = run / "model" if (run / "model").is_dir() else run
    if not (folder / "config.json").exists():
        remedy = _of_sweep(run) if (run / "sweep.yaml").exists() else "holds no model: name a finished run directory"
        raise InputError("RUN", str(run), remedy)
    if (kind := _task_of(run)) != "next_word":
        raise InputError("RUN", str(run), f"was trained for task.kind {kind}: predict answers next words only")
    for text in texts:
        try:
            text.encode()
        except UnicodeEncodeError:  # command-line bytes that are not UTF-8 become lone surrogates
            raise InputError(
                "--text", ascii(text), "is not UTF-8: check the encoding of the terminal or script"
            ) from None
    if top < 1:
        raise InputError("--top", top, "ask for 1 or more")
    model = load_model(folder)
    try:
        vocabulary = Vocabulary.load(folder)
    except InputError as error:
        reason = "" if error.field == "vocabulary.path" else f" ({error.field} {error.remedy.partition(':')[0]})"
        raise InputError("RUN", str(run), f"no tokenizer can be read from {folder}{reason}: {_OWN}") from error
    longest = longest_input(model)
    encoded = vocabulary.encode_batch(texts)
    known = model.get_output_embeddings().weight.shape[0]  # type: ignore[operator]
    if max(vocabulary.bos_id, *(int(ids.max(initial=0)) for ids in encoded)) >= known:
        remedy = f"its tokenizer has other tokens than the {known} of its model: {_OWN}"
        raise InputError("RUN", str(run), remedy)
    cut = 0 if longest is None else sum(len(ids) + 1 > longest for ids in encoded)
    if longest is not None and cut:
        which = "the text is" if len(texts) == 1 else f"{cut} of {len(texts)} texts are"
        reporter.say(
            f"note: {which} longer than the {longest - 1} tokens that the model reads: the beginning is left out"
        )
    unknown = sum(int((ids == vocabulary.unk_id).sum()) for ids in encoded) if vocabulary.unk_id is not None else 0
    if unknown:
        reporter.say(
            f"note: {unknown} of {sum(map(len, encoded))} words are not in the vocabulary, and are read as <unk>"
        )
    predictions = []
    for text, ids in zip(texts, encoded, strict=True):
        fitting = ids if longest is None else ids[max(0, len(ids) + 1 - longest) :]
        input_ids = torch.tensor([[vocabulary.bos_id, *fitting.tolist()]])
        with torch.no_grad():
            batch = Batch(input_ids, input_ids, torch.tensor([input_ids.shape[1]]))
            probabilities = forward_logits(model, batch)[0, -1].softmax(-1)
        best = probabilities.topk(min(top, probabilities.numel()))
        words = [_shown(vocabulary, int(i)) for i in best.indices]
        predictions.append(
            {
                "text": text,
                "next": [
                    {"token": word, "probability": round(float(p), 6)}
                    for word, p in zip(words, best.values, strict=True)
                ],
            }
        )
    return predictions


def _shown(vocabulary: Vocabulary, token: int) -> str:
    """A token as text. What SentencePiece begins a word with is a space; decoding a single token drops it."""
    piece = vocabulary.tokenizer.convert_ids_to_tokens(token)
    if piece is None:  # the model has more outputs than its tokenizer has tokens
        return f"(token {token})"
    return piece.replace("▁", " ") if piece.startswith("▁") else vocabulary.decode([token])


def _of_sweep(sweep: Path) -> str:
    """The remedy for a sweep's folder: the run to name instead."""
    try:
        fields = {"best": record({"run_dir": string(r"trials/[\w-]{1,64}|winner")})}
        best = read_json(sweep / "result.json", fields, "")["best"]["run_dir"]
        return f"is a sweep: name its best run, {sweep / best}"
    except (OSError, ValueError, LookupError, TypeError):  # it has none yet
        return f"is a sweep: name one of its finished runs in {sweep / 'trials'}"


def _task_of(run: Path) -> str:
    """The task of a run, or of an export; of a model by itself, or a config that cannot be read, next words."""
    try:
        return load_config(run / "config.yaml").task.kind
    except InputError:
        return "next_word"

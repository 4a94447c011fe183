"""The vocabulary of a run: from its warm start, from public text, or from the private corpus with noise, which is charged.

Example:

    >>> from pathlib import Path
    >>> from tempfile import TemporaryDirectory
    >>> from uedp_ray.config import RunConfig, from_dict
    >>> from uedp_ray.training.run_vocabulary import make_vocabulary
    >>> folder = TemporaryDirectory()
    >>> path = Path(folder.name, "public.txt")
    >>> size = path.write_text("they met in the park . they left the park .")
    >>> tree = {"corpus": {"declared_num_users": 100}, "privacy": {"noise_multiplier": 1.0}}
    >>> tree["vocabulary"] = {"min_count": 2, "public_text": [{"format": "text", "path": str(path)}]}
    >>> vocabulary = make_vocabulary(from_dict(RunConfig, tree))
    >>> vocabulary.tokenizer.convert_ids_to_tokens(vocabulary.encode_batch(["They met in the park"])[0])
    ['they', '<unk>', '<unk>', 'the', 'park']
    >>> folder.cleanup()
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from uedp_ray.calibration import vocabulary_holders
from uedp_ray.config import RunConfig, SourceConfig
from uedp_ray.corpus import readers
from uedp_ray.corpus.categories import KNOWN, LISTED, expand
from uedp_ray.corpus.overlap import Sketch
from uedp_ray.corpus.transforms.base import Text, transform_of
from uedp_ray.corpus.vocabulary import Vocabulary, build_vocabulary, vocabulary_event_fields
from uedp_ray.errors import InputError, within
from uedp_ray.reporting import SILENT, Reporter


def public_sentences(
    sources: tuple[SourceConfig, ...],
    max_words: int | None = None,
    sketch: Sketch | None = None,
    *,
    field: str = "pretrain.text",
) -> Iterator[str]:
    """Sentences of public text, in order, up to ``max_words`` words; what was read is added to ``sketch``.

    ``field``: the setting that names the text.
    """
    words = 0
    for number, source in enumerate(sources):
        with within(f"{field}[{number}]"):
            for sentence in readers.read(source):
                if sketch is not None:
                    sketch.add(sentence.user, sentence.text)
                yield sentence.text
                words += len(sentence.text.split())
                if max_words is not None and words >= max_words:
                    return


def written(config: RunConfig) -> tuple[str, ...]:
    """The words that the run's transform puts into texts, as far as the protected categories are known in public: those that
    the config names, or else all that have a name of ours."""
    named = config.corpus.categories or config.corpus.source.categories
    transform = transform_of(config.corpus.transform)
    return () if transform is None else transform.writes(expand(named, named) | {LISTED} if named else KNOWN)


def make_vocabulary(
    config: RunConfig,
    sketch: Sketch | None = None,
    *,
    sharing: Sequence[RunConfig] = (),
    reporter: Reporter = SILENT,
) -> Vocabulary:
    """A vocabulary that reads no private text: the warm start's if there is one, else as configured (``RunConfig.words``).

    What the transforms of ``config``, and of the configs that are to be ``sharing`` it, write is in a vocabulary that is
    made here. The public text that was read is added to ``sketch``; ``reporter`` is told if it gives fewer pieces of words
    than asked.
    Raises: InputError if it should come from the private text, or lacks what one of these transforms needs.
    """
    vocabulary = _made(config, sketch, sharing, reporter)
    for settings in dict.fromkeys(each.corpus.transform for each in (config, *sharing)):
        if (transform := transform_of(settings)) is not None:
            transform.check_vocabulary(vocabulary)
    return vocabulary


def _made(config: RunConfig, sketch: Sketch | None, sharing: Sequence[RunConfig], reporter: Reporter) -> Vocabulary:
    if config.model.warm_start:
        return warm_vocabulary(config.model.warm_start)
    settings = config.words
    if settings.kind == "tokenizer" and not config.vocabulary.path:
        return own_tokenizer(config.model.path)
    if settings.kind == "noisy-threshold":
        raise InputError("vocabulary.kind", settings.kind, "pre-training reads no private text: use public-subwords")
    field, text = public_text(config)
    vocabulary = build_vocabulary(
        settings,
        public_text=lambda: public_sentences(text, config.pretrain.max_words, sketch, field=field),
        added=sorted({word for each in (config, *sharing) for word in written(each)}),
    )
    if settings.kind == "public-subwords" and vocabulary.size < settings.max_size:
        size = f"vocabulary.max_size = {settings.max_size}"
        reporter.say(f"the vocabulary has {vocabulary.size} tokens, fewer than {size}: {field} holds no more")
    return vocabulary


def draw_vocabulary(config: RunConfig, text: Text, sentence_weight: np.ndarray) -> tuple[Vocabulary, dict[str, Any]]:
    """A noisy-threshold vocabulary of the private corpus, and its event, to be charged before the words leave ``private/``.

    It counts only sentences that no bound touched, so that no entity occurs with more than ``max_holders`` users.
    """
    from uedp_ray.privacy.noise import GaussianNoise  # here, as it loads torch: see ``guard.check_labels``

    settings = config.words
    max_holders = vocabulary_holders(config)
    noise = GaussianNoise(config.privacy.test_noise_seed)
    if config.privacy.test_noise_seed is None:
        noise.require_private()
    vocabulary = build_vocabulary(
        settings,
        private_texts=_untouched(text, sentence_weight),
        max_holders=max_holders,
        noise=lambda size, std: noise.sample(size, std=std, round_index=2**63).numpy(),
    )
    return vocabulary, vocabulary_event_fields(settings, max_holders)


def warm_vocabulary(folder: str) -> Vocabulary:
    """The tokenizer of a warm start. Raises: InputError if the folder holds no model with one."""
    path = Path(folder)
    try:
        if any(path.glob("*.safetensors")) and (path / "config.json").exists():  # never look a name up on the hub
            return Vocabulary.load(path)
    except InputError:
        pass
    remedy = "holds no model with its tokenizer: name the model folder that uedp-ray pretrain wrote"
    raise InputError("model.warm_start", folder, remedy)


def public_text(config: RunConfig) -> tuple[str, tuple[SourceConfig, ...]]:
    """The setting that names the text whose words are counted, and the text."""
    own = config.vocabulary.public_text
    return ("vocabulary.public_text", own) if own else ("pretrain.text", config.pretrain.text)


def own_tokenizer(model: str) -> Vocabulary:
    """The tokenizer that a pretrained model came with. Raises: InputError if there is none beside it."""
    try:
        return Vocabulary.load(model)
    except InputError:
        remedy = (
            "has no tokenizer beside it: copy its own there, or set vocabulary.path to it (vocabulary.kind: tokenizer)"
        )
        raise InputError("model.path", model, remedy) from None


def _untouched(text: Text, sentence_weight: np.ndarray) -> Iterator[list[str]]:
    """Each user's texts of full weight."""
    for user, texts in text.texts():
        first = int(text.user_offsets[user])
        yield [text for i, text in enumerate(texts) if sentence_weight[first + i] == 1.0]

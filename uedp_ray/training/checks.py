"""Checks that need no text: every command runs them first, so that a mistake costs seconds.

    >>> from uedp_ray.config import RunConfig, from_dict
    >>> from uedp_ray.training.checks import check_run, ignored
    >>> source, public = ({"format": "synthetic", "part": part} for part in ("private", "public"))
    >>> tree = {"corpus": {"declared_num_users": 300, "source": source}, "privacy": {"noise_multiplier": 1.0}}
    >>> tree |= {"vocabulary": {"public_text": [public]}, "training": {"server_momentum": 0.5, "device": "cpu"}}
    >>> config = from_dict(RunConfig, tree)
    >>> check_run(config)
    >>> list(ignored(config))
    ['training.server_momentum is ignored: training.server_optimizer is adam']
    >>> tree["corpus"]["source"] = {"format": "jsonl", "path": "none/notes.jsonl"}
    >>> check_run(from_dict(RunConfig, tree))    # the error names the setting and the remedy
    Traceback (most recent call last):
        ...
    uedp_ray.errors.InputError: corpus.source.path = 'none/notes.jsonl': no such file or folder

Nothing is written, and texts are only checked to exist and be readable. Inputs are public.
"""

from __future__ import annotations

import dataclasses
import math
import operator
import os
import tempfile
from collections.abc import Iterator
from typing import Any, get_args

import torch

from uedp_ray.config import (
    BoundsConfig,
    ModelConfig,
    PrivacyConfig,
    RunConfig,
    SourceConfig,
    TrainingConfig,
    TransformConfig,
    to_dict,
)
from uedp_ray.config.choices import PLACED, PROVED_TRANSFORMS, PROVED_WORD_MECHANISMS, LocalUpdateName
from uedp_ray.config.run import why_unused
from uedp_ray.corpus.transform_checks import check_transform
from uedp_ray.corpus.transforms.base import transform_of
from uedp_ray.corpus.vocabulary import Vocabulary
from uedp_ray.corpus.word_mechanisms import mechanism_class
from uedp_ray.errors import InputError, one_line
from uedp_ray.models.architecture import DROPOUTS, SHAPE, architecture
from uedp_ray.models.build import check_head, check_start_fits, check_targets, pretraining_head
from uedp_ray.models.pretrained import check_fits, pretrained_config, settings_of
from uedp_ray.models.saved import size_of
from uedp_ray.reporting import SILENT, Reporter
from uedp_ray.tasks.base import Head, task_of
from uedp_ray.tasks.tags import Tagging
from uedp_ray.training.guard import name_other_users
from uedp_ray.training.optimizers import OPTIMIZERS, kept_by
from uedp_ray.training.paths import for_use
from uedp_ray.training.placement import elsewhere
from uedp_ray.training.run_vocabulary import own_tokenizer, public_text, warm_vocabulary
from uedp_ray.training.sharding import check_aggregation
from uedp_ray.training.texts import check_source
from uedp_ray.updates.base import update_class
from uedp_ray.updates.shapes import ROWS_APART

_BYTES = 12
"""Least bytes per parameter in training: a float32 in the network, one in the flat vector of all, and one gradient."""


def check_run(config: RunConfig, reporter: Reporter = SILENT) -> None:
    """Raises InputError for any mistake in a private run that can be found without its text; reports ignored settings."""
    used = for_use(config)
    check_device(used)
    check_model(used)
    source, evaluation = used.corpus.source, used.corpus.evaluation
    check_source("corpus.source", source)
    if evaluation is not None:
        check_source("corpus.evaluation", evaluation)
        same = source.path and os.path.realpath(source.path) == os.path.realpath(evaluation.path)
        if same and not _other_users(source, evaluation):
            remedy = f"it is the text of corpus.source: {name_other_users(evaluation)}"
            raise InputError("corpus.evaluation", config.corpus.evaluation.path, remedy)  # type: ignore[union-attr]
    check_transform(used.corpus.transform)
    kept_by(config.training)
    check_aggregation(config.training)
    _check_words_kept(config)
    for note in (*ignored(config), *_slow(used)):
        reporter.say(f"note: {note}")


def _check_words_kept(config: RunConfig) -> None:
    transform, task = transform_of(config.corpus.transform), task_of(config.task.kind)
    if transform is not None and issubclass(task, Tagging) and (setting := transform.moves_words):
        remedy = (
            f"does not keep each word of a sentence in its place, which {config.task.kind} tags: choose another, or "
            "another task"
        )
        raise InputError(f"corpus.transform.{setting}", getattr(config.corpus.transform, setting), remedy)


def _other_users(source: SourceConfig, other: SourceConfig) -> bool:
    """Whether two sources of one file take different users of it: those that it is cut into, or that rows make."""
    if source.format == other.format and source.format in PLACED:
        return _apart(
            *((each.skip_rows, math.inf if each.num_rows is None else each.num_rows) for each in (source, other))
        )
    taken = ("path", "num_users", "skip_users", "detector", "categories")
    cut_alike = dataclasses.replace(other, **{name: getattr(source, name) for name in taken}) == source
    if source.format != "pseudo-users" or not cut_alike:
        return False
    return _apart(*((each.skip_users, each.num_users) for each in (source, other)))


def _apart(one: tuple[int, float], other: tuple[int, float]) -> bool:
    """Of two stretches, each by what is before it and how long it is."""
    return sum(one) <= other[0] or sum(other) <= one[0]


def check_comparable(config: RunConfig, reporter: Reporter = SILENT) -> None:
    """``check_run`` for runs that are compared on evaluation text."""
    if config.corpus.evaluation is None:
        raise InputError("corpus.evaluation", None, "name text to compare models on")
    check_run(config, reporter)


def check_pretraining(config: RunConfig) -> None:
    """Raises InputError for any mistake in pre-training that can be found without its text."""
    used = for_use(config)
    if not used.pretrain.text:
        raise InputError("pretrain.text", [], "name public text to train on")
    if used.words.kind == "noisy-threshold":
        raise InputError("vocabulary.kind", used.words.kind, "pre-training reads no private text: use public-subwords")
    check_device(used)
    check_model(used, head=pretraining_head(used.model))
    for number, source in enumerate(used.pretrain.text):
        check_source(f"pretrain.text[{number}]", source)


def check_unshared(base: RunConfig, variant: RunConfig) -> None:
    """Raises InputError for a setting of a variant that would have no effect, since the base's is prepared once for all."""
    shared = ["name", "task", "corpus.source", "corpus.evaluation", "pretrain"]
    if variant.model.warm_start == base.model.warm_start:  # another start has its own vocabulary and shape
        shared += ["vocabulary", *(f"model.{name}" for name in ("architecture", "path", *SHAPE))]
        positions = "max_length" in architecture(base.model.architecture).shape
        if positions and (base.model.warm_start or base.pretrain.text):
            shared.append("model.max_length")  # its positions are weights of the model that both start from
    for key in shared:
        given, value = operator.attrgetter(key)(variant), operator.attrgetter(key)(base)
        if given != value:
            remedy = (
                "is shared with the base, which is prepared and pre-trained once: set it in base, or run it separately"
            )
            raise InputError(f"set.{key}", to_dict(given) if dataclasses.is_dataclass(given) else given, remedy)


def check_device(config: RunConfig) -> None:
    """Raises InputError if a GPU is requested, and everything is to run on this machine, which has none."""
    if config.training.device == "cuda" and not elsewhere() and not torch.cuda.is_available():
        raise InputError("training.device", "cuda", "no GPU is visible: use auto or cpu")


def check_size(model: ModelConfig) -> None:
    """Raises InputError if one part of the network alone exceeds this machine's memory, and everything is to run here."""
    if elsewhere():
        return
    for name, (part, numbers) in architecture(model.architecture).largest(model).items():
        if over := _over_memory(part, numbers * _BYTES):
            raise InputError(f"model.{name}", getattr(model, name), f"{over}: lower it")


def _check_pretrained_size(model: ModelConfig, hub: Any) -> None:
    """The same of a pretrained network, which is read as a whole. ``hub``: its settings."""
    held = 2 if model.base_dtype == "bf16" else 4
    numbers, _ = (0, 0) if elsewhere() else size_of(hub)
    if over := _over_memory("its parameters", numbers * (_BYTES if model.trainable == "full" else held)):
        smaller = ", or set model.base_dtype: bf16" if model.trainable == "lora" and held == 4 else ""
        raise InputError("model.path", model.path, f"{over}: choose a smaller model{smaller}")


def _over_memory(part: str, num_bytes: int) -> str:
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    told = f"{part} would take {num_bytes / 2**30:,.0f} GiB in training, of this machine's {memory / 2**30:,.0f}"
    return told if num_bytes > memory else ""


def check_model(config: RunConfig, *, start: bool = True, head: Head | None = None) -> None:
    """Raises InputError if the model, its warm start or its vocabulary cannot be built. ``config``: as by ``for_use``.

    ``start``: whether the warm start belongs to this model section, and must fit it. ``head``: what the network ends in;
    None: what the task needs.
    """
    check_size(config.model)
    if config.training.gradient_checkpointing and config.model.architecture == "awd_lstm":
        remedy = "awd_lstm has no blocks that can be computed again: set false"
        raise InputError("training.gradient_checkpointing", True, remedy)
    head = task_of(config.task.kind).head(config.task) if head is None else head
    check_head(config.model, head, config.task.kind)
    hub = pretrained_config(config.model) if config.model.architecture == "pretrained" else None
    vocabulary = _vocabulary(config)
    if hub is not None:
        _check_pretrained_size(config.model, hub)
        rows = getattr(hub, "vocab_size", None)
        if vocabulary is not None and rows and not config.vocabulary.replace_embeddings:
            check_fits(config.model, rows, vocabulary.size)
    if config.model.warm_start and vocabulary is not None and start:
        replace = config.vocabulary.replace_embeddings
        check_start_fits(config.model, vocabulary.size, replace_embeddings=replace, head=head)
    check_targets(config.model, head)


def check_model_folder(config: RunConfig) -> None:
    """Raises InputError if the pretrained model is a folder here that the run does not fit; reads no weights.

    For commands that run where neither the text nor the model need be.
    """
    path = os.path.expandvars(config.model.path)
    if os.path.isdir(path):
        settings_of(path)
        if config.words.kind == "tokenizer" and not config.vocabulary.path and not config.model.warm_start:
            own_tokenizer(path)
        model = dataclasses.replace(config.model, path=path)
        pretrained_config(model)
        head = task_of(config.task.kind).head(config.task)
        check_head(model, head, config.task.kind)
        check_targets(model, head)


def _vocabulary(config: RunConfig) -> Vocabulary | None:
    """The vocabulary, if it is a published one; other vocabularies are only checked to be buildable."""
    if config.model.warm_start:
        return _saved("model.warm_start", config.model.warm_start, warm_vocabulary(config.model.warm_start))
    words = config.words
    if words.kind == "tokenizer" and config.vocabulary.path:
        return _saved("vocabulary.path", words.path, Vocabulary.load(words.path))
    if words.kind == "tokenizer":
        return _saved("model.path", config.model.path, own_tokenizer(config.model.path))
    if words.kind != "noisy-threshold":
        field, texts = public_text(config)
        if not texts:
            remedy = "name public text to count words in, here or in pretrain.text"
            raise InputError("vocabulary.public_text", [], remedy)
        for number, source in enumerate(texts):
            check_source(f"{field}[{number}]", source)
    return None


def _saved(field: str, path: str, vocabulary: Vocabulary) -> Vocabulary:
    """The vocabulary. Raises: InputError if it could not be saved beside the model."""
    try:
        with tempfile.TemporaryDirectory() as folder:
            vocabulary.save(folder)
    except (OSError, MemoryError):
        raise
    except Exception as error:  # from transformers, such as for a chat template whose name is no file name
        remedy = f"its tokenizer can be loaded but not saved ({one_line(str(error), 300)}): fix its settings"
        raise InputError(field, path, remedy) from error
    return vocabulary


def ignored(config: RunConfig) -> Iterator[str]:
    """Settings that were given but will not be used, each with the reason."""
    for section, given, default, names, reason in _unused(config):
        for name in names:
            if getattr(given, name) != getattr(default, name):
                yield f"{section}.{name} is ignored: {reason}"
    if config.model.warm_start and config.vocabulary.kind is not None:
        yield "vocabulary.kind is ignored: model.warm_start brings its vocabulary"


def _slow(config: RunConfig) -> Iterator[str]:
    """What makes rounds several times as slow as they might be."""
    private = config.training.loop == "rounds" and config.training.local_update == "gradient"
    if private and config.model.architecture == "pretrained":
        kind = pretrained_config(config.model).model_type
        if kind not in ROWS_APART:
            known = ", ".join(sorted(ROWS_APART))
            yield (
                f"each sentence passes alone through a {kind}, which takes several times as long as in batches: it is not "
                f"known that no sentence decides on the shapes of others' products, as it is of {known}"
            )


def unused(config: RunConfig) -> frozenset[str]:
    """Keys of settings that change nothing of the run, whether or not they were given: runs that differ in them alone are
    the same."""
    found = {f"{section}.{name}" for section, _, _, names, _ in _unused(config) for name in names}
    privacy = config.privacy
    if not config.guarded:
        found |= {"privacy.target_epsilon", "privacy.delta"}
    if config.training.passes is not None:
        found.add("training.num_rounds")
    drawn_alike = privacy.entity_sampling_prob == 1.0 and privacy.extended_sampling_prob in (None, 1.0)
    drawn_alike = drawn_alike and privacy.estimator == "f_e_plus"
    unbounded = config.bounds.mode == "none" and config.corpus.transform.kind == "none"
    if unbounded and (drawn_alike or config.training.loop == "epochs"):
        found.add("corpus.categories")  # nobody asks which sentences hold an entity
    return frozenset(found)


_Unused = tuple[str, Any, Any, tuple[str, ...], str]
"""Section, its settings, those of a run that gives none, the names of what is not used, and why."""


def _unused(config: RunConfig) -> list[_Unused]:
    model, training = config.model, config.training
    network = architecture(model.architecture)
    others = tuple(name for name in ("init_range", *SHAPE, *DROPOUTS) if name not in network.uses)
    unused: list[_Unused] = [("model", model, ModelConfig(), others, network.why_ignored)]
    if model.trainable != "lora":
        lora = ("lora_rank", "lora_alpha", "lora_targets")
        unused.append(("model", model, ModelConfig(), lora, f"model.trainable is {model.trainable}"))
    uses = {
        "local_update": {name: update_class(name).uses for name in get_args(LocalUpdateName)},
        "server_optimizer": {name: optimizer.uses for name, optimizer in OPTIMIZERS.items()},
    }
    if training.loop == "epochs":
        del uses["local_update"]
        why = "training.loop is epochs"
        local = ("local_update", "local_learning_rate", "local_epochs")
        drawing = ("user_sampling_prob", "entity_sampling_prob", "extended_sampling_prob", "estimator")
        unused.append(("training", training, TrainingConfig(), local, why))
        unused.append(("privacy", config.privacy, PrivacyConfig(noise="none"), drawing, why))
    for key, used_by in uses.items():
        name, all_used = getattr(training, key), {each: None for used in used_by.values() for each in used or ()}
        own = used_by[name]
        settings = [] if own is None else [each for each in all_used if each not in own]
        unused.append(("training", training, TrainingConfig(), tuple(settings), f"training.{key} is {name}"))
    if config.corpus.source.format == "prepared":
        plain = SourceConfig(path=config.corpus.source.path)
        reason = "the text is prepared: its detectors are those of uedp-ray prepare"
        unused.append(("corpus.source", config.corpus.source, plain, ("detector",), reason))
    if config.bounds.mode != "enforced":
        surplus = ("entity_bound", "holder_bound")
        unused.append(("bounds", config.bounds, BoundsConfig(), surplus, f"bounds.mode is {config.bounds.mode}"))
    for name, section in (("corpus.transform", config.corpus.transform), ("representation", config.representation)):
        for setting in dataclasses.fields(section):
            if (other := why_unused(section, setting)) is not None:
                unused.append((name, section, type(section)(), (setting.name,), f"{name}.{other}"))
    return [*unused, *_unused_by_others(config.corpus.transform)]


def _unused_by_others(config: TransformConfig) -> Iterator[_Unused]:
    """What a transform or word mechanism that is not ours states that it does not use."""
    name, uses = "kind", None
    if config.kind not in PROVED_TRANSFORMS and (transform := transform_of(config)) is not None:
        uses = transform.uses
    elif config.kind == "replace_words" and config.mechanism not in PROVED_WORD_MECHANISMS:
        name, uses = "mechanism", mechanism_class(config.mechanism).uses
    if uses is not None:
        named = [each.name for each in dataclasses.fields(config) if name in each.metadata.get("of", {})]
        others = tuple(each for each in named if each not in (*uses, "apply_to_evaluation"))
        why = f"corpus.transform.{name} is {getattr(config, name)}"
        yield "corpus.transform", config, TransformConfig(), others, why

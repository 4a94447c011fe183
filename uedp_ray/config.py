"""What a run is: frozen dataclasses, validated with remedies, read from and written to YAML.

Every field is a PUBLIC setting: nothing here may be read off the private data. Example:

    config = load_config("sweeps/quickstart.yaml", ["privacy.target_epsilon=4"])
    dump_config(config, "config.yaml")
"""
# Over 400 lines: one dataclass a section with a docstring a field; splitting it would only move the contract apart.
# Reading and writing as such is ``configio``'s; what callers need of it is imported from here as well.

from __future__ import annotations

import hashlib
import json
import math
import os
import re
import typing
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import yaml

from uedp_ray.configio import from_dict, parse_overrides, read_yaml, set_keys, to_dict
from uedp_ray.errors import InputError

SourceFormat = Literal["prepared", "conll", "ag-news", "jsonl", "parquet", "speeches", "text", "synthetic"]
SelectionRule = Literal["all", "any"]
EntityDraw = Literal["global", "per_user"]
SurplusRule = Literal["truncate", "reweight"]
Protect = Literal["user-entity", "user", "entity"]
VocabularyKind = Literal["tokenizer", "public-words", "noisy-threshold"]
TrainablePart = Literal["full", "lora", "bias_norm", "head"]


def choice(name: str, value: object, annotation: Any) -> None:
    """Raises: InputError unless ``value`` is one of a ``Literal``."""
    options = typing.get_args(annotation)
    if value not in options:
        raise InputError(name, value, f"choose one of {', '.join(map(str, options))}")


def _probability(name: str, value: float) -> None:
    if not 0.0 <= value <= 1.0:
        raise InputError(name, value, "a probability lies in [0, 1]")


def _below_one(name: str, value: float) -> None:
    if not 0.0 <= value < 1.0:
        raise InputError(name, value, "must be 0 or more and below 1")


def _seed(name: str, value: int | None) -> None:
    if value is not None and not 0 <= value < 2**63:
        raise InputError(name, value, "must be 0 or more and below 2**63")


def positive(name: str, value: float | None, *, optional: bool = False) -> None:
    """Raises: InputError unless ``value`` is finite and above 0."""
    if optional and value is None:
        return
    if value is None or not math.isfinite(value) or value <= 0:
        raise InputError(name, value, "must be a finite number above 0")


def at_least(name: str, value: int | None, low: int, *, most: int | None = None, optional: bool = False) -> None:
    """Raises: InputError if ``value`` is below ``low``, or above ``most``."""
    if optional and value is None:
        return
    if value is None or value < low:
        raise InputError(name, value, f"must be {low} or more")
    if most is not None and value > most:
        raise InputError(name, value, f"must be {most:,} or fewer")


def _same_file(one: str, other: str) -> bool:
    """Whether two paths are one file or folder, links and spelling aside; texts that agree are told apart later."""
    if not one or not other:
        return False
    one, other = (os.path.expandvars(path) for path in (one, other))
    try:
        return os.path.samefile(one, other)
    except OSError:  # one of them is not here
        return os.path.realpath(one) == os.path.realpath(other)


@dataclass(frozen=True, kw_only=True)
class SourceConfig:
    """Where text comes from and how sensitive entities are found in it."""

    path: str = ""
    """A file or folder; empty for ``synthetic``. ``prepared`` names a folder written by ``uedp-ray prepare``."""
    format: SourceFormat = "prepared"
    detector: tuple[str, ...] = ("annotated",)
    """Any of ``annotated``, ``regex``, ``spacy:MODEL``, ``list:FILE``; their findings are united."""
    categories: tuple[str, ...] = ()
    """Protected categories; empty means all the detectors yield. ``pii`` = person + location + contact data."""
    max_words: int = 128
    """A sentence, or a row with a label or tags, that has more words becomes consecutive pieces."""
    num_users: int = 200
    """``synthetic`` only: how many users to generate."""
    part: Literal["private", "held_out", "public"] = "private"
    """``synthetic`` only: which part of the generated language; the parts share no user."""
    seed: int = 0
    """``synthetic`` and ``ag-news`` only: the generator's seed (public: it shapes data, not privacy)."""

    def __post_init__(self) -> None:
        if self.format not in typing.get_args(SourceFormat):
            formats = ", ".join(typing.get_args(SourceFormat))
            line = '{"user": "ann", "text": "..."}'
            remedy = f"choose one of {formats}; rewrite other files as jsonl, a line {line} for each text"
            raise InputError("format", self.format, f"{remedy} (docs/your-own-text.md)")
        if self.format != "synthetic" and not self.path:
            raise InputError("path", self.path, "name the file or folder that holds the text")
        at_least("max_words", self.max_words, 2)
        at_least("num_users", self.num_users, 1)
        _seed("seed", self.seed)
        choice("part", self.part, Literal["private", "held_out", "public"])


@dataclass(frozen=True, kw_only=True)
class CorpusConfig:
    """The private corpus and what may be said about it in public."""

    source: SourceConfig = field(default_factory=lambda: SourceConfig(format="synthetic"))
    declared_num_users: int | None = None
    """Public upper bound on the number of users; the normaliser and ``reweight`` use it, the loader checks it."""
    declared_num_tokens: int | None = None
    """Public estimate of the corpus size, for throughput figures only."""
    categories: tuple[str, ...] = ()
    """Protected categories, of those that ``source`` was prepared with; empty means all of them. A setting of the run: one
    prepared corpus serves every choice."""
    evaluation: SourceConfig | None = None
    """Text on which perplexity is computed. It must be outside the protected set."""
    evaluation_basis: Literal["public", "held_out_users"] = "held_out_users"
    """Why evaluating is safe: public text, or users declared to be outside the protected set."""

    def __post_init__(self) -> None:
        at_least("corpus.declared_num_users", self.declared_num_users, 1, optional=True)
        at_least("corpus.declared_num_tokens", self.declared_num_tokens, 1, optional=True)
        choice("corpus.evaluation_basis", self.evaluation_basis, Literal["public", "held_out_users"])


@dataclass(frozen=True, kw_only=True)
class VocabularyConfig:
    """How text becomes token ids."""

    kind: VocabularyKind | None = None
    """A published tokenizer, a word vocabulary of public text, or one released from private text with noise. None: the
    tokenizer that a pretrained model came with; for other models ``public-words``."""
    path: str = ""
    """``tokenizer``: folder, ``tokenizer.json`` or hub name. Of a pretrained model, empty is the model's own."""
    public_text: tuple[SourceConfig, ...] = ()
    """``public-words``: text to count words in; empty means ``pretrain.text``."""
    max_size: int = 10_000
    min_count: int = 1
    lowercase: bool = True
    strip_punctuation: bool = False
    """The seeds lower-case and remove punctuation marks."""
    noise_multiplier: float | None = None
    """``noisy-threshold``: noise std over the L2 norm of one user's word histogram."""
    threshold_delta: float | None = None
    """``noisy-threshold``: share of delta spent on words only the protected user or entity holds."""
    max_words_per_user: int = 100
    """``noisy-threshold``: word slots one user contributes."""
    replace_embeddings: bool = False
    """Lets a pretrained model be given words instead of its own tokenizer: its embeddings are then drawn anew."""

    def __post_init__(self) -> None:
        if self.kind is not None:
            choice("vocabulary.kind", self.kind, VocabularyKind)
        if self.kind == "noisy-threshold":
            positive("vocabulary.noise_multiplier", self.noise_multiplier)
            positive("vocabulary.threshold_delta", self.threshold_delta)
        at_least("vocabulary.max_size", self.max_size, 4)
        at_least("vocabulary.min_count", self.min_count, 1)
        at_least("vocabulary.max_words_per_user", self.max_words_per_user, 1)


@dataclass(frozen=True, kw_only=True)
class BoundsConfig:
    """Contribution bounds. ``declared``: data that break them are refused. ``enforced``: cut or reweighted once."""

    mode: Literal["declared", "enforced", "none"] = "enforced"
    """``none`` suits models without noise and user-level privacy, which need no bound on entities."""
    max_sentences_per_user: int | None = None
    max_sentences_per_entity: int = 1
    """m: sentences of one user that hold one entity."""
    max_holders: int = 5
    """K: users that hold one entity."""
    entity_bound: SurplusRule = "reweight"
    """What happens beyond m: drop the surplus, or weigh each of a user's s sentences by min(1, m/s)."""
    holder_bound: SurplusRule = "reweight"
    """What happens beyond K: drop surplus holders, or weigh each of the H holders' sentences by min(1, K/H)."""

    def __post_init__(self) -> None:
        choice("bounds.mode", self.mode, Literal["declared", "enforced", "none"])
        choice("bounds.entity_bound", self.entity_bound, SurplusRule)
        choice("bounds.holder_bound", self.holder_bound, SurplusRule)
        at_least("bounds.max_sentences_per_user", self.max_sentences_per_user, 1, optional=True)
        at_least("bounds.max_sentences_per_entity", self.max_sentences_per_entity, 1)
        at_least("bounds.max_holders", self.max_holders, 1)


@dataclass(frozen=True, kw_only=True)
class PrivacyConfig:
    """The mechanism. Give exactly one of ``target_epsilon`` and ``noise_multiplier``, unless noise is ``none``."""

    protect: Protect = "user-entity"
    target_epsilon: float | None = None
    noise_multiplier: float | None = None
    """z: std of the noise in the SUM of user updates, in units of ``l2_clip_norm``."""
    delta: float = 1e-5
    noise: Literal["calibrated", "published", "none"] = "calibrated"
    """``published``: Eq. 6 of the paper, std z (q_u |U| + 1) max(w_u) l2_clip_norm in the sum; claims nothing."""
    published_cohort: Literal["expected", "all"] = "expected"
    """``published`` noise only: the paper's factor q_u |U| + 1, or the patent's |U| + 1."""
    clip: bool = True
    """False only for a model without privacy."""
    l2_clip_norm: float = 1.0
    """beta: bound on one user's update in one round."""
    sentence_clip_norm: float | None = 0.1
    """c: bound on one sentence's gradient; None leaves sentences unclipped (then one entity may move 2 beta)."""
    user_sampling_prob: float = 0.1
    entity_sampling_prob: float = 1.0
    extended_sampling_prob: float = 1.0
    selection_rule: SelectionRule = "all"
    entity_draw: EntityDraw = "global"
    estimator: Literal["f_e_plus", "f_e"] = "f_e_plus"
    """``f_e`` leaves out sentences without a detected entity."""
    normalizer: Literal["public", "published"] = "public"
    """``public``: q_u times the declared number of users. ``published``: the paper's data-dependent W's."""
    user_weight_cap: int = 1
    """``published`` normaliser only: w_u = min(sentences of u / cap, 1)."""
    entity_weight_cap: int = 1
    """``published`` normaliser only: w_e = min(sentences holding e / cap, 1)."""
    test_noise_seed: int | None = None
    """Fixes sampling and noise so that runs can be compared. Every output is then labelled not private."""

    def __post_init__(self) -> None:
        choice("privacy.protect", self.protect, Protect)
        choice("privacy.noise", self.noise, Literal["calibrated", "published", "none"])
        choice("privacy.published_cohort", self.published_cohort, Literal["expected", "all"])
        choice("privacy.selection_rule", self.selection_rule, SelectionRule)
        choice("privacy.entity_draw", self.entity_draw, EntityDraw)
        choice("privacy.estimator", self.estimator, Literal["f_e_plus", "f_e"])
        choice("privacy.normalizer", self.normalizer, Literal["public", "published"])
        for name in ("user_sampling_prob", "entity_sampling_prob", "extended_sampling_prob"):
            _probability(f"privacy.{name}", getattr(self, name))
        positive("privacy.l2_clip_norm", self.l2_clip_norm)
        positive("privacy.sentence_clip_norm", self.sentence_clip_norm, optional=True)
        positive("privacy.target_epsilon", self.target_epsilon, optional=True)
        positive("privacy.noise_multiplier", self.noise_multiplier, optional=True)
        for name in ("l2_clip_norm", "sentence_clip_norm", "noise_multiplier"):  # products of these must be numbers too
            if (value := getattr(self, name)) is not None and not 1e-20 <= value <= 1e20:
                raise InputError(f"privacy.{name}", value, "must lie within 1e-20 and 1e20")
        at_least("privacy.user_weight_cap", self.user_weight_cap, 1)
        at_least("privacy.entity_weight_cap", self.entity_weight_cap, 1)
        _seed("privacy.test_noise_seed", self.test_noise_seed)
        if not 0.0 < self.delta < 1.0:
            raise InputError("privacy.delta", self.delta, "must lie strictly between 0 and 1")
        given = (self.target_epsilon is not None) + (self.noise_multiplier is not None)
        if self.noise == "none":
            if given:
                raise InputError("privacy.noise", "none", "drop target_epsilon and noise_multiplier, or add noise")
        elif given != 1:
            raise InputError(
                "privacy.target_epsilon / privacy.noise_multiplier",
                (self.target_epsilon, self.noise_multiplier),
                "give exactly one of the two",
            )
        elif not self.clip:
            raise InputError("privacy.clip", False, "noise without clipping protects nothing")
        if self.noise == "published" and self.noise_multiplier is None:
            raise InputError("privacy.noise_multiplier", None, "published noise is not calibrated: give z")
        if self.normalizer == "published" and self.noise == "calibrated":
            raise InputError(
                "privacy.normalizer",
                self.normalizer,
                "the published W's are read off the private data: use noise published, or normalizer public",
            )


_LARGEST = {
    "max_length": 1 << 20,
    "num_layers": 1000,
    "hidden_size": 1 << 16,
    "num_heads": 1000,
    "embedding_size": 1 << 16,
    "lora_rank": 1 << 16,
}
"""Beyond what any network has; what this machine can hold is seen by ``training.checks``."""


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """The network and which part of it is trained."""

    architecture: Literal["gpt2", "awd_lstm", "pretrained"] = "gpt2"
    path: str = ""
    """``pretrained``: folder or hub name for ``AutoModelForCausalLM.from_pretrained``."""
    max_length: int = 64
    """Tokens of a sentence that are used (public constant; the rest is cut)."""
    num_layers: int = 2
    hidden_size: int = 128
    num_heads: int = 4
    embedding_size: int = 100
    """``awd_lstm`` only; GPT-2 embeds in ``hidden_size``."""
    init_range: float | None = None
    """Initial embeddings. AWD-LSTM: uniform within this (none: 0.1, as in the seeds). GPT-2: std of all weights (0.02)."""
    dropout_embedding: float = 0.0
    """AWD-LSTM: whole words dropped (seeds: 0.1). GPT-2: embedding dropout."""
    dropout_input: float = 0.0
    dropout_hidden: float = 0.0
    dropout_weight: float = 0.0
    """AWD-LSTM: DropConnect on hidden-to-hidden matrices (seeds: 0.3). Unused by GPT-2."""
    dropout_output: float = 0.0
    """AWD-LSTM: last layer's output (seeds: 0.5). GPT-2: residual dropout."""
    tie_embeddings: bool = True
    trainable: TrainablePart = "full"
    lora_rank: int = 8
    lora_alpha: float = 16.0
    lora_targets: tuple[str, ...] = ()
    """Module-name suffixes; empty means every linear layer but the output head."""
    warm_start: str = ""
    """Checkpoint folder written by ``pretrain``."""

    def __post_init__(self) -> None:
        choice("model.architecture", self.architecture, Literal["gpt2", "awd_lstm", "pretrained"])
        choice("model.trainable", self.trainable, TrainablePart)
        if self.architecture == "pretrained" and not self.path:
            raise InputError("model.path", self.path, "name a model folder or hub id")
        for name, most in _LARGEST.items():
            at_least(f"model.{name}", getattr(self, name), 2 if name == "max_length" else 1)
            if getattr(self, name) > most:
                raise InputError(f"model.{name}", getattr(self, name), f"must be {most} or less")
        positive("model.init_range", self.init_range, optional=True)
        positive("model.lora_alpha", self.lora_alpha)
        for name in ("embedding", "input", "hidden", "weight", "output"):
            _probability(f"model.dropout_{name}", getattr(self, f"dropout_{name}"))
        if self.architecture == "gpt2" and self.hidden_size % self.num_heads:
            raise InputError(
                "model.hidden_size", self.hidden_size, f"must be divisible by num_heads = {self.num_heads}"
            )


@dataclass(frozen=True, kw_only=True)
class TrainingConfig:
    """Rounds, local updates, the server's optimizer and the machine."""

    num_rounds: int = 50
    local_update: Literal["gradient", "local_sgd"] = "gradient"
    local_learning_rate: float = 0.1
    """``local_sgd`` only; under ``gradient`` the step is folded into the server's."""
    local_epochs: int = 1
    local_batch_size: int = 8
    server_optimizer: Literal["sgd", "momentum", "adam"] = "adam"
    server_learning_rate: float = 1e-2
    server_schedule: Literal["constant", "linear"] = "constant"
    """``linear``: the rate falls to zero over the rounds, which averages the noise of the last ones away."""
    server_momentum: float = 0.9
    adam_betas: tuple[float, float] = (0.9, 0.99)
    adam_epsilon: float = 1e-8
    evaluate_every: int = 10
    checkpoint_every: int = 10
    num_workers: int = 1
    max_failures: int = 3
    """Starts of the workers in a row that fail without a round more in the checkpoint, before the run gives up."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    precision: Literal["float32", "bf16"] = "float32"
    """``bf16``: forward and backward under autocast; norms, sums, noise and parameters stay float32 or wider."""
    batch_tokens: int = 4096
    """Padded tokens a worker puts through the model at once."""
    seed: int = 0
    """Initial parameters and dropout. Public; sampling and noise have their own, private keys."""

    def __post_init__(self) -> None:
        choice("training.local_update", self.local_update, Literal["gradient", "local_sgd"])
        choice("training.server_optimizer", self.server_optimizer, Literal["sgd", "momentum", "adam"])
        choice("training.server_schedule", self.server_schedule, Literal["constant", "linear"])
        choice("training.device", self.device, Literal["auto", "cpu", "cuda"])
        choice("training.precision", self.precision, Literal["float32", "bf16"])
        for name in (
            "num_rounds",
            "local_epochs",
            "local_batch_size",
            "evaluate_every",
            "checkpoint_every",
            "num_workers",
            "batch_tokens",
        ):
            at_least(f"training.{name}", getattr(self, name), 1)
        at_least("training.max_failures", self.max_failures, 0)
        positive("training.local_learning_rate", self.local_learning_rate)
        positive("training.server_learning_rate", self.server_learning_rate)
        positive("training.adam_epsilon", self.adam_epsilon)
        for name in ("local_learning_rate", "server_learning_rate", "adam_epsilon"):  # float32 has to hold them
            if getattr(self, name) > 1e30:
                raise InputError(f"training.{name}", getattr(self, name), "must be 1e30 or less")
        _seed("training.seed", self.seed)
        _below_one("training.server_momentum", self.server_momentum)
        for beta in self.adam_betas:
            _below_one("training.adam_betas", beta)


@dataclass(frozen=True, kw_only=True)
class PretrainConfig:
    """Ordinary training on public text."""

    text: tuple[SourceConfig, ...] = ()
    max_words: int | None = None
    num_steps: int = 500
    batch_size: int = 32
    learning_rate: float = 1e-3
    seed: int = 0

    def __post_init__(self) -> None:
        at_least("pretrain.num_steps", self.num_steps, 0)
        at_least("pretrain.batch_size", self.batch_size, 1)
        at_least("pretrain.max_words", self.max_words, 1, optional=True)
        positive("pretrain.learning_rate", self.learning_rate)
        _seed("pretrain.seed", self.seed)


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """One model: text in; checkpoint, ledger and privacy statement out."""

    name: str = "run"
    corpus: CorpusConfig = field(default_factory=CorpusConfig)
    vocabulary: VocabularyConfig = field(default_factory=VocabularyConfig)
    bounds: BoundsConfig = field(default_factory=BoundsConfig)
    privacy: PrivacyConfig = field(default_factory=lambda: PrivacyConfig(target_epsilon=8.0))
    model: ModelConfig = field(default_factory=ModelConfig)
    training: TrainingConfig = field(default_factory=TrainingConfig)
    pretrain: PretrainConfig = field(default_factory=PretrainConfig)

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[^/\\$]+", self.name) or self.name in (".", ".."):
            raise InputError("name", self.name, "names a folder under runs/: leave out / and $")
        private = self.privacy.noise == "calibrated"
        if private and self.bounds.mode == "none" and self.privacy.protect != "user":
            raise InputError("bounds.mode", "none", "entities are protected only within bounds: declared or enforced")
        public = {"vocabulary.public_text": self.vocabulary.public_text, "pretrain.text": self.pretrain.text}
        for name, source in ((name, source) for name, sources in public.items() for source in sources):
            if private and _same_file(source.path, self.corpus.source.path):
                raise InputError(name, source.path, "is the private text itself: name public text")
        share = self.vocabulary.threshold_delta
        if private and self.vocabulary.kind == "noisy-threshold" and share is not None and share >= self.privacy.delta:
            raise InputError(
                "vocabulary.threshold_delta", share, f"must be a part of privacy.delta = {self.privacy.delta:g}"
            )
        self._check_pretrained()
        limit = 2.0 * self.privacy.l2_clip_norm
        reweighted = self.bounds.mode == "enforced" and "reweight" in (
            self.bounds.holder_bound,
            self.bounds.entity_bound,
        )
        if private and self.corpus.declared_num_users is None and (self.privacy.normalizer == "public" or reweighted):
            raise InputError(
                "corpus.declared_num_users",
                None,
                "declare a public upper bound on the number of users (the true count is private)",
            )
        self._check_holders()
        if self.training.local_update != "local_sgd" and private and reweighted and self.entity_clip_norm >= limit:
            bounds = self.bounds
            named = {"bounds.entity_bound": bounds.entity_bound, "bounds.holder_bound": bounds.holder_bound}
            reweighting = " and ".join(f"{name} = {bound}" for name, bound in named.items() if bound == "reweight")
            remedy = (
                f"{reweighting}: a user's bounds.max_sentences_per_entity = {bounds.max_sentences_per_entity} sentences "
                f"with one entity must move it by less than twice privacy.l2_clip_norm = {self.privacy.l2_clip_norm:g} "
                "together. Lower the clip or the number, or use truncate"
            )
            raise InputError("privacy.sentence_clip_norm", self.privacy.sentence_clip_norm, remedy)
        if self.training.local_update == "local_sgd" and reweighted:
            raise InputError(
                "bounds.holder_bound / bounds.entity_bound",
                (self.bounds.holder_bound, self.bounds.entity_bound),
                "local_sgd does not bound a reweighted sentence's effect: use truncate",
            )
        if self.training.local_update == "local_sgd" and self.privacy.sentence_clip_norm is not None:
            raise InputError(
                "privacy.sentence_clip_norm",
                self.privacy.sentence_clip_norm,
                "local_sgd cannot use it (an entity may move a user's update by 2 l2_clip_norm): drop it",
            )

    def _check_pretrained(self) -> None:
        words, model = self.vocabulary, self.model
        if words.kind == "tokenizer" and not self.words.path:
            raise InputError("vocabulary.path", "", "name a tokenizer folder, file or hub id")
        if words.kind in ("public-words", "noisy-threshold") and model.architecture == "pretrained":
            if not words.replace_embeddings and not model.warm_start:
                remedy = "a pretrained model knows the tokens it came with: leave it out to keep them, or add"
                raise InputError("vocabulary.kind", words.kind, f"{remedy} vocabulary.replace_embeddings: true")
        elif words.replace_embeddings:
            remedy = "is for a pretrained model that is given words: add vocabulary.kind, or drop it"
            raise InputError("vocabulary.replace_embeddings", True, remedy)

    def _check_holders(self) -> None:
        bounds, users = self.bounds, self.corpus.declared_num_users
        if self.privacy.noise == "none" or bounds.mode != "enforced" or bounds.holder_bound != "reweight":
            return
        if users is None:
            remedy = "reweight counts with a public upper bound on the number of users: declare it, or use truncate"
            raise InputError("corpus.declared_num_users", None, remedy)
        if bounds.max_holders > users:
            remedy = f"no more than corpus.declared_num_users = {users} can hold an entity: lower it"
            raise InputError("bounds.max_holders", bounds.max_holders, remedy)

    @property
    def words(self) -> VocabularyConfig:
        """The vocabulary with its kind decided: a pretrained model keeps its own tokenizer unless told otherwise."""
        vocabulary, own = self.vocabulary, self.model.architecture == "pretrained"
        kind = vocabulary.kind or ("tokenizer" if own else "public-words")
        path = vocabulary.path or (self.model.path if own and kind == "tokenizer" else "")
        return replace(vocabulary, kind=kind, path=path)

    @property
    def entity_clip_norm(self) -> float:
        """beta_e: how far one entity can move one user's update, min(2 beta, m c)."""
        return self._moved_by(self.bounds.max_sentences_per_entity)

    @property
    def extended_clip_norm(self) -> float:
        """How far one sentence without entities can move one user's update, min(2 beta, c)."""
        return self._moved_by(1)

    def _moved_by(self, num_sentences: int) -> float:
        sentence_clip_norm = self.privacy.sentence_clip_norm
        limit = 2.0 * self.privacy.l2_clip_norm
        return limit if sentence_clip_norm is None else min(limit, num_sentences * sentence_clip_norm)

    def digest(self) -> str:
        """SHA-256 over the resolved config, less what may change on resume (name and machine settings)."""
        tree = to_dict(self)
        del tree["name"]
        for key in ("num_workers", "max_failures", "device", "batch_tokens", "evaluate_every", "checkpoint_every"):
            del tree["training"][key]
        return hashlib.sha256(json.dumps(tree, sort_keys=True).encode()).hexdigest()


def load_config(path: str | Path, overrides: Iterable[str] = ()) -> RunConfig:
    """Reads a YAML run file and applies ``a.b=value`` overrides (values are YAML)."""
    tree = read_yaml(path)
    if "base" in tree:
        kind, command = ("comparison", "compare") if "variants" in tree else ("sweep", "sweep")
        raise InputError("config", str(path), f"is a {kind} file: use uedp-ray {command}, or name a run file")
    return from_dict(RunConfig, set_keys(tree, parse_overrides(overrides)))


def dump_config(config: RunConfig, path: str | Path) -> None:
    """Writes the complete, resolved config as YAML."""
    text = yaml.safe_dump(to_dict(config), sort_keys=False, allow_unicode=True)
    Path(path).write_text(text, encoding="utf-8")

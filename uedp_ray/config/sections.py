"""The sections of a run file: frozen dataclasses, with a docstring for each field, validated with remedies.

Every field is a PUBLIC setting: nothing here may be read off the private data. Constraints between sections are checked by
``run.RunConfig``.
"""

from __future__ import annotations

import typing
from dataclasses import dataclass, field
from typing import Literal

from uedp_ray.config.limits import at_least, below_one, check_choices, positive, probability, seed
from uedp_ray.errors import InputError
from uedp_ray.units import Unit

SourceFormat = Literal[
    "prepared", "conll", "ag-news", "jsonl", "parquet", "speeches", "text", "pseudo-users", "synthetic"
]
UnnamedFormat = Literal["text", "conll", "ag-news"]
"""Formats that name no user."""
GENERATED = frozenset({"synthetic"})
"""Formats whose reader reads no file; any other needs a path."""
SelectionRule = Literal["all", "any"]
EntityDraw = Literal["global", "per_user"]
SurplusRule = Literal["truncate", "reweight"]
TaskKind = Literal["next_word"]
TransformKind = Literal["none", "mask"]
VocabularyKind = Literal["tokenizer", "public-words", "noisy-threshold"]
ArchitectureName = Literal["gpt2", "awd_lstm", "pretrained"]
LocalUpdateName = Literal["gradient", "local_sgd"]
BOUNDING_SENTENCES = frozenset({"gradient"})
"""Local updates under which a sentence moves its user's update by its weight times ``sentence_clip_norm`` at most, by proof.
A name that is not here bounds nothing but the user's update as a whole."""
ServerOptimizerName = Literal["sgd", "momentum", "adam"]
_MOST_USERS = 10**10
"""As many as the accountant accepts."""
TrainablePart = Literal["full", "lora", "bias_norm", "head"]
ADDED = {"added": True}
"""Metadata of a field that is younger than digests (``io.to_digest``): every new one has it."""
WORDS = {"names": "words"}
"""Metadata of a field of text that names no file; one that says nothing names a file (``files.map_files``)."""


@dataclass(frozen=True, kw_only=True)
class SourceConfig:
    """Where text comes from and how sensitive entities are found in it."""

    path: str = field(default="", metadata={"names": "text"})
    """A file or folder; empty for ``synthetic``. ``prepared`` names a folder written by ``uedp-ray prepare``."""
    format: SourceFormat = "prepared"
    detector: tuple[str, ...] = field(default=("annotated",), metadata={"names": "detector"})
    """Any of ``annotated``, ``regex``, ``capitalized``, ``spacy:MODEL``, ``list:FILE``; their findings are combined."""
    categories: tuple[str, ...] = field(default=(), metadata=WORDS)
    """Protected categories; empty means all that the detectors find. ``pii`` = person + location + contact data."""
    max_words: int = 128
    """A sentence, or a row with a label or tags, that has more words becomes consecutive pieces."""
    num_users: int = 200
    """``synthetic`` and ``pseudo-users`` only: how many users to make."""
    read_as: UnnamedFormat = field(default="text", metadata=ADDED)
    """``pseudo-users`` only: the format of the file whose sentences are dealt out to users; one that names none itself."""
    sentences_per_user: int = field(default=15, metadata=ADDED)
    """``pseudo-users`` only."""
    skip_users: int = field(default=0, metadata=ADDED)
    """``pseudo-users`` only: users at the beginning to leave out, such as those that another source takes."""
    part: Literal["private", "held_out", "public", "proxy"] = "private"
    """``synthetic`` only: which part of the generated language; the parts share no user."""
    seed: int = 0
    """``synthetic`` and ``ag-news`` only: the generator's seed (public: it shapes data, not privacy)."""

    def __post_init__(self) -> None:
        if self.format not in typing.get_args(SourceFormat):
            formats = ", ".join(typing.get_args(SourceFormat))
            line = '{"user": "ann", "text": "..."}'
            remedy = f"choose one of {formats}; rewrite other files as jsonl, a line {line} for each text"
            raise InputError("format", self.format, f"{remedy} (docs/your-own-text.md)")
        if self.format not in GENERATED and not self.path:
            raise InputError("path", self.path, "name the file or folder that holds the text")
        at_least("max_words", self.max_words, 2)
        at_least("num_users", self.num_users, 1)
        at_least("sentences_per_user", self.sentences_per_user, 1)
        at_least("skip_users", self.skip_users, 0)
        seed("seed", self.seed)
        check_choices(self)


@dataclass(frozen=True, kw_only=True)
class TransformConfig:
    """What is done to each private sentence after its entities were found, and before it is tokenised."""

    kind: TransformKind = "none"
    """``mask``: mentions of protected entities are replaced by their category. Evaluation text stays as it is."""

    def __post_init__(self) -> None:
        check_choices(self, "corpus.transform")


@dataclass(frozen=True, kw_only=True)
class CorpusConfig:
    """The private corpus and what may be said about it in public."""

    source: SourceConfig = field(default_factory=lambda: SourceConfig(format="synthetic"))
    declared_num_users: int | None = None
    """Public upper bound on the number of users; the normaliser and ``reweight`` use it, the loader checks it."""
    declared_num_tokens: int | None = None
    """Public estimate of the corpus size, for throughput figures only."""
    categories: tuple[str, ...] = field(default=(), metadata=WORDS)
    """Protected categories, of those that ``source`` was prepared with; empty means all of them. A setting of the run: one
    prepared corpus serves every choice."""
    transform: TransformConfig = field(default_factory=TransformConfig, metadata=ADDED)
    evaluation: SourceConfig | None = None
    """Text on which the model is scored. It must be outside the protected set."""
    evaluation_basis: Literal["public", "held_out_users"] = "held_out_users"
    """Why evaluating is safe: public text, or users declared to be outside the protected set."""

    def __post_init__(self) -> None:
        at_least("corpus.declared_num_users", self.declared_num_users, 1, most=_MOST_USERS, optional=True)
        at_least("corpus.declared_num_tokens", self.declared_num_tokens, 1, optional=True)
        check_choices(self, "corpus")


@dataclass(frozen=True, kw_only=True)
class TaskConfig:
    """What the network is trained to do, and so how it is scored."""

    kind: TaskKind = "next_word"

    def __post_init__(self) -> None:
        check_choices(self, "task")


@dataclass(frozen=True, kw_only=True)
class VocabularyConfig:
    """How text becomes token ids."""

    kind: VocabularyKind | None = None
    """A published tokenizer, a word vocabulary of public text, or one released from private text with noise. None: the
    tokenizer that a pretrained model came with; for other models ``public-words``."""
    path: str = field(default="", metadata={"names": "hub"})
    """``tokenizer``: folder, ``tokenizer.json`` or hub name. For a pretrained model, empty means the model's own."""
    public_text: tuple[SourceConfig, ...] = ()
    """``public-words``: text to count words in; empty means ``pretrain.text``."""
    max_size: int = 10_000
    min_count: int = 1
    lowercase: bool = True
    strip_punctuation: bool = False
    """The paper lower-cases and removes punctuation marks."""
    noise_multiplier: float | None = None
    """``noisy-threshold``: noise std over the L2 norm of one user's word histogram."""
    threshold_delta: float | None = None
    """``noisy-threshold``: share of delta spent on words only the protected user or entity holds."""
    max_words_per_user: int = 100
    """``noisy-threshold``: words that one user contributes, the same number of each sentence."""
    replace_embeddings: bool = False
    """Lets a pretrained model use a word vocabulary instead of its own tokenizer: its embeddings are then redrawn."""

    def __post_init__(self) -> None:
        check_choices(self, "vocabulary")
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
        check_choices(self, "bounds")
        at_least("bounds.max_sentences_per_user", self.max_sentences_per_user, 1, optional=True)
        at_least("bounds.max_sentences_per_entity", self.max_sentences_per_entity, 1)
        at_least("bounds.max_holders", self.max_holders, 1)


@dataclass(frozen=True, kw_only=True)
class PrivacyConfig:
    """The mechanism. Give exactly one of ``target_epsilon`` and ``noise_multiplier``, unless noise is ``none``."""

    unit: Unit = field(default="user-entity", metadata={"was": "protect"})
    """Whose part in the text is hidden: ``units.Unit``."""
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
        check_choices(self, "privacy")
        for name in ("user_sampling_prob", "entity_sampling_prob", "extended_sampling_prob"):
            probability(f"privacy.{name}", getattr(self, name))
        positive("privacy.l2_clip_norm", self.l2_clip_norm)
        positive("privacy.sentence_clip_norm", self.sentence_clip_norm, optional=True)
        positive("privacy.target_epsilon", self.target_epsilon, optional=True)
        positive("privacy.noise_multiplier", self.noise_multiplier, optional=True)
        for name in ("l2_clip_norm", "sentence_clip_norm", "noise_multiplier"):  # products of these must be numbers too
            if (value := getattr(self, name)) is not None and not 1e-20 <= value <= 1e20:
                raise InputError(f"privacy.{name}", value, "must be between 1e-20 and 1e20")
        at_least("privacy.user_weight_cap", self.user_weight_cap, 1)
        at_least("privacy.entity_weight_cap", self.entity_weight_cap, 1)
        seed("privacy.test_noise_seed", self.test_noise_seed)
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
"""Larger than in any network; ``training.checks`` checks what this machine can hold."""


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """The network and which part of it is trained."""

    architecture: ArchitectureName = "gpt2"
    path: str = field(default="", metadata={"names": "hub"})
    """``pretrained``: folder or hub name for ``AutoModelForCausalLM.from_pretrained``."""
    max_length: int = 64
    """Tokens of a sentence that are used (public constant; the rest is cut)."""
    num_layers: int = 2
    hidden_size: int = 128
    num_heads: int = 4
    embedding_size: int = 100
    """``awd_lstm`` only; GPT-2 embeds in ``hidden_size``."""
    init_range: float | None = None
    """Initial embeddings. AWD-LSTM: uniform within this (none: 0.1, as published). GPT-2: std of all weights (0.02)."""
    dropout_embedding: float = 0.0
    """AWD-LSTM: whole words dropped (published: 0.1). GPT-2: embedding dropout."""
    dropout_input: float = 0.0
    dropout_hidden: float = 0.0
    dropout_weight: float = 0.0
    """AWD-LSTM: DropConnect on hidden-to-hidden matrices (published: 0.3). Unused by GPT-2."""
    dropout_output: float = 0.0
    """AWD-LSTM: last layer's output (published: 0.5). GPT-2: residual dropout."""
    tie_embeddings: bool = True
    trainable: TrainablePart = "full"
    lora_rank: int = 8
    lora_alpha: float = 16.0
    lora_targets: tuple[str, ...] = field(default=(), metadata=WORDS)
    """Module-name suffixes; empty means every linear layer but the output head."""
    warm_start: str = ""
    """Checkpoint folder written by ``pretrain``."""

    def __post_init__(self) -> None:
        check_choices(self, "model")
        if self.architecture == "pretrained" and not self.path:
            raise InputError("model.path", self.path, "name a model folder or hub id")
        for name, most in _LARGEST.items():
            at_least(f"model.{name}", getattr(self, name), 2 if name == "max_length" else 1)
            if getattr(self, name) > most:
                raise InputError(f"model.{name}", getattr(self, name), f"must be {most} or less")
        positive("model.init_range", self.init_range, optional=True)
        positive("model.lora_alpha", self.lora_alpha)
        for name in ("embedding", "input", "hidden", "weight", "output"):
            probability(f"model.dropout_{name}", getattr(self, f"dropout_{name}"))
        if self.architecture == "gpt2" and self.hidden_size % self.num_heads:
            raise InputError(
                "model.hidden_size", self.hidden_size, f"must be divisible by num_heads = {self.num_heads}"
            )


@dataclass(frozen=True, kw_only=True)
class TrainingConfig:
    """Rounds, local updates, the server's optimizer and the machine."""

    num_rounds: int = 50
    passes: float | None = field(default=None, metadata=ADDED)
    """How often each user is drawn on average, which is what a run costs in time. Given, ``num_rounds`` is that over
    ``privacy.user_sampling_prob``, rounded, 1 at least."""
    local_update: LocalUpdateName = "gradient"
    local_learning_rate: float = 0.1
    """``local_sgd`` only; under ``gradient`` the step is folded into the server's."""
    local_epochs: int = 1
    local_batch_size: int = 8
    server_optimizer: ServerOptimizerName = "adam"
    server_learning_rate: float = 1e-2
    server_schedule: Literal["constant", "linear"] = "constant"
    """``linear``: the rate falls to zero over the rounds, which averages out the noise of the last ones."""
    server_momentum: float = 0.9
    adam_betas: tuple[float, float] = (0.9, 0.99)
    adam_epsilon: float = 1e-8
    evaluate_every: int = 10
    checkpoint_every: int = 10
    num_workers: int = 1
    max_failures: int = 3
    """Consecutive failed starts of the workers, without another round in the checkpoint, before the run gives up."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    precision: Literal["float32", "bf16"] = "float32"
    """``bf16``: forward and backward under autocast; norms, sums, noise and parameters stay float32 or wider."""
    batch_tokens: int = 4096
    """Padded tokens a worker puts through the model at once."""
    seed: int = 0
    """Initial parameters and dropout. Public; sampling and noise have their own, private keys."""

    def __post_init__(self) -> None:
        check_choices(self, "training")
        counts = ("num_rounds", "local_epochs", "local_batch_size", "evaluate_every", "checkpoint_every", "num_workers")
        for name in (*counts, "batch_tokens"):
            at_least(f"training.{name}", getattr(self, name), 1)
        positive("training.passes", self.passes, optional=True)
        at_least("training.max_failures", self.max_failures, 0)
        positive("training.local_learning_rate", self.local_learning_rate)
        positive("training.server_learning_rate", self.server_learning_rate)
        positive("training.adam_epsilon", self.adam_epsilon)
        for name in ("local_learning_rate", "server_learning_rate", "adam_epsilon"):  # float32 has to hold them
            if getattr(self, name) > 1e30:
                raise InputError(f"training.{name}", getattr(self, name), "must be 1e30 or less")
        seed("training.seed", self.seed)
        below_one("training.server_momentum", self.server_momentum)
        for beta in self.adam_betas:
            below_one("training.adam_betas", beta)


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
        seed("pretrain.seed", self.seed)

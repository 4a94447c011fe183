"""The sections of a run file that say what is trained, and how: frozen dataclasses with a docstring for each field,
validated with remedies. Those of the text are in ``texts``, the names to choose among in ``choices``.

Every field is a PUBLIC setting: nothing here may be read off the private data. Constraints between sections are checked by
``run.RunConfig``.
"""

from __future__ import annotations

import typing
from dataclasses import dataclass, field
from typing import Literal

from uedp_ray.config.choices import (
    ADDED,
    WORDS,
    ArchitectureName,
    EntityDraw,
    HolderRule,
    LocalUpdateName,
    RepresentationKind,
    SelectionRule,
    ServerOptimizerName,
    SurplusRule,
    TaskKind,
    TrainablePart,
)
from uedp_ray.config.limits import at_least, below_one, check_choices, positive, probability, seed
from uedp_ray.errors import InputError
from uedp_ray.units import Unit


@dataclass(frozen=True, kw_only=True)
class TaskConfig:
    """What the network is trained to do, and so how it is scored."""

    kind: TaskKind = "next_word"
    """``next_word``: a causal language model, scored by its perplexity. ``classify``: one label for each sentence, scored by
    the error rate. ``tag_words``: one tag for each word (accuracy). ``tag_entities``: spans of entities (F1)."""
    labels: tuple[str, ...] = field(default=(), metadata=ADDED | WORDS)
    """What is predicted: labels, tags, or for ``tag_entities`` categories. Public, and all of them: a sentence of the
    private text with any other is an error."""

    def __post_init__(self) -> None:
        check_choices(self, "task")
        least = {"classify": 2, "tag_words": 2, "tag_entities": 1}.get(self.kind, 0)
        if len(set(self.labels)) < max(least, len(self.labels)):
            remedy = f"{self.kind} predicts one of them: list {least} or more, each once, as the text has them"
            raise InputError("task.labels", list(self.labels), remedy)
        if self.kind == "next_word" and self.labels:
            raise InputError("task.labels", list(self.labels), "next_word predicts words: drop it, or set task.kind")


@dataclass(frozen=True, kw_only=True)
class BoundsConfig:
    """Contribution bounds. ``declared``: data that break them are refused. ``enforced``: cut or reweighted once."""

    mode: Literal["declared", "enforced", "none"] = "enforced"
    """``none`` suits models without noise and user-level privacy, which need no bound on entities."""
    max_sentences_per_user: int | None = None
    """The rest of a user's sentences is left out; none: no limit."""
    max_sentences_per_entity: int = 1
    """m: sentences of one user that hold one entity."""
    max_holders: int = 5
    """K: users that hold one entity."""
    entity_bound: SurplusRule = "reweight"
    """What happens beyond m: drop the surplus, or weigh each of a user's s sentences by min(1, m/s)."""
    holder_bound: HolderRule = "fill"
    """What happens beyond K: drop surplus holders (``truncate``), weigh each of the H holders' sentences by min(1, K/H)
    (``reweight``), or share K out among an entity's sentences (``fill``), none of which then weighs less than the others
    unless it takes from more entities or one of them is used up. The last two cost the same."""

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
    """The epsilon, of ``unit`` at ``delta``, that the noise is solved for."""
    noise_multiplier: float | None = None
    """z: std of the noise in the SUM of user updates, in units of ``l2_clip_norm``."""
    delta: float = 1e-5
    """Of (epsilon, delta): well below one over the number of users."""
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
    """q_u: the probability with which each round draws a user."""
    entity_sampling_prob: float = 1.0
    """q_e: that with which it draws an entity."""
    extended_sampling_prob: float = 1.0
    """q_s: that with which it draws a sentence without entities."""
    selection_rule: SelectionRule = "all"
    """Sentences of a drawn user that are used: those ``all`` of whose entities were drawn, or ``any``."""
    entity_draw: EntityDraw = "global"
    """Whether entities are drawn once for everyone, or by each user."""
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
            if 0.0 < getattr(self, name) < 1e-12:
                raise InputError(f"privacy.{name}", getattr(self, name), "draws nobody: give 0, or 1e-12 or more")
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


_NOISED = {"of": {"kind": typing.get_args(RepresentationKind)[1:]}}


@dataclass(frozen=True, kw_only=True)
class RepresentationConfig:
    """Noise that each user adds to the vector of a sentence, on which the head of a classifier is then trained (methods
    ``dpnr`` and ``gaudp``). A guarantee of one sentence against the server; none of its label, and none of a user."""

    kind: RepresentationKind = "none"
    """``laplace``: scaled to [0, 1] and noised coordinate by coordinate (DPNR). ``gaussian``: clipped and noised (GauDP).
    ``…_published``: with the noise that was published for ``target_epsilon``, which then is no guarantee."""
    target_epsilon: float | None = field(default=None, metadata=_NOISED)
    """Of one sentence, at ``privacy.delta`` (of ``laplace`` at 0), for all of training. ``laplace_published``: of one
    coordinate."""
    clip_norm: float = field(default=1.0, metadata={"of": {"kind": ("gaussian", "gaussian_published")}})
    """``gaussian``: the L2 norm that vectors are clipped to."""
    word_dropout: float = field(default=0.0, metadata=_NOISED)
    """The probability with which each token is hidden before its sentence's vector is computed, once for all epochs."""
    drawn: Literal["once", "each_epoch"] = field(default="once", metadata=_NOISED)
    """Whether a vector is noised once and kept, or noised anew for each epoch, each of which then costs."""
    num_records: int | None = field(default=None, metadata={"of": {"kind": ("gaussian_published",)}})
    """``gaussian_published``: the sentences that its figure is for. A public number."""

    def __post_init__(self) -> None:
        check_choices(self, "representation")
        positive("representation.target_epsilon", self.target_epsilon, optional=self.kind == "none")
        positive("representation.clip_norm", self.clip_norm)
        probability("representation.word_dropout", self.word_dropout)
        if self.kind == "gaussian_published" or self.num_records is not None:
            at_least("representation.num_records", self.num_records, 1)


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
    """Which network it is: the module of that name in ``models``."""
    path: str = field(default="", metadata={"names": "hub"})
    """``pretrained``: folder or hub name of a language model of transformers."""
    max_length: int = 64
    """Tokens of a sentence that are used (public constant; the rest is cut)."""
    num_layers: int = 2
    """Of a network of ours, as are the next two; a pretrained one has its own."""
    hidden_size: int = 128
    """Width; a multiple of ``num_heads`` in GPT-2."""
    num_heads: int = 4
    """Attention heads; GPT-2 and BERT only."""
    embedding_size: int = 100
    """``awd_lstm`` only; GPT-2 embeds in ``hidden_size``."""
    init_range: float | None = None
    """Initial embeddings. AWD-LSTM: uniform within this (none: 0.1, as published). GPT-2: std of all weights (0.02)."""
    dropout_embedding: float = 0.0
    """AWD-LSTM: whole words dropped (published: 0.1). GPT-2: embedding dropout."""
    dropout_input: float = 0.0
    """AWD-LSTM only: the embedded words."""
    dropout_hidden: float = 0.0
    """AWD-LSTM: between layers. GPT-2: attention."""
    dropout_weight: float = 0.0
    """AWD-LSTM: DropConnect on hidden-to-hidden matrices (published: 0.3). Unused by GPT-2."""
    dropout_output: float = 0.0
    """AWD-LSTM: last layer's output (published: 0.5). GPT-2: residual dropout."""
    tie_embeddings: bool = True
    """Whether the output layer is the embedding, transposed."""
    trainable: TrainablePart = "full"
    """What is trained: everything, low-rank adapters, biases and norms, or the output layer alone."""
    lora_rank: int = 8
    """Rank of the adapters."""
    lora_alpha: float = 16.0
    """The product of their two factors is scaled by this over ``lora_rank``."""
    lora_targets: tuple[str, ...] = field(default=(), metadata=WORDS)
    """Module-name suffixes; empty means every linear layer but the output head, which is adapted if it is named."""
    base_dtype: Literal["float32", "bf16"] = field(default="float32", metadata=ADDED)
    """``lora`` only: what the frozen network is held in. ``bf16``: half the memory; adapters stay float32."""
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
        if self.base_dtype != "float32" and self.trainable != "lora":
            remedy = (
                f"model.trainable is {self.trainable}, and what is trained is float32: use that, or trainable: lora"
            )
            raise InputError("model.base_dtype", self.base_dtype, remedy)
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
    """T: noised releases."""
    passes: float | None = field(default=None, metadata=ADDED)
    """How often each user is drawn on average, which is what a run costs in time. Given, ``num_rounds`` is that over
    ``privacy.user_sampling_prob``, rounded, 1 at least; under ``loop: epochs``, that many epochs."""
    loop: Literal["rounds", "epochs"] = field(default="rounds", metadata=ADDED)
    """``rounds`` of federated averaging, as UeDP needs. ``epochs``: ordinary training without protection, over shuffled
    batches of all sentences, as a reference (method ``ordinary``). An epoch counts as a round."""
    local_update: LocalUpdateName = "gradient"
    """What a user computes in a round: the module of that name in ``updates``."""
    local_learning_rate: float = 0.1
    """``local_sgd`` and ``local_dp_sgd``; under ``gradient`` the step is folded into the server's."""
    local_epochs: int = 1
    """``local_sgd`` and ``local_dp_sgd``: passes over a user's sentences."""
    local_batch_size: int = 8
    """Sentences of a step: of ``local_sgd``, or of an epoch. ``local_dp_sgd``: what a step's noised sum is divided by."""
    local_sampling_prob: float = field(default=0.1, metadata=ADDED)
    """``local_dp_sgd`` only: q, the probability with which a user draws each of its sentences for a step. Public, and the
    same for all users, whatever they hold: epsilon follows from it, and would else tell how much the least of them has."""
    local_noise_multiplier: float | None = field(default=None, metadata=ADDED)
    """``local_dp_sgd`` only: z, std of the noise in the SUM of a step, in units of ``privacy.sentence_clip_norm``."""
    server_optimizer: ServerOptimizerName = "adam"
    """What turns the noised average into a step (``training.optimizers``)."""
    server_learning_rate: float = 1e-2
    """The rate of its steps."""
    server_schedule: Literal["constant", "linear"] = "constant"
    """``linear``: the rate falls to zero over the rounds, which averages out the noise of the last ones."""
    server_momentum: float = 0.9
    """``momentum`` only."""
    adam_betas: tuple[float, float] = (0.9, 0.99)
    """``adam`` and ``adamw``: decay of the first and the second moment."""
    adam_epsilon: float = 1e-8
    """``adam`` and ``adamw``: added to the root of the second moment."""
    evaluate_every: int = 10
    """Rounds between evaluations on ``corpus.evaluation``."""
    checkpoint_every: int = 10
    """Rounds between checkpoints: what a crash may lose, and costs again."""
    num_workers: int = 1
    """Workers of a Ray Train group."""
    aggregation: Literal["auto", "driver", "sharded"] = field(default="auto", metadata=ADDED)
    """Which workers add noise to a round's sum and step the server's optimizer: ``driver``, rank 0; ``sharded``, each to a
    part; ``auto``, sharded where several workers train a million parameters or more."""
    max_failures: int = 3
    """Consecutive failed starts of the workers, without another round in the checkpoint, before the run gives up."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """``auto``: a GPU where Ray gave one or there is one, else the CPU."""
    precision: Literal["float32", "bf16"] = "float32"
    """``bf16``: forward and backward under autocast; norms, sums, noise and parameters stay float32 or wider."""
    gradient_checkpointing: bool = field(default=False, metadata=ADDED)
    """Whether activations of a network's blocks are computed again in the backward pass, and not kept for it: less memory, a
    third more time, the same results."""
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
        positive("training.local_noise_multiplier", self.local_noise_multiplier, optional=True)
        if self.local_noise_multiplier is not None and not 1e-20 <= self.local_noise_multiplier <= 1e20:
            raise InputError(
                "training.local_noise_multiplier", self.local_noise_multiplier, "must be between 1e-20 and 1e20"
            )
        if not 1e-6 <= self.local_sampling_prob <= 1.0:
            raise InputError("training.local_sampling_prob", self.local_sampling_prob, "must lie in [1e-6, 1]")
        positive("training.server_learning_rate", self.server_learning_rate)
        positive("training.adam_epsilon", self.adam_epsilon)
        for name in ("local_learning_rate", "server_learning_rate", "adam_epsilon"):  # float32 has to hold them
            if getattr(self, name) > 1e30:
                raise InputError(f"training.{name}", getattr(self, name), "must be 1e30 or less")
        seed("training.seed", self.seed)
        below_one("training.server_momentum", self.server_momentum)
        for beta in self.adam_betas:
            below_one("training.adam_betas", beta)

    @property
    def local_steps(self) -> int:
        """Steps of ``local_dp_sgd`` in a round: each draws a share of the sentences, and all together ``local_epochs``."""
        return max(1, round(self.local_epochs / self.local_sampling_prob))

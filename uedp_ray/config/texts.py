"""The sections of a run file that say which text is read, and how it becomes tokens.

As in ``sections``, every field is a PUBLIC setting: nothing here may be read off the private data.
"""

from __future__ import annotations

import typing
from dataclasses import dataclass, field
from typing import Literal

from uedp_ray.config.choices import (
    ADDED,
    GENERATED,
    PLACED,
    PROVED_TRANSFORMS,
    PROVED_WORD_MECHANISMS,
    WORDS,
    MaskStyle,
    Regrouping,
    SourceFormat,
    TextFormat,
    TransformKind,
    UnknownRule,
    VocabularyKind,
    WordDistance,
    WordDraw,
    WordMapping,
    WordMechanism,
    WordScope,
)
from uedp_ray.config.limits import at_least, below_one, check_choices, positive, probability, seed
from uedp_ray.errors import InputError

_MOST_USERS = 10**10
"""As many as the accountant accepts."""
_CUT = {"of": {"format": ("pseudo-users",)}}
_BY_PLACE = ADDED | {"of": {"format": PLACED}}
_OURS = ADDED | {"among": {"kind": PROVED_TRANSFORMS | {"none"}, "mechanism": PROVED_WORD_MECHANISMS}}
_TRANSFORMED = _OURS | {"of": {"kind": tuple(PROVED_TRANSFORMS)}}
_MASKED = _OURS | {"of": {"kind": ("mask",)}}
_CUT_UP = _OURS | {"of": {"kind": ("fragments",)}}
_REPLACED = _OURS | {"of": {"kind": ("replace_words",)}}
_PLANTED = _OURS | {"of": {"kind": ("plant",)}}
_METRIC = _OURS | {"of": {"kind": ("replace_words",), "mechanism": ("custext", "santext", "fbdd", "vickrey")}}
_CUSTEXT = _OURS | {"of": {"kind": ("replace_words",), "mechanism": ("custext",)}}
_VICKREY = _OURS | {"of": {"kind": ("replace_words",), "mechanism": ("vickrey",)}}
"""Metadata of a setting that has no use unless another of its section has one of these values (``run.why_unused``). Of a
value that is not ``among`` ours, it is for the class behind it to say what it uses."""
CANARY_LENGTH = 5
"""Words of a canary."""
MOST_CANARY_WORDS = 128
"""Words that there are to draw canaries from."""
_MOST_CANARIES = 1000
FEWEST_SUBWORDS = 258
"""Tokens of ``public-subwords``, at least: every byte, the end token and the padding token."""


@dataclass(frozen=True, kw_only=True)
class SourceConfig:
    """Where text comes from and how sensitive entities are found in it."""

    path: str = field(default="", metadata={"names": "text"})
    """A file or folder; empty for ``synthetic``. ``prepared`` names a folder written by ``uedp-ray prepare``."""
    format: SourceFormat = "prepared"
    """What kind of file it is: the reader of that name (``corpus.readers``)."""
    detector: tuple[str, ...] = field(default=("annotated",), metadata={"names": "detector"})
    """Any of ``annotated``, ``regex``, ``capitalized``, ``spacy:MODEL``, ``list:FILE``; their findings are combined."""
    categories: tuple[str, ...] = field(default=(), metadata=WORDS)
    """Protected categories; empty means all that the detectors find. ``pii`` = person + location + contact data."""
    max_words: int = 128
    """A sentence, or a row with a label or tags, that has more words becomes consecutive pieces."""
    num_users: int = field(default=200, metadata={"of": {"format": ("synthetic", "pseudo-users")}})
    """``synthetic`` and ``pseudo-users`` only: how many users to make."""
    read_as: TextFormat = field(default="text", metadata=ADDED | _CUT)
    """``pseudo-users`` only: the format of the file whose sentences are dealt out to users; those that it names play no
    part."""
    sentences_per_user: int = field(default=15, metadata=ADDED | _CUT)
    """``pseudo-users`` only."""
    min_words: int = field(default=1, metadata=ADDED | _CUT)
    """``pseudo-users`` only: shorter sentences are joined with the next, up to ``max_words``."""
    skip_users: int = field(default=0, metadata=ADDED | _CUT)
    """``pseudo-users`` only: users at the beginning to leave out, such as those that another source takes."""
    skip_rows: int = field(default=0, metadata=_BY_PLACE)
    """``ag-news`` and ``sst-2`` only, whose users follow from the place of a row: rows at the beginning to leave out,
    such as those that another source takes."""
    num_rows: int | None = field(default=None, metadata=_BY_PLACE)
    """``ag-news`` and ``sst-2`` only: rows to read at most, after those; None: all."""
    part: Literal["private", "held_out", "public", "proxy"] = field(
        default="private", metadata={"of": {"format": ("synthetic",)}}
    )
    """``synthetic`` only: which part of the generated language; the parts share no user."""
    seed: int = field(default=0, metadata={"of": {"format": ("synthetic", "ag-news")}})
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
        at_least("min_words", self.min_words, 1, most=self.max_words)
        at_least("num_users", self.num_users, 1)
        at_least("sentences_per_user", self.sentences_per_user, 1)
        at_least("skip_users", self.skip_users, 0)
        at_least("skip_rows", self.skip_rows, 0)
        if self.num_rows is not None:
            at_least("num_rows", self.num_rows, 1)
        seed("seed", self.seed)
        check_choices(self)

    @property
    def where(self) -> str:
        """What a message calls it: its path, or its format if it is generated."""
        return self.path or self.format


@dataclass(frozen=True, kw_only=True)
class TransformConfig:
    """What is done to each private sentence after its entities were found, and before it is tokenised."""

    kind: TransformKind = "none"
    """The transform of that name (``corpus.transforms``)."""
    apply_to_evaluation: bool = field(default=False, metadata=_TRANSFORMED)
    """Whether the model is scored on the evaluation text as transformed, too, beside the score on it as it is."""

    style: MaskStyle = field(default="category", metadata=_MASKED)
    """``mask`` only: what takes a mention's place: its category, the same word for every mention, or nothing."""

    words: int = field(default=4, metadata=_CUT_UP)
    """``fragments`` only: of a piece."""
    share: float = field(default=0.5, metadata=_CUT_UP)
    """``fragments`` only: the probability that a piece is kept."""

    mechanism: WordMechanism = field(default="custext", metadata=_REPLACED)
    """``replace_words`` only: how a word's replacement is drawn (``corpus.word_mechanisms``)."""
    vectors: str = field(default="", metadata=_REPLACED)
    """``replace_words`` only: word vectors as text (GloVe, word2vec), frequent words first; public."""
    epsilon: float = field(default=1.0, metadata=_METRIC)
    """``replace_words`` only: of one draw; of all but ``custext``, times the distance between two words."""
    distance: WordDistance = field(default="euclidean", metadata=_CUSTEXT)
    """``custext`` only: which words are near."""
    num_neighbours: int = field(default=50, metadata=_CUSTEXT)
    """``custext`` only: K, the words that a word may become."""
    mapping: WordMapping = field(default="balanced", metadata=_CUSTEXT)
    """``custext`` only: how words share their neighbours, and so among which a word is hidden."""
    selection: float = field(default=0.75, metadata=_VICKREY)
    """``vickrey`` only: t, from 0 (always the nearest word, as ``fbdd``) to 1 (always the second)."""
    neighbour_weights: tuple[float, ...] = field(default=(), metadata=_VICKREY)
    """``vickrey`` only: t_1 … t_k of a choice among the k nearest words; empty: between two, by ``selection``."""
    mahalanobis: float = field(default=0.0, metadata=_VICKREY)
    """``vickrey`` only: λ, how far the noise follows the spread of the vectors; 0: not at all."""
    draw: WordDraw | None = field(default=None, metadata=_REPLACED)
    """``replace_words`` only: how often a word is drawn: at each occurrence (``token``), once in a sentence (``record``) or
    once for a user. None: ``token``, and ``user`` where ``scope`` is ``entities``."""
    keep_stop_words: bool = field(default=False, metadata=_REPLACED)
    """``replace_words`` only: whether English function words stay as they are, unprotected."""
    scope: WordScope = field(default="all", metadata=_REPLACED)
    """``replace_words`` only: every word, or protected mentions only, each as a whole."""
    unknown: UnknownRule = field(default="uniform", metadata=_REPLACED)
    """``replace_words`` only: what becomes of a word without a vector, and of a mention of several words."""
    category_list: str = field(default="", metadata=_REPLACED)
    """``replace_words`` only: a file of public names, each with its category, for ``unknown: category_list``."""

    sharer_probs: tuple[float, ...] = field(default=(0.002, 0.006, 0.02), metadata=_PLANTED)
    """``plant`` only: p_u, the probability that a user is a sharer of a canary; each with each of ``planting_probs``."""
    planting_probs: tuple[float, ...] = field(default=(0.01, 0.1, 1.0), metadata=_PLANTED)
    """``plant`` only: p_e, the probability that a sentence of a sharer is replaced by the canary."""
    canaries_per_cell: int = field(default=10, metadata=_PLANTED)
    """``plant`` only: canaries for each pair of probabilities."""
    canary_words: int = field(default=64, metadata=_PLANTED)
    """``plant`` only: the words of a public list that canaries are drawn from; their cube is |R|, the suffixes that a
    canary is ranked among."""
    canary_seed: int = field(default=0, metadata=_PLANTED)
    """``plant`` only: which canaries; public."""

    def __post_init__(self) -> None:
        if self.draw == "dataset":
            remedy = "one draw for everybody would show what one user's words became in other users' texts: use user"
            raise InputError("corpus.transform.draw", self.draw, remedy)
        check_choices(self, "corpus.transform")
        at_least("corpus.transform.words", self.words, 1)
        probability("corpus.transform.share", self.share)
        positive("corpus.transform.epsilon", self.epsilon)
        at_least("corpus.transform.num_neighbours", self.num_neighbours, 1)
        probability("corpus.transform.selection", self.selection)
        for weight in self.neighbour_weights:
            positive("corpus.transform.neighbour_weights", weight)
        below_one("corpus.transform.mahalanobis", self.mahalanobis)
        self._check_planted()
        if self.kind != "replace_words":
            return
        if not self.vectors:
            raise InputError("corpus.transform.vectors", "", "name a file of word vectors, such as GloVe's")
        if (self.unknown == "category_list") != bool(self.category_list):
            remedy = (
                "is for corpus.transform.unknown: category_list: give both, a file of names with categories, or neither"
            )
            raise InputError("corpus.transform.category_list", self.category_list, remedy)

    @property
    def word_draw(self) -> WordDraw:
        """``draw`` with its default decided."""
        return self.draw or ("user" if self.scope == "entities" else "token")

    def _check_planted(self) -> None:
        for name in ("sharer_probs", "planting_probs"):
            if not getattr(self, name):
                raise InputError(f"corpus.transform.{name}", [], "give one probability or more")
            for value in getattr(self, name):
                probability(f"corpus.transform.{name}", value)
        at_least("corpus.transform.canary_words", self.canary_words, 8, most=MOST_CANARY_WORDS)
        cells = len(self.sharer_probs) * len(self.planting_probs)
        at_least("corpus.transform.canaries_per_cell", self.canaries_per_cell, 1, most=_MOST_CANARIES // cells)
        seed("corpus.transform.canary_seed", self.canary_seed)


@dataclass(frozen=True, kw_only=True)
class CorpusConfig:
    """The private corpus and what may be said about it in public."""

    source: SourceConfig = field(default_factory=lambda: SourceConfig(format="synthetic"))
    """The private text."""
    declared_num_users: int | None = None
    """Public upper bound on the number of users; the normaliser and ``reweight`` use it, the loader checks it."""
    declared_num_tokens: int | None = None
    """Public estimate of the corpus size, for throughput figures only."""
    categories: tuple[str, ...] = field(default=(), metadata=WORDS)
    """Protected categories, of those that ``source`` was prepared with; empty means all of them. A setting of the run: one
    prepared corpus serves every choice."""
    transform: TransformConfig = field(default_factory=TransformConfig, metadata=ADDED)
    """What is done to its sentences before they are tokenised."""
    regroup: Regrouping = field(default="users", metadata=ADDED)
    """Whose a sentence is: its user's, its own (``records``), or that of a user to whom it is dealt, by a key of the run
    (``iid``). Other than ``users``, what is protected is one record, a sentence, and no person; and ``declared_num_users``
    bounds the number of these users."""
    evaluation: SourceConfig | None = None
    """Text on which the model is scored. It must be outside the protected set."""
    evaluation_basis: Literal["public", "held_out_users"] = "held_out_users"
    """Why evaluating is safe: public text, or users declared to be outside the protected set."""

    def __post_init__(self) -> None:
        at_least("corpus.declared_num_users", self.declared_num_users, 1, most=_MOST_USERS, optional=True)
        at_least("corpus.declared_num_tokens", self.declared_num_tokens, 1, optional=True)
        check_choices(self, "corpus")


@dataclass(frozen=True, kw_only=True)
class VocabularyConfig:
    """How text becomes token ids."""

    kind: VocabularyKind | None = None
    """A published tokenizer; a vocabulary of public text, of words or of pieces of words (byte pair encoding over bytes, in
    which no text is unknown); or words released from private text with noise. None: the tokenizer that a pretrained model
    came with; for other models ``public-words``."""
    path: str = field(default="", metadata={"names": "hub"})
    """``tokenizer``: folder, ``tokenizer.json`` or hub name. For a pretrained model, empty means the model's own."""
    public_text: tuple[SourceConfig, ...] = ()
    """``public-words`` and ``public-subwords``: text to count in; empty means ``pretrain.text``."""
    max_size: int = 10_000
    """Tokens at most, special ones included: three beside words, two beside pieces of words."""
    min_count: int = 1
    """``public-words``: rarer words are left out. ``public-subwords``: rarer pairs of pieces are not joined."""
    lowercase: bool = True
    """Whether text is lower-cased; not for ``tokenizer``."""
    strip_punctuation: bool = False
    """The paper lower-cases and removes punctuation marks."""
    noise_multiplier: float | None = None
    """``noisy-threshold``: noise std over the L2 norm of one user's word histogram."""
    threshold_delta: float | None = None
    """``noisy-threshold``: share of delta spent on words only the protected user or entity holds."""
    max_words_per_user: int = 100
    """``noisy-threshold``: words that one user contributes, the same number of each sentence."""
    replace_embeddings: bool = False
    """Lets a pretrained model use another vocabulary instead of its own tokenizer: its embeddings are then redrawn."""

    def __post_init__(self) -> None:
        check_choices(self, "vocabulary")
        if self.kind == "noisy-threshold":
            positive("vocabulary.noise_multiplier", self.noise_multiplier)
            positive("vocabulary.threshold_delta", self.threshold_delta)
        at_least("vocabulary.max_size", self.max_size, 4)
        if self.kind == "public-subwords" and self.max_size < FEWEST_SUBWORDS:
            remedy = f"{self.kind} has a token for every byte, and two more: {FEWEST_SUBWORDS} or more"
            raise InputError("vocabulary.max_size", self.max_size, remedy)
        at_least("vocabulary.min_count", self.min_count, 1)
        at_least("vocabulary.max_words_per_user", self.max_words_per_user, 1)


@dataclass(frozen=True, kw_only=True)
class PretrainConfig:
    """Ordinary training on public text."""

    text: tuple[SourceConfig, ...] = ()
    """The public text; none: no pre-training."""
    max_words: int | None = None
    """Words of it to read; none: all."""
    num_steps: int = 500
    """Optimizer steps (AdamW)."""
    batch_size: int = 32
    """Sentences of a step."""
    learning_rate: float = 1e-3
    """Of AdamW, after a warm-up and before a decay."""
    seed: int = 0
    """Initial parameters, order and dropout."""

    def __post_init__(self) -> None:
        at_least("pretrain.num_steps", self.num_steps, 0)
        at_least("pretrain.batch_size", self.batch_size, 1)
        at_least("pretrain.max_words", self.max_words, 1, optional=True)
        positive("pretrain.learning_rate", self.learning_rate)
        seed("pretrain.seed", self.seed)

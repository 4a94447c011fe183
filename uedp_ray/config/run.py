"""One run: its sections, the constraints between them, and the file they are read from and written to.

    >>> from dataclasses import replace
    >>> from uedp_ray.config import BoundsConfig, CorpusConfig, PrivacyConfig, RunConfig
    >>> config = RunConfig(
    ...     corpus=CorpusConfig(declared_num_users=1000),
    ...     bounds=BoundsConfig(max_sentences_per_entity=3),
    ...     privacy=PrivacyConfig(target_epsilon=8.0, l2_clip_norm=0.5, sentence_clip_norm=0.1),
    ... )
    >>> round(config.entity_clip_norm, 3), config.extended_clip_norm    # 3 sentences, or one, of a user's update
    (0.3, 0.1)
    >>> elsewhere = replace(config, name="again", training=replace(config.training, device="cpu"))
    >>> longer = replace(config, training=replace(config.training, num_rounds=7))
    >>> elsewhere.digest() == config.digest(), longer.digest() == config.digest()    # what may change on resume
    (True, False)
    >>> replace(config, bounds=BoundsConfig(mode="none"))
    Traceback (most recent call last):
        ...
    uedp_ray.errors.InputError: bounds.mode = 'none': entities are protected only within bounds: declared or enforced

A section checks itself when it is made; what one requires of another is checked here.
"""

from __future__ import annotations

import hashlib
import json
import operator
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import Field, dataclass, field, fields, is_dataclass, replace
from pathlib import Path
from typing import Any

import yaml

from uedp_ray.config.choices import ADDED, BOUNDING_SENTENCES, CLAIMING_NOTHING, WORDS
from uedp_ray.config.io import from_dict, of_file, parse_overrides, read_yaml, set_keys, to_dict, to_digest
from uedp_ray.config.sections import (
    BoundsConfig,
    ModelConfig,
    PrivacyConfig,
    RepresentationConfig,
    TaskConfig,
    TrainingConfig,
)
from uedp_ray.config.texts import CorpusConfig, PretrainConfig, VocabularyConfig
from uedp_ray.errors import InputError, one_line
from uedp_ray.units import RECORD

MAY_CHANGE = (
    *("num_workers", "aggregation", "max_failures", "device", "gradient_checkpointing", "batch_tokens"),
    *("evaluate_every", "checkpoint_every"),
)
"""Settings of ``training`` that may differ on resume."""
_MOST_ROUNDS = 10**9


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """One model: text in; checkpoint, ledger and privacy statement out."""

    name: str = field(default="run", metadata=WORDS)
    """Names ``runs/NAME`` where no folder is given."""
    corpus: CorpusConfig = field(default_factory=CorpusConfig)
    """The private text, and the text to score on."""
    task: TaskConfig = field(default_factory=TaskConfig, metadata=ADDED)
    """What is asked of the network."""
    vocabulary: VocabularyConfig = field(default_factory=VocabularyConfig)
    """How text becomes tokens."""
    bounds: BoundsConfig = field(default_factory=BoundsConfig)
    """What one user or entity may contribute."""
    privacy: PrivacyConfig = field(default_factory=lambda: PrivacyConfig(target_epsilon=8.0))
    """The mechanism."""
    model: ModelConfig = field(default_factory=ModelConfig)
    """The network."""
    representation: RepresentationConfig = field(default_factory=RepresentationConfig, metadata=ADDED)
    """What each user sends in place of its text, if it is that."""
    training: TrainingConfig = field(default_factory=TrainingConfig)
    """Rounds, updates and the machine."""
    pretrain: PretrainConfig = field(default_factory=PretrainConfig)
    """Ordinary training on public text beforehand."""

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[^/\\$]+", self.name) or self.name in (".", ".."):
            raise InputError("name", self.name, "names a folder under runs/: leave out / and $")
        if self.training.passes is not None:  # as rounds, whatever else is changed later
            object.__setattr__(
                self, "training", replace(self.training, num_rounds=self._rounds_of(self.training.passes))
            )
        self._check_local()
        private = self.privacy.noise == "calibrated"
        self._check_regrouped(private)
        if private and self.bounds.mode == "none" and self.privacy.unit != "user":
            raise InputError("bounds.mode", "none", "entities are protected only within bounds: declared or enforced")
        public = {"vocabulary.public_text": self.vocabulary.public_text, "pretrain.text": self.pretrain.text}
        for name, source in ((name, source) for name, sources in public.items() for source in sources):
            if self.guarded and _same_file(source.path, self.corpus.source.path):
                raise InputError(name, source.path, "is the private text itself: name public text")
        share = self.vocabulary.threshold_delta
        if private and self.vocabulary.kind == "noisy-threshold" and share is not None and share >= self.privacy.delta:
            raise InputError(
                "vocabulary.threshold_delta", share, f"must be a part of privacy.delta = {self.privacy.delta:g}"
            )
        if self.training.loop == "epochs" and (self.privacy.noise != "none" or self.privacy.clip):
            remedy = "protects nobody: use rounds, or set privacy.noise: none and privacy.clip: false (method ordinary)"
            raise InputError("training.loop", "epochs", remedy)
        if self.training.loop == "epochs" and self.bounds.mode != "none":
            raise InputError("training.loop", "epochs", "keeps no bounds: set bounds.mode: none (method ordinary)")
        self._check_pretrained()
        self._check_representation()
        limit = 2.0 * self.privacy.l2_clip_norm
        given = {self.bounds.holder_bound, self.bounds.entity_bound}
        reweighted = self.bounds.mode == "enforced" and given != {"truncate"}
        averaged = (private or self.is_local) and (self.privacy.normalizer == "public" or reweighted)
        if averaged and self.corpus.declared_num_users is None:
            raise InputError(
                "corpus.declared_num_users",
                None,
                "declare a public upper bound on the number of users (the true count is private)",
            )
        self._check_holders()
        if self._bounds_sentences and private and reweighted and self.entity_clip_norm >= limit:
            bounds = self.bounds
            named = {"bounds.entity_bound": bounds.entity_bound, "bounds.holder_bound": bounds.holder_bound}
            reweighting = " and ".join(f"{name} = {bound}" for name, bound in named.items() if bound != "truncate")
            remedy = (
                f"{reweighting}: a user's bounds.max_sentences_per_entity = {bounds.max_sentences_per_entity} sentences "
                "with one entity together must move the user's update by less than twice privacy.l2_clip_norm = "
                f"{self.privacy.l2_clip_norm:g}. Lower the clip or the number, or use truncate"
            )
            raise InputError("privacy.sentence_clip_norm", self.privacy.sentence_clip_norm, remedy)
        if not self._bounds_sentences and reweighted:
            raise InputError(
                "bounds.holder_bound / bounds.entity_bound",
                (self.bounds.holder_bound, self.bounds.entity_bound),
                f"{self.training.local_update} does not bound a reweighted sentence's effect: use truncate",
            )
        if not (self._bounds_sentences or self.is_local) and self.privacy.sentence_clip_norm is not None:
            raise InputError(
                "privacy.sentence_clip_norm",
                self.privacy.sentence_clip_norm,
                f"{self.training.local_update} cannot use it (an entity may move a user's update by 2 l2_clip_norm): "
                "set it to null",
            )

    def _check_local(self) -> None:
        """Refuses what would void the guarantee of a sentence against the server, or is left out of it."""
        training, privacy, noisy = self.training, self.privacy, self.vocabulary.kind == "noisy-threshold"
        if not self.is_local:
            return
        asked: list[tuple[str, Any, bool, str]] = [
            ("training.loop", training.loop, training.loop == "rounds", "use rounds"),
            ("privacy.noise", privacy.noise, privacy.noise == "none", "each user adds it: none, as in local_dp_fedavg"),
            ("privacy.normalizer", privacy.normalizer, privacy.normalizer == "public", "the mean is plain: use public"),
            (
                "privacy.sentence_clip_norm",
                None,
                privacy.sentence_clip_norm is not None,
                "give the bound on a gradient",
            ),
            ("training.local_noise_multiplier", None, training.local_noise_multiplier is not None, "give the noise"),
            ("vocabulary.kind", "noisy-threshold", not noisy, "counts all users' words in one place: use public-words"),
        ]
        for setting, value, good, remedy in asked:
            if not good:
                raise InputError(setting, value, f"training.local_update is local_dp_sgd: {remedy}")

    def _rounds_of(self, passes: float) -> int:
        share = self.share_of_users
        if passes > _MOST_ROUNDS * share:
            remedy = f"takes more than {_MOST_ROUNDS:g} rounds at privacy.user_sampling_prob = {share:g}: lower it"
            raise InputError("training.passes", passes, remedy)
        return max(1, round(passes / share))

    def _check_pretrained(self) -> None:
        words, model = self.vocabulary, self.model
        if words.kind == "tokenizer" and not self.words.path:
            raise InputError("vocabulary.path", "", "name a tokenizer folder, file or hub id")
        if words.kind not in (None, "tokenizer") and model.architecture == "pretrained":
            if not words.replace_embeddings and not model.warm_start:
                remedy = "a pretrained model knows the tokens it came with: leave it out to keep them, or add"
                raise InputError("vocabulary.kind", words.kind, f"{remedy} vocabulary.replace_embeddings: true")
        elif words.replace_embeddings:
            remedy = "is for a pretrained model that is given words: add vocabulary.kind, or drop it"
            raise InputError("vocabulary.replace_embeddings", True, remedy)

    def _check_representation(self) -> None:
        """Refuses what would let something else than the noised vectors into the model."""
        if self.representation.kind == "none":
            return
        needed: dict[str, Any] = {"task.kind": "classify", "model.trainable": "head", "training.loop": "epochs"}
        dropouts = ("dropout_embedding", "dropout_input", "dropout_hidden", "dropout_weight", "dropout_output")
        needed |= {f"model.{name}": 0.0 for name in dropouts}
        for name, value in needed.items():
            found = operator.attrgetter(name)(self)
            if found != value:
                remedy = f"representation.kind {self.representation.kind} needs {value}"
                raise InputError(name, found, remedy)
        if self.vocabulary.kind == "noisy-threshold":
            remedy = "counts words of the text, of which vectors are all that leaves a user: use public-words"
            raise InputError("vocabulary.kind", self.vocabulary.kind, remedy)

    def _check_holders(self) -> None:
        bounds, users = self.bounds, self.corpus.declared_num_users
        if self.privacy.noise == "none" or bounds.mode != "enforced" or bounds.holder_bound == "truncate":
            return
        if users is None:
            remedy = (
                f"{bounds.holder_bound} needs a public upper bound on the number of users: declare it, or use truncate"
            )
            raise InputError("corpus.declared_num_users", None, remedy)
        if bounds.max_holders > users:
            remedy = f"no more than corpus.declared_num_users = {users} can hold an entity: lower it"
            raise InputError("bounds.max_holders", bounds.max_holders, remedy)

    def _check_regrouped(self, private: bool) -> None:
        """Refuses what would promise anything else than one record of text whose users are no persons."""
        rule, clip = self.corpus.regroup, self.privacy.sentence_clip_norm
        if rule == "users":
            return
        why = f"under corpus.regroup: {rule} one record is protected, and nothing else:"
        if self.privacy.unit != "user":
            raise InputError("privacy.unit", self.privacy.unit, f"{why} use user (methods record_dp, user_dp)")
        if self.bounds.mode != "none":
            raise InputError("bounds.mode", self.bounds.mode, f"{why} use none (methods record_dp, user_dp)")
        if self.is_local:
            remedy = "has a promise of each user's sentences: use gradient or local_sgd, or corpus.regroup: users"
            raise InputError("training.local_update", self.training.local_update, f"{why} it {remedy}")
        transform = self.corpus.transform
        if transform.kind == "replace_words" and transform.word_draw == "user":
            remedy = "a person's word would be drawn, and paid for, for each user that has it in a record: use record"
            raise InputError("corpus.transform.draw", transform.draw, f"{why} {remedy}")
        if rule == "records" or not private:
            return
        if not self._bounds_sentences or clip is None or clip > self.privacy.l2_clip_norm:
            remedy = (
                "a record shares its update with others, which it may turn around: give a clip of at most "
                f"privacy.l2_clip_norm = {self.privacy.l2_clip_norm:g}, and training.local_update: gradient"
            )
            raise InputError("privacy.sentence_clip_norm", clip, f"{why} {remedy}")
        if self.vocabulary.kind == "noisy-threshold":
            remedy = "no bound is known on what one of a user's records changes in it: use words of public text"
            raise InputError("vocabulary.kind", self.vocabulary.kind, f"{why} {remedy}")

    @property
    def unit(self) -> str:
        """Whose part in the text is hidden, if anybody's: ``privacy.unit``, but one record where users are no persons."""
        return self.privacy.unit if self.corpus.regroup == "users" else RECORD

    @property
    def is_local(self) -> bool:
        """Whether each user adds noise of its own to what it sends, and nobody else adds any."""
        return self.training.local_update == "local_dp_sgd"

    @property
    def guarded(self) -> bool:
        """Whether something is to be guaranteed, so that public text must not be the private text."""
        noised = self.representation.kind != "none" or self.corpus.transform.kind not in CLAIMING_NOTHING
        return self.privacy.noise == "calibrated" or self.is_local or noised

    @property
    def share_of_users(self) -> float:
        """Of those declared, how many a round trains on in the mean: q_u, and everyone in an epoch."""
        return 1.0 if self.training.loop == "epochs" else self.privacy.user_sampling_prob

    @property
    def words(self) -> VocabularyConfig:
        """The vocabulary with its kind decided: a pretrained model keeps its own tokenizer by default."""
        vocabulary, own = self.vocabulary, self.model.architecture == "pretrained"
        kind = vocabulary.kind or ("tokenizer" if own else "public-words")
        path = vocabulary.path or (self.model.path if own and kind == "tokenizer" else "")
        return replace(vocabulary, kind=kind, path=path)

    @property
    def words_are_tokens(self) -> bool:
        """Whether each word is to be one token, of a vocabulary of words that keeps words of punctuation marks alone."""
        return self.words.kind == "public-words" and not self.words.strip_punctuation

    @property
    def starts_public(self) -> bool:
        """Whether training starts from a public model, with words of its own. ``pretrain.text`` alone makes none."""
        pretrained = self.model.architecture == "pretrained" and self.words.kind != "noisy-threshold"
        return bool(self.model.warm_start) or pretrained

    @property
    def entity_clip_norm(self) -> float:
        """beta_e: how far one entity can move one user's update, min(2 beta, m c)."""
        return self._moved_by(self.bounds.max_sentences_per_entity)

    @property
    def extended_clip_norm(self) -> float:
        """How far one sentence without entities can move one user's update, min(2 beta, c)."""
        return self._moved_by(1)

    @property
    def _bounds_sentences(self) -> bool:
        return self.training.local_update in BOUNDING_SENTENCES

    def _moved_by(self, num_sentences: int) -> float:
        sentence_clip_norm = self.privacy.sentence_clip_norm
        limit = 2.0 * self.privacy.l2_clip_norm
        return (
            limit
            if sentence_clip_norm is None or not self._bounds_sentences
            else min(limit, num_sentences * sentence_clip_norm)
        )

    def digest(self) -> str:
        """SHA-256 over the resolved config, less what may change on resume (name and machine settings)."""
        tree = to_digest(self)
        del tree["name"]
        for key in MAY_CHANGE:
            tree["training"].pop(key, None)  # it may be younger than digests
        return hashlib.sha256(json.dumps(tree, sort_keys=True).encode()).hexdigest()


def check_rounds(training: Any, overrides: Mapping[str, Any], section: str = "training") -> None:
    """Refuses an override of ``num_rounds`` in a file whose ``passes`` would decide it; ``training``: with all overrides.

    Raises: InputError.
    """
    key, decides = f"{section}.num_rounds", f"{section}.passes"
    passes = training.get("passes") if isinstance(training, Mapping) else None
    if overrides.get(key) is not None and passes is not None and decides not in overrides:
        remedy = f"{decides} = {one_line(str(passes), 40)} decides the rounds: add --set {decides}=null"
        raise InputError(key, overrides[key], remedy)


def load_config(path: str | Path, overrides: Iterable[str] = ()) -> RunConfig:
    """Reads a YAML run file and applies ``a.b=value`` overrides (values are YAML)."""
    tree = read_yaml(path)
    if "base" in tree:
        kind, command = ("comparison", "compare") if "variants" in tree else ("sweep", "sweep")
        raise InputError("config", str(path), f"is a {kind} file: use uedp-ray {command}, or name a run file")
    settings = parse_overrides(overrides)
    with of_file(path, settings):
        tree = set_keys(tree, settings)
        check_rounds(tree.get("training"), settings)
        return from_dict(RunConfig, tree)


def dump_config(config: RunConfig, path: str | Path) -> None:
    """Writes the complete, resolved config as YAML."""
    Path(path).write_text(_dumped(config), encoding="utf-8")


def as_yaml(config: RunConfig) -> str:
    """The config for people to read: without defaults of settings that a source's format, or a transform's kind, has no use
    for."""
    return yaml.safe_dump(_used(config), sort_keys=False, allow_unicode=True)


def _used(section: Any) -> Any:
    if isinstance(section, tuple):
        return [_used(each) for each in section]
    if not is_dataclass(section):
        return section
    kept = {each.name: getattr(section, each.name) for each in fields(section) if not _foreign(section, each)}
    return {name: _used(value) for name, value in kept.items()}


def _foreign(section: Any, setting: Field[Any]) -> bool:
    return why_unused(section, setting) is not None and getattr(section, setting.name) == setting.default


def why_unused(section: Any, setting: Field[Any]) -> str | None:
    """Which other setting of a section leaves a setting without use, and its value, as the metadata ``of`` says."""
    ours = setting.metadata.get("among", {})
    for key, needed in setting.metadata.get("of", {}).items():
        if (value := getattr(section, key)) not in needed and value in ours.get(key, (value,)):
            return f"{key} is {value}"
    return None


def is_dumped(path: Path) -> bool:
    """Whether a file is exactly what ``dump_config`` writes, not typed by hand."""
    try:
        return path.read_text(encoding="utf-8") == _dumped(load_config(path))
    except (OSError, UnicodeDecodeError, InputError):
        return False


def _dumped(config: RunConfig) -> str:
    return yaml.safe_dump(to_dict(config), sort_keys=False, allow_unicode=True)


def _same_file(one: str, other: str) -> bool:
    """Whether two paths are one file or folder, links and spelling aside; equal texts are detected later."""
    if not one or not other:
        return False
    one, other = (os.path.expandvars(path) for path in (one, other))
    try:
        return os.path.samefile(one, other)
    except OSError:  # one of them does not exist here
        return os.path.realpath(one) == os.path.realpath(other)

"""The names that settings choose among, and what a field's metadata may say. A new name is a line here.

A ``Literal`` is checked by ``limits.check_choices`` wherever a section has a field of it.
"""

from __future__ import annotations

from typing import Literal

SourceFormat = Literal[
    "prepared", "conll", "ag-news", "sst-2", "jsonl", "parquet", "speeches", "text", "pseudo-users", "synthetic"
]
TextFormat = Literal["text", "conll", "ag-news", "sst-2", "jsonl", "parquet", "speeches"]
"""Formats of files of others: those that are neither generated nor made here."""
GENERATED = frozenset({"synthetic"})
"""Formats whose reader reads no file; any other needs a path."""
PLACED = ("ag-news", "sst-2")
"""Formats of which a user is made of rows by their place."""
Regrouping = Literal["users", "records", "iid"]
SelectionRule = Literal["all", "any"]
EntityDraw = Literal["global", "per_user"]
SurplusRule = Literal["truncate", "reweight"]
HolderRule = Literal["truncate", "reweight", "fill"]
TaskKind = Literal["next_word", "classify", "tag_words", "tag_entities"]
TransformKind = Literal["none", "mask", "fragments", "replace_words", "plant"]
CLAIMING_NOTHING = frozenset({"none", "mask", "fragments", "plant"})
"""Transforms that guarantee nothing. Where there is another, public text must not be the private text."""
MaskStyle = Literal["category", "token", "remove"]
WordMechanism = Literal["custext", "santext", "fbdd", "vickrey", "random"]
WordDistance = Literal["euclidean", "cosine"]
WordMapping = Literal["aggressive", "balanced", "conservative"]
WordDraw = Literal["token", "record", "user"]
WordScope = Literal["all", "entities"]
UnknownRule = Literal["uniform", "category_list", "copy"]
RepresentationKind = Literal["none", "laplace", "laplace_published", "gaussian", "gaussian_published"]
VocabularyKind = Literal["tokenizer", "public-words", "public-subwords", "noisy-threshold"]
ArchitectureName = Literal["gpt2", "awd_lstm", "bert", "pretrained"]
LocalUpdateName = Literal["gradient", "local_sgd", "local_dp_sgd"]
BOUNDING_SENTENCES = frozenset({"gradient"})
"""Local updates under which a sentence moves its user's update by its weight times ``sentence_clip_norm`` at most, by proof.
A name that is not here bounds nothing but the user's update as a whole."""
KEEPING_USERS_APART = frozenset(
    {"gradient", "local_sgd", "local_dp_sgd", "next_word", "classify", "tag_words", "tag_entities"}
)
"""Local updates and tasks of which docs/accounting.md proves that a user's update follows from that user alone. Of a name
that is not here it is assumed, and ``privacy.md`` says so."""
PROVED_TRANSFORMS = frozenset({"mask", "fragments", "replace_words", "plant"})
PROVED_WORD_MECHANISMS = frozenset({"custext", "santext", "fbdd", "vickrey", "random"})
"""Transforms and word mechanisms of which docs/accounting.md proves what they claim, and that what becomes of a sentence
follows from it alone. What a name that is not here claims is no guarantee, and the rest is assumed of it."""
PROVED_ARCHITECTURES = frozenset({"gpt2", "awd_lstm", "bert", "pretrained"})
"""Architectures whose networks keep sentences apart. Of a name that is not here it is assumed."""
ServerOptimizerName = Literal["sgd", "momentum", "adam", "adamw"]
TrainablePart = Literal["full", "lora", "bias_norm", "head"]
ADDED = {"added": True}
"""Metadata of a field that is younger than digests (``io.to_digest``): every new one has it."""
WORDS = {"names": "words"}
"""Metadata of a field of text that names no file; one that says nothing names a file (``files.map_files``)."""

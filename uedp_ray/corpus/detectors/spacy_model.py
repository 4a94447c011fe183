"""The entities of a spaCy pipeline, an installed package or a folder."""

from __future__ import annotations

import functools
import hashlib
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from importlib import import_module
from itertools import islice
from pathlib import Path
from typing import Any

from uedp_ray.corpus.categories import canonical
from uedp_ray.corpus.detectors.base import AtLeast, Findings, Reads, modified
from uedp_ray.corpus.records import Mention, Sentence
from uedp_ray.errors import InputError

_SPACY_BATCH = 256
_NER = frozenset(["ner", "beam_ner", "tok2vec", "transformer", "curated_transformer"])
_NOT_NER = frozenset(["tagger", "morphologizer", "parser", "senter", "attribute_ruler", "lemmatizer", "textcat"])


_COMPARED = ("de", "en", "es", "fr", "it", "nl", "pt")
_SENTENCES, _FEWEST_WORDS = 10_000, 200
_MANY = 0.2
"""The share of a text's words that are stop words of its language, at least; of another language they are far fewer."""


class SpacyPipeline:
    """A spaCy pipeline. Components that entities do not depend on are left out where that is certain.

    Raises: InputError if the model is missing, cannot be loaded or recognises no entities.
    """

    cacheable = True
    reads: Reads = "sentences"

    def __init__(self, spec: str):
        import spacy  # takes a second to import: only when asked for

        name = spec.partition(":")[2]
        try:
            self._pipeline: Any = spacy.load(name)
        except OSError:
            remedy = f"no such spaCy model: name a model folder, or run python -m spacy download {name}"
            raise InputError("detector", spec, remedy) from None
        except (ImportError, ValueError):
            remedy = "does not load: it is damaged, of another spaCy version, or needs a package that is not installed"
            raise InputError("detector", spec, remedy) from None
        kinds = {pipe: self._pipeline.get_pipe_meta(pipe).factory for pipe in self._pipeline.pipe_names}
        finders = [pipe for pipe in kinds if "doc.ents" in self._pipeline.get_pipe_meta(pipe).assigns]
        if not finders:
            raise InputError("detector", spec, "the pipeline has no entity recogniser: choose one with ner")
        if set(kinds.values()) <= _NER | _NOT_NER:  # rules and the user's own components may read anything
            self._pipeline.select_pipes(disable=[pipe for pipe, kind in kinds.items() if kind in _NOT_NER])
        labels = self._pipeline.pipe_labels
        known = (canonical(label) for pipe in finders for label in labels.get(pipe, ()))
        self.categories: frozenset[str] = AtLeast(known)  # a component need not list its labels
        self.language = str(self._pipeline.lang)
        self.fingerprint = f"spacy-{spacy.__version__}-{_digest_folder(self._pipeline.path)}"

    def find(self, sentences: Sequence[Sentence]) -> Findings:
        texts = [sentence.text for sentence in sentences]
        self._pipeline.max_length = max(self._pipeline.max_length, max(map(len, texts), default=0) + 1)
        return [
            tuple(Mention(e.label_, e.start_char, e.end_char) for e in document.ents)
            for document in self._pipeline.pipe(texts, batch_size=_SPACY_BATCH)
        ]


def of_other_language(specs: Sequence[str], texts: Iterable[str]) -> str:
    """What to tell the owner of a text that reads like another language than a pipeline among ``specs`` is for, by how
    many of its words are stop words of either; empty for any other, and where there is too little text to tell.
    """
    pipelines = [(spec, build(spec, spec.partition(":")[2])) for spec in specs if spec.startswith("spacy:")]
    if not any(pipeline.language in _COMPARED for _, pipeline in pipelines):
        return ""
    words = Counter(word for text in islice(texts, _SENTENCES) for word in re.findall(r"[^\W\d_]+", text.lower()))
    if words.total() < _FEWEST_WORDS:
        return ""
    stops = {name: import_module(f"spacy.lang.{name}.stop_words").STOP_WORDS for name in _COMPARED}
    shares = {name: sum(words[stop] for stop in stops[name]) / words.total() for name in _COMPARED}
    likely = max(shares, key=shares.__getitem__)
    for spec, pipeline in pipelines:
        if shares[likely] >= _MANY and shares.get(pipeline.language, 1.0) < shares[likely] / 2:
            return (
                f"the text reads like language {likely}, and {spec} is a pipeline for {pipeline.language}, which misses "
                "most names there: choose one for the language of the text (private: read off the text)"
            )
    return ""


def _digest_folder(folder: Path) -> str:
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        if path.is_file() and path.suffix != ".pyc":
            digest.update(f"{path.relative_to(folder)}\0{path.stat().st_size}\0".encode())
            with path.open("rb") as file:
                while block := file.read(1 << 20):
                    digest.update(block)
    return digest.hexdigest()


@functools.lru_cache(maxsize=4)
def _load_spacy(spec: str, _changed: int) -> SpacyPipeline:
    return SpacyPipeline(spec)


def build(spec: str, argument: str) -> SpacyPipeline:
    return _load_spacy(spec, modified(Path(argument, "config.cfg")))

"""Detectors of sensitive entities. They take text and say, for each, which stretches of it are sensitive.

    detectors = build_detectors(("annotated", "regex"))
    detectors[1].find([Sentence("u1", "write to ann@example.org")])      # [(Mention("email", 9, 24),)]

| spec | finds |
|---|---|
| annotated | what the corpus itself marks |
| regex | email, url, iban, credit_card (Luhn), ssn, ip_address, phone |
| list:FILE | phrases, one a line, optionally TAB category; any case, whole words |
| spacy:MODEL | the entities of a spaCy pipeline, an installed package or a folder |

What a detector misses is protected only sentence by sentence; its recall belongs in the privacy statement.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Literal, Protocol

from uedp_ray.corpus._lines import Lines
from uedp_ray.corpus._patterns import PATTERNS_VERSION, find_patterns
from uedp_ray.corpus._phrases import PhraseTrie
from uedp_ray.corpus.categories import LISTED, canonical
from uedp_ray.corpus.records import Mention, Sentence
from uedp_ray.errors import InputError

Findings = list[tuple[Mention, ...]]
Reads = Literal["marks", "rows", "sentences"]

_SPACY_BATCH = 256
_NER = frozenset(["ner", "beam_ner", "tok2vec", "transformer", "curated_transformer"])
_NOT_NER = frozenset(["tagger", "morphologizer", "parser", "senter", "attribute_ruler", "lemmatizer", "textcat"])


class Detector(Protocol):
    """``fingerprint`` changes whenever the findings on the same text could. ``cacheable``: findings depend on the
    text alone and cost more than reading them back. ``reads``: whole rows, or a sentence at a time, as a model was
    trained; see ``_windows``. ``categories``: what it may find, as far as its files tell."""

    fingerprint: str
    cacheable: bool
    reads: Reads
    categories: frozenset[str]

    def find(self, sentences: Sequence[Sentence]) -> Findings:
        """One tuple of mentions a sentence, in order; ``start`` and ``end`` of each are places in the sentence's text."""


class Annotated:
    """What the corpus itself marks."""

    fingerprint, cacheable, categories = "annotated", False, frozenset[str]()
    reads: Reads = "marks"

    def find(self, sentences: Sequence[Sentence]) -> Findings:
        return [sentence.mentions for sentence in sentences]


class Patterns:
    """Structured identifiers by regular expressions and check digits."""

    fingerprint, cacheable, categories = f"regex-{PATTERNS_VERSION}", False, frozenset[str]()
    reads: Reads = "rows"

    def find(self, sentences: Sequence[Sentence]) -> Findings:
        return [tuple(find_patterns(sentence.text)) for sentence in sentences]


class PhraseList:
    """A user's own list. Raises: InputError if the file is missing or holds no phrase."""

    cacheable = False
    reads: Reads = "rows"

    def __init__(self, spec: str):
        path = Path(spec.partition(":")[2])
        if not path.is_file():
            raise InputError("detector", spec, "no such file: list one phrase a line, optionally TAB category")
        entries = [line.strip("\r\n").partition("\t") for line in Lines(path)]
        phrases = [(phrase, canonical(category) or LISTED) for phrase, _, category in entries if phrase.strip()]
        if not phrases:
            raise InputError("detector", spec, "the list is empty: write one phrase a line")
        self._trie = PhraseTrie(phrases)
        self.fingerprint = f"list-{hashlib.sha256(repr(phrases).encode()).hexdigest()}"
        self.categories = frozenset(category for _, category in phrases)

    def find(self, sentences: Sequence[Sentence]) -> Findings:
        return [tuple(self._trie.find(sentence.text)) for sentence in sentences]


class SpacyPipeline:
    """A spaCy pipeline. Components that entities do not depend on are left out where that is certain.

    Raises: InputError if the model is not there, cannot be loaded or recognises no entities.
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
        self.categories = frozenset(canonical(label) for pipe in finders for label in labels.get(pipe, ()))
        self.fingerprint = f"spacy-{spacy.__version__}-{_digest_folder(self._pipeline.path)}"

    def find(self, sentences: Sequence[Sentence]) -> Findings:
        texts = [sentence.text for sentence in sentences]
        self._pipeline.max_length = max(self._pipeline.max_length, max(map(len, texts), default=0) + 1)
        return [
            tuple(Mention(e.label_, e.start_char, e.end_char) for e in document.ents)
            for document in self._pipeline.pipe(texts, batch_size=_SPACY_BATCH)
        ]


def _digest_folder(folder: Path) -> str:
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        if path.is_file() and path.suffix != ".pyc":
            digest.update(f"{path.relative_to(folder)}\0{path.stat().st_size}\0".encode())
            with path.open("rb") as file:
                while block := file.read(1 << 20):
                    digest.update(block)
    return digest.hexdigest()


def build_detectors(specs: Sequence[str]) -> tuple[Detector, ...]:
    """One detector a spec, in order. A process loads a model or a list once, as long as its files stay as they are.

    Raises: InputError for an unknown spec, no spec at all, or whatever the detector lacks.
    """
    if not specs:
        raise InputError("detector", list(specs), "name at least one of annotated, regex, list:FILE, spacy:MODEL")
    return tuple(_build(spec) for spec in specs)


def _build(spec: str) -> Detector:
    kind, _, argument = spec.partition(":")
    if spec == "annotated":
        return Annotated()
    if spec == "regex":
        return Patterns()
    if kind == "list":
        return _load_list(spec, _modified(Path(argument)))
    if kind == "spacy" and argument:
        return _load_spacy(spec, _modified(Path(argument, "config.cfg")))
    raise InputError("detector", spec, "choose among annotated, regex, list:FILE, spacy:MODEL")


def _modified(path: Path) -> int:
    return path.stat().st_mtime_ns if path.is_file() else 0


@functools.lru_cache(maxsize=4)
def _load_list(spec: str, _changed: int) -> PhraseList:
    return PhraseList(spec)


@functools.lru_cache(maxsize=4)
def _load_spacy(spec: str, _changed: int) -> SpacyPipeline:
    return SpacyPipeline(spec)


def unite(findings: Iterable[Sequence[Mention]], keep: frozenset[str] | None) -> tuple[Mention, ...]:
    """One sentence's mentions of all detectors, in order of place, without the categories not in ``keep``.

    Mentions of one category that overlap become one, from the first start to the last end; those of different
    categories stay apart. ``listed`` phrases are always kept, and None keeps everything.
    """
    united: dict[str, list[Mention]] = {}
    for mention in sorted((m for found in findings for m in found), key=lambda m: (m.start, m.end)):
        if keep is not None and mention.category not in keep and mention.category != LISTED:
            continue
        same = united.setdefault(mention.category, [])
        if same and mention.start < same[-1].end:
            same[-1] = Mention(mention.category, same[-1].start, max(same[-1].end, mention.end))
        else:
            same.append(mention)
    return tuple(sorted((m for same in united.values() for m in same), key=lambda m: (m.start, m.end, m.category)))

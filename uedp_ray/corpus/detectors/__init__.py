"""Detectors of sensitive entities. They take texts and say which parts of each are sensitive.

    >>> from uedp_ray.corpus.detectors import build_detectors
    >>> from uedp_ray.corpus.records import Mention, Sentence
    >>> text = "Ann Lee wrote to Bob Ray at bob@example.org from 192.0.2.7"
    >>> sentence = Sentence("u1", text, mentions=(Mention("PER", 0, 7),))
    >>> for spec in ("annotated", "capitalized", "regex"):
    ...     (detector,) = build_detectors([spec])
    ...     print(spec, [(found.category, text[found.start : found.end]) for found in detector.find([sentence])[0]])
    annotated [('person', 'Ann Lee')]
    capitalized [('misc', 'Lee'), ('misc', 'Bob Ray')]
    regex [('email', 'bob@example.org'), ('ip_address', '192.0.2.7')]

| spec | finds |
|---|---|
| annotated | what the corpus itself marks |
| capitalized | runs of capitalised words inside a sentence, for public text that stands in for private text |
| regex | email, url, iban, credit_card (Luhn), ssn, ip_address, phone |
| list:FILE | phrases, one per line, optionally TAB category; any case, whole words |
| spacy:MODEL | the entities of a spaCy pipeline, an installed package or a folder |

What a detector misses is protected only sentence by sentence; its recall belongs in the privacy statement.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import get_args

from uedp_ray.components import in_module
from uedp_ray.corpus.categories import LISTED, canonical
from uedp_ray.corpus.detectors.base import AtLeast, Detector, Findings, Reads
from uedp_ray.corpus.records import Mention
from uedp_ray.errors import InputError

_SPECS = ("annotated", "capitalized", "regex", "list:FILE", "spacy:MODEL")
DETECTORS = {spec.partition(":")[0]: spec for spec in _SPECS}
"""The spec of each; its module is named after that: ``list_file``."""


def file_of(spec: str) -> Path | None:
    """The user's own file that a spec names, such as ``list:FILE``: it may change, and should match something."""
    kind, _, argument = spec.partition(":")
    return Path(argument) if DETECTORS.get(kind, "").endswith(":FILE") else None


def build_detectors(specs: Sequence[str]) -> tuple[Detector, ...]:
    """One detector per spec, in order. A process loads a model or a list once, as long as its files stay as they are.

    Raises: InputError for an unknown spec, no spec at all, or anything that a detector lacks.
    """
    if not specs:
        raise InputError("detector", list(specs), f"name at least one of {', '.join(DETECTORS.values())}")
    return tuple(_build(spec) for spec in specs)


def _build(spec: str) -> Detector:
    kind, _, argument = spec.partition(":")
    form = DETECTORS.get(kind)
    if form is None or (":" in form) != bool(argument):
        raise InputError("detector", spec, f"choose among {', '.join(DETECTORS.values())}")
    found: Detector = in_module("corpus.detectors", form.lower().replace(":", "_"), "build")(spec, argument)
    missing = [name for name in (*Detector.__annotations__, "find") if not hasattr(found, name)]
    if missing:
        raise TypeError(f"{type(found).__name__}, the detector of {spec}, does not state {', '.join(missing)}")
    if found.reads not in get_args(Reads):
        raise TypeError(f"{type(found).__name__} reads {found.reads!r}: choose one of {', '.join(get_args(Reads))}")
    if found.reads == "marks" and not isinstance(found.categories, AtLeast):
        remedy = "whose categories are the text's own: its categories must be AtLeast"
        raise TypeError(f"{type(found).__name__} reads marks, {remedy}")
    return found


def check_declared(spec: str, detector: Detector, findings: Findings) -> None:
    """Raises: TypeError for a category that the detector does not declare: asked for by its declared name, none of what it
    found would be protected."""
    if isinstance(detector.categories, AtLeast):
        return
    found = {mention.category for mentions in findings for mention in mentions}
    for category in sorted(found - set(map(canonical, detector.categories))):
        raise TypeError(
            f"{type(detector).__name__}, the detector of {spec}, finds {category!r}, which it does not declare: add it to "
            "its categories, or make them AtLeast"
        )


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

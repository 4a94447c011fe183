"""What a corpus is prepared with: its own detectors and categories, and those of a prepared corpus that it is made of."""

from __future__ import annotations

from collections.abc import Sequence

from uedp_ray.corpus.detectors.base import Detector
from uedp_ray.corpus.store import Corpus
from uedp_ray.errors import InputError


def detectors_of(specs: Sequence[str], before: Corpus | None) -> list[str]:
    """How the entities were found: what a prepared corpus is annotated with, its own detectors found."""
    if before is None or "annotated" not in specs:
        return list(specs)
    return [*before.detectors, *(spec for spec in specs if spec != "annotated" and spec not in before.detectors)]


def categories_of(
    keep: frozenset[str] | None, detectors: Sequence[Detector], specs: Sequence[str], before: Corpus | None
) -> list[str] | None:
    """The categories that are kept; None for all. A prepared corpus has lost those that it was not prepared for.

    Raises: InputError for a category that is asked for and was lost.
    """
    if before is None or before.categories is None or "annotated" not in specs:
        return None if keep is None else sorted(keep)
    known = {*before.categories}.union(*(detector.categories for detector in detectors))
    if keep is None:
        return sorted(known)
    if lost := sorted(keep - known):
        kept = ", ".join(before.categories)
        raise InputError(
            "categories", lost[0], f"the corpus that is read was prepared for {kept}: prepare its text anew"
        )
    return sorted(keep)

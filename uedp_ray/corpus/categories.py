"""Categories of sensitive entities: our names, other tools' labels for them, and groups.

    >>> from uedp_ray.corpus.categories import canonical, expand
    >>> [canonical(label) for label in ("PER", "GEO-LOC", "Work of Art", "PROTEIN")]
    ['person', 'loc', 'work_of_art', 'protein']
    >>> sorted(expand(["pii"]))
    ['credit_card', 'email', 'gpe', 'iban', 'id_number', 'ip_address', 'loc', 'person', 'phone', 'pii', 'ssn', 'url']
    >>> sorted(expand(["per", "protein"], also_known=["PROTEIN"]))    # a category of the source's own
    ['person', 'protein']

Source: Table I of Lai et al. 2022 (CoNLL-2003's four, OntoNotes' eighteen, PII), plus structured identifiers.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence

from uedp_ray.errors import InputError

NAMED = frozenset(
    [
        "person",
        "loc",
        "org",
        "misc",
        "gpe",
        "pii",
        "date",
        "norp",
        "fac",
        "product",
        "event",
        "law",
        "language",
        "work_of_art",
        "time",
        "percent",
        "money",
        "quantity",
        "ordinal",
        "cardinal",
    ]
)
STRUCTURED = frozenset(["phone", "email", "url", "ip_address", "iban", "credit_card", "ssn", "id_number", "diagnosis"])
LISTED = "listed"
"""Phrases of a user's list that name no category. They are always protected."""

KNOWN = NAMED | STRUCTURED | {LISTED}

_GROUPS = {"pii": STRUCTURED - {"diagnosis"} | {"pii", "person", "loc", "gpe"}}
_ALIASES = {
    "per": "person",
    "people": "person",
    "name": "person",
    "location": "loc",
    "geo-loc": "loc",
    "facility": "fac",
    "organization": "org",
    "organisation": "org",
    "corporation": "org",
    "company": "org",
    "group": "org",
    "miscellaneous": "misc",
    "creative-work": "work_of_art",
    "work-of-art": "work_of_art",
    "work of art": "work_of_art",
    "telephone": "phone",
    "phone_number": "phone",
    "email_address": "email",
    "ip": "ip_address",
    "id": "id_number",
}


def canonical(label: str) -> str:
    """Our name for a label: CoNLL's, spaCy's and WNUT's are translated, any other is its own category, lower-cased."""
    label = label.strip().lower()
    return _ALIASES.get(label, label)


def expand(categories: Iterable[str], also_known: Iterable[str] = ()) -> frozenset[str]:
    """The categories a request covers: aliases resolved and groups (``pii``) expanded.

    Raises: InputError for a name that is neither ours, nor an alias, nor in ``also_known``.
    """
    known = KNOWN | frozenset(map(canonical, also_known))
    covered: set[str] = set()
    for name in categories:
        category = canonical(name)
        if category not in known:
            listed = sorted(KNOWN - {LISTED})
            meant = " or ".join(
                dict.fromkeys(map(canonical, difflib.get_close_matches(category, [*listed, *_ALIASES])))
            )
            guess = f"did you mean {meant}? Else " if meant else ""
            remedy = f"{guess}choose among {', '.join(listed)}, or those that the source or a detector marks"
            raise InputError("categories", name, remedy)  # the source's own are private
        covered |= _GROUPS.get(category, {category})
    return frozenset(covered)


def common(choices: Iterable[Sequence[str]]) -> tuple[str, ...] | None:
    """The categories that are in every one of several choices of protected ones; an empty choice protects all.

    None: all of them. Raises: as ``expand``.
    """
    protected = [expand(names, names) for names in choices if names]
    return tuple(sorted(frozenset.intersection(*protected))) if protected else None

"""The folder of a comparison as its page reads it, without the training."""

from __future__ import annotations

import json

ROUNDS, EPSILON, KINDS = "training.num_rounds", "privacy.target_epsilon", "corpus.categories"
OF_A_WORD = "corpus.transform.epsilon"


def promise(unit, epsilon):
    about = {"delta": 1e-5, "relation": "zero_out", "trust": "central", "accountant": "pld", "note": ""}
    return {"unit": unit, "epsilon": epsilon, "sound": unit != "none", **about}


def row(variant, perplexity, unit="none", epsilon=None, method="uedp", **settings):
    settings = {{"T": ROUNDS, "e": EPSILON, "c": KINDS, "w": OF_A_WORD}[key]: value for key, value in settings.items()}
    name = f"{variant} {settings}" if settings else variant
    promised = promise(unit, epsilon)
    return {
        "name": name,
        "variant": variant,
        "method": method,
        "settings": settings,
        "perplexity": perplexity,
        "bits_per_byte": 2.0,
        "unk_share": 0.0,
        "scores": [perplexity, perplexity + 2],
        "interval": {"kind": "range", "low": perplexity - 1, "high": perplexity + 1},
        "guarantee": promised,
        "guarantees": [promised],
        "private": unit != "none",
        "transform": "none",
        "retention": None if method is None else 1.0,
        "rounds": 3,
    }


ROWS = [
    row("public-only", 60.0, "user-entity", 0.0, method=None),
    *(row("ours", 50.0 - 3 * e - T / 10, "user-entity", float(e), e=e, T=T) for e in (1, 2) for T in (10, 50)),
    *(row("users <b>", 40.0 - e, "user", float(e), e=e, T=10) for e in (1, 2)),
    row("bare", 30.0, T=10),
    row("bare", 28.0, T=50),
]
NAMES = {
    unit: [each["name"] for each in ROWS[1:] if each["guarantee"]["unit"] == unit] for unit in ("user-entity", "user")
}
TABLE = {
    "rows": ROWS,
    "totals": [
        {"unit": unit, "epsilon": epsilon, "delta": 1e-5, "rows": names, "without": [], "categories": None, "why": ""}
        for unit, epsilon, names in (
            ("user-entity", 5.5, NAMES["user-entity"]),
            ("user", 7.25, NAMES["user-entity"] + NAMES["user"]),
        )
    ],
    "grid": [EPSILON, ROUNDS],
    "seeds": 2,
    "published": {
        "figure": "2a",
        "against": "epsilon",
        "points": [{"corpus": "conll", "series": "<i>", "x": 0.18, "y": 35.1, "unit": "user", "source": "Fig. 2a"}],
    },
}


def folder(tmp_path, **changed):
    """Writes one."""
    (tmp_path / "base.yaml").touch()
    (tmp_path / "table.json").write_text(json.dumps(TABLE | changed))
    return tmp_path

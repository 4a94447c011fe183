"""Files to read, and what a reader makes of them."""

from __future__ import annotations

import json
from pathlib import Path

from uedp_ray.config import SourceConfig
from uedp_ray.corpus.readers import read
from uedp_ray.corpus.records import Sentence

SECRET = "Zebulon"  # must never show up in an error


def read_file(path: Path, format_: str, **settings: int) -> list[Sentence]:
    return list(read(SourceConfig(path=str(path), format=format_, **settings)))  # type: ignore[arg-type]


def write_file(folder: Path, text: str, name: str = "file") -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def write_rows(folder: Path, *rows: object) -> Path:
    return write_file(folder, "\n".join(json.dumps(row) for row in rows))


def forms(sentence: Sentence) -> list[tuple[str, str]]:
    return [(m.category, sentence.text[m.start : m.end]) for m in sentence.mentions]


def long_row(words: int, **more: object) -> dict[str, object]:
    return {"user": "u", "text": " ".join(f"w{i}" for i in range(words)), **more}


def source_of(folder: Path, *rows: dict[str, object], **settings: object) -> SourceConfig:
    path = folder / "rows.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    return SourceConfig(path=str(path), format="jsonl", **settings)  # type: ignore[arg-type]


def row_of(user: str, text: str, *entities: tuple[str, str]) -> dict[str, object]:
    return {"user": user, "text": text, "entities": [{"category": c, "text": form} for c, form in entities]}


ROWS: list[dict[str, object]] = [
    row_of("u1", "Ann met  BOB SMITH", ("PER", "Ann"), ("PER", "bob smith")),
    row_of("u2", "in Rome", ("LOC", "Rome")),
    {"user": "u1", "text": "the end"},
    {"user": "u2", "text": "  "},
    {"user": "u3", "text": ""},
    row_of("u4", "Bob  Smith and Ann and ann", ("person", "Bob Smith"), ("person", "ann")),
    {"user": "u5", "text": "Hello"},
]


def spacy_model(folder: Path, **phrases: str) -> str:
    """A pipeline on disk that marks one word a label."""
    import spacy

    pipeline = spacy.blank("en")
    ruler = pipeline.add_pipe("entity_ruler")
    ruler.add_patterns([{"label": label, "pattern": [{"LOWER": word}]} for label, word in phrases.items()])
    pipeline.to_disk(folder)
    return f"spacy:{folder}"

"""Measures what wrapping a text at a column costs detection, and how much joining its lines recovers.

    UEDP_DATA=... UEDP_MODELS=... python benchmarks/wrapped_text.py [--width 72] [--documents 216]

Documents of CoNLL-2003's ``eng.testa`` are rebuilt from their tokens, wrapped, and searched by a spaCy pipeline. The figure
is the share of distinct gold entities (category and surface form) that are found in *every* sentence that holds them, which
is what user-entity privacy needs of a detector. ``lines``: each line by itself; ``document``: the text as it is;
``joined``: what ``prepare`` does; ``own``: the file's own sentences, which no rule can know. The figures are in
docs/your-own-text.md.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import sys
import textwrap
from collections.abc import Callable, Iterable
from pathlib import Path

from uedp_ray.config import SourceConfig
from uedp_ray.corpus._layout import join_lines
from uedp_ray.corpus._shards import find
from uedp_ray.corpus._splitting import cut
from uedp_ray.corpus.detectors import build_detectors
from uedp_ray.corpus.detectors.base import Detector
from uedp_ray.corpus.readers import read
from uedp_ray.corpus.records import Mention, Sentence, entity_form

Key = tuple[str, str]
Way = Callable[[Detector, str, list[Sentence]], Iterable[Mention]]
"""Finds mentions in a document, from the detector, the wrapped text and the file's sentences; offsets are in the text."""


def by_pieces(detector: Detector, pieces: list[tuple[int, str]]) -> list[Mention]:
    found = detector.find([Sentence("", text) for _, text in pieces])
    return [
        Mention(m.category, start + m.start, start + m.end)
        for (start, _), held in zip(pieces, found, strict=True)
        for m in held
    ]


def as_lines(detector: Detector, text: str, _: list[Sentence]) -> list[Mention]:
    """Every line end ends a sentence, and the detector sees the sentences."""
    starts = itertools.accumulate((len(line) + 1 for line in text.split("\n")), initial=0)
    pieces = []
    for start, line in zip(starts, text.split("\n"), strict=False):
        offset = start
        for (sentence,) in cut(Sentence("", line, running=True), (), sys.maxsize):
            offset = text.index(sentence.text, offset)
            pieces.append((offset, sentence.text))
    return by_pieces(detector, pieces)


def as_document(detector: Detector, text: str, _: list[Sentence]) -> list[Mention]:
    return by_pieces(detector, [(0, text)])


def joined(detector: Detector, text: str, _: list[Sentence]) -> tuple[Mention, ...]:
    return find("", detector, [Sentence("", join_lines(text), running=True)])[0]


def own(detector: Detector, _: str, sentences: list[Sentence]) -> list[Mention]:
    starts = itertools.accumulate((len(s.text) + 1 for s in sentences), initial=0)
    return by_pieces(detector, [(start, s.text) for start, s in zip(starts, sentences, strict=False)])


def missed(way: Way, detector: Detector, text: str, sentences: list[Sentence]) -> set[Key]:
    """Returns the gold entities that some sentence of the document holds and the way does not find there."""
    flat = text.replace("\n", " ")
    found = [(m.category, entity_form(flat, m), m.start) for m in way(detector, text, sentences)]
    lost: set[Key] = set()
    start = 0
    for sentence in sentences:
        end = start + len(sentence.text)
        here = {(category, form) for category, form, place in found if start <= place < end}
        lost |= {(m.category, entity_form(sentence.text, m)) for m in sentence.mentions} - here
        start = end + 1
    return lost


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--width", type=int, default=72)
    parser.add_argument("--documents", type=int, default=216)
    arguments = parser.parse_args()
    source = SourceConfig(path=str(Path(os.environ["UEDP_DATA"], "conll2003", "eng.testa")), format="conll")
    (detector,) = build_detectors((f"spacy:{Path(os.environ['UEDP_MODELS'], 'spacy_conll03_ner')}",))
    ways: dict[str, Way] = {"lines": as_lines, "document": as_document, "joined": joined, "own": own}
    lost: dict[str, set[Key]] = {name: set() for name in ways}
    gold: set[Key] = set()
    documents = itertools.groupby(read(source), key=lambda sentence: sentence.user)
    for _, document in itertools.islice(documents, arguments.documents):
        sentences = list(document)
        flat = " ".join(s.text for s in sentences)
        lines = textwrap.wrap(flat, arguments.width, break_long_words=False, break_on_hyphens=False)
        text = "\n".join(lines)
        assert len(text) == len(flat), "wrapping replaced blanks by line ends"
        gold |= {(m.category, entity_form(s.text, m)) for s in sentences for m in s.mentions}
        for name, way in ways.items():
            lost[name] |= missed(way, detector, text, sentences)
    shares = {name: round(1 - len(keys) / len(gold), 3) for name, keys in lost.items()}
    json.dump({"width": arguments.width, "entities": len(gold), "found_in_every_sentence": shares}, sys.stdout)


if __name__ == "__main__":
    main()

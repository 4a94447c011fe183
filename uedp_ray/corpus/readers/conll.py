"""CoNLL columns: the last is the entity tag, the second of three or more the part of speech.

Source: Tjong Kim Sang and De Meulder, CoNLL-2003 (IOB1); BIO and BIOES files read the same way.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from uedp_ray.corpus._lines import LONGEST, Lines
from uedp_ray.corpus.readers.base import of_files
from uedp_ray.corpus.records import Mention, Sentence
from uedp_ray.errors import InputError

_TAG = re.compile(r"O|[BIESLU]-\S+")
_BLANKS = re.compile(r"[ \t]+")


def read_conll(path: Path) -> Iterator[Sentence]:
    """A ``-DOCSTART-`` line opens a document, which is one user. Where no document has been opened (WNUT-17 has none),
    nothing says which sentences belong together, so every sentence is a user of its own.

    Raises: InputError naming file and line: a single column, an invalid tag, or another number of columns than before.
    """
    lines = Lines(path)
    tokens: list[str] = []
    parts: list[str] = []
    tags: list[str] = []
    document = sentence = width = length = 0

    def close() -> Sentence:
        user = f"{path.name}#{document}" if document else f"{path.name}#s{sentence}"
        text, mentions = " ".join(tokens), decode_tags(tokens, tags)
        return Sentence(user, text, tags=tuple(parts) if width > 2 else None, mentions=mentions)

    for line in lines:
        columns = _BLANKS.split(line.strip(" \t\r\n"))
        boundary = columns[0] == "-DOCSTART-"
        if boundary or columns == [""]:
            if tokens:
                sentence += 1
                yield close()
                tokens, parts, tags, length = [], [], [], 0
            document += boundary
            continue
        width = width or len(columns)
        if len(columns) < 2:
            raise InputError("path", lines.where, "a line needs a token and an entity tag, in columns")
        if len(columns) != width:
            raise InputError("path", lines.where, f"{len(columns)} columns where the file's first line has {width}")
        if not _TAG.fullmatch(columns[-1]):
            remedy = (
                "the last column is not an entity tag (O, B-..., I-...): where there are none, add a column of O; of three "
                "or more columns the second is the tag of each word (task.kind: tag_words)"
            )
            raise InputError("path", lines.where, remedy)
        tokens.append("_".join(columns[0].split()) or "_")  # no-break spaces: a token stays one whitespace word
        parts.append(columns[1])
        tags.append(columns[-1])
        length += len(line)
        if length > LONGEST:
            raise InputError(
                "path", lines.where, f"a sentence of more than {LONGEST:,} characters: end it with a blank line"
            )
    if tokens:
        sentence += 1
        yield close()


def decode_tags(tokens: Sequence[str], tags: Sequence[str]) -> tuple[Mention, ...]:
    """Entities as character spans of the tokens joined by spaces.

    An entity continues while the type stays and no ``B``, ``S`` or ``U`` opens another: this reads IOB1 (``B`` only
    between neighbours of one type) and BIO alike, and takes an ``I`` after ``O`` as an opening.
    """
    mentions: list[Mention] = []
    previous = ""
    position = 0
    for token, tag in zip(tokens, tags, strict=True):
        mark, _, kind = tag.partition("-")
        end = position + len(token)
        if kind and kind == previous and mark in "IEL":
            mentions[-1] = Mention(mentions[-1].category, mentions[-1].start, end)
        elif kind:
            mentions.append(Mention(kind, position, end))
        previous = "" if mark in "ELSU" else kind
        position = end + 1
    return tuple(mentions)


READER = of_files(
    read_conll, numbered="a -DOCSTART- document, or a sentence where the text marks none", whole_users=True
)

"""Text files, line by line, with a place to name in an error (never the line itself: it is private)."""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterator
from pathlib import Path

from uedp_ray.errors import InputError, unreadable

LONGEST = 1 << 24
"""The most characters of one row: what is in memory at once, for any file."""

_END = re.compile(rb"\r\n|[\r\n]")


class Lines:
    """Iterates over a UTF-8 file with any line ends. ``where`` is the current place, ``file:line``.

    Args:
      split: whether a line longer than ``longest`` characters comes in parts, cut at blanks; else it is refused.
      field: what names the file.
    Raises: InputError if it cannot be read, is not UTF-8, or holds a NUL character.
    """

    def __init__(self, path: Path, *, longest: int = LONGEST, split: bool = False, field: str = "path"):
        self._path, self._number, self._field = path, 0, field
        self._longest, self._split = longest, split

    @property
    def where(self) -> str:
        return f"{self._path}:{self._number}"

    def __iter__(self) -> Iterator[str]:
        rest = ""
        try:
            with self._path.open(encoding="utf-8-sig") as file:
                while line := file.readline(self._longest):
                    self._number += not rest
                    if "\0" in line:
                        raise InputError(
                            self._field, self.where, "holds a NUL character: convert the file to UTF-8 text"
                        )
                    line = rest + line.removeprefix("\ufeff")  # left inside by joining files
                    rest = ""
                    if len(line) >= self._longest and line[-1] != "\n":
                        if not self._split:
                            remedy = f"a line of more than {self._longest:,} characters: split it"
                            raise InputError(self._field, self.where, remedy)
                        line, _, rest = line.rpartition(" ") if " " in line else (line, "", "")
                    yield line
                if rest:
                    yield rest
        except UnicodeDecodeError:  # decoding runs ahead of the lines
            remedy = "this line is not UTF-8: convert or unpack the file"
            raise InputError(self._field, f"{self._path}:{_first_not_utf8(self._path)}", remedy) from None
        except OSError as error:
            raise unreadable(error, self._field, str(self._path)) from None


def _first_not_utf8(path: Path) -> int:
    """The number of the first line that is not UTF-8."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    number, last = 1, b""
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            try:
                decoder.decode(block)
            except UnicodeDecodeError as error:
                good = len(block) - (len(error.object) - error.start)
                return number + len(_END.findall(last + block[: max(good, 0)])) - len(last)
            number += len(_END.findall(last + block)) - len(last)
            last = block[-1:] if block.endswith(b"\r") else b""  # may continue with \n
    return number

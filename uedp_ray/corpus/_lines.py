"""Text files, line by line, with a place to name in an error (never the line itself: it is private)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from uedp_ray.errors import InputError


class Lines:
    """Iterates a UTF-8 file, whatever its line ends. ``where`` is the current place, ``file:line``.

    Raises: InputError if it is not UTF-8.
    """

    def __init__(self, path: Path):
        self._path, self._number = path, 0

    @property
    def where(self) -> str:
        return f"{self._path}:{self._number}"

    def __iter__(self) -> Iterator[str]:
        with self._path.open(encoding="utf-8-sig") as file:
            try:
                for line in file:
                    self._number += 1
                    yield line
            except UnicodeDecodeError:  # decoding runs ahead of the lines, so the exact line is not known
                remedy = "text after this line is not UTF-8: convert or unpack the file"
                raise InputError("path", self.where, remedy) from None

"""The files of a page: where one may be written, the templates, and figures beside it.

    page = page_for(Path("runs/quickstart"), out=None)          # its report.html
    write(page, "<title>Sweep: quickstart</title>", private=False, publish=False)

A page and a figure replace what is there only if that is one of ours.
"""

from __future__ import annotations

import os
import re
from functools import partial
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup, escape

from uedp_ray.errors import InputError
from uedp_ray.redact import DATE
from uedp_ray.storage.files import check_regular, replacing
from uedp_ray.storage.locks import lock_beside, locked
from uedp_ray.target import check_length, check_name

_OURS, _FIGURE = re.compile(rb"<title>(Sweep|Comparison): "), re.compile(rb'id="[\w-]+-figure_1"')
"""What the first bytes of every page of ours hold, and of every figure."""
_HEAD = 1000
_WAIT = 60.0
"""Seconds to wait for another process that writes the same file."""


def page_for(folder: Path, out: Path | None) -> Path:
    """Returns the page: ``out``, or ``report.html`` in a sweep's or a comparison's folder.

    Raises: InputError for what is no page, and may be another's file.
    """
    page = out if out is not None else folder / "report.html"
    if out is not None:
        check_length(check_name(page))
    if page.is_dir() and not page.is_symlink():
        raise InputError("--out", str(page), "is a folder: name a file")
    if out is not None or not page.is_symlink():  # one that lies in the folder is replaced, not followed
        _check_page(page)
    return page


def _check_page(page: Path) -> None:
    """Raises: InputError for what may be another's file, now or later: the page replaces what is there."""
    if page.suffix not in (".html", ".htm"):  # no file of a run or a sweep has these
        raise InputError("--out", str(page), "is not the name of a page: end it in .html")
    if page.exists():
        check_regular(page, "name another file")
        with page.open("rb") as file:
            if not _OURS.search(file.read(_HEAD)):
                raise InputError("--out", str(page), "exists, and is not a page of ours: name another file")


def check_figures(folder: Path) -> None:
    """Raises: InputError if a figure would replace a file of that name which is not one of ours, or a folder."""
    for file in folder.glob("*.svg"):
        if file.is_dir() and not file.is_symlink():
            raise InputError("figures", str(file), "is a folder: move it out of the folder")
        if file.is_file() and not file.is_symlink():
            with file.open("rb") as opened:
                if not _FIGURE.search(opened.read(_HEAD)):
                    raise InputError("figures", str(file), "is not a figure of ours: move it out of the folder")


def write(path: Path, text: str, *, private: bool, publish: bool) -> None:
    """Writes a file in place of what was there: a symbolic link is replaced, not followed."""
    busy = InputError("--out", str(path), "another report is writing it: wait for it")
    with locked(lock_beside(path), wait=_WAIT, busy=busy), replacing(path) as new:
        with open(new, "x", encoding="utf-8", opener=partial(os.open, mode=0o600)) as file:
            file.write(text)
        new.chmod(0o600 if private else 0o644)
        if publish:
            os.utime(new, (DATE, DATE))


def templates() -> jinja2.Environment:
    """Returns the environment of our templates, which escapes all text."""
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("uedp_ray.analysis"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        finalize=_in_order,
    )
    environment.filters["breakable"] = _breakable
    return environment


_TURNS = dict.fromkeys((*range(0x202A, 0x202F), *range(0x2066, 0x206A)), "\ufffd")


def _in_order(value: Any) -> Any:
    """Shows characters that would turn the order of others about: text of a sweep's files shows as what it is."""
    return value.translate(_TURNS) if isinstance(value, str) and not isinstance(value, Markup) else value


def _breakable(name: str) -> Markup:
    """Returns a dotted name that may break across lines."""
    return Markup(re.sub(r"([._])", r"\1<wbr>", str(escape(name))))

"""One self-contained HTML page about one or more sweeps, and its figures as SVG files.

    report(["runs/quickstart"])        # runs/quickstart/report.html and runs/quickstart/figures/*.svg

The page loads nothing: figures, style and script are in it, and a content security policy forbids the network. All text
from the sweep is escaped. What is in it is as public as the sweep, but for times, which ``publish`` leaves out: under rule
``repeat_and_select`` the page is private, says so, and is written owner-only.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote

import jinja2
from markdown_it import MarkdownIt
from markupsafe import Markup, escape

from uedp_ray.analysis.cost import Price, prices
from uedp_ray.analysis.files import inside, read_text
from uedp_ray.analysis.frames import Sweep, load_sweep
from uedp_ray.analysis.headline import headline
from uedp_ray.analysis.pictures import Picture, joint_picture, pictures
from uedp_ray.analysis.publish import publishable
from uedp_ray.analysis.style import shown_value
from uedp_ray.analysis.summary import ranges, shown, shown_total, summary, terms, warnings
from uedp_ray.analysis.table import TrialTable, trial_table
from uedp_ray.config import as_yaml, load_config
from uedp_ray.errors import InputError
from uedp_ray.privacy.selection import SECRET
from uedp_ray.redact import DATE, published
from uedp_ray.storage.files import check_regular, replacing
from uedp_ray.storage.locks import lock_beside, locked
from uedp_ray.storage.open import folder_only
from uedp_ray.target import check_length, check_name

_MARKDOWN = (
    MarkdownIt("commonmark", {"html": False}).enable("table").disable(["image", "link", "autolink", "reference"])
)
_OURS, _FIGURE = b"<title>Sweep: ", re.compile(rb'id="[\w-]+-figure_1"')
"""What the first bytes of every page of ours hold, and of every figure."""
_HEAD = 1000
_WAIT = 60.0
"""Seconds to wait for another process that writes the same file."""


@dataclass(frozen=True)
class Section:
    """What the template shows of one sweep."""

    id: str
    sweep: Sweep
    warnings: list[str]
    headline: list[tuple[str, str]]
    summary: list[tuple[str, str]]
    pictures: dict[str, Picture]
    chosen: list[tuple[str, str, str]]
    """(setting, value, what was searched) of the best trial."""
    config: str
    statement: Markup
    prices: list[Price]
    total: str
    terms: str
    table: TrialTable


def report(paths: Sequence[str | Path], out: str | Path | None = None, *, publish: bool = False) -> Path:
    """Writes the page and the figures; returns the page's path.

    Args:
      paths: sweep directories.
      out: the page; ``report.html`` in the directory of a single sweep if left out.
      publish: leave out what no price pays for (the noiseless reference, which was trained on the private text), paths
        that were searched, the error messages of trials, and when they ran.

    Raises: InputError for a folder that is not a sweep, several sweeps without ``out``, an ``out`` that is not a page, or a
    sweep whose page as a whole may not be published.
    """
    if not paths:
        raise InputError("sweeps", [], "name at least one sweep directory")
    out = None if out is None else folder_only(out)
    sweeps = [load_sweep(path) for path in paths]
    if publish:
        sweeps = [_published(sweep) for sweep in sweeps]
    if out is None and len(sweeps) > 1:
        raise InputError("--out", None, "name a file for the page of several sweeps")
    page = out if out is not None else sweeps[0].path / "report.html"
    if out is not None:
        check_length(check_name(page))
    if page.is_dir() and not page.is_symlink():
        raise InputError("--out", str(page), "is a folder: name a file")
    if out is not None or not page.is_symlink():  # one that lies in a sweep is replaced, not followed
        _check_page(page)
    for sweep in sweeps:
        _check_figures(sweep.path / "figures")
    sections = [_section(sweep, f"s{number}") for number, sweep in enumerate(sweeps, 1)]
    private = any(_is_private(sweep) for sweep in sweeps)
    text = _render(sections, joint_picture(sweeps, publish=publish), page, private, publish)
    _write(page, text, private=private, publish=publish)
    for section in sections:
        for picture in section.pictures.values():
            file = inside(section.sweep.path, f"figures/{picture.name}.svg")
            file.unlink(missing_ok=True)
            if picture.svg is not None:
                _write(file, picture.within("../"), private=_is_private(section.sweep), publish=publish)
    return page


def _check_page(page: Path) -> None:
    """Raises: InputError for what may be another's file, now or later: the page replaces what is there."""
    if page.suffix not in (".html", ".htm"):  # no file of a run or a sweep has these
        raise InputError("--out", str(page), "is not the name of a page: end it in .html")
    if page.exists():
        check_regular(page, "name another file")
        with page.open("rb") as file:
            if _OURS not in file.read(_HEAD):
                raise InputError("--out", str(page), "exists, and is not a page of ours: name another file")


def _check_figures(folder: Path) -> None:
    """Raises: InputError if a figure would replace a file of that name which is not one of ours, or a folder."""
    for file in folder.glob("*.svg"):
        if file.is_dir() and not file.is_symlink():
            raise InputError("figures", str(file), "is a folder: move it out of the folder")
        if file.is_file() and not file.is_symlink():
            with file.open("rb") as opened:
                if not _FIGURE.search(opened.read(_HEAD)):
                    raise InputError("figures", str(file), "is not a figure of ours: move it out of the folder")


def _published(sweep: Sweep) -> Sweep:
    """Returns what others may see of a sweep. Raises: InputError if that is nothing, or not known yet."""
    if _is_private(sweep):
        remedy = f"rule {sweep.selection['rule']} pays for the winner alone: hand on what uedp-ray export writes"
        raise InputError("--publish", str(sweep.path), remedy)
    if not sweep.finished:
        raise InputError("--publish", str(sweep.path), "is not finished, and its price is not settled: finish it first")
    if sweep.selection["epsilon"] is None and sweep.selection["rule"] != "public":
        raise InputError("--publish", str(sweep.path), "has no guarantee: no epsilon bounds what the search released")
    return publishable(sweep)


def _is_private(sweep: Sweep) -> bool:
    return sweep.selection["rule"] in SECRET


def _write(path: Path, text: str, *, private: bool, publish: bool) -> None:
    """Writes a file in place of what was there: a symbolic link is replaced, not followed."""
    busy = InputError("--out", str(path), "another report is writing it: wait for it")
    with locked(lock_beside(path), wait=_WAIT, busy=busy), replacing(path) as new:
        with open(new, "x", encoding="utf-8", opener=partial(os.open, mode=0o600)) as file:
            file.write(text)
        new.chmod(0o600 if private else 0o644)
        if publish:
            os.utime(new, (DATE, DATE))


def _render(sections: list[Section], joint: Picture | None, page: Path, private: bool, publish: bool) -> str:
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("uedp_ray.analysis"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        finalize=_in_order,
    )
    environment.filters["epsilon"] = shown
    environment.filters["breakable"] = _breakable
    folders = {section.id: _folder(section.sweep, page) for section in sections}
    template = environment.get_template("report.html")
    return template.render(sections=sections, joint=joint, folders=folders, private=private, publish=publish)


def _folder(sweep: Sweep, page: Path) -> str:
    """The sweep's folder as a link of the page names it."""
    path = os.path.relpath(sweep.path.resolve(), page.parent.resolve())
    return "" if path == "." else f"{quote(path)}/"


_TURNS = dict.fromkeys((*range(0x202A, 0x202F), *range(0x2066, 0x206A)), "\ufffd")


def _in_order(value: Any) -> Any:
    """Shows characters that would turn the order of others about: text of a sweep's files shows as what it is."""
    return value.translate(_TURNS) if isinstance(value, str) and not isinstance(value, Markup) else value


def _breakable(name: str) -> Markup:
    """Returns a dotted name that may break across lines."""
    return Markup(re.sub(r"([._])", r"\1<wbr>", str(escape(name))))


def _section(sweep: Sweep, name: str) -> Section:
    root, run = sweep.path, sweep.best_run and str(sweep.best_run.relative_to(sweep.path))
    chosen = [
        (key, shown_value(value), ranges(sweep.space[key]))
        for key, value in (sweep.best["params"] if sweep.best else {}).items()
    ]
    # Before anything is drawn: a sweep whose files are refused costs nothing.
    config = _settings(root, f"{run}/config.yaml") if run else ""
    statement = _prose(read_text(root, f"{run}/privacy.md")) if run else Markup()
    paid = prices(sweep)
    return Section(
        id=name,
        sweep=sweep,
        warnings=warnings(sweep),
        headline=headline(sweep),
        summary=summary(sweep),
        pictures={picture.name: picture for picture in pictures(sweep, name)},
        chosen=chosen,
        config=config,
        statement=statement,
        prices=paid,
        total=shown_total(sweep) if sweep.best else "",
        terms=terms(sweep),
        table=trial_table(sweep),
    )


def _settings(root: Path, name: str) -> str:
    """Returns a run's configuration as it may be published."""
    return as_yaml(published(load_config(inside(root, name))))


def _prose(markdown: str) -> Markup:
    """Renders Markdown as HTML, its headings two levels down; HTML, links and images in it stay text."""
    tokens = _MARKDOWN.parse(markdown)
    for token in tokens:
        if token.type in ("heading_open", "heading_close"):
            token.tag = f"h{min(6, int(token.tag[1]) + 2)}"
    return Markup(_MARKDOWN.renderer.render(tokens, _MARKDOWN.options, {}))

"""One self-contained HTML page about one or more sweeps, and its figures as SVG files.

    report(["runs/quickstart"])        # runs/quickstart/report.html and runs/quickstart/figures/*.svg

The page loads nothing: figures, style and script are in it, and a content security policy forbids the network. All text
from the sweep is escaped. What is in it is as public as the sweep, but for times, which ``publish`` leaves out: under rule
``repeat_and_select`` the page is private, says so, and is written owner-only.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from markdown_it import MarkdownIt
from markupsafe import Markup

from uedp_ray.analysis.comparisons import is_comparison
from uedp_ray.analysis.cost import Price, prices
from uedp_ray.analysis.files import inside, read_text
from uedp_ray.analysis.frames import Sweep, load_sweep
from uedp_ray.analysis.headline import headline
from uedp_ray.analysis.page import check_figures, page_for, templates, write
from uedp_ray.analysis.pictures import Picture, joint_picture, pictures
from uedp_ray.analysis.publish import publishable
from uedp_ray.analysis.style import shown_value
from uedp_ray.analysis.summary import ranges, shown, shown_total, summary, terms, warnings
from uedp_ray.analysis.table import TrialTable, trial_table
from uedp_ray.config import as_yaml, load_config
from uedp_ray.errors import InputError
from uedp_ray.privacy.selection import SECRET
from uedp_ray.redact import published
from uedp_ray.storage.open import folder_only

_MARKDOWN = (
    MarkdownIt("commonmark", {"html": False}).enable("table").disable(["image", "link", "autolink", "reference"])
)


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
      paths: sweep directories; or one directory of a comparison (``comparison_page``).
      out: the page; ``report.html`` in the directory of a single sweep if left out.
      publish: leave out what no price pays for (the noiseless reference, which was trained on the private text), paths
        that were searched, the error messages of trials, and when they ran.

    Raises: InputError for a folder that is not a sweep, several sweeps without ``out``, an ``out`` that is not a page, or a
    sweep whose page as a whole may not be published.
    """
    if not paths:
        raise InputError("sweeps", [], "name at least one sweep directory")
    out = None if out is None else folder_only(out)
    if any(is_comparison(Path(path)) for path in paths):
        if len(paths) > 1:
            raise InputError(
                "sweeps", [str(path) for path in paths], "a comparison has a page of its own: name it alone"
            )
        from uedp_ray.analysis.comparison_page import comparison_page  # loads the trainer

        return comparison_page(Path(paths[0]), out, publish=publish)
    sweeps = [load_sweep(path) for path in paths]
    if publish:
        sweeps = [_published(sweep) for sweep in sweeps]
    if out is None and len(sweeps) > 1:
        raise InputError("--out", None, "name a file for the page of several sweeps")
    page = page_for(sweeps[0].path, out)
    for sweep in sweeps:
        check_figures(sweep.path / "figures")
    sections = [_section(sweep, f"s{number}") for number, sweep in enumerate(sweeps, 1)]
    private = any(_is_private(sweep) for sweep in sweeps)
    text = _render(sections, joint_picture(sweeps, publish=publish), page, private, publish)
    write(page, text, private=private, publish=publish)
    for section in sections:
        for picture in section.pictures.values():
            file = inside(section.sweep.path, f"figures/{picture.name}.svg")
            file.unlink(missing_ok=True)
            if picture.svg is not None:
                write(file, picture.within("../"), private=_is_private(section.sweep), publish=publish)
    return page


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


def _render(sections: list[Section], joint: Picture | None, page: Path, private: bool, publish: bool) -> str:
    environment = templates()
    environment.filters["epsilon"] = shown
    folders = {section.id: _folder(section.sweep, page) for section in sections}
    template = environment.get_template("report.html")
    return template.render(sections=sections, joint=joint, folders=folders, private=private, publish=publish)


def _folder(sweep: Sweep, page: Path) -> str:
    """The sweep's folder as a link of the page names it."""
    path = os.path.relpath(sweep.path.resolve(), page.parent.resolve())
    return "" if path == "." else f"{quote(path)}/"


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

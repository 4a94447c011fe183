"""One self-contained HTML page about a comparison, and its figures as SVG files.

    comparison_page("runs/compared")        # runs/compared/report.html and runs/compared/figures/*.svg

As the page of a sweep (``report``), it loads nothing, and all text in it is escaped. With a row that hides no user and no
entity it is private, says so, and is written owner-only.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from markupsafe import Markup

from uedp_ray.analysis.compared_figures import AS_PUBLISHED, against, axes_of, points_on
from uedp_ray.analysis.comparisons import Compared, load_comparison, publishable
from uedp_ray.analysis.files import inside
from uedp_ray.analysis.page import check_figures, page_for, templates, write
from uedp_ray.analysis.pictures import Picture
from uedp_ray.analysis.row_figure import by_row, scored
from uedp_ray.analysis.style import NothingToShow, identifier, in_words, svg
from uedp_ray.privacy.guarantee import hides_anybody
from uedp_ray.privacy.statement import NO_GUARANTEE
from uedp_ray.search.published import EPSILON
from uedp_ray.search.told import (
    INTERVALS,
    RETENTION,
    about_scale,
    about_total,
    about_units,
    as_published,
    left_out,
    named,
    promise_of,
    retained,
    shortened,
    tells_text,
    told,
)


def comparison_page(path: str | Path, out: Path | None = None, *, publish: bool = False) -> Path:
    """Writes the page and the figures of the comparison in ``path``; returns the page's path. Arguments as of ``report``."""
    compared = load_comparison(path)
    path = compared.path
    if publish:
        compared = publishable(compared)
    page = page_for(path, out)
    check_figures(path / "figures")
    retention = RETENTION * any(map(tells_text, compared.rows))
    axes = axes_of(compared)
    theirs = AS_PUBLISHED in axes
    drawn = [*([] if compared.grid else [_rows_picture(compared)]), *(_picture(compared, axis) for axis in axes)]
    unprotected = [row for row in compared.rows if not hides_anybody(row)]
    text = (
        templates()
        .get_template("comparison.html")
        .render(
            compared=compared,
            unprotected=named(shortened(unprotected, compared.rows)),
            totals=[about_total(total) for total in _shown(compared)],
            pictures=drawn,
            columns=[*compared.grid],
            as_published=f"ε {NO_GUARANTEE}" if theirs else "",
            rows=[
                [*_cells(compared, row), *[retained(row)] * bool(retention), *[as_published(row)] * theirs]
                for row in (*compared.public, *compared.rows)
            ],
            words={0, 1, *(len(compared.grid) + len(compared.metric.scores) + place for place in (4, 5, 6))},
            intervals=_intervals(compared),
            units=about_units(compared.rows),
            left_out=left_out(compared.rows),
            scale=about_scale([*compared.public, *compared.rows], compared.metric),
            retention=retention,
        )
    )
    write(page, text, private=compared.private, publish=publish)
    for picture in drawn:
        file = inside(path, f"figures/{picture.name}.svg")
        file.unlink(missing_ok=True)
        if picture.svg is not None:
            write(file, str(picture.svg), private=compared.private, publish=publish)
    return page


def _shown(compared: Compared) -> list[dict[str, Any]]:
    """The totals, each with those of the rows on this page that it leaves out."""
    found = []
    for total in compared.totals:
        left = [row for row in compared.rows if row["name"] not in total["rows"]]
        found.append({**total, "without": shortened(left, compared.rows)})
    return found


def _picture(compared: Compared, axis: str) -> Picture:
    what = {EPSILON: "ε", AS_PUBLISHED: f"ε {NO_GUARANTEE}"}.get(axis, axis)
    title = f"{compared.metric.heading} against {what}"
    caption = _caption(compared)
    if axis == AS_PUBLISHED:
        caption += (
            " What the published arithmetic prints for these runs, with the fraction of sensitive sentences that the"
        )
        caption += " comparison's file states; it bounds nothing."
    if points_on(compared, axis):
        caption += " What was published is drawn as its source has it, and not vouched for."
    name = f"against-{identifier(axis.rsplit('.')[-1])}"
    try:
        drawn = against(compared, axis)
        return Picture(name, title, caption, Markup(svg(drawn, name)), described=in_words(drawn))
    except NothingToShow as nothing:
        return Picture(name, title, caption, reason=str(nothing))


def _rows_picture(compared: Compared) -> Picture:
    metric, title, caption = compared.metric, f"{compared.metric.heading} of each row", _caption(compared)
    try:
        drawn = Markup(svg(by_row(compared), "rows"))
        described = "; ".join(f"{row['name']} {metric.show(row[metric.name])}" for row in scored(compared))
        return Picture("rows", title, caption, drawn, described=described)
    except NothingToShow as nothing:
        return Picture("rows", title, caption, reason=str(nothing))


def _caption(compared: Compared) -> str:
    intervals = _intervals(compared) if compared.seeds > 1 else "One seed a row, so no intervals."
    return f"A panel for each unit: ε of different units are different promises, and are not compared. {intervals}"


def _intervals(compared: Compared) -> str:
    kinds = sorted({row["interval"]["kind"] for row in compared.rows if row["interval"]})
    return f"Means of {compared.seeds} seeds; {'; '.join(INTERVALS[kind] for kind in kinds)}." if kinds else ""


def _cells(compared: Compared, row: Mapping[str, Any]) -> list[str]:
    """A row of the page's table: variant, method, settings, scores, rounds, ``promise_of``."""
    metric, ends = compared.metric, row["interval"]
    settings = [told(row["settings"][key]) if key in row["settings"] else "" for key in compared.grid]
    scores = ["–" if row[score.name] is None else score.show(row[score.name]) for score in metric.scores]
    if ends:
        scores[0] += f" [{metric.show(ends['low'])}, {metric.show(ends['high'])}]"
    method = row["method"] or "public text only"
    return [row["variant"], method, *settings, *scores, str(row["rounds"]), *promise_of(row)]

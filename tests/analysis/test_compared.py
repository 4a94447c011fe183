"""The page of a comparison: units apart, published points marked, and for others nothing that no epsilon pays for."""

from __future__ import annotations

import re
import stat

import pytest

from tests.analysis.comparisons import KINDS, OF_A_WORD, ROUNDS, ROWS, TABLE, folder, promise, row
from tests.analysis.page import Page
from uedp_ray.analysis.compared_figures import AS_PUBLISHED, against, axes_of
from uedp_ray.analysis.comparisons import load_comparison
from uedp_ray.analysis.report import report
from uedp_ray.analysis.row_figure import by_row
from uedp_ray.analysis.style import NothingToShow
from uedp_ray.errors import InputError


def drawn(figure):
    """Title and labels of each panel, with the places of its points."""
    return {
        axes.get_title(): {line.get_label(): [*map(tuple, line.get_xydata())] for line in axes.get_lines()}
        for axes in figure.axes
    }


def test_units_have_panels_of_their_own_and_so_has_what_was_published(tmp_path):
    panels = drawn(against(load_comparison(folder(tmp_path)), "epsilon"))
    assert [*panels] == ["user-entity", "user", "user, as published"]
    assert panels["user-entity"]["ours, T = 10 (user-entity)"] == [(1, 46), (2, 43)]
    assert panels["user"]["users <b>, T = 10 (user)"] == [(1, 39), (2, 38)]
    assert not any("users" in label for label in panels["user-entity"])
    assert not any("ours" in label for label in panels["user"])
    assert [*panels["user, as published"].values()] == [[(0.18, 35.1)]]
    assert [*panels["user, as published"]] == ["as published: <i>, conll (Fig. 2a)"]
    for unit in ("user-entity", "user"):
        assert "30, bare, T = 10 (no guarantee)" in panels[unit]
        assert "60, public text only: ε = 0" in panels[unit]


def test_published_points_far_apart_are_on_a_logarithmic_axis(tmp_path):
    points = [TABLE["published"]["points"][0] | {"x": x} for x in (5, 20, 500)]
    compared = load_comparison(folder(tmp_path, published={**TABLE["published"], "points": points}))
    axes = against(compared, "epsilon").axes[-1]
    assert (axes.get_xscale(), [*axes.get_xticks()]) == ("log", [5, 20, 500])


def test_against_a_setting_every_other_one_makes_a_line(tmp_path):
    panels = drawn(against(load_comparison(folder(tmp_path)), ROUNDS))
    assert [*panels] == ["user-entity", "user"], "published points are against epsilon"
    assert panels["user-entity"]["ours, ε = 1 (user-entity)"] == [(10, 46), (50, 42)]
    assert panels["user-entity"]["bare (no guarantee)"] == panels["user"]["bare (no guarantee)"] == [(10, 30), (50, 28)]


def test_words_are_in_no_order(tmp_path):
    rows = [ROWS[0], *(row("ours", 40.0, "user-entity", 2.0, c=names) for names in (["org"], [], ["org", "person"]))]
    compared = load_comparison(folder(tmp_path, rows=rows, grid=[KINDS]))
    figure = against(compared, KINDS)
    assert [tick.get_text() for tick in figure.axes[0].get_xticklabels()] == ["org", "all", "org + person"]
    (line,) = (line for line in figure.axes[0].get_lines() if line.get_label() == "ours (user-entity)")
    assert (line.get_linestyle(), [*line.get_xdata()]) == ("None", [0, 1, 2])
    with pytest.raises(NothingToShow, match="No two rows of one method and unit differ in ε"):
        against(load_comparison(folder(tmp_path, rows=rows, published=None)), "epsilon")


def test_different_methods_are_no_line_of_what_epsilon_buys(tmp_path):
    """A table of all methods drew seven panels of a dot or two each."""
    rows = [row("ours", 40.0, "user", 2.0), row("words", 41.0, "record", 1.0), row("other", 42.0, "record", 8.0)]
    rows[2]["method"] = "dpnr"
    with pytest.raises(NothingToShow, match="No two rows of one method and unit differ"):
        against(load_comparison(folder(tmp_path, rows=[ROWS[0], *rows], grid=[], published=None)), "epsilon")
    rows[2]["method"] = "uedp"
    panels = drawn(
        against(load_comparison(folder(tmp_path, rows=[ROWS[0], *rows], grid=[], published=None)), "epsilon")
    )
    assert [*panels] == ["user", "record"]


def test_epsilon_of_a_word_is_that_of_a_row_where_words_are_protected(tmp_path):
    def compared(unit, epsilons):
        rows = [row("ours", 40.0 - w, unit, epsilon, w=w) for w, epsilon in zip((1, 5), epsilons, strict=True)]
        return load_comparison(folder(tmp_path, rows=[ROWS[0], *rows], grid=[OF_A_WORD], totals=[]))

    words, rounds = compared("word", (1.0, 5.0)), compared("user-entity", (2.0, 3.0))
    assert (axes_of(words), axes_of(rounds)) == (["epsilon"], ["epsilon", OF_A_WORD])
    assert drawn(against(words, "epsilon"))["word"]["ours (word)"] == [(1, 39), (5, 35)]
    assert drawn(against(rounds, "epsilon"))["user-entity"]["ours, epsilon = 5 (user-entity)"] == [(3, 35)]


def test_a_page_states_the_total_first_and_is_private_with_a_row_that_has_no_guarantee(tmp_path):
    path = report([folder(tmp_path)])
    page = Page(path)
    assert path == tmp_path / "report.html"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert page.text.index("ε = 5.500 for all 4 rows") < page.text.index("Perplexity against ε")
    assert (
        "This page is private: it has figures of models that guarantee nothing to a user or an entity (bare)"
        in page.text
    )
    assert "users <b>" in page.text, "escaped"
    assert {"b", "i"}.isdisjoint(page.tags)
    figures = {file.name for file in (tmp_path / "figures").iterdir()}
    assert figures == {"against-epsilon.svg", "against-num-rounds.svg"}
    assert report([tmp_path]) == path, "a page of ours is replaced"


def test_others_see_no_row_without_a_guarantee_and_none_that_no_total_covers(tmp_path):
    path = report([folder(tmp_path)], publish=True)
    text = Page(path).text
    assert "bare" not in text
    assert "private" not in text
    assert stat.S_IMODE(path.stat().st_mode) == 0o644
    assert text.count("Together, unit") == 2
    assert "Together, unit user: ε = 7.250 for all 6 rows" in text
    others = "whoever sees them sees the other rows, too, which guarantee nothing of it"
    assert (
        f"Together, unit user-entity: no ε for all 4 rows with that guarantee: {others}. Not in it: users <b>." in text
    )
    alone = [TABLE["totals"][0]]
    with pytest.raises(InputError, match="no total covers all of its rows that hide a user or an entity"):
        report([folder(tmp_path, totals=alone)], publish=True)
    with pytest.raises(InputError, match=r"vocabulary\.path.*names files"):
        report([folder(tmp_path, grid=["vocabulary.path"])], publish=True)


def test_without_a_grid_each_row_has_a_place_in_the_panel_of_its_unit(tmp_path):
    """There was no figure at all of the comparison that asks what a guarantee costs."""
    of_both, of_users = ("user-entity", 8.0), ("user", 8.0)
    scored = (("ours", 45.0, *of_both), ("bare", 30.0), ("users", 40.0, *of_users), ("f_E", 47.0, *of_both))
    rows = [ROWS[0], *(row(*each) for each in scored)]
    compared = load_comparison(folder(tmp_path, rows=rows, grid=[]))
    panels = {axes.get_title("left"): axes for axes in by_row(compared).axes}
    assert [*panels] == ["user-entity", "user", "no guarantee"]
    named = [[label.get_text() for label in axes.get_yticklabels()] for axes in panels.values()]
    assert named == [["ours: ε = 8.000", "f_E: ε = 8.000"], ["users: ε = 8.000"], ["bare"]]
    for axes, scores in zip(panels.values(), ([45.0, 47.0], [40.0], [30.0]), strict=True):
        level, *dots = axes.get_lines()
        assert level.get_label() == "60.0, public text only"
        assert [float(dot.get_xdata()[0]) for dot in dots if dot.get_marker() == "o"] == scores
    assert "Perplexity of each row" in Page(report([tmp_path])).text
    assert (tmp_path / "figures" / "rows.svg").is_file()
    with pytest.raises(NothingToShow, match="1 rows have a score"):
        by_row(load_comparison(folder(tmp_path, rows=rows[:2], grid=[])))


def test_a_page_says_what_the_console_says_of_the_scale(tmp_path):
    rows = [each | {"bzip2_bits_per_byte": 1.5} for each in ROWS]
    rows.append(row("in vain", 99.0) | {"noise_multiplier": None, "bzip2_bits_per_byte": 1.5})
    text = Page(report([folder(tmp_path, rows=rows)])).text
    assert "Without privacy, and yet worse than bare {'training.num_rounds': 50}: in vain." in text
    assert "For scale: bzip2 takes 1.500 bits/byte of the same text." in text


def test_rows_that_hide_one_record_are_as_private_as_the_text(tmp_path):
    """Their figures were on a page for everybody, and what their promise leaves out on none."""
    records = row("dealt", 35.0, "record", 8.0)
    records["guarantees"][0]["note"] = "No person is hidden."
    rows = [*ROWS[:5], records]
    path = report([folder(tmp_path, rows=rows, totals=TABLE["totals"][:1], grid=[])])
    text = Page(path).text
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert "models that guarantee nothing to a user or an entity (dealt)" in text
    assert "What these promises leave out dealt : No person is hidden." in text
    text = Page(report([tmp_path], publish=True)).text
    assert "dealt" not in text
    assert "What these promises leave out" not in text


def test_what_a_transform_retained_is_for_the_owner_alone(tmp_path):
    """A row with a guarantee, beside one without: of the text that it was trained on, 6.2 % of the mentions are left."""
    rows = [each | {"transform": "mask", "retention": 0.0625} if each["variant"] == "ours" else each for each in ROWS]
    path = report([folder(tmp_path, rows=rows)])
    text = Page(path).text
    assert "which are as private as the text, and so is retention" in text
    assert "6.2%" in text
    assert "as they were (private: read off the text)" in text
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    for changed, publish in ((rows, True), (ROWS, False)):
        page = Page(report([folder(tmp_path, rows=changed)], publish=publish))
        assert not re.search(r"retention|6\.2%|100\.0%", page.text)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"rows": []}, "is not what a comparison writes"),
        ({"rows": [ROWS[1] | {"perplexity": "<script>"}]}, "perplexity"),
        ({"rows": [ROWS[1] | {"guarantee": promise("everybody", 1.0)}]}, "guarantee.unit"),
        ({"rows": [ROWS[1] | {"retention": 2.0}]}, "retention"),
        ({"rows": [ROWS[1] | {"interval": {"kind": "t", "low": 1.0}}]}, "interval"),
        ({"totals": [{"unit": "user"}]}, "totals"),
        ({"published": {"figure": "1", "against": "epsilon", "points": [{"x": "1"}]}}, "published"),
    ],
)
def test_what_no_comparison_writes_is_refused(tmp_path, change, message):
    with pytest.raises(InputError, match=message):
        report([folder(tmp_path, **change)])
    assert not (tmp_path / "report.html").exists()


def test_a_grid_key_with_markup_is_text_wherever_it_stands(tmp_path):
    """It was part of an id in the figures, which ran it when they were opened by themselves."""
    key = 'a.x"><script>1</script>'
    rows = [ROWS[0], *({**each, "settings": {key: place}} for place, each in enumerate(ROWS[1:4]))]
    page = Page(report([folder(tmp_path, rows=rows, grid=[key])]))
    assert "script" not in page.tags
    (figure,) = [path for path in (tmp_path / "figures").iterdir() if "script" in path.name]
    assert re.fullmatch(r"[a-zA-Z0-9-]+\.svg", figure.name)
    assert "<script" not in figure.read_text()


@pytest.mark.parametrize("value", ["x", [], -1.0, 10**400])
def test_a_yardstick_that_is_no_number_is_refused(tmp_path, value):
    rows = [each | {"bzip2_bits_per_byte": value} for each in ROWS]
    with pytest.raises(InputError, match=r"table\.json: rows\[0\]\.bzip2_bits_per_byte"):
        report([folder(tmp_path, rows=rows)])


def test_a_comparison_has_a_page_of_its_own(tmp_path):
    with pytest.raises(InputError, match="name it alone"):
        report([folder(tmp_path), tmp_path])


def test_a_published_point_is_never_beyond_its_axis(tmp_path):
    (point,) = TABLE["published"]["points"]
    points = [{**point, "x": x, "y": y} for x, y in ((0.18, 583.06), (0.19, 36.07), (0.2, 35.0), (0.21, 34.0))]
    axes = against(
        load_comparison(folder(tmp_path, published={**TABLE["published"], "points": points})), "epsilon"
    ).axes[-1]
    assert axes.get_ylim()[0] < 34.0 < 583.06 < axes.get_ylim()[1]


def test_where_the_noise_is_given_a_line_against_epsilon_goes_through_all_rounds(tmp_path):
    rows = [{**each, "noise_multiplier": 2.0} for each in (row("ours", 50.0 - T, "user", T / 4, T=T) for T in (4, 8))]
    compared = load_comparison(folder(tmp_path, rows=[ROWS[0], *rows], grid=[ROUNDS], published=None))
    assert drawn(against(compared, "epsilon"))["user"]["ours (user)"] == [(1, 46), (2, 42)]
    solved = [{**each, "noise_multiplier": noise} for each, noise in zip(rows, (2.0, 3.0), strict=True)]
    compared = load_comparison(folder(tmp_path, rows=[ROWS[0], *solved], grid=[ROUNDS], published=None))
    assert drawn(against(compared, "epsilon"))["user"]["ours, T = 4 (user)"] == [(1, 46)]


def test_epsilon_as_published_has_a_figure_of_its_own_beside_what_others_published(tmp_path):
    rows = [{**each, "as_published": None} for each in ROWS]
    for each, (epsilon, unit) in zip(rows[1:3], [(0.18, "user-entity"), (0.2, "user-entity")], strict=True):
        each["as_published"] = {"epsilon": epsilon, "unit": unit}
    theirs = {"corpus": "conll", "series": "plain", "x": 0.2, "y": 27.0, "unit": "none", "source": "text"}
    published = {**TABLE["published"], "points": [*TABLE["published"]["points"], theirs]}
    compared = load_comparison(folder(tmp_path, rows=rows, published=published))
    assert axes_of(compared) == ["epsilon", AS_PUBLISHED, ROUNDS]
    assert [*drawn(against(compared, "epsilon"))] == ["user-entity", "user"], "a real ε is beside no other"
    figure = against(compared, AS_PUBLISHED)
    panels = drawn(figure)
    assert [*panels] == ["our runs\nuser-entity, not a guarantee", "user, as published"]
    ours, others = panels.values()
    assert ours["ours, T = 10 (user-entity, not a guarantee)"] == [(0.18, 46)]
    assert ours["ours, T = 50 (user-entity, not a guarantee)"] == [(0.2, 42)]
    assert "30, bare, T = 10 (no guarantee)" in ours
    assert not any(label.startswith("users") for label in ours), "it has no such ε, and is no level"
    assert others["as published: <i>, conll (Fig. 2a)"] == [(0.18, 35.1)]
    assert {y for _, y in others["27, as published: plain, conll (text)"]} == {27}
    assert all("as published, not a guarantee" in axes.get_xlabel() for axes in figure.axes)
    text = Page(report([tmp_path])).text
    assert "0.180 (user-entity)" in text
    assert text.count("ε as published, not a guarantee") >= 2, "in the figure's title and above its column"

"""The timeline: what ran when, as the journal of the search has it, and for the owner alone."""

from __future__ import annotations

import dataclasses
import json
import math
import re
import shutil

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.analysis.page import Page
from tests.analysis.sweeps import RESUMED, read_result, write_sweep
from tests.analysis.test_figures import legend_texts
from uedp_ray.analysis.frames import load_sweep
from uedp_ray.analysis.publish import publishable
from uedp_ray.analysis.report import report
from uedp_ray.analysis.style import NothingToShow, svg
from uedp_ray.analysis.timeline import bars, spell, timeline, told
from uedp_ray.errors import InputError
from uedp_ray.search.columns import TIMES


@pytest.fixture
def copy(small, tmp_path):
    return shutil.copytree(small, tmp_path / "copy")


def changed(sweep, **columns):
    """The sweep with other values, by trial's number, in columns of its trials."""
    trials = sweep.trials.copy()
    for name, values in columns.items():
        for number, value in values.items():
            trials.loc[trials["number"] == number, name] = value
    return dataclasses.replace(sweep, trials=trials)


def test_every_trial_that_began_has_a_bar_from_its_start_to_its_end(small):
    sweep = load_sweep(small)
    began = sweep.trials[sweep.trials["state"] != "refused"]
    assert [(bar.name, bar.state, bar.start, bar.end) for bar in bars(sweep)] == [
        (row["trial"], row["state"], row["started"], row["started"] + row["seconds"]) for _, row in began.iterrows()
    ]
    (axes,) = timeline(sweep).axes
    drawn = [(patch.get_x(), patch.get_width()) for patch in axes.patches]
    assert np.allclose(drawn, began[["started", "seconds"]] / 60)
    assert [patch.get_y() for patch in axes.patches] == sorted(patch.get_y() for patch in axes.patches)
    assert axes.get_xlabel() == "minutes since the search began"
    assert axes.get_ylim()[0] > axes.get_ylim()[1], "the first to start is on top"


def test_states_restarts_and_the_chosen_trial_are_in_the_legend_and_differ_without_colour(small):
    figure = timeline(load_sweep(small))
    assert legend_texts(figure).split(" | ") == ["finished", "failed", "stopped early", "chosen", "started once more"]
    greys = {np.mean(each.get_facecolor()[:3]).round(1) for each in figure.axes[0].patches}
    assert len(greys) == 3
    (again,) = (each for each in figure.axes[0].lines if each.get_label() == "started once more")
    assert (again.get_xdata()[0], again.get_ydata()[0]) == ((30.0 * RESUMED + 20) / 60, RESUMED)


def test_bars_say_what_they_are_and_lead_to_the_folder_of_their_trial(small):
    drawn = svg(timeline(load_sweep(small)), "timeline")
    for bar in bars(load_sweep(small)):
        assert f'<a xlink:href="trials/{bar.name}/" target="_blank"><title>{bar.words}</title>' in drawn
    linked = re.findall(r'xlink:href="trials/(\d+)/"', drawn)
    assert linked == [bar.name for bar in bars(load_sweep(small))], "a keyboard goes from link to link in this order"
    assert "trial 0007: stopped early, started after 3.5 min, took 21 s" in drawn
    assert "trial 0004: finished, started after 2 min, started again after 2.3 min, took 100 s" in drawn


def test_it_is_told_in_words(small):
    assert told(load_sweep(small)) == (
        "11 trials within 6.8 min, at most 3 at once, 1.7 on average: 8 finished, 1 stopped early, 2 failed. "
        "The longest is trial 0004, with 100 s. Started once more: 0004."
    )
    one_after_another = {"started": {n: 1000.0 * n for n in range(12)}, "resumed": {RESUMED: math.nan}}
    said = told(changed(load_sweep(small), **one_after_another))
    assert "at most 1 at once" in said
    assert "once more" not in said
    assert [spell(seconds) for seconds in (0.0, 45.04, 7199.0, 7300.0, 1e6)] == [
        "0 s",
        "45 s",
        "120 min",
        "2 h",
        "12 days",
    ]


def test_the_winners_training_has_a_bar_if_its_times_are_known(copy):
    result = read_result(copy)
    for times, shown in (({"started": 420.5, "seconds": 90.0}, True), ({"started": 420.5, "seconds": None}, False)):
        (copy / "result.json").write_text(json.dumps(result | {"winner_trained": times}))
        sweep = load_sweep(copy)
        assert sweep.winner_trained == times
        assert ("The winner's training, started after 7 min, took 90 s." in told(sweep)) == shown
        assert ("the winner's training, on private text" in legend_texts(timeline(sweep))) == shown
    (copy / "result.json").write_text(json.dumps(result | {"winner_trained": {"started": "now", "seconds": 1.0}}))
    with pytest.raises(InputError, match=r"result.json: winner_trained.started"):
        load_sweep(copy)


def test_a_trial_that_has_not_ended_runs_to_the_last_time_that_is_known(tmp_path):
    sweep = load_sweep(write_sweep(tmp_path / "s", finished=False))
    (running,) = (bar for bar in bars(sweep) if bar.state == "running")
    assert running.end == max(bar.end for bar in bars(sweep) if bar.state != "running")
    assert running.words == "trial 0009: not ended yet, started after 4.5 min"
    assert "not ended yet" in legend_texts(timeline(sweep))


def test_a_sweep_of_an_earlier_version_has_a_page_without_it(copy):
    table = pq.read_table(copy / "trials.parquet")
    pq.write_table(table.drop_columns(["started", "resumed"]), copy / "trials.parquet")
    sweep = load_sweep(copy)
    assert sweep.trials[["started", "resumed"]].isna().all(axis=None)
    assert sweep.trials["seconds"].notna().any()
    assert sweep.winner_trained is None
    text = Page(report([copy])).text
    assert "When the trials ran: It is not known when trials started" in text
    assert not (copy / "figures" / "timeline.svg").exists()


def test_one_bar_alone_is_not_drawn(small):
    sweep = load_sweep(small)
    with pytest.raises(NothingToShow, match="Only one trial"):
        timeline(dataclasses.replace(sweep, trials=sweep.trials.head(1)))


@pytest.mark.parametrize("rule", ["composition", "public"])
def test_no_time_is_on_a_page_to_publish_whatever_the_rule(tmp_path, rule):
    """How long a trial takes may depend on whose text was drawn; the winner's training reads private text in any case."""
    path = write_sweep(tmp_path / "s", rule=rule)
    (path / "result.json").write_text(
        json.dumps(read_result(path) | {"winner_trained": {"started": 4711.0, "seconds": 47110.0}})
    )
    report([path])
    assert "13 h" in (path / "report.html").read_text()
    assert (path / "figures" / "timeline.svg").exists()
    published = publishable(load_sweep(path))
    assert published.trials[[*TIMES]].isna().all(axis=None)
    assert published.winner_trained is None
    text = report([path], publish=True).read_text()
    assert "a page for others has none" in text
    assert "since the search began" not in text
    assert not re.search(r"started after|13 h|4711", text)
    assert not (path / "figures" / "timeline.svg").exists(), "one that was drawn for the owner is not left among them"


def test_of_a_secret_number_of_trials_the_timeline_is_as_private_as_the_page(private, tmp_path):
    copy = shutil.copytree(private, tmp_path / "copy")
    report([copy])
    assert (copy / "figures" / "timeline.svg").stat().st_mode & 0o777 == 0o600


def test_of_many_trials_a_few_are_named(small):
    sweep = load_sweep(small)
    many = sweep.trials.loc[[0] * 200].reset_index(drop=True)
    many = many.assign(
        number=range(200), trial=[f"{n:04d}" for n in range(200)], started=[10.0 * n for n in range(200)]
    )
    figure = timeline(dataclasses.replace(sweep, trials=many.astype({"trial": "string"})))
    (axes,) = figure.axes
    assert len(axes.patches) == 200
    assert 20 <= len(axes.get_yticks()) <= 30
    assert figure.get_size_inches()[1] <= 8


@pytest.mark.parametrize("column", TIMES)
@pytest.mark.parametrize("value", [-3600.0, 0.0, 1e99, 1.7e308, math.inf, -math.inf, math.nan, None])
@pytest.mark.parametrize("every", [False, True], ids=["one", "all"])
def test_times_that_no_clock_gives_make_a_figure_or_none(copy, column, value, every):
    """A clock that was set back gives negative ones."""
    table = pq.read_table(copy / "trials.parquet")
    rows = [row | ({column: value} if every or row["number"] == 1 else {}) for row in table.to_pylist()]
    pq.write_table(pa.Table.from_pylist(rows, schema=table.schema), copy / "trials.parquet")
    sweep = load_sweep(copy)
    assert told(sweep)
    try:
        drawn = svg(timeline(sweep), "timeline")
    except NothingToShow:
        assert every
    else:
        assert "nan" not in drawn

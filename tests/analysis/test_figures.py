from __future__ import annotations

import dataclasses
from xml.etree import ElementTree

import numpy as np
import pytest
from matplotlib.collections import LineCollection
from matplotlib.colors import to_rgb

from tests.analysis.sweeps import SPACE, write_sweep
from uedp_ray.analysis import figures, importance, parallel
from uedp_ray.analysis.frames import load_sweep
from uedp_ray.analysis.style import NothingToShow, chart, line, number, svg
from uedp_ray.analysis.table import trial_table
from uedp_ray.errors import InputError
from uedp_ray.privacy.statement import show_epsilon
from uedp_ray.search.sweep_config import SweepConfig


def drawn(axes) -> set[tuple[float, float]]:
    """Every point of every line in data coordinates."""
    lines = [each for each in axes.lines if each.get_transform() == axes.transData]
    return {(float(x), float(y)) for each in lines for x, y in zip(*each.get_data(), strict=True)}


def legend_texts(figure) -> str:
    return " | ".join(text.get_text() for each in figure.legends for text in each.get_texts())


def test_the_name_of_a_font_in_a_text_takes_nothing_away():
    figure, (axes,) = chart(4, 3)
    axes.set_title("DejaVu Sans' and more")
    axes.set_xlabel("below")
    told = "".join(ElementTree.fromstring(svg(figure, "fonts")).itertext())
    assert "below" in told


def spread_out(sweep):
    """The sweep, had its trials been given different noise."""
    trials = sweep.trials.assign(epsilon=sweep.trials["epsilon"] * np.linspace(0.5, 1.0, len(sweep.trials)))
    trials["pareto"] = trials["trial"] == sweep.best["trial"]
    return dataclasses.replace(sweep, trials=trials)


def test_trials_in_order_show_the_best_so_far_and_what_no_search_gives(small, monkeypatch):
    sweep = load_sweep(small)
    (axes,) = figures.in_order(sweep).axes
    shown = sweep.trials[sweep.trials["state"].isin(["done", "stopped"])]
    assert set(zip(shown["number"].astype(float), shown["perplexity"], strict=True)) <= drawn(axes)
    (so_far,) = (each for each in axes.lines if each.get_label() == "best so far")
    done = shown[shown["state"] == "done"].sort_values("number")
    assert list(so_far.get_ydata()) == list(np.minimum.accumulate(done["perplexity"]))
    assert "no search" not in legend_texts(figures.in_order(sweep)), "no trial has the base's own settings"
    monkeypatch.setattr(SweepConfig, "at_base", lambda self, rows: next(iter(rows)))
    told = legend_texts(figures.in_order(sweep))
    assert "the base's own settings" in told
    assert "no search" not in told, "it did not have what no search would have"
    first = sweep.trials["trial"].iloc[0]
    sweep = dataclasses.replace(sweep, no_search={**sweep.no_search, "trial": first})
    assert "the base's own settings: no search" in legend_texts(figures.in_order(sweep))
    notes = {cells[0].text: cells[-1].text for _, cells in trial_table(sweep).rows}
    assert [name for name, text in notes.items() if "the base's own settings: no search" in text] == [first]


def test_the_axis_of_a_main_figure_says_what_the_chosen_model_costs_in_all(small):
    sweep = load_sweep(small)
    total = show_epsilon(sweep.best["epsilon_with_choice"])
    for figure in (figures.in_order(sweep), figures.pareto(sweep)):
        assert f"the model to hand on, its choice included: ε = {total} in total" in figure.axes[0].get_xlabel()
    assert "in total" not in figures.in_order(dataclasses.replace(sweep, finished=False)).axes[0].get_xlabel()


def test_compute_is_an_axis_and_with_epsilon_the_front_has_three(small):
    sweep = load_sweep(small)
    done = sweep.trials[sweep.trials["state"] == "done"]
    trial = done.iloc[0]
    config = sweep.config(trial["trial"])
    assert trial["passes"] == pytest.approx(trial["rounds"] * config.privacy.user_sampling_prob)
    figure = figures.compute(sweep)
    assert set(zip(done["passes"], done["perplexity"], strict=True)) <= drawn(figure.axes[0])
    assert "cheaper in ε" not in legend_texts(figure), "all have one epsilon"

    sweep = spread_out(sweep)
    done = sweep.trials[sweep.trials["state"] == "done"]
    points = done[["perplexity", "epsilon", "passes"]].to_numpy()
    kept = [
        name
        for name, one in zip(done["trial"], points, strict=True)
        if not any((other <= one).all() and (other < one).any() for other in points)
    ]
    front = sweep.front("epsilon", "passes")
    assert sorted(front["trial"]) == sorted(kept)
    assert front["perplexity"].is_monotonic_increasing
    assert len(sweep.front("passes")) < len(front) < len(done)
    figure = figures.compute(sweep)
    (ringed,) = (each for each in figure.axes[0].lines if each.get_label().startswith("none is better"))
    assert set(ringed.get_xdata()) == set(front["passes"])
    with pytest.raises(NothingToShow, match="differently often"):
        figures.compute(dataclasses.replace(sweep, trials=sweep.trials.assign(passes=4.0)))


def test_epsilons_that_calibration_alone_sets_apart_are_no_front(small):
    with pytest.raises(NothingToShow, match="All trials have the same ε"):
        figures.check_traded(load_sweep(small))
    figures.check_traded(spread_out(load_sweep(small)))


def test_pareto_shows_every_comparable_trial_and_the_references(small):
    sweep = spread_out(load_sweep(small))
    figure = figures.pareto(sweep)
    by_epsilon, by_rank = figure.axes
    shown = sweep.trials[sweep.trials["state"].isin(["done", "stopped"])].sort_values("perplexity")
    assert set(zip(shown["epsilon"], shown["perplexity"], strict=True)) <= drawn(by_epsilon)
    assert set(enumerate(shown["perplexity"], 1)) <= drawn(by_rank)
    (front,) = (each for each in by_epsilon.lines if each.get_label() == "Pareto front")
    assert (front.get_xdata()[0], front.get_ydata()[0]) == (0.0, 133.0)
    assert front.get_ydata()[-1] == sweep.best["perplexity"]
    assert by_epsilon.get_xlabel().startswith("ε of one run (user-entity, zero-out, δ = 1e-05)\n")
    text = legend_texts(figure).replace("\n", " ")
    assert "88.5, noiseless: no guarantee; trained without noise on the same text: do not publish this line" in text
    assert "133, public text only: ε = 0" in text
    assert "chosen" in text
    assert "stopped early" in text
    assert "cannot be told apart" not in text  # one seed: nobody can say


def test_a_reference_that_is_far_off_does_not_press_the_trials_into_a_corner(small):
    sweep = spread_out(load_sweep(small))
    references = sweep.references.copy()
    references.loc[references["name"] == "noiseless", "perplexity"] = 3.0
    sweep = dataclasses.replace(sweep, references=references)
    for figure in (figures.pareto(sweep), figures.in_order(sweep), figures.learning_curves(sweep)):
        assert figure.axes[0].get_ylim()[0] > 0.5 * min(sweep.trials["perplexity"].min(), 88.5)
        assert "3, beyond the axis: noiseless: no guarantee" in legend_texts(figure).replace("\n", " ")


def test_pareto_shows_spread_and_ties_over_seeds(seeded):
    sweep = spread_out(load_sweep(seeded))
    figure = figures.pareto(sweep)
    spreads = [c.get_segments() for c in figure.axes[0].collections if isinstance(c, LineCollection)]
    heights = sorted(abs(s[1][1] - s[0][1]) for segments in spreads for s in segments)
    shown = sweep.trials[sweep.trials["state"].isin(["done", "stopped"])]
    assert heights == pytest.approx(sorted(2 * shown["perplexity_std"]))
    assert ("cannot be told apart" in legend_texts(figure)) == bool(sweep.best["tied"])
    assert "noiseless" not in legend_texts(figure)


def test_trials_without_a_guarantee_share_no_axis_with_the_others(small):
    sweep = load_sweep(small)
    trials = sweep.trials.copy()
    trials.loc[0, "epsilon"] = np.inf
    sweep = dataclasses.replace(sweep, trials=trials)
    assert "0000" not in set(figures.comparable_trials(sweep)["trial"])
    trials["epsilon"] = np.inf
    with pytest.raises(NothingToShow):
        figures.pareto(sweep)


def test_a_diverged_trial_does_not_flatten_the_rest(small):
    sweep = load_sweep(small)
    trials = sweep.trials.copy()
    trials.loc[0, "perplexity"] = 1e7
    figure = figures.in_order(dataclasses.replace(sweep, trials=trials))
    assert figure.axes[0].get_ylim()[1] < 1000
    assert "beyond the axis: 1 trial of perplexity over 399" in legend_texts(figure)


def test_answers_of_like_sweeps_share_axes_and_others_do_not(small, seeded, other_delta):
    small, seeded, other = map(load_sweep, (small, seeded, other_delta))
    figure = figures.joint_pareto([small, seeded])
    totals = {(sweep.best["epsilon_with_choice"], sweep.best["perplexity"]) for sweep in (small, seeded)}
    assert drawn(figure.axes[0]) == totals
    assert figure.axes[0].get_xlabel() == "ε in total, training and choosing (user-entity, zero-out, δ = 1e-05)"
    unfinished = dataclasses.replace(small, finished=False)
    assert "small" not in legend_texts(figures.joint_pareto([unfinished, seeded]))
    with pytest.raises(NothingToShow, match="None of the sweeps"):
        figures.joint_pareto([unfinished])
    with pytest.raises(InputError, match="delta of other"):
        figures.joint_pareto([small, other])


def test_parallel_coordinates_follow_the_searched_scale(small):
    sweep = load_sweep(small)
    (axes,) = parallel.parallel_coordinates(sweep).axes
    (best,) = (each for each in axes.lines if each.get_label() == "chosen")
    heights = dict(zip(sweep.space, best.get_ydata(), strict=False))
    rate = sweep.best["params"]["training.server_learning_rate"]
    assert heights["training.server_learning_rate"] == pytest.approx(np.log(rate / 1e-3) / np.log(30))
    assert heights["training.num_rounds"] == (sweep.best["params"]["training.num_rounds"] - 10) / 20
    lora = list(sweep.space).index("model.lora_rank")
    trials = figures.comparable_trials(sweep)
    below = sum(each.get_ydata()[lora] < 0 for each in axes.lines if len(each.get_xdata()) == len(sweep.space) + 1)
    assert below == (trials["model.trainable"] == "full").sum()
    texts = {text.get_text() for text in axes.texts}
    assert {"not\nused", "full", "lora", "0.001", "0.03", "8"} <= texts


def test_a_null_that_is_a_choice_is_not_an_absence(tmp_path):
    space = {"privacy.sentence_clip_norm": {"choice": [None, 0.4]}, "training.num_rounds": SPACE["training.num_rounds"]}
    sweep = load_sweep(write_sweep(tmp_path / "s", trials=4, space=space))
    (axes,) = parallel.parallel_coordinates(sweep).axes
    lines = [each for each in axes.lines if len(each.get_xdata()) == 3]
    assert {each.get_ydata()[0] for each in lines} == {0.0, 1.0}
    assert "none" in {text.get_text() for text in axes.texts}


def test_importance_finds_what_matters_and_says_what_chance_gives(small):
    sweep = _with_perplexities(load_sweep(small), lambda rate, other: 100 + 10 * abs(np.log(rate / 0.005)))
    table = importance.importances(sweep)
    assert table.index[0] == "training.server_learning_rate"
    assert table["importance"].sum() == pytest.approx(1.0)
    assert table["importance"].iloc[0] > table["chance"].iloc[0]
    assert (table["importance"].iloc[1:] < table["chance"].iloc[1:]).all()
    figure = importance.importance(sweep)
    assert "best quarter of 60 finished trials" in figure.axes[0].get_xlabel()
    (bar,) = figure.axes[0].patches
    assert bar.get_width() == pytest.approx(table["importance"].iloc[0]), "only what chance does not explain"


def _with_perplexities(sweep, of):
    """Sixty finished trials whose perplexity is a function of two settings."""
    generator = np.random.default_rng(0)
    rows = sweep.trials[sweep.trials["state"] == "done"].sample(60, replace=True, random_state=0, ignore_index=True)
    rows["training.server_learning_rate"] = np.exp(generator.uniform(np.log(1e-3), np.log(3e-2), 60))
    rows["privacy.user_sampling_prob"] = np.exp(generator.uniform(np.log(0.05), np.log(0.5), 60))
    rows["perplexity"] = of(rows["training.server_learning_rate"], rows["privacy.user_sampling_prob"])
    sweep = _searching(sweep, "training.server_learning_rate", "privacy.user_sampling_prob")
    return dataclasses.replace(sweep, trials=rows)


def _searching(sweep, *keys):
    """The sweep, had it searched only these of its settings."""
    space = {key: sweep.sweep_config.space[key] for key in keys}
    return dataclasses.replace(sweep, sweep_config=dataclasses.replace(sweep.sweep_config, space=space))


def test_importance_of_few_trials_is_not_shown(small, private):
    with pytest.raises(NothingToShow, match="Only 3 trials have finished"):
        importance.importance(load_sweep(private))
    with pytest.raises(NothingToShow, match="Only one setting"):
        importance.importance(_searching(load_sweep(small), "training.num_rounds"))


def test_utility_is_shown_against_q_s_or_else_what_was_searched(small, tmp_path):
    sweep = load_sweep(small)
    (axes,) = figures.utility(sweep).axes
    assert axes.get_xlabel() == "q_u: user_sampling_prob"
    assert axes.get_xscale() == "log"
    best = (sweep.best["params"]["privacy.user_sampling_prob"], sweep.best["perplexity"])
    assert best in drawn(axes)
    with pytest.raises(NothingToShow, match="No sampling probability was searched"):
        figures.utility(_searching(sweep, "training.num_rounds"))
    space = {"privacy.extended_sampling_prob": {"uniform": [0.0, 1.0]}, **SPACE}
    panels = figures.utility(load_sweep(write_sweep(tmp_path / "s", trials=3, space=space))).axes
    assert [axes.get_xlabel() for axes in panels] == ["q_s: extended_sampling_prob", "q_u: user_sampling_prob"]


def test_learning_curves_are_those_of_the_best_trials(seeded):
    sweep = load_sweep(seeded)
    figure = figures.learning_curves(sweep, top=2)
    curves = sweep.rounds(sweep.best["trial"])
    assert set(zip(curves["round"].astype(float), curves["perplexity"], strict=True)) <= drawn(figure.axes[0])
    best = sweep.trials[sweep.trials["state"] == "done"].sort_values("perplexity")["trial"].head(2).tolist()
    assert f"trial {best[0]}, chosen | trial {best[1]}" in legend_texts(figure)


def test_lines_differ_in_more_than_colour():
    styles = [line(index) for index in range(6)]
    assert len({str(style["linestyle"]) for style in styles}) == 6
    assert len({style["marker"] for style in styles}) == 6
    assert len({to_rgb(style["color"]) for style in styles}) == 6


def test_svg_is_one_element_with_text_and_no_addresses():
    def draw():
        figure, (axes,) = chart(3, 2)
        axes.plot([1, 2], label="a < b & ε", **line(0))
        axes.legend()
        return figure

    text = svg(draw(), "name")
    assert text.startswith("<svg")
    assert text.endswith("</svg>")
    assert "a &lt; b &amp; ε</text>" in text
    assert text == svg(draw(), "name")
    assert set(_between(text, 'id="')) == {each for each in _between(text, 'id="') if each.startswith("name-")}
    assert {each for each in _between(text, '"http') if "w3.org" not in each} == set()


def _between(text: str, start: str) -> list[str]:
    return [part.split('"')[0] for part in text.split(start)[1:]]


def test_numbers():
    assert [number(value) for value in (8, 0.005477226, 1e-5, 123456.7, 2.5e7)] == [
        "8",
        "0.005477",
        "1e-5",
        "123500",
        "2.5e7",
    ]

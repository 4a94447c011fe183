from __future__ import annotations

import json
import os
import re
import shutil
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.analysis.page import Page
from tests.analysis.sweeps import RELEASABLE, read_result, write_sweep
from uedp_ray.analysis.cost import prices
from uedp_ray.analysis.frames import load_sweep
from uedp_ray.analysis.page import write
from uedp_ray.analysis.report import report
from uedp_ray.config import as_yaml, load_config
from uedp_ray.errors import InputError
from uedp_ray.privacy import selection
from uedp_ray.privacy.accounting import epsilon
from uedp_ray.privacy.mechanisms.poisson import RoundMechanism
from uedp_ray.privacy.statement import show_epsilon

pytestmark = pytest.mark.whole

SECTIONS = [
    "What to hand on",
    "Perplexity of the trials",
    "Summary",
    "The chosen configuration",
    "Cost of choosing",
    "Perplexity against compute",
    "When the trials ran",
    "All searched settings",
    "ε against rounds",
    "ε against the number of holders K",
    "Utility against sampling",
    "Perplexity over the rounds",
    "Figures that would say nothing",
    "All trials",
]


@pytest.fixture(scope="module")
def copies(tmp_path_factory, small, seeded, private, other_delta) -> dict[str, Path]:
    """Copies that may be written to, each with its page."""
    folder = tmp_path_factory.mktemp("reported")
    found = {path.name: shutil.copytree(path, folder / path.name) for path in (small, seeded, private, other_delta)}
    for path in found.values():
        assert report([path]) == path / "report.html"
    return found


@pytest.fixture(scope="module")
def page(copies) -> Page:
    return Page(copies["small"] / "report.html")


def test_the_page_is_whole_and_in_order(page):
    assert page.heads == SECTIONS
    assert page.tags.count("svg") == 8
    assert "Perplexity against ε: All trials have the same ε, to within 1%" in page.text
    assert "Which settings matter: No setting stands out from what chance would give in 8 trials" in page.text
    assert "Do the public texts agree?: The trials have one text" in page.text


def test_the_first_screen_says_what_to_hand_on_and_why(copies, page):
    result = read_result(copies["small"])
    best, total = result["best"], show_epsilon(result["best"]["epsilon_with_choice"])
    said = page.text[page.text.index("What to hand on") : page.text.index("Perplexity of the trials")]
    assert f"trial {best['trial']}: perplexity {best['perplexity']:.1f}" in said
    terms = "(unit user-entity, zero-out (fixed graph), δ = 1e-05)"
    assert f"{total}, training and choosing, where the budget of 8 covers each trial alone {terms}" in said
    assert f"perplexity {best['perplexity']:.1f}, {best['bits_per_byte']:.3f} bits/byte" in said
    gained = [1 - best[name] / best[f"initial_{name}"] for name in ("perplexity", "bits_per_byte")]
    assert f"{gained[0]:.1%} in perplexity and {gained[1]:.1%} in bits/byte over the public model" in said
    assert f"(133.0, {best['initial_bits_per_byte']:.3f} bits/byte)" in said
    assert f"uedp-ray export {copies['small']} --out DIR" in said
    for key, value in best["params"].items():
        assert f"{key.split('.')[-1]} {str(value)[:4]}" in said


def test_points_and_rows_lead_to_the_folder_of_their_trial(copies, page, tmp_path):
    trained = [row["run_dirs"][0] for row in read_result(copies["small"])["trials"] if row["run_dirs"]]
    assert {link.removesuffix("/") for link in page.links} == set(trained)
    assert page.links.count(f"{trained[0]}/") == 5, "in the table, and in four figures"
    text = (copies["small"] / "report.html").read_text()
    assert re.search(
        rf'<a xlink:href="{trained[0]}/" target="_blank"><title>trial 0000: perplexity [\d.]+; privacy\.user_s', text
    )
    assert f'xlink:href="../{trained[0]}/"' in (copies["small"] / "figures" / "order.svg").read_text()
    copy = shutil.copytree(copies["small"], tmp_path / "copy of it")
    elsewhere = Page(report([copy], tmp_path / "pages" / "page.html"))
    assert f"../copy%20of%20it/{trained[0]}/" in elsewhere.links
    published = Page(report([copy], tmp_path / "published.html", publish=True))
    assert published.links == []
    assert "To hand it on" not in published.text


def test_figures_are_told_in_words_to_those_who_do_not_see_them(copies, page):
    rows = [row for row in read_result(copies["small"])["trials"] if row["state"] in ("done", "stopped")]
    best, worst = (pick(rows, key=lambda row: row["perplexity"]) for pick in (min, max))
    said = f"9 trials, from perplexity {best['perplexity']:.1f} (trial {best['trial']}, the best) to "
    said += f"{worst['perplexity']:.1f}"
    figures = re.findall(r'role="figure" aria-label="([^"]*)"', (copies["small"] / "report.html").read_text())
    assert len(figures) >= 5
    for name in figures:
        title, _, described = name.partition(". ")
        assert re.search(r"\d", described), f"{title}: what it shows, for those who do not see it"
    assert f'aria-label="Perplexity of the trials. {said}' in (copies["small"] / "report.html").read_text()


def test_a_policy_forbids_the_network(copies):
    assert "default-src 'none'" in (copies["small"] / "report.html").read_text()


def test_the_summary_says_what_was_found_and_what_it_cost(copies, page):
    result = read_result(copies["small"])
    best = result["best"]
    terms = "unit user-entity, zero-out (fixed graph), δ = 1e-05"
    assert f"under the budget ε ≤ 8 per run ({terms})" in page.text
    searched = "user_sampling_prob, num_rounds, server_learning_rate, trainable, lora_rank"
    assert f"5 dimensions ({searched}) in 12 trials, by the searcher" in page.text, "not 5 points"
    assert "12 asked for; 8 finished, 1 stopped early, 2 failed, 1 refused before training." in page.text
    assert f"Trial {best['trial']} is the best, with perplexity {best['perplexity']:.1f} (" in page.text
    assert f"({best['bits_per_byte']:.3f} bits/byte, " in page.text
    assert "a model trained on public text only has 133.0 (ε = 0); a noiseless one 88.5 (no guarantee)" in page.text
    assert "With one seed per trial" in page.text
    by_unit = ", ".join(f"{unit} {show_epsilon(value)}" for unit, value in best["epsilon"].items())
    assert f"By unit: {by_unit}; zero-out (fixed graph), δ = 1e-05; upper bounds for this one run" in page.text
    assert f"Rule composition: the chosen run and its choice together cost ε = 41.235 ({terms})." in page.text
    assert "Every trial, its configuration and its score." in page.text


def test_ties_and_spread_are_in_words(copies):
    best = read_result(copies["seeded"])["best"]
    text = Page(copies["seeded"] / "report.html").text
    assert f"{best['perplexity_std']:.1f} over 2 seeds" in text
    if best["tied"]:
        assert f"cannot be told apart from {', '.join(best['tied'])}." in text
    assert "Bars are one standard deviation over seeds." in text


def test_the_chosen_configuration_and_its_statement(copies, page):
    sweep = load_sweep(copies["small"])
    config = as_yaml(load_config(sweep.best_run / "config.yaml"))
    assert "read_as" not in config, "of users made of a text, which this is not"
    assert re.sub(r"\s+", " ", config).strip() in page.text
    for key, value in sweep.best["params"].items():
        assert [row for row in page.rows if row[0] == key and row[1].startswith(str(value)[:4])], key
    z = f"{sweep.best['noise_multiplier']:.6g}"
    assert f"(noise multiplier {z}), added once, before anything leaves whoever adds it." in page.text
    assert f"The chosen model costs ε = {show_epsilon(sweep.best['epsilon_with_choice'])}" in page.text


def test_every_trial_is_in_the_table(copies, page):
    header = next(row for row in page.rows if row and row[0] == "trial" and "notes" in row)
    assert header[10:] == [
        "user_sampling_prob",
        "num_rounds",
        "server_learning_rate",
        "trainable",
        "lora_rank",
        "notes",
    ]
    rows = {row[0]: dict(zip(header, row, strict=True)) for row in page.rows if re.fullmatch(r"\d{4}", row[0])}
    for trial in read_result(copies["small"])["trials"]:
        row = rows.pop(trial["trial"])
        assert row["state"] == trial["state"]
        assert row["ε of the run alone"] == ("–" if trial["epsilon"] is None else show_epsilon(trial["epsilon"]))
        if trial["perplexity"] is not None:
            assert float(row["perplexity"]) == pytest.approx(trial["perplexity"], rel=1e-3)
        if trial["bits_per_byte"] is not None:
            assert float(row["bits/byte"]) == pytest.approx(trial["bits_per_byte"], rel=1e-2)
            assert row["<unk>"] == "1.2%"
        if trial["reason"]:
            assert trial["reason"] in row["notes"]
        assert row["lora_rank"] == ("–" if trial["model.lora_rank"] is None else str(trial["model.lora_rank"]))
    assert not rows


def test_text_of_the_sweep_is_shown_in_its_order(copies, tmp_path):
    path = shutil.copytree(copies["small"], tmp_path / "copy")
    result = json.loads((path / "result.json").read_text())
    result["selection"]["releasable"] = "\u202eevil"
    (path / "result.json").write_text(json.dumps(result))
    source = report([path]).read_text()
    assert "\ufffdevil" in source
    assert "\u202e" not in source


def test_text_of_the_sweep_is_escaped(copies, page):
    source = (copies["small"] / "report.html").read_text()
    assert "<script>alert('&')</script>" in page.text
    assert "alert('&')" not in source
    assert source.count("<script") == 1


def test_markup_in_a_statement_stays_text(copies, tmp_path):
    copy = shutil.copytree(copies["small"], tmp_path / "copy")
    statement = load_sweep(copy).best_run / "privacy.md"
    with statement.open("a") as file:
        file.write("\n<img src=http://a.example/x>\n\n![x](http://b.example/y) [z](http://c.example)\n")
    found = Page(report([copy]))
    assert "img" not in found.tags
    assert "http://b.example/y" in found.text


def test_the_noiseless_line_is_not_to_be_published(copies, page):
    label = "no guarantee; trained without noise on the same text: do not publish this line"
    assert page.text.count(label) >= 4  # the warning, and the captions of three figures
    assert label not in Page(copies["seeded"] / "report.html").text


@pytest.mark.parametrize(("name", "seeds"), [("small", 1), ("seeded", 2)])
def test_the_price_of_choosing_by_every_rule(copies, name, seeds):
    sweep = load_sweep(copies[name])
    rounds = [event for event in sweep.ledger(sweep.best["trial"]) if event["kind"] == "round"]
    mechanism = RoundMechanism.from_dict(rounds[0]["mechanism"])
    chosen, one, *others = prices(sweep)
    assert (one.epsilon, chosen.epsilon) == (sweep.best["epsilon"]["user-entity"], 41.2345)
    assert [price.of_sweep for price in (one, chosen, *others)] == [True, True, False, False]
    for law, price in zip(("logarithmic", "geometric"), others, strict=True):
        assert law in price.what
        assert price.epsilon == selection.epsilon_of_choosing(
            "repeat_and_select",
            searcher="random",
            early_stopping=False,
            candidates=[[(mechanism, seeds * len(rounds))]],
            mean=12.0,
            law=law,
            delta=1e-5,
        )


def test_the_total_stands_before_what_the_run_alone_costs(copies, page):
    trial = read_result(copies["small"])["best"]["trial"]
    heads = [head for head in ("ε in total, the choice included", "ε of the chosen run alone") if head in page.text]
    assert page.text.index(heads[0]) < page.text.index(heads[1])
    assert [row[0] for row in page.rows if "rule composition" in row[0] or "alone, as if" in row[0]] == [
        "in total: the chosen run and its choice, by rule composition",
        f"one run: trial {trial} alone, as if it was not chosen",
    ]


def test_under_repeat_and_select_composition_is_the_comparison(copies):
    sweep = load_sweep(copies["private"])
    rounds = [event for event in sweep.ledger(sweep.best["trial"]) if event["kind"] == "round"]
    mechanism = RoundMechanism.from_dict(rounds[0]["mechanism"])
    (composed,) = (price for price in prices(sweep) if not price.of_sweep)
    assert "composition" in composed.what
    assert composed.epsilon == epsilon(mechanism, rounds=3 * len(rounds), delta=1e-5)


def test_a_private_page_says_so_and_is_owner_only(copies):
    path = copies["private"] / "report.html"
    found = Page(path)
    assert "This page itself is private." in found.text
    assert "only the winner may be released" in found.text
    assert "a secret random number, 3 on average" in found.text.lower()
    for file in (path, copies["private"] / "figures" / "order.svg"):
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert "private." not in Page(copies["small"] / "report.html").text


def test_where_the_price_became_that_of_composition_the_number_was_still_drawn(copies, tmp_path):
    copy = shutil.copytree(copies["private"], tmp_path / "copy")
    result = read_result(copy)
    result["selection"] |= {"rule": "composition", "releasable": RELEASABLE["composition"]}
    (copy / "result.json").write_text(json.dumps(result))
    report([copy])
    assert "a random number, 3 on average" in Page(copy / "report.html").text.lower()


def test_figures_are_files_too_and_none_is_left_from_before(copies, tmp_path):
    names = {"order", "compute", "timeline", "parallel", "epsilon-rounds", "epsilon-holders", "utility", "learning"}
    assert {file.stem for file in (copies["small"] / "figures").iterdir()} == names
    text = (copies["small"] / "figures" / "order.svg").read_text()
    assert text.replace("../trials/", "trials/") in (copies["small"] / "report.html").read_text()
    copy = shutil.copytree(copies["private"], tmp_path / "copy")
    (copy / "figures" / "importance.svg").write_text(text)  # of an earlier report
    report([copy])
    assert not (copy / "figures" / "importance.svg").exists()
    assert "Only 3 trials have finished: with fewer than 8" in Page(copy / "report.html").text


@pytest.mark.parametrize("name", ["report.html", "figures/order.svg"])
def test_a_file_of_the_users_in_the_place_of_a_page_or_figure_stays(copies, tmp_path, name):
    copy = shutil.copytree(copies["private"], tmp_path / "copy")
    (copy / name).write_text("two days of work")
    with pytest.raises(InputError, match=r"is not a (page|figure) of ours"):
        report([copy])
    assert (copy / name).read_text() == "two days of work"


def test_reports_of_one_sweep_at_once_leave_each_file_whole(tmp_path):
    """As one in a loop, and one by hand."""
    page, texts = tmp_path / "page.html", [f"{number}" * 1000 for number in range(200)]
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda text: write(page, text, private=False, publish=False), texts))
    assert page.read_text() in texts
    assert list(tmp_path.iterdir()) == [page]


def test_several_sweeps_make_one_page(copies, tmp_path):
    paths = [copies["small"], copies["seeded"]]
    with pytest.raises(InputError, match="name a file"):
        report(paths)
    found = Page(report(paths, tmp_path / "new" / "both.html"))
    assert found.heads == ["The sweeps together", *SECTIONS, *SECTIONS]
    assert found.tags.count("svg") == 17
    assert "small: perplexity 100.3 at ε = 41.23" in found.text
    assert "Totals of sweeps on the same private text add up" in found.text
    assert "Totals of sweeps" not in Page(report(paths[:1], tmp_path / "one.html")).text


def test_sweeps_of_other_terms_share_no_axis(copies, tmp_path):
    found = Page(report([copies["small"], copies["other"]], tmp_path / "both.html"))
    assert "No common axis: delta of other = 1e-06: small has 1e-05" in found.text
    assert " at ε = " not in found.text


def test_a_sweep_that_is_not_finished_is_reported_as_such(tmp_path):
    found = Page(report([write_sweep(tmp_path / "s", finished=False)]))
    assert "The sweep is not finished." in found.text
    assert "is the best so far" in found.text
    assert "Nothing yet: the sweep is not finished, and its price is not settled." in found.text


def test_a_sweep_without_a_result_is_reported_too(copies, tmp_path):
    copy = shutil.copytree(copies["private"], tmp_path / "copy")
    table = pq.read_table(copy / "trials.parquet")
    rows = [{**row, "state": "failed", "perplexity": None, "pareto": False} for row in table.to_pylist()]
    pq.write_table(pa.Table.from_pylist(rows, schema=table.schema), copy / "trials.parquet")
    result = read_result(copy) | {"best": None, "pareto": [], "trials": rows, "references": []}
    (copy / "result.json").write_text(json.dumps(result))
    found = Page(report([copy]))
    assert "there is nothing to choose" in found.text
    assert "the trials together cost ε = 16.544" in found.text
    assert found.tags.count("svg") == 1, "that of when they ran"
    assert found.heads == ["Summary", "When the trials ran", "Figures that would say nothing", "All trials"]


def test_a_folder_is_no_page(copies, tmp_path):
    (tmp_path / "page" / "mine").mkdir(parents=True)
    with pytest.raises(InputError, match="is a folder: name a file"):
        report([copies["small"]], tmp_path / "page")
    assert [str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*")] == ["page", "page/mine"]


def test_a_page_takes_the_place_of_a_page_and_of_nothing_else(copies, tmp_path):
    sweep = tmp_path / "sweep"
    shutil.copytree(copies["small"], sweep)
    ledger = next(sweep.rglob("ledger.jsonl"))
    (tmp_path / "thesis.html").write_text("<title>Mine</title>")
    (tmp_path / "link.html").symlink_to(ledger)
    os.mkfifo(tmp_path / "pipe.html")
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    for name in (ledger, sweep / "trials" / "0099" / "ledger.jsonl", *map(tmp_path.joinpath, (
        "thesis.html", "link.html", "pipe.html", "notes", "a\udcff.html"
    ))):  # fmt: skip
        with pytest.raises(InputError, match=r"^--out|^pipe\.html"):
            report([sweep], name)
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before
    for _ in range(2):
        assert report([sweep], tmp_path / "new" / "page.html").read_bytes()


def test_nothing_to_report_is_an_error(tmp_path):
    with pytest.raises(InputError, match="at least one sweep directory"):
        report([])
    with pytest.raises(InputError, match="is not a sweep directory"):
        report([tmp_path])

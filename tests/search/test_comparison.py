"""Comparison files with a grid, seeds and published points: their rows, means, intervals and totals."""

from __future__ import annotations

import csv
import json
import math
import shutil
import stat

import pytest
import yaml
from scipy import integrate, optimize

from tests.search.test_compare import PRETRAIN, written
from tests.told import Told
from tests.training.runs import run_tree
from uedp_ray.errors import InputError
from uedp_ray.privacy.events import epsilon_of_events
from uedp_ray.privacy.ledger import read_ledger
from uedp_ray.search.compare import compare
from uedp_ray.search.compared import interval, own, row_of, totals
from uedp_ray.search.comparison import Comparison
from uedp_ray.search.told import about_total, shortened
from uedp_ray.tasks.metrics import ERROR_RATE, PERPLEXITY
from uedp_ray.training import worker

NOISE = "privacy.noise_multiplier"
VARIANTS = {"ours": {"method": "uedp"}, "users": {"method": "user_dp"}, "bare": {"method": "noiseless"}}
ROUNDS = {"num_rounds": 1, "device": "cpu"}
HEAD = "figure,corpus,series,x,y,unit,source\n"


def load(corpora, folder, overrides=(), **keys):
    base = run_tree(corpora, pretrain=PRETRAIN | {"num_steps": 1}, training=ROUNDS)
    return Comparison.load(written(folder, {"base": base, "variants": VARIANTS, **keys}), [*overrides])


@pytest.mark.parametrize(
    ("grid", "points"),
    [
        ({NOISE: [1, 2]}, {"ours": [1, 2], "users": [1, 2], "bare": [None]}),
        ({"privacy.delta": [1e-5, 1e-6]}, {"ours": [1e-5, 1e-6], "users": [1e-5, 1e-6], "bare": [None]}),
        ({"privacy.extended_sampling_prob": [0.5, 1.0]}, {"ours": [0.5, 1.0], "users": [None], "bare": [0.5, 1.0]}),
        ({"training.num_rounds": [1, 2]}, {"ours": [1, 2], "users": [1, 2], "bare": [1, 2]}),
        (
            {"corpus.categories": [[], ["org"]]},
            {"ours": [[], ["org"]], "drawn": [[], ["org"]], "users": [None], "bare": [None]},
        ),
    ],
)
def test_a_variant_has_a_row_for_each_value_that_its_runs_use(corpora, tmp_path, grid, points):
    (key,) = grid
    variants = VARIANTS | {"bare": {"method": "noiseless", "set": {"privacy.entity_sampling_prob": 1.0}}}
    if key == "corpus.categories":
        variants["bare"]["set"]["privacy.extended_sampling_prob"] = 1.0
        variants["drawn"] = {"method": "noiseless", "set": {"privacy.entity_sampling_prob": 0.5}}
    rows = load(corpora, tmp_path, grid=grid, variants=variants).rows
    assert {name: [row.point.get(key) for row in rows if row.variant == name] for name in points} == points


def test_a_grid_that_is_not_taken_up_is_told(corpora, tmp_path):
    """A variant that set the whole section had one row, whatever the grid, and nothing said why."""
    key, words = "corpus.transform.epsilon", {"kind": "replace_words", "mechanism": "santext", "vectors": "toy.txt"}
    each = {f"corpus.transform.{name}": value for name, value in words.items()}
    variants = {
        "whole": {"method": "ordinary", "set": {"corpus.transform": words}},
        "each": {"method": "ordinary", "set": each},
        "masked": {"method": "ordinary", "set": {"corpus.transform": {"kind": "mask"}}},
        "free": {"method": "ordinary"},
    }
    found = load(corpora, tmp_path, grid={key: [2, 20]}, variants=variants)
    assert [row.name for row in found.rows] == ["whole", "each (epsilon = 2)", "each (epsilon = 20)", "masked", "free"]
    (note,) = found.notes
    assert note.startswith(
        "variants.whole sets all of corpus.transform, and so has one row for all values of grid.corpus"
    )
    free = load(corpora, tmp_path, grid={key: [2, 20]}, variants={"free": variants["free"]})
    assert free.notes == ["grid.corpus.transform.epsilon changes no row: no variant uses it"]
    assert load(corpora, tmp_path, grid={NOISE: [1, 2]}).notes == []


def test_a_variant_keeps_what_it_sets_itself_and_seeds_differ_in_their_seed(corpora, tmp_path):
    variants = {"ours": {"method": "uedp", "set": {"training.num_rounds": 9}}, "free": {"method": "uedp"}}
    comparison = load(corpora, tmp_path, grid={"training.num_rounds": [1, 2]}, variants=variants, seeds=2)
    runs = dict(comparison.runs(comparison.base))
    assert {name: (run.training.num_rounds, run.training.seed) for name, run in runs.items()} == {
        "ours": (9, 0),
        "ours-seed1": (9, 1),
        "free-num-rounds-1": (1, 0),
        "free-num-rounds-1-seed1": (1, 1),
        "free-num-rounds-2": (2, 0),
        "free-num-rounds-2-seed1": (2, 1),
    }


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"grid": {NOISE: 2}}, "grid.privacy.noise_multiplier = 2: expected a list"),
        ({"grid": {NOISE: [2, 2]}}, "each once"),
        ({"grid": {NOISE: []}}, "grid.privacy.noise_multiplier"),
        ({"grid": {"privacy.no_such": [1]}}, "unknown key"),
        ({"grid": {"corpus.source.format": ["synthetic"]}}, r"grid\.set\.corpus\.source.*shared with the base"),
        ({"grid": {NOISE: [*range(1, 302)]}}, "compare at most 300"),
        ({"seeds": 0}, "seeds = 0"),
        ({"seeds": "two"}, "seeds = 'two'"),
        ({"seeds": 2, "variants": {"a": {"method": "uedp"}, "a seed1": {"method": "uedp"}}}, "is taken"),
        ({"published": {"csv": "gone.csv", "figure": "1"}}, r"published\.csv = '.*/gone\.csv'"),
        ({"published": {"figure": "1"}}, "published = "),
        ({"colour": 1}, "a comparison file has"),
    ],
)
def test_bad_keys_are_refused_before_any_work(corpora, tmp_path, keys, message):
    with pytest.raises(InputError, match=message):
        load(corpora, tmp_path, **keys)


SMALL = {
    "base": {"training.num_rounds": 7, "corpus.categories": ["org"]},
    "grid": {NOISE: [3]},
    "variants": {"bare": {"method": "clip_only"}, "more": {"method": "entity_dp"}},
    "seeds": 2,
}


def test_a_scale_is_laid_over_the_file_and_settings_over_the_scale(corpora, tmp_path):
    keys = {"grid": {NOISE: [1, 2]}, "scales": {"small": SMALL}}
    whole = load(corpora, tmp_path, **keys)
    assert (whole.grid, whole.seeds, whole.base.training.num_rounds) == ({NOISE: [1, 2]}, 1, 1)
    assert list(whole.variants) == list(VARIANTS)
    small = load(corpora, tmp_path, ["training.num_rounds=5", "scale=small"], **keys)
    assert (small.grid, small.seeds, small.base.training.num_rounds) == ({NOISE: [3]}, 2, 5)
    assert small.base.corpus.categories == ("org",)
    methods = {name: method for name, (method, _) in small.variants.items()}
    assert methods == {"ours": "uedp", "users": "user_dp", "bare": "clip_only", "more": "entity_dp"}


@pytest.mark.parametrize(
    ("scales", "name", "message"),
    [
        (None, "small", "scale = 'small': the file has no scales"),
        ({"tiny": SMALL}, "small", "scale = 'small': expected one of the file's scales: tiny"),
        ({"tiny": SMALL}, "[tiny]", "expected one of the file's scales: tiny"),
        ({"small": {"model": {}}}, "small", "scales.small = .*expected a mapping with some of base, grid"),
        ({"small": {"base": 3}}, "small", "scales.small.base = 3"),
        ({"small": {"base": {"training.no_such": 1}}}, "small", "base.training.no_such = 1: unknown key"),
        ({"small": {"grid": {NOISE: 1}}}, "small", "grid.privacy.noise_multiplier = 1: expected a list"),
    ],
)
def test_a_scale_that_the_file_does_not_have_is_refused(corpora, tmp_path, scales, name, message):
    with pytest.raises(InputError, match=message):
        load(corpora, tmp_path, [f"scale={name}"], **({"scales": scales} if scales else {}))


def quantile_of_t(share, freedom):
    """By integrating the density."""

    def density(x):
        scale = math.gamma((freedom + 1) / 2) / (math.sqrt(freedom * math.pi) * math.gamma(freedom / 2))
        return scale * (1 + x * x / freedom) ** (-(freedom + 1) / 2)

    return optimize.brentq(lambda x: 0.5 + integrate.quad(density, 0, x)[0] - share, 0, 50)


@pytest.mark.parametrize("scores", [[0.2, 0.3, 0.25], [0.5, 0.1, 0.4, 0.3, 0.35]])
def test_intervals_are_those_of_students_t_of_logarithms_where_ratios_count(scores):
    half = quantile_of_t(0.975, len(scores) - 1) / math.sqrt(len(scores) * (len(scores) - 1))

    def ends(values):
        mean = sum(values) / len(values)
        return [mean + sign * half * math.sqrt(sum((value - mean) ** 2 for value in values)) for sign in (-1, 1)]

    kind, *found = interval(scores, ERROR_RATE)
    assert (kind, found) == ("t", pytest.approx(ends(scores), rel=1e-6))
    kind, *found = interval([100 * score for score in scores], PERPLEXITY)
    logs = ends([math.log(100 * score) for score in scores])
    assert (kind, found) == ("t", pytest.approx([math.exp(end) for end in logs], rel=1e-6))
    assert interval(scores[:2], PERPLEXITY) == ("range", min(scores[:2]), max(scores[:2]))


@pytest.fixture(scope="module")
def done(corpora, tmp_path_factory):
    folder = tmp_path_factory.mktemp("compared")
    (folder / "published.csv").write_text(HEAD + "2a,conll,uedp <person>,0.185,35.09,user-entity,Fig. 2a\n")
    published = {"csv": "published.csv", "figure": "2a"}  # beside the comparison file, wherever the command is given
    variants = {**VARIANTS, "ours": {"method": "uedp", "as_published": {"sensitive_fraction": 0.5}}}
    comparison = load(corpora, folder, grid={NOISE: [2, 8]}, seeds=2, published=published, variants=variants)
    return comparison, folder / "out", compare(comparison, folder / "out", workers=0)


def test_a_row_is_the_mean_of_its_seeds_and_each_seed_is_a_run_of_its_own(done):
    _, out, table = done
    rows = {row["name"]: row for row in table["rows"]}
    assert [*rows][2:] == [
        *(f"{name} (noise_multiplier = {noise})" for name in ("ours", "users") for noise in (2, 8)),
        "bare",
    ]
    row = rows["ours (noise_multiplier = 2)"]
    runs = [json.loads((out / f"ours-noise-multiplier-2{end}" / "result.json").read_text()) for end in ("", "-seed1")]
    assert row["scores"] == [run["perplexity"] for run in runs]
    assert row["scores"][0] != row["scores"][1]
    assert row["perplexity"] == pytest.approx(math.sqrt(row["scores"][0] * row["scores"][1]))
    assert row["interval"] == {"kind": "range", "low": min(row["scores"]), "high": max(row["scores"])}
    assert (row["settings"], row["method"]) == ({NOISE: 2}, "uedp")
    assert (
        row["guarantee"]["epsilon"]
        == row["epsilon"]["user-entity"]
        > rows["ours (noise_multiplier = 8)"]["epsilon"]["user"]
    )
    assert [rows[name]["guarantee"]["unit"] for name in [*rows][2:]] == ["user-entity"] * 2 + ["user"] * 2 + ["none"]


def test_the_total_composes_every_run_with_the_guarantee_and_names_the_others(done):
    _, out, table = done
    ours, users = table["totals"]
    assert (ours["unit"], users["unit"]) == ("user-entity", "user")
    assert ours["without"] == ["users", "bare"]
    assert users["without"] == ["bare"]
    for total, prefixes, runs in ((ours, ("ours",), 4), (users, ("ours", "users"), 8)):
        folders = [path.parent for path in out.glob("*/ledger.jsonl") if path.parent.name.startswith(prefixes)]
        assert len(folders) == runs
        events = [event for folder in folders for event in read_ledger(folder / "ledger.jsonl")]
        assert total["epsilon"] == pytest.approx(epsilon_of_events(events, delta=1e-4, unit=total["unit"]))
    alone = [row["guarantee"]["epsilon"] for row in table["rows"] if row["guarantee"]["unit"] == "user-entity"]
    assert max(alone) < ours["epsilon"] < 2 * sum(alone), "dearer than any, and no dearer than all one by one"
    assert "Not in it: users; bare." in about_total(ours)


def test_the_csv_is_the_table(done):
    _, out, table = done
    with (out / "table.csv").open() as file:
        lines = list(csv.DictReader(file))
    assert [line["name"] for line in lines] == [row["name"] for row in table["rows"]]
    assert [float(line["perplexity"]) for line in lines] == [row["perplexity"] for row in table["rows"]]
    assert [line[NOISE] for line in lines] == ["", "", "2", "8", "2", "8", ""]
    assert lines[-1]["epsilon"] == "", "no guarantee is no number"
    printed = [line["epsilon as published, not a guarantee"] for line in lines]
    ours = table["rows"][2:4]
    assert printed == ["", "", *(str(row["as_published"]["epsilon"]) for row in ours), "", "", ""]
    assert [line["unit as published"] for line in lines] == ["", "", "user-entity", "user-entity", "", "", ""]
    assert [row["as_published"] for row in table["rows"] if row["variant"] != "ours"] == [None] * 5
    assert all(stat.S_IMODE((out / f"table.{end}").stat().st_mode) == 0o600 for end in ("csv", "json"))


def test_there_is_no_total_once_rows_changed_with_results_known(done, corpora, tmp_path, monkeypatch):
    """It is that of runs fixed beforehand."""
    comparison, out, table = done
    kept = {path: path.read_bytes() for path in out.iterdir() if path.is_file()}
    monkeypatch.setattr(worker, "run_rounds", lambda *_, **__: pytest.fail("rounds run again"))
    again = compare(comparison, out, workers=0, resume=True)
    assert (again["rows"][-2]["scores"], again["totals"]) == (table["rows"][-2]["scores"], table["totals"])
    fewer = load(corpora, tmp_path, grid={NOISE: [2]}, seeds=2)
    for changed in (fewer, comparison):  # it stays changed
        found = compare(changed, out, workers=0, resume=True)
        assert [total["epsilon"] for total in found["totals"]] == [None, None]
        assert "rows were changed after others were trained" in about_total(found["totals"][0])
    restore(out, kept)
    monkeypatch.undo()
    more = {"one more": {"method": "noiseless"}}
    variants = {name: {"method": method} for name, (method, _) in comparison.variants.items()} | more
    found = compare(
        load(corpora, tmp_path, grid={NOISE: [2, 8]}, seeds=2, variants=variants), out, workers=0, resume=True
    )
    assert [total["epsilon"] for total in found["totals"]] == [None, None], "its results may have asked for one more"
    restore(out, kept)


def restore(out, kept):
    """For other tests."""
    for path in set(out.glob("one-more*")):
        shutil.rmtree(path)
    for path, content in kept.items():
        path.write_bytes(content)


def test_a_row_of_which_one_seed_has_no_guarantee_has_none(done):
    comparison, out, _ = done
    (row,) = [each for each in comparison.rows if each.name == "users (noise_multiplier = 2)"]
    run = json.loads((out / "users-noise-multiplier-2" / "result.json").read_text()) | {"run_dir": "", "rounds": 3}
    bare = json.loads((out / "bare" / "result.json").read_text()) | {"run_dir": "", "rounds": 2}
    for results in ([run, bare], [bare, run]):
        found = row_of(row, comparison.base, results)
        assert (found["guarantee"]["unit"], found["private"], found["rounds"]) == ("none", False, 2)
    assert row_of(row, comparison.base, [run, run])["guarantee"]["unit"] == "user"


def guarantee(unit, epsilon, **other):
    return {"unit": unit, "epsilon": epsilon, "sound": True, **other}


def row(name, *guarantees, variant=""):
    found = {"name": name, "variant": variant or name, "guarantees": list(guarantees)}
    return found | {"guarantee": own(guarantees, guarantees[0]["unit"])}


def test_no_total_is_made_up_for_what_nothing_here_adds_up(done):
    comparison, out, _ = done
    rows = [
        row("a", guarantee("word", 3.0)),
        row("b", guarantee("user", 2.0, sound=False)),
        row("c", guarantee("none", None)),
    ]
    (word,) = totals(rows, {name: [out / "ours-noise-multiplier-2"] for name in "abc"}, comparison.base)
    assert (word["epsilon"], word["rows"], word["without"]) == (None, ["a"], ["b", "c"])
    assert "nothing here adds that up" in about_total(word)
    assert word["unit"] == "word", "what nobody has proved is in no total, and has none"


def test_a_total_says_what_it_assumes(done):
    comparison, out, _ = done
    rows = [row("a", guarantee("user", 2.0)), row("b", guarantee("user", 2.0, sound=False, assumed=["task.kind: own"]))]
    (total,) = totals(rows, {name: [out / "ours-noise-multiplier-2"] for name in "ab"}, comparison.base)
    assert (total["rows"], total["assumed"]) == (["a", "b"], ["task.kind: own"])
    assert total["epsilon"] > 0.0
    assert about_total(total).endswith("Assumed, not proved, of task.kind: own: see privacy.md.")


def test_entities_of_a_total_are_those_that_all_rows_protect(done, tmp_path):
    comparison, out, _ = done
    folders = {}
    for name, categories in {"all": [], "two": ["person", "org"], "one": ["org"], "other": ["loc"]}.items():
        folder = folders[name] = tmp_path / name
        folder.mkdir()
        tree = yaml.safe_load((out / "ours-noise-multiplier-2" / "config.yaml").read_text())
        tree["corpus"]["categories"] = categories
        (folder / "config.yaml").write_text(yaml.safe_dump(tree))
        (folder / "ledger.jsonl").write_bytes((out / "ours-noise-multiplier-2" / "ledger.jsonl").read_bytes())

    def total(*names):
        rows = [row(name, guarantee("user-entity", 2.0)) for name in names]
        return totals(rows, {name: [folders[name]] for name in names}, comparison.base)[0]

    assert total("all")["categories"] is None
    assert total("all", "two")["categories"] == ["org", "person"]
    assert total("all", "two", "one")["categories"] == ["org"]
    assert total("one", "other")["epsilon"] is None
    assert "no category is protected in all of these rows" in about_total(total("one", "other"))


def test_rows_of_a_variant_have_one_name_if_all_are_meant():
    rows = [
        row("a (x = 1)", guarantee("user", 1.0), variant="a"),
        row("a (x = 2)", guarantee("user", 1.0), variant="a"),
    ]
    assert (shortened(rows, rows), shortened(rows[:1], rows)) == (["a"], ["a (x = 1)"])


@pytest.mark.slow
@pytest.mark.usefixtures("local_ray")
def test_files_beside_the_comparison_are_found_by_runs_side_by_side(corpora, tmp_path, monkeypatch):
    """Their processes work in a folder of Ray's: all rows were trained and charged, and none could be read again."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "public.txt").write_text("the nurse left the park . a doctor came back .\n" * 40)
    (tmp_path / "vectors.txt").write_text("".join(f"{word} {n}.0 1.0\n" for n, word in enumerate(("the", "a", "of"))))
    of_words, of_text = ([{"format": "text", "path": "public.txt"}] for _ in range(2))
    base = run_tree(corpora, pretrain={"text": of_text, "num_steps": 1}, training=ROUNDS)
    base["vocabulary"] = {"public_text": of_words, "max_size": 250}
    transform = {"kind": "replace_words", "mechanism": "random", "vectors": "vectors.txt"}
    variants = {
        "bare": {"method": "noiseless", "set": {f"corpus.transform.{key}": transform[key] for key in transform}}
    }
    comparison = Comparison.load(written(tmp_path, {"base": base, "variants": variants}), [])
    first = compare(comparison, tmp_path / "out", workers=1)
    assert [row["rounds"] for row in first["rows"]] == [0, 0, 1]
    assert stat.S_IMODE((tmp_path / "out" / "tensorboard").stat().st_mode) == 0o700, (
        "the scores of a row without privacy"
    )
    assert compare(comparison, tmp_path / "out", workers=0, resume=True)["rows"] == first["rows"]


@pytest.mark.slow
@pytest.mark.usefixtures("local_ray")
def test_side_by_side_all_others_end_before_one_that_failed_is_told(corpora, tmp_path):
    diverging = {"method": "noiseless", "set": {"training.server_learning_rate": 1e30}}
    comparison, told = load(corpora, tmp_path, variants={"diverging": diverging, "ours": VARIANTS["ours"]}), []
    with pytest.raises(
        InputError, match=r"diverging = 'failed': training\.server_learning_rate = .*: training diverged"
    ):
        compare(comparison, tmp_path / "out", workers=1, reporter=Told(say=told.append))
    assert sum(line.startswith("training: 2 runs, ") for line in told) == 1
    assert any(line.startswith("2 of 2 runs: ") for line in told)
    ended = {path.parent.name for path in (tmp_path / "out").glob("*/result.json")}
    assert ended == {"ours"}
    with pytest.raises(InputError, match=r"diverging = 'failed': training\.server_learning_rate"):
        compare(comparison, tmp_path / "out", workers=1, resume=True)  # goes on with it, and finds no run in its way
    spent = json.loads((tmp_path / "out" / "ours" / "result.json").read_text())["epsilon"]["user-entity"]
    events = read_ledger(tmp_path / "out" / "ours" / "ledger.jsonl")
    assert spent == pytest.approx(epsilon_of_events(events, delta=1e-4))

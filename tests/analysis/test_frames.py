from __future__ import annotations

import dataclasses
import json
import shutil
import subprocess
import sys

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.analysis.sweeps import BASE, SPACE, UNUSUAL, read_result, write_sweep
from uedp_ray.analysis.axes import labels, point_of
from uedp_ray.analysis.cost import prices
from uedp_ray.analysis.frames import check_comparable, join, load_sweep, rank
from uedp_ray.analysis.report import report
from uedp_ray.analysis.summary import summary
from uedp_ray.config import RunConfig, from_dict
from uedp_ray.errors import InputError
from uedp_ray.plan import epsilons
from uedp_ray.search.sections import DEFAULT_TRIALS
from uedp_ray.search.space import Space
from uedp_ray.search.sweep_config import dump_sweep_config, load_sweep_config


def test_the_frame_has_the_documented_dtypes_and_the_files_values(small):
    sweep = load_sweep(small)
    dtypes = sweep.trials.dtypes.astype(str)
    assert set(dtypes[["trial", "state", "reason", "method", "unit", "model.trainable"]]) == {"string"}
    assert set(dtypes[["seeds", "rounds", "charged", "training.num_rounds", "model.lora_rank"]]) == {"Int64"}
    assert set(dtypes[["feasible", "tied_with_best", "pareto"]]) == {"boolean"}
    assert set(dtypes[["perplexity", "epsilon", "epsilon_entity", "privacy.user_sampling_prob"]]) == {"float64"}
    assert dtypes["number"] == "int64"
    for written, (_, read) in zip(
        pq.read_table(small / "trials.parquet").to_pylist(), sweep.trials.iterrows(), strict=True
    ):
        for name, value in written.items():
            if name == "run_dirs":
                assert list(read[name]) == value
            else:
                assert pd.isna(read[name]) if value is None else read[name] == value, name


def test_what_is_absent_is_null(small):
    trials = load_sweep(small).trials.set_index("trial")
    assert UNUSUAL[5] == trials.loc["0005", "state"] == "refused"
    assert trials.loc["0005", ["epsilon", "perplexity", "rounds"]].isna().all()
    full = trials[trials["model.trainable"] == "full"]
    assert len(full)
    assert full["model.lora_rank"].isna().all()
    assert trials[trials["model.trainable"] == "lora"]["model.lora_rank"].notna().all()


def test_results_are_those_of_the_sweep(seeded):
    sweep, result = load_sweep(seeded), read_result(seeded)
    assert sweep.finished
    assert sweep.best == result["best"]
    assert sweep.selection == result["selection"]
    assert sweep.counts == result["counts"]
    assert list(sweep.pareto["trial"]) == [
        row["trial"] for row in sorted(result["pareto"], key=lambda row: row["epsilon"])
    ]
    assert sweep.references.to_dict("records") == [{"name": "public-only", "perplexity": 133.0, "epsilon": 0.0}]
    assert (sweep.unit, sweep.delta, sweep.target_epsilon) == ("user-entity", 1e-5, 8.0)
    assert list(sweep.space) == list(SPACE)


def test_a_noiseless_reference_has_no_epsilon(small):
    references = load_sweep(small).references.set_index("name")
    assert np.isnan(references.loc["noiseless", "epsilon"])


def test_configs_ledgers_and_rounds_of_a_trial(seeded):
    sweep = load_sweep(seeded)
    best = sweep.best["trial"]
    row = sweep.trials.set_index("trial").loc[best]
    configs = [sweep.config(best, seed) for seed in range(2)]
    assert [config.training.seed for config in configs] == [0, 1]
    assert configs[0].privacy.user_sampling_prob == row["privacy.user_sampling_prob"]
    events = sweep.ledger(best, 1)
    assert sum(event["kind"] == "round" for event in events) == row["rounds"]
    assert epsilons(_plan_of(configs[0]), events, ["entity"])["entity"] == row["epsilon_entity"]
    rounds = sweep.rounds(best)
    assert set(rounds["seed"]) == {0, 1}
    assert {"round", "perplexity", "noise_std"} <= set(rounds)
    assert rounds["round"].max() == row["rounds"]


def _plan_of(config):
    from uedp_ray.plan import Plan

    return Plan.of(config)


def test_trials_without_runs_are_named(small):
    sweep = load_sweep(small)
    with pytest.raises(InputError, match="trial = '0005': was refused"):
        sweep.config("0005")
    with pytest.raises(InputError, match="trial = '9999': is not in small"):
        sweep.ledger("9999")
    assert sweep.rounds("0009").empty  # nothing written yet


def test_an_edited_ledger_is_refused(small, tmp_path):
    copy = shutil.copytree(small, tmp_path / "copy")
    sweep = load_sweep(copy)
    ledger = sweep.run_dirs("0000")[0] / "ledger.jsonl"
    ledger.write_text(ledger.read_text().replace('"attempt":0', '"attempt":1', 1))
    with pytest.raises(InputError, match="does not fit the chain"):
        sweep.ledger("0000")


def test_a_copied_sweep_finds_its_chosen_run(small, tmp_path):
    copy = shutil.copytree(small, tmp_path / "elsewhere")
    sweep = load_sweep(copy)
    assert sweep.best_run == copy / "trials" / sweep.best["trial"]
    assert (sweep.best_run / "privacy.md").exists()


def test_a_copy_is_read_without_the_text_and_the_variables_that_it_was_made_with(tmp_path):
    source = {"format": "jsonl", "path": "$DATA_OF_THIS_MACHINE/notes.jsonl"}
    made = write_sweep(tmp_path / "s", trials=2, fixed={"corpus.source": source})
    dump_sweep_config(load_sweep_config(made / "sweep.yaml"), made / "sweep.yaml")
    sweep = load_sweep(made.rename(tmp_path / "elsewhere"))
    assert sweep.sweep_config.base.corpus.source.path == source["path"]
    assert list(sweep.space) == list(SPACE)


def test_a_sweep_that_is_not_finished(tmp_path):
    sweep = load_sweep(write_sweep(tmp_path / "s", finished=False))
    done = sweep.trials[sweep.trials["state"] == "done"]
    assert not sweep.finished
    assert sweep.best["perplexity"] == done["perplexity"].min()
    assert sweep.best["params"]["training.num_rounds"] in (10, 20, 30)
    assert sweep.best_run == sweep.run_dirs(sweep.best["trial"])[0]
    assert sweep.best["tied"] is None
    assert sweep.counts == {"asked": 12, "done": 8, "stopped": 1, "failed": 1, "refused": 1, "running": 1}
    assert sweep.selection["rule"] == "composition"
    assert sweep.selection["epsilon"] is None
    assert "nothing yet" in sweep.selection["releasable"]


def _gone_on(folder, how):
    """The finished sweep as it is while, or after, a start with more trials ran that did not end."""
    table = pq.read_table(folder / "trials.parquet")
    rows = table.to_pylist()
    if how == "began":  # a trial, and the table does not tell of it
        shutil.copytree(folder / "trials" / "0000", folder / "trials" / "0012")
        return
    if how == "last":  # and its run directory is not in the copy
        rows.append(rows[-1] | {"trial": "0012", "number": 12, "run_dirs": ["trials/0012"]})
    else:
        rows[-1] |= {"state": how}
    pq.write_table(pa.Table.from_pylist(rows, schema=table.schema), folder / "trials.parquet")
    if how == "running":  # in both: fewer trials were asked for than had begun
        result = read_result(folder)
        result["trials"][-1]["state"] = "running"
        (folder / "result.json").write_text(json.dumps(result))


@pytest.mark.parametrize("how", ["began", "last", "stopped", "running"])
def test_a_result_that_is_not_of_all_trials_makes_no_finished_sweep(small, tmp_path, how):
    copy = shutil.copytree(small, tmp_path / "copy")
    assert load_sweep(copy).finished
    _gone_on(copy, how)
    sweep = load_sweep(copy)
    assert not sweep.finished
    assert (sweep.selection["epsilon"], sweep.best["epsilon_with_choice"]) == (None, None)
    assert sweep.references.empty
    assert sum(sweep.counts.values()) == 2 * len(sweep.trials)
    assert "is computed when the sweep ends" in dict(summary(sweep))["ε in total, the choice included"]
    assert not any(price.what.startswith("in total") for price in prices(sweep))
    with pytest.raises(InputError, match="is not finished, and its price is not settled"):
        report([copy], publish=True)


def test_a_result_of_an_earlier_version_says_in_words_whether_results_settled_its_total(small, tmp_path):
    copy = shutil.copytree(small, tmp_path / "copy")
    result = read_result(copy)
    del result["selection"]["settled_by_results"]
    for accountant in ("Renyi odometer over all ledgers", "composition of all planned runs and their ledgers"):
        result["selection"]["accountant"] = accountant
        (copy / "result.json").write_text(json.dumps(result))
        assert load_sweep(copy).selection["settled_by_results"] is ("odometer" in accountant)


def test_a_result_that_knows_of_more_than_the_table_is_of_all(small, tmp_path):
    """As a copy that was made while the sweep ended may have it."""
    copy = shutil.copytree(small, tmp_path / "copy")
    table = pq.read_table(copy / "trials.parquet")
    pq.write_table(table.slice(0, 11), copy / "trials.parquet")
    assert load_sweep(copy).selection == read_result(copy)["selection"]


def test_no_old_price_is_on_the_page_of_a_sweep_that_went_on(small, tmp_path):
    copy = shutil.copytree(small, tmp_path / "copy")
    old = read_result(copy)
    assert "41.235" in report([copy]).read_text()
    _gone_on(copy, "began")
    text = report([copy]).read_text()
    assert "41.235" not in text
    assert old["selection"]["text"] not in text
    assert "The sweep is not finished." in text


def test_the_best_so_far_is_stated_as_the_best(seeded, tmp_path):
    best = read_result(seeded)["best"]
    copy = shutil.copytree(seeded, tmp_path / "copy")
    (copy / "result.json").unlink()
    assert load_sweep(copy).best == best | {
        "epsilon_with_choice": None,
        "run_dir": best["run_dir"][-len("trials/0000-0") :],
    }


@pytest.mark.parametrize("missing", ["sweep.yaml", "trials.parquet"])
def test_other_folders_are_refused(small, tmp_path, missing):
    copy = shutil.copytree(small, tmp_path / "copy")
    (copy / missing).unlink()
    for folder in (copy, tmp_path / "nowhere"):
        with pytest.raises(InputError, match=f"{folder.name}': is not a sweep directory"):
            load_sweep(folder)


def test_sweeps_join_for_reading_but_only_like_ones_are_ranked(small, seeded, other_delta):
    sweeps = [load_sweep(path) for path in (small, seeded, other_delta)]
    joined = join(sweeps)
    assert list(joined.columns[:2]) == ["sweep", "trial"]
    assert joined["sweep"].value_counts().to_dict() == {"small": 12, "seeded": 12, "other": 3}
    assert set(joined["delta"]) == {1e-5, 1e-6}
    with pytest.raises(InputError, match="delta of other = 1e-06: small has 1e-05"):
        rank(sweeps)
    ranked = rank(sweeps[:2])
    assert ranked["perplexity"].is_monotonic_increasing
    assert set(ranked["state"]) == {"done"}


@pytest.mark.parametrize(
    ("overrides", "field"),
    [
        (["budget.unit=user", "base.privacy.unit=user"], "unit of small"),
        (["base.bounds.mode=declared", "base.bounds.holder_bound=truncate"], "relation of small"),
        (["base.corpus.categories=[person]"], "protected categories of small"),
        (["base.corpus.evaluation.num_users=9"], "evaluation text of small"),
        (["base.vocabulary.max_size=9"], "vocabulary of small"),
        (["base.model.max_length=9"], "max_length of small"),
    ],
)
def test_nothing_is_ranked_across_scales(small, overrides, field):
    sweep = load_sweep(small)
    with pytest.raises(InputError, match=field):
        check_comparable([sweep, _changed(sweep, *overrides)])


def test_trials_on_public_text_are_not_ranked_with_others(small):
    """The best of one sweep had perplexity 70 on the search's text, of the other 94 on the private text's."""
    sweep = load_sweep(small)
    public = {"corpus.source": {"format": "synthetic", "num_users": 9, "part": "public"}}
    public["corpus.evaluation"] = public["corpus.source"] | {"seed": 2}
    search = dataclasses.replace(sweep.sweep_config.search, selection="public", public=public)
    config = dataclasses.replace(sweep.sweep_config, search=search)
    other = dataclasses.replace(sweep, sweep_config=config)
    check_comparable([sweep, other])  # what they hand on is
    with pytest.raises(InputError, match=r"trials of small.*are of other text than those of small"):
        rank([sweep, other])
    assert len(rank([other, other])) == 2 * len(rank([other]))


def _changed(sweep, *overrides):
    return dataclasses.replace(sweep, sweep_config=load_sweep_config(sweep.path / "sweep.yaml", overrides))


def test_a_trial_as_a_point_of_the_space():
    space = Space.parse(
        {
            "training.server_learning_rate": {"choice": [0.01, "1e-3"]},  # mixed, and so a column of text
            "privacy.sentence_clip_norm": {"choice": [None, 0.4]},
            "bounds.max_sentences_per_user": {"choice": [None, 5], "when": {"privacy.sentence_clip_norm": None}},
            "training.num_rounds": {"integer": [10, 35], "step": 10},
        },
        from_dict(RunConfig, BASE),
    )
    rows = pd.DataFrame([["1e-3", pd.NA, pd.NA, 20], ["0.01", 0.4, pd.NA, pd.NA]], columns=list(space))
    assert [point_of(space, row) for _, row in rows.iterrows()] == [
        dict(zip(space, ["1e-3", None, None, 20], strict=True)),
        {"training.server_learning_rate": 0.01, "privacy.sentence_clip_norm": 0.4},
    ]


def test_every_ledger_is_at_its_fixed_position(seeded):
    sweep = load_sweep(seeded)
    files = sweep.ledger_files()
    assert len(files) == 12 * 2
    refused = list(sweep.trials["state"]).index("refused")
    assert [number for number, file in enumerate(files) if file is None] == [2 * refused, 2 * refused + 1]
    assert files[2 * 4 + 1] == sweep.run_dirs("0004")[1] / "ledger.jsonl"


def test_short_names_are_whole_where_they_would_be_the_same():
    keys = ["a.rate", "a.steps", "b.rate"]
    assert labels(keys) == {"a.rate": "a.rate", "a.steps": "steps", "b.rate": "b.rate"}


def test_the_planned_number_of_trials_is_that_of_the_sweep(small):
    sweep = load_sweep(small)
    assert dict(summary(sweep))["Trials"].startswith("12 asked for")
    assert dict(summary(_changed(sweep, "search.trials=null")))["Trials"].startswith(f"{DEFAULT_TRIALS} asked for")


def test_importing_the_package_loads_no_pandas_and_reading_loads_no_training():
    code = (
        "import sys, uedp_ray; assert 'pandas' not in sys.modules; import uedp_ray.analysis.report; "
        "heavy = 'ray', 'torch', 'transformers', 'matplotlib.pyplot', 'uedp_ray.training'; "
        "print(*(name for name in heavy if name in sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "\n"

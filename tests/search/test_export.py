"""What of a sweep is handed on costs the total, by every rule, whichever folder it is asked of."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from types import SimpleNamespace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.analysis.page import Page
from tests.search.sweeps import finalize_here, search_here, sweep_config, sweep_tree
from tests.told import Told
from tests.training.test_export import FILES, files, traces
from tests.training.test_privacy_page import table
from uedp_ray import export
from uedp_ray.analysis.cost import prices
from uedp_ray.analysis.frames import load_sweep
from uedp_ray.analysis.headline import headline
from uedp_ray.analysis.report import report
from uedp_ray.analysis.summary import summary
from uedp_ray.answers import export_epsilon, ledger_epsilon
from uedp_ray.config import load_config
from uedp_ray.console import print_sweep
from uedp_ray.errors import InputError
from uedp_ray.privacy.events import epsilon_of_events
from uedp_ray.privacy.ledger import read_ledger
from uedp_ray.privacy.odometer import SETTLED_BY_RESULTS
from uedp_ray.privacy.selection import PRICING_POINTS, UNCHECKED
from uedp_ray.privacy.statement import show_epsilon
from uedp_ray.search.export import best_run
from uedp_ray.search.layout import SweepDir
from uedp_ray.search.selection_cost import announced
from uedp_ray.training import rundir
from uedp_ray.training.predict import predict
from uedp_ray.training.rundir import RunDir

SPACE = {
    "privacy.user_sampling_prob": {"uniform": [0.2, 0.6]},
    "training.server_learning_rate": {"log_uniform": [0.001, 0.1]},
}
PUBLIC = {"corpus.source": {"format": "synthetic", "num_users": 20, "part": "public"}}
RULES = {
    "composition": {"trials": 2},
    "planned": {"searcher": "random", "trials": 2, "selection": "composition"},
    "repeat_and_select": {"searcher": "random", "trials": 2, "pool_size": 2},
    "public": {"trials": 1, "selection": "public", "public": PUBLIC},
}


@pytest.fixture(scope="module", params=RULES)
def done(request, corpora, tmp_path_factory):
    """A finished sweep by each rule: its folder, and the answer."""
    folder = tmp_path_factory.mktemp("qxfolder")
    config = sweep_config(corpora, folder, space=SPACE, search=RULES[request.param])
    rule = "composition" if request.param == "planned" else request.param
    return SimpleNamespace(rule=rule, out=folder / "out", answer=search_here(config, folder / "out"))


@pytest.fixture
def handed_on(done, tmp_path):
    return tmp_path / "handed-on", export(done.out, tmp_path / "handed-on")


def first_row(folder: Path) -> tuple[str, float]:
    """What the first row of the statement is about, and its epsilon."""
    text = (folder / "privacy.md").read_text()
    row = next(line for line in text.splitlines() if line.startswith("| **"))
    assert text.index(row) < text.index("this run alone")
    what, _, epsilon, *_ = (cell.strip() for cell in row.strip("|").split("|"))
    return what, float(epsilon)


def test_the_total_comes_first_and_follows_from_the_files(done, handed_on):
    out, told = handed_on
    best = done.answer["best"]
    assert told["rule"] == done.rule
    assert told["epsilon"] == pytest.approx(best["epsilon_with_choice"])
    assert told["epsilon_of_run"] == pytest.approx(best["epsilon"]["user-entity"])
    assert (told["epsilon"] > told["epsilon_of_run"]) == (done.rule != "public")
    assert best["rounds"] == best["planned_rounds"] == 5, "what the command's exit code follows from"
    assert {"bits_per_byte", "unk_share"} <= best.keys()
    what, shown = first_row(out)
    assert what == f"**TOTAL**, training and choosing (rule {done.rule})"
    assert 0 <= shown - told["epsilon"] < 0.001
    again = export_epsilon(out)
    alone = f"{done.rule}; of the exported run alone, whose sentence rule and rounds are given here: epsilon = "
    assert (
        f"Of training and choosing together, by rule {alone}{show_epsilon(again['epsilon_of_run'])}." in again["text"]
    )
    assert (again["epsilon"], again["epsilon_of_run"]) == (pytest.approx(told["epsilon"]), told["epsilon_of_run"])
    for text in (again["text"], (out / "privacy.md").read_text()):
        assert UNCHECKED.get(done.rule, "") in text
        assert ("Only the owner can check" in text) == (done.rule != "public")
    assert predict(out, ["the"])


def test_the_best_run_is_told_with_the_total_that_an_export_states(done, handed_on):
    _, told = handed_on
    found = best_run(done.out)
    assert {key: found[key] for key in ("epsilon", "rule", "delta", "unit")} == {
        key: told[key] for key in ("epsilon", "rule", "delta", "unit")
    }
    trial = done.out / "trials" / done.answer["best"]["trial"]
    assert Path(found["run_dir"]) == (trial if done.rule == "composition" else done.out / "winner")
    assert predict(Path(found["run_dir"]), ["the"]) == predict(handed_on[0], ["the"])


def test_pricing_that_takes_long_is_told(done, tmp_path):
    said = []
    export(done.out, tmp_path / "out", reporter=Told(say=said.append))
    export_epsilon(tmp_path / "out", reporter=Told(say=said.append))
    assert said == [PRICING_POINTS] * (2 if done.rule == "repeat_and_select" else 0)


def test_no_file_of_it_names_the_house_the_trial_or_how_many_there_were(done, handed_on):
    out, _ = handed_on
    composed = done.rule == "composition"
    ledgers = {f"ledgers/{row['trial']}.jsonl" for row in done.answer["trials"]} if composed else set()
    assert set(files(out)) == FILES | ledgers
    assert traces(out, "qxfolder", "tokens_per_second", "seconds", "run_dir") == []
    if not composed:
        assert traces(out, f"'{done.answer['best']['trial']}'", f"/{done.answer['best']['trial']}") == []


def test_what_is_asked_of_a_folder_inside_costs_the_same_or_is_refused(done, tmp_path):
    runs = sorted((done.out / "trials").iterdir())
    if done.rule == "composition":
        for number, run in enumerate(runs):
            told = export(run, tmp_path / f"{number}")
            assert told["epsilon"] == pytest.approx(done.answer["selection"]["epsilon"])
            assert read_ledger(tmp_path / f"{number}" / "ledger.jsonl") == read_ledger(run / "ledger.jsonl")
        return
    for run in runs:
        with pytest.raises(InputError, match="pays for the winner alone: export the sweep"):
            export(run, tmp_path / "x")
    (tmp_path / "link").symlink_to(done.out / "winner")
    told = export(tmp_path / "link", tmp_path / "y")
    assert told["epsilon"] == pytest.approx(done.answer["best"]["epsilon_with_choice"])


def test_of_an_export_the_total_alone_is_a_guarantee_where_a_choice_was_charged(done, handed_on, tmp_path):
    chosen = done.rule != "public"
    rows = table((handed_on[0] / "privacy.md").read_text())
    cells = [row[3] for row in rows.values()][1:]
    settled = export_epsilon(handed_on[0])["settled_by_results"]
    assert cells[0] == ("as explained below" if settled else "yes")
    assert cells[1:] == ["of one run, not of its choice" if chosen else "yes"] * 3
    assert ledger_epsilon(handed_on[0] / "ledger.jsonl", delta=1e-4)["guarantee"] is not chosen
    assert export_epsilon(handed_on[0])["guarantee"] is not settled
    out = shutil.copytree(handed_on[0], tmp_path / "copy")
    terms = json.loads((out / "selection.json").read_text())
    (out / "selection.json").write_text(json.dumps(terms | {"rule": "none"}))
    assert export_epsilon(out)["guarantee"] is not chosen, "the ledger says that there was a choice"


def test_a_total_that_results_settled_says_so_wherever_it_stands(done, handed_on, capsys):
    """Of an adaptive search it is an odometer's, and no epsilon of the search whatever its outcome."""
    folder, _ = handed_on
    adaptive = done.rule == "composition" and "odometer" in json.loads((done.out / "selection.json").read_text())
    sweep_ = load_sweep(done.out)
    answer = export_epsilon(folder)
    assert done.answer["selection"]["settled_by_results"] is answer["settled_by_results"] is adaptive
    assert handed_on[1]["settled_by_results"] is adaptive
    told = (folder / "privacy.md").read_text(), done.answer["selection"]["text"], answer["text"], str(summary(sweep_))
    for text in told:
        assert (SETTLED_BY_RESULTS in text) == adaptive
    assert ("| as explained below |" in told[0]) == adaptive
    assert answer["guarantee"] is not adaptive, "whoever reads the field alone reads an (epsilon, delta) of the search"
    assert ("an upper bound" in answer["text"]) is not adaptive
    assert ("results settled this figure" in (folder / "README.md").read_text()) == adaptive
    print_sweep(done.answer)
    shown = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("ε of this model"))
    page = Page(report([done.out])).text
    first, beside = dict(headline(sweep_))["Total ε"], prices(sweep_)[0].what
    price = re.escape(show_epsilon(answer["epsilon"]))
    for text in (shown, first, beside):
        assert ("settled by results" in text) == adaptive
    assert len(re.findall(rf"ε = {price}, settled by results", page)) == 2 * adaptive, (
        "beside the figures, and privacy.md"
    )


def test_a_total_that_promises_little_is_cautioned_wherever_it_stands(done, handed_on, capsys):
    answer = export_epsilon(handed_on[0])
    print_sweep(done.answer)
    for text in (*((handed_on[0] / name).read_text() for name in ("privacy.md", "README.md")), capsys.readouterr().out):
        assert ("a weak guarantee" in text) == (answer["epsilon"] > 10)
    assert len(answer["cautions"]) == (answer["epsilon"] > 10)


def test_lines_about_the_run_do_not_stand_for_the_total(done, handed_on):
    text = (handed_on[0] / "privacy.md").read_text()
    assert text.index("- The total: ") < text.index("- What follows in this list is of this run alone.")
    assert text.index("of this run alone.") < text.index("- Releases charged, by kind: ")


def test_a_ledger_that_lost_its_end_is_refused_by_whoever_recomputes_the_price(done, handed_on, tmp_path):
    """Cut between two lines the chain still holds, and an odometer charges what it sees."""
    out = shutil.copytree(handed_on[0], tmp_path / "copy")
    for ledger in out.rglob("*.jsonl"):
        whole = ledger.read_bytes()
        for kept in (1, -1):
            ledger.write_bytes(b"".join(whole.splitlines(keepends=True)[:kept]))
            with pytest.raises(InputError, match="is not as it was exported: get the whole folder again"):
                export_epsilon(out)
        ledger.write_bytes(whole)
    terms = json.loads((out / "selection.json").read_text())
    del terms["ledgers"]
    (out / "selection.json").write_text(json.dumps(terms))
    with pytest.raises(InputError, match="export it again"):
        export_epsilon(out)


def test_a_ledger_that_is_missing_is_refused_by_whoever_recomputes_the_price(done, handed_on, tmp_path):
    out = shutil.copytree(handed_on[0], tmp_path / "copy")
    for ledger in out.glob("ledgers/*0.jsonl"):
        ledger.unlink()
        with pytest.raises(InputError, match="is missing, and part of the price"):
            export_epsilon(out)
    if done.rule == "composition":
        assert len(list(out.glob("ledgers/*"))) < len(list(handed_on[0].glob("ledgers/*")))


def test_a_trial_says_that_it_is_one_of_several_and_a_copy_of_it_has_no_price(done, tmp_path):
    run = shutil.copytree(next((done.out / "trials").iterdir()), tmp_path / "copy")
    assert "Not the price of a chosen model" in (run / "privacy.md").read_text()
    assert "one run of a sweep" in json.loads((run / "result.json").read_text())["covers"]
    with pytest.raises(InputError, match="is one run of a sweep"):
        export(run, tmp_path / "out")


def test_winner_is_an_export_where_the_rest_is_secret(done, handed_on):
    if done.rule != "repeat_and_select":
        assert (done.out / "winner").exists() == (done.rule == "public")
        return
    assert files(done.out / "winner") == files(handed_on[0])
    assert done.answer["best"]["run_dir"] == str(done.out / "winner")
    assert load_sweep(done.out).best_run == done.out / "winner"


def test_the_result_holds_no_path_and_the_answer_says_where_to_go_on(done):
    text = (done.out / "result.json").read_text()
    assert "qxfolder" not in text
    assert "tokens_per_second" not in text
    assert done.answer["export"] == f"uedp-ray export {done.out} --out DIR"
    assert done.answer["sweep_dir"] == str(done.out)
    assert Path(done.answer["best"]["run_dir"]).is_dir()
    assert done.answer["selection"]["covers"]


def test_what_the_price_says_of_text_is_what_was_declared(done):
    if done.rule == "public":
        text = done.answer["selection"]["text"]
        assert "trained on text that the owner declares public" in text
        assert "scored on text of users whom the owner declares to be outside the protected set" in text


def test_a_sweep_that_goes_on_has_no_total_yet(done, tmp_path):
    copy = shutil.copytree(done.out, tmp_path / "copy")
    table = pq.read_table(copy / "trials.parquet")
    newer = [*table.to_pylist(), table.to_pylist()[-1] | {"trial": "0099"}]  # and no ledger of it is there
    pq.write_table(pa.Table.from_pylist(newer, schema=table.schema), copy / "trials.parquet")
    with pytest.raises(InputError, match="continued after its result"):
        export(copy, tmp_path / "x")
    (copy / "trials.parquet").write_bytes(b"PAR1")
    with pytest.raises(InputError, match=r"trials.parquet = .* is not a readable Parquet file: recreate it"):
        export(copy, tmp_path / "x")
    pq.write_table(table, copy / "trials.parquet")
    assert load_sweep(copy).finished
    shutil.copytree(next((copy / "trials").iterdir()), copy / "trials" / "0099")
    assert not load_sweep(copy).finished
    with pytest.raises(InputError, match="continued after its result"):
        export(copy, tmp_path / "x")
    (copy / "result.json").unlink()
    with pytest.raises(InputError, match="is not finished"):
        export(copy, tmp_path / "x")


def test_a_copy_that_somebody_put_beside_a_trial_is_none_of_the_sweep(done, tmp_path):
    copy = shutil.copytree(done.out, tmp_path / "copy")
    shutil.copytree(next((copy / "trials").iterdir()), copy / "trials" / "0001.bak")
    assert "0001.bak" not in SweepDir(copy).started_runs()
    total = done.answer["best"]["epsilon_with_choice"]
    assert export(copy, tmp_path / "x")["epsilon"] == pytest.approx(total)


def test_a_smaller_price_in_the_result_changes_nothing(done, tmp_path):
    copy = shutil.copytree(done.out, tmp_path / "copy")
    result = json.loads((copy / "result.json").read_text())
    result["selection"]["epsilon"] = result["best"]["epsilon_with_choice"] = 0.001
    (copy / "result.json").write_text(json.dumps(result))
    assert export(copy, tmp_path / "x")["epsilon"] == pytest.approx(done.answer["best"]["epsilon_with_choice"])


def test_what_a_failed_trial_could_not_remove_goes_when_the_sweep_ends(corpora, tmp_path):
    """Without a descriptor left it could not, and nothing starts it again."""
    config, out = sweep_config(corpora, tmp_path, space=SPACE), tmp_path / "out"
    points = [{"privacy.user_sampling_prob": 0.3, "training.server_learning_rate": rate} for rate in (0.01, 0.02)]
    search_here(config, out, points)
    left = [out / "trials" / "0001" / place / ".it.uedp_ray.new" for place in ("private", "checkpoint")]
    left += [out / "trials" / "0001" / ".vocabulary.uedp_ray.new", out / "trials" / "0001" / ".theirs.uedp_ray.new"]
    for each in left:
        each.mkdir(parents=True)  # a trial that was trained to its end has no checkpoint
    finalize_here(config, out, points, failed={1})
    assert [each.exists() for each in left] == [False, False, False, True]


def test_nothing_is_priced_while_a_worker_of_a_failed_trial_may_charge_on(corpora, tmp_path, monkeypatch):
    """A group that Ray gave up may go on for some seconds."""
    config, out = sweep_config(corpora, tmp_path, space=SPACE), tmp_path / "out"
    points = [{"privacy.user_sampling_prob": 0.3, "training.server_learning_rate": rate} for rate in (0.01, 0.02)]
    search_here(config, out, points)
    (out / "result.json").unlink()
    monkeypatch.setattr(rundir, "DRIVER_WAIT", 0.2)
    with RunDir(out / "trials" / "0001").driving(), pytest.raises(InputError, match="another process is training this"):
        finalize_here(config, out, points, failed={1})
    assert not (out / "result.json").exists()
    finalize_here(config, out, points, failed={1})
    assert (out / "result.json").exists()


def test_a_chosen_null_is_what_the_winner_is_trained_and_charged_with(corpora, tmp_path):
    """And not the base's value, as where a setting does not exist at the point."""
    clip, absent = "privacy.sentence_clip_norm", "training.server_learning_rate"
    truncate = {"max_holders": 3, "holder_bound": "truncate", "entity_bound": "truncate"}
    space = {clip: {"choice": [0.1, None]}, absent: {"choice": [0.5], "when": {clip: 0.1}}}
    base = sweep_tree(corpora)["base"] | {"bounds": truncate}
    config = sweep_config(corpora, tmp_path, base=base, space=space, search=RULES["public"])
    best = search_here(config, tmp_path / "out", [{clip: None}])["best"]
    assert best["params"] == load_sweep(tmp_path / "out").best["params"] == {clip: None}
    winner = tmp_path / "out" / "winner"
    trained = load_config(winner / "config.yaml")
    assert trained.privacy.sentence_clip_norm is None
    assert trained.training.server_learning_rate == config.base.training.server_learning_rate
    events = read_ledger(winner / "ledger.jsonl")
    assert {event["mechanism"]["entity_clip"] for event in events if "round" in event} == {2.0}
    assert best["epsilon_with_choice"] == epsilon_of_events(events, delta=1e-4)
    assert (
        "a sentence's gradient none; so one entity moves one user's update by at most 2."
        in (winner / "privacy.md").read_text()
    )


@pytest.mark.parametrize("rule", ["composition", "repeat_and_select"])
def test_a_total_over_trials_that_protect_different_entities_says_which_it_covers(rule, corpora, tmp_path, capsys):
    space = SPACE | {"corpus.categories": {"choice": [["person"], ["org", "person"]]}}
    config = sweep_config(corpora, tmp_path, space=space, search=RULES[rule])
    settings = {"privacy.user_sampling_prob": 0.3, "training.server_learning_rate": 0.01}
    points = [settings | {"corpus.categories": names} for names in ("person", "org,person")]
    answer = search_here(config, tmp_path / "out", points if rule == "composition" else None)
    common = "entities: person, which every trial protects"
    assert f"user-entity; {common})" in answer["selection"]["text"]
    assert common in announced(config, SweepDir(tmp_path / "out"))
    told = export(tmp_path / "out", tmp_path / "handed-on")
    row = next(line for line in (tmp_path / "handed-on" / "privacy.md").read_text().splitlines() if "**TOTAL**" in line)
    assert common in row
    assert "of it alone" in (tmp_path / "handed-on" / "config.yaml").read_text().splitlines()[0]
    page = (tmp_path / "handed-on" / "README.md").read_text()
    assert page.count(common) == 3  # first line, table, limits
    assert "Entities that only some of the trials protect" in (tmp_path / "handed-on" / "privacy.md").read_text()
    found = export_epsilon(tmp_path / "handed-on")
    assert "Entities: person, which every trial protects." in found["text"]
    assert found["unit"] == told["unit"] == f"user-entity; {common}"
    print_sweep(answer)
    assert common in " ".join(capsys.readouterr().out.split())
    assert common in str(dict(summary(load_sweep(tmp_path / "out"))))
    terms = json.loads((tmp_path / "handed-on" / "selection.json").read_text())
    del terms["categories"]
    (tmp_path / "handed-on" / "selection.json").write_text(json.dumps(terms))
    with pytest.raises(InputError, match="or was changed"):  # without them it would read as of all entities
        export_epsilon(tmp_path / "handed-on")

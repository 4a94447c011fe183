"""Sweeps at a URL: trials, the search and its price survive the loss of any node, and other starts of the same sweep."""

from __future__ import annotations

import json
import shutil

import pytest

from tests.search.processes import charged, check_whole, command, kill, long_sweep, wait_until
from tests.search.sweeps import PRETRAIN, journal_states, sweep_config, sweep_tree, table
from uedp_ray import export
from uedp_ray.analysis.frames import load_sweep
from uedp_ray.errors import InputError
from uedp_ray.search.searcher import StudySearcher
from uedp_ray.search.sweep import sweep
from uedp_ray.search.sweep_config import load_sweep_config
from uedp_ray.storage.mirror import Mirror
from uedp_ray.storage.open import local_copy
from uedp_ray.training.predict import predict

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("local_ray")]


@pytest.fixture(scope="module", autouse=True)
def node(tmp_path_factory):
    """Where nodes keep their copies: the same path on all of them, so that another node is this one after ``rmtree``."""
    folder = tmp_path_factory.mktemp("node")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("UEDP_RAY_WORK", str(folder))
        yield folder


@pytest.fixture(scope="module")
def done(corpora, tmp_path_factory):
    """A finished sweep at a URL: the bucket, the config, the answer, and what the storage knew as trials were handed out."""
    folder = tmp_path_factory.mktemp("done")
    config = sweep_config(
        corpora,
        folder,
        base={**sweep_tree(corpora)["base"], "pretrain": PRETRAIN},
        search={"trials": 2},
        references={"noiseless": {"training.num_rounds": 2}},
    )
    url, handed, suggest = f"file://{folder}/bucket/sweep", [], StudySearcher.suggest

    def looked_at(self, trial_id):
        trial = suggest(self, trial_id)
        if isinstance(trial, dict):
            mirror = Mirror(url, folder / "looks")
            assert mirror.restore(mirror.root / "study.journal")
            handed.append((trial["number"], journal_states(mirror.root)))
        return trial

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(StudySearcher, "suggest", looked_at)
        return folder / "bucket/sweep", config, sweep(config, url), handed


def test_what_is_published_reads_like_a_sweep_directory(done):
    bucket, _, answer, _ = done
    url = f"file://{bucket}"
    assert answer["counts"]["done"] == 2
    assert answer["sweep_dir"] == url
    assert answer["best"]["run_dir"] == f"{url}/trials/{answer['best']['trial']}"
    copy = local_copy(url)
    assert not list(copy.rglob("private"))
    found = load_sweep(copy)
    stored = json.loads((copy / "result.json").read_text())
    assert stored["trials"] == answer["trials"]
    assert url not in json.dumps(stored)
    assert found.best_run == copy / "trials" / answer["best"]["trial"]
    assert [row["trial"] for row in table(copy)] == ["0000", "0001"]
    assert predict(found.best_run, ["the"])
    assert journal_states(copy) == ["COMPLETE"] * 2
    for row in answer["trials"]:
        assert len(found.ledger(row["trial"])) == row["charged"] + 1
        assert found.config(row["trial"]).model.warm_start
    assert [row["name"] for row in answer["references"]] == ["public-only", "noiseless"]
    assert len(list(copy.glob("tensorboard/*/*/events.out*"))) == 2


def test_another_node_resumes_to_the_same_answer_and_other_sweeps_are_refused(
    done, corpora, tmp_path, node, monkeypatch
):
    bucket, config, answer, _ = done
    shutil.rmtree(node)
    assert sweep(config, f"file://{bucket}", resume=True) == answer
    copies = sorted(node.rglob("*.journal"))
    assert copies
    with pytest.raises(InputError, match="already holds a sweep: add --resume"):
        sweep(config, f"file://{bucket}")
    assert sorted(node.rglob("*.journal")) == copies, "trials of a search that is at work may run here"
    other = sweep_config(corpora, tmp_path, budget={"target_epsilon": 3})
    with pytest.raises(InputError, match="from another sweep file"):
        sweep(other, f"file://{bucket}", resume=True)
    with pytest.raises(InputError, match="no sweep to resume"):
        sweep(config, f"file://{bucket}-2", resume=True)
    with pytest.raises(InputError, match="a copy for reading"):
        sweep(config, local_copy(f"file://{bucket}"), resume=True)
    with pytest.raises(InputError, match="name the URL"):
        sweep(config, bucket, resume=True)
    monkeypatch.setenv("UEDP_RAY_WORK", str(tmp_path))
    with pytest.raises(InputError, match="set UEDP_RAY_WORK so that they are there again"):
        sweep(config, f"file://{bucket}", resume=True)


def test_a_trial_that_ended_is_closed_to_whoever_still_runs_it(done, tmp_path):
    bucket, config, answer, _ = done
    late = Mirror(f"file://{bucket}/trials/0000", tmp_path)
    late.acquire()
    assert late.restore(late.root / "ledger.jsonl")
    assert sweep(config, f"file://{bucket}", resume=True)["trials"] == answer["trials"]
    with (late.root / "ledger.jsonl").open("a") as file:
        file.write("{}\n")
    with pytest.raises(InputError, match="another start has taken it over"):
        late.append(late.root / "ledger.jsonl")


def test_a_trial_is_in_the_storage_before_it_begins(done):
    handed = done[3]
    assert [number for number, _ in handed] == [0, 1]
    assert all(len(states) == number + 1 for number, states in handed)


def test_the_winner_of_repeat_and_select_is_fetched_and_published(corpora, tmp_path, node):
    config = sweep_config(corpora, tmp_path, search={"searcher": "random", "trials": 2, "pool_size": 3})
    url = f"file://{tmp_path}/bucket/sweep"
    answer = sweep(config, url)
    assert answer["best"]["run_dir"] == f"{url}/winner"
    bucket = tmp_path / "bucket/sweep"
    assert bucket.stat().st_mode & 0o777 == 0o700, "trials that were not chosen are in it"
    assert predict(local_copy(f"{url}/winner"), ["the"])
    shutil.rmtree(node)
    assert export(url, tmp_path / "out")["epsilon"] == answer["selection"]["epsilon"]
    with pytest.raises(InputError, match="is one run of a sweep"):
        export(f"{url}/trials/{answer['best']['trial']}", tmp_path / "other")
    pool = next((tmp_path / "bucket/sweep/private").glob("000001-*/private/pool.json"))
    assert len(json.loads(pool.read_text())["draws"]) == len(answer["trials"])
    assert not list(local_copy(url).rglob("pool.json"))


def kept(url, tmp_path):
    """A folder with the ledgers of all trials as the storage has them."""
    out = tmp_path / "kept"
    shutil.rmtree(out, ignore_errors=True)
    for run in sorted((tmp_path / "bucket/sweep/trials").glob("*")):
        mirror = Mirror(f"{url}/trials/{run.name}", tmp_path / "looks")
        if mirror.restore(mirror.root / "ledger.jsonl"):
            shutil.copytree(mirror.root, out / "trials" / run.name)
    return out


def test_a_driver_lost_with_its_node_and_one_that_another_took_over_lose_nothing(corpora, tmp_path, node):
    path, url = long_sweep(corpora, tmp_path), f"file://{tmp_path}/bucket/sweep"
    process = command(path, url)

    def parts():
        return len(list((tmp_path / "bucket/sweep/trials").glob("*/private/*/ledger.jsonl/*")))

    wait_until(lambda: parts() > 40)
    kill(process)
    before, found = charged(kept(url, tmp_path)), parts()
    assert sum(before.values()) > 30
    shutil.rmtree(node)

    resumed = command(path, url, "--resume")
    wait_until(lambda: parts() > found and sum(charged(kept(url, tmp_path)).values()) > sum(before.values()))
    Mirror(url, tmp_path / "elsewhere").acquire()
    _, error = resumed.communicate(timeout=300)
    assert resumed.returncode == 2, error
    assert "another start has taken it over" in error
    between = charged(kept(url, tmp_path))

    answer = sweep(load_sweep_config(path), url, resume=True)  # here, where Ray and all modules are loaded
    copy = local_copy(url)
    check_whole(copy, answer)
    assert charged(copy) == charged(kept(url, tmp_path))
    assert all(charged(copy)[name] >= count for name, count in (before | between).items())

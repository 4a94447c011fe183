"""Two real nodes on this machine, one of them killed in mid-run: nothing is lost, and results are as if it had lived."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
import yaml

from tests.cluster.test_files import CLUSTER
from tests.cluster.test_scripts import free_port
from tests.search.processes import wait_until
from tests.search.sweeps import journal_states, sweep_tree, table, write_sweep
from tests.training.runs import TEST_NOISE, TREE, parameters, run_tree
from uedp_ray.config import RunConfig, from_dict
from uedp_ray.privacy.events import epsilon_of_events
from uedp_ray.privacy.ledger import read_ledger
from uedp_ray.training.host import train

pytestmark = pytest.mark.slow

HEAD = 1
WORKER = "ray::RayTrainWorker"
RATES, NUM_ROUNDS = [0.01, 0.03, 0.1], 250


@dataclass
class Nodes:
    """The cluster of ``cluster/local.sh``, of one CPU a node; node 1 is the head, where drivers run."""

    state: Path
    environment: dict[str, str]
    started: list[subprocess.Popen[str]] = field(default_factory=list)

    def local(self, *words: str) -> str:
        done = subprocess.run([CLUSTER / "local.sh", *words], env=self.environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def run(self, *words: str | Path, folder: Path | None = None) -> subprocess.Popen[str]:
        """A command that was started, with the environment that ``local.sh start`` printed."""
        pipe = subprocess.PIPE
        process = subprocess.Popen(words, env=self.environment, cwd=folder, stdout=pipe, stderr=pipe, text=True)
        self.started.append(process)
        return process

    def uedp_ray(self, *words: str | Path) -> subprocess.Popen[str]:
        return self.run(sys.executable, "-m", "uedp_ray", *words, "--json")

    def submit(self, folder: Path, *words: str | Path) -> subprocess.Popen[str]:
        return self.run("ray", "job", "submit", "--working-dir", ".", "--", "uedp-ray", *words, folder=folder)

    def processes(self, node: int, title: str = "") -> list[psutil.Process]:
        """What runs on a node under a title: each node is a session of its own."""
        session, found = int((self.state / f"{node}.pid").read_text()), []
        for process in psutil.process_iter():
            try:
                if os.getsid(process.pid) == session and title in " ".join(process.cmdline()):
                    found.append(process)
            except (psutil.Error, OSError):  # it has just ended
                continue
        return found

    def beside(self) -> int:
        """The node beside the head. If it died a new one joins, as an autoscaler sees to."""
        node = max(int(path.stem) for path in self.state.glob("*.pid"))
        if self.processes(node, "ray start"):
            return node
        node += 1
        log = self.state / f"{node}.log"
        words = ["ray", "start", "--address", self.environment["RAY_ADDRESS"], "--block", "--num-cpus", "1"]
        words += ["--node-ip-address", address(node), "--temp-dir", str(self.state / str(node))]
        words += ["--object-store-memory", "100000000", "--dashboard-agent-listen-port", "0"]
        with log.open("w") as file:
            process = subprocess.Popen(words, env=self.environment, stdout=file, stderr=file, start_new_session=True)
        (self.state / f"{node}.pid").write_text(str(process.pid))
        wait_until(lambda: "Ray runtime started" in log.read_text() or process.poll() is not None)
        assert process.poll() is None, log.read_text()
        return node

    def kill(self, node: int) -> None:
        self.local("kill", str(node))
        psutil.wait_procs(self.processes(node), timeout=10)
        assert not self.processes(node)


def address(node: int) -> str:
    return f"127.0.0.{node + 1}"


@pytest.fixture(scope="module")
def cluster() -> Iterator[Nodes]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    kept["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{kept['PATH']}"
    dashboard = str(free_port())
    settings = {"PORT": str(free_port()), "DASHBOARD_PORT": dashboard, "OBJECT_STORE_BYTES": "100000000"}
    with tempfile.TemporaryDirectory(dir="/tmp", prefix="u") as short:  # socket paths have a limit
        state = Path(short, "s")
        nodes = Nodes(state, {**kept, **settings, "STATE": str(state), "RAY_USAGE_STATS_ENABLED": "0"})
        try:
            nodes.environment |= dict(re.findall(r"(RAY_\w+)=(\S+)", nodes.local("start", "2")))
            nodes.environment["RAY_API_SERVER_ADDRESS"] = f"http://{address(HEAD)}:{dashboard}"
            yield nodes
        finally:
            for process in nodes.started:
                process.kill()
            nodes.local("stop")


def sweep_file(corpora: Path, folder: Path, *, rates: list[float], workers_per_trial: int = 1) -> Path:
    """Points fixed beforehand, and no checkpoint before the end: a trial that is cut off repeats all of its rounds."""
    tree = sweep_tree(
        corpora,
        space={"training.server_learning_rate": {"choice": rates}},
        search={"searcher": "grid", "trials": None},
        resources={"workers_per_trial": workers_per_trial, "max_concurrent": None},
    )
    tree["base"]["training"] |= {"num_rounds": NUM_ROUNDS, "evaluate_every": 1000, "checkpoint_every": 1000}
    folder.mkdir(exist_ok=True)
    return write_sweep(tree, folder)


def charged(run: Path) -> list[tuple[int, int]]:
    """(round, attempt) of all rounds in the ledger, in order; none before there is one."""
    if not (run / "ledger.jsonl").exists():
        return []
    lines = (run / "ledger.jsonl").read_text().splitlines(keepends=True)
    found = [json.loads(line) for line in lines if line.endswith("\n")]
    return [(event["round"], event["attempt"]) for event in found if event["kind"] == "round"]


def placed(out: Path) -> dict[str, list[str]]:
    """The addresses from which each trial reported, in order."""
    reports = {file.parent.name: file.read_text().splitlines() for file in out.glob("tensorboard/*/*/result.json")}
    return {trial: [json.loads(line)["node_ip"] for line in lines] for trial, lines in sorted(reports.items())}


def begun(run: Path) -> bool:
    """Whether a run is well on its way, and not near its end."""
    return 10 < len(charged(run)) < NUM_ROUNDS - 20


def wait_for(process: subprocess.Popen[str], condition: Callable[[], Any]) -> Any:
    """What the condition returns once it holds; fails if the command ends before."""
    found: list[Any] = []
    wait_until(lambda: found.append(condition()) or found[-1] or process.poll() is not None)
    assert found[-1], process.communicate()[1]
    return found[-1]


def ended(process: subprocess.Popen[str]) -> str:
    """What a command printed on standard output; if its model had to repeat rounds, the exit code says so."""
    told, error = process.communicate()
    assert process.returncode == int("used up the budget of the rest" in " ".join((told + error).split())), told + error
    return told


def answer(process: subprocess.Popen[str]) -> dict[str, Any]:
    """The JSON document that a command printed, and nothing beside it."""
    return json.loads(ended(process))


def test_a_submitted_sweep_goes_on_when_a_node_dies_and_charges_what_it_repeats(cluster, corpora, tmp_path):
    doomed, out, folder = cluster.beside(), tmp_path / "out", tmp_path / "submitted"
    sweep_file(corpora, folder, rates=RATES)
    process = cluster.submit(folder, "sweep", "sweep.yaml", "--out", out, "--address", "auto")

    def on_the_doomed_node() -> list[str]:
        return [name for name, places in placed(out).items()
                if places[-1:] == [address(doomed)] and begun(out / "trials" / name)]  # fmt: skip

    (moved,) = wait_for(process, on_the_doomed_node)
    cluster.kill(doomed)
    assert ended(process)
    found = json.loads((out / "result.json").read_text())

    assert [row["trial"] for row in found["trials"]] == ["0000", "0001", "0002"]
    assert journal_states(out) == ["COMPLETE"] * 3
    assert [row["training.server_learning_rate"] for row in found["trials"]] == RATES
    places = placed(out)
    assert list(dict.fromkeys(places.pop(moved))) == [address(doomed), address(HEAD)]
    assert address(HEAD) in {place for reports in places.values() for place in reports}, "both nodes had trials"
    ledgers = []
    for row in found["trials"]:
        rounds = charged(out / "trials" / row["trial"])
        lost = rounds.index((0, 1)) if row["trial"] == moved else 0
        # Lost rounds are charged, charged again as they are repeated, and make the trial end earlier.
        assert rounds == [(t, 0) for t in range(lost)] + [(t, int(t < lost)) for t in range(NUM_ROUNDS - lost)]
        assert (row["charged"], row["rounds"]) == (NUM_ROUNDS, NUM_ROUNDS - lost)
        assert row["epsilon"] <= 8
        ledgers += read_ledger(out / "trials" / row["trial"] / "ledger.jsonl")
    assert found["selection"]["epsilon"] == pytest.approx(epsilon_of_events(ledgers, delta=1e-4))
    assert [(row["trial"], row["state"]) for row in table(out)] == [(f"{n:04}", "done") for n in range(3)]


def test_two_workers_on_two_nodes_give_the_same_model_though_one_node_dies(cluster, corpora, tmp_path):
    training = {"num_rounds": NUM_ROUNDS, "checkpoint_every": 25, "evaluate_every": 1000}
    tree = run_tree(corpora, privacy={**TREE["privacy"], **TEST_NOISE}, training=training)
    undisturbed = train(from_dict(RunConfig, tree), tmp_path / "undisturbed", workers=0)
    file, out, doomed = tmp_path / "run.yaml", tmp_path / "out", cluster.beside()
    file.write_text(yaml.safe_dump(tree))
    process = cluster.uedp_ray("train", file, "--workers", "2", "--out", out)
    wait_for(process, lambda: begun(out))
    assert [len(cluster.processes(node, WORKER)) for node in (HEAD, doomed)] == [1, 1]
    cluster.kill(doomed)
    before = len(charged(out))
    replacement = cluster.beside()
    wait_for(process, lambda: len(charged(out)) > before)
    assert [len(cluster.processes(node, WORKER)) for node in (HEAD, replacement)] == [1, 1]
    found = answer(process)

    rounds = [t for t, _ in charged(out)]
    resumed = rounds[before]
    assert rounds == [*range(before), *range(resumed, NUM_ROUNDS)]
    assert resumed == before // 25 * 25
    assert len(read_ledger(out / "ledger.jsonl")) >= len(rounds)
    assert torch.equal(parameters(out), parameters(tmp_path / "undisturbed"))
    assert found["perplexity"] == undisturbed["perplexity"]


def test_a_trial_of_two_workers_that_is_killed_goes_on_where_there_is_room_for_one(cluster, corpora, tmp_path):
    """Its group would hold both CPUs for good. Trials stay on the driver's node: one that dies does not take them along."""
    other, out = cluster.beside(), tmp_path / "out"
    file = sweep_file(corpora, tmp_path, rates=RATES[:1], workers_per_trial=2)
    process = cluster.uedp_ray("sweep", file, "--out", out, "--address", cluster.environment["RAY_ADDRESS"])
    run = out / "trials" / "0000"
    wait_for(process, lambda: begun(run))
    assert [len(cluster.processes(node, WORKER)) for node in (HEAD, other)] == [1, 1]
    (trial,) = cluster.processes(HEAD, "ray::ImplicitFunc")
    trial.kill()
    found = answer(process)

    assert found["counts"]["done"] == 1
    rounds = charged(run)
    assert len(rounds) == len(set(rounds)) == NUM_ROUNDS
    assert {attempt for _, attempt in rounds} == {0, 1}


def test_a_submitted_run_trains(cluster, corpora, tmp_path):
    folder, out = tmp_path / "submitted", tmp_path / "out"
    folder.mkdir()
    (folder / "run.yaml").write_text(yaml.safe_dump(run_tree(corpora, training={"num_rounds": 2})))
    cluster.beside()  # one worker has a node's CPUs, not those of two nodes
    assert ended(cluster.submit(folder, "train", "run.yaml", "--workers", "1", "--out", out))
    assert json.loads((out / "result.json").read_text())["rounds"] == len(charged(out)) == 2


def test_more_workers_than_there_is_room_for_are_refused_at_once(cluster, corpora, tmp_path):
    cluster.beside()
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(run_tree(corpora)))
    process = cluster.uedp_ray("train", tmp_path / "run.yaml", "--workers", "3", "--out", tmp_path / "out")
    _, error = process.communicate()
    assert process.returncode == 2
    assert "error: training.num_workers = 3: the cluster has room for 2" in error

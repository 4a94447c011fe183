"""A cluster that cannot run the sweep is refused before anything starts, with everything that is wrong named at once."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import ray.cloudpickle

from uedp_ray.errors import InputError
from uedp_ray.interrupts import handlers_kept
from uedp_ray.search import preflight
from uedp_ray.search.layout import SweepDir
from uedp_ray.search.preflight import Node, RayCluster, _in_folder, check_cluster, make_probe
from uedp_ray.storage.files import settle


def nodes_of(*sizes: tuple[float, float]) -> list[Node]:
    return [Node(f"{k}" * 56, f"10.0.0.{k}", cpus, gpus) for k, (cpus, gpus) in enumerate(sizes)]


@dataclass
class StandIn:
    """Nodes that are folders of this machine: the probe runs here, told where a node sees the driver's storage."""

    sizes: list[tuple[float, float]]
    sees: dict[int, Any] = field(default_factory=dict)
    """How node k changes the path it is told."""
    software: dict[int, dict[str, str]] = field(default_factory=dict)
    """What node k has installed instead."""
    silent: dict[int, str] = field(default_factory=dict)

    def nodes(self) -> list[Node]:
        return nodes_of(*self.sizes)

    def ask(self, nodes, probe, folder, nonce):
        answers = {}
        for k, node in enumerate(nodes):
            answer = probe(self.sees.get(k, str)(folder) if folder else None, nonce, node.node_id)
            answer["software"] |= self.software.get(k, {})
            answers[node.node_id] = {"error": self.silent[k]} if k in self.silent else answer
        return answers


def check(cluster, storage, *, workers=1, cpus=1, gpus=0.0, url=None):
    return check_cluster(
        workers_per_trial=workers, cpus_per_worker=cpus, gpus_per_worker=gpus, storage=storage, url=url, cluster=cluster
    )


@pytest.mark.parametrize(
    ("sizes", "asked", "trials"),
    [
        ([(4, 0)], {}, 4),
        ([(4, 0), (3, 0)], {"cpus": 2}, 3),  # a worker never spans two nodes
        ([(4, 0), (3, 0)], {"workers": 3, "cpus": 1}, 2),  # a trial may
        ([(8, 1), (8, 0)], {"gpus": 1}, 1),
        ([(8, 2)], {"gpus": 0.3}, 6),  # three on each GPU, none on parts of two
        ([(8, 4), (2, 4)], {"workers": 2, "gpus": 2, "cpus": 2}, 1),
        ([(0, 0), (1, 0)], {}, 1),  # a head without CPUs
    ],
)
def test_as_many_trials_as_fit_run_at_once(sizes, asked, trials, tmp_path):
    assert check(StandIn(sizes), tmp_path, **asked).trials_at_once == trials


@pytest.mark.parametrize(
    ("sizes", "asked", "name", "says"),
    [
        ([(4, 0), (4, 0)], {"workers": 9}, "resources.workers_per_trial = 9", "2 x 4 CPU, room for 8 workers of 1 CPU"),
        ([(4, 0), (4, 0)], {"cpus": 6}, "resources.cpus_per_worker = 6", "must fit on one node"),
        ([(4, 0)], {"gpus": 1}, "resources.gpus_per_worker = 1", "1 x 4 CPU"),
        ([(1, 2), (8, 0)], {"gpus": 1, "cpus": 4}, "resources.gpus_per_worker = 1", "1 x 1 CPU and 2 GPU, 1 x 8 CPU"),
    ],
)
def test_more_than_the_cluster_has_is_refused(sizes, asked, name, says, tmp_path):
    with pytest.raises(InputError) as refused:
        check(StandIn(sizes), tmp_path, **asked)
    assert str(refused.value).startswith(name)
    assert says in str(refused.value)


def test_a_node_too_small_for_a_worker_is_a_warning(tmp_path):
    report = check(StandIn([(4, 0), (1, 0)]), tmp_path, cpus=2)
    assert (report.nodes, report.trials_at_once) == (2, 2)
    assert ["10.0.0.1" in warning and "10.0.0.0" not in warning for warning in report.warnings] == [True]
    assert check(StandIn([(4, 0), (2, 0)]), tmp_path, cpus=2).warnings == ()


def test_a_node_with_other_software_is_named_with_the_difference(tmp_path):
    mine = make_probe()(None, "", "")["software"]
    assert {"python", "ray", "torch", "dp-accounting", "uedp_ray source"} < set(mine)
    other = {"torch": "2.0.0", "uedp_ray source": "0123456789ab"}
    with pytest.raises(InputError) as refused:
        check(StandIn([(1, 0)] * 3, software={1: other, 2: other}), tmp_path)
    text = str(refused.value)
    assert "node 10.0.0.1 (11111111), 10.0.0.2 (22222222) = 'torch 2.0.0, uedp_ray source 0123456789ab'" in text
    assert f"the driver has torch {mine['torch']}, uedp_ray source {mine['uedp_ray source']}: install" in text
    assert "10.0.0.0" not in text
    assert "numpy" not in text


def test_one_changed_line_of_source_is_seen(tmp_path, monkeypatch):
    (tmp_path / "uedp_ray").mkdir()
    module = tmp_path / "uedp_ray" / "__init__.py"
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "uedp_ray")
    digests = set()
    for text in ("clip = 1.0\n", "clip = 2.0\n"):
        module.write_text(text)
        digests.add(make_probe()(None, "", "")["software"]["uedp_ray source"])
    assert len(digests) == 2


def test_a_node_without_this_package_can_answer(tmp_path):
    """It says what is missing instead of failing at the import that brought it."""
    (tmp_path / "probe").write_bytes(ray.cloudpickle.dumps(make_probe()))
    code = "import sys, pickle, ray; sys.modules['uedp_ray'] = None; "
    code += "print(pickle.load(open('probe', 'rb'))(None, '', '')['software']['ray'])"
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ray.__version__


def elsewhere(tmp_path):
    """A node that mounts another disk at the same path."""
    return lambda folder: str(tmp_path / "elsewhere" / Path(folder).name)


def copied(tmp_path):
    """A node that holds a synchronised copy of the storage."""

    def see(folder):
        return shutil.copytree(folder, tmp_path / "copy" / Path(folder).name)

    return see


@pytest.mark.parametrize(
    ("how", "says"), [(elsewhere, "cannot use it: No such file"), (copied, "does not see that the driver holds a lock")]
)
def test_storage_that_a_node_does_not_share_is_refused(how, says, tmp_path):
    storage = tmp_path / "shared" / "sweep"
    with pytest.raises(InputError) as refused:
        check(StandIn([(1, 0)] * 2, sees={1: how(tmp_path)}), storage)
    assert str(refused.value).startswith(f"--out = '{storage}': 10.0.0.1 (11111111) {says}")
    assert "mount shared storage" in str(refused.value)
    assert not storage.parent.exists()


def test_a_node_whose_file_never_arrives_is_refused(tmp_path):
    def lose(folder):
        shutil.rmtree(folder)
        return folder

    with pytest.raises(InputError, match=r"10\.0\.0\.1 .* cannot use it"):
        check(StandIn([(1, 0)] * 2, sees={1: lose}), tmp_path)
    cluster = StandIn([(1, 0)] * 2)
    asked = cluster.ask

    def ask(nodes, probe, folder, nonce):
        answers = asked(nodes, probe, folder, nonce)
        (Path(folder) / nodes[1].node_id).unlink()
        return answers

    cluster.ask = ask
    with pytest.raises(InputError, match=r"10\.0\.0\.1 \(11111111\) writes there, but the driver does not see it"):
        check(cluster, tmp_path)


def test_storage_is_left_as_it_was_found(tmp_path):
    (tmp_path / "kept").write_text("kept")
    check(StandIn([(1, 0)] * 2), tmp_path)
    check(StandIn([(1, 0)] * 2), tmp_path / "new" / "folder")
    assert [path.name for path in tmp_path.rglob("*")] == ["kept"]


@pytest.mark.slow
def test_a_url_is_tried_from_every_node_and_left_as_it_was_found(tmp_path):
    url, copies = f"file://{tmp_path}/bucket", tmp_path / "copies"
    copies.mkdir()
    assert check(StandIn([(1, 0)] * 2), copies, url=url).nodes == 2
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]
    with pytest.raises(InputError) as refused:
        check(StandIn([(1, 0)] * 2, sees={1: lambda folder: folder.replace("bucket", "other")}), copies, url=url)
    assert str(refused.value).startswith(f"--out = '{url}': 10.0.0.1 (11111111) cannot use it: ")
    assert "the same credentials" in str(refused.value)


def test_a_node_that_cannot_keep_copies_is_refused(tmp_path):
    (tmp_path / "copies").write_text("")
    with pytest.raises(InputError, match=r"cannot use it: .*UEDP_RAY_WORK that it can write"):
        check(StandIn([(1, 0)]), tmp_path / "copies", url=f"file://{tmp_path}/bucket")


def test_a_full_disk_is_refused_with_figures(tmp_path, monkeypatch):
    usage = shutil.disk_usage(tmp_path)._replace(free=250_000_000)
    monkeypatch.setattr(preflight.shutil, "disk_usage", lambda path: usage)
    with pytest.raises(InputError, match=r"0\.25 GB are free there: make room for at least 1 GB"):
        check(StandIn([(1, 0)]), tmp_path)


def test_a_path_that_the_driver_cannot_write_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match=r"--out = .*the driver cannot write there \(Not a directory\)"):
        check(StandIn([(1, 0)]), tmp_path / "file" / "sweep")


def test_all_problems_are_told_at_once(tmp_path):
    cluster = StandIn(
        [(1, 0)] * 4, sees={1: elsewhere(tmp_path)}, software={2: {"ray": "2.1"}}, silent={3: "no answer within 60 s"}
    )
    with pytest.raises(InputError) as refused:
        check(cluster, tmp_path, workers=5)
    head, *parts = re.split(r"\(\d\) ", str(refused.value))
    assert head == "cluster = '4 problems': fix them all: "
    fields = ["resources.workers_per_trial", "--out", "node 10.0.0.2 (22222222)", "node 10.0.0.3 (33333333)"]
    assert [part.split(" = ")[0] for part in parts] == fields
    assert "'no answer within 60 s': restart Ray there" in parts[-1]


@pytest.fixture(scope="module")
def two_nodes():
    from ray.cluster_utils import Cluster

    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("RAY_ADDRESS", raising=False)
        # A session of its own turns Ray's tokens on in this process; a cluster without them is open to the network.
        with handlers_kept():
            ray.init(address="local", num_cpus=1, include_dashboard=False, log_to_driver=False, logging_level="error")
            ray.shutdown()
            cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 2, "include_dashboard": False})
            cluster.add_node(num_cpus=1, num_gpus=1)
            ray.init(address=cluster.address, log_to_driver=False, logging_level="error")
        yield cluster
        ray.shutdown()
        cluster.shutdown()


@pytest.mark.slow
def test_two_real_nodes_pass(two_nodes, tmp_path):
    report = check(None, tmp_path / "sweep")
    assert (report.nodes, report.trials_at_once, report.warnings) == (2, 3, ())
    assert not list(tmp_path.iterdir())
    assert check(None, tmp_path, gpus=1).trials_at_once == 1
    with pytest.raises(InputError, match=r"room for 3 workers of 1 CPU: ask for at most 3"):
        check(None, tmp_path, workers=4)
    nodes, probe = RayCluster().nodes(), make_probe()
    answers = RayCluster().ask(nodes, probe, None, "")
    assert len(answers) == 2
    assert all(answer == probe(None, "", "") for answer in answers.values())


@pytest.mark.slow
def test_a_path_that_means_something_else_on_each_node_is_refused(two_nodes, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # the nodes work elsewhere, so this path leads each process to a folder of its own
    with pytest.raises(InputError) as refused:
        check(None, Path("/proc/self/cwd/sweep"))
    assert all(f"({node['NodeID'][:8]})" in str(refused.value) for node in ray.nodes())
    assert "cannot use it: No such file or directory; mount shared storage" in str(refused.value)
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_a_node_that_hangs_is_named(two_nodes, tmp_path):
    (node,) = two_nodes.worker_nodes
    raylet = node.all_processes["raylet"][0].process.pid
    os.kill(raylet, signal.SIGSTOP)
    try:
        with pytest.raises(InputError) as refused:
            check(RayCluster(timeout=3), tmp_path)
    finally:
        os.kill(raylet, signal.SIGCONT)
    assert f"({node.node_id[:8]}) = 'no answer within 3 s': restart Ray there" in str(refused.value)
    assert not list(tmp_path.iterdir())


def test_what_a_kill_left_of_it_goes_on_the_next_start(tmp_path):
    child = os.fork()
    if child == 0:
        with _in_folder(tmp_path, "0"):
            os._exit(0)
    os.waitpid(child, 0)
    (left,) = tmp_path.iterdir()
    with _in_folder(tmp_path, "1") as place:
        assert place.read("nonce") == "1"
    left.mkdir()
    settle(tmp_path, SweepDir(tmp_path).names)
    assert not list(tmp_path.iterdir())

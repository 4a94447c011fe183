"""GPUs are divided among trials, used where Ray gave them and nowhere else, and a broken one does not eat the sweep."""

from __future__ import annotations

import errno
import os
from contextlib import nullcontext

import pytest
import ray
import torch

from tests.clusters import local_cluster
from tests.search.sweeps import journal_states, sweep_config, sweep_tree
from tests.search.test_preflight import nodes_of
from tests.told import Told
from tests.training.runs import run_config
from uedp_ray.config import RunConfig, from_dict
from uedp_ray.errors import DeviceError, InputError
from uedp_ray.search import tuning
from uedp_ray.search.gpus import gpus_of_worker, idle
from uedp_ray.search.remote import Beside
from uedp_ray.search.sections import ResourceConfig
from uedp_ray.search.sweep import sweep
from uedp_ray.search.trial import DEVICE, run_trial
from uedp_ray.training import host, placement
from uedp_ray.training.host import train


@pytest.mark.parametrize(
    ("sizes", "resources", "wanted", "gpus"),
    [
        ([(8, 0)], {}, 8, 0),
        ([(8, 2)], {}, 2, 1),
        ([(8, 2)], {}, 1, 1),  # the other idles
        ([(8, 2)], {}, 24, 0.25),
        ([(8, 2)], {}, 6, 0.3333),
        ([(8, 2)], {"max_concurrent": 4}, 24, 0.5),
        ([(4, 4)], {}, 24, 1),  # no more CPUs than GPUs
        ([(64, 2)], {}, 64, 0.25),  # their memory is shared by four at most
        ([(64, 0), (4, 2)], {}, 64, 0.5),  # the node of the CPUs has no GPU to share
        ([(4, 1), (4, 1)], {"cpus_per_worker": 2}, 9, 0.5),
        ([(0, 4), (8, 0)], {}, 4, 0),  # no CPU beside them
        ([(8, 2)], {"workers_per_trial": 2}, 24, 1),
        ([(8, 2)], {"workers_per_trial": 3}, 24, 0),
        ([(8, 2)], {"gpus_per_worker": 0}, 24, 0),
        ([(8, 2)], {"gpus_per_worker": 0.1}, 24, 0.1),
        ([(8, 2)], {"gpus_per_worker": 2, "workers_per_trial": 4}, 24, 2),  # the preflight refuses it
    ],
)
def test_gpus_are_divided_among_the_trials_that_run_at_once(corpora, tmp_path, sizes, resources, wanted, gpus):
    base = {"training": {"num_rounds": 2, "device": "auto"}}
    config = sweep_config(corpora, tmp_path, resources={"max_concurrent": None} | resources, base=base)
    found = gpus_of_worker(config.resources, config.device, nodes_of(*sizes), wanted)
    assert found == gpus
    if 0 < found < 1:
        assert int(1 / found + 1e-9) == round(1 / found)


def test_the_device_of_the_base_is_minded(corpora, tmp_path):
    def gpus(device, resources, nodes):
        base = {"training": {"num_rounds": 2, "device": device}}
        config = sweep_config(corpora, tmp_path, base=base, resources=resources)
        return gpus_of_worker(config.resources, config.device, nodes_of(*nodes), 4)

    assert gpus("cpu", {}, [(4, 4)]) == 0
    assert gpus("cuda", {}, [(4, 4)]) == 1
    for resources, nodes in (({"gpus_per_worker": 0}, [(4, 4)]), ({}, [(4, 0)])):
        with pytest.raises(InputError, match=r"resources\.gpus_per_worker = .*: training\.device is cuda: give trials"):
            gpus("cuda", resources, nodes)


@pytest.mark.parametrize(
    ("workers", "gpus", "says"),
    [
        (8, 1, None),
        (32, 0.25, None),
        (31, 0.25, None),
        (2, 1, "6 of 8 GPUs will be idle: 2 workers at once, with 1 GPU each"),
        (8, 0.25, "6 of 8 GPUs will be idle"),
        (3, 2, "2 of 8 GPUs will be idle"),
        (8, 0, "all 8 GPUs of the cluster will be idle: trials train on CPUs"),
    ],
)
def test_a_line_says_which_gpus_stay_idle(workers, gpus, says):
    found = idle(nodes_of((8, 4), (8, 4)), workers, gpus)
    assert found is None if says is None else found.startswith(says)
    assert idle(nodes_of((8, 0)), workers, 0) is None


@pytest.mark.parametrize("value", [-1, 1.5, float("nan"), float("inf"), "all"])
def test_what_is_no_amount_of_gpus_is_refused(corpora, tmp_path, value):
    with pytest.raises(InputError, match=r"resources\.gpus_per_worker"):
        sweep_config(corpora, tmp_path, resources={"gpus_per_worker": value})


def test_a_part_of_a_gpu_is_for_trials_of_one_worker():
    assert ResourceConfig().gpus_per_worker == "auto"
    assert ResourceConfig(gpus_per_worker=0.5).gpus_per_worker == 0.5
    with pytest.raises(InputError, match="whole number"):
        ResourceConfig(gpus_per_worker=0.5, workers_per_trial=2)


class Stop(Exception):
    """Raised where a Ray Train group would start."""


@pytest.mark.parametrize(
    ("there", "asked", "device", "share", "says"),
    [
        (2, None, "auto", 1, ""),
        (1, None, "auto", None, "training on CPUs, not on GPUs: the cluster has 1 for 2 workers"),
        (0, None, "auto", None, ""),
        (2, None, "cpu", None, ""),
        (2, 0.0, "auto", None, ""),  # a trial that was given none takes none
        (4, 2.0, "auto", 2, ""),
        (4, 2.0, "cpu", None, ""),
    ],
)
def test_workers_of_ray_train_ask_for_the_gpus_they_are_given(
    corpora, tmp_path, monkeypatch, there, asked, device, share, says
):
    asking, told = [], []

    def start(run, config, scaling):
        asking.append((scaling.use_gpu, scaling.resources_per_worker.get("GPU")))
        raise Stop

    node = {"Alive": True, "Resources": {"CPU": 4, "GPU": there}, "NodeManagerAddress": "10.0.0.1"}
    monkeypatch.setattr("ray.nodes", lambda: [node])
    monkeypatch.setattr("ray.cluster_resources", lambda: node["Resources"])
    monkeypatch.setattr("ray.util.get_node_ip_address", lambda: "10.0.0.1")
    monkeypatch.setattr("uedp_ray.training.placement.num_cores", lambda: 1)
    monkeypatch.setattr(host, "ray_session", lambda *_: nullcontext())
    monkeypatch.setattr(host, "_free", lambda run: None)
    monkeypatch.setattr(host, "_run_group", start)
    config = run_config(corpora, training={"device": device})
    with pytest.raises(Stop):
        train(config, tmp_path / "run", workers=2, gpus_per_worker=asked, reporter=Told(say=told.append))
    assert asking == [(share is not None, share)]
    assert any(line.startswith(says) for line in told)
    assert says or not any("GPU" in line for line in told)
    assert any("2 workers share the 1 cores" in line for line in told) == (share is None)


def test_workers_that_must_have_a_gpu_are_refused_where_there_is_none(corpora, tmp_path, monkeypatch):
    monkeypatch.setenv("RAY_ADDRESS", "elsewhere:6379")  # workers' GPUs are not those of this machine
    monkeypatch.setattr("ray.cluster_resources", lambda: {"CPU": 4, "GPU": 1})
    monkeypatch.setattr(host, "ray_session", lambda *_: nullcontext())
    monkeypatch.setattr(host, "_free", lambda run: None)
    monkeypatch.setattr("ray.is_initialized", lambda: True)
    config = run_config(corpora, training={"device": "cuda"})
    for asked, says in ((None, "the cluster has 1 for 2 workers"), (0.0, "no worker has a GPU: give it one")):
        with pytest.raises(InputError, match=rf"training\.device = 'cuda': {says}"):
            train(config, tmp_path / "run", workers=2, gpus_per_worker=asked)
        assert not (tmp_path / "run").exists(), "text was read before"


@pytest.mark.parametrize(("share", "limits"), [(0.25, [0.25]), (1.0, []), (2.0, [])])
def test_a_part_of_a_gpu_has_that_part_of_its_memory(share, limits, monkeypatch):
    limited = []
    monkeypatch.setattr(placement, "_gpu_share", lambda: share)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "set_per_process_memory_fraction", limited.append)
    for device, expected in (("cpu", []), ("auto", limits)):
        tree = {"corpus": {"declared_num_users": 100}, "privacy": {"noise_multiplier": 1.0}}
        config = from_dict(RunConfig, tree | {"training": {"device": device}})
        assert placement.pick_device(config).type == ("cpu" if device == "cpu" else "cuda")
        assert limited == expected


@pytest.fixture(scope="module")
def two_gpus():
    """A cluster of four CPUs that believes it has two GPUs."""
    with local_cluster(num_cpus=4, num_gpus=2):
        yield


def given(tell):
    """What a process was given, and how much it may take of GPUs that it sees."""
    return ray.get_runtime_context().get_accelerator_ids()["GPU"], placement._gpu_share(), os.getpid()


@pytest.mark.slow
def test_what_runs_beside_the_trials_has_what_a_trial_takes_and_fails_as_it_would_here(two_gpus, corpora, tmp_path):
    with Beside(sweep_config(corpora, tmp_path, base={"training": {"device": "auto"}})) as beside:
        gpus, share, process = beside.run(given)
        assert (len(gpus), share) == (1, 1.0)
        assert process != os.getpid()
    with Beside(sweep_config(corpora, tmp_path, resources={"gpus_per_worker": 0.25})) as beside:
        gpus, share, _ = beside.run(given)
        assert (len(gpus), share) == (1, 0.25)
    with Beside(sweep_config(corpora, tmp_path, resources={"gpus_per_worker": 0})) as beside:
        assert beside.run(given)[:2] == ([], 0.0), "Ray hides no GPU from it"
        assert placement._gpu_share() == 1.0, "the driver's own process is not one of Ray's"
        said = []

        def work(error, reporter):
            reporter.step(1, 2, 0.5)
            reporter.round({"round": 1})
            raise error

        with pytest.raises(DeviceError, match=r"^model\.path = 'x': name a model$"):
            beside.run(
                work,
                DeviceError("model.path", "x", "name a model"),
                reporter=Told(step=lambda *row: said.append(row), round=said.append),
            )
        assert said == [(1, 2, 0.5), {"round": 1}]
        with pytest.raises(OSError, match="No space left") as full:
            beside.run(work, OSError(errno.ENOSPC, "No space left on device"))
        assert full.value.errno == errno.ENOSPC
        with pytest.raises(RuntimeError, match=r"^ValueError in test_gpus\.py, line \d+$"):
            beside.run(work, ValueError("Ann met Ben"))
        beside = Beside(sweep_config(corpora, tmp_path, resources={"cpus_per_worker": 9}))
        with pytest.raises(InputError, match=r"resources\.cpus_per_worker = 9: no node has room"):
            beside.run(given)


@pytest.mark.slow
def test_one_sick_gpu_costs_a_sweep_no_trial(two_gpus, corpora, tmp_path, monkeypatch):
    """Ray Tune, trials and their processes are real; one of two simulated GPUs raises whatever runs there."""
    seen = tmp_path / "seen"

    def on_a_gpu(*arguments, **settings):
        from uedp_ray.training import worker

        gpus, share, process = given(None)
        with seen.open("a") as file:
            file.write(f"{gpus} {share} {process}\n")

        def sick(*_, **__):
            raise torch.AcceleratorError("CUDA error: uncorrectable ECC error encountered")

        if gpus == ["0"]:
            worker.run_rounds = sick
        return run_trial(*arguments, **settings)

    monkeypatch.setattr(tuning, "run_trial", on_a_gpu)
    search = {"searcher": "tpe", "trials": 4}
    said, base = [], sweep_tree(corpora)["base"]
    base["training"]["device"] = "auto"
    config = sweep_config(corpora, tmp_path, base=base, search=search, resources={"max_concurrent": 2})
    answer = sweep(config, tmp_path / "out", reporter=Told(say=said.append))
    assert any(line.startswith("searching: 4 trials, 2 at once, 1 GPU each") for line in said)
    assert answer["counts"] == {"asked": 4, "done": 4, "stopped": 0, "failed": 0, "refused": 0, "running": 0}
    lines = seen.read_text().splitlines()
    assert len(lines) == 5
    assert [line.split()[0] for line in lines].count("['0']") == 1, "nothing else is put on the sick one"
    assert {line.split()[1] for line in lines} == {"1.0"}


@pytest.mark.slow
def test_where_every_gpu_is_sick_the_search_stops_with_the_reason(two_gpus, corpora, tmp_path, monkeypatch):
    def sick(trial, *, root, report, gpus):
        report({"round": 0, "score": 1.0, "epsilon": 1.0, "outcome": DEVICE, "reason": "the GPU failed (ECC)"})
        return DEVICE

    monkeypatch.setattr(tuning, "run_trial", sick)
    base = {**sweep_tree(corpora)["base"], "training": {"device": "auto"}}
    config = sweep_config(corpora, tmp_path, base=base, resources={"max_concurrent": 2})
    with pytest.raises(RuntimeError, match=r"no device is left: the GPU failed \(ECC\) \(node .*, GPU \d\); fix that"):
        sweep(config, tmp_path / "out")
    assert journal_states(tmp_path / "out") == ["RUNNING"] * 2

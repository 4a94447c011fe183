"""Memory and GPUs that fail: the user is told at once, nothing is charged again and again, and a short run says so."""

from __future__ import annotations

import errno
import json
import os
import weakref
from types import SimpleNamespace

import pytest
import torch
import yaml

from tests.models.helpers import tiny
from tests.training.runs import TREE, events, run_config, run_tree
from tests.updates.worker import Worker, make, sentences
from uedp_ray.console import Lines, refuse_short
from uedp_ray.errors import DeviceError, InputError
from uedp_ray.models import saved
from uedp_ray.models.saved import load_model, said_by_transformers, save_model
from uedp_ray.plan import Plan
from uedp_ray.privacy.noise import MOST_AHEAD
from uedp_ray.training import host, placement, worker
from uedp_ray.training.driver import RunDriver
from uedp_ray.training.faults import blamed
from uedp_ray.training.host import Patience, train
from uedp_ray.training.placement import check_workers, num_cores, warn_of_cores
from uedp_ray.updates import gradient
from uedp_ray.updates.base import LocalUpdate

MEMORY = [
    torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB"),
    MemoryError(),
    RuntimeError("[enforce fail at alloc_cpu.cpp:121] . DefaultCPUAllocator: can't allocate memory"),
    RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
    torch.AcceleratorError("CUDA error: out of memory"),
    OSError(errno.ENOMEM, "Cannot allocate memory"),
]
DEVICE = [
    torch.AcceleratorError("CUDA error: an illegal memory access was encountered\nCUDA kernel errors might be"),
    RuntimeError("CUDA error: uncorrectable ECC error encountered"),
    RuntimeError("cuDNN error: CUDNN_STATUS_EXECUTION_FAILED"),
]
OTHER = [
    torch.distributed.DistBackendError("NCCL error: remote process exited or there was a network error"),
    RuntimeError("Connection closed by peer"),
    ValueError("Ann met Ben"),
    KeyError("out of memory"),  # a folder's name for a kind of layer
    OSError("no file named model.safetensors in /home/ann/out of memory"),
    OSError(errno.ENOSPC, "No space left on device"),
    InputError("training.seed", 1, "is mine"),
]


def told(error):
    with pytest.raises(type(error) if error in OTHER else InputError) as raised, blamed("training.batch_tokens", 4096):
        raise error
    return raised.value


@pytest.mark.parametrize("error", MEMORY, ids=lambda error: str(error)[:30])
def test_memory_is_the_users(error):
    assert type(told(error)) is InputError
    assert str(told(error)).startswith("training.batch_tokens = 4096: ")
    assert "ran out of memory: lower it" in str(told(error))


@pytest.mark.parametrize("error", MEMORY[1:], ids=lambda error: str(error)[:30])
def test_a_model_that_does_not_fit_is_not_a_bad_folder(error):
    with pytest.raises(InputError) as raised, said_by_transformers("model.path", "llama"):
        raise error
    assert str(raised.value).startswith("model.path = 'llama': the machine ran out of memory as it read the model: ")
    with (
        pytest.raises(InputError, match="transformers loads no language model"),
        said_by_transformers("model.path", "x"),
    ):
        raise OSError("no file of weights")


@pytest.mark.parametrize("error", MEMORY, ids=lambda error: str(error)[:30])
def test_memory_that_runs_out_is_no_fault_of_what_was_being_read_or_tried(error, tmp_path, monkeypatch):
    def fails(*args, **kwargs):
        raise error

    save_model(tiny(), tmp_path / "model")
    monkeypatch.setattr(saved, "_filled", fails)
    with pytest.raises(type(error)) as raised:
        load_model(tmp_path / "model")
    assert raised.value is error
    monkeypatch.setattr(gradient, "_PROBED", {})
    monkeypatch.setattr(gradient, "check_exact", fails)
    with pytest.raises(type(error)) as raised:
        Worker(make("gpt2"), sentences()).update().probe()
    assert raised.value is error


@pytest.mark.parametrize(("optimizer", "kept"), [("sgd", 0), ("momentum", 1), ("adam", 2)])
def test_what_a_round_holds_beside_is_taken_while_an_update_is_tried_out(
    corpora, tmp_path, monkeypatch, optimizer, kept
):
    """Its first parameters, its sum, noise drawn ahead and, from the second round on, what the optimizer keeps."""
    taken, seen = [], []
    held_beside, probe = worker._held_beside, LocalUpdate.probe

    def taking(*given):
        found = held_beside(*given)
        taken.extend((weakref.ref(each), each.nbytes) for each in found)
        return found

    def tries(update):
        if not update._probed:
            seen.append((sum(size for each, size in taken if each() is not None), update.params.num))
        probe(update)

    monkeypatch.setattr(worker, "_held_beside", taking)
    monkeypatch.setattr(LocalUpdate, "probe", tries)
    training = {"server_optimizer": optimizer, "num_rounds": 1, "local_update": "local_sgd"}
    bounds = {"holder_bound": "truncate", "entity_bound": "truncate", "max_holders": 3}
    config = run_config(corpora, training=training, bounds=bounds, privacy={"sentence_clip_norm": None})
    train(config, tmp_path / "run", workers=0)
    ((size, num),) = seen
    assert size == (4 + 8 + 8 + 4 * kept) * num
    assert all(each() is None for each, _ in taken)


def test_what_is_taken_beside_is_of_the_part_that_a_worker_steps(corpora, monkeypatch):
    plan = Plan.of(run_config(corpora, training={"server_optimizer": "adam"}))
    sizes = [
        sum(each.nbytes for each in worker._held_beside(plan, 1000, part, torch.device("cpu")))
        for part in (1, 1 / 3, 0)
    ]
    assert sizes == [12_000 + 16_000, 12_000 + 16 * 334, 12_000]
    taken = torch.cat(worker._held_beside(plan, 1000, 1, torch.device("cpu")))
    assert bool((taken == 1).all()), "zeros would take no page"
    assert MOST_AHEAD * 8 == 1 << 30
    monkeypatch.setattr(worker, "MOST_AHEAD", 100)
    taken = torch.cat(worker._held_beside(plan, 1000, 1, torch.device("cpu")))
    assert taken.nbytes == 12_000 + 8_000 + 800


def test_more_workers_than_cores_are_told_of_where_this_machine_is_alone(monkeypatch):
    here, said = {"NodeManagerAddress": "10.0.0.1", "Alive": True}, []
    reporter = SimpleNamespace(say=said.append)
    monkeypatch.setattr(placement, "num_cores", lambda: 2)
    monkeypatch.setattr("ray.util.get_node_ip_address", lambda: "10.0.0.1")
    for nodes, workers in (([here], 2), ([here, here | {"NodeManagerAddress": "10.0.0.2"}], 9), ([here], 9)):
        monkeypatch.setattr("ray.nodes", lambda nodes=nodes: nodes)
        warn_of_cores(workers, reporter)
    (caution,) = said
    assert caution.startswith(
        "caution: 9 workers share the 2 cores of this machine, and are slower than 2: lower --workers"
    )


def test_a_containers_limit_is_its_number_of_cores(tmp_path, monkeypatch):
    """Ray would start a trial for each core of the machine, and none of them would get on."""
    monkeypatch.setattr("os.sched_getaffinity", lambda process: set(range(64)))
    for limit, cores in (("200000 100000", 2), ("150000 100000", 2), ("max 100000", 64), ("9900000 100000", 64)):
        (tmp_path / "cpu.max").write_text(f"{limit}\n")
        monkeypatch.setattr(placement, "_LIMIT", tmp_path / "cpu.max")
        assert num_cores() == cores
    monkeypatch.setattr(placement, "_LIMIT", tmp_path / "none")
    assert num_cores() == 64
    with pytest.raises(InputError, match="this machine has 64 CPUs: ask for at most 256"):
        check_workers("--workers", 257, here=True)


@pytest.mark.parametrize("error", DEVICE, ids=lambda error: str(error)[:30])
def test_a_broken_gpu_is_told_from_a_mistake(error):
    assert type(told(error)) is DeviceError
    assert str(error).splitlines()[0] in str(told(error))
    assert "\n" not in str(told(error))


def test_a_kernel_without_a_fixed_order_is_the_networks():
    text = (
        "some_kernel_cuda does not have a deterministic implementation, but you set 'torch.use_deterministic_algorithms"
    )
    error = told(RuntimeError(text))
    assert type(error) is InputError
    assert str(error).startswith("training.device = 'cuda': a kernel of this network adds in no fixed order")


@pytest.mark.parametrize("error", OTHER, ids=lambda error: str(error)[:30])
def test_anything_else_stays_what_it_is(error):
    assert told(error) is error


def test_a_group_that_fails_is_started_again_only_while_it_gets_on():
    patience = Patience(2, kept=10)
    assert [patience.start_again(kept) for kept in (10, 10, 10)] == [True, True, False]
    patience = Patience(2, kept=10)
    assert all(patience.start_again(kept) for kept in range(20, 1000, 10)), "failures in all are not counted"
    assert [patience.start_again(990) for _ in range(2)] == [True, False], "the last of them was the first at 990"
    assert not Patience(0, kept=0).start_again(50)


SIX = {"training": {"num_rounds": 6, "checkpoint_every": 2, "evaluate_every": 6, "device": "cpu"}}
BUDGET = {"privacy": {**TREE["privacy"], "target_epsilon": 8.0, "noise_multiplier": None}}


@pytest.fixture
def failing(monkeypatch):
    """Makes memory run out right after the third round was charged, as often as told."""

    def fail(times):
        charge, left = RunDriver.charge, [times]

        def charged(driver, round_index, attempt):
            charge(driver, round_index, attempt)
            if round_index >= 2 and left[0]:
                left[0] -= 1
                raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 30.00 GiB")

        monkeypatch.setattr(RunDriver, "charge", charged)

    return fail


def test_memory_that_runs_out_in_a_round_ends_the_run_and_it_goes_on_when_told_to(corpora, tmp_path, failing):
    failing(1)
    config = run_config(corpora, **SIX, **BUDGET)
    with pytest.raises(InputError, match=r"training\.batch_tokens = 4096: the GPU ran out of memory: lower it"):
        train(config, tmp_path / "run", workers=0)
    assert not (tmp_path / "run" / "result.json").exists()
    smaller = run_config(corpora, **BUDGET, training={**SIX["training"], "batch_tokens": 512})
    result = train(smaller, tmp_path / "run", workers=0, resume=True)
    assert (result["rounds"], result["planned_rounds"]) == (5, 6)


def test_a_run_of_fewer_rounds_than_planned_says_so_wherever_it_ends(corpora, tmp_path, failing, command):
    """Played as Ray Train would: three starts lose a charged round each, and what is left of the budget buys no more."""
    path = tmp_path / "run.yaml"
    path.write_text(yaml.safe_dump(run_tree(corpora, **SIX, **BUDGET)))
    failing(4)
    words = ["train", path, "--workers", "0", "--out", tmp_path / "run", "--json"]
    ends = [command(*words, *["--resume"] * (start > 0)) for start in range(5)]
    _, out, err = ends[-1]
    assert [code for code, _, _ in ends] == [2, 2, 2, 2, 1]
    assert len(events(tmp_path / "run")) == 6
    answer = json.loads(out)
    assert json.loads((tmp_path / "run" / "result.json").read_text()).items() <= answer.items()
    assert (answer["rounds"], answer["planned_rounds"]) == (2, 6)
    assert (
        "failed: ended after 2 of 6 rounds: what was charged twice, or charged and lost in a crash or with a node, used"
        in err
    )
    assert (
        "Rounds: 2 of 6 planned. **It ended before its plan**: what was charged twice, or charged and then lost,"
        in (tmp_path / "run" / "privacy.md").read_text()
    )


def test_a_whole_run_says_nothing_of_the_kind(private_run):
    assert private_run.result["rounds"] == private_run.result["planned_rounds"] == 5
    assert "ended after" not in (private_run.out / "privacy.md").read_text()


def test_rows_of_comparisons_and_sweeps_that_ended_early_are_named():
    whole = {"name": "public-only", "rounds": 0, "planned_rounds": 0}
    refuse_short([whole, {"trial": "0001", "rounds": 6, "planned_rounds": 6}])
    short = {"rounds": 2, "planned_rounds": 6}
    with pytest.raises(
        RuntimeError, match=r"^private ended after 2 of 6 rounds, trial 0003 ended after 2 of 6 rounds: "
    ):
        refuse_short([whole, {"name": "private", **short}, {"trial": "0003", **short}])


def test_what_ray_says_of_a_lost_worker_can_be_shown(capsys):
    line = "the workers failed: [/__w/pytorch/third_party/gloo/pair.cc:553] Connection closed by peer [10.0.0.1]:4"
    Lines().say(line)
    assert capsys.readouterr().err.replace("\n", "") == line


@pytest.mark.parametrize("content", ["pipe", "not hexadecimal", "00ff"])
def test_a_damaged_note_of_what_a_killed_trial_held_is_named(tmp_path, content):
    os.mkfifo(tmp_path / "group") if content == "pipe" else (tmp_path / "group").write_text(content)
    run = SimpleNamespace(group=tmp_path / "group", storage=SimpleNamespace(get=lambda path: None))
    with pytest.raises(InputError, match=r"group = .*delete it"):
        host._free(run)


def test_a_note_that_was_cut_off_says_that_nothing_was_held(tmp_path):
    (tmp_path / "group").touch()
    host._free(SimpleNamespace(group=tmp_path / "group", storage=SimpleNamespace(get=lambda path: None)))
    assert not (tmp_path / "group").exists()


def test_a_note_of_what_is_held_is_written_whole(tmp_path, monkeypatch):
    import ray.train

    context = SimpleNamespace(get_world_rank=lambda: 0)
    monkeypatch.setattr(ray.train, "get_context", lambda: context)
    held = SimpleNamespace(id=ray.PlacementGroupID(bytes(18)))
    monkeypatch.setattr(ray.util, "get_current_placement_group", lambda: held)
    (tmp_path / "group").write_text("old")
    os.link(tmp_path / "group", tmp_path / "beside")
    storage = SimpleNamespace(publish=lambda path: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        host._ray_worker({"run": SimpleNamespace(group=tmp_path / "group", storage=storage), "error": None})
    assert (tmp_path / "group").read_text() == "00" * 18
    assert (tmp_path / "beside").read_text() == "old", "another file takes its place"

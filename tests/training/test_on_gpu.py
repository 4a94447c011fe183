"""Runs on a real GPU: as on the CPU but for rounding, the same bits after a crash, and one message where memory ends."""

from __future__ import annotations

import gc

import pytest
import torch

from tests.clusters import local_cluster
from tests.search.sweeps import sweep_config, sweep_tree
from tests.told import Told
from tests.training.runs import TEST_NOISE, crash, events, parameters, run_config
from tests.updates.worker import LOCAL_SGD
from uedp_ray.errors import InputError
from uedp_ray.search.sweep import sweep
from uedp_ray.training.host import train
from uedp_ray.training.pretrain import pretrain

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU"),
]
UPDATES = {
    "gradient": ({"sentence_clip_norm": 0.3}, {}, {}),
    "gradient bf16": ({"sentence_clip_norm": 0.3}, {}, {"precision": "bf16"}),
    "local_sgd": ({"sentence_clip_norm": None}, {"holder_bound": "truncate", "entity_bound": "truncate"}, LOCAL_SGD),
}


def config_of(corpora, update, device):
    privacy, bounds, training = UPDATES[update]
    sections = {"privacy": privacy | TEST_NOISE, "bounds": bounds, "training": training | {"device": device}}
    return run_config(corpora, **sections)


@pytest.fixture
def one_gpu():
    with local_cluster(num_cpus=4, num_gpus=1):
        yield


@pytest.mark.parametrize("update", UPDATES)
def test_a_run_is_that_of_the_cpu_but_for_rounding_and_survives_a_crash_to_the_bit(update, corpora, tmp_path):
    here, there = config_of(corpora, update, "cuda"), config_of(corpora, update, "cpu")
    result, expected = (train(each, tmp_path / each.training.device, workers=0) for each in (here, there))
    assert result["perplexity"] == pytest.approx(expected["perplexity"], rel=0.02 if "bf16" in update else 1e-3)
    assert result["epsilon"] == expected["epsilon"]
    crash(here, tmp_path / "crashed", charges=4)
    train(here, tmp_path / "crashed", workers=0, resume=True)
    assert torch.equal(parameters(tmp_path / "crashed"), parameters(tmp_path / "cuda"))


def test_a_ray_worker_with_a_gpu_gives_the_model_of_one_process(corpora, one_gpu, tmp_path):
    config = config_of(corpora, "gradient", "cuda")
    for name, workers in (("one", 0), ("ray", 1)):
        train(config, tmp_path / name, workers=workers)
    assert torch.equal(parameters(tmp_path / "one"), parameters(tmp_path / "ray"))


def test_a_search_shares_one_gpu_among_its_trials(corpora, one_gpu, tmp_path):
    base, said = sweep_tree(corpora)["base"], []
    base["training"]["device"] = "cuda"
    config = sweep_config(corpora, tmp_path, base=base, resources={"max_concurrent": 2}, search={"trials": 4})
    answer = sweep(config, tmp_path / "out", reporter=Told(say=said.append))
    assert any(line.startswith("searching: 4 trials, 2 at once, 0.5 GPU each") for line in said), said
    assert answer["counts"]["done"] == 4


def test_memory_that_ends_is_one_message_and_charges_nothing(corpora, tmp_path):
    config = run_config(corpora, training={"device": "cuda"}, model={"num_layers": 2, "hidden_size": 512})
    gc.collect()
    torch.cuda.empty_cache()
    torch.cuda.set_per_process_memory_fraction(16 * 2**20 / torch.cuda.get_device_properties(0).total_memory)
    try:
        with pytest.raises(InputError, match=r"training\.batch_tokens = .*the GPU ran out of memory"):
            train(config, tmp_path / "run", workers=0)
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    ledger = tmp_path / "run" / "ledger.jsonl"
    assert not ledger.exists() or not events(tmp_path / "run")


def test_pretraining_on_a_gpu_starts_a_run(corpora, tmp_path):
    text = [{"format": "synthetic", "num_users": 60, "part": "public"}]
    sections = {"pretrain": {"text": text, "num_steps": 40, "batch_size": 16, "learning_rate": 0.02}}
    config = run_config(corpora, **sections, training={"device": "cuda"})
    started = pretrain(config, tmp_path / "pretrained")
    trained = train(
        run_config(corpora, training={"device": "cuda"}, model={"warm_start": started["checkpoint"]}),
        tmp_path / "run",
        workers=0,
    )
    assert trained["perplexity"] < 100

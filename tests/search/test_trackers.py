"""What trials report reaches the trackers that people use."""

from __future__ import annotations

import pyarrow.parquet as pq
import pytest
from tensorboardX.proto import event_pb2

from tests.search.sweeps import sweep_tree, write_sweep
from uedp_ray.search.sweep import sweep
from uedp_ray.search.sweep_config import load_sweep_config

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("local_ray")]


def tracked(corpora, folder, *trackers):
    tree = sweep_tree(corpora, search={"trials": 1}) | {"trackers": list(trackers)}
    return sweep(load_sweep_config(write_sweep(tree, folder)), folder / "out")


def test_tensorboard_out_of_the_box(corpora, tmp_path):
    tracked(corpora, tmp_path)
    logs = list((tmp_path / "out" / "tensorboard").glob("search-*/0000/events.out.tfevents.*"))
    assert len(logs) == 1
    content = logs[0].read_bytes()
    assert b"ray/tune/perplexity" in content
    assert b"ray/tune/epsilon" in content
    rounds = pq.read_table(tmp_path / "out" / "trials" / "0000" / "rounds.parquet")["round"].to_pylist()
    steps = [event.step for event in events_of(content) if any("perplexity" in v.tag for v in event.summary.value)]
    assert steps[1:] == [each for each in rounds if each], "a step is a round; Ray knows no step 0"


def events_of(content):
    """TensorBoard's records: 8 bytes of length, 4 of checksum, the event, 4 of checksum."""
    while content:
        size = int.from_bytes(content[:8], "little")
        yield event_pb2.Event.FromString(content[12 : 12 + size])
        content = content[16 + size :]


def test_mlflow(corpora, tmp_path, monkeypatch):
    mlflow = pytest.importorskip("mlflow", reason="extra mlflow is not installed")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path / 'mlflow.db'}")
    answer = tracked(corpora, tmp_path, "mlflow")
    client = mlflow.MlflowClient(f"sqlite:///{tmp_path / 'mlflow.db'}")
    experiment = client.get_experiment_by_name("tiny")
    (run,) = client.search_runs([experiment.experiment_id])
    assert run.data.metrics["perplexity"] == pytest.approx(answer["best"]["perplexity"])
    rounds = pq.read_table(tmp_path / "out" / "trials" / "0000" / "rounds.parquet")["round"].to_pylist()
    steps = [each.step for each in client.get_metric_history(run.info.run_id, "perplexity")]
    assert steps[1:] == [each for each in rounds if each], "a step is a round"
    rate = answer["best"]["params"]["training.server_learning_rate"]
    assert any(float(value) == pytest.approx(rate) for key, value in run.data.params.items() if "learning_rate" in key)


def test_wandb(corpora, tmp_path, monkeypatch):
    pytest.importorskip("wandb", reason="extra wandb is not installed")
    monkeypatch.setenv("WANDB_MODE", "offline")
    tracked(corpora, tmp_path, "wandb")
    assert list((tmp_path / "out" / "wandb").glob("offline-run-*/*.wandb"))

"""A sweep that will fill the disk says so before it starts."""

from __future__ import annotations

import shutil

import pytest

from tests.training.runs import run_config
from uedp_ray.search import disk
from uedp_ray.search.disk import run_bytes, too_full


@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
@pytest.mark.parametrize("trainable", ["full", "lora"])
def test_a_run_takes_about_what_its_configuration_tells(corpora, tmp_path, trainable, optimizer):
    from uedp_ray.training.host import train

    # Words enough that parameters outweigh what surrounds them on the disk.
    model = {"hidden_size": 64, "num_layers": 1, "num_heads": 2, "max_length": 12, "trainable": trainable}
    config = run_config(corpora, model=model, training={"num_rounds": 1, "server_optimizer": optimizer})
    train(config, tmp_path / "run", workers=0)
    files = [file for name in ("model", "checkpoint") for file in (tmp_path / "run" / name).glob("*.safetensors")]
    assert run_bytes(config) == pytest.approx(sum(file.stat().st_size for file in files), rel=0.1)


def test_what_the_configuration_does_not_tell_is_not_guessed(corpora, tmp_path):
    assert run_bytes(run_config(corpora, vocabulary={"kind": "tokenizer", "path": "gpt2"})) is None
    pretrained = {"architecture": "pretrained", "path": str(tmp_path)}
    assert run_bytes(run_config(corpora, model=pretrained)) is None
    (tmp_path / "model.safetensors").write_bytes(bytes(100))
    assert run_bytes(run_config(corpora, model=pretrained)) == 100


def test_a_disk_that_will_fill_is_told(corpora, tmp_path, monkeypatch):
    usage = shutil.disk_usage(tmp_path)._replace(free=10**9)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
    monkeypatch.setattr(disk, "run_bytes", lambda config: 5 * 10**8)
    assert too_full(run_config(corpora), 2, tmp_path / "not" / "there") is None
    line = too_full(run_config(corpora), 3, tmp_path)
    assert line.startswith("the disk will fill: 3 runs of about 0.5 GB each, and 1 GB are free")

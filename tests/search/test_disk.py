"""A sweep that will fill the disk says so before it starts."""

from __future__ import annotations

import shutil

import pytest

from tests.search.sweeps import finalize_here, search_here, sweep_config
from tests.training.runs import content, run_config
from uedp_ray.search import disk
from uedp_ray.search.disk import run_bytes, too_full
from uedp_ray.search.export import export
from uedp_ray.search.layout import SweepDir
from uedp_ray.training.rundir import RunDir

SETTINGS = {"privacy.user_sampling_prob": 0.3, "training.num_rounds": 2, "training.server_learning_rate": 0.01}


@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
@pytest.mark.parametrize("trainable", ["full", "lora"])
def test_a_run_takes_about_what_its_configuration_tells(corpora, tmp_path, trainable, optimizer):
    from uedp_ray.training.host import train

    # Words enough that parameters outweigh what surrounds them on the disk.
    model = {"hidden_size": 64, "num_layers": 1, "num_heads": 2, "max_length": 12, "trainable": trainable}
    config = run_config(corpora, model=model, training={"num_rounds": 1, "server_optimizer": optimizer})
    train(config, tmp_path / "run", workers=0)
    found = {name: (tmp_path / "run" / name).glob("*.safetensors") for name in ("model", "checkpoint")}
    sizes = {name: sum(file.stat().st_size for file in files) for name, files in found.items()}
    assert run_bytes(config)._asdict() == pytest.approx(sizes, rel=0.1)


def test_what_the_configuration_does_not_tell_is_not_guessed(corpora, tmp_path):
    assert run_bytes(run_config(corpora, vocabulary={"kind": "tokenizer", "path": "gpt2"})) is None
    pretrained = {"architecture": "pretrained", "path": str(tmp_path)}
    assert run_bytes(run_config(corpora, model=pretrained)) is None
    (tmp_path / "model.safetensors").write_bytes(bytes(100))
    assert run_bytes(run_config(corpora, model=pretrained)) == (100, 0)


def test_a_disk_that_will_fill_is_told(corpora, tmp_path, monkeypatch):
    usage = shutil.disk_usage(tmp_path)._replace(free=10**9)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
    monkeypatch.setattr(disk, "run_bytes", lambda config: disk.RunBytes(2 * 10**8, 3 * 10**8))
    assert too_full(run_config(corpora), 2, tmp_path / "not" / "there") is None
    line = too_full(run_config(corpora), 3, tmp_path)
    assert line.startswith("the disk will fill: 3 runs of about 0.5 GB each, and 1 GB are free")
    assert too_full(run_config(corpora), 2, tmp_path, at_once=1) is None, "those that ended have no checkpoint"
    line = too_full(run_config(corpora), 3, tmp_path, at_once=1)
    assert line.startswith("the disk will fill: 3 runs of about 0.2 GB each and 0.6 GB beside them, and 1 GB are free")


def test_a_trial_that_ended_keeps_its_model_and_its_ledger_and_no_checkpoint(corpora, tmp_path):
    """A thousand of GPT-2 took 2 TB, of which 1.5 TB were optimizers' moments that nothing read again."""
    from uedp_ray.training.host import train

    config, point = sweep_config(corpora, tmp_path, search={"trials": 1}), {"training.num_rounds": 2}
    answer = search_here(config, tmp_path / "sweep", [SETTINGS | point])
    run = RunDir(tmp_path / "sweep" / answer["trials"][0]["run_dirs"][0])
    assert not any(path.exists() for path in (run.checkpoint, run.sentence_weight))
    assert run.model.exists()
    assert run.ledger.exists()
    before = content(run.root)
    again = train(
        run.load_config(), run.root, workers=0, resume=True, part_of="sweep", tokens=SweepDir(tmp_path / "sweep").tokens
    )
    assert again["rounds"] == 2
    assert content(run.root) == before, "a resumed search trains nothing again"
    assert export(tmp_path / "sweep", tmp_path / "out")["epsilon"] == answer["best"]["epsilon_with_choice"]


def test_what_was_cut_off_keeps_its_checkpoint_and_what_was_stopped_loses_it(corpora, tmp_path):
    config = sweep_config(corpora, tmp_path)
    folder, names = SweepDir(tmp_path / "sweep"), {}
    search_here(config, folder.root, [SETTINGS])
    for number in (1, 2, 3):
        shutil.copytree(folder.runs(0)[0], run := folder.runs(number)[0])
        for name in ("result.json", "model/model.safetensors"):
            (run / name).unlink()
        (run / "checkpoint").mkdir()
        for name in ("state.json", "round-000002.safetensors", "round-2-of-mine.safetensors"):
            (run / "checkpoint" / name).write_text("")
    finalize_here(config, folder.root, [SETTINGS] * 4, stopped=[1], running=[2], failed=[3])
    for number in (1, 2, 3):
        names[number] = sorted(file.name for file in (folder.runs(number)[0] / "checkpoint").iterdir())
    assert names[1] == ["round-2-of-mine.safetensors"], "what is not ours stays"
    assert len(names[2]) == len(names[3]) == 3, "of a trial that failed it may be all that there is"

"""On Ray Train: as many workers as one likes give the model of one process; a killed worker costs charges, not the run."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
import threading
import time

import psutil
import pytest
import torch

from tests.told import Told
from tests.training.runs import events, parameters, run_config
from uedp_ray.errors import InputError
from uedp_ray.privacy.events import epsilon_of_events
from uedp_ray.privacy.ledger import read_ledger
from uedp_ray.training import host, session
from uedp_ray.training.host import train

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("local_ray")]


def test_three_workers_give_the_model_of_one_process(fixed, uninterrupted, tmp_path):
    out, expected = uninterrupted
    rows = []
    result = train(fixed, tmp_path / "run", workers=3, reporter=Told(round=rows.append))
    assert len(list((tmp_path / "run" / "private").glob("diagnostics-*.json"))) == 3, "all of them took part"
    mine, theirs = parameters(tmp_path / "run").double(), parameters(out).double()
    assert float((mine - theirs).norm() / theirs.norm()) < 1e-5
    assert result["perplexity"] == pytest.approx(expected["perplexity"], rel=1e-5)
    strip = [
        [{k: e[k] for k in ("round", "attempt", "mechanism")} for e in events(run)] for run in (out, tmp_path / "run")
    ]
    assert strip[0] == strip[1]
    assert {path.name for path in (tmp_path / "run").iterdir()} == {path.name for path in out.iterdir()}
    assert not (tmp_path / "run" / "private" / "ray").exists()
    assert rows[-1]["round"] == 5


def kill_a_worker(out, *, after_round):
    """SIGKILL to one of this cluster's training workers once ``after_round`` rounds are charged; returns its pid."""
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        if (out / "ledger.jsonl").exists() and len(events(out)) >= after_round:
            for process in psutil.Process().children(recursive=True):
                if "RayTrainWorker" in " ".join(process.cmdline()):
                    os.kill(process.pid, signal.SIGKILL)
                    return process.pid
        time.sleep(0.01)
    return None


def test_a_killed_worker_is_replaced_and_its_rounds_are_charged_again(corpora, tmp_path):
    training = {"num_rounds": 150, "checkpoint_every": 60, "evaluate_every": 100, "device": "cpu"}
    config, out, killed = run_config(corpora, training=training), tmp_path / "run", []
    thread = threading.Thread(target=lambda: killed.append(kill_a_worker(out, after_round=20)))
    thread.start()
    result = train(config, out, workers=2)
    thread.join()
    assert killed != [None]
    charged = [(e["round"], e["attempt"]) for e in events(out)]
    assert len(charged) == len(set(charged)) == 150, "as many as were planned"
    assert 60 <= result["rounds"] < 150
    assert {t for t, _ in charged} == set(range(result["rounds"]))
    assert {attempt for _, attempt in charged} == {0, 1}
    ledger = read_ledger(out / "ledger.jsonl")
    assert result["epsilon"]["user"] == pytest.approx(epsilon_of_events(ledger, delta=1e-4, unit="user"), rel=1e-12)
    assert "repeated after a crash" in (out / "privacy.md").read_text()
    assert torch.isfinite(parameters(out)).all()


def test_memory_that_runs_out_is_charged_once_and_not_tried_again(corpora, tmp_path, monkeypatch):
    config, out, worker = run_config(corpora, training={"checkpoint_every": 1}), tmp_path / "run", host._ray_worker

    def exhausted(settings):  # in the worker's process, where it goes by value
        from uedp_ray.training.driver import RunDriver

        release = RunDriver.release

        def fail(driver, total, round_index, *more):
            if round_index == 3:
                raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 30.00 GiB")
            return release(driver, total, round_index, *more)

        RunDriver.release = fail
        worker(settings)

    monkeypatch.setattr(host, "_ray_worker", exhausted)
    with pytest.raises(InputError, match=r"training\.batch_tokens = 4096: the GPU ran out of memory: lower it"):
        train(config, out, workers=1)
    assert len(events(out)) <= 4
    assert not [path.name for path in (out / "private").iterdir() if path.name.startswith(("ray", "group", "error"))]


SESSION = """
import os, ray, uedp_ray.training.session as session
opened, init = [], ray.init
ray.init = lambda **settings: opened.append(init(**settings)) or opened[-1]
with session.ray_session(1):
    number = ray.remote(lambda: os.getpid()).options(runtime_env={"env_vars": {"NEW": "1"}})
    ray.get(number.remote())  # a worker that starts opens its session to everybody
    folder = opened[0].address_info["session_dir"]
    own = session.own_folder()
    modes = oct(os.stat(own).st_mode & 0o777), str(own.resolve()) in os.path.realpath(folder)
print(*modes)
"""


def test_what_ray_keeps_of_a_session_of_ours_is_the_owners():
    """The names of logs tell how many trials ran, which may be secret."""
    done = subprocess.run([sys.executable, "-c", SESSION], capture_output=True, text=True)
    assert done.stdout.split() == ["0o700", "True"], done.stderr


def test_a_folder_for_sessions_that_is_somebody_elses_is_refused(tmp_path, monkeypatch):
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    assert session.own_folder() == tmp_path / f"uedp_ray-{os.getuid()}"
    session.own_folder().chmod(0o777)
    assert stat.S_IMODE(session.own_folder().stat().st_mode) == 0o700, "the second start of many"
    session.own_folder().rmdir()
    (tmp_path / f"uedp_ray-{os.getuid()}").symlink_to("/tmp")
    with pytest.raises(InputError, match="belongs to somebody else"):
        session.own_folder()


def test_ctrl_c_is_an_exception_and_the_run_resumes(corpora, tmp_path):
    training = {"num_rounds": 150, "checkpoint_every": 5, "device": "cpu"}
    config, sent, handler = run_config(corpora, training=training), [], signal.getsignal(signal.SIGINT)

    def interrupt(row):
        if row["round"] >= 10 and not sent:
            sent.append(os.kill(os.getpid(), signal.SIGINT))

    with pytest.raises(KeyboardInterrupt):
        train(config, tmp_path / "run", workers=1, reporter=Told(round=interrupt))
    assert signal.getsignal(signal.SIGINT) is handler
    assert len(events(tmp_path / "run")) < 150
    assert train(config, tmp_path / "run", workers=0, resume=True)["rounds"] >= 140

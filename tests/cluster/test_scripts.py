"""The scripts start real Ray nodes on this machine, keep strangers out, pass signals on, and leave nothing running."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path

import psutil
import pytest

from tests.cluster.test_files import CLUSTER, parse

pytestmark = pytest.mark.slow

PREFLIGHT = """
import sys, ray
from pathlib import Path
from uedp_ray.search.preflight import check_cluster
ray.init(log_to_driver=False, logging_level="error")
report = check_cluster(workers_per_trial=2, cpus_per_worker=1, gpus_per_worker=0, storage=Path(sys.argv[1]))
print(report.nodes, report.trials_at_once, len({node["NodeManagerAddress"] for node in ray.nodes()}))
"""
SRUN = """#!/usr/bin/env bash
# Every task of the step on this machine, each told its node; a signal reaches all of them, as srun does it.
while [[ $1 == --* ]]; do shift; done
trap 'kill $(jobs -p)' TERM
for ((node = 0; node < SLURM_JOB_NUM_NODES; node++)); do SLURM_NODEID=$node "$@" & done
wait
wait
"""
SWEEP = f"""#!{sys.executable}
import json, os, sys, time
from pathlib import Path
import ray
words = sys.argv[1:]
ray.init(address=words[words.index("--address") + 1], log_to_driver=False, logging_level="error")
found = {{"words": words, "nodes": sum(node["Alive"] for node in ray.nodes())}}
found["token"] = os.environ["RAY_AUTH_MODE"] == "token" and len(os.environ["RAY_AUTH_TOKEN"])
Path(words[words.index("--out") + 1], "seen.json").write_text(json.dumps(found))
try:
    time.sleep(120)
except KeyboardInterrupt:
    sys.exit(130)
"""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("", 0))
        return probe.getsockname()[1]


def running(text: str) -> list[psutil.Process]:
    """Processes with ``text`` in their command line."""
    found = []
    for process in psutil.process_iter(["cmdline"]):
        if text in " ".join(process.info["cmdline"] or []):
            found.append(process)
    return found


@pytest.fixture
def environment() -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("RAY_", "SLURM_"))}
    return {**kept, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{kept['PATH']}", "RAY_USAGE_STATS_ENABLED": "0"}


def test_local_nodes_start_keep_strangers_out_die_and_stop(environment, tmp_path):
    with tempfile.TemporaryDirectory(dir="/tmp", prefix="u") as short:  # socket paths have a limit
        state, dashboard = Path(short, "s"), free_port()
        environment |= {"STATE": str(state), "PORT": str(free_port()), "DASHBOARD_PORT": str(dashboard)}
        environment["COLUMNS"] = "20"  # of a narrow terminal, to which ps cuts its lines

        def local(*words):
            return subprocess.run(
                [CLUSTER / "local.sh", *words], env=environment, capture_output=True, text=True, timeout=120
            )

        try:
            started = local("start", "2")
            assert started.returncode == 0, started.stderr
            assert local("start", "2").returncode != 0, "one cluster at a time"
            exports = dict(re.findall(r"(RAY_\w+)=(\S+)", started.stdout))
            assert Path(exports["RAY_AUTH_TOKEN_PATH"]).stat().st_mode & 0o77 == 0
            checked = subprocess.run(
                [sys.executable, "-c", PREFLIGHT, str(tmp_path)],
                env={**environment, **exports},
                capture_output=True,
                text=True,
                timeout=120,
            )
            assert checked.stdout.split() == ["2", "1", "2"], checked.stderr
            with pytest.raises(urllib.error.HTTPError) as refused:
                urllib.request.urlopen(f"http://127.0.0.2:{dashboard}/api/jobs/", timeout=30)
            assert refused.value.code in (401, 403)
            assert running(f"{state}/2")
            local("kill", "2")
            psutil.wait_procs(running(f"{state}/2"), timeout=10)
            assert not running(f"{state}/2")
            assert running(f"{state}/1")
        finally:
            stopped = local("stop")
        assert stopped.returncode == 0, stopped.stderr
        assert not running(str(state))
        assert not state.exists()


def test_the_slurm_script_starts_all_nodes_resumes_and_stops_cleanly(environment, tmp_path):
    """With stand-ins for srun, scontrol and the sweep; Ray is real."""
    out, tools, job = tmp_path / "out", tmp_path / "tools", str(os.getpid())
    out.mkdir()
    tools.mkdir()
    (out / "sweep.yaml").write_text("")
    stand_ins = {"srun": SRUN, "uedp-ray": SWEEP, "scontrol": f"#!/bin/sh\necho {socket.gethostname()}\necho other\n"}
    for name, text in stand_ins.items():
        (tools / name).write_text(text)
        (tools / name).chmod(0o755)
    environment |= {"PATH": f"{tools}{os.pathsep}{environment['PATH']}", "SLURM_JOB_NODELIST": "node[1-2]"}
    environment |= {"SLURM_JOB_ID": job, "SLURM_JOB_NUM_NODES": "2", "SLURM_CPUS_PER_TASK": "1"}
    script = subprocess.Popen(["bash", CLUSTER / "slurm.sh", "sweep.yaml", out, "--trials", "3"], env=environment)
    try:
        while not (out / "seen.json").exists() and script.poll() is None:
            time.sleep(0.2)
        seen = json.loads((out / "seen.json").read_text())
        script.send_signal(signal.SIGUSR1)  # what Slurm sends before the time limit
        assert script.wait(timeout=60) == 130
    finally:
        script.kill()
        for process in running(f"/tmp/ray-{job}-"):
            process.kill()
            pytest.fail(f"left behind: {process}")
    assert (seen["nodes"], seen["token"]) == (2, 64)
    options = parse(seen["words"])
    assert (options["resume"], options["trials"], options["out"]) == (True, 3, out)
    assert not list(Path("/tmp").glob(f"ray-{job}-*"))


def test_stop_removes_no_folder_that_start_did_not_make(environment, tmp_path):
    """What ``STATE`` names may be anything: start said to stop what runs there, and stop removed it."""
    (tmp_path / "kept").write_text("mine")
    for word in ("start", "stop"):
        done = subprocess.run(
            [CLUSTER / "local.sh", word],
            env={**environment, "STATE": str(tmp_path)},
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert done.returncode != 0
    assert "nothing is removed" in done.stderr
    assert (tmp_path / "kept").read_text() == "mine"

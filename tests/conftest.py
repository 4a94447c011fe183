"""Shared: a small corpus, a public model, finished runs, a local Ray, nodes. Real data live outside the project.

What a fixture needs it imports itself: tests of one room must not wait for the import of another's libraries.
"""

from __future__ import annotations

import gc
import os
import signal
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import hypothesis
import pytest

from uedp_ray.interrupts import handlers_kept

os.environ.setdefault("OMP_NUM_THREADS", "1")  # tiny tensors: threads cost more than they bring

gc.set_threshold(20_000, 20, 50)  # torch and transformers are half a million objects, and no garbage

os.environ.setdefault("RAY_enable_worker_prestart", "0")  # most tests need fewer workers than there are CPUs

hypothesis.settings.register_profile("untimed", deadline=None)  # a busy machine is no failure
hypothesis.settings.load_profile("untimed")

_LONGEST = (
    *("test_nodes", "test_sync", "test_killed", "test_ray", "test_damage"),
    *("test_mirror", "test_sweep", "test_examples", "test_interrupts", "test_notebooks", "test_gpus", "test_bits"),
)
"""Files of two minutes or more, the longest first."""

signal.signal(signal.SIGHUP, signal.SIG_DFL)  # which nohup ignores, and tests send
signal.signal(signal.SIGINT, signal.default_int_handler)  # which a shell's background jobs ignore
_HANDLERS = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks what works on whole corpora. The longest files come first, then those with many slow tests: the last file that
    begins has one worker, and the others wait for it."""
    for item in items:
        if "corpora" in getattr(item, "fixturenames", ()):
            item.add_marker("whole")
    slow = Counter(item.path for item in items if item.get_closest_marker("slow"))
    minutes = {name: place for place, name in enumerate(_LONGEST)}
    items.sort(key=lambda item: (minutes.get(item.path.stem, len(minutes)), -slow[item.path]))


@pytest.fixture(autouse=True)
def _handlers_are_left_alone() -> Iterator[None]:
    """Whatever ran before or within the test: a handler that Ray leaves behind would swallow a later Ctrl-C."""
    _check_handlers()
    yield
    _check_handlers()


def _check_handlers() -> None:
    found = {number: signal.getsignal(number) for number in _HANDLERS}
    for number, handler in _HANDLERS.items():
        signal.signal(number, handler)
    assert found == _HANDLERS


def _shared(variable: str, folder: str) -> Path:
    return Path(os.environ.get(variable, Path(__file__).parents[2] / "shared" / folder))


@pytest.fixture(params=["cpu", "cuda"])
def device(request: pytest.FixtureRequest) -> str:
    """Each device a worker may compute on; what must hold to the bit must hold on all."""
    if request.param == "cuda":
        import torch

        if not torch.cuda.is_available():
            pytest.skip("no GPU")
        from uedp_ray.updates.base import exact_arithmetic

        exact_arithmetic(torch.device("cuda"))
    return request.param


@pytest.fixture(scope="session")
def real_data() -> Path:
    """The folder of real corpora (``UEDP_DATA``, else ``../shared/data``)."""
    path = _shared("UEDP_DATA", "data")
    if not path.is_dir():
        pytest.skip(f"real corpora are not at {path} (set UEDP_DATA)")
    return path


@pytest.fixture(scope="session")
def real_models() -> Path:
    """The folder of small real models (``UEDP_MODELS``, else ``../shared/models``)."""
    path = _shared("UEDP_MODELS", "models")
    if not path.is_dir():
        pytest.skip(f"real models are not at {path} (set UEDP_MODELS)")
    return path


@pytest.fixture(scope="session")
def corpora(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Prepared ``private`` (30 users) and ``held_out`` (5 users)."""
    from tests.training.runs import NUM_USERS
    from uedp_ray.config import SourceConfig
    from uedp_ray.corpus.prepare import prepare

    folder = tmp_path_factory.mktemp("corpora")
    for part, num_users in (("private", NUM_USERS), ("held_out", 5)):
        source = SourceConfig(format="synthetic", num_users=num_users, part=part)
        prepare(source, folder / part, num_shards=2)
    return folder


@dataclass(frozen=True)
class Done:
    """A finished run: where it is, and what it returned."""

    out: Path
    result: dict[str, Any]


@pytest.fixture(scope="session")
def pretrained(corpora: Path, tmp_path_factory: pytest.TempPathFactory) -> Done:
    from tests.training.runs import run_config
    from uedp_ray.training.pretrain import pretrain

    out = tmp_path_factory.mktemp("pretrained") / "out"
    text = [{"format": "synthetic", "num_users": 60, "part": "public"}]
    config = run_config(corpora, pretrain={"text": text, "num_steps": 40, "batch_size": 16, "learning_rate": 0.02})
    return Done(out, pretrain(config, out))


@pytest.fixture(scope="session")
def private_run(corpora: Path, tmp_path_factory: pytest.TempPathFactory) -> Done:
    """A run with calibrated noise, secret keys and no fault."""
    from tests.training.runs import run_config
    from uedp_ray.training.host import train

    out = tmp_path_factory.mktemp("private_run") / "run"
    return Done(out, train(run_config(corpora), out, workers=0))


@pytest.fixture(scope="module")
def fixed(corpora: Path) -> Any:
    """A config with fixed noise, whose runs can be compared."""
    from tests.training.runs import TEST_NOISE, TREE, run_config

    return run_config(corpora, privacy={**TREE["privacy"], **TEST_NOISE})


@pytest.fixture(scope="module")
def uninterrupted(fixed: Any, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """A run of ``fixed``, to compare others with."""
    from uedp_ray.training.host import train

    out = tmp_path_factory.mktemp("uninterrupted") / "run"
    return out, train(fixed, out, workers=0)


@pytest.fixture
def here(tmp_path: Path) -> Iterator[None]:
    """Trials run in this process: what a sweep says and charges is the same, in a tenth of the time."""
    from tests.crashes.commands import Sweep

    with Sweep(tmp_path / "here").played():
        yield


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    """Makes this process one of another node, with nothing of what others kept: called with a name, or on its own."""

    def become(name: str = "a") -> Path:
        monkeypatch.setenv("UEDP_RAY_WORK", str(tmp_path / "nodes" / name))
        return tmp_path / "nodes" / name

    become()
    return become


@pytest.fixture
def url(tmp_path: Path) -> str:
    """Of a run, in a folder that stands for a bucket."""
    return f"file://{tmp_path}/bucket/run"


@pytest.fixture(scope="module")
def local_ray() -> Iterator[None]:
    """One local cluster of four CPUs for all tests of a file."""
    from tests.clusters import local_cluster

    with local_cluster(num_cpus=4):
        yield


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """Runs ``uedp-ray`` with arguments in this process; returns (exit code, stdout, stderr)."""
    from uedp_ray.cli import main

    def run(*arguments: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["uedp-ray", *map(str, arguments)])
        capsys.readouterr()
        code: Any = 0
        with handlers_kept():
            try:
                main()
            except SystemExit as ended:
                code = ended.code
        return code, *capsys.readouterr()

    return run

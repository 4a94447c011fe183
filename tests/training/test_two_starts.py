"""A folder is one process's at a time: what a second start finds, says and leaves alone."""

from __future__ import annotations

import io
import multiprocessing
import shutil
from concurrent.futures import ProcessPoolExecutor
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import pytest

from tests.crashes.commands import Sweep
from tests.told import Told
from tests.training.runs import TREE, content, run_config
from uedp_ray.config import SourceConfig
from uedp_ray.corpus.prepare import prepare
from uedp_ray.errors import InputError
from uedp_ray.privacy.ledger import Ledger
from uedp_ray.search import shared
from uedp_ray.search import sweep as search
from uedp_ray.search.compare import compare
from uedp_ray.search.comparison import Comparison
from uedp_ray.search.layout import SweepDir
from uedp_ray.storage import base
from uedp_ray.storage.files import make_folder
from uedp_ray.storage.locks import folder_locked
from uedp_ray.training import setup
from uedp_ray.training.driver import RunDriver
from uedp_ray.training.host import train
from uedp_ray.training.pretrain import pretrain
from uedp_ray.training.rundir import RunDir


def _told(start, args, kwargs):
    """In another process: what the error, or the terminal, says."""
    base._FOLDER_WAIT = 0.0
    with redirect_stderr(io.StringIO()) as screen, redirect_stdout(io.StringIO()):
        try:
            start(*args, **kwargs)
        except InputError as error:
            return str(error)
    return screen.getvalue()


@pytest.fixture(scope="module")
def refused():
    """refused(start, …): a start in another process ends, and says that the folder is somebody's."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.training.runs", "uedp_ray.search.sweep", "uedp_ray.search.compare"])
    with ProcessPoolExecutor(1, mp_context=context) as pool:

        def start(start, *args, **kwargs):
            told = pool.submit(_told, start, args, kwargs).result(120)
            assert "another process is at work in this folder" in told

        yield start


@pytest.mark.parametrize("rounds", [5, 9], ids=["same config", "another"])
def test_a_live_run_is_not_touched_by_another_start_at_any_time(corpora, tmp_path, monkeypatch, refused, rounds):
    out, met = tmp_path / "run", []
    other = run_config(corpora, training={**TREE["training"], "num_rounds": rounds})

    def start_again(moment):
        before = content(out)
        for resume in (False, True):
            refused(train, other, out, workers=0, resume=resume)
        assert content(out) == before
        met.append(moment)

    def before(where, name):
        original = getattr(where, name)

        def called(*args, **kwargs):
            if name not in met:
                start_again(name)
            return original(*args, **kwargs)

        monkeypatch.setattr(where, name, called)

    before(setup, "claim")
    before(Ledger, "append")
    before(RunDriver, "finish")
    result = train(
        run_config(corpora),
        out,
        workers=0,
        reporter=Told(say=start_again, evaluated=lambda row: start_again(f"round {row['round']}")),
    )
    assert result["rounds"] == 5
    assert met[:3] == ["solving the noise multiplier", "claim", "reading the corpus"]
    assert [moment for moment in met[3:] if "%" not in moment and not moment.startswith("caution: ")] == [
        *("building the vocabulary", "tokenising"),
        "testing the network on made-up sentences of up to 12 tokens (model.max_length)",
        *("round 0", "append", "round 2", "round 4", "round 5", "finish"),
    ], "with a ledger that holds its first line only, and so on"
    assert [path.name for path in tmp_path.iterdir()] == ["run"], "the lock is gone"


def test_two_starts_of_pretrain_prepare_and_compare(corpora, tmp_path, refused):
    text = [{"format": "synthetic", "num_users": 8, "part": "public"}]
    config = run_config(corpora, pretrain={"text": text, "num_steps": 2, "batch_size": 4}, training={"num_rounds": 1})
    another = run_config(corpora, pretrain={"text": text, "num_steps": 3}, training={"num_rounds": 2})
    sources = [SourceConfig(format="synthetic", num_users=number) for number in (9, 10)]
    comparisons = [Comparison(base, {"with": ("uedp", {})}) for base in (config, another)]
    met = set()
    starts = {
        "pretrained": (pretrain, (config, another), {}, "step"),
        "prepared": (prepare, sources, {}, "prepared"),
        "compared": (compare, comparisons, {"workers": 0, "resume": True}, "say"),
    }
    for name, (start, asked, kwargs, observer) in starts.items():

        def again(*_, name=name, start=start, asked=asked, kwargs=kwargs):
            before = content(tmp_path)
            for what in asked:
                refused(start, what, tmp_path / name, **kwargs)
            assert content(tmp_path) == before
            met.add(name)

        start(asked[0], tmp_path / name, **kwargs, reporter=Told(**{observer: again}))
    assert met == set(starts)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(starts)


@pytest.mark.slow
def test_a_sweep_that_is_running_is_not_run_twice(tmp_path, monkeypatch, refused):
    command, met = Sweep(tmp_path), []
    command.set_up()

    def before(name):
        where = shared if name == "prepared" else search
        original = getattr(where, name)

        def called(*args, **kwargs):
            files = content(command.work)
            for start in (command.call, command.call_other):
                refused(start)
            assert content(command.work) == files
            met.append(name)
            return original(*args, **kwargs)

        monkeypatch.setattr(where, name, called)

    for name in ("fix_terms", "announced", "prepared", "_search", "finalize"):
        before(name)
    assert command.call() == 0
    assert met == ["fix_terms", "announced", "_search", "prepared", "finalize"]


def test_nor_by_one_who_does_not_see_the_lock_beside_it(tmp_path, monkeypatch, capsys):
    command = Sweep(tmp_path)
    command.set_up()
    monkeypatch.setattr("uedp_ray.search.layout._WAIT", 0.0)
    make_folder(command.out / "private", private=True)
    with SweepDir(command.out).driving():
        assert command.call() == 2
    assert "another process is searching here" in capsys.readouterr().err
    assert [path.name for path in command.out.rglob("*")] == ["private"]
    assert command.call() == 0


@pytest.mark.parametrize("why", ["a volume", "read-only"])
def test_where_nothing_can_be_made_beside_it_a_folder_is_locked_inside(tmp_path, monkeypatch, why):
    """Beside a volume is each container's own disk: another container would not see it."""
    (folder := tmp_path / "mounted").mkdir()
    if why == "a volume":
        monkeypatch.setattr("os.path.ismount", lambda path: Path(path) == folder)
    else:
        monkeypatch.setattr("os.access", lambda path, how: Path(path) != tmp_path)
    busy = InputError("--out", "mounted", "busy")
    with folder_locked(folder, wait=0, busy=busy):
        assert [path.name for path in folder.iterdir()] == [".lock"]
        with pytest.raises(InputError, match="busy"), folder_locked(folder, wait=0, busy=busy):
            pass
    assert not list(folder.iterdir())
    assert [path.name for path in tmp_path.iterdir()] == ["mounted"]


def test_a_line_that_a_killed_start_is_still_writing_is_not_cut_off(private_run, corpora, tmp_path, monkeypatch):
    shutil.copytree(private_run.out, tmp_path / "run")
    ledger = tmp_path / "run" / "ledger.jsonl"
    ledger.write_bytes(ledger.read_bytes() + b'{"half a li')
    before = ledger.read_bytes()
    monkeypatch.setattr("uedp_ray.training.rundir.DRIVER_WAIT", 0.0)
    with RunDir(tmp_path / "run").driving(), pytest.raises(InputError, match="another process is training this run"):
        train(run_config(corpora), tmp_path / "run", workers=0, resume=True)
    assert ledger.read_bytes() == before


def test_a_folder_of_the_name_of_the_lock_is_told(tmp_path):
    (tmp_path / ".run.lock").mkdir()
    held = folder_locked(tmp_path / "run", wait=0, busy=InputError("", "", "busy"))
    with pytest.raises(InputError, match="is a folder where the lock file belongs: rename"), held:
        pass


def test_a_second_start_that_does_not_see_the_lock_beside_it_touches_nothing(private_run, corpora, monkeypatch):
    monkeypatch.setattr("uedp_ray.training.rundir.DRIVER_WAIT", 0.0)
    run = RunDir(private_run.out)
    (writing := run.root / ".rounds.parquet.uedp_ray.new").write_text("half")
    with run.driving():
        before = content(run.root)
        with pytest.raises(InputError, match="another process is training this run"):
            train(run_config(corpora), run.root, workers=0, resume=True)
        assert content(run.root) == before
    writing.unlink()

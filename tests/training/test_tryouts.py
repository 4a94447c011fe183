"""What a try-out found is shared by processes of one machine that would find the same, and by no others."""

from __future__ import annotations

import dataclasses
import errno
import functools
import json
import stat
from types import SimpleNamespace

import pytest
import torch

from tests.updates.worker import Worker, make, sentences
from uedp_ray.errors import InputError
from uedp_ray.training import machine, tryouts
from uedp_ray.training.tryouts import kept_in
from uedp_ray.updates import gradient


@pytest.fixture
def tried(monkeypatch):
    """Lengths tried out so far; each look is that of a new process."""
    found, of = [], gradient.agreeing_rows
    monkeypatch.setattr(
        gradient,
        "agreeing_rows",
        lambda run, params, model, length, *a, **b: [found.append(length)] and of(run, params, model, length, *a, **b),
    )
    return found


def probed(folder, config=None, network=lambda model: None):
    """The rows that a new process uses."""
    gradient._PROBED.clear()
    worker = Worker(config or make("gpt2 lora"), sentences())
    network(worker.model)
    with kept_in(folder):
        update = worker.update()
        update.probe()
    return update._rows


def test_another_process_finds_what_the_first_found(tmp_path, tried):
    folder = tmp_path / "private" / "tryouts"
    rows = probed(folder)
    assert len(tried) == len(rows)
    assert probed(folder) == rows
    assert len(tried) == len(rows)
    (file,) = folder.iterdir()
    assert [stat.S_IMODE(path.stat().st_mode) for path in (file, folder)] == [0o600, 0o700]
    gradient._PROBED.clear()
    Worker(make("gpt2 lora"), sentences()).update().probe()
    assert len(tried) == 2 * len(rows), "kept for those who ask for it"


def other_environment(monkeypatch):
    monkeypatch.setenv("MKL_CBWR", "COMPATIBLE")


def other_start(monkeypatch):
    read = tryouts._BOOT.read_text()
    monkeypatch.setattr(tryouts, "_BOOT", SimpleNamespace(is_file=lambda: True, read_text=lambda: read[::-1]))


def other_cores(monkeypatch):
    monkeypatch.setattr(machine, "cores", lambda: ["flags : fpu"])


def other_version(monkeypatch):
    monkeypatch.setattr(machine.metadata, "version", lambda name: "0")


def other_source(monkeypatch):
    monkeypatch.setattr(machine, "_source", lambda: "0")


def other_kernels(monkeypatch):
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: False)


def other_threads(monkeypatch):
    monkeypatch.setattr(torch.__config__, "parallel_info", lambda: "5 threads")


def other_products(monkeypatch):
    monkeypatch.setattr(torch, "get_float32_matmul_precision", lambda: "medium")


CHANGES = (
    *(other_environment, other_start, other_cores, other_version, other_source, other_kernels, other_threads),
    other_products,
)


@pytest.mark.parametrize("change", CHANGES)
def test_a_machine_or_version_that_differs_tries_out_anew(tmp_path, tried, monkeypatch, change):
    rows = probed(tmp_path)
    change(monkeypatch)
    probed(tmp_path)
    assert len(tried) == 2 * len(rows)
    assert len(list(tmp_path.iterdir())) == 2


def test_so_do_other_settings_and_another_vocabulary(tmp_path, tried, monkeypatch):
    config = make("gpt2 lora")
    rows = probed(tmp_path, config)
    others = [
        make("gpt2"),
        dataclasses.replace(config, model=dataclasses.replace(config.model, lora_rank=3)),
        dataclasses.replace(config, training=dataclasses.replace(config.training, batch_tokens=256)),
        dataclasses.replace(config, training=dataclasses.replace(config.training, precision="bf16")),
        make("gpt2 lora", test_noise_seed=0),
    ]
    for other in others:
        probed(tmp_path, other)
    monkeypatch.setattr("tests.updates.worker.VOCABULARY", 41)
    probed(tmp_path, config)
    assert len(list(tmp_path.iterdir())) == 2 + len(others)
    assert len(tried) >= (2 + len(others)) * len(rows)


class Own(torch.nn.Identity):
    """Code that no version names."""


def test_nothing_is_kept_of_code_that_is_not_known_nor_on_a_gpu(tmp_path, tried, monkeypatch):
    def hooked(model):
        next(model.children()).register_forward_hook(lambda module, args, output: output)

    def patched(model):
        model.forward = model.forward

    def foreign(model):
        model.add_module("own", Own())

    def called(model):
        next(model.children()).own = len  # not of torch, though compiled

    for change in (hooked, patched, foreign, called):
        probed(tmp_path, network=change)
    update = Worker(make("gpt2 lora"), sentences()).update()
    assert tryouts._named(update, "") is not None
    monkeypatch.setattr(update, "device", torch.device("cuda"))
    assert tryouts._named(update, "") is None
    assert not list(tmp_path.iterdir())


def test_a_function_of_torch_is_known_by_its_name_and_settings(tmp_path, tried):
    """As encoders of transformers hold their activation."""
    gelu, tanh = torch.nn.functional.gelu, functools.partial(torch.nn.functional.gelu, approximate="tanh")
    for function in (gelu, tanh, gelu):
        probed(tmp_path, network=lambda model, f=function: setattr(next(model.children()), "own", f))
    assert len(list(tmp_path.iterdir())) == 2


@pytest.mark.parametrize("damage", ["cut", "other rows", "other lengths", "no rows", "more rows"])
def test_a_damaged_file_is_not_believed(tmp_path, tried, damage):
    rows = probed(tmp_path)
    (file,) = tmp_path.iterdir()
    found = json.loads(file.read_text())["found"]
    written = {
        "cut": file.read_text()[:-9],
        "other rows": json.dumps({"found": [each | {"rows": [3]} for each in found]}),
        "other lengths": json.dumps({"found": found[1:]}),
        "no rows": json.dumps({"found": [each | {"rows": []} for each in found]}),
        "more rows": json.dumps({"found": [each | {"rows": [128, *each["rows"]]} for each in found]}),
    }
    file.write_text(written[damage])
    assert probed(tmp_path) == rows
    assert len(tried) == 2 * len(rows)
    assert json.loads(file.read_text())["found"] == found


def test_a_process_does_not_wait_for_ever_for_another(tmp_path, tried, monkeypatch):
    monkeypatch.setattr(tryouts, "_WAIT", 0.0)
    rows = probed(tmp_path)
    (file,) = tmp_path.iterdir()
    file.unlink()
    with tryouts.locked(tryouts.lock_beside(file), wait=0, busy=tryouts.InputError("", None, "")):
        assert probed(tmp_path) == rows
    assert not file.exists()
    assert len(tried) == 2 * len(rows)


def a_link(folder, name):
    (folder.parent / "elsewhere").mkdir()
    folder.symlink_to(folder.parent / "elsewhere")


def a_file(folder, name):
    folder.write_text("")


def a_folder_for_the_file(folder, name):
    (folder / name).mkdir(parents=True)


@pytest.mark.parametrize("broken", [a_link, a_file, a_folder_for_the_file, "write_json", "make_folder", "locked"])
def test_nothing_but_time_is_lost_where_nothing_can_be_kept(tmp_path, tried, monkeypatch, broken):
    """A disk that was read-only for a moment failed every trial of a search for good."""
    rows = probed(tmp_path / "first")
    (name,) = (path.name for path in (tmp_path / "first").iterdir())
    folder = tmp_path / "tryouts"
    if isinstance(broken, str):

        def fails(*given, **how):
            raise OSError(errno.EROFS, "Read-only file system", "/private/tryouts")

        monkeypatch.setattr(tryouts, broken, fails)
    else:
        broken(folder, name)
    tried.clear()
    assert probed(folder) == rows
    assert len(tried) == len(rows)


def test_what_a_try_out_finds_wrong_is_told(tmp_path, monkeypatch):
    def unsteady(*given, **how):
        raise InputError("training.device", "cpu", "a sentence's gradient is not the same in each pass")

    monkeypatch.setattr(gradient, "agreeing_rows", unsteady)
    with pytest.raises(InputError, match="not the same in each pass"):
        probed(tmp_path / "tryouts")

"""A storage that fails now and then: its errors are told as such, and what it left out is never taken for absent."""

from __future__ import annotations

import re

import pytest
from fsspec import register_implementation
from fsspec.implementations.memory import MemoryFileSystem

from tests.training.runs import crash, run_config
from tests.training.urls import charged
from uedp_ray.errors import InputError
from uedp_ray.training import _objects
from uedp_ray.training._objects import Objects
from uedp_ray.training.host import train
from uedp_ray.training.rundir import RunDir
from uedp_ray.training.storage import StorageError

pytestmark = pytest.mark.usefixtures("node")


class Unsteady(MemoryFileSystem):
    """Requests about a path fail while ``broken`` matches it, at most ``times``. ``find`` is fsspec's own."""

    protocol = "unsteady"
    cachable = False
    store, pseudo_dirs = {}, [""]
    broken, times = None, 0

    @classmethod
    def _strip_protocol(cls, path):
        return MemoryFileSystem._strip_protocol(str(path).removeprefix("unsteady://"))

    @classmethod
    def fail(cls, path):
        if cls.broken and cls.times and re.search(cls.broken, path):
            cls.times -= 1
            raise OSError(110, "Connection timed out")

    find = MemoryFileSystem.__mro__[1].find

    def ls(self, path, detail=True, **kwargs):
        self.fail(path)
        return super().ls(path, detail=detail, **kwargs)

    def info(self, path, **kwargs):
        self.fail(path)
        return super().info(path, **kwargs)

    def _open(self, path, *args, **kwargs):
        self.fail(path)
        return super()._open(path, *args, **kwargs)


@pytest.fixture
def unsteady(monkeypatch):
    monkeypatch.setattr(_objects, "_WAITS", ())
    monkeypatch.setattr(Unsteady, "store", {})
    monkeypatch.setattr(Unsteady, "pseudo_dirs", [""])
    register_implementation("unsteady", Unsteady, clobber=True)

    def fail(path, times=1):
        monkeypatch.setattr(Unsteady, "broken", path)
        monkeypatch.setattr(Unsteady, "times", times)

    return fail


URL = "unsteady://bucket/run"


def filled():
    objects = Objects(URL)
    for key in ("private/owners/1", "private/1/ledger.jsonl/0-1", "private/2/ledger.jsonl/0-2", "config.yaml"):
        objects.write(key, key.encode())
    return objects


@pytest.mark.parametrize("folder", ["run$", "private$", "owners$", "/2$", "2/ledger.jsonl$"])
def test_a_listing_is_whole_or_an_error(unsteady, folder):
    objects = filled()
    whole = objects.list()
    assert list(whole) == sorted(key.removeprefix("/bucket/run/") for key in Unsteady.store)
    unsteady(folder)
    with pytest.raises(StorageError, match=r"cannot list it: .*Connection timed out"):
        objects.list()
    assert objects.list() == whole


@pytest.mark.parametrize("times", [1, 2, 3])
def test_what_cannot_be_looked_up_is_not_taken_for_absent(unsteady, times):
    objects = filled()
    for path, ask in (
        ("run$", objects.is_empty),
        ("yaml$", lambda: objects.kind("config.yaml")),
        ("yaml$", lambda: objects.read("config.yaml")),
    ):
        unsteady(path, times)
        with pytest.raises(StorageError, match="Connection timed out"):
            ask()
        unsteady(None)
    assert (objects.is_empty(), objects.kind("config.yaml"), objects.read("config.yaml")) == (
        False,
        "file",
        b"config.yaml",
    )


def test_what_is_not_there_is_no_error_of_the_storage(unsteady):
    objects = filled()
    assert objects.list("nothing") == {}
    assert Objects("unsteady://bucket/other").is_empty()
    assert objects.kind("nothing") is None
    objects.delete("config.yaml")
    objects.delete("config.yaml")  # as one that is tried again does
    assert objects.kind("config.yaml") is None


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ({"name": "/bucket/run/private/x", "type": "file", "size": None}, "without its size"),
        ({"name": "/elsewhere/x", "type": "file", "size": 1}, "is listed in"),
        ({"name": "/bucket/run/private", "type": "file", "size": 1}, "is a file"),
    ],
)
def test_a_listing_that_cannot_be_understood_is_an_error(unsteady, monkeypatch, entry, message):
    monkeypatch.setattr(Unsteady, "ls", lambda self, path, **kwargs: [entry])
    with pytest.raises(StorageError, match=message):
        Objects(URL).list("private")


def test_markers_of_a_folder_are_not_in_it(unsteady, monkeypatch):
    markers = [
        {"name": f"bucket/run/private{end}", "type": kind, "size": 0}
        for end, kind in (("/", "file"), ("", "directory"))
    ]
    monkeypatch.setattr(Unsteady, "ls", lambda self, path, **kwargs: markers)
    assert Objects(URL).list("private") == {}


def test_pyarrow_opens_no_file_system_of_fsspec_that_remembers_listings(unsteady):
    for url in ("fsspec+unsteady://bucket/run", URL):
        assert isinstance(Objects(url)._fs.handler, _objects._Handler)


def test_a_read_that_ends_early_is_an_error(unsteady):
    objects = filled()
    assert objects.read("config.yaml", 11) == b"config.yaml"
    with pytest.raises(StorageError, match="11 of 12 bytes came"):
        objects.read("config.yaml", 12)


@pytest.mark.parametrize("waits", [(), (0.0,)], ids=["for good", "once"])
def test_a_ledger_is_not_overlooked_where_a_listing_fails(corpora, unsteady, monkeypatch, waits):
    """An older ledger in its place would let a round out again on the same sample, for nothing."""
    config, own = run_config(corpora), RunDir.own
    crash(config, URL, charges=2)
    crash(config, URL, charges=2, resume=True)
    before = charged(URL)
    assert before == [(0, 0), (1, 0), (0, 1), (1, 1)]
    monkeypatch.setattr(_objects, "_WAITS", waits)

    def failing(self):
        take = self.storage.take_over

        def took():
            take()
            unsteady("/private/000002-.*/ledger.jsonl$")

        monkeypatch.setattr(self.storage, "take_over", took)
        own(self)

    monkeypatch.setattr(RunDir, "own", failing)
    if not waits:
        with pytest.raises(StorageError, match=r"cannot list private: .*Connection timed out"):
            train(config, URL, workers=0, resume=True)
        assert charged(URL) == before
        monkeypatch.setattr(RunDir, "own", own)
    train(config, URL, workers=0, resume=True)
    assert charged(URL)[: len(before) + 1] == [*before, (0, 2)]


@pytest.mark.parametrize("path", ["owners$", "private$", r"000001-\w+$", "ledger.jsonl$"])
def test_a_passing_error_is_told_as_one_of_the_storage(corpora, unsteady, path):
    """Not as a run that is gone, taken over or of others: what the user would do then has another one trained for free."""
    config = run_config(corpora)
    crash(config, URL, charges=2)
    told = r"(cannot (list|look up|read) .*Connection timed out)"
    unsteady(path)
    with pytest.raises((StorageError, InputError), match=told):
        train(config, URL, workers=0, resume=True)

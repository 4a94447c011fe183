"""A storage that fails now and then: its errors are told as such, and what it left out is never taken for absent."""

from __future__ import annotations

import re

import pytest
from fsspec import register_implementation
from fsspec.implementations.memory import MemoryFileSystem

from tests.storage.urls import charged
from tests.training.runs import crash, run_config
from uedp_ray.errors import InputError
from uedp_ray.storage import objects
from uedp_ray.storage.base import StorageError
from uedp_ray.storage.mirror import OWNERS, Mirror
from uedp_ray.storage.objects import Objects
from uedp_ray.training.host import train
from uedp_ray.training.rundir import RunDir

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
    monkeypatch.setattr(objects, "_WAITS", ())
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
        assert isinstance(Objects(url)._fs.handler, objects._Handler)


def test_a_read_that_ends_early_is_an_error(unsteady):
    objects = filled()
    assert objects.read("config.yaml", 11) == b"config.yaml"
    with pytest.raises(StorageError, match="got 11 of 12 bytes"):
        objects.read("config.yaml", 12)


@pytest.mark.parametrize("waits", [(), (0.0,)], ids=["for good", "once"])
def test_a_ledger_is_not_overlooked_where_a_listing_fails(corpora, unsteady, monkeypatch, waits):
    """An older ledger in its place would let a round out again on the same sample, for nothing."""
    config, own = run_config(corpora), RunDir.own
    crash(config, URL, charges=2)
    crash(config, URL, charges=2, resume=True)
    before = charged(URL)
    assert before == [(0, 0), (1, 0), (0, 1), (1, 1)]
    monkeypatch.setattr(objects, "_WAITS", waits)

    def failing(self):
        take = self.storage.acquire

        def took():
            take()
            unsteady("/private/000002-.*/ledger.jsonl$")

        monkeypatch.setattr(self.storage, "acquire", took)
        own(self)

    monkeypatch.setattr(RunDir, "own", failing)
    if not waits:
        with pytest.raises(StorageError, match=r"cannot list private: .*Connection timed out"):
            train(config, URL, workers=0, resume=True)
        assert charged(URL) == before
        monkeypatch.setattr(RunDir, "own", own)
    train(config, URL, workers=0, resume=True)
    assert charged(URL)[: len(before) + 1] == [*before, (0, 2)]


def append(mirror, line):
    path = mirror.root / "ledger.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        file.write(line)
    mirror.append(path)


def starts(url, tmp_path, count):
    """That many starts, each of which appends a line; the last is handed back."""
    for number in range(count):
        mirror = Mirror(url, tmp_path / str(number))
        mirror.acquire()
        mirror.restore(mirror.root / "ledger.jsonl")
        append(mirror, f"{number}\n")
    return mirror


def leaving_out(monkeypatch, pattern):
    """As file systems do that answer a failed request with nothing, with or without a word of the folder."""
    original = Objects.list

    def short(self, folder=""):
        return {key: size for key, size in original(self, folder).items() if not re.search(pattern, key)}

    monkeypatch.setattr(Objects, "list", short)


@pytest.mark.parametrize("left_out", [r"private/000003-.*/", r"private/0"])
@pytest.mark.parametrize("owned", [True, False])
def test_a_start_on_record_whose_ledger_is_not_listed_is_an_error(url, tmp_path, monkeypatch, left_out, owned):
    starts(url, tmp_path, 3)
    late = Mirror(url, tmp_path / "late")
    path = late.root / "ledger.jsonl"
    if owned:
        late.acquire()
    with monkeypatch.context() as patch:
        leaving_out(patch, left_out)
        with pytest.raises(
            StorageError, match=r"does not list private/000003-.*/ledger.jsonl/, which was written: run"
        ):
            late.restore(path)
    assert late.restore(path).startswith("000003-")
    assert path.read_text() == "0\n1\n2\n"


def test_a_start_that_wrote_no_ledger_is_passed_over(url, tmp_path, monkeypatch):
    starts(url, tmp_path, 1)
    Mirror(url, tmp_path / "claimed").acquire()
    failed = Mirror(url, tmp_path / "failed")
    failed.acquire()
    failed.restore(failed.root / "ledger.jsonl")
    with monkeypatch.context() as patch:
        patch.setattr(objects, "_WAITS", ())
        patch.setattr(Objects, "write", lambda self, key, content: self._tried("write", key, lambda: 1 / 0))
        with pytest.raises(StorageError, match="it may not be recorded"):
            append(failed, "x\n")
    late = starts(url, tmp_path / "late", 1)
    assert (late.root / "ledger.jsonl").read_text() == "0\n0\n"


def test_nothing_follows_where_it_is_not_on_record_that_there_is_a_ledger(url, tmp_path, monkeypatch):
    mirror = Mirror(url, tmp_path / "work")
    mirror.acquire()
    write = Objects.write
    monkeypatch.setattr(objects, "_WAITS", ())

    def failing(self, key, content):
        self._tried("write", key, lambda: 1 / 0) if key.endswith(".ledger.jsonl") else write(self, key, content)

    monkeypatch.setattr(Objects, "write", failing)
    with pytest.raises(StorageError, match="it may not be recorded"):
        append(mirror, "x\n")
    assert not mirror.owned


def test_a_claim_that_is_not_listed_is_not_said_to_be_overtaken(url, tmp_path, monkeypatch):
    mirror = starts(url, tmp_path, 2)
    with monkeypatch.context() as patch:
        leaving_out(patch, OWNERS)
        with pytest.raises(StorageError, match=f"does not list {OWNERS}/000002-.*it may not be recorded"):
            append(mirror, "x\n")
        again = Mirror(url, tmp_path / "again")
        with pytest.raises(InputError, match="holds no run"):  # by all that can be seen
            again.acquire()
    again.acquire()
    with monkeypatch.context() as patch:
        leaving_out(patch, OWNERS)
        with pytest.raises(StorageError, match=f"does not list {OWNERS}/000003-"):
            again.restore(again.root / "ledger.jsonl")


@pytest.mark.parametrize("path", ["owners$", "private$", r"000001-\w+$", "ledger.jsonl$"])
def test_a_passing_error_is_told_as_one_of_the_storage(corpora, unsteady, path):
    """Not as a run that is gone, taken over or of others: what the user would do then has another one trained for free."""
    config = run_config(corpora)
    crash(config, URL, charges=2)
    told = r"(cannot (list|look up|read) .*Connection timed out)"
    unsteady(path)
    with pytest.raises((StorageError, InputError), match=told):
        train(config, URL, workers=0, resume=True)

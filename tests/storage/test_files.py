"""What is said of a disk that fails, whichever library met it; what gives way to what."""

from __future__ import annotations

import errno
import os

import pytest

from uedp_ray.errors import InputError
from uedp_ray.storage.files import beneath, find_other, replacing, settle
from uedp_ray.storage.locks import locked


@pytest.mark.parametrize(
    "error",
    [
        OSError("18067 requested and 10736 written"),
        RuntimeError("I/O error: No space left on device (os error 28)"),
        OSError(28, "No space left on device"),
    ],
    ids=["NumPy", "safetensors", "the system"],
)
def test_a_full_disk_is_said_to_be_one_and_what_was_there_stays(error, tmp_path):
    (tmp_path / "weights").write_text("old")
    with pytest.raises(OSError, match="No space left on device; weights keeps its last complete state: free space"):
        write(tmp_path / "weights", error)
    assert [(each.name, each.read_text()) for each in tmp_path.iterdir()] == [("weights", "old")]


@pytest.mark.parametrize(
    ("number", "remedy"),
    [
        (errno.ENOSPC, "free space"),
        (errno.EDQUOT, "free space"),
        (errno.EIO, "check the disk"),
        (errno.ENOENT, "make sure that nothing else moves or deletes files there"),
        (errno.EFBIG, r"allow larger files \(ulimit -f, or another file system\)"),
        (errno.EBUSY, "fix that"),
    ],
)
def test_only_a_full_disk_is_called_full(number, remedy, tmp_path):
    error = OSError(number, os.strerror(number))
    with pytest.raises(
        OSError, match=f"{error.strerror}; weights keeps its last complete state: {remedy} and run again"
    ):
        write(tmp_path / "weights", error)


def make(folder, name, made):
    with replacing(folder, made=made) as new:
        new.mkdir()
        (new / name).touch()


def write(path, error):
    with replacing(path) as new:
        new.write_text("half")
        raise error


@pytest.mark.parametrize("made", [None, r"part-\d+"])
def test_a_folder_gives_way_to_one_that_has_all_it_holds_and_to_no_file(made, tmp_path):
    folder = tmp_path / "shards"
    for name in ("part-0", "part-1"):
        make(folder, name, made=r"part-\d+")
    (folder / "mine").touch()
    with pytest.raises(InputError, match="is about to be rebuilt without its 'mine': move that elsewhere"):
        make(folder, "part-1", made=made)
    (folder / "mine").unlink()
    with pytest.raises(InputError, match="is a folder where a file belongs"), replacing(folder, made=made) as new:
        new.touch()
    assert [each.name for each in tmp_path.rglob("*")] == ["shards", "part-1"]


@pytest.mark.parametrize(
    ("path", "ours"),
    [
        ("one", True),
        ("two/", True),
        ("two/a", True),
        ("two/.b.uedp_ray.new/whatever", True),
        (".two.uedp_ray.old/whatever", True),
        ("two/.nfs000000000123456700000002", True),
        ("one/", False),
        ("two", False),
        ("two/a/", False),
        ("two/c", False),
        ("three", False),
        (".three.uedp_ray.new/whatever", False),
        ("two/.uedp_ray.new", False),
    ],
)
def test_what_is_made_is_told_from_what_is_not(path, ours, tmp_path):
    made = "one|" + beneath("two", "a|b/")
    (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / path).mkdir() if path.endswith("/") else (tmp_path / path).touch()
    assert (find_other(tmp_path, made) is None) == ours


def test_a_link_is_not_followed(tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine").touch()
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "two").symlink_to(tmp_path / "out")
    assert find_other(tmp_path / "in", beneath("two", "a")) is None
    settle(tmp_path / "in")
    assert (tmp_path / "out" / "mine").exists()


def test_a_lock_follows_no_link(tmp_path):
    """An empty file appeared where it led."""
    (tmp_path / "lock").symlink_to(tmp_path / "elsewhere")
    busy = InputError("lock", "", "is held")
    with pytest.raises(InputError, match="is a link where"), locked(tmp_path / "lock", wait=0.0, busy=busy):
        pass
    assert not (tmp_path / "elsewhere").exists()

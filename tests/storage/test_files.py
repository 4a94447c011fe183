"""What is said of a disk that fails, whichever library met it."""

from __future__ import annotations

import errno
import os

import pytest

from uedp_ray.storage.files import replacing


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
    with pytest.raises(OSError, match="No space left on device; weights keeps its last whole state: free space"):
        write(tmp_path / "weights", error)
    assert [(each.name, each.read_text()) for each in tmp_path.iterdir()] == [("weights", "old")]


@pytest.mark.parametrize(
    ("number", "remedy"),
    [
        (errno.ENOSPC, "free space"),
        (errno.EDQUOT, "free space"),
        (errno.EIO, "look after the disk"),
        (errno.ENOENT, "see that nothing else moves or deletes what is there"),
        (errno.EFBIG, r"allow larger files \(ulimit -f, or another file system\)"),
        (errno.EBUSY, "mend that"),
    ],
)
def test_only_a_full_disk_is_called_full(number, remedy, tmp_path):
    error = OSError(number, os.strerror(number))
    with pytest.raises(OSError, match=f"{error.strerror}; weights keeps its last whole state: {remedy} and run again"):
        write(tmp_path / "weights", error)


def write(path, error):
    with replacing(path) as new:
        new.write_text("half")
        raise error

"""What is said of a disk that fails, whichever library met it."""

from __future__ import annotations

import pytest

from uedp_ray.files import replacing


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


def test_a_failing_disk_is_not_called_full(tmp_path):
    with pytest.raises(OSError, match="Input/output error; weights keeps its last whole state: look after the disk"):
        write(tmp_path / "weights", OSError(5, "Input/output error"))


def write(path, error):
    with replacing(path) as new:
        new.write_text("half")
        raise error

"""``uedp-ray``: parse, call, print. Every command takes ``--json``: one document on stdout, everything else on stderr."""

from __future__ import annotations

import errno
import os
import shlex
import sys
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

import typer

from uedp_ray.cli import accounting, commands, planning
from uedp_ray.cli.base import app
from uedp_ray.console import drop_unwritten, err, keep_descriptors, write_any_text
from uedp_ray.errors import InputError, no_thread_no_blame, one_line, unreadable
from uedp_ray.interrupts import ignore, kept_apart, like_ctrl_c

__all__ = ["accounting", "app", "commands", "main", "planning"]

_ALLOCATORS = ("DefaultCPUAllocator", "CUDA out of memory")
"""What torch says where it finds no memory."""
_UsageError: Any = typer.BadParameter.__bases__[0]  # Typer exports this subclass only


def main() -> None:
    """The console script: exit code 0 on success, 2 on bad input, 1 on failure, 130 on Ctrl-C, SIGTERM or SIGHUP."""
    keep_descriptors()
    write_any_text()
    try:
        like_ctrl_c(_interrupted)
        code = _answered()
        ignore()  # the command is done
    except KeyboardInterrupt:
        while True:  # until it succeeds: interrupts come in bursts
            with suppress(KeyboardInterrupt):
                ignore()
                break
        code = _interrupted()
    if code:
        drop_unwritten()
        sys.exit(code)


def _interrupted() -> int:
    """Prints how to continue. Returns the exit code."""
    resumable = _resumes(sys.argv[1:])
    again = [*sys.argv[1:], *(["--resume"] if resumable and "--resume" not in sys.argv else [])]
    charged = (
        "whatever was released stays charged. To continue" if resumable else "nothing was released. To run it again"
    )
    _tell(f"interrupted: {charged}: uedp-ray {shlex.join(again)}")
    return 130


def _resumes(words: list[str]) -> bool:
    """Whether an interrupted command continues with ``--resume``: only if there is something to resume. A URL, and a name
    that was left out, are not checked."""
    first = {"train": "private", "compare": "base.yaml", "sweep": "sweep.yaml"}.get(words[0] if words else "")
    words = [part for word in words for part in (word.split("=", 1) if word.startswith("--out=") else [word])]
    out = next((value for option, value in pairwise(words) if option == "--out"), "://")
    return first is not None and ("://" in out or (Path(out) / first).exists())


def _answered() -> int:
    """Runs the command and prints what went wrong. Returns the exit code; raises KeyboardInterrupt if it was interrupted."""
    try:
        os.getcwd()
    except OSError:
        _tell("error: the working directory was removed or cannot be read: change to another one, and run again")
        return 2
    try:
        with kept_apart(), no_thread_no_blame():
            if app(args=sys.argv[1:] or ["--help"], standalone_mode=False) == 130:  # Typer's answer to Ctrl-C
                raise KeyboardInterrupt
    except (InputError, _UsageError) as error:
        message = str(error) if isinstance(error, InputError) else one_line(error.format_message(), 600)
        _tell(f"error: {message}")
        return 2
    except (OSError, RuntimeError, MemoryError) as error:
        if isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE):
            _tell(f"error: {unreadable(error, '', '')}")
            return 2
        # Typer turns EOFError into an error without a message.
        told = str(error) or type(error.__context__ or error).__name__
        if isinstance(error, MemoryError) or any(
            mark in told for mark in _ALLOCATORS
        ):  # other errors say more than that
            told = "this machine ran out of memory: free some, or use less text or a smaller model, and run again"
        _tell(f"failed: {one_line(told, 3000)}")
        return 1
    return 0


def _tell(message: str) -> None:
    err.print(message, style="red", markup=False, highlight=False, soft_wrap=True)

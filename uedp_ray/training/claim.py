"""Decides whether a folder may become a run, and what is removed of an earlier start that it replaces.

Example:

    >>> from pathlib import Path
    >>> from tempfile import TemporaryDirectory
    >>> from uedp_ray.config import RunConfig, from_dict
    >>> from uedp_ray.errors import InputError
    >>> from uedp_ray.training.claim import check_kinds, claim
    >>> from uedp_ray.training.rundir import RunDir
    >>> config = from_dict(RunConfig, {"corpus": {"declared_num_users": 100}, "privacy": {"noise_multiplier": 1.0}})
    >>> folder = TemporaryDirectory()
    >>> run = RunDir(Path(folder.name))
    >>> check_kinds(run)    # before anything in the folder is read
    >>> claim(run, config, resume=False)    # the folder is free, or holds the requested run
    >>> size = (run.root / "notes.txt").write_text("mine")
    >>> try:
    ...     claim(run, config, resume=False)
    ... except InputError as error:
    ...     print(error.remedy)
    is not empty and holds no run: name another folder
    >>> folder.cleanup()
"""

from __future__ import annotations

import os
import re

from uedp_ray.config import RunConfig
from uedp_ray.config.run import is_dumped
from uedp_ray.corpus import tokens, vocabulary
from uedp_ray.errors import InputError
from uedp_ray.privacy import statement
from uedp_ray.privacy.ledger import read_ledger
from uedp_ray.storage.base import WHOLE
from uedp_ray.storage.files import beneath, check_own, find_other, holds_others, make_folder, settle, to_be_removed
from uedp_ray.storage.locks import INSIDE
from uedp_ray.training.guard import TRAINED_HERE
from uedp_ray.training.rundir import OF_WORKERS, RunDir, unused
from uedp_ray.training.texts import copy_of

NO_WORDS = "no-words"
"""The mark beside a noisy vocabulary in which no word passed the threshold: an answer, which is asked for only once."""

VOCABULARY = "|".join((vocabulary.MADE, *map(re.escape, (TRAINED_HERE, NO_WORDS, WHOLE))))
"""A regular expression, as for ``find_other``, of what is in a run's vocabulary folder."""

HOLDS_RUN = "holds a run already: add --resume, or name another folder"
_NO_RUN = "is not empty and holds no run: name another folder"


def check_kinds(run: RunDir) -> None:
    """Raises InputError for a folder in the place of a file, a file in that of a folder, a link in that of ``private/``."""
    check_own(run.private)
    for folder in run.folders:
        if os.path.lexists(folder) and not folder.is_dir():
            raise InputError(folder.name, str(folder), "is not a folder: restore the run's copy, or remove it")
    for file in (*run.files, *run.private_files):
        if file.is_dir():
            raise InputError(file.name, str(file), "is a folder where a file belongs: move it elsewhere")


def claim(run: RunDir, config: RunConfig, resume: bool) -> None:
    """Refuses a folder that holds anything but the requested run. Raises: InputError."""
    if run.root.exists() and not run.root.is_dir():
        raise InputError("--out", run.address, "is a file: name a folder")
    if run.config.exists() and unused(run):
        if not is_dumped(run.used):  # a user's own file of that name
            raise InputError("--out", run.address, _NO_RUN)
        if run.load_config().digest() == config.digest():
            if not run.ledger.exists():
                return
        elif not run.storage.is_copy:  # in a copy, what another start put stays
            clear(run)  # a config that failed to start may be fixed and tried again
    if run.config.exists():
        if not resume:
            raise InputError("--out", run.address, HOLDS_RUN)
        theirs = run.load_config().digest()
        if theirs != config.digest():
            raise InputError(
                "--resume",
                run.address,
                f"its config ({theirs[:12]}) is not this one ({config.digest()[:12]}): "
                f"resume with {run.config}, or name another folder",
            )
    elif run.root.exists() and (holds_others(run.root, (run.private.name, INSIDE)) or _is_foreign(run)):
        raise InputError("--out", run.address, _NO_RUN)


def clear(run: RunDir) -> None:
    """Deletes a run that is unused. Files are renamed first, starting with the ledger and ending with the configs: a start
    after a kill in between finds the run unused as before, and ``settle`` deletes what was set aside.

    Raises: InputError if it would delete something that no run makes.
    """
    with run.driving():  # a worker of a killed process may be about to charge the first round
        if not unused(run):
            return
        _check_made(run)
        aside = to_be_removed(run.cleared)
        make_folder(aside, private=True)
        kept = {run.lock, aside, run.used}
        public = (run.ledger, run.progress, run.vocabulary)
        paths = (*public, *(each for each in run.private.iterdir() if each not in kept), run.config, run.used)
        for number, path in enumerate(paths):
            if path.exists():
                os.replace(path, aside / f"{number}-{path.name}")  # both folders have a vocabulary
        settle(run.private)


def _is_foreign(run: RunDir) -> bool:
    """Whether ``private/`` of a folder without a run is the user's own, and not left by a killed start."""
    if not run.private.is_dir():
        return False
    of_a_start = not run.used.exists() or is_dumped(run.used)
    return not of_a_start or holds_others(run.private, (run.used.name, run.lock.name, run.cleared.name))


def _check_made(run: RunDir) -> None:
    parts = (
        *(re.escape(path.name) for path in run.private_files),
        OF_WORKERS,
        *(copy_of(folder.name) for folder in (run.corpus, run.evaluation)),
        *(beneath(run.tokens.name, tokens.STORES), beneath(run.drawn.name, VOCABULARY)),
        *(beneath(folder.name, ".*") for folder in (run.ray, run.cleared)),
    )
    for folder, made in ((run.private, "|".join(parts)), (run.vocabulary, VOCABULARY)):
        other = find_other(folder, made)
        if other is not None:
            what = f"its {folder.name}/ holds {other!r}, which no run makes"
            raise InputError("--out", str(run.root), f"{what}: move it out of the folder, or name another one")


def refuse_part(run: RunDir, part_of: str | None) -> None:
    """Refuses a run that is one of several, except to those: the price they state would not include what it charges."""
    part = statement.part_of(read_ledger(run.ledger)) if run.ledger.exists() else None
    if part not in (None, part_of):
        what, command = ("variant", "compare") if part == "comparison" else ("run", "sweep")
        remedy = f"which would not know of more rounds: continue the {part} (uedp-ray {command} … --resume)"
        raise InputError("--out", run.storage.address(run.root), f"is one {what} of a {part}, {remedy}")

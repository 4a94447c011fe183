"""``python -m tests.crashes --points 400``: tries so many points, and prints a table of what survived.

Needs Linux and a C compiler. ``--errors`` meets events with a full or read-only disk, or no descriptors, instead of a
kill, with ``--once`` for a moment only; ``--other`` starts another configuration after the kill, which takes the place of
the first or is refused; ``--only train --event 17 --again 3`` tries one point, and shows what is wrong; ``--and`` begins
the options of another matrix, for which no command is recorded twice.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
import time
from itertools import takewhile
from pathlib import Path


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.crashes", description=__doc__)
    parser.add_argument("--points", type=int, default=400)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--errors", action="store_true")
    parser.add_argument("--once", action="store_true")
    parser.add_argument("--other", action="store_true")
    parser.add_argument("--only", action="append", help="a command; repeatable")
    parser.add_argument("--at", default="", help="only events of paths that hold this text, such as ledger.jsonl")
    parser.add_argument("--event", type=int)
    parser.add_argument("--again", type=int)
    parser.add_argument("--torn", action="store_true")
    parser.add_argument("--error")
    matrices, given = [], iter(sys.argv[1:])
    while options := [*takewhile(lambda option: option != "--and", given)]:
        matrices.append(parser.parse_args(options))
    matrices = matrices or [parser.parse_args([])]
    if "CRASHES_FOLDER" not in os.environ:
        from tests.crashes.harness import preload

        folder = Path(tempfile.mkdtemp(prefix="crashes-"))
        environment = {
            **os.environ,
            "LD_PRELOAD": str(preload(folder)),
            "CRASHES_FOLDER": str(folder),
            "OMP_NUM_THREADS": "1",
            "TOKENIZERS_PARALLELISM": "false",
        }
        os.execve(sys.executable, [sys.executable, "-m", "tests.crashes", *sys.argv[1:]], environment)
    folder = Path(os.environ["CRASHES_FOLDER"])
    try:
        recorded: Recorded = {}
        failures = [failure for options in matrices for failure in _matrix(options, folder, recorded)]
        print("".join(f"\n{failure}\n" for failure in failures), end="")  # last, where a log that is cut still has it
        return bool(failures)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


Recorded = dict[str, tuple[list[str], dict[str, str]]]
"""Of each command: its events, and the digests of what it makes undisturbed."""


def _matrix(options: argparse.Namespace, folder: Path, recorded: Recorded) -> list[str]:
    """Prints its table; returns what is wrong, by point."""
    import torch

    from tests.crashes.commands import COMMANDS
    from tests.crashes.harness import Point, kinds, points, record, try_point, warm_up

    torch.set_num_threads(1)
    names = options.only or list(COMMANDS)
    if options.other:
        names = [name for name in names if COMMANDS[name](folder).has_settings]
        if not names:
            raise SystemExit("--other: the command that was named reads no configuration")
    begun = time.monotonic()
    for name in names:
        if name not in recorded:
            warm_up(name, folder / f"warm-{name}".replace(" ", "-"))
            recorded[name] = record(name, folder / f"recorded-{name}".replace(" ", "-"))
    logs, expected = ({name: recorded[name][part] for name in names} for part in (0, 1))
    chosen = points(
        logs, options.points, options.seed, errors=options.errors, once=options.once, other=options.other, at=options.at
    )
    if options.event:
        chosen = [
            Point(names[0], options.event, options.torn, options.again, options.error, options.once, options.other)
        ]
    survived = dict.fromkeys(names, 0)
    failures = []
    for number, point in enumerate(chosen):
        base = folder / f"point-{number}"
        try:
            try_point(point, base, expected[point.command])
            survived[point.command] += 1
            print(f"survived: {point}", file=sys.stderr)
        except AssertionError as error:
            event = logs[point.command][min(point.event, len(logs[point.command])) - 1]
            failures.append(f"{point} at {event}: {error}")
            print(f"lost: {point}", file=sys.stderr)
        shutil.rmtree(base, ignore_errors=True)
    print("| command | file events | points | survived |\n|---|---|---|---|")
    for name in names:
        tried = sum(point.command == name for point in chosen)
        listed = ", ".join(f"{kind} {count}" for kind, count in sorted(kinds(logs[name]).items()))
        print(f"| {name} | {len(logs[name])}: {listed} | {tried} | {survived[name]} |")
    print(f"\n{len(chosen) - len(failures)} of {len(chosen)} points survived, in {time.monotonic() - begun:.0f} s.")
    return failures


if __name__ == "__main__":
    sys.exit(main())

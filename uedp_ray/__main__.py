"""The console script ``uedp-ray``, which is also ``python -m uedp_ray``."""

import atexit
import gc
import os
import sys
from contextlib import suppress

from uedp_ray.interrupts import hold

_NEW_OBJECTS = 10_000
"""After so many, Python looks for garbage: by itself after 700, a fifth of the time that torch takes to import, where there
is none. Rounds leave under a hundred objects each that only this finds, and no tensor among them."""


def main() -> None:
    """See ``cli.main``, whose modules take a while to import: a signal that comes meanwhile is answered as any other."""
    hold()
    gc.set_threshold(_NEW_OBJECTS)
    from uedp_ray.cli import main

    try:
        main()
    except SystemExit as ended:
        if ended.code != 130:
            raise
        # What was interrupted within its work, Ray's shutdown for one, may crash as the interpreter is taken down, and
        # CPython itself ends by SIGINT then if compiled text was interrupted. Exit functions, such as Ray's, end the rest.
        with suppress(Exception):
            atexit._run_exitfuncs()
            sys.stdout.flush()
        os._exit(130)
    finally:
        gc.freeze()  # else all modules are looked through once more as they are taken down: up to a second


if __name__ == "__main__":
    main()

"""The console script ``uedp-ray``, which is also ``python -m uedp_ray``."""

from uedp_ray.interrupts import hold


def main() -> None:
    """See ``cli.main``, whose modules take a while to import: a signal that comes meanwhile is answered as any other."""
    hold()
    from uedp_ray.cli import main

    main()


if __name__ == "__main__":
    main()

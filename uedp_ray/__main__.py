"""``python -m uedp_ray`` is ``uedp-ray``."""

from uedp_ray.cli import main

main()

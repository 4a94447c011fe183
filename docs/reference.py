"""Builds the reference from docstrings: ``make docs`` writes ``build/docs/index.html``. No GPU and no text is needed."""

from __future__ import annotations

import pkgutil
import sys
from pathlib import Path

import pdoc

import uedp_ray

NOT_FOR_CALLERS = ("__main__", "cli", "console")


def main(out: Path) -> None:
    for name in uedp_ray.__all__:  # which are imported on first use, and found only once they are there
        setattr(uedp_ray, name, getattr(uedp_ray, name))
    modules = [module.name for module in pkgutil.iter_modules(uedp_ray.__path__) if module.name not in NOT_FOR_CALLERS]
    pdoc.render.configure(docformat="google", footer_text=f"uedp_ray {uedp_ray.__version__}")
    pdoc.pdoc("uedp_ray", *(f"uedp_ray.{name}" for name in modules), output_directory=out)


if __name__ == "__main__":
    main(Path(sys.argv[1]))

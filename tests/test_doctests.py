"""Examples in docstrings that begin with ``>>>`` stand by themselves: they run with no name but those they import or make.

Blocks without ``>>>``, which need a folder with text, runs and sweeps, are those of ``test_examples``.
"""

from __future__ import annotations

import ast
import doctest
import importlib
import io
import textwrap
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "uedp_ray"
NO_EXAMPLE = {"privacy": "has no name: what the room is for is said in its docstring"}
"""Modules of ``privacy`` that need none, and why."""


def name_of(path: Path) -> str:
    return ".".join(path.relative_to(PACKAGE).with_suffix("").parts).removesuffix(".__init__")


def num_examples(path: Path) -> int:
    """How many lines of a module are the first of an example, wherever they stand."""
    return sum(line.lstrip().startswith(">>> ") for line in path.read_text().splitlines())


FOUND = {name_of(path): number for path in sorted(PACKAGE.rglob("*.py")) if (number := num_examples(path))}


def run(module: ModuleType) -> tuple[int, str]:
    """How many examples of a module ran, and what doctest says of those that are wrong."""
    said, runner = io.StringIO(), doctest.DocTestRunner(verbose=False)
    for test in doctest.DocTestFinder().find(module, globs={"__name__": "__main__"}):  # none of the module's own names
        runner.run(test, out=said.write)
    return runner.tries, said.getvalue()


@pytest.mark.parametrize("module", FOUND)
def test_every_example_of_a_module_runs_by_itself_and_gives_what_it_says(module):
    tries, said = run(importlib.import_module(f"uedp_ray.{module}"))
    assert not said, said
    assert tries == FOUND[module], "an example stands where doctest does not look"


@pytest.mark.parametrize("path", sorted((PACKAGE / "privacy").rglob("*.py")), ids=name_of)
def test_every_module_of_privacy_has_an_example(path):
    names = [
        node.name
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.ClassDef | ast.FunctionDef) and not node.name.startswith("_")
    ]
    assert (name_of(path) in FOUND) == (name_of(path) not in NO_EXAMPLE)
    assert bool(names) == (name_of(path) not in NO_EXAMPLE)


@pytest.mark.parametrize(
    "wrong",
    [">>> 1 + 1\n3", ">>> round(math.pi)\n3", ">>> there()", ">>> int('x')\n0", ">>> int('x')"],
    ids=["a value", "a library", "a name of the module", "an error", "an error for nothing"],
)
def test_an_example_that_is_wrong_is_seen(wrong):
    module = ModuleType("module", f"Something.\n\n{textwrap.indent(wrong, '    ')}\n")
    module.there = lambda: None  # type: ignore[attr-defined]
    assert run(module)[1]
    module.__doc__ = "Something.\n\n    >>> import math\n    >>> round(math.pi)\n    3\n"
    assert run(module) == (2, "")

"""The house as docs/architecture.md draws it: no import goes up, none reaches into another room, no module is long."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

import uedp_ray

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "uedp_ray"
MODULES = sorted(PACKAGE.rglob("*.py"))
LONGEST = 400
FLOORS = (
    ("components", "draws", "errors", "jsontext", "reporting", "units"),
    ("access", "fields", "interrupts"),
    ("storage",),
    ("config", "target"),
    ("privacy", "redact"),
    ("corpus",),
    ("tasks",),
    ("models", "methods"),
    ("answers", "calibration"),
    ("plan",),
    ("updates",),
    ("training",),
    ("audit",),
    ("search",),
    ("analysis",),
    ("console",),
    ("screens",),
    ("cli", "serve"),
    ("__init__", "__main__"),
)
FLOOR = {room: number for number, rooms in enumerate(FLOORS) for room in rooms}


def room_of(name: str) -> str:
    """Of a dotted name within the package."""
    return name.split(".")[1] if "." in name else "__init__"


def imports(path: Path) -> set[str]:
    """Names of the package that a module imports, anywhere in it but for annotations (``if TYPE_CHECKING``)."""
    found = set()
    tree = ast.parse(path.read_text())
    skipped = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
        for inner in ast.walk(node)
    }
    for node in ast.walk(tree):
        if id(node) in skipped:
            continue
        if isinstance(node, ast.ImportFrom):
            assert not node.level, f"{path.name}: an import is by its whole name"
        if isinstance(node, ast.ImportFrom) and node.module == "uedp_ray" and path.parent != PACKAGE:
            found |= {f"uedp_ray.{uedp_ray._HOMES.get(alias.name, alias.name)}" for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "uedp_ray":
            for alias in node.names:
                inner = (PACKAGE.parent / (node.module or "").replace(".", "/") / alias.name).with_suffix(".py")
                folder = PACKAGE.parent / (node.module or "").replace(".", "/") / alias.name
                whole = inner.exists() or folder.is_dir()
                found.add(f"{node.module}.{alias.name}" if whole else str(node.module))
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names if alias.name.split(".")[0] == "uedp_ray"}
    return found


def name_of(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" and len(parts) > 2 else parts)


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_a_module_imports_nothing_from_above_and_nothing_private_of_another_room(path):
    room = room_of(name_of(path))
    for imported in sorted(imports(path)):
        other = room_of(imported)
        assert FLOOR[other] < FLOOR[room] or other == room or other == "__init__", f"{imported} lies above {room}"
        private = [part for part in imported.split(".")[2:] if part.startswith("_")]
        assert not private or other == room, f"{imported} is private to {other}"


def test_no_circle_of_modules():
    graph = {name_of(path): {name for name in imports(path) if name != "uedp_ray"} for path in MODULES}
    done: set[str] = set()

    def visit(name: str, above: tuple[str, ...]) -> None:
        assert name not in above, " -> ".join([*above[above.index(name) :], name])
        if name not in done:
            for other in graph.get(name, ()):
                visit(other, (*above, name))
            done.add(name)

    for name in graph:
        visit(name, ())


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_no_module_is_long(path):
    assert len(path.read_text().splitlines()) <= LONGEST


MUST_NOT_KNOW = {
    "config": {"torch", "ray", "uedp_ray.corpus", "uedp_ray.privacy"},
    "privacy": {"ray", "transformers", "uedp_ray.corpus", "uedp_ray.models"},
    "corpus": {"torch", "uedp_ray.privacy", "uedp_ray.models"},
    "tasks": {"ray", "uedp_ray.training"},
    "models": {"ray", "uedp_ray.privacy"},
    "updates": {"ray"},
    "training": {"optuna"},
    "audit": {"ray"},
    "search": {"transformers"},
    "analysis": {"torch", "ray"},
}
"""As the page has it, and no more than it says."""


@pytest.mark.parametrize("room", MUST_NOT_KNOW)
def test_a_room_does_not_know_what_the_page_says_it_must_not(room):
    for path in sorted((PACKAGE / room).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [str(node.module)] if isinstance(node, ast.ImportFrom) else []
            for name in names:
                known = {other for other in MUST_NOT_KNOW[room] if name == other or name.startswith(f"{other}.")}
                assert not known, f"{path.relative_to(ROOT)} imports {name}"


def test_every_room_is_on_the_page():
    page = (ROOT / "docs" / "architecture.md").read_text()
    drawn = [re.findall(r"(\w+)(?:/|\.py)", line) for line in page.split("```")[1].splitlines() if line.strip()]
    assert [sorted(rooms) for rooms in drawn] == [sorted(rooms) for rooms in reversed(FLOORS[:-1])]
    for folder in (path.name for path in PACKAGE.iterdir() if path.is_dir() and path.name != "__pycache__"):
        assert re.search(rf"\b{folder}/", page), folder

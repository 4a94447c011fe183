"""Examples in docstrings name what there is, and call it as it may be called: each is read against the code it stands in.

They are not run: most need a corpus, a run or a cluster. What is assigned in an example has the type that its call
returns; what is not, is one of ``GIVEN``.
"""

from __future__ import annotations

import ast
import builtins
import dataclasses
import importlib
import inspect
import re
import textwrap
import types
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
UNKNOWN = object()
NOT_PYTHON = re.compile(r"^(\w+/|\w+\.json |sample -> |base: |\{)")
"""How a block begins that shows files, settings or an order of steps."""


def blocks(path: Path) -> Iterator[tuple[int, str]]:
    """(line, code) of every indented block in a docstring of the module."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and (text := ast.get_docstring(node)):
            for block in re.findall(r"(?:\A|\n\n)((?:    .*\n?|\n)+)", f"{text}\n"):
                if block.strip():
                    yield getattr(node, "lineno", 1), textwrap.dedent(block).strip()


FOUND = [
    (".".join(path.relative_to(ROOT / "uedp_ray").with_suffix("").parts), line, code)
    for path in sorted((ROOT / "uedp_ray").rglob("*.py"))
    for line, code in blocks(path)
    if not NOT_PYTHON.match(code)
]


_OTHERS = """
add clip_norm device evaluation first ids ledgers loss mine model nodes noise num_users optuna_trial
parameters paths point private root rows selections sentence sentences size sketch source step sweep texts update
users weight weights
"""
GIVEN = {
    "base": "config.run.RunConfig",
    "bounds": "config.sections.BoundsConfig",
    "config": "config.run.RunConfig",
    "corpus": "corpus.store.Corpus",
    "driver": "training.driver.RunDriver",
    "folder": "search.layout.SweepDir",
    "mechanism": "privacy.mechanism.RoundMechanism",
    "batch": "tasks.base.Batch",
    "plan": "plan.Plan",
    "sampler": "privacy.sampling.PoissonSampler",
    "run": "training.rundir.RunDir",
    "params": "models.parameters.FlatParameters",
    "study": "search.study.Study",
    "task": "tasks.next_word.NextWord",
    "vocabulary": "corpus.vocabulary.Vocabulary",
    **dict.fromkeys(_OTHERS.split()),
}
"""What a reader is taken to have: an object of the class; None: of a library's."""


def homes() -> dict[str, str]:
    """The module of every function and class that one module alone defines."""
    found: dict[str, list[str]] = {}
    for path in sorted((ROOT / "uedp_ray").rglob("*.py")):
        module = ".".join(path.relative_to(ROOT).with_suffix("").parts)
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.FunctionDef | ast.ClassDef):
                found.setdefault(node.name, []).append(module)
    return {name: modules[0] for name, modules in found.items() if len(modules) == 1}


HOMES = homes()


class Reader:
    """Types of what an example names, as far as annotations tell. Asserts that attributes exist and that calls bind."""

    def __init__(self, names: dict[str, Any], free: dict[str, Any]):
        self.names, self.free = names, free
        self.types: dict[str, Any] = {}

    def value(self, node: ast.expr) -> tuple[Any, Any]:
        """(the object, its class), either ``UNKNOWN``."""
        if isinstance(node, ast.Name):
            return self._name(node.id)
        if isinstance(node, ast.Attribute):
            return self._attribute(node)
        if isinstance(node, ast.Call):
            return UNKNOWN, self._call(node)
        for generator in getattr(node, "generators", []):
            self.value(generator.iter)
            self._store(generator.target, UNKNOWN)
        if isinstance(node, ast.Lambda):
            for argument in node.args.args:
                self.types[argument.arg] = UNKNOWN
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.expr):
                self.value(child)
        if isinstance(node, ast.Constant):
            return node.value, type(node.value)
        return UNKNOWN, UNKNOWN

    def _name(self, name: str) -> tuple[Any, Any]:
        if name in self.types:
            return UNKNOWN, self.types[name]
        for known in (self.names, vars(builtins)):
            if name in known:
                return known[name], type(known[name])
        if name in HOMES:
            found = getattr(importlib.import_module(HOMES[name]), name)
            return found, type(found)
        if name in ("accounting", "os", "ray"):
            return importlib.import_module("uedp_ray.privacy.accounting" if name == "accounting" else name), UNKNOWN
        assert name in self.free, f"{name}: nobody has it"
        return UNKNOWN, self.free[name]

    def _attribute(self, node: ast.Attribute) -> tuple[Any, Any]:
        owner, kind = self.value(node.value)
        if owner is not UNKNOWN:
            assert hasattr(owner, node.attr) or node.attr in fields_of(owner), f"{ast.unparse(node)}: there is none"
            found = getattr(owner, node.attr, UNKNOWN)
            return found, type(found)
        if not isinstance(kind, type) or kind.__module__.split(".")[0] != "uedp_ray":
            return UNKNOWN, UNKNOWN
        its_own = any(f"self.{node.attr}" in source_of(each) for each in kind.__mro__)
        assert hasattr(kind, node.attr) or node.attr in fields_of(kind) or its_own, (
            f"{ast.unparse(node)}: there is none"
        )
        found = inspect.getattr_static(kind, node.attr, None)
        if isinstance(found, property):
            return UNKNOWN, returned(found.fget)
        if callable(found) or isinstance(found, classmethod | staticmethod):
            bound = getattr(kind, node.attr)
            return (bound if inspect.ismethod(bound) else types.MethodType(bound, object())), UNKNOWN
        return UNKNOWN, fields_of(kind).get(node.attr, UNKNOWN)

    def _call(self, node: ast.Call) -> Any:
        function, _ = self.value(node.func)
        keywords = {each.arg: UNKNOWN for each in node.keywords if each.arg is not None}
        for argument in (*node.args, *(each.value for each in node.keywords)):
            self.value(argument.value if isinstance(argument, ast.Starred) else argument)
        if function is UNKNOWN or not callable(function):
            return UNKNOWN
        whole = not any(isinstance(each, ast.Starred) for each in node.args) and len(keywords) == len(node.keywords)
        if whole and ours(function):
            try:
                inspect.signature(function).bind(*(UNKNOWN for _ in node.args), **keywords)
            except TypeError as error:
                raise AssertionError(f"{ast.unparse(node)}: {error}") from None
        return function if inspect.isclass(function) else returned(function)

    def statement(self, node: ast.stmt) -> None:
        if isinstance(node, ast.Import | ast.ImportFrom):
            for each in node.names:
                if isinstance(node, ast.ImportFrom):
                    self.names[each.asname or each.name] = getattr(
                        importlib.import_module(node.module or ""), each.name
                    )
                else:
                    self.names[each.asname or each.name] = importlib.import_module(each.name)
            return
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.stmt | ast.withitem | ast.ExceptHandler | ast.comprehension):
                continue
            if isinstance(child, ast.expr) and not isinstance(getattr(child, "ctx", None), ast.Store):
                self.value(child)
        self._bind(node)
        for child in getattr(node, "body", []):
            self.statement(child)

    def _bind(self, node: ast.stmt) -> None:
        if isinstance(node, ast.Assign):
            kind = self.value(node.value)[1] if isinstance(node.value, ast.Call | ast.Name | ast.Attribute) else UNKNOWN
            for target in node.targets:
                self._store(target, kind)
        elif isinstance(node, ast.For):
            self._store(node.target, UNKNOWN)
        elif isinstance(node, ast.With):
            for item in node.items:
                kind = self.value(item.context_expr)[1]
                if item.optional_vars is not None:
                    self._store(item.optional_vars, UNKNOWN if kind is UNKNOWN else kind)
        elif isinstance(node, ast.FunctionDef | ast.ClassDef):
            self.types[node.name] = UNKNOWN
            for argument in getattr(getattr(node, "args", None), "args", []):
                self.types[argument.arg] = UNKNOWN

    def _store(self, target: ast.expr, kind: Any) -> None:
        if isinstance(target, ast.Name):
            self.types[target.id] = kind
        elif isinstance(target, ast.Tuple | ast.List):
            for each in target.elts:
                self._store(each, UNKNOWN)


def attribute_of(path: str | None) -> Any:
    if path is None:
        return UNKNOWN
    module, _, name = path.rpartition(".")
    return getattr(importlib.import_module(f"uedp_ray.{module}"), name)


def source_of(kind: type) -> str:
    try:
        return inspect.getsource(kind) if kind.__module__.startswith("uedp_ray.") else ""
    except OSError:
        return ""


def ours(function: Any) -> bool:
    return (getattr(inspect.unwrap(function), "__module__", "") or "").split(".")[0] == "uedp_ray"


def fields_of(kind: Any) -> dict[str, Any]:
    try:
        return typing.get_type_hints(kind)
    except (TypeError, NameError):
        return {}


def returned(function: Any) -> Any:
    try:
        hint = typing.get_type_hints(inspect.unwrap(getattr(function, "__func__", function))).get("return", UNKNOWN)
    except (TypeError, NameError):
        return UNKNOWN
    return hint if isinstance(hint, type) else UNKNOWN


@pytest.mark.parametrize(("module", "line", "code"), FOUND, ids=[f"{module}:{line}" for module, line, _ in FOUND])
def test_an_example_names_what_there_is(module, line, code):
    free = {name: attribute_of(path) for name, path in GIVEN.items()}
    reader = Reader(dict(vars(importlib.import_module(f"uedp_ray.{module.removesuffix('.__init__')}"))), free)
    for statement in ast.parse(code).body:
        reader.statement(statement)


def test_an_example_that_is_wrong_is_seen():
    @dataclasses.dataclass
    class Thing:
        name: str

    Thing.__module__ = "uedp_ray.target"
    for wrong in ("Thing('a', 2)", "Thing('a').size", "nothing", "Thing('a').name(", "thing.size", "Thing.of('a')"):
        with pytest.raises((AssertionError, SyntaxError)):
            Reader({"Thing": Thing}, {"thing": Thing}).statement(ast.parse(wrong).body[0])
    Reader({"Thing": Thing}, {"thing": Thing}).statement(ast.parse("print(thing.name, Thing('a').name)").body[0])

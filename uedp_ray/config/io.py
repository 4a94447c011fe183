"""Reads and writes settings: YAML to nested mappings, mappings to frozen dataclasses, ``a.b=value`` overrides.

    >>> import os
    >>> from unittest import mock
    >>> from uedp_ray.config import RunConfig, from_dict, parse_overrides, set_keys
    >>> from uedp_ray.config.io import expand
    >>> parse_overrides(["privacy.target_epsilon=4", "corpus.categories=[person, org]"])
    {'privacy.target_epsilon': 4, 'corpus.categories': ['person', 'org']}
    >>> tree = {"corpus": {"declared_num_users": 1000}, "model": {"path": "$MODELS/gpt2"}}
    >>> config = from_dict(RunConfig, set_keys(tree, {"privacy.target_epsilon": 4, "privacy.delta": "1e-5"}))
    >>> config.privacy.delta, config.model.path    # YAML 1.1 reads 1e-5 as text
    (1e-05, '$MODELS/gpt2')
    >>> with mock.patch.dict(os.environ, MODELS="/models"):
    ...     expand("model.path", config.model.path)    # only where it is opened: a config keeps what was written
    '/models/gpt2'
    >>> from_dict(RunConfig, {"privacy": {"target_epsilon": "four"}})
    Traceback (most recent call last):
        ...
    uedp_ray.errors.InputError: privacy.target_epsilon = 'four': expected a number, or null

Files are written by hand, and may be damaged or hostile: whatever is wrong with one raises an ``InputError``, in bounded
time and memory. Only YAML mappings, lists and plain values are read. Anchors, aliases and merge keys (which multiply), tags
(which name types) and dates (which break PyYAML's parser) are refused or read as text; every key is text.
"""

from __future__ import annotations

import dataclasses
import difflib
import errno
import json
import math
import os
import re
import stat
import types
import typing
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import yaml

from uedp_ray.config.limits import type_hints
from uedp_ray.errors import InputError, one_line, shown
from uedp_ray.fields import UNPRINTABLE

T = TypeVar("T")

_MAX_BYTES = 256 * 1024
"""A run file is a few kB; PyYAML reads some 100 kB a second."""
_MAX_DEPTH = 16
_MAX_DIGITS = 64
_OTHER_BASE = re.compile(r"[-+]?0[0-9_xb][^.]*$|.*:")
_READ_AS = ("null", "bool", "int", "float", "str")
_NAME = re.compile(r"\$(?:(\w+)|\{([^}]*)\})")


class _Loader(yaml.SafeLoader):
    """YAML without what settings never need; see the module."""

    yaml_implicit_resolvers = {  # noqa: RUF012 (PyYAML's own name, and its kind of table)
        first: [(tag, pattern) for tag, pattern in pairs if tag.rpartition(":")[2] in _READ_AS]
        for first, pairs in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }
    _depth = 0

    def compose_node(self, parent: Any, index: Any) -> Any:
        event = self.peek_event()
        if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None) is not None:
            raise _refused(event, "anchors (&) and aliases (*) are not supported: write the value out")
        if getattr(event, "tag", None) is not None:
            raise _refused(event, "tags (!) are not supported: write the plain value")
        if self._depth == _MAX_DEPTH:
            raise _refused(event, f"more than {_MAX_DEPTH} levels deep")
        self._depth += 1
        node = super().compose_node(parent, index)
        self._depth -= 1
        return node

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        tree: dict[Any, Any] = {}
        for key, value in node.value:
            if not isinstance(key, yaml.ScalarNode):
                raise _refused(key, "a key must be a single word")
            if key.value in tree:  # YAML would silently keep the last
                raise _refused(key, f"key {one_line(key.value, 60)!r} is given twice")
            tree[key.value] = self.construct_object(value, deep=deep)
        return tree

    def construct_number(self, node: Any) -> Any:
        if len(node.value) > _MAX_DIGITS:
            raise _refused(node, f"a number of {len(node.value)} characters")
        if _OTHER_BASE.match(node.value):  # 010 is 8 to YAML, 1:30 is 90
            raise _refused(
                node, f"{node.value} is a number to base 2, 8, 16 or 60: write it in decimal (text in quotes)"
            )
        try:
            return getattr(self, f"construct_yaml_{node.tag.rpartition(':')[2]}")(node)
        except (ValueError, OverflowError):  # "_" and the like match YAML's pattern for a number
            return node.value


for _kind in ("int", "float"):
    _Loader.add_constructor(f"tag:yaml.org,2002:{_kind}", _Loader.construct_number)


def _refused(where: Any, problem: str) -> yaml.YAMLError:
    return yaml.MarkedYAMLError(problem=problem, problem_mark=where.start_mark)


def _parse(text: str) -> Any:
    """Raises: yaml.YAMLError."""
    loader = _Loader(text)
    try:
        return loader.get_single_data()
    except (ValueError, OverflowError) as error:  # an escape beyond Unicode, such as "\\UFFFFFFFF"
        raise yaml.YAMLError(f"a character that does not exist ({error})") from None
    finally:
        loader.dispose()


def _problem(error: yaml.YAMLError) -> str:
    """Says what is wrong with a text that is not YAML, and on which line."""
    if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark is not None:
        return f"line {error.problem_mark.line + 1}: {one_line(error.problem or 'cannot be read', 300)}"
    return one_line(str(error), 300)


def read_yaml(path: str | Path) -> dict[str, Any]:
    """Returns the mapping in a YAML file, empty for an empty file. Raises: InputError if there is none."""
    try:
        tree = _parse(_read(Path(path)).decode())
    except UnicodeDecodeError:
        raise InputError("config", str(path), "is not UTF-8 text: save it as UTF-8") from None
    except yaml.YAMLError as error:
        raise InputError("config", str(path), f"not YAML: {_problem(error)}") from None
    if tree is not None and not isinstance(tree, dict):
        raise InputError("config", str(path), "expected a mapping of keys")
    return tree or {}


def _read(path: Path) -> bytes:
    """Returns the bytes of a regular file. Does not wait for a pipe or a device, or read a large file."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    except OSError as error:
        remedy = {errno.ENOENT: "no such file", errno.ENOTDIR: "no such file"}.get(error.errno or 0)
        raise InputError("config", str(path), remedy or f"cannot be read: {error.strerror}") from None
    except ValueError:  # a NUL in the name
        raise InputError("config", str(path), "no such file") from None
    try:
        if not stat.S_ISREG(mode := os.fstat(handle).st_mode):
            kind = "a folder" if stat.S_ISDIR(mode) else "not a regular file"
            raise InputError("config", str(path), f"is {kind}: name a YAML file")
        with open(handle, "rb", closefd=False) as file:
            content = file.read(_MAX_BYTES + 1)
    finally:
        os.close(handle)
    if len(content) > _MAX_BYTES:
        raise InputError("config", str(path), f"is larger than {_MAX_BYTES // 1024} KiB: name a YAML file of settings")
    return content


def parse_overrides(overrides: Iterable[str]) -> dict[str, Any]:
    """Parses ``a.b=value`` texts, whose values are YAML, into a mapping of dotted keys."""
    settings = {}
    for override in overrides:
        key, equals, text = override.partition("=")
        if not equals or not all(key.split(".")):
            raise InputError("--set", override, "write key.subkey=value")
        if len(override) > _MAX_BYTES:
            raise InputError("--set", override, "is too long")
        try:
            settings[key] = _parse(text)
        except yaml.YAMLError as error:
            raise InputError("--set", override, f"the value is not YAML ({_problem(error)}): quote it") from None
    return settings


def set_keys(tree: dict[str, Any], settings: Mapping[str, Any]) -> dict[str, Any]:
    """Sets dotted keys in a nested mapping, in place, and returns it."""
    for key, value in settings.items():
        *parents, leaf = str(key).split(".")
        node = tree
        for parent in parents:
            node = node.setdefault(parent, {})
            if not isinstance(node, dict):
                raise InputError(key, value, f"{parent} is not a section")
        node[leaf] = value
    return tree


def to_dict(config: Any) -> dict[str, Any]:
    """Returns nested plain values (tuples become lists), complete and in field order."""
    return json.loads(json.dumps(dataclasses.asdict(config)))


def from_dict(cls: type[T], tree: Mapping[str, Any], where: str = "") -> T:
    """Builds ``cls`` from nested mappings. Texts are kept as written; callers that open one as a path use ``expand``.

    A field's ``was``, in its metadata, is its key in files of earlier versions.
    Raises: InputError for unknown keys and wrong types, whatever ``tree`` holds.
    """
    if not isinstance(tree, Mapping):
        raise InputError(where.rstrip(".") or "config", tree, "expected a mapping of keys")
    hints = type_hints(typing.cast(type, cls))
    tree = renamed(cls, tree, where)
    for key, value in tree.items():
        if not isinstance(key, str) or key not in hints:
            name, known = key if isinstance(key, str) else shown(key), ", ".join(sorted(hints))
            meant = " or ".join(_close(name, sorted(hints)))
            guess = f": did you mean {meant}? Known: {known}" if meant else f"; known: {known}"
            raise _UnknownKey(f"{where}{name}", value, f"unknown key{guess}")
    values = {key: _convert(hints[key], value, f"{where}{key}") for key, value in tree.items()}
    try:
        return cls(**values)
    except InputError as error:  # a section knows at most its own name, not its place in the file
        section = where.rstrip(".").rpartition(".")[2]
        before = where.removesuffix(f"{section}.") if error.field.startswith(f"{section}.") else where
        raise InputError(f"{before}{error.field}", error.value, error.remedy) from error.__cause__


def _close(name: str, known: Sequence[str]) -> list[str]:
    """Returns the names that contain this one, or else are spelled like it; three at most."""
    asked = name[:100].lower().replace("-", "_")
    within = [each for each in known if asked in each] if len(asked) > 2 else []
    return (within or difflib.get_close_matches(asked, known))[:3]


def to_digest(config: Any) -> dict[str, Any]:
    """Returns ``to_dict`` as digests first knew it, so that what an earlier version began can go on.

    Fields have their first names (``was``), and those that came later (``ADDED``) are left out at their defaults.
    """
    tree = {}
    for each in dataclasses.fields(config):
        value = getattr(config, each.name)
        default = each.default if each.default_factory is dataclasses.MISSING else each.default_factory()
        if not (each.metadata.get("added") and value == default):
            tree[each.metadata.get("was", each.name)] = _digested(value)
    return tree


def _digested(value: Any) -> Any:
    if dataclasses.is_dataclass(value):
        return to_digest(value)
    if isinstance(value, tuple):
        return [_digested(each) for each in value]
    return json.loads(json.dumps(value))


def earlier_names(cls: Any) -> dict[str, str]:
    """Returns the keys for fields of ``cls`` in files of earlier versions, and their present names."""
    return {each.metadata["was"]: each.name for each in dataclasses.fields(cls) if "was" in each.metadata}


def renamed(cls: Any, tree: Mapping[str, Any], where: str) -> Mapping[str, Any]:
    """Returns ``tree`` with the present names of keys. Raises: InputError if one is given under both names."""
    for earlier, name in earlier_names(cls).items():
        if earlier in tree:
            if name in tree:
                raise InputError(f"{where}{earlier}", tree[earlier], f"is now called {name}, which is also given")
            tree = {name if key == earlier else key: value for key, value in tree.items()}
    return tree


class _UnknownKey(InputError):
    """A key that is no setting: it has to be mended where it stands."""


@contextmanager
def of_file(path: str | Path, overrides: Mapping[str, Any]) -> Iterator[None]:
    """Names the file in errors about its keys: a run or a sweep keeps several. ``overrides``: keys from elsewhere."""
    try:
        yield
    except _UnknownKey as error:
        if error.field.startswith(tuple(overrides)):
            raise
        raise InputError(error.field, error.value, f"{error.remedy} (in {path})") from error.__cause__


_IN_WORDS = {int: "a whole number in digits alone, such as 1000", bool: "true or false", str: "text: put it in quotes"}


def _convert(annotation: Any, value: Any, where: str) -> Any:
    origin, args = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is types.UnionType:  # only "X | None" occurs
        inner = next(a for a in args if a is not type(None))
        return None if value is None else _or(inner, value, where, "null")
    if origin is typing.Union:  # only "X | Literal[…]" occurs
        named = [name for a in args if typing.get_origin(a) is typing.Literal for name in typing.get_args(a)]
        return value if value in named else _or(args[0], value, where, *named)
    if origin is typing.Literal:
        return _spelled(value, args)
    if dataclasses.is_dataclass(annotation):
        return from_dict(typing.cast(type, annotation), value, f"{where}.")
    if origin is tuple:
        if isinstance(value, str | bytes) or not isinstance(value, Sequence):
            raise InputError(where, value, "expected a list")
        if args[-1] is not Ellipsis and len(value) != len(args):
            raise InputError(where, value, f"expected {len(args)} values")
        return tuple(_convert(args[0], item, f"{where}[{i}]") for i, item in enumerate(value))
    if origin is Mapping:
        return _plain(value, where)
    if annotation is float:
        return _number(value, where)
    if annotation in (int, bool, str) and type(value) is not annotation:
        raise InputError(where, value, f"expected {_IN_WORDS[annotation]}")
    if annotation is int and abs(value) >= 2**63:
        raise InputError(where, value, "must be below 2**63")
    if annotation is str and UNPRINTABLE.search(value):
        raise InputError(where, value, "expected one line of printable text")
    return value


def _or(annotation: Any, value: Any, where: str, *names: str) -> Any:
    """``_convert``, whose error over a word names those there are."""
    try:
        return _convert(annotation, value, where)
    except InputError as error:
        if not isinstance(value, str) or error.field != where or annotation not in (int, float):
            raise
        raise InputError(where, value, f"{error.remedy}, or {' or '.join(names)}") from error.__cause__


def _spelled(value: Any, names: tuple[Any, ...]) -> Any:
    """Returns the name that a text is but for dashes and underscores; what is none is refused by the section."""
    if not isinstance(value, str) or value in names:
        return value
    same = (name for name in names if isinstance(name, str) and name.replace("-", "_") == value.replace("-", "_"))
    return next(same, value)


def _number(value: Any, where: str) -> float:
    """Reads a number, or text that is one: YAML 1.1 reads 1e-5 as text."""
    try:
        number = float(value) if isinstance(value, int | float | str) and not isinstance(value, bool) else None
    except (ValueError, OverflowError):
        number = None
    if number is None:
        raise InputError(where, value, "expected a number")
    if not math.isfinite(number):
        raise InputError(where, value, "expected a finite number")
    return number


def _plain(value: Any, where: str) -> dict[str, Any]:
    """Copies settings that another section will read: nested mappings, lists and plain values, and nothing else."""
    if not isinstance(value, Mapping):
        raise InputError(where, value, "expected a mapping of keys")

    def copied(value: Any, depth: int) -> Any:
        if depth > _MAX_DEPTH:
            raise InputError(where, value, f"more than {_MAX_DEPTH} levels deep")
        if isinstance(value, Mapping):
            if not all(isinstance(key, str) for key in value):
                raise InputError(where, value, "every key must be text")
            return {key: copied(item, depth + 1) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [copied(item, depth + 1) for item in value]
        if isinstance(value, float) and not math.isfinite(value):
            raise InputError(where, value, "expected a finite number")
        if type(value) is int and abs(value) >= 2**63:
            raise InputError(where, value, "must be below 2**63")
        if isinstance(value, str) and UNPRINTABLE.search(value):
            raise InputError(where, value, "expected one line of printable text")
        if value is None or type(value) in (int, float, bool, str):
            return value
        raise InputError(where, value, "expected a plain value")

    return copied(value, 0)


def named_variables(tree: Any) -> dict[str, str]:
    """Returns the value of every ``$NAME`` in nested settings that is set in this process."""
    if isinstance(tree, Mapping):
        return {name: value for item in tree.values() for name, value in named_variables(item).items()}
    if isinstance(tree, list | tuple):
        return {name: value for item in tree for name, value in named_variables(item).items()}
    names = [found[1] or found[2] for found in _NAME.finditer(tree)] if isinstance(tree, str) else []
    return {name: os.environ[name] for name in names if name in os.environ}


def expand(where: str, text: str) -> str:
    """Returns ``text`` with every ``$NAME`` and ``${NAME}`` replaced by that environment variable.

    Raises: InputError naming the setting ``where`` if a variable is not set.
    """

    def value(found: re.Match[str]) -> str:
        name = found[1] or found[2]
        if name not in os.environ:
            raise InputError(where, text, f"the environment variable {name} is not set: export it, or write the path")
        return os.environ[name]

    return _NAME.sub(value, text)

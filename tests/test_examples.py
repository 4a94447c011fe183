"""Examples in docstrings run, and give what the comment beside them says where that is a value.

Each runs in a copy of a folder with text, corpora, runs and sweeps. What it names and does not make is its module's own,
or ``Given``'s, or the one of that name in the package. Those that begin with ``>>>`` need none of it: ``test_doctests``.
"""

from __future__ import annotations

import ast
import builtins
import importlib
import io
import json
import re
import shutil
import textwrap
import tokenize
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import ray
import yaml

import uedp_ray
from tests.analysis.comparisons import folder as write_comparison
from tests.analysis.sweeps import write_sweep
from tests.search.sweeps import search_here, sweep_config
from tests.training.runs import run_config, run_tree
from uedp_ray.analysis.frames import load_sweep
from uedp_ray.corpus.store import open_corpus
from uedp_ray.corpus.vocabulary import build_vocabulary
from uedp_ray.interrupts import handlers_kept
from uedp_ray.privacy.mechanisms.poisson import RoundMechanism
from uedp_ray.privacy.sampling import PoissonSampler
from uedp_ray.reporting import SILENT
from uedp_ray.search.feasibility import alone
from uedp_ray.search.layout import SweepDir
from uedp_ray.search.preflight import Node
from uedp_ray.search.results import read_rows
from uedp_ray.search.study import Study
from uedp_ray.search.sweep_config import load_sweep_config
from uedp_ray.tasks.metrics import METRICS
from uedp_ray.training.privacy_page import Total

pytestmark = pytest.mark.whole

ROOT = Path(__file__).parents[1]
NOT_PYTHON = re.compile(r"^(\w+/|\w+\.json |sample -> |base: |variants:|figure,|\{)")
"""How a block begins that shows files, settings or an order of steps."""
PIECES = {"/shared/sweep": "{here}/shared", "/scratch": "{here}/scratch", "s3://bucket": "file://{here}/bucket"}
"""What no test may have, and what stands for it."""
CONLL = "-DOCSTART- -X- O O\n\nAnn NNP I-NP I-PER\nLee NNP I-NP I-PER\nleft VBD I-VP O\n\n"
BY_ITSELF = {
    "search.sweep": "runs/quickstart",
    **dict.fromkeys(("reporting", "training.host", "training.setup"), "runs/mine"),
}
"""Folders that an example makes."""
THERE = {"search.study": "runs/s"}
"""Empty folders."""
STARTS_RAY = ("interrupts", "search.preflight")
ON_RAY = ("search.remote", "search.sweep", "training.host")
SPACE = {"training.num_rounds": {"integer": [2, 4]}, "training.server_learning_rate": {"uniform": [0.01, 0.1]}}
WORDS = {"vocabulary.kind": {"choice": ["tokenizer"]}, "vocabulary.path": {"choice": ["gpt2", "/a/tokenizer"]}}


def blocks(code: str) -> Iterator[tuple[int, str]]:
    """(line, code) of every indented block in a docstring of the module, less its parts that begin with ``>>>``."""
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and (text := ast.get_docstring(node)):
            for block in re.findall(r"(?:\A|\n\n)((?:    .*\n?|\n)+)", f"{text}\n"):
                parts = [part for part in block.split("\n\n") if not part.lstrip().startswith(">>>")]
                if found := textwrap.dedent("\n\n".join(parts)).strip():
                    yield getattr(node, "lineno", 1), found


def unmarked(path: Path) -> Iterator[str]:
    """Code in a docstring of the module that is not indented: it is shown as prose, and found by no ``blocks``."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and (text := ast.get_docstring(node)):
            for block in text.split("\n\n"):
                with suppress(SyntaxError):
                    if any(isinstance(each, ast.Call | ast.Assign) for each in ast.walk(ast.parse(block))):
                        yield block


FOUND = [
    (".".join(path.relative_to(ROOT / "uedp_ray").with_suffix("").parts).removesuffix(".__init__"), line, code)
    for path in sorted((ROOT / "uedp_ray").rglob("*.py"))
    for line, code in blocks(path.read_text())
    if not NOT_PYTHON.match(code)
]


@pytest.fixture(scope="module")
def made(corpora, private_run, tmp_path_factory) -> Path:
    """What every example has a copy of."""
    folder = tmp_path_factory.mktemp("examples")
    for name in ("corpora/conll", "data/prepared"):
        shutil.copytree(corpora / "private", folder / name)
    (folder / "eng.train").write_text(CONLL)
    (folder / "run.yaml").write_text(
        yaml.safe_dump(run_tree(corpora, privacy={"target_epsilon": 8.0, "noise_multiplier": None}))
    )
    pretraining = {"text": [{"format": "synthetic", "num_users": 5, "part": "public"}], "num_steps": 1}
    base = run_tree(corpora, pretrain=pretraining, training={"num_rounds": 1, "device": "cpu"})
    variants = {"private": {"method": "uedp"}, "non-private": {"method": "noiseless"}}
    (folder / "compare.yaml").write_text(yaml.safe_dump({"base": base, "variants": variants}, sort_keys=False))
    (folder / "sweeps").mkdir()
    recipe = sweep_config(corpora, folder, space=SPACE, search={"searcher": "tpe", "trials": 3})
    shutil.move(folder / "sweep.yaml", folder / "sweeps" / "quickstart.yaml")
    points = [{"training.num_rounds": 2, "training.server_learning_rate": rate} for rate in (0.01, 0.02, 0.03)]
    search_here(recipe, folder / "runs" / "quickstart", points)
    shutil.copytree(folder / "runs/quickstart", folder / "bucket/runs/quickstart")
    for name in ("runs/mine", "run"):
        shutil.copytree(private_run.out, folder / name)
    return folder


@pytest.fixture(scope="module")
def pictured(tmp_path_factory) -> Path:
    """Sweeps with enough trials for every figure."""
    folder = tmp_path_factory.mktemp("pictured")
    for name, space in (("quickstart", None), ("other", None), ("words", WORDS)):
        write_sweep(folder / name, space=space)
    (folder / "compared").mkdir()
    write_comparison(folder / "compared")
    return folder


def given(corpora: Path, module: str) -> dict[str, Any]:
    """What the reader of an example is taken to have."""
    config, private = run_config(corpora), open_corpus(corpora / "private")
    evaluation, sweep = open_corpus(corpora / "held_out"), load_sweep_config("runs/quickstart/sweep.yaml")
    texts = ["the patient left . she met ann lee in rome"]
    vocabulary = build_vocabulary(config.vocabulary, public_text=lambda: iter(texts * 9))
    rows = read_rows(Path("runs/quickstart/result.json"), sweep.metric, "")
    found: dict[str, Any] = {
        "add": lambda one, two, reporter: one + two,
        "address": "local",
        "base": config,
        "command": lambda: None,
        "config": config,
        "corpus": private,
        "ended": lambda *_: None,
        "evaluation": evaluation,
        "folder": SweepDir(Path("runs/quickstart")),
        "mechanism": RoundMechanism(noise_multiplier=2.0, user_sampling_prob=0.05, max_holders=1, entity_clip=0.2),
        "mine": SILENT,
        "nodes": [Node("1", "head", cpus=32, gpus=8)],
        "METRICS": METRICS,
        "path": Path("corpora/conll/entities.parquet"),
        "point": {"training.num_rounds": 2, "training.server_learning_rate": 0.02},
        "private": private,
        "result": json.loads(Path("run/result.json").read_text()),
        "root": Path("runs/quickstart"),
        "rows": rows,
        "sampler": PoissonSampler(bytes(32)),
        "allowance": alone(sweep),
        "study": Study.open(sweep, Path("new.journal")),
        "sweep": sweep,
        "texts": texts,
        "total": Total(8.0, "user-entity", "none", "", False),
        "trainer": SimpleNamespace(fit=lambda: None),
        "users": np.array([0, 1]),
        "vocabulary": vocabulary,
        "weight": np.ones(private.num_sentences),
        "work": lambda: None,
    }
    return found | {
        "analysis.axes": {"sweep": load_sweep(Path("runs/quickstart"))},
        "analysis.files": {"config": sweep},
        "search.disk": {"config": sweep},
        "search.gpus": {"config": sweep},
        "search.remote": {"config": sweep},
    }.get(module, {})


def homes() -> dict[str, str]:
    """The module of every function, class and constant that one module alone defines."""
    found: dict[str, list[str]] = {}
    for path in sorted((ROOT / "uedp_ray").rglob("*.py")):
        module = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.FunctionDef | ast.ClassDef):
                found.setdefault(node.name, []).append(module)
    return {name: modules[0] for name, modules in found.items() if len(modules) == 1}


HOMES = homes()


def offered(name: str) -> Any:
    """What the package, or one module of it, has by that name."""
    if name in uedp_ray.__all__:
        return getattr(uedp_ray, name)
    return getattr(importlib.import_module(HOMES[name]), name)


LIBRARIES = {"array": np.array, "int32": np.int32, "ray": ray}


def free(code: ast.Module) -> set[str]:
    """Names that an example uses and did not make in a statement before."""
    found: set[str] = set()
    made: set[str] = set()
    for statement in code.body:
        names = [node for node in ast.walk(statement) if isinstance(node, ast.Name)]
        stored = {node.id for node in names if isinstance(node.ctx, ast.Store)}
        stored |= {node.arg for node in ast.walk(statement) if isinstance(node, ast.arg)}
        stored |= {statement.name} if isinstance(statement, ast.ClassDef | ast.FunctionDef) else set()
        within = set() if isinstance(statement, ast.Assign) else stored  # a loop's variable; not x of x = f(x)
        found |= {node.id for node in names if isinstance(node.ctx, ast.Load)} - made - within
        made |= stored
    return found


@pytest.mark.parametrize(
    ("module", "line", "code"),
    [
        pytest.param(*each, marks=[pytest.mark.slow] * (each[0] in ON_RAY + STARTS_RAY), id=f"{each[0]}:{each[1]}")
        for each in sorted(FOUND, key=lambda each: each[0] in ON_RAY)  # those that share one cluster come last
    ],
)
def test_an_example_runs_and_gives_what_it_says(
    module, line, code, made, pictured, corpora, tmp_path, monkeypatch, request
):
    if module in ON_RAY:
        request.getfixturevalue("local_ray")
    shutil.copytree(made, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MODELS", "models")
    for name, stand_in in PIECES.items():
        code = code.replace(name, stand_in.format(here=tmp_path))
    if module.startswith("analysis."):
        shutil.rmtree("runs")
        shutil.copytree(pictured, "runs")
    have = given(corpora, module) | LIBRARIES
    if module in THERE:
        Path(THERE[module]).mkdir()
    if module in BY_ITSELF:
        shutil.rmtree(BY_ITSELF[module])
    names = {"__name__": "example", **vars(importlib.import_module(f"uedp_ray.{module}"))}
    for name in free(ast.parse(code)) - names.keys() - vars(builtins).keys():
        names[name] = have[name] if name in have else offered(name)
    with handlers_kept():
        try:
            play(code, names)
        finally:
            if module in STARTS_RAY:
                ray.shutdown()


def play(code: str, names: dict[str, Any]) -> None:
    """Runs an example. Asserts that a value, or an error, is the one that a comment on its line says."""
    tokens = tokenize.generate_tokens(io.StringIO(code).readline)
    comments = {token.start[0]: token.string[1:].strip() for token in tokens if token.type == tokenize.COMMENT}
    for statement in ast.parse(code).body:
        comment = comments.get(statement.end_lineno or 0, "")
        error, _, message = comment.partition(": ")
        if not isinstance(statement, ast.Expr):
            exec(compile(ast.Module([statement], []), "example", "exec"), names)
        elif isinstance(names.get(error), type) and issubclass(names[error], Exception):
            with pytest.raises(names[error], match=re.escape(message)):
                eval(compile(ast.Expression(statement.value), "example", "eval"), names)
        else:
            value, said = eval(compile(ast.Expression(statement.value), "example", "eval"), names), read(comment, names)
            if isinstance(said, float):
                value = round(value, len(str(said).partition(".")[2]))
            assert said is None or repr(value) == repr(said)


def read(comment: str, names: dict[str, Any]) -> Any:
    """The value that a comment is, or begins with; None if it is prose."""
    for text in (comment, re.split("[:;]", comment)[0]):
        with suppress(SyntaxError, NameError):
            return eval(text.strip(), {**LIBRARIES, **names})
    return None


def test_examples_are_indented():
    """The formatter takes the indentation away where a docstring has nothing but an example below its first line."""
    assert not [block for path in (ROOT / "uedp_ray").rglob("*.py") for block in unmarked(path)]


def test_what_doctest_runs_is_not_run_twice_and_hides_no_other_example():
    code = '''"""A.\n\n    >>> 1 + 1\n    2\n\n    >>> nothing\n\n    f(\n\n        1)\n\nB.\n\n    >>> 3\n    3\n"""'''
    assert list(blocks(code)) == [(1, "f(\n\n    1)")]


@pytest.mark.parametrize(
    "wrong",
    ["1 + 1  # 3", "0.126  # 0.12", "nothing", "int('x')", "int('1')  # ValueError: invalid", "[].size"],
)
def test_an_example_that_is_wrong_is_seen(wrong):
    with pytest.raises((AssertionError, AttributeError, NameError, SyntaxError, ValueError, pytest.fail.Exception)):
        play(wrong, {"ValueError": ValueError})
    play(
        "1 + 1  # 2\n0.126  # 0.13\nint('x')  # ValueError: invalid\nlist('ab')  # its letters",
        {"ValueError": ValueError},
    )

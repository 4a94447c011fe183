"""Files and trees written by hand, damaged or hostile: one line, in bounded time and memory, and nothing else."""

from __future__ import annotations

import datetime
import math
import os

import pytest
import yaml
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from uedp_ray.config import (
    RunConfig,
    dump_config,
    from_dict,
    load_config,
    parse_overrides,
    read_yaml,
    set_keys,
    to_dict,
)
from uedp_ray.config.io import expand
from uedp_ray.errors import InputError
from uedp_ray.fields import string
from uedp_ray.search.comparison import Comparison
from uedp_ray.search.space import Space
from uedp_ray.search.sweep_config import SweepConfig, load_sweep_config

LAUGHS = "a0: &a0 [x, x]\n" + "".join(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]\n" for i in range(1, 12))
MERGES = "a0: &a0 {k: 1}\n" + "".join(f"a{i}: &a{i} {{<<: [{', '.join([f'*a{i - 1}'] * 10)}]}}\n" for i in range(1, 12))
HOSTILE = {
    "a billion laughs": (LAUGHS, "line 1: anchors"),
    "merge keys": (MERGES, "line 1: anchors"),
    "an alias of nothing": ("a: *b", "line 1: anchors"),
    "a circle": ("a: &a [*a]", "line 1: anchors"),
    "a deep list": ("a: " + "[" * 50_000, "levels deep"),
    "a deep mapping": ("".join(f"{' ' * i}a:\n" for i in range(400)), "levels deep"),
    "an object": ("a: !!python/object/apply:os.system [ls]", "tags"),
    "a binary": ("a: !!binary x", "tags"),
    "a set": ("a: !!set {b}", "tags"),
    "an ordered map": ("a: !!omap [b: 1]", "tags"),
    "a wrong tag": ("a: !!int b", "tags"),
    "a list as key": ("? [a, b]\n: 1", "single word"),
    "a key of two lines": ("? |\n a\n b\n: 1", "unknown key"),
    "the same key twice": ("1: a\n'1': b", "given twice"),
    "huge digits": ("training: {num_rounds: 1" + "0" * 5000 + "}", "a number of 5001 characters"),
    "huge hexadecimal digits": ("training: {num_rounds: 0x" + "f" * 5000 + "}", "characters"),
    "base 60": ("training: {num_rounds: 1" + ":59" * 30_000 + "}", "characters"),
    "a number to base 2": (
        "training: {num_rounds: 0b11}",
        "0b11 is a number to base 2, 8, 16 or 60: write it in decimal",
    ),
    "to base 8": ("bounds: {max_holders: 010}", "line 1: 010 is a number"),
    "to base 16": ("bounds: {max_holders: -0x1f}", "-0x1f is a number"),
    "to base 60": ("privacy:\n  target_epsilon: 1:30", "line 2: 1:30 is a number"),
    "a fraction to base 60": ("privacy: {target_epsilon: +1:30.5}", "1:30.5 is a number"),
    "an empty number": ("training: {num_rounds: 0b_}", "0b_ is a number"),
    "60,000 keys": ("".join(f"k{i}: 1\n" for i in range(60_000)), "larger than 256 KiB"),
    "10,000 keys": ("".join(f"k{i}: 1\n" for i in range(10_000)), "k0"),
    "a long key": ("? " + "k" * 100_000 + "\n: 1", "kkk"),
    "a number as key": ("2: 1", "2 = 1: unknown key"),
    "a date as key": ("2024-99-99: 1", "2024-99-99 = 1: unknown key"),
    "an odd date": ("training: {seed: 2024-99-99}", "training.seed = '2024-99-99'"),
    "not a number": ("privacy: {delta: .nan}", "privacy.delta = nan: expected a finite number"),
    "infinity": ("model: {lora_alpha: .inf}", "model.lora_alpha = inf: expected a finite number"),
    "two documents": ("a: 1\n---\nb: 2", "not YAML"),
    "a half": ("a: 'b", "not YAML: line 1"),
    "a NUL": ("a: \0", "not YAML"),
    "an escaped NUL": ('model: {path: "a\\0b"}', "model.path"),
    "no character": ('name: "\\UFFFFFFFF"', "not YAML: a character that does not exist"),
    "nearly a character": ('name: "\\U00110000"', "not YAML: a character that does not exist"),
    "half a character": ('model: {path: "\\ud800"}', "model.path"),
    "a truth": ("true", "mapping"),
    "nothing but zero": ("0", "mapping"),
    "an empty section": ("privacy:", "privacy = None: expected a mapping"),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_a_hostile_file_is_refused_in_one_line(tmp_path, case):
    text, part = HOSTILE[case]
    (tmp_path / "run.yaml").write_text(text)
    with pytest.raises(InputError) as caught:
        load_config(tmp_path / "run.yaml")
    line = str(caught.value)
    assert part in line
    assert line.isprintable()
    assert len(line) < 2000


@pytest.mark.parametrize("load", [load_sweep_config, lambda path: Comparison.load(path, [])], ids=["sweep", "compare"])
@pytest.mark.parametrize("text", [LAUGHS, "base: {name: 2024-99-99, privacy: 3}\nspace: 3\nvariants: 4", "base: 1"])
def test_a_hostile_sweep_or_comparison_is_refused(tmp_path, load, text):
    (tmp_path / "x.yaml").write_text(text)
    with pytest.raises(InputError):
        load(tmp_path / "x.yaml")


@pytest.mark.parametrize("content", [b"name: \xff", b"\xff\xfe" + "name: x".encode("utf-16-le")])
def test_a_file_in_another_encoding_is_refused(tmp_path, content):
    (tmp_path / "run.yaml").write_bytes(content)
    with pytest.raises(InputError, match="UTF-8"):
        read_yaml(tmp_path / "run.yaml")


def test_what_is_no_ordinary_file_of_settings_is_not_read(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with open(tmp_path / "large", "wb") as file:
        file.truncate(500 * 2**20)
    (tmp_path / "loop").symlink_to("loop")
    refusals = {"pipe": "not a regular", "large": "larger than", "loop": "read", "a\0b": "no such", "": "a folder"}
    refusals["large/run.yaml"] = "no such file"
    for name, part in refusals.items():
        with pytest.raises(InputError, match=part):
            read_yaml(tmp_path / name)
    with pytest.raises(InputError, match="not a regular"):
        read_yaml("/dev/zero")


@pytest.mark.parametrize("text", ["a=*x", "a=!!python/none x", "a=" + "[" * 1000, "a=1" + "0" * 5000, "a={b: 1, b: 2}"])
def test_a_hostile_override_is_refused_in_one_line(text):
    with pytest.raises(InputError, match=r"--set = .*not YAML") as caught:
        parse_overrides([text])
    assert len(str(caught.value)) < 1000


def test_plain_values_read_as_yaml_has_them(tmp_path):
    text = "{a: 1, b: 1.5, c: yes, d: null, e: x, f: [1, two], g: {h: ''}, 2024-01-01: 2024-01-01, i: 1_000, j: ~}"
    (tmp_path / "x.yaml").write_text(text)
    wanted = yaml.safe_load(text.replace("2024-01-01: 2024-01-01", "'2024-01-01': '2024-01-01'"))
    assert read_yaml(tmp_path / "x.yaml") == wanted


def test_a_deep_dotted_key_is_refused():
    with pytest.raises(InputError, match="unknown key"):
        from_dict(RunConfig, set_keys({}, {".".join(["a"] * 50_000): 1}))


def test_a_name_that_is_not_in_the_environment_is_an_error_of_its_setting(monkeypatch):
    monkeypatch.setenv("SOME_FOLDER", "/somewhere")
    assert expand("model.path", "$SOME_FOLDER/a-${SOME_FOLDER}") == "/somewhere/a-/somewhere"
    assert expand("model.path", "costs 5$ or $$") == "costs 5$ or $$"
    monkeypatch.delenv("SOME_FOLDER")
    with pytest.raises(InputError, match=r"model.path = '\$SOME_FOLDER/x': .*SOME_FOLDER is not set"):
        expand("model.path", "$SOME_FOLDER/x")


WORDS = """name corpus privacy training source delta &a *a << !! !!binary ? | > ' " \\ % --- ... # @ =
1 0x 1e5 2024-99-99 1:30 yes null .inf .nan ~ é"""
MORE = [": ", ":", "\n", "\n  ", "- ", "[", "]", "{", "}", ",", "&a ", "? ", "\0", "\t", "\ufeff", "\u2028"]
FRAGMENTS = st.sampled_from([*WORDS.split(), *MORE])
BOUNDED = settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck))


def answered(build):
    """What ``build`` makes; None if it was refused, in one line. Anything else it raises fails the test."""
    try:
        return build()
    except InputError as error:
        line = str(error)
    assert line.isprintable()
    return None


@BOUNDED
@given(st.lists(FRAGMENTS, max_size=25).map("".join) | st.text(max_size=60))
def test_whatever_a_file_holds_is_a_config_or_an_input_error(tmp_path_factory, text):
    path = tmp_path_factory.getbasetemp() / "fuzz.yaml"
    path.write_text(text, encoding="utf-8", errors="surrogatepass")
    for load in (load_config, load_sweep_config, lambda path: Comparison.load(path, [f"name={text}"])):
        answered(lambda load=load: load(path))


def keys_of(tree):
    return [*tree, *(f"{key}.{name}" for key, section in tree.items() if isinstance(section, dict) for name in section)]


KEYS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.binary(max_size=3)
SCALARS = KEYS | st.sampled_from(
    [10**400, math.inf, datetime.date(2024, 1, 1), {1, 2}, object(), "auto", "pretrained", ()]
)  # fmt: skip
TREES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3), max_leaves=6
)
RUN_KEYS = keys_of(to_dict(RunConfig(corpus=from_dict(RunConfig, {"corpus": {"declared_num_users": 9}}).corpus)))
SWEEP_KEYS = [
    f"{name}.{key}"
    for name in ("search", "budget", "resources", "references", "base", "space")
    for key in [
        "searcher",
        "trials",
        "public",
        "noiseless",
        "delta",
        "target_epsilon",
        "privacy",
        "training.num_rounds",
    ]
]


@BOUNDED
@given(st.dictionaries(st.sampled_from(RUN_KEYS), TREES, max_size=3), TREES)
def test_whatever_a_tree_holds_is_a_config_or_an_input_error(changes, tree):
    overlaid = answered(lambda: set_keys({"corpus": {"declared_num_users": 9}}, changes))
    for given_tree in (overlaid, tree):
        config = answered(lambda given_tree=given_tree: from_dict(RunConfig, given_tree))
        assert config is None or from_dict(RunConfig, to_dict(config)) == config


@BOUNDED
@given(st.text(max_size=20))
@example("Mes\u00a0textes")
@example("\U0001f468\u200d\U0001f469")
def test_whatever_text_a_config_accepts_is_read_back_from_files_of_ours(tmp_path_factory, text):
    """A name that a check of a file refuses would be damage to it, in a folder where the config is accepted."""
    config = answered(lambda: from_dict(RunConfig, {"corpus": {"declared_num_users": 9}, "model": {"path": text}}))
    if config is not None:
        path = tmp_path_factory.getbasetemp() / "written.yaml"
        dump_config(config, path)
        assert load_config(path) == config
        string()(text, "here")


SPECS = st.dictionaries(
    st.sampled_from(["uniform", "log_uniform", "integer", "choice", "step", "points", "when"]),
    st.lists(st.integers() | SCALARS, max_size=3) | TREES | st.just([1, 2**60]),
    max_size=3,
)
SPACES = st.dictionaries(
    st.sampled_from([*RUN_KEYS, "method", "expected_cohort_size", "privacy", "x", ""]), SPECS | TREES, max_size=2
)


@BOUNDED
@given(SPACES)
@example({"training.num_rounds": {"integer": [0, 10**400]}})
@example({"training.num_rounds": {"integer": [-(10**400), 0]}})
def test_whatever_a_space_holds_is_a_space_or_an_input_error(tree):
    base = from_dict(RunConfig, {"corpus": {"declared_num_users": 9}})
    answered(lambda: Space.parse(tree, base).grid())


@BOUNDED
@given(st.dictionaries(st.sampled_from([*SWEEP_KEYS, "base", "space", "trackers", "search"]), TREES, max_size=3))
def test_whatever_a_sweep_holds_is_a_sweep_or_an_input_error(changes):
    base = {
        "corpus": {"declared_num_users": 9, "evaluation": {"format": "synthetic"}},
        "privacy": {"target_epsilon": 8},
    }
    good = {"base": base, "space": {"training.num_rounds": {"integer": [1, 2]}}}

    def build():
        return from_dict(SweepConfig, set_keys(good, changes))

    answered(build)

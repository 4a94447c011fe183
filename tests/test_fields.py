"""What a value in a JSON file of ours may be, and what is said of one that is not."""

from __future__ import annotations

import json

import pytest

from uedp_ray.errors import InputError
from uedp_ray.fields import Later, Unexpected, anything, flag, list_of, number, one_of, record, string
from uedp_ray.storage.files import read_json

ODD = [
    "x",
    "",
    "\ud800",
    "\n",
    -1,
    0,
    7,
    0.5,
    -0.5,
    1e308,
    10**400,
    float("nan"),
    float("inf"),
    True,
    None,
    [],
    [1],
    {},
]
CHECKS = {
    "number": (number(), [-1, 0, 7, 0.5, -0.5, 1e308]),
    "share": (number(0.0, 1.0), [0, 0.5]),
    "count": (number(0, whole=True), [0, 7]),
    "count or null": (number(0, whole=True, nothing=True), [0, 7, None]),
    "string": (string(), ["x", ""]),
    "name or null": (string(r"[\w]+", nothing=True), ["x", None]),
    "flag": (flag, [True]),
    "choice": (one_of("x", 7), ["x", 7]),
    "list": (list_of(number()), [[], [1]]),
    "list or null": (list_of(string(), nothing=True), [[], None]),
    "record": (record({}), [{}]),
    "record with a key that came later": (record({"a": Later(flag)}), [{}]),
    "record with a key": (record({"a": flag}, nothing=True), [None]),
    "anything": (anything, ODD),
}


def same(one: object, other: object) -> bool:
    return type(one) is type(other) and repr(one) == repr(other)


@pytest.mark.parametrize("name", CHECKS)
def test_a_check_lets_through_what_it_says_and_nothing_else(name):
    check, good = CHECKS[name]
    for value in ODD:
        if any(same(value, each) for each in good):
            check(value, "here")
        else:
            with pytest.raises(Unexpected, match=r"^here\b.* is not "):
                check(value, "here")


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ({"runs": [{"rounds": 3}, {"rounds": "QX"}]}, "runs[1].rounds is not a whole number from 0"),
        ({"runs": [{}]}, "runs[0] is not a mapping with the key rounds"),
        ({}, "the value is not a mapping with the key runs"),
    ],
)
def test_what_is_wrong_in_a_file_is_named_by_its_place_and_not_shown(tmp_path, content, told):
    """It may be private."""
    (tmp_path / "a.json").write_text(json.dumps(content))
    with pytest.raises(InputError, match=r"^a\.json = ") as raised:
        read_json(tmp_path / "a.json", {"runs": list_of(record({"rounds": number(0, whole=True)}))}, "put it back")
    assert str(raised.value).endswith(f"is damaged ({told}): put it back")
    assert "QX" not in str(raised.value)

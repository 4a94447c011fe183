"""On disk before release, chained, and whole or absent."""

from __future__ import annotations

import errno
import hashlib
import json
import math
import os
import resource

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from uedp_ray.answers import ledger_epsilon
from uedp_ray.errors import InputError
from uedp_ray.privacy.events import epsilon_of_events
from uedp_ray.privacy.ledger import Ledger, read_ledger
from uedp_ray.privacy.mechanisms.poisson import RoundMechanism

MECHANISM = RoundMechanism(noise_multiplier=1.0, user_sampling_prob=0.1).to_dict()


@pytest.fixture
def path(tmp_path):
    return tmp_path / "ledger.jsonl"


def filled(path, rounds=3):
    ledger = Ledger.create(path, {"config_digest": "a" * 64, "private": True})
    for index in range(rounds):
        ledger.append("round", round=index, attempt=0, mechanism=MECHANISM, private=True)
    return ledger


def test_reopened_ledger_goes_on(path):
    ledger = filled(path)
    again = Ledger.open(path, config_digest="a" * 64)
    assert again.events == ledger.events == read_ledger(path)
    assert again.header == {"format_version": 1, "config_digest": "a" * 64, "private": True}
    again.append("round", round=2, attempt=again.attempts(2), mechanism=MECHANISM, private=True)
    assert again.attempts(2) == 2
    assert again.attempts(7) == 0
    assert [event["seq"] for event in read_ledger(path)] == [0, 1, 2, 3, 4]
    assert again.events[-1]["attempt"] == 1
    assert again.position == (4, again.events[-1]["digest"])


def test_an_existing_file_is_not_overwritten(path):
    filled(path)
    with pytest.raises(InputError, match="exists already"):
        Ledger.create(path, {})


COMMON = ("seq", "kind", "prev", "digest")
ROUND_FIELDS = (*COMMON, "round", "attempt", "mechanism", "private")


@pytest.mark.parametrize(
    ("line", "field"), [(0, f) for f in (*COMMON, "header")] + [(line, f) for line in (1, 3) for f in ROUND_FIELDS]
)
def test_a_changed_field_is_found(path, line, field):
    filled(path)
    lines = path.read_text().splitlines()
    event = json.loads(lines[line])
    assert field in event
    event[field] = {"seq": 9, "round": 9, "attempt": 9, "private": False}.get(field, "x")
    lines[line] = json.dumps(event)
    path.write_text("\n".join(lines) + "\n")
    with pytest.raises(InputError, match=f"line {line + 1}"):
        read_ledger(path)


@pytest.mark.parametrize("change", ["drop", "swap", "garble"])
def test_lines_cannot_be_dropped_swapped_or_garbled(path, change):
    filled(path)
    lines = path.read_text().splitlines()
    if change == "drop":
        del lines[1]
    elif change == "swap":
        lines[1], lines[2] = lines[2], lines[1]
    else:
        lines[1] = lines[1][:-5]
    path.write_text("\n".join(lines) + "\n")
    with pytest.raises(InputError, match="line 2"):
        Ledger.open(path)


@pytest.mark.parametrize("cut", [1, 10, 100])
def test_a_torn_last_line_was_never_released(path, cut):
    filled(path)
    path.write_bytes(path.read_bytes()[:-cut])
    assert len(read_ledger(path)) == 3
    ledger = Ledger.open(path)
    assert ledger.attempts(2) == 0
    ledger.append("round", round=2, attempt=0, mechanism=MECHANISM, private=True)
    assert len(read_ledger(path)) == 4


def test_a_line_that_was_charged_is_not_cut(path):
    """An editor that drops the last line end: the whole line went, and with it the run."""
    filled(path)
    whole = path.read_bytes()
    path.write_bytes(whole[:-1])
    assert Ledger.open(path, charged=4).attempts(2) == 1
    assert path.read_bytes() == whole
    for cut in (2, 100):
        path.write_bytes(whole[:-cut])
        with pytest.raises(InputError, match="has 3 lines, of 4 that were charged"):
            Ledger.open(path, charged=4)
        assert path.read_bytes() == whole[:-cut]
    path.write_bytes(whole[:-1])
    with pytest.raises(InputError, match="has 4 lines, of 5 that were charged"):
        Ledger.open(path, charged=5)
    assert path.read_bytes() == whole[:-1]


def test_what_is_no_ordinary_file_is_not_waited_for(path):
    os.mkfifo(path)
    with pytest.raises(InputError, match="is not a regular file"):
        read_ledger(path)


def test_missing_empty_or_newer_files(path):
    with pytest.raises(InputError, match="no such file"):
        Ledger.open(path)
    path.write_text('{"seq":0')
    with pytest.raises(InputError, match="no complete line: restore a copy"):
        Ledger.open(path)
    path.unlink()
    Ledger.create(path, {"format_version": 2})
    with pytest.raises(InputError, match="format_version"):
        read_ledger(path)


def test_another_config_is_refused(path):
    filled(path)
    with pytest.raises(InputError) as caught:
        Ledger.open(path, config_digest="b" * 64)
    assert "a" * 12 in str(caught.value)
    assert "b" * 12 in str(caught.value)
    assert "a" * 13 not in str(caught.value)


def test_checkpoint_position(path):
    ledger = filled(path)
    position = ledger.position
    ledger.append("unprotected", reason="test")
    ledger.require_position(*position)
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(lines[:2]))
    short = Ledger.open(path)
    for bad in (position, (1, "0" * 64), (-1, short.position[1])):
        with pytest.raises(InputError, match="ledger_position"):
            short.require_position(*bad)


def test_on_disk_before_append_returns(path, monkeypatch):
    ledger = filled(path, 0)
    calls = []
    write, fsync = os.write, os.fsync
    monkeypatch.setattr(os, "write", lambda fd, data: calls.append("write") or write(fd, data[:7]))
    monkeypatch.setattr(os, "fsync", lambda fd: calls.append("fsync") or fsync(fd))
    ledger.append("round", round=0, attempt=0, mechanism=MECHANISM, private=True)
    calls.append("returned")
    assert calls[-2:] == ["fsync", "returned"]
    assert calls.count("write") > 1  # short writes are completed
    assert len(read_ledger(path)) == 2


def test_creation_syncs_the_folder(path, monkeypatch):
    synced = []
    fsync = os.fsync
    monkeypatch.setattr(os, "fsync", lambda fd: synced.append(os.fstat(fd).st_ino) or fsync(fd))
    Ledger.create(path, {})
    assert synced == [path.stat().st_ino, path.parent.stat().st_ino]


@pytest.mark.parametrize("failing", ["write", "fsync"])
def test_disk_full(path, monkeypatch, failing):
    ledger = filled(path)
    before = path.read_bytes()
    write, fsync = os.write, os.fsync
    broken = [True]

    def full_write(descriptor, data):
        if broken[0]:
            if len(data) > 20:
                return write(descriptor, data[:20])  # part of the line fits
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(descriptor, data)

    def full_fsync(descriptor):
        if broken.pop():
            broken.append(False)
            raise OSError(errno.EIO, "Input/output error")
        broken.append(False)
        fsync(descriptor)

    monkeypatch.setattr(os, failing, full_write if failing == "write" else full_fsync)
    with pytest.raises(OSError, match="not released") as caught:
        ledger.append("round", round=3, attempt=0, mechanism=MECHANISM, private=True)
    assert str(path) in str(caught.value)
    assert path.read_bytes() == before
    assert ledger.attempts(3) == 0
    broken[0] = False
    ledger.append("round", round=3, attempt=0, mechanism=MECHANISM, private=True)
    assert len(read_ledger(path)) == 5


def test_a_ledger_that_cannot_be_started_leaves_nothing(path, monkeypatch):
    def full(descriptor):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        Ledger.create(path, {})
    assert not list(path.parent.iterdir())


def test_reserved_fields_and_second_writers(path):
    ledger = filled(path)
    with pytest.raises(InputError, match="reserved"):
        ledger.append("round", digest="x")
    Ledger.open(path).append("unprotected", reason="other process")
    with pytest.raises(InputError, match="another process"):
        ledger.append("unprotected", reason="late")
    assert len(read_ledger(path)) == 5


def forged(path, *events):
    """A ledger whose chain holds, whatever its events say: anybody can compute digests."""
    prev, lines = "0" * 64, []
    for seq, fields in enumerate(events):
        event = {"seq": seq, "prev": prev, **fields}
        body = json.dumps(event, sort_keys=True, separators=(",", ":"), allow_nan=False)
        prev = event["digest"] = hashlib.sha256(body.encode()).hexdigest()
        lines.append(json.dumps(event, sort_keys=True, separators=(",", ":")) + "\n")
    path.write_text("".join(lines))


OPEN = {"kind": "open", "header": {"format_version": 1, "private": True}}
PLANNED = {"rounds": 3, "mechanism": MECHANISM, "vocabulary": None}
ROUND = {"kind": "round", "round": 0, "attempt": 0, "mechanism": MECHANISM, "private": True}


def nested(depth):
    found = []
    for _ in range(depth):
        found = [found]
    return found


HOSTILE = [
    [{"kind": "open"}],
    *([{"kind": "open", "header": header}] for header in (None, 1, "x", [], {}, {"format_version": [1]})),
    *([{"kind": "open", "header": {"format_version": v, "private": True}}] for v in (True, 1.0, "1", None, {}, 2)),
    *([OPEN, {"kind": kind}] for kind in (None, 1, [], {}, True, "open", "histogram")),
    [OPEN, ROUND | {"mechanism": nested(200)}],
    [OPEN, ROUND | {"mechanism": MECHANISM | {"noise_multiplier": 10**4000}}],
    [OPEN, ROUND | {"mechanism": MECHANISM | {"max_holders": 10**4000}}],
    [OPEN, ROUND | {"round": "x" * 50_000}],
]


@pytest.mark.parametrize("events", HOSTILE, ids=range(len(HOSTILE)))
def test_ledgers_of_another_shape_are_refused_in_one_line(path, events):
    forged(path, *events)
    refused(path)


def refused(path):
    with pytest.raises(InputError) as caught:
        ledger_epsilon(path, delta=1e-5)
    assert_one_line(caught.value)


def assert_one_line(error):
    assert "\n" not in str(error)
    assert len(str(error)) < 600


@pytest.mark.parametrize(
    "line",
    [
        b"[" * 60_000,
        b'{"a":' * 10_000,
        b"\xff\xfe",
        b"NaN",
        b"null",
        b"[]",
        b"1" * 5000,
        b'{"seq":0,"seq":0,"kind":"open"}',
        b'{"seq":1e400}',
        b'{"seq":0,"prev":[],"digest":{},"kind":"open","header":{}}',
        b"x" * 100_000,
    ],
    ids=range(11),
)
def test_lines_that_nobody_writes(path, line):
    for content in (line + b"\n", line + b"\n" + line + b"\n", line):
        path.write_bytes(content)
        refused(path)


def test_the_same_event_spelt_otherwise_is_refused(path):
    forged(path, OPEN, ROUND)
    good = path.read_text()
    for other in (
        good.replace('"round":0', '"round":9,"round":0'),
        good.replace(":1.0", ":1.00"),
        good.replace(",", ", "),
    ):
        assert other != good
        path.write_text(other)
        refused(path)


def test_an_endless_line_is_not_read_to_its_end(path):
    with path.open("wb") as file:
        file.truncate(1 << 32)  # 4 GiB of nothing
    started = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    refused(path)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - started < 100_000  # kB
    if os.path.exists("/dev/zero"):
        with pytest.raises(InputError, match="is not a regular file"):
            read_ledger("/dev/zero")


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**40), 10**40) | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=5) | st.sampled_from([0, 1, 3, 0.5, 1.0, "round", "plan", "vocabulary", "all", MECHANISM]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)  # fmt: skip
FIELDS = [
    "kind",
    "header",
    "mechanism",
    "private",
    "round",
    "rounds",
    "noise_multiplier",
    "max_holders",
    "threshold_delta",
]


@given(st.data())
@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_whatever_a_ledger_says_it_is_priced_or_refused(path, data):
    events = [
        json.loads(json.dumps(each))
        for each in (OPEN | {"header": OPEN["header"] | {"plan": PLANNED}}, {"kind": "plan", "rounds": 2}, ROUND, ROUND)
    ]
    for _ in range(data.draw(st.integers(1, 3))):
        target = data.draw(st.sampled_from(events))
        while data.draw(st.booleans()) and any(isinstance(value, dict) for value in target.values()):
            target = data.draw(st.sampled_from([value for value in target.values() if isinstance(value, dict)]))
        if target:
            name = data.draw(st.sampled_from(sorted(target)) | st.sampled_from(FIELDS))
            if data.draw(st.integers(0, 4)):
                target[name] = data.draw(VALUES)
            else:
                target.pop(name, None)
    path.unlink(missing_ok=True)
    forged(path, *events)
    try:
        answer = ledger_epsilon(path, delta=1e-5)
    except InputError as error:
        assert_one_line(error)
    else:
        assert answer["epsilon"] >= 0.0
        assert answer["guarantee"] == math.isfinite(answer["epsilon"])
        if answer["guarantee"]:  # what was recorded is never more than what is paid
            assert answer["planned_rounds"] is not None
            recorded = epsilon_of_events([e for e in events[1:] if e["kind"] != "plan"], delta=1e-5)
            assert answer["epsilon"] >= recorded


def test_a_link_is_never_written_to(path, tmp_path):
    filled(tmp_path / "another")
    (tmp_path / "another").write_bytes((tmp_path / "another").read_bytes() + b"torn")
    before = (tmp_path / "another").read_bytes()
    path.symlink_to(tmp_path / "another")
    with pytest.raises(InputError, match="is a link"):
        Ledger.open(path)
    assert (tmp_path / "another").read_bytes() == before

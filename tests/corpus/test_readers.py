"""Every format: what is read, where users come from, and what bad input is told."""

from __future__ import annotations

import itertools
import json
import os
import random
import resource
import subprocess
import sys
import textwrap
import time
from contextlib import suppress
from pathlib import Path
from unittest import mock

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from uedp_ray.config import SourceConfig
from uedp_ray.corpus import _rows
from uedp_ray.corpus._layout import join_lines
from uedp_ray.corpus._lines import LONGEST
from uedp_ray.corpus._splitting import cut
from uedp_ray.corpus._windows import windows
from uedp_ray.corpus.readers import conll, read, read_rows
from uedp_ray.corpus.readers import speeches as plays
from uedp_ray.corpus.readers.ag_news import unescape
from uedp_ray.corpus.readers.speeches import speeches
from uedp_ray.corpus.records import Mention, Sentence, entity_form
from uedp_ray.errors import InputError

SECRET = "Zebulon"  # must never show up in an error


def _read(path: Path, format_: str, **settings: int) -> list[Sentence]:
    return list(read(SourceConfig(path=str(path), format=format_, **settings)))  # type: ignore[arg-type]


def _write(folder: Path, text: str, name: str = "file") -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def _jsonl(folder: Path, *rows: object) -> Path:
    return _write(folder, "\n".join(json.dumps(row) for row in rows))


def _forms(sentence: Sentence) -> list[tuple[str, str]]:
    return [(m.category, sentence.text[m.start : m.end]) for m in sentence.mentions]


CONLL = """-DOCSTART- -X- O O

Ann NNP I-NP {b}-PER
Lee NNP I-NP I-PER
Bob NNP I-NP B-PER
left VBD I-VP O

Rome NNP I-NP {b}-LOC
IBM NNP I-NP {b}-ORG

-DOCSTART- -X- O O

It PRP I-NP O
"""


@pytest.mark.parametrize("b", ["I", "B"], ids=["IOB1", "BIO"])
def test_conll_decodes_both_taggings_alike(tmp_path: Path, b: str) -> None:
    first, second, third = _read(_write(tmp_path, CONLL.format(b=b)), "conll")
    assert _forms(first) == [("person", "Ann Lee"), ("person", "Bob")]
    assert _forms(second) == [("loc", "Rome"), ("org", "IBM")]
    assert first.tags == ("NNP", "NNP", "NNP", "VBD")
    assert first.user == second.user != third.user


def test_conll_two_columns_without_documents_make_every_sentence_a_user(tmp_path: Path) -> None:
    sentences = _read(_write(tmp_path, "Ann\tB-person\n\t\nshe\tO\nran\tO"), "conll")
    assert [s.text for s in sentences] == ["Ann", "she ran"]
    assert sentences[0].user != sentences[1].user
    assert sentences[0].tags is None


def test_conll_token_with_a_no_break_space_stays_one_word_under_its_tag(tmp_path: Path) -> None:
    (sentence,) = _read(_write(tmp_path, "Ann\u00a0Lee NNP I-NP I-PER\n\u2028 : O O\n"), "conll")
    assert (sentence.text, sentence.tags) == ("Ann_Lee _", ("NNP", ":"))
    assert _forms(sentence) == [("person", "Ann_Lee")]


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("mark", ["", "\ufeff"])
def test_line_ends_and_byte_order_marks_of_every_system(tmp_path: Path, end: str, mark: str) -> None:
    def path(*lines: str) -> Path:
        (tmp_path / "file").write_bytes((mark + end.join(lines)).encode())
        return tmp_path / "file"

    assert [s.text for s in _read(path("Ann N O", "left V O", "", "so R O", ""), "conll")] == ["Ann left", "so"]
    assert [s.text for s in _read(path('{"user": "u", "text": "a"}', "", '{"user": "u", "text": "b"}'), "jsonl")] == [
        *"ab"
    ]
    assert [s.text for s in _read(path('"1","","a"', '"2","","b', 'c"', ""), "ag-news")] == ["a", "b c"]
    assert [s.text for s in _read(path("ANN:", "a", "b", "", "BOB:", "c"), "speeches")] == ["a b", "c"]
    assert [s.text for s in _read(path("a", "", "b"), "text")] == [*"ab"]


@pytest.mark.parametrize("rest", ["", " NNP", " NNP O", " NNP I-NP I-PER extra", " NNP I-NP PER"])
def test_conll_malformed_line_is_named_and_not_shown(tmp_path: Path, rest: str) -> None:
    path = _write(tmp_path, f"It PRP I-NP O\n{SECRET}{rest}\n")
    with pytest.raises(InputError, match=f"{path}:2") as caught:
        _read(path, "conll")
    assert SECRET not in str(caught.value)


def test_files_that_are_not_utf8_and_paths_that_are_not_there(tmp_path: Path) -> None:
    path = tmp_path / "latin"
    for lines, end in itertools.product((1, 2, 70_000), (b"\n", b"\r\n", b"\r")):
        path.write_bytes((b"It PRP O" + end) * (lines - 1) + "caf\xe9 N O\n".encode("latin-1"))
        with pytest.raises(InputError, match=rf"latin:{lines}'.*UTF-8"):
            _read(path, "conll")
    with pytest.raises(InputError, match="no such file"):
        _read(tmp_path / "absent", "text")


@pytest.mark.parametrize("format_", ["jsonl", "conll", "ag-news", "speeches", "text"])
def test_hostile_lines_are_refused_in_one_line(tmp_path: Path, format_: str) -> None:
    path = tmp_path / "file"
    for content in (f"{SECRET} \0".encode(), f"{SECRET}\n".encode("utf-16"), b"x" * (LONGEST + 1), b"[" * 1_000_000):
        path.write_bytes(content)
        if format_ == "text" and b"\0" not in content:
            assert sum(len(s.text) for s in _read(path, "text")) == len(content)  # public text may be one line
            continue
        with pytest.raises(InputError, match=r"file:1'") as caught:
            _read(path, format_)
        assert SECRET not in str(caught.value)


def test_one_sentence_or_speech_without_end_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (conll, plays):
        monkeypatch.setattr(module, "LONGEST", 1000)
    for format_, head, line in (("conll", "", "word N O\n"), ("speeches", "ANN:\n", "a verse\n")):
        assert _read(_write(tmp_path, (head + line * 100 + "\n") * 9), format_), "each is short enough"
        with pytest.raises(InputError, match=r"file:1\d\d'.*more than 1,000 characters"):
            _read(_write(tmp_path, head + line * 1000), format_)


def test_public_text_of_one_line_is_cut_at_blanks(tmp_path: Path) -> None:
    path = _write(tmp_path, "word " * 500_000)
    sentences = _read(path, "text")
    assert sum(len(s.text.split()) for s in sentences) == 500_000
    assert {word for s in sentences for word in s.text.split()} == {"word"}


def test_byte_order_marks_within_joined_files_and_escaped_nul(tmp_path: Path) -> None:
    path = _write(tmp_path, '{"user": "u", "text": "a"}\n\ufeff{"user": "u", "text": "b\\u0000c"}\n')
    assert [s.text for s in _read(path, "jsonl")] == ["a", "b c"]


def test_what_is_no_file_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    os.mkfifo(tmp_path / "a.jsonl")
    for path in (tmp_path / "a.jsonl", tmp_path, Path("/dev/null")):
        with pytest.raises(InputError, match="neither a file nor a folder"):
            _read(path, "jsonl")
    (tmp_path / "a.jsonl").unlink()
    (tmp_path / "a.jsonl").symlink_to(tmp_path / "absent")
    with pytest.raises(InputError, match="neither a file nor a folder"):
        _read(tmp_path, "jsonl")

    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    path = _write(tmp_path, "{}")
    for name, source in (("open", path), ("iterdir", tmp_path)):
        with monkeypatch.context() as patched:
            patched.setattr(Path, name, refuse)
            with pytest.raises(InputError, match="cannot be read: Permission denied"):
                _read(source, "text")


@pytest.mark.parametrize(
    ("row", "key"),
    [
        ('{"user": "ann", "text": "a", "user": "ben"}', "'user'"),
        ('{"user": "ann", "text": "a", "entities": [{"text": "a", "category": "b", "text": "c"}]}', "'text'"),
        ('{"user": "ann", "text": "a", "secret": 1, "secret": 2}', "a key"),
    ],
)
def test_a_key_that_is_written_twice_is_refused(tmp_path, row, key):
    (tmp_path / "a.jsonl").write_text(row)
    with pytest.raises(InputError, match=f"a.jsonl:1.*: {key} is written twice in one object") as refused:
        _read(tmp_path / "a.jsonl", "jsonl")
    assert not any(text in str(refused.value) for text in ("ann", "secret"))


@pytest.mark.parametrize("format_", ["jsonl", "parquet"])
def test_too_few_file_descriptors_are_named_as_such(tmp_path: Path, format_: str) -> None:
    path = _jsonl(tmp_path, {"user": "u", "text": "a"})
    if format_ == "parquet":
        pq.write_table(pa.table({"user": ["u"], "text": ["a"]}), path)
    reading, taken = read(SourceConfig(path=str(path), format=format_)), []  # type: ignore[arg-type]
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) + 64, hard))
    try:
        with suppress(OSError):
            while True:
                taken.append(os.dup(0))
        with pytest.raises(InputError, match="ulimit -n"):
            next(reading)
    finally:
        for number in taken:
            os.close(number)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_many_entities_by_their_text_in_a_long_row_are_refused(tmp_path: Path) -> None:
    entities = [{"category": "x", "text": f"w{i}"} for i in range(20_000)]
    with pytest.raises(InputError, match="too many entities"):
        _read(_jsonl(tmp_path, _long(20_000, entities=entities)), "jsonl")


@pytest.mark.parametrize("kind", ["compressed", "repeated", "listed", "tags", "category", "text"])
def test_a_parquet_file_that_unpacks_without_end_is_refused(tmp_path: Path, kind: str) -> None:
    if kind == "compressed":  # one text of 64 MiB
        table = pa.table({"user": ["u"], "text": ["a " * (1 << 25)]})
        pq.write_table(table, tmp_path / "x", compression="zstd", use_dictionary=False)
    elif kind == "repeated":  # one text of 1 MB, 100,000 times
        columns = {"user": "u", "text": "w " * 500_000}
        index = pa.array(np.zeros(100_000, np.int32))
        table = pa.table({k: pa.DictionaryArray.from_arrays(index, [v]) for k, v in columns.items()})
        pq.write_table(table, tmp_path / "x", compression="zstd", dictionary_pagesize_limit=1 << 21)
    elif kind != "listed":  # one tag, category or text of an entity of 1 MB, 40,000 times
        many = pa.DictionaryArray.from_arrays(pa.array(np.zeros(40_000, np.int32)), pa.array(["w" * 1_000_000]))
        items = many if kind == "tags" else pa.StructArray.from_arrays([many], [kind])
        lists = pa.ListArray.from_arrays([*range(0, 40_000, 100), len(items)], items)
        count = len(lists)
        table = pa.table(
            {"user": ["u"] * count, "text": ["a"] * count, "tags" if kind == "tags" else "entities": lists}
        )
        pq.write_table(table, tmp_path / "x", compression="zstd", dictionary_pagesize_limit=1 << 21, store_schema=False)
    else:  # 20 million tags
        tags = pa.DictionaryArray.from_arrays(pa.array(np.zeros(20_000_000, np.int8)), ["t"])
        table = pa.table({"user": ["u"], "text": ["a"], "tags": pa.ListArray.from_arrays([0, len(tags)], tags)})
        pq.write_table(table, tmp_path / "x", compression="zstd")
    assert (tmp_path / "x").stat().st_size < 50_000
    script = f"""
import resource
from uedp_ray.corpus._rows import read_parquet
from uedp_ray.errors import InputError
from pathlib import Path
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
try:
    for _ in read_parquet(Path({str(tmp_path / "x")!r})):
        pass
except InputError as error:
    print(error.remedy, (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) >> 10, sep="|")
"""
    done = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True)
    remedy, mebibytes = done.stdout.split("|")
    assert "unpacks to" in remedy
    assert int(mebibytes) < 600


def test_ag_news_draws_users_from_the_seed(tmp_path: Path) -> None:
    path = _write(tmp_path, "Class Index,Title,Description\n" + "".join(f'"1","","Story {i}."\n' for i in range(200)))
    sentences = _read(path, "ag-news", seed=3)
    assert len(sentences) == 200
    assert sentences == _read(path, "ag-news", seed=3)
    assert [s.user for s in sentences] != [s.user for s in _read(path, "ag-news", seed=4)]
    assert {s.label for s in sentences} == {"1"}
    users = [s.user for s in sentences]
    sizes = [users.count(user) for user in dict.fromkeys(users)]
    assert all(7 <= size <= 23 for size in sizes[:-1])  # 15 +- 4 standard deviations
    assert len(set(sizes[:-1])) > 1


def test_ag_news_restores_damaged_escapes() -> None:
    assert unescape(r"the  #39;G #39; word &lt;b&gt; a  quot;b quot; AT amp;T c\band &#36;5") == (
        "the 'G' word <b> a \"b\" AT&T c band $5"
    )


@pytest.mark.parametrize("row", [f'"1","{SECRET}"', f'"x","{SECRET}","b"', f'"1","a","{SECRET}'])
def test_ag_news_bad_row(tmp_path: Path, row: str) -> None:
    with pytest.raises(InputError, match=r"file:2") as caught:
        _read(_write(tmp_path, f'"1","","fine"\n{row}\n'), "ag-news")
    assert SECRET not in str(caught.value)


def test_jsonl_rows_are_split_and_entities_follow(tmp_path: Path) -> None:
    text = "Dr. Ann Lee came.  \nShe met J. Smith! Ann left"
    entities = [{"category": "PER", "text": "ann  lee"}, {"category": "PERSON", "start": 38, "end": 41}]
    path = _jsonl(tmp_path, {"user": 7, "text": text, "entities": entities})
    sentences = _read(path, "jsonl")
    assert [s.text for s in sentences] == ["Dr. Ann Lee came.", "She met J. Smith!", "Ann left"]
    assert [_forms(s) for s in sentences] == [[("person", "Ann Lee")], [], [("person", "Ann")]]
    assert {s.user for s in sentences} == {"7"}


def test_entity_text_stands_for_all_its_occurrences_as_whole_words(tmp_path: Path) -> None:
    row = {"user": "u", "text": "Ann and annual ANN", "entities": [{"category": "person", "text": "Ann"}]}
    (sentence,) = _read(_jsonl(tmp_path, row), "jsonl")
    assert sentence.mentions == (Mention("person", 0, 3), Mention("person", 15, 18))


def test_rows_with_a_label_or_tags_stay_whole(tmp_path: Path) -> None:
    text = "It rained. He left"
    labelled, tagged = _read(
        _jsonl(tmp_path, {"user": "a", "text": text, "label": 2}, {"user": "b", "text": text, "tags": list("PVPV")}),
        "jsonl",
    )
    assert (labelled.text, labelled.label) == (text, "2")
    assert tagged.tags == ("P", "V", "P", "V")


@pytest.mark.parametrize(
    "line",
    [
        "{" + SECRET,
        "[1]",
        '{"text": "Zebulon"}',
        '{"user": "", "text": "Zebulon"}',
        '{"user": " ", "text": "Zebulon"}',
        '{"user": true, "text": "Zebulon"}',
        '{"user": "Zebulon"}',
        '{"user": "u", "text": ["Zebulon"]}',
        '{"user": "u", "text": "Zebulon \\ud800"}',
        '{"user": "u", "text": "Zebulon", "label": "\\ud800"}',
        '{"user": "u", "text": "Zebulon", "tags": ["\\ud800"]}',
        '{"user": "u", "text": "Zebulon", "entities": [{"category": "\\ud800", "text": "Zebulon"}]}',
        '{"user": "u", "text": "Zebulon", "label": [1]}',
        '{"user": "u", "text": "Zebulon", "tags": ["A", "B"]}',
        '{"user": "u", "text": "Zebulon", "tags": "A"}',
        '{"user": "u", "text": "Zebulon", "entities": ["Zebulon"]}',
        '{"user": "u", "text": "Zebulon", "entities": [{"text": "Zebulon"}]}',
        '{"user": "u", "text": "Zebulon", "entities": [{"category": "per"}]}',
        '{"user": "u", "text": "Zebulon", "entities": [{"category": "per", "text": "Ann"}]}',
        '{"user": "u", "text": "Zebulon", "entities": [{"category": "per", "start": 3, "end": 9}]}',
    ],
)
def test_jsonl_bad_row_is_named_and_not_shown(tmp_path: Path, line: str) -> None:
    with pytest.raises(InputError, match=r"file:2") as caught:
        _read(_write(tmp_path, '{"user": "u", "text": "fine"}\n' + line), "jsonl")
    assert SECRET not in str(caught.value)


def test_parquet_reads_as_json_lines_do(tmp_path: Path) -> None:
    rows = [
        {"user": "b", "text": "Ann ran.", "entities": [{"category": "PER", "start": 0, "end": 3}]},
        {"user": "a", "text": "", "entities": None},
    ]
    path = tmp_path / "rows.parquet"
    pq.write_table(pa.Table.from_pylist(rows), path)
    assert _read(path, "parquet") == _read(_jsonl(tmp_path, *rows), "jsonl")


def test_a_folder_is_its_visible_files_by_name(tmp_path: Path) -> None:
    for name in ("b.jsonl", "a.jsonl", ".hidden.jsonl", "notes.txt"):
        _write(tmp_path, json.dumps({"user": "u", "text": name}), name)
    (tmp_path / "c.jsonl").mkdir()
    assert [(s.user, s.text) for s in _read(tmp_path, "jsonl")] == [("u", "a.jsonl"), ("u", "b.jsonl")]
    with pytest.raises(InputError, match="parquet file"):
        _read(tmp_path, "parquet")


def test_parquet_bad_input(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="Parquet"):
        _read(_write(tmp_path, "no"), "parquet")
    pq.write_table(pa.table({"text": ["a"]}), tmp_path / "x")
    with pytest.raises(InputError, match="no column user"):
        _read(tmp_path / "x", "parquet")
    pq.write_table(pa.table({"user": ["u", None], "text": ["a", "b"]}), tmp_path / "x")
    with pytest.raises(InputError, match="row 2"):
        _read(tmp_path / "x", "parquet")
    twice = pa.table([["ann", "ann"], ["a", "b"], ["row1", "row2"]], names=["user", "text", "user"])
    pq.write_table(twice, tmp_path / "x")
    with pytest.raises(InputError, match="has two columns of one name: keep one"):
        _read(tmp_path / "x", "parquet")
    pq.write_table(pa.table({"user": [5.0], "text": ["a"]}), tmp_path / "x")
    with pytest.raises(InputError, match="user is no text and no whole number: write user ids as text"):
        _read(tmp_path / "x", "parquet")
    latin = pa.array([f"{SECRET} caf\xe9".encode("latin-1")]).view(pa.string())
    pq.write_table(pa.table({"user": ["u"], "text": latin}), tmp_path / "x")
    with pytest.raises(InputError, match="not a readable Parquet") as caught:
        _read(tmp_path / "x", "parquet")
    assert SECRET not in str(caught.value)
    pq.write_table(pa.table({"user": ["u"] * 9000, "text": [f"{i} words" for i in range(9000)]}), tmp_path / "x")
    damaged = bytearray((tmp_path / "x").read_bytes())
    damaged[300:4000] = bytes(3700)
    (tmp_path / "x").write_bytes(damaged)
    with pytest.raises(InputError, match="not a readable Parquet"):
        _read(tmp_path / "x", "parquet")


_STRUCT = pa.struct([("category", pa.string()), ("start", pa.int64())])
OTHER_TYPES: dict[str, pa.Array] = {
    "float": pa.array([1.5, float("nan")]),
    "boolean": pa.array([True, False]),
    "integer": pa.array([7, 2**62]),
    "decimal": pa.array([7, 8]).cast(pa.decimal128(20, 1)),
    "binary": pa.array([SECRET.encode(), b"\xff"]),
    "date": pa.array([7, 8], pa.int32()).cast(pa.date32()),
    "late date": pa.array([2**31 - 1, 8], pa.int32()).cast(pa.date32()),
    "late timestamp": pa.array([2**62, 8]).cast(pa.timestamp("us")),
    "timestamp of nowhere": pa.array([7, 8]).cast(pa.timestamp("us", "Nowhere/Land")),
    "time": pa.array([7, 8]).cast(pa.time64("us")),
    "long duration": pa.array([2**62, 8]).cast(pa.duration("ms")),
    "dictionary": pa.array([7, 8]).dictionary_encode(),
    "struct": pa.array([{"category": SECRET, "start": 0}] * 2, _STRUCT),
    "struct of a name twice": pa.StructArray.from_arrays([pa.array(["a", SECRET])] * 2, ["category", "category"]),
    "map": pa.array([[(SECRET, 1)], []], pa.map_(pa.string(), pa.int64())),
    "list of integers": pa.array([[1], [2]]),
    "list of lists": pa.array([[[SECRET]], [[]]]),
    "list of nulls": pa.array([[None], []], pa.list_(pa.null())),
    "list of late timestamps": pa.array([[2**62], [8]]).cast(pa.list_(pa.timestamp("us"))),
}


NAMING = {"user": ("integer", "dictionary"), "label": ("integer", "dictionary", "boolean")}
"""What may name a user or a label."""


@pytest.mark.parametrize(
    ("column", "kind"),
    [
        (column, kind)
        for column in ("user", "text", "label", "tags", "entities")
        for kind in OTHER_TYPES
        if kind not in NAMING.get(column, ())
    ],
)
def test_a_parquet_column_of_another_type_is_named_with_its_row_and_not_shown(
    tmp_path: Path, column: str, kind: str
) -> None:
    columns = {"user": ["Ann", "Bob"], "text": [f"{SECRET} ran", "away"], column: OTHER_TYPES[kind]}
    pq.write_table(pa.table(columns), tmp_path / "x")
    with pytest.raises(InputError, match=rf"x:row [12]': .*{column}") as caught:
        _read(tmp_path / "x", "parquet")
    assert SECRET not in str(caught.value)


def test_speeches(tmp_path: Path) -> None:
    path = _write(tmp_path, "ANN:\nWhat, ho!\nAnd then\nwe left.\n\n\nBOB:\n\nANN:\nYes")
    assert [(s.user, s.text) for s in _read(path, "speeches")] == [
        ("ANN", "What, ho!"),
        ("ANN", "And then we left."),
        ("BOB", ""),
        ("ANN", "Yes"),
    ]
    with pytest.raises(InputError, match=r"file:1"):
        _read(_write(tmp_path, "no name here\n"), "speeches")


def test_text_is_split_and_tokenised_stops_too(tmp_path: Path) -> None:
    path = _write(
        tmp_path, ' = Title = \n \nHe came . <unk> left . It \'s 3.5 .\n(So.) "Really?" He left. then\nthe end\n'
    )
    assert [s.text for s in _read(path, "text")] == [
        "= Title =",
        "He came .",
        "<unk> left .",
        "It 's 3.5 .",
        "(So.)",
        '"Really?"',
        "He left. then",
        "the end",
    ]
    assert {s.user for s in _read(path, "text")} == {"public"}


def test_splitting_never_cuts_an_entity_and_loses_none() -> None:
    text = "  At Yahoo! Ltd! Ann rests.\n1. Definitions follow. End"
    mentions = (Mention("org", 5, 16), Mention("person", 17, 20))
    pieces = [s for (s,) in cut(Sentence("u", text, running=True), mentions, 128)]
    assert [s.text for s in pieces] == ["At Yahoo! Ltd!", "Ann rests.", "1. Definitions follow.", "End"]
    assert pieces[0].mentions == (Mention("org", 3, 14),)
    assert pieces[1].mentions == (Mention("person", 0, 3),)
    assert list(cut(Sentence("u", " \n ", running=True), (), 128)) == []


SENTENCES = """
    Am 16. Juni hat Frau Vogel die Akte verloren. | Niemand fand sie.
    Wir trafen uns am 3. Mai in Köln. | Es war Freitag, der 4. Mai.
    Die Fa. Meyer zahlt lt. Vertrag Nr. 5 Abs. 2. | Das ist neu.
    Siehe Buchst. A und Hr. Koch. | Er weiß, z. B. Anna.
    Im 2. Weltkrieg, im 3. Stock und im XIV. Kapitel. | Das kostet 16. | Er ist 42. | Sie ist 39.
    Dipl.-Ing. Weber und Prof. Dr. Kurz helfen bzw. Herr Koch hilft. | Gut.
    Die Müller & Co. KG haftet für 5 Mio. Euro. | Dann kam Brot, Käse usw. | Wir zahlen.
    Am 16.06. Frau Vogel besucht. | Wir zahlen bis 30.06. | Danke.
    Er mietet ab 1. Jan. Zimmer bei Fam. Lang. | Er bleibt bis 31. Dez. | Das ist lang.
    „Ich gehe.“ | Er blieb. | „Nein.“ | So war's. | »Gut.« | Ende.
    Kestrel & Co. LLC paid. | Nobody knew St. Mary's. | Ann didn't. | Bob did.
    In Vogel vs. Kestrel Ltd. Judge Koch ruled. | It cost approx. Ten.
    It was due on Jan. 5 or 5. January, see No. 7 on p. 12. | He paid.
    I am 16. | She works for Kestrel Inc. | They met Dr. J. Lee.
    Boeing Co. Chief Executive Ann Lee met Lt. Col. Brown of Mt. Vernon. | She left.
    Section 4. Definitions. | See Fig. A1. | She loves art. | No. | That is wrong.
    Mme. Leroy est partie. | La Sra. Gil y el Lic. Ruiz. | Il Dott. Rossi, due anni fa. | Ora no.
    Mevr. De Vries komt. | Hr. Olsen, f.eks. Anna. | Mgr Nowak, św. Jana. | JUDr. Nová.
"""


@pytest.mark.parametrize("line", SENTENCES.strip().split("\n"))
def test_sentences_end_at_no_ordinal_initial_or_abbreviation(line: str) -> None:
    sentences = line.strip().split(" | ")
    row = Sentence("u", " ".join(sentences), running=True)
    assert [piece.text for (piece,) in cut(row, (), 128)] == sentences


@pytest.mark.parametrize("text", ["Dr. " * 25_000, "x" + "\u00a0" * 100_000 + ". A"])
def test_splitting_takes_linear_time(text: str) -> None:
    begin = time.process_time()
    cuts = list(cut(Sentence("u", text, running=True), (), sys.maxsize))
    assert len(cuts) <= 2
    assert time.process_time() - begin < 3  # takes a tenth of a second


LINES = {
    "Doctor Angela\nMerkel in New\nYork": "Doctor Angela Merkel in New York",
    "so said Angela\r\nMerkel": "so said Angela  Merkel",
    "one\n\ntwo\n \nthree": "one\n\ntwo\n \nthree",  # paragraphs
    "> I met Ann\n> Lee today\nDid you": "> I met Ann   Lee today\nDid you",  # quoted mail
    "> > deep\n> less": "> > deep\n> less",
    "Bring\n- Ann\n- Bob and\n  Cleo": "Bring\n- Ann\n- Bob and   Cleo",  # a list
    "1. Ann\n2) Bob": "1. Ann\n2) Bob",
    "traf Ann am\n16. Juni im\n3. Stock": "traf Ann am 16. Juni im 3. Stock",  # ordinals
    "Köln, den\n3. Mai": "Köln, den 3. Mai",
    "Freitag,\n3. Mai": "Freitag, 3. Mai",
    "3. Mai Ann\n4. Mai Bob": "3. Mai Ann\n4. Mai Bob",
    "# Ann\nLee\n= Bob =\nCleo": "# Ann\nLee\n= Bob =\nCleo",  # headings
    "Ann\n---\nLee": "Ann\n---\nLee",
    "Ann: hi Bob\nand Cleo\nBob: hi": "Ann: hi Bob and Cleo\nBob: hi",  # chat
    "[10:32] Ann\n[10:33] Bob": "[10:32] Ann\n[10:33] Bob",
    "said Ann\nLee: no": "said Ann Lee: no",
    "hi\nwhat will you do tonight, Ann\nno\nnothing\nok\nbye": "hi\nwhat will you do tonight, Ann\nno\nnothing\nok\nbye",
    "call 415\n(415) 555-0199": "call 415 (415) 555-0199",
}


@pytest.mark.parametrize(("text", "joined"), LINES.items())
def test_line_ends_that_only_wrap_are_joined_a_character_for_a_character(text: str, joined: str) -> None:
    assert join_lines(text) == joined
    assert len(joined) == len(text)


@pytest.mark.parametrize("width", [20, 40, 72, 100])
def test_wrapped_text_is_joined_at_any_width_though_an_address_sticks_out(width: int) -> None:
    text = "Doctor Angela Merkel met old friends in New York and wrote about it at some length. " * 6
    text += "https://www.example.org/" + "x" * 100 + " tells it all over again, with pictures of New York and of her."
    wrapped = textwrap.fill(text, width, break_long_words=False, break_on_hyphens=False)
    assert wrapped.count("\n") > 3
    assert join_lines(wrapped) == text
    quoted = textwrap.indent(wrapped, "> ")
    assert " ".join(join_lines(quoted).split()) == f"> {text}"


def test_joining_takes_linear_time() -> None:
    for unit in ("\n", "> ", "a\n", " \n", "- \n", "=", "Ann: b\n", "\r\n", "[" * 9 + "\n"):
        text = unit * (100_000 // len(unit))
        assert len(join_lines(text)) == len(text)


def test_no_text_and_no_entity_is_lost_whatever_the_text() -> None:
    drawn = random.Random(0)
    parts = [*"aAbB  \n\n\r\t>.!?-:1#|[]<>\u00a0\u0085\u3000。'\"", "<unk>", "Ann: ", "\r\n", "- ", "1. ", "Mr."]
    for _ in range(500):
        text = join_lines("".join(drawn.choices(parts, k=drawn.randint(1, 120))))
        spans = [(start, start + drawn.randint(1, 20)) for start in drawn.choices(range(len(text)), k=3)]
        mentions = [Mention("x", s, min(e, len(text))) for s, e in spans if text[s:e].strip()]
        words = text.split()
        tags = tuple(map(str, range(len(words)))) if drawn.random() < 0.5 else None
        row = Sentence("u", text, None, tags, running=tags is None)
        pieces = [piece for held in cut(row, mentions, 4) for piece in held]
        assert "".join("".join(piece.text.split()) for piece in pieces) == "".join(words)
        held = sorted(entity_form(piece.text, m) for piece in pieces for m in piece.mentions)
        assert held == sorted(entity_form(text, m) for m in mentions)
        assert tags is None or all(len(piece.tags or ()) == len(piece.text.split()) for piece in pieces)
        seen = set[int]()
        for window in windows(row):
            for place, character in enumerate(window.text):
                start = window.in_row(Mention("x", place, place + 1)).start
                assert character == text[start] or character.isspace()
                seen.add(start)
        assert seen >= {place for place, character in enumerate(text) if not character.isspace()}


def test_rows_are_joined_before_they_are_cut_and_given_entities_hold(tmp_path: Path) -> None:
    text = "> so said Angela\n> Merkel. She left New\n> York.\n\nBob too"
    entities = [{"category": "per", "start": 10, "end": 25}, {"category": "loc", "text": "new york"}]
    first, second, third = _read(_jsonl(tmp_path, {"user": "u", "text": text, "entities": entities}), "jsonl")
    assert [" ".join(form.lower().split()) for _, form in _forms(first) + _forms(second)] == [
        "angela merkel",
        "new york",
    ]
    assert third.text == "Bob too"


def _long(words: int, **more: object) -> dict[str, object]:
    return {"user": "u", "text": " ".join(f"w{i}" for i in range(words)), **more}


@pytest.mark.parametrize("more", [{}, {"label": "x"}, {"tags": [f"t{i}" for i in range(1000)]}])
def test_longer_rows_become_consecutive_pieces_that_lose_nothing(tmp_path: Path, more: dict[str, object]) -> None:
    row = _long(1000, entities=[{"category": "per", "text": "w95 w96 w97 w98"}], **more)
    pieces = _read(_jsonl(tmp_path, row), "jsonl", max_words=96)
    assert " ".join(piece.text for piece in pieces) == row["text"]
    assert all(48 <= len(piece.text.split()) <= 96 for piece in pieces)
    assert [form for piece in pieces for form in _forms(piece)] == [("person", "w95 w96 w97 w98")]
    assert {piece.label for piece in pieces} == {more.get("label")}
    for piece in pieces if "tags" in more else ():
        assert piece.tags == tuple(f"t{word[1:]}" for word in piece.text.split())


def test_pieces_of_a_labelled_row_end_where_sentences_do_if_they_can(tmp_path: Path) -> None:
    text = "One two three four. Five six seven. Eight nine ten eleven twelve. End"
    pieces = _read(_jsonl(tmp_path, {"user": "u", "text": text, "label": 1}), "jsonl", max_words=5)
    assert [piece.text for piece in pieces] == [
        "One two three four.",
        "Five six seven.",
        "Eight nine ten eleven twelve.",
        "End",
    ]


def test_only_an_entity_makes_a_piece_longer(tmp_path: Path) -> None:
    entities = [{"category": "x", "start": 0, "end": 40}, {"category": "x", "start": 30, "end": 60}]
    first, *rest = _read(_jsonl(tmp_path, _long(100, entities=entities)), "jsonl", max_words=4)
    assert first.mentions == (Mention("x", 0, 40), Mention("x", 30, 60))
    assert all(len(piece.text.split()) <= 4 for piece in rest)


def test_reading_is_lazy(tmp_path: Path) -> None:
    path = _write(tmp_path, '{"user": "u", "text": "fine"}\nnot json')
    assert next(iter(read(SourceConfig(path=str(path), format="jsonl")))).text == "fine"


@pytest.mark.parametrize(
    ("file", "format_", "users", "sentences"),
    [
        ("conll2003/eng.train", "conll", 946, 14041),
        ("conll2003/eng.testa", "conll", 216, 3250),
        ("wnut17/wnut17train.conll", "conll", 3394, 3394),
        ("wnut17/emerging.dev.conll", "conll", 1009, 1009),
        ("agnews/train.csv", "ag-news", None, 15184),
        ("cuad/cuad_contracts.jsonl", "jsonl", 466, None),
        ("tinyshakespeare/input.txt", "speeches", 309, None),
    ],
)
def test_real_corpora(real_data: Path, file: str, format_: str, users: int | None, sentences: int | None) -> None:
    rows = list(read_rows(SourceConfig(path=str(real_data / file), format=format_)))  # type: ignore[arg-type]
    assert users is None or len({row.user for row in rows}) == users
    assert sentences is None or len(rows) == sentences


def test_real_speeches(real_data: Path) -> None:
    assert sum(1 for _ in speeches(real_data / "tinyshakespeare/input.txt")) == 7222


def test_a_label_that_unpacks_without_end_is_refused_as_it_is_read(tmp_path):
    """A dictionary holds a value once, whatever the number of rows that show it."""
    count, label = 200, "x" * (1 << 20)
    labels = pa.DictionaryArray.from_arrays(pa.array([0] * count, pa.int32()), pa.array([label]))
    table = pa.table({"user": ["u"] * count, "text": ["a b"] * count, "label": labels})
    pq.write_table(table, tmp_path / "bomb.parquet", compression="zstd")
    with pytest.raises(InputError, match="unpacks to more than"):
        for _ in read_rows(SourceConfig(path=str(tmp_path / "bomb.parquet"), format="parquet")):
            pass


@pytest.mark.parametrize("rows", [{}, {"row_group_size": 7}], ids=["one group", "groups"])
def test_lists_of_text_are_read_whatever_dictionaries_they_have(tmp_path: Path, rows: dict[str, int]) -> None:
    """A page of a dictionary that is full is followed by pages without."""
    text = "Ann met Ben"
    entities = [[{"category": f"c{i % 90}", "start": 0, "end": 3, "text": None}] for i in range(300)]
    columns = {"user": "u", "text": text, "tags": [["A", f"B{i % 80}", "C"] for i in range(300)], "entities": entities}
    table = pa.table({key: value if isinstance(value, list) else [value] * 300 for key, value in columns.items()})
    small = {"dictionary_pagesize_limit": 200, "data_page_size": 100, "write_batch_size": 10}
    pq.write_table(table, tmp_path / "x", **small, **rows)
    read = _read(tmp_path / "x", "parquet")
    assert [list(row.tags or ()) for row in read] == columns["tags"]
    assert [row.mentions for row in read] == [(Mention(f"c{i % 90}", 0, 3),) for i in range(300)]


def test_a_list_of_text_in_an_encoding_that_repeats_it_is_refused_by_name(tmp_path: Path) -> None:
    table = pa.table({"user": ["u"], "text": ["a b"], "tags": [["A", "B"]]})
    encoding = {"tags.list.element": "DELTA_BYTE_ARRAY"}
    pq.write_table(table, tmp_path / "x", use_dictionary=False, column_encoding=encoding)
    with pytest.raises(InputError, match=r"tags\.list\.element is encoded as DELTA_BYTE_ARRAY"):
        _read(tmp_path / "x", "parquet")


def test_a_row_that_unpacks_to_more_than_may_be_held_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = pa.table({"user": ["u"] * 3, "text": ["a", "b", " ".join("c" * 200)], "tags": [["t"], ["t"], ["t"] * 200]})
    pq.write_table(table, tmp_path / "x")
    assert len(_read(tmp_path / "x", "parquet", max_words=500)) == 3
    monkeypatch.setattr(_rows, "_BATCH", (64, 5000))
    with pytest.raises(InputError, match=r"x:row 3': unpacks to more than 5,000 bytes"):
        _read(tmp_path / "x", "parquet")


def test_lists_are_read_many_rows_at_once(tmp_path: Path) -> None:
    """Arrow copies a dictionary for every batch that is read with it."""
    table = pa.table({"user": ["u"] * 20_000, "text": ["a"] * 20_000, "tags": [[f"A{i}"] for i in range(20_000)]})
    pq.write_table(table, tmp_path / "x")
    with mock.patch.object(_rows, "_unpacked", wraps=_rows._unpacked) as counted:
        assert len(_read(tmp_path / "x", "parquet")) == 20_000
    held = [call.args[0] for call in counted.call_args_list]
    assert sum(isinstance(part, pa.RecordBatch) and "tags" in part.schema.names for part in held) < 50


def test_lists_in_columns_that_are_no_part_of_a_row_are_not_read(tmp_path: Path) -> None:
    pq.write_table(pa.table({"user": ["u"], "text": ["a b"], "more": [["x"]], "tags": [["A", "B"]]}), tmp_path / "x")
    with mock.patch.object(_rows, "checked_row", wraps=_rows.checked_row) as checked:
        _read(tmp_path / "x", "parquet")
    assert checked.call_args.args[0].keys() == {"user", "text", "tags"}

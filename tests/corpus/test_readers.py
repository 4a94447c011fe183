"""Every format: what is read, where users come from, and what bad input is told."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from uedp_ray.config import SourceConfig
from uedp_ray.corpus._layout import join_lines
from uedp_ray.corpus._splitting import cut
from uedp_ray.corpus.readers import read, read_rows, speeches, unescape
from uedp_ray.corpus.records import Mention, Sentence
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
    path.write_bytes("caf\xe9 O\n".encode("latin-1"))
    with pytest.raises(InputError, match="UTF-8"):
        _read(path, "conll")
    with pytest.raises(InputError, match="no such file"):
        _read(tmp_path / "absent", "text")


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
    text = "  At Yahoo! Inc. Ann rests.\n1. Definitions follow. End"
    mentions = (Mention("org", 5, 16), Mention("person", 17, 20))
    pieces = [s for (s,) in cut(Sentence("u", text, running=True), mentions, 128)]
    assert [s.text for s in pieces] == ["At Yahoo! Inc.", "Ann rests.", "1. Definitions follow.", "End"]
    assert pieces[0].mentions == (Mention("org", 3, 14),)
    assert pieces[1].mentions == (Mention("person", 0, 3),)
    assert list(cut(Sentence("u", " \n ", running=True), (), 128)) == []


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
    if format_ == "conll":
        assert list(read(SourceConfig(path=str(real_data / file), format=format_))) == rows  # type: ignore[arg-type]


def test_real_speeches(real_data: Path) -> None:
    assert sum(1 for _ in speeches(real_data / "tinyshakespeare/input.txt")) == 7222

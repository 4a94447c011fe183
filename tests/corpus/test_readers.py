"""Every format: what is read, where users come from, and what bad input is told."""

from __future__ import annotations

import itertools
import json
import os
import resource
from contextlib import suppress
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.corpus.reading import SECRET, forms, long_row, read_file, write_file, write_rows
from uedp_ray.config import SourceConfig
from uedp_ray.corpus._lines import LONGEST
from uedp_ray.corpus.readers import conll, read, read_rows
from uedp_ray.corpus.readers import speeches as plays
from uedp_ray.corpus.readers.ag_news import unescape
from uedp_ray.corpus.readers.speeches import speeches
from uedp_ray.corpus.records import Mention
from uedp_ray.errors import InputError

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
    first, second, third = read_file(write_file(tmp_path, CONLL.format(b=b)), "conll")
    assert forms(first) == [("person", "Ann Lee"), ("person", "Bob")]
    assert forms(second) == [("loc", "Rome"), ("org", "IBM")]
    assert first.tags == ("NNP", "NNP", "NNP", "VBD")
    assert first.user == second.user != third.user


def test_conll_two_columns_without_documents_make_every_sentence_a_user(tmp_path: Path) -> None:
    sentences = read_file(write_file(tmp_path, "Ann\tB-person\n\t\nshe\tO\nran\tO"), "conll")
    assert [s.text for s in sentences] == ["Ann", "she ran"]
    assert sentences[0].user != sentences[1].user
    assert sentences[0].tags is None


def test_conll_token_with_a_no_break_space_stays_one_word_under_its_tag(tmp_path: Path) -> None:
    (sentence,) = read_file(write_file(tmp_path, "Ann\u00a0Lee NNP I-NP I-PER\n\u2028 : O O\n"), "conll")
    assert (sentence.text, sentence.tags) == ("Ann_Lee _", ("NNP", ":"))
    assert forms(sentence) == [("person", "Ann_Lee")]


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("mark", ["", "\ufeff"])
def test_line_ends_and_byte_order_marks_of_every_system(tmp_path: Path, end: str, mark: str) -> None:
    def path(*lines: str) -> Path:
        (tmp_path / "file").write_bytes((mark + end.join(lines)).encode())
        return tmp_path / "file"

    assert [s.text for s in read_file(path("Ann N O", "left V O", "", "so R O", ""), "conll")] == ["Ann left", "so"]
    assert [
        s.text for s in read_file(path('{"user": "u", "text": "a"}', "", '{"user": "u", "text": "b"}'), "jsonl")
    ] == [*"ab"]
    assert [s.text for s in read_file(path('"1","","a"', '"2","","b', 'c"', ""), "ag-news")] == ["a", "b c"]
    assert [s.text for s in read_file(path("ANN:", "a", "b", "", "BOB:", "c"), "speeches")] == ["a b", "c"]
    assert [s.text for s in read_file(path("a", "", "b"), "text")] == [*"ab"]


@pytest.mark.parametrize("rest", ["", " NNP", " NNP O", " NNP I-NP I-PER extra", " NNP I-NP PER"])
def test_conll_malformed_line_is_named_and_not_shown(tmp_path: Path, rest: str) -> None:
    path = write_file(tmp_path, f"It PRP I-NP O\n{SECRET}{rest}\n")
    with pytest.raises(InputError, match=f"{path}:2") as caught:
        read_file(path, "conll")
    assert SECRET not in str(caught.value)


def test_files_that_are_not_utf8_and_paths_that_are_not_there(tmp_path: Path) -> None:
    path = tmp_path / "latin"
    for lines, end in itertools.product((1, 2, 70_000), (b"\n", b"\r\n", b"\r")):
        path.write_bytes((b"It PRP O" + end) * (lines - 1) + "caf\xe9 N O\n".encode("latin-1"))
        with pytest.raises(InputError, match=rf"latin:{lines}'.*UTF-8"):
            read_file(path, "conll")
    with pytest.raises(InputError, match="no such file"):
        read_file(tmp_path / "absent", "text")


def test_a_field_of_ag_news_may_be_as_long_as_any_row(tmp_path):
    """The limit of Python's module is 131,072 characters."""
    [sentence, *_] = read_file(write_file(tmp_path, f'"1","","{"word " * 40_000}"'), "ag-news")
    assert sentence.text.startswith("word word")


@pytest.mark.parametrize("format_", ["jsonl", "conll", "ag-news", "sst-2", "speeches", "text"])
def test_hostile_lines_are_refused_in_one_line(tmp_path: Path, format_: str) -> None:
    path = tmp_path / "file"
    for content in (f"{SECRET} \0".encode(), f"{SECRET}\n".encode("utf-16"), b"x" * (LONGEST + 1), b"[" * 1_000_000):
        path.write_bytes(content)
        if format_ == "text" and b"\0" not in content:
            assert sum(len(s.text) for s in read_file(path, "text")) == len(content)  # public text may be one line
            continue
        with pytest.raises(InputError, match=r"file:1'") as caught:
            read_file(path, format_)
        assert SECRET not in str(caught.value)


def test_one_sentence_or_speech_without_end_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (conll, plays):
        monkeypatch.setattr(module, "LONGEST", 1000)
    for format_, head, line in (("conll", "", "word N O\n"), ("speeches", "ANN:\n", "a verse\n")):
        assert read_file(write_file(tmp_path, (head + line * 100 + "\n") * 9), format_), "each is short enough"
        with pytest.raises(InputError, match=r"file:1\d\d'.*more than 1,000 characters"):
            read_file(write_file(tmp_path, head + line * 1000), format_)


def test_byte_order_marks_within_joined_files_and_escaped_nul(tmp_path: Path) -> None:
    path = write_file(tmp_path, '{"user": "u", "text": "a"}\n\ufeff{"user": "u", "text": "b\\u0000c"}\n')
    assert [s.text for s in read_file(path, "jsonl")] == ["a", "b c"]


def test_what_is_no_file_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    os.mkfifo(tmp_path / "a.jsonl")
    for path in (tmp_path / "a.jsonl", tmp_path, Path("/dev/null")):
        with pytest.raises(InputError, match="neither a file nor a folder"):
            read_file(path, "jsonl")
    (tmp_path / "a.jsonl").unlink()
    (tmp_path / "a.jsonl").symlink_to(tmp_path / "absent")
    with pytest.raises(InputError, match="neither a file nor a folder"):
        read_file(tmp_path, "jsonl")

    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    path = write_file(tmp_path, "{}")
    for name, source in (("open", path), ("iterdir", tmp_path)):
        with monkeypatch.context() as patched:
            patched.setattr(Path, name, refuse)
            with pytest.raises(InputError, match="cannot be read: Permission denied"):
                read_file(source, "text")


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
        read_file(tmp_path / "a.jsonl", "jsonl")
    assert not any(text in str(refused.value) for text in ("ann", "secret"))


@pytest.mark.parametrize("format_", ["jsonl", "parquet"])
def test_too_few_file_descriptors_are_named_as_such(tmp_path: Path, format_: str) -> None:
    path = write_rows(tmp_path, {"user": "u", "text": "a"})
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
        read_file(write_rows(tmp_path, long_row(20_000, entities=entities)), "jsonl")


def test_ag_news_draws_users_from_the_seed(tmp_path: Path) -> None:
    path = write_file(
        tmp_path, "Class Index,Title,Description\n" + "".join(f'"1","","Story {i}."\n' for i in range(200))
    )
    sentences = read_file(path, "ag-news", seed=3)
    assert len(sentences) == 200
    assert sentences == read_file(path, "ag-news", seed=3)
    assert [s.user for s in sentences] != [s.user for s in read_file(path, "ag-news", seed=4)]
    assert {s.label for s in sentences} == {"1"}
    users = [s.user for s in sentences]
    sizes = [users.count(user) for user in dict.fromkeys(users)]
    assert all(7 <= size <= 23 for size in sizes[:-1])  # 15 +- 4 standard deviations
    assert len(set(sizes[:-1])) > 1


def test_two_sources_of_one_file_by_the_place_of_its_rows(tmp_path: Path) -> None:
    path = write_file(tmp_path, "".join(f'"1","","Story {i}."\n' for i in range(40)))
    one, other = read_file(path, "ag-news", num_rows=25), read_file(path, "ag-news", skip_rows=25)
    assert [s.text for s in one + other] == [f"Story {i}." for i in range(40)]
    assert (len(one), one[0].user, other[0].user) == (25, "user-1", "user-1"), "users are drawn of what is read"
    assert [s.text for s in read_file(path, "ag-news", skip_rows=38, num_rows=9)] == ["Story 38.", "Story 39."]


def test_sst_2_makes_every_row_a_user(tmp_path: Path) -> None:
    path = write_file(tmp_path, "sentence\tlabel\nit 's \"good \t1\nbad \t0\nfine \t1\n")
    sentences = read_file(path, "sst-2")
    assert [(s.text, s.label) for s in sentences] == [("it 's \"good", "1"), ("bad", "0"), ("fine", "1")]
    assert len({s.user for s in sentences}) == 3
    assert read_file(path, "sst-2", skip_rows=1, num_rows=1) == sentences[1:2]


@pytest.mark.parametrize("row", [SECRET, f"{SECRET}\t", f"{SECRET}\tgood\t1"], ids=["bare", "unlabelled", "wide"])
def test_sst_2_bad_row(tmp_path: Path, row: str) -> None:
    with pytest.raises(InputError, match=r"file:3") as caught:
        read_file(write_file(tmp_path, f"sentence\tlabel\nfine\t1\n{row}\n"), "sst-2")
    assert SECRET not in str(caught.value)
    with pytest.raises(InputError, match=r"file:1"):
        read_file(write_file(tmp_path, "index\tsentence\n0\tfine\n"), "sst-2")


def test_ag_news_restores_damaged_escapes() -> None:
    assert unescape(r"the  #39;G #39; word &lt;b&gt; a  quot;b quot; AT amp;T c\band &#36;5") == (
        "the 'G' word <b> a \"b\" AT&T c band $5"
    )


@pytest.mark.parametrize("row", [f'"1","{SECRET}"', f'"x","{SECRET}","b"', f'"1","a","{SECRET}'])
def test_ag_news_bad_row(tmp_path: Path, row: str) -> None:
    with pytest.raises(InputError, match=r"file:2") as caught:
        read_file(write_file(tmp_path, f'"1","","fine"\n{row}\n'), "ag-news")
    assert SECRET not in str(caught.value)


def test_jsonl_rows_are_split_and_entities_follow(tmp_path: Path) -> None:
    text = "Dr. Ann Lee came.  \nShe met J. Smith! Ann left"
    entities = [{"category": "PER", "text": "ann  lee"}, {"category": "PERSON", "start": 38, "end": 41}]
    path = write_rows(tmp_path, {"user": 7, "text": text, "entities": entities})
    sentences = read_file(path, "jsonl")
    assert [s.text for s in sentences] == ["Dr. Ann Lee came.", "She met J. Smith!", "Ann left"]
    assert [forms(s) for s in sentences] == [[("person", "Ann Lee")], [], [("person", "Ann")]]
    assert {s.user for s in sentences} == {"7"}


def test_entity_text_stands_for_all_its_occurrences_as_whole_words(tmp_path: Path) -> None:
    row = {"user": "u", "text": "Ann and annual ANN", "entities": [{"category": "person", "text": "Ann"}]}
    (sentence,) = read_file(write_rows(tmp_path, row), "jsonl")
    assert sentence.mentions == (Mention("person", 0, 3), Mention("person", 15, 18))


def test_rows_with_a_label_or_tags_stay_whole(tmp_path: Path) -> None:
    text = "It rained. He left"
    labelled, tagged = read_file(
        write_rows(
            tmp_path, {"user": "a", "text": text, "label": 2}, {"user": "b", "text": text, "tags": list("PVPV")}
        ),
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
        read_file(write_file(tmp_path, '{"user": "u", "text": "fine"}\n' + line), "jsonl")
    assert SECRET not in str(caught.value)


def test_a_folder_is_its_visible_files_by_name(tmp_path: Path) -> None:
    for name in ("b.jsonl", "a.jsonl", ".hidden.jsonl", "notes.txt"):
        write_file(tmp_path, json.dumps({"user": "u", "text": name}), name)
    (tmp_path / "c.jsonl").mkdir()
    assert [(s.user, s.text) for s in read_file(tmp_path, "jsonl")] == [("u", "a.jsonl"), ("u", "b.jsonl")]
    with pytest.raises(InputError, match="parquet file"):
        read_file(tmp_path, "parquet")


def test_speeches(tmp_path: Path) -> None:
    path = write_file(tmp_path, "ANN:\nWhat, ho!\nAnd then\nwe left.\n\n\nBOB:\n\nANN:\nYes")
    assert [(s.user, s.text) for s in read_file(path, "speeches")] == [
        ("ANN", "What, ho!"),
        ("ANN", "And then we left."),
        ("BOB", ""),
        ("ANN", "Yes"),
    ]
    with pytest.raises(InputError, match=r"file:1"):
        read_file(write_file(tmp_path, "no name here\n"), "speeches")


def test_text_is_split_and_tokenised_stops_too(tmp_path: Path) -> None:
    path = write_file(
        tmp_path, ' = Title = \n \nHe came . <unk> left . It \'s 3.5 .\n(So.) "Really?" He left. then\nthe end\n'
    )
    assert [s.text for s in read_file(path, "text")] == [
        "= Title =",
        "He came .",
        "<unk> left .",
        "It 's 3.5 .",
        "(So.)",
        '"Really?"',
        "He left. then",
        "the end",
    ]
    assert {s.user for s in read_file(path, "text")} == {"public"}


def test_reading_is_lazy(tmp_path: Path) -> None:
    path = write_file(tmp_path, '{"user": "u", "text": "fine"}\nnot json')
    assert next(iter(read(SourceConfig(path=str(path), format="jsonl")))).text == "fine"


@pytest.mark.parametrize(
    ("file", "format_", "users", "sentences"),
    [
        ("conll2003/eng.train", "conll", 946, 14041),
        ("conll2003/eng.testa", "conll", 216, 3250),
        ("wnut17/wnut17train.conll", "conll", 3394, 3394),
        ("wnut17/emerging.dev.conll", "conll", 1009, 1009),
        ("agnews/train.csv", "ag-news", None, 15184),
        ("sst2/train.tsv", "sst-2", 67349, 67349),
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

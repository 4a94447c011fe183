"""How text becomes sentences: lines joined, sentences cut, longer rows divided, and no entity lost."""

from __future__ import annotations

import random
import sys
import textwrap
import time
from pathlib import Path

import pytest

from tests.corpus.reading import forms, long_row, read_file, write_file, write_rows
from uedp_ray.corpus._layout import join_lines
from uedp_ray.corpus._splitting import cut
from uedp_ray.corpus._windows import windows
from uedp_ray.corpus.records import Mention, Sentence, entity_form


def test_public_text_of_one_line_is_cut_at_blanks(tmp_path: Path) -> None:
    path = write_file(tmp_path, "word " * 500_000)
    sentences = read_file(path, "text")
    assert sum(len(s.text.split()) for s in sentences) == 500_000
    assert {word for s in sentences for word in s.text.split()} == {"word"}


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
    first, second, third = read_file(write_rows(tmp_path, {"user": "u", "text": text, "entities": entities}), "jsonl")
    assert [" ".join(form.lower().split()) for _, form in forms(first) + forms(second)] == [
        "angela merkel",
        "new york",
    ]
    assert third.text == "Bob too"


@pytest.mark.parametrize("more", [{}, {"label": "x"}, {"tags": [f"t{i}" for i in range(1000)]}])
def test_longer_rows_become_consecutive_pieces_that_lose_nothing(tmp_path: Path, more: dict[str, object]) -> None:
    row = long_row(1000, entities=[{"category": "per", "text": "w95 w96 w97 w98"}], **more)
    pieces = read_file(write_rows(tmp_path, row), "jsonl", max_words=96)
    assert " ".join(piece.text for piece in pieces) == row["text"]
    assert all(48 <= len(piece.text.split()) <= 96 for piece in pieces)
    assert [form for piece in pieces for form in forms(piece)] == [("person", "w95 w96 w97 w98")]
    assert {piece.label for piece in pieces} == {more.get("label")}
    for piece in pieces if "tags" in more else ():
        assert piece.tags == tuple(f"t{word[1:]}" for word in piece.text.split())


def test_pieces_of_a_labelled_row_end_where_sentences_do_if_they_can(tmp_path: Path) -> None:
    text = "One two three four. Five six seven. Eight nine ten eleven twelve. End"
    pieces = read_file(write_rows(tmp_path, {"user": "u", "text": text, "label": 1}), "jsonl", max_words=5)
    assert [piece.text for piece in pieces] == [
        "One two three four.",
        "Five six seven.",
        "Eight nine ten eleven twelve.",
        "End",
    ]


def test_only_an_entity_makes_a_piece_longer(tmp_path: Path) -> None:
    entities = [{"category": "x", "start": 0, "end": 40}, {"category": "x", "start": 30, "end": 60}]
    first, *rest = read_file(write_rows(tmp_path, long_row(100, entities=entities)), "jsonl", max_words=4)
    assert first.mentions == (Mention("x", 0, 40), Mention("x", 30, 60))
    assert all(len(piece.text.split()) <= 4 for piece in rest)

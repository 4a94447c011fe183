"""What each detector finds, how findings are united, and what bad detectors are told."""

from __future__ import annotations

import re
import time
from pathlib import Path
from unittest import mock

import pytest
import spacy
from spacy.language import Language
from spacy.pipeline import Tagger
from spacy.tokens import Doc, Span

from uedp_ray.corpus.categories import KNOWN, canonical, expand
from uedp_ray.corpus.detectors import DETECTORS, build_detectors, unite
from uedp_ray.corpus.readers import read
from uedp_ray.corpus.records import Mention, Sentence
from uedp_ray.errors import InputError


def _find(spec: str, text: str, *mentions: Mention) -> list[tuple[str, str]]:
    (detector,) = build_detectors((spec,))
    (found,) = detector.find([Sentence("u", text, mentions=mentions)])
    return [(m.category, text[m.start : m.end]) for m in found]


@pytest.mark.parametrize(
    ("label", "category"),
    [
        ("PER", "person"),
        ("LOC", "loc"),
        ("GPE", "gpe"),
        ("WORK_OF_ART", "work_of_art"),
        ("creative-work", "work_of_art"),
        ("location", "loc"),
        ("corporation", "org"),
        ("group", "org"),
        ("NORP", "norp"),
        ("Drug", "drug"),
    ],
)
def test_labels_of_other_tools(label: str, category: str) -> None:
    assert canonical(label) == category


def test_table_one_is_known_and_pii_is_a_group() -> None:
    table = (
        "person loc org misc gpe pii date norp fac product event law language work_of_art time percent money quantity "
    )
    assert set((table + "ordinal cardinal").split()) <= KNOWN
    assert {"person", "loc", "gpe", "phone", "email"} <= expand(["PII"])
    assert not {"org", "date", "diagnosis", "listed"} & expand(["pii"])
    assert expand(["Work of art", "NoRP"]) == {"work_of_art", "norp"}
    assert expand(["PER", "org"]) == {"person", "org"}


def test_unknown_category_lists_the_known() -> None:
    with pytest.raises(InputError, match=r"persn.*cardinal.*work_of_art"):
        expand(["persn"])
    with pytest.raises(InputError, match=r"'persons': did you mean person\? Else choose among "):
        expand(["persons"])
    with pytest.raises(InputError, match=r"'xyz': choose among "):
        expand(["xyz"])
    assert expand(["drug"], also_known=["drug"]) == {"drug"}


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("to ann.b+c@mail.example.org.", [("email", "ann.b+c@mail.example.org")]),
        ("to ann@www.example.org", [("email", "ann@www.example.org")]),
        ("see https://x.org/a?b=1). Or www.y.com!", [("url", "https://x.org/a?b=1"), ("url", "www.y.com")]),
        ("card 4111 1111 1111 1111", [("credit_card", "4111 1111 1111 1111")]),
        ("card 4111 1111 1111 1112", []),
        ("card 4111 1111 1111 1111 12/26", [("credit_card", "4111 1111 1111 1111")]),
        ("room 1234 4111-1111-1111-1111", [("credit_card", "4111-1111-1111-1111")]),
        ("amex 3782 822463 10005.", [("credit_card", "3782 822463 10005")]),
        ("BE68 5390 0754 7034 sent", [("iban", "BE68 5390 0754 7034")]),
        ("to GB82 WEST 1234 5698 7654 32 now", [("iban", "GB82 WEST 1234 5698 7654 32")]),
        ("to DE89370400440532013000", [("iban", "DE89370400440532013000")]),
        ("to DE88370400440532013000", []),
        ("to \u212aE89370400440532013000", []),  # a Kelvin sign is a K only where case is ignored
        ("ssn 123-45-6789", [("ssn", "123-45-6789")]),
        ("no ssn 000-45-6789, 666-45-6789", []),
        ("at 10.0.0.255", [("ip_address", "10.0.0.255")]),
        ("version 10.0.0.256 of 1.2.3.4.5", []),
        ("at 2001:db8::1", [("ip_address", "2001:db8::1")]),
        ("call (415) 555-0199", [("phone", "(415) 555-0199")]),
        ("call 4155550199 by 1700000000", [("phone", "4155550199")]),
        ("call +44 20 7946 0958 or 555-0123", [("phone", "+44 20 7946 0958"), ("phone", "555-0123")]),
        ("Tel. 0511 931316, (0511) 93 13 16-0", [("phone", "0511 931316"), ("phone", "(0511) 93 13 16-0")]),
        ("call 0511/931316 or 030-1234567 now", [("phone", "0511/931316"), ("phone", "030-1234567")]),
        ("call 0049 511 931316.", [("phone", "0049 511 931316")]),
        ("call 01 44 55 66 77 or 01.44.55.66.77", [("phone", "01 44 55 66 77"), ("phone", "01.44.55.66.77")]),
        ("call 020 7946 0958, mobile 01711234567", [("phone", "020 7946 0958"), ("phone", "01711234567")]),
        ("+49 (0)511 931316", [("phone", "+49 (0)511 931316")]),
        ("in 1999-2001 it cost 12,000.50 at 10:30", []),
        ("on 01.02.2003 14:30, 01/02/2003 or 2003-01-02 07:00", []),
        ("from 0800 - 1200, at 0800-1200, part 00123, postcode 01067 Dresden", []),
        ("to ann.lee@med-\u0020school.example.org", [("email", "ann.lee@med- school.example.org")]),
        ("to ann.maria-\u0020lee@example.org", [("email", "ann.maria- lee@example.org")]),
        ("by e-mail- ann@example.org, a - b@example.org", [("email", "ann@example.org"), ("email", "b@example.org")]),
        ("to ann@\u0020example.org", []),
    ],
)
def test_patterns(text: str, found: list[tuple[str, str]]) -> None:
    assert _find("regex", text) == found


@pytest.mark.slow
@pytest.mark.parametrize(
    "unit",
    [
        "a",
        "1",
        "1-",
        "a.",
        "+1 ",
        "a:",
        "aa11 ",
        "1 ",
        "1111 ",
        "a@a.",
        "a@bc.de ",
        "a.b- ",
        "a@b- ",
        "00",
        "012 ",
        "(01) ",
    ],
)
def test_patterns_take_linear_time(unit: str) -> None:
    """Quadratic time would not end here."""
    text = unit * (1_000_000 // len(unit))
    assert sum(len(form) for _, form in _find("regex", text)) <= len(text), "mentions do not overlap"


def test_phrase_list_finds_the_longest_whole_words_in_any_case(tmp_path: Path) -> None:
    path = tmp_path / "list.txt"
    path.write_text("New York\nNew York City\tGPE\naspirin\tdrug\n\nO'Neil\tPER\n")
    found = _find(f"list:{path}", "NEW  YORK city, new york, Newyork; aspirins, Aspirin (o'neil)")
    assert found == [("gpe", "NEW  YORK city"), ("listed", "new york"), ("drug", "Aspirin"), ("person", "o'neil")]
    assert "drug" in build_detectors((f"list:{path}",))[0].categories


@pytest.mark.parametrize("line", ["Oslo\tgpe\tNorway", f"Oslo\t{'x' * 1001}"])
def test_a_category_of_a_list_is_one_name(tmp_path, line):
    (tmp_path / "list").write_text(f"Bergen\tgpe\n{line}\n")
    with pytest.raises(InputError, match="line 2: a phrase, TAB, and a category"):
        build_detectors((f"list:{tmp_path / 'list'}",))


def test_phrase_list_knows_a_letter_with_an_accent_however_it_is_encoded(tmp_path: Path) -> None:
    path = tmp_path / "list.txt"
    path.write_text("Zo\u00eb\nRene\u0301\n")
    assert [form for _, form in _find(f"list:{path}", "zoe\u0308 , Zoe , REN\u00c9")] == ["zoe\u0308", "REN\u00c9"]


def test_phrase_list_of_a_hundred_thousand(tmp_path: Path) -> None:
    path = tmp_path / "list.txt"
    path.write_text("\n".join(f"name{i} family{i % 977}" for i in range(100_000)))
    (detector,) = build_detectors((f"list:{path}",))
    text = "then name77777 family" + str(77777 % 977) + " met name5 alone and walked on for a while"
    findings = detector.find([Sentence("u", text)] * 2000)
    assert [len(found) for found in findings] == [1] * 2000


def test_a_changed_list_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "list.txt"
    path.write_text("ann")
    (first,) = build_detectors((f"list:{path}",))
    time.sleep(0.02)
    path.write_text("bob")
    (second,) = build_detectors((f"list:{path}",))
    assert first.fingerprint != second.fingerprint
    assert _find(f"list:{path}", "Bob") == [("listed", "Bob")]


def test_annotated_repeats_the_corpus() -> None:
    assert _find("annotated", "Ann ran", Mention("person", 0, 3)) == [("person", "Ann")]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("The mayor of New York met Ann-Marie O'Neill .", ["New York", "Ann-Marie O'Neill"]),
        ("Ann met Ben, Cleo and I went to Oslo", ["Ben", "Cleo", "Oslo"]),
        ("Saint Paul", ["Paul"]),
        ("it was ÉCOLE X in U.S. custody", ["ÉCOLE X", "U.S"]),
        ("nobody here", []),
        ("", []),
    ],
)
def test_capitalised_runs_inside_a_sentence(text: str, found: list[str]) -> None:
    assert _find("capitalized", text) == [("misc", form) for form in found]


def test_union_merges_overlaps_within_a_category_and_filters() -> None:
    a = (Mention("loc", 0, 8), Mention("person", 20, 23), Mention("listed", 30, 33))
    b = (Mention("loc", 4, 13), Mention("org", 0, 8), Mention("person", 23, 26))
    assert unite([a, b], None) == (
        Mention("org", 0, 8),
        Mention("loc", 0, 13),
        Mention("person", 20, 23),  # neighbours stay two
        Mention("person", 23, 26),
        Mention("listed", 30, 33),
    )
    assert unite([a, b], frozenset({"org"})) == (Mention("org", 0, 8), Mention("listed", 30, 33))


def test_a_mention_within_another_takes_nothing_from_it():
    """By the shorter of two findings, the end of a name would count as no entity."""
    whole, part = Mention("org", 0, 20), Mention("org", 5, 9)
    assert unite([[whole], [part]], None) == unite([[part], [whole]], None) == (whole,)
    assert unite([[whole], [part], [Mention("org", 15, 25)]], None) == (Mention("org", 0, 25),)


@pytest.mark.parametrize("spec", ["spacy:no_such_model_xyz", "spacy:/no/such/model"])
def test_missing_spacy_model_names_the_command(spec: str) -> None:
    with pytest.raises(InputError, match=f"python -m spacy download {spec[6:]}"):
        build_detectors((spec,))


@pytest.mark.parametrize("spec", ["spacy", "spacy:", "ner", "annotated:x"])
def test_unknown_detector(spec: str) -> None:
    with pytest.raises(InputError, match=re.escape(", ".join(DETECTORS.values()))):
        build_detectors((spec,))


def test_no_detector_missing_list_and_empty_list(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="at least one"):
        build_detectors(())
    with pytest.raises(InputError, match="no such file"):
        build_detectors((f"list:{tmp_path / 'absent'}",))
    (tmp_path / "empty").write_text("\n \n")
    with pytest.raises(InputError, match="empty"):
        build_detectors((f"list:{tmp_path / 'empty'}",))
    (tmp_path / "latin").write_bytes("Ann\nZo\u00eb\n".encode("latin-1"))
    with pytest.raises(InputError, match=r"detector = '.*latin:2': this line is not UTF-8"):
        build_detectors((f"list:{tmp_path / 'latin'}",))


def test_spacy_pipeline_without_entities_is_refused(tmp_path: Path) -> None:
    spacy.blank("en").to_disk(tmp_path / "blank")
    with pytest.raises(InputError, match="no entity recogniser"):
        build_detectors((f"spacy:{tmp_path / 'blank'}",))


def test_damaged_spacy_pipeline_is_refused(tmp_path: Path) -> None:
    (tmp_path / "meta.json").write_text("{")
    (tmp_path / "config.cfg").write_text("[nlp")
    with pytest.raises(InputError, match="does not load"):
        build_detectors((f"spacy:{tmp_path}",))


def test_spacy_rules_and_own_components_run_with_all_they_may_read(tmp_path: Path) -> None:
    pipeline = spacy.blank("en")
    pipeline.add_pipe("attribute_ruler").add(patterns=[[{"LOWER": "ann"}]], attrs={"TAG": "NAME"})
    tagged = {"label": "PER", "pattern": [{"TAG": "NAME"}]}
    pipeline.add_pipe("entity_ruler").add_patterns([tagged, {"label": "Drug", "pattern": "aspirin"}])
    pipeline.add_pipe("uedp_test_last_word")
    pipeline.to_disk(tmp_path)
    (detector,) = build_detectors((f"spacy:{tmp_path}",))
    (found,) = detector.find([Sentence("u", "Ann took aspirin from Lee")])
    assert found == (Mention("person", 0, 3), Mention("drug", 9, 16), Mention("last", 22, 25))
    assert detector.categories >= {"person", "drug"}


@Language.component("uedp_test_last_word")
def _last_word(document: Doc) -> Doc:
    document.ents = (*document.ents, Span(document, len(document) - 1, len(document), label="LAST"))
    return document


def test_spacy_recogniser_runs_without_what_it_does_not_read(tmp_path: Path) -> None:
    pipeline = spacy.blank("en")
    pipeline.add_pipe("tagger").add_label("X")
    pipeline.add_pipe("ner").add_label("PER")
    pipeline.initialize()
    pipeline.to_disk(tmp_path)
    (detector,) = build_detectors((f"spacy:{tmp_path}",))
    with mock.patch.object(Tagger, "predict", side_effect=AssertionError("ran")):
        detector.find([Sentence("u", "Ann left")])


def test_a_changed_spacy_model_is_loaded_again(tmp_path: Path) -> None:
    def fingerprint(word: str) -> str:
        pipeline = spacy.blank("en")
        pipeline.add_pipe("entity_ruler").add_patterns([{"label": "DRUG", "pattern": word}])
        pipeline.to_disk(tmp_path)
        return build_detectors((f"spacy:{tmp_path}",))[0].fingerprint

    first = fingerprint("aspirin")
    time.sleep(0.02)
    assert fingerprint("ibuprofen") != first
    assert _find(f"spacy:{tmp_path}", "aspirin and ibuprofen") == [("drug", "ibuprofen")]


def test_spacy_model_finds_most_of_held_out_entities(real_data: Path, real_models: Path) -> None:
    from itertools import islice

    from uedp_ray.config import SourceConfig

    sentences = list(islice(read(SourceConfig(path=str(real_data / "conll2003/eng.testa"), format="conll")), 300))
    (detector,) = build_detectors((f"spacy:{real_models / 'spacy_conll03_ner'}",))
    found = detector.find(sentences)
    true = sum(len(s.mentions) for s in sentences)
    hits = sum(len(set(s.mentions) & set(f)) for s, f in zip(sentences, found, strict=True))
    assert hits / true > 0.75  # F1 is about 0.86 on tokens as given; ours are joined and split again

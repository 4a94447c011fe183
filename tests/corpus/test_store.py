"""The prepared corpus as opened: graph arrays, texts of chosen users, and what is read for them."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from unittest import mock

import numpy as np
import pyarrow.parquet as pq
import pytest

from uedp_ray.config import SourceConfig, VocabularyConfig
from uedp_ray.corpus._spill import stable_hash
from uedp_ray.corpus.prepare import prepare
from uedp_ray.corpus.readers import read
from uedp_ray.corpus.store import Corpus, open_corpus
from uedp_ray.corpus.tokens import encode_corpus
from uedp_ray.corpus.vocabulary import build_vocabulary
from uedp_ray.errors import InputError

NAMES = ["Ann", "Bob", "Cleo"]
MIXED = SourceConfig(format="synthetic", num_users=30)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    """40 users, interleaved in the file; user i holds i sentences; user 39 more than a row group's worth."""
    folder = tmp_path_factory.mktemp("store")
    rows = []
    for slot in range(5000):
        for user in range(1, 41):
            if slot < (5000 if user == 40 else user):
                name = NAMES[(user + slot) % 3]
                text = f"{name} wrote note {slot}"
                entities = [
                    {"category": "person", "start": 0, "end": len(name)},
                    {"category": "misc", "start": len(name) + 7, "end": len(text)},
                ]
                rows.append({"user": f"u{user}", "text": text, "label": slot % 2, "entities": entities})
    (folder / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    prepare(SourceConfig(path=str(folder / "rows.jsonl"), format="jsonl"), folder / "out", num_shards=3)
    return open_corpus(folder / "out")


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A corpus of all the categories that the synthetic one marks."""
    out = tmp_path_factory.mktemp("mixed") / "out"
    prepare(MIXED, out, num_shards=3)
    return out


def test_users_are_numbered_by_shard_and_sentences_by_user(corpus: Corpus) -> None:
    users = [sentences[0].user for _, sentences in corpus.sentences()]
    assert len(users) == corpus.num_users == 40
    assert corpus.user_hash.tolist() == [stable_hash(user) for user in users]
    shards = [stable_hash(user) % 3 for user in users]
    assert shards == sorted(shards)
    assert corpus.shard_users.tolist() == [0, *np.cumsum(np.bincount(shards))]
    for user, texts in corpus.texts():
        assert len(texts) == corpus.user_offsets[user + 1] - corpus.user_offsets[user]
        assert [int(text.split()[-1]) for text in texts] == list(range(len(texts)))  # slots in the order read
    assert corpus.user_offsets[-1] == corpus.num_sentences == len(corpus.entity_offsets) - 1


def test_graph_agrees_with_the_mentions(corpus: Corpus) -> None:
    table = corpus.entity_table().to_pydict()
    forms = table["form"]
    assert len(forms) == corpus.num_entities == 5003
    assert corpus.entity_hash.tolist() == [
        stable_hash(f"{category}\0{form}") for category, form in zip(table["category"], forms, strict=True)
    ]
    holders: dict[str, set[int]] = {form: set() for form in forms}
    sentence = 0
    for user, sentences in corpus.sentences():
        for record in sentences:
            ids = corpus.entity_ids[corpus.entity_offsets[sentence] : corpus.entity_offsets[sentence + 1]]
            held = {record.text[m.start : m.end].lower() for m in record.mentions}
            assert {forms[i] for i in ids} == held
            assert corpus.sentence_words[sentence] == len(record.text.split())
            for form in held:
                holders[form].add(user)
            sentence += 1
    assert corpus.entity_holders.tolist() == table["holders"] == [len(holders[form]) for form in forms]


def test_chosen_users_get_their_own_texts(corpus: Corpus) -> None:
    everything = dict(corpus.texts())
    chosen = [17, 3, 39, 3, 0]
    assert dict(corpus.texts(chosen)) == {user: everything[user] for user in chosen}
    assert [user for user, _ in corpus.texts(chosen)] == [0, 3, 17, 39]
    assert list(corpus.texts([])) == []
    labels = dict(corpus.labels(chosen))
    assert all(labels[user] == [str(i % 2) for i in range(len(everything[user]))] for user in chosen)
    with pytest.raises(IndexError):
        list(corpus.texts([40]))


def test_only_the_row_groups_needed_are_read(corpus: Corpus) -> None:
    heavy = int(np.argmax(np.diff(corpus.user_offsets)))
    light = next(user for user in range(40) if np.searchsorted(corpus.shard_users, user, "right") - 1
                 != np.searchsorted(corpus.shard_users, heavy, "right") - 1)  # fmt: skip
    read_groups = []
    genuine = pq.ParquetFile.read_row_group

    def spy(self: pq.ParquetFile, *args: object, **kwargs: object) -> object:
        read_groups.append(args[0])
        return genuine(self, *args, **kwargs)

    with mock.patch.object(pq.ParquetFile, "read_row_group", spy):
        list(corpus.texts([light]))
        assert len(read_groups) == 1
        read_groups.clear()
        stream = corpus.texts()
        next(stream)
        assert len(read_groups) <= 3  # a stream reads on only as it is asked


def test_arrays_are_mapped_and_not_writable(corpus: Corpus) -> None:
    for array in (corpus.user_offsets, corpus.entity_ids, corpus.sentence_words):
        assert isinstance(array, np.memmap)
        assert not array.flags.writeable


def test_what_is_not_there_is_said(corpus: Corpus, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no tags"):
        corpus.tags()
    with pytest.raises(InputError, match="uedp-ray prepare"):
        open_corpus(tmp_path)
    shutil.copytree(corpus.path, tmp_path / "cut")
    file = tmp_path / "cut" / "index" / "user_offsets.npy"
    file.write_bytes(file.read_bytes()[:-8])
    with pytest.raises(InputError, match="user_offsets is missing or damaged"):
        open_corpus(tmp_path / "cut")
    (tmp_path / "corpus.json").write_text('{"format_version": 0}')
    with pytest.raises(InputError, match="another version"):
        open_corpus(tmp_path)


def test_a_flipped_bit_of_any_array_is_told(corpus: Corpus, tmp_path: Path) -> None:
    """It would be another graph, which bounds and draws go by, with every number in range."""
    shutil.copytree(corpus.path, tmp_path / "copy")
    open_corpus(tmp_path / "copy")
    for file in sorted((tmp_path / "copy" / "index").iterdir()):
        whole = file.read_bytes()
        file.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
        with pytest.raises(InputError, match=f"its {file.stem} is missing or damaged: run prepare again"):
            open_corpus(tmp_path / "copy")
        file.write_bytes(whole)


def _corpus_of(folder: Path, marked: range) -> Path:
    """Twelve users; those who are ``marked`` say who Zorro is, in the same words as all."""
    folder.mkdir()
    rows = [
        {
            "user": f"u{user}",
            "text": f"Zorro wrote note {slot}",
            "entities": [{"category": "person", "start": 0, "end": 5}],
        }
        for slot in range(9)
        for user in range(12)
    ]
    for row in rows:
        if int(row["user"][1:]) not in marked:
            row["entities"] = [{"category": "misc", "start": 0, "end": 5}]
    (folder / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    prepare(SourceConfig(path=str(folder / "rows.jsonl"), format="jsonl"), folder / "out", num_shards=3)
    return folder / "out"


@pytest.mark.parametrize("listed", [True, False], ids=["", "an older version's"])
def test_another_text_under_the_same_graph_is_not_read(tmp_path: Path, listed: bool) -> None:
    """As a copy leaves it that was broken off: bounds and draws would be those of the one, and the text of the other."""
    one, other = _corpus_of(tmp_path / "one", range(12)), _corpus_of(tmp_path / "other", range(3))
    if not listed:
        manifest = json.loads((one / "corpus.json").read_text())
        del manifest["shards"], manifest["checksums"]["entities"]
        (one / "corpus.json").write_text(json.dumps(manifest))
    vocabulary = build_vocabulary(VocabularyConfig(), public_text=lambda: ["Zorro wrote note 1 2 3"])
    for name in ("shards/part-00000.parquet", "shards/part-00001.parquet"):
        opened, whole = open_corpus(one), (one / name).read_bytes()
        assert len(list(opened.texts())) == 12
        (one / name).write_bytes((other / name).read_bytes())
        for corpus in (opened, open_corpus(one)):
            with pytest.raises(InputError, match=r"(shards|part-0000.).* is missing or damaged: run prepare again"):
                list(corpus.texts())
        with pytest.raises(InputError, match="is missing or damaged"):
            encode_corpus(open_corpus(one), vocabulary, tmp_path / "tokens", max_length=8)
        (one / name).write_bytes(whole)
    store = encode_corpus(open_corpus(one), vocabulary, tmp_path / "tokens", max_length=8)
    assert store.lengths.tolist() == [4] * 12 * 9
    (one / "entities.parquet").write_bytes((other / "entities.parquet").read_bytes())
    if listed:
        with pytest.raises(InputError, match=r"entities\.parquet is missing or damaged"):
            open_corpus(one, ["person"])


def test_a_prepared_corpus_is_a_source(corpus: Corpus) -> None:
    sentences = list(read(SourceConfig(path=str(corpus.path), format="prepared")))
    assert len(sentences) == corpus.num_sentences
    assert all(sentence.mentions for sentence in sentences)


@pytest.mark.parametrize("categories", [("person",), ("per", "Organisation"), ("pii",), ("org",)])
def test_a_corpus_opened_for_categories_is_the_one_prepared_with_them(
    categories: tuple[str, ...], mixed: Path, tmp_path: Path
) -> None:
    prepare(replace(MIXED, categories=categories), tmp_path / "apart", num_shards=3)
    opened, apart = open_corpus(mixed, categories), open_corpus(tmp_path / "apart")
    assert 0 < opened.num_entities < open_corpus(mixed).num_entities
    for name in ("entity_offsets", "entity_ids", "entity_holders", "entity_hash", "user_offsets", "sentence_words"):
        one, other = getattr(opened, name), getattr(apart, name)
        assert (one.dtype, one.tolist()) == (other.dtype, other.tolist()), name
        assert not one.flags.writeable
    assert opened.entity_table() == apart.entity_table()
    assert list(opened.sentences()) == list(apart.sentences())
    assert (opened.categories, opened.detectors) == (apart.categories, apart.detectors)
    assert opened.statistics == apart.statistics


def test_an_entity_has_the_same_sentences_whatever_else_is_protected(mixed: Path) -> None:
    """What composes trials that protect different categories."""

    def sentences(categories: tuple[str, ...]) -> dict[int, list[int]]:
        corpus, found = open_corpus(mixed, categories), dict[int, list[int]]()
        for x in range(corpus.num_sentences):
            for e in corpus.entity_ids[corpus.entity_offsets[x] : corpus.entity_offsets[x + 1]]:
                found.setdefault(int(corpus.entity_hash[e]), []).append(x)
        return found

    persons, more, every = sentences(("person",)), sentences(("person", "org")), sentences(())
    assert persons
    assert persons.items() < more.items() < every.items()


def test_listed_phrases_stay_whatever_categories_are_chosen(tmp_path: Path) -> None:
    (tmp_path / "list.txt").write_text("project omega\n")
    (tmp_path / "rows.jsonl").write_text(json.dumps({"user": "u", "text": "Project Omega: write to a@b.example now"}))
    detectors = (f"list:{tmp_path / 'list.txt'}", "regex")
    prepare(SourceConfig(path=str(tmp_path / "rows.jsonl"), format="jsonl", detector=detectors), tmp_path / "out")
    assert open_corpus(tmp_path / "out").num_entities == 2
    assert open_corpus(tmp_path / "out", ["email"]).num_entities == 2
    with pytest.raises(InputError, match="nothing of it was found"):
        open_corpus(tmp_path / "out", ["phone"])


@pytest.mark.parametrize(
    ("prepared", "chosen", "remedy"),
    [
        ((), "persons", r"corpus\.categories = 'persons': did you mean person\? Else choose among .*person"),
        ((), "iban", "nothing of it was found .* with a detector that finds it"),
        (("person", "org"), "loc", "prepared for org, person: choose among these"),
        (("person",), "pii", "prepared for person: choose among these"),
    ],
)
def test_a_category_that_is_not_there_is_refused_by_public_names(
    prepared: tuple[str, ...], chosen: str, remedy: str, mixed: Path, tmp_path: Path
) -> None:
    if prepared:
        prepare(replace(MIXED, categories=prepared), tmp_path / "out", num_shards=1)
    with pytest.raises(InputError, match=remedy) as caught:
        open_corpus(tmp_path / "out" if prepared else mixed, [chosen])
    assert caught.value.field == "corpus.categories"

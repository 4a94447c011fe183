"""Private text by another name: as evaluation text, public text, a warm start, and as the text of a public search."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.search.sweeps import PRETRAIN
from tests.training.runs import crash, run_config
from uedp_ray.config import SourceConfig, TaskConfig
from uedp_ray.corpus.prepare import prepare
from uedp_ray.corpus.readers import read, text
from uedp_ray.corpus.readers.base import of_files
from uedp_ray.corpus.records import Sentence
from uedp_ray.corpus.store import open_corpus
from uedp_ray.errors import InputError
from uedp_ray.tasks.next_word import NextWord
from uedp_ray.training.checks import check_run
from uedp_ray.training.guard import TEXT_SKETCH, check_labels, check_warm_start, owner_cautions
from uedp_ray.training.host import train
from uedp_ray.training.pretrain import pretrain
from uedp_ray.training.setup import prepare_run
from uedp_ray.training.texts import prepare_corpora

PREFIX = {"private": "p", "held_out": "h"}


def rows(part: str = "private", num_users: int = 30, **change: Callable[[str], str]) -> list[dict[str, str]]:
    """Sentences of named users; ``user`` and ``text`` are changed by functions of that name."""
    found = []
    for s in read(SourceConfig(format="synthetic", num_users=num_users, part=part)):  # type: ignore[arg-type]
        row = {"user": f"{PREFIX[part]}-{s.user[-4:]}", "text": s.text}
        found.append({key: change.get(key, str)(value) for key, value in row.items()})
    return found


def write(path: Path, rows: list[dict[str, str]]) -> dict[str, Any]:
    if path.suffix == ".txt":
        path.write_text("".join(row["text"] + "\n" for row in rows))
        return {"path": str(path), "format": "text"}
    if path.suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(rows), path)
        return {"path": str(path), "format": "parquet"}
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return {"path": str(path), "format": "jsonl"}


def prepared(source: dict[str, Any], out: Path, **change: Any) -> dict[str, Any]:
    prepare(SourceConfig(**{**source, **change}), out)
    return {"path": str(out)}


@pytest.fixture(scope="module")
def private(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return write(tmp_path_factory.mktemp("private") / "notes.jsonl", rows())


def twice(source: dict[str, Any], folder: Path, **change: Any) -> dict[str, Any]:
    return prepared(prepared(source, folder / "once", **change) | {"format": "prepared"}, folder / "twice")


def renamed(**change: Callable[[str], str]) -> list[dict[str, str]]:
    return rows(user=lambda name: f"x{name}", **change)


def same_users(spelled: Callable[[str], str] = str) -> list[dict[str, str]]:
    """Other text of users of the private text."""
    return rows("held_out", user=lambda name: spelled(name.replace("h-", "p-")))


USERS, TEXT = "some of its users", r"of its running text with corpus\.source"
EVALUATIONS = {
    "the same file": (lambda source, to: source, "it is the text"),
    "another detector": (lambda source, to: prepared(source, to / "out", detector=("regex",)), USERS),
    "its users, in capitals": (lambda source, to: write(to / "e.jsonl", same_users(str.upper)), USERS),
    "its users, prepared twice": (lambda source, to: twice(write(to / "e.jsonl", same_users()), to), USERS),
    "renamed users": (lambda source, to: write(to / "e.jsonl", renamed()), TEXT),
    "capitals": (lambda source, to: twice(write(to / "e.jsonl", renamed(text=str.upper)), to), TEXT),
    "plain text": (lambda source, to: write(to / "e.txt", rows()), TEXT),
    "a part": (lambda source, to: write(to / "e.parquet", [*rows("held_out", 20), *renamed()[:130]]), TEXT),
}


@pytest.mark.parametrize(("ids", "told"), [(["Ann", "ann ", "Bo"], "1 user id differs"), (["Ann", "Bo"], "")])
def test_a_user_that_is_spelled_in_two_ways_is_told(ids, told, tmp_path):
    """Each spelling was a user of its own, whose part of the person's text is protected; nothing said so."""
    lines = [{"user": name, "text": "the nurse left the park"} for name in ids]
    corpus = open_corpus(prepared(write(tmp_path / "notes.jsonl", lines), tmp_path / "out")["path"])
    assert corpus.num_users == len(ids)
    cautions = owner_cautions(corpus, "user", [])
    assert len(cautions) == bool(told)
    assert not told or cautions[0].startswith(told)
    assert len(owner_cautions(corpus, "entity", [])) == 1, "that it has no entities"


@pytest.mark.parametrize("basis", ["held_out_users", "public"])
@pytest.mark.parametrize("name", EVALUATIONS)
def test_protected_text_does_not_evaluate(name, basis, private, corpora, tmp_path, monkeypatch):
    make, found = EVALUATIONS[name]
    monkeypatch.chdir(tmp_path)
    evaluation = make(private, tmp_path)
    if Path(evaluation["path"]).is_relative_to(tmp_path):
        evaluation["path"] = os.path.relpath(evaluation["path"])  # what the message names is what the user wrote
    config = run_config(corpora, corpus={"source": private, "evaluation": evaluation, "evaluation_basis": basis})
    for start in (
        lambda: prepare_run(config, tmp_path / "run", resume=False),
        lambda: prepare_corpora(config, tmp_path / "corpora"),  # compare and sweep
    ):
        with pytest.raises(InputError, match=found) as caught:
            start()
        assert (caught.value.field, caught.value.value) == ("corpus.evaluation", evaluation["path"])
    assert not (tmp_path / "run" / "ledger.jsonl").exists()


@pytest.mark.parametrize(
    ("evaluation", "stated"),
    [
        ("e.jsonl", "no user in common."),
        ("e.txt", "not compared: users, since one of the two does not name them."),
        ("short.txt", "not compared: users, since one of the two does not name them."),
    ],
)
def test_what_was_compared_is_stated_as_formats_tell_it(evaluation, stated, private, corpora, tmp_path):
    """Not whether there was running text enough to compare: that may hang on one private user."""
    source = write(tmp_path / evaluation, [{"text": "It rained ."}] if "short" in evaluation else rows("held_out", 5))
    config = run_config(corpora, corpus={"source": private, "evaluation": source}, training={"num_rounds": 1})
    train(config, tmp_path / "run", workers=0)
    (line,) = [line for line in (tmp_path / "run" / "privacy.md").read_text().splitlines() if "Perplexity" in line]
    text = "less than 10% of the running text in common, where there is enough of it to tell"
    assert line.endswith(f"Compared with the private text before training: {text}; {stated}")


def linked(source: dict[str, Any], to: Path) -> dict[str, Any]:
    os.link(source["path"], to / "other.jsonl")
    return source | {"path": str(to / "other.jsonl")}


PUBLIC = {
    "a hard link": linked,
    "a dot": lambda source, to: source | {"path": f"{Path(source['path']).parent}/./{Path(source['path']).name}"},
    "prepared": lambda source, to: prepared(source, to / "out"),
    "a copy in capitals": lambda source, to: write(to / "copy.txt", rows(text=str.upper)),
}


@pytest.mark.parametrize("name", PUBLIC)
@pytest.mark.parametrize("key", ["vocabulary.public_text", "pretrain.text"])
def test_private_text_is_no_public_text(name, key, private, corpora, tmp_path):
    section, _, field = key.partition(".")
    tree = {section: {field: [PUBLIC[name](private, tmp_path)]}}
    if section == "pretrain":
        tree["vocabulary"] = {"public_text": []}
    with pytest.raises(InputError, match=r"private text itself|of its running text with corpus\.source") as caught:
        prepare_run(run_config(corpora, corpus={"source": private}, **tree), tmp_path / "run", resume=False)
    assert caught.value.field == key
    assert not (tmp_path / "run" / "vocabulary").exists()


def test_a_model_pre_trained_on_private_text_is_refused(private, corpora, tmp_path):
    """Whatever the run's own config says of public text."""
    copy = write(tmp_path / "copy.txt", rows(text=str.upper))
    elsewhere = {"source": {"format": "jsonl", "path": "none.jsonl"}}
    pretrain(run_config(corpora, corpus=elsewhere, pretrain={"text": [copy], "num_steps": 1}), tmp_path / "model")
    config = run_config(corpora, corpus={"source": private}, model=started(corpora, tmp_path / "model"))
    with pytest.raises(InputError, match=r"model\.warm_start.*of its running text with corpus\.source"):
        prepare_run(config, tmp_path / "run", resume=False)
    (tmp_path / "model" / "model" / TEXT_SKETCH).write_bytes(b"damaged")
    with pytest.raises(InputError, match=r"model\.warm_start.*damaged"):
        prepare_run(config, tmp_path / "run", resume=False)


def started(corpora: Path, model: Path) -> dict[str, Any]:
    return {**run_config(corpora).model.__dict__, "warm_start": str(model / "model")}


def test_a_model_is_not_scored_on_text_that_it_was_pre_trained_on(private, corpora, tmp_path):
    """Whatever the noise: the figure would not hold for other text."""
    public = {"text": [write(tmp_path / "public.txt", rows("held_out", 20))], "num_steps": 1}
    pretrain(run_config(corpora, corpus={"evaluation": None}, pretrain=public), tmp_path / "model")
    for noise in ({}, {"noise": "none", "noise_multiplier": None}):
        corpus = {"source": private, "evaluation": write(tmp_path / "e.jsonl", rows("held_out", 20))}
        config = run_config(corpora, corpus=corpus, privacy=noise, model=started(corpora, tmp_path / "model"))
        with pytest.raises(
            InputError, match=r"of its running text with the public text of model\.warm_start"
        ) as caught:
            prepare_run(config, tmp_path / "run", resume=False)
        assert (caught.value.field, caught.value.value) == ("corpus.evaluation", str(tmp_path / "e.jsonl"))
    prepare_run(config, tmp_path / "proxy", resume=False, public_source=True)  # which only ranks settings


@pytest.mark.parametrize("kind", ["as it is", "prepared"])
@pytest.mark.parametrize("name", ["source", "evaluation"])
def test_text_that_a_run_would_refuse_is_not_pre_trained_on(name, kind, corpora, tmp_path, monkeypatch):
    monkeypatch.setattr("uedp_ray.training.pretrain._fit", lambda *_: pytest.fail("pre-trained first"))
    part = {"source": "private", "evaluation": "held_out"}[name]
    public = write(tmp_path / "public.txt", rows(part))  # type: ignore[arg-type]
    text = write(tmp_path / "text.jsonl", rows(part))
    text = text if kind == "as it is" else prepared(text, tmp_path / "out")
    config = run_config(corpora, corpus={name: text}, pretrain={"text": [public], "num_steps": 1})
    field = {"source": "pretrain.text", "evaluation": "corpus.evaluation"}[name]
    with pytest.raises(InputError, match="of its running text with") as caught:
        pretrain(config, tmp_path / "model")
    assert caught.value.field == field
    assert not (tmp_path / "model" / "model").exists()


def test_text_that_cannot_be_read_here_does_not_keep_public_text_from_pre_training(corpora, tmp_path):
    (tmp_path / "notes.jsonl").write_text('{"user": 1')
    for name in ("notes.jsonl", "none.jsonl"):
        elsewhere = {"format": "jsonl", "path": str(tmp_path / name)}
        config = run_config(
            corpora, corpus={"source": elsewhere, "evaluation": elsewhere}, pretrain=PRETRAIN | {"num_steps": 0}
        )
        pretrain(config, tmp_path / f"of {name}")


@pytest.mark.parametrize("sketch", [b"", b"damaged", np.array(["a", "b"]), np.zeros(0, np.uint64)])
def test_a_damaged_sketch_of_a_warm_start_is_refused(corpora, tmp_path, sketch):
    pretrain(run_config(corpora, pretrain=PRETRAIN | {"num_steps": 1}), tmp_path / "model")
    path = tmp_path / "model" / "model" / TEXT_SKETCH
    path.write_bytes(sketch) if isinstance(sketch, bytes) else np.save(path, sketch)
    with pytest.raises(InputError, match=r"model\.warm_start.*damaged"):
        check_warm_start(open_corpus(corpora / "private"), str(path.parent))


def test_evaluation_text_that_has_become_another_is_refused_on_resume(corpora, tmp_path):
    """What was compared is what is evaluated."""
    folder = tmp_path / "evaluation"
    prepare(SourceConfig(format="synthetic", num_users=5, part="held_out"), folder)
    config = run_config(corpora, corpus={"evaluation": {"path": str(folder)}})
    prepare_run(config, tmp_path / "run", resume=False)
    crash(config, tmp_path / "charged", charges=1)
    prepare(SourceConfig(format="synthetic", num_users=30), folder)
    with pytest.raises(InputError, match=r"corpus\.evaluation.*has changed"):
        prepare_run(config, tmp_path / "charged", resume=True)
    with pytest.raises(InputError, match=r"corpus\.evaluation.*shares 100%"):
        prepare_run(config, tmp_path / "run", resume=True)


def test_users_of_a_reader_that_says_nothing_of_them_are_compared(corpora, tmp_path, monkeypatch):
    """Whoever adds a format need not think of this: its users count as named."""
    sources = {part: write(tmp_path / f"{part}.txt", rows(part)) for part in ("private", "held_out")}
    config = run_config(corpora, corpus={"source": sources["private"], "evaluation": sources["held_out"]})
    prepare_run(config, tmp_path / "numbered", resume=False)
    monkeypatch.setattr(text, "READER", of_files(text.read_text, whole_users=True))
    with pytest.raises(InputError, match=USERS):  # to both texts, everything is by the user ``public``
        prepare_run(config, tmp_path / "named", resume=False)


@pytest.mark.parametrize(
    ("change", "taken"),
    [
        ({"skip_users": 20}, True),
        ({"skip_users": 19}, False),
        ({"skip_users": 0}, False),
        ({"skip_users": 20, "sentences_per_user": 5}, False),
        ({"skip_users": 20, "max_words": 9}, False),
        ({"skip_users": 20, "min_words": 9}, False),
        ({"format": "text"}, False),
    ],
)
def test_a_text_that_is_cut_into_users_evaluates_what_others_of_them_trained(tmp_path, change, taken):
    (tmp_path / "public.txt").write_text("".join(f"{row['text']}\n" for row in rows("held_out", num_users=60)))
    source = {"format": "pseudo-users", "path": str(tmp_path / "public.txt"), "num_users": 20, "sentences_per_user": 10}
    config = run_config(
        tmp_path, corpus={"source": source, "declared_num_users": 20, "evaluation": {**source, **change}}
    )
    if taken:
        check_run(config)
    else:
        with pytest.raises(InputError, match="no text can evaluate a model trained on it"):
            check_run(config)


@pytest.mark.parametrize(
    ("source", "evaluation", "taken"),
    [
        ({"skip_rows": 9}, {"num_rows": 9}, True),
        ({"num_rows": 9}, {"skip_rows": 9}, True),
        ({"skip_rows": 8}, {"num_rows": 9}, False),
        ({}, {"skip_rows": 9}, False),
        ({"num_rows": 9}, {}, False),
        ({"skip_rows": 9}, {"num_rows": 9, "format": "text"}, False),
    ],
)
def test_rows_of_one_file_evaluate_what_other_rows_of_it_trained(tmp_path, source, evaluation, taken):
    (tmp_path / "news.csv").write_text('"1","","met"\n')
    text = {"format": "ag-news", "path": str(tmp_path / "news.csv")}
    corpus = {"source": {**text, **source}, "declared_num_users": 20, "evaluation": {**text, **evaluation}}
    config = run_config(tmp_path, corpus=corpus)
    if taken:
        check_run(config)
    else:
        with pytest.raises(InputError, match="no text can evaluate a model trained on it"):
            check_run(config)


@pytest.mark.parametrize("times", [0, 1, 2], ids=["as it is", "prepared", "prepared twice"])
def test_made_users_are_no_private_text(tmp_path, times):
    """Whoever wrote it is in several, and blanking one moves the sentences of the others."""
    (tmp_path / "notes.txt").write_text("".join(f"{row['text']}\n" for row in rows()))
    source = {"format": "pseudo-users", "path": str(tmp_path / "notes.txt"), "num_users": 10, "sentences_per_user": 5}
    for number in range(times):
        source = prepared(source, tmp_path / f"prepared-{number}")
    settings = {"source": source, "declared_num_users": 10, "evaluation": None}
    with pytest.raises(
        InputError, match=r"its format \(pseudo-users\) does not state .*name text with users of its own"
    ):
        train(run_config(tmp_path, corpus=settings), tmp_path / "run", workers=0)
    assert not (tmp_path / "run" / "ledger.jsonl").exists()


@pytest.mark.parametrize("own", [True, False])
def test_a_task_whose_labels_are_no_list_says_itself_what_they_must_be(own, monkeypatch):
    """It was refused by ``task.labels = []``, with the advice to list all."""

    class Score(NextWord):
        labelled = True

        @classmethod
        def fits(cls, labels, sentence):
            return sentence.label.isdecimal()

        @classmethod
        def refuse(cls, config, text):
            if own:
                raise InputError("task.kind", config.kind, f"{text} has a label that is no number")
            super().refuse(config, text)

    monkeypatch.setattr("uedp_ray.tasks.base.task_of", lambda kind: Score)

    def text(label: str) -> Any:
        return SimpleNamespace(sentences=lambda every: [("u", [Sentence("u", "ann left", label=label)])])

    check_labels(text("7"), TaskConfig(), "corpus.source")
    with pytest.raises(InputError, match="no number" if own else "without what it predicts") as raised:
        check_labels(text("secret"), TaskConfig(), "corpus.source")
    assert str(raised.value).startswith("task.kind = 'next_word': corpus.source has a ")

"""Which settings name files, and what becomes of one that does not say so."""

from __future__ import annotations

from dataclasses import dataclass, field

from uedp_ray.config import RunConfig, from_dict
from uedp_ray.config.choices import WORDS
from uedp_ray.config.files import map_files, names_file

TEXT = {"path": "a.txt", "format": "text", "detector": ["annotated", "list:b.txt"], "categories": ["per"]}


def test_every_setting_that_names_a_file_is_changed_and_no_other():
    found = {}
    tree = {
        "corpus": {"source": TEXT, "evaluation": TEXT, "declared_num_users": 9},
        "privacy": {"noise": "none"},
        "model": {"architecture": "pretrained", "path": "gpt2", "warm_start": "c", "lora_targets": ["q"]},
        "vocabulary": {"kind": "tokenizer", "path": "d", "public_text": [TEXT]},
        "pretrain": {"text": [TEXT, TEXT]},
    }

    def change(key, value, kind):
        found.setdefault(key, []).append((value, kind))
        return value

    config = from_dict(RunConfig, tree)
    assert map_files(config, change) == config
    texts = ("corpus.source", "corpus.evaluation", "vocabulary.public_text[0]", "pretrain.text[0]", "pretrain.text[1]")
    assert found == {
        **{f"{text}.path": [("a.txt", "text")] for text in texts},
        **{f"{text}.detector": [("annotated", "detector"), ("list:b.txt", "detector")] for text in texts},
        "model.path": [("gpt2", "hub")],
        "model.warm_start": [("c", "path")],
        "vocabulary.path": [("d", "hub")],
    }


@dataclass(frozen=True)
class New:
    """A section with settings that nobody thought of."""

    adapter: str = "folder/adapter"
    notes: str | None = None
    lists: tuple[str, ...] = ("folder/list",)
    title: str = field(default="a title", metadata=WORDS)
    count: int = 3


def test_a_setting_of_text_that_does_not_say_otherwise_names_a_file():
    assert map_files(New(), lambda key, value, kind: "gone") == New(adapter="gone", lists=("gone",))
    assert [name for name in vars(New()) if names_file(New, name)] == ["adapter", "notes", "lists"]


def test_a_dotted_name_is_followed_into_its_section():
    asked = (
        "model.path",
        "model.warm_start",
        "model.hidden_size",
        "method",
        "expected_cohort_size",
        "task.kind",
        "x.y",
    )
    assert [key for key in asked if names_file(RunConfig, key)] == ["model.path", "model.warm_start"]

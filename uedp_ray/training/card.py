"""``README.md`` of an export: a model card that model hubs can read, with the total epsilon before any other figure.

Example:

    card(config, result, total, vocabulary, longest=40)

Everything in it is public: settings, and figures that the total pays for.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import yaml

from uedp_ray.config import RunConfig
from uedp_ray.corpus.vocabulary import Vocabulary
from uedp_ray.models.architecture import architecture
from uedp_ray.plan import cautions_of
from uedp_ray.privacy.statement import CHECKED, show_delta, show_epsilon
from uedp_ray.redact import NOT_PUBLISHED
from uedp_ray.tasks.metric import Metric
from uedp_ray.tasks.metrics import metric_of
from uedp_ray.training.guarantees import assumed
from uedp_ray.training.privacy_page import Total

_MARKUP = re.compile(r"[\\`*_{}\[\]<>#|!~&]")
_NEW = 20
"""Tokens that the example generates, if the model has room for twice as many."""
_GENERATE = """\
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

model = AutoModelForCausalLM.from_pretrained("model")
tokenizer = AutoTokenizer.from_pretrained("model")

begin, end = tokenizer.{begin}, tokenizer.eos_token_id
words = tokenizer("The", add_special_tokens=False)["input_ids"]
prompt = torch.tensor([[begin, *words{fitting}]]){room}
written = model.generate(
    prompt,
    attention_mask=torch.ones_like(prompt),
    max_new_tokens={new},
    do_sample=True,
    eos_token_id=end,
    pad_token_id=end,
)
print(tokenizer.decode(written[0], skip_special_tokens=True))
"""
_PREDICT = """\
from pathlib import Path

from uedp_ray.training.predict import predict

print(predict(Path("model"), ["The"]))
"""


def card(
    config: RunConfig, result: Mapping[str, Any], total: Total, vocabulary: Vocabulary, *, longest: int | None
) -> str:
    """The card as Markdown.

    Args:
      config: as published (``redact.published``). ``result``: the run's ``result.json``.
      vocabulary: the model's. ``longest``: the most tokens that the model reads; None without a limit.
    """
    privacy, training, metric = config.privacy, config.training, metric_of(config)
    scale = metric.against_yardstick(result)
    rows = [
        (
            "**ε, total**",
            f"**{show_epsilon(total.epsilon)}** at δ = {show_delta(privacy.delta)}, unit {total.unit}: {_paid(total)}",
        ),
        *(("Caution", caution) for caution in cautions_of(config, total.epsilon)),
        *(("Assumed, not proved", f"of `{named}` ([privacy.md](privacy.md))") for named in assumed(config)),
        ("What that means, and what it does not cover", "[privacy.md](privacy.md)"),
        (f"Held-out {metric.title}", _scored(metric, result)),
        *_before(metric, result),
        *([("For scale", scale)] if scale else []),
        *(
            ("Caution", _MARKUP.sub(r"\\\g<0>", caution))
            for caution in metric.cautions(result, public=config.starts_public)
        ),
        ("Rounds", f"{result['rounds']} of {training.num_rounds} planned"),
        *(
            [("Base model", _base_model(config) or "not published")]
            if config.model.architecture == "pretrained"
            else []
        ),
        ("Licence", "none is stated here; that of a base model, if there is one, may bind its users"),
        ("All settings", "[config.yaml](config.yaml)"),
    ]
    title = _MARKUP.sub(r"\\\g<0>", config.name)
    table = "\n".join(f"| {what} | {found} |" for what, found in rows)
    separator, narrowed = total.unit.partition("; ")[1:]  # the entities that all trials of a sweep protect
    relation = "zero-out, " + (
        "within declared bounds" if config.bounds.mode == "declared" else "who holds what is fixed"
    )
    return f"""\
---
{_front_matter(config, metric)}---

# {title}

A language model ({config.model.architecture}) {_purpose(config, metric)}, trained on private text with
{privacy.unit} differential privacy{f" ({narrowed})" if narrowed else ""}.

| | |
|---|---|
{table}

Quote the total with its unit and δ. The ε of the run alone, further down in privacy.md, is not the price of this model
if it was chosen among others by its results.

## Use

{_sentences(config, vocabulary, longest)}{_example(config, metric, vocabulary, longest)}

## Limits

The guarantee compares the private text that this model was trained on, as its owner declared it, with the same text in
which the sentences of one {privacy.unit.replace("-", " and one ")} say nothing
({relation}{separator}{narrowed}). It says nothing of the public text and the public model
that training may have started from, nor of text that is typed into it.
{CHECKED}
"""


def _scored(metric: Metric, result: Mapping[str, Any]) -> str:
    found = result.get(metric.name)
    if found is None:
        return "not computed"
    beside = [score.say(result[score.name]) for score in metric.beside if result.get(score.name) is not None]
    return _MARKUP.sub(r"\\\g<0>", "; ".join([metric.show(found), *beside]))


def _before(metric: Metric, result: Mapping[str, Any]) -> list[tuple[str, str]]:
    before = metric.before(result)
    return [(f"{metric.heading} before training on the private text", before)] if before else []


def _sentences(config: RunConfig, vocabulary: Vocabulary, longest: int | None) -> str:
    """How to give text to the model: as in training, where no special token came from the tokenizer itself."""
    begin, end = (f"`{vocabulary.decode([token])}`" for token in (vocabulary.bos_id, vocabulary.eos_id))
    text = f"Sentences begin and end with {end}" if begin == end else f"Sentences begin with {begin} and end with {end}"
    limit = (
        ""
        if longest is None
        else f"\nThe model reads at most {longest} tokens, including the one that begins a sentence."
    )
    return (
        f"{text}; training used the first {config.model.max_length} tokens of each.{limit}\n"
        f"Put {begin} in front yourself, without other special tokens"
    )


def _purpose(config: RunConfig, metric: Metric) -> str:
    return f"that {metric.purpose}" if metric.purpose else f"for the task {config.task.kind}"


def _example(config: RunConfig, metric: Metric, vocabulary: Vocabulary, longest: int | None) -> str:
    """The end of the sentence before it, and code for a model that continues a text."""
    if not metric.continues_text:
        return "."
    return f":\n\n```python\n{_code(config, vocabulary, longest)}```"


def _code(config: RunConfig, vocabulary: Vocabulary, longest: int | None) -> str:
    if architecture(config.model.architecture).own is not None:
        return _PREDICT
    new = _NEW if longest is None else min(_NEW, max(1, longest // 2))
    fitting = room = ""
    if longest is not None:
        kept = max(1, longest - 1 - new)
        fitting, room = f"[-{kept}:]", f"  # of {longest} tokens, {new} are left to write"
    begin = "eos_token_id" if vocabulary.tokenizer.bos_token_id is None else "bos_token_id"
    return _GENERATE.format(begin=begin, fitting=fitting, room=room, new=new)


def _base_model(config: RunConfig) -> str | None:
    """The public name of the model that training started from, if it may be published."""
    path = config.model.path
    return path if config.model.architecture == "pretrained" and path not in ("", NOT_PUBLISHED) else None


def _paid(total: Total) -> str:
    read = "; results settled this figure: privacy.md says how to read it" if total.settled_by_results else ""
    return "training" if total.rule == "none" else f"training and choosing together (rule {total.rule}){read}"


def _front_matter(config: RunConfig, metric: Metric) -> str:
    front: dict[str, Any] = {
        "library_name": "transformers" if architecture(config.model.architecture).own is None else "uedp_ray",
        **({"pipeline_tag": "text-generation"} if metric.continues_text else {}),
        "tags": ["differential-privacy", "user-entity-differential-privacy"],
    }
    if base := _base_model(config):
        front["base_model"] = base
    return yaml.safe_dump(front, sort_keys=False)

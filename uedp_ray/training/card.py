"""``README.md`` of what is handed on: a model card as model hubs read it, with the total epsilon before any other figure.

card(config, result, total, transformers=True)

Everything in it is public: settings, and figures that the total pays for.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import yaml

from uedp_ray.config import RunConfig
from uedp_ray.privacy.statement import show_epsilon
from uedp_ray.redact import NOT_PUBLISHED
from uedp_ray.training.statement import Total

_LOADING = {
    True: """\
from transformers import AutoModelForCausalLM, AutoTokenizer

model = AutoModelForCausalLM.from_pretrained("model")
tokenizer = AutoTokenizer.from_pretrained("model")
""",
    False: """\
from uedp_ray.corpus.vocabulary import Vocabulary
from uedp_ray.models.build import load_model

model, vocabulary = load_model("model"), Vocabulary.load("model")
""",
}


def card(config: RunConfig, result: Mapping[str, Any], total: Total, *, transformers: bool) -> str:
    """The card as Markdown.

    Args:
      config: as published (``redact.published``). ``result``: the run's ``result.json``.
      transformers: whether the model opens with ``transformers``.
    """
    privacy, training = config.privacy, config.training
    perplexity = result["perplexity"]
    scored = "not computed" if perplexity is None else f"{perplexity:.1f}"
    return f"""\
---
{_front_matter(config, transformers)}---

# {config.name}

A language model ({config.model.architecture}) that predicts the next word, trained on private text with
{privacy.protect} differential privacy.

| | |
|---|---|
| **ε, total** | **{show_epsilon(total.epsilon)}** at δ = {privacy.delta:g}, unit {privacy.protect}: {_paid(total)} |
| What that means, and what it does not cover | [privacy.md](privacy.md) |
| Held-out perplexity | {scored} |
| Rounds | {result["rounds"]} of {training.num_rounds} planned |
| All settings | [config.yaml](config.yaml) |

Quote the total with its unit and δ. The ε of the run alone, further down in privacy.md, is not the price of this model
where it was chosen among others by its results.

## Use

Sentences begin and end with the tokenizer's end token.

```python
{_LOADING[transformers]}```

## Limits

The guarantee is about the private text that this model was trained on, as its owner declared it. It says nothing of the
public text and the public model that training may have started from, nor of text that is typed into it.
"""


def _paid(total: Total) -> str:
    return "training" if total.rule == "none" else f"training and choosing together (rule {total.rule})"


def _front_matter(config: RunConfig, transformers: bool) -> str:
    front: dict[str, Any] = {
        "library_name": "transformers" if transformers else "uedp_ray",
        "pipeline_tag": "text-generation",
        "tags": ["differential-privacy", "user-entity-differential-privacy"],
    }
    if config.model.path not in ("", NOT_PUBLISHED):
        front["base_model"] = config.model.path
    return yaml.safe_dump(front, sort_keys=False)

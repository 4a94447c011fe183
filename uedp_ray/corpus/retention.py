"""What a transform left of the protected mentions: how many are still said in the text that is trained on.

    >>> from uedp_ray.corpus.records import Mention, Sentence
    >>> from uedp_ray.corpus.retention import retention
    >>> ann = Sentence("u", "Ann met ann", mentions=(Mention("person", 0, 3),))
    >>> oslo = Sentence("u", "in Oslo", mentions=(Mention("loc", 3, 7),))
    >>> retention([(ann, "[person] met ann"), (oslo, "in [loc]")])
    {'all': 0.5, 'by_category': {'loc': 0.0, 'person': 1.0}}

Everything here is private: read off the text.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

from uedp_ray.corpus.records import Mention, Sentence, entity_form
from uedp_ray.corpus.transforms.base import Text, Transformed
from uedp_ray.reporting import Reporter


def retention(pairs: Iterable[tuple[Sentence, str]]) -> dict[str, Any]:
    """The share of the mentions whose form (``entity_form``) is found in the text that their sentence became, over all and
    by category; None if there is no mention. A form within a longer word counts too, so that no share is too small.

    ``pairs``: sentences, with the mentions that count, each with its text after.
    """
    said, kept = Counter[str](), Counter[str]()
    for sentence, text in pairs:
        after = entity_form(text, Mention("", 0, len(text)))
        for mention in sentence.mentions:
            said[mention.category] += 1
            kept[mention.category] += entity_form(sentence.text, mention) in after
    by_category = {category: kept[category] / count for category, count in sorted(said.items())}
    return {"all": kept.total() / said.total() if said else None, "by_category": by_category}


def tell_retention(text: Text, reporter: Reporter) -> dict[str, Any]:
    """``retention`` of a run's text, told with what else its owner should know. Without a transform all are kept."""
    if not isinstance(text, Transformed):
        return {"all": 1.0, "by_category": {}}
    if told := text.told():
        reporter.say(told)
    found = retention((text.protected(sentence), after) for _, pairs in text.pairs() for sentence, after in pairs)
    if found["all"] is not None:
        each = ", ".join(f"{category} {share:.1%}" for category, share in found["by_category"].items())
        reporter.say(
            f"{found['all']:.1%} of the protected mentions are still found in the transformed text: {each} "
            "(private: read off the text)"
        )
    return found

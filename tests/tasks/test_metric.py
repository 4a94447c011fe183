from __future__ import annotations

import dataclasses
import math

import pytest

from uedp_ray.tasks.metrics import ERROR_RATE, PERPLEXITY, WORD_ACCURACY

AS_WELL = (
    "scores as well, as far as chance lets one tell (perplexity 100.0, now 99.5): hand that on instead; what was trained "
    "stays spent, and covers this choice too"
)


def test_an_abbreviation_keeps_its_capitals_where_it_begins_a_line():
    assert PERPLEXITY.heading == "Perplexity"
    assert dataclasses.replace(PERPLEXITY, title="RMSE of scores").heading == "RMSE of scores"


def test_a_classifier_that_does_no_better_than_the_commonest_label_is_named():
    """A model that gave all sentences one label was "gained 18.5 % over the public model", whose head is random."""
    rates = {"error_rate": 0.685, "commonest_error_rate": 0.668}
    said = ERROR_RATE.worthless(rates)
    assert said.startswith(
        "the commonest label, given to every sentence, has an error rate of 66.8%: a model of error rate 68.5% tells no more"
    )
    assert not ERROR_RATE.worthless(rates | {"error_rate": 0.5})
    assert not ERROR_RATE.worthless({"error_rate": 0.9}), "an earlier version's"
    assert "word accuracy 12.0% tells no more" in WORD_ACCURACY.worthless(
        {"word_accuracy": 0.12, "commonest_word_accuracy": 0.2}
    )


@pytest.mark.parametrize(
    ("after", "spread", "told"),
    [
        (97.0, None, ""),
        (99.5, None, AS_WELL),
        (99.5, math.nan, AS_WELL),
        (97.0, 5.0, "scores as well"),
        (99.5, 0.1, ""),
        (120.0, None, "scores better (perplexity 100.0, now 120.0)"),
        (None, None, "scores better (perplexity 100.0, now not finite)"),
    ],
)
def test_that_the_public_model_scores_as_well_is_told(after, spread, told):
    """Only that a model is worse was, and not where its card and the first screen of its report are read."""
    scores = {"initial_perplexity": 100.0, "perplexity": after, "perplexity_std": spread}
    said = " ".join(PERPLEXITY.cautions(scores, public=True))
    assert bool(said) == bool(told)
    assert told in said
    harmed = after is None or after > 100
    assert len(PERPLEXITY.cautions(scores)) == harmed, "a start that is not public: nothing to hand on in its place"
    for unknown in (None, math.nan):
        assert not PERPLEXITY.cautions(scores | {"initial_perplexity": unknown}, public=True)

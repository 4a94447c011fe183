"""What replaced words lose and hide, against sums written out, and the search for the best of them."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from tests.training.runs import run_config
from uedp_ray.config import TransformConfig
from uedp_ray.corpus import word_mechanisms
from uedp_ray.corpus.vectors import Vectors
from uedp_ray.corpus.word_mechanisms import SanText, mechanism_of
from uedp_ray.errors import InputError
from uedp_ray.search.words import prior_of, tradeoff, tuned, tuned_for

LINE = (0.0, 0.7, 1.0, 1.8, 3.0)
PRIOR = np.array([0.4, 0.3, 0.2, 0.1, 0.0])
VECTORS = Vectors(("a", "b", "c", "d", "e"), np.array(LINE)[:, None])


def mechanism(name, **settings):
    return mechanism_of(TransformConfig(kind="replace_words", vectors="toy", mechanism=name, **settings), VECTORS)


def written_out(epsilon):
    """L, E and the error of the likeliest guess, of SanText, by loops over every guess."""
    weight = [[math.exp(-epsilon * abs(one - other) / 2) for other in LINE] for one in LINE]
    f = [[each / sum(row) for each in row] for row in weight]
    pairs = list(itertools.product(range(5), range(5)))
    loss = sum(PRIOR[w] * f[w][v] * abs(LINE[w] - LINE[v]) for w, v in pairs)
    apart = sum(PRIOR[w] * PRIOR[v] * abs(LINE[w] - LINE[v]) for w, v in pairs)
    guess = [[PRIOR[w] * f[w][v] / sum(PRIOR[x] * f[x][v] for x in range(5)) for v in range(5)] for w in range(5)]
    wrong = sum(PRIOR[w] * f[w][v] * guess[x][v] for (w, v), x in itertools.product(pairs, range(5)) if x != w)
    likeliest = [max(range(5), key=lambda w: guess[w][v]) for v in range(5)]
    missed = sum(PRIOR[w] * f[w][v] for w, v in pairs if likeliest[v] != w)
    return loss / apart, wrong, missed


@pytest.mark.parametrize("epsilon", [0.5, 2.0, 8.0])
def test_loss_and_errors_are_those_written_out(epsilon):
    found = tradeoff(mechanism("santext", epsilon=epsilon), PRIOR)
    assert (found.loss, found.inference_error, found.map_error) == pytest.approx(written_out(epsilon))


def test_random_words_tell_nothing_and_the_words_themselves_everything():
    nothing = tradeoff(mechanism("random"), PRIOR)
    assert nothing.inference_error == pytest.approx(1 - (PRIOR**2).sum())
    assert nothing.map_error == pytest.approx(1 - 0.4)
    everything = tradeoff(mechanism("custext", num_neighbours=1), PRIOR)
    assert (everything.loss, everything.inference_error, everything.map_error) == pytest.approx((0, 0, 0))


def test_the_search_finds_the_best_that_is_allowed():
    """SanText has one number, and both L and E fall with it: the best is where L is what is allowed."""
    low, high = 0.01, 1000.0
    for _ in range(60):
        middle = math.sqrt(low * high)
        low, high = (low, middle) if written_out(middle)[0] <= 0.5 else (middle, high)
    found = tuned(mechanism("santext"), PRIOR, most_loss=0.5)
    assert found.loss <= 0.5
    assert found.inference_error <= written_out(high)[1] + 1e-9
    assert found.inference_error == pytest.approx(written_out(high)[1], rel=0.05)
    assert tuned(mechanism("santext"), PRIOR, most_loss=0.5) == found, "twice the same"


def test_t_is_searched_too_but_not_beside_weights():
    found = tuned(mechanism("vickrey", selection=0.9), PRIOR, most_loss=0.6)
    assert found.loss <= 0.6
    assert found.selection != 0.9
    nearest = tuned(mechanism("fbdd"), PRIOR, most_loss=0.6)
    assert found.inference_error > 0.95 * nearest.inference_error
    weighed = mechanism("vickrey", selection=0.9, neighbour_weights=(1.0, 2.0))
    assert tuned(weighed, PRIOR, most_loss=0.9, num_trials=5).selection == 0.9


def test_the_setting_is_searched_and_what_it_states_is_told(monkeypatch, corpora, tmp_path):
    """The stated epsilon was printed as the setting, and a guarantee was told of a mechanism that nobody proved."""

    class Twice(SanText):
        unit = "word-metric"

        @property
        def epsilon(self):
            return 2 * self.setting

        def law(self, word):
            weights = np.exp(-self.setting * np.abs(self.vectors.table[:, 0] - self.vectors.table[word, 0]))
            return np.arange(len(weights)), weights / weights.sum()

    config = TransformConfig(kind="replace_words", vectors="toy", mechanism="santext")
    found = tuned(Twice(config, VECTORS), PRIOR, most_loss=0.5)
    assert found.epsilon == 2 * found.setting
    assert tradeoff(Twice(config, VECTORS).at(found.setting, found.selection), PRIOR) == found
    file = tmp_path / "toy.txt"
    file.write_text("".join(f"{word} {at}\n" for word, at in zip(("the", "in", "met", "left"), LINE, strict=False)))
    monkeypatch.setitem(word_mechanisms._MECHANISMS, "santext", Twice)
    section = {"kind": "replace_words", "mechanism": "santext", "vectors": str(file)}
    run = run_config(corpora, corpus={"transform": section})
    answer = tuned_for(run, most_loss=0.5, num_trials=4)
    assert f"epsilon = {2 * answer['corpus.transform.epsilon']:.6g} (unit word-metric)" in answer["note"]
    monkeypatch.setattr("uedp_ray.search.words.PROVED_WORD_MECHANISMS", frozenset())
    assert "Nothing is guaranteed" in tuned_for(run, most_loss=0.5, num_trials=4)["note"]


def test_what_cannot_be_searched_is_refused():
    with pytest.raises(InputError, match=r"most_loss = 0\.2: the least that was found is 0\.\d+: allow that"):
        tuned(mechanism("vickrey", neighbour_weights=(1e-9, 1e-9)), PRIOR, most_loss=0.2, num_trials=5)
    with pytest.raises(InputError, match=r"random.*nothing to search"):
        tuned(mechanism("random"), PRIOR, most_loss=0.5)
    with pytest.raises(InputError, match="two words or more"):
        tuned(mechanism("santext"), np.array([1.0, 0, 0, 0, 0]), most_loss=0.5)


def test_the_prior_is_counted_in_public_text_or_by_rank():
    assert prior_of(VECTORS, ["B a! a", "a c zebra"], 2).tolist() == [0.75, 0.25, 0, 0, 0]
    ranks = [1, 1 / 2, 1 / 3]
    assert prior_of(VECTORS, [], 3).tolist() == pytest.approx([each / sum(ranks) for each in ranks] + [0, 0])


def test_a_run_file_is_answered_for_its_public_text(corpora, tmp_path):
    file = tmp_path / "toy.txt"
    file.write_text("".join(f"{word} {at}\n" for word, at in zip(("the", "in", "met", "left"), LINE, strict=False)))
    section = {"kind": "replace_words", "mechanism": "santext", "vectors": str(file)}
    config = run_config(corpora, corpus={"transform": section})
    answer = tuned_for(config, most_loss=0.5, num_trials=12)
    assert answer["loss"] <= 0.5
    assert (answer["unit"], answer["mechanism"]) == ("word-metric", "santext")
    assert "corpus.transform.selection" not in answer
    assert "counted in public text: its errors are computed, and no bounds" in answer["note"]
    again = run_config(corpora, corpus={"transform": section | {"epsilon": answer["corpus.transform.epsilon"]}})
    assert again.corpus.transform.epsilon == answer["corpus.transform.epsilon"]
    with pytest.raises(InputError, match=r"corpus\.transform\.kind = 'mask': has no epsilon to search"):
        tuned_for(run_config(corpora, corpus={"transform": {"kind": "mask"}}), most_loss=0.5)

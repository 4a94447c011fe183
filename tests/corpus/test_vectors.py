"""Vectors made of public text, against the same arithmetic by loops over a dense table."""

from __future__ import annotations

import math

import numpy as np
import pytest

from uedp_ray.corpus.vectors import read_vectors, vectors_of, write_vectors
from uedp_ray.errors import InputError

TEXTS = ["the cat sat on the mat", "a dog sat on a log 12 times", "the dog ate", "Cat and dog", "alone"]
WORDS = [[word.lower() for word in text.split() if not word.isdigit()] for text in TEXTS]


def dense(words, window):
    """(V, V) positive pointwise mutual information, by the definition."""
    counts = {
        (one, other): sum(
            (said[here], said[there]) == (one, other)
            for said in WORDS
            for here in range(len(said))
            for there in range(len(said))
            if 0 < abs(here - there) <= window
        )
        for one in words
        for other in words
    }
    total = {one: sum(counts[one, other] for other in words) for one in words}
    smoothed = sum(count**0.75 for count in total.values())

    def information(one, other):
        count = counts[one, other]
        return max(0.0, math.log(count / (total[one] * total[other] ** 0.75 / smoothed))) if count else 0.0

    return np.array([[information(one, other) for other in words] for one in words])


@pytest.mark.parametrize("window", [1, 3])
def test_vectors_are_the_largest_singular_ones(window):
    made = vectors_of(TEXTS, dimensions=4, window=window)
    assert sorted(made.words) == sorted({word for said in WORDS for word in said}), "numbers are no words"
    left, sizes, _ = np.linalg.svd(dense(made.words, window))
    wanted = (left[:, :4] * sizes[:4]) @ left[:, :4].T
    np.testing.assert_allclose(made.table @ made.table.T, wanted, atol=1e-9)


def test_the_same_text_gives_the_same_file_and_the_most_frequent_words_are_first(tmp_path):
    files = [tmp_path / name for name in ("one", "other")]
    for file in files:
        write_vectors(vectors_of(TEXTS, dimensions=3, most_words=6), file)
    assert files[0].read_bytes() == files[1].read_bytes()
    found = read_vectors(files[0])
    assert found.table.shape == (6, 3)
    assert (set(found.words[:2]), set(found.words[2:])) == ({"the", "dog"}, {"cat", "sat", "on", "a"})


def test_more_coordinates_than_words_are_refused():
    with pytest.raises(InputError, match="dimensions = 13: the public text has"):
        vectors_of(TEXTS, dimensions=13)

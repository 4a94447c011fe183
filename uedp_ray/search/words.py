"""Which epsilon, and which t of ``vickrey``, for replacing words: the one that leaves an adversary the most to guess among
those that change no more than is allowed.

    >>> import numpy as np
    >>> from uedp_ray.config import TransformConfig
    >>> from uedp_ray.corpus.vectors import Vectors
    >>> from uedp_ray.corpus.word_mechanisms import mechanism_of
    >>> from uedp_ray.search.words import tradeoff, tuned
    >>> vectors = Vectors(("bad", "poor", "fine", "good"), np.array([[0.0], [1.0], [4.0], [5.0]]))
    >>> config = TransformConfig(kind="replace_words", vectors="toy.txt", mechanism="santext")
    >>> found = tuned(mechanism_of(config, vectors), np.full(4, 0.25), most_loss=0.3)
    >>> found.loss <= 0.3 < tradeoff(mechanism_of(config, vectors), np.full(4, 0.25)).loss
    True

Everything is public: vectors, and a prior counted in public text. Source: Xu et al. 2021 (Vickrey), whose Algorithm 2 walks
the same two numbers on a grid. Shape legend: V words; w the word, w' what replaces it; pi the prior, f(w' | w) the channel.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import optuna
from numpy.typing import NDArray
from scipy.spatial.distance import cdist

from uedp_ray.config import RunConfig
from uedp_ray.config.choices import PROVED_WORD_MECHANISMS
from uedp_ray.corpus.vectors import WORD, Vectors, read_vectors
from uedp_ray.corpus.word_mechanisms import ByLaw, Uniform, Vickrey, WordMechanism, mechanism_of
from uedp_ray.errors import InputError
from uedp_ray.search.samplers import make_sampler
from uedp_ray.training.paths import for_use
from uedp_ray.training.run_vocabulary import public_sentences, public_text

_SEED = 0
"""Of the search and of its draws, which are the same at every point; nothing private is drawn."""
_LEAST, _MOST = 0.1, 1000.0
"""Between which epsilon is searched: of ``word``, or of ``word-metric`` at the mean distance of two words."""


@dataclass(frozen=True)
class Tradeoff:
    """What one setting costs and gives."""

    setting: float
    """``corpus.transform.epsilon``."""
    epsilon: float
    """What the mechanism states there: of one draw, in the sense of its ``unit``."""
    selection: float
    loss: float
    """L: the mean distance between a word and what replaces it, over that between two words of the prior."""
    inference_error: float
    """E: how often an adversary is wrong who knows everything but the word, and draws its guess from what it then knows."""
    map_error: float
    """The same, of one who takes the likeliest word: the stronger of the two."""


def prior_of(vectors: Vectors, texts: Iterable[str], num_words: int) -> NDArray[np.float64]:
    """(V,) shares of the ``num_words`` words that are most frequent in public ``texts``, and 0 for all others.

    Without a word of the texts: 1 / rank in the order of the vectors' file, as Zipf's law has it.
    """
    found = (vectors.find(word) for text in texts for word in WORD.findall(text))
    counts = np.bincount(
        np.fromiter((word for word in found if word is not None), np.int64), minlength=len(vectors.words)
    )
    shares = counts if counts.any() else 1 / np.arange(1.0, len(vectors.words) + 1)
    frequent = np.argsort(-shares, kind="stable")[:num_words]
    prior = np.zeros(len(vectors.words))
    prior[frequent] = shares[frequent] / shares[frequent].sum()
    return prior


def tradeoff(mechanism: WordMechanism, prior: NDArray[np.float64]) -> Tradeoff:
    """L and E of a mechanism, by its channel from the words of the prior (``WordMechanism.channel``)."""
    words, table = np.flatnonzero(prior), mechanism.vectors.table
    prior_W = prior[words]
    joint_WV = prior_W[:, None] * mechanism.channel(words, np.random.default_rng(_SEED))
    arrives_V = joint_WV.sum(axis=0)
    squares_V = (joint_WV**2).sum(axis=0)
    far_WV = cdist(table[words], table)
    loss = (joint_WV * far_WV).sum() / (prior_W @ far_WV[:, words] @ prior_W)
    guessed = np.divide(squares_V, arrives_V, out=np.zeros_like(squares_V), where=arrives_V > 0).sum()
    return Tradeoff(
        setting=mechanism.setting,
        epsilon=mechanism.epsilon,
        selection=mechanism.selection,
        loss=float(loss),
        inference_error=1 - float(guessed),
        map_error=1 - float(joint_WV.max(axis=0).sum()),
    )


def tuned(
    mechanism: WordMechanism,
    prior: NDArray[np.float64],
    *,
    most_loss: float,
    num_trials: int = 60,
    num_draws: int = 200,
) -> Tradeoff:
    """The setting of the largest E that was found with L of at most ``most_loss``; the first tried changes the least.

    Raises: InputError if there is nothing to search, or even that one loses more.
    """
    if isinstance(mechanism, Uniform):
        raise InputError("corpus.transform.mechanism", "random", "has nothing to search: its epsilon is 0")
    if np.count_nonzero(prior) < 2:
        raise InputError("num_words", int(np.count_nonzero(prior)), "a guess is between two words or more")
    unit = 1.0
    if mechanism.unit == "word-metric":
        words = np.flatnonzero(prior)
        unit = float(
            prior[words] @ cdist(mechanism.vectors.table[words], mechanism.vectors.table[words]) @ prior[words]
        )
    chosen = isinstance(mechanism, Vickrey) and not mechanism.by_weight
    found: dict[int, Tradeoff] = {}

    def score(trial: optuna.Trial) -> float:
        setting = trial.suggest_float("epsilon", _LEAST / unit, _MOST / unit, log=True)
        selection = trial.suggest_float("selection", 0.0, 1.0) if chosen else mechanism.selection
        at = found[trial.number] = tradeoff(mechanism.at(setting, selection), prior)
        trial.set_constraint("loss", at.loss - most_loss)
        return at.inference_error

    before = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    try:
        study = optuna.create_study(direction="maximize", sampler=make_sampler("tpe", num_trials, _SEED))
        study.enqueue_trial({"epsilon": _MOST / unit} | ({"selection": 0.0} if chosen else {}))
        study.optimize(score, n_trials=num_trials)
    finally:
        optuna.logging.set_verbosity(before)
    allowed = [at for at in found.values() if at.loss <= most_loss]
    if not allowed:
        least = min(at.loss for at in found.values())
        raise InputError("most_loss", most_loss, f"the least that was found is {least:.4g}: allow that, or more")
    return max(allowed, key=lambda at: at.inference_error)


def tuned_for(config: RunConfig, *, most_loss: float, num_words: int = 200, num_trials: int = 60) -> dict[str, Any]:
    """``tuned`` for the transform of a run, with the words of its public text, as plain values and what they mean.

    Raises: InputError if its transform replaces no words.
    """
    settings = config.corpus.transform
    if settings.kind != "replace_words":
        raise InputError("corpus.transform.kind", settings.kind, "has no epsilon to search: set replace_words")
    used = for_use(config)
    mechanism = mechanism_of(settings, read_vectors(Path(used.corpus.transform.vectors), "corpus.transform.vectors"))
    field, sources = public_text(used)
    prior = prior_of(mechanism.vectors, public_sentences(sources, config.pretrain.max_words, field=field), num_words)
    found = tuned(mechanism, prior, most_loss=most_loss, num_trials=num_trials)
    answer = {"corpus.transform.epsilon": found.setting, "corpus.transform.selection": found.selection}
    if settings.mechanism != "vickrey" or settings.neighbour_weights:
        del answer["corpus.transform.selection"]
    measures = {name: getattr(found, name) for name in ("loss", "inference_error", "map_error")}
    counted = (
        "counted in public text" if sources else "1 / rank in the file of vectors, as the run names no public text"
    )
    claimed = settings.mechanism in PROVED_WORD_MECHANISMS and mechanism.unit
    promise = f"What is guaranteed is epsilon = {found.epsilon:.6g}" if claimed else "Nothing is guaranteed"
    note = (
        f"An adversary among {int(np.count_nonzero(prior))} words, prior {counted}: its errors are "
        f"{'computed' if isinstance(mechanism, ByLaw) else 'estimated by draws'}, and no bounds. {promise} (unit "
        f"{mechanism.unit or 'none'})"
    )
    return answer | measures | {"mechanism": settings.mechanism, "unit": mechanism.unit, "note": note}

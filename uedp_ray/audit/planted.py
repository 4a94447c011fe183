"""A run whose text had canaries planted (``corpus.transform.kind: plant``), and what its model remembers of them.

    audit.json in the run directory    # what audit(Path("runs/planted")) returns, and the command prints

Canaries, cells and R are public. Which users share one is the run's secret, and nothing here reads it: all follows from
settings and from the model, so it is as public as the model, or as private.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from uedp_ray.audit.memory import FOUND, GIVEN, exposure, found_by_beam, rank_of
from uedp_ray.config import RunConfig, load_config
from uedp_ray.config.texts import CANARY_LENGTH
from uedp_ray.corpus.transforms.plant import canaries_of, word_ids
from uedp_ray.corpus.vocabulary import Vocabulary
from uedp_ray.errors import InputError
from uedp_ray.privacy.guarantee import hides_anybody
from uedp_ray.reporting import SILENT, Reporter
from uedp_ray.storage.files import settle, write_json
from uedp_ray.tasks.metrics import metric_of
from uedp_ray.training.placement import best_device
from uedp_ray.training.predict import Predictor
from uedp_ray.training.rundir import RunDir

_FILE = "audit.json"
_TOLD = 30
"""Canaries from one line of progress to the next."""


def audit(run: Path, *, beam_width: int = 10, reporter: Reporter = SILENT) -> dict[str, Any]:
    """Measures the model of a finished run, on a GPU if there is one, and writes ``audit.json`` into its folder.

    Args:
      beam_width: continuations that the beam search keeps at each step, 5 or more.

    Returns: name; private (whether the run has a guarantee, so that these figures may be shown); perplexity of the run's
      evaluation text (a model that learned nothing remembers nothing); candidates, which is |R|; beam_width;

      - canaries: text, sharer_prob, planting_prob, rank, exposure (bits), random_sampling and beam_search (found or not);
      - cells, one for each pair of probabilities: canaries, random_sampling and beam_search (how many, how many found),
        median_exposure, and expected_sharers of each canary, of as many users as were declared;
      - total: the same over all canaries.
    Raises: InputError for a run without canaries, or that is unfinished.
    """
    if beam_width < FOUND:
        raise InputError("beam_width", beam_width, f"the best {FOUND} are looked at: keep {FOUND} or more")
    folder = RunDir(run)
    if not folder.result.is_file():
        raise InputError("RUN", str(run), "holds no finished run: name a folder that uedp-ray train or compare wrote")
    config = load_config(folder.config)
    if not plants(config):
        remedy = "its text had no canaries planted: train it with corpus.transform.kind: plant (docs/audit.md)"
        raise InputError("RUN", str(run), remedy)
    result = folder.load_result(metric_of(config))
    predictor = Predictor(run).to(best_device())
    settings, vocabulary = config.corpus.transform, predictor.vocabulary
    words, canaries = word_ids(settings, vocabulary), canaries_of(settings)
    tokens = vocabulary.encode_batch([canary.text for canary in canaries])
    left_out = _no_words(vocabulary)
    candidates, rows = len(words) ** (CANARY_LENGTH - GIVEN), []
    for number, (canary, ids) in enumerate(zip(canaries, tokens, strict=True), start=1):
        rank = rank_of(ids, words, predictor.next_log_probs)
        measured = {
            "rank": rank,
            "exposure": exposure(rank, candidates),
            "random_sampling": rank == 1,
            "beam_search": found_by_beam(ids, left_out, beam_width, predictor.next_log_probs),
        }
        rows.append(canary._asdict() | measured)
        if number % _TOLD == 0:
            reporter.say(f"{config.name}: canary {number} of {len(canaries)}")
    protected = hides_anybody(result)
    answer = {
        "name": config.name,
        "private": protected,
        "perplexity": result["perplexity"],
        "candidates": candidates,
        "beam_width": beam_width,
        "total": _summary(rows),
        "cells": _cells(config, rows),
        "canaries": rows,
    }
    settle(run, {_FILE})  # what a kill left of an earlier one
    write_json(run / _FILE, answer, private=not protected)
    return answer


def plants(config: RunConfig) -> bool:
    """Whether a run's text has canaries, and its model can be asked for next words."""
    return config.corpus.transform.kind == "plant" and config.task.kind == "next_word"


def _no_words(vocabulary: Vocabulary) -> np.ndarray:
    ids = (vocabulary.bos_id, vocabulary.eos_id, vocabulary.pad_id, vocabulary.unk_id)
    return np.array([each for each in ids if each is not None], np.int64)


def _cells(config: RunConfig, rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    users, size, found = config.corpus.declared_num_users, config.corpus.transform.canaries_per_cell, []
    for first in range(0, len(rows), size):
        of_cell = rows[first : first + size]
        shared = of_cell[0]["sharer_prob"]
        cell = {key: of_cell[0][key] for key in ("sharer_prob", "planting_prob")}
        found.append(cell | {"expected_sharers": users and shared * users} | _summary(of_cell))
    return found


def _summary(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    return {
        "canaries": len(rows),
        "random_sampling": sum(row["random_sampling"] for row in rows),
        "beam_search": sum(row["beam_search"] for row in rows),
        "median_exposure": statistics.median(row["exposure"] for row in rows),
    }

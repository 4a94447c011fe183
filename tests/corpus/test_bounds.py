"""Bounds: every cap holds on any graph, whoever is taken away, and declared bounds are refused by number only."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from uedp_ray.config import BoundsConfig
from uedp_ray.corpus import bounds as module
from uedp_ray.corpus._spill import stable_hash
from uedp_ray.corpus.bounds import IncidenceGraph, apply_bounds, bounded_once
from uedp_ray.errors import InputError

Graph = list[list[set[int]]]  # user -> sentence -> entities


@dataclass
class Incidences:
    """A graph in the corpus's arrays."""

    user_offsets: NDArray[np.int64]
    user_hash: NDArray[np.uint64]
    entity_offsets: NDArray[np.int64]
    entity_ids: NDArray[np.int32]
    entity_hash: NDArray[np.uint64]
    sentence_words: NDArray[np.int32]

    @property
    def num_entities(self) -> int:
        return len(self.entity_hash)


def _incidences(graph: Graph, num_entities: int = 6) -> Incidences:
    sentences = [sorted(held) for user in graph for held in user]
    return Incidences(
        user_offsets=np.cumsum([0, *map(len, graph)]),
        user_hash=np.array([stable_hash(f"u{user}") for user in range(len(graph))], np.uint64),
        entity_offsets=np.cumsum([0, *map(len, sentences)]),
        entity_ids=np.array([e for held in sentences for e in held], np.int32),
        entity_hash=np.array([stable_hash(f"e{entity}") for entity in range(num_entities)], np.uint64),
        sentence_words=np.arange(1, len(sentences) + 1, dtype=np.int32),
    )


graphs = st.lists(st.lists(st.sets(st.integers(0, 5), max_size=4), min_size=1, max_size=7), min_size=1, max_size=7)
enforced = st.builds(
    BoundsConfig,
    mode=st.just("enforced"),
    max_sentences_per_user=st.none() | st.integers(1, 6),
    max_sentences_per_entity=st.integers(1, 3),
    max_holders=st.integers(1, 5),
    entity_bound=st.sampled_from(["truncate", "reweight"]),
    holder_bound=st.sampled_from(["truncate", "reweight", "fill"]),
)


def _by_user(graph: Graph, weight: NDArray[np.float32]) -> list[list[float]]:
    ends = np.cumsum([0, *map(len, graph)])
    return [weight[a:b].astype(float).tolist() for a, b in itertools.pairwise(ends)]


@settings(max_examples=300)
@given(graphs, enforced)
def test_every_cap_holds(graph: Graph, bounds: BoundsConfig) -> None:
    bounded = apply_bounds(_incidences(graph), bounds, len(graph))
    weight = _by_user(graph, bounded.sentence_weight)
    m, most = bounds.max_sentences_per_entity, bounds.max_holders
    assert bounded.sentence_weight.dtype == np.float32
    for user in range(len(graph)):
        assert all(0 <= w <= 1 for w in weight[user])
        if bounds.max_sentences_per_user is not None:
            assert not any(weight[user][bounds.max_sentences_per_user :])
    for entity in range(6):
        shares = [
            sum(w for w, held in zip(weight[u], graph[u], strict=True) if entity in held) for u in range(len(graph))
        ]
        holders = sum(any(entity in held for held in sentences) for sentences in graph)
        factor = min(1.0, most / max(holders, 1)) if bounds.holder_bound == "reweight" else 1.0
        assert max(shares) <= m * factor
        if bounds.holder_bound == "fill":
            assert sum(shares) <= m * most
        if bounds.entity_bound == bounds.holder_bound == "truncate":
            assert max(
                sum(w > 0 for w, held in zip(weight[u], graph[u], strict=True) if entity in held) for u in range(len(graph))
            ) <= m  # fmt: skip
        if bounds.holder_bound == "truncate":
            assert sum(share > 0 for share in shares) <= most


@settings(max_examples=200)
@given(graphs, enforced.filter(lambda bounds: bounds.holder_bound != "fill"))
def test_weights_are_exactly_those_of_the_definition(graph: Graph, bounds: BoundsConfig) -> None:
    """The vectorised code against the definition written out, sentence by sentence."""
    incidences = _incidences(graph)
    weight = _by_user(graph, apply_bounds(incidences, bounds, None).sentence_weight)
    cap, m, most = bounds.max_sentences_per_user or 10**9, bounds.max_sentences_per_entity, bounds.max_holders
    for u, sentences in enumerate(graph):
        for slot, held in enumerate(sentences):
            expected = 1.0 if slot < cap else 0.0
            for e in held if slot < cap else ():
                holding = [i for i, other in enumerate(sentences) if e in other and i < cap]
                holders = [v for v, theirs in enumerate(graph) if any(e in other for other in theirs)]
                truncated = bounds.entity_bound == "truncate"
                factor = float(holding.index(slot) < m) if truncated else min(1.0, m / len(holding))
                if bounds.holder_bound == "reweight":
                    factor *= min(1.0, most / len(holders))
                elif len(holders) > most and weight[u][slot] == 0:
                    continue  # who is first is the hash's choice; that at most K are is tested above
                expected = min(expected, factor)
            if bounds.holder_bound == "reweight" or weight[u][slot]:
                assert weight[u][slot] == pytest.approx(expected, abs=1e-6)


@settings(max_examples=100)
@given(graphs, enforced)
def test_weights_depend_on_the_graph_alone_whatever_the_order_of_users(graph: Graph, bounds: BoundsConfig) -> None:
    forward = _incidences(graph)
    backward = _incidences(graph[::-1])
    backward.user_hash = forward.user_hash[::-1].copy()
    there = _by_user(graph, apply_bounds(forward, bounds, None).sentence_weight)
    backward.sentence_words[:] = 1  # lengths are content, not graph
    back = _by_user(graph[::-1], apply_bounds(backward, bounds, None).sentence_weight)
    assert there == back[::-1]


@settings(max_examples=60, deadline=None)
@given(graphs, enforced.filter(lambda bounds: bounds.holder_bound == "fill"))
def test_filling_is_what_rising_together_gives(graph: Graph, bounds: BoundsConfig) -> None:
    """The vectorised code against small steps of all weights at once, each sentence slower the more entities it has."""
    weight = _by_user(graph, apply_bounds(_incidences(graph), bounds, None).sentence_weight)
    cap, m, most = bounds.max_sentences_per_user or 10**9, bounds.max_sentences_per_entity, bounds.max_holders
    places = [(u, slot) for u, sentences in enumerate(graph) for slot in range(len(sentences))]
    for u, slot in list(places):
        ranks = [[i for i, held in enumerate(graph[u]) if e in held].index(slot) for e in graph[u][slot]]
        if slot >= cap or (bounds.entity_bound == "truncate" and any(rank >= m for rank in ranks)):
            places.remove((u, slot))
            assert weight[u][slot] == 0.0
    links = [([p for p in places if e in graph[p[0]][p[1]]], most * m) for e in range(6)]
    links += [
        ([p for p in places if p[0] == u and e in graph[u][p[1]]], m) for u in range(len(graph)) for e in range(6)
    ]
    found, rising, step = dict.fromkeys(places, 0.0), set(places), 1 / 400
    while rising:
        for place in rising:
            found[place] += step / max(len(graph[place[0]][place[1]]), 1)
        full = [members for members, room in links if sum(found[p] for p in members) >= room - 1e-9]
        rising -= {p for members in full for p in members} | {p for p in rising if found[p] >= 1.0}
    for (u, slot), expected in found.items():
        assert weight[u][slot] == pytest.approx(expected, abs=0.02)


def test_filling_weighs_more_than_reweighting_where_sentences_hold_several_entities() -> None:
    graph: Graph = [[{0, 1}], [{0}], [{0}], [{1}], [{0}]]
    total = {}
    for bound in ("reweight", "fill"):
        bounds = BoundsConfig(max_holders=1, holder_bound=bound)  # type: ignore[arg-type]
        total[bound] = apply_bounds(_incidences(graph), bounds, None).sentence_weight.sum()
    assert total["reweight"] == pytest.approx(1.5)
    assert total["fill"] == pytest.approx(13 / 7, abs=0.01)


def test_truncation_keeps_exactly_k_holders() -> None:
    graph: Graph = [[{0}, set(), {1}] for _ in range(50)]
    bounds = BoundsConfig(max_holders=7, holder_bound="truncate")
    bounded = apply_bounds(_incidences(graph), bounds, 50)
    weight = bounded.sentence_weight.reshape(50, 3)
    assert weight[:, 0].sum() == 7
    assert weight[:, 1].all()  # sentences without an entity are nobody's surplus
    assert weight[:7, 0].sum() < 7  # by hash, not by place
    assert (weight[:, 0] != weight[:, 2]).any()  # and by the entity's: not the same users everywhere


def test_truncation_of_entities_is_not_greedy() -> None:
    """Taking entity 0 away must not bring the last sentence back: its rank counts the sentence entity 0 cut."""
    graph: Graph = [[{0}, {0, 1}, {1}]]
    bounds = BoundsConfig(entity_bound="truncate")
    assert apply_bounds(_incidences(graph), bounds, 1).sentence_weight.tolist() == [1, 0, 0]


def test_reweighting_takes_the_strictest_entity() -> None:
    graph: Graph = [[{0, 1}, {0}, {0}], [{1}], [{1}], [{1}]]
    bounded = apply_bounds(_incidences(graph), BoundsConfig(max_holders=2, holder_bound="reweight"), 4)
    assert bounded.sentence_weight.tolist() == pytest.approx([1 / 3, 1 / 3, 1 / 3, 0.5, 0.5, 0.5])


def test_dropped_share_counts_words_and_adds_up() -> None:
    graph: Graph = [[{0}, {0}, set(), set()], [{0}]]  # words 1 2 3 4 5
    bounds = BoundsConfig(max_sentences_per_user=3, max_holders=1, holder_bound="reweight", entity_bound="truncate")
    bounded = apply_bounds(_incidences(graph), bounds, None)
    assert bounded.sentence_weight.tolist() == [0.5, 0, 1, 0, 0.5]
    assert bounded.dropped_share == pytest.approx(9 / 15)
    assert list(bounded.dropped_by.values()) == pytest.approx([4 / 15, 2 / 15, 3 / 15])


def test_what_is_dropped_is_told_with_what_would_keep_it_and_as_private_unless_it_is_public() -> None:
    graph: Graph = [[{0}, {0}, set(), set()], [{0}]]
    bounds = BoundsConfig(max_sentences_per_user=3, max_holders=1, holder_bound="reweight", entity_bound="truncate")
    bounded = apply_bounds(_incidences(graph), bounds, None)
    told = bounded.told(bounds)
    assert told.startswith(
        "60% of the words are dropped by bounds: max_sentences_per_user 27%, max_sentences_per_entity "
    )
    assert "to keep more, raise bounds.max_sentences_per_user (sentences of a user that count; uedp-ray plan" in told
    assert "bounds.holder_bound: fill" in told
    assert told.endswith("(private: read off the text, as is a setting that is chosen by it)")
    assert "private" not in bounded.told(bounds, public=True)
    assert "fill" not in bounded.told(dataclasses.replace(bounds, holder_bound="fill"))
    assert "by mistake" not in told, "it is users who have more sentences than count"
    assert apply_bounds(_incidences([[set()]], 0), bounds, None).told(bounds) == ""
    shared = BoundsConfig(max_holders=1, holder_bound="reweight")
    told = apply_bounds(_incidences(graph), shared, None).told(shared)
    assert "what a detector takes for an entity by mistake" in told


def test_no_bounds_no_entities_and_only_sensitive_sentences() -> None:
    plain: Graph = [[set(), set()], [set()]]
    for mode in ("none", "enforced", "declared"):
        bounded = apply_bounds(_incidences(plain, 0), BoundsConfig(mode=mode), None)
        assert bounded.sentence_weight.tolist() == [1, 1, 1]
        assert bounded.dropped_share == 0
    sensitive: Graph = [[{0}, {0}], [{0}]]
    assert apply_bounds(_incidences(sensitive), BoundsConfig(mode="none"), None).sentence_weight.tolist() == [1, 1, 1]
    assert apply_bounds(_incidences(sensitive), BoundsConfig(), None).sentence_weight.tolist() == [0.5, 0.5, 1]


GRAPH: Graph = [[{0}, {0}, {0}], [{0}, {1}], [{0}], [set()]]


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("max_sentences_per_user", 1, "bounds.max_sentences_per_user = 1: 2 users"),
        ("max_sentences_per_entity", 2, "bounds.max_sentences_per_entity = 2: 1 users"),
        ("max_holders", 2, "bounds.max_holders = 2: 1 entities"),
    ],
)
def test_declared_bounds_are_refused_one_below_and_accepted_at_the_truth(field: str, value: int, message: str) -> None:
    truth = {"max_sentences_per_user": 3, "max_sentences_per_entity": 3, "max_holders": 3}
    accepted = apply_bounds(_incidences(GRAPH), BoundsConfig(mode="declared", **truth), 4)  # type: ignore[arg-type]
    assert accepted.sentence_weight.tolist() == [1] * 7
    with pytest.raises(InputError, match=message):
        apply_bounds(_incidences(GRAPH), BoundsConfig(mode="declared", **(truth | {field: value})), 4)  # type: ignore[arg-type]


@pytest.mark.parametrize("mode", ["none", "declared", "enforced"])
def test_more_users_than_declared_are_refused_in_every_mode(mode: str) -> None:
    with pytest.raises(InputError, match="declared_num_users = 3"):
        apply_bounds(_incidences(GRAPH), BoundsConfig(mode=mode), 3)  # type: ignore[arg-type]


@pytest.mark.parametrize("holder_bound", ["truncate", "fill"])
def test_two_hundred_thousand_users(holder_bound: str) -> None:
    users, each = 200_000, 5
    generator = np.random.default_rng(0)
    incidences = Incidences(
        user_offsets=np.arange(users + 1) * each,
        user_hash=generator.integers(0, 2**64, users, np.uint64),
        entity_offsets=np.arange(users * each + 1),
        entity_ids=generator.zipf(1.5, users * each).clip(max=99_999).astype(np.int32),
        entity_hash=generator.integers(0, 2**64, 100_000, np.uint64),
        sentence_words=np.full(users * each, 10, np.int32),
    )
    bounds = BoundsConfig(entity_bound="truncate", holder_bound=holder_bound, max_holders=5)  # type: ignore[arg-type]
    weight = apply_bounds(incidences, bounds, None).sentence_weight
    if holder_bound == "fill":
        sums = np.bincount(incidences.entity_ids, weights=weight)
        assert 5 - 1e-2 < sums.max() <= 5
        return
    holders = np.bincount(incidences.entity_ids[weight > 0])  # one sentence a user and entity at most, so holders
    assert holders.max() == 5


@pytest.fixture
def applied(monkeypatch):
    """How often bounds were computed."""
    calls = []

    def counted(*of):
        calls.append(of)
        return apply_bounds(*of)

    monkeypatch.setattr(module, "apply_bounds", counted)
    monkeypatch.setattr(module, "_KEPT", {})
    return calls


HELD: Graph = [[{0, 1}, {1}, {1}], [{1}], [{2}, set()]]
BOUNDS = BoundsConfig(mode="enforced", max_sentences_per_entity=1, max_holders=1)


def test_bounds_of_one_graph_are_computed_once_a_process(applied):
    first = bounded_once(_incidences(HELD), BOUNDS, 3)
    again = bounded_once(_incidences(HELD), dataclasses.replace(BOUNDS), 3)
    assert len(applied) == 1
    assert again is first
    assert np.array_equal(again.sentence_weight, apply_bounds(_incidences(HELD), BOUNDS, 3).sentence_weight)
    with pytest.raises(ValueError, match="read-only"):
        again.sentence_weight[0] = 0.0


def test_and_again_for_whatever_they_depend_on(applied):
    bounded_once(_incidences(HELD), BOUNDS, 3)
    bounded_once(_incidences(HELD), BOUNDS, 4)
    bounded_once(_incidences(HELD), dataclasses.replace(BOUNDS, max_holders=2), 3)
    assert len(applied) == 3
    arrays = [each.name for each in dataclasses.fields(Incidences)]
    assert set(arrays) == set(IncidenceGraph.__annotations__)
    for name in arrays:
        graph = _incidences(HELD)
        getattr(graph, name)[-1] -= 1
        with contextlib.suppress(ValueError, IndexError):  # offsets and numbers that fit no more: it was looked at
            bounded_once(graph, BOUNDS, 3)
    assert len(applied) == 3 + len(arrays)
    assert len(module._KEPT) == module._MOST_KEPT


def test_what_is_refused_is_refused_again(applied):
    for _ in range(2):
        with pytest.raises(InputError, match="the text has more users"):
            bounded_once(_incidences(HELD), BOUNDS, 2)
    assert len(applied) == 2

"""Which sentences share a batch, and which are formed together: neither may tell a sentence of another's absence."""

from __future__ import annotations

import numpy as np
import pytest

from uedp_ray.plan import UserSelection
from uedp_ray.updates.batches import Batches, Drawn

LENGTHS = [8, 12, 16]


def random_user(made_up: np.random.Generator, user: int = 0, most: int = 40) -> UserSelection:
    numbers = np.flatnonzero(made_up.random(most) < 0.6) + 1000 * user
    weights = made_up.choice([1.0, 0.75, 0.5, 0.3, 1e-6], len(numbers)).astype(np.float32)
    return UserSelection(user, numbers, weights, num_held=most, first=1000 * user)


def length_of(number: int) -> int:
    return LENGTHS[number * 7 % 3]


def drawn(selection: UserSelection) -> Drawn:
    return Drawn.of(selection, [length_of(number) for number in selection.sentences.tolist()], together=4)


def groups(selection: UserSelection) -> list[tuple[float, list[int]]]:
    user = drawn(selection)
    for at, number in enumerate(user.numbers.tolist()):
        user.give(at, (number,))
    return numbers(user)


def numbers(user: Drawn) -> list[tuple[float, list[int]]]:
    return [(least, [number for (number,) in rows]) for least, rows in user.take()]


def test_an_absent_sentence_changes_no_group_but_by_itself():
    made_up = np.random.default_rng(0)
    for _ in range(200):
        whole = random_user(made_up)
        there = made_up.random(len(whole.sentences)) < 0.7
        fewer = whole._replace(sentences=whole.sentences[there], weights=whole.weights[there])
        left = [(least, [x for x in rows if x in fewer.sentences]) for least, rows in groups(whole)]
        assert groups(fewer) == [(least, rows) for least, rows in left if rows]


def test_where_a_user_is_in_the_corpus_changes_no_group():
    """Where users before leave the file, the others' numbers move up."""
    made_up = np.random.default_rng(0)
    for by in range(1, 6):
        user = random_user(made_up, user=1)
        moved = user._replace(sentences=user.sentences - by, first=user.first - by)
        assert groups(moved) == [(least, [x - by for x in rows]) for least, rows in groups(user)]


def test_weights_of_a_group_are_at_least_what_it_says_and_less_than_twice_as_much():
    made_up = np.random.default_rng(0)
    for _ in range(50):
        user = random_user(made_up)
        weight = dict(zip(user.sentences.tolist(), user.weights.tolist(), strict=True))
        found = groups(user)
        assert sorted(x for _, rows in found for x in rows) == user.sentences.tolist()
        for least, rows in found:
            assert len(rows) <= 4
            assert all(least <= weight[x] < 2 * least for x in rows)


@pytest.mark.parametrize("num_users", [1, 7])
def test_groups_are_taken_whole_and_once_whenever_their_sentences_passed(num_users):
    made_up = np.random.default_rng(0)
    selections = [random_user(made_up, user) for user in range(num_users)]
    batches, taken = Batches({length: [8, 3] for length in LENGTHS}), {user: [] for user in range(num_users)}
    for selection in [*selections, None]:
        if selection is not None:
            batches.add(drawn(selection))
        while batches.users and (selection is None or made_up.random() < 0.8):
            (rows, length), sentences = (made_up.random() < 0.5 and batches.full()) or batches.of_first()
            assert len(sentences) <= rows
            for user, at in sentences:
                assert user.lengths[at] == length
                user.give(at, (int(user.numbers[at]),))
            first = batches.users[0]
            taken[first.selection.user] += numbers(first)
            while (user := batches.pop_complete()) is not None:
                taken[user.selection.user] += numbers(user)
    assert not batches.users
    assert [taken[selection.user] for selection in selections] == [groups(selection) for selection in selections]


def made(user: int, num: int, length: int = 8) -> Drawn:
    numbers = np.arange(num) + 1000 * user
    selection = UserSelection(user, numbers, np.ones(num, np.float32), num_held=num, first=1000 * user)
    return Drawn.of(selection, [length] * num, together=4)


def test_nobody_overtakes_a_user_of_whom_a_part_is_summed():
    """What is summed of it is in memory that the next user's sum takes."""
    batches = Batches({8: [4, 1]})
    for user in range(2):
        batches.add(made(user, 8))
    first, second = batches.users
    for at in range(4):
        first.give(at, ("a gradient",))
    for at in range(8):
        second.give(at, ("a gradient",))
    assert len(first.take()) == 1
    assert batches.pop_complete() is None
    for at in range(4, 8):
        first.give(at, ("a gradient",))
    assert [batches.pop_complete(), batches.pop_complete()] == [first, second]


def test_a_full_batch_has_the_most_rows_and_is_of_the_user_who_came_first():
    batches = Batches({8: [4, 1]})
    for user in range(3):
        batches.add(made(user, 3))
        if user == 0:
            assert batches.full() is None, "fewer than four wait"
    (shape, sentences) = batches.full() or pytest.fail("nine wait")
    assert shape == (4, 8)
    assert [user.selection.user for user, _ in sentences] == [0, 0, 0, 1]
    for user, at in sentences:
        user.give(at, ("a gradient",))
    assert batches.pop_complete().selection.user == 0  # type: ignore[union-attr]


def test_who_came_first_stays_first_whoever_left():
    batches = Batches({8: [4, 1], 12: [4, 1]})
    for user in range(3):
        batches.add(made(user, 4))
    for _ in range(2):
        for user, at in batches.full()[1]:  # type: ignore[index]
            user.give(at, ("a gradient",))
        batches.pop_complete()
    batches.add(made(3, 4, length=12))
    (shape, sentences) = batches.full() or pytest.fail("four wait, and four")
    assert (shape, sentences[0][0].selection.user) == ((4, 8), 2)


def test_full_batches_are_of_those_who_came_first():
    """So that what waits for its sum is what came last, and a user of many sentences does not wait for all of them."""
    made_up, batches = np.random.default_rng(0), Batches({length: [4, 1] for length in LENGTHS})
    batches.add(drawn(random_user(made_up, most=3000)))
    (user,), latest = batches.users, 0
    while (batch := batches.full()) is not None:
        for _, at in batch[1]:
            user.give(at, "a gradient")
            latest = max(latest, at)
        if user.num_waiting:
            assert latest - user.found.index(None) < 40

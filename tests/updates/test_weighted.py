"""Sums of factored gradients against gradients that are formed and added up; and lengths, which must never be too short."""

from __future__ import annotations

import itertools
import math
import weakref
from collections.abc import Callable, Iterator

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from tests.models.helpers import LENGTHS, TASK, reference_gradients, sentences, tiny, tiny_llama
from tests.models.test_gradients import prepare
from uedp_ray.models.factors import Factors
from uedp_ray.models.gradients import SentenceGradients, sentence_gradients
from uedp_ray.models.parameters import FlatParameters
from uedp_ray.updates import weighted as module_under_test
from uedp_ray.updates.weighted import ROOM, Group, Measured, Row, WeightedSums, measured, products_are_exact, unit_of

UNIT = 2.0**-27


pytestmark = pytest.mark.usefixtures("kept")


def rows_of(batch: Measured, *which: int, weight: float = 1.0) -> list[Row]:
    return [(batch, x, weight / float(batch.lengths[x])) for x in which if batch.lengths[x] > 0]


def summed(sums: WeightedSums, num: int, rows: list[Row], unit: float | None = UNIT, *, together: int = 1) -> Tensor:
    """``together``: sentences of a group."""
    total = torch.zeros(num, dtype=torch.float64, device=rows[0][0].formed.device)
    sums.add([Group(rows[n : n + together], 1.0) for n in range(0, len(rows), together)], total, unit)
    return total


@pytest.mark.parametrize("part", ["full", "lora"])
@pytest.mark.parametrize("network", ["gpt2", "gpt2 untied", "awd_lstm", "awd_lstm dropout", "llama", "llama untied"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_a_weighted_sum_is_that_of_one_backward_pass_per_sentence(network, part, dtype, device, kept):
    name, tied = network.split()[0], "untied" not in network
    dropouts = {f"dropout_{each}": 0.3 for each in ("embedding", "input", "hidden", "weight", "output")}
    settings = {"tie_embeddings": tied, **(dropouts if "dropout" in network else {})}
    model = prepare(tiny_llama(tied=tied) if name == "llama" else tiny(name, **settings), part).to(device, dtype)
    model.train("dropout" in network)
    params, batch = FlatParameters(model), TASK.collate(sentences()).to(device)
    with torch.random.fork_rng():
        torch.manual_seed(5)
        expected = reference_gradients(model, params, TASK, batch).double()
        torch.manual_seed(5)
        found = measured(sentence_gradients(model, params, TASK, batch), params)
    assert found.kept or kept == "as chosen"
    norms = expected.norm(dim=1)
    torch.testing.assert_close(found.lengths, norms, rtol=1e-10 if dtype == torch.float64 else 1e-3, atol=1e-10)
    weights = np.random.default_rng(0).uniform(0.1, 2.0, len(LENGTHS))
    rows = [(found, x, -weight) for x, weight in enumerate(weights)]
    by_hand = -(torch.from_numpy(weights).to(device) @ expected)
    for together in (1, 3):
        total = summed(WeightedSums(params, torch.device(device)), params.num, rows, None, together=together)
        assert (total - by_hand).norm() <= (1e-10 if dtype == torch.float64 else 1e-5) * by_hand.norm()


def factored(left: Tensor, right: Tensor, ids: Tensor | None = None, rows: Tensor | None = None) -> Iterator[Factors]:
    factors = Factors(torch.Size((left.shape[2], right.shape[2])), left=[left], right=[right])
    if ids is not None and rows is not None:
        factors.ids, factors.rows = [ids], [rows]
    factors.join()
    yield factors


def of_factors(factors: Factors) -> tuple[Measured, FlatParameters]:
    one = (factors.right or factors.rows or factors.full)[0]
    params = FlatParameters(nn.Linear(factors.shape[1], factors.shape[0], bias=False, dtype=one.dtype))
    gradients = SentenceGradients(one.new_zeros(len(one)), params, {"weight": factors})
    return measured(gradients, params), params


def test_losses_may_be_wider_than_the_network():
    """By the rounding of their type a length was too short: a sentence of which nearly everything cancels was added at 134
    times its clip."""
    made_up = torch.Generator().manual_seed(0)
    left, right = (torch.randn(6, 8, n, generator=made_up) for n in (70, 40))
    left[:, 4:], right[:, 4:] = left[:, :4], -right[:, :4] * (1 + 2.0**-22)
    (factors,) = factored(left, right)
    params, found = FlatParameters(nn.Linear(40, 70, bias=False)), []
    for dtype in (torch.float32, torch.float64):
        batch = measured(SentenceGradients(torch.zeros(6, dtype=dtype), params, {"weight": factors}), params)
        found.append(batch.lengths)
        assert batch.u == 2.0**-24
    torch.testing.assert_close(*found)


def exact_norm(steps: Tensor) -> float:
    return math.sqrt(math.fsum(each**2 for each in steps.tolist()))


SIZES = [(3, 5, 4), (12, 70, 20), (40, 600, 33), (1, 9, 9)]


@pytest.mark.parametrize("kind", ["random", "cancels", "tied", "repeats", "tiny", "huge", "mixed"])
@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_no_vector_is_longer_than_its_length_says(sizes, kind):
    """Whatever the factors: where terms cancel each other the product is mostly rounding, and that is counted too."""
    positions, num_left, num_right = sizes
    made_up, longest = torch.Generator().manual_seed(0), 0.0
    for _ in range(5):
        left, right = (torch.randn(6, positions, n, generator=made_up) for n in (num_left, num_right))
        ids = torch.randint(0, num_left, (6, positions), generator=made_up)
        rows = torch.randn(6, positions, num_right, generator=made_up)
        if kind == "cancels" and positions > 1:  # an outer product, and all but its last bits once more with minus
            left[:, 1::2], right[:, 1::2] = left[:, : 2 * (positions // 2) : 2], -right[:, : 2 * (positions // 2) : 2]
            right[:, 1::2] *= 1 + 2.0**-20
        if kind == "repeats":
            ids = ids[:, :1].expand(-1, positions)
        if kind in ("tiny", "huge", "mixed"):
            scale = {"tiny": 1e-25, "huge": 1e15, "mixed": 1.0}[kind]
            left, right, rows = left * scale, right * scale, rows * scale
        if kind == "mixed":
            left, right = left * 1e-22, right * 1e17
        tied = kind in ("tied", "repeats")
        (factors,) = factored(left, right, *((ids, rows) if tied else ()))
        batch, params = of_factors(factors)
        sums = WeightedSums(params, torch.device("cpu"))
        for x in range(6):
            if not batch.lengths[x].isfinite():
                continue
            weight = 1 / max(float(batch.lengths[x]), 2.0**-60)
            length = exact_norm(summed(sums, params.num, [(batch, x, weight)]))
            assert length <= 1 + 1e-6
            longest = max(longest, length)
    if kind in ("random", "tied", "repeats", "huge"):
        assert longest > 0.998, "lengths are far too long"


def worst_rounding(whole: int, gradients: Tensor) -> Callable[..., Tensor]:
    """A product that is off by as much as may be: longer if it is of ``whole`` positions, and shorter if of fewer."""

    def product(one: Tensor, other: Tensor, out: Tensor) -> Tensor:
        exact, most = one.double() @ other.double(), one.double().abs() @ other.double().abs()
        most *= module_under_test._gamma(one.shape[1] + 2, 2.0**-24)
        return out.copy_(exact + (most if one.shape[1] == whole else -most) * gradients.sign() * exact.sum().sign())

    return product


@pytest.mark.parametrize("rounding", ["of the machine", "worst"])
@pytest.mark.parametrize("cancelling", [0.0, 0.9, 0.93, 0.95, 0.999])
def test_a_sentence_less_moves_its_group_by_no_more_than_its_weight(cancelling, rounding, monkeypatch):
    """However much of a gradient cancels, and so however much rounding there is beside it: some groups are formed together,
    some are not, and of some this depends on who is there."""
    made_up, positions = torch.Generator().manual_seed(0), 8
    ids = torch.randint(0, 70, (4, positions), generator=made_up)
    left, right = (torch.rand(4, positions, n, generator=made_up) + 0.5 for n in (70, 40))
    rows = torch.rand(4, positions, 40, generator=made_up)
    left[:, 1::2], right[:, 1::2] = (
        left[:, ::2],
        -cancelling * right[:, ::2],
    )  # each outer product, and all but some again
    (factors,) = factored(left, right, ids, rows * (1 - cancelling))
    batch, params = of_factors(factors)
    factors.form(slice(None), gradients := torch.empty(4, 70, 40))
    if rounding == "worst":
        monkeypatch.setattr(torch, "mm", worst_rounding(4 * positions, gradients.sum(0)))
    weights, least = [0.3, 0.49, 0.4, 0.26], 0.25 / (1 + ROOM)
    sums, found = WeightedSums(params, torch.device("cpu")), {}
    joined = set()
    for there in itertools.chain.from_iterable(itertools.combinations(range(4), n) for n in range(5)):
        group = [(batch, x, weights[x] * (1 - 1e-6) / (1 + ROOM) / float(batch.lengths[x])) for x in there]
        joined |= {sums._may_join([(b, x, f / UNIT) for b, x, f in group], least / UNIT)} if len(there) > 1 else set()
        sums.add([Group(group, least)], total := torch.zeros(params.num, dtype=torch.float64), UNIT)
        found[there] = total
    nearest = 0.0
    for there, fewer in itertools.product(found, found):
        if set(fewer) < set(there):
            bound = math.fsum(weights[x] for x in set(there) - set(fewer))
            nearest = max(nearest, exact_norm(found[there] - found[fewer]) / bound)
    assert nearest <= 1.0
    assert nearest > 0.98 or cancelling == 0.999
    assert joined == {0.0: {True}, 0.999: {False}}.get(cancelling, joined)


@pytest.mark.parametrize("sign", [1.0, -1.0])  # a run's factors are negative: its updates go downhill
@pytest.mark.parametrize("scale", [1.0, 1e-12])  # where truncation is all there is
def test_sentences_are_formed_together_as_far_as_the_proof_goes(scale, sign):
    """docs/accounting.md, "Floating point", 2."""
    made_up = torch.Generator().manual_seed(0)
    (factors,) = factored(*(torch.randn(3, 8, n, generator=made_up) * scale**0.5 for n in (70, 40)))
    batch, params = of_factors(factors)
    sums = WeightedSums(params, torch.device("cpu"))
    rows = [(batch, x, sign * weight) for x, weight in enumerate((3e6, 2e6, 1e6))]
    terms = 3 * 8 + 8
    gamma = terms * 2.0**-24 / (1 - terms * 2.0**-24)
    added_up = sum(abs(factor) * float(batch.magnitudes[x]) for _, x, factor in rows)
    assert (2.5 * gamma * added_up > 4 * math.sqrt(params.num)) == (scale == 1.0)
    least = (2.5 * gamma * added_up + 4 * math.sqrt(params.num)) / ROOM
    assert sums._may_join(rows, least * (1 + 1e-9))
    assert not sums._may_join(rows, least * (1 - 1e-9))


@pytest.mark.parametrize("form", ["product", "formed", "rows"])
def test_as_many_as_fit_an_integer_are_added_at_once(form):
    """All of their length in one coordinate, in groups of unlike sizes."""
    num, ones = 20, torch.zeros(20, 1, 9)
    ones[:, 0, 0] = 1.0
    parts = {"product": {"left": [ones], "right": [ones]}, "formed": {"full": [ones.mT @ ones]}}
    parts["rows"] = {"ids": [torch.zeros(num, 1, dtype=torch.int64)], "rows": [ones]}
    factors = Factors(torch.Size((9, 9)), **parts[form])
    factors.join()
    batch, params = of_factors(factors)
    assert bool(batch.kept) == (form != "formed")
    rows, total = rows_of(batch, *range(num), weight=1 - 1e-6), torch.zeros(params.num, dtype=torch.float64)
    groups = [Group(rows[first:last], 1.0) for first, last in itertools.pairwise((0, 4, 8, 12, 15, 19, num))]
    WeightedSums(params, torch.device("cpu")).add(groups, total, UNIT)
    assert float(total[0]) == pytest.approx(num, rel=1e-4)
    assert not total[1:].any()


def test_copies_of_no_more_than_fit_an_integer_are_there_at_once(monkeypatch):
    """Of a user of many sentences, of whom all was multiplied before anything was added: beyond what a probe had taken."""
    there, most, made = weakref.WeakSet(), [], module_under_test._Product.__init__

    def watched(self, of, step):
        made(self, of, step)
        self.num = len(of)
        there.add(self)
        most.append(sum(each.num for each in there))

    (factors,) = factored(*(torch.randn(8, 3, 9) for _ in range(2)))
    batch, params = of_factors(factors)
    assert batch.num_copied == 2 * 3 * 9
    rows = rows_of(batch, *range(8), weight=0.5)
    groups = [Group(rows[first : first + 4], 0.1) for first in (0, 4)] * 20
    sums, whole, one_by_one = (
        WeightedSums(params, torch.device("cpu")),
        *torch.zeros(2, params.num, dtype=torch.float64),
    )
    for group in groups:
        sums.add([group], one_by_one, UNIT)
    monkeypatch.setattr(module_under_test._Product, "__init__", watched)
    sums.add(groups, whole, UNIT)
    assert torch.equal(whole, one_by_one)
    assert 4 < max(most) <= module_under_test.AT_ONCE


def test_groups_too_large_for_an_integer_are_refused():
    (factors,) = factored(*(torch.randn(16, 3, 9) for _ in range(2)))
    batch, params = of_factors(factors)
    rows, sums, total = rows_of(batch, *range(16)), WeightedSums(params, torch.device("cpu")), torch.zeros(81).double()
    sums.add([Group(rows, 1.0)], total, None)
    with pytest.raises(ValueError, match="more than 15 sentences might not fit an int32"):
        sums.add([Group(rows, 1.0)], total, UNIT)


def test_without_a_clip_groups_are_added_in_their_order():
    """Also where a matrix is formed of one sentence, and kept as factors of another: float64 rounds by the order."""
    made_up, groups = torch.Generator().manual_seed(0), []
    for positions in (8, 3, 9, 2, 10):
        (factors,) = factored(*(torch.randn(2, positions, 9, generator=made_up, dtype=torch.float64) for _ in range(2)))
        batch, params = of_factors(factors)
        groups.append(Group([(batch, 0, 0.3), (batch, 1, 0.7)], math.inf))
    sums = WeightedSums(params, torch.device("cpu"))
    whole, one_by_one = (torch.zeros(params.num, dtype=torch.float64) for _ in range(2))
    sums.add(groups, whole, None)
    for group in groups:
        sums.add([group], one_by_one, None)
    assert torch.equal(whole, one_by_one)


@pytest.mark.parametrize("form", ["product", "formed", "rows"])
def test_what_is_less_than_a_unit_adds_nothing(form):
    ones = torch.ones(1, 1, 9)
    parts = {"product": {"left": [ones], "right": [ones]}, "formed": {"full": [ones.mT @ ones]}}
    parts["rows"] = {"ids": [torch.zeros(1, 1, dtype=torch.int64)], "rows": [ones]}
    factors = Factors(torch.Size((9, 9)), **parts[form])
    factors.join()
    batch, params = of_factors(factors)
    sums = WeightedSums(params, torch.device("cpu"))
    for of_a_unit, expected in ((0.9, 0.0), (-0.9, 0.0), (1.9, 1.0), (-1.9, -1.0)):
        steps = summed(sums, params.num, [(batch, 0, of_a_unit * UNIT)]) / UNIT
        assert float(steps[0]) == expected


@pytest.mark.parametrize("size", [64, 1 << 18])
def test_sums_do_not_depend_on_their_order_nor_on_what_else_is_added(size, device, monkeypatch):
    """More than fit an int32 at once, in pieces and in any order."""
    monkeypatch.setitem(module_under_test._PIECE, device, size)
    model = prepare(tiny(hidden_size=16)).float().to(device)
    params = FlatParameters(model)
    batches = [
        measured(sentence_gradients(model, params, TASK, TASK.collate(sentences(seed=seed)).to(device)), params)
        for seed in range(8)
    ]
    rows = list(itertools.chain.from_iterable(rows_of(batch, *range(len(LENGTHS))) for batch in batches))
    assert len(rows) > 2 * module_under_test.AT_ONCE
    sums = WeightedSums(params, torch.device(device))
    whole, alone = summed(sums, params.num, rows), [summed(sums, params.num, [each]) for each in rows]
    order = np.random.default_rng(0).permutation(len(rows)).tolist()
    assert torch.equal(whole, sum(alone))
    assert torch.equal(summed(sums, params.num, [rows[n] for n in order]), whole)
    total = torch.zeros_like(whole)
    for part in (rows[:5], rows[5:6], rows[6:]):
        sums.add([Group([row], 1.0) for row in part], total, UNIT)
    assert torch.equal(total, whole)
    steps = whole / UNIT
    assert torch.equal(steps, steps.round())


def test_what_is_not_finite_has_no_length():
    for spoilt, value in itertools.product(range(4), [math.nan, math.inf, 1e30]):
        parts = [torch.ones(2, 3, 50), torch.ones(2, 3, 40), torch.ones(2, 3, 40)]
        if spoilt < 3:
            parts[spoilt][1, 2, 7] = value
        (factors,) = factored(parts[0], parts[1], torch.zeros(2, 3, dtype=torch.int64), parts[2])
        lengths = of_factors(factors)[0].lengths
        assert lengths[0].isfinite()
        assert bool(lengths[1].isfinite()) == (spoilt == 3 or (spoilt == 2 and value == 1e30))


def test_what_overflows_downwards_has_no_length():
    """A square of -inf, of finite factors with finite norms, was taken for 0: a sentence was added at 270 times its clip."""
    made_up = torch.Generator().manual_seed(0)
    left, ids = torch.rand(2, 3, 90, generator=made_up) + 0.5, torch.arange(6).view(2, 3)
    right, rows = torch.full((2, 3, 40), 1e18), torch.full((2, 3, 40), -1e20)
    (factors,) = factored(left, right, ids, rows)
    assert factors.squares()[0].tolist() == [-math.inf, -math.inf]
    assert not of_factors(factors)[0].lengths.isfinite().any()
    edge = math.sqrt(torch.finfo(torch.float32).max / 90) * (1 - 1e-7)
    for sign in (1.0, -1.0):  # between positions, though that of no position with itself overflows
        left = torch.full((1, 2, 90), edge) * torch.tensor([1.0, sign]).view(1, 2, 1) * (1 + 2e-7)
        (factors,) = factored(left, torch.ones(1, 2, 40))
        batch, params = of_factors(factors)
        if batch.lengths.isfinite().all():
            formed = summed(
                WeightedSums(params, torch.device("cpu")), params.num, [(batch, 0, 1 / float(batch.lengths))]
            )
            assert exact_norm(formed) <= 1 + 1e-6


@pytest.mark.parametrize("bits", [7, 10])
@pytest.mark.parametrize("product", ["mm", "bmm"])
def test_products_of_shortened_numbers_are_found(bits, product, monkeypatch):
    """As TF32 (10 bits) and bfloat16 (7) have them."""
    params, exact = FlatParameters(nn.Linear(60, 50)), getattr(torch, product)

    def shortened(one: Tensor, other: Tensor) -> Tensor:
        if one.dtype == torch.float64:
            return exact(one, other)
        cut = [(each.contiguous().view(torch.int32) & -(1 << (23 - bits))).view(torch.float32) for each in (one, other)]
        return exact(*cut)

    assert products_are_exact(params, torch.device("cpu"))
    monkeypatch.setattr(torch, product, shortened)
    assert not products_are_exact(params, torch.device("cpu"))


def test_units_are_powers_of_two_of_which_a_length_is_at_most_two_to_the_27th():
    for length in (1e-20, 0.1, 0.5, 1.0, 3.0, 1e20):
        unit = unit_of(length)
        assert math.frexp(unit)[0] == 0.5
        assert 2**26 <= length / unit <= 2**27
    for length in (0.0, 1e-30, 1e30, math.nan):
        with pytest.raises(ValueError, match="sums need one between"):
            unit_of(length)


def test_no_tensor_of_another_device_is_made():
    """On ``meta``, which stands in for a GPU."""
    for tied in (False, True):
        left, right = (torch.empty(2, 3, n, device="meta") for n in (90, 40))
        ids = torch.empty(2, 3, dtype=torch.int64, device="meta")
        (factors,) = factored(left, right, *((ids, right.clone()) if tied else ()))
        assert {each.device.type for each in factors.squares()} == {"meta"}

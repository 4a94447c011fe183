"""Every sentence's gradient at the round's parameters, scaled to ``sentence_clip_norm`` and by its weight, summed by user.

Sentences of several users share batches, of shapes in which a sentence's gradient is its own (``shapes``).

    >>> import numpy as np
    >>> import torch
    >>> from uedp_ray.config import RunConfig, from_dict
    >>> from uedp_ray.models.build import build_model
    >>> from uedp_ray.models.parameters import FlatParameters
    >>> from uedp_ray.plan import Plan, UserSelection
    >>> from uedp_ray.tasks.next_word import NextWord
    >>> from uedp_ray.updates.gradient import Update
    >>> tree = {"corpus": {"declared_num_users": 100}, "privacy": {"noise_multiplier": 1.0, "sentence_clip_norm": 0.1}}
    >>> tree["model"] = {"max_length": 8, "num_layers": 1, "hidden_size": 8, "num_heads": 2}
    >>> plan = Plan.of(from_dict(RunConfig, tree))
    >>> model = build_model(plan.config.model, vocab_size=50, bos_id=0, eos_id=0, seed=0)
    >>> params, task = FlatParameters(model), NextWord(bos_id=0, eos_id=0, pad_id=0, max_length=8)
    >>> sentences = [np.array([5, 7, 9]), np.array([4])]
    >>> update = Update(plan, model, params, task, sentences.__getitem__, torch.device("cpu"))
    >>> one, other = (UserSelection(n, np.array([n]), np.array([0.5], np.float32), num_held=1) for n in range(2))
    >>> alone, others, both = (update.sum_updates(params.get(), users, 0) for users in ([one], [other], [one, other]))
    >>> float((alone.double() * plan.grid.step).norm()) <= 0.5 * 0.1    # of a sentence of weight 0.5
    True
    >>> torch.equal(both, alone + others)    # to the bit, though the two share a batch
    True
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch

from uedp_ray.config.choices import KEEPING_USERS_APART
from uedp_ray.errors import InputError
from uedp_ray.models.gradients import InexactError, SentenceGradients, check_exact, sentence_gradients
from uedp_ray.models.masks import MaskSeeds, PerSentenceMasks
from uedp_ray.plan import UserSelection
from uedp_ray.privacy.clipping import summation_shrink, wide_norms
from uedp_ray.privacy.grid import parts
from uedp_ray.tasks.base import Task
from uedp_ray.updates.base import UNORDERED, LocalUpdate, seed_of
from uedp_ray.updates.shapes import (
    agreeing_rows,
    balanced,
    padded_length,
    padded_lengths,
    row_counts,
    rows_are_apart,
    split,
)

_HELD = 1 << 26
"""Elements of per-user sums that a worker holds at once (512 MiB of float64); more on a GPU that has the memory."""
_MOST_AT_ONCE = 1 << 12
_CPU_TOKENS = 512
"""Padded tokens of a batch on a CPU: more would be no faster and leave more rows empty."""
_MOST_BESIDE = 64
"""Sentences of a batch in which losses are compared."""
_PROBED: dict[tuple[type, Task, str], dict[int, list[int]]] = {}
"""What earlier probes of this process found, by network, task, and everything that shapes and kernels depend on."""


@dataclass
class Update(LocalUpdate):
    """A sentence of weight w moves its user's update by at most w times ``sentence_clip_norm``: docs/accounting.md."""

    uses = ()
    bounds_sentences = True
    keeps_users_apart = True

    def __post_init__(self) -> None:
        super().__post_init__()
        self._masked = next((m for m in self.model.modules() if isinstance(m, PerSentenceMasks)), None)
        self._sentence_clip = self.plan.sentence_clip(self.params.num)
        self._rows: dict[int, list[int]] = {}
        self._sums: torch.Tensor | None = None

    def probe(self) -> None:
        """Checks that each sentence's gradient is exact and its own, and fixes the numbers of rows in use (see ``shapes``).

        Raises: InputError if a gradient is not exact, or, for a private run, if even repeating a pass changes its bits.
        """
        if self._sums is not None:
            return
        with one_thread():
            self._probe_rows()
        size = (self._users_at_once(), self.params.num)
        self._sums = torch.empty(size, dtype=torch.float64, device=self.device).fill_(0.0)  # zeros() would take no page

    def _probe_rows(self) -> None:
        config = self.plan.config
        settings = (config.model, self._training.batch_tokens, self._autocast, self.device, self.plan.private)
        sizes = self.params.names, [tuple(parameter.shape) for parameter in self.model.parameters()]  # frozen ones too
        key = type(self.model), self.task, repr((sizes, settings))  # a task that is not equal may couple sentences
        if key not in _PROBED:
            self._check_reading(beside=True)
            self._check_exact()
            with balanced(self.model, self.params):
                _PROBED[key] = self._agreeing()
        self._rows = _PROBED[key]

    def _check_exact(self) -> None:
        kind, here, made_up = self.plan.config.task.kind, self.params.get(), np.random.default_rng(0)
        noise = torch.randn(here.shape, device=self.device, generator=torch.Generator(self.device).manual_seed(0))
        length = min(self.plan.config.model.max_length, 6)
        sentences = [self.task.made_up(positions, self._vocab_size, made_up) for positions in (length, 2, 3)]
        self.params.set(here + 0.02 * noise)  # not LoRA's zeros
        try:
            batch = self.task.collate(sentences).to(self.device)
            check_exact(self.model, self.params, self.task, batch, isolated=self.isolated)
            if kind not in KEEPING_USERS_APART:
                self._check_losses(made_up)
        except InexactError as error:
            if kind in KEEPING_USERS_APART:
                raise
            remedy = (
                "a sentence's loss depends on others, or its gradient in this network is not exact: see to it that losses "
                f"gives each sentence its own; if it does, freeze more of {error.value} (model.trainable), or choose another"
            )
            raise InputError("task.kind", kind, remedy) from error
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:
            if UNORDERED in str(error):
                raise
            remedy = (
                "its per-sentence gradients cannot be computed: train less of it (model.trainable), or choose another"
            )
            raise InputError("model", type(self.model).__name__, remedy) from error
        finally:
            self.params.set(here)

    @torch.no_grad()
    def _check_losses(self, made_up: np.random.Generator) -> None:
        """Raises: InexactError if a sentence has another loss beside few than beside many, which no probe of full batches
        shows."""
        length = padded_lengths(self.plan.config.model.max_length)[0]
        sentences = [self.task.made_up(length, self._vocab_size, made_up) for _ in range(_MOST_BESIDE)]

        def losses(num: int) -> torch.Tensor:
            with self.isolated():
                self.model.eval()
                batch = self.task.collate(sentences[:num], (_MOST_BESIDE, length)).to(self.device)
                return self.task.losses(self.model, batch)[:num].float()

        whole = losses(_MOST_BESIDE)
        for num in (2**n for n in range(_MOST_BESIDE.bit_length() - 1)):
            if not torch.allclose(losses(num), whole[:num], rtol=1e-3, atol=1e-6):
                raise InexactError("model", type(self.model).__name__, "")

    def _agreeing(self) -> dict[int, list[int]]:
        """By padded length, the numbers of rows in which a sentence has the same bits."""
        config, most = self.plan.config, self._training.batch_tokens
        if self._dropout and self._masked is None:
            most = 1  # its masks come from one stream: each sentence passes alone
        if not rows_are_apart(self.model):
            most = 1
        tokens = min(most, _CPU_TOKENS) if self.device.type == "cpu" else most
        units = [
            *([] if self._masked is None else self._masked.layer_sizes),
            *([] if self.task.only_positions else [1]),
        ]
        found = {}
        for length in padded_lengths(config.model.max_length):
            counts = row_counts(length, tokens=tokens, batch_tokens=most, units=units)
            made_up = partial(self.task.made_up, vocab_size=self._vocab_size)
            agreeing = partial(agreeing_rows, partial(self._pass, 0), self.model, length, made_up=made_up)
            found[length] = agreeing(counts) or agreeing([1])
            if not found[length] and self.plan.private:
                raise self._unsteady("a sentence's gradient")
            found[length] = found[length] or [1]
        return found

    def update_of(self, parameters: torch.Tensor, selection: UserSelection, round_index: int) -> torch.Tensor:
        """A user's float64 sum of clipped, weighted sentence gradients, downhill."""
        return next(update for _, update in self.each_update(parameters, [selection], round_index))

    def each_update(
        self, parameters: torch.Tensor, selections: Iterable[UserSelection], round_index: int
    ) -> Iterator[tuple[UserSelection, torch.Tensor]]:
        """Takes users a group at a time, so that their sentences share batches. A user's own are added one by one, by padded
        length and then by number: an order that no other user changes.
        """
        assert self._sums is not None
        with one_thread():
            for group in _groups(selections, len(self._sums)):
                yield from zip(group, self._summed(group, self._sums[: len(group)].zero_(), round_index), strict=True)

    def _summed(self, group: list[UserSelection], sums: torch.Tensor, round_index: int) -> torch.Tensor:
        """Adds each user's clipped, weighted sentence gradients to its own of the (users, P) sums, downhill."""
        owner = np.repeat(np.arange(len(group)), [len(each.sentences) for each in group])
        numbers = np.concatenate([each.sentences for each in group])
        weights = np.concatenate(
            [each.weights.astype(np.float64) * summation_shrink(each.num_held, self.plan.least_share) for each in group]
        )
        for chosen, shape in self._packed(numbers):
            sentences = [self.sentence(int(x)) for x in numbers[chosen]]
            gradients = self._pass(round_index, sentences, numbers[chosen].tolist(), shape)
            for first, formed in gradients.chunks(len(chosen)):
                here = chosen[first : first + len(formed)]
                norms = wide_norms(formed[: len(here)])
                factors = self.plan.sentence_factors(norms, weights[here], self._sentence_clip)
                self.num_non_finite += int((~torch.isfinite(norms)).sum())
                _add(sums, owner[here], formed, -factors)
        return sums

    def _users_at_once(self) -> int:
        """Users whose sums are held at once: what memory allows, and hardly more than are drawn. From public figures."""
        held, config = _HELD, self.plan.config
        if self.device.type == "cuda":
            held = max(held, torch.cuda.mem_get_info(self.device)[0] // 32)  # a quarter of what is free
        declared = config.corpus.declared_num_users or _MOST_AT_ONCE
        drawn = 2 * config.privacy.user_sampling_prob * declared / max(1, self._training.num_workers)
        return max(1, min(held // max(1, self.params.num), _MOST_AT_ONCE, math.ceil(drawn) + 8))

    def _packed(self, numbers: np.ndarray) -> Iterator[tuple[np.ndarray, tuple[int, int]]]:
        """Yields (positions of a batch's sentences, ascending, so users in turn; the shape to fill up to)."""
        longest = self.plan.config.model.max_length
        lengths = np.array([padded_length(length, longest) for length in self._lengths(numbers)])
        for length in np.unique(lengths).tolist():
            positions, start = np.flatnonzero(lengths == length), 0
            for num, rows in split(len(positions), self._rows[length]):
                yield positions[start : start + num], (rows, length)
                start += num

    def _lengths(self, numbers: np.ndarray) -> Iterator[int]:
        """Positions of each sentence. A task of which nothing is proved hears of one at a time, which takes milliseconds."""
        for group in [numbers] if self.plan.config.task.kind in KEEPING_USERS_APART else numbers[:, None]:
            with self.isolated():
                found = [self.task.length(self.sentence(int(x))) for x in group]
            yield from found

    def _pass(
        self, round_index: int, sentences: Sequence[np.ndarray], numbers: Sequence[int], shape: tuple[int, int]
    ) -> SentenceGradients:
        """Passes a batch. A row's number seeds its dropout, so its masks are the same in any batch, on any worker.

        A network that draws them from one stream gets each sentence alone. Otherwise its masks would depend on the words
        of the others, and an entity's absence would change gradients of sentences that never held it.
        """
        seeds = [seed_of(self._training.seed, round_index, number) for number in numbers] if self._dropout else [0]
        with self.isolated(seeds[0]):
            if self._dropout and self._masked is not None:
                seeds += [seed_of(self._training.seed, round_index, 0)] * (shape[0] - len(numbers))
                self._masked.mask_seeds = MaskSeeds(seed_of(self._training.seed, round_index), seeds)
            batch = self.task.collate(sentences, shape).to(self.device)
            return sentence_gradients(self.model, self.params, self.task, batch, autocast_dtype=self._autocast)


@contextmanager
def one_thread() -> Iterator[None]:
    """Runs CPU kernels on a single thread. Several divide a tensor among them even within a vector, and compute the ends of
    the parts by other code: a row's bits would depend on its place in the batch (see ``shapes.row_counts``)."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def _add(sums: torch.Tensor, owner: np.ndarray, rows: torch.Tensor, factors: torch.Tensor) -> None:
    """Adds (b, P) rows, each times its factor unless that is 0, to the (num, P) float64 sums of their owners, in order.

    Short rows of different owners are added at once: multiplied first, then added, number by number, as each would be
    alone. (In one step, a kernel may round once or twice.)
    """
    values = factors.tolist()
    chosen = np.flatnonzero(values)
    owner = owner[chosen]
    if len(parts(sums[0])) > 1:
        for user, row in zip(owner.tolist(), chosen.tolist(), strict=True):
            for summed, part in zip(parts(sums[user]), parts(rows[row]), strict=True):
                summed.add_(part, alpha=values[row])
        return
    turn = np.arange(len(owner)) - np.searchsorted(owner, owner)  # of each owner's rows, which lie side by side
    for each in range(turn.max(initial=-1) + 1):
        now = torch.from_numpy(chosen[turn == each]).to(rows.device)
        to = torch.from_numpy(owner[turn == each]).to(rows.device)
        sums[to] += rows[now].double() * factors[now, None]


def _groups(selections: Iterable[UserSelection], size: int) -> Iterator[list[UserSelection]]:
    remaining = iter(selections)
    while group := list(itertools.islice(remaining, size)):
        yield group

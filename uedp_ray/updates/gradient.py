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

import math
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch

from uedp_ray.config.choices import KEEPING_USERS_APART
from uedp_ray.errors import InputError, is_of_memory
from uedp_ray.models.architecture import architecture
from uedp_ray.models.gradients import InexactError, SentenceGradients, check_exact, sentence_gradients
from uedp_ray.models.masks import MaskedRows, MaskSeeds, PerSentenceMasks
from uedp_ray.plan import UserSelection
from uedp_ray.tasks.base import Task
from uedp_ray.updates.base import UNORDERED, LocalUpdate, digest_of, seed_of
from uedp_ray.updates.batches import Batch, Batches, Drawn, most_of_group
from uedp_ray.updates.shapes import (
    agreeing_rows,
    balanced,
    padded_length,
    padded_lengths,
    row_counts,
    rows_are_apart,
)
from uedp_ray.updates.weighted import (
    AT_ONCE,
    MOST_SENTENCES,
    ROOM,
    Group,
    Measured,
    WeightedSums,
    measured,
    products_are_exact,
    unit_of,
)

_HELD = 1 << 27
"""Numbers of batches that wait for their sums (512 MiB of float32), and so the users who share batches; more on a GPU that
has the memory."""
_BOUNDED_GROUP = 4
"""Numbers of sentences that may be formed together; more are rounded too much for a sentence's bound."""
_GROUP = 64
"""And where no bound is claimed."""
_MOST_BATCHES = 64
"""That wait: more would fill no more rows."""
_CPU_TOKENS = 256
"""Padded tokens of a batch on a CPU: more would be no faster and leave more rows empty."""
_MOST_BESIDE = 64
"""Sentences of a batch in which losses are compared."""
_TOLD = 8
"""Sentences of the largest batch of a length by whose bits workers are compared."""
Rows = dict[int, list[int]]
"""By padded length, the numbers of rows in which a sentence has the same bits."""
_PROBED: dict[tuple[type, Task, str], Rows] = {}
"""What earlier probes of this process found, by network, task, and everything that shapes and kernels depend on."""
Known = Callable[["Update", str, Callable[[], Rows], Callable[[Rows], bool]], Rows]
"""An update, its settings and sizes, what finds the rows, and what says whether some may be them -> the rows."""
KNOWN: ContextVar[Known] = ContextVar("KNOWN", default=lambda update, key, find, possible: find())
"""Where probes of other processes are looked up. It may only return what would be found here, too."""


@dataclass
class Update(LocalUpdate):
    """A sentence of weight w moves its user's update by at most w times ``sentence_clip_norm``: docs/accounting.md."""

    uses = ()
    bounds_sentences = True
    keeps_users_apart = True

    def __post_init__(self) -> None:
        super().__post_init__()
        self._masked = next((m for m in self.model.modules() if isinstance(m, PerSentenceMasks)), None)
        by_row = architecture(self.plan.config.model.architecture).masked_by_row
        self._masks_are_apart = self._masked is not None or by_row
        clip = self.plan.sentence_clip(self.params.num)
        self._sentence_clip = None if clip is None else clip / (1.0 + ROOM)
        self._together = _GROUP if self._sentence_clip is None else _BOUNDED_GROUP
        self._rows: dict[int, list[int]] = {}
        self._sums = WeightedSums(self.params, self.device)
        self._total: torch.Tensor | None = None
        self._held: weakref.WeakSet[Measured] = weakref.WeakSet()
        self._most_held, self._most_amid, self._most_waiting = _HELD, 0, 0
        if self.device.type == "cuda":
            free, whole = torch.cuda.mem_get_info(self.device)
            share = torch.cuda.get_per_process_memory_fraction(self.device)  # of trials that share a GPU: see placement
            self._most_held = max(_HELD, int(min(free, share * whole)) // 16)  # a quarter of what it may take

    def probe(self) -> None:
        """Checks that each sentence's gradient is exact and its own, and fixes the numbers of rows in use (see ``shapes``).

        Raises: InputError if a gradient is not exact, or, for a private run, if even repeating a pass changes its bits.
        """
        if self._total is not None:
            return
        total = torch.empty(self.params.num, dtype=torch.float64, device=self.device)
        with one_thread():
            self._probe_rows()
            self._take_memory(total)
        self._total = total

    def _probe_rows(self) -> None:
        config = self.plan.config
        training = self._training.batch_tokens, self._training.gradient_checkpointing
        settings = (config.model, *training, self._autocast, self.device, self.plan.private)
        sizes = self.params.names, [tuple(parameter.shape) for parameter in self.model.parameters()]  # frozen ones too
        key = type(self.model), self.task, repr((sizes, settings))  # a task that is not equal may couple sentences
        self._check_products()  # of every run: an earlier one of this process may have claimed nothing
        if key not in _PROBED:
            self._check_reading(beside=True)
            self._check_exact()
            counts = self._counts()
            find, possible = partial(self._agreeing, counts), partial(_possible, counts)
            found = KNOWN.get()(self, key[2], find, possible)
            _PROBED[key] = found if possible(found) else find()
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
        except RuntimeError as error:
            if UNORDERED in str(error) or is_of_memory(error):
                raise
            remedy = (
                "its per-sentence gradients cannot be computed: train less of it (model.trainable), or choose another"
            )
            raise InputError("model", type(self.model).__name__, remedy) from error
        finally:
            self.params.set(here)

    def _check_products(self) -> None:
        """Raises: InputError if products are shorter than the bound on sentences allows, and one is claimed."""
        if self._sentence_clip is not None and not products_are_exact(self.params, self.device):
            remedy = (
                "its products are not of float32's precision, so sentences would not be clipped as stated: unset what "
                "shortens them (NVIDIA_TF32_OVERRIDE, TORCH_ALLOW_TF32_CUBLAS_OVERRIDE, ONEDNN_DEFAULT_FPMATH_MODE)"
            )
            raise InputError("training.device", str(self.device.type), remedy)

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

    def _counts(self) -> Rows:
        """By padded length, the numbers of rows to try."""
        config, most = self.plan.config, self._training.batch_tokens
        if self._dropout and not self._masks_are_apart:
            most = 1  # its masks come from one stream: each sentence passes alone
        if not rows_are_apart(self.model):
            most = 1
        tokens = min(most, _CPU_TOKENS) if self.device.type == "cpu" else most
        units = [
            *([] if self._masked is None else self._masked.layer_sizes),
            *([] if self.task.only_positions else [1]),
        ]
        bytes_each = 2 if self._autocast is not None else 4
        return {
            length: row_counts(length, tokens=tokens, batch_tokens=most, units=units, bytes_each=bytes_each)
            for length in padded_lengths(config.model.max_length)
        }

    def _agreeing(self, counts: Mapping[int, list[int]]) -> Rows:
        """Those of ``counts`` in which a sentence has the same bits; 1 where a run that is not private finds none."""
        found = {}
        made_up = partial(self.task.made_up, vocab_size=self._vocab_size)
        with balanced(self.model, self.params):
            for length, tried in counts.items():
                agreeing = partial(
                    agreeing_rows,
                    lambda *batch: self._measured(0, *batch),
                    self.params,
                    self.model,
                    length,
                    made_up=made_up,
                )
                found[length] = agreeing(tried) or agreeing([1])
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
        """Users whose sentences share batches with those of users who follow, each when all of them passed."""
        batches = Batches(self._rows)
        with one_thread():
            for selection in selections:
                batches.add(self._drawn(selection))
                yield from self._complete(batches)  # of no sentence
                while (batch := self._of_first(batches) if self._is_short(batches) else batches.full()) is not None:
                    self._run(batch, round_index)
                    yield from self._complete(batches)
            while batches.users:
                self._run(self._of_first(batches), round_index)
                yield from self._complete(batches)

    def _complete(self, batches: Batches) -> Iterator[tuple[UserSelection, torch.Tensor]]:
        """Yields users who are complete. If memory is short even so, adds what there is of the first."""
        while (user := batches.pop_complete()) is not None:
            yield user.selection, self._sum(user)
        if self._is_short(batches):
            self._sum(batches.users[0])

    def _is_short(self, batches: Batches) -> bool:
        """Whether as many numbers wait for their sums as may."""
        return bool(batches.users) and self._num_held > self._most_held

    @property
    def _num_held(self) -> int:
        return sum(each.num_held for each in self._held)

    def _of_first(self, batches: Batches) -> Batch:
        """What the first user waits for: with others' sentences, so that fewer rows are empty, where there is room."""
        return batches.of_group() if self._num_held > self._most_amid else batches.of_first()

    def _sum(self, user: Drawn) -> torch.Tensor:
        """Adds what came of a user's sentences to what is summed of it."""
        assert self._total is not None
        if not user.added:
            self._total.zero_()
        clip = self._sentence_clip
        groups = [Group(rows, math.inf if clip is None else clip * weight) for weight, rows in user.take()]
        unit = None if clip is None else unit_of(clip * max(1.0, float(user.weights.max(initial=0.0))))
        self._sums.add(groups, self._total, unit)
        return self._total

    def _drawn(self, selection: UserSelection) -> Drawn:
        if selection.num_held > MOST_SENTENCES:
            remedy = f"a user has more sentences than a sum is exact for, {MOST_SENTENCES:,}: set it"
            raise InputError("bounds.max_sentences_per_user", None, remedy)
        if self.plan.private and selection.weights.max(initial=0.0) > 1.0:
            raise ValueError("a sentence weighs more than 1: the unit of its user's sum would follow from who is there")
        longest = self.plan.config.model.max_length
        lengths = [padded_length(length, longest) for length in self._lengths(selection.sentences)]
        return Drawn.of(selection, lengths, together=self._together)

    def _take_memory(self, total: torch.Tensor) -> None:
        """Takes what a round takes at most, whoever is drawn: a batch of any length, and beside it what waits for its sum.

        That is ``_most_amid``, the batch that exceeds it, those of one group, and copies of what is added up at once.
        """
        held, most_copied, digests = {}, 0, []
        for length in self._rows:  # one at a time: of a large network they are as much as what waits
            alone = self._made_up(length, 1)
            held[length], most_copied = alone.num_held, max(most_copied, alone.num_copied)
            del alone
        copied = max(AT_ONCE, self._together) * most_copied
        largest = max(self._rows[length][0] * num for length, num in held.items())
        self._most_held = min(self._most_held, _MOST_BATCHES * largest)
        self._most_amid = self._most_held + largest  # where the first user's sentences still pass with others'
        self._most_waiting = self._most_amid + largest + most_of_group(held, self._rows, self._together)
        size = (self._most_waiting + copied) * 5 // 4  # allocators leave gaps
        waiting = torch.empty(size, device=self.device).fill_(0.0)  # zeros() would take no page
        # Attention takes most for few long sentences, logits for many short ones.
        total.zero_()
        with balanced(self.model, self.params):
            for length, rows in self._rows.items():
                batch = self._made_up(length, rows[0])
                together = range(min(rows[0], self._together))
                self._sums.add([Group([(batch, x, 1.0) for x in together], math.inf)], total, None)
                digests.append(digest_of(each[:_TOLD] for each in batch))
                del batch
        self.tried_out = sorted(self._rows.items()), digests, digest_of([total])
        del waiting

    def _made_up(self, length: int, rows: int) -> Measured:
        made_up = np.random.default_rng(0)
        sentences = [self.task.made_up(length, self._vocab_size, made_up) for _ in range(rows)]
        return self._measured(0, sentences, range(rows), (rows, length))

    def _run(self, batch: Batch, round_index: int) -> None:
        """Passes a batch, and gives each user what came of its sentences, with minus the factor that clips and weighs it."""
        shape, sentences = batch
        numbers = [int(user.numbers[at]) for user, at in sentences]
        found = self._measured(round_index, [self.sentence(x) for x in numbers], numbers, shape)
        self._held.add(found)
        lengths = found.lengths[: len(numbers)]
        weights = np.array([user.weights[at] for user, at in sentences])
        factors = self.plan.sentence_factors(lengths, weights, self._sentence_clip).tolist()
        self.num_non_finite += int((~torch.isfinite(lengths)).sum())
        for x, ((user, at), factor) in enumerate(zip(sentences, factors, strict=True)):
            user.give(at, (found, x, -factor) if factor else ())  # which is not finite, or weighs nothing

    def _lengths(self, numbers: np.ndarray) -> Iterator[int]:
        """Positions of each sentence. A task of which nothing is proved hears of one at a time, which takes milliseconds."""
        for group in [numbers] if self.plan.config.task.kind in KEEPING_USERS_APART else numbers[:, None]:
            with self.isolated():
                found = [self.task.length(self.sentence(int(x))) for x in group]
            yield from found

    def _measured(self, *batch: Any) -> Measured:
        return measured(self._pass(*batch), self.params)

    def _pass(
        self, round_index: int, sentences: Sequence[np.ndarray], numbers: Sequence[int], shape: tuple[int, int]
    ) -> SentenceGradients:
        """Passes a batch. A row's number seeds its dropout, so its masks are the same in any batch, on any worker.

        A network that draws them from one stream gets each sentence alone. Otherwise its masks would depend on the words
        of the others, and an entity's absence would change gradients of sentences that never held it.
        """
        seeds = [seed_of(self._training.seed, round_index, number) for number in numbers] if self._dropout else [0]
        with self.isolated(seeds[0]), ExitStack() as masking:
            if self._dropout and self._masks_are_apart:
                seeds += [seed_of(self._training.seed, round_index, 0)] * (shape[0] - len(numbers))
                masks = MaskSeeds(seed_of(self._training.seed, round_index), seeds)
                if self._masked is None:
                    masking.enter_context(MaskedRows(masks))
                else:
                    self._masked.mask_seeds = masks
            batch = self.task.collate(sentences, shape).to(self.device)
            return sentence_gradients(self.model, self.params, self.task, batch, autocast_dtype=self._autocast)


def _possible(counts: Mapping[int, list[int]], rows: Mapping[int, list[int]]) -> bool:
    """Whether a probe of these numbers of rows can have found those."""
    some = ([each for each in counts[length] if each in found] for length, found in rows.items() if length in counts)
    return rows.keys() == counts.keys() and all(
        found == [1] or (found and found == tried) for found, tried in zip(rows.values(), some, strict=True)
    )


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

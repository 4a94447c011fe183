"""Several steps of DP-SGD over a user's own sentences, each noised by that user: one sentence is hidden from the server too.

    >>> import numpy as np
    >>> import torch
    >>> from uedp_ray.config import CorpusConfig, ModelConfig, RunConfig
    >>> from uedp_ray.methods import apply
    >>> from uedp_ray.models.build import build_model
    >>> from uedp_ray.models.parameters import FlatParameters
    >>> from uedp_ray.plan import Plan, UserSelection
    >>> from uedp_ray.tasks.next_word import NextWord
    >>> from uedp_ray.updates.local_dp_sgd import Update
    >>> model = ModelConfig(max_length=8, num_layers=1, hidden_size=8, num_heads=2)
    >>> plan = Plan.of(apply(RunConfig(corpus=CorpusConfig(declared_num_users=100), model=model), "local_dp_fedavg"))
    >>> network = build_model(model, vocab_size=50, bos_id=0, eos_id=0, seed=0)
    >>> params, task = FlatParameters(network), NextWord(bos_id=0, eos_id=0, pad_id=0, max_length=8)
    >>> sentences = [np.array([5, 7, 9]), np.array([4])]
    >>> update = Update(plan, network, params, task, sentences.__getitem__, torch.device("cpu"))
    >>> one = UserSelection(3, np.arange(2), np.ones(2, np.float32), num_held=2, key=bytes(32))    # a secret, in a run
    >>> sent, again, replayed = (
    ...     update.sum_updates(params.get(), [each], 0) for each in (one, one, one._replace(key=bytes(31) + b"1"))
    ... )
    >>> torch.equal(sent, again), torch.equal(sent, replayed)    # a key's noise, and another key's
    (True, False)

A step adds the clipped gradients of the sentences that it draws, and noise, as integers (``privacy.grid``), and everything
after that is computed from these noised sums. What is promised, to whom, and why: docs/accounting.md, "Noise of each user".
Users and entities are promised nothing: ``Plan.local`` is charged as unbounded for them.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from uedp_ray.plan import UserSelection
from uedp_ray.privacy.clipping import clip_factors, wide_norms
from uedp_ray.privacy.grid import SumGrid
from uedp_ray.privacy.noise import keyed_blocks
from uedp_ray.privacy.sampling import PoissonSampler
from uedp_ray.updates.base import LocalUpdate, seed_of

_MOST_SENTENCES = 1 << 31
"""No user has more."""


@dataclass
class Update(LocalUpdate):
    """The noised difference of each user. A sentence of weight 1 or less moves the sum of a step that draws it by at most
    ``sentence_clip_norm`` C before noise of std z C."""

    uses = (
        "local_learning_rate",
        "local_epochs",
        "local_batch_size",
        "local_sampling_prob",
        "local_noise_multiplier",
    )

    def update_of(self, parameters: torch.Tensor, selection: UserSelection, round_index: int) -> torch.Tensor:
        """A user's difference after a round's steps. Raises: ValueError for a selection without a secret key."""
        mechanism, clip = self.plan.local, self.plan.config.privacy.sentence_clip_norm
        assert mechanism is not None  # the config refuses anything else
        assert clip is not None
        sampler, noise_std = PoissonSampler(selection.key), mechanism.noise_multiplier * clip
        grid = SumGrid.of(bound=clip, num_vectors=_MOST_SENTENCES, noise_std=noise_std)
        rate = self._training.local_learning_rate / self._training.local_batch_size
        for step in range(mechanism.steps):
            where = {"round_index": step, "attempt": 0}  # of the user's own key, which is of this round and attempt
            drawn = sampler.draw(mechanism.sampling_prob, len(selection.sentences), kind="sentence", **where)
            total = torch.zeros(self.params.num, dtype=torch.int64, device=self.device)
            for at in np.flatnonzero(drawn):
                self._add(total, grid, clip, selection, int(at), seed_of(self._training.seed, round_index, step))
            noise_key = int.from_bytes(sampler.secret(16, kind="noise", **where), "little")
            grid.add_noise(total, keyed_blocks(noise_key, len(total), std=noise_std))
            noised = grid.value(grid.coarsen(total))
            self.params.set(self.params.get().sub_(noised, alpha=rate))
        return self.params.get().sub_(parameters).double()

    def _add(
        self, total: torch.Tensor, grid: SumGrid, clip: float, selection: UserSelection, at: int, seed: int
    ) -> None:
        """Adds the clipped gradient of one sentence, which passes alone: the bits of others' do not depend on it."""
        number = int(selection.sentences[at])
        with self.isolated(seed_of(seed, number)):
            batch = self.task.collate([self.sentence(number)]).to(self.device)
            with torch.autocast(self.device.type, self._autocast, enabled=self._autocast is not None):
                loss = self.task.losses(self.model, batch).sum()
            gradient = self.params.gradient(loss)
        factor = float(selection.weights[at]) * float(clip_factors(wide_norms(gradient[None]), clip))
        if factor > 0.0:  # 0 for one that is not finite
            grid.add(total, gradient.double(), factor)

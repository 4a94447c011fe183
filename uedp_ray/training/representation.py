"""Trains the head of a classifier on noised vectors of sentences (``representation``), by the epochs of ordinary training.

    >>> import numpy as np
    >>> import torch
    >>> from uedp_ray.config import ModelConfig, RepresentationConfig
    >>> from uedp_ray.models.build import build_model
    >>> from uedp_ray.privacy.representation import NoisedVectors
    >>> from uedp_ray.tasks.base import Head
    >>> from uedp_ray.tasks.classify import Classify
    >>> from uedp_ray.training.representation import PrivateVectors
    >>> config = ModelConfig(architecture="bert", max_length=8, num_layers=1, hidden_size=8, num_heads=2)
    >>> head = Head("sequence-classification", 2)
    >>> model = build_model(config, vocab_size=50, bos_id=0, eos_id=1, seed=0, head=head)
    >>> noised = NoisedVectors(RepresentationConfig(kind="gaussian", target_epsilon=1.0), dimension=8, delta=1e-5, epochs=2)
    >>> vectors = PrivateVectors(model, noised, b"secret", mask_id=3)
    >>> task = Classify(bos_id=0, eos_id=1, pad_id=2, max_length=8, labels=("a", "b"))
    >>> batch = task.collate([np.array([5, 6, 1])])    # two words and a label
    >>> losses = []
    >>> for epoch in (0, 1):
    ...     with vectors.of(batch, [7], epoch) as read, torch.no_grad():    # of sentence 7
    ...         losses.append(task.losses(model, read))
    >>> torch.equal(*losses), torch.equal(losses[0], task.losses(model, batch))    # drawn once; and not the vector itself
    (True, False)

The body of the network is public and stays as it is. What the head reads of a sentence is replaced by what that sentence's
user would send: drawn once, or anew in each epoch, from the run's secret key and the sentence's number. Only training reads
such vectors; scores are of the vectors as they are. The texts, the vectors and the key are private.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor, nn

from uedp_ray.config import RunConfig
from uedp_ray.corpus.vocabulary import Vocabulary
from uedp_ray.draws import generator_of, secret_for
from uedp_ray.models.architecture import architecture
from uedp_ray.models.heads import head_names
from uedp_ray.privacy.representation import NoisedVectors
from uedp_ray.tasks.base import Batch
from uedp_ray.tasks.masked_word import mask_of
from uedp_ray.training.rundir import RunDir, sampling_key


def private_vectors(run: RunDir, config: RunConfig, model: nn.Module, vocabulary: Vocabulary) -> PrivateVectors | None:
    """Of a run; None if its head reads vectors as they are."""
    if config.representation.kind == "none":
        return None
    return PrivateVectors(model, noised_vectors(config), sampling_key(run, config), mask_id=mask_of(vocabulary))


def noised_vectors(config: RunConfig) -> NoisedVectors:
    """The mechanism of a run, for the vectors of its network."""
    return NoisedVectors(
        config.representation,
        dimension=architecture(config.model.architecture).width(config.model),
        delta=config.privacy.delta,
        epochs=config.training.num_rounds,
        batch_size=config.training.local_batch_size,
    )


class PrivateVectors:
    """What the head of a network reads while it is trained.

    Args:
      model: a classifier whose head alone is trained.
      key: secret, of one run. mask_id: what a word that is dropped is read as.
    """

    def __init__(self, model: nn.Module, noised: NoisedVectors, key: bytes, *, mask_id: int):
        names = {name.rpartition(".")[0] for name in head_names(model)}
        self._head = [module for name, module in model.named_modules() if name in names]
        self._noised, self._mask_id = noised, mask_id
        self._secret = secret_for(key, b"representation")

    @contextmanager
    def of(self, batch: Batch, numbers: Sequence[int], epoch: int) -> Iterator[Batch]:
        """Yields the batch with words dropped; within the context, the head reads noised vectors of its sentences."""
        drawn = [self._generator(number, epoch) for number in numbers]
        dropped, released = self._dropped(batch, drawn), list[Tensor]()

        def noise(module: nn.Module, arguments: tuple[Tensor, ...]) -> tuple[Tensor, ...] | None:
            if released:  # a later layer of the head
                return None
            read = arguments[0].detach()
            last = torch.arange(len(read), device=read.device), batch.lengths - 1
            vectors = (read if read.dim() == 2 else read[last]).double().cpu().numpy()
            sent = [self._noised.release(vector, each) for vector, each in zip(vectors, drawn, strict=True)]
            one = torch.from_numpy(np.stack(sent)).to(read.device, read.dtype)
            released.append(one)
            # every position gets it: whichever a network reads, it is what was released
            return (one if read.dim() == 2 else one[:, None].expand_as(read), *arguments[1:])

        handles = [module.register_forward_pre_hook(noise) for module in self._head]
        try:
            yield dropped
        finally:
            for handle in handles:
                handle.remove()

    def _dropped(self, batch: Batch, drawn: Sequence[np.random.Generator]) -> Batch:
        if not self._noised.word_dropout:
            return batch
        size = batch.input_ids.shape[1]
        position = torch.arange(size, device=batch.input_ids.device)
        inside = (position > 0) & (position < batch.lengths[:, None] - 1)
        chosen = np.stack([each.random(size) < self._noised.word_dropout for each in drawn])
        lost = inside & torch.from_numpy(chosen).to(inside.device)
        return replace(batch, input_ids=batch.input_ids.masked_fill(lost, self._mask_id))

    def _generator(self, number: int, epoch: int) -> np.random.Generator:
        """Of a sentence; also of the epoch, if it is noised anew in each."""
        which = (int(number), epoch if self._noised.uses > 1 else 0)
        return generator_of(self._secret, np.array(which, "<i8").tobytes())

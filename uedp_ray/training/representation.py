"""Trains the head of a classifier on noised vectors of sentences (``representation``), by the epochs of ordinary training.

    >>> import numpy as np
    >>> import torch
    >>> from uedp_ray.config import ModelConfig, RepresentationConfig
    >>> from uedp_ray.models.build import build_model
    >>> from uedp_ray.privacy.representation import NoisedVectors
    >>> from uedp_ray.tasks.base import Head
    >>> from uedp_ray.tasks.classify import Classify
    >>> from uedp_ray.training.representation import PrivateVectors, Sender
    >>> config = ModelConfig(architecture="bert", max_length=8, num_layers=1, hidden_size=8, num_heads=2)
    >>> head = Head("sequence-classification", 2)
    >>> model = build_model(config, vocab_size=50, bos_id=0, eos_id=1, seed=0, head=head)
    >>> noised = NoisedVectors(RepresentationConfig(kind="gaussian", target_epsilon=1.0), dimension=8, delta=1e-5, epochs=2)
    >>> task = Classify(bos_id=0, eos_id=1, pad_id=2, max_length=8, labels=("a", "b"))
    >>> user = Sender(model, task, noised, b"secret", mask_id=3)
    >>> kept = np.stack([user.kept(number, np.array(tokens)) for number, tokens in enumerate([[5, 6], []])])
    >>> vectors = PrivateVectors(model, task, kept, np.array([1, 0]), user)    # (2, 8) vectors, (2,) labels
    >>> losses = []
    >>> for epoch in (0, 1):
    ...     with vectors.of([0, 1], epoch) as read, torch.no_grad():
    ...         losses.append(task.losses(model, read))
    >>> torch.equal(*losses), read.input_ids.tolist()    # drawn once; and no token of the sentences
    (True, [[0, 1], [0, 1]])

The body of the network is public and stays as it is. A user's sentence passes through it once and alone, and what the head
is trained on is what users would send: vectors, labels, and nothing else of a sentence, neither its length nor whether it
has tokens. By default a vector is noised once, before the first epoch, and kept in ``private/``: a second pass, perhaps on
another machine, may differ in the last bit of a vector, which two releases with the same noise would give away. With
``drawn: each_epoch`` the vector itself is kept, and noised in each epoch. Noise follows from the run's secret key and the
sentence's number. Scores are of vectors as they are. The texts, the vectors that are kept and the key are private.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from uedp_ray.config import RunConfig
from uedp_ray.draws import generator_of, secret_for
from uedp_ray.errors import InputError
from uedp_ray.models.architecture import architecture
from uedp_ray.models.heads import head_names
from uedp_ray.privacy.representation import NoisedVectors
from uedp_ray.storage.files import check_regular, load_array, replacing
from uedp_ray.tasks.base import Batch, Task, forward_logits
from uedp_ray.tasks.masked_word import mask_of
from uedp_ray.training.prepared import Prepared
from uedp_ray.training.rundir import RunDir, sampling_key

_LOST = "vectors that are made anew would be charged for again: restore the run's copy, or train in another folder"
Vectors = NDArray[np.float32]


def private_vectors(
    run: RunDir, prepared: Prepared, model: nn.Module, task: Task, isolated: Callable[[], AbstractContextManager[None]]
) -> PrivateVectors:
    """Of a run; made before its first epoch. Raises: InputError if they are lost or damaged after it.

    ``isolated``: surrounds the pass of each sentence (``models.isolation``).
    """
    config, vocabulary, tokens = prepared.config, prepared.vocabulary, prepared.tokens
    noised = noised_vectors(config)
    if noised.promises_words and not vocabulary.words_are_tokens:
        remedy = "a word is not one token of model.warm_start: set this, and strip_punctuation, as it was made"
        raise InputError("vocabulary.kind", config.words.kind, remedy)
    key, mask_id = sampling_key(run, config), mask_of(vocabulary)
    user = Sender(model, task, noised, key, mask_id=mask_id, isolated=isolated)
    texts = (tokens.sentence(number)[:-1] for number in range(tokens.num_sentences))  # less the label
    made = (user.kept(number, text) for number, text in enumerate(texts))
    kept = _kept(run, made, (tokens.num_sentences, noised.dimension))
    one = np.zeros(1, np.int32)  # a sentence without tokens has a label, too
    pairs = (pair for _, pairs in prepared.corpus.pairs() for pair in pairs)
    labels = [int(task.annotated(one, text, sentence, vocabulary)[-1]) for sentence, text in pairs]
    return PrivateVectors(model, task, kept, np.array(labels), user)


def noised_vectors(config: RunConfig) -> NoisedVectors:
    """The mechanism of a run, for the vectors of its network."""
    return NoisedVectors(
        config.representation,
        dimension=architecture(config.model.architecture).width(config.model),
        delta=config.privacy.delta,
        epochs=config.training.num_rounds,
        batch_size=config.training.local_batch_size,
        words_are_tokens=config.words_are_tokens,
    )


def _kept(run: RunDir, made: Iterable[Vectors], shape: tuple[int, int]) -> Vectors:
    """(N, k), memory-mapped: what is in the run's folder, if an epoch was charged for it; else what is ``made``."""
    path = run.vectors
    if run.played:
        run.storage.get(path)
        if not path.exists():
            raise InputError(path.name, str(path), f"is missing, and {_LOST}")
    else:  # what an earlier start made may be of another text, and nobody has seen anything of it
        with replacing(path, private=True) as new, new.open("wb") as file:
            header = {"descr": "<f4", "fortran_order": False, "shape": shape}
            np.lib.format.write_array_header_1_0(file, header)
            for row in made:
                file.write(row.astype("<f4").tobytes())
        run.storage.put(path)
    check_regular(path, _LOST)
    try:
        found = load_array(path, mapped=True)
    except ValueError:
        found = np.empty(0)
    if found.shape != shape or found.dtype != np.float32:
        raise InputError(path.name, str(path), f"is damaged, and {_LOST}")
    return found


class Sender:
    """The users' side: what becomes of a sentence before anybody else sees it.

    Args:
      model: a classifier whose body is public. key: secret, of one run. mask_id: what a word that is dropped is read as.
      isolated: surrounds the pass of each sentence.
    """

    def __init__(
        self,
        model: nn.Module,
        task: Task,
        noised: NoisedVectors,
        key: bytes,
        *,
        mask_id: int,
        isolated: Callable[[], AbstractContextManager[None]] = nullcontext,
    ):
        self._model, self._task, self._noised, self._mask_id = model, task, noised, mask_id
        self._isolated, self._secret = isolated, secret_for(key, b"representation")
        self._once = noised.uses == 1

    def kept(self, number: int, tokens: np.ndarray) -> Vectors:
        """(n,) tokens of a sentence -> (k,) what is kept of it: its noised vector; or its vector, if it is to be noised in
        each epoch. Either way words are dropped once."""
        dropout, chosen = self._noised.word_dropout, tokens
        if dropout:  # by a generator of its own: how many words there are moves no draw of the noise
            lost = self._generator(number, 0, b"words").random(len(tokens)) < dropout
            chosen = np.where(lost, self._mask_id, tokens)
        vector = self._vector(chosen)
        return self._released(number, vector, 0) if self._once else vector

    def sent(self, number: int, kept: Vectors, epoch: int) -> Vectors:
        """(k,) what the head reads in an epoch."""
        return kept if self._once else self._released(number, kept, epoch)

    def _released(self, number: int, vector: Vectors, epoch: int) -> Vectors:
        released = self._noised.release(vector.astype(np.float64), self._generator(number, epoch, b"noise"))
        return released.astype(np.float32)

    def _generator(self, number: int, epoch: int, kind: bytes) -> np.random.Generator:
        return generator_of(self._secret, np.array((int(number), epoch), "<i8").tobytes(), kind)

    @torch.no_grad()
    def _vector(self, tokens: np.ndarray) -> Vectors:
        """What the head reads of a sentence that passes alone, unpadded: no other sentence has a part in any of its bits."""
        read = list[Tensor]()

        def look(arguments: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
            read.append(arguments[0])
            return arguments

        batch = self._task.collate([np.append(tokens, 0)]).to(next(self._model.parameters()).device)
        with self._isolated(), _before_the_head(self._model, look):
            pooled = forward_logits(self._model, batch).dim() == 2
        first = read[0][0]
        if first.dim() == 2:  # of each position: that which the network reads
            first = first[_last_of(self._model, batch.input_ids[0]) if pooled else -1]
        vector: Vectors = first.float().cpu().numpy()
        return vector


def _last_of(model: nn.Module, input_ids: Tensor) -> int:
    """The position that a causal classifier of transformers reads: the last that is not padding, as the end may be."""
    padding = model.config.get_text_config().pad_token_id  # type: ignore[operator, union-attr]
    return max((input_ids != padding).nonzero().flatten().tolist(), default=0)


class PrivateVectors:
    """What the head of a network reads while it is trained, in the place of sentences.

    Args:
      kept: (N, k) of all sentences, and ``user``, who made it.
      labels: (N,) their numbers.
    """

    def __init__(self, model: nn.Module, task: Task, kept: Vectors, labels: NDArray[np.int64], user: Sender):
        self._model, self._task, self._kept, self._labels, self._user = model, task, kept, labels, user
        self.lengths = np.zeros(len(kept), np.int64)
        """By which batches are made up: all alike, as the lengths of sentences are private."""

    @contextmanager
    def of(self, numbers: Sequence[int] | NDArray[np.int64], epoch: int) -> Iterator[Batch]:
        """Yields a batch of empty sentences with the labels of these; within the context, the head reads their vectors."""
        device = next(self._model.parameters()).device
        sent = np.stack([self._user.sent(int(number), self._kept[number], epoch) for number in numbers])
        one = torch.from_numpy(sent).to(device)

        def put(arguments: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
            read = arguments[0]
            vectors = one.to(read.dtype)
            # every position gets it: whichever a network reads, it is what was sent
            return (vectors if read.dim() == 2 else vectors[:, None].expand_as(read), *arguments[1:])

        with _before_the_head(self._model, put):
            yield self._task.collate([self._labels[number : number + 1] for number in numbers]).to(device)


@contextmanager
def _before_the_head(model: nn.Module, change: Callable[[tuple[Tensor, ...]], tuple[Tensor, ...]]) -> Iterator[None]:
    """Within it, what the first layer of the head reads in a pass is changed."""
    names = {name.rpartition(".")[0] for name in head_names(model)}
    passed = list[nn.Module]()

    def hook(module: nn.Module, arguments: tuple[Tensor, ...]) -> tuple[Tensor, ...] | None:
        passed.append(module)
        return change(arguments) if len(passed) == 1 else None

    handles = [module.register_forward_pre_hook(hook) for name, module in model.named_modules() if name in names]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()

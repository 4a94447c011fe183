"""What a round computes, and on what.

A round draws each of 256 users with probability 1/4, the same users for every method. Each has 15 made-up sentences of 8 to
48 tokens. A sentence's loss is its mean over the predicted tokens, its end among them.

plain        one step of SGD per batch of 64 of the round's sentences by length, on the mean of their losses: no users, no
             clipping, no noise. What the speed of the others is a share of.
local_sgd    each user trains for one pass from the round's parameters, by plain SGD in steps of five sentences of like
             lengths; its change is clipped to length 1; the sum over users.
gradient     each sentence's gradient is clipped to length 0.1; the sum over sentences. Ours clips each user's sum, too.

No noise is added, as all would add the same to the sum. Only ours knows of entities, gives a user's update the same bits
whoever else is drawn, and sums exactly.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from uedp_ray.config import RunConfig, from_dict
from uedp_ray.models.build import build_model
from uedp_ray.models.parameters import FlatParameters
from uedp_ray.models.trainable import select_trainable
from uedp_ray.tasks.base import IGNORED, Batch
from uedp_ray.tasks.next_word import NextWord
from uedp_ray.updates.base import seed_of
from uedp_ray.updates.weighted import ROOM


@dataclass(frozen=True)
class Workload:
    """All of it is in these numbers: whoever has them computes the same."""

    num_layers: int = 4
    hidden_size: int = 256
    num_heads: int = 4
    vocab_size: int = 8_000
    tied: bool = True
    """Whether the output matrix is the embedding, as in GPT-2."""
    lora: bool = False
    """Whether LoRA matrices of rank 4 are trained, and nothing else."""
    num_users: int = 256
    num_sentences: int = 15
    """Of each user."""
    shortest: int = 8
    longest: int = 48
    user_sampling_prob: float = 0.25
    batch_size: int = 64
    sentence_batch_size: int = 16
    """Of others that clip sentences: what is fastest on a CPU. It changes no sum."""
    local_batch_size: int = 5
    local_learning_rate: float = 0.1
    user_clip: float = 1.0
    sentence_clip: float = 0.1
    device: str = "cpu"
    precision: str = "float32"

    def drawn(self, round_index: int) -> list[int]:
        """The users of a round; of round 0, which warms up, eight at most."""
        draws = np.random.default_rng((1, round_index)).random(self.num_users) < self.user_sampling_prob
        return np.flatnonzero(draws).tolist()[: None if round_index else 8]

    def sentences_of(self, user: int) -> np.ndarray:
        """Numbers of a user's sentences."""
        return np.arange(user * self.num_sentences, (user + 1) * self.num_sentences)

    def batches(self, users: list[int], size: int) -> list[np.ndarray]:
        """Sentences of these users, by length."""
        numbers = _by_length(self, np.concatenate([self.sentences_of(user) for user in users]))
        return np.split(numbers, range(size, len(numbers), size))

    def steps(self, user: int, round_index: int) -> list[np.ndarray]:
        """What a user's steps of SGD take, in the order in which our ``local_sgd`` draws them."""
        numbers = _by_length(self, self.sentences_of(user))
        steps = np.split(numbers, range(self.local_batch_size, len(numbers), self.local_batch_size))
        order = np.random.default_rng(seed_of(0, round_index, user)).permutation(len(steps))
        return [steps[n] for n in order]

    def config(self, local_update: str) -> RunConfig:
        """The same as a run of ours; sentences are clipped by ``gradient`` only."""
        sentences = local_update == "gradient"
        tree = {
            "corpus": {"declared_num_users": self.num_users},
            "privacy": {
                "noise_multiplier": 1.0,
                "user_sampling_prob": self.user_sampling_prob,
                "l2_clip_norm": self.user_clip,
                "sentence_clip_norm": self.sentence_clip * (1.0 + ROOM) if sentences else None,  # it uses so much less
            },
            "bounds": {"holder_bound": "truncate", "entity_bound": "truncate"},
            "model": {
                "num_layers": self.num_layers,
                "hidden_size": self.hidden_size,
                "num_heads": self.num_heads,
                "max_length": self.longest + 1,
                "tie_embeddings": self.tied,
                "trainable": "lora" if self.lora else "full",
                "lora_rank": 4,
            },
            "training": {
                "local_update": local_update,
                "precision": self.precision,
                "batch_tokens": 4096 if self.device == "cpu" else 8192,
            },
        }
        if not sentences:
            tree["training"] |= {
                "local_batch_size": self.local_batch_size,
                "local_learning_rate": self.local_learning_rate,
            }
        return from_dict(RunConfig, tree)


SIZES = {
    "small": Workload(),
    "gpt2": Workload(num_layers=12, hidden_size=768, num_heads=12, vocab_size=50_257),
    "tiny": Workload(
        num_layers=2,
        hidden_size=32,
        num_heads=2,
        vocab_size=90,
        num_users=8,
        num_sentences=7,
        shortest=2,
        longest=9,
        user_sampling_prob=0.6,
        batch_size=8,
        sentence_batch_size=8,
        local_batch_size=3,
    ),
}


@lru_cache(maxsize=4)
def sentences(work: Workload) -> list[np.ndarray]:
    """Token ids of all users' sentences."""
    made_up = np.random.default_rng(0)
    lengths = made_up.integers(work.shortest, work.longest + 1, work.num_users * work.num_sentences)
    return [made_up.integers(1, work.vocab_size, n) for n in lengths]


def _by_length(work: Workload, numbers: np.ndarray) -> np.ndarray:
    return numbers[np.argsort([len(sentences(work)[x]) for x in numbers], kind="stable")]


class Network:
    """A network of a method's own, at the round's parameters."""

    def __init__(self, work: Workload):
        torch.set_num_threads(1)
        self.work, self.device = work, torch.device(work.device)
        self.sentences = sentences(work)
        self.task = NextWord(bos_id=0, eos_id=0, pad_id=0, max_length=work.longest + 1)
        config = work.config("gradient").model
        model = build_model(config, vocab_size=work.vocab_size, bos_id=0, eos_id=0, seed=0)
        self.model = select_trainable(model, config, seed=0).to(self.device)
        self.params = FlatParameters(self.model)
        self.start = self.params.get()

    def batch(self, numbers: np.ndarray) -> Batch:
        return self.task.collate([self.sentences[x] for x in numbers]).to(self.device)

    def logits(self, batch: Batch, model: torch.nn.Module | None = None) -> Tensor:
        """(B, T, V). ``model``: another than its own, which wraps it.

        Each sentence has positions of its own: Opacus finds each one's gradient by them.
        """
        positions = torch.arange(batch.input_ids.shape[1], device=self.device).repeat(len(batch), 1)
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.work.precision == "bf16"):
            return (model or self.model)(input_ids=batch.input_ids, position_ids=positions, use_cache=False).logits

    def losses(self, batch: Batch) -> Tensor:
        """(B,) as a script would write them."""
        return sentence_losses(self.logits(batch), batch.targets)


def sentence_losses(logits: Tensor, targets: Tensor) -> Tensor:
    """(B, T, V) and (B, T) -> (B,): of each sentence the mean."""
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    each = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=IGNORED, reduction="none")
    return each.view_as(targets).sum(1) / (targets != IGNORED).sum(1)


def take_steps(network: Network, batches: list[np.ndarray], learning_rate: float) -> None:
    """A step of SGD a batch of sentences, from the parameters that the network has."""
    optimizer = torch.optim.SGD(network.params.tensors, lr=learning_rate)
    for numbers in batches:
        optimizer.zero_grad()
        network.losses(network.batch(numbers)).mean().backward()
        optimizer.step()
    optimizer.zero_grad()


def train_user(network: Network, user: int, round_index: int) -> None:
    """A user's training, from the parameters that the network has."""
    take_steps(network, network.work.steps(user, round_index), network.work.local_learning_rate)


class Plain:
    """Training that knows no users."""

    def __init__(self, work: Workload):
        self.network = Network(work)

    def __call__(self, users: list[int], round_index: int) -> None:
        network = self.network
        network.params.set(network.start)
        take_steps(network, network.work.batches(users, network.work.batch_size), 1e-4)


class Exactly:
    """What the methods must compute, in float64: sentences one after the other, none padded."""

    def __init__(self, work: Workload):
        self.network = Network(work)
        self.network.model.double()
        self.start = self.network.params.get()

    def gradient(self, number: int) -> Tensor:
        batch = self.network.batch(np.array([number]))
        return self.network.params.gradient(self.network.losses(batch).sum())

    def changes(self, users: list[int], round_index: int) -> list[Tensor]:
        """(P,) of each user, not clipped."""
        work, params = self.network.work, self.network.params
        found = []
        for user in users:
            params.set(self.start)
            for numbers in work.steps(user, round_index):
                step = torch.stack([self.gradient(x) for x in numbers]).mean(0)
                params.set(params.get() - work.local_learning_rate * step)
            found.append(params.get() - self.start)
        params.set(self.start)
        return found

    def downhill(self, users: list[int]) -> list[Tensor]:
        """(S, P) of each user: minus the gradient of each sentence, not clipped."""
        return [-torch.stack([self.gradient(x) for x in self.network.work.sentences_of(user)]) for user in users]


def clipped(rows: Tensor, bound: float) -> Tensor:
    """(B, P) -> (B, P), none longer than the bound."""
    return rows * (bound / rows.norm(dim=1, keepdim=True)).clamp(max=1.0)


def checked_clips(work: Workload, users: list[int], round_index: int) -> Workload:
    """The workload with bounds that clip half of what they bound."""
    exactly = Exactly(work)
    changes, gradients = torch.stack(exactly.changes(users, round_index)), torch.cat(exactly.downhill(users))
    user_clip, sentence_clip = (float(rows.norm(dim=1).median()) for rows in (changes, gradients))
    return replace(work, user_clip=user_clip, sentence_clip=sentence_clip)

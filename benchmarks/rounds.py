"""Times a round's local updates against plain training of the same sentences, which knows no users and clips nothing.

    python benchmarks/rounds.py [--device cuda] [--precision bf16] [--size small|gpt2] [--lora] [--rounds 5]

A round draws a quarter of 256 users of 15 made-up sentences of 8 to 48 tokens each. The methods compute it in turn, a round
each, and the table has the median over the rounds: seconds (CPU time on a CPU, of one thread), the speed as a share of plain
training's, and, on a GPU, the most memory in use. Plain training takes the round's sentences in batches of 64 by length, one
step of SGD a batch. ``gradient`` clips each sentence and each user, ``local_sgd`` each user's difference after one pass in
batches of five; "by hand" is what a script would do instead of ``local_sgd``: load the weights, train, subtract, clip, add.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import numpy as np
import torch
from torch.nn import functional as F

from uedp_ray.config import RunConfig, from_dict
from uedp_ray.models.build import build_model
from uedp_ray.models.parameters import FlatParameters
from uedp_ray.models.trainable import select_trainable
from uedp_ray.plan import Plan, UserSelection
from uedp_ray.tasks.base import IGNORED
from uedp_ray.tasks.next_word import NextWord
from uedp_ray.updates.base import exact_arithmetic, local_update

USERS, SENTENCES, SHORTEST, LONGEST, LOCAL_BATCH = 256, 15, 8, 48, 5
SIZES = {
    "small": ({"num_layers": 4, "hidden_size": 256, "num_heads": 4}, 8_000),
    "gpt2": ({"num_layers": 12, "hidden_size": 768, "num_heads": 12}, 50_257),
}
Round = Callable[[list[UserSelection]], object]


class Workload:
    """A network on a device, and the sentences of all users."""

    def __init__(self, size: str, device: str, precision: str, lora: bool):
        model, self.vocab_size = SIZES[size]
        self.device = torch.device(device)
        self.autocast = torch.bfloat16 if precision == "bf16" else None
        self.tree = {
            "corpus": {"declared_num_users": USERS},
            "privacy": {"noise_multiplier": 1.0, "user_sampling_prob": 0.25},
            "model": {**model, "max_length": LONGEST + 1, "trainable": "lora" if lora else "full", "lora_rank": 4},
            "training": {"precision": precision, "batch_tokens": 4096 if device == "cpu" else 8192},
        }
        made_up = np.random.default_rng(0)
        lengths = made_up.integers(SHORTEST, LONGEST + 1, USERS * SENTENCES)
        self.sentences = [made_up.integers(1, self.vocab_size, n) for n in lengths]
        self.task = NextWord(bos_id=0, eos_id=0, pad_id=0, max_length=LONGEST + 1)
        config = self.config().model
        model = build_model(config, vocab_size=self.vocab_size, bos_id=0, eos_id=0, seed=0)
        self.model = select_trainable(model, config, seed=0).to(self.device)
        self.params = FlatParameters(self.model)
        self.start = self.params.get()

    def config(self, **training: object) -> RunConfig:
        tree = {**self.tree, "training": {**self.tree["training"], **training}}
        if training:
            tree["privacy"] = {**tree["privacy"], "sentence_clip_norm": None}
            tree["bounds"] = {"holder_bound": "truncate", "entity_bound": "truncate"}
        return from_dict(RunConfig, tree)

    def loss(self, numbers: np.ndarray) -> torch.Tensor:
        """The mean over tokens, as a script would write it."""
        batch = self.task.collate([self.sentences[x] for x in numbers]).to(self.device)
        with torch.autocast(self.device.type, self.autocast, enabled=self.autocast is not None):
            logits = self.model(batch.input_ids).logits
        return F.cross_entropy(logits.float().flatten(0, 1), batch.targets.flatten(), ignore_index=IGNORED)

    def ours(self, **training: object) -> Round:
        plan = Plan.of(self.config(**training))
        update = local_update(plan, self.model, self.params, self.task, self.sentences.__getitem__, self.device)
        started = time.perf_counter()
        update.probe()
        print(f"{plan.config.training.local_update}: tried out in {time.perf_counter() - started:.1f} s", flush=True)
        return lambda drawn: update.sum_updates(self.start, drawn, 0)

    def plain(self, drawn: list[UserSelection]) -> None:
        numbers = np.concatenate([each.sentences for each in drawn])
        numbers = numbers[np.argsort([len(self.sentences[x]) for x in numbers], kind="stable")]
        optimizer = torch.optim.SGD(self.params.tensors, lr=1e-4)
        for first in range(0, len(numbers), 64):
            optimizer.zero_grad()
            self.loss(numbers[first : first + 64]).backward()
            optimizer.step()
        optimizer.zero_grad()

    def by_hand(self, drawn: list[UserSelection]) -> torch.Tensor:
        total = torch.zeros_like(self.start)
        optimizer = torch.optim.SGD(self.params.tensors, lr=0.1)
        for each in drawn:
            self.params.set(self.start)
            for first in range(0, SENTENCES, LOCAL_BATCH):
                optimizer.zero_grad()
                self.loss(each.sentences[first : first + LOCAL_BATCH]).backward()
                optimizer.step()
            difference = self.params.get() - self.start
            total += difference * (1.0 / difference.norm()).clamp(max=1.0)
        optimizer.zero_grad()
        return total


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--precision", default="float32", choices=["float32", "bf16"])
    parser.add_argument("--size", default="small", choices=SIZES)
    parser.add_argument("--lora", action="store_true", help="train LoRA matrices of rank 4 only")
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    work = Workload(arguments.size, arguments.device, arguments.precision, arguments.lora)
    exact_arithmetic(work.device)
    methods: dict[str, Round] = {
        "plain": work.plain,
        "by hand": work.by_hand,
        "gradient": work.ours(),
        "local_sgd": work.ours(local_update="local_sgd", local_batch_size=LOCAL_BATCH),
    }
    seconds: dict[str, list[float]] = {name: [] for name in methods}
    peaks = dict.fromkeys(methods, 0)
    made_up = np.random.default_rng(1)
    for number in range(arguments.rounds + 1):
        drawn = [
            UserSelection(u, np.arange(u * SENTENCES, (u + 1) * SENTENCES), np.ones(SENTENCES, np.float32), SENTENCES)
            for u in np.flatnonzero(made_up.random(USERS) < 0.25).tolist()
        ]
        for name, method in methods.items():
            work.params.set(work.start)
            taken, peak = timed(method, drawn, work.device)
            if number:  # the first warms up
                seconds[name].append(taken)
                peaks[name] = max(peaks[name], peak)
    where = torch.cuda.get_device_name() if arguments.device == "cuda" else "one thread of a CPU"
    print(f"{work.params.num / 1e6:.2f} million trained parameters, {arguments.precision}, {where}")
    print(f"{'':10} {'seconds':>8} {'spread':>15} {'of plain':>9} {'peak GiB':>9}")
    middle = {name: statistics.median(each) for name, each in seconds.items()}
    for name, each in seconds.items():
        spread = f"{min(each):.3f} to {max(each):.3f}"
        peak = f"{peaks[name] / 2**30:9.2f}" if peaks[name] else ""
        print(f"{name:10} {middle[name]:8.3f} {spread:>15} {middle['plain'] / middle[name]:9.2f} {peak}")


def timed(method: Round, drawn: list[UserSelection], device: torch.device) -> tuple[float, int]:
    """Seconds, and bytes at the peak on a GPU."""
    if device.type == "cpu":
        started = time.process_time()
        method(drawn)
        return time.process_time() - started, 0
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    started = time.perf_counter()
    method(drawn)
    torch.cuda.synchronize()
    return time.perf_counter() - started, torch.cuda.max_memory_allocated()


if __name__ == "__main__":
    main()

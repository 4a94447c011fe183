"""Times what follows the local sums of a round: reduce, noise, the server's step, the charge, broadcast; by the driver, and
shared out.

    python benchmarks/aggregation.py [--workers 2] [--sizes 65536 1048576 8388608] [--rounds 10] [--optimizer adam]

Workers are processes of a gloo group on this machine, of one thread each; their sums are zeros, and a charge costs nothing.
Noise, which a thread draws while local sums are computed, is drawn when it is asked for, as there is nothing to compute.
Milliseconds of a round: CPU time of the worker that took most, the least of rounds; and the least by the clock, which says
something where every worker has a core.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import tempfile
import time
from pathlib import Path
from typing import Any

os.environ |= {"OMP_NUM_THREADS": "1"}

import torch

from uedp_ray.config import RunConfig, from_dict
from uedp_ray.plan import Plan
from uedp_ray.privacy.noise import GaussianNoise
from uedp_ray.training.optimizers import server_optimizer
from uedp_ray.training.reduce import DistributedReducer
from uedp_ray.training.rounds import RoundState, run_rounds
from uedp_ray.training.sharding import Shard


class Ledgerless:
    """A driver that writes nothing."""

    def __init__(self, plan: Plan):
        self._plan, self._noise = plan, GaussianNoise()

    def admit(self, round_index: int) -> int:
        return 0

    def charge(self, round_index: int, attempt: int) -> None:
        pass

    def release(self, total: torch.Tensor, round_index: int) -> torch.Tensor:
        return self._plan.release(total, self._noise, round_index=round_index)


def plan_of(optimizer: str) -> Plan:
    tree = {"corpus": {"declared_num_users": 10**6}, "privacy": {"noise_multiplier": 1.0, "user_sampling_prob": 0.01}}
    return Plan.of(from_dict(RunConfig, {**tree, "training": {"server_optimizer": optimizer}}))


def rounds_of(plan: Plan, size: int, sharded: bool, rounds: int) -> list[tuple[float, float]]:
    """By round, CPU seconds of this process and seconds by the clock, from the local sum on."""
    reducer, parameters, device = DistributedReducer(), torch.zeros(size), torch.device("cpu")
    state = RoundState(parameters, server_optimizer(parameters, plan.config.training))
    shard = Shard(plan, None, reducer, parameters) if sharded else None
    if shard is not None:
        state.optimizer = shard.optimizer(state.optimizer, stepped=False)
        shard.draw_ahead = lambda round_index: None  # type: ignore[method-assign]
    began: list[tuple[float, float]] = []

    def local_sum(*_: Any) -> torch.Tensor:
        total = plan.zeros(size, device).fill_(1)  # its memory is there
        torch.distributed.all_reduce(torch.zeros(1))
        began.append((time.process_time(), time.perf_counter()))
        return total

    found = []
    driver = Ledgerless(plan) if reducer.is_driver else None
    for round_index in range(rounds + 1):
        state.next_round = round_index
        run_rounds(state, num_rounds=round_index + 1, local_sum=local_sum, reducer=reducer, driver=driver, shard=shard)
        cpu, clock = began.pop()
        found.append((time.process_time() - cpu, time.perf_counter() - clock))
    return found[1:]


def member(rank: int, meet: str, arguments: argparse.Namespace, sender: Any) -> None:
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", init_method=f"file://{meet}", rank=rank, world_size=arguments.workers)
    plan = plan_of(arguments.optimizer)
    for size in arguments.sizes:
        sender.send([rounds_of(plan, size, sharded, arguments.rounds) for sharded in (False, True)])
    torch.distributed.destroy_process_group()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--sizes", type=int, nargs="+", default=[1 << 16, 1 << 18, 1 << 20, 1 << 23], help="parameters")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--optimizer", default="adam")
    arguments = parser.parse_args()
    context = multiprocessing.get_context("fork")
    with tempfile.TemporaryDirectory() as folder:
        pipes = [context.Pipe(duplex=False) for _ in range(arguments.workers)]
        for rank, (_, sender) in enumerate(pipes):
            asked = (rank, str(Path(folder, "meet")), arguments, sender)
            context.Process(target=member, args=asked, daemon=True).start()
        print(f"{'':>12} {'driver':>8} {'sharded':>8} {'ratio':>6}   {'by clock':>8} {'sharded':>8} {'ratio':>6}")
        for size in arguments.sizes:
            of_ranks = [receiver.recv() for receiver, _ in pipes]
            row = []
            for which in (0, 1):
                by_mode = [
                    1e3
                    * min(
                        max(each[which] for each in of_round)
                        for of_round in zip(*(of[mode] for of in of_ranks), strict=True)
                    )
                    for mode in (0, 1)
                ]
                row.append(f"{by_mode[0]:>8.2f} {by_mode[1]:>8.2f} {by_mode[0] / by_mode[1]:>6.2f}")
            print(f"{size:>12,} {'   '.join(row)}", flush=True)


if __name__ == "__main__":
    main()

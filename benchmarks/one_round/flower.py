"""Rounds in which each user's change is clipped (``local_sgd`` in ``workload``), by Flower (https://flower.ai).

Its simulation engine: a ``ServerApp`` with ``FedAvg`` under ``DifferentialPrivacyClientSideFixedClipping`` and no noise,
and a ``ClientApp`` with ``fixedclipping_mod`` in one Ray actor of one core. Each user gets the weights as a message and
returns new ones, through Ray's object store. It averages new weights in float32, of which the sum of changes is what differs
from the old ones. It clips users: no entity, no sentence.

Where a user's node is random, the message says whose sentences to train on. Processes of Ray count, those that start it do
not.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Iterable
from dataclasses import asdict
from functools import lru_cache
from queue import SimpleQueue
from typing import Any

import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MessageType, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.clientapp.mod import fixedclipping_mod
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import DifferentialPrivacyClientSideFixedClipping, FedAvg
from flwr.simulation import run_simulation
from torch import Tensor

from one_round.workload import Network, Workload, train_user

client = ClientApp()


@lru_cache(maxsize=1)
def _network(work: str) -> Network:
    return Network(Workload(**json.loads(work)))


@client.train(mods=[fixedclipping_mod])
def train(message: Message, context: Context) -> Message:
    """A user's training, in Ray's process."""
    config = message.content["config"]
    network = _network(config["work"])
    with torch.no_grad():
        for tensor, value in zip(
            network.params.tensors, message.content["arrays"].to_torch_state_dict().values(), strict=True
        ):
            tensor.copy_(value)
    train_user(network, config["user"], config["server-round"])
    content = {"arrays": _arrays(network), "metrics": MetricRecord({"num-examples": network.work.num_sentences})}
    return Message(content=RecordDict(content), reply_to=message)


def _arrays(network: Network) -> ArrayRecord:
    """What is trained, once each: a state has a tied matrix twice, and it would be clipped as two."""
    return ArrayRecord(dict(zip(network.params.names, (t.detach() for t in network.params.tensors), strict=True)))


class OfUsers(FedAvg):
    """``FedAvg`` that trains the users that were drawn."""

    def __init__(self, users: list[int]):
        super().__init__()
        self.users = users

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        config["server-round"] = server_round
        for user, node in zip(self.users, grid.get_node_ids(), strict=False):
            record = RecordDict({"arrays": arrays, "config": ConfigRecord({**config, "user": user})})
            yield Message(content=record, message_type=MessageType.TRAIN, dst_node_id=node)


class Flower:
    """A simulation that waits for rounds to be asked for; ``close`` ends it."""

    def __init__(self, work: Workload):
        logging.getLogger("flwr").setLevel(logging.ERROR)
        self.network, self.work = Network(work), json.dumps(asdict(work))
        self.asked: SimpleQueue[Any] = SimpleQueue()
        self.answers: SimpleQueue[Any] = SimpleQueue()
        self.thread = threading.Thread(target=self._simulate, daemon=True)
        self.thread.start()

    def __call__(self, users: list[int], round_index: int) -> Tensor:
        self.asked.put((users, round_index))
        if isinstance(answer := self.answers.get(), BaseException):
            raise answer
        return answer

    def close(self) -> None:
        self.asked.put(None)
        self.thread.join()

    def _simulate(self) -> None:
        server, work = ServerApp(), self.network.work

        @server.main()
        def main(grid: Grid, context: Context) -> None:
            while len(list(grid.get_node_ids())) < work.num_users:  # which connect meanwhile
                time.sleep(0.1)
            while (asked := self.asked.get()) is not None:
                self.answers.put(self._round(grid, *asked))

        resources = {"num_cpus": 1, "num_gpus": float(work.device == "cuda")}
        started = {
            "num_cpus": 1,
            "num_gpus": int(work.device == "cuda"),
            "log_to_driver": False,
            "logging_level": "error",
        }
        try:
            config = {"client_resources": resources, "init_args": started}
            run_simulation(server, client, num_supernodes=work.num_users, backend_config=config)
            self.answers.put(RuntimeError("Flower's simulation has ended"))
        except BaseException as error:
            self.answers.put(error)

    def _round(self, grid: Grid, users: list[int], round_index: int) -> Tensor:
        work = self.network.work
        strategy = DifferentialPrivacyClientSideFixedClipping(OfUsers(users), 0.0, work.user_clip, len(users))
        messages = strategy.configure_train(round_index, _arrays(self.network), ConfigRecord({"work": self.work}), grid)
        replies = list(grid.send_and_receive(messages))
        if failed := [reply.error.reason for reply in replies if reply.has_error()]:
            raise RuntimeError(failed[0])
        if len(replies) != len(users):
            raise RuntimeError(f"{len(replies)} of {len(users)} users have answered")
        arrays, _ = strategy.aggregate_train(round_index, replies)
        new = torch.cat([each.flatten() for each in arrays.to_torch_state_dict().values()])
        return len(users) * new.to(self.network.device).sub_(self.network.start)

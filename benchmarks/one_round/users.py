"""Rounds in which each user's change is clipped (``local_sgd`` in ``workload``): a loop by hand, pfl-research, ours.

pfl-research (https://apple.github.io/pfl-research): ``SimulatedBackend`` in this process, ``FederatedAveraging``, and
``NormClippingOnly`` applied centrally. Its users are trained one after the other, as by hand. It clips users: no entity, no
sentence, and sums in float32.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor, nn

from one_round.workload import Network, Workload, train_user
from uedp_ray.plan import Plan, UserSelection
from uedp_ray.tasks.base import Batch
from uedp_ray.updates.base import exact_arithmetic, local_update


class Ours:
    """``uedp_ray``'s own. It is tried out before the first round."""

    def __init__(self, work: Workload, name: str):
        self.network = network = Network(work)
        self.plan = Plan.of(work.config(name))
        sentence = network.sentences.__getitem__
        self.update = local_update(self.plan, network.model, network.params, network.task, sentence, network.device)
        with _exact(network.device):
            self.update.probe()

    def __call__(self, users: list[int], round_index: int) -> Tensor:
        work = self.network.work
        ones, num = np.ones(work.num_sentences, np.float32), work.num_sentences
        drawn = [UserSelection(user, work.sentences_of(user), ones, num) for user in users]
        with _exact(self.network.device):
            return self.update.sum_updates(self.network.start, drawn, round_index)

    def value(self, total: Tensor) -> Tensor:
        """The sum, which is in steps of a grid."""
        assert self.plan.grid is not None
        return total.double() * self.plan.grid.step


@contextmanager
def _exact(device: torch.device) -> Iterator[None]:
    """As a run computes. Others may take a GPU's kernels that know no order."""
    exact_arithmetic(device)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)


class ByHand:
    """What a script does instead: load the weights, train, subtract, clip, add."""

    def __init__(self, work: Workload):
        self.network = Network(work)

    def __call__(self, users: list[int], round_index: int) -> Tensor:
        network = self.network
        total = torch.zeros_like(network.start)
        for user in users:
            network.params.set(network.start)
            train_user(network, user, round_index)
            change = network.params.get().sub_(network.start)
            total.add_(change, alpha=min(1.0, network.work.user_clip / float(change.norm())))
        return total


class PflResearch:
    """One central iteration, without evaluation; its sum before it is averaged."""

    def __init__(self, work: Workload):
        os.environ["PFL_PYTORCH_DEVICE"] = work.device
        from pfl.aggregate.simulate import SimulatedBackend
        from pfl.algorithm.base import NNAlgorithmParams
        from pfl.algorithm.federated_averaging import FederatedAveraging
        from pfl.data.dataset import Dataset
        from pfl.data.federated_dataset import FederatedDataset
        from pfl.hyperparam.base import NNTrainHyperParams
        from pfl.model.pytorch import PyTorchModel
        from pfl.privacy.privacy_mechanism import CentrallyAppliedPrivacyMechanism, NormClippingOnly

        network = Network(work)

        class User(Dataset):
            """Batches of sentences, which are ragged: the library's own slices are of one length."""

            def iter(self, batch_size):
                return iter(self.raw_data)

            def __len__(self):
                return work.num_sentences

        class Module(nn.Module):
            def __init__(self):
                super().__init__()
                self.inner = network.model

            def loss(self, input_ids, targets, lengths):
                return network.losses(Batch(input_ids, targets, lengths)).mean()

            def metrics(self, *batch):
                return {}

        def user(number: int) -> User:
            steps = map(network.batch, work.steps(number, self.round_index))
            return User([[each.input_ids, each.targets, each.lengths] for each in steps])

        self.network, self.round_index, self.users = network, 0, iter(())
        data = FederatedDataset(user, lambda: next(self.users))
        clipping = CentrallyAppliedPrivacyMechanism(NormClippingOnly(2, work.user_clip))
        self.backend = SimulatedBackend(training_data=data, val_data=data, postprocessors=[clipping])
        module = Module()
        central = torch.optim.SGD(module.parameters(), lr=1.0)
        self.model = PyTorchModel(module, local_optimizer_create=torch.optim.SGD, central_optimizer=central)
        self.algorithm = FederatedAveraging()
        self.settings = {
            "algorithm_params": NNAlgorithmParams(
                central_num_iterations=1, evaluation_frequency=1, train_cohort_size=1, val_cohort_size=None
            ),
            "model_train_params": NNTrainHyperParams(
                local_batch_size=work.local_batch_size,
                local_num_epochs=1,
                local_learning_rate=work.local_learning_rate,
            ),
        }

    def __call__(self, users: list[int], round_index: int) -> Tensor:
        from pfl.common_types import Population
        from pfl.context import CentralContext

        self.round_index, self.users = round_index, iter(users)
        context = CentralContext(
            current_central_iteration=round_index,
            do_evaluation=False,
            cohort_size=len(users),
            population=Population.TRAIN,
            **self.settings,
        )
        total, _ = self.backend.gather_results(self.model, self.algorithm, central_context=context)
        return torch.cat([total[f"inner.{name}"].flatten() for name in self.network.params.names])

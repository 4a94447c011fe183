"""The round loop with fakes: order of the steps, empty cohorts, budget, server optimizers."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from uedp_ray.config import TrainingConfig
from uedp_ray.training.optimizers import server_optimizer
from uedp_ray.training.reduce import LocalReducer
from uedp_ray.training.rounds import RoundState, run_rounds, server_rate

SUM = torch.tensor([1.0, -2.0], dtype=torch.float64)


class Recorder:
    """A driver, a reducer and a local sum that write down what is asked of them."""

    is_driver = True

    def __init__(self, *, affordable: int = 100, total: torch.Tensor = SUM):
        self.calls: list[tuple] = []
        self.affordable, self.total = affordable, total

    def admit(self, round_index):
        self.calls.append(("admit", round_index))
        self.affordable -= 1
        return 3 if self.affordable >= 0 else None

    def local_sum(self, parameters, round_index, attempt):
        self.calls.append(("local", round_index, attempt))
        return self.total.clone()

    def sum_to_driver(self, vector):
        self.calls.append(("reduce",))
        return vector

    def charge(self, round_index, attempt):
        self.calls.append(("charge", round_index, attempt))

    def release(self, total, round_index):
        self.calls.append(("release", round_index))
        return total + 0.5

    def from_driver(self, vector):
        self.calls.append(("broadcast", vector.tolist()))
        return vector

    def after_round(self, state):
        self.calls.append(("after", state.next_round))


def run(recorder, *, num_rounds=2, next_round=0, **training):
    settings = TrainingConfig(server_optimizer="sgd", server_learning_rate=0.1, **training)
    parameters = torch.zeros(2)
    state = RoundState(parameters, server_optimizer(parameters, settings), next_round)
    return run_rounds(
        state,
        num_rounds=num_rounds,
        local_sum=recorder.local_sum,
        reducer=recorder,
        driver=recorder,
        after_round=recorder.after_round,
    )


def test_a_round_is_charged_before_anything_of_it_leaves_the_driver():
    recorder = Recorder()
    state = run(recorder, num_rounds=1)
    assert [name for name, *_ in recorder.calls] == [
        "admit",
        "broadcast",  # the attempt number
        "local",
        "reduce",
        "release",
        "charge",
        "broadcast",  # the new parameters
        "after",
    ]
    assert ("charge", 0, 3) in recorder.calls
    assert ("local", 0, 3) in recorder.calls, "workers draw for the attempt that the driver admits"
    assert state.parameters.tolist() == pytest.approx([0.15, -0.15])
    assert recorder.calls[6][1] == state.parameters.tolist()


def test_a_charge_that_fails_releases_nothing():
    recorder = Recorder()

    def full(round_index, attempt):
        raise OSError("disk full")

    recorder.charge = full
    with pytest.raises(OSError, match="disk full"):
        run(recorder)
    assert [call[0] for call in recorder.calls][-2:] == ["reduce", "release"]  # nothing was broadcast or kept


@pytest.mark.parametrize("where", ["release", "optimizer"])
def test_running_out_of_memory_charges_nothing(where, monkeypatch):
    def full(*args, **kwargs):
        raise torch.OutOfMemoryError("no memory")

    recorder = Recorder()
    if where == "release":
        recorder.release = full
    else:
        monkeypatch.setattr(torch.optim.SGD, "step", full)
    with pytest.raises(torch.OutOfMemoryError):
        run(recorder)
    assert not [call for call in recorder.calls if call[0] in ("charge", "after")]


def test_an_empty_cohort_is_noised_and_charged_like_any():
    recorder = Recorder(total=torch.zeros(2, dtype=torch.float64))
    state = run(recorder, num_rounds=3)
    assert [call for call in recorder.calls if call[0] == "charge"] == [("charge", t, 3) for t in range(3)]
    assert state.parameters.tolist() == pytest.approx([0.15, 0.15])


def test_a_spent_budget_stops_before_the_round_is_computed():
    recorder = Recorder(affordable=2)
    state = run(recorder, num_rounds=5)
    assert state.next_round == 2
    assert [call[0] for call in recorder.calls].count("local") == 2
    assert [call[0] for call in recorder.calls].count("charge") == 2


def test_a_resumed_state_runs_the_remaining_rounds_only():
    recorder = Recorder()
    assert run(recorder, num_rounds=4, next_round=3).next_round == 4
    assert [call for call in recorder.calls if call[0] == "local"] == [("local", 3, 3)]


def test_a_worker_that_is_not_the_driver_computes_what_the_driver_admits():
    class Other(Recorder):
        is_driver = False

        def from_driver(self, vector):
            vector = super().from_driver(vector)
            return torch.full_like(vector, 7) if vector.numel() == 1 else vector

    recorder = Other()
    parameters = torch.zeros(2)
    state = RoundState(parameters, server_optimizer(parameters, TrainingConfig()))
    run_rounds(state, num_rounds=2, local_sum=recorder.local_sum, reducer=recorder, driver=None)
    assert [call for call in recorder.calls if call[0] == "local"] == [("local", 0, 7), ("local", 1, 7)]
    assert not [call for call in recorder.calls if call[0] in ("admit", "charge", "release")]


def by_hand(name: str, updates: np.ndarray, rate: float) -> np.ndarray:
    """SGD, momentum (Sutskever form of torch) and Adam (Kingma and Ba, Alg. 1) on downhill updates."""
    x, velocity, mean, square = np.zeros(2), np.zeros(2), np.zeros(2), np.zeros(2)
    for step, update in enumerate(updates, 1):
        gradient = -update
        if name == "sgd":
            x = x - rate * gradient
        elif name == "momentum":
            velocity = 0.8 * velocity + gradient
            x = x - rate * velocity
        else:
            mean = 0.7 * mean + 0.3 * gradient
            square = 0.95 * square + 0.05 * gradient**2
            x = x - rate * (mean / (1 - 0.7**step)) / (np.sqrt(square / (1 - 0.95**step)) + 1e-3)
    return x


@pytest.mark.parametrize("name", ["sgd", "momentum", "adam"])
def test_server_optimizers_step_along_the_noised_average(name):
    updates = np.random.default_rng(0).normal(size=(6, 2))
    settings = TrainingConfig(
        server_optimizer=name,
        server_learning_rate=0.3,
        server_momentum=0.8,
        adam_betas=(0.7, 0.95),
        adam_epsilon=1e-3,
    )
    parameters = torch.zeros(2)
    state = RoundState(parameters, server_optimizer(parameters, settings))

    class Driver(Recorder):
        def release(self, total, round_index):
            return total

    driver = Driver()
    run_rounds(
        state,
        num_rounds=6,
        local_sum=lambda parameters, t, attempt: torch.from_numpy(updates[t].copy()),
        reducer=LocalReducer(),
        driver=driver,
    )
    np.testing.assert_allclose(parameters.numpy(), by_hand(name, updates, 0.3), rtol=1e-5)


def test_the_linear_schedule_falls_to_zero_over_the_rounds():
    settings = TrainingConfig(num_rounds=4, server_optimizer="sgd", server_learning_rate=0.4, server_schedule="linear")
    assert [server_rate(settings, t) for t in range(4)] == pytest.approx([0.4, 0.3, 0.2, 0.1])
    parameters = torch.zeros(2)
    run_rounds(
        RoundState(parameters, server_optimizer(parameters, settings)),
        num_rounds=4,
        local_sum=lambda parameters, t, attempt: torch.tensor([0.5, 0.0], dtype=torch.float64),
        reducer=LocalReducer(),
        driver=Recorder(),
        rate=lambda t: server_rate(settings, t),
    )
    assert parameters.tolist() == pytest.approx([1.0, 0.5])  # each release adds 0.5

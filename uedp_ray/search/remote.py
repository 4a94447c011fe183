"""Runs what a sweep computes besides its trials (pre-training, references, the winner) on a node that fits a trial.

    with Beside(config, address) as beside:
        beside.open()                                            # the cluster, when it is first needed
        total = beside.run(add, 2, 3, reporter=mine)             # runs add(2, 3, reporter) there, and reports to mine here

The driver's own node may have no GPU, and no CPU to spare. What runs elsewhere reports its progress to the driver, fails
with the errors that it would fail with here, and ends with the driver.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any

from uedp_ray.errors import InputError
from uedp_ray.reporting import SILENT, Forwarder, Reporter
from uedp_ray.search.gpus import gpus_of_worker
from uedp_ray.search.preflight import Node, RayCluster
from uedp_ray.search.sweep_config import SweepConfig
from uedp_ray.training.session import ray_session


class Beside:
    """See the module. As a context manager, it closes the session that it opened."""

    def __init__(self, config: SweepConfig, address: str | None = None):
        self._config, self._address = config, address
        self._stack: ExitStack = ExitStack()
        self._nodes: list[Node] = []

    def __enter__(self) -> Beside:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._stack.__exit__(kind, error, at)

    def open(self) -> list[Node]:
        """Connects to the cluster, or starts Ray here, unless that was done before. Returns its nodes."""
        if not self._nodes:
            self._stack.enter_context(ray_session(1, self._address))
            self._nodes = RayCluster().nodes()
        return self._nodes

    def run(self, work: Callable[..., Any], *arguments: Any, reporter: Reporter = SILENT) -> Any:
        """Runs ``work(*arguments, reporter)`` on a node that fits a worker of a trial, with the resources of one.

        ``work`` may run again if its node dies: it continues where it was.
        Raises: what ``work`` raises; RuntimeError without its text for what it should not have raised.
        """
        nodes, cpus = self.open(), self._config.resources.cpus_per_worker
        gpus = gpus_of_worker(self._config.resources, self._config.device, nodes, wanted=1)
        if not any(node.holds(cpus, gpus) for node in nodes):  # Ray would wait for such a node forever
            raise InputError("resources.cpus_per_worker", cpus, f"no node has room for that and {gpus:g} GPU")
        import ray
        from ray.exceptions import RayError
        from ray.util.queue import Queue

        words = Queue(actor_options={"num_cpus": 0})
        reference = ray.remote(num_cpus=cpus, num_gpus=gpus)(_answer).remote(work, arguments, words)
        try:
            ended = False
            while not ended:
                ended = bool(ray.wait([reference], timeout=0.3)[0])
                for method, about in words.get_nowait_batch(words.size()):
                    getattr(reporter, method)(*about)
            well, answer = ray.get(reference)
        except RayError as error:
            died = f"the process that ran it died ({type(error).__name__}), perhaps for lack of memory"
            raise RuntimeError(f"{died}: run again with --resume") from None
        except BaseException:  # Ctrl-C: what was released is charged, and the rest resumes from its checkpoint
            ray.cancel(reference, force=True)
            raise
        finally:
            words.shutdown(force=True)
        if not well:
            raise answer
        return answer


_WORTH_A_GROUP = 300.0
"""Seconds of a run from which on several workers save more than the quarter of a minute in which they start."""


def workers_of_winner(config: SweepConfig, nodes: Sequence[Node], seconds: float) -> int:
    """How many workers train the winner, with no trial beside it; ``seconds``: what it took the workers of a trial.

    A run has the same law, and the same sums to the bit, with any number (``updates.base``). But un-noised sums pass between
    workers, and torch's ports take no password. So several have to be asked for; ``auto`` takes them on one machine only.
    Raises: InputError if there is no room for as many as are asked for: Ray would wait for it forever.
    """
    resources, workers = config.resources, config.resources.workers_of_winner
    if workers == "trial":
        return resources.workers_per_trial
    if workers != "auto":
        gpus = 0 if resources.gpus_per_worker == "auto" else resources.gpus_per_worker
        there = sum(node.holds(resources.cpus_per_worker, gpus) for node in nodes)
        if there < workers:
            remedy = f"the cluster has room for {there}: ask for fewer, or add nodes"
            raise InputError("resources.workers_of_winner", workers, remedy)
        return workers
    alone = len(nodes) == 1 and not nodes[0].gpus
    if not alone or resources.workers_per_trial > 1 or seconds < _WORTH_A_GROUP:
        return resources.workers_per_trial
    room = nodes[0].holds(resources.cpus_per_worker, 0)
    return max(1, min(room, resources.max_concurrent or room))


def _answer(work: Callable[..., Any], arguments: tuple[Any, ...], words: Any) -> tuple[bool, Any]:
    """Returns errors as values: Ray would wrap them in its own."""
    try:
        return True, work(*arguments, Forwarder(words.put_nowait))
    except (InputError, OSError) as error:
        return False, error
    except Exception as error:  # its message might hold private text
        last = traceback.extract_tb(error.__traceback__)[-1]
        return False, RuntimeError(f"{type(error).__name__} in {Path(last.filename).name}, line {last.lineno}")

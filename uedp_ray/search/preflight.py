"""Checks, before anything starts, that the cluster can run the sweep: room for trials, one storage, the same software.

    ray.init()
    report = check_cluster(workers_per_trial=1, cpus_per_worker=1, gpus_per_worker=0, storage=Path("/shared/sweep"))
    report.trials_at_once      # how many trials run side by side

Every node answers one task that takes no CPU. The storage is tested, not looked up: the node reads a file of the driver's,
finds the driver's lock held, and writes a file that the driver then reads. All problems are reported at once.
Inputs are public: resources, a path, versions, and a digest of this package's source. No text is read.
"""

from __future__ import annotations

import fcntl
import os
import secrets
import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from uedp_ray.errors import InputError
from uedp_ray.storage.files import to_be_removed
from uedp_ray.storage.objects import Objects, below

PREFLIGHT = "preflight"
"""The name by which ``settle`` recognises what a killed preflight left in a folder."""
PACKAGES = ("uedp-ray", "ray", "torch", "transformers", "optuna", "numpy", "pyarrow", "dp-accounting")
MIN_FREE_BYTES = 10**9

Answer = dict[str, Any]
"""``software``: name to version; ``storage``: what is wrong with it, or None. Or only ``error``: why there is no answer."""
Probe = Callable[[str | None, str, str], Answer]


@dataclass(frozen=True)
class Node:
    """A node that is alive, and all its resources, in use or not."""

    node_id: str
    address: str
    cpus: float
    gpus: float

    def __str__(self) -> str:
        return f"{self.address} ({self.node_id[:8]})"

    def holds(self, cpus: float, gpus: float) -> int:
        """Returns how many workers fit. Ray never spreads a part of a GPU over two."""
        by_cpu = int(self.cpus / cpus + 1e-9)
        if gpus == 0:
            return by_cpu
        return min(by_cpu, int(self.gpus) * int(1 / gpus + 1e-9) if gpus < 1 else int(self.gpus / gpus + 1e-9))


@dataclass(frozen=True)
class Report:
    """The findings, if nothing forbids the sweep."""

    nodes: int
    trials_at_once: int
    """How many trials would fit on the whole cluster if it were idle."""
    warnings: tuple[str, ...]


class Cluster(Protocol):
    """What a preflight asks of a cluster; ``RayCluster``, or a stand-in."""

    def nodes(self) -> list[Node]:
        """Returns the nodes that are alive."""

    def ask(self, nodes: Sequence[Node], probe: Probe, folder: str | None, nonce: str) -> dict[str, Answer]:
        """Runs ``probe(folder, nonce, node_id)`` on each node; returns node_id to its answer, or to its ``error``."""


@dataclass(frozen=True)
class RayCluster:
    """The Ray session that is open."""

    timeout: float = 60.0
    """Seconds in which all nodes must answer; a cold node starts a Python process first."""

    def nodes(self) -> list[Node]:
        import ray

        return [
            Node(
                node["NodeID"],
                node["NodeManagerAddress"],
                node["Resources"].get("CPU", 0.0),
                node["Resources"].get("GPU", 0.0),
            )
            for node in ray.nodes()
            if node["Alive"]
        ]

    def ask(self, nodes: Sequence[Node], probe: Probe, folder: str | None, nonce: str) -> dict[str, Answer]:
        import ray
        from ray.exceptions import RayError
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        task = ray.remote(num_cpus=0, max_retries=0)(probe)
        pending = {}
        for node in nodes:
            pinned = NodeAffinitySchedulingStrategy(node.node_id, soft=False)
            ref = task.options(scheduling_strategy=pinned).remote(folder, nonce, node.node_id)
            pending[ref] = node.node_id
        answers: dict[str, Answer] = {}
        ready, late = ray.wait(list(pending), num_returns=len(pending), timeout=self.timeout)
        for ref in late:
            ray.cancel(ref, force=True)
            answers[pending[ref]] = {"error": f"no answer within {self.timeout:g} s"}
        for ref in ready:
            try:
                answers[pending[ref]] = ray.get(ref)
            except RayError as error:
                answers[pending[ref]] = {"error": f"cannot run a task ({type(error).__name__})"}
        return answers


def check_cluster(
    *,
    workers_per_trial: int,
    cpus_per_worker: float,
    gpus_per_worker: float,
    storage: Path,
    url: str | None = None,
    cluster: Cluster | None = None,
) -> Report:
    """Checks the cluster of the open Ray session.

    Args:
      workers_per_trial, cpus_per_worker, gpus_per_worker: what one trial takes; CPUs above 0.
      storage: the sweep's folder, the same path on every node. It is created if need be, and left as it was found.
      url: where the sweep is kept, if it is at a URL; ``storage`` is then each node's own copy.
      cluster: a stand-in for tests; None is the Ray session.

    Raises: InputError for the one problem found, or for all of them, numbered, if there are several.
    """
    cluster = RayCluster() if cluster is None else cluster
    nodes, storage = cluster.nodes(), storage.absolute()
    trials, failures = _room(nodes, workers_per_trial, cpus_per_worker, gpus_per_worker)
    nonce = secrets.token_hex(16)
    with ExitStack() as stack:
        place: Place | None = None
        try:
            opened = _in_folder(storage, nonce) if url is None else _at_url(url, nonce)
            place = stack.enter_context(opened)
            failures += _space(storage)
        except OSError as error:
            reason = error.strerror or error
            remedy = f"the driver cannot write there ({reason}): name a place that every node can write to"
            failures.append(InputError("--out", url or str(storage), remedy))
        probe = make_probe(None if url is None else str(storage))
        answers = cluster.ask(nodes, probe, None if place is None else place.name, nonce)
        if place is not None:
            failures += _storage(nodes, answers, url or str(storage), place, nonce)
    failures += _software(nodes, answers, probe(None, nonce, "")["software"])
    if len(failures) == 1:
        raise failures[0]
    if failures:
        listed = "; ".join(f"({number}) {failure}" for number, failure in enumerate(failures, start=1))
        raise InputError("cluster", f"{len(failures)} problems", f"fix them all: {listed}")
    small = [str(node) for node in nodes if not node.holds(cpus_per_worker, gpus_per_worker)]
    need = _amount(cpus_per_worker, gpus_per_worker)
    warnings = [f"no trial will run on {', '.join(small)}: too small for a worker of {need}"] if small else []
    return Report(len(nodes), trials, tuple(warnings))


def make_probe(copies: str | None = None) -> Probe:
    """Returns the probe that every node runs; ``copies`` is where a node is to keep its copies of what is at a URL.

    The probe is nested because Ray sends a nested function to the node by value: a node that has another uedp_ray, or none,
    can answer too. So it imports what it uses, and only what every Python has.
    """
    packages = PACKAGES

    def probe(folder: str | None, nonce: str, node_id: str) -> Answer:
        import fcntl
        import hashlib
        import platform
        import tempfile
        from importlib import metadata, util
        from pathlib import Path

        software = {"python": ".".join(platform.python_version_tuple()[:2])}
        for package in packages:
            try:
                software[package] = metadata.version(package)
            except metadata.PackageNotFoundError:
                software[package] = "missing"
        digest, spec = hashlib.sha256(), util.find_spec("uedp_ray")
        for root in [] if spec is None else spec.submodule_search_locations or []:
            for path in sorted(Path(root).rglob("*.py")):
                digest.update(f"{path.relative_to(root)}\0".encode() + path.read_bytes() + b"\0")
        software["uedp_ray source"] = digest.hexdigest()[:12]

        problem = None
        if folder is not None and copies is not None:
            try:
                Path(copies).mkdir(parents=True, exist_ok=True)
                with tempfile.TemporaryFile(dir=copies) as file:
                    file.write(bytes(1))
                from uedp_ray.storage.objects import Objects

                if Objects(folder).read("nonce").decode() != nonce:
                    problem = "does not read there what the driver wrote"
                Objects(folder).write(node_id, nonce.encode())
            except Exception as error:  # from the file system, or from another version of the package
                problem = f"cannot use it: {error}"
        elif folder is not None:
            try:
                with (Path(folder) / "nonce").open("r+") as file:
                    try:
                        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                        problem = "does not see that the driver holds a lock there"
                    except BlockingIOError:
                        pass
                    if file.read() != nonce:
                        problem = "does not read there what the driver wrote"
                (Path(folder) / node_id).write_text(nonce)
            except OSError as error:
                problem = f"cannot use it: {error.strerror}"
        return {"software": software, "storage": problem}

    return probe


class Place(NamedTuple):
    """Where the driver and the nodes exchange files."""

    name: str
    read: Callable[[str], str]
    remedy: str


@contextmanager
def _in_folder(storage: Path, nonce: str) -> Iterator[Place]:
    """Yields a folder under ``storage``, owner-only as ``private/`` will be, with a locked file. It leaves nothing behind;
    what a kill leaves is removed by the next preflight, or by ``settle``. One process at a time.

    Files are opened by name: NFS may return an old listing of a folder.
    """
    made = [path for path in (storage, *storage.parents) if not path.exists()]
    folder = to_be_removed(storage / PREFLIGHT)
    try:
        storage.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(mode=0o700)
        with (folder / "nonce").open("w") as file:
            file.write(nonce)
            file.flush()
            os.fsync(file.fileno())
            fcntl.flock(file, fcntl.LOCK_EX)
            remedy = "mount shared storage with file locks at that path on every node, or give a storage URL"
            yield Place(str(folder), lambda name: (folder / name).read_text(), f"{remedy}; one user id everywhere")
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        for path in made:
            with suppress(OSError):
                path.rmdir()


@contextmanager
def _at_url(url: str, nonce: str) -> Iterator[Place]:
    folder = below(url, f"private/preflight-{nonce[:8]}")
    objects = Objects(folder)
    try:
        objects.write("nonce", nonce.encode())
        remedy = "give every node what the URL needs, the same credentials, and a UEDP_RAY_WORK that it can write to"
        yield Place(folder, lambda name: objects.read(name).decode(), remedy)
    finally:
        for key in objects.list():
            objects.delete(key)


def _room(nodes: Sequence[Node], workers: int, cpus: float, gpus: float) -> tuple[int, list[InputError]]:
    fitting = sum(node.holds(cpus, gpus) for node in nodes)
    kinds = Counter(_amount(node.cpus, node.gpus) for node in nodes)
    there = "the cluster has " + ", ".join(f"{count} x {kind}" for kind, count in kinds.items())
    if fitting >= workers:
        return fitting // workers, []
    if fitting:
        remedy = (
            f"{there}, room for {fitting} workers of {_amount(cpus, gpus)}: ask for at most {fitting}, or add nodes"
        )
        return 0, [InputError("resources.workers_per_trial", workers, remedy)]
    field, value = ("gpus", gpus) if any(node.holds(cpus, 0) for node in nodes) else ("cpus", cpus)
    remedy = f"{there}, and a worker of {_amount(cpus, gpus)} must fit on one node: ask for less, or add larger nodes"
    return 0, [InputError(f"resources.{field}_per_worker", value, remedy)]


def _amount(cpus: float, gpus: float) -> str:
    return f"{cpus:g} CPU and {gpus:g} GPU" if gpus else f"{cpus:g} CPU"


def _space(storage: Path) -> list[InputError]:
    free = shutil.disk_usage(storage).free
    if free >= MIN_FREE_BYTES:
        return []
    needed = f"{MIN_FREE_BYTES / 1e9:g} GB"
    remedy = f"{free / 1e9:.2f} GB are free there: make room for at least {needed}, or name a folder on another disk"
    return [InputError("--out", str(storage), remedy)]


def _storage(
    nodes: Sequence[Node], answers: dict[str, Answer], storage: str, place: Place, nonce: str
) -> list[InputError]:
    """Finds nodes that do not share ``storage`` with the driver."""
    found: dict[str, list[Node]] = {}
    for node in nodes:
        answer = answers[node.node_id]
        if "storage" not in answer:
            continue
        problem = answer["storage"]
        if problem is None:
            with suppress(OSError):
                if place.read(node.node_id) == nonce:
                    continue
            problem = "writes there, but the driver does not see it"
        found.setdefault(problem, []).append(node)
    return [
        InputError("--out", storage, f"{_names(there)} {problem}; {place.remedy}") for problem, there in found.items()
    ]


def _software(nodes: Sequence[Node], answers: dict[str, Answer], mine: dict[str, str]) -> list[InputError]:
    """Finds nodes with other software than the driver's, and nodes that did not answer."""
    found: dict[tuple[str, str], list[Node]] = {}
    for node in nodes:
        answer = answers[node.node_id]
        if "error" in answer:
            what = answer["error"], "restart Ray there, or remove the node"
        else:
            theirs = answer["software"]
            differing = [name for name in mine if theirs[name] != mine[name]]
            if not differing:
                continue
            has, driver = (", ".join(f"{name} {of[name]}" for name in differing) for of in (theirs, mine))
            what = has, f"the driver has {driver}: install the same commit with constraints.txt on every node"
        found.setdefault(what, []).append(node)
    return [InputError(f"node {_names(there)}", has, remedy) for (has, remedy), there in found.items()]


def _names(nodes: Sequence[Node]) -> str:
    return ", ".join(map(str, nodes))

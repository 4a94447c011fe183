"""Nothing of ours runs on a Ray cluster that lets strangers in."""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import grpc
import pytest

from uedp_ray.access import require_closed, require_token
from uedp_ray.errors import InputError
from uedp_ray.training.session import ray_session


@pytest.mark.parametrize(
    ("address", "mode", "allowed"),
    [
        (None, None, True),  # Ray makes a token for a session that it starts
        (None, "token", True),
        (None, "disabled", False),
        ("local", "disabled", False),
        ("auto", None, True),  # Ray takes the token of the machine, if there is one; the cluster is asked all the same
        ("auto", "disabled", False),
        ("10.0.0.1:6379", "token", True),
        ("10.0.0.1:6379", None, False),  # Ray would not use a token
        ("ray://10.0.0.1:10001", None, False),
        ("10.0.0.1:6379", "disabled", False),
        ("10.0.0.1:6379", "", False),
    ],
)
def test_a_token_is_used_or_nothing_is_connected_to(address, mode, allowed, monkeypatch):
    monkeypatch.delenv("RAY_AUTH_MODE", raising=False)
    if mode is not None:
        monkeypatch.setenv("RAY_AUTH_MODE", mode)
    if allowed:
        require_token(address)
        return
    with pytest.raises(InputError, match=r"^RAY_AUTH_MODE = ") as refused:
        require_token(address)
    assert "\n" not in str(refused.value)


def test_a_session_is_refused_before_ray_starts(monkeypatch):
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr("ray.init", lambda **_: pytest.fail("it was started"))
    monkeypatch.setattr("ray.is_initialized", lambda: False)
    with pytest.raises(InputError, match="RAY_AUTH_MODE = 'disabled': unset it"), ray_session(1):
        pytest.fail("it was opened")


@pytest.mark.parametrize(("workers", "cpus"), [(1, 7), (9, 9)])
def test_a_session_of_ours_has_the_cores_that_a_container_allows(monkeypatch, workers, cpus):
    class Started(Exception):
        pass

    def init(**settings):
        raise Started(settings["num_cpus"])

    monkeypatch.delenv("RAY_AUTH_MODE", raising=False)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr("ray.init", init)
    monkeypatch.setattr("ray.is_initialized", lambda: False)
    monkeypatch.setattr("uedp_ray.training.session.num_cores", lambda: 7)
    with pytest.raises(RuntimeError, match=f"Ray did not start: {cpus}"), ray_session(workers):
        pytest.fail("it was opened")


class Head(grpc.GenericRpcHandler):
    """What listens at the address of a cluster."""

    def __init__(self, code):
        self.code = code

    def service(self, details):
        def answer(request, context):
            if self.code is not None:
                context.abort(self.code, "no")
            return b""

        return grpc.unary_unary_rpc_method_handler(answer)


@pytest.fixture
def head():
    """head(code): the address of one that answers with a status, or to anybody."""
    servers = []

    def start(code=None):
        server = grpc.server(ThreadPoolExecutor(1), [Head(code)])
        servers.append(server)
        port = server.add_insecure_port("127.0.0.1:0")
        server.start()
        return f"127.0.0.1:{port}"

    yield start
    for server in servers:
        server.stop(None)


def test_only_a_cluster_that_refuses_a_stranger_will_do(head, monkeypatch):
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    require_closed(head(grpc.StatusCode.UNAUTHENTICATED))
    with pytest.raises(InputError, match=r"Ray cluster = '127.*': answers anyone: start every node with RAY_AUTH_MODE"):
        require_closed(head())
    for code in (grpc.StatusCode.UNIMPLEMENTED, grpc.StatusCode.UNAVAILABLE):
        with pytest.raises(InputError, match=f"does not say whether it requires a token .{code.name}"):
            require_closed(head(code))


REAL = """
import ray
from uedp_ray.access import require_closed
ray.init(address="local", num_cpus=1, include_dashboard=False, log_to_driver=False, logging_level="error")
require_closed(ray.get_runtime_context().gcs_address)
"""


@pytest.mark.slow
def test_a_real_cluster_without_tokens_is_found_open():
    """That one with tokens is found closed shows in whatever else starts Ray from the command line."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    environment["RAY_AUTH_MODE"] = "disabled"
    done = subprocess.run([sys.executable, "-c", REAL], env=environment, capture_output=True, text=True)
    assert done.returncode == 1
    assert "answers anyone: start every node with RAY_AUTH_MODE=token" in done.stderr

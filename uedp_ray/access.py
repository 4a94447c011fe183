"""Access to a Ray cluster: nothing of ours runs on a cluster that lets anyone in without a token.

Anyone who can reach one of Ray's ports can run programs as its user and read the text. Ray 2.60 opens ports on every
interface, even for a session on one machine. It requires a token in sessions that it starts itself, unless told not to, and
elsewhere only where ``RAY_AUTH_MODE=token`` is set for the nodes and for every client.
"""

from __future__ import annotations

import os

from uedp_ray.errors import InputError

_REMEDY = (
    "export RAY_AUTH_MODE=token and the cluster's token (docs/cluster.md): without one, a port runs anyone's programs"
)
_TIMEOUT = 10.0


def require_token(address: str | None) -> None:
    """Checks before a connection to ``address`` (None: our own session). Raises: InputError if no token would be used."""
    mode = os.environ.get("RAY_AUTH_MODE")
    at_once = address in (None, "local", "auto")  # where Ray itself looks for a token
    if mode != "token" and not (mode is None and at_once):
        raise InputError("RAY_AUTH_MODE", mode, "unset it, or set it to token" if address is None else _REMEDY)


def require_closed(address: str) -> None:
    """Checks the cluster whose head listens at ``address`` (HOST:PORT). Raises: InputError unless it refuses strangers."""
    import grpc

    plain = [("grpc.enable_http_proxy", 0)]
    with grpc.insecure_channel(address, plain) as channel:
        try:
            channel.unary_unary("/ray.rpc.NodeInfoGcsService/CheckAlive")(b"", timeout=_TIMEOUT)
            found = "answers anyone"
        except grpc.RpcError as error:
            if error.code() == grpc.StatusCode.UNAUTHENTICATED:
                return
            found = f"does not say whether it requires a token ({error.code().name})"
    remedy = f"{found}: start every node with RAY_AUTH_MODE=token and one token (docs/cluster.md)"
    raise InputError("Ray cluster", address, remedy)

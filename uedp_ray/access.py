"""Who gets into a Ray cluster: nobody without a token, or nothing of ours runs there.

Whoever reaches a port of Ray runs programs as its user and reads the text. Ray 2.60 opens ports on every interface, also
of a session on one machine; it asks for a token in sessions that it starts itself, unless asked not to, and elsewhere only
where ``RAY_AUTH_MODE=token`` is set for the nodes and for whoever connects.
"""

from __future__ import annotations

import os

from uedp_ray.errors import InputError

_REMEDY = (
    "export RAY_AUTH_MODE=token and the cluster's token (docs/cluster.md): a port without one runs anybody's programs"
)
_TIMEOUT = 10.0


def require_token(address: str | None) -> None:
    """Before connecting to ``address`` (None: a session of our own). Raises: InputError where no token would be used."""
    mode = os.environ.get("RAY_AUTH_MODE")
    at_once = address in (None, "local", "auto")  # where Ray itself looks for a token
    if mode != "token" and not (mode is None and at_once):
        raise InputError("RAY_AUTH_MODE", mode, "unset it, or set it to token" if address is None else _REMEDY)


def require_closed(address: str) -> None:
    """Of the cluster whose head listens at ``address`` (HOST:PORT). Raises: InputError unless it refuses a stranger."""
    import grpc

    plain = [("grpc.enable_http_proxy", 0)]
    with grpc.insecure_channel(address, plain) as channel:
        try:
            channel.unary_unary("/ray.rpc.NodeInfoGcsService/CheckAlive")(b"", timeout=_TIMEOUT)
            found = "answers anybody"
        except grpc.RpcError as error:
            if error.code() == grpc.StatusCode.UNAUTHENTICATED:
                return
            found = f"does not say whether it asks for a token ({error.code().name})"
    remedy = f"{found}: start every node with RAY_AUTH_MODE=token and one token (docs/cluster.md)"
    raise InputError("Ray cluster", address, remedy)

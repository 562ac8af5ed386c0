"""Ask a broker over gRPC, whose library does the speaking."""

from __future__ import annotations

import os
from typing import Any

from assay.conformance.wire.grpc import HEALTH

# Brokers are started by fork and exec, which its handlers disturb.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")


def open_channel(host: str, port: int) -> Any:
    """A channel of its own, which shares no connection with another."""
    import grpc

    options = (("grpc.use_local_subchannel_pool", 1), ("grpc.enable_retries", 0))
    return grpc.insecure_channel(f"{host}:{port}", options)


def ask_health(host: str, port: int, *, timeout_s: float) -> str:
    """The status with which a broker answers gRPC's own health check; ``UNAVAILABLE`` where nobody does."""
    return ask_status(host, port, f"/{HEALTH}/Check", timeout_s=timeout_s)


def ask_status(host: str, port: int, path: str, *, timeout_s: float, metadata: tuple[tuple[str, str], ...] = ()) -> str:
    """The name of the status that a call with an empty message ends with."""
    import grpc

    with open_channel(host, port) as channel:
        call = channel.unary_unary(path, request_serializer=bytes, response_deserializer=bytes)
        try:
            call(b"", timeout=timeout_s, metadata=metadata)
        except grpc.RpcError as error:
            return str(error.code().name)
    return "OK"

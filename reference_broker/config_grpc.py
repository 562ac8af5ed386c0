"""The configuration of gRPC; what requests may take together stands in ``http``, and holds for both."""

from __future__ import annotations

from assay.reference_broker.config_mqtt import Section


class GrpcConfig(Section, frozen=True, kw_only=True):
    """Of every listener that speaks gRPC."""

    max_message_bytes: int = 4 * 1024 * 1024
    """Of one message, in or out; none is compressed."""
    max_metadata_bytes: int = 16_384
    """Of the headers of a call."""
    max_streams: int = 100
    """Calls at once on one connection; a client's library waits with further ones."""
    max_calls: int = 1_256
    """Calls at once of a listener, streams included: each may hold one message."""
    max_buffered: int = 256
    """Unsettled messages of a consumer's stream that names no number, and of any stream those that are on their way to
    it, or being published for it."""
    idle_s: float = 300.0
    """A connection without calls is closed after it."""
    reflection: bool = True
    """Tell clients that may read what services there are."""


def grpc_problems(config: GrpcConfig) -> list[str]:
    """What is wrong, each with its key."""
    problems: list[str] = []
    if not 1_024 <= config.max_message_bytes <= 1 << 30:
        problems.append("grpc.max_message_bytes must be 1024 to 1073741824")
    if not 1_024 <= config.max_metadata_bytes <= 1 << 20:
        problems.append("grpc.max_metadata_bytes must be 1024 to 1048576")
    counts = ("max_streams", "max_calls", "max_buffered")
    problems += [f"grpc.{name} must be 1 to 1000000" for name in counts if not 1 <= getattr(config, name) <= 1_000_000]
    if not 0.01 <= config.idle_s <= 86_400:
        problems.append("grpc.idle_s must be 0.01 to 86400")
    return problems

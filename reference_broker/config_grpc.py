"""The configuration of gRPC; what requests may take together stands in ``http``, and holds for both."""

from __future__ import annotations

from typing import Annotated

from assay.reference_broker.config_mqtt import Section
from assay.reference_broker.config_numbers import Range


class GrpcConfig(Section, frozen=True, kw_only=True):
    """Of every listener that speaks gRPC."""

    max_message_bytes: Annotated[int, Range(1_024, 1 << 30)] = 4 * 1024 * 1024
    """Of one message, in or out; none is compressed."""
    max_metadata_bytes: Annotated[int, Range(1_024, 1 << 20)] = 16_384
    """Of the headers of a call."""
    max_streams: Annotated[int, Range(1, 1_000_000)] = 100
    """Calls at once on one connection; a client's library waits with further ones."""
    max_calls: Annotated[int, Range(1, 1_000_000)] = 1_256
    """Calls at once of a listener, streams included: each may hold one message."""
    max_buffered: Annotated[int, Range(1, 1_000_000)] = 256
    """Unsettled messages of a consumer's stream that names no number, and of any stream those that are on their way to
    it, or being published for it."""
    idle_s: Annotated[float, Range(0.01, 86_400)] = 300.0
    """A connection without calls is closed after it."""
    reflection: bool = True
    """Tell clients that may read what services there are."""

"""Messages for one queue that are enqueued together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from assay.reference_broker.routing.message import Message


class Origin(NamedTuple):
    """What most messages of a batch have in common."""

    topic: str
    publisher: str
    routing_key: str


class MessageBatch(NamedTuple):
    """Messages, and by column what they have: nothing else than this, and no user property that is an option."""

    messages: Sequence[Message]
    payloads: Sequence[bytes]
    properties: Sequence[tuple[tuple[str, str], ...]] | None
    """The user properties of each; None = nobody has any."""
    origins: Origin | Sequence[Origin]
    """Of all of them, or of each."""

"""Where messages come from, and what many of them have in common."""

from __future__ import annotations

import msgspec

from assay.reference_broker.routing.message import Message


class Origin(msgspec.Struct, frozen=True, eq=False, gc=False):
    """What most messages of a batch have in common."""

    topic: str
    publisher: str
    routing_key: str
    like: Message | None = None
    """A message that has all that they have beside payload and user properties; None = nothing. No time to live."""
    is_common: bool = True
    """Others will come that are like it, so that it is worth remembering."""

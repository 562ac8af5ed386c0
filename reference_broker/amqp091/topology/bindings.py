"""A binding, where it leads, and where messages go."""

from __future__ import annotations

from collections.abc import Hashable
from enum import StrEnum
from typing import NamedTuple

import msgspec

from assay.reference_broker.amqp091.topology.arguments import Arguments, identity_of


class DestinationKind(StrEnum):
    QUEUE = "queue"
    EXCHANGE = "exchange"


class Destination(NamedTuple):
    """Of bindings, and of messages on their way."""

    kind: DestinationKind
    name: str


class Binding(msgspec.Struct, kw_only=True, eq=False):
    """From an exchange to a queue or to another exchange. Nothing of it changes."""

    source: str
    destination: Destination
    routing_key: str
    arguments: Arguments = ()
    number: int = 0
    """Of its record; 0 = it is not durable, and has none."""

    @property
    def identity(self) -> Hashable:
        """Of the bindings of one source: two with the same are one (queue.bind.duplicates)."""
        return self.destination, self.routing_key, identity_of(self.arguments)

    def in_words(self) -> str:
        return f"the binding of {self.destination.kind} '{self.destination.name}' to exchange '{self.source}'"


class Routing(msgspec.Struct, frozen=True):
    """Where a message goes."""

    queues: tuple[str, ...] = ()
    """Each once (queue.bind.unique), sorted. None: it is returned if it is mandatory."""

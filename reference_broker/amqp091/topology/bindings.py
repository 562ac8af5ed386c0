"""A binding, where it leads, and where messages go."""

from __future__ import annotations

from collections.abc import Hashable
from enum import StrEnum
from typing import Final, NamedTuple

import msgspec

from assay.reference_broker.amqp091.topology.arguments import Arguments, arguments_bytes, identity_of

_BINDING_BYTES: Final = 1_000
_WORD_BYTES: Final = 350
_ARGUMENT_COPIES: Final = 3
"""As they are, as what makes a binding the same, as what is looked for."""


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

    @property
    def size_bytes(self) -> int:
        """As it takes in memory at most, in the tables as well: patterns word by word."""
        words = self.routing_key.count(".") + 1
        return _BINDING_BYTES + _WORD_BYTES * words + _ARGUMENT_COPIES * arguments_bytes(self.arguments)

    def in_words(self) -> str:
        return f"the binding of {self.destination.kind} '{self.destination.name}' to exchange '{self.source}'"


class Routing(msgspec.Struct, frozen=True):
    """Where a message goes."""

    queues: tuple[str, ...] = ()
    """Each once (queue.bind.unique), sorted. None: it is returned if it is mandatory."""

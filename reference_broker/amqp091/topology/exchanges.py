"""An exchange: what it was declared as, and its bindings."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Final

from assay.reference_broker.amqp091.topology.arguments import Arguments, arguments_bytes, first_fields
from assay.reference_broker.amqp091.topology.bindings import Binding, Destination, DestinationKind, Routing
from assay.reference_broker.amqp091.topology.tables import TABLES, ExchangeKind, Table
from assay.reference_broker.routing.properties import Kind
from assay.reference_broker.routing.remembered import Known, SharedMemory

ALTERNATE_EXCHANGE: Final = "alternate-exchange"
DEFAULT_EXCHANGE: Final = ""
PREDECLARED: Final[dict[str, ExchangeKind]] = {
    "amq.direct": ExchangeKind.DIRECT,
    "amq.fanout": ExchangeKind.FANOUT,
    "amq.topic": ExchangeKind.TOPIC,
    "amq.headers": ExchangeKind.HEADERS,
    "amq.match": ExchangeKind.HEADERS,
}
RESERVED_PREFIX: Final = "amq."
_EXCHANGE_BYTES: Final = 1_500
MOST_ROUTES: Final = 10_000
"""Remembered of one exchange."""


class Exchange:
    """To be read; :class:`VirtualHost` changes it."""

    __slots__ = (
        "alternate",
        "arguments",
        "auto_delete",
        "bindings",
        "durable",
        "internal",
        "kind",
        "known",
        "leads_over",
        "name",
        "seen_by",
        "table",
        "was_bound",
    )

    def __init__(
        self,
        name: str,
        kind: ExchangeKind,
        memory: SharedMemory,
        *,
        durable: bool,
        auto_delete: bool = False,
        internal: bool = False,
        arguments: Arguments = (),
        table: Table | None = None,
    ) -> None:
        self.name = name
        self.kind = kind
        self.durable = durable
        self.auto_delete = auto_delete
        self.internal = internal
        self.arguments = arguments
        alternate = first_fields(arguments).get(ALTERNATE_EXCHANGE)
        self.alternate: str | None = alternate.value if alternate is not None and alternate.kind is Kind.TEXT else None
        self.bindings: dict[Hashable, Binding] = {}
        """Those that it is the source of, by their identity."""
        self.was_bound = False
        """It had a binding; when it has none again it goes, if it is auto-delete."""
        self.table: Table = TABLES[kind]() if table is None else table
        self.known: Known[str | None, Routing] = Known(memory, MOST_ROUTES)
        """Where messages went that were published to it, by routing key; None = whatever the key is."""
        self.seen_by: dict[Exchange, None] = {}
        """Those whose remembered routes lead over this one, itself among them."""
        self.leads_over: dict[Exchange, None] = {}
        """The opposite."""

    @property
    def destination(self) -> Destination:
        return Destination(DestinationKind.EXCHANGE, self.name)

    @property
    def size_bytes(self) -> int:
        """As it takes in memory, without its bindings."""
        return _EXCHANGE_BYTES + arguments_bytes(self.arguments)

    def remember(self, key: str | None, routing: Routing, length: int, size: int, way: list[Exchange]) -> None:
        """A route from here; ``way``: all exchanges that were asked for it."""
        self.known.remember(key, routing, length, size)
        for exchange in way:
            exchange.seen_by[self] = None
            self.leads_over[exchange] = None

    def forget_own_routes(self) -> None:
        """Those from here."""
        self.known.let_go()
        for exchange in self.leads_over:
            del exchange.seen_by[self]
        self.leads_over.clear()

    def forget_routes(self) -> None:
        """It leads to other places now."""
        for entry in tuple(self.seen_by):
            entry.forget_own_routes()

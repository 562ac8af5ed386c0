"""The way of a message from an exchange to queues: over bindings between exchanges, and alternate exchanges."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from assay.reference_broker.amqp091.topology.arguments import Arguments, first_fields, type_name
from assay.reference_broker.amqp091.topology.bindings import Destination, DestinationKind, Routing
from assay.reference_broker.amqp091.topology.exchanges import Exchange
from assay.reference_broker.amqp091.topology.refusals import precondition_failed
from assay.reference_broker.routing.properties import Kind

CC: Final = "CC"
BCC: Final = "BCC"
"""To be removed from what is delivered (rmq.sender-selected)."""
_RULE: Final = "rmq.sender-selected"
_SELECTORS: Final = frozenset({CC, BCC})
_NAME_BYTES: Final = 16
"""What a queue takes in a route that is remembered, beside its name, which is kept elsewhere."""
_ROUTE_BYTES: Final = 512


NOWHERE: Final = Routing()


def routing_keys_of(routing_key: str, headers: Arguments, most: int) -> Sequence[str]:
    """The key, and those that the headers ``CC`` and ``BCC`` add, each once.

    Raises :class:`AmqpError` when they are no lists, and for more than ``most``. What is no text in them is no key.
    """
    keys = {routing_key: None}
    fields = first_fields([field for field in headers if field[0] in (CC, BCC)])
    for name in (CC, BCC):
        given = fields.get(name)
        if given is None:
            continue
        if given.kind not in (Kind.ARRAY, Kind.LIST):
            text = f"invalid message: unacceptable type in header '{name}': {type_name(given)}"
            raise precondition_failed(text, _RULE)
        keys |= dict.fromkeys([each.value for each in given.value if each.kind is Kind.TEXT])
        if len(keys) > most:
            raise precondition_failed(f"invalid message: more than {most} routing keys", _RULE)
    return tuple(keys)


def selects_keys(headers: Arguments) -> bool:
    """Whether headers may add routing keys."""
    return not _SELECTORS.isdisjoint([name for name, _ in headers])


def find_route(exchanges: Mapping[str, Exchange], entry: Exchange, keys: Sequence[str], headers: Arguments) -> Routing:
    """Follow all bindings from ``entry``; each exchange is asked once, so that cycles end (exchange.bind.unique).

    An exchange where nothing matched hands the message to its alternate, as long as that one exists.
    """
    queues: dict[str, None] = {}
    seen = {entry.name: entry}
    waiting = [entry]
    looks_at_key = looks_at_headers = is_open = False
    for exchange in waiting:
        table = exchange.table
        looks_at_key = looks_at_key or table.looks_at_key
        looks_at_headers = looks_at_headers or table.looks_at_headers
        found = table.find(keys, headers)
        if not found and exchange.alternate is not None:
            found = (Destination(DestinationKind.EXCHANGE, exchange.alternate),)
            # It may be declared later.
            is_open = is_open or exchange.alternate not in exchanges
        for kind, name in found:
            if kind is DestinationKind.QUEUE:
                queues[name] = None
            elif name not in seen and (following := exchanges.get(name)) is not None:
                seen[name] = following
                waiting.append(following)
    routing = Routing(tuple(sorted(queues))) if queues else NOWHERE
    if len(keys) == 1 and not looks_at_headers and not is_open:
        key = keys[0] if looks_at_key else None
        length = len(keys[0]) if looks_at_key else 0
        size = _ROUTE_BYTES + 4 * length + _NAME_BYTES * len(queues)
        entry.remember(key, routing, length, size, waiting)
    return routing

"""A virtual host to try things on, and short ways to say arguments."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from assay.reference_broker.amqp091.topology import Arguments, QueueRecord, Topology, TopologyLimits, VirtualHost
from assay.reference_broker.amqp091.wire.replies import AmqpError
from assay.reference_broker.routing.properties import Kind, Typed


def text(value: str) -> Typed:
    return Typed(Kind.TEXT, value)


def number(value: int, kind: Kind = Kind.I32) -> Typed:
    return Typed(kind, value)


def texts(*values: str) -> Typed:
    return Typed(Kind.LIST, tuple([text(value) for value in values]))


VOID = Typed(Kind.NULL, None)


def fields(**values: Typed) -> Arguments:
    """Names are written with an underscore for a hyphen."""
    return tuple([(name.replace("_", "-"), value) for name, value in values.items()])


def host(*queues: str, limits: TopologyLimits | None = None) -> VirtualHost:
    vhost = Topology(limits).vhost("/")
    for queue in queues:
        vhost.add_queue(QueueRecord(name=queue))
    return vhost


def refused(act: Callable[[], object]) -> tuple[int, str, str]:
    """Code, text and rule of a request that is refused."""
    with pytest.raises(AmqpError) as found:
        act()
    return int(found.value.code), found.value.text, found.value.rule

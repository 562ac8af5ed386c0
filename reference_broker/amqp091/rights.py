"""What the access rules of a broker mean over AMQP: configure, write and read, on topics.

A queue is the topic that addresses it, ``$queue/<name>``; an exchange is ``$exchange/<name>``, but ``amq.topic`` is the
topics of MQTT themselves.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

from assay.reference_broker.amqp091.names import engine_name
from assay.reference_broker.amqp091.topology import mqtt_topic_of
from assay.reference_broker.amqp091.wire.replies import AmqpError, Reply
from assay.reference_broker.queues.messages.address import topic_of

if TYPE_CHECKING:
    from assay.reference_broker.core.access import Grants

TOPICS: Final = "amq.topic"


class Bearer(Protocol):
    """Who has rights."""

    asserted_name: str
    """What it says its name is."""
    grants: Grants | None
    """None = it may do everything."""


def _refused(connection: Bearer, right: str, what: str) -> AmqpError:
    text = f"{right} access to {what} refused for user '{connection.asserted_name[:80]}'"
    return AmqpError(Reply.ACCESS_REFUSED, text, rule="sec.2.3.6.exceptions")


def exchange_topic(exchange: str, routing_key: str = "") -> str:
    """The topic that an exchange, or a publish to it, is to the access rules."""
    topic = mqtt_topic_of(routing_key) if exchange == TOPICS and routing_key else None
    return f"$exchange/{engine_name(exchange)}" if topic is None else topic


def check_queue(connection: Bearer, queue: str, *, read: bool) -> None:
    """Reading is consuming and purging; the rest needs the right to write. Raises :class:`AmqpError` (403)."""
    grants = connection.grants
    if grants is None:
        return
    topic = topic_of(engine_name(queue), "")
    if not (grants.may_subscribe(topic) if read else grants.may_publish(topic)):
        raise _refused(connection, "read" if read else "write", f"queue '{queue[:80]}'")


def check_exchange(connection: Bearer, exchange: str, *, read: bool = False, routing_key: str = "") -> None:
    """Binding to one reads it; publishing, declaring and deleting writes. Raises :class:`AmqpError` (403)."""
    grants = connection.grants
    if grants is None:
        return
    topic = exchange_topic(exchange, routing_key)
    if not (grants.may_subscribe(topic) if read else grants.may_publish(topic)):
        raise _refused(connection, "read" if read else "write", f"exchange '{exchange[:80]}'")

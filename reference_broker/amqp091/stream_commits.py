"""Commits of readers of streams: a message to ``$queue/<queue>/$commit`` on the default exchange.

Its headers are ``x-group-id`` and ``x-offset``, the next offset to read. All that the group was given below that counts
as read. So readers with ``x-auto-commit`` false say how far they are, whatever they have acknowledged.
"""

from __future__ import annotations

from typing import Final

from assay.reference_broker.amqp091 import rights
from assay.reference_broker.amqp091.handles import ChannelHandle
from assay.reference_broker.amqp091.topology.arguments import INTEGERS
from assay.reference_broker.amqp091.wire.fields import Table
from assay.reference_broker.amqp091.wire.replies import AmqpError, Reply
from assay.reference_broker.queues.jobs.confirms import Confirm
from assay.reference_broker.queues.messages.address import QUEUE_PREFIX
from assay.reference_broker.routing.properties import Kind

_SUFFIX: Final = "/$commit"
GROUP_ID, OFFSET = "x-group-id", "x-offset"


def committed_stream(routing_key: str) -> str:
    """The stream that a routing key commits; empty = none."""
    if not routing_key.endswith(_SUFFIX) or not routing_key.startswith(QUEUE_PREFIX):
        return ""
    return routing_key[len(QUEUE_PREFIX) : -len(_SUFFIX)]


def commit(channel: ChannelHandle, stream: str, headers: Table, now: float, on_done: Confirm) -> None:
    """``on_done`` is called when it is durable. Raises :class:`AmqpError` (403, 404, 406), :class:`QueueError`."""
    connection, service, vhost = channel.connection, channel.service, channel.vhost
    fields = dict(headers)
    group, offset = fields.get(GROUP_ID), fields.get(OFFSET)
    if group is None or group.kind is not Kind.TEXT or offset is None or offset.kind not in INTEGERS:
        text = f"a commit has the headers {GROUP_ID}, a text, and {OFFSET}, an integer"
        raise AmqpError(Reply.PRECONDITION_FAILED, text, rule="rmq.x-queue-type")
    rights.check_queue(connection, stream, read=True)
    record = service.find(vhost, stream, connection)
    if not service.use_of(vhost, record).arguments.is_stream:
        raise AmqpError(Reply.PRECONDITION_FAILED, f"'{stream[:80]}' is no stream", rule="rmq.x-queue-type")
    consumer = channel.consuming.reader_of(record, group.value)
    if consumer is None:
        text = f"the channel has no consumer of the stream '{stream[:80]}' in the group '{group.value[:80]}'"
        raise AmqpError(Reply.PRECONDITION_FAILED, text, rule="rmq.x-queue-type")
    name = service.engine_name(vhost, stream)
    connection.broker.engine.groups.commit(
        name, group.value, 0, offset.value, consumer_id=consumer.client_id, now=now, on_done=on_done
    )

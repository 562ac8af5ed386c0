"""The methods of the classes exchange and queue."""

from __future__ import annotations

import base64
from collections.abc import Callable
from functools import partial
from typing import Final

from assay.reference_broker.amqp091 import rights
from assay.reference_broker.amqp091.direct_replies import REPLY_TO, is_reply_name
from assay.reference_broker.amqp091.handles import ChannelHandle
from assay.reference_broker.amqp091.refusals import reply_to
from assay.reference_broker.amqp091.topology import QueueRecord, stripped
from assay.reference_broker.amqp091.wire.fields import Table
from assay.reference_broker.amqp091.wire.replies import AmqpError, Reply
from assay.reference_broker.queues import QueueError, QueueErrorCode
from assay.reference_broker.queues.jobs.confirms import Confirm

GENERATED: Final = "amq.gen-"


def exchange_declare(
    channel: ChannelHandle,
    exchange: str,
    kind: str,
    passive: bool,
    durable: bool,
    auto_delete: bool,
    internal: bool,
    no_wait: bool,
    arguments: Table,
    _now: float,
) -> None:
    name = stripped(exchange)
    if not passive:
        rights.check_exchange(channel.connection, name)
    channel.vhost.declare_exchange(
        name,
        kind,
        passive=passive,
        durable=durable,
        auto_delete=auto_delete,
        internal=internal,
        arguments=arguments,
    )
    answer_change(channel, no_wait, "exchange.declare-ok")


def exchange_delete(channel: ChannelHandle, exchange: str, if_unused: bool, no_wait: bool, _now: float) -> None:
    name = stripped(exchange)
    rights.check_exchange(channel.connection, name)
    channel.vhost.delete_exchange(name, if_unused=if_unused)
    answer_change(channel, no_wait, "exchange.delete-ok")


def exchange_binding(
    change: Callable[..., object],
    answer: str,
    channel: ChannelHandle,
    destination: str,
    source: str,
    routing_key: str,
    no_wait: bool,
    arguments: Table,
    _now: float,
) -> None:
    """``exchange.bind`` and ``exchange.unbind``."""
    rights.check_exchange(channel.connection, stripped(destination))
    rights.check_exchange(channel.connection, stripped(source), read=True)
    change(channel.vhost, stripped(destination), stripped(source), routing_key, arguments)
    answer_change(channel, no_wait, answer)


def queue_declare(
    channel: ChannelHandle,
    queue: str,
    passive: bool,
    durable: bool,
    exclusive: bool,
    auto_delete: bool,
    no_wait: bool,
    arguments: Table,
    now: float,
) -> None:
    connection, service = channel.connection, channel.service
    name = stripped(queue)
    by_server = not name and not passive
    if by_server:
        name = GENERATED + base64.urlsafe_b64encode(connection.broker.rng.randbytes(16)).decode().rstrip("=")
    elif not name:
        name = named_queue(channel, name)
    if name == REPLY_TO or is_reply_name(name):
        _declare_replies(channel, name, no_wait)
        return
    if not passive:
        rights.check_queue(connection, name, read=False)
    record = QueueRecord(
        name=name,
        durable=durable and not exclusive,
        exclusive_owner=connection if exclusive else None,
        auto_delete=auto_delete,
        arguments=arguments,
    )
    declare = partial(declare_now, channel, record, passive, by_server, no_wait)
    if not passive and connection.broker.engine.is_going(service.engine_name(channel.vhost, name)):
        # Who deletes a queue, or loses it with a connection, may declare it anew at once.
        service.when_gone(channel.vhost, name, channel.later("queue.declare", declare))
        return
    declare(now)


def declare_now(
    channel: ChannelHandle, record: QueueRecord, passive: bool, by_server: bool, no_wait: bool, now: float
) -> None:
    """A queue of that name is not about to go any more: declare it, and say so."""
    service, vhost, name = channel.service, channel.vhost, record.name
    answer = channel.answer_later()

    def declared(error: QueueError | None) -> None:
        if error is not None and error.code is not QueueErrorCode.UNKNOWN_QUEUE:
            answer(reply_to(error))
        elif no_wait or not channel.is_open:
            answer(None)
        else:
            # Somebody else may have deleted it meanwhile.
            is_there = channel.connection.broker.engine.exists(service.engine_name(vhost, name))
            ready = service.ready_count(vhost, name) if is_there else 0
            consumers = service.consumer_count(vhost, name)
            answer("queue.declare-ok", name, ready, consumers)

    service.declare(
        vhost, record, owner=channel.connection, passive=passive, by_server=by_server, now=now, on_declared=declared
    )
    channel.last_queue = name
    channel.connection.note_topology()


def _declare_replies(channel: ChannelHandle, name: str, no_wait: bool) -> None:
    """Whether somebody waits for replies there. Raises :class:`AmqpError` (404)."""
    vhost = channel.vhost.name
    if not channel.service.replies.exists(vhost, name):
        text = f"no queue '{name[:80]}' in vhost '{vhost}'"
        raise AmqpError(Reply.NOT_FOUND, text, rule="rmq.direct-reply-to")
    if not no_wait:
        channel.send("queue.declare-ok", name, 0, 1)


def queue_bind(
    channel: ChannelHandle, queue: str, exchange: str, routing_key: str, no_wait: bool, arguments: Table, _now: float
) -> None:
    connection = channel.connection
    name = named_queue(channel, queue)
    key = routing_key if queue or routing_key else name
    rights.check_queue(connection, name, read=False)
    rights.check_exchange(connection, stripped(exchange), read=True)
    channel.service.find(channel.vhost, name, connection)
    channel.vhost.bind_queue(name, stripped(exchange), key, arguments, owner=connection)
    answer_change(channel, no_wait, "queue.bind-ok")


def queue_unbind(
    channel: ChannelHandle, queue: str, exchange: str, routing_key: str, arguments: Table, _now: float
) -> None:
    connection = channel.connection
    name = named_queue(channel, queue)
    rights.check_queue(connection, name, read=False)
    rights.check_exchange(connection, stripped(exchange), read=True)
    channel.vhost.unbind_queue(name, stripped(exchange), routing_key, arguments, owner=connection)
    answer_change(channel, False, "queue.unbind-ok")


def queue_purge(channel: ChannelHandle, queue: str, no_wait: bool, now: float) -> None:
    connection = channel.connection
    name = named_queue(channel, queue)
    rights.check_queue(connection, name, read=True)
    record = channel.service.find(channel.vhost, name, connection)
    if channel.service.use_of(channel.vhost, record).arguments.is_stream:
        raise AmqpError(Reply.NOT_IMPLEMENTED, f"a purge of the stream '{name[:80]}'", rule="rmq.x-queue-type")
    answer = channel.answer_later()

    def purged(found: int | QueueError) -> None:
        if isinstance(found, QueueError):
            answer(reply_to(found))
        elif no_wait:
            answer(None)
        else:
            answer("queue.purge-ok", found)

    connection.broker.engine.purge_queue(channel.service.engine_name(channel.vhost, name), now, purged)


def queue_delete(
    channel: ChannelHandle, queue: str, if_unused: bool, if_empty: bool, no_wait: bool, now: float
) -> None:
    connection, service, vhost = channel.connection, channel.service, channel.vhost
    name = named_queue(channel, queue)
    rights.check_queue(connection, name, read=False)
    if not service.exists(vhost, name):
        # RabbitMQ and its followers; the standard's own text wants 404 (queue.delete).
        service.when_gone(vhost, name, _told_of_end(channel, no_wait, 0))
        return
    record = service.find(vhost, name, connection)
    ready = service.ready_count(vhost, name)
    where = f"queue '{name[:80]}' in vhost '{vhost.name}'"
    if if_unused and service.consumer_count(vhost, name):
        raise AmqpError(Reply.PRECONDITION_FAILED, f"{where} in use", rule="queue.delete.if-unused.in-use")
    if if_empty and ready:
        raise AmqpError(Reply.PRECONDITION_FAILED, f"{where} not empty", rule="queue.delete.if-empty.not-empty")
    service.delete(vhost, record, now, _told_of_end(channel, no_wait, ready))


def _told_of_end(channel: ChannelHandle, no_wait: bool, ready: int) -> Confirm:
    """The answer to ``queue.delete``, whoever deleted the queue: no start may bring it back."""
    answer = channel.answer_later()

    def deleted(error: QueueError | None) -> None:
        channel.connection.note_topology()
        if error is not None:
            # It is gone for now, and may be there again after a start.
            answer(reply_to(error))
        elif no_wait:
            answer(None)
        else:
            answer("queue.delete-ok", ready)

    return deleted


def named_queue(channel: ChannelHandle, queue: str) -> str:
    """The queue that a name stands for; none stands for the last one declared on the channel (queue.bind, ...)."""
    name = stripped(queue) or channel.last_queue
    if not name:
        raise AmqpError(Reply.NOT_FOUND, "no queue was declared on this channel", rule="queue.bind.queue.queue-known")
    return name


def answer_change(channel: ChannelHandle, no_wait: bool, name: str, *values: object) -> None:
    """Say that it is done, once it is written down."""
    channel.connection.note_topology()
    if not no_wait:
        channel.send(name, *values)


HANDLERS: Final[dict[str, Callable[..., None]]] = {
    "exchange.declare": exchange_declare,
    "exchange.delete": exchange_delete,
    "exchange.bind": partial(exchange_binding, lambda vhost, *rest: vhost.bind_exchange(*rest), "exchange.bind-ok"),
    "exchange.unbind": partial(
        exchange_binding, lambda vhost, *rest: vhost.unbind_exchange(*rest), "exchange.unbind-ok"
    ),
    "queue.declare": queue_declare,
    "queue.bind": queue_bind,
    "queue.unbind": queue_unbind,
    "queue.purge": queue_purge,
    "queue.delete": queue_delete,
}

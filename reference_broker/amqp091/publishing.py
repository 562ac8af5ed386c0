"""What a channel publishes: routes, returns, confirms, transactions."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

import msgspec

from assay.reference_broker.amqp091 import rights
from assay.reference_broker.amqp091.direct_replies import REPLY_TO, is_reply_name, name_of
from assay.reference_broker.amqp091.messages import message_from
from assay.reference_broker.amqp091.names import DEFAULT_VHOST
from assay.reference_broker.amqp091.stream_commits import commit, committed_stream
from assay.reference_broker.amqp091.topology import TopologyLimits, mqtt_topic_of, routing_keys_of, stripped
from assay.reference_broker.amqp091.topology.routes import BCC
from assay.reference_broker.amqp091.transactions import SEMANTICS, Commit, Published, Transaction
from assay.reference_broker.amqp091.wire.content import NONE, BasicProperties, encode_header
from assay.reference_broker.amqp091.wire.fields import Table
from assay.reference_broker.amqp091.wire.frames import FRAME_OVERHEAD_BYTES, content_frames
from assay.reference_broker.amqp091.wire.replies import AmqpError, Reply
from assay.reference_broker.queues import QueueAddress, QueueError
from assay.reference_broker.routing.carried import as_mqtt_carries
from assay.reference_broker.routing.message import Message, changed

if TYPE_CHECKING:
    from assay.reference_broker.amqp091.channel import Channel
    from assay.reference_broker.amqp091.consuming import Settlement

_MAX_KEYS: Final = TopologyLimits().max_routing_keys


class _Publish:
    """One publish on its way to its queues."""

    __slots__ = ("failed", "left", "tag")

    def __init__(self, tag: int, left: int) -> None:
        self.tag = tag
        self.left = left
        self.failed = False


class Publishing:
    """The publishing half of a channel."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._confirms = False
        self._transaction: Transaction | None = None
        self._next_tag = 1
        self._floor = 1
        """All before it are answered."""
        self._beyond: set[int] = set()
        """Tags above it that are answered."""
        self._answered: dict[int, bool] = {}
        """Tags that are decided and not answered yet, and whether they failed."""

    # -- publishes -------------------------------------------------------------------------------------------------

    def publish(
        self,
        exchange: str,
        routing_key: str,
        mandatory: bool,
        immediate: bool,
        properties: BasicProperties,
        body: bytes,
        now: float,
    ) -> None:
        """Raises :class:`AmqpError`."""
        channel = self._channel
        connection = channel.connection
        if immediate:
            raise AmqpError(Reply.NOT_IMPLEMENTED, "immediate=true", rule="basic.publish.immediate.01")
        name = stripped(exchange)
        headers = properties.headers or ()
        self._check_keys(name, routing_key, headers)
        user = properties.user_id
        if user is not None and user != connection.asserted_name:
            text = f"user_id property set to '{user[:80]}' but authenticated user was '{connection.asserted_name[:80]}'"
            raise AmqpError(Reply.PRECONDITION_FAILED, text, rule="rmq.user-id.validated")
        if properties.reply_to == REPLY_TO:
            properties = msgspec.structs.replace(properties, reply_to=name_of(channel))
        vhost, service = channel.vhost, channel.service
        queues = vhost.route(name, routing_key, headers).queues
        if [queue for queue in queues if not service.exists(vhost, queue)]:
            # They were deleted over another protocol, and their bindings are gone with them now.
            queues = vhost.route(name, routing_key, headers).queues
        if not queues and not name and (stream := committed_stream(routing_key)):
            self._commit_stream(stream, headers, now)
            return
        connection.broker.work += len(queues) >> 1
        if not name and (headers or is_reply_name(routing_key)):
            self._reply(routing_key, properties, body)
        message = message_from(properties, body, name, routing_key, connection.client_id, now)
        tag = 0
        if self._confirms:
            tag = self._next_tag
            self._next_tag += 1
        topical = self._for_topics(name, routing_key, message)
        transaction = self._transaction
        if transaction is not None:
            give_back = partial(self._return, name, routing_key, properties, body) if mandatory else None
            if queues or topical is not None or give_back is not None:
                transaction.add(Published(message, queues, topical, give_back), channel)
            return
        if not queues and topical is not None:
            # Nobody can say beforehand who listens.
            mandatory = not connection.broker.publish(topical, connection, now) and mandatory
            topical = None
        if not queues and topical is None:
            if mandatory:
                self._return(name, routing_key, properties, body)
            if tag:
                self._answer(tag, failed=False)
            return
        if topical is not None:
            connection.broker.publish(topical, connection, now)
        self._enqueue(message, queues, _Publish(tag, len(queues)), now)

    def _commit_stream(self, stream: str, headers: Table, now: float) -> None:
        """See :func:`commit`; it is part of no transaction."""
        tag = 0
        if self._confirms:
            tag = self._next_tag
            self._next_tag += 1

        def committed(error: QueueError | None) -> None:
            if tag:
                self._answer(tag, failed=error is not None)

        commit(self._channel, stream, headers, now, committed)

    def _check_keys(self, exchange: str, routing_key: str, headers: Table) -> None:
        """Whether the client may publish there, with each of its keys; queues that came over MQTT are found by theirs.

        Raises :class:`AmqpError` (403, 406).
        """
        channel = self._channel
        connection, service, vhost = channel.connection, channel.service, channel.vhost
        if exchange and connection.grants is None:
            return
        for key in routing_keys_of(routing_key, headers, _MAX_KEYS) if headers else (routing_key,):
            if exchange:
                rights.check_exchange(connection, exchange, routing_key=key)
                continue
            if is_reply_name(key):
                # Who knows the name may reply.
                continue
            rights.check_queue(connection, key, read=False)
            service.exists(vhost, key)

    def _reply(self, routing_key: str, properties: BasicProperties, body: bytes) -> None:
        """Those keys that are names for direct replies lead there, and to no queue."""
        channel, headers = self._channel, properties.headers or ()
        if any(name == BCC for name, _ in headers):
            kept = tuple([field for field in headers if field[0] != BCC])
            properties = msgspec.structs.replace(properties, headers=kept or None)
        for key in dict.fromkeys(routing_keys_of(routing_key, headers, _MAX_KEYS)):
            if is_reply_name(key):
                channel.service.replies.deliver(channel.vhost.name, key, properties, body)

    def _for_topics(self, exchange: str, routing_key: str, message: Message) -> Message | None:
        """What of ``amq.topic`` goes to subscribers of MQTT; None = nothing does."""
        topic = mqtt_topic_of(routing_key) if exchange == rights.TOPICS else None
        if topic is None or self._channel.vhost.name != DEFAULT_VHOST:
            return None
        kept = message.properties
        is_persistent = kept is not None and kept.durable is True
        return changed(as_mqtt_carries(message), topic=topic, qos=int(is_persistent))

    def _enqueue(self, message: Message, queues: tuple[str, ...], publish: _Publish, now: float) -> None:
        channel = self._channel
        connection = channel.connection
        broker = connection.broker

        def confirmed(error: QueueError | None) -> None:
            connection.confirmed()
            publish.left -= 1
            if error is not None:
                publish.failed = True
            if not publish.left and publish.tag:
                self._answer(publish.tag, failed=publish.failed)

        service, kept = channel.service, message.properties
        priority = None if kept is None else kept.priority
        for queue in queues:
            place, options = service.place_of(channel.vhost, queue, priority)
            address = QueueAddress(queue=place)
            connection.unconfirmed += 1
            broker.enqueue(address, message, options, connection, now, confirmed)
            if broker.engine.is_pressed(address):
                connection.press()

    def _return(self, exchange: str, routing_key: str, properties: BasicProperties, body: bytes) -> None:
        """basic.publish.mandatory.01"""
        channel = self._channel
        channel.send("basic.return", int(Reply.NO_ROUTE), "NO_ROUTE", exchange, routing_key)
        connection = channel.connection
        header = header_of(len(body), properties, connection.frame_max_bytes)
        connection.send(content_frames(channel.number, header, body, connection.frame_max_bytes))

    # -- confirms ----------------------------------------------------------------------------------------------------

    def select_confirms(self, no_wait: bool, _now: float) -> None:
        if self._transaction is not None:
            raise AmqpError(Reply.PRECONDITION_FAILED, "cannot switch from tx to confirm mode", rule=SEMANTICS)
        self._confirms = True
        if not no_wait:
            self._channel.send("confirm.select-ok")

    def _answer(self, tag: int, *, failed: bool) -> None:
        self._answered[tag] = failed
        self._channel.connection.flush_later(self._channel)

    def flush(self) -> None:
        """End of a turn: what is decided is answered, as many at once as come one after the other."""
        answered, beyond = self._answered, self._beyond
        if not answered or not self._channel.is_open:
            return
        channel = self._channel
        floor = last = self._floor
        up_to = 0
        while True:
            if answered.get(last) is False:
                del answered[last]
                up_to = last
            elif last in beyond:
                beyond.discard(last)
            else:
                break
            last += 1
        self._floor = last
        if up_to:
            channel.send("basic.ack", up_to, up_to > floor)
        for tag, failed in sorted(answered.items()):
            if failed:
                channel.send("basic.nack", tag, False, False)
            else:
                channel.send("basic.ack", tag, False)
        beyond |= answered.keys()
        answered.clear()

    # -- transactions ------------------------------------------------------------------------------------------------

    @property
    def transaction(self) -> Transaction | None:
        """The open one."""
        return self._transaction

    def settle_later(self, settlement: Settlement) -> None:
        """A settlement within the transaction."""
        assert self._transaction is not None
        self._transaction.add_settlement(settlement, self._channel)

    def select_tx(self, _now: float) -> None:
        if self._confirms:
            raise AmqpError(Reply.PRECONDITION_FAILED, "cannot switch from confirm to tx mode", rule=SEMANTICS)
        if self._transaction is None:
            self._transaction = Transaction()
        self._channel.send("tx.select-ok")

    def _taken(self) -> Transaction:
        transaction = self._transaction
        if transaction is None:
            raise AmqpError(Reply.PRECONDITION_FAILED, "channel is not transactional", rule="tx.commit.transacted")
        self._transaction = Transaction()
        return transaction

    def commit(self, now: float) -> None:
        Commit(self._channel, self._taken()).begin(now)

    def rollback(self, _now: float) -> None:
        transaction = self._taken()
        transaction.give_room_back(self._channel)
        self._channel.consuming.take_back(transaction.settlements)
        self._channel.send("tx.rollback-ok")

    def end(self) -> None:
        """The channel is over: nothing is answered any more."""
        self._answered.clear()
        if self._transaction is not None:
            self._transaction.give_room_back(self._channel)
            self._transaction = Transaction()


def header_of(size: int, properties: BasicProperties, max_bytes: int) -> bytes:
    """A content header in a frame of ``max_bytes``: it cannot be cut, so that headers which do not fit are left out."""
    if properties is NONE:
        return b"\x00\x3c\x00\x00%b\x00\x00" % size.to_bytes(8, "big")
    header = encode_header(size, properties)
    if len(header) > max_bytes - FRAME_OVERHEAD_BYTES:
        header = encode_header(size, msgspec.structs.replace(properties, headers=None))
    return header

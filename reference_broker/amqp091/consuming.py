"""What a channel consumes: consumers, gets, what they hold unacknowledged, prefetch, recovery."""

from __future__ import annotations

from operator import attrgetter
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from assay.reference_broker.amqp091 import rights
from assay.reference_broker.amqp091.consumer_arguments import parse_consumer
from assay.reference_broker.amqp091.declarations import named_queue
from assay.reference_broker.amqp091.direct_replies import REPLY_TO, ReplyConsumer
from assay.reference_broker.amqp091.messages import properties_of, with_offset
from assay.reference_broker.amqp091.names import GROUP, amqp_name
from assay.reference_broker.amqp091.publishing import header_of
from assay.reference_broker.amqp091.topology import QueueRecord
from assay.reference_broker.amqp091.wire.fields import Table
from assay.reference_broker.amqp091.wire.frames import FrameType, content_frames, frame
from assay.reference_broker.amqp091.wire.methods import BY_NAME, encode_method
from assay.reference_broker.amqp091.wire.replies import AmqpError, Reply
from assay.reference_broker.queues import Consumer, Delivery, Outcome, QueueAddress, QueueError, QueueErrorCode
from assay.reference_broker.queues.groups.pending import UNLIMITED
from assay.reference_broker.queues.groups.subscribe_options import LATEST, SubscribeOptions
from assay.reference_broker.queues.jobs.confirms import Confirm, ignore
from assay.reference_broker.queues.messages.address import QUEUE_PREFIX
from assay.reference_broker.queues.messages.publish_options import TransactionKey

if TYPE_CHECKING:
    from assay.reference_broker.amqp091.channel import Channel
    from assay.reference_broker.amqp091.wire.content import BasicProperties
    from assay.reference_broker.core.tenant import Tenant

_DELIVER, _GET_OK = BY_NAME["basic.deliver"], BY_NAME["basic.get-ok"]
MQTT_EXCHANGE = "$queue"
"""Where a message came from that was not published over AMQP."""


class AmqpConsumer:
    """One consumer, as a client of the engine: each has a name of its own there."""

    __slots__ = (
        "channel",
        "client_id",
        "consumer",
        "held",
        "is_cancelled",
        "is_exclusive",
        "is_stream",
        "may_administer",
        "no_ack",
        "prefetch",
        "record",
        "served_at",
        "tag",
        "tenant",
        "username",
    )
    tenant: Tenant | None

    def __init__(self, channel: Channel, record: QueueRecord, tag: str, client_id: str, *, no_ack: bool) -> None:
        connection = channel.connection
        self.channel = channel
        self.record = record
        self.tag = tag
        """Empty for the one that gets."""
        self.client_id = client_id
        self.username = connection.username
        self.tenant = connection.tenant
        self.may_administer = connection.may_administer
        self.no_ack = no_ack
        self.is_exclusive = False
        self.is_stream = False
        """It reads a stream: whatever it says of a message, that stays where it is."""
        self.prefetch = 0
        """Of one that commits by itself what it reads: acknowledgements ask for more, and do nothing else."""
        self.held = 0
        """Deliveries that it was given and that are not settled."""
        self.served_at = 0
        """The tag of its last delivery."""
        self.is_cancelled = False
        self.consumer: Consumer | None = None

    @property
    def connection(self) -> object | None:
        return self.channel.connection.connection

    def set_active(self, *, active: bool) -> None:
        """Whether it is the one that gets messages, of a queue that has but one."""
        broker = self.channel.connection.broker
        if self.consumer is not None:
            broker.engine.grant(self.consumer, UNLIMITED if active else 0, broker.now)

    def queue_ended(self) -> None:
        """The queue was deleted: the client is told, if it understands that (rmq.consumer-cancel-notify)."""
        self.channel.consuming.queue_ended(self)


class Unsettled(NamedTuple):
    """A delivery that the client has not acknowledged."""

    consumer: AmqpConsumer
    delivery: Delivery


class Settlement(NamedTuple):
    tag: int
    held: Unsettled
    outcome: Outcome


class Consuming:
    """The consuming half of a channel."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._consumers: dict[str, AmqpConsumer] = {}
        self._getters: dict[str, AmqpConsumer] = {}
        """By queue; each takes part in its group and gets what it is granted, one at a time."""
        self._leaving: dict[AmqpConsumer, None] = {}
        """Cancelled, with deliveries that are still to be acknowledged."""
        self._unsettled: dict[int, Unsettled] = {}
        """By delivery tag, ascending."""
        self._next_tag = 1
        self._next_name = 1
        self._prefetch = 0
        """Of consumers to come."""
        self._channel_prefetch = 0
        """Of all consumers of the channel together; 0 = no limit."""
        self._counted = 0
        """Deliveries that count against it: to consumers, and not settled for good."""
        self._stalled: dict[AmqpConsumer, None] = {}
        self._is_active = True
        self.replies: ReplyConsumer | None = None
        """Gets the direct replies to what the channel asks."""

    @property
    def count(self) -> int:
        """Of those that take part in groups."""
        return len(self._consumers) + len(self._getters) + len(self._leaving)

    @property
    def queues(self) -> set[str]:
        """That it consumes from."""
        return {consumer.record.name for consumer in self._consumers.values()} | self._getters.keys()

    # -- methods ---------------------------------------------------------------------------------------------------

    def qos(self, size: int, count: int, of_channel: bool, _now: float) -> None:
        if size:
            raise AmqpError(Reply.NOT_IMPLEMENTED, f"prefetch_size!=0 ({size})", rule="basic.qos.prefetch-size")
        if of_channel:
            self._channel_prefetch = count
        else:
            self._prefetch = count
        self._channel.send("basic.qos-ok")
        self.resume()

    def consume(
        self,
        queue: str,
        tag: str,
        _no_local: bool,
        no_ack: bool,
        exclusive: bool,
        no_wait: bool,
        arguments: Table,
        now: float,
    ) -> None:
        channel = self._channel
        connection, service, vhost = channel.connection, channel.service, channel.vhost
        name = named_queue(channel, queue)
        if tag in self._consumers or (self.replies is not None and tag == self.replies.tag):
            text = f"attempt to reuse consumer tag '{tag[:80]}'"
            raise AmqpError(Reply.NOT_ALLOWED, text, rule="basic.consume.consumer-tag")
        if name == REPLY_TO:
            parse_consumer(arguments, now, is_stream=False)
            tag = tag or self._new_tag()
            self.replies = service.replies.open(channel, tag, no_ack=no_ack)
            if not no_wait:
                channel.send("basic.consume-ok", tag)
            return
        rights.check_queue(connection, name, read=True)
        record = service.find(vhost, name, connection)
        use = service.use_of(vhost, record)
        asked = parse_consumer(arguments, now, is_stream=use.arguments.is_stream)
        if use.arguments.is_stream:
            self._check_stream(name, no_ack=no_ack)
        if use.is_exclusive or (exclusive and use.consumers):
            text = f"queue '{name[:80]}' in vhost '{vhost.name}' in exclusive use"
            raise AmqpError(Reply.ACCESS_REFUSED, text, rule="basic.consume.exclusive")
        tag = tag or self._new_tag()
        consumer = AmqpConsumer(channel, record, tag, self._new_name(), no_ack=no_ack)
        consumer.is_exclusive = exclusive
        # Without acknowledgements there is nothing that a prefetch could count.
        group, options = GROUP, SubscribeOptions(prefetch=0 if no_ack else self._prefetch, priority=asked.priority)
        if use.arguments.is_stream:
            consumer.is_stream = True
            group = asked.group or consumer.client_id
            start = LATEST if asked.offset is None and not asked.group else asked.offset
            options = msgspec.structs.replace(options, cursor=start, transient=not asked.group)
            if not asked.commits:
                # What it acknowledges stays its own until it commits that.
                consumer.prefetch = self._prefetch
                options = msgspec.structs.replace(options, prefetch=0)
        consumer.consumer = connection.broker.consume(
            consumer,
            self._address(name),
            group,
            lambda delivery: self._deliver(consumer, delivery),
            now,
            options=options,
            on_end=lambda: service.queue_ended(vhost, name),
        )
        self._consumers[tag] = consumer
        if not no_wait:
            channel.send("basic.consume-ok", tag)
        service.joined(vhost, record, consumer)

    def _check_stream(self, queue: str, *, no_ack: bool) -> None:
        """Raises :class:`AmqpError`: a stream is read with acknowledgements, which ask for more (406, 540)."""
        if no_ack:
            text = f"automatic acknowledgement of the stream '{queue[:80]}'"
            raise AmqpError(Reply.NOT_IMPLEMENTED, text, rule="rmq.x-queue-type")
        if not self._prefetch:
            text = f"consumer prefetch count is not set for the stream '{queue[:80]}'"
            raise AmqpError(Reply.PRECONDITION_FAILED, text, rule="rmq.x-queue-type")

    def _new_tag(self) -> str:
        return f"amq.ctag-{self._channel.connection.broker.rng.randbytes(12).hex()}"

    def _new_name(self) -> str:
        """Of one more consumer. Raises :class:`AmqpError` (506) when the connection has as many as it may."""
        connection = self._channel.connection
        if connection.consumer_count >= connection.config.max_consumers:
            raise AmqpError(
                Reply.RESOURCE_ERROR, f"a connection has at most {connection.config.max_consumers} consumers"
            )
        name = f"{self._channel.connection.client_id}/{self._channel.number}/{self._next_name}"
        self._next_name += 1
        return name

    def _address(self, queue: str) -> QueueAddress:
        return QueueAddress(queue=self._channel.service.engine_name(self._channel.vhost, queue))

    def cancel(self, tag: str, no_wait: bool, now: float) -> None:
        consumer = self._consumers.pop(tag, None)
        if consumer is not None:
            self._leave(consumer, now)
        elif self.replies is not None and tag == self.replies.tag:
            self._end_replies()
        if not no_wait:
            self._channel.send("basic.cancel-ok", tag)

    def _end_replies(self) -> None:
        if self.replies is not None:
            self._channel.service.replies.close(self.replies)
            self.replies = None

    def _leave(self, consumer: AmqpConsumer, now: float) -> None:
        """It gets nothing any more; what it holds stays to be acknowledged."""
        channel = self._channel
        consumer.is_cancelled = True
        self._stalled.pop(consumer, None)
        engine = channel.connection.broker.engine
        assert consumer.consumer is not None
        if consumer.held:
            engine.grant(consumer.consumer, 0, now)
            self._leaving[consumer] = None
        else:
            engine.unsubscribe(consumer.consumer, now)
        channel.service.left(channel.vhost, consumer.record, consumer, now)

    def get(self, queue: str, no_ack: bool, now: float) -> None:
        channel = self._channel
        connection, service, vhost = channel.connection, channel.service, channel.vhost
        name = named_queue(channel, queue)
        rights.check_queue(connection, name, read=True)
        record = service.find(vhost, name, connection)
        service.touch(vhost, record, now)
        use = service.use_of(vhost, record)
        if use.arguments.is_stream:
            raise AmqpError(Reply.NOT_IMPLEMENTED, f"a get of the stream '{name[:80]}'", rule="rmq.x-queue-type")
        if use.is_exclusive:
            text = f"queue '{name[:80]}' in vhost '{vhost.name}' in exclusive use"
            raise AmqpError(Reply.ACCESS_REFUSED, text, rule="basic.consume.exclusive")
        getter = self._getters.get(name)
        if getter is None or getter.record is not record or not getter.consumer or not getter.consumer.active:
            getter = self._getters[name] = AmqpConsumer(channel, record, "", self._new_name(), no_ack=no_ack)
            took = getter
            getter.consumer = connection.broker.consume(
                getter, self._address(name), GROUP, lambda delivery: self._deliver(took, delivery), now, credit=0
            )
        getter.no_ack = no_ack
        answer = channel.answer_later()

        asking = getter.consumer
        assert asking is not None

        def drained(left: int) -> None:
            asking.on_end = None
            answer("basic.get-empty" if left else None)

        # Its queue may be deleted before the turn comes to it.
        asking.on_end = lambda: drained(1)
        connection.broker.engine.grant(asking, 1, now, drained)

    # -- deliveries --------------------------------------------------------------------------------------------------

    def _deliver(self, consumer: AmqpConsumer, delivery: Delivery) -> bool:
        channel = self._channel
        connection = channel.connection
        if consumer.tag and not self._has_room(consumer):
            self._stalled[consumer] = None
            return False
        tag = consumer.served_at = self._next_tag
        self._next_tag += 1
        message = delivery.message
        kept = message.properties
        name: str | None = None
        if kept is not None and kept.exchange is not None:
            exchange, key = kept.exchange, kept.routing_key or ""
        elif message.publisher.startswith("amqp091:"):
            exchange, key = "", consumer.record.name
        else:
            exchange, key = MQTT_EXCHANGE, amqp_name(delivery.topic.removeprefix(QUEUE_PREFIX))
            key = key.encode()[:255].decode(errors="ignore")
            name = delivery.message_id
        repeated = delivery.redelivered or delivery.delivery_count > 1
        if consumer.tag:
            method = encode_method(_DELIVER, consumer.tag, tag, repeated, exchange, key)
        else:
            ready = channel.service.ready_count(channel.vhost, consumer.record.name)
            method = encode_method(_GET_OK, tag, repeated, exchange, key, ready)
        body = message.payload
        properties = properties_of(message, connection.broker.now, name)
        if consumer.is_stream:
            properties = with_offset(properties, delivery.offset)
        header = header_of(len(body), properties, connection.frame_max_bytes)
        number = channel.number
        connection.send(
            frame(FrameType.METHOD, number, method) + content_frames(number, header, body, connection.frame_max_bytes)
        )
        if consumer.no_ack:
            connection.broker.settle_delivery(delivery, Outcome.ACCEPT, consumer, connection.broker.now, ignore)
        else:
            self._unsettled[tag] = Unsettled(consumer, delivery)
            consumer.held += 1
            self._counted += bool(consumer.tag)
        return True

    def deliver_reply(self, consumer: ReplyConsumer, properties: BasicProperties, body: bytes) -> None:
        """A direct reply; without room it is gone."""
        channel = self._channel
        connection = channel.connection
        if not self._is_active or connection.is_full:
            return
        tag = self._next_tag
        self._next_tag += 1
        channel.send("basic.deliver", consumer.tag, tag, False, "", consumer.name)
        header = header_of(len(body), properties, connection.frame_max_bytes)
        connection.send(content_frames(channel.number, header, body, connection.frame_max_bytes))

    def _has_room(self, consumer: AmqpConsumer) -> bool:
        limit = self._channel_prefetch
        if consumer.prefetch and consumer.held >= consumer.prefetch:
            return False
        if limit and not consumer.no_ack and self._counted >= limit:
            return False
        return self._is_active and not self._channel.connection.is_full

    def resume(self) -> None:
        """There may be room again: whoever has waited longest is the first to get some."""
        stalled, self._stalled = self._stalled, {}
        broker = self._channel.connection.broker
        for consumer in sorted(stalled, key=_served_at) if len(stalled) > 1 else stalled:
            if consumer.consumer is not None:
                broker.engine.resume(consumer.consumer, broker.now)

    def flow(self, *, active: bool) -> None:
        self._is_active = active
        if active:
            self.resume()

    # -- acknowledgements --------------------------------------------------------------------------------------------

    def ack(self, tag: int, multiple: bool, now: float) -> None:
        self._settle(self._taken(tag, multiple), Outcome.ACCEPT, now)

    def nack(self, tag: int, multiple: bool, requeue: bool, now: float) -> None:
        self._refuse(self._taken(tag, multiple), Outcome.FAIL if requeue else Outcome.REJECT, now)

    def reject(self, tag: int, requeue: bool, now: float) -> None:
        self._refuse(self._taken(tag, False), Outcome.FAIL if requeue else Outcome.REJECT, now)

    def _refuse(self, taken: list[tuple[int, Unsettled]], outcome: Outcome, now: float) -> None:
        """What is read of a stream stays where it is, whatever its reader says."""
        self._settle([each for each in taken if not each[1].consumer.is_stream], outcome, now)
        self._settle([each for each in taken if each[1].consumer.is_stream], Outcome.ACCEPT, now)

    def _taken(self, tag: int, multiple: bool) -> list[tuple[int, Unsettled]]:
        """What a tag stands for. Raises :class:`AmqpError` (406) for one that stands for nothing."""
        unsettled = self._unsettled
        if not multiple:
            found = unsettled.pop(tag, None)
            if found is None:
                raise self._unknown(tag)
            return [(tag, found)]
        if not tag:
            taken = list(unsettled.items())
            unsettled.clear()
            return taken
        taken = []
        for each in unsettled:
            if each > tag:
                break
            taken.append((each, unsettled[each]))
        if not taken or tag >= self._next_tag:
            raise self._unknown(tag)
        for each, _ in taken:
            del unsettled[each]
        return taken

    def _unknown(self, tag: int) -> AmqpError:
        return AmqpError(Reply.PRECONDITION_FAILED, f"unknown delivery tag {tag}", rule="delivery-tag.channel-local")

    def _settle(self, taken: list[tuple[int, Unsettled]], outcome: Outcome, now: float) -> None:
        publishing = self._channel.publishing
        if publishing.transaction is not None:
            for tag, held in taken:
                publishing.settle_later(Settlement(tag, held, outcome))
            return
        for tag, held in taken:
            self.carry_out(Settlement(tag, held, outcome), now, ignore)
        if self._stalled:
            self.resume()

    def carry_out(
        self, settlement: Settlement, now: float, on_done: Confirm, within: TransactionKey | None = None
    ) -> None:
        """Settle for good, or when a transaction is committed. What is not there any more, since its queue was deleted,
        is no error."""
        consumer, delivery = settlement.held
        broker = self._channel.connection.broker
        if consumer.prefetch and settlement.outcome is Outcome.ACCEPT:
            on_done(None)
        else:
            broker.settle_delivery(delivery, settlement.outcome, consumer, now, _although_gone(on_done), within=within)
        consumer.held -= 1
        self._counted -= bool(consumer.tag)
        if consumer.is_cancelled and not consumer.held and consumer in self._leaving:
            del self._leaving[consumer]
            assert consumer.consumer is not None
            broker.engine.unsubscribe(consumer.consumer, now)

    def take_back(self, settlements: list[Settlement]) -> None:
        """They are not settled after all (tx.rollback)."""
        back = {each.tag: each.held for each in settlements}
        self._unsettled = dict(sorted({**self._unsettled, **back}.items()))

    def recover(self, requeue: bool, now: float) -> None:
        self.recover_async(requeue, now)
        self._channel.send("basic.recover-ok")

    def recover_async(self, requeue: bool, now: float) -> None:
        if not requeue:
            raise AmqpError(Reply.NOT_IMPLEMENTED, "requeue=false", rule="basic.recover.01")
        taken, self._unsettled = list(self._unsettled.items()), {}
        for tag, held in taken:
            self.carry_out(Settlement(tag, held, Outcome.FAIL), now, ignore)
        self.resume()

    def reader_of(self, stream: QueueRecord, group: str) -> AmqpConsumer | None:
        """The first of its consumers that reads a stream in that group."""
        for consumer in self._consumers.values():
            if consumer.record is stream and consumer.consumer is not None and consumer.consumer.group == group:
                return consumer
        return None

    # -- the end -----------------------------------------------------------------------------------------------------

    def queue_ended(self, consumer: AmqpConsumer) -> None:
        """See :meth:`AmqpConsumer.queue_ended`."""
        self._consumers.pop(consumer.tag, None)
        self._stalled.pop(consumer, None)
        channel = self._channel
        if channel.is_open and "consumer_cancel_notify" in channel.connection.capabilities:
            channel.send("basic.cancel", consumer.tag, True)

    def end(self, now: float) -> None:
        """All that is not acknowledged is ready for others."""
        channel = self._channel
        engine = channel.connection.broker.engine
        self._end_replies()
        consumers, self._consumers = self._consumers, {}
        getters, self._getters = self._getters, {}
        leaving, self._leaving = self._leaving, {}
        self._unsettled.clear()
        self._stalled.clear()
        for consumer in (*consumers.values(), *getters.values(), *leaving):
            if consumer.consumer is not None:
                engine.unsubscribe(consumer.consumer, now)
        for consumer in consumers.values():
            channel.service.left(channel.vhost, consumer.record, consumer, now)


_served_at: Final = attrgetter("served_at")


def _although_gone(on_done: Confirm) -> Confirm:
    def done(error: QueueError | None) -> None:
        is_gone = error is not None and error.code in (QueueErrorCode.UNKNOWN_QUEUE, QueueErrorCode.NOT_PENDING)
        on_done(None if is_gone else error)

    return done

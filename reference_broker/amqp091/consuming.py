"""What a channel consumes: consumers, gets, what they hold unacknowledged, prefetch, recovery."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from functools import lru_cache
from operator import attrgetter
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from assay.reference_broker.amqp091 import rights
from assay.reference_broker.amqp091.consumer_arguments import parse_consumer
from assay.reference_broker.amqp091.declarations import named_queue
from assay.reference_broker.amqp091.direct_replies import REPLY_TO, ReplyConsumer
from assay.reference_broker.amqp091.handles import AmqpConsumer, ChannelHandle, Settlement, Unsettled
from assay.reference_broker.amqp091.messages import properties_of, with_offset
from assay.reference_broker.amqp091.names import GROUP, amqp_name
from assay.reference_broker.amqp091.publishing import header_of
from assay.reference_broker.amqp091.refusals import reply_to
from assay.reference_broker.amqp091.settling import Part, Settling
from assay.reference_broker.amqp091.topology import QueueRecord
from assay.reference_broker.amqp091.wire.content import SECTION_AT, header_with
from assay.reference_broker.amqp091.wire.fields import Table
from assay.reference_broker.amqp091.wire.frames import (
    FRAME_END,
    FRAME_OVERHEAD_BYTES,
    FrameType,
    content_frames,
    frame,
)
from assay.reference_broker.amqp091.wire.methods import BY_NAME, encode_method
from assay.reference_broker.amqp091.wire.replies import AmqpError, Reply
from assay.reference_broker.queues import Delivery, Outcome, QueueAddress, QueueError, QueueErrorCode
from assay.reference_broker.queues.groups.delivery_run import DeliveryRun
from assay.reference_broker.queues.groups.subscribe_options import LATEST, SubscribeOptions
from assay.reference_broker.queues.jobs.confirms import Confirm, ignore
from assay.reference_broker.queues.messages.address import QUEUE_PREFIX
from assay.reference_broker.queues.messages.publish_options import TransactionKey
from assay.reference_broker.routing.message import Message
from assay.reference_broker.routing.remembered import Known

if TYPE_CHECKING:
    from assay.reference_broker.amqp091.wire.content import BasicProperties

_MOST_WAYS = 4_096
_MOST_LAYOUTS = 1_024
_WAY_BYTES = 1_024
_SETTLED_TOGETHER = 256
_TAG_AT = 11
"""Of the delivery tag in its frame, behind the consumer tag if there is one."""
_TAG_BYTES = 8
_SIZE_BYTES = 4
"""Of how long a frame is, and of how many messages are left."""
_START_BYTES = 3
"""Of a frame: up to its length."""
_FRAME_START = struct.Struct(">BH")
_BASIC = 60 << 16
"""Class and weight of a content header."""
_END = bytes((FRAME_END,))
_GETS: Final = SubscribeOptions(lanes_alike=True, waits=False)
_DELIVER, _GET_OK = BY_NAME["basic.deliver"], BY_NAME["basic.get-ok"]
MQTT_EXCHANGE = "$queue"
"""Where a message came from that was not published over AMQP."""


_new = tuple.__new__


class _Way(NamedTuple):
    """How deliveries to a consumer, or answers to its gets, begin that came from one exchange by one routing key."""

    pack: Callable[..., bytes]
    """See :func:`_layout`."""
    before: bytes
    """Up to the delivery tag."""
    names: bytes
    """Of an answer to a get: from there to how many are left; else nothing."""
    rest: bytes
    """From there to the length of the frame with the content header."""


@lru_cache(maxsize=_MOST_LAYOUTS)
def _layout(before: int, rest: int, section: int) -> Callable[..., bytes]:
    """What writes a delivery of one body frame up to its body: what is before the tag, that, what comes up to the
    length of the header frame, that, class and weight, the body's size, flags and properties, what ends that frame and
    begins the body's. By the lengths of the three that have none of their own."""
    return struct.Struct(f">{before}sQ{rest}sIIQ{section}sBBHI").pack


class Consuming:
    """The consuming half of a channel."""

    def __init__(self, channel: ChannelHandle) -> None:
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
        self._settling: Settling | None = None
        """What earlier turns had no room for."""
        self.replies: ReplyConsumer | None = None
        """Gets the direct replies to what the channel asks."""
        self._ways: Known[tuple[str, str, str, int], _Way] = Known(channel.connection.broker.engine.known, _MOST_WAYS)
        """By consumer tag, exchange, routing key and how long flags and properties are."""

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
            raise AmqpError(Reply.NOT_IMPLEMENTED, f"prefetch_size!=0 ({size})", rule="rmq.qos.prefetch-size")
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
            raise AmqpError(Reply.NOT_ALLOWED, text, rule="basic.consume.consumer-tag.01")
        if name == REPLY_TO:
            parse_consumer(arguments, now, is_stream=False)
            tag = tag or self._new_tag()
            self.replies = service.replies.open(self, vhost.name, tag, connection.broker.rng, no_ack=no_ack)
            if not no_wait:
                channel.send("basic.consume-ok", tag)
            return
        rights.check_queue(connection, name, read=True)
        record = service.find(vhost, name, connection)
        use = service.use_of(vhost, record)
        asked = parse_consumer(arguments, now, is_stream=use.arguments.is_stream)
        if use.arguments.is_stream:
            self.check_stream(name, no_ack=no_ack)
        if use.is_exclusive or (exclusive and use.consumers):
            text = f"queue '{name[:80]}' in vhost '{vhost.name}' in exclusive use"
            raise AmqpError(Reply.ACCESS_REFUSED, text, rule="basic.consume.exclusive.01")
        tag = tag or self._new_tag()
        consumer = self._new_consumer(record, tag, no_ack=no_ack)
        consumer.is_exclusive = exclusive
        # Without acknowledgements there is nothing that a prefetch could count.
        prefetch = 0 if no_ack else self._prefetch
        group, options = GROUP, SubscribeOptions(prefetch=prefetch, priority=asked.priority, lanes_alike=True)
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
            lambda delivery: self.deliver(consumer, delivery),
            now,
            options=options,
            on_end=lambda: service.queue_ended(vhost, name),
            # Of a stream each delivery says its offset.
            deliver_run=None if consumer.is_stream else lambda run: self.deliver_run(consumer, run),
            settles_at_once=no_ack,
        )
        self._consumers[tag] = consumer
        service.joined(vhost, record, consumer)
        answer = channel.answer_later()

        def begun(error: QueueError | None) -> None:
            if error is not None:
                answer(reply_to(error))
            elif no_wait:
                answer(None)
            else:
                answer("basic.consume-ok", tag)

        connection.broker.engine.when_begun(consumer.consumer, begun)

    def check_stream(self, queue: str, *, no_ack: bool) -> None:
        """Raises :class:`AmqpError`: a stream is read with acknowledgements, which ask for more (406, 540)."""
        if no_ack:
            text = f"automatic acknowledgement of the stream '{queue[:80]}'"
            raise AmqpError(Reply.NOT_IMPLEMENTED, text, rule="rmq.x-queue-type")
        if not self._prefetch:
            text = f"consumer prefetch count is not set for the stream '{queue[:80]}'"
            raise AmqpError(Reply.PRECONDITION_FAILED, text, rule="rmq.x-queue-type")

    def _new_tag(self) -> str:
        return f"amq.ctag-{self._channel.connection.broker.rng.randbytes(12).hex()}"

    def _new_consumer(self, record: QueueRecord, tag: str, *, no_ack: bool) -> AmqpConsumer:
        """Raises :class:`AmqpError` (506) when the connection has as many as it may."""
        connection = self._channel.connection
        if connection.consumer_count >= connection.config.max_consumers:
            raise AmqpError(
                Reply.RESOURCE_ERROR, f"a connection has at most {connection.config.max_consumers} consumers"
            )
        name = f"{connection.client_id}/{self._channel.number}/{self._next_name}"
        self._next_name += 1
        return AmqpConsumer(connection, record, tag, name, no_ack=no_ack, on_end=self.queue_ended)

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

    def get(self, queue: str, no_ack: bool, now: float, count: int = 1) -> None:
        """One get, or so many of the same that stand together. Raises :class:`AmqpError`."""
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
            raise AmqpError(Reply.ACCESS_REFUSED, text, rule="basic.consume.exclusive.01")
        getter = self._getters.get(name)
        if getter is None or getter.record is not record or not getter.consumer or not getter.consumer.active:
            getter = self._getters[name] = self._new_consumer(record, "", no_ack=no_ack)
            took = getter
            getter.consumer = connection.broker.consume(
                getter,
                self._address(name),
                GROUP,
                lambda delivery: self.deliver(took, delivery),
                now,
                options=_GETS,
                deliver_run=lambda run: self.deliver_run(took, run),
                credit=0,
            )
        asking = getter.consumer
        assert asking is not None
        getter.no_ack = no_ack
        asking.settles_at_once = getter.no_ack
        answer = channel.answer_later()

        def drained(left: int) -> None:
            asking.on_end = None
            for _ in range(left - 1):
                channel.send("basic.get-empty")
            answer("basic.get-empty" if left else None)

        # Its queue may be deleted before the turn comes to it.
        asking.on_end = lambda: drained(asking.credit)
        connection.broker.engine.grant(asking, count, now, drained)

    # -- deliveries --------------------------------------------------------------------------------------------------

    def deliver(self, consumer: AmqpConsumer, delivery: Delivery) -> bool:
        """One delivery, in any form; False where there is no room for it now."""
        channel = self._channel
        connection = channel.connection
        if consumer.tag and not self.has_room(consumer):
            self._stalled[consumer] = None
            return False
        assert consumer.consumer is not None
        if connection.broker.must_wait(consumer.consumer, connection.tenant, len(delivery.message.payload)):
            return False
        tag = consumer.served_at = self._next_tag
        self._next_tag += 1
        message = delivery.message
        exchange, key = _way_of(consumer, message, delivery.topic)
        # One that came over another protocol has no name but the queue's.
        name = None if _is_of_amqp(message) else delivery.message_id
        repeated = delivery.redelivered or delivery.delivery_count > 1
        if consumer.tag:
            method = encode_method(_DELIVER, consumer.tag, tag, repeated, exchange, key)
        else:
            ready = channel.service.ready_count(channel.vhost, consumer.record.name)
            method = encode_method(_GET_OK, tag, repeated, exchange, key, ready)
        body = message.payload
        if message.written and not consumer.is_stream:
            header = header_with(len(body), message.written)
        else:
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
            self._unsettled[tag] = Unsettled(consumer, delivery.partition, delivery.offset)
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

    def deliver_run(self, consumer: AmqpConsumer, run: DeliveryRun) -> int:
        """See :class:`DeliverRun`: those in front that came over AMQP and fit into one body frame each, while there is
        room."""
        channel, unsettled = self._channel, self._unsettled
        connection, number, consumer_tag = channel.connection, channel.number, consumer.tag
        if connection.tenant is not None and connection.tenant.limits_consuming:
            return 0
        stored = run.stored
        if self._channel_prefetch and consumer_tag and not consumer.no_ack:
            stored = stored[: max(0, self._channel_prefetch - self._counted)]
        left = 0 if consumer_tag else channel.service.ready_count(channel.vhost, consumer.record.name)
        room_bytes = connection.room_bytes if self._is_active and not connection.is_full else 0
        most = connection.frame_max_bytes - FRAME_OVERHEAD_BYTES
        ways = self._ways.answers
        first = tag = self._next_tag
        parts: list[bytes] = []
        kept, section = None, None
        for each in stored:
            message = each.message
            body = message.payload
            size = len(body)
            if room_bytes <= 0 or not 0 < size <= most:
                break
            if message.written is not section or message.properties is not kept:
                # Not as the one before it.
                kept, section = message.properties, message.written
                if not section:
                    if not _is_of_amqp(message):
                        break
                    properties = properties_of(message, connection.broker.now)
                    section = header_of(0, properties, connection.frame_max_bytes)[SECTION_AT:]
                exchange, key = _way_of(consumer, message, each.topic)
                length = len(section)
                way = ways.get((consumer_tag, exchange, key, length))
                pack, before, names, rest = way or self.find_way(consumer, exchange, key, length)
                length += SECTION_AT
                between = rest
            if names:
                left -= 1
                between = b"%b%b%b" % (names, max(0, left).to_bytes(_SIZE_BYTES, "big"), rest)
            head = pack(before, tag, between, length, _BASIC, size, section, FRAME_END, FrameType.BODY, number, size)
            parts += (head, body, _END)
            tag += 1
            room_bytes -= size
        count = tag - first
        if not count:
            return 0
        self._next_tag = tag
        consumer.served_at = tag - 1
        connection.send(b"".join(parts))
        if not consumer.no_ack:
            partition, offset = run.partition, run.offset
            held = [_new(Unsettled, (consumer, partition, at)) for at in range(offset, offset + count)]
            unsettled.update(zip(range(first, tag), held, strict=True))
            consumer.held += count
            if consumer_tag:
                self._counted += count
        return count

    def find_way(self, consumer: AmqpConsumer, exchange: str, key: str, section_bytes: int) -> _Way:
        """How first deliveries of messages that came that way begin, with so many bytes of flags and properties."""
        number = self._channel.number
        if consumer.tag:
            method = encode_method(_DELIVER, consumer.tag, 0, False, exchange, key)
            tag_at = _TAG_AT + 1 + len(consumer.tag.encode())
            rest_at = names_end = tag_at + _TAG_BYTES
        else:
            method = encode_method(_GET_OK, 0, False, exchange, key, 0)
            tag_at, rest_at = _TAG_AT, _START_BYTES + _SIZE_BYTES + len(method)
            names_end = rest_at - _SIZE_BYTES
        whole = frame(FrameType.METHOD, number, method)
        rest = whole[rest_at:] + _FRAME_START.pack(FrameType.HEADER, number)
        before, names = whole[:tag_at], whole[tag_at + _TAG_BYTES : names_end]
        rest_bytes = len(names) + _SIZE_BYTES + len(rest) if names else len(rest)
        way = _Way(_layout(len(before), rest_bytes, section_bytes), before, names, rest)
        length = len(before) + len(names) + len(rest)
        return self._ways.remember((consumer.tag, exchange, key, section_bytes), way, length, _WAY_BYTES + 2 * length)

    def has_room(self, consumer: AmqpConsumer) -> bool:
        """Whether prefetch, flow and unread output let it have another one."""
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
        self.ack_all([(tag, multiple)], now)

    def ack_all(self, acks: Sequence[tuple[int, int]], now: float) -> None:
        """In their order. Raises :class:`AmqpError` for the first that stands for nothing."""
        taken: list[tuple[int, Unsettled]] = []
        try:
            for tag, bits in acks:
                taken += self.taken(tag, bool(bits & 1))
        finally:
            self.settle((taken, Outcome.ACCEPT))

    def nack(self, tag: int, multiple: bool, requeue: bool, now: float) -> None:
        self._refuse(self.taken(tag, multiple), Outcome.FAIL if requeue else Outcome.REJECT, now)

    def reject(self, tag: int, requeue: bool, now: float) -> None:
        self._refuse(self.taken(tag, False), Outcome.FAIL if requeue else Outcome.REJECT, now)

    def _refuse(self, taken: list[tuple[int, Unsettled]], outcome: Outcome, now: float) -> None:
        """What is read of a stream stays where it is, whatever its reader says."""
        own = [each for each in taken if not each[1].consumer.is_stream]
        read = [each for each in taken if each[1].consumer.is_stream]
        self.settle((own, outcome), (read, Outcome.ACCEPT))

    def taken(self, tag: int, multiple: bool) -> list[tuple[int, Unsettled]]:
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

    def settle(self, *parts: Part) -> None:
        """At once, or within the open transaction."""
        publishing = self._channel.publishing
        if publishing.transaction is None:
            self._settle_for_good(*parts)
            return
        for taken, outcome in parts:
            for tag, held in taken:
                publishing.settle_later(Settlement(tag, held, outcome))

    def _settle_for_good(self, *parts: Part, answer: str | None = None) -> None:
        """What the turn has room for; the channel waits for the rest, and then answers, if it is to."""
        settling = Settling(self._channel, parts, answer)
        if not settling.begin():
            self._settling = settling

    def settle_next(self, taken: Sequence[tuple[int, Unsettled]], at: int, outcome: Outcome) -> int:
        """The first ones from a position on; how many.

        Raises :class:`AmqpError` (541) where the queue takes none now, as while its disk refuses writes: nothing else
        could tell the client, and all that it holds is ready for others once the connection is over.
        """
        now = self._channel.connection.broker.now
        count = self._accept_run(taken, at, now) if outcome is Outcome.ACCEPT else 0
        if not count:
            tag, held = taken[at]
            told: list[QueueError | None] = []
            self.carry_out(Settlement(tag, held, outcome), now, told.append)
            # What fails later is in the queue's memory, and written with the next try.
            if told and (refused := told[0]) is not None:
                raise reply_to(refused)
        return count or 1

    def settled(self) -> None:
        """All that was to be settled is."""
        self._settling = None
        if self._stalled:
            self.resume()

    def _accept_run(self, taken: Sequence[tuple[int, Unsettled]], at: int, now: float) -> int:
        """Acknowledge what one consumer holds, as one; how many, 0 = the first of them goes by itself."""
        consumer = taken[at][1].consumer
        assert consumer.consumer is not None
        if consumer.prefetch:
            return 0
        places: list[tuple[int, int]] = []
        for position in range(at, min(at + _SETTLED_TOGETHER, len(taken))):
            held = taken[position][1]
            if held.consumer is not consumer:
                break
            places.append((held.partition, held.offset))
        engine, member = self._channel.connection.broker.engine, consumer.consumer
        count = engine.ack_run(member.queue, member.group, places, consumer.client_id, now, _nobody_waits)
        if count:
            self.let_go(consumer, count, now)
        return count

    def carry_out(
        self, settlement: Settlement, now: float, on_done: Confirm, within: TransactionKey | None = None
    ) -> None:
        """Settle for good, or when a transaction is committed. What is not there any more, since its queue was deleted,
        is no error."""
        held = settlement.held
        broker = self._channel.connection.broker
        if held.consumer.prefetch and settlement.outcome is Outcome.ACCEPT:
            on_done(None)
        else:
            told = _although_gone(on_done)
            broker.settle_delivery(held, settlement.outcome, held.consumer, now, told, within=within)
        self.let_go(held.consumer, 1, now)

    def let_go(self, consumer: AmqpConsumer, count: int, now: float) -> None:
        """It holds so many less; one that was cancelled leaves with the last."""
        consumer.held -= count
        if consumer.tag:
            self._counted -= count
        if consumer.is_cancelled and not consumer.held and consumer in self._leaving:
            del self._leaving[consumer]
            assert consumer.consumer is not None
            self._channel.connection.broker.engine.unsubscribe(consumer.consumer, now)

    def take_back(self, settlements: list[Settlement]) -> None:
        """They are not settled after all (tx.rollback)."""
        back = {each.tag: each.held for each in settlements}
        self._unsettled = dict(sorted({**self._unsettled, **back}.items()))

    def recover(self, requeue: bool, now: float) -> None:
        self.recover_async(requeue, now, "basic.recover-ok")

    def recover_async(self, requeue: bool, _now: float, answer: str | None = None) -> None:
        if not requeue:
            raise AmqpError(Reply.NOT_IMPLEMENTED, "requeue=false", rule="basic.recover.01")
        taken, self._unsettled = list(self._unsettled.items()), {}
        self._settle_for_good((taken, Outcome.FAIL), answer=answer)

    def reader_of(self, stream: QueueRecord, group: str) -> AmqpConsumer | None:
        """The first of its consumers that reads a stream in that group."""
        for consumer in self._consumers.values():
            if consumer.record is stream and consumer.consumer is not None and consumer.consumer.group == group:
                return consumer
        return None

    # -- the end -----------------------------------------------------------------------------------------------------

    def queue_ended(self, consumer: AmqpConsumer) -> None:
        """The client is told, if it understands that (rmq.consumer-cancel-notify)."""
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
        if self._settling is not None:
            self._settling.end()
        consumers, self._consumers = self._consumers, {}
        getters, self._getters = self._getters, {}
        leaving, self._leaving = self._leaving, {}
        self._unsettled.clear()
        self._stalled.clear()
        self._ways.let_go()
        for consumer in (*consumers.values(), *getters.values(), *leaving):
            if consumer.consumer is not None:
                engine.unsubscribe(consumer.consumer, now)
        for consumer in consumers.values():
            channel.service.left(channel.vhost, consumer.record, consumer, now)


_served_at: Final = attrgetter("served_at")


def _is_of_amqp(message: Message) -> bool:
    """Whether it was published over AMQP."""
    kept = message.properties
    return (kept is not None and kept.exchange is not None) or message.publisher.startswith("amqp091:")


def _way_of(consumer: AmqpConsumer, message: Message, topic: str) -> tuple[str, str]:
    """Exchange and routing key of a delivery; ``topic``: the engine's, which only what came over AMQP may lack."""
    kept = message.properties
    if kept is not None and kept.exchange is not None:
        return kept.exchange, kept.routing_key or ""
    if _is_of_amqp(message):
        return "", consumer.record.name
    key = amqp_name(topic.removeprefix(QUEUE_PREFIX))
    return MQTT_EXCHANGE, key.encode()[:255].decode(errors="ignore")


def _nobody_waits(_count: int) -> Confirm:
    return ignore


def _although_gone(on_done: Confirm) -> Confirm:
    def done(error: QueueError | None) -> None:
        is_gone = error is not None and error.code in (QueueErrorCode.UNKNOWN_QUEUE, QueueErrorCode.NOT_PENDING)
        on_done(None if is_gone else error)

    return done

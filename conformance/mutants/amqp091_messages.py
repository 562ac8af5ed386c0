"""Bugs of the reference broker's AMQP 0.9.1: publishing, confirms, consuming, settlement, and what queues are asked."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any
from weakref import WeakKeyDictionary

import msgspec

from assay.conformance.mutants import Patch, mutant
from assay.conformance.mutants.amqp091_answers import Handler, wrap_handlers
from assay.reference_broker.amqp091 import dead_letters, publishing, service
from assay.reference_broker.amqp091.channel import Channel
from assay.reference_broker.amqp091.consuming import Consuming
from assay.reference_broker.amqp091.handles import AmqpConsumer
from assay.reference_broker.amqp091.messages import PERSISTENT
from assay.reference_broker.amqp091.publishing import Publishing
from assay.reference_broker.amqp091.queue_settings import QueueArguments
from assay.reference_broker.amqp091.runs import Head
from assay.reference_broker.amqp091.wire.content import NONE, BasicProperties
from assay.reference_broker.amqp091.wire.replies import AmqpError, Reply
from assay.reference_broker.core.broker import Broker
from assay.reference_broker.queues import Delivery, Outcome
from assay.reference_broker.queues.delivery import dispatcher
from assay.reference_broker.queues.jobs.confirms import ignore
from assay.reference_broker.queues.messages.message_batch import MessageBatch
from assay.reference_broker.queues.queue import enqueue_path
from assay.reference_broker.routing.message import Message, changed

# Publishing


@mutant("amqp-persistent-messages-overtaken", "what is not persistent overtakes what is")
def persistent_messages_overtaken(patch: Patch) -> None:
    waiting: WeakKeyDictionary[Publishing, list[tuple[Head, bytes, float]]] = WeakKeyDictionary()

    def make(original: Callable[..., int]) -> Callable[..., int]:
        def publish(self: Publishing, heads: Sequence[Head], bodies: Sequence[bytes], now: float) -> int:
            held = waiting.setdefault(self, [])
            for head, body in zip(heads, bodies, strict=True):
                if head.properties.delivery_mode == PERSISTENT:
                    held.append((head, body, now))
                    self._channel.connection.flush_later(self._channel)
                else:
                    original(self, (head,), (body,), now)
                    release(self, original)
            return len(bodies)

        return publish

    def release(self: Publishing, original: Callable[..., int]) -> None:
        held = waiting.get(self, [])
        while held:
            head, body, now = held.pop(0)
            original(self, (head,), (body,), now)

    unbroken = Publishing.publish

    def make_flush(original: Callable[..., None]) -> Callable[..., None]:
        def flush(self: Publishing) -> None:
            release(self, unbroken)
            original(self)

        return flush

    patch.wrap(Publishing, "publish", make)
    patch.wrap(Publishing, "flush", make_flush)


@mutant("amqp-confirmed-by-the-first-queue", "a message is confirmed when the first of its queues has it")
def confirmed_by_the_first_queue(patch: Patch) -> None:
    last: list[Message] = []

    def make(original: Callable[..., bool]) -> Callable[..., bool]:
        def enqueue_batch(self: Broker, address: Any, batch: MessageBatch, client: Any, part: Any, now: float) -> bool:
            if last and batch.messages[0] is last[0]:

                def later_on(later: float) -> None:
                    original(self, address, batch, client, lambda _some: ignore, later)

                part(range(len(batch.messages)))(None)
                self.timers.schedule(now + 0.5, later_on)
                return True
            last[:] = batch.messages[:1]
            return original(self, address, batch, client, part, now)

        return enqueue_batch

    patch.wrap(Broker, "enqueue_batch", make)


@mutant("amqp-returns-bare", "what comes back has lost its properties")
def returns_bare(patch: Patch) -> None:
    def make(original: Callable[..., None]) -> Callable[..., None]:
        def give_back(self: Publishing, exchange: str, key: str, _properties: BasicProperties, body: bytes) -> None:
            original(self, exchange, key, NONE, body)

        return give_back

    patch.wrap(Publishing, "return_unrouted", make)


@mutant("amqp-messages-of-any-size", "no message is too large")
def messages_of_any_size(patch: Patch) -> None:
    patch.rewrite(Channel, "on_header", "if size > most:", "if False:")


@mutant("amqp-headers-larger-than-frames", "a content header that does not fit in a frame is sent all the same")
def headers_larger_than_frames(patch: Patch) -> None:
    def make(original: Callable[..., bytes]) -> Callable[..., bytes]:
        return lambda size, properties, _max_bytes: original(size, properties, 1 << 30)

    patch.wrap(publishing, "header_of", make)
    from assay.reference_broker.amqp091 import consuming

    patch.wrap(consuming, "header_of", make)


# Consuming


@mutant("amqp-shared-prefetch-only-grows", "a shared prefetch that is made smaller stays as it was")
def shared_prefetch_only_grows(patch: Patch) -> None:
    most: WeakKeyDictionary[Consuming, int] = WeakKeyDictionary()

    def make(original: Callable[..., None]) -> Callable[..., None]:
        def qos(self: Consuming, size: int, count: int, of_channel: bool, now: float) -> None:
            if of_channel:
                count = most[self] = max(count, most.get(self, 0))
            original(self, size, count, of_channel, now)

        return qos

    patch.wrap(Consuming, "qos", make)


@mutant("amqp-prefetch-size-is-a-size-of-messages", "what is larger than the prefetch size never comes")
def prefetch_size_is_a_size_of_messages(patch: Patch) -> None:
    sizes: WeakKeyDictionary[Consuming, int] = WeakKeyDictionary()

    def make_qos(original: Callable[..., None]) -> Callable[..., None]:
        def qos(self: Consuming, size: int, *values: Any) -> None:
            sizes[self] = size
            original(self, 0, *values)

        return qos

    def make_deliver(original: Callable[..., bool]) -> Callable[..., bool]:
        def deliver(self: Consuming, consumer: AmqpConsumer, delivery: Delivery) -> bool:
            size = sizes.get(self, 0)
            return not (size and len(delivery.message.payload) > size) and original(self, consumer, delivery)

        return deliver

    patch.wrap(Consuming, "qos", make_qos)
    patch.wrap(Consuming, "deliver", make_deliver)


@mutant("amqp-slow-readers-lose", "what a consumer has no room to be sent is dropped")
def slow_readers_lose(patch: Patch) -> None:
    def make(original: Callable[..., bool]) -> Callable[..., bool]:
        def deliver(self: Consuming, consumer: AmqpConsumer, delivery: Delivery) -> bool:
            connection = self._channel.connection
            if not connection.is_full:
                return original(self, consumer, delivery)
            connection.broker.settle_delivery(delivery, Outcome.ACCEPT, consumer, connection.broker.now, ignore)
            return True

        return deliver

    patch.wrap(Consuming, "deliver", make)


@mutant("amqp-cancel-needs-a-consumer", "Cancel of a tag that nobody has is an error")
def cancel_needs_a_consumer(patch: Patch) -> None:
    def make(original: Callable[..., None]) -> Callable[..., None]:
        def cancel(self: Consuming, tag: str, no_wait: bool, now: float) -> None:
            if tag not in self._consumers:
                raise AmqpError(Reply.NOT_FOUND, f"no consumer '{tag}'")
            original(self, tag, no_wait, now)

        return cancel

    patch.wrap(Consuming, "cancel", make)


@mutant("amqp-consumer-tags-of-connections", "Cancel ends the consumers of that tag on all channels of the connection")
def consumer_tags_of_connections(patch: Patch) -> None:
    def make(original: Callable[..., None]) -> Callable[..., None]:
        def cancel(self: Consuming, tag: str, no_wait: bool, now: float) -> None:
            for channel in self._channel.connection.channels.values():
                if channel.consuming is not self:
                    original(channel.consuming, tag, True, now)
            original(self, tag, no_wait, now)

        return cancel

    patch.wrap(Consuming, "cancel", make)


@mutant("amqp-quorum-cancel-fails", "a consumer of a quorum queue cannot be cancelled")
def quorum_cancel_fails(patch: Patch) -> None:
    def make(original: Callable[..., None]) -> Callable[..., None]:
        def cancel(self: Consuming, tag: str, no_wait: bool, now: float) -> None:
            consumer = self._consumers.get(tag)
            if consumer is not None and any(name == "x-queue-type" for name, _ in consumer.record.arguments):
                raise AmqpError(Reply.INTERNAL_ERROR, "no such function clause: cancel of a quorum queue")
            original(self, tag, no_wait, now)

        return cancel

    patch.wrap(Consuming, "cancel", make)


@mutant("amqp-all-consumers-active", "all consumers of a queue with a single active one are active")
def all_consumers_active(patch: Patch) -> None:
    patch.wrap(AmqpConsumer, "set_active", lambda original: lambda self, active: None)


# Settlement


@mutant("amqp-nack-drops", "a nacked message is dropped though it should be available again")
def nack_drops(patch: Patch) -> None:
    def make(original: Callable[..., None]) -> Callable[..., None]:
        return lambda self, tag, multiple, _requeue, now: original(self, tag, multiple, False, now)

    patch.wrap(Consuming, "nack", make)


@mutant("amqp-reject-forgotten", "a rejection without requeue is passed over: the message waits on")
def reject_forgotten(patch: Patch) -> None:
    def make(original: Callable[..., None]) -> Callable[..., None]:
        def reject(self: Consuming, tag: int, requeue: bool, now: float) -> None:
            if requeue:
                original(self, tag, requeue, now)

        return reject

    patch.wrap(Consuming, "reject", make)


@mutant("amqp-reject-needs-a-dead-letter-exchange", "what was rejected for an exchange that is not there stays")
def reject_needs_a_dead_letter_exchange(patch: Patch) -> None:
    def make(original: Callable[..., None]) -> Callable[..., None]:
        def reject(self: Consuming, tag: int, requeue: bool, now: float) -> None:
            channel = self._channel
            record = self._unsettled[tag].consumer.record
            exchange = channel.service.use_of(channel.vhost, record).arguments.dead_letter_exchange
            original(self, tag, requeue or (exchange is not None and exchange not in channel.vhost.exchanges), now)

        return reject

    patch.wrap(Consuming, "reject", make)


@mutant("amqp-recover-without-requeue-is-internal", "Recover without requeue is an internal error")
def recover_without_requeue_is_internal(patch: Patch) -> None:
    def make(original: Callable[..., None]) -> Callable[..., None]:
        def recover(self: Consuming, requeue: bool, now: float) -> None:
            if not requeue:
                raise AmqpError(Reply.INTERNAL_ERROR, "no such case: recover without requeue")
            original(self, requeue, now)

        return recover

    patch.wrap(Consuming, "recover", make)


@mutant("amqp-recover-commits", "Recover carries out what was acknowledged in the open transaction")
def recover_commits(patch: Patch) -> None:
    def make(original: Callable[..., None]) -> Callable[..., None]:
        def recover(self: Consuming, requeue: bool, now: float) -> None:
            transaction = self._channel.publishing.transaction
            while transaction is not None and transaction.settlements:
                self.carry_out(transaction.settlements.pop(), now, ignore)
            original(self, requeue, now)

        return recover

    patch.wrap(Consuming, "recover", make)


@mutant("amqp-purge-takes-all", "a purge takes what was delivered and is not acknowledged as well")
def purge_takes_all(patch: Patch) -> None:
    def make(_name: str, original: Handler) -> Handler:
        def purge(channel: Channel, queue: str, no_wait: bool, now: float) -> None:
            for each in channel.connection.channels.values():
                each.consuming.ack(0, True, now)
            original(channel, queue, no_wait, now)

        return purge

    wrap_handlers(patch, ("queue.purge",), make)


@mutant("amqp-deletions-take-their-time", "Delete-Ok comes half a second before the queue goes")
def deletions_take_their_time(patch: Patch) -> None:
    def make(_name: str, original: Handler) -> Handler:
        def delete(channel: Channel, queue: str, if_unused: bool, if_empty: bool, _no_wait: bool, now: float) -> None:
            def later(then: float) -> None:
                if channel.connection.vhost is not None:
                    original(channel, queue, if_unused, if_empty, True, then)

            channel.connection.broker.timers.schedule(now + 0.5, later)
            channel.send("queue.delete-ok", 0)

        return delete

    wrap_handlers(patch, ("queue.delete",), make)


# What a queue is asked to do


def _settings(change: Callable[[dict[str, Any]], object]) -> Callable[[Patch], None]:
    """The engine gets other settings of a queue."""

    def apply(patch: Patch) -> None:
        def make(original: Callable[..., dict[str, Any]]) -> Callable[..., dict[str, Any]]:
            def settings_of(arguments: QueueArguments, **named: Any) -> dict[str, Any]:
                settings = original(arguments, **named)
                change(settings)
                return settings

            return settings_of

        patch.wrap(service, "settings_of", make)

    return apply


mutant("amqp-queues-keep-a-thousand", "a queue without limits drops its oldest beyond a thousand messages")(
    _settings(lambda settings: settings.update(max_depth=1_000, overflow="drop_oldest"))
)
mutant("amqp-delivery-limit-counts-late", "a delivery limit lets one more delivery through")(
    _settings(lambda settings: settings["retry"].update(max_retries=settings["retry"]["max_retries"] + 1))
)
mutant("amqp-messages-in-memory", "a queue keeps its messages in memory alone, be they persistent or not")(
    _settings(lambda settings: settings.update(durability="memory"))
)
mutant("amqp-full-queues-drop-the-newest", "a full queue drops what comes")(
    _settings(lambda settings: settings.pop("overflow", None))
)


@mutant("amqp-nothing-expires", "no message and no queue ever expires")
def nothing_expires(patch: Patch) -> None:
    def make_parse(original: Callable[..., QueueArguments]) -> Callable[..., QueueArguments]:
        def parse(*arguments: Any) -> QueueArguments:
            return msgspec.structs.replace(original(*arguments), message_ttl_ms=None, expires_ms=None)

        return parse

    def make_message(original: Callable[..., Message]) -> Callable[..., Message]:
        return lambda *arguments: changed(original(*arguments), expires_at=0.0)

    patch.wrap(service, "parse_arguments", make_parse)
    patch.wrap(publishing, "message_from", make_message)


@mutant("amqp-letters-go-round", "a dead letter goes round in a circle for ever")
def letters_go_round(patch: Patch) -> None:
    patch.wrap(dead_letters, "is_cycle", lambda original: lambda queue, deaths: False)


@mutant("amqp-letters-tell-nothing", "a dead letter does not say where and why it died")
def letters_tell_nothing(patch: Patch) -> None:
    patch.wrap(dead_letters, "with_death", lambda original: lambda headers, *death: headers)


@mutant("amqp-no-time-is-no-chance", "what lives for no time at all is gone before whoever waits for it gets it")
def no_time_is_no_chance(patch: Patch) -> None:
    patch.wrap(dispatcher, "is_at_once", lambda original: lambda _stored: False)


@mutant("amqp-priorities-share-lanes", "of ten priorities two and two are one")
def priorities_share_lanes(patch: Patch) -> None:
    patch.wrap(enqueue_path, "lane_of_exact", lambda original: lambda level, config: original(level & ~1, config))


@mutant("amqp-max-priority-passed-over", "x-max-priority is taken, whatever it is, and does nothing")
def max_priority_passed_over(patch: Patch) -> None:
    from assay.reference_broker.amqp091 import queue_settings

    patch.item(queue_settings.ARGUMENT_READERS, "x-max-priority", ("max_priority", lambda _value, _now: None))

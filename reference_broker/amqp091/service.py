"""AMQP 0.9.1 of one node: its virtual hosts, who uses which queue, and what makes its connections."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from contextlib import suppress
from typing import Final, Protocol

import msgspec

from assay.reference_broker.amqp091.dead_letters import DeadLetterExchange
from assay.reference_broker.amqp091.direct_replies import DirectReplies
from assay.reference_broker.amqp091.names import DEFAULT_VHOST, GROUP, engine_name
from assay.reference_broker.amqp091.queue_settings import QueueArguments, parse_arguments, settings_of
from assay.reference_broker.amqp091.rights import TOPICS
from assay.reference_broker.amqp091.topology import (
    Held,
    QueueRecord,
    Topology,
    VirtualHost,
    declaration_of,
    declared_in,
    restored_queue,
    routing_key_of,
)
from assay.reference_broker.amqp091.wire.replies import AmqpError, Reply
from assay.reference_broker.core.broker import Broker
from assay.reference_broker.core.clients import Client
from assay.reference_broker.core.connection import Connection
from assay.reference_broker.core.tenant import Tenant
from assay.reference_broker.core.timers import Timer
from assay.reference_broker.queues import QueueAddress, QueueError, QueueErrorCode
from assay.reference_broker.queues.jobs.confirms import Confirm, ignore
from assay.reference_broker.routing.message import Message, changed
from assay.reference_broker.routing.properties import MessageProperties

_MOST_DECLARED: Final = 12_000
"""Characters of a declaration that the settings of a queue have room for."""


class Peer:
    """A client that speaks AMQP: what it publishes to topics has gone to their queues before."""

    __slots__ = ()


class QueueUser(Protocol):
    """A consumer, as its queue knows it."""

    is_exclusive: bool

    def set_active(self, *, active: bool) -> None:
        """Whether it is the one that gets messages, of a queue that has but one."""

    def queue_ended(self) -> None:
        """The queue was deleted."""


class Journal(Protocol):
    """What writes down the changes of a turn."""

    turn: int
    """Grows with every write."""

    asking: dict[Connection, None]
    """Those that are told of what any write so far tells, their own or those of others."""


class QueueUse:
    """Who consumes from one queue over AMQP, and what ends it."""

    __slots__ = ("arguments", "consumers", "expiry", "is_exclusive", "used_at")

    def __init__(self, arguments: QueueArguments, now: float) -> None:
        self.arguments = arguments
        self.consumers: dict[QueueUser, None] = {}
        """In the order in which they came."""
        self.is_exclusive = False
        """One of them is to be the only one."""
        self.used_at = now
        self.expiry: Timer | None = None


class Amqp091:
    """One for each node."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.journal: Journal | None = None
        """Where changes are written down, which an answer may have to wait for."""
        self._held: dict[str, Held] = {}
        """Records of queues that could not be removed, by engine name: they go with them."""
        self.topology = Topology()
        self.version = 0
        """Grows when something of that changes, as the engine's does when queues come and go."""
        self.replies = DirectReplies()
        self._uses: dict[str, QueueUse] = {}
        """By engine name."""
        self._letter_takers: dict[str, DeadLetterExchange] = {}
        """Of queues whose dead letters go to an exchange, by engine name."""
        broker.engine.send_letters_elsewhere(self._letter_takers.get)

    def vhost(self, name: str, tenant: Tenant | None) -> VirtualHost | None:
        """A virtual host that a client may open: the default one, and that of its tenant, by the tenant's name."""
        if name != (DEFAULT_VHOST if tenant is None else tenant.name):
            return None
        return self.topology.vhost(name)

    def engine_name(self, vhost: VirtualHost, queue: str) -> str:
        """The engine's name of a queue."""
        name = engine_name(queue)
        return name if vhost.name == DEFAULT_VHOST else f"{vhost.name}.{name}"

    # -- queues --------------------------------------------------------------------------------------------------

    def _has_queue(self, vhost: str, queue: str) -> bool:
        """Whether the engine has the queue of a record that was read at the start."""
        name = engine_name(queue)
        return self.broker.engine.exists(name if vhost == DEFAULT_VHOST else f"{vhost}.{name}")

    def exists(self, vhost: VirtualHost, queue: str) -> bool:
        """Whether there is such a queue. One that came over another protocol gets a record, and one that went loses it.

        Also where nobody asks for it: a message must not make a queue anew that was deleted.
        """
        name = self.engine_name(vhost, queue)
        there = self.broker.engine.exists(name)
        if there == (queue in vhost.queues):
            return there
        if there:
            self._take_over(vhost, queue, name)
        else:
            self._forget(vhost, queue, name)
        return there

    def _take_over(self, vhost: VirtualHost, queue: str, name: str) -> None:
        """A queue without a record gets one: as it says itself that it was declared, or as one of another protocol."""
        record = QueueRecord(name=queue, durable=True)
        text = self.broker.engine.declarations().get(name)
        with suppress(ValueError, msgspec.MsgspecError):
            if text is not None:
                record = restored_queue(queue, declared_in(text)[2])
        vhost.add_queue(record)
        if record.arguments:
            self._touch(vhost, record, self.use_of(vhost, record), self.broker.now)

    def find(self, vhost: VirtualHost, queue: str, owner: Hashable) -> QueueRecord:
        """A queue, be it one that came over another protocol. Raises :class:`AmqpError` (404, 405)."""
        self.exists(vhost, queue)
        return vhost.find_queue(queue, owner=owner)

    def queue_ended(self, vhost: VirtualHost, queue: str) -> None:
        """The engine ends it, whoever asked for that."""
        if queue in vhost.queues:
            self._forget(vhost, queue, self.engine_name(vhost, queue))

    def _forget(self, vhost: VirtualHost, queue: str, name: str) -> None:
        """It is gone, or about to go: its bindings go, and who consumes from it over AMQP is told."""
        vhost.remove_queue(queue)
        self.topology_changed()
        use = self._uses.pop(name, None)
        self._letter_takers.pop(name, None)
        if use is not None:
            if use.expiry is not None:
                use.expiry.cancel()
            for consumer in list(use.consumers):
                consumer.queue_ended()

    def declare(
        self,
        vhost: VirtualHost,
        record: QueueRecord,
        *,
        owner: Hashable,
        passive: bool,
        by_server: bool,
        now: float,
        on_declared: Confirm,
    ) -> None:
        """``queue.declare``; ``on_declared`` is called when it is there for good. Raises :class:`AmqpError`,
        :class:`QueueError`."""
        name = record.name
        engine = self.broker.engine
        engine_queue = self.engine_name(vhost, name)
        self.exists(vhost, name)
        found = vhost.check_queue(
            name,
            owner=owner,
            passive=passive,
            durable=record.durable,
            exclusive=record.exclusive_owner is not None,
            auto_delete=record.auto_delete,
            arguments=record.arguments,
            is_named_by_server=by_server,
        )
        use = self._uses.get(engine_queue)
        if found is not None:
            if use is not None:
                self._touch(vhost, found, use, now)
            # Another client's declaration of it may still be under way.
            engine.when_made(engine_queue, on_declared, group=GROUP)
            return
        arguments = parse_arguments(name, record.arguments)
        if arguments.is_stream:
            _check_stream(record)
        # Beside the body, its properties count as well.
        most = 2 * self.broker.config.amqp091.max_message_bytes
        settings = settings_of(arguments, durable=record.durable, max_message_bytes=most)
        if record.durable:
            declared_as = declaration_of(vhost.name, name, record.stored)
            # Where it is too long the record has to do.
            settings |= {"declared_as": declared_as} if len(declared_as) <= _MOST_DECLARED else {}
        engine.create_queue(engine_queue, settings, now)
        # Its group begins now: what other groups settle is not taken from it.
        if arguments.is_stream:
            engine.when_made(engine_queue, on_declared)
        else:
            engine.create_group(engine_queue, GROUP, now, on_declared)
        vhost.add_queue(record)
        record = vhost.queues[name]  # which may be another: an exclusive one is not durable
        use = self._begin_use(vhost, record, arguments)
        self._touch(vhost, record, use, now)

    def use_of(self, vhost: VirtualHost, record: QueueRecord) -> QueueUse:
        """Who consumes from a queue."""
        name = self.engine_name(vhost, record.name)
        use = self._uses.get(name)
        if use is None:
            try:
                arguments = parse_arguments(record.name, record.arguments)
            except AmqpError:
                # A later version took it.
                arguments = QueueArguments()
            use = self._begin_use(vhost, record, arguments)
        return use

    def _begin_use(self, vhost: VirtualHost, record: QueueRecord, arguments: QueueArguments) -> QueueUse:
        name = self.engine_name(vhost, record.name)
        if arguments.dead_letter_exchange is not None:
            self._letter_takers[name] = DeadLetterExchange(
                self.broker.engine,
                vhost,
                record.name,
                arguments.dead_letter_exchange,
                arguments.dead_letter_routing_key,
                lambda queue: self.engine_name(vhost, queue),
            )
        use = self._uses[name] = QueueUse(arguments, self.broker.now)
        return use

    def ready_count(self, vhost: VirtualHost, queue: str) -> int:
        """Messages that a consumer could get."""
        return max(0, self.broker.engine.ready_count(self.engine_name(vhost, queue), GROUP))

    def consumer_count(self, vhost: VirtualHost, queue: str) -> int:
        """Consumers over AMQP."""
        use = self._uses.get(self.engine_name(vhost, queue))
        return 0 if use is None else len(use.consumers)

    def delete(self, vhost: VirtualHost, record: QueueRecord, now: float, on_done: Confirm) -> None:
        """A queue goes with all it holds; ``on_done`` is called once its end is durable, or with why it cannot be."""
        name = self.engine_name(vhost, record.name)
        with self.topology.holding_deletions() as held:
            self._forget(vhost, record.name, name)

        def deleted(error: QueueError | None) -> None:
            # A start before that finds all of it, one behind it nothing.
            if error is None:
                self.topology.let_go(held)
            else:
                self._held[name] = held
            on_done(error)

        try:
            self.broker.engine.delete_queue(name, now, deleted, although_used=True)
        except QueueError as error:
            if error.code is not QueueErrorCode.UNKNOWN_QUEUE:
                raise
            deleted(None)

    def when_gone(self, vhost: VirtualHost, queue: str, on_done: Confirm) -> None:
        """There is no such queue; ``on_done`` is called once no start brings one back that was deleted, or with why."""
        name = self.engine_name(vhost, queue)

        def gone(error: QueueError | None) -> None:
            if error is None and (held := self._held.pop(name, None)) is not None:
                self.topology.let_go(held)
            on_done(error)

        self.broker.engine.when_gone(name, gone)

    # -- topics of MQTT, which amq.topic has in the default virtual host ---------------------------------------------

    def topology_changed(self) -> None:
        """Exchanges, queues or bindings may be others than before."""
        self.version += 1
        bound = self.topology.vhost(DEFAULT_VHOST).exchanges[TOPICS].bindings
        self.broker.take_topics(self if bound else None)

    def takes(self, topic: str) -> bool:
        """See :class:`TopicTaker`."""
        key = routing_key_of(topic)
        return key is not None and bool(self.topology.vhost(DEFAULT_VHOST).route(TOPICS, key).queues)

    def take(self, message: Message, publisher: Client | None, now: float) -> None:
        """See :class:`TopicTaker`. What came over AMQP went there already."""
        key = None if isinstance(publisher, Peer) else routing_key_of(message.topic)
        if key is None:
            return
        vhost = self.topology.vhost(DEFAULT_VHOST)
        queues = vhost.route(TOPICS, key).queues
        if not queues:
            return
        kept = message.properties or MessageProperties(durable=message.qos > 0)
        kept = msgspec.structs.replace(kept, exchange=TOPICS, routing_key=key)
        copy = changed(message, topic="", qos=0, retain=False, properties=kept)
        for queue in queues:
            with suppress(QueueError):
                self.broker.engine.publish(QueueAddress(queue=self.engine_name(vhost, queue)), copy, now, None)

    # -- when queues end by themselves ---------------------------------------------------------------------------

    def joined(self, vhost: VirtualHost, record: QueueRecord, consumer: QueueUser) -> None:
        """Somebody consumes from a queue."""
        use = self.use_of(vhost, record)
        use.consumers[consumer] = None
        if use.arguments.is_single_active and len(use.consumers) > 1:
            consumer.set_active(active=False)
        use.is_exclusive = consumer.is_exclusive
        self._touch(vhost, record, use, self.broker.now)

    def left(self, vhost: VirtualHost, record: QueueRecord, consumer: QueueUser, now: float) -> None:
        """And does no more: the last one of an auto-delete queue takes it along."""
        use = self._uses.get(self.engine_name(vhost, record.name))
        if use is None or consumer not in use.consumers:
            return
        was_first = next(iter(use.consumers)) is consumer
        del use.consumers[consumer]
        if consumer.is_exclusive:
            use.is_exclusive = False
        if use.arguments.is_single_active and was_first and use.consumers:
            next(iter(use.consumers)).set_active(active=True)
        if record.auto_delete and not use.consumers:
            self.delete(vhost, record, now, ignore)
        else:
            self._touch(vhost, record, use, now)

    def touch(self, vhost: VirtualHost, record: QueueRecord, now: float) -> None:
        """It was used: it expires later (rmq.queue.expires)."""
        self._touch(vhost, record, self.use_of(vhost, record), now)

    def _touch(self, vhost: VirtualHost, record: QueueRecord, use: QueueUse, now: float) -> None:
        expires_ms = use.arguments.expires_ms
        if expires_ms is None:
            return
        use.used_at = now
        if use.expiry is None:

            def look(later: float) -> None:
                use.expiry = None
                if vhost.queues.get(record.name) is not record:
                    return
                due = later if use.consumers else use.used_at + expires_ms / 1_000
                if due <= later and not use.consumers:
                    self.delete(vhost, record, later, ignore)
                else:
                    use.expiry = self.broker.timers.schedule(max(due, later + expires_ms / 1_000), look)

            use.expiry = self.broker.timers.schedule(now + expires_ms / 1_000, look)

    def restore(
        self, records: Mapping[bytes, bytes], journal: Journal, on_problem: Callable[[str], None], now: float
    ) -> None:
        """What was declared before a restart; ``on_problem`` is told of what could not be read. Expiries begin anew."""
        self.journal = journal
        self.topology.restore(
            records,
            on_problem,
            has_queue=self._has_queue,
            declarations=self.broker.engine.declarations().values(),
        )
        self.topology_changed()
        for vhost in self.topology.vhosts.values():
            for record in list(vhost.queues.values()):
                self._touch(vhost, record, self.use_of(vhost, record), now)


def _check_stream(record: QueueRecord) -> None:
    """Raises :class:`AmqpError` (406): a stream outlives who declares it."""
    for holds, what in (
        (not record.durable and record.exclusive_owner is None, "non-durable"),
        (record.exclusive_owner is not None, "exclusive"),
        (record.auto_delete, "auto-delete"),
    ):
        if holds:
            text = f"invalid property '{what}' for queue '{record.name[:80]}': it is a stream"
            raise AmqpError(Reply.PRECONDITION_FAILED, text, rule="rmq.x-queue-type")

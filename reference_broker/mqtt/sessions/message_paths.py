"""The ways of a message: from its publisher to the sessions that match, or into the queues and back."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from itertools import chain
from typing import ClassVar

from assay.reference_broker.config import BrokerConfig
from assay.reference_broker.core.routing import SharedGroup, Subscription, SubscriptionTree
from assay.reference_broker.core.tenant import told_out
from assay.reference_broker.core.tenants import Tenants
from assay.reference_broker.core.traffic import Traffic
from assay.reference_broker.mqtt.queue_topics.addresses import (
    QUEUE_PREFIXES,
    QueueTopic,
    QueueTopics,
    is_queue_topic,
)
from assay.reference_broker.mqtt.queue_topics.admin_topics import ADMIN_PREFIX
from assay.reference_broker.mqtt.queue_topics.delivery_properties import delivery_properties
from assay.reference_broker.mqtt.queue_topics.group_properties import GROUP_VERBS, request_of_group
from assay.reference_broker.mqtt.queue_topics.publish_properties import DELAY_ID, parse_options, read_options
from assay.reference_broker.mqtt.queue_topics.settle_properties import OUTCOMES, parse_settlement
from assay.reference_broker.mqtt.queue_topics.transaction_topics import TRANSACTION_PREFIX
from assay.reference_broker.mqtt.sessions.retained import RetainedStore
from assay.reference_broker.mqtt.sessions.session import Session, SharedOutgoing
from assay.reference_broker.mqtt.sessions.transaction_requests import check_producers
from assay.reference_broker.queues import (
    Delivery,
    Outcome,
    QueueEngine,
    QueueError,
    QueueErrorCode,
    SettleRequest,
)
from assay.reference_broker.queues.jobs.confirms import Confirm, Stored, ignore
from assay.reference_broker.routing.message import Message
from assay.reference_broker.trace.schema import TraceKind, Tracer

CLOCK_TOPIC = "$admin/clock/advance"
"""Where a test moves the clock of a broker that lets it (``testing.movable_clock``)."""
_NOT_ROUTED = (*QUEUE_PREFIXES, ADMIN_PREFIX, TRANSACTION_PREFIX)


class MessagePaths:
    """Who gets a message, and what consumers say about it."""

    __slots__ = (
        "_agenda",
        "advance_clock",
        "config",
        "engine",
        "leaving",
        "now",
        "published",
        "refused",
        "retained",
        "room_bytes",
        "room_is_scarce",
        "room_refusals",
        "tenants",
        "topics",
        "tracer",
        "traffic",
        "tree",
        "work",
    )

    tree_class: ClassVar[type[SubscriptionTree]] = SubscriptionTree

    def __init__(self, config: BrokerConfig, engine: QueueEngine, tracer: Tracer | None) -> None:
        self.config = config
        self.engine: QueueEngine = engine
        self._agenda = engine.agenda
        self.topics = QueueTopics(engine)
        self.tracer = tracer
        self.tree: SubscriptionTree = self.tree_class()
        engine.on_bindings_changed = self.tree.invalidate_plans
        self.retained: RetainedStore = RetainedStore(config.mqtt.max_retained_messages, config.mqtt.max_retained_bytes)
        self.tenants: Tenants | None = Tenants(config.queues.tenants, engine) if config.queues.tenants else None
        self.traffic: Traffic = Traffic()
        self.published = 0
        self.refused = 0
        """Unconfirmed messages that a queue did not take."""
        self.advance_clock: Callable[[bytes], None] | None = None
        """Takes the payload of a publish to :data:`CLOCK_TOPIC`; None = that is a topic like others."""
        self.now = 0.0
        """Time of the current turn; set by whoever drives the broker."""
        self.leaving: deque[tuple[Session, list[Subscription]]] = deque()
        """Sessions that ended, with subscriptions that are still in the tree."""
        self.room_bytes: int | None = None
        """Of messages that sessions and retained messages may still take in this turn; negative while the disk is
        nearly full, and what needs room is refused: see :meth:`take_room`. None = nothing is kept on a disk."""
        self.room_refusals = 0
        self.room_is_scarce = False
        """Half of what is kept free is gone: nobody begins anything that would take some."""
        self.work = 0
        """What a connection has had done in this turn beside its packets; 1 is about as much as one of them takes."""

    def take_room(self, spare_bytes: int, reserve_bytes: int) -> None:
        """Each turn: how much may be written before the disk's reserve is touched. Acknowledgements, removals and
        connections are written into the reserve."""
        self.room_bytes = spare_bytes
        self.room_is_scarce = 2 * spare_bytes + reserve_bytes < 0

    # -- topics --------------------------------------------------------------------------------------------------

    def publish(self, message: Message, publisher: Session | None, now: float) -> bool:
        """Route a message that nobody waits to see confirmed, or one for an ordinary topic.

        True: somebody gets it. Raises :class:`QueueError` when no more retained messages can be kept. A message for a
        queue that the queue refuses is traced as an error and dropped, as QoS 0 allows.
        """
        if message.topic.startswith(_NOT_ROUTED):
            # Nobody can wait here for a request to be answered; wills and the like are dropped.
            if is_queue_topic(message.topic):
                self.publish_to_queue(message, publisher, now, self._note_refused)
            return True
        if self.advance_clock is not None and message.topic == CLOCK_TOPIC:
            self.advance_clock(message.payload)
            return True
        room_bytes = self.room_bytes
        if room_bytes is not None:
            # Counted for whoever gets it: a turn has no time to find out, and the next one begins anew.
            self.room_bytes = room_bytes = room_bytes - len(message.payload)
            if room_bytes < 0:
                self._refuse_without_room(message)
        if message.retain:
            self.work += len(message.topic) >> 5
            if not self.retained.store(message):
                raise QueueError(QueueErrorCode.LIMIT, "the broker keeps no more retained messages")
        return self._fan_out(message, publisher)

    @property
    def has_no_room(self) -> bool:
        """What needs room on the disk is refused in this turn."""
        return self.room_bytes is not None and self.room_bytes < 0

    def _refuse_without_room(self, message: Message) -> None:
        """Raises :class:`QueueError` where it needs some."""
        if self.needs_room(message):
            self.room_refusals += 1
            raise QueueError(QueueErrorCode.QUOTA, "the disk is nearly full: nothing more is kept for clients")

    def needs_room(self, message: Message) -> bool:
        """Whether something of it would be written: as a retained message, or for a session that is kept."""
        if message.retain and message.payload:
            return True
        if not message.qos:
            return False
        route = self.tree.route(message.topic)
        self.work += len(route.entries) >> 2
        return any(entry.qos and entry.subscriber.kept is not None for entry in route.entries) or any(
            member.kept is not None for group in route.groups for member in group.members
        )

    def publish_figure(self, message: Message) -> None:
        """Route a ``$SYS`` value of the broker's own; it is not kept as a retained message."""
        self._fan_out(message, None)

    def _note_refused(self, error: QueueError | None) -> None:
        if error is not None:
            self.refused += 1
            if self.tracer is not None:
                self.tracer(TraceKind.PROTOCOL_ERROR, {"detail": str(error)})

    def _fan_out(self, message: Message, publisher: Session | None) -> bool:
        self.published += 1
        if self.tracer is not None:
            self.tracer(TraceKind.PUBLISHED, {"client_id": message.publisher, "topic": message.topic})
        route = self.tree.route(message.topic)
        entries = route.entries
        if route.work:
            self.work += route.work
        if self.tree.walked:
            self.work += self.tree.take_cost()
        qos = message.qos
        retain = message.retain
        for merged in entries:
            session = merged.subscriber
            entry = merged.own if session is publisher else merged
            if entry is None:
                continue
            session.deliver(
                message,
                qos if qos < entry.qos else entry.qos,
                retain and entry.retain_as_published,
                entry.identifiers,
            )
        for group in route.groups:
            self._share(group, message)
        if self.engine.captures is not None:
            self._capture(message, publisher)
        if self.leaving:
            members = (member for group in route.groups for member in group.members)
            return not all(session.ended for session in chain((entry.subscriber for entry in route.entries), members))
        return bool(route.entries or route.groups)

    def _share(self, group: SharedGroup, message: Message) -> bool:
        """To one member; False when there is none."""
        chosen = group.choose()
        if chosen is None:
            return False
        member, subscription = chosen
        if not member.has_room:
            # Each of them was looked at.
            self.work += len(group.members) >> 4
        member.deliver(
            message,
            min(message.qos, subscription.qos),
            message.retain and subscription.retain_as_published,
            (subscription.identifier,) if subscription.identifier else (),
            share=group.share,
        )
        return True

    def pass_on(self, left: Sequence[SharedOutgoing], now: float) -> None:
        """Messages of shared subscriptions that a member left behind go to other members, in order (5.0 4.8.2)."""
        self.work += len(left)
        groups = {share: self.tree.shared_group(share) for share in {outgoing.share for outgoing in left}}
        for outgoing in left:
            message = outgoing.message
            if message.expires_at and message.expires_at <= now:
                continue
            group = groups[outgoing.share]
            if group is None or not self._share(group, message):
                self.discard_shared(outgoing, "no other client shares the subscription")

    def discard_shared(self, outgoing: SharedOutgoing, why: str) -> None:
        """A message that was acknowledged to its publisher reaches nobody of its shared subscription."""
        self.traffic.dropped += 1
        if self.tracer is not None:
            self.tracer(TraceKind.DISCARDED, {"topic": outgoing.message.topic, "detail": f"{outgoing.share}: {why}"})

    def _capture(self, message: Message, publisher: Session | None) -> None:
        """Queues get their copies, unless the message names a producer that is not its publisher's."""
        if message.user_properties and (self.tenants is not None or self.engine.transactions.has_producers):
            try:
                check_producers(self.engine, message, publisher)
            except QueueError as error:
                self._note_refused(error)
                return
        self.engine.capture(message, self.now, read_options(message.user_properties))
        self.work += self.engine.take_cost()

    # -- queues --------------------------------------------------------------------------------------------------

    def publish_to_queue(
        self,
        message: Message,
        publisher: Session | None,
        now: float,
        on_confirmed: Confirm,
        on_stored: Stored | None = None,
    ) -> None:
        """Enqueue, or settle when the topic ends in a verb. ``on_confirmed`` is called once, now or after a sync.

        ``on_stored``: see :meth:`QueueEngine.publish`.
        """
        try:
            if message.user_properties and (self.tenants is not None or self.engine.transactions.has_producers):
                check_producers(self.engine, message, publisher)
            if self.tenants is None:
                topic = self.topics.read(message.topic)
            else:
                topic, message, on_stored = self._of_tenant(self.tenants, message, publisher, on_stored)
            queue, properties = topic.address.queue, message.user_properties
            if topic.verb is None:
                options = parse_options(properties) if properties else None
                if publisher is not None and publisher.tenant is not None:
                    publisher.tenant.check_publish(message, options, self.engine, now)
                self.engine.publish(topic.address, message, now, on_confirmed, on_stored, options)
                return
            consumer_id = publisher.client_id if publisher is not None else None
            if topic.verb in OUTCOMES:
                request = parse_settlement(topic.verb, properties)
                self.engine.settle(queue, request, consumer_id=consumer_id, now=now, on_done=on_confirmed)
            elif topic.verb in GROUP_VERBS:
                groups = self.engine.groups
                request_of_group(
                    groups, topic.verb, queue, properties, consumer_id=consumer_id, now=now, on_done=on_confirmed
                )
            else:
                self._cancel(queue, message, now, on_confirmed)
        except QueueError as error:
            on_confirmed(error.bare())
        finally:
            if self._agenda.cost:
                self.work += self.engine.take_cost()

    def _of_tenant(
        self, tenants: Tenants, message: Message, publisher: Session | None, on_stored: Stored | None
    ) -> tuple[QueueTopic, Message, Stored | None]:
        """Where a message goes, how the engine takes it, and who is told of it.

        Raises :class:`QueueError` (BAD_ADDRESS, NOT_ALLOWED).
        """
        tenant = publisher.tenant if publisher is not None else None
        if tenant is None:
            topic = self.topics.read(message.topic)
            tenants.check_reach(publisher, topic.address)
            return topic, message, on_stored
        topic = self.topics.read(tenant.topic_in(message.topic))
        return topic, tenant.message_in(message, names_ids=topic.verb is not None), told_out(tenant, on_stored)

    def _cancel(self, queue: str, message: Message, now: float, on_done: Confirm) -> None:
        """Raises :class:`QueueError`."""
        delay_id = message.user_property(DELAY_ID)
        if delay_id is None:
            text = f"to cancel, name the delayed message by the user property {DELAY_ID}"
            raise QueueError(QueueErrorCode.BAD_OPTION, text)
        if not self.engine.cancel_delayed(queue, delay_id, now, on_done):
            text = f"{delay_id[:80]!r} does not wait for its time: it was delivered, cancelled, or never there"
            raise QueueError(QueueErrorCode.NOT_PENDING, text)

    def is_pressed(self, topic: str, session: Session) -> bool:
        """Whether who publishes to this topic of a queue should wait, since queues in memory hold too much."""
        if not self.engine.has_pressure:
            return False
        try:
            read = self.topics.read(topic if session.tenant is None else session.tenant.topic_in(topic))
        except QueueError:
            return False
        return self.engine.is_pressed(read.address)

    def received(self, session: Session, delivery: Delivery, now: float) -> None:
        """A client acknowledged, on the level of its protocol, a delivery that it need not settle itself."""
        consumer = session.auto_consumers.get((delivery.queue, delivery.group))
        if consumer is not None:
            self.engine.groups.received(consumer, delivery.partition, delivery.offset, now)

    def settle_delivery(self, session: Session, delivery: Delivery, now: float) -> None:
        """A protocol without explicit settlement (MQTT 3.1.1) acknowledged a queue delivery."""
        try:
            request = SettleRequest.of(delivery, Outcome.ACCEPT)
            self.engine.settle(delivery.queue, request, consumer_id=session.client_id, now=now, on_done=ignore)
        except QueueError:
            # It timed out and went to somebody else meanwhile; the client cannot be told in 3.1.1.
            return

    def delivery_message(self, delivery: Delivery) -> Message:
        """The message a consumer gets: the publisher's, on the delivery topic, with the queue's properties."""
        message = delivery.message
        return Message(
            topic=delivery.topic,
            payload=message.payload,
            qos=1,
            expires_at=message.expires_at,
            publisher=message.publisher,
            payload_format=message.payload_format,
            content_type=message.content_type,
            response_topic=message.response_topic,
            correlation_data=message.correlation_data,
            user_properties=delivery_properties(delivery),
        )

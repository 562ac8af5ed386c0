"""What MQTT adds to the broker: sessions, subscriptions, wills, retained messages, topics of queues.

Pure: commands come in with ``now``, effects leave through session connections and callbacks.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from math import inf
from typing import ClassVar

import msgspec

from assay.reference_broker.config import BrokerConfig, EventKind
from assay.reference_broker.core.broker import Broker
from assay.reference_broker.core.budget import Budget, MessageBudget
from assay.reference_broker.core.clients import Client
from assay.reference_broker.core.routing import Subscription, subscription_bytes
from assay.reference_broker.mqtt.queue_topics import tenant_names
from assay.reference_broker.mqtt.queue_topics.addresses import QueueTopics, is_queue_topic
from assay.reference_broker.mqtt.queue_topics.delivery_properties import delivery_properties
from assay.reference_broker.mqtt.queue_topics.group_properties import GROUP_VERBS, request_of_group
from assay.reference_broker.mqtt.queue_topics.publish_properties import (
    DELAY_ID,
    PRODUCER_ID,
    parse_options,
    read_options,
)
from assay.reference_broker.mqtt.queue_topics.served_topics import SERVED_PREFIXES
from assay.reference_broker.mqtt.queue_topics.settle_properties import OUTCOMES, parse_settlement
from assay.reference_broker.mqtt.sessions import queue_consumers
from assay.reference_broker.mqtt.sessions.access_review import AccessReview
from assay.reference_broker.mqtt.sessions.queue_admin import QueueAdmin
from assay.reference_broker.mqtt.sessions.retained import RetainedStore
from assay.reference_broker.mqtt.sessions.retained_sends import RetainedSends
from assay.reference_broker.mqtt.sessions.sending import MESSAGE_WORK, Sending
from assay.reference_broker.mqtt.sessions.session import Session, SessionConnection, SharedOutgoing, Will
from assay.reference_broker.mqtt.sessions.session_journal import SessionJournal
from assay.reference_broker.mqtt.sessions.sys_topics import SysTopics
from assay.reference_broker.queues import Delivery, Outcome, QueueEngine, QueueError, QueueErrorCode
from assay.reference_broker.queues.engine import Asked
from assay.reference_broker.queues.jobs.confirms import Confirm, Stored, ignore
from assay.reference_broker.routing.carried import correlation_data_of
from assay.reference_broker.routing.message import Message, changed
from assay.reference_broker.routing.remembered import SharedMemory
from assay.reference_broker.routing.topics import is_sys_topic
from assay.reference_broker.trace.schema import TraceKind, Tracer

CLOCK_TOPIC = "$admin/clock/advance"
"""Where a test moves the clock of a broker that lets it (``testing.movable_clock``)."""
_MAX_DIGITS = 20
MAX_ALL_PLAN_BYTES = 64 * 1024 * 1024
NEVER_EXPIRES_S = 0xFFFFFFFF
MAX_TAKEN_OUT = 1_024
"""Subscriptions of sessions that ended that a turn takes out of the tree, if they are not very many."""
MAX_TIMERS = 1_024
"""Timers that fire in a turn; those behind them are due in the next."""


def default_group(client_id: str) -> str:
    """The consumer group of a client that names none: its id up to the first ``-`` (the seeds' rule)."""
    return client_id.partition("-")[0] or client_id


class ConnectRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What a protocol asks of a session when a client connects."""

    client_id: str
    clean_start: bool
    expiry_s: float
    """Seconds; ``inf`` = the session never expires."""
    window: int
    will: Will | None
    username: str | None = None
    """The verified user."""
    may_administer: bool = False


class SubscribeOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """What one requested subscription became."""

    qos: int
    """Granted QoS; -1 = refused."""
    error: QueueError | None = None
    existed: bool = False


class MqttBroker(Broker):
    """The broker with all that MQTT clients leave with it."""

    __slots__ = (
        "_leaving_count",
        "admin",
        "advance_clock",
        "alias_memory",
        "filter_memory",
        "held",
        "journal",
        "plan_memory",
        "retained",
        "review",
        "room_bytes",
        "room_is_scarce",
        "room_refusals",
        "sending",
        "sessions",
        "sys_topics",
        "topics",
    )

    session_class: ClassVar[type[Session]] = Session

    def __init__(
        self, config: BrokerConfig, engine: QueueEngine, rng: random.Random, tracer: Tracer | None = None
    ) -> None:
        super().__init__(config, engine, rng, tracer)
        self.sessions: dict[str, Session] = {}
        self.topics = QueueTopics(engine)
        limits = config.mqtt
        self.retained: RetainedStore = RetainedStore(
            limits.max_retained_messages, limits.max_retained_bytes, lambda: self.now
        )
        self.review = AccessReview(self)
        self.journal: SessionJournal | None = None
        """Writes down what must survive a restart; None = nothing does."""
        self.advance_clock: Callable[[bytes], None] | None = None
        """Takes the payload of a publish to :data:`CLOCK_TOPIC`; None = that is a topic like others."""
        self.held: MessageBudget = MessageBudget(config.mqtt.max_held_bytes)
        """What sessions hold in all: queued, in flight, wills."""
        self.sending = Sending(self)
        self.filter_memory: Budget = Budget(config.mqtt.max_filter_bytes)
        """What their subscriptions take."""
        self.alias_memory: Budget = Budget(config.mqtt.max_alias_bytes)
        """What the topic aliases that clients set take."""
        self.plan_memory: SharedMemory = SharedMemory(MAX_ALL_PLAN_BYTES)
        """What connections remember of how to serve topics."""
        self.sys_topics = SysTopics(self, config.sys.interval_s)
        self.admin: QueueAdmin = QueueAdmin(self)
        self.room_bytes: int | None = None
        """Of messages that sessions and retained messages may still take in this turn; negative while the disk is
        nearly full, and what needs room is refused: see :meth:`take_room`. None = nothing is kept on a disk."""
        self.room_refusals = 0
        self.room_is_scarce = False
        """Half of what is kept free is gone: nobody begins anything that would take some."""
        self._leaving_count = 0
        """Subscriptions in ``leaving``."""

    def next_client_id(self) -> str:
        """An id for a client that sent none; unique among the sessions, and 23 bytes long, which any server takes."""
        while True:
            client_id = f"auto-{self.rng.getrandbits(72):018x}"
            if client_id not in self.sessions:
                return client_id

    # -- sessions ------------------------------------------------------------------------------------------------

    def connect(self, connection: SessionConnection, request: ConnectRequest, now: float) -> tuple[Session, bool]:
        """Attach a connection to its session, taking it over if need be. Returns (session, session present)."""
        session = self.sessions.get(request.client_id)
        if session is not None and session.connection is not None:
            old = session.connection
            old.close_for_takeover(now)
            self.tell(EventKind.TAKEN_OVER, session, "mqtt")
            self.detach(session, now, publish_will=True)
        elif session is not None:
            self._end_what_is_due(session, now)
        session = self.sessions.get(request.client_id)
        # What a session holds is for its user, and by the names of its tenant: others with its client id start anew.
        clean = request.clean_start or (
            session is not None and (session.username != request.username or self.has_moved(session))
        )
        present = session is not None and not clean
        if session is not None and clean:
            self.end_session(session, now)
            session = None
        if session is None:
            session = self.new_session(request.client_id)
            if self.journal is not None:
                self.journal.no_session(request.client_id)
        if session.expiry_timer is not None:
            session.expiry_timer.cancel()
            session.expiry_timer = None
        if session.will_timer is not None:
            # A new connection before the delay has passed: the will is not sent (5.0 3.1.3-9).
            session.will_timer.cancel()
            session.will_timer = None
        session.connection = connection
        session.disconnected_at = 0.0
        session.username = request.username
        session.may_administer = request.may_administer
        if self.tenants is not None:
            self.tenants.connected(session)
        self.traffic.client_connected()
        session.expiry_s = request.expiry_s
        session.window = session.receive_maximum = request.window
        session.will = request.will
        self.write_down(session)
        self.tree.invalidate_plans()
        if self.tracer is not None:
            self.tracer(TraceKind.CONNECTED, {"client_id": request.client_id})
        self.tell(EventKind.CONNECTED, session, "mqtt", session_present=present)
        return session, present

    def new_session(self, client_id: str) -> Session:
        """An empty session under an id that has none."""
        session = self.sessions[client_id] = self.session_class(client_id, self.config.mqtt, self.traffic, self.held)
        session.reviewed = self.review.version
        return session

    # -- who may what --------------------------------------------------------------------------------------------

    def reload(self, config: BrokerConfig, now: float, on_done: Callable[[], None] | None = None) -> None:
        """As :meth:`Broker.reload`. ``on_done``: see :meth:`AccessReview.begin`."""
        super().reload(config, now)
        self.review.begin(now, on_done)

    def has_moved(self, session: Session) -> bool:
        """Whether the tenant of a session's client is another than when it was last connected."""
        if self.tenants is None:
            return session.tenant is not None
        return self.tenants.of_client(session.username, session.client_id) is not session.tenant

    def may_send_will(self, session: Session, topic: str) -> bool:
        """A will was allowed when its client connected; it is asked about again when it is sent."""
        if is_sys_topic(topic):
            return False
        return self.access is None or self.access.may_publish(session.username, session.client_id, topic)

    def write_down(self, session: Session) -> None:
        """Keep what is on disk of a session in step with what it is, or nothing when it ends with its connection."""
        if self.journal is None:
            return
        if session.expiry_s > 0:
            self.journal.keep(session)
        else:
            self.journal.forget(session)

    def resume(self, session: Session, now: float) -> None:
        """After the CONNACK: resend, go on with retained messages, consume again from the session's queues, what the
        client still may."""
        self.review.resume(session, now)
        session.resume(now)
        if session.retained is not None:
            self.sending.wake(session)
        for topic_filter, subscription in list(session.subscriptions.items()):
            if is_queue_topic(topic_filter):
                try:
                    queue_consumers.consume(
                        self,
                        session,
                        topic_filter,
                        self._group_of(session, topic_filter),
                        subscription,
                        session.consumer_options.get(topic_filter, ()),
                        now,
                    )
                except QueueError as error:
                    # Deleted while the client was away, and not to be created by use; or the disk failed.
                    self.admin.queue_ended(session, topic_filter, error.code.value)

    def disconnect(self, session: Session, connection: SessionConnection, now: float, *, publish_will: bool) -> None:
        """The session's connection ended. Late news from a connection that was taken over is ignored."""
        if session.connection is connection:
            self.detach(session, now, publish_will=publish_will)

    def detach(self, session: Session, now: float, *, publish_will: bool) -> None:
        session.connection = None
        session.disconnected_at = now
        self.traffic.client_disconnected()
        if session.tenant is not None:
            session.tenant.connections -= 1
        self.tree.invalidate_plans()
        for consumer in session.consumers.values():
            self.engine.unsubscribe(consumer, now)
        session.forget_deliveries()
        if not publish_will:
            session.will = None
        if self.tracer is not None:
            self.tracer(TraceKind.DISCONNECTED, {"client_id": session.client_id})
        self.tell(EventKind.DISCONNECTED, session, "mqtt")
        if session.expiry_s <= 0:
            self.end_session(session, now)
            return
        if session.will is not None and session.will.delay_s <= 0:
            self.send_will(session, now)
        self.await_return(session)
        self.write_down(session)

    def await_return(self, session: Session) -> None:
        """A session is without connection: its will and its end are due some time after it was lost."""
        will = session.will
        if will is not None and will.delay_s < session.expiry_s:
            session.will_timer = self.timers.schedule(
                session.disconnected_at + will.delay_s, lambda later: self.send_will(session, later)
            )
        if session.expiry_s != inf:
            session.expiry_timer = self.timers.schedule(
                session.disconnected_at + session.expiry_s, lambda later: self.end_session(session, later)
            )

    def _end_what_is_due(self, session: Session, now: float) -> None:
        """Its client is back before a turn came to the timers of a session, as in the first turn of a broker."""
        if session.will_timer is not None and session.will_timer.deadline <= now:
            session.will_timer.cancel()
            self.send_will(session, now)
        if session.expiry_timer is not None and session.expiry_timer.deadline <= now:
            self.end_session(session, now)

    def send_will(self, session: Session, now: float) -> None:
        will, session.will, session.will_timer = session.will, None, None
        if will is not None:
            if session.kept is not None:
                session.kept.head_changed()
            message = will.message
            if not self.may_send_will(session, message.topic):
                return
            if message.retain and not self.config.mqtt.retain_available:
                message = changed(message, retain=False)
            if message.expires_at:
                # Until now the field held the lifetime: it counts from the publication of the will.
                message = changed(message, expires_at=now + message.expires_at)
            try:
                self.publish(message, session, now)
            except QueueError as error:
                # Nobody is left to be told, and to keep it would take the room that there is not.
                self.traffic.dropped += 1
                self._note_refused(error)

    def end_session(self, session: Session, now: float) -> None:
        """The session's state is deleted; a will still due is sent first (5.0 3.1.2-8)."""
        if session.expiry_timer is not None:
            session.expiry_timer.cancel()
        if session.will_timer is not None:
            session.will_timer.cancel()
        moving: list[SharedOutgoing] = []
        if self.sessions.get(session.client_id) is session:
            del self.sessions[session.client_id]
            if session.in_flight or session.queued:
                moving, lost = session.shared_left()
                for outgoing in lost:
                    self.discard_shared(outgoing, "it was sent to a client at QoS 2 whose session ended")
            session.let_all_go()
        session.ended = True
        if session.subscriptions:
            self.leaving.append((session, list(session.subscriptions.values())))
            self._leaving_count += len(session.subscriptions)
            self._take_out(MAX_TAKEN_OUT)
        if self.journal is not None:
            if session.kept is not None:
                self.work += session.kept.count >> 3
            self.journal.forget(session)
        if session.subscriptions:
            session.subscriptions.clear()
            self._count_filter(session, -session.subscription_bytes)
        if session.in_flight or session.queued:
            self.work += len(session.queued) >> 3
            session.empty()
        if moving:
            self.pass_on(moving, now)
        self.send_will(session, now)

    def _take_out(self, most_work: int) -> None:
        """Take subscriptions of sessions that ended out of the tree, unless this turn has done as much already."""
        leaving = self.leaving
        while leaving and self.work < most_work:
            session, subscriptions = leaving[0]
            subscription = subscriptions.pop()
            self.tree.remove(session, subscription)
            self._uncount(subscription)
            self.work += 1
            self._leaving_count -= 1
            if not subscriptions:
                leaving.popleft()

    # -- subscriptions -------------------------------------------------------------------------------------------

    def subscribe(
        self, session: Session, topic_filter: str, subscription: Subscription, group: str | None, now: float
    ) -> SubscribeOutcome:
        """Add a subscription. ``topic_filter`` is the filter as written; ``group`` the consumer group asked for.

        What else a consumer of a queue asks for is in ``session.asked``.
        """
        existed = topic_filter in session.subscriptions
        if not existed and len(session.subscriptions) >= self.config.mqtt.max_subscriptions_per_client:
            return SubscribeOutcome(qos=-1, error=QueueError(QueueErrorCode.LIMIT, "too many subscriptions"))
        before = self._bytes_of(session, topic_filter) if existed else 0
        size = subscription_bytes(topic_filter, session.asked)
        if size > before and not self.filter_memory.admits(session.subscription_bytes, size - before):
            text = "the subscriptions of all clients take too much memory"
            return SubscribeOutcome(qos=-1, error=QueueError(QueueErrorCode.LIMIT, text))
        if is_queue_topic(topic_filter):
            try:
                named = group or default_group(session.client_id)
                queue_consumers.consume(self, session, topic_filter, named, subscription, session.asked, now)
            except QueueError as error:
                return SubscribeOutcome(qos=-1, error=error.bare())
        else:
            if existed:
                self.tree.remove(session, session.subscriptions[topic_filter])
            self.tree.add(session, subscription)
        if not existed:
            self.traffic.subscribed(shared=subscription.share_name is not None)
            self.sys_topics.subscribed(subscription, now)
            self.admin.subscribed(subscription, now)
        session.subscriptions[topic_filter] = subscription
        if session.asked:
            # Consumers of queues alone keep what they asked for.
            size = self._bytes_of(session, topic_filter)
        self._count_filter(session, size - before)
        if self.tracer is not None:
            self.tracer(TraceKind.SUBSCRIBED, {"client_id": session.client_id, "topic": topic_filter})
        if not existed:
            self.tell(EventKind.SUBSCRIBED, session, "mqtt", filter=topic_filter, qos=subscription.qos)
        return SubscribeOutcome(qos=subscription.qos, existed=existed)

    def restore_subscription(
        self,
        session: Session,
        topic_filter: str,
        subscription: Subscription,
        group: str | None,
        asked: queue_consumers.Asked = (),
    ) -> None:
        """A subscription from before a restart; queues are consumed from again when the client is back."""
        if not is_queue_topic(topic_filter):
            self.tree.add(session, subscription)
        elif group is not None:
            session.consumer_groups[topic_filter] = group
            if asked:
                session.consumer_options[topic_filter] = asked
        self._count_filter(session, self._bytes_of(session, topic_filter))
        self.traffic.subscribed(shared=subscription.share_name is not None)
        self.sys_topics.subscribed(subscription, self.now)
        self.admin.subscribed(subscription, self.now)
        session.subscriptions[topic_filter] = subscription

    def send_retained(self, session: Session, subscription: Subscription, now: float) -> None:
        """Retained messages for a new subscription; RETAIN is set (5.0 3.3.1-8, 3.1.1 3.3.1-8).

        They are sent from the end of the turn on, as the client takes them.
        """
        if not (self.retained or is_sys_topic(subscription.topic_filter)):
            return
        if session.retained is None:
            session.retained = RetainedSends()
        session.retained.add(subscription, self.retained.newest)
        if session.kept is not None:
            session.kept.retained_due(subscription.topic_filter, is_due=True)
        self.sending.wake(session)

    def unsubscribe(self, session: Session, topic_filter: str, now: float) -> bool:
        """Remove a subscription; False when there was none. Deliveries that began are completed (3.10.4-3)."""
        subscription = session.subscriptions.pop(topic_filter, None)
        if subscription is None:
            return False
        if session.retained is not None:
            session.retained.cancel(topic_filter)
            if not session.retained.count:
                session.retained = None
        self._uncount(subscription)
        self._count_filter(session, -self._bytes_of(session, topic_filter))
        session.consumer_groups.pop(topic_filter, None)
        session.consumer_options.pop(topic_filter, None)
        if not queue_consumers.leave(self, session, topic_filter, now):
            self.tree.remove(session, subscription)
        if subscription.share_name is not None:
            session.left_shares[topic_filter] = None
        self.tell(EventKind.UNSUBSCRIBED, session, "mqtt", filter=topic_filter)
        return True

    def _bytes_of(self, session: Session, topic_filter: str) -> int:
        return subscription_bytes(topic_filter, session.consumer_options.get(topic_filter, ()))

    def _count_filter(self, session: Session, size: int) -> None:
        session.subscription_bytes += size
        self.filter_memory.used += size

    def leave_shares(self, session: Session, now: float) -> None:
        """After unsubscribing: what waits for shared subscriptions left goes to other members where there are any.

        What was begun to be sent is completed (3.10.4-3), and the session keeps what nobody else would get.
        """
        left, session.left_shares = session.left_shares, {}
        elsewhere = [
            share for share in left if (group := self.tree.shared_group(share)) is not None and group.is_served
        ]
        if elsewhere:
            self.work += len(session.queued) >> 4
            self.pass_on(session.take_queued(elsewhere), now)

    def _uncount(self, subscription: Subscription) -> None:
        self.traffic.unsubscribed(shared=subscription.share_name is not None)
        self.sys_topics.unsubscribed(subscription)
        self.admin.unsubscribed(subscription)

    def _group_of(self, session: Session, topic_filter: str) -> str:
        return session.consumer_groups.get(topic_filter) or default_group(session.client_id)

    def disconnect_slow(self, session: Session) -> None:
        if session.connection is not None:
            session.connection.close_as_slow(self.now)

    def room_appeared(self, session: Session, now: float) -> None:
        """The window has room again: send what waits, then let refused consumers go on."""
        if session.retained is not None and session.has_room:
            if session.queued:
                # A few take their place in the queue, which may never be empty.
                self.sending.send_retained(session, MESSAGE_WORK)
            if session.retained and session.takes_retained(session.retained.first()[0].qos):
                # Else its acknowledgements will make room: asking again before that would never end.
                self.sending.wake(session)
        if session.queued or session.unsent:
            session.send_queued(now)
        if session.stalled_consumers and session.has_room:
            stalled, session.stalled_consumers = session.stalled_consumers, []
            for consumer in stalled:
                self.engine.resume(consumer, now)

    # -- messages ------------------------------------------------------------------------------------------------

    def take_room(self, spare_bytes: int, reserve_bytes: int) -> None:
        """Each turn: how much may be written before the disk's reserve is touched. Acknowledgements, removals and
        connections are written into the reserve."""
        self.room_bytes = spare_bytes
        self.room_is_scarce = 2 * spare_bytes + reserve_bytes < 0

    def publish(self, message: Message, publisher: Client | None, now: float, asked: Asked = None) -> bool:
        """Route a message that nobody waits to see confirmed, or one for an ordinary topic.

        True: somebody gets it. Raises :class:`QueueError` when no more retained messages can be kept. A message for a
        queue that the queue refuses is traced as an error and dropped, as QoS 0 allows.
        """
        if message.topic.startswith(SERVED_PREFIXES):
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
        if asked is None and message.user_properties and self.engine.captures is not None:
            asked = read_options(message.user_properties)
        return self.fan_out(message, publisher, asked)

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
        self.fan_out(message, None)

    def pass_on(self, left: Sequence[SharedOutgoing], now: float) -> None:
        """Messages of shared subscriptions that a member left behind go to other members, in order (5.0 4.8.2)."""
        self.work += len(left)
        groups = {share: self.tree.shared_group(share) for share in {outgoing.share for outgoing in left}}
        for outgoing in left:
            message = outgoing.message
            if message.expires_at and message.expires_at <= now:
                continue
            group = groups[outgoing.share]
            if group is None or not self.share(group, message):
                self.discard_shared(outgoing, "no other client shares the subscription")

    def discard_shared(self, outgoing: SharedOutgoing, why: str) -> None:
        """A message that was acknowledged to its publisher reaches nobody of its shared subscription."""
        self.traffic.dropped += 1
        if self.tracer is not None:
            self.tracer(TraceKind.DISCARDED, {"topic": outgoing.message.topic, "detail": f"{outgoing.share}: {why}"})

    # -- queues --------------------------------------------------------------------------------------------------

    def publish_to_queue(
        self,
        message: Message,
        publisher: Client | None,
        now: float,
        on_confirmed: Confirm,
        on_stored: Stored | None = None,
    ) -> None:
        """Enqueue, or settle when the topic ends in a verb. ``on_confirmed`` is called once, now or after a sync.

        ``on_stored``: see :meth:`QueueEngine.publish`.
        """
        try:
            # One whose tenant was taken away goes without until it is disconnected.
            tenant = None if publisher is None or self.tenants is None else publisher.tenant
            topic = self.topics.read(message.topic, tenant)
            if tenant is not None:
                message = tenant_names.message_in(tenant, message, names_ids=topic.verb is not None)
                on_stored = tenant_names.told_out(tenant, on_stored)
            queue, properties = topic.address.queue, message.user_properties
            if topic.verb is None:
                options = parse_options(properties) if properties else None
                self.enqueue(topic.address, message, options, publisher, now, on_confirmed, on_stored)
                return
            if self.tenants is not None:
                self.tenants.check_reach(publisher, topic.address)
            for name, value in properties:
                # Who may not name a producer learns nothing of what else is wrong.
                if name == PRODUCER_ID and value.isdecimal() and len(value) <= _MAX_DIGITS:
                    self.check_producer(int(value), publisher)
            if topic.verb in OUTCOMES:
                self.settle(queue, parse_settlement(topic.verb, properties), publisher, now, on_confirmed)
            elif topic.verb in GROUP_VERBS:
                groups, consumer_id = self.engine.groups, None if publisher is None else publisher.client_id
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
        try:
            read = self.topics.read(topic, session.tenant)
        except QueueError:
            return False
        return self.engine.is_pressed(read.address)

    def received(self, session: Session, delivery: Delivery, now: float) -> None:
        """A client acknowledged, on the level of its protocol, a delivery that it need not settle itself."""
        consumer = session.auto_consumers.get((delivery.queue, delivery.group))
        if consumer is not None:
            self.engine.groups.received(consumer, delivery.partition, delivery.offset, now)

    def acknowledged(self, session: Session, delivery: Delivery, now: float) -> None:
        """A protocol without explicit settlement (MQTT 3.1.1) acknowledged a queue delivery."""
        # Where it timed out and went to somebody else meanwhile, the client cannot be told in 3.1.1.
        self.settle_delivery(delivery, Outcome.ACCEPT, session, now, ignore)

    def delivery_message(self, delivery: Delivery) -> Message:
        """The message a consumer gets: the publisher's, on the delivery topic, with the queue's properties."""
        message = delivery.message
        correlation_data, kept = message.correlation_data, message.properties
        if correlation_data is None and kept is not None:
            correlation_data = correlation_data_of(kept)
        return Message(
            topic=delivery.topic,
            payload=message.payload,
            qos=1,
            expires_at=message.expires_at,
            publisher=message.publisher,
            payload_format=message.payload_format,
            content_type=message.content_type,
            response_topic=message.response_topic,
            correlation_data=correlation_data,
            properties=kept,
            user_properties=delivery_properties(delivery),
        )

    # -- time ----------------------------------------------------------------------------------------------------

    def go_on(self, now: float) -> None:
        """Once a turn: some of what earlier ones had no room for."""
        self.work = 0
        if self.leaving:
            # The more there are, the more of them at a time, so that they do not come faster than they go.
            self._take_out(MAX_TAKEN_OUT + self._leaving_count // 32)
            self.work = 0
        super().go_on(now)

    def next_deadline(self) -> float | None:
        if self.unfinished or self.leaving or self.sending.woken:
            return self.now
        deadlines: Sequence[float | None] = (self.timers.next_deadline(), self.engine.next_deadline())
        return min((deadline for deadline in deadlines if deadline is not None), default=None)

    def tick(self, now: float) -> None:
        self.work = 0
        for _ in range(MAX_TIMERS):
            if self.work >= MAX_TAKEN_OUT or not self.timers.fire_next(now):
                break
        self.engine.tick(now)

"""The broker that every protocol shares: who may, who gets a topic, the way into queues, time.

Pure: commands come in with ``now``, effects leave through subscribers, consumers and confirms. A protocol adds what its
clients leave with the broker: sessions, retained messages (:mod:`assay.reference_broker.mqtt.sessions`).
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Sequence
from itertools import chain
from typing import ClassVar, Protocol

from assay.reference_broker.config import BrokerConfig, EventKind
from assay.reference_broker.core.access import AccessControl, Rules
from assay.reference_broker.core.clients import Client, Subscriber
from assay.reference_broker.core.hooks import Hooks
from assay.reference_broker.core.newcomers import Newcomers
from assay.reference_broker.core.partial_packets import PartialPackets
from assay.reference_broker.core.routing import SharedGroup, Subscription, SubscriptionTree
from assay.reference_broker.core.tenant import Tenant
from assay.reference_broker.core.tenants import Tenants
from assay.reference_broker.core.timers import TimerHeap
from assay.reference_broker.core.traffic import Traffic
from assay.reference_broker.queues import (
    Consumer,
    Delivery,
    Outcome,
    PublishOptions,
    QueueAddress,
    QueueEngine,
    QueueError,
    QueueErrorCode,
    SettleRequest,
)
from assay.reference_broker.queues.engine import Asked
from assay.reference_broker.queues.groups.delivery import Held
from assay.reference_broker.queues.groups.delivery_run import DeliverRun
from assay.reference_broker.queues.groups.pending import UNLIMITED, Deliver, Notify
from assay.reference_broker.queues.groups.subscribe_options import DEFAULT_OPTIONS, SubscribeOptions
from assay.reference_broker.queues.jobs.confirms import Confirm, Stored
from assay.reference_broker.queues.messages.message_batch import MessageBatch
from assay.reference_broker.queues.messages.publish_options import TransactionKey, options_within
from assay.reference_broker.routing.message import Message
from assay.reference_broker.trace.schema import TraceKind, Tracer

MAX_WORK = 1_024
"""What the packets of one connection may have done in a turn beside them, as :attr:`Broker.work` counts it."""
MAX_SLICES = 4
"""Connections whose input waited that a turn goes on with."""


class Unfinished(Protocol):
    """Who has more to do than one turn has room for."""

    def go_on(self, now: float) -> None:
        """Do more of it; what is left then gets in line again."""


class WaitingPublisher(Protocol):
    """A connection that is read no more until queues in memory have room again."""

    def go_on_publishing(self) -> None:
        """They have."""


class TopicTaker(Protocol):
    """Another protocol, whose clients get messages of ordinary topics by ways of their own."""

    def takes(self, topic: str) -> bool:
        """Whether somebody gets what is published there."""

    def take(self, message: Message, publisher: Client | None, now: float) -> None:
        """Give it to them. Never raises."""


class Broker:
    """What is there once, whatever its clients speak."""

    # Too many for a dict that instances share: it would be slower.
    __slots__ = (
        "_agenda",
        "access",
        "asks_for_topics",
        "config",
        "connecting",
        "engine",
        "external_rules",
        "handshakes",
        "hooks",
        "leaving",
        "now",
        "partial_packets",
        "published",
        "refused",
        "rng",
        "tenants",
        "timers",
        "topic_taker",
        "tracer",
        "traffic",
        "tree",
        "unfinished",
        "waiting_publishers",
        "work",
    )

    tree_class: ClassVar[type[SubscriptionTree]] = SubscriptionTree

    def __init__(
        self, config: BrokerConfig, engine: QueueEngine, rng: random.Random, tracer: Tracer | None = None
    ) -> None:
        self.config = config
        self.engine: QueueEngine = engine
        self._agenda = engine.agenda
        self.rng = rng
        self.tracer = tracer
        self.tree: SubscriptionTree = self.tree_class()
        engine.on_bindings_changed = self._topics_changed
        self.topic_taker: TopicTaker | None = None
        """Set while somebody is bound; see :meth:`take_topics`."""
        self.asks_for_topics = engine.captures is not None
        """Somebody beside subscribers gets messages of ordinary topics."""
        self.tenants: Tenants | None = Tenants(config.queues.tenants, engine) if config.queues.tenants else None
        self.hooks: Hooks | None = None
        """Who decides about publishes and subscriptions; None = nobody is asked."""
        self.external_rules: Rules | None = None
        """Further access rules of users whom somebody else knows."""
        self.access: AccessControl | None = AccessControl(config.acl) if config.acl is not None else None
        self.traffic: Traffic = Traffic()
        self.timers = TimerHeap()
        self.published = 0
        self.refused = 0
        """Unconfirmed messages that a queue did not take."""
        self.now = 0.0
        """Time of the current turn; set by whoever drives the broker."""
        self.work = 0
        """What a connection has had done in this turn beside its packets; 1 is about as much as one of them takes."""
        self.partial_packets: PartialPackets = PartialPackets(config.mqtt.max_partial_bytes)
        """Packets that have begun to come."""
        self.connecting: Newcomers = Newcomers(config.mqtt.max_connecting)
        """Connections without a client yet, those of them included that are over and not closed."""
        self.handshakes: Newcomers = Newcomers(config.mqtt.max_handshakes)
        """TLS handshakes under way."""
        self.leaving: deque[tuple[Subscriber, list[Subscription]]] = deque()
        """Who ended, with subscriptions that are still in the tree."""
        self.unfinished: deque[Unfinished] = deque()
        """Who goes on in the next turns, in order."""
        self.waiting_publishers: dict[WaitingPublisher, None] = {}
        """Those who wait for queues in memory."""
        if engine.memory is not None:
            engine.memory.on_released = self._release_publishers

    def know(self, rules: Rules) -> None:
        """Let the access rules of users whom somebody else knows hold as well."""
        self.external_rules = rules
        self.access = AccessControl(self.config.acl, rules) if self.config.acl is not None else None

    def reload(self, config: BrokerConfig, now: float, on_done: Callable[[], None] | None = None) -> None:
        """Let other access rules and tenants hold. ``on_done`` is called when all there is was held against them."""
        self.config = config
        self.access = AccessControl(config.acl, self.external_rules) if config.acl is not None else None
        configs = config.queues.tenants
        if not configs:
            self.tenants = self.engine.admit_queue = None
        elif self.tenants is None:
            self.tenants = Tenants(configs, self.engine)
        else:
            self.tenants.configure(configs)

    def tell(self, kind: EventKind, client: Client, protocol: str, **more: object) -> None:
        """Tell webhooks what happened to a client."""
        if self._agenda.notify is None:
            return
        told = {"client_id": client.client_id, "username": client.username, "protocol": protocol}
        if self._agenda.tell(kind, client.client_id, told | more):
            self.work += self.engine.take_cost()

    # -- topics --------------------------------------------------------------------------------------------------

    def take_topics(self, taker: TopicTaker | None) -> None:
        """Have somebody take messages of ordinary topics; None = nobody does any more. Again whenever it takes others:
        who gets a topic may be another than before."""
        if taker is not None or self.topic_taker is not None:
            self.topic_taker = taker
            self._topics_changed()

    def _topics_changed(self) -> None:
        self.asks_for_topics = self.engine.captures is not None or self.topic_taker is not None
        self.tree.invalidate_plans()

    def is_taken(self, topic: str) -> bool:
        """Whether somebody beside subscribers gets the messages of a topic."""
        return self.engine.is_captured(topic) or (self.topic_taker is not None and self.topic_taker.takes(topic))

    def _note_refused(self, error: QueueError | None) -> None:
        if error is not None:
            self.refused += 1
            if self.tracer is not None:
                self.tracer(TraceKind.PROTOCOL_ERROR, {"detail": str(error)})

    def publish(self, message: Message, publisher: Client | None, now: float, asked: Asked = None) -> bool:
        """Give a message of an ordinary topic to who gets it; True: somebody does.

        ``asked``: what queues that capture it are asked for. Raises :class:`QueueError` when it cannot be kept.
        """
        return self.fan_out(message, publisher, asked)

    def fan_out(self, message: Message, publisher: Client | None, asked: Asked = None) -> bool:
        """As :meth:`publish`, to those who are there alone: nothing is kept for others."""
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
        own: object | None = publisher
        for merged in entries:
            subscriber = merged.subscriber
            entry = merged.own if subscriber is own else merged
            if entry is None:
                continue
            subscriber.deliver(
                message,
                qos if qos < entry.qos else entry.qos,
                retain and entry.retain_as_published,
                entry.identifiers,
            )
        for group in route.groups:
            self.share(group, message)
        if self.engine.captures is not None:
            self._capture(message, publisher, asked)
        if self.topic_taker is not None:
            self.topic_taker.take(message, publisher, self.now)
            self.work += self.engine.take_cost()
        if self.leaving:
            members = (member for group in route.groups for member in group.members)
            return not all(session.ended for session in chain((entry.subscriber for entry in route.entries), members))
        return bool(route.entries or route.groups)

    def share(self, group: SharedGroup, message: Message) -> bool:
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

    def _capture(self, message: Message, publisher: Client | None, asked: Asked) -> None:
        """Queues get their copies, unless the message names a producer that is not its publisher's."""
        if isinstance(asked, PublishOptions) and asked.producer_id is not None:
            try:
                self.check_producer(asked.producer_id, publisher)
            except QueueError as error:
                self._note_refused(error)
                return
        self.engine.capture(message, self.now, asked)
        self.work += self.engine.take_cost()

    # -- queues --------------------------------------------------------------------------------------------------

    def enqueue(
        self,
        address: QueueAddress,
        message: Message,
        options: PublishOptions | None,
        client: Client | None,
        now: float,
        on_confirmed: Confirm,
        on_stored: Stored | None = None,
        within: TransactionKey | None = None,
    ) -> None:
        """Enqueue what a client publishes, if it may: its tenant, quotas and producer. ``client`` None = the broker.

        ``within``: a transaction that the broker began for it (:meth:`Transactions.begin_alone`).
        Access rules are asked before by its protocol, in the names that its client writes (:class:`AccessControl`).
        ``on_confirmed`` is called once, now or after a sync. See :meth:`QueueEngine.publish`.
        """
        try:
            if client is not None and self.tenants is not None:
                self.tenants.check_reach(client, address)
            if options is not None and options.producer_id is not None:
                self.check_producer(options.producer_id, client)
            if client is not None and client.tenant is not None and self.tenants is not None:
                # Last, since it is charged for what is published.
                size = client.tenant.check_publish((message,), options, self.engine, now)
                client.tenant.charge(1, size)
            if within is not None:
                options = options_within(within, options)
            self.engine.publish(address, message, now, on_confirmed, on_stored, options)
        except QueueError as error:
            on_confirmed(error.bare())
        finally:
            if self._agenda.cost:
                self.work += self.engine.take_cost()

    def enqueue_batch(
        self,
        address: QueueAddress,
        batch: MessageBatch,
        client: Client,
        part: Callable[[Sequence[int]], Confirm],
        now: float,
    ) -> bool:
        """As :meth:`enqueue` of many, nothing asked for; False, with nothing done, when they must go singly.

        ``part`` as in :meth:`QueueEngine.publish_batch`.
        """
        tenant, size = None, 0
        if self.tenants is not None:
            tenant = client.tenant
            try:
                self.tenants.check_reach(client, address)
                if tenant is not None:
                    size = tenant.check_publish(batch.messages, None, self.engine, now)
            except QueueError:
                # Some may fit; each hears of it.
                return False
        if not self.engine.publish_batch(address, batch, now, part):
            return False
        if tenant is not None:
            tenant.charge(len(batch.messages), size)
        return True

    def settle(self, queue: str, request: SettleRequest, client: Client | None, now: float, on_done: Confirm) -> None:
        """Settle what a client holds; ``on_done`` is called once, now or later. See :meth:`QueueEngine.settle`."""
        try:
            if request.within is not None:
                self.check_producer(request.within.producer_id, client)
            consumer_id = client.client_id if client is not None else None
            self.engine.settle(queue, request, consumer_id=consumer_id, now=now, on_done=on_done)
        except QueueError as error:
            on_done(error.bare())
        finally:
            if self._agenda.cost:
                self.work += self.engine.take_cost()

    def settle_delivery(
        self,
        delivery: Delivery | Held,
        outcome: Outcome,
        client: Client,
        now: float,
        on_done: Confirm,
        reason: str = "",
        within: TransactionKey | None = None,
    ) -> None:
        """Settle a delivery that a client has in hand; ``on_done`` is called once, now or after a sync.

        ``within``: with a transaction that the broker began for it; then it is called when it is part of that.
        """
        try:
            if within is not None:
                self.engine.hold_delivery(delivery, outcome, consumer_id=client.client_id, now=now, within=within)
                on_done(None)
                return
            self.engine.settle_delivery(
                delivery, outcome, consumer_id=client.client_id, now=now, reason=reason, on_done=on_done
            )
        except QueueError as error:
            on_done(error.bare())

    def consume(
        self,
        client: Client,
        address: QueueAddress,
        group: str,
        deliver: Deliver,
        now: float,
        *,
        options: SubscribeOptions = DEFAULT_OPTIONS,
        notify: Notify | None = None,
        on_end: Callable[[], None] | None = None,
        on_slow: Callable[[], None] | None = None,
        deliver_run: DeliverRun | None = None,
        settles_at_once: bool = False,
        credit: int = UNLIMITED,
        heartbeats: bool = False,
    ) -> Consumer:
        """Let a client join a group of a queue, if it may, by its client id; see :meth:`QueueEngine.subscribe`.

        Raises :class:`QueueError`.
        """
        if self.tenants is not None:
            self.tenants.check_consumer(client, address, group)
        return self.engine.subscribe(
            address.queue,
            pattern=address.routing_key,
            group=group,
            consumer_id=client.client_id,
            deliver=deliver,
            now=now,
            options=options,
            notify=notify,
            on_end=on_end,
            on_slow=on_slow,
            deliver_run=deliver_run,
            settles_at_once=settles_at_once,
            credit=credit,
            heartbeats=heartbeats,
        )

    def must_wait(self, consumer: Consumer, tenant: Tenant | None, size: int) -> bool:
        """Whether its tenant's quota leaves nothing for a delivery of so many bytes, which is charged otherwise. The
        consumer is resumed when there is something again."""
        if tenant is None or not tenant.limits_consuming:
            return False
        wait_s = tenant.delivery_wait_s(size, self.now)
        if wait_s:
            self.timers.schedule(self.now + wait_s, lambda later: self.engine.resume(consumer, later))
        return wait_s > 0

    def check_producer(self, producer_id: int, client: Client | None) -> None:
        """Whether a client may name a producer. Raises :class:`QueueError` (NOT_ALLOWED)."""
        transactions = self.engine.transactions
        if self.tenants is None and not transactions.has_producers:
            return
        named = str(producer_id)
        transactions.check_owner(named, owner_of(client))
        tenant = None if client is None else client.tenant
        name = None if tenant is None else transactions.name_of(named)
        if tenant is not None and name is not None and not tenant.owns(name):
            raise QueueError(QueueErrorCode.NOT_ALLOWED, f"producer {named} belongs to another tenant")

    def _release_publishers(self) -> None:
        """Queues in memory have room again."""
        waiting, self.waiting_publishers = self.waiting_publishers, {}
        for connection in waiting:
            connection.go_on_publishing()

    # -- time ----------------------------------------------------------------------------------------------------

    def go_on(self, now: float) -> None:
        """Once a turn: some of what earlier ones had no room for."""
        unfinished = self.unfinished
        if unfinished:
            for _ in range(min(len(unfinished), MAX_SLICES)):
                unfinished.popleft().go_on(now)


def owner_of(client: Client | None) -> str:
    """What the producers of a client belong to: its user, and its tenant. Empty for one that has neither."""
    if client is None:
        return ""
    user = client.username or ""
    # No user name has a NUL.
    return user if client.tenant is None else f"{client.tenant.name}\0{user}"

"""Bugs that show where two or three states meet: a session, what is under way in it, a second connection, a restart.

No case names them: lives find them (``assay conformance explore``), and a test asks in how many.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any
from weakref import WeakKeyDictionary, WeakSet

from msgspec.structs import replace

from assay.conformance.mutants import Patch, mutant
from assay.conformance.mutants.restart_sessions import _each, _on_reading
from assay.reference_broker import node
from assay.reference_broker.core.broker import Broker
from assay.reference_broker.core.routing import RouteEntry, SharedGroup, Subscription
from assay.reference_broker.mqtt.sessions.mqtt_broker import ConnectRequest, MqttBroker, SubscribeOutcome
from assay.reference_broker.mqtt.sessions.retained import RetainedStore
from assay.reference_broker.mqtt.sessions.session import MAX_PACKET_ID, Outgoing, Released, Session, SessionConnection
from assay.reference_broker.mqtt.sessions.session_journal import Change, KeptSession, SessionJournal
from assay.reference_broker.routing.message import Message, changed

_SHARE = "$share/"
Before = Callable[[MqttBroker, Session | None, ConnectRequest, float], Callable[[Session, bool], None] | None]


def _at_connect(patch: Patch, before: Before) -> None:
    """Something is done before a client is connected, with the session that it has, and, if that says so, after it."""

    def make(original: Callable[..., tuple[Session, bool]]) -> Callable[..., tuple[Session, bool]]:
        def connect(
            self: MqttBroker, connection: SessionConnection, request: ConnectRequest, now: float
        ) -> tuple[Session, bool]:
            after = before(self, self.sessions.get(request.client_id), request, now)
            session, present = original(self, connection, request, now)
            if after is not None:
                after(session, present)
            return session, present

        return connect

    patch.wrap(MqttBroker, "connect", make)


# -- wills -----------------------------------------------------------------------------------------------------------


@mutant("cross-takeover-sends-delayed-will", "a takeover sends a will at once that has a delay")
def takeover_sends_will(patch: Patch) -> None:
    def before(broker: MqttBroker, session: Session | None, request: ConnectRequest, now: float) -> None:
        if session is None or session.connection is None or session.will is None:
            return
        if session.will.delay_s > 0 and session.expiry_s > 0 and not request.clean_start:
            broker.send_will(session, now)

    _at_connect(patch, before)


def _publish(broker: MqttBroker, message: Message, now: float) -> None:
    broker.publish(message, None, now)


@mutant("cross-delayed-will-not-cancelled", "a client that is back in time does not cancel its delayed will")
def will_not_cancelled(patch: Patch) -> None:
    def before(
        broker: MqttBroker, session: Session | None, request: ConnectRequest, now: float
    ) -> Callable[[Session, bool], None] | None:
        if session is None or session.connection is not None or session.will_timer is None or session.will is None:
            return None
        message, due_at = session.will.message, session.will_timer.deadline

        def after(_session: Session, present: bool) -> None:
            if present and due_at > now:
                broker.timers.schedule(due_at, lambda later: _publish(broker, message, later))

        return after

    _at_connect(patch, before)


@mutant("cross-will-of-earlier-connection-kept", "a client that is back without a will still has its earlier one")
def earlier_will_kept(patch: Patch) -> None:
    def before(
        _broker: MqttBroker, session: Session | None, request: ConnectRequest, _now: float
    ) -> Callable[[Session, bool], None] | None:
        will = None if session is None or session.connection is not None or request.will is not None else session.will

        def after(resumed: Session, present: bool) -> None:
            if present and resumed.will is None:
                resumed.will = will

        return after

    _at_connect(patch, before)


@mutant("cross-sent-will-not-written", "that a will from before the start was sent is not written down")
def sent_will_not_written(patch: Patch) -> None:
    read: WeakSet[Session] = WeakSet()

    def make_adopt(original: Callable[..., None]) -> Callable[..., None]:
        def adopt(self: KeptSession, *given: Any) -> None:
            original(self, *given)
            read.add(self.session)

        return adopt

    def make_send(original: Callable[..., None]) -> Callable[..., None]:
        def send(self: MqttBroker, session: Session, now: float) -> None:
            kept = session.kept
            if session in read and session.connection is None:
                session.kept = None
            original(self, session, now)
            session.kept = kept

        return send

    patch.wrap(KeptSession, "adopt", make_adopt)
    patch.wrap(MqttBroker, "send_will", make_send)


# -- what is under way -----------------------------------------------------------------------------------------------


@mutant("cross-queued-expiry-forgotten", "what waits has no expiry any more after a restart")
def queued_expiry_forgotten(patch: Patch) -> None:
    def change(entry: Any) -> Any:
        waits = entry.message is not None and not entry.packet_id
        return replace(entry, message=replace(entry.message, expires_at=0.0)) if waits else entry

    _on_reading(patch, lambda state: _each(state.entries, change))


@mutant("cross-resent-without-identifiers", "what is sent again has no subscription identifiers")
def resent_without_identifiers(patch: Patch) -> None:
    def resend(self: Session, connection: SessionConnection, packet_id: int, outgoing: Any) -> bool:
        message = outgoing.message_for(packet_id)
        sent = connection.send_publish(packet_id, message, outgoing.qos, outgoing.retain, True, ())
        if not sent:
            self.finish(packet_id)
        return sent

    patch.replace(Session, "resend", resend)


@mutant("cross-takeover-forgets-received-identifiers", "a takeover forgets the identifiers of QoS 2 messages received")
def takeover_forgets_received(patch: Patch) -> None:
    def before(_broker: MqttBroker, session: Session | None, _request: ConnectRequest, _now: float) -> None:
        if session is not None and session.connection is not None:
            session.inbound_qos2.clear()

    _at_connect(patch, before)


@mutant("cross-takeover-forgets-what-is-in-flight", "a takeover forgets deliveries that are not acknowledged")
def takeover_forgets_in_flight(patch: Patch) -> None:
    def before(_broker: MqttBroker, session: Session | None, _request: ConnectRequest, _now: float) -> None:
        if session is not None and session.connection is not None:
            for packet_id in [each for each, one in session.in_flight.items() if not isinstance(one, Released)]:
                session.finish(packet_id)

    _at_connect(patch, before)


@mutant("cross-packet-identifiers-in-use", "nobody looks whether a packet identifier is still in use")
def identifiers_in_use(patch: Patch) -> None:
    def send(self: Session, connection: SessionConnection, outgoing: Outgoing) -> None:
        packet_id = self._next_packet_id
        self._next_packet_id = packet_id % MAX_PACKET_ID + 1
        self.hold(packet_id, outgoing)
        if not connection.send_publish(
            packet_id, outgoing.message, outgoing.qos, outgoing.retain, False, outgoing.identifiers
        ):
            self.finish(packet_id)
            if self.kept is not None:
                self.kept.dropped(outgoing)

    patch.replace(Session, "send", send)


@mutant("cross-pubrel-once-more-only", "a PUBREL is sent again on one further connection only")
def pubrel_once_more(patch: Patch) -> None:
    def make(original: Callable[..., None]) -> Callable[..., None]:
        def resume(self: Session, now: float) -> None:
            released = [each for each, one in self.in_flight.items() if isinstance(one, Released)]
            original(self, now)
            for packet_id in released:
                if packet_id in self.in_flight:
                    self.finish(packet_id)

        return resume

    patch.wrap(Session, "resume", make)


@mutant("cross-publish-once-more-only", "a PUBLISH is sent again on one further connection only")
def publish_once_more(patch: Patch) -> None:
    sent: WeakKeyDictionary[Session, set[int]] = WeakKeyDictionary()

    def make(original: Callable[..., None]) -> Callable[..., None]:
        def resume(self: Session, now: float) -> None:
            again = sent.get(self, set())
            for packet_id in [each for each, one in self.in_flight.items() if each in again and one.qos == 1]:
                self.finish(packet_id)
            sent[self] = set(self.in_flight)
            original(self, now)

        return resume

    patch.wrap(Session, "resume", make)


@mutant("cross-too-large-keeps-its-place", "a message that is too large for the client keeps its place in the window")
def too_large_keeps_place(patch: Patch) -> None:
    def send(self: Session, connection: SessionConnection, outgoing: Outgoing) -> None:
        packet_id = self.allocate_packet_id()
        self.hold(packet_id, outgoing)
        connection.send_publish(packet_id, outgoing.message, outgoing.qos, outgoing.retain, False, outgoing.identifiers)

    patch.replace(Session, "send", send)


@mutant(
    "cross-first-acknowledgement-frees-for-all", "after a restart, what several wait for goes with the first of them"
)
def first_frees_for_all(patch: Patch) -> None:
    def make(original: Callable[..., None]) -> Callable[..., None]:
        def adopt(self: SessionJournal, shared: dict[int, int], *given: Any, **more: Any) -> None:
            original(self, {number: min(count, 1) for number, count in shared.items()}, *given, **more)

        return adopt

    def release(self: SessionJournal, number: int, changes: list[Change]) -> None:
        left = self._shared.get(number, 0) - 1
        if left > 0:
            self._shared[number] = left
        elif number in self._shared:
            del self._shared[number]
            changes.append((b"m" + number.to_bytes(8, "big"), None))

    patch.wrap(SessionJournal, "adopt", make)
    patch.replace(SessionJournal, "release_message", release)


@mutant("cross-window-of-earlier-connection", "the Receive Maximum of the connection before holds for the next one")
def earlier_window(patch: Patch) -> None:
    def before(
        _broker: MqttBroker, session: Session | None, _request: ConnectRequest, _now: float
    ) -> Callable[[Session, bool], None] | None:
        earlier = None if session is None else session.receive_maximum

        def after(resumed: Session, present: bool) -> None:
            if present and earlier is not None:
                resumed.window = resumed.receive_maximum = earlier

        return after

    _at_connect(patch, before)


@mutant("cross-expiry-of-first-connection", "a session has the expiry that its first connection asked for")
def expiry_of_first_connection(patch: Patch) -> None:
    def before(
        _broker: MqttBroker, session: Session | None, _request: ConnectRequest, _now: float
    ) -> Callable[[Session, bool], None] | None:
        earlier_s = None if session is None else session.expiry_s

        def after(resumed: Session, present: bool) -> None:
            if present and earlier_s:
                resumed.expiry_s = earlier_s

        return after

    _at_connect(patch, before)


@mutant(
    "cross-expiry-in-disconnect-ignored-by-members", "who is a member of a share cannot end its session by DISCONNECT"
)
def members_cannot_end(patch: Patch) -> None:
    def make(original: Callable[..., None]) -> Callable[..., None]:
        def detach(self: MqttBroker, session: Session, now: float, *, publish_will: bool) -> None:
            shares = any(each.startswith(_SHARE) for each in session.subscriptions)
            if session.expiry_s <= 0 and session.kept is not None and shares:
                session.expiry_s = 100_000.0
            original(self, session, now, publish_will=publish_will)

        return detach

    patch.wrap(MqttBroker, "detach", make)


# -- subscriptions ---------------------------------------------------------------------------------------------------


@mutant("cross-read-subscription-not-replaced", "a subscription read at the start is not written when it is replaced")
def read_subscription_not_replaced(patch: Patch) -> None:
    read: WeakKeyDictionary[KeptSession, set[str]] = WeakKeyDictionary()

    def make_adopt(original: Callable[..., None]) -> Callable[..., None]:
        def adopt(self: KeptSession, entries: Any, waiting: Any, filters: set[str], inbound: set[int]) -> None:
            read[self] = set(filters)
            original(self, entries, waiting, filters, inbound)

        return adopt

    def make_collect(original: Callable[..., None]) -> Callable[..., None]:
        def collect(self: KeptSession, topic_filter: str, *lists: list[Any]) -> None:
            known = read.get(self, set())
            if topic_filter not in self.subscriptions:
                known.discard(topic_filter)
            if topic_filter not in known:
                original(self, topic_filter, *lists)

        return collect

    patch.wrap(KeptSession, "adopt", make_adopt)
    patch.wrap(KeptSession, "collect_subscription", make_collect)


@mutant("cross-share-takes-options-of-own", "a share takes Retain As Published of a subscription of the member's own")
def share_takes_options(patch: Patch) -> None:
    def share(_self: Broker, group: SharedGroup, message: Message) -> bool:
        chosen = group.choose()
        if chosen is None:
            return False
        member, entry = chosen
        subscriptions = member.subscriptions if isinstance(member, Session) else {}
        own = (one for name, one in subscriptions.items() if not name.startswith(_SHARE))
        as_published = entry.retain_as_published or any(one.retain_as_published for one in own)
        identifiers = (entry.identifier,) if entry.identifier else ()
        qos = min(message.qos, entry.qos)
        member.deliver(message, qos, message.retain and as_published, identifiers, share=group.share)
        return True

    patch.replace(Broker, "share", share)


@mutant("cross-no-local-of-one-counts-for-all", "No Local of one of several overlapping subscriptions counts for all")
def no_local_for_all(patch: Patch) -> None:
    def make(original: Callable[..., None]) -> Callable[..., None]:
        def init(self: RouteEntry, session: Session, subscriptions: list[Subscription]) -> None:
            original(self, session, subscriptions)
            if any(entry.no_local for entry in subscriptions):
                self.own = None

        return init

    patch.wrap(RouteEntry, "__init__", make)


@mutant("cross-queued-at-the-lowest-qos", "what waits has the lowest QoS of several overlapping subscriptions")
def queued_at_lowest(patch: Patch) -> None:
    def make(original: Callable[..., bool]) -> Callable[..., bool]:
        def fan_out(self: Broker, message: Message, *given: Any) -> bool:
            before: list[tuple[RouteEntry, int]] = []
            for entry in self.tree.route(message.topic).entries:
                session = entry.subscriber
                if isinstance(session, Session) and session.connection is None and len(entry.subscriptions) > 1:
                    before.append((entry, entry.qos))
                    entry.qos = min(one.qos for one in entry.subscriptions)
            try:
                return original(self, message, *given)
            finally:
                for entry, qos in before:
                    entry.qos = qos

        return fan_out

    patch.wrap(Broker, "fan_out", make)


@mutant("cross-identifiers-of-shares-not-read", "what waits in a share has no subscription identifier after a restart")
def share_identifiers_not_read(patch: Patch) -> None:
    def change(entry: Any) -> Any:
        return replace(entry, identifiers=()) if entry.share and not entry.packet_id else entry

    _on_reading(patch, lambda state: _each(state.entries, change))


@mutant("cross-resumed-without-no-local", "a session that is resumed has forgotten No Local")
def resumed_without_no_local(patch: Patch) -> None:
    def before(
        broker: MqttBroker, _session: Session | None, _request: ConnectRequest, _now: float
    ) -> Callable[[Session, bool], None]:
        def after(session: Session, present: bool) -> None:
            for name, entry in list(session.subscriptions.items()) if present else ():
                if entry.no_local:
                    broker.tree.remove(session, entry)
                    session.subscriptions[name] = replace(entry, no_local=False)
                    broker.tree.add(session, session.subscriptions[name])

        return after

    _at_connect(patch, before)


# -- retained messages -----------------------------------------------------------------------------------------------


@mutant("cross-read-retained-not-replaced", "a retained message read at the start is not written when it is replaced")
def read_retained_not_replaced(patch: Patch) -> None:
    read: set[str] = set()

    def make_restore(original: Callable[..., list[str]]) -> Callable[..., list[str]]:
        def restore(broker: MqttBroker, journal: SessionJournal, stored: Any, now: float) -> list[str]:
            read.update(stored.retained)
            return original(broker, journal, stored, now)

        return restore

    def make_changed(original: Callable[..., None]) -> Callable[..., None]:
        def retained_changed(self: SessionJournal, topic: str) -> None:
            if topic not in read or self._retained.get(topic) is None:
                original(self, topic)

        return retained_changed

    patch.wrap(node, "restore", make_restore)
    patch.wrap(SessionJournal, "retained_changed", make_changed)


@mutant("cross-retained-expiry-inherited", "a retained message has the expiry of the one that it replaces")
def retained_expiry_inherited(patch: Patch) -> None:
    def make(original: Callable[..., bool]) -> Callable[..., bool]:
        def store(self: RetainedStore, message: Message) -> bool:
            earlier = self.get(message.topic)
            if earlier is not None and earlier.expires_at and message.payload:
                message = changed(message, expires_at=earlier.expires_at)
            return original(self, message)

        return store

    patch.wrap(RetainedStore, "store", make)


@mutant("cross-parent-retained-with-children-only", "x/# brings what is retained on x while something below x is, too")
def parent_with_children_only(patch: Patch) -> None:
    def make(original: Callable[..., Iterator[Message | None]]) -> Callable[..., Iterator[Message | None]]:
        def walk(self: RetainedStore, topic_filter: str, *given: Any) -> Iterator[Message | None]:
            levels = topic_filter.count("/")
            for found in original(self, topic_filter, *given):
                is_parent = found is not None and found.topic.count("/") < levels
                yield None if found is not None and is_parent and not self._path(found.topic)[-1].children else found

        return walk

    patch.wrap(RetainedStore, "walk", make)


@mutant("cross-retain-handling-by-connection", "Retain Handling 1 asks whether the connection has subscribed before")
def handling_by_connection(patch: Patch) -> None:
    seen: WeakKeyDictionary[Session, set[str]] = WeakKeyDictionary()

    def before(
        _broker: MqttBroker, _session: Session | None, _request: ConnectRequest, _now: float
    ) -> Callable[[Session, bool], None]:
        def after(session: Session, _present: bool) -> None:
            seen[session] = set()

        return after

    def make(original: Callable[..., SubscribeOutcome]) -> Callable[..., SubscribeOutcome]:
        def subscribe(self: MqttBroker, session: Session, topic_filter: str, *given: Any) -> SubscribeOutcome:
            outcome = original(self, session, topic_filter, *given)
            mine = seen.setdefault(session, set())
            known = topic_filter in mine
            mine.add(topic_filter)
            return replace(outcome, existed=outcome.existed and known)

        return subscribe

    _at_connect(patch, before)
    patch.wrap(MqttBroker, "subscribe", make)

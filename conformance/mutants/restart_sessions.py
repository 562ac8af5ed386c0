"""Brokers that write sessions and retained messages down wrongly, or read them wrongly: it shows after a restart."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any
from weakref import WeakKeyDictionary, WeakSet

import msgspec
from msgspec.structs import replace

from assay.conformance.mutants import Patch, mutant, variation
from assay.reference_broker import node
from assay.reference_broker.core.routing import Subscription
from assay.reference_broker.mqtt.connections.outbound import Outbound
from assay.reference_broker.mqtt.sessions import session_journal, session_records, session_restore
from assay.reference_broker.mqtt.sessions.mqtt_broker import ConnectRequest, MqttBroker
from assay.reference_broker.mqtt.sessions.session import Session, Will
from assay.reference_broker.mqtt.sessions.session_journal import Change, Entry, KeptSession, SessionJournal
from assay.reference_broker.mqtt.sessions.session_records import (
    StoredEntry,
    StoredMessage,
    StoredSession,
    StoredState,
    StoredSubscription,
)
from assay.reference_broker.mqtt.wire.packets import Acknowledgement
from assay.reference_broker.queues.jobs.store import NewRecord
from assay.reference_broker.storage.session_store import SessionStore


def _lose(patch: Patch, owner: Any, name: str, **values: object) -> None:
    """What a function returns has these fields, whatever they were."""

    def make(original: Callable[..., msgspec.Struct]) -> Callable[..., msgspec.Struct]:
        return lambda *given, **named: replace(original(*given, **named), **values)

    patch.wrap(owner, name, make)


def _forget_pubacks(patch: Patch) -> None:
    """A message that was acknowledged by PUBACK comes again after a restart."""
    lost: WeakKeyDictionary[KeptSession, list[Change]] = WeakKeyDictionary()
    acknowledged: list[bool] = [False]

    def make_collect(original: Callable[..., None]) -> Callable[..., None]:
        def collect(self: KeptSession, packet_id: int, fresh: Any, changes: list[Change]) -> None:
            entry = self._sent.get(packet_id)
            source = None if entry is None else entry.source
            acknowledged[0] = source is not None and source.qos == 1 and packet_id not in self.in_flight
            original(self, packet_id, fresh, changes)
            acknowledged[0] = False

        return collect

    def make_delete(original: Callable[..., None]) -> Callable[..., None]:
        def delete(self: KeptSession, entry: Entry, changes: list[Change]) -> None:
            original(self, entry, lost.setdefault(self, []) if acknowledged[0] else changes)

        return delete

    def make_delete_all(original: Callable[..., None]) -> Callable[..., None]:
        def delete_all(self: KeptSession, changes: list[Change]) -> None:
            original(self, changes)
            changes += lost.pop(self, [])

        return delete_all

    patch.wrap(KeptSession, "collect_in_flight", make_collect)
    patch.wrap(KeptSession, "delete_entry", make_delete)
    patch.wrap(KeptSession, "delete_all", make_delete_all)


@variation(
    "restart-record-by-record",
    "each change of a session is a write of its own, and a PUBACK dies with the broker (4.3.2: at least once)",
)
def record_by_record(patch: Patch) -> None:
    _forget_pubacks(patch)

    def make(original: Callable[..., None]) -> Callable[..., None]:
        def write(self: SessionStore, records: Sequence[NewRecord], now: float) -> None:
            for record in records:
                original(self, [record], now)

        return write

    patch.wrap(SessionStore, "write", make)


@mutant("restart-undoes-replaced-subscriptions", "a subscription is written when it is made, not when it is replaced")
def replaced_not_written(patch: Patch) -> None:
    def make(original: Callable[..., None]) -> Callable[..., None]:
        def collect(self: KeptSession, topic_filter: str, *lists: list[Any]) -> None:
            if topic_filter not in self._filters or topic_filter not in self.subscriptions:
                original(self, topic_filter, *lists)

        return collect

    patch.wrap(KeptSession, "collect_subscription", make)


@mutant("restart-brings-unsubscribed-filters-back", "subscriptions read at the start are not removed when they end")
def removed_not_written(patch: Patch) -> None:
    def make(original: Callable[..., None]) -> Callable[..., None]:
        def adopt(self: KeptSession, entries: Any, waiting: Any, filters: set[str], inbound: set[int]) -> None:
            original(self, entries, waiting, set(), inbound)

        return adopt

    patch.wrap(KeptSession, "adopt", make)


@mutant("restart-forgets-no-local", "No Local is not written down")
def forgets_no_local(patch: Patch) -> None:
    _lose(patch, session_journal, "stored_subscription", no_local=False)


@mutant("restart-forgets-retain-as-published", "Retain As Published is not written down")
def forgets_retain_as_published(patch: Patch) -> None:
    _lose(patch, session_journal, "stored_subscription", retain_as_published=False)


@mutant("restart-forgets-subscription-identifiers", "subscription identifiers are not read at the start")
def forgets_identifiers(patch: Patch) -> None:
    _lose(patch, session_restore, "restored_subscription", identifier=0)


@mutant("restart-forgets-options-of-shares", "of a shared subscription the filter and the QoS alone are written down")
def forgets_share_options(patch: Patch) -> None:
    def make(original: Callable[..., StoredSubscription]) -> Callable[..., StoredSubscription]:
        def stored(subscription: Subscription, *given: Any, **named: Any) -> StoredSubscription:
            record = original(subscription, *given, **named)
            return record if record.share_name is None else replace(record, retain_as_published=False, identifier=0)

        return stored

    patch.wrap(session_journal, "stored_subscription", make)


@mutant("restart-turns-shares-into-filters", "share names are not read at the start: each member gets every message")
def forgets_shares(patch: Patch) -> None:
    _lose(patch, session_restore, "restored_subscription", share_name=None)


# -- messages --------------------------------------------------------------------------------------------------------


def _on_reading(patch: Patch, change: Callable[[StoredState], None]) -> None:
    """Something is wrong with what a start reads."""

    def make(original: Callable[..., StoredState]) -> Callable[..., StoredState]:
        def read(records: dict[bytes, bytes], on_problem: Callable[[str], None]) -> StoredState:
            state = original(records, on_problem)
            change(state)
            return state

        return read

    patch.wrap(node, "read_state", make)


def _each(table: dict[str, dict[Any, Any]], change: Callable[[Any], Any]) -> None:
    for entries in table.values():
        for key, entry in list(entries.items()):
            entries[key] = change(entry)


def _with(**values: object) -> Callable[[Any], Any]:
    return lambda record: replace(record, **values)


def _each_message(state: StoredState, change: Callable[[StoredMessage], StoredMessage]) -> None:
    for table in (state.retained, state.shared):
        for key, message in list(table.items()):
            table[key] = change(message)  # type: ignore[index]
    _each(state.entries, lambda e: e if e.message is None else replace(e, message=change(e.message)))


@mutant("restart-overwrites-what-waits", "after a restart messages are numbered from 1, over those that wait")
def numbers_anew(patch: Patch) -> None:
    def make(original: Callable[..., None]) -> Callable[..., None]:
        def init(self: KeptSession, journal: Any, session: Any, *, first_number: int = 1) -> None:
            original(self, journal, session, first_number=1)

        return init

    patch.wrap(KeptSession, "__init__", make)


@mutant("restart-repeats-what-was-acknowledged", "messages read at the start are not removed when acknowledged")
def repeats_acknowledged(patch: Patch) -> None:
    def make(original: Callable[..., None]) -> Callable[..., None]:
        def adopt(self: KeptSession, entries: Any, waiting: Any, filters: set[str], inbound: set[int]) -> None:
            original(self, {}, waiting, filters, inbound)

        return adopt

    patch.wrap(KeptSession, "adopt", make)


@mutant("restart-forgets-packet-identifiers", "what was in flight at QoS 1 is sent under a new identifier")
def forgets_packet_ids(patch: Patch) -> None:
    def change(state: StoredState) -> None:
        state.progress = {
            client: {number: step for number, step in steps.items() if step.released}
            for client, steps in state.progress.items()
        }
        _each(state.entries, lambda entry: entry if entry.qos == 2 else _with(packet_id=0)(entry))

    _on_reading(patch, change)


@mutant("restart-forgets-pubrec", "a delivery whose PUBREC has come begins again with PUBLISH")
def forgets_pubrec(patch: Patch) -> None:
    _on_reading(patch, lambda state: _each(state.progress, _with(released=False)))


@mutant("restart-forgets-received-identifiers", "identifiers of QoS 2 messages received are not read at the start")
def forgets_received(patch: Patch) -> None:
    _on_reading(patch, lambda state: state.inbound.clear())


@mutant("restart-forgets-all-but-two-received-identifiers", "of the QoS 2 messages received two are read at the start")
def forgets_all_but_two(patch: Patch) -> None:
    inbound = "self._stored.inbound.get(client_id, ())"
    patch.rewrite(
        session_restore.SessionRestore, "session", f"dict.fromkeys({inbound}", f"dict.fromkeys(list({inbound})[:2]"
    )


@mutant("restart-brings-back-what-was-passed-on", "what waited for a member that left a share is not written off")
def brings_back_passed_on(patch: Patch) -> None:
    patch.rewrite(Session, "take_queued", "self.kept.dropped(outgoing)", "pass")


@mutant(
    "restart-forgets-large-received-identifiers", "received QoS 2 identifiers of two bytes are not read at the start"
)
def forgets_large(patch: Patch) -> None:
    inbound = "self._stored.inbound.get(client_id, ())"
    patch.rewrite(session_restore.SessionRestore, "session", inbound, f"[each for each in {inbound} if each < 256]")


@mutant(
    "restart-forgets-all-but-one-release", "of the deliveries whose PUBRECs came one is released again after a restart"
)
def forgets_all_but_one(patch: Patch) -> None:
    patch.rewrite(session_restore.SessionRestore, "outgoing", "for number in released:", "for number in released[:1]:")


@mutant("restart-reverses-releases", "what is released again after a restart comes from the last to the first")
def reverses_releases(patch: Patch) -> None:
    patch.rewrite(
        session_restore.SessionRestore, "outgoing", "for number in released:", "for number in released[::-1]:"
    )


@mutant("restart-forgets-identifiers-of-earlier-connections", "a connection that ends takes received identifiers along")
def forgets_received_earlier(patch: Patch) -> None:
    def make(original: Callable[..., None]) -> Callable[..., None]:
        def detach(self: MqttBroker, session: Session, now: float, *, publish_will: bool) -> None:
            original(self, session, now, publish_will=publish_will)
            # In memory they stay; the log forgets them.
            if session.kept is not None and self.journal is not None:
                self.journal._deleted += [(session.kept._inbound_key(each), None) for each in session.inbound_qos2]

        return detach

    patch.wrap(MqttBroker, "detach", make)


@mutant("restart-forgets-flags-of-messages", "messages that wait lose RETAIN and their subscription identifiers")
def forgets_flags(patch: Patch) -> None:
    _on_reading(patch, lambda state: _each(state.entries, _with(retain=False, identifiers=())))


@mutant("restart-sorts-user-properties", "user properties are written as a mapping: repeated names are lost")
def sorts_user_properties(patch: Patch) -> None:
    def change(message: StoredMessage) -> StoredMessage:
        return replace(message, user_properties=tuple(sorted(dict(message.user_properties).items())))

    _on_reading(patch, lambda state: _each_message(state, change))


@mutant("restart-forgets-correlation-data", "correlation data are not written down")
def forgets_correlation(patch: Patch) -> None:
    _on_reading(patch, lambda state: _each_message(state, _with(correlation_data=None)))


@mutant("restart-restarts-message-expiry", "the expiry of a message counts anew from the start of the broker")
def restarts_expiry(patch: Patch) -> None:
    def change(message: StoredMessage) -> StoredMessage:
        return replace(message, expires_at=message.expires_at and time.time() + 600)

    _on_reading(patch, lambda state: _each_message(state, change))


@mutant("restart-loses-what-another-has-taken", "a message of several sessions is deleted when the first has taken it")
def loses_shared(patch: Patch) -> None:
    def release(self: SessionJournal, number: int, changes: list[Any]) -> None:
        changes.append((session_journal.shared_key(number), None))

    patch.replace(SessionJournal, "release_message", release)


# -- retained messages -----------------------------------------------------------------------------------------------


@mutant("restart-brings-cleared-retained-messages-back", "the removal of a retained message is not written down")
def cleared_come_back(patch: Patch) -> None:
    def make(original: Callable[..., None]) -> Callable[..., None]:
        def changed(self: SessionJournal, topic: str) -> None:
            if self._retained.get(topic) is not None:
                original(self, topic)

        return changed

    patch.wrap(SessionJournal, "retained_changed", make)


@mutant("restart-undoes-replaced-retained-messages", "a shorter retained message is not written over a longer one")
def shorter_not_written(patch: Patch) -> None:
    longest: WeakKeyDictionary[SessionJournal, dict[str, int]] = WeakKeyDictionary()

    def make(original: Callable[..., None]) -> Callable[..., None]:
        def changed(self: SessionJournal, topic: str) -> None:
            message = self._retained.get(topic)
            sizes = longest.setdefault(self, {})
            size = 0 if message is None else len(message.payload)
            if message is None or size >= sizes.get(topic, 0):
                original(self, topic)
            sizes[topic] = max(size, sizes.get(topic, 0))

        return changed

    def note(state: StoredState) -> None:
        sizes.update({topic: len(message.payload) for topic, message in state.retained.items()})

    sizes: dict[str, int] = {}

    def make_init(original: Callable[..., None]) -> Callable[..., None]:
        def init(self: SessionJournal, retained: Any) -> None:
            original(self, retained)
            longest[self] = sizes

        return init

    _on_reading(patch, note)
    patch.wrap(SessionJournal, "__init__", make_init)
    patch.wrap(SessionJournal, "retained_changed", make)


@mutant("restart-forgets-long-topics", "keys of 64 KiB and more, such as long topics, are not read at the start")
def forgets_long_topics(patch: Patch) -> None:
    def change(state: StoredState) -> None:
        for topic in [topic for topic in state.retained if len(topic.encode()) >= 65_530]:
            del state.retained[topic]

    _on_reading(patch, change)


@mutant("restart-forgets-retained-messages-to-be-sent", "what a subscription is still to bring is not written down")
def forgets_due(patch: Patch) -> None:
    _on_reading(patch, lambda state: _each(state.subscriptions, _with(retained_due=False)))


@mutant("restart-forgets-all-but-one-walk", "of several subscriptions only the first still brings what it was to bring")
def forgets_all_but_one_walk(patch: Patch) -> None:
    is_due = "is_due = retained is not None and topic_filter in retained"
    first = "and topic_filter == retained.first()[0].topic_filter"
    patch.rewrite(KeptSession, "collect_subscription", is_due, f"{is_due} {first}")


# -- sessions and wills ----------------------------------------------------------------------------------------------


def _each_session(state: StoredState, change: Callable[[StoredSession], StoredSession]) -> None:
    state.sessions = {client: change(head) for client, head in state.sessions.items()}


@mutant(
    "restart-forgets-what-qos-was-granted",
    "what waits has the QoS of its publish after a restart, whatever was granted",
)
def forgets_granted(patch: Patch) -> None:
    def change(state: StoredState) -> None:
        def at_its_own(entry: StoredEntry) -> StoredEntry:
            message = entry.message or state.shared.get(entry.shared)
            return entry if message is None or entry.packet_id else replace(entry, qos=message.qos)

        _each(state.entries, at_its_own)

    _on_reading(patch, change)


@mutant("restart-repeats-what-was-refused", "that a delivery was refused by PUBREC is not written down")
def repeats_refused(patch: Patch) -> None:
    def make(original: Callable[..., None]) -> Callable[..., None]:
        def on_acknowledgement(self: Outbound, packet: Acknowledgement, now: float) -> None:
            original(self, packet, now)
            session = self._connection.session
            if packet.reason >= 0x80 and session is not None and session.kept is not None:
                session.kept.in_flight.changed.pop(packet.packet_id, None)

        return on_acknowledgement

    patch.wrap(Outbound, "on_acknowledgement", make)


@mutant("restart-forgets-empty-sessions", "sessions without subscriptions are not read at the start")
def forgets_empty(patch: Patch) -> None:
    def change(state: StoredState) -> None:
        for client in state.sessions.keys() - state.subscriptions.keys():
            del state.sessions[client]

    _on_reading(patch, change)


@mutant("restart-brings-filters-of-ended-sessions-back", "the end of a session deletes its head alone")
def ended_come_back(patch: Patch) -> None:
    def delete_all(self: KeptSession, changes: list[Any]) -> None:
        changes.append((self._head_key, None))

    patch.replace(KeptSession, "delete_all", delete_all)


@mutant("restart-keeps-sessions-without-expiry", "sessions that end with their connection are written down, too")
def keeps_brief(patch: Patch) -> None:
    def write_down(self: MqttBroker, session: Session) -> None:
        if self.journal is not None:
            self.journal.keep(session)

    patch.replace(MqttBroker, "write_down", write_down)
    _on_reading(patch, lambda state: _each_session(state, lambda head: _with(expiry_s=head.expiry_s or 600.0)(head)))


@mutant("restart-undoes-changed-session-expiry", "the expiry of a session is not written when it changes")
def expiry_not_written(patch: Patch) -> None:
    first: WeakKeyDictionary[Session, float] = WeakKeyDictionary()

    def make(original: Callable[..., StoredSession]) -> Callable[..., StoredSession]:
        def stored(session: Session) -> StoredSession:
            return replace(original(session), expiry_s=first.setdefault(session, session.expiry_s))

        return stored

    patch.wrap(session_journal, "stored_session", make)


def _since(patch: Patch, of_whom: Callable[[StoredSession], bool]) -> None:
    """For these sessions, the time for which they have no connection begins with each start of the broker."""
    _on_reading(
        patch,
        lambda state: state.sessions.update(
            {client: replace(head, disconnected_at=0.0) for client, head in state.sessions.items() if of_whom(head)}
        ),
    )


@mutant("restart-begins-expiry-anew", "the expiry of a session counts from the last start of the broker")
def expiry_begins_anew(patch: Patch) -> None:
    _since(patch, lambda head: head.will is None)


@mutant("restart-begins-will-delays-anew", "the delay of a will counts from the last start of the broker")
def delays_begin_anew(patch: Patch) -> None:
    _since(patch, lambda head: head.will is not None)


@mutant("restart-begins-anew-for-the-connected", "that who was connected has no connection is not written at the start")
def connected_begin_anew(patch: Patch) -> None:
    was: set[str] = set()

    def make(original: Callable[..., StoredSession]) -> Callable[..., StoredSession]:
        def stored(session: Session) -> StoredSession:
            head = original(session)
            return replace(head, disconnected_at=0.0) if session.client_id in was else head

        return stored

    def make_read(original: Callable[..., StoredState]) -> Callable[..., StoredState]:
        def read(records: dict[bytes, bytes], on_problem: Callable[[str], None]) -> StoredState:
            state = original(records, on_problem)
            was.update(client for client, head in state.sessions.items() if not head.disconnected_at)
            return state

        return read

    patch.wrap(session_journal, "stored_session", make)
    patch.wrap(node, "read_state", make_read)


@variation("restart-counts-from-the-first-start", "who was away counts as lost at the first start since then")
def counts_from_first_start(patch: Patch) -> None:
    found: WeakSet[Session] = WeakSet()

    def make_adopt(original: Callable[..., None]) -> Callable[..., None]:
        def adopt(self: KeptSession, *given: Any) -> None:
            original(self, *given)
            found.add(self.session)

        return adopt

    def make(original: Callable[..., StoredSession]) -> Callable[..., StoredSession]:
        def stored(session: Session) -> StoredSession:
            if session.connection is not None:
                found.discard(session)
            head = original(session)
            return head if session in found else replace(head, disconnected_at=0.0)

        return stored

    patch.wrap(KeptSession, "adopt", make_adopt)
    patch.wrap(session_journal, "stored_session", make)


@mutant("takeover-is-forgotten-by-the-restart", "what a connection that took over changes is not written down")
def takeover_forgotten(patch: Patch) -> None:
    taken: WeakSet[Session] = WeakSet()

    def make(original: Callable[..., tuple[Session, bool]]) -> Callable[..., tuple[Session, bool]]:
        def connect(self: MqttBroker, connection: Any, request: ConnectRequest, now: float) -> tuple[Session, bool]:
            before = self.sessions.get(request.client_id)
            is_taken = before is not None and before.connection is not None
            session, present = original(self, connection, request, now)
            if is_taken:
                taken.add(session)
            return session, present

        return connect

    def make_collect(original: Callable[..., None]) -> Callable[..., None]:
        def collect(self: KeptSession, topic_filter: str, *lists: list[Any]) -> None:
            if self.session not in taken:
                original(self, topic_filter, *lists)

        return collect

    patch.wrap(MqttBroker, "connect", make)
    patch.wrap(KeptSession, "collect_subscription", make_collect)


@mutant("restart-reads-few-subscriptions", "of a session no more than 256 subscriptions are read at the start")
def reads_few(patch: Patch) -> None:
    def change(state: StoredState) -> None:
        state.subscriptions = {
            client: dict(list(filters.items())[:256]) for client, filters in state.subscriptions.items()
        }

    _on_reading(patch, change)


@mutant("restart-sends-wills-again", "that a will was sent is not written down")
def sends_again(patch: Patch) -> None:
    sent: WeakKeyDictionary[Session, Will] = WeakKeyDictionary()

    def make_send(original: Callable[..., None]) -> Callable[..., None]:
        def send_will(self: MqttBroker, session: Session, now: float) -> None:
            if session.will is not None:
                sent[session] = session.will
            original(self, session, now)

        return send_will

    def make_store(original: Callable[..., StoredSession]) -> Callable[..., StoredSession]:
        def stored(session: Session) -> StoredSession:
            will = session.will or (sent.get(session) if session.connection is None else None)
            head = original(session)
            return head if will is None else replace(head, will=session_records.stored_message(will.message))

        return stored

    patch.wrap(MqttBroker, "send_will", make_send)
    patch.wrap(session_journal, "stored_session", make_store)


@mutant("restart-forgets-delayed-wills", "a will that waits for its delay is lost with the broker")
def forgets_delayed(patch: Patch) -> None:
    def change(head: StoredSession) -> StoredSession:
        return replace(head, will=None if head.will_delay_s else head.will)

    _on_reading(patch, lambda state: _each_session(state, change))


@mutant("restart-forgets-that-wills-are-retained", "a will that was written down is no retained message any more")
def forgets_will_retain(patch: Patch) -> None:
    def change(head: StoredSession) -> StoredSession:
        return replace(head, will=head.will and replace(head.will, retain=False))

    _on_reading(patch, lambda state: _each_session(state, change))


@mutant("restart-forgets-wills-of-the-connected", "wills of those that were connected are lost with the broker")
def forgets_connected(patch: Patch) -> None:
    def change(head: StoredSession) -> StoredSession:
        return replace(head, will=head.will if head.disconnected_at else None)

    _on_reading(patch, lambda state: _each_session(state, change))


@mutant("restart-brings-withdrawn-wills-back", "the first will of a client is written, and never taken out again")
def withdrawn_come_back(patch: Patch) -> None:
    wills: dict[str, StoredSession] = {}

    def make(original: Callable[..., StoredSession]) -> Callable[..., StoredSession]:
        def stored(session: Session) -> StoredSession:
            head = original(session)
            if head.will is not None:
                wills[session.client_id] = head
            before = wills.get(session.client_id, head)
            return replace(head, will=before.will, will_delay_s=before.will_delay_s)

        return stored

    patch.wrap(session_journal, "stored_session", make)


@mutant("restart-forgets-consumer-options", "what a consumer asked for beside its group is not read at the start")
def forgets_consumer_options(patch: Patch) -> None:
    _on_reading(patch, lambda state: _each(state.subscriptions, _with(options=())))

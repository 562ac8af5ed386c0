"""What of the sessions and retained messages must survive a restart: noticed as it changes, written once a turn.

Sessions that outlive their connection are watched. At the end of a turn :meth:`SessionJournal.take_changes` compares
what was touched with what is written, and returns the records that make up the difference: a message that came and was
acknowledged within one turn leaves none. Queue deliveries are not written, since the queue's own log has them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from operator import itemgetter
from typing import TYPE_CHECKING, Protocol

from assay.reference_broker.mqtt.sessions.session_records import (
    ENTRY,
    FORMAT_VERSION,
    INBOUND,
    PROGRESS,
    RETAINED,
    SESSION,
    SHARED_MESSAGE,
    SUBSCRIPTION,
    VERSION_KEY,
    StoredEntry,
    StoredProgress,
    StoredSession,
    encode,
    number_bytes,
    packet_id_bytes,
    stored_message,
    stored_subscription,
)
from assay.reference_broker.mqtt.sessions.tracked_dict import TrackedDict
from assay.reference_broker.queues.jobs.store import NewRecord
from assay.reference_broker.routing.message import Message

if TYPE_CHECKING:
    from assay.reference_broker.core.connection import Connection
    from assay.reference_broker.mqtt.sessions.retained import RetainedStore
    from assay.reference_broker.mqtt.sessions.session import InFlight, Outgoing, Session

Change = tuple[bytes, bytes | None]
_Numbered = tuple[int, bool, Change]
"""A retained message with its number, or a subscription (True) with that of the last that is due to it: the order of
their records tells which messages those are."""


class Recorder(Protocol):
    """Another protocol's part of the same log, under keys of its own."""

    @property
    def has_changes(self) -> bool: ...

    def take_changes(self) -> list[Change]:
        """What changed since they were taken."""


class Entry:
    """An outgoing message as the log has it."""

    __slots__ = ("has_progress", "number", "packet_id", "released", "shared", "source")

    def __init__(self, number: int, source: InFlight | None, packet_id: int) -> None:
        self.number = number
        """Its place in the session's order."""
        self.source = source
        """The object it was made from; the same packet id with another one is another message."""
        self.packet_id = packet_id
        self.released = False
        self.shared = 0
        """Number of the shared message that it refers to; 0 = none."""
        self.has_progress = False


class _Fresh:
    """An entry to be written for the first time."""

    __slots__ = ("entry", "message", "prefix", "stored")

    def __init__(self, prefix: bytes, entry: Entry, message: Message | None, stored: StoredEntry) -> None:
        self.prefix = prefix
        self.entry = entry
        self.message = message
        self.stored = stored


class KeptSession:
    """One watched session, and what the log has of it."""

    def __init__(self, journal: SessionJournal, session: Session, *, first_number: int = 1) -> None:
        self.session = session
        self._journal = journal
        raw_id = session.client_id.encode()
        self._head_key = SESSION + raw_id
        self._name_prefix = raw_id + b"\0"
        self._next_number = first_number
        self._head_changed = True
        self._waiting: dict[Outgoing, None] = {}
        """Queued in this turn, and not written yet."""
        self._gone: list[Entry] = []
        self._entries: dict[int, Entry] = {}
        """All that the log has, by number."""
        self._sent: dict[int, Entry] = {}
        """Those in flight, by packet id."""
        self._filters: set[str] = set()
        self._retained_due: set[str] = set()
        """Of these filters, those that the log says are still to bring retained messages."""
        self._inbound_ids: set[int] = set()
        self.in_flight: TrackedDict[int, InFlight] = TrackedDict(session.in_flight, self._touched)
        self.inbound: TrackedDict[int, bool] = TrackedDict(session.inbound_qos2, self._touched)
        self.subscriptions = TrackedDict(session.subscriptions, self._touched)
        session.in_flight = self.in_flight
        session.inbound_qos2 = self.inbound
        session.subscriptions = self.subscriptions
        for outgoing in session.queued:
            if outgoing.delivery is None:
                self._waiting[outgoing] = None

    def release(self) -> None:
        """Stop watching."""
        session = self.session
        session.in_flight = dict(self.in_flight)
        session.inbound_qos2 = dict(self.inbound)
        session.subscriptions = dict(self.subscriptions)
        session.kept = None
        # They hold this one, and it them.
        del self.in_flight, self.inbound, self.subscriptions

    @property
    def count(self) -> int:
        """Of the records that the log has of it, about."""
        return len(self._entries) + len(self._filters) + len(self._inbound_ids)

    def _touched(self) -> None:
        self._journal.touched(self)

    # -- what the session tells --------------------------------------------------------------------------------------

    def head_changed(self) -> None:
        """User, expiry, will or connection."""
        self._head_changed = True
        self._touched()

    def queued(self, outgoing: Outgoing) -> None:
        """It joined the queue."""
        if outgoing.delivery is None:
            self._waiting[outgoing] = None
            self._touched()

    def dropped(self, outgoing: Outgoing) -> None:
        """It left the queue for good."""
        self._waiting.pop(outgoing, None)
        if outgoing.entry is not None:
            self._gone.append(outgoing.entry)
            self._touched()

    def leaves_queue(self, outgoing: Outgoing) -> None:
        """It left the queue to be sent."""
        self._waiting.pop(outgoing, None)

    def retained_due(self, topic_filter: str, *, is_due: bool) -> None:
        """Retained messages are to be sent for a subscription, or all of them were."""
        if is_due or topic_filter in self._retained_due:
            self.subscriptions.changed[topic_filter] = None
            self._touched()

    # -- what was read at the start ----------------------------------------------------------------------------------

    def adopt(
        self, entries: dict[int, Entry], waiting: list[tuple[Outgoing, Entry]], filters: set[str], inbound: set[int]
    ) -> None:
        """The log has these already. ``waiting``: what is queued, with its entries."""
        self._entries = entries
        self._sent = {entry.packet_id: entry for entry in entries.values() if entry.packet_id}
        for outgoing, entry in waiting:
            outgoing.entry = entry
        self._filters = filters
        self._retained_due = {each for each in filters if self.session.awaits_retained(each)}
        self._inbound_ids = inbound
        self._waiting.clear()
        self._head_changed = False
        for watched in (self.in_flight.changed, self.inbound.changed, self.subscriptions.changed):
            watched.clear()

    # -- changes -----------------------------------------------------------------------------------------------------

    def collect(self, fresh: list[_Fresh], changes: list[Change]) -> None:
        """Add what changed, but for new entries, which ``fresh`` gets."""
        for packet_id in self.in_flight.changed:
            self.collect_in_flight(packet_id, fresh, changes)
        self.in_flight.changed.clear()
        for outgoing in self._waiting:
            entry = outgoing.entry = self._new_entry(outgoing, 0)
            self._write(fresh, entry, outgoing.message, outgoing)
        self._waiting.clear()
        for entry in self._gone:
            self.delete_entry(entry, changes)
        self._gone.clear()

    def collect_in_flight(self, packet_id: int, fresh: list[_Fresh], changes: list[Change]) -> None:
        value = self.in_flight.get(packet_id)
        if value is not None and value.delivery is not None:
            value = None
        entry = self._sent.get(packet_id)
        if entry is not None:
            if entry.source is value:
                return
            if value is not None and value.is_released:
                entry.source = value
                entry.released = True
                self._progress(entry, changes)
                return
            del self._sent[packet_id]
            self.delete_entry(entry, changes)
        if value is None:
            return
        entry = value.entry
        if entry is not None:
            # It was queued when it was written.
            value.entry = None
            entry.packet_id = packet_id
            self._progress(entry, changes)
        else:
            entry = self._new_entry(value, packet_id)
            entry.released = value.is_released
            message = None if entry.released else value.message_for(packet_id)
            self._write(fresh, entry, message, value)
            if entry.released:
                self._progress(entry, changes)
        self._sent[packet_id] = entry

    def _new_entry(self, source: InFlight, packet_id: int) -> Entry:
        entry = self._entries[self._next_number] = Entry(self._next_number, source, packet_id)
        self._next_number += 1
        return entry

    def _write(
        self,
        fresh: list[_Fresh],
        entry: Entry,
        message: Message | None,
        source: InFlight,
    ) -> None:
        stored = StoredEntry(
            qos=source.qos,
            retain=source.retain,
            identifiers=source.identifiers,
            packet_id=entry.packet_id,
            shared=0,
            message=None,
            share=source.share,
        )
        fresh.append(_Fresh(self._name_prefix, entry, message, stored))

    def _progress(self, entry: Entry, changes: list[Change]) -> None:
        entry.has_progress = True
        value = encode(StoredProgress(packet_id=entry.packet_id, released=entry.released))
        changes.append((self._key(PROGRESS, entry.number), value))

    def delete_entry(self, entry: Entry, changes: list[Change]) -> None:
        """Collect the changes that forget an entry, and what no other entry needs of its message."""
        if self._entries.pop(entry.number, None) is None:
            return
        entry.source = None  # which may hold this one
        changes.append((self._key(ENTRY, entry.number), None))
        if entry.has_progress:
            changes.append((self._key(PROGRESS, entry.number), None))
        if entry.shared:
            self._journal.release_message(entry.shared, changes)

    def collect_rest(self, changes: list[Change], numbered: list[_Numbered]) -> None:
        """Subscriptions, the session itself, and last the ids received, whose messages must not come after them.

        ``numbered`` gets the subscriptions that retained messages are due to, with the last of those.
        """
        for topic_filter in self.subscriptions.changed:
            self.collect_subscription(topic_filter, changes, numbered)
        self.subscriptions.changed.clear()
        if self._head_changed:
            self._head_changed = False
            changes.append((self._head_key, encode(stored_session(self.session))))
        for packet_id in self.inbound.changed:
            # Not yet safe, hence not yet acknowledged: then the client sends it again.
            is_safe = self.inbound.get(packet_id, False)
            if is_safe:
                self._inbound_ids.add(packet_id)
                changes.append((self._inbound_key(packet_id), b""))
            elif packet_id in self._inbound_ids:
                self._inbound_ids.discard(packet_id)
                changes.append((self._inbound_key(packet_id), None))
        self.inbound.changed.clear()

    def collect_subscription(self, topic_filter: str, changes: list[Change], numbered: list[_Numbered]) -> None:
        key = SUBSCRIPTION + self._name_prefix + topic_filter.encode()
        subscription = self.subscriptions.get(topic_filter)
        self._retained_due.discard(topic_filter)
        if subscription is not None:
            self._filters.add(topic_filter)
            group = self.session.consumer_groups.get(topic_filter)
            options = self.session.consumer_options.get(topic_filter, ())
            retained = self.session.retained
            is_due = retained is not None and topic_filter in retained
            change = key, encode(stored_subscription(subscription, group, options, retained_due=is_due))
            if retained is not None and is_due:
                self._retained_due.add(topic_filter)
                numbered.append((retained.newest(topic_filter), True, change))
            else:
                changes.append(change)
        elif topic_filter in self._filters:
            self._filters.discard(topic_filter)
            changes.append((key, None))

    def delete_all(self, changes: list[Change]) -> None:
        """The session's state is not to be kept any longer."""
        for entry in list(self._entries.values()):
            self.delete_entry(entry, changes)
        changes.extend(
            (SUBSCRIPTION + self._name_prefix + topic_filter.encode(), None) for topic_filter in sorted(self._filters)
        )
        changes.extend((self._inbound_key(packet_id), None) for packet_id in sorted(self._inbound_ids))
        changes.append((self._head_key, None))

    def _key(self, kind: bytes, number: int) -> bytes:
        return kind + self._name_prefix + number_bytes(number)

    def _inbound_key(self, packet_id: int) -> bytes:
        return INBOUND + self._name_prefix + packet_id_bytes(packet_id)


def _nothing_is_owed(_key: bytes) -> bool:
    return False


class SessionJournal:
    """The changes of all watched sessions and of the retained messages."""

    def __init__(self, retained: RetainedStore) -> None:
        self.turn = 1
        """Grows with every write; what a connection sends may depend on it."""
        self.touches = 0
        """Grows with every change: who compares it before and after learns whether there was one."""
        self.others: list[Recorder] = []
        """What else is written with the changes of a turn."""
        self.asking: dict[Connection, None] = {}
        """Those that a turn tells of what it may not have changed: all that was written so far must be safe."""
        self.owed: Callable[[bytes], bool] = _nothing_is_owed
        """Whether the last change of a record could not be written yet."""
        self._retained = retained
        retained.on_change = self.retained_changed
        retained.on_absent = lambda topic: self.absent(RETAINED + topic.encode())
        self._retained_topics: dict[str, None] = {}
        self._dirty: dict[KeptSession, None] = {}
        self._deleted: list[Change] = []
        self._shared: dict[int, int] = {}
        """Entries that refer to each shared message, by its number."""
        self._next_shared = 1
        self._has_version = False

    @property
    def has_changes(self) -> bool:
        if self._dirty or self._retained_topics or self._deleted:
            return True
        for other in self.others:  # noqa: SIM110 - each turn asks, which a generator makes slower
            if other.has_changes:
                return True
        return False

    def touched(self, kept: KeptSession) -> None:
        """A session changed."""
        self.touches += 1
        if kept.session.kept is kept:
            self._dirty[kept] = None

    def retained_changed(self, topic: str) -> None:
        """The retained message of a topic was replaced or removed."""
        self.touches += 1
        self._retained_topics[topic] = None

    def no_session(self, client_id: str) -> None:
        """A client is told that it had none."""
        self.absent(SESSION + client_id.encode())

    def absent(self, key: bytes) -> None:
        """Somebody is told that there is nothing of it: where its end could not be written yet, it is written now."""
        if self.owed(key):
            self.touches += 1
            self._deleted.append((key, None))

    def keep(self, session: Session) -> None:
        """Watch a session from now on, or note that its head changed."""
        if session.kept is None:
            session.kept = KeptSession(self, session)
        session.kept.head_changed()

    def forget(self, session: Session) -> None:
        """The session is over, or ends with its connection: nothing of it is to be found after a restart."""
        kept = session.kept
        if kept is None:
            return
        kept.delete_all(self._deleted)
        self._dirty.pop(kept, None)
        self.touches += 1
        kept.release()

    def adopt(self, shared: dict[int, int], leftovers: list[bytes], *, last_shared: int, has_version: bool) -> None:
        """What was read at the start is written already, but for what a session has :meth:`touched` since.

        ``shared``: references by the number of the message; ``last_shared``: the last number that a record has or
        refers to; ``leftovers``: keys of what damage left without what it belongs to.
        """
        self._next_shared = last_shared + 1
        self._shared = {number: count for number, count in shared.items() if count}
        self._deleted = [(key, None) for key in leftovers]
        self._deleted += [(shared_key(number), None) for number, count in shared.items() if not count]
        self._has_version = has_version
        self._retained_topics.clear()

    def release_message(self, number: int, changes: list[Change]) -> None:
        """An entry that referred to a shared message is gone."""
        left = self._shared[number] - 1
        if left:
            self._shared[number] = left
        else:
            del self._shared[number]
            changes.append((shared_key(number), None))

    def take_changes(self, now: float) -> list[NewRecord]:
        """End of a turn: the records to write. Connections of the sessions that changed are told of it.

        ``turn`` grows when there are any.
        """
        changes, self._deleted = self._deleted, []
        dirty, self._dirty = self._dirty, {}
        fresh: list[_Fresh] = []
        for kept in dirty:
            kept.collect(fresh, changes)
            if kept.session.connection is not None:
                kept.session.connection.await_write(self.turn)
        self._write_fresh(fresh, changes)
        numbered: list[_Numbered] = []
        for topic in self._retained_topics:
            message, number = self._retained.numbered(topic)
            value = None if message is None else encode(stored_message(message))
            numbered.append((number, False, (RETAINED + topic.encode(), value)))
        self._retained_topics.clear()
        rest: list[Change] = []
        for kept in dirty:
            kept.collect_rest(rest, numbered)
        changes += [change for _number, _is_due, change in sorted(numbered, key=itemgetter(0, 1))]
        changes += rest
        for other in self.others:
            changes += other.take_changes()
        if not changes:
            return []
        self.turn += 1
        if not self._has_version:
            self._has_version = True
            changes.insert(0, (VERSION_KEY, str(FORMAT_VERSION).encode()))
        timestamp_ms = int(now * 1000)
        return [NewRecord(timestamp_ms, key, value, ()) for key, value in changes]

    def _write_fresh(self, fresh: list[_Fresh], changes: list[Change]) -> None:
        """New entries, each with its message, or with the number of a message that others have as well."""
        copies = Counter(id(new.message) for new in fresh)
        numbers: dict[int, int] = {}
        for new in fresh:
            stored = new.stored
            message = new.message
            if message is not None:
                identity = id(message)
                if copies[identity] > 1:
                    number = numbers.get(identity, 0)
                    if not number:
                        number = numbers[identity] = self._next_shared
                        self._next_shared += 1
                        self._shared[number] = copies[identity]
                        changes.append((shared_key(number), encode(stored_message(message))))
                    new.entry.shared = number
                    stored = _with(stored, shared=number)
                else:
                    stored = _with(stored, message=message)
            key = ENTRY + new.prefix + number_bytes(new.entry.number)
            changes.append((key, encode(stored)))


def _with(stored: StoredEntry, *, shared: int = 0, message: Message | None = None) -> StoredEntry:
    return StoredEntry(
        qos=stored.qos,
        retain=stored.retain,
        identifiers=stored.identifiers,
        packet_id=stored.packet_id,
        shared=shared,
        message=None if message is None else stored_message(message),
        share=stored.share,
    )


def shared_key(number: int) -> bytes:
    """Where the store keeps a message that several entries share."""
    return SHARED_MESSAGE + number_bytes(number)


def stored_session(session: Session) -> StoredSession:
    will = session.will
    return StoredSession(
        username=session.username,
        expiry_s=session.expiry_s,
        disconnected_at=session.disconnected_at,
        will=None if will is None else stored_message(will.message),
        will_delay_s=0 if will is None else will.delay_s,
        tenant="" if session.tenant is None else session.tenant.name,
    )

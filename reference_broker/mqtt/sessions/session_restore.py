"""Sessions and retained messages as they were before a restart."""

from __future__ import annotations

from typing import TYPE_CHECKING

from assay.reference_broker.config import TenantConfig
from assay.reference_broker.core.tenant import Tenant
from assay.reference_broker.mqtt.sessions.retained_sends import RetainedSends
from assay.reference_broker.mqtt.sessions.session import RELEASED, Outgoing, Session, SharedOutgoing, Will
from assay.reference_broker.mqtt.sessions.session_journal import Entry, KeptSession, SessionJournal
from assay.reference_broker.mqtt.sessions.session_records import (
    StoredEntry,
    StoredProgress,
    StoredSession,
    StoredState,
    restored_message,
    restored_subscription,
)
from assay.reference_broker.routing.message import Message

if TYPE_CHECKING:
    from assay.reference_broker.mqtt.sessions.mqtt_broker import MqttBroker


def restore(broker: MqttBroker, journal: SessionJournal, stored: StoredState, now: float) -> list[str]:
    """Put into an empty broker what the journal's records say, and have the journal go on from there.

    A session that was connected counts as disconnected ``now``. What expired meanwhile ends with the first tick.
    Returns what could not be restored, in words.
    """
    problems: list[str] = []
    broker.journal = journal
    newest = [0]
    for topic, message in stored.retained.items():
        if not (message.expires_at and message.expires_at <= now) and not broker.retained.store(
            restored_message(message)
        ):
            problems.append(f"the retained message of {topic[:80]!r} is over the limit")
        newest.append(broker.retained.newest)
    due = {key: newest[count] for key, count in stored.retained_before.items()}
    shared = {number: restored_message(message) for number, message in stored.shared.items()}
    references = dict.fromkeys(shared, 0)
    restored: list[Session] = []
    leftovers: list[bytes] = []
    for client_id, head in stored.sessions.items():
        restoring = SessionRestore(broker, journal, stored, shared, references, due, problems, leftovers)
        restored.append(restoring.session(client_id, head, now))
    for client_id in sorted(stored.unowned()):
        problems.append(f"records of {client_id[:80]!r} without their session")
        leftovers += stored.keys_of(client_id)
    has_version = bool(stored.sessions or stored.retained)
    journal.adopt(references, leftovers, last_shared=stored.last_shared(), has_version=has_version)
    for topic, message in stored.retained.items():
        if broker.retained.get(topic) is None and message.payload:
            journal.retained_changed(topic)
    for session in restored:
        broker.await_return(session)
    broker.review.start(now)
    return problems


class SessionRestore:
    """Restores one session after the other."""

    def __init__(
        self,
        broker: MqttBroker,
        journal: SessionJournal,
        stored: StoredState,
        shared: dict[int, Message],
        references: dict[int, int],
        due: dict[tuple[str, str], int],
        problems: list[str],
        leftovers: list[bytes],
    ) -> None:
        self._broker = broker
        self._journal = journal
        self._stored = stored
        self._shared = shared
        self._references = references
        self._due = due
        """Client id and filter to the newest of the retained messages that are still to be sent."""
        self._problems = problems
        self._leftovers = leftovers
        """Keys of what is not restored: it must be gone before another message has its number."""

    def session(self, client_id: str, head: StoredSession, now: float) -> Session:
        broker = self._broker
        session = broker.new_session(client_id)
        session.username = head.username
        session.tenant = self._tenant(head, client_id)
        session.expiry_s = head.expiry_s
        session.disconnected_at = head.disconnected_at or now
        if head.will is not None:
            session.will = Will(message=restored_message(head.will), delay_s=head.will_delay_s)
        for topic_filter, stored in self._stored.subscriptions.get(client_id, {}).items():
            subscription = restored_subscription(stored)
            broker.restore_subscription(session, topic_filter, subscription, stored.group, stored.options)
            if stored.retained_due:
                session.retained = session.retained or RetainedSends()
                session.retained.add(subscription, self._due[client_id, topic_filter])
        session.inbound_qos2 = dict.fromkeys(self._stored.inbound.get(client_id, ()), True)
        session.recount_ids()
        entries, waiting = self.outgoing(session, client_id)
        self._leftovers += self._stored.message_keys(client_id, besides=entries)
        first_number = self._stored.last_number(client_id) + 1
        kept = session.kept = KeptSession(self._journal, session, first_number=first_number)
        kept.adopt(entries, waiting, set(session.subscriptions), set(session.inbound_qos2))
        if not head.disconnected_at:
            kept.head_changed()
        return session

    def _tenant(self, head: StoredSession, client_id: str) -> Tenant | None:
        """The one that it was of; one that is no more is still not the one its client belongs to now."""
        tenants = self._broker.tenants
        if head.tenant is None:
            return None if tenants is None else tenants.of_client(head.username, client_id)
        if not head.tenant:
            return None
        return (tenants and tenants.named(head.tenant)) or Tenant(TenantConfig(name=head.tenant))

    def outgoing(self, session: Session, client_id: str) -> tuple[dict[int, Entry], list[tuple[Outgoing, Entry]]]:
        """Fill ``in_flight`` and ``queued``. Releases come first, in the order of their PUBRECs."""
        stored_entries = self._stored.entries.get(client_id, {})
        progress = self._stored.progress.get(client_id, {})
        entries: dict[int, Entry] = {}
        waiting: list[tuple[Outgoing, Entry]] = []
        released = [number for number, step in progress.items() if step.released and number in stored_entries]
        for number in released:
            packet_id = progress[number].packet_id
            session.in_flight[packet_id] = RELEASED
            entries[number] = self.restore_entry(number, stored_entries[number], progress[number])
            entries[number].source = RELEASED
        for number in sorted(stored_entries.keys() - entries.keys()):
            stored = stored_entries[number]
            message = self._message(stored)
            if message is None:
                self._problems.append(f"message {number} of {client_id[:80]!r} is lost")
                continue
            entry = entries[number] = self.restore_entry(number, stored, progress.get(number))
            if stored.share:
                outgoing: Outgoing = SharedOutgoing(
                    stored.share, message, stored.qos, stored.retain, stored.identifiers
                )
            else:
                outgoing = Outgoing(message, stored.qos, stored.retain, stored.identifiers)
            entry.source = outgoing
            if entry.packet_id:
                session.hold(entry.packet_id, outgoing)
            else:
                session.queue(outgoing)
                waiting.append((outgoing, entry))
        return entries, waiting

    def _message(self, stored: StoredEntry) -> Message | None:
        if stored.shared:
            return self._shared.get(stored.shared)
        return None if stored.message is None else restored_message(stored.message)

    def restore_entry(self, number: int, stored: StoredEntry, step: StoredProgress | None) -> Entry:
        """An entry as it was written, with the progress that was written after it."""
        entry = Entry(number, None, stored.packet_id if step is None else step.packet_id)
        entry.has_progress = step is not None
        entry.released = step is not None and step.released
        if stored.shared and stored.shared in self._references:
            entry.shared = stored.shared
            self._references[stored.shared] += 1
        return entry

"""Planted bugs of durable sessions: what a broker may forget, confuse or tell too early, and legal variations.

None of the bugs shows while the broker lives: the crashes of ``tests/mqtt/test_session_crashes.py`` find them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from assay.conformance.mutants import Patch, mutant, variation
from assay.reference_broker import node
from assay.reference_broker.core.output_gate import OutputGate
from assay.reference_broker.mqtt.connections.connection import MqttConnection
from assay.reference_broker.mqtt.sessions import session_restore
from assay.reference_broker.mqtt.sessions.session_journal import Change, Entry, KeptSession, SessionJournal
from assay.reference_broker.mqtt.sessions.session_records import ENTRY, INBOUND, PROGRESS, SESSION, StoredState
from assay.reference_broker.queues.jobs.store import NewRecord
from assay.reference_broker.storage import session_store
from assay.reference_broker.storage.session_store import SessionStore


def _keeping_back(patch: Patch, is_lost: Callable[[NewRecord], bool]) -> None:
    """Some records are never written."""

    def make(original: Callable[..., list[NewRecord]]) -> Callable[..., list[NewRecord]]:
        return lambda self, now: [record for record in original(self, now) if not is_lost(record)]

    patch.wrap(SessionJournal, "take_changes", make)


def _is(record: NewRecord, kind: bytes, *, deleted: bool) -> bool:
    assert record.key is not None
    return record.key.startswith(kind) and (record.value is None) == deleted


_NEVER_WRITTEN = (
    ("messages-not-written", ENTRY, False, "messages for a session are only kept in memory"),
    ("acknowledgements-not-written", ENTRY, True, "a message that was acknowledged comes again after a restart"),
    ("received-ids-not-written", INBOUND, False, "packet ids received as QoS 2 are forgotten by a restart"),
    ("released-ids-stay", INBOUND, True, "a released packet id still counts as received after a restart"),
    (
        "progress-not-written",
        PROGRESS,
        False,
        "after a restart a queued message that was sent has lost its packet id",
    ),
    ("head-not-written", SESSION, False, "the session itself is not written, only what is in it"),
)
"""(name, kind of the records that are lost, whether those that delete it, what that means)"""


def _lose(kind: bytes, *, deleted: bool) -> Callable[[Patch], None]:
    return lambda patch: _keeping_back(patch, lambda record: _is(record, kind, deleted=deleted))


for _name, _kind, _deleted, _what in _NEVER_WRITTEN:
    mutant(f"sessions-{_name}", _what)(_lose(_kind, deleted=_deleted))


@mutant("sessions-told-before-synced", "acknowledgements leave before the sync that they depend on")
def told_before_synced(patch: Patch) -> None:
    def hold_output(_self: MqttConnection, _turn: int) -> None:
        """Nothing is held."""

    patch.replace(MqttConnection, "hold_output", hold_output)


@mutant("sessions-released-by-any-sync", "the end of any sync lets everything go, also what was written after it began")
def released_by_any_sync(patch: Patch) -> None:
    def make(original: Callable[..., bool]) -> Callable[..., bool]:
        return lambda self, _turn: original(self, 2**62)

    patch.wrap(OutputGate, "release", make)


@mutant("sessions-receiver-not-told", "a delivery leaves before the packet id under which it goes is on disk")
def receiver_not_told(patch: Patch) -> None:
    def await_write(_self: MqttConnection, _turn: int) -> None:
        """The receiver's connection does not wait."""

    patch.replace(MqttConnection, "await_write", await_write)


def _restoring(patch: Patch, change: Callable[[StoredState], None]) -> None:
    """What was read is changed before it is put back."""

    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        def restore(broker: Any, journal: SessionJournal, stored: StoredState, now: float) -> Any:
            change(stored)
            return original(broker, journal, stored, now)

        return restore

    patch.wrap(node, "restore", make)


@mutant("sessions-new-ids-after-restart", "what was in flight is sent under new packet ids after a restart")
def new_ids_after_restart(patch: Patch) -> None:
    def forget_ids(stored: StoredState) -> None:
        for entries in stored.entries.values():
            for number, entry in entries.items():
                entries[number] = msgspec.structs.replace(entry, packet_id=0)
        for steps in stored.progress.values():
            for number in [number for number, step in steps.items() if not step.released]:
                del steps[number]

    _restoring(patch, forget_ids)


@mutant("sessions-released-forgotten", "a release that the client still waits for is not sent again after a restart")
def released_forgotten(patch: Patch) -> None:
    def forget(stored: StoredState) -> None:
        for client_id, steps in stored.progress.items():
            for number in [number for number, step in steps.items() if step.released]:
                stored.entries[client_id].pop(number, None)

    _restoring(patch, forget)


@mutant("sessions-numbers-restart", "entries written after a restart overwrite older ones")
def numbers_restart(patch: Patch) -> None:
    def make(original: Callable[..., None]) -> Callable[..., None]:
        def build(self: KeptSession, *arguments: Any, first_number: int = 1) -> None:
            del first_number
            original(self, *arguments, first_number=1)

        return build

    patch.wrap(KeptSession, "__init__", make)


@mutant("sessions-shared-message-dropped", "a message for several sessions goes when the first has acknowledged it")
def shared_message_dropped(patch: Patch) -> None:
    def make(original: Callable[..., None]) -> Callable[..., None]:
        def release(self: SessionJournal, number: int, changes: list[Change]) -> None:
            left = self._shared[number]
            if left > 1:
                self._shared[number] = 1
                original(self, number, changes)
                self._shared[number] = left - 1
            else:
                original(self, number, changes)

        return release

    patch.wrap(SessionJournal, "release_message", make)


@mutant("sessions-turn-torn", "of a turn that was written in part, the part counts")
def turn_torn(patch: Patch) -> None:
    def group_record(_start: int, next_offset: int, _records: Sequence[NewRecord]) -> NewRecord:
        return NewRecord(0, b"t", msgspec.msgpack.encode((next_offset, next_offset)), ())

    patch.replace(session_store, "group_record", group_record)


@variation("sessions-deletes-too-much", "progress that was never written is deleted all the same")
def deletes_too_much(patch: Patch) -> None:
    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        def restored(self: Any, number: int, stored: Any, step: Any) -> Entry:
            entry: Entry = original(self, number, stored, step)
            entry.has_progress = True
            return entry

        return restored

    patch.wrap(session_restore.SessionRestore, "restore_entry", make)


@variation("sessions-never-compacted", "the log of sessions only grows")
def never_compacted(patch: Patch) -> None:
    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        def take_jobs(self: SessionStore, now: float) -> Any:
            self._may_compact = False
            return original(self, now)

        return take_jobs

    patch.wrap(SessionStore, "take_jobs", make)

"""Bugs that only large or many things show: windows of bytes that never open again, and limits of one start."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from msgspec.structs import replace

from assay.conformance.mutants import Patch, mutant
from assay.conformance.mutants.restart_sessions import _on_reading
from assay.reference_broker.mqtt.sessions.session import Session
from assay.reference_broker.mqtt.sessions.session_records import StoredMessage, StoredState

_SMALL_WINDOW_BYTES = 1_000_000
_FULL_BYTES = 800_000


@mutant("a-window-full-of-bytes-never-opens", "a window that many bytes have closed stays closed, whatever comes back")
def never_opens(patch: Patch) -> None:
    def make(original: Callable[..., None]) -> Callable[..., None]:
        def send(self: Session, *given: Any) -> None:
            original(self, *given)
            if self.in_flight_bytes > _FULL_BYTES:
                self.window = self.receive_maximum = 0

        return send

    for name in ("hold", "send_queued"):
        patch.wrap(Session, name, make)


@mutant("what-is-not-read-in-time-is-lost", "what waits for a connected client is dropped beyond a megabyte")
def not_read_is_lost(patch: Patch) -> None:
    def make(original: Callable[..., None]) -> Callable[..., None]:
        def deliver(self: Session, message: Any, *given: Any, **named: Any) -> None:
            held = self.queued_bytes + self.in_flight_bytes
            if self.connection is None or held + len(message.payload) <= _SMALL_WINDOW_BYTES:
                original(self, message, *given, **named)

        return deliver

    patch.wrap(Session, "deliver", make)


@mutant("restart-reads-a-megabyte-a-session", "of what waits for a session a start reads no more than a megabyte")
def reads_a_megabyte(patch: Patch) -> None:
    def change(state: StoredState) -> None:
        for entries in state.entries.values():
            held = 0
            for number, entry in sorted(entries.items()):
                held += 0 if entry.message is None else len(entry.message.payload)
                if held > _SMALL_WINDOW_BYTES:
                    del entries[number]

    _on_reading(patch, change)


@mutant("restart-reads-short-filters", "subscriptions to filters of 64 KiB, their keys included, are not read")
def reads_short_filters(patch: Patch) -> None:
    def change(state: StoredState) -> None:
        for filters in state.subscriptions.values():
            for topic_filter in [name for name in filters if len(name.encode()) > 65_500]:
                del filters[topic_filter]

    _on_reading(patch, change)


@mutant("restart-reads-few-properties", "of the user properties of a message a start reads no more than 255")
def reads_few_properties(patch: Patch) -> None:
    def change(message: StoredMessage) -> StoredMessage:
        return replace(message, user_properties=message.user_properties[:255])

    def each(state: StoredState) -> None:
        for entries in state.entries.values():
            for number, entry in list(entries.items()):
                if entry.message is not None:
                    entries[number] = replace(entry, message=change(entry.message))

    _on_reading(patch, each)

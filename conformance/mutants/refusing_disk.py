"""Planted bugs of what the storage does when the system or the disk refuses something."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from assay.conformance.mutants import Patch, mutant, variation
from assay.reference_broker.mqtt.sessions import mqtt_broker
from assay.reference_broker.queues import engine
from assay.reference_broker.queues.jobs import confirms
from assay.reference_broker.queues.jobs.store import NewRecord
from assay.reference_broker.routing.message import Message
from assay.reference_broker.server import file_limit
from assay.reference_broker.storage import log, pending_log
from assay.reference_broker.storage.disk_room import DiskRoom
from assay.reference_broker.storage.log import SegmentedLog
from assay.reference_broker.storage.notes import Notes


@mutant(
    "refused-no-descriptor-is-for-good", "a sync that found no descriptor counts as failed, and its log is given up"
)
def no_descriptor_is_for_good(patch: Patch) -> None:
    for module in (confirms, engine, log, pending_log):
        patch.replace(module, "is_passing", lambda error: False)


@mutant("refused-cuts-what-was-confirmed", "a failed sync cuts off all that it did not cover, whoever relies on it")
def cuts_what_was_confirmed(patch: Patch) -> None:
    def make(original: Callable[..., None]) -> Callable[..., None]:
        def finish(self: SegmentedLog, error: OSError | None) -> None:
            original(self, error)
            if self._failure:
                self._cut_unsynced()

        return finish

    patch.wrap(SegmentedLog, "finish_sync", make)


@mutant("refused-failure-not-logged", "what the disk refuses is told nobody but the client")
def failure_not_logged(patch: Patch) -> None:
    def add(self: Notes, queue: str, place: str, problem: str) -> None:
        """Say nothing."""

    patch.replace(Notes, "add", add)


@mutant("refused-retries-at-once", "a sync that was not tried is tried again in the same turn, without end")
def retries_at_once(patch: Patch) -> None:
    patch.replace(engine, "FIRST_RETRY_S", 0.0)


@mutant("refused-reserve-not-for-sessions", "sessions and retained messages fill the disk past its reserve")
def reserve_not_for_sessions(patch: Patch) -> None:
    def needs_room(self: mqtt_broker.MqttBroker, message: Message) -> bool:
        return False

    patch.replace(mqtt_broker.MqttBroker, "needs_room", needs_room)


@mutant("refused-reserve-forgets-others", "what is written without a check is not counted towards the reserve")
def reserve_forgets_others(patch: Patch) -> None:
    def make(original: Callable[..., int]) -> Callable[..., int]:
        def append(self: SegmentedLog, records: list[NewRecord], **options: Any) -> int:
            room = self._room
            before = room.written_bytes if room is not None else 0
            offset = original(self, records, **options)
            if room is not None and not self.options.reserve_bytes:
                room.written_bytes = before
            return offset

        return append

    patch.wrap(SegmentedLog, "append", make)


@mutant("refused-no-descriptors-kept", "connections may take every descriptor")
def no_descriptors_kept(patch: Patch) -> None:
    patch.replace(file_limit, "reserve_of", lambda limit: 0)


@variation("refused-notes-the-count", "a refused append is told a second time, with the number of its records")
def notes_the_count(patch: Patch) -> None:
    def make(original: Callable[..., int]) -> Callable[..., int]:
        def append(self: SegmentedLog, records: list[NewRecord], **options: Any) -> int:
            try:
                return original(self, records, **options)
            except Exception:
                self.note(self._folder, f"{len(records)} records were refused")
                raise

        return append

    patch.wrap(SegmentedLog, "append", make)


@mutant("queue-reserve-is-used", "messages for queues are taken until the disk is full")
def reserve_is_used(patch: Patch) -> None:
    patch.replace(DiskRoom, "check", lambda self, size: None)

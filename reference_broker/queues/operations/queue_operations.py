"""What administrators ask of the queue engine: queues and their settings, delayed messages, figures."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Any

from assay.reference_broker.config import QueueConfig
from assay.reference_broker.queues.dead_letters.undelivered import LetterTaker
from assay.reference_broker.queues.delays.delayed_message import DelayedMessage
from assay.reference_broker.queues.groups.cursors import resolve
from assay.reference_broker.queues.groups.delivery import QueueStats, QueueUsage
from assay.reference_broker.queues.groups.subscribe_options import CursorPosition
from assay.reference_broker.queues.jobs.agenda import Agenda
from assay.reference_broker.queues.jobs.confirms import Confirm, ignore
from assay.reference_broker.queues.jobs.errors import LogError, QueueError, QueueErrorCode
from assay.reference_broker.queues.messages.address import dead_letter_name
from assay.reference_broker.queues.messages.stored_message import StoredMessage
from assay.reference_broker.queues.operations.browse import browse, read
from assay.reference_broker.queues.operations.figures import is_failed, queue_stats
from assay.reference_broker.queues.operations.purge import Purged, purge
from assay.reference_broker.queues.queue.priority_figures import PriorityFigures
from assay.reference_broker.trace.durations import COARSE_S, Durations

if TYPE_CHECKING:
    from assay.reference_broker.queues.queue.queue import DurableQueue
    from assay.reference_broker.queues.registry.registry import QueueRegistry


class QueueOperations:
    """The administrative half of the engine, :class:`assay.reference_broker.queues.engine.QueueEngine`."""

    _agenda: Agenda
    _registry: QueueRegistry
    _queues: dict[str, DurableQueue]
    _closed: bool

    def _check_open(self) -> None:
        """Raises :class:`QueueError` (CLOSED)."""
        if self._closed:
            raise QueueError(QueueErrorCode.CLOSED, "the broker is closing")

    # -- delayed messages ----------------------------------------------------------------------------------------

    def cancel_delayed(self, queue: str, delay_id: str, now: float, on_done: Confirm | None = None) -> bool:
        """Cancel a delayed message. True: it is never delivered, and ``on_done`` is called once that is as durable as
        the queue promises, or with the error. False: it is not there any more, or was never.

        Raises :class:`QueueError`.
        """
        self._agenda.now = now
        return self._existing(queue).delays.cancel(delay_id, on_done)

    def delayed(self, queue: str, *, limit: int = 100, after: str | None = None) -> list[DelayedMessage]:
        """Up to ``limit`` (1 000 at most) messages that wait for their time, in the order they were published.

        ``after``: from behind that delay id on. Raises :class:`QueueError`.
        """
        return self._existing(queue).delays.list(limit, after)

    def _existing(self, name: str) -> DurableQueue:
        """Raises :class:`QueueError` (UNKNOWN_QUEUE, CLOSED)."""
        self._check_open()
        return self._registry.existing(name)

    # -- administration ------------------------------------------------------------------------------------------

    def create_queue(self, name: str, settings: dict[str, Any], now: float, on_made: Confirm = ignore) -> QueueConfig:
        """Create a queue with settings of its own; ``on_made`` is called once it is there for good, or with the error.

        See :meth:`QueueRegistry.create`. Raises :class:`QueueError`, and then never calls it.
        """
        self._agenda.now = now
        self._check_open()
        queue = self._registry.create(name, settings)
        queue.when_made(on_made)
        return queue.config

    def when_made(self, name: str, on_made: Confirm, *, group: str = "") -> None:
        """``on_made`` is called once a queue of that name is there for good, and its group, where it has that one, or
        with the error; at once where none is about to be made."""
        queue = self._queues.get(name)
        begun = None if queue is None else queue.groups.get(group)
        if begun is not None:
            begun.when_begun(on_made)
        elif queue is not None:
            queue.when_made(on_made)
        else:
            on_made(None)

    def update_queue(self, name: str, changes: dict[str, Any], now: float, on_done: Confirm = ignore) -> None:
        """Change settings of a queue in use; see :meth:`QueueRegistry.update`. Raises :class:`QueueError`."""
        self._agenda.now = now
        self._check_open()
        self._registry.update(name, changes, on_done)

    def delete_queue(
        self, name: str, now: float, on_done: Confirm | None = None, *, although_used: bool = False
    ) -> None:
        """Delete a queue in use with all it holds; see :meth:`QueueRegistry.delete`. Raises :class:`QueueError`."""
        self._agenda.now = now
        self._check_open()
        self._registry.delete(name, on_done, although_used=although_used)

    def is_going(self, name: str) -> bool:
        """Whether a queue of that name was deleted, and what is left of it is about to go."""
        return name in self._registry.removals

    def when_gone(self, name: str, on_gone: Confirm) -> None:
        """``on_gone`` is called when nothing is left of a queue that was deleted, or with the error. What could not be
        removed is tried again."""
        removal = self._registry.removals.get(name)
        if removal is None:
            on_gone(None)
        else:
            removal.when_done(on_gone)

    def purge_queue(self, name: str, now: float, on_done: Purged) -> None:
        """Take away what is ready in a queue; see :func:`purge`. Raises :class:`QueueError`."""
        self._agenda.now = now
        purge(self._existing(name), self._agenda, on_done)

    def add_partitions(self, name: str, total: int, now: float, on_done: Confirm = ignore) -> None:
        """Let a queue in use have so many partitions; see :meth:`QueueRegistry.add_partitions`.

        Raises :class:`QueueError`.
        """
        self._agenda.now = now
        self._check_open()
        self._registry.add_partitions(name, total, on_done)

    def queue_config(self, name: str) -> tuple[QueueConfig, dict[str, Any]]:
        """How a queue is configured, and what of that was set at run time. Raises :class:`QueueError`."""
        queue = self._existing(name)
        return queue.config, queue.settings

    @property
    def admit_queue(self) -> Callable[[QueueConfig, bool], QueueConfig] | None:
        """See :attr:`QueueRegistry.admit`."""
        return self._registry.admit

    @admit_queue.setter
    def admit_queue(self, admit: Callable[[QueueConfig, bool], QueueConfig] | None) -> None:
        self._registry.admit = admit

    def send_letters_elsewhere(self, taker_of: Callable[[str], LetterTaker | None]) -> None:
        """Ask who takes the dead letters of a queue in place of its dead-letter queue; None = nobody does."""
        self._registry.letters_elsewhere = taker_of

    def usage(self, wanted: Callable[[str], bool]) -> QueueUsage:
        """What the queues whose names are wanted use together."""
        return self._registry.usage(wanted)

    def free_settled(self, wanted: Callable[[str], bool], now: float) -> None:
        """Somebody is refused for want of room: let these queues free what nobody needs, soon."""
        self._registry.free_settled(wanted, now)

    def disk_is_full(self, now: float) -> None:
        """Likewise of all queues; not more often than is of use."""
        self._registry.disk_is_full(now)

    def members(self, queue: str, group: str) -> Collection[str] | None:
        """Ids of a group's consumers; None when there is no such group."""
        found = self._queues.get(queue)
        joined = found.groups.get(group) if found is not None else None
        return None if joined is None else joined.consumers.keys()

    # -- figures -------------------------------------------------------------------------------------------------

    def queues(self) -> list[str]:
        """Names of all queues, dead-letter queues included, sorted."""
        return sorted(self._queues)

    def unusable_queues(self) -> list[str]:
        """Names of the queues that were found and cannot be opened, sorted; any operation on one says why."""
        return self._registry.unusable_queues()

    def browse(self, queue: str, limit: int, most_bytes: int | None = None) -> list[tuple[str, StoredMessage]]:
        """See :func:`assay.reference_broker.queues.operations.browse.browse`. Raises :class:`QueueError`."""
        try:
            return browse(self._existing(queue), limit, most_bytes)
        except LogError as error:
            raise QueueError(QueueErrorCode.STORAGE_FAILED, str(error)) from error

    def read(
        self, queue: str, partition: int, offset: int, limit: int, now: float, most_bytes: int | None = None
    ) -> tuple[list[tuple[int, StoredMessage]], int]:
        """Messages of a partition from an offset on, with the offset behind the last: see :func:`read`.

        Raises :class:`QueueError` (UNKNOWN_QUEUE, BAD_ADDRESS, STORAGE_FAILED).
        """
        self._agenda.now = now
        found = self._existing(queue)
        try:
            return read(found, partition, offset, limit, now, most_bytes)
        except LogError as error:
            raise QueueError(QueueErrorCode.STORAGE_FAILED, str(error)) from error

    def places(self, queue: str, position: CursorPosition) -> list[tuple[int, int, int]]:
        """For each partition the first offset that is kept, the offset of a place, and that of the next message.

        Raises :class:`QueueError` (UNKNOWN_QUEUE).
        """
        found = self._existing(queue)
        found.write_unwritten()
        return [
            (partition.log.start_offset, resolve(position, partition, partition.head), partition.log.next_offset)
            for partition in found.partitions
        ]

    def enqueued_at(self, queue: str, partition: int, offset: int) -> float:
        """When a message came, in Unix seconds; 0 where it is not there any more."""
        found = self._queues.get(queue)
        stored = None
        with contextlib.suppress(LogError):
            stored = None if found is None else found.partitions[partition].get(offset)
        return 0.0 if stored is None else stored.enqueued_at

    def config_of(self, queue: str) -> QueueConfig:
        """The configuration of an existing queue, or the one that it would get."""
        return self._registry.config_of(queue)

    def priority_figures(self, queue: str, now: float) -> PriorityFigures:
        """Figures per priority and partition. Raises :class:`QueueError` (UNKNOWN_QUEUE)."""
        found = self._existing(queue)
        return PriorityFigures(topics={queue: found.priority_rates.figures(now)})

    def ready_count(self, queue: str, group: str) -> int:
        """Messages that a group could get now or after a retry wait; one to come, those that it would begin with. Takes
        no longer where there are more of them. Raises :class:`QueueError` as :meth:`stats`."""
        return self._registry.existing(queue).contents.ready_for(group)

    def declarations(self) -> dict[str, str]:
        """What queues were declared as over another protocol, by name, of those that keep it."""
        return {name: queue.config.declared_as for name, queue in self._queues.items() if queue.config.declared_as}

    def has_failed(self, queue: str) -> bool:
        """Whether a queue refuses work until the broker restarts. Raises :class:`QueueError`."""
        return is_failed(self._registry.existing(queue))

    def waited(self, queue: str) -> Durations:
        """From publish to first delivery, of all groups. Raises :class:`QueueError` (UNKNOWN_QUEUE, STORAGE_FAILED)."""
        total = Durations(COARSE_S)
        groups = self._registry.existing(queue).groups.values()
        total.add_all(group.counts.waited for group in groups if group.counts.waited is not None)
        return total

    def stats(self, queue: str) -> QueueStats:
        """Raises :class:`QueueError` (UNKNOWN_QUEUE, STORAGE_FAILED for one that was set aside)."""
        found = self._registry.existing(queue)
        dead_letters = self._queues.get(dead_letter_name(queue))
        return queue_stats(found, dead_letters.contents.depth if dead_letters is not None else 0)

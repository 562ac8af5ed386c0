"""Messages that become dead letters without ever having been pending: expired before their turn, or nobody's."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol

from assay.reference_broker.queues.dead_letters.dead_letters import dead_letter_message
from assay.reference_broker.queues.groups.pending import GroupPartition, PendingEntry
from assay.reference_broker.queues.groups.retry import backoff_s
from assay.reference_broker.queues.jobs.errors import QueueError
from assay.reference_broker.queues.messages.stored_message import StoredMessage
from assay.reference_broker.routing.message import Message, memory_bytes
from assay.reference_broker.trace.schema import TraceKind

if TYPE_CHECKING:
    from assay.reference_broker.queues.groups.contents import QueueContents
    from assay.reference_broker.queues.jobs.agenda import Agenda
    from assay.reference_broker.queues.jobs.confirms import Confirm
    from assay.reference_broker.queues.partitions.partition import QueuePartition

_MAX_WAITING = 10_000
_MAX_WAITING_BYTES = 16 * 1024 * 1024
"""What these take in memory."""
_RETRY_S = 1.0


class _Letter(NamedTuple):
    due_at: float
    partition: QueuePartition
    offset: int
    stored: StoredMessage
    reason: str
    group: str
    """Empty when the queue has no group."""


class LetterTaker(Protocol):
    """A dead-letter queue."""

    def enqueue_dead_letter(self, routing_key: str, message: Message, size: int, now: float, on_done: Confirm) -> None:
        """Take a dead letter, whatever its size. Raises :class:`QueueError` (FULL, STORAGE_FAILED)."""


DeadLetterTarget = Callable[[], LetterTaker]
"""A queue's dead-letter queue, created when it is new. Raises :class:`QueueError`."""
Alert = Callable[[PendingEntry, StoredMessage, str, float], None]
"""Entry, message, reason, time."""


class UndeliveredLetters:
    """Appends them to the dead-letter queue, and tries again what that refused.

    What is not there when the power goes has not been settled either: after the restart it expires again.
    """

    def __init__(self, contents: QueueContents, agenda: Agenda, target: DeadLetterTarget, alert: Alert) -> None:
        """``alert`` is told of each dead letter that is safe."""
        self.wake_at = float("inf")
        """See :class:`Wakeable`."""
        self._contents = contents
        self._agenda = agenda
        self._target = target
        self._alert = alert
        self._waiting: list[_Letter] = []
        self._waiting_bytes = 0

    @property
    def waiting(self) -> int:
        """Those that the dead-letter queue refused."""
        return len(self._waiting)

    def move(
        self,
        partition: QueuePartition,
        offset: int,
        stored: StoredMessage,
        reason: str,
        now: float,
        groups: Sequence[str] = ("",),
    ) -> None:
        """One letter for each group. The message is gone for a start, too, once all of them are safe."""
        self._contents.departures.hold(partition, offset, len(groups))
        for group in groups:
            self._move(_Letter(0.0, partition, offset, stored, reason, group), now)

    def pass_time(self, now: float) -> None:
        """Try again what is due."""
        if self._waiting:
            waiting, self._waiting = self._waiting, []
            self._waiting_bytes = 0
            for letter in waiting:
                if letter.due_at <= now:
                    self._move(letter, now)
                else:
                    self._wait(letter)

    def _move(self, letter: _Letter, now: float) -> None:
        contents = self._contents
        _, partition, offset, stored, reason, group = letter
        entry = PendingEntry(GroupPartition(partition, cursor=0, ordered=False), offset, 0)
        message = dead_letter_message(contents.name, group, entry, stored, reason, now)

        def moved(error: QueueError | None) -> None:
            if not vars(contents):
                return  # the queue was deleted, and nothing is left of it
            if error is None:
                contents.trace_place(TraceKind.DEAD_LETTERED, partition.index, offset, group, reason)
                self._alert(entry, stored, reason, self._agenda.now)
                contents.departures.release(partition, offset)
            elif self.has_room(stored):
                wait_s = max(_RETRY_S, backoff_s(contents.config.retry, 1))
                self._wait(letter._replace(due_at=self._agenda.now + wait_s))
            else:
                contents.trace_place(TraceKind.DISCARDED, partition.index, offset, group, f"{reason}; {error.text}")
                contents.departures.release(partition, offset)

        try:
            self._target().enqueue_dead_letter(stored.routing_key, message, stored.size, now, moved)
        except QueueError as error:
            moved(error)

    def has_room(self, stored: StoredMessage) -> bool:
        """Whether one more may wait here until the dead-letter queue takes it."""
        more = memory_bytes(stored.message)
        return len(self._waiting) < _MAX_WAITING and self._waiting_bytes + more <= _MAX_WAITING_BYTES

    def _wait(self, letter: _Letter) -> None:
        self._waiting.append(letter)
        self._waiting_bytes += memory_bytes(letter.stored.message)
        self._agenda.wake(self, letter.due_at)

"""Dead letters as a whole: sending them back, and their figures.

What a dead-letter queue holds is what some group has not settled, or everything while there is no group. A replay takes
letters out of every group at once: each becomes an entry on its way elsewhere, as a message on its way to the dead
letters is, and is settled once its own queue has it as durably as that promises. So a crash repeats at most what was
under way, and what is done stays done. Where there is no group yet, one of the broker's own remembers what is gone.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

import msgspec

from assay.reference_broker.queues.dead_letters.dead_letters import PRIORITY, replayed_message
from assay.reference_broker.queues.groups.pending import EntryState, PendingEntry
from assay.reference_broker.queues.groups.take_up import take_up
from assay.reference_broker.queues.jobs.agenda import NEVER
from assay.reference_broker.queues.jobs.errors import LogError, QueueError, QueueErrorCode
from assay.reference_broker.queues.messages.address import (
    DEAD_LETTER_PREFIX,
    is_dead_letter,
    message_id_of,
    parse_message_id,
)
from assay.reference_broker.queues.messages.publish_options import PublishOptions, options_in_properties, priority_named

if TYPE_CHECKING:
    from assay.reference_broker.queues.dead_letters.alerts import Alerts
    from assay.reference_broker.queues.groups.group import ConsumerGroup
    from assay.reference_broker.queues.jobs.agenda import Agenda
    from assay.reference_broker.queues.messages.stored_message import StoredMessage
    from assay.reference_broker.queues.queue.queue import DurableQueue

REPLAY_PER_TURN: Final = 256
MAX_UNDER_WAY: Final = 1_024
"""Letters that their queue has not confirmed yet."""
MAX_AHEAD: Final = 10_000
"""How far behind the first letter that a group has not got a single one may be."""
_PAUSE_S: Final = 1.0
_MAX_PAUSES: Final = 60


class ReplayResult(msgspec.Struct, frozen=True, kw_only=True):
    """What came of a replay."""

    replayed: int
    skipped: int
    """Letters with a consumer, or unreadable."""
    failed: int
    """Letters that their queue did not take; they are still dead letters."""


class DeadLetterStats(msgspec.Struct, frozen=True, kw_only=True):
    """The dead letters of a queue."""

    enabled: bool
    """The queue keeps dead letters."""
    queue: str
    """Name of the dead-letter queue."""
    total: int
    """Letters ever written to it."""
    current: int
    """Letters that some group of it has not settled."""
    last_at: float
    """When the newest one that is still stored came, in Unix seconds; 0 = there is none."""
    alerts_sent: int
    """Of all queues, since the broker started, as the next two."""
    alerts_failed: int
    alerts_dropped: int


ReplayDone = Callable[[ReplayResult], None]
_Held = list[tuple["ConsumerGroup", PendingEntry]]


class Replay:
    """One run. Implements :class:`assay.reference_broker.queues.jobs.agenda.Wakeable`: each time is one portion."""

    def __init__(
        self,
        source: DurableQueue,
        target: Callable[[], DurableQueue],
        agenda: Agenda,
        ranges: list[tuple[int, int, int]],
        on_done: ReplayDone,
        is_deleted: Callable[[], bool],
    ) -> None:
        """``ranges``: partition, first offset and end of what to send back. ``is_deleted``: the source is gone."""
        self.wake_at = NEVER
        self._source = source
        self._target = target
        self._agenda = agenda
        self._ranges = ranges
        self._on_done: ReplayDone | None = on_done
        self._is_deleted = is_deleted
        self._under_way = 0
        self._pauses = 0
        self._replayed = self._skipped = self._failed = 0

    @property
    def is_over(self) -> bool:
        return self._on_done is None

    def start(self, now: float) -> None:
        self._agenda.wake(self, now)

    def pass_time(self, now: float) -> None:
        """Send the next portion."""
        if self._is_deleted():
            self._ranges = []
        for _ in range(REPLAY_PER_TURN):
            if not self._ranges or self._under_way >= MAX_UNDER_WAY:
                break
            partition, first, end = self._ranges[0]
            found = self._load(partition, first)
            if found is None or found[0] >= end:
                self._ranges.pop(0)
                continue
            offset, stored = found
            held = take(self._source, partition, offset, now)
            if held and not self.send(stored, held, now):
                self._ranges[0] = (partition, offset, end)
                self._pause(now)
                return
            self._skipped += held is None
            self._ranges[0] = (partition, offset + 1, end)
        if self._ranges and self._under_way < MAX_UNDER_WAY:
            self._agenda.wake(self, now)
        self._end_if_done()

    def _load(self, partition: int, offset: int) -> tuple[int, StoredMessage] | None:
        source = self._source.partitions[partition]
        cached = source.cached.get(offset)
        if cached is not None:
            return offset, cached
        try:
            return source.load(offset)
        except LogError:
            self._skipped += 1
            return None

    def send(self, stored: StoredMessage, held: _Held, now: float) -> bool:
        """Publish to the letter's own queue; False when that does not take it now."""

        def decided(error: QueueError | None) -> None:
            self._under_way -= 1
            if error is None:
                self._replayed += 1
            else:
                self._failed += 1
            if self._is_deleted():
                self._ranges = []
            elif error is None:
                for group, entry in held:
                    sent_back(group, entry)
            else:
                give_back(held, self._agenda.now)
            if self._ranges:
                self._agenda.wake(self, self._agenda.now)
            self._end_if_done()

        message = replayed_message(stored.message)
        try:
            target = self._target()
            if target.misfit(message) is not None and target.refuses_misfits:
                # It stays a dead letter.
                self._failed += 1
                give_back(held, now)
                return True
            target.enqueue_due(stored.routing_key, message, stored.size, now, decided, options_again(stored))
        except QueueError:
            give_back(held, now)
            return False
        self._under_way += 1
        return True

    def _pause(self, now: float) -> None:
        """The queue takes nothing now: it is full, or its disk failed. Try again, but not for ever."""
        self._pauses += 1
        if self._pauses < _MAX_PAUSES:
            self._agenda.wake(self, now + _PAUSE_S)
        else:
            self._failed += 1
            self._ranges = []
            self._end_if_done()

    def _end_if_done(self) -> None:
        if not self._ranges and not self._under_way and self._on_done is not None:
            on_done, self._on_done = self._on_done, None
            if not self._is_deleted():
                self._source.retire_mark()
            on_done(ReplayResult(replayed=self._replayed, skipped=self._skipped, failed=self._failed))


def options_again(stored: StoredMessage) -> PublishOptions | None:
    """Of the options of its first publish only the priority counts again."""
    named = stored.message.user_property(PRIORITY)
    try:
        if named is not None:
            return PublishOptions(priority=priority_named(named))
        options = options_in_properties(stored.message)
    except ValueError:
        return None
    return None if options is None or options.priority is None else PublishOptions(priority=options.priority)


def take(source: DurableQueue, partition: int, offset: int, now: float) -> _Held | None:
    """Take a letter out of every group that has not settled it.

    Empty when all have; None, with nothing done, when it is with a consumer or on its way elsewhere.
    """
    known: dict[ConsumerGroup, PendingEntry] = {}
    behind: list[ConsumerGroup] = []
    for group in source.groups.values():
        place = group.places[partition]
        entry = place.pending.get(offset)
        if entry is not None:
            if entry.state is not EntryState.WAITING:
                return None
            known[group] = entry
        elif offset >= place.cursor:
            behind.append(group)
    for group in behind:
        take_up(group, group.places[partition], offset, now)
        known[group] = group.places[partition].pending[offset]
    for group, entry in known.items():
        group.stops_waiting(entry)
        entry.state = EntryState.DEAD_LETTERING
        group.moving_count += 1
    return list(known.items())


def give_back(held: _Held, now: float) -> None:
    """They are dead letters after all."""
    for group, entry in held:
        if entry.state is EntryState.DEAD_LETTERING:
            entry.deadline = now
            group.wait_again(entry, now)


def sent_back(group: ConsumerGroup, entry: PendingEntry) -> None:
    if entry.state is EntryState.DEAD_LETTERING:
        group.counts.replayed += 1
        group.remove(entry, None)


class DeadLetterOperations:
    """What can be done with dead letters, beside consuming them. Names are engine names of any queue or its letters."""

    def __init__(
        self,
        queues: dict[str, DurableQueue],
        agenda: Agenda,
        alerts: Alerts,
        open_queue: Callable[[str], DurableQueue],
    ) -> None:
        """``open_queue`` finds or creates a queue, or raises :class:`QueueError`."""
        self._queues = queues
        self._agenda = agenda
        self._alerts = alerts
        self._open_queue = open_queue
        self._running: dict[str, Replay] = {}

    def replay(self, queue: str, message_id: str | None, now: float, on_done: ReplayDone) -> None:
        """Send one dead letter, or all that there are now, back to their queue as fresh messages.

        ``on_done`` is told once all of them are decided. Raises :class:`QueueError`: UNKNOWN_QUEUE; NOT_PENDING when
        that letter is settled, with a consumer, or never was; LIMIT while another replay of the queue runs, and for a
        letter that is too far behind; BAD_ADDRESS.
        """
        self._agenda.now = now
        source = self.letters_of(queue)
        running = self._running.get(source.name)
        if running is not None and not running.is_over:
            raise QueueError(QueueErrorCode.LIMIT, f"a replay of {source.name!r} is running; wait for its end")
        if any(partition.lanes is not None for partition in source.partitions):
            text = f"{source.name!r} has messages of other priorities than normal, which cannot be sent back"
            raise QueueError(QueueErrorCode.NOT_ALLOWED, text)
        name = source.name  # nothing is left of one that was deleted
        origin = name[len(DEAD_LETTER_PREFIX) :]
        source.mark_without_groups()
        lows = source.contents.low_watermarks()
        ranges = [
            (index, low, partition.visible_end)
            for index, (partition, low) in enumerate(zip(source.partitions, lows, strict=True))
        ]
        if message_id is not None:
            ranges = [self.find_one(source, message_id)]

        def is_deleted() -> bool:
            return self._queues.get(name) is not source

        replay = Replay(source, lambda: self._open_queue(origin), self._agenda, ranges, on_done, is_deleted)
        self._running[source.name] = replay
        replay.start(now)

    def find_one(self, source: DurableQueue, message_id: str) -> tuple[int, int, int]:
        """Partition, offset and end of one dead letter. Raises :class:`QueueError` (BAD_ADDRESS, NOT_PENDING)."""
        name, index, offset = parse_message_id(message_id)
        if name != source.name:
            text = f"the message id {message_id[:80]!r} is of another queue than {source.name!r}"
            raise QueueError(QueueErrorCode.BAD_ADDRESS, text)
        gone = f"{message_id_of(source.name, index, offset)} is no dead letter that can be sent back now"
        if index >= len(source.partitions) or offset >= source.partitions[index].visible_end:
            raise QueueError(QueueErrorCode.NOT_PENDING, gone)
        needed = False
        for group in source.groups.values():
            place = group.places[index]
            entry = place.pending.get(offset)
            if entry is not None and entry.state is not EntryState.WAITING:
                raise QueueError(QueueErrorCode.NOT_PENDING, gone)
            needed = needed or entry is not None or offset >= place.cursor
            if offset - place.cursor >= MAX_AHEAD:
                text = f"{message_id[:80]!r} has more than {MAX_AHEAD} dead letters before it: replay those first"
                raise QueueError(QueueErrorCode.LIMIT, text)
        if not needed:
            raise QueueError(QueueErrorCode.NOT_PENDING, gone)
        return index, offset, offset + 1

    def stats(self, queue: str) -> DeadLetterStats:
        """Figures of the dead letters of a queue. Raises :class:`QueueError` (UNKNOWN_QUEUE)."""
        origin = queue[len(DEAD_LETTER_PREFIX) :] if is_dead_letter(queue) else queue
        name = DEAD_LETTER_PREFIX + origin
        found, letters = self._queues.get(origin), self._queues.get(name)
        if found is None and letters is None:
            raise QueueError(QueueErrorCode.UNKNOWN_QUEUE, f"there is no queue {queue[:80]!r}")
        return DeadLetterStats(
            enabled=found is not None and found.config.dead_letters,
            queue=name,
            total=sum(partition.log.next_offset for partition in letters.partitions) if letters is not None else 0,
            current=letters.contents.depth if letters is not None else 0,
            last_at=_last_at(letters) if letters is not None else 0.0,
            alerts_sent=self._alerts.sent,
            alerts_failed=self._alerts.failed,
            alerts_dropped=self._alerts.dropped,
        )

    def letters_of(self, queue: str) -> DurableQueue:
        name = queue if is_dead_letter(queue) else DEAD_LETTER_PREFIX + queue
        found = self._queues.get(name)
        if found is None:
            raise QueueError(QueueErrorCode.UNKNOWN_QUEUE, f"there is no queue {name[:80]!r}")
        return found


def _last_at(letters: DurableQueue) -> float:
    newest = 0.0
    for partition in letters.partitions:
        end = partition.visible_end
        try:
            stored = partition.get(end - 1) if end > partition.log.start_offset else None
        except LogError:
            stored = None
        if stored is not None:
            newest = max(newest, stored.enqueued_at)
    return newest

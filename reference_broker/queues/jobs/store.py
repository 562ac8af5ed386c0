"""What the queue engine needs of storage. The core must not import storage, so storage implements these protocols."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import msgspec

from assay.reference_broker.config import QueueConfig

Headers = tuple[tuple[bytes, bytes], ...]


class NewRecord(NamedTuple):
    """A record to append."""

    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: Headers


class LogRecord(NamedTuple):
    """A record read back."""

    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: Headers


class Kept(Protocol):
    """What a log in memory keeps as it is: a record is made of it when one is read."""

    @property
    def enqueued_at(self) -> float:
        """Unix seconds, with the milliseconds of its record."""

    def record(self) -> NewRecord: ...


class PendingRecord(NamedTuple):
    """An unsettled entry of a group as its log remembers it."""

    partition: int
    offset: int
    consumer: str
    """Last consumer that had it; empty where nobody had, or nobody wrote down who."""
    claimed_at_ms: int
    """When it was last delivered."""
    due_at_ms: int
    """When it may be redelivered, if it was given back and waits for that; 0 while its consumer has it."""
    delivery_count: int
    annotations: bytes = b""
    """What consumers noted on the message as they gave it back, encoded."""


class CursorRecord(NamedTuple):
    """How far a group got in one partition."""

    cursor: int
    """Next offset to deliver for the first time."""
    committed: int
    """Everything below it is settled."""


class SyncTask(Protocol):
    """One blocking sync of what a log wrote so far. Run it in any thread; at most one per log at a time."""

    def run(self) -> None:
        """Raises :class:`OSError` when the disk fails."""


class SyncedLog(Protocol):
    """Anything that is made durable by syncs."""

    @property
    def needs_sync(self) -> bool:
        """There is something for :meth:`start_sync`."""

    def start_sync(self) -> SyncTask | None: ...

    def finish_sync(self, error: OSError | None) -> None: ...

    def close(self) -> None: ...


class RetentionPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """Limits of one log; 0 = no limit. A log keeps at most what every limit allows, rounded up to whole segments."""

    max_bytes: int = 0
    max_age_ms: int = 0
    """A record may go when it and all before it are older."""
    max_records: int = 0


class PartitionLog(Protocol):
    """The append-only log of one partition. Offsets grow by one per record; damaged ranges may leave gaps."""

    @property
    def start_offset(self) -> int:
        """Lowest offset kept."""

    @property
    def next_offset(self) -> int:
        """Offset of the next record to be written."""

    @property
    def durable_offset(self) -> int:
        """Every record below it survives power loss."""

    @property
    def needs_sync(self) -> bool:
        """Something was written, created or found that no sync covers yet."""

    @property
    def stored_bytes(self) -> int: ...

    def append(self, records: Sequence[NewRecord], *, transactional: bool = False, size_bytes: int = 0) -> int:
        """Write records (at least one), visible to :meth:`read` at once; returns the offset of the first.

        ``transactional``: some belong to a transaction or end one; the format has a flag for it. ``size_bytes``: about
        what they have, for a log in memory, which keeps them as they are.

        All or nothing: raises :class:`LogError` with nothing kept when the disk is full or failed.
        """

    def keep(self, messages: Sequence[Kept], size_bytes: int) -> int:
        """As :meth:`append`, of what may stay as it is."""

    def get(self, offset: int) -> LogRecord | None:
        """The record with exactly that offset; None when it is missing or damaged. Raises :class:`LogError`."""

    def read(self, offset: int, limit: int) -> list[LogRecord]:
        """Up to about ``limit`` records from ``offset`` on, in order; empty at the end. Raises :class:`LogError`."""

    def offset_at(self, timestamp_ms: int) -> int:
        """Offset of the first record that is not earlier than a time; ``next_offset`` when all are.

        Raises :class:`LogError`.
        """

    def report(self, offset: int, problem: str) -> None:
        """A record is sound and cannot be used: people are told, once."""

    def start_sync(self) -> SyncTask | None:
        """A sync of everything appended so far; None when nothing is unsynced or a sync is already running."""

    def finish_sync(self, error: OSError | None) -> None:
        """The task ended. An error makes the log refuse everything from now on."""

    def roll(self) -> None:
        """Let what is stored be freed as a whole, once a sync covers that something new begins behind it.

        Raises :class:`LogError`.
        """

    def drop_before(self, offset: int) -> None:
        """Free storage that only holds records below ``offset``; it may keep more than asked."""

    def retain(self, policy: RetentionPolicy, *, now_ms: int, needed_from: int | None) -> None:
        """Delete what the policy does not keep, but nothing from ``needed_from`` on. Raises :class:`LogError`."""

    def close(self) -> None: ...


class WantedOffsets(Protocol):
    """Which records of a log are still wanted."""

    def count(self, first: int, end: int) -> int:
        """How many offsets from one to below another are."""

    def numbers(self, first: int, end: int) -> Iterable[int]:
        """Which, as they are at the call; iterated once, in any thread, whatever changes meanwhile."""


class SparseLog(PartitionLog, Protocol):
    """A log whose records are done with in any order."""

    def start_thinning(self, wanted: WantedOffsets) -> SyncTask | None:
        """Begin to free storage in which few records are wanted, a bounded part of it; None when there is none.

        ``wanted`` is only asked during the call. Offsets stay as they are; :meth:`drop_before` must wait for the end.
        """

    def finish_thinning(self, error: OSError | None) -> None:
        """The task ended. An error leaves everything as it was."""


class PendingLog(Protocol):
    """The pending entries and cursors of one group. Operations collect in memory until :meth:`flush`."""

    @property
    def recovered(self) -> Sequence[PendingRecord]:
        """Unsettled entries found at opening, by partition and offset."""

    @property
    def recovered_cursors(self) -> dict[int, int]:
        """Partition -> next offset to deliver, found at opening."""

    def add(self, partition: int, offset: int, consumer: str, claimed_at_ms: int, delivery_count: int) -> None:
        """A first delivery; moves the partition's cursor behind it."""

    def add_run(self, partition: int, offset: int, end: int, consumer: str, claimed_at_ms: int) -> None:
        """As :meth:`add` for every offset from one to another, exclusive, each delivered for the first time."""

    def ack(self, partition: int, offset: int) -> None:
        """Settled for good."""

    def ack_all(self, partition: int, offsets: Iterable[int]) -> None:
        """As :meth:`ack` for each."""

    def ack_many(self, partition: int, ranges: Iterable[tuple[int, int]]) -> None:
        """As :meth:`ack` for every offset of the ranges ``(first, end)``, ``end`` exclusive."""

    def claim(self, partition: int, offset: int, consumer: str, claimed_at_ms: int, delivery_count: int) -> None:
        """Delivered again, so many times in all."""

    def expire(self, partition: int, offset: int, due_at_ms: int) -> None:
        """Taken back from its consumer; it may be redelivered from ``due_at_ms`` on."""

    def annotate(self, partition: int, offset: int, annotations: bytes) -> None:
        """All that consumers have noted so far on the message that was delivered: an encoded table."""

    def move_cursor(self, partition: int, offset: int) -> None:
        """The next offset to deliver for the first time."""

    def rewind(self, offsets: Mapping[int, int]) -> None:
        """Partition -> offset: those from there on are given out again, so all that is known of them is dropped.

        Durable on return: blocking, so only for opening. Raises :class:`LogError`.
        """

    @property
    def has_unflushed(self) -> bool: ...

    def flush(self) -> None:
        """Write what collected. Raises :class:`LogError`; what collected stays and is written by the next flush."""

    def wants_snapshot(self, pending: int) -> bool:
        """The log has grown well past what is pending, and no snapshot is under way."""

    def begin_snapshot(
        self, cursors: Mapping[int, CursorRecord], entries: Iterable[PendingRecord], now_ms: int
    ) -> None:
        """Right after a flush: begin to replace the log by this state, in steps that do not block.

        ``entries`` are those pending now, iterated by :meth:`continue_snapshot`, some each time. They may show an entry
        as it is by then, or leave it out when it is settled by then. Never raises: the old state stays valid, and a
        snapshot that fails is tried again once the log has doubled.
        """

    def continue_snapshot(self) -> bool:
        """Right after a flush: take some entries in. True while there are more; False also without a snapshot."""

    @property
    def needs_sync(self) -> bool:
        """There is something for :meth:`start_sync`, be it only a step of a snapshot."""

    def start_sync(self) -> SyncTask | None:
        """As :meth:`PartitionLog.start_sync`. It also takes a snapshot a step further."""

    def finish_sync(self, error: OSError | None) -> None:
        """As :meth:`PartitionLog.finish_sync`."""

    def close(self) -> None: ...


class StoredGroup(msgspec.Struct, frozen=True, kw_only=True):
    """A group found in a queue's folder."""

    group: str
    """Effective group id."""
    pattern: str


class StoredQueue(msgspec.Struct, frozen=True, kw_only=True):
    """A queue found in the store."""

    name: str
    partitions: int
    settings: dict[str, Any] = {}
    """What was configured at run time."""


class RecoveryNote(msgspec.Struct, frozen=True, kw_only=True):
    """Something that opening a log found and people should know."""

    queue: str
    place: str
    """File, and position in it."""
    problem: str
    """What was found and what was done about it."""


class SyncedDescription(SyncedLog, Protocol):
    """What is remembered of a queue beside its logs."""

    @property
    def is_new(self) -> bool:
        """No sync has made the queue yet: what is written of it before that counts for nothing at a start."""


class QueueFiles(Protocol):
    """The storage of one open queue."""

    @property
    def facts(self) -> frozenset[str]:
        """What was once true of the queue and stays so."""

    @property
    def description(self) -> SyncedDescription:
        """What is remembered of the queue, where it is changed by a sync."""

    @property
    def volatile(self) -> bool:
        """It is memory: nothing survives the process, so nothing needs a sync."""

    @property
    def keeps_messages(self) -> bool:
        """Logs of partitions have messages as they are, so that records are not worth making."""

    @property
    def settings(self) -> dict[str, Any]:
        """What was configured at run time."""

    @property
    def note_count(self) -> int:
        """How much was noted of the queue's files since the store was opened: see :class:`RecoveryNote`."""

    @property
    def purged(self) -> dict[int, int]:
        """Partition -> offset: what is below was purged."""

    def update_description(
        self,
        *,
        settings: Mapping[str, Any] | None = None,
        partitions: int | None = None,
        purged: Mapping[int, int] | None = None,
        facts: Iterable[str] | None = None,
    ) -> None:
        """Change what is remembered of the queue; None = as it is. It holds over a start once :attr:`description` is
        synced, and is as it was where that fails."""

    def write_description(self) -> None:
        """Make all of it durable here and now. Blocking. Raises :class:`LogError`."""

    def removal(self) -> SyncTask:
        """Removes all that is stored of the queue, so that neither a crash nor a new queue of that name brings it back.

        Blocking, in any thread, once every log is closed. Until it is done the queue is there as it was, or not at all.
        """

    def open_partition(self, partition: int) -> PartitionLog:
        """Open and recover, or create. Raises :class:`LogError`."""

    @property
    def has_delays(self) -> bool:
        """:meth:`open_delays` would find a log. Raises :class:`LogError`."""

    def open_delays(self) -> SparseLog:
        """The log of delayed messages: open and recover, or create. Raises :class:`LogError`."""

    def open_delays_done(self) -> PartitionLog:
        """The log of those that fired or were cancelled, likewise."""

    @property
    def has_departures(self) -> bool:
        """:meth:`open_departures` would find a log. Raises :class:`LogError`."""

    def open_departures(self) -> PartitionLog:
        """The log of what left the queue and is still in its partitions: open and recover, or create.

        Raises :class:`LogError`.
        """

    def groups(self) -> list[StoredGroup]:
        """Groups with stored state, by id."""

    def open_group(self, group: str, pattern: str, *, transient: bool = False) -> PendingLog:
        """Open and recover, or create. Raises :class:`LogError`."""

    def remove_group(self, group: str) -> SyncedLog:
        """What deletes, by a sync, all that is stored of a group, which writes nothing any more."""


class KeyedState(Protocol):
    """A durable mapping from keys to values. Changes show at once; a crash may take back unsynced ones.

    A change is durable when :attr:`durable_offset` is greater than the offset that it returned.
    """

    @property
    def state(self) -> Mapping[bytes, bytes]:
        """All keys and values, unsynced changes included."""

    @property
    def next_offset(self) -> int:
        """Offset of the next change."""

    @property
    def durable_offset(self) -> int:
        """Changes below it survive power loss."""

    def apply(self, changes: Sequence[tuple[bytes, bytes | None]], now_s: float) -> int:
        """Make changes in order, None deletes; returns the offset of the last one.

        Raises :class:`LogError` with nothing changed. A crash before the sync may keep the first of them only.
        """

    def start_sync(self, now_s: float) -> SyncTask | None:
        """A sync of all changes so far; None when there is nothing to do or one is running."""

    def finish_sync(self, error: OSError | None) -> None:
        """The task ended. After an error every change is refused until the state is opened again."""

    def close(self) -> None: ...


class QueueStore(Protocol):
    """Where queues live."""

    on_note: Callable[[RecoveryNote], None] | None
    """Told of each note."""
    on_full: Callable[[], None]
    """Called when something is refused since the disk is nearly full."""

    def stored_queues(self) -> list[StoredQueue]:
        """Queues that exist in the store, by name."""

    def stored_queue(self, name: str) -> StoredQueue | None:
        """One of them; None where there is none. Raises :class:`LogError` where what is there cannot be read."""

    def unread_queues(self) -> list[str]:
        """Those that :meth:`stored_queues` set aside since the disk did not give what it has, which may pass."""

    def set_aside(self, name: str, problem: str) -> None:
        """Nothing is to be done with a queue until :meth:`take_back`, so that its files stay as they are."""

    def take_back(self, name: str) -> None:
        """A queue that was set aside is about to be opened once more."""

    def unusable(self, name: str) -> str | None:
        """Why a queue was set aside, by :meth:`stored_queues` or by :meth:`set_aside`; None = it was not.

        It must not be created anew.
        """

    def unusable_queues(self) -> list[str]:
        """Those that were, sorted, as far as their names can be read."""

    def open_queue(
        self, config: QueueConfig, settings: Mapping[str, Any] | None = None, *, later: bool = False
    ) -> QueueFiles:
        """Open, or create: durably, or ``later``, by the first sync of :attr:`QueueFiles.description`. A queue of
        durability ``memory`` is kept in memory. Raises :class:`LogError`.

        ``settings``: what is configured at run time, as part of the creation; None = as it is stored.
        """

    def open_state(self, name: str, *, create: bool) -> KeyedState | None:
        """Keyed state that belongs to no queue, by a folder name; None when there is none and it is not to be created.

        Raises :class:`LogError`.
        """

    def recovery_notes(self) -> list[RecoveryNote]:
        """What opening the queues found so far, oldest first."""

    def note(self, queue: str, place: str, problem: str) -> None:
        """Tell people of something: see :class:`RecoveryNote`."""

    def close(self) -> None: ...

"""The durable memory of producers and transactions: ids, epochs, decisions to commit, snapshots of partitions.

Abort is presumed: nothing is written before a commit is decided, and a transaction without a decision is aborted when
the broker starts. The state has these keys:

=========================== ==========================================================================================
``ids``                     the first number that was never given out
``p:<transactional id>``    :class:`Producer`: id, epoch, last transaction that it committed
``t:<transaction id>``      :class:`Decision`: the transaction is committed, and its parts may still have to be told
``q:<queue>:<partition>``   a snapshot of :class:`assay.reference_broker.queues.partitions.producers.PartitionProducers`
=========================== ==========================================================================================
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import msgspec

from assay.reference_broker.queues.jobs.agenda import Agenda
from assay.reference_broker.queues.jobs.confirms import Confirm, SyncPoint, sync_now
from assay.reference_broker.queues.jobs.errors import LogError, QueueError, QueueErrorCode
from assay.reference_broker.queues.jobs.store import KeyedState, QueueStore
from assay.reference_broker.queues.jobs.timed_state import TimedState
from assay.reference_broker.trace.described import described

if TYPE_CHECKING:
    from assay.reference_broker.queues.transactions.transaction import Transaction

FOLDER: Final = "transactions"
_IDS = b"ids"
_PRODUCER = b"p:"
_DECISION = b"t:"
_PARTITION = b"q:"
BLOCK = 1_000
"""Numbers are reserved durably so many at a time."""


class Producer(msgspec.Struct, array_like=True):
    """A producer with a transactional id, which outlives the processes that use it."""

    id: int
    epoch: int
    used_at_s: float
    last_committed: str = ""
    """The last transaction that was committed: to be told so again to whoever missed the answer."""
    owner: str = ""
    """Whose it is: nobody else may use it. Empty = it is nobody's."""


class HeldOffset(msgspec.Struct, array_like=True, frozen=True):
    """A message that was acknowledged in a transaction, or rejected."""

    queue: str
    group: str
    partition: int
    offset: int
    delivered_at_ms: int | None = None
    """Names the delivery: a later one, to a group that was reset or made anew since, is not meant. None: not told."""
    is_rejected: bool = False


class Decision(msgspec.Struct, array_like=True, frozen=True):
    """A transaction is committed, whatever happens from now on."""

    producer: int
    epoch: int
    transactional_id: str
    partitions: list[tuple[str, int]]
    """Queue and partition of its messages."""
    held: list[HeldOffset]


class Coordinator(SyncPoint):
    """The state, decoded. Changes show at once; :meth:`when_durable` tells when they may be relied on."""

    def __init__(self, state: KeyedState, agenda: Agenda) -> None:
        """Raises :class:`LogError` when the state is not what this broker writes."""
        self._timed = TimedState(state, agenda)
        super().__init__(self._timed)
        self._state = state
        self._agenda = agenda
        self.producers: dict[str, Producer] = {}
        """By transactional id."""
        self.ids_of: dict[str, int] = {}
        """How many of them are an owner's."""
        self.names: dict[int, str] = {}
        """Producer id -> transactional id."""
        self.decisions: dict[str, Decision] = {}
        """By transaction: committed ones that are not complete."""
        self.kept: set[str] = set()
        """Of these those that some queue cannot be told, as it was set aside: they are never complete."""
        self.partitions: dict[tuple[str, int], bytes] = {}
        """Queue and partition -> snapshot, as found at opening."""
        self.open: dict[int, Transaction] = {}
        """By producer id."""
        self._reserved = 1
        self._reservation = -1
        try:
            for key, value in state.state.items():
                self.take_record(key, value)
        except (ValueError, UnicodeDecodeError) as error:
            message = f"the state in {FOLDER} cannot be read: {error}; move its folder away to start without it"
            raise LogError(message) from error
        self._next = self._reserved

    def take_record(self, key: bytes, value: bytes) -> None:
        """Read one record of the coordinator's log."""
        if key == _IDS:
            self._reserved = max(self._reserved, int(value))
        elif key.startswith(_PRODUCER):
            name = key[len(_PRODUCER) :].decode()
            producer = msgspec.msgpack.decode(value, type=described(Producer))
            self._note(name, producer)
            # The reservation may be lost and the producer not, while nothing was durable.
            self._reserved = max(self._reserved, producer.id + 1)
        elif key.startswith(_DECISION):
            self.decisions[key[len(_DECISION) :].decode()] = msgspec.msgpack.decode(value, type=described(Decision))
        elif key.startswith(_PARTITION):
            queue, _, index = key[len(_PARTITION) :].decode().rpartition(":")
            self.partitions[queue, int(index)] = value

    # -- changes -------------------------------------------------------------------------------------------------

    def _apply(self, changes: Sequence[tuple[bytes, bytes | None]]) -> int:
        """Raises :class:`QueueError` (STORAGE_FAILED) with nothing changed."""
        if self.failure is not None:
            raise self.failure
        try:
            offset = self._state.apply(changes, self._agenda.now)
        except LogError as error:
            if error.sticky:
                self.fail(str(error))
            raise QueueError(QueueErrorCode.STORAGE_FAILED, str(error)) from error
        self._agenda.unsynced[self] = None
        return offset

    def when_durable(self, confirm: Confirm) -> None:
        """Call it once all changes so far are durable, or with the error."""
        if self.failure is not None:
            confirm(self.failure)
        elif self.when_synced(confirm):
            self._agenda.awaited_syncs[self] = None
        else:
            confirm(None)

    def when_verified(self, confirm: Confirm) -> None:
        """Call it once what was found at opening is durable: a broker that was killed need not have synced it."""
        if self._timed.is_unverified:
            self.when_durable(confirm)
        else:
            confirm(None)

    def sync_now(self) -> None:
        """Blocks until all changes so far are durable; only at opening. Raises :class:`LogError`."""
        failure = sync_now(self)
        if failure is not None:
            raise LogError(f"cannot sync the state in {FOLDER}: {failure.strerror or failure}") from failure

    def take_number(self) -> int:
        """A number that was never given out; reliable once :attr:`numbers_are_safe`. Raises :class:`QueueError`."""
        if self._next >= self._reserved:
            end = self._next + BLOCK
            self._reservation = self._apply([(_IDS, b"%d" % end)])
            self._reserved = end
        self._next += 1
        return self._next - 1

    @property
    def numbers_are_safe(self) -> bool:
        """No power loss makes the numbers given out so far be given out again."""
        return self._state.durable_offset > self._reservation and not self._timed.is_unverified

    def was_given_out(self, number: int) -> bool:
        return 0 < number < self._next

    def save_producer(self, name: str, producer: Producer) -> None:
        """Raises :class:`QueueError`."""
        self._apply([(_PRODUCER + name.encode(), msgspec.msgpack.encode(producer))])
        self._note(name, producer)

    def _note(self, name: str, producer: Producer | None) -> None:
        previous = self.producers.pop(name, None)
        if previous is not None:
            self.names.pop(previous.id, None)
            left = self.ids_of.pop(previous.owner) - 1
            if left:
                self.ids_of[previous.owner] = left
        if producer is not None:
            self.producers[name] = producer
            self.names[producer.id] = name
            self.ids_of[producer.owner] = self.ids_of.get(producer.owner, 0) + 1

    def forget_producer(self, name: str) -> None:
        """Raises :class:`QueueError`."""
        self._apply([(_PRODUCER + name.encode(), None)])
        self._note(name, None)

    def decide(self, transaction: str, decision: Decision) -> None:
        """Raises :class:`QueueError`. Where no part is to be told, its producer's record says it all."""
        if not decision.partitions and not decision.held:
            self._remember(transaction, decision, [])
            return
        self._apply([(_DECISION + transaction.encode(), msgspec.msgpack.encode(decision))])
        self.decisions[transaction] = decision

    def complete(self, transaction: str) -> None:
        """Every part of it knows, durably. Raises :class:`QueueError`."""
        self._remember(transaction, self.decisions[transaction], [(_DECISION + transaction.encode(), None)])
        del self.decisions[transaction]

    def _remember(self, transaction: str, decision: Decision, changes: Sequence[tuple[bytes, bytes | None]]) -> None:
        """It is its producer's last committed transaction, unless a later one was complete earlier."""
        name = decision.transactional_id
        producer = self.producers.get(name)
        if producer is None or producer.id != decision.producer or int(producer.last_committed or 0) > int(transaction):
            if changes:
                self._apply(changes)
            return
        producer = msgspec.structs.replace(producer, last_committed=transaction)
        self._apply([(_PRODUCER + name.encode(), msgspec.msgpack.encode(producer)), *changes])
        self.producers[name] = producer

    def save_partition(self, queue: str, partition: int, snapshot: bytes | None) -> None:
        """None: the partition does not exist any more. Raises :class:`QueueError`."""
        self._apply([(_PARTITION + f"{queue}:{partition}".encode(), snapshot)])


def open_coordinator(store: QueueStore, agenda: Agenda, *, create: bool) -> Coordinator | None:
    """The coordinator's state; None when there is none and it is not to be created. Raises :class:`LogError`."""
    state = store.open_state(FOLDER, create=create)
    if state is None:
        return None
    coordinator = Coordinator(state, agenda)
    agenda.state_points[coordinator] = None
    return coordinator

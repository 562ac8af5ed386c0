"""Who produces: ids and epochs, transactional ids that outlive the processes that use them, and whose they are."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from assay.reference_broker.config import TransactionsConfig
from assay.reference_broker.queues.jobs.agenda import Agenda
from assay.reference_broker.queues.jobs.errors import QueueError, QueueErrorCode
from assay.reference_broker.queues.jobs.store import QueueStore
from assay.reference_broker.queues.messages.control_records import MAX_EPOCH
from assay.reference_broker.queues.messages.publish_options import bad_option
from assay.reference_broker.queues.transactions.commit_phases import CommitPhases
from assay.reference_broker.queues.transactions.coordinator import Coordinator, Producer
from assay.reference_broker.queues.transactions.producer_memory import ProducerMemory
from assay.reference_broker.queues.transactions.transaction import UNDECIDED, TransactionState

_NUMBER_BITS = 40
"""Of a producer id; above it is the tag of the owner, so that an id tells whose it is though nothing is kept of it."""
_LARGEST_NUMBER = 2**_NUMBER_BITS - 1
_LARGEST_TAG = 2**23 - 1
_MAX_NAME_BYTES = 1_024
_MAX_DIGITS = 20
"""Of an id as a client may write it, zeros in front included."""


class ProducerIdentity(NamedTuple):
    """What a producer names in all it does."""

    producer_id: int
    epoch: int


OnProducer = Callable[[QueueError | None, ProducerIdentity | None], None]


class ProducerNames:
    """All producers of an engine. Without any it holds nothing and does nothing."""

    def __init__(self, config: TransactionsConfig, store: QueueStore, agenda: Agenda) -> None:
        self._config = config
        self._agenda = agenda
        self.memory = ProducerMemory(store, agenda)
        self._phases = CommitPhases(agenda, self.memory)
        self.closed = False

    def init_producer(
        self, transactional_id: str | None, now: float, on_done: OnProducer, *, owner: str | None = None
    ) -> None:
        """A producer begins. With a transactional id it gets that one's id and a new epoch, which fences the old.

        Without one it is a new producer each time, which can number its messages but has no transactions. ``on_done``
        is called once: with the identity when it is durable, or with the error. Raises :class:`QueueError` (LIMIT,
        BAD_OPTION, NOT_ALLOWED, STORAGE_FAILED) and then does not call it.

        The producer is its ``owner``'s, and so becomes a transactional id that is nobody's. The empty owner owns
        nothing; None is the broker's own program, which may use every id, and those that it begins are nobody's.
        """
        self._agenda.now = now
        coordinator = self._usable_coordinator()
        if transactional_id is None:
            number = _tag_of(owner or "") << _NUMBER_BITS | coordinator.take_number()
            self._tell_identity(ProducerIdentity(number, 0), on_done)
            return
        if not 0 < len(transactional_id.encode()) <= _MAX_NAME_BYTES:
            raise bad_option(f"a transactional id has 1 to {_MAX_NAME_BYTES} bytes")
        known = coordinator.producers.get(transactional_id)
        if known is not None and owner is not None:
            check_is_owner(known, owner, f"the transactional id {transactional_id[:80]!r}")
        running = None if known is None else coordinator.open.get(known.id)
        if running is not None and running.state is TransactionState.DECIDING:
            # It will be committed; whoever comes now must find it done.
            running.afterwards.append(partial(self._init_again, transactional_id, on_done, owner))
            return
        whose = (known.owner if known is not None else "") or owner or ""
        if known is None:
            self._make_room_for_producer(coordinator, whose, now)
            known = Producer(coordinator.take_number(), 0, now, owner=whose)
        elif known.epoch >= MAX_EPOCH:
            known = Producer(coordinator.take_number(), 0, now, owner=whose)
        else:
            known = Producer(known.id, known.epoch + 1, now, known.last_committed, whose)
        coordinator.save_producer(transactional_id, known)
        if running is not None and running.state in UNDECIDED:
            self._phases.abort(running, f"fenced: epoch {known.epoch} of its producer has begun")
        self._tell_identity(ProducerIdentity(known.id, known.epoch), on_done)

    def _usable_coordinator(self) -> Coordinator:
        """Raises :class:`QueueError` (CLOSED, STORAGE_FAILED)."""
        if self.closed:
            raise closing_error()
        coordinator = self.memory.coordinator
        if coordinator.failure is not None:
            raise coordinator.failure
        return coordinator

    def _init_again(self, transactional_id: str, on_done: OnProducer, owner: str | None) -> None:
        try:
            self.init_producer(transactional_id, self._agenda.now, on_done, owner=owner)
        except QueueError as error:
            on_done(error, None)

    def _tell_identity(self, identity: ProducerIdentity, on_done: OnProducer) -> None:
        def told(error: QueueError | None) -> None:
            on_done(error, identity if error is None else None)

        self.memory.coordinator.when_durable(told)

    def _make_room_for_producer(self, coordinator: Coordinator, owner: str, now: float) -> None:
        """Raises :class:`QueueError` (LIMIT)."""
        config, known = self._config, coordinator.producers
        of_owner = bool(owner) and coordinator.ids_of.get(owner, 0) >= config.max_transactional_ids_per_user
        if not of_owner and len(known) < config.max_transactional_ids:
            return
        name, oldest = min(
            (item for item in known.items() if not of_owner or item[1].owner == owner),
            key=lambda item: (item[1].id in coordinator.open, item[1].used_at_s),
        )
        if oldest.id in coordinator.open or now - oldest.used_at_s < config.id_expiry_s:
            whose, count = (" of this user", coordinator.ids_of[owner]) if of_owner else ("", len(known))
            raise QueueError(QueueErrorCode.LIMIT, f"there are {count} transactional ids{whose}, which is the limit")
        coordinator.forget_producer(name)

    @property
    def has_producers(self) -> bool:
        """There are or were some, so that messages that name one must be checked."""
        return self.memory.found is not None

    def check_owner(self, producer_id: str, owner: str) -> None:
        """Whether a client may name a producer; an unknown one passes. Raises :class:`QueueError` (NOT_ALLOWED)."""
        name = self.name_of(producer_id)
        if name is not None:
            check_is_owner(self.memory.coordinator.producers[name], owner, f"producer {producer_id}")
        elif producer_id.isdecimal() and len(producer_id) <= _MAX_DIGITS:
            check_tag(int(producer_id) >> _NUMBER_BITS, owner, f"producer {producer_id}")

    def check_producer(self, producer_id: int, epoch: int) -> Coordinator:
        """Raises :class:`QueueError` (UNKNOWN_PRODUCER, FENCED)."""
        if self.closed:
            raise closing_error()
        coordinator = self.memory.found
        if coordinator is None or not coordinator.was_given_out(producer_id & _LARGEST_NUMBER):
            raise QueueError(
                QueueErrorCode.UNKNOWN_PRODUCER, f"there is no producer {producer_id}: it must be initialised"
            )
        if coordinator.failure is not None:
            raise coordinator.failure
        name = coordinator.names.get(producer_id)
        current = 0 if name is None else coordinator.producers[name].epoch
        if epoch < current:
            text = f"epoch {epoch} of producer {producer_id} is over: epoch {current} has begun"
            raise QueueError(QueueErrorCode.FENCED, text)
        if epoch > current:
            text = f"producer {producer_id} has no epoch {epoch}: it was forgotten, or never initialised"
            raise QueueError(QueueErrorCode.UNKNOWN_PRODUCER, text)
        return coordinator

    def name_of(self, producer_id: str) -> str | None:
        """The transactional id of a producer; None when it has none, or is unknown."""
        coordinator = self.memory.found
        if coordinator is None or not producer_id.isdecimal() or len(producer_id) > _MAX_DIGITS:
            return None
        return coordinator.names.get(int(producer_id))


def check_is_owner(producer: Producer, owner: str, what: str) -> None:
    """Raises :class:`QueueError` (NOT_ALLOWED) when a producer belongs to another user."""
    if producer.owner not in ("", owner):
        raise QueueError(QueueErrorCode.NOT_ALLOWED, f"{what} belongs to another user")


def _tag_of(owner: str) -> int:
    """0 for nobody. Two owners of one tag, of which there are eight million, may use each other's unnamed producers."""
    if not owner:
        return 0
    digest = int.from_bytes(hashlib.sha256(owner.encode()).digest()[:8], "big")
    return digest % _LARGEST_TAG + 1


def producer_of_broker(number: int) -> int:
    """The id of a producer that no client may name: its tag is no owner's."""
    return (_LARGEST_TAG + 1) << _NUMBER_BITS | number


def check_tag(tag: int, owner: str, what: str) -> None:
    if tag not in (0, _tag_of(owner)):
        raise QueueError(QueueErrorCode.NOT_ALLOWED, f"{what} belongs to another user")


def closing_error() -> QueueError:
    return QueueError(QueueErrorCode.CLOSED, "the broker is closing")

"""Producers with transactions over the queues of a life, each told to the oracle as it happens."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from assay.reference_broker.mqtt.queue_topics.addresses import QueueTopics, Verb
from assay.reference_broker.queues import Outcome, QueueError, QueueErrorCode
from assay.reference_broker.queues.delivery.settle_request import SettleRequest
from assay.reference_broker.queues.jobs.confirms import StoredAs
from assay.reference_broker.queues.messages.publish_options import TransactionKey
from assay.reference_broker.queues.transactions.producer_names import ProducerIdentity
from assay.reference_broker.routing.message import Message
from assay.sim.queue_model.life import Member, QueueLife
from assay.sim.queue_model.settling import Named, settle_many
from assay.sim.queue_model.state import LIVE, Fate, Sent, Transaction, ViolationError

_REFUSED: Final = (QueueErrorCode.TRANSACTION_STATE, QueueErrorCode.UNKNOWN_TRANSACTION, QueueErrorCode.FENCED)


def kinds_of(transaction: Transaction) -> Iterator[str]:
    """What it shows, for figures; nothing for one that held nothing."""
    parts = len({queue.name for queue, _ in transaction.messages})
    if not parts and not transaction.held:
        return
    yield transaction.fate.value.partition(":")[0]
    if transaction.why:
        yield transaction.why
    if transaction.fate is Fate.COMMITTED:
        if parts > 1:
            yield "committed in two queues"
        if transaction.held:
            yield "committed with acks"
        if parts and transaction.held:
            yield "committed with messages and acks"


class Producer:
    """A producer with a transactional id. It knows of one transaction: its last."""

    def __init__(self, life: QueueLife, name: str) -> None:
        self.life = life
        self.name = name
        self.identity: ProducerIdentity | None = None
        """None until it is told."""
        self.inits = 0
        """How often it asked for one; only the last answer counts."""
        self.transaction: Transaction | None = None
        self.key: TransactionKey | None = None
        """What it names in its last transaction; None until it is told."""
        self.numbered: dict[str, list[Sent]] = {}
        """Queue -> messages of this epoch that have a number."""
        self.engine = life.engine
        """That of the epoch; a restart may have lost numbers."""
        self.last: tuple[str, dict[str, str], Sent] | None = None
        """The last numbered message."""

    @property
    def has_open(self) -> bool:
        return self.transaction is not None and self.transaction.fate in LIVE

    def init(self) -> None:
        """Begin a new epoch, which fences the old one."""
        before = self.identity
        self.inits += 1
        number = self.inits

        def told(error: QueueError | None, identity: ProducerIdentity | None) -> None:
            if error is not None or identity is None or (before is not None and identity <= before):
                raise ViolationError(f"{self.name} becomes {identity} after {before}: {error}")
            if number == self.inits:
                self.identity = identity

        self.identity, self.numbered, self.last, self.engine = None, {}, None, self.life.engine
        self.life.engine.transactions.init_producer(self.name, self.life.now, told)
        if self.transaction is not None and self.transaction.fate is Fate.OPEN:
            self.transaction.fate, self.transaction.why = Fate.DOOMED, "fenced"

    def begin(self, timeout_s: float) -> None:
        """Begin a transaction, if none is open."""
        life, identity = self.life, self.identity
        if identity is None:
            return

        def told(error: QueueError | None, transaction_id: str) -> None:
            if error is not None:
                raise ViolationError(f"{self.name} cannot begin: {error}")
            self.key = TransactionKey(*identity, transaction_id)

        is_open = self.has_open
        before, self.key = self.key, None
        try:
            life.engine.transactions.begin(*identity, life.now, told, timeout_s=timeout_s)
        except QueueError as error:
            if error.code is not QueueErrorCode.TRANSACTION_STATE or not is_open:
                raise ViolationError(f"{self.name} cannot begin: {error}") from error
            self.key = before
            return
        if is_open:
            raise ViolationError(f"{self.name} begins a second transaction")
        self.transaction = life.oracle.transactions.begin(life.now + timeout_s)

    def publish(self, queue: str, key: str | None, *, is_numbered: bool) -> None:
        """Publish in the last transaction, be it open or not; without one only what has a number."""
        marks = self._marks()
        if marks is None:
            return
        numbered = self.numbered.setdefault(queue, [])
        is_numbered = is_numbered and self._may_number(queue)
        if is_numbered:
            key, marks["sequence"] = None, str(len(numbered))
        found: list[Sent] = []

        def stored(_: StoredAs, message_id: str) -> None:
            partition, offset = message_id.split(":")[1:]
            self.life.oracle.transactions.placed(queue, found[0], (int(partition), int(offset)))

        try:
            sent = self.life.publish(key, queue=queue, marks=marks, on_stored=stored)
        except QueueError as error:
            self._check_refused(error)
            return
        if self.transaction is None or self.transaction.fate is not Fate.OPEN:
            raise ViolationError(f"{self.name} publishes in a transaction that is not open")
        if sent is None:
            return
        found.append(sent)
        self.life.oracle.transactions.publish(self.transaction, queue, sent)
        if is_numbered:
            numbered.append(sent)
            self.last = (queue, marks, sent)

    def _may_number(self, queue: str) -> bool:
        """The engine certainly knows all numbers so far."""
        is_safe = self.life.oracle.queues[queue].rules.durability == "fsync"
        return self.engine is self.life.engine or (is_safe and all(sent.confirmed for sent in self.numbered[queue]))

    def _marks(self) -> dict[str, str] | None:
        if self.identity is None or self.key is None or self.transaction is None:
            return None
        names = ("producer-id", "producer-epoch", "transaction-id")
        return dict(zip(names, map(str, self.key), strict=True))

    def _check_refused(self, error: QueueError) -> None:
        if error.code not in _REFUSED or (self.transaction is not None and self.transaction.fate is Fate.OPEN):
            raise ViolationError(f"{self.name}: {error}") from error

    def repeat(self) -> None:
        """Send the last numbered message of the transaction again: it is not enqueued again."""
        if self.last is None or self.transaction is None or self.transaction.fate is not Fate.OPEN:
            return
        queue, marks, sent = self.last
        if sent.transaction is not self.transaction:
            return
        message = Message(topic=f"$queue/{queue}", payload=sent.label.encode(), user_properties=tuple(marks.items()))
        outcome = self.life.outcome(f"{sent.label} again")
        QueueTopics(self.life.engine).publish(message, self.life.now, outcome)
        outcome.accepted(lambda: None)

    def ack(self, member: Member, index: int) -> None:
        """Acknowledge a delivery in the last transaction."""
        life = self.life
        held = member.got[index]
        if self.identity is None or self.key is None or self.transaction is None:
            return
        request = SettleRequest(
            outcome=Outcome.ACCEPT, message_ids=(held.delivery.message_id,), group=member.group, within=self.key
        )
        is_held = member.group in life.oracle.holders(member.queue, held.sent, member.name)
        try:
            life.engine.settle(member.queue, request, consumer_id=member.name, now=life.now)
        except QueueError as error:
            if error.code is not QueueErrorCode.NOT_PENDING or is_held:
                self._check_refused(error)
            return
        if not is_held or self.transaction.fate is not Fate.OPEN:
            raise ViolationError(f"{self.name} acks {held.sent.label}, which it may not")
        life.oracle.transactions.hold(self.transaction, member.queue, member.group, held.sent)

    def ack_several(self, member: Member, named: Named, *, any_group: bool) -> None:
        """Acknowledge deliveries in the last transaction, all that the consumer holds of them."""
        if self.identity is None or self.key is None or self.transaction is None:
            return
        try:
            found = settle_many(self.life, member, Verb.ACK, named, any_group=any_group, within=self.key)
        except QueueError as error:
            self._check_refused(error)
            return
        if found and self.transaction.fate is not Fate.OPEN:
            raise ViolationError(f"{self.name} acks {found}, which it may not")
        for group_id, sent in found or ():
            self.life.oracle.transactions.hold(self.transaction, member.queue, group_id, sent)

    def commit(self) -> None:
        """Commit the last transaction, be it open or not."""
        self._end("commit")

    def abort(self) -> None:
        self._end("abort")

    def _end(self, verb: str) -> None:
        life, transaction, key = self.life, self.transaction, self.key
        if transaction is None or key is None:
            return
        known = life.oracle.transactions
        what = f"{verb} of {key.transaction_id} ({life.oracle.step})"
        is_told = [False]

        def told(error: QueueError | None) -> None:
            life.waiting.discard(what)
            if is_told[0]:
                raise ViolationError(f"{what} is answered again: {error}")
            is_told[0] = True
            if error is not None and error.code is QueueErrorCode.CLOSED:
                return
            if verb == "abort" or error is not None:
                if verb == "abort" and error is not None:
                    raise ViolationError(f"{what}: {error}")
                if transaction.fate is not Fate.ABORTED:
                    known.abort(transaction)
            else:
                known.commit(transaction)

        was = transaction.fate
        if verb == "commit" and was is Fate.OPEN:
            transaction.fate = Fate.ENDING
        try:
            getattr(life.engine.transactions, verb)(*key, life.now, told)
        except QueueError as error:
            transaction.fate = was
            self._check_end_refused(error, verb)
            return
        if verb == "abort" and was is Fate.COMMITTED:
            raise ViolationError(f"{what} is accepted; it is {was.value}")
        if verb == "abort" and was in (Fate.OPEN, Fate.ENDING):
            transaction.fate = Fate.DOOMED
        if not is_told[0]:
            life.waiting.add(what)

    def _check_end_refused(self, error: QueueError, verb: str) -> None:
        transaction = self.transaction
        assert transaction is not None
        assert self.key is not None
        was = transaction.fate
        is_fenced = self.identity is None or tuple(self.identity) != tuple(self.key[:2])
        if error.code is QueueErrorCode.FENCED and is_fenced:
            return
        if error.code not in _REFUSED or was is Fate.OPEN or (verb == "commit" and was is Fate.COMMITTED):
            raise ViolationError(f"{verb} of a transaction that is {was.value}: {error}") from error
        if was is Fate.EITHER:
            is_committed = verb == "abort" and error.code is QueueErrorCode.TRANSACTION_STATE
            end = self.life.oracle.transactions
            (end.commit if is_committed else end.abort)(transaction)

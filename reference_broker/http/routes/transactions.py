"""GoQueue's producers and transactions: numbered messages, and messages that show together or not at all."""

from __future__ import annotations

from typing import Annotated

import msgspec

from assay.reference_broker.api.publishing import NewMessage, publish
from assay.reference_broker.config import Scope
from assay.reference_broker.core.broker import Broker
from assay.reference_broker.http.areas import Area, Asked, Call, body
from assay.reference_broker.http.routes.topics import queue_in
from assay.reference_broker.queues import PublishOptions, QueueError, QueueErrorCode
from assay.reference_broker.queues.groups.subscribe_options import LATEST
from assay.reference_broker.queues.messages.publish_options import TransactionKey
from assay.reference_broker.queues.transactions.producer_names import ProducerIdentity
from assay.reference_broker.queues.transactions.transaction import TransactionInfo

AREA = Area("transactions", "GoQueue's producers and transactions; also at /producers, /transactions and /v1.")
_Q = QueueErrorCode
_PRODUCER = (_Q.UNKNOWN_PRODUCER, _Q.FENCED, _Q.STORAGE_FAILED)
_TRANSACTION = (*_PRODUCER, _Q.UNKNOWN_TRANSACTION, _Q.TRANSACTION_STATE)


class InitProducer(msgspec.Struct, frozen=True, kw_only=True):
    transactional_id: str = ""
    """Empty: a producer that numbers its messages, and has no transactions."""
    transaction_timeout_ms: Annotated[int, msgspec.Meta(ge=0)] = 0
    """Of its transactions, unless they ask for another; 0 = as configured. Remembered until the broker stops."""


class ProducerInited(msgspec.Struct, frozen=True, kw_only=True):
    producer_id: int
    epoch: int


class ProducerRequest(msgspec.Struct, frozen=True, kw_only=True):
    epoch: Annotated[int, msgspec.Meta(ge=0)]
    transactional_id: str = ""


class ProducerAlive(msgspec.Struct, frozen=True, kw_only=True):
    success: bool = True


class BeginRequest(msgspec.Struct, frozen=True, kw_only=True):
    producer_id: Annotated[int, msgspec.Meta(ge=0)]
    epoch: Annotated[int, msgspec.Meta(ge=0)]
    transactional_id: str = ""
    transaction_timeout_ms: Annotated[int, msgspec.Meta(ge=0)] = 0


class Begun(msgspec.Struct, frozen=True, kw_only=True):
    transaction_id: str
    producer_id: int
    epoch: int


class EndRequest(msgspec.Struct, frozen=True, kw_only=True):
    producer_id: Annotated[int, msgspec.Meta(ge=0)]
    epoch: Annotated[int, msgspec.Meta(ge=0)]
    transaction_id: str = ""
    """Left out: the one that the producer has open."""
    transactional_id: str = ""


class Ended(msgspec.Struct, frozen=True, kw_only=True):
    transaction_id: str
    state: str
    success: bool = True


class AddPartition(EndRequest, frozen=True, kw_only=True):
    topic: str
    partition: Annotated[int, msgspec.Meta(ge=0)]


class ProducedMessage(msgspec.Struct, frozen=True, kw_only=True):
    """A message that its producer has numbered; part of its open transaction, if it has one."""

    producer_id: Annotated[int, msgspec.Meta(ge=0)]
    epoch: Annotated[int, msgspec.Meta(ge=0)]
    topic: str
    value: str
    key: str | None = None
    partition: Annotated[int, msgspec.Meta(ge=0)] | None = None
    sequence: Annotated[int, msgspec.Meta(ge=0)] | None = None


class Produced(msgspec.Struct, frozen=True, kw_only=True):
    partition: int
    offset: int
    duplicate: bool
    """It was published before, under the same number: this is where."""


class TransactionList(msgspec.Struct, frozen=True, kw_only=True):
    transactions: list[TransactionInfo]


class TransactionStats(msgspec.Struct, frozen=True, kw_only=True):
    open: int
    by_state: dict[str, int]


def _broker(call: Call, producer_id: int, transactional_id: str = "") -> tuple[Broker, float]:
    """The broker, once it is known that the caller may name a producer. Raises :class:`QueueError`."""
    driver, now = call.service.turn()
    driver.node.state.check_producer(producer_id, call.caller)
    if transactional_id:
        known = driver.node.engine.transactions.name_of(str(producer_id))
        if known != call.caller.named_in(transactional_id):
            text = f"producer {producer_id} is not that of the transactional id {transactional_id[:80]!r}"
            raise QueueError(_Q.UNKNOWN_PRODUCER, text)
    return driver.node.state, now


def _open_of(broker: Broker, producer_id: int, named: str) -> str:
    """The transaction that is meant. Raises :class:`QueueError` (TRANSACTION_STATE)."""
    if named:
        return named
    found = broker.engine.transactions.open_of(producer_id)
    if found is None:
        raise QueueError(_Q.TRANSACTION_STATE, f"producer {producer_id} has no transaction open")
    return found


@AREA.post("/producers/init", ProducerInited, Scope.WRITE, body=InitProducer, errors=(_Q.LIMIT, _Q.STORAGE_FAILED))
async def init_producer(call: Asked, wanted: Annotated[InitProducer, body(InitProducer)]) -> ProducerInited:
    """A producer begins; an earlier one of the same transactional id is fenced."""
    caller = call.caller
    name = caller.named_in(wanted.transactional_id) if wanted.transactional_id else None
    caller.check_reach(wanted.transactional_id)
    identity: ProducerIdentity | None = await call.service.told(
        lambda driver, now, tell: driver.node.engine.transactions.init_producer(name, now, tell, owner=caller.owner)
    )
    assert identity is not None
    call.service.remember_timeout(identity.producer_id, wanted.transaction_timeout_ms / 1_000)
    return ProducerInited(producer_id=identity.producer_id, epoch=identity.epoch)


@AREA.post("/producers/{producer_id}/heartbeat", ProducerAlive, Scope.WRITE, body=ProducerRequest, errors=_PRODUCER)
async def producer_heartbeat(
    call: Asked, producer_id: int, wanted: Annotated[ProducerRequest, body(ProducerRequest)]
) -> ProducerAlive:
    """Whether a producer is still the one: 409 when it was fenced. Producers do not expire by silence."""
    broker, _ = _broker(call, producer_id, wanted.transactional_id)
    broker.engine.transactions.check_producer(producer_id, wanted.epoch)
    return ProducerAlive()


@AREA.post("/transactions/begin", Begun, Scope.WRITE, body=BeginRequest, errors=(*_TRANSACTION, _Q.LIMIT))
async def begin_transaction(call: Asked, wanted: Annotated[BeginRequest, body(BeginRequest)]) -> Begun:
    """Begin a transaction: its messages show once it is committed."""
    broker, now = _broker(call, wanted.producer_id, wanted.transactional_id)
    timeout_s = wanted.transaction_timeout_ms / 1_000 or call.service.timeouts.get(wanted.producer_id)
    name: str = await call.service.told(
        lambda _driver, _now, tell: broker.engine.transactions.begin(
            wanted.producer_id, wanted.epoch, now, tell, timeout_s=timeout_s, holder=call.caller.holder
        )
    )
    return Begun(transaction_id=name, producer_id=wanted.producer_id, epoch=wanted.epoch)


@AREA.post(
    "/transactions/publish",
    Produced,
    Scope.WRITE,
    body=ProducedMessage,
    errors=(*_TRANSACTION, _Q.UNKNOWN_QUEUE, _Q.OUT_OF_SEQUENCE, _Q.FULL, _Q.QUOTA),
)
async def publish_produced(call: Asked, wanted: Annotated[ProducedMessage, body(ProducedMessage)]) -> Produced:
    """Publish a message of a producer: once, however often it is sent under its number."""
    broker, _ = _broker(call, wanted.producer_id)
    options = PublishOptions(
        partition=wanted.partition,
        producer_id=wanted.producer_id,
        producer_epoch=wanted.epoch,
        sequence=wanted.sequence,
        transaction_id=broker.engine.transactions.open_of(wanted.producer_id),
    )
    queue = queue_in(call, wanted.topic)
    name = call.caller.queue(queue, Scope.WRITE)
    ends = broker.engine.places(name, LATEST) if broker.engine.exists(name) else []
    message = NewMessage(payload=wanted.value.encode(), key=wanted.key, options=options)
    (became,) = await publish(call.service, call.caller, queue, [message])
    if became.error is not None:
        raise became.error
    was_there = became.partition < len(ends) and became.offset < ends[became.partition][2]
    return Produced(partition=became.partition, offset=became.offset, duplicate=was_there)


@AREA.post("/transactions/add-partition", Ended, Scope.WRITE, body=AddPartition, errors=(*_TRANSACTION, _Q.LIMIT))
async def add_partition(call: Asked, wanted: Annotated[AddPartition, body(AddPartition)]) -> Ended:
    """Say beforehand that a transaction will write to a partition."""
    broker, now = _broker(call, wanted.producer_id, wanted.transactional_id)
    name = _open_of(broker, wanted.producer_id, wanted.transaction_id)
    queue = call.caller.queue(queue_in(call, wanted.topic), Scope.WRITE)
    key = TransactionKey(wanted.producer_id, wanted.epoch, name)
    broker.engine.add_to_transaction(key, queue, wanted.partition, now)
    return Ended(transaction_id=name, state="open")


@AREA.post("/transactions/commit", Ended, Scope.WRITE, body=EndRequest, errors=_TRANSACTION)
async def commit_transaction(call: Asked, wanted: Annotated[EndRequest, body(EndRequest)]) -> Ended:
    """Let all of a transaction show; answered once that can never be undone."""
    broker, now = _broker(call, wanted.producer_id, wanted.transactional_id)
    name = _open_of(broker, wanted.producer_id, wanted.transaction_id)
    transactions = broker.engine.transactions
    await call.service.confirmed(
        lambda confirm: transactions.commit(wanted.producer_id, wanted.epoch, name, now, confirm)
    )
    return Ended(transaction_id=name, state="committed")


@AREA.post("/transactions/abort", Ended, Scope.WRITE, body=EndRequest, errors=_TRANSACTION)
async def abort_transaction(call: Asked, wanted: Annotated[EndRequest, body(EndRequest)]) -> Ended:
    """Nothing of a transaction is to show."""
    broker, now = _broker(call, wanted.producer_id, wanted.transactional_id)
    name = _open_of(broker, wanted.producer_id, wanted.transaction_id)
    transactions = broker.engine.transactions
    await call.service.confirmed(
        lambda confirm: transactions.abort(wanted.producer_id, wanted.epoch, name, now, confirm)
    )
    return Ended(transaction_id=name, state="aborted")


def _visible(call: Call) -> list[TransactionInfo]:
    """Who may administer sees all; others those of their own producers."""
    transactions = call.service.engine.transactions
    if call.caller.may_administer:
        return transactions.list()

    def is_own(producer_id: int) -> bool:
        try:
            call.service.broker.check_producer(producer_id, call.caller)
        except QueueError:
            return False
        return True

    return [each for each in transactions.list() if is_own(each.producer_id)]


@AREA.get("/transactions", TransactionList, Scope.WRITE)
async def list_transactions(call: Asked) -> TransactionList:
    """Transactions that have not ended, oldest first."""
    return TransactionList(transactions=_visible(call))


@AREA.get("/transactions/stats", TransactionStats, Scope.WRITE)
async def transaction_stats(call: Asked) -> TransactionStats:
    """How many there are, by state."""
    found = _visible(call)
    by_state: dict[str, int] = {}
    for each in found:
        by_state[str(each.state)] = by_state.get(str(each.state), 0) + 1
    return TransactionStats(open=len(found), by_state=by_state)

"""GoQueue's producers and transactions: numbered messages, and messages that show together or not at all."""

from __future__ import annotations

from typing import Annotated

import msgspec

from assay.reference_broker.api import producers
from assay.reference_broker.api.publishing import NewMessage, publish
from assay.reference_broker.api.topics import queue_in
from assay.reference_broker.config import Scope
from assay.reference_broker.http.areas import Area, Asked, Body
from assay.reference_broker.http.routes.messages import PUBLISH_ERRORS
from assay.reference_broker.queues import PublishOptions, QueueErrorCode
from assay.reference_broker.queues.groups.subscribe_options import LATEST
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


@AREA.post("/producers/init", Scope.WRITE, errors=(_Q.LIMIT, _Q.STORAGE_FAILED))
async def init_producer(call: Asked, wanted: Body[InitProducer]) -> ProducerInited:
    """A producer begins; an earlier one of the same transactional id is fenced."""
    identity = await producers.init_producer(call, wanted.transactional_id, wanted.transaction_timeout_ms)
    return ProducerInited(producer_id=identity.producer_id, epoch=identity.epoch)


@AREA.post("/producers/{producer_id}/heartbeat", Scope.WRITE, errors=_PRODUCER)
async def producer_heartbeat(call: Asked, producer_id: int, wanted: Body[ProducerRequest]) -> ProducerAlive:
    """Whether a producer is still the one: 409 when it was fenced. Producers do not expire by silence."""
    broker, _ = producers.broker_for(call, producer_id, wanted.transactional_id)
    broker.engine.transactions.check_producer(producer_id, wanted.epoch)
    return ProducerAlive()


@AREA.post("/transactions/begin", Scope.WRITE, errors=(*_TRANSACTION, _Q.LIMIT))
async def begin_transaction(call: Asked, wanted: Body[BeginRequest]) -> Begun:
    """Begin a transaction: its messages show once it is committed."""
    name = await producers.begin(
        call, wanted.producer_id, wanted.epoch, wanted.transactional_id, wanted.transaction_timeout_ms
    )
    return Begun(transaction_id=name, producer_id=wanted.producer_id, epoch=wanted.epoch)


@AREA.post("/transactions/publish", Scope.WRITE, errors=PUBLISH_ERRORS)
async def publish_produced(call: Asked, wanted: Body[ProducedMessage]) -> Produced:
    """Publish a message of a producer: once, however often it is sent under its number."""
    broker, _ = producers.broker_for(call, wanted.producer_id)
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


@AREA.post("/transactions/add-partition", Scope.WRITE, errors=(*_TRANSACTION, _Q.LIMIT))
async def add_partition(call: Asked, wanted: Body[AddPartition]) -> Ended:
    """Say beforehand that a transaction will write to a partition."""
    name = producers.add_partition(
        call,
        wanted.producer_id,
        wanted.epoch,
        wanted.transactional_id,
        wanted.topic,
        wanted.partition,
        wanted.transaction_id,
    )
    return Ended(transaction_id=name, state="open")


@AREA.post("/transactions/commit", Scope.WRITE, errors=_TRANSACTION)
async def commit_transaction(call: Asked, wanted: Body[EndRequest]) -> Ended:
    """Let all of a transaction show; answered once that can never be undone."""
    name = await producers.end(
        call, wanted.producer_id, wanted.epoch, wanted.transactional_id, commits=True, named=wanted.transaction_id
    )
    return Ended(transaction_id=name, state="committed")


@AREA.post("/transactions/abort", Scope.WRITE, errors=_TRANSACTION)
async def abort_transaction(call: Asked, wanted: Body[EndRequest]) -> Ended:
    """Nothing of a transaction is to show."""
    name = await producers.end(
        call, wanted.producer_id, wanted.epoch, wanted.transactional_id, commits=False, named=wanted.transaction_id
    )
    return Ended(transaction_id=name, state="aborted")


@AREA.get("/transactions", Scope.WRITE)
async def list_transactions(call: Asked) -> TransactionList:
    """Transactions that have not ended, oldest first."""
    return TransactionList(transactions=producers.visible(call))


@AREA.get("/transactions/stats", Scope.WRITE)
async def transaction_stats(call: Asked) -> TransactionStats:
    """How many there are, by state."""
    found = producers.visible(call)
    by_state: dict[str, int] = {}
    for each in found:
        by_state[str(each.state)] = by_state.get(str(each.state), 0) + 1
    return TransactionStats(open=len(found), by_state=by_state)

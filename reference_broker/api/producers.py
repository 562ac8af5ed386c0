"""Producers that number their messages, and transactions of those that have a name."""

from __future__ import annotations

import msgspec

from assay.reference_broker.api.topics import Asking, queue_in
from assay.reference_broker.config import Scope
from assay.reference_broker.core.broker import Broker
from assay.reference_broker.queues import QueueError, QueueErrorCode
from assay.reference_broker.queues.messages.publish_options import TransactionKey
from assay.reference_broker.queues.transactions.producer_names import ProducerIdentity
from assay.reference_broker.queues.transactions.transaction import TransactionInfo


def broker_for(asking: Asking, producer_id: int, transactional_id: str = "") -> tuple[Broker, float]:
    """The broker, once it is known that the caller may name a producer, and the time. Raises :class:`QueueError`."""
    driver, now = asking.service.turn()
    driver.node.state.check_producer(producer_id, asking.caller)
    if transactional_id:
        known = driver.node.engine.transactions.name_of(str(producer_id))
        if known != asking.caller.named_in(transactional_id):
            text = f"producer {producer_id} is not that of the transactional id {transactional_id[:80]!r}"
            raise QueueError(QueueErrorCode.UNKNOWN_PRODUCER, text)
    return driver.node.state, now


def open_of(broker: Broker, producer_id: int, named: str = "") -> str:
    """The transaction that is meant: without a name, the one that is open. Raises QueueError (TRANSACTION_STATE)."""
    if named:
        return named
    found = broker.engine.transactions.open_of(producer_id)
    if found is None:
        raise QueueError(QueueErrorCode.TRANSACTION_STATE, f"producer {producer_id} has no transaction open")
    return found


async def init_producer(asking: Asking, transactional_id: str, timeout_ms: int) -> ProducerIdentity:
    """A producer begins; an earlier one of the same transactional id is fenced. Raises :class:`QueueError`.

    ``timeout_ms``: of its transactions, unless they ask for another; 0 = as configured.
    """
    caller = asking.caller
    name = caller.named_in(transactional_id) if transactional_id else None
    caller.check_reach(transactional_id)
    identity: ProducerIdentity | None = await asking.service.told(
        lambda driver, now, tell: driver.node.engine.transactions.init_producer(name, now, tell, owner=caller.owner)
    )
    assert identity is not None
    asking.service.remember_timeout(identity.producer_id, timeout_ms / 1_000)
    return identity


async def begin(asking: Asking, producer_id: int, epoch: int, transactional_id: str, timeout_ms: int = 0) -> str:
    """Begin a transaction; returns its id. Raises :class:`QueueError`."""
    broker, now = broker_for(asking, producer_id, transactional_id)
    timeout_s = timeout_ms / 1_000 or asking.service.timeouts.get(producer_id)
    name: str = await asking.service.told(
        lambda _driver, _now, tell: broker.engine.transactions.begin(
            producer_id, epoch, now, tell, timeout_s=timeout_s, holder=asking.caller.holder
        )
    )
    return name


def add_partition(
    asking: Asking, producer_id: int, epoch: int, transactional_id: str, topic: str, partition: int, named: str = ""
) -> str:
    """Say beforehand that a transaction will write to a partition; returns its id. Raises :class:`QueueError`."""
    broker, now = broker_for(asking, producer_id, transactional_id)
    name = open_of(broker, producer_id, named)
    queue = asking.caller.queue(queue_in(asking, topic), Scope.WRITE)
    broker.engine.add_to_transaction(TransactionKey(producer_id, epoch, name), queue, partition, now)
    return name


async def end(
    asking: Asking, producer_id: int, epoch: int, transactional_id: str, *, commits: bool, named: str = ""
) -> str:
    """Commit a transaction or abort it, for good on return; returns its id. Raises :class:`QueueError`."""
    broker, now = broker_for(asking, producer_id, transactional_id)
    name = open_of(broker, producer_id, named)
    transactions = broker.engine.transactions
    close = transactions.commit if commits else transactions.abort
    await asking.service.confirmed(lambda confirm: close(producer_id, epoch, name, now, confirm))
    return name


def visible(asking: Asking) -> list[TransactionInfo]:
    """Who may administer sees all; others those of their own producers. With the names that the caller knows."""
    transactions, told = asking.service.engine.transactions, asking.caller.told

    def is_seen(producer_id: int) -> bool:
        if asking.caller.may_administer:
            return True
        try:
            asking.service.broker.check_producer(producer_id, asking.caller)
        except QueueError:
            return False
        return True

    return [
        msgspec.structs.replace(
            each, transactional_id=told(each.transactional_id), partitions=tuple(map(told, each.partitions))
        )
        for each in transactions.list()
        if is_seen(each.producer_id)
    ]

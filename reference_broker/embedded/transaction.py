"""Transactions as context managers: committed at the end of the block, aborted when it raises."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Self, Unpack

from assay.reference_broker.embedded.messages import MessageOptions, NewMessage, Published, new_message
from assay.reference_broker.mqtt.queue_topics.publish_properties import PRODUCER_EPOCH, PRODUCER_ID, TRANSACTION_ID
from assay.reference_broker.queues import QueueError
from assay.reference_broker.queues.messages.publish_options import TransactionKey
from assay.reference_broker.queues.transactions.producer_names import ProducerIdentity

if TYPE_CHECKING:
    from assay.reference_broker.embedded.received import AsyncReceived
    from assay.reference_broker.embedded.turns import EngineTurns


class Producers:
    """Producers for transactions that name none: each serves one transaction at a time, and is used again."""

    def __init__(self) -> None:
        self._free: list[ProducerIdentity] = []
        self._made = 0

    async def take(self, turns: EngineTurns) -> ProducerIdentity:
        """A producer that has no transaction now."""
        if self._free:
            return self._free.pop()
        self._made += 1
        return await init_producer(turns, f"embedded-{self._made}")

    def give_back(self, producer: ProducerIdentity) -> None:
        self._free.append(producer)


async def init_producer(turns: EngineTurns, transactional_id: str) -> ProducerIdentity:
    """A producer of that name; an earlier one of the same name is fenced."""
    found: ProducerIdentity | None = await turns.told(
        lambda driver, now, tell: driver.node.engine.transactions.init_producer(transactional_id, now, tell)
    )
    assert found is not None
    return found


class AsyncTransaction:
    """One transaction: all of it shows at the end of the ``async with`` block, or nothing."""

    def __init__(
        self, turns: EngineTurns, producers: Producers, transactional_id: str | None, timeout_s: float | None
    ) -> None:
        self._turns = turns
        self._producers = producers
        self._transactional_id = transactional_id
        self._timeout_s = timeout_s
        self._key: TransactionKey | None = None
        self._finished = False

    @property
    def key(self) -> TransactionKey:
        """What names the transaction while it is open."""
        if self._key is None:
            raise RuntimeError("the transaction is not open: use it as a context manager")
        return self._key

    async def begin(self) -> Self:
        """``async with`` does it."""
        if self._transactional_id is None:
            producer = await self._producers.take(self._turns)
        else:
            producer = await init_producer(self._turns, self._transactional_id)
        name: str = await self._turns.told(
            lambda driver, now, tell: driver.node.engine.transactions.begin(
                producer.producer_id, producer.epoch, now, tell, timeout_s=self._timeout_s
            ),
        )
        self._key = TransactionKey(producer.producer_id, producer.epoch, name)
        self._finished = False
        return self

    async def publish(
        self, queue: str, message: bytes | NewMessage, **options: Unpack[MessageOptions]
    ) -> Published | None:
        """As :meth:`AsyncQueues.publish`; consumers get it once the transaction is committed."""
        new = new_message(message, options)
        producer_id, epoch, name = self.key
        properties = ((PRODUCER_ID, str(producer_id)), (PRODUCER_EPOCH, str(epoch)), (TRANSACTION_ID, name))
        return await self._turns.publish(queue, new, user_properties=(*properties, *new.user_properties))

    async def ack(self, received: AsyncReceived) -> None:
        """Acknowledge a delivery together with the rest of the transaction."""
        await received.ack(within=self.key)

    async def commit(self) -> None:
        """Before the end of the block; nothing can be added then. Twice is fine."""
        await self._finish(commit=True)

    async def abort(self) -> None:
        """Nothing of it is to show: before the end of the block. Twice is fine."""
        await self._finish(commit=False)

    async def _finish(self, *, commit: bool) -> None:
        producer_id, epoch, name = self.key
        if self._finished:
            return
        driver, now = self._turns.turn()
        transactions = driver.node.engine.transactions
        finish = transactions.commit if commit else transactions.abort
        await self._turns.confirmed(lambda confirm: finish(producer_id, epoch, name, now, confirm))
        self._finished = True

    async def __aenter__(self) -> Self:
        return await self.begin()

    async def __aexit__(self, kind: object, *_: object) -> None:
        await self.end(failed=kind is not None)

    async def end(self, *, failed: bool) -> None:
        """Commit, or abort what has failed, unless that is done. Raises when it cannot be committed."""
        key = self.key
        if failed:
            # Where it had ended already, by its timeout for one, the error that ends the block says more.
            with contextlib.suppress(QueueError):
                await self.abort()
        else:
            await self.commit()
        self._key = None
        if self._transactional_id is None:
            self._producers.give_back(ProducerIdentity(key.producer_id, key.epoch))

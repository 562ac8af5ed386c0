"""Transactions of channels (class tx): what is done at a commit, and how it is done as one.

Until the commit the channel keeps what was asked for, routed when it was published, as RabbitMQ does. A commit of more
than one thing is a transaction of the engine: messages to any number of queues and settlements of any number of
deliveries count together or not at all, over kill -9 and power loss, and ``commit-ok`` leaves when that is durable.
What one queue refuses undoes all of it (406). A queue that was deleted meanwhile gets nothing. Messages that reach no
queue come back, and subscribers of MQTT get theirs, once it is committed: neither is part of it (tx.not-mandatory).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

from assay.reference_broker.amqp091.handles import ChannelHandle, Settlement
from assay.reference_broker.amqp091.messages import begun
from assay.reference_broker.amqp091.wire.replies import AmqpError, Reply
from assay.reference_broker.core.broker import MAX_WORK
from assay.reference_broker.queues import QueueAddress, QueueError
from assay.reference_broker.queues.jobs.confirms import ignore
from assay.reference_broker.queues.messages.publish_options import TransactionKey
from assay.reference_broker.routing.message import Message, memory_bytes

SEMANTICS: Final = "rmq.tx.semantics"
GiveBack = Callable[[], None]


class Published(NamedTuple):
    """A publish that waits for its commit."""

    message: Message
    queues: tuple[str, ...]
    topical: Message | None
    """As it goes to subscribers of MQTT."""
    give_back: GiveBack | None
    """What returns it to its publisher, where that wants to know that nobody got it."""


class Transaction:
    """What is done at the commit."""

    __slots__ = ("bytes", "count", "publishes", "settlements")

    def __init__(self) -> None:
        self.publishes: list[Published] = []
        self.settlements: list[Settlement] = []
        self.count = 0
        """Messages, once for each of their queues, and settlements."""
        self.bytes = 0

    def add(self, published: Published, channel: ChannelHandle) -> None:
        """Raises :class:`AmqpError` (406)."""
        copies = max(1, len(published.queues))
        self._take_room(copies, copies * memory_bytes(published.message), channel)
        self.publishes.append(published)

    def add_settlement(self, settlement: Settlement, channel: ChannelHandle) -> None:
        """Raises :class:`AmqpError` (406)."""
        self._take_room(1, 0, channel)
        self.settlements.append(settlement)

    def _take_room(self, count: int, size: int, channel: ChannelHandle) -> None:
        """What channels keep for commits to come is bounded for each connection."""
        connection = channel.connection
        limits = connection.broker.config.queues.transactions
        text = ""
        if connection.transacted_count + count > limits.max_messages:
            text = f"{limits.max_messages} messages and acknowledgements"
        elif connection.transacted_bytes + size > limits.max_bytes:
            text = f"{limits.max_bytes} bytes"
        if text:
            text = f"open transactions of a connection hold at most {text}"
            raise AmqpError(Reply.PRECONDITION_FAILED, text, rule=SEMANTICS)
        self.count += count
        self.bytes += size
        connection.transacted_count += count
        connection.transacted_bytes += size

    def give_room_back(self, channel: ChannelHandle) -> None:
        """It is over."""
        channel.connection.transacted_count -= self.count
        channel.connection.transacted_bytes -= self.bytes
        self.count = self.bytes = 0


class Commit:
    """A commit on its way, over as many turns as it needs."""

    def __init__(self, channel: ChannelHandle, transaction: Transaction) -> None:
        self._channel = channel
        self._connection = channel.connection
        self._broker = channel.connection.broker
        self._vhost = channel.vhost
        self._transaction = transaction
        self._answer = channel.answer_later()
        self._key: TransactionKey | None = None
        self._parts: Iterator[None] = iter(())
        self._then: Callable[[float], None] = self.told
        self._routed: set[int] = set()
        """Publishes, by their identity, that a queue was still there for."""
        self._refusal: QueueError | None = None
        """Of a part of it."""
        self._failure: QueueError | None = None
        """Why it is not committed."""

    def begin(self, now: float) -> None:
        """Do it; the channel's answer follows when it is done, or cannot be."""
        settlements = self._transaction.settlements
        routed = [each for each in self._transaction.publishes if each.queues]
        if not routed and not settlements:
            self._committed(None)
        elif self._transaction.count == 1:
            # What is one thing anyway needs no transaction.
            for settlement in settlements:
                self._channel.consuming.carry_out(settlement, now, self._committed)
            for published in routed:
                self._enqueue(published, begun(published.message, now), published.queues[0], self._committed, now)
        else:
            try:
                self._broker.engine.transactions.begin_alone(now, self._begun)
            except QueueError as refused:
                self._committed(refused.bare())

    # -- the parts -------------------------------------------------------------------------------------------------

    def _begun(self, error: QueueError | None, key: TransactionKey) -> None:
        if error is not None:
            self._committed(error)
            return
        self._key = key
        self._parts = self.fill(key)
        self._then = self._end
        self._go_on()

    def go_on(self, now: float) -> None:
        """As :class:`Unfinished`: what a turn had no room for."""
        self._broker.work = 0
        self._go_on()

    def _go_on(self) -> None:
        broker = self._broker
        for _ in self._parts:
            broker.work += 1
            if broker.work >= MAX_WORK:
                broker.unfinished.append(self)
                return
        self._then(broker.now)

    def fill(self, key: TransactionKey) -> Iterator[None]:
        """Put everything into the engine's transaction, up to the first refusal."""
        broker, channel = self._broker, self._channel
        for settlement in self._transaction.settlements:
            if self._refusal is not None or not channel.is_open:
                return
            channel.consuming.carry_out(settlement, broker.now, self._note, key)
            yield
        for published in self._transaction.publishes:
            # It comes to its queues now.
            message = begun(published.message, broker.now)
            for queue in published.queues:
                if self._refusal is not None or not channel.is_open:
                    return
                self._enqueue(published, message, queue, self._note, broker.now, key)
                yield

    def _note(self, error: QueueError | None) -> None:
        if error is not None and self._refusal is None:
            self._refusal = error

    def _enqueue(
        self,
        published: Published,
        message: Message,
        queue: str,
        on_confirmed: Callable[[QueueError | None], None],
        now: float,
        within: TransactionKey | None = None,
    ) -> None:
        service = self._channel.service
        if not service.exists(self._vhost, queue):
            on_confirmed(None)
            return
        self._routed.add(id(published))
        address = QueueAddress(queue=service.engine_name(self._vhost, queue))
        self._broker.enqueue(address, message, None, self._connection, now, on_confirmed, None, within)
        if self._broker.engine.is_pressed(address) and not self._connection.is_over:
            self._connection.press()

    # -- its end ---------------------------------------------------------------------------------------------------

    def _end(self, now: float) -> None:
        """Everything is in it. Of a channel that closed meanwhile nothing counts, since some of it may be missing."""
        assert self._key is not None
        transactions = self._broker.engine.transactions
        try:
            if self._refusal is None and self._channel.is_open:
                transactions.commit(*self._key, now, self._committed)
                return
            transactions.abort(*self._key, now, ignore)
        except QueueError as refused:
            self._note(refused.bare())
        self._committed(self._refusal)

    def _committed(self, error: QueueError | None) -> None:
        """It is, durably, or it is not."""
        self._failure = error
        if error is None and self._channel.is_open:
            self._parts = self._tell()
        self._then = self.told
        self._go_on()

    def _tell(self) -> Iterator[None]:
        """Those who get what is no part of it."""
        for published in self._transaction.publishes:
            reached = id(published) in self._routed
            if published.topical is not None:
                now = self._broker.now
                reached |= self._broker.publish(begun(published.topical, now), self._connection, now)
            if not reached and published.give_back is not None and self._channel.is_open:
                published.give_back()
            yield

    def told(self, _now: float) -> None:
        """The client is told what became of it."""
        self._transaction.give_room_back(self._channel)
        if self._failure is None:
            self._answer("tx.commit-ok")
            self._channel.consuming.resume()
            return
        text = f"nothing was committed: {self._failure.text}"
        self._answer(AmqpError(Reply.PRECONDITION_FAILED, text, rule=SEMANTICS))

"""The queues for any thread: every call blocks until it is done."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import logging
import threading
from collections import deque
from collections.abc import Callable, Coroutine, Iterator, Sequence
from typing import Any, Self, TypeVar, Unpack

from assay.reference_broker.config import QueueConfig
from assay.reference_broker.embedded.aio import AsyncQueues
from assay.reference_broker.embedded.errors import BrokerClosedError
from assay.reference_broker.embedded.health import DeadLetterStats, HealthSnapshot
from assay.reference_broker.embedded.messages import MessageOptions, NewMessage, Published, StoredCopy
from assay.reference_broker.embedded.received import AsyncReceived, ReceivedMessage
from assay.reference_broker.embedded.replies import Reply
from assay.reference_broker.embedded.subscription import AsyncSubscription
from assay.reference_broker.embedded.transaction import AsyncTransaction
from assay.reference_broker.queues import QueueError, QueueStats
from assay.reference_broker.queues.messages.publish_options import TransactionKey

log = logging.getLogger(__name__)
DEFAULT_TIMEOUT_S = 30.0
_T = TypeVar("_T")


class LoopCaller:
    """Runs coroutines in the broker's event loop, from any other thread."""

    def __init__(self, loop: Callable[[], asyncio.AbstractEventLoop]) -> None:
        """``loop`` raises :class:`BrokerClosedError` when there is none."""
        self._loop = loop
        self._lock = threading.Lock()
        self._running: set[concurrent.futures.Future[Any]] = set()

    def call(self, make: Callable[[], Coroutine[Any, Any, _T]], timeout_s: float | None) -> _T:
        """The coroutine's result. Raises what it raises, :class:`TimeoutError`, :class:`BrokerClosedError`."""
        loop = self._loop()
        try:
            here = asyncio.get_running_loop()
        except RuntimeError:
            pass
        else:
            if here is loop:
                raise RuntimeError("this would block the broker's own event loop: use queues_async there")
        made = make()
        try:
            future = asyncio.run_coroutine_threadsafe(made, loop)
        except RuntimeError as error:
            made.close()
            raise BrokerClosedError("the broker stopped") from error
        with self._lock:
            self._running.add(future)
        try:
            return future.result(timeout_s)
        except concurrent.futures.CancelledError as error:
            raise BrokerClosedError("the broker stopped") from error
        except concurrent.futures.TimeoutError:
            future.cancel()
            raise
        finally:
            with self._lock:
                self._running.discard(future)

    def forget_in_child(self) -> None:
        """In a forked child: nobody there waits, and a thread that is not there may have held the lock."""
        self._lock = threading.Lock()
        self._running = set()

    def abandon(self) -> None:
        """The loop has ended: whoever still waits for it is told so."""
        with self._lock:
            running = list(self._running)
        for future in running:
            future.cancel()


class Queues:
    """All queues of a running broker, from any thread but the broker's own. ``timeout_s`` bounds each call.

    Raises the errors of :mod:`assay.reference_broker.embedded.errors`, and :class:`TimeoutError`: then it is not known
    whether it was done.
    """

    def __init__(self, queues: AsyncQueues, caller: LoopCaller) -> None:
        self._queues = queues
        self._caller = caller

    def publish(
        self,
        queue: str,
        message: bytes | NewMessage,
        *,
        wait: bool = True,
        timeout_s: float = DEFAULT_TIMEOUT_S,
        **options: Unpack[MessageOptions],
    ) -> Published | None:
        """See :meth:`AsyncQueues.publish`."""
        return self._caller.call(lambda: self._queues.publish(queue, message, wait=wait, **options), timeout_s)

    def publish_batch(
        self, queue: str, messages: Sequence[bytes | NewMessage], *, timeout_s: float = DEFAULT_TIMEOUT_S
    ) -> int:
        """See :meth:`AsyncQueues.publish_batch`."""
        return self._caller.call(lambda: self._queues.publish_batch(queue, messages), timeout_s)

    def subscribe(
        self,
        queue: str,
        *,
        group: str = "",
        pattern: str = "",
        consumer_id: str = "",
        buffer_size: int = 16,
        callback: Callable[[Received], None] | None = None,
    ) -> Subscription:
        """See :meth:`AsyncQueues.subscribe`. A callback runs in a thread of its own, one delivery at a time."""
        inner = self._queues.subscribe(
            queue, group=group, pattern=pattern, consumer_id=consumer_id, buffer_size=buffer_size
        )
        return Subscription(inner, self._caller, callback)

    def transaction(
        self, transactional_id: str | None = None, *, timeout_s: float | None = None
    ) -> BlockingTransaction:
        """See :meth:`AsyncQueues.transaction`; ``with`` it. ``timeout_s`` is the transaction's own."""
        return BlockingTransaction(self._queues.transaction(transactional_id, timeout_s=timeout_s), self._caller)

    def request(
        self,
        queue: str,
        message: bytes | NewMessage,
        *,
        timeout_s: float = DEFAULT_TIMEOUT_S,
        **options: Unpack[MessageOptions],
    ) -> Reply:
        """See :meth:`AsyncQueues.request`."""
        return self._caller.call(
            lambda: self._queues.request(queue, message, timeout_s=timeout_s, **options), timeout_s + DEFAULT_TIMEOUT_S
        )

    def create(self, queue: str, *, timeout_s: float = DEFAULT_TIMEOUT_S, **settings: Any) -> QueueConfig:
        """See :meth:`AsyncQueues.create`."""
        return self._caller.call(lambda: self._queues.create(queue, **settings), timeout_s)

    def update(self, queue: str, *, timeout_s: float = DEFAULT_TIMEOUT_S, **changes: Any) -> QueueConfig:
        """See :meth:`AsyncQueues.update`."""
        return self._caller.call(lambda: self._queues.update(queue, **changes), timeout_s)

    def dead_letter(
        self, queue: str, message: bytes | NewMessage, reason: str, *, timeout_s: float = DEFAULT_TIMEOUT_S
    ) -> Published | None:
        """See :meth:`AsyncQueues.dead_letter`."""
        return self._caller.call(lambda: self._queues.dead_letter(queue, message, reason), timeout_s)

    def dead_letter_stats(self, queue: str, *, timeout_s: float = DEFAULT_TIMEOUT_S) -> DeadLetterStats:
        """See :meth:`AsyncQueues.dead_letter_stats`."""
        return self._caller.call(lambda: self._queues.dead_letter_stats(queue), timeout_s)

    def recover(self, queue: str, limit: int = 100, *, timeout_s: float = DEFAULT_TIMEOUT_S) -> list[StoredCopy]:
        """See :meth:`AsyncQueues.recover`."""
        return self._caller.call(lambda: self._queues.recover(queue, limit), timeout_s)

    def stats(self, queue: str, *, timeout_s: float = DEFAULT_TIMEOUT_S) -> QueueStats:
        """See :meth:`AsyncQueues.stats`."""
        return self._caller.call(lambda: self._queues.stats(queue), timeout_s)

    def health(self, *, timeout_s: float = DEFAULT_TIMEOUT_S) -> HealthSnapshot:
        """See :meth:`AsyncQueues.health`."""
        return self._caller.call(self._queues.health, timeout_s)


class Received(ReceivedMessage):
    """A delivery, with blocking calls to settle it; from any thread."""

    __slots__ = ("_caller", "_inner")

    def __init__(self, inner: AsyncReceived, caller: LoopCaller) -> None:
        super().__init__(inner.delivery, inner.consumer_id)
        self.settled = inner.settled
        self._inner = inner
        self._caller = caller

    def _call(self, make: Callable[[], Coroutine[Any, Any, None]], timeout_s: float) -> None:
        self._caller.call(make, timeout_s)
        self.settled = self._inner.settled

    def ack(self, *, within: TransactionKey | None = None, timeout_s: float = DEFAULT_TIMEOUT_S) -> None:
        """See :meth:`AsyncReceived.ack`."""
        self._call(lambda: self._inner.ack(within=within), timeout_s)

    def nack(self, delay_s: float | None = None, *, timeout_s: float = DEFAULT_TIMEOUT_S) -> None:
        """See :meth:`AsyncReceived.nack`."""
        self._call(lambda: self._inner.nack(delay_s), timeout_s)

    def reject(self, reason: str = "rejected by consumer", *, timeout_s: float = DEFAULT_TIMEOUT_S) -> None:
        """See :meth:`AsyncReceived.reject`."""
        self._call(lambda: self._inner.reject(reason), timeout_s)

    def extend(self, seconds: float | None = None, *, timeout_s: float = DEFAULT_TIMEOUT_S) -> None:
        """See :meth:`AsyncReceived.extend`."""
        self._call(lambda: self._inner.extend(seconds), timeout_s)

    def reply(self, message: bytes | NewMessage, *, timeout_s: float = DEFAULT_TIMEOUT_S) -> None:
        """See :meth:`AsyncReceived.reply`."""
        self._call(lambda: self._inner.reply(message), timeout_s)


class Subscription:
    """One consumer; iterate over it in one thread, settle and cancel in any."""

    def __init__(
        self, inner: AsyncSubscription, caller: LoopCaller, callback: Callable[[Received], None] | None
    ) -> None:
        self._inner = inner
        self._caller = caller
        self._callback = callback
        self._taken: deque[AsyncReceived] = deque()
        self._thread: threading.Thread | None = None
        self._cancelled = False

    @property
    def consumer_id(self) -> str:
        return self._inner.consumer_id

    @property
    def group(self) -> str:
        return self._inner.group

    def start(self, *, timeout_s: float = DEFAULT_TIMEOUT_S) -> Self:
        """Join the group; ``with`` does it."""
        self._caller.call(self._inner.start, timeout_s)
        if self._callback is not None:
            name = f"assay-{self.consumer_id}"
            self._thread = threading.Thread(target=self._run, args=(self._callback,), name=name, daemon=True)
            self._thread.start()
        return self

    def get(self, timeout_s: float | None = None) -> Received | None:
        """The next delivery; None when the subscription has ended. Raises :class:`TimeoutError`."""
        if not self._taken and not self._cancelled:
            try:
                # The time runs out in the loop: what a caller outside no longer waits for would be lost.
                self._taken.extend(self._caller.call(lambda: self._inner.take(timeout_s=timeout_s), None))
            except BrokerClosedError:
                return None
        if self._cancelled or not self._taken:
            return None
        return Received(self._taken.popleft(), self._caller)

    def __iter__(self) -> Iterator[Received]:
        return self

    def __next__(self) -> Received:
        received = self.get()
        if received is None:
            raise StopIteration
        return received

    def _run(self, callback: Callable[[Received], None]) -> None:
        for received in self:
            try:
                callback(received)
            except Exception:
                log.exception("a subscriber's callback failed on %s", received.message_id)
                self._settle(received, received.nack)
            else:
                self._settle(received, received.ack)

    @staticmethod
    def _settle(received: Received, settle: Callable[[], None]) -> None:
        if received.settled:
            return
        try:
            settle()
        except (QueueError, BrokerClosedError, TimeoutError) as error:
            log.info("a delivery could not be settled: %s", error)

    def cancel(self, *, timeout_s: float = DEFAULT_TIMEOUT_S) -> None:
        """Leave the group; what is not settled is ready for others at once. Twice is fine, in the callback, too."""
        self._cancelled = True
        with contextlib.suppress(BrokerClosedError):  # which ended the subscription
            self._caller.call(self._inner.cancel, timeout_s)
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(timeout_s)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.cancel()


class BlockingTransaction:
    """One transaction: all of it shows at the end of the ``with`` block, or nothing. For one thread at a time."""

    def __init__(self, inner: AsyncTransaction, caller: LoopCaller) -> None:
        self._inner = inner
        self._caller = caller

    def publish(
        self,
        queue: str,
        message: bytes | NewMessage,
        *,
        timeout_s: float = DEFAULT_TIMEOUT_S,
        **options: Unpack[MessageOptions],
    ) -> Published | None:
        """See :meth:`AsyncTransaction.publish`."""
        return self._caller.call(lambda: self._inner.publish(queue, message, **options), timeout_s)

    def ack(self, received: Received, *, timeout_s: float = DEFAULT_TIMEOUT_S) -> None:
        """See :meth:`AsyncTransaction.ack`."""
        received.ack(within=self._inner.key, timeout_s=timeout_s)

    def commit(self, *, timeout_s: float = DEFAULT_TIMEOUT_S) -> None:
        """See :meth:`AsyncTransaction.commit`."""
        self._caller.call(self._inner.commit, timeout_s)

    def abort(self, *, timeout_s: float = DEFAULT_TIMEOUT_S) -> None:
        """See :meth:`AsyncTransaction.abort`."""
        self._caller.call(self._inner.abort, timeout_s)

    def __enter__(self) -> Self:
        self._caller.call(self._inner.begin, DEFAULT_TIMEOUT_S)
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        self._caller.call(lambda: self._inner.end(failed=kind is not None), DEFAULT_TIMEOUT_S)

"""One publisher and one consumer of a durable queue in one thread, whatever the protocol.

A message is under way from its publish until it is both confirmed and settled; every message must come exactly once.
"""

from __future__ import annotations

import select
import time
from abc import ABC, abstractmethod

import numpy as np
import numpy.typing as npt

from loadtests.bench.pump import COALESCE_S, COALESCE_SHARE, STALL_TIMEOUT_S, UNBOUNDED_MESSAGES, Stream
from loadtests.bench.workload import BenchError

GROWTH_MESSAGES = 65_536


class QueueFlow(ABC):
    """The loop of a queue client; a protocol says how messages are written and what arriving bytes mean."""

    def __init__(self, publisher: Stream, consumer: Stream, window: int) -> None:
        """``window`` bounds the messages under way."""
        self._publisher, self._consumer, self._window = publisher, consumer, window
        self._sent = self._confirmed = self._delivered = self._settled = self._limit = 0
        self._seen: npt.NDArray[np.uint8] = np.zeros(GROWTH_MESSAGES, np.uint8)

    def run(self, *, messages: int = 0, seconds: float = 0.0) -> int:
        """As :meth:`loadtests.bench.pump.Pump.run`. Raises :class:`BenchError`."""
        first = self._sent
        self._limit = first + (messages or UNBOUNDED_MESSAGES)
        poll = select.poll()
        by_fd = {stream.socket.fileno(): stream for stream in (self._publisher, self._consumer)}
        deadline = time.perf_counter() + seconds if seconds else float("inf")
        while True:
            if time.perf_counter() >= deadline:
                self._limit = min(self._limit, self._sent)
            self._publish()
            if self._sent == self._limit and self._done == self._limit:
                break
            for fd, stream in by_fd.items():
                poll.register(fd, select.POLLIN | (select.POLLOUT if stream.writing else 0))
            ready = poll.poll(STALL_TIMEOUT_S * 1_000)
            if not ready:
                raise BenchError(self._stalled())
            before = self._advanced
            for fd, _ in ready:
                self._turn(by_fd[fd])
            if self._advanced - before < self._window // COALESCE_SHARE:
                time.sleep(COALESCE_S)
        if not bool((self._seen[: self._sent] == 1).all()):
            message = "some message was never delivered although every delivery was settled"
            raise BenchError(message)
        return self._sent - first

    @property
    def _done(self) -> int:
        return min(self._confirmed, self._settled)

    @property
    def _advanced(self) -> int:
        return self._confirmed + self._delivered + self._settled

    def _publish(self) -> None:
        allowed = min(self._window - (self._sent - self._done), self._limit - self._sent)
        if self._publisher.writing or allowed < min(self._window // 8 + 1, self._limit - self._sent) or allowed <= 0:
            return
        if self._sent + allowed > len(self._seen):
            self._seen = np.concatenate([self._seen, np.zeros(len(self._seen), np.uint8)])
        block = self._block(self._sent, allowed)
        self._sent += allowed
        self._publisher.write(block)

    def _turn(self, stream: Stream) -> None:
        stream.flush()
        chunk = stream.read()
        data = bytes(chunk)
        chunk.release()
        used = self._on_confirms(data) if stream is self._publisher else self._on_deliveries(data)
        stream.consume(used)

    def _see(self, number: int) -> None:
        """A message was delivered. Raises :class:`BenchError` when it was before, or was never sent."""
        if number >= self._sent or self._seen[number]:
            what = "twice" if number < self._sent else "though it was never sent"
            message = f"message {number} was delivered {what}"
            raise BenchError(message)
        self._seen[number] = 1
        self._delivered += 1

    def _stalled(self) -> str:
        return (
            f"nothing arrived for {STALL_TIMEOUT_S:g} s: sent {self._sent}, confirmed {self._confirmed}, delivered "
            f"{self._delivered}, settled {self._settled}"
        )

    @abstractmethod
    def _block(self, first: int, count: int) -> bytes | memoryview:
        """The publishes of so many messages; ``first`` is the number of the first."""

    @abstractmethod
    def _on_confirms(self, data: bytes) -> int:
        """Read what came to the publisher; returns how many bytes are done with."""

    @abstractmethod
    def _on_deliveries(self, data: bytes) -> int:
        """Read what came to the consumer, and settle."""

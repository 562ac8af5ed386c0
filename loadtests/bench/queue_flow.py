"""One publisher and one consumer of a durable queue in one thread, whatever the protocol.

A message is under way from its publish until it is both confirmed and settled; every message must come exactly once.
"""

from __future__ import annotations

import select
import socket
import time
from abc import ABC, abstractmethod

import numpy as np
import numpy.typing as npt

from assay.loadtests.bench.frames import Sequences
from assay.loadtests.bench.pump import STALL_TIMEOUT_S, UNBOUNDED_MESSAGES, Stream
from assay.loadtests.bench.workload import BenchError

GROWTH_MESSAGES = 65_536
KEYS = 100
"""Messages have so many keys in turn, where they have any: message ``n`` has key ``n % KEYS``."""
TURN_BYTES = 16 * 1024
"""What a stream reads at once, as usual clients do. With more, client and broker would take turns: each would handle
all that is under way in one piece while the other has nothing to do, and neither would show what it can."""


def queue_stream(connection: socket.socket, payload_bytes: int) -> Stream:
    """A stream of a queue client."""
    return Stream(connection, read_bytes=TURN_BYTES + 2 * payload_bytes)


class QueueFlow(ABC):
    """The loop of a queue client; a protocol says how messages are written and what arriving bytes mean."""

    def __init__(self, publisher: Stream, consumer: Stream, window: int, *, keyed: bool = False) -> None:
        """``window`` bounds the messages under way. ``keyed``: those of a key must come in order."""
        self._publisher, self._consumer, self._window = publisher, consumer, window
        self._sent = self._confirmed = self._delivered = self._settled = self._limit = 0
        self._seen: npt.NDArray[np.uint8] = np.zeros(GROWTH_MESSAGES, np.uint8)
        self._last_of_key = np.full(KEYS, -1, np.int64) if keyed else None

    def run(self, *, messages: int = 0, seconds: float = 0.0) -> int:
        """As :meth:`assay.loadtests.bench.pump.Pump.run`. Raises :class:`BenchError`."""
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
            for fd, _ in ready:
                self._turn(by_fd[fd])
        if not bool((self._seen[: self._sent] == 1).all()):
            message = "some message was never delivered although every delivery was settled"
            raise BenchError(message)
        return self._sent - first

    @property
    def _done(self) -> int:
        return min(self._confirmed, self._settled)

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

    def _see(self, numbers: Sequences) -> None:
        """These messages were delivered. Raises :class:`BenchError` when one was before, or was never sent."""
        if not len(numbers):
            return
        unknown = numbers[numbers >= self._sent]
        if len(unknown):
            message = f"message {unknown[0]} was delivered though it was never sent"
            raise BenchError(message)
        seen = self._seen
        again = numbers[seen[numbers] > 0]
        seen[numbers] = 1
        self._delivered += len(numbers)
        if not len(again) and len(np.unique(numbers)) < len(numbers):
            values, counts = np.unique(numbers, return_counts=True)
            again = values[counts > 1]
        if len(again):
            message = f"message {again[0]} was delivered twice"
            raise BenchError(message)
        if self._last_of_key is not None:
            self._check_order(numbers.astype(np.int64), self._last_of_key)

    @staticmethod
    def _check_order(numbers: npt.NDArray[np.int64], last_of_key: npt.NDArray[np.int64]) -> None:
        """Every message is behind the last one of its key. Raises :class:`BenchError`."""
        keys = numbers % KEYS
        by_key = np.argsort(keys, kind="stable")
        sorted_keys, sorted_numbers = keys[by_key], numbers[by_key]
        is_first = np.append(True, sorted_keys[1:] != sorted_keys[:-1])
        before = np.where(is_first, last_of_key[sorted_keys], np.append(-1, sorted_numbers[:-1]))
        early = sorted_numbers[sorted_numbers < before]
        if len(early):
            message = f"message {early[0]} was delivered behind a later one of its key"
            raise BenchError(message)
        last_of_key[sorted_keys] = sorted_numbers

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

"""What a toxic does to one direction of one connection: sans-IO stages, chained.

A stage takes chunks in order and gives chunks in order; ``CLOSE`` in their place ends the direction. Time comes in as
seconds of any monotonic clock, chance as a ``random.Random`` of the connection's own, so a run can be repeated.
"""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from enum import Enum
from math import inf
from typing import Final, Protocol, TypeVar

import msgspec

from assay.faults.toxiproxy.toxics import (
    Attributes,
    BandwidthAttributes,
    BlackholeAttributes,
    LatencyAttributes,
    LimitDataAttributes,
    LossAttributes,
    ResetPeerAttributes,
    SlicerAttributes,
    SlowCloseAttributes,
    TimeoutAttributes,
    Toxic,
)

_MS: Final = 1e-3
_US: Final = 1e-6
_BANDWIDTH_PIECE_S: Final = 0.1
SEGMENT_BYTES: Final = 1_460
"""TCP's usual segment on Ethernet: the unit of loss."""
MAX_RETRANSMISSIONS: Final = 8
"""A segment lost this often goes through, so that a delay stays finite."""


class Ending(Enum):
    """Takes the place of a chunk at the end of a direction."""

    CLOSE = "close"


CLOSE: Final = Ending.CLOSE


class Chunk(msgspec.Struct, gc=False):
    """Bytes and when they arrived, in seconds."""

    data: bytes
    time: float


Item = Chunk | Ending


class Stage(Protocol):
    """One toxic at work."""

    held_bytes: int
    """Bytes inside, for flow control."""

    def push(self, item: Item, now: float) -> None:
        """Take the next item."""

    def take(self, now: float) -> list[Item]:
        """Items that are due."""

    def next_deadline(self) -> float | None:
        """When ``take`` may give more without a push."""

    def release(self, now: float) -> list[Item]:
        """The toxic is removed, or its attributes change: everything held, and CLOSE if the stream is damaged."""


class _Queued(ABC):
    """Base of stages that let items out one after the other, each when ``_due`` says."""

    def __init__(self, now: float) -> None:
        self.held_bytes = 0
        self._items: deque[Item] = deque()
        self._head_at: float | None = None

    def push(self, item: Item, now: float) -> None:
        self._items.append(item)
        if isinstance(item, Chunk):
            self.held_bytes += len(item.data)
        if self._head_at is None:
            self._head_at = self._due(self._items[0], now)

    def take(self, now: float) -> list[Item]:
        out: list[Item] = []
        while self._head_at is not None and self._head_at <= now:
            item, head_at = self._items.popleft(), self._head_at
            if isinstance(item, Chunk):
                self.held_bytes -= len(item.data)
                item = Chunk(item.data, head_at)
            out.append(item)
            self._head_at = self._due(self._items[0], head_at) if self._items else None
        return out

    def next_deadline(self) -> float | None:
        return self._head_at

    def release(self, now: float) -> list[Item]:
        items = list(self._items)
        self._items.clear()
        self._head_at = None
        self.held_bytes = 0
        return items

    @abstractmethod
    def _due(self, item: Item, since: float) -> float:
        """When the head may leave; ``since`` is when it became the head."""


class LatencyStage(_Queued):
    """Each chunk leaves ``latency`` +/- ``jitter`` after it arrived, in order; a close is not delayed."""

    def __init__(self, attributes: LatencyAttributes, rng: random.Random, now: float) -> None:
        super().__init__(now)
        self._attributes = attributes
        self._rng = rng

    def _due(self, item: Item, since: float) -> float:
        if not isinstance(item, Chunk):
            return since
        jitter = self._attributes.jitter
        delay_ms = self._attributes.latency + (self._rng.uniform(-jitter, jitter) if jitter > 0 else 0.0)
        return max(since, item.time + delay_ms * _MS)


class BandwidthStage(_Queued):
    """``rate`` thousand bytes per second; a large chunk leaves in pieces of a tenth of a second."""

    def __init__(self, attributes: BandwidthAttributes, rng: random.Random, now: float) -> None:
        super().__init__(now)
        self._rate = attributes.rate

    def push(self, item: Item, now: float) -> None:
        if isinstance(item, Chunk) and self._rate > 0:
            size = self._rate * 100
            for start in range(0, len(item.data), size):
                super().push(Chunk(item.data[start : start + size], item.time), now)
        else:
            super().push(item, now)

    def _due(self, item: Item, since: float) -> float:
        if not isinstance(item, Chunk) or self._rate <= 0:
            return since
        return since + len(item.data) / (self._rate * 1_000)


class SlowCloseStage(_Queued):
    """Delays the close alone."""

    def __init__(self, attributes: SlowCloseAttributes, rng: random.Random, now: float) -> None:
        super().__init__(now)
        self._delay_s = attributes.delay * _MS

    def _due(self, item: Item, since: float) -> float:
        return since if isinstance(item, Chunk) else since + self._delay_s


class LossStage(_Queued):
    """A lost segment arrives a retransmission timeout later, doubled at each further loss; TCP keeps all in order."""

    def __init__(self, attributes: LossAttributes, rng: random.Random, now: float) -> None:
        super().__init__(now)
        self._rate = attributes.loss_rate
        self._rto_s = attributes.rto * _MS
        self._rng = rng

    def push(self, item: Item, now: float) -> None:
        if isinstance(item, Chunk):
            for start in range(0, len(item.data), SEGMENT_BYTES):
                super().push(Chunk(item.data[start : start + SEGMENT_BYTES], item.time), now)
        else:
            super().push(item, now)

    def _due(self, item: Item, since: float) -> float:
        if not isinstance(item, Chunk):
            return since
        delay_s, rto_s = 0.0, self._rto_s
        for _ in range(MAX_RETRANSMISSIONS):
            if self._rng.random() >= self._rate:
                break
            delay_s += rto_s
            rto_s *= 2
        return max(since, item.time + delay_s)


class SlicerStage(_Queued):
    """Cuts chunks by halving until a piece is at most average + variation; pauses after each piece."""

    def __init__(self, attributes: SlicerAttributes, rng: random.Random, now: float) -> None:
        super().__init__(now)
        self._average = max(1, attributes.average_size)
        self._variation = max(0, attributes.size_variation)
        self._delay_s = attributes.delay * _US
        self._rng = rng
        self._ready_at = now

    def push(self, item: Item, now: float) -> None:
        if isinstance(item, Chunk):
            for piece in self._pieces(item.data):
                super().push(Chunk(piece, item.time), now)
        else:
            super().push(item, now)

    def _pieces(self, data: bytes) -> list[bytes]:
        pieces, todo = [], [(0, len(data))]
        while todo:
            start, end = todo.pop()
            if end - start - self._average <= self._variation:
                pieces.append(data[start:end])
                continue
            middle = start + (end - start) // 2
            if self._variation:
                middle += self._rng.randrange(2 * self._variation) - self._variation
            middle = min(max(middle, start + 1), end - 1)
            todo += [(middle, end), (start, middle)]
        return pieces

    def _due(self, item: Item, since: float) -> float:
        due = max(since, self._ready_at)
        if isinstance(item, Chunk):
            self._ready_at = due + self._delay_s
        return due


class _Passing:
    """Base of stages that hold nothing: what goes out is decided as it comes in."""

    def __init__(self, now: float) -> None:
        self.held_bytes = 0
        self._out: list[Item] = []
        self._close_at: float | None = None

    def take(self, now: float) -> list[Item]:
        out, self._out = self._out, []
        if self._close_at is not None and now >= self._close_at:
            self._close_at = None
            out.append(CLOSE)
        return out

    def next_deadline(self) -> float | None:
        return self._close_at

    def release(self, now: float) -> list[Item]:
        out, self._out = self._out, []
        return out


class NoopStage(_Passing):
    """A toxic that this connection was spared by its toxicity."""

    def push(self, item: Item, now: float) -> None:
        self._out.append(item)


class TimeoutStage(_Passing):
    """Drops all data; closes after ``timeout`` without any. The stream is damaged, so removal closes it."""

    def __init__(self, attributes: TimeoutAttributes, rng: random.Random, now: float) -> None:
        super().__init__(now)
        self._timeout_s = attributes.timeout * _MS
        self._restart(now)

    def _restart(self, now: float) -> None:
        self._close_at = now + self._timeout_s if self._timeout_s > 0 else None

    def push(self, item: Item, now: float) -> None:
        if isinstance(item, Chunk):
            self._restart(now)
        else:
            self._out.append(item)

    def release(self, now: float) -> list[Item]:
        return [CLOSE]


class ResetPeerStage(_Passing):
    """Waits for the first chunk, then ``timeout``, then closes; the sockets of new connections send a reset."""

    def __init__(self, attributes: ResetPeerAttributes, rng: random.Random, now: float) -> None:
        super().__init__(now)
        self._timeout_s = attributes.timeout * _MS

    def push(self, item: Item, now: float) -> None:
        if not isinstance(item, Chunk):
            self._out.append(item)
        elif self._close_at is None:
            self._close_at = now + self._timeout_s

    def release(self, now: float) -> list[Item]:
        damaged = self._close_at is not None
        return [*super().release(now), *([CLOSE] if damaged else [])]


class LimitDataStage(_Passing):
    """Closes after ``bytes`` bytes since the toxic was added; what is beyond is cut."""

    def __init__(self, attributes: LimitDataAttributes, rng: random.Random, now: float) -> None:
        super().__init__(now)
        self.limit = attributes.bytes
        self.passed = 0
        self._closed = False

    def push(self, item: Item, now: float) -> None:
        if self._closed:
            return
        if not isinstance(item, Chunk):
            self._out.append(item)
            return
        data = item.data[: max(0, self.limit - self.passed)]
        if data:
            self._out.append(Chunk(data, item.time))
            self.passed += len(data)
        if self.passed >= self.limit:
            self._closed = True
            self._out.append(CLOSE)


class BlackholeStage(_Queued):
    """A partition as TCP lives through it: nothing passes, nothing closes; what was sent arrives after the healing."""

    def __init__(self, attributes: BlackholeAttributes, rng: random.Random, now: float) -> None:
        super().__init__(now)

    def push(self, item: Item, now: float) -> None:
        self._items.append(item)
        if isinstance(item, Chunk):
            self.held_bytes += len(item.data)

    def _due(self, item: Item, since: float) -> float:
        return inf


_A = TypeVar("_A", bound=Attributes)
_Make = Callable[[Attributes, random.Random, float], Stage]


def _maker(kind: type[_A], make: Callable[[_A, random.Random, float], Stage]) -> tuple[type[Attributes], _Make]:
    def build(attributes: Attributes, rng: random.Random, now: float) -> Stage:
        if not isinstance(attributes, kind):
            message = f"{type(attributes).__name__} where {kind.__name__} was expected"
            raise TypeError(message)
        return make(attributes, rng, now)

    return kind, build


_STAGES: Final[dict[type[Attributes], _Make]] = dict(
    (
        _maker(LatencyAttributes, LatencyStage),
        _maker(BandwidthAttributes, BandwidthStage),
        _maker(SlowCloseAttributes, SlowCloseStage),
        _maker(TimeoutAttributes, TimeoutStage),
        _maker(ResetPeerAttributes, ResetPeerStage),
        _maker(SlicerAttributes, SlicerStage),
        _maker(LimitDataAttributes, LimitDataStage),
        _maker(LossAttributes, LossStage),
        _maker(BlackholeAttributes, BlackholeStage),
    )
)


def build_stage(toxic: Toxic, rng: random.Random, now: float) -> Stage:
    """The stage of a toxic on a connection, or a harmless one if the draw against its toxicity spares it."""
    if rng.random() >= toxic.toxicity:
        return NoopStage(now)
    return _STAGES[type(toxic.attributes)](toxic.attributes, rng, now)


class Chain:
    """The stages of one direction, in the order in which the toxics were added.

    After each call that changes something, :meth:`run` gives what leaves at the end.
    """

    def __init__(self, rng_of: Callable[[str], random.Random]) -> None:
        self._rng_of = rng_of
        self._names: list[str] = []
        self._stages: list[Stage] = []
        self._tail: list[Item] = []

    @property
    def held_bytes(self) -> int:
        """Bytes inside the chain."""
        return sum(stage.held_bytes for stage in self._stages)

    def push(self, item: Item, now: float) -> None:
        """Bytes from the source, or its end."""
        self._feed(0, [item], now)

    def run(self, now: float) -> list[Item]:
        """Move everything that is due; returns what leaves the chain."""
        for position, stage in enumerate(self._stages):
            self._feed(position + 1, stage.take(now), now)
        out, self._tail = self._tail, []
        return out

    def next_deadline(self) -> float | None:
        """When :meth:`run` has more to do."""
        deadlines = (stage.next_deadline() for stage in self._stages)
        return min((deadline for deadline in deadlines if deadline is not None), default=None)

    def add(self, toxic: Toxic, now: float) -> None:
        """Append a toxic."""
        self._names.append(toxic.name)
        self._stages.append(build_stage(toxic, self._rng_of(toxic.name), now))

    def update(self, toxic: Toxic, now: float) -> None:
        """Start a toxic anew with other attributes; what it held goes on to the next stage."""
        position = self._names.index(toxic.name)
        old = self._stages[position]
        stage = build_stage(toxic, self._rng_of(toxic.name), now)
        if isinstance(old, LimitDataStage) and isinstance(stage, LimitDataStage):
            stage.passed = old.passed
        released = [] if isinstance(old, TimeoutStage) and isinstance(stage, TimeoutStage) else old.release(now)
        self._stages[position] = stage
        self._feed(position + 1, released, now)

    def remove(self, name: str, now: float) -> None:
        """Take a toxic out; what it held goes on, and a stream that it damaged is closed."""
        position = self._names.index(name)
        del self._names[position]
        released = self._stages.pop(position).release(now)
        self._feed(position, released, now)

    def _feed(self, position: int, items: list[Item], now: float) -> None:
        if position < len(self._stages):
            for item in items:
                self._stages[position].push(item, now)
        else:
            self._tail += items

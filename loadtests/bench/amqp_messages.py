"""Messages of AMQP 0.9.1 in a cycle: their publishes, and how their deliveries look, built and read in blocks.

A delivery is checked byte by byte: it must have the exchange, key, properties and body of what was published, in order.
Only the delivery tag is the broker's own.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from assay.loadtests.bench import amqp
from assay.loadtests.bench.amqp import BODY, CHANNEL, HEADER, METHOD, frame, short_string
from assay.loadtests.bench.frames import SEQUENCE_BYTES
from assay.loadtests.bench.workload import BenchError

KEYS = 50
"""Routing keys of the mixed messages."""
MIXED_MESSAGES = 2_048
ALIKE_MESSAGES = 1_024
LEAST_BYTES, MOST_BYTES = 10, 10_240
_SEED = 7
Octets = npt.NDArray[np.uint8]
Places = npt.NDArray[np.int64]
_TAG = np.arange(8)


class Properties(msgspec.Struct, frozen=True, kw_only=True):
    """Those that the bench uses; None = not given. The order is that of their flags."""

    content_type: str | None = None
    headers: tuple[tuple[str, str], ...] | None = None
    delivery_mode: int = 1
    priority: int | None = None
    correlation_id: str | None = None
    message_id: str | None = None
    timestamp: int | None = None
    kind: str | None = None
    app_id: str | None = None


_FLAGS = dict(
    zip(
        Properties.__struct_fields__,
        (0x8000, 0x2000, 0x1000, 0x0800, 0x0400, 0x0080, 0x0040, 0x0020, 0x0008),
        strict=True,
    )
)


def _value(name: str, value: object) -> bytes:
    if isinstance(value, str):
        return short_string(value)
    if isinstance(value, tuple):
        fields = [short_string(key) + b"S" + struct.pack(">I", len(text)) + text.encode() for key, text in value]
        return struct.pack(">I", sum(map(len, fields))) + b"".join(fields)
    assert isinstance(value, int)
    return struct.pack(">Q", value) if name == "timestamp" else bytes((value,))


def section_of(properties: Properties) -> bytes:
    """Flags and values, as in a content header."""
    given = [(name, getattr(properties, name)) for name in _FLAGS if getattr(properties, name) is not None]
    flags = sum([_FLAGS[name] for name, _ in given])
    return struct.pack(">H", flags) + b"".join([_value(name, value) for name, value in given])


class Message(NamedTuple):
    """One of a cycle; the body begins with its number."""

    exchange: str
    routing_key: str
    body_bytes: int
    properties: Properties = Properties()


def mixed_messages(exchange: str, delivery_mode: int) -> list[Message]:
    """Bodies of 10 B to 10 KB, as many of each order of magnitude; 50 keys in random order; properties that differ:
    a quarter each has none, those of a kind, headers, and ids and times of its own."""
    rng = random.Random(_SEED)
    found = []
    for number in range(MIXED_MESSAGES):
        size = int(LEAST_BYTES * (MOST_BYTES / LEAST_BYTES) ** rng.random())
        properties = Properties(delivery_mode=delivery_mode)
        if number % 4 == 1:
            properties = Properties(
                delivery_mode=delivery_mode, content_type="application/json", kind="order", app_id="bench"
            )
        elif number % 4 == 2:
            headers = (("tenant", f"t{number % 7}"), ("source", "bench"))
            properties = Properties(delivery_mode=delivery_mode, content_type="application/json", headers=headers)
        elif number % 4 == 3:
            properties = Properties(
                delivery_mode=delivery_mode,
                correlation_id=f"c-{rng.randrange(1_000)}",
                message_id=f"m-{rng.getrandbits(64):016x}",
                timestamp=1_700_000_000 + number,
            )
        found.append(Message(exchange, f"orders.{rng.randrange(KEYS)}", size, properties))
    return found


def alike_messages(exchange: str, routing_key: str, body_bytes: int, delivery_mode: int) -> list[Message]:
    """As many as are built and read at once."""
    properties = Properties(delivery_mode=delivery_mode)
    return [Message(exchange, routing_key, body_bytes, properties)] * ALIKE_MESSAGES


def publish_bytes(message: Message) -> tuple[bytes, int]:
    """A publish, number 0, and where it has its number."""
    arguments = b"\0\0" + short_string(message.exchange) + short_string(message.routing_key) + b"\0"
    content, at = _content_bytes(message)
    method = amqp.method(amqp.BASIC_PUBLISH, arguments)
    return method + content, len(method) + at


def delivery_bytes(message: Message, consumer: str) -> tuple[bytes, int, int]:
    """A first delivery, tag 0 and number 0, and where it has these."""
    before = struct.pack(">HH", *amqp.BASIC_DELIVER) + short_string(consumer)
    arguments = bytes(8) + b"\0" + short_string(message.exchange) + short_string(message.routing_key)
    method = frame(METHOD, CHANNEL, before + arguments)
    content, at = _content_bytes(message)
    return method + content, len(method) - 1 - len(arguments), len(method) + at


def _content_bytes(message: Message) -> tuple[bytes, int]:
    header = struct.pack(">HHQ", 60, 0, message.body_bytes) + section_of(message.properties)
    start = frame(HEADER, CHANNEL, header)
    return start + frame(BODY, CHANNEL, bytes(message.body_bytes)), len(start) + 7


class Cycle:
    """Messages that are sent over and over; message ``n`` is ``messages[n % len(messages)]`` with its number."""

    def __init__(self, messages: Sequence[Message], consumer: str) -> None:
        self._count = len(messages)
        publishes = [publish_bytes(message) for message in messages]
        deliveries = [delivery_bytes(message, consumer) for message in messages]
        self._publishes, self._publish_ends = _joined([data for data, _ in publishes])
        self._publish_numbers = _places(self._publish_ends, [at for _, at in publishes])
        self._deliveries, self._delivery_ends = _joined([data for data, _, _ in deliveries])
        self._tags = _places(self._delivery_ends, [at for _, at, _ in deliveries])
        self._numbers = _places(self._delivery_ends, [at for _, _, at in deliveries])
        self.largest_bytes = max(len(data) for data, _, _ in deliveries)
        """Of a delivery."""

    def publishes(self, first: int, count: int) -> bytes:
        """Of messages ``first`` and those behind it."""
        blocks = []
        while count:
            at = first % self._count
            some = min(count, self._count - at)
            start, end = self._publish_ends[at], self._publish_ends[at + some]
            block = self._publishes[start:end].copy()
            places = self._publish_numbers[at : at + some, None] - start + _TAG
            block[places] = np.arange(first, first + some).astype(">u8").view(np.uint8).reshape(some, SEQUENCE_BYTES)
            blocks.append(block.tobytes())
            first += some
            count -= some
        return b"".join(blocks)

    def read(self, data: bytes | memoryview, first: int) -> tuple[npt.NDArray[np.uint64], int]:
        """Delivery tags of the whole deliveries at the start of a buffer, the first of which must be message ``first``,
        and how many bytes they have. Raises :class:`BenchError` for any other bytes."""
        octets = np.frombuffer(data, np.uint8)
        tags: list[npt.NDArray[np.uint64]] = []
        used = 0
        while True:
            at = first % self._count
            start = self._delivery_ends[at]
            ends = self._delivery_ends[at + 1 :]
            some = int(np.searchsorted(ends, start + len(octets) - used, side="right"))
            if not some:
                break
            size = int(ends[some - 1] - start)
            block = octets[used : used + size].copy()
            places = self._tags[at : at + some, None] - start + _TAG
            tags.append(np.ascontiguousarray(block[places]).view(">u8").reshape(some).astype(np.uint64))
            numbers = self._numbers[at : at + some, None] - start + _TAG
            found = np.ascontiguousarray(block[numbers]).view(">u8").reshape(some)
            block[places] = block[numbers] = 0
            if not np.array_equal(block, self._deliveries[start : start + size]):
                wrong = int(np.argmax(block != self._deliveries[start : start + size]))
                near = bytes(data[used + max(0, wrong - 20) : used + wrong + 20])
                message = f"message {first} or one behind it came otherwise than it was sent: {near!r}"
                raise BenchError(message)
            if not np.array_equal(found, np.arange(first, first + some)):
                message = f"messages came out of sequence: {found[:5].tolist()} in place of {first}"
                raise BenchError(message)
            first += some
            used += size
        return np.concatenate(tags) if tags else np.zeros(0, np.uint64), used


def _joined(parts: list[bytes]) -> tuple[Octets, Places]:
    """All of them, and where each begins and the last one ends."""
    return np.frombuffer(b"".join(parts), np.uint8), np.array([0, *accumulate(map(len, parts))], np.int64)


def _places(starts: Places, within: list[int]) -> Places:
    return starts[:-1] + np.array(within, np.int64)

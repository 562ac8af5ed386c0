"""AMQP 0.9.1 as a bench client needs it: a handshake, a durable queue, and frames read and written in blocks.

Layouts from the AMQP 0-9-1 specification, sections 2.3.5 (frames), 4.2.3 and the method tables; confirms are RabbitMQ's
extension (class 85). Written for the bench alone: it refuses everything that it does not expect.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from assay.loadtests.bench.frames import SEQUENCE_BYTES
from assay.loadtests.bench.shape import Field
from assay.loadtests.bench.workload import BenchError

METHOD, HEADER, BODY = 1, 2, 3
FRAME_END = 0xCE
CHANNEL = 1
OPENING = b"AMQP\0\0\x09\x01"
_BOUND_TOGETHER = 500
_FRAME = struct.Struct(">BHI")
_OVERHEAD_BYTES = _FRAME.size + 1
TIMEOUT_S = 30.0
"""Brokers take their time for thousands of bindings."""
TRANSIENT, PERSISTENT = 1, 2
CONSUMER = "bench"
_DELIVERY_MODE_FLAG = 0x1000
_HEADERS_FLAG = 0x2000
_KEY_HEADER = "partition-key"

START, START_OK, TUNE, TUNE_OK, OPEN, OPEN_OK = (10, 10), (10, 11), (10, 30), (10, 31), (10, 40), (10, 41)
CHANNEL_OPEN, CHANNEL_OPEN_OK = (20, 10), (20, 11)
QUEUE_DECLARE, QUEUE_DECLARE_OK = (50, 10), (50, 11)
BASIC_QOS, BASIC_QOS_OK, BASIC_CONSUME, BASIC_CONSUME_OK = (60, 10), (60, 11), (60, 20), (60, 21)
BASIC_PUBLISH, BASIC_DELIVER, BASIC_ACK = (60, 40), (60, 60), (60, 80)
BASIC_GET, BASIC_GET_OK = (60, 70), (60, 71)
CONFIRM_SELECT, CONFIRM_SELECT_OK = (85, 10), (85, 11)
EXCHANGE_DECLARE, EXCHANGE_DECLARE_OK, EXCHANGE_DELETE, EXCHANGE_DELETE_OK = (40, 10), (40, 11), (40, 20), (40, 21)
QUEUE_BIND, QUEUE_BIND_OK, QUEUE_DELETE, QUEUE_DELETE_OK = (50, 20), (50, 21), (50, 40), (50, 41)
CLOSE, CLOSE_OK = (10, 50), (10, 51)

Method = tuple[int, int]


class Frame(NamedTuple):
    """One frame in a buffer: its type, and where its payload lies."""

    kind: int
    start: int
    end: int


def short_string(text: str) -> bytes:
    """A length byte and the UTF-8."""
    encoded = text.encode()
    return bytes((len(encoded),)) + encoded


def frame(kind: int, channel: int, payload: bytes) -> bytes:
    return _FRAME.pack(kind, channel, len(payload)) + payload + bytes((FRAME_END,))


def method(name: Method, arguments: bytes = b"", *, channel: int = CHANNEL) -> bytes:
    """A method frame."""
    return frame(METHOD, channel, struct.pack(">HH", *name) + arguments)


def publish_parts(queue: str, body_bytes: int, key_bytes: int = 0) -> tuple[bytes | Field, ...]:
    """A persistent publish to the default exchange: a body of that size, which begins with its number ``seq``.

    With ``key_bytes`` it has one header, ``key``, of that size.
    """
    arguments = b"\0\0" + short_string("") + short_string(queue) + b"\0"
    return _joined(method(BASIC_PUBLISH, arguments), _content_parts(body_bytes, key_bytes))


def _content_parts(body_bytes: int, key_bytes: int) -> tuple[bytes | Field, ...]:
    body = _FRAME.pack(BODY, CHANNEL, body_bytes)
    rest = bytes(body_bytes - SEQUENCE_BYTES) + bytes((FRAME_END,))
    if not key_bytes:
        header = struct.pack(">HHQHB", 60, 0, body_bytes, _DELIVERY_MODE_FLAG, PERSISTENT)
        return (frame(HEADER, CHANNEL, header) + body, ("seq", ">u8"), rest)
    field = short_string(_KEY_HEADER) + b"S" + struct.pack(">I", key_bytes)
    header = struct.pack(">HHQHI", 60, 0, body_bytes, _HEADERS_FLAG | _DELIVERY_MODE_FLAG, len(field) + key_bytes)
    start = _FRAME.pack(HEADER, CHANNEL, len(header) + len(field) + key_bytes + 1) + header + field
    return (start, ("key", f"S{key_bytes}"), bytes((PERSISTENT, FRAME_END)) + body, ("seq", ">u8"), rest)


def _joined(start: bytes, parts: tuple[bytes | Field, ...]) -> tuple[bytes | Field, ...]:
    """The parts with these bytes in front."""
    first, *others = parts
    assert isinstance(first, bytes)
    return (start + first, *others)


def delivery_parts(queue: str, body_bytes: int, key_bytes: int = 0) -> tuple[bytes | Field, ...]:
    """How such a message comes to the consumer, for the first time."""
    before = struct.pack(">HH", *BASIC_DELIVER) + short_string(CONSUMER)
    behind = b"\0" + short_string("") + short_string(queue)
    head = _FRAME.pack(METHOD, CHANNEL, len(before) + 8 + len(behind)) + before
    content = _joined(behind + bytes((FRAME_END,)), _content_parts(body_bytes, key_bytes))
    return (head, ("tag", ">u8"), *content)


def ack_parts() -> tuple[bytes | Field, ...]:
    """``basic.ack``, which confirms to a publisher and settles for a consumer."""
    head = _FRAME.pack(METHOD, CHANNEL, 13) + struct.pack(">HH", *BASIC_ACK)
    return (head, ("tag", ">u8"), ("multiple", "u1"), bytes((FRAME_END,)))


class ConfirmFloor:
    """Which publishes of a channel are confirmed. Tags count from 1, and single confirms may overtake each other."""

    def __init__(self) -> None:
        self._floor = 0
        """Every publish up to this tag is confirmed ..."""
        self._above: set[int] = set()
        """... and these."""

    @property
    def count(self) -> int:
        return self._floor + len(self._above)

    def confirm(self, tag: int, *, multiple: bool) -> None:
        if multiple:
            self._floor = max(self._floor, tag)
            self._above = {above for above in self._above if above > self._floor}
        else:
            self._above.add(tag)
        while self._floor + 1 in self._above:
            self._floor += 1
            self._above.remove(self._floor)


def frames(data: bytes) -> Iterator[Frame]:
    """The whole frames at the start of a buffer. Raises :class:`BenchError`."""
    at, size = 0, len(data)
    while at + _OVERHEAD_BYTES <= size:
        kind, _, length = _FRAME.unpack_from(data, at)
        end = at + _FRAME.size + length
        if end >= size:
            return
        if data[end] != FRAME_END:
            message = f"no frame end at byte {end}"
            raise BenchError(message)
        yield Frame(kind, at + _FRAME.size, end)
        at = end + 1


def name_of(data: bytes, found: Frame) -> Method:
    """Class and method of a method frame."""
    class_id, method_id = struct.unpack_from(">HH", data, found.start)
    return class_id, method_id


class Talk:
    """Blocking requests, one at a time. Each raises :class:`BenchError` for any other answer."""

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        self._buffer = b""

    def expect(self, wanted: Method) -> bytes:
        """The arguments of the next method, which must be that one. Raises :class:`BenchError`."""
        while True:
            found = next(frames(self._buffer), None)
            if found is not None:
                data, self._buffer = self._buffer, self._buffer[found.end + 1 :]
                if found.kind == METHOD and name_of(data, found) == wanted:
                    return data[found.start + 4 : found.end]
                message = f"expected method {wanted}, received {data[found.start : found.end][:80]!r}"
                raise BenchError(message)
            received = self._socket.recv(65_536)
            if not received:
                message = f"the broker closed the connection before method {wanted}"
                raise BenchError(message)
            self._buffer += received

    def request(self, name: Method, answer: Method, arguments: bytes = b"", *, channel: int = CHANNEL) -> bytes:
        self._socket.sendall(method(name, arguments, channel=channel))
        return self.expect(answer)

    def declare(self, queue: str, *, durable: bool = False, exclusive: bool = False) -> None:
        """A classic queue."""
        arguments = b"\0\0" + short_string(queue) + bytes((durable << 1 | exclusive << 2,)) + struct.pack(">I", 0)
        self.request(QUEUE_DECLARE, QUEUE_DECLARE_OK, arguments)

    def declare_exchange(self, name: str, kind: str) -> None:
        """It is not durable."""
        arguments = b"\0\0" + short_string(name) + short_string(kind) + b"\0" + struct.pack(">I", 0)
        self.request(EXCHANGE_DECLARE, EXCHANGE_DECLARE_OK, arguments)

    def bind(self, queue: str, exchange: str, keys: Sequence[str]) -> None:
        """All of these bindings, one behind the other without a wait."""
        for start in range(0, len(keys), _BOUND_TOGETHER):
            some = keys[start : start + _BOUND_TOGETHER]
            names = b"\0\0" + short_string(queue) + short_string(exchange)
            self._socket.sendall(
                b"".join([method(QUEUE_BIND, names + short_string(key) + b"\0" + struct.pack(">I", 0)) for key in some])
            )
            for _ in some:
                self.expect(QUEUE_BIND_OK)

    def delete(self, queue: str) -> None:
        """With all that is in it, if it is there."""
        self.request(QUEUE_DELETE, QUEUE_DELETE_OK, b"\0\0" + short_string(queue) + b"\0")

    def delete_exchange(self, name: str) -> None:
        """If it is there."""
        self.request(EXCHANGE_DELETE, EXCHANGE_DELETE_OK, b"\0\0" + short_string(name) + b"\0")


_LOGIN = b"\0guest\0guest"
LOGIN = b"".join(
    (struct.pack(">I", 0), short_string("PLAIN"), struct.pack(">I", len(_LOGIN)), _LOGIN, short_string("en_US"))
)
"""The arguments of start-ok: what brokers take over loopback."""
VHOST = short_string("/") + b"\0\0"
"""Those of open."""


def tune_answer(tune: bytes, *, heartbeat_s: int) -> bytes:
    """The arguments of tune-ok: what the broker offers, but for heartbeats."""
    channels, frame_bytes, _ = struct.unpack(">HIH", tune)
    return struct.pack(">HIH", channels, frame_bytes, heartbeat_s)


def open_channel(host: str, port: int) -> socket.socket:
    """A connection with one open channel. Raises :class:`BenchError`, :class:`OSError`."""
    connection = socket.create_connection((host, port), TIMEOUT_S)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    try:
        talk = Talk(connection)
        connection.sendall(OPENING)
        talk.expect(START)
        tune = talk.request(START_OK, TUNE, LOGIN, channel=0)
        connection.sendall(method(TUNE_OK, tune_answer(tune, heartbeat_s=0), channel=0))
        talk.request(OPEN, OPEN_OK, VHOST, channel=0)
        talk.request(CHANNEL_OPEN, CHANNEL_OPEN_OK, b"\0")
    except BaseException:
        connection.close()
        raise
    return connection


def declare_durable(connection: socket.socket, queue: str) -> None:
    """A durable classic queue. Raises :class:`BenchError`."""
    Talk(connection).declare(queue, durable=True)


def select_confirms(connection: socket.socket) -> None:
    """Every publish is confirmed from now on. Raises :class:`BenchError`."""
    Talk(connection).request(CONFIRM_SELECT, CONFIRM_SELECT_OK, b"\0")


def consume(connection: socket.socket, queue: str, prefetch: int, *, no_ack: bool = False) -> None:
    """Consume with manual acknowledgements, so many unsettled at most, or without any. Raises :class:`BenchError`."""
    talk = Talk(connection)
    talk.request(BASIC_QOS, BASIC_QOS_OK, struct.pack(">IHB", 0, prefetch, 0))
    arguments = b"\0\0" + short_string(queue) + short_string(CONSUMER) + bytes((no_ack << 1,)) + struct.pack(">I", 0)
    talk.request(BASIC_CONSUME, BASIC_CONSUME_OK, arguments)

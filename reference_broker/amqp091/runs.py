"""Frames of one channel that stand together: publishes whose frames are all there, acknowledgements.

Read as one, by columns. What is not plain, or wrong, ends a run, and goes frame by frame: that finds out what it is.
"""

from __future__ import annotations

import struct
from typing import Any, Final, NamedTuple

from assay.reference_broker.amqp091.wire.content import SECTION_AT, BasicProperties, decode_header
from assay.reference_broker.amqp091.wire.frames import FRAME_END, FRAME_OVERHEAD_BYTES, FrameType
from assay.reference_broker.amqp091.wire.methods import BY_NAME, decode_method
from assay.reference_broker.amqp091.wire.replies import AmqpError
from assay.reference_broker.routing.message import Message
from assay.reference_broker.routing.remembered import Known, SharedMemory

_METHOD_START: Final = struct.Struct(">BHI4s")
_CONTENT_START: Final = struct.Struct(">BHIHHQ")
"""Of a header frame: up to its property flags."""
_BODY_START: Final = struct.Struct(">BHI")
_IDS_AT: Final = 7
PUBLISH: Final = BY_NAME["basic.publish"]
ACK: Final = BY_NAME["basic.ack"]
GET: Final = BY_NAME["basic.get"]
_ACK_BYTES: Final = 21
_ACK_FRAME: Final = struct.Struct(">11xQBx")
MOST_WRITTEN_BYTES: Final = 256
"""Of flags and properties that are passed on as they came."""
_MOST_HEADS: Final = 4_096
_METHOD_BYTES: Final = 512
_HEAD_BYTES: Final = 3_072
"""What a head takes at most, beside its characters."""
_CHARACTER_BYTES: Final = 24
"""They stand there a few times, as text and as bytes."""


class Head:
    """What publishes have in common whose method and whose properties are the same."""

    __slots__ = ("exchange", "immediate", "is_common", "like", "mandatory", "properties", "routing_key", "written")

    def __init__(
        self,
        exchange: str,
        routing_key: str,
        mandatory: bool,
        immediate: bool,
        properties: BasicProperties,
        written: bytes,
    ) -> None:
        self.exchange = exchange
        self.routing_key = routing_key
        self.mandatory = mandatory
        self.immediate = immediate
        self.properties = properties
        self.written = written if len(written) <= MOST_WRITTEN_BYTES else b""
        """Flags and properties as they came, if that is worth keeping."""
        self.is_common = (
            properties.message_id is None and properties.correlation_id is None and properties.timestamp is None
        )
        """Not each of them has a name or a time of its own."""
        self.like: Message | None = None
        """Their message, without a body, once one was made; None also where its time to live begins anew each time."""


class PublishRun(NamedTuple):
    """Publishes of one channel."""

    heads: list[Head]
    bodies: list[bytes]
    ends: list[int]
    """Where each of them ends."""
    frames: int


class PublishReader:
    """Reads the runs of one connection, and remembers heads for it."""

    def __init__(self, memory: SharedMemory) -> None:
        self._heads: Known[bytes, Head] = Known(memory, _MOST_HEADS)
        """By method frame, and what follows the size in the header frame, end octets included."""
        self._methods: Known[bytes, list[Any]] = Known(memory, _MOST_HEADS)
        """What their method says: of many only the properties are their own."""

    def let_go(self) -> None:
        """Remember nothing any more."""
        self._heads.let_go()
        self._methods.let_go()

    def read(self, data: bytes, at: int, max_frame_bytes: int, max_body_bytes: int, most_frames: int) -> PublishRun:
        """Those from ``at`` on, where a method frame begins whose numbers are there; none is fine, too."""
        heads: list[Head] = []
        bodies: list[bytes] = []
        ends: list[int] = []
        size = len(data)
        room = max_frame_bytes - FRAME_OVERHEAD_BYTES
        known = self._heads.answers
        channel, method, method_size = data[at + 1 : at + 3], b"", 0
        number = channel[0] << 8 | channel[1]
        frames = 0
        last: Head | None = None
        last_bytes = 0
        while frames + 3 <= most_frames:
            if not method or not data.startswith(method, at):
                if size - at < _METHOD_START.size:
                    break
                kind, of, length, ids = _METHOD_START.unpack_from(data, at)
                if kind != FrameType.METHOD or of != number or ids != PUBLISH.ids or length > room:
                    break
                method_size = length + FRAME_OVERHEAD_BYTES
                method = data[at : at + method_size]
            header = at + method_size
            if size - header < _CONTENT_START.size:
                break
            kind, of, length, class_id, weight, body_size = _CONTENT_START.unpack_from(data, header)
            end = header + length + FRAME_OVERHEAD_BYTES
            if (
                kind != FrameType.HEADER
                or of != number
                or class_id != PUBLISH.class_id
                or weight
                or length > room
                or body_size > max_body_bytes
                or body_size > room
                or end > size
            ):
                break
            named = method + data[header + _CONTENT_START.size : end]
            head = known.get(named)
            if head is None:
                if method[-1] != FRAME_END or data[end - 1] != FRAME_END:
                    break
                try:
                    head = self._learn(named, method[_IDS_AT:-1], data[header + _IDS_AT : end - 1])
                except AmqpError:
                    break
            start, each = end, 2
            if body_size:
                start, each = end + _BODY_START.size, 3
                end = start + body_size + 1
                if (
                    end > size
                    or data[end - 1] != FRAME_END
                    or _BODY_START.unpack_from(data, start - _BODY_START.size) != (FrameType.BODY, number, body_size)
                ):
                    break
            bodies.append(data[start : end - 1])
            heads.append(head)
            ends.append(end)
            frames += each
            if head is not last or body_size != last_bytes:
                last, last_bytes, at = head, body_size, end
                continue
            # Two are alike: those behind them that begin with the same bytes differ from them in their bodies alone.
            begins, start_bytes, step, count, at = data[at:start], start - at, end - at, len(bodies), end
            most = min((size - at) // step, (most_frames - frames) // each)
            for end in range(at + step, at + most * step + 1, step):
                if data[end - 1] != FRAME_END or not data.startswith(begins, at):
                    break
                bodies.append(data[at + start_bytes : end - 1])
                ends.append(end)
                at = end
            count = len(bodies) - count
            heads += [head] * count
            frames += each * count
        return PublishRun(heads, bodies, ends, frames)

    def _learn(self, named: bytes, method: bytes, header: bytes) -> Head:
        """Raises :class:`AmqpError`."""
        values = self._methods.answers.get(method)
        if values is None:
            length = len(method)
            values = self._methods.remember(
                method, decode_method(method)[1], length, _METHOD_BYTES + _CHARACTER_BYTES * length
            )
        _, properties = decode_header(header)
        head = Head(*[*values, properties, header[SECTION_AT:]])
        if not head.is_common:
            return head
        length = len(named)
        return self._heads.remember(named, head, length, _HEAD_BYTES + _CHARACTER_BYTES * length)


def read_alike(data: bytes, at: int, most: int) -> tuple[bytes, int]:
    """The payload of the frame that begins there and is whole, and how many like it stand there together."""
    end = at + FRAME_OVERHEAD_BYTES + int.from_bytes(data[at + 3 : at + _IDS_AT], "big")
    one = data[at:end]
    count = 1
    while count < most and data.startswith(one, end):
        count += 1
        end += len(one)
    return one[_IDS_AT:-1], count


def read_acks(data: bytes, at: int, most: int) -> tuple[list[tuple[int, int]], int]:
    """Tags of the acknowledgements from ``at`` on, each with its bits, and where the last one ends."""
    start = data[at : at + _ACK_BYTES - 10]
    end = at
    last = min(at + most * _ACK_BYTES, len(data)) - _ACK_BYTES
    while end <= last and data.startswith(start, end):
        end += _ACK_BYTES
    ends = data[at + _ACK_BYTES - 1 : end : _ACK_BYTES]
    if start[3:7] != b"\0\0\0\x0d" or ends.count(FRAME_END) != len(ends):
        return [], at
    return list(_ACK_FRAME.iter_unpack(data[at:end])), end

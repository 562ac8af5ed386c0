"""Frames of one channel that stand together: publishes whose frames are all there, acknowledgements.

Read as one, by columns. What is not plain, or wrong, ends a run, and goes frame by frame: that finds out what it is.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

from assay.reference_broker.amqp091.direct_replies import REPLY_TO
from assay.reference_broker.amqp091.topology.routes import BCC
from assay.reference_broker.amqp091.wire.content import SECTION_AT, BasicProperties, decode_header
from assay.reference_broker.amqp091.wire.frames import FRAME_END, FRAME_OVERHEAD_BYTES, FrameType
from assay.reference_broker.amqp091.wire.methods import BY_NAME, decode_method
from assay.reference_broker.amqp091.wire.replies import AmqpError
from assay.reference_broker.queues.messages.origin import Origin
from assay.reference_broker.routing.message import Message
from assay.reference_broker.routing.remembered import Known, SharedMemory

_LENGTH: Final = struct.Struct(">3xI")
"""Of a frame's payload."""
_CONTENT_START: Final = struct.Struct(">3xI4xQ")
"""Of a header frame, up to its property flags: how long it and the body are."""
_BODY_START: Final = struct.Struct(">3sI")
_IDS_AT: Final = 7
_NAMES_AT: Final = 11
_SIZE_AT: Final = 11
"""Of a body's size in the header frame."""
_CLASS_AND_WEIGHT: Final = b"\0\x3c\0\0"
PUBLISH: Final = BY_NAME["basic.publish"]
ACK: Final = BY_NAME["basic.ack"]
GET: Final = BY_NAME["basic.get"]
_KINDS: Final = (FrameType.METHOD, FrameType.HEADER, FrameType.BODY)
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


class Way:
    """What the method of a publish says."""

    __slots__ = ("exchange", "immediate", "mandatory", "routing_key")

    def __init__(self, exchange: str, routing_key: str, mandatory: bool, immediate: bool) -> None:
        self.exchange = exchange
        self.routing_key = routing_key
        self.mandatory = mandatory
        self.immediate = immediate


class Head:
    """What publishes have in common whose method and whose properties are the same."""

    __slots__ = ("goes_by", "is_common", "like", "origin", "properties", "way", "written")

    def __init__(self, way: Way, properties: BasicProperties, written: bytes) -> None:
        self.way = way
        self.properties = properties
        headers = properties.headers
        self.goes_by: Way | Head = way
        """What decides where they go, and whether they may: the way of all that have it, or also what they have."""
        if headers is not None or properties.user_id is not None or properties.reply_to == REPLY_TO:
            self.goes_by = self
        is_worth_it = len(written) <= MOST_WRITTEN_BYTES and not (headers and any(name == BCC for name, _ in headers))
        self.written = written if is_worth_it else b""
        """Flags and properties as they came, if they may be passed on so, and that is worth keeping."""
        self.is_common = (
            properties.message_id is None and properties.correlation_id is None and properties.timestamp is None
        )
        """Not each of them has a name or a time of its own."""
        self.like: Message | None = None
        """Their message, without a body, once one was made; None also where its time to live begins anew each time."""
        self.origin: Origin | None = None
        """What the engine is told that they have in common; None as above."""


class PublishRun(NamedTuple):
    """Publishes of one channel."""

    heads: list[Head]
    bodies: list[bytes]
    ends: list[int]
    """Where each of them ends."""
    frames: int
    awaited: int = 0
    """Where the next one ends, of which only the rest of its body is missing; 0 = there is none."""


class PublishReader:
    """Reads the runs of one connection, and remembers heads for it."""

    def __init__(self, memory: SharedMemory) -> None:
        self._heads: Known[bytes, Head] = Known(memory, _MOST_HEADS)
        """By method and header frame, without the body's size in this one."""
        self._ways: Known[bytes, Way] = Known(memory, _MOST_HEADS)
        """By method frame: of many only the properties are their own."""

    def let_go(self) -> None:
        """Remember nothing any more."""
        self._heads.let_go()
        self._ways.let_go()

    def read(self, data: bytes, at: int, max_frame_bytes: int, max_body_bytes: int, most_frames: int) -> PublishRun:
        """Those from ``at`` on, where a method frame begins whose numbers are there; none is fine, too."""
        heads: list[Head] = []
        bodies: list[bytes] = []
        ends: list[int] = []
        size = len(data)
        largest_body = min(max_body_bytes, max_frame_bytes - FRAME_OVERHEAD_BYTES)
        known = self._heads.answers
        # What is looked at for each of them is at hand: this loop is a quarter of what a message takes.
        starts_method, starts_header, starts_body = [bytes((kind,)) + data[at + 1 : at + 3] for kind in _KINDS]
        length_of, content_of, body_start = _LENGTH.unpack_from, _CONTENT_START.unpack_from, _BODY_START.unpack_from
        size_at, content_at, body_at = _SIZE_AT, _CONTENT_START.size, _BODY_START.size
        overhead = FRAME_OVERHEAD_BYTES
        frames = awaited = 0
        last: Head | None = None
        last_bytes = 0
        while frames + 3 <= most_frames and data.startswith(starts_method, at):
            try:
                (length,) = length_of(data, at)
                header = at + length + overhead
                length, body_size = content_of(data, header)
            except struct.error:
                break
            end = header + length + overhead
            if end > size or body_size > largest_body:
                break
            named = data[at : header + size_at] + data[header + content_at : end]
            head = known.get(named)
            if head is None:
                method, content = data[at:header], data[header:end]
                if max(len(method), len(content)) > max_frame_bytes or not content.startswith(starts_header):
                    break
                head = self._learn(named, method, content)
                if head is None:
                    break
            start, each = end, 2
            if body_size:
                start, each = end + body_at, 3
                end = start + body_size + 1
                if start > size or body_start(data, start - body_at) != (starts_body, body_size):
                    break
                if end > size:
                    awaited = end
                    break
                if data[end - 1] != FRAME_END:
                    break
            bodies.append(data[start : end - 1])
            heads.append(head)
            ends.append(end)
            frames += each
            if head is not last or body_size != last_bytes:
                last, last_bytes, at = head, body_size, end
                continue
            # Two are alike: those behind them that begin with the same bytes differ from them in their bodies alone.
            begins, begin_bytes, step, count, at = data[at:start], start - at, end - at, len(bodies), end
            most = min((size - at) // step, (most_frames - frames) // each)
            for end in range(at + step, at + most * step + 1, step):
                if data[end - 1] != FRAME_END or not data.startswith(begins, at):
                    break
                bodies.append(data[at + begin_bytes : end - 1])
                ends.append(end)
                at = end
            count = len(bodies) - count
            heads += [head] * count
            frames += each * count
        return PublishRun(heads, bodies, ends, frames, awaited)

    def _learn(self, named: bytes, method: bytes, content: bytes) -> Head | None:
        """Of two frames; None where they are not those that begin a publish, or say something wrong."""
        if (
            method[_IDS_AT:_NAMES_AT] != PUBLISH.ids
            or content[_IDS_AT:_SIZE_AT] != _CLASS_AND_WEIGHT
            or not method[-1] == content[-1] == FRAME_END
        ):
            return None
        try:
            way = self._ways.answers.get(method)
            if way is None:
                length = len(method)
                way = Way(*decode_method(method[_IDS_AT:-1])[1])
                self._ways.remember(method, way, length, _METHOD_BYTES + _CHARACTER_BYTES * length)
            header = content[_IDS_AT:-1]
            _, properties = decode_header(header)
        except AmqpError:
            return None
        head = Head(way, properties, header[SECTION_AT:])
        if not head.is_common:
            return head
        length = len(named)
        return self._heads.remember(named, head, length, _HEAD_BYTES + _CHARACTER_BYTES * length)


def count_alike(data: bytes, at: int, end: int, most: int) -> int:
    """How many frames like the one from ``at`` to ``end`` stand there together, with it."""
    one = data[at:end]
    count = 1
    while count < most and data.startswith(one, end):
        count += 1
        end += len(one)
    return count


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

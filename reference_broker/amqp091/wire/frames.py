"""Frames (AMQP 0.9.1 section 2.3.5, 4.2.3) and the protocol header."""

from __future__ import annotations

import struct
from enum import IntEnum
from typing import Final, NamedTuple

from assay.reference_broker.amqp091.wire.replies import AmqpError, Reply

PROTOCOL_HEADER: Final = b"AMQP\x00\x00\x09\x01"
OPENING: Final = b"AMQP"
FRAME_MIN_BYTES: Final = 4_096
"""What both peers take until more is agreed on, and at least."""
FRAME_OVERHEAD_BYTES: Final = 8
FRAME_END: Final = 0xCE
_END: Final = bytes((FRAME_END,))
HEARTBEAT_CHANNEL: Final = "sec.4.2.7.heartbeat-channel"
"""Rule of heartbeats that are none."""
_UNKNOWN: Final = "sec.4.2.3.unknown-frame-type"
_HEADER: Final = struct.Struct(">BHI")


class FrameType(IntEnum):
    METHOD = 1
    HEADER = 2
    BODY = 3
    HEARTBEAT = 8


FRAME_TYPES: Final = frozenset(FrameType)
HEARTBEAT: Final = _HEADER.pack(FrameType.HEARTBEAT, 0, 0) + _END


class Frame(NamedTuple):
    kind: int
    channel: int
    payload: bytes


def read_frame(data: bytes | bytearray, at: int, max_bytes: int) -> tuple[Frame, int] | None:
    """The frame that begins there, and where the next one does; None = it is not all there.

    Raises :class:`AmqpError` (501) as soon as it cannot be one: its type, or its size, from the first 7 bytes.
    """
    if len(data) - at < _HEADER.size:
        if len(data) > at and data[at] not in FRAME_TYPES:
            raise AmqpError(Reply.FRAME_ERROR, f"there is no frame type {data[at]}", rule=_UNKNOWN)
        return None
    kind, channel, size = _HEADER.unpack_from(data, at)
    if kind not in FRAME_TYPES:
        raise AmqpError(Reply.FRAME_ERROR, f"there is no frame type {kind}", rule=_UNKNOWN)
    if size > max_bytes - FRAME_OVERHEAD_BYTES:
        text = f"a frame of {size} bytes, where {max_bytes - FRAME_OVERHEAD_BYTES} are agreed on"
        raise AmqpError(Reply.FRAME_ERROR, text, rule="sec.4.2.3.oversize")
    start = at + _HEADER.size
    end = start + size
    if len(data) <= end:
        return None
    if data[end] != FRAME_END:
        raise AmqpError(Reply.FRAME_ERROR, f"a frame ends with {data[end]:#04x}", rule="sec.4.2.3.frame-end-check")
    return Frame(kind, channel, bytes(data[start:end])), end + 1


def awaited_bytes(data: bytes, at: int) -> int:
    """How long what begins there has to be before :func:`read_frame` has more to say of it."""
    if len(data) - at < _HEADER.size:
        # Each of its bytes may be a wrong one.
        return 0
    return FRAME_OVERHEAD_BYTES + int(_HEADER.unpack_from(data, at)[2])


def frame(kind: int, channel: int, payload: bytes) -> bytes:
    return b"%b%b\xce" % (_HEADER.pack(kind, channel, len(payload)), payload)


def content_frames(channel: int, header: bytes, body: bytes, max_bytes: int) -> bytes:
    """A content header and its body, in as many frames as it needs; none for an empty body (section 4.2.6.2)."""
    parts = [frame(FrameType.HEADER, channel, header)]
    room = max_bytes - FRAME_OVERHEAD_BYTES
    if len(body) <= room:
        if body:
            parts.append(frame(FrameType.BODY, channel, body))
    else:
        parts += [frame(FrameType.BODY, channel, body[at : at + room]) for at in range(0, len(body), room)]
    return b"".join(parts)

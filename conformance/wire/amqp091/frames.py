"""Frames of AMQP 0.9.1: cut from the stream, one by one, before anything in them is looked at."""

from __future__ import annotations

import struct
from enum import IntEnum

import msgspec

AMQP_091 = 91
"""Stands for AMQP 0.9.1 where MQTT has its protocol versions."""
PROTOCOL_HEADER = b"AMQP\x00\x00\x09\x01"
FRAME_END = 0xCE
FRAME_MIN_BYTES = 4_096
"""What both peers take before they have agreed on a size."""
FRAME_OVERHEAD_BYTES = 8
"""Type, channel, size and end."""
_HEAD = struct.Struct(">BHI")
_HEADER_BYTES = len(PROTOCOL_HEADER)
_MAX_FRAME_BYTES = 64 * 1024 * 1024
"""No frame of this suite is so large, whatever was negotiated: who announces one is broken."""


class FrameType(IntEnum):
    METHOD = 1
    HEADER = 2
    BODY = 3
    HEARTBEAT = 8


class MalformedFrameError(Exception):
    """The bytes are no frame, or not what a frame of that type holds; the text says what is wrong."""


class Frame(msgspec.Struct, frozen=True):
    """One frame; ``payload`` is not looked at."""

    type: int
    channel: int
    payload: bytes = b""

    @property
    def size_bytes(self) -> int:
        return len(self.payload) + FRAME_OVERHEAD_BYTES


class ProtocolHeader(msgspec.Struct, frozen=True):
    """What a server answers that does not speak what it was asked for."""

    data: bytes


HEARTBEAT = Frame(FrameType.HEARTBEAT, 0)


class FrameReader:
    """Cuts a stream into frames; a protocol header may stand in front."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._first = True

    def feed(self, data: bytes) -> list[Frame | ProtocolHeader]:
        """The frames that are whole now. Raises :class:`MalformedFrameError`; what came before it is lost with it."""
        self._buffer += data
        found: list[Frame | ProtocolHeader] = []
        while (item := self._next()) is not None:
            found.append(item)
        return found

    @property
    def pending(self) -> bytes:
        """Bytes of a frame that is not whole yet."""
        return bytes(self._buffer)

    def _next(self) -> Frame | ProtocolHeader | None:
        buffer = self._buffer
        if self._first and buffer[:1] == b"A":
            if len(buffer) < _HEADER_BYTES:
                return None
            header = ProtocolHeader(bytes(buffer[:_HEADER_BYTES]))
            del buffer[:_HEADER_BYTES]
            return header
        if len(buffer) < _HEAD.size:
            return None
        kind, channel, size = _HEAD.unpack_from(buffer)
        if kind not in FrameType.__members__.values():
            message = f"frame type {kind} is none of AMQP 0.9.1"
            raise MalformedFrameError(message)
        if size > _MAX_FRAME_BYTES:
            message = f"a frame of {size} bytes is announced"
            raise MalformedFrameError(message)
        end = _HEAD.size + size
        if len(buffer) <= end:
            return None
        if buffer[end] != FRAME_END:
            message = f"a frame ends with 0x{buffer[end]:02x} in place of 0xce"
            raise MalformedFrameError(message)
        frame = Frame(kind, channel, bytes(buffer[_HEAD.size : end]))
        del buffer[: end + 1]
        self._first = False
        return frame

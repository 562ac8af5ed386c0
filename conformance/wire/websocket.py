"""WebSocket (RFC 6455) from the client's side, as far as MQTT needs it: handshake, frames both ways. Sans-IO.

Frames are built and read here rather than by a library, because a suite must be able to send what no library lets
out (an unmasked frame, a reserved opcode), and because the broker that it was made for uses such a library itself.
"""

from __future__ import annotations

import base64
import hashlib
from enum import IntEnum

import msgspec

SUBPROTOCOL = "mqtt"
MAX_HEAD_BYTES = 65_536
MAX_FRAME_BYTES = 16 * 1024 * 1024
_GUID = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
_END_OF_HEAD = b"\r\n\r\n"
_LONGEST_CONTROL_BYTES = 125
_TWO_BYTE_LENGTH, _EIGHT_BYTE_LENGTH = 126, 127


class WebSocketError(ValueError):
    """The peer's bytes are no WebSocket; the text says why, ``statement`` by which one."""

    def __init__(self, text: str, statement: str) -> None:
        super().__init__(text)
        self.statement = f"RFC6455-{statement}"


class Opcode(IntEnum):
    """RFC 6455, 5.2."""

    CONTINUATION = 0x0
    TEXT = 0x1
    BINARY = 0x2
    CLOSE = 0x8
    PING = 0x9
    PONG = 0xA


class Frame(msgspec.Struct, frozen=True, kw_only=True):
    """One frame, unmasked."""

    opcode: Opcode
    payload: bytes = b""
    final: bool = True


class Response(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to an opening handshake."""

    status: int
    headers: tuple[tuple[str, str], ...]
    """Names in lower case."""

    def header(self, name: str) -> str | None:
        """Value of the first header of this name."""
        return next((value for key, value in self.headers if key == name.lower()), None)


def request(
    host: str, path: str, key: bytes, *, subprotocols: tuple[str, ...] = (SUBPROTOCOL,), more: tuple[str, ...] = ()
) -> bytes:
    """The opening handshake of a client. ``key`` are 16 bytes, ``more`` further header lines."""
    lines = [
        f"GET {path} HTTP/1.1",
        f"Host: {host}",
        "Upgrade: websocket",
        "Connection: Upgrade",
        f"Sec-WebSocket-Key: {base64.b64encode(key).decode()}",
        "Sec-WebSocket-Version: 13",
        *((f"Sec-WebSocket-Protocol: {', '.join(subprotocols)}",) if subprotocols else ()),
        *more,
    ]
    return "\r\n".join(lines).encode() + _END_OF_HEAD


def accept_value(key: bytes) -> str:
    """What ``Sec-WebSocket-Accept`` must hold for this key (RFC 6455, 4.2.2)."""
    encoded = base64.b64encode(key)
    return base64.b64encode(hashlib.sha1(encoded + _GUID, usedforsecurity=False).digest()).decode()


def encode_frame(
    opcode: int, payload: bytes = b"", *, mask: bytes | None, final: bool = True, reserved: int = 0
) -> bytes:
    """A frame. ``mask`` are four bytes, None for an unmasked frame; ``reserved`` are the first byte's bits 0x70."""
    first = (0x80 if final else 0) | reserved | opcode
    masked = 0 if mask is None else 0x80
    size = len(payload)
    if size <= _LONGEST_CONTROL_BYTES:
        head = bytes((first, masked | size))
    elif size < 1 << 16:
        head = bytes((first, masked | _TWO_BYTE_LENGTH)) + size.to_bytes(2, "big")
    else:
        head = bytes((first, masked | _EIGHT_BYTE_LENGTH)) + size.to_bytes(8, "big")
    if mask is None:
        return head + payload
    stream = (mask * (size // 4 + 1))[:size]
    hidden = (int.from_bytes(payload, "big") ^ int.from_bytes(stream, "big")).to_bytes(size, "big")
    return head + mask + hidden


class ResponseReader:
    """Collects the head of the answer to a handshake."""

    def __init__(self) -> None:
        self._data = bytearray()

    def feed(self, data: bytes) -> tuple[Response, bytes] | None:
        """The response and what follows it, once it is complete. Raises :class:`WebSocketError`."""
        self._data += data
        head, end, rest = bytes(self._data).partition(_END_OF_HEAD)
        if not end:
            if len(self._data) > MAX_HEAD_BYTES:
                raise WebSocketError(f"no end of the response within {MAX_HEAD_BYTES} bytes", "4.2.2-1")
            return None
        first, *lines = head.decode("latin-1").split("\r\n")
        version, _, status = first.partition(" ")
        if not version.startswith("HTTP/1.") or not status[:3].isdigit():
            raise WebSocketError(f"not an HTTP response: {first[:80]!r}", "4.2.2-1")
        pairs = [line.partition(":") for line in lines]
        headers = tuple((name.strip().lower(), value.strip()) for name, _, value in pairs)
        return Response(status=int(status[:3]), headers=headers), rest


class FrameReader:
    """Cuts a server's stream into frames, strictly: no mask, no reserved bits or opcodes, messages well formed."""

    def __init__(self) -> None:
        self._data = bytearray()
        self._inside_message = False

    def feed(self, data: bytes) -> list[Frame]:
        """The frames that are complete now. Raises :class:`WebSocketError`."""
        self._data += data
        frames = []
        while (frame := self._next()) is not None:
            frames.append(frame)
        return frames

    def _next(self) -> Frame | None:
        data = self._data
        if len(data) < 2:
            return None
        first, second = data[0], data[1]
        if second & 0x80:
            raise WebSocketError("a server's frames are not masked", "5.1-2")
        at, size = 2, second & 0x7F
        extended = {_TWO_BYTE_LENGTH: 2, _EIGHT_BYTE_LENGTH: 8}.get(size, 0)
        if extended:
            at += extended
            if len(data) < at:
                return None
            size = int.from_bytes(data[2:at], "big")
        if size > MAX_FRAME_BYTES:
            raise WebSocketError(f"a frame of {size} bytes", "5.2-2")
        opcode = self._opcode(first, size)
        if len(data) < at + size:
            return None
        payload = bytes(data[at : at + size])
        del data[: at + size]
        final = bool(first & 0x80)
        if opcode < Opcode.CLOSE:
            self._inside_message = not final
        return Frame(opcode=opcode, payload=payload, final=final)

    def _opcode(self, first: int, size: int) -> Opcode:
        if first & 0x70:
            raise WebSocketError("a reserved bit is set, and no extension was agreed on", "5.2-1")
        try:
            opcode = Opcode(first & 0x0F)
        except ValueError as error:
            raise WebSocketError(f"the opcode 0x{first & 0x0F:x} is reserved", "5.2-2") from error
        if opcode >= Opcode.CLOSE:
            if not first & 0x80 or size > _LONGEST_CONTROL_BYTES:
                raise WebSocketError(f"a {opcode.name} frame is cut or has {size} bytes", "5.5-1")
        elif self._inside_message is not (opcode is Opcode.CONTINUATION):
            where = "within" if self._inside_message else "outside"
            raise WebSocketError(f"a {opcode.name} frame {where} a message", "5.4-1")
        return opcode

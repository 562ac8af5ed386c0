"""Methods and content headers to bytes and back; frames with any damage a case wants."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Any

import msgspec

from assay.conformance.wire.amqp091.frames import FRAME_END, Frame, FrameType, MalformedFrameError
from assay.conformance.wire.amqp091.methods import BY_IDS, CLASSES, METHODS, PROPERTIES, Method
from assay.conformance.wire.amqp091.values import (
    Reader,
    ValueDecodeError,
    encode_longstr,
    encode_shortstr,
    encode_table,
)

_NUMBERS = {"octet": ">B", "short": ">H", "long": ">I", "longlong": ">Q", "timestamp": ">Q"}
_LAST_FLAG = 0x8000
_CONTINUATION = 0x0001
_FLAGS_A_WORD = 15


class ContentHeader(msgspec.Struct, frozen=True, kw_only=True):
    """What comes between a method and its body."""

    class_id: int = CLASSES["basic"]
    weight: int = 0
    body_bytes: int = 0
    properties: Mapping[str, Any] = {}
    """By name (with hyphens); only those that are there."""


def _encode(kind: str, value: Any) -> bytes:
    if kind in _NUMBERS:
        return struct.pack(_NUMBERS[kind], value)
    if kind == "shortstr":
        return encode_shortstr(value)
    return encode_longstr(value) if kind == "longstr" else encode_table(value)


def _decode(kind: str, reader: Reader, *, exact: bool = False) -> Any:
    if kind in _NUMBERS:
        return reader.number(_NUMBERS[kind])
    if kind == "shortstr":
        return reader.shortstr()
    return reader.longstr() if kind == "longstr" else reader.table(exact=exact)


def encode_arguments(method: Method) -> bytes:
    """The payload of a method frame without class and method; bits that stand together share octets."""
    parts: list[bytes] = []
    bits: list[bool] = []

    def flush() -> None:
        for start in range(0, len(bits), 8):
            octet = sum(bit << place for place, bit in enumerate(bits[start : start + 8]))
            parts.append(bytes([octet]))
        bits.clear()

    for name, kind in method.spec.fields:
        if kind == "bit":
            bits.append(bool(method[name]))
        else:
            flush()
            parts.append(_encode(kind, method[name]))
    flush()
    return b"".join(parts)


def encode_frame(
    kind: int, channel: int, payload: bytes = b"", *, size: int | None = None, end: int = FRAME_END
) -> bytes:
    """One frame; ``size`` and ``end`` may lie."""
    return struct.pack(">BHI", kind, channel, len(payload) if size is None else size) + payload + bytes([end])


def encode_method(channel: int, method: Method) -> bytes:
    """A method frame."""
    ids = struct.pack(">HH", method.spec.class_id, method.spec.method_id)
    return encode_frame(FrameType.METHOD, channel, ids + encode_arguments(method))


def encode_properties(properties: Mapping[str, Any]) -> bytes:
    """Flags and values; names may be written with underscores."""
    given = {name.rstrip("_").replace("_", "-"): value for name, value in properties.items()}
    flags, values = 0, b""
    for place, (name, kind) in enumerate(PROPERTIES.items()):
        if name in given:
            flags |= _LAST_FLAG >> place
            values += _encode(kind, given.pop(name))
    if given:
        message = f"class basic has no property {', '.join(given)}"
        raise TypeError(message)
    return struct.pack(">H", flags) + values


def encode_header(
    channel: int,
    body_bytes: int,
    properties: Mapping[str, Any] | bytes = b"\x00\x00",
    *,
    class_id: int = CLASSES["basic"],
    weight: int = 0,
) -> bytes:
    """A content header frame; ``properties`` as bytes are flags and values as they are."""
    head = struct.pack(">HHQ", class_id, weight, body_bytes)
    tail = properties if isinstance(properties, bytes) else encode_properties(properties)
    return encode_frame(FrameType.HEADER, channel, head + tail)


def encode_body(channel: int, payload: bytes) -> bytes:
    """One body frame."""
    return encode_frame(FrameType.BODY, channel, payload)


def encode_content(
    channel: int, method: Method, body: bytes = b"", properties: Mapping[str, Any] = {}, *, part_bytes: int = 4_088
) -> bytes:
    """A method with its content, the body in frames of at most ``part_bytes``."""
    data = encode_method(channel, method) + encode_header(channel, len(body), properties)
    for start in range(0, len(body), part_bytes):
        data += encode_body(channel, body[start : start + part_bytes])
    return data


def decode_method(payload: bytes) -> Method:
    """Raises :class:`MalformedFrameError`."""
    reader = Reader(payload, "a method frame")
    try:
        ids = reader.number(">H"), reader.number(">H")
        spec = BY_IDS.get(ids)
        if spec is None:
            message = f"class {ids[0]}, method {ids[1]} is none of AMQP 0.9.1"
            raise MalformedFrameError(message)
        method = Method(spec.name)
        octet, taken = 0, 8
        for name, kind in spec.fields:
            if kind == "bit":
                if taken == 8:
                    octet, taken = reader.number(">B"), 0
                method.values[name] = bool(octet >> taken & 1)
                taken += 1
            else:
                taken = 8
                method.values[name] = _decode(kind, reader)
    except ValueDecodeError as error:
        message = f"a method frame cannot be read: {error}"
        raise MalformedFrameError(message) from error
    if reader.left:
        message = f"{spec.name}: {reader.left} bytes behind its last field"
        raise MalformedFrameError(message)
    return method


def decode_header(payload: bytes, *, exact: bool = False) -> ContentHeader:
    """``exact``: the values of ``headers`` keep their letters. Raises :class:`MalformedFrameError`."""
    reader = Reader(payload, "a content header")
    try:
        class_id, weight, body_bytes = reader.number(">H"), reader.number(">H"), reader.number(">Q")
        flags: list[int] = []
        while not flags or flags[-1] & _CONTINUATION:
            flags.append(reader.number(">H"))
        kinds = list(PROPERTIES.items())
        properties: dict[str, Any] = {}
        for word, value in enumerate(flags):
            for place in range(_FLAGS_A_WORD):
                if not value & _LAST_FLAG >> place:
                    continue
                index = word * _FLAGS_A_WORD + place
                if index >= len(kinds):
                    message = f"a content header has the flag of a property {index} that there is not"
                    raise MalformedFrameError(message)
                name, kind = kinds[index]
                properties[name] = _decode(kind, reader, exact=exact)
    except ValueDecodeError as error:
        message = f"a content header cannot be read: {error}"
        raise MalformedFrameError(message) from error
    if reader.left:
        message = f"{reader.left} bytes behind the properties of a content header"
        raise MalformedFrameError(message)
    return ContentHeader(class_id=class_id, weight=weight, body_bytes=body_bytes, properties=properties)


def decode_frame_payload(frame: Frame) -> Method | ContentHeader | bytes:
    """What a frame holds. Raises :class:`MalformedFrameError`."""
    if frame.type == FrameType.METHOD:
        return decode_method(frame.payload)
    return decode_header(frame.payload) if frame.type == FrameType.HEADER else frame.payload


__all__ = [
    "METHODS",
    "ContentHeader",
    "decode_frame_payload",
    "decode_header",
    "decode_method",
    "encode_body",
    "encode_content",
    "encode_frame",
    "encode_header",
    "encode_method",
]

"""Frames for people."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from assay.conformance.wire.amqp091.codec import ContentHeader, decode_frame_payload
from assay.conformance.wire.amqp091.frames import Frame, FrameReader, FrameType, MalformedFrameError, ProtocolHeader
from assay.conformance.wire.amqp091.methods import CONSTANTS, Method

_SHOWN_BYTES = 40
_SHOWN_CHARACTERS = 200


def _shown(value: Any) -> str:
    if isinstance(value, bytes):
        text = repr(value[:_SHOWN_BYTES])
        return text if len(value) <= _SHOWN_BYTES else f"{text}... ({len(value)} bytes)"
    if isinstance(value, Mapping):
        inner = ", ".join(f"{name}={_shown(item)}" for name, item in value.items())
        return f"{{{inner}}}"
    text = repr(value)
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}..."


def describe_method(method: Method) -> str:
    """The name and what is not empty: ``queue.declare queue='orders' durable``."""
    parts = [method.name]
    for name, kind in method.spec.fields:
        value = method[name]
        if kind == "bit":
            parts += [name] * bool(value)
        elif name == "reply-code":
            parts.append(f"{value} {CONSTANTS.get(value, '(unknown)')}")
        elif value not in (b"", "", 0, {}):
            parts.append(f"{name}={_shown(value)}")
    return " ".join(parts)


def describe(item: Frame | ProtocolHeader | Method) -> str:
    """One line. Never raises."""
    if isinstance(item, Method):
        return describe_method(item)
    if isinstance(item, ProtocolHeader):
        return f"protocol header {item.data!r}"
    where = f"ch {item.channel}: "
    if item.type == FrameType.HEARTBEAT:
        return "heartbeat" if item.channel == 0 and not item.payload else f"{where}heartbeat {_shown(item.payload)}"
    try:
        inner = decode_frame_payload(item)
    except MalformedFrameError as error:
        return f"{where}frame of type {item.type} that cannot be read: {error}"
    if isinstance(inner, Method):
        return where + describe_method(inner)
    if isinstance(inner, ContentHeader):
        known = "".join(f" {name}={_shown(value)}" for name, value in inner.properties.items())
        odd = f" class {inner.class_id} weight {inner.weight}" if inner.class_id != 60 or inner.weight else ""
        return f"{where}content of {inner.body_bytes} bytes{odd}{known}"
    return f"{where}body {_shown(inner)}"


def describe_bytes(data: bytes) -> str:
    """What bytes that may be damaged are, as far as they are frames."""
    reader = FrameReader()
    try:
        found = reader.feed(data)
    except MalformedFrameError as error:
        return f"{len(data)} raw bytes ({error})"
    parts = [describe(item) for item in found]
    if reader.pending:
        parts.append(f"{len(reader.pending)} bytes of a frame that is not whole")
    return "; ".join(parts) or "nothing"

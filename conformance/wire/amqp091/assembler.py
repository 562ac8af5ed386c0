"""From frames to what a client waits for: methods, those with content once that is whole. Sans-IO.

It holds the server to the grammar of content: header behind method, body frames up to the announced size, nothing else
of the same channel in between, weight 0, the class of the method.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from assay.conformance.wire.amqp091.codec import ContentHeader, decode_header, decode_method
from assay.conformance.wire.amqp091.frames import Frame, FrameReader, FrameType, MalformedFrameError, ProtocolHeader
from assay.conformance.wire.amqp091.methods import Method


class Heartbeat(msgspec.Struct, frozen=True):
    """The server is alive."""


class Arrival(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """A method on a channel, with its content if it has any."""

    channel: int
    method: Method
    properties: Mapping[str, Any] = {}
    body: bytes = b""
    header: bytes = b""
    """Payload of the content header, for what must come back byte by byte."""

    @property
    def name(self) -> str:
        return self.method.name

    def __getitem__(self, field: str) -> Any:
        """A field of the method."""
        return self.method[field]

    @property
    def tag(self) -> int:
        """Delivery tag."""
        found: int = self.method["delivery-tag"]
        return found

    @property
    def headers(self) -> Mapping[str, Any]:
        found: Mapping[str, Any] = self.properties.get("headers", {})
        return found

    def exact_headers(self) -> Mapping[str, Any]:
        """With the letters of all values."""
        found: Mapping[str, Any] = decode_header(self.header, exact=True).properties.get("headers", {})
        return found


class _Open(msgspec.Struct):
    """Content that is not whole."""

    method: Method
    header: ContentHeader | None = None
    payload: bytes = b""
    body: bytearray = msgspec.field(default_factory=bytearray)


class Assembler:
    """Reads a server's bytes."""

    def __init__(self) -> None:
        self._reader = FrameReader()
        self._open: dict[int, _Open] = {}
        self.largest_frame_bytes = 0
        """Of body frames seen: only those can be cut to any size."""

    @property
    def pending(self) -> bytes:
        return self._reader.pending

    def frames(self, data: bytes) -> list[Frame | ProtocolHeader]:
        """Raises :class:`MalformedFrameError`."""
        return self._reader.feed(data)

    def feed(self, data: bytes) -> list[Arrival | Heartbeat | ProtocolHeader]:
        """Everything that is whole now. Raises :class:`MalformedFrameError`."""
        found = (self.take(frame) for frame in self.frames(data))
        return [event for event in found if event is not None]

    def take(self, frame: Frame | ProtocolHeader) -> Arrival | Heartbeat | ProtocolHeader | None:
        """What is whole with this frame. Raises :class:`MalformedFrameError`."""
        if isinstance(frame, ProtocolHeader):
            return frame
        if frame.type == FrameType.HEARTBEAT:
            if frame.channel or frame.payload:
                message = f"a heartbeat on channel {frame.channel} with {len(frame.payload)} bytes"
                raise MalformedFrameError(message)
            return Heartbeat()
        open_content = self._open.get(frame.channel)
        if frame.type == FrameType.METHOD:
            return self._take_method(frame, open_content)
        if open_content is None:
            message = f"content on channel {frame.channel} without a method"
            raise MalformedFrameError(message)
        if frame.type == FrameType.HEADER:
            self._take_header(frame, open_content)
        else:
            self._take_body(frame, open_content)
        return self._whole(frame.channel, open_content)

    def _take_method(self, frame: Frame, open_content: _Open | None) -> Arrival | None:
        if open_content is not None:
            message = f"a method on channel {frame.channel} in the middle of the content of {open_content.method.name}"
            raise MalformedFrameError(message)
        method = decode_method(frame.payload)
        if (method.spec.class_id == 10) != (frame.channel == 0):
            message = f"{method.name} on channel {frame.channel}"
            raise MalformedFrameError(message)
        if not method.spec.content:
            return Arrival(channel=frame.channel, method=method)
        self._open[frame.channel] = _Open(method)
        return None

    def _take_header(self, frame: Frame, content: _Open) -> None:
        if content.header is not None:
            message = f"a second content header for {content.method.name}"
            raise MalformedFrameError(message)
        content.header, content.payload = decode_header(frame.payload), frame.payload
        if content.header.class_id != content.method.spec.class_id or content.header.weight:
            message = f"content header of class {content.header.class_id}, weight {content.header.weight}"
            raise MalformedFrameError(message)

    def _take_body(self, frame: Frame, content: _Open) -> None:
        self.largest_frame_bytes = max(self.largest_frame_bytes, frame.size_bytes)
        content.body += frame.payload
        if content.header is None:
            message = f"a body frame for {content.method.name} before its content header"
            raise MalformedFrameError(message)
        if len(content.body) > content.header.body_bytes:
            message = f"{len(content.body)} bytes of a body of {content.header.body_bytes}"
            raise MalformedFrameError(message)

    def _whole(self, channel: int, content: _Open) -> Arrival | None:
        if content.header is None or len(content.body) < content.header.body_bytes:
            return None
        del self._open[channel]
        return Arrival(
            channel=channel,
            method=content.method,
            properties=content.header.properties,
            body=bytes(content.body),
            header=content.payload,
        )

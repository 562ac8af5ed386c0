"""Tens of thousands of messages in seconds: a client that writes frames in blocks and looks at little of what it reads.

The connections of other cases write every packet into the transcript; here only sums are noted.
"""

from __future__ import annotations

import asyncio

from assay.conformance.case import CaseContext
from assay.conformance.connection import FIRST_FAILURE_CODE
from assay.conformance.outcome import CaseFailureError
from assay.conformance.wire import Connack, Decoder, Properties, Publish, Subscribe, Subscription, encode

_VERSION = 5
_BLOCK = 1_000
_PUBLISH, _PUBACK = 3, 4
_SHORT_PUBACK_BYTES = 4
_WINDOW, _LEAST = 500, 100
"""Unconfirmed publishes: as many as that where the server takes them, and no fewer than would take minutes."""
_READ_BYTES = 262_144


class BulkClient:
    """An MQTT 5.0 client of a case; close it when it is done."""

    def __init__(self, ctx: CaseContext, name: str) -> None:
        self.ctx, self.name = ctx, name
        self._reader: asyncio.StreamReader
        self._writer: asyncio.StreamWriter
        self._rest = b""
        self._window = _WINDOW
        self._first: list[bytes] = []
        """Read already, and not looked at."""

    async def connect(self) -> None:
        """Connect with a fresh client id and the largest Receive Maximum.

        A server that takes few publishes at a time is asked nothing.
        """
        self._reader, self._writer = await asyncio.open_connection(self.ctx.endpoint.host, self.ctx.endpoint.port)
        packet = self.ctx.connect_packet(version=_VERSION, properties=Properties(receive_maximum=65_535))
        self._writer.write(encode(packet, _VERSION))
        (connack,) = Decoder(_VERSION).feed(await self._frame(Connack.type))
        if isinstance(connack, Connack):
            self._window = min(_WINDOW, connack.properties.receive_maximum or _WINDOW)
        if self._window < _LEAST:
            self.ctx.unsupported(f"the broker takes {self._window} unconfirmed messages of a client at a time")
        self.ctx.note(f"{self.name}: connected as {packet.client_id}")

    def close(self) -> None:
        self._writer.transport.abort()

    async def _frames(self) -> list[bytes]:
        """At least one whole frame."""
        frames: list[bytes] = []
        while not frames:
            try:
                data = await self.ctx.patiently(lambda: self._reader.read(_READ_BYTES))
            except TimeoutError:
                message = f"{self.name}: expected more packets; nothing arrived in time"
                raise CaseFailureError(message) from None
            if not data:
                message = f"{self.name}: expected more packets; the broker ended the connection"
                raise CaseFailureError(message)
            data, at = self._rest + data, 0
            while (end := _end_of_frame(data, at)) is not None:
                frames.append(data[at:end])
                at = end
            self._rest = data[at:]
        return frames

    async def _frame(self, kind: int) -> bytes:
        for frame in await self._frames():
            if frame[0] >> 4 == kind:
                return frame
        message = f"{self.name}: expected a packet of type {kind}"
        raise CaseFailureError(message)

    async def publish(self, queue: str, count: int) -> None:
        """``count`` numbered messages at QoS 1; each must be confirmed."""
        packet = Publish(topic=f"$queue/{queue}", payload=bytes(8), qos=1, packet_id=1)
        frame = encode(packet, _VERSION)
        id_at = frame.index(queue.encode()) + len(queue)
        head, middle = frame[:id_at], frame[id_at + 2 : -8]
        for first in range(0, count, self._window):
            numbers = range(first, min(first + self._window, count))
            self._writer.write(
                b"".join(
                    head + (1 + number % _WINDOW).to_bytes(2, "big") + middle + b"%08d" % number for number in numbers
                )
            )
            confirmed = 0
            while confirmed < len(numbers):
                for frame in await self._frames():
                    if frame[0] >> 4 != _PUBACK or (
                        len(frame) > _SHORT_PUBACK_BYTES and frame[4] >= FIRST_FAILURE_CODE
                    ):
                        message = f"{self.name}: expected PUBACKs of success; seen {frame[:20].hex()}"
                        raise CaseFailureError(message)
                    confirmed += 1
        self.ctx.note(f"{self.name}: {count} messages to {queue} confirmed")

    async def join(self, queue: str, group: str) -> None:
        """Become a consumer."""
        packet = Subscribe(
            packet_id=1,
            subscriptions=(Subscription(filter=f"$queue/{queue}", qos=1),),
            properties=Properties(user_property=(("consumer-group", group),)),
        )
        self._writer.write(encode(packet, _VERSION))
        self._first = await self._frames()

    async def settle_but(self, queue: str, group: str, count: int, held: frozenset[tuple[int, int]]) -> None:
        """Take ``count`` deliveries and settle all but those ``held`` (partition, offset), a block at a time.

        Each must come once. Returns when every settlement is confirmed.
        """
        seen: set[tuple[int, int]] = set()
        unsettled: dict[int, list[int]] = {}
        frames, self._first = self._first, []
        sent = confirmed = 0
        while True:
            output: list[bytes] = []
            for frame in frames:
                kind = frame[0] >> 4
                if kind == _PUBACK:
                    if len(frame) > _SHORT_PUBACK_BYTES and frame[4] >= FIRST_FAILURE_CODE:
                        message = f"{self.name}: a settlement was refused: {frame[:60]!r}"
                        raise CaseFailureError(message)
                    confirmed += 1
                elif kind == _PUBLISH:
                    place = (_number(frame, b"partition"), _number(frame, b"offset"))
                    if place in seen:
                        message = f"{self.name}: offset {place[1]} of partition {place[0]} came twice"
                        raise CaseFailureError(message)
                    seen.add(place)
                    output.append(b"\x40\x02" + _packet_id(frame))
                    if place not in held:
                        unsettled.setdefault(place[0], []).append(place[1])
            for partition, offsets in unsettled.items():
                if len(offsets) >= _BLOCK or (offsets and len(seen) >= count):
                    sent += 1
                    named = (("group-id", group), ("partition", str(partition)), ("offsets", _ranges(offsets)))
                    packet = Publish(
                        topic=f"$queue/{queue}/$ack",
                        qos=1,
                        packet_id=sent,
                        properties=Properties(user_property=named),
                    )
                    output.append(encode(packet, _VERSION))
                    offsets.clear()
            self._writer.write(b"".join(output))
            if len(seen) >= count and confirmed == sent:
                self.ctx.note(f"{self.name}: {len(seen)} deliveries, {sent} settlements confirmed")
                return
            frames = await self._frames()


def _end_of_frame(data: bytes, at: int) -> int | None:
    """Where the frame that begins there ends; None while it is not whole."""
    length, shift, position = 0, 0, at + 1
    while position < len(data):
        byte = data[position]
        length |= (byte & 0x7F) << shift
        shift, position = shift + 7, position + 1
        if byte < 0x80:
            end = position + length
            return end if end <= len(data) else None
    return None


def _packet_id(frame: bytes) -> bytes:
    at = 1
    while frame[at] >= 0x80:
        at += 1
    topic_at = at + 1
    at = topic_at + 2 + int.from_bytes(frame[topic_at : topic_at + 2], "big")
    return frame[at : at + 2]


def _number(frame: bytes, name: bytes) -> int:
    """The value of a user property that is a number."""
    mark = b"\x26" + len(name).to_bytes(2, "big") + name
    at = frame.index(mark) + len(mark)
    size = int.from_bytes(frame[at : at + 2], "big")
    return int(frame[at + 2 : at + 2 + size])


def _ranges(offsets: list[int]) -> str:
    """As ``1-5,7-9``."""
    texts: list[str] = []
    first = end = offsets[0]
    for offset in [*offsets[1:], -1]:
        if offset != end + 1:
            texts.append(f"{first}-{end}")
            first = offset
        end = offset
    return ",".join(texts)

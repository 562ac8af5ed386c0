"""An AMQP client that takes no part in any case: whatever others send, it must go on being served."""

from __future__ import annotations

from collections.abc import Iterable

from assay.conformance.bystander import Bystander
from assay.conformance.targets import Endpoint
from assay.conformance.targets.amqp import plain
from assay.conformance.wire.amqp091 import (
    PROTOCOL_HEADER,
    Arrival,
    Assembler,
    Heartbeat,
    MalformedFrameError,
    Method,
    describe,
    encode_content,
    encode_frame,
    encode_method,
)


class AmqpBystander(Bystander[Arrival]):
    """Of AMQP: it consumes from a queue of its own."""

    malformed = MalformedFrameError

    def __init__(self, endpoint: Endpoint, *, timeout_s: float) -> None:
        super().__init__(endpoint, timeout_s=timeout_s)
        self._assembler = Assembler()
        self._queue = ""

    async def _open(self) -> None:
        self._assembler = Assembler()
        (await self._connect()).write(PROTOCOL_HEADER)
        await self._next("connection.start")
        self._send(0, "connection.start-ok", mechanism="PLAIN", response=plain(self._endpoint), locale="en_US")
        tune = await self._next("connection.tune")
        self._send(0, "connection.tune-ok", channel_max=tune["channel-max"], frame_max=tune["frame-max"])
        self._send(0, "connection.open", virtual_host="/")
        await self._next("connection.open-ok")
        self._send(1, "channel.open")
        await self._next("channel.open-ok")
        self._send(1, "queue.declare", exclusive=True)
        self._queue = (await self._next("queue.declare-ok"))["queue"]
        self._send(1, "basic.consume", queue=self._queue, no_ack=True)
        await self._next("basic.consume-ok")

    async def _round_trip(self) -> None:
        self._sent += 1
        body = str(self._sent).encode()
        method = Method("basic.publish", routing_key=self._queue)
        self._write(encode_content(1, method, body))
        while (await self._next("basic.deliver")).body != body:
            pass

    def _send(self, channel: int, name: str, **fields: object) -> None:
        self._write(encode_method(channel, Method(name, **fields)))

    def _feed(self, data: bytes) -> Iterable[Arrival]:
        events = list(self._assembler.feed(data))
        for _ in range(sum(isinstance(event, Heartbeat) for event in events)):
            self._write(encode_frame(8, 0))
        return [event for event in events if isinstance(event, Arrival)]

    async def _next(self, name: str) -> Arrival:
        event = await self._receive()
        if event.name != name:
            message = f"it expected {name} and got {describe(event.method)}"
            raise EOFError(message)
        return event

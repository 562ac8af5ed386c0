"""An AMQP client that takes no part in any case: whatever others send, it must go on being served."""

from __future__ import annotations

import asyncio
from contextlib import suppress

from assay.conformance.bystander import BystanderError
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

_READ_BYTES = 65_536


class AmqpBystander:
    """One connection, opened when first needed, that sends messages to a queue of its own and consumes them."""

    def __init__(self, endpoint: Endpoint, *, timeout_s: float) -> None:
        """``timeout_s`` is how long the broker may take to serve it once."""
        self._endpoint, self._timeout_s = endpoint, timeout_s
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._assembler = Assembler()
        self._events: list[Arrival] = []
        self._turn = asyncio.Lock()
        self._queue = ""
        self._sent = 0

    async def join(self) -> None:
        """Connect and be served once, unless that has been done. Raises :class:`BystanderError`."""
        if self._writer is None:
            await self._served(opens=True)

    async def prove_served(self) -> None:
        """Send a message and get it back. Raises :class:`BystanderError`; then the next :meth:`join` starts afresh."""
        await self._served(opens=False)

    def close(self) -> None:
        """Drop the connection."""
        if self._writer is not None:
            with suppress(RuntimeError):  # of a loop that has ended
                self._writer.transport.abort()
        self._reader = self._writer = None

    async def _served(self, *, opens: bool) -> None:
        async with self._turn:
            try:
                async with asyncio.timeout(self._timeout_s):
                    if opens and self._writer is None:
                        await self._open()
                    await self._round_trip()
            except TimeoutError as error:
                self.close()
                message = f"a client that had no part in it got no answer within {self._timeout_s:g} s"
                raise BystanderError(message) from error
            except (OSError, EOFError, MalformedFrameError) as error:
                self.close()
                message = f"a client that had no part in it lost its connection: {error or type(error).__name__}"
                raise BystanderError(message) from error

    async def _open(self) -> None:
        endpoint, self._assembler, self._events = self._endpoint, Assembler(), []
        self._reader, self._writer = await asyncio.open_connection(
            endpoint.host, endpoint.port, ssl=endpoint.tls_context, server_hostname=endpoint.server_name
        )
        self._writer.write(PROTOCOL_HEADER)
        await self._next("connection.start")
        self._send(0, "connection.start-ok", mechanism="PLAIN", response=plain(endpoint), locale="en_US")
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

    def _write(self, data: bytes) -> None:
        if self._writer is None:
            message = "it is not connected"
            raise EOFError(message)
        self._writer.write(data)

    async def _next(self, name: str) -> Arrival:
        while not self._events:
            data = await self._reader.read(_READ_BYTES) if self._reader is not None else b""
            if not data:
                message = "the broker ended it"
                raise EOFError(message)
            for event in self._assembler.feed(data):
                if isinstance(event, Heartbeat):
                    self._write(encode_frame(8, 0))
                elif isinstance(event, Arrival):
                    self._events.append(event)
        event = self._events.pop(0)
        if event.name != name:
            message = f"it expected {name} and got {describe(event.method)}"
            raise EOFError(message)
        return event

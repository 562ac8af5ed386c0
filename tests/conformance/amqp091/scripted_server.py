"""A server that opens connections and channels as it should, and answers everything else by a script."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Sequence

from assay.conformance.targets import Endpoint
from assay.conformance.wire.amqp091 import (
    FRAME_MIN_BYTES,
    PROTOCOL_HEADER,
    Frame,
    FrameReader,
    FrameType,
    MalformedFrameError,
    Method,
    decode_frame_payload,
    encode_method,
)

Script = Callable[[int, Method], Sequence[Method | bytes] | None]
"""Channel and method to the answers; None = as a sound server would. Bytes are sent as they are."""
PROPERTIES = {"product": "scripted", "capabilities": {"publisher_confirms": True, "basic.nack": False}}


def sound(channel: int, method: Method) -> Sequence[Method | bytes]:
    """What a server answers that has nothing against anything, and keeps nothing."""
    name = method.name
    if name == "connection.start-ok":
        return [Method("connection.tune", channel_max=10, frame_max=FRAME_MIN_BYTES)]
    if name == "queue.declare" and not method["no-wait"]:
        return [Method("queue.declare-ok", queue=method["queue"] or "named")]
    if name == "basic.get":
        return [Method("basic.get-empty")]
    if name == "basic.consume":
        return [Method("basic.consume-ok", consumer_tag=method["consumer-tag"] or "c")]
    return [Method(reply) for reply in method.spec.replies]


class _Connection(asyncio.Protocol):
    def __init__(self, script: Script) -> None:
        self._script, self._reader, self._begun = script, FrameReader(), False
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        assert self._transport is not None
        if not self._begun:
            self._begun = True
            if not data.startswith(PROTOCOL_HEADER):
                self._transport.write(PROTOCOL_HEADER)
                self._transport.close()
                return
            data = data[len(PROTOCOL_HEADER) :]
            start = Method("connection.start", version_minor=9, server_properties=PROPERTIES, mechanisms=b"PLAIN")
            start.values["locales"] = b"en_US"
            self._transport.write(encode_method(0, start))
        try:
            for frame in self._reader.feed(data):
                if isinstance(frame, Frame) and frame.type == FrameType.METHOD:
                    self._answer(frame)
        except MalformedFrameError:
            self._transport.close()

    def _answer(self, frame: Frame) -> None:
        method = decode_frame_payload(frame)
        assert isinstance(method, Method)
        answers = self._script(frame.channel, method)
        for answer in sound(frame.channel, method) if answers is None else answers:
            assert self._transport is not None
            at = 0 if isinstance(answer, Method) and answer.name.startswith("connection.") else frame.channel
            self._transport.write(answer if isinstance(answer, bytes) else encode_method(at, answer))
            if isinstance(answer, Method) and answer.name == "connection.close-ok":
                self._transport.close()


@contextlib.asynccontextmanager
async def serving(script: Script = lambda _channel, _method: None) -> AsyncIterator[Endpoint]:
    """A server on a free port."""
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: _Connection(script), "127.0.0.1", 0)
    try:
        yield Endpoint(host="127.0.0.1", port=server.sockets[0].getsockname()[1])
    finally:
        server.close()

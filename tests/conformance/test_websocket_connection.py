"""A case's WebSocket connection: what it sends and reads, and how a server that is no WebSocket is told of."""

from __future__ import annotations

import asyncio
import base64
import re
from collections.abc import Awaitable, Callable

import pytest

from assay.conformance.case import Case, CaseContext
from assay.conformance.outcome import CaseFailureError
from assay.conformance.targets import DEFAULT_CAPABILITIES, Endpoint
from assay.conformance.websocket import WebSocketConnection
from assay.conformance.wire import Connack, Pingreq, Publish, encode
from assay.conformance.wire.websocket import Opcode, accept_value, encode_frame

VERSION = 4
CONNACK = encode_frame(Opcode.BINARY, encode(Connack(), VERSION), mask=None)
Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


def accepting(head: bytes, *, extra: str = "", key: bytes | None = None) -> bytes:
    """A server's answer to the handshake in ``head``."""
    found = re.search(rb"Sec-WebSocket-Key: (\S+)", head)
    assert found is not None
    asked = base64.b64decode(found.group(1)) if key is None else key
    lines = (
        "HTTP/1.1 101 Switching Protocols",
        "Upgrade: websocket",
        "Connection: Upgrade",
        f"Sec-WebSocket-Accept: {accept_value(asked)}",
        "Sec-WebSocket-Protocol: mqtt",
    )
    return ("\r\n".join(lines) + extra + "\r\n\r\n").encode()


def talk(serve: Serve, case: Callable[[CaseContext], Awaitable[None]]) -> list[str]:
    """Run ``case`` against a server; returns the decoded lines of the transcript."""

    async def main() -> list[str]:
        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        known = Case(
            id="mqtt311/websocket/rule",
            title="A rule.",
            expectation="It holds.",
            clauses=("MQTT-6.0.0-1",),
            level="MUST",
            requires=(),
            mutant="",
            near_miss="",
            limit_s=5.0,
            module="none",
            run=case,
        )
        capabilities = {**DEFAULT_CAPABILITIES, "websocket_url": f"ws://127.0.0.1:{port}/mqtt?a=b"}
        ctx = CaseContext(known, Endpoint(port=port), capabilities, run_token="t", seed=1)
        try:
            async with ctx.time_limit(5.0):
                await case(ctx)
        finally:
            ctx.close()
            server.close()
        return [line.decoded for line in ctx.transcript.lines]

    return asyncio.run(main())


def answering(*answers: bytes) -> Serve:
    """A server that upgrades, sends ``answers`` and reads on until the client leaves."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        writer.write(accepting(head) + b"".join(answers))
        await reader.read()
        writer.close()

    return serve


def refusing(response: Callable[[bytes], bytes]) -> Serve:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(response(await reader.readuntil(b"\r\n\r\n")))
        writer.close()

    return serve


async def opens(ctx: CaseContext) -> None:
    await ctx.open_websocket()


def test_packets_come_out_of_frames_however_these_cut_them() -> None:
    publish = encode(Publish(topic="t", payload=b"cut"), VERSION)
    parts = (
        encode_frame(Opcode.BINARY, publish[:2], mask=None, final=False),
        encode_frame(Opcode.PING, b"now", mask=None),
        encode_frame(Opcode.CONTINUATION, publish[2:], mask=None),
        encode_frame(Opcode.CLOSE, b"\x03\xe8bye", mask=None),
    )

    async def case(ctx: CaseContext) -> None:
        connection = await ctx.connect_over(await ctx.open_websocket(), ctx.connect_packet())
        assert (await connection.expect_publish("t", b"cut")).qos == 0

    shown = talk(answering(CONNACK, *parts), case)
    assert any(line.startswith("HTTP GET /mqtt?a=b") for line in shown)
    assert "PONG frame, 3 bytes" in shown
    assert "CLOSE frame 1000 bye" in shown
    assert "CLOSE frame, 2 bytes" in shown


def test_a_wrong_frame_of_the_case_has_the_broker_looked_after() -> None:
    async def case(ctx: CaseContext) -> None:
        connection: WebSocketConnection = await ctx.open_websocket()
        connection.send_in_frames(encode(Pingreq(), VERSION))
        assert not ctx.sent_raw
        connection.send_frame(Opcode.BINARY, b"x", masked=False)
        assert ctx.sent_raw

    assert "BINARY frame, 1 bytes, unmasked" in talk(answering(), case)


@pytest.mark.parametrize(
    ("frame", "complaint"),
    [
        (encode_frame(Opcode.TEXT, b"hello", mask=None), "a text frame"),
        (encode_frame(Opcode.BINARY, b"\x20\x02\x00\x00", mask=b"abcd"), "not masked"),
        (encode_frame(0x3, b"", mask=None), "reserved"),
    ],
)
def test_frames_that_no_server_may_send_fail_the_case(frame: bytes, complaint: str) -> None:
    async def case(ctx: CaseContext) -> None:
        await ctx.connect_over(await ctx.open_websocket(), ctx.connect_packet())

    with pytest.raises(CaseFailureError, match=complaint):
        talk(answering(frame), case)


@pytest.mark.parametrize(
    ("response", "complaint"),
    [
        (lambda head: accepting(head, key=bytes(16)), "does not answer the key"),
        (lambda head: accepting(head, extra="\r\nSec-WebSocket-Extensions: x"), "an extension that was not offered"),
        (lambda _head: b"HTTP/1.1 400 Bad Request\r\n\r\nbody", "seen status 400"),
        (lambda _head: b"", "the end of the connection"),
        (lambda _head: b"\x20\x02\x00\x00\r\n\r\n", "not an HTTP response"),
    ],
)
def test_what_is_no_upgrade_fails_the_case(response: Callable[[bytes], bytes], complaint: str) -> None:
    with pytest.raises(CaseFailureError, match=complaint):
        talk(refusing(response), opens)

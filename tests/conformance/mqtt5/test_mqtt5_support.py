"""Helpers of the MQTT 5.0 cases, against a scripted broker: what they accept, report and fail."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from assay.conformance.case import Case, CaseContext
from assay.conformance.cases.mqtt5 import support
from assay.conformance.outcome import CaseFailureError, UnsupportedError
from assay.conformance.targets import Endpoint
from assay.conformance.wire import (
    Connack,
    Connect,
    Decoder,
    Disconnect,
    Packet,
    Pingreq,
    Pingresp,
    Properties,
    Publish,
    Suback,
    Subscribe,
    encode,
)

Script = Callable[[Packet], tuple[Packet, ...] | None]
"""Answers to a packet; None = end the connection."""


async def unused(ctx: CaseContext) -> None:
    """Stands for the function of a case."""


CASE = Case(
    id="mqtt5/area/rule",
    title="A rule.",
    expectation="It holds.",
    clauses=("MQTT-3.1.0-1",),
    level="MUST",
    requires=(),
    mutant="",
    near_miss="",
    limit_s=10.0,
    module="none",
    run=unused,
)


def usual(packet: Packet) -> tuple[Packet, ...] | None:
    """A broker that accepts everybody, answers PINGREQ, and ends the connection for a message to "end"."""
    match packet:
        case Connect():
            return (Connack(),)
        case Pingreq():
            return (Pingresp(),)
        case Publish(topic="end"):
            return None
    return ()


@asynccontextmanager
async def context(script: Script) -> AsyncIterator[CaseContext]:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        decoder = Decoder(5)
        try:
            while data := await reader.read(65_536):
                for packet in decoder.feed(data):
                    answers = script(packet)
                    if answers is None:
                        return
                    writer.write(b"".join(encode(answer, 5) for answer in answers))
        except ConnectionError:
            return
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()
    ctx = CaseContext(CASE, Endpoint(host=host, port=port), {}, run_token="t", seed=0)
    try:
        yield ctx
    finally:
        ctx.close()
        server.close()


def run(script: Script, steps: Callable[[CaseContext], Awaitable[None]]) -> CaseContext:
    async def main() -> CaseContext:
        async with context(script) as ctx:
            await steps(ctx)
            return ctx

    return asyncio.run(main())


def saying(*goodbyes: Packet) -> Script:
    """A broker that says this in answer to DISCONNECT, and ends the connection at the next packet."""
    said: list[bool] = []

    def script(packet: Packet) -> tuple[Packet, ...] | None:
        if isinstance(packet, Disconnect):
            said.append(True)
            return goodbyes
        return None if said else usual(packet)

    return script


async def provoke(ctx: CaseContext, *codes: int) -> None:
    connection = await ctx.connect()
    connection.send(Disconnect())
    connection.send(Pingreq())
    await support.expect_error(ctx, connection, *codes)


def test_an_end_that_is_explained_is_right() -> None:
    assert run(saying(Disconnect(reason_code=0x94)), lambda ctx: provoke(ctx, 0x94)).missed == []


@pytest.mark.parametrize("code", [support.MALFORMED_PACKET, support.PROTOCOL_ERROR, support.UNSPECIFIED_ERROR])
def test_the_general_codes_fit_every_error(code: int) -> None:
    assert run(saying(Disconnect(reason_code=code)), lambda ctx: provoke(ctx, 0x94)).missed == []


def test_another_code_is_reported_and_does_not_fail() -> None:
    (missed,) = run(saying(Disconnect(reason_code=0x97)), lambda ctx: provoke(ctx, 0x94)).missed
    assert "expected 0x94" in missed


def test_a_silent_end_is_reported_and_does_not_fail() -> None:
    (missed,) = run(saying(), provoke).missed
    assert "without a DISCONNECT" in missed


def test_a_second_disconnect_fails() -> None:
    twice = saying(Disconnect(reason_code=0x81), Disconnect(reason_code=0x81))
    with pytest.raises(CaseFailureError, match="last packet"):
        run(twice, provoke)


def test_an_answer_in_place_of_the_end_fails() -> None:
    async def steps(ctx: CaseContext) -> None:
        connection = await ctx.connect()
        connection.send(Pingreq())
        await support.expect_error(ctx, connection)

    with pytest.raises(CaseFailureError, match="PINGRESP"):
        run(usual, steps)


def test_ends_tells_a_live_connection_from_a_dead_one() -> None:
    async def steps(ctx: CaseContext) -> None:
        connection = await ctx.connect()
        assert not await support.ends(connection)
        connection.send(Publish(topic="end"))
        assert await support.ends(connection)

    run(usual, steps)


def test_arrives_looks_at_the_topic() -> None:
    def script(packet: Packet) -> tuple[Packet, ...] | None:
        return (Publish(topic="a"), Publish(topic="b")) if isinstance(packet, Pingreq) else usual(packet)

    async def steps(ctx: CaseContext) -> None:
        connection = await ctx.connect()
        connection.send(Pingreq())
        assert await support.arrives(connection, "a")
        assert not await support.arrives(connection, "a")
        assert not await support.arrives(connection, "b", within_s=0.01)

    run(script, steps)


@pytest.mark.parametrize("granted", [0, 1])
def test_less_qos_than_needed_is_no_failure(granted: int) -> None:
    def script(packet: Packet) -> tuple[Packet, ...] | None:
        if isinstance(packet, Subscribe):
            return (Suback(packet_id=packet.packet_id, reason_codes=(granted,)),)
        return usual(packet)

    async def steps(ctx: CaseContext) -> None:
        await support.subscribe_at(ctx, await ctx.connect(), "t", qos=1)

    if granted:
        run(script, steps)
    else:
        with pytest.raises(UnsupportedError, match="grants QoS 0"):
            run(script, steps)


@pytest.mark.parametrize("present", [True, False])
def test_resume_demands_the_session(present: bool) -> None:
    def script(packet: Packet) -> tuple[Packet, ...] | None:
        return (Connack(session_present=present),) if isinstance(packet, Connect) else usual(packet)

    async def steps(ctx: CaseContext) -> None:
        await support.resume(ctx, "somebody")

    if present:
        run(script, steps)
    else:
        with pytest.raises(CaseFailureError, match="Session Present 1"):
            run(script, steps)


@pytest.mark.parametrize(("stated", "expected_s"), [(None, 1), (2, 2)])
def test_a_server_keep_alive_is_waited_for_if_it_is_short(stated: int | None, expected_s: int) -> None:
    async def steps(ctx: CaseContext) -> None:
        connack = Connack(properties=Properties(server_keep_alive=stated))
        assert support.imposed_keep_alive(ctx, connack, 1) == expected_s

    run(usual, steps)


@pytest.mark.parametrize("stated", [0, 60])
def test_a_long_server_keep_alive_is_not_waited_for(stated: int) -> None:
    async def steps(ctx: CaseContext) -> None:
        support.imposed_keep_alive(ctx, Connack(properties=Properties(server_keep_alive=stated)), 1)

    with pytest.raises(UnsupportedError, match="too long"):
        run(usual, steps)


def test_a_raw_exchange_returns_what_came_before_the_end() -> None:
    async def steps(ctx: CaseContext) -> None:
        hello = encode(Connect(client_id="a", version=5), 5)
        answer = await support.exchange_raw(ctx, hello + encode(Publish(topic="end"), 5), name="raw")
        assert answer == encode(Connack(), 5)
        assert ctx.sent_raw

    run(usual, steps)


def test_a_raw_exchange_that_is_not_ended_fails() -> None:
    async def steps(ctx: CaseContext) -> None:
        ctx.patience_s = 0.05
        await support.exchange_raw(ctx, encode(Connect(client_id="a", version=5), 5), name="raw")

    with pytest.raises(CaseFailureError, match="still open"):
        run(usual, steps)


def test_the_size_of_a_packet_is_that_of_its_bytes() -> None:
    packet = Publish(topic="t", payload=b"x" * 200)
    assert support.wire_size(packet) == len(encode(packet, 5)) == 1 + 2 + 2 + 1 + 1 + 200

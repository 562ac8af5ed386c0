"""A connection that the broker has ended is closed without a word, whatever was left to send."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from unittest.mock import Mock

import pytest

from assay.conformance.case import CaseContext, load_cases
from assay.conformance.connection import Connection
from assay.conformance.rules import Rule, StepFailureError
from assay.conformance.targets import Endpoint
from assay.conformance.wire import Disconnect, Pingreq, Pingresp, encode


def test_a_lost_transport_is_left_alone() -> None:
    asyncio.run(_close_what_is_lost())


def test_a_marker_that_a_lost_connection_cannot_bring_says_nothing_of_deliveries() -> None:
    """Moquette ended connections now and then, and was accused of messages that it had not delivered."""
    assert asyncio.run(_rule_of_a_missing_marker(lambda _connection: None)) is Rule.STAYS_OPEN
    assert asyncio.run(_rule_of_a_missing_marker(lambda connection: connection.send(Disconnect()))) is Rule.DELIVERY
    assert asyncio.run(_rule_of_a_missing_marker(lambda connection: connection.send_raw(b"\x00"))) is Rule.DELIVERY


async def _rule_of_a_missing_marker(before: Callable[[Connection], None]) -> Rule:
    case = load_cases()["mqtt311/topic/multi-level-wildcard"]
    ctx = CaseContext(case, Endpoint(host="127.0.0.1", port=1), {}, run_token="t", seed=1)
    connection = Connection(ctx, "client", 4)
    connection.connection_made(Mock(spec=asyncio.Transport))
    before(connection)
    connection.connection_lost(None)
    with pytest.raises(StepFailureError) as seen:
        async with ctx.time_limit(10.0):
            await connection.receive_marker(0)
    return seen.value.incident.rule


async def _close_what_is_lost() -> None:
    case = load_cases()["mqtt5/connect/silent-client-is-dropped"]
    ctx = CaseContext(case, Endpoint(host="127.0.0.1", port=1), {}, run_token="t", seed=1)
    connection, transport = Connection(ctx, "client", 5), Mock(spec=asyncio.Transport)
    connection.connection_made(transport)
    connection.connection_lost(None)
    transport.abort.side_effect = AttributeError("'NoneType' object has no attribute 'call_soon'")
    connection.close()
    connection.abort()
    transport.abort.assert_not_called()


def test_a_client_that_did_not_ask_for_it_obeys_a_server_keep_alive_by_pings_that_its_case_does_not_see() -> None:
    """On a slow machine a subscriber that had nothing to send was ended for its silence, and the broker accused."""
    asyncio.run(_obey_a_server_keep_alive())


async def _obey_a_server_keep_alive() -> None:
    case = load_cases()["mqtt5/slow-clients/a-trickling-publish-arrives-whole"]
    ctx = CaseContext(case, Endpoint(host="127.0.0.1", port=1), {}, run_token="t", seed=1)
    connection, transport = Connection(ctx, "client", 5), Mock(spec=asyncio.Transport)
    transport.is_closing.return_value = False
    connection.connection_made(transport)
    ping, answer = encode(Pingreq(), 5), encode(Pingresp(), 5)

    def written() -> list[bytes]:
        return [call.args[0] for call in transport.write.call_args_list]

    connection.keep_alive(600.0)
    assert written() == []
    connection.ping_on(600.0)
    assert written() == [ping]
    barrier = asyncio.create_task(connection.barrier())
    await asyncio.sleep(0)
    assert written() == [ping, ping]
    connection.data_received(answer)  # of the first, which kept the connection alive
    await asyncio.sleep(0)
    assert not barrier.done()
    connection.data_received(answer)
    async with ctx.time_limit(10.0):
        assert await barrier == []
    connection.data_received(answer)
    assert "ANSWERED BEFORE" in ctx.transcript.lines[-1].decoded  # nobody asked for a third one

    connection.ping_on(600.0)
    connection._wake.clear()
    connection.data_received(answer)
    assert not connection._wake.is_set(), "what the case does not see begins no wait anew: it would never end"

    sent, during = len(written()), list[bytes]()

    async def pause() -> None:
        connection.ping_on(600.0)
        during.extend(written()[sent:])

    await connection.send_in_pieces(ping, pause=pause)
    assert during == [ping[:1], ping[:1], ping[1:]]  # nothing came into the packet
    connection.connection_lost(None)

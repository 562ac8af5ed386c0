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
from assay.conformance.wire import Disconnect


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

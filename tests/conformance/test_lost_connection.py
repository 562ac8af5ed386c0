"""A connection that the broker has ended is closed without a word, whatever was left to send."""

from __future__ import annotations

import asyncio
from unittest.mock import Mock

from assay.conformance.case import CaseContext, load_cases
from assay.conformance.connection import Connection
from assay.conformance.targets import Endpoint


def test_a_lost_transport_is_left_alone() -> None:
    asyncio.run(_close_what_is_lost())


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

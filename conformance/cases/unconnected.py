"""What becomes of a connection that begins with something else than CONNECT, for both versions."""

from __future__ import annotations

import asyncio

from assay.conformance.case import CaseContext
from assay.conformance.wire import Packet

UNCONNECTED_LIMIT_S = 24.0
"""A server may leave it to its timer for connections without a CONNECT to end them; 10 s is common."""
_AT_ONCE_S = 5.0


async def expect_end_unconnected(ctx: CaseContext, *packets: Packet, allowed: tuple[type[Packet], ...] = ()) -> None:
    """Each packet is the first of a connection, which must end with no other answer than ``allowed``.

    The standards set no time; an end that only the server's patience can have caused is reported.
    """

    async def one(packet: Packet) -> None:
        connection = await ctx.open(name=packet.type.name.lower())
        began_s = asyncio.get_running_loop().time()
        connection.send(packet)
        await connection.expect_close(allowed=allowed)
        took_s = asyncio.get_running_loop().time() - began_s
        ctx.should(took_s < _AT_ONCE_S, f"{connection.name}: the connection ended only after {took_s:.0f} s")

    await asyncio.gather(*map(one, packets))

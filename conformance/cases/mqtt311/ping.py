"""PINGREQ and keep alive (MQTT 3.1.1, 3.1.2.10 and 3.12)."""

from __future__ import annotations

from assay.conformance.case import CaseContext, case
from assay.conformance.wire import Pingreq, Pingresp


@case(
    "mqtt311/ping/every-pingreq-is-answered",
    clauses=("MQTT-3.12.4-1",),
    mutant="v3-every-second-ping-lost",
)
async def answered(ctx: CaseContext) -> None:
    """Each PINGREQ is answered by one PINGRESP.

    Three PINGREQs are sent in one write; three PINGRESPs come.
    """
    connection = await ctx.connect()
    connection.send(Pingreq(), Pingreq(), Pingreq())
    for _ in range(3):
        await connection.expect(Pingresp)
    await connection.expect_nothing()


@case(
    "mqtt311/ping/silence-beyond-the-keep-alive-ends-the-connection",
    clauses=("MQTT-3.1.2-24",),
    mutant="v3-keep-alive-ignored",
    near_miss="v3-late-keep-alive",
    limit_s=12.0,
)
async def keep_alive(ctx: CaseContext) -> None:
    """A client that is silent for one and a half times its keep alive is disconnected.

    Keep alive is 1 s. Brokers look at their clocks at intervals, so that a few seconds are given.
    """
    connection = await ctx.connect(keep_alive_s=1)
    await connection.expect_close()

"""The plainest things, many times in a row: a broker that does them nearly always disturbs every case now and then.

Where such a case fails, it tells the others that failed for the same reason from those that say something of their own
(:data:`assay.conformance.booking.PLAINEST`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from assay.conformance.case import CaseContext, CaseFunction, case
from assay.conformance.cases.mqtt5.support import publishing
from assay.conformance.connection import Connection
from assay.conformance.wire import Disconnect

_LIMIT_S = 20.0
_BURSTS = 10
_IN_A_BURST = 10
_AT_ONCE = 30
_CONNECTIONS = 300


def _both_versions(
    slug: str, *, in_311: tuple[str, ...], in_5: tuple[str, ...], mutant: str, kills: tuple[str, ...] = ()
) -> Callable[[CaseFunction], CaseFunction]:
    def register(function: CaseFunction) -> CaseFunction:
        for spec, clauses in (("mqtt311", in_311), ("mqtt5", in_5)):
            case(
                f"{spec}/{slug}",
                clauses=tuple(f"MQTT-{clause}" for clause in clauses),
                mutant=mutant,
                kills=kills,
                near_miss="reads-in-small-pieces",
                limit_s=_LIMIT_S,
            )(function)
        return function

    return register


@_both_versions(
    "publish/many-in-a-row-arrive-once",
    in_311=("4.5.0-1", "3.3.2-3", "4.3.1-1", "4.3.2-1", "4.3.3-1"),
    in_5=("4.5.0-1", "3.3.2-3", "4.3.1-1", "4.3.2-1", "4.3.3-1", "4.4.0-1"),
    mutant="confused-loses-some",
    kills=("confused-all-twice", "confused-topics"),
)
async def many_messages(ctx: CaseContext) -> None:
    """Each of many messages reaches its subscriber once, on its topic, in order.

    One client publishes a hundred messages at QoS 0, ten at a time, then ten at QoS 1 and ten at QoS 2, as far as the
    broker takes those; another has the one subscription. None is lost although there is room and time for all.
    """
    topic = ctx.topic()
    subscriber, publisher = await ctx.connect(name="subscriber"), await ctx.connect(name="publisher")
    await subscriber.subscribe(topic, qos=2)
    levels = [qos for qos in (1, 2) if ctx.capabilities.get(f"qos{qos}", True)]
    for number, qos in enumerate([0] * _BURSTS + levels):
        payloads = [f"{number}/{index}".encode() for index in range(_IN_A_BURST)]
        async with publishing(publisher, topic, *payloads, qos=qos):
            for payload in payloads:
                await subscriber.expect_publish(topic, payload)
        await ctx.expect_no_message(publisher, subscriber)


@_both_versions(
    "connect/many-in-a-row-are-served",
    in_311=("3.1.4-4", "3.8.4-1", "3.12.4-1"),
    in_5=("3.1.4-5", "3.8.4-1", "3.12.4-1"),
    mutant="confused-ends-some",
)
async def many_connections(ctx: CaseContext) -> None:
    """Each of many connections that break no rule is accepted, served, and kept until its client leaves.

    Three hundred clients, thirty at a time, connect, subscribe, ping twice, and disconnect.
    """

    async def live(number: int) -> Connection:
        client = await ctx.connect(name=f"client {number}")
        await client.subscribe(ctx.topic(str(number)))
        for _ in range(2):
            await client.barrier()
        return client

    for first in range(0, _CONNECTIONS, _AT_ONCE):
        lives = (live(first + index) for index in range(_AT_ONCE))
        found = await asyncio.gather(*lives, return_exceptions=True)
        for client in found:
            if isinstance(client, BaseException):
                raise client
            client.send(Disconnect())
            client.close()

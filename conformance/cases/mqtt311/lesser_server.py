"""Servers that offer less than the standard describes (MQTT 3.1.1), which cannot announce it."""

from __future__ import annotations

from assay.conformance.case import CaseContext, case
from assay.conformance.cases.mqtt5.support import qos_levels
from assay.conformance.wire import Subscribe, Subscription

LESSER = "reference-lesser"
_IDENTIFIER_REJECTED = 2


@case(
    "mqtt311/lesser-server/wildcard-filters-refused",
    clauses=("MQTT-3.8.3-2",),
    requires=("not wildcards",),
    mutant="lesser-wildcards-granted",
    near_miss="lesser-bad-filter-ends-the-connection",
    judged_on=LESSER,
)
async def wildcard_filters(ctx: CaseContext) -> None:
    """A server that does not do wildcards refuses filters that use them.

    Filters with + and with # are refused, by SUBACK 0x80 or by the end of the connection; one without is granted.
    """
    for ending in ("+", "#", "+/a"):
        connection = await ctx.connect(name=ending)
        connection.send(Subscribe(packet_id=1, subscriptions=(Subscription(filter=ctx.topic(ending)),)))
        await connection.expect_refused_subscription()
    control = await ctx.connect(name="control")
    await control.subscribe(ctx.topic("plain"))


@case(
    "mqtt311/lesser-server/refused-client-id-gets-code-2",
    clauses=("MQTT-3.1.3-9", "MQTT-3.2.2-4", "MQTT-3.2.2-5"),
    requires=("refused_client_id",),
    mutant="lesser-client-id-refused-with-code-5",
    near_miss="v3-late-keep-alive",
    judged_on=LESSER,
)
async def refused_client_id(ctx: CaseContext) -> None:
    """A refused client identifier gets CONNACK code 2, and then the server closes.

    A CONNECT with an identifier that the target refuses, with Clean Session 1 and with 0. CONNACK has code 2 and
    Session Present 0, and the connection ends.
    """
    refused = str(ctx.capabilities["refused_client_id"])
    for clean in (True, False):
        connection = await ctx.open(name=f"clean session {clean:d}")
        connection.send(ctx.connect_packet(client_id=refused, clean=clean))
        code = await connection.expect_refusal(_IDENTIFIER_REJECTED)
        ctx.must(code is not None, f"{connection.name}: expected CONNACK with code 2; the connection just ended")


@case(
    "mqtt311/lesser-server/subscriptions-above-the-maximum-granted-lower",
    clauses=("MQTT-3.8.4-6", "MQTT-3.9.3-2"),
    requires=("not qos2",),
    mutant="v3-maximum-qos-ignored-by-suback",
    near_miss="v3-one-packet-at-a-time",
    judged_on=LESSER,
)
async def granted_lower(ctx: CaseContext) -> None:
    """A server that does not do QoS 2 grants less, and delivers at what it has granted.

    A subscription at QoS 2 is granted at most the server's highest QoS, and messages arrive at the granted one.
    """
    topic = ctx.topic()
    highest = max(qos_levels(ctx))
    connection = await ctx.connect()
    granted = (await connection.subscribe(topic, qos=2))[0]
    ctx.must(granted <= highest, f"expected at most QoS {highest} to be granted; seen {granted}")
    await connection.publish(topic, b"m", qos=highest)
    await connection.expect_publish(topic, b"m", qos=granted)

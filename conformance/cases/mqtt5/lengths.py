"""Variable byte integers that a server sends (MQTT 5.0, 1.5.5)."""

from __future__ import annotations

from assay.conformance.case import CaseContext, case
from assay.conformance.cases.mqtt5.support import wire_size
from assay.conformance.wire import Properties, Publish, Subscription

_EDGES = (127, 128, 16_383, 16_384)
"""Values at which a variable byte integer grows by a byte."""
_AROUND = 8


@case(
    "mqtt5/publish/lengths-are-in-their-shortest-form",
    clauses=("MQTT-1.5.5-1",),
    mutant="v5-long-lengths-sent",
    near_miss="v5-writes-in-pieces",
)
async def shortest_lengths(ctx: CaseContext) -> None:
    """A server writes lengths and identifiers in as few bytes as they need.

    Messages are published whose packets have remaining lengths just below and above the values at which a length
    grows by a byte, as far as the server takes packets that large. Each comes in its shortest form. Where the server
    takes subscription identifiers, messages come under identifiers with those values, too.
    """
    client = await ctx.connect(name="client")
    topic = ctx.topic()
    await client.subscribe(topic)
    head_bytes = wire_size(Publish(topic=topic)) - 2
    for edge in _EDGES[::2]:
        if ctx.room_bytes(edge + _AROUND) < edge + _AROUND:
            continue
        for length in range(edge - _AROUND, edge + _AROUND):
            payload = bytes(length - head_bytes)
            await client.publish(topic, payload)
            await client.expect_publish(topic, payload)
    if not ctx.capabilities["subscription_identifiers"]:
        return
    for identifier in _EDGES:
        other = ctx.topic(str(identifier))
        properties = Properties(subscription_identifier=(identifier,))
        await client.subscribe(Subscription(filter=other), properties=properties)
        await client.publish(other, b"m")
        message = await client.expect_publish(other, b"m")
        seen = message.properties.subscription_identifier
        ctx.must(seen == (identifier,), f"client: expected the subscription identifier {identifier}; seen {seen}")

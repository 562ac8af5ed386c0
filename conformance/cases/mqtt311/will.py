"""The will (MQTT 3.1.1, 3.1.2.5 to 3.1.2.7)."""

from __future__ import annotations

from assay.conformance.case import CaseContext, case
from assay.conformance.cases.mqtt5.support import drained, only_is_retained
from assay.conformance.rules import Rule
from assay.conformance.wire import Will
from assay.conformance.wire.encode import raw_packet, string, uint16

_ENDS_WITHIN_S = 2.0
"""No clause says how soon; a broker that does not end it then is not judged by its wills."""
_RESERVED_TYPE = 0x00
_PUBLISH_QOS_3 = 0x36


@case(
    "mqtt311/will/published-when-the-connection-breaks",
    clauses=("MQTT-3.1.2-8", "MQTT-3.1.2-16"),
    mutant="v3-will-not-published",
)
async def broken(ctx: CaseContext) -> None:
    """The will is published when the connection ends without DISCONNECT.

    Once the client's connection is reset, once it is closed in order. A watcher gets each will, with RETAIN 0.
    """
    topic = ctx.topic()
    watcher = await ctx.connect(name="watcher")
    await watcher.subscribe(topic)
    for name in ("reset", "closed"):
        client = await ctx.connect(name=name, will=Will(topic=topic, payload=name.encode()))
        if name == "reset":
            client.abort()
        else:
            client.end_stream()
        await watcher.expect_publish(topic, name.encode(), retain=False)


@case(
    "mqtt311/will/discarded-by-disconnect",
    clauses=("MQTT-3.14.4-3", "MQTT-3.1.2-10"),
    mutant="v3-will-published-after-disconnect",
)
async def disconnected(ctx: CaseContext) -> None:
    """DISCONNECT discards the will.

    A client with a will sends DISCONNECT, and the broker has ended the connection. A watcher gets nothing.
    """
    topic = ctx.topic()
    watcher = await ctx.connect(name="watcher")
    await watcher.subscribe(topic)
    client = await ctx.connect(name="client", will=Will(topic=topic, payload=b"must not arrive"))
    await client.disconnect()
    await ctx.expect_no_message(await ctx.connect(name="other"), watcher)


@case(
    "mqtt311/will/published-after-a-protocol-violation",
    clauses=("MQTT-3.1.2-8", "MQTT-4.8.0-1"),
    mutant="v3-no-will-after-violation",
)
async def violation(ctx: CaseContext) -> None:
    """The will is published when the broker ends the connection because of a protocol violation.

    Clients with a will send a PUBLISH with QoS 3 and a packet of the reserved type 0. A watcher gets the will of each
    whose connection the broker ends; whether it ends both is judged by other cases.
    """
    topic = ctx.topic()
    watcher = await ctx.connect(name="watcher")
    await watcher.subscribe(topic)
    violations = {
        "qos 3": raw_packet(_PUBLISH_QOS_3, string(ctx.topic("other")) + uint16(1)),
        "reserved type": raw_packet(_RESERVED_TYPE),
    }
    ended = False
    for name, data in violations.items():
        client = await ctx.connect(name=name, will=Will(topic=topic, payload=name.encode()))
        client.send_raw(data)
        await drained(client, within_s=_ENDS_WITHIN_S)
        if client.closed:
            ended = True
            await watcher.expect_publish(topic, name.encode())
        else:
            await client.disconnect()
    if not ended:
        ctx.unsupported("the broker ends the connection at none of the violations tried")


@case(
    "mqtt311/will/published-at-its-qos",
    clauses=("MQTT-3.1.2-8", "MQTT-3.8.4-6"),
    requires=("qos2",),
    mutant="v3-will-qos-lost",
    near_miss="v3-grants-at-most-qos-1",
)
async def qos(ctx: CaseContext) -> None:
    """The will is published at its own QoS.

    Wills at QoS 0, 1 and 2 reach a watcher with a subscription at QoS 2 as such.
    """
    topic = ctx.topic()
    watcher = await ctx.connect(name="watcher")
    codes = await watcher.subscribe(topic, qos=2)
    for level in (0, 1, 2):
        client = await ctx.connect(name=f"qos {level}", will=Will(topic=topic, payload=b"will", qos=level))
        client.abort()
        await watcher.expect_publish(topic, b"will", qos=min(level, codes[0]))


@case(
    "mqtt311/will/retained-if-asked",
    clauses=("MQTT-3.1.2-17", "MQTT-3.1.2-16"),
    requires=("retain", "qos1"),
    mutant="v3-will-retain-lost",
)
async def retain(ctx: CaseContext) -> None:
    """A will with Will Retain 1 becomes the retained message of its topic, one with 0 does not.

    Both wills are published; a client that subscribes afterwards gets the first only.
    """
    kept, passing = ctx.topic("kept"), ctx.topic("passing")
    watcher = await ctx.connect(name="watcher")
    await watcher.subscribe(kept, passing)
    for topic, keep in ((kept, True), (passing, False)):
        client = await ctx.connect(name=topic[-4:], will=Will(topic=topic, payload=b"will", qos=1, retain=keep))
        client.abort()
        await watcher.expect_publish(topic, b"will", retain=False)
    await only_is_retained(ctx, watcher, [kept, passing], kept, b"will")


@case(
    "mqtt311/will/published-when-the-keep-alive-passes",
    clauses=("MQTT-3.1.2-8",),
    mutant="v3-no-will-on-keep-alive",
    near_miss="v3-late-keep-alive",
    limit_s=12.0,
)
async def keep_alive(ctx: CaseContext) -> None:
    """The will is published when the client stays silent beyond its keep alive.

    A client with a keep alive of 1 s and a will sends nothing more. The broker ends its connection and a watcher gets
    the will; brokers look at their clocks at intervals, so that a few seconds are given.
    """
    topic = ctx.topic()
    watcher = await ctx.connect(name="watcher", keep_alive_s=60)
    await watcher.subscribe(topic)
    client = await ctx.connect(name="silent", keep_alive_s=1, will=Will(topic=topic, payload=b"silent"))
    await client.expect_close(step=Rule.SILENCE)
    await watcher.expect_publish(topic, b"silent")


@case(
    "mqtt311/will/not-sent-by-the-next-connection-without-one",
    clauses=("MQTT-3.1.2-12", "MQTT-3.1.2-10"),
    requires=("persistent_sessions",),
    mutant="v3-will-outlives-its-connection",
)
async def next_connection(ctx: CaseContext) -> None:
    """The will belongs to one connection, not to the session.

    A client with a kept session leaves in order, discarding its will, comes back without a will, and its connection is
    then reset. A watcher gets nothing.
    """
    topic = ctx.topic()
    watcher = await ctx.connect(name="watcher")
    await watcher.subscribe(topic)
    first = await ctx.connect(name="first", clean=False, will=Will(topic=topic, payload=b"must not arrive"))
    await first.disconnect()
    second = await ctx.connect(name="second", client_id=first.client_id, clean=False)
    second.abort()
    # The broker has noticed the reset once a third connection takes its place.
    third = await ctx.connect(name="third", client_id=first.client_id, clean=False)
    await third.expect_nothing()
    await ctx.expect_no_message(await ctx.connect(name="other"), watcher)

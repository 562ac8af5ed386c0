"""What a client may not do: bytes that make no packet, filters that are none, wills that could be no PUBLISH.

And what it may do, though not every server has room for it.
"""

from __future__ import annotations

import asyncio

from assay.conformance.case import CaseContext, case
from assay.conformance.cases.mqtt5.support import drained, ends, imposed_keep_alive
from assay.conformance.wire import (
    Connack,
    Disconnect,
    Properties,
    Publish,
    Suback,
    Subscription,
    Will,
    describe,
    encode,
)
from assay.conformance.wire.encode import raw_packet, string, uint16

_UNSUBSCRIBE = 0xA2
_SUBSCRIBE = 0x82
_GRACE_S = 6.0
"""For servers that look at their timers only now and then."""


@case(
    "mqtt311/ping/bytes-that-make-no-packet-keep-nothing-alive",
    clauses=("MQTT-3.1.2-24",),
    level="SHOULD",
    mutant="keep-alive-fed-by-bytes",
    near_miss="v3-late-keep-alive",
    limit_s=14.0,
)
@case(
    "mqtt5/connect/bytes-that-make-no-packet-keep-nothing-alive",
    clauses=("MQTT-3.1.2-22",),
    level="SHOULD",
    mutant="keep-alive-fed-by-bytes",
    near_miss="v5-closes-silently",
    limit_s=14.0,
)
async def trickle(ctx: CaseContext) -> None:
    """The keep alive is about packets: a client that sends single bytes of one and never finishes it is disconnected.

    Keep alive is 1 s. A PUBLISH of 200 bytes comes a byte at a time, one each 0.4 s, so that no packet comes for much
    longer than 1.5 times the keep alive. The standard has the server count Control Packets. It does not say what of
    one that is still arriving, which a slow link may hold up, so a broker that counts bytes is reported and does not
    fail.
    """
    connection = await ctx.connect(keep_alive_s=1)
    in_force_s = imposed_keep_alive(ctx, connection.connack, 1)
    packet = encode(Publish(topic=ctx.topic(), payload=b"x" * 200), connection.version)
    loop = asyncio.get_running_loop()
    until = loop.time() + 1.5 * in_force_s + _GRACE_S
    for byte in packet:
        if connection.closed or loop.time() > until:
            break
        connection.send_raw(bytes((byte,)))
        await drained(connection, within_s=0.4)
    ctx.should(connection.closed, "bytes that make no packet keep the connection alive")


@case(
    "mqtt311/unsubscribe/malformed-filters-end-the-connection",
    clauses=("MQTT-4.7.1-2", "MQTT-4.7.1-3", "MQTT-4.7.3-1", "MQTT-4.8.0-1"),
    level="SHOULD",
    mutant="v3-unsubscribe-filters-unchecked",
    near_miss="v3-bad-filters-get-code-80",
)
async def unsubscribe_malformed(ctx: CaseContext) -> None:
    """What is no topic filter cannot be unsubscribed from, either.

    UNSUBSCRIBEs name nothing, a filter with a wildcard inside a level, and one with # before the end. No such
    subscription can exist, and UNSUBACK has no code to say so: the connection should end, as for any violation. How
    servers react to malformed filters is argued over, so one that acknowledges is reported and does not fail.
    """
    for levels in ("", "a+/b", "a#", "a/#/b"):
        connection = await ctx.connect(name=levels or "empty")
        topic_filter = ctx.topic(levels) if levels else ""
        connection.send_raw(raw_packet(_UNSUBSCRIBE, uint16(1) + string(topic_filter)))
        ctx.should(await ends(connection), f"{levels!r}: expected the end of the connection; it was acknowledged")


@case(
    "mqtt311/subscribe/deep-filters-are-answered",
    clauses=("MQTT-3.8.4-1",),
    level="SHOULD",
    mutant="deep-filters-end-the-connection",
    near_miss="v3-late-keep-alive",
)
@case(
    "mqtt5/subscribe/deep-filters-are-answered",
    clauses=("MQTT-3.8.4-1",),
    level="SHOULD",
    mutant="deep-filters-end-the-connection",
    near_miss="v5-closes-silently",
)
async def deep_filters(ctx: CaseContext) -> None:
    """A filter of many levels breaks no rule: a server that does not want it says so in SUBACK.

    A SUBSCRIBE names an ordinary filter and one of 400 levels. The answer is a SUBACK; the second filter may be
    refused in it. A server may end a connection when it is short of something, so one that does is reported and does
    not fail.
    """
    connection = await ctx.connect()
    options = b"\0"
    body = uint16(7) + (b"\0" if connection.version >= 5 else b"")
    body += b"".join(string(one) + options for one in (ctx.topic("plain"), ctx.topic("/".join("d" * 400))))
    packet = raw_packet(_SUBSCRIBE, body)
    connection.send_raw(packet)
    answer = await connection.receive("SUBACK")
    if answer is None or isinstance(answer, Disconnect):
        ctx.offer.noted(packet)
        ctx.should(
            bool(ctx.offer.exceeded), "expected SUBACK; the broker ended the connection over a filter of 400 levels"
        )
        return
    ctx.must(isinstance(answer, Suback) and answer.packet_id == 7, f"expected SUBACK 7; seen {describe(answer)}")


@case(
    "mqtt5/will/response-topic-with-wildcard-refused",
    clauses=("MQTT-3.3.2-14",),
    level="SHOULD",
    mutant="v5-will-response-topic-unchecked",
    near_miss="v5-closes-silently",
)
async def will_response_topic(ctx: CaseContext) -> None:
    """A will is a message, so its Response Topic has no wildcard, either.

    CONNECTs whose wills have a response topic with + and with # should be refused; one with a topic name is accepted.
    The standard does not say when a server must look at it, so a broker that accepts is reported and does not fail.
    """
    for level in ("+", "#"):
        properties = Properties(response_topic=ctx.topic(f"reply/{level}"))
        connection = await ctx.open(name=level)
        connection.send(ctx.connect_packet(will=Will(topic=ctx.topic("will"), payload=b"w", properties=properties)))
        answer = await connection.receive("CONNACK or the end of the connection")
        accepted = isinstance(answer, Connack) and answer.reason_code == 0
        ctx.should(not accepted, f"{level}: expected the connection to be refused; it was accepted")
    legal = Properties(response_topic=ctx.topic("reply"))
    await ctx.connect(name="legal", will=Will(topic=ctx.topic("will"), payload=b"w", properties=legal))


@case(
    "mqtt5/session/disconnect-may-ask-after-a-granted-0",
    clauses=("MQTT-3.14.4-3",),
    mutant="v5-disconnect-judged-by-the-grant",
    near_miss="v5-connack-says-more",
    settings={"mqtt": {"max_session_expiry_s": 0}},
)
async def expiry_after_a_granted_0(ctx: CaseContext) -> None:
    """A DISCONNECT with a Session Expiry Interval is legal after a CONNECT that asked for one, whatever was granted.

    Only 0 in CONNECT makes it a protocol error (3.14.2.2.2). A client with a will asks for 100 s and is granted 0; its
    DISCONNECT, a normal one, asks for 50 s. It is taken as what it is: no DISCONNECT answers it, and the will is
    discarded.
    """
    topic = ctx.topic("will")
    watcher = await ctx.connect(name="watcher")
    await watcher.subscribe(Subscription(filter=topic))
    asked = Properties(session_expiry_interval=100)
    client = await ctx.connect(name="client", properties=asked, will=Will(topic=topic, payload=b"will"))
    granted = client.connack.properties.session_expiry_interval
    ctx.must(granted == 0, f"client: expected a granted Session Expiry Interval of 0; seen {granted}")
    client.send(Disconnect(properties=Properties(session_expiry_interval=50)))
    seen = await client.expect_close()
    ctx.must(not seen, f"client: expected the end alone; seen {'; '.join(map(describe, seen))}")
    await ctx.expect_no_message(await ctx.connect(name="control"), watcher)

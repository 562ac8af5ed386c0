"""Servers that offer less than the standard describes: what they announce, and what they do about more (MQTT 5.0)."""

from __future__ import annotations

from assay.conformance.case import CaseContext, case
from assay.conformance.cases.mqtt5.support import (
    LASTING,
    TOPIC_ALIAS_INVALID,
    expect_error,
    pass_time,
    qos_levels,
    wire_size,
)
from assay.conformance.connection import Connection
from assay.conformance.wire import (
    NO_PROPERTIES,
    Connack,
    Disconnect,
    Packet,
    Pingreq,
    Pingresp,
    Properties,
    Puback,
    Publish,
    Pubrec,
    Suback,
    Subscribe,
    Subscription,
    Will,
    describe,
)

LESSER = "reference-lesser"
CLIENT_IDENTIFIER_NOT_VALID = 0x85
RETAIN_NOT_SUPPORTED = 0x9A
QOS_NOT_SUPPORTED = 0x9B
SHARED_NOT_SUPPORTED = 0x9E
IDENTIFIERS_NOT_SUPPORTED = 0xA1
WILDCARDS_NOT_SUPPORTED = 0xA2
_PACKET_TOO_LARGE = 0x95
_LARGEST_TRIED_BYTES = 4_000_000
_LONGEST_WAIT_S = 5
_GRACE_S = 6.0
"""For servers that look at their timers only every few seconds."""
_FIRST_FAILURE = 0x80


def _highest_qos(ctx: CaseContext) -> int:
    return max(qos_levels(ctx))


def _refusal_code(packet: Packet | None) -> int | None:
    """The code by which a publish or connection was refused; None for the mere end, or for an acceptance."""
    if isinstance(packet, Puback | Pubrec | Disconnect | Connack) and packet.reason_code >= _FIRST_FAILURE:
        return packet.reason_code
    return None


@case(
    "mqtt5/lesser-server/maximum-qos-is-announced",
    clauses=("MQTT-3.2.2-9",),
    mutant="lesser-maximum-qos-not-announced",
    near_miss="v5-closes-silently",
    judged_on=LESSER,
)
async def maximum_qos_announced(ctx: CaseContext) -> None:
    """A server that does not take QoS 1 or QoS 2 says so in CONNACK.

    The Maximum QoS of the CONNACK is 0, 1 or absent, which means 2. A client publishes at every QoS up to it: none is
    refused for its QoS, by 0x9B or by the end of the connection.
    """
    for qos in (1, 2):
        connection = await ctx.connect(name=f"qos {qos}")
        maximum = connection.connack.properties.maximum_qos
        if qos > (2 if maximum is None else maximum):
            continue
        packet_id = connection.next_packet_id()
        connection.send(Publish(topic=ctx.topic(), payload=b"m", qos=qos, packet_id=packet_id))
        answer = await connection.receive("PUBACK" if qos == 1 else "PUBREC")
        announced = "no Maximum QoS" if maximum is None else f"Maximum QoS {maximum}"
        ctx.must(
            answer is not None and _refusal_code(answer) != QOS_NOT_SUPPORTED,
            f"{connection.name}: CONNACK has {announced}, but the server refuses: {answer and describe(answer)}",
        )


@case(
    "mqtt5/lesser-server/subscriptions-at-any-qos-accepted",
    clauses=("MQTT-3.2.2-10",),
    requires=("not qos2",),
    mutant="v5-maximum-qos-refuses-subscriptions",
    near_miss="v5-no-reason-texts",
    judged_on=LESSER,
)
async def any_qos_subscribed(ctx: CaseContext) -> None:
    """A server with a low Maximum QoS accepts subscriptions at QoS 0, 1 and 2 all the same.

    Three filters are subscribed to at QoS 0, 1 and 2. None is refused, none is granted more than the maximum, and
    messages arrive at the QoS that was granted.
    """
    connection = await ctx.connect()
    topics = [ctx.topic(f"q{qos}") for qos in (0, 1, 2)]
    highest = _highest_qos(ctx)
    granted = await connection.subscribe(*(Subscription(filter=topics[qos], qos=qos) for qos in (0, 1, 2)))
    ctx.must(max(granted) <= highest, f"expected at most QoS {highest} to be granted; seen {granted}")
    for topic, qos in zip(topics, granted, strict=True):
        await connection.publish(topic, b"m", qos=highest)
        await connection.expect_publish(topic, b"m", qos=qos)


@case(
    "mqtt5/lesser-server/publish-above-maximum-qos-ends-the-connection",
    clauses=("MQTT-3.2.2-11", "MQTT-4.13.1-1"),
    requires=("not qos2",),
    mutant="lesser-qos-above-maximum-taken",
    near_miss="v5-closes-silently",
    judged_on=LESSER,
)
async def publish_above_maximum(ctx: CaseContext) -> None:
    """A PUBLISH above the announced Maximum QoS is a protocol error.

    PUBLISH packets at each QoS above the maximum end their connections, best after DISCONNECT 0x9B, and reach nobody.
    """
    topic = ctx.topic()
    watcher = await ctx.connect(name="watcher")
    await watcher.subscribe(topic)
    for qos in range(_highest_qos(ctx) + 1, 3):
        connection = await ctx.connect(name=f"qos {qos}")
        connection.send(Publish(topic=topic, payload=b"too high", qos=qos, packet_id=1))
        await expect_error(ctx, connection, QOS_NOT_SUPPORTED)
    publisher = await ctx.connect(name="publisher")
    await _expect_no_message(ctx, publisher, watcher)


async def _expect_no_message(ctx: CaseContext, publisher: Connection, watcher: Connection) -> None:
    for packet in await ctx.messages_before_marker(publisher, watcher, qos=0):
        ctx.fail(f"{watcher.name}: expected no message; seen {describe(packet)}")


async def _expect_will_refused(ctx: CaseContext, will: Will, code: int, *, name: str) -> None:
    connection = await ctx.open(name=name)
    connection.send(ctx.connect_packet(will=will))
    seen = await connection.expect_refusal()
    shown = "no CONNACK" if seen is None else f"CONNACK {seen:#04x}"
    ctx.should(seen == code, f"{name}: expected CONNACK {code:#04x}; seen {shown}")


@case(
    "mqtt5/lesser-server/will-above-maximum-qos-refused",
    clauses=("MQTT-3.2.2-12",),
    requires=("not qos2",),
    mutant="lesser-will-above-maximum-qos-taken",
    near_miss="v5-closes-silently",
    judged_on=LESSER,
)
async def will_above_maximum(ctx: CaseContext) -> None:
    """A CONNECT whose will is above the Maximum QoS is refused.

    CONNECTs with a will at each QoS above the maximum are refused, best by 0x9B; a will at the maximum is taken.
    """
    highest = _highest_qos(ctx)
    for qos in range(highest + 1, 3):
        will = Will(topic=ctx.topic("will"), payload=b"w", qos=qos)
        await _expect_will_refused(ctx, will, QOS_NOT_SUPPORTED, name=f"qos {qos}")
    control = await ctx.connect(will=Will(topic=ctx.topic("will"), payload=b"w", qos=highest), name="control")
    await control.disconnect()


@case(
    "mqtt5/lesser-server/retained-will-refused",
    clauses=("MQTT-3.2.2-13",),
    requires=("not retain",),
    mutant="lesser-retained-will-taken",
    near_miss="v5-closes-silently",
    judged_on=LESSER,
)
async def retained_will(ctx: CaseContext) -> None:
    """A CONNECT with a retained will is refused by a server without retained messages.

    The CONNECT is refused, best by 0x9A; the same will without will retain is taken.
    """
    will = Will(topic=ctx.topic("will"), payload=b"w", retain=True)
    await _expect_will_refused(ctx, will, RETAIN_NOT_SUPPORTED, name="retained")
    control = await ctx.connect(will=Will(topic=will.topic, payload=b"w"), name="control")
    await control.disconnect()


@case(
    "mqtt5/lesser-server/retained-publish-ends-the-connection",
    clauses=("MQTT-3.2.2-14", "MQTT-4.13.1-1"),
    requires=("not retain",),
    mutant="lesser-retained-publish-taken",
    near_miss="v5-closes-silently",
    judged_on=LESSER,
)
async def retained_publish(ctx: CaseContext) -> None:
    """A PUBLISH with RETAIN is a protocol error on a server that has announced Retain Available 0.

    Retained messages, one with a payload and one without, end their connections, best after DISCONNECT 0x9A.
    """
    for payload in (b"keep", b""):
        connection = await ctx.connect(name=f"{len(payload)} bytes")
        connection.send(Publish(topic=ctx.topic(), payload=payload, retain=True))
        await expect_error(ctx, connection, RETAIN_NOT_SUPPORTED)


async def _expect_subscription_refused(
    ctx: CaseContext, filter_: str, code: int, *, name: str, properties: Properties = NO_PROPERTIES
) -> None:
    """By the end of the connection or by a failure code in SUBACK, best by ``code``."""
    connection = await ctx.connect(name=name)
    connection.send(Subscribe(packet_id=1, subscriptions=(Subscription(filter=filter_),), properties=properties))
    for packet in await connection.expect_refused_subscription():
        codes = packet.reason_codes if isinstance(packet, Suback) else (getattr(packet, "reason_code", 0),)
        ctx.should(code in codes, f"{name}: expected the code {code:#04x}; seen {describe(packet)}")


@case(
    "mqtt5/lesser-server/wildcard-filters-refused",
    clauses=("MQTT-4.13.1-1",),
    requires=("not wildcards",),
    mutant="lesser-wildcards-granted",
    near_miss="lesser-filters-refused-by-suback",
    judged_on=LESSER,
)
async def wildcard_filters(ctx: CaseContext) -> None:
    """A filter with wildcards is refused by a server that has announced that it takes none.

    Filters with + and # are refused, by SUBACK 0xA2 or by DISCONNECT 0xA2 and the end of the connection. A filter
    without wildcards is granted.
    """
    for ending in ("+", "#"):
        await _expect_subscription_refused(ctx, ctx.topic(ending), WILDCARDS_NOT_SUPPORTED, name=ending)
    control = await ctx.connect(name="control")
    await control.subscribe(ctx.topic("plain"))


@case(
    "mqtt5/lesser-server/shared-filters-refused",
    clauses=("MQTT-4.13.1-1",),
    requires=("not shared",),
    mutant="lesser-shared-granted",
    near_miss="lesser-filters-refused-by-suback",
    judged_on=LESSER,
)
async def shared_filters(ctx: CaseContext) -> None:
    """A shared subscription is refused by a server that has announced that it has none.

    A $share filter is refused, by SUBACK 0x9E or by DISCONNECT 0x9E and the end of the connection.
    """
    await _expect_subscription_refused(ctx, f"$share/group/{ctx.topic()}", SHARED_NOT_SUPPORTED, name="shared")


@case(
    "mqtt5/lesser-server/subscription-identifiers-refused",
    clauses=("MQTT-4.13.1-1",),
    requires=("not subscription_identifiers",),
    mutant="lesser-subscription-identifiers-taken",
    near_miss="v5-closes-silently",
    judged_on=LESSER,
)
async def subscription_identifiers(ctx: CaseContext) -> None:
    """A SUBSCRIBE with an identifier is refused by a server that has announced that it takes none.

    It is refused, by SUBACK 0xA1 or by DISCONNECT 0xA1 and the end of the connection.
    """
    properties = Properties(subscription_identifier=(7,))
    await _expect_subscription_refused(
        ctx, ctx.topic(), IDENTIFIERS_NOT_SUPPORTED, name="identifier", properties=properties
    )


@case(
    "mqtt5/lesser-server/packet-over-the-maximum-ends-the-connection",
    clauses=("MQTT-3.2.2-15", "MQTT-4.13.1-1"),
    requires=("maximum_packet_size",),
    mutant="lesser-packet-size-unchecked",
    near_miss="v5-closes-silently",
    judged_on=LESSER,
)
async def packet_size(ctx: CaseContext) -> None:
    """The server's Maximum Packet Size is exact.

    A PUBLISH of exactly the announced size is delivered; one byte more ends the connection, best after DISCONNECT
    0x95, and reaches nobody.
    """
    maximum = int(ctx.capabilities["maximum_packet_size"])
    if maximum > _LARGEST_TRIED_BYTES:
        ctx.unsupported(f"the server takes packets of {maximum} bytes, more than this case sends")
    topic = ctx.topic()
    watcher = await ctx.connect(name="watcher")
    await watcher.subscribe(topic)
    packet = Publish(topic=topic, payload=bytes(maximum))
    exact = Publish(topic=topic, payload=bytes(2 * maximum - wire_size(packet)))
    ctx.must(wire_size(exact) == maximum, f"the case has made a packet of {wire_size(exact)} bytes")
    connection = await ctx.connect(name="client")
    connection.send(exact)
    await watcher.expect_publish(topic, exact.payload)
    connection.send(Publish(topic=topic, payload=exact.payload + b"x"))
    await expect_error(ctx, connection, _PACKET_TOO_LARGE)
    publisher = await ctx.connect(name="publisher")
    await _expect_no_message(ctx, publisher, watcher)


@case(
    "mqtt5/lesser-server/topic-alias-where-none-is-allowed-refused",
    clauses=("MQTT-3.2.2-18", "MQTT-4.13.1-1"),
    requires=("not topic_alias_maximum",),
    mutant="lesser-topic-aliases-taken",
    near_miss="v5-closes-silently",
    judged_on=LESSER,
)
async def topic_alias(ctx: CaseContext) -> None:
    """A topic alias is an error on a server that announces no Topic Alias Maximum.

    A PUBLISH with its topic and the alias 1 ends the connection, best after DISCONNECT 0x94, and reaches nobody.
    """
    topic = ctx.topic()
    watcher = await ctx.connect(name="watcher")
    await watcher.subscribe(topic)
    connection = await ctx.connect(name="client")
    connection.send(Publish(topic=topic, payload=b"aliased", properties=Properties(topic_alias=1)))
    await expect_error(ctx, connection, TOPIC_ALIAS_INVALID)
    publisher = await ctx.connect(name="publisher")
    await _expect_no_message(ctx, publisher, watcher)


@case(
    "mqtt5/lesser-server/server-keep-alive-is-in-force",
    clauses=("MQTT-3.1.2-22",),
    requires=("server_keep_alive",),
    mutant="lesser-server-keep-alive-not-applied",
    near_miss="v5-closes-silently",
    judged_on=LESSER,
    limit_s=20.0,
)
async def server_keep_alive(ctx: CaseContext) -> None:
    """A Server Keep Alive takes the place of what the client asked for.

    A client with a will asks for 60 s and is told less. It keeps silent: after one and a half times the server's value
    (and some seconds of grace) the connection has ended and the will is published. Another client, which pings in
    time, is still connected then.
    """
    topic = ctx.topic("will")
    silent = await ctx.connect(name="silent", keep_alive_s=60, will=Will(topic=topic, payload=b"silent"))
    in_force_s = silent.connack.properties.server_keep_alive
    if in_force_s is None or not 0 < in_force_s <= _LONGEST_WAIT_S:
        ctx.unsupported(f"the server imposes a keep alive of {in_force_s} s on this client")
    watcher = await ctx.connect(name="watcher", keep_alive_s=60)
    await watcher.subscribe(topic)
    waited_s = 0.0
    while not silent.closed and waited_s < 1.5 * in_force_s + _GRACE_S:
        await pass_time(ctx, in_force_s / 3)
        waited_s += in_force_s / 3
        watcher.send(Pingreq())
        await watcher.expect(Pingresp, skipping=(Publish,))
    ctx.must(silent.closed, f"silent: still connected after {waited_s:.1f} s of a keep alive of {in_force_s} s")
    await watcher.expect_publish(topic, b"silent")


@case(
    "mqtt5/lesser-server/refused-client-id-ends-the-connection",
    clauses=("MQTT-3.1.3-8", "MQTT-3.2.2-6", "MQTT-3.2.2-7"),
    requires=("refused_client_id",),
    mutant="v5-refused-connection-stays-open",
    near_miss="v5-closes-silently",
    judged_on=LESSER,
)
async def refused_client_id(ctx: CaseContext) -> None:
    """A server that refuses a client identifier may say 0x85, and closes.

    A CONNECT with an identifier that the target refuses. The connection ends; a CONNACK before the end refuses and has
    Session Present 0, and should say 0x85.
    """
    connection = await ctx.open()
    packet = ctx.connect_packet(client_id=str(ctx.capabilities["refused_client_id"]), clean=False, properties=LASTING)
    connection.send(packet)
    code = await connection.expect_refusal()
    fitting = code in (None, CLIENT_IDENTIFIER_NOT_VALID)
    ctx.should(fitting, f"expected CONNACK 0x85; seen {code if code is None else hex(code)}")

"""Quality of service: the acknowledgements of QoS 1 and 2 in both directions (MQTT 5.0, 3.4 to 3.7 and 4.3)."""

from __future__ import annotations

from assay.conformance.case import CaseContext, case
from assay.conformance.cases.mqtt5.support import (
    delivered,
    ends,
    meanwhile,
    pass_time,
    publish_all,
    publishing,
    subscribe_at,
    under_way,
)
from assay.conformance.wire import (
    Properties,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    Subscription,
    describe,
)

_SUCCESS_CODES = (0x00, 0x10)
"""Success, and success that reached no subscriber."""
_PUBCOMP_CODES = (0x00, 0x92)


@case(
    "mqtt5/qos/qos1-publish-gets-puback",
    clauses=("MQTT-4.3.2-4", "MQTT-2.2.1-5", "MQTT-3.3.4-1", "MQTT-3.4.2-1"),
    requires=("qos1",),
    mutant="v5-puback-identifier-wrong",
    near_miss="v5-puback-0x00-without-subscribers",
)
async def puback(ctx: CaseContext) -> None:
    """A QoS 1 PUBLISH is answered by one PUBACK with its packet identifier.

    Identifiers 1, 256 and 65535 are used, without any subscriber. Each PUBACK has the identifier of its PUBLISH and
    says success; 0x10, no matching subscribers, is a success too.
    """
    connection = await ctx.connect()
    for packet_id in (1, 256, 65_535):
        connection.send(Publish(topic=ctx.topic(), payload=b"1", qos=1, packet_id=packet_id))
        ack = await connection.expect(Puback)
        ctx.must(
            ack.packet_id == packet_id and ack.reason_code in _SUCCESS_CODES,
            f"expected PUBACK {packet_id} with success; seen {describe(ack)}",
        )
    await connection.expect_nothing()


@case(
    "mqtt5/qos/qos2-publish-runs-to-pubcomp",
    clauses=(
        "MQTT-4.3.3-8",
        "MQTT-4.3.3-11",
        "MQTT-2.2.1-5",
        "MQTT-3.5.2-1",
        "MQTT-3.7.2-1",
        "MQTT-3.3.4-1",
        "MQTT-3.2.2-9",
    ),
    requires=("qos2",),
    mutant="v5-qos2-acknowledged-as-qos1",
    near_miss="v5-puback-0x00-without-subscribers",
)
async def qos2_exchange(ctx: CaseContext) -> None:
    """A QoS 2 PUBLISH is answered by PUBREC, and its PUBREL by PUBCOMP.

    Each answer has the packet identifier of the PUBLISH and says success. A subscriber gets the message exactly once.
    """
    topic = ctx.topic()
    subscriber = await ctx.connect(name="subscriber")
    await subscriber.subscribe(topic)
    connection = await ctx.connect(name="publisher")
    connection.send(Publish(topic=topic, payload=b"2", qos=2, packet_id=513))
    pubrec = await connection.expect(Pubrec)
    ctx.must(
        pubrec.packet_id == 513 and pubrec.reason_code in _SUCCESS_CODES,
        f"expected PUBREC 513 with success; seen {describe(pubrec)}",
    )
    connection.send(Pubrel(packet_id=513))
    pubcomp = await connection.expect(Pubcomp)
    ctx.must(pubcomp.packet_id == 513 and pubcomp.reason_code == 0, f"expected PUBCOMP 513; seen {describe(pubcomp)}")
    found = await delivered(ctx, connection, subscriber, at_least=1)
    ctx.must(len(found) == 1, f"subscriber: expected the message once; seen {len(found)} times")


@case(
    "mqtt5/qos/qos2-repeat-is-not-delivered-again",
    clauses=("MQTT-4.3.3-10",),
    requires=("qos2",),
    mutant="v5-qos2-repeat-delivered",
    near_miss="v5-puback-0x00-without-subscribers",
)
async def qos2_repeat(ctx: CaseContext) -> None:
    """Until PUBREL, a repeated QoS 2 PUBLISH is answered by PUBREC and delivered no second time.

    The same PUBLISH is sent once without and once with DUP, before PUBREL. Each gets a PUBREC; the subscriber gets
    the message once.
    """
    topic = ctx.topic()
    subscriber = await ctx.connect(name="subscriber")
    await subscriber.subscribe(topic)
    connection = await ctx.connect(name="publisher")
    for dup in (False, True):
        connection.send(Publish(topic=topic, payload=b"once", qos=2, packet_id=5, dup=dup))
        pubrec = await connection.expect(Pubrec)
        ctx.must(pubrec.packet_id == 5, f"expected PUBREC 5; seen {describe(pubrec)}")
    connection.send(Pubrel(packet_id=5))
    await connection.expect(Pubcomp)
    found = await delivered(ctx, connection, subscriber, at_least=1)
    ctx.must(len(found) == 1, f"subscriber: expected the message once; seen {len(found)} times")


@case(
    "mqtt5/qos/qos2-repeats-without-end-are-acknowledged",
    clauses=("MQTT-4.3.3-10",),
    requires=("qos2",),
    mutant="v5-qos2-third-repeat-refused",
    near_miss="v5-puback-0x00-without-subscribers",
)
async def qos2_many_repeats(ctx: CaseContext) -> None:
    """Every repetition of a QoS 2 PUBLISH before PUBREL gets its PUBREC, however many there are.

    The PUBLISH is repeated five times with DUP. Each gets a PUBREC, none ends the connection, and the subscriber gets
    the message once.
    """
    topic = ctx.topic()
    subscriber = await ctx.connect(name="subscriber")
    await subscriber.subscribe(topic)
    connection = await ctx.connect(name="publisher")
    for attempt in range(6):
        connection.send(Publish(topic=topic, payload=b"once", qos=2, packet_id=5, dup=attempt > 0))
        pubrec = await connection.expect(Pubrec)
        ctx.must(pubrec.packet_id == 5, f"expected PUBREC 5; seen {describe(pubrec)}")
    connection.send(Pubrel(packet_id=5))
    await connection.expect(Pubcomp)
    found = await delivered(ctx, connection, subscriber, at_least=1)
    ctx.must(len(found) == 1, f"subscriber: expected the message once; seen {len(found)} times")


@case(
    "mqtt5/qos/identifier-is-free-after-pubcomp",
    clauses=("MQTT-4.3.3-12",),
    requires=("qos2",),
    mutant="v5-qos2-identifier-never-freed",
    near_miss="v5-puback-0x00-without-subscribers",
)
async def identifier_after_pubcomp(ctx: CaseContext) -> None:
    """After PUBCOMP the same packet identifier stands for a new message.

    Two QoS 2 messages are published one after the other with the same identifier, the second with DUP set. The
    subscriber gets both.
    """
    topic = ctx.topic()
    subscriber = await ctx.connect(name="subscriber")
    await subscriber.subscribe(topic)
    connection = await ctx.connect(name="publisher")
    for payload in (b"first", b"second"):
        connection.send(Publish(topic=topic, payload=payload, qos=2, packet_id=9, dup=payload == b"second"))
        await connection.expect(Pubrec)
        connection.send(Pubrel(packet_id=9))
        await connection.expect(Pubcomp)
    found = [message.payload for message in await delivered(ctx, connection, subscriber, at_least=2)]
    ctx.must(found == [b"first", b"second"], f"subscriber: expected both messages; seen {found}")


@case(
    "mqtt5/qos/identifier-is-free-after-puback",
    clauses=("MQTT-4.3.2-5",),
    requires=("qos1",),
    mutant="v5-qos1-repeat-swallowed",
    near_miss="v5-puback-0x00-without-subscribers",
)
async def identifier_after_puback(ctx: CaseContext) -> None:
    """After PUBACK a PUBLISH with the same packet identifier is a new message, whatever its DUP flag.

    The same QoS 1 PUBLISH is sent twice, each acknowledged, the second with DUP 1. The subscriber gets it twice.
    """
    topic = ctx.topic()
    subscriber = await ctx.connect(name="subscriber")
    await subscriber.subscribe(topic)
    connection = await ctx.connect(name="publisher")
    for dup in (False, True):
        connection.send(Publish(topic=topic, payload=b"same", qos=1, packet_id=11, dup=dup))
        await connection.expect(Puback)
    found = await delivered(ctx, connection, subscriber, at_least=2)
    ctx.must(len(found) == 2, f"subscriber: expected the message twice; seen {len(found)} times")


@case(
    "mqtt5/qos/unknown-pubrel-gets-pubcomp",
    clauses=("MQTT-4.3.3-11", "MQTT-3.7.2-1"),
    requires=("qos2",),
    mutant="v5-unknown-pubrel-ignored",
    near_miss="v5-pubcomp-0x00-for-unknown",
)
async def unknown_pubrel(ctx: CaseContext) -> None:
    """A PUBREL that the server knows nothing of is answered by PUBCOMP.

    PUBREL with an identifier that was never used gets a PUBCOMP with that identifier, saying 0x92 (packet identifier
    not found) or 0x00: both are met, and both are right.
    """
    connection = await ctx.connect()
    connection.send(Pubrel(packet_id=4711))
    pubcomp = await connection.expect(Pubcomp)
    ctx.must(
        pubcomp.packet_id == 4711 and pubcomp.reason_code in _PUBCOMP_CODES,
        f"expected PUBCOMP 4711 with 0x92 or 0x00; seen {describe(pubcomp)}",
    )
    await connection.expect_nothing()


@case(
    "mqtt5/qos/delivery-at-qos1-uses-free-identifiers",
    clauses=("MQTT-4.3.2-1", "MQTT-4.3.2-2", "MQTT-4.3.2-3", "MQTT-2.2.1-4"),
    requires=("qos1",),
    mutant="v5-delivery-identifiers-collide",
    near_miss="v5-writes-in-pieces",
)
async def qos1_delivery(ctx: CaseContext) -> None:
    """Unacknowledged QoS 1 deliveries have different packet identifiers, and DUP 0.

    Five messages are delivered and not acknowledged, or as many as the server has under way at once (unsupported if
    that is one). All identifiers differ and none is 0. After the PUBACKs five more are delivered alike.
    """
    topic = ctx.topic()
    subscriber = await ctx.connect(name="subscriber")
    await subscribe_at(ctx, subscriber, topic, qos=1)
    publisher = await ctx.connect(name="publisher")
    wanted = [b"%d" % number for number in range(5)]
    for _ in range(2):
        async with publishing(publisher, topic, *wanted, qos=1):
            messages = await under_way(ctx, subscriber, topic, 5)
            identifiers = [message.packet_id for message in messages]
            different = len(set(identifiers)) == len(messages)
            ctx.must(different, f"subscriber: expected different identifiers; seen {identifiers}")
            for message in messages:
                await subscriber.acknowledge(message)
            messages += [await subscriber.expect_publish(topic) for _ in range(5 - len(messages))]
        for message, payload in zip(messages, wanted, strict=True):
            good = (message.payload, message.qos, message.dup) == (payload, 1, False)
            ctx.must(good, f"subscriber: expected {payload!r} at QoS 1 with DUP 0; seen {describe(message)}")


@case(
    "mqtt5/qos/delivery-at-qos2-runs-to-pubrel",
    clauses=("MQTT-4.3.3-1", "MQTT-4.3.3-2", "MQTT-4.3.3-4", "MQTT-2.2.1-4", "MQTT-2.2.1-5", "MQTT-3.6.2-1"),
    requires=("qos2",),
    mutant="v5-pubrel-identifier-wrong",
    near_miss="v5-writes-in-pieces",
)
async def qos2_delivery(ctx: CaseContext) -> None:
    """A QoS 2 delivery waits for PUBREC and answers it with PUBREL under the same packet identifier.

    Two messages are delivered and open at the same time, with different identifiers. No PUBREL comes before PUBREC;
    then each PUBREC, sent in the order of the deliveries (4.6.0-3), gets the PUBREL with its identifier. A PUBREC with
    0x10, which is a success, gets one too. Unsupported on a server that has one message under way at a time.
    """
    topic = ctx.topic()
    subscriber = await ctx.connect(name="subscriber")
    await subscribe_at(ctx, subscriber, topic, qos=2)
    publisher = await ctx.connect(name="publisher")
    async with publishing(publisher, topic, b"1", b"2", qos=2):
        first, second = await under_way(ctx, subscriber, topic, 2)
        for message, payload in ((first, b"1"), (second, b"2")):
            good = (message.payload, message.qos, message.dup) == (payload, 2, False)
            ctx.must(good, f"subscriber: expected {payload!r} at QoS 2 with DUP 0; seen {describe(message)}")
        ctx.must(first.packet_id != second.packet_id, f"expected two identifiers; seen {first.packet_id} twice")
        await subscriber.expect_nothing()
        for message, code in ((first, 0x10), (second, 0x00)):
            subscriber.send(Pubrec(packet_id=message.packet_id, reason_code=code))
            pubrel = await subscriber.expect(Pubrel)
            same = pubrel.packet_id == message.packet_id
            ctx.must(same, f"expected PUBREL {message.packet_id}; seen {describe(pubrel)}")
        for message in (first, second):
            subscriber.send(Pubcomp(packet_id=message.packet_id))
    await subscriber.expect_nothing()


@case(
    "mqtt5/qos/delivered-at-the-lower-qos",
    clauses=("MQTT-3.8.4-8", "MQTT-4.3.1-1"),
    requires=("qos1", "qos2"),
    mutant="v5-delivered-at-published-qos",
    near_miss="v5-grants-at-most-qos-1",
)
async def lower_qos(ctx: CaseContext) -> None:
    """A message is delivered at the lower of its own QoS and the granted one.

    Every QoS published is tried against every QoS subscribed to; what SUBACK granted counts.
    """
    publisher = await ctx.connect(name="publisher")
    subscriber = await ctx.connect(name="subscriber")
    for wanted in (0, 1, 2):
        topic = ctx.topic(f"granted/{wanted}")
        (granted,) = await subscriber.subscribe(topic, qos=wanted)
        ctx.must(granted <= wanted, f"subscriber: expected at most QoS {wanted} to be granted; seen {granted}")
        for published in (0, 1, 2):
            await publisher.publish(topic, b"m", qos=published)
            await subscriber.expect_publish(topic, b"m", qos=min(published, granted))


@case(
    "mqtt5/qos/order-is-kept",
    clauses=("MQTT-4.6.0-5", "MQTT-4.6.0-6"),
    requires=("qos1", "qos2"),
    mutant="v5-deliveries-swapped",
    kills=("confused-order",),
    near_miss="v5-writes-in-pieces",
)
async def order(ctx: CaseContext) -> None:
    """Messages of one publisher on one topic arrive in the order of publishing, at each QoS.

    At every QoS fifteen messages are sent in one write, or as many as the server takes at once. They arrive in order.
    """
    subscriber = await ctx.connect(name="subscriber")
    publisher = await ctx.connect(name="publisher")
    for qos in (0, 1, 2):
        topic = ctx.topic(f"q{qos}")
        await subscriber.subscribe(Subscription(filter=topic, qos=qos))
        messages = [Publish(topic=topic, payload=bytes((number,)), qos=qos) for number in range(15)]
        async with meanwhile(publish_all(publisher, messages)):
            for message in messages:
                await subscriber.expect_publish(topic, message.payload)


@case(
    "mqtt5/qos/expired-message-still-completes-qos2",
    clauses=("MQTT-4.3.3-13", "MQTT-4.3.3-11"),
    requires=("qos2",),
    mutant="v5-expiry-breaks-received-qos2",
    near_miss="v5-repeats-on-the-same-connection-refused",
    limit_s=10.0,
)
async def expired_qos2(ctx: CaseContext) -> None:
    """A server finishes the QoS 2 exchange of a message that expires during it.

    A QoS 2 message with expiry 1 s gets PUBREC. After 2.5 s, PUBREL still gets PUBCOMP without an error. The PUBLISH is
    not repeated: a client may do so on a new connection only (4.4.0-1).
    """
    connection = await ctx.connect()
    message = Publish(
        topic=ctx.topic(), payload=b"m", qos=2, packet_id=21, properties=Properties(message_expiry_interval=1)
    )
    connection.send(message)
    await connection.expect(Pubrec)
    await pass_time(ctx, 2.5)
    connection.send(Pubrel(packet_id=21))
    pubcomp = await connection.expect(Pubcomp)
    ctx.must(pubcomp.packet_id == 21 and pubcomp.reason_code == 0, f"expected PUBCOMP 21; seen {describe(pubcomp)}")


@case(
    "mqtt5/qos/unexpected-acknowledgements-do-no-harm",
    clauses=("MQTT-4.1.0-1",),
    mutant="v5-stray-acknowledgement-closes-everybody",
    near_miss="v5-closes-silently",
)
async def stray_acknowledgements(ctx: CaseContext) -> None:
    """Acknowledgements of deliveries that never happened disturb nobody else.

    A client sends PUBACK, PUBREC and PUBCOMP with identifiers that the server never used. What happens to that
    connection is left open by the standard; another client, which was connected before, goes on publishing and
    receiving.
    """
    topic = ctx.topic()
    other = await ctx.connect(name="other")
    await other.subscribe(topic)
    stray = await ctx.connect(name="stray")
    stray.send(Puback(packet_id=1), Pubrec(packet_id=2), Pubcomp(packet_id=3))
    await ends(stray)
    await other.publish(topic, b"alive")
    await other.expect_publish(topic, b"alive")

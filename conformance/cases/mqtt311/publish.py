"""PUBLISH and its acknowledgements at QoS 0, 1 and 2 (MQTT 3.1.1, 3.3 to 3.7 and 4.3)."""

from __future__ import annotations

from assay.conformance.case import CaseContext, case
from assay.conformance.cases.mqtt5.support import (
    delivered,
    meanwhile,
    publish_all,
    publishing,
    qos_levels,
    subscribe_at,
    taken,
    under_way,
)
from assay.conformance.wire import (
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    Subscription,
    describe,
    encode,
)
from assay.conformance.wire.encode import raw_packet, string, uint16

_PUBLISH_QOS_3 = 0x36
_PACKET_IDS = (1, 0x0100, 0xFFFF)
_MANY_OPEN = 60


@case(
    "mqtt311/publish/qos-0-arrives-unchanged",
    clauses=("MQTT-2.3.1-5", "MQTT-4.3.1-1", "MQTT-4.5.0-1", "MQTT-3.3.2-1"),
    mutant="v3-empty-payload-not-routed",
    near_miss="v3-one-packet-at-a-time",
)
async def qos_0(ctx: CaseContext) -> None:
    """A QoS 0 message arrives byte for byte, without packet identifier.

    Payloads of every byte value, of many bytes and of none are published; the subscriber gets each unchanged, at QoS 0.
    """
    topic = ctx.topic()
    subscriber = await ctx.connect(name="subscriber")
    await subscriber.subscribe(topic)
    publisher = await ctx.connect(name="publisher")
    for payload in (bytes(range(256)), ctx.rng.randbytes(ctx.room_bytes(20_000)), b""):
        await publisher.publish(topic, payload)
        await subscriber.expect_publish(topic, payload, qos=0, retain=False, dup=False)


@case(
    "mqtt311/publish/qos-1-is-acknowledged-by-its-identifier",
    clauses=("MQTT-3.3.4-1", "MQTT-4.3.2-2", "MQTT-2.3.1-6"),
    requires=("qos1",),
    mutant="v3-puback-identifier-cut",
)
async def qos_1(ctx: CaseContext) -> None:
    """A QoS 1 PUBLISH is answered by a PUBACK with its packet identifier.

    Packet identifiers 1, 256 and 65535 are used. The subscriber gets each message at QoS 1.
    """
    topic = ctx.topic()
    subscriber = await ctx.connect(name="subscriber")
    await subscriber.subscribe(topic, qos=1)
    publisher = await ctx.connect(name="publisher")
    for packet_id in _PACKET_IDS:
        payload = str(packet_id).encode()
        publisher.send(Publish(topic=topic, payload=payload, qos=1, packet_id=packet_id))
        puback = await publisher.expect(Puback)
        ctx.must(puback.packet_id == packet_id, f"publisher: expected PUBACK {packet_id}; seen {describe(puback)}")
        await subscriber.expect_publish(topic, payload, qos=1, dup=False)


@case(
    "mqtt311/publish/qos-2-takes-four-steps",
    clauses=("MQTT-3.3.4-1", "MQTT-4.3.3-2", "MQTT-4.3.3-1", "MQTT-2.3.1-6"),
    requires=("qos2",),
    mutant="v3-pubcomp-not-sent",
    near_miss="v3-qos-2-published-at-pubrel",
)
async def qos_2(ctx: CaseContext) -> None:
    """A QoS 2 message passes by PUBLISH, PUBREC, PUBREL, PUBCOMP, on both sides.

    Packet identifiers 1, 256 and 65535 are used. Each message arrives once, at QoS 2, and its delivery ends with the
    broker's PUBREL for the subscriber's PUBREC.
    """
    topic = ctx.topic()
    subscriber = await ctx.connect(name="subscriber")
    await subscribe_at(ctx, subscriber, topic, qos=2)
    publisher = await ctx.connect(name="publisher")
    for packet_id in _PACKET_IDS:
        payload = str(packet_id).encode()
        publisher.send(Publish(topic=topic, payload=payload, qos=2, packet_id=packet_id))
        pubrec = await publisher.expect(Pubrec)
        ctx.must(pubrec.packet_id == packet_id, f"publisher: expected PUBREC {packet_id}; seen {describe(pubrec)}")
        publisher.send(Pubrel(packet_id=packet_id))
        pubcomp = await publisher.expect(Pubcomp)
        ctx.must(pubcomp.packet_id == packet_id, f"publisher: expected PUBCOMP {packet_id}; seen {describe(pubcomp)}")
        await subscriber.expect_publish(topic, payload, qos=2, dup=False)
    await subscriber.expect_nothing()


@case(
    "mqtt311/publish/qos-2-is-not-acknowledged-like-qos-1",
    clauses=("MQTT-3.3.4-1", "MQTT-4.3.3-2"),
    mutant="v3-qos-2-acknowledged-like-qos-1",
)
async def qos_2_answer(ctx: CaseContext) -> None:
    """The answer to a QoS 2 PUBLISH is PUBREC, never PUBACK.

    3.1.1 gives a server no way to announce that it has no QoS 2. One that does without may end the connection; a PUBACK
    would be a promise that the client has not asked for, and leave it waiting for PUBREC.
    """
    publisher = await ctx.connect(name="publisher")
    publisher.send(Publish(topic=ctx.topic(), payload=b"at QoS 2", qos=2, packet_id=1))
    answer = await publisher.receive("PUBREC, or the end of the connection")
    if answer is None:
        ctx.should(False, "the broker ends the connection at a QoS 2 PUBLISH")
    else:
        ctx.must(isinstance(answer, Pubrec), f"publisher: expected PUBREC; seen {describe(answer)}")


@case(
    "mqtt311/publish/repeated-qos-2-publish-is-one-message",
    clauses=("MQTT-4.3.3-2",),
    requires=("qos2",),
    mutant="v3-qos-2-repeat-delivered",
    near_miss="v3-qos-2-published-at-pubrel",
)
async def qos_2_repeat(ctx: CaseContext) -> None:
    """A QoS 2 PUBLISH that is repeated before its PUBREL is acknowledged again and delivered once.

    The publisher sends the same PUBLISH twice, the second with DUP, gets a PUBREC for each, and releases it. The
    subscriber gets one message.
    """
    topic = ctx.topic()
    subscriber = await ctx.connect(name="subscriber")
    await subscriber.subscribe(topic, qos=0)
    publisher = await ctx.connect(name="publisher")
    for dup in (False, True):
        publisher.send(Publish(topic=topic, payload=b"once", qos=2, packet_id=7, dup=dup))
        pubrec = await publisher.expect(Pubrec)
        ctx.must(pubrec.packet_id == 7, f"publisher: expected PUBREC 7; seen {describe(pubrec)}")
    publisher.send(Pubrel(packet_id=7))
    await publisher.expect(Pubcomp)
    messages = await delivered(ctx, publisher, subscriber, at_least=1)
    ctx.must(len(messages) == 1, f"subscriber: expected one message; seen {len(messages)}")


@case(
    "mqtt311/publish/qos-2-identifier-is-free-after-pubcomp",
    clauses=("MQTT-4.3.3-2", "MQTT-4.3.3-1"),
    requires=("qos2",),
    mutant="v3-qos-2-identifier-never-freed",
    near_miss="v3-qos-2-published-at-pubrel",
)
async def qos_2_reuse(ctx: CaseContext) -> None:
    """After PUBCOMP the packet identifier belongs to a new message.

    Two different messages are published one after the other under the same identifier; both arrive.
    """
    topic = ctx.topic()
    subscriber = await ctx.connect(name="subscriber")
    await subscriber.subscribe(topic, qos=0)
    publisher = await ctx.connect(name="publisher")
    for payload in (b"first", b"second"):
        publisher.send(Publish(topic=topic, payload=payload, qos=2, packet_id=9))
        await publisher.expect(Pubrec)
        publisher.send(Pubrel(packet_id=9))
        await publisher.expect(Pubcomp)
    payloads = [message.payload for message in await delivered(ctx, publisher, subscriber, at_least=2)]
    ctx.must(payloads == [b"first", b"second"], f"subscriber: expected both messages; seen {payloads}")


@case(
    "mqtt311/publish/pubrel-for-an-unknown-identifier-is-answered",
    clauses=("MQTT-4.3.3-2",),
    requires=("qos2",),
    mutant="v3-unknown-pubrel-ignored",
)
async def unknown_pubrel(ctx: CaseContext) -> None:
    """A PUBREL for an identifier that the broker does not know (any more) gets its PUBCOMP.

    A publisher that missed the PUBCOMP sends its PUBREL again, and must be able to finish.
    """
    publisher = await ctx.connect(name="publisher")
    packet_id = await publisher.publish(ctx.topic(), b"released twice", qos=2)
    publisher.send(Pubrel(packet_id=packet_id))
    pubcomp = await publisher.expect(Pubcomp)
    ctx.must(pubcomp.packet_id == packet_id, f"publisher: expected PUBCOMP {packet_id}; seen {describe(pubcomp)}")


@case(
    "mqtt311/publish/delivered-at-the-lower-qos",
    clauses=("MQTT-3.8.4-6", "MQTT-2.3.1-5"),
    requires=("qos1",),
    mutant="v3-delivered-at-subscription-qos",
    near_miss="v3-grants-at-most-qos-1",
)
async def lower_qos(ctx: CaseContext) -> None:
    """A message is delivered at the lower of its own QoS and the granted one.

    All pairs of published and granted QoS that the broker takes.
    """
    publisher = await ctx.connect(name="publisher")
    for granted in qos_levels(ctx):
        subscriber = await ctx.connect(name=f"granted {granted}")
        topic = ctx.topic(f"granted/{granted}")
        codes = await subscriber.subscribe(topic, qos=granted)
        for published in qos_levels(ctx):
            await publisher.publish(topic, b"message", qos=published)
            await subscriber.expect_publish(topic, b"message", qos=min(published, codes[0]))


@case(
    "mqtt311/publish/dup-is-not-passed-on",
    clauses=("MQTT-3.3.1-3", "MQTT-3.3.1-1", "MQTT-3.3.1-2"),
    requires=("qos1",),
    mutant="v3-dup-passed-on",
    near_miss="v3-one-packet-at-a-time",
)
async def dup(ctx: CaseContext) -> None:
    """DUP of a delivery says whether the broker repeats it, whatever the publisher said.

    A PUBLISH arrives with DUP 1; the first delivery of it has DUP 0, at QoS 1 and, for another subscriber, at QoS 0.
    """
    topic = ctx.topic()
    subscriber = await ctx.connect(name="subscriber")
    await subscriber.subscribe(topic, qos=1)
    other = await ctx.connect(name="subscriber at qos 0")
    await other.subscribe(topic, qos=0)
    publisher = await ctx.connect(name="publisher")
    publisher.send(Publish(topic=topic, payload=b"repeated by the client", qos=1, packet_id=3, dup=True))
    await publisher.expect(Puback)
    await subscriber.expect_publish(topic, qos=1, dup=False)
    await other.expect_publish(topic, qos=0, dup=False)


@case(
    "mqtt311/publish/qos-3-ends-the-connection",
    clauses=("MQTT-3.3.1-4",),
    mutant="v3-publish-qos-3-accepted",
)
async def qos_3(ctx: CaseContext) -> None:
    """A PUBLISH with both QoS bits set ends the connection.

    The message is not delivered to anybody either.
    """
    topic = ctx.topic()
    subscriber = await ctx.connect(name="subscriber")
    await subscriber.subscribe(topic, qos=2)
    publisher = await ctx.connect(name="publisher")
    publisher.send_raw(raw_packet(_PUBLISH_QOS_3, string(topic) + uint16(1) + b"no such QoS"))
    await publisher.expect_close()
    await ctx.expect_no_message(await ctx.connect(name="other"), subscriber)


@case(
    "mqtt311/publish/identifier-0-ends-the-connection",
    clauses=("MQTT-2.3.1-1", "MQTT-4.8.0-1"),
    mutant="v3-packet-identifier-0-accepted",
)
async def identifier_0(ctx: CaseContext) -> None:
    """A packet identifier is never 0.

    A PUBLISH at QoS 1, one at QoS 2, a SUBSCRIBE and an UNSUBSCRIBE with identifier 0 each end the connection.
    """
    topic = ctx.topic()
    packets = {
        "qos 1": encode(Publish(topic=topic, qos=1), 4),
        "qos 2": encode(Publish(topic=topic, qos=2), 4),
        "subscribe": raw_packet(0x82, uint16(0) + string(topic) + b"\0"),
        "unsubscribe": raw_packet(0xA2, uint16(0) + string(topic)),
    }
    for name, data in packets.items():
        connection = await ctx.connect(name=name)
        connection.send_raw(data)
        await connection.expect_close()


@case(
    "mqtt311/publish/topic-name-has-no-wildcards",
    clauses=("MQTT-3.3.2-2", "MQTT-4.7.1-1"),
    mutant="v3-wildcards-in-topic-names",
)
async def wildcards_in_topic(ctx: CaseContext) -> None:
    """Wildcards belong into filters, never into the topic name of a PUBLISH.

    Topic names with + and with #, at QoS 0 and 1, each end the connection.
    """
    for level in ("+", "#", "a+"):
        for qos in (0, 1):
            connection = await ctx.connect(name=f"{level} at qos {qos}")
            packet = Publish(topic=ctx.topic(level), payload=b"x", qos=qos, packet_id=qos)
            connection.send_raw(encode(packet, 4))
            await connection.expect_close()


@case(
    "mqtt311/publish/topic-name-is-not-empty",
    clauses=("MQTT-4.7.3-1", "MQTT-4.8.0-1"),
    mutant="v3-empty-topic-name",
)
async def empty_topic(ctx: CaseContext) -> None:
    """A topic name has at least one character.

    A PUBLISH with an empty topic name, at QoS 0 and 1, ends the connection.
    """
    for qos in (0, 1):
        connection = await ctx.connect(name=f"qos {qos}")
        connection.send_raw(encode(Publish(topic="", payload=b"x", qos=qos, packet_id=qos), 4))
        await connection.expect_close()


@case(
    "mqtt311/publish/deliveries-in-flight-have-distinct-identifiers",
    clauses=("MQTT-2.3.1-4", "MQTT-4.3.2-1"),
    requires=("qos1",),
    mutant="v3-delivery-identifier-reused",
    near_miss="v3-one-packet-at-a-time",
)
async def distinct_identifiers(ctx: CaseContext) -> None:
    """Deliveries that are not acknowledged yet have different packet identifiers.

    Five QoS 1 messages are delivered to a subscriber that acknowledges none of them: as many as the broker has under
    way at once. Unsupported if that is one.
    """
    topic = ctx.topic()
    subscriber = await ctx.connect(name="subscriber")
    await subscriber.subscribe(topic, qos=1)
    publisher = await ctx.connect(name="publisher")
    async with publishing(publisher, topic, *(b"%d" % number for number in range(5)), qos=1):
        messages = await under_way(ctx, subscriber, topic, 5)
        identifiers = [message.packet_id for message in messages]
        different = len(set(identifiers)) == len(messages)
        ctx.must(different, f"subscriber: expected different identifiers; seen {identifiers}")
        for message in messages:
            await subscriber.acknowledge(message)
        for _ in range(5 - len(messages)):
            await subscriber.expect_publish(topic)


@case(
    "mqtt311/publish/publisher-gets-its-own-messages",
    clauses=("MQTT-4.5.0-1",),
    mutant="v3-own-messages-withheld",
)
async def own_messages(ctx: CaseContext) -> None:
    """A client that subscribed to what it publishes gets its own messages.

    3.1.1 has no way to ask for anything else.
    """
    topic = ctx.topic()
    client = await ctx.connect()
    await client.subscribe(topic)
    client.send(Publish(topic=topic, payload=b"to myself"))
    await client.expect_publish(topic, b"to myself")


@case(
    "mqtt311/publish/every-subscriber-gets-it",
    clauses=("MQTT-4.5.0-1", "MQTT-3.3.2-3"),
    requires=("wildcards",),
    mutant="v3-last-subscriber-forgotten",
    near_miss="v3-one-copy-per-subscription",
)
async def every_subscriber(ctx: CaseContext) -> None:
    """Each client with a matching subscription gets the message, and nobody else.

    Three clients subscribe to the topic, by name, by wildcard, and by both; a fourth one to another topic.
    """
    topic = ctx.topic("shared/a")
    wildcard = Subscription(filter=ctx.topic("shared/+"))
    exact = await ctx.connect(name="exact")
    await exact.subscribe(topic)
    both = await ctx.connect(name="both")
    await both.subscribe(topic)
    await both.subscribe(wildcard)
    wild = await ctx.connect(name="wildcard")
    await wild.subscribe(wildcard)
    other = await ctx.connect(name="other")
    await other.subscribe(ctx.topic("shared"))
    publisher = await ctx.connect(name="publisher")
    await publisher.publish(topic, b"for three")
    for subscriber in (exact, both, wild):
        await subscriber.expect_publish(topic, b"for three")
    await ctx.expect_no_message(publisher, other)


@case(
    "mqtt311/publish/many-open-qos-2-exchanges-all-arrive",
    clauses=("MQTT-4.3.3-2", "MQTT-4.5.0-1"),
    requires=("qos1", "qos2"),
    mutant="v3-qos-2-beyond-twenty-forgotten",
    near_miss="v3-one-packet-at-a-time",
    limit_s=10.0,
)
async def many_open(ctx: CaseContext) -> None:
    """However many QoS 2 messages a client has begun, each whose exchange is completed arrives.

    Sixty PUBLISH packets come in one write, and PUBREL answers each PUBREC as it comes. (Mosquitto 2.0.11 lost those
    beyond twenty.)
    """
    topic = ctx.topic()
    subscriber, publisher = await ctx.connect(name="subscriber"), await ctx.connect(name="publisher")
    await subscribe_at(ctx, subscriber, topic, qos=1)
    payloads = [b"%d" % number for number in range(_MANY_OPEN)]
    async with meanwhile(publish_all(publisher, [Publish(topic=topic, payload=each, qos=2) for each in payloads])):
        seen = {message.payload for message in await taken(subscriber, len(payloads))}
    missing = [each for each in payloads if each not in seen]
    ctx.must(not missing, f"subscriber: expected all {len(payloads)} messages; {len(missing)} did not come: {missing}")

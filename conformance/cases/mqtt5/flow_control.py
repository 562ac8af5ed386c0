"""Flow control by Receive Maximum, and Maximum Packet Size, in both directions (MQTT 5.0, 3.3.4 and 4.9)."""

from __future__ import annotations

from assay.conformance.case import CaseContext, case
from assay.conformance.cases.mqtt5.support import (
    PACKET_TOO_LARGE,
    RECEIVE_MAXIMUM_EXCEEDED,
    delivered,
    messages_now,
    publishing,
    resume,
    subscribe_at,
    under_way,
    wire_size,
)
from assay.conformance.rules import Rule
from assay.conformance.wire import (
    Disconnect,
    Packet,
    Properties,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    Suback,
    Subscribe,
    Subscription,
    Unsuback,
    Unsubscribe,
    describe,
)

_LARGEST_OVERRUN = 5_000
_LARGEST_PACKET_TRIED = 4 * 1024 * 1024
_UNSPECIFIED = 0x80


@case(
    "mqtt5/flow-control/client-receive-maximum-respected-at-qos1",
    clauses=("MQTT-3.3.4-9", "MQTT-4.9.0-1", "MQTT-4.9.0-2", "MQTT-4.3.2-3"),
    requires=("qos1",),
    mutant="v5-client-receive-maximum-ignored",
    near_miss="v5-writes-in-pieces",
)
async def respects_qos1(ctx: CaseContext) -> None:
    """A server has at most the client's Receive Maximum of QoS 1 messages unacknowledged.

    Seven messages are published for a client with Receive Maximum 2. Never more than two are unacknowledged: each
    PUBACK brings the next, until all seven have come in order.
    """
    topic = ctx.topic()
    subscriber = await ctx.connect(name="subscriber", properties=Properties(receive_maximum=2))
    await subscribe_at(ctx, subscriber, topic, qos=1)
    publisher = await ctx.connect(name="publisher")
    open_messages: list[Publish] = []
    async with publishing(publisher, topic, *(b"%d" % number for number in range(7)), qos=1):
        for number in range(7):
            open_messages += await messages_now(ctx, subscriber)
            count = len(open_messages)
            ctx.must(count <= 2, f"subscriber: expected at most 2 open messages; seen {count}")
            if not open_messages:
                open_messages.append(await subscriber.expect_publish(topic, ack=False))
            message = open_messages.pop(0)
            text = f"subscriber: expected {number}; seen {describe(message)}"
            ctx.step(Rule.CONTENT, message.payload == b"%d" % number, text, soft=True)
            await subscriber.acknowledge(message)
    await subscriber.expect_nothing()


@case(
    "mqtt5/flow-control/client-receive-maximum-respected-at-qos2",
    clauses=("MQTT-3.3.4-9", "MQTT-4.9.0-1", "MQTT-4.9.0-2"),
    requires=("qos2",),
    mutant="v5-quota-freed-by-pubrec",
    near_miss="v5-writes-in-pieces",
)
async def respects_qos2(ctx: CaseContext) -> None:
    """At QoS 2 it is PUBCOMP that makes room for the next message, not PUBREC.

    Three messages are published for a client with Receive Maximum 1. After the PUBREC for the first, PUBREL comes but
    no further message; after PUBCOMP the second comes.
    """
    topic = ctx.topic()
    subscriber = await ctx.connect(name="subscriber", properties=Properties(receive_maximum=1))
    await subscribe_at(ctx, subscriber, topic, qos=2)
    publisher = await ctx.connect(name="publisher")
    async with publishing(publisher, topic, b"0", b"1", b"2", qos=2):
        for number in range(3):
            message = await subscriber.expect_publish(topic, b"%d" % number, qos=2, ack=False)
            await subscriber.expect_nothing()
            subscriber.send(Pubrec(packet_id=message.packet_id))
            await subscriber.expect(Pubrel, skipping=(Publish,))  # one too many is what follows here
            await subscriber.expect_nothing()
            subscriber.send(Pubcomp(packet_id=message.packet_id))


@case(
    "mqtt5/flow-control/refusing-pubrec-frees-the-quota",
    clauses=("MQTT-3.3.4-9", "MQTT-4.9.0-2", "MQTT-4.4.0-2"),
    requires=("qos2",),
    mutant="v5-refusals-ignored",
    near_miss="v5-writes-in-pieces",
)
async def refusing_pubrec(ctx: CaseContext) -> None:
    """A PUBREC that refuses the message makes room for the next one.

    Two messages are published for a client with Receive Maximum 1, which answers the first with PUBREC 0x80. The second
    message comes. A PUBREL is due only for a code below 0x80 (4.3.3-4): one that comes all the same is reported.
    """
    topic = ctx.topic()
    subscriber = await ctx.connect(name="subscriber", properties=Properties(receive_maximum=1))
    await subscribe_at(ctx, subscriber, topic, qos=2)
    publisher = await ctx.connect(name="publisher")
    async with publishing(publisher, topic, b"refused", b"taken", qos=2):
        message = await subscriber.expect_publish(topic, b"refused", ack=False)
        subscriber.send(Pubrec(packet_id=message.packet_id, reason_code=_UNSPECIFIED))
        taken = await subscriber.expect(Publish, skipping=(Pubrel,))
        ctx.must(taken.payload == b"taken", f"subscriber: expected the second message; seen {describe(taken)}")
        for packet in await subscriber.barrier():
            ctx.must(isinstance(packet, Pubrel), f"subscriber: expected nothing more; seen {describe(packet)}")
            ctx.should(False, f"subscriber: expected nothing for a message that was refused; seen {describe(packet)}")
        await subscriber.acknowledge(taken)


@case(
    "mqtt5/flow-control/exhausted-quota-delays-nothing-else",
    clauses=("MQTT-3.3.4-10", "MQTT-4.9.0-3"),
    requires=("qos1", "qos2"),
    mutant="v5-exhausted-quota-delays-acks",
    near_miss="v5-writes-in-pieces",
)
async def nothing_else_delayed(ctx: CaseContext) -> None:
    """A server that may send no message goes on sending everything else.

    A client with Receive Maximum 1 leaves one message unacknowledged while another waits. Its SUBSCRIBE, UNSUBSCRIBE,
    PINGREQ and its own PUBLISH packets at QoS 1 and 2 are answered; only then does PUBACK bring the waiting message.
    """
    topic, other = ctx.topic("full"), ctx.topic("other")
    client = await ctx.connect(name="client", properties=Properties(receive_maximum=1))
    await subscribe_at(ctx, client, topic, qos=1)
    publisher = await ctx.connect(name="publisher")
    async with publishing(publisher, topic, b"open", b"waiting", qos=1):
        message = await client.expect_publish(topic, b"open", ack=False)
        client.send(
            Subscribe(packet_id=100, subscriptions=(Subscription(filter=other),)),
            Unsubscribe(packet_id=101, filters=(other,)),
            Publish(topic=other, payload=b"1", qos=1, packet_id=102),
            Publish(topic=other, payload=b"2", qos=2, packet_id=103),
        )
        answers: set[type[Packet]] = {Suback, Unsuback, Puback, Pubrec}
        while answers:
            packet = await client.receive(" and ".join(sorted(kind.type.name for kind in answers)))
            if packet is None or type(packet) not in answers:
                ctx.fail(f"client: expected answers to its own packets; seen {packet}")
            answers.remove(type(packet))
        client.send(Pubrel(packet_id=103))
        await client.expect(Pubcomp)
        await client.expect_nothing()
        await client.acknowledge(message)
        await client.expect_publish(topic, b"waiting")


@case(
    "mqtt5/flow-control/overrun-ends-the-connection",
    clauses=("MQTT-3.3.4-7", "MQTT-4.13.2-1"),
    requires=("qos2",),
    mutant="v5-overrun-tolerated",
    near_miss="v5-closes-silently",
    limit_s=15.0,
)
async def overrun(ctx: CaseContext) -> None:
    """A client that exceeds the server's Receive Maximum is disconnected.

    One QoS 2 PUBLISH more than the server's Receive Maximum is sent, and no PUBREL for any. The connection ends;
    DISCONNECT should say 0x93. A server that announces more than 5000 is not tried.
    """
    connection = await ctx.connect()
    maximum = connection.connack.properties.receive_maximum or 65_535
    if maximum > _LARGEST_OVERRUN:
        ctx.unsupported(f"the broker's Receive Maximum of {maximum} is too large to exceed")
    connection.send(
        *(Publish(topic=ctx.topic(), payload=b"m", qos=2, packet_id=number + 1) for number in range(maximum + 1))
    )
    seen = await connection.expect_close(allowed=(Pubrec, Disconnect))
    refusals = [packet for packet in seen if isinstance(packet, Pubrec) and packet.reason_code >= _UNSPECIFIED]
    ctx.must(not refusals, "expected the end of the connection; seen a PUBREC that refuses in its place")
    said = [packet.reason_code for packet in seen if isinstance(packet, Disconnect)]
    ctx.should(said == [RECEIVE_MAXIMUM_EXCEEDED], f"expected DISCONNECT 0x93 before the end; seen codes {said}")


@case(
    "mqtt5/flow-control/quota-is-full-after-acknowledgements",
    clauses=("MQTT-4.9.0-1", "MQTT-3.3.4-7", "MQTT-4.3.3-12"),
    requires=("qos2",),
    mutant="v5-qos2-identifier-never-freed",
    near_miss="v5-puback-0x00-without-subscribers",
    limit_s=15.0,
)
async def quota_returns(ctx: CaseContext) -> None:
    """Finished exchanges give their part of the server's Receive Maximum back.

    As many QoS 2 messages as the server's Receive Maximum are published at once and finished, and then ten more. None
    ends the connection. A server that announces more than 5000 is not tried.
    """
    connection = await ctx.connect()
    maximum = connection.connack.properties.receive_maximum or 65_535
    if maximum > _LARGEST_OVERRUN:
        ctx.unsupported(f"the broker's Receive Maximum of {maximum} is too large to use up")
    for first, count in ((1, maximum), (maximum + 1, min(10, maximum))):
        identifiers = range(first, first + count)
        connection.send(*(Publish(topic=ctx.topic(), payload=b"m", qos=2, packet_id=number) for number in identifiers))
        for _ in identifiers:
            await connection.expect(Pubrec)
        connection.send(*(Pubrel(packet_id=number) for number in identifiers))
        for _ in identifiers:
            await connection.expect(Pubcomp)
    await connection.expect_nothing()


@case(
    "mqtt5/flow-control/resume-uses-the-new-receive-maximum",
    clauses=("MQTT-3.3.4-9", "MQTT-4.9.0-1"),
    requires=("qos1", "persistent_sessions"),
    mutant="v5-receive-maximum-kept-from-first-connect",
    kills=("v5-one-more-is-sent-again-at-a-time",),
    near_miss="v5-connack-says-more",
)
async def resume_quota(ctx: CaseContext) -> None:
    """The Receive Maximum is that of the connection, not of the session.

    Four messages wait for a session with Receive Maximum 10, whose client is sent them and acknowledges none. It is
    resumed with Receive Maximum 1: one message comes, and each PUBACK brings the next.
    """
    topic = ctx.topic()
    wide = Properties(session_expiry_interval=600, receive_maximum=10)
    narrow = Properties(session_expiry_interval=600, receive_maximum=1)
    first = await ctx.connect(properties=wide, name="first")
    await subscribe_at(ctx, first, topic, qos=1)
    await first.disconnect()
    publisher = await ctx.connect(name="publisher")
    for number in range(4):
        await publisher.publish(topic, f"{number}".encode(), qos=1)
    second = await resume(ctx, first.client_id, name="second", properties=wide)
    await second.barrier()
    await second.disconnect()
    back = await resume(ctx, first.client_id, name="back", properties=narrow)
    # Their order is another case's.
    payloads: list[bytes] = []
    for _ in range(4):
        message = await back.expect_publish(topic, ack=False)
        payloads.append(message.payload)
        await back.expect_nothing()
        await back.acknowledge(message)
    ctx.must(sorted(payloads) == [b"0", b"1", b"2", b"3"], f"back: expected each message once; seen {payloads}")


@case(
    "mqtt5/flow-control/client-maximum-packet-size-respected",
    clauses=("MQTT-3.1.2-24", "MQTT-3.1.2-25"),
    mutant="v5-client-packet-size-ignored",
    near_miss="v5-writes-in-pieces",
)
async def packet_size(ctx: CaseContext) -> None:
    """No packet larger than the client's Maximum Packet Size is sent to it.

    A client takes packets of up to 150 bytes. Messages with payloads of 20, 500 and 21 bytes are published; the first
    and third arrive.
    """
    topic = ctx.topic()
    client = await ctx.connect(name="client", properties=Properties(maximum_packet_size=150))
    await client.subscribe(topic)
    publisher = await ctx.connect(name="publisher")
    for size in (20, 500, 21):
        await publisher.publish(topic, b"x" * size)
    for size in (20, 21):
        message = await client.expect_publish(topic, b"x" * size)
        ctx.must(wire_size(message) <= 150, f"client: expected at most 150 bytes; seen {wire_size(message)}")


@case(
    "mqtt5/flow-control/client-maximum-packet-size-is-exact",
    clauses=("MQTT-3.1.2-24",),
    requires=("qos2",),
    mutant="v5-client-packet-size-off-by-one",
    near_miss="v5-writes-in-pieces",
)
async def packet_size_exact(ctx: CaseContext) -> None:
    """The client's Maximum Packet Size counts every byte of a packet, the fixed header included.

    For each QoS, one message whose packet has exactly the maximum and one whose packet has one byte more are
    published. What arrives is never larger than the maximum; the exact fit should arrive.
    """
    limit = 120
    client = await ctx.connect(name="client", properties=Properties(maximum_packet_size=limit))
    publisher = await ctx.connect(name="publisher")
    for qos in (0, 1, 2):
        topic = ctx.topic(f"q{qos}")
        (granted,) = await client.subscribe(topic, qos=qos)
        fitting = limit - wire_size(Publish(topic=topic, qos=granted, packet_id=1))
        for size in (fitting + 1, fitting):
            await publisher.publish(topic, b"x" * size, qos=qos)
        found = await delivered(ctx, publisher, client, qos=granted, at_least=1)
        for message in found:
            ctx.must(wire_size(message) <= limit, f"client: expected at most {limit} bytes; seen {wire_size(message)}")
        ctx.should(len(found) == 1, f"client: expected the message of exactly {limit} bytes; seen {len(found)}")


@case(
    "mqtt5/flow-control/dropped-message-counts-as-delivered",
    clauses=("MQTT-3.1.2-25", "MQTT-4.9.0-2"),
    requires=("qos1",),
    mutant="v5-too-large-message-holds-quota",
    near_miss="v5-writes-in-pieces",
)
async def too_large_frees_quota(ctx: CaseContext) -> None:
    """A message that was too large for the client takes nothing of its quota.

    A client takes packets of up to 150 bytes and one unacknowledged message. Three QoS 1 messages that are too large
    are published, and then a small one, which arrives. Resuming the session does not bring the large ones either.
    """
    topic = ctx.topic()
    limits = Properties(session_expiry_interval=600, maximum_packet_size=150, receive_maximum=1)
    client = await ctx.connect(name="client", properties=limits)
    await subscribe_at(ctx, client, topic, qos=1)
    publisher = await ctx.connect(name="publisher")
    for _ in range(3):
        await publisher.publish(topic, b"x" * 500, qos=1)
    await publisher.publish(topic, b"small", qos=1)
    await client.expect_publish(topic, b"small")
    await client.expect_nothing()
    await client.disconnect()
    back = await resume(ctx, client.client_id, name="back", properties=limits)
    await ctx.expect_no_message(publisher, back)


@case(
    "mqtt5/flow-control/too-large-only-for-one-subscriber",
    clauses=("MQTT-3.1.2-25",),
    mutant="v5-too-large-for-one-drops-for-all",
    near_miss="v5-writes-in-pieces",
)
async def too_large_for_one(ctx: CaseContext) -> None:
    """A message that is too large for one subscriber reaches the others.

    Two clients subscribe, one with a Maximum Packet Size of 150 bytes. A message of 500 bytes arrives at the other one.
    """
    topic = ctx.topic()
    small = await ctx.connect(name="small", properties=Properties(maximum_packet_size=150))
    await small.subscribe(topic)
    large = await ctx.connect(name="large")
    await large.subscribe(topic)
    publisher = await ctx.connect(name="publisher")
    await publisher.publish(topic, b"x" * 500)
    await large.expect_publish(topic, b"x" * 500)
    found = await delivered(ctx, publisher, small)
    ctx.must(not found, f"small: expected nothing; seen {len(found)} message(s)")


@case(
    "mqtt5/flow-control/server-maximum-packet-size-enforced",
    clauses=("MQTT-3.2.2-15", "MQTT-4.13.2-1"),
    requires=("maximum_packet_size",),
    mutant="v5-server-packet-size-not-enforced",
    near_miss="v5-closes-silently",
)
async def server_packet_size(ctx: CaseContext) -> None:
    """A packet larger than the server's Maximum Packet Size ends the connection.

    A PUBLISH of one byte more than the maximum is sent; the largest that is allowed is taken before. A server that
    announces no maximum up to 4 MiB is not tried.
    """
    topic = ctx.topic()
    connection = await ctx.connect()
    maximum = connection.connack.properties.maximum_packet_size or 0
    if not 0 < maximum <= _LARGEST_PACKET_TRIED:
        ctx.unsupported("the broker announces no Maximum Packet Size that can be exceeded here")
    overhead = wire_size(Publish(topic=topic, payload=b"x" * maximum)) - maximum
    await connection.publish(topic, b"x" * (maximum - overhead))
    await connection.barrier()
    connection.send(Publish(topic=topic, payload=b"x" * (maximum - overhead + 1)))
    seen = await connection.expect_close()
    said = [packet.reason_code for packet in seen if isinstance(packet, Disconnect)]
    # A reset that overtakes the DISCONNECT hides it from the client, so that a missing one says nothing here.
    ctx.should(said in ([], [PACKET_TOO_LARGE]), f"expected DISCONNECT 0x95; seen codes {said}")


@case(
    "mqtt5/flow-control/open-exchanges-count-after-resume",
    clauses=("MQTT-4.9.0-2", "MQTT-4.4.0-1", "MQTT-3.3.4-9"),
    requires=("qos1", "persistent_sessions"),
    mutant="v5-resent-messages-do-not-count",
    near_miss="v5-connack-says-more",
)
async def resent_count(ctx: CaseContext) -> None:
    """Messages that are sent again on resuming count against the Receive Maximum.

    A client with Receive Maximum 2 has two unacknowledged messages, and two more wait, when its connection is lost.
    On resuming, the two come again and no other until one is acknowledged. Unsupported on a server that has one
    message under way at a time.
    """
    topic = ctx.topic()
    limits = Properties(session_expiry_interval=600, receive_maximum=2)
    first = await ctx.connect(properties=limits, name="first")
    await subscribe_at(ctx, first, topic, qos=1)
    publisher = await ctx.connect(name="publisher")
    wanted = [b"0", b"1", b"2", b"3"]
    async with publishing(publisher, topic, *wanted, qos=1):
        sent = await under_way(ctx, first, topic, 2)
        ctx.must([message.payload for message in sent] == wanted[:2], f"first: expected {wanted[:2]}; seen {sent}")
        first.abort()
        back = await resume(ctx, first.client_id, name="back", properties=limits)
        again = await under_way(ctx, back, topic, 3)
        shown = [message.payload for message in again]
        text = f"back: expected {wanted[:2]} again; seen {shown}"
        ctx.must(sorted(shown) == wanted[:2], text)
        if shown != wanted[:2]:
            ctx.breach(Rule.ORDER, text)
        for message in again:
            back.check_flag(message, dup=True)
            await back.acknowledge(message)
        for payload in wanted[2:]:
            await back.expect_publish(topic, payload, dup=False)

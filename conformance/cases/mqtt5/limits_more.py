"""Quotas and packet sizes where they meet other features: QoS, retained messages, resuming (3.1.2.11 and 4.9)."""

from __future__ import annotations

from assay.conformance.case import CaseContext, case
from assay.conformance.cases.mqtt5.support import LASTING, messages_now, publishing, resume, subscribe_at, taken
from assay.conformance.wire import Pingreq, Pingresp, Properties, Puback, Publish, Subscription, describe, encode

_SMALL_PACKET_BYTES = 120
_LARGE_PAYLOAD = b"x" * 200


@case(
    "mqtt5/flow-control/qos1-and-qos2-share-the-quota",
    clauses=("MQTT-3.3.4-9", "MQTT-4.9.0-1", "MQTT-4.9.0-2"),
    requires=("qos1", "qos2"),
    mutant="v5-quota-for-each-qos",
    near_miss="v5-writes-in-pieces",
)
async def shared_quota(ctx: CaseContext) -> None:
    """The client's Receive Maximum counts QoS 1 and QoS 2 messages together, and no QoS 0 messages.

    For a client with Receive Maximum 2, messages at QoS 1, 2, 1 and 2 are published, and one at QoS 0 on another topic.
    Never more than two of the others are unfinished; each finished exchange, PUBACK or PUBCOMP, brings the next, in the
    order of its QoS. The one at QoS 0 should come before any of them is: nothing asks a server to send it past what
    waits, either.
    """
    topic, free = ctx.topic("counted"), ctx.topic("free")
    client = await ctx.connect(name="client", properties=Properties(receive_maximum=2))
    await subscribe_at(ctx, client, topic, free, qos=2)
    publisher = await ctx.connect(name="publisher")
    levels = (1, 2, 1, 2)
    awaited = {1: [b"0", b"2"], 2: [b"1", b"3"]}
    async with publishing(publisher, topic, b"0", b"1", b"2", b"3", qos=levels):
        await publisher.publish(free, b"free")
        arrived = await taken(client, 3, ack=False)
        passed = any(message.topic == free for message in arrived)
        ctx.should(passed, "client: a message of QoS 0 waits until others are acknowledged")
        for _ in levels:
            while not any(message.topic == topic for message in arrived):
                arrived.append(await client.expect(Publish))
            arrived += await messages_now(ctx, client)
            unfinished = [message for message in arrived if message.topic == topic]
            count = len(unfinished)
            ctx.must(count <= 2, f"client: expected at most 2 unfinished messages; seen {count}")
            message = unfinished[0]
            arrived.remove(message)
            good = awaited.get(message.qos, [])[:1] == [message.payload]
            ctx.must(good, f"client: expected the next of {awaited}, by QoS; seen {describe(message)}")
            awaited[message.qos].pop(0)
            await client.acknowledge(message)
    if not any(message.topic == free for message in arrived):
        await client.expect_publish(free, b"free")
    await client.expect_nothing()


@case(
    "mqtt5/flow-control/retained-messages-respect-the-quota",
    clauses=("MQTT-3.3.4-9", "MQTT-4.9.0-2", "MQTT-3.3.1-9"),
    requires=("qos1", "retain", "wildcards"),
    mutant="v5-retained-messages-ignore-the-quota",
    near_miss="v5-retained-before-suback",
)
async def retained_quota(ctx: CaseContext) -> None:
    """Retained messages for a new subscription count against the client's Receive Maximum.

    A client with Receive Maximum 2 subscribes with a filter that matches five retained messages at QoS 1. Never are
    more than two unacknowledged; each PUBACK brings more, until all five have come once.
    """
    topics = {ctx.topic(f"kept/{number}") for number in range(5)}
    publisher = await ctx.connect(name="publisher")
    for topic in sorted(topics):
        await publisher.publish(topic, b"kept", qos=1, retain=True)
    client = await ctx.connect(name="client", properties=Properties(receive_maximum=2))
    await subscribe_at(ctx, client, ctx.topic("kept/+"), qos=1)
    unfinished: list[Publish] = []
    for _ in range(len(topics)):
        unfinished += await messages_now(ctx, client)
        ctx.must(len(unfinished) <= 2, f"client: expected at most 2 unfinished messages; seen {len(unfinished)}")
        message = unfinished.pop(0) if unfinished else await client.expect(Publish)
        good = message.payload == b"kept" and message.qos == 1
        ctx.must(good, f"client: expected the retained messages at QoS 1; seen {describe(message)}")
        client.check_flag(message, retain=True)
        ctx.must(message.topic in topics, f"client: expected each message once; seen {describe(message)} again")
        topics = topics - {message.topic}
        await client.acknowledge(message)
    await client.expect_nothing()


@case(
    "mqtt5/flow-control/smaller-packet-size-on-resuming",
    clauses=("MQTT-3.1.2-24", "MQTT-3.1.2-25", "MQTT-4.4.0-1"),
    requires=("qos1", "persistent_sessions"),
    mutant="v5-resent-messages-ignore-packet-size",
    near_miss="v5-connack-says-more",
)
async def smaller_on_resume(ctx: CaseContext) -> None:
    """The Maximum Packet Size is that of the connection, for messages that are sent again too.

    A subscriber has a large message unacknowledged when it is reset; a large and a small one wait for it. It resumes
    with a Maximum Packet Size of 120 bytes: only the small one comes. Then it resumes without a limit, and neither
    large message comes: what cannot be sent counts as delivered.
    """
    topic = ctx.topic()
    first = await ctx.connect(properties=LASTING, name="first")
    await subscribe_at(ctx, first, topic, qos=1)
    publisher = await ctx.connect(name="publisher")
    await publisher.publish(topic, _LARGE_PAYLOAD, qos=1)
    await first.expect_publish(topic, _LARGE_PAYLOAD, ack=False)
    first.abort()
    await publisher.publish(topic, _LARGE_PAYLOAD, qos=1)
    await publisher.publish(topic, b"small", qos=1)
    narrow = Properties(session_expiry_interval=600, maximum_packet_size=_SMALL_PACKET_BYTES)
    back = await resume(ctx, first.client_id, name="narrow", properties=narrow)
    await back.expect_publish(topic, b"small", qos=1)
    await back.expect_nothing()
    await back.disconnect()
    wide = await resume(ctx, first.client_id, name="wide")
    await ctx.expect_no_message(publisher, wide)


@case(
    "mqtt5/problem-information/messages-keep-their-properties",
    clauses=("MQTT-3.1.2-29", "MQTT-3.3.2-17"),
    mutant="v5-problem-information-0-strips-messages",
    near_miss="v5-reason-texts-everywhere",
)
async def messages_keep_properties(ctx: CaseContext) -> None:
    """Request Problem Information 0 is about answers: the user properties of messages still arrive.

    Two subscribers, one of which declined problem information, get a message with user properties. Both see them all.
    """
    topic = ctx.topic()
    sent = (("a", "1"), ("b", "2"), ("a", "3"))
    subscribers = {}
    for value in (0, 1):
        name = f"request {value}"
        properties = Properties(request_problem_information=value)
        subscribers[name] = await ctx.connect(name=name, properties=properties)
        await subscribers[name].subscribe(topic)
    publisher = await ctx.connect(name="publisher")
    await publisher.publish(topic, b"m", properties=Properties(user_property=sent))
    for name, subscriber in subscribers.items():
        message = await subscriber.expect_publish(topic, b"m")
        seen = message.properties.user_property
        ctx.must(seen == sent, f"{name}: expected user properties {sent}; seen {seen}")


@case(
    "mqtt5/shared/identifier-of-the-share-comes-with-the-message",
    clauses=("MQTT-3.3.4-3", "MQTT-4.8.2-3"),
    requires=("shared", "subscription_identifiers"),
    mutant="v5-shares-lose-their-identifier",
    near_miss="v5-shared-goes-to-first",
)
async def share_identifier(ctx: CaseContext) -> None:
    """A message that comes by a shared subscription carries the identifier of that subscription.

    A client has two shares and a plain subscription, on topics of their own, with identifiers 11, 12 and 13. The
    message of each topic carries its own identifier.
    """
    client = await ctx.connect(name="client")
    publisher = await ctx.connect(name="publisher")
    prefixes = {11: "$share/first/", 12: "$share/second/", 13: ""}
    for identifier, prefix in prefixes.items():
        entry = Subscription(filter=prefix + ctx.topic(f"{identifier}"))
        await client.subscribe(entry, properties=Properties(subscription_identifier=(identifier,)))
    for identifier in prefixes:
        await publisher.publish(ctx.topic(f"{identifier}"), b"m")
        message = await client.expect_publish(ctx.topic(f"{identifier}"), b"m")
        found = message.properties.subscription_identifier
        ctx.must(found == (identifier,), f"client: expected subscription identifier {identifier}; seen {found}")


@case(
    "mqtt5/flow-control/a-limited-rate-loses-nothing",
    clauses=("MQTT-4.6.0-5", "MQTT-4.6.0-6", "MQTT-4.3.2-4"),
    requires=("qos1",),
    mutant="v5-what-waits-for-the-rate-is-lost",
    near_miss="v5-writes-in-pieces",
    kills=("v5-what-waited-for-the-rate-comes-twice",),
    settings={"limits": {"publish_messages_per_s": 60, "publish_bytes_per_s": 6_000, "publish_burst_s": 0.1}},
)
async def limited_rate(ctx: CaseContext) -> None:
    """What a client sends faster than the server is set to take arrives later, whole and in order.

    The server takes 60 messages and 6000 bytes a second of a client, a tenth of that at once. Twelve messages at QoS 1
    of 1 to 300 bytes, and a PINGREQ behind them, are sent in pieces of 97 bytes: all are answered, and a subscriber
    gets each message once.
    """
    subscriber = await ctx.connect(name="subscriber")
    publisher = await ctx.connect(name="publisher")
    topic, count = ctx.topic(), min(12, publisher.connack.properties.receive_maximum or 12)
    await subscriber.subscribe(topic, qos=1)
    payloads = [bytes((97 + number,)) * (1, 40, 300)[number % 3] for number in range(count)]
    packets = [
        Publish(topic=topic, payload=payload, qos=1, packet_id=publisher.next_packet_id()) for payload in payloads
    ]
    data = b"".join(encode(packet, 5) for packet in (*packets, Pingreq()))
    await publisher.send_in_pieces(data, range(97, len(data), 97))
    seen = [await publisher.receive("an answer") for _ in (*packets, Pingreq())]
    acknowledged = sorted(packet.packet_id for packet in seen if isinstance(packet, Puback))
    expected = [packet.packet_id for packet in packets]
    ctx.must(acknowledged == expected, f"publisher: expected PUBACKs for {expected}; seen them for {acknowledged}")
    ctx.must(any(isinstance(packet, Pingresp) for packet in seen), "publisher: expected PINGRESP as well")
    for payload in payloads:
        await subscriber.expect_publish(topic, payload)
    await subscriber.expect_nothing()

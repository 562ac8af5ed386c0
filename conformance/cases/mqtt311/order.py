"""Message order (MQTT 3.1.1, 4.6)."""

from __future__ import annotations

from assay.conformance.case import CaseContext, case
from assay.conformance.cases.mqtt5.support import delivered, publishing, qos_levels, subscribe_at, under_way
from assay.conformance.wire import Puback, Pubcomp, Publish, Pubrec, Pubrel, describe


@case(
    "mqtt311/order/messages-of-a-topic-keep-their-order",
    clauses=("MQTT-4.6.0-5", "MQTT-4.6.0-6"),
    requires=("qos1",),
    mutant="v3-deliveries-swapped",
    kills=("confused-order",),
    near_miss="v3-one-packet-at-a-time",
)
async def same_order(ctx: CaseContext) -> None:
    """One publisher's messages to one topic at one QoS arrive in the order in which they were published.

    Twenty messages at each QoS that the broker takes.
    """
    publisher = await ctx.connect(name="publisher")
    for qos in qos_levels(ctx):
        topic = ctx.topic(str(qos))
        subscriber = await ctx.connect(name=f"qos {qos}")
        await subscriber.subscribe(topic, qos=qos)
        wanted = [str(number).encode() for number in range(20)]
        async with publishing(publisher, topic, *wanted, qos=qos):
            seen = [(await subscriber.expect_publish(topic)).payload for _ in wanted]
        ctx.must(seen == wanted, f"qos {qos}: expected {wanted}; seen {seen}")


@case(
    "mqtt311/order/acknowledgements-come-in-order",
    clauses=("MQTT-4.6.0-2", "MQTT-4.6.0-3", "MQTT-4.6.0-6"),
    level="SHOULD",
    requires=("qos1",),
    mutant="v3-acknowledgements-swapped",
    near_miss="any-answers-in-any-order",
)
async def acknowledgements(ctx: CaseContext) -> None:
    """PUBACKs come in the order of the QoS 1 PUBLISHes, PUBRECs in the order of the QoS 2 PUBLISHes.

    Ten of each that the broker takes are sent in one write. The rules are the client's: 4.6.0-6 asks a server for them
    when it delivers, and not when it is published to, so that another order is reported, and all must come.
    """
    publisher = await ctx.connect(name="publisher")
    identifiers = list(range(1, 11))
    publisher.send(*(Publish(topic=ctx.topic(), qos=1, packet_id=number) for number in identifiers))
    acknowledged = [(await publisher.expect(Puback)).packet_id for _ in identifiers]
    _check_order(ctx, "PUBACKs", identifiers, acknowledged)
    if not ctx.capabilities["qos2"]:
        return
    publisher.send(*(Publish(topic=ctx.topic(), qos=2, packet_id=number) for number in identifiers))
    received = [(await publisher.expect(Pubrec)).packet_id for _ in identifiers]
    _check_order(ctx, "PUBRECs", identifiers, received)
    publisher.send(*(Pubrel(packet_id=number) for number in identifiers))
    for _ in identifiers:
        await publisher.expect(Pubcomp)


def _check_order(ctx: CaseContext, what: str, wanted: list[int], seen: list[int]) -> None:
    text = f"publisher: expected {what} {wanted}; seen {seen}"
    ctx.must(sorted(seen) == wanted, text)
    ctx.should(seen == wanted, text)


@case(
    "mqtt311/order/pubrels-follow-the-pubrecs",
    clauses=("MQTT-4.6.0-4", "MQTT-4.6.0-6", "MQTT-4.3.3-1"),
    requires=("qos2",),
    mutant="v3-pubrels-reversed",
    near_miss="v3-one-packet-at-a-time",
)
async def pubrels(ctx: CaseContext) -> None:
    """The broker sends PUBRELs in the order in which the PUBRECs came.

    Three QoS 2 messages are delivered, their PUBRECs sent in one write in the order of delivery; so come the PUBRELs.
    Unsupported on a broker that has one message under way at a time.
    """
    topic = ctx.topic()
    subscriber = await ctx.connect(name="subscriber")
    await subscribe_at(ctx, subscriber, topic, qos=2)
    publisher = await ctx.connect(name="publisher")
    async with publishing(publisher, topic, b"0", b"1", b"2", qos=2):
        messages = await under_way(ctx, subscriber, topic, 3)
        identifiers = [message.packet_id for message in messages]
        subscriber.send(*(Pubrec(packet_id=packet_id) for packet_id in identifiers))
        released = [(await subscriber.expect(Pubrel, skipping=(Publish,))).packet_id for _ in identifiers]
        ctx.must(released == identifiers, f"subscriber: expected PUBRELs {identifiers}; seen {released}")
        subscriber.send(*(Pubcomp(packet_id=packet_id) for packet_id in identifiers))
        for _ in range(3 - len(messages)):
            await subscriber.expect_publish(topic)
    await subscriber.expect_nothing()


@case(
    "mqtt311/order/retained-then-live",
    clauses=("MQTT-3.3.1-6", "MQTT-3.3.1-9", "MQTT-4.6.0-6"),
    requires=("retain",),
    mutant="v3-retained-sent-twice",
    near_miss="v3-one-packet-at-a-time",
)
async def retained_then_live(ctx: CaseContext) -> None:
    """A subscriber sees the retained message once, and the live ones once and in order.

    A message is retained; after the subscription three more follow on the same topic. That the retained one comes first
    is a SHOULD: 3.8.4 does not say when it is sent, and 4.6.0-6 orders messages that are being published, of one QoS.
    """
    topic = ctx.topic()
    publisher = await ctx.connect(name="publisher")
    await publisher.publish(topic, b"kept", qos=1, retain=True)
    subscriber = await ctx.connect(name="subscriber")
    await subscriber.subscribe(topic)
    for number in range(3):
        await publisher.publish(topic, str(number).encode())
    found = await delivered(ctx, publisher, subscriber, at_least=4)
    seen = [message.payload for message in found]
    wanted = [b"kept", b"0", b"1", b"2"]
    text = f"subscriber: expected {wanted}; seen {[describe(message) for message in found]}"
    ctx.must(sorted(seen, key=b"kept".__ne__) == wanted, text)
    ctx.should(seen == wanted, text)
    for message in found:
        subscriber.check_flag(message, retain=message.payload == b"kept")

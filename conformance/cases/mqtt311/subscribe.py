"""SUBSCRIBE and UNSUBSCRIBE (MQTT 3.1.1, 3.8 to 3.11)."""

from __future__ import annotations

from assay.conformance.case import CaseContext, case
from assay.conformance.cases.mqtt5.support import delivered, subscribe_at
from assay.conformance.connection import FIRST_FAILURE_CODE
from assay.conformance.wire import (
    Pubcomp,
    Pubrec,
    Pubrel,
    Suback,
    Subscribe,
    Subscription,
    Unsuback,
    Unsubscribe,
    describe,
)
from assay.conformance.wire.encode import raw_packet, string, uint16

_SUBSCRIBE = 0x82
_UNSUBSCRIBE = 0xA2


@case(
    "mqtt311/subscribe/suback-answers-each-filter-in-order",
    clauses=("MQTT-3.8.4-1", "MQTT-3.8.4-2", "MQTT-3.8.4-5", "MQTT-3.9.3-1", "MQTT-3.9.3-2", "MQTT-2.3.1-7"),
    mutant="v3-suback-codes-reversed",
    near_miss="v3-grants-at-most-qos-1",
)
async def suback(ctx: CaseContext) -> None:
    """SUBACK has the identifier of its SUBSCRIBE and one return code a filter, in the order of the filters.

    Four filters ask for QoS 2, 0, 1 and 0. Each code is at most the QoS asked for, or 0x80.
    """
    wanted = (2, 0, 1, 0)
    entries = tuple(Subscription(filter=ctx.topic(str(index)), qos=qos) for index, qos in enumerate(wanted))
    connection = await ctx.connect()
    connection.send(Subscribe(packet_id=0x1234, subscriptions=entries))
    answer = await connection.expect(Suback)
    ctx.must(answer.packet_id == 0x1234, f"expected SUBACK 4660; seen {describe(answer)}")
    ctx.must(len(answer.reason_codes) == len(wanted), f"expected {len(wanted)} return codes; seen {describe(answer)}")
    for code, qos in zip(answer.reason_codes, wanted, strict=True):
        ctx.must(code <= qos or code == FIRST_FAILURE_CODE, f"expected codes for QoS {wanted}; seen {describe(answer)}")
    # One that grants nobody anything cannot be judged by messages.
    ctx.must(min(answer.reason_codes) < FIRST_FAILURE_CODE, f"expected some to be granted; seen {describe(answer)}")
    ctx.should(
        answer.reason_codes == wanted or not ctx.capabilities["qos2"],
        f"the broker grants less than was asked for: {describe(answer)}",
    )


@case(
    "mqtt311/subscribe/every-filter-of-one-packet-counts",
    clauses=("MQTT-3.8.4-4",),
    mutant="v3-only-first-filter-subscribed",
)
async def many_filters(ctx: CaseContext) -> None:
    """A SUBSCRIBE with many filters acts like one SUBSCRIBE for each.

    A message to each of three filters subscribed to by one packet arrives.
    """
    topics = [ctx.topic(str(number)) for number in range(3)]
    subscriber = await ctx.connect(name="subscriber")
    await subscriber.subscribe(*topics)
    publisher = await ctx.connect(name="publisher")
    for topic in topics:
        await publisher.publish(topic, b"for a filter")
    found = sorted(message.topic for message in await delivered(ctx, publisher, subscriber, at_least=3))
    ctx.must(found == topics, f"subscriber: expected messages of {topics}; seen {found}")


@case(
    "mqtt311/subscribe/same-filter-replaces-the-subscription",
    clauses=("MQTT-3.8.4-3",),
    requires=("qos1",),
    mutant="v3-first-subscription-stays",
    near_miss="v3-one-copy-per-subscription",
)
async def replaces(ctx: CaseContext) -> None:
    """A second SUBSCRIBE with the same filter replaces the first subscription.

    The QoS goes from 0 to 1 and back to 0. After each step one message arrives once, at the new QoS.
    """
    topic = ctx.topic()
    subscriber = await ctx.connect(name="subscriber")
    publisher = await ctx.connect(name="publisher")
    for qos in (0, 1, 0):
        await subscriber.subscribe(topic, qos=qos)
        await publisher.publish(topic, b"message", qos=1)
        await subscriber.expect_publish(topic, qos=qos)
    await ctx.expect_no_message(publisher, subscriber)


@case(
    "mqtt311/subscribe/same-filter-again-sends-retained-again",
    clauses=("MQTT-3.8.4-3", "MQTT-3.3.1-6"),
    requires=("retain",),
    mutant="v3-retained-once-per-client",
)
async def retained_again(ctx: CaseContext) -> None:
    """Subscribing again to a filter sends its retained message again.

    (A bug that several brokers had, e.g. emqx/emqx issue 1314.)
    """
    topic = ctx.topic()
    publisher = await ctx.connect(name="publisher")
    await publisher.publish(topic, b"kept", qos=1, retain=True)
    subscriber = await ctx.connect(name="subscriber")
    for _ in range(2):
        await subscriber.subscribe(topic)
        await subscriber.expect_publish(topic, b"kept", retain=True)


@case(
    "mqtt311/subscribe/options-must-be-a-qos",
    clauses=("MQTT-3.8.3-4",),
    mutant="v3-subscribe-qos-3",
)
async def bad_qos(ctx: CaseContext) -> None:
    """A requested QoS of 3, or a reserved bit beside the QoS, ends the connection.

    Each of the options 0x03, 0x04 and 0x81 is sent on a connection of its own; no SUBACK comes.
    """
    for options in (0x03, 0x04, 0x81):
        connection = await ctx.connect(name=f"options {options:02x}")
        connection.send_raw(raw_packet(_SUBSCRIBE, uint16(1) + string(ctx.topic()) + bytes((options,))))
        await connection.expect_close()


@case(
    "mqtt311/subscribe/needs-a-filter",
    clauses=("MQTT-3.8.3-3", "MQTT-3.10.3-2", "MQTT-4.8.0-1"),
    mutant="v3-no-filter-needed",
)
async def no_filter(ctx: CaseContext) -> None:
    """A SUBSCRIBE or UNSUBSCRIBE without any filter ends the connection.

    Both packets are sent with a packet identifier and nothing else.
    """
    for name, header in (("subscribe", _SUBSCRIBE), ("unsubscribe", _UNSUBSCRIBE)):
        connection = await ctx.connect(name=name)
        connection.send_raw(raw_packet(header, uint16(1)))
        await connection.expect_close()


@case(
    "mqtt311/subscribe/empty-filter-is-not-accepted",
    clauses=("MQTT-4.7.3-1",),
    mutant="v3-empty-filter",
    near_miss="v3-bad-filters-get-code-80",
)
async def empty_filter(ctx: CaseContext) -> None:
    """A topic filter has at least one character.

    The broker may refuse with 0x80 or end the connection, which is argued over; it must not grant the subscription.
    """
    connection = await ctx.connect()
    connection.send_raw(raw_packet(_SUBSCRIBE, uint16(1) + string("") + b"\0"))
    for packet in await connection.expect_refused_subscription():
        ctx.should(False, f"the broker answers an empty filter in place of ending the connection: {describe(packet)}")


@case(
    "mqtt311/subscribe/wildcards-stand-alone",
    clauses=("MQTT-4.7.1-2", "MQTT-4.7.1-3"),
    mutant="v3-any-filter-accepted",
    near_miss="v3-bad-filters-get-code-80",
)
async def bad_wildcards(ctx: CaseContext) -> None:
    """A wildcard takes a whole level, and # only the last one.

    Filters with a+, +a, a# and with # before the end. The broker may refuse each with 0x80 or end the connection, which
    is argued over; it must not grant the subscription.
    """
    answered = []
    for levels in ("a+/b", "+a", "a#", "#a", "#/a", "a/#/b"):
        connection = await ctx.connect(name=levels)
        connection.send_raw(raw_packet(_SUBSCRIBE, uint16(1) + string(ctx.topic(levels)) + b"\0"))
        answered += [describe(packet) for packet in await connection.expect_refused_subscription()]
    ctx.should(not answered, "the broker answers bad filters in place of ending the connection")


@case(
    "mqtt311/subscribe/overlapping-filters-keep-the-highest-qos",
    clauses=("MQTT-3.3.5-1",),
    requires=("qos2", "wildcards"),
    mutant="v3-overlap-takes-the-lowest-qos",
    near_miss="v3-one-copy-per-subscription",
)
async def overlapping(ctx: CaseContext) -> None:
    """Where several filters of a client match, the message comes at the highest QoS granted.

    Pairs of overlapping filters at QoS 2 and lower, in both orders. One or more copies are fine; the best of them must
    be at the highest QoS granted. (eclipse-mosquitto/mosquitto issue 3319.)
    """
    publisher = await ctx.connect(name="publisher")
    pairs = ((("#", 2), ("+", 1)), (("+", 1), ("#", 2)), (("t", 2), ("+", 0)), (("#", 0), ("t", 2)))
    for number, pair in enumerate(pairs):
        shown = " and ".join(f"{level}@{qos}" for level, qos in pair)
        subscriber = await ctx.connect(name=shown)
        entries = (Subscription(filter=ctx.topic(f"{number}/{level}"), qos=qos) for level, qos in pair)
        granted = max(await subscriber.subscribe(*entries))
        await publisher.publish(ctx.topic(f"{number}/t"), b"overlap", qos=2)
        found = [message.qos for message in await delivered(ctx, publisher, subscriber, qos=2, at_least=1)]
        ctx.must(bool(found), f"{shown}: expected the message; seen nothing")
        ctx.must(max(found) == granted, f"{shown}: expected a delivery at QoS {granted}; seen QoS {found}")


@case(
    "mqtt311/unsubscribe/stops-delivery",
    clauses=("MQTT-3.10.4-2", "MQTT-3.10.4-4", "MQTT-2.3.1-7"),
    mutant="v3-unsubscribe-keeps-delivering",
)
async def unsubscribe_stops(ctx: CaseContext) -> None:
    """After UNSUBACK no new message of the filter comes.

    A message arrives while subscribed; the next one, published after the UNSUBACK, does not. UNSUBACK has the
    identifier of its UNSUBSCRIBE.
    """
    topic = ctx.topic()
    subscriber = await ctx.connect(name="subscriber")
    publisher = await ctx.connect(name="publisher")
    await subscriber.subscribe(topic)
    await publisher.publish(topic, b"wanted")
    await subscriber.expect_publish(topic, b"wanted")
    subscriber.send(Unsubscribe(packet_id=0x4321, filters=(topic,)))
    answer = await subscriber.expect(Unsuback)
    ctx.must(answer.packet_id == 0x4321, f"subscriber: expected UNSUBACK 17185; seen {describe(answer)}")
    await publisher.publish(topic, b"no longer wanted")
    await ctx.expect_no_message(publisher, subscriber)


@case(
    "mqtt311/unsubscribe/unknown-filter-is-acknowledged",
    clauses=("MQTT-3.10.4-5", "MQTT-3.10.4-4"),
    mutant="v3-unsuback-only-for-known-filters",
)
async def unsubscribe_unknown(ctx: CaseContext) -> None:
    """UNSUBSCRIBE of a filter that was never subscribed to is acknowledged.

    A fresh client gets the UNSUBACK with the identifier of its UNSUBSCRIBE.
    """
    connection = await ctx.connect()
    connection.send(Unsubscribe(packet_id=0xABCD, filters=(ctx.topic("unknown/#"),)))
    answer = await connection.expect(Unsuback)
    ctx.must(answer.packet_id == 0xABCD, f"expected UNSUBACK 43981; seen {describe(answer)}")


@case(
    "mqtt311/unsubscribe/compares-filters-character-by-character",
    clauses=("MQTT-3.10.4-1",),
    requires=("wildcards",),
    mutant="v3-unsubscribe-matches-wildcards",
)
async def unsubscribe_exact(ctx: CaseContext) -> None:
    """UNSUBSCRIBE takes away the subscription with exactly that filter and no other.

    A client subscribed to x/a and x/# unsubscribes from x/+, X/a and x/a/; a message to x/a still comes. Then x/# goes,
    and x/a stays.
    """
    subscriber = await ctx.connect(name="subscriber")
    publisher = await ctx.connect(name="publisher")
    await subscriber.subscribe(ctx.topic("x/a"))
    await subscriber.unsubscribe(ctx.topic("x/+"), ctx.topic("X/a"), ctx.topic("x/a/"), ctx.topic("x/#"))
    await publisher.publish(ctx.topic("x/a"), b"still subscribed")
    await subscriber.expect_publish(ctx.topic("x/a"), b"still subscribed")
    await subscriber.subscribe(ctx.topic("y/#"), ctx.topic("y/a"))
    await subscriber.unsubscribe(ctx.topic("y/#"))
    await publisher.publish(ctx.topic("y/a"), b"still subscribed")
    await subscriber.expect_publish(ctx.topic("y/a"), b"still subscribed")


@case(
    "mqtt311/unsubscribe/every-filter-of-one-packet-counts",
    clauses=("MQTT-3.10.4-6", "MQTT-3.10.4-2"),
    mutant="v3-only-first-filter-unsubscribed",
)
async def unsubscribe_many(ctx: CaseContext) -> None:
    """An UNSUBSCRIBE with many filters ends all of them and is answered by one UNSUBACK.

    Three subscriptions are ended by one packet. No message of theirs comes afterwards.
    """
    topics = [ctx.topic(str(number)) for number in range(3)]
    subscriber = await ctx.connect(name="subscriber")
    await subscriber.subscribe(*topics)
    await subscriber.unsubscribe(*topics)
    await subscriber.expect_nothing()
    publisher = await ctx.connect(name="publisher")
    for topic in topics:
        await publisher.publish(topic, b"no longer wanted")
    await ctx.expect_no_message(publisher, subscriber)


@case(
    "mqtt311/unsubscribe/finishes-what-was-started",
    clauses=("MQTT-3.10.4-3", "MQTT-4.3.3-1"),
    requires=("qos2",),
    mutant="v3-unsubscribe-drops-in-flight",
    near_miss="v3-qos-2-published-at-pubrel",
)
async def unsubscribe_finishes(ctx: CaseContext) -> None:
    """A QoS 2 delivery that has begun is completed after UNSUBSCRIBE.

    The subscriber unsubscribes between PUBLISH and PUBREC. Its PUBREC is answered by PUBREL as before.
    """
    topic = ctx.topic()
    subscriber = await ctx.connect(name="subscriber")
    await subscribe_at(ctx, subscriber, topic, qos=2)
    publisher = await ctx.connect(name="publisher")
    await publisher.publish(topic, b"begun", qos=2)
    message = await subscriber.expect_publish(topic, qos=2, ack=False)
    await subscriber.unsubscribe(topic)
    subscriber.send(Pubrec(packet_id=message.packet_id))
    pubrel = await subscriber.expect(Pubrel)
    ctx.must(pubrel.packet_id == message.packet_id, f"expected PUBREL {message.packet_id}; seen {describe(pubrel)}")
    subscriber.send(Pubcomp(packet_id=message.packet_id))
    await subscriber.expect_nothing()

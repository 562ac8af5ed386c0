"""SUBSCRIBE and SUBACK: subscription options, identifiers and replacement (MQTT 5.0, 3.8 and 3.9)."""

from __future__ import annotations

from assay.conformance.case import CaseContext, case
from assay.conformance.cases.mqtt5.support import delivered, expect_error, publishing, subscribe_at, subscribe_to_many
from assay.conformance.connection import Connection
from assay.conformance.rules import Rule
from assay.conformance.wire import Properties, Publish, Suback, Subscribe, Subscription, describe
from assay.conformance.wire.encode import property_block, raw_packet, string, uint16

_SUBSCRIBE_BYTE = 0x82
_FIRST_FAILURE = 0x80


def _raw_subscribe(filter_: str, options: int, *, first_byte: int = _SUBSCRIBE_BYTE) -> bytes:
    """A SUBSCRIBE with one filter and any options byte."""
    body = uint16(1) + property_block(Properties()) + string(filter_) + bytes((options,))
    return raw_packet(first_byte, body)


async def _identified(connection: Connection, filter_: str, identifier: int, *, qos: int = 0) -> None:
    """Subscribe with a Subscription Identifier."""
    await connection.subscribe(filter_, qos=qos, properties=Properties(subscription_identifier=(identifier,)))


@case(
    "mqtt5/subscribe/suback-answers-filter-by-filter",
    clauses=(
        "MQTT-3.8.4-1",
        "MQTT-3.8.4-2",
        "MQTT-3.8.4-5",
        "MQTT-3.8.4-6",
        "MQTT-3.8.4-7",
        "MQTT-3.9.3-1",
        "MQTT-3.9.3-2",
        "MQTT-2.2.1-6",
    ),
    mutant="v5-suback-codes-reversed",
    near_miss="v5-grants-at-most-qos-1",
)
async def suback(ctx: CaseContext) -> None:
    """SUBACK has the identifier of its SUBSCRIBE and one reason code for each filter, in their order.

    Four filters ask for QoS 0, 2, 1 and 0 under packet identifier 40000. The answer is one SUBACK with that
    identifier and four codes, none above the QoS asked for at its place; a message shows that the filters are in
    force.
    """
    connection = await ctx.connect()
    wanted = (0, 2, 1, 0)
    topics = [ctx.topic(f"s/{number}") for number in range(len(wanted))]
    entries = tuple(Subscription(filter=topic, qos=qos) for topic, qos in zip(topics, wanted, strict=True))
    connection.send(Subscribe(packet_id=40_000, subscriptions=entries))
    ack = await connection.expect(Suback)
    ctx.must(
        ack.packet_id == 40_000 and len(ack.reason_codes) == len(wanted),
        f"expected SUBACK 40000 with {len(wanted)} codes; seen {describe(ack)}",
    )
    for granted, asked in zip(ack.reason_codes, wanted, strict=True):
        ctx.must(granted <= asked, f"expected codes of at most {wanted}, in order; seen {describe(ack)}")
    await connection.expect_nothing()
    for topic in topics:
        await connection.publish(topic, topic.encode())
        await connection.expect_publish(topic, topic.encode())


@case(
    "mqtt5/subscribe/without-filter-refused",
    clauses=("MQTT-3.8.3-2", "MQTT-4.13.1-1"),
    mutant="v5-empty-subscribe-accepted",
    near_miss="v5-closes-silently",
)
async def no_filter(ctx: CaseContext) -> None:
    """A SUBSCRIBE names at least one filter.

    A SUBSCRIBE that ends behind its properties ends the connection.
    """
    connection = await ctx.connect()
    connection.send(Subscribe(packet_id=1, subscriptions=()))
    await expect_error(ctx, connection)


@case(
    "mqtt5/subscribe/reserved-option-bits-refused",
    clauses=("MQTT-3.8.3-5", "MQTT-4.13.1-1"),
    mutant="v5-reserved-option-bits-accepted",
    near_miss="v5-closes-silently",
)
async def reserved_options(ctx: CaseContext) -> None:
    """The two highest bits of the subscription options are reserved.

    SUBSCRIBE packets with one of them set end their connections, without SUBACK.
    """
    for options in (0x40, 0x80):
        connection = await ctx.connect(name=f"options {options:#04x}")
        connection.send_raw(_raw_subscribe(ctx.topic(), options))
        await expect_error(ctx, connection)


@case(
    "mqtt5/subscribe/qos-3-refused",
    clauses=("MQTT-3.9.3-2", "MQTT-4.13.1-1"),
    mutant="v5-subscribe-qos-3-accepted",
    near_miss="v5-closes-silently",
)
async def qos_3(ctx: CaseContext) -> None:
    """Nobody can subscribe at QoS 3.

    A SUBSCRIBE with maximum QoS 3 ends the connection; above all it gets no SUBACK that grants 3.
    """
    connection = await ctx.connect()
    connection.send_raw(_raw_subscribe(ctx.topic(), 0x03))
    await expect_error(ctx, connection)


@case(
    "mqtt5/subscribe/retain-handling-3-refused",
    clauses=("MQTT-4.13.1-1",),
    mutant="v5-retain-handling-3-accepted",
    near_miss="v5-closes-silently",
)
async def retain_handling_3(ctx: CaseContext) -> None:
    """Retain Handling is 0, 1 or 2.

    A SUBSCRIBE with retain handling 3 ends the connection.
    """
    connection = await ctx.connect()
    connection.send_raw(_raw_subscribe(ctx.topic(), 0x30))
    await expect_error(ctx, connection)


@case(
    "mqtt5/subscribe/packet-identifier-0-refused",
    clauses=("MQTT-4.13.1-1",),
    mutant="v5-subscribe-identifier-0-accepted",
    near_miss="v5-closes-silently",
)
async def identifier_0(ctx: CaseContext) -> None:
    """A SUBSCRIBE has a packet identifier other than 0.

    A SUBSCRIBE with identifier 0 ends the connection.
    """
    connection = await ctx.connect()
    connection.send(Subscribe(packet_id=0, subscriptions=(Subscription(filter=ctx.topic()),)))
    await expect_error(ctx, connection)


@case(
    "mqtt5/subscribe/no-local-spares-the-publisher",
    clauses=("MQTT-3.8.3-3",),
    mutant="v5-no-local-ignored",
    near_miss="v5-writes-in-pieces",
)
async def no_local(ctx: CaseContext) -> None:
    """With No Local a client does not get its own messages, but does get those of others.

    A client subscribes with No Local and publishes to that topic, and another client publishes too. The first gets
    the message of the other only. Without No Local it gets its own as well.
    """
    topic, control_topic = ctx.topic("own"), ctx.topic("control")
    client = await ctx.connect(name="client")
    await client.subscribe(Subscription(filter=topic, no_local=True), control_topic)
    other = await ctx.connect(name="other")
    await client.publish(topic, b"mine")
    await client.publish(control_topic, b"mine")
    await client.expect_publish(control_topic, b"mine")
    await other.publish(topic, b"from another")
    await client.expect_publish(topic, b"from another")
    await client.expect_nothing()


@case(
    "mqtt5/subscribe/retain-as-published",
    clauses=("MQTT-3.3.1-12", "MQTT-3.3.1-13"),
    requires=("retain",),
    mutant="v5-retain-as-published-ignored",
    near_miss="v5-retained-before-suback",
)
async def retain_as_published(ctx: CaseContext) -> None:
    """Retain As Published decides whether a forwarded message keeps its RETAIN flag.

    Two clients are subscribed, one with the option and one without, when a message is published with RETAIN 1 and
    another with RETAIN 0. The first client sees 1 and 0, the second sees 0 and 0.
    """
    topic = ctx.topic()
    keeping = await ctx.connect(name="keeping")
    await keeping.subscribe(Subscription(filter=topic, retain_as_published=True))
    clearing = await ctx.connect(name="clearing")
    await clearing.subscribe(topic)
    publisher = await ctx.connect(name="publisher")
    for retain in (True, False):
        await publisher.publish(topic, b"m", retain=retain)
        await keeping.expect_publish(topic, b"m", retain=retain)
        await clearing.expect_publish(topic, b"m", retain=False)


@case(
    "mqtt5/subscribe/options-hold-with-wildcards",
    clauses=("MQTT-3.3.1-13", "MQTT-3.8.3-3", "MQTT-3.3.4-3"),
    requires=("retain", "wildcards", "qos1", "subscription_identifiers"),
    mutant="v5-retain-as-published-ignored-with-wildcards",
    kills=("v5-no-local-ignored-with-wildcards",),
    near_miss="v5-retained-before-suback",
)
async def options_with_wildcards(ctx: CaseContext) -> None:
    """Retain As Published, No Local and the identifier of a subscription hold for filters with wildcards, too.

    Clients subscribe to +, #, and what is below their topic, with all three. A message with RETAIN 1 keeps the flag and
    has the identifier; what a client publishes itself does not come back.
    """
    publisher = await ctx.connect(name="publisher")
    for number, pattern in enumerate(("+/leaf", "#", "root/+", "root/leaf/#"), 1):
        topic, topic_filter = ctx.topic(f"{number}/root/leaf"), ctx.topic(f"{number}/{pattern}")
        client = await ctx.connect(name=pattern)
        # Nothing says when retained messages are looked up: one that comes live might come so a second time.
        entry = Subscription(filter=topic_filter, qos=1, retain_as_published=True, no_local=True, retain_handling=2)
        await client.subscribe(entry, properties=Properties(subscription_identifier=(number,)))
        await publisher.publish(topic, b"theirs", qos=1, retain=True)
        message = await client.expect_publish(topic, b"theirs", retain=True)
        seen = message.properties.subscription_identifier
        ctx.must(seen == (number,), f"{pattern}: expected the identifier {number}; seen {describe(message)}")
        await client.publish(topic, b"own", qos=1)
        await ctx.expect_no_message(publisher, client)


@case(
    "mqtt5/subscribe/same-filter-replaces",
    clauses=("MQTT-3.8.4-3",),
    requires=("qos1",),
    mutant="v5-resubscribe-keeps-old",
    near_miss="v5-grants-at-most-qos-1",
)
async def replaces(ctx: CaseContext) -> None:
    """Subscribing to the same filter again replaces the subscription.

    A client subscribes at QoS 1 and then at QoS 0 to one filter. A QoS 1 message arrives once, at QoS 0.
    """
    topic = ctx.topic()
    client = await ctx.connect(name="client")
    await subscribe_at(ctx, client, topic, qos=1)
    await client.subscribe(topic, qos=0)
    publisher = await ctx.connect(name="publisher")
    await publisher.publish(topic, b"once", qos=1)
    await client.expect_publish(topic, b"once", qos=0)
    await ctx.expect_no_message(publisher, client)


@case(
    "mqtt5/subscribe/replacing-loses-nothing",
    clauses=("MQTT-3.8.4-4", "MQTT-3.8.4-3"),
    requires=("qos1",),
    mutant="v5-resubscribe-drops-waiting",
    near_miss="v5-writes-in-pieces",
)
async def replacing_loses_nothing(ctx: CaseContext) -> None:
    """Replacing a subscription interrupts nothing.

    A client that takes one QoS 1 message at a time has three of them waiting when it subscribes to the same filter
    again. It gets all three.
    """
    topic = ctx.topic()
    client = await ctx.connect(name="client", properties=Properties(receive_maximum=1))
    await subscribe_at(ctx, client, topic, qos=1)
    publisher = await ctx.connect(name="publisher")
    payloads = [b"1", b"2", b"3"]
    async with publishing(publisher, topic, *payloads, qos=1):
        first = await client.expect_publish(topic, b"1", ack=False)
        await subscribe_at(ctx, client, topic, qos=1)
        await client.acknowledge(first)
        for payload in payloads[1:]:
            await client.expect_publish(topic, payload)


@case(
    "mqtt5/subscribe/overlapping-filters-give-the-best-qos",
    clauses=("MQTT-3.3.4-2",),
    requires=("qos1", "qos2", "wildcards"),
    mutant="v5-overlap-takes-lowest-qos",
    near_miss="v5-one-copy-per-subscription",
)
async def overlapping(ctx: CaseContext) -> None:
    """A message that matches several filters of a client arrives with the best QoS of them.

    Pairs of overlapping filters at QoS 2 and lower, in both orders and with and without wildcards, get a QoS 2
    message. Whether it comes once or once for each filter, the highest QoS among the copies is 2.
    """
    publisher = await ctx.connect(name="publisher")
    pairs = (("#", 2, "+", 1), ("+", 1, "#", 2), ("t", 0, "#", 2), ("#", 0, "t", 2), ("t", 2, "+", 0))
    for number, (first, first_qos, second, second_qos) in enumerate(pairs):
        base = ctx.topic(f"{number}")
        subscriber = await ctx.connect(name=f"{first}@{first_qos} {second}@{second_qos}")
        granted = await subscriber.subscribe(
            Subscription(filter=f"{base}/{first}", qos=first_qos),
            Subscription(filter=f"{base}/{second}", qos=second_qos),
        )
        await publisher.publish(f"{base}/t", b"m", qos=2)
        best = (await subscriber.expect_publish(f"{base}/t", b"m")).qos
        for copy in await delivered(ctx, publisher, subscriber, qos=2):
            best = max(best, copy.qos)
        ctx.must(
            best == max(granted), f"{subscriber.name}: expected a copy at QoS {max(granted)}; the best had QoS {best}"
        )
        await subscriber.disconnect()


@case(
    "mqtt5/subscribe/identifier-comes-with-the-message",
    clauses=("MQTT-3.3.4-3",),
    requires=("subscription_identifiers",),
    mutant="v5-subscription-identifier-dropped",
    near_miss="v5-writes-in-pieces",
)
async def identifier(ctx: CaseContext) -> None:
    """A message carries the identifier of the subscription that it matches.

    Identifiers 1 and 268435455, the smallest and the largest, are given to two subscriptions; a third has none. A
    message to each arrives with exactly its identifier, and without one for the third.
    """
    client = await ctx.connect(name="client")
    topics = {1: ctx.topic("small"), 268_435_455: ctx.topic("large")}
    for number, topic in topics.items():
        await _identified(client, topic, number)
    plain = ctx.topic("plain")
    await client.subscribe(plain)
    publisher = await ctx.connect(name="publisher")
    for wanted, topic in (*(((number,), topic) for number, topic in topics.items()), ((), plain)):
        await publisher.publish(topic, b"m")
        message = await client.expect_publish(topic, b"m")
        found = message.properties.subscription_identifier
        ctx.must(found == wanted, f"client: expected subscription identifiers {wanted}; seen {found}")


@case(
    "mqtt5/subscribe/all-matching-identifiers-come",
    clauses=("MQTT-3.3.4-3", "MQTT-3.3.4-4", "MQTT-3.3.4-5"),
    requires=("subscription_identifiers", "wildcards"),
    mutant="v5-only-one-subscription-identifier",
    near_miss="v5-one-copy-per-subscription",
)
async def all_identifiers(ctx: CaseContext) -> None:
    """The identifiers of all matching subscriptions reach the client, in one copy or with one copy each.

    Three filters match one topic, with identifiers 11, 22 and none. A single copy names 11 and 22. Several copies
    name the identifier of their own subscription each, so that 11 and 22 come once in all.
    """
    client = await ctx.connect(name="client")
    await _identified(client, ctx.topic("a/#"), 11)
    await _identified(client, ctx.topic("a/+"), 22)
    await client.subscribe(ctx.topic("a/b"))
    publisher = await ctx.connect(name="publisher")
    await publisher.publish(ctx.topic("a/b"), b"m")
    copies = await delivered(ctx, publisher, client, at_least=1)
    found = sorted(number for copy in copies for number in copy.properties.subscription_identifier)
    whole = [copy for copy in copies if set(copy.properties.subscription_identifier) == {11, 22}]
    ctx.step(Rule.COPIES, len(whole) <= 1, f"client: expected one copy for all; seen {whole}", soft=True)
    ctx.must(
        found == [11, 22], f"client: expected identifiers 11 and 22 once each; seen {found} in {len(copies)} copies"
    )


@case(
    "mqtt5/subscribe/identifier-comes-with-retained-messages",
    clauses=("MQTT-3.3.4-3", "MQTT-3.3.1-9"),
    requires=("subscription_identifiers", "retain", "qos1"),
    mutant="v5-retained-without-subscription-identifier",
    near_miss="v5-retained-before-suback",
)
async def identifier_on_retained(ctx: CaseContext) -> None:
    """A retained message, too, carries the identifier of the subscription that brings it.

    A retained message exists when a client subscribes with identifier 7. It arrives with identifier 7.
    """
    topic = ctx.topic()
    publisher = await ctx.connect(name="publisher")
    await publisher.publish(topic, b"kept", qos=1, retain=True)
    await publisher.barrier()
    client = await ctx.connect(name="client")
    await _identified(client, topic, 7)
    message = await client.expect_publish(topic, b"kept", retain=True)
    found = message.properties.subscription_identifier
    ctx.must(found == (7,), f"client: expected subscription identifier 7; seen {found}")


@case(
    "mqtt5/subscribe/identifier-is-replaced-too",
    clauses=("MQTT-3.8.4-3", "MQTT-3.3.4-3"),
    requires=("subscription_identifiers",),
    mutant="v5-resubscribe-keeps-old",
    near_miss="v5-writes-in-pieces",
)
async def identifier_replaced(ctx: CaseContext) -> None:
    """Replacing a subscription replaces its identifier, or takes it away.

    One filter is subscribed to with identifier 1, then 2, then none. A message after each step carries what was given
    last.
    """
    topic = ctx.topic()
    client = await ctx.connect(name="client")
    publisher = await ctx.connect(name="publisher")
    for wanted in ((1,), (2,), ()):
        await client.subscribe(topic, properties=Properties(subscription_identifier=wanted))
        await publisher.publish(topic, b"m")
        message = await client.expect_publish(topic, b"m")
        found = message.properties.subscription_identifier
        ctx.must(found == wanted, f"client: expected subscription identifiers {wanted}; seen {found}")


@case(
    "mqtt5/subscribe/bad-identifiers-refused",
    clauses=("MQTT-4.13.1-1",),
    requires=("subscription_identifiers",),
    mutant="v5-subscription-identifier-0-accepted",
    near_miss="v5-closes-silently",
)
async def bad_identifiers(ctx: CaseContext) -> None:
    """A SUBSCRIBE has at most one Subscription Identifier, and it is not 0.

    Two SUBSCRIBE packets, with identifier 0 and with two identifiers, end their connections.
    """
    entries = (Subscription(filter=ctx.topic()),)
    for name, identifiers in (("zero", (0,)), ("two", (1, 2))):
        connection = await ctx.connect(name=name)
        properties = Properties(subscription_identifier=identifiers)
        connection.send(Subscribe(packet_id=1, subscriptions=entries, properties=properties))
        await expect_error(ctx, connection)


@case(
    "mqtt5/subscribe/misplaced-wildcards-not-granted",
    clauses=("MQTT-4.7.1-1", "MQTT-4.7.1-2"),
    requires=("wildcards",),
    mutant="v5-misplaced-wildcards-granted",
    near_miss="v5-closes-silently",
)
async def misplaced_wildcards(ctx: CaseContext) -> None:
    """A filter with a wildcard in the wrong place is not granted.

    Four such filters, each on a connection of its own. The broker ends the connection or says a failure in SUBACK:
    which of the two is argued over, so both pass.
    """
    for path in ("a#", "#/a", "a+/b", "+b"):
        connection = await ctx.connect(name=path)
        connection.send(Subscribe(packet_id=1, subscriptions=(Subscription(filter=ctx.topic(path)),)))
        answer = await connection.receive("SUBACK or the end of the connection")
        if isinstance(answer, Suback):
            ctx.must(min(answer.reason_codes) >= _FIRST_FAILURE, f"{path}: expected a failure; seen {describe(answer)}")
        else:
            ctx.must(not isinstance(answer, Publish), f"{path}: expected no message; seen {answer}")


@case(
    "mqtt5/subscribe/many-filters-in-one-packet",
    clauses=("MQTT-3.8.4-5", "MQTT-3.8.4-6", "MQTT-3.9.3-1"),
    requires=("wildcards",),
    mutant="v5-many-filters-only-first-added",
    near_miss="few-subscriptions-for-each-client",
)
async def many_filters(ctx: CaseContext) -> None:
    """A SUBSCRIBE with many filters does what as many SUBSCRIBEs would do.

    Fifty filters are sent in one SUBSCRIBE. All are answered, and a message to the first, one in the middle and the
    last of those that are granted is delivered: how many a client may have is left to the broker.
    """
    client = await ctx.connect(name="client")
    topics = await subscribe_to_many(ctx, client, [ctx.topic(f"many/{number}") for number in range(50)])
    publisher = await ctx.connect(name="publisher")
    for topic in (topics[0], topics[len(topics) // 2], topics[-1]):
        await publisher.publish(topic, b"m")
        await client.expect_publish(topic, b"m")

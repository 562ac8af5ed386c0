"""Retained messages (MQTT 5.0, 3.3.1.3).

They are published at QoS 1 here: a server may drop one of QoS 0 whenever it likes.
"""

from __future__ import annotations

from assay.conformance.case import CaseContext, case
from assay.conformance.cases.mqtt5.support import delivered, pass_time
from assay.conformance.stall import Stopwatch
from assay.conformance.wire import Properties, Publish, Subscription


@case(
    "mqtt5/retained/new-subscriber-gets-the-last-one",
    clauses=("MQTT-3.3.1-5", "MQTT-3.3.1-9"),
    requires=("retain", "qos1"),
    mutant="v5-retained-not-replaced",
    near_miss="v5-retained-before-suback",
)
async def last_one(ctx: CaseContext) -> None:
    """A new subscription gets the newest retained message, with RETAIN 1 and at its QoS.

    Two messages are retained on one topic, the second at QoS 1. A client that subscribes afterwards at QoS 1 gets the
    second only.
    """
    topic = ctx.topic()
    publisher = await ctx.connect(name="publisher")
    await publisher.publish(topic, b"old", qos=1, retain=True)
    await publisher.publish(topic, b"new", qos=1, retain=True)
    client = await ctx.connect(name="client")
    (granted,) = await client.subscribe(topic, qos=1)
    await client.expect_publish(topic, b"new", retain=True, qos=min(granted, 1))
    await ctx.expect_no_message(publisher, client)


@case(
    "mqtt5/retained/empty-message-deletes",
    clauses=("MQTT-3.3.1-6", "MQTT-3.3.1-7"),
    requires=("retain", "qos1"),
    mutant="v5-empty-retained-ignored",
    near_miss="v5-retained-before-suback",
)
async def empty_deletes(ctx: CaseContext) -> None:
    """An empty retained message deletes the stored one, is delivered to subscribers, and is not stored itself.

    A present subscriber gets the empty message. A client that subscribes afterwards gets nothing.
    """
    topic = ctx.topic()
    publisher = await ctx.connect(name="publisher")
    await publisher.publish(topic, b"kept", qos=1, retain=True)
    present = await ctx.connect(name="present")
    await present.subscribe(topic)
    await present.expect_publish(topic, b"kept")
    await publisher.publish(topic, b"", qos=1, retain=True)
    await present.expect_publish(topic, b"")
    late = await ctx.connect(name="late")
    await late.subscribe(topic)
    await ctx.expect_no_message(publisher, late)


@case(
    "mqtt5/retained/plain-message-leaves-it-alone",
    clauses=("MQTT-3.3.1-8",),
    requires=("retain", "qos1"),
    mutant="v5-plain-message-replaces-retained",
    near_miss="v5-retained-before-suback",
)
async def plain_leaves(ctx: CaseContext) -> None:
    """A message without RETAIN is not stored, and neither replaces nor deletes the stored one.

    After a retained message, one with RETAIN 0 and an empty one with RETAIN 0 are published, each when the one before
    has come to a present subscriber. A new subscriber gets the retained one only.
    """
    topic = ctx.topic()
    present, publisher = await ctx.connect(name="present"), await ctx.connect(name="publisher")
    await present.subscribe(topic)
    await publisher.publish(topic, b"kept", qos=1, retain=True)
    await present.expect_publish(topic, b"kept")
    for payload in (b"passing", b""):
        await publisher.publish(topic, payload)
        await present.expect_publish(topic, payload)
    client = await ctx.connect(name="client")
    await client.subscribe(topic)
    await client.expect_publish(topic, b"kept", retain=True)
    await ctx.expect_no_message(publisher, client)


@case(
    "mqtt5/retained/handling-0-sends-at-every-subscribe",
    clauses=("MQTT-3.3.1-9", "MQTT-3.8.4-4"),
    requires=("retain", "qos1"),
    mutant="v5-retained-only-at-first-subscribe",
    near_miss="v5-retained-before-suback",
)
async def handling_0(ctx: CaseContext) -> None:
    """Retain Handling 0 sends the retained message at each SUBSCRIBE, also for a filter that exists already.

    A client subscribes twice to the same filter. The retained message comes twice.
    """
    topic = ctx.topic()
    publisher = await ctx.connect(name="publisher")
    await publisher.publish(topic, b"kept", qos=1, retain=True)
    await publisher.barrier()
    client = await ctx.connect(name="client")
    for _ in range(2):
        await client.subscribe(Subscription(filter=topic, retain_handling=0))
        await client.expect_publish(topic, b"kept", retain=True)


@case(
    "mqtt5/retained/handling-1-sends-only-to-new-subscriptions",
    clauses=("MQTT-3.3.1-10",),
    requires=("retain", "qos1"),
    mutant="v5-retain-handling-1-always-sends",
    near_miss="v5-retained-qos-0-not-kept",
)
async def handling_1(ctx: CaseContext) -> None:
    """Retain Handling 1 sends the retained message if the subscription is new, and not if it exists.

    A client subscribes twice with retain handling 1. The retained message comes after the first SUBSCRIBE, not after
    the second. After UNSUBSCRIBE the subscription is new once more, and it comes again.
    """
    topic = ctx.topic()
    entry = Subscription(filter=topic, retain_handling=1)
    publisher = await ctx.connect(name="publisher")
    await publisher.publish(topic, b"kept", qos=1, retain=True)
    await publisher.barrier()
    client = await ctx.connect(name="client")
    await client.subscribe(entry)
    await client.expect_publish(topic, b"kept", retain=True)
    await client.subscribe(entry)
    await ctx.expect_no_message(publisher, client)
    await client.unsubscribe(topic)
    await client.subscribe(entry)
    await client.expect_publish(topic, b"kept", retain=True)


@case(
    "mqtt5/retained/handling-2-sends-none",
    clauses=("MQTT-3.3.1-11",),
    requires=("retain", "qos1"),
    mutant="v5-retain-handling-2-sends",
    near_miss="v5-retained-before-suback",
)
async def handling_2(ctx: CaseContext) -> None:
    """Retain Handling 2 sends no retained messages.

    A client subscribes with retain handling 2. It gets a message that is published afterwards, but not the retained
    one.
    """
    topic = ctx.topic()
    publisher = await ctx.connect(name="publisher")
    await publisher.publish(topic, b"kept", qos=1, retain=True)
    await publisher.barrier()
    client = await ctx.connect(name="client")
    await client.subscribe(Subscription(filter=topic, retain_handling=2))
    await publisher.publish(topic, b"live")
    await client.expect_publish(topic, b"live", retain=False)
    await ctx.expect_no_message(publisher, client)


@case(
    "mqtt5/retained/wildcards-bring-all",
    clauses=("MQTT-3.3.1-9",),
    requires=("retain", "qos1", "wildcards"),
    mutant="v5-wildcards-bring-one-retained",
    near_miss="v5-retained-qos-0-not-kept",
)
async def wildcards(ctx: CaseContext) -> None:
    """A filter with wildcards brings every retained message that it matches.

    Three messages are retained on two branches. The filters x/+/c/# and # below the topic of this case bring those
    that they match, each once, under its own topic name.
    """
    paths = ("x/1/c/d", "x/2/c", "y/1")
    publisher = await ctx.connect(name="publisher")
    for path in paths:
        await publisher.publish(ctx.topic(path), path.encode(), qos=1, retain=True)
    await publisher.barrier()
    for filter_path, wanted in (("x/+/c/#", set(paths[:2])), ("#", set(paths)), ("+/1", {paths[2]})):
        client = await ctx.connect(name=filter_path)
        await client.subscribe(ctx.topic(filter_path))
        messages = await delivered(ctx, publisher, client, at_least=len(wanted))
        found = sorted(message.topic for message in messages)
        topics = sorted(ctx.topic(path) for path in wanted)
        ctx.must(found == topics, f"{filter_path}: expected {topics}; seen {found}")
        for message in messages:
            client.check_flag(message, retain=True)


@case(
    "mqtt5/retained/keeps-its-properties",
    clauses=("MQTT-3.3.1-5", "MQTT-3.3.2-17", "MQTT-3.3.2-18", "MQTT-3.3.2-20"),
    requires=("retain", "qos1"),
    mutant="v5-retained-properties-dropped",
    near_miss="v5-retained-qos-0-not-kept",
)
async def properties(ctx: CaseContext) -> None:
    """A retained message is stored with its properties.

    A message with content type, correlation data and user properties is retained. A later subscriber gets them all
    unchanged.
    """
    topic = ctx.topic()
    sent = Properties(
        content_type="text/plain",
        correlation_data=b"\x01\x02",
        user_property=(("b", "1"), ("a", "2"), ("b", "3")),
    )
    publisher = await ctx.connect(name="publisher")
    await publisher.publish(topic, b"kept", qos=1, retain=True, properties=sent)
    await publisher.barrier()
    client = await ctx.connect(name="client")
    await client.subscribe(topic)
    message = await client.expect_publish(topic, b"kept", retain=True)
    for name in ("content_type", "correlation_data", "user_property"):
        wanted, seen = getattr(sent, name), getattr(message.properties, name)
        ctx.must(wanted == seen, f"client: expected {name} {wanted!r}; seen {seen!r}")


@case(
    "mqtt5/retained/expires",
    clauses=("MQTT-3.3.2-5", "MQTT-3.3.2-6"),
    requires=("retain", "qos1"),
    mutant="v5-retained-never-expires",
    near_miss="v5-retained-before-suback",
    limit_s=10.0,
)
async def expires(ctx: CaseContext) -> None:
    """A retained message is gone when its expiry has passed; until then its expiry counts down.

    Two messages are retained with expiry 1 s and 100 s. After 2.5 s a new subscriber gets only the second, with 96 to
    98 s left.
    """
    brief, long = ctx.topic("brief"), ctx.topic("long")
    publisher = await ctx.connect(name="publisher")
    watch = Stopwatch()
    await publisher.publish(brief, b"m", qos=1, retain=True, properties=Properties(message_expiry_interval=1))
    await publisher.publish(long, b"m", qos=1, retain=True, properties=Properties(message_expiry_interval=100))
    await publisher.barrier()
    await pass_time(ctx, 2.5)
    client = await ctx.connect(name="client")
    await client.subscribe(brief, long)
    message = await client.expect_publish(long, b"m", retain=True)
    left_s = message.properties.message_expiry_interval
    lowest = int(99 - watch.elapsed_s)
    ctx.must(left_s is not None and lowest <= left_s <= 98, f"client: expected {lowest} to 98 s left; seen {left_s}")
    await ctx.expect_no_message(publisher, client)


@case(
    "mqtt5/retained/outlives-its-publisher",
    clauses=("MQTT-3.3.1-5", "MQTT-3.3.1-9"),
    requires=("retain", "qos1"),
    mutant="v5-retained-ends-with-session",
    near_miss="v5-retained-before-suback",
)
async def outlives_publisher(ctx: CaseContext) -> None:
    """A retained message stays when the session of its publisher ends.

    The publisher of a retained message disconnects, and its session ends. A later subscriber gets the message.
    """
    topic = ctx.topic()
    publisher = await ctx.connect(name="publisher")
    await publisher.publish(topic, b"kept", qos=1, retain=True)
    await publisher.disconnect()
    client = await ctx.connect(name="client")
    await client.subscribe(topic)
    await client.expect_publish(topic, b"kept", retain=True)


@case(
    "mqtt5/retained/a-subscription-replaced-amid-them",
    clauses=("MQTT-3.8.4-4", "MQTT-3.3.4-3"),
    requires=("retain", "wildcards", "qos1", "subscription_identifiers"),
    mutant="cross-walk-of-a-replaced-subscription-is-the-last",
    kills=("cross-walk-of-a-replaced-subscription-is-the-first",),
    near_miss="any-window-of-one",
)
async def replaced_amid(ctx: CaseContext) -> None:
    """A subscription that is replaced while its retained messages are being sent brings all of them again.

    Three retained messages and a client that takes one at a time. It holds the first one as it subscribes anew, with
    another identifier. What it is sent goes on until all three have come with that: what the first subscription was
    still to bring may come before, or not at all.
    """
    topics = [ctx.topic(f"t{number}") for number in range(3)]
    publisher = await ctx.connect(name="publisher")
    for topic in topics:
        await publisher.publish(topic, b"kept", qos=1, retain=True)
    client = await ctx.connect(name="client", properties=Properties(receive_maximum=1))
    entry = Subscription(filter=ctx.topic("+"), qos=1)
    await client.subscribe(entry, properties=Properties(subscription_identifier=(1,)))
    held: Publish | None = await client.expect_publish(payload=b"kept", ack=False)
    await client.subscribe(entry, properties=Properties(subscription_identifier=(2,)))
    missing = set(topics)
    while missing:
        if held is not None and held.qos:
            await client.acknowledge(held)
        held = await client.expect_publish(payload=b"kept", ack=False)
        if 2 in held.properties.subscription_identifier:
            missing.discard(held.topic)


@case(
    "mqtt5/retained/an-unsubscribe-amid-them-spares-others",
    clauses=("MQTT-3.3.1-9", "MQTT-3.3.4-3"),
    requires=("retain", "wildcards", "qos1", "subscription_identifiers"),
    mutant="cross-walk-of-an-unsubscribed-filter-goes-to-the-next",
    near_miss="any-window-of-one",
)
async def unsubscribed_amid(ctx: CaseContext) -> None:
    """A subscription that is left while its retained messages are being sent costs another one none of its own.

    Three and two retained messages, and a client that takes one at a time. It holds the first one of the first filter
    as it subscribes to the second and leaves the first. Both of the second come, with its identifier, and no other has
    that.
    """
    topics = {name: [ctx.topic(f"{name}/{number}") for number in range(count)] for name, count in (("a", 3), ("b", 2))}
    publisher = await ctx.connect(name="publisher")
    for topic in (*topics["a"], *topics["b"]):
        await publisher.publish(topic, b"kept", qos=1, retain=True)
    client = await ctx.connect(name="client", properties=Properties(receive_maximum=1))
    await client.subscribe(ctx.topic("a/+"), qos=1, properties=Properties(subscription_identifier=(1,)))
    held = await client.expect_publish(payload=b"kept", ack=False)
    await client.subscribe(ctx.topic("b/+"), qos=1, properties=Properties(subscription_identifier=(2,)))
    await client.unsubscribe(ctx.topic("a/+"))
    missing = set(topics["b"])
    while missing:
        if held.qos:
            await client.acknowledge(held)
        held = await client.expect_publish(payload=b"kept", ack=False)
        if 2 in held.properties.subscription_identifier:
            ctx.must(held.topic in topics["b"], f"client: expected the identifier 2 with b/+ alone; seen {held.topic}")
            missing.discard(held.topic)

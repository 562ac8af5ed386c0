"""Retained messages (MQTT 3.1.1, 3.3.1.3)."""

from __future__ import annotations

from assay.conformance.case import CaseContext, case
from assay.conformance.cases.mqtt5.support import delivered, qos_levels


@case(
    "mqtt311/retained/sent-to-a-new-subscriber",
    clauses=("MQTT-3.3.1-5", "MQTT-3.3.1-6", "MQTT-3.3.1-8"),
    requires=("retain", "qos1"),
    mutant="v3-retained-flag-not-set",
    near_miss="v3-retained-qos-0-not-kept",
)
async def new_subscriber(ctx: CaseContext) -> None:
    """A new subscriber gets the retained message at once, with RETAIN 1 and the QoS it was stored with.

    The message is published at QoS 1 while nobody is subscribed; a client then subscribes with QoS 1.
    """
    topic = ctx.topic()
    publisher = await ctx.connect(name="publisher")
    await publisher.publish(topic, b"kept", qos=1, retain=True)
    subscriber = await ctx.connect(name="subscriber")
    await subscriber.subscribe(topic, qos=1)
    await subscriber.expect_publish(topic, b"kept", qos=1, retain=True, dup=False)
    await subscriber.expect_nothing()


@case(
    "mqtt311/retained/only-for-own-subscriptions",
    clauses=("MQTT-3.3.1-6", "MQTT-3.3.1-8"),
    requires=("retain", "qos1"),
    mutant="v3-retained-for-every-client",
)
async def own_subscriptions(ctx: CaseContext) -> None:
    """A retained message is sent for a client's own new subscription, not for somebody else's.

    One client subscribes to a topic with a retained message. Another connects and subscribes to nothing: it gets
    nothing.
    """
    topic = ctx.topic()
    publisher = await ctx.connect(name="publisher")
    await publisher.publish(topic, b"kept", qos=1, retain=True)
    subscriber = await ctx.connect(name="subscriber")
    await subscriber.subscribe(topic, qos=1)
    await subscriber.expect_publish(topic, b"kept", retain=True)
    bystander = await ctx.connect(name="bystander")
    await bystander.expect_nothing()


@case(
    "mqtt311/retained/flag-is-clear-for-existing-subscribers",
    clauses=("MQTT-3.3.1-9",),
    requires=("retain",),
    mutant="v3-retained-flag-passed-on",
    near_miss="v3-retained-qos-0-not-kept",
)
async def existing_subscriber(ctx: CaseContext) -> None:
    """Who is subscribed already gets a retained message like any other, with RETAIN 0.

    A client subscribes before the message is published with RETAIN 1.
    """
    topic = ctx.topic()
    subscriber = await ctx.connect(name="subscriber")
    await subscriber.subscribe(topic)
    publisher = await ctx.connect(name="publisher")
    await publisher.publish(topic, b"kept", retain=True)
    await subscriber.expect_publish(topic, b"kept", retain=False)


@case(
    "mqtt311/retained/newest-message-replaces-the-older",
    clauses=("MQTT-3.3.1-5", "MQTT-3.3.1-7"),
    requires=("retain", "qos1"),
    mutant="v3-retained-first-stays",
    near_miss="v3-retained-qos-0-not-kept",
)
async def replaced(ctx: CaseContext) -> None:
    """The newest retained message of a topic replaces the one before.

    A message at QoS 1 is followed by another at QoS 1 and one at QoS 0. Each time, when a watcher has it, a new
    subscriber gets the newest and only that; for the one at QoS 0 a broker may keep nothing, but never the older one.
    """
    topic = ctx.topic()
    publisher = await ctx.connect(name="publisher")
    watcher = await ctx.connect(name="watcher")
    await watcher.subscribe(topic)
    for payload, qos in ((b"first", 1), (b"second", 1), (b"third", 0)):
        await publisher.publish(topic, payload, qos=qos, retain=True)
        await watcher.expect_publish(topic, payload)
        subscriber = await ctx.connect(name=payload.decode())
        await subscriber.subscribe(topic)
        messages = await delivered(ctx, publisher, subscriber, at_least=1)
        found = [message.payload for message in messages]
        if qos == 0 and not found:
            ctx.should(False, f"{subscriber.name}: a retained message at QoS 0 was not kept")
            continue
        # That it comes once is what other cases are about.
        ctx.must(set(found) == {payload}, f"{subscriber.name}: expected {payload!r} alone; seen {found}")


@case(
    "mqtt311/retained/empty-payload-removes-it",
    clauses=("MQTT-3.3.1-10", "MQTT-3.3.1-11"),
    requires=("retain",),
    mutant="v3-empty-retained-kept",
    near_miss="v3-retained-qos-0-not-kept",
)
async def removed(ctx: CaseContext) -> None:
    """An empty retained message removes what was retained and is not retained itself.

    Existing subscribers get the empty message with RETAIN 0, new ones get nothing.
    """
    topic = ctx.topic()
    publisher = await ctx.connect(name="publisher")
    await publisher.publish(topic, b"kept", qos=1, retain=True)
    existing = await ctx.connect(name="existing")
    await existing.subscribe(topic)
    await existing.expect_publish(topic, b"kept", retain=True)
    await publisher.publish(topic, b"", qos=1, retain=True)
    await existing.expect_publish(topic, b"", retain=False)
    late = await ctx.connect(name="late")
    await late.subscribe(topic)
    await ctx.expect_no_message(publisher, late)


@case(
    "mqtt311/retained/message-without-the-flag-leaves-it",
    clauses=("MQTT-3.3.1-12",),
    requires=("retain",),
    mutant="v3-everything-retained",
    near_miss="v3-retained-qos-0-not-kept",
)
async def left_alone(ctx: CaseContext) -> None:
    """A message with RETAIN 0 neither becomes retained nor touches what is retained.

    Full and empty messages with RETAIN 0 follow a retained one, and go to a topic without one. New subscribers get the
    retained one, and nothing of the other topic.
    """
    kept, empty = ctx.topic("kept"), ctx.topic("empty")
    publisher = await ctx.connect(name="publisher")
    await publisher.publish(kept, b"kept", qos=1, retain=True)
    ctx.retained_topics.add(empty)
    for payload in (b"", b"passing"):
        await publisher.publish(kept, payload, qos=1)
        await publisher.publish(empty, payload, qos=1)
    subscriber = await ctx.connect(name="subscriber")
    await subscriber.subscribe(kept, empty)
    messages = await delivered(ctx, publisher, subscriber, at_least=1)
    found = [(message.topic, message.payload) for message in messages]
    ctx.must(found == [(kept, b"kept")], f"subscriber: expected only {kept} b'kept'; seen {found}")


@case(
    "mqtt311/retained/wildcard-filters-get-every-match",
    clauses=("MQTT-3.3.1-6", "MQTT-3.3.1-8"),
    requires=("retain", "wildcards"),
    mutant="v3-retained-not-for-wildcards",
    near_miss="v3-retained-qos-0-not-kept",
)
async def wildcards(ctx: CaseContext) -> None:
    """A wildcard filter gets the retained message of every topic it matches.

    Messages are retained for x/b/c, y/b/c, x/b and x/c; the filter +/b/# matches the first three.
    (rabbitmq/rabbitmq-server issue 8824.)
    """
    publisher, watcher = await ctx.connect(name="publisher"), await ctx.connect(name="watcher")
    for path in ("x/b/c", "y/b/c", "x/b", "x/c"):
        await watcher.subscribe(ctx.topic(path))
        await publisher.publish(ctx.topic(path), path.encode(), qos=1, retain=True)
        # Only who is sent it knows that it is retained by now.
        await watcher.expect_publish(ctx.topic(path), path.encode())
    subscriber = await ctx.connect(name="subscriber")
    await subscriber.subscribe(ctx.topic("+/b/#"))
    found = await delivered(ctx, publisher, subscriber, at_least=3)
    seen = sorted((message.topic, message.payload) for message in found)
    wanted = sorted((ctx.topic(path), path.encode()) for path in ("x/b/c", "y/b/c", "x/b"))
    ctx.must(seen == wanted, f"subscriber: expected {wanted}; seen {seen}")
    for message in found:
        subscriber.check_flag(message, retain=True)


@case(
    "mqtt311/retained/outlives-the-session-of-its-publisher",
    clauses=("MQTT-3.1.2-7",),
    requires=("retain",),
    mutant="v3-retained-dies-with-the-session",
    near_miss="v3-retained-qos-0-not-kept",
)
async def outlives_session(ctx: CaseContext) -> None:
    """Retained messages are no part of a session and stay when it ends.

    A client with Clean Session 1 publishes one and leaves. A later subscriber gets it.
    """
    topic = ctx.topic()
    publisher = await ctx.connect(name="publisher")
    await publisher.publish(topic, b"kept", qos=1, retain=True)
    await publisher.disconnect()
    subscriber = await ctx.connect(name="subscriber")
    await subscriber.subscribe(topic)
    await subscriber.expect_publish(topic, b"kept", retain=True)


@case(
    "mqtt311/retained/keeps-its-qos",
    clauses=("MQTT-3.3.1-5", "MQTT-3.8.4-6"),
    requires=("retain", "qos1"),
    mutant="v3-retained-qos-lost",
    near_miss="v3-grants-at-most-qos-1",
)
async def qos_kept(ctx: CaseContext) -> None:
    """A retained message keeps its QoS, and is delivered at the lower of that and the granted one.

    Messages retained at QoS 1 and 2, in the place of one at QoS 0 that a watcher has, are delivered to a subscriber
    that asked for QoS 2.
    """
    publisher = await ctx.connect(name="publisher")
    for qos in qos_levels(ctx)[1:]:
        watcher = await ctx.connect(name="watcher")
        await watcher.subscribe(ctx.topic(f"{qos}"))
        await publisher.publish(ctx.topic(f"{qos}"), b"any", retain=True)
        await watcher.expect_publish(ctx.topic(f"{qos}"), b"any")
        await publisher.publish(ctx.topic(f"{qos}"), b"kept", qos=qos, retain=True)
        await publisher.expect_nothing()
        subscriber = await ctx.connect(name=f"qos {qos}")
        codes = await subscriber.subscribe(ctx.topic(f"{qos}"), qos=2)
        await subscriber.expect_publish(ctx.topic(f"{qos}"), b"kept", qos=min(qos, codes[0]), retain=True)

"""Queues with topics of their own: what they capture, and that nobody else sees a difference."""

from __future__ import annotations

from assay.conformance.case import CaseContext, case
from assay.conformance.cases.mqtt5.support import publishing, taken
from assay.conformance.cases.queue.administration import ask, create, figure, figures_become, refused
from assay.conformance.cases.queue.support import consume, deliveries, new_queue, property_of, publish_with, settlement
from assay.conformance.wire import Puback, Publish, Subscription


@case(
    "queue/bindings/captured-once",
    clauses=("Q-BIND-01",),
    requires=("queues",),
    mutant="queue-captured-per-filter",
    near_miss="queue-captured-before-subscribers",
)
async def once(ctx: CaseContext) -> None:
    """A queue gets a message of a topic that its filters match, once although two of them match (F26).

    The queue has two filters that match the first topic, one that matches the second and none for the third. Its
    consumer gets the first two messages, each once.
    """
    queue, root = new_queue(ctx), ctx.topic("shop")
    client = await ctx.connect(version=5, name="client")
    await create(ctx, client, queue, topics=[f"{root}/+/order", f"{root}/1/#"], partitions=1)
    for path in ("1/order", "2/order", "2/offer"):
        await client.publish(f"{root}/{path}", path.encode(), qos=1)
    consumer = await consume(ctx, queue)
    seen = [delivery.payload for delivery in await deliveries(consumer, at_least=2)]
    ctx.must(seen == [b"1/order", b"2/order"], f"consumer: expected the messages that match, once each; seen {seen}")


@case(
    "queue/bindings/every-matching-queue",
    clauses=("Q-BIND-03",),
    requires=("queues",),
    mutant="queue-captured-by-the-first",
    near_miss="queue-captured-before-subscribers",
)
async def every_queue(ctx: CaseContext) -> None:
    """A message that matches filters of several queues is in each of them, and in no other (F26).

    Two queues have a filter for the topic, a third has one for the level below, by name, and a fourth by a wildcard.
    The two get the message; what is two levels below reaches only the one whose filter goes so far.
    """
    topic = ctx.topic("fan-out")
    client = await ctx.connect(version=5, name="client")
    wanted = {topic: [b"message"], f"{topic}/#": [b"deep", b"message"], f"{topic}/below": [], f"{topic}/+": []}
    names = {topic_filter: new_queue(ctx) for topic_filter in wanted}
    for topic_filter, name in names.items():
        await create(ctx, client, name, topics=[topic_filter])
    await client.publish(topic, b"message", qos=1)
    await client.publish(f"{topic}/below/deep", b"deep", qos=1)
    for topic_filter, name in names.items():
        consumer = await consume(ctx, name, name=name)
        seen = sorted(delivery.payload for delivery in await deliveries(consumer, at_least=len(wanted[topic_filter])))
        ctx.must(seen == wanted[topic_filter], f"{topic_filter}: expected {wanted[topic_filter]}; seen {seen}")


@case(
    "queue/bindings/subscribers-see-no-difference",
    clauses=("Q-BIND-02",),
    requires=("queues",),
    mutant="queue-capture-swallows",
    near_miss="queue-captured-before-subscribers",
)
async def no_difference(ctx: CaseContext) -> None:
    """Subscribers get what is captured, and the publisher the acknowledgement that it would get anyhow (F15).

    A topic is bound to a queue. A subscriber gets the message at its QoS; a publish to a bound topic without subscriber
    may be acknowledged as one that nobody matches, and succeeds. The queue has both.
    """
    queue, root = new_queue(ctx), ctx.topic("ordinary")
    client = await ctx.connect(version=5, name="client")
    await create(ctx, client, queue, topics=[f"{root}/#"])
    subscriber = await ctx.connect(version=5, name="subscriber")
    await subscriber.subscribe(Subscription(filter=f"{root}/a", qos=1))
    await client.publish(f"{root}/a", b"message", qos=1)
    got = await subscriber.expect_publish(topic=f"{root}/a", payload=b"message", qos=1)
    ctx.must(not got.properties.user_property, f"subscriber: expected no user properties; seen {got.properties}")
    client.send(Publish(topic=f"{root}/b", payload=b"unheard", qos=1, packet_id=client.next_packet_id()))
    puback = await client.expect(Puback)
    ctx.must(puback.reason_code < 0x80, f"client: expected success; seen {puback}")
    depth = await figure(ctx, client, queue, "depth")
    ctx.must(depth == 2, f"expected both messages in the queue; seen a depth of {depth}")


@case(
    "queue/bindings/queue-topics-reach-others",
    clauses=("Q-BIND-04",),
    requires=("queues",),
    mutant="queue-topics-reach-their-own-only",
    near_miss="queue-one-batch-per-message",
)
async def reach_others(ctx: CaseContext) -> None:
    """A publish to $queue/<name>/... is stored once in that queue and once in each other whose filters match.

    A queue has a filter for $queue/<other>/#. A message for the other queue is delivered from both.
    """
    orders, audit = new_queue(ctx), new_queue(ctx)
    client = await ctx.connect(version=5, name="client")
    await create(ctx, client, audit, topics=[f"$queue/{orders}/#", f"$queue/{orders}/+"])
    await publish_with(client, orders, b"message", "new")
    for name in (orders, audit):
        consumer = await consume(ctx, name, name=name)
        seen = [delivery.payload for delivery in await deliveries(consumer, at_least=1)]
        ctx.must(seen == [b"message"], f"{name}: expected the message once; seen {seen}")


@case(
    "queue/bindings/confirmed-when-all-have-it",
    clauses=("Q-BIND-05",),
    requires=("queues",),
    mutant="queue-confirms-for-one-of-all",
    near_miss="queue-one-batch-per-message",
)
async def all_have_it(ctx: CaseContext) -> None:
    """A queue message that one of the bound queues refuses is not acknowledged with success.

    The bound queue holds one message at most. The first publish succeeds, the second gets a failure code.
    """
    orders, audit = new_queue(ctx), new_queue(ctx)
    client = await ctx.connect(version=5, name="client")
    await create(ctx, client, audit, topics=[f"$queue/{orders}/#"], max_depth=1)
    first = await publish_with(client, orders, b"first")
    ctx.must(first.reason_code < 0x80, f"client: expected success; seen {first}")
    second = await publish_with(client, orders, b"second")
    ctx.must(second.reason_code >= 0x80, f"client: expected a failure code; seen {second}")


@case(
    "queue/bindings/full-queue-fails-no-publish",
    clauses=("Q-BIND-06", "Q-BIND-15"),
    requires=("queues",),
    mutant="queue-capture-fails-the-publish",
    near_miss="queue-captured-before-subscribers",
)
async def full(ctx: CaseContext) -> None:
    """A queue that takes no more does not make ordinary publishes fail; it counts what it refused (F15).

    The queue holds one message. Three publishes to its topic succeed, a subscriber gets all three; the figures tell one
    captured and two refused.
    """
    queue, topic = new_queue(ctx), ctx.topic("full")
    client = await ctx.connect(version=5, name="client")
    await create(ctx, client, queue, topics=[topic], max_depth=1)
    subscriber = await ctx.connect(version=5, name="subscriber")
    await subscriber.subscribe(Subscription(filter=topic, qos=1))
    for payload in (b"1", b"2", b"3"):
        await client.publish(topic, payload, qos=1)
        await subscriber.expect_publish(payload=payload)
    counts = [await figure(ctx, client, queue, name) for name in ("captured", "capture_failures")]
    ctx.must(counts == [1, 2], f"expected one captured and two refused; seen {counts}")


@case(
    "queue/bindings/wildcards-leave-dollar-topics",
    clauses=("Q-BIND-07",),
    requires=("queues",),
    mutant="queue-wildcards-bind-dollar",
    settings={
        "queues": {"configured": [{"name": "all", "topics": ["#", "+/x"]}, {"name": "own", "topics": ["$assay/#"]}]}
    },
)
async def dollar(ctx: CaseContext) -> None:
    """A filter that begins with a wildcard binds no topic that begins with $; one that names the level does.

    The queue all has the filters # and +/x, the queue own has $assay/#. A publish to $assay/x goes to own alone, one
    for the queue own itself does not reach all either, and an ordinary one does.
    """
    client = await ctx.connect(version=5, name="client")
    await client.publish("$assay/x", b"dollar", qos=1)
    await publish_with(client, "own", b"queue", "x")
    await client.publish("plain/x", b"plain", qos=1)
    wanted = {"all": [b"plain"], "own": [b"dollar", b"queue"]}
    seen = {}
    for name in wanted:
        consumer = await consume(ctx, name, name=name)
        found = await deliveries(consumer, at_least=len(wanted[name]))
        seen[name] = sorted(delivery.payload for delivery in found)
    ctx.must(seen == wanted, f"expected {wanted}; seen {seen}")


@case(
    "queue/bindings/parent-level",
    clauses=("Q-BIND-08",),
    requires=("queues",),
    mutant="queue-parent-level-not-bound",
    near_miss="queue-captured-before-subscribers",
)
async def parent_level(ctx: CaseContext) -> None:
    """The filter a/# binds a as well (R4).

    A message for the level above reaches the queue; one for a topic that only begins alike does not.
    """
    queue, topic = new_queue(ctx), ctx.topic("images")
    client = await ctx.connect(version=5, name="client")
    await create(ctx, client, queue, topics=[f"{topic}/#"], partitions=1)
    for each in (topic, f"{topic}-more", f"{topic}/cat"):
        await client.publish(each, each.encode(), qos=1)
    consumer = await consume(ctx, queue)
    seen = [delivery.payload.decode() for delivery in await deliveries(consumer, at_least=2)]
    ctx.must(seen == [topic, f"{topic}/cat"], f"consumer: expected {topic} and {topic}/cat; seen {seen}")


@case(
    "queue/bindings/misplaced-wildcards-are-refused",
    clauses=("Q-BIND-09",),
    requires=("queues",),
    mutant="queue-misplaced-wildcards-accepted",
    near_miss="queue-one-batch-per-message",
)
async def misplaced(ctx: CaseContext) -> None:
    """A filter with a wildcard where none may be is refused when it is declared, and nothing is created.

    Creating a queue with a/#/b, a#, or +a fails, and the queue is not there afterwards.
    """
    queue = new_queue(ctx)
    client = await ctx.connect(version=5, name="client")
    for bad in ("a/#/b", "a#", "+a"):
        await refused(ctx, client, "create", {"name": queue, "topics": [f"{ctx.topic('t')}", bad]})
    await refused(ctx, client, f"{queue}/stats")


@case(
    "queue/bindings/routing-key-is-the-topic",
    clauses=("Q-BIND-10", "Q-BIND-11"),
    requires=("queues",),
    mutant="queue-captured-without-routing-key",
    near_miss="queue-captured-before-subscribers",
)
async def routing_key(ctx: CaseContext) -> None:
    """A consumer's filter applies to the topic of a captured message, and the delivery tells that topic (R4).

    Of two captured messages a consumer with a filter for one of the topics gets that one, with its topic in
    source-topic.
    """
    queue, root = new_queue(ctx), ctx.topic("captured")
    client = await ctx.connect(version=5, name="client")
    await create(ctx, client, queue, topics=[f"{root}/#"])
    consumer = await ctx.connect(version=5, name="consumer")
    await consumer.subscribe(Subscription(filter=f"$queue/{queue}/{root}/a/#", qos=1))
    for path in ("a/1", "b/2", "a"):
        await client.publish(f"{root}/{path}", path.encode(), qos=1)
    seen = await deliveries(consumer, at_least=2)
    found = sorted((delivery.payload, property_of(ctx, delivery, "source-topic")) for delivery in seen)
    wanted = [(b"a", f"{root}/a"), (b"a/1", f"{root}/a/1")]
    ctx.must(found == wanted, f"consumer: expected {wanted}; seen {found}")


@case(
    "queue/bindings/captured-are-settled",
    clauses=("Q-BIND-12",),
    requires=("queues",),
    mutant="queue-ack-by-the-whole-topic",
    near_miss="queue-one-batch-per-message",
)
async def settled(ctx: CaseContext) -> None:
    """A captured message is acknowledged on the topic of its delivery, or on the queue's (F25).

    Two captured messages are acknowledged, one on <delivery topic>/$ack, one on $queue/<name>/$ack. Neither comes back.
    """
    queue, topic = new_queue(ctx), ctx.topic("settled")
    client = await ctx.connect(version=5, name="client")
    await create(ctx, client, queue, topics=[topic], partitions=1)
    consumer = await consume(ctx, queue)
    for payload in (b"1", b"2"):
        await client.publish(topic, payload, qos=1)
    first, second = await consumer.expect_publish(payload=b"1"), await consumer.expect_publish(payload=b"2")
    for delivery, base in ((first, first.topic), (second, f"$queue/{queue}")):
        packet_id = consumer.next_packet_id()
        properties = settlement(ctx, delivery)
        consumer.send(Publish(topic=f"{base}/$ack", qos=1, packet_id=packet_id, properties=properties))
        puback = await consumer.expect(Puback)
        ctx.must(puback.reason_code < 0x80, f"consumer: expected {base}/$ack to be accepted; seen {puback}")
    await consumer.disconnect()
    again = await consume(ctx, queue, name="again")
    await again.expect_nothing()


@case(
    "queue/bindings/changes-hold-at-once",
    clauses=("Q-BIND-13",),
    requires=("queues",),
    mutant="queue-plans-outlive-bindings",
    near_miss="queue-captured-before-subscribers",
)
async def changes(ctx: CaseContext) -> None:
    """Filters that come or go hold for the next publish, also of a client that has been publishing all along.

    A client publishes runs of messages at QoS 0 and 1 to a topic with a subscriber: before it is bound, while it is,
    and after. The queue captures the second lot alone, the subscriber gets all.
    """
    queue, topic = new_queue(ctx), ctx.topic("changing")
    client = await ctx.connect(version=5, name="client")
    publisher = await ctx.connect(version=5, name="publisher")
    subscriber = await ctx.connect(version=5, name="subscriber")
    await subscriber.subscribe(Subscription(filter=topic, qos=1))
    await create(ctx, client, queue)
    seen = 0
    for topics in ([], [topic], []):
        await ask(ctx, client, queue, "config", {"topics": topics})
        publisher.send(*(Publish(topic=topic, payload=b"0") for _ in range(5)))
        async with publishing(publisher, topic, *[b"1"] * 3, qos=1):
            seen += len(await taken(subscriber, 8))
    seen += len(await ctx.messages_before_marker(publisher, subscriber))
    ctx.must(seen == 24, f"subscriber: expected 24 messages; seen {seen}")
    captured = await figures_become(ctx, client, queue, lambda stats: int(stats["captured"]), 8)
    ctx.must(captured == 8, f"expected 8 captured messages; seen {captured}")


@case(
    "queue/bindings/survive-a-restart",
    clauses=("Q-BIND-14",),
    requires=("queues", "restart"),
    mutant="queue-settings-not-stored",
    near_miss="queue-one-batch-per-message",
    limit_s=15.0,
)
async def restarted(ctx: CaseContext) -> None:
    """Filters that were set at run time hold after kill -9, and so does what was captured.

    A queue is created with a filter, and another filter is added. A message before the restart and two after it are
    captured.
    """
    queue, one, two = new_queue(ctx), ctx.topic("one"), ctx.topic("two")
    client = await ctx.connect(version=5, name="client")
    await create(ctx, client, queue, topics=[one], partitions=1)
    await ask(ctx, client, queue, "config", {"topics": [one, two]})
    await client.publish(one, b"before", qos=1)
    await figure(ctx, client, queue, "captured")
    await ctx.restart()
    client = await ctx.connect(version=5, name="client again")
    await client.publish(one, b"after", qos=1)
    await client.publish(two, b"added", qos=1)
    consumer = await consume(ctx, queue)
    # Nobody waits for a captured message to be on disk, so it may come a little later.
    for payload in (b"before", b"after", b"added"):
        await consumer.expect_publish(payload=payload)

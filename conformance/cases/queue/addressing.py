"""How topics and filters name queues, and what of a publish reaches the consumer."""

from __future__ import annotations

from assay.conformance.case import CaseContext, case
from assay.conformance.cases.queue.support import (
    consume,
    deliveries,
    expect_dead_letters,
    join,
    new_queue,
    publish,
    publish_with,
    settle,
)
from assay.conformance.wire import (
    Properties,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    Suback,
    Subscribe,
    Subscription,
    Will,
)


@case(
    "queue/addressing/routing-key-comes-along",
    clauses=("Q-ADDR-02", "Q-ADDR-08"),
    requires=("queues",),
    mutant="queue-routing-key-lost",
    near_miss="queue-one-batch-per-message",
)
async def routing_key(ctx: CaseContext) -> None:
    """Levels behind the queue name are a routing key: it comes along, and settling needs only the queue (F25).

    A message for $queue/<name>/a/b reaches a consumer of $queue/<name> on the topic that it was published to. It is
    acknowledged on $queue/<name>/$ack and does not come back.
    """
    queue = new_queue(ctx)
    publisher = await ctx.connect(version=5, name="publisher")
    await publish_with(publisher, queue, b"message", "a/b")
    consumer = await consume(ctx, queue)
    delivery = await consumer.expect_publish(f"$queue/{queue}/a/b", b"message")
    await settle(ctx, consumer, queue, "ack", delivery)
    await consumer.disconnect()
    second = await consume(ctx, queue, name="second")
    await second.expect_nothing()


@case(
    "queue/addressing/longest-name-wins",
    clauses=("Q-ADDR-03",),
    requires=("queues",),
    mutant="queue-first-level-names-the-queue",
    settings={"queues": {"configured": [{"name": "tasks/images"}]}},
)
async def longest_name(ctx: CaseContext) -> None:
    """The queue is the longest existing name that the path begins with, otherwise its first level.

    A queue tasks/images is configured. A publish to $queue/tasks/images/small is its, with the routing key small; one
    to $queue/tasks/other belongs to the queue tasks.
    """
    publisher = await ctx.connect(version=5, name="publisher")
    await publish_with(publisher, "tasks", b"image", "images/small")
    await publish_with(publisher, "tasks", b"other", "other")
    images = await consume(ctx, "tasks/images", name="images")
    await images.expect_publish("$queue/tasks/images/small", b"image")
    await images.expect_nothing()
    tasks = await consume(ctx, "tasks", name="tasks")
    await tasks.expect_publish("$queue/tasks/other", b"other")
    await tasks.expect_nothing()


@case(
    "queue/addressing/filter-on-the-routing-key",
    clauses=("Q-ADDR-04",),
    requires=("queues",),
    mutant="queue-parent-level-unmatched",
    near_miss="queue-one-batch-per-message",
)
async def routing_filter(ctx: CaseContext) -> None:
    """A filter behind the queue name selects by routing key, as MQTT filters do (R4, F16).

    Of messages with the keys images, images/a/b, videos and none, a consumer of $queue/<name>/images/# gets the first
    two: # includes its parent level.
    """
    queue = new_queue(ctx)
    publisher = await ctx.connect(version=5, name="publisher")
    for path in ("images", "images/a/b", "videos", ""):
        await publish_with(publisher, queue, (path or "none").encode(), path, partition_key="one")
    consumer = await ctx.connect(version=5, name="consumer")
    await join(consumer, queue, path="images/#")
    await consumer.expect_publish(payload=b"images")
    await consumer.expect_publish(payload=b"images/a/b")
    await consumer.expect_nothing()


@case(
    "queue/addressing/names-that-are-refused",
    clauses=("Q-ADDR-05",),
    requires=("queues",),
    mutant="queue-any-name",
)
async def bad_names(ctx: CaseContext) -> None:
    """A name with an empty level, a wildcard or a level that starts with $ names no queue.

    Publishes to such topics get a PUBACK with a failure code, subscriptions a SUBACK with one.
    """
    client = await ctx.connect(version=5, name="client")
    for topic in ("$queue/", "$queue//x", "$queue/$inner", "$dlq/$inner"):
        packet_id = client.next_packet_id()
        client.send(Publish(topic=topic, payload=b"stray", qos=1, packet_id=packet_id))
        puback = await client.expect(Puback)
        ctx.must(puback.reason_code >= 0x80, f"client: expected {topic} to be refused; seen {puback}")
    for filter_ in ("$queue/+", "$queue/#", "$queue/+/x", "$dlq/#"):
        packet_id = client.next_packet_id()
        client.send(Subscribe(packet_id=packet_id, subscriptions=(Subscription(filter=filter_, qos=1),)))
        suback = await client.expect(Suback)
        ctx.must(min(suback.reason_codes) >= 0x80, f"client: expected {filter_} to be refused; seen {suback}")


@case(
    "queue/addressing/dead-letters-by-either-name",
    clauses=("Q-ADDR-06",),
    requires=("queues",),
    mutant="queue-dead-letters-by-one-name",
)
async def dead_letter_alias(ctx: CaseContext) -> None:
    """$queue/dlq/<queue> and $dlq/<queue> are the same dead letters (R14).

    A rejected message is there for a consumer of $queue/dlq/<queue>; it delivers on $dlq/<queue>, and one who
    acknowledges it there settles it for the group whichever name the group used.
    """
    queue = new_queue(ctx)
    publisher = await ctx.connect(version=5, name="publisher")
    await publish(publisher, queue, b"bad")
    consumer = await consume(ctx, queue)
    delivery = await consumer.expect_publish(payload=b"bad")
    await settle(ctx, consumer, queue, "reject", delivery)
    reader = await ctx.connect(version=5, name="reader")
    joining = Properties(user_property=(("consumer-group", "graveyard"),))
    await reader.subscribe(Subscription(filter=f"$queue/dlq/{queue}", qos=1), properties=joining)
    letter = await reader.expect_publish(f"$dlq/{queue}", b"bad")
    named = tuple(pair for pair in letter.properties.user_property if pair[0] in ("message-id", "group-id"))
    await reader.publish(f"$dlq/{queue}/$ack", qos=1, properties=Properties(user_property=named))
    await reader.disconnect()
    await expect_dead_letters(ctx, queue)


@case(
    "queue/addressing/names-with-a-common-beginning",
    clauses=("Q-ADDR-07",),
    requires=("queues",),
    mutant="queue-dead-letters-by-prefix",
)
async def common_beginning(ctx: CaseContext) -> None:
    """Queues whose names begin alike do not mix, nor do their dead letters (F39).

    A message of <name> and one of <name>-eu are rejected. Each dead-letter queue has the one of its own queue.
    """
    queue = new_queue(ctx)
    publisher = await ctx.connect(version=5, name="publisher")
    for name in (queue, f"{queue}-eu"):
        await publish(publisher, name, name.encode())
        consumer = await consume(ctx, name, name=name)
        delivery = await consumer.expect_publish(payload=name.encode())
        await settle(ctx, consumer, name, "reject", delivery)
        await consumer.expect_nothing()
    for name in (queue, f"{queue}-eu"):
        await expect_dead_letters(ctx, name, name.encode())


@case(
    "queue/addressing/retained-is-one-message",
    clauses=("Q-ADDR-09",),
    requires=("queues", "retain"),
    mutant="queue-retained-twice",
)
async def retained(ctx: CaseContext) -> None:
    """A publish with RETAIN is one message of the queue, and nothing is kept for subscribers to come (F23).

    The consumer of one group gets it once; so does that of a second group, which takes it from the queue.
    """
    queue = new_queue(ctx)
    publisher = await ctx.connect(version=5, name="publisher")
    await publisher.publish(f"$queue/{queue}", b"message", qos=1, retain=True)
    for group in ("first", "second"):
        consumer = await consume(ctx, queue, group=group, name=group)
        await consumer.expect_publish(payload=b"message")
        await consumer.expect_nothing()
    ctx.retained_topics.clear()


@case(
    "queue/addressing/arrives-as-published",
    clauses=("Q-ADDR-10",),
    requires=("queues",),
    mutant="queue-user-properties-reordered",
    near_miss="queue-one-batch-per-message",
)
async def as_published(ctx: CaseContext) -> None:
    """Payload and MQTT 5.0 properties arrive as they were published (F36, F9).

    Content type, response topic, correlation data, payload format and user properties, in order and with repeated
    names, are those of the publisher; the queue adds its own behind them. The message expiry interval is what is left
    of the publisher's.
    """
    queue = new_queue(ctx)
    publisher = await ctx.connect(version=5, name="publisher")
    own = (("b", "1"), ("a", " 2 "), ("b", "1"), ("a", ""))
    wanted = Properties(
        message_expiry_interval=3_600,
        payload_format_indicator=1,
        content_type="text/plain",
        response_topic="answers/here",
        correlation_data=b"\x00\xff",
        user_property=own,
    )
    await publisher.publish(f"$queue/{queue}", "grüße".encode(), qos=1, properties=wanted)
    consumer = await consume(ctx, queue)
    delivery = await consumer.expect_publish(payload="grüße".encode())
    seen = delivery.properties
    for name in ("payload_format_indicator", "content_type", "response_topic", "correlation_data"):
        value, other = getattr(wanted, name), getattr(seen, name)
        ctx.must(value == other, f"consumer: expected {name} {value!r}; seen {other!r}")
    left_s = seen.message_expiry_interval
    ctx.must(
        left_s is not None and 3_000 < left_s <= 3_600, f"consumer: expected up to 3600 s to be left; seen {left_s}"
    )
    found = tuple(pair for pair in seen.user_property if pair[0] in ("a", "b"))
    ctx.must(found == own, f"consumer: expected the user properties {own}; seen {seen.user_property}")


@case(
    "queue/addressing/qos-0-is-enqueued",
    clauses=("Q-ADDR-11",),
    requires=("queues",),
    mutant="queue-qos-0-dropped",
)
async def qos_0(ctx: CaseContext) -> None:
    """A publish at QoS 0 is enqueued like any other; only the confirm is missing.

    The message is there for a consumer that joins later, at QoS 1.
    """
    queue = new_queue(ctx)
    publisher = await ctx.connect(version=5, name="publisher")
    await publisher.publish(f"$queue/{queue}", b"message")
    await publisher.barrier()
    consumer = await consume(ctx, queue)
    await consumer.expect_publish(payload=b"message", qos=1)


@case(
    "queue/addressing/wills-are-messages",
    clauses=("Q-PUBLISH-1", "Q-ADDR-02", "Q-ADDR-09"),
    requires=("queues", "mqtt311", "qos2"),
    mutant="queue-wills-dropped",
    kills=("queue-wills-without-routing-key",),
    near_miss="queue-one-batch-per-message",
)
async def wills(ctx: CaseContext) -> None:
    """A will for a queue is a message of it like any other, at any QoS, with or without RETAIN.

    Clients of both versions are lost, whose wills go to a routing key of the queue at QoS 0, 1 and 2, the last with
    RETAIN. A consumer that joins later gets the six, each on the topic of the will and once.
    """
    queue = new_queue(ctx)
    wanted = [f"{version}/{qos}".encode() for version in (4, 5) for qos in (0, 1, 2)]
    for payload in wanted:
        version, qos = map(int, payload.split(b"/"))
        will = Will(topic=f"$queue/{queue}/gone", payload=payload, qos=qos, retain=qos > 1)
        client = await ctx.connect(version=version, name=f"client {payload.decode()}", will=will)
        client.abort()
    consumer = await consume(ctx, queue)
    found = await deliveries(consumer, at_least=len(wanted))
    seen = sorted((delivery.payload, delivery.topic) for delivery in found)
    right = [(payload, f"$queue/{queue}/gone") for payload in wanted]
    ctx.must(seen == right, f"consumer: expected each of {right} once; seen {seen}")
    watcher = await ctx.connect(version=5, name="another group")
    await join(watcher, queue, group="others")
    kept = [delivery for delivery in await deliveries(watcher, at_least=len(wanted)) if delivery.retain]
    ctx.must(not kept, f"another group: expected no retained message; seen {kept}")


@case(
    "queue/addressing/qos-2-is-enqueued-once",
    clauses=("Q-ADDR-12",),
    requires=("queues", "qos2"),
    mutant="queue-qos-2-enqueued-twice",
)
async def qos_2(ctx: CaseContext) -> None:
    """A QoS 2 publish that is sent again before PUBREL is one message (F21).

    PUBLISH, PUBREC, the same PUBLISH with DUP, PUBREC, PUBREL, PUBCOMP: the queue has one message.
    """
    queue = new_queue(ctx)
    publisher = await ctx.connect(version=5, name="publisher")
    topic = f"$queue/{queue}"
    for dup in (False, True):
        publisher.send(Publish(topic=topic, payload=b"message", qos=2, packet_id=9, dup=dup))
        await publisher.expect(Pubrec)
    publisher.send(Pubrel(packet_id=9))
    await publisher.expect(Pubcomp)
    consumer = await consume(ctx, queue)
    found = [delivery.payload for delivery in await deliveries(consumer, at_least=1)]
    ctx.must(found == [b"message"], f"consumer: expected one message; seen {found}")


@case(
    "queue/addressing/ordinary-subscribers-get-nothing",
    clauses=("Q-ADDR-13",),
    requires=("queues", "wildcards"),
    mutant="queue-messages-fan-out",
)
async def ordinary(ctx: CaseContext) -> None:
    """Messages of a queue go to its consumers only: filters with wildcards see none.

    A client subscribes to +/<queue>; a message is published to the queue and consumed.
    """
    queue = new_queue(ctx)
    watcher = await ctx.connect(version=5, name="watcher")
    await watcher.subscribe(Subscription(filter=f"+/{queue}", qos=1))
    publisher = await ctx.connect(version=5, name="publisher")
    await publish(publisher, queue, b"message")
    consumer = await consume(ctx, queue)
    await consumer.expect_publish(payload=b"message")
    await watcher.expect_nothing()


@case(
    "queue/addressing/unknown-queues-without-auto-create",
    clauses=("Q-ADDR-14", "Q-ADDR-01"),
    requires=("queues",),
    mutant="queue-created-although-switched-off",
    settings={"queues": {"auto_create": False, "configured": [{"name": "known"}]}},
)
async def unknown(ctx: CaseContext) -> None:
    """Where queues are not created by use, an unknown one is refused.

    A publish to it gets a failure code, so does a subscription; a configured queue takes both.
    """
    client = await ctx.connect(version=5, name="client")
    puback = await publish_with(client, "unknown", b"stray")
    ctx.must(puback.reason_code >= 0x80, f"client: expected a refusal; seen {puback}")
    packet_id = client.next_packet_id()
    client.send(Subscribe(packet_id=packet_id, subscriptions=(Subscription(filter="$queue/unknown", qos=1),)))
    suback = await client.expect(Suback)
    ctx.must(min(suback.reason_codes) >= 0x80, f"client: expected a refusal; seen {suback}")
    puback = await publish_with(client, "known", b"message")
    ctx.must(puback.reason_code < 0x80, f"client: expected the publish to be taken; seen {puback}")
    consumer = await consume(ctx, "known")
    await consumer.expect_publish(payload=b"message")


@case(
    "queue/addressing/payloads-belong-to-their-messages",
    clauses=("Q-ADDR-10",),
    requires=("queues",),
    mutant="queue-wrong-payload",
    near_miss="queue-one-batch-per-message",
)
async def own_payloads(ctx: CaseContext) -> None:
    """No message gets the payload of another, whoever else publishes at that moment (F8, F9).

    Three publishers send forty messages each in one write, or as many as the broker takes; every payload names its
    publisher and number, and the routing key says the same. All arrive once, each with the payload of its key.
    """
    queue = new_queue(ctx)
    consumer = await consume(ctx, queue)
    publishers = [await ctx.connect(version=5, name=f"publisher {number}") for number in range(3)]
    wanted: dict[str, bytes] = {}
    for number, publisher in enumerate(publishers):
        packets = []
        for count in range(min(40, publisher.connack.properties.receive_maximum or 40)):
            key = f"{number}/{count}"
            wanted[f"$queue/{queue}/{key}"] = payload = f"{key} ".encode() * (1 + (7 * count + number) % 60)
            packets.append(
                Publish(topic=f"$queue/{queue}/{key}", payload=payload, qos=1, packet_id=publisher.next_packet_id())
            )
        publisher.send(*packets)
    seen: dict[str, bytes] = {}
    while len(seen) < len(wanted):
        delivery = await consumer.expect_publish()
        ctx.must(delivery.topic not in seen, f"consumer: {delivery.topic} came twice")
        ctx.must(delivery.payload == wanted.get(delivery.topic), f"consumer: {delivery.topic} has a foreign payload")
        seen[delivery.topic] = delivery.payload

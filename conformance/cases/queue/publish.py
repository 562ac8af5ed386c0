"""Publishing to and consuming from a durable queue."""

from __future__ import annotations

from assay.conformance.case import CaseContext, case
from assay.conformance.cases.mqtt5.support import shares
from assay.conformance.cases.queue.support import consume, new_queue, property_of, publish, settle
from assay.conformance.wire import Puback, Publish


@case(
    "queue/publish/kept-until-somebody-consumes",
    clauses=("Q-PUBLISH-1", "Q-PUBLISH-2"),
    requires=("queues",),
    mutant="queue-new-groups-start-at-the-end",
    near_miss="queue-one-batch-per-message",
)
async def kept(ctx: CaseContext) -> None:
    """A message published while nobody consumes is there for the first consumer.

    Two messages are confirmed, and their publisher leaves. A consumer that joins afterwards gets both.
    """
    queue = new_queue(ctx)
    publisher = await ctx.connect(version=5, name="publisher")
    await publish(publisher, queue, b"first", b"second")
    await publisher.disconnect()
    consumer = await consume(ctx, queue)
    for payload in (b"first", b"second"):
        await consumer.expect_publish(payload=payload, qos=1)


@case(
    "queue/deliver/says-what-it-is",
    clauses=("Q-DELIVER-1",),
    requires=("queues",),
    mutant="queue-deliveries-without-group",
)
async def properties(ctx: CaseContext) -> None:
    """A delivery carries what a consumer needs to settle it.

    The user properties message-id, group-id, queue, partition, offset and delivery-count are there; the queue is the
    one published to, the count is 1, partition and offset are numbers. The publisher's own user properties come along.
    """
    queue = new_queue(ctx)
    publisher = await ctx.connect(version=5, name="publisher")
    await publish(publisher, queue, b"message")
    consumer = await consume(ctx, queue)
    delivery = await consumer.expect_publish(payload=b"message")
    for name in ("message-id", "group-id"):
        ctx.must(bool(property_of(ctx, delivery, name)), f"consumer: expected {name} to have a value")
    ctx.must(property_of(ctx, delivery, "queue") == queue, f"consumer: expected queue {queue} in the user properties")
    count = property_of(ctx, delivery, "delivery-count")
    ctx.must(count == "1", f"consumer: expected delivery-count 1; seen {count}")
    for name in ("partition", "offset"):
        value = property_of(ctx, delivery, name)
        ctx.must(value.isdecimal(), f"consumer: expected {name} to be a number; seen {value!r}")
    key = property_of(ctx, delivery, "partition-key")
    ctx.must(key == "one", f"consumer: expected the publisher's partition-key; seen {key!r}")


@case(
    "queue/deliver/once-in-each-group",
    clauses=("Q-DELIVER-2",),
    requires=("queues",),
    mutant="queue-delivers-to-two",
    near_miss="queue-one-batch-per-message",
)
async def groups(ctx: CaseContext) -> None:
    """Each group gets every message, and one consumer of the group gets it.

    Two consumers of one group and one of another. Six messages are published; the pair gets each once between them, the
    other consumer gets all.
    """
    queue = new_queue(ctx)
    pair = [await consume(ctx, queue, group="pair", name=f"pair {number}") for number in (1, 2)]
    other = await consume(ctx, queue, group="other", name="other")
    publisher = await ctx.connect(version=5, name="publisher")
    wanted = [str(number).encode() for number in range(6)]
    await publish(publisher, queue, *wanted)
    for payload in wanted:
        await other.expect_publish(payload=payload)
    shared = [packet.payload for share in await shares(pair, len(wanted)) for packet in share]
    ctx.must(sorted(shared) == wanted, f"pair: expected {wanted} between them; seen {shared}")


@case(
    "queue/deliver/keeps-the-order-of-a-key",
    clauses=("Q-DELIVER-3",),
    requires=("queues",),
    mutant="queue-key-ignored",
    near_miss="queue-one-batch-per-message",
)
async def key_order(ctx: CaseContext) -> None:
    """Messages of one partition key are delivered in the order in which they were published.

    Thirty messages of one key are published before the consumer joins. They come in order, from one partition.
    """
    queue = new_queue(ctx)
    publisher = await ctx.connect(version=5, name="publisher")
    wanted = [str(number).encode() for number in range(30)]
    await publish(publisher, queue, *wanted)
    consumer = await consume(ctx, queue)
    seen = [await consumer.expect_publish() for _ in wanted]
    payloads = [delivery.payload for delivery in seen]
    ctx.must(payloads == wanted, f"consumer: expected {wanted}; seen {payloads}")
    partitions = {property_of(ctx, delivery, "partition") for delivery in seen}
    ctx.must(len(partitions) == 1, f"consumer: expected one partition; seen {sorted(partitions)}")


@case(
    "queue/settle/verbs-only-at-the-end",
    clauses=("Q-CONTROL-2",),
    requires=("queues",),
    mutant="queue-verbs-anywhere",
)
async def verb_in_the_middle(ctx: CaseContext) -> None:
    """A settlement verb that is not the last level of the topic is refused, and nothing is enqueued.

    A publish to $queue/<name>/$ack/more gets a PUBACK with a failure code. A consumer gets the next message only.
    """
    queue = new_queue(ctx)
    publisher = await ctx.connect(version=5, name="publisher")
    publisher.send(Publish(topic=f"$queue/{queue}/$ack/more", payload=b"stray", qos=1, packet_id=9))
    puback = await publisher.expect(Puback)
    ctx.must(puback.reason_code >= 0x80, f"publisher: expected a failure code; seen {puback}")
    await publish(publisher, queue, b"proper")
    consumer = await consume(ctx, queue)
    delivery = await consumer.expect_publish(payload=b"proper")
    await settle(ctx, consumer, queue, "ack", delivery)
    await consumer.expect_nothing()

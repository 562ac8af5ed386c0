"""Settling deliveries: $ack, $nack, $reject."""

from __future__ import annotations

from assay.conformance.case import CaseContext, case
from assay.conformance.cases.queue.support import consume, deliveries, new_queue, property_of, publish, settle
from assay.conformance.wire import Properties, Puback, Publish


@case(
    "queue/settle/acked-is-gone",
    clauses=("Q-ACK-1",),
    requires=("queues",),
    mutant="queue-ack-ignored",
    near_miss="queue-one-batch-per-message",
)
async def acked(ctx: CaseContext) -> None:
    """What was acknowledged on $ack is not delivered to the group again.

    A consumer acknowledges a message and leaves. The next consumer of the group gets the following message, and only
    that.
    """
    queue = new_queue(ctx)
    publisher = await ctx.connect(version=5, name="publisher")
    await publish(publisher, queue, b"done", b"open")
    first = await consume(ctx, queue, name="first")
    delivery = await first.expect_publish(payload=b"done")
    await first.expect_publish(payload=b"open", ack=False)
    await settle(ctx, first, queue, "ack", delivery)
    await first.disconnect()
    second = await consume(ctx, queue, name="second")
    await second.expect_publish(payload=b"open")
    await second.expect_nothing()


@case(
    "queue/settle/puback-alone-settles-nothing",
    clauses=("Q-ACK-2",),
    requires=("queues",),
    mutant="queue-lost-session-settles",
)
async def puback_only(ctx: CaseContext) -> None:
    """For an MQTT 5.0 consumer PUBACK is transport only: an unsettled message comes back.

    A consumer sends PUBACK, settles nothing and leaves. The next consumer of the group gets the message, with
    delivery-count 2.
    """
    queue = new_queue(ctx)
    publisher = await ctx.connect(version=5, name="publisher")
    await publish(publisher, queue, b"message")
    first = await consume(ctx, queue, name="first")
    await first.expect_publish(payload=b"message")
    await first.expect_nothing()
    await first.disconnect()
    second = await consume(ctx, queue, name="second")
    delivery = await second.expect_publish(payload=b"message")
    count = property_of(ctx, delivery, "delivery-count")
    ctx.must(count == "2", f"second: expected delivery-count 2; seen {count}")


@case(
    "queue/settle/puback-settles-for-311",
    clauses=("Q-ACK-3",),
    requires=("queues", "mqtt311"),
    mutant="queue-311-puback-settles-nothing",
)
async def puback_311(ctx: CaseContext) -> None:
    """For an MQTT 3.1.1 consumer PUBACK settles the delivery.

    A consumer acknowledges the first of two messages by PUBACK and leaves. When it comes back it gets the second only.
    """
    queue = new_queue(ctx)
    publisher = await ctx.connect(version=5, name="publisher")
    await publish(publisher, queue, b"done", b"open")
    first = await ctx.connect(version=4, name="first")
    await first.subscribe(f"$queue/{queue}", qos=1)
    await first.expect_publish(payload=b"done")
    await first.expect_publish(payload=b"open", ack=False)
    await first.expect_nothing()
    await first.disconnect()
    second = await ctx.connect(version=4, client_id=first.client_id, name="second")
    await second.subscribe(f"$queue/{queue}", qos=1)
    await second.expect_publish(payload=b"open")
    await second.expect_nothing()


@case(
    "queue/settle/nacked-comes-again",
    clauses=("Q-NACK-1",),
    requires=("queues",),
    mutant="queue-nack-settles",
    near_miss="queue-one-batch-per-message",
    limit_s=15.0,
)
async def nacked(ctx: CaseContext) -> None:
    """What was refused on $nack is delivered again, counted.

    A consumer refuses a message once; it comes again, at once or after the configured wait, with the same message-id
    and delivery-count 2.
    """
    queue = new_queue(ctx)
    publisher = await ctx.connect(version=5, name="publisher")
    await publish(publisher, queue, b"message")
    consumer = await consume(ctx, queue)
    first = await consumer.expect_publish(payload=b"message")
    await settle(ctx, consumer, queue, "nack", first)
    again = await consumer.expect_publish(payload=b"message")
    count = property_of(ctx, again, "delivery-count")
    ctx.must(count == "2", f"consumer: expected delivery-count 2; seen {count}")
    ids = property_of(ctx, first, "message-id"), property_of(ctx, again, "message-id")
    ctx.must(ids[0] == ids[1], f"consumer: expected the same message-id; seen {ids[0]} and {ids[1]}")


@case(
    "queue/settle/rejected-goes-to-dead-letters",
    clauses=("Q-REJECT-1",),
    requires=("queues",),
    mutant="queue-reject-discards",
    near_miss="queue-one-batch-per-message",
)
async def rejected(ctx: CaseContext) -> None:
    """What was refused on $reject goes to the dead-letter queue, with its payload and the reason.

    A consumer rejects a message with the reason "unreadable". A consumer of $dlq/<queue> gets it, and the reason is
    among its user properties; the first consumer gets nothing more.
    """
    queue = new_queue(ctx)
    publisher = await ctx.connect(version=5, name="publisher")
    await publish(publisher, queue, b"bad")
    consumer = await consume(ctx, queue)
    delivery = await consumer.expect_publish(payload=b"bad")
    await settle(ctx, consumer, queue, "reject", delivery, reason="unreadable")
    await consumer.expect_nothing()
    burial = await ctx.connect(version=5, name="dead letters")
    await burial.subscribe(f"$dlq/{queue}", qos=1)
    letter = await burial.expect_publish(payload=b"bad")
    values = [value for _, value in letter.properties.user_property]
    ctx.must("unreadable" in values, f"dead letters: expected the reason in {letter.properties.user_property}")


@case(
    "queue/settle/settlements-are-not-messages",
    clauses=("Q-CONTROL-1",),
    requires=("queues",),
    mutant="queue-settlements-enqueued",
)
async def not_messages(ctx: CaseContext) -> None:
    """A settlement is never delivered as a message of the queue, whatever its verb and whatever becomes of it (F20).

    One $ack settles a message; one publish to each verb names a message that is not there. A second group gets what was
    published and nothing else, and the first one nothing more.
    """
    queue = new_queue(ctx)
    publisher = await ctx.connect(version=5, name="publisher")
    await publish(publisher, queue, b"message")
    consumer = await consume(ctx, queue)
    # A second group keeps the message in the queue for itself until it has settled it too.
    other = await consume(ctx, queue, group="other", name="other")
    delivery = await consumer.expect_publish(payload=b"message")
    await settle(ctx, consumer, queue, "ack", delivery)
    nothing = Properties(user_property=(("message-id", f"{queue}:0:999"), ("group-id", "workers")))
    for verb in ("ack", "nack", "reject", "extend", "cancel", "commit", "claim"):
        topic = f"$queue/{queue}/${verb}"
        consumer.send(Publish(topic=topic, qos=1, packet_id=consumer.next_packet_id(), properties=nothing))
        await consumer.expect(Puback, skipping=(Publish,))
    await consumer.expect_nothing()
    seen = [delivery.payload for delivery in await deliveries(other, at_least=1)]
    ctx.must(seen == [b"message"], f"other: expected the published message alone; seen {seen}")

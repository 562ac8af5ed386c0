"""Queues that go: deleted, purged, ephemeral."""

from __future__ import annotations

from assay.conformance.case import CaseContext, case
from assay.conformance.cases.queue.administration import ask, create, figure, refused
from assay.conformance.cases.queue.producing import Producer
from assay.conformance.cases.queue.support import (
    consume,
    deliveries,
    new_queue,
    publish_with,
    refused_settlement,
    settle,
)


@case(
    "queue/admin/deleted-is-empty",
    clauses=("Q-ADMIN-07",),
    requires=("queues",),
    mutant="queue-delete-keeps-the-messages",
    near_miss="queue-one-batch-per-message",
)
async def deleted(ctx: CaseContext) -> None:
    """A queue that is created under the name of a deleted one is empty (R11).

    A queue with two messages, one of them acknowledged, is deleted; then it is unknown. It is created again by a
    publish: its consumer gets that message alone, at offset 0.
    """
    queue = new_queue(ctx)
    client = await ctx.connect(version=5, name="client")
    await create(ctx, client, queue, partitions=1)
    consumer = await consume(ctx, queue)
    for payload in (b"done", b"open"):
        await publish_with(client, queue, payload)
    await settle(ctx, consumer, queue, "ack", await consumer.expect_publish(payload=b"done"))
    await consumer.disconnect()
    await ask(ctx, client, queue, "delete")
    await refused(ctx, client, f"{queue}/stats")
    await create(ctx, client, queue, partitions=1)
    await publish_with(client, queue, b"new")
    again = await consume(ctx, queue, name="again")
    seen = [delivery.payload for delivery in await deliveries(again, at_least=1)]
    ctx.must(seen == [b"new"], f"again: expected the new message alone; seen {seen}")


@case(
    "queue/admin/deleted-stays-deleted",
    clauses=("Q-ADMIN-08",),
    requires=("queues", "restart"),
    mutant="queue-delete-forgets-the-groups",
    near_miss="queue-one-batch-per-message",
    settings={"queues": {"defaults": {"durability": "fsync", "partitions": 1}}},
    limit_s=15.0,
)
async def stays_deleted(ctx: CaseContext) -> None:
    """Neither messages nor the place of a group come back with a restart (R11).

    A group has acknowledged two messages of a queue and not the third when the queue is deleted. It is created again
    and gets a message. After kill -9 it has no group; when the old one joins, it gets that message and nothing else. A
    queue that was only deleted is gone.
    """
    client = await ctx.connect(version=5, name="client")
    consumer = await consume(ctx, "again")
    for payload in (b"1", b"2", b"3"):
        await publish_with(client, "again", payload)
        delivery = await consumer.expect_publish(payload=payload)
        if payload != b"3":
            await settle(ctx, consumer, "again", "ack", delivery)
    await consumer.disconnect()
    await publish_with(client, "gone", b"gone")
    for queue in ("again", "gone"):
        await ask(ctx, client, queue, "delete")
    await publish_with(client, "again", b"new")
    await ctx.restart()
    client = await ctx.connect(version=5, name="client again")
    await refused(ctx, client, "gone/stats")
    groups = (await ask(ctx, client, "again", "stats")).get("groups")
    ctx.must(groups == [], f"client again: expected a queue that no group has read; seen {groups}")
    consumer = await consume(ctx, "again", name="consumer again")
    seen = [delivery.payload for delivery in await deliveries(consumer, at_least=1)]
    ctx.must(seen == [b"new"], f"consumer again: expected the new message alone; seen {seen}")


@case(
    "queue/admin/consumers-are-told",
    clauses=("Q-ADMIN-09", "Q-ADMIN-10"),
    requires=("queues",),
    mutant="queue-delete-unannounced",
    near_miss="queue-one-batch-per-message",
)
async def told(ctx: CaseContext) -> None:
    """Consumers of a queue that is deleted are told, their settlements answered, and their subscription ends.

    A consumer holds a delivery when the queue is deleted. It gets a message on $queue/<name>/$ended; acknowledging the
    delivery gets a failure code; of a queue that is created afterwards under that name it gets nothing.
    """
    queue = new_queue(ctx)
    client = await ctx.connect(version=5, name="client")
    consumer = await consume(ctx, queue)
    await publish_with(client, queue, b"held")
    held = await consumer.expect_publish(payload=b"held")
    await ask(ctx, client, queue, "delete")
    await consumer.expect_publish(topic=f"$queue/{queue}/$ended")
    await refused_settlement(ctx, consumer, queue, "ack", held)
    await publish_with(client, queue, b"new")
    await consumer.expect_nothing()


@case(
    "queue/admin/purge-takes-what-is-ready",
    clauses=("Q-ADMIN-11",),
    requires=("queues",),
    mutant="queue-purge-takes-what-is-in-flight",
    near_miss="queue-one-batch-per-message",
)
async def purged(ctx: CaseContext) -> None:
    """A purge takes away what is ready, for every group, and tells how much; what is in flight can be settled.

    A consumer with room for one delivery holds the first of four messages; another group has none. After the purge the
    first can be acknowledged, and both groups get only what is published then.
    """
    queue = new_queue(ctx)
    client = await ctx.connect(version=5, name="client")
    await create(ctx, client, queue, partitions=1, max_in_flight=1)
    consumer = await consume(ctx, queue)
    other = await consume(ctx, queue, group="other", name="other")
    for number in range(4):
        await publish_with(client, queue, b"%d" % number)
    held = await consumer.expect_publish(payload=b"0")
    await settle(ctx, other, queue, "ack", await other.expect_publish(payload=b"0"))
    await other.expect_publish(payload=b"1")
    await other.disconnect()
    answer = await ask(ctx, client, queue, "purge")
    ctx.must(answer.get("purged") == 3, f"client: expected three messages to be purged; seen {answer}")
    await settle(ctx, consumer, queue, "ack", held)
    await publish_with(client, queue, b"new")
    await consumer.expect_publish(payload=b"new")
    other = await consume(ctx, queue, group="other", name="other again")
    await other.expect_publish(payload=b"new")


@case(
    "queue/admin/purged-stays-away",
    clauses=("Q-ADMIN-12",),
    requires=("queues", "restart"),
    mutant="queue-purge-forgotten",
    near_miss="queue-one-batch-per-message",
    settings={"queues": {"defaults": {"durability": "fsync", "partitions": 1}}},
    limit_s=15.0,
)
async def stays_away(ctx: CaseContext) -> None:
    """What was purged does not come back after kill -9, neither for the groups there were nor for a new one.

    Three messages of a queue with a group, and three of one without, are purged; each gets another message. After the
    restart that is all that a group gets.
    """
    client = await ctx.connect(version=5, name="client")
    idle = await consume(ctx, "used")
    await idle.disconnect()
    for queue in ("used", "unused"):
        for number in range(3):
            await publish_with(client, queue, b"%d" % number)
        answer = await ask(ctx, client, queue, "purge")
        ctx.must(answer.get("purged") == 3, f"client: expected three messages to be purged; seen {answer}")
        await publish_with(client, queue, b"new")
    await ctx.restart()
    for queue, group in (("used", "workers"), ("used", "others"), ("unused", "workers")):
        consumer = await consume(ctx, queue, group=group, name=f"{queue} {group}")
        seen = [delivery.payload for delivery in await deliveries(consumer, at_least=1)]
        ctx.must(seen == [b"new"], f"{consumer.name}: expected the new message alone; seen {seen}")


@case(
    "queue/admin/ephemeral-queues-expire",
    clauses=("Q-ADMIN-17",),
    requires=("queues", "clock"),
    mutant="queue-ephemeral-expires-in-use",
    limit_s=10.0,
)
async def ephemeral(ctx: CaseContext) -> None:
    """An ephemeral queue ends when it had no consumer for its time: not before, and not while it has one.

    A queue that expires after 60 s has a consumer for 90 s, which then leaves. 59 s later it is there, 61 s later not.
    """
    queue = new_queue(ctx)
    client = await ctx.connect(version=5, name="client")
    await create(ctx, client, queue, ephemeral=True, expires_after_s=60)
    consumer = await consume(ctx, queue)
    await ctx.advance(90)
    with ctx.own_point():
        await figure(ctx, client, queue, "depth")
    await consumer.disconnect()
    await ctx.advance(59)
    with ctx.own_point():
        await figure(ctx, client, queue, "depth")
    await ctx.advance(2)
    await refused(ctx, client, f"{queue}/stats")


@case(
    "queue/admin/no-deletion-under-a-transaction",
    clauses=("Q-ADMIN-20",),
    requires=("queues",),
    mutant="queue-deletes-under-a-transaction",
    near_miss="queue-one-batch-per-message",
)
async def under_a_transaction(ctx: CaseContext) -> None:
    """A queue that an open transaction has written to, or acknowledged in, is not deleted before the end of it.

    One transaction acknowledges a message of one queue and writes to another. Deleting either is refused. After the
    commit the second queue has the message, and both can be deleted.
    """
    source, target = new_queue(ctx), new_queue(ctx)
    consumer = await consume(ctx, source)
    producer = await Producer.make(ctx, ctx.client_id())
    await publish_with(producer.client, source, b"in")
    delivery = await consumer.expect_publish(payload=b"in")
    transaction = await producer.begin()
    await producer.put(target, b"out", transaction)
    await producer.ack(consumer, source, delivery, transaction)
    for queue in (source, target):
        await refused(ctx, producer.client, f"{queue}/delete")
    await producer.commit(transaction)
    sink = await consume(ctx, target, name="sink")
    await sink.expect_publish(payload=b"out")
    for queue in (source, target):
        await ask(ctx, producer.client, queue, "delete")


_DELETE = {"group": "workers", "delete": True}


@case(
    "queue/groups/no-deletion-under-a-transaction",
    clauses=("Q-GROUP-17",),
    requires=("queues",),
    mutant="queue-group-deleted-under-a-transaction",
    near_miss="queue-one-batch-per-message",
)
async def group_under_a_transaction(ctx: CaseContext) -> None:
    """A group in which an open transaction has acknowledged something is not deleted before the end of it.

    Two transactions acknowledge a message of a group each, whose consumers then leave. Deleting the groups is refused;
    after one transaction has been committed and the other aborted, it is done.
    """
    producer = await Producer.make(ctx, ctx.client_id())
    for ends in (producer.commit, producer.abort):
        queue = new_queue(ctx)
        consumer = await consume(ctx, queue)
        await publish_with(producer.client, queue, b"in")
        delivery = await consumer.expect_publish(payload=b"in")
        transaction = await producer.begin()
        await producer.ack(consumer, queue, delivery, transaction)
        await consumer.disconnect()
        await refused(ctx, producer.client, f"{queue}/groups", _DELETE)
        await ends(transaction)
        await ask(ctx, producer.client, queue, "groups", _DELETE)

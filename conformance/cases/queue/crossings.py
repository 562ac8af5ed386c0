"""Two features of a queue at once: settings that change, cursors and claims, with deadlines, priorities and retries."""

from __future__ import annotations

from assay.conformance.case import CaseContext, case
from assay.conformance.cases.queue.administration import ask, figures_become
from assay.conformance.cases.queue.bursts import settle_together
from assay.conformance.cases.queue.group_support import ONE_PARTITION, accepted, payloads, refused
from assay.conformance.cases.queue.priority import LANES
from assay.conformance.cases.queue.support import (
    admin,
    consume,
    count_of,
    deliveries,
    new_queue,
    publish,
    publish_with,
    settle,
)
from assay.conformance.connection import Connection

_QUOTA_EXCEEDED = 0x97
_NO_RETRIES = {"queues": {"defaults": {"partitions": 1, "retry": {"max_retries": 0}}}}


async def _one_of_each(publisher: Connection, queue: str) -> None:
    for lane in reversed(LANES):
        await publish_with(publisher, queue, lane.encode(), priority=lane)


@case(
    "queue/lifecycle/deadlines-outlive-other-settings",
    clauses=("Q-LIFE-02", "Q-ADMIN-04"),
    requires=("queues", "clock"),
    settings=ONE_PARTITION,
    mutant="wire-new-settings-forget-deadlines",
    near_miss="queue-one-batch-per-message",
)
async def deadlines(ctx: CaseContext) -> None:
    """What is with a consumer as the settings of its queue change times out all the same.

    A message is delivered; from then on the queue lets consumers hold seven messages, and each for 29 s. After the
    timeout of 30 s and the first backoff of 5 s the message comes again, with delivery-count 2.
    """
    queue = new_queue(ctx)
    publisher = await ctx.connect(version=5, name="publisher")
    await publish(publisher, queue, b"message")
    consumer = await consume(ctx, queue)
    await consumer.expect_publish(payload=b"message")
    await ask(ctx, publisher, queue, "config", {"max_in_flight": 7, "delivery_timeout_s": 29})
    await ctx.advance(31)
    await ctx.advance(6)
    again = await consumer.expect_publish(payload=b"message")
    ctx.must(count_of(ctx, again) == 2, f"consumer: expected delivery-count 2; seen {count_of(ctx, again)}")


@case(
    "queue/cursors/commit-of-every-priority",
    clauses=("Q-CURSOR-07", "Q-CURSOR-13"),
    requires=("queues", "restart"),
    settings=ONE_PARTITION,
    mutant="wire-commit-of-one-lane",
    near_miss="queue-one-batch-per-message",
    limit_s=20.0,
)
async def commits(ctx: CaseContext) -> None:
    """A commit settles what was delivered below it, whatever priority that has, also over a restart.

    A message of each priority is delivered, and all but the last, which is critical, are committed. That one comes
    again after a restart, alone.
    """
    queue = new_queue(ctx)
    publisher = await ctx.connect(version=5, name="publisher")
    await _one_of_each(publisher, queue)
    consumer = await consume(ctx, queue)
    held = await payloads(consumer, at_least=len(LANES))
    ctx.must(sorted(held) == sorted(LANES), f"consumer: expected a message of each priority; seen {held}")
    await accepted(ctx, consumer, queue, "commit", partition="0", offset=str(len(LANES) - 1))
    await ctx.restart()
    second = await consume(ctx, queue, name="second")
    await second.expect_publish(payload=LANES[0].encode())
    await second.expect_nothing()


@case(
    "queue/cursors/reset-of-every-priority",
    clauses=("Q-CURSOR-11", "Q-CURSOR-13"),
    requires=("queues", "restart"),
    settings=ONE_PARTITION,
    mutant="wire-reset-of-one-lane-is-written",
    near_miss="queue-one-batch-per-message",
    limit_s=20.0,
)
async def resets(ctx: CaseContext) -> None:
    """A group that is set back gets messages of every priority again, also when the broker is killed before it does.

    Two groups; the second has been there and gone, so that everything is kept for it. The first settles a message of
    each priority, leaves, and is set to the earliest. After a restart it gets all of them.
    """
    queue = new_queue(ctx)
    await (await consume(ctx, queue, group="keepers", name="keeper")).disconnect()
    publisher = await ctx.connect(version=5, name="publisher")
    await _one_of_each(publisher, queue)
    consumer = await consume(ctx, queue)
    for delivery in await deliveries(consumer, at_least=len(LANES)):
        await settle(ctx, consumer, queue, "ack", delivery)
    await consumer.disconnect()
    await admin(ctx, publisher, f"queue/{queue}/reset", {"group": "workers", "to": "earliest"})
    await ctx.restart()
    found = await payloads(await consume(ctx, queue, name="second"), at_least=len(LANES))
    ctx.must(sorted(found) == sorted(LANES), f"second: expected a message of each priority again; seen {found}")


@case(
    "queue/groups/used-up-is-not-claimed",
    clauses=("Q-RETRY-05",),
    requires=("queues",),
    settings=_NO_RETRIES,
    mutant="wire-claims-of-what-is-used-up",
    near_miss="queue-one-batch-per-message",
)
async def used_up(ctx: CaseContext) -> None:
    """A message that may be delivered once is given to nobody who claims it from its consumer.

    The queue allows no retry. A consumer holds the message, and another one claims it: that is refused.
    """
    queue = new_queue(ctx)
    publisher = await ctx.connect(version=5, name="publisher")
    await publish(publisher, queue, b"message")
    holder = await consume(ctx, queue, name="holder")
    await holder.expect_publish(payload=b"message")
    claimant = await consume(ctx, queue, name="claimant")
    await refused(ctx, claimant, queue, "claim")
    await claimant.expect_nothing()


@case(
    "queue/limits/dropped-behind-one-in-flight-stays-gone",
    clauses=("Q-LIMIT-16",),
    requires=("queues", "restart"),
    mutant="queue-dropped-behind-one-in-flight-is-kept",
    kills=("queue-dropped-behind-one-in-flight-is-back",),
    near_miss="queue-one-batch-per-message",
    settings={"queues": {"defaults": {"max_depth": 3, "overflow": "drop_oldest", "partitions": 1}}},
    limit_s=30.0,
)
async def dropped_behind(ctx: CaseContext) -> None:
    """What is given up for newer messages while a consumer holds an older one comes to no group that is made later.

    A consumer, which takes one at a time, holds the first of five messages in a queue of depth 3. A second group gets
    the first and the last two; once the broker was killed twice a third one does, too.
    """
    queue = new_queue(ctx)
    publisher = await ctx.connect(version=5, name="publisher")
    await publish(publisher, queue, b"1")
    holder = await consume(ctx, queue, receive_maximum=1)
    await holder.expect_publish(payload=b"1", ack=False)
    await publish(publisher, queue, b"2", b"3", b"4", b"5")
    for group in ("soon", "late"):
        consumer = await consume(ctx, queue, group=group)
        for payload in (b"1", b"4", b"5"):
            await consumer.expect_publish(payload=payload)
        await consumer.expect_nothing()
        for _ in range(2):
            await ctx.restart()


async def _three(ctx: CaseContext, publisher: Connection, queue: str, **options: str) -> None:
    more = sum(len(name) + len(value) for name, value in options.items())
    for _ in range(3):
        puback = await publish_with(publisher, queue, b"x" * (100 - more), **options)
        ctx.must(puback.reason_code < 0x80, f"publisher: expected 100 bytes to be taken; seen {puback}")


async def _leave(ctx: CaseContext, publisher: Connection, queue: str, way: str) -> None:
    """A queue is filled, and everything leaves it one way."""
    named, _, how = way.partition(" ")
    consumer = await consume(ctx, queue, group="readers", name=way) if named != "nobody" else None
    if how in ("expires", "purged") and consumer is not None:
        await consumer.disconnect()
    await _three(ctx, publisher, queue, **({"ttl": "60s"} if how == "expires" else {}))
    if how == "purged":
        await admin(ctx, publisher, f"queue/{queue}/purge")
    elif how == "reset":
        await admin(ctx, publisher, f"queue/{queue}/reset", {"group": "readers", "to": "latest"})
    elif consumer is not None and how in ("settled", "rejected"):
        held = await deliveries(consumer, at_least=3)
        if how == "settled":
            await settle_together(ctx, consumer, queue, held)
        else:
            for each in held:
                await settle(ctx, consumer, queue, "reject", each)
    elif consumer is not None and how == "deleted":
        await consumer.disconnect()
        other = await consume(ctx, queue, group="others", name="others")
        await settle_together(ctx, other, queue, await deliveries(other, at_least=3))
        await figures_become(ctx, publisher, queue, lambda seen: sum(each["consumers"] for each in seen["groups"]), 1)
        await admin(ctx, publisher, f"queue/{queue}/groups", {"group": "readers", "delete": True})


_WAYS = tuple(f"nobody {how}" for how in ("expires", "purged")) + tuple(
    f"group {how}" for how in ("expires", "purged", "reset", "settled", "rejected", "deleted")
)


@case(
    "queue/limits/bytes-of-what-has-left",
    clauses=("Q-LIMIT-02", "Q-LIMIT-09"),
    requires=("queues", "clock", "restart"),
    mutant="queue-bytes-of-what-expired-stay",
    kills=("queue-bytes-without-groups-stay", "queue-bytes-of-what-was-purged-stay"),
    near_miss="queue-one-batch-per-message",
    settings={"queues": {"defaults": {"max_bytes": 300, "partitions": 1, "delivery_timeout_s": 10**6}}},
    limit_s=30.0,
)
async def bytes_left(ctx: CaseContext) -> None:
    """However messages leave a queue, their bytes leave it, too, before a restart and after it.

    Queues of 300 bytes are filled. In two of them, without a group, everything expires or is purged. In six more
    everything expires, is purged, passed over by a reset, settled or rejected, or the group that had settled nothing is
    deleted. Then each of them holds no bytes, and again after kill -9; it takes 300 and not a byte more.
    """
    queues = {way: new_queue(ctx) for way in _WAYS}
    publisher = await ctx.connect(version=5, name="publisher")
    for way, queue in queues.items():
        await _leave(ctx, publisher, queue, way)
    await ctx.advance(90.0)
    for when in ("at once", "after a restart"):
        for way, queue in queues.items():
            held = await figures_become(ctx, publisher, queue, lambda seen: (seen["depth"], seen["held_bytes"]), (0, 0))
            ctx.must(held == (0, 0), f"{way}, {when}: expected no messages and no bytes; seen {held}")
        if when == "at once":
            await ctx.restart()
            publisher = await ctx.connect(version=5, name="publisher after the restart")
    for way, queue in queues.items():
        puback = await publish_with(publisher, queue, b"x" * 300)
        ctx.must(puback.reason_code < 0x80, f"{way}: expected 300 bytes to be taken; seen {puback}")
        puback = await publish_with(publisher, queue, b"x")
        ctx.must(puback.reason_code == _QUOTA_EXCEEDED, f"{way}: expected byte 301 to be refused; seen {puback}")

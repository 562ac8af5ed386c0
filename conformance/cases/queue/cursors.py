"""Where groups begin, commits, and resets."""

from __future__ import annotations

from assay.conformance.case import CaseContext, case
from assay.conformance.cases.queue.group_support import ONE_PARTITION, accepted, partitions, payloads, refused
from assay.conformance.cases.queue.support import (
    admin,
    consume,
    count_of,
    deliveries,
    join,
    new_queue,
    publish,
    refused_settlement,
    settle,
)
from assay.conformance.connection import Connection
from assay.conformance.wire import Properties, Suback, Subscribe, Subscription

_FOUR = (b"0", b"1", b"2", b"3")


@case(
    "queue/cursors/new-groups-begin-where-they-ask",
    clauses=("Q-CURSOR-01", "Q-CURSOR-02", "Q-CURSOR-03"),
    requires=("queues",),
    settings=ONE_PARTITION,
    mutant="queue-latest-is-earliest",
    near_miss="queue-one-batch-per-message",
)
async def beginnings(ctx: CaseContext) -> None:
    """A new group begins at the earliest message, the latest, or an offset, as its first consumer asks.

    Four messages are in the queue. Groups that ask for earliest, nothing, latest, offset 2 and offset 99 get the four,
    the four, none, the last two and none of them; then all of them get a fifth message.
    """
    queue = new_queue(ctx)
    publisher = await ctx.connect(version=5, name="publisher")
    await publish(publisher, queue, *_FOUR)
    wanted = {"earliest": "0123", "": "0123", "latest": "", "2": "23", "99": ""}
    consumers: list[Connection] = []
    for cursor, expected in wanted.items():
        consumer = await ctx.connect(version=5, name=f"from {cursor}")
        await join(consumer, queue, group=f"from-{cursor}", **({"cursor": cursor} if cursor else {}))
        found = await payloads(consumer, at_least=len(expected))
        ctx.must(found == list(expected), f"{consumer.name}: expected {list(expected)}; seen {found}")
        consumers.append(consumer)
    await publish(publisher, queue, b"new")
    for consumer in consumers:
        found = await payloads(consumer, at_least=1)
        ctx.must(found == ["new"], f"{consumer.name}: expected the new message; seen {found}")


@case(
    "queue/cursors/a-time-means-the-first-not-earlier",
    clauses=("Q-CURSOR-04",),
    requires=("queues", "clock"),
    settings=ONE_PARTITION,
    mutant="queue-cursor-time-is-late",
    near_miss="queue-one-batch-per-message",
)
async def times(ctx: CaseContext) -> None:
    """A time as cursor means the first message that was enqueued then or later.

    Three messages are two seconds apart. The second one is rejected: its dead letter tells when it was enqueued, to the
    millisecond. A group that asks for exactly that time begins with it, one for a time a little later with the third.
    """
    queue = new_queue(ctx)
    publisher = await ctx.connect(version=5, name="publisher")
    await publish(publisher, queue, b"before")
    await ctx.advance(2)
    await publish(publisher, queue, b"then")
    await ctx.advance(2)
    await publish(publisher, queue, b"after")
    consumer = await consume(ctx, queue, name="rejecting")
    await consumer.expect_publish(payload=b"before")
    delivery = await consumer.expect_publish(payload=b"then")
    await consumer.expect_publish(payload=b"after")
    await settle(ctx, consumer, queue, "reject", delivery)
    burial = await ctx.connect(version=5, name="dead letters")
    await burial.subscribe(Subscription(filter=f"$dlq/{queue}", qos=1))
    letter = await burial.expect_publish(payload=b"then")
    enqueued_at = dict(letter.properties.user_property)["_dlq_enqueued_at"]
    exact = await consume(ctx, queue, group="exact", name="exact", cursor=enqueued_at)
    found = await payloads(exact, at_least=2)
    ctx.must(found == ["then", "after"], f"exact: expected then and after; seen {found}")
    ctx.must(enqueued_at.endswith("Z"), f"expected a time in UTC; seen {enqueued_at}")
    later = await consume(ctx, queue, group="later", name="later", cursor=_a_little_later(enqueued_at))
    found = await payloads(later, at_least=1)
    ctx.must(found == ["after"], f"later: expected after; seen {found}")


def _a_little_later(time: str) -> str:
    """By 0.9 milliseconds, which is one more digit."""
    return time.removesuffix("Z") + "9Z"


@case(
    "queue/cursors/groups-with-a-position-keep-it",
    clauses=("Q-CURSOR-05", "Q-CURSOR-13"),
    requires=("queues", "restart"),
    settings=ONE_PARTITION,
    mutant="queue-cursor-moves-any-group",
    near_miss="queue-one-batch-per-message",
    limit_s=20.0,
)
async def kept(ctx: CaseContext) -> None:
    """A cursor moves no group that has a position; where a group began survives a restart.

    A group begins at offset 1 of four, settles one message and is left. Its next consumer asks for the latest, the one
    after a restart for the earliest: both go on at offset 2.
    """
    queue = new_queue(ctx)
    publisher = await ctx.connect(version=5, name="publisher")
    await publish(publisher, queue, *_FOUR)
    first = await consume(ctx, queue, name="first", cursor="1")
    delivery = await first.expect_publish(payload=b"1")
    ctx.must(await payloads(first, at_least=2) == ["2", "3"], "first: expected the messages 2 and 3")
    await settle(ctx, first, queue, "ack", delivery)
    await first.disconnect()
    second = await consume(ctx, queue, name="second", cursor="latest")
    found = await payloads(second, at_least=2)
    ctx.must(found == ["2", "3"], f"second: expected the messages 2 and 3; seen {found}")
    await ctx.restart()
    third = await consume(ctx, queue, name="third", cursor="earliest")
    found = await payloads(third, at_least=2)
    ctx.must(found == ["2", "3"], f"third: expected the messages 2 and 3; seen {found}")


@case(
    "queue/cursors/malformed-options-are-refused",
    clauses=("Q-CURSOR-06",),
    requires=("queues",),
    mutant="queue-subscribe-options-lenient",
    near_miss="queue-one-batch-per-message",
)
async def malformed(ctx: CaseContext) -> None:
    """A subscription with a malformed option is refused.

    SUBACK has a failure code for each bad value of cursor, ack-mode, prefetch and notify.
    """
    queue = new_queue(ctx)
    consumer = await ctx.connect(version=5)
    bad = (("cursor", "soon"), ("cursor", "-1"), ("ack-mode", "never"), ("prefetch", "0"), ("notify", "yes"))
    for pair in bad:
        properties = Properties(user_property=(pair,))
        packet_id = consumer.next_packet_id()
        entry = Subscription(filter=f"$queue/{queue}", qos=1)
        consumer.send(Subscribe(packet_id=packet_id, subscriptions=(entry,), properties=properties))
        suback = await consumer.expect(Suback)
        ctx.must(suback.reason_codes[0] >= 0x80, f"expected {pair} to be refused; seen {suback}")


@case(
    "queue/cursors/commit",
    clauses=("Q-CURSOR-07", "Q-CURSOR-08", "Q-CURSOR-09", "Q-CURSOR-13"),
    requires=("queues", "restart"),
    settings=ONE_PARTITION,
    mutant="queue-commit-goes-anywhere",
    near_miss="queue-one-batch-per-message",
    limit_s=20.0,
)
async def commit(ctx: CaseContext) -> None:
    """A commit settles what was delivered below it; it goes neither back nor beyond what was delivered.

    Of four delivered messages the first three are committed, a second time as well. Commits of 2 and of 5 are refused.
    What was committed cannot be acknowledged any more. After a restart the fourth message comes again, alone.
    """
    queue = new_queue(ctx)
    publisher = await ctx.connect(version=5, name="publisher")
    await publish(publisher, queue, *_FOUR)
    consumer = await consume(ctx, queue)
    held = await deliveries(consumer, at_least=4)
    ctx.must(len(held) == 4, f"consumer: expected four messages; seen {held}")
    await accepted(ctx, consumer, queue, "commit", partition="0", offset="3", group_id="workers")
    await accepted(ctx, consumer, queue, "commit", offset="3")
    await refused(ctx, consumer, queue, "commit", offset="2")
    await refused(ctx, consumer, queue, "commit", offset="5")
    await refused_settlement(ctx, consumer, queue, "ack", held[2])
    await ctx.restart()
    second = await consume(ctx, queue, name="second")
    again = await second.expect_publish(payload=b"3")
    ctx.must(count_of(ctx, again) == 2, f"second: expected delivery-count 2; seen {count_of(ctx, again)}")
    await second.expect_nothing()


@case(
    "queue/cursors/only-the-consumer-of-a-partition-commits-it",
    clauses=("Q-CURSOR-10",),
    requires=("queues",),
    settings=partitions(2),
    mutant="queue-anybody-commits",
    near_miss="queue-one-batch-per-message",
)
async def owner(ctx: CaseContext) -> None:
    """A commit of a partition that is assigned to another consumer is refused.

    Two consumers have a partition each. Each may commit its own, and not the other's.
    """
    queue = new_queue(ctx)
    base = ctx.client_id()
    first = await consume(ctx, queue, name="a", client_id=f"a{base}")
    second = await consume(ctx, queue, name="b", client_id=f"b{base}")
    await refused(ctx, first, queue, "commit", partition="1", offset="0")
    await refused(ctx, second, queue, "commit", partition="0", offset="0")
    await accepted(ctx, first, queue, "commit", partition="0", offset="0")
    await accepted(ctx, second, queue, "commit", partition="1", offset="0")


@case(
    "queue/cursors/reset",
    clauses=("Q-CURSOR-11", "Q-CURSOR-12", "Q-CURSOR-13"),
    requires=("queues", "restart"),
    settings=ONE_PARTITION,
    mutant="queue-reset-keeps-what-is-in-flight",
    near_miss="queue-one-batch-per-message",
    limit_s=20.0,
)
async def reset(ctx: CaseContext) -> None:
    """A group that is reset goes on from there; what was in flight is stale.

    A group has settled two of four messages and holds two. It is set to the latest: what it holds cannot be settled any
    more. Then it is set to offset 1: three messages are delivered, as first deliveries, and again after a restart.
    """
    queue = new_queue(ctx)
    publisher = await ctx.connect(version=5, name="publisher")
    await publish(publisher, queue, *_FOUR)
    consumer = await consume(ctx, queue)
    held = await deliveries(consumer, at_least=4)
    ctx.must(len(held) == 4, f"consumer: expected four messages; seen {held}")
    for delivery in held[:2]:
        await settle(ctx, consumer, queue, "ack", delivery)
    await admin(ctx, publisher, f"queue/{queue}/reset", {"group": "workers", "to": "latest"})
    for delivery in held[2:]:
        await refused_settlement(ctx, consumer, queue, "ack", delivery)
    await consumer.expect_nothing()
    answer = await admin(ctx, publisher, f"queue/{queue}/reset", {"group": "workers", "to": "1", "partition": 0})
    ctx.must(answer.get("group") == "workers", f"expected an answer that names the group; seen {answer}")
    again = await deliveries(consumer, at_least=3)
    found = [(packet.payload, count_of(ctx, packet)) for packet in again]
    ctx.must(found == [(b"1", 1), (b"2", 1), (b"3", 1)], f"consumer: expected three first deliveries; seen {found}")
    await ctx.restart()
    second = await consume(ctx, queue, name="second")
    late = await payloads(second, at_least=3)
    ctx.must(late == ["1", "2", "3"], f"second: expected the three again; seen {late}")

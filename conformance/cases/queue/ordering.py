"""Order within a partition, and within a whole queue, through retries, lost consumers, rebalances and restarts."""

from __future__ import annotations

from assay.conformance.case import CaseContext, case
from assay.conformance.cases.mqtt5.support import taken
from assay.conformance.cases.queue.support import (
    consume,
    count_of,
    deliveries,
    new_queue,
    property_of,
    publish,
    publish_with,
    settle,
)

_RETRY = {"initial_backoff_s": 5, "multiplier": 1, "nack_immediately": False}
_WANTED = [b"0", b"1", b"2", b"3", b"4"]


@case(
    "queue/ordering/retries-hold-back-what-follows",
    clauses=("Q-ORDER-01",),
    requires=("queues", "clock"),
    mutant="queue-retries-hold-nobody-back",
    near_miss="queue-one-batch-per-message",
    settings={"queues": {"defaults": {"retry": _RETRY}}},
)
async def retries(ctx: CaseContext) -> None:
    """While a message waits for its retry, later ones of its partition wait behind it.

    The first of five messages is refused before the second was delivered. Nothing comes until its wait of 5 s is over;
    then it comes again, and the others behind it in order.
    """
    queue = new_queue(ctx)
    publisher = await ctx.connect(version=5, name="publisher")
    await publish(publisher, queue, *_WANTED)
    consumer = await consume(ctx, queue, receive_maximum=1)
    first = await consumer.expect_publish(payload=b"0", ack=False)
    due = ctx.due_in(5)
    await settle(ctx, consumer, queue, "nack", first)
    await consumer.acknowledge(first)
    await ctx.advance(4)
    await consumer.expect_nothing(before=due)
    await ctx.advance(1)
    for payload in _WANTED:
        await consumer.expect_publish(payload=payload)


@case(
    "queue/ordering/other-partitions-go-on",
    clauses=("Q-ORDER-02",),
    requires=("queues", "clock"),
    mutant="queue-retries-hold-everybody-back",
    settings={"queues": {"defaults": {"retry": _RETRY, "partitions": 2}}},
)
async def other_partitions(ctx: CaseContext) -> None:
    """A message that waits holds back its own partition only.

    A message of partition 0 is refused and waits. What is published to partition 1 is delivered; what is published to
    partition 0 is not.
    """
    queue = new_queue(ctx)
    publisher = await ctx.connect(version=5, name="publisher")
    await publish_with(publisher, queue, b"waits", partition="0")
    consumer = await consume(ctx, queue)
    refused = await consumer.expect_publish(payload=b"waits")
    due = ctx.due_in(5)
    await settle(ctx, consumer, queue, "nack", refused)
    await publish_with(publisher, queue, b"behind", partition="0")
    await publish_with(publisher, queue, b"beside", partition="1")
    await consumer.expect_publish(payload=b"beside")
    await consumer.expect_nothing(before=due)
    await ctx.advance(5)
    await consumer.expect_publish(payload=b"waits")
    await consumer.expect_publish(payload=b"behind")


@case(
    "queue/ordering/none-holds-nobody-back",
    clauses=("Q-ORDER-03",),
    requires=("queues", "clock"),
    mutant="queue-none-is-ordered",
    near_miss="queue-retry-waits-longer",
    settings={"queues": {"defaults": {"retry": _RETRY, "partitions": 1, "ordering": "none"}}},
)
async def unordered(ctx: CaseContext) -> None:
    """With the ordering none, a message that waits holds nobody back.

    The first of five messages is refused before the second was delivered; the other four come while it waits.
    """
    queue = new_queue(ctx)
    publisher = await ctx.connect(version=5, name="publisher")
    await publish(publisher, queue, *_WANTED)
    consumer = await consume(ctx, queue, receive_maximum=1)
    first = await consumer.expect_publish(payload=b"0", ack=False)
    await settle(ctx, consumer, queue, "nack", first)
    await consumer.acknowledge(first)
    for payload in _WANTED[1:]:
        await consumer.expect_publish(payload=payload)
    await ctx.advance(11)
    await consumer.expect_publish(payload=b"0")


@case(
    "queue/ordering/kept-when-consumers-change",
    clauses=("Q-ORDER-04", "Q-ORDER-05"),
    requires=("queues",),
    mutant="queue-redelivers-newest-first",
    near_miss="queue-one-batch-per-message",
)
async def consumers_change(ctx: CaseContext) -> None:
    """What comes back comes in the order of the partition, before what was never delivered (R21).

    A consumer holds the first three of five messages of one key and leaves: the second, which joins then, gets all five
    in order. A third joins and gets nothing; the second is lost: the third gets all five in order.
    """
    queue = new_queue(ctx)
    publisher = await ctx.connect(version=5, name="publisher")
    await publish(publisher, queue, *_WANTED)
    first = await consume(ctx, queue, name="first", receive_maximum=3)
    held = [message.payload for message in await taken(first, 3, ack=False)]
    ctx.must(bool(held) and held == _WANTED[: len(held)], f"first: expected {_WANTED[:3]}; seen {held}")
    await first.disconnect()
    second = await consume(ctx, queue, name="second")
    found = [(await second.expect_publish()).payload for _ in _WANTED]
    ctx.must(found == _WANTED, f"second: expected {_WANTED}; seen {found}")
    third = await consume(ctx, queue, name="third")
    await third.expect_nothing()
    second.abort()
    found = [(await third.expect_publish()).payload for _ in _WANTED]
    ctx.must(found == _WANTED, f"third: expected {_WANTED}; seen {found}")


@case(
    "queue/ordering/kept-through-a-restart",
    clauses=("Q-ORDER-06",),
    requires=("queues", "clock", "restart"),
    mutant="queue-retries-hold-nobody-back",
    settings={"queues": {"defaults": {"retry": _RETRY}}},
    limit_s=20.0,
)
async def restart(ctx: CaseContext) -> None:
    """A restart changes nothing of the order: what waits still holds back what follows.

    Of five messages the first is refused and the broker is killed. Back again, it delivers nothing until the wait is
    over, and then all five in order, the first with delivery-count 2.
    """
    queue = new_queue(ctx)
    publisher = await ctx.connect(version=5, name="publisher")
    await publish(publisher, queue, *_WANTED)
    consumer = await consume(ctx, queue, receive_maximum=1)
    first = await consumer.expect_publish(payload=b"0", ack=False)
    due = ctx.due_in(5)
    await settle(ctx, consumer, queue, "nack", first)
    await ctx.restart()
    consumer = await consume(ctx, queue, name="after the restart")
    await consumer.expect_nothing(before=due)
    await ctx.advance(5)
    again = await consumer.expect_publish(payload=b"0")
    ctx.must(count_of(ctx, again) == 2, f"consumer: expected delivery-count 2; seen {count_of(ctx, again)}")
    for payload in _WANTED[1:]:
        await consumer.expect_publish(payload=payload)


@case(
    "queue/ordering/comes-back-as-published-after-a-restart",
    clauses=("Q-ORDER-06",),
    requires=("queues", "restart"),
    mutant="queue-waits-in-order-of-text",
    near_miss="queue-one-batch-per-message",
    limit_s=20.0,
)
async def recovered(ctx: CaseContext) -> None:
    """What was in flight when the broker was killed comes back in the order of the publishes (P11).

    A consumer holds twelve messages and the broker is killed. Back again, it delivers the twelve in order.
    """
    wanted = [b"%d" % number for number in range(12)]
    queue = new_queue(ctx)
    publisher = await ctx.connect(version=5, name="publisher")
    await publish(publisher, queue, *wanted)
    consumer = await consume(ctx, queue)
    for payload in wanted:
        await consumer.expect_publish(payload=payload)
    await ctx.restart()
    consumer = await consume(ctx, queue, name="after the restart")
    for payload in wanted:
        await consumer.expect_publish(payload=payload)
    await consumer.expect_nothing()


@case(
    "queue/ordering/strict-orders-the-queue",
    clauses=("Q-ORDER-07",),
    requires=("queues",),
    mutant="queue-strict-has-partitions",
    near_miss="queue-one-batch-per-message",
    settings={"queues": {"defaults": {"ordering": "strict", "partitions": 8}}},
)
async def strict(ctx: CaseContext) -> None:
    """A strict queue keeps the order of all its messages, whatever their keys.

    Forty messages of ten keys and of none come in the order in which they were published, from one partition, although
    eight are configured.
    """
    queue = new_queue(ctx)
    publisher = await ctx.connect(version=5, name="publisher")
    wanted = [str(number).encode() for number in range(40)]
    for number, payload in enumerate(wanted):
        if number % 4:
            await publish_with(publisher, queue, payload, partition_key=f"key {number % 10}")
        else:
            await publish_with(publisher, queue, payload)
    consumer = await consume(ctx, queue)
    found = await deliveries(consumer, at_least=len(wanted))
    payloads = [delivery.payload for delivery in found]
    ctx.must(payloads == wanted, f"consumer: expected {wanted}; seen {payloads}")
    partitions = {property_of(ctx, delivery, "partition") for delivery in found}
    ctx.must(len(partitions) == 1, f"consumer: expected one partition; seen {sorted(partitions)}")


@case(
    "queue/ordering/strict-waits-for-retries",
    clauses=("Q-ORDER-08",),
    requires=("queues", "clock"),
    mutant="queue-retries-hold-nobody-back",
    settings={"queues": {"defaults": {"retry": _RETRY, "ordering": "strict"}}},
)
async def strict_retry(ctx: CaseContext) -> None:
    """In a strict queue everything waits behind a message that is to be retried.

    Messages of different keys: the first is refused, nothing comes for 5 s, then it comes, and the others behind it.
    """
    queue = new_queue(ctx)
    publisher = await ctx.connect(version=5, name="publisher")
    for payload in _WANTED:
        await publish_with(publisher, queue, payload, partition_key=payload.decode())
    consumer = await consume(ctx, queue, receive_maximum=1)
    first = await consumer.expect_publish(payload=b"0", ack=False)
    due = ctx.due_in(5)
    await settle(ctx, consumer, queue, "nack", first)
    await consumer.acknowledge(first)
    await ctx.advance(4)
    await consumer.expect_nothing(before=due)
    await ctx.advance(1)
    for payload in _WANTED:
        await consumer.expect_publish(payload=payload)

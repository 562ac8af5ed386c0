"""Priority lanes: who is served first, how often, and that nothing is lost or reordered on the way."""

from __future__ import annotations

from assay.conformance.case import CaseContext, case
from assay.conformance.cases.queue.administration import UNHURRIED_S, create, figure, figures_become
from assay.conformance.cases.queue.support import (
    admin,
    consume,
    deliveries,
    new_queue,
    property_of,
    publish_with,
    settle,
)
from assay.conformance.connection import Connection

LANES = ("critical", "high", "normal", "low", "background")
_WEIGHTS = (50, 25, 15, 7, 3)
_ONE_AT_A_TIME = {"queues": {"defaults": {"max_in_flight": 1}}}
_STRICT = {"queues": {"defaults": {"ordering": "strict"}}}


async def _put(publisher: Connection, queue: str, payload: bytes, priority: str = "") -> int:
    """One message of a common key; returns the reason code."""
    options = {"priority": priority} if priority else {}
    return (await publish_with(publisher, queue, payload, partition_key="one", **options)).reason_code


@case(
    "queue/priority/urgent-first",
    clauses=("Q-PRIO-01", "Q-PRIO-02", "Q-PRIO-10"),
    requires=("queues",),
    mutant="queue-priority-ignored",
    near_miss="queue-one-batch-per-message",
)
async def urgent_first(ctx: CaseContext) -> None:
    """Waiting messages come by priority, whatever their order; deliveries say which they have.

    One message of each priority, the least urgent first, in names and numbers and in any case. They are delivered from
    critical to background; all but the normal one carry the name of their priority.
    """
    queue = new_queue(ctx)
    publisher = await ctx.connect(version=5, name="publisher")
    for priority in ("4", "low", "", "HIGH", "Critical"):
        reason = await _put(publisher, queue, priority.lower().encode() or b"normal", priority)
        ctx.must(reason < 0x80, f"publisher: expected priority {priority!r} to be accepted; seen {reason:#x}")
    consumer = await consume(ctx, queue)
    for name, payload in zip(LANES, (b"critical", b"high", b"normal", b"low", b"4"), strict=True):
        delivery = await consumer.expect_publish(payload=payload)
        if name != "normal":
            told = property_of(ctx, delivery, "priority")
            ctx.must(told == name, f"consumer: expected priority {name}; seen {told}")


@case(
    "queue/priority/bad-values-are-refused",
    clauses=("Q-PRIO-01",),
    requires=("queues",),
    mutant="queue-bad-options-ignored",
)
async def bad_values(ctx: CaseContext) -> None:
    """A priority that does not exist is refused.

    "5", "-1", "urgent" and an empty one get a failure code, and nothing is enqueued.
    """
    queue = new_queue(ctx)
    publisher = await ctx.connect(version=5, name="publisher")
    for priority in ("5", "-1", "urgent", ""):
        puback = await publish_with(publisher, queue, b"bad", priority=priority)
        ctx.must(puback.reason_code >= 0x80, f"publisher: expected priority {priority!r} to be refused; seen {puback}")
    consumer = await consume(ctx, queue)
    await consumer.expect_nothing()


@case(
    "queue/priority/shares",
    clauses=("Q-PRIO-03",),
    requires=("queues",),
    mutant="queue-lanes-in-turn",
    kills=("queue-shares-of-runs-are-not-counted",),
    limit_s=20.0,
)
async def shares(ctx: CaseContext) -> None:
    """While all lanes have messages, each gets its share of a hundred deliveries (facts 4.5: 1:1:1:1:1).

    Two hundred messages wait, by the weights: in a queue that keeps an order, and beside a consumer that holds all that
    it may in one of one partition and in one of three that keep none. Of the first hundred deliveries 50, 25, 15, 7 and
    3 are of the five lanes, give or take one.
    """
    publisher = await ctx.connect(version=5, name="publisher")
    for ordering, partitions in (("partition", 1), ("none", 1), ("none", 3)):
        queue = new_queue(ctx)
        await create(ctx, publisher, queue, ordering=ordering, partitions=partitions, delivery_timeout_s=UNHURRIED_S)
        if ordering == "none":
            busy = await consume(ctx, queue, name=f"busy consumer of {partitions}", prefetch="1")
            await publish_with(publisher, queue, b"first")
            await busy.expect_publish(payload=b"first")
        for lane, weight in enumerate(_WEIGHTS):
            for number in range(2 * weight):
                await publish_with(
                    publisher, queue, b"%d" % lane, priority=str(lane), partition=str(number % partitions)
                )
        consumer = await consume(ctx, queue, name=f"consumer of {partitions}, ordering {ordering}")
        seen = [(await consumer.expect_publish()).payload for _ in range(100)]
        for lane, weight in enumerate(_WEIGHTS):
            count = seen.count(b"%d" % lane)
            ctx.must(
                abs(count - weight) <= 1, f"{consumer.name}: expected {weight} of lane {lane} in 100; seen {count}"
            )


@case(
    "queue/priority/idle-share-goes-to-others",
    clauses=("Q-PRIO-04",),
    requires=("queues",),
    mutant="queue-lanes-strictly-by-priority",
    limit_s=10.0,
)
async def idle_share(ctx: CaseContext) -> None:
    """With two lanes busy, their weights share out all deliveries.

    Forty-five normal and nine background messages wait. Of the first 36 deliveries 30 are normal and 6 background, by
    their weights of 15 and 3.
    """
    queue = new_queue(ctx)
    publisher = await ctx.connect(version=5, name="publisher")
    for priority, count in (("normal", 45), ("background", 9)):
        for _ in range(count):
            await _put(publisher, queue, priority.encode(), priority)
    consumer = await consume(ctx, queue)
    seen = [(await consumer.expect_publish()).payload for _ in range(36)]
    count = seen.count(b"background")
    ctx.must(abs(count - 6) <= 1, f"consumer: expected 6 of 36 from background; seen {count}")


@case(
    "queue/priority/no-lane-starves",
    clauses=("Q-PRIO-05",),
    requires=("queues", "clock"),
    mutant="queue-lanes-starve",
    settings=_ONE_AT_A_TIME,
)
async def starvation(ctx: CaseContext) -> None:
    """A lane that was not served for the starvation time, 30 s by default, is served next.

    Twenty critical messages and a background one wait; a consumer takes one every 4 s. The background message comes
    after 32 s at the latest, although a round has fifty places for critical ones.
    """
    queue = new_queue(ctx)
    publisher = await ctx.connect(version=5, name="publisher")
    for number in range(20):
        await _put(publisher, queue, b"%d" % number, "critical")
    await _put(publisher, queue, b"background", "background")
    consumer = await consume(ctx, queue)
    seen: list[bytes] = []
    while b"background" not in seen and len(seen) < 12:
        delivery = await consumer.expect_publish()
        seen.append(delivery.payload)
        await ctx.advance(4.0)
        await settle(ctx, consumer, queue, "ack", delivery)
    ctx.must(b"background" in seen[:10], f"consumer: expected the background message within 40 s; seen {seen}")
    ctx.must(seen.index(b"background") >= 7, f"consumer: expected it no earlier than after 28 s; seen {seen}")


@case(
    "queue/priority/order-within-a-lane",
    clauses=("Q-PRIO-06", "Q-PRIO-07"),
    requires=("queues",),
    mutant="queue-lanes-lose-messages",
    near_miss="queue-one-batch-per-message",
)
async def order(ctx: CaseContext) -> None:
    """Of one partition and lane, messages come in order, and all of all lanes come (G3).

    Sixty messages of one key with mixed priorities. All are delivered, each once; within a priority they are in order.
    """
    queue = new_queue(ctx)
    publisher = await ctx.connect(version=5, name="publisher")
    for number in range(60):
        await _put(publisher, queue, b"%d" % number, LANES[number * 7 % 5])
    consumer = await consume(ctx, queue)
    seen = [int(delivery.payload) for delivery in await deliveries(consumer, at_least=60)]
    ctx.must(sorted(seen) == list(range(60)), f"consumer: expected 60 messages once each; seen {sorted(seen)}")
    for lane in range(5):
        mine = [number for number in seen if number * 7 % 5 == lane]
        ctx.must(mine == sorted(mine), f"consumer: expected lane {lane} in order; seen {mine}")


@case(
    "queue/priority/retried-stays-in-its-lane",
    clauses=("Q-PRIO-08",),
    requires=("queues",),
    mutant="queue-retries-come-last",
    settings=_ONE_AT_A_TIME,
)
async def retried(ctx: CaseContext) -> None:
    """A message that is refused comes again before less urgent ones, and before later ones of its lane.

    Two high and two normal messages wait for a consumer that takes one at a time. It refuses the first high one once.
    The order is high 1, high 1 again, high 2, normal 1, normal 2.
    """
    queue = new_queue(ctx)
    publisher = await ctx.connect(version=5, name="publisher")
    for payload in (b"normal 1", b"high 1", b"normal 2", b"high 2"):
        await _put(publisher, queue, payload, payload.decode().split()[0])
    consumer = await consume(ctx, queue)
    delivery = await consumer.expect_publish(payload=b"high 1")
    await settle(ctx, consumer, queue, "nack", delivery)
    for payload in (b"high 1", b"high 2", b"normal 1", b"normal 2"):
        delivery = await consumer.expect_publish(payload=payload)
        await settle(ctx, consumer, queue, "ack", delivery)


@case(
    "queue/priority/strict-order-has-one-lane",
    clauses=("Q-PRIO-11",),
    requires=("queues",),
    mutant="queue-strict-with-lanes",
    settings=_STRICT,
)
async def strict(ctx: CaseContext) -> None:
    """A queue of strict ordering delivers in the order of the publishes, whatever the priorities.

    A low, a critical and a normal message come in that order.
    """
    queue = new_queue(ctx)
    publisher = await ctx.connect(version=5, name="publisher")
    for priority in ("low", "critical", "normal"):
        await _put(publisher, queue, priority.encode(), priority)
    consumer = await consume(ctx, queue)
    for payload in (b"low", b"critical", b"normal"):
        await consumer.expect_publish(payload=payload)


@case(
    "queue/priority/figures",
    clauses=("Q-PRIO-12",),
    level="SHOULD",
    requires=("queues",),
    mutant="queue-figures-of-one-lane",
)
async def figures(ctx: CaseContext) -> None:
    """The administration tells ready, in flight and rates by partition and priority.

    Three critical and two low messages of one key, and a consumer that takes one. Over the partitions, the lists of
    five add up to 3 and 2, one of the critical ones being in flight.
    """
    queue = new_queue(ctx)
    publisher = await ctx.connect(version=5, name="publisher")
    for priority in ("critical", "low", "critical", "low", "critical"):
        await _put(publisher, queue, b"message", priority)
    consumer = await consume(ctx, queue, receive_maximum=1)
    await consumer.expect_publish(ack=False)
    answer = await admin(ctx, publisher, f"queue/{queue}/priority")
    partitions = answer["topics"][queue]["partitions"].values()
    for name in ("ready", "in_flight", "enqueue_rate", "dequeue_rate"):
        for partition in partitions:
            ctx.must(len(partition[name]) == 5, f"expected five values of {name}; seen {partition[name]}")
    ready = [sum(partition["ready"][lane] for partition in partitions) for lane in range(5)]
    in_flight = [sum(partition["in_flight"][lane] for partition in partitions) for lane in range(5)]
    ctx.must(ready == [2, 0, 0, 2, 0], f"expected 2 critical and 2 low to be ready; seen {ready}")
    ctx.must(in_flight == [1, 0, 0, 0, 0], f"expected one critical in flight; seen {in_flight}")


@case(
    "queue/priority/retention-takes-from-all-lanes",
    clauses=("Q-LIMIT-25", "Q-PRIO-07"),
    requires=("queues", "clock"),
    mutant="queue-retention-counts-one-lane",
    settings={
        "data_dir": "{dir}",
        "queues": {
            "segment_bytes": 4_096,
            "retention_interval_s": 1,
            "defaults": {"partitions": 1, "retention": {"max_messages": 5, "past_groups": True}},
        },
    },
)
async def retention(ctx: CaseContext) -> None:
    """What limits of retention take from a group is gone from all its priorities, and counted in none.

    A group that nobody is in, a queue that is to keep five messages and passes groups, and 60 messages of three
    priorities in turn. Once fewer are there, a consumer is given as many as the figures tell, each once, the last five
    among them, and when all are acknowledged the figures tell of none.
    """
    queue = new_queue(ctx)
    await (await consume(ctx, queue)).disconnect()
    publisher = await ctx.connect(version=5, name="publisher")
    payloads = [b"%03d" % number + bytes(500) for number in range(60)]
    for number, payload in enumerate(payloads):
        await _put(publisher, queue, payload, ("high", "", "low")[number % 3])
    await ctx.advance(10.0)
    is_less = await figures_become(ctx, publisher, queue, lambda seen: seen.get("depth", 60) < 60, True)
    ctx.must(is_less, "admin: expected limits of retention to take something")
    left = await figure(ctx, publisher, queue, "depth")
    consumer = await consume(ctx, queue)
    seen: list[bytes] = []
    for _ in range(left):
        delivery = await consumer.expect_publish()
        seen.append(delivery.payload)
        await settle(ctx, consumer, queue, "ack", delivery)
    await consumer.expect_nothing()
    wanted = sorted(payloads[-left:])
    ctx.must(left >= 5 and sorted(seen) == wanted, f"consumer: expected the newest {left}, each once; seen {len(seen)}")
    after = await figures_become(ctx, publisher, queue, lambda seen: int(seen.get("depth", -1)), 0)
    ctx.must(after == 0, f"admin: expected a depth of 0; seen {after}")

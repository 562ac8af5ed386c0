"""What becomes of a delivery: settled, given back, timed out, or left behind by its consumer."""

from __future__ import annotations

from assay.conformance.case import CaseContext, case
from assay.conformance.cases.mqtt5.support import shares
from assay.conformance.cases.queue.administration import UNHURRIED_S, create
from assay.conformance.cases.queue.support import (
    consume,
    count_of,
    deliveries,
    join,
    new_queue,
    publish,
    publish_with,
    refused_settlement,
    settle,
)


@case(
    "queue/lifecycle/times-out-and-comes-again",
    clauses=("Q-LIFE-02", "Q-LIFE-07"),
    requires=("queues", "clock"),
    mutant="queue-own-messages-not-redelivered",
    near_miss="queue-one-batch-per-message",
)
async def timeout(ctx: CaseContext) -> None:
    """A delivery that is not settled in time is taken back and delivered again, also to a sole consumer (R1).

    With the timeout of 30 s and the first backoff of 5 s: after 31 s the delivery cannot be acknowledged any more; 5 s
    later the same consumer gets the message again, with delivery-count 2, and can settle it.
    """
    queue = new_queue(ctx)
    publisher = await ctx.connect(version=5, name="publisher")
    await publish(publisher, queue, b"message")
    due = ctx.due_in(35)
    consumer = await consume(ctx, queue)
    first = await consumer.expect_publish(payload=b"message")
    await ctx.advance(31)
    await consumer.expect_nothing(before=due)
    await ctx.advance(6)
    again = await consumer.expect_publish(payload=b"message")
    ctx.must(count_of(ctx, again) == 2, f"consumer: expected delivery-count 2; seen {count_of(ctx, again)}")
    ctx.must(count_of(ctx, first) == 1, f"consumer: expected delivery-count 1; seen {count_of(ctx, first)}")
    await settle(ctx, consumer, queue, "ack", again)
    await ctx.advance(60)
    await consumer.expect_nothing()


@case(
    "queue/lifecycle/late-settlements-are-refused",
    clauses=("Q-LIFE-07",),
    requires=("queues", "clock"),
    mutant="queue-late-acks-count",
)
async def late(ctx: CaseContext) -> None:
    """Once it has timed out, a delivery cannot be settled: the message waits for its next delivery.

    $ack, $nack and $reject of a delivery that timed out get a failure code, and the message is delivered again.
    """
    queue = new_queue(ctx)
    publisher = await ctx.connect(version=5, name="publisher")
    await publish(publisher, queue, b"message")
    consumer = await consume(ctx, queue)
    delivery = await consumer.expect_publish(payload=b"message")
    await ctx.advance(31)
    for verb in ("ack", "nack", "reject"):
        await refused_settlement(ctx, consumer, queue, verb, delivery)
    await ctx.advance(6)
    again = await consumer.expect_publish(payload=b"message")
    ctx.must(count_of(ctx, again) == 2, f"consumer: expected delivery-count 2; seen {count_of(ctx, again)}")


@case(
    "queue/lifecycle/times-out-on-the-real-clock",
    clauses=("Q-LIFE-02", "Q-RETRY-09"),
    requires=("queues",),
    mutant="queue-never-times-out",
    near_miss="queue-retry-waits-longer",
    settings={"queues": {"defaults": {"delivery_timeout_s": 0.2, "retry": {"initial_backoff_s": 0.1}}}},
)
async def real_timeout(ctx: CaseContext) -> None:
    """Timeout and backoff also pass on the real clock.

    With a timeout of 0.2 s and a backoff of 0.1 s, an unsettled message comes again by itself, with delivery-count 2.
    """
    queue = new_queue(ctx)
    publisher = await ctx.connect(version=5, name="publisher")
    await publish(publisher, queue, b"message")
    consumer = await consume(ctx, queue)
    await consumer.expect_publish(payload=b"message")
    again = await consumer.expect_publish(payload=b"message")
    ctx.must(count_of(ctx, again) == 2, f"consumer: expected delivery-count 2; seen {count_of(ctx, again)}")


@case(
    "queue/lifecycle/kept-within-the-timeout",
    clauses=("Q-LIFE-09", "Q-LIFE-01"),
    requires=("queues", "clock"),
    mutant="queue-timeout-fires-early",
    near_miss="queue-retry-waits-longer",
)
async def kept(ctx: CaseContext) -> None:
    """Within the timeout nobody else gets the message, and its consumer can settle it.

    One consumer holds a message for 20 of 30 s; neither it nor an idle one of the same group gets anything. Then the
    message is acknowledged, and stays away.
    """
    queue = new_queue(ctx)
    publisher = await ctx.connect(version=5, name="publisher")
    await publish(publisher, queue, b"message")
    holder = await consume(ctx, queue, name="holder")
    delivery = await holder.expect_publish(payload=b"message")
    idle = await consume(ctx, queue, name="idle")
    await ctx.advance(15)
    await ctx.advance(5)
    await idle.expect_nothing()
    await holder.expect_nothing()
    await settle(ctx, holder, queue, "ack", delivery)
    await ctx.advance(60)
    await idle.expect_nothing()
    await holder.expect_nothing()


@case(
    "queue/lifecycle/lost-consumers-give-back",
    clauses=("Q-LIFE-03", "Q-LIFE-10"),
    requires=("queues",),
    mutant="queue-lost-session-settles",
    near_miss="queue-one-batch-per-message",
)
async def lost(ctx: CaseContext) -> None:
    """What a consumer held when its connection broke goes to the others, and so does what comes later (F1, F2).

    A consumer gets three messages and its network connection is reset. A second consumer gets the three, with
    delivery-count 2, and then everything that is published.
    """
    queue = new_queue(ctx)
    publisher = await ctx.connect(version=5, name="publisher")
    await publish(publisher, queue, b"1", b"2", b"3")
    first = await consume(ctx, queue, name="first")
    for payload in (b"1", b"2", b"3"):
        await first.expect_publish(payload=payload)
    second = await consume(ctx, queue, name="second")
    first.abort()
    for payload in (b"1", b"2", b"3"):
        delivery = await second.expect_publish(payload=payload)
        ctx.must(count_of(ctx, delivery) == 2, f"second: expected delivery-count 2; seen {count_of(ctx, delivery)}")
    await publish(publisher, queue, b"4", b"5")
    for payload in (b"4", b"5"):
        await second.expect_publish(payload=payload)


@case(
    "queue/lifecycle/lost-consumers-have-no-share",
    clauses=("Q-LIFE-10",),
    requires=("queues",),
    mutant="queue-lost-consumer-keeps-its-share",
    near_miss="queue-one-batch-per-message",
)
async def lost_share(ctx: CaseContext) -> None:
    """Nothing waits for a consumer whose connection broke: all that comes later goes to those that are left (F1).

    Of two consumers one is lost while it holds deliveries. The other gets what that one held, and all of twenty
    messages of different keys that are published then.
    """
    queue = new_queue(ctx)
    publisher = await ctx.connect(version=5, name="publisher")
    await create(ctx, publisher, queue, partitions=10, delivery_timeout_s=UNHURRIED_S)
    lost_one = await consume(ctx, queue, name="lost")
    staying = await consume(ctx, queue, name="staying")
    before = [f"before {number}".encode() for number in range(20)]
    for payload in before:
        await publish_with(publisher, queue, payload, partition_key=payload.decode())
    found, held = ([each.payload for each in share] for share in await shares((staying, lost_one), len(before)))
    ctx.must(bool(held), "lost: expected a share of twenty messages; seen none")
    lost_one.abort()
    found += [(await staying.expect_publish()).payload for _ in held]
    after = [f"after {number}".encode() for number in range(20)]
    for payload in after:
        await publish_with(publisher, queue, payload, partition_key=payload.decode())
    found += [delivery.payload for delivery in await deliveries(staying, at_least=len(after))]
    wanted = sorted(before + after)
    ctx.must(sorted(found) == wanted, f"staying: expected {wanted}; seen {sorted(found)}")


@case(
    "queue/lifecycle/unsubscribed-consumers-get-nothing",
    clauses=("Q-LIFE-10",),
    requires=("queues",),
    mutant="queue-unsubscribed-stays",
)
async def unsubscribed(ctx: CaseContext) -> None:
    """A consumer that unsubscribes has no share any more, though its connection stays (R5, R6).

    Of two consumers one unsubscribes. The other gets all of twenty messages of different keys.
    """
    queue = new_queue(ctx)
    publisher = await ctx.connect(version=5, name="publisher")
    await create(ctx, publisher, queue, delivery_timeout_s=UNHURRIED_S)
    leaving = await consume(ctx, queue, name="leaving")
    staying = await consume(ctx, queue, name="staying")
    await leaving.unsubscribe(f"$queue/{queue}")
    wanted = sorted(str(number).encode() for number in range(20))
    for payload in wanted:
        await publisher.publish(f"$queue/{queue}", payload, qos=1)
    found = sorted(delivery.payload for delivery in await deliveries(staying, at_least=len(wanted)))
    ctx.must(found == wanted, f"staying: expected {wanted}; seen {found}")
    await leaving.expect_nothing()


@case(
    "queue/lifecycle/counts-every-delivery-once",
    clauses=("Q-LIFE-04",),
    requires=("queues",),
    mutant="queue-counts-twice",
    near_miss="queue-one-batch-per-message",
)
async def counted(ctx: CaseContext) -> None:
    """After k refusals the delivery count is k + 1, whatever led to the next delivery (R2).

    A message is refused four times, then its consumer is lost: the counts are 1, 2, 3, 4, 5, 6.
    """
    queue = new_queue(ctx)
    publisher = await ctx.connect(version=5, name="publisher")
    await publish(publisher, queue, b"message")
    consumer = await consume(ctx, queue)
    counts: list[int] = []
    for _ in range(4):
        delivery = await consumer.expect_publish(payload=b"message")
        counts.append(count_of(ctx, delivery))
        await settle(ctx, consumer, queue, "nack", delivery)
    counts.append(count_of(ctx, await consumer.expect_publish(payload=b"message")))
    consumer.abort()
    second = await consume(ctx, queue, name="second")
    counts.append(count_of(ctx, await second.expect_publish(payload=b"message")))
    ctx.must(counts == [1, 2, 3, 4, 5, 6], f"expected the delivery counts 1 to 6; seen {counts}")


@case(
    "queue/lifecycle/settled-once",
    clauses=("Q-LIFE-05",),
    requires=("queues",),
    mutant="queue-settles-twice",
)
async def settled_once(ctx: CaseContext) -> None:
    """A second settlement of one delivery is refused and changes nothing (P1).

    Two messages are acknowledged and rejected; every further verb for them gets a failure code. The dead letter is one,
    and a consumer that joins later gets nothing.
    """
    queue = new_queue(ctx)
    publisher = await ctx.connect(version=5, name="publisher")
    await publish(publisher, queue, b"done", b"bad")
    consumer = await consume(ctx, queue)
    for payload, verb in ((b"done", "ack"), (b"bad", "reject")):
        delivery = await consumer.expect_publish(payload=payload)
        await settle(ctx, consumer, queue, verb, delivery)
        for again in ("ack", "nack", "reject"):
            await refused_settlement(ctx, consumer, queue, again, delivery)
    await consumer.disconnect()
    second = await consume(ctx, queue, name="second")
    await second.expect_nothing()


@case(
    "queue/lifecycle/only-the-holder-settles",
    clauses=("Q-LIFE-06",),
    requires=("queues",),
    mutant="queue-anybody-settles",
)
async def holder_only(ctx: CaseContext) -> None:
    """A client that does not hold a delivery cannot settle it by its message id.

    Another consumer of the group, and a client that consumes nothing, get failure codes for the holder's delivery; the
    holder then acknowledges it.
    """
    queue = new_queue(ctx)
    publisher = await ctx.connect(version=5, name="publisher")
    await publish(publisher, queue, b"message")
    holder = await consume(ctx, queue, name="holder")
    delivery = await holder.expect_publish(payload=b"message")
    other = await consume(ctx, queue, name="other")
    for client in (other, publisher):
        for verb in ("ack", "nack", "reject"):
            await refused_settlement(ctx, client, queue, verb, delivery)
    await settle(ctx, holder, queue, "ack", delivery)


@case(
    "queue/lifecycle/groups-do-not-interfere",
    clauses=("Q-LIFE-08",),
    requires=("queues",),
    mutant="queue-acks-count-for-all-groups",
    near_miss="queue-one-batch-per-message",
)
async def groups(ctx: CaseContext) -> None:
    """What one group settles, another still gets.

    Two groups join an empty queue. One acknowledges all of four messages before the other, which takes one at a time,
    has seen the second. The other still gets all four.
    """
    queue = new_queue(ctx)
    slow = await consume(ctx, queue, group="slow", name="slow", receive_maximum=1)
    fast = await consume(ctx, queue, group="fast", name="fast")
    publisher = await ctx.connect(version=5, name="publisher")
    wanted = [b"1", b"2", b"3", b"4"]
    await publish(publisher, queue, *wanted)
    held = await slow.expect_publish(payload=b"1", ack=False)
    for payload in wanted:
        await settle(ctx, fast, queue, "ack", await fast.expect_publish(payload=payload))
    await slow.acknowledge(held)
    for payload in wanted[1:]:
        await slow.expect_publish(payload=payload)


@case(
    "queue/lifecycle/the-first-offset-is-pending-too",
    clauses=("Q-LIFE-11",),
    requires=("queues",),
    mutant="queue-offset-0-not-pending",
    near_miss="queue-one-batch-per-message",
)
async def first_offset(ctx: CaseContext) -> None:
    """The first message of a partition, left unsettled, is still pending when later ones are settled (R8, R12).

    Of three messages the second and third are acknowledged, and the consumer leaves. The next gets the first, again,
    and nothing else.
    """
    queue = new_queue(ctx)
    publisher = await ctx.connect(version=5, name="publisher")
    await publish(publisher, queue, b"1", b"2", b"3")
    consumer = await consume(ctx, queue)
    found = [await consumer.expect_publish(payload=payload) for payload in (b"1", b"2", b"3")]
    for delivery in found[1:]:
        await settle(ctx, consumer, queue, "ack", delivery)
    await consumer.disconnect()
    second = await consume(ctx, queue, name="second")
    again = await second.expect_publish(payload=b"1")
    ctx.must(count_of(ctx, again) == 2, f"second: expected delivery-count 2; seen {count_of(ctx, again)}")
    await second.expect_nothing()


@case(
    "queue/lifecycle/idle-consumers-stay",
    clauses=("Q-LIFE-12",),
    requires=("queues", "clock"),
    mutant="queue-idle-consumers-dropped",
)
async def idle(ctx: CaseContext) -> None:
    """A consumer that is connected stays one, however long there is nothing to do (F32).

    A consumer gets a message, settles it, and is idle for an hour. It gets the next message.
    """
    queue = new_queue(ctx)
    publisher = await ctx.connect(version=5, name="publisher")
    consumer = await consume(ctx, queue)
    await publish(publisher, queue, b"first")
    await settle(ctx, consumer, queue, "ack", await consumer.expect_publish(payload=b"first"))
    for _ in range(6):
        await ctx.advance(600)
    await publish(publisher, queue, b"second")
    await consumer.expect_publish(payload=b"second")


@case(
    "queue/lifecycle/one-client-of-several-queues",
    clauses=("Q-LIFE-13",),
    requires=("queues",),
    mutant="queue-first-subscription-only",
)
async def several(ctx: CaseContext) -> None:
    """A client may consume from several queues, and in several groups of one; each serves it (4.5 i).

    One client joins two queues, and a second group of the first one with a filter. It gets every message once from
    each, and settles them by their queue and group.
    """
    first, second = new_queue(ctx), new_queue(ctx)
    consumer = await consume(ctx, first)
    await join(consumer, second)
    await join(consumer, first, group="others", path="#")
    publisher = await ctx.connect(version=5, name="publisher")
    for queue in (first, second):
        await publish(publisher, queue, queue.encode())
    found = await deliveries(consumer, at_least=3)
    payloads = sorted(delivery.payload for delivery in found)
    wanted = sorted((first.encode(), first.encode(), second.encode()))
    ctx.must(payloads == wanted, f"consumer: expected {wanted}; seen {payloads}")
    for delivery in found:
        await settle(ctx, consumer, delivery.payload.decode(), "ack", delivery)

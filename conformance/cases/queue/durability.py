"""What a confirm is worth: the broker is killed, and must know afterwards what it had promised."""

from __future__ import annotations

from typing import Any

from assay.conformance.case import CaseContext, case
from assay.conformance.cases.queue.support import (
    PARTITION_KEY,
    consume,
    count_of,
    deliveries,
    expect_dead_letters,
    new_queue,
    publish,
    publish_with,
    settle,
)
from assay.conformance.wire import Properties, Puback, Publish

_MANY = tuple(str(number).encode() for number in range(60))


def _durability(name: str, **more: Any) -> dict[str, Any]:
    return {"queues": {"defaults": {"durability": name, **more}}}


async def _survives(ctx: CaseContext) -> None:
    queue = new_queue(ctx)
    publisher = await ctx.connect(version=5, name="publisher")
    await publish(publisher, queue, *_MANY)
    await ctx.restart()
    consumer = await consume(ctx, queue)
    found = [delivery.payload for delivery in await deliveries(consumer, at_least=len(_MANY))]
    ctx.must(found == list(_MANY), f"consumer: expected the {len(_MANY)} confirmed messages; seen {found}")


@case(
    "queue/durability/confirmed-messages-survive",
    clauses=("Q-DURA-01",),
    requires=("queues", "restart"),
    mutant="queue-confirms-before-write",
    near_miss="queue-one-batch-per-message",
    limit_s=20.0,
)
async def fsync(ctx: CaseContext) -> None:
    """What was confirmed is there after kill -9, in order.

    Sixty messages are confirmed, the broker is killed and started again; a consumer gets the sixty.
    """
    await _survives(ctx)


@case(
    "queue/durability/bursts-come-back-unmixed",
    clauses=("Q-DURA-01", "Q-ADDR-10"),
    requires=("queues", "restart"),
    mutant="queue-burst-shares-a-buffer",
    near_miss="queue-one-batch-per-message",
    limit_s=20.0,
)
async def bursts(ctx: CaseContext) -> None:
    """Messages that were published in one write come back from the disk each with its own payload (F8).

    Of forty messages of equal length half have a key, half have none. The broker takes as many at a time as it
    announces, is killed when all are confirmed, and started again; a consumer gets each of the forty once.
    """
    queue = new_queue(ctx)
    publisher = await ctx.connect(version=5, name="publisher")
    packets = [
        Publish(
            topic=f"$queue/{queue}",
            payload=f"number {number:02}".encode(),
            qos=1,
            packet_id=publisher.next_packet_id(),
            properties=Properties(user_property=PARTITION_KEY if number < 20 else ()),
        )
        for number in range(40)
    ]
    window = min(20, publisher.connack.properties.receive_maximum or 20)
    for start in range(0, len(packets), window):
        sent = packets[start : start + window]
        publisher.send(*sent)
        for _ in sent:
            puback = await publisher.expect(Puback)
            ctx.must(puback.reason_code < 0x80, f"publisher: expected the publish to be accepted; seen {puback}")
    await ctx.restart()
    consumer = await consume(ctx, queue)
    found = sorted(delivery.payload for delivery in await deliveries(consumer, at_least=len(packets)))
    wanted = [packet.payload for packet in packets]
    ctx.must(found == wanted, f"consumer: expected {wanted}; seen {found}")


@case(
    "queue/durability/interval-survives-kill",
    clauses=("Q-DURA-02",),
    requires=("queues", "restart"),
    mutant="queue-confirms-before-write",
    near_miss="queue-one-batch-per-message",
    settings=_durability("interval"),
    limit_s=20.0,
)
async def interval(ctx: CaseContext) -> None:
    """A durability of interval confirms after the write, so that what was confirmed survives kill -9, too.

    Sixty messages are confirmed, the broker is killed at once and started again; a consumer gets the sixty.
    """
    await _survives(ctx)


@case(
    "queue/durability/memory-forgets-and-goes-on",
    clauses=("Q-DURA-03",),
    requires=("queues", "restart"),
    mutant="queue-memory-comes-back",
    settings=_durability("memory"),
    limit_s=20.0,
)
async def memory(ctx: CaseContext) -> None:
    """A queue in memory begins anew after a restart, and works.

    A message is lost with the broker; the next one is delivered, with delivery-count 1.
    """
    queue = new_queue(ctx)
    publisher = await ctx.connect(version=5, name="publisher")
    await publish(publisher, queue, b"lost")
    await ctx.restart()
    publisher = await ctx.connect(version=5, name="publisher")
    await publish(publisher, queue, b"new")
    consumer = await consume(ctx, queue)
    delivery = await consumer.expect_publish(payload=b"new")
    ctx.must(count_of(ctx, delivery) == 1, f"consumer: expected delivery-count 1; seen {count_of(ctx, delivery)}")
    await consumer.expect_nothing()


@case(
    "queue/durability/settled-stays-settled",
    clauses=("Q-DURA-04",),
    requires=("queues", "restart"),
    mutant="queue-ack-not-persisted",
    near_miss="queue-one-batch-per-message",
    limit_s=20.0,
)
async def settled(ctx: CaseContext) -> None:
    """What was settled does not come back after kill -9 (F27, F30).

    Of three messages the first and the third are acknowledged. After the restart the group gets the second alone.
    """
    queue = new_queue(ctx)
    publisher = await ctx.connect(version=5, name="publisher")
    await publish(publisher, queue, b"1", b"2", b"3")
    consumer = await consume(ctx, queue)
    found = [await consumer.expect_publish(payload=payload) for payload in (b"1", b"2", b"3")]
    await settle(ctx, consumer, queue, "ack", found[0])
    await settle(ctx, consumer, queue, "ack", found[2])
    await ctx.restart()
    consumer = await consume(ctx, queue, name="after the restart")
    await consumer.expect_publish(payload=b"2")
    await consumer.expect_nothing()


@case(
    "queue/durability/counts-survive",
    clauses=("Q-DURA-05",),
    requires=("queues", "restart"),
    mutant="queue-counts-not-persisted",
    near_miss="queue-one-batch-per-message",
    limit_s=20.0,
)
async def counts(ctx: CaseContext) -> None:
    """What was unsettled when the broker was killed is delivered again, and its deliveries still count (F30).

    A message is refused twice and held the third time, another is held once. After the restart they come with the
    counts 4 and 2, in order, and before what is published then.
    """
    queue = new_queue(ctx)
    publisher = await ctx.connect(version=5, name="publisher")
    await publish(publisher, queue, b"thrice")
    consumer = await consume(ctx, queue)
    for _ in range(2):
        await settle(ctx, consumer, queue, "nack", await consumer.expect_publish(payload=b"thrice"))
    await consumer.expect_publish(payload=b"thrice")
    await publish(publisher, queue, b"once")
    await consumer.expect_publish(payload=b"once")
    await ctx.restart()
    publisher = await ctx.connect(version=5, name="publisher")
    await publish(publisher, queue, b"new")
    consumer = await consume(ctx, queue, name="after the restart")
    for payload, wanted in ((b"thrice", 4), (b"once", 2), (b"new", 1)):
        delivery = await consumer.expect_publish(payload=payload)
        seen = count_of(ctx, delivery)
        ctx.must(seen == wanted, f"consumer: expected delivery-count {wanted} for {payload!r}; seen {seen}")


@case(
    "queue/durability/waiting-goes-on",
    clauses=("Q-DURA-06",),
    requires=("queues", "clock", "restart"),
    mutant="queue-restart-ends-waiting",
    settings=_durability("fsync", retry={"initial_backoff_s": 60, "nack_immediately": False}),
    limit_s=20.0,
)
async def waiting(ctx: CaseContext) -> None:
    """A message that waits for its retry goes on waiting after a restart, as long as it would have.

    Refused with a backoff of 60 s; 30 s later the broker is killed. 25 s later nothing has come; 5 s later it has.
    """
    queue = new_queue(ctx)
    publisher = await ctx.connect(version=5, name="publisher")
    await publish(publisher, queue, b"message")
    consumer = await consume(ctx, queue)
    delivery = await consumer.expect_publish(payload=b"message")
    due = ctx.due_in(60)
    await settle(ctx, consumer, queue, "nack", delivery)
    await ctx.advance(30)
    await ctx.restart()
    consumer = await consume(ctx, queue, name="after the restart")
    await ctx.advance(25)
    await consumer.expect_nothing(before=due)
    await ctx.advance(5)
    await consumer.expect_publish(payload=b"message")


@case(
    "queue/durability/dead-letters-survive",
    clauses=("Q-DURA-07",),
    requires=("queues", "restart"),
    mutant="queue-dead-letters-in-memory",
    near_miss="queue-one-batch-per-message",
    limit_s=20.0,
)
async def dead_letters(ctx: CaseContext) -> None:
    """Once a rejection is confirmed, kill -9 loses neither the dead letter nor the fact that it was settled (R14, O5).

    A message is rejected, another waits. After the restart the group gets the other one only, and the dead letter is
    there.
    """
    queue = new_queue(ctx)
    publisher = await ctx.connect(version=5, name="publisher")
    await publish(publisher, queue, b"bad", b"good")
    consumer = await consume(ctx, queue)
    await settle(ctx, consumer, queue, "reject", await consumer.expect_publish(payload=b"bad"))
    await ctx.restart()
    await expect_dead_letters(ctx, queue, b"bad")
    consumer = await consume(ctx, queue, name="after the restart")
    await consumer.expect_publish(payload=b"good")
    await consumer.expect_nothing()


@case(
    "queue/durability/nothing-unread-is-deleted",
    clauses=("Q-DURA-08",),
    requires=("queues", "clock"),
    mutant="queue-unread-is-dropped",
    near_miss="queue-one-batch-per-message",
)
async def unread(ctx: CaseContext) -> None:
    """Without limits of retention nothing is deleted before somebody has consumed it (R3).

    A hundred messages are published, and nobody consumes for a day, while the time for every clean-up passes many
    times. The first consumer gets the hundred.
    """
    queue = new_queue(ctx)
    publisher = await ctx.connect(version=5, name="publisher")
    wanted = [str(number).encode() for number in range(100)]
    await publish(publisher, queue, *wanted)
    for _ in range(12):
        await ctx.advance(7_200)
    consumer = await consume(ctx, queue)
    found = [delivery.payload for delivery in await deliveries(consumer, at_least=len(wanted))]
    ctx.must(found == wanted, f"consumer: expected the hundred messages in order; seen {len(found)} of them")


@case(
    "queue/durability/groups-keep-their-place",
    clauses=("Q-DURA-09",),
    requires=("queues", "restart"),
    mutant="queue-groups-forgotten-at-restart",
    limit_s=20.0,
)
async def places(ctx: CaseContext) -> None:
    """Each group goes on where it was, also one whose consumers were away (F30).

    Group a has settled two of three messages, group b none, and both had joined. After the restart a gets the third
    and b all three, and queues with routing keys are addressed as before.
    """
    queue = new_queue(ctx)
    publisher = await ctx.connect(version=5, name="publisher")
    idle = await consume(ctx, queue, group="b", name="idle")
    await idle.disconnect()
    await publish(publisher, queue, b"1", b"2")
    await publish_with(publisher, queue, b"3", "key", partition_key="one")
    consumer = await consume(ctx, queue, group="a")
    for payload in (b"1", b"2"):
        await settle(ctx, consumer, queue, "ack", await consumer.expect_publish(payload=payload))
    await ctx.restart()
    for group, wanted in (("a", [b"3"]), ("b", [b"1", b"2", b"3"])):
        consumer = await consume(ctx, queue, group=group, name=f"{group} after the restart")
        found = await deliveries(consumer, at_least=len(wanted))
        payloads = [delivery.payload for delivery in found]
        ctx.must(payloads == wanted, f"{group}: expected {wanted}; seen {payloads}")
        topic = found[-1].topic
        ctx.must(topic == f"$queue/{queue}/key", f"{group}: expected the topic of the publish; seen {topic}")

"""Producers that number their messages: repetitions, gaps, epochs, and what a restart keeps."""

from __future__ import annotations

from assay.conformance.case import CaseContext, case
from assay.conformance.cases.queue.administration import create
from assay.conformance.cases.queue.producing import (
    REMEMBERED,
    TWO_USERS,
    Producer,
    must_fail,
    payloads,
    request,
    send,
    told,
)
from assay.conformance.cases.queue.support import consume, new_queue

_DURABLE = {"data_dir": "{dir}/data", "queues": {"defaults": {"durability": "fsync"}}}
_NEAR = "queue-one-batch-per-message"


@case(
    "queue/idempotence/repetition-is-confirmed-once-enqueued",
    clauses=("Q-IDEM-01", "Q-IDEM-02"),
    requires=("queues",),
    mutant="queue-repetition-enqueued",
    near_miss=_NEAR,
)
async def repetition(ctx: CaseContext) -> None:
    """A message that is sent again with its number is confirmed and told its first id, but there is only one.

    Three messages, 0 to 2, then 1 and 2 again, then 3. The group gets four, in order.
    """
    queue = new_queue(ctx)
    consumer = await consume(ctx, queue)
    producer = await Producer.make(ctx)
    ids = {}
    for number in (0, 1, 2):
        puback = await producer.publish(queue, b"%d" % number, sequence=number, receipt="1")
        ids[number] = told(ctx, puback, "message-id")
    for number in (1, 2):
        puback = await producer.publish(queue, b"again", sequence=number, receipt="1")
        again = told(ctx, puback, "message-id")
        ctx.must(again == ids[number], f"producer: expected the id {ids[number]} of the first; seen {again}")
    await producer.put(queue, b"3", sequence=3)
    for number in range(4):
        await consumer.expect_publish(payload=b"%d" % number)
    await consumer.expect_nothing()


@case(
    "queue/idempotence/gap-is-refused",
    clauses=("Q-IDEM-03",),
    requires=("queues",),
    mutant="queue-gap-taken",
    near_miss=_NEAR,
)
async def gap(ctx: CaseContext) -> None:
    """A number that is not the next is refused as out_of_sequence, and nothing is enqueued.

    A first message with number 1, then 0, then 2: the first and the third are refused. Then 1 is taken.
    """
    queue = new_queue(ctx)
    consumer = await consume(ctx, queue)
    producer = await Producer.make(ctx)
    must_fail(ctx, await producer.publish(queue, b"early", sequence=1), "out_of_sequence")
    await producer.put(queue, b"0", sequence=0)
    must_fail(ctx, await producer.publish(queue, b"early", sequence=2), "out_of_sequence")
    await producer.put(queue, b"1", sequence=1)
    for payload in (b"0", b"1"):
        await consumer.expect_publish(payload=payload)
    await consumer.expect_nothing()


@case(
    "queue/idempotence/remembers-the-last-ones",
    clauses=("Q-IDEM-04",),
    requires=("queues",),
    mutant="queue-remembers-one-sequence",
    near_miss=_NEAR,
)
async def window(ctx: CaseContext) -> None:
    """The last 32 messages are known again; an older one is refused, never enqueued a second time.

    After 33 messages number 1 is confirmed again, and number 0 is either confirmed or refused. Nothing is enqueued.
    """
    queue = new_queue(ctx)
    consumer = await consume(ctx, queue)
    producer = await Producer.make(ctx)
    for number in range(REMEMBERED + 1):
        await producer.put(queue, b"%d" % number, sequence=number)
    await producer.put(queue, b"again", sequence=1)
    await producer.publish(queue, b"again", sequence=0)
    for number in range(REMEMBERED + 1):
        await consumer.expect_publish(payload=b"%d" % number)
    await consumer.expect_nothing()


@case(
    "queue/idempotence/numbers-count-per-partition",
    clauses=("Q-IDEM-05",),
    requires=("queues",),
    mutant="queue-sequences-shared",
    near_miss=_NEAR,
)
async def per_partition(ctx: CaseContext) -> None:
    """Each producer numbers each partition from 0, and a message without a choice always goes to the same one.

    Number 0 in two partitions by two producers: all four are taken. Then ten messages of a third producer, without
    partition or key, with the numbers 0 to 9.
    """
    queue = new_queue(ctx)
    await create(ctx, await ctx.connect(version=5, name="creator"), queue, partitions=10)
    consumer = await consume(ctx, queue)
    for payload in (b"one", b"two"):
        producer = await Producer.make(ctx)
        for partition in ("0", "1"):
            await producer.put(queue, payload, sequence=0, partition=partition)
    seen = sorted(await payloads(consumer, at_least=4))
    ctx.must(seen == [b"one", b"one", b"two", b"two"], f"consumer: expected four messages; seen {seen}")
    producer = await Producer.make(ctx)
    for number in range(10):
        await producer.put(queue, b"%d" % number, sequence=number)
    seen = await payloads(consumer, at_least=10)
    ctx.must(seen == [b"%d" % number for number in range(10)], f"consumer: expected 0 to 9 in order; seen {seen}")


@case(
    "queue/idempotence/old-epoch-is-fenced",
    clauses=("Q-IDEM-06",),
    requires=("queues",),
    mutant="queue-epoch-not-raised",
    near_miss=_NEAR,
)
async def fenced(ctx: CaseContext) -> None:
    """Whoever initialises a transactional id again fences the one before, and begins to number at 0.

    The first instance sends 0 and 1. The second has the same producer id and a higher epoch; from then on the first is
    refused as fenced, also with a repetition, while the second sends its 0.
    """
    queue = new_queue(ctx)
    consumer = await consume(ctx, queue)
    name = ctx.client_id()
    old = await Producer.make(ctx, name)
    for number in (0, 1):
        await old.put(queue, b"old %d" % number, sequence=number)
    new = await Producer.make(ctx, name)
    ctx.must(new.id == old.id, f"producer: expected the id {old.id} again; seen {new.id}")
    ctx.must(int(new.epoch) > int(old.epoch), f"producer: expected an epoch above {old.epoch}; seen {new.epoch}")
    for number in (1, 2):
        must_fail(ctx, await old.publish(queue, b"zombie", sequence=number), "fenced")
    await new.put(queue, b"new 0", sequence=0)
    for payload in (b"old 0", b"old 1", b"new 0"):
        await consumer.expect_publish(payload=payload)
    await consumer.expect_nothing()


@case(
    "queue/idempotence/survives-a-restart",
    clauses=("Q-IDEM-07", "Q-IDEM-08"),
    requires=("queues", "restart"),
    mutant="queue-sequences-forgotten",
    near_miss=_NEAR,
    settings=_DURABLE,
)
async def survives(ctx: CaseContext) -> None:
    """After kill -9 a repetition is still one, the next number is still the next, and ids are still new.

    Three messages, the restart, number 2 again, number 3, and a new producer, whose id is another.
    """
    queue = new_queue(ctx)
    producer = await Producer.make(ctx)
    for number in range(3):
        await producer.put(queue, b"%d" % number, sequence=number)
    await ctx.restart()
    producer.client = await ctx.connect(version=5, name="producer")
    await producer.put(queue, b"again", sequence=2)
    await producer.put(queue, b"3", sequence=3)
    other = await Producer.make(ctx)
    ctx.must(other.id != producer.id, f"producer: expected an id of its own; seen {other.id} again")
    consumer = await consume(ctx, queue)
    for number in range(4):
        await consumer.expect_publish(payload=b"%d" % number)
    await consumer.expect_nothing()


@case(
    "queue/idempotence/ids-are-never-given-twice",
    clauses=("Q-IDEM-08",),
    requires=("queues", "restart"),
    mutant="queue-producer-ids-reused",
    near_miss=_NEAR,
    settings=_DURABLE,
)
async def ids(ctx: CaseContext) -> None:
    """No two producers get one id, also across a restart, where none of them sent anything.

    Two before and two after kill -9.
    """
    seen = [(await Producer.make(ctx)).id for _ in range(2)]
    await ctx.restart()
    seen += [(await Producer.make(ctx)).id for _ in range(2)]
    ctx.must(len(set(seen)) == 4, f"producer: expected four different ids; seen {seen}")


@case(
    "queue/idempotence/half-a-producer-is-refused",
    clauses=("Q-IDEM-09", "Q-IDEM-10"),
    requires=("queues",),
    mutant="queue-unknown-producer-taken",
    near_miss=_NEAR,
)
async def half(ctx: CaseContext) -> None:
    """A number without a producer, a producer without a number, one that never was, an epoch to come: all refused.

    Also a numbered message with a delay, which could not be numbered when it is enqueued. Nothing is enqueued.
    """
    queue = new_queue(ctx)
    consumer = await consume(ctx, queue)
    producer = await Producer.make(ctx)
    topic = f"$queue/{queue}"
    for named in (
        {"sequence": "0"},
        {"producer-id": producer.id, "sequence": "0"},
        {"producer-id": producer.id, "producer-epoch": "0"},
        {**producer.identity, "sequence": "-1"},
        {**producer.identity, "sequence": "0", "delay": "1s"},
    ):
        must_fail(ctx, await send(producer.client, topic, b"half", **named))
    for named in (
        {"producer-id": "999999999", "producer-epoch": "0"},
        {"producer-id": producer.id, "producer-epoch": "7"},
    ):
        must_fail(ctx, await send(producer.client, topic, b"unknown", **named, sequence="0"), "unknown_producer")
        must_fail(ctx, await request(producer.client, "begin", **named), "unknown_producer")
    await consumer.expect_nothing()


@case(
    "queue/idempotence/belongs-to-a-user",
    clauses=("Q-IDEM-13",),
    requires=("queues",),
    mutant="queue-numbers-of-anybody",
    near_miss=_NEAR,
    settings=TWO_USERS,
)
async def of_a_user(ctx: CaseContext) -> None:
    """Nobody takes a number of ann's producer: bob, and a client without a user, are refused with 0x87.

    They publish with the number 0 of her producer before she does. Hers is enqueued, and told a message id.
    """
    queue = new_queue(ctx)
    ann = await ctx.connect(version=5, name="ann", username="ann", password=b"ann")
    bob = await ctx.connect(version=5, name="bob", username="bob", password=b"bob")
    nobody = await ctx.connect(version=5, name="nobody")
    producer = await Producer.make(ctx, client=ann)
    for other in (bob, nobody):
        puback = await send(other, f"$queue/{queue}", b"stolen", **producer.identity, sequence="0")
        ctx.must(puback.reason_code == 0x87, f"expected 0x87 (not authorized); seen {puback}")
    told(ctx, await producer.publish(queue, b"mine", sequence=0, receipt="1"), "message-id")
    consumer = await consume(ctx, queue)
    await consumer.expect_publish(payload=b"mine")
    await consumer.expect_nothing()

"""Which partition a message goes to, and partitions that are added while a queue is in use."""

from __future__ import annotations

from assay.conformance import partitioners as hashes
from assay.conformance.case import CaseContext, case
from assay.conformance.cases.mqtt5.support import shares
from assay.conformance.cases.queue.administration import UNHURRIED_S, ask, create, refused
from assay.conformance.cases.queue.support import consume, new_queue, property_of, publish_with, settle
from assay.conformance.connection import Connection

_KEYS = ("", "a", "foobar", "user-1", "user-2", "ключ", "a longer key, of more than sixteen bytes")


async def _partitions(ctx: CaseContext, at_least: int, *consumers: Connection) -> dict[str, int]:
    """Payload -> partition of everything delivered so far, ``at_least`` so many."""
    return {
        delivery.payload.decode(): int(property_of(ctx, delivery, "partition"))
        for share in await shares(consumers, at_least)
        for delivery in share
    }


@case(
    "queue/partitions/fnv1a",
    clauses=("Q-PART-01",),
    requires=("queues",),
    mutant="queue-fnv1-for-fnv1a",
    near_miss="queue-one-batch-per-message",
)
async def fnv1a(ctx: CaseContext) -> None:
    """With fnv1a, a key leads to the partition that FNV-1a of its UTF-8 gives.

    Seven keys, the empty one and a Cyrillic one among them, on a queue of 97 partitions.
    """
    queue = new_queue(ctx)
    client = await ctx.connect(version=5, name="client")
    await create(ctx, client, queue, partitions=97, partitioner="fnv1a")
    consumer = await consume(ctx, queue)
    for key in _KEYS:
        await publish_with(client, queue, key.encode(), partition_key=key)
    seen = await _partitions(ctx, len(_KEYS), consumer)
    wanted = {key: hashes.fnv1a(key.encode()) % 97 for key in _KEYS}
    ctx.must(seen == wanted, f"consumer: expected the partitions {wanted}; seen {seen}")


@case(
    "queue/partitions/murmur3",
    clauses=("Q-PART-02",),
    requires=("queues",),
    mutant="queue-murmur3-of-another-seed",
    near_miss="queue-one-batch-per-message",
)
async def murmur3(ctx: CaseContext) -> None:
    """With murmur3, a key leads to the partition that MurmurHash3 of its UTF-8 gives, taken as unsigned.

    The same keys as for fnv1a, on a queue of 97 partitions.
    """
    queue = new_queue(ctx)
    client = await ctx.connect(version=5, name="client")
    await create(ctx, client, queue, partitions=97, partitioner="murmur3")
    consumer = await consume(ctx, queue)
    for key in _KEYS:
        await publish_with(client, queue, key.encode(), partition_key=key)
    seen = await _partitions(ctx, len(_KEYS), consumer)
    wanted = {key: hashes.murmur3(key.encode()) % 97 for key in _KEYS}
    ctx.must(seen == wanted, f"consumer: expected the partitions {wanted}; seen {seen}")


@case(
    "queue/partitions/in-turn",
    clauses=("Q-PART-03",),
    requires=("queues",),
    mutant="queue-round-robin-from-zero",
    near_miss="queue-one-batch-per-message",
)
async def in_turn(ctx: CaseContext) -> None:
    """round_robin deals messages out in turn, from partition 1 on; so does murmur3 those without a key.

    Seven messages on three partitions go to 1, 2, 0, 1, 2, 0, 1: with one key for round_robin, without for murmur3.
    """
    client = await ctx.connect(version=5, name="client")
    for partitioner, options in (("round_robin", {"partition_key": "one"}), ("murmur3", {})):
        queue = new_queue(ctx)
        await create(ctx, client, queue, partitions=3, partitioner=partitioner)
        consumer = await consume(ctx, queue, name=partitioner)
        for number in range(7):
            await publish_with(client, queue, b"%d" % number, **options)
        seen = await _partitions(ctx, 7, consumer)
        wanted = {str(number): (number + 1) % 3 for number in range(7)}
        ctx.must(seen == wanted, f"{partitioner}: expected the partitions {wanted}; seen {seen}")


@case(
    "queue/partitions/spread",
    clauses=("Q-PART-04",),
    requires=("queues",),
    mutant="queue-keyless-to-one-partition",
    near_miss="queue-one-batch-per-message",
)
async def spread(ctx: CaseContext) -> None:
    """Without a key fnv1a, and always random, use all partitions.

    Of 60 messages on two partitions each gets at least five (that fewer come is as likely as one in 10^11).
    """
    client = await ctx.connect(version=5, name="client")
    for partitioner, options in (("fnv1a", {}), ("random", {"partition_key": "one"})):
        queue = new_queue(ctx)
        await create(ctx, client, queue, partitions=2, partitioner=partitioner, delivery_timeout_s=UNHURRIED_S)
        consumer = await consume(ctx, queue, name=partitioner)
        for number in range(60):
            await publish_with(client, queue, b"%d" % number, **options)
        seen = list((await _partitions(ctx, 60, consumer)).values())
        counts = [seen.count(partition) for partition in (0, 1)]
        ctx.must(min(counts) >= 5 and sum(counts) == 60, f"{partitioner}: expected both partitions; seen {counts}")


@case(
    "queue/partitions/explicit",
    clauses=("Q-PART-05", "Q-PART-06"),
    requires=("queues",),
    mutant="queue-explicit-partition-ignored",
    near_miss="queue-one-batch-per-message",
)
async def explicit(ctx: CaseContext) -> None:
    """The user property partition decides, whatever the key.

    Messages of one key for the partitions 4, 0 and 2 of five are delivered from these.
    """
    queue = new_queue(ctx)
    client = await ctx.connect(version=5, name="client")
    await create(ctx, client, queue, partitions=5)
    consumer = await consume(ctx, queue)
    for partition in (4, 0, 2):
        await publish_with(client, queue, b"%d" % partition, partition=str(partition), partition_key="one")
    seen = await _partitions(ctx, 3, consumer)
    ctx.must(seen == {"4": 4, "0": 0, "2": 2}, f"consumer: expected the partitions asked for; seen {seen}")


@case(
    "queue/partitions/unknown-one-is-refused",
    clauses=("Q-PART-06",),
    requires=("queues",),
    mutant="queue-explicit-partition-wraps",
    near_miss="queue-one-batch-per-message",
)
async def unknown(ctx: CaseContext) -> None:
    """A partition that is not there, or no number, is refused, and nothing is stored.

    On three partitions, 3, 17, -1, +1, 1.0 and an empty text get failure codes; a consumer gets nothing.
    """
    queue = new_queue(ctx)
    client = await ctx.connect(version=5, name="client")
    await create(ctx, client, queue, partitions=3)
    for text in ("3", "17", "-1", "+1", "1.0", ""):
        puback = await publish_with(client, queue, b"stray", partition=text)
        ctx.must(puback.reason_code >= 0x80, f"client: expected partition {text!r} to be refused; seen {puback}")
    consumer = await consume(ctx, queue)
    await consumer.expect_nothing()


@case(
    "queue/partitions/added-while-in-use",
    clauses=("Q-PART-07", "Q-PART-08"),
    requires=("queues",),
    mutant="queue-added-partitions-unassigned",
    near_miss="queue-one-batch-per-message",
)
async def added(ctx: CaseContext) -> None:
    """Partitions may be added while consumers are there: what is stored stays, and the new ones are served.

    Two consumers share two partitions with a message each, one of them settled. Three partitions are added, and each of
    the five gets a message. Between them the consumers get exactly these five more.
    """
    queue = new_queue(ctx)
    client = await ctx.connect(version=5, name="client")
    await create(ctx, client, queue, partitions=2)
    pair = [await consume(ctx, queue, name=f"consumer {number}") for number in (1, 2)]
    for partition in ("0", "1"):
        await publish_with(client, queue, b"old", partition=partition)
    first = await pair[0].expect_publish(payload=b"old")
    await settle(ctx, pair[0], queue, "ack", first)
    await pair[1].expect_publish(payload=b"old")
    answer = await ask(ctx, client, queue, "partitions", {"count": 5})
    ctx.must(answer.get("count") == 5, f"expected five partitions; seen {answer}")
    for number in range(5):
        await publish_with(client, queue, b"%d" % number, partition=str(number))
    seen = await _partitions(ctx, 5, *pair)
    wanted = {str(number): number for number in range(5)}
    ctx.must(seen == wanted, f"pair: expected {wanted}; seen {seen}")


@case(
    "queue/partitions/added-ones-stay",
    clauses=("Q-PART-09",),
    requires=("queues", "restart"),
    mutant="queue-added-partitions-forgotten",
    near_miss="queue-one-batch-per-message",
    settings={"queues": {"configured": [{"name": "grown", "partitions": 2, "durability": "fsync"}]}},
    limit_s=15.0,
)
async def stay(ctx: CaseContext) -> None:
    """Added partitions, and what is in them, are there after kill -9, although the file names fewer.

    A queue that is configured with two partitions gets four. A message in the fourth is delivered after the restart,
    and another can be published there.
    """
    client = await ctx.connect(version=5, name="client")
    await ask(ctx, client, "grown", "partitions", {"count": 4})
    await publish_with(client, "grown", b"before", partition="3")
    await ctx.restart()
    client = await ctx.connect(version=5, name="client again")
    puback = await publish_with(client, "grown", b"after", partition="3")
    ctx.must(puback.reason_code < 0x80, f"client: expected the partition to be there; seen {puback}")
    consumer = await consume(ctx, "grown")
    await consumer.expect_publish(payload=b"before")
    await consumer.expect_publish(payload=b"after")


@case(
    "queue/partitions/never-fewer",
    clauses=("Q-PART-10",),
    requires=("queues",),
    mutant="queue-fewer-partitions-accepted",
    near_miss="queue-one-batch-per-message",
)
async def never_fewer(ctx: CaseContext) -> None:
    """A number of partitions below the present one is refused, and nothing changes.

    A queue with three partitions is to have two, and none. Both fail; a message for the third is accepted.
    """
    queue = new_queue(ctx)
    client = await ctx.connect(version=5, name="client")
    await create(ctx, client, queue, partitions=3)
    for count in (2, 0):
        await refused(ctx, client, f"{queue}/partitions", {"count": count})
    puback = await publish_with(client, queue, b"message", partition="2")
    ctx.must(puback.reason_code < 0x80, f"client: expected the third partition to be there; seen {puback}")

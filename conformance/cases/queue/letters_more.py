"""Dead letters of several causes, and replays beside several groups of them and restarts."""

from __future__ import annotations

from assay.conformance.case import CaseContext, case
from assay.conformance.cases.queue.administration import ask
from assay.conformance.cases.queue.support import (
    consume,
    count_of,
    expect_dead_letters,
    new_queue,
    property_of,
    publish,
    publish_with,
    settle,
)
from assay.conformance.connection import Connection
from assay.conformance.wire import Properties, Puback, Publish, Subscription

_PAYLOADS = (b"0", b"1", b"2")


async def _reader(ctx: CaseContext, queue: str, group: str) -> Connection:
    """A consumer of a queue's dead letters."""
    reader = await ctx.connect(version=5, name=group)
    joining = Properties(user_property=(("consumer-group", group),))
    await reader.subscribe(Subscription(filter=f"$dlq/{queue}", qos=1), properties=joining)
    return reader


@case(
    "queue/dead-letters/leave-every-group-of-theirs",
    clauses=("Q-DLQ-03", "Q-DLQ-14"),
    requires=("queues", "clock", "restart"),
    mutant="queue-replay-empties-one-group",
    kills=("queue-replay-of-all-ends-early", "queue-replay-is-not-written"),
    near_miss="queue-one-batch-per-message",
    settings={"queues": {"defaults": {"durability": "fsync", "partitions": 1}}},
    limit_s=30.0,
)
async def every_group(ctx: CaseContext) -> None:
    """What a replay has sent back is no dead letter for any group, those that had it before and one that comes later.

    Three dead letters. Two groups were given them and left. After a replay the messages come as they first did; neither
    group has any of them, nor has a third, and a second replay finds none: at once, and after kill -9.
    """
    queue = new_queue(ctx)
    await publish(await ctx.connect(version=5, name="publisher"), queue, *_PAYLOADS)
    consumer = await consume(ctx, queue)
    for payload in _PAYLOADS:
        await settle(ctx, consumer, queue, "reject", await consumer.expect_publish(payload=payload))
    for group in ("one", "two"):
        reader = await _reader(ctx, queue, group)
        for payload in _PAYLOADS:
            await reader.expect_publish(payload=payload)
        await reader.disconnect()
    admin = await ctx.connect(version=5, name="admin")
    answer = await ask(ctx, admin, queue, "replay")
    ctx.must(answer.get("replayed") == len(_PAYLOADS), f"admin: expected {len(_PAYLOADS)} replayed; seen {answer}")
    for payload in _PAYLOADS:
        delivery = await consumer.expect_publish(payload=payload)
        ctx.must(count_of(ctx, delivery) == 1, f"consumer: expected a first delivery; seen {delivery}")
        await settle(ctx, consumer, queue, "ack", delivery)
    for group in ("three", "four"):
        for each in ("one", "two", group):
            reader = await _reader(ctx, queue, each)
            await reader.expect_nothing()
            await reader.disconnect()
        answer = await ask(ctx, admin, queue, "replay")
        ctx.must(answer.get("replayed") == 0, f"admin: expected nothing to replay; seen {answer}")
        if group == "three":
            await ctx.restart()
            admin = await ctx.connect(version=5, name="admin")


@case(
    "queue/dead-letters/causes-are-told-apart",
    clauses=("Q-RETRY-06", "Q-RETRY-10", "Q-DLQ-01"),
    requires=("queues", "clock"),
    mutant="queue-retries-are-called-a-timeout",
    kills=("queue-letters-tell-their-second-delivery",),
    settings={
        "queues": {
            "defaults": {
                "partitions": 1,
                "delivery_timeout_s": 1_000,
                "retry": {"max_retries": 2, "total_timeout_s": 60},
            }
        }
    },
)
async def causes(ctx: CaseContext) -> None:
    """A dead letter tells whether its retries were used up or its time was over, and how often it was delivered.

    Two retries, and 60 s. The first message is nacked three times, the second once, and once more after 61 s, the third
    is rejected with a reason of its own: three reasons, and the counts 3, 2 and 1. The third was delivered once, the
    second first and last at different times.
    """
    queue = new_queue(ctx)
    await publish(await ctx.connect(version=5, name="publisher"), queue, *_PAYLOADS)
    consumer = await consume(ctx, queue)
    held = {payload: await consumer.expect_publish(payload=payload) for payload in _PAYLOADS}
    await settle(ctx, consumer, queue, "reject", held[b"2"], reason="its own")
    for _ in range(2):
        await settle(ctx, consumer, queue, "nack", held[b"0"])
        held[b"0"] = await consumer.expect_publish(payload=b"0")
    await settle(ctx, consumer, queue, "nack", held[b"0"])
    await ctx.advance(1.0)
    await settle(ctx, consumer, queue, "nack", held[b"1"])
    held[b"1"] = await consumer.expect_publish(payload=b"1")
    await ctx.advance(61.0)
    await settle(ctx, consumer, queue, "nack", held[b"1"])
    letters = await expect_dead_letters(ctx, queue, b"2", b"0", b"1")
    reasons = [property_of(ctx, letter, "_dlq_reason") for letter in letters]
    is_told = reasons[0] == "its own" and all(reasons) and len(set(reasons)) == len(reasons)
    ctx.must(is_told, f"dead letters: expected the reason given, and one each for retries and time; seen {reasons}")
    counts = [property_of(ctx, letter, "_dlq_delivery_count") for letter in letters]
    ctx.must(counts == ["1", "3", "2"], f"dead letters: expected the delivery counts 1, 3 and 2; seen {counts}")
    for letter, is_once in ((letters[0], True), (letters[2], False)):
        first, last = [property_of(ctx, letter, f"_dlq_{name}_delivered_at") for name in ("first", "last")]
        is_fine = first == last if is_once else first < last
        ctx.must(is_fine, f"dead letters: expected the times of its first and its last delivery; seen {first}, {last}")


@case(
    "queue/dead-letters/die-again-as-they-first-were",
    clauses=("Q-DLQ-01", "Q-DLQ-02"),
    requires=("queues", "clock"),
    mutant="queue-replay-keeps-the-topic-of-the-letters",
    kills=("queue-replay-loses-priorities",),
    near_miss="queue-one-batch-per-message",
    settings={"queues": {"defaults": {"partitions": 1}}},
)
async def die_again(ctx: CaseContext) -> None:
    """A dead letter that is sent back and dies again tells what its first letter told, but for its second death.

    A message of low priority, with a routing key and a property of its own, is rejected, sent back and rejected again
    for another reason. It came back with its priority, behind a normal message that was published after that, and the
    topic in both letters is the one it was published to.
    """
    queue = new_queue(ctx)
    publisher = await ctx.connect(version=5, name="publisher")
    await publish_with(publisher, queue, b"message", "eu/images", priority="low", color="green")
    admin = await ctx.connect(version=5, name="admin")
    letters = []
    for number, reason in enumerate(("first", "second")):
        consumer = await consume(ctx, queue, name=reason)
        if number:
            other = await consumer.expect_publish(payload=b"normal")
            await settle(ctx, consumer, queue, "ack", other)
        delivery = await consumer.expect_publish(payload=b"message")
        await settle(ctx, consumer, queue, "reject", delivery, reason=reason)
        await consumer.disconnect()
        reader = await _reader(ctx, queue, f"readers-{number}")
        letters.append(await reader.expect_publish(payload=b"message"))
        await reader.disconnect()
        if not number:
            answer = await ask(ctx, admin, queue, "replay")
            ctx.must(answer.get("replayed") == 1, f"admin: expected 1 replayed; seen {answer}")
            await publish(publisher, queue, b"normal")
    wanted = {"_dlq_original_topic": f"$queue/{queue}/eu/images", "_dlq_delivery_count": "1", "color": "green"}
    for letter, reason in zip(letters, ("first", "second"), strict=True):
        expected = {**wanted, "_dlq_reason": reason}
        seen = {name: property_of(ctx, letter, name) for name in expected}
        ctx.must(seen == expected, f"dead letters: expected {expected}; seen {seen}")


@case(
    "queue/dead-letters/stay-while-a-replay-waits",
    clauses=("Q-DLQ-06",),
    requires=("queues", "clock"),
    mutant="queue-refused-letters-are-hidden",
    settings={"queues": {"defaults": {"partitions": 1, "max_depth": 1}}},
)
async def waits(ctx: CaseContext) -> None:
    """A letter that its queue does not take stays one, and comes to who reads the letters as if nobody had tried.

    The queue holds one message, which nobody takes, and has a dead letter, which a consumer of the letters had, and
    gave back. While a replay waits for room it is given the letter again, and settles it; then the replay is over.
    """
    queue = new_queue(ctx)
    publisher = await ctx.connect(version=5, name="publisher")
    await publish(publisher, queue, b"letter")
    consumer = await consume(ctx, queue)
    await settle(ctx, consumer, queue, "reject", await consumer.expect_publish(payload=b"letter"))
    await consumer.disconnect()
    reader = await _reader(ctx, queue, "readers")
    await reader.expect_publish(payload=b"letter")
    await reader.disconnect()
    await publish(publisher, queue, b"filler")
    admin = await ctx.connect(version=5, name="admin")
    admin.send(Publish(topic=f"$admin/queue/{queue}/replay", qos=1, packet_id=admin.next_packet_id()))
    await ctx.advance(1.5)
    reader = await _reader(ctx, queue, "readers")
    await settle(ctx, reader, f"dlq/{queue}", "ack", await reader.expect_publish(payload=b"letter"))
    await ctx.advance(1.5)
    await admin.expect(Puback)

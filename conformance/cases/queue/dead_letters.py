"""Dead letters: what they tell, that none is lost on the way, and how they go back."""

from __future__ import annotations

from assay.conformance.case import CaseContext, case
from assay.conformance.cases.queue.administration import figures_become
from assay.conformance.cases.queue.support import (
    admin,
    consume,
    count_of,
    expect_dead_letters,
    new_queue,
    property_of,
    publish,
    publish_with,
    refused_settlement,
    settle,
)
from assay.conformance.connection import Connection
from assay.conformance.wire import Properties, Puback, Publish, Subscription


async def _bury(ctx: CaseContext, queue: str, *payloads: bytes, path: str = "", **options: str) -> Connection:
    """A consumer that rejected these messages of a queue, published one after the other."""
    publisher = await ctx.connect(version=5, name="publisher")
    for payload in payloads:
        puback = await publish_with(publisher, queue, payload, path, partition_key="one", **options)
        ctx.must(puback.reason_code < 0x80, f"publisher: expected the publish to be accepted; seen {puback}")
    consumer = await consume(ctx, queue)
    for payload in payloads:
        delivery = await consumer.expect_publish(payload=payload)
        await settle(ctx, consumer, queue, "reject", delivery, reason="cannot parse")
    return consumer


@case(
    "queue/dead-letters/tell-where-they-come-from",
    clauses=("Q-DLQ-01",),
    requires=("queues", "clock"),
    mutant="queue-letters-forget-their-consumer",
    near_miss="queue-one-batch-per-message",
)
async def history(ctx: CaseContext) -> None:
    """A dead letter tells its origin, the reason, the group and consumer that had it last, its count and its times.

    A message is refused once and then, ten seconds later, rejected. Its dead letter has the payload, the publisher's
    properties, and _dlq_ properties that hold all of this; its first delivery is earlier than its last.
    """
    queue = new_queue(ctx)
    publisher = await ctx.connect(version=5, name="publisher")
    await publish(publisher, queue, b"message")
    consumer = await consume(ctx, queue)
    first = await consumer.expect_publish(payload=b"message")
    await ctx.advance(10)
    await settle(ctx, consumer, queue, "nack", first)
    delivery = await consumer.expect_publish(payload=b"message")
    await settle(ctx, consumer, queue, "reject", delivery, reason="cannot parse")
    (letter,) = await expect_dead_letters(ctx, queue, b"message")
    wanted = {
        "_dlq_original_queue": queue,
        "_dlq_original_topic": f"$queue/{queue}",
        "_dlq_original_partition": property_of(ctx, delivery, "partition"),
        "_dlq_original_offset": property_of(ctx, delivery, "offset"),
        "_dlq_original_id": property_of(ctx, delivery, "message-id"),
        "_dlq_group": property_of(ctx, delivery, "group-id"),
        "_dlq_consumer": consumer.client_id,
        "_dlq_delivery_count": "2",
        "_dlq_reason": "cannot parse",
        "partition-key": "one",
    }
    seen = {name: property_of(ctx, letter, name) for name in wanted}
    ctx.must(seen == wanted, f"dead letters: expected {wanted}; seen {seen}")
    times = [
        property_of(ctx, letter, f"_dlq_{name}_at")
        for name in ("enqueued", "first_delivered", "last_delivered", "moved")
    ]
    ctx.must(times == sorted(times), f"dead letters: expected times that grow; seen {times}")
    ctx.must(times[1] < times[2], f"dead letters: expected the first delivery before the last; seen {times}")


@case(
    "queue/dead-letters/go-back-all",
    clauses=("Q-DLQ-02",),
    requires=("queues", "clock"),
    mutant="queue-replay-keeps-the-history",
    near_miss="queue-one-batch-per-message",
)
async def replay_all(ctx: CaseContext) -> None:
    """A replay publishes every dead letter to its queue again as it first was: routing key, properties, count 1.

    Three messages are rejected and replayed; the answer says 3. The consumer gets them in order on the topic of their
    first publish, without _dlq_ properties.
    """
    queue = new_queue(ctx)
    consumer = await _bury(ctx, queue, b"0", b"1", b"2", path="eu/north")
    answer = await admin(ctx, await ctx.connect(version=5, name="admin"), f"queue/{queue}/replay")
    ctx.must(answer.get("replayed") == 3, f"admin: expected 3 replayed; seen {answer}")
    for payload in (b"0", b"1", b"2"):
        back = await consumer.expect_publish(payload=payload)
        ctx.must(count_of(ctx, back) == 1, f"consumer: expected delivery-count 1; seen {count_of(ctx, back)}")
        ctx.must(back.topic == f"$queue/{queue}/eu/north", f"consumer: expected the first topic; seen {back.topic}")
        left = [name for name, _ in back.properties.user_property if name.startswith("_dlq_")]
        ctx.must(not left, f"consumer: expected no history of the failure; seen {left}")


@case(
    "queue/dead-letters/gone-once-they-are-back",
    clauses=("Q-DLQ-03",),
    requires=("queues", "clock"),
    mutant="queue-replay-copies",
)
async def replay_moves(ctx: CaseContext) -> None:
    """What was replayed is no dead letter any more: not for consumers of them that come later, nor for a second replay.

    Two messages are replayed; a second replay says 0, and a consumer of the dead letters gets nothing.
    """
    queue = new_queue(ctx)
    await _bury(ctx, queue, b"0", b"1")
    client = await ctx.connect(version=5, name="admin")
    answer = await admin(ctx, client, f"queue/{queue}/replay")
    ctx.must(answer.get("replayed") == 2, f"admin: expected 2 replayed; seen {answer}")
    answer = await admin(ctx, client, f"queue/{queue}/replay")
    ctx.must(answer.get("replayed") == 0, f"admin: expected nothing left to replay; seen {answer}")
    await expect_dead_letters(ctx, queue)


@case(
    "queue/dead-letters/go-back-singly",
    clauses=("Q-DLQ-04",),
    requires=("queues", "clock"),
    mutant="queue-replay-of-one-sends-all",
)
async def replay_one(ctx: CaseContext) -> None:
    """A replay may name one dead letter by its message-id; the others stay.

    Of three dead letters, given back unsettled, the second goes back. Its queue gets that one only; the next consumer
    of the dead letters gets the other two.
    """
    queue = new_queue(ctx)
    consumer = await _bury(ctx, queue, b"0", b"1", b"2")
    reader = await ctx.connect(version=5, name="reader")
    joining = Properties(user_property=(("consumer-group", "graveyard"),))
    await reader.subscribe(Subscription(filter=f"$dlq/{queue}", qos=1), properties=joining)
    letters = [await reader.expect_publish(payload=payload) for payload in (b"0", b"1", b"2")]
    await reader.disconnect()
    request = {"message_id": property_of(ctx, letters[1], "message-id")}
    answer = await admin(ctx, await ctx.connect(version=5, name="admin"), f"queue/{queue}/replay", request)
    ctx.must(answer.get("replayed") == 1, f"admin: expected 1 replayed; seen {answer}")
    await consumer.expect_publish(payload=b"1")
    await consumer.expect_nothing()
    await expect_dead_letters(ctx, queue, b"0", b"2")


@case(
    "queue/dead-letters/settled-ones-stay",
    clauses=("Q-DLQ-05",),
    requires=("queues", "clock"),
    mutant="queue-replay-raises-the-settled",
)
async def replay_settled(ctx: CaseContext) -> None:
    """A replay takes neither what consumers of the dead letters have settled, nor what they hold.

    Of three dead letters a consumer acknowledges the first, holds the second, and gave the third back. A replay sends
    the third only, and the second can still be acknowledged.
    """
    queue = new_queue(ctx)
    consumer = await _bury(ctx, queue, b"0", b"1", b"2")
    reader = await ctx.connect(version=5, name="reader", properties=Properties(receive_maximum=10))
    joining = Properties(user_property=(("consumer-group", "graveyard"),))
    await reader.subscribe(Subscription(filter=f"$dlq/{queue}", qos=1), properties=joining)
    letters = [await reader.expect_publish(payload=payload) for payload in (b"0", b"1", b"2")]
    await settle(ctx, reader, f"dlq/{queue}", "ack", letters[0])
    await settle(ctx, reader, f"dlq/{queue}", "nack", letters[2], delay="1h")
    answer = await admin(ctx, await ctx.connect(version=5, name="admin"), f"queue/{queue}/replay")
    ctx.must(answer.get("replayed") == 1, f"admin: expected 1 replayed; seen {answer}")
    await consumer.expect_publish(payload=b"2")
    await consumer.expect_nothing()
    await settle(ctx, reader, f"dlq/{queue}", "ack", letters[1])


@case(
    "queue/dead-letters/stay-while-there-is-no-room",
    clauses=("Q-DLQ-06",),
    requires=("queues", "clock"),
    mutant="queue-replay-loses-what-is-refused",
    settings={"queues": {"configured": [{"name": "narrow", "partitions": 1, "max_depth": 2}]}},
)
async def replay_full(ctx: CaseContext) -> None:
    """A dead letter is settled only once its queue has it: while the queue is full, the letter stays one.

    The queue takes two messages. One is rejected, then two are there; a replay finds no room. When they are
    acknowledged the letter comes back by itself.
    """
    consumer = await _bury(ctx, "narrow", b"letter")
    publisher = await ctx.connect(version=5, name="filler")
    await publish(publisher, "narrow", b"0", b"1")
    others = [await consumer.expect_publish(payload=payload) for payload in (b"0", b"1")]
    client = await ctx.connect(version=5, name="admin")
    client.send(Publish(topic="$admin/queue/narrow/replay", qos=1, packet_id=client.next_packet_id()))
    await ctx.advance(1.5)
    await consumer.expect_nothing()
    for delivery in others:
        await settle(ctx, consumer, "narrow", "ack", delivery)
    await ctx.advance(1.5)
    await consumer.expect_publish(payload=b"letter")
    await client.expect(Puback)


@case(
    "queue/dead-letters/expired-ones-wait-for-room",
    clauses=("Q-LIMIT-11",),
    requires=("queues", "clock"),
    mutant="queue-expired-find-room-or-vanish",
    near_miss="queue-one-batch-per-message",
    settings={"queues": {"defaults": {"partitions": 1, "max_depth": 2, "expired_to_dead_letters": True}}},
)
async def expired_wait(ctx: CaseContext) -> None:
    """What has expired becomes a dead letter, however full the dead-letter queue is then.

    In a queue of depth 2 two messages expire, and then two more. A consumer of the dead letters takes what comes, one
    by one, while twenty seconds pass after each: it gets all four, each once.
    """
    queue, wanted = new_queue(ctx), [b"1", b"2", b"3", b"4"]
    publisher = await ctx.connect(version=5, name="publisher")
    for some in (wanted[:2], wanted[2:]):
        for payload in some:
            puback = await publish_with(publisher, queue, payload, ttl="5s")
            ctx.must(puback.reason_code < 0x80, f"publisher: expected {payload!r} to be taken; seen {puback}")
        await ctx.advance(8.0)
        left = await figures_become(ctx, publisher, queue, lambda seen: seen["ready"], 0)
        ctx.must(left == 0, f"admin: expected {some} to have expired; {left} are ready")
    reader = await ctx.connect(version=5, name="reader")
    joining = Properties(user_property=(("consumer-group", "graveyard"),))
    await reader.subscribe(Subscription(filter=f"$dlq/{queue}", qos=1), properties=joining)
    seen = []
    for _ in wanted:
        letter = await reader.expect_publish()
        seen.append(letter.payload)
        await settle(ctx, reader, f"dlq/{queue}", "ack", letter)
        await ctx.advance(20.0)
    await reader.expect_nothing()
    ctx.must(sorted(seen) == wanted, f"reader: expected each of the four once; seen {seen}")


@case(
    "queue/dead-letters/of-names-with-a-common-beginning",
    clauses=("Q-DLQ-07",),
    requires=("queues", "clock"),
    mutant="queue-replay-by-prefix",
)
async def prefixes(ctx: CaseContext) -> None:
    """A replay of one queue's dead letters does not touch those of a queue whose name begins like it (F39).

    orders and orders-eu have a dead letter each. Replaying those of orders leaves that of orders-eu.
    """
    queue = new_queue(ctx)
    await _bury(ctx, f"{queue}-eu", b"eu")
    consumer = await _bury(ctx, queue, b"plain")
    answer = await admin(ctx, await ctx.connect(version=5, name="admin"), f"queue/{queue}/replay")
    ctx.must(answer.get("replayed") == 1, f"admin: expected 1 replayed; seen {answer}")
    await consumer.expect_publish(payload=b"plain")
    await expect_dead_letters(ctx, f"{queue}-eu", b"eu")


@case(
    "queue/dead-letters/do-not-die-again",
    clauses=("Q-DLQ-08",),
    requires=("queues", "clock"),
    mutant="queue-dead-letters-run-out-of-retries",
    settings={"queues": {"defaults": {"retry": {"max_retries": 1}, "message_ttl_s": 60}}},
)
async def no_chain(ctx: CaseContext) -> None:
    """A dead letter has no retries to use up and no time to live: it stays until somebody settles it.

    With one retry and a time to live of a minute, a dead letter is refused five times and waits for an hour: it is
    delivered each time, with the next count.
    """
    queue = new_queue(ctx)
    await _bury(ctx, queue, b"message")
    reader = await ctx.connect(version=5, name="reader")
    joining = Properties(user_property=(("consumer-group", "graveyard"),))
    await reader.subscribe(Subscription(filter=f"$dlq/{queue}", qos=1), properties=joining)
    for count in range(1, 6):
        letter = await reader.expect_publish(payload=b"message")
        ctx.must(count_of(ctx, letter) == count, f"reader: expected delivery-count {count}; seen {letter}")
        await settle(ctx, reader, f"dlq/{queue}", "nack", letter)
    await reader.disconnect()
    await ctx.advance(3_600)
    await expect_dead_letters(ctx, queue, b"message")


@case(
    "queue/dead-letters/none-is-lost-on-the-way",
    clauses=("Q-DLQ-09",),
    requires=("queues", "clock"),
    mutant="queue-refused-letters-are-dropped",
    settings={"queues": {"configured": [{"name": "orders"}, {"name": "$dlq/orders", "partitions": 1, "max_depth": 1}]}},
)
async def full_dead_letters(ctx: CaseContext) -> None:
    """While the dead-letter queue does not take a message, its source keeps it, and the rejection fails (O5, R20).

    The dead-letter queue takes one message. Of two rejections the second is refused; the message is not delivered again
    meanwhile. When the first letter is acknowledged, the second becomes a dead letter by itself.
    """
    publisher = await ctx.connect(version=5, name="publisher")
    await publish(publisher, "orders", b"0", b"1")
    consumer = await consume(ctx, "orders")
    got = [await consumer.expect_publish(payload=payload) for payload in (b"0", b"1")]
    await settle(ctx, consumer, "orders", "reject", got[0])
    await refused_settlement(ctx, consumer, "orders", "reject", got[1])
    reader = await ctx.connect(version=5, name="reader")
    joining = Properties(user_property=(("consumer-group", "graveyard"),))
    await reader.subscribe(Subscription(filter="$dlq/orders", qos=1), properties=joining)
    letter = await reader.expect_publish(payload=b"0")
    await reader.expect_nothing()
    await settle(ctx, reader, "dlq/orders", "ack", letter)
    await ctx.advance(30)
    await reader.expect_publish(payload=b"1")
    await consumer.expect_nothing()


@case(
    "queue/dead-letters/are-counted",
    clauses=("Q-DLQ-10",),
    requires=("queues", "clock"),
    mutant="queue-dead-letters-count-the-present",
)
async def figures(ctx: CaseContext) -> None:
    """The administration tells how many dead letters there ever were, how many there are, and when the last came.

    Three messages are rejected and one of them replayed: total 3, current 2, and a time.
    """
    queue = new_queue(ctx)
    await _bury(ctx, queue, b"0", b"1", b"2")
    client = await ctx.connect(version=5, name="admin")
    await admin(ctx, client, f"queue/{queue}/replay", {"message_id": f"$dlq/{queue}:0:1"})
    answer = await admin(ctx, client, f"queue/{queue}/dead-letters")
    seen = (answer.get("total"), answer.get("current"))
    ctx.must(seen == (3, 2), f"admin: expected total 3 and current 2; seen {answer}")
    ctx.must(float(answer.get("last_at") or 0) > 0, f"admin: expected the time of the last letter; seen {answer}")


@case(
    "queue/dead-letters/survive-a-restart",
    clauses=("Q-DLQ-14",),
    requires=("queues", "restart"),
    mutant="queue-dead-letters-in-memory",
    settings={"queues": {"defaults": {"durability": "fsync"}}},
    limit_s=15.0,
)
async def restart(ctx: CaseContext) -> None:
    """Dead letters are as durable as their queue, and what was replayed stays gone (R14).

    Of three dead letters one is replayed. After kill -9 and a restart the other two are there, with their reason.
    """
    queue = new_queue(ctx)
    await _bury(ctx, queue, b"0", b"1", b"2")
    client = await ctx.connect(version=5, name="admin")
    await admin(ctx, client, f"queue/{queue}/replay", {"message_id": f"$dlq/{queue}:0:1"})
    await ctx.restart()
    letters = await expect_dead_letters(ctx, queue, b"0", b"2")
    for letter in letters:
        reason = property_of(ctx, letter, "_dlq_reason")
        ctx.must(reason == "cannot parse", f"dead letters: expected the reason; seen {reason!r}")

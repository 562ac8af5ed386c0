"""Limits of a queue at the limit and one over it (R19), overflow, expiry, slow consumers."""

from __future__ import annotations

from assay.conformance.case import CaseContext, case
from assay.conformance.cases.queue.administration import create, figure, figures_become
from assay.conformance.cases.queue.bulk import BulkClient
from assay.conformance.cases.queue.producing import Producer
from assay.conformance.cases.queue.support import (
    admin,
    consume,
    deliveries,
    expect_dead_letters,
    new_queue,
    property_of,
    publish,
    publish_with,
    settle,
)
from assay.conformance.connection import Connection
from assay.conformance.wire import Properties, Puback, Publish, Suback, Subscribe, Subscription

_QUOTA_EXCEEDED = 0x97


def _with(**fields: object) -> dict[str, object]:
    return {"queues": {"defaults": fields}}


async def _refused(ctx: CaseContext, puback: Puback, what: str) -> None:
    ctx.must(
        puback.reason_code == _QUOTA_EXCEEDED, f"publisher: expected {what} to be refused with 0x97; seen {puback}"
    )


@case(
    "queue/limits/depth",
    clauses=("Q-LIMIT-01",),
    requires=("queues",),
    mutant="queue-depth-unlimited",
    near_miss="queue-one-batch-per-message",
    settings=_with(max_depth=3),
)
async def depth(ctx: CaseContext) -> None:
    """A queue of depth 3 takes three messages and refuses the fourth, also while they are in flight.

    Three publishes are accepted and the fourth gets 0x97. With all three delivered the next is refused as well; after
    one acknowledgement one is accepted, and no more.
    """
    queue = new_queue(ctx)
    publisher = await ctx.connect(version=5, name="publisher")
    await publish(publisher, queue, b"1", b"2", b"3")
    await _refused(ctx, await publish_with(publisher, queue, b"4"), "a fourth message")
    consumer = await consume(ctx, queue)
    held = await deliveries(consumer, at_least=3)
    ctx.must(len(held) == 3, f"consumer: expected three messages; seen {len(held)}")
    await _refused(ctx, await publish_with(publisher, queue, b"4"), "a fourth message while three are in flight")
    await settle(ctx, consumer, queue, "ack", held[0])
    await publish(publisher, queue, b"5")
    await _refused(ctx, await publish_with(publisher, queue, b"6"), "one more")


@case(
    "queue/limits/bytes",
    clauses=("Q-LIMIT-02",),
    requires=("queues",),
    mutant="queue-bytes-unlimited",
    settings=_with(max_bytes=100),
)
async def max_bytes(ctx: CaseContext) -> None:
    """A queue of 100 bytes takes messages of 60 and 40 bytes, and not a byte more.

    After the acknowledgement of the smaller one, 41 bytes are refused and 40 are taken.
    """
    queue = new_queue(ctx)
    publisher = await ctx.connect(version=5, name="publisher")
    for size in (60, 40):
        puback = await publish_with(publisher, queue, b"x" * size)
        ctx.must(puback.reason_code < 0x80, f"publisher: expected {size} bytes to be taken; seen {puback}")
    await _refused(ctx, await publish_with(publisher, queue, b"x"), "byte 101")
    consumer = await consume(ctx, queue)
    held = await deliveries(consumer, at_least=2)
    small = [delivery for delivery in held if len(delivery.payload) == 40]
    ctx.must(len(small) == 1, f"consumer: expected both messages; seen {len(held)}")
    await settle(ctx, consumer, queue, "ack", small[0])
    await _refused(ctx, await publish_with(publisher, queue, b"x" * 41), "41 bytes where 40 are free")
    puback = await publish_with(publisher, queue, b"x" * 40)
    ctx.must(puback.reason_code < 0x80, f"publisher: expected 40 bytes to be taken; seen {puback}")


@case(
    "queue/limits/message-size",
    clauses=("Q-LIMIT-03",),
    requires=("queues",),
    mutant="queue-size-of-payload-only",
    settings=_with(max_message_bytes=50),
)
async def message_size(ctx: CaseContext) -> None:
    """A message of exactly the maximum size is taken, one byte more is refused; user properties count.

    The limit is 50 bytes. 50 bytes of payload pass and 51 do not; 40 bytes with a property of 10 pass, 41 do not.
    """
    queue = new_queue(ctx)
    publisher = await ctx.connect(version=5, name="publisher")
    for size, options, taken in (
        (50, {}, True),
        (51, {}, False),
        (40, {"color": "green"}, True),
        (41, {"color": "green"}, False),
    ):
        puback = await publish_with(publisher, queue, b"x" * size, **options)
        ctx.must(
            (puback.reason_code < 0x80) == taken,
            f"publisher: expected {size} bytes with {options} to be {'taken' if taken else 'refused'}; seen {puback}",
        )


@case(
    "queue/limits/a-burst-drops-the-oldest",
    clauses=("Q-LIMIT-04", "Q-LIMIT-13"),
    requires=("queues",),
    mutant="queue-bursts-drop-nothing",
    near_miss="queue-one-batch-per-message",
    settings={"data_dir": "{dir}", **_with(max_depth=3, overflow="drop_oldest", partitions=1)},
)
async def burst_drops_oldest(ctx: CaseContext) -> None:
    """A full queue gives up its oldest messages also for those that come with them in one write.

    Depth 3, and nobody consumes yet. Eight messages are published in one write, as far as the broker lets so many be
    unconfirmed: each is accepted, and a consumer gets the last three.
    """
    queue = new_queue(ctx)
    publisher = await ctx.connect(version=5, name="publisher")
    window = publisher.connack.properties.receive_maximum or 8
    packets = [
        Publish(topic=f"$queue/{queue}", payload=b"%d" % number, qos=1, packet_id=publisher.next_packet_id())
        for number in range(8)
    ]
    for first in range(0, 8, window):
        some = packets[first : first + window]
        publisher.send(*some)
        for _ in some:
            puback = await publisher.expect(Puback)
            ctx.must(puback.reason_code < 0x80, f"publisher: expected each message to be taken; seen {puback}")
    consumer = await consume(ctx, queue)
    for payload in (b"5", b"6", b"7"):
        await settle(ctx, consumer, queue, "ack", await consumer.expect_publish(payload=payload))
    await consumer.expect_nothing()


@case(
    "queue/limits/oldest-behind-a-transaction",
    clauses=("Q-LIMIT-21", "Q-LIMIT-04"),
    requires=("queues",),
    mutant="queue-overflow-drops-transactions",
    near_miss="queue-one-batch-per-message",
    settings=_with(max_depth=3, overflow="drop_oldest", partitions=1),
)
async def oldest_behind_a_transaction(ctx: CaseContext) -> None:
    """A full queue gives up what is before an open transaction, never what is in it, and takes messages again after it.

    Depth 3: "first", then one of a transaction, then "behind"; "second" takes the place of "first". Of what comes next
    either is allowed: it takes the place of "behind", or is refused with 0x97. Once the transaction is committed one
    more is taken, in the place of the committed one or of the next. Without groups, and with one that is away.
    """
    producer = await Producer.make(ctx, ctx.client_id())
    for is_known in (False, True):
        queue = new_queue(ctx)
        if is_known:
            await (await consume(ctx, queue)).disconnect()
        await publish(producer.client, queue, b"first")
        transaction = await producer.begin()
        await producer.put(queue, b"transacted", transaction)
        await publish(producer.client, queue, b"behind")
        await publish(producer.client, queue, b"second")
        puback = await publish_with(producer.client, queue, b"third")
        was_taken = puback.reason_code < 0x80
        if not was_taken:
            await _refused(ctx, puback, "a message that has no room behind the transaction")
        await producer.commit(transaction)
        consumer = await consume(ctx, queue)
        expected = [b"transacted", b"second", b"third"] if was_taken else [b"transacted", b"behind", b"second"]
        for payload in expected:
            await settle(ctx, consumer, queue, "ack", await consumer.expect_publish(payload=payload))
        await publish(producer.client, queue, b"last")
        await settle(ctx, consumer, queue, "ack", await consumer.expect_publish(payload=b"last"))


@case(
    "queue/limits/thousands-expire-at-once",
    clauses=("Q-LIMIT-09",),
    requires=("queues", "clock"),
    mutant="queue-expiry-ends-with-the-turn",
    near_miss="queue-one-batch-per-message",
    limit_s=20.0,
)
async def thousands_expire(ctx: CaseContext) -> None:
    """However many messages expire at one moment, none of them counts for long, whoever else is served meanwhile.

    Six thousand messages live for a minute, and a group has had none of them. Soon after that minute
    the queue is empty, by its figures.
    """
    queue = new_queue(ctx)
    client = await ctx.connect(version=5, name="client")
    await create(ctx, client, queue, message_ttl_s=60)
    await (await consume(ctx, queue)).disconnect()
    bulk = BulkClient(ctx, "bulk")
    await bulk.connect()
    await bulk.publish(queue, 6_000)
    bulk.close()
    depth = await figure(ctx, client, queue, "depth")
    ctx.must(depth == 6_000, f"client: expected a depth of 6000; seen {depth}")
    await ctx.advance(61)
    depth = await figures_become(ctx, client, queue, lambda stats: int(stats["depth"]), 0)
    ctx.must(depth == 0, f"client: expected nothing to be left of what has expired; seen a depth of {depth}")


@case(
    "queue/limits/drop-oldest",
    clauses=("Q-LIMIT-04", "Q-LIMIT-05"),
    requires=("queues",),
    mutant="queue-overflow-rejects",
    kills=("queue-drops-for-bytes-once-over",),
    settings=_with(max_depth=3, overflow="drop_oldest", partitions=1, max_in_flight=1),
)
async def drop_oldest(ctx: CaseContext) -> None:
    """A full queue gives up its oldest message for a new one, but never one that was delivered.

    Depth 3. The first of three messages is in flight; two more publishes are accepted and drop the second and third.
    The consumer acknowledges the first, then gets the fourth and fifth. A queue that holds the 100 bytes it may gives
    up 60 for 40.
    """
    queue = new_queue(ctx)
    publisher = await ctx.connect(version=5, name="publisher")
    consumer = await consume(ctx, queue)
    await publish(publisher, queue, b"1")
    held = await consumer.expect_publish(payload=b"1")
    with ctx.own_point():
        await publish(publisher, queue, b"2", b"3", b"4", b"5")
    await settle(ctx, consumer, queue, "ack", held)
    for payload in (b"4", b"5"):
        await settle(ctx, consumer, queue, "ack", await consumer.expect_publish(payload=payload))
    await consumer.expect_nothing()
    narrow = new_queue(ctx)
    await create(ctx, publisher, narrow, max_bytes=100)
    await (await consume(ctx, narrow, name="reader")).disconnect()
    for payload in (b"1" * 60, b"2" * 40, b"3" * 40):
        puback = await publish_with(publisher, narrow, payload)
        ctx.must(puback.reason_code < 0x80, f"publisher: expected {len(payload)} bytes to be taken; seen {puback}")
    reader = await consume(ctx, narrow, name="reader again")
    for payload in (b"2" * 40, b"3" * 40):
        await settle(ctx, reader, narrow, "ack", await reader.expect_publish(payload=payload))


@case(
    "queue/limits/oldest-of-all-partitions",
    clauses=("Q-LIMIT-04",),
    requires=("queues", "clock"),
    mutant="queue-overflow-looks-at-one-partition",
    settings=_with(max_depth=4, overflow="drop_oldest", partitions=4),
)
async def oldest_of_all(ctx: CaseContext) -> None:
    """A full queue gives up the message that is the oldest of all its partitions.

    Depth 4, four partitions. Ten messages are published a second apart, to three of them in turn: all are taken, and
    the last four come. Without groups, and with one that is away.
    """
    publisher = await ctx.connect(version=5, name="publisher")
    for is_known in (False, True):
        queue = new_queue(ctx)
        if is_known:
            await (await consume(ctx, queue)).disconnect()
        for number in range(10):
            puback = await publish_with(publisher, queue, b"%d" % number, partition=str(2 * number % 3))
            ctx.must(puback.reason_code < 0x80, f"publisher: expected message {number} to be taken; seen {puback}")
            await ctx.advance(1)
        consumer = await consume(ctx, queue)
        seen = sorted(delivery.payload for delivery in await deliveries(consumer, at_least=4))
        ctx.must(seen == [b"6", b"7", b"8", b"9"], f"consumer: expected the messages 6 to 9; seen {seen}")


@case(
    "queue/limits/delivered-is-not-dropped",
    clauses=("Q-LIMIT-05",),
    requires=("queues",),
    mutant="queue-overflow-drops-what-is-in-flight",
    settings=_with(max_depth=2, overflow="drop_oldest", partitions=1),
)
async def not_dropped(ctx: CaseContext) -> None:
    """When all messages of a full queue are in flight, a new one is refused.

    Depth 2, both messages delivered. The third publish gets 0x97, and both deliveries can be acknowledged.
    """
    queue = new_queue(ctx)
    publisher = await ctx.connect(version=5, name="publisher")
    consumer = await consume(ctx, queue)
    await publish(publisher, queue, b"1", b"2")
    held = [await consumer.expect_publish(payload=payload) for payload in (b"1", b"2")]
    await _refused(ctx, await publish_with(publisher, queue, b"3"), "a message that nothing can be dropped for")
    for delivery in held:
        await settle(ctx, consumer, queue, "ack", delivery)


@case(
    "queue/limits/oldest-to-dead-letters",
    clauses=("Q-LIMIT-06",),
    requires=("queues",),
    mutant="queue-overflow-without-dead-letters",
    settings=_with(max_depth=3, overflow="dead_letter_oldest", partitions=1),
)
async def to_dead_letters(ctx: CaseContext) -> None:
    """With dead_letter_oldest the oldest message goes to $dlq/<queue>, with the reason.

    Five messages go to a queue of depth 3. The first two are dead letters with reason QUEUE_FULL; the others wait.
    """
    queue = new_queue(ctx)
    publisher = await ctx.connect(version=5, name="publisher")
    await publish(publisher, queue, b"1", b"2", b"3", b"4", b"5")
    for letter in await expect_dead_letters(ctx, queue, b"1", b"2"):
        reason = property_of(ctx, letter, "_dlq_reason")
        ctx.must(reason == "QUEUE_FULL", f"dead letters: expected the reason QUEUE_FULL; seen {reason}")
    consumer = await consume(ctx, queue)
    for payload in (b"3", b"4", b"5"):
        await consumer.expect_publish(payload=payload)


@case(
    "queue/limits/refused-to-dead-letters",
    clauses=("Q-LIMIT-23",),
    requires=("queues",),
    mutant="queue-refused-not-kept",
    settings=_with(max_depth=1, overflow="reject_to_dead_letters", partitions=1),
)
async def refused_to_dead_letters(ctx: CaseContext) -> None:
    """With reject_to_dead_letters a full queue refuses a message, which is a dead letter then.

    Depth 1, two messages: the second gets 0x97, and is in $dlq/<queue> with reason QUEUE_FULL. The first waits.
    """
    queue = new_queue(ctx)
    publisher = await ctx.connect(version=5, name="publisher")
    await publish(publisher, queue, b"1")
    await _refused(ctx, await publish_with(publisher, queue, b"2"), "a second message")
    for letter in await expect_dead_letters(ctx, queue, b"2"):
        reason = property_of(ctx, letter, "_dlq_reason")
        ctx.must(reason == "QUEUE_FULL", f"dead letters: expected the reason QUEUE_FULL; seen {reason}")
    consumer = await consume(ctx, queue)
    await consumer.expect_publish(payload=b"1")


@case(
    "queue/limits/ready-alone",
    clauses=("Q-LIMIT-22",),
    requires=("queues",),
    mutant="queue-limits-count-what-is-held",
    settings=_with(max_depth=2, max_in_flight=2, limits_count="ready", partitions=1),
)
async def ready_alone(ctx: CaseContext) -> None:
    """With limits_count ready a queue takes as many messages beside those that a consumer holds.

    Depth 2 and a consumer that holds two: two more are taken and the next gets 0x97. When the consumer leaves, the
    queue has four, and takes none.
    """
    queue = new_queue(ctx)
    publisher = await ctx.connect(version=5, name="publisher")
    await publish(publisher, queue, b"1", b"2")
    await _refused(ctx, await publish_with(publisher, queue, b"3"), "a third message")
    consumer = await consume(ctx, queue)
    for payload in (b"1", b"2"):
        await consumer.expect_publish(payload=payload)
    for payload in (b"3", b"4"):
        puback = await publish_with(publisher, queue, payload)
        ctx.must(puback.reason_code < 0x80, f"publisher: expected room beside what a consumer holds; seen {puback}")
    await _refused(ctx, await publish_with(publisher, queue, b"5"), "a third message that nobody holds")
    await consumer.disconnect()
    await _refused(ctx, await publish_with(publisher, queue, b"5"), "a message to a queue that has four")


@case(
    "queue/limits/dropped-stays-gone",
    clauses=("Q-LIMIT-16",),
    requires=("queues", "restart"),
    mutant="queue-departures-forgotten",
    near_miss="queue-one-batch-per-message",
    settings=_with(max_depth=3, overflow="dead_letter_oldest", partitions=1),
    limit_s=30.0,
)
async def dropped_stays_gone(ctx: CaseContext) -> None:
    """What a queue without groups gave up for newer messages does not come back with a restart.

    Five messages go to a queue of depth 3. Once two are dead letters the broker is killed twice. Then the first group
    gets the last three alone, and there are two dead letters.
    """
    queue = new_queue(ctx)
    publisher = await ctx.connect(version=5, name="publisher")
    await publish(publisher, queue, b"1", b"2", b"3", b"4", b"5")
    # What is on its way to the dead letters may come again; what is there may not.
    await expect_dead_letters(ctx, queue, b"1", b"2")
    for _ in range(2):
        await ctx.restart()
    consumer = await consume(ctx, queue)
    for payload in (b"3", b"4", b"5"):
        await consumer.expect_publish(payload=payload)
    await consumer.expect_nothing()
    await expect_dead_letters(ctx, queue, b"1", b"2")


@case(
    "queue/limits/expired-stays-gone",
    clauses=("Q-LIMIT-16",),
    requires=("queues", "clock", "restart"),
    mutant="queue-departures-forgotten",
    settings=_with(expired_to_dead_letters=True, partitions=1),
    limit_s=30.0,
)
async def expired_stays_gone(ctx: CaseContext) -> None:
    """What expired without a group, behind a message that lives on, becomes one dead letter, also over restarts.

    A message without a ttl is before one with a ttl of 10 s. After 20 s, and two kills, the first group gets the
    first alone; there is one dead letter.
    """
    queue = new_queue(ctx)
    publisher = await ctx.connect(version=5, name="publisher")
    await publish(publisher, queue, b"lives")
    await publish_with(publisher, queue, b"expires", ttl="10s")
    await ctx.advance(20.0)
    await expect_dead_letters(ctx, queue, b"expires")
    for _ in range(2):
        await ctx.restart()
        await ctx.advance(1.0)
    consumer = await consume(ctx, queue)
    await consumer.expect_publish(payload=b"lives")
    await consumer.expect_nothing()
    await expect_dead_letters(ctx, queue, b"expires")


@case(
    "queue/limits/earliest-expiry-counts",
    clauses=("Q-LIMIT-07",),
    requires=("queues", "clock"),
    mutant="queue-ttl-ignored",
    settings=_with(message_ttl_s=30),
)
async def earliest(ctx: CaseContext) -> None:
    """The earliest of MQTT message expiry, ttl and the queue's time to live ends a message.

    The queue's time to live is 30 s. After 10.5 s the messages with a ttl of 10 s and an expiry of 10 s are gone, after
    31 s all are, also one with a ttl of an hour. A consumer that joins at 11 s gets the others only.
    """
    queue = new_queue(ctx)
    publisher = await ctx.connect(version=5, name="publisher")
    await publish_with(publisher, queue, b"ttl", partition_key="one", ttl="10s")
    expiring = Properties(message_expiry_interval=10, user_property=(("partition-key", "one"), ("ttl", "1h")))
    await publisher.publish(f"$queue/{queue}", b"expiry", qos=1, properties=expiring)
    await publish_with(publisher, queue, b"queue", partition_key="one", ttl="1h")
    await ctx.advance(10.5)
    first = await consume(ctx, queue, group="first")
    await first.expect_publish(payload=b"queue")
    await first.expect_nothing()
    await ctx.advance(20.5)
    second = await consume(ctx, queue, group="second", name="second")
    await second.expect_nothing()


@case(
    "queue/limits/bad-ttl-is-refused",
    clauses=("Q-LIMIT-08",),
    requires=("queues",),
    mutant="queue-bad-options-ignored",
)
async def bad_ttl(ctx: CaseContext) -> None:
    """A ttl that is no duration above zero is refused.

    "0s", "-1s" and "soon" get a failure code.
    """
    queue = new_queue(ctx)
    publisher = await ctx.connect(version=5, name="publisher")
    for ttl in ("0s", "-1s", "soon"):
        puback = await publish_with(publisher, queue, b"bad", ttl=ttl)
        ctx.must(puback.reason_code >= 0x80, f"publisher: expected the ttl {ttl!r} to be refused; seen {puback}")


@case(
    "queue/limits/expired-leave-the-depth",
    clauses=("Q-LIMIT-09",),
    requires=("queues", "clock"),
    mutant="queue-expires-at-delivery-only",
)
async def depth_after_expiry(ctx: CaseContext) -> None:
    """Expired messages do not count any more, although nobody consumes and a live one is before them.

    A message without ttl and two with 5 s. 6 s later the queue's figures say depth 1.
    """
    queue = new_queue(ctx)
    publisher = await ctx.connect(version=5, name="publisher")
    await publish_with(publisher, queue, b"live", partition_key="one")
    for _ in range(2):
        await publish_with(publisher, queue, b"short", partition_key="one", ttl="5s")
    await ctx.advance(6.0)
    found = await admin(ctx, publisher, f"queue/{queue}/stats")
    ctx.must(found["depth"] == 1, f"expected depth 1; seen {found['depth']}")


@case(
    "queue/limits/expired-behind-a-transaction",
    clauses=("Q-LIMIT-20",),
    requires=("queues", "clock"),
    mutant="queue-expires-at-delivery-only",
    settings=_with(partitions=1),
)
async def depth_behind_a_transaction(ctx: CaseContext) -> None:
    """What expires behind an open transaction leaves the depth once that has ended, and is given to nobody.

    A transaction writes a message, and one with a ttl of 5 s comes behind it; 6 s later the transaction ends. Where it
    is aborted the depth is 0 a second later, and where it is committed it is 1: a consumer gets that message alone.
    """
    producer = await Producer.make(ctx, ctx.client_id())
    for ends, left in ((producer.abort, 0), (producer.commit, 1)):
        queue = new_queue(ctx)
        transaction = await producer.begin()
        await producer.put(queue, b"transacted", transaction)
        await publish_with(producer.client, queue, b"short", ttl="5s")
        await ctx.advance(6.0)
        await ends(transaction)
        await ctx.advance(1.0)
        depth = await figure(ctx, producer.client, queue, "depth")
        ctx.must(depth == left, f"expected depth {left} after the end of the transaction; seen {depth}")
        consumer = await consume(ctx, queue)
        seen = [delivery.payload for delivery in await deliveries(consumer, at_least=left)]
        ctx.must(
            seen == [b"transacted"] * left, f"consumer: expected {left} message(s), none that expired; seen {seen}"
        )


@case(
    "queue/limits/expiry-counts-down",
    clauses=("Q-LIMIT-10",),
    requires=("queues", "clock"),
    mutant="queue-expiry-starts-anew",
)
async def counts_down(ctx: CaseContext) -> None:
    """A delivery carries what is left of the message expiry.

    A message with an expiry of 100 s is consumed 40 s later: the delivery says 60 s, give or take two, or less by what
    it is late.
    """
    queue = new_queue(ctx)
    publisher = await ctx.connect(version=5, name="publisher")
    properties = Properties(message_expiry_interval=100)
    sent_s = ctx.broker_time_s
    await publisher.publish(f"$queue/{queue}", b"message", qos=1, properties=properties)
    await ctx.advance(40.0)
    consumer = await consume(ctx, queue)
    delivery: Publish = await consumer.expect_publish(payload=b"message")
    left = delivery.properties.message_expiry_interval
    right = left is not None and int(98 - (ctx.broker_time_s - sent_s)) <= left <= 62
    ctx.must(right, f"consumer: expected an expiry of about 60 s; seen {left}")


_RETAINED = 5
_RETENTION = {
    "data_dir": "{dir}",
    "queues": {
        "segment_bytes": 4_096,
        "retention_interval_s": 1,
        "defaults": {"partitions": 1, "delivery_timeout_s": 600, "retention": {"max_messages": _RETAINED}},
    },
}


async def _publish_many(ctx: CaseContext, queue: str) -> list[bytes]:
    """Messages that fill several segments."""
    publisher = await ctx.connect(version=5, name="publisher")
    payloads = [b"%03d" % number + bytes(500) for number in range(60)]
    for payload in payloads:
        await publish(publisher, queue, payload)
    return payloads


@case(
    "queue/limits/retention-spares-what-a-group-needs",
    clauses=("Q-LIMIT-25",),
    requires=("queues", "clock"),
    mutant="queue-retention-passes-groups",
    settings=_RETENTION,
)
async def retention_spares(ctx: CaseContext) -> None:
    """Limits of retention delete nothing that a group has not settled (R19).

    The queue is to keep five messages. A group has a consumer that goes away; 60 messages come, and ten seconds later
    it is back and gets each of them.
    """
    queue = new_queue(ctx)
    await (await consume(ctx, queue)).disconnect()
    payloads = await _publish_many(ctx, queue)
    await ctx.advance(10.0)
    consumer = await consume(ctx, queue)
    for payload in payloads:
        await settle(ctx, consumer, queue, "ack", await consumer.expect_publish(payload=payload))


@case(
    "queue/limits/retention-keeps-the-newest",
    clauses=("Q-LIMIT-26",),
    requires=("queues", "clock"),
    mutant="queue-retention-never-comes",
    near_miss="queue-one-batch-per-message",
    settings=_RETENTION,
)
async def retention_keeps(ctx: CaseContext) -> None:
    """A queue without groups deletes the oldest of what is more than its limits, and keeps what they allow (R19).

    It is to keep five messages; 60 come, and ten seconds later a first group gets the last five at least, and not all.
    How many more are there is free: they are deleted in blocks.
    """
    queue = new_queue(ctx)
    payloads = await _publish_many(ctx, queue)
    await ctx.advance(10.0)
    consumer = await consume(ctx, queue)
    seen: list[bytes] = []
    while not seen or seen[-1] != payloads[-1]:
        delivery = await consumer.expect_publish()
        seen.append(delivery.payload)
        await settle(ctx, consumer, queue, "ack", delivery)
    ctx.must(
        _RETAINED <= len(seen) < len(payloads) and seen == payloads[-len(seen) :],
        f"consumer: expected the newest {_RETAINED} to {len(payloads) - 1} of {len(payloads)}; seen {len(seen)}",
    )


@case(
    "queue/limits/expired-to-dead-letters",
    clauses=("Q-LIMIT-11",),
    requires=("queues", "clock"),
    mutant="queue-expired-just-vanish",
    settings=_with(expired_to_dead_letters=True),
)
async def expired_letters(ctx: CaseContext) -> None:
    """Where the queue says so, expired messages are dead letters with the reason TTL_EXPIRED (F33).

    One message has a ttl of 5 s and one none. 6 s later the first is a dead letter, the second is delivered.
    """
    queue = new_queue(ctx)
    publisher = await ctx.connect(version=5, name="publisher")
    await publish_with(publisher, queue, b"short", partition_key="one", ttl="5s")
    await publish_with(publisher, queue, b"live", partition_key="one")
    await ctx.advance(6.0)
    (letter,) = await expect_dead_letters(ctx, queue, b"short")
    reason = property_of(ctx, letter, "_dlq_reason")
    ctx.must(reason == "TTL_EXPIRED", f"dead letters: expected the reason TTL_EXPIRED; seen {reason}")
    consumer = await consume(ctx, queue)
    await consumer.expect_publish(payload=b"live")


@case(
    "queue/limits/unread-messages-stay",
    clauses=("Q-LIMIT-12",),
    requires=("queues", "clock"),
    mutant="queue-retention-removes-unread",
)
async def unread(ctx: CaseContext) -> None:
    """Messages that nobody has read are kept while time passes (R3).

    Twenty messages, no consumer, an hour: all are there for the first consumer.
    """
    queue = new_queue(ctx)
    publisher = await ctx.connect(version=5, name="publisher")
    wanted = [b"%d" % number for number in range(20)]
    await publish(publisher, queue, *wanted)
    await ctx.advance(3_600.0)
    consumer = await consume(ctx, queue)
    seen = [delivery.payload for delivery in await deliveries(consumer, at_least=20)]
    ctx.must(seen == wanted, f"consumer: expected all twenty messages; seen {seen}")


@case(
    "queue/limits/slow-consumer",
    clauses=("Q-LIMIT-15",),
    requires=("queues", "clock"),
    mutant="queue-slow-consumers-stay",
    settings=_with(max_in_flight=1, delivery_timeout_s=100, slow_consumer={"action": "disconnect", "after_s": 20}),
)
async def slow(ctx: CaseContext) -> None:
    """A consumer that holds all it may and settles nothing is disconnected after the configured time.

    It may hold one message and has 20 s. After 15 s it is still there; after 21 s its connection ends, and another
    consumer gets the message.
    """
    queue = new_queue(ctx)
    publisher = await ctx.connect(version=5, name="publisher")
    await publish(publisher, queue, b"message")
    due = ctx.due_in(20)
    lazy = await consume(ctx, queue, name="lazy")
    await lazy.expect_publish(payload=b"message")
    await ctx.advance(15.0)
    await lazy.expect_nothing(before=due)
    await ctx.advance(6.0)
    await lazy.expect_close()
    other = await consume(ctx, queue, name="other")
    await other.expect_publish(payload=b"message")


async def _may_not_join(ctx: CaseContext, client: Connection, queue: str, group: str, what: str) -> None:
    packet_id = client.next_packet_id()
    joining = Properties(user_property=(("consumer-group", group),))
    entry = Subscription(filter=f"$queue/{queue}", qos=1)
    client.send(Subscribe(packet_id=packet_id, subscriptions=(entry,), properties=joining))
    suback = await client.expect(Suback)
    ctx.must(suback.reason_codes == (_QUOTA_EXCEEDED,), f"client: expected {what} to be refused; seen {suback}")


@case(
    "queue/limits/groups",
    clauses=("Q-LIMIT-17",),
    requires=("queues",),
    mutant="queue-groups-unlimited",
    near_miss="queue-one-batch-per-message",
    settings={"queues": {"max_groups": 2, "defaults": {"partitions": 1}}},
)
async def groups(ctx: CaseContext) -> None:
    """Where two consumer groups are allowed, a third is refused, on the same queue and on another one.

    A second member of the first group is taken, and gets the queue's messages with the first one gone.
    """
    queue, other = new_queue(ctx), new_queue(ctx)
    first = await consume(ctx, queue, group="one")
    await consume(ctx, queue, group="two", name="second")
    client = await ctx.connect(version=5, name="client")
    for name in (queue, other):
        await _may_not_join(ctx, client, name, "three", "a third group")
    member = await consume(ctx, queue, group="one", name="member")
    await first.disconnect()
    publisher = await ctx.connect(version=5, name="publisher")
    await publish(publisher, queue, b"x")
    got = [packet.payload for packet in await deliveries(member, at_least=1)]
    ctx.must(got == [b"x"], f"member: expected the message; seen {got}")


@case(
    "queue/limits/groups-of-one-queue",
    clauses=("Q-LIMIT-18",),
    requires=("queues",),
    mutant="queue-own-groups-unlimited",
    near_miss="queue-one-batch-per-message",
    settings=_with(partitions=1, max_groups=2),
)
async def groups_of_one_queue(ctx: CaseContext) -> None:
    """Where a queue may have two consumer groups, a third is refused.

    The third gets 0x97. Another queue takes a group of that name, and its messages come.
    """
    queue, other = new_queue(ctx), new_queue(ctx)
    await consume(ctx, queue, group="one")
    await consume(ctx, queue, group="two", name="second")
    client = await ctx.connect(version=5, name="client")
    await _may_not_join(ctx, client, queue, "three", "a third group")
    third = await consume(ctx, other, group="three", name="third")
    publisher = await ctx.connect(version=5, name="publisher")
    await publish(publisher, other, b"x")
    got = [packet.payload for packet in await deliveries(third, at_least=1)]
    ctx.must(got == [b"x"], f"third: expected the message of the other queue; seen {got}")


@case(
    "queue/limits/consumers-of-one-group",
    clauses=("Q-LIMIT-19",),
    requires=("queues",),
    mutant="queue-group-consumers-unlimited",
    near_miss="queue-one-batch-per-message",
    settings=_with(partitions=1, group={"max_consumers": 2}),
)
async def consumers_of_one_group(ctx: CaseContext) -> None:
    """Where a group may have two consumers, a third is refused.

    The third gets 0x97. Another group takes a consumer, and so does the first one when a consumer has left it.
    """
    queue = new_queue(ctx)
    first = await consume(ctx, queue, group="one")
    await consume(ctx, queue, group="one", name="second")
    client = await ctx.connect(version=5, name="client")
    await _may_not_join(ctx, client, queue, "one", "a third consumer")
    await consume(ctx, queue, group="two", name="other")
    await first.disconnect()
    await consume(ctx, queue, group="one", name="third")

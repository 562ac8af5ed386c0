"""Delayed messages: what they keep until they fire, their limits, their order, and the list of them."""

from __future__ import annotations

from assay.conformance.case import CaseContext, case
from assay.conformance.cases.queue.administration import create, figures_become
from assay.conformance.cases.queue.delays import (
    TICK_S,
    cancel,
    delay_id,
    settled_payloads,
    time_of_broker,
)
from assay.conformance.cases.queue.support import admin, consume, deliveries, new_queue, property_of, publish_with
from assay.conformance.wire import Properties, Puback, Publish


@case(
    "queue/delay/properties-hold",
    clauses=("Q-DELAY-11",),
    requires=("queues", "clock"),
    mutant="queue-fired-anywhere",
)
async def properties(ctx: CaseContext) -> None:
    """What a delayed message asked for holds when it fires: key, explicit partition, priority, its own properties.

    Twelve messages for partition 3, and twelve of one key: each dozen comes from one partition, the first from 3, with
    the publisher's property. One of high priority says so on delivery.
    """
    queue = new_queue(ctx)
    publisher = await ctx.connect(version=5, name="publisher")
    await create(ctx, publisher, queue, partitions=10)
    consumer = await consume(ctx, queue)
    for number in range(12):
        await publish_with(publisher, queue, b"explicit", partition="3", color="red", delay="5s")
        await publish_with(publisher, queue, b"keyed %d" % number, partition_key="one", delay="5s")
    await publish_with(publisher, queue, b"urgent", priority="high", delay="5s")
    await ctx.advance(5 + TICK_S)
    found = await deliveries(consumer, at_least=25)
    explicit = [delivery for delivery in found if delivery.payload == b"explicit"]
    keyed = [delivery for delivery in found if delivery.payload.startswith(b"keyed")]
    urgent = [delivery for delivery in found if delivery.payload == b"urgent"]
    ctx.must((len(explicit), len(keyed), len(urgent)) == (12, 12, 1), f"expected 25 deliveries; seen {len(found)}")
    for delivery in explicit:
        partition, color = property_of(ctx, delivery, "partition"), property_of(ctx, delivery, "color")
        ctx.must((partition, color) == ("3", "red"), f"expected partition 3 and red; seen {partition} and {color}")
    partitions = {property_of(ctx, delivery, "partition") for delivery in keyed}
    ctx.must(len(partitions) == 1, f"expected one partition for one key; seen {sorted(partitions)}")
    priority = property_of(ctx, urgent[0], "priority")
    ctx.must(priority == "high", f"expected the priority high; seen {priority}")


@case(
    "queue/delay/holds-nobody-back",
    clauses=("Q-DELAY-12", "Q-DELAY-20"),
    requires=("queues", "clock"),
    mutant="queue-delayed-counts-as-stored",
    settings={"queues": {"defaults": {"max_depth": 3, "partitions": 1}}},
)
async def no_hold(ctx: CaseContext) -> None:
    """A delayed message is not in the queue before it fires.

    The queue takes three messages. Three delayed ones later, three more are still taken and delivered at once, in the
    same partition. The figures say three delayed, and after they fired, three fired.
    """
    queue = new_queue(ctx)
    consumer = await consume(ctx, queue)
    publisher = await ctx.connect(version=5, name="publisher")
    for _ in range(3):
        delay_id(ctx, await publish_with(publisher, queue, b"later", delay="1h"))
    for number in range(3):
        puback = await publish_with(publisher, queue, b"%d" % number)
        ctx.must(puback.reason_code < 0x80, f"publisher: expected message {number} to be taken; seen {puback}")
    seen = await settled_payloads(ctx, consumer, queue, at_least=3)
    ctx.must(seen == [b"0", b"1", b"2"], f"consumer: expected the messages without delay; seen {seen}")
    stats = await admin(ctx, publisher, f"queue/{queue}/stats")
    ctx.must(stats["delayed"] == 3, f"expected 3 delayed in the figures; seen {stats['delayed']}")
    await ctx.advance(3_601)
    seen_counts = await figures_become(
        ctx, publisher, queue, lambda stats: (stats["delayed"], stats["delays"]["fired"]), (0, 3)
    )
    ctx.must(seen_counts == (0, 3), f"expected 0 delayed and 3 fired; seen {seen_counts}")


@case(
    "queue/delay/so-many-at-most",
    clauses=("Q-DELAY-13",),
    requires=("queues",),
    mutant="queue-delays-unbounded",
    kills=("queue-delays-of-a-turn-unbounded",),
    settings={"queues": {"defaults": {"max_delayed": 4}}},
)
async def bounded(ctx: CaseContext) -> None:
    """A queue holds so many delayed messages and refuses the next with 0x97.

    The bound is 4. The fifth is refused, one without delay is not; when one is cancelled, there is room again. Of six
    that come to another queue in one go, or as many at a time as the server takes, four are taken.
    """
    queue = new_queue(ctx)
    publisher = await ctx.connect(version=5, name="publisher")
    names = [delay_id(ctx, await publish_with(publisher, queue, b"m", delay="1h")) for _ in range(4)]
    puback = await publish_with(publisher, queue, b"m", delay="1h")
    ctx.must(puback.reason_code == 0x97, f"publisher: expected 0x97 for the fifth; seen {puback}")
    puback = await publish_with(publisher, queue, b"m")
    ctx.must(puback.reason_code < 0x80, f"publisher: expected a message without delay to be taken; seen {puback}")
    await cancel(publisher, queue, names[1])
    delay_id(ctx, await publish_with(publisher, queue, b"m", delay="1h"))
    topic, later = f"$queue/{new_queue(ctx)}", Properties(user_property=(("delay", "1h"),))
    window, codes = min(6, publisher.connack.properties.receive_maximum or 6), list[int]()
    while len(codes) < 6:
        ids = [publisher.next_packet_id() for _ in range(min(window, 6 - len(codes)))]
        publisher.send(*(Publish(topic=topic, payload=b"m", qos=1, packet_id=each, properties=later) for each in ids))
        codes += [(await publisher.expect(Puback)).reason_code for _ in ids]
    ctx.must(codes.count(0x97) == 2, f"publisher: expected 0x97 for two of six; seen {codes}")


@case(
    "queue/delay/full-queue-gets-it-later",
    clauses=("Q-DELAY-14",),
    requires=("queues", "clock"),
    mutant="queue-full-loses-delayed",
    near_miss="queue-due-read-singly",
    settings={"queues": {"defaults": {"max_depth": 2, "partitions": 1}}},
)
async def full(ctx: CaseContext) -> None:
    """Messages that are due while the queue is full come once there is room.

    The queue is full with two messages when two delayed ones become due. Nothing is lost: once the first two are
    acknowledged, the others come.
    """
    queue = new_queue(ctx)
    publisher = await ctx.connect(version=5, name="publisher")
    for payload in (b"a", b"b"):
        await publish_with(publisher, queue, payload)
    for payload in (b"c", b"d"):
        delay_id(ctx, await publish_with(publisher, queue, payload, delay="5s"))
    await ctx.advance(10)
    consumer = await consume(ctx, queue)
    seen = await settled_payloads(ctx, consumer, queue, at_least=2)
    ctx.must(seen == [b"a", b"b"], f"consumer: expected what filled the queue; seen {seen}")
    await ctx.advance(5)
    seen = await settled_payloads(ctx, consumer, queue, at_least=2)
    ctx.must(sorted(seen) == [b"c", b"d"], f"consumer: expected what became due meanwhile; seen {seen}")


@case(
    "queue/delay/time-to-live-begins-when-due",
    clauses=("Q-DELAY-15", "Q-DELAY-16"),
    requires=("queues", "clock"),
    mutant="queue-delay-eats-time-to-live",
    settings={"queues": {"defaults": {"message_ttl_s": 60}}},
)
async def time_to_live(ctx: CaseContext) -> None:
    """The queue's time to live counts from when a delayed message fires.

    Time to live 60 s, delay 300 s: 30 s after it fired the message is there for a consumer. One whose MQTT expiry of
    100 s ends before the delay is refused.
    """
    queue = new_queue(ctx)
    publisher = await ctx.connect(version=5, name="publisher")
    packet_id = publisher.next_packet_id()
    doomed = Properties(user_property=(("delay", "300s"),), message_expiry_interval=100)
    publisher.send(Publish(topic=f"$queue/{queue}", payload=b"doomed", qos=1, packet_id=packet_id, properties=doomed))
    puback = await publisher.expect(Puback)
    ctx.should(puback.reason_code >= 0x80, f"publisher: expected one that expires before to be refused; seen {puback}")
    delay_id(ctx, await publish_with(publisher, queue, b"message", delay="300s"))
    await ctx.advance(330)
    consumer = await consume(ctx, queue)
    await consumer.expect_publish(payload=b"message")


@case(
    "queue/delay/order-of-equal-times",
    clauses=("Q-DELAY-17",),
    requires=("queues", "clock"),
    mutant="queue-fires-backwards",
    near_miss="queue-due-read-singly",
)
async def order(ctx: CaseContext) -> None:
    """Messages of one key for one moment come in the order in which they were published.

    Twenty messages with deliver-at at the same millisecond; and two whose times contradict the order of publishing come
    by their times.
    """
    queue = new_queue(ctx)
    consumer = await consume(ctx, queue)
    publisher = await ctx.connect(version=5, name="publisher")
    moment = str(await time_of_broker(ctx, publisher, queue) + 60_000)
    wanted = [b"%d" % number for number in range(20)]
    for payload in wanted:
        await publish_with(publisher, queue, payload, partition_key="one", deliver_at=moment)
    await publish_with(publisher, queue, b"later", partition_key="one", delay="500s")
    await publish_with(publisher, queue, b"earlier", partition_key="one", delay="400s")
    await ctx.advance(61)
    seen = await settled_payloads(ctx, consumer, queue, at_least=len(wanted))
    ctx.must(seen == wanted, f"consumer: expected the order of publishing; seen {seen}")
    await ctx.advance(600)
    seen = await settled_payloads(ctx, consumer, queue, at_least=2)
    ctx.must(seen == [b"earlier", b"later"], f"consumer: expected the order of their times; seen {seen}")


@case(
    "queue/delay/queues-do-not-mix",
    clauses=("Q-DELAY-18",),
    requires=("queues", "clock"),
    mutant="queue-cancel-in-any-queue",
)
async def apart(ctx: CaseContext) -> None:
    """A delay id belongs to its queue, whatever partitions messages go to (4.5: an index keyed by offset alone).

    Two queues hold a delayed message each, for different partitions. Cancelling the one's id on the other's $cancel is
    refused, and both come. Cancelled properly, the next pair loses one only.
    """
    first, second = new_queue(ctx), new_queue(ctx)
    publisher = await ctx.connect(version=5, name="publisher")
    for queue in (first, second):
        await create(ctx, publisher, queue, partitions=2)
    consumers = [await consume(ctx, queue, name=queue) for queue in (first, second)]
    names = [
        delay_id(ctx, await publish_with(publisher, queue, b"m", partition=str(number), delay="30s"))
        for number, queue in enumerate((first, second))
    ]
    puback = await cancel(publisher, second, names[0])
    ctx.must(puback.reason_code >= 0x80, f"publisher: expected an id of another queue to be refused; seen {puback}")
    await ctx.advance(31)
    for queue, consumer in zip((first, second), consumers, strict=True):
        seen = await settled_payloads(ctx, consumer, queue, at_least=1)
        ctx.must(seen == [b"m"], f"{queue}: expected its message; seen {seen}")


@case(
    "queue/delay/listed-in-pages",
    clauses=("Q-DELAY-19",),
    level="SHOULD",
    requires=("queues",),
    mutant="queue-delays-listed-from-the-start",
)
async def listed(ctx: CaseContext) -> None:
    """The administration lists delayed messages in pages, and cancels one.

    Five messages; a page of two, then the rest behind it. Each has its delay-id and its time. One is cancelled by the
    administration and is gone from the list.
    """
    queue = new_queue(ctx)
    publisher = await ctx.connect(version=5, name="publisher")
    names = [delay_id(ctx, await publish_with(publisher, queue, b"m", delay=f"{9 - n}h")) for n in range(5)]
    page = (await admin(ctx, publisher, f"queue/{queue}/delays", {"limit": 2}))["messages"]
    ctx.must([one["delay_id"] for one in page] == names[:2], f"expected the first two; seen {page}")
    apart_s = page[0]["deliver_at"] - page[1]["deliver_at"]
    ctx.must(abs(apart_s - 3_600) < 60, f"expected times an hour apart; seen {apart_s} s")
    rest = (await admin(ctx, publisher, f"queue/{queue}/delays", {"after": names[1]}))["messages"]
    ctx.must([one["delay_id"] for one in rest] == names[2:], f"expected the other three; seen {rest}")
    answer = await admin(ctx, publisher, f"queue/{queue}/delays", {"cancel": names[3]})
    ctx.must(answer == {"cancelled": True}, f"expected the cancel to be answered; seen {answer}")
    left = (await admin(ctx, publisher, f"queue/{queue}/delays"))["messages"]
    kept = [name for name in names if name != names[3]]
    ctx.must([one["delay_id"] for one in left] == kept, f"expected the four that are left; seen {left}")

"""Many packets in one write: what a broker may handle together must come out as if each had come alone."""

from __future__ import annotations

import asyncio

from assay.conformance.case import CaseContext, case
from assay.conformance.cases.queue.administration import create
from assay.conformance.cases.queue.support import consume, deliveries, new_queue, property_of, publish, settlement
from assay.conformance.connection import Connection
from assay.conformance.wire import Properties, Puback, Publish, describe

_MESSAGES = 60
_LIKE_ONES = 12
_KEYS = 4
_LARGE_ONES = 40
_LARGE_BYTES = 64_000
_OWN = "conformance-trace"


def _key(number: int) -> str:
    return f"key-{number % _KEYS}"


def _publishes(publisher: Connection, queue: str) -> list[Publish]:
    return [
        Publish(
            topic=f"$queue/{queue}",
            payload=f"number {number:02}".encode(),
            qos=1,
            packet_id=publisher.next_packet_id(),
            properties=Properties(user_property=(("partition-key", _key(number)), (_OWN, f"trace {number:02}"))),
        )
        for number in range(_MESSAGES)
    ]


async def _send(ctx: CaseContext, client: Connection, packets: list[Publish]) -> list[Puback]:
    """Send publishes, as many in one write as the broker takes unconfirmed; returns the answers, in that order."""
    window = client.connack.properties.receive_maximum or max(1, len(packets))
    answers = []
    for start in range(0, len(packets), window):
        sent = packets[start : start + window]
        client.send(*sent)
        # No statement has a server acknowledge in order (MQTT 5.0, 4.6).
        came = [await client.expect(Puback, skipping=(Publish,)) for _ in sent]
        by_id = {puback.packet_id: puback for puback in came}
        missing = [packet.packet_id for packet in sent if packet.packet_id not in by_id]
        ctx.must(not missing, f"{client.name}: expected the PUBACKs of {missing}; seen {came}")
        answers += [by_id[packet.packet_id] for packet in sent]
    return answers


async def _publish(ctx: CaseContext, queue: str) -> list[Publish]:
    publisher = await ctx.connect(version=5, name="publisher")
    packets = _publishes(publisher, queue)
    await accepted(ctx, publisher, packets)
    return packets


async def accepted(ctx: CaseContext, publisher: Connection, packets: list[Publish]) -> None:
    """The first message makes the queue; the others come together."""
    for puback in [*await _send(ctx, publisher, packets[:1]), *await _send(ctx, publisher, packets[1:])]:
        ctx.must(puback.reason_code < 0x80, f"publisher: expected the publish to be accepted; seen {puback}")


@case(
    "queue/bursts/properties-stay-with-their-messages",
    clauses=("Q-ADDR-10",),
    requires=("queues",),
    mutant="queue-burst-shares-properties",
    near_miss="queue-one-batch-per-message",
)
async def properties(ctx: CaseContext) -> None:
    """Messages that were published in one write keep each its own user properties.

    Sixty messages of four keys carry a property with their number. A consumer gets each of them once, with its key and
    its number.
    """
    queue = new_queue(ctx)
    packets = await _publish(ctx, queue)
    consumer = await consume(ctx, queue)
    found = sorted(
        (each.payload, property_of(ctx, each, "partition-key"), property_of(ctx, each, _OWN))
        for each in await deliveries(consumer, at_least=_MESSAGES)
    )
    wanted = [(each.payload, *(value for _, value in each.properties.user_property)) for each in packets]
    ctx.must(found == wanted, f"consumer: expected {wanted}; seen {found}")


@case(
    "queue/bursts/keys-keep-their-order",
    clauses=("Q-DELIVER-3",),
    requires=("queues",),
    mutant="queue-burst-reversed",
    near_miss="queue-one-batch-per-message",
)
async def order(ctx: CaseContext) -> None:
    """Messages of one key that were published in one write come in their order.

    Sixty messages of four keys, in turn; a consumer gets those of each key in the order in which they were published.
    """
    queue = new_queue(ctx)
    packets = await _publish(ctx, queue)
    consumer = await consume(ctx, queue)
    found = await deliveries(consumer, at_least=_MESSAGES)
    for key in sorted({_key(number) for number in range(_KEYS)}):
        seen = [each.payload for each in found if property_of(ctx, each, "partition-key") == key]
        wanted = [each.payload for number, each in enumerate(packets) if _key(number) == key]
        ctx.must(seen == wanted, f"consumer: expected {wanted} of {key} in this order; seen {seen}")


@case(
    "queue/bursts/each-message-keeps-its-topic",
    clauses=("Q-ADDR-02", "Q-ADDR-10"),
    requires=("queues",),
    mutant="queue-burst-shares-a-key",
    near_miss="queue-one-batch-per-message",
)
async def topics(ctx: CaseContext) -> None:
    """Messages that were published in one write, with routing keys and without, come on their own topics.

    Sixty messages of any size are published to three topics of a queue, in no order. A consumer gets each of them
    once, on the topic that it was published to.
    """
    queue = new_queue(ctx)
    publisher = await ctx.connect(version=5, name="publisher")
    packets = [
        Publish(
            topic=f"$queue/{queue}{ctx.rng.choice(('', '/red', '/red/large'))}",
            payload=b"number %02d" % number + b"x" * ctx.rng.choice((0, 7, 120, 130)),
            qos=1,
            packet_id=publisher.next_packet_id(),
        )
        for number in range(_MESSAGES)
    ]
    await accepted(ctx, publisher, packets)
    consumer = await consume(ctx, queue)
    found = sorted((each.payload, each.topic) for each in await deliveries(consumer, at_least=_MESSAGES))
    wanted = [(each.payload, each.topic) for each in packets]
    ctx.must(found == wanted, f"consumer: expected {wanted}; seen {found}")


@case(
    "queue/bursts/large-messages-wait-for-their-reader",
    clauses=("Q-DELIVER-04",),
    requires=("queues",),
    mutant="a-pause-of-a-consumer-loses-deliveries",
    near_miss="deliveries-wait-for-readers-early",
)
async def large(ctx: CaseContext) -> None:
    """A consumer gets large messages as fast as it reads: each once, as a first delivery.

    Forty messages of 64 kB are in a queue. A consumer reads them and acknowledges each on the level of MQTT and of the
    queue: it gets all of them, each with delivery-count 1, on one connection.
    """
    queue = new_queue(ctx)
    publisher = await ctx.connect(version=5, name="publisher")
    rest = b"x" * (ctx.room_bytes(_LARGE_BYTES) - 1_000)
    wanted = [b"%08d" % number for number in range(_LARGE_ONES)]
    for start in wanted:
        await publish(publisher, queue, start + rest)
    consumer = await consume(ctx, queue)
    found: list[bytes] = []
    while len(found) < len(wanted):
        delivery = await consumer.receive(f"{len(wanted) - len(found)} more deliveries")
        if isinstance(delivery, Puback):
            continue
        if not isinstance(delivery, Publish):
            ctx.fail(f"consumer: expected deliveries; seen {delivery and describe(delivery)}")
        await consumer.acknowledge(delivery)
        found.append(delivery.payload[:8])
        count = property_of(ctx, delivery, "delivery-count")
        ctx.must(count == "1", f"consumer: expected first deliveries; seen delivery-count {count}")
        packet_id = consumer.next_packet_id()
        settling = Publish(
            topic=f"$queue/{queue}/$ack", qos=1, packet_id=packet_id, properties=settlement(ctx, delivery)
        )
        consumer.send(settling)
    ctx.must(found == wanted, f"consumer: expected {wanted} in this order; seen {found}")


@case(
    "queue/bursts/each-delivery-has-its-id",
    clauses=("Q-DELIVER-1",),
    requires=("queues",),
    mutant="queue-burst-ids-shifted",
    near_miss="queue-one-batch-per-message",
)
async def ids(ctx: CaseContext) -> None:
    """Deliveries that come together have each the id that settles it.

    Sixty messages are delivered together. The first of each partition is acknowledged, its consumer leaves, and the
    next one gets all but those.
    """
    queue = new_queue(ctx)
    await _publish(ctx, queue)
    consumer = await consume(ctx, queue, name="first")
    given = await deliveries(consumer, at_least=_MESSAGES)
    settled: dict[str, Publish] = {}
    for each in given:
        settled.setdefault(property_of(ctx, each, "partition"), each)
    await settle_together(ctx, consumer, queue, list(settled.values()))
    await consumer.disconnect()
    successor = await consume(ctx, queue, name="second")
    found = sorted(each.payload for each in await deliveries(successor, at_least=_MESSAGES - len(settled)))
    gone = {each.payload for each in settled.values()}
    wanted = sorted(each.payload for each in given if each.payload not in gone)
    ctx.must(found == wanted, f"second: expected {wanted}; seen {found}")


async def settle_together(ctx: CaseContext, consumer: Connection, queue: str, given: list[Publish]) -> None:
    acks = [
        Publish(
            topic=f"$queue/{queue}/$ack", qos=1, packet_id=consumer.next_packet_id(), properties=settlement(ctx, each)
        )
        for each in given
    ]
    for puback in await _send(ctx, consumer, acks):
        ctx.must(puback.reason_code < 0x80, f"{consumer.name}: expected the $ack to be accepted; seen {puback}")


@case(
    "queue/bursts/every-ack-counts",
    clauses=("Q-ACK-1",),
    requires=("queues", "restart"),
    mutant="queue-burst-acks-one-less",
    near_miss="queue-one-batch-per-message",
    limit_s=20.0,
)
async def acks(ctx: CaseContext) -> None:
    """What was acknowledged in one write never comes again, also after kill -9.

    Sixty messages are delivered and acknowledged, each by an $ack of its own, in one write. The broker is killed and
    started again: a consumer of the group gets nothing.
    """
    queue = new_queue(ctx)
    await _publish(ctx, queue)
    consumer = await consume(ctx, queue)
    given = await deliveries(consumer, at_least=_MESSAGES)
    ctx.must(len(given) == _MESSAGES, f"consumer: expected {_MESSAGES} deliveries; seen {len(given)}")
    await settle_together(ctx, consumer, queue, given)
    await ctx.restart()
    found = [each.payload for each in await deliveries(await consume(ctx, queue, name="later"))]
    ctx.must(not found, f"later: expected nothing, all was acknowledged; seen {found}")


@case(
    "queue/bursts/bound-queues-get-their-share",
    clauses=("Q-BIND-01", "Q-BIND-03", "Q-BIND-04"),
    requires=("queues",),
    mutant="queue-burst-passes-bound-queues",
    near_miss="queue-captured-before-subscribers",
)
async def bound(ctx: CaseContext) -> None:
    """Of messages that were published in one write, each queue gets those of the topics that it is bound to.

    Sixty messages of any size go to three topics of one queue, sixty more to three ordinary topics, in no order behind
    twelve like ones. Of either three, one has no other queue, two are bound to one of their own each, and to one
    together. A subscriber asks for all the ordinary ones. Each gets all of its messages, once, and no other.
    """
    queue, root = new_queue(ctx), ctx.topic("burst")
    publisher = await ctx.connect(version=5, name="publisher")
    await create(ctx, publisher, queue)
    of_queue, ordinary = (
        [f"{start}{end}" for end in ("", "/red", "/red/large")] for start in (f"$queue/{queue}", root)
    )
    bound_to = {
        topic_filter: found
        for topics in (of_queue, ordinary)
        for topic_filter, found in ((topics[1], topics[1:2]), (topics[2], topics[2:]), (f"{topics[1]}/#", topics[1:]))
    }
    names = {topic_filter: new_queue(ctx) for topic_filter in bound_to}
    for topic_filter, name in names.items():
        await create(ctx, publisher, name, topics=[topic_filter])
    subscriber = await ctx.connect(name="subscriber")
    await subscriber.subscribe(*ordinary, qos=1)
    wanted: dict[str, list[bytes]] = {topic: [] for topic in (*of_queue, *ordinary)}
    packets = []
    for number in range(2 * _MESSAGES):
        topics, size = of_queue if number < _MESSAGES else ordinary, ctx.rng.choice((0, 7, 120, 130))
        # A broker may handle those behind the first together, as the first of them: one without other queues, and more.
        place = number % _MESSAGES
        topic, size = (topics[place > 1], 0) if place < _LIKE_ONES else (ctx.rng.choice(topics), size)
        payload = b"number %03d" % number + b"x" * size
        wanted[topic].append(payload)
        packets.append(Publish(topic=topic, payload=payload, qos=1, packet_id=publisher.next_packet_id()))

    async def heard() -> list[bytes]:
        return sorted([(await subscriber.expect_publish()).payload for _ in range(_MESSAGES)])

    # A broker may acknowledge when those who get the messages have done so.
    found, _ = await asyncio.gather(heard(), accepted(ctx, publisher, packets))
    payloads = sorted(payload for topic in ordinary for payload in wanted[topic])
    ctx.must(found == payloads, f"subscriber: expected {payloads}; seen {found}")
    expected = {queue: of_queue, **{names[topic_filter]: topics for topic_filter, topics in bound_to.items()}}
    for name, topics in expected.items():
        consumer = await consume(ctx, name, name=f"consumer of {topics}")
        payloads = sorted(payload for topic in topics for payload in wanted[topic])
        found = sorted(each.payload for each in await deliveries(consumer, at_least=len(payloads)))
        ctx.must(found == payloads, f"{consumer.name}: expected {payloads}; seen {found}")

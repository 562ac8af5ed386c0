"""Queues behind several restarts: after each change of what was settled, held, delayed, rejected or freed.

All cases run on one broker with small segments; each has queues of its own, created with what it needs.
"""

from __future__ import annotations

from collections.abc import Callable

from assay.conformance.case import CaseContext, CaseFunction, case
from assay.conformance.cases.mqtt5.support import pass_time, shares
from assay.conformance.cases.queue.administration import ask, create
from assay.conformance.cases.queue.bulk import BulkClient
from assay.conformance.cases.queue.group_support import operate
from assay.conformance.cases.queue.producing import Producer
from assay.conformance.cases.queue.support import (
    consume,
    count_of,
    deliveries,
    expect_dead_letters,
    join,
    new_queue,
    property_of,
    publish_with,
    settle,
)
from assay.conformance.cases.restart_support import SMALL_SEGMENTS, come_back, publish_all, stay
from assay.conformance.connection import Connection
from assay.conformance.stall import Stopwatch
from assay.conformance.wire import Properties, Publish

_LIMIT_S = 15.0
_SNAPSHOT = 1_000
"""Records of a partition after which a broker may write down what it knows of producers, and read no further back."""


def _survives(
    slug: str,
    *clauses: str,
    mutant: str,
    kills: tuple[str, ...] = (),
    near_miss: str = "queue-one-batch-per-message",
    limit_s: float = _LIMIT_S,
) -> Callable[[CaseFunction], CaseFunction]:
    return case(
        f"queue/restart/{slug}",
        clauses=clauses,
        requires=("queues", "restart"),
        mutant=mutant,
        kills=kills,
        near_miss=near_miss,
        settings=SMALL_SEGMENTS,
        together=True,
        limit_s=limit_s,
    )


async def _new(ctx: CaseContext, client: Connection, **settings: object) -> str:
    queue = new_queue(ctx)
    await create(ctx, client, queue, **settings)
    return queue


async def _fill(ctx: CaseContext, publisher: Connection, queue: str, partition: int, count: int) -> None:
    """Messages ``<partition>/<number>``."""
    properties = Properties(user_property=(("partition", str(partition)),))
    topic = f"$queue/{queue}"
    payloads = (f"{partition}/{number}".encode() for number in range(count))
    await publish_all(ctx, publisher, (Publish(topic=topic, payload=each, properties=properties) for each in payloads))


async def _settle_range(ctx: CaseContext, consumer: Connection, queue: str, partition: int, offsets: str) -> None:
    named = {"group_id": "workers", "partition": str(partition), "offsets": offsets}
    puback = await operate(consumer, queue, "ack", **named)
    ctx.must(puback.reason_code < 0x80, f"{consumer.name}: expected the settlement to be accepted; seen {puback}")


async def _held(ctx: CaseContext, consumer: Connection, wanted: dict[str, int], when: str) -> dict[str, Publish]:
    """What a consumer is given, acknowledged on the MQTT level only: these payloads with these delivery counts."""
    found: dict[str, Publish] = {}
    while wanted.keys() - found.keys():
        delivery = await consumer.expect_publish()
        found[delivery.payload.decode()] = delivery
    for delivery in await deliveries(consumer):
        found[delivery.payload.decode()] = delivery
    seen = {payload: count_of(ctx, delivery) for payload, delivery in found.items()}
    ctx.must(seen == wanted, f"{when}: expected {wanted}; seen {seen}")
    return found


@_survives(
    "holes-stay-where-they-are",
    "Q-DURA-04",
    "Q-DURA-05",
    "Q-SETTLE-01",
    mutant="queue-replay-widens-ranges",
    kills=("queue-acks-of-one-partition", "queue-two-holes-are-none"),
)
async def holes(ctx: CaseContext) -> None:
    """What was settled by ranges and one by one stays settled, and what lies between them comes again, and counts.

    In four partitions forty, forty, three and forty messages are delivered. Of the first all but 0, 7 and 39 are
    settled, of the second all, of the third none, of the fourth all but 5 and 6; after a restart 7 and two of the
    third, in one settlement. After each of three restarts exactly what was not settled comes, with a delivery count
    that is one higher.
    """
    publisher = await ctx.connect(version=5, name="publisher")
    counts = (40, 40, 3, 40)
    queue = await _new(ctx, publisher, partitions=len(counts))
    for partition, count in enumerate(counts):
        await _fill(ctx, publisher, queue, partition, count)
    consumer = await consume(ctx, queue)
    first = {f"{p}/{n}": 1 for p, count in enumerate(counts) for n in range(count)}
    await _held(ctx, consumer, first, "at first")
    await _settle_range(ctx, consumer, queue, 0, "1-6,8-38")
    await _settle_range(ctx, consumer, queue, 1, "0-39")
    await _settle_range(ctx, consumer, queue, 3, "0-4,7-39")
    await ctx.restart()
    consumer = await consume(ctx, queue, name="after one restart")
    left = dict.fromkeys(("0/0", "0/7", "0/39", "2/0", "2/1", "2/2", "3/5", "3/6"), 2)
    found = await _held(ctx, consumer, left, "after one restart")
    named = [("message-id", property_of(ctx, found[payload], "message-id")) for payload in ("0/7", "2/1", "2/2")]
    properties = Properties(user_property=(("group-id", "workers"), *named))
    await consumer.publish(f"$queue/{queue}/$ack", qos=1, properties=properties)
    kept = ("0/0", "0/39", "2/0", "3/5", "3/6")
    for restarts in (2, 3):
        await ctx.restart()
        consumer = await consume(ctx, queue, name=f"after {restarts} restarts")
        await _held(ctx, consumer, dict.fromkeys(kept, restarts + 1), f"after {restarts} restarts")


@_survives(
    "members-share-one-order",
    "Q-ORDER-04",
    "Q-DURA-05",
    mutant="queue-members-come-back-one-behind-the-other",
)
async def members(ctx: CaseContext) -> None:
    """What several members of a group held when the broker was killed comes back in the order of the partition.

    Two members share twelve messages of a queue without ordering, and settle none. A third, after the restart, is given
    all of them by their offsets, whoever had them.
    """
    publisher = await ctx.connect(version=5, name="publisher")
    queue = await _new(ctx, publisher, partitions=1, ordering="none")
    both = [await consume(ctx, queue, name=name, prefetch="6") for name in ("one", "other")]
    await _fill(ctx, publisher, queue, 0, 12)
    for found in await shares(both, 12):
        ctx.must(len(found) == 6, f"expected six messages for each of two members; seen {len(found)}")
    await ctx.restart()
    consumer = await consume(ctx, queue, name="after the restart")
    seen = [(await consumer.expect_publish()).payload for _ in range(12)]
    wanted = [b"0/%d" % number for number in range(12)]
    ctx.must(seen == wanted, f"after the restart: expected {wanted}; seen {seen}")


@_survives(
    "a-snapshot-knows-every-producer",
    "Q-IDEM-07",
    "Q-TXN-03",
    mutant="queue-snapshots-leave-a-sequence-out",
    kills=("queue-snapshots-forget-silent-producers", "queue-snapshots-forget-what-was-aborted"),
    limit_s=20.0,
)
async def snapshot(ctx: CaseContext) -> None:
    """Numbers and aborted messages are known after a restart also in a partition of more than a thousand messages.

    A producer numbers a message, a thousand come behind it and are settled, and then two more of its, the first of
    another producer, what a transaction aborts, and forty others. After the restart both repeat their last message,
    which is known, and send their next one: the group is given each once, and nothing of the transaction.
    """
    publisher = await ctx.connect(version=5, name="publisher")
    queue = await _new(ctx, publisher, partitions=1, durability="fsync")
    names = ("one", "other")
    producers = [await Producer.make(ctx, client=publisher) for _ in names]

    async def number(which: int, *sequences: int) -> None:
        for each in sequences:
            await producers[which].put(queue, f"{names[which]} {each}".encode(), sequence=each)

    await number(0, 0)
    bulk = BulkClient(ctx, "bulk")
    await bulk.connect()
    await bulk.publish(queue, _SNAPSHOT)
    await bulk.join(queue, "workers")
    await bulk.settle_but(queue, "workers", 1 + _SNAPSHOT, frozenset())
    bulk.close()
    await number(0, 1, 2)
    await number(1, 0)
    third = await Producer.make(ctx, ctx.client_id(), publisher)
    transaction = await third.begin()
    await third.put(queue, b"aborted", transaction)
    await third.abort(transaction)
    await _fill(ctx, publisher, queue, 0, 40)
    await ctx.restart()
    publisher = await ctx.connect(version=5, name="publisher again")
    for which, producer in enumerate(producers):
        producer.client = publisher
        await number(which, *((2, 3), (0, 1))[which])
    await publish_with(publisher, queue, b"last", partition="0")
    consumer = await consume(ctx, queue, name="after the restart")
    wanted = ["one 1", "one 2", "other 0", *[f"0/{each}" for each in range(40)], "one 3", "other 1", "last"]
    seen = [(await consumer.expect_publish()).payload.decode()]
    while seen[-1] != "last":
        seen.append((await consumer.expect_publish()).payload.decode())
    ctx.must(seen == wanted, f"after the restart: expected {wanted}; seen {seen}")


@_survives("a-purge-spares-what-is-held", "Q-ADMIN-11", "Q-ADMIN-12", "Q-DURA-05", mutant="queue-purge-forgotten")
async def purge(ctx: CaseContext) -> None:
    """A purge takes what is ready in one partition, and nothing that is held in another, also after restarts.

    A consumer that takes three at a time holds those of partition 1 when sixty ready ones of partition 0 are purged.
    After each of two restarts it gets the three, and a message that came later; a new group nothing that was purged.
    """
    publisher = await ctx.connect(version=5, name="publisher")
    queue = await _new(ctx, publisher, partitions=2)
    await _fill(ctx, publisher, queue, 1, 3)
    consumer = await consume(ctx, queue, prefetch="3")
    await _held(ctx, consumer, dict.fromkeys(("1/0", "1/1", "1/2"), 1), "at first")
    await _fill(ctx, publisher, queue, 0, 60)
    await ask(ctx, publisher, queue, "purge")
    await publish_with(publisher, queue, b"later", partition="0")
    for restarts in (1, 2):
        await ctx.restart()
        consumer = await consume(ctx, queue, name=f"after restart {restarts}", group="workers")
        wanted = dict.fromkeys(("1/0", "1/1", "1/2"), restarts + 1) | {"later": restarts}
        await _held(ctx, consumer, wanted, f"after restart {restarts}")
    fresh = await consume(ctx, queue, group="new", name="a new group")
    seen = sorted(delivery.payload for delivery in await deliveries(fresh, at_least=1))
    ctx.must(b"later" in seen, f"new group: expected what came after the purge; seen {seen}")
    purged = [payload for payload in seen if payload.startswith(b"0/")]
    ctx.must(not purged, f"new group: expected nothing that was purged; seen {purged}")


@_survives(
    "absent-groups-get-what-others-have-settled", "Q-DURA-08", "Q-DURA-09", mutant="queue-absent-groups-need-nothing"
)
async def absent(ctx: CaseContext) -> None:
    """A message that one group has settled is kept for a group that is away, over segments and restarts.

    One group joined and left, a second one holds the first message, a third one settles each of a hundred and twenty
    large messages, which fill many segments. After two restarts, with more of them between, the first gets all in
    order, the second the first one.
    """
    publisher = await ctx.connect(version=5, name="publisher")
    queue = await _new(ctx, publisher, partitions=1)
    away = await consume(ctx, queue, group="away")
    await away.disconnect()
    wanted = [f"{number:03}".encode() + b"x" * 1_000 for number in range(120)]
    for turn, part in enumerate((wanted[:100], wanted[100:])):
        fast = await consume(ctx, queue, group="fast", name="fast")
        for some in (part[:-1], part[-1:]):
            await publish_all(ctx, publisher, (Publish(topic=f"$queue/{queue}", payload=payload) for payload in some))
            got = [await fast.expect_publish(payload=payload) for payload in some]
            offsets = "-".join(property_of(ctx, delivery, "offset") for delivery in (got[0], got[-1]))
            named = {"group_id": "fast", "partition": "0", "offsets": offsets}
            puback = await operate(fast, queue, "ack", **named)
            ctx.must(puback.reason_code < 0x80, f"fast: expected the settlement to be accepted; seen {puback}")
            if len(some) > 1:
                # A broker may look only now and then for what it can free.
                await pass_time(ctx, 1.5)
        if turn == 0:
            holder = await consume(ctx, queue, group="holding", name="holder", prefetch="5")
            for delivery in [await holder.expect_publish() for _ in range(5)][1:]:
                await settle(ctx, holder, queue, "ack", delivery)
        await ctx.restart()
        publisher = await ctx.connect(version=5, name="publisher again")
    away = await consume(ctx, queue, group="away", name="away again")
    for payload in wanted:
        delivery = await away.expect_publish()
        same = delivery.payload == payload
        ctx.must(same, f"away: expected message {payload[:3]!r}; seen {delivery.payload[:3]!r}")
    holder = await consume(ctx, queue, group="holding", name="holder again")
    first = await holder.expect_publish()
    ctx.must(first.payload == wanted[0], f"holder: expected message 000 again; seen {first.payload[:3]!r}")
    fast = await consume(ctx, queue, group="fast", name="fast again")
    await fast.expect_nothing()


@_survives("delayed-messages-fire-once", "Q-DELAY-08", "Q-DELAY-09", "Q-DELAY-21", mutant="queue-done-delays-forgotten")
async def delays(ctx: CaseContext) -> None:
    """A delayed message fires once and a cancelled one never, whether the broker is killed before or after.

    Of three messages delayed by 1, 1 and 3 s the first is cancelled before a restart. The second fires between two
    restarts and is settled, the third after them; nothing else ever comes, and a group that was away gets both.
    """
    publisher = await ctx.connect(version=5, name="publisher")
    queue = await _new(ctx, publisher, partitions=1)
    await (await consume(ctx, queue, group="away", name="away")).disconnect()
    watch = Stopwatch()
    puback = await publish_with(publisher, queue, b"never", delay=f"{ctx.stretch}s")
    (cancelled,) = [value for name, value in puback.properties.user_property if name == "delay-id"]
    puback = await operate(publisher, queue, "cancel", delay_id=cancelled)
    watch.demand_less_than(0.9 * ctx.stretch)  # else it has fired
    for payload, delay in ((b"soon", f"{ctx.stretch}s"), (b"late", f"{3 * ctx.stretch}s")):
        await publish_with(publisher, queue, payload, delay=delay)
    ctx.must(puback.reason_code < 0x80, f"publisher: expected the cancellation to be accepted; seen {puback}")
    await ctx.restart()
    consumer = await consume(ctx, queue)
    await settle(ctx, consumer, queue, "ack", await consumer.expect_publish(payload=b"soon"))
    await ctx.restart()
    consumer = await consume(ctx, queue, name="consumer again")
    await settle(ctx, consumer, queue, "ack", await consumer.expect_publish(payload=b"late"))
    await ctx.restart()
    consumer = await consume(ctx, queue, group="away", name="away again")
    seen = sorted(delivery.payload for delivery in await deliveries(consumer, at_least=2))
    ctx.must(seen == [b"late", b"soon"], f"away: expected each message that fired, once; seen {seen}")
    await pass_time(ctx, 0.2)
    await consumer.expect_nothing()


@_survives("dead-letters-settled-stay-away", "Q-DLQ-14", "Q-DURA-07", mutant="queue-dead-letter-groups-forgotten")
async def dead_letters(ctx: CaseContext) -> None:
    """What consumers of dead letters have settled, and what a replay has sent back, is gone over restarts.

    Of three dead letters one is settled before the first restart, one replayed before the second. Then the third is
    left, and the replayed message is in its queue, once.
    """
    publisher = await ctx.connect(version=5, name="publisher")
    queue = await _new(ctx, publisher, partitions=1)
    consumer = await consume(ctx, queue)
    for payload in (b"1", b"2", b"3"):
        await publish_with(publisher, queue, payload)
        await settle(ctx, consumer, queue, "reject", await consumer.expect_publish(payload=payload))
    letters = await consume(ctx, f"dlq/{queue}", group="graveyard", name="letters")
    found = [await letters.expect_publish(payload=payload) for payload in (b"1", b"2", b"3")]
    await settle(ctx, letters, f"dlq/{queue}", "ack", found[0])
    await ctx.restart()
    publisher = await ctx.connect(version=5, name="publisher again")
    identifier = property_of(ctx, found[1], "message-id")
    await ask(ctx, publisher, queue, "replay", {"message_id": identifier})
    for restarts in (2, 3):
        await ctx.restart()
        letters = await consume(ctx, f"dlq/{queue}", group="graveyard", name=f"letters after {restarts} restarts")
        await letters.expect_publish(payload=b"3")
        await letters.expect_nothing()
        consumer = await consume(ctx, queue, name=f"consumer after {restarts} restarts")
        await consumer.expect_publish(payload=b"2")
        await consumer.expect_nothing()


@_survives(
    "deliveries-count-until-the-last",
    "Q-DURA-05",
    "Q-DURA-07",
    "Q-RETRY-05",
    mutant="queue-counts-not-persisted",
    kills=("wire-lost-deliveries-wait-for-readers",),
)
async def last_delivery(ctx: CaseContext) -> None:
    """Deliveries before restarts count: after the last one that is allowed the message is a dead letter.

    A queue allows two retries. A message is held when the broker is killed, twice: it comes with the counts 1, 2 and 3.
    Refused then, it is a dead letter, and is one after another restart. Of another queue, which allows no retry, what
    is held at the first kill is a dead letter although nobody reads that queue any more.
    """
    publisher = await ctx.connect(version=5, name="publisher")
    once = await _new(ctx, publisher, partitions=1, retry={"max_retries": 0})
    await publish_with(publisher, once, b"lost")
    holder = await consume(ctx, once, name="holder")
    await holder.expect_publish(payload=b"lost")
    queue = await _new(ctx, publisher, partitions=1, retry={"max_retries": 2})
    await publish_with(publisher, queue, b"bad")
    for count in (1, 2, 3):
        consumer = await consume(ctx, queue, name=f"consumer {count}")
        delivery = await consumer.expect_publish(payload=b"bad")
        seen = count_of(ctx, delivery)
        ctx.must(seen == count, f"consumer: expected delivery-count {count}; seen {seen}")
        if count < 3:
            await ctx.restart()
        if count == 1:
            await expect_dead_letters(ctx, once, b"lost")
    await settle(ctx, consumer, queue, "nack", delivery)
    await expect_dead_letters(ctx, queue, b"bad")
    await ctx.restart()
    consumer = await consume(ctx, queue, name="consumer after all")
    await consumer.expect_nothing()
    await expect_dead_letters(ctx, queue, b"bad")


@_survives("consumers-of-lasting-sessions", "Q-DURA-09", "Q-SETTLE-18", mutant="restart-forgets-consumer-options")
async def lasting_consumer(ctx: CaseContext) -> None:
    """A consumer whose session lasts goes on after a restart as it had asked, without subscribing again.

    It joined the group workers with a prefetch of two. After each of two restarts it holds two of five messages, and a
    third when it settles one; another consumer of that group gets only what is left. What it leaves it does not get
    after the next restart.
    """
    publisher = await ctx.connect(version=5, name="publisher")
    queue = await _new(ctx, publisher, partitions=1, ordering="none")
    client = await stay(ctx, "client")
    await join(client, queue, group="workers", prefetch="2")
    await client.disconnect()
    for number in range(5):
        await publish_with(publisher, queue, b"%d" % number)
    left = 5
    for restarts in (1, 2):
        await ctx.restart()
        client = await come_back(ctx, client, name=f"client after restart {restarts}")
        held = [await client.expect_publish() for _ in range(2)]
        await client.expect_nothing()
        await settle(ctx, client, queue, "ack", held[0])
        await client.expect_publish()
        left -= 1
    await client.unsubscribe(f"$queue/{queue}")
    await client.barrier()
    await ctx.restart()
    client = await come_back(ctx, client, name="client that has left")
    await client.expect_nothing()
    other = await consume(ctx, queue, name="another consumer")
    found = await deliveries(other, at_least=left)
    ctx.must(len(found) == left, f"another consumer: expected the {left} messages left; seen {len(found)}")


@_survives("lanes-keep-their-places", "Q-PRIO-06", "Q-PRIO-07", "Q-DURA-04", mutant="queue-lanes-begin-anew")
async def lanes(ctx: CaseContext) -> None:
    """Each priority's messages go on where they were: what was settled stays settled, in every lane.

    Of twelve messages in four lanes a consumer of four at a time settles four before each of two restarts. Each message
    is settled once; those of one priority come in their order.
    """
    publisher = await ctx.connect(version=5, name="publisher")
    queue = await _new(ctx, publisher, partitions=1)
    lanes = ("critical", "high", "normal", "background")
    for number in range(3):
        for lane in lanes:
            await publish_with(publisher, queue, f"{lane} {number}".encode(), priority=lane)
    settled: list[str] = []
    for turn in range(3):
        consumer = await consume(ctx, queue, prefetch="2", name=f"consumer {turn}")
        for _ in range(4):
            delivery = await consumer.expect_publish()
            settled.append(delivery.payload.decode())
            await settle(ctx, consumer, queue, "ack", delivery)
        await ctx.restart()
    wanted = sorted(f"{lane} {number}" for lane in lanes for number in range(3))
    ctx.must(sorted(settled) == wanted, f"consumers: expected each message settled once; seen {settled}")
    consumer = await consume(ctx, queue, name="consumer after all")
    await consumer.expect_nothing()


@_survives(
    "transactions-over-two-restarts", "Q-TXN-03", "Q-TXN-05", "Q-TXN-09", mutant="queue-restart-commits-what-is-open"
)
async def transactions(ctx: CaseContext) -> None:
    """What was committed stays committed, and what was aborted aborted, when the broker is killed a second time.

    A transaction with a message and an acknowledgement is committed, one with both is open, when the broker is killed.
    After each of two restarts a new group gets the committed message alone, and the old one what the open transaction
    had acknowledged.
    """
    publisher = await ctx.connect(version=5, name="publisher")
    queue = await _new(ctx, publisher, partitions=1, durability="fsync")
    for payload in (b"1", b"2"):
        await publish_with(publisher, queue, payload)
    consumer = await consume(ctx, queue)
    held = [await consumer.expect_publish(payload=payload) for payload in (b"1", b"2")]
    for delivery, ends in zip(held, (True, False), strict=True):
        producer = await Producer.make(ctx, ctx.client_id())
        transaction = await producer.begin()
        await producer.put(queue, b"committed" if ends else b"open", transaction)
        puback = await producer.ack(consumer, queue, delivery, transaction)
        ctx.must(puback.reason_code < 0x80, f"consumer: expected the acknowledgement to be taken; seen {puback}")
        if ends:
            await producer.commit(transaction)
    for restarts in (1, 2):
        await ctx.restart()
        consumer = await consume(ctx, queue, name=f"consumer after {restarts} restarts")
        seen = [delivery.payload for delivery in await deliveries(consumer, at_least=2)]
        ctx.must(seen == [b"2", b"committed"], f"consumer: expected what was not settled; seen {seen}")
        fresh = await consume(ctx, queue, group=f"new{restarts}", name=f"new group after {restarts} restarts")
        seen = [delivery.payload for delivery in await deliveries(fresh, at_least=3)]
        ctx.must(seen == [b"1", b"2", b"committed"], f"new group: expected what was committed; seen {seen}")


_FAR = 66_000


@_survives(
    "tens-of-thousands-past-one-held",
    "Q-DURA-04",
    "Q-DURA-05",
    "Q-SETTLE-01",
    mutant="queue-cursors-of-two-bytes",
    near_miss="",
    limit_s=60.0,
)
async def far(ctx: CaseContext) -> None:
    """One message that is held keeps its place, and nothing else comes again, however far the group has gone past it.

    66 000 messages of a partition are settled, by ranges, while the first one is held, and so are two others. After a
    restart those that were held come, and then what is published.
    """
    publisher = await ctx.connect(version=5, name="publisher")
    limits = {"max_depth": 200_000, "max_in_flight": 20_000, "delivery_timeout_s": 600}
    queue = await _new(ctx, publisher, partitions=1, ordering="none", **limits)
    bulk = BulkClient(ctx, "bulk publisher")
    await bulk.connect()
    await bulk.publish(queue, _FAR)
    bulk.close()
    held = frozenset({(0, 0), (0, 4_711), (0, _FAR - 100)})
    consumer = BulkClient(ctx, "bulk consumer")
    await consumer.connect()
    await consumer.join(queue, "workers")
    await consumer.settle_but(queue, "workers", _FAR, held)
    await ctx.restart()
    consumer.close()
    publisher = await ctx.connect(version=5, name="publisher again")
    await publish_with(publisher, queue, b"next", partition="0")
    after = await consume(ctx, queue, name="consumer after the restart")
    found: list[tuple[int, int]] = []
    while len(found) <= len(held):
        delivery = await after.expect_publish()
        found.append((int(property_of(ctx, delivery, "partition")), int(property_of(ctx, delivery, "offset"))))
    await after.expect_nothing()
    wanted = sorted([*held, (0, _FAR)])
    ctx.must(sorted(found) == wanted, f"consumer: expected {wanted}; seen {sorted(found)}")

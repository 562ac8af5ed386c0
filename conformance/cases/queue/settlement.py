"""Settlements that say more: many at once, delays, extensions, receipts, and the limits on what is unsettled."""

from __future__ import annotations

import re

from assay.conformance.case import CaseContext, case
from assay.conformance.cases.mqtt5.support import shares
from assay.conformance.cases.queue.support import (
    consume,
    count_of,
    deliveries,
    join,
    new_queue,
    property_of,
    publish,
    publish_with,
    refused_settlement,
    settle,
)
from assay.conformance.connection import Connection
from assay.conformance.wire import Properties, Puback, Publish

_RECEIPTS = {
    "queues": {"defaults": {"receipts": True, "delivery_timeout_s": 10, "retry": {"initial_backoff_s": 1}}},
}
_PARTITIONS_TRIED = 21
"""Twice as many as a queue has by default, and one."""


async def _send(consumer: Connection, queue: str, verb: str, *named: tuple[str, str]) -> Puback:
    """A settlement with exactly these user properties; returns the PUBACK, whatever it says."""
    packet_id = consumer.next_packet_id()
    properties = Properties(user_property=named)
    consumer.send(Publish(topic=f"$queue/{queue}/${verb}", qos=1, packet_id=packet_id, properties=properties))
    return await consumer.expect(Puback, skipping=(Publish,))


async def _filled(ctx: CaseContext, count: int) -> tuple[str, Connection, list[Publish]]:
    """A queue of one partition, its consumer, and what that was delivered: ``count`` messages."""
    queue = new_queue(ctx)
    publisher = await ctx.connect(version=5, name="publisher")
    await publish(publisher, queue, *(str(number).encode() for number in range(count)))
    consumer = await consume(ctx, queue)
    return queue, consumer, [await consumer.expect_publish() for _ in range(count)]


@case(
    "queue/settle/many-by-offsets",
    clauses=("Q-SETTLE-01",),
    requires=("queues",),
    mutant="queue-batch-settles-the-first",
    near_miss="queue-one-batch-per-message",
)
async def by_offsets(ctx: CaseContext) -> None:
    """One $ack settles all offsets that it names, single ones and ranges.

    Of six messages of one partition, offsets 1, 3, 4 and 5 are acknowledged by ``1,3-5`` (counted from the first). The
    next consumer of the group gets the other two only.
    """
    queue, first, got = await _filled(ctx, 6)
    base = int(property_of(ctx, got[0], "offset"))
    named = (
        ("group-id", property_of(ctx, got[0], "group-id")),
        ("partition", property_of(ctx, got[0], "partition")),
        ("offsets", f"{base + 1},{base + 3}-{base + 5}"),
    )
    puback = await _send(first, queue, "ack", *named)
    ctx.must(puback.reason_code < 0x80, f"first: expected the settlement to be accepted; seen {puback}")
    await first.disconnect()
    second = await consume(ctx, queue, name="second")
    payloads = [packet.payload for packet in await deliveries(second, at_least=2)]
    ctx.must(payloads == [b"0", b"2"], f"second: expected messages 0 and 2; seen {payloads}")


@case(
    "queue/settle/many-by-message-id",
    clauses=("Q-SETTLE-01",),
    requires=("queues",),
    mutant="queue-batch-settles-the-first",
    kills=("queue-batch-settles-in-one-group",),
)
async def by_message_ids(ctx: CaseContext) -> None:
    """One $ack settles every message whose message-id it names.

    Of four messages three are named in one settlement. The next consumer of the group gets the fourth only. A consumer
    in two groups, each of which has other messages, names one of each in one settlement: neither group has anything
    left.
    """
    queue, first, got = await _filled(ctx, 4)
    named = [("message-id", property_of(ctx, delivery, "message-id")) for delivery in got[:3]]
    puback = await _send(first, queue, "ack", ("group-id", property_of(ctx, got[0], "group-id")), *named)
    ctx.must(puback.reason_code < 0x80, f"first: expected the settlement to be accepted; seen {puback}")
    await first.disconnect()
    second = await consume(ctx, queue, name="second")
    await second.expect_publish(payload=b"3")
    await second.expect_nothing()
    queue = new_queue(ctx)
    both = await consume(ctx, queue, group="eu", name="in two groups", path="eu/#")
    await join(both, queue, group="us", path="us/#")
    for place in ("eu", "us"):
        await publish_with(second, queue, place.encode(), path=f"{place}/1")
    named = [
        ("message-id", property_of(ctx, delivery, "message-id")) for delivery in await deliveries(both, at_least=2)
    ]
    puback = await _send(both, queue, "ack", *named)
    ctx.must(puback.reason_code < 0x80, f"in two groups: expected the settlement to be accepted; seen {puback}")
    await both.disconnect()
    for group in ("eu", "us"):
        after = await consume(ctx, queue, group=group, name=f"next of {group}", path=f"{group}/#")
        await after.expect_nothing()


@case(
    "queue/settle/many-tell-what-was-gone",
    clauses=("Q-SETTLE-02",),
    requires=("queues",),
    mutant="queue-batch-hides-what-was-gone",
    near_miss="queue-one-batch-per-message",
)
async def partly_gone(ctx: CaseContext) -> None:
    """A settlement of several deliveries of which some are not pending fails, says which, and settles the others.

    Message 1 of three is acknowledged, then all three at once. The PUBACK has a failure code and a user property
    not-pending that names its offset and no other; the next consumer gets nothing, so 0 and 2 are settled.
    """
    queue, first, got = await _filled(ctx, 3)
    await settle(ctx, first, queue, "ack", got[1])
    offsets = [int(property_of(ctx, delivery, "offset")) for delivery in got]
    partition = property_of(ctx, got[0], "partition")
    named = (
        ("group-id", property_of(ctx, got[0], "group-id")),
        ("partition", partition),
        ("offsets", f"{offsets[0]}-{offsets[2]}"),
    )
    puback = await _send(first, queue, "ack", *named)
    ctx.must(puback.reason_code >= 0x80, f"first: expected a failure code; seen {puback}")
    gone = [value for name, value in puback.properties.user_property if name == "not-pending"]
    wanted = [f"{queue}:{partition}:{offsets[1]}"]
    ctx.must(gone == wanted, f"first: expected not-pending {wanted}; seen {gone}")
    await first.disconnect()
    second = await consume(ctx, queue, name="second")
    await second.expect_nothing()


@case(
    "queue/settle/many-are-bounded",
    clauses=("Q-SETTLE-03",),
    requires=("queues",),
    mutant="queue-batch-is-cut-off",
)
async def bounded(ctx: CaseContext) -> None:
    """A settlement that names too many deliveries, or offsets that end before they begin, settles nothing.

    ``0-999999999``, ``5-2`` and ``1,,2`` get a failure code each, and everything comes again for the next consumer.
    """
    queue, first, got = await _filled(ctx, 3)
    for offsets in ("0-999999999", "5-2", "1,,2"):
        named = (("partition", property_of(ctx, got[0], "partition")), ("offsets", offsets))
        puback = await _send(first, queue, "ack", *named)
        ctx.must(puback.reason_code >= 0x80, f"first: expected {offsets} to be refused; seen {puback}")
    await first.disconnect()
    second = await consume(ctx, queue, name="second")
    payloads = [packet.payload for packet in await deliveries(second, at_least=3)]
    ctx.must(payloads == [b"0", b"1", b"2"], f"second: expected all three again; seen {payloads}")


@case(
    "queue/settle/nack-waits-as-told",
    clauses=("Q-SETTLE-04",),
    requires=("queues", "clock"),
    mutant="queue-nack-delay-ignored",
    kills=("queue-nack-delay-is-of-the-first",),
    near_miss="queue-retry-waits-longer",
)
async def nack_delay(ctx: CaseContext) -> None:
    """A message refused with a delay comes again when that is over, and not before.

    $nack with delay 90s, of one message and of two together: nothing after 89 s; after 91 s all three are back, with
    delivery-count 2.
    """
    queue, consumer, got = await _filled(ctx, 3)
    due = ctx.due_in(90)
    await settle(ctx, consumer, queue, "nack", got[2], delay="1m30s")
    # Nothing that waits is before the one that is named last, and would hold it back.
    both = [("message-id", property_of(ctx, delivery, "message-id")) for delivery in (got[1], got[0])]
    puback = await _send(consumer, queue, "nack", *both, ("group-id", "workers"), ("delay", "1m30s"))
    ctx.must(puback.reason_code < 0x80, f"consumer: expected two deliveries to be taken back; seen {puback}")
    await ctx.advance(89)
    await consumer.expect_nothing(before=due)
    await ctx.advance(2)
    again = await deliveries(consumer, at_least=3)
    seen = sorted((delivery.payload, count_of(ctx, delivery)) for delivery in again)
    wanted = [(b"0", 2), (b"1", 2), (b"2", 2)]
    ctx.must(seen == wanted, f"consumer: expected messages and delivery-counts {wanted}; seen {seen}")


@case(
    "queue/settle/nack-delay-survives-restart",
    clauses=("Q-SETTLE-05",),
    requires=("queues", "clock", "restart"),
    mutant="queue-restart-forgets-delays",
    settings={"queues": {"defaults": {"durability": "fsync"}}},
    limit_s=15.0,
)
async def nack_delay_restart(ctx: CaseContext) -> None:
    """The delay of a refused message goes on over a restart, and its count goes up by one.

    $nack with delay 1h, then kill -9 and restart. The consumer that comes back gets nothing at first, the message with
    delivery-count 2 once the hour is over.
    """
    queue, consumer, got = await _filled(ctx, 1)
    await settle(ctx, consumer, queue, "nack", got[0], delay="1h")
    await ctx.restart()
    again = await consume(ctx, queue, name="again")
    await again.expect_nothing()
    await ctx.advance(3_601)
    delivery = await again.expect_publish(payload=b"0")
    ctx.must(count_of(ctx, delivery) == 2, f"again: expected delivery-count 2; seen {count_of(ctx, delivery)}")


@case(
    "queue/settle/extended-from-now",
    clauses=("Q-SETTLE-06",),
    requires=("queues", "clock"),
    mutant="queue-extends-the-old-deadline",
    kills=("queue-extends-several-by-the-timeout", "queue-extensions-are-never-shorter"),
    near_miss="queue-one-batch-per-message",
)
async def extend(ctx: CaseContext) -> None:
    """$extend gives a delivery a new deadline, counted from now.

    With the timeout of 30 s: 20 s after the delivery it is extended by 25 s. At 40 s it can still be acknowledged by
    its consumer, which proves that it had not timed out; a second one, not acknowledged, is gone at 46 s. So are two
    that were extended together. One that was extended by 5 s is gone at 26 s.
    """
    queue, consumer, got = await _filled(ctx, 5)
    await ctx.advance(20)
    brief = got.pop()
    await settle(ctx, consumer, queue, "extend", brief, extend="5s")
    for delivery in got[:2]:
        await settle(ctx, consumer, queue, "extend", delivery, extend="25s")
    both = [("message-id", property_of(ctx, delivery, "message-id")) for delivery in got[2:]]
    puback = await _send(consumer, queue, "extend", *both, ("group-id", "workers"), ("extend", "25s"))
    ctx.must(puback.reason_code < 0x80, f"consumer: expected two deliveries to be extended; seen {puback}")
    await ctx.advance(6)
    await refused_settlement(ctx, consumer, queue, "ack", brief)
    await ctx.advance(14)
    await settle(ctx, consumer, queue, "ack", got[0])
    await ctx.advance(6)
    for delivery in got[1:]:
        await refused_settlement(ctx, consumer, queue, "ack", delivery)


@case(
    "queue/settle/extending-nothing-is-refused",
    clauses=("Q-SETTLE-07",),
    requires=("queues", "clock"),
    mutant="queue-extends-anything",
)
async def extend_unknown(ctx: CaseContext) -> None:
    """$extend of what is not pending is refused, and the broker goes on (4.5).

    Refused: a delivery that is acknowledged, and one that timed out. The message that timed out is delivered again, and
    that delivery can be extended.
    """
    queue, consumer, got = await _filled(ctx, 2)
    await settle(ctx, consumer, queue, "ack", got[0])
    await refused_settlement(ctx, consumer, queue, "extend", got[0], extend="10s")
    await ctx.advance(31)
    await refused_settlement(ctx, consumer, queue, "extend", got[1], extend="10s")
    await ctx.advance(6)
    again = await consumer.expect_publish(payload=b"1")
    await settle(ctx, consumer, queue, "extend", again, extend="10s")


@case(
    "queue/settle/bad-options-are-refused",
    clauses=("Q-SETTLE-08",),
    requires=("queues",),
    mutant="queue-settles-despite-bad-options",
    kills=("queue-claims-by-the-last-of-two", "queue-one-offset-hides-the-others"),
)
async def bad_options(ctx: CaseContext) -> None:
    """A settlement with an option that cannot be honoured settles nothing.

    $nack with delay soon, with delay -1s and with a delay of a thousand hours, $ack with a delay, and $extend by 13h
    are refused, and so is what is there twice: the offset of $ack and $commit, the min-idle of $claim, and an offset
    beside offsets. After them the delivery is still there to be acknowledged.
    """
    queue, consumer, got = await _filled(ctx, 1)
    for verb, name, value in (
        ("nack", "delay", "soon"),
        ("nack", "delay", "-1s"),
        ("nack", "delay", "1000h"),
        ("ack", "delay", "1s"),
        ("extend", "extend", "13h"),
    ):
        await refused_settlement(ctx, consumer, queue, verb, got[0], **{name: value})
    place = [(name, property_of(ctx, got[0], name)) for name in ("group-id", "partition")]
    offset = int(property_of(ctx, got[0], "offset"))
    for verb, name, values in (
        ("ack", "offset", (offset, offset)),
        ("commit", "offset", (offset, offset + 1)),
        ("claim", "min-idle", ("1h", "0")),
    ):
        puback = await _send(consumer, queue, verb, *place, *((name, str(value)) for value in values))
        ctx.must(puback.reason_code >= 0x80, f"consumer: expected ${verb} with two of {name} refused; seen {puback}")
    puback = await _send(consumer, queue, "ack", *place, ("offset", str(offset)), ("offsets", str(offset)))
    ctx.must(puback.reason_code >= 0x80, f"consumer: expected an offset beside offsets to be refused; seen {puback}")
    await consumer.expect_nothing()
    await settle(ctx, consumer, queue, "ack", got[0])


@case(
    "queue/deliver/says-that-it-is-a-repeat",
    clauses=("Q-SETTLE-09",),
    requires=("queues",),
    mutant="queue-never-says-redelivered",
    near_miss="queue-one-batch-per-message",
)
async def redelivered(ctx: CaseContext) -> None:
    """Every delivery after the first says redelivered true, and the first does not (R18); k refusals make k + 1 (R2).

    A message is refused three times and then left behind by its consumer: the counts are 1, 2, 3, 4 and 5.
    """
    queue, consumer, got = await _filled(ctx, 1)
    delivery = got[0]
    for count in range(1, 6):
        flag = dict(delivery.properties.user_property).get("redelivered")
        ctx.must(flag == (None if count == 1 else "true"), f"delivery {count}: seen redelivered {flag}")
        ctx.must(count_of(ctx, delivery) == count, f"expected delivery-count {count}; seen {count_of(ctx, delivery)}")
        if count < 4:
            await settle(ctx, consumer, queue, "nack", delivery)
        elif count == 4:
            await consumer.disconnect()
            consumer = await consume(ctx, queue, name="second")
        if count < 5:
            delivery = await consumer.expect_publish(payload=b"0")


@case(
    "queue/receipt/settles-by-itself",
    clauses=("Q-SETTLE-10",),
    requires=("queues", "clock"),
    mutant="queue-receipts-cut-at-the-first-colon",
    settings=_RECEIPTS,
)
async def receipt(ctx: CaseContext) -> None:
    """A receipt names its delivery alone, whoever shows it, also when the queue's name has colons (4.5).

    The delivery carries a receipt <queue>:<partition>:<offset>:1:<16 hex digits>. Another client acknowledges by it;
    a second time it is refused, and the message does not come again.
    """
    queue = f"{new_queue(ctx)}:with:colons"
    publisher = await ctx.connect(version=5, name="publisher")
    await publish(publisher, queue, b"message")
    consumer = await consume(ctx, queue)
    delivery = await consumer.expect_publish(payload=b"message")
    text = property_of(ctx, delivery, "receipt")
    place = f"{property_of(ctx, delivery, 'partition')}:{property_of(ctx, delivery, 'offset')}"
    wanted = re.escape(f"{queue}:{place}:1:") + "[0-9a-f]{16}"
    ctx.must(re.fullmatch(wanted, text) is not None, f"consumer: expected a receipt like {wanted}; seen {text}")
    puback = await _send(publisher, queue, "ack", ("receipt", text))
    ctx.must(puback.reason_code < 0x80, f"publisher: expected the receipt to settle; seen {puback}")
    puback = await _send(publisher, queue, "ack", ("receipt", text))
    ctx.must(puback.reason_code >= 0x80, f"publisher: expected the used receipt to be refused; seen {puback}")
    await ctx.advance(60)
    await consumer.expect_nothing()


@case(
    "queue/receipt/goes-stale",
    clauses=("Q-SETTLE-11",),
    requires=("queues", "clock"),
    mutant="queue-stale-receipts-count",
    settings=_RECEIPTS,
)
async def stale_receipt(ctx: CaseContext) -> None:
    """A receipt is of one delivery: once the message is delivered again, the old one settles nothing.

    The message times out and is delivered again. $ack, $nack, $reject and $extend with the first receipt are refused;
    the second delivery is still pending and is acknowledged by its own.
    """
    queue, consumer, got = await _filled(ctx, 1)
    await ctx.advance(10.5)
    await ctx.advance(1.5)
    again = await consumer.expect_publish(payload=b"0")
    old, new = property_of(ctx, got[0], "receipt"), property_of(ctx, again, "receipt")
    for verb in ("ack", "nack", "reject", "extend"):
        puback = await _send(consumer, queue, verb, ("receipt", old))
        ctx.must(puback.reason_code >= 0x80, f"consumer: expected the stale receipt to be refused; seen {puback}")
    puback = await _send(consumer, queue, "ack", ("receipt", new))
    ctx.must(puback.reason_code < 0x80, f"consumer: expected the new receipt to settle; seen {puback}")


@case(
    "queue/receipt/cannot-be-guessed",
    clauses=("Q-SETTLE-12",),
    requires=("queues", "clock"),
    mutant="queue-receipts-without-nonce",
    kills=("queue-receipts-in-a-circle",),
    settings=_RECEIPTS,
)
async def guessed_receipt(ctx: CaseContext) -> None:
    """A receipt with another nonce settles nothing, and two deliveries never share one.

    The nonces of two deliveries differ. A receipt with the nonce of the other delivery is refused, and one with another
    partition, which the queue has or has not.
    """
    queue, consumer, got = await _filled(ctx, 2)
    one, other = (property_of(ctx, delivery, "receipt").rsplit(":", 1) for delivery in got)
    ctx.must(one[1] != other[1], f"consumer: expected nonces that differ; seen {one[1]} twice")
    puback = await _send(consumer, queue, "ack", ("receipt", f"{one[0]}:{other[1]}"))
    ctx.must(puback.reason_code >= 0x80, f"consumer: expected the made-up receipt to be refused; seen {puback}")
    name, own, offset, count = one[0].rsplit(":", 3)
    for partition in sorted({str(number) for number in range(_PARTITIONS_TRIED)} - {own}, key=int):
        puback = await _send(consumer, queue, "ack", ("receipt", f"{name}:{partition}:{offset}:{count}:{one[1]}"))
        ctx.must(puback.reason_code >= 0x80, f"consumer: expected partition {partition} to be refused; seen {puback}")
    await settle(ctx, consumer, queue, "ack", got[0])


@case(
    "queue/limit/of-one-consumer",
    clauses=("Q-SETTLE-13",),
    requires=("queues", "clock"),
    mutant="queue-consumer-limit-ignored",
    kills=("queue-claims-beyond-what-one-may-hold",),
    near_miss="queue-one-batch-per-message",
    settings={"queues": {"defaults": {"max_in_flight": 3}}},
)
async def consumer_limit(ctx: CaseContext) -> None:
    """A consumer holds no more unsettled deliveries than allowed, and gets the next when it settles one.

    With a limit of 3, a consumer gets three of eight messages. For two acknowledgements it gets two more. Another one
    that holds the rest gets nothing by claiming one of the first.
    """
    queue = new_queue(ctx)
    publisher = await ctx.connect(version=5, name="publisher")
    await publish(publisher, queue, *(str(number).encode() for number in range(8)))
    consumer = await consume(ctx, queue)
    got = await deliveries(consumer, at_least=3)
    ctx.must(len(got) == 3, f"consumer: expected 3 deliveries; seen {len(got)}")
    for delivery in got[:2]:
        await settle(ctx, consumer, queue, "ack", delivery)
    for payload in (b"3", b"4"):
        await consumer.expect_publish(payload=payload)
    await consumer.expect_nothing()
    claimant = await consume(ctx, queue, name="claimant")
    for payload in (b"5", b"6", b"7"):
        await claimant.expect_publish(payload=payload)
    await _send(
        claimant, queue, "claim", *((name, property_of(ctx, got[2], name)) for name in ("message-id", "group-id"))
    )
    await claimant.expect_nothing()


@case(
    "queue/limit/as-the-consumer-asks",
    clauses=("Q-SETTLE-18",),
    requires=("queues",),
    mutant="queue-prefetch-ignored",
    near_miss="queue-one-batch-per-message",
)
async def prefetch(ctx: CaseContext) -> None:
    """A consumer that asks for a prefetch holds no more unsettled deliveries than that, others as many as allowed.

    One group joins with prefetch 2 and gets two of five messages, then one more for an $ack. Another group gets all.
    """
    queue = new_queue(ctx)
    publisher = await ctx.connect(version=5, name="publisher")
    await publish(publisher, queue, *(str(number).encode() for number in range(5)))
    consumer = await consume(ctx, queue, prefetch="2")
    got = await deliveries(consumer, at_least=2)
    ctx.must(len(got) == 2, f"consumer: expected 2 deliveries; seen {len(got)}")
    await settle(ctx, consumer, queue, "ack", got[0])
    await consumer.expect_publish(payload=b"2")
    await consumer.expect_nothing()
    other = await consume(ctx, queue, group="other", name="other")
    ctx.must(len(await deliveries(other, at_least=5)) == 5, "other: expected all five deliveries")


@case(
    "queue/limit/of-a-group",
    clauses=("Q-SETTLE-14",),
    requires=("queues", "clock"),
    mutant="queue-group-limit-ignored",
    settings={"queues": {"defaults": {"group": {"max_in_flight": 4}, "ordering": "none"}}},
)
async def group_limit(ctx: CaseContext) -> None:
    """The consumers of a group together hold no more than the group may, and other groups have their own limit.

    With a limit of 4, two consumers of one group hold four of nine messages, and a consumer of another group four.
    """
    queue = new_queue(ctx)
    pair = [await consume(ctx, queue, group="pair", name=f"pair {number}") for number in (1, 2)]
    other = await consume(ctx, queue, group="other", name="other")
    publisher = await ctx.connect(version=5, name="publisher")
    await publish(publisher, queue, *(str(number).encode() for number in range(9)))
    held = await shares(pair, 4)
    ctx.must(sum(map(len, held)) == 4, f"pair: expected 4 deliveries; seen {sum(map(len, held))}")
    ctx.must(len(await deliveries(other, at_least=4)) == 4, "other: expected 4 deliveries")
    await settle(ctx, pair[0], queue, "ack", held[0][0])
    more = [delivery for share in await shares(pair, 1) for delivery in share]
    ctx.must(len(more) == 1, f"pair: expected one more delivery; seen {len(more)}")


@case(
    "queue/limit/of-what-is-pending",
    clauses=("Q-SETTLE-15",),
    requires=("queues", "clock"),
    mutant="queue-pending-unbounded",
    settings={"queues": {"defaults": {"group": {"max_pending": 5}}}},
)
async def pending_limit(ctx: CaseContext) -> None:
    """A group that settles nothing gets no new messages beyond its bound, and goes on after acks (F24).

    With a bound of 5, a consumer gets five of nine messages. It leaves; the next one gets the same five, and for two
    acknowledgements two new ones.
    """
    queue = new_queue(ctx)
    publisher = await ctx.connect(version=5, name="publisher")
    await publish(publisher, queue, *(str(number).encode() for number in range(9)))
    first = await consume(ctx, queue, name="first")
    ctx.must(len(await deliveries(first, at_least=5)) == 5, "first: expected 5 deliveries")
    await first.disconnect()
    second = await consume(ctx, queue, name="second")
    got = await deliveries(second, at_least=5)
    payloads = [delivery.payload for delivery in got]
    ctx.must(payloads == [b"0", b"1", b"2", b"3", b"4"], f"second: expected the same five; seen {payloads}")
    for delivery in got[:2]:
        await settle(ctx, second, queue, "ack", delivery)
    for payload in (b"5", b"6"):
        await second.expect_publish(payload=payload)
    await second.expect_nothing()


@case(
    "queue/deliver/shares-fairly",
    clauses=("Q-SETTLE-16",),
    requires=("queues", "clock"),
    mutant="queue-first-consumer-takes-all",
    near_miss="queue-turns-begin-with-the-last",
    settings={"queues": {"defaults": {"ordering": "none", "partitions": 2}}},
)
async def fair(ctx: CaseContext) -> None:
    """Where no order counts, idle consumers get equal shares of a burst (F28, R17).

    Four consumers join a queue with 22 messages after one that holds all of them has gone: each gets 5 or 6.
    """
    queue = new_queue(ctx)
    publisher = await ctx.connect(version=5, name="publisher")
    await publish(publisher, queue, *(str(number).encode() for number in range(22)))
    holder = await consume(ctx, queue, name="holder")
    ctx.must(len(await deliveries(holder, at_least=22)) == 22, "holder: expected 22 deliveries")
    consumers = [await consume(ctx, queue, name=f"consumer {number}") for number in range(4)]
    await holder.disconnect()
    counts = [len(share) for share in await shares(consumers, 22)]
    ctx.must(sorted(counts) == [5, 5, 6, 6], f"consumers: expected shares of 5 and 6; seen {counts}")

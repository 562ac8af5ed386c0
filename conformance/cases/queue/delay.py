"""Delayed messages: when they come, what cancels them, and what a restart keeps."""

from __future__ import annotations

from assay.conformance.case import CaseContext, case
from assay.conformance.cases.queue.delays import (
    MAX_DELAY_MS,
    TICK_S,
    cancel,
    delay_id,
    expect_settled,
    rfc3339,
    settled_payloads,
    time_of_broker,
)
from assay.conformance.cases.queue.support import consume, new_queue, publish_with
from assay.conformance.wire import Properties, Puback, Publish

_DURABLE = {"data_dir": "{dir}/data", "queues": {"defaults": {"durability": "fsync"}}}
_SELDOM_SYNCED = {
    "data_dir": "{dir}/data",
    "queues": {"defaults": {"durability": "interval"}, "sync_interval_s": 600.0},
}


@case(
    "queue/delay/comes-when-it-is-due",
    clauses=("Q-DELAY-01", "Q-DELAY-02", "Q-DELAY-07"),
    requires=("queues", "clock"),
    mutant="queue-delay-ignored",
    near_miss="queue-due-read-singly",
)
async def due(ctx: CaseContext) -> None:
    """A delayed message comes when its time has come, not before, and at the latest a tick later.

    A message with delay 30s is confirmed with a delay-id. 29.5 s later nothing has come, after 30.01 s it has, once.
    """
    queue = new_queue(ctx)
    consumer = await consume(ctx, queue)
    publisher = await ctx.connect(version=5, name="publisher")
    due = ctx.due_in(30)
    delay_id(ctx, await publish_with(publisher, queue, b"later", delay="30s"))
    await ctx.advance(29.0)
    await consumer.expect_nothing(before=due)
    await ctx.advance(1.0 + TICK_S)
    seen = await settled_payloads(ctx, consumer, queue, at_least=1)
    ctx.must(seen == [b"later"], f"consumer: expected the message once it is due; seen {seen}")
    await ctx.advance(60)
    await consumer.expect_nothing()


@case(
    "queue/delay/every-length-in-time",
    clauses=("Q-DELAY-02",),
    requires=("queues", "clock"),
    mutant="queue-short-delay-a-revolution-late",
    kills=("queue-round-moment-is-lost",),
    near_miss="queue-due-read-singly",
    limit_s=20.0,
)
async def every_length(ctx: CaseContext) -> None:
    """Delays below, at and above the ticks and revolutions of a timing wheel all fire in time (G2).

    1, 9, 10 and 11 ms, and one millisecond around 2.56 s, 163.84 s, 10 485.76 s, and the longest there is; and moments
    of the broker's clock that are one of these spans behind a whole number of a longer one. Each message comes once the
    clock is a tick behind its time, and the long ones do not come before.
    """
    queue = new_queue(ctx)
    consumer = await consume(ctx, queue)
    publisher = await ctx.connect(version=5, name="publisher")
    for span_ms in (10, 2_560, 163_840, 10_485_760, MAX_DELAY_MS):
        wanted = [span_ms - 1, span_ms, *([] if span_ms == MAX_DELAY_MS else [span_ms + 1]), *([1] * (span_ms == 10))]
        for delay_ms in wanted:
            await publish_with(publisher, queue, b"%d" % delay_ms, partition_key="one", delay=f"{delay_ms}ms")
        if span_ms > 1_000_000:
            await ctx.advance(span_ms / 1000 - 60)
            await consumer.expect_nothing()
            await ctx.advance(60)
        else:
            await ctx.advance(span_ms / 1000)
        await ctx.advance(2 * TICK_S)
        seen = await settled_payloads(ctx, consumer, queue, at_least=len(wanted))
        # Within a tick they may come in any order.
        expected = sorted(wanted)
        ctx.must(
            sorted(int(payload) for payload in seen) == expected,
            f"consumer: expected the delays {expected} ms to have fired; seen {seen}",
        )
    for narrow_ms, wide_ms in ((2_560, 163_840), (2_560, 10_485_760), (163_840, 10_485_760)):
        now_ms = await time_of_broker(ctx, publisher, queue)
        moment_ms = (now_ms // wide_ms + 2) * wide_ms + narrow_ms
        await publish_with(publisher, queue, b"round", partition_key="one", deliver_at=str(moment_ms))
        await ctx.advance((moment_ms - now_ms) / 1000 + 2 * TICK_S)
        seen = await settled_payloads(ctx, consumer, queue, at_least=1)
        ctx.must(seen == [b"round"], f"consumer: expected the one of {moment_ms} ms to have fired; seen {seen}")


@case(
    "queue/delay/at-a-given-time",
    clauses=("Q-DELAY-03",),
    requires=("queues", "clock"),
    mutant="queue-deliver-at-without-zone",
)
async def at_a_time(ctx: CaseContext) -> None:
    """deliver-at names the time, as RFC 3339 with any zone or as Unix milliseconds.

    The broker's time is learned from when a message with a delay would fire. Two messages for the same moment, one in
    each notation, come then and not before.
    """
    queue = new_queue(ctx)
    consumer = await consume(ctx, queue)
    publisher = await ctx.connect(version=5, name="publisher")
    now_ms = await time_of_broker(ctx, publisher, queue)
    moment_ms = now_ms - now_ms % 1000 + 61_000
    await publish_with(publisher, queue, b"milliseconds", deliver_at=str(moment_ms))
    await publish_with(publisher, queue, b"zone", deliver_at=rfc3339(moment_ms // 1000, zone_hours=5))
    await ctx.advance(50)
    await consumer.expect_nothing()
    await ctx.advance(12)
    seen = sorted(await settled_payloads(ctx, consumer, queue, at_least=2))
    ctx.must(seen == [b"milliseconds", b"zone"], f"consumer: expected both at their time; seen {seen}")


@case(
    "queue/delay/past-means-at-once",
    clauses=("Q-DELAY-04",),
    requires=("queues",),
    mutant="queue-past-waits",
    near_miss="queue-one-batch-per-message",
)
async def past(ctx: CaseContext) -> None:
    """A delay of zero and a time that is past mean at once.

    Delay 0s, deliver-at in 2001 and deliver-at 1: all three come without waiting.
    """
    queue = new_queue(ctx)
    consumer = await consume(ctx, queue)
    publisher = await ctx.connect(version=5, name="publisher")
    await publish_with(publisher, queue, b"1", partition_key="one", delay="0s")
    await publish_with(publisher, queue, b"2", partition_key="one", deliver_at="2001-01-01T00:00:00Z")
    await publish_with(publisher, queue, b"3", partition_key="one", deliver_at="1")
    for payload in (b"1", b"2", b"3"):
        await consumer.expect_publish(payload=payload)


@case(
    "queue/delay/too-long-is-refused",
    clauses=("Q-DELAY-05",),
    requires=("queues", "clock"),
    mutant="queue-long-delay-cut",
)
async def too_long(ctx: CaseContext) -> None:
    """A delay longer than the broker can keep is refused, not shortened.

    One millisecond over 671 088 640, 200 hours, and a deliver-at in the year 2200 are refused; nothing ever comes.
    """
    queue = new_queue(ctx)
    consumer = await consume(ctx, queue)
    publisher = await ctx.connect(version=5, name="publisher")
    options = ({"delay": f"{MAX_DELAY_MS + 1}ms"}, {"delay": "200h"}, {"deliver_at": "2200-01-01T00:00:00Z"})
    for option in options:
        puback = await publish_with(publisher, queue, b"never", **option)
        ctx.must(puback.reason_code >= 0x80, f"publisher: expected {option} to be refused; seen {puback}")
    await ctx.advance(2 * MAX_DELAY_MS / 1000)
    await consumer.expect_nothing()


@case(
    "queue/delay/unreadable-is-refused",
    clauses=("Q-DELAY-06",),
    requires=("queues",),
    mutant="queue-bad-delay-ignored",
)
async def unreadable(ctx: CaseContext) -> None:
    """A delay that cannot be read is refused, never taken for something else.

    Words, a number without a unit, a negative one, a date without a zone, both properties together and one of them
    twice are refused with a failure code. A consumer gets the proper message only.
    """
    queue = new_queue(ctx)
    consumer = await consume(ctx, queue)
    publisher = await ctx.connect(version=5, name="publisher")
    bad: tuple[tuple[tuple[str, str], ...], ...] = (
        (("delay", "soon"),),
        (("delay", "5"),),
        (("delay", "-5s"),),
        (("delay", ""),),
        (("deliver-at", "2026-01-31T12:00:00"),),
        (("deliver-at", "tomorrow"),),
        (("delay", "0s"), ("deliver-at", "1")),
        (("delay", "0s"), ("delay", "0s")),
    )
    for pairs in bad:
        packet_id = publisher.next_packet_id()
        properties = Properties(user_property=pairs)
        packet = Publish(topic=f"$queue/{queue}", payload=b"bad", qos=1, packet_id=packet_id, properties=properties)
        publisher.send(packet)
        puback = await publisher.expect(Puback)
        ctx.must(puback.reason_code >= 0x80, f"publisher: expected {pairs} to be refused; seen {puback}")
    await publish_with(publisher, queue, b"proper")
    await consumer.expect_publish(payload=b"proper")
    await consumer.expect_nothing()


@case(
    "queue/delay/survives-a-kill",
    clauses=("Q-DELAY-07", "Q-DELAY-08"),
    requires=("queues", "clock"),
    mutant="queue-delays-forgotten",
    near_miss="queue-due-read-singly",
    settings=_DURABLE,
    limit_s=20.0,
)
async def survives(ctx: CaseContext) -> None:
    """Delayed messages survive kill -9 of the broker, and fire at the time that was asked for.

    One for 60 s, one for 600 s. The broker is killed, 300 s pass: the first comes at once, the second 300 s later.
    """
    queue = new_queue(ctx)
    publisher = await ctx.connect(version=5, name="publisher")
    first_due, second_due = ctx.due_in(60), ctx.due_in(600)
    for payload, delay in ((b"first", "60s"), (b"second", "600s")):
        delay_id(ctx, await publish_with(publisher, queue, payload, delay=delay))
    await ctx.advance(50)
    await ctx.restart()
    consumer = await consume(ctx, queue)
    await consumer.expect_nothing(before=first_due)
    await ctx.advance(250)
    await expect_settled(ctx, consumer, queue, b"first")
    await consumer.expect_nothing(before=second_due)
    await ctx.advance(290)
    await consumer.expect_nothing(before=second_due)
    await ctx.advance(15)
    await expect_settled(ctx, consumer, queue, b"second")
    await consumer.expect_nothing()


@case(
    "queue/delay/restart-does-not-start-anew",
    clauses=("Q-DELAY-08",),
    requires=("queues", "clock"),
    mutant="queue-delays-start-anew",
    settings=_DURABLE,
    limit_s=20.0,
)
async def not_anew(ctx: CaseContext) -> None:
    """After a restart the time that is left counts, not the whole delay again.

    A delay of 100 s, a kill after 90 s: the message comes when 10 s more have passed.
    """
    queue = new_queue(ctx)
    publisher = await ctx.connect(version=5, name="publisher")
    delay_id(ctx, await publish_with(publisher, queue, b"message", delay="100s"))
    await ctx.advance(90)
    await ctx.restart()
    consumer = await consume(ctx, queue)
    await ctx.advance(10 + TICK_S)
    await expect_settled(ctx, consumer, queue, b"message")
    await consumer.expect_nothing()


@case(
    "queue/delay/cancelled-never-comes",
    clauses=("Q-DELAY-09", "Q-DELAY-10"),
    requires=("queues", "clock"),
    mutant="queue-cancel-only-says-so",
    near_miss="queue-due-read-singly",
)
async def cancelled(ctx: CaseContext) -> None:
    """A delayed message that was cancelled never comes, and only it (G1).

    Two of three messages with the same time are cancelled. When it comes, the third is delivered. Cancelling any of
    them again is refused, and so is an id that never was.
    """
    queue = new_queue(ctx)
    consumer = await consume(ctx, queue)
    publisher = await ctx.connect(version=5, name="publisher")
    names = [
        delay_id(ctx, await publish_with(publisher, queue, payload, delay="30s")) for payload in (b"1", b"2", b"3")
    ]
    for name in (names[0], names[2]):
        puback = await cancel(publisher, queue, name)
        ctx.must(puback.reason_code < 0x80, f"publisher: expected the cancel to be accepted; seen {puback}")
    await ctx.advance(60)
    await expect_settled(ctx, consumer, queue, b"2")
    await consumer.expect_nothing()
    for name in (*names, names[0].replace("0", "7"), "nonsense"):
        puback = await cancel(publisher, queue, name)
        ctx.must(puback.reason_code >= 0x80, f"publisher: expected no {name} to be there to cancel; seen {puback}")


@case(
    "queue/delay/cancel-outlives-a-kill",
    clauses=("Q-DELAY-09",),
    requires=("queues", "clock"),
    mutant="queue-cancel-not-persisted",
    settings=_DURABLE,
    limit_s=20.0,
)
async def cancel_survives(ctx: CaseContext) -> None:
    """A confirmed cancel holds after kill -9.

    One of two delayed messages is cancelled; the broker is killed and started again. Only the other one comes.
    """
    queue = new_queue(ctx)
    publisher = await ctx.connect(version=5, name="publisher")
    gone = delay_id(ctx, await publish_with(publisher, queue, b"gone", delay="60s"))
    delay_id(ctx, await publish_with(publisher, queue, b"kept", delay="60s"))
    puback = await cancel(publisher, queue, gone)
    ctx.must(puback.reason_code < 0x80, f"publisher: expected the cancel to be accepted; seen {puback}")
    await ctx.restart()
    consumer = await consume(ctx, queue)
    await ctx.advance(90)
    await expect_settled(ctx, consumer, queue, b"kept")
    await consumer.expect_nothing()


@case(
    "queue/delay/fired-stays-fired",
    clauses=("Q-DELAY-08",),
    requires=("queues", "clock"),
    mutant="queue-fired-not-persisted",
    settings=_DURABLE,
    limit_s=20.0,
)
async def fires_once(ctx: CaseContext) -> None:
    """A message that fired and was acknowledged does not fire again after a kill.

    It is delivered and acknowledged; a few seconds later the broker is killed. Nothing comes afterwards.
    """
    queue = new_queue(ctx)
    consumer = await consume(ctx, queue)
    publisher = await ctx.connect(version=5, name="publisher")
    delay_id(ctx, await publish_with(publisher, queue, b"once", delay="10s"))
    await ctx.advance(10 + TICK_S)
    await expect_settled(ctx, consumer, queue, b"once")
    await consumer.expect_nothing()
    await ctx.advance(5)
    await ctx.restart()
    again = await consume(ctx, queue)
    await ctx.advance(60)
    # What fires anew is only delivered once it is synced: before the confirm of what is published behind it.
    await publish_with(await ctx.connect(version=5, name="marker"), queue, b"marker")
    await again.expect_publish(payload=b"marker")
    await again.expect_nothing()


@case(
    "queue/delay/fires-once-over-a-kill",
    clauses=("Q-DELAY-21",),
    requires=("queues", "clock"),
    mutant="queue-firing-not-noted",
    near_miss="queue-due-read-singly",
    settings=_SELDOM_SYNCED,
    limit_s=20.0,
)
async def fires_once_over_a_kill(ctx: CaseContext) -> None:
    """A message that fired just before kill -9 does not fire again, though nothing was synced in between.

    It is delivered and acknowledged, and the broker is killed at once. Another one, due later, comes all the same.
    """
    queue = new_queue(ctx)
    consumer = await consume(ctx, queue)
    publisher = await ctx.connect(version=5, name="publisher")
    delay_id(ctx, await publish_with(publisher, queue, b"later", delay="50s"))
    delay_id(ctx, await publish_with(publisher, queue, b"once", delay="10s"))
    await ctx.advance(10 + TICK_S)
    await expect_settled(ctx, consumer, queue, b"once")
    await ctx.restart()
    again = await consume(ctx, queue)
    await publish_with(await ctx.connect(version=5, name="marker"), queue, b"marker")
    await expect_settled(ctx, again, queue, b"marker")
    await again.expect_nothing()
    await ctx.advance(50)
    await expect_settled(ctx, again, queue, b"later")
    await again.expect_nothing()

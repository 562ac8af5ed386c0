"""When a failed delivery is tried again, and when it has failed for good."""

from __future__ import annotations

from assay.conformance.case import CaseContext, case
from assay.conformance.cases.queue.support import (
    consume,
    count_of,
    expect_dead_letters,
    new_queue,
    property_of,
    publish,
    settle,
)

_BACKOFF = {
    "queues": {
        "defaults": {
            "delivery_timeout_s": 100,
            "retry": {
                "max_retries": 10,
                "initial_backoff_s": 2,
                "multiplier": 2,
                "max_backoff_s": 8,
                "nack_immediately": False,
            },
        }
    }
}
_TWO_RETRIES = {"queues": {"defaults": {"retry": {"max_retries": 2}}}}


@case(
    "queue/retry/backoff-doubles-up-to-its-cap",
    clauses=("Q-RETRY-01", "Q-RETRY-02", "Q-RETRY-03"),
    requires=("queues", "clock"),
    mutant="queue-backoff-without-cap",
    near_miss="queue-one-batch-per-message",
    settings=_BACKOFF,
    limit_s=10.0,
)
async def backoff(ctx: CaseContext) -> None:
    """The waits are 2, 4, 8 and 8 s for an initial backoff of 2 s, doubled and capped at 8 s; never shorter.

    A message is refused again and again. Half a second before each wait is over nothing comes; when it is over, the
    message does.
    """
    queue = new_queue(ctx)
    publisher = await ctx.connect(version=5, name="publisher")
    await publish(publisher, queue, b"message")
    consumer = await consume(ctx, queue)
    for wait_s in (2.0, 4.0, 8.0, 8.0):
        delivery = await consumer.expect_publish(payload=b"message")
        due = ctx.due_in(wait_s)
        await settle(ctx, consumer, queue, "nack", delivery)
        await ctx.advance(wait_s - 0.5)
        await consumer.expect_nothing(before=due)
        await ctx.advance(0.5)
    await consumer.expect_publish(payload=b"message")


@case(
    "queue/retry/backoff-grows",
    clauses=("Q-RETRY-01", "Q-RETRY-03"),
    requires=("queues", "clock"),
    mutant="queue-backoff-is-constant",
    near_miss="queue-retry-waits-longer",
    settings=_BACKOFF,
)
async def never_early(ctx: CaseContext) -> None:
    """A retry never comes before its backoff is over, also after timeouts.

    A message times out twice. 1.5 s after the first timeout and 3.5 s after the second nothing has come yet; it has
    come after twice the wait.
    """
    queue = new_queue(ctx)
    publisher = await ctx.connect(version=5, name="publisher")
    await publish(publisher, queue, b"message")
    sent = ctx.due_in(0)
    consumer = await consume(ctx, queue)
    for wait_s in (2.0, 4.0):
        await consumer.expect_publish(payload=b"message")
        due = sent + 100 + wait_s
        await ctx.advance(100.5)
        await consumer.expect_nothing(before=due)
        await ctx.advance(wait_s - 1)
        await consumer.expect_nothing(before=due)
        sent = ctx.due_in(wait_s + 1.5)
        await ctx.advance(wait_s + 1.5)
    again = await consumer.expect_publish(payload=b"message")
    ctx.must(count_of(ctx, again) == 3, f"consumer: expected delivery-count 3; seen {count_of(ctx, again)}")


@case(
    "queue/retry/nack-means-at-once",
    clauses=("Q-RETRY-04", "Q-RETRY-08"),
    requires=("queues", "clock"),
    mutant="queue-nacks-wait",
    near_miss="queue-retry-waits-longer",
)
async def at_once(ctx: CaseContext) -> None:
    """With the defaults a refused message, and one whose consumer is gone, is ready at once.

    Without any time passing, the message comes again after $nack, and after the loss of its consumer to another.
    """
    queue = new_queue(ctx)
    publisher = await ctx.connect(version=5, name="publisher")
    await publish(publisher, queue, b"message")
    consumer = await consume(ctx, queue)
    await settle(ctx, consumer, queue, "nack", await consumer.expect_publish(payload=b"message"))
    await consumer.expect_publish(payload=b"message")
    second = await consume(ctx, queue, name="second")
    consumer.abort()
    await second.expect_publish(payload=b"message")


@case(
    "queue/retry/lost-consumers-mean-at-once",
    clauses=("Q-RETRY-08",),
    requires=("queues", "clock"),
    mutant="queue-lost-consumers-wait",
    settings=_BACKOFF,
)
async def lost_at_once(ctx: CaseContext) -> None:
    """What a lost consumer held does not wait for a backoff, even where refused messages do.

    A consumer is lost with a message; the other one of its group gets it although no time passes.
    """
    queue = new_queue(ctx)
    publisher = await ctx.connect(version=5, name="publisher")
    await publish(publisher, queue, b"message")
    consumer = await consume(ctx, queue)
    await consumer.expect_publish(payload=b"message")
    second = await consume(ctx, queue, name="second")
    consumer.abort()
    await second.expect_publish(payload=b"message")


@case(
    "queue/retry/retries-are-counted",
    clauses=("Q-RETRY-05", "Q-RETRY-10"),
    requires=("queues",),
    mutant="queue-retries-for-ever",
    near_miss="queue-one-batch-per-message",
    settings=_TWO_RETRIES,
)
async def exhausted(ctx: CaseContext) -> None:
    """After the last retry a failing message goes to the dead letters, never just away (R20).

    With two retries: the third $nack of a message makes it a dead letter, with a reason and the delivery count 3.
    """
    queue = new_queue(ctx)
    publisher = await ctx.connect(version=5, name="publisher")
    await publish(publisher, queue, b"message")
    consumer = await consume(ctx, queue)
    for _ in range(3):
        delivery = await consumer.expect_publish(payload=b"message")
        await settle(ctx, consumer, queue, "nack", delivery)
    await consumer.expect_nothing()
    [letter] = await expect_dead_letters(ctx, queue, b"message")
    ctx.must(property_of(ctx, letter, "_dlq_reason") != "", "dead letters: expected a reason")
    count = property_of(ctx, letter, "_dlq_delivery_count")
    ctx.must(count == "3", f"dead letters: expected _dlq_delivery_count 3; seen {count}")


@case(
    "queue/retry/timeouts-are-counted",
    clauses=("Q-RETRY-05",),
    requires=("queues", "clock"),
    mutant="queue-dead-letters-early",
    settings=_TWO_RETRIES,
)
async def timeouts_counted(ctx: CaseContext) -> None:
    """Timeouts use retries up like refusals do, and no more than configured are needed.

    With two retries a message is delivered three times and times out each time; only then it is a dead letter.
    """
    queue = new_queue(ctx)
    publisher = await ctx.connect(version=5, name="publisher")
    await publish(publisher, queue, b"message")
    consumer = await consume(ctx, queue)
    for number in (1, 2, 3):
        delivery = await consumer.expect_publish(payload=b"message")
        seen = count_of(ctx, delivery)
        ctx.must(seen == number, f"consumer: expected delivery-count {number}; seen {seen}")
        await ctx.advance(31)
        await ctx.advance(5.0 * 2 ** (number - 1) + 1)
    await consumer.expect_nothing()
    await expect_dead_letters(ctx, queue, b"message")


@case(
    "queue/retry/total-time",
    clauses=("Q-RETRY-06",),
    requires=("queues", "clock"),
    mutant="queue-total-time-ignored",
    near_miss="queue-one-batch-per-message",
    settings={"queues": {"defaults": {"delivery_timeout_s": 1_000, "retry": {"total_timeout_s": 60}}}},
)
async def total_time(ctx: CaseContext) -> None:
    """A message that fails after its total time is a dead letter, however few retries it had.

    With a total time of 60 s: refused at 50 s it comes again; refused at 70 s it does not, and is a dead letter.
    """
    queue = new_queue(ctx)
    publisher = await ctx.connect(version=5, name="publisher")
    await publish(publisher, queue, b"message")
    consumer = await consume(ctx, queue)
    first = await consumer.expect_publish(payload=b"message")
    await ctx.advance(50)
    await settle(ctx, consumer, queue, "nack", first)
    second = await consumer.expect_publish(payload=b"message")
    await ctx.advance(20)
    await settle(ctx, consumer, queue, "nack", second)
    await consumer.expect_nothing()
    await expect_dead_letters(ctx, queue, b"message")


@case(
    "queue/retry/defaults-of-the-goqueue-profile",
    clauses=("Q-RETRY-07",),
    requires=("queues", "clock"),
    mutant="queue-profile-ignored",
    settings={"queues": {"profile": "goqueue"}},
)
async def goqueue(ctx: CaseContext) -> None:
    """In the goqueue profile a refused message waits 1, 2, 4 s, and there are three retries (row 4.5).

    Nothing comes before the wait is over; the fourth refusal makes a dead letter.
    """
    queue = new_queue(ctx)
    publisher = await ctx.connect(version=5, name="publisher")
    await publish(publisher, queue, b"message")
    consumer = await consume(ctx, queue)
    for wait_s in (1.0, 2.0, 4.0):
        delivery = await consumer.expect_publish(payload=b"message")
        due = ctx.due_in(wait_s)
        await settle(ctx, consumer, queue, "nack", delivery)
        await ctx.advance(wait_s - 0.4)
        await consumer.expect_nothing(before=due)
        await ctx.advance(0.4)
    await settle(ctx, consumer, queue, "nack", await consumer.expect_publish(payload=b"message"))
    await consumer.expect_nothing()
    await expect_dead_letters(ctx, queue, b"message")


@case(
    "queue/retry/defaults-of-the-fluxmq-profile",
    clauses=("Q-RETRY-07",),
    requires=("queues", "clock"),
    mutant="queue-dead-letters-early",
    near_miss="queue-one-batch-per-message",
)
async def fluxmq(ctx: CaseContext) -> None:
    """By default there are ten retries, and the first one after a timeout waits 5 s.

    A message times out after 30 s and comes 5 s later; refused nine times more it comes each time, refused once more
    it is a dead letter with the count 11.
    """
    queue = new_queue(ctx)
    publisher = await ctx.connect(version=5, name="publisher")
    await publish(publisher, queue, b"message")
    due = ctx.due_in(35)
    consumer = await consume(ctx, queue)
    await consumer.expect_publish(payload=b"message")
    await ctx.advance(30)
    await ctx.advance(4.5)
    await consumer.expect_nothing(before=due)
    await ctx.advance(0.5)
    for _ in range(10):
        await settle(ctx, consumer, queue, "nack", await consumer.expect_publish(payload=b"message"))
    await consumer.expect_nothing()
    [letter] = await expect_dead_letters(ctx, queue, b"message")
    count = property_of(ctx, letter, "_dlq_delivery_count")
    ctx.must(count == "11", f"dead letters: expected _dlq_delivery_count 11; seen {count}")

"""When a failed delivery is tried again, and when it has failed for good."""

from __future__ import annotations

from assay.conformance.case import CaseContext, case
from assay.conformance.cases.queue.support import (
    consume,
    count_of,
    deliveries,
    expect_dead_letters,
    new_queue,
    property_of,
    publish,
    publish_with,
    settle,
)
from assay.conformance.wire import Subscription

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
_TOTAL_60_S = {"queues": {"defaults": {"delivery_timeout_s": 1_000, "retry": {"total_timeout_s": 60}}}}


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
    settings=_TOTAL_60_S,
)
async def total_time(ctx: CaseContext) -> None:
    """A message that fails after its total time is a dead letter, however few retries it had.

    With a total time of 60 s: refused at 40 s it comes again; refused at 70 s it does not, and is a dead letter.
    """
    queue = new_queue(ctx)
    publisher = await ctx.connect(version=5, name="publisher")
    await publish(publisher, queue, b"message")
    consumer = await consume(ctx, queue)
    first = await consumer.expect_publish(payload=b"message")
    await ctx.advance(40)
    await settle(ctx, consumer, queue, "nack", first)
    second = await consumer.expect_publish(payload=b"message")
    await ctx.advance(30)
    await settle(ctx, consumer, queue, "nack", second)
    await consumer.expect_nothing()
    await expect_dead_letters(ctx, queue, b"message")


@case(
    "queue/retry/total-time-of-first-deliveries",
    clauses=("Q-RETRY-06",),
    requires=("queues", "clock"),
    mutant="queue-age-unknown-at-first",
    near_miss="queue-one-batch-per-message",
    settings=_TOTAL_60_S,
)
async def total_time_at_first(ctx: CaseContext) -> None:
    """The total time also ends with a first delivery, whatever the group wants and however that fails.

    A group of all messages and one of some routing keys hold two messages for 70 s, with a total time of 60 s. One is
    refused, the consumer of the other is lost: none comes again, and each is a dead letter for both groups.
    """
    queue = new_queue(ctx)
    publisher = await ctx.connect(version=5, name="publisher")
    for payload in (b"refused", b"lost"):
        await publish_with(publisher, queue, payload, path="eu/1")
    paths = {"all": "", "some": "eu/#"}
    holders = [await consume(ctx, queue, group=group, name=group, path=path) for group, path in paths.items()]
    # They may stand in two partitions, between which there is no order.
    held = [sorted(await deliveries(holder, at_least=2), key=lambda publish: publish.payload) for holder in holders]
    await ctx.advance(70)
    for holder, (_, refused) in zip(holders, held, strict=True):
        await settle(ctx, holder, queue, "nack", refused)
        await holder.expect_nothing()
        holder.abort()
    others = [await consume(ctx, queue, group=group, name=f"{group} too", path=path) for group, path in paths.items()]
    reader = await ctx.connect(version=5, name="dead letters")
    await reader.subscribe(Subscription(filter=f"$dlq/{queue}", qos=1))
    letters = sorted(letter.payload for letter in await deliveries(reader, at_least=4))
    wanted = [b"lost", b"lost", b"refused", b"refused"]
    ctx.must(letters == wanted, f"dead letters: expected {wanted}; seen {letters}")
    for other in others:
        await other.expect_nothing()


@case(
    "queue/retry/total-time-over-a-restart",
    clauses=("Q-RETRY-06",),
    requires=("queues", "clock", "restart"),
    mutant="queue-age-forgiven-at-a-start",
    kills=("queue-age-begins-with-a-start", "queue-failure-found-is-forgotten"),
    near_miss="queue-one-batch-per-message",
    settings=_TOTAL_60_S,
    limit_s=20.0,
)
async def total_time_over_a_restart(ctx: CaseContext) -> None:
    """The age of a message goes on over kill -9, which fails what consumers hold.

    With a total time of 60 s a consumer holds one message for 70 s and one for 30 s as the broker is killed. The older
    one is a dead letter; the younger one comes once more, and is one when it is refused 40 s later. What the consumer
    of another queue held for 30 s failed with that kill: the next one, 40 s later and before anybody asked, fails it
    no second time.
    """
    queue, untried = new_queue(ctx), new_queue(ctx)
    publisher = await ctx.connect(version=5, name="publisher")
    consumer = await consume(ctx, queue)
    holder = await consume(ctx, untried, name="holder")
    for payload, wait_s in ((b"older", 40.0), (b"younger", 30.0)):
        await publish(publisher, queue, payload)
        await consumer.expect_publish(payload=payload)
        if payload == b"younger":
            await publish(publisher, untried, b"untried")
            await holder.expect_publish(payload=b"untried")
        await ctx.advance(wait_s)
    await ctx.restart()
    consumer = await consume(ctx, queue, name="after the restart")
    again = await consumer.expect_publish(payload=b"younger")
    ctx.must(count_of(ctx, again) == 2, f"consumer: expected delivery-count 2; seen {count_of(ctx, again)}")
    await ctx.advance(40)
    await settle(ctx, consumer, queue, "nack", again)
    await consumer.expect_nothing()
    await expect_dead_letters(ctx, queue, b"older", b"younger")
    await ctx.restart()
    consumer = await consume(ctx, untried, name="of what nobody asked for")
    again = await consumer.expect_publish(payload=b"untried")
    ctx.must(count_of(ctx, again) == 2, f"consumer: expected delivery-count 2; seen {count_of(ctx, again)}")


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

"""Transactions of a channel."""

from __future__ import annotations

import asyncio
import time

from assay.conformance.amqp091.client import Channel
from assay.conformance.amqp091.context import AmqpContext, amqp_case
from assay.conformance.cases.amqp091.extensions import has_expirations


async def _transacted(ctx: AmqpContext) -> Channel:
    channel = await ctx.channel()
    outcome = await channel.outcome("tx.select")
    if outcome in ("connection 540", "connection 503", "channel 540"):
        ctx.unsupported(f"tx.select is answered by {outcome}: class tx is one that a server should have")
    ctx.must(outcome == "ok", f"expected tx.select to be taken; seen {outcome}")
    return channel


@amqp_case(
    "tx/requests-are-answered",
    mutant="amqp-some-answers-missing",
    clauses=("sync.tx.select", "sync.tx.commit", "sync.tx.rollback", "grammar.tx"),
)
async def requests(ctx: AmqpContext) -> None:
    """Select, Commit and Rollback are answered once each.

    Also for transactions in which nothing was done, and a second Select.
    """
    channel = await _transacted(ctx)
    with ctx.own_point():
        for name in ("tx.commit", "tx.rollback", "tx.select", "tx.commit"):
            await channel.call(name)
        await channel.barrier()


@amqp_case(
    "tx/commit-needs-a-select",
    mutant="amqp-commit-without-select",
    clauses=("tx.commit.transacted", "tx.rollback.transacted"),
)
async def needs_select(ctx: AmqpContext) -> None:
    """Commit and Rollback on a channel without transactions end it with 406.

    Each on a channel of its own of one connection that has transactions on a third.
    """
    transacted = await _transacted(ctx)
    for name in ("tx.commit", "tx.rollback"):
        channel = await transacted.connection.channel()
        ctx.allow(f"{name}.transacted", await channel.outcome(name))


@amqp_case("tx/publishes-wait-for-commit", mutant="amqp-publishes-do-not-wait", clauses=("rmq.tx.semantics",))
async def publishes(ctx: AmqpContext) -> None:
    """What was published in a transaction is in its queue after Commit, and not before.

    Another channel sees an empty queue before, and three messages after, in their order.
    """
    channel = await _transacted(ctx)
    other = await channel.connection.channel()
    queue = await channel.queue()
    for number in range(3):
        channel.publish("", queue, str(number).encode())
    await channel.barrier()
    ctx.must(await other.count(queue) == 0, "expected nothing in the queue before Commit; seen messages")
    await channel.call("tx.commit")
    seen = [(await other.get_soon(queue)).body for _ in range(3)]
    ctx.must(seen == [b"0", b"1", b"2"], f"expected the order of publishing; seen {seen}")


@amqp_case("tx/rollback-forgets-publishes", mutant="amqp-publishes-do-not-wait", clauses=("rmq.tx.semantics",))
async def rollback(ctx: AmqpContext) -> None:
    """What was published before a Rollback never comes.

    One message is rolled back, the next one committed.
    """
    channel = await _transacted(ctx)
    queue = await channel.queue()
    channel.publish("", queue, b"forgotten")
    await channel.call("tx.rollback")
    channel.publish("", queue, b"kept")
    await channel.call("tx.commit")
    event = await channel.get_soon(queue)
    ctx.must(event.body == b"kept", f"expected nothing of what was rolled back; seen {event.body!r}")


@amqp_case(
    "tx/acknowledgements-wait-for-commit",
    mutant="amqp-commit-forgets-acknowledgements",
    kills=("amqp-rollback-keeps-acknowledgements", "amqp-rolled-back-is-behind-the-rest"),
    clauses=("rmq.tx.semantics",),
)
async def acknowledgements(ctx: AmqpContext) -> None:
    """An acknowledgement counts with Commit; what was rolled back is still unacknowledged, in its place.

    Three messages are got: the first one's acknowledgement is rolled back, and all wait; then the first two are
    acknowledged by one method and committed, and the third alone comes back.
    """
    channel = await _transacted(ctx)
    queue = await channel.queue(shared=True)
    for body in (b"1", b"2", b"3"):
        channel.publish("", queue, body)
    await channel.call("tx.commit")
    events = [await channel.get_soon(queue, no_ack=False) for _ in range(3)]
    channel.ack(events[0])
    await channel.call("tx.rollback")
    channel.ack(events[1], multiple=True)
    await channel.call("tx.commit")
    channel.connection.abort()
    again = await ctx.channel()
    with ctx.own_point():
        seen = [(await again.get_soon(queue)).body]
    again.publish("", queue, b"marker")
    seen.append((await again.get_soon(queue)).body)
    ctx.must(seen == [b"3", b"marker"], f"expected nothing that was acknowledged and committed; seen {seen}")


@amqp_case(
    "tx/uncommitted-acknowledgements-do-not-count",
    mutant="amqp-publishes-do-not-wait",
    clauses=("rmq.tx.semantics", "sec.4.5.channel-close-requeue"),
)
async def uncommitted(ctx: AmqpContext) -> None:
    """When a channel ends in the middle of a transaction, its acknowledgements and publishes do not count.

    A message was acknowledged and another published: the first comes again, the second never.
    """
    channel = await _transacted(ctx)
    queue = await channel.queue(shared=True)
    channel.publish("", queue, b"taken")
    await channel.call("tx.commit")
    event = await channel.get_soon(queue, no_ack=False)
    channel.ack(event)
    channel.publish("", queue, b"uncommitted")
    await channel.barrier()
    await channel.close()
    again = await ctx.channel()
    found = await again.get_soon(queue)
    ctx.must(found.body == b"taken", f"expected what was not acknowledged for good; seen {found.body!r}")
    ctx.must(await again.get(queue) is None, "expected nothing of what was not committed; seen a message")


@amqp_case(
    "tx/unknown-tags-fail-at-once", mutant="amqp-unknown-tags-passed-over", clauses=("basic.ack.multiple.exists",)
)
async def unknown_tag(ctx: AmqpContext) -> None:
    """An unknown delivery tag ends the channel at once, and not only with Commit.

    The request behind the acknowledgement must not be answered.
    """
    channel = await _transacted(ctx)
    channel.send("basic.ack", delivery_tag=17)
    ctx.allow("basic.ack.multiple.exists", await channel.outcome_of())


@amqp_case(
    "tx/recover-between-ack-and-rollback-loses-nothing",
    mutant="amqp-recover-commits",
    clauses=("rmq.recover.requeue-true", "rmq.tx.semantics"),
)
async def recover_in_between(ctx: AmqpContext) -> None:
    """A message that was acknowledged, then recovered, then rolled back, is not lost.

    Found in a broker: it was neither ready nor unacknowledged any more. When the connection ends it must be there.
    """
    channel = await _transacted(ctx)
    queue = await channel.queue(shared=True)
    await channel.consume(queue)
    channel.publish("", queue, b"precious")
    await channel.call("tx.commit")
    event = await channel.delivery(b"precious")
    channel.ack(event)
    await channel.call("basic.recover", requeue=True)
    await channel.call("tx.rollback")
    channel.connection.abort()
    again = await ctx.channel()
    with ctx.own_point():
        found = await again.get_soon(queue)
    ctx.must(found.body == b"precious", f"expected the message; seen {found.body!r}")


@amqp_case(
    "tx/rejections-wait-for-commit",
    mutant="amqp-acknowledgements-do-not-wait",
    clauses=("rmq.tx.semantics", "basic.reject.02"),
)
async def rejections(ctx: AmqpContext) -> None:
    """A rejection without requeue that is rolled back drops nothing.

    The message is rejected, rolled back, and comes again when the connection ends.
    """
    channel = await _transacted(ctx)
    queue = await channel.queue(shared=True)
    channel.publish("", queue, b"kept")
    await channel.call("tx.commit")
    event = await channel.get_soon(queue, no_ack=False)
    channel.send("basic.reject", delivery_tag=event.tag, requeue=False)
    await channel.call("tx.rollback")
    channel.connection.abort()
    again = await ctx.channel()
    with ctx.own_point():
        await again.get_soon(queue)


@amqp_case(
    "tx/refusals-count-with-commit",
    mutant="amqp-refusals-in-a-transaction-accept",
    kills=("amqp-requeues-in-a-transaction-drop", "amqp-drops-in-a-transaction-requeue"),
    clauses=("rmq.tx.semantics", "rmq.dlx.reasons", "basic.reject.02"),
)
async def refusals(ctx: AmqpContext) -> None:
    """A message that is refused in a transaction comes back, or becomes a dead letter, with Commit, and not before.

    One of each by reject, and by nack where there is that; what is to be dropped becomes a dead letter as rejected.
    """
    channel = await _transacted(ctx)
    other = await channel.connection.channel()
    await ctx.needs_argument("x-dead-letter-exchange", 5)
    letters = await other.queue()
    arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": letters}
    queue = await ctx.queue_with(channel, arguments)
    methods = ["basic.reject", *["basic.nack"] * bool(ctx.capabilities.get("basic_nack"))]
    refusals = {f"{name} {requeue}".encode(): (name, requeue) for name in methods for requeue in (True, False)}
    for body in refusals:
        channel.publish("", queue, body)
    await channel.call("tx.commit")
    for _ in refusals:
        event = await channel.get_soon(queue, no_ack=False)
        name, requeue = refusals[event.body]
        channel.send(name, delivery_tag=event.tag, requeue=requeue)
    await channel.barrier()
    counts = await other.count(queue), await other.count(letters)
    ctx.must(counts == (0, 0), f"expected nothing back and no dead letter before Commit; seen {counts}")
    await channel.call("tx.commit")
    for name, asked in ((queue, True), (letters, False)):
        with ctx.own_point():
            seen = {(await other.get_soon(name)).body for _ in methods}
        wanted = {body for body, (_, requeue) in refusals.items() if requeue is asked}
        what = "back in the queue" if asked else "as dead letters"
        ctx.must(seen == wanted, f"expected {sorted(wanted)} {what}; seen {sorted(seen)}")


@amqp_case(
    "tx/commit-makes-room-below-the-prefetch",
    mutant="amqp-commit-makes-no-room",
    clauses=("rmq.tx.semantics", "rmq.qos.global"),
)
async def room(ctx: AmqpContext) -> None:
    """What is acknowledged and committed makes room for the next delivery.

    Found in a broker: a consumer below a prefetch that is shared stood still after the first commit. With a prefetch of
    one, two messages come one after the other, each acknowledged in a transaction of its own. A server that refuses the
    prefetch ends as unsupported.
    """
    channel = await _transacted(ctx)
    outcome = await channel.outcome("basic.qos", prefetch_count=1, global_=True)
    if outcome != "ok":
        ctx.unsupported(f"a shared prefetch is answered by {outcome}")
    queue = await channel.queue()
    for body in (b"1", b"2"):
        channel.publish("", queue, body)
    await channel.call("tx.commit")
    await channel.consume(queue)
    for body in (b"1", b"2"):
        channel.ack(await channel.delivery(body))
        await channel.call("tx.commit")


@amqp_case(
    "tx/time-to-live-begins-with-commit",
    level="SHOULD",
    mutant="amqp-tx-lives-from-its-publish",
    kills=("amqp-tx-of-one-lives-from-its-publish",),
    clauses=("rmq.tx.semantics", "rmq.publish.expiration"),
    limit_s=10.0,
)
async def lives_from_commit(ctx: AmqpContext) -> None:
    """The time to live of what a transaction publishes begins when it comes to its queue, with Commit.

    One message in a transaction of its own and two together, of half a second, whose transactions are open for longer:
    they come to a consumer that waits for them. A server that takes half of their time to deliver is asked again with
    messages that live four times as long, and is not judged if that is too short as well. No document says so: RabbitMQ
    counts from there, Qpid from the publish.
    """
    ctx.is_timed = True
    alone = await _transacted(ctx)
    if not await has_expirations(ctx):
        ctx.unsupported("an expiration of letters is taken: the server does not look at it")
    together, reader = await alone.connection.channel(), await alone.connection.channel()
    await together.call("tx.select")
    queue = await alone.queue()
    await reader.consume(queue, no_ack=True)
    for lives_s in (0.5, 2.0):
        properties = {"expiration": str(int(lives_s * 1000))}
        bodies = {alone: [b"alone"], together: [b"one", b"two"]}
        for channel in bodies:
            for body in bodies[channel]:
                channel.publish("", queue, body, properties=properties)
            await channel.barrier()
        await asyncio.sleep(lives_s + 0.2)
        began = time.monotonic()
        for channel in bodies:
            await channel.call("tx.commit")
        reader.publish("", queue, b"behind")
        seen = [event.body for event in await reader.delivered_until(b"behind")]
        took_s = time.monotonic() - began
        if seen == [b"alone", b"one", b"two"]:
            return
        if took_s <= lives_s / 2:
            ctx.should(False, f"all three messages with their commits; seen {seen}")
            return
    ctx.unsupported(f"a delivery took {took_s:.1f} s, about as long as the messages live")

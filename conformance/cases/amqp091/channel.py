"""Channels: how they open, close, and fail without touching anything else."""

from __future__ import annotations

from assay.conformance.amqp091.context import AmqpContext, amqp_case
from assay.conformance.rules import Rule
from assay.conformance.wire.amqp091 import Method, encode_method


@amqp_case(
    "channel/open-is-answered", mutant="amqp-channels-in-sequence", clauses=("sync.channel.open", "grammar.channel")
)
async def channel_open(ctx: AmqpContext) -> None:
    """channel.open is answered by open-ok on the channel that was asked for.

    Two channels with numbers that do not follow each other are opened, as far as the broker allows such numbers, and
    each serves a request.
    """
    connection = await ctx.client()
    with ctx.own_point():
        for number in sorted({min(3, connection.channel_max), 1}, reverse=True):
            channel = connection.channel_numbered(number)
            await channel.call("channel.open")
            await channel.barrier()


@amqp_case(
    "channel/close-is-answered",
    mutant="amqp-some-answers-missing",
    clauses=("sync.channel.close", "sec.2.3.7.close-handshake", "grammar.channel"),
)
async def channel_close(ctx: AmqpContext) -> None:
    """channel.close is answered by close-ok, and the number can be opened again.

    A channel is closed and opened again by the same number, which serves; another one goes on all the while.
    """
    connection = await ctx.client()
    other, channel = await connection.channel(), await connection.channel()
    with ctx.own_point():
        await channel.call("channel.close", reply_code=200, reply_text="bye")
        again = connection.channel_numbered(channel.number)
        await again.call("channel.open")
        await again.barrier()
    await other.barrier()


@amqp_case(
    "channel/is-opened-once", mutant="amqp-senseless-methods-pass", clauses=("channel.open.state", "grammar.channel")
)
async def opened_once(ctx: AmqpContext) -> None:
    """Opening a channel that is open costs the connection.

    The second Open follows the Open-Ok of the first.
    """
    connection = await ctx.client()
    channel = await connection.channel()
    ctx.sent_raw = True
    ctx.allow("channel.open.state", await channel.outcome("channel.open"))


@amqp_case("channel/must-be-open", mutant="amqp-unopened-channels-pass", clauses=("sec.4.2.3.unopened-channel",))
async def unopened(ctx: AmqpContext) -> None:
    """A method on a channel that was never opened costs the connection.

    A passive declaration on channel 4; a publish with its content on channel 5.
    """
    for send in ("declare", "publish"):
        connection = await ctx.client()
        channel = connection.channel_numbered(min(4, connection.channel_max))
        ctx.sent_raw = True
        if send == "declare":
            outcome = await channel.outcome("queue.declare", queue="x", passive=True)
        else:
            channel.publish("", "x", b"body")
            outcome = await channel.outcome_of("basic.get-empty")
        ctx.allow("sec.4.2.3.unopened-channel", outcome)


@amqp_case(
    "channel/numbers-end-at-the-maximum", mutant="amqp-any-channel-number", clauses=("sec.4.2.3.channel-above-max",)
)
async def above_maximum(ctx: AmqpContext) -> None:
    """A channel above the agreed maximum is not opened.

    Ten are agreed on, or fewer where the broker offers fewer; the last opens, and one more costs the connection.
    """
    connection = await ctx.client(channel_max=10)
    with ctx.own_point():
        await connection.channel_numbered(connection.channel_max).call("channel.open")
    ctx.sent_raw = True
    outcome = await connection.channel_numbered(connection.channel_max + 1).outcome("channel.open")
    ctx.allow("sec.4.2.3.channel-above-max", outcome)


@amqp_case("channel/flow-on-is-answered", mutant="amqp-some-answers-missing", clauses=("sync.channel.flow",))
async def flow_on(ctx: AmqpContext) -> None:
    """channel.flow that starts what is not stopped is answered by flow-ok with active set.

    The channel serves afterwards.
    """
    channel = await ctx.channel()
    with ctx.own_point():
        answer = await channel.call("channel.flow", active=True)
        ctx.must(answer["active"], "expected flow-ok with active set; seen it without")
        await channel.barrier()


@amqp_case(
    "channel/flow-off-is-honoured-or-refused",
    mutant="amqp-flow-answered-and-ignored",
    clauses=("channel.flow.initial-state", "rmq.flow.active-false"),
)
async def flow_off(ctx: AmqpContext) -> None:
    """channel.flow that stops deliveries is honoured, or refused.

    Where it is answered by flow-ok, a message for a consumer must wait until flow is started again; a new channel
    delivers without being asked.
    """
    connection = await ctx.client()
    channel, other = await connection.channel(), await connection.channel()
    queue = await channel.queue()
    await channel.consume(queue, no_ack=True)
    channel.publish("", queue, b"first")
    await channel.delivery(b"first")
    outcome = await channel.outcome("channel.flow", active=False)
    ctx.allow("channel.flow.initial-state", outcome)
    if outcome != "ok":
        return
    other.publish("", queue, b"second")
    await channel.barrier()
    ctx.must(not channel.inbox, "expected no delivery on a channel that was stopped; seen one")
    await channel.call("channel.flow", active=True)
    with ctx.own_point():
        await channel.delivery(b"second")


@amqp_case(
    "channel/an-error-ends-that-channel-alone",
    mutant="amqp-closes-name-nothing",
    clauses=("sec.4.8.1.soft-error", "sec.2.3.6.exceptions", "sec.4.8.2.reply-code"),
)
async def soft_error(ctx: AmqpContext) -> None:
    """An error of a channel ends it alone, with a code of that level and the method that failed.

    A queue that does not exist is asked for; another channel of the connection goes on consuming.
    """
    connection = await ctx.client()
    channel, other = await connection.channel(), await connection.channel()
    queue = await other.queue()
    await other.consume(queue, no_ack=True)
    outcome = await channel.outcome("queue.declare", queue=ctx.queue_name(), passive=True)
    ctx.must(outcome == "channel 404", f"expected channel 404 for a queue that does not exist; seen {outcome}")
    close = channel.closed_by
    assert close is not None
    failed = close["class-id"], close["method-id"]
    ctx.must(failed == (50, 10), f"expected Close to name class 50, method 10; seen {failed}")
    with ctx.own_point():
        other.publish("", queue, b"on")
        await other.delivery(b"on")
        await (await connection.channel()).barrier()


@amqp_case(
    "channel/after-its-close-nothing-counts", mutant="amqp-closing-channels-serve", clauses=("channel.close.stability",)
)
async def close_stability(ctx: AmqpContext) -> None:
    """A server that has closed a channel looks at nothing but Close and Close-Ok on it.

    With an error that ends the channel, in one write: a declaration, a publish with content to a queue that exists, and
    another error. None of them has an effect, there is one Close, and the connection goes on.
    """
    connection = await ctx.client()
    connection.answers_closes = False
    other, channel = await connection.channel(), await connection.channel()
    queue, undeclared = await other.queue(), ctx.queue_name()
    channel.send("queue.declare", queue=ctx.queue_name(), passive=True)
    channel.send("queue.declare", queue=undeclared, durable=True)
    channel.publish("", queue, b"lost")
    channel.send("basic.ack", delivery_tag=99)
    await channel.closing()
    channel.send("channel.close-ok")
    again = connection.channel_numbered(channel.number)
    await again.call("channel.open")
    await again.barrier()
    ctx.must(await again.get(queue) is None, "expected a publish behind the error not to count; seen its message")
    outcome = await again.outcome("queue.declare", queue=undeclared, passive=True)
    ctx.must(outcome == "channel 404", f"expected a declaration behind the error not to count; seen {outcome}")
    await other.barrier()


@amqp_case(
    "channel/both-close-at-once",
    mutant="amqp-channel-closes-that-cross-unanswered",
    clauses=("sec.2.3.7.simultaneous", "channel.close.stability"),
)
async def both_close(ctx: AmqpContext) -> None:
    """Where both sides close a channel at once, both answer.

    The error and the Close of the client go out in one write; the server's Close is answered when it comes, and its
    Close-Ok must come as well. Then the number can be used again.
    """
    connection = await ctx.client()
    connection.answers_closes = False
    channel = await connection.channel()
    channel.send("queue.declare", queue=ctx.queue_name(), passive=True)
    channel.send("channel.close", reply_code=200)
    await channel.closing()
    with ctx.own_point():
        await channel.expect("channel.close-ok", rule=Rule.AMQP_CHANNEL_CLOSE)
    channel.send("channel.close-ok")
    again = connection.channel_numbered(channel.number)
    with ctx.own_point():
        await again.call("channel.open")
        await again.barrier()


@amqp_case(
    "channel/opened-again-before-close-ok",
    mutant="amqp-closing-channels-open-again",
    clauses=("sec.2.3.7.close-handshake", "channel.close.stability"),
)
async def opened_too_early(ctx: AmqpContext) -> None:
    """A channel that the server has closed is not opened again before Close-Ok.

    What comes before it is to be ignored; a server that calls it an error of the connection says the same in another
    way. With Close-Ok the number is free.
    """
    connection = await ctx.client()
    connection.answers_closes = False
    channel = await connection.channel()
    channel.send("queue.declare", queue=ctx.queue_name(), passive=True)
    await channel.closing()
    other = connection.next_channel()
    channel.send("channel.open")
    outcome = await other.outcome("channel.open")
    if outcome == "ok":
        opened = [event for event in channel.inbox if event.name == "channel.open-ok"]
        ctx.must(not opened, "expected a channel that waits for Close-Ok not to be opened; seen open-ok")
        channel.send("channel.close-ok")
        outcome = await connection.channel_numbered(channel.number).outcome("channel.open")
    ctx.allow("sec.4.2.3.unopened-channel", outcome, "ok")


@amqp_case(
    "channel/its-close-brings-back-what-was-not-acknowledged",
    mutant="amqp-close-holds-messages",
    kills=("amqp-never-redelivered",),
    clauses=("sec.4.5.channel-close-requeue",),
)
async def close_requeues(ctx: AmqpContext) -> None:
    """When a channel is closed, what it has not acknowledged is ready again, marked as redelivered.

    Three messages are delivered, the second is acknowledged; another channel gets the first and the third.
    """
    connection = await ctx.client()
    channel, other = await connection.channel(), await connection.channel()
    queue = await channel.queue()
    await channel.consume(queue)
    for body in (b"1", b"2", b"3"):
        channel.publish("", queue, body)
    events = [await channel.delivery(body) for body in (b"1", b"2", b"3")]
    channel.ack(events[1])
    await channel.close()
    await other.consume(queue, no_ack=True)
    back = [await other.delivery() for _ in range(2)]
    bodies = [event.body for event in back]
    ctx.must(sorted(bodies) == [b"1", b"3"], f"expected the first and the third again; seen {bodies}")
    for event in back:
        ctx.must(event["redelivered"], f"expected {event.body!r} to be marked as redelivered; seen it without")


@amqp_case(
    "channel/exclusive-queues-end-with-their-connection",
    mutant="amqp-exclusive-queues-stay",
    clauses=("sec.4.5.exclusive-delete",),
)
async def exclusive_deleted(ctx: AmqpContext) -> None:
    """When a connection is closed, its exclusive queues are gone.

    Another connection asks for the queue after Close-Ok, and again for a while: nothing says how soon.
    """
    owner = await ctx.client()
    queue = await (await owner.channel()).queue()
    await owner.disconnect()
    other = await ctx.client()
    soon = ctx.soon()
    while True:
        channel = await other.channel()
        outcome = await channel.outcome("queue.declare", queue=queue, passive=True)
        if outcome == "channel 404":
            return
        ctx.must(await soon(), f"expected the queue to be gone; seen {outcome}")


@amqp_case(
    "channel/what-one-is-told-another-sees",
    mutant="amqp-deletions-take-their-time",
    clauses=("sec.4.4.visibility", "sec.4.6.sync-effects"),
)
async def visibility(ctx: AmqpContext) -> None:
    """What one connection was told is declared, another one sees at once.

    A queue, and then its messages: after the confirm or the end of a transaction the queue counts one.
    """
    first, second = await ctx.channel(), await ctx.channel()
    queue = await first.queue(shared=True)
    outcome = await second.outcome("queue.declare", queue=queue, passive=True)
    ctx.must(outcome == "ok", f"expected another connection to see a declared queue; seen {outcome}")
    await first.call("queue.delete", queue=queue)
    outcome = await second.outcome("queue.declare", queue=queue, passive=True)
    ctx.must(outcome == "channel 404", f"expected another connection to see that a queue is deleted; seen {outcome}")


@amqp_case(
    "channel/methods-of-servers-end-it",
    mutant="amqp-senseless-methods-pass",
    clauses=("grammar.exchange", "grammar.queue", "grammar.basic", "grammar.tx"),
)
async def methods_of_servers(ctx: AmqpContext) -> None:
    """A method that only a server sends costs the connection, or at least the channel.

    exchange.declare-ok, queue.bind-ok, basic.qos-ok, basic.get-empty and tx.select-ok, each on a connection of its own.
    """
    for name in ("exchange.declare-ok", "queue.bind-ok", "basic.qos-ok", "basic.get-empty", "tx.select-ok"):
        connection = await ctx.client()
        channel = await connection.channel()
        connection.send_raw(encode_method(channel.number, Method(name)))
        outcome = await channel.outcome_of()
        ctx.must(outcome != "ok", f"expected {name} of a client to be an error; it was taken")
        ctx.allow("grammar.basic", outcome, "channel any")
        ctx.should(not outcome.startswith("channel"), f"{name} of a client is an error of the channel: {outcome}")


@amqp_case("channel/none-is-starved", mutant="amqp-greedy-deliveries", clauses=("sec.4.3.fairness",), level="SHOULD")
async def fairness(ctx: AmqpContext) -> None:
    """A channel with a small request is served beside one that gets large messages.

    Eight messages of a megabyte wait for a consumer; a request on another channel of the connection is answered before
    all of them have come: a SHOULD.
    """
    connection = await ctx.client()
    busy, small = await connection.channel(), await connection.channel()
    queue = await busy.queue()
    for _ in range(8):
        busy.publish("", queue, b"x" * 1_000_000)
    await busy.count_becomes(queue, 8)
    busy.send("basic.consume", queue=queue, no_ack=True)
    await small.barrier()
    arrived = sum(event.name == "basic.deliver" for event in busy.inbox)
    ctx.should(arrived < 8, "a small request was answered behind eight megabytes for another channel")

"""Publishing: what comes back, in which order, and what is lost (class basic)."""

from __future__ import annotations

from assay.conformance.amqp091.context import AmqpContext, amqp_case


@amqp_case(
    "basic/publishing-to-nowhere",
    mutant="amqp-missing-exchanges-swallow",
    clauses=("basic.publish.exchange.must-exist",),
)
async def publish_missing(ctx: AmqpContext) -> None:
    """Publishing to an exchange that does not exist ends the channel with 404.

    The message has a body in two frames, which the server must take with it.
    """
    connection = await ctx.client()
    channel = await connection.channel()
    channel.publish(ctx.exchange_name(), "k", b"xy", part_bytes=1)
    ctx.allow("basic.publish.exchange.must-exist", await channel.outcome_of())
    await (await connection.channel()).barrier()


@amqp_case(
    "basic/mandatory-comes-back", mutant="amqp-returns-bare", clauses=("basic.publish.mandatory.01",), level="SHOULD"
)
async def mandatory(ctx: AmqpContext) -> None:
    """A mandatory message that reaches no queue comes back whole, and one that reaches a queue does not.

    With its exchange, routing key, properties and body; 312 is the code for it.
    """
    channel = await ctx.channel()
    exchange, queue = await channel.exchange("direct"), await channel.queue()
    await channel.bind(queue, exchange, "there")
    properties = {"content_type": "text/plain", "message_id": "m"}
    channel.publish(exchange, "there", b"routed", mandatory=True)
    channel.publish(exchange, "nowhere", b"lost", mandatory=True, properties=properties)
    channel.publish(exchange, "nowhere", b"not mandatory")
    await channel.get_soon(queue)
    await channel.barrier()
    try:
        event = await channel.expect("basic.return", within_s=2.0)
    except Exception as error:
        ctx.should(False, f"the mandatory flag is not implemented: {error}")
        return
    seen = (event.body, event["exchange"], event["routing-key"], dict(event.properties))
    wanted = (b"lost", exchange, "nowhere", {"content-type": "text/plain", "message-id": "m"})
    ctx.must(seen == wanted, f"expected the message back as {wanted}; seen {seen}")
    ctx.must(event["reply-code"] == 312, f"expected reply code 312; seen {event['reply-code']}")
    await channel.barrier()
    ctx.must(not channel.inbox, "expected one message to come back; seen more")


@amqp_case(
    "basic/immediate-comes-back-or-is-refused",
    mutant="amqp-refusals-are-internal-errors",
    clauses=("basic.publish.immediate.01", "rmq.immediate"),
    level="SHOULD",
)
async def immediate(ctx: AmqpContext) -> None:
    """An immediate message for a queue without consumers comes back, or the flag is refused with 540.

    540 is an error of the connection; a server that takes the flag and keeps the message misses a SHOULD.
    """
    channel = await ctx.channel()
    queue = await channel.queue()
    channel.publish("", queue, b"now", immediate=True)
    outcome = await channel.outcome_of()
    ctx.allow("basic.publish.immediate.01", outcome)
    ctx.should(outcome == "ok", f"the immediate flag is not implemented: {outcome}")
    if outcome == "ok":
        back = any(event.name == "basic.return" and event["reply-code"] == 313 for event in channel.inbox)
        ctx.should(back, "an immediate message that no consumer takes does not come back with 313")


@amqp_case("basic/order-is-kept", mutant="amqp-persistent-messages-overtaken", clauses=("sec.4.7.ordering",))
async def order(ctx: AmqpContext) -> None:
    """Messages on one way, from one channel to another, keep their order.

    Three hundred messages of sizes from nothing to ten kilobytes, persistent or not by turns.
    """
    sender, receiver = await ctx.channel(), await ctx.channel()
    queue = await receiver.queue(shared=True)
    await receiver.consume(queue, no_ack=True)
    for number in range(300):
        body = f"{number} ".encode() + b"x" * ctx.rng.choice((0, 0, 100, 5_000, 10_000))
        sender.publish("", queue, body, properties={"delivery_mode": 1 + number % 2})
    for number in range(300):
        event = await receiver.delivery()
        seen = int(event.body.split(b" ")[0])
        ctx.must(seen == number, f"expected message {number}, in the order of publishing; seen {seen}")


@amqp_case("basic/persistent-or-not-in-one-order", mutant="amqp-persistent-messages-overtaken", clauses=("basic.08",))
async def order_by_persistence(ctx: AmqpContext) -> None:
    """Messages of the same priority come in their order, whether persistent or not.

    Ten messages wait in a durable queue, persistent and not by turns.
    """
    channel = await ctx.channel()
    queue = await channel.queue(shared=True)
    for number in range(10):
        channel.publish("", queue, str(number).encode(), properties={"delivery_mode": 1 + number % 2, "priority": 4})
    await channel.count_becomes(queue, 10)
    await channel.consume(queue, no_ack=True)
    seen = [int((await channel.delivery()).body) for _ in range(10)]
    ctx.must(seen == list(range(10)), f"expected the order of publishing; seen {seen}")


@amqp_case(
    "basic/a-full-queue-loses-no-persistent-message", mutant="amqp-queues-keep-a-thousand", clauses=("basic.02",)
)
async def overflow(ctx: AmqpContext) -> None:
    """A long queue without limits loses none of its persistent messages.

    Two thousand messages of a kilobyte wait, and all come, in their order.
    """
    channel = await ctx.channel()
    queue = await channel.queue(shared=True)
    for number in range(2_000):
        channel.publish("", queue, f"{number} ".encode() + b"x" * 1_000, properties={"delivery_mode": 2})
    await channel.count_becomes(queue, 2_000)
    await channel.consume(queue, no_ack=True)
    for number in range(2_000):
        seen = int((await channel.delivery()).body.split(b" ")[0])
        ctx.must(seen == number, f"expected message {number}; seen {seen}")


@amqp_case("basic/priorities", mutant="amqp-max-priority-passed-over", clauses=("basic.06",), level="MUST")
async def priorities(ctx: AmqpContext) -> None:
    """A message of priority 9 overtakes those of priority 0 that wait.

    In a queue without arguments. Where it does not, and the server has priorities by x-max-priority (it refuses a wrong
    one), it has chosen to have them there: that is reported, and not failed.
    """
    connection = await ctx.client()
    channel = await connection.channel()
    queue = await channel.queue()
    for priority in (0, 0, 9):
        channel.publish("", queue, str(priority).encode(), properties={"priority": priority})
    await channel.count_becomes(queue, 3)
    event = await channel.get_soon(queue)
    if event.body != b"9":
        by_argument = await ctx.knows_argument("x-max-priority", -1)
        ctx.must(by_argument, "expected the message of priority 9 first; seen one of priority 0")
        ctx.should(False, "priorities count only in queues with x-max-priority")


@amqp_case(
    "basic/a-slow-reader-loses-nothing",
    mutant="amqp-slow-readers-lose",
    clauses=("sec.4.3.fairness", "sec.4.7.ordering", "sec.3.1.4.single-delivery"),
    limit_s=15.0,
)
async def slow_reader(ctx: AmqpContext) -> None:
    """A consumer that stops reading gets all of its messages, in their order, when it reads again; others do not wait.

    Sixteen megabytes in 128 messages for a consumer without a prefetch; meanwhile another client sends and gets one.
    """
    slow, other = await ctx.channel(), await ctx.channel()
    queue, own = await slow.queue(shared=True), await other.queue()
    await slow.consume(queue, no_ack=True)
    slow.connection.stop_reading()
    for number in range(128):
        other.publish("", queue, f"{number} ".encode() + b"x" * 125_000)
    other.publish("", own, b"served")
    with ctx.own_point():
        await other.get_soon(own)
    slow.connection.go_on_reading()
    for number in range(128):
        with ctx.own_point():
            seen = int((await slow.delivery()).body.split(b" ")[0])
        ctx.must(seen == number, f"expected message {number}; seen {seen}")

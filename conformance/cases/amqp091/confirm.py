"""Confirms of publishers."""

from __future__ import annotations

from assay.conformance.amqp091.context import AmqpContext, amqp_case
from assay.conformance.rules import Rule

_CONFIRMS = ("publisher_confirms",)


@amqp_case(
    "confirm/select-is-answered",
    mutant="amqp-some-answers-missing",
    clauses=("sync.confirm.select",),
    requires=_CONFIRMS,
)
async def select(ctx: AmqpContext) -> None:
    """confirm.select is answered once, and with no-wait not at all; both begin confirms.

    Twice on a channel is no error.
    """
    connection = await ctx.client()
    with ctx.own_point():
        channel = await connection.channel()
        await channel.confirms()
        await channel.call("confirm.select")
        await channel.barrier()
        silent = await connection.channel()
        silent.send("confirm.select", nowait=True)
        silent.publish("", await silent.queue(), b"x")
        await silent.confirmed(1)


@amqp_case(
    "confirm/every-publish-gets-one",
    mutant="amqp-unroutable-not-confirmed",
    clauses=("confirm.all-messages-acknowledged", "rmq.confirm.select"),
    requires=_CONFIRMS,
)
async def all_confirmed(ctx: AmqpContext) -> None:
    """Every publish is confirmed once, by tags that count from 1.

    A hundred messages, persistent or not, routed or not, with and without a body; then no confirm is left over.
    """
    channel = await ctx.channel()
    queue = await channel.queue(shared=True)
    await channel.confirms()
    for number in range(100):
        key = queue if number % 3 else "assay-nowhere"
        channel.publish("", key, b"x" * (number % 5), properties={"delivery_mode": 1 + number % 2})
    with ctx.own_point():
        await channel.confirmed()
        await channel.barrier()
    ctx.must(not channel.inbox, "expected one confirm for each publish; seen more")


@amqp_case(
    "confirm/counts-from-its-select",
    mutant="amqp-confirms-count-all",
    clauses=("rmq.confirm.select",),
    requires=_CONFIRMS,
)
async def counts_from_select(ctx: AmqpContext) -> None:
    """Tags count from the first publish after confirm.select, whatever was published before.

    Two mandatory messages that are routed, then confirm.select and one more: its confirm has tag 1.
    """
    channel = await ctx.channel()
    queue = await channel.queue()
    for _ in range(2):
        channel.publish("", queue, b"before", mandatory=True)
    await channel.confirms()
    channel.publish("", queue, b"after")
    with ctx.own_point():
        await channel.confirmed(1)
        await channel.barrier()
    ctx.must(not channel.inbox, "expected one confirm; seen more")


@amqp_case(
    "confirm/returned-before-it-is-confirmed",
    mutant="amqp-mandatory-ignored",
    clauses=("confirm.unroutable-messages", "rmq.confirm.unroutable-order"),
    requires=_CONFIRMS,
)
async def return_first(ctx: AmqpContext) -> None:
    """A mandatory message that reaches no queue comes back before its confirm.

    Five of them among others that are routed.
    """
    channel = await ctx.channel()
    queue = await channel.queue()
    await channel.confirms()
    for number in range(10):
        channel.publish("", "assay-nowhere" if number % 2 else queue, str(number + 1).encode(), mandatory=True)
    confirmed: set[int] = set()
    returned: set[int] = set()
    while len(confirmed) < 10:
        event = await channel.expect("basic.ack", "basic.nack", "basic.return")
        if event.name == "basic.return":
            number = int(event.body)
            ctx.must(number not in confirmed, f"expected message {number} back before its confirm; seen it after")
            returned.add(number)
        else:
            ctx.must(event.name == "basic.ack", "expected what cannot be routed to be confirmed by ack; seen a nack")
            confirmed |= ctx.note_confirm(channel, event)
    ctx.must(returned == {2, 4, 6, 8, 10}, f"expected the messages without a queue to come back; seen {returned}")


@amqp_case(
    "confirm/excludes-transactions",
    mutant="amqp-confirms-and-transactions",
    clauses=("rmq.confirm.tx-exclusive",),
    requires=_CONFIRMS,
)
async def excludes_tx(ctx: AmqpContext) -> None:
    """Confirms and transactions exclude each other on a channel, in either order.

    Refused with 406; a server without transactions ends as unsupported.
    """
    connection = await ctx.client()
    channel = await connection.channel()
    await channel.confirms()
    outcome = await channel.outcome("tx.select")
    if outcome in ("connection 540", "connection 503"):
        ctx.unsupported(f"tx.select is answered by {outcome}")
    ctx.allow("rmq.confirm.tx-exclusive", outcome)
    channel = await connection.channel()
    await channel.call("tx.select")
    ctx.allow("rmq.confirm.tx-exclusive", await channel.outcome("confirm.select"))


@amqp_case(
    "confirm/when-all-queues-have-it",
    mutant="amqp-confirmed-by-the-first-queue",
    clauses=("confirm.all-queues",),
    requires=_CONFIRMS,
)
async def all_queues(ctx: AmqpContext) -> None:
    """A message is confirmed when it is in all its queues.

    Three queues of a fanout exchange; as soon as the confirm has come, each counts the message.
    """
    channel = await ctx.channel()
    exchange = await channel.exchange("fanout")
    queues = [await channel.queue() for _ in range(3)]
    for queue in queues:
        await channel.bind(queue, exchange)
    await channel.confirms()
    channel.publish(exchange, "", b"x", properties={"delivery_mode": 2})
    await channel.confirmed()
    other = await channel.connection.channel()
    for queue in queues:
        count = await other.count(queue)
        ctx.must(count == 1, f"expected a confirmed message in each queue; seen {count} in one")


@amqp_case(
    "confirm/a-full-queue-refuses",
    mutant="amqp-full-queues-confirm",
    kills=("amqp-confirmed-by-two-queues", "amqp-nacks-name-others"),
    clauses=("rmq.confirm.reject-publish", "rmq.queue.max-length"),
    requires=_CONFIRMS,
)
async def reject_publish(ctx: AmqpContext) -> None:
    """A full queue with x-overflow reject-publish answers a publish by a nack, and keeps what it has.

    A length of one, also where two other queues take what their exchange brings to all three; when that message is
    taken, there is room again. Of several that come together to a queue of two those are there that were confirmed,
    and each is answered once.
    """
    channel = await ctx.channel()
    await ctx.needs_argument("x-overflow", "assay-nonsense")
    queue = await ctx.queue_with(channel, {"x-max-length": 1, "x-overflow": "reject-publish"})
    await channel.confirms()
    channel.publish("", queue, b"first")
    await channel.confirmed()
    exchange = await channel.exchange("fanout")
    for each in (await channel.queue(), await channel.queue(), queue):
        await channel.bind(each, exchange)
    for to, key in (("", queue), (exchange, "")):
        channel.publish(to, key, b"second")
        event = await channel.expect("basic.ack", "basic.nack")
        ctx.must(event.name == "basic.nack", "expected a nack from a full queue; seen an ack")
        ctx.note_confirm(channel, event)
    event = await channel.get_soon(queue)
    ctx.must(event.body == b"first", f"expected what the queue had; seen {event.body!r}")
    channel.publish("", queue, b"third")
    await channel.confirmed()
    several = await ctx.queue_with(channel, {"x-max-length": 2, "x-overflow": "reject-publish"})
    bodies = [b"number %d" % number for number in range(6)]
    tags = channel.publish_together("", several, bodies)
    left, taken = set(tags), set[int]()
    while left:
        event = await channel.expect("basic.ack", "basic.nack", rule=Rule.AMQP_CONFIRM)
        answered = ctx.note_confirm(channel, event)
        left -= answered
        taken |= answered if event.name == "basic.ack" else set()
    seen = [(await channel.get_soon(several)).body for _ in taken]
    wanted = [body for tag, body in zip(tags, bodies, strict=True) if tag in taken]
    ctx.must(seen == wanted, f"expected what was confirmed, {wanted}; seen {seen}")
    ctx.must(await channel.get(several) is None, f"expected nothing but {wanted}; seen another message")

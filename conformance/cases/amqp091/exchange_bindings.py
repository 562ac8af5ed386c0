"""Exchanges bound to exchanges (class exchange)."""

from __future__ import annotations

from assay.conformance.amqp091.context import AmqpContext, amqp_case

_E2E = ("exchange_exchange_bindings",)


@amqp_case(
    "exchange/bindings-between-them-are-answered",
    mutant="amqp-some-answers-missing",
    clauses=("sync.exchange.bind", "sync.exchange.unbind", "rmq.exchange.bind", "exchange.bind.duplicates"),
    requires=_E2E,
)
async def bind(ctx: AmqpContext) -> None:
    """exchange.bind and exchange.unbind are answered, and decide what passes.

    Bound twice in the same way, which is no error and no second copy; unbound once, nothing passes any more.
    """
    channel = await ctx.channel()
    source, destination = await channel.exchange("direct"), await channel.exchange("fanout")
    queue = await channel.queue()
    await channel.bind(queue, destination)
    fields = {"source": source, "destination": destination, "routing_key": "k"}
    with ctx.own_point():
        await channel.call("exchange.bind", **fields)
        await channel.call("exchange.bind", **fields)
        await channel.barrier()
        channel.publish(source, "k", b"passes")
        channel.publish(destination, "", b"direct")
        bodies = sorted([(await channel.get_soon(queue)).body, (await channel.get_soon(queue)).body])
        ctx.must(bodies == [b"direct", b"passes"], f"expected one copy of each message; seen {bodies}")
        await channel.call("exchange.unbind", **fields)
        channel.publish(source, "k", b"stopped")
        channel.publish(destination, "", b"marker")
        event = await channel.get_soon(queue)
        ctx.must(event.body == b"marker", f"expected nothing to pass after unbind; seen {event.body!r}")


@amqp_case(
    "exchange/bound-in-a-circle",
    mutant="amqp-bindings-end-after-one-step",
    clauses=("exchange.bind.cyclical",),
    requires=_E2E,
)
async def cyclical(ctx: AmqpContext) -> None:
    """Exchanges may be bound in a circle and to themselves; a queue gets a message once.

    Three exchanges in a circle, one bound also to itself; the queue is two steps away from where the message begins.
    """
    channel = await ctx.channel()
    first, second, third = [await channel.exchange("fanout") for _ in range(3)]
    queue = await channel.queue()
    await channel.bind(queue, third)
    with ctx.own_point():
        for source, destination in ((first, second), (second, third), (third, first), (first, first)):
            await channel.call("exchange.bind", source=source, destination=destination)
    await channel.consume(queue, no_ack=True)
    channel.publish(first, "", b"once")
    channel.publish(third, "", b"marker")
    found = [event.body for event in await channel.delivered_until(b"marker")]
    ctx.must(found == [b"once"], f"expected the message once; seen {found}")


@amqp_case(
    "exchange/many-ways-one-copy",
    mutant="amqp-a-copy-for-each-binding",
    clauses=("exchange.bind.unique",),
    requires=_E2E,
)
async def unique(ctx: AmqpContext) -> None:
    """However many ways lead to an exchange, a queue behind it gets a message once.

    Three bindings of a topic exchange match, and the queue is bound directly as well.
    """
    channel = await ctx.channel()
    source, destination = await channel.exchange("topic"), await channel.exchange("fanout")
    queue = await channel.queue()
    await channel.bind(queue, destination)
    await channel.bind(queue, source, "a.#")
    for key in ("a.b", "a.*", "#"):
        await channel.call("exchange.bind", source=source, destination=destination, routing_key=key)
    await channel.consume(queue, no_ack=True)
    channel.publish(source, "a.b", b"once")
    channel.publish(destination, "", b"marker")
    found = [event.body for event in await channel.delivered_until(b"marker")]
    ctx.must(found == [b"once"], f"expected the message once; seen {found}")


@amqp_case(
    "exchange/bindings-of-what-is-not-there",
    mutant="amqp-refusals-are-internal-errors",
    clauses=(
        "exchange.bind.destination.exchange-existence",
        "exchange.bind.source.exchange-existence",
        "rmq.exchange.bind",
    ),
    requires=_E2E,
)
async def bind_missing(ctx: AmqpContext) -> None:
    """Binding from or to an exchange that does not exist ends the channel with 404.

    Each on a channel of its own.
    """
    channel = await ctx.channel()
    name = await channel.exchange("fanout")
    for source, destination, rule in (
        (name, ctx.exchange_name(), "exchange.bind.destination.exchange-existence"),
        (ctx.exchange_name(), name, "exchange.bind.source.exchange-existence"),
    ):
        asking = await channel.connection.channel()
        ctx.allow(rule, await asking.outcome("exchange.bind", source=source, destination=destination))


@amqp_case(
    "exchange/unbinding-what-is-not-there",
    mutant="amqp-refusals-are-internal-errors",
    clauses=(
        "exchange.unbind.01",
        "exchange.unbind.destination.must-exist",
        "exchange.unbind.source.must-exist",
    ),
    requires=_E2E,
)
async def unbind_missing(ctx: AmqpContext) -> None:
    """Unbinding from or to an exchange that does not exist is an error, or nothing.

    The specification asks for two different errors, and the servers in use for none.
    """
    channel = await ctx.channel()
    name = await channel.exchange("fanout")
    for source, destination, rule in (
        (name, ctx.exchange_name(), "exchange.unbind.destination.must-exist"),
        (ctx.exchange_name(), name, "exchange.unbind.source.must-exist"),
    ):
        asking = await ctx.channel()
        ctx.allow(rule, await asking.outcome("exchange.unbind", source=source, destination=destination))


@amqp_case(
    "exchange/the-nameless-one-in-bindings",
    mutant="amqp-refusals-are-internal-errors",
    clauses=(
        "exchange.bind.destination.default-exchange",
        "exchange.bind.source.default-exchange",
        "exchange.unbind.destination.default-exchange",
        "exchange.unbind.source.default-exchange",
    ),
    requires=_E2E,
)
async def bind_default(ctx: AmqpContext) -> None:
    """An empty name in a binding of exchanges means the nameless one, or is refused with 403 or 530.

    Another rule forbids to touch it, so that all of it passes; a refusal is reported.
    """
    channel = await ctx.channel()
    name = await channel.exchange("fanout")
    for request in ("bind", "unbind"):
        for place, fields in (
            ("destination", {"source": name, "destination": ""}),
            ("source", {"source": "", "destination": name, "routing_key": "k"}),
        ):
            asking = await ctx.channel()
            outcome = await asking.outcome(f"exchange.{request}", **fields)
            ctx.prefer(f"exchange.{request}.{place}.default-exchange", outcome)

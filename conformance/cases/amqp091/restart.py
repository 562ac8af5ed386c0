"""What outlives the server: durable queues, exchanges, bindings, persistent messages, and what was confirmed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from assay.conformance.amqp091.context import AmqpContext, amqp_case
from assay.conformance.cases.amqp091.extensions import has_expirations
from assay.conformance.wire.amqp091 import FRAME_MIN_BYTES, FRAME_OVERHEAD_BYTES

_NEEDS = ("restart", "persistence")
_PERSISTENT = {"delivery_mode": 2}
_PROPERTIES: Mapping[str, Any] = {
    "content-type": "text/plain",
    "content-encoding": "none",
    "delivery-mode": 2,
    "priority": 3,
    "correlation-id": "correlation",
    "reply-to": "reply",
    "message-id": "message",
    "timestamp": 1_700_000_000,
    "type": "kind",
    "app-id": "assay",
}


@amqp_case(
    "restart/durable-queues-and-bindings",
    mutant="amqp-bindings-not-durable",
    kills=("amqp-nothing-durable", "amqp-bindings-of-deleted-queues-come-back"),
    clauses=("queue.declare.durable.persistence", "queue.bind.durable-exchange", "exchange.declare.durable.support"),
    requires=_NEEDS,
    together=True,
    limit_s=15.0,
)
async def definitions(ctx: AmqpContext) -> None:
    """Durable queues, durable exchanges and the bindings between them are there again.

    A message by the exchange reaches the queue after the restart; what had been unbound and deleted stays away, and so
    does the binding of a queue that was deleted, and declared anew without it.
    """
    channel = await ctx.channel()
    queue, gone, anew = [await channel.queue(shared=True) for _ in range(3)]
    exchange = await channel.exchange("topic", durable=True)
    await channel.bind(queue, exchange, "kept.#")
    await channel.bind(anew, exchange, "kept.#")
    await channel.call("queue.delete", queue=anew)
    await channel.call("queue.declare", queue=anew, durable=True)
    await channel.bind(queue, exchange, "undone.#")
    await channel.call("queue.unbind", queue=queue, exchange=exchange, routing_key="undone.#")
    await channel.call("queue.delete", queue=gone)
    await ctx.restart()
    channel = await ctx.channel()
    with ctx.own_point():
        await channel.call("queue.declare", queue=queue, durable=True)
        await channel.call("exchange.declare", exchange=exchange, type_="topic", durable=True)
        channel.publish(exchange, "undone.x", b"undone")
        channel.publish(exchange, "kept.x", b"kept")
        event = await channel.get_soon(queue)
    ctx.must(event.body == b"kept", f"expected the binding that was kept alone; seen {event.body!r}")
    ctx.must(await channel.get(anew) is None, f"expected no binding of {anew}, which was deleted; seen a message")
    outcome = await channel.outcome("queue.declare", queue=gone, passive=True)
    ctx.must(outcome == "channel 404", f"expected a deleted queue to stay away; seen {outcome}")


@amqp_case(
    "restart/confirmed-messages",
    mutant="amqp-messages-in-memory",
    kills=("amqp-expirations-count-down", "amqp-priorities-of-messages-lost"),
    clauses=("basic.01", "rmq.confirm.persistent", "confirm.all-queues"),
    requires=(*_NEEDS, "publisher_confirms"),
    together=True,
    limit_s=15.0,
)
async def confirmed(ctx: AmqpContext) -> None:
    """What is persistent and was confirmed is there again, whole, with its properties and in its order.

    Two queues of a fanout exchange and thirty messages of different sizes, with headers. Five are acknowledged before:
    nothing confirms that to the client, so that they may come again, in their places.
    """
    channel = await ctx.channel()
    queues = [await channel.queue(shared=True) for _ in range(2)]
    exchange = await channel.exchange("fanout", durable=True)
    for queue in queues:
        await channel.bind(queue, exchange)
    await channel.confirms()
    bodies = [f"{number} ".encode() + ctx.rng.randbytes(ctx.rng.choice((0, 100, 20_000))) for number in range(30)]
    properties = {**_PROPERTIES, **({"expiration": "86400000"} if await has_expirations(ctx) else {})}
    for number, body in enumerate(bodies):
        channel.publish(exchange, "k", body, properties={**properties, "headers": {"number": number}})
    await channel.confirmed()
    for _ in range(5):
        event = await channel.get_soon(queues[0], no_ack=False)
        channel.ack(event)
    await channel.barrier()
    await channel.count_becomes(queues[0], 25)
    await channel.connection.disconnect()
    await ctx.restart()
    channel = await ctx.channel()
    for queue, first in zip(queues, (5, 0), strict=True):
        with ctx.own_point():
            event = await channel.get_soon(queue)
        begins = event.headers.get("number")
        ctx.must(begins in range(first + 1), f"expected message {first} after the restart; seen {begins}")
        assert isinstance(begins, int)
        for body in bodies[begins:]:
            text = f"expected confirmed messages in their order; seen message {event.headers.get('number')}"
            ctx.must(event.body == body, text)
            ctx.keeps(properties, event.properties)
            if body is not bodies[-1]:
                event = await channel.get_soon(queue)
        ctx.must(await channel.get(queue) is None, "expected each message once; seen more")


@amqp_case(
    "restart/unacknowledged-deliveries",
    mutant="amqp-messages-in-memory",
    clauses=("basic.01", "redelivered.implementation"),
    requires=(*_NEEDS, "publisher_confirms"),
    together=True,
    limit_s=15.0,
)
async def unacknowledged(ctx: AmqpContext) -> None:
    """What was delivered and not acknowledged is there again after a restart.

    Three persistent messages, confirmed; the first is acknowledged, two wait with a consumer.
    """
    channel = await ctx.channel()
    queue = await channel.queue(shared=True)
    await channel.confirms()
    for number in range(3):
        channel.publish("", queue, str(number).encode(), properties=_PERSISTENT)
    await channel.confirmed()
    events = [await channel.get_soon(queue, no_ack=False) for _ in range(3)]
    channel.ack(events[0])
    await channel.barrier()
    await ctx.restart()
    channel = await ctx.channel()
    with ctx.own_point():
        seen = [(await channel.get_soon(queue)).body for _ in range(2)]
    ctx.must(set(seen) >= {b"1", b"2"} or b"0" in seen, f"expected what was not acknowledged; seen {seen}")


@amqp_case(
    "restart/transactions",
    mutant="amqp-messages-in-memory",
    kills=("amqp-uncommitted-refusals-are-written",),
    clauses=("rmq.tx.semantics", "basic.01"),
    requires=_NEEDS,
    together=True,
    limit_s=15.0,
)
async def transactions(ctx: AmqpContext) -> None:
    """What was committed is there after a restart, and what was not is not.

    Persistent messages: two committed, one not. A transaction that has not ended rejects the first of the two.
    """
    channel = await ctx.channel()
    outcome = await channel.outcome("tx.select")
    if outcome != "ok":
        ctx.unsupported(f"tx.select is answered by {outcome}")
    queue = await channel.queue(shared=True)
    for body in (b"1", b"2"):
        channel.publish("", queue, body, properties=_PERSISTENT)
    await channel.call("tx.commit")
    channel.publish("", queue, b"uncommitted", properties=_PERSISTENT)
    event = await channel.get_soon(queue, no_ack=False)
    channel.send("basic.reject", delivery_tag=event.tag, requeue=False)
    await channel.barrier()
    await ctx.restart()
    channel = await ctx.channel()
    with ctx.own_point():
        seen = [(await channel.get_soon(queue)).body for _ in range(2)]
    ctx.must(seen == [b"1", b"2"], f"expected what was committed; seen {seen}")
    ctx.must(await channel.get(queue) is None, "expected nothing that was not committed; seen a message")


@amqp_case(
    "restart/twice",
    mutant="amqp-messages-in-memory",
    clauses=("basic.01", "rmq.confirm.persistent", "redelivered.implementation"),
    requires=(*_NEEDS, "publisher_confirms"),
    together=True,
    limit_s=25.0,
)
async def twice(ctx: AmqpContext) -> None:
    """A server that is killed twice has what was confirmed before each of them, and what came back in between.

    Three persistent messages before the first, one of them delivered and not acknowledged then; three more before the
    second, and one of the old ones is delivered again meanwhile. All six come, whatever their order.
    """
    queue = ""
    for life in range(2):
        channel = await ctx.channel()
        queue = queue or await channel.queue(shared=True)
        await channel.confirms()
        for number in range(3):
            channel.publish("", queue, f"{life}.{number}".encode(), properties=_PERSISTENT)
        await channel.confirmed()
        with ctx.own_point():
            await channel.get_soon(queue, no_ack=False)
        await ctx.restart()
    channel = await ctx.channel()
    with ctx.own_point():
        seen = sorted([(await channel.get_soon(queue)).body for _ in range(6)])
    wanted = [f"{life}.{number}".encode() for life in range(2) for number in range(3)]
    ctx.must(seen == wanted, f"expected what was confirmed in both lives; seen {seen}")


@amqp_case(
    "restart/bodies-of-several-frames",
    mutant="amqp-second-part-lost",
    kills=("amqp-messages-in-memory",),
    clauses=("basic.01", "sec.3.1.1.body-unmodified", "rmq.confirm.persistent"),
    requires=(*_NEEDS, "publisher_confirms"),
    together=True,
    limit_s=15.0,
)
async def bodies(ctx: AmqpContext) -> None:
    """Persistent bodies around the sizes of frames, and one of a megabyte, are whole after a restart.

    The client agrees on frames of 4096 bytes; none, one byte, and one byte less and more than one and two frames hold.
    """
    channel = await ctx.channel(frame_max=FRAME_MIN_BYTES)
    queue = await channel.queue(shared=True)
    await channel.confirms()
    room = FRAME_MIN_BYTES - FRAME_OVERHEAD_BYTES
    sizes = (0, 1, *(frames * room + more for frames in (1, 2) for more in (-1, 0, 1)), 1_000_000)
    sent = [ctx.rng.randbytes(size) for size in sizes]
    for body in sent:
        channel.publish("", queue, body, properties=_PERSISTENT)
    await channel.confirmed()
    await ctx.restart()
    channel = await ctx.channel(frame_max=FRAME_MIN_BYTES)
    for body in sent:
        with ctx.own_point():
            event = await channel.get_soon(queue)
        ctx.must(event.body == body, f"expected a body of {len(body)} bytes as it was; seen {len(event.body)} bytes")


@amqp_case(
    "restart/auto-delete-goes-on",
    mutant="amqp-auto-delete-queues-are-plain-after-a-restart",
    kills=("amqp-auto-delete-exchanges-are-plain-after-a-restart", "amqp-unbound-exchanges-go-at-the-start"),
    clauses=("rmq.auto-delete.queue", "rmq.auto-delete.exchange"),
    requires=_NEEDS,
    together=True,
    limit_s=15.0,
)
async def auto_delete(ctx: AmqpContext) -> None:
    """Durable queues and exchanges that are auto-delete are there after a restart, and end as they would have before.

    Two queues without a consumer, an exchange that one of them is bound to, and one that nothing was bound to yet. All
    are there; the last consumer of the bound queue goes, and with it the queue, its binding and the exchange.
    """
    channel = await ctx.channel()
    used, unused = [await channel.queue(shared=True, auto_delete=True) for _ in range(2)]
    bound, unbound = [await channel.exchange("fanout", durable=True, auto_delete=True) for _ in range(2)]
    await channel.bind(used, bound)
    await ctx.restart()
    connection = await ctx.client()
    channel = await connection.channel()
    with ctx.own_point():
        for passive in (True, False):  # they are there, and what they were
            for queue in (used, unused):
                await channel.call("queue.declare", queue=queue, passive=passive, durable=True, auto_delete=True)
            for exchange in (bound, unbound):
                fields = {"type_": "fanout", "passive": passive, "durable": True, "auto_delete": True}
                await channel.call("exchange.declare", exchange=exchange, **fields)
        channel.publish(bound, "", b"by its binding")
        await channel.count_becomes(used, 1)
    tag = await channel.consume(used)
    await channel.delivery(b"by its binding")
    await channel.call("basic.cancel", consumer_tag=tag)
    await channel.close()
    await ctx.becomes(connection, "queue.declare", "channel 404", queue=used, passive=True)
    await ctx.becomes(connection, "exchange.declare", "channel 404", exchange=bound, type_="fanout", passive=True)
    channel = await connection.channel()
    with ctx.own_point():
        await channel.call("queue.declare", queue=unused, passive=True)
        await channel.call("exchange.declare", exchange=unbound, type_="fanout", passive=True)


@amqp_case(
    "restart/declared-as-before",
    mutant="amqp-exchange-arguments-lost-by-restart",
    kills=(
        "amqp-internal-exchanges-open-to-all-after-a-restart",
        "amqp-binding-arguments-lost-by-restart",
        "amqp-queue-arguments-lost-by-restart",
    ),
    clauses=("rmq.alternate-exchange", "sec.3.1.3.4.headers-all", "rmq.queue.max-length", "rmq.dlx.reasons"),
    requires=_NEEDS,
    together=True,
    limit_s=15.0,
)
async def declared(ctx: AmqpContext) -> None:
    """Arguments of durable queues, exchanges and bindings count after a restart as they did before.

    An exchange of headers has a binding by one of them; what fits it not leads to its alternate exchange, which is
    internal, and whose queue has room for one message and dead letters. Three messages: one by the binding, two by the
    alternate exchange, of which the first becomes a dead letter. The alternate exchange refuses publishes.
    """
    await ctx.needs_argument("x-dead-letter-exchange", 5)
    await ctx.needs_argument("x-max-length", -1)
    channel = await ctx.channel()
    fitting, letters = await channel.queue(shared=True), await channel.queue(shared=True)
    arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": letters, "x-max-length": 1}
    others = await channel.queue(shared=True, arguments=arguments)
    alternate = await channel.exchange("fanout", durable=True, internal=True)
    exchange = await channel.exchange("headers", durable=True, arguments={"alternate-exchange": alternate})
    await channel.bind(others, alternate)
    await channel.call("queue.bind", queue=fitting, exchange=exchange, arguments={"x-match": "all", "fits": 1})
    await ctx.restart()
    channel = await ctx.channel()
    for body, fits in ((b"fits", 1), (b"first", 2), (b"second", 3)):
        channel.publish(exchange, "", body, properties={"headers": {"fits": fits}})
    for queue, body in ((letters, b"first"), (others, b"second"), (fitting, b"fits")):
        with ctx.own_point():
            event = await channel.get_soon(queue)
        ctx.must(event.body == body, f"expected {body!r} where it leads; seen {event.body!r}")
        ctx.must(await channel.get(queue) is None, "expected each message in one queue; seen another one")
    channel.publish(alternate, "", b"from outside")
    ctx.allow("basic.publish.exchange.02", await channel.outcome_of())

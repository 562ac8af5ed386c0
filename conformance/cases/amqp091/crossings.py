"""Two features at once: bindings that go beside others, letters that die again, what a transaction sends to several."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from typing import Any

from assay.conformance.amqp091.client import Channel
from assay.conformance.amqp091.context import AmqpContext, amqp_case
from assay.conformance.stall import Stopwatch
from assay.conformance.wire.amqp091 import Arrival

_E2E = ("exchange_exchange_bindings",)


async def _bodies(channel: Channel, queue: str, count: int) -> list[bytes]:
    """So many messages that must be in a queue."""
    return [(await channel.get_soon(queue)).body for _ in range(count)]


@amqp_case(
    "exchange/unbinding-spares-the-others",
    mutant="amqp-unbinding-takes-the-key-along",
    clauses=(
        "queue.bind.routing-key.direct-exchange-key-matching",
        "sec.3.1.3.2.fanout",
        "sec.3.1.3.3.topic-match",
    ),
)
async def unbinding(ctx: AmqpContext) -> None:
    """One binding goes; others with its key, and others of its queue, stay.

    For direct, fanout and topic exchanges: two queues bound by one key, one of them by another key as well. Its first
    binding goes; a message of the first key comes to the other queue (by a fanout exchange to both), one of the second
    key to the queue.
    """
    channel = await ctx.channel()
    for type_ in ("direct", "fanout", "topic"):
        exchange = await channel.exchange(type_)
        first, second = await channel.queue(), await channel.queue()
        for queue, key in ((first, "a.b"), (second, "a.b"), (first, "a.c")):
            await channel.bind(queue, exchange, key)
        await channel.call("queue.unbind", queue=first, exchange=exchange, routing_key="a.b")
        channel.publish(exchange, "a.b", b"of both")
        channel.publish(exchange, "a.c", b"of one")
        both = type_ == "fanout"
        seen = await _bodies(channel, second, 1 + both), await _bodies(channel, first, 1 + both)
        wanted = [b"of both"] + [b"of one"] * both, [b"of both"] * both + [b"of one"]
        ctx.must(seen == wanted, f"{type_}: expected what the bindings that are left lead to; seen {seen}")
        ctx.must(await channel.count(first) == 0, f"{type_}: expected no more in the first queue; seen messages")


@amqp_case(
    "exchange/unbound-headers-lead-nowhere",
    mutant="amqp-unbound-from-everything-stays",
    kills=("amqp-unbound-from-any-stays",),
    clauses=("sec.3.1.3.4.headers-all", "sec.3.1.3.4.headers-any"),
)
async def unbound_headers(ctx: AmqpContext) -> None:
    """What was bound to a headers exchange, by whatever arguments, gets nothing once it is unbound.

    Three queues: of all pairs, of any of two, and without arguments. A message that fits all of them comes to a fourth
    one, which stays bound.
    """
    channel = await ctx.channel()
    exchange = await channel.exchange("headers")
    pairs = {"a": 1, "b": 2}
    patterns: list[dict[str, Any]] = [{"x-match": "all", **pairs}, {"x-match": "any", **pairs}, {}]
    queues = [await channel.queue() for _ in (*patterns, "bound")]
    for queue, arguments in zip(queues, [*patterns, patterns[0]], strict=True):
        await channel.call("queue.bind", queue=queue, exchange=exchange, arguments=arguments)
    for queue, arguments in zip(queues, patterns, strict=False):
        await channel.call("queue.unbind", queue=queue, exchange=exchange, arguments=arguments)
    channel.publish(exchange, "", b"message", properties={"headers": pairs})
    await _bodies(channel, queues[-1], 1)
    await channel.barrier()
    seen = [await channel.count(queue) for queue in queues[:-1]]
    ctx.must(not any(seen), f"expected no message in queues that were unbound; seen {seen}")


@amqp_case(
    "exchange/changes-behind-bindings-count",
    mutant="amqp-unbound-is-remembered",
    clauses=("rmq.exchange.bind",),
    requires=_E2E,
)
async def behind(ctx: AmqpContext) -> None:
    """What is bound and unbound behind another exchange counts at once for messages to the first.

    Three exchanges in a row, which have been used; a second queue is bound to the last one, and then the first queue
    is unbound from it.
    """
    channel = await ctx.channel()
    row = [await channel.exchange("direct") for _ in range(3)]
    for source, destination in pairwise(row):
        await channel.call("exchange.bind", source=source, destination=destination, routing_key="k")
    first, second = await channel.queue(), await channel.queue()
    await channel.bind(first, row[2], "k")
    channel.publish(row[0], "k", b"1")
    await channel.barrier()
    await channel.bind(second, row[2], "k")
    channel.publish(row[0], "k", b"2")
    await channel.barrier()
    await channel.call("queue.unbind", queue=first, exchange=row[2], routing_key="k")
    channel.publish(row[0], "k", b"3")
    seen = await _bodies(channel, second, 2), await _bodies(channel, first, 2)
    ctx.must(seen == ([b"2", b"3"], [b"1", b"2"]), f"expected 2 and 3 in the second, 1 and 2 in the first; seen {seen}")
    ctx.must(await channel.count(first) == 0, "expected no more in the queue that was unbound; seen messages")


@amqp_case(
    "exchange/alternates-behind-bindings",
    mutant="amqp-alternate-of-the-first-alone",
    clauses=("rmq.alternate-exchange",),
    requires=_E2E,
)
async def alternates(ctx: AmqpContext) -> None:
    """An alternate exchange counts behind a binding, too, and from when it is declared.

    A fanout exchange passes all to a direct one, whose alternate is declared after a first message has led nowhere.
    """
    channel = await ctx.channel()
    first, name, other = await channel.exchange("fanout"), ctx.exchange_name(), ctx.exchange_name()
    arguments = {"alternate-exchange": other}
    outcome = await channel.outcome("exchange.declare", exchange=name, type_="direct", arguments=arguments)
    if outcome != "ok":
        ctx.unsupported(f"the argument alternate-exchange is answered by {outcome}")
    await channel.call("exchange.bind", source=first, destination=name)
    channel.publish(first, "k", b"nowhere")
    await channel.barrier()
    await channel.call("exchange.declare", exchange=other, type_="fanout")
    queue = await channel.queue()
    await channel.bind(queue, other)
    channel.publish(first, "k", b"alternate")
    seen = await _bodies(channel, queue, 1)
    ctx.must(seen == [b"alternate"], f"expected what led nowhere else; seen {seen}")


@amqp_case(
    "tx/commit-reaches-every-queue",
    mutant="amqp-commit-of-one-publish-reaches-one-queue",
    clauses=("rmq.tx.semantics",),
)
async def every_queue(ctx: AmqpContext) -> None:
    """A single publish of a transaction comes to all the queues that its exchange leads to.

    Two queues, bound to a fanout exchange.
    """
    channel = await ctx.channel()
    outcome = await channel.outcome("tx.select")
    if outcome != "ok":
        ctx.unsupported(f"tx.select is answered by {outcome}")
    exchange = await channel.exchange("fanout")
    queues = [await channel.queue(), await channel.queue()]
    for queue in queues:
        await channel.bind(queue, exchange)
    channel.publish(exchange, "", b"to both")
    await channel.call("tx.commit")
    other = await channel.connection.channel()
    seen = [await _bodies(other, queue, 1) for queue in queues]
    ctx.must(seen == [[b"to both"]] * 2, f"expected the message in both queues; seen {seen}")


def _deaths(event: Arrival, *names: str) -> list[tuple[Any, ...]]:
    entries = event.headers.get("x-death")
    names = names or ("queue", "reason", "count")
    return [tuple(each.get(name) for name in names) for each in entries] if isinstance(entries, list) else []


@amqp_case(
    "extensions/each-reason-is-a-death-of-its-own",
    mutant="amqp-deaths-count-by-queue",
    kills=("amqp-first-death-is-the-last", "amqp-first-death-queue-is-its-exchange"),
    clauses=("rmq.dlx.reasons",),
)
async def reasons(ctx: AmqpContext) -> None:
    """x-death has one entry for each queue and reason, the latest death first (RabbitMQ orders the others its own way).

    Two queues are each other's dead letters, the first with room for one message. A message is rejected in the first
    and in the second, and then makes room in the first for another one. Its first death stays the first one.
    """
    channel = await ctx.channel()
    await ctx.needs_argument("x-dead-letter-exchange", 5)
    await ctx.needs_argument("x-max-length", -1)
    first, second = ctx.queue_name(), ctx.queue_name()
    letters = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": second, "x-max-length": 1}
    await ctx.queue_with(channel, letters, first)
    await ctx.queue_with(channel, letters | {"x-dead-letter-routing-key": first, "x-max-length": 9}, second)
    channel.publish("", first, b"message")
    for queue in (first, second):
        event = await channel.get_soon(queue, no_ack=False)
        channel.send("basic.reject", delivery_tag=event.tag, requeue=False)
    await channel.count_becomes(first, 1)
    channel.publish("", first, b"newer")
    event = await channel.get_soon(second)
    wanted = [(first, "maxlen", 1), (second, "rejected", 1), (first, "rejected", 1)]
    seen = _deaths(event)
    is_right = seen[:1] == wanted[:1] and sorted(seen[1:]) == sorted(wanted[1:])
    ctx.must(is_right, f"expected the deaths {wanted}, those behind the first in any order; seen {seen}")
    told = {name: event.headers.get(f"x-first-death-{name}") for name in ("queue", "reason", "exchange")}
    first_death = {"queue": first, "reason": "rejected", "exchange": ""}
    ctx.must(told == first_death, f"expected its first death as {first_death}; seen {told}")


@amqp_case(
    "extensions/letters-with-a-key-of-their-own-go-nowhere-else",
    mutant="amqp-letters-keep-their-copies",
    kills=("amqp-deaths-tell-one-key",),
    clauses=("rmq.sender-selected", "rmq.dlx.reasons"),
)
async def copies(ctx: AmqpContext) -> None:
    """A dead letter with a routing key of its queue goes by that alone, whatever CC said of the message.

    A message with a CC to a second queue is rejected in the first. Its letter does not come to the second one, and
    tells both keys in x-death.
    """
    channel = await ctx.channel()
    await ctx.needs_argument("x-dead-letter-exchange", 5)
    letters, copied = await channel.queue(), await channel.queue()
    arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": letters}
    queue = await ctx.queue_with(channel, arguments)
    channel.publish("", queue, b"message", properties={"headers": {"CC": [copied]}})
    event = await channel.get_soon(queue, no_ack=False)
    await channel.barrier()
    if not await channel.count(copied):
        ctx.unsupported("the header CC leads nowhere")
    await channel.get_soon(copied)
    channel.send("basic.reject", delivery_tag=event.tag, requeue=False)
    letter = await channel.get_soon(letters)
    await channel.barrier()
    ctx.must(await channel.count(copied) == 0, "expected no letter where CC had led; seen one")
    ((*_, keys),) = _deaths(letter, "routing-keys") or ((None,),)
    ctx.must(keys == [queue, copied], f"expected x-death to tell the keys {[queue, copied]}; seen {keys}")


@amqp_case(
    "exchange/auto-delete-follows-the-bindings",
    mutant="amqp-auto-delete-chains-end-early",
    clauses=("rmq.auto-delete.exchange", "rmq.exchange.bind"),
    requires=_E2E,
)
async def chain(ctx: AmqpContext) -> None:
    """An auto-delete exchange ends with its last binding, also when that goes with another exchange or a queue.

    Three in a row, each bound to the next and the last one to a queue, which is deleted.
    """
    connection = await ctx.client()
    channel = await connection.channel()
    row = [await channel.exchange("fanout", auto_delete=True) for _ in range(3)]
    queue = await channel.queue()
    await channel.bind(queue, row[2])
    for source, destination in reversed([*pairwise(row)]):
        await channel.call("exchange.bind", source=source, destination=destination)
    channel.publish(row[0], "", b"through all")
    await channel.get_soon(queue)
    await channel.call("queue.delete", queue=queue)
    for exchange in row:
        await ctx.becomes(
            connection, "exchange.declare", "channel 404", exchange=exchange, type_="fanout", passive=True
        )


@amqp_case(
    "extensions/both-limits-on-length-hold",
    mutant="amqp-one-limit-on-length-holds",
    clauses=("rmq.queue.max-length",),
)
async def both_limits(ctx: AmqpContext) -> None:
    """With x-max-length and x-max-length-bytes the oldest go until neither is passed.

    Four small messages where three may be, and then two of which there is room for one, whatever counts beside a body.
    """
    channel = await ctx.channel()
    await ctx.needs_argument("x-max-length", -1)
    await ctx.needs_argument("x-max-length-bytes", -1)
    queue = await ctx.queue_with(channel, {"x-max-length": 3, "x-max-length-bytes": 100_000})
    for number in range(4):
        channel.publish("", queue, str(number).encode())
    await channel.count_becomes(queue, 3)
    for body in (b"a", b"b"):
        channel.publish("", queue, body * 60_000)
    await channel.count_becomes(queue, 1)
    (body,) = await _bodies(channel, queue, 1)
    ctx.must(body[:1] == b"b", f"expected the newest one; seen a message of {body[:1]!r}")


@amqp_case(
    "extensions/gets-put-the-end-off",
    mutant="amqp-gets-are-no-use",
    kills=("amqp-declarations-are-no-use",),
    clauses=("rmq.queue.expires",),
)
async def gets_are_uses(ctx: AmqpContext) -> None:
    """A queue that is asked for messages, or declared again, is used, and lives for x-expires from then on.

    800 ms; one queue is asked and another one declared ten times, with 150 ms between, and both are then still there.
    """
    ctx.is_timed = True
    channel = await ctx.channel()
    await ctx.needs_argument("x-expires", 0)
    watch = Stopwatch()
    arguments = {"x-expires": 800 * ctx.stretch}
    queue, declared = [await ctx.queue_with(channel, arguments) for _ in range(2)]
    channel.publish("", declared, b"kept")
    with watch.judging_before(0.8 * ctx.stretch):
        await channel.count_becomes(declared, 1)
    for _ in range(10):
        with watch.judging_before(0.8 * ctx.stretch):
            await asyncio.sleep(0.15 * ctx.stretch)
            asked = Stopwatch()
            outcome = await channel.outcome("basic.get", queue=queue, no_ack=True)
            ctx.must(outcome == "ok", f"expected a queue that is asked again and again to live on; seen {outcome}")
            answer = await channel.call("queue.declare", queue=declared, exclusive=True, arguments=arguments)
            kept = answer["message-count"]
            ctx.must(kept == 1, f"expected a queue that is declared again and again to live on; seen {kept} messages")
        watch = asked

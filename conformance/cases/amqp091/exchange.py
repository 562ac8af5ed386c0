"""Exchanges: types, declarations, deletions, and how they route."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from assay.conformance.amqp091.client import Channel
from assay.conformance.amqp091.context import AmqpContext, amqp_case

_MARKER = b"marker"
_STANDARD = ("direct", "fanout", "topic", "headers")


async def routed(
    ctx: AmqpContext,
    channel: Channel,
    exchange: str,
    queues: Mapping[str, bool],
    key: str,
    *,
    marker_key: str = "assay-marker",
    properties: Mapping[str, Any] = {},
    what: str = "",
) -> None:
    """Publish one message; of the queues (consumed on this channel, by consumer tag), exactly those get it once.

    A marker follows by the same exchange to each queue, so that what is not there by then has not been routed.
    """
    channel.publish(exchange, key, b"message", properties=properties)
    channel.publish(exchange, marker_key, _MARKER, properties={"headers": {"marker": 1}})
    seen = dict.fromkeys(queues, 0)
    marked: set[str] = set()
    while len(marked) < len(queues):
        event = await channel.delivery()
        if event.body == _MARKER:
            marked.add(event["consumer-tag"])
        else:
            seen[event["consumer-tag"]] += 1
    for tag, wanted in queues.items():
        text = what or f"a message with routing key {key!r}"
        ctx.must(seen[tag] == int(wanted), f"expected {text} {int(wanted)} time(s) in {tag}; seen {seen[tag]}")


async def bound(channel: Channel, exchange: str, *keys: str, marker: bool = True) -> str:
    """A queue that is bound by these keys (and that of the marker) and consumed; returns the consumer tag."""
    queue = await channel.queue()
    for key in (*keys, *(("assay-marker",) if marker else ())):
        await channel.bind(queue, exchange, key)
    return await channel.consume(queue, no_ack=True, consumer_tag=f"bound by {' and '.join(keys) or 'nothing'}"[:100])


@amqp_case(
    "exchange/requests-are-answered",
    mutant="amqp-no-wait-answered",
    clauses=("sync.exchange.declare", "sync.exchange.delete", "grammar.exchange"),
)
async def requests(ctx: AmqpContext) -> None:
    """exchange.declare and exchange.delete are answered once, and with no-wait not at all.

    What was asked for without waiting is there, and gone, all the same.
    """
    channel = await ctx.channel()
    name, silent = ctx.exchange_name(), ctx.exchange_name()
    with ctx.own_point():
        await channel.call("exchange.declare", exchange=name, type_="direct")
        channel.send("exchange.declare", exchange=silent, type_="direct", no_wait=True)
        await channel.call("exchange.declare", exchange=silent, type_="direct", passive=True)
        await channel.call("exchange.delete", exchange=name)
        channel.send("exchange.delete", exchange=silent, no_wait=True)
        await channel.barrier()
    outcome = await channel.outcome("exchange.declare", exchange=silent, type_="direct", passive=True)
    ctx.must(outcome == "channel 404", f"expected a deletion without waiting to be done; seen {outcome}")


@amqp_case(
    "exchange/standard-types",
    mutant="amqp-no-fanout",
    clauses=("exchange.required-types", "sec.3.1.3.1.direct", "sec.3.1.3.2.fanout"),
)
async def required_types(ctx: AmqpContext) -> None:
    """Exchanges of the types direct and fanout can be declared.

    Durable, which every server must take.
    """
    channel = await ctx.channel()
    with ctx.own_point():
        for type_ in ("direct", "fanout"):
            await channel.exchange(type_, durable=True)


@amqp_case(
    "exchange/recommended-types", mutant="amqp-no-fanout", clauses=("exchange.recommended-types",), level="SHOULD"
)
async def recommended_types(ctx: AmqpContext) -> None:
    """Exchanges of the types topic and headers can be declared.

    Whoever refuses one misses a SHOULD.
    """
    connection = await ctx.client()
    for type_ in ("topic", "headers"):
        channel = await connection.channel()
        outcome = await channel.outcome("exchange.declare", exchange=ctx.exchange_name(), type_=type_)
        ctx.should(outcome == "ok", f"an exchange of type {type_} is refused: {outcome}")
        if outcome.startswith("connection") or outcome == "close":
            return


async def _knows(ctx: AmqpContext, type_: str) -> bool:
    channel = await ctx.channel()
    return await channel.outcome("exchange.declare", exchange=ctx.exchange_name(), type_=type_) == "ok"


@amqp_case(
    "exchange/predeclared-ones",
    mutant="amqp-no-fanout",
    clauses=(
        "exchange.required-instances",
        "sec.3.1.3.1.direct",
        "sec.3.1.3.2.fanout",
        "sec.3.1.3.3.amq-topic",
        "sec.3.1.3.4.amq-match",
    ),
)
async def predeclared(ctx: AmqpContext) -> None:
    """There is an exchange amq.<type> for each standard type that the server knows.

    That of type headers may be amq.headers or amq.match: the specification uses both names. A queue is bound to each.
    """
    channel = await ctx.channel()
    queue = await channel.queue()
    for type_ in _STANDARD:
        if type_ in ("topic", "headers") and not await _knows(ctx, type_):
            continue
        names = ("amq.headers", "amq.match") if type_ == "headers" else (f"amq.{type_}",)
        outcomes = []
        for name in names:
            asking = await channel.connection.channel()
            outcomes.append(await asking.outcome("exchange.declare", exchange=name, type_=type_, passive=True))
            if outcomes[-1] == "ok":
                await channel.bind(queue, name, "k")
        ctx.must("ok" in outcomes, f"expected the exchange {' or '.join(names)} to be there; seen {outcomes}")
        ctx.should(set(outcomes) == {"ok"}, f"one of {', '.join(names)} is not there: {outcomes}")


@amqp_case(
    "exchange/the-nameless-one-routes-by-queue-name",
    mutant="amqp-no-default-bindings",
    clauses=(
        "exchange.default-exchange",
        "queue.declare.default-binding",
        "sec.3.1.3.1.auto-bind",
        "basic.publish.exchange.default-exchange",
    ),
)
async def default_exchange(ctx: AmqpContext) -> None:
    """A message for the nameless exchange reaches the queue that its routing key names, and no other.

    Two queues are declared and not bound to anything.
    """
    channel = await ctx.channel()
    first, second = await channel.queue(), await channel.queue()
    channel.publish("", first, b"for the first")
    channel.publish("", second, b"for the second")
    with ctx.own_point():
        for queue, body in ((second, b"for the second"), (first, b"for the first")):
            event = await channel.get_soon(queue)
            ctx.must(event.body == body, f"expected {body!r}; seen {event.body!r}")
            ctx.must(event["exchange"] == "" and event["routing-key"] == queue, "expected the exchange and key it had")
        ctx.must(await channel.get(first) is None, "expected one message; seen a second")


@amqp_case(
    "exchange/the-nameless-one-is-not-touched",
    mutant="amqp-default-exchange-declared",
    clauses=("exchange.default-access",),
)
async def default_access(ctx: AmqpContext) -> None:
    """The nameless exchange can be neither declared nor deleted.

    Each is tried on a channel of its own; afterwards it still routes.
    """
    for request, fields in (("exchange.declare", {"type_": "direct"}), ("exchange.delete", {})):
        channel = await ctx.channel()
        outcome = await channel.outcome(request, exchange="", **fields)
        ctx.allow("exchange.default-access", outcome)
    channel = await ctx.channel()
    queue = await channel.queue()
    channel.publish("", queue, b"still")
    with ctx.own_point():
        await channel.get_soon(queue)


@amqp_case("exchange/sixteen-fit", mutant="amqp-room-for-few", clauses=("exchange.declare.minimum",), level="SHOULD")
async def minimum(ctx: AmqpContext) -> None:
    """Sixteen exchanges can be declared, and each routes.

    Fewer are a SHOULD that was missed.
    """
    channel = await ctx.channel()
    queue = await channel.queue()
    await channel.consume(queue, no_ack=True)
    for number in range(16):
        name = ctx.exchange_name()
        outcome = await channel.outcome("exchange.declare", exchange=name, type_="fanout")
        if outcome != "ok":
            ctx.should(False, f"no more than {number} exchanges can be declared: {outcome}")
            return
        await channel.bind(queue, name)
        channel.publish(name, "", str(number).encode())
        await channel.delivery(str(number).encode())


@amqp_case(
    "exchange/reserved-names", mutant="amqp-reserved-names-taken", clauses=("exchange.declare.exchange.reserved",)
)
async def reserved(ctx: AmqpContext) -> None:
    """A new exchange whose name begins with amq. is refused; one that exists may be declared again.

    amq.direct is declared passively and in full; then a name that nobody has.
    """
    channel = await ctx.channel()
    with ctx.own_point():
        await channel.call("exchange.declare", exchange="amq.direct", type_="direct", passive=True)
    outcome = await channel.outcome("exchange.declare", exchange=f"amq.{ctx.exchange_name()}", type_="direct")
    ctx.allow("exchange.declare.exchange.reserved", outcome)


@amqp_case(
    "exchange/odd-names-are-taken-or-refused",
    mutant="amqp-refusals-are-internal-errors",
    clauses=("exchange.declare.exchange.syntax",),
    level="MAY",
)
async def odd_names(ctx: AmqpContext) -> None:
    """A name with characters beyond the specification's is refused by 406, or works like any other.

    A space and a slash; where it is taken, a queue is bound to it.
    """
    channel = await ctx.channel()
    name = f"{ctx.exchange_name()} a/b"
    outcome = await channel.outcome("exchange.declare", exchange=name, type_="fanout")
    ctx.allow("exchange.declare.exchange.syntax", outcome)
    if outcome == "ok":
        queue = await channel.queue()
        await channel.bind(queue, name)
        channel.publish(name, "", b"odd")
        await channel.get_soon(queue)


@amqp_case("exchange/keeps-its-type", mutant="amqp-exchange-types-change", clauses=("exchange.declare.type.typed",))
async def keeps_type(ctx: AmqpContext) -> None:
    """Declaring an exchange again with another type is refused.

    direct, then fanout; the first type stays.
    """
    channel = await ctx.channel()
    name = await channel.exchange("direct")
    outcome = await channel.outcome("exchange.declare", exchange=name, type_="fanout")
    ctx.allow("exchange.declare.type.typed", outcome)
    again = await ctx.channel()
    with ctx.own_point():
        await again.call("exchange.declare", exchange=name, type_="direct")


@amqp_case(
    "exchange/unknown-types-are-refused",
    mutant="amqp-refusals-are-internal-errors",
    clauses=("exchange.declare.type.support", "sec.3.1.3.6.x-types"),
)
async def unknown_type(ctx: AmqpContext) -> None:
    """An exchange of a type that nobody knows is refused, and not there afterwards.

    ``assay-nonsense``, a name that a server's own types cannot have.
    """
    channel = await ctx.channel()
    name = ctx.exchange_name()
    outcome = await channel.outcome("exchange.declare", exchange=name, type_="assay-nonsense")
    ctx.allow("exchange.declare.type.support", outcome)
    again = await ctx.channel()
    outcome = await again.outcome("exchange.declare", exchange=name, type_="direct", passive=True)
    ctx.must(outcome == "channel 404", f"expected no exchange of an unknown type; seen {outcome}")


@amqp_case(
    "exchange/passive-declarations-ask",
    mutant="amqp-passive-makes-exchanges",
    clauses=("exchange.declare.passive.not-found",),
)
async def passive(ctx: AmqpContext) -> None:
    """A passive declaration of an exchange that does not exist ends the channel with 404, and makes none.

    It is asked twice: the first question must not have answered the second.
    """
    connection = await ctx.client()
    name = ctx.exchange_name()
    for _ in range(2):
        channel = await connection.channel()
        outcome = await channel.outcome("exchange.declare", exchange=name, type_="direct", passive=True)
        ctx.allow("exchange.declare.passive.not-found", outcome)


@amqp_case(
    "exchange/declared-again", mutant="amqp-exchange-types-change", clauses=("exchange.declare.passive.equivalent",)
)
async def equivalent(ctx: AmqpContext) -> None:
    """An exchange declared again as it is, is there; with another durability it is refused.

    Declared twice transient, then durable.
    """
    channel = await ctx.channel()
    name = await channel.exchange("direct")
    with ctx.own_point():
        await channel.call("exchange.declare", exchange=name, type_="direct")
    outcome = await channel.outcome("exchange.declare", exchange=name, type_="direct", durable=True)
    ctx.allow("exchange.declare.passive.equivalent", outcome)


@amqp_case(
    "exchange/durable-and-transient", mutant="amqp-durable-or-nothing", clauses=("exchange.declare.durable.support",)
)
async def durable(ctx: AmqpContext) -> None:
    """Durable and transient exchanges can be declared, and route alike.

    One of each, with a queue bound to both.
    """
    channel = await ctx.channel()
    queue = await channel.queue()
    with ctx.own_point():
        for is_durable in (True, False):
            name = await channel.exchange("direct", durable=is_durable)
            await channel.bind(queue, name, "k")
            channel.publish(name, "k", b"here")
            await channel.get_soon(queue)


@amqp_case(
    "exchange/auto-delete-is-not-looked-at-again",
    mutant="amqp-refusals-are-internal-errors",
    clauses=("exchange.declare.auto-delete.amq_exchange_25",),
)
async def auto_delete_again(ctx: AmqpContext) -> None:
    """For an exchange that exists, auto-delete is ignored, or counts as different.

    The specification contradicts itself: both answers pass.
    """
    channel = await ctx.channel()
    name = await channel.exchange("direct")
    outcome = await channel.outcome("exchange.declare", exchange=name, type_="direct", auto_delete=True)
    ctx.allow("exchange.declare.auto-delete.amq_exchange_25", outcome)


@amqp_case(
    "exchange/auto-delete-ends-with-the-last-binding",
    mutant="amqp-auto-delete-exchanges-stay",
    clauses=("rmq.auto-delete.exchange", "exchange.declare.auto-delete.amq_exchange_02"),
)
async def auto_delete(ctx: AmqpContext) -> None:
    """An auto-delete exchange is there until its last binding has gone, and not after.

    It takes a first binding and a second; one is undone, and it still routes; with the other it ends.
    """
    connection = await ctx.client()
    channel = await connection.channel()
    queue = await channel.queue()
    name = await channel.exchange("direct", auto_delete=True)
    with ctx.own_point():
        for key in ("a", "b"):
            await channel.bind(queue, name, key)
        await channel.call("queue.unbind", queue=queue, exchange=name, routing_key="a")
        channel.publish(name, "b", b"still")
        await channel.get_soon(queue)
    await channel.call("queue.unbind", queue=queue, exchange=name, routing_key="b")
    outcome = await channel.outcome("exchange.declare", exchange=name, type_="direct", passive=True)
    ctx.must(outcome == "channel 404", f"expected the exchange to end with its last binding; seen {outcome}")


@amqp_case(
    "exchange/deleting-what-is-not-there",
    mutant="amqp-refusals-are-internal-errors",
    clauses=("exchange.delete.exchange.exists", "rmq.queue.delete.idempotent"),
)
async def delete_missing(ctx: AmqpContext) -> None:
    """Deleting an exchange that does not exist is refused with 404, or done.

    RabbitMQ and others documented that they do the second: it is reported.
    """
    channel = await ctx.channel()
    outcome = await channel.outcome("exchange.delete", exchange=ctx.exchange_name())
    ctx.prefer("exchange.delete.exchange.exists", outcome)


@amqp_case("exchange/if-unused", mutant="amqp-used-exchanges-deleted", clauses=("exchange.delete.if-unused.in-use",))
async def if_unused(ctx: AmqpContext) -> None:
    """With if-unused, an exchange that has a binding is not deleted, and one that has none is.

    Refused with 406; the exchange still routes.
    """
    channel = await ctx.channel()
    name, queue = await channel.exchange("direct"), await channel.queue()
    await channel.bind(queue, name, "k")
    outcome = await channel.outcome("exchange.delete", exchange=name, if_unused=True)
    ctx.allow("exchange.delete.if-unused.in-use", outcome)
    again = await channel.connection.channel()
    again.publish(name, "k", b"still")
    with ctx.own_point():
        await again.get_soon(queue)
        await again.call("queue.unbind", queue=queue, exchange=name, routing_key="k")
        await again.call("exchange.delete", exchange=name, if_unused=True)


# How they route


@amqp_case(
    "exchange/direct-compares-keys",
    mutant="amqp-direct-ignores-case",
    clauses=("queue.bind.routing-key.direct-exchange-key-matching",),
)
async def direct(ctx: AmqpContext) -> None:
    """A direct exchange passes a message to the queues bound by its key, and to no other.

    Keys that begin alike, differ in case, hold wildcards, and the empty one.
    """
    channel = await ctx.channel()
    name = await channel.exchange("direct")
    keys = ("k", "kk", "K", "k.#", "*", "")
    tags = {key: await bound(channel, name, key) for key in keys}
    with ctx.own_point():
        for sent in keys:
            await routed(ctx, channel, name, {tags[key]: key == sent for key in keys}, sent)


@amqp_case("exchange/fanout-passes-to-all", mutant="amqp-fanout-compares-keys", clauses=("sec.3.1.3.2.fanout",))
async def fanout(ctx: AmqpContext) -> None:
    """A fanout exchange passes every message to every queue bound to it, whatever the keys.

    Three queues with different keys, and one that is bound twice and gets it once.
    """
    channel = await ctx.channel()
    name = await channel.exchange("fanout")
    tags = [await bound(channel, name, *keys, marker=False) for keys in (("",), ("a",), ("a", "b"))]
    with ctx.own_point():
        for key in ("", "a", "other"):
            await routed(ctx, channel, name, dict.fromkeys(tags, True), key)


_PATTERNS: Mapping[str, Sequence[str]] = {
    "*.stock.#": ("usd.stock", "eur.stock.db", "eur.stock.a.b"),
    "#": ("", "a", "b", "a.b", "usd.stock", "eur.stock.db", "eur.stock.a.b", "a..b", ".", "stock.nasdaq", "a.x.b"),
    "*": ("a", "b"),
    "a.#": ("a", "a.b", "a..b", "a.x.b"),
    "a.*.b": ("a..b", "a.x.b"),
    "#.b": ("b", "a.b", "a..b", "eur.stock.a.b", "a.x.b"),
    "#.#.b": ("b", "a.b", "a..b", "eur.stock.a.b", "a.x.b"),
    "#.#": ("", "a", "b", "a.b", "usd.stock", "eur.stock.db", "eur.stock.a.b", "a..b", ".", "stock.nasdaq", "a.x.b"),
    "a.b": ("a.b",),
}
"""Patterns to those of the keys below that they match. An empty key has no word, or one that is empty: which is not
said, so that patterns about it alone are left out."""
_KEYS = ("a", "b", "a.b", "usd.stock", "eur.stock.db", "eur.stock.a.b", "a..b", "stock.nasdaq", "a.x.b")


@amqp_case(
    "exchange/topic-patterns",
    mutant="amqp-topic-star-is-no-word",
    kills=("amqp-topic-hash-needs-a-word", "amqp-topic-second-hash-needs-a-word", "amqp-topic-second-hash-ends-it"),
    clauses=("sec.3.1.3.3.topic-match",),
)
async def topic(ctx: AmqpContext) -> None:
    """A topic exchange matches words: * is one, # any number of them.

    Nine patterns and nine keys, with empty words between dots, each pair checked.
    """
    channel = await ctx.channel()
    name = await channel.exchange("topic")
    tags = {pattern: await bound(channel, name, pattern) for pattern in _PATTERNS}
    with ctx.own_point():
        for key in _KEYS:
            await routed(ctx, channel, name, {tags[pattern]: key in keys for pattern, keys in _PATTERNS.items()}, key)


async def _headers_queue(channel: Channel, exchange: str, name: str, **arguments: Any) -> str:
    queue = await channel.queue()
    await channel.call("queue.bind", queue=queue, exchange=exchange, arguments=arguments)
    # With a key of its own: whether arguments alone tell bindings apart is another matter.
    marker = {"x-match": "all", "marker": 1}
    await channel.call("queue.bind", queue=queue, exchange=exchange, routing_key="assay-marker", arguments=marker)
    return await channel.consume(queue, no_ack=True, consumer_tag=name)


async def _by_headers(
    ctx: AmqpContext, arguments: Mapping[str, Any], rows: Sequence[tuple[Mapping[str, Any], bool]]
) -> None:
    channel = await ctx.channel()
    name = await channel.exchange("headers")
    tag = await _headers_queue(channel, name, "bound", **arguments)
    for headers, wanted in rows:
        what = f"a message with headers {dict(headers)}, for a binding with {dict(arguments)}"
        with ctx.own_point():
            await routed(ctx, channel, name, {tag: wanted}, "", properties={"headers": headers}, what=what)


@amqp_case("exchange/headers-all", mutant="amqp-headers-any-for-all", clauses=("sec.3.1.3.4.headers-all",))
async def headers_all(ctx: AmqpContext) -> None:
    """With x-match all, every pair of the binding must be among the headers.

    Both, more than both, one of them, another value, and none.
    """
    both = {"format": "pdf", "pages": 3}
    rows: Sequence[tuple[Mapping[str, Any], bool]] = (
        (both, True),
        ({**both, "more": True}, True),
        ({"format": "pdf"}, False),
        ({"format": "pdf", "pages": 4}, False),
        ({}, False),
    )
    await _by_headers(ctx, {"x-match": "all", **both}, rows)


@amqp_case("exchange/headers-any", mutant="amqp-headers-any-for-all", clauses=("sec.3.1.3.4.headers-any",))
async def headers_any(ctx: AmqpContext) -> None:
    """With x-match any, one pair of the binding must be among the headers.

    One, both, another value beside one, other values, and none.
    """
    rows: Sequence[tuple[Mapping[str, Any], bool]] = (
        ({"format": "pdf"}, True),
        ({"format": "pdf", "pages": 3}, True),
        ({"format": "doc", "pages": 3}, True),
        ({"format": "doc", "pages": 4}, False),
        ({}, False),
    )
    await _by_headers(ctx, {"x-match": "any", "format": "pdf", "pages": 3}, rows)


@amqp_case("exchange/headers-without-value", mutant="amqp-headers-x-and-void", clauses=("sec.3.1.3.4.headers-void",))
async def headers_void(ctx: AmqpContext) -> None:
    """A pair without a value in a binding asks only for a header of that name.

    Any value of that name matches, another name does not.
    """
    rows: Sequence[tuple[Mapping[str, Any], bool]] = (
        ({"format": "pdf"}, True),
        ({"format": 5}, True),
        ({"other": "pdf"}, False),
    )
    await _by_headers(ctx, {"x-match": "all", "format": None}, rows)


@amqp_case(
    "exchange/headers-beginning-with-x-are-not-compared",
    mutant="amqp-headers-x-and-void",
    clauses=("sec.3.1.3.4.headers-xprefix",),
)
async def headers_x(ctx: AmqpContext) -> None:
    """Pairs of a binding whose names begin with x- are not compared.

    A binding with x-reason matches messages with another one, and without any.
    """
    rows: Sequence[tuple[Mapping[str, Any], bool]] = (
        ({"format": "pdf", "x-reason": "b"}, True),
        ({"format": "pdf"}, True),
        ({"x-reason": "a"}, False),
    )
    await _by_headers(ctx, {"x-match": "all", "format": "pdf", "x-reason": "a"}, rows)


@amqp_case(
    "exchange/headers-with-a-strange-x-match",
    mutant="amqp-refusals-are-internal-errors",
    clauses=("sec.3.1.3.4.headers-bad-xmatch",),
)
async def headers_bad(ctx: AmqpContext) -> None:
    """A binding whose x-match is neither all nor any is refused.

    ``some``; where it is missing, all is meant, which is tried first.
    """
    channel = await ctx.channel()
    name, queue = await channel.exchange("headers"), await channel.queue()
    with ctx.own_point():
        await channel.call("queue.bind", queue=queue, exchange=name, arguments={"a": 1})
    outcome = await channel.outcome("queue.bind", queue=queue, exchange=name, arguments={"x-match": "some", "a": 1})
    # The specification names two values, and no error.
    ctx.prefer("sec.3.1.3.4.headers-bad-xmatch", outcome)


@amqp_case("exchange/headers-with-x", mutant="amqp-headers-x-and-void", clauses=("rmq.headers.x-match",))
async def headers_with_x(ctx: AmqpContext) -> None:
    """With all-with-x and any-with-x, pairs whose names begin with x- are compared as well.

    A server that refuses the values does not know them, and one that takes any value may not.
    """
    channel = await ctx.channel()
    name, queue = await channel.exchange("headers"), await channel.queue(shared=True)
    strange = {"queue": queue, "exchange": name, "arguments": {"x-match": "some", "x-a": 1}}
    if await (await ctx.channel()).outcome("queue.bind", **strange) == "ok":
        ctx.unsupported("any x-match is taken")
    for match in ("all-with-x", "any-with-x"):
        outcome = await channel.outcome(
            "queue.bind", queue=queue, exchange=name, arguments={"x-match": match, "x-a": 1}
        )
        if outcome != "ok":
            ctx.unsupported(f"x-match {match} is answered by {outcome}")
    await _by_headers(
        ctx,
        {"x-match": "all-with-x", "format": "pdf", "x-reason": "a"},
        (({"format": "pdf", "x-reason": "a"}, True), ({"format": "pdf"}, False)),
    )
    await _by_headers(
        ctx,
        {"x-match": "any-with-x", "format": "pdf", "x-reason": "a"},
        (({"x-reason": "a"}, True), ({"x-reason": "b"}, False)),
    )


@amqp_case(
    "exchange/internal-ones-take-no-publishes",
    mutant="amqp-publishes-to-internal-exchanges",
    clauses=("basic.publish.exchange.02", "rmq.internal-exchange"),
    # The bit is reserved in the standard; it means something where exchanges are bound to exchanges.
    requires=("exchange_exchange_bindings",),
)
async def internal(ctx: AmqpContext) -> None:
    """Publishing to an internal exchange ends the channel with 403.

    A server that refuses to declare one does not know them.
    """
    channel = await ctx.channel()
    name = ctx.exchange_name()
    outcome = await channel.outcome("exchange.declare", exchange=name, type_="fanout", internal=True)
    if outcome != "ok":
        ctx.unsupported(f"an internal exchange is answered by {outcome}")
    channel.publish(name, "", b"no")
    ctx.allow("rmq.internal-exchange", await channel.outcome_of())


@amqp_case("exchange/alternate-exchange", mutant="amqp-no-alternates", clauses=("rmq.alternate-exchange",))
async def alternate(ctx: AmqpContext) -> None:
    """What an exchange cannot route goes to its alternate exchange, and is not returned.

    A direct exchange with a fanout as its alternate: a mandatory message without a binding, and one with it.
    """
    channel = await ctx.channel()
    other, queue, own = await channel.exchange("fanout"), await channel.queue(), await channel.queue()
    name = ctx.exchange_name()
    outcome = await channel.outcome(
        "exchange.declare", exchange=name, type_="direct", arguments={"alternate-exchange": other}
    )
    if outcome != "ok":
        ctx.unsupported(f"the argument alternate-exchange is answered by {outcome}")
    await channel.bind(queue, other)
    await channel.bind(own, name, "k")
    channel.publish(name, "k", b"routed", mandatory=True)
    channel.publish(name, "other", b"alternate", mandatory=True)
    event = await channel.get_soon(queue)
    ctx.must(event.body == b"alternate", f"expected what cannot be routed alone; seen {event.body!r}")
    await channel.get_soon(own)
    await channel.barrier()
    ctx.must(not channel.inbox, "expected no return of what the alternate exchange has routed; seen one")

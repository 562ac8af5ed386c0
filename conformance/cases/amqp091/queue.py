"""Queues: declarations, bindings, purging, deleting, and who may use them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from assay.conformance.amqp091.context import AmqpContext, amqp_case
from assay.conformance.wire.amqp091 import Method, encode_method


@amqp_case(
    "queue/requests-are-answered",
    mutant="amqp-no-wait-answered",
    clauses=(
        "sync.queue.declare",
        "sync.queue.bind",
        "sync.queue.unbind",
        "sync.queue.purge",
        "sync.queue.delete",
        "grammar.queue",
    ),
)
async def requests(ctx: AmqpContext) -> None:
    """Each request about a queue is answered once, and with no-wait not at all.

    What was asked for without waiting is done all the same: the queue is there, bound, purged and gone.
    """
    channel = await ctx.channel()
    first, second = ctx.queue_name(), ctx.queue_name()
    with ctx.own_point():
        answer = await channel.call("queue.declare", queue=first, exclusive=True)
        ctx.must(answer["queue"] == first, f"expected Declare-Ok to name {first}; seen {answer['queue']}")
        await channel.call("queue.bind", queue=first, exchange="amq.direct", routing_key=first)
        await channel.call("queue.unbind", queue=first, exchange="amq.direct", routing_key=first)
        channel.publish("", first, b"one")
        await channel.count_becomes(first, 1)
        answer = await channel.call("queue.purge", queue=first)
        ctx.must(answer["message-count"] == 1, f"expected Purge-Ok to count 1; seen {answer['message-count']}")
        channel.publish("", first, b"two")
        await channel.count_becomes(first, 1)
        answer = await channel.call("queue.delete", queue=first)
        ctx.must(answer["message-count"] == 1, f"expected Delete-Ok to count 1; seen {answer['message-count']}")
        channel.send("queue.declare", queue=second, exclusive=True, no_wait=True)
        channel.send("queue.bind", queue=second, exchange="amq.direct", routing_key=second, no_wait=True)
        await channel.barrier()
        channel.publish("amq.direct", second, b"bound")
        await channel.count_becomes(second, 1)
        channel.send("queue.purge", queue=second, no_wait=True)
        await channel.count_becomes(second, 0)
        channel.send("queue.delete", queue=second, no_wait=True)
        await channel.barrier()
    outcome = await channel.outcome("queue.declare", queue=second, passive=True)
    ctx.must(outcome == "channel 404", f"expected a deletion without waiting to be done; seen {outcome}")


@amqp_case(
    "queue/two-hundred-and-fifty-six-fit",
    mutant="amqp-room-for-few",
    clauses=("queue.declare.minimum-queues",),
    level="SHOULD",
    limit_s=20.0,
)
async def minimum(ctx: AmqpContext) -> None:
    """256 queues can be declared, and each takes its message.

    Fewer are a SHOULD that was missed.
    """
    channel = await ctx.channel()
    queues = []
    for number in range(256):
        name = ctx.queue_name()
        outcome = await channel.outcome("queue.declare", queue=name, exclusive=True)
        if outcome != "ok":
            ctx.should(False, f"no more than {number} queues can be declared: {outcome}")
            return
        queues.append(name)
    for name in queues:
        channel.publish("", name, name.encode())
    for name in (queues[0], queues[100], queues[-1]):
        event = await channel.get_soon(name)
        ctx.must(event.body == name.encode(), f"expected the message of {name}; seen {event.body!r}")


@amqp_case(
    "queue/names-of-the-server-are-unique",
    mutant="amqp-last-queue-forgotten",
    clauses=("queue.declare.queue.default-name", "rmq.server-named"),
)
async def server_named(ctx: AmqpContext) -> None:
    """A queue declared without a name gets one of its own, and an empty name then means it on that channel.

    Three queues on two channels; each is bound by an empty name, and gets what its channel means.
    """
    connection = await ctx.client()
    channel, other = await connection.channel(), await connection.channel()
    with ctx.own_point():
        names = [await where.queue("") for where in (channel, channel, other)]
        ctx.must(all(names) and len(set(names)) == 3, f"expected three different names; seen {names}")
        await channel.call("queue.bind", queue="", exchange="amq.direct", routing_key=names[0])
        channel.publish("amq.direct", names[0], b"for the last")
        event = await channel.get_soon(names[1])
        ctx.must(event.body == b"for the last", f"expected what was bound by an empty name; seen {event.body!r}")
        channel.publish("", names[1], b"got by an empty name")
        await channel.get_soon("")


@amqp_case("queue/reserved-names", mutant="amqp-reserved-names-taken", clauses=("queue.declare.queue.reserved",))
async def reserved(ctx: AmqpContext) -> None:
    """A new queue whose name begins with amq. is refused.

    A name that nobody has.
    """
    channel = await ctx.channel()
    outcome = await channel.outcome("queue.declare", queue=f"amq.{ctx.queue_name()}", exclusive=True)
    ctx.allow("queue.declare.queue.reserved", outcome)


@amqp_case(
    "queue/odd-names-are-taken-or-refused",
    mutant="amqp-refusals-are-internal-errors",
    clauses=("queue.declare.queue.syntax", "sec.4.2.5.3.shortstr"),
    level="MAY",
)
async def odd_names(ctx: AmqpContext) -> None:
    """A name with characters beyond the specification's is refused by 406, or works like any other.

    A space, a slash and letters of other scripts.
    """
    channel = await ctx.channel()
    name = f"{ctx.queue_name()} a/b é 日本"
    outcome = await channel.outcome("queue.declare", queue=name, exclusive=True)
    ctx.allow("queue.declare.queue.syntax", outcome)
    if outcome == "ok":
        channel.publish("", name, b"odd")
        event = await channel.get_soon(name)
        ctx.must(event["routing-key"] == name, f"expected the routing key that was sent; seen {event['routing-key']!r}")


@amqp_case("queue/names-of-255-bytes", mutant="amqp-refusals-are-internal-errors", clauses=("sec.4.2.5.3.shortstr",))
async def long_name(ctx: AmqpContext) -> None:
    """A name may be as long as a short string can be, or is refused.

    127 bytes, which the specification lets names have, must work; 255 bytes are taken or refused by 406, and a routing
    key of 255 bytes must come back as it was.
    """
    channel = await ctx.channel()
    base = ctx.queue_name()
    with ctx.own_point():
        name = await channel.queue(base + "n" * (127 - len(base)))
        key = "k" * 255
        await channel.bind(name, "amq.direct", key)
        channel.publish("amq.direct", key, b"long")
        event = await channel.get_soon(name)
    ctx.must(event["routing-key"] == key, "expected a routing key of 255 bytes as it was sent")
    outcome = await channel.outcome("queue.declare", queue=base + "n" * (255 - len(base)), exclusive=True)
    ctx.allow("queue.declare.queue.syntax", outcome)


@amqp_case(
    "queue/passive-declarations-ask", mutant="amqp-passive-makes-queues", clauses=("queue.declare.passive.passive",)
)
async def passive(ctx: AmqpContext) -> None:
    """A passive declaration answers for a queue that is there; for any other it ends the channel with 404.

    For the first, whatever the other fields say; the second makes no queue, asked twice.
    """
    connection = await ctx.client()
    channel = await connection.channel()
    name, missing = await channel.queue(), ctx.queue_name()
    with ctx.own_point():
        await channel.call("queue.declare", queue=name, passive=True, durable=True, arguments={"x-other": 1})
    for _ in range(2):
        asking = await connection.channel()
        outcome = await asking.outcome("queue.declare", queue=missing, passive=True)
        ctx.allow("queue.declare.passive.passive", outcome)


@amqp_case(
    "queue/declared-again",
    mutant="amqp-queues-change-durability",
    clauses=("queue.declare.passive.equivalent", "rmq.redeclare.equivalence"),
)
async def equivalent(ctx: AmqpContext) -> None:
    """A queue declared again as it is, is there; in another way it is refused.

    A durable one that is not to be durable any more, and an exclusive one that is to be shared, on two channels.
    (Whether an exclusive queue can be durable is another matter: some servers take that for the same.)
    """
    connection = await ctx.client()
    channel = await connection.channel()
    durable, exclusive = await channel.queue(shared=True), await channel.queue()
    with ctx.own_point():
        await channel.call("queue.declare", queue=durable, durable=True)
        await channel.call("queue.declare", queue=exclusive, exclusive=True)
    for name, fields in ((durable, {"durable": False}), (exclusive, {"exclusive": False})):
        asking = await connection.channel()
        outcome = await asking.outcome("queue.declare", queue=name, **fields)
        ctx.allow("queue.declare.passive.equivalent", outcome)


@amqp_case(
    "queue/declared-again-with-other-arguments",
    mutant="amqp-queues-change-arguments",
    clauses=("rmq.redeclare.equivalence",),
)
async def equivalent_arguments(ctx: AmqpContext) -> None:
    """A queue declared again with another argument is refused by 406.

    x-max-length 5, then 6, then none; a server that does not know the argument ends as unsupported.
    """
    connection = await ctx.client()
    channel = await connection.channel()
    await ctx.needs_argument("x-max-length", -1)
    name = await ctx.queue_with(channel, {"x-max-length": 5})
    for arguments in ({"x-max-length": 6}, {}):
        asking = await connection.channel()
        outcome = await asking.outcome("queue.declare", queue=name, exclusive=True, arguments=arguments)
        ctx.allow("rmq.redeclare.equivalence", outcome)


@amqp_case(
    "queue/auto-delete-is-not-looked-at-again",
    mutant="amqp-refusals-are-internal-errors",
    clauses=("queue.declare.auto-delete.pre-existence",),
)
async def auto_delete_again(ctx: AmqpContext) -> None:
    """For a queue that exists, auto-delete is ignored, or counts as different.

    The specification contradicts itself: both answers pass.
    """
    channel = await ctx.channel()
    name = await channel.queue()
    outcome = await channel.outcome("queue.declare", queue=name, exclusive=True, auto_delete=True)
    ctx.allow("queue.declare.auto-delete.pre-existence", outcome)


@amqp_case(
    "queue/durable-and-transient",
    mutant="amqp-durable-or-nothing",
    clauses=("queue.declare.durable.types", "queue.bind.transient-exchange"),
)
async def durable_types(ctx: AmqpContext) -> None:
    """Durable and transient queues can be declared, and both be bound to a transient exchange.

    The transient one is exclusive: newer servers refuse transient queues that are shared.
    """
    channel = await ctx.channel()
    with ctx.own_point():
        exchange = await channel.exchange("fanout", durable=False)
        for queue in (await channel.queue(shared=True), await channel.queue(exclusive=True)):
            await channel.bind(queue, exchange)
            channel.publish(exchange, "", b"here")
            await channel.get_soon(queue)


@amqp_case("queue/exclusive-and-shared", mutant="amqp-all-queues-exclusive", clauses=("queue.declare.exclusive.types",))
async def exclusive_types(ctx: AmqpContext) -> None:
    """Exclusive and shared queues can be declared; the shared one is used by two connections.

    The second connection publishes to it and gets from it.
    """
    first, second = await ctx.channel(), await ctx.channel()
    with ctx.own_point():
        await first.queue(exclusive=True)
        queue = await first.queue(shared=True)
        second.publish("", queue, b"shared")
        await second.get_soon(queue)


_ATTEMPTS: Mapping[str, Mapping[str, Any]] = {
    "queue.declare": {"passive": True},
    "queue.bind": {"exchange": "amq.direct", "routing_key": "k"},
    "queue.unbind": {"exchange": "amq.direct", "routing_key": "k"},
    "queue.purge": {},
    "queue.delete": {},
    "basic.consume": {},
    "basic.get": {},
}


@amqp_case(
    "queue/exclusive-to-its-connection",
    mutant="amqp-strangers-use-exclusive-queues",
    clauses=("queue.declare.exclusive.exclusive", "rmq.exclusive.scope"),
)
async def exclusive(ctx: AmqpContext) -> None:
    """A queue that is exclusive to one connection is refused to another with 405.

    Declaring (also passively), binding, unbinding, purging, deleting, consuming and getting, each on a channel of its
    own; the owner's other channels may use it.
    """
    owner = await ctx.client()
    channel = await owner.channel()
    name = await channel.queue(exclusive=True)
    await channel.bind(name, "amq.direct", "k")  # nothing else could be undone
    stranger = await ctx.client()
    for request, fields in _ATTEMPTS.items():
        outcome = await (await stranger.channel()).outcome(request, queue=name, **fields)
        ctx.must(outcome == "channel 405", f"expected {request} to be refused with channel 405; seen {outcome}")
    outcome = await (await stranger.channel()).outcome("queue.declare", queue=name, exclusive=True)
    ctx.allow("queue.declare.exclusive.exclusive", outcome)
    other = await owner.channel()
    with ctx.own_point():
        await other.call("queue.purge", queue=name)
        other.publish("", name, b"own")
        await other.get_soon(name)


@amqp_case(
    "queue/auto-delete-ends-with-the-last-consumer",
    mutant="amqp-auto-delete-with-any-consumer",
    clauses=("rmq.auto-delete.queue", "sec.4.6.sync-effects"),
)
async def auto_delete(ctx: AmqpContext) -> None:
    """An auto-delete queue is there until its last consumer has gone, and not after.

    Two consumers on two channels: one is cancelled, and the queue is there; then the other's channel is closed. A queue
    that never had a consumer stays.
    """
    connection = await ctx.client()
    channel, other = await connection.channel(), await connection.channel()
    queue = await channel.queue(exclusive=True, auto_delete=True)
    untouched = await channel.queue(exclusive=True, auto_delete=True)
    tag = await channel.consume(queue)
    await other.consume(queue)
    await channel.call("basic.cancel", consumer_tag=tag)
    with ctx.own_point():
        await channel.call("queue.declare", queue=queue, passive=True)
        await other.close()
    await ctx.becomes(connection, "queue.declare", "channel 404", queue=queue, passive=True)
    with ctx.own_point():
        await channel.call("queue.declare", queue=untouched, passive=True)


@amqp_case(
    "queue/declared-anew-behind-its-end",
    mutant="amqp-going-queues-stay-away",
    clauses=("sync.queue.declare",),
)
async def declared_anew(ctx: AmqpContext) -> None:
    """A declaration right behind the end of an auto-delete queue of that name is answered.

    Found in a broker: it was refused with 404 while what was left of the queue went. The last consumer is cancelled and
    the queue declared in one go; whether it is the old one or a new one is not looked at.
    """
    channel = await ctx.channel()
    queue = await channel.queue(exclusive=True, auto_delete=True)
    for _ in range(5):
        tag = await channel.consume(queue)
        cancel = Method("basic.cancel", consumer_tag=tag, no_wait=True)
        declare = Method("queue.declare", queue=queue, exclusive=True, auto_delete=True)
        channel.connection.send_bytes(b"".join([encode_method(channel.number, each) for each in (cancel, declare)]))
        outcome = await channel.outcome_of("queue.declare-ok")
        ctx.must(outcome == "ok", f"expected the declaration to be answered; seen {outcome}")
        # Wherever the end comes late it has come now.
        await channel.call("queue.declare", queue=queue, exclusive=True, auto_delete=True)


# Bindings


@amqp_case("queue/bound-twice", mutant="amqp-bindings-count-twice", clauses=("queue.bind.duplicates",))
async def bound_twice(ctx: AmqpContext) -> None:
    """Binding a queue twice in the same way is no error, adds no copy, and is undone once.

    A direct exchange; after one unbinding nothing comes any more.
    """
    channel = await ctx.channel()
    queue, exchange = await channel.queue(), await channel.exchange("direct")
    with ctx.own_point():
        for key in ("k", "k", "marker"):
            await channel.bind(queue, exchange, key)
        await channel.consume(queue, no_ack=True)
        channel.publish(exchange, "k", b"once")
        channel.publish(exchange, "marker", b"marker")
        found = [event.body for event in await channel.delivered_until(b"marker")]
        ctx.must(found == [b"once"], f"expected the message once; seen {found}")
        await channel.call("queue.unbind", queue=queue, exchange=exchange, routing_key="k")
        channel.publish(exchange, "k", b"none")
        channel.publish(exchange, "marker", b"marker")
        found = [event.body for event in await channel.delivered_until(b"marker")]
        ctx.must(not found, f"expected nothing after one unbinding; seen {found}")


@amqp_case("queue/many-bindings-one-copy", mutant="amqp-a-copy-for-each-binding", clauses=("queue.bind.unique",))
async def unique(ctx: AmqpContext) -> None:
    """However many of its bindings match, a queue gets a message once.

    Three patterns of amq.topic that all match, and a fourth that does not.
    """
    channel = await ctx.channel()
    queue = await channel.queue()
    for key in ("a.#", "a.*", f"#.{queue.rpartition('.')[2]}", "other"):
        await channel.bind(queue, "amq.topic", f"{queue}.{key}" if key != "other" else f"{queue}.marker")
    await channel.consume(queue, no_ack=True)
    channel.publish("amq.topic", f"{queue}.a.{queue.rpartition('.')[2]}", b"once")
    channel.publish("amq.topic", f"{queue}.marker", b"marker")
    found = [event.body for event in await channel.delivered_until(b"marker")]
    ctx.must(found == [b"once"], f"expected the message once; seen {found}")


@amqp_case(
    "queue/takes-many-bindings", mutant="amqp-few-bindings", clauses=("queue.bind.binding-count",), level="SHOULD"
)
async def binding_count(ctx: AmqpContext) -> None:
    """A queue can be bound to four exchanges, and gets messages of each.

    Fewer are a SHOULD that was missed.
    """
    channel = await ctx.channel()
    queue = await channel.queue()
    await channel.consume(queue, no_ack=True)
    for number in range(4):
        exchange = await channel.exchange("fanout")
        outcome = await channel.outcome("queue.bind", queue=queue, exchange=exchange)
        if outcome != "ok":
            ctx.should(False, f"a queue takes no more than {number} bindings: {outcome}")
            return
        channel.publish(exchange, "", str(number).encode())
        await channel.delivery(str(number).encode())


@amqp_case(
    "queue/an-empty-name-needs-a-declaration",
    mutant="amqp-refusals-are-internal-errors",
    clauses=(
        "queue.bind.queue.queue-known",
        "queue.unbind.queue.queue-known",
        "queue.purge.queue.queue-known",
        "queue.delete.queue.queue-known",
    ),
)
async def queue_known(ctx: AmqpContext) -> None:
    """An empty queue name is refused on a channel that has not declared any queue.

    Binding, unbinding, purging and deleting; the specification knows two codes for it.
    """
    for request in ("bind", "unbind", "purge", "delete"):
        channel = await ctx.channel()
        fields = {"exchange": "amq.direct"} if request in ("bind", "unbind") else {}
        outcome = await channel.outcome(f"queue.{request}", queue="", **fields)
        ctx.allow(f"queue.{request}.queue.queue-known", outcome)


@amqp_case(
    "queue/requests-about-what-is-not-there",
    mutant="amqp-refusals-are-internal-errors",
    clauses=("queue.bind.queue.must-exist", "queue.bind.exchange.exchange-existence", "queue.purge.queue.must-exist"),
)
async def missing(ctx: AmqpContext) -> None:
    """Binding a queue that does not exist, or to an exchange that does not, and purging, end the channel with 404.

    Each on a channel of its own of one connection.
    """
    connection = await ctx.client()
    queue = await (await connection.channel()).queue()
    for rule, request, fields in (
        ("queue.bind.queue.must-exist", "queue.bind", {"queue": ctx.queue_name(), "exchange": "amq.direct"}),
        ("queue.bind.exchange.exchange-existence", "queue.bind", {"queue": queue, "exchange": ctx.exchange_name()}),
        ("queue.purge.queue.must-exist", "queue.purge", {"queue": ctx.queue_name()}),
    ):
        ctx.allow(rule, await (await connection.channel()).outcome(request, **fields))


@amqp_case(
    "queue/unbinding-what-is-not-there",
    mutant="amqp-refusals-are-internal-errors",
    clauses=("queue.unbind.01", "queue.unbind.queue.must-exist", "queue.unbind.exchange.must-exist"),
)
async def unbind_missing(ctx: AmqpContext) -> None:
    """Unbinding a queue or an exchange that does not exist is an error, or nothing.

    The specification asks for two different errors; RabbitMQ documented that it takes it for done: it is reported.
    """
    channel = await ctx.channel()
    queue = await channel.queue()
    for rule, fields in (
        ("queue.unbind.queue.must-exist", {"queue": ctx.queue_name(), "exchange": "amq.direct"}),
        ("queue.unbind.exchange.must-exist", {"queue": queue, "exchange": ctx.exchange_name()}),
    ):
        outcome = await (await ctx.channel()).outcome("queue.unbind", **fields)
        if outcome != "channel 405":  # of the other connection's exclusive queue
            ctx.prefer(rule, outcome)


@amqp_case(
    "queue/the-nameless-exchange-in-bindings",
    mutant="amqp-refusals-are-internal-errors",
    clauses=("queue.bind.exchange.default-exchange", "queue.unbind.exchange.default-exchange"),
)
async def bind_default(ctx: AmqpContext) -> None:
    """An empty exchange name in a binding means the nameless one, or is refused with 403 or 530.

    Another rule forbids to touch it, so that all of it passes; a refusal is reported.
    """
    queue = await (await ctx.channel()).queue(shared=True)
    for request in ("bind", "unbind"):
        channel = await ctx.channel()
        outcome = await channel.outcome(f"queue.{request}", queue=queue, exchange="", routing_key=queue)
        ctx.prefer(f"queue.{request}.exchange.default-exchange", outcome)


@amqp_case("queue/bindings-die-with-it", mutant="amqp-bindings-come-back", clauses=("sec.3.1.5.bindings-die",))
async def bindings_die(ctx: AmqpContext) -> None:
    """A queue that was deleted and declared again has none of its old bindings.

    Bound to a direct exchange before; afterwards only a new binding brings messages.
    """
    channel = await ctx.channel()
    queue, exchange = await channel.queue(), await channel.exchange("direct")
    await channel.bind(queue, exchange, "old")
    await channel.call("queue.delete", queue=queue)
    await channel.queue(queue)
    await channel.bind(queue, exchange, "new")
    channel.publish(exchange, "old", b"old")
    channel.publish(exchange, "new", b"new")
    event = await channel.get_soon(queue)
    ctx.must(event.body == b"new", f"expected the old binding to be gone; seen {event.body!r}")


# Purging and deleting


@amqp_case(
    "queue/purge-spares-what-was-delivered",
    mutant="amqp-purge-takes-all",
    kills=("amqp-purge-ok-tells-one-too-few", "amqp-purge-ok-leaves-out-what-came-back"),
    clauses=("queue.purge.02",),
)
async def purge(ctx: AmqpContext) -> None:
    """Purging takes what is ready, and nothing that was delivered and waits for its acknowledgement.

    One of four messages is got; Purge-Ok counts three, and the first comes back when it is rejected. What came back is
    ready, and counts for another Purge beside one that is new.
    """
    channel = await ctx.channel()
    queue = await channel.queue()
    for body in (b"got", b"ready", b"ready too", b"ready as well"):
        channel.publish("", queue, body)
    event = await channel.get_soon(queue, no_ack=False)
    await channel.count_becomes(queue, 3)
    answer = await channel.call("queue.purge", queue=queue)
    ctx.must(answer["message-count"] == 3, f"expected Purge-Ok to count 3; seen {answer['message-count']}")
    channel.send("basic.reject", delivery_tag=event.tag, requeue=True)
    back = await channel.get_soon(queue)
    ctx.must(back.body == b"got", f"expected what was delivered to come back; seen {back.body!r}")
    ctx.must(await channel.get(queue) is None, "expected what was ready to be purged; seen it")
    channel.publish("", queue, b"comes back")
    event = await channel.get_soon(queue, no_ack=False)
    channel.send("basic.reject", delivery_tag=event.tag, requeue=True)
    channel.publish("", queue, b"new")
    await channel.count_becomes(queue, 2)
    answer = await channel.call("queue.purge", queue=queue)
    ctx.must(answer["message-count"] == 2, f"expected Purge-Ok to count 2; seen {answer['message-count']}")


@amqp_case(
    "queue/deleting-what-is-not-there",
    mutant="amqp-refusals-are-internal-errors",
    clauses=("queue.delete.queue.must-exist", "rmq.queue.delete.idempotent"),
)
async def delete_missing(ctx: AmqpContext) -> None:
    """Deleting a queue that does not exist is refused with 404, or done.

    RabbitMQ and others documented that they do the second: it is reported.
    """
    channel = await ctx.channel()
    ctx.prefer("queue.delete.queue.must-exist", await channel.outcome("queue.delete", queue=ctx.queue_name()))


@amqp_case("queue/if-unused", mutant="amqp-used-queues-deleted", clauses=("queue.delete.if-unused.in-use",))
async def if_unused(ctx: AmqpContext) -> None:
    """With if-unused, a queue that has a consumer is not deleted, and one that has none is.

    Refused with 406; its consumer goes on.
    """
    connection = await ctx.client()
    channel = await connection.channel()
    queue = await channel.queue()
    tag = await channel.consume(queue, no_ack=True)
    asking = await connection.channel()
    ctx.allow("queue.delete.if-unused.in-use", await asking.outcome("queue.delete", queue=queue, if_unused=True))
    with ctx.own_point():
        channel.publish("", queue, b"still")
        await channel.delivery(b"still")
        await channel.call("basic.cancel", consumer_tag=tag)
        await channel.call("queue.delete", queue=queue, if_unused=True)


@amqp_case("queue/if-empty", mutant="amqp-full-queues-deleted", clauses=("queue.delete.if-empty.not-empty",))
async def if_empty(ctx: AmqpContext) -> None:
    """With if-empty, a queue that holds a message is not deleted, and one that holds none is.

    Refused with 406; the message is still there.
    """
    connection = await ctx.client()
    channel = await connection.channel()
    queue = await channel.queue()
    channel.publish("", queue, b"still")
    await channel.count_becomes(queue, 1)
    asking = await connection.channel()
    ctx.allow("queue.delete.if-empty.not-empty", await asking.outcome("queue.delete", queue=queue, if_empty=True))
    with ctx.own_point():
        await channel.get_soon(queue)
        await channel.call("queue.delete", queue=queue, if_empty=True)


@amqp_case("queue/declare-ok-counts", mutant="amqp-consumers-not-counted", clauses=("rmq.passive-declare-counts",))
async def counts(ctx: AmqpContext) -> None:
    """Declare-Ok tells how many messages are ready, and how many consumers there are.

    Three messages, one of them got and not acknowledged: two are ready. Two consumers, then one.
    """
    channel = await ctx.channel()
    queue = await channel.queue()
    for number in range(3):
        channel.publish("", queue, str(number).encode())
    await channel.count_becomes(queue, 3)
    await channel.get_soon(queue, no_ack=False)
    await channel.count_becomes(queue, 2)
    empty = await channel.queue()
    tags = [await channel.consume(empty), await channel.consume(empty)]
    for wanted in (2, 1):
        answer = await channel.call("queue.declare", queue=empty, passive=True)
        seen = answer["consumer-count"]
        ctx.must(seen == wanted, f"expected Declare-Ok to count {wanted} consumer(s); seen {seen}")
        await channel.call("basic.cancel", consumer_tag=tags.pop())

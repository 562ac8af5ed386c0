"""What RabbitMQ and its relatives add: limits, expiry, dead letters, priorities, direct replies, and more.

A server that does not know an argument, or refuses it, ends as unsupported: each case first asks with a value that
nobody who knows the argument takes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from assay.conformance.amqp091.client import Channel
from assay.conformance.amqp091.context import AmqpContext, amqp_case
from assay.conformance.stall import Stopwatch
from assay.conformance.wire.amqp091 import Arrival, Typed

_NO_EXPIRATIONS = "an expiration of letters is taken: the server does not look at it"
_SOON_MS = 50
_LATER_MS = 3_600_000


async def _dead_letters(ctx: AmqpContext, channel: Channel, **more: Any) -> tuple[str, str]:
    """A queue whose dead letters go to another one, which is consumed; their names."""
    await ctx.needs_argument("x-dead-letter-exchange", 5)
    letters = await channel.queue()
    await channel.consume(letters, no_ack=True)
    arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": letters}
    arguments |= {name.replace("_", "-"): value for name, value in more.items()}
    return await ctx.queue_with(channel, arguments), letters


def _death(ctx: AmqpContext, event: Arrival, queue: str, reason: str) -> Mapping[str, Any]:
    """The first entry of x-death, which must be about this queue and reason."""
    entries = event.headers.get("x-death")
    ctx.must(
        isinstance(entries, list) and bool(entries), f"expected x-death in the headers; seen {dict(event.headers)}"
    )
    assert isinstance(entries, list)
    first: Mapping[str, Any] = entries[0]
    seen = first.get("queue"), first.get("reason")
    ctx.must(seen == (queue, reason), f"expected x-death of {queue} for {reason}; seen {seen}")
    ctx.must(first.get("count") == 1, f"expected x-death to count 1; seen {first.get('count')}")
    return first


async def has_expirations(ctx: AmqpContext) -> bool:
    """Whether an expiration is a number of milliseconds to live: what it means, if anything, the standard leaves open.

    A server that takes one of letters does not look at it, or understands something else by it.
    """
    channel = await ctx.channel()
    channel.publish("", "assay-nowhere", b"x", properties={"expiration": "abc"})
    return await channel.outcome_of() != "ok"


# Expiry


@amqp_case(
    "extensions/message-ttl-of-a-queue",
    mutant="amqp-nothing-expires",
    clauses=("rmq.queue.ttl.message", "rmq.dlx.reasons"),
)
async def message_ttl(ctx: AmqpContext) -> None:
    """A message older than x-message-ttl is not delivered, and goes to the dead letter exchange as expired.

    50 ms; the letter is awaited, and the queue is empty then.
    """
    ctx.is_timed = True
    channel = await ctx.channel()
    await ctx.needs_argument("x-message-ttl", -1)
    queue, _ = await _dead_letters(ctx, channel, x_message_ttl=_SOON_MS)
    channel.publish("", queue, b"old")
    with ctx.own_point():
        event = await channel.delivery(b"old")
    _death(ctx, event, queue, "expired")
    ctx.must(await channel.get(queue) is None, "expected an expired message to be gone; seen it")


@amqp_case("extensions/message-ttl-of-zero", mutant="amqp-no-time-is-no-chance", clauses=("rmq.queue.ttl.message",))
async def message_ttl_zero(ctx: AmqpContext) -> None:
    """With x-message-ttl 0, or the expiration 0, a message is delivered at once or not at all.

    To a consumer that waits it comes, persistent or not; without one it is gone.
    """
    channel = await ctx.channel()
    await ctx.needs_argument("x-message-ttl", -1)
    of_queue = await ctx.queue_with(channel, {"x-message-ttl": 0})
    queues: list[tuple[str, dict[str, str]]] = [(of_queue, {})]
    if await has_expirations(ctx):
        queues.append((await channel.queue(), {"expiration": "0"}))
    for queue, properties in queues:
        channel.publish("", queue, b"nobody waits", properties=properties)
        await channel.count_becomes(queue, 0)
        await channel.consume(queue, no_ack=True)
        for mode in (1, 2):
            channel.publish("", queue, b"somebody waits", properties={**properties, "delivery_mode": mode})
            event = await channel.delivery()
            ctx.must(event.body == b"somebody waits", f"expected what somebody waits for; seen {event.body!r}")


@amqp_case(
    "extensions/expiration-of-a-message",
    mutant="amqp-nothing-expires",
    clauses=("rmq.publish.expiration", "rmq.dlx.expiration-removed"),
)
async def expiration(ctx: AmqpContext) -> None:
    """A message with an expiration is dead after it, and its letter has none any more.

    50 ms; what x-death keeps is the original expiration. One of an hour, and one without, stay.
    """
    ctx.is_timed = True
    if not await has_expirations(ctx):
        ctx.unsupported(_NO_EXPIRATIONS)
    channel = await ctx.channel()
    queue, _ = await _dead_letters(ctx, channel)
    channel.publish("", queue, b"old", properties={"expiration": str(_SOON_MS)})
    with ctx.own_point():
        event = await channel.delivery(b"old")
    first = _death(ctx, event, queue, "expired")
    ctx.must("expiration" not in event.properties, "expected a dead letter without expiration; seen one")
    seen = first.get("original-expiration")
    ctx.must(seen == str(_SOON_MS), f"expected the original expiration in x-death; seen {seen!r}")
    channel.publish("", queue, b"later", properties={"expiration": str(_LATER_MS)})
    channel.publish("", queue, b"never")
    for body in (b"later", b"never"):
        got = await channel.get_soon(queue)
        ctx.must(got.body == body, f"expected {body!r}; seen {got.body!r}")


@amqp_case(
    "extensions/expirations-that-are-no-numbers",
    mutant="amqp-refusals-are-internal-errors",
    clauses=("rmq.publish.expiration",),
)
async def bad_expiration(ctx: AmqpContext) -> None:
    """An expiration that is no number ends the channel with 406.

    Letters, a negative number and an empty text. A server that takes letters does not look at expirations: unsupported.
    """
    connection = await ctx.client()
    for text in ("abc", "-1", ""):
        channel = await connection.channel()
        channel.publish("", "assay-nowhere", b"x", properties={"expiration": text})
        outcome = await channel.outcome_of()
        if text == "abc" and outcome == "ok":
            ctx.unsupported(_NO_EXPIRATIONS)
        ctx.allow("rmq.publish.expiration", outcome, what=f"expiration {text!r}")


@amqp_case("extensions/unused-queues-expire", mutant="amqp-nothing-expires", clauses=("rmq.queue.expires",))
async def queue_expires(ctx: AmqpContext) -> None:
    """A queue that is not used for x-expires is deleted; one that has a consumer is not.

    500 ms for the one with a consumer, and 600 ms for the other: that is asked for until it is gone, and the first then
    still delivers.
    """
    ctx.is_timed = True
    connection = await ctx.client()
    channel = await connection.channel()
    await ctx.needs_argument("x-expires", 0)
    watch = Stopwatch()
    used = await ctx.queue_with(channel, {"x-expires": 500 * ctx.stretch})
    with watch.judging_before(0.5 * ctx.stretch):
        await channel.consume(used, no_ack=True)
    unused = await ctx.queue_with(channel, {"x-expires": 600})
    # Asking by Declare would be a use: what the default exchange cannot route comes back.
    asking = await connection.channel()
    soon = ctx.soon()
    while True:
        asking.publish("", unused, b"there?", mandatory=True)
        await asking.barrier()
        if any(event.name == "basic.return" for event in asking.inbox):
            break
        ctx.must(await soon(), "expected an unused queue to be deleted after 600 ms; seen it for seconds")
    channel.publish("", used, b"still")
    await channel.delivery(b"still")


@amqp_case(
    "extensions/arguments-that-make-no-sense",
    mutant="amqp-refusals-are-internal-errors",
    clauses=("rmq.queue.ttl.message", "rmq.queue.expires", "rmq.queue.max-priority", "rmq.x-queue-type"),
)
async def bad_arguments(ctx: AmqpContext) -> None:
    """Values that make no sense are refused with 406, by those who know the argument.

    A ttl that is negative or a text, an expiry of 0, a priority of 0 or 256 levels, a length that is negative, an
    overflow and a type of queue that nobody knows. Who takes any value of an argument does not know it.
    """
    for name, values in (
        ("x-message-ttl", (-1, "soon")),
        ("x-expires", (0, -1, "soon")),
        ("x-max-priority", (-1, 256, "high")),
        ("x-max-length", (-1, "long")),
        ("x-overflow", ("assay-nonsense",)),
        ("x-queue-type", ("assay-nonsense",)),
        ("x-dead-letter-exchange", (5,)),
    ):
        outcomes = {str(value): await ctx.argument_outcome(name, value) for value in values}
        if set(outcomes.values()) == {"ok"}:
            ctx.note(f"{name} is not known")
            continue
        for value, outcome in outcomes.items():
            ctx.allow("rmq.x-queue-type", outcome, what=f"{name} {value}")


# Dead letters


@amqp_case(
    "extensions/rejected-messages-are-dead-letters", mutant="amqp-letters-tell-nothing", clauses=("rmq.dlx.reasons",)
)
async def dlx_rejected(ctx: AmqpContext) -> None:
    """What is rejected without requeue goes to the dead letter exchange, as it was, with x-death.

    By reject and by nack; exchange and routing key of x-death are those of the publish, properties are kept.
    """
    channel = await ctx.channel()
    queue, letters = await _dead_letters(ctx, channel)
    for refuse in ("basic.reject", "basic.nack"):
        if refuse == "basic.nack" and not ctx.capabilities.get("basic_nack"):
            continue
        properties = {"message_id": refuse, "headers": {"own": 1}}
        channel.publish("", queue, refuse.encode(), properties=properties)
        event = await channel.get_soon(queue, no_ack=False)
        channel.send(refuse, delivery_tag=event.tag, requeue=False)
        letter = await channel.delivery(refuse.encode())
        first = _death(ctx, letter, queue, "rejected")
        ctx.must(letter["routing-key"] == letters, f"expected the new routing key; seen {letter['routing-key']!r}")
        seen = first.get("exchange"), first.get("routing-keys")
        ctx.must(seen == ("", [queue]), f"expected x-death with exchange and routing key of the publish; seen {seen}")
        kept = letter.properties.get("message-id"), letter.headers.get("own")
        ctx.must(kept == (refuse, 1), f"expected the properties of the message; seen {kept}")


@amqp_case(
    "extensions/displaced-messages-are-dead-letters",
    mutant="amqp-full-queues-drop-the-newest",
    clauses=("rmq.dlx.reasons", "rmq.queue.max-length"),
)
async def dlx_maxlen(ctx: AmqpContext) -> None:
    """What a full queue drops goes to the dead letter exchange, the oldest first, for maxlen.

    A length of two and four messages.
    """
    channel = await ctx.channel()
    await ctx.needs_argument("x-max-length", -1)
    queue, _ = await _dead_letters(ctx, channel, x_max_length=2)
    for body in (b"1", b"2", b"3", b"4"):
        channel.publish("", queue, body)
    for body in (b"1", b"2"):
        _death(ctx, await channel.delivery(body), queue, "maxlen")
    left = [(await channel.get_soon(queue)).body for _ in range(2)]
    ctx.must(left == [b"3", b"4"], f"expected the newest two in the queue; seen {left}")


@amqp_case(
    "extensions/refused-publishes-are-dead-letters",
    mutant="amqp-refused-publishes-lost",
    clauses=("rmq.dlx.reasons", "rmq.queue.max-length"),
)
async def dlx_refused(ctx: AmqpContext) -> None:
    """With x-overflow reject-publish-dlx what a full queue refuses goes to the dead letter exchange, for maxlen.

    A length of one and three messages: the first stays. Where there are confirms, the others are refused by them.
    """
    channel = await ctx.channel()
    await ctx.needs_argument("x-overflow", "assay-nonsense")
    more = {"x_max_length": 1, "x_overflow": "reject-publish-dlx"}
    queue, _ = await _dead_letters(ctx, channel, **more)
    publisher = await channel.connection.channel()
    if ctx.capabilities.get("publisher_confirms"):
        await publisher.call("confirm.select")
    for body in (b"1", b"2", b"3"):
        publisher.publish("", queue, body)
    for body in (b"2", b"3"):
        _death(ctx, await channel.delivery(body), queue, "maxlen")
    event = await channel.get_soon(queue)
    ctx.must(event.body == b"1", f"expected the oldest to stay in the queue; seen {event.body!r}")


@amqp_case(
    "extensions/a-circle-of-dead-letters-ends",
    mutant="amqp-letters-go-round",
    kills=("amqp-rejected-letters-do-not-come-back",),
    clauses=("rmq.dlx.cycle",),
)
async def dlx_cycle(ctx: AmqpContext) -> None:
    """A message that only expires in a circle of dead letters is dropped; one that is rejected goes round.

    Two queues that are each other's dead letter queue, and one that is its own, where a message is rejected twice.
    """
    ctx.is_timed = True
    channel = await ctx.channel()
    await ctx.needs_argument("x-dead-letter-exchange", 5)
    await ctx.needs_argument("x-message-ttl", -1)
    first, second = ctx.queue_name(), ctx.queue_name()
    for name, other in ((first, second), (second, first)):
        arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": other, "x-message-ttl": _SOON_MS}
        await ctx.queue_with(channel, arguments, name)
    queue, _ = await _dead_letters(ctx, channel, x_message_ttl=_SOON_MS)
    channel.publish("", first, b"round and round")
    soon, looks = ctx.soon(), 0
    while looks < 3:  # it may be on its way at one of them
        channel.publish("", queue, b"a while")
        await channel.delivery(b"a while")
        looks = 0 if await channel.count(first) + await channel.count(second) else looks + 1
        ctx.must(bool(looks) or await soon(), "expected a circle of expiries to end; seen the message for seconds")
    own = ctx.queue_name()
    await ctx.queue_with(channel, {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": own}, own)
    channel.publish("", own, b"rejected")
    for _ in range(2):
        event = await channel.get_soon(own, no_ack=False)
        channel.send("basic.reject", delivery_tag=event.tag, requeue=False)
    with ctx.own_point():
        await channel.get_soon(own)


@amqp_case(
    "extensions/dead-letters-to-nowhere",
    mutant="amqp-reject-needs-a-dead-letter-exchange",
    clauses=("rmq.dlx.missing-exchange",),
)
async def dlx_missing(ctx: AmqpContext) -> None:
    """A dead letter exchange that does not exist swallows messages; the channel goes on.

    A message is rejected; the queue is empty, and the channel serves.
    """
    channel = await ctx.channel()
    await ctx.needs_argument("x-dead-letter-exchange", 5)
    queue = await ctx.queue_with(channel, {"x-dead-letter-exchange": ctx.exchange_name()})
    channel.publish("", queue, b"x")
    event = await channel.get_soon(queue, no_ack=False)
    channel.send("basic.reject", delivery_tag=event.tag, requeue=False)
    with ctx.own_point():
        await channel.barrier()
    ctx.must(await channel.get(queue) is None, "expected the message to be gone; seen it")


# Lengths and priorities


@amqp_case(
    "extensions/a-full-queue-drops-its-oldest",
    mutant="amqp-limits-count-what-is-held",
    clauses=("rmq.queue.max-length",),
)
async def max_length(ctx: AmqpContext) -> None:
    """x-max-length and x-max-length-bytes bound what is ready: the oldest messages go.

    Three of five by number; by bytes as many as fit in 100, of forty bytes each. What is unacknowledged does not count.
    """
    channel = await ctx.channel()
    await ctx.needs_argument("x-max-length", -1)
    queue = await ctx.queue_with(channel, {"x-max-length": 3})
    for number in range(5):
        channel.publish("", queue, str(number).encode())
    await channel.count_becomes(queue, 3)
    seen = [(await channel.get_soon(queue, no_ack=False)).body for _ in range(3)]
    ctx.must(seen == [b"2", b"3", b"4"], f"expected the newest three; seen {seen}")
    for number in range(3):
        channel.publish("", queue, str(number).encode())
    await channel.count_becomes(queue, 3)
    if await ctx.knows_argument("x-max-length-bytes", -1):
        queue = await ctx.queue_with(channel, {"x-max-length-bytes": 100})
        for number in range(4):
            channel.publish("", queue, str(number).encode() * 40)
        await channel.count_becomes(queue, 2)
        event = await channel.get_soon(queue)
        ctx.must(event.body[:1] == b"2", f"expected the older of the newest two; seen {event.body[:1]!r}")


@amqp_case(
    "extensions/priorities",
    mutant="amqp-priorities-share-lanes",
    clauses=("rmq.queue.max-priority", "basic.07", "basic.08"),
)
async def priorities(ctx: AmqpContext) -> None:
    """A queue with x-max-priority delivers by priority, and in order within one.

    Ten levels, two messages each from low to high; one above the maximum counts as the maximum, one without as 0.
    """
    channel = await ctx.channel()
    await ctx.needs_argument("x-max-priority", -1)
    queue = await ctx.queue_with(channel, {"x-max-priority": 9})
    for turn in range(2):
        for priority in range(10):
            channel.publish("", queue, f"{priority}.{turn}".encode(), properties={"priority": priority})
    channel.publish("", queue, b"9.2", properties={"priority": 200})
    channel.publish("", queue, b"0.2")
    await channel.count_becomes(queue, 22)
    seen = [(await channel.get_soon(queue)).body.decode() for _ in range(22)]
    turns = {9: 3, 0: 3}
    wanted = [f"{priority}.{turn}" for priority in range(9, -1, -1) for turn in range(turns.get(priority, 2))]
    ctx.must(seen == wanted, f"expected {wanted}; seen {seen}")


@amqp_case(
    "extensions/priorities-of-consumers",
    mutant="amqp-consumer-priorities-ignored",
    clauses=("rmq.consumer.priority",),
    requires=("consumer_priorities",),
)
async def consumer_priority(ctx: AmqpContext) -> None:
    """Consumers with a higher x-priority get everything until they are busy.

    A prefetch of two each: the first two messages go to the higher one, the next two to the other.
    """
    connection = await ctx.client()
    low, high = await connection.channel(), await connection.channel()
    queue = await low.queue()
    for channel, priority in ((low, 0), (high, 10)):
        await channel.call("basic.qos", prefetch_count=2)
        await channel.consume(queue, arguments={"x-priority": priority})
    for number in range(4):
        low.publish("", queue, str(number).encode())
    with ctx.own_point():
        seen = {
            name: {(await channel.delivery()).body for _ in range(2)}
            for name, channel in (("high", high), ("low", low))
        }
    ctx.must(seen["high"] == {b"0", b"1"}, f"expected the first messages at the higher priority; seen {seen}")


@amqp_case(
    "extensions/single-active-consumer", mutant="amqp-all-consumers-active", clauses=("rmq.queue.single-active",)
)
async def single_active(ctx: AmqpContext) -> None:
    """With x-single-active-consumer one consumer gets everything, and the next when it goes.

    Three consumers in order; the first is cancelled, then the second's channel is closed.
    """
    connection = await ctx.client()
    channels = [await connection.channel() for _ in range(3)]
    await ctx.needs_argument("x-single-active-consumer", "assay-nonsense")
    queue = await ctx.queue_with(channels[0], {"x-single-active-consumer": True})
    tags = [await channel.consume(queue, no_ack=True) for channel in channels]
    publisher = await connection.channel()
    for active in range(3):
        for number in range(3):
            publisher.publish("", queue, f"{active} {number}".encode())
        for _ in range(3):
            where = await ctx.either(*channels[active:])
            ctx.must(where is channels[active], "expected the oldest consumer that is left to get everything")
        if active == 0:
            await channels[0].call("basic.cancel", consumer_tag=tags[0])
        elif active == 1:
            await channels[1].close()


# Publishing and replies


@amqp_case(
    "extensions/direct-reply-to",
    mutant="amqp-replies-to-nobody",
    clauses=("rmq.direct-reply-to",),
    requires=("direct_reply_to",),
)
async def direct_reply_to(ctx: AmqpContext) -> None:
    """A consumer of amq.rabbitmq.reply-to gets what is published to the name in reply-to.

    Asked on one connection, answered on another by the nameless exchange.
    """
    asking, answering = await ctx.channel(), await ctx.channel()
    queue = await answering.queue(shared=True)
    await answering.consume(queue, no_ack=True)
    await asking.consume("amq.rabbitmq.reply-to", no_ack=True)
    properties = {"reply_to": "amq.rabbitmq.reply-to", "correlation_id": "7"}
    asking.publish("", queue, b"question", properties=properties)
    event = await answering.delivery(b"question")
    name = event.properties.get("reply-to", "")
    ctx.must(name.startswith("amq.rabbitmq.reply-to."), f"expected a generated name in reply-to; seen {name!r}")
    answering.publish("", name, b"answer", properties={"correlation_id": "7"})
    with ctx.own_point():
        event = await asking.delivery(b"answer")
    ctx.must(event.properties.get("correlation-id") == "7", "expected the properties of the answer")


@amqp_case(
    "extensions/direct-reply-to-needs-no-acknowledgements",
    mutant="amqp-reply-consumers-acknowledge",
    clauses=("rmq.direct-reply-to",),
    requires=("direct_reply_to",),
)
async def direct_reply_to_errors(ctx: AmqpContext) -> None:
    """Consuming direct replies with acknowledgements, or asking without consuming them, ends the channel with 406.

    Each on a channel of its own.
    """
    connection = await ctx.client()
    channel = await connection.channel()
    outcome = await channel.outcome("basic.consume", queue="amq.rabbitmq.reply-to")
    ctx.allow("rmq.direct-reply-to", outcome)
    channel = await connection.channel()
    queue = await channel.queue()
    channel.publish("", queue, b"x", properties={"reply_to": "amq.rabbitmq.reply-to"})
    ctx.allow("rmq.direct-reply-to", await channel.outcome_of())


@amqp_case("extensions/more-routing-keys-in-headers", mutant="amqp-bcc-passed-on", clauses=("rmq.sender-selected",))
async def sender_selected(ctx: AmqpContext) -> None:
    """The headers CC and BCC hold more routing keys; BCC is not passed on.

    Three queues by the nameless exchange, one copy each. A server that refuses no CC of another type, and routes none,
    does not know them.
    """
    connection = await ctx.client()
    probe = await connection.channel()
    probe.publish("", "assay-nowhere", b"x", properties={"headers": {"CC": "text"}})
    knows = await probe.outcome_of()
    if knows == "ok":
        ctx.unsupported("a header CC that is no array is taken: the server does not look at it")
    ctx.allow("rmq.sender-selected", knows)
    channel = await connection.channel()
    queues = [await channel.queue() for _ in range(3)]
    headers = {"CC": [queues[1], queues[0]], "BCC": [queues[2]]}
    channel.publish("", queues[0], b"x", properties={"headers": headers})
    for queue in queues:
        event = await channel.get_soon(queue)
        ctx.must("BCC" not in event.headers, "expected BCC to be taken out; seen it")
        ctx.must(event.headers.get("CC") == headers["CC"], "expected CC to be kept; seen another")
        ctx.must(await channel.get(queue) is None, "expected one copy in each queue; seen two")


@amqp_case(
    "extensions/messages-that-are-too-large",
    mutant="amqp-messages-of-any-size",
    clauses=("rmq.max-message-size",),
    requires=("maximum_message_bytes",),
)
async def too_large(ctx: AmqpContext) -> None:
    """A message larger than the server takes is refused, and one that is as large comes.

    Refused with 406 on the channel, its body taken to the end: the connection goes on.
    """
    most = int(ctx.capabilities["maximum_message_bytes"])
    connection = await ctx.client()
    channel = await connection.channel()
    queue = await channel.queue()
    with ctx.own_point():
        channel.publish("", queue, b"x" * most)
        event = await channel.get_soon(queue)
        ctx.must(len(event.body) == most, f"expected {most} bytes; seen {len(event.body)}")
    channel.publish("", queue, b"x" * (most + 1))
    outcome = await channel.outcome_of()
    ctx.allow("rmq.max-message-size", outcome)
    if outcome.startswith("channel"):
        await (await connection.channel()).barrier()


@amqp_case(
    "extensions/user-id-is-checked", mutant="amqp-refusals-are-internal-errors", clauses=("rmq.user-id.validated",)
)
async def user_id(ctx: AmqpContext) -> None:
    """A user-id that is not that of the connection is refused with 406, and the right one is taken.

    A server that takes any does not look at it: unsupported.
    """
    connection = await ctx.client()
    channel = await connection.channel()
    channel.publish("", "assay-nowhere", b"x", properties={"user_id": "assay-somebody-else"})
    outcome = await channel.outcome_of()
    if outcome == "ok":
        ctx.unsupported("any user-id is taken: the server does not look at it")
    ctx.allow("rmq.user-id.validated", outcome)
    channel = await connection.channel()
    queue = await channel.queue()
    channel.publish("", queue, b"x", properties={"user_id": ctx.endpoint.username})
    with ctx.own_point():
        await channel.get_soon(queue)


@amqp_case(
    "extensions/quorum-queues-give-up",
    mutant="amqp-delivery-limit-counts-late",
    clauses=("rmq.quorum.delivery-limit", "basic.deliver.01"),
    limit_s=10.0,
)
async def delivery_limit(ctx: AmqpContext) -> None:
    """A quorum queue gives up a message that came back more often than x-delivery-limit.

    A limit of one: after the second return it is a dead letter at once, without a consumer, for delivery_limit.
    """
    channel = await ctx.channel()
    await ctx.needs_argument("x-queue-type", "assay-nonsense")
    letters = await channel.queue()
    await channel.consume(letters, no_ack=True)
    arguments = {
        "x-queue-type": "quorum",
        "x-delivery-limit": 1,
        "x-dead-letter-exchange": "",
        "x-dead-letter-routing-key": letters,
    }
    name = ctx.queue_name()
    outcome = await channel.outcome("queue.declare", queue=name, durable=True, arguments=arguments)
    if outcome != "ok":
        ctx.unsupported(f"a quorum queue with x-delivery-limit is answered by {outcome}")
    channel.publish("", name, b"poison")
    for _ in range(2):
        event = await channel.get_soon(name, no_ack=False)
        channel.send("basic.reject", delivery_tag=event.tag, requeue=True)
    with ctx.own_point():
        letter = await channel.delivery(b"poison")
    _death(ctx, letter, name, "delivery_limit")


@amqp_case(
    "extensions/quorum-queues-let-consumers-go",
    mutant="amqp-quorum-cancel-fails",
    clauses=("basic.cancel.01", "rmq.x-queue-type"),
    limit_s=10.0,
)
async def quorum_cancel(ctx: AmqpContext) -> None:
    """A consumer of a quorum queue that holds messages can be cancelled.

    Found in a broker: cancelling was an error. Cancel-Ok comes, no consumer is counted, and the message is still there.
    """
    channel = await ctx.channel()
    await ctx.needs_argument("x-queue-type", "assay-nonsense")
    name = ctx.queue_name()
    outcome = await channel.outcome("queue.declare", queue=name, durable=True, arguments={"x-queue-type": "quorum"})
    if outcome != "ok":
        ctx.unsupported(f"a quorum queue is answered by {outcome}")
    channel.publish("", name, b"waits")
    await channel.count_becomes(name, 1)
    await channel.call("basic.qos", prefetch_count=1)
    tag = await channel.consume(name)
    with ctx.own_point():
        event = await channel.delivery(b"waits")
        await channel.call("basic.cancel", consumer_tag=tag)
        channel.send("basic.reject", delivery_tag=event.tag, requeue=True)
        await channel.get_soon(name)


@amqp_case(
    "extensions/growing-x-death-fits-in-frames",
    mutant="amqp-headers-larger-than-frames",
    clauses=("sec.4.2.3.server-frame-max", "rmq.dlx.reasons"),
    level="SHOULD",
)
async def growing_header(ctx: AmqpContext) -> None:
    """A message that has died in many queues is still sent in frames as large as agreed, or is told to be too large.

    Headers of 3900 bytes, with x-death added by one rejection, for a client of 4096-byte frames. A content header
    cannot be cut, so that a larger one is reported.
    """
    channel = await ctx.channel(frame_max=4_096)
    queue, _ = await _dead_letters(ctx, channel)
    channel.publish("", queue, b"x", properties={"headers": {"filler": Typed("S", b"f" * 3_900)}})
    event = await channel.get_soon(queue, no_ack=False)
    channel.send("basic.reject", delivery_tag=event.tag, requeue=False)
    letter = await channel.delivery(b"x")
    size = len(letter.header) + 8
    ctx.should(size <= 4_096, f"a content header in a frame of {size} bytes, where 4096 were agreed on")


@amqp_case(
    "extensions/direct-replies-that-come-too-late",
    mutant="amqp-replies-wait-for-ever",
    clauses=("rmq.direct-reply-to",),
    requires=("direct_reply_to",),
)
async def late_replies(ctx: AmqpContext) -> None:
    """A name for direct replies leads nowhere once its consumer is cancelled, and can be asked for with Declare.

    Declare finds the name while somebody consumes, and is refused with 404 then; a mandatory reply comes back.
    """
    asking, answering = await ctx.channel(), await ctx.channel()
    queue = await answering.queue(shared=True)
    await answering.consume(queue, no_ack=True)
    tag = await asking.consume("amq.rabbitmq.reply-to", no_ack=True)
    asking.publish("", queue, b"question", properties={"reply_to": "amq.rabbitmq.reply-to"})
    name = (await answering.delivery(b"question")).properties.get("reply-to", "")
    with ctx.own_point():
        await answering.call("queue.declare", queue=name, passive=True)
    await asking.call("basic.cancel", consumer_tag=tag)
    answering.publish("", name, b"late", mandatory=True)
    with ctx.own_point():
        await answering.expect("basic.return")
    outcome = await answering.outcome("queue.declare", queue=name, passive=True)
    ctx.must(outcome == "channel 404", f"expected nobody to wait for replies; seen {outcome}")
    await asking.barrier()
    ctx.must(not any(event.body == b"late" for event in asking.inbox), "expected no reply to a cancelled consumer")

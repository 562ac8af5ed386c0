"""Streams (``x-queue-type: stream``): messages stay, and every consumer says where it begins to read.

A server that refuses the type ends as unsupported. Offsets are the server's own: cases take them from deliveries.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any

from assay.conformance.amqp091.client import Channel
from assay.conformance.amqp091.context import AmqpContext, amqp_case
from assay.conformance.stall import Stopwatch
from assay.conformance.wire.amqp091 import Arrival, Typed

_TYPE = {"x-queue-type": "stream"}
_LIMIT_S = 10.0
"""To make a stream may take a server longer than to make a queue."""


async def _stream(ctx: AmqpContext, channel: Channel) -> str:
    """A stream's name."""
    await ctx.needs_argument("x-queue-type", "assay-nonsense")
    name = ctx.queue_name()
    outcome = await channel.outcome("queue.declare", queue=name, durable=True, arguments=_TYPE)
    if outcome != "ok":
        ctx.unsupported(f"a stream is answered by {outcome}")
    return name


async def _reader(channel: Channel, stream: str, offset: Any, prefetch: int = 100) -> Channel:
    """A channel that reads from somewhere on."""
    reader = await channel.connection.channel()
    await reader.call("basic.qos", prefetch_count=prefetch)
    await reader.consume(stream, arguments={"x-stream-offset": offset})
    return reader


async def _filled(ctx: AmqpContext, count: int) -> tuple[Channel, str, list[Arrival]]:
    """A stream with so many messages, and how somebody read them."""
    channel = await ctx.channel()
    stream = await _stream(ctx, channel)
    reader = await _reader(channel, stream, "first")
    events = []
    for number in range(count):
        # One by one: what a server stores together it may send together, whatever the prefetch.
        channel.publish("", stream, str(number).encode())
        events.append(await reader.delivery(str(number).encode()))
    return channel, stream, events


def _offset(ctx: AmqpContext, event: Arrival) -> int:
    found = event.headers.get("x-stream-offset")
    ctx.must(isinstance(found, int), f"expected x-stream-offset in the headers; seen {dict(event.headers)}")
    assert isinstance(found, int)
    return found


@amqp_case(
    "streams/messages-stay",
    mutant="amqp-streams-are-consumed",
    kills=("amqp-stream-offsets-not-told",),
    clauses=("rmq.x-queue-type",),
    limit_s=_LIMIT_S,
)
async def messages_stay(ctx: AmqpContext) -> None:
    """Every consumer of a stream gets every message, in order, whatever others have acknowledged, with its offset.

    Five messages and three consumers from the first one on; the first acknowledges all before the second comes.
    """
    channel, stream, events = await _filled(ctx, 5)
    reader = await _reader(channel, stream, "first")
    seen = [await reader.delivery(str(number).encode()) for number in range(5)]
    reader.send("basic.ack", delivery_tag=seen[-1].tag, multiple=True)
    await reader.barrier()
    last = await _reader(channel, stream, "first")
    with ctx.own_point():
        again = [await last.delivery(str(number).encode()) for number in range(5)]
    offsets = [_offset(ctx, event) for event in events]
    ctx.must(offsets == sorted(set(offsets)), f"expected offsets that grow; seen {offsets}")
    for name, those in (("second", seen), ("third", again)):
        found = [_offset(ctx, event) for event in those]
        ctx.must(found == offsets, f"expected the same offsets for the {name} consumer, {offsets}; seen {found}")


@amqp_case(
    "streams/consumers-say-where-they-begin",
    mutant="amqp-stream-offsets-ignored",
    clauses=("rmq.x-queue-type",),
    limit_s=_LIMIT_S,
)
async def where_they_begin(ctx: AmqpContext) -> None:
    """A consumer begins at an offset, with what comes next, among the last messages, or at a time.

    Five messages: from the third by its offset, all of the last hour, from the last part on, which may be more than one
    message, and none that was there before for ``next``.
    """
    channel, stream, events = await _filled(ctx, 5)
    third = await _reader(channel, stream, _offset(ctx, events[2]))
    recent = await _reader(channel, stream, "1h")
    last = await _reader(channel, stream, "last")
    new = await _reader(channel, stream, "next")
    with ctx.own_point():
        for number in (2, 3, 4):
            await third.delivery(str(number).encode())
        for number in range(5):
            await recent.delivery(str(number).encode())
        event = await last.delivery()
        ctx.must(event.body in (b"0", b"1", b"2", b"3", b"4"), f"expected one of the messages; seen {event.body!r}")
        for number in range(int(event.body) + 1, 5):
            await last.delivery(str(number).encode())
        channel.publish("", stream, b"new")
        for reader in (new, third, last, recent):
            await reader.delivery(b"new")


@amqp_case(
    "streams/acknowledgements-ask-for-more",
    mutant="amqp-prefetch-ignored",
    clauses=("rmq.x-queue-type", "basic.qos.prefetch-count.01"),
    limit_s=_LIMIT_S,
)
async def acks_ask_for_more(ctx: AmqpContext) -> None:
    """A consumer of a stream holds as many messages as its prefetch allows, and gets more for what it acknowledges.

    Five messages and a prefetch of two. Nothing may follow before an acknowledgement, and one follows each.
    """
    channel, stream, _ = await _filled(ctx, 5)
    reader = await _reader(channel, stream, "first", prefetch=2)
    held = [await reader.delivery(str(number).encode()) for number in range(2)]
    await reader.barrier()
    extra = [event.body for event in reader.inbox if event.name == "basic.deliver"]
    ctx.must(not extra, f"expected no delivery above the prefetch; seen {extra}")
    for number in range(2, 5):
        reader.send("basic.ack", delivery_tag=held.pop(0).tag)
        with ctx.own_point():
            held.append(await reader.delivery(str(number).encode()))


@amqp_case(
    "streams/readers-need-a-prefetch",
    mutant="amqp-streams-without-prefetch",
    clauses=("rmq.x-queue-type",),
    limit_s=_LIMIT_S,
)
async def needs_prefetch(ctx: AmqpContext) -> None:
    """Consuming a stream without a prefetch is refused.

    With one it is taken.
    """
    channel = await ctx.channel()
    stream = await _stream(ctx, channel)
    await _reader(channel, stream, "first")
    bare = await channel.connection.channel()
    outcome = await bare.outcome("basic.consume", queue=stream, arguments={"x-stream-offset": "first"})
    ctx.allow("rmq.x-queue-type", outcome)


@amqp_case("streams/nothing-is-got", mutant="amqp-streams-can-be-got", clauses=("rmq.x-queue-type",), limit_s=_LIMIT_S)
async def no_get(ctx: AmqpContext) -> None:
    """Basic.Get of a stream is refused, since it would have to say where, or finds nothing.

    Twice, on a connection of its own; the stream still serves afterwards.
    """
    channel, stream, _ = await _filled(ctx, 3)
    asking = await ctx.channel()
    outcome = await asking.outcome("basic.get", queue=stream)
    if outcome != "ok":
        ctx.allow("rmq.x-queue-type", outcome)
    else:
        ctx.must(await asking.get(stream) is None, "expected Get to find nothing in a stream; seen a message")
    reader = await _reader(channel, stream, "first")
    await reader.delivery(b"0")


@amqp_case(
    "streams/consumers-begin-at-a-time",
    level="SHOULD",
    mutant="amqp-stream-ages-too-long",
    kills=("amqp-stream-ages-too-short", "amqp-stream-times-of-another-unit"),
    clauses=("rmq.x-queue-type",),
    limit_s=_LIMIT_S,
)
async def at_a_time(ctx: AmqpContext) -> None:
    """A consumer that begins at a time gets what is not older, and little of what is.

    Two messages, 2.3 s apart, each in a part of its own, since it was read before the next one came. Consumers begin
    2 s ago (on a slow machine both are multiples) and, where the broker has our clock, in the second in which the
    second message was sent. They get that one, and not the first: of what is older a server may send what it stored
    together with it.
    """
    ctx.is_timed = True
    channel, stream, _ = await _filled(ctx, 1)
    await asyncio.sleep(2.3 * ctx.stretch)
    second = int(time.time())
    watch = Stopwatch()
    channel.publish("", stream, b"new")
    await (await _reader(channel, stream, "first")).delivered_until(b"new")
    await asyncio.sleep(0.3)  # less than that ago it was not
    age = f"{2 * ctx.stretch}s"
    readers = [(f"{age} ago", await _reader(channel, stream, age))]
    if ctx.endpoint.host in ("127.0.0.1", "::1", "localhost"):
        readers.append(("a second", await _reader(channel, stream, Typed("T", second))))
        by_text = await ctx.channel()  # who does not know the form may end the connection
        await by_text.call("basic.qos", prefetch_count=100)
        arguments = {"x-stream-offset": f"timestamp={second}"}
        if await by_text.outcome("basic.consume", queue=stream, arguments=arguments) == "ok":
            readers.append(("the same second as a text", by_text))
    watch.demand_less_than(1.5 * ctx.stretch)  # else what was new is old by now
    channel.publish("", stream, b"behind")
    for name, reader in readers:
        seen = [event.body for event in await reader.delivered_until(b"behind")]
        ctx.must(b"new" in seen, f"{name}: expected the newer message; seen {seen}")
        ctx.should(b"0" not in seen, f"{name}: the older message comes as well")


async def _group_reader(channel: Channel, stream: str) -> Channel:
    """A channel that reads for the group ``g``, which goes on where it commits."""
    reader = await channel.connection.channel()
    await reader.call("basic.qos", prefetch_count=100)
    arguments = {"x-consumer-group": "g", "x-auto-commit": False, "x-stream-offset": "first"}
    await reader.consume(stream, arguments=arguments)
    return reader


def _says(group: Any, offset: Any) -> dict[str, Any]:
    headers = {name: value for name, value in (("x-group-id", group), ("x-offset", offset)) if value is not None}
    return {"headers": headers} if headers else {}


@amqp_case(
    "streams/a-group-goes-on-where-it-commits",
    mutant="amqp-commits-of-streams-lost",
    kills=("amqp-commits-of-streams-of-any-group",),
    clauses=("fluxmq.stream.commit",),
    limit_s=_LIMIT_S,
)
async def commits(ctx: AmqpContext) -> None:
    """A group that commits by itself goes on at the offset that it committed, whatever it has acknowledged.

    Of five messages all are acknowledged, and three committed: the last two come again, to a consumer that comes next.
    A commit without its headers, of another type, by who does not consume, of another group or of what is no stream is
    refused, and so is one beyond what was delivered; that of a stream that is not there likewise.
    """
    channel, stream, events = await _filled(ctx, 5)
    offsets = [_offset(ctx, event) for event in events]
    reader = await _group_reader(channel, stream)
    seen = [await reader.delivery(str(number).encode()) for number in range(5)]
    reader.ack(seen[-1], multiple=True)
    await reader.confirms()
    where = f"$queue/{stream}/$commit"
    reader.publish("", where, mandatory=True, properties=_says("g", offsets[3]))
    if (event := await reader.expect("basic.return", "basic.ack", "basic.nack")).name == "basic.return":
        ctx.unsupported("a commit is a message that nobody takes")
    ctx.must(event.name == "basic.ack", f"expected the commit to be confirmed; seen {event.name}")
    other = await channel.queue()
    for what, key, properties in (
        ("nothing", where, {}),
        ("no offset", where, _says("g", None)),
        ("no group", where, _says(None, offsets[4])),
        ("a group that is a number", where, _says(1, offsets[4])),
        ("an offset that is a text", where, _says("g", str(offsets[4]))),
        ("another group", where, _says("h", offsets[4])),
        ("a queue", f"$queue/{other}/$commit", _says("g", 0)),
        ("no stream", f"$queue/{stream}.none/$commit", _says("g", 0)),
        ("what was not delivered", where, _says("g", offsets[4] + 2)),
        ("what is committed", where, _says("g", offsets[1])),
    ):
        asking = await channel.connection.channel()
        if what in ("what was not delivered", "what is committed"):
            asking = reader
        asking.publish("", key, properties=properties)
        outcome = await asking.outcome_of("basic.ack")
        ctx.allow("fluxmq.stream.commit", outcome, what=what)
        if asking is reader:
            reader = await _group_reader(channel, stream)
            await ctx.all_of(reader, {b"3", b"4"}, ())
    idle = await channel.connection.channel()
    idle.publish("", where, properties=_says("g", offsets[4]))
    ctx.allow("fluxmq.stream.commit", await idle.outcome_of("basic.ack"), what="who does not consume")
    channel.connection.close()
    last = await _group_reader(await ctx.channel(), stream)
    await ctx.all_of(last, {b"3", b"4"}, ())

"""Frames with any damage: they cost their sender the connection, and nobody else anything.

After each case the runner checks that another client is served on as before.
"""

from __future__ import annotations

import struct

from assay.conformance.amqp091.client import Channel
from assay.conformance.amqp091.context import AmqpContext, amqp_case
from assay.conformance.wire.amqp091 import (
    FRAME_MIN_BYTES,
    Method,
    encode_body,
    encode_frame,
    encode_header,
    encode_method,
)

_PUBLISH = Method("basic.publish", routing_key="assay-nowhere")
_PASSIVE = Method("queue.declare", queue="assay-nowhere", passive=True)


async def _sent(ctx: AmqpContext, *parts: bytes, frame_max: int | None = None) -> tuple[Channel, str]:
    """How a connection ends that sends this on its channel 1."""
    channel = await ctx.channel(frame_max=frame_max)
    channel.connection.send_raw(b"".join(parts))
    return channel, await channel.outcome_of()


async def _all(ctx: AmqpContext, statement: str, *rows: tuple[str, bytes]) -> None:
    """Each of these must end as the registry says of the statement."""
    for what, data in rows:
        ctx.note(what)
        _, outcome = await _sent(ctx, data)
        ctx.allow(statement, outcome, what=what)


@amqp_case(
    "frames/unknown-types-end-the-connection",
    mutant="amqp-damage-passed-over",
    clauses=("sec.4.2.3.unknown-frame-type",),
)
async def unknown_type(ctx: AmqpContext) -> None:
    """A frame of an unknown type ends the connection.

    Types 0, 4, 5, 9 and 255; a Close with a code that says so passes.
    """
    rows = [(f"frame type {kind}", encode_frame(kind, 0)) for kind in (0, 4, 5, 9, 255)]
    await _all(ctx, "sec.4.2.3.unknown-frame-type", *rows)


@amqp_case(
    "frames/must-end-with-ce",
    mutant="amqp-frame-ends-unseen",
    clauses=("sec.4.2.3.frame-end-check", "sec.4.2.3.frame-end-value"),
)
async def frame_end(ctx: AmqpContext) -> None:
    """A frame that does not end with 0xCE ends the connection, and is not carried out.

    A declaration of a queue, and a heartbeat; the queue is not there afterwards.
    """
    name = ctx.queue_name()
    declare = Method("queue.declare", queue=name, durable=True)
    frame = encode_method(1, declare)[:-1] + b"\xcd"
    await _all(ctx, "sec.4.2.3.frame-end-check", ("a method", frame), ("a heartbeat", encode_frame(8, 0, end=0)))
    outcome = await (await ctx.channel()).outcome("queue.declare", queue=name, passive=True)
    ctx.must(outcome == "channel 404", f"expected nothing of a damaged frame to be done; seen {outcome}")


@amqp_case(
    "frames/larger-than-agreed", mutant="amqp-frames-of-any-size", clauses=("sec.4.2.3.oversize", "sec.2.3.3.limits")
)
async def oversize(ctx: AmqpContext) -> None:
    """A frame larger than agreed ends the connection.

    A body frame a thousand bytes too long for 4096; one of exactly 4096 is taken before. One byte too many, which may
    be meant to make room for a client that counts wrong, is reported where it is taken.
    """
    channel = await ctx.channel(frame_max=FRAME_MIN_BYTES)
    queue = await channel.queue()
    channel.publish("", queue, b"x" * (FRAME_MIN_BYTES - 8))
    await channel.get_soon(queue)
    for excess in (1, 1_000):
        size = FRAME_MIN_BYTES - 8 + excess
        data = encode_method(1, _PUBLISH) + encode_header(1, size) + encode_body(1, b"x" * size)
        _, outcome = await _sent(ctx, data, frame_max=FRAME_MIN_BYTES)
        if excess == 1 and outcome == "ok":
            ctx.should(False, "a frame one byte larger than agreed is taken")
        else:
            ctx.allow("sec.4.2.3.oversize", outcome, what=f"{excess} byte(s) too many")


@amqp_case(
    "frames/a-size-that-never-comes",
    mutant="amqp-waits-for-a-huge-frame",
    clauses=("sec.4.9.limits", "sec.2.3.3.limits"),
)
async def huge_size(ctx: AmqpContext) -> None:
    """A frame that announces four gigabytes ends the connection, or waits for them; others are served meanwhile.

    Nothing of it is sent but its head. So are a body of 2^63 bytes, of which none comes, and an empty queue.
    """
    first = await ctx.channel()
    first.connection.send_raw(struct.pack(">BHI", 1, 1, 2**32 - 1))
    second = await ctx.channel()
    second.connection.send_raw(encode_method(1, _PUBLISH) + encode_header(1, 2**63))
    other = await ctx.channel()
    with ctx.own_point():
        queue = await other.queue()
        other.publish("", queue, b"served")
        await other.get_soon(queue)


@amqp_case(
    "frames/connection-methods-on-other-channels",
    mutant="amqp-senseless-methods-pass",
    clauses=("sec.4.2.3.channel-zero",),
)
async def connection_method_on_channel(ctx: AmqpContext) -> None:
    """A method of class connection on another channel than 0 costs the connection.

    Close and Open on channel 1.
    """
    await _all(
        ctx,
        "sec.4.2.3.channel-zero",
        ("connection.open on channel 1", encode_method(1, Method("connection.open", virtual_host="/"))),
        ("connection.tune-ok on channel 1", encode_method(1, Method("connection.tune-ok"))),
    )


@amqp_case(
    "frames/other-methods-on-channel-0",
    mutant="amqp-anything-on-channel-0",
    clauses=("sec.4.2.3.nonconnection-on-zero",),
)
async def method_on_zero(ctx: AmqpContext) -> None:
    """A method of another class on channel 0 costs the connection.

    channel.open, queue.declare and tx.select.
    """
    rows = [
        (f"{method.name} on channel 0", encode_method(0, method))
        for method in (Method("channel.open"), _PASSIVE, Method("tx.select"))
    ]
    await _all(ctx, "sec.4.2.3.nonconnection-on-zero", *rows)


@amqp_case(
    "frames/heartbeats-on-other-channels",
    mutant="amqp-heartbeats-anywhere",
    clauses=("sec.4.2.7.heartbeat-channel", "sec.4.2.3.channel-zero"),
)
async def heartbeat_channel(ctx: AmqpContext) -> None:
    """A heartbeat on another channel than 0 costs the connection.

    The texts of the specification name two codes for it, and the servers in use a third: all pass.
    """
    await _all(ctx, "sec.4.2.7.heartbeat-channel", ("a heartbeat on channel 1", encode_frame(8, 1)))


@amqp_case("frames/unknown-methods", mutant="amqp-damage-passed-over", clauses=("sec.4.2.4.unknown-method",))
async def unknown_method(ctx: AmqpContext) -> None:
    """A class or method that there is not costs the connection, by a Close that says why.

    Class 77, method 99 of class queue, and a method frame too short for either.
    """
    await _all(
        ctx,
        "sec.4.2.4.unknown-method",
        ("class 77", encode_frame(1, 1, b"\x00\x4d\x00\x0a")),
        ("method 50.99", encode_frame(1, 1, b"\x00\x32\x00\x63")),
    )


@amqp_case("frames/arguments-that-are-cut", mutant="amqp-damage-passed-over", clauses=("sec.4.2.5.5.truncated-table",))
async def cut_arguments(ctx: AmqpContext) -> None:
    """Arguments that end too early cost the connection, and nothing is done.

    A declaration without its table, one whose table runs over the frame, and one whose name does.
    """
    whole = encode_method(1, Method("queue.declare", queue="assay-cut"))[7:-1]
    rows = [
        ("without its table", whole[:-4]),
        ("a table that runs over the frame", whole[:-4] + b"\x00\x00\x00\x40"),
        ("a name that runs over the frame", b"\x00\x32\x00\x0a\x00\x00\xffx"),
    ]
    await _all(ctx, "sec.4.2.5.5.truncated-table", *((what, encode_frame(1, 1, payload)) for what, payload in rows))


def _with_table(ctx: AmqpContext, fields: bytes) -> bytes:
    """A declaration with these bytes for the fields of its table; it wants no answer."""
    declare = Method("queue.declare", queue=ctx.queue_name(), exclusive=True, no_wait=True, arguments=fields)
    return encode_method(1, declare)


@amqp_case(
    "frames/values-that-run-over-their-table",
    mutant="amqp-damage-passed-over",
    clauses=("sec.4.2.5.5.truncated-table", "sec.4.2.1.field-array-length"),
)
async def cut_values(ctx: AmqpContext) -> None:
    """A value that runs over the end of its table costs the connection.

    An integer, a string, an array whose length is wrong, a table in a table, and a name.
    """
    rows = [
        ("an integer of two bytes", b"\x01aI\x00\x01"),
        ("a string that is too long", b"\x01aS\x00\x00\x00\x09x"),
        ("an array that is too long", b"\x01aA\x00\x00\x00\x40" + b"t\x01"),
        ("an array that cuts its last value", b"\x01aA\x00\x00\x00\x03" + b"I\x00\x00\x00\x01"),
        ("a table that is too long", b"\x01aF\x00\x00\x00\x40\x01bt\x01"),
        ("a name that is too long", b"\x09abt\x01"),
    ]
    await _all(ctx, "sec.4.2.5.5.truncated-table", *((what, _with_table(ctx, data)) for what, data in rows))


@amqp_case("frames/unknown-types-of-values", mutant="amqp-damage-passed-over", clauses=("sec.4.2.1.field-types",))
async def unknown_letter(ctx: AmqpContext) -> None:
    """A value of a type that there is not costs the connection, by a Close that says why.

    The letter ``?``, in a table and within an array.
    """
    rows = [("a value ?", b"\x01a?\x00\x00\x00\x01"), ("? within an array", b"\x01aA\x00\x00\x00\x02?\x01")]
    await _all(ctx, "sec.4.2.5.5.truncated-table", *((what, _with_table(ctx, data)) for what, data in rows))


@amqp_case(
    "frames/names-of-fields", mutant="amqp-names-of-fields-of-64", clauses=("sec.4.2.5.5.field-names",), level="SHOULD"
)
async def field_names(ctx: AmqpContext) -> None:
    """A field whose name begins with a digit, or is too long, is refused or taken.

    A server should look at names; one that takes them misses a SHOULD. One of 128 letters must be taken.
    """
    channel = await ctx.channel()
    with ctx.own_point():
        queue = await channel.queue()
        channel.publish("", queue, b"x", properties={"headers": {"n" * 128: 1, "$a": 2, "#b": 3}})
        await channel.get_soon(queue)
    for name in ("1a", "n" * 129):
        _, outcome = await _sent(ctx, encode_method(1, _PUBLISH), encode_header(1, 0, {"headers": {name: 1}}))
        ctx.allow("sec.4.2.5.5.field-names", outcome)
        ctx.should(outcome != "ok", f"a field with the name {name[:4]}... ({len(name)} characters) is taken")


@amqp_case("frames/tables-in-tables", mutant="amqp-deep-tables-take-long", clauses=("sec.4.2.5.5.truncated-table",))
async def deep_tables(ctx: AmqpContext) -> None:
    """A thousand tables in each other are taken or refused; others are served on.

    They fit in a frame. Whatever the server does with them, it must not die of them.
    """
    data = b"\x01at\x01"
    for _ in range(1_000):
        data = b"\x01aF" + struct.pack(">I", len(data)) + data
    _, outcome = await _sent(ctx, _with_table(ctx, data))
    ctx.allow("sec.4.2.5.5.truncated-table", outcome, "ok", "channel any", "close", "connection any")
    with ctx.own_point():
        await (await ctx.channel()).barrier()


# Content


@amqp_case("frames/content-out-of-place", mutant="amqp-stray-content-passes", clauses=("sec.4.2.6.bad-content",))
async def content_out_of_place(ctx: AmqpContext) -> None:
    """Content that is not header and bodies behind a method that has any costs the connection.

    A header and a body without a method, a body without a header, a header behind a method that has no content, and a
    second header.
    """
    silent = Method("exchange.declare", exchange="amq.direct", type_="direct", passive=True, no_wait=True)
    await _all(
        ctx,
        "sec.4.2.6.bad-content",
        ("a header without a method", encode_header(1, 1)),
        ("a body without a method", encode_body(1, b"x")),
        ("a body without a header", encode_method(1, _PUBLISH) + encode_body(1, b"x")),
        ("a header behind exchange.declare", encode_method(1, silent) + encode_header(1, 1)),
        ("a second header", encode_method(1, _PUBLISH) + encode_header(1, 1) + encode_header(1, 1)),
    )


@amqp_case(
    "frames/methods-within-content",
    mutant="amqp-content-cut-short",
    near_miss="amqp-content-given-up",
    clauses=("sec.4.2.6.interleave", "sec.4.2.6.abort"),
)
async def method_within_content(ctx: AmqpContext) -> None:
    """A method of the same channel within a content is an error, or gives the content up.

    Another rule lets any frame end a content: both pass, but the message with a hole must not come. Behind the method
    and behind the header.
    """
    channel = await ctx.channel()
    queue = await channel.queue(shared=True)
    publish = encode_method(1, Method("basic.publish", routing_key=queue))
    for what, data in (
        ("behind the method", publish),
        ("behind the header", publish + encode_header(1, 4)),
        ("behind half of the body", publish + encode_header(1, 4) + encode_body(1, b"ab")),
    ):
        ctx.note(what)
        _, outcome = await _sent(ctx, data)
        ctx.allow("sec.4.2.6.abort", outcome)
    channel.publish("", queue, b"marker")
    event = await channel.get_soon(queue)
    ctx.must(event.body == b"marker", f"expected no message that was not whole; seen {event.body!r}")


@amqp_case(
    "frames/bodies-larger-than-announced",
    mutant="amqp-bodies-cut",
    clauses=("sec.4.2.6.body-overflow", "sec.4.2.6.header-zero-size"),
)
async def body_overflow(ctx: AmqpContext) -> None:
    """Bodies larger in sum than announced cost the connection, and no such message comes.

    Five bytes of four; one byte of none; a second body behind one that was whole.
    """
    channel = await ctx.channel()
    queue = await channel.queue(shared=True)
    publish = encode_method(1, Method("basic.publish", routing_key=queue))
    for what, data in (
        ("five bytes of four", encode_header(1, 4) + encode_body(1, b"abcde")),
        ("one byte of none", encode_header(1, 0) + encode_body(1, b"a")),
        ("one byte too many in a second frame", encode_header(1, 4) + encode_body(1, b"abcd") + encode_body(1, b"e")),
    ):
        ctx.note(what)
        _, outcome = await _sent(ctx, publish, data)
        ctx.allow("sec.4.2.6.body-overflow", outcome)


@amqp_case("frames/the-class-of-a-header", mutant="amqp-header-class-unseen", clauses=("sec.4.2.6.1.class-id",))
async def header_class(ctx: AmqpContext) -> None:
    """A content header of another class than its method costs the connection.

    Classes 50 and 0 behind basic.publish.
    """
    rows = [
        (f"class {number}", encode_method(1, _PUBLISH) + encode_header(1, 0, class_id=number)) for number in (50, 0)
    ]
    await _all(ctx, "sec.4.2.6.1.class-id", *rows)


@amqp_case(
    "frames/the-weight-of-a-header", mutant="amqp-content-headers-internal-errors", clauses=("sec.4.2.6.1.weight",)
)
async def header_weight(ctx: AmqpContext) -> None:
    """A content header with a weight is refused, or its weight is not looked at.

    Weight 7, with nothing behind it.
    """
    await _all(ctx, "sec.4.2.6.1.weight", ("weight 7", encode_method(1, _PUBLISH) + encode_header(1, 0, weight=7)))


@amqp_case("frames/content-on-channel-0", mutant="amqp-content-on-channel-0", clauses=("sec.4.2.6.1.channel-zero",))
async def content_on_zero(ctx: AmqpContext) -> None:
    """Content frames on channel 0 cost the connection.

    A header and a body.
    """
    await _all(
        ctx,
        "sec.4.2.6.1.channel-zero",
        ("a header on channel 0", encode_header(0, 1)),
        ("a body on channel 0", encode_body(0, b"x")),
    )


@amqp_case(
    "frames/property-flags",
    mutant="amqp-damage-passed-over",
    clauses=("sec.4.2.6.1.flags-continuation", "sec.4.2.6.bad-content"),
)
async def property_flags(ctx: AmqpContext) -> None:
    """Flags of properties that are not there, or go on, are refused or understood.

    All flags with a list that is cut: an error. A second word of flags that are all 0 means nothing: the message comes,
    or it is refused as a form that nobody uses.
    """
    _, outcome = await _sent(ctx, encode_method(1, _PUBLISH), encode_header(1, 0, b"\xff\xfc\x01a"))
    ctx.allow("sec.4.2.6.bad-content", outcome)
    _, outcome = await _sent(ctx, encode_method(1, _PUBLISH), encode_header(1, 0, b"\x80\x01\x00\x00\x01a"))
    ctx.allow("sec.4.2.6.bad-content", outcome, "ok")
    ctx.should(outcome == "ok", f"a second word of property flags is refused: {outcome}")


@amqp_case(
    "frames/noise",
    mutant="amqp-errors-end-everybody",
    clauses=("sec.4.2.3.unknown-frame-type", "sec.4.2.3.frame-end-check"),
)
async def noise(ctx: AmqpContext) -> None:
    """Frames with a bit turned over are errors, or mean something else; nobody else suffers.

    Twenty connections, each with one bit of a publish and a declaration turned over. Whatever the answer, it is of the
    standard, and a fresh connection is served.
    """
    channel = await ctx.channel()
    queue = await channel.queue(shared=True)
    for _ in range(20):
        data = bytearray(
            encode_method(1, Method("basic.publish", routing_key=queue))
            + encode_header(1, 4, {"headers": {"a": [1, "b"]}})
            + encode_body(1, b"abcd")
            + encode_method(1, Method("queue.declare", queue=queue, passive=True))
        )
        place = ctx.rng.randrange(len(data) * 8)
        data[place // 8] ^= 1 << place % 8
        damaged = await ctx.channel()
        damaged.connection.send_raw(bytes(data))
        damaged.connection.send_raw(encode_method(0, Method("connection.close", reply_code=200)))
        damaged.connection.left = True
    with ctx.own_point():
        await channel.call("queue.purge", queue=queue)
        channel.publish("", queue, b"served")
        await channel.get_soon(queue)

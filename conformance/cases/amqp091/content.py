"""Content: bodies, properties and tables come out as they went in, in whatever frames they travel."""

from __future__ import annotations

from typing import Any

from assay.conformance.amqp091.context import AmqpContext, amqp_case
from assay.conformance.wire.amqp091 import (
    FRAME_MIN_BYTES,
    FRAME_OVERHEAD_BYTES,
    Method,
    Typed,
    encode_body,
    encode_header,
    encode_method,
)

_PROPERTIES: dict[str, Any] = {
    "content-type": "application/x-assay",
    "content-encoding": "identity",
    "delivery-mode": 2,
    "priority": 3,
    "correlation-id": "c" * 255,
    "reply-to": "somewhere",
    "expiration": "3600000",
    "message-id": "é日本",
    "timestamp": 1_700_000_000,
    "type": "t",
    "app-id": "a",
}
"""All that any client may set to anything; user-id is checked by some servers, and reserved is not used."""


@amqp_case(
    "content/bodies-of-any-size",
    mutant="amqp-empty-content-waits",
    clauses=("sec.3.1.1.body-unmodified",),
    limit_s=10.0,
)
async def bodies(ctx: AmqpContext) -> None:
    """A body comes out as it went in, whatever its size.

    0, 1, around the size of a frame, two frames, and a megabyte, of random bytes.
    """
    channel = await ctx.channel(frame_max=FRAME_MIN_BYTES)
    queue = await channel.queue()
    await channel.consume(queue, no_ack=True)
    room = FRAME_MIN_BYTES - FRAME_OVERHEAD_BYTES
    with ctx.own_point():
        for size in (0, 1, room - 1, room, room + 1, 2 * room, 1_000_000):
            body = ctx.rng.randbytes(size)
            channel.publish("", queue, body)
            event = await channel.delivery()
            ctx.must(event.body == body, f"expected a body of {size} bytes as it was; seen {len(event.body)} bytes")


@amqp_case(
    "content/frames-are-not-too-large",
    mutant="amqp-own-frames-too-large",
    clauses=("sec.4.2.3.server-frame-max",),
    limit_s=10.0,
)
async def server_frame_max(ctx: AmqpContext) -> None:
    """No body frame of the server is larger than agreed.

    4096 bytes are agreed on; a message of a megabyte comes by Deliver and by Get, from a sender with larger frames.
    """
    sender = await ctx.channel()
    channel = await ctx.channel(frame_max=FRAME_MIN_BYTES)
    queue = await channel.queue(shared=True)
    for _ in range(2):
        sender.publish("", queue, b"x" * 1_000_000)
    await channel.get_soon(queue)
    await channel.consume(queue, no_ack=True)
    await channel.delivery()
    largest = channel.connection.assembler.largest_frame_bytes
    ctx.must(largest <= FRAME_MIN_BYTES, f"expected frames of at most {FRAME_MIN_BYTES} bytes; seen {largest}")


@amqp_case(
    "content/any-split-is-taken",
    mutant="amqp-empty-content-waits",
    kills=("amqp-second-part-lost",),
    clauses=("sec.4.2.6.2.split-body", "sec.4.2.6.header-zero-size"),
)
async def split(ctx: AmqpContext) -> None:
    """A body may come in frames of any size, also of one byte and empty ones.

    Bytes one by one; empty frames between; and a message without a body, which has no body frame.
    """
    channel = await ctx.channel()
    queue = await channel.queue()
    number = channel.number
    publish = encode_method(number, Method("basic.publish", routing_key=queue))
    with ctx.own_point():
        channel.publish("", queue, b"byte by byte", part_bytes=1)
        parts = b"".join(encode_body(number, part) for part in (b"", b"em", b"", b"", b"pty"))
        channel.connection.send_bytes(publish + encode_header(number, 5) + parts)
        channel.publish("", queue, b"")
        for body in (b"byte by byte", b"empty", b""):
            event = await channel.get_soon(queue)
            ctx.must(event.body == body, f"expected {body!r}; seen {event.body!r}")


@amqp_case("content/properties-are-kept", mutant="amqp-message-ids-lost", clauses=("sec.3.1.1.headers-preserved",))
async def properties(ctx: AmqpContext) -> None:
    """All properties come out as they went in.

    All at once, each alone, and none; by Deliver and by Get.
    """
    channel = await ctx.channel()
    queue = await channel.queue()
    # What an expiration means is the server's: for some it is a moment, and long past.
    together = {name: value for name, value in _PROPERTIES.items() if name != "expiration"}
    rows: list[dict[str, Any]] = [together, {}, *({name: value} for name, value in together.items())]
    for row in rows[:3]:
        channel.publish("", queue, b"x", properties=row)
        ctx.keeps(row, (await channel.get_soon(queue)).properties)
    await channel.consume(queue, no_ack=True)
    for row in rows[3:]:
        channel.publish("", queue, b"x", properties=row)
        ctx.keeps(row, (await channel.delivery()).properties)
    for body, row in ((b"x", _PROPERTIES), (b"end", {})):
        channel.publish("", queue, body, properties=row)
    event = await channel.delivery()
    if event.body == b"x":
        ctx.keeps(_PROPERTIES, event.properties)


_HEADERS: dict[str, Any] = {
    "t": True,
    "b": Typed("b", -5),
    "s": Typed("s", -500),
    "I": Typed("I", -70_000),
    "l": Typed("l", -(2**40)),
    "f": Typed("f", 0.5),
    "d": Typed("d", 1e300),
    "D": Typed("D", (2, 12_345)),
    "S": Typed("S", "text é".encode()),
    "A": Typed("A", [Typed("I", 1), Typed("S", b"two"), Typed("A", [])]),
    "T": Typed("T", 1_700_000_000),
    "F": Typed("F", {"inner": Typed("F", {"deep": Typed("V", None)})}),
    "V": Typed("V", None),
    "x": Typed("x", b"\x00\xff"),
}
"""One of each type in use, by its letter."""


@amqp_case(
    "content/every-type-of-header-is-kept",
    mutant="amqp-one-header-kept",
    clauses=("sec.4.2.1.field-types", "sec.3.1.1.headers-preserved"),
)
async def headers(ctx: AmqpContext) -> None:
    """Headers of every type come out as they went in, with their letters.

    One header of each; strings that are not text; and an unsigned byte, which not every server has a type for: another
    letter with the same value is reported.
    """
    channel = await ctx.channel()
    queue = await channel.queue()
    with ctx.own_point():
        channel.publish("", queue, b"x", properties={"headers": _HEADERS})
        event = await channel.get_soon(queue)
    seen = event.exact_headers()
    for name, value in _HEADERS.items():
        wanted = Typed("t", True) if name == "t" else value
        ctx.must(name in seen, f"expected the header {name}; it is missing")
        ctx.must(_plain(seen[name]) == _plain(wanted), f"expected header {name} as {wanted}; seen {seen[name]}")
        ctx.should(seen[name].letter == wanted.letter, f"header {name} of type {wanted.letter} has become {seen[name]}")


def _plain(value: Any) -> Any:
    """Without letters."""
    inner = value.value if isinstance(value, Typed) else value
    if isinstance(inner, dict):
        return {name: _plain(item) for name, item in inner.items()}
    return [_plain(item) for item in inner] if isinstance(inner, list) else inner


@amqp_case(
    "content/headers-are-not-mixed-up",
    mutant="amqp-message-ids-lost",
    clauses=("sec.3.1.1.headers-preserved", "sec.4.7.ordering"),
)
async def not_mixed_up(ctx: AmqpContext) -> None:
    """Each message has its own properties, however they differ from those of its neighbours.

    Sixty messages whose properties, headers and sizes change from one to the next.
    """
    channel = await ctx.channel()
    queue = await channel.queue()
    await channel.consume(queue, no_ack=True)
    rows: list[tuple[bytes, dict[str, Any]]] = []
    # Whether persistent messages keep their place among others is another case's matter.
    names = [name for name in _PROPERTIES if name not in ("expiration", "priority", "delivery-mode", "delivery_mode")]
    for number in range(60):
        chosen = ctx.rng.sample(names, ctx.rng.randrange(len(names)))
        row = {name: _PROPERTIES[name] for name in chosen}
        if number % 2:
            row["headers"] = {"number": number, "text": "x" * ctx.rng.randrange(300)}
        rows.append((ctx.rng.randbytes(ctx.rng.choice((0, 3, 5_000))), row))
        channel.publish("", queue, rows[-1][0], properties=row)
    for body, row in rows:
        event = await channel.delivery()
        ctx.must(event.body == body, f"expected a body of {len(body)} bytes; seen {len(event.body)}")
        ctx.keeps(row, event.properties)


@amqp_case(
    "content/other-channels-may-come-between",
    mutant="amqp-content-of-one-channel-at-a-time",
    clauses=("sec.4.2.6.interleave",),
)
async def interleaved(ctx: AmqpContext) -> None:
    """Frames of another channel may stand within a content.

    Two messages whose body frames take turns on two channels, with a request of a third in between.
    """
    connection = await ctx.client()
    first, second, third = [await connection.channel() for _ in range(3)]
    queue = await first.queue()
    data = b""
    for channel in (first, second):
        data += encode_method(channel.number, Method("basic.publish", routing_key=queue))
    for channel in (first, second):
        data += encode_header(channel.number, 4)
    for part in (b"ab", b"cd"):
        for channel in (first, second):
            data += encode_body(channel.number, part)
        if part == b"ab":
            data += encode_method(third.number, Method("queue.declare", queue=queue, passive=True))
    connection.send_bytes(data)
    with ctx.own_point():
        await third.expect("queue.declare-ok")
        for _ in range(2):
            event = await first.get_soon(queue)
            ctx.must(event.body == b"abcd", f"expected the body of one channel; seen {event.body!r}")


@amqp_case("content/bits-and-reserved-fields", mutant="amqp-unused-bits-refused", clauses=("sec.4.2.5.2.bits",))
async def bits(ctx: AmqpContext) -> None:
    """Bits that no field has mean nothing, and those of fields are read from the lowest on.

    A passive declaration with the three unused bits of its octet set, and a Get with all seven of its own.
    """
    channel = await ctx.channel()
    queue = await channel.queue()
    channel.publish("", queue, b"1")
    await channel.count_becomes(queue, 1)
    declare = bytearray(encode_method(channel.number, Method("queue.declare", queue=queue, passive=True)))
    declare[-6] |= 0b1110_0000
    get = bytearray(encode_method(channel.number, Method("basic.get", queue=queue, no_ack=True)))
    get[-2] |= 0b1111_1110
    with ctx.own_point():
        channel.connection.send_bytes(bytes(declare))
        answer = await channel.expect("queue.declare-ok")
        ctx.must(answer["message-count"] == 1, f"expected one message; seen {answer['message-count']}")
        channel.connection.send_bytes(bytes(get))
        await channel.expect("basic.get-ok")
        await channel.barrier()

"""UTF-8 encoded strings: what must not be in them, and what must be kept (MQTT 5.0, 1.5.4)."""

from __future__ import annotations

from assay.conformance.case import CaseContext, case
from assay.conformance.cases.mqtt5.support import delivered, ends, expect_error
from assay.conformance.wire.encode import binary, property_block, raw_packet, string, uint16, varint
from assay.conformance.wire.packets import NO_PROPERTIES

_CONNECT_BYTE = 0x10
_PUBLISH_BYTE = 0x30
_SUBSCRIBE_BYTE = 0x82
_UNSUBSCRIBE_BYTE = 0xA2
_USER_PROPERTY = b"\x26"
_NO_PROPERTIES = property_block(NO_PROPERTIES)

_ILL_FORMED = {
    "surrogate": b"\xed\xa0\x80",
    "overlong slash": b"\xc0\xaf",
    "beyond U+10FFFF": b"\xf4\x90\x80\x80",
    "lonely continuation": b"\x80",
    "cut sequence": b"\xe2\x82",
}


def _connect(*, client_id: bytes, flags: int = 0x02, fields: bytes = b"") -> bytes:
    """A CONNECT from the bytes of its client identifier, and of the fields behind that."""
    head = string("MQTT") + bytes((5, flags)) + uint16(60) + _NO_PROPERTIES
    return raw_packet(_CONNECT_BYTE, head + binary(client_id) + fields)


async def _connect_refused(ctx: CaseContext, data: bytes, *, name: str) -> None:
    connection = await ctx.open(name=name)
    connection.send_raw(data)
    await connection.expect_refusal()


async def _refused(ctx: CaseContext, data: bytes, *, name: str) -> None:
    connection = await ctx.connect(name=name)
    connection.send_raw(data)
    await expect_error(ctx, connection, 0x90)


@case(
    "mqtt5/utf8/ill-formed-connect-strings-refused",
    clauses=("MQTT-1.5.4-1", "MQTT-3.1.3-4", "MQTT-3.1.3-11", "MQTT-3.1.3-12"),
    mutant="v5-ill-formed-utf8-accepted",
    near_miss="v5-closes-silently",
)
async def connect_strings(ctx: CaseContext) -> None:
    """Client identifier, will topic and user name are well-formed UTF-8.

    CONNECTs whose client identifier, will topic or user name holds an encoded surrogate, an overlong form and other
    ill-formed bytes are refused.
    """
    good = ctx.client_id().encode()
    for name, bad in _ILL_FORMED.items():
        await _connect_refused(ctx, _connect(client_id=b"id" + bad), name=f"client id {name}")
    surrogate = _ILL_FORMED["surrogate"]
    will = _NO_PROPERTIES + binary(b"will" + surrogate) + binary(b"payload")
    await _connect_refused(ctx, _connect(client_id=good, flags=0x06, fields=will), name="will topic")
    user = binary(b"user" + surrogate)
    await _connect_refused(ctx, _connect(client_id=good, flags=0x82, fields=user), name="user name")


@case(
    "mqtt5/utf8/ill-formed-topics-refused",
    clauses=("MQTT-1.5.4-1", "MQTT-3.3.2-1", "MQTT-3.8.3-1", "MQTT-3.10.3-1"),
    mutant="v5-ill-formed-utf8-accepted",
    near_miss="v5-closes-silently",
)
async def topics(ctx: CaseContext) -> None:
    """Topic names and filters are well-formed UTF-8.

    PUBLISH, SUBSCRIBE and UNSUBSCRIBE packets with ill-formed bytes in the topic name or filter end their connections.
    """
    base = ctx.topic().encode()
    for name, bad in _ILL_FORMED.items():
        text = binary(base + bad)
        await _refused(ctx, raw_packet(_PUBLISH_BYTE, text + _NO_PROPERTIES), name=f"PUBLISH {name}")
        subscribe = uint16(1) + _NO_PROPERTIES + text + b"\x00"
        await _refused(ctx, raw_packet(_SUBSCRIBE_BYTE, subscribe), name=f"SUBSCRIBE {name}")
    unsubscribe = uint16(1) + _NO_PROPERTIES + binary(base + _ILL_FORMED["surrogate"])
    await _refused(ctx, raw_packet(_UNSUBSCRIBE_BYTE, unsubscribe), name="UNSUBSCRIBE")


@case(
    "mqtt5/utf8/null-character-refused",
    clauses=("MQTT-1.5.4-2", "MQTT-4.7.3-2"),
    mutant="v5-null-character-accepted",
    near_miss="v5-closes-silently",
)
async def null_character(ctx: CaseContext) -> None:
    """No string holds U+0000.

    A client identifier, a will topic, a topic name and a filter with U+0000 in the middle end their connections.
    """
    bad = binary(ctx.topic().encode() + b"\x00x")
    good = ctx.client_id().encode()
    await _connect_refused(ctx, _connect(client_id=b"id\x00x"), name="client id")
    will = _NO_PROPERTIES + bad + binary(b"payload")
    await _connect_refused(ctx, _connect(client_id=good, flags=0x06, fields=will), name="will topic")
    await _refused(ctx, raw_packet(_PUBLISH_BYTE, bad + _NO_PROPERTIES), name="PUBLISH")
    subscribe = uint16(1) + _NO_PROPERTIES + bad + b"\x00"
    await _refused(ctx, raw_packet(_SUBSCRIBE_BYTE, subscribe), name="SUBSCRIBE")


@case(
    "mqtt5/utf8/ill-formed-user-properties-refused",
    clauses=("MQTT-1.5.7-1", "MQTT-1.5.4-1"),
    mutant="v5-property-utf8-unchecked",
    near_miss="v5-closes-silently",
)
async def user_properties(ctx: CaseContext) -> None:
    """Name and value of a user property are well-formed UTF-8.

    PUBLISH packets with an encoded surrogate in the name or in the value of a user property end their connections.
    """
    bad, good = binary(b"x" + _ILL_FORMED["surrogate"]), binary(b"x")
    for name, pair in (("name", bad + good), ("value", good + bad)):
        fields = _USER_PROPERTY + pair
        data = raw_packet(_PUBLISH_BYTE, string(ctx.topic()) + varint(len(fields)) + fields + b"m")
        await _refused(ctx, data, name=name)


@case(
    "mqtt5/utf8/ill-formed-property-texts",
    clauses=("MQTT-3.3.2-13", "MQTT-3.3.2-19"),
    level="SHOULD",
    mutant="v5-property-utf8-unchecked",
    near_miss="v5-closes-silently",
)
async def property_texts(ctx: CaseContext) -> None:
    """Content Type and Response Topic are well-formed UTF-8.

    PUBLISH packets with an encoded surrogate in one of them should end their connections. A server may leave these
    texts unchecked, which is reported and does not fail.
    """
    bad = binary(b"x" + _ILL_FORMED["surrogate"])
    for name, identifier in (("content type", b"\x03"), ("response topic", b"\x08")):
        fields = identifier + bad
        connection = await ctx.connect(name=name)
        connection.send_raw(raw_packet(_PUBLISH_BYTE, string(ctx.topic()) + varint(len(fields)) + fields + b"m"))
        ctx.should(await ends(connection), f"{name}: expected the end of the connection; the packet was taken")


@case(
    "mqtt5/utf8/byte-order-mark-is-kept",
    clauses=("MQTT-1.5.4-3", "MQTT-4.7.3-4"),
    mutant="v5-byte-order-mark-stripped",
    near_miss="v5-writes-in-pieces",
)
async def byte_order_mark(ctx: CaseContext) -> None:
    """U+FEFF is an ordinary character, at the beginning of a string too.

    A topic with U+FEFF in it is published to. A subscriber with the very same filter gets the message under that
    topic; one without U+FEFF gets nothing. The same holds of a topic that begins with it.
    """
    publisher = await ctx.connect(name="publisher")
    for marked, plain in ((ctx.topic("\ufeffa"), ctx.topic("a")), ("\ufeff" + ctx.topic("b"), ctx.topic("b"))):
        with_mark = await ctx.connect(name="with mark")
        await with_mark.subscribe(marked)
        without = await ctx.connect(name="without")
        await without.subscribe(plain)
        await publisher.publish(marked, b"m")
        await with_mark.expect_publish(marked, b"m")
        await ctx.expect_no_message(publisher, without)
        await with_mark.disconnect()
        await without.disconnect()


@case(
    "mqtt5/utf8/no-normalisation",
    clauses=("MQTT-4.7.3-4",),
    mutant="v5-topics-normalised",
    near_miss="v5-writes-in-pieces",
)
async def no_normalisation(ctx: CaseContext) -> None:
    """Topics are compared as they are: no normal form, no case folding, no trimming.

    For each of six pairs of strings that look or sound alike, a message to the first reaches its subscriber and not
    that of the second.
    """
    pairs = (
        ("caf\u00e9", "cafe\u0301"),
        ("Case", "case"),
        ("\u00df", "ss"),
        ("space", "space "),
        ("\ufb01", "fi"),
        ("slash", "slash/"),
    )
    publisher = await ctx.connect(name="publisher")
    for first, second in pairs:
        subscribers = []
        for path in (first, second):
            subscriber = await ctx.connect(name=ascii(path))
            await subscriber.subscribe(ctx.topic(path))
            subscribers.append(subscriber)
        await publisher.publish(ctx.topic(first), b"m")
        await subscribers[0].expect_publish(ctx.topic(first), b"m")
        found = await delivered(ctx, publisher, subscribers[1])
        ctx.must(not found, f"{subscribers[1].name}: expected nothing of {first!r}; seen {found}")
        for subscriber in subscribers:
            await subscriber.disconnect()

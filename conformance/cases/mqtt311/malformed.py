"""Bytes that are no legal packet, and legal packets in unusual pieces (MQTT 3.1.1, 1.5.3, 2 and 4.8).

After each of these cases the runner makes sure that the broker still accepts connections.
"""

from __future__ import annotations

from assay.conformance.case import CaseContext, case
from assay.conformance.cases.mqtt5.support import drained
from assay.conformance.cases.mqtt311.connect import BAD_LOGIN
from assay.conformance.wire import (
    Connack,
    Pingresp,
    Publish,
    Suback,
    Subscribe,
    Subscription,
    Will,
    describe,
    encode,
)
from assay.conformance.wire.encode import binary, connect_raw, raw_packet, string, uint16

ILL_FORMED = {
    "surrogate": b"\xed\xa0\x80",
    "overlong slash": b"\xc0\xaf",
    "lone continuation": b"\x80",
    "beyond U+10FFFF": b"\xf4\x90\x80\x80",
    "cut off": b"\xe2\x82",
}
"""Byte sequences that are no UTF-8."""


@case(
    "mqtt311/malformed/pingreq-flags-are-reserved",
    clauses=("MQTT-2.2.2-1", "MQTT-2.2.2-2"),
    mutant="v3-pingreq-flags-ignored",
)
async def pingreq_flags(ctx: CaseContext) -> None:
    """A PINGREQ with a reserved header bit set ends the connection.

    The first bytes 0xC1, 0xC8 and 0xCF are tried.
    """
    for first in (0xC1, 0xC8, 0xCF):
        connection = await ctx.connect(name=f"{first:02x}")
        connection.send_raw(raw_packet(first))
        await connection.expect_close()


@case(
    "mqtt311/malformed/subscribe-flags-are-fixed",
    clauses=("MQTT-3.8.1-1", "MQTT-3.10.1-1", "MQTT-2.2.2-2"),
    mutant="v3-subscribe-flags-ignored",
)
async def subscribe_flags(ctx: CaseContext) -> None:
    """The header flags of SUBSCRIBE and UNSUBSCRIBE are 2.

    Otherwise good packets with other flags each end the connection.
    """
    filter_ = string(ctx.topic())
    for first in (0x80, 0x83, 0x8A, 0xA0, 0xA3, 0xAA):
        connection = await ctx.connect(name=f"{first:02x}")
        body = uint16(1) + filter_ + (b"\0" if first < 0xA0 else b"")
        connection.send_raw(raw_packet(first, body))
        await connection.expect_close()


@case(
    "mqtt311/malformed/pubrel-flags-are-fixed",
    clauses=("MQTT-3.6.1-1", "MQTT-2.2.2-2"),
    requires=("qos2",),
    mutant="v3-pubrel-flags-ignored",
)
async def pubrel_flags(ctx: CaseContext) -> None:
    """The header flags of PUBREL are 2.

    A PUBREL with other flags ends the connection in place of a PUBCOMP.
    """
    for first in (0x60, 0x63):
        connection = await ctx.connect(name=f"{first:02x}")
        connection.send_raw(raw_packet(first, uint16(1)))
        await connection.expect_close()


@case(
    "mqtt311/malformed/disconnect-flags-are-reserved",
    clauses=("MQTT-3.14.1-1",),
    mutant="v3-bad-disconnect-discards-the-will",
)
async def disconnect_flags(ctx: CaseContext) -> None:
    """A DISCONNECT with a reserved header bit set ends the connection as a violation.

    It is malformed, hence no DISCONNECT: the will of the client is published.
    """
    topic = ctx.topic()
    watcher = await ctx.connect(name="watcher")
    await watcher.subscribe(topic)
    client = await ctx.connect(name="client", will=Will(topic=topic, payload=b"will"))
    client.send_raw(raw_packet(0xE1))
    await client.expect_close()
    await watcher.expect_publish(topic, b"will")


@case(
    "mqtt311/malformed/reserved-packet-types-end-the-connection",
    clauses=("MQTT-4.8.0-1",),
    mutant="v3-reserved-packet-types-skipped",
)
async def reserved_types(ctx: CaseContext) -> None:
    """Packet types 0 and 15 do not exist in 3.1.1.

    A packet of each type, without body, ends the connection.
    """
    for first in (0x00, 0xF0):
        connection = await ctx.connect(name=f"{first:02x}")
        connection.send_raw(raw_packet(first))
        await connection.expect_close()


@case(
    "mqtt311/malformed/remaining-length-has-at-most-four-bytes",
    clauses=("MQTT-4.8.0-1",),
    mutant="v3-long-remaining-length",
)
async def long_length(ctx: CaseContext) -> None:
    """A remaining length of five bytes ends the connection.

    The length bytes ff ff ff ff 01 follow the header of a PUBLISH, then nothing.
    """
    connection = await ctx.connect()
    connection.send_raw(raw_packet(0x30, remaining_length=b"\xff\xff\xff\xff\x01"))
    await connection.expect_close()


@case(
    "mqtt311/malformed/body-that-ends-inside-a-field",
    clauses=("MQTT-4.8.0-1",),
    mutant="v3-cut-fields-accepted",
)
async def cut_fields(ctx: CaseContext) -> None:
    """A packet whose remaining length ends inside a field ends the connection, and only that.

    SUBSCRIBE without options byte, filter longer than the packet, PUBLISH shorter than its topic, PUBREL of one byte.
    (mochi-mqtt/server issue 501: such a SUBSCRIBE ended the process.)
    """
    packets = {
        "no options": raw_packet(0x82, uint16(1) + string("a")),
        "long filter": raw_packet(0x82, uint16(1) + uint16(500) + b"a\0"),
        "short publish": raw_packet(0x30, uint16(10) + b"abc"),
        "no identifier": raw_packet(0x32, string("a") + b"\0"),
        "short pubrel": raw_packet(0x62, b"\0"),
    }
    for name, data in packets.items():
        connection = await ctx.connect(name=name)
        connection.send_raw(data)
        connection.end_stream()
        await connection.expect_close()


@case(
    "mqtt311/malformed/text-must-be-utf-8",
    clauses=("MQTT-1.5.3-1", "MQTT-3.8.3-1", "MQTT-3.3.2-1", "MQTT-3.10.3-1"),
    mutant="v3-surrogates-accepted",
)
async def ill_formed_text(ctx: CaseContext) -> None:
    """Topic names and filters must be well-formed UTF-8.

    Five ill-formed sequences (surrogate, overlong form, lone and missing continuation bytes, beyond U+10FFFF) in a
    PUBLISH and in a SUBSCRIBE each end the connection.
    """
    prefix = ctx.topic("").encode()
    for name, text in ILL_FORMED.items():
        for kind in ("publish", "subscribe"):
            field = binary(prefix + text)
            data = raw_packet(0x30, field + b"x") if kind == "publish" else raw_packet(0x82, uint16(1) + field + b"\0")
            connection = await ctx.connect(name=f"{name} in {kind}")
            connection.send_raw(data)
            await connection.expect_close()


@case(
    "mqtt311/malformed/connect-text-must-be-utf-8",
    clauses=("MQTT-1.5.3-1", "MQTT-3.1.3-4", "MQTT-3.1.3-10", "MQTT-3.1.3-11", "MQTT-3.1.4-1"),
    mutant="v3-surrogates-accepted",
    near_miss="v3-malformed-login-gets-code-4",
)
async def ill_formed_connect(ctx: CaseContext) -> None:
    """Client identifier, will topic and user name must be well-formed UTF-8.

    A surrogate in each of them ends the connection without a CONNACK; for the identifier, CONNACK 2 may come first, and
    for the user name code 4, which stands for a malformed login (reported, not failed).
    """
    bad = binary(b"x" + ILL_FORMED["surrogate"])
    good = string(ctx.client_id())
    payloads = {
        "client id": (0x02, bad),
        "will topic": (0x06, good + bad + binary(b"will")),
        "user name": (0x82, good + bad),
    }
    for name, (flags, payload) in payloads.items():
        connection = await ctx.open(name=name)
        connection.send_raw(connect_raw(ctx.connect_packet(), flags=flags, payload=payload))
        if name == "client id":
            await connection.expect_refusal()
        elif name == "user name":
            code = await connection.expect_refusal(BAD_LOGIN)
            ctx.should(code is None, f"{name}: the broker says code 4 in place of just ending the connection")
        else:
            await connection.expect_close()


@case(
    "mqtt311/malformed/text-has-no-null-character",
    clauses=("MQTT-1.5.3-2", "MQTT-4.7.3-2"),
    mutant="v3-null-characters-accepted",
)
async def null_character(ctx: CaseContext) -> None:
    """U+0000 in a text field ends the connection.

    In the topic name of a PUBLISH, at QoS 0 and 1, and in the filter of a SUBSCRIBE.
    """
    field = binary(ctx.topic("a\0b").encode())
    packets = {
        "qos 0": raw_packet(0x30, field),
        "qos 1": raw_packet(0x32, field + uint16(1)),
        "filter": raw_packet(0x82, uint16(1) + field + b"\0"),
    }
    for name, data in packets.items():
        connection = await ctx.connect(name=name)
        connection.send_raw(data)
        await connection.expect_close()


@case(
    "mqtt311/malformed/packets-only-a-server-sends",
    clauses=("MQTT-4.8.0-1",),
    mutant="v3-server-packets-skipped",
)
async def server_packets(ctx: CaseContext) -> None:
    """CONNACK, SUBACK and PINGRESP from a client are violations.

    Each of them, well formed, ends the connection.
    """
    packets = (Connack(), Suback(packet_id=1, reason_codes=(0,)), Pingresp())
    for packet in packets:
        connection = await ctx.connect(name=packet.type.name.lower())
        connection.send_raw(encode(packet, 4))
        await connection.expect_close()


@case(
    "mqtt311/malformed/qos-0-publish-with-dup",
    clauses=("MQTT-3.3.1-2",),
    level="SHOULD",
    mutant="v3-dup-at-qos-0-delivered-with-dup",
)
async def dup_at_qos_0(ctx: CaseContext) -> None:
    """DUP is 0 at QoS 0.

    A client that sets it breaks the rule; a strict broker ends its connection, a lenient one is reported. In no case
    does a QoS 0 delivery carry DUP 1.
    """
    topic = ctx.topic()
    subscriber = await ctx.connect(name="subscriber")
    await subscriber.subscribe(topic)
    publisher = await ctx.connect(name="publisher")
    publisher.send_raw(encode(Publish(topic=topic, payload=b"dup", dup=True), 4))
    for packet in await ctx.messages_before_marker(await ctx.connect(name="other"), subscriber):
        ctx.should(False, f"the broker passes the message on: {describe(packet)}")


@case(
    "mqtt311/malformed/one-byte-at-a-time",
    clauses=("MQTT-7.1.1-1", "MQTT-3.1.4-4"),
    mutant="v3-needs-whole-packets",
    limit_s=15.0,  # three hundred turns of the harness, beside fifteen other cases
)
async def bytewise(ctx: CaseContext) -> None:
    """Packets may come in pieces of any size.

    CONNECT, SUBSCRIBE and a PUBLISH whose length takes two bytes are sent byte by byte. All are served.
    """
    topic = ctx.topic()
    payload = bytes(range(200))
    connection = await ctx.open()
    await connection.send_in_pieces(encode(ctx.connect_packet(), 4))
    connack = await connection.expect(Connack)
    ctx.must(connack.reason_code == 0, f"expected to be accepted; seen {describe(connack)}")
    subscribe = Subscribe(packet_id=1, subscriptions=(Subscription(filter=topic),))
    await connection.send_in_pieces(encode(subscribe, 4))
    await connection.granted(subscribe)
    await connection.send_in_pieces(encode(Publish(topic=topic, payload=payload), 4))
    await connection.expect_publish(topic, payload)


@case(
    "mqtt311/malformed/bad-input-disturbs-nobody-else",
    clauses=("MQTT-4.8.0-1",),
    mutant="v3-violation-ends-all-connections",
)
async def others_undisturbed(ctx: CaseContext) -> None:
    """A violation costs only the connection on which it came.

    Random bytes and a bad SUBSCRIBE are sent on other connections, while a publisher and a subscriber go on. What
    becomes of the other connections is judged elsewhere.
    """
    topic = ctx.topic()
    subscriber = await ctx.connect(name="subscriber")
    await subscriber.subscribe(topic)
    publisher = await ctx.connect(name="publisher")
    for number in range(5):
        # 0x20 is a CONNACK: no client may begin with it, whatever follows.
        noise = await ctx.open(name=f"noise {number}")
        noise.send_raw(b"\x20\x02" + ctx.rng.randbytes(200))
        bad = await ctx.connect(name=f"bad {number}")
        bad.send_raw(raw_packet(0x82, uint16(1)))
        for connection in (noise, bad):
            connection.end_stream()
            await drained(connection)
        await publisher.publish(topic, str(number).encode())
        await subscriber.expect_publish(topic, str(number).encode())

"""Malformed packets and protocol errors: the connection ends, and nobody else is disturbed (MQTT 5.0, 4.13)."""

from __future__ import annotations

from assay.conformance.case import CaseContext, case
from assay.conformance.cases.mqtt5.support import ends, expect_error
from assay.conformance.wire import (
    Connack,
    Disconnect,
    PacketType,
    Pingresp,
    Puback,
    Publish,
    Suback,
    Unsuback,
    describe,
    encode,
)
from assay.conformance.wire.encode import property_block, raw_packet, string, uint16, varint
from assay.conformance.wire.packets import NO_PROPERTIES

_TYPE = PacketType


async def _refused(ctx: CaseContext, data: bytes, *, name: str) -> None:
    """``data`` on an accepted connection must end it."""
    connection = await ctx.connect(name=name)
    connection.send_raw(data)
    await expect_error(ctx, connection)


def _with_bits(packet_type: PacketType, body: bytes, right: int) -> list[tuple[str, bytes]]:
    """The packet with every wrong value of its four header bits that differs from the right one in a single bit."""
    return [
        (f"{packet_type.name} bits {right ^ 1 << bit:04b}", raw_packet(packet_type << 4 | (right ^ 1 << bit), body))
        for bit in range(4)
    ]


@case(
    "mqtt5/malformed/reserved-bits-of-subscribe-refused",
    clauses=("MQTT-3.8.1-1", "MQTT-2.1.3-1"),
    mutant="v5-subscribe-bits-unchecked",
    near_miss="v5-closes-silently",
)
async def subscribe_bits(ctx: CaseContext) -> None:
    """The header bits of SUBSCRIBE are 0010.

    SUBSCRIBE packets with one of the bits wrong end their connections, without SUBACK.
    """
    body = uint16(1) + property_block(NO_PROPERTIES) + string(ctx.topic()) + b"\x00"
    for name, data in _with_bits(_TYPE.SUBSCRIBE, body, 2):
        await _refused(ctx, data, name=name)


@case(
    "mqtt5/malformed/reserved-bits-of-unsubscribe-refused",
    clauses=("MQTT-3.10.1-1", "MQTT-2.1.3-1"),
    mutant="v5-unsubscribe-bits-unchecked",
    near_miss="v5-closes-silently",
)
async def unsubscribe_bits(ctx: CaseContext) -> None:
    """The header bits of UNSUBSCRIBE are 0010.

    UNSUBSCRIBE packets with one of the bits wrong end their connections, without UNSUBACK.
    """
    body = uint16(1) + property_block(NO_PROPERTIES) + string(ctx.topic())
    for name, data in _with_bits(_TYPE.UNSUBSCRIBE, body, 2):
        await _refused(ctx, data, name=name)


@case(
    "mqtt5/malformed/reserved-bits-of-pubrel-refused",
    clauses=("MQTT-3.6.1-1", "MQTT-2.1.3-1"),
    mutant="v5-pubrel-bits-unchecked",
    near_miss="v5-closes-silently",
)
async def pubrel_bits(ctx: CaseContext) -> None:
    """The header bits of PUBREL are 0010.

    PUBREL packets with one of the bits wrong end their connections, without PUBCOMP.
    """
    for name, data in _with_bits(_TYPE.PUBREL, uint16(1), 2):
        await _refused(ctx, data, name=name)


@case(
    "mqtt5/malformed/reserved-bits-of-acknowledgements-refused",
    clauses=("MQTT-2.1.3-1", "MQTT-4.13.1-1"),
    mutant="v5-acknowledgement-bits-unchecked",
    near_miss="v5-closes-silently",
)
async def acknowledgement_bits(ctx: CaseContext) -> None:
    """The header bits of PUBACK, PUBREC and PUBCOMP are 0.

    A subscriber answers a message that it has received by the right packet with a wrong bit. The connection ends each
    time.
    """
    for packet_type, qos in ((_TYPE.PUBACK, 1), (_TYPE.PUBREC, 2)):
        for bit in range(4):
            topic = ctx.topic(f"{packet_type.name}/{bit}")
            subscriber = await ctx.connect(name=f"{packet_type.name} bit {bit}")
            (granted,) = await subscriber.subscribe(topic, qos=qos)
            if granted != qos:
                ctx.unsupported(f"the broker grants only QoS {granted}")
            publisher = await ctx.connect(name=f"publisher {packet_type.name} {bit}")
            await publisher.publish(topic, b"m", qos=qos)
            message = await subscriber.expect_publish(topic, b"m", ack=False)
            subscriber.send_raw(raw_packet(packet_type << 4 | 1 << bit, uint16(message.packet_id)))
            await expect_error(ctx, subscriber)


@case(
    "mqtt5/malformed/reserved-bits-of-pingreq-refused",
    clauses=("MQTT-2.1.3-1", "MQTT-4.13.1-1"),
    mutant="v5-pingreq-bits-unchecked",
    near_miss="v5-closes-silently",
)
async def pingreq_bits(ctx: CaseContext) -> None:
    """The header bits of PINGREQ are 0.

    PINGREQ packets with one bit set end their connections, without PINGRESP.
    """
    for name, data in _with_bits(_TYPE.PINGREQ, b"", 0):
        await _refused(ctx, data, name=name)


@case(
    "mqtt5/malformed/reserved-bits-of-connect-refused",
    clauses=("MQTT-2.1.3-1", "MQTT-3.1.4-1"),
    mutant="v5-connect-bits-unchecked",
    near_miss="v5-closes-silently",
)
async def connect_bits(ctx: CaseContext) -> None:
    """The header bits of CONNECT are 0.

    CONNECT packets with one bit set are refused.
    """
    for bit in range(4):
        frame = bytearray(encode(ctx.connect_packet(), 5))
        frame[0] |= 1 << bit
        connection = await ctx.open(name=f"bit {bit}")
        connection.send_raw(bytes(frame))
        await connection.expect_refusal()


@case(
    "mqtt5/malformed/reserved-packet-type-refused",
    clauses=("MQTT-4.13.1-1",),
    mutant="v5-packet-type-0-ignored",
    near_miss="v5-closes-silently",
)
async def packet_type_0(ctx: CaseContext) -> None:
    """There is no packet type 0.

    Two bytes with packet type 0 end the connection.
    """
    await _refused(ctx, b"\x00\x00", name="type 0")


@case(
    "mqtt5/malformed/packets-of-the-server-refused",
    clauses=("MQTT-4.13.1-1",),
    mutant="v5-server-packets-ignored",
    near_miss="v5-closes-silently",
)
async def server_packets(ctx: CaseContext) -> None:
    """Packets that only a server sends end the connection of a client that sends them.

    CONNACK, SUBACK, UNSUBACK and PINGRESP are sent by a connected client, each on a connection of its own.
    """
    packets = (
        Connack(),
        Suback(packet_id=1, reason_codes=(0,)),
        Unsuback(packet_id=1, reason_codes=(0,)),
        Pingresp(),
    )
    for packet in packets:
        connection = await ctx.connect(name=packet.type.name)
        connection.send(packet)
        await expect_error(ctx, connection)


@case(
    "mqtt5/malformed/five-length-bytes-refused",
    clauses=("MQTT-4.13.1-1",),
    mutant="v5-length-of-five-bytes-accepted",
    near_miss="v5-closes-silently",
)
async def five_length_bytes(ctx: CaseContext) -> None:
    """A remaining length has at most four bytes.

    A PUBLISH whose length says after four bytes that more follow ends the connection.
    """
    await _refused(ctx, b"\x30\xff\xff\xff\xff\x01", name="five bytes")


@case(
    "mqtt5/malformed/longer-length-than-needed",
    clauses=("MQTT-1.5.5-1",),
    level="SHOULD",
    mutant="v5-long-lengths-accepted",
    near_miss="v5-closes-silently",
)
async def long_length(ctx: CaseContext) -> None:
    """A remaining length has no more bytes than its value needs.

    A PINGREQ whose length 0 is written in two bytes should end the connection. The rule binds the sender, and many
    servers read such a length without complaint, which is reported and does not fail.
    """
    connection = await ctx.connect()
    connection.send_raw(raw_packet(0xC0, remaining_length=varint(0, width=2)))
    while (packet := await connection.receive("PINGRESP or the end of the connection")) is not None:
        if isinstance(packet, Pingresp):
            ctx.should(False, "expected the end of the connection; the packet was answered")
            return


@case(
    "mqtt5/malformed/truncated-packets-refused",
    clauses=("MQTT-4.13.1-1",),
    mutant="v5-truncated-packets-tolerated",
    near_miss="v5-closes-silently",
)
async def truncated(ctx: CaseContext) -> None:
    """A packet that ends inside one of its fields is malformed.

    SUBSCRIBE, UNSUBSCRIBE, PUBLISH and PUBREL packets whose length is right for their bytes, which are too few, end
    their connections. The broker lives on.
    """
    topic = string(ctx.topic())
    for name, data in (
        ("SUBSCRIBE without options", raw_packet(0x82, uint16(1) + b"\x00" + topic)),
        ("SUBSCRIBE inside a filter", raw_packet(0x82, uint16(1) + b"\x00" + topic[:-2])),
        ("SUBSCRIBE inside a length", raw_packet(0x82, uint16(1) + b"\x00\x00")),
        ("UNSUBSCRIBE inside a filter", raw_packet(0xA2, uint16(1) + b"\x00" + topic[:-2])),
        ("PUBLISH inside the topic", raw_packet(0x30, topic[:-2])),
        ("PUBLISH without property length", raw_packet(0x30, topic)),
        ("PUBLISH inside the identifier", raw_packet(0x32, topic + b"\x00")),
        ("PUBREL without identifier", raw_packet(0x62, b"\x01")),
    ):
        await _refused(ctx, data, name=name)


@case(
    "mqtt5/malformed/pingreq-with-body-refused",
    clauses=("MQTT-4.13.1-1",),
    mutant="v5-pingreq-body-ignored",
    near_miss="v5-closes-silently",
)
async def pingreq_body(ctx: CaseContext) -> None:
    """A PINGREQ has no body.

    A PINGREQ with one byte of body ends the connection.
    """
    await _refused(ctx, raw_packet(0xC0, b"\x00"), name="PINGREQ")


@case(
    "mqtt5/malformed/undefined-reason-codes-refused",
    clauses=("MQTT-3.4.2-1", "MQTT-3.5.2-1", "MQTT-3.6.2-1"),
    level="SHOULD",
    mutant="v5-reason-codes-unchecked",
    near_miss="v5-closes-silently",
)
async def undefined_codes(ctx: CaseContext) -> None:
    """Acknowledgements use the reason codes that are defined for them.

    PUBACK, PUBREC and PUBREL with the code 0x45, which nobody defined, should end their connections. The rule binds
    the sender; a broker that lets them pass is reported and does not fail.
    """
    for name, first_byte in (("PUBACK", 0x40), ("PUBREC", 0x50), ("PUBREL", 0x62)):
        connection = await ctx.connect(name=name)
        connection.send_raw(raw_packet(first_byte, uint16(1) + b"\x45"))
        ctx.should(await ends(connection), f"{name}: expected the end of the connection; the packet was taken")


@case(
    "mqtt5/malformed/others-are-not-disturbed",
    clauses=("MQTT-4.13.1-1", "MQTT-4.1.0-1"),
    mutant="v5-error-closes-everybody",
    near_miss="v5-closes-silently",
)
async def others_undisturbed(ctx: CaseContext) -> None:
    """A malformed packet costs only its sender the connection.

    While one client is thrown out for a malformed packet, a subscriber and a publisher go on exchanging messages.
    """
    topic = ctx.topic()
    subscriber = await ctx.connect(name="subscriber")
    await subscriber.subscribe(topic)
    publisher = await ctx.connect(name="publisher")
    for data in (b"\x00\x00", raw_packet(0x82, b"\x00"), b"\x30\xff\xff\xff\xff\x01"):
        offender = await ctx.connect(name=f"offender {data[:2].hex()}")
        offender.send_raw(data)
        await offender.expect_close()
        await publisher.publish(topic, data)
        await subscriber.expect_publish(topic, data)


@case(
    "mqtt5/malformed/good-packets-before-a-bad-one-count",
    clauses=("MQTT-3.3.4-1", "MQTT-4.13.1-1"),
    level="SHOULD",
    requires=("qos1",),
    mutant="v5-bad-packet-voids-its-chunk",
    near_miss="v5-closes-silently",
)
async def good_before_bad(ctx: CaseContext) -> None:
    """Packets that came before a malformed one in the same write have been received.

    A QoS 1 PUBLISH and a malformed packet are sent in one write. The connection ends; a PUBACK may precede that. The
    message is delivered where it was acknowledged. Without a PUBACK the server has not taken it over, and only should
    deliver it.
    """
    topic = ctx.topic()
    subscriber = await ctx.connect(name="subscriber")
    await subscriber.subscribe(topic)
    publisher = await ctx.connect(name="publisher")
    good = encode(Publish(topic=topic, payload=b"good", qos=1, packet_id=1), 5)
    publisher.send_raw(good + b"\x00\x00")
    acknowledged = False
    while (packet := await publisher.receive("the end of the connection")) is not None:
        ctx.must(isinstance(packet, Puback | Disconnect), f"publisher: expected the end; seen {describe(packet)}")
        acknowledged |= isinstance(packet, Puback)
    if acknowledged:
        await subscriber.expect_publish(topic, b"good")
        return
    control = await ctx.connect(name="control")
    found = any(isinstance(packet, Publish) for packet in await ctx.messages_before_marker(control, subscriber, qos=0))
    ctx.should(found, "subscriber: expected the message before the malformed packet; it did not come")

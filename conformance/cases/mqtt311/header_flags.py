"""Reserved header flags of packets whose statements have no section of their own, and identifiers that are in use."""

from __future__ import annotations

from assay.conformance.case import CaseContext, case
from assay.conformance.cases.mqtt5.support import expect_other_identifier, publishing, subscribe_at
from assay.conformance.wire import PacketType, Pubrec, Pubrel, encode
from assay.conformance.wire.encode import raw_packet, uint16

_HEADER_BITS = (0x01, 0x02, 0x04, 0x08, 0x0F)


@case(
    "mqtt311/malformed/connect-flags-of-the-header-are-reserved",
    clauses=("MQTT-2.2.2-1", "MQTT-2.2.2-2"),
    mutant="v5-connect-bits-unchecked",
    near_miss="v3-one-packet-at-a-time",
)
async def connect_bits(ctx: CaseContext) -> None:
    """The header bits of CONNECT are 0.

    An otherwise good CONNECT has one of them set, or all. It is refused each time; without them it is accepted.
    """
    packet = ctx.connect_packet()
    frame = encode(packet, packet.version)
    for bits in _HEADER_BITS:
        connection = await ctx.open(name=f"bits {bits:04b}")
        connection.send_raw(bytes((frame[0] | bits,)) + frame[1:])
        await connection.expect_refusal()
    await ctx.connect(name="control")


@case(
    "mqtt311/malformed/acknowledgement-flags-are-reserved",
    clauses=("MQTT-2.2.2-1", "MQTT-2.2.2-2"),
    requires=("qos1", "qos2"),
    mutant="v5-acknowledgement-bits-unchecked",
    near_miss="v3-one-packet-at-a-time",
)
async def acknowledgement_bits(ctx: CaseContext) -> None:
    """The header bits of PUBACK, PUBREC and PUBCOMP are 0.

    A subscriber answers a delivery by the right packet with a wrong bit; for PUBCOMP the exchange is right up to
    there. The connection ends each time.
    """
    publisher = await ctx.connect(name="publisher")
    for packet_type, qos in ((PacketType.PUBACK, 1), (PacketType.PUBREC, 2), (PacketType.PUBCOMP, 2)):
        for bit in range(4):
            topic = ctx.topic(f"{packet_type.name}/{bit}")
            subscriber = await ctx.connect(name=f"{packet_type.name} bit {bit}")
            await subscribe_at(ctx, subscriber, topic, qos=qos)
            await publisher.publish(topic, b"m", qos=qos)
            message = await subscriber.expect_publish(topic, b"m", ack=False)
            if packet_type is PacketType.PUBCOMP:
                subscriber.send(Pubrec(packet_id=message.packet_id))
                await subscriber.expect(Pubrel)
            subscriber.send_raw(raw_packet(packet_type << 4 | 1 << bit, uint16(message.packet_id)))
            await subscriber.expect_close()


@case(
    "mqtt311/session/new-identifiers-spare-open-exchanges",
    clauses=("MQTT-2.3.1-4", "MQTT-4.3.3-1"),
    requires=("persistent_sessions", "qos1", "qos2"),
    mutant="v5-identifiers-restart-on-resume",
    near_miss="v3-one-packet-at-a-time",
)
async def identifiers_after_resume(ctx: CaseContext) -> None:
    """After resuming a session, new messages get identifiers that no open exchange has.

    A subscriber has one QoS 2 exchange open after PUBREC when its connection is lost. On resuming, a new QoS 2
    message comes under another identifier than the one of the owed PUBREL. Unsupported on a server that has one
    message under way at a time.
    """
    topic = ctx.topic()
    first = await ctx.connect(clean=False, name="first")
    await subscribe_at(ctx, first, topic, qos=2)
    publisher = await ctx.connect(name="publisher")
    await publisher.publish(topic, b"old", qos=2)
    old = await first.expect_publish(topic, b"old", ack=False)
    first.send(Pubrec(packet_id=old.packet_id))
    await first.expect(Pubrel)
    first.abort()
    back = await ctx.connect(client_id=first.client_id, clean=False, name="back")
    await back.expect(Pubrel)
    async with publishing(publisher, topic, b"new", qos=2):
        await expect_other_identifier(ctx, back, old.packet_id, topic, b"new", qos=2)

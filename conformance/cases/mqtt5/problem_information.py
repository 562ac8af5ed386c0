"""Reason strings and user properties that a server adds, and PINGREQ (MQTT 5.0, 3.1.2.11.7 and 3.12)."""

from __future__ import annotations

from assay.conformance.case import CaseContext, case
from assay.conformance.cases.mqtt5.support import wire_size
from assay.conformance.connection import Connection
from assay.conformance.wire import (
    Connack,
    Disconnect,
    Packet,
    Pingreq,
    Pingresp,
    Properties,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    Suback,
    Subscribe,
    Subscription,
    Unsuback,
    Unsubscribe,
    describe,
)

_SMALL_PACKET_BYTES = 60
_SILENT_PACKETS = (Publish, Connack, Disconnect)


async def _until_pong(connection: Connection) -> list[Packet]:
    """What comes before a PINGRESP or the end of the connection."""
    answers: list[Packet] = []
    while (packet := await connection.receive("PINGRESP or the end of the connection")) is not None:
        if isinstance(packet, Pingresp):
            break
        answers.append(packet)
    return answers


async def _provoked_answers(ctx: CaseContext, connection: Connection) -> list[Packet]:
    """Answers of every kind, most of which report something unusual."""
    connection.send(
        Subscribe(packet_id=1, subscriptions=(Subscription(filter=ctx.topic()),)),
        Unsubscribe(packet_id=2, filters=(ctx.topic("never subscribed"),)),
        Publish(topic=ctx.topic("nobody"), payload=b"m", qos=1, packet_id=3),
        Publish(topic=ctx.topic("nobody"), payload=b"m", qos=2, packet_id=4),
        Pubrel(packet_id=4),
        Pubrel(packet_id=5),
        Pingreq(),
    )
    answers: list[Packet] = []
    missing: list[type[Packet]] = [Suback, Unsuback, Puback, Pubrec, Pubcomp, Pubcomp, Pingresp]
    while missing:
        # PINGRESP may overtake the others.
        packet = await connection.receive_or_end(missing[0])
        if packet is None:
            ctx.fail(f"expected answers to all packets; seen {'; '.join(map(describe, answers))}, and the end")
        if type(packet) in missing:
            missing.remove(type(packet))
        if not isinstance(packet, Pingresp):
            answers.append(packet)
    # A server may answer this by PUBREL 0x92, ignore it, or end the connection.
    connection.send(Pubrec(packet_id=6), Pingreq())
    return answers + await _until_pong(connection)


@case(
    "mqtt5/problem-information/not-sent-when-declined",
    clauses=("MQTT-3.1.2-29",),
    requires=("qos1", "qos2"),
    mutant="v5-problem-information-unasked",
    near_miss="v5-reason-texts-everywhere",
)
async def declined(ctx: CaseContext) -> None:
    """With Request Problem Information 0 no answer but CONNACK and DISCONNECT explains itself.

    A client that declined sends packets that are answered by failures and unusual codes. No SUBACK, UNSUBACK, PUBACK,
    PUBREC or PUBCOMP has a Reason String or a User Property.
    """
    connection = await ctx.connect(properties=Properties(request_problem_information=0))
    for packet in await _provoked_answers(ctx, connection):
        if isinstance(packet, _SILENT_PACKETS):
            continue
        properties = getattr(packet, "properties", Properties())
        ctx.must(
            properties.reason_string is None and not properties.user_property,
            f"expected neither Reason String nor User Property; seen {describe(packet)}",
        )


@case(
    "mqtt5/problem-information/texts-respect-maximum-packet-size",
    clauses=(
        "MQTT-3.4.2-2",
        "MQTT-3.4.2-3",
        "MQTT-3.5.2-2",
        "MQTT-3.5.2-3",
        "MQTT-3.6.2-2",
        "MQTT-3.6.2-3",
        "MQTT-3.7.2-2",
        "MQTT-3.7.2-3",
        "MQTT-3.9.2-1",
        "MQTT-3.9.2-2",
        "MQTT-3.11.2-1",
        "MQTT-3.11.2-2",
        "MQTT-3.1.2-24",
    ),
    requires=("qos1", "qos2"),
    mutant="v5-reason-texts-ignore-packet-size",
    near_miss="v5-reason-texts-everywhere",
)
async def texts_within_limit(ctx: CaseContext) -> None:
    """Reason strings and user properties do not push an answer over the client's Maximum Packet Size.

    A client that takes packets of up to 60 bytes sends packets that are answered by failures and unusual codes. Each
    answer comes, and has at most 60 bytes.
    """
    connection = await ctx.connect(properties=Properties(maximum_packet_size=_SMALL_PACKET_BYTES))
    for packet in await _provoked_answers(ctx, connection):
        size = wire_size(packet)
        ctx.must(
            size <= _SMALL_PACKET_BYTES,
            f"expected at most {_SMALL_PACKET_BYTES} bytes; seen {size}: {describe(packet)}",
        )


@case(
    "mqtt5/ping/every-pingreq-gets-one-pingresp",
    clauses=("MQTT-3.12.4-1",),
    mutant="v5-pingreqs-answered-once",
    near_miss="v5-writes-in-pieces",
)
async def ping(ctx: CaseContext) -> None:
    """Each PINGREQ is answered by one PINGRESP.

    Three PINGREQs are sent in one write. Three PINGRESPs come, and no fourth before the answer to a later SUBSCRIBE.
    """
    connection = await ctx.connect()
    connection.send(Pingreq(), Pingreq(), Pingreq())
    for _ in range(3):
        await connection.expect(Pingresp)
    await connection.subscribe(ctx.topic())

"""Reason strings and user properties never push a packet over the client's Maximum Packet Size (MQTT 5.0).

The standard says it of each packet type and of both properties, so there is a case for each: sixteen statements.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import msgspec

from assay.conformance.case import CaseContext, case
from assay.conformance.cases.mqtt5.support import wire_size
from assay.conformance.connection import Connection
from assay.conformance.rules import Rule
from assay.conformance.wire import (
    Connack,
    Disconnect,
    Packet,
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

Provoke = Callable[[CaseContext, Connection], Awaitable[list[Packet]]]
_UNKNOWN_ID = 777


async def _connack(_ctx: CaseContext, connection: Connection) -> list[Packet]:
    return [connection.connack]


async def _puback(ctx: CaseContext, connection: Connection) -> list[Packet]:
    connection.send(Publish(topic=ctx.topic("nobody"), qos=1, packet_id=1))
    return [await connection.expect(Puback)]


async def _pubrec(ctx: CaseContext, connection: Connection) -> list[Packet]:
    connection.send(Publish(topic=ctx.topic("nobody"), qos=2, packet_id=1))
    return [await connection.expect(Pubrec)]


async def _pubrel(ctx: CaseContext, connection: Connection) -> list[Packet]:
    topic = ctx.topic("own")
    connection.send(Subscribe(packet_id=1, subscriptions=(Subscription(filter=topic, qos=2),)))
    suback = await connection.expect(Suback)
    if suback.reason_codes != (2,):
        ctx.unsupported(f"the server does not grant QoS 2: {describe(suback)}")
    connection.send(Publish(topic=topic, qos=2, packet_id=2))
    pubrec = await connection.expect(Pubrec, skipping=(Publish,))
    connection.send(Pubrel(packet_id=2))
    pubcomp = await connection.expect(Pubcomp, skipping=(Publish,))
    message = await connection.expect(Publish)
    connection.send(Pubrec(packet_id=message.packet_id))
    pubrel = await connection.expect(Pubrel)
    connection.send(Pubcomp(packet_id=message.packet_id))
    return [suback, pubrec, pubcomp, message, pubrel]


async def _pubcomp(_ctx: CaseContext, connection: Connection) -> list[Packet]:
    connection.send(Pubrel(packet_id=_UNKNOWN_ID))
    return [await connection.expect(Pubcomp)]


async def _suback(ctx: CaseContext, connection: Connection) -> list[Packet]:
    connection.send(Subscribe(packet_id=1, subscriptions=(Subscription(filter=ctx.topic()),)))
    return [await connection.expect(Suback)]


async def _unsuback(ctx: CaseContext, connection: Connection) -> list[Packet]:
    connection.send(Unsubscribe(packet_id=1, filters=(ctx.topic("never subscribed"),)))
    return [await connection.expect(Unsuback)]


async def _disconnect(_ctx: CaseContext, connection: Connection) -> list[Packet]:
    connection.send(Subscribe(packet_id=1, subscriptions=()))
    return await connection.expect_close(step=Rule.EMPTY_SUBSCRIBE)


def _bare_size(packet: Packet) -> int:
    properties = getattr(packet, "properties", Properties())
    bare = msgspec.structs.replace(properties, reason_string=None, user_property=())
    return wire_size(msgspec.structs.replace(packet, properties=bare))


async def _check(ctx: CaseContext, provoke: Provoke) -> None:
    roomy = await ctx.connect(name="roomy")
    wanted = await provoke(ctx, roomy)
    # A packet that is needed to come so far may be larger than the one in question.
    limit = max(map(_bare_size, [roomy.connack, *wanted]))
    name = ctx.client_id()
    limited = await ctx.open(name="limited")
    limited.client_id = name
    limited.send(ctx.connect_packet(client_id=name, properties=Properties(maximum_packet_size=limit)))
    limited.connack = await limited.expect(Connack)
    ctx.must(limited.connack.reason_code == 0, f"limited: expected to be accepted; seen {describe(limited.connack)}")
    for packet in [limited.connack, *await provoke(ctx, limited)]:
        size = wire_size(packet)
        text = f"limited: expected at most {limit} bytes; seen {size}: {describe(packet)}"
        if size > limit and isinstance(packet, Publish):
            ctx.breach(Rule.PACKET_SIZE, text)  # a message is on its way to what the case is about
        else:
            ctx.must(size <= limit, text)


def _define(
    kind: type[Packet],
    provoke: Provoke,
    statements: tuple[str, str],
    *,
    requires: tuple[str, ...] = (),
    near_miss: str = "v5-reason-texts-everywhere",
) -> None:
    name = kind.type.name
    for words, slug, statement in zip(
        ("Reason String", "User Properties"), ("reason-string", "user-properties"), statements, strict=True
    ):

        async def run(ctx: CaseContext) -> None:
            await _check(ctx, provoke)

        verb = "do" if slug == "user-properties" else "does"
        run.__doc__ = f"""{words} {verb} not push {name} over the client's Maximum Packet Size.

        A client without a limit shows how large the server's packets are without texts. A second client takes packets
        of exactly that size, and does the same to get a {name}: everything that the first one got comes, and nothing
        is larger than the limit.
        """
        case(
            f"mqtt5/text-limits/{name.lower()}-{slug}",
            clauses=(statement,),
            requires=requires,
            mutant=f"v5-{name.lower()}-{slug}-too-large",
            near_miss=near_miss,
        )(run)


_define(Connack, _connack, ("MQTT-3.2.2-19", "MQTT-3.2.2-20"), near_miss="v5-connack-says-more")
_define(Puback, _puback, ("MQTT-3.4.2-2", "MQTT-3.4.2-3"), requires=("qos1",))
_define(Pubrec, _pubrec, ("MQTT-3.5.2-2", "MQTT-3.5.2-3"), requires=("qos2",))
_define(Pubrel, _pubrel, ("MQTT-3.6.2-2", "MQTT-3.6.2-3"), requires=("qos2",))
_define(Pubcomp, _pubcomp, ("MQTT-3.7.2-2", "MQTT-3.7.2-3"), requires=("qos2",))
_define(Suback, _suback, ("MQTT-3.9.2-1", "MQTT-3.9.2-2"))
_define(Unsuback, _unsuback, ("MQTT-3.11.2-1", "MQTT-3.11.2-2"))
_define(Disconnect, _disconnect, ("MQTT-3.14.2-3", "MQTT-3.14.2-4"), near_miss="v5-no-reason-texts")

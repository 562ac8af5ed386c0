"""CONNECT and CONNACK (MQTT 3.1.1, 3.1 and 3.2)."""

from __future__ import annotations

import asyncio

from assay.conformance.case import CaseContext, case
from assay.conformance.cases.mqtt5.support import delivered, exchange_raw
from assay.conformance.cases.unconnected import UNCONNECTED_LIMIT_S, expect_end_unconnected
from assay.conformance.connection import Connection
from assay.conformance.wire import (
    Connack,
    Pingreq,
    Puback,
    Publish,
    Subscribe,
    Subscription,
    Will,
    describe,
    encode,
)
from assay.conformance.wire.encode import binary, connect_body, connect_raw, raw_packet, string

_UNACCEPTABLE_LEVEL = 1
_IDENTIFIER_REJECTED = 2
_UNKNOWN_LEVEL = 0x7F
_CONNECT = 0x10
BAD_LOGIN = 4
"""Return code: the data in the user name or password is malformed."""


@case(
    "mqtt311/connect/first-packet-must-be-connect",
    clauses=("MQTT-3.1.0-1", "MQTT-3.2.0-1", "MQTT-4.8.0-1"),
    mutant="v3-ping-before-connect",
    near_miss="closes-late-without-connect",
    limit_s=UNCONNECTED_LIMIT_S,
)
async def first_packet(ctx: CaseContext) -> None:
    """A first packet other than CONNECT ends the connection.

    PINGREQ, SUBSCRIBE and PUBLISH are each sent on a fresh connection. The broker ends it without any answer; one that
    only does so when its patience with the missing CONNECT ends is reported.
    """
    filters = (Subscription(filter=ctx.topic()),)
    await expect_end_unconnected(
        ctx, Pingreq(), Subscribe(packet_id=1, subscriptions=filters), Publish(topic=ctx.topic())
    )


@case(
    "mqtt311/connect/second-connect-ends-the-connection",
    clauses=("MQTT-3.1.0-2",),
    mutant="v3-second-connect-ignored",
)
async def second_connect(ctx: CaseContext) -> None:
    """A second CONNECT is a protocol violation.

    A connected client sends its CONNECT once more. The broker ends the connection and sends no second CONNACK.
    """
    connection = await ctx.connect()
    connection.send(ctx.connect_packet(client_id=connection.client_id))
    await connection.expect_close()


@case(
    "mqtt311/connect/wrong-protocol-name-is-not-served",
    clauses=("MQTT-3.1.2-1",),
    mutant="v3-any-protocol-name",
    near_miss="v3-refuses-names-with-code-1",
)
async def protocol_name(ctx: CaseContext) -> None:
    """A CONNECT with another protocol name is not served as MQTT 3.1.1.

    The names MQTX, mqtt and an empty one are tried. The broker may refuse with a CONNACK, end the connection, or go on
    by another standard, of which nothing is known: it may be silent, too. It must not accept.
    """
    connections = []
    for name in (b"MQTX", b"mqtt", b""):
        connection = await ctx.open(name=f"name {name.decode() or 'empty'}")
        body = connect_body(ctx.connect_packet())
        connection.send_raw(raw_packet(_CONNECT, binary(name) + body[6:]))
        connections.append(connection)
    accepted = await asyncio.gather(*(connection.is_accepted() for connection in connections))
    served = [connection.name for connection, yes in zip(connections, accepted, strict=True) if yes]
    ctx.must(not served, f"expected no CONNACK that accepts; seen one for {', '.join(served)}")


@case(
    "mqtt311/connect/unknown-level-is-refused-with-code-1",
    clauses=("MQTT-3.1.2-2", "MQTT-3.2.2-4", "MQTT-3.2.2-5"),
    mutant="v3-any-protocol-level",
)
async def protocol_level(ctx: CaseContext) -> None:
    """An unknown protocol level is refused with return code 1.

    Level 127 is answered with CONNACK 1 and the end of the connection. A broker that also speaks 5.0 may follow that
    standard instead, where the answer is free; this is reported, not failed. To accept is a failure for all.
    """
    body = bytearray(connect_body(ctx.connect_packet()))
    body[6] = _UNKNOWN_LEVEL
    answer = await exchange_raw(ctx, raw_packet(_CONNECT, bytes(body)), name="level 127")
    ctx.must(answer[:1] in (b"", b"\x20"), f"level 127: expected CONNACK or nothing; seen {answer.hex()}")
    ctx.must(answer[3:4] != b"\0", f"level 127: expected a refusal; seen {answer.hex()}")
    text = f"level 127: expected CONNACK 20020001; seen {answer.hex() or 'nothing'}"
    if ctx.capabilities.get("mqtt5"):
        ctx.should(answer == bytes((0x20, 2, 0, _UNACCEPTABLE_LEVEL)), text)
    else:
        ctx.must(answer == bytes((0x20, 2, 0, _UNACCEPTABLE_LEVEL)), text)


@case(
    "mqtt311/connect/reserved-flag-ends-the-connection",
    clauses=("MQTT-3.1.2-3", "MQTT-3.1.4-1"),
    mutant="v3-reserved-connect-flag-ignored",
)
async def reserved_flag(ctx: CaseContext) -> None:
    """The reserved bit of the connect flags must be 0.

    A CONNECT that is right but for that bit. The broker ends the connection without a CONNACK.
    """
    connection = await ctx.open()
    connection.send_raw(connect_raw(ctx.connect_packet(), flags=0x03))
    await connection.expect_close()


@case(
    "mqtt311/connect/will-bits-need-the-will-flag",
    clauses=("MQTT-3.1.2-11", "MQTT-3.1.2-13", "MQTT-3.1.2-15", "MQTT-3.1.4-1"),
    mutant="v3-will-bits-unchecked",
)
async def will_bits(ctx: CaseContext) -> None:
    """Will QoS and Will Retain must be 0 without the Will Flag.

    One CONNECT with Will Retain 1, one with Will QoS 1, both with Will Flag 0. Each connection ends without CONNACK.
    """
    for name, bits in (("retain", 0x20), ("qos", 0x08)):
        connection = await ctx.open(name=name)
        connection.send_raw(connect_raw(ctx.connect_packet(), flags=0x02 | bits))
        await connection.expect_close()


@case(
    "mqtt311/connect/will-qos-3-ends-the-connection",
    clauses=("MQTT-3.1.2-14", "MQTT-3.1.4-1"),
    mutant="v3-will-qos-3-accepted",
)
async def will_qos_3(ctx: CaseContext) -> None:
    """A will with QoS 3 does not exist.

    A CONNECT with Will QoS 3 ends the connection without a CONNACK.
    """
    connection = await ctx.open()
    connection.send_raw(encode(ctx.connect_packet(will=Will(topic=ctx.topic(), payload=b"w", qos=3)), 4))
    await connection.expect_close()


@case(
    "mqtt311/connect/password-needs-a-user-name",
    clauses=("MQTT-3.1.2-22", "MQTT-3.1.4-1"),
    mutant="v3-password-without-user-name",
    near_miss="v3-malformed-login-gets-code-4",
)
async def password_alone(ctx: CaseContext) -> None:
    """A password without a user name is not allowed in 3.1.1.

    A CONNECT with Password Flag 1 and User Name Flag 0 ends the connection. A CONNECT against the rules gets no
    CONNACK, but code 4 stands for a malformed login: a broker that sends it first is reported, not failed.
    """
    connection = await ctx.open()
    packet = ctx.connect_packet(username=None, password=b"secret")
    connection.send_raw(encode(packet, 4))
    await _is_refused(ctx, connection)


async def _is_refused(ctx: CaseContext, connection: Connection) -> None:
    code = await connection.expect_refusal(BAD_LOGIN)
    ctx.should(code is None, f"{connection.name}: the broker says code 4 in place of just ending the connection")


@case(
    "mqtt311/connect/announced-fields-must-be-there",
    clauses=("MQTT-3.1.2-9", "MQTT-3.1.2-19", "MQTT-3.1.2-21", "MQTT-3.1.3-3", "MQTT-3.1.4-1"),
    mutant="v3-missing-fields-read-as-empty",
)
async def missing_fields(ctx: CaseContext) -> None:
    """What the connect flags announce must be in the payload.

    CONNECTs that announce a user name, a password or a will and end before it, and one without client identifier. Each
    connection ends without a CONNACK, or behind code 4, which stands for a malformed login (reported, not failed).
    """
    client_id = string(ctx.client_id())
    payloads = {
        "user name": (0x82, client_id),
        "password": (0xC2, client_id + string("user")),
        "will": (0x06, client_id),
        "will message": (0x06, client_id + string(ctx.topic())),
        "client id": (0x02, b""),
    }
    for name, (flags, payload) in payloads.items():
        connection = await ctx.open(name=f"no {name}")
        connection.send_raw(connect_raw(ctx.connect_packet(), flags=flags, payload=payload))
        await _is_refused(ctx, connection)


@case(
    "mqtt311/connect/fields-not-announced-must-not-be-there",
    clauses=("MQTT-3.1.2-18", "MQTT-3.1.2-20", "MQTT-3.1.4-1"),
    mutant="v3-bytes-behind-connect-ignored",
)
async def extra_fields(ctx: CaseContext) -> None:
    """A user name or password that the flags do not announce makes the CONNECT malformed.

    A user name behind the client identifier with User Name Flag 0; a password behind the user name with Password Flag
    0. Each connection ends without a CONNACK, or behind code 4 (reported, not failed).
    """
    client_id = string(ctx.client_id())
    payloads = {"user name": (0x02, string("user")), "password": (0x82, string("user") + string("secret"))}
    for name, (flags, more) in payloads.items():
        connection = await ctx.open(name=f"extra {name}")
        connection.send_raw(connect_raw(ctx.connect_packet(), flags=flags, payload=client_id + more))
        await _is_refused(ctx, connection)


@case(
    "mqtt311/connect/empty-client-id-gets-its-own-session",
    clauses=("MQTT-3.1.3-6",),
    mutant="v3-empty-client-ids-shared",
)
async def empty_client_id(ctx: CaseContext) -> None:
    """A broker that accepts an empty client identifier gives each such client an identity of its own.

    Two clients connect without identifier and with Clean Session 1. A broker may refuse this with code 2; if it
    accepts, the second does not push out the first.
    """
    clients = []
    for name in ("first", "second"):
        connection = await ctx.open(name=name)
        connection.send(ctx.connect_packet(client_id=""))
        connack = await connection.expect(Connack)
        if connack.reason_code == _IDENTIFIER_REJECTED:
            ctx.unsupported("the broker takes no empty client identifier, which it may")
        ctx.must(connack.reason_code == 0, f"{name}: expected code 0 or 2; seen {describe(connack)}")
        clients.append(connection)
    first, second = clients
    await first.subscribe(ctx.topic())
    await second.publish(ctx.topic(), b"from the other")
    await first.expect_publish(ctx.topic(), b"from the other")


@case(
    "mqtt311/connect/empty-client-id-needs-clean-session",
    clauses=("MQTT-3.1.3-7", "MQTT-3.1.3-8", "MQTT-3.1.3-9", "MQTT-3.2.2-4", "MQTT-3.2.2-5"),
    mutant="v3-empty-client-id-kept-session",
)
async def empty_client_id_unclean(ctx: CaseContext) -> None:
    """An empty client identifier with Clean Session 0 is rejected.

    The broker answers with CONNACK 2, Session Present 0, and ends the connection.
    """
    connection = await ctx.open()
    connection.send(ctx.connect_packet(client_id="", clean=False))
    connack = await connection.expect(Connack)
    ctx.must(connack.reason_code == _IDENTIFIER_REJECTED, f"expected CONNACK 2; seen {describe(connack)}")
    await connection.expect_close()


@case(
    "mqtt311/connect/plain-client-ids-are-accepted",
    clauses=("MQTT-3.1.3-5", "MQTT-3.1.4-4"),
    mutant="v3-long-client-ids-refused",
)
async def plain_client_ids(ctx: CaseContext) -> None:
    """Client identifiers of up to 23 letters and digits are accepted.

    Identifiers of 23 characters that together use all 62 letters and digits, and a short one.
    """
    characters = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
    unique = ctx.client_id()
    room = 23 - len(unique)
    parts = [characters[start : start + room] for start in range(0, len(characters), room)]
    for client_id in (unique[-6:], *((unique + part).ljust(23, "0") for part in parts)):
        await ctx.connect(client_id=client_id, name=client_id)


@case(
    "mqtt311/connect/second-connection-takes-over",
    clauses=("MQTT-3.1.4-2", "MQTT-3.1.3-2"),
    mutant="v3-takeover-leaves-both",
    near_miss="v3-one-packet-at-a-time",
)
async def takeover(ctx: CaseContext) -> None:
    """Of two connections with one client identifier the older is ended.

    The second connection is accepted, the first ends without a packet, and the second goes on working.
    """
    first = await ctx.connect(name="first")
    second = await ctx.connect(client_id=first.client_id, name="second")
    await first.expect_close()
    await second.expect_nothing()


@case(
    "mqtt311/connect/client-ids-differ-by-case",
    clauses=("MQTT-3.1.3-2",),
    mutant="v3-client-ids-fold-case",
)
async def client_id_case(ctx: CaseContext) -> None:
    """Client identifiers that differ only in upper and lower case are different clients.

    Two clients whose identifiers differ in the case of one letter are both connected and both stay.
    """
    base = ctx.client_id()
    lower = await ctx.connect(client_id=f"{base}x", name="lower")
    upper = await ctx.connect(client_id=f"{base}X", name="upper")
    await lower.expect_nothing()
    await upper.expect_nothing()


@case(
    "mqtt311/connect/packets-behind-connect-are-served",
    clauses=("MQTT-3.1.4-4", "MQTT-3.2.0-1", "MQTT-7.1.1-1"),
    requires=("qos1",),
    mutant="v3-bytes-behind-connect-packet-lost",
    near_miss="v3-suback-after-puback",
)
async def pipelined(ctx: CaseContext) -> None:
    """A client may send packets right behind its CONNECT, before the CONNACK.

    CONNECT, SUBSCRIBE and PUBLISH at QoS 1 are sent in one write. CONNACK comes first, then SUBACK and PUBACK, in any
    order. The subscription may be younger than that message; the next one is delivered.
    """
    topic = ctx.topic()
    connection = await ctx.open()
    subscribe = Subscribe(packet_id=1, subscriptions=(Subscription(filter=topic),))
    early = Publish(topic=topic, payload=b"early", qos=1, packet_id=2)
    connection.send(ctx.connect_packet(), subscribe, early)
    connack = await connection.expect(Connack)
    ctx.must(connack.reason_code == 0, f"expected to be accepted; seen {describe(connack)}")
    await connection.granted(subscribe, skipping=(Publish, Puback))
    puback = await connection.expect(Puback, skipping=(Publish,))
    ctx.must(puback.packet_id == 2, f"expected PUBACK 2; seen {describe(puback)}")
    connection.send(Publish(topic=topic, payload=b"later"))
    if (await connection.expect_publish(topic)).payload == b"early":
        await connection.expect_publish(topic, b"later")


@case(
    "mqtt311/connect/nothing-behind-a-refused-connect-is-processed",
    clauses=("MQTT-3.1.4-5",),
    mutant="v3-publish-behind-refused-connect",
)
async def behind_refused(ctx: CaseContext) -> None:
    """What follows a refused CONNECT is not processed.

    Three CONNECTs that must be refused (empty identifier with Clean Session 0, an unknown level, another protocol
    name), each in one write with a PUBLISH. A watcher gets nothing of those that the broker refuses; whether it refuses
    them all is judged by other cases.
    """
    topic = ctx.topic()
    watcher = await ctx.connect(name="watcher")
    await watcher.subscribe(topic)
    body = connect_body(ctx.connect_packet())
    connects = {
        "empty identifier": encode(ctx.connect_packet(client_id="", clean=False), 4),
        "level": raw_packet(_CONNECT, body[:6] + bytes((_UNKNOWN_LEVEL,)) + body[7:]),
        "protocol name": raw_packet(_CONNECT, binary(b"MQTX") + body[6:]),
    }
    refused = set()
    for name, connect in connects.items():
        connection = await ctx.open(name=name)
        connection.send_raw(connect + encode(Publish(topic=topic, payload=name.encode()), 4))
        answer = await connection.receive("CONNACK, or the end of the connection")
        if answer is None or (isinstance(answer, Connack) and answer.reason_code):
            refused.add(name.encode())
    if not refused:
        ctx.unsupported("the broker refuses none of the CONNECTs that it must refuse")
    for message in await delivered(ctx, await ctx.connect(name="publisher"), watcher):
        ctx.must(message.payload not in refused, f"watcher: expected nothing; seen {describe(message)}")


@case(
    "mqtt311/connect/session-present-0-without-a-session",
    clauses=("MQTT-3.2.2-1", "MQTT-3.2.2-3", "MQTT-3.1.4-4"),
    mutant="v3-session-present-always",
)
async def session_present_zero(ctx: CaseContext) -> None:
    """Session Present is 0 where no session can be: with Clean Session 1, and for a client the broker does not know.

    Both kinds of CONNECT are accepted with return code 0 and Session Present 0.
    """
    for name, clean in (("clean", True), ("unknown", False)):
        connection = await ctx.connect(clean=clean, name=name)
        connection.expect_new_session()

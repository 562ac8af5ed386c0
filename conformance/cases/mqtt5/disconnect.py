"""DISCONNECT in both directions, and AUTH (MQTT 5.0, 3.14, 3.15 and 4.12)."""

from __future__ import annotations

from assay.conformance.case import CaseContext, case
from assay.conformance.cases.mqtt5.support import ends_without_complaint, expect_error, wire_size
from assay.conformance.rules import Rule
from assay.conformance.wire import Auth, Disconnect, Properties, Publish, Subscribe, Will, describe
from assay.conformance.wire.encode import raw_packet

_SMALL_PACKET_BYTES = 60
_CONTINUE = 0x18
_REAUTHENTICATE = 0x19


@case(
    "mqtt5/disconnect/normal-ends-the-connection",
    clauses=("MQTT-3.14.4-1", "MQTT-3.14.4-2"),
    level="SHOULD",
    mutant="v5-disconnect-acts-late",
    near_miss="v5-complains-of-what-follows-disconnect",
)
async def normal(ctx: CaseContext) -> None:
    """After a client's DISCONNECT nothing more is exchanged.

    A client sends DISCONNECT and, in the same write, a PUBLISH to a topic with a subscriber. The broker should end the
    connection without answering, and the PUBLISH, which comes after the end of the conversation, should not be
    delivered. The statements bind whoever sends DISCONNECT; of the server, 3.14.4 says only that it SHOULD close. One
    that complains of the PUBLISH by its own DISCONNECT is reported.
    """
    topic = ctx.topic()
    watcher = await ctx.connect(name="watcher")
    await watcher.subscribe(topic)
    connection = await ctx.connect(name="client")
    connection.send(Disconnect(), Publish(topic=topic, payload=b"too late"))
    await ends_without_complaint(ctx, connection, has_cause=True)
    control = await ctx.connect(name="control")
    for packet in await ctx.messages_before_marker(control, watcher):
        ctx.should(False, f"watcher: expected nothing of what came behind a DISCONNECT; seen {describe(packet)}")


@case(
    "mqtt5/disconnect/server-says-goodbye-properly",
    clauses=("MQTT-3.14.2-1", "MQTT-3.14.2-2", "MQTT-3.14.4-1", "MQTT-3.14.4-2", "MQTT-4.13.2-1"),
    mutant="v5-server-disconnect-has-session-expiry",
    near_miss="v5-closes-silently",
)
async def server_disconnect(ctx: CaseContext) -> None:
    """A server's DISCONNECT has a reason code of the standard and no Session Expiry Interval, and is the last packet.

    A client with a lasting session sends a SUBSCRIBE without filters, followed by a PINGREQ. If a DISCONNECT comes it
    has a code of 0x80 or more, no session expiry, and nothing behind it; the connection ends.
    """
    connection = await ctx.connect(properties=Properties(session_expiry_interval=600))
    connection.send_raw(raw_packet(0x82, b"\x00\x01\x00") + b"\xc0\x00")
    seen = await connection.expect_close(step=Rule.EMPTY_SUBSCRIBE)
    ctx.must(len(seen) <= 1, f"expected DISCONNECT to be the last packet; seen {'; '.join(map(describe, seen))}")
    for packet in seen:
        ctx.must(isinstance(packet, Disconnect), f"expected DISCONNECT; seen {describe(packet)}")
        if isinstance(packet, Disconnect):
            ctx.must(packet.reason_code >= 0x80, f"expected a code of 0x80 or more; seen {describe(packet)}")
            ctx.must(
                packet.properties.session_expiry_interval is None,
                f"expected no Session Expiry Interval; seen {describe(packet)}",
            )


@case(
    "mqtt5/disconnect/texts-respect-maximum-packet-size",
    clauses=("MQTT-3.14.2-3", "MQTT-3.14.2-4", "MQTT-3.1.2-24"),
    mutant="v5-reason-texts-ignore-packet-size",
    near_miss="v5-no-reason-texts",
)
async def texts_within_limit(ctx: CaseContext) -> None:
    """Reason String and User Property do not push DISCONNECT over the client's Maximum Packet Size.

    A client that takes packets of up to 60 bytes sends a SUBSCRIBE without filters. Nothing that it gets has more
    than 60 bytes.
    """
    connection = await ctx.connect(properties=Properties(maximum_packet_size=_SMALL_PACKET_BYTES))
    ctx.must(
        wire_size(connection.connack) <= _SMALL_PACKET_BYTES,
        f"expected a CONNACK of at most {_SMALL_PACKET_BYTES} bytes; seen {wire_size(connection.connack)}",
    )
    connection.send(Subscribe(packet_id=1, subscriptions=()))
    seen = await connection.expect_close(step=Rule.EMPTY_SUBSCRIBE)
    for packet in seen:
        size = wire_size(packet)
        ctx.must(size <= _SMALL_PACKET_BYTES, f"expected at most {_SMALL_PACKET_BYTES} bytes; seen {size}")


@case(
    "mqtt5/disconnect/reserved-bits-refused",
    clauses=("MQTT-3.14.1-1", "MQTT-2.1.3-1"),
    mutant="v5-disconnect-bits-unchecked",
    near_miss="v5-closes-silently",
)
async def reserved_bits(ctx: CaseContext) -> None:
    """A DISCONNECT with reserved header bits is malformed, so it does not cancel the will.

    A client with a will sends a DISCONNECT whose lowest header bit is set. The connection ends, should be told 0x81,
    and the will is published, because no valid DISCONNECT deleted it.
    """
    topic = ctx.topic("will")
    watcher = await ctx.connect(name="watcher")
    await watcher.subscribe(topic)
    connection = await ctx.connect(name="client", will=Will(topic=topic, payload=b"malformed goodbye"))
    connection.send_raw(raw_packet(0xE1))
    await expect_error(ctx, connection)
    await watcher.expect_publish(topic, b"malformed goodbye")


@case(
    "mqtt5/disconnect/short-forms-accepted",
    clauses=("MQTT-3.14.4-3",),
    mutant="v5-disconnect-needs-property-length",
    near_miss="v5-disconnect-is-answered",
)
async def short_forms(ctx: CaseContext) -> None:
    """DISCONNECT may leave out its property length, and its reason code too.

    Clients with a will send DISCONNECT in all three forms: empty, with reason code 0x00, and with a property length
    of 0 behind it. Each is a normal disconnection: nothing is published.
    """
    topic = ctx.topic("will")
    watcher = await ctx.connect(name="watcher")
    await watcher.subscribe(topic)
    for body in (b"", b"\x00", b"\x00\x00"):
        client = await ctx.connect(name=f"body of {len(body)}", will=Will(topic=topic, payload=b"goodbye"))
        client.send_raw(raw_packet(0xE0, body))
        await ends_without_complaint(ctx, client)
    control = await ctx.connect(name="control")
    await ctx.expect_no_message(control, watcher)


@case(
    "mqtt5/auth/unexpected-refused",
    clauses=("MQTT-4.12.0-7", "MQTT-4.13.1-1"),
    mutant="v5-auth-ignored",
    near_miss="v5-closes-silently",
)
async def unexpected_auth(ctx: CaseContext) -> None:
    """AUTH from a client whose CONNECT named no authentication method is a protocol error.

    AUTH packets with 0x18 and 0x19 and a method end their connections.
    """
    for code in (_CONTINUE, _REAUTHENTICATE):
        connection = await ctx.connect(name=f"code {code:#x}")
        connection.send(Auth(reason_code=code, properties=Properties(authentication_method="m")))
        await expect_error(ctx, connection, 0x8C)


@case(
    "mqtt5/auth/reserved-bits-refused",
    clauses=("MQTT-3.15.1-1", "MQTT-2.1.3-1"),
    mutant="v5-auth-ignored",
    near_miss="v5-closes-silently",
)
async def auth_bits(ctx: CaseContext) -> None:
    """An AUTH with reserved header bits is malformed.

    AUTH packets with each header bit set in turn end their connections.
    """
    for bit in range(4):
        connection = await ctx.connect(name=f"bit {bit}")
        connection.send_raw(raw_packet(0xF0 | 1 << bit, b"\x18\x00"))
        await expect_error(ctx, connection)


@case(
    "mqtt5/auth/unknown-method-refused",
    clauses=("MQTT-4.12.0-1", "MQTT-3.1.4-2", "MQTT-4.12.0-4"),
    mutant="v5-unknown-method-accepted",
    near_miss="v5-closes-silently",
)
async def unknown_method(ctx: CaseContext) -> None:
    """A CONNECT with an authentication method that the server does not know is refused.

    The connection ends, with a CONNACK that says 0x8C or 0x87 or without one. It does not go on as if no method had
    been named.
    """
    connection = await ctx.open()
    method = Properties(authentication_method="ASSAY-NO-SUCH-METHOD", authentication_data=b"x")
    connection.send(ctx.connect_packet(properties=method))
    code = await connection.expect_refusal()
    ctx.should(code in (0x8C, 0x87), f"expected CONNACK 0x8c or 0x87; seen {code if code is None else hex(code)}")

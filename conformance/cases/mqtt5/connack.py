"""CONNACK: what a server says when it accepts or refuses a client (MQTT 5.0, 3.2)."""

from __future__ import annotations

from assay.conformance.case import CaseContext, case
from assay.conformance.cases.mqtt5.support import LASTING, resume, subscribe_at, wire_size
from assay.conformance.connection import Connection
from assay.conformance.rules import Rule
from assay.conformance.wire import (
    Connack,
    Disconnect,
    Pingreq,
    Pingresp,
    Properties,
    Suback,
    Subscribe,
    Subscription,
    describe,
    encode,
)

_UNKNOWN_METHOD = Properties(authentication_method="ASSAY-NO-SUCH-METHOD")
_SMALL_PACKET_BYTES = 60


async def _connect_without_id(ctx: CaseContext, *, name: str, properties: Properties) -> Connection:
    """Connect with an empty client identifier; a broker may refuse that."""
    connection = await ctx.open(name=name)
    connection.send(ctx.connect_packet(client_id="", properties=properties))
    connection.connack = await connection.expect(Connack)
    if connection.connack.reason_code:
        ctx.unsupported(f"the broker refuses an empty client identifier: {describe(connection.connack)}")
    assigned = connection.connack.properties.assigned_client_identifier
    ctx.must(bool(assigned), f"{name}: expected an Assigned Client Identifier; seen {describe(connection.connack)}")
    connection.client_id = assigned or ""
    return connection


@case(
    "mqtt5/connack/accepted-connect-gets-success",
    clauses=("MQTT-3.1.4-5", "MQTT-3.2.0-1", "MQTT-3.2.0-2", "MQTT-3.2.2-1", "MQTT-3.2.2-8", "MQTT-4.2.0-1"),
    mutant="v5-connack-sent-twice",
    near_miss="v5-connack-says-more",
)
async def success(ctx: CaseContext) -> None:
    """An accepted CONNECT gets one CONNACK, with reason code 0x00.

    The CONNACK comes first, has no reserved flag set and Session Present 0, and is not repeated: a PINGREQ is
    answered by PINGRESP without anything in between.
    """
    connection = await ctx.connect()
    connection.expect_new_session()
    await connection.expect_nothing()


@case(
    "mqtt5/connack/empty-client-id-gets-an-assigned-one",
    clauses=("MQTT-3.1.3-6", "MQTT-3.1.3-7", "MQTT-3.2.2-16"),
    mutant="v5-assigned-id-repeats",
    near_miss="v5-connack-says-more",
)
async def assigned_id(ctx: CaseContext) -> None:
    """A client without identifier is told the unique one that the server invented.

    Two clients connect with an empty identifier. Each CONNACK has an Assigned Client Identifier, the two differ, and
    both clients stay connected. A broker may refuse empty identifiers instead, which makes this case unsupported.
    """
    first = await _connect_without_id(ctx, name="first", properties=Properties())
    second = await _connect_without_id(ctx, name="second", properties=Properties())
    ctx.must(first.client_id != second.client_id, f"expected two different identifiers; seen {first.client_id!r} twice")
    await first.expect_nothing()
    await second.expect_nothing()


@case(
    "mqtt5/connack/assigned-client-id-names-a-session",
    clauses=("MQTT-3.1.3-7", "MQTT-3.1.3-2"),
    requires=("persistent_sessions",),
    mutant="v5-assigned-id-not-used",
    near_miss="v5-connack-says-more",
)
async def assigned_id_session(ctx: CaseContext) -> None:
    """An assigned identifier works like one that the client chose.

    A client with an empty identifier and a lasting session disconnects, and comes back with the identifier that it
    was assigned: its session is there.
    """
    first = await _connect_without_id(ctx, name="first", properties=LASTING)
    await first.disconnect()
    await resume(ctx, first.client_id, name="again")


@case(
    "mqtt5/connack/clean-start-reports-no-session",
    clauses=("MQTT-3.2.2-2", "MQTT-3.1.2-4", "MQTT-3.1.4-4"),
    requires=("persistent_sessions",),
    mutant="v5-clean-start-ignored",
    near_miss="v5-connack-says-more",
)
async def clean_start(ctx: CaseContext) -> None:
    """Clean Start 1 discards the session, and the CONNACK says that there is none.

    A session with a subscription is left behind. After a connection with Clean Start 1 the CONNACK has Session
    Present 0 and the subscription is gone.
    """
    topic = ctx.topic()
    first = await ctx.connect(properties=LASTING, name="first")
    await first.subscribe(topic)
    await first.disconnect()
    second = await ctx.connect(client_id=first.client_id, clean=True, properties=LASTING, name="second")
    second.expect_new_session()
    publisher = await ctx.connect(name="publisher")
    await publisher.publish(topic, b"for the old session")
    await ctx.expect_no_message(publisher, second)


@case(
    "mqtt5/connack/session-present-tells-of-a-session",
    clauses=("MQTT-3.2.2-3", "MQTT-3.1.2-5", "MQTT-3.1.2-6", "MQTT-3.1.2-23"),
    requires=("persistent_sessions",),
    mutant="v5-session-present-always-0",
    near_miss="v5-connack-says-more",
)
async def session_present(ctx: CaseContext) -> None:
    """With Clean Start 0, Session Present says whether the server has the session.

    The first connection of an identifier finds none, and Session Present is 0. It leaves with a lasting session; the
    second finds it, and Session Present is 1.
    """
    first = await ctx.connect(clean=False, properties=LASTING, name="first")
    first.expect_new_session()
    await first.disconnect()
    await resume(ctx, first.client_id, name="second")


@case(
    "mqtt5/connack/precedes-queued-messages",
    clauses=("MQTT-3.2.0-1", "MQTT-4.5.0-1"),
    requires=("persistent_sessions", "qos1"),
    mutant="v5-connack-after-queued-messages",
    near_miss="v5-connack-says-more",
)
async def precedes_messages(ctx: CaseContext) -> None:
    """CONNACK comes before the messages that waited for the client.

    A QoS 1 message is published while the subscriber is away. When it comes back the first packet is CONNACK, and the
    message follows.
    """
    topic = ctx.topic()
    subscriber = await ctx.connect(properties=LASTING, name="subscriber")
    await subscribe_at(ctx, subscriber, topic, qos=1)
    await subscriber.disconnect()
    publisher = await ctx.connect(name="publisher")
    await publisher.publish(topic, b"1", qos=1)
    back = await resume(ctx, subscriber.client_id, name="back")
    await back.expect_publish(topic, b"1")


@case(
    "mqtt5/connack/refusal-has-no-session-and-ends",
    clauses=("MQTT-3.2.2-6", "MQTT-3.2.2-7", "MQTT-3.2.2-8", "MQTT-4.12.0-1", "MQTT-4.13.2-1"),
    mutant="v5-refused-connection-stays-open",
    near_miss="v5-closes-silently",
)
async def refusal(ctx: CaseContext) -> None:
    """A refused connection is ended, and its CONNACK has Session Present 0.

    A client that left a session behind names an authentication method that no broker knows, with Clean Start 0. A
    CONNACK may say 0x8C, 0x87 or another code that fits; it has Session Present 0, and the connection ends either
    way.
    """
    first = await ctx.connect(properties=LASTING, name="first")
    await first.disconnect()
    refused = await ctx.open(name="refused")
    refused.send(ctx.connect_packet(client_id=first.client_id, clean=False, properties=_UNKNOWN_METHOD))
    await refused.expect_refusal(step=Rule.UNKNOWN_METHOD)


@case(
    "mqtt5/connack/no-authentication-method-unless-asked",
    clauses=("MQTT-4.12.0-6",),
    mutant="v5-connack-names-a-method",
    near_miss="v5-connack-says-more",
)
async def no_method(ctx: CaseContext) -> None:
    """A client that names no authentication method is told none, and gets no AUTH.

    The first packet after a plain CONNECT is CONNACK, without Authentication Method and Authentication Data.
    """
    connection = await ctx.connect()
    properties = connection.connack.properties
    ctx.must(
        properties.authentication_method is None and properties.authentication_data is None,
        f"expected no authentication property; seen {describe(connection.connack)}",
    )
    await connection.expect_nothing()


@case(
    "mqtt5/connack/response-information-only-on-request",
    clauses=("MQTT-3.1.2-28",),
    mutant="v5-response-information-unasked",
    near_miss="v5-connack-says-more",
)
async def response_information(ctx: CaseContext) -> None:
    """Response Information is not sent to a client that did not ask for it.

    Request Response Information is 0 in one CONNECT and absent, which means 0, in another. No CONNACK has Response
    Information. A client that does ask may or may not get it.
    """
    for name, properties in (("zero", Properties(request_response_information=0)), ("absent", Properties())):
        connection = await ctx.connect(properties=properties, name=name)
        ctx.must(
            connection.connack.properties.response_information is None,
            f"{name}: expected no Response Information; seen {describe(connection.connack)}",
        )
    await ctx.connect(properties=Properties(request_response_information=1), name="asked")


@case(
    "mqtt5/connack/texts-respect-maximum-packet-size",
    clauses=("MQTT-3.2.2-19", "MQTT-3.2.2-20", "MQTT-3.1.2-24"),
    mutant="v5-reason-texts-ignore-packet-size",
    near_miss="v5-no-reason-texts",
)
async def texts_within_limit(ctx: CaseContext) -> None:
    """Reason String and User Property do not push CONNACK over the client's Maximum Packet Size.

    A client that takes packets of up to 60 bytes names an unknown authentication method. A refusing CONNACK has at
    most 60 bytes, so a longer text is left out.
    """
    connection = await ctx.open()
    limited = Properties(
        maximum_packet_size=_SMALL_PACKET_BYTES, authentication_method=_UNKNOWN_METHOD.authentication_method
    )
    connection.send(ctx.connect_packet(properties=limited))
    for packet in await connection.expect_close(allowed=(Connack, Disconnect), step=Rule.UNKNOWN_METHOD):
        ctx.must(
            wire_size(packet) <= _SMALL_PACKET_BYTES,
            f"expected at most {_SMALL_PACKET_BYTES} bytes; seen {wire_size(packet)}: {describe(packet)}",
        )


@case(
    "mqtt5/connack/stated-limits-are-usable",
    clauses=("MQTT-3.2.2-10",),
    mutant="v5-maximum-qos-refuses-subscriptions",
    near_miss="v5-grants-at-most-qos-1",
)
async def stated_limits(ctx: CaseContext) -> None:
    """Whatever QoS a server supports, it accepts subscriptions at QoS 0, 1 and 2.

    Three filters are subscribed to at QoS 0, 1 and 2 in one SUBSCRIBE. None is refused; lower QoS may be granted.
    """
    connection = await ctx.connect()
    await connection.subscribe(*(Subscription(filter=ctx.topic(f"q{qos}"), qos=qos) for qos in (0, 1, 2)))


@case(
    "mqtt5/connack/packets-in-pieces",
    clauses=("MQTT-4.2.0-1", "MQTT-3.1.4-5"),
    mutant="v5-needs-whole-packets",
    near_miss="v5-connack-says-more",
)
async def in_pieces(ctx: CaseContext) -> None:
    """TCP carries a stream: packets may arrive in any pieces.

    CONNECT is sent one byte at a time. Then a SUBSCRIBE is cut at each of its bytes in turn: the part before the cut
    travels together with a PINGREQ, and the rest follows once the PINGRESP has come, so that the broker has seen the
    part alone. Every SUBSCRIBE is answered.
    """
    connection = await ctx.open()
    await connection.send_in_pieces(encode(ctx.connect_packet(), 5))
    connack = await connection.expect(Connack)
    ctx.must(connack.reason_code == 0, f"expected to be accepted; seen {describe(connack)}")
    ping = encode(Pingreq(), 5)
    frame = encode(Subscribe(packet_id=5, subscriptions=(Subscription(filter="t"),)), 5)
    for cut in range(1, len(frame)):
        connection.send_raw(ping + frame[:cut])
        await connection.expect(Pingresp)
        connection.send_raw(frame[cut:])
        await connection.expect(Suback)

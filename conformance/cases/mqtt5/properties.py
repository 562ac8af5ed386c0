"""Properties: once, known, in the right packet, and within their length (MQTT 5.0, 2.2.2)."""

from __future__ import annotations

from assay.conformance.case import CaseContext, case
from assay.conformance.cases.mqtt5.support import ends_without_complaint, expect_error
from assay.conformance.wire import Disconnect, PacketType, Properties, Subscription
from assay.conformance.wire.encode import property_fields, raw_packet, string, uint16, varint

_CONNECT_BYTE = 0x10
_PUBLISH_BYTE = 0x30
_SUBSCRIBE_BYTE = 0x82
_UNSUBSCRIBE_BYTE = 0xA2
_DISCONNECT_BYTE = 0xE0
_UNKNOWN_PROPERTY = b"\x7e\x00"


def _block(fields: bytes) -> bytes:
    return varint(len(fields)) + fields


def _connect(client_id: str, fields: bytes) -> bytes:
    """A CONNECT with any bytes as properties."""
    return raw_packet(
        _CONNECT_BYTE, string("MQTT") + bytes((5, 0x02)) + uint16(60) + _block(fields) + string(client_id)
    )


def _packets(topic: str, fields: bytes) -> dict[str, bytes]:
    """The packets of a connected client that have properties, each with ``fields`` as properties."""
    return {
        "PUBLISH": raw_packet(_PUBLISH_BYTE, string(topic) + _block(fields) + b"m"),
        "SUBSCRIBE": raw_packet(_SUBSCRIBE_BYTE, uint16(1) + _block(fields) + string(topic) + b"\x00"),
        "UNSUBSCRIBE": raw_packet(_UNSUBSCRIBE_BYTE, uint16(1) + _block(fields) + string(topic)),
        "DISCONNECT": raw_packet(_DISCONNECT_BYTE, b"\x00" + _block(fields)),
    }


async def _refused(ctx: CaseContext, data: bytes, *, name: str) -> None:
    """``data`` on an accepted connection must end it."""
    connection = await ctx.connect(name=name)
    connection.send_raw(data)
    await expect_error(ctx, connection)


async def _connect_refused(ctx: CaseContext, data: bytes, *, name: str) -> None:
    connection = await ctx.open(name=name)
    connection.send_raw(data)
    await connection.expect_refusal()


@case(
    "mqtt5/properties/unknown-identifier-refused",
    clauses=("MQTT-4.13.1-1",),
    mutant="v5-unknown-properties-skipped",
    near_miss="v5-closes-silently",
)
async def unknown(ctx: CaseContext) -> None:
    """A property that the standard does not define makes the packet malformed.

    CONNECT, PUBLISH, SUBSCRIBE and UNSUBSCRIBE with the undefined property 0x7E end their connections.
    """
    await _connect_refused(ctx, _connect(ctx.client_id(), _UNKNOWN_PROPERTY), name="CONNECT")
    for name, data in _packets(ctx.topic(), _UNKNOWN_PROPERTY).items():
        if name != "DISCONNECT":
            await _refused(ctx, data, name=name)


@case(
    "mqtt5/properties/repeated-refused",
    clauses=("MQTT-4.13.1-1",),
    mutant="v5-repeated-properties-accepted",
    near_miss="v5-closes-silently",
)
async def repeated(ctx: CaseContext) -> None:
    """A property other than User Property stands at most once in a packet.

    CONNECT with two Session Expiry Intervals, two Receive Maximums and two Authentication Methods, and PUBLISH with
    two Message Expiry Intervals and with two Content Types end their connections.
    """
    for once in (
        Properties(session_expiry_interval=10),
        Properties(receive_maximum=10),
        Properties(topic_alias_maximum=10),
        Properties(request_problem_information=1),
    ):
        fields = property_fields(once) * 2
        await _connect_refused(ctx, _connect(ctx.client_id(), fields), name=f"CONNECT {fields.hex()}")
    for once in (
        Properties(message_expiry_interval=10),
        Properties(content_type="a"),
        Properties(response_topic="a"),
        Properties(payload_format_indicator=0),
        Properties(correlation_data=b"a"),
    ):
        fields = property_fields(once) * 2
        await _refused(ctx, _packets(ctx.topic(), fields)["PUBLISH"], name=f"PUBLISH {fields.hex()}")


@case(
    "mqtt5/properties/in-the-wrong-packet-refused",
    clauses=("MQTT-4.13.1-1",),
    mutant="v5-misplaced-properties-accepted",
    near_miss="v5-closes-silently",
)
async def misplaced(ctx: CaseContext) -> None:
    """A property stands only in packets for which it is defined.

    A Message Expiry Interval in CONNECT and in SUBSCRIBE, a Receive Maximum in PUBLISH, a Subscription Identifier in
    UNSUBSCRIBE and a Will Delay Interval in CONNECT (outside the will) end their connections.
    """
    expiry = property_fields(Properties(message_expiry_interval=10))
    delay = property_fields(Properties(will_delay_interval=10))
    await _connect_refused(ctx, _connect(ctx.client_id(), expiry), name="CONNECT expiry")
    await _connect_refused(ctx, _connect(ctx.client_id(), delay), name="CONNECT will delay")
    for name, properties in (
        ("SUBSCRIBE", Properties(message_expiry_interval=10)),
        ("PUBLISH", Properties(receive_maximum=10)),
        ("UNSUBSCRIBE", Properties(subscription_identifier=(1,))),
    ):
        await _refused(ctx, _packets(ctx.topic(), property_fields(properties))[name], name=name)


@case(
    "mqtt5/properties/server-properties-from-client-refused",
    clauses=("MQTT-4.13.1-1",),
    mutant="v5-misplaced-properties-accepted",
    near_miss="v5-closes-silently",
)
async def server_only(ctx: CaseContext) -> None:
    """Properties of CONNACK do not come from a client.

    CONNECTs with an Assigned Client Identifier, a Server Keep Alive and a Maximum QoS are refused.
    """
    for name, properties in (
        ("assigned client identifier", Properties(assigned_client_identifier="x")),
        ("server keep alive", Properties(server_keep_alive=10)),
        ("maximum QoS", Properties(maximum_qos=1)),
        ("reason string", Properties(reason_string="x")),
    ):
        await _connect_refused(ctx, _connect(ctx.client_id(), property_fields(properties)), name=name)


@case(
    "mqtt5/properties/length-beyond-the-packet-refused",
    clauses=("MQTT-4.13.1-1", "MQTT-2.2.2-1"),
    mutant="v5-bad-property-sections-skipped",
    near_miss="v5-closes-silently",
)
async def too_long(ctx: CaseContext) -> None:
    """A property length that goes beyond the end of the packet makes it malformed.

    A PUBLISH whose property length is larger than all that is left of the packet ends the connection, and so does a
    SUBSCRIBE that ends in the middle of a property.
    """
    topic = ctx.topic()
    beyond = raw_packet(_PUBLISH_BYTE, string(topic) + varint(100) + b"m")
    await _refused(ctx, beyond, name="PUBLISH")
    cut = property_fields(Properties(subscription_identifier=(200,)))[:-1]
    await _refused(ctx, _packets(topic, cut)["SUBSCRIBE"], name="SUBSCRIBE")


@case(
    "mqtt5/properties/user-property-may-repeat",
    clauses=("MQTT-2.2.2-1", "MQTT-1.5.7-1"),
    mutant="v5-repeated-user-property-refused",
    near_miss="v5-disconnect-is-answered",
)
async def user_property(ctx: CaseContext) -> None:
    """User Property may stand several times in every packet that has properties, also with the same name and value.

    CONNECT, SUBSCRIBE, UNSUBSCRIBE and DISCONNECT with three user properties, two of them equal, are processed like
    packets without.
    """
    pairs = (("a", "1"), ("a", "1"), ("", ""))
    connection = await ctx.connect(properties=Properties(user_property=pairs))
    await connection.subscribe(Subscription(filter=ctx.topic()), properties=Properties(user_property=pairs))
    fields = property_fields(Properties(user_property=pairs))
    connection.send_raw(_packets(ctx.topic(), fields)["UNSUBSCRIBE"])
    ack = await connection.receive("UNSUBACK")
    ctx.must(ack is not None and ack.type is PacketType.UNSUBACK, f"expected UNSUBACK; seen {ack}")
    await connection.publish(ctx.topic(), b"m", properties=Properties(user_property=pairs))
    await connection.expect_nothing()
    connection.send(Disconnect(properties=Properties(user_property=pairs)))
    await ends_without_complaint(ctx, connection)


@case(
    "mqtt5/properties/authentication-data-needs-a-method",
    clauses=("MQTT-3.1.4-1", "MQTT-4.13.1-1"),
    mutant="v5-authentication-data-alone-accepted",
    near_miss="v5-closes-silently",
)
async def data_without_method(ctx: CaseContext) -> None:
    """Authentication Data without Authentication Method is a protocol error.

    A CONNECT with Authentication Data alone is refused.
    """
    fields = property_fields(Properties(authentication_data=b"secret"))
    await _connect_refused(ctx, _connect(ctx.client_id(), fields), name="data alone")

"""Bytes <-> packets: round trips of every packet, golden bytes, and what must be refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay.conformance.wire import packets as wire
from assay.conformance.wire.packets import PROPERTY_RULES
from assay.reference_broker.mqtt.wire import packets as p
from assay.reference_broker.mqtt.wire.codec import _REASONS, decode_packet, encode_packet
from assay.reference_broker.mqtt.wire.errors import ProtocolError, Reason
from assay.reference_broker.mqtt.wire.packets import NO_PROPERTIES, V5, V311, PacketType, Properties
from assay.reference_broker.mqtt.wire.properties import RULES, WILL, Kind, read_properties
from assay.reference_broker.mqtt.wire.wire_types import Reader, encode_variable_integer

TEXT = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=20)
BINARY = st.binary(max_size=20)
PACKET_IDS = st.integers(1, 65_535)
_VALUES = {
    Kind.BYTE: st.integers(0, 255),
    Kind.FLAG: st.integers(0, 1),
    Kind.TWO_BYTES: st.integers(1, 65_535),
    Kind.FOUR_BYTES: st.integers(1, 2**32 - 1),
    Kind.STRING: TEXT,
    Kind.BINARY: BINARY,
    Kind.PAIR: st.tuples(TEXT, TEXT),
}


@st.composite
def properties_of(draw: st.DrawFn, packet: int) -> Properties:
    """Properties a packet may carry; the shared empty value when none was drawn, as the decoder returns it."""
    fields: dict[str, object] = {}
    for rule in RULES:
        if packet not in rule.packets or not draw(st.booleans()):
            continue
        if rule.kind is Kind.PAIR:
            fields[rule.name] = tuple(draw(st.lists(_VALUES[Kind.PAIR], max_size=3)))
        elif rule.kind is Kind.VARIABLE:
            most = 3 if packet == PacketType.PUBLISH else 1
            fields[rule.name] = tuple(draw(st.lists(st.integers(1, 268_435_455), min_size=1, max_size=most)))
        else:
            fields[rule.name] = draw(_VALUES[rule.kind])
    made = Properties(**fields)  # type: ignore[arg-type]
    return NO_PROPERTIES if made == NO_PROPERTIES else made


def _of(packet: int, version: int) -> st.SearchStrategy[Properties]:
    return properties_of(packet) if version == V5 else st.just(NO_PROPERTIES)


@st.composite
def packets(draw: st.DrawFn, version: int) -> p.Packet:
    kind = draw(st.sampled_from([kind for kind in PacketType if version == V5 or kind is not PacketType.AUTH]))
    own = draw(_of(kind, version))
    reason = draw(st.sampled_from(sorted(_REASONS[kind][0]))) if version == V5 and kind in _REASONS else 0
    if kind is PacketType.CONNECT:
        will = draw(
            st.none()
            | st.builds(
                p.WillFields,
                topic=TEXT,
                payload=BINARY,
                qos=st.integers(0, 2),
                retain=st.booleans(),
                properties=_of(WILL, version),
            )
        )
        username = draw(st.none() | TEXT)
        password = draw(st.none() | BINARY) if version == V5 or username is not None else None
        return p.Connect(
            version=version,
            client_id=draw(TEXT),
            clean_start=draw(st.booleans()),
            keep_alive_s=draw(st.integers(0, 65_535)),
            will=will,
            username=username,
            password=password,
            properties=own,
        )
    if kind is PacketType.CONNACK:
        return p.Connack(session_present=draw(st.booleans()), reason=draw(st.integers(0, 255)), properties=own)
    if kind is PacketType.PUBLISH:
        qos = draw(st.integers(0, 2))
        return p.Publish(
            topic=draw(TEXT),
            payload=draw(BINARY),
            qos=qos,
            retain=draw(st.booleans()),
            dup=bool(qos) and draw(st.booleans()),
            packet_id=draw(PACKET_IDS) if qos else 0,
            properties=own,
        )
    packet_id = draw(PACKET_IDS)
    if kind in (PacketType.PUBACK, PacketType.PUBREC, PacketType.PUBREL, PacketType.PUBCOMP):
        return p.Acknowledgement(type=kind, packet_id=packet_id, reason=reason, properties=own)
    if kind is PacketType.SUBSCRIBE:
        options = st.builds(p.SubscriptionRequest, topic_filter=TEXT, qos=st.integers(0, 2))
        if version == V5:
            options = st.builds(
                p.SubscriptionRequest,
                topic_filter=TEXT,
                qos=st.integers(0, 2),
                no_local=st.booleans(),
                retain_as_published=st.booleans(),
                retain_handling=st.integers(0, 2),
            )
        requests = tuple(draw(st.lists(options, min_size=1, max_size=3)))
        return p.Subscribe(packet_id=packet_id, requests=requests, properties=own)
    reasons = tuple(draw(st.lists(st.integers(0, 255), min_size=1, max_size=3)))
    if kind is PacketType.SUBACK:
        return p.Suback(packet_id=packet_id, reasons=reasons, properties=own)
    if kind is PacketType.UNSUBSCRIBE:
        filters = tuple(draw(st.lists(TEXT, min_size=1, max_size=3)))
        return p.Unsubscribe(packet_id=packet_id, topic_filters=filters, properties=own)
    if kind is PacketType.UNSUBACK:
        return p.Unsuback(packet_id=packet_id, reasons=reasons if version == V5 else (), properties=own)
    if kind is PacketType.DISCONNECT:
        return p.Disconnect(reason=reason, properties=own)
    if kind is PacketType.AUTH:
        return p.Auth(reason=reason, properties=own)
    return p.Pingreq() if kind is PacketType.PINGREQ else p.Pingresp()


def decode(data: bytes, version: int) -> p.Packet:
    """Decode one framed packet."""
    reader = Reader(data, 1, len(data), V311)
    length = reader.variable_integer()
    return decode_packet(data[0], data, len(data) - length, len(data), version)


@given(packets(V311))
def test_every_packet_of_mqtt_311_survives_a_round_trip(packet: p.Packet) -> None:
    assert decode(encode_packet(packet, V311), V311) == packet


@given(packets(V5))
def test_every_packet_of_mqtt_5_survives_a_round_trip(packet: p.Packet) -> None:
    assert decode(encode_packet(packet, V5), V5) == packet


@given(packets(V5), st.data())
def test_a_packet_cut_anywhere_is_refused_or_is_another_packet_but_never_crashes(
    packet: p.Packet, data: st.DataObject
) -> None:
    whole = encode_packet(packet, V5)
    start = len(whole) - Reader(whole, 1, len(whole), V5).variable_integer()
    end = data.draw(st.integers(start, len(whole)))
    try:
        decode_packet(whole[0], whole, start, end, V5)
    except ProtocolError as error:
        assert error.statement.startswith("MQTT-")


@given(st.integers(0, 255), st.binary(max_size=60), st.sampled_from([V311, V5]))
def test_random_bytes_are_a_packet_or_a_protocol_error(header: int, body: bytes, version: int) -> None:
    try:
        decode_packet(header, body, 0, len(body), version)
    except ProtocolError as error:
        assert error.reason >= 0x80


@pytest.mark.parametrize(
    ("packet", "version", "expected"),
    [
        (p.Connect(version=V311, client_id="t"), V311, "100d00044d5154540402000000 0174"),
        (p.Connect(version=V5, client_id="t"), V5, "100e00044d51545405020000 00 000174"),
        (p.Publish(topic="a/b", payload=b"xy", qos=1, packet_id=10), V311, "3209 0003612f62 000a 7879"),
        (p.Publish(topic="a/b", payload=b"xy", qos=2, packet_id=10, dup=True), V5, "3c0a 0003612f62 000a 00 7879"),
        (p.Acknowledgement(type=PacketType.PUBREL, packet_id=258), V5, "62020102"),
        (
            p.Subscribe(packet_id=1, requests=(p.SubscriptionRequest(topic_filter="#", qos=2),)),
            V311,
            "8206 0001 000123 02",
        ),
        (p.Disconnect(), V5, "e000"),
        (p.Disconnect(reason=0x8E), V5, "e0018e"),
        (p.Auth(reason=0x18, properties=Properties(authentication_method="m")), V5, "f006 18 04 15 0001 6d"),
    ],
)
def test_golden_bytes(packet: p.Packet, version: int, expected: str) -> None:
    """Written by hand from the standards' figures."""
    assert encode_packet(packet, version) == bytes.fromhex(expected)


CODES = {
    0x00: "success granted_qos_1 granted_qos_2",
    0x04: "disconnect_with_will",
    0x10: "no_matching_subscribers no_subscription_existed",
    0x18: "continue_authentication reauthenticate",
    0x80: "unspecified_error malformed_packet protocol_error implementation_specific_error "
    "unsupported_protocol_version client_identifier_not_valid bad_user_name_or_password not_authorized "
    "server_unavailable server_busy banned "
    "server_shutting_down bad_authentication_method keep_alive_timeout session_taken_over topic_filter_invalid "
    "topic_name_invalid packet_identifier_in_use packet_identifier_not_found receive_maximum_exceeded "
    "topic_alias_invalid packet_too_large message_rate_too_high quota_exceeded administrative_action "
    "payload_format_invalid retain_not_supported qos_not_supported use_another_server server_moved "
    "shared_subscriptions_not_supported connection_rate_exceeded maximum_connect_time "
    "subscription_identifiers_not_supported wildcard_subscriptions_not_supported",
}
"""5.0, table 2-6: codes that follow each other, from the first one on."""


def test_reason_codes_have_the_numbers_of_the_standard() -> None:
    named = {name: first + at for first, names in CODES.items() for at, name in enumerate(names.split())}
    assert {reason.name.lower(): int(reason) for reason in Reason}.items() <= named.items()


def test_properties_have_the_numbers_and_places_of_the_standard() -> None:
    """Broker and suite have read the table on their own; a round trip would not notice a wrong number."""
    ours = {rule.identifier: (rule.name, {int(each) for each in rule.packets}) for rule in RULES}
    theirs = {
        number: (rule.name, {int(each) for each in rule.packets} | ({int(WILL)} if rule.in_will else set()))
        for number, rule in PROPERTY_RULES.items()
    }
    assert ours == theirs
    assert {kind.name: int(kind) for kind in PacketType} == {kind.name: int(kind) for kind in wire.PacketType}


@pytest.mark.parametrize("value", [0, 127, 128, 16_383, 16_384, 2_097_151, 2_097_152, 268_435_455])
def test_variable_integers_use_as_few_bytes_as_possible(value: int) -> None:
    data = encode_variable_integer(value)
    assert len(data) == 1 + (value > 127) + (value > 16_383) + (value > 2_097_151)
    assert Reader(data, 0, len(data), V5).variable_integer() == value


@pytest.mark.parametrize(
    ("header", "body", "version", "statement"),
    [
        (0x31 | 0x06, "000161 0001", V311, "MQTT-3.3.1-4"),
        (0x38, "000161", V5, "MQTT-3.3.1-2"),
        (0x80, "0001 000161 00", V311, "MQTT-3.8.1-1"),
        (0x82, "0001", V311, "MQTT-3.8.3-3"),
        (0x82, "0001 00", V5, "MQTT-3.8.3-2"),
        (0x82, "0001 000161 03", V311, "MQTT-3.8.3-4"),
        (0x82, "0001 00 000161 40", V5, "MQTT-3.8.3-5"),
        (0x82, "0001 00 000161 80", V5, "MQTT-3.8.3-5"),
        (0x82, "0001 00 000161 03", V5, "MQTT-4.13.1-1"),
        (0x82, "0001 00 000161 00 000162 03", V5, "MQTT-4.13.1-1"),
        (0x82, "0001 00 000161 30", V5, "MQTT-4.13.1-1"),
        (0xA2, "0001", V311, "MQTT-3.10.3-2"),
        (0x60, "0001", V311, "MQTT-3.6.1-1"),
        (0xC1, "", V311, "MQTT-2.2.2-2"),
        (0xC1, "", V5, "MQTT-2.1.3-1"),
        (0xF0, "", V311, "MQTT-4.8.0-1"),
        (0x00, "", V5, "MQTT-4.13.1-1"),
        (0x32, "000161 0000", V311, "MQTT-2.3.1-1"),
        (0x40, "0001 45", V5, "MQTT-3.4.2-1"),
        (0x50, "0001 01", V5, "MQTT-3.5.2-1"),
        (0x62, "0001 10", V5, "MQTT-3.6.2-1"),
        (0x70, "0001 91", V5, "MQTT-3.7.2-1"),
        (0xE0, "01", V5, "MQTT-3.14.2-1"),
        (0xF0, "04", V5, "MQTT-3.15.2-1"),
        (0x30, "0002c080", V311, "MQTT-1.5.3-1"),
        (0x30, "0003eda080", V5, "MQTT-1.5.4-1"),
        (0x30, "000100", V5, "MQTT-1.5.4-2"),
        (0x10, "00044d5154540403 003c 000174", V311, "MQTT-3.1.2-3"),
        (0x10, "00044d515454041e 003c 000174", V311, "MQTT-3.1.2-14"),
        (0x10, "00044d5154540422 003c 000174", V311, "MQTT-3.1.2-15"),
        (0x10, "00044d5154540442 003c 000174", V311, "MQTT-3.1.2-22"),
        (0x10, "00044d515454ff02 003c 000174", V311, "MQTT-3.1.2-2"),
        (0x10, "00044d5154540482 003c 000174", V311, "MQTT-4.8.0-1"),
    ],
)
def test_violations_name_their_statement(header: int, body: str, version: int, statement: str) -> None:
    data = bytes.fromhex(body)
    with pytest.raises(ProtocolError) as caught:
        decode_packet(header, data, 0, len(data), version)
    assert caught.value.statement == statement


@pytest.mark.parametrize(
    ("section", "packet"),
    [
        ("02 0101 0101"[3:], PacketType.PUBLISH),
        ("0101 0100", PacketType.PUBLISH),
        ("0102", PacketType.PUBLISH),
        ("210000", PacketType.CONNECT),
        ("2700000000", PacketType.CONNECT),
        ("0b00", PacketType.SUBSCRIBE),
        ("23000a", PacketType.SUBSCRIBE),
        ("7f00", PacketType.CONNECT),
        ("1f0001", PacketType.PUBACK),
        ("0b07 0b08", PacketType.SUBSCRIBE),
    ],
)
def test_property_sections_that_break_a_rule_are_refused(section: str, packet: PacketType) -> None:
    body = bytes.fromhex(section)
    data = encode_variable_integer(len(body)) + body
    with pytest.raises(ProtocolError):
        read_properties(Reader(data, 0, len(data), V5), packet)


def test_near_misses_of_property_rules_are_accepted() -> None:
    data = bytes.fromhex("04 0b07 0b08")
    assert read_properties(Reader(data, 0, len(data), V5), PacketType.PUBLISH).subscription_identifier == (7, 8)
    data = bytes.fromhex("0e 26 0001 61 0001 31 26 0001 61 0001 31")
    assert read_properties(Reader(data, 0, len(data), V5), PacketType.CONNECT).user_property == (("a", "1"), ("a", "1"))

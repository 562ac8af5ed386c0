"""Two codecs that share no code, the broker's and the suite's, held against each other.

What one writes the other must read as the same packet; and what one refuses the other must refuse as well, but for the
differences that are listed here with their reason.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.conformance import wire as w
from assay.conformance.wire.encode import raw_packet
from assay.conformance.wire.packets import PROPERTY_RULES, PropertyKind
from assay.reference_broker.mqtt.wire import packets as p
from assay.reference_broker.mqtt.wire.codec import encode_packet
from assay.reference_broker.mqtt.wire.errors import ProtocolError
from assay.reference_broker.mqtt.wire.properties import MAX_PROPERTIES
from assay.reference_broker.mqtt.wire.publish_encoder import PublishEncoder, message_from
from assay.reference_broker.mqtt.wire.wire_types import Reader, encode_variable_integer
from assay.reference_broker.routing.message import Message
from tests.conformance.wire.both_codecs import NOW, V5, V311, VERSIONS, T, as_broker, assert_both_say, broker_decode
from tests.conformance.wire.packet_strategies import (
    _HIGHEST,
    ACKNOWLEDGEMENTS,
    BINARY,
    CODES,
    IDS,
    PAYLOAD,
    TEXT,
    TOPIC,
    WITH_PROPERTIES,
    bounds_of,
    extremes_of,
    packets,
    publishes,
    rules_of,
    single,
)

# -- the same packet, both ways --------------------------------------------------------------------------------------


@settings(deadline=None, max_examples=200)
@given(packets(V311))
def test_both_codecs_write_and_read_every_packet_of_311_alike(packet: w.Packet) -> None:
    assert_both_say(packet, V311)


@settings(deadline=None, max_examples=400)
@given(packets(V5))
def test_both_codecs_write_and_read_every_packet_of_5_alike(packet: w.Packet) -> None:
    assert_both_say(packet, V5)


def _bare(kind: w.PacketType, properties: w.Properties) -> w.Packet:
    """The smallest packet of a type with these properties."""
    makers: dict[w.PacketType, Callable[[], w.Packet]] = {
        T.CONNECT: lambda: w.Connect(version=V5, properties=properties),
        T.CONNACK: lambda: w.Connack(properties=properties),
        T.PUBLISH: lambda: w.Publish(topic="t", properties=properties),
        T.SUBSCRIBE: lambda: w.Subscribe(
            packet_id=1, subscriptions=(w.Subscription(filter="f"),), properties=properties
        ),
        T.SUBACK: lambda: w.Suback(packet_id=1, reason_codes=(0,), properties=properties),
        T.UNSUBSCRIBE: lambda: w.Unsubscribe(packet_id=1, filters=("f",), properties=properties),
        T.UNSUBACK: lambda: w.Unsuback(packet_id=1, reason_codes=(0,), properties=properties),
        T.DISCONNECT: lambda: w.Disconnect(properties=properties),
        T.AUTH: lambda: w.Auth(properties=properties),
    }
    for acknowledgement in ACKNOWLEDGEMENTS:
        if acknowledgement.type is kind:
            return acknowledgement(packet_id=1, properties=properties)
    return makers[kind]()


@pytest.mark.parametrize("kind", WITH_PROPERTIES, ids=lambda kind: kind.name)
def test_every_property_at_its_extremes_in_every_packet_that_may_carry_it(kind: w.PacketType) -> None:
    rules = rules_of(kind)
    assert len(rules) >= 1, "user properties may stand everywhere"
    for rule in rules:
        for value in extremes_of(rule):
            assert_both_say(_bare(kind, msgspec.convert(single(rule, value), w.Properties)), V5)


def test_every_property_of_a_will_at_its_extremes() -> None:
    for rule in rules_of(T.PUBLISH, in_will=True):
        for value in extremes_of(rule):
            properties = msgspec.convert(single(rule, value), w.Properties)
            assert_both_say(w.Connect(version=V5, will=w.Will(topic="t", properties=properties)), V5)


def test_every_packet_refuses_every_property_that_it_may_not_carry() -> None:
    refused = 0
    for kind in WITH_PROPERTIES:
        for rule in PROPERTY_RULES.values():
            if kind in rule.packets:
                continue
            value = extremes_of(rule)[-1] if rule.kind is not PropertyKind.BINARY else b"x"
            frame = w.encode(_bare(kind, msgspec.convert(single(rule, value), w.Properties)), V5)
            with pytest.raises(ProtocolError):
                broker_decode(frame, V5)
            with pytest.raises(w.MalformedPacketError):
                w.decode_packet(frame, V5)
            refused += 1
    assert refused == len(WITH_PROPERTIES) * len(PROPERTY_RULES) - sum(len(rules_of(kind)) for kind in WITH_PROPERTIES)


def test_values_below_and_above_what_a_property_may_say_are_refused_by_both() -> None:
    """But for topic alias 0, which has a reason code of its own (0x94): the broker refuses it when it acts on it."""
    tried = 0
    for rule in PROPERTY_RULES.values():
        if rule.kind not in _HIGHEST:
            continue
        kind = next(iter(sorted(rule.packets)), None)
        lowest, highest = bounds_of(rule)
        for value in (value for value in (lowest - 1, highest + 1) if 0 <= value <= _HIGHEST[rule.kind]):
            properties = msgspec.convert(single(rule, value), w.Properties)
            if kind is None:
                packet: w.Packet = w.Connect(version=V5, will=w.Will(topic="t", properties=properties))
            else:
                packet = _bare(kind, properties)
            frame = w.encode(packet, V5)
            with pytest.raises(w.MalformedPacketError):
                w.decode_packet(frame, V5)
            assert _reads(broker_decode, frame) == (rule.name == "topic_alias")
            tried += 1
    assert tried == 12, "eight flags have no 2, four numbers no 0"


CHECKED_BY_THE_BROKER = (T.PUBACK, T.PUBREC, T.PUBREL, T.PUBCOMP, T.DISCONNECT, T.AUTH)
"""Packets with a reason code that clients send; what only servers send the broker never reads."""
IN_ONE_TABLE_ONLY = {(T.DISCONNECT, 0x8C)}
"""5.0 lists "bad authentication method" for DISCONNECT in table 2-6, but not in table 3-10. The suite bears it."""


@pytest.mark.parametrize("kind", sorted(CODES), ids=lambda kind: kind.name)
def test_every_reason_code_is_legal_in_the_same_packets_for_both(kind: w.PacketType) -> None:
    for code in range(256):
        frame = _frame_with_code(kind, code)
        legal = code in CODES[kind]
        if (kind, code) not in IN_ONE_TABLE_ONLY:
            assert _reads(w.decode_packet, frame) == legal, hex(code)
        if kind in CHECKED_BY_THE_BROKER:
            assert _reads(broker_decode, frame) == legal, hex(code)


def _frame_with_code(kind: w.PacketType, code: int) -> bytes:
    identifier = b"" if kind in (T.CONNACK, T.DISCONNECT, T.AUTH) else b"\0\1"
    flags = b"\0" if kind is T.CONNACK else b""
    no_properties = b"\0" if kind in (T.CONNACK, T.SUBACK, T.UNSUBACK) else b""
    body = identifier + flags + (no_properties + bytes((code,)) if identifier and no_properties else bytes((code,)))
    if kind is T.CONNACK:
        body += no_properties
    return raw_packet(kind << 4 | (2 if kind is T.PUBREL else 0), body)


def _reads(decode: Callable[[bytes, int], object], frame: bytes, version: int = V5) -> bool:
    try:
        decode(frame, version)
    except (ProtocolError, w.MalformedPacketError):
        return False
    return True


def test_the_largest_packet_that_exists_is_written_alike_and_one_byte_more_is_not() -> None:
    payload = bytes(268_435_455 - 3)
    ours = encode_packet(p.Publish(topic="t", payload=payload), V311)
    assert ours == w.encode(w.Publish(topic="t", payload=payload), V311)
    assert w.frame_length(ours) == len(ours)
    with pytest.raises(ValueError, match="268435455"):
        encode_packet(p.Publish(topic="t", payload=payload), V5)
    with pytest.raises(w.EncodeError):
        w.encode(w.Publish(topic="t", payload=payload), V5)


# -- damaged bytes ---------------------------------------------------------------------------------------------------


@st.composite
def damaged_frames(draw: st.DrawFn) -> tuple[int, bytes]:
    """A packet with bytes flipped, cut, inserted or repeated, then framed again."""
    version = draw(st.sampled_from(VERSIONS))
    frame = w.encode(draw(packets(version).filter(_is_small)), version)
    start = len(frame) - Reader(frame, 1, len(frame), version).variable_integer()
    header, body = frame[0], bytearray(frame[start:])
    for _ in range(draw(st.integers(1, 3))):
        at = draw(st.integers(0, len(body)))
        match draw(st.sampled_from(("flip", "set", "cut", "drop", "insert", "repeat", "header"))):
            case "flip" if at < len(body):
                body[at] ^= 1 << draw(st.integers(0, 7))
            case "set" if at < len(body):
                body[at] = draw(st.sampled_from((0, 1, 2, 0x7F, 0x80, 0xFF)))
            case "cut":
                del body[at:]
            case "drop":
                del body[at : at + draw(st.integers(1, 4))]
            case "insert":
                body[at:at] = draw(st.binary(min_size=1, max_size=8))
            case "repeat":
                body[at:at] = body[: draw(st.integers(1, 16))]
            case "header":
                header = draw(st.integers(0x10, 0xFF))
    return version, bytes((header,)) + encode_variable_integer(len(body)) + bytes(body)


def _is_small(packet: w.Packet) -> bool:
    return len(msgspec.json.encode(packet)) < 3_000


def _stricter_suite(packet: p.Packet, version: int) -> bool:
    """Whether the suite may refuse what the broker's decoder reads.

    The broker looks at topics and aliases, and at the method that authentication data needs, when it acts on the
    packet; and what only servers send (CONNACK, SUBACK, UNSUBACK) it refuses as such whatever is in it.
    """
    match packet:
        case p.Connack() | p.Suback() | p.Unsuback():
            return True
        case p.Publish() if not packet.topic or {"+", "#"} & set(packet.topic) or packet.properties.topic_alias == 0:
            return True
        case p.Connect() | p.Auth():
            properties = packet.properties
            return properties.authentication_data is not None and properties.authentication_method is None
    return False


def _stricter_broker(packet: w.Packet, frame: bytes, version: int) -> bool:
    """Whether the broker's decoder may refuse what the suite reads."""
    match packet:
        case w.Connect() if packet.protocol_name != "MQTT":
            return True
        case w.Connect() if packet.version != V5 and packet.username is None and packet.password is not None:
            return True
        case w.Disconnect() if packet.reason_code == 0x8C:
            return True
    return frame.count(b"\x26") > MAX_PROPERTIES


@settings(deadline=None, max_examples=800)
@given(damaged_frames())
def test_damaged_packets_are_refused_by_both_or_read_alike(case: tuple[int, bytes]) -> None:
    """And nothing but the error of the codec ever escapes."""
    version, frame = case
    ours: p.Packet | None = None
    theirs: w.Packet | None = None
    try:
        ours = broker_decode(frame, version)
    except ProtocolError as error:
        assert error.statement.startswith("MQTT-")
        assert error.reason >= 0x80
    with contextlib.suppress(w.MalformedPacketError):
        theirs = w.decode_packet(frame, version)
    if ours is not None and theirs is not None:
        assert as_broker(theirs) == ours
    elif ours is not None:
        assert _stricter_suite(ours, version), ours
    elif theirs is not None:
        assert _stricter_broker(theirs, frame, version), theirs


@settings(deadline=None, max_examples=1_000)
@given(st.sampled_from(VERSIONS), st.integers(0, 255), st.binary(max_size=400))
def test_any_bytes_raise_nothing_but_the_codecs_own_errors(version: int, header: int, body: bytes) -> None:
    frame = bytes((header,)) + encode_variable_integer(len(body)) + body
    assert _reads(broker_decode, frame, version) in (True, False)
    assert _reads(w.decode_packet, frame, version) in (True, False)
    # Unframed, too: the length in the bytes is then a lie.
    decoder = w.Decoder(version)
    with contextlib.suppress(w.MalformedPacketError):
        decoder.feed(bytes((header,)) + body)


# -- the broker's PUBLISH encoder and messages -----------------------------------------------------------------------

MESSAGES = st.builds(
    Message,
    topic=TOPIC,
    payload=PAYLOAD,
    qos=st.integers(0, 2),
    expires_at=st.just(0.0) | st.integers(0, 2**32 + 5).map(lambda left: NOW + left),
    payload_format=st.none() | st.integers(0, 1),
    content_type=st.none() | TEXT,
    response_topic=st.none() | TOPIC,
    correlation_data=st.none() | BINARY,
    user_properties=st.lists(st.tuples(TEXT, TEXT), max_size=3).map(tuple),
)


@settings(deadline=None, max_examples=200)
@given(
    MESSAGES,
    st.sampled_from(VERSIONS),
    st.lists(st.integers(1, 268_435_455), max_size=4).map(tuple),
    st.booleans(),
    st.booleans(),
    IDS,
)
def test_deliveries_read_as_the_message_they_carry(
    message: Message, version: int, identifiers: tuple[int, ...], retain: bool, dup: bool, packet_id: int
) -> None:
    qos = message.qos
    packet_id, dup = (packet_id, dup) if qos else (0, False)
    header = 0x30 | dup << 3 | qos << 1 | retain
    encoder = PublishEncoder(version)
    frame = encoder.encode(packet_id, message, header, identifiers, NOW)
    assert encoder.encode(packet_id, message, header, identifiers, NOW) == frame, "the second time from memory"
    expected = w.Publish(
        topic=message.topic, payload=message.payload, qos=qos, packet_id=packet_id, retain=retain, dup=dup
    )
    if version == V5:
        left = min(int(message.expires_at - NOW), 0xFFFFFFFF) if message.expires_at else None
        properties = w.Properties(
            payload_format_indicator=message.payload_format,
            message_expiry_interval=left,
            content_type=message.content_type,
            response_topic=message.response_topic,
            correlation_data=message.correlation_data,
            subscription_identifier=identifiers,
            user_property=message.user_properties,
        )
        expected = msgspec.structs.replace(expected, properties=properties)
    assert w.decode_packet(frame, version) == expected


@settings(deadline=None, max_examples=200)
@given(publishes(V5))
def test_what_a_publish_says_reaches_the_next_client_unchanged(packet: w.Publish) -> None:
    """PUBLISH -> message -> PUBLISH keeps all that 5.0 says must be kept (3.3.2.3), and drops the topic alias."""
    received = as_broker(packet)
    assert isinstance(received, p.Publish)
    message = message_from(
        packet.topic or "was/an/alias", received.payload, received.qos, False, received.properties, "c", NOW
    )
    sent = w.decode_packet(PublishEncoder(V5).encode(7, message, 0x32, (), NOW), V5)
    assert isinstance(sent, w.Publish)
    assert sent.payload == packet.payload
    kept = msgspec.structs.replace(packet.properties, topic_alias=None, subscription_identifier=())
    assert sent.properties == kept

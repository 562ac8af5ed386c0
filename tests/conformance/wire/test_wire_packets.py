"""The bench's packets: what is encoded reads back the same, however the bytes are cut, and nothing illegal is read."""

from __future__ import annotations

import sys
from subprocess import run

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.conformance.wire import (
    NO_PROPERTIES,
    Auth,
    Connack,
    Connect,
    Decoder,
    Disconnect,
    EncodeError,
    MalformedPacketError,
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
    Will,
    decode_packet,
    describe,
    encode,
    frame_length,
)
from assay.conformance.wire.decode import _CODES_5
from assay.conformance.wire.encode import binary, raw_packet, string, uint16, varint
from assay.conformance.wire.packets import PROPERTY_RULES, PacketType, PropertyKind, PropertyRule

texts = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=30)
topics = st.text(st.characters(codec="utf-8", exclude_characters="\0+#"), min_size=1, max_size=30)
packet_ids = st.integers(1, 65_535)
payloads = st.binary(max_size=300)


def property_values(rule: PropertyRule) -> st.SearchStrategy[object]:
    highest = {PropertyKind.BYTE: 255, PropertyKind.TWO_BYTES: 65_535, PropertyKind.FOUR_BYTES: 2**32 - 1}
    match rule.kind:
        case PropertyKind.STRING:
            return texts
        case PropertyKind.BINARY:
            return st.binary(max_size=20)
        case PropertyKind.STRING_PAIR:
            return st.tuples(texts, texts)
    return st.integers(rule.lowest, rule.highest or highest.get(rule.kind, 268_435_455))


@st.composite
def properties_of(draw: st.DrawFn, packet_type: PacketType, *, in_will: bool = False) -> Properties:
    rules = [rule for rule in PROPERTY_RULES.values() if (rule.in_will if in_will else packet_type in rule.packets)]
    found: dict[str, object] = {}
    for rule in draw(st.lists(st.sampled_from(rules), unique_by=lambda rule: rule.name, max_size=4)) if rules else []:
        if rule.many:
            most = 1 if packet_type is PacketType.SUBSCRIBE and rule.name == "subscription_identifier" else 3
            found[rule.name] = tuple(draw(st.lists(property_values(rule), min_size=1, max_size=most)))
        else:
            found[rule.name] = draw(property_values(rule))
    if "authentication_data" in found:
        found.setdefault("authentication_method", draw(texts))
    return msgspec.convert(found, Properties)


@st.composite
def connects(draw: st.DrawFn, version: int) -> Connect:
    five = version == 5
    will = None
    if draw(st.booleans()):
        will = Will(
            topic=draw(topics),
            payload=draw(payloads),
            qos=draw(st.integers(0, 2)),
            retain=draw(st.booleans()),
            properties=draw(properties_of(PacketType.PUBLISH, in_will=True)) if five else NO_PROPERTIES,
        )
    return Connect(
        client_id=draw(texts),
        version=version,
        clean=draw(st.booleans()),
        keep_alive_s=draw(st.integers(0, 65_535)),
        will=will,
        username=draw(st.none() | texts),
        password=draw(st.none() | st.binary(max_size=20)),
        properties=draw(properties_of(PacketType.CONNECT)) if five else NO_PROPERTIES,
    )


@st.composite
def publishes(draw: st.DrawFn, version: int) -> Publish:
    qos = draw(st.integers(0, 2))
    return Publish(
        topic=draw(topics),
        payload=draw(payloads),
        qos=qos,
        packet_id=draw(packet_ids) if qos else 0,
        retain=draw(st.booleans()),
        dup=draw(st.booleans()) if qos else False,
        properties=draw(properties_of(PacketType.PUBLISH)) if version == 5 else NO_PROPERTIES,
    )


@st.composite
def answers(draw: st.DrawFn, version: int) -> Packet:
    """Every other packet of the version."""
    five = version == 5
    kinds: list[type[Packet]] = [Connack, Puback, Pubrec, Pubrel, Pubcomp, Subscribe, Suback, Unsubscribe, Unsuback]
    kinds += [Pingreq, Pingresp, Disconnect]
    chosen: st.SearchStrategy[type[Packet]] = st.sampled_from([*kinds, Auth] if five else kinds)
    kind = draw(chosen)
    properties = draw(properties_of(kind.type)) if five else NO_PROPERTIES
    code = draw(st.sampled_from(sorted(_CODES_5[kind.type]))) if five and kind.type in _CODES_5 else 0
    packet_id = draw(packet_ids)
    if kind is Connack:
        present = draw(st.booleans()) and code == 0
        return Connack(session_present=present, reason_code=code, properties=properties)
    if kind is Subscribe:
        options = {"no_local": draw(st.booleans()), "retain_as_published": draw(st.booleans())} if five else {}
        handling = draw(st.integers(0, 2)) if five else 0
        entry = Subscription(filter=draw(texts), qos=draw(st.integers(0, 2)), retain_handling=handling, **options)
        return Subscribe(packet_id=packet_id, subscriptions=(entry,) * draw(st.integers(1, 3)), properties=properties)
    if kind is Unsubscribe:
        filters = tuple(draw(st.lists(texts, min_size=1, max_size=3)))
        return Unsubscribe(packet_id=packet_id, filters=filters, properties=properties)
    if kind is Suback:
        return Suback(packet_id=packet_id, reason_codes=(0, code), properties=properties)
    if kind is Unsuback:
        return Unsuback(packet_id=packet_id, reason_codes=(code,) if five else (), properties=properties)
    if kind in (Pingreq, Pingresp):
        return kind()
    fields: dict[str, object] = {"reason_code": code, "properties": properties}
    if kind not in (Disconnect, Auth):
        fields["packet_id"] = packet_id
    return msgspec.convert(fields, type=kind)


def packets(version: int) -> st.SearchStrategy[Packet]:
    return st.one_of(connects(version), publishes(version), answers(version))


streams = st.sampled_from((4, 5)).flatmap(
    lambda version: st.tuples(st.just(version), st.lists(packets(version), min_size=1, max_size=4))
)


@settings(deadline=None, max_examples=50)
@given(streams)
def test_packets_read_back_as_written(stream: tuple[int, list[Packet]]) -> None:
    version, sent = stream
    assert Decoder(version).feed(b"".join(encode(packet, version) for packet in sent)) == sent


@settings(deadline=None, max_examples=50)
@given(streams)
def test_it_does_not_matter_where_a_stream_is_cut(stream: tuple[int, list[Packet]]) -> None:
    version, sent = stream
    data = b"".join(encode(packet, version) for packet in sent)
    for cut in range(len(data) + 1):
        decoder = Decoder(version)
        assert decoder.feed(data[:cut]) + decoder.feed(data[cut:]) == sent
        assert decoder.pending == b""
    one_by_one = Decoder(version)
    assert [packet for value in data for packet in one_by_one.feed(bytes((value,)))] == sent


@settings(deadline=None, max_examples=50)
@given(streams)
def test_a_packet_that_ends_early_is_incomplete_or_malformed_never_another_packet(
    stream: tuple[int, list[Packet]],
) -> None:
    version, sent = stream
    frame = encode(sent[0], version)
    for cut in range(len(frame)):
        assert Decoder(version).feed(frame[:cut]) == []


@settings(deadline=None, max_examples=50)
@given(st.binary(max_size=60), st.sampled_from((4, 5)))
def test_any_bytes_are_read_or_refused(data: bytes, version: int) -> None:
    """No other exception, and what is read can be written again and read back the same."""
    try:
        found = Decoder(version).feed(data)
    except MalformedPacketError as error:
        found = list(error.packets_before)
    for packet in found:
        spoken = packet.version if isinstance(packet, Connect) else version
        assert decode_packet(encode(packet, spoken), version) == packet


@settings(deadline=None, max_examples=50)
@given(st.integers(0, 268_435_455))
def test_variable_byte_integers_are_shortest_and_read_back(value: int) -> None:
    data = varint(value)
    assert len(data) == 1 + (value > 127) + (value > 16_383) + (value > 2_097_151)
    assert frame_length(b"\x30" + data) == 1 + len(data) + value


TOPIC = string("a")
MALFORMED_311 = {
    "type 0": b"\x00\x00",
    "type 15": b"\xf0\x00",
    "ping with flags": b"\xd1\x00",
    "ping with a body": b"\xd0\x01\x00",
    "suback with flags": raw_packet(0x91, uint16(1) + b"\0"),
    "suback code 3": raw_packet(0x90, uint16(1) + b"\3"),
    "suback without code": raw_packet(0x90, uint16(1)),
    "connack code 6": b"\x20\x02\x00\x06",
    "connack reserved flags": b"\x20\x02\x02\x00",
    "refusal with a session": b"\x20\x02\x01\x02",
    "connack of three bytes": b"\x20\x03\x00\x00\x00",
    "publish qos 3": raw_packet(0x36, TOPIC + uint16(1)),
    "publish dup at qos 0": raw_packet(0x38, TOPIC),
    "publish identifier 0": raw_packet(0x32, TOPIC + uint16(0)),
    "publish empty topic": raw_packet(0x30, string("")),
    "publish wildcard": raw_packet(0x30, string("a/+")),
    "publish surrogate": raw_packet(0x30, binary(b"\xed\xa0\x80")),
    "publish null": raw_packet(0x30, binary(b"a\0")),
    "publish topic too long": raw_packet(0x30, uint16(9) + b"abc"),
    "puback of three bytes": raw_packet(0x40, uint16(1) + b"\0"),
    "pubrel flags": raw_packet(0x60, uint16(1)),
    "length of five bytes": b"\x30\xff\xff\xff\xff\x01",
    "length longer than needed": b"\xd0\x80\x00",
    "unsuback with a code": raw_packet(0xB0, uint16(1) + b"\0"),
}


@pytest.mark.parametrize("data", MALFORMED_311.values(), ids=MALFORMED_311.keys())
def test_malformed_packets_of_311_are_refused(data: bytes) -> None:
    with pytest.raises(MalformedPacketError):
        Decoder(4).feed(data)


MALFORMED_5 = {
    "puback code of another packet": raw_packet(0x40, uint16(1) + b"\x92"),
    "disconnect code of puback": b"\xe0\x01\x91",
    "unknown property": raw_packet(0x30, TOPIC + b"\x02\x7f\x00"),
    "property of another packet": raw_packet(0x30, TOPIC + b"\x02\x25\x01"),
    "property twice": raw_packet(0x30, TOPIC + b"\x04\x01\x01\x01\x01"),
    "payload format 2": raw_packet(0x30, TOPIC + b"\x02\x01\x02"),
    "topic alias 0": raw_packet(0x30, TOPIC + b"\x03\x23\x00\x00"),
    "subscription identifier 0": raw_packet(0x30, TOPIC + b"\x02\x0b\x00"),
    "properties beyond the packet": raw_packet(0x30, TOPIC + b"\x09\x01\x01"),
    "property value beyond the properties": raw_packet(0x30, TOPIC + b"\x02\x02\x00\x00\x00\x01"),
    "receive maximum 0": raw_packet(0x20, b"\0\0\x03\x21\0\0"),
    "maximum qos 2": raw_packet(0x20, b"\0\0\x02\x24\x02"),
    "connack without properties": b"\x20\x02\x00\x00",
    "suback without properties": raw_packet(0x90, uint16(1)),
    "data without method": raw_packet(0xF0, b"\x18\x04\x16" + binary(b"x")),
    "empty topic without alias": raw_packet(0x30, string("") + b"\0"),
}


@pytest.mark.parametrize("data", MALFORMED_5.values(), ids=MALFORMED_5.keys())
def test_malformed_packets_of_5_are_refused(data: bytes) -> None:
    with pytest.raises(MalformedPacketError):
        Decoder(5).feed(data)


def test_good_packets_before_a_malformed_one_are_not_lost() -> None:
    with pytest.raises(MalformedPacketError) as caught:
        Decoder(4).feed(encode(Pingresp(), 4) + encode(Puback(packet_id=3), 4) + b"\x00\x00")
    assert caught.value.packets_before == (Pingresp(), Puback(packet_id=3))


def test_a_packet_over_the_limit_is_refused_before_it_has_arrived() -> None:
    decoder = Decoder(4, max_packet_bytes=100)
    assert decoder.feed(encode(Publish(topic="a", payload=b"x" * 90), 4))
    with pytest.raises(MalformedPacketError, match="200"):
        decoder.feed(encode(Publish(topic="a", payload=b"x" * 194), 4)[:10])


@pytest.mark.parametrize(
    "packet",
    [
        Publish(topic="x" * 65_536),
        Puback(packet_id=1, properties=Properties(user_property=(("k", "v" * 70_000),))),
        Connack(properties=Properties(maximum_qos=300)),
        Suback(packet_id=70_000, reason_codes=(0,)),
    ],
)
def test_what_no_bytes_exist_for_is_an_error(packet: Packet) -> None:
    with pytest.raises(EncodeError):
        encode(packet, 5)


def test_illegal_values_that_fit_are_written_as_asked() -> None:
    assert encode(Publish(topic="a/#", qos=1, packet_id=0), 4) == raw_packet(0x32, string("a/#") + uint16(0))
    assert varint(5, width=4) == b"\x85\x80\x80\x00"


def test_descriptions_name_the_packet_and_what_is_not_default() -> None:
    text = describe(Publish(topic="a", payload=b"x" * 100, qos=1, packet_id=7))
    assert text.startswith("PUBLISH topic='a'")
    assert "(100 bytes)" in text
    assert "packet_id=7" in text
    assert "retain" not in text
    assert describe(Pingreq()) == "PINGREQ"


def test_the_packets_are_independent_of_the_reference_broker() -> None:
    """A suite that shared the codec of the broker it judges would share its mistakes."""
    code = "import assay.conformance.wire, sys; print([name for name in sys.modules if 'reference_broker' in name])"
    done = run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"

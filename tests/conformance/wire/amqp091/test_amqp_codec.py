"""AMQP 0.9.1 bytes: the tables are the specification's, values and frames come back, damage is noticed and named."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.conformance.wire.amqp091 import (
    CLASSES,
    CONSTANTS,
    FRAME_END,
    FRAME_MIN_BYTES,
    HEARTBEAT,
    METHODS,
    PROPERTIES,
    PROTOCOL_HEADER,
    Arrival,
    Assembler,
    Frame,
    FrameReader,
    FrameType,
    Heartbeat,
    MalformedFrameError,
    Method,
    ProtocolHeader,
    Typed,
    ValueDecodeError,
    decode_frame_payload,
    decode_table,
    describe,
    describe_bytes,
    encode_body,
    encode_content,
    encode_frame,
    encode_header,
    encode_method,
    encode_table,
    is_hard_error,
)
from assay.conformance.wire.amqp091.codec import ContentHeader, decode_header

SPECIFICATION = Path(__file__).with_name("amqp0-9-1.stripped.extended.xml")
"""Of the AMQP Working Group, with RabbitMQ's extensions; its licence is at its head."""
ROOT = ElementTree.parse(SPECIFICATION).getroot()
DOMAINS = {domain.get("name"): domain.get("type") for domain in ROOT.iter("domain")}
RECOVER = ("basic.recover",)
"""Its reply is not written down there, though it has had one since 0-9-1."""


def _kind(field: ElementTree.Element) -> str:
    return str(field.get("type") or DOMAINS[field.get("domain")])


# The tables


def test_the_methods_are_those_of_the_specification() -> None:
    found: dict[str, Any] = {}
    for group in ROOT.iter("class"):
        for method in group.iter("method"):
            name = f"{group.get('name')}.{method.get('name')}"
            fields = tuple((str(field.get("name")), _kind(field)) for field in method.iter("field"))
            replies = {f"{group.get('name')}.{reply.get('name')}" for reply in method.iter("response")}
            found[name] = (int(group.get("index", 0)), int(method.get("index", 0)), fields, bool(method.get("content")))
            if name not in RECOVER:
                assert set(METHODS[name].replies) == replies, name
    ours = {spec.name: (spec.class_id, spec.method_id, spec.fields, spec.content) for spec in METHODS.values()}
    assert ours == found


def test_classes_properties_and_codes_are_those_of_the_specification() -> None:
    assert {str(group.get("name")): int(group.get("index", 0)) for group in ROOT.iter("class")} == dict(CLASSES)
    basic = next(group for group in ROOT.iter("class") if group.get("name") == "basic")
    assert [(str(field.get("name")), _kind(field)) for field in basic.findall("field")] == list(PROPERTIES.items())
    constants = {int(entry.get("value", 0)): entry for entry in ROOT.iter("constant")}
    codes = {
        value: str(entry.get("name"))
        for value, entry in constants.items()
        if 200 <= value < 1_000 and value != FRAME_END
    }
    assert codes == dict(CONSTANTS)
    for code in codes:
        assert is_hard_error(code) is (constants[code].get("class") == "hard-error"), code
    names = {str(entry.get("name")): value for value, entry in constants.items()}
    assert names["frame-end"] == FRAME_END
    assert names["frame-min-size"] == FRAME_MIN_BYTES
    assert {names[f"frame-{kind.name.lower()}"] for kind in FrameType} == set(FrameType)


# There and back

_names = st.text(st.characters(codec="ascii", categories=("L", "N")), max_size=20)
_texts = st.text(max_size=30)
_leaves: st.SearchStrategy[Any] = st.one_of(
    st.booleans(),
    st.integers(-(2**63), 2**63 - 1),
    st.floats(allow_nan=False),
    _texts,
    st.none(),
    st.builds(Typed, st.just("b"), st.integers(-128, 127)),
    st.builds(Typed, st.just("B"), st.integers(0, 255)),
    st.builds(Typed, st.just("s"), st.integers(-(2**15), 2**15 - 1)),
    st.builds(Typed, st.just("u"), st.integers(0, 2**16 - 1)),
    st.builds(Typed, st.just("i"), st.integers(0, 2**32 - 1)),
    st.builds(Typed, st.just("f"), st.floats(width=32, allow_nan=False)),
    st.builds(Typed, st.just("D"), st.tuples(st.integers(0, 255), st.integers(-(2**31), 2**31 - 1))),
    st.builds(Typed, st.just("T"), st.integers(0, 2**64 - 1)),
    st.builds(Typed, st.just("x"), st.binary(max_size=20)),
)
_values = st.recursive(
    _leaves, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(_names, inner, max_size=4), max_leaves=12
)
_tables = st.dictionaries(_names, _values, max_size=5)
_BY_KIND: dict[str, st.SearchStrategy[Any]] = {
    "bit": st.booleans(),
    "octet": st.integers(0, 255),
    "short": st.integers(0, 2**16 - 1),
    "long": st.integers(0, 2**32 - 1),
    "longlong": st.integers(0, 2**64 - 1),
    "timestamp": st.integers(0, 2**64 - 1),
    "shortstr": st.text(max_size=60),
    "longstr": st.binary(max_size=60),
    "table": _tables,
}


@st.composite
def _methods(draw: st.DrawFn) -> Method:
    method = Method(draw(st.sampled_from(sorted(METHODS))))
    for name, kind in method.spec.fields:
        method.values[name] = draw(_BY_KIND[kind])
    return method


@st.composite
def _properties(draw: st.DrawFn) -> dict[str, Any]:
    names = draw(st.lists(st.sampled_from(sorted(PROPERTIES)), unique=True))
    return {name: draw(_BY_KIND[PROPERTIES[name]]) for name in names}


@settings(max_examples=40, deadline=None)
@given(_tables)
def test_a_table_comes_back(table: dict[str, Any]) -> None:
    data = encode_table(table)
    assert decode_table(data) == table
    assert encode_table(decode_table(data, exact=True)) == data, "with the letters that it had"


@settings(max_examples=40, deadline=None)
@given(_methods(), st.integers(0, 2**16 - 1))
def test_a_method_comes_back(method: Method, channel: int) -> None:
    (frame,) = FrameReader().feed(encode_method(channel, method))
    assert isinstance(frame, Frame)
    assert (frame.channel, decode_frame_payload(frame)) == (channel, method)
    assert describe(frame).startswith(f"ch {channel}: {method.name}")


@settings(max_examples=40, deadline=None)
@given(_properties(), st.integers(0, 2**64 - 1))
def test_a_content_header_comes_back(properties: dict[str, Any], size: int) -> None:
    (frame,) = FrameReader().feed(encode_header(3, size, properties))
    assert isinstance(frame, Frame)
    assert decode_frame_payload(frame) == ContentHeader(body_bytes=size, properties=properties)


@settings(max_examples=40, deadline=None)
@given(_properties(), st.binary(max_size=300), st.integers(1, 50), st.data())
def test_content_is_whole_however_the_stream_is_cut(
    properties: dict[str, Any], body: bytes, part: int, data: st.DataObject
) -> None:
    method = Method("basic.deliver", consumer_tag="c", delivery_tag=7, exchange="x", routing_key="k")
    stream = encode_content(5, method, body, properties, part_bytes=part) + encode_frame(FrameType.HEARTBEAT, 0)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=8)))
    assembler, events = Assembler(), []
    for start, end in zip((0, *cuts), (*cuts, len(stream)), strict=True):
        events += assembler.feed(stream[start:end])
    arrival, heartbeat = events
    assert isinstance(arrival, Arrival)
    assert (arrival.channel, arrival.method, arrival.properties, arrival.body) == (5, method, properties, body)
    assert arrival.tag == 7
    assert heartbeat == Heartbeat()


@settings(max_examples=40, deadline=None)
@given(st.binary(max_size=200))
def test_nothing_but_frames_is_taken_for_frames(data: bytes) -> None:
    """Whatever comes is events, or a fault with a name, or not whole."""
    try:
        Assembler().feed(data)
    except MalformedFrameError as error:
        assert str(error)
    assert describe_bytes(data)


@settings(max_examples=40, deadline=None)
@given(_methods(), st.data())
def test_a_method_that_is_cut_is_noticed(method: Method, data: st.DataObject) -> None:
    (frame,) = FrameReader().feed(encode_method(1, method))
    assert isinstance(frame, Frame)
    if len(frame.payload) > 4:
        cut = Frame(1, 1, frame.payload[: data.draw(st.integers(0, len(frame.payload) - 1))])
        with pytest.raises(MalformedFrameError):
            decode_frame_payload(cut)
    with pytest.raises(MalformedFrameError, match="behind its last field"):
        decode_frame_payload(Frame(1, 1, frame.payload + b"\0"))


# Bytes that people know


def test_what_a_client_sends_first_is_what_the_standard_shows() -> None:
    assert PROTOCOL_HEADER == b"AMQP\x00\x00\x09\x01"
    assert encode_frame(HEARTBEAT.type, HEARTBEAT.channel) == bytes.fromhex("08 0000 00000000 ce")
    declare = Method("queue.declare", queue="q", durable=True, auto_delete=True, arguments={"x-max-length": 5})
    # class, method, reserved, "q", bits 0b01010, table of one 32-bit integer
    payload = "0032 000a 0000 01 71 0a 00000012 0c 782d6d61782d6c656e677468 49 00000005"
    assert encode_method(1, declare) == bytes.fromhex(f"01 0001 0000001f {payload} ce")
    assert encode_header(1, 2, {"delivery_mode": 2, "type_": "t"}) == bytes.fromhex(
        "02 0001 00000011 003c 0000 0000000000000002 1020 02 01 74 ce"
    )


def test_letters_are_those_in_use_and_not_those_of_the_grammar() -> None:
    assert encode_table({"a": Typed("s", -2)}) == b"\0\0\0\x05\x01as\xff\xfe"
    assert encode_table({"a": 2**40}) == b"\0\0\0\x0b\x01al" + (2**40).to_bytes(8, "big")
    assert encode_table({"a": "é"}) == b"\0\0\0\x09\x01aS\0\0\0\x02\xc3\xa9"
    assert encode_table({"a": Typed("U", b"12")}) == b"\0\0\0\x05\x01aU12", "letters that nobody knows can be sent"


@pytest.mark.parametrize(
    ("data", "fault"),
    [
        (b"\0\0\0\x09\x01aI\0", "ends in the middle"),
        (b"\0\0\0\x03\x01a?", "unknown type '\\?'"),
        (b"\0\0\0\x03\x09ab", "ends in the middle"),
        (b"\0\0\0\x00x", "1 bytes behind"),
        (b"\0\0\0\x0a\x01aA\0\0\0\x09\0\0\0", "ends in the middle"),
        (encode_table({"a": [[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[1]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]}), "in each other"),
    ],
)
def test_a_damaged_table_is_refused(data: bytes, fault: str) -> None:
    with pytest.raises(ValueDecodeError, match=fault):
        decode_table(data)


_DELIVER = Method("basic.deliver", consumer_tag="c", delivery_tag=1)


@pytest.mark.parametrize(
    ("stream", "fault"),
    [
        (encode_frame(4, 0), "frame type 4"),
        (encode_frame(8, 0, end=0xCD), "0xcd in place of 0xce"),
        (encode_frame(1, 0, b"", size=2**31), "announced"),
        (encode_frame(8, 1), "heartbeat on channel 1"),
        (encode_frame(8, 0, b"x"), "heartbeat on channel 0 with 1 bytes"),
        (encode_method(1, Method("connection.tune")), "connection.tune on channel 1"),
        (encode_method(0, Method("channel.open-ok")), "channel.open-ok on channel 0"),
        (encode_frame(1, 1, b"\0\x4d\0\x01"), "class 77, method 1"),
        (encode_body(1, b"x"), "without a method"),
        (encode_header(1, 0), "without a method"),
        (encode_method(1, _DELIVER) + encode_method(1, _DELIVER), "in the middle of the content"),
        (encode_method(1, _DELIVER) + encode_body(1, b"x"), "before its content header"),
        (encode_method(1, _DELIVER) + encode_header(1, 1, weight=7), "weight 7"),
        (encode_method(1, _DELIVER) + encode_header(1, 1, class_id=50), "class 50"),
        (encode_method(1, _DELIVER) + encode_header(1, 1) * 2, "second content header"),
        (encode_method(1, _DELIVER) + encode_header(1, 1) + encode_body(1, b"xy"), "2 bytes of a body of 1"),
        (encode_method(1, _DELIVER) + encode_header(1, 1, b"\0\x02"), "property 14"),
        (encode_method(1, _DELIVER) + encode_header(1, 1, b"\x80\0\x09"), "cannot be read"),
        (encode_method(1, _DELIVER) + encode_header(1, 1, b"\0\0\0"), "1 bytes behind the properties"),
    ],
)
def test_what_a_server_may_not_send_is_named(stream: bytes, fault: str) -> None:
    with pytest.raises(MalformedFrameError, match=fault):
        Assembler().feed(stream)


def test_contents_of_other_channels_may_come_in_between() -> None:
    first, second = (encode_content(channel, _DELIVER, b"ab", part_bytes=1) for channel in (1, 2))
    frames = [list(FrameReader().feed(stream)) for stream in (first, second)]
    assembler = Assembler()
    events = [assembler.take(frame) for pair in zip(*frames, strict=True) for frame in pair]
    assert [event.channel for event in events if isinstance(event, Arrival)] == [1, 2]


def test_a_protocol_header_may_only_come_first() -> None:
    assert Assembler().feed(b"AMQP\x00\x00\x09\x01") == [ProtocolHeader(PROTOCOL_HEADER)]
    with pytest.raises(MalformedFrameError, match="frame type 65"):
        Assembler().feed(encode_frame(8, 0) + b"AMQP\x00\x00\x09\x01")


def test_flags_go_on_in_a_second_word() -> None:
    data = struct.pack(">HHQ", 60, 0, 0) + b"\x80\x01\x00\x00" + b"\x01t"
    assert decode_header(data).properties == {"content-type": "t"}


def test_unknown_fields_are_a_mistake_of_the_case() -> None:
    with pytest.raises(TypeError, match="no field quue"):
        Method("queue.declare", quue="x")
    with pytest.raises(TypeError, match="no property prio"):
        encode_header(1, 0, {"prio": 1})


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (encode_method(1, Method("queue.declare", queue="q", durable=True)), "ch 1: queue.declare queue='q' durable"),
        (
            encode_method(0, Method("connection.close", reply_code=504, reply_text="no", class_id=20, method_id=10)),
            "ch 0: connection.close 504 channel-error reply-text='no' class-id=20 method-id=10",
        ),
        (encode_header(2, 5, {"priority": 3}), "ch 2: content of 5 bytes priority=3"),
        (encode_header(2, 5, class_id=50, weight=1), "ch 2: content of 5 bytes class 50 weight 1"),
        (encode_body(2, b"hello" * 20), f"ch 2: body {(b'hello' * 8)!r}... (100 bytes)"),
        (encode_frame(8, 0), "heartbeat"),
        (PROTOCOL_HEADER, f"protocol header {PROTOCOL_HEADER!r}"),
        (
            encode_frame(1, 1, b"\0\x4d\0\x01"),
            "ch 1: frame of type 1 that cannot be read: class 77, method 1 is none of",
        ),
        (encode_frame(4, 0), "8 raw bytes (frame type 4 is none of AMQP 0.9.1)"),
        (b"\x08\0", "2 bytes of a frame that is not whole"),
        (b"", "nothing"),
    ],
)
def test_a_transcript_can_be_read(data: bytes, text: str) -> None:
    assert describe_bytes(data).startswith(text)

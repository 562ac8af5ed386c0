"""The table of methods against the XML of the standard (its stripped form, with the notice of its authors)."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.reference_broker.amqp091.wire import content, fields, frames, replies
from assay.reference_broker.amqp091.wire.methods import BY_ID, BY_NAME, Method, decode_method, encode_method
from assay.reference_broker.amqp091.wire.replies import AmqpError, Reply
from assay.reference_broker.routing.properties import MAX_DEPTH, Kind, Typed

XML = ElementTree.parse(Path(__file__).with_name("amqp0-9-1.stripped.extended.xml")).getroot()
DOMAINS = {domain.get("name"): domain.get("type") for domain in XML.findall("domain")}


def type_of(field: ElementTree.Element) -> str:
    named = field.get("domain") or field.get("type") or ""
    return DOMAINS.get(named) or named


def test_every_method_is_that_of_the_standard() -> None:
    found = {}
    for part in XML.findall("class"):
        for method in part.findall("method"):
            ids = int(part.get("index", "")), int(method.get("index", ""))
            arguments = tuple(
                (type_of(field), "" if field.get("reserved") else field.get("name", ""))
                for field in method.findall("field")
            )
            found[ids] = (f"{part.get('name')}.{method.get('name')}", arguments, method.get("content") is not None)
    assert {ids: (each.name, each.arguments, each.has_content) for ids, each in BY_ID.items()} == found


def test_every_reply_code_is_that_of_the_standard() -> None:
    found = {
        int(constant.get("value", "")): constant.get("class")
        for constant in XML.findall("constant")
        if constant.get("class") or constant.get("name") == "reply-success"
    }
    assert {int(code) for code in Reply} == found.keys()
    assert {code for code, level in found.items() if level == "soft-error"} == replies.SOFT


def test_the_properties_are_those_of_class_basic() -> None:
    basic = next(part for part in XML.findall("class") if part.get("name") == "basic")
    found = [(field.get("name"), type_of(field)) for field in basic.findall("field")]
    named = [name.replace("_", "-") for name in content.BasicProperties.__struct_fields__]
    named[named.index("kind")], named[named.index("cluster-id")] = "type", "reserved"
    assert [(name, "longlong" if kind == "timestamp" else kind) for name, kind in found] == list(
        zip(named, content._TYPES, strict=True)
    )


LETTERS = "aäz€ .#\U0001f600"
VALUES: dict[str, st.SearchStrategy[Any]] = {
    "octet": st.integers(0, 255),
    "short": st.integers(0, 65_535),
    "long": st.integers(0, 2**32 - 1),
    "longlong": st.integers(0, 2**64 - 1),
    "bit": st.booleans(),
    "shortstr": st.text(LETTERS, max_size=60),
    "longstr": st.binary(max_size=300),
}


@settings(deadline=None)
@given(st.data())
def test_what_is_written_is_read(data: st.DataObject) -> None:
    method = data.draw(st.sampled_from(sorted(BY_NAME.values(), key=lambda each: each.name)))
    kinds = {**VALUES, "table": TABLES}
    values = [data.draw(kinds[kind]) for kind, name in method.arguments if name]
    payload = encode_method(method, *values)
    assert decode_method(payload) == (method, values)
    cut = data.draw(st.integers(0, len(payload) - 1))
    with pytest.raises(AmqpError):
        decode_method(payload[:cut])


T, K = Typed, Kind
SCALARS = st.one_of(
    st.just(T(K.NULL, None)),
    st.booleans().map(lambda value: T(K.BOOL, value)),
    st.integers(-128, 127).map(lambda value: T(K.I8, value)),
    st.integers(0, 255).map(lambda value: T(K.U8, value)),
    st.integers(-(2**15), 2**15 - 1).map(lambda value: T(K.I16, value)),
    st.integers(0, 2**16 - 1).map(lambda value: T(K.U16, value)),
    st.integers(-(2**31), 2**31 - 1).map(lambda value: T(K.I32, value)),
    st.integers(0, 2**32 - 1).map(lambda value: T(K.U32, value)),
    st.integers(-(2**63), 2**63 - 1).map(lambda value: T(K.I64, value)),
    st.integers(0, 2**64 - 1).map(lambda value: T(K.U64, value)),
    st.floats(allow_nan=False, width=32).map(lambda value: T(K.F32, value)),
    st.floats(allow_nan=False).map(lambda value: T(K.F64, value)),
    st.integers(0, 2**40).map(lambda value: T(K.SECONDS, value)),
    st.text(LETTERS, max_size=20).map(lambda value: T(K.TEXT, value)),
    st.binary(max_size=20).map(lambda value: T(K.BYTES, value)),
    st.tuples(st.integers(0, 255), st.integers(-(2**31), 2**31 - 1)).map(
        lambda pair: T(K.DECIMAL, (T(K.U8, pair[0]), T(K.I32, pair[1])))
    ),
    st.just(T(K.DESCRIBED, (T(K.SYMBOL, "S"), T(K.BYTES, b"\xff\xfe")))),
)
NAMED = st.text(LETTERS, max_size=10)
FIELD_VALUES = st.recursive(
    SCALARS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3).map(lambda values: T(K.LIST, tuple(values))),
        st.lists(st.tuples(NAMED, inner), max_size=3).map(
            lambda pairs: T(K.MAP, tuple(part for name, value in pairs for part in (T(K.TEXT, name), value)))
        ),
    ),
    max_leaves=6,
)
TABLES = st.lists(st.tuples(NAMED, FIELD_VALUES), max_size=4).map(tuple)


@given(FIELD_VALUES)
def test_a_value_keeps_its_kind(value: Typed) -> None:
    raw = fields.value_bytes(value)
    reader = fields.Reader(raw)
    assert reader.value() == value
    reader.finish()


@pytest.mark.parametrize(
    ("value", "letter"),
    [
        (T(K.UUID, bytes(16)), b"S"),
        (T(K.CHAR, "x"), b"S"),
        (T(K.SYMBOL, "x"), b"S"),
        (T(K.MILLISECONDS, 1_500), b"T"),
        (T(K.DECIMAL64, bytes(8)), b"x"),
        (T(K.ARRAY, (T(K.I8, 1),)), b"A"),
        (T(K.DESCRIBED, (T(K.SYMBOL, "other"), T(K.I8, 1))), b"b"),
    ],
)
def test_kinds_of_other_protocols_become_what_comes_nearest(value: Typed, letter: bytes) -> None:
    assert fields.value_bytes(value)[:1] == letter


def nested(depth: int) -> bytes:
    value = T(K.I8, 1)
    for _ in range(depth):
        value = T(K.LIST, (value,))
    return fields.value_bytes(value)


def test_depth_and_number_of_values_are_bounded() -> None:
    fields.Reader(nested(MAX_DEPTH)).value()
    with pytest.raises(AmqpError, match="tables in tables"):
        fields.Reader(nested(MAX_DEPTH + 1)).value()
    many = fields.table(tuple((str(number), T(K.LIST, (T(K.NULL, None),) * 40)) for number in range(24)))
    fields.Reader(many).table()
    more = fields.table(tuple((str(number), T(K.LIST, (T(K.NULL, None),) * 40)) for number in range(25)))
    with pytest.raises(AmqpError, match="1024 values"):
        fields.Reader(more).table()


@pytest.mark.parametrize(
    "damage",
    [b"?\x00", b"U\x00\x00", b"I\x00", b"S\x00\x00\x00\x05ab", b"F\xff\xff\xff\xff", b"A\x00\x00\x00\x01"],
    ids=["no such letter", "letter of the first draft", "cut number", "cut text", "huge table", "cut array"],
)
def test_a_damaged_value_is_a_syntax_error(damage: bytes) -> None:
    with pytest.raises(AmqpError) as caught:
        fields.Reader(damage).value()
    assert caught.value.code is Reply.SYNTAX_ERROR


def test_an_unknown_class_and_an_unknown_method_are_told_apart() -> None:
    for payload, code in ((b"\x00\x4d\x00\x0a", 540), (b"\x00\x32\x00\x63", 503), (b"\x00", 501)):
        with pytest.raises(AmqpError) as caught:
            decode_method(payload)
        assert caught.value.code == code
        assert caught.value.hard


@given(st.sampled_from(list(frames.FrameType)), st.integers(0, 65_535), st.binary(max_size=200), st.integers(1, 300))
def test_a_frame_is_read_when_it_is_whole(kind: int, channel: int, payload: bytes, cut: int) -> None:
    data = frames.frame(kind, channel, payload)
    assert frames.read_frame(b"x" + data + b"y", 1, 4_096) == (frames.Frame(kind, channel, payload), 1 + len(data))
    assert frames.read_frame(data[: min(cut, len(data) - 1)], 0, 4_096) is None


@pytest.mark.parametrize(
    "data",
    [
        b"\x04\x00\x00\x00\x00\x00\x00\xce",
        b"\x04",
        b"\x01\x00\x00\x00\x00\x0f\xf9",
        b"\x08\x00\x00\x00\x00\x00\x00\xcd",
    ],
    ids=["type 4", "type 4 at its first byte", "larger than agreed", "wrong end"],
)
def test_what_is_no_frame_is_refused_as_soon_as_that_shows(data: bytes) -> None:
    with pytest.raises(AmqpError) as caught:
        frames.read_frame(data, 0, 4_096)
    assert caught.value.code is Reply.FRAME_ERROR


@given(st.binary(max_size=3_000), st.integers(4_096 - 8, 4_096 + 8))
def test_a_body_fills_its_frames(body: bytes, size: int) -> None:
    body = body + bytes(size)
    data = frames.content_frames(7, b"head", body, 4_096)
    at, parts = 0, []
    while at < len(data):
        found = frames.read_frame(data, at, 4_096)
        assert found is not None
        part, at = found
        parts.append(part)
    assert parts[0] == frames.Frame(frames.FrameType.HEADER, 7, b"head")
    assert b"".join(part.payload for part in parts[1:]) == body
    assert all(len(part.payload) == 4_088 for part in parts[1:-1])


PROPERTIES = st.builds(
    content.BasicProperties,
    content_type=st.none() | st.text(LETTERS, max_size=20),
    headers=st.none() | TABLES,
    delivery_mode=st.none() | st.integers(0, 255),
    priority=st.none() | st.integers(0, 255),
    expiration=st.none() | st.text(LETTERS, max_size=5),
    timestamp=st.none() | st.integers(0, 2**64 - 1),
    kind=st.none() | st.text(LETTERS, max_size=5),
    cluster_id=st.none() | st.text(LETTERS, max_size=5),
)


@given(st.integers(0, 2**64 - 1), PROPERTIES)
def test_a_content_header_is_read_as_it_was_written(size: int, properties: content.BasicProperties) -> None:
    assert content.decode_header(content.encode_header(size, properties)) == (size, properties)


@pytest.mark.parametrize(
    ("header", "code"),
    [
        (b"\x00\x3c\x00\x00" + bytes(8), 502),
        (b"\x00\x32\x00\x00" + bytes(10), 505),
        (b"\x00\x3c\x00\x07" + bytes(10), 505),
        (b"\x00\x3c\x00\x00" + bytes(8) + b"\x00\x01", 502),
        (b"\x00\x3c\x00\x00" + bytes(8) + b"\x20\x00\x00\x00\x00\x09", 502),
        (b"\x00\x3c\x00\x00" + bytes(10) + b"x", 502),
    ],
    ids=["cut", "another class", "weight", "a flag too many", "cut headers", "left over"],
)
def test_a_damaged_content_header_is_refused(header: bytes, code: int) -> None:
    with pytest.raises(AmqpError) as caught:
        content.decode_header(header)
    assert caught.value.code == code


def test_texts_for_people_are_cut_and_others_are_not() -> None:
    close = BY_NAME["connection.close"]
    _, values = decode_method(encode_method(close, 501, "ä" * 300, 0, 0))
    assert values[1] == "ä" * 127
    with pytest.raises(AmqpError):
        encode_method(BY_NAME["basic.consume-ok"], "x" * 256)


def test_methods_name_their_handlers() -> None:
    method: Method = BY_NAME["basic.recover-async"]
    assert method.handler == "basic_recover_async"

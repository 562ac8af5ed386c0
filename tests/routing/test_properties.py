"""Typed properties: what is written is read, and nothing else is read."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay.reference_broker.routing.message import Message, memory_bytes
from assay.reference_broker.routing.properties import (
    MAX_DEPTH,
    Kind,
    MessageProperties,
    Typed,
    check_value,
    decode_properties,
    encode_properties,
    properties_bytes,
)

RANGES = {
    Kind.I8: (-128, 127),
    Kind.U8: (0, 255),
    Kind.I16: (-32_768, 32_767),
    Kind.U16: (0, 65_535),
    Kind.I32: (-(2**31), 2**31 - 1),
    Kind.U32: (0, 2**32 - 1),
    Kind.I64: (-(2**63), 2**63 - 1),
    Kind.U64: (0, 2**64 - 1),
    Kind.SECONDS: (0, 2**64 - 1),
    Kind.MILLISECONDS: (-(2**63), 2**63 - 1),
}
SIZES = {Kind.DECIMAL32: 4, Kind.DECIMAL64: 8, Kind.DECIMAL128: 16, Kind.UUID: 16}
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)


def plain(kind: Kind) -> st.SearchStrategy[Typed] | None:
    if kind in RANGES:
        low, high = RANGES[kind]
        return st.builds(Typed, st.just(kind), st.sampled_from((low, high)) | st.integers(low, high))
    if kind in SIZES:
        return st.builds(Typed, st.just(kind), st.binary(min_size=SIZES[kind], max_size=SIZES[kind]))
    values: dict[Kind, st.SearchStrategy[object]] = {
        Kind.NULL: st.none(),
        Kind.BOOL: st.booleans(),
        Kind.F32: st.floats(width=32, allow_nan=False),
        Kind.F64: st.floats(allow_nan=False),
        Kind.BYTES: st.binary(max_size=8),
        Kind.CHAR: st.characters(exclude_categories=["Cs"]),
        Kind.TEXT: TEXT,
        Kind.SYMBOL: TEXT,
    }
    return st.builds(Typed, st.just(kind), values[kind]) if kind in values else None


PLAIN = {kind: strategy for kind in Kind if (strategy := plain(kind)) is not None}


def rows(values: st.SearchStrategy[Typed]) -> st.SearchStrategy[Typed]:
    several = st.lists(values, max_size=4).map(tuple)
    return st.one_of(
        st.builds(Typed, st.just(Kind.LIST), several),
        st.builds(Typed, st.just(Kind.MAP), several.map(lambda found: found[: len(found) // 2 * 2])),
        st.builds(Typed, st.just(Kind.DESCRIBED), st.tuples(values, values)),
        st.builds(Typed, st.just(Kind.DECIMAL), st.tuples(PLAIN[Kind.U8], PLAIN[Kind.I32] | PLAIN[Kind.U32])),
        st.sampled_from(list(PLAIN)).flatmap(
            lambda kind: st.builds(Typed, st.just(Kind.ARRAY), st.lists(PLAIN[kind], max_size=3).map(tuple))
        ),
    )


VALUES = st.recursive(st.one_of(*PLAIN.values()), rows, max_leaves=8)
PROPERTIES = st.builds(
    MessageProperties,
    message_id=st.none() | VALUES,
    correlation_id=st.none() | VALUES,
    content_encoding=st.none() | TEXT,
    kind=st.none() | TEXT,
    app_id=st.none() | TEXT,
    user_id=st.none() | st.binary(max_size=8),
    priority=st.none() | st.integers(0, 255),
    durable=st.none() | st.booleans(),
    created_at_ms=st.none() | st.integers(0, 2**62),
    headers=st.lists(st.tuples(TEXT, VALUES), max_size=4).map(tuple),
    sections=st.lists(st.tuples(TEXT, st.binary(max_size=8)), max_size=2).map(tuple),
)


def test_every_kind_is_drawn() -> None:
    composed = {Kind.LIST, Kind.MAP, Kind.DESCRIBED, Kind.DECIMAL, Kind.ARRAY}
    assert set(PLAIN) | composed == set(Kind)


@given(PROPERTIES)
def test_what_is_written_is_read(properties: MessageProperties) -> None:
    assert decode_properties(encode_properties(properties)) == properties


@given(VALUES)
def test_kinds_are_kept_apart(value: Typed) -> None:
    check_value(value)
    read = decode_properties(encode_properties(MessageProperties(message_id=value))).message_id
    assert read is not None
    assert (read.kind, type(read.value)) == (value.kind, type(value.value))


WRONG = [
    *(Typed(kind, bound) for kind, (low, high) in RANGES.items() for bound in (low - 1, high + 1)),
    *(Typed(kind, bytes(size + 1)) for kind, size in SIZES.items()),
    *(Typed(kind, bytes(size - 1)) for kind, size in SIZES.items()),
    *(Typed(kind, True) for kind in RANGES),
    Typed(Kind.BOOL, 1),
    Typed(Kind.NULL, False),
    Typed(Kind.F64, 1),
    Typed(Kind.TEXT, b"x"),
    Typed(Kind.BYTES, "x"),
    Typed(Kind.CHAR, ""),
    Typed(Kind.CHAR, "xy"),
    Typed(Kind.SYMBOL, 1),
    Typed(Kind.LIST, "x"),
    Typed(Kind.MAP, (Typed(Kind.TEXT, "name"),)),
    Typed(Kind.DESCRIBED, (Typed(Kind.NULL, None),)),
    Typed(Kind.DECIMAL, (Typed(Kind.I8, 1), Typed(Kind.I32, 1))),
    Typed(Kind.DECIMAL, (Typed(Kind.U8, 1), Typed(Kind.I64, 1))),
    Typed(Kind.ARRAY, (Typed(Kind.U8, 1), Typed(Kind.U16, 1))),
    Typed(Kind.LIST, (Typed(Kind.BOOL, 1),)),
]


@pytest.mark.parametrize("value", WRONG, ids=repr)
def test_a_value_that_is_not_of_its_kind_is_refused(value: Typed) -> None:
    with pytest.raises(ValueError, match=r"is no"):
        check_value(value)


def test_tables_in_tables_have_a_limit() -> None:
    value = Typed(Kind.NULL, None)
    for _ in range(MAX_DEPTH):
        value = Typed(Kind.LIST, (value,))
    check_value(value)
    with pytest.raises(ValueError, match="tables in tables"):
        check_value(Typed(Kind.LIST, (value,)))


@pytest.mark.parametrize("data", [b"", b"\x00\x80", b"\x02\x80", b"\x01", b"\x01\xc1", b"\x01\x93\x01\x02\x03"])
def test_another_format_is_not_read(data: bytes) -> None:
    with pytest.raises(ValueError, match=r".+"):
        decode_properties(data)


@given(st.binary(max_size=40))
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    try:
        decode_properties(b"\x01" + data)
    except ValueError:
        return


def test_a_later_version_may_know_more() -> None:
    """A field that this version does not know is left out; what it knows is read."""
    later = b"\x01" + msgspec.msgpack.encode({"app_id": "a", "colour": "red"})
    assert decode_properties(later) == MessageProperties(app_id="a")


@given(PROPERTIES)
def test_they_count_as_memory(properties: MessageProperties) -> None:
    bare = memory_bytes(Message(topic="t", payload=b""))
    size = memory_bytes(Message(topic="t", payload=b"", properties=properties))
    assert size - bare == properties_bytes(properties)


def _texts(content: object) -> Iterator[str | bytes]:
    """All that they hold: texts, bytes, and names of headers and sections."""
    if isinstance(content, MessageProperties):
        for name in content.__struct_fields__:
            yield from _texts(getattr(content, name))
    elif isinstance(content, Typed):
        yield from _texts(content.value)
    elif isinstance(content, tuple):
        for part in content:
            yield from _texts(part)
    elif isinstance(content, str | bytes):
        yield content


def _stretched(content: Any) -> Any:
    """Each of them ten times as long."""
    if isinstance(content, MessageProperties):
        fields = {name: _stretched(getattr(content, name)) for name in content.__struct_fields__}
        return msgspec.structs.replace(content, **fields)
    if isinstance(content, Typed):
        return Typed(content.kind, _stretched(content.value))
    if isinstance(content, tuple):
        return tuple(map(_stretched, content))
    return content * 10 if isinstance(content, str | bytes) else content


@given(PROPERTIES)
def test_whatever_is_longer_counts_for_more(properties: MessageProperties) -> None:
    """Found by a mutant: a long name of a section made a message smaller. A character takes up to four bytes."""
    size, texts = properties_bytes(properties), list(_texts(properties))
    a_time = sum(len(text) * (4 if isinstance(text, str) else 1) for text in texts)
    assert size >= a_time
    assert properties_bytes(_stretched(properties)) >= size + 9 * a_time

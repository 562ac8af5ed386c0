"""GoQueue's message codec: against an encoder written from the layout table, and against damage."""

from __future__ import annotations

import struct
from functools import partial

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.reference_broker.queues.messages.publish_options import Priority
from assay.reference_broker.storage_tools.foreign.goqueue_message import (
    MAX_HEADERS_BYTES,
    MAX_KEY_BYTES,
    MAX_VALUE_BYTES,
    GoQueueFlag,
    GoQueueLayout,
    GoQueueMessage,
    GoQueueMessageError,
    GoQueueProblem,
    decode_message,
    detect_layout,
    encode_message,
    has_sound_body,
    message_size,
)

FLAGS = st.sampled_from([0, 1, 4, 5, 8, 24, 9, 12]).map(GoQueueFlag)


@st.composite
def messages(draw: st.DrawFn, layout: GoQueueLayout = GoQueueLayout.V34) -> GoQueueMessage:
    headers = st.lists(st.tuples(st.binary(max_size=12), st.binary(max_size=30)), max_size=4).map(tuple)
    return GoQueueMessage(
        offset=draw(st.integers(0, 2**63 - 1)),
        timestamp_ns=draw(st.integers(-(2**63), 2**63 - 1)),
        key=draw(st.binary(max_size=20)),
        value=draw(st.binary(max_size=60)),
        flags=draw(FLAGS),
        priority=Priority.NORMAL if layout is GoQueueLayout.V30 else draw(st.sampled_from(Priority)),
        headers=draw(headers) if layout is GoQueueLayout.V34 else (),
    )


def crc32c_by_the_bit(data: bytes) -> int:
    """CRC-32C from its definition: reflected polynomial 0x82F63B78, all ones in, all ones out."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def golden(message: GoQueueMessage, layout: GoQueueLayout) -> bytes:
    """The bytes of a message, straight from the table."""
    block = b""
    if message.headers:
        block = struct.pack(">H", len(message.headers))
        for name, value in message.headers:
            block += len(name).to_bytes(2, "big") + name + len(value).to_bytes(2, "big") + value
    rest = message.offset.to_bytes(8, "big") + message.timestamp_ns.to_bytes(8, "big", signed=True)
    if layout.value > 30:
        rest += bytes([message.priority, 0])
    rest += len(message.key).to_bytes(2, "big") + len(message.value).to_bytes(4, "big")
    if layout.value > 32:
        rest += len(block).to_bytes(2, "big")
    rest += message.key + message.value + block
    flags = message.flags | (2 if block else 0)
    return b"GQ\x01" + bytes([flags]) + crc32c_by_the_bit(rest).to_bytes(4, "big") + rest


def test_golden_bytes_of_each_layout() -> None:
    message = GoQueueMessage(offset=7, timestamp_ns=1_700_000_000_123_456_789, key=b"k", value=b"hello")
    tail = bytes.fromhex("000000000000000717979cfe3d85cd15")
    for layout, sizes in (
        (GoQueueLayout.V30, "000100000005"),
        (GoQueueLayout.V32, "0200000100000005"),
        (GoQueueLayout.V34, "02000001000000050000"),
    ):
        checked = tail + bytes.fromhex(sizes) + b"khello"
        expected = bytes.fromhex("47510100") + crc32c_by_the_bit(checked).to_bytes(4, "big") + checked
        assert encode_message(message, layout=layout) == expected
        assert len(expected) == layout.value + 6


@pytest.mark.parametrize("layout", list(GoQueueLayout))
def test_both_ways_against_the_independent_encoder(layout: GoQueueLayout) -> None:
    @settings(max_examples=150, deadline=None)
    @given(message=messages(layout), around=st.binary(max_size=9))
    def check(message: GoQueueMessage, around: bytes) -> None:
        encoded = golden(message, layout)
        assert encode_message(message, layout=layout) == encoded
        data = around + encoded + around
        decoded = decode_message(data, len(around), layout=layout)
        assert message_size(data, len(around), layout) == len(encoded)
        assert encode_message(decoded, layout=layout) == encoded
        expected = message.flags | (GoQueueFlag.HAS_HEADERS if message.headers else 0)
        assert (decoded.flags, decoded.headers, decoded.value) == (expected, message.headers, message.value)

    check()


def test_a_flipped_bit_is_seen_wherever_the_format_can_show_it() -> None:
    message = GoQueueMessage(
        offset=3, timestamp_ns=5, key=b"key", value=b"value", headers=((b"a", b"b"),), priority=Priority.HIGH
    )
    encoded = encode_message(message)
    hidden: list[int] = []
    for bit in range(len(encoded) * 8):
        damaged = bytearray(encoded)
        damaged[bit // 8] ^= 1 << bit % 8
        try:
            decode_message(bytes(damaged))
        except GoQueueMessageError:
            continue
        hidden.append(bit)
    # Compressed, tombstone and control may be set in any message, and no checksum covers them.
    assert hidden == [3 * 8 + 0, 3 * 8 + 2, 3 * 8 + 3]


def test_every_prefix_is_truncated_and_says_where() -> None:
    encoded = encode_message(GoQueueMessage(offset=3, timestamp_ns=5, key=b"key", value=b"value"))
    for length in range(len(encoded)):
        with pytest.raises(GoQueueMessageError) as caught:
            decode_message(b"...." + encoded[:length], 4)
        assert caught.value.problem is GoQueueProblem.TRUNCATED
        assert caught.value.position == 4


def with_checksum(encoded: bytes) -> bytes:
    return encoded[:4] + crc32c_by_the_bit(encoded[8:]).to_bytes(4, "big") + encoded[8:]


@pytest.mark.parametrize(
    ("position", "replacement", "problem"),
    [
        (0, b"QG", GoQueueProblem.BAD_MAGIC),
        (2, b"\x02", GoQueueProblem.BAD_VERSION),
        (3, b"\x80", GoQueueProblem.BAD_FLAGS),
        (3, b"\x12", GoQueueProblem.BAD_FLAGS),
        (3, b"\x00", GoQueueProblem.BAD_FLAGS),
        (8, b"\xff", GoQueueProblem.BAD_OFFSET),
        (24, b"\x05", GoQueueProblem.BAD_PRIORITY),
        (28, b"\xff\xff\xff\xff", GoQueueProblem.TOO_LARGE),
        (28, b"\x01\x00\x00\x01", GoQueueProblem.TOO_LARGE),
        (28, b"\x01\x00\x00\x00", GoQueueProblem.TRUNCATED),
        (43, b"\x00", GoQueueProblem.BAD_HEADERS),  # the count
        (43, b"\x02", GoQueueProblem.BAD_HEADERS),
        (45, b"\x09", GoQueueProblem.BAD_HEADERS),  # the length of a name
        (48, b"\x00", GoQueueProblem.BAD_HEADERS),  # the length of a value
    ],
)
def test_each_problem_is_named_even_when_the_checksum_is_right(
    position: int, replacement: bytes, problem: GoQueueProblem
) -> None:
    message = GoQueueMessage(offset=1, timestamp_ns=1, key=b"key", value=b"value", headers=((b"n", b"v"),))
    encoded = bytearray(encode_message(message))
    encoded[position : position + len(replacement)] = replacement
    with pytest.raises(GoQueueMessageError) as caught:
        decode_message(with_checksum(bytes(encoded)))
    assert caught.value.problem is problem


def test_limits_are_exact() -> None:
    message = partial(msgspec.structs.replace, GoQueueMessage(offset=0, timestamp_ns=0))
    header_room = MAX_HEADERS_BYTES - 2 - 4
    for good in (
        message(key=bytes(MAX_KEY_BYTES)),
        message(value=bytes(MAX_VALUE_BYTES)),
        message(headers=((b"n" * 5, bytes(header_room - 5)),)),
        message(offset=2**63 - 1),
    ):
        assert decode_message(encode_message(good)).key == good.key
    for bad, problem in (
        (message(key=bytes(MAX_KEY_BYTES + 1)), GoQueueProblem.TOO_LARGE),
        (message(value=bytes(MAX_VALUE_BYTES + 1)), GoQueueProblem.TOO_LARGE),
        (message(headers=((b"n" * 5, bytes(header_room - 4)),)), GoQueueProblem.TOO_LARGE),
        (message(offset=2**63), GoQueueProblem.BAD_OFFSET),
        (message(offset=-1), GoQueueProblem.BAD_OFFSET),
        (message(timestamp_ns=2**63), GoQueueProblem.BAD_TIMESTAMP),
        (message(flags=GoQueueFlag.COMMIT), GoQueueProblem.BAD_FLAGS),
    ):
        with pytest.raises(GoQueueMessageError) as caught:
            encode_message(bad)
        assert caught.value.problem is problem


def test_old_layouts_refuse_what_they_have_no_room_for() -> None:
    with_headers = GoQueueMessage(offset=0, timestamp_ns=0, headers=((b"n", b"v"),))
    urgent = GoQueueMessage(offset=0, timestamp_ns=0, priority=Priority.CRITICAL)
    for message, layout in (
        (with_headers, GoQueueLayout.V32),
        (with_headers, GoQueueLayout.V30),
        (urgent, GoQueueLayout.V30),
    ):
        with pytest.raises(GoQueueMessageError, match="layout") as caught:
            encode_message(message, layout=layout)
        assert caught.value.problem is GoQueueProblem.NOT_IN_LAYOUT
    assert encode_message(urgent, layout=GoQueueLayout.V32)[24] == 0


@pytest.mark.parametrize("layout", list(GoQueueLayout))
@pytest.mark.parametrize("value", [b"", b"v", bytes(200)])
def test_the_checksum_tells_the_layout(layout: GoQueueLayout, value: bytes) -> None:
    encoded = encode_message(GoQueueMessage(offset=0, timestamp_ns=9, value=value), layout=layout)
    assert detect_layout(encoded + encoded) is layout
    assert detect_layout(encoded[:-1]) is None


@settings(max_examples=300, deadline=None)
@given(data=st.binary(max_size=80), layout=st.sampled_from(GoQueueLayout))
def test_random_bytes_are_refused_with_the_right_error(data: bytes, layout: GoQueueLayout) -> None:
    for candidate in (data, b"GQ\x01" + data):
        with pytest.raises(GoQueueMessageError):
            decode_message(candidate, layout=layout)


@given(messages(), st.integers(0, 20), st.data())
def test_a_sound_body_is_whole_and_as_it_was_written(message: GoQueueMessage, before: int, data: st.DataObject) -> None:
    """It is what tells a damaged head, whose message may be skipped, from damage whose end nobody knows."""
    encoded = bytes(before) + encode_message(message)
    assert has_sound_body(encoded, before, GoQueueLayout.V34)
    cut = data.draw(st.integers(1, len(encoded) - before))
    assert not has_sound_body(encoded[:-cut], before, GoQueueLayout.V34)
    flipped = bytearray(encoded)
    flipped[-1] ^= 1 << data.draw(st.integers(0, 7))
    assert not has_sound_body(bytes(flipped), before, GoQueueLayout.V34)

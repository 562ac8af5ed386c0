"""The bench's blocks of frames are ordinary packets."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay.conformance.wire import Decoder, Puback, Publish, Pubrec, Pubrel, encode
from assay.loadtests.bench.frames import (
    PACKET_IDS,
    AckType,
    PublishFrames,
    build_acks,
    packet_ids,
    read_acks,
)

QOS = st.integers(0, 2)
SIZES = st.integers(8, 400)
FIRSTS = st.integers(0, 10 * PACKET_IDS)


@given(QOS, SIZES, FIRSTS, st.integers(1, 40), st.sampled_from((4, 5)))
def test_a_block_is_a_row_of_publish_packets(qos: int, size: int, first: int, count: int, version: int) -> None:
    frames = PublishFrames("b/t", qos, size, section=b"\x00" if version == 5 else b"")
    block = bytes(frames.block(first, count))
    packets = Decoder(version).feed(block)
    assert len(packets) == count
    for seq, packet in enumerate(packets, first):
        assert isinstance(packet, Publish)
        assert (packet.topic, packet.qos, len(packet.payload)) == ("b/t", qos, size)
        assert int.from_bytes(packet.payload[:8], "big") == seq
        assert packet.packet_id == (seq % PACKET_IDS + 1 if qos else 0)
    ids, sequences = frames.read(memoryview(block))
    assert sequences.tolist() == list(range(first, first + count))
    assert (ids is None) == (qos == 0)


def test_a_block_shorter_than_the_one_before_holds_nothing_of_it() -> None:
    frames = PublishFrames("t", 1, 20)
    frames.block(0, 10)
    assert frames.read(frames.block(100, 3))[1].tolist() == [100, 101, 102]


@given(st.integers(0, 200_000), st.integers(1, 50))
def test_packet_ids_are_legal_and_in_turn(first: int, count: int) -> None:
    ids = packet_ids(first, count)
    assert ids.min() >= 1
    assert ids.tolist() == [seq % 65_535 + 1 for seq in range(first, first + count)]


@given(st.lists(st.integers(1, PACKET_IDS), min_size=1, max_size=50))
def test_acknowledgements_are_the_wire_packets(ids: list[int]) -> None:
    acks = build_acks(AckType.PUBACK, np.array(ids))
    assert acks == b"".join(encode(Puback(packet_id=packet_id), 4) for packet_id in ids)
    kinds, found = read_acks(memoryview(acks))
    assert (set(kinds), found.tolist()) == ({AckType.PUBACK}, ids)


@given(st.lists(st.one_of(st.integers(0, 1_000), st.integers(-PACKET_IDS, -1)), max_size=40), st.integers(0, 100))
def test_a_mixed_stream_is_taken_apart_up_to_the_last_whole_frame(items: list[int], cut: int) -> None:
    frames = PublishFrames("b/t", 2, 50)
    parts = [bytes(frames.block(item, 1)) if item >= 0 else encode(Pubrel(packet_id=-item), 4) for item in items]
    stream = b"".join(parts)
    stream = stream[: len(stream) - min(cut, len(stream))]
    ids, sequences, releases, consumed = frames.read_mixed(stream)
    whole, at = [], 0
    for item, part in zip(items, parts, strict=True):
        at += len(part)
        if at <= len(stream):
            whole.append(item)
    assert sequences.tolist() == [item for item in whole if item >= 0]
    assert ids.tolist() == [item % PACKET_IDS + 1 for item in whole if item >= 0]
    assert releases.tolist() == [-item for item in whole if item < 0]
    assert consumed == sum(len(part) for part in parts[: len(whole)])


def test_foreign_packets_are_refused() -> None:
    frames = PublishFrames("b/t", 2, 50)
    good = bytes(frames.block(0, 1))
    for foreign in (encode(Pubrec(packet_id=1), 4), encode(Publish(topic="x", payload=b"y" * 60), 4)):
        with pytest.raises(ValueError, match="neither"):
            frames.read_mixed(good + foreign + good)
    duplicate = bytes([good[0] | 8]) + good[1:]
    with pytest.raises(ValueError, match="not the expected PUBLISH"):
        frames.read(memoryview(duplicate))
    with pytest.raises(ValueError, match="four-byte"):
        read_acks(memoryview(b"\x40\x03\x00\x01"))


def test_a_payload_too_small_for_the_sequence_number_is_refused() -> None:
    with pytest.raises(ValueError, match="8-byte"):
        PublishFrames("t", 0, 7)

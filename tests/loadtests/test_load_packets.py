"""The hot path's packets equal those of assay.conformance.wire, however the stream is cut."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.conformance.wire import Properties, Puback, Publish, decode_packet, encode
from assay.loadtests import payload
from assay.loadtests.packets import (
    PUBACK,
    acknowledgement,
    find_user_property,
    property_section,
    publish_frame,
    read_publish,
    split_frames,
    user_property,
)

TEXT = st.text(
    alphabet=st.characters(min_codepoint=33, max_codepoint=0x2FF, exclude_characters="&"), min_size=1, max_size=60
)


@st.composite
def publishes(draw: st.DrawFn) -> tuple[Publish, int]:
    qos, version = draw(st.integers(0, 2)), draw(st.sampled_from((4, 5)))
    pairs = draw(st.lists(st.tuples(TEXT, TEXT), max_size=6)) if version == 5 else []
    packet = Publish(
        topic=draw(TEXT.filter(lambda text: not set(text) & set("+#"))),
        payload=draw(st.binary(max_size=400)),
        qos=qos,
        packet_id=draw(st.integers(1, 65_535)) if qos else 0,
        properties=Properties(user_property=tuple(pairs)),
    )
    return packet, version


def _build(packet: Publish, version: int) -> bytes:
    pairs = b"".join(user_property(name.encode(), value.encode()) for name, value in packet.properties.user_property)
    section = property_section(pairs, version)
    return publish_frame(packet.qos, packet.topic.encode(), packet.packet_id, section, packet.payload)


@given(publishes())
def test_publish_frame_is_what_the_wire_package_builds(case: tuple[Publish, int]) -> None:
    packet, version = case
    assert _build(packet, version) == encode(packet, version)


@given(publishes())
def test_read_publish_finds_every_part(case: tuple[Publish, int]) -> None:
    packet, version = case
    frame_bytes = encode(packet, version)
    frames, used = split_frames(b"\x00\x00" + frame_bytes)
    assert used == 2 + len(frame_bytes)
    topic, packet_id, properties, body = read_publish(b"\x00\x00" + frame_bytes, frames[1], version)
    assert (topic.decode(), body) == (packet.topic, packet.payload)
    assert int.from_bytes(packet_id, "big") == packet.packet_id
    for name, _ in packet.properties.user_property:
        first = next(value for key, value in packet.properties.user_property if key == name)
        assert find_user_property(properties, name.encode()).decode() == first


@settings(max_examples=40)
@given(st.lists(publishes(), min_size=1, max_size=5), st.data())
def test_split_frames_survives_every_cut(cases: list[tuple[Publish, int]], data: st.DataObject) -> None:
    expected = [encode(packet, version) for packet, version in cases]
    stream, rest, found = b"".join(expected), b"", []
    while stream:
        cut = data.draw(st.integers(1, len(stream)))
        buffer, stream = rest + stream[:cut], stream[cut:]
        frames, used = split_frames(buffer)
        begin = 0
        for _, _, end in frames:
            found.append(buffer[begin:end])
            begin = end
        assert begin == used
        rest = buffer[used:]
    assert (found, rest) == (expected, b"")


def test_absent_user_property_is_empty() -> None:
    assert find_user_property(user_property(b"a", b"b"), b"message-id") == b""


def test_acknowledgement_is_a_successful_puback_in_both_versions() -> None:
    for version in (4, 5):
        assert decode_packet(acknowledgement(PUBACK, b"\x01\x02"), version) == Puback(packet_id=0x0102)


@pytest.mark.parametrize("start", [b"\x30\xff\xff\xff\xff\x01", b"\x30\xff\xff\xff\x7f"])
def test_absurd_lengths_are_refused(start: bytes) -> None:
    with pytest.raises(ValueError, match=r"four bytes|at most"):
        split_frames(start)


@given(st.binary(min_size=8, max_size=8), st.integers(0, 2**32 - 1), st.integers(0, 2**64 - 1), st.integers(28, 300))
def test_payload_header_round_trip(run_id: bytes, publisher: int, seq: int, size: int) -> None:
    built = payload.build(run_id, publisher, seq, -5, payload.filler(size))
    assert len(built) == size
    assert payload.parse(built) == (run_id, publisher, seq, -5)


def test_payload_too_small_for_its_header_is_refused() -> None:
    with pytest.raises(payload.PayloadError, match="at least 28"):
        payload.filler(27)
    with pytest.raises(payload.PayloadError, match="no load header"):
        payload.parse(b"short")

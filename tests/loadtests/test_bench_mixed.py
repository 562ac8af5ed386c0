"""Mixed messages of the bench are the wire packets they stand for, and any other delivery is told from them."""

from __future__ import annotations

import numpy as np
import pytest

from assay.conformance.wire import Publish
from assay.conformance.wire.decode import Decoder
from assay.loadtests.bench import mixed
from assay.loadtests.bench.frames import packet_ids
from assay.loadtests.bench.mixed import KINDS, Kind, MixedFrames


def _packets(data: bytes | memoryview) -> list[Publish]:
    return [packet for packet in Decoder(4).feed(bytes(data)) if isinstance(packet, Publish)]


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mixed, "CYCLE", 50)


@pytest.mark.parametrize("kind", KINDS, ids=[kind.line for kind in KINDS])
@pytest.mark.parametrize(("first", "count"), [(0, 1), (10, 30), (40, 25), (123, 90)])
def test_what_is_published_is_what_must_be_delivered(kind: Kind, first: int, count: int) -> None:
    published = MixedFrames(kind.qos, kind.granted, new=kind.new)
    sent = _packets(published.block(first, count))
    assert len(sent) == count
    assert {packet.qos for packet in sent} == {kind.qos}
    assert all(10 <= len(packet.payload) <= 1_000 for packet in sent)
    if kind.qos:
        assert [packet.packet_id for packet in sent] == packet_ids(first, count).tolist()
    if kind.new:
        assert len({packet.topic for packet in sent}) == count
        assert [int(packet.topic[-8:], 16) for packet in sent] == list(range(first, first + count))
    # As a broker delivers them: at the QoS that was granted, under its own packet ids.
    expected = MixedFrames(kind.granted, kind.granted, new=kind.new)
    stream = memoryview(bytes(expected.block(first, count)))
    assert [(each.topic, each.payload) for each in _packets(stream)] == [(each.topic, each.payload) for each in sent]
    at, seen, ids = first, 0, []
    while (found := published.deliveries(stream[seen : seen + 3_000], at)).messages:
        at, seen = at + found.messages, seen + found.size
        ids += [] if found.ids is None else found.ids.tolist()
    assert (at, seen) == (first + count, len(stream))
    assert ids == (packet_ids(first, count).tolist() if kind.granted else [])


@pytest.mark.parametrize("kind", KINDS, ids=[kind.line for kind in KINDS])
@pytest.mark.parametrize("at", [0, 6, 200])
def test_what_is_altered_lost_or_repeated_is_out_of_sequence(kind: Kind, at: int) -> None:
    frames = MixedFrames(kind.qos, kind.granted, new=kind.new)
    stream = bytes(MixedFrames(kind.granted, kind.granted, new=kind.new).block(0, 20))
    altered = np.frombuffer(bytearray(stream), np.uint8)
    altered[at] ^= 1
    for data, first in ((altered.data, 0), (memoryview(stream), 1)):
        with pytest.raises(ValueError, match="out of sequence"):
            frames.deliveries(data, first)

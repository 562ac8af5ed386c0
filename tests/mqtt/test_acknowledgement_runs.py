"""Acknowledgements of one type that stand one behind the other, found wherever they end."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay.reference_broker.mqtt.batches.runs import acknowledgement_run

STARTS = [b"\x40\x02", b"\x50\x02", b"\x62\x02", b"\x70\x02"]


def _one_by_one(data: bytes, position: int) -> bytes:
    start, ids = data[position : position + 2], b""
    while data[position : position + 2] == start and len(data) >= position + 4:
        ids += data[position + 2 : position + 4]
        position += 4
    return ids


@given(
    st.sampled_from(STARTS),
    st.lists(st.binary(min_size=2, max_size=2), min_size=1, max_size=20),
    st.one_of(st.binary(max_size=8), st.sampled_from([start + b"\0" for start in STARTS])),
    st.binary(max_size=5),
)
def test_the_run_ends_where_the_first_other_packet_begins(
    start: bytes, ids: list[bytes], rest: bytes, before: bytes
) -> None:
    data = before + b"".join(start + packet_id for packet_id in ids) + rest
    assert acknowledgement_run(data, len(before)) == _one_by_one(data, len(before))


@pytest.mark.parametrize("count", [1, 255, 256, 257, 512, 513, 1_500])
@pytest.mark.parametrize("rest", [b"", b"\x40", b"\x40\x02\0", b"\x40\x03\0\1\0", b"\x50\x02\0\1", b"\x32\x02"])
def test_runs_of_any_length(count: int, rest: bytes) -> None:
    ids = [number.to_bytes(2, "big") for number in range(1, count + 1)]
    data = b"".join(b"\x40\x02" + packet_id for packet_id in ids) + rest
    assert acknowledgement_run(data, 0) == b"".join(ids)

"""The two index files, byte for byte, and the indexes in memory."""

from __future__ import annotations

import struct
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay.reference_broker.storage.index_files import (
    IndexFileError,
    decode_offset_index,
    decode_time_index,
    encode_offset_index,
    encode_time_index,
)
from assay.reference_broker.storage.offset_index import OffsetIndex
from assay.reference_broker.storage.time_index import TimeIndex

NUMBERS = st.integers(0, 2**32 - 1)
GROWING = st.lists(NUMBERS, unique=True, max_size=40).map(sorted)
OFFSET_ENTRIES = st.tuples(GROWING, GROWING).map(lambda columns: list(zip(*columns, strict=False)))


def golden_idx(base: int, interval: int, entries: list[tuple[int, int]]) -> bytes:
    """Straight from the table of the format."""
    data = bytes.fromhex("49584c46") + b"\x01" + base.to_bytes(8, "little")
    data += len(entries).to_bytes(4, "little") + interval.to_bytes(4, "little") + bytes(11)
    return data + b"".join(offset.to_bytes(4, "little") + at.to_bytes(4, "little") for offset, at in entries)


def golden_tix(base: int, least: int, greatest: int, entries: list[tuple[int, int]]) -> bytes:
    """Straight from the table of the format."""
    data = bytes.fromhex("54584c46") + b"\x01" + base.to_bytes(8, "little") + len(entries).to_bytes(4, "little")
    data += least.to_bytes(8, "little", signed=True) + greatest.to_bytes(8, "little", signed=True) + bytes(3)
    return data + b"".join(
        time.to_bytes(8, "little", signed=True) + offset.to_bytes(4, "little") for time, offset in entries
    )


@given(st.integers(0, 2**63), OFFSET_ENTRIES)
def test_the_offset_index_has_the_bytes_of_the_table(base: int, entries: list[tuple[int, int]]) -> None:
    data = golden_idx(base, 4096, entries)
    assert encode_offset_index(base, entries) == data
    found = decode_offset_index(data)
    assert (found.base_offset, found.interval_bytes, found.entries) == (base, 4096, entries)
    assert len(data) == 32 + 8 * len(entries)


@given(
    st.integers(0, 2**63),
    st.tuples(st.lists(st.integers(-(2**62), 2**62), unique=True, max_size=40).map(sorted), GROWING).map(
        lambda columns: list(zip(*columns, strict=False))
    ),
)
def test_the_time_index_has_the_bytes_of_the_table(base: int, entries: list[tuple[int, int]]) -> None:
    least, greatest = (entries[0][0] - 5, entries[-1][0] + 5) if entries else (0, 0)
    data = golden_tix(base, least, greatest, entries)
    assert encode_time_index(base, entries, min_timestamp_ms=least, max_timestamp_ms=greatest) == data
    found = decode_time_index(data)
    assert (found.base_offset, found.min_timestamp_ms, found.max_timestamp_ms) == (base, least, greatest)
    assert found.entries == entries
    assert len(data) == 36 + 12 * len(entries)


def test_a_count_that_lags_behind_the_file_is_fine() -> None:
    """Writers of the format update it only when they sync or close."""
    data = bytearray(golden_idx(7, 4096, [(0, 0), (5, 4096), (9, 9000)]))
    data[13:17] = (1).to_bytes(4, "little")
    assert decode_offset_index(bytes(data)).entries == [(0, 0), (5, 4096), (9, 9000)]


IDX = golden_idx(7, 4096, [(0, 0), (5, 4096), (9, 9000)])
TIX = golden_tix(7, 1_000, 9_500, [(1_000, 0), (4_000, 5), (9_000, 9)])


@pytest.mark.parametrize(
    ("what", "data"),
    [
        ("empty", b""),
        ("a cut header", IDX[:31]),
        ("a cut entry", IDX[:-1]),
        ("another magic", b"X" + IDX[1:]),
        ("a newer version", IDX[:4] + b"\x02" + IDX[5:]),
        ("reserved bytes", IDX[:31] + b"\x01" + IDX[32:]),
        ("fewer entries than counted", IDX[:-8]),
        ("offsets that go back", golden_idx(7, 4096, [(5, 0), (4, 4096)])),
        ("equal positions", golden_idx(7, 4096, [(5, 10), (6, 10)])),
        ("zeros at the end", IDX + bytes(8)),
    ],
)
def test_a_damaged_offset_index_is_refused(what: str, data: bytes) -> None:
    with pytest.raises(IndexFileError):
        decode_offset_index(data)


@pytest.mark.parametrize(
    ("what", "data"),
    [
        ("a cut header", TIX[:35]),
        ("a cut entry", TIX[:-1]),
        ("another magic", b"X" + TIX[1:]),
        ("a newer version", TIX[:4] + b"\x02" + TIX[5:]),
        ("reserved bytes", TIX[:35] + b"\x01" + TIX[36:]),
        ("fewer entries than counted", TIX[:-12]),
        ("times that go back", golden_tix(7, 0, 9_000, [(5_000, 0), (4_000, 5)])),
        ("a time outside the header's", golden_tix(7, 2_000, 9_000, [(1_000, 0)])),
    ],
)
def test_a_damaged_time_index_is_refused(what: str, data: bytes) -> None:
    with pytest.raises(IndexFileError):
        decode_time_index(data)


@given(st.lists(st.integers(1, 9_000), min_size=1, max_size=80), st.integers(0, 500))
def test_the_offset_index_finds_the_last_indexed_batch_before_an_offset(sizes: list[int], offset: int) -> None:
    index = OffsetIndex()
    batches: list[tuple[int, int]] = []
    position = 0
    for number, size in enumerate(sizes):
        batches.append((number * 3, position))
        index.add(number * 3, position)
        position += size
    indexed = [batches[0]]
    for batch in batches[1:]:
        if batch[1] - indexed[-1][1] >= 4096:
            indexed.append(batch)
    number = index.floor(offset)
    assert index.entry(number) == max(entry for entry in indexed if entry[0] <= offset)
    following = [at for _, at in indexed if at > index.entry(number)[1]]
    assert index.following_position(number) == (following[0] if following else None)
    assert decode_offset_index(index.encode(9, below=position)).entries == indexed


@given(st.lists(st.integers(0, 20_000), min_size=1, max_size=60), st.integers(-10, 21_000))
def test_no_record_before_the_time_index_entry_reaches_the_time(times_ms: list[int], wanted_ms: int) -> None:
    index = TimeIndex()
    for offset, time_ms in enumerate(times_ms):
        index.add(offset, time_ms, time_ms)
    entry = index.entry_before(wanted_ms)
    start = 0 if entry is None else entry[1]
    assert all(time_ms < wanted_ms for time_ms in times_ms[:start])
    bound_ms = index.latest_bound_ms
    assert bound_ms is not None
    assert max(times_ms) <= bound_ms
    found = decode_time_index(index.encode(3))
    steps = struct.unpack(f"<{len(found.timestamps_ms)}q", found.timestamps_ms.tobytes())
    assert all(later - earlier >= 1_000 for earlier, later in pairwise(steps))
    assert (found.min_timestamp_ms, found.max_timestamp_ms) == (min(times_ms), max(times_ms))

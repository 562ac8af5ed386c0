"""GoQueue's small files: indexes, delay index, committed offsets, and where the partitions are."""

from __future__ import annotations

from datetime import UTC, datetime

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.reference_broker.storage_tools.foreign.goqueue_files import (
    GoQueueFileError,
    GroupOffsets,
    PartitionOffset,
    TopicOffsets,
    decode_offsets,
    encode_index,
    file_name,
    parse_file_name,
)


def test_names() -> None:
    assert file_name(67_108_864) == "00000000000067108864.log"
    assert file_name(7, ".timeindex") == "00000000000000000007.timeindex"
    assert parse_file_name("00000000000067108864.log") == 67_108_864
    for other in ("67108864.log", "00000000000067108864.index", "00000000000067108864", "0000000000006710886x.log"):
        assert parse_file_name(other) is None


def test_index_entries_are_pairs_of_big_endian_numbers() -> None:
    data = bytes.fromhex("0000000000000005000000000000000000000000000000090000000000001234")
    assert encode_index([(5, 0), (9, 0x1234)]) == data


def test_committed_offsets_as_goqueue_writes_them() -> None:
    data = b"""{"group_id": "g", "topics": {"orders": {"topic": "orders", "partitions": {
        "0": {"partition": 0, "offset": 1523, "committed_at": "2026-01-03T12:00:00.123456789Z", "metadata": "c1"},
        "11": {"partition": 11, "offset": 0, "committed_at": "0001-01-01T00:00:00Z", "metadata": ""}}}},
        "generation": 5, "updated_at": "2026-01-03T13:00:00+01:00", "added_later": true}"""
    offsets = decode_offsets(data)
    assert offsets.topics["orders"].partitions[0].offset == 1_523
    assert offsets.topics["orders"].partitions[0].committed_at == datetime(2026, 1, 3, 12, 0, 0, 123_457, tzinfo=UTC)
    assert (offsets.generation, offsets.topics["orders"].partitions[11].metadata) == (5, "")
    assert decode_offsets(msgspec.json.encode(offsets)) == offsets


def committed(*, partition: int, offset: int, key: int) -> bytes:
    when = datetime(2026, 1, 3, tzinfo=UTC)
    entry = PartitionOffset(partition=partition, offset=offset, committed_at=when)
    topics = {"t": TopicOffsets(topic="t", partitions={key: entry})}
    return msgspec.json.encode(GroupOffsets(group_id="g", topics=topics, generation=1, updated_at=when))


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{",
        b"\xff\xfe",
        b'{"group_id": "g", "topics": {}, "generation": "5", "updated_at": "2026-01-03T13:00:00Z"}',
        committed(partition=1, offset=2, key=0),
        committed(partition=1, offset=-2, key=1),
    ],
)
def test_damaged_committed_offsets_are_refused(data: bytes) -> None:
    with pytest.raises(GoQueueFileError):
        decode_offsets(data)


@settings(max_examples=200, deadline=None)
@given(data=st.binary(max_size=200), prefix=st.sampled_from([b"", b'{"group_id"']))
def test_random_bytes_give_an_answer_or_the_right_error(data: bytes, prefix: bytes) -> None:
    try:
        decode_offsets(prefix + data)
    except GoQueueFileError as error:
        assert str(error)

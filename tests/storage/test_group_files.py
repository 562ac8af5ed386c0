"""The snapshot files of a group: FluxMQ's bytes both ways, and nothing else accepted."""

from __future__ import annotations

import json
from base64 import b64encode

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.reference_broker.queues.jobs.store import CursorRecord, PendingRecord
from assay.reference_broker.storage.group_files import (
    CursorFile,
    GroupFileError,
    GroupFileVersionError,
    PendingFile,
    PendingFileEncoder,
    decode_cursor_file,
    decode_pending_file,
    encode_cursor_file,
)

NAMES = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
U64 = st.integers(0, 2**64 - 1)
ENTRIES = st.lists(
    st.builds(
        PendingRecord,
        st.integers(0, 2**32 - 1),
        st.integers(0, 2**64 - 2),
        NAMES,
        U64,
        U64,
        st.integers(0, 65_535),
    ),
    max_size=12,
)


def encode_pending(group: str, entries: list[PendingRecord], now_ms: int) -> bytes:
    encoder = PendingFileEncoder(group)
    assert encoder.add(entries) == len(entries)
    return encoder.encode(now_ms)


def go_json(document: object) -> bytes:
    """As Go indents, keys of maps in order."""
    return json.dumps(document, indent=2, ensure_ascii=False).encode()


def test_a_cursor_file_is_these_bytes() -> None:
    cursors = {10: CursorRecord(7, 7), 2: CursorRecord(2**63, 5), 0: CursorRecord(0, 0)}
    wanted = go_json(
        {
            "version": 1,
            "group_id": "workers@a/+",
            "cursors": {
                str(partition): {"Cursor": cursor, "Committed": committed, "UpdatedAt": 1_737_900_000_123}
                for partition, (cursor, committed) in sorted(cursors.items(), key=lambda item: str(item[0]))
            },
            "saved_at": 1_737_900_000_123,
        }
    )
    assert encode_cursor_file("workers@a/+", cursors, 1_737_900_000_123) == wanted
    assert decode_cursor_file(wanted) == CursorFile(group="workers@a/+", cursors=cursors, saved_at_ms=1_737_900_000_123)


def test_a_pending_file_is_these_bytes() -> None:
    entries = [
        PendingRecord(1, 5, "c-1", 1_000, 0, 1),
        PendingRecord(0, 9, "", 1_001, 2_000, 4),
        PendingRecord(0, 6, 'ü"\\\n', 1_002, 0, 2),
        PendingRecord(0, 8, "c-1", 1_003, 0, 3),
        PendingRecord(0, 4, "c-1", 1_004, 3_000, 1, b"\0noted"),
    ]
    listed: dict[str, list[dict[str, object]]] = {}
    for partition, offset, consumer, claimed_at, due_at, count, noted in sorted(
        entries, key=lambda entry: entry.consumer
    ):
        fields: dict[str, object] = {
            "Offset": offset,
            "PartitionID": partition,
            "ConsumerID": consumer,
            "ClaimedAt": claimed_at,
            "DeliveryCount": count,
        }
        fields |= {} if consumer and not due_at else {"DueAt": due_at}
        fields |= {"Annotations": b64encode(noted).decode()} if noted else {}
        listed.setdefault(consumer, []).append(fields)
    wanted = go_json({"version": 1, "group_id": "g", "entries": listed, "saved_at": 77})
    assert encode_pending("g", entries, 77) == wanted
    assert decode_pending_file(wanted) == PendingFile(
        group="g", entries=(entries[1], entries[0], entries[3], entries[4], entries[2]), saved_at_ms=77
    )


def test_files_with_nothing_in_them() -> None:
    assert encode_cursor_file("g", {}, 5) == go_json({"version": 1, "group_id": "g", "cursors": {}, "saved_at": 5})
    assert encode_pending("g", [], 5) == go_json({"version": 1, "group_id": "g", "entries": {}, "saved_at": 5})


def test_files_from_after_partitions_were_given_up() -> None:
    cursor = {"Cursor": 12, "Committed": 3, "UpdatedAt": 9}
    assert decode_cursor_file(go_json({"version": 1, "group_id": "g", "cursor": cursor, "saved_at": 5})).cursors == {
        0: CursorRecord(12, 3)
    }
    entry = {"Offset": 4, "ConsumerID": "c", "ClaimedAt": 10, "DeliveryCount": 2}
    content = go_json({"version": 1, "group_id": "g", "entries": {"c": [entry], "d": None}, "saved_at": 5})
    assert decode_pending_file(content).entries == (PendingRecord(0, 4, "c", 10, 0, 2),)


@given(NAMES, ENTRIES, st.integers(0, 2**62))
@settings(max_examples=150, deadline=None)
def test_pending_files_come_back(group: str, entries: list[PendingRecord], now_ms: int) -> None:
    found = decode_pending_file(encode_pending(group, entries, now_ms))
    assert (found.group, sorted(found.entries), found.saved_at_ms) == (group, sorted(entries), now_ms)


@given(NAMES, st.dictionaries(st.integers(0, 2**32 - 1), st.tuples(U64, U64), max_size=6), st.integers(0, 2**62))
@settings(max_examples=100, deadline=None)
def test_cursor_files_come_back(group: str, pairs: dict[int, tuple[int, int]], now_ms: int) -> None:
    cursors = {partition: CursorRecord(max(pair), min(pair)) for partition, pair in pairs.items()}
    found = decode_cursor_file(encode_cursor_file(group, cursors, now_ms))
    assert (found.group, found.cursors, found.saved_at_ms) == (group, cursors, now_ms)


def cursor_text(fields: str, partition: str = "0") -> bytes:
    return f'{{"version":1,"group_id":"g","cursors":{{"{partition}":{{{fields}}}}},"saved_at":1}}'.encode()


def pending_text(**changed: object) -> bytes:
    entry = {"Offset": 1, "PartitionID": 0, "ConsumerID": "c", "ClaimedAt": 1, "DeliveryCount": 1} | changed
    return go_json({"version": 1, "group_id": "g", "entries": {"c": [entry]}, "saved_at": 1})


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[]",
        b'{"version":1}',
        b'{"group_id":"g","cursors":{},"saved_at":1}',
        b"[" * 100_000,
        b'{"version":1,"x":' + b"[" * 100_000,
        b'{"version":1,"group_id":"\xff","cursors":{}}',
        cursor_text('"Cursor":"5"'),
        cursor_text('"Committed":5'),
        cursor_text('"Cursor":5,"Committed":6'),
        cursor_text('"Cursor":-1'),
        cursor_text(f'"Cursor":{2**64}'),
        cursor_text('"Cursor":1', partition="x"),
        cursor_text('"Cursor":1', partition="-1"),
        cursor_text('"Cursor":1', partition=str(2**32)),
    ],
)
def test_what_is_no_cursor_file_is_refused(content: bytes) -> None:
    with pytest.raises(GroupFileError):
        decode_cursor_file(content)


@pytest.mark.parametrize(
    "changed",
    [
        {"Offset": -1},
        {"Offset": 2**64 - 1},
        {"Offset": None},
        {"Offset": 1.5},
        {"PartitionID": 2**32},
        {"ConsumerID": 7},
        {"ClaimedAt": -1},
        {"DueAt": 2**64},
        {"DeliveryCount": 65_536},
    ],
)
def test_what_is_no_pending_file_is_refused(changed: dict[str, object]) -> None:
    assert decode_pending_file(pending_text()).entries
    with pytest.raises(GroupFileError):
        decode_pending_file(pending_text(**changed))


def test_another_version_is_told_apart() -> None:
    for decode in (decode_cursor_file, decode_pending_file):
        with pytest.raises(GroupFileVersionError, match="version 2; this broker reads version 1"):
            decode(b'{"version":2,"state":{}}')


@given(st.binary(max_size=200), st.integers(0, 400), st.integers(0, 255))
@settings(max_examples=300, deadline=None)
def test_random_and_damaged_bytes_are_no_crash(data: bytes, position: int, byte: int) -> None:
    whole = encode_pending("g", [PendingRecord(1, 5, "c", 1_000, 0, 1), PendingRecord(0, 9, "", 1, 2, 4)], 77)
    damaged = bytearray(whole)
    damaged[position % len(whole)] = byte
    for content in (data, bytes(damaged), whole[: position % len(whole)]):
        for decode in (decode_cursor_file, decode_pending_file):
            try:
                decode(content)
            except GroupFileError as error:
                assert str(error)

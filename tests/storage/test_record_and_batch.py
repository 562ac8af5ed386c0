"""The record and batch codec: against an encoder written from the layout tables, and against damage."""

from __future__ import annotations

import struct

import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.reference_broker.config import Compression
from assay.reference_broker.queues.jobs.store import LogRecord, NewRecord
from assay.reference_broker.storage import batch as batch_module
from assay.reference_broker.storage.batch import (
    HEADER_BYTES,
    MAX_BATCH_RECORDS,
    BatchEncoder,
    BatchError,
    BatchFlag,
    BatchProblem,
    decode_batch,
    decode_header,
)
from assay.reference_broker.storage.record import RecordError, read_uvarint, read_zigzag, uvarint, zigzag
from assay.reference_broker.storage.record_decoder import decode_records

BYTES = st.binary(max_size=40)
RECORDS = st.lists(
    st.builds(
        NewRecord,
        timestamp_ms=st.integers(0, 2**44),
        key=st.none() | BYTES,
        value=st.none() | BYTES | st.binary(min_size=300, max_size=20_000),
        headers=st.lists(st.tuples(BYTES, BYTES), max_size=4).map(tuple),
    ),
    min_size=1,
    max_size=12,
)


def crc32c_by_the_bit(data: bytes) -> int:
    """CRC-32C from its definition: reflected polynomial 0x82F63B78, all ones in, all ones out."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def leb(number: int) -> bytes:
    return bytes([number]) if number < 128 else bytes([number % 128 + 128]) + leb(number // 128)


def signed(number: int) -> bytes:
    return leb(2 * number if number >= 0 else -2 * number - 1)


def golden_batch(base_offset: int, records: list[NewRecord]) -> bytes:
    """An uncompressed batch, straight from the layout table."""
    base = records[0].timestamp_ms
    body = b""
    for delta, record in enumerate(records):
        body += leb(delta) + signed(record.timestamp_ms - base)
        for field in (record.key, record.value):
            body += signed(-1) if field is None else signed(len(field)) + field
        body += leb(len(record.headers))
        for key, value in record.headers:
            body += leb(len(key)) + key + leb(len(value)) + value
    flags = 2 | (4 if any(r.key is not None for r in records) else 0) | (8 if any(r.headers for r in records) else 0)
    header = bytearray(44)
    header[0:4] = bytes.fromhex("58554c46")
    header[8:16] = base_offset.to_bytes(8, "little")
    header[16:20] = len(body).to_bytes(4, "little")
    header[20:22] = len(records).to_bytes(2, "little")
    header[22:24] = flags.to_bytes(2, "little")
    header[24:26] = bytes([0, 1])
    header[28:36] = base.to_bytes(8, "little")
    header[36:44] = max(r.timestamp_ms for r in records).to_bytes(8, "little")
    header[4:8] = crc32c_by_the_bit(bytes(header[8:]) + body).to_bytes(4, "little")
    return bytes(header) + body


def as_read(base_offset: int, records: list[NewRecord]) -> list[LogRecord]:
    return [LogRecord(base_offset + index, *record) for index, record in enumerate(records)]


def test_a_batch_is_these_bytes() -> None:
    records = [
        NewRecord(1_700_000_000_000, b"", b"hello", ((b"_topic", b"$queue/q"),)),
        NewRecord(1_700_000_000_003, None, None, ()),
    ]
    encoded = BatchEncoder(Compression.NONE).encode(67_108_864, records)
    assert encoded.hex() == (
        "58554c46" + encoded[4:8].hex() + "0000000400000000" + "1f000000" + "0200" + "0e00" + "00" + "01" + "0000"
        "0068e5cf8b010000" + "0368e5cf8b010000"
        "00"
        + "00"
        + "00"
        + "0a"
        + b"hello".hex()
        + "01"
        + "06"
        + b"_topic".hex()
        + "08"
        + b"$queue/q".hex()
        + "01"
        + "06"
        + "01"
        + "01"
        + "00"
    )
    assert encoded == golden_batch(67_108_864, records)


@given(st.integers(0, 2**62), RECORDS)
@settings(deadline=None)
def test_encoding_agrees_with_the_table(base_offset: int, records: list[NewRecord]) -> None:
    small = [record._replace(value=record.value[:100] if record.value is not None else None) for record in records]
    assert BatchEncoder(Compression.NONE).encode(base_offset, small) == golden_batch(base_offset, small)


@given(st.integers(0, 2**62), RECORDS, st.sampled_from(Compression))
@settings(deadline=None)
def test_what_is_encoded_is_decoded(base_offset: int, records: list[NewRecord], compression: Compression) -> None:
    encoder = BatchEncoder(compression)
    encoded = encoder.encode(base_offset, records)
    assert decode_batch(encoded) == as_read(base_offset, records)
    assert encoder.encode(base_offset, records) == encoded, "remembered headers change nothing"
    header = decode_header(encoded)
    assert header.total_bytes == len(encoded)
    assert header.max_timestamp_ms == max(record.timestamp_ms for record in records)


@given(RECORDS, st.data())
@settings(max_examples=50, deadline=None)
def test_every_flipped_bit_is_noticed(records: list[NewRecord], data: st.DataObject) -> None:
    encoded = bytearray(BatchEncoder(Compression.NONE).encode(7, records))
    position = data.draw(st.integers(0, len(encoded) - 1))
    encoded[position] ^= 1 << data.draw(st.integers(0, 7))
    with pytest.raises(BatchError):
        decode_batch(bytes(encoded))


@given(RECORDS, st.data())
@settings(max_examples=50, deadline=None)
def test_every_cut_is_noticed(records: list[NewRecord], data: st.DataObject) -> None:
    encoded = BatchEncoder(Compression.NONE).encode(7, records)
    with pytest.raises(BatchError, match="cut short"):
        decode_batch(encoded[: data.draw(st.integers(0, len(encoded) - 1))])


@given(st.binary(max_size=200), st.integers(1, 20))
@settings(deadline=None)
def test_records_from_arbitrary_bytes_never_crash(data: bytes, count: int) -> None:
    try:
        records = decode_records(data, count, 0, 0)
    except RecordError:
        return
    assert len(records) == count


@given(st.integers(0, 2**64 - 1), st.integers(-(2**62), 2**62))
@settings(deadline=None)
def test_varints(number: int, signed_number: int) -> None:
    assert uvarint(number) == leb(number)
    assert read_uvarint(uvarint(number), 0) == (number, len(uvarint(number)))
    assert zigzag(signed_number) == signed(signed_number)
    assert read_zigzag(b"\xff" + zigzag(signed_number), 1)[0] == signed_number


@pytest.mark.parametrize("data", [b"", b"\x80", b"\xff" * 10, b"\xff" * 9 + b"\x02"])
def test_endless_or_too_large_varints_are_refused(data: bytes) -> None:
    with pytest.raises(RecordError):
        read_uvarint(data, 0)


def test_compression_is_kept_only_where_it_helps() -> None:
    encoder = BatchEncoder(Compression.ZSTD)
    repetitive = encoder.encode(0, [NewRecord(0, b"", b"a" * 10_000, ())])
    small = encoder.encode(0, [NewRecord(0, b"", b"a" * 100, ())])
    assert decode_header(repetitive).flags & BatchFlag.COMPRESSED
    assert len(repetitive) < 500
    assert not decode_header(small).flags & BatchFlag.COMPRESSED
    assert (decode_header(small).compression, decode_header(repetitive).compression) == (2, 2)


def with_body(body: bytes, *, flags: int, compression: int, count: int = 1) -> bytes:
    rest = struct.pack("<QIHHBBHqq", 0, len(body), count, flags, compression, 1, 0, 0, 0)
    return b"XULF" + struct.pack("<I", crc32c_by_the_bit(rest + body)) + rest + body


def test_a_decompression_bomb_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_module, "MAX_RECORDS_BYTES", 100_000)
    sized = zstandard.ZstdCompressor().compress(bytes(200_000))
    stream = zstandard.ZstdCompressor(write_content_size=False).compressobj()
    unsized = stream.compress(bytes(200_000)) + stream.flush()
    for bomb in (sized, unsized):
        with pytest.raises(BatchError) as caught:
            decode_batch(with_body(bomb, flags=3, compression=2))
        assert caught.value.problem is BatchProblem.BAD_COMPRESSION


@pytest.mark.parametrize("compression", [0, 3])
def test_unknown_compression_says_so(compression: int) -> None:
    with pytest.raises(BatchError, match="not supported"):
        decode_batch(with_body(b"\x00" * 8, flags=3, compression=compression))


@pytest.mark.parametrize(
    ("position", "value", "problem"),
    [
        (0, 0x59, BatchProblem.BAD_MAGIC),
        (25, 2, BatchProblem.BAD_VERSION),
        (25, 0, BatchProblem.BAD_HEADER),
        (26, 1, BatchProblem.BAD_HEADER),
        (20, 0, BatchProblem.BAD_HEADER),
        (19, 0xFF, BatchProblem.BAD_HEADER),
        (15, 0xFF, BatchProblem.BAD_HEADER),
        (4, 0, BatchProblem.BAD_CHECKSUM),
    ],
)
def test_each_header_field_is_checked(position: int, value: int, problem: BatchProblem) -> None:
    encoded = bytearray(BatchEncoder(Compression.NONE).encode(0, [NewRecord(5, b"", b"payload", ())]))
    assert encoded[position] != value
    encoded[position] = value
    with pytest.raises(BatchError) as caught:
        decode_batch(bytes(encoded))
    assert caught.value.problem is problem


def test_a_batch_holds_no_more_than_its_count_can_say() -> None:
    record = NewRecord(0, None, b"", ())
    encoder = BatchEncoder(Compression.NONE)
    full = encoder.encode(0, [record] * MAX_BATCH_RECORDS)
    assert len(decode_batch(full)) == MAX_BATCH_RECORDS
    for wrong in ([], [record] * (MAX_BATCH_RECORDS + 1)):
        with pytest.raises(BatchError):
            encoder.encode(0, wrong)


def test_offsets_must_grow_and_nothing_may_follow_the_last_record() -> None:
    record = b"\x00\x00\x01\x01\x00"
    with pytest.raises(RecordError, match="does not follow"):
        decode_records(record * 2, 2, 0, 0)
    with pytest.raises(RecordError, match="follow the last"):
        decode_records(record + b"\x00", 1, 0, 0)
    with pytest.raises(RecordError, match="past the end"):
        decode_records(b"\x00\x00\x14ab\x01\x00", 1, 0, 0)
    assert HEADER_BYTES == 44

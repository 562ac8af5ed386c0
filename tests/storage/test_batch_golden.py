"""Golden segment files, and a few-line encoder and decoder written from the layout table of FluxMQ's format.

Nothing here uses the broker's codec to make or read bytes, so that it and the codec can only agree by both being right.
Running this module as a program writes the golden files anew. The two ``klauspost`` files hold what another
implementation compressed, called as FluxMQ calls it: github.com/klauspost/compress 1.18.0, ``s2.Encode`` and ``zstd``
at its default level, on the records section of ``conversation()``.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path

import cramjam
import pytest
import zstandard

from assay.reference_broker.config import Compression
from assay.reference_broker.queues.jobs.store import LogRecord, NewRecord
from assay.reference_broker.storage.batch import BatchEncoder, BatchFlag, decode_batch, decode_header

GOLDEN = Path(__file__).parent / "golden"
T0 = 1_700_000_000_000
NONE, S2, ZSTD = 0, 1, 2


# -- the table, as code ------------------------------------------------------------------------------------------------


def crc32c_by_the_bit(data: bytes) -> int:
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


def section(records: list[NewRecord]) -> bytes:
    """The records of a batch, uncompressed."""
    out = b""
    for delta, record in enumerate(records):
        out += leb(delta) + signed(record.timestamp_ms - records[0].timestamp_ms)
        for field in (record.key, record.value):
            out += signed(-1) if field is None else signed(len(field)) + field
        out += leb(len(record.headers))
        for name, value in record.headers:
            out += leb(len(name)) + name + leb(len(value)) + value
    return out


def batch_of(base_offset: int, records: list[NewRecord], code: int = NONE, compressed: bytes | None = None) -> bytes:
    """A batch with a compression byte; ``compressed`` stands for the records when it is given."""
    stored = section(records) if compressed is None else compressed
    flags = (
        2 | (compressed is not None) | 4 * any(r.key is not None for r in records) | 8 * any(r.headers for r in records)
    )
    checked = (
        base_offset.to_bytes(8, "little")
        + len(stored).to_bytes(4, "little")
        + len(records).to_bytes(2, "little")
        + flags.to_bytes(2, "little")
        + bytes([code, 1, 0, 0])
        + records[0].timestamp_ms.to_bytes(8, "little")
        + max(record.timestamp_ms for record in records).to_bytes(8, "little")
        + stored
    )
    return b"XULF" + crc32c_by_the_bit(checked).to_bytes(4, "little") + checked


def batches_in(segment: bytes) -> Iterator[bytes]:
    while segment:
        end = 44 + int.from_bytes(segment[16:20], "little")
        yield segment[:end]
        segment = segment[end:]


def read_leb(data: bytes, at: int) -> tuple[int, int]:
    number = shift = 0
    while True:
        number |= data[at] % 128 << shift
        shift, at = shift + 7, at + 1
        if data[at - 1] < 128:
            return number, at


def read_signed(data: bytes, at: int) -> tuple[int, int]:
    number, at = read_leb(data, at)
    return number // 2 if number % 2 == 0 else -(number + 1) // 2, at


def records_in(batch: bytes) -> list[LogRecord]:
    """The reader of the table; a compressed section is left to the libraries."""
    number = int.from_bytes
    assert batch[:4] == b"XULF"
    assert number(batch[4:8], "little") == crc32c_by_the_bit(batch[8:])
    data = batch[44 : 44 + number(batch[16:20], "little")]
    if batch[22] & 1:
        data = zstandard.decompress(data) if batch[24] == ZSTD else bytes(cramjam.snappy.decompress_raw(data))
    records, at = [], 0
    for _ in range(number(batch[20:22], "little")):
        delta, at = read_leb(data, at)
        ticks, at = read_signed(data, at)
        fields: list[bytes | None] = []
        for _ in range(2):
            size, at = read_signed(data, at)
            fields.append(None if size < 0 else data[at : at + size])
            at += max(size, 0)
        count, at = read_leb(data, at)
        strings: list[bytes] = []
        for _ in range(2 * count):
            size, at = read_leb(data, at)
            strings.append(data[at : at + size])
            at += size
        headers = tuple(zip(strings[::2], strings[1::2], strict=True))
        offset = number(batch[8:16], "little") + delta
        records.append(LogRecord(offset, number(batch[28:36], "little") + ticks, *fields, headers))
    assert at == len(data)
    return records


# -- what the files hold -----------------------------------------------------------------------------------------------


def noise(size: int, seed: bytes) -> bytes:
    """Bytes that do not compress."""
    out = b""
    while len(out) < size:
        out += hashlib.sha256(seed + len(out).to_bytes(4, "little")).digest()
    return out[:size]


def odd_ones() -> list[NewRecord]:
    """Null and empty keys and values, headers, clocks that step back and far ahead, lengths of one to three bytes."""
    topic = ((b"_topic", b"$queue/orders"), (b"", b""), (b"colour", "grün".encode()))
    return [
        NewRecord(T0, None, None, ()),
        NewRecord(T0 - 1, b"", b"", ()),
        NewRecord(T0 + 64, b"k" * 63, b"v" * 63, topic),
        NewRecord(T0 - 90_000, b"k" * 64, b"v" * 64, topic[:1]),
        NewRecord(T0 + 31_536_000_000, b"", b"\x00" * 8_191, ()),
        NewRecord(T0, None, noise(8_192, b"long"), ((b"h" * 200, b"x" * 300),)),
    ]


def many() -> list[NewRecord]:
    """Offset deltas of one and two bytes; runs of one shape, and one record in the middle that is of another."""
    records = [NewRecord(T0 + index // 40, b"%08d" % index, noise(20, b"%d" % index), ()) for index in range(300)]
    records[70] = NewRecord(T0, None, b"different", ((b"a", b"b"),))
    return records


def conversation() -> list[NewRecord]:
    """What compresses: documents that resemble each other."""
    return [
        NewRecord(
            T0 + 7 * index,
            b"",
            b'{"device":"sensor-%03d","celsius":%d.%d,"status":"%s","note":"%s"}'
            % (index * 37 % 100, 15 + index % 9, index % 10, b"ok" if index % 7 else b"warn", b"-" * (index % 5) * 40),
            ((b"_topic", b"$queue/readings/%d" % (index % 3)), (b"_id", b"%d" % (1_000 + index))),
        )
        for index in range(120)
    ]


def alike(size: int) -> list[NewRecord]:
    return [NewRecord(T0, b"", b"a" * size, ())]


def s2_by_hand() -> bytes:
    """The records of ``alike(5000)``: a literal, a copy, repeats of three length codes, a literal."""
    data = section(alike(5_000))
    left = data.count(b"a") - 1 - 4 - 8 - (8 + 200) - 260
    return b"".join(
        (
            leb(len(data)),
            bytes([5 << 2]) + data[:6],
            bytes([0b000_000_01, 1]),
            bytes([0b000_100_01, 0]),
            bytes([0b000_101_01, 0, 200]),
            bytes([0b000_110_01, 0]) + left.to_bytes(2, "little"),
            bytes([0 << 2]) + data[-1:],
        )
    )


def zstd_by_hand() -> bytes:
    """The records of ``alike(5000)``: a raw block, a block that repeats one byte, a raw block."""
    data = section(alike(5_000))
    runs = [(0, data[:6], 6), (1, b"a", len(data) - 7), (0, data[-1:], 1)]
    frame = bytes.fromhex("28b52ffd") + bytes([0b0110_0000]) + (len(data) - 256).to_bytes(2, "little")
    for index, (kind, content, size) in enumerate(runs):
        last = index + 1 == len(runs)
        frame += (size << 3 | kind << 1 | last).to_bytes(3, "little") + content
    return frame


def klauspost(kind: str) -> bytes:
    return bytes.fromhex((GOLDEN / f"klauspost_{kind}.hex").read_text())


FILES = {
    "plain.seg": lambda: batch_of(0, odd_ones()) + batch_of(6, many()) + batch_of(1 << 40, alike(1)),
    "configured_not_compressed.seg": lambda: (
        batch_of(7, alike(250), S2)
        + batch_of(8, alike(250), ZSTD)
        + batch_of(9, [NewRecord(T0, b"", noise(900, b"s2"), ())], S2)
        + batch_of(10, [NewRecord(T0, b"", noise(900, b"zstd"), ())], ZSTD)
    ),
    "s2.seg": lambda: batch_of(11, alike(5_000), S2, s2_by_hand()) + batch_of(12, conversation(), S2, klauspost("s2")),
    "zstd.seg": lambda: (
        batch_of(13, alike(5_000), ZSTD, zstd_by_hand()) + batch_of(14, conversation(), ZSTD, klauspost("zstd"))
    ),
}
CONTENT = {
    "plain.seg": [(0, odd_ones()), (6, many()), (1 << 40, alike(1))],
    "configured_not_compressed.seg": [
        (7, alike(250)),
        (8, alike(250)),
        (9, [NewRecord(T0, b"", noise(900, b"s2"), ())]),
        (10, [NewRecord(T0, b"", noise(900, b"zstd"), ())]),
    ],
    "s2.seg": [(11, alike(5_000)), (12, conversation())],
    "zstd.seg": [(13, alike(5_000)), (14, conversation())],
}


def as_read(base_offset: int, records: list[NewRecord]) -> list[LogRecord]:
    return [LogRecord(base_offset + index, *record) for index, record in enumerate(records)]


@pytest.mark.parametrize("name", FILES)
def test_the_files_are_what_the_table_says(name: str) -> None:
    assert (GOLDEN / name).read_bytes() == FILES[name]()


@pytest.mark.parametrize("name", FILES)
def test_golden_files_are_read(name: str) -> None:
    batches = list(batches_in((GOLDEN / name).read_bytes()))
    assert len(batches) == len(CONTENT[name])
    for batch, (base_offset, records) in zip(batches, CONTENT[name], strict=True):
        assert decode_batch(batch) == as_read(base_offset, records)


def test_plain_golden_batches_are_written_byte_for_byte() -> None:
    encoder = BatchEncoder(Compression.NONE)
    written = b"".join(encoder.encode(base_offset, records) for base_offset, records in CONTENT["plain.seg"])
    assert written == (GOLDEN / "plain.seg").read_bytes()


def test_what_does_not_shrink_keeps_the_configured_compression_byte_for_byte() -> None:
    encoders = {S2: BatchEncoder(Compression.S2), ZSTD: BatchEncoder(Compression.ZSTD)}
    batches = list(batches_in((GOLDEN / "configured_not_compressed.seg").read_bytes()))
    for batch, (base_offset, records) in zip(batches, CONTENT["configured_not_compressed.seg"], strict=True):
        assert not decode_header(batch).flags & BatchFlag.COMPRESSED
        assert encoders[batch[24]].encode(base_offset, records) == batch


@pytest.mark.parametrize(("compression", "code"), [(Compression.S2, S2), (Compression.ZSTD, ZSTD)])
@pytest.mark.parametrize("records", [alike(5_000), conversation(), many() + odd_ones()], ids=["alike", "json", "odd"])
def test_compressed_batches_are_read_by_the_table(
    compression: Compression, code: int, records: list[NewRecord]
) -> None:
    batch = BatchEncoder(compression).encode(100, records)
    assert batch[24] == code
    assert records_in(batch) == as_read(100, records)
    assert batch_of(100, records, code, batch[44:] if batch[22] & 1 else None) == batch


@pytest.mark.parametrize(("compression", "code"), [(Compression.S2, S2), (Compression.ZSTD, ZSTD)])
def test_sections_of_up_to_256_bytes_are_not_compressed(compression: Compression, code: int) -> None:
    encoder = BatchEncoder(compression)
    smallest, largest = alike(251), alike(250)
    assert (len(section(smallest)), len(section(largest))) == (257, 256)
    assert [encoder.encode(0, records)[22] & 1 for records in (largest, smallest)] == [0, 1]
    assert encoder.encode(0, largest) == batch_of(0, largest, code)


def test_the_foreign_s2_block_is_more_than_snappy() -> None:
    with pytest.raises(cramjam.DecompressionError):
        cramjam.snappy.decompress_raw(klauspost("s2"))


def test_offset_deltas_of_every_width_are_written_as_the_table_says() -> None:
    records = [NewRecord(T0, None, b"", ())] * 17_000
    batch = BatchEncoder(Compression.NONE).encode(5, records)
    assert batch == batch_of(5, records)
    assert decode_batch(batch) == as_read(5, records)
    assert records_in(batch)[-1].offset == 17_004


if __name__ == "__main__":
    for name, make in FILES.items():
        (GOLDEN / name).write_bytes(make())

"""Compression: S2 blocks made by hand, real zstd frames, and everything that must be refused before it costs memory."""

from __future__ import annotations

import struct
import tracemalloc
from typing import NamedTuple

import cramjam
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.reference_broker.config import Compression
from assay.reference_broker.queues.jobs.store import NewRecord
from assay.reference_broker.storage import batch as batch_module
from assay.reference_broker.storage.batch import (
    BatchEncoder,
    BatchError,
    BatchFlag,
    BatchProblem,
    decode_batch,
    decode_header,
)
from assay.reference_broker.storage.compression import (
    CompressionCode,
    CompressionError,
    compression_code,
    compressor,
    decode_s2_block,
    decompress,
)

LIMIT = 1 << 20


# -- a tiny S2 emitter and the meaning of what it emits ----------------------------------------------------------------


class Literal(NamedTuple):
    data: bytes
    length_bytes: int
    """0: the length is in the tag (up to 60)."""


class Copy(NamedTuple):
    offset: int
    length: int
    kind: int
    """1, 2 or 4 bytes of offset."""


class Repeat(NamedTuple):
    length: int


Element = Literal | Copy | Repeat


def uvarint(number: int) -> bytes:
    return bytes([number]) if number < 128 else bytes([number & 127 | 128]) + uvarint(number >> 7)


def emitted(element: Element) -> bytes:
    if isinstance(element, Literal):
        size = len(element.data) - 1
        if not element.length_bytes:
            return bytes([size << 2]) + element.data
        return bytes([59 + element.length_bytes << 2]) + size.to_bytes(element.length_bytes, "little") + element.data
    if isinstance(element, Repeat):
        for code, least, extra in ((7, 65_540, 3), (6, 260, 2), (5, 8, 1)):
            if element.length > 8 and element.length >= least:
                return bytes([code << 2 | 1, 0]) + (element.length - least).to_bytes(extra, "little")
        return bytes([element.length - 4 << 2 | 1, 0])
    if element.kind == 1:
        return bytes([element.offset >> 8 << 5 | element.length - 4 << 2 | 1, element.offset & 255])
    tag = element.length - 1 << 2 | (2 if element.kind == 2 else 3)
    return bytes([tag]) + element.offset.to_bytes(element.kind, "little")


def meant(elements: list[Element]) -> bytes:
    out, offset = bytearray(), 0
    for element in elements:
        if isinstance(element, Literal):
            out += element.data
            continue
        if isinstance(element, Copy):
            offset = element.offset
        for _ in range(element.length):
            out.append(out[-offset])
    return bytes(out)


def block(elements: list[Element]) -> bytes:
    return uvarint(len(meant(elements))) + b"".join(map(emitted, elements))


@st.composite
def s2_elements(draw: st.DrawFn) -> list[Element]:
    elements: list[Element] = [Literal(draw(st.binary(min_size=1, max_size=40)), draw(st.integers(0, 4)))]
    written, copied = len(elements[0].data), False
    for _ in range(draw(st.integers(0, 12))):
        kind = draw(st.sampled_from(("literal", "copy", "repeat") if copied else ("literal", "copy")))
        element: Element
        if kind == "literal":
            element = Literal(draw(st.binary(min_size=1, max_size=40)), draw(st.integers(0, 4)))
            written += len(element.data)
        elif kind == "repeat":
            element = Repeat(draw(st.integers(4, 12) | st.integers(255, 270) | st.just(65_545)))
            written += element.length
        else:
            width = draw(st.sampled_from((1, 2, 4)))
            offset = draw(st.integers(1, min(written, 2_047 if width == 1 else 65_535)))
            element = Copy(offset, draw(st.integers(4, 11) if width == 1 else st.integers(1, 64)), width)
            written += element.length
            copied = True
        elements.append(element)
    return elements


@given(s2_elements())
@settings(deadline=None)
def test_hand_made_s2_blocks_are_read(elements: list[Element]) -> None:
    data = block(elements)
    assert decompress(CompressionCode.S2, data, LIMIT) == meant(elements)
    claimed = len(meant(elements))
    start = len(uvarint(claimed))
    assert decode_s2_block(data, start, claimed) == meant(elements), "also what the fast path would have taken"


@pytest.mark.parametrize("length", [4, 5, 7, 8, 9, 263, 264, 515, 516, 259, 260, 65_539, 65_540, 65_541, 300_000])
def test_every_length_of_a_repeat(length: int) -> None:
    elements = [Literal(b"abc", 0), Copy(3, 4, 1), Literal(b"-", 0), Repeat(length)]
    data = block(elements)
    with pytest.raises(cramjam.DecompressionError):
        cramjam.snappy.decompress_raw(data)
    assert decompress(CompressionCode.S2, data, LIMIT) == meant(elements)


def test_a_repeat_takes_the_offset_of_the_copy_before_it_whatever_is_between() -> None:
    elements = [Literal(b"abcdef", 1), Copy(6, 3, 2), Literal(b"x", 2), Repeat(4), Copy(1, 2, 4), Repeat(4)]
    assert decompress(CompressionCode.S2, block(elements), LIMIT) == b"abcdefabcxefabbbbbbb"


@given(st.binary(max_size=3_000) | st.lists(st.sampled_from([b"abcd", b"efgh", b"x"]), max_size=300).map(b"".join))
@settings(deadline=None)
def test_the_own_decoder_reads_all_that_snappy_writes(data: bytes) -> None:
    stored = bytes(cramjam.snappy.compress_raw(data))
    assert decode_s2_block(stored, len(uvarint(len(data))), len(data)) == data


@given(st.binary(max_size=60))
@settings(max_examples=300, deadline=None)
def test_arbitrary_bytes_as_a_block_never_crash(data: bytes) -> None:
    try:
        result = decompress(CompressionCode.S2, data, LIMIT)
    except CompressionError:
        return
    assert len(result) <= LIMIT


@given(s2_elements(), st.data())
@settings(deadline=None)
def test_damaged_blocks_are_refused_or_give_what_they_claim(elements: list[Element], data: st.DataObject) -> None:
    stored = bytearray(block(elements))
    for _ in range(data.draw(st.integers(1, 3))):
        stored[data.draw(st.integers(0, len(stored) - 1))] = data.draw(st.integers(0, 255))
    try:
        result = decompress(CompressionCode.S2, bytes(stored), LIMIT)
    except CompressionError:
        return
    assert uvarint(len(result))[0] == stored[0]


@given(s2_elements(), st.data())
@settings(deadline=None)
def test_a_block_that_is_cut_short_is_refused(elements: list[Element], data: st.DataObject) -> None:
    stored = block(elements)
    with pytest.raises(CompressionError):
        decompress(CompressionCode.S2, stored[: data.draw(st.integers(0, len(stored) - 1))], LIMIT)


@pytest.mark.parametrize(
    ("stored", "reason"),
    [
        (b"", "start with its length"),
        (b"\x80", "start with its length"),
        (b"\xff\xff\xff\xff\xff\x01", "start with its length"),
        (b"\xff\xff\xff\xff\x1f", "start with its length"),
        (uvarint(LIMIT + 1), "the limit is"),
        (uvarint(5), "0 bytes claims 5"),
        (uvarint(5) + b"\x05\x00", "reaches 0 bytes back"),
        (uvarint(5) + b"\x00a\x01\x02", "reaches 2 bytes back"),
        (uvarint(5) + b"\x00a\x0e\x00\x00", "reaches 0 bytes back"),
        (uvarint(5) + b"\x00a\x0f\xff\xff\xff\xff", "bytes back"),
        (uvarint(5) + b"\x00a\x05\x01\x01\x00", "more than the 5 bytes"),
        (uvarint(5) + b"\x00a\x1d\x00\xff\xff\xff", "more than the 5 bytes"),
        (uvarint(5) + b"\x00a\x1d\x00\xff", "cut short"),
        (uvarint(5) + b"\x00a\x05", "cut short"),
        (uvarint(5) + b"\x00a\x06\x01", "cut short"),
        (uvarint(5) + b"\x14abcdef", "more than the 5 bytes"),
        (uvarint(5) + b"\x10abcd", "past the end"),
        (uvarint(5) + b"\xf0", "cut short"),
        (uvarint(5) + b"\xfc\xff\xff\xff\xff", "past the end"),
        (uvarint(1) + b"\x00a\x00b", "more than the 1 bytes"),
    ],
)
def test_why_an_s2_block_is_refused(stored: bytes, reason: str) -> None:
    with pytest.raises(CompressionError, match=reason):
        decompress(CompressionCode.S2, stored, LIMIT)


# -- zstd --------------------------------------------------------------------------------------------------------------


def unsized_frame(data: bytes, *, checksum: bool = False) -> bytes:
    stream = zstandard.ZstdCompressor(write_content_size=False, write_checksum=checksum).compressobj()
    return stream.compress(data) + stream.flush()


@given(st.binary(max_size=2_000), st.integers(-5, 5), st.booleans())
@settings(deadline=None)
def test_zstd_frames_of_any_level_are_read(data: bytes, level: int, checksum: bool) -> None:
    frame = zstandard.ZstdCompressor(level=level, write_checksum=checksum).compress(data)
    assert decompress(CompressionCode.ZSTD, frame, LIMIT) == data
    assert decompress(CompressionCode.ZSTD, unsized_frame(data, checksum=checksum), LIMIT) == data


FRAME = zstandard.ZstdCompressor().compress(b"twelve bytes" * 40)


@pytest.mark.parametrize(
    "stored",
    [
        b"",
        FRAME[:3],
        FRAME[:-1],
        FRAME + b"\x00",
        FRAME + FRAME,
        unsized_frame(b"a" * 500) + FRAME,
        unsized_frame(b"a" * 500) + b"x",
        FRAME[:4] + b"\xff" * 20,
        b"\x50\x2a\x4d\x18\x04\x00\x00\x00skip" + FRAME,
        b"\x50\x2a\x4d\x18\x04\x00\x00\x00skip",
    ],
    ids=[
        "empty",
        "no header",
        "cut",
        "byte behind",
        "two",
        "two unsized",
        "byte behind unsized",
        "damaged",
        "skip",
        "skip only",
    ],
)
def test_anything_but_one_whole_zstd_frame_is_refused(stored: bytes) -> None:
    with pytest.raises(CompressionError):
        decompress(CompressionCode.ZSTD, stored, LIMIT)


# -- both --------------------------------------------------------------------------------------------------------------


@given(st.binary(max_size=5_000), st.sampled_from([Compression.S2, Compression.ZSTD]))
@settings(deadline=None)
def test_what_is_compressed_is_decompressed(data: bytes, compression: Compression) -> None:
    compress = compressor(compression)
    assert compress is not None
    assert decompress(compression_code(compression), compress(data), LIMIT) == data


def batch_with(body: bytes, code: int) -> bytes:
    rest = struct.pack("<QIHHBBHqq", 0, len(body), 1, 3, code, 1, 0, 0, 0)
    from_definition = 0xFFFFFFFF
    for byte in rest + body:
        from_definition ^= byte
        for _ in range(8):
            from_definition = from_definition >> 1 ^ (0x82F63B78 if from_definition & 1 else 0)
    return b"XULF" + struct.pack("<I", from_definition ^ 0xFFFFFFFF) + rest + body


def bombs(size: int) -> dict[str, tuple[int, bytes]]:
    repeats = [Literal(b"a", 0), Copy(1, 64, 2), *[Repeat(16_000_000)] * (size // 16_000_000)]
    claimed = 65 + 16_000_000 * (size // 16_000_000)
    s2 = uvarint(claimed) + b"".join(map(emitted, repeats))
    liar = uvarint(1_000) + b"".join(map(emitted, repeats))
    return {
        "s2": (1, s2),
        "s2 that claims little": (1, liar),
        "s2 that claims a lot": (1, uvarint(0xFFFFFFFF) + b"\x00a"),
        "zstd": (2, zstandard.ZstdCompressor().compress(bytes(size))),
        "zstd without size": (2, unsized_frame(bytes(size))),
    }


@pytest.mark.parametrize("name", bombs(0))
def test_bombs_are_refused_before_memory_is_taken(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_module, "MAX_RECORDS_BYTES", LIMIT)
    code, bomb = bombs(64_000_000)[name]
    batch = batch_with(bomb, code)
    tracemalloc.start()
    try:
        with pytest.raises(BatchError) as caught:
            decode_batch(batch)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert caught.value.problem is BatchProblem.BAD_COMPRESSION
    assert peak < 4 * LIMIT


def test_the_flag_decides_whether_records_are_decompressed() -> None:
    records = [NewRecord(0, b"", b"a" * 1_000, ())]
    for compression in (Compression.S2, Compression.ZSTD):
        batch = BatchEncoder(compression).encode(0, records)
        header = decode_header(batch)
        assert header.flags & BatchFlag.COMPRESSED
        assert header.compression == compression_code(compression)
        assert decode_batch(batch)[0].value == b"a" * 1_000


def test_an_unknown_compression_is_named() -> None:
    with pytest.raises(CompressionError, match="compression 3 is not supported"):
        decompress(3, b"", LIMIT)

"""Compression of a batch's records: S2 blocks and zstd frames, both bounded before anything is allocated.

S2 is Snappy's block format with one addition, the repeated offset. What is written is plain Snappy, which every S2
reader takes; what is read may be either.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from enum import IntEnum

import cramjam
import zstandard

from assay.reference_broker.config import Compression

ZSTD_LEVEL = -1
"""The fast level that still finds most of what level 1 finds, and gives up early on data that does not compress."""
_BLOCK_HEADER_BYTES = 3
_REPEATED_BYTE_BLOCK = 1
_MOST_BLOCK_BYTES = 128 * 1024
_CHECKSUM_BYTES = 4
_MAX_LENGTH_BYTES = 5
"""An S2 block's length is a varint of at most 32 bits."""
_FIRST_LONG_LITERAL = 60
_REPEAT_LENGTHS = (4, 5, 6, 7, 8, 8, 260, 65_540)
"""By the length code of a repeat: what it adds to the bytes that follow it."""
_REPEAT_EXTRA_BYTES = (0, 0, 0, 0, 0, 1, 2, 3)


class CompressionCode(IntEnum):
    """The compression byte of a batch header."""

    NONE = 0
    S2 = 1
    ZSTD = 2


class CompressionError(ValueError):
    """The bytes cannot be decompressed, or would exceed the limit."""


_CODES = {
    Compression.NONE: CompressionCode.NONE,
    Compression.S2: CompressionCode.S2,
    Compression.ZSTD: CompressionCode.ZSTD,
}


def compression_code(compression: Compression) -> CompressionCode:
    """What stands for it in a batch header."""
    return _CODES[compression]


def compressor(compression: Compression) -> Callable[[bytes], bytes] | None:
    """A function that compresses whole records sections, to be used by one thread; None for no compression."""
    if compression is Compression.ZSTD:
        return zstandard.ZstdCompressor(level=ZSTD_LEVEL).compress
    if compression is Compression.S2:
        return _snappy_block
    return None


def decompress(code: int, data: bytes, limit: int) -> bytes:
    """The at most ``limit`` bytes that were compressed. Raises :class:`CompressionError`."""
    if code == CompressionCode.S2:
        return _decompress_s2(data, limit)
    if code == CompressionCode.ZSTD:
        return _decompress_zstd(data, limit)
    raise CompressionError(f"compression {code} is not supported; S2 (1) and zstd (2) are")


def _check_claim(claimed: int, limit: int) -> None:
    if claimed > limit:
        raise CompressionError(f"it claims {claimed} bytes; the limit is {limit}")


# -- zstd ------------------------------------------------------------------------------------------------------------


class _Decompressors(threading.local):
    """One per thread: the library lets go of the interpreter lock while it works on its buffers."""

    def __init__(self) -> None:
        self.zstd = zstandard.ZstdDecompressor()


_DECOMPRESSORS = _Decompressors()


def _decompress_zstd(data: bytes, limit: int) -> bytes:
    """One frame and nothing behind it."""
    try:
        claimed = zstandard.frame_content_size(data)
        _check_claim(claimed, limit)
        # With a known size the library allocates just that, and sees what follows the frame; otherwise this must.
        most = min(limit, _most_of_unsized_frame(data)) if claimed < 0 else 0
        return _DECOMPRESSORS.zstd.decompress(data, max_output_size=most, allow_extra_data=False)
    except zstandard.ZstdError as error:
        raise CompressionError(str(error)) from error


def _most_of_unsized_frame(data: bytes) -> int:
    """An upper bound of what a frame that ends where the data ends decompresses to (RFC 8878, section 3.1.1).

    Raises :class:`CompressionError` when it ends elsewhere, and :class:`zstandard.ZstdError`.
    """
    at = zstandard.frame_header_size(data)
    most, is_last = 1, False
    while not is_last and at + _BLOCK_HEADER_BYTES <= len(data):
        header = int.from_bytes(data[at : at + _BLOCK_HEADER_BYTES], "little")
        is_last, kind, size = bool(header & 1), header >> 1 & 3, header >> 3
        at += _BLOCK_HEADER_BYTES + (1 if kind == _REPEATED_BYTE_BLOCK else size)
        most += _MOST_BLOCK_BYTES
    at += _CHECKSUM_BYTES if zstandard.get_frame_parameters(data).has_checksum else 0
    if not is_last or at != len(data):
        raise CompressionError("it is not exactly one zstd frame")
    return most


# -- S2 --------------------------------------------------------------------------------------------------------------


def _snappy_block(data: bytes) -> bytes:
    return bytes(cramjam.snappy.compress_raw(data))


def _decompress_s2(data: bytes, limit: int) -> bytes:
    claimed, start = _block_length(data)
    _check_claim(claimed, limit)
    try:
        return bytes(cramjam.snappy.decompress_raw(data))
    except cramjam.DecompressionError:
        # Snappy has no repeated offsets. Whether it was that or damage, this decoder knows.
        return decode_s2_block(data, start, claimed)


def _block_length(data: bytes) -> tuple[int, int]:
    """The uncompressed length that a block claims, and where its elements start."""
    length = 0
    for index, byte in enumerate(data[:_MAX_LENGTH_BYTES]):
        length |= (byte & 0x7F) << 7 * index
        if byte < 0x80:
            if length >> 32:
                break
            return length, index + 1
    raise CompressionError("an S2 block must start with its length")


def decode_s2_block(data: bytes, start: int, claimed: int) -> bytes:
    """The elements of an S2 block from ``start`` on, which must give exactly ``claimed`` bytes.

    An element starts with a tag byte whose low two bits say what follows: 0 a literal, 1 to 3 a copy of earlier output,
    with an offset of 11, 16 or 32 bits. A copy of kind 1 whose offset is 0 repeats the offset of the copy before it,
    and its three length bits are a code (github.com/klauspost/compress, s2/README.md, "Format Extensions").
    Raises :class:`CompressionError`.
    """
    out = bytearray()
    at, end, offset = start, len(data), 0
    while at < end:
        tag = data[at]
        kind, number = tag & 3, tag >> 2
        at += 1
        if kind == 0:
            if number >= _FIRST_LONG_LITERAL:
                number, at = _little_endian(data, at, number - _FIRST_LONG_LITERAL + 1)
            length = number + 1
            if at + length > end:
                raise CompressionError("an S2 literal reaches past the end")
            _check_room(out, length, claimed)
            out += data[at : at + length]
            at += length
            continue
        if kind == 1:
            low, at = _little_endian(data, at, 1)
            length = number & 7
            if distance := (number >> 3) << 8 | low:
                offset = distance
                length += 4
            else:
                extra, at = _little_endian(data, at, _REPEAT_EXTRA_BYTES[length])
                length = _REPEAT_LENGTHS[length] + extra
        else:
            offset, at = _little_endian(data, at, 2 if kind == 2 else 4)
            length = number + 1
        _check_room(out, length, claimed)
        _copy_back(out, offset, length)
    if len(out) != claimed:
        raise CompressionError(f"an S2 block of {len(out)} bytes claims {claimed}")
    return bytes(out)


def _little_endian(data: bytes, at: int, size: int) -> tuple[int, int]:
    if at + size > len(data):
        raise CompressionError("an S2 element is cut short")
    return int.from_bytes(data[at : at + size], "little"), at + size


def _check_room(out: bytearray, length: int, claimed: int) -> None:
    if len(out) + length > claimed:
        raise CompressionError(f"an S2 block holds more than the {claimed} bytes that it claims")


def _copy_back(out: bytearray, offset: int, length: int) -> None:
    """Append ``length`` bytes from ``offset`` before the end; past the end they repeat."""
    if not 0 < offset <= len(out):
        raise CompressionError(f"an S2 copy reaches {offset} bytes back, into output of {len(out)}")
    begin = len(out) - offset
    piece = bytes(out[begin : begin + length])
    if len(piece) < length:
        piece = (piece * (length // len(piece) + 1))[:length]
    out += piece

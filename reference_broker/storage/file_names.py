"""File and folder names: safe and injective for any queue or group name, fixed width for segments."""

from __future__ import annotations

import hashlib
import string
from urllib.parse import unquote

SEGMENT_SUFFIX = ".seg"
OFFSET_INDEX_SUFFIX = ".idx"
TIME_INDEX_SUFFIX = ".tix"
COMPACTING_SUFFIX = ".compacting"
"""A compacted segment that is still being written; worthless after a crash."""
SWAP_SUFFIX = ".swap"
"""A compacted segment that is complete: it replaces those of its range."""
_OFFSET_DIGITS = 20
_MAX_OFFSET = 2**63 - 1
_MAX_NAME_CHARACTERS = 180
_PLAIN = frozenset((string.ascii_lowercase + string.digits + "_-").encode())


def encode_name(name: str) -> str:
    """A file name for a name: lower-case letters, digits, ``_`` and ``-`` stay, every other byte becomes ``%XX``.

    So two names never meet, not even on file systems that ignore case, and none is hidden or means a parent folder.
    Long names end in ``~`` and a SHA-256. Raises :class:`ValueError` for an empty name.
    """
    if not name:
        raise ValueError("an empty name has no file name")
    raw = name.encode()
    encoded = "".join(chr(byte) if byte in _PLAIN else f"%{byte:02X}" for byte in raw)
    if len(encoded) <= _MAX_NAME_CHARACTERS:
        return encoded
    digest = hashlib.sha256(raw).hexdigest()
    return f"{encoded[: _MAX_NAME_CHARACTERS - len(digest) - 1]}~{digest}"


def decode_name(encoded: str) -> str:
    """The name of an :func:`encode_name`; for one that was too long, and for what is none, what can be read of it."""
    return unquote(encoded.partition("~")[0], errors="replace")


def segment_name(base_offset: int, suffix: str = SEGMENT_SUFFIX) -> str:
    """20-digit name of the segment whose first record has that offset, or of one of its indexes."""
    return f"{base_offset:0{_OFFSET_DIGITS}d}{suffix}"


def parse_segment_name(name: str, suffix: str = SEGMENT_SUFFIX) -> int | None:
    """Base offset of a segment's file name; None for any other file."""
    digits = name.removesuffix(suffix)
    return None if digits == name else _parse_offset(digits)


def swap_name(base_offset: int, end_offset: int) -> str:
    """Name of a complete compacted segment that replaces the segments with bases from the first to below the second."""
    return f"{base_offset:0{_OFFSET_DIGITS}d}-{end_offset:0{_OFFSET_DIGITS}d}{SWAP_SUFFIX}"


def parse_swap_name(name: str) -> tuple[int, int] | None:
    """Base and end offset of a :func:`swap_name`; None for any other file."""
    first, dash, second = name.removesuffix(SWAP_SUFFIX).partition("-")
    base_offset, end_offset = _parse_offset(first), _parse_offset(second)
    if not name.endswith(SWAP_SUFFIX) or not dash or base_offset is None or end_offset is None:
        return None
    return base_offset, end_offset


def _parse_offset(digits: str) -> int | None:
    if len(digits) != _OFFSET_DIGITS or not digits.isascii() or not digits.isdecimal() or int(digits) > _MAX_OFFSET:
        return None
    return int(digits)

"""File and folder names: safe and injective for any queue or group name, fixed width for segments."""

from __future__ import annotations

import hashlib
import string

SEGMENT_SUFFIX = ".seg"
_OFFSET_DIGITS = 20
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


def segment_name(base_offset: int) -> str:
    """20-digit name of the segment whose first record has that offset."""
    return f"{base_offset:0{_OFFSET_DIGITS}d}{SEGMENT_SUFFIX}"


def parse_segment_name(name: str) -> int | None:
    """Base offset of a segment's file name; None for any other file."""
    digits = name.removesuffix(SEGMENT_SUFFIX)
    if digits == name or len(digits) != _OFFSET_DIGITS or not (digits.isascii() and digits.isdecimal()):
        return None
    return int(digits)

"""``removed-<log>.mark``: how far whole segments of a log were removed on purpose, so that a start misses others.

Sixteen bytes: magic, CRC32-C of what follows, the offset. It is written when the first segment is sealed, and durably
before each removal. A log of one segment has none, and one of an older broker gets it with its next segment; without it
nothing is said of what is missing in front.
"""

from __future__ import annotations

import contextlib
import struct

from crc32c import crc32c

from assay.reference_broker.storage.disk import Disk

REMOVED_PREFIX = "removed-"
_MAGIC = 0x4D455246
_MARK = struct.Struct("<IIQ")


def decode_removed(data: bytes) -> int | None:
    """The offset; None when the bytes are no such mark."""
    if len(data) < _MARK.size:
        return None
    magic, checksum, removed_to = _MARK.unpack_from(data)
    return removed_to if magic == _MAGIC and crc32c(data[8 : _MARK.size]) == checksum else None


def removed_path(folder: str, log: str) -> str:
    """Where the mark of a queue's log is: beside the logs, whose folders hold segments and what belongs to them."""
    return f"{folder}/{REMOVED_PREFIX}{log.replace('/', '-')}.mark"


def read_removed(disk: Disk, path: str) -> int | None:
    """Segments below that offset are gone on purpose; None when nothing is known. Raises :class:`OSError`."""
    if not disk.exists(path):
        return None
    with contextlib.closing(disk.open(path)) as file:
        return decode_removed(file.read_at(0, _MARK.size))


def write_removed(disk: Disk, path: str, removed_to: int, *, durably: bool) -> None:
    """``durably`` blocks. Raises :class:`OSError`."""
    body = struct.pack("<Q", removed_to)
    with contextlib.closing(disk.open(path, create=True)) as file:
        file.write_at(0, struct.pack("<II", _MAGIC, crc32c(body)) + body)
        if durably:
            file.sync()

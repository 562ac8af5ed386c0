"""``durable.mark``: how far a log is known to be on disk, so that recovery can tell a torn tail from lost data.

Two slots are written in turn, so that a torn write leaves the other. A slot is 40 little-endian bytes: magic, CRC32-C
of what follows, version, sequence number, offset after the last durable record, base offset of its segment, position in
it. The mark is written after a sync finished and is synced only now and then: an older mark on disk only promises less.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from crc32c import crc32c

from assay.reference_broker.storage.disk import Disk
from assay.reference_broker.storage.open_files import OpenFiles
from assay.reference_broker.storage.reopened_file import FileOnDemand

MARK_NAME = "durable.mark"
_MAGIC = 0x4B52414D
_VERSION = 1
SYNC_EVERY = 64
"""Writes after which the next sync of the log covers the mark as well."""
_SLOT_BYTES = 512
"""Slots lie in different sectors."""
_SLOT = struct.Struct("<IIIIQQQ")
_CHECKED = struct.Struct("<IIQQQ")
_CHECKED_FROM = 8


class DurableMark(NamedTuple):
    """A place in a log: everything before it survives power loss."""

    offset: int
    segment_base: int
    position: int


def decode_mark(data: bytes) -> DurableMark | None:
    """The newer sound slot of a ``durable.mark``; None when there is none."""
    newest = _newest_slot(data)
    return None if newest is None else newest[1]


def _newest_slot(data: bytes) -> tuple[int, DurableMark] | None:
    """Its sequence number and what it says."""
    best: tuple[int, DurableMark] | None = None
    for start in (0, _SLOT_BYTES):
        if len(data) < start + _SLOT.size:
            continue
        magic, checksum, version, sequence, offset, segment_base, position = _SLOT.unpack_from(data, start)
        checked = data[start + _CHECKED_FROM : start + _SLOT.size]
        if magic != _MAGIC or version != _VERSION or crc32c(checked) != checksum:
            continue
        mark = DurableMark(offset, segment_base, position)
        if best is None or (offset, sequence) > (best[1].offset, best[0]):
            best = (sequence, mark)
    return best


def encode_slot(sequence: int, mark: DurableMark) -> bytes:
    """The bytes of one slot."""
    checked = _CHECKED.pack(_VERSION, sequence, mark.offset, mark.segment_base, mark.position)
    return struct.pack("<II", _MAGIC, crc32c(checked)) + checked


class DurableMarkFile(FileOnDemand):
    """Keeps the mark of one log. Its file is open when it is written often; it may be closed at any time."""

    may_close = True

    def __init__(self, disk: Disk, folder: str, open_files: OpenFiles | None = None) -> None:
        super().__init__(disk, f"{folder}/{MARK_NAME}", open_files)
        self._sequence = 0
        self._unsynced = 0
        self._sync_after = 1

    def read(self) -> DurableMark | None:
        """The mark on disk; None when there is none. Raises :class:`OSError`."""
        if not self._disk.exists(self.path):
            return None
        newest = _newest_slot(self.file(create=True).read_at(0, 2 * _SLOT_BYTES))
        if newest is None:
            return None
        # So that the next write spares this slot.
        self._sequence = newest[0]
        return newest[1]

    def write(self, mark: DurableMark) -> None:
        """Raises :class:`OSError`; the log is none the worse for it."""
        file = self._file or self.file(create=True)
        self._sequence = (self._sequence + 1) & 0xFFFFFFFF
        self._unsynced += 1
        file.write_at(_SLOT_BYTES * (self._sequence % 2), encode_slot(self._sequence, mark))

    def take_due(self) -> tuple[str, ...]:
        """The file's path, when it is time that a sync covers it: after its first write, then once in a while."""
        if self._unsynced < self._sync_after:
            return ()
        self._unsynced = 0
        self._sync_after = SYNC_EVERY
        return (self.path,)

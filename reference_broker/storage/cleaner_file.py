"""``cleaner.json``: how far a log has been compacted.

A CRC32-C of the other fields guards it: were a log taken as cleaner than it is, compaction could remove a deletion
marker and leave what it deleted.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing

import msgspec
from crc32c import crc32c

from assay.reference_broker.storage.disk import Disk
from assay.reference_broker.storage.whole_file import replace_whole
from assay.reference_broker.trace.described import described

CLEANER_NAME = "cleaner.json"
_MAX_BYTES = 1024 * 1024


class CleanerState(msgspec.Struct, frozen=True, kw_only=True):
    """Offsets, each 0 at first."""

    version: int = 1
    gaps_until: int = 0
    """Offsets missing below it were removed by compaction."""
    clean_until: int = 0
    """Below it every key has one record at most, apart from newer ones above it."""
    kept: tuple[tuple[int, int], ...] = ()
    """Base offset and bytes of the segments that were left below one of the two: none of them goes, or gets shorter,
    but the oldest and by what is written here next."""


class _StoredState(CleanerState, frozen=True, kw_only=True):
    checksum: int
    """Of the numbers; a file of an older broker has no segments, and its reader passes them over."""
    kept_checksum: int = 0


def _checksum(state: CleanerState) -> int:
    return crc32c(b"%d %d %d" % (state.version, state.gaps_until, state.clean_until))


def _kept_checksum(state: CleanerState) -> int:
    return crc32c(b" ".join(b"%d %d" % each for each in state.kept))


def decode_cleaner(data: bytes) -> CleanerState:
    """What the file's bytes say. Raises :class:`ValueError` when they are damaged."""
    try:
        stored = msgspec.json.decode(data, type=described(_StoredState))
    except RecursionError as error:
        raise ValueError("it nests without end") from error
    state = CleanerState(version=stored.version, gaps_until=stored.gaps_until, clean_until=stored.clean_until)
    if _checksum(state) != stored.checksum:
        raise ValueError("the checksum does not match")
    return msgspec.structs.replace(state, kept=stored.kept) if _kept_checksum(stored) == stored.kept_checksum else state


def encode_cleaner(state: CleanerState) -> bytes:
    """The bytes of the file."""
    return msgspec.json.encode(
        _StoredState(
            version=state.version,
            gaps_until=state.gaps_until,
            clean_until=state.clean_until,
            checksum=_checksum(state),
            kept=state.kept,
            kept_checksum=_kept_checksum(state),
        )
    )


def read_cleaner_file(disk: Disk, folder: str, note: Callable[[str, str], None]) -> CleanerState:
    """The state of a log; that of a log never compacted when there is no sound file. Raises :class:`OSError`."""
    path = f"{folder}/{CLEANER_NAME}"
    if not disk.exists(path):
        return CleanerState()
    with closing(disk.open(path)) as file:
        data = file.read_at(0, _MAX_BYTES)
    try:
        return decode_cleaner(data)
    except ValueError as error:
        note(path, f"damaged ({error}); the log is taken as never compacted")
        return CleanerState()


def write_cleaner_file(disk: Disk, folder: str, state: CleanerState) -> None:
    """Durably; blocks. Raises :class:`OSError`."""
    replace_whole(disk, f"{folder}/{CLEANER_NAME}", encode_cleaner(state))
    disk.sync_folder(folder)

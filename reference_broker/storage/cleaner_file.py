"""``cleaner.json``: how far a log has been compacted."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from reference_broker.storage.disk import Disk

CLEANER_NAME = "cleaner.json"
_MAX_BYTES = 4_096


class CleanerState(msgspec.Struct, frozen=True, kw_only=True):
    """Offsets, each 0 at first."""

    version: int = 1
    gaps_until: int = 0
    """Offsets missing below it were removed by compaction."""
    clean_until: int = 0
    """Below it every key has one record at most, apart from newer ones above it."""


def read_cleaner_file(disk: Disk, folder: str, note: Callable[[str, str], None]) -> CleanerState:
    """The state of a log; that of a log never compacted when there is no sound file. Raises :class:`OSError`."""
    path = f"{folder}/{CLEANER_NAME}"
    if not disk.exists(path):
        return CleanerState()
    file = disk.open(path)
    try:
        data = file.read_at(0, _MAX_BYTES)
    finally:
        file.close()
    try:
        return msgspec.json.decode(data, type=CleanerState)
    except msgspec.DecodeError as error:
        note(path, f"damaged ({error}); the log is taken as never compacted")
        return CleanerState()


def write_cleaner_file(disk: Disk, folder: str, state: CleanerState) -> None:
    """Durably; blocks. Raises :class:`OSError`."""
    path = f"{folder}/{CLEANER_NAME}"
    temporary = f"{path}.tmp"
    file = disk.open(temporary, create=True)
    try:
        file.truncate(0)
        file.append(msgspec.json.encode(state))
        file.sync()
    finally:
        file.close()
    disk.rename(temporary, path)
    disk.sync_folder(folder)

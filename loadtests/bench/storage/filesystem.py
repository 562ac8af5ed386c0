"""Which file system a folder is on: figures of syncs are not real where a sync does nothing."""

from __future__ import annotations

from pathlib import Path

_IN_MEMORY = frozenset(("tmpfs", "ramfs", "devtmpfs"))
_MOUNT_POINT, _AFTER_SEPARATOR_TYPE = 4, 1
UNKNOWN = "unknown"


def filesystem_of(folder: Path, mounts: str | None = None) -> str:
    """Type of the file system, e.g. ``ext4``; ``unknown`` where the system does not tell.

    ``mounts`` is the text of ``/proc/self/mountinfo``: the longest mount point above the folder counts, of several at
    one place the last.
    """
    if mounts is None:
        try:
            mounts = Path("/proc/self/mountinfo").read_text(encoding="utf-8")
        except OSError:
            return UNKNOWN
    resolved = folder.resolve()
    found, longest = UNKNOWN, -1
    for line in mounts.splitlines():
        fields, _, rest = line.partition(" - ")
        point = Path(fields.split(" ")[_MOUNT_POINT].replace("\\040", " "))
        if resolved.is_relative_to(point) and len(point.parts) >= longest:
            found, longest = rest.split(" ")[_AFTER_SEPARATOR_TYPE - 1], len(point.parts)
    return found


def is_in_memory(filesystem: str) -> bool:
    """Nothing reaches a disk there, so a sync is free."""
    return filesystem in _IN_MEMORY

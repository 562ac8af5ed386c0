"""What the files of a broker's data folder are, as far as faults of the disk tell them apart."""

from __future__ import annotations

from enum import StrEnum


class FileKind(StrEnum):
    """Which files a fault of the disk hits."""

    ALL = "all"
    SEGMENTS = "segments"
    """Messages of queues."""
    GROUPS = "groups"
    """Where the groups of consumers stand."""
    SESSIONS = "sessions"
    """Sessions and retained messages."""
    OTHERS = "others"
    """Descriptions, marks, indexes, state of transactions."""


def file_kind(path: str) -> FileKind:
    """What a file is, by its path in the data folder."""
    if path.startswith("sessions/"):
        return FileKind.SESSIONS
    if "/consumers/" in path:
        return FileKind.GROUPS
    if path.endswith(".seg"):
        return FileKind.SEGMENTS
    return FileKind.OTHERS

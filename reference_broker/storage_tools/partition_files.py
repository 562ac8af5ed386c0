"""The files of a partition's folder that are no segments: which is what, and those that are read as a whole."""

from __future__ import annotations

from enum import Enum

from assay.reference_broker.storage.cleaner_file import CLEANER_NAME, CleanerState, decode_cleaner
from assay.reference_broker.storage.durable_mark import MARK_NAME, DurableMark, decode_mark
from assay.reference_broker.storage.file_names import COMPACTING_SUFFIX, parse_swap_name
from assay.reference_broker.storage_tools.layout import UNREADABLE_JSON, StoreFormat, segment_base
from assay.reference_broker.storage_tools.read_only_disk import ReadOnlyDisk

MARK_SLOT_STARTS = (0, 512)
CORRUPT_SUFFIX = ".corrupt"
TEMPORARY_SUFFIXES = (".tmp", COMPACTING_SUFFIX)
MARK_SLOT_BYTES = 40
_MAX_CLEANER_BYTES = 4_096


class FileRole(Enum):
    """What a file in a partition's folder is for."""

    SEGMENT = "segment"
    SWAP = "compacted segment that waits to take its place"
    INDEX = "index"
    STATE = "state of the partition"
    LEFTOVER = "temporary file"
    QUARANTINE = "damaged bytes put aside"
    UNKNOWN = "unknown"


def role_of(name: str, store_format: StoreFormat) -> FileRole:
    """What a file is for, by its name."""
    if segment_base(name, store_format) is not None:
        return FileRole.SEGMENT
    if name.endswith(TEMPORARY_SUFFIXES):
        return FileRole.LEFTOVER
    if name.endswith(CORRUPT_SUFFIX):
        return FileRole.QUARANTINE
    if store_format is StoreFormat.ASSAY and parse_swap_name(name) is not None:
        return FileRole.SWAP
    if store_format is StoreFormat.ASSAY and name in (MARK_NAME, CLEANER_NAME):
        return FileRole.STATE
    for suffix in store_format.index_suffixes:
        if segment_base(name.removesuffix(suffix) + store_format.segment_suffix, store_format) is not None:
            return FileRole.INDEX
    return FileRole.UNKNOWN


def split_mark(data: bytes) -> list[DurableMark | bytes | None]:
    """Per slot of a ``durable.mark``: the mark, empty bytes when it was never written, None when it is damaged."""
    slots: list[DurableMark | bytes | None] = []
    for start in MARK_SLOT_STARTS:
        slot = data[start : start + MARK_SLOT_BYTES]
        slots.append(decode_mark(slot) if any(slot) else b"")
    return slots


def read_cleaner(disk: ReadOnlyDisk, folder: str) -> CleanerState | None:
    """``cleaner.json``; None when the log was never compacted. Raises :class:`ValueError` when it is damaged."""
    try:
        return decode_cleaner(disk.read(f"{folder}/{CLEANER_NAME}", _MAX_CLEANER_BYTES))
    except FileNotFoundError:
        return None
    except UNREADABLE_JSON as error:
        raise ValueError(f"it does not decode: {error}") from error

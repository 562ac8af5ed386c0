"""Consumer groups of any format: where their cursors are and what is pending.

An Assay group is recovered in memory, by the broker's own code on a copy of its files; so what is shown is what a
broker would start with, and nothing is written.
"""

from __future__ import annotations

from collections import Counter

from assay.reference_broker.queues.jobs.errors import LogError
from assay.reference_broker.queues.jobs.store import PendingRecord
from assay.reference_broker.storage.memory_disk import MemoryDisk
from assay.reference_broker.storage.pending_codec import MAX_HEADER_BYTES, LogHeader, decode_header
from assay.reference_broker.storage.pending_recovery import GroupRecovery
from assay.reference_broker.storage.pending_snapshot import LOG_SUFFIX, GroupPaths
from assay.reference_broker.storage_tools.fluxmq_groups import read_fluxmq_groups
from assay.reference_broker.storage_tools.foreign.goqueue_files import (
    MAX_OFFSETS_BYTES,
    OFFSETS_NAME,
    GoQueueFileError,
    decode_offsets,
)
from assay.reference_broker.storage_tools.group_info import GroupInfo, GroupPlace, find_group_folders
from assay.reference_broker.storage_tools.layout import StoreFormat, StoreLayout, walk_folders
from assay.reference_broker.storage_tools.read_only_disk import ReadOnlyDisk, join

MAX_COPIED_BYTES = 512 * 1024 * 1024
"""A group with more is not recovered in memory."""


def read_groups(disk: ReadOnlyDisk, layout: StoreLayout) -> list[GroupInfo]:
    """The groups of a directory. Damage ends up in their ``problem``. Raises :class:`OSError`."""
    if layout.format is StoreFormat.GOQUEUE:
        return _goqueue_groups(disk)
    if layout.format is not StoreFormat.ASSAY:
        return read_fluxmq_groups(disk, layout)
    return [_assay_group(disk, place) for place in find_group_folders(disk, layout)]


def read_log_header(disk: ReadOnlyDisk, path: str) -> LogHeader | None:
    """Header of an operation log; None when it is missing or damaged. Raises :class:`LogError`: unknown version."""
    try:
        return decode_header(disk.read(path, MAX_HEADER_BYTES))
    except FileNotFoundError:
        return None


def _assay_group(disk: ReadOnlyDisk, place: GroupPlace) -> GroupInfo:
    paths = GroupPaths(place.stem + LOG_SUFFIX)
    log_bytes = sum(disk.size(path) for path in (paths.log, paths.next_log))
    problems: list[str] = []
    group, pattern = place.name, ""
    cursors: dict[int, int] = {}
    entries: list[PendingRecord] = []
    try:
        header = read_log_header(disk, paths.log)
        if header is not None:
            group, pattern = header.group, header.pattern
        copy = _copy_of(disk, place.folder)
        recovery = GroupRecovery(
            copy, paths, group=group, pattern=pattern, note=lambda where, what: problems.append(f"{where}: {what}")
        )
        opened = recovery.open()
        cursors = dict(sorted(opened.state.cursors.items()))
        entries = opened.state.records()
    except (LogError, ValueError) as error:
        problems.insert(0, str(error))
    return GroupInfo(
        queue=place.queue,
        group=group,
        pattern=pattern,
        folder=place.folder,
        cursors=cursors,
        pending=len(entries),
        pending_by_consumer=_count(entries),
        log_bytes=log_bytes,
        problem=problems[0] if problems else "",
    )


def _count(entries: list[PendingRecord]) -> dict[str, int]:
    return dict(sorted(Counter("" if entry.due_at_ms else entry.consumer for entry in entries).items()))


def _copy_of(disk: ReadOnlyDisk, folder: str) -> MemoryDisk:
    """The files of a folder in memory. Raises :class:`ValueError` when they are too large, :class:`OSError`."""
    names = [name for name in disk.list(folder) if not disk.is_folder(f"{folder}/{name}")]
    if sum(disk.size(f"{folder}/{name}") for name in names) > MAX_COPIED_BYTES:
        raise ValueError(f"its files have more than {MAX_COPIED_BYTES} bytes and are not replayed")
    copy = MemoryDisk()
    copy.make_folder(folder)
    for name in names:
        copy.open(f"{folder}/{name}", create=True).append(disk.read(f"{folder}/{name}", MAX_COPIED_BYTES))
    return copy


def find_offset_files(disk: ReadOnlyDisk) -> list[str]:
    """GoQueue's files of committed offsets."""
    return [join(folder, OFFSETS_NAME) for folder in walk_folders(disk, "") if disk.exists(join(folder, OFFSETS_NAME))]


def _goqueue_groups(disk: ReadOnlyDisk) -> list[GroupInfo]:
    found = []
    for path in find_offset_files(disk):
        folder = path.rpartition("/")[0]
        try:
            offsets = decode_offsets(disk.read(path, MAX_OFFSETS_BYTES))
        except GoQueueFileError as error:
            group = folder.rpartition("/")[2]
            found.append(GroupInfo(queue="", group=group, folder=folder, cursors={}, problem=str(error)))
            continue
        for topic, committed in offsets.topics.items():
            cursors = {number: one.offset for number, one in sorted(committed.partitions.items())}
            found.append(GroupInfo(queue=topic, group=offsets.group_id, folder=folder, cursors=cursors))
    return found

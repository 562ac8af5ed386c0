"""Repairs the files of an Assay group: the broker's own recovery opens them, and a new snapshot replaces them."""

from __future__ import annotations

from contextlib import closing, suppress
from urllib.parse import unquote

from assay.reference_broker.queues.jobs.errors import LogError
from assay.reference_broker.queues.jobs.store import CursorRecord, PendingRecord
from assay.reference_broker.storage.disk import Disk
from assay.reference_broker.storage.file_names import encode_name
from assay.reference_broker.storage.group_files import MAX_FILE_BYTES, GroupFileError, decode_cursor_file
from assay.reference_broker.storage.pending_codec import MAX_HEADER_BYTES, decode_header
from assay.reference_broker.storage.pending_log import PendingLogFile
from assay.reference_broker.storage.pending_snapshot import LOG_SUFFIX, GroupPaths

_MAX_SYNCS = 16
"""A snapshot needs three; more means that it does not get anywhere."""


def recover_group(disk: Disk, folder: str, *, now_ms: int) -> None:
    """Open a group, and replace its files by a snapshot and an empty log when recovery found them wanting.

    Raises :class:`OSError` and :class:`LogError`.
    """
    name = folder.rpartition("/")[2]
    paths = GroupPaths(f"{folder}/{name}{LOG_SUFFIX}")
    group, pattern = _name_and_pattern(disk, paths, name)
    log = PendingLogFile(disk, paths.log, group=group, pattern=pattern, volatile=False, note=lambda _, __: None)
    try:
        _sync(log)
        entries = list(log.recovered)
        if log.wants_snapshot(len(entries)):
            log.begin_snapshot(_cursor_records(log.recovered_cursors, entries), entries, now_ms)
            while log.continue_snapshot():
                pass
            _sync(log)
    finally:
        log.close()


def _sync(log: PendingLogFile) -> None:
    for _ in range(_MAX_SYNCS):
        task = log.start_sync()
        if task is None:
            return
        task.run()
        log.finish_sync(None)


def _cursor_records(cursors: dict[int, int], entries: list[PendingRecord]) -> dict[int, CursorRecord]:
    """Cursors with the lowest offset of each partition that is not settled."""
    committed = dict(cursors)
    for entry in entries:
        committed[entry.partition] = min(committed.get(entry.partition, entry.offset), entry.offset)
    return {partition: CursorRecord(cursor, committed[partition]) for partition, cursor in sorted(cursors.items())}


def _name_and_pattern(disk: Disk, paths: GroupPaths, folder_name: str) -> tuple[str, str]:
    """Of the first file that tells them. Raises :class:`LogError` when none does."""
    for path in (paths.log, paths.next_log):
        if disk.exists(path):
            header = decode_header(_content(disk, path, MAX_HEADER_BYTES))
            if header is not None and encode_name(header.group) == folder_name:
                return header.group, header.pattern
    group = unquote(folder_name)
    if disk.exists(paths.cursors):
        with suppress(GroupFileError):
            group = decode_cursor_file(_content(disk, paths.cursors, MAX_FILE_BYTES)).group
    # A group with a pattern is called group@pattern, but a group's own name may hold an @ as well.
    if encode_name(group) != folder_name or "@" in group:
        message = f"nothing in {paths.folder} tells the group's name and pattern; restore it, or move the folder away"
        raise LogError(message)
    return group, ""


def _content(disk: Disk, path: str, limit: int) -> bytes:
    with closing(disk.open(path)) as file:
        return file.read_at(0, limit)

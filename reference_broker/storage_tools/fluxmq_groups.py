"""FluxMQ's consumer groups, of both generations: what ``inspect`` shows of them and what ``verify`` finds wrong.

``groups/<queue>/<group>.json`` is today's. Before that a group had ``.cur``, ``.pel`` and ``.pel.log``, or
``state.json``, ``pel_<n>.json`` and ``ops.log``, in ``queues/<queue>/consumers/<group>/``.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable

import msgspec

from assay.reference_broker.storage.group_files import GroupFileError, decode_cursor_file, decode_pending_file
from assay.reference_broker.storage_tools.findings import Finding, FindingKind, Findings, Severity
from assay.reference_broker.storage_tools.foreign.fluxmq_files import (
    MAX_JSON_BYTES,
    MAX_OPERATIONS_BYTES,
    OPERATIONS_NAME,
    STATE_NAME,
    FluxMQFileError,
    decode_consumer_state,
    decode_group,
    decode_operations,
    decode_pending_shard,
    find_groups,
)
from assay.reference_broker.storage_tools.foreign.pending_fluxmq import decode_fluxmq_pending_log
from assay.reference_broker.storage_tools.group_info import GroupInfo, GroupPlace, find_group_folders, position_in
from assay.reference_broker.storage_tools.layout import StoreFormat, StoreLayout
from assay.reference_broker.storage_tools.read_only_disk import ReadOnlyDisk

PENDING_LOG_SUFFIX = ".pel.log"
_SHARD_NAME = re.compile(r"pel_\d{1,3}\.json")
_LOST = "what the group settled since an older copy is delivered again; no message is lost; restore the file"


class _Reading(msgspec.Struct, kw_only=True):
    """What was gathered of a group so far."""

    queue: str
    folder: str
    group: str
    pattern: str = ""
    cursors: dict[int, int] = {}
    pending: Counter[str] = msgspec.field(default_factory=Counter)
    log_bytes: int = 0
    findings: list[Finding] = []

    def info(self) -> GroupInfo:
        return GroupInfo(
            queue=self.queue,
            group=self.group,
            pattern=self.pattern,
            folder=self.folder,
            cursors=dict(sorted(self.cursors.items())),
            pending=self.pending.total(),
            pending_by_consumer=dict(sorted(self.pending.items())),
            log_bytes=self.log_bytes,
            problem=f"{self.findings[0].path}: {self.findings[0].problem}" if self.findings else "",
        )

    def add(self, path: str, error: str, *, position: int | None = None, is_torn: bool = False) -> None:
        self.findings.append(
            Finding(
                severity=Severity.WARNING if is_torn else Severity.FAULT,
                kind=FindingKind.GROUP_TORN_TAIL if is_torn else FindingKind.GROUP_DAMAGED,
                path=path,
                problem=error,
                meaning="a write that did not finish; a broker ignores it" if is_torn else _LOST,
                queue=self.queue,
                position=position_in(error) if position is None else position,
            )
        )


def read_fluxmq_groups(disk: ReadOnlyDisk, layout: StoreLayout) -> list[GroupInfo]:
    """The groups of a FluxMQ directory. Raises :class:`OSError`."""
    return [reading.info() for reading in _readings(disk, layout)]


def check_fluxmq_groups(disk: ReadOnlyDisk, layout: StoreLayout, findings: Findings) -> None:
    """Report every file of a group that does not decode. Raises :class:`OSError`."""
    for reading in _readings(disk, layout):
        for finding in reading.findings:
            findings.add(finding)


def _readings(disk: ReadOnlyDisk, layout: StoreLayout) -> list[_Reading]:
    with_partition = layout.format is StoreFormat.FLUXMQ_PARTITIONS
    found = [_of_folder(disk, place, with_partition=with_partition) for place in find_group_folders(disk, layout)]
    return [*found, *(_of_group_file(disk, path) for path in find_groups(disk))]


def _of_group_file(disk: ReadOnlyDisk, path: str) -> _Reading:
    folder, _, name = path.rpartition("/")
    reading = _Reading(queue=folder.partition("/")[2], folder=folder, group=name.removesuffix(".json"))
    try:
        state = decode_group(disk.read(path, MAX_JSON_BYTES)).state
    except FluxMQFileError as error:
        reading.add(path, str(error))
        return reading
    if state is not None:
        reading.queue, reading.group, reading.pattern = state.queue_name, state.group_id, state.pattern
        reading.cursors = {} if state.cursor is None else {0: state.cursor.cursor}
        reading.pending.update(entry.consumer_id for entry in state.entries())
    return reading


def _of_folder(disk: ReadOnlyDisk, place: GroupPlace, *, with_partition: bool) -> _Reading:
    reading = _Reading(queue=place.queue, folder=place.folder, group=place.name)
    for name in disk.list(place.folder):
        path = f"{place.folder}/{name}"
        if name.endswith(PENDING_LOG_SUFFIX):
            data = disk.read(path, MAX_OPERATIONS_BYTES)
            reading.log_bytes += len(data)
            _, rest = decode_fluxmq_pending_log(data, with_partition=with_partition)
            if rest is not None:
                # The format cannot tell an unfinished write from damage.
                reading.add(path, "the operations from here on cannot be read", position=rest, is_torn=True)
        elif name == OPERATIONS_NAME:
            data = disk.read(path, MAX_OPERATIONS_BYTES)
            reading.log_bytes += len(data)
            log = decode_operations(data)
            if log.problem:
                reading.add(path, log.problem, position=log.sound_bytes, is_torn=log.is_torn_tail)
        elif (take := _taker_of(name)) is not None:
            try:
                take(reading, disk.read(path, MAX_JSON_BYTES))
            except (GroupFileError, FluxMQFileError) as error:
                reading.add(path, str(error))
    return reading


def _taker_of(name: str) -> Callable[[_Reading, bytes], None] | None:
    """How a file of a group's folder is read; None for others."""
    if name.endswith(".cur"):
        return _take_cursors
    if name.endswith(".pel"):
        return _take_pending
    if name == STATE_NAME:
        return _take_state
    return _take_shard if _SHARD_NAME.fullmatch(name) else None


def _take_cursors(reading: _Reading, data: bytes) -> None:
    found = decode_cursor_file(data)
    reading.group = found.group
    reading.cursors = {partition: record.cursor for partition, record in found.cursors.items()}


def _take_pending(reading: _Reading, data: bytes) -> None:
    reading.pending.update(entry.consumer for entry in decode_pending_file(data).entries)


def _take_state(reading: _Reading, data: bytes) -> None:
    found = decode_consumer_state(data)
    reading.group = found.group_id
    progress = dict(found.partitions or {})
    if found.state is not None:
        progress[0] = found.state
    reading.cursors = {partition: one.cursor for partition, one in progress.items() if one is not None}


def _take_shard(reading: _Reading, data: bytes) -> None:
    entries = (decode_pending_shard(data).entries or {}).values()
    reading.pending.update(entry.consumer for entry in entries if entry is not None)

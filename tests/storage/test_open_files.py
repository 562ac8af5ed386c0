"""However many logs there are, few of their files are open at once, and none with unsynced writes is closed."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from assay.reference_broker.config import Compression, QueueConfig
from assay.reference_broker.queues.jobs.store import NewRecord, PartitionLog
from assay.reference_broker.storage import queue_store
from assay.reference_broker.storage.batch import BatchEncoder
from assay.reference_broker.storage.disk import RealDisk
from assay.reference_broker.storage.log import LogOptions, SegmentedLog
from assay.reference_broker.storage.memory_disk import MemoryDisk
from assay.reference_broker.storage.open_files import OpenFiles
from assay.reference_broker.storage.queue_store import LogQueueStore


class Holder:
    def __init__(self, files: OpenFiles, *, may_close: bool = True) -> None:
        self.files = files
        self.may_close = may_close
        self.is_open = False

    def open(self) -> None:
        self.is_open = True
        self.files.opened(self)

    def close(self) -> None:
        self.is_open = False
        self.files.closed(self)


def test_the_oldest_make_room() -> None:
    files = OpenFiles(limit=3)
    holders = [Holder(files) for _ in range(6)]
    for holder in holders:
        holder.open()
    assert [holder.is_open for holder in holders] == [False, False, False, True, True, True]
    assert len(files) == 3


def test_what_may_not_close_stays_open_and_is_closed_later() -> None:
    files = OpenFiles(limit=2)
    busy = [Holder(files, may_close=False) for _ in range(4)]
    for holder in busy:
        holder.open()
    assert all(holder.is_open for holder in busy)
    for holder in busy:
        holder.may_close = True
    Holder(files).open()
    assert len(files) == 2


def test_the_newest_is_never_closed_by_its_own_opening() -> None:
    files = OpenFiles(limit=1)
    first, second = Holder(files), Holder(files)
    first.open()
    second.open()
    assert (first.is_open, second.is_open) == (False, True)


def sync(log: PartitionLog) -> None:
    while (task := log.start_sync()) is not None:
        task.run()
        log.finish_sync(None)


def test_many_logs_share_a_few_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue_store, "OpenFiles", lambda: OpenFiles(limit=8))
    store = LogQueueStore(RealDisk(tmp_path), options=LogOptions(segment_bytes=200))
    files = store.open_queue(QueueConfig(name="q", partitions=40))
    logs = [files.open_partition(number) for number in range(40)]
    before = len(os.listdir("/proc/self/fd"))
    for round_number in range(3):
        for number, log in enumerate(logs):
            log.append([NewRecord(0, b"", b"%d.%d" % (number, round_number), ())])
            sync(log)
    assert len(os.listdir("/proc/self/fd")) - before <= 8
    for number, log in enumerate(logs):
        assert [record.value for record in log.read(0, 10)] == [b"%d.%d" % (number, each) for each in range(3)]
        log.close()
    store.close()


def test_a_file_with_unsynced_writes_is_not_closed() -> None:
    disk = MemoryDisk()
    files = OpenFiles(limit=1)
    logs = [
        SegmentedLog(
            disk,
            f"log-{number}",
            options=LogOptions(),
            encoder=BatchEncoder(Compression.NONE),
            volatile=False,
            note=lambda place, problem: None,
            open_files=files,
        )
        for number in range(3)
    ]
    for log in logs:
        log.append([NewRecord(0, b"", b"x", ())])
    assert [log.segments[0].is_open for log in logs] == [True, True, True]
    for log in logs[:2]:
        sync(log)
    logs[2].roll()
    assert [log.segments[0].is_open for log in logs] == [False, False, True]

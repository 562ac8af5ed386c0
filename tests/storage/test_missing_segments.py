"""A segment that is missing, empty or cut is reported, at the next start and by the check; what was removed is not."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest

from assay.reference_broker.config import Compression, QueueConfig, SessionsConfig
from assay.reference_broker.queues.jobs.confirms import sync_now
from assay.reference_broker.queues.jobs.store import NewRecord
from assay.reference_broker.storage.batch import BatchEncoder
from assay.reference_broker.storage.compaction import CompactionPolicy, Compactor
from assay.reference_broker.storage.disk import RealDisk
from assay.reference_broker.storage.log import LogOptions, SegmentedLog
from assay.reference_broker.storage.queue_store import LogQueueStore
from assay.reference_broker.storage.session_store import SessionStore
from assay.reference_broker.storage_tools.layout import find_layout, open_directory
from assay.reference_broker.storage_tools.repair import apply_repair
from assay.reference_broker.storage_tools.repair_plan import ActionKind
from assay.reference_broker.storage_tools.verify import verify_directory

Damage = Callable[[Path], None]


def deleted(path: Path) -> None:
    path.unlink()


def emptied(path: Path) -> None:
    path.write_bytes(b"")


def halved(path: Path) -> None:
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2])


DAMAGES = (deleted, emptied, halved)
PLACES = (0, 1, -1)
NOW = datetime(2026, 1, 1, tzinfo=UTC)


def record(number: int, key: bytes = b"") -> NewRecord:
    return NewRecord(number, key, b"v" * 100, ())


def faults(directory: Path) -> int:
    disk = open_directory(directory)
    return verify_directory(disk, find_layout(disk)).faults


def filled_queue(directory: Path, *, drop_to: int = 0) -> None:
    store = LogQueueStore(RealDisk(directory), options=LogOptions(segment_bytes=1_000, reserve_bytes=0))
    log = store.open_queue(QueueConfig(name="q", partitions=1)).open_partition(0)
    for number in range(40):
        log.append([record(number)])
        assert sync_now(log) is None
    log.drop_before(drop_to)
    log.close()
    store.close()


def open_queue(directory: Path) -> list[str]:
    store = LogQueueStore(RealDisk(directory), options=LogOptions(segment_bytes=1_000, reserve_bytes=0))
    (queue,) = store.stored_queues()
    store.open_queue(QueueConfig(name=queue.name, partitions=1)).open_partition(0).close()
    store.close()
    return [f"{note.place}: {note.problem}" for note in store.recovery_notes()]


@pytest.mark.parametrize("drop_to", [0, 15])
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("damage", DAMAGES)
def test_of_a_partition(tmp_path: Path, damage: Damage, place: int, drop_to: int) -> None:
    filled_queue(tmp_path, drop_to=drop_to)
    assert faults(tmp_path) == 0
    assert open_queue(tmp_path) == []
    segments = sorted((tmp_path / "queues/q/partitions/0").glob("*.seg"))
    assert len(segments) >= 3
    damage(segments[place])
    assert faults(tmp_path) > 0
    assert open_queue(tmp_path)


def filled_sessions(directory: Path) -> None:
    """Compacted: gaps are where records were replaced."""
    disk = RealDisk(directory)
    SessionStore(disk, SessionsConfig()).close()
    encoder = BatchEncoder(Compression.NONE)
    log = SegmentedLog(
        disk,
        "sessions",
        options=LogOptions(segment_bytes=1_000, reserve_bytes=0),
        encoder=encoder,
        volatile=False,
        note=lambda place, problem: None,
    )
    for number in range(60):
        log.append([record(number, b"r%d" % number), record(number, b"same")])
        assert sync_now(log) is None
    compactor = Compactor(disk, "sessions", log, BatchEncoder(Compression.NONE), CompactionPolicy())
    task = compactor.start(0)
    assert task is not None
    task.run()
    compactor.finish(task, None)
    log.close()


def open_sessions(directory: Path) -> list[str]:
    store = SessionStore(RealDisk(directory), SessionsConfig())
    store.close()
    return [f"{note.place}: {note.problem}" for note in store.recovery_notes()]


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("damage", DAMAGES)
def test_of_compacted_sessions(tmp_path: Path, damage: Damage, place: int) -> None:
    filled_sessions(tmp_path)
    (tmp_path / "queues").mkdir()
    assert faults(tmp_path) == 0
    assert open_sessions(tmp_path) == []
    segments = sorted((tmp_path / "sessions").glob("*.seg"))
    assert len(segments) >= 4
    damage(segments[place])
    assert faults(tmp_path) > 0
    assert open_sessions(tmp_path)


def test_of_all_sessions(tmp_path: Path) -> None:
    filled_sessions(tmp_path)
    (tmp_path / "queues").mkdir()
    shutil.rmtree(tmp_path / "sessions")
    assert faults(tmp_path) == 1
    assert any("the folder is missing" in note for note in open_sessions(tmp_path))
    assert open_sessions(tmp_path) == []
    # A check tells of it for as long as nobody took note.
    assert faults(tmp_path) == 1
    report = apply_repair(tmp_path, None, now=NOW)
    assert [(action.kind, action.path) for action in report.actions] == [(ActionKind.DROP, "sessions.lost")]
    assert faults(tmp_path) == 0
    assert open_sessions(tmp_path) == []


def test_of_all_sessions_that_nobody_opened_since(tmp_path: Path) -> None:
    filled_sessions(tmp_path)
    (tmp_path / "queues").mkdir()
    shutil.rmtree(tmp_path / "sessions")
    # A repair cannot bring them back, and says nothing to the next start.
    apply_repair(tmp_path, None, now=NOW)
    assert any("the folder is missing" in note for note in open_sessions(tmp_path))
    assert faults(tmp_path) == 1


def test_a_damaged_hint_accuses_nobody(tmp_path: Path) -> None:
    filled_queue(tmp_path, drop_to=15)
    mark = next((tmp_path / "queues/q").glob("removed-*.mark"))
    data = mark.read_bytes()
    for position in range(len(data)):
        mark.write_bytes(data[:position] + bytes([data[position] ^ 1]) + data[position + 1 :])
        assert open_queue(tmp_path) == []
    mark.unlink()
    assert open_queue(tmp_path) == []

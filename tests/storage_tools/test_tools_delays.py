"""The logs of delayed messages are shown and checked, and so is the log of transactions."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from assay.reference_broker.config import QueueConfig, QueuesConfig
from assay.reference_broker.mqtt.queue_topics.addresses import QueueTopics
from assay.reference_broker.queues import QueueEngine
from assay.reference_broker.queues.jobs.confirms import StoredAs
from assay.reference_broker.queues.jobs.store import NewRecord
from assay.reference_broker.routing.message import Message
from assay.reference_broker.storage.disk import RealDisk
from assay.reference_broker.storage.log_options import LogOptions
from assay.reference_broker.storage.queue_store import LogQueueStore
from assay.reference_broker.storage_tools.findings import FindingKind, Severity, VerifyReport
from assay.reference_broker.storage_tools.inspect import InspectReport

Run = Callable[..., Any]
NOW = 1_700_000_000.0
NOW_MS = 1_700_000_000_000
DELAYED, DONE = Path("queues/q/delays"), Path("queues/q/delays_done")


class Life:
    """An engine over real files."""

    def __init__(self, root: Path, **options: Any) -> None:
        self.now = NOW
        self.disk = RealDisk(root)
        config = QueuesConfig(configured=(QueueConfig(name="q", partitions=1),))
        store = LogQueueStore(self.disk, options=LogOptions(**options))
        self.engine = QueueEngine(config, store, random.Random(1), NOW)

    def turn(self) -> None:
        for _ in range(4):
            self.engine.tick(self.now)
            self.engine.dispatch(self.now)
            for job in self.engine.take_jobs(self.now):
                job.run()
                self.engine.job_done(job, None, self.now)

    def delay(self, *delays: str) -> list[str]:
        told: list[str] = []

        def note(kind: StoredAs, name: str) -> None:
            told.append(name)

        for text in delays:
            message = Message(topic="$queue/q", payload=text.encode(), user_properties=(("delay", text),))
            QueueTopics(self.engine).publish(message, self.now, None, note)
        self.turn()
        return told

    def close(self) -> None:
        self.engine.close(self.now)
        self.disk.unlock()


@pytest.fixture
def delayed(tmp_path: Path) -> Path:
    """Of six delayed messages one fired and one was cancelled."""
    life = Life(tmp_path)
    ids = life.delay("1s", "10s", "20s", "30s", "1h", "2h")
    life.now += 2
    life.turn()
    assert life.engine.cancel_delayed("q", ids[1], life.now)
    life.turn()
    life.close()
    return tmp_path


def inspected(storage: Run, root: Path) -> InspectReport:
    done = storage("inspect", root, "--json")
    assert done.status == 0, done.errors
    return msgspec.json.decode(done.out, type=InspectReport, strict=True)


def verified(storage: Run, root: Path, status: int = 0) -> VerifyReport:
    done = storage("verify", root, "--json")
    assert done.status == status, done.out
    return msgspec.json.decode(done.out, type=VerifyReport, strict=True)


def test_delayed_messages_are_counted(delayed: Path, storage: Run) -> None:
    (queue,) = inspected(storage, delayed).queues
    delays = queue.delays
    assert delays is not None
    assert (delays.waiting, delays.done, delays.undated) == (4, 2, 0)
    assert (delays.next_due_ms, delays.last_due_ms) == (NOW_MS + 20_000, NOW_MS + 7_200_000)
    assert (delays.log.next_offset, delays.log.folder) == (6, str(DELAYED))
    assert delays.done_log is not None
    assert delays.done_log.records > 0
    assert (queue.records, len(queue.partitions)) == (1, 1)
    shown = storage("inspect", delayed).out
    assert "4 delayed messages waiting, due 2023-11-14" in shown
    assert "2 done" in shown
    report = verified(storage, delayed)
    assert (report.faults, report.warnings, report.delayed, report.partitions) == (0, 0, 4, 1)
    assert "4 delayed messages" in storage("verify", delayed).out


def test_a_start_finds_what_is_counted(delayed: Path, storage: Run) -> None:
    """The same figures as the broker's own, also when the done log tells what waits instead of what is done."""
    life = Life(delayed)
    assert life.engine.stats("q").delays.pending == 4
    life.delay(*["3h"] * 10_000)
    life.close()
    (queue,) = inspected(storage, delayed).queues
    assert queue.delays is not None
    assert (queue.delays.waiting, queue.delays.done) == (10_004, 2)
    assert queue.delays.last_due_ms == NOW_MS + 10_800_000


def test_a_queue_without_delays_has_none(assay: Path, storage: Run) -> None:
    (queue,) = inspected(storage, assay).queues
    assert queue.delays is None
    assert "delayed" not in storage("inspect", assay).out


@pytest.mark.parametrize("folder", [DELAYED, DONE])
def test_damage_in_either_log_is_found_and_repaired(delayed: Path, storage: Run, folder: Path) -> None:
    (segment,) = (delayed / folder).glob("*.seg")
    data = bytearray(segment.read_bytes())
    data[40] ^= 1
    segment.write_bytes(data)
    faults = [one for one in verified(storage, delayed, status=1).findings if one.severity is Severity.FAULT]
    assert {one.kind for one in faults} <= {FindingKind.CORRUPT_BATCH, FindingKind.LOST_CONFIRMED}
    assert faults
    assert all(one.path.startswith(f"{folder}/") for one in faults)
    assert storage("repair", delayed, "--apply").status == 0
    assert verified(storage, delayed).faults == 0
    Life(delayed).close()


def append(root: Path, log: str, record: NewRecord) -> None:
    disk = RealDisk(root)
    files = LogQueueStore(disk).open_queue(QueueConfig(name="q", partitions=1))
    opened = files.open_delays() if log == "delays" else files.open_delays_done()
    opened.append([record])
    task = opened.start_sync()
    assert task is not None
    task.run()
    opened.finish_sync(None)
    opened.close()
    disk.unlock()


@pytest.mark.parametrize(
    ("log", "key", "value", "kind"),
    [
        ("delays", b"", b"undated", FindingKind.DELAY_UNDATED),
        ("delays_done", b"done", b"odd", FindingKind.DELAY_INDEX_WRONG),
        ("delays_done", b"firing", b"\xff\xff\xff\xff", FindingKind.DELAY_INDEX_WRONG),
        ("delays_done", b"else", b"", FindingKind.DELAY_INDEX_WRONG),
    ],
)
def test_a_record_that_makes_no_sense_is_reported(
    delayed: Path, storage: Run, log: str, key: bytes, value: bytes, kind: FindingKind
) -> None:
    append(delayed, log, NewRecord(NOW_MS, key, value, ()))
    report = verified(storage, delayed, status=1)
    (finding,) = [finding for finding in report.findings if finding.severity is Severity.FAULT]
    assert (finding.kind, finding.queue, finding.path) == (kind, "q", f"queues/q/{log}")
    assert finding.offset is not None
    plan = storage("repair", delayed, "--json").document
    assert [one["kind"] for one in plan["unrepairable"]] == [kind]


def test_a_done_log_that_is_ahead_is_a_warning_and_one_that_is_gone_a_fault(delayed: Path, storage: Run) -> None:
    for path in (delayed / DELAYED).iterdir():
        path.unlink()
    append(delayed, "delays", NewRecord(NOW_MS, b"", b"", ((b"_due", b"%d" % NOW_MS),)))
    report = verified(storage, delayed)
    (finding,) = [finding for finding in report.findings if finding.severity is not Severity.NOTE]
    assert (finding.severity, finding.kind) == (Severity.WARNING, FindingKind.DELAY_INDEX_WRONG)
    assert "has 0" in finding.problem
    for path in (delayed / DONE).iterdir():
        path.unlink()
    report = verified(storage, delayed, status=1)
    assert "is not there" in report.findings[0].problem


def test_the_log_of_transactions_is_shown_and_checked(tmp_path: Path, storage: Run) -> None:
    life = Life(tmp_path)
    life.engine.transactions.init_producer("app", NOW, lambda error, identity: None)
    life.turn()
    life.close()
    names = [queue.name for queue in inspected(storage, tmp_path).queues]
    assert names == ["$transactions", "q"]
    assert verified(storage, tmp_path).faults == 0
    assert b"p:app" in storage("dump", tmp_path, "--queue", "$transactions").out.encode()
    (segment,) = (tmp_path / "transactions/log").glob("*.seg")
    data = bytearray(segment.read_bytes())
    data[40] ^= 1
    segment.write_bytes(data)
    assert verified(storage, tmp_path, status=1).faults


def test_a_log_that_was_thinned_out_is_sound(storage: Run, tmp_path: Path) -> None:
    life = Life(tmp_path, segment_bytes=2_000)
    life.delay("100h")
    for _ in range(30):
        life.delay(*["1s"] * 4)
    for _ in range(40):
        life.now += 1.5
        life.turn()
    life.delay("2h")
    life.close()
    segments = list((tmp_path / DELAYED).glob("*.seg"))
    assert len(segments) < 6, "it was thinned out"
    assert (tmp_path / DELAYED / "cleaner.json").exists()
    report = verified(storage, tmp_path)
    assert not report.findings
    delays = inspected(storage, tmp_path).queues[0].delays
    assert delays is not None
    assert delays.waiting == 2

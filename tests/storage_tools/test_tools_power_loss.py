"""What power loss leaves behind is no fault: ``verify`` tells it from damage, and a repair loses nothing confirmed."""

from __future__ import annotations

import random
import shutil
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path

from assay.reference_broker.config import Compression, QueueConfig
from assay.reference_broker.queues.jobs.store import NewRecord
from assay.reference_broker.storage.durable_mark import decode_mark
from assay.reference_broker.storage.log import LogOptions
from assay.reference_broker.storage.queue_store import LogQueueStore
from assay.reference_broker.storage_tools.dump import RecordFilter, read_places
from assay.reference_broker.storage_tools.findings import Severity
from assay.reference_broker.storage_tools.layout import StoreFormat, find_layout
from assay.reference_broker.storage_tools.read_only_disk import ReadOnlyDisk
from assay.reference_broker.storage_tools.repair import apply_repair
from assay.reference_broker.storage_tools.verify import verify_directory
from assay.sim.disk import SimDisk

NOW = datetime(2026, 1, 26, 10, 0, tzinfo=UTC)
RUNS = 120


def lived(seed: int) -> tuple[SimDisk, int]:
    """A disk on which a log and a group were written for a while, after power loss; how many records were confirmed."""
    rng = random.Random(seed)
    disk = SimDisk(rng)
    store = LogQueueStore(disk, options=LogOptions(segment_bytes=rng.choice((400, 2_000))))
    codec = rng.choice((Compression.NONE, Compression.ZSTD))
    files = store.open_queue(QueueConfig(name="orders", partitions=1, compression=codec))
    log = files.open_partition(0)
    group = files.open_group("workers", "")
    confirmed = number = 0
    for _ in range(rng.randint(1, 25)):
        count = rng.randint(1, 4)
        values = [rng.randbytes(rng.choice((5, 300, 700))) for _ in range(count)]
        log.append([NewRecord(1_700_000_000_000 + number, b"k", value, ()) for value in values])
        for offset in range(number, number + count):
            group.add(0, offset, "c", 1_700_000_000_000, 1)
        number += count
        group.flush()
        if rng.random() < 0.5:
            task = log.start_sync()
            assert task is not None
            task.run()
            log.finish_sync(None)
            confirmed = number
        if rng.random() < 0.3 and (sync := group.start_sync()) is not None:
            sync.run()
            group.finish_sync(None)
        if rng.random() < 0.15:
            log.roll()
    if rng.random() < 0.2:
        log.close()
    disk.power_loss()
    return disk, confirmed


def put(disk: SimDisk, root: Path, path: str = "") -> None:
    """Copy a simulated disk to a real folder."""
    for name in disk.list(path):
        place = f"{path}/{name}".lstrip("/")
        try:
            file = disk.open(place)
        except OSError:
            (root / place).mkdir(parents=True, exist_ok=True)
            put(disk, root, place)
            continue
        (root / place).parent.mkdir(parents=True, exist_ok=True)
        (root / place).write_bytes(file.read_at(0, file.size))
        file.close()


def test_power_loss_is_never_called_a_fault(tmp_path: Path) -> None:
    kinds: Counter[str] = Counter()
    without_mark = 0
    for seed in range(RUNS):
        disk, confirmed = lived(seed)
        root = tmp_path / str(seed)
        root.mkdir()
        put(disk, root)
        reader = ReadOnlyDisk(root)
        layout = find_layout(reader, StoreFormat.ASSAY)
        report = verify_directory(reader, layout)
        mark = root / "queues/orders/partitions/0/durable.mark"
        if mark.exists() and decode_mark(mark.read_bytes()) is not None:
            assert report.is_sound(), f"seed {seed}: {report.findings}"
        else:
            # Nothing tells what was confirmed, so what is missing counts as lost. Whole files do not look damaged.
            faults = {finding.kind for finding in report.findings if finding.severity is Severity.FAULT}
            assert faults <= {"missing_offsets", "corrupt_batch", "group_damaged"}, f"seed {seed}: {report.findings}"
            without_mark += 1
        kinds.update(finding.kind for finding in report.findings)
        done = apply_repair(root, StoreFormat.ASSAY, now=NOW)
        assert not done.unrepairable, f"seed {seed}"
        layout = find_layout(reader, StoreFormat.ASSAY)
        after = verify_directory(reader, layout)
        if layout.queues and (root / layout.queues[0].folder / "queue.json").exists():
            assert after.is_sound(strict=True), f"seed {seed}: {after.findings}"
        records = read_places(reader, layout.select(None, None), RecordFilter(), lambda _, __: None)
        offsets = [found.record.offset for found in records]
        assert offsets[:confirmed] == list(range(confirmed)), f"seed {seed}"
        shutil.rmtree(root)
    assert without_mark < RUNS * 3 // 4
    assert kinds["torn_tail"] > 5, kinds
    assert kinds["group_torn_tail"] > 2, kinds

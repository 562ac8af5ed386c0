"""Appending: in batches with and without compression, and one record a call with a sync from time to time."""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path

from assay.loadtests.bench.storage.log_files import LogFolder, joined, raw_write_s
from assay.loadtests.bench.storage.measurement import Case, RowSpec, Sample
from assay.loadtests.bench.storage.plan import StoragePlan
from assay.loadtests.bench.storage.workload import Batches, mixed_batches, uniform_batches
from assay.reference_broker.config import Compression
from assay.reference_broker.queues.jobs.store import NewRecord
from assay.reference_broker.storage.log import SegmentedLog

WRITE_BUFFER_BYTES = 64 * 1024
_CALLS_PER_LOOK = 64
"""Calls between two looks at the clock."""


def append_cases(plan: StoragePlan, folder: Path) -> list[Case]:
    """Batches of 500 to a new file: uniform records, each compression, with the records' making, mixed sizes."""
    size = plan.batch_records
    uniform = uniform_batches(plan.append_records, size)
    mixed = mixed_batches(plan.append_records // 4, size)
    rows: list[tuple[str, str, Batches, Compression]] = [
        ("append", "100-byte records, key, CRC", uniform, Compression.NONE),
        ("append.zstd", "  the same, zstd", uniform, Compression.ZSTD),
        ("append.s2", "  the same, S2", uniform, Compression.S2),
        ("append.mixed", "  mixed: values of 20 to 2000 bytes, headers or none", mixed, Compression.NONE),
    ]
    cases = [
        Case(
            (RowSpec(key=key, title=title, unit="rec/s", raw_title="write of the stored batches"),),
            partial(_measure_append, folder, batches, compression),
        )
        for key, title, batches, compression in rows
    ]
    made = RowSpec(key="append.made", title="  the same, tuples made in the timed part", unit="rec/s")
    cases.insert(1, Case((made,), partial(_measure_made_and_appended, folder, uniform)))
    return cases


def _measure_append(folder: Path, batches: Batches, compression: Compression) -> Sequence[Sample]:
    files = LogFolder(folder / "append")
    log = files.open(compression)
    began = time.perf_counter()
    for batch in batches:
        log.append(batch)
    took_s = time.perf_counter() - began
    log.close()
    raw_s = raw_write_s(folder / "raw", files.batches())
    files.remove()
    count = sum(map(len, batches))
    return [Sample(count / took_s, count / raw_s)]


def _measure_made_and_appended(folder: Path, batches: Batches) -> Sequence[Sample]:
    files = LogFolder(folder / "append")
    log = files.open()
    began = time.perf_counter()
    for batch in batches:
        log.append([NewRecord(timestamp_ms, key, value, headers) for timestamp_ms, key, value, headers in batch])
    took_s = time.perf_counter() - began
    log.close()
    files.remove()
    return [Sample(sum(map(len, batches)) / took_s)]


def single_cases(plan: StoragePlan, folder: Path) -> list[Case]:
    """One record a call, written through and with a write buffer; a thread syncs every ``sync_interval_s``."""
    records = [record for batch in uniform_batches(20_000, plan.batch_records) for record in batch]
    rows = (
        ("single.buffered", "one record a call, 64 KiB write buffer", WRITE_BUFFER_BYTES, "write of 64 KiB pieces"),
        ("single.through", "one record a call, written through", 0, "one write a record"),
    )
    return [
        Case(
            (RowSpec(key=key, title=title, unit="rec/s", raw_title=raw_title, needs_disk=True),),
            partial(_measure_single, plan, folder, records, buffer_bytes),
        )
        for key, title, buffer_bytes, raw_title in rows
    ]


def _measure_single(
    plan: StoragePlan, folder: Path, records: Sequence[NewRecord], buffer_bytes: int
) -> Sequence[Sample]:
    files = LogFolder(folder / "single")
    log = files.open(write_buffer_bytes=buffer_bytes)
    with ThreadPoolExecutor(1) as thread:
        count, took_s = _append_singly(log, records, plan, thread)
    log.close()
    pieces = files.batches()
    raw_s = raw_write_s(folder / "raw", joined(pieces, buffer_bytes) if buffer_bytes else pieces)
    files.remove()
    return [Sample(count / took_s, count / raw_s)]


def _append_singly(
    log: SegmentedLog, records: Sequence[NewRecord], plan: StoragePlan, thread: ThreadPoolExecutor
) -> tuple[int, float]:
    """Number of records appended until the time is over, and the seconds it took, the last flush included."""
    running: Future[None] | None = None
    count, at, end = 0, 0, len(records) - _CALLS_PER_LOOK
    append = log.append
    began = time.perf_counter()
    sync_at = began + plan.sync_interval_s
    until = began + plan.single_s
    while (now := time.perf_counter()) < until:
        for record in records[at : at + _CALLS_PER_LOOK]:
            append((record,))
        count += _CALLS_PER_LOOK
        at = at + _CALLS_PER_LOOK if at < end else 0
        if running is not None and running.done():
            running.result()
            log.finish_sync(None)
            running = None
        if running is None and now >= sync_at and (task := log.start_sync()) is not None:
            running = thread.submit(task.run)
            sync_at = now + plan.sync_interval_s
    log.flush()
    took_s = time.perf_counter() - began
    if running is not None:
        running.result()
        log.finish_sync(None)
    return count, took_s

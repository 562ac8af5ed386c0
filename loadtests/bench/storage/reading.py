"""Reading: sequentially, by random offsets, by a recovery scan, and opening a big log that was closed in order."""

from __future__ import annotations

import os
import random
import time
from bisect import bisect_right
from collections.abc import Sequence
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path
from typing import NamedTuple

from assay.loadtests.bench.storage.log_files import BatchPlace, LogFolder, raw_read_s
from assay.loadtests.bench.storage.measurement import Case, RowSpec, Sample
from assay.loadtests.bench.storage.plan import Progress, StoragePlan
from assay.loadtests.bench.storage.workload import Batches, mixed_batches, uniform_batches

KILOBYTE_RECORD_BYTES = 1_024
_READ_RECORDS = 500
_PREPARED_RECORDS = 20_000
_MEGA = 1e6


class BigLogs(NamedTuple):
    """Logs to read, prepared once."""

    batched: LogFolder
    """Batches of 500 records of 100 bytes."""
    single: LogFolder
    """Batches of one 1 KB record."""
    mixed: LogFolder
    """A smaller one, batches of 500 records of mixed sizes."""
    batched_scan: LogFolder
    single_scan: LogFolder
    """The first segments of the two big ones."""


def write_big_logs(plan: StoragePlan, folder: Path, progress: Progress) -> BigLogs:
    """Write the logs and close them in order."""
    size = plan.batch_records
    uniform = uniform_batches(_PREPARED_RECORDS, size)
    kilobytes = uniform_batches(_PREPARED_RECORDS // 20, 1, value_bytes=KILOBYTE_RECORD_BYTES)
    batched = _write(folder / "big-batched", plan, uniform, plan.big_log_bytes, "batches of 500", progress)
    single = _write(folder / "big-single", plan, kilobytes, plan.big_log_bytes, "single records", progress)
    mixed = mixed_batches(min(_PREPARED_RECORDS, plan.sequential_records // 10), size)
    mixed_bytes = plan.sequential_records // 10 * 400
    return BigLogs(
        batched,
        single,
        _write(folder / "mixed", plan, mixed, mixed_bytes, "mixed records", progress),
        batched.copy_start(folder / "scan-batched", at_least_bytes=plan.scan_bytes),
        single.copy_start(folder / "scan-single", at_least_bytes=plan.scan_bytes),
    )


def _write(
    root: Path, plan: StoragePlan, batches: Batches, size_bytes: int, what: str, progress: Progress
) -> LogFolder:
    files = LogFolder(root, segment_bytes=plan.segment_bytes)
    log = files.open()
    while (written := log.stored_bytes) < size_bytes:
        progress(f"writing a log, {what}", written / size_bytes)
        for batch in batches:
            log.append(batch)
    if (task := log.start_sync()) is not None:
        task.run()
        log.finish_sync(None)
    log.close()
    return files


def read_cases(plan: StoragePlan, logs: BigLogs) -> list[Case]:
    """All cases of reading, in the order of the table."""
    return [
        _sequential_case("read", "sequential read and decode, batches of 500", logs.batched, plan.sequential_records),
        _sequential_case("read.mixed", "  mixed sizes, headers or none", logs.mixed, plan.sequential_records // 10),
        _random_case("random", f"batches of {plan.batch_records} records of 100 bytes", logs.batched, plan),
        _random_case("random.single", "batches of one 1 KB record", logs.single, plan),
        _scan_case("scan", "recovery scan, batches of 500 records", logs.batched_scan),
        _scan_case("scan.single", "  batches of one 1 KB record", logs.single_scan),
        _open_case("open", "open a clean log, batches of 500 records", logs.batched),
        _open_case("open.single", "  batches of one 1 KB record", logs.single),
    ]


# -- sequential ------------------------------------------------------------------------------------------------------


def _sequential_case(key: str, title: str, files: LogFolder, records: int) -> Case:
    spec = RowSpec(key=key, title=title, unit="rec/s", raw_title="read of the same bytes")

    def measure() -> Sequence[Sample]:
        with closing(files.open()) as log:
            offset = log.start_offset
            end = min(offset + records, log.next_offset)
            began = time.perf_counter()
            while offset < end:
                offset = log.read(offset, _READ_RECORDS)[-1].offset + 1
            took_s = time.perf_counter() - began
            count = offset - log.start_offset
            share = count / (log.next_offset - log.start_offset)
        size = int(share * files.segment_bytes)
        raw_s, raw_bytes = raw_read_s(files.segments, at_most_bytes=size)
        return [Sample(count / took_s, count / (raw_s * size / raw_bytes))]

    return Case((spec,), measure)


# -- by offset -------------------------------------------------------------------------------------------------------


def _random_case(key: str, title: str, files: LogFolder, plan: StoragePlan) -> Case:
    raw_title = "read of the batch"
    rows = (
        RowSpec(key=f"{key}.p50", title=f"random read, {title}: p50", unit="us", raw_title=raw_title),
        RowSpec(key=f"{key}.p99", title="  p99", unit="us", raw_title=raw_title),
    )
    places = files.places()
    offsets = [place.base_offset for place in places]
    rng = random.Random(5)

    def measure() -> Sequence[Sample]:
        times_us: list[float] = []
        raw_us: list[float] = []
        with ExitStack() as stack:
            log = stack.enter_context(closing(files.open()))
            opened = {path: stack.enter_context(path.open("rb", buffering=0)) for path in files.segments}
            for _ in range(plan.random_reads):
                offset = rng.randrange(log.start_offset, log.next_offset)
                place = places[bisect_right(offsets, offset) - 1]
                began = time.perf_counter_ns()
                found = log.get(offset)
                times_us.append((time.perf_counter_ns() - began) / 1_000)
                assert found is not None, f"the record at {offset} is missing"
                assert found.offset == offset, f"asked for {offset}, read {found.offset}"
                raw_us.append(_raw_read_us(opened[place.path].fileno(), place))
        times_us.sort()
        raw_us.sort()
        return [Sample(_percentile(times_us, share), _percentile(raw_us, share)) for share in (0.5, 0.99)]

    return Case(rows, measure)


def _raw_read_us(descriptor: int, place: BatchPlace) -> float:
    began = time.perf_counter_ns()
    os.pread(descriptor, place.length, place.position)
    return (time.perf_counter_ns() - began) / 1_000


def _percentile(ordered: Sequence[float], share: float) -> float:
    """Nearest rank."""
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


# -- opening ---------------------------------------------------------------------------------------------------------


def _scan_case(key: str, title: str, files: LogFolder) -> Case:
    spec = RowSpec(key=key, title=title, unit="MB/s", raw_title="read of the same files")

    def measure() -> Sequence[Sample]:
        files.forget_indexes()
        began = time.perf_counter()
        log = files.open()
        took_s = time.perf_counter() - began
        log.close()
        raw_s, size = raw_read_s(files.segments)
        return [Sample(size / took_s / _MEGA, size / raw_s / _MEGA)]

    return Case((spec,), measure)


def _open_case(key: str, title: str, files: LogFolder) -> Case:
    spec = RowSpec(key=key, title=title, unit="s", raw_title="read of all its bytes")
    return Case((spec,), partial(_measure_open, files))


def _measure_open(files: LogFolder) -> Sequence[Sample]:
    began = time.perf_counter()
    log = files.open()
    took_s = time.perf_counter() - began
    log.close()
    raw_s, _ = raw_read_s(files.segments)
    return [Sample(took_s, raw_s)]

"""The storage bench measures real files, judges against its targets, and leaves nothing behind."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import msgspec
import pytest
from typer.testing import CliRunner

from assay.cli import build_app
from assay.loadtests.bench.storage import delivery_cost, report, targets
from assay.loadtests.bench.storage import run as run_module
from assay.loadtests.bench.storage.filesystem import filesystem_of, is_in_memory
from assay.loadtests.bench.storage.group_commit import GroupCommit
from assay.loadtests.bench.storage.log_files import LogFolder, LogNoteError, joined, raw_read_s, raw_sync_s, raw_write_s
from assay.loadtests.bench.storage.measurement import MeasuredRow, RowSpec, Sample
from assay.loadtests.bench.storage.plan import quick_plan
from assay.loadtests.bench.storage.queued import QueuedMessagesError, measure_queued
from assay.loadtests.bench.storage.run import NoRoomError, StorageRun, run_storage_bench
from assay.loadtests.bench.storage.workload import mixed_batches, uniform_batches
from assay.reference_broker.storage.batch import decode_batch
from assay.reference_broker.trace.results import RunKind, RunResult, Verdict, read_result

QUICK = quick_plan()


def _row(key: str, values: Sequence[float], raw: Sequence[float] = (), *, needs_disk: bool = False) -> MeasuredRow:
    spec = RowSpec(key=key, title=key, unit="rec/s", needs_disk=needs_disk)
    return MeasuredRow(spec=spec, values=[*values], raw_values=[*raw])


# -- the whole command -----------------------------------------------------------------------------------------------


def test_the_command_measures_every_target_and_removes_its_files(tmp_path: Path) -> None:
    arguments = ["bench", "storage", "--quick", "--directory", str(tmp_path), "--out", str(tmp_path / "out"), "--json"]
    done = CliRunner().invoke(build_app("bench"), arguments)
    assert done.exit_code == 0, done.output
    printed = msgspec.json.decode(done.stdout, type=RunResult)
    assert printed == read_result(tmp_path / "out" / "result.json")
    assert printed.kind is RunKind.BENCH
    assert [check.name.partition(" / ")[0] for check in printed.checks] == [target.row for target in targets.TARGETS]
    assert {check.verdict for check in printed.checks} == {Verdict.UNKNOWN}, "a quick run judges nothing"
    assert all(check.value for check in printed.checks)
    assert printed.metrics["filesystem"] == filesystem_of(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_the_table_has_a_line_for_every_row(tmp_path: Path) -> None:
    rows = {"append": _row("append", [800_000.0, 900_000.0, 1e6], [9e6, 9e6, 1e7]), "read": _row("read", [5e5])}
    run = StorageRun(plan=msgspec.structs.replace(QUICK, is_judged=True), filesystem="ext4", started_at="", rows=rows)
    table = report.table(run)
    cells = [list(column.cells) for column in table.columns]
    lines = list(zip(*cells, strict=True))
    assert lines[1][:7] == ("append", "900k", "rec/s", "800k-1.00M", "9.00M", "0.10x", ">= 812k")
    assert "met" in str(lines[1][7])
    assert lines[3][:7] == ("read", "500k", "rec/s", "-", "-", "-", ">= 1.00M")
    assert "missed" in str(lines[3][7])
    assert len(lines) == 4, "two headings and two rows"
    found = report.result(run, command="c")
    assert found.verdict is Verdict.FAIL
    assert found.summary == "1 of 2 targets met; missed: read"


def test_a_missed_target_shows_in_the_exit_status(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def measured(*_: object) -> StorageRun:
        plan = msgspec.structs.replace(QUICK, is_judged=True)
        return StorageRun(plan=plan, filesystem="ext4", started_at="", rows={"read": _row("read", [1.0])})

    monkeypatch.setattr("assay.loadtests.bench.cli.run_storage_bench", measured)
    done = CliRunner().invoke(build_app("bench"), ["bench", "storage", "--directory", str(tmp_path)])
    assert done.exit_code == 1, done.output


INTERRUPTED = """
import signal
import sys
from pathlib import Path
from assay.loadtests.bench.storage.plan import StoragePlan
from assay.loadtests.bench.storage.run import run_storage_bench

# Whoever runs the tests in the background may have switched Ctrl-C off for all that they start.
signal.signal(signal.SIGINT, signal.default_int_handler)
plan = StoragePlan(queued_messages=300_000, big_log_bytes=1_000_000, scan_bytes=1_000_000)
run_storage_bench(plan, Path(sys.argv[1]), lambda text, share: print(text, share, flush=True))
"""


def test_nothing_is_left_after_an_interrupt(tmp_path: Path) -> None:
    command = [sys.executable, "-c", INTERRUPTED, str(tmp_path)]
    bench = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True)
    try:
        assert bench.stdout is not None
        # The first line comes before the child process starts, the third once it has written thousands of messages.
        for _ in range(3):
            assert bench.stdout.readline().startswith("enqueueing messages")
        assert list(tmp_path.glob("*/queued/store/queues/*/partitions/*/*.seg"))
        # Ctrl-C reaches the whole process group.
        os.killpg(bench.pid, signal.SIGINT)
        _, errors = bench.communicate(timeout=60)
    finally:
        bench.kill()
    assert bench.returncode not in (0, None)
    assert "KeyboardInterrupt" in errors
    assert not list(tmp_path.iterdir())


def test_a_full_disk_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    plan = msgspec.structs.replace(QUICK, big_log_bytes=10**15)
    with pytest.raises(NoRoomError, match="GB free and the bench needs"):
        run_storage_bench(plan, tmp_path, lambda text, share: None)
    assert not list(tmp_path.iterdir())


def test_nothing_is_left_after_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object) -> object:
        raise QueuedMessagesError("the child failed")

    monkeypatch.setattr(run_module, "write_big_logs", fails)
    with pytest.raises(QueuedMessagesError):
        run_storage_bench(QUICK, tmp_path, lambda text, share: None)
    assert not list(tmp_path.iterdir())


# -- judging ---------------------------------------------------------------------------------------------------------


def test_a_row_is_summed_up_by_medians_and_by_the_ratio_of_each_round() -> None:
    row = _row("x", [])
    for sample in (Sample(10.0, 100.0), Sample(30.0, 60.0), Sample(20.0, 200.0)):
        row.add(sample)
    assert (row.median, row.raw_median) == (20.0, 100.0)
    assert row.ratio == 0.1, "of 0.1, 0.5 and 0.1"
    assert _row("x", [1.0]).ratio is None


@pytest.mark.parametrize(
    ("key", "value", "verdict"),
    [
        ("append", 812_000.0, Verdict.PASS),
        ("append", 811_999.0, Verdict.FAIL),
        ("random.p99", 199.9, Verdict.PASS),
        ("random.p99", 200.0, Verdict.FAIL),
        ("queued.disk", 1_100.0, Verdict.PASS),
        ("queued.disk", 1_100.1, Verdict.FAIL),
    ],
)
def test_a_bound_is_kept_or_missed(key: str, value: float, verdict: Verdict) -> None:
    (check,) = targets.judge({key: _row(key, [value])}, filesystem="ext4", is_judged=True)
    assert check.verdict is verdict


def test_bounds_may_be_ratios() -> None:
    rows = {
        "append": _row("append", [1_000_000.0]),
        "append.zstd": _row("append.zstd", [740_000.0]),
        "group_commit": _row("group_commit", [81.0], [100.0], needs_disk=True),
    }
    checks = {check.name: check for check in targets.judge(rows, filesystem="ext4", is_judged=True)}
    assert checks["append.zstd / append"].verdict is Verdict.FAIL
    assert checks["append.zstd / append"].value == pytest.approx(0.74)
    assert checks["group_commit"].verdict is Verdict.PASS


def test_figures_of_syncs_in_memory_are_not_judged() -> None:
    rows = {"group_commit": _row("group_commit", [99.0], [100.0], needs_disk=True), "append": _row("append", [9e6])}
    checks = {check.name: check for check in targets.judge(rows, filesystem="tmpfs", is_judged=True)}
    assert checks["group_commit"].verdict is Verdict.UNKNOWN
    assert "on tmpfs a sync does nothing" in checks["group_commit"].source
    assert checks["append"].verdict is Verdict.PASS, "no sync is in that figure"
    run = StorageRun(plan=QUICK, filesystem="tmpfs", started_at="", rows=rows)
    assert any("figures of syncs are not real" in note for note in report.notes(run))


def test_a_busy_machine_is_named() -> None:
    run = StorageRun(plan=QUICK, filesystem="ext4", started_at="", load_before=1.7)
    assert any("the machine was busy before the run (load 1.7" in note for note in report.notes(run))
    quiet = msgspec.structs.replace(run, load_before=0.1)
    assert not any("busy" in note for note in report.notes(quiet))


@pytest.mark.parametrize(
    ("folder", "filesystem"),
    [("/data/x", "ext4"), ("/data/fast/y", "tmpfs"), ("/a b/c", "xfs"), ("/datax", "overlay")],
)
def test_the_file_system_is_that_of_the_nearest_mount(folder: str, filesystem: str) -> None:
    mounts = "\n".join(
        (
            "22 1 0:20 / / rw - overlay overlay rw",
            "23 22 254:1 / /data rw,relatime shared:1 - ext4 /dev/vda rw",
            "24 23 0:21 / /data/fast rw - tmpfs tmpfs rw",
            "25 22 254:2 / /a\\040b rw - xfs /dev/vdb rw",
        )
    )
    assert filesystem_of(Path(folder), mounts) == filesystem
    assert is_in_memory(filesystem) == (filesystem == "tmpfs")


@pytest.mark.skipif(not Path("/dev/shm").is_dir(), reason="there is no memory file system at /dev/shm")
def test_a_memory_file_system_is_recognised() -> None:
    assert is_in_memory(filesystem_of(Path("/dev/shm")))


def test_the_decision_follows_the_figures() -> None:
    def rows(copied_us: float, sent_us: float, whole_us: float) -> dict[str, MeasuredRow]:
        found: dict[str, MeasuredRow] = {}
        for size in delivery_cost.PAYLOAD_SIZES:
            copy, whole = f"delivery.copy.{size}", f"delivery.whole.{size}"
            found |= {copy: _row(copy, [copied_us], [sent_us]), whole: _row(whole, [whole_us])}
        return found

    assert delivery_cost.decision(rows(1.0, 8.0, 20.0)).startswith("sendfile path not worth it")
    assert delivery_cost.decision(rows(30.0, 5.0, 20.0)).startswith("sendfile path worth it from 100 bytes on")


# -- measuring -------------------------------------------------------------------------------------------------------


def test_raw_calls_move_the_same_bytes(tmp_path: Path) -> None:
    pieces = [random.Random(1).randbytes(size) for size in (10, 300_000, 5)]
    assert raw_write_s(tmp_path / "raw", pieces) > 0
    assert raw_sync_s(tmp_path / "raw", pieces[0], seconds=0.0) > 0
    assert not (tmp_path / "raw").exists()
    (tmp_path / "a").write_bytes(pieces[1])
    (tmp_path / "b").write_bytes(pieces[2])
    took_s, size = raw_read_s([tmp_path / "a", tmp_path / "b"])
    assert took_s > 0
    assert size == 300_005
    assert joined([b"ab", b"c", b"defg", b"h"], 3) == [b"abc", b"defg", b"h"]


def test_what_a_log_stored_is_found_batch_by_batch(tmp_path: Path) -> None:
    batches = [*uniform_batches(1_000, 100), *mixed_batches(1_000, 100)]
    files = LogFolder(tmp_path, segment_bytes=100_000)
    with closing(files.open()) as log:
        for batch in batches:
            log.append(batch)
    assert len(files.segments) > 1
    stored = files.batches()
    assert sum(map(len, stored)) == files.segment_bytes
    values = [record.value for piece in stored for record in decode_batch(piece)]
    assert values == [record.value for batch in batches for record in batch]
    assert [place.base_offset for place in files.places()] == list(range(0, 2_000, 100))
    copy = files.copy_start(tmp_path / "copy", at_least_bytes=1)
    with closing(copy.open()) as log:
        assert log.next_offset == files.places()[log.next_offset // 100].base_offset > 0
    files.forget_indexes()
    assert {path.suffix for path in (tmp_path / "partition").iterdir()} == {".seg"}


def test_a_log_that_needs_repair_gives_no_figures(tmp_path: Path) -> None:
    files = LogFolder(tmp_path)
    with closing(files.open()) as log:
        log.append(uniform_batches(100, 100)[0])
    files.forget_indexes()
    with files.segments[0].open("ab") as segment:
        segment.write(b"torn")
    with pytest.raises(LogNoteError, match="torn"):
        files.open()


def test_records_are_as_announced() -> None:
    uniform = [record for batch in uniform_batches(1_000, 500) for record in batch]
    assert {len(record.value or b"") for record in uniform} == {100}
    assert len({record.value for record in uniform}) == 1_000
    assert all(json.loads(record.value or b"")["device"].encode() == record.key for record in uniform)
    mixed = [record for batch in mixed_batches(1_000, 500) for record in batch]
    sizes = [len(record.value or b"") for record in mixed]
    assert min(sizes) >= 20
    assert 1_000 < max(sizes) <= 2_000
    assert any(record.key is None for record in mixed)
    assert any(later.timestamp_ms < earlier.timestamp_ms for earlier, later in itertools.pairwise(mixed))


@pytest.mark.parametrize("is_collected", [True, False])
def test_every_producer_of_a_group_waits_for_its_confirm(tmp_path: Path, *, is_collected: bool) -> None:
    records = uniform_batches(100, 100)[0]
    with closing(LogFolder(tmp_path).open()) as log:
        figures = asyncio.run(GroupCommit(log, records, 8, is_collected=is_collected).run(0.05))
        assert figures.confirmed == 8 * figures.syncs
        assert log.durable_offset == log.next_offset == figures.confirmed
        assert figures.took_s >= 0.05


def test_a_failed_sync_ends_the_measurement(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(descriptor: int) -> None:
        raise OSError(5, "Input/output error")

    with closing(LogFolder(tmp_path).open()) as log:
        monkeypatch.setattr(os, "fsync", fails)
        with pytest.raises(OSError, match="Input/output error"):
            asyncio.run(GroupCommit(log, uniform_batches(100, 100)[0], 8).run(1.0))


def test_a_child_that_fails_says_why(tmp_path: Path) -> None:
    (tmp_path / "queued").mkdir()
    (tmp_path / "queued" / "store").write_text("in the way")
    plan = msgspec.structs.replace(QUICK, queued_messages=10)
    with pytest.raises(QueuedMessagesError, match=r"FileExistsError|NotADirectoryError"):
        measure_queued(plan, tmp_path / "queued", lambda text, share: None)

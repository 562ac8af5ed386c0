"""Samples, histograms and percentiles say what the ledger holds."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
import pyarrow.parquet as pq
import pytest
from hdrh.histogram import HdrHistogram
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.loadtests.histograms import histogram_of, read_histograms, write_histograms
from assay.loadtests.latency_book import LatencyBook, read_latencies
from assay.loadtests.ledger import ConnectTime, Ledger, PublisherLog
from assay.loadtests.profile import Phases
from assay.loadtests.recorder import (
    Samples,
    answered,
    collect,
    collect_connects,
    merged,
    percentiles,
    write_parquet,
)
from assay.loadtests.verdict import drift
from assay.reference_broker.trace.sample_files import SAMPLE_SCHEMA
from assay.reference_broker.trace.schema import LatencyOperation, LatencySample

MS = 1_000_000
PHASES = Phases(warmup_s=1.0, steady_s=2.0, cooldown_s=1.0)
ENDED_NS = 10_000 * MS


def _log(*, qos: int = 1, settles: bool = False, count: int = 40) -> PublisherLog:
    """A message every 100 ms from 0; each is sent 1 ms late, acknowledged after 5 ms and delivered after 7 ms."""
    log = PublisherLog(
        name="w-p0",
        number=0,
        workload="w",
        qos=qos,
        copies=1,
        settles=settles,
        intended_ns=np.arange(count, dtype=np.int64) * 100 * MS,
    )
    for seq, intended_ns in enumerate(log.intended_ns):
        log.offered_ns[seq] = log.sent_ns[seq] = intended_ns + MS
        log.acked_ns[seq] = intended_ns + 5 * MS
        log.delivered_ns[0][seq] = intended_ns + 7 * MS
        if settles:
            log.settle_sent_ns[0][seq] = log.delivered_ns[0][seq]
            log.settled_ns[0][seq] = intended_ns + 9 * MS
    return log


def _collect(log: PublisherLog) -> dict[LatencyOperation, Samples]:
    return {part.operation: part for part in collect(Ledger(b"12345678", [log]), ended_ns=ENDED_NS)}


def test_latency_counts_from_the_intended_time() -> None:
    found = _collect(_log(settles=True))
    assert set(found) == {
        LatencyOperation.PUBLISH_TO_ACK,
        LatencyOperation.PUBLISH_TO_DELIVER,
        LatencyOperation.DELIVER_TO_SETTLE,
    }
    assert set(found[LatencyOperation.PUBLISH_TO_ACK].latency_us) == {5_000.0}
    assert set(found[LatencyOperation.PUBLISH_TO_DELIVER].latency_us) == {7_000.0}
    assert set(found[LatencyOperation.DELIVER_TO_SETTLE].latency_us) == {2_000.0}


def test_qos_0_has_no_acknowledgement() -> None:
    assert set(_collect(_log(qos=0))) == {LatencyOperation.PUBLISH_TO_DELIVER}


def test_what_is_missing_keeps_a_row_that_says_so() -> None:
    log = _log(settles=True, count=4)
    log.acked_ns[0] = 0
    log.refused.add(0)
    log.delivered_ns[0][0] = log.delivered_ns[0][1] = 0
    log.sent_ns[2] = log.acked_ns[2] = log.delivered_ns[0][2] = 0
    found = _collect(log)
    assert found[LatencyOperation.PUBLISH_TO_ACK].status.tolist() == ["refused", "ok", "unsent", "ok"]
    delivered = found[LatencyOperation.PUBLISH_TO_DELIVER]
    assert delivered.status.tolist() == ["refused", "lost", "unsent", "ok"]
    assert delivered.completed_ns[1] == ENDED_NS
    settled = found[LatencyOperation.DELIVER_TO_SETTLE]
    assert settled.seq.tolist() == [3]


def test_parquet_has_the_fields_of_latency_sample(tmp_path: Path) -> None:
    assert tuple(SAMPLE_SCHEMA.names) == LatencySample.__struct_fields__
    samples = collect(Ledger(b"12345678", [_log(settles=True)]), ended_ns=ENDED_NS)
    samples += collect_connects([ConnectTime(client="c", started_ns=-9 * MS, completed_ns=-8 * MS)])
    rows = write_parquet(tmp_path / "samples.parquet", samples, run_id="r", phases=PHASES)
    table = pq.read_table(tmp_path / "samples.parquet")
    assert (table.num_rows, rows) == (121, 121)
    assert table.column_names == list(LatencySample.__struct_fields__)
    back = [msgspec.convert(row, LatencySample) for row in table.to_pylist()]
    steady = [row for row in back if row.phase == "steady" and row.operation is LatencyOperation.PUBLISH_TO_ACK]
    assert [row.seq for row in steady] == list(range(10, 30))
    assert {row.completed_ns - row.intended_ns for row in steady} == {5 * MS}
    assert {row.completed_ns - row.sent_ns for row in steady} == {4 * MS}
    assert [row.client for row in back if row.operation is LatencyOperation.CONNECT] == ["c"]
    compression = pq.ParquetFile(tmp_path / "samples.parquet").metadata.row_group(0).column(0).compression
    assert compression == "ZSTD"


def test_histograms_add_up_to_the_samples(tmp_path: Path) -> None:
    samples = collect(Ledger(b"12345678", [_log(settles=True)]), ended_ns=ENDED_NS)
    write_histograms(tmp_path / "h.jsonl", samples, phases=PHASES)
    lines = read_histograms(tmp_path / "h.jsonl")
    keys = [(line.second, line.phase, line.operation) for line, _ in lines]
    assert len(set(keys)) == len(keys)
    total = HdrHistogram(1, 3_600_000_000, 3)
    for line, histogram in lines:
        assert histogram.get_total_count() == line.count
        if line.operation is LatencyOperation.PUBLISH_TO_ACK:
            total.add(histogram)
    assert total.get_total_count() == 40
    assert total.get_value_at_percentile(99) == pytest.approx(5_000, rel=0.001)
    assert {line.phase for line, _ in lines if line.second == 0} == {"warmup"}


@settings(max_examples=50)
@given(st.lists(st.floats(min_value=1.0, max_value=1e8), min_size=1, max_size=300))
def test_percentiles_are_exact_and_the_histogram_agrees(values: list[float]) -> None:
    latency_us = np.array(values)
    found = percentiles("x", latency_us)
    ordered = sorted(values)
    histogram = histogram_of(latency_us)
    for percent, value in ((50, found.p50_us), (90, found.p90_us), (99, found.p99_us), (99.9, found.p999_us)):
        rank = max(1, int(np.ceil(np.round(percent * len(values) / 100, 9))))
        assert value == pytest.approx(ordered[rank - 1], abs=0.06)
        # HdrHistogram may round the rank differently by one, never the value by more than its precision.
        near = ordered[max(0, rank - 2) : rank + 1]
        measured = histogram.get_value_at_percentile(percent)
        assert any(abs(measured - candidate) <= candidate * 0.001 + 1 for candidate in near)
    assert found.max_us == pytest.approx(ordered[-1], abs=0.06)
    assert found.count == histogram.get_total_count() == len(values)


def test_percentile_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="no samples"):
        percentiles("x", np.zeros(0))


def test_merged_joins_publishers_and_keeps_what_failed() -> None:
    first, second = _log(count=3), _log(count=2)
    first.acked_ns[1] = 0
    groups = merged(collect(Ledger(b"12345678", [first, second]), ended_ns=ENDED_NS))
    whole = groups["w", LatencyOperation.PUBLISH_TO_ACK, 1]
    assert len(whole.seq) == 5
    assert len(answered(whole).seq) == 4
    assert len(groups["w", LatencyOperation.PUBLISH_TO_DELIVER, 1].seq) == 5


def test_drift_tells_a_growing_backlog_from_a_steady_run() -> None:
    key = ("w", LatencyOperation.PUBLISH_TO_DELIVER, 1)
    log = _log()
    assert drift(merged(collect(Ledger(b"12345678", [log]), ended_ns=ENDED_NS))[key], PHASES) == pytest.approx(1.0)
    for seq, intended_ns in enumerate(log.intended_ns):
        log.delivered_ns[0][seq] = intended_ns + (1 + seq) * MS
    growing = merged(collect(Ledger(b"12345678", [log]), ended_ns=ENDED_NS))[key]
    assert (drift(growing, PHASES) or 0) > 1.5
    assert drift(growing.only(growing.seq < 12), PHASES) is None


def test_latency_book_counts_failures_apart(tmp_path: Path) -> None:
    book = LatencyBook()
    for latency_us in range(1_000, 2_000):
        book.add("MQTT: publish", float(latency_us), failed=False)
    book.add("MQTT: publish", 5e9, failed=True)
    book.add("MQTT: connect", 1.0, failed=True)
    book.write(tmp_path / "latencies.json")
    connect, publish = read_latencies(tmp_path / "latencies.json")
    assert (connect.percentiles.count, connect.failures) == (0, 1)
    assert (publish.percentiles.count, publish.failures) == (1_000, 1)
    assert publish.percentiles.p50_us == pytest.approx(1_500, rel=0.002)
    assert HdrHistogram.decode(publish.histogram).get_total_count() == 1_000
    assert "1.49" in book.text() or "1.50" in book.text()

"""Percentiles against numpy, buckets against exact ones, and what falls into which second, phase and fault."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest
from pyspark.sql import DataFrame, SparkSession

from assay.reference_broker.trace.judgement import quantile_bounds
from assay.reference_broker.trace.schema import LatencySample
from assay.spark_analysis import latency
from assay.spark_analysis.schemas import SAMPLE_TYPE

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]

NS_PER_S = 1_000_000_000
SEED = 20_260_101


def frame(spark: SparkSession, samples: list[LatencySample]) -> DataFrame:
    rows = [tuple(getattr(sample, name) for name in SAMPLE_TYPE.names) for sample in samples]
    return spark.createDataFrame([tuple(str(v) if isinstance(v, str) else v for v in row) for row in rows], SAMPLE_TYPE)


def sample(intended_ns: int, latency_ns: int, **changes: object) -> LatencySample:
    fields = {
        "run_id": "r",
        "phase": "steady",
        "operation": "publish_to_ack",
        "qos": 1,
        "client": "c",
        "seq": 0,
        "intended_ns": intended_ns,
        "sent_ns": intended_ns,
        "completed_ns": intended_ns + latency_ns,
        **changes,
    }
    return LatencySample(**fields)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def mixed(spark: SparkSession) -> DataFrame:
    """Two QoS, a warm-up, lost, refused and unsent samples; exponential latencies of 10 ms."""
    rng = np.random.default_rng(SEED)
    steady = (rng.exponential(10e6, 3_000)).astype(int)
    samples = [sample(n * 1_000_000, int(value), qos=n % 2 + 1) for n, value in enumerate(steady)]
    samples += [sample(n * 1_000_000, 77_000_000, phase="warmup") for n in range(50)]
    samples += [sample(0, 60 * NS_PER_S, status=status) for status in ("lost", "refused", "unsent")]
    return frame(spark, samples).persist()


def values(mixed: DataFrame, qos: int) -> np.ndarray:  # type: ignore[type-arg]
    table = mixed.where("phase = 'steady' AND status = 'ok'").toPandas()
    chosen = table[table["qos"] == qos]
    return ((chosen["completed_ns"] - chosen["intended_ns"]) / 1000).to_numpy()


def by_qos(table: DataFrame) -> dict[int, pd.Series]:  # type: ignore[type-arg]
    return {row["qos"]: row for _, row in table.where("phase = 'steady'").toPandas().iterrows()}


def test_exact_percentiles_are_numpys_and_buckets_are_within_one_percent(mixed: DataFrame) -> None:
    exact = by_qos(latency.percentile_table(mixed, exact=True))
    bucketed = by_qos(latency.percentile_table(mixed, exact=False))
    assert set(exact) == {1, 2}, "a percentile of both together would say nothing of either"
    for qos, row in exact.items():
        latencies = values(mixed, qos)
        assert row["missing"] == bucketed[qos]["missing"] == (3 if qos == 1 else 0)
        assert row["count"] == bucketed[qos]["count"] == len(latencies)
        assert row["max_us"] == bucketed[qos]["max_us"] == pytest.approx(latencies.max())
        for name, quantile in latency.QUANTILES.items():
            expected = np.quantile(latencies, quantile, method="inverted_cdf")
            assert row[name] == pytest.approx(expected)
            assert bucketed[qos][name] == pytest.approx(expected, rel=0.01)


def test_phases_are_kept_apart_and_named(mixed: DataFrame) -> None:
    records = latency.as_percentiles(latency.percentile_table(mixed, exact=True), name_runs=False)
    assert [record.name for record in records] == [
        "publish_to_ack qos1",
        "publish_to_ack qos2",
        "publish_to_ack qos1 warmup",
    ]
    assert records[-1].p50_us == 77_000.0


def test_counts_tell_failed_and_backwards_samples(spark: SparkSession) -> None:
    samples = frame(spark, [sample(0, 5), sample(10, -3), sample(0, 9, status="lost")])
    assert latency.count_samples(samples) == latency.SampleCounts(rows=3, failed=1, backwards=1)


def test_throughput_and_lateness(spark: SparkSession) -> None:
    samples = [sample(n * 10_000_000, 1_000_000, sent_ns=n * 10_000_000 + 2_000_000) for n in range(101)]
    samples += [sample(500, 5, status="lost"), sample(500, 5, status="unsent"), sample(0, 5, phase="warmup")]
    table = latency.throughput_table(frame(spark, samples), ["run_id", "operation"]).collect()
    assert len(table) == 1
    assert (table[0]["offered"], table[0]["completed"]) == (103, 101)
    assert table[0]["offered_per_s"] == pytest.approx(103 / 1.0)
    assert table[0]["completed_per_s"] == pytest.approx(101 / 1.001)
    late = latency.lateness_table(frame(spark, samples), ["run_id"], exact=True).collect()[0]
    assert (late["p50_us"], late["p99_us"]) == (2_000.0, 2_000.0)
    # Offered in time: the rest of the way to the wire is the broker's, which had no room.
    offered = [sample(n, 9_000_000, offered_ns=n + 1_000, sent_ns=n + 8_000_000) for n in range(100)]
    late = latency.lateness_table(frame(spark, offered), ["run_id"], exact=True).collect()[0]
    assert late["p99_us"] == 1.0


def test_seconds_count_from_zero_and_may_be_wider(spark: SparkSession) -> None:
    samples = frame(spark, [sample(at, 2_000_000) for at in (100, NS_PER_S - 1, NS_PER_S, 5 * NS_PER_S, -7)])
    rows = latency.per_second(samples).orderBy("second").collect()
    assert [(row["second"], row["count"], row["rate_per_s"]) for row in rows] == [
        (-1, 1, 0.0),
        (0, 2, 2.0),
        (1, 1, 2.0),
        (5, 1, None),  # the run ended in it
    ]
    wide = latency.per_second(samples, width_s=4).orderBy("second").collect()
    assert [(row["second"], row["count"], row["rate_per_s"]) for row in wide] == [
        (-4, 1, 0.0),
        (0, 3, 1.0),
        (4, 1, None),
    ]
    assert latency.bucket_width_s(1200.0) == 1
    assert latency.bucket_width_s(1201.0) == 2


def test_a_sample_is_inside_a_fault_when_its_life_touches_it(spark: SparkSession) -> None:
    # The fault lasts from 100 to 200; each latency names its sample.
    lives = [(10, 90), (10, 91), (150, 5), (199, 50), (200, 51), (50, 300)]
    samples = frame(spark, [sample(at, length) for at, length in lives])
    bands = spark.createDataFrame([("r", 100, 200), ("other", 0, 1000)], "run_id string, from_ns long, to_ns long")
    rows = latency.fault_window_table(samples, bands, exact=True).collect()
    assert {row["place"]: (row["count"], row["max_us"]) for row in rows} == {
        "inside": (4, 0.3),
        "outside": (2, 0.09),
    }


def test_a_stall_is_a_hole_in_the_rate_and_the_lost_are_no_fast_second(spark: SparkSession) -> None:
    due = [n * 100_000_000 for n in range(40)]
    late = [sample(at, 1_000_000 if at < NS_PER_S else 3 * NS_PER_S - at) for at in due if at < 3 * NS_PER_S]
    lost = [sample(at, 1_000_000, status="lost" if n % 2 else "ok") for n, at in enumerate(due) if at >= 3 * NS_PER_S]
    table = latency.per_second(frame(spark, late + lost))
    rows = {row["second"]: row for row in table.collect()}
    assert [rows[second]["rate_per_s"] for second in range(4)] == [10.0, 0.0, 0.0, None]
    assert (rows[3]["count"], rows[3]["missing"], rows[3]["p99_high_us"]) == (5, 5, None)
    p99 = next(line for line in latency.as_series(table, name_runs=False) if line.group == "latency p99")
    assert p99.y[3] is None


@pytest.mark.parametrize("exact", [True, False])
@pytest.mark.parametrize("missing", [0, 1, 5, 6, 300, 10_000])
def test_the_missing_widen_the_p99_as_in_memory(spark: SparkSession, missing: int, exact: bool) -> None:
    rng = np.random.default_rng(SEED)
    known = sorted(int(value) for value in rng.exponential(10e6, 500))
    samples = [sample(0, value) for value in known] + [sample(0, 1, status="lost")] * missing
    row = latency.percentile_table(frame(spark, samples), exact=exact).collect()[0]
    bounds = quantile_bounds([value / 1000 for value in known], missing, 0.99)
    assert (row["count"], row["missing"]) == (500, missing)
    near = {} if exact else {"rel": 0.01}
    assert row["p99_low_us"] == pytest.approx(bounds.low, **near)
    assert (math.inf if row["p99_high_us"] is None else row["p99_high_us"]) == pytest.approx(bounds.high, **near)


def test_nothing_answered_has_no_percentile(spark: SparkSession) -> None:
    table = latency.percentile_table(frame(spark, [sample(0, 1, status="lost")] * 3), exact=True)
    row = table.collect()[0]
    assert (row["count"], row["missing"], row["p99_us"]) == (0, 3, None)
    assert latency.as_percentiles(table, name_runs=False) == []

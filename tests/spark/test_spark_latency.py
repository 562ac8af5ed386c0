"""Percentiles against numpy, buckets against exact ones, and what falls into which second, phase and fault."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from pyspark.sql import DataFrame, SparkSession

from reference_broker.trace.schema import LatencySample
from spark_analysis import latency
from spark_analysis.schemas import SAMPLE_TYPE

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


def values(mixed: DataFrame, qos: int | None) -> np.ndarray:  # type: ignore[type-arg]
    table = mixed.where("phase = 'steady' AND status = 'ok'").toPandas()
    chosen = table if qos is None else table[table["qos"] == qos]
    return ((chosen["completed_ns"] - chosen["intended_ns"]) / 1000).to_numpy()


def by_qos(table: DataFrame) -> dict[int, pd.Series]:  # type: ignore[type-arg]
    return {row["qos"]: row for _, row in table.where("phase = 'steady'").toPandas().iterrows()}


def test_exact_percentiles_are_numpys_and_buckets_are_within_one_percent(mixed: DataFrame) -> None:
    exact = by_qos(latency.percentile_table(mixed, exact=True))
    bucketed = by_qos(latency.percentile_table(mixed, exact=False))
    assert set(exact) == {1, 2, latency.ANY_QOS}
    for qos, row in exact.items():
        latencies = values(mixed, None if qos == latency.ANY_QOS else qos)
        assert row["count"] == bucketed[qos]["count"] == len(latencies)
        assert row["max_us"] == bucketed[qos]["max_us"] == pytest.approx(latencies.max())
        for name, quantile in latency.QUANTILES.items():
            expected = np.quantile(latencies, quantile, method="inverted_cdf")
            assert row[name] == pytest.approx(expected)
            assert bucketed[qos][name] == pytest.approx(expected, rel=0.01)


def test_phases_are_kept_apart_and_named(mixed: DataFrame) -> None:
    records = latency.as_percentiles(latency.percentile_table(mixed, exact=True), name_runs=False)
    assert [record.name for record in records] == [
        "publish_to_ack",
        "publish_to_ack qos1",
        "publish_to_ack qos2",
        "publish_to_ack warmup",
    ]
    assert records[-1].p50_us == 77_000.0


def test_counts_tell_failed_and_backwards_samples(spark: SparkSession) -> None:
    samples = frame(spark, [sample(0, 5), sample(10, -3), sample(0, 9, status="lost")])
    assert latency.count_samples(samples) == latency.SampleCounts(rows=3, failed=1, backwards=1)


def test_throughput_and_lateness(spark: SparkSession) -> None:
    samples = [sample(n * 10_000_000, 1_000_000, sent_ns=n * 10_000_000 + 2_000_000) for n in range(101)]
    samples += [sample(500, 5, status="lost"), sample(500, 5, status="unsent"), sample(0, 5, phase="warmup")]
    table = latency.throughput_table(frame(spark, samples)).collect()
    assert len(table) == 1
    assert (table[0]["offered"], table[0]["completed"], table[0]["unfinished"]) == (103, 101, 1)
    assert table[0]["offered_per_s"] == pytest.approx(103 / 1.0)
    assert table[0]["completed_per_s"] == pytest.approx(101 / 1.001)
    late = latency.lateness_table(frame(spark, samples), exact=True).collect()[0]
    assert (late["p50_us"], late["p99_us"]) == (2_000.0, 2_000.0)


def test_seconds_count_from_zero_and_may_be_wider(spark: SparkSession) -> None:
    samples = frame(spark, [sample(at, 2_000_000) for at in (100, NS_PER_S - 1, NS_PER_S, 5 * NS_PER_S, -7)])
    rows = latency.per_second(samples).orderBy("second").collect()
    assert [(row["second"], row["count"], row["rate_per_s"]) for row in rows] == [
        (-1, 1, 1.0),
        (0, 2, 2.0),
        (1, 1, 1.0),
        (5, 1, 1.0),
    ]
    wide = latency.per_second(samples, width_s=4).orderBy("second").collect()
    assert [(row["second"], row["count"], row["rate_per_s"]) for row in wide] == [
        (-4, 1, 0.25),
        (0, 3, 0.75),
        (4, 1, 0.25),
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

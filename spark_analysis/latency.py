"""Latency percentiles and series of raw samples: exact up to five million rows, one-percent buckets above.

Percentiles are nearest-rank: the smallest sample that at least the share ``q`` of all samples does not exceed, as an
HdrHistogram reports them. Above :data:`EXACT_ROWS_MAX` a sample counts for its bucket, ``[1.01^b, 1.01^(b+1))``
nanoseconds, and the bucket answers with its geometric middle: at most half a percent off, the same on every run, and
mergeable, which Spark's own sketches are not at the tail. The maximum is always exact.

A sample that was due and never answered has no latency: it counts as ``missing``, and widens what the 99th percentile
of all that was due may be (``p99_low_us`` to ``p99_high_us``, see :mod:`assay.reference_broker.trace.judgement`).

No figure mixes workloads: percentiles of a mix say nothing of any of its parts.

All functions take and return frames; a *sample* frame has the columns of ``LatencySample``.
"""

from __future__ import annotations

import math
from typing import Final

import msgspec
from pyspark.sql import DataFrame
from pyspark.sql import functions as sf

from assay.reference_broker.trace.results import Percentiles, Series

EXACT_ROWS_MAX: Final = 5_000_000
BUCKET_GROWTH: Final = 1.01
QUANTILES: Final[dict[str, float]] = {"p50_us": 0.5, "p90_us": 0.9, "p99_us": 0.99, "p999_us": 0.999}
STEADY: Final = "steady"
CLOSED_LOOP: Final = "closed_loop"
"""Phase of samples without a schedule: shown, never judged."""
UNSENT: Final = "unsent"
"""Status of a sample that the generator never sent; it says nothing of the broker."""
SERIES_POINTS_MAX: Final = 1200
NS_PER_S: Final = 1_000_000_000

_LOG_GROWTH: Final = math.log(BUCKET_GROWTH)
SUBJECT: Final = ["run_id", "workload", "queue", "protocol", "operation", "qos"]
"""What has figures of its own."""
_GROUP: Final = [*SUBJECT, "phase"]
_LINE: Final = ["run_id", "workload", "operation"]
"""What has a line of its own in charts."""


class SampleCounts(msgspec.Struct, frozen=True, kw_only=True):
    """Totals of a sample frame."""

    rows: int
    failed: int
    """Samples whose status is not ``ok``; they have no latency."""
    backwards: int
    """Samples completed before they were due: a clock or a writer is wrong."""


def count_samples(samples: DataFrame) -> SampleCounts:
    """Totals, in one pass."""
    row = samples.agg(
        sf.count("*").alias("rows"),
        sf.count_if(sf.col("status") != "ok").alias("failed"),
        sf.count_if((sf.col("status") == "ok") & (sf.col("completed_ns") < sf.col("intended_ns"))).alias("backwards"),
    ).collect()[0]
    return SampleCounts(rows=row["rows"], failed=row["failed"], backwards=row["backwards"])


def latencies(samples: DataFrame) -> DataFrame:
    """The samples' own columns, and ``latency_ns``: from the intended time, so that a stalled generator cannot hide a
    stalled broker; NULL for a sample that is not ok.
    """
    latency = "CASE WHEN status = 'ok' THEN completed_ns - intended_ns END AS latency_ns"
    return samples.selectExpr("*", latency)


def percentiles(rows: DataFrame, by: list[str], *, value: str = "latency_ns", exact: bool = True) -> DataFrame:
    """``by..., count, missing, p50_us, p90_us, p99_us, p999_us, max_us, p99_low_us, p99_high_us`` of column ``value``
    (nanoseconds). NULL values are missing; ``p99_high_us`` is NULL where it has no bound.
    """
    return _exact(rows, by, value) if exact else _bucketed(rows, by, value)


def _microseconds(column: str) -> str:
    return f"{column} / 1000.0D"


P99_RANK: Final = "greatest(1, ceil(total * 0.99D))"
"""Rank of the 99th percentile among all that was due; the missing last, or first."""


def _exact(rows: DataFrame, by: list[str], value: str) -> DataFrame:
    # Ranks by an external sort, which spills; the aggregate `percentile` keeps every distinct value in memory.
    group = ", ".join(by)
    ranked = rows.selectExpr(
        *by,
        f"{value} AS value",
        f"row_number() OVER (PARTITION BY {group} ORDER BY {value} NULLS LAST) AS nth",
        f"count({value}) OVER (PARTITION BY {group}) AS known",
        f"count(*) OVER (PARTITION BY {group}) AS total",
    )
    ranks = {name: f"greatest(1, ceil(known * {quantile}D))" for name, quantile in QUANTILES.items()}
    ranks |= {"p99_low_us": f"{P99_RANK} - (total - known)", "p99_high_us": P99_RANK}
    picked = [
        f"max(CASE WHEN nth = {rank} THEN {_microseconds('value')} END) AS {name}" for name, rank in ranks.items()
    ]
    aggregates = ["max(known) AS count", "max(total - known) AS missing", *picked]
    aggregates.append(f"max({_microseconds('value')}) AS max_us")
    return _with_low_end(ranked.groupBy(*by).agg(*(sf.expr(aggregate) for aggregate in aggregates)))


def _bucketed(rows: DataFrame, by: list[str], value: str) -> DataFrame:
    group = ", ".join(by)
    bucket = (
        f"CASE WHEN {value} IS NULL THEN NULL WHEN {value} < 1 THEN -1 "
        f"ELSE CAST(floor(ln({value}) / {_LOG_GROWTH!r}D) AS INT) END"
    )
    buckets = (
        rows.selectExpr(*by, f"{bucket} AS bucket", f"{value} AS value")
        .groupBy(*by, "bucket")
        .agg(sf.count("*").alias("members"), sf.max("value").alias("most"))
    )
    middle = (
        "CASE WHEN bucket IS NULL THEN NULL WHEN bucket < 0 THEN 0.0D "
        f"ELSE least(most, pow({BUCKET_GROWTH}D, bucket + 0.5D)) END"
    )
    summed = buckets.selectExpr(
        *by,
        "most",
        f"{middle} AS middle",
        f"sum(members) OVER (PARTITION BY {group} ORDER BY bucket NULLS LAST) AS reached",
        f"coalesce(sum(CASE WHEN bucket IS NOT NULL THEN members END) OVER (PARTITION BY {group}), 0) AS known",
        f"sum(members) OVER (PARTITION BY {group}) AS total",
    )
    ranks = {name: f"greatest(1, ceil(known * {quantile}D))" for name, quantile in QUANTILES.items()}
    ranks |= {"p99_low_us": f"{P99_RANK} - (total - known)", "p99_high_us": P99_RANK}
    picked = [
        f"min(CASE WHEN {rank} >= 1 AND reached >= {rank} THEN {_microseconds('middle')} END) AS {name}"
        for name, rank in ranks.items()
    ]
    aggregates = ["max(known) AS count", "max(total - known) AS missing", *picked]
    aggregates.append(f"max({_microseconds('most')}) AS max_us")
    return _with_low_end(summed.groupBy(*by).agg(*(sf.expr(aggregate) for aggregate in aggregates)))


def _with_low_end(table: DataFrame) -> DataFrame:
    """Where even the most favourable p99 is one of the missing, it may be anything from 0."""
    return table.withColumn("p99_low_us", sf.coalesce("p99_low_us", sf.lit(0.0)))


def percentile_table(samples: DataFrame, *, exact: bool) -> DataFrame:
    """Percentiles by :data:`SUBJECT` and phase, from the intended time."""
    return percentiles(latencies(samples), _GROUP, exact=exact)


def bucket_width_s(duration_s: float) -> int:
    """Whole seconds per point, so that a chart has at most :data:`SERIES_POINTS_MAX` points."""
    return max(1, math.ceil(duration_s / SERIES_POINTS_MAX))


def span_s(samples: DataFrame) -> float:
    """Longest duration of any run in seconds, from the first intended to the last completed."""
    spans = samples.groupBy("run_id").agg(sf.expr(f"(max(completed_ns) - min(intended_ns)) / {NS_PER_S}D").alias("s"))
    longest = spans.agg(sf.max("s").alias("s")).collect()[0]["s"]
    return float(longest or 0.0)


def per_second(samples: DataFrame, *, width_s: int = 1, exact: bool = True) -> DataFrame:
    """``run_id, workload, operation, second, count, missing, p50_us, ..., rate_per_s``.

    Percentiles are of the samples that were due in the second, the rate is of those that were completed in it, so that
    a stall shows as a hole. ``second`` counts from the zero of the samples' clock, the start of the run, and is a
    multiple of ``width_s``. The last one of a run is cut by its end and has no rate.
    """

    def second(column: str) -> str:
        return f"CAST(floor({column} / {width_s * NS_PER_S}D) AS BIGINT) * {width_s} AS second"

    rows = latencies(samples).selectExpr(*_LINE, "latency_ns", second("intended_ns"))
    due = percentiles(rows, [*_LINE, "second"], exact=exact)
    ok = samples.where("status = 'ok'").selectExpr(*_LINE, second("completed_ns"))
    done = ok.groupBy(*_LINE, "second").agg(sf.expr(f"count(*) / {width_s}D AS rate_per_s"))
    last = ok.groupBy(sf.col("run_id").alias("of_run")).agg(sf.max("second").alias("last"))
    return (
        due.join(done, [*_LINE, "second"], "full_outer")
        .join(sf.broadcast(last), sf.col("run_id") == sf.col("of_run"), "left")
        .withColumn("rate_per_s", sf.expr("CASE WHEN second < last THEN coalesce(rate_per_s, 0.0D) END"))
        .drop("of_run", "last")
        .fillna(0, ["count", "missing"])
    )


def throughput_table(samples: DataFrame, by: list[str]) -> DataFrame:
    """``by..., offered, completed, offered_per_s, completed_per_s`` of the steady phase.

    Offered counts what was due, whatever became of it; completed counts the samples that are ok. Offered is divided by
    the time from the first to the last due sample, completed by that from the first due to the last completed.
    """
    return (
        samples.where(f"phase = '{STEADY}'")
        .groupBy(*by)
        .agg(
            sf.count("*").alias("offered"),
            sf.count_if(sf.col("status") == "ok").alias("completed"),
            sf.expr(f"(max(intended_ns) - min(intended_ns)) / {NS_PER_S}D").alias("due_s"),
            sf.expr(f"(max(IF(status = 'ok', completed_ns, NULL)) - min(intended_ns)) / {NS_PER_S}D").alias("span_s"),
        )
        .withColumn("offered_per_s", sf.expr("try_divide(CAST(offered AS DOUBLE), due_s)"))
        .withColumn("completed_per_s", sf.expr("try_divide(CAST(completed AS DOUBLE), span_s)"))
    )


def lateness_table(samples: DataFrame, by: list[str], *, exact: bool) -> DataFrame:
    """``by..., count, p50_us, ...``: how much later than due the generator offered the samples of the steady phase.

    What passed from there until a message was sent is not its delay: the broker had no room.
    """
    rows = samples.where(f"phase = '{STEADY}' AND status <> '{UNSENT}'").selectExpr(
        *by, "CASE WHEN offered_ns = -1 THEN sent_ns ELSE offered_ns END - intended_ns AS late_ns"
    )
    return percentiles(rows, by, value="late_ns", exact=exact)


def figures_table(samples: DataFrame, by: list[str], *, exact: bool) -> DataFrame:
    """What targets are judged by: ``by...``, the columns of :func:`throughput_table` and of :func:`percentiles` in the
    steady phase, and ``late_us``, the 99th percentile of the generator's lateness.
    """
    steady = latencies(samples.where(f"phase = '{STEADY}'"))
    late = lateness_table(samples, by, exact=exact).withColumnRenamed("p99_us", "late_us").select(*by, "late_us")
    return (
        throughput_table(samples, by)
        .join(percentiles(steady, by, exact=exact), by, "left")
        .join(late, by, "left")
        .orderBy(*by)
    )


def fault_window_table(samples: DataFrame, bands: DataFrame, *, exact: bool) -> DataFrame:
    """Percentiles of each operation in and outside faults, by queue: ``run_id, queue, operation, place, count, ...``.

    ``bands`` has ``run_id, from_ns, to_ns`` on the clock of the samples. A sample is ``inside`` when its life, from
    intended to completed, touches a band.
    """
    rows = latencies(samples).alias("s")
    meets = sf.expr("s.run_id = b.run_id AND s.intended_ns < b.to_ns AND s.completed_ns > b.from_ns")
    faults = sf.broadcast(bands.alias("b"))
    touched = rows.join(faults, meets, "left_semi").withColumn("place", sf.lit("inside"))
    untouched = rows.join(faults, meets, "left_anti").withColumn("place", sf.lit("outside"))
    return percentiles(touched.unionByName(untouched), ["run_id", "queue", "operation", "place"], exact=exact)


def as_percentiles(table: DataFrame, *, name_runs: bool) -> list[Percentiles]:
    """Rows of :func:`percentile_table`, steady first, named ``workload: operation qosN phase [run]`` as far as that
    tells. A history knows queues in place of workloads. Rows of which nothing was answered are left out.
    """
    rows = table.orderBy(sf.expr(f"phase <> '{STEADY}'"), "run_id", "phase", "workload", "queue", "operation", "qos")
    records = []
    for row in rows.where("count > 0").collect():
        subject = row["workload"] or row["queue"]
        words = [
            f"{subject}:" if subject else "",
            row["operation"],
            "" if row["qos"] < 0 else f"qos{row['qos']}",
            "" if row["phase"] == STEADY else row["phase"],
            f"[{row['run_id']}]" if name_runs else "",
        ]
        records.append(
            Percentiles(
                name=" ".join(word for word in words if word),
                count=row["count"],
                missing=row["missing"],
                max_us=row["max_us"],
                **{name: row[name] for name in QUANTILES},
            )
        )
    return records


_CHARTED: Final = (
    ("p50_us", "p50", "µs", "latency p50"),
    ("p99_high_us", "p99", "µs", "latency p99"),
    ("rate_per_s", "rate", "1/s", "throughput"),
)
"""Column of :func:`per_second`, its name in a legend, unit, chart. A p99 without a bound leaves a gap."""


def as_series(table: DataFrame, *, name_runs: bool) -> list[Series]:
    """Rows of :func:`per_second` as chart lines: p50, p99 (µs) and the rate of each workload's operations."""
    lines: dict[tuple[str, str, str], list[tuple[float, dict[str, float | None]]]] = {}
    for row in table.orderBy(*_LINE, "second").collect():
        figures = {column: row[column] for column, *_ in _CHARTED}
        lines.setdefault(tuple(row[name] for name in _LINE), []).append((float(row["second"]), figures))
    series = []
    for (run_id, workload, operation), points in lines.items():
        suffix = f" [{run_id}]" if name_runs else ""
        subject = f"{workload}: {operation}" if workload else operation
        for column, label, unit, group in _CHARTED:
            series.append(
                Series(
                    name=f"{subject} {label}{suffix}",
                    unit=unit,
                    x_s=[second for second, _ in points],
                    y=[figures[column] for _, figures in points],
                    group=f"{group}{suffix}",
                )
            )
    return series

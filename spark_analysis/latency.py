"""Latency percentiles and series of raw samples: exact up to five million rows, one-percent buckets above.

Percentiles are nearest-rank: the smallest sample that at least the share ``q`` of all samples does not exceed, as an
HdrHistogram reports them. Above :data:`EXACT_ROWS_MAX` a sample counts for its bucket, ``[1.01^b, 1.01^(b+1))``
nanoseconds, and the bucket answers with its geometric middle: at most half a percent off, the same on every run, and
mergeable, which Spark's own sketches are not at the tail. The maximum is always exact.

All functions take and return frames; a *sample* frame has the columns of ``LatencySample``.
"""

from __future__ import annotations

import math
from typing import Final

import msgspec
from pyspark.sql import DataFrame
from pyspark.sql import functions as sf

from reference_broker.trace.results import Percentiles, Series

EXACT_ROWS_MAX: Final = 5_000_000
BUCKET_GROWTH: Final = 1.01
QUANTILES: Final[dict[str, float]] = {"p50_us": 0.5, "p90_us": 0.9, "p99_us": 0.99, "p999_us": 0.999}
STEADY: Final = "steady"
ANY_QOS: Final = -1
"""``qos`` of a row that covers every QoS."""
UNSENT: Final = "unsent"
"""Status of a sample that the generator never sent; it says nothing of the broker."""
SERIES_POINTS_MAX: Final = 1200
NS_PER_S: Final = 1_000_000_000

_LOG_GROWTH: Final = math.log(BUCKET_GROWTH)
_GROUP: Final = ["run_id", "phase", "operation", "qos"]


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
    """``run_id, phase, operation, qos, intended_ns, completed_ns, latency_ns, service_ns`` of the samples that are ok.

    Latency counts from the intended time, so a stalled generator cannot hide a stalled broker.
    """
    return samples.where("status = 'ok'").select(
        *_GROUP,
        "intended_ns",
        "completed_ns",
        (sf.col("completed_ns") - sf.col("intended_ns")).alias("latency_ns"),
        (sf.col("completed_ns") - sf.col("sent_ns")).alias("service_ns"),
    )


def with_any_qos(rows: DataFrame) -> DataFrame:
    """The rows, and all of them again as ``qos`` :data:`ANY_QOS`, so that one grouping gives both answers."""
    return rows.where(sf.col("qos") != ANY_QOS).unionByName(rows.withColumn("qos", sf.lit(ANY_QOS)))


def percentiles(rows: DataFrame, by: list[str], *, value: str = "latency_ns", exact: bool = True) -> DataFrame:
    """``by..., count, p50_us, p90_us, p99_us, p999_us, max_us`` of column ``value`` (nanoseconds)."""
    return _exact(rows, by, value) if exact else _bucketed(rows, by, value)


def _microseconds(column: str) -> str:
    return f"{column} / 1000.0D"


def _exact(rows: DataFrame, by: list[str], value: str) -> DataFrame:
    # Ranks by an external sort, which spills; the aggregate `percentile` keeps every distinct value in memory.
    group = ", ".join(by)
    ranked = rows.selectExpr(
        *by,
        f"{value} AS value",
        f"row_number() OVER (PARTITION BY {group} ORDER BY {value}) AS nth",
        f"count(*) OVER (PARTITION BY {group}) AS total",
    )
    picked = [
        f"max(CASE WHEN nth = greatest(1, ceil(total * {quantile}D)) THEN {_microseconds('value')} END) AS {name}"
        for name, quantile in QUANTILES.items()
    ]
    aggregates = ["max(total) AS count", *picked, f"max({_microseconds('value')}) AS max_us"]
    return ranked.groupBy(*by).agg(*(sf.expr(aggregate) for aggregate in aggregates))


def _bucketed(rows: DataFrame, by: list[str], value: str) -> DataFrame:
    group = ", ".join(by)
    bucket = f"CASE WHEN {value} < 1 THEN -1 ELSE CAST(floor(ln({value}) / {_LOG_GROWTH!r}D) AS INT) END"
    buckets = (
        rows.selectExpr(*by, f"{bucket} AS bucket", f"{value} AS value")
        .groupBy(*by, "bucket")
        .agg(sf.count("*").alias("members"), sf.max("value").alias("most"))
    )
    middle = f"CASE WHEN bucket < 0 THEN 0.0D ELSE least(most, pow({BUCKET_GROWTH}D, bucket + 0.5D)) END"
    summed = buckets.selectExpr(
        *by,
        "most",
        "members",
        f"{middle} AS middle",
        f"sum(members) OVER (PARTITION BY {group} ORDER BY bucket) AS reached",
        f"sum(members) OVER (PARTITION BY {group}) AS total",
    )
    picked = [
        f"min(CASE WHEN reached >= greatest(1, ceil(total * {quantile}D)) THEN {_microseconds('middle')} END) AS {name}"
        for name, quantile in QUANTILES.items()
    ]
    aggregates = ["sum(members) AS count", *picked, f"max({_microseconds('most')}) AS max_us"]
    return summed.groupBy(*by).agg(*(sf.expr(aggregate) for aggregate in aggregates))


def percentile_table(samples: DataFrame, *, exact: bool) -> DataFrame:
    """Percentiles by run, phase, operation and QoS (:data:`ANY_QOS` sums up), from the intended time."""
    return percentiles(with_any_qos(latencies(samples)), _GROUP, exact=exact)


def bucket_width_s(duration_s: float) -> int:
    """Whole seconds per point, so that a chart has at most :data:`SERIES_POINTS_MAX` points."""
    return max(1, math.ceil(duration_s / SERIES_POINTS_MAX))


def span_s(samples: DataFrame) -> float:
    """Longest duration of any run in seconds, from the first intended to the last completed."""
    spans = samples.groupBy("run_id").agg(sf.expr(f"(max(completed_ns) - min(intended_ns)) / {NS_PER_S}D").alias("s"))
    longest = spans.agg(sf.max("s").alias("s")).collect()[0]["s"]
    return float(longest or 0.0)


def per_second(samples: DataFrame, *, width_s: int = 1, exact: bool = True) -> DataFrame:
    """``run_id, operation, second, count, rate_per_s, p50_us, ...``: by the second in which a sample was due.

    ``second`` counts from the zero of the samples' clock, the start of the run, and is a multiple of ``width_s``.
    """
    second = f"CAST(floor(intended_ns / {width_s * NS_PER_S}D) AS BIGINT) * {width_s} AS second"
    rows = latencies(samples).selectExpr("run_id", "operation", "latency_ns", second)
    table = percentiles(rows, ["run_id", "operation", "second"], exact=exact)
    return table.withColumn("rate_per_s", sf.expr(f"count / {width_s}D"))


def throughput_table(samples: DataFrame) -> DataFrame:
    """``run_id, operation, offered, completed, unfinished, offered_per_s, completed_per_s`` of the steady phase.

    Offered counts what was due, whatever became of it; completed counts the samples that are ok; unfinished those that
    were sent and lost or refused. Offered is divided by the time from the first to the last due sample, completed by
    that from the first due to the last completed.
    """
    return (
        samples.where(f"phase = '{STEADY}'")
        .groupBy("run_id", "operation")
        .agg(
            sf.count("*").alias("offered"),
            sf.count_if(sf.col("status") == "ok").alias("completed"),
            sf.count_if(~sf.col("status").isin("ok", UNSENT)).alias("unfinished"),
            sf.expr(f"(max(intended_ns) - min(intended_ns)) / {NS_PER_S}D").alias("due_s"),
            sf.expr(f"(max(IF(status = 'ok', completed_ns, NULL)) - min(intended_ns)) / {NS_PER_S}D").alias("span_s"),
        )
        .withColumn("offered_per_s", sf.expr("try_divide(CAST(offered AS DOUBLE), due_s)"))
        .withColumn("completed_per_s", sf.expr("try_divide(CAST(completed AS DOUBLE), span_s)"))
    )


def lateness_table(samples: DataFrame, *, exact: bool) -> DataFrame:
    """``run_id, operation, count, p50_us, ...``: how much later than due the samples of the steady phase were sent."""
    rows = samples.where(f"phase = '{STEADY}' AND status <> '{UNSENT}'").selectExpr(
        "run_id", "operation", "sent_ns - intended_ns AS late_ns"
    )
    return percentiles(rows, ["run_id", "operation"], value="late_ns", exact=exact)


def fault_window_table(samples: DataFrame, bands: DataFrame, *, exact: bool) -> DataFrame:
    """Percentiles of each operation inside and outside faults: ``run_id, operation, place, count, p50_us, ...``.

    ``bands`` has ``run_id, from_ns, to_ns`` on the clock of the samples. A sample is ``inside`` when its life, from
    intended to completed, touches a band.
    """
    rows = latencies(samples).alias("s")
    meets = sf.expr("s.run_id = b.run_id AND s.intended_ns < b.to_ns AND s.completed_ns > b.from_ns")
    faults = sf.broadcast(bands.alias("b"))
    touched = rows.join(faults, meets, "left_semi").withColumn("place", sf.lit("inside"))
    untouched = rows.join(faults, meets, "left_anti").withColumn("place", sf.lit("outside"))
    return percentiles(touched.unionByName(untouched), ["run_id", "operation", "place"], exact=exact)


def as_percentiles(table: DataFrame, *, name_runs: bool) -> list[Percentiles]:
    """Rows of :func:`percentile_table`, steady first, named ``operation qosN phase [run]`` as far as that tells."""
    rows = table.orderBy(sf.expr(f"phase <> '{STEADY}'"), "run_id", "phase", "operation", "qos").collect()
    # A single QoS says the same as their sum.
    kinds = {(row["run_id"], row["phase"], row["operation"], row["qos"]) for row in rows if row["qos"] != ANY_QOS}
    lone = {key[:3] for key in kinds if sum(other[:3] == key[:3] for other in kinds) == 1}
    records = []
    for row in rows:
        key = (row["run_id"], row["phase"], row["operation"])
        if row["qos"] != ANY_QOS and key in lone:
            continue
        words = [
            row["operation"],
            "" if row["qos"] == ANY_QOS else f"qos{row['qos']}",
            "" if row["phase"] == STEADY else row["phase"],
            f"[{row['run_id']}]" if name_runs else "",
        ]
        records.append(
            Percentiles(
                name=" ".join(word for word in words if word),
                count=row["count"],
                max_us=row["max_us"],
                **{name: row[name] for name in QUANTILES},
            )
        )
    return records


def as_series(table: DataFrame, *, name_runs: bool) -> list[Series]:
    """Rows of :func:`per_second` as chart lines: p50, p99 and maximum (µs), and the rate, for each operation."""
    lines: dict[tuple[str, str], list[tuple[float, dict[str, float]]]] = {}
    for row in table.orderBy("run_id", "operation", "second").collect():
        figures = {name: float(row[name]) for name in ("p50_us", "p99_us", "max_us", "rate_per_s")}
        lines.setdefault((row["run_id"], row["operation"]), []).append((float(row["second"]), figures))
    series = []
    for (run_id, operation), points in lines.items():
        suffix = f" [{run_id}]" if name_runs else ""
        for figure, unit, group in (
            ("p50_us", "µs", "latency"),
            ("p99_us", "µs", "latency"),
            ("max_us", "µs", "latency"),
            ("rate_per_s", "1/s", "throughput"),
        ):
            series.append(
                Series(
                    name=f"{operation} {figure.removesuffix('_us').removesuffix('_per_s')}{suffix}",
                    unit=unit,
                    x_s=[second for second, _ in points],
                    y=[figures[figure] for _, figures in points],
                    group=f"{group}{suffix}",
                )
            )
    return series

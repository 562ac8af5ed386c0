"""The way of a message through the broker, from its own trace: which hop contributes how much to the latency."""

from __future__ import annotations

from typing import Final

from pyspark.sql import DataFrame, SparkSession

from assay.spark_analysis.latency import percentiles

HOPS: Final = """
WITH moments AS (  -- two-level: one row per message and group, never the list of its events
    SELECT run_id, node, message_id, `group` AS consumer_group,
           min(CASE WHEN kind = 'published' THEN time_ns END) AS published_ns,
           min(CASE WHEN kind = 'enqueued' THEN time_ns END) AS enqueued_ns,
           min(CASE WHEN kind = 'confirmed' THEN time_ns END) AS confirmed_ns,
           min(CASE WHEN kind = 'delivered' THEN time_ns END) AS delivered_ns,
           max(CASE WHEN kind = 'acked' THEN time_ns END) AS acked_ns
    FROM {trace} WHERE message_id <> '' GROUP BY run_id, node, message_id, `group`
),
joined AS (  -- what happens before routing to groups carries no group
    SELECT m.run_id, m.message_id, m.consumer_group, m.delivered_ns, m.acked_ns,
           coalesce(m.published_ns, p.published_ns) AS published_ns,
           coalesce(m.enqueued_ns, p.enqueued_ns) AS enqueued_ns,
           coalesce(m.confirmed_ns, p.confirmed_ns) AS confirmed_ns
    FROM moments m
    LEFT JOIN moments p ON p.run_id = m.run_id AND p.node = m.node AND p.message_id = m.message_id
        AND p.consumer_group = '' AND m.consumer_group <> ''
)
SELECT run_id, hop.operation, hop.latency_ns FROM (
    SELECT run_id, explode(array(
        named_struct('operation', 'published to enqueued', 'latency_ns', enqueued_ns - published_ns),
        named_struct('operation', 'enqueued to confirmed', 'latency_ns', confirmed_ns - enqueued_ns),
        named_struct('operation', 'enqueued to delivered', 'latency_ns', delivered_ns - enqueued_ns),
        named_struct('operation', 'delivered to acked', 'latency_ns', acked_ns - delivered_ns)
    )) AS hop FROM joined
) WHERE hop.latency_ns IS NOT NULL
"""


def hop_table(spark: SparkSession, trace: DataFrame, *, exact: bool) -> DataFrame:
    """``run_id, operation, count, p50_us, ...`` of each hop. ``trace`` has ``run_id`` and the fields of TraceEvent."""
    return percentiles(spark.sql(HOPS, trace=trace), ["run_id", "operation"], exact=exact)

"""What a history tells besides anomalies: counts, what it cannot prove, latencies, faults and recovery, backlog."""

from __future__ import annotations

from typing import Final

import msgspec
from pyspark.sql import DataFrame

from assay.reference_broker.trace.results import Band, Series
from assay.reference_broker.trace.schema import HistoryHeader
from assay.spark_analysis.latency import NS_PER_S
from assay.spark_analysis.tables import MQTT_PREFIX, Tables

SCOPES_MAX: Final = 100_000

COUNTS: Final = """
WITH published AS (
    SELECT s.run_id, count_if(s.status = 'ok') AS sends_ok, count_if(s.status = 'fail') AS sends_fail,
           count_if(s.status = 'info') AS sends_info, count_if(s.status = 'info' AND r.value IS NOT NULL) AS recovered
    FROM {sends} s LEFT JOIN (SELECT DISTINCT run_id, value FROM {deliveries}) r
        ON r.run_id = s.run_id AND r.value = s.value
    GROUP BY s.run_id
),
delivered AS (
    SELECT run_id, count_if(NOT is_dead) AS deliveries, count_if(NOT is_dead AND nth > 1) AS redeliveries,
           count_if(is_dead) AS dead_lettered
    FROM {deliveries} GROUP BY run_id
),
settled AS (
    SELECT run_id, count_if(kind = 'ack' AND status = 'ok') AS acks_ok, count_if(kind = 'nack' AND status = 'ok')
           AS nacks_ok, count_if(kind = 'reject' AND status = 'ok') AS rejects_ok
    FROM {settlements} GROUP BY run_id
),
whole AS (
    SELECT run_id, count(*) AS events, count_if(f = 'session_end') AS session_ends,
           count_if(f = 'fault' AND type = 'invoke') AS faults, max(time_ns) AS end_ns
    FROM {events} GROUP BY run_id
)
SELECT k.run_id,
       coalesce(w.events, 0) AS events, coalesce(p.sends_ok, 0) AS sends_ok, coalesce(p.sends_fail, 0) AS sends_fail,
       coalesce(p.sends_info, 0) AS sends_info, coalesce(p.recovered, 0) AS recovered,
       coalesce(d.deliveries, 0) AS deliveries, coalesce(d.redeliveries, 0) AS redeliveries,
       coalesce(d.dead_lettered, 0) AS dead_lettered, coalesce(s.acks_ok, 0) AS acks_ok,
       coalesce(s.nacks_ok, 0) AS nacks_ok, coalesce(s.rejects_ok, 0) AS rejects_ok,
       coalesce(w.session_ends, 0) AS session_ends, coalesce(w.faults, 0) AS faults, coalesce(w.end_ns, 0) AS end_ns
FROM {contracts} k
LEFT JOIN published p ON p.run_id = k.run_id
LEFT JOIN delivered d ON d.run_id = k.run_id
LEFT JOIN settled s ON s.run_id = k.run_id
LEFT JOIN whole w ON w.run_id = k.run_id
"""

# Phase "history": the load is the scenario's, so no target judges it. A history does not tell the QoS (-1), and its
# workloads are its queues.
SAMPLES: Final = """
SELECT run_id, 'history' AS phase, 'publish_to_ack' AS operation, -1 AS qos, producer AS client, seq,
       intended_ns, inv_ns AS sent_ns, cpl_ns AS completed_ns, 'ok' AS status,
       queue AS workload, queue, '' AS protocol, CAST(-1 AS BIGINT) AS offered_ns
FROM {sends} WHERE status = 'ok'
UNION ALL
SELECT m.run_id, 'history', 'publish_to_deliver', -1, m.process, s.seq,
       s.intended_ns, s.inv_ns, m.time_ns, 'ok', m.queue, m.queue, '', CAST(-1 AS BIGINT)
FROM {main} m JOIN {sends} s ON s.run_id = m.run_id AND s.value = m.value
WHERE m.nth = 1 AND m.idx > s.inv_idx
UNION ALL
SELECT run_id, 'history', 'deliver_to_settle', -1, process, -1, delivered_ns, delivered_ns, cpl_ns, 'ok',
       queue, queue, '', CAST(-1 AS BIGINT)
FROM (SELECT s.run_id, s.queue, s.process, s.cpl_ns, max_by(m.time_ns, m.idx) AS delivered_ns
      FROM {settlements} s JOIN {main} m ON m.run_id = s.run_id AND m.queue = s.queue
          AND m.consumer_group = s.consumer_group AND m.value = s.value AND m.process = s.process AND m.idx < s.inv_idx
      WHERE s.status = 'ok'
      GROUP BY s.run_id, s.queue, s.process, s.inv_idx, s.cpl_ns)
"""

RECOVERY: Final = """
WITH confirmed AS (
    SELECT run_id, queue, cpl_ns, lag(cpl_ns, 1, 0) OVER (PARTITION BY run_id, queue ORDER BY cpl_ns) AS before_ns
    FROM {sends} WHERE status = 'ok'
),
of_queue AS (  -- one queue at a time: another's confirms do not end its silence
    SELECT f.run_id, f.kind, f.detail, f.from_idx, f.from_ns, f.to_ns,
           -- the longest time without a confirmed publish that touches the fault
           max(CASE WHEN o.before_ns < f.to_ns THEN o.cpl_ns - o.before_ns END) / 1000000000D AS silence_s,
           (min(CASE WHEN o.cpl_ns >= f.to_ns THEN o.cpl_ns END) - f.to_ns) / 1000000000D AS recovered_after_s
    FROM {faults} f
    LEFT JOIN confirmed o ON o.run_id = f.run_id AND o.cpl_ns > f.from_ns
    GROUP BY f.run_id, f.kind, f.detail, f.from_idx, f.from_ns, f.to_ns, o.queue
)
SELECT q.run_id, q.kind, q.detail, q.from_idx, q.from_ns, least(q.to_ns, c.end_ns) AS to_ns,
       max(q.silence_s) AS silence_s, max(q.recovered_after_s) AS recovered_after_s
FROM of_queue q
JOIN {counts} c ON c.run_id = q.run_id
GROUP BY q.run_id, q.kind, q.detail, q.from_idx, q.from_ns, q.to_ns, c.end_ns
"""

BACKLOG: Final = """
WITH changes AS (
    SELECT s.run_id, s.queue, c.consumer_group, s.cpl_ns AS at_ns, 1 AS change
    FROM {sends} s JOIN {scopes} c ON c.run_id = s.run_id AND c.queue = s.queue AND c.listed
    WHERE s.status = 'ok' AND s.inv_idx > c.since
    UNION ALL
    SELECT m.run_id, m.queue, m.consumer_group, m.time_ns, -1
    FROM {main} m JOIN {sends} s ON s.run_id = m.run_id AND s.value = m.value AND s.queue = m.queue
    JOIN {scopes} c ON c.run_id = m.run_id AND c.queue = m.queue AND c.consumer_group = m.consumer_group AND c.listed
    WHERE m.nth = 1 AND s.status = 'ok' AND s.inv_idx > c.since
),
by_second AS (
    SELECT run_id, queue, consumer_group, at_ns DIV 1000000000 AS second, sum(change) AS change
    FROM changes GROUP BY run_id, queue, consumer_group, at_ns DIV 1000000000
)
SELECT run_id, queue, consumer_group, second,
       sum(change) OVER (PARTITION BY run_id, queue, consumer_group ORDER BY second) AS waiting
FROM by_second
"""


class RunCounts(msgspec.Struct, frozen=True, kw_only=True):
    """Sizes of one history."""

    run_id: str
    events: int
    sends_ok: int
    sends_fail: int
    sends_info: int
    recovered: int
    """Publishes of unknown outcome that were delivered."""
    deliveries: int
    redeliveries: int
    dead_lettered: int
    acks_ok: int
    nacks_ok: int
    rejects_ok: int
    session_ends: int
    faults: int
    end_ns: int


def counts_by_run(counts: DataFrame) -> dict[str, RunCounts]:
    """The rows of :data:`COUNTS`."""
    return {row["run_id"]: msgspec.convert(row.asDict(), RunCounts) for row in counts.collect()}


def missing_claims(
    tables: Tables, headers: dict[str, HistoryHeader], counts: dict[str, RunCounts]
) -> dict[str, list[str]]:
    """Why each history cannot prove that the broker is right; no entry where it can."""
    rows = tables.query(
        "SELECT run_id, queue, consumer_group, drained, dead_drained, ended FROM {scopes} WHERE listed "
        "ORDER BY run_id, queue, consumer_group LIMIT :scopes_max",
        {"scopes_max": SCOPES_MAX},
    ).collect()
    reasons: dict[str, list[str]] = {run_id: [] for run_id in headers}
    for run_id, sizes in counts.items():
        if not sizes.sends_ok:
            reasons[run_id].append("no publish was acknowledged")
        if not sizes.deliveries:
            reasons[run_id].append("nothing was delivered")
    for row in rows:
        if not row["drained"] and not row["ended"]:
            reasons[row["run_id"]].append(f"queue {row['queue']!r} was not drained by group {row['consumer_group']!r}")
    undrained = sorted(
        {(r["run_id"], r["queue"]) for r in rows if not r["dead_drained"] and not r["queue"].startswith(MQTT_PREFIX)}
    )
    for run_id, queue in undrained:
        if headers[run_id].contract.dead_letters:
            reasons[run_id].append(f"the dead-letter queue of {queue!r} was not drained")
    return {run_id: said for run_id, said in reasons.items() if said}


def fault_bands(recovery: DataFrame) -> dict[str, list[Band]]:
    """Bands of each run, from the rows of :data:`RECOVERY`."""
    bands: dict[str, list[Band]] = {}
    for row in recovery.orderBy("run_id", "from_ns").collect():
        bands.setdefault(row["run_id"], []).append(
            Band(
                label=row["detail"] or row["kind"] or "fault",
                from_s=row["from_ns"] / NS_PER_S,
                to_s=row["to_ns"] / NS_PER_S,
            )
        )
    return bands


def backlog_series(backlog: DataFrame, *, name_runs: bool) -> list[Series]:
    """Messages acknowledged to their publisher and not yet delivered, second by second, for each group."""
    lines: dict[tuple[str, str, str], list[tuple[float, float]]] = {}
    for row in backlog.orderBy("run_id", "queue", "consumer_group", "second").collect():
        key = (row["run_id"], row["queue"], row["consumer_group"])
        # A delivery may overtake the acknowledgement of its publish: never less than nothing waits.
        lines.setdefault(key, []).append((float(row["second"]), float(max(0, row["waiting"]))))
    return [
        Series(
            name=f"{queue} to {group or 'everybody'}" + (f" [{run_id}]" if name_runs else ""),
            unit="messages",
            x_s=[second for second, _ in points],
            y=[waiting for _, waiting in points],
            group="backlog" + (f" [{run_id}]" if name_runs else ""),
        )
        for (run_id, queue, group), points in lines.items()
    ]

"""Second deliveries without a cause: B3 ``redelivery_without_cause``, B6 ``concurrent_delivery``, A15 ``resurrection``.

Each delivery after the first of its subject is judged in a window of the history: from the delivery before it (or,
when the network was slow, from the send) to itself (or, when it came after its settlement was confirmed, to that
confirmation). Anything in the window that lets a broker deliver again is a cause.
"""

from __future__ import annotations

from typing import Final

PARAMETERS: Final = {
    "grace_ns": 1_000_000_000,  # a client may notice the end of its session this much late
    "slack_ns": 1_000_000_000,  # a timeout may seem this much shorter than it was (half of it at most)
}

WINDOWS: Final = """
WITH confirmed AS (  -- the first ACK or REJECT of each subject that the broker confirmed
    SELECT run_id, queue, consumer_group, value, min(struct(cpl_idx, cpl_ns)) AS first
    FROM {settlements} WHERE kind IN ('ack', 'reject') AND status = 'ok'
    GROUP BY run_id, queue, consumer_group, value
),
ordered AS (
    SELECT m.*, c.first.cpl_idx AS settled_idx, c.first.cpl_ns AS settled_ns,
           lag(struct(m.idx, m.time_ns, m.process)) OVER (
               PARTITION BY m.run_id, m.queue, m.consumer_group, m.value ORDER BY m.idx) AS previous,
           max(CASE WHEN m.idx < c.first.cpl_idx THEN struct(m.idx, m.time_ns) END) OVER (
               PARTITION BY m.run_id, m.queue, m.consumer_group, m.value) AS last_unsettled
    FROM {main} m LEFT JOIN confirmed c ON c.run_id = m.run_id AND c.queue = m.queue
        AND c.consumer_group = m.consumer_group AND c.value = m.value
    WHERE m.times > 1
),
again AS (
    SELECT o.*, coalesce(o.settled_idx < o.idx, FALSE) AS is_late,
           coalesce(s.inv_idx, 0) AS sent_idx, coalesce(s.inv_ns, 0) AS sent_ns
    FROM ordered o LEFT JOIN {sends} s ON s.run_id = o.run_id AND s.value = o.value
    WHERE o.nth > 1
),
slow AS (  -- clients may have seen these long after the broker sent them
    SELECT DISTINCT a.run_id, a.idx FROM again a JOIN {faults} f ON f.run_id = a.run_id
    WHERE f.kind IN ('latency', 'loss', 'bandwidth', 'partition', 'pause')
      AND f.from_idx < a.idx AND f.to_idx > a.sent_idx
),
started AS (
    SELECT a.*, CASE WHEN a.is_late THEN a.last_unsettled ELSE struct(a.previous.idx, a.previous.time_ns) END AS before,
           w.idx IS NOT NULL AS is_slow
    FROM again a LEFT JOIN slow w ON w.run_id = a.run_id AND w.idx = a.idx
)
SELECT run_id, queue, consumer_group, value, idx, time_ns, process, previous, is_late,
       CASE WHEN is_late THEN settled_idx ELSE -1 END AS settled_idx,
       CASE WHEN is_slow OR before IS NULL THEN sent_idx ELSE before.idx END AS from_idx,
       CASE WHEN is_slow OR before IS NULL THEN sent_ns ELSE before.time_ns END AS from_ns,
       CASE WHEN is_late THEN settled_idx ELSE idx END AS to_idx,
       CASE WHEN is_late THEN settled_ns ELSE time_ns END AS to_ns
FROM started
"""

UNJUSTIFIED: Final = """
WITH caused AS (
    SELECT w.run_id, w.idx FROM {windows} w JOIN {settlements} s
        ON s.run_id = w.run_id AND s.queue = w.queue AND s.consumer_group = w.consumer_group AND s.value = w.value
    WHERE s.inv_idx > w.from_idx AND s.inv_idx < w.to_idx AND (s.kind = 'nack' OR s.status <> 'ok')
    UNION ALL
    SELECT w.run_id, w.idx FROM {windows} w
    JOIN {main} m ON m.run_id = w.run_id AND m.queue = w.queue AND m.consumer_group = w.consumer_group
        AND m.value = w.value AND m.idx < w.idx
    JOIN {session_ends} e ON e.run_id = m.run_id AND e.process = m.process
    WHERE e.idx > w.from_idx
      AND (e.idx < w.to_idx OR (NOT w.is_late AND e.time_ns <= w.to_ns + :grace_ns))
    UNION ALL
    SELECT w.run_id, w.idx FROM {windows} w JOIN {faults} f ON f.run_id = w.run_id
    WHERE f.kind IN ('crash', 'power_loss', 'reset', 'partition') AND f.from_idx < w.to_idx AND f.to_idx > w.from_idx
    UNION ALL
    SELECT w.run_id, w.idx FROM {windows} w JOIN {contracts} k ON k.run_id = w.run_id
    WHERE k.timeout_ns > 0
      AND w.to_ns - w.from_ns >= k.timeout_ns - least(k.timeout_ns DIV 2, :slack_ns)
),
uncaused AS (
    SELECT w.* FROM {windows} w LEFT ANTI JOIN caused c ON c.run_id = w.run_id AND c.idx = w.idx
),
let_go AS (  -- the consumer before had at least tried to settle
    SELECT DISTINCT u.run_id, u.idx FROM uncaused u JOIN {settlements} s
        ON s.run_id = u.run_id AND s.queue = u.queue AND s.consumer_group = u.consumer_group AND s.value = u.value
    WHERE s.process = u.previous.process AND s.inv_idx > u.previous.idx AND s.inv_idx < u.idx
),
excused AS (
    SELECT DISTINCT u.run_id, u.idx FROM uncaused u JOIN {faults} d ON d.run_id = u.run_id AND d.destroys
    WHERE u.is_late AND u.settled_idx < d.from_idx AND d.from_idx < u.idx
),
classed AS (
    SELECT u.*, x.idx IS NOT NULL AS is_excused,
           CASE WHEN u.is_late THEN 'A15'
                WHEN u.previous.process <> u.process AND g.idx IS NULL THEN 'B6' ELSE 'B3' END AS anomaly
    FROM uncaused u
    LEFT JOIN let_go g ON g.run_id = u.run_id AND g.idx = u.idx
    LEFT JOIN excused x ON x.run_id = u.run_id AND x.idx = u.idx
)
SELECT run_id,
       CASE anomaly WHEN 'A15' THEN 'resurrection' WHEN 'B6' THEN 'concurrent_delivery'
                    ELSE 'redelivery_without_cause' END AS checker,
       anomaly, CASE WHEN is_excused THEN 'quality' ELSE 'safety' END AS severity,
       queue, consumer_group, value, idx,
       CASE anomaly WHEN 'A15' THEN 'delivered after its settlement was confirmed'
                    WHEN 'B6' THEN 'another consumer still held it'
                    ELSE 'no cause since the delivery before' END AS detail
FROM classed
"""

"""Second deliveries without a cause: B3 ``redelivery_without_cause``, B6 ``concurrent_delivery``, A15 ``resurrection``.

Clients see deliveries late and in any order, so the rule counts: between two deliveries of a message the broker needs a
cause, and each cause serves once. A delivery is judged by the causes before its end: itself or, when it came after its
settlement was confirmed, that confirmation.
"""

from __future__ import annotations

from typing import Final

PARAMETERS: Final = {
    "grace_ns": 1_000_000_000,  # a client may notice the end of its session this much late
    "slack_ns": 50_000_000,  # a timer may fire this much early
}

WINDOWS: Final = """
WITH confirmed AS (  -- the first ACK or REJECT of each subject that the broker confirmed
    SELECT run_id, queue, consumer_group, value, min(struct(cpl_idx, cpl_ns)) AS first
    FROM {settlements} WHERE kind IN ('ack', 'reject') AND status = 'ok'
    GROUP BY run_id, queue, consumer_group, value
),
ordered AS (
    SELECT m.*, c.first.cpl_idx AS settled_idx, c.first.cpl_ns AS settled_ns,
           coalesce(c.first.cpl_idx < m.idx, FALSE) AS is_late,
           lag(struct(m.idx, m.process)) OVER (
               PARTITION BY m.run_id, m.queue, m.consumer_group, m.value ORDER BY m.idx) AS previous
    FROM {main} m LEFT JOIN confirmed c ON c.run_id = m.run_id AND c.queue = m.queue
        AND c.consumer_group = m.consumer_group AND c.value = m.value
    WHERE m.times > 1 AND NOT m.is_mqtt
)
SELECT o.run_id, o.queue, o.consumer_group, o.value, o.idx, o.process, o.nth, o.previous, o.is_late,
       CASE WHEN o.is_late THEN o.settled_idx ELSE -1 END AS settled_idx,
       CASE WHEN o.is_late THEN o.settled_idx ELSE o.idx END AS end_idx,
       CASE WHEN o.is_late THEN o.settled_ns ELSE o.time_ns END AS end_ns,
       coalesce(s.inv_idx, 0) AS sent_idx, coalesce(s.inv_ns, 0) AS sent_ns,
       coalesce(s.delay_ns, -1) >= 0 AS is_delayed
FROM ordered o LEFT JOIN {sends} s ON s.run_id = o.run_id AND s.value = o.value
WHERE o.nth > 1
"""

UNJUSTIFIED: Final = """
WITH holders AS (  -- who had received the message before
    SELECT DISTINCT w.run_id, w.idx, w.end_idx, w.end_ns, w.is_late, m.process
    FROM {windows} w
    JOIN {main} m ON m.run_id = w.run_id AND m.queue = w.queue AND m.consumer_group = w.consumer_group
        AND m.value = w.value AND m.idx < w.idx
),
causes AS (
    SELECT w.run_id, w.idx, count(*) AS number FROM {windows} w JOIN {settlements} s
        ON s.run_id = w.run_id AND s.queue = w.queue AND s.consumer_group = w.consumer_group AND s.value = w.value
    WHERE s.inv_idx < w.end_idx AND (s.kind = 'nack' OR s.status <> 'ok')
    GROUP BY w.run_id, w.idx
    UNION ALL
    SELECT h.run_id, h.idx, count(*) FROM holders h
    JOIN {session_ends} e ON e.run_id = h.run_id AND e.process = h.process
    WHERE e.idx < h.end_idx OR (NOT h.is_late AND e.time_ns <= h.end_ns + :grace_ns)
    GROUP BY h.run_id, h.idx
    UNION ALL
    SELECT w.run_id, w.idx, count(*) FROM {windows} w JOIN {faults} f ON f.run_id = w.run_id
    WHERE f.cuts AND f.from_idx < w.end_idx AND f.to_idx > w.sent_idx
    GROUP BY w.run_id, w.idx
    UNION ALL
    SELECT w.run_id, w.idx, greatest(0, w.end_ns - w.sent_ns + :slack_ns) DIV k.timeout_ns
    FROM {windows} w JOIN {contracts} k ON k.run_id = w.run_id
    WHERE k.timeout_ns > 0
),
summed AS (SELECT run_id, idx, sum(number) AS causes FROM causes GROUP BY run_id, idx),
counted AS (
    SELECT w.*, coalesce(s.causes, 0) AS causes
    FROM {windows} w LEFT JOIN summed s ON s.run_id = w.run_id AND s.idx = w.idx
),
judged AS (  -- redeliveries justified before this one: each needed a cause of its own
    SELECT *, nth - 1 + least(-1, coalesce(min(causes - nth) OVER (
                  PARTITION BY run_id, queue, consumer_group, value ORDER BY idx
                  ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING), -1)) AS justified_before
    FROM counted
),
uncaused AS (
    SELECT * FROM judged
    WHERE CASE WHEN is_late THEN nth - 1 > causes ELSE justified_before >= causes END
),
let_go AS (  -- the consumer before had at least tried to settle
    SELECT DISTINCT u.run_id, u.idx FROM uncaused u JOIN {settlements} s
        ON s.run_id = u.run_id AND s.queue = u.queue AND s.consumer_group = u.consumer_group AND s.value = u.value
    WHERE s.process = u.previous.process AND s.inv_idx > u.previous.idx AND s.inv_idx < u.idx
),
excused AS (
    SELECT DISTINCT u.run_id, u.idx FROM uncaused u JOIN {faults} d ON d.run_id = u.run_id AND d.destroys
    WHERE u.is_late AND u.settled_idx < d.destroyed_to AND d.from_idx < u.idx
),
fired_again AS (  -- over a loss of power, or a failed sync, a delayed message may fire a second time
    SELECT DISTINCT u.run_id, u.idx FROM uncaused u JOIN {faults} f ON f.run_id = u.run_id
    WHERE u.is_delayed AND (f.kind IN ('power_loss', 'torn_write') OR f.sticks)
        AND f.from_idx < u.idx AND f.to_idx > u.sent_idx
),
classed AS (
    SELECT u.*, x.idx IS NOT NULL AS is_excused,
           CASE WHEN u.is_late THEN 'A15'
                WHEN u.previous.process <> u.process AND g.idx IS NULL THEN 'B6' ELSE 'B3' END AS anomaly
    FROM uncaused u
    LEFT ANTI JOIN fired_again a ON a.run_id = u.run_id AND a.idx = u.idx
    LEFT JOIN let_go g ON g.run_id = u.run_id AND g.idx = u.idx
    LEFT JOIN excused x ON x.run_id = u.run_id AND x.idx = u.idx
)
SELECT run_id,
       CASE anomaly WHEN 'A15' THEN 'resurrection' WHEN 'B6' THEN 'concurrent_delivery'
                    ELSE 'redelivery_without_cause' END AS checker,
       anomaly, CASE WHEN is_excused THEN 'quality' ELSE 'safety' END AS severity,
       queue, consumer_group, value, idx,
       CASE anomaly WHEN 'A15' THEN 'came after its settlement was confirmed'
                    WHEN 'B6' THEN 'another consumer still held it'
                    ELSE 'more deliveries than causes' END AS detail
FROM classed
"""

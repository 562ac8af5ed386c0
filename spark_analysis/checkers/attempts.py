"""``dlq_without_cause`` (A12) and ``delivery_count`` (B4, B7): the broker's own account of its attempts."""

from __future__ import annotations

from typing import Final

PARAMETERS: Final = {"slack_ns": 50_000_000}  # a timer may fire this much early

DLQ_WITHOUT_CAUSE: Final = """
WITH attempts AS (
    SELECT run_id, queue, value, max(greatest(times, delivery_count)) AS most FROM {main} GROUP BY run_id, queue, value
),
rejected AS (SELECT DISTINCT run_id, queue, value FROM {settlements} WHERE kind = 'reject'),
suspects AS (
    SELECT d.*, s.inv_idx
    FROM {deliveries} d
    JOIN {contracts} k ON k.run_id = d.run_id AND k.max_deliveries > 0
    JOIN {sends} s ON s.run_id = d.run_id AND s.value = d.value
    LEFT JOIN attempts a ON a.run_id = d.run_id AND a.queue = d.home AND a.value = d.value
    LEFT ANTI JOIN rejected r ON r.run_id = d.run_id AND r.queue = d.home AND r.value = d.value
    WHERE d.is_dead AND NOT startswith(d.reason, 'expired')
      AND coalesce(a.most, 0) + CASE WHEN k.timeout_ns > 0  -- deliveries may have timed out before anybody saw them
              THEN greatest(0, d.time_ns - s.inv_ns + :slack_ns) DIV k.timeout_ns ELSE 0 END < k.max_deliveries
),
disturbed AS (  -- deliveries that no client saw may have used up the attempts
    SELECT s.run_id, s.idx FROM suspects s JOIN {faults} f ON f.run_id = s.run_id
    WHERE (f.cuts OR f.delays) AND f.from_idx < s.idx AND f.to_idx > s.inv_idx
    UNION ALL
    SELECT s.run_id, s.idx FROM suspects s JOIN {session_ends} e ON e.run_id = s.run_id
    LEFT JOIN {started} b ON b.run_id = e.run_id AND b.process = e.process
    WHERE e.idx > s.inv_idx AND e.idx < s.idx OR b.since > s.inv_idx AND b.since < s.idx
)
SELECT run_id, 'dlq_without_cause' AS checker, 'A12' AS anomaly, 'safety' AS severity, queue,
       min_by(consumer_group, idx) AS consumer_group, value, min(idx) AS idx,
       concat('reason given: ', coalesce(nullif(min_by(reason, idx), ''), 'none')) AS detail
FROM (SELECT s.* FROM suspects s LEFT ANTI JOIN disturbed x ON x.run_id = s.run_id AND x.idx = s.idx)
GROUP BY run_id, queue, value
"""

DELIVERY_COUNT: Final = """
WITH told AS (
    SELECT m.*, s.inv_idx, s.inv_ns, k.max_deliveries, k.delivery_timeout_s,
           row_number() OVER (PARTITION BY m.run_id, m.queue, m.consumer_group, m.value, m.delivery_count
                              ORDER BY m.idx) AS nth_of_count,
           row_number() OVER (PARTITION BY m.run_id, m.queue, m.consumer_group, m.value, m.redelivered
                              ORDER BY m.idx) AS nth_of_flag
    FROM {main} m
    JOIN {contracts} k ON k.run_id = m.run_id
    LEFT JOIN {sends} s ON s.run_id = m.run_id AND s.value = m.value
    WHERE (m.times > 1 OR m.redelivered OR m.delivery_count > 1) AND NOT m.is_mqtt
),
disturbed AS (
    SELECT DISTINCT t.run_id, t.idx FROM told t JOIN {faults} f ON f.run_id = t.run_id
    WHERE f.from_idx < t.idx AND f.to_idx > t.inv_idx
),
cut AS (
    SELECT DISTINCT t.run_id, t.idx FROM told t JOIN {session_ends} e ON e.run_id = t.run_id
    WHERE t.nth = 1 AND e.idx > t.inv_idx AND e.idx < t.idx
),
calm AS (
    SELECT t.*, c.idx IS NOT NULL AS is_cut
    FROM told t LEFT ANTI JOIN disturbed d ON d.run_id = t.run_id AND d.idx = t.idx
    LEFT JOIN cut c ON c.run_id = t.run_id AND c.idx = t.idx
    WHERE t.inv_idx IS NOT NULL
)
SELECT run_id, 'delivery_count' AS checker, 'B7' AS anomaly, 'safety' AS severity, queue, consumer_group, value, idx,
       'beyond the limit' AS detail
FROM told WHERE max_deliveries > 0 AND delivery_count > max_deliveries
UNION ALL
SELECT run_id, 'delivery_count', 'B4', 'safety', queue, consumer_group, value, idx,
       'redelivery not called one, or counted as another'
FROM calm WHERE (delivery_count > 0 AND nth_of_count > 1) OR (NOT redelivered AND nth_of_flag > 1)
UNION ALL
SELECT run_id, 'delivery_count', 'B4', 'quality', queue, consumer_group, value, idx,
       'first delivery called a redelivery'
FROM calm WHERE nth = 1 AND (redelivered OR delivery_count > 1) AND NOT is_cut
    AND time_ns - inv_ns < delivery_timeout_s * 1e9
"""

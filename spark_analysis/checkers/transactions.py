"""``transactions`` (E1, E2, E3): a transaction is seen as a whole and after its commit was asked for, or not at all."""

from __future__ import annotations

from typing import Final

PRECOMMITTED: Final = """
SELECT d.run_id, 'transactions' AS checker, 'E1' AS anomaly, 'safety' AS severity, d.queue, d.consumer_group, d.value,
       d.idx, 'before its commit' AS detail
FROM {deliveries} d
JOIN {sends} s ON s.run_id = d.run_id AND s.value = d.value AND s.txn <> ''
JOIN {commits} c ON c.run_id = s.run_id AND c.txn = s.txn AND d.idx < c.inv_idx
"""

HALF_DONE: Final = """
WITH members AS (  -- messages of which nobody knows whether they were committed
    SELECT s.run_id, s.txn, s.queue, s.value, s.inv_idx, c.inv_idx AS asked_idx
    FROM {sends} s JOIN {commits} c ON c.run_id = s.run_id AND c.txn = s.txn
    WHERE s.txn <> '' AND s.status = 'info' AND c.status = 'info'
),
begun AS (SELECT run_id, txn, min(inv_idx) AS began_idx FROM members GROUP BY run_id, txn),
dead AS (SELECT DISTINCT run_id, home AS queue, value FROM {deliveries} WHERE is_dead),
fates AS (
    SELECT m.*, c.consumer_group, c.since, c.ended, b.began_idx, r.idx IS NOT NULL AS is_read,
           d.value IS NOT NULL AS is_dead
    FROM members m JOIN begun b ON b.run_id = m.run_id AND b.txn = m.txn
    JOIN {scopes} c ON c.run_id = m.run_id AND c.queue = m.queue AND c.listed AND c.closed
    LEFT JOIN {main} r ON r.run_id = m.run_id AND r.queue = m.queue AND r.consumer_group = c.consumer_group
        AND r.value = m.value AND r.nth = 1
    LEFT JOIN dead d ON d.run_id = m.run_id AND d.queue = m.queue AND d.value = m.value
),
wholes AS (
    SELECT *, bool_or(is_read OR is_dead) OVER (PARTITION BY run_id, txn, queue, consumer_group) AS is_somewhere
    FROM fates WHERE since <= began_idx
),
shown AS (  -- in all groups, or in none
    SELECT run_id, txn, asked_idx, bool_and(is_read) AS is_seen FROM fates WHERE NOT ended
    GROUP BY run_id, txn, asked_idx HAVING bool_and(is_read) OR NOT bool_or(is_read)
),
again AS (  -- what became of the originals
    SELECT a.run_id, a.queue, a.consumer_group, a.value, a.inv_idx, s.asked_idx, s.is_seen,
           max(m.idx) AS last_idx, max(m.idx) < s.asked_idx AND max_by(m.process, m.idx) = a.process AS was_last,
           count_if(m.idx > s.asked_idx AND b.since > s.asked_idx) AS anew
    FROM shown s JOIN {settlements} a ON a.run_id = s.run_id AND a.txn = s.txn AND a.kind = 'ack'
    JOIN {scopes} c ON c.run_id = a.run_id AND c.queue = a.queue AND c.consumer_group = a.consumer_group AND c.closed
    LEFT ANTI JOIN dead d ON d.run_id = a.run_id AND d.queue = a.queue AND d.value = a.value
    LEFT JOIN {main} m ON m.run_id = a.run_id AND m.queue = a.queue AND m.consumer_group = a.consumer_group
        AND m.value = a.value
    LEFT JOIN {started} b ON b.run_id = m.run_id AND b.process = m.process
    GROUP BY a.run_id, a.queue, a.consumer_group, a.value, a.process, a.inv_idx, s.asked_idx, s.is_seen
),
found AS (
    SELECT run_id, 'E2' AS anomaly, queue, consumer_group, value, asked_idx, asked_idx AS there_idx,
           'missing from its transaction' AS detail
    FROM wholes WHERE is_somewhere AND NOT is_read AND NOT is_dead
    UNION ALL
    SELECT run_id, 'E3', queue, consumer_group, value, asked_idx, if(is_seen, asked_idx, last_idx),
           if(is_seen, 'delivered again, and its copy is there', 'gone, and its copy is not there')
    FROM again WHERE if(is_seen, anew > 0, was_last)
)
SELECT f.run_id, 'transactions' AS checker, f.anomaly,
       if(f.there_idx < k.destroyed_to, 'quality', 'safety') AS severity,
       f.queue, f.consumer_group, f.value, f.asked_idx AS idx, f.detail
FROM found f JOIN {contracts} k ON k.run_id = f.run_id
"""

"""``lost`` (A1, F6) and ``dlq_loss`` (A11): what was acknowledged, and what had to be dead-lettered, is somewhere.

A group's absence of a value proves something only in a closed scope: drained to the end, its dead letters too.
"""

from __future__ import annotations

from typing import Final

LOST: Final = """
WITH dead AS (SELECT DISTINCT run_id, home AS queue, value FROM {deliveries} WHERE is_dead),
final AS (  -- settled for good, or perhaps so
    SELECT DISTINCT s.run_id, s.queue, s.consumer_group, s.value
    FROM {settlements} s LEFT JOIN {faults} f  -- what the disk refused at first may be done later
        ON f.run_id = s.run_id AND f.refuses AND f.from_idx < s.cpl_idx AND f.to_idx > s.inv_idx
    WHERE s.kind IN ('ack', 'reject') AND (s.status <> 'fail' OR f.run_id IS NOT NULL)
),
ignored AS (  -- its packet identifier was in use, for what came there
    SELECT run_id, queue, consumer_group, value, max_by(op, idx) AS held_idx
    FROM {events} WHERE f = 'ignore' GROUP BY run_id, queue, consumer_group, value
),
fates AS (  -- what became of every send, in every closed scope of its queue
    SELECT s.*, c.consumer_group, c.since, c.began_anew, r.idx AS read_idx, r.process AS reader, i.held_idx,
           d.value IS NOT NULL AS is_dead, f.value IS NOT NULL AS is_final
    FROM {sends} s
    JOIN {scopes} c ON c.run_id = s.run_id AND c.queue = s.queue AND c.listed AND c.closed
    LEFT JOIN {main} r ON r.run_id = s.run_id AND r.queue = s.queue AND r.consumer_group = c.consumer_group
        AND r.value = s.value AND r.nth = r.times
    LEFT JOIN ignored i ON i.run_id = s.run_id AND i.queue = s.queue AND i.consumer_group = c.consumer_group
        AND i.value = s.value
    LEFT JOIN dead d ON d.run_id = s.run_id AND d.queue = s.queue AND d.value = s.value
    LEFT JOIN final f ON f.run_id = s.run_id AND f.queue = s.queue AND f.consumer_group = c.consumer_group
        AND f.value = s.value
),
placed AS (  -- how far each producer's stream arrived
    SELECT *, min(CASE WHEN read_idx IS NOT NULL OR is_dead THEN seq END) OVER stream AS least,
           max(CASE WHEN read_idx IS NOT NULL OR is_dead THEN seq END) OVER stream AS greatest,
           coalesce(max(CASE WHEN read_idx IS NOT NULL AND NOT is_will THEN inv_idx END) OVER scope, -1) AS newest
    FROM fates WINDOW stream AS (PARTITION BY run_id, queue, consumer_group, producer),
                      scope AS (PARTITION BY run_id, queue, consumer_group)
),
missing AS (
    SELECT p.*, k.delivery = 'at_most_once' AS may_lose, k.destroyed_to, k.back_idx,
           least(b.since, p.read_idx) AS sent_idx
    FROM placed p JOIN {contracts} k ON k.run_id = p.run_id
    LEFT JOIN {started} b ON b.run_id = p.run_id AND b.process = p.reader  -- it may have been on its way since then
    WHERE p.status = 'ok' AND p.inv_idx > p.since AND NOT p.is_dead
)
SELECT run_id, 'lost' AS checker, 'A1' AS anomaly,
       CASE WHEN may_lose OR asked_idx < destroyed_to OR since < destroyed_to AND if(
                     startswith(queue, '$mqtt/'), newest < cpl_idx OR coalesce(held_idx < back_idx, FALSE),
                     inv_idx < began_anew)
            THEN 'quality' ELSE 'safety' END AS severity,
       queue, consumer_group, value, cpl_idx AS idx,
       CASE WHEN least IS NULL THEN 'all' WHEN seq < least THEN 'prefix'
            WHEN seq > greatest THEN 'postfix' ELSE 'middle' END AS detail
FROM missing WHERE read_idx IS NULL
UNION ALL
SELECT run_id, 'lost', 'F6', CASE WHEN sent_idx < destroyed_to THEN 'quality' ELSE 'safety' END,
       queue, consumer_group, value, read_idx, 'delivered, never settled, not redelivered'
FROM missing WHERE read_idx IS NOT NULL AND NOT is_final AND NOT may_lose AND NOT startswith(queue, '$mqtt/')
"""

DLQ_LOSS: Final = """
WITH judged AS (  -- what the group said of each message, and which of its words obliged the broker to dead-letter it
    SELECT s.run_id, s.queue, s.consumer_group, s.value,
           bool_or(s.kind = 'ack' AND s.status <> 'fail') AS is_acked,
           min(CASE WHEN s.kind = 'reject' AND s.status = 'ok' THEN struct(s.inv_idx, s.cpl_idx) END) AS rejected,
           min(CASE WHEN s.kind = 'nack' AND s.status = 'ok' AND s.inv_idx > last.idx AND k.max_deliveries > 0
                     AND if(last.delivery_count > 0, last.delivery_count, last.times) >= k.max_deliveries
                    THEN struct(s.inv_idx, s.cpl_idx) END) AS exhausted
    FROM {settlements} s
    JOIN {contracts} k ON k.run_id = s.run_id AND k.dead_letters
    LEFT JOIN {main} last ON last.run_id = s.run_id AND last.queue = s.queue
        AND last.consumer_group = s.consumer_group AND last.value = s.value AND last.nth = last.times
    WHERE NOT startswith(s.queue, '$dlq/')
    GROUP BY s.run_id, s.queue, s.consumer_group, s.value
),
due AS (
    SELECT *, coalesce(rejected, exhausted).cpl_idx AS due_idx, coalesce(rejected, exhausted).inv_idx AS asked_idx
    FROM judged
    WHERE NOT is_acked AND coalesce(rejected, exhausted) IS NOT NULL
)
SELECT d.run_id, 'dlq_loss' AS checker, 'A11' AS anomaly,
       CASE WHEN d.asked_idx < k.destroyed_to THEN 'quality' ELSE 'safety' END AS severity,
       d.queue, d.consumer_group, d.value, d.due_idx AS idx,
       CASE WHEN d.rejected IS NOT NULL THEN 'rejected' ELSE 'retries exhausted' END AS detail
FROM due d
JOIN {contracts} k ON k.run_id = d.run_id
JOIN {sends} s ON s.run_id = d.run_id AND s.value = d.value AND s.status <> 'fail'
JOIN {scopes} c ON c.run_id = d.run_id AND c.queue = d.queue AND c.consumer_group = d.consumer_group
    AND c.drained AND c.dead_drained
LEFT ANTI JOIN {deliveries} x ON x.run_id = d.run_id AND x.is_dead AND x.home = d.queue AND x.value = d.value
"""

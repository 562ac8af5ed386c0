"""``order`` (D8): a producer's messages of one key reached a group in another order than they were sent.

Of two deliveries at consumers that are connected at the same time nothing is known; what counts is an earlier delivery
to the same consumer, or one before this consumer came. After a crash the broker may no longer know that it had
delivered the message before, to a third consumer that never saw it; then only the same consumer's deliveries count.
What was sent again to a group that had subscribed meanwhile counts for nothing: it never gets what came first. Nor does
what was sent before it subscribed, once a fault may have undone that an earlier session of its client ended.
"""

from __future__ import annotations

from typing import Final

ORDER: Final = """
WITH revived AS (  -- an earlier session's, whose end was undone
    SELECT DISTINCT m.run_id, m.idx FROM {main} m
    JOIN {sends} s ON s.run_id = m.run_id AND s.value = m.value
    JOIN {scopes} c ON c.run_id = m.run_id AND c.queue = m.queue AND c.consumer_group = m.consumer_group
    JOIN {faults} f ON f.run_id = m.run_id AND f.destroys AND c.since < f.destroyed_to AND f.from_idx < m.idx
    WHERE m.nth = 1 AND s.inv_idx < c.since
),
firsts AS (
    SELECT m.run_id, m.queue, m.consumer_group, s.producer, concat_ws(' ', s.lane, s.key) AS key,
           m.process, m.idx, m.value, s.seq, s.inv_idx, s.cpl_idx, p.since
    FROM {main} m
    JOIN {contracts} k ON k.run_id = m.run_id AND k.order = 'per_producer_key'
    JOIN {sends} s ON s.run_id = m.run_id AND s.value = m.value AND s.status = 'ok'
    JOIN {started} p ON p.run_id = m.run_id AND p.process = m.process
    JOIN {scopes} c ON c.run_id = m.run_id AND c.queue = m.queue AND c.consumer_group = m.consumer_group
    LEFT ANTI JOIN revived r ON r.run_id = m.run_id AND r.idx = m.idx
    WHERE m.nth = 1 AND NOT (s.invocations > 1 AND s.inv_idx < c.since)
        AND s.delay_ns < 0 AND NOT startswith(m.consumer_group, '$share/')
        AND NOT (k.redelivery_may_reorder AND (m.redelivered OR m.delivery_count > 1))
),
timeline AS (  -- the deliveries of a stream, and the moments at which its consumers came (these first)
    SELECT run_id, queue, consumer_group, producer, key, process, idx, 1 AS turn, seq FROM firsts
    UNION ALL
    SELECT DISTINCT run_id, queue, consumer_group, producer, key, process, since, 0, NULL FROM firsts
),
reached AS (
    SELECT *, max(seq) OVER (PARTITION BY run_id, queue, consumer_group, producer, key ORDER BY idx, turn
                             ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW) AS greatest
    FROM timeline
),
compared AS (
    SELECT f.*, r.greatest AS before_it_came,
           max(f.seq) OVER (PARTITION BY f.run_id, f.queue, f.consumer_group, f.producer, f.key, f.process
                            ORDER BY f.idx ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS at_this_one
    FROM firsts f JOIN reached r ON r.turn = 0 AND r.run_id = f.run_id AND r.queue = f.queue
        AND r.consumer_group = f.consumer_group AND r.producer = f.producer AND r.key = f.key AND r.process = f.process
),
behind AS (
    SELECT *, coalesce(seq < at_this_one, FALSE) AS behind_its_own FROM compared
    WHERE seq < greatest(before_it_came, at_this_one)
),
crashed AS (  -- what was not confirmed a loss of power may have taken from before what came after it
    SELECT b.run_id, b.idx, max(f.kind IN ('power_loss', 'torn_write') AND f.from_idx < b.cpl_idx) AS unconfirmed
    FROM behind b JOIN {faults} f ON f.run_id = b.run_id
    WHERE f.crashes AND f.from_idx < b.idx AND f.to_idx > b.inv_idx
    GROUP BY b.run_id, b.idx
)
SELECT b.run_id, 'order' AS checker, 'D8' AS anomaly, 'safety' AS severity, b.queue, b.consumer_group, b.value, b.idx,
       'after a later one of its producer and key' AS detail
FROM behind b LEFT JOIN crashed c ON c.run_id = b.run_id AND c.idx = b.idx
WHERE c.idx IS NULL OR b.behind_its_own AND NOT c.unconfirmed
"""

"""``phantom`` (A5, A6, A7, A9, A10, C1): deliveries of what was never sent, or not so; and ``duplicate`` (B1, B2)."""

from __future__ import annotations

from typing import Final

PHANTOM: Final = """
WITH judged AS (
    SELECT d.*,
           CASE WHEN s.value IS NULL AND startswith(d.value, 'corrupt:') THEN 'A7'
                WHEN s.value IS NULL THEN 'A5'
                WHEN s.inv_idx > d.idx THEN 'A9'
                WHEN s.queue <> d.home THEN 'A6'
                WHEN s.status = 'fail' THEN 'A10' END AS anomaly
    FROM {deliveries} d LEFT JOIN {sends} s ON s.run_id = d.run_id AND s.value = d.value
),
doubtful AS (  -- the broker itself could not know what was on its disk
    SELECT DISTINCT j.run_id, j.idx FROM judged j
    JOIN {sends} s ON s.run_id = j.run_id AND s.value = j.value
    JOIN {faults} f ON f.run_id = j.run_id AND f.leaves_doubt AND f.from_idx < j.idx AND f.to_idx > s.inv_idx
    WHERE j.anomaly = 'A10'
)
SELECT j.run_id, 'phantom' AS checker, j.anomaly, CASE WHEN x.idx IS NULL THEN 'safety' ELSE 'quality' END AS severity,
       j.queue, j.consumer_group, j.value, j.idx,
       CASE j.anomaly WHEN 'A7' THEN 'payload differs from what was sent' WHEN 'A5' THEN 'never sent'
                    WHEN 'A9' THEN 'delivered before it was sent' WHEN 'A6' THEN 'sent to another queue'
                    ELSE 'refused by the broker, yet delivered' END AS detail
FROM judged j LEFT JOIN doubtful x ON x.run_id = j.run_id AND x.idx = j.idx
WHERE j.anomaly IS NOT NULL
"""

ONE_OFFSET_TWO_VALUES: Final = """
WITH placed AS (
    SELECT m.*,
           min(value) OVER earlier AS least, max(value) OVER earlier AS greatest,
           min(b.since) OVER whole AS first_idx, max(idx) OVER whole AS last_idx
    FROM {main} m JOIN {started} b ON b.run_id = m.run_id AND b.process = m.process  -- on its way since then, perhaps
    WHERE offset >= 0
    WINDOW whole AS (PARTITION BY m.run_id, queue, partition, offset),
           earlier AS (PARTITION BY m.run_id, queue, partition, offset ORDER BY idx
                       ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING)
)
SELECT p.run_id, 'phantom' AS checker, 'C1' AS anomaly, 'safety' AS severity, p.queue, p.consumer_group, p.value, p.idx,
       'one offset, two values' AS detail
FROM placed p
LEFT ANTI JOIN {faults} f  -- an offset that was lost before it was acknowledged may be given again
    ON f.run_id = p.run_id AND f.crashes AND f.from_idx < p.last_idx AND f.to_idx > p.first_idx
WHERE p.least <> p.value OR p.greatest <> p.value
"""

STORED_TWICE: Final = """
WITH placed AS (
    SELECT run_id, queue, value, idx,
           CASE WHEN offset >= 0 THEN concat_ws(' ', 'offset', partition, offset)
                ELSE concat_ws(' ', 'message', message_id) END AS place
    FROM {main} WHERE offset >= 0 OR message_id <> ''
),
compared AS (
    SELECT *, first_value(place) OVER (PARTITION BY run_id, queue, value ORDER BY idx) AS first_place FROM placed
),
fired_again AS (  -- over a loss of power, or a failed sync, a delayed message may fire a second time
    SELECT DISTINCT c.run_id, c.idx FROM compared c
    JOIN {sends} s ON s.run_id = c.run_id AND s.value = c.value AND s.delay_ns >= 0
    JOIN {faults} f ON f.run_id = c.run_id AND (f.kind IN ('power_loss', 'torn_write') OR f.sticks)
        AND f.from_idx < c.idx AND f.to_idx > s.inv_idx
    WHERE c.place <> c.first_place
)
SELECT c.run_id, 'duplicate' AS checker, 'B1' AS anomaly, 'safety' AS severity, c.queue, '' AS consumer_group, c.value,
       min(c.idx) AS idx, 'stored at two positions' AS detail
FROM compared c
LEFT ANTI JOIN fired_again a ON a.run_id = c.run_id AND a.idx = c.idx
JOIN {sends} s ON s.run_id = c.run_id AND s.value = c.value
JOIN {contracts} k ON k.run_id = c.run_id
WHERE c.place <> c.first_place AND (s.invocations = 1 OR k.delivery = 'exactly_once')
GROUP BY c.run_id, c.queue, c.value
"""

DELIVERED_TWICE: Final = """
SELECT m.run_id, 'duplicate' AS checker, 'B2' AS anomaly, 'safety' AS severity, m.queue, m.consumer_group, m.value,
       m.idx, 'delivered again' AS detail
FROM {main} m JOIN {contracts} k ON k.run_id = m.run_id
WHERE m.nth = 2 AND k.delivery <> 'at_least_once' AND NOT m.is_mqtt
"""

"""``delays`` (D13, A17), ``cursor`` (F14): nothing comes before its time, or once it is undone."""

from __future__ import annotations

from typing import Final

PARAMETERS: Final = {"slack_ns": 10_000_000}  # one tick of a timer, and what two clocks of a machine may differ by

DELAYS: Final = """
WITH delayed AS (
    SELECT d.*, s.taken_back, s.inv_ns + s.delay_ns - :slack_ns AS due_ns
    FROM {deliveries} d
    JOIN {sends} s ON s.run_id = d.run_id AND s.value = d.value AND s.delay_ns >= 0 AND NOT s.is_will
),
wrong_clock AS (
    SELECT DISTINCT d.run_id, d.idx FROM delayed d JOIN {faults} f ON f.run_id = d.run_id
    WHERE f.wrong_clock AND f.from_idx < d.idx
),
undone AS (
    SELECT DISTINCT d.run_id, d.idx FROM delayed d JOIN {faults} f ON f.run_id = d.run_id AND f.destroys
    WHERE d.taken_back < f.destroyed_to AND f.from_idx < d.idx
)
SELECT d.run_id, 'delays' AS checker, 'D13' AS anomaly, 'safety' AS severity, d.queue, d.consumer_group, d.value, d.idx,
       'before its time' AS detail
FROM delayed d LEFT ANTI JOIN wrong_clock w ON w.run_id = d.run_id AND w.idx = d.idx
WHERE d.time_ns < d.due_ns
UNION ALL
SELECT d.run_id, 'delays', 'A17', if(u.idx IS NULL, 'safety', 'quality'), d.queue, d.consumer_group, d.value, d.idx,
       'was taken back'
FROM delayed d LEFT JOIN undone u ON u.run_id = d.run_id AND u.idx = d.idx
WHERE d.taken_back >= 0
"""

CURSOR: Final = """
WITH latest AS (
    SELECT run_id, queue, consumer_group, min(idx) AS began FROM {events}
    WHERE f = 'subscribe' AND type = 'invoke' AND reason = 'latest' GROUP BY run_id, queue, consumer_group
)
SELECT m.run_id, 'cursor' AS checker, 'F14' AS anomaly, 'safety' AS severity, m.queue, m.consumer_group, m.value, m.idx,
       'confirmed before the group was there' AS detail
FROM {main} m
JOIN latest l ON l.run_id = m.run_id AND l.queue = m.queue AND l.consumer_group = m.consumer_group
JOIN {sends} s ON s.run_id = m.run_id AND s.value = m.value AND s.delay_ns < 0
    AND s.cpl_idx >= 0 AND s.cpl_idx < l.began
LEFT ANTI JOIN {faults} f ON f.run_id = m.run_id AND f.destroys AND f.destroyed_to > -1 AND f.from_idx < m.idx
WHERE m.nth = 1
"""

"""Plain MQTT: ``mqtt_duplicate`` (B2, B3, B6), ``mqtt_session`` (S1, S2), ``retained`` (R1 to R3), ``wills`` (W1-W3).

The rules are those of :mod:`assay.conformance.checkers` by the same names, where their words are explained.
"""

from __future__ import annotations

from typing import Final

from assay.spark_analysis.tables import END_IDX

DUPLICATE_PARAMETERS: Final = {"grace_ns": 1_000_000_000}  # a client may notice the end of its session this much late
SESSION_PARAMETERS: Final = {"early_ns": 500_000_000, "late_ns": 1_000_000_000}
WILL_PARAMETERS: Final = {"slack_ns": 500_000_000, "patience_ns": 4_000_000_000, "never_ns": END_IDX}

MQTT_DUPLICATE: Final = """
WITH repeated AS (
    SELECT m.*, m.nth - 1 AS before, startswith(m.consumer_group, '$share/') AS is_shared,
           if(s.qos = 1, s.invocations - 1, 0) AS extra,
           row_number() OVER (PARTITION BY m.run_id, m.queue, m.consumer_group, m.value, m.process ORDER BY m.idx)
           AS over_it,
           min(m.idx) OVER subject AS first_idx,
           min(regexp_extract(m.process, '^(.*)[.][^.]*$', 1)) OVER earlier AS least,
           max(regexp_extract(m.process, '^(.*)[.][^.]*$', 1)) OVER earlier AS most,
           regexp_extract(m.process, '^(.*)[.][^.]*$', 1) AS member
    FROM {main} m LEFT JOIN {sends} s ON s.run_id = m.run_id AND s.value = m.value
    WHERE m.is_mqtt AND m.times > 1
    WINDOW subject AS (PARTITION BY m.run_id, m.queue, m.consumer_group, m.value),
           earlier AS (PARTITION BY m.run_id, m.queue, m.consumer_group, m.value ORDER BY m.idx
                       ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING)
),
more AS (SELECT *, coalesce(extra, 0) AS lawful FROM repeated WHERE nth > 1),
lost_state AS (
    SELECT DISTINCT m.run_id, m.idx FROM more m JOIN {faults} f ON f.run_id = m.run_id AND f.destroys
    WHERE f.from_idx < m.idx AND m.first_idx < f.destroyed_to
),
cut AS (
    SELECT DISTINCT m.run_id, m.idx FROM more m JOIN {faults} f ON f.run_id = m.run_id AND f.cuts
    WHERE m.is_shared AND f.from_idx < m.idx AND f.to_idx > m.first_idx
),
holders AS (  -- who had it before
    SELECT DISTINCT m.run_id, m.idx, m.time_ns, p.process FROM more m JOIN repeated p
        ON p.run_id = m.run_id AND p.queue = m.queue AND p.consumer_group = m.consumer_group AND p.value = m.value
        AND p.nth < m.nth
    WHERE m.is_shared AND m.before > m.lawful
),
causes AS (
    SELECT h.run_id, h.idx, count(*) AS number FROM holders h
    JOIN {session_ends} e ON e.run_id = h.run_id AND e.process = h.process
        AND (e.idx < h.idx OR e.time_ns <= h.time_ns + :grace_ns)
    GROUP BY h.run_id, h.idx
),
old AS (  -- connections of MQTT 3.1.1
    SELECT run_id, process, max_by(old, inv_idx) AS old FROM {links} GROUP BY run_id, process
),
found AS (
    SELECT m.*, CASE
        WHEN NOT m.is_shared AND m.qos <> 1 AND m.before > m.lawful THEN 'B2'
        WHEN NOT m.is_shared AND m.qos = 1 AND m.over_it > 1 + m.lawful THEN 'B3'
        WHEN m.is_shared AND m.qos = 2 AND m.before > m.lawful AND (m.least <> m.member OR m.most <> m.member) THEN 'B2'
        WHEN m.is_shared AND m.qos <> 2 AND m.before > m.lawful + coalesce(c.number, 0) AND x.idx IS NULL THEN 'B6'
        END AS anomaly
    FROM more m LEFT JOIN causes c ON c.run_id = m.run_id AND c.idx = m.idx
    LEFT JOIN cut x ON x.run_id = m.run_id AND x.idx = m.idx
)
SELECT f.run_id, 'mqtt_duplicate' AS checker, f.anomaly,
       if(f.anomaly = 'B2' AND l.idx IS NOT NULL OR f.anomaly = 'B3' AND coalesce(o.old, FALSE), 'quality', 'safety')
       AS severity,
       f.queue, f.consumer_group, f.value, f.idx,
       CASE WHEN f.anomaly = 'B3' THEN 'again over one connection' WHEN f.anomaly = 'B6' THEN 'to two members'
            WHEN f.is_shared THEN 'to two members at QoS 2' ELSE concat('again at QoS ', f.qos) END AS detail
FROM found f
LEFT JOIN lost_state l ON l.run_id = f.run_id AND l.idx = f.idx
LEFT JOIN old o ON o.run_id = f.run_id AND o.process = f.process
WHERE f.anomaly IS NOT NULL
"""

MQTT_SESSION: Final = """
WITH placed AS (
    SELECT *, lag(struct(expiry_ns, inv_idx, end_ns)) OVER (PARTITION BY run_id, session ORDER BY inv_idx) AS previous,
           last(if(status = 'ok' AND expiry_ns <> 0, struct(expiry_ns, inv_idx, alive_ns), NULL), TRUE) OVER earlier
           AS accepted,
           last(if(status = 'fail', NULL, struct(expiry_ns, inv_idx, alive_ns)), TRUE) OVER earlier AS before
    FROM {links}
    WINDOW earlier AS (PARTITION BY run_id, session ORDER BY inv_idx ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING)
),
judged AS (
    SELECT *, CASE
        WHEN present AND previous IS NULL THEN 'S2'
        WHEN present AND previous.expiry_ns >= 0 AND inv_ns > previous.end_ns + previous.expiry_ns + :late_ns THEN 'S2?'
        WHEN NOT present AND accepted IS NOT NULL AND NOT (expiry_ns >= 0 AND ok_ns + :early_ns >= least(
             coalesce(before.alive_ns, inv_ns) + before.expiry_ns,
             coalesce(accepted.alive_ns, inv_ns) + accepted.expiry_ns)) THEN 'S1?'
        END AS anomaly
    FROM placed WHERE status = 'ok' AND expiry_ns <> 0
),
hidden AS (  -- the network may have kept an end from the broker, or a clock was wrong
    SELECT DISTINCT j.run_id, j.ok_idx FROM judged j JOIN {faults} f ON f.run_id = j.run_id AND f.from_idx < j.ok_idx
    WHERE j.anomaly = 'S2?' AND f.to_idx > j.previous.inv_idx OR j.anomaly = 'S1?' AND f.wrong_clock
),
lost_state AS (
    SELECT DISTINCT j.run_id, j.ok_idx FROM judged j JOIN {faults} f ON f.run_id = j.run_id AND f.destroys
    WHERE j.anomaly = 'S1?' AND f.from_idx < j.ok_idx AND j.accepted.inv_idx < f.destroyed_to
)
SELECT j.run_id, 'mqtt_session' AS checker, left(j.anomaly, 2) AS anomaly,
       if(l.ok_idx IS NULL, 'safety', 'quality') AS severity, '' AS queue, j.session AS consumer_group, '' AS value,
       j.ok_idx AS idx, if(j.present, 'resumed although it had ended', 'lost before its time') AS detail
FROM judged j
LEFT JOIN lost_state l ON l.run_id = j.run_id AND l.ok_idx = j.ok_idx
LEFT ANTI JOIN hidden h ON h.run_id = j.run_id AND h.ok_idx = j.ok_idx
WHERE j.anomaly IS NOT NULL
"""

RETAINED: Final = """
WITH reads AS (
    SELECT r.run_id, r.consumer_group AS topic, r.value, r.op AS inv_idx, r.idx
    FROM {events} r JOIN {events} i ON i.run_id = r.run_id AND i.idx = r.op AND i.f = 'read' AND i.type = 'invoke'
    WHERE r.f = 'read' AND r.type = 'ok' AND r.op < r.idx
),
writes AS (
    SELECT *, regexp_extract(key, '^(.*):[^:]*$', 1) AS topic FROM {sends}
),
seen AS (
    SELECT r.*, w.inv_idx AS written_idx, w.cpl_idx, w.producer, w.seq, w.qos, w.removes,
           r.value <> '' AND (w.value IS NULL OR w.removes OR w.inv_idx > r.idx OR w.status = 'fail'
                              OR w.topic <> r.topic) AS is_strange
    FROM reads r LEFT JOIN writes w ON w.run_id = r.run_id AND w.value = r.value AND r.value <> ''
),
moments AS (  -- where a write counts as settled, and where reads begin
    SELECT run_id, topic, cpl_idx AS place_idx, named_struct('inv_idx', inv_idx, 'value', value, 'cpl_idx', cpl_idx,
           'producer', producer, 'seq', seq, 'removes', removes) AS write, NULL AS read_idx
    FROM writes WHERE status = 'ok' AND startswith(queue, '$retained/')
    UNION ALL
    SELECT run_id, topic, idx, named_struct('inv_idx', written_idx, 'value', value, 'cpl_idx', cpl_idx,
           'producer', producer, 'seq', seq, 'removes', removes), NULL
    FROM seen WHERE value <> '' AND NOT is_strange
    UNION ALL
    SELECT run_id, topic, inv_idx, NULL, idx FROM reads
),
settled AS (
    SELECT run_id, topic, read_idx,
           max_by(write, write.inv_idx) OVER so_far AS newest,
           max_by(write, if(write.removes, NULL, write.inv_idx)) OVER so_far AS newest_set
    FROM moments
    WINDOW so_far AS (PARTITION BY run_id, topic ORDER BY place_idx ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW)
),
known AS (
    SELECT s.*, t.newest, t.newest_set
    FROM seen s JOIN settled t ON t.run_id = s.run_id AND t.topic = s.topic AND t.read_idx = s.idx
),
may_be_gone AS (  -- a removal, or a write at QoS 0, that may have come last
    SELECT DISTINCT k.run_id, k.idx FROM known k JOIN writes w ON w.run_id = k.run_id AND w.topic = k.topic
        AND startswith(w.queue, '$retained/') AND (w.removes OR w.qos = 0) AND w.status <> 'fail'
    WHERE k.value = '' AND w.inv_idx < k.idx
        AND NOT (w.qos = 0 AND w.producer = k.newest_set.producer AND w.seq < k.newest_set.seq)
        AND NOT (w.cpl_idx >= 0 AND w.cpl_idx < k.newest_set.inv_idx)
),
found AS (
    SELECT k.*, CASE WHEN is_strange THEN 'R3' WHEN k.value = '' THEN 'R2' ELSE 'R1' END AS anomaly,
           CASE WHEN is_strange THEN NULL WHEN k.value = '' THEN newest_set ELSE newest END AS settled
    FROM known k LEFT JOIN may_be_gone g ON g.run_id = k.run_id AND g.idx = k.idx
    WHERE is_strange
        OR k.value = '' AND newest_set IS NOT NULL AND g.idx IS NULL
        OR k.value <> '' AND newest IS NOT NULL
            AND (qos = 0 AND k.producer = newest.producer AND seq < newest.seq
                 OR k.cpl_idx >= 0 AND k.cpl_idx < newest.inv_idx)
),
there AS (  -- the last read that saw it
    SELECT f.run_id, f.idx, max(s.inv_idx) AS inv_idx FROM found f JOIN seen s ON s.run_id = f.run_id
        AND s.topic = f.topic AND s.value = f.settled.value AND s.idx < f.inv_idx AND NOT s.is_strange
    GROUP BY f.run_id, f.idx
),
dated AS (
    SELECT f.*, greatest(f.settled.inv_idx, t.inv_idx) AS there_idx
    FROM found f LEFT JOIN there t ON t.run_id = f.run_id AND t.idx = f.idx
),
excused AS (
    SELECT DISTINCT d.run_id, d.idx FROM dated d JOIN {faults} f ON f.run_id = d.run_id AND f.from_idx < d.idx
    WHERE f.destroys AND d.there_idx < f.destroyed_to
        OR f.crashes AND f.to_idx > d.there_idx AND NOT (d.settled.cpl_idx >= 0 AND d.settled.cpl_idx < d.idx)
)
SELECT d.run_id, 'retained' AS checker, d.anomaly, if(x.idx IS NULL, 'safety', 'quality') AS severity, '' AS queue,
       d.topic AS consumer_group, if(d.value = '', d.settled.value, d.value) AS value, d.idx,
       CASE d.anomaly WHEN 'R3' THEN 'never written there' WHEN 'R2' THEN 'nothing where a message must be'
            ELSE if(d.settled.removes, 'removed', 'replaced') END AS detail
FROM dated d LEFT JOIN excused x ON x.run_id = d.run_id AND x.idx = d.idx
"""

WILLS: Final = """
WITH asked AS (
    SELECT run_id, value, max_by(struct(consumer_group AS session, process, idx), idx) AS left_at
    FROM {events} WHERE f = 'will' AND type = 'invoke' GROUP BY run_id, value
),
ended AS (
    SELECT a.run_id, a.value, max_by(struct(e.type, e.idx, e.time_ns), e.idx) AS ending
    FROM asked a JOIN {events} e ON e.run_id = a.run_id AND e.value = a.value AND e.f = 'will' AND e.type <> 'invoke'
        AND e.idx > a.left_at.idx
    GROUP BY a.run_id, a.value
),
linked AS (
    SELECT *, lead(struct(status, present, ok_ns, inv_idx, inv_ns)) OVER (
        PARTITION BY run_id, session ORDER BY inv_idx) AS after FROM {links}
),
of_will AS (
    SELECT a.run_id, a.value, min_by(struct(l.alive_ns, l.after), l.inv_idx) AS its
    FROM asked a JOIN linked l ON l.run_id = a.run_id AND l.session = a.left_at.session
        AND l.process = a.left_at.process
    GROUP BY a.run_id, a.value
),
wills AS (
    SELECT s.run_id, s.value, s.queue, s.inv_idx, s.delay_ns, greatest(0, s.delay_ns) AS wait_ns,
           coalesce(e.ending.type, 'info') AS status, e.ending.idx AS end_idx,
           e.ending.time_ns AS end_ns, o.its, o.its.after AS after
    FROM asked a JOIN {sends} s ON s.run_id = a.run_id AND s.value = a.value
    LEFT JOIN ended e ON e.run_id = a.run_id AND e.value = a.value
    LEFT JOIN of_will o ON o.run_id = a.run_id AND o.value = a.value
    LEFT ANTI JOIN {faults} f ON f.run_id = a.run_id AND f.wrong_clock
),
hidden AS (
    SELECT DISTINCT w.run_id, w.value FROM wills w JOIN {faults} f ON f.run_id = w.run_id AND (f.cuts OR f.delays)
    WHERE (f.from_idx < w.end_idx OR f.from_ns <= w.end_ns + :slack_ns) AND f.to_idx > w.inv_idx
),
started AS (
    SELECT w.run_id, w.value, max(f.to_idx) AS idx FROM wills w JOIN {faults} f ON f.run_id = w.run_id AND f.crashes
        AND f.to_idx <= w.end_idx
    GROUP BY w.run_id, w.value
),
kept AS (  -- its end may not have been written
    SELECT w.run_id, w.value, min(f.from_idx) AS from_idx, min(f.from_ns) AS from_ns
    FROM wills w LEFT JOIN started s ON s.run_id = w.run_id AND s.value = w.value
    JOIN {faults} f ON f.run_id = w.run_id AND f.refuses_sessions AND f.to_idx > coalesce(s.idx, -1)
        AND (f.sticks OR f.to_ns > if(w.its IS NULL, 0, least(w.its.alive_ns, w.end_ns)) - :patience_ns)
    GROUP BY w.run_id, w.value
),
seen AS (
    SELECT w.*, d.queue AS place, d.consumer_group, d.idx, d.time_ns, h.value IS NOT NULL AS is_hidden,
           coalesce(k.from_idx < w.end_idx OR k.from_ns <= w.end_ns + :slack_ns, FALSE) AS is_kept,
           coalesce(w.its.alive_ns, :never_ns) + w.wait_ns - :slack_ns AS due_ns
    FROM wills w JOIN {deliveries} d ON d.run_id = w.run_id AND d.value = w.value
    LEFT JOIN hidden h ON h.run_id = w.run_id AND h.value = w.value
    LEFT JOIN kept k ON k.run_id = w.run_id AND k.value = w.value
    WHERE w.its IS NOT NULL
),
undone_end AS (
    SELECT DISTINCT s.run_id, s.idx AS seen_idx FROM seen s JOIN {faults} f ON f.run_id = s.run_id AND f.crashes
        AND f.from_idx < s.idx AND f.to_idx > s.end_idx
    WHERE s.status = 'fail' AND s.is_kept
),
came AS (
    SELECT s.*, CASE
        WHEN status = 'fail' THEN if(is_hidden OR u.seen_idx IS NOT NULL, NULL, 'W2 although DISCONNECT withdrew it')
        WHEN delay_ns > 0 AND after.status = 'ok' AND after.present AND after.ok_ns < due_ns
            THEN 'W2 although its client came back in time'
        WHEN time_ns < due_ns AND (after IS NULL OR after.inv_idx > idx) THEN 'W3 before its time'
        END AS what
    FROM seen s LEFT JOIN undone_end u ON u.run_id = s.run_id AND u.seen_idx = s.idx
),
undone AS (
    SELECT DISTINCT c.run_id, c.idx FROM came c JOIN {faults} f ON f.run_id = c.run_id AND f.destroys
    WHERE c.status = 'fail' AND f.from_idx < c.idx AND c.end_idx < f.destroyed_to
),
noticed AS (  -- the broker knows of an end once the network tells it
    SELECT w.run_id, w.value, max(least(f.to_ns, :never_ns)) AS ns FROM wills w JOIN {faults} f ON f.run_id = w.run_id
        AND (f.cuts OR f.delays) AND w.end_ns BETWEEN f.from_ns AND f.to_ns
    GROUP BY w.run_id, w.value
),
ended_wills AS (
    SELECT w.*, coalesce(n.ns, w.end_ns) AS noticed_ns
    FROM wills w LEFT JOIN noticed n ON n.run_id = w.run_id AND n.value = w.value
),
due AS (
    SELECT w.*, c.consumer_group, c.since
    FROM ended_wills w JOIN {scopes} c ON c.run_id = w.run_id AND c.queue = w.queue
        AND c.listed AND c.closed AND NOT startswith(c.consumer_group, '$share/')
    LEFT ANTI JOIN {main} m ON m.run_id = w.run_id AND m.queue = w.queue AND m.consumer_group = c.consumer_group
        AND m.value = w.value
    WHERE w.status = 'ok' AND w.inv_idx >= c.since AND c.drained_ns >= w.noticed_ns + w.wait_ns + :patience_ns
        AND NOT coalesce(w.wait_ns > 0 AND w.after.inv_ns < w.noticed_ns + w.wait_ns + :slack_ns, FALSE)
),
newest AS (  -- the will that a group got last
    SELECT m.run_id, m.queue, m.consumer_group, max(s.inv_idx) AS idx
    FROM {main} m JOIN {sends} s ON s.run_id = m.run_id AND s.value = m.value AND s.queue = m.queue AND s.is_will
    WHERE m.is_mqtt GROUP BY m.run_id, m.queue, m.consumer_group
)
SELECT c.run_id, 'wills' AS checker, left(c.what, 2) AS anomaly, if(u.idx IS NULL, 'safety', 'quality') AS severity,
       c.place AS queue, c.consumer_group, c.value, c.idx, substr(c.what, 4) AS detail
FROM came c LEFT JOIN undone u ON u.run_id = c.run_id AND u.idx = c.idx
WHERE c.what IS NOT NULL
UNION ALL
SELECT d.run_id, 'wills', 'W1',
       if(d.since < k.destroyed_to AND coalesce(n.idx, -1) < d.end_idx, 'quality', 'safety'),
       d.queue, d.consumer_group, d.value, d.end_idx, 'never published'
FROM due d JOIN {contracts} k ON k.run_id = d.run_id
LEFT JOIN newest n ON n.run_id = d.run_id AND n.queue = d.queue AND n.consumer_group = d.consumer_group
LEFT ANTI JOIN kept f ON f.run_id = d.run_id AND f.value = d.value
    AND (f.from_idx < d.end_idx OR f.from_ns <= d.noticed_ns + d.wait_ns + :patience_ns)
LEFT ANTI JOIN {faults} f ON f.run_id = d.run_id AND f.crashes AND f.to_idx > d.inv_idx
    AND (f.from_idx < d.end_idx OR f.from_ns <= d.noticed_ns + d.wait_ns + :patience_ns)
"""

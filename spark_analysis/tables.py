"""The relations that every checker reads, in Spark SQL, for any number of histories at once.

They are those of the in-memory checkers, with ``run_id`` in front and short names for what SQL reserves: ``idx`` is the
event's ``index`` (the total order), ``consumer_group`` its ``group``.

``sends``         one row per value published: first invocation, ``status`` and first completion that is ok
``deliveries``    every delivery; ``home`` is the queue without a leading ``$dlq/``, ``is_dead`` whether it had one
``main``          deliveries that are not dead-lettered; ``nth`` of ``times`` of its subject (run, queue, group, value)
``settlements``   one row per ACK, NACK or REJECT invoked, with its completion (``info`` when there is none)
``session_ends``  process and moment
``faults``        one row per fault: kind, first and last moment
``scopes``        (queue, group): since when subscribed, whether it and its dead-letter queue were drained
``started``       first event of each process
``commits``       one row per transaction that a COMMIT was invoked for
``links``         the connections of MQTT sessions
``contracts``     what the broker of each run promised
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Final

import msgspec
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import BooleanType, LongType, StringType, StructField, StructType

from assay.reference_broker.trace.fault_classes import (
    CRASHING,
    CUTTING,
    DAMAGING,
    DELAYING,
    REFUSING,
    STICKING,
    UNCERTAIN,
    WRONG_CLOCK,
    Lies,
    destroys,
    refuses_sessions,
    timeout_of,
)
from assay.reference_broker.trace.schema import Contract, HistoryHeader, OpKind
from assay.spark_analysis.schemas import literal_frame, struct_type
from assay.spark_analysis.session import together

DLQ_PREFIX: Final = "$dlq/"
MQTT_PREFIX: Final = "$mqtt/"
"""Topic spaces of plain MQTT."""
END_IDX: Final = 2**62
FAULTS_MAX: Final = 100_000
"""Faults of all runs together; they are paired on the driver."""

EVENTS: Final = """
SELECT run_id, index AS idx, time_ns, process, f, type, op, queue, key, value, producer, seq, `group` AS consumer_group,
       message_id, partition, offset, delivery_count, redelivered, reason, detail, txn, qos, delay_ns, lane
FROM {events}
"""

SENDS: Final = """
WITH invoked AS (
    SELECT run_id, idx, time_ns, queue, key, value, producer, seq, txn, qos, delay_ns, f = 'will' AS is_will,
           reason = 'removes' AS removes,
           if(lane < 0, 2, lane) AS lane,
           -- a publish that could not be sent when its schedule wanted it says when that was
           coalesce(try_cast(nullif(regexp_extract(detail, '^intended_ns=([0-9]+)', 1), '') AS BIGINT), time_ns)
           AS intended_ns
    FROM {events} WHERE f IN ('publish', 'will') AND type = 'invoke'
),
completed AS (  -- the first completion of an invocation counts
    SELECT run_id, op, min_by(struct(type, idx, time_ns), idx) AS first
    FROM {events} WHERE f IN ('publish', 'cancel') AND type <> 'invoke' AND idx > op AND op >= 0
    GROUP BY run_id, op
),
cancelled AS (  -- taken back, or perhaps so: what the disk refused at first may be done later
    SELECT i.run_id, i.value, bool_or(coalesce(c.first.type, 'info') <> 'fail' OR r.refuses IS NOT NULL) AS is_doubtful,
           min(CASE WHEN c.first.type = 'ok' THEN c.first.idx END) AS taken_back
    FROM {events} i LEFT JOIN completed c ON c.run_id = i.run_id AND c.op = i.idx
    LEFT JOIN {faults} r ON r.run_id = i.run_id AND r.refuses AND r.from_idx < c.first.idx AND r.to_idx > i.idx
    WHERE i.f = 'cancel' AND i.type = 'invoke' GROUP BY i.run_id, i.value
),
published AS (
SELECT i.run_id, i.value,
       min_by(i.queue, i.idx) AS queue, min_by(i.key, i.idx) AS key,
       min_by(i.producer, i.idx) AS producer, min_by(i.seq, i.idx) AS seq,
       min(i.idx) AS inv_idx, min_by(i.time_ns, i.idx) AS inv_ns,
       min_by(i.intended_ns, i.idx) AS intended_ns, count(*) AS invocations,
       min_by(i.txn, i.idx) AS txn, min_by(i.qos, i.idx) AS qos, min_by(i.delay_ns, i.idx) AS delay_ns,
       min_by(i.lane, i.idx) AS lane,
       bool_or(i.is_will) AS is_will, min_by(i.removes, i.idx) AS removes,
       CASE WHEN bool_or(c.first.type = 'ok') THEN 'ok'
            WHEN bool_and(coalesce(c.first.type, 'info') = 'fail') THEN 'fail'
            ELSE 'info' END AS status,
       coalesce(min(CASE WHEN c.first.type = 'ok' THEN c.first.idx END), -1) AS cpl_idx,
       coalesce(min(CASE WHEN c.first.type = 'ok' THEN struct(c.first.idx, c.first.time_ns) END).time_ns, -1) AS cpl_ns,
       coalesce(min(CASE WHEN c.first.type = 'ok' THEN struct(c.first.idx, i.idx AS asked_idx) END).asked_idx, -1)
       AS asked_idx
FROM invoked i LEFT JOIN completed c ON c.run_id = i.run_id AND c.op = i.idx
GROUP BY i.run_id, i.value
)
SELECT p.* EXCEPT (status),
       CASE WHEN p.status = 'ok' AND coalesce(x.is_doubtful, FALSE) THEN 'info' ELSE p.status END AS status,
       coalesce(x.taken_back, -1) AS taken_back
FROM published p LEFT JOIN cancelled x ON x.run_id = p.run_id AND x.value = p.value
"""

DELIVERIES: Final = """
SELECT run_id, idx, time_ns, process, queue, consumer_group, value, message_id, partition, offset, delivery_count,
       redelivered, reason, qos,
       startswith(queue, '$dlq/') AS is_dead, startswith(queue, '$mqtt/') AS is_mqtt,
       regexp_replace(queue, '^[$]dlq/', '') AS home,
       row_number() OVER (PARTITION BY run_id, queue, consumer_group, value ORDER BY idx) AS nth,
       count(*) OVER (PARTITION BY run_id, queue, consumer_group, value) AS times
FROM {events} WHERE f = 'deliver' AND type = 'ok'
"""

MAIN: Final = "SELECT * FROM {deliveries} WHERE NOT is_dead"

SETTLEMENTS: Final = """
WITH completed AS (
    SELECT run_id, op, min_by(struct(type, idx, time_ns), idx) AS first
    FROM {events} WHERE f IN ('ack', 'nack', 'reject') AND type <> 'invoke' AND idx > op AND op >= 0
    GROUP BY run_id, op
)
SELECT i.run_id, i.f AS kind, i.process, i.queue, i.consumer_group, i.value, i.txn, i.idx AS inv_idx,
       i.time_ns AS inv_ns,
       coalesce(c.first.type, 'info') AS status,
       coalesce(c.first.idx, -1) AS cpl_idx, coalesce(c.first.time_ns, -1) AS cpl_ns
FROM {events} i LEFT JOIN completed c ON c.run_id = i.run_id AND c.op = i.idx
WHERE i.f IN ('ack', 'nack', 'reject') AND i.type = 'invoke'
"""

SESSION_ENDS: Final = "SELECT run_id, process, idx, time_ns FROM {events} WHERE f = 'session_end'"

STARTED: Final = "SELECT run_id, process, min(idx) AS since FROM {events} GROUP BY run_id, process"

COMMITS: Final = """
WITH asked AS (
    SELECT run_id, txn, max(idx) AS idx FROM {events} WHERE f = 'commit' AND type = 'invoke' GROUP BY run_id, txn
)
SELECT a.run_id, a.txn, a.idx AS inv_idx, coalesce(min_by(c.type, c.idx), 'info') AS status
FROM asked a LEFT JOIN {events} c
    ON c.run_id = a.run_id AND c.op = a.idx AND c.f = 'commit' AND c.type <> 'invoke' AND c.idx > a.idx
GROUP BY a.run_id, a.txn, a.idx
"""

LINKS: Final = """
WITH asked AS (
    SELECT run_id, consumer_group AS session, process, delay_ns AS expiry_ns, idx AS inv_idx, time_ns AS inv_ns,
           detail = 'MQTT 3.1.1' AS old,
           lead(idx) OVER (PARTITION BY run_id, process ORDER BY idx) AS next_idx
    FROM {events} WHERE f = 'connect' AND type = 'invoke' AND consumer_group <> ''
),
answered AS (
    SELECT run_id, op, min_by(struct(type, idx, time_ns, reason), idx) AS first FROM {events}
    WHERE f = 'connect' AND type <> 'invoke' AND consumer_group <> '' AND idx > op AND op >= 0 GROUP BY run_id, op
),
ended AS (
    SELECT a.run_id, a.inv_idx, max_by(struct(e.idx, e.time_ns, e.time_ns - greatest(0, e.delay_ns) AS alive_ns), e.idx)
           AS last
    FROM asked a JOIN {events} e ON e.run_id = a.run_id AND e.process = a.process AND e.f = 'session_end'
        AND e.idx > a.inv_idx AND coalesce(e.idx < a.next_idx, TRUE)
    GROUP BY a.run_id, a.inv_idx
),
told AS (  -- who was not let in is out with the answer
    SELECT a.*, c.first,
           if(c.first.type <> 'ok' AND coalesce(e.last.idx < c.first.idx, TRUE),
              named_struct('idx', c.first.idx, 'time_ns', c.first.time_ns, 'alive_ns', a.inv_ns), e.last) AS last
    FROM asked a LEFT JOIN answered c ON c.run_id = a.run_id AND c.op = a.inv_idx
    LEFT JOIN ended e ON e.run_id = a.run_id AND e.inv_idx = a.inv_idx
),
held_up AS (  -- the broker's last sign of life was sent as early as when the network began to hold it up
    SELECT t.run_id, t.inv_idx, min(f.from_ns) AS from_ns FROM told t JOIN {faults} f ON f.run_id = t.run_id
        AND (f.cuts OR f.delays) AND f.from_ns <= t.last.alive_ns AND f.to_ns >= t.last.alive_ns - 500000000
    GROUP BY t.run_id, t.inv_idx
)
SELECT t.run_id, session, process, expiry_ns, t.inv_idx, inv_ns, old, coalesce(first.type, 'info') AS status,
       coalesce(first.reason = 'present', FALSE) AS present, coalesce(first.idx, -1) AS ok_idx,
       coalesce(first.time_ns, -1) AS ok_ns, last.time_ns AS end_ns,
       if(h.from_ns IS NULL, last.alive_ns, least(last.alive_ns, greatest(inv_ns, h.from_ns))) AS alive_ns
FROM told t LEFT JOIN held_up h ON h.run_id = t.run_id AND h.inv_idx = t.inv_idx
"""

SCOPES: Final = """
WITH drains AS (  -- the last drain of a scope decides
    SELECT run_id, queue, consumer_group, max_by(type, idx) = 'ok' AS emptied, max_by(type, idx) = 'fail' AS ended,
           max_by(time_ns, idx) AS at_ns
    FROM {events} WHERE f = 'drain' AND type <> 'invoke' GROUP BY run_id, queue, consumer_group
),
drained AS (
    SELECT run_id, map_from_entries(collect_list(struct(struct(queue, consumer_group), struct(emptied, at_ns))))
           AS of_scope
    FROM drains GROUP BY run_id
),
dead_drained AS (  -- a dead-letter queue is empty when all who read it say so
    SELECT run_id, map_from_entries(collect_list(struct(home, emptied))) AS of_queue
    FROM (SELECT run_id, substring(queue, 6) AS home, bool_and(emptied) AS emptied
          FROM drains WHERE startswith(queue, '$dlq/') GROUP BY run_id, substring(queue, 6))
    GROUP BY run_id
),
named AS (  -- a scope that only settled is not listed, but may be asked for
    SELECT run_id, queue, consumer_group, bool_or(listed) AS listed, coalesce(min(since), -1) AS since,
           coalesce(min(anew), -1) AS began_anew FROM (
        SELECT e.run_id, e.queue, e.consumer_group, e.consumer_group <> '' AS listed, e.idx AS since,
               CASE WHEN e.op > k.destroyed_to THEN e.idx END AS anew
        FROM {events} e JOIN {contracts} k ON k.run_id = e.run_id WHERE e.f = 'subscribe' AND e.type = 'ok'
        UNION ALL SELECT run_id, queue, consumer_group, consumer_group <> '', NULL, NULL FROM drains
        UNION ALL SELECT run_id, queue, consumer_group, TRUE, NULL, NULL FROM {main} WHERE nth = 1
        UNION ALL SELECT run_id, queue, consumer_group, FALSE, NULL, NULL FROM {settlements}
    ) WHERE NOT startswith(queue, '$dlq/') GROUP BY run_id, queue, consumer_group
),
answered AS (  -- the most specific drain: of queue and group, of the queue, of everything
    SELECT n.*, k.dead_letters AND NOT startswith(n.queue, '$mqtt/') AS dead_letters, coalesce(e.ended, FALSE) AS ended,
           coalesce(try_element_at(d.of_scope, named_struct('queue', n.queue, 'consumer_group', n.consumer_group)),
                    try_element_at(d.of_scope, named_struct('queue', n.queue, 'consumer_group', '')),
                    try_element_at(d.of_scope, named_struct('queue', '', 'consumer_group', ''))) AS drain,
           coalesce(try_element_at(x.of_queue, n.queue),
                    try_element_at(d.of_scope, named_struct('queue', '', 'consumer_group', '')).emptied, FALSE)
           AS dead_drained
    FROM named n
    JOIN {contracts} k ON k.run_id = n.run_id
    LEFT JOIN drained d ON d.run_id = n.run_id
    LEFT JOIN dead_drained x ON x.run_id = n.run_id
    LEFT JOIN drains e ON e.run_id = n.run_id AND e.queue = n.queue AND e.consumer_group = n.consumer_group
)
SELECT * EXCEPT (drain), coalesce(drain.emptied, FALSE) AS drained, drain.at_ns AS drained_ns,
       coalesce(drain.emptied, FALSE) AND (dead_drained OR NOT dead_letters) AS closed
FROM answered
"""

_FAULT_TYPE: Final = StructType(
    [
        StructField("run_id", StringType()),
        StructField("kind", StringType()),
        StructField("detail", StringType()),
        StructField("from_idx", LongType()),
        StructField("from_ns", LongType()),
        StructField("to_idx", LongType()),
        StructField("to_ns", LongType()),
        StructField("crashes", BooleanType()),
        StructField("cuts", BooleanType()),
        StructField("delays", BooleanType()),
        StructField("leaves_doubt", BooleanType()),
        StructField("refuses", BooleanType()),
        StructField("refuses_sessions", BooleanType()),
        StructField("sticks", BooleanType()),
        StructField("wrong_clock", BooleanType()),
        StructField("destroys", BooleanType()),
        StructField("destroyed_to", LongType()),
    ]
)


class FaultEvent(msgspec.Struct, frozen=True, kw_only=True):
    """The fields of a FAULT event that pair beginnings with ends."""

    run_id: str
    idx: int
    time_ns: int
    type: str
    op: int
    detail: str


class FaultSpan(msgspec.Struct, kw_only=True):
    """A fault from its beginning to its end; :data:`END_IDX` where the history ends first."""

    run_id: str
    kind: str
    detail: str
    from_idx: int
    from_ns: int
    to_idx: int = END_IDX
    to_ns: int = END_IDX
    crashes: bool = False
    cuts: bool = False
    delays: bool = False
    leaves_doubt: bool = False
    refuses: bool = False
    refuses_sessions: bool = False
    sticks: bool = False
    """Only a start helps afterwards."""
    wrong_clock: bool = False
    destroys: bool = False
    """The contract lets it destroy what was acknowledged, before ``destroyed_to``."""
    destroyed_to: int = -1

    def classify(self, contract: Contract, *, lied: bool) -> None:
        """Say what it lets a broker do; ``lied``: syncs had lied before it."""
        self.crashes, self.cuts = self.kind in CRASHING, self.kind in CUTTING
        self.delays, self.leaves_doubt = self.kind in DELAYING, self.kind in UNCERTAIN
        self.refuses, self.wrong_clock = self.kind in REFUSING, self.kind in WRONG_CLOCK
        self.refuses_sessions, self.sticks = refuses_sessions(self.kind, self.detail), self.kind in STICKING
        self.destroys = destroys(self.kind, contract.acked_means, lied=lied)
        if self.destroys:
            self.destroyed_to = END_IDX if self.kind in DAMAGING else self.from_idx


def pair_faults(events: list[FaultEvent]) -> list[FaultSpan]:
    """Spans of faults. Events come in order of (run, idx).

    An end belongs to the beginning that its ``op`` names, else to the earliest open one of the same detail.
    """
    spans: list[FaultSpan] = []
    opened: dict[tuple[str, int], FaultSpan] = {}
    for event in events:
        if event.type == "invoke":
            words = event.detail.split(maxsplit=1)
            span = FaultSpan(
                run_id=event.run_id,
                kind=words[0] if words else "",
                detail=event.detail,
                from_idx=event.idx,
                from_ns=event.time_ns,
            )
            spans.append(span)
            opened[event.run_id, event.idx] = span
            continue
        ended = opened.pop((event.run_id, event.op), None)
        if ended is None:
            same = (key for key, span in opened.items() if span.run_id == event.run_id and span.detail == event.detail)
            key = next(same, None)
            ended = opened.pop(key) if key is not None else None
        if ended is not None:
            ended.to_idx, ended.to_ns = event.idx, event.time_ns
    for span in spans:
        if span.kind in STICKING:  # it lasts until the broker was started again
            restarts = (each for each in spans if each.run_id == span.run_id and each.kind in CRASHING)
            first = min((each for each in restarts if each.to_idx > span.to_idx), key=_end, default=None)
            span.to_idx, span.to_ns = (END_IDX, END_IDX) if first is None else _end(first)
    return spans


def _end(span: FaultSpan) -> tuple[int, int]:
    return span.to_idx, span.to_ns


class HistoryTooLargeError(ValueError):
    """A history has more faults than can be judged."""


class Tables:
    """The relations as frames, by name; :meth:`query` runs SQL over them.

    Each relation that several rules read is written to a Parquet folder below ``scratch`` once. That cuts the plans of
    the rules short (nested a few levels deep they would outgrow the driver), and lets Spark spill and prune columns.
    ``scratch`` must outlive the object.
    """

    def __init__(
        self, spark: SparkSession, events: DataFrame, headers: dict[str, HistoryHeader], scratch: Path
    ) -> None:
        self._spark = spark
        self._scratch = scratch
        self.frames: dict[str, DataFrame] = {"events": events}
        self.frames["events"] = self.stored("events", partial(self.query, EVENTS))
        self.fault_spans = self._pair_faults()
        lies = {run_id: Lies() for run_id in headers}
        for span in self.fault_spans:
            span.classify(headers[span.run_id].contract, lied=lies[span.run_id].before(span.kind))
        faults = [msgspec.structs.astuple(span) for span in self.fault_spans]
        self.frames["faults"] = literal_frame(spark, faults, _FAULT_TYPE)
        self.frames["contracts"] = _contracts(spark, headers, self.fault_spans)
        texts = {"sends": SENDS, "deliveries": DELIVERIES, "settlements": SETTLEMENTS}
        stored = together([partial(self.stored, name, partial(self.query, text)) for name, text in texts.items()])
        self.frames |= dict(zip(texts, stored, strict=True))
        self.frames["main"] = self.query(MAIN)
        self.frames["scopes"] = self.stored("scopes", partial(self.query, SCOPES))
        self.frames["session_ends"] = self.query(SESSION_ENDS)
        self.frames["started"] = self.query(STARTED)
        self.frames["commits"] = self.query(COMMITS)
        kinds = "SELECT DISTINCT f FROM {events} WHERE f <> 'connect' OR consumer_group <> ''"
        self.told = {row["f"] for row in self.query(kinds).collect()}
        """The kinds of events that there are; of CONNECT those of sessions alone count."""
        links = partial(self.query, LINKS)
        self.frames["links"] = self.stored("links", links) if OpKind.CONNECT in self.told else links()

    def stored(self, name: str, *makers: Callable[[], DataFrame]) -> DataFrame:
        """The rows of the frames that the makers give, all of one schema: computed now and read back from Parquet."""
        folder = self._scratch / name
        made = together([partial(self._write, maker, folder / str(number)) for number, maker in enumerate(makers)])
        # Looked up recursively, the numbers of the folders are not taken for a column.
        return self._spark.read.schema(made[0]).option("recursiveFileLookup", "true").parquet(str(folder))

    @staticmethod
    def _write(maker: Callable[[], DataFrame], folder: Path) -> StructType:
        frame = maker()
        frame.write.mode("overwrite").parquet(str(folder))
        return frame.schema

    def query(self, text: str, parameters: dict[str, int] | None = None, /, **more: DataFrame) -> DataFrame:
        """Run SQL in which ``{name}`` is a relation, of this object or of ``more``, and ``:name`` a parameter."""
        frames: dict[str, DataFrame] = {**self.frames, **more}
        named = {name: frames[name] for name in set(re.findall(r"\{(\w+)\}", text))}
        return self._spark.sql(text, parameters, **named)

    def small(self, rows: Sequence[tuple[str, ...]], *names: str) -> DataFrame:
        """A literal frame of texts, for joins."""
        return literal_frame(self._spark, rows, StructType([StructField(name, StringType()) for name in names]))

    def _pair_faults(self) -> list[FaultSpan]:
        rows = self.query(
            "SELECT run_id, idx, time_ns, type, op, detail FROM {events} WHERE f = 'fault' ORDER BY run_id, idx"
        ).take(FAULTS_MAX + 1)
        if len(rows) > FAULTS_MAX:
            message = f"more than {FAULTS_MAX} fault events: analyse fewer runs at a time"
            raise HistoryTooLargeError(message)
        return pair_faults([msgspec.convert(row.asDict(), FaultEvent) for row in rows])


def _contracts(spark: SparkSession, headers: dict[str, HistoryHeader], faults: list[FaultSpan]) -> DataFrame:
    """``run_id``, the fields of :class:`Contract`, ``timeout_ns``, before what index all may be gone, and
    where the broker was back after the last such fault; -1 where there was none.
    """
    fields = struct_type(Contract).fields
    schema = StructType(
        [
            StructField("run_id", StringType()),
            *fields,
            StructField("timeout_ns", LongType()),
            StructField("destroyed_to", LongType()),
            StructField("back_idx", LongType()),
        ]
    )
    destroyed_to: dict[str, int] = {}
    back_idx: dict[str, int] = {}
    kinds: dict[str, set[str]] = {run_id: set() for run_id in headers}
    for span in faults:
        destroyed_to[span.run_id] = max(span.destroyed_to, destroyed_to.get(span.run_id, -1))
        if span.destroys:
            back_idx[span.run_id] = max(span.to_idx, back_idx.get(span.run_id, -1))
        kinds[span.run_id].add(span.kind)
    rows = []
    for run_id, header in headers.items():
        timeout_s = timeout_of(header.contract.delivery_timeout_s, frozenset(kinds[run_id]))
        contract = msgspec.structs.replace(header.contract, delivery_timeout_s=timeout_s)
        values = [getattr(contract, field.name) for field in fields]
        plain = [str(value) if isinstance(value, str) else value for value in values]
        rows.append((run_id, *plain, int(timeout_s * 1e9), destroyed_to.get(run_id, -1), back_idx.get(run_id, -1)))
    return literal_frame(spark, rows, schema)

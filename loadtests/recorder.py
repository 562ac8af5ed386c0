"""From a ledger to figures: raw samples (Parquet), exact percentiles, series for charts.

Every latency counts from the intended time; service time (from the actual send) can be had from the samples.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from assay.loadtests.ledger import ConnectTime, Ledger, PublisherLog
from assay.loadtests.profile import Phases
from assay.loadtests.schedule import NS_PER_S
from assay.reference_broker.trace.results import Percentiles
from assay.reference_broker.trace.sample_files import SAMPLE_SCHEMA
from assay.reference_broker.trace.schema import LatencyOperation

OK, LOST, REFUSED, UNSENT = "ok", "lost", "refused", "unsent"
"""Sample statuses. Of a lost message, ``completed_ns`` is the end of the drain: its latency is at least that long."""

Column = npt.NDArray[np.int64]
_ROWS_OF_A_GROUP: Final = 100_000
"""Of ``samples.parquet``, at least."""


class Samples(msgspec.Struct, frozen=True, kw_only=True):
    """Samples of one operation of one publisher, as parallel columns. ``status`` holds the statuses above."""

    workload: str
    client: str
    operation: LatencyOperation
    qos: int
    queue: str = ""
    protocol: str = ""
    seq: Column
    intended_ns: Column
    offered_ns: Column
    sent_ns: Column
    completed_ns: Column
    status: npt.NDArray[np.str_]

    @property
    def latency_us(self) -> npt.NDArray[np.float64]:
        return np.asarray((self.completed_ns - self.intended_ns) / 1_000, np.float64)

    @property
    def lateness_us(self) -> npt.NDArray[np.float64]:
        """How late the generator handed each to its client: its own delay, the broker has no part in it."""
        return np.asarray((self.offered_ns - self.intended_ns) / 1_000, np.float64)

    def only(self, chosen: npt.NDArray[np.bool_]) -> Samples:
        """The samples for which ``chosen`` is true."""
        return msgspec.structs.replace(
            self,
            seq=self.seq[chosen],
            intended_ns=self.intended_ns[chosen],
            offered_ns=self.offered_ns[chosen],
            sent_ns=self.sent_ns[chosen],
            completed_ns=self.completed_ns[chosen],
            status=self.status[chosen],
        )


def _samples(
    log: PublisherLog,
    operation: LatencyOperation,
    *,
    intended: Iterable[int],
    offered: Iterable[int],
    sent: Iterable[int],
    completed: Iterable[int],
    ended_ns: int,
) -> Samples:
    columns = (intended, offered, sent, completed)
    intended_ns, offered_ns, sent_ns, completed_ns = (np.array(column, np.int64) for column in columns)
    refused = np.isin(np.arange(len(intended_ns)), np.fromiter(log.refused, np.int64, len(log.refused)))
    status = np.select([refused, sent_ns == 0, completed_ns == 0], [REFUSED, UNSENT, LOST], OK)
    return Samples(
        workload=log.workload,
        client=log.name,
        operation=operation,
        qos=log.qos,
        queue=log.queue,
        protocol=log.protocol,
        seq=np.arange(len(intended_ns), dtype=np.int64),
        intended_ns=intended_ns,
        offered_ns=np.where(offered_ns == 0, ended_ns, offered_ns),
        sent_ns=np.where(sent_ns == 0, ended_ns, sent_ns),
        completed_ns=np.where(completed_ns == 0, ended_ns, completed_ns),
        status=status,
    )


def collect(ledger: Ledger, *, ended_ns: int) -> list[Samples]:
    """Every sample of a run that ended (drain included) at ``ended_ns``.

    ``client`` names the publisher of the message, so that (client, seq) identifies it in every operation.
    """
    found = []
    for log in ledger.logs:
        intended, sent = log.intended_ns, log.sent_ns
        if log.qos:
            found.append(
                _samples(
                    log,
                    LatencyOperation.PUBLISH_TO_ACK,
                    intended=intended,
                    offered=log.offered_ns,
                    sent=sent,
                    completed=log.acked_ns,
                    ended_ns=ended_ns,
                )
            )
        found += [
            _samples(
                log,
                LatencyOperation.PUBLISH_TO_DELIVER,
                intended=intended,
                offered=log.offered_ns,
                sent=sent,
                completed=delivered,
                ended_ns=ended_ns,
            )
            for delivered in log.delivered_ns
        ]
        for delivered, settle_sent, settled in zip(log.delivered_ns, log.settle_sent_ns, log.settled_ns, strict=False):
            samples = _samples(
                log,
                LatencyOperation.DELIVER_TO_SETTLE,
                intended=delivered,
                offered=delivered,
                sent=settle_sent,
                completed=settled,
                ended_ns=ended_ns,
            )
            # A message that was never delivered has nothing to settle; its loss is counted as a delivery.
            found.append(samples.only(np.array(delivered) != 0))
    return found


def collect_connects(connects: Sequence[ConnectTime]) -> list[Samples]:
    """Handshake times as samples; they come before the schedule, so their times are negative."""
    return [
        Samples(
            workload="connections",
            client=connect.client,
            operation=LatencyOperation.CONNECT,
            qos=0,
            seq=np.zeros(1, np.int64),
            intended_ns=np.array([connect.started_ns], np.int64),
            offered_ns=np.array([connect.started_ns], np.int64),
            sent_ns=np.array([connect.started_ns], np.int64),
            completed_ns=np.array([connect.completed_ns], np.int64),
            status=np.array([OK]),
        )
        for connect in connects
    ]


def in_phase(samples: Samples, phases: Phases, phase: str) -> Samples:
    """The samples whose intended time falls into a phase."""
    return samples.only(phase_names(samples.intended_ns, phases) == phase)


def phase_names(intended_ns: Column, phases: Phases) -> npt.NDArray[np.str_]:
    """Phase of every intended time."""
    steady_ns = int(phases.warmup_s * NS_PER_S)
    cooldown_ns = int((phases.warmup_s + phases.steady_s) * NS_PER_S)
    return np.select([intended_ns < steady_ns, intended_ns < cooldown_ns], ["warmup", "steady"], "cooldown")


Key = tuple[str, LatencyOperation, int]
"""Workload, operation, QoS."""


def answered(samples: Samples) -> Samples:
    """Those that have a latency."""
    return samples.only(samples.status == OK)


def merged(samples: Sequence[Samples]) -> dict[Key, Samples]:
    """Samples of all publishers of a workload together, whatever became of them."""
    groups: defaultdict[Key, list[Samples]] = defaultdict(list)
    for part in samples:
        groups[part.workload, part.operation, part.qos].append(part)
    return {
        key: msgspec.structs.replace(
            parts[0],
            client="",
            seq=np.concatenate([part.seq for part in parts]),
            intended_ns=np.concatenate([part.intended_ns for part in parts]),
            offered_ns=np.concatenate([part.offered_ns for part in parts]),
            sent_ns=np.concatenate([part.sent_ns for part in parts]),
            completed_ns=np.concatenate([part.completed_ns for part in parts]),
            status=np.concatenate([part.status for part in parts]),
        )
        for key, parts in groups.items()
    }


def write_parquet(path: Path, samples: Sequence[Samples], *, run_id: str, phases: Phases) -> int:
    """Write ``samples.parquet`` (zstd); returns the number of rows."""
    rows = 0
    # Those of many clients together: a group of rows for each would be twice the size.
    gathered: list[pa.Table] = []
    with pq.ParquetWriter(path, SAMPLE_SCHEMA, compression="zstd") as writer:
        for part in samples:
            count = len(part.seq)
            columns = {
                "run_id": [run_id] * count,
                "phase": phase_names(part.intended_ns, phases),
                "operation": [part.operation.value] * count,
                "qos": np.full(count, part.qos, np.int64),
                "client": [part.client] * count,
                "seq": part.seq,
                "intended_ns": part.intended_ns,
                "sent_ns": part.sent_ns,
                "completed_ns": part.completed_ns,
                "status": part.status,
                "workload": [part.workload] * count,
                "queue": [part.queue] * count,
                "protocol": [part.protocol] * count,
                "offered_ns": part.offered_ns,
            }
            gathered.append(pa.table(columns, schema=SAMPLE_SCHEMA))
            rows += count
            if sum(table.num_rows for table in gathered) >= _ROWS_OF_A_GROUP:
                writer.write_table(pa.concat_tables(gathered))
                gathered.clear()
        if gathered:
            writer.write_table(pa.concat_tables(gathered))
    return rows


def percentiles(name: str, latency_us: npt.NDArray[np.float64], *, missing: int = 0) -> Percentiles:
    """Exact percentiles of what was answered, by nearest rank. Raises :class:`ValueError` without a sample."""
    if not len(latency_us):
        message = f"{name}: no percentile of no samples"
        raise ValueError(message)
    p50, p90, p99, p999 = np.percentile(latency_us, [50, 90, 99, 99.9], method="inverted_cdf")
    return Percentiles(
        name=name,
        count=len(latency_us),
        p50_us=round(float(p50), 1),
        p90_us=round(float(p90), 1),
        p99_us=round(float(p99), 1),
        p999_us=round(float(p999), 1),
        max_us=round(float(latency_us.max()), 1),
        missing=missing,
    )

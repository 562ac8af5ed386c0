"""What a load run says of its samples in memory is what Spark says of them: figures, bounds and verdicts."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from assay.loadtests.ledger import Ledger, PublisherLog
from assay.loadtests.locust_samples import Samples as Pages
from assay.loadtests.locust_samples import Subject, from_wire, table_of, to_wire
from assay.loadtests.profile import Profile, QueueLoad, parse_profile
from assay.loadtests.recorder import Samples, collect, merged, write_parquet
from assay.loadtests.schedule import NS_PER_S
from assay.loadtests.verdict import latency_check, steady_percentiles
from assay.reference_broker.trace.judgement import nearest_rank
from assay.reference_broker.trace.results import GRAVITY, Verdict
from assay.reference_broker.trace.schema import LatencyOperation
from assay.spark_analysis import latency
from assay.spark_analysis.analyse import analyse
from assay.spark_analysis.sources import load_samples
from assay.spark_analysis.targets import parse_targets

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]

MS = 1_000_000
PROFILE = parse_profile(
    {
        "name": "mixed",
        "phases": {"warmup_s": 1.0, "steady_s": 4.0, "cooldown_s": 1.0},
        "workloads": [
            {"kind": "pubsub", "name": "plain", "qos": 1, "arrivals": {"shape": "constant", "rate_per_s": 100}},
            {"kind": "queue", "name": "fast", "arrivals": {"shape": "constant", "rate_per_s": 100}},
            {"kind": "queue", "name": "slow", "groups": 2, "arrivals": {"shape": "constant", "rate_per_s": 100}},
        ],
        "targets": [{"operation": "publish_to_deliver", "p99_ms": 40.0}],
    }
)


def _lives(seed: int, profile: Profile) -> list[PublisherLog]:
    """Random lives: late offers, lost, refused and unsent messages, latencies of very different sizes."""
    rng = random.Random(seed)
    logs = []
    for number, load in enumerate(profile.workloads):
        settles = isinstance(load, QueueLoad)
        times = sorted(rng.randrange(6 * NS_PER_S) for _ in range(rng.choice([40, 300, 900])))
        log = PublisherLog(
            name=f"{load.name}-p0",
            number=number,
            workload=load.name,
            qos=load.qos,
            copies=load.copies,
            settles=settles,
            intended_ns=np.array(times, np.int64),
            queue=f"load-{load.name}" if settles else "",
            protocol="mqtt5",
        )
        loss, scale_ms, late_ms = rng.choice([0.0, 0.002, 0.03]), rng.choice([1, 8, 30]), rng.choice([0.0, 0.1, 20.0])
        for seq, intended in enumerate(log.intended_ns):
            _live(rng, log, seq, intended, loss=loss, scale_ms=scale_ms, late_ms=late_ms)
        logs.append(log)
    return logs


def _live(
    rng: random.Random, log: PublisherLog, seq: int, intended: int, *, loss: float, scale_ms: int, late_ms: float
) -> None:
    if rng.random() < loss / 4:
        return  # never offered
    log.offered_ns[seq] = intended + 1 + int(rng.random() * late_ms * MS)
    if rng.random() < loss / 4:
        return  # never sent
    log.sent_ns[seq] = log.offered_ns[seq] + rng.randrange(MS)
    if rng.random() < loss / 4:
        log.refused.add(seq)
        return
    log.acked_ns[seq] = log.sent_ns[seq] + int(rng.expovariate(1 / scale_ms) * MS) + 1
    for copy, delivered in enumerate(log.delivered_ns):
        if rng.random() >= loss:
            delivered[seq] = log.acked_ns[seq] + int(rng.expovariate(1 / scale_ms) * MS)
            if log.settles:
                log.settle_sent_ns[copy][seq] = delivered[seq]
                log.settled_ns[copy][seq] = delivered[seq] + rng.randrange(1, 9 * MS)


TARGET = """
schema: assay.targets/1
targets:
  - name: delivered
    metric: latency_p99_ms
    operation: publish_to_deliver
    judges: {{samples: queue, per: {per}}}
    relation: "<"
    bound: 40
    unit: ms
    source: test
"""


def _memory(samples: list[Samples]) -> dict[str, tuple[int, int, float, float]]:
    figures = steady_percentiles(merged(samples), PROFILE.phases)
    return {
        f"{workload}: {operation} qos{qos}": (row.count, row.missing, row.p50_us, row.p99_us)
        for (workload, operation, qos), row in figures.items()
    }


@pytest.mark.parametrize("seed", range(4))
def test_spark_and_memory_agree_on_random_runs(spark: SparkSession, tmp_path: Path, seed: int) -> None:
    samples = collect(Ledger(b"12345678", _lives(seed, PROFILE)), ended_ns=20 * NS_PER_S)
    write_parquet(tmp_path / "samples.parquet", samples, run_id="r", phases=PROFILE.phases)
    frame, (report,) = load_samples(spark, {".": tmp_path / "samples.parquet"})
    assert report.whole
    table = latency.percentile_table(frame, exact=True).where("phase = 'steady'")
    theirs = {
        row.name: (row.count, row.missing, round(row.p50_us, 1), round(row.p99_us, 1))
        for row in latency.as_percentiles(table, name_runs=False)
    }
    assert theirs == _memory(samples)

    groups = merged(samples)
    verdicts = {}
    for load in PROFILE.workloads:
        check = latency_check(PROFILE.targets[0], load, groups, PROFILE.phases, {})
        assert check is not None
        verdicts[load.name] = check
    for per in ("workload", "queue"):
        result = analyse(tmp_path, out=tmp_path / per, targets=parse_targets(TARGET.format(per=per), where="test"))
        (check,) = (one for one in result.checks if one.name == "delivered")
        worst = max((verdicts[name] for name in ("fast", "slow")), key=lambda one: GRAVITY.index(one.verdict))
        assert check.verdict is worst.verdict, (check, verdicts)
        assert "plain" not in check.subject
        if "slow" in check.subject or "fast" in check.subject:
            name = "slow" if "slow" in check.subject else "fast"
            assert check.value == pytest.approx(verdicts[name].value, abs=0.001)
            assert check.reason.partition(":")[0] == verdicts[name].reason.partition(":")[0]


def test_spark_reads_what_locust_recorded_and_judges_none_of_it(spark: SparkSession, tmp_path: Path) -> None:
    rng = random.Random(5)
    samples = Pages()
    subjects = [
        Subject(name="MQTT: publish qos1 to ack", operation=LatencyOperation.PUBLISH_TO_ACK, workload="MQTT", qos=1),
        Subject(name="queue: connect", operation=LatencyOperation.CONNECT, workload="queue", queue="of each user"),
    ]
    expected: dict[str, list[int]] = {"MQTT": [], "queue": []}
    failures = dict.fromkeys(expected, 0)
    for n in range(3_000):
        subject, latency_ns, failed = rng.choice(subjects), rng.randrange(1, 90 * MS), rng.random() < 0.01
        samples.add(subject, n * MS, n * MS + latency_ns, failed=failed)
        expected[subject.workload] += [] if failed else [latency_ns]
        failures[subject.workload] += failed
    pages = from_wire(to_wire(samples.take()))
    assert samples.take() == []
    pq.write_table(table_of(pages), tmp_path / "samples.parquet")
    frame, (report,) = load_samples(spark, {".": tmp_path / "samples.parquet"})
    assert report.whole
    rows = latency.as_percentiles(latency.percentile_table(frame, exact=True), name_runs=False)
    assert len(rows) == 2
    for row in rows:
        workload = row.name.partition(":")[0]
        known = sorted(expected[workload])
        assert "closed_loop" in row.name
        assert (row.count, row.missing) == (len(known), failures[workload])
        assert row.p99_us * 1000 == known[nearest_rank(0.99, len(known)) - 1]
    result = analyse(tmp_path, out=tmp_path / "spark")
    judged = [check for check in result.checks if check.name != "Damaged sources"]
    assert {check.verdict for check in judged} == {Verdict.UNKNOWN}
    assert len(result.percentiles) == 2, "shown all the same"

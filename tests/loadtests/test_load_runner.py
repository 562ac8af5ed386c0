"""The runner against the null broker: a clean one is never accused, each planted fault is found."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from assay.conformance.targets import Endpoint, running
from assay.loadtests import null_broker
from assay.loadtests.generator import run_generator, until_drained
from assay.loadtests.ledger import Ledger, PublisherLog
from assay.loadtests.profile import Profile, parse_profile
from assay.loadtests.recorder import Samples, collect
from assay.loadtests.runner import run_load
from assay.reference_broker.trace.results import RunKind, RunResult, Severity, Verdict, read_result
from assay.reference_broker.trace.schema import LatencyOperation

SEED = 20
PUB_SUB = {"kind": "pubsub", "publishers": 2}
EVERY_QOS = [{**PUB_SUB, "name": f"qos{qos}", "qos": qos, "version": 4 + qos % 2} for qos in (0, 1, 2)]
QUEUE = {"kind": "queue", "name": "tasks", "publishers": 2, "groups": 2, "consumers_per_group": 2}


def _profile(*loads: dict[str, Any], rate_per_s: float = 400, steady_s: float = 0.6, **changes: Any) -> Profile:
    arrivals = {"shape": "constant", "rate_per_s": rate_per_s}
    return parse_profile(
        {
            "name": "test",
            "phases": {"warmup_s": 0.1, "steady_s": steady_s, "cooldown_s": 0.1},
            "drain_timeout_s": 1.0,
            "baseline": {"steady_s": 0},
            "workloads": [{"arrivals": arrivals, **load} for load in loads],
            **changes,
        }
    )


def _run(profile: Profile, folder: Path, *arguments: str) -> RunResult:
    with running(null_broker.target(*arguments)) as broker:
        return run_load(profile, broker.endpoint, target="null", folder=folder, seed=SEED)


def _check(result: RunResult, name: str) -> float | None:
    return next(check.value for check in result.checks if check.name == name)


def test_a_clean_broker_passes_and_every_artefact_is_written(tmp_path: Path) -> None:
    profile = _profile(*EVERY_QOS, QUEUE, rate_per_s=100, baseline={"steady_s": 0.3, "ceiling_messages": 400})
    result = _run(profile, tmp_path)
    assert result.verdict in (Verdict.PASS, Verdict.UNKNOWN), result.summary  # unknown: this machine was too busy
    assert result.findings == []
    assert (result.kind, result.seed, result.target) == (RunKind.LOAD, SEED, "null")
    for workload in ("qos0", "qos1", "qos2"):
        assert result.metrics[f"{workload}.delivered"] == result.metrics[f"{workload}.sent"]
    assert result.metrics["tasks.delivered"] == 2 * int(result.metrics["tasks.sent"])
    assert _check(result, "tasks: unsettled") == 0
    names = {row.name for row in result.percentiles}
    assert {"qos2: publish to ack", "tasks: deliver to settle", "qos0: publish to deliver"} <= names
    assert "qos0: publish to ack" not in names
    assert float(result.metrics["generator.ceiling_messages_per_s"]) > 0
    null = [float(result.metrics[f"null broker, tasks: publish to ack, p{share}_us"]) for share in (50, 99)]
    assert 0 < null[0] <= null[1], "a model of the broker takes these for what the client adds"
    assert result.machine is not None
    assert read_result(tmp_path / "result.json") == result
    assert {path.name for path in tmp_path.iterdir()} == {"result.json", "samples.parquet", "histograms.jsonl"}
    table = pq.read_table(tmp_path / "samples.parquet").to_pylist()
    assert {row["status"] for row in table} == {"ok"}
    # Every sample names what it is of, so that no target is met by what it does not mean.
    of = {(row["workload"], row["protocol"], row["queue"].partition("-")[0]) for row in table}
    assert of == {
        ("qos0", "mqtt311", ""),
        ("qos1", "mqtt5", ""),
        ("qos2", "mqtt311", ""),
        ("tasks", "mqtt5", "load"),
        ("connections", "", ""),
    }
    subjects = {check.name: check.subject for check in result.checks}
    assert "queue load-" in subjects["tasks: deliveries per second"]
    assert "no queue" in subjects["qos1: deliveries per second"]


def _sum(result: RunResult, name: str) -> int:
    return sum(int(value) for key, value in result.metrics.items() if key.endswith(f".{name}"))


def test_a_lossy_broker_is_reported_and_fails_above_qos_0(tmp_path: Path) -> None:
    result = _run(_profile(*EVERY_QOS, rate_per_s=200), tmp_path, "--lose-every", "25")
    assert _sum(result, "lost") == _sum(result, "expected") // 25 > 0
    severities = {finding.message.partition(":")[0]: finding.severity for finding in result.findings}
    assert severities == {"qos0": Severity.QUALITY, "qos1": Severity.SAFETY, "qos2": Severity.SAFETY}
    assert {finding.checker for finding in result.findings} == {"lost"}
    assert result.verdict is Verdict.FAIL
    verdicts = {check.name: check.verdict for check in result.checks}
    assert verdicts["qos0: lost"] is Verdict.PASS  # at most once allows it
    assert verdicts["qos1: lost"] is verdicts["qos2: lost"] is Verdict.FAIL
    statuses = pq.read_table(tmp_path / "samples.parquet").column("status").to_pylist()
    assert statuses.count("lost") == _sum(result, "lost")
    values = [value for finding in result.findings for value in finding.values]
    assert all(value.startswith("qos") for value in values)


def test_a_repeating_broker_is_reported_and_fails_where_it_must_not(tmp_path: Path) -> None:
    result = _run(_profile(*EVERY_QOS, rate_per_s=200), tmp_path, "--duplicate-every", "25")
    assert _sum(result, "duplicates") == _sum(result, "expected") // 25 > 0
    assert _sum(result, "lost") == 0
    severities = {finding.message.partition(":")[0]: finding.severity for finding in result.findings}
    assert severities == {"qos0": Severity.SAFETY, "qos1": Severity.QUALITY, "qos2": Severity.SAFETY}
    assert {finding.checker for finding in result.findings} == {"duplicate"}
    assert result.verdict is Verdict.FAIL


def test_a_reordering_broker_fails(tmp_path: Path) -> None:
    profile = _profile({"kind": "pubsub", "name": "w", "qos": 1})
    result = _run(profile, tmp_path, "--swap-every", "30")
    assert result.verdict is Verdict.FAIL
    (finding,) = result.findings
    assert (finding.checker, finding.severity) == ("order", Severity.SAFETY)
    assert (_check(result, "w: out of order") or 0) >= int(result.metrics["w.expected"]) // 30 - 1


def test_a_lossy_queue_fails(tmp_path: Path) -> None:
    result = _run(_profile(QUEUE), tmp_path, "--lose-every", "60")
    assert result.verdict is Verdict.FAIL
    assert (_check(result, "tasks: lost") or 0) > 0
    assert result.metrics["drained"] == "false"


def _drained(arrivals_s: list[float], never: int = 0) -> tuple[int, float]:
    """What is outstanding, and the time, when a drain of 1 s ends behind a schedule of 5 s, with messages that come
    at these times and some that never do."""
    log = PublisherLog(
        name="w-p0",
        number=0,
        workload="w",
        qos=0,
        copies=1,
        settles=False,
        intended_ns=np.zeros(len(arrivals_s) + never, dtype=np.int64),
        protocol="mqtt5",
    )
    ledger = Ledger(b"12345678", [log])
    now_s = 0.0

    async def wait(seconds: float) -> None:
        nonlocal now_s
        come = sum(now_s < at_s <= now_s + seconds for at_s in arrivals_s)
        now_s += seconds
        ledger.complete(come)

    asyncio.run(until_drained(ledger, 5.0, 1.0, wait))
    return ledger.outstanding, now_s


def test_what_still_comes_is_not_lost() -> None:
    """On a busy machine a backlog took longer than the drain timeout, and what came behind that was called lost."""
    assert _drained([1.0, 2.0]) == (0, 5.0)
    assert _drained([5.0 + 0.5 * number for number in range(12)])[0] == 0
    assert _drained([1.0, 5.9], never=2) == (2, 7.0), "one timeout behind the last arrival"
    assert _drained([1.0], never=1) == (1, 6.0)
    assert _drained([5.0 + 0.5 * number for number in range(100)])[1] == 15.0, "ten timeouts at most"


def _record(profile: Profile, *arguments: str) -> dict[LatencyOperation, Samples]:
    with running(null_broker.target(*arguments)) as broker:
        recording = run_generator(profile, broker.endpoint, seed=SEED)
    return {part.operation: part for part in collect(recording.ledger, ended_ns=recording.ended_ns)}


def test_a_stalled_broker_shows_in_every_message_that_was_due_meanwhile() -> None:
    """Coordinated omission: a client that waits for its answer sees a stall of 0.5 s once; the schedule saw it all."""
    load = {"kind": "pubsub", "name": "w", "qos": 1, "in_flight": 1}
    profile = _profile(load, steady_s=1.3, rate_per_s=200)
    found = _record(profile, "--stall-at-s", "0.4", "--stall-for-s", "0.5")
    acks = found[LatencyOperation.PUBLISH_TO_ACK]
    latency_ms = acks.latency_us / 1_000
    service_ms = (acks.completed_ns - acks.sent_ns) / 1e6
    # 200 messages per second were due during the stall: the first waited 500 ms, the last none.
    assert latency_ms.max() >= 450
    assert (latency_ms >= 250).sum() >= 40
    assert (latency_ms >= 100).sum() >= 70
    # With one message in flight, only one was on the wire: the service time hides the stall.
    assert service_ms.max() >= 450
    assert (service_ms >= 250).sum() <= 5
    assert np.percentile(latency_ms, 90) > 5 * np.percentile(service_ms, 90)


def test_samples_of_one_clock_never_run_backwards() -> None:
    found = _record(_profile({**PUB_SUB, "name": "w", "qos": 2}))
    for part in found.values():
        assert (part.sent_ns >= part.intended_ns).all()
        assert (part.completed_ns >= part.sent_ns).all()


def test_an_unreachable_broker_is_an_error_not_a_result(free_port: Callable[[], int]) -> None:
    with pytest.raises(OSError, match=r"."):
        run_generator(_profile({**PUB_SUB, "name": "w"}), Endpoint(port=free_port()), seed=SEED)


def test_a_broker_that_ends_fails_the_run_early(tmp_path: Path) -> None:
    profile = _profile({**PUB_SUB, "name": "w", "qos": 1}, steady_s=20.0)
    with running(null_broker.target()) as broker:
        process = broker.process
        assert process is not None

        def kill_at_half_a_second(elapsed_s: float, sent: int, total: int) -> None:
            if sent > 100:
                process.kill()

        result = run_load(
            profile,
            broker.endpoint,
            target="null",
            folder=tmp_path,
            seed=SEED,
            stage=lambda name: kill_at_half_a_second,
        )
    assert result.verdict is Verdict.FAIL
    assert "a connection was lost" in result.summary
    assert result.duration_s < 10

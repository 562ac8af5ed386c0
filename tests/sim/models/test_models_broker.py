"""The broker as stations: its closed forms, its fit to benches, and the comparison with load runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from typer.testing import CliRunner

from assay.reference_broker.trace.results import (
    Check,
    Percentiles,
    RunKind,
    RunResult,
    Verdict,
    write_result,
)
from assay.reference_broker.trace.schema import LatencyOperation
from assay.sim.cli import app
from assay.sim.models import broker
from assay.sim.models.broker import BrokerParameters, Durability
from assay.sim.models.fit import fit, write_parameters
from assay.sim.models.mistakes import planted
from assay.sim.models.model import ModelError, load_parameters

runner = CliRunner()
LOW, HIGH = 200.0, 6_000.0
TURN_S = 0.00009


def parameters(**changes: Any) -> BrokerParameters:
    found, _ = load_parameters(broker.MODEL, None, {"messages": 4_000, **changes})
    return found


def test_idle_full_and_synced_loads_are_as_their_closed_forms() -> None:
    outcome = broker.run(parameters(loads=[0.1, 0.9]), 1, lambda _what, _share: None)
    assert outcome.verdict is Verdict.PASS, outcome.rows
    slow, fast = next(line.y for line in outcome.series if line.name == "fsync, p99")
    assert (fast or 0) > (slow or 0) > 0.17, "a sync, and waiting"


@pytest.mark.parametrize("mistake", ["a-turn-for-each", "confirms-before-the-sync"])
def test_a_mistake_in_the_broker_is_refused(mistake: str) -> None:
    with planted(mistake, "broker"):
        assert any(row.verdict is Verdict.FAIL for row in broker.checks(parameters(), 1))


def load_run(folder: Path, rate: float, latencies_s: dict[LatencyOperation, Any], lateness_ms: float = 0.1) -> Path:
    """What ``assay load run`` would have written of these latencies."""
    rows = []
    metrics: dict[str, float | int | str] = {"asked_messages_per_s": rate}
    for operation, values in latencies_s.items():
        name = f"tasks: {operation.replace('_', ' ')}"
        p50, p90, p99, p999 = (float(value) * 1e6 for value in np.quantile(values, [0.5, 0.9, 0.99, 0.999]))
        most = float(np.max(values)) * 1e6
        rows.append(Percentiles(name=name, count=4_000, p50_us=p50, p90_us=p90, p99_us=p99, p999_us=p999, max_us=most))
        metrics |= {f"null broker, {name}, p50_us": 60.0, f"null broker, {name}, p99_us": 300.0}
    late = Verdict.PASS if lateness_ms < 1 else Verdict.UNKNOWN
    check = Check(name="generator: lateness, p99", value=lateness_ms, unit="ms", bound=1.0, relation="<", verdict=late)
    result = RunResult(
        kind=RunKind.LOAD,
        name="queue",
        verdict=Verdict.PASS,
        summary="",
        checks=[check],
        metrics=metrics,
        percentiles=rows,
    )
    write_result(folder, result)
    return folder


def played(true: BrokerParameters, rate: float, times: float = 1.0) -> dict[LatencyOperation, Any]:
    """Latencies of a broker that is as the model says, or slower, at another seed."""
    known = broker.Measured(
        rate_per_s=rate,
        workload="tasks",
        operation=LatencyOperation.PUBLISH_TO_ACK,
        found=Percentiles(name="", count=1, p50_us=1, p90_us=1, p99_us=1, p999_us=1, max_us=1),
        client_p50_s=60e-6,
        client_p99_s=300e-6,
        doubt="",
    )
    wanted = (LatencyOperation.PUBLISH_TO_ACK, LatencyOperation.PUBLISH_TO_DELIVER)
    return {each: times * broker.predicted(true, msgspec.structs.replace(known, operation=each), 77) for each in wanted}


def bench(folder: Path, name: str, metrics: dict[str, float | int | str]) -> None:
    result = RunResult(kind=RunKind.BENCH, name=name, verdict=Verdict.PASS, summary="", metrics=metrics)
    write_result(folder, result)


@pytest.fixture
def benches(tmp_path: Path) -> Path:
    """A machine on which an append takes 1 us, a life 5 us more, a turn 50 us, a sync 2 ms."""
    engine = {"enqueue_batch": 1e6, "life": 1e6 / 6, "life_single": 1e6 / 56}
    bench(tmp_path / "queue" / "engine", "engine", {f"{name}.messages_per_s": value for name, value in engine.items()})
    sockets = {"reference/interval.queue.per_cpu_s": 1e5, "reference/fsync.queue.per_cpu_s": 5e4}
    bench(tmp_path / "queue" / "sockets", "sockets", {**sockets})
    bench(tmp_path / "storage", "storage", {"group_commit.handover": 40.0, "group_commit.handover.raw": 2_000.0})
    return tmp_path


def test_a_fit_reads_what_the_benches_say(benches: Path) -> None:
    found = {name: value for name, (value, _) in fit(benches / "storage", benches / "queue", [], 1).items()}
    assert found == pytest.approx(
        {
            "append_s": 1e-6,
            "dispatch_s": 2e-6,
            "settle_s": 3e-6,
            "parse_s": 2e-6,
            "encode_s": 2e-6,
            "confirm_s": 10e-6,
            "turn_s": 50e-6,
            "fsync_s": 2e-3,
            "handover_s": 40e-6,
        }
    )


def test_a_turn_is_fitted_to_a_run_and_other_rates_are_predicted(benches: Path, tmp_path: Path) -> None:
    told = {name: value for name, (value, _) in fit(benches / "storage", benches / "queue", [], 1).items()}
    true = parameters(**{**told, "turn_s": TURN_S, "network_s": 0.0})
    low = load_run(tmp_path / "low", LOW, played(true, LOW))
    high = load_run(tmp_path / "high", HIGH, played(true, HIGH))
    path = tmp_path / "broker.yaml"
    arguments = ["--storage", str(benches / "storage"), "--queue", str(benches / "queue"), "--load", str(low)]
    finished = runner.invoke(app, ["model", "fit", *arguments, "--out", str(path)])
    assert finished.exit_code == 0, finished.output
    fitted, sources = load_parameters(broker.MODEL, path, {"messages": 4_000})
    assert fitted.turn_s == pytest.approx(TURN_S, rel=0.05)
    assert "assay load run at 200/s" in sources["turn_s"]
    compared = ["model", "compare", "broker", "--parameters", str(path), "--set", "messages=4000", "--measured"]
    finished = runner.invoke(app, [*compared, str(high)])
    assert finished.exit_code == 0, finished.output
    assert "publish to ack at 6,000/s: p99" in finished.output
    # Another broker is not what this one is.
    slower = load_run(tmp_path / "slower", HIGH, played(true, HIGH, times=1.4))
    assert runner.invoke(app, [*compared, str(slower)]).exit_code == 1
    # Of a run whose generator was late nothing is claimed, right or wrong.
    late = load_run(tmp_path / "late", HIGH, played(true, HIGH), lateness_ms=30.0)
    outcome = broker.compare(fitted, 1, [late], lambda _what, _share: None)
    assert {row.verdict for row in outcome.rows} == {Verdict.UNKNOWN}
    assert "generator: lateness, p99 30 ms" in outcome.answers[0]
    with pytest.raises(ModelError, match="says nothing of the broker"):
        fit(benches / "storage", benches / "queue", [late], 1)


def test_runs_at_one_rate_count_by_their_median_and_one_that_says_nothing_does_not(tmp_path: Path) -> None:
    true = parameters(network_s=0.0)
    quiet = played(true, LOW)
    runs = [load_run(tmp_path / f"{times}", LOW, {each: times * quiet[each] for each in quiet}) for times in (1, 9, 1)]
    late = [load_run(tmp_path / f"late {each}", LOW, played(true, LOW, 9.0), lateness_ms=30.0) for each in range(4)]
    measured = {each.operation: each for each in broker.read_loads([*runs, *late])}
    assert len(measured) == 2
    for operation, latencies_s in quiet.items():
        each = measured[operation]
        assert (each.runs, each.found.count, each.doubt) == (3, 12_000, "")
        assert each.found.p99_us == pytest.approx(float(np.quantile(latencies_s, 0.99)) * 1e6)
        assert each.found.p50_us == pytest.approx(float(np.quantile(latencies_s, 0.5)) * 1e6)
    outcome = broker.compare(true, 1, [*runs, *late], lambda _what, _share: None)
    assert {row.verdict for row in outcome.rows} == {Verdict.PASS}, outcome.rows
    assert any("median of 3 runs" in row.method for row in outcome.rows)
    assert all(each.doubt for each in broker.read_loads(late))


def test_several_runs_tell_what_waking_up_adds_and_how_much_turns_differ(
    benches: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("assay.sim.models.fit._FITTED_MESSAGES", 1_500)
    told = {name: value for name, (value, _) in fit(benches / "storage", benches / "queue", [], 1).items()}
    asleep = {"turn_s": TURN_S, "wake_s": 200e-6, "asleep_s": 3e-3, "spread": 0.8, "network_s": 0.0}
    true = parameters(**{**told, **asleep})
    runs = [load_run(tmp_path / f"{rate}", rate, played(true, rate)) for rate in (100, 5_000)]
    found = {name: value for name, (value, _) in fit(benches / "storage", benches / "queue", runs, 1).items()}
    other = load_run(tmp_path / "other", 1_500, played(true, 1_500))
    outcome = broker.compare(parameters(**{**found, "network_s": 0.0}), 1, [other], lambda _what, _share: None)
    assert {row.verdict for row in outcome.rows} == {Verdict.PASS}, outcome.rows
    # One run can say nothing of sleep: it takes all for the turn, and is too slow where the loop has work.
    alone = {name: value for name, (value, _) in fit(benches / "storage", benches / "queue", runs[:1], 1).items()}
    outcome = broker.compare(parameters(**{**alone, "network_s": 0.0}), 1, [other], lambda _what, _share: None)
    assert Verdict.FAIL in {row.verdict for row in outcome.rows}


def test_what_is_no_bench_or_load_run_is_refused(benches: Path, tmp_path: Path) -> None:
    for storage, queue, said in (
        (benches / "nowhere", benches / "queue", r"no result\.json"),
        (benches / "storage", benches / "storage", "not a folder of assay bench queue"),
        (benches / "queue" / "engine", benches / "queue", "group_commit"),
    ):
        with pytest.raises(ModelError, match=said):
            fit(storage, queue, [], 1)
    with pytest.raises(ModelError, match="not of assay load run"):
        broker.read_load(benches / "storage")
    bench(tmp_path / "empty", "x", {})
    with pytest.raises(ModelError, match="no figure"):
        fit(tmp_path / "empty", benches / "queue", [], 1)


def test_a_written_file_is_read_back_with_its_sources(tmp_path: Path) -> None:
    write_parameters(tmp_path / "b.yaml", {"turn_s": (1.23456e-5, "a bench")})
    found, sources = load_parameters(broker.MODEL, tmp_path / "b.yaml")
    assert (found.turn_s, sources["turn_s"]) == (1.235e-5, "a bench")
    assert found.durability is Durability.INTERVAL

"""Elections, failover of real brokers, rebalances; and the comparison with what was measured."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from assay.reference_broker.trace.results import RunKind, RunResult, Series, Verdict, write_result
from assay.sim.cli import app
from assay.sim.models import failover, raft_election, rebalance
from assay.sim.models.mistakes import planted
from assay.sim.models.model import Outcome, load_parameters
from assay.sim.models.registry import find_model

runner = CliRunner()


def run(name: str, settings: dict[str, object] | None = None, seed: int = 1) -> Outcome:
    model = find_model(name)
    parameters, _ = load_parameters(model, None, settings)
    return model.run(parameters, seed, lambda _what, _share: None)


def test_the_table_of_the_paper_lies_in_its_bands() -> None:
    outcome = run("raft")
    assert outcome.verdict is Verdict.PASS, outcome.rows
    assert len(outcome.rows) == 5
    medians = [float(outcome.metrics[f"{name}.median_ms"]) for name in ("12-24", "25-50", "50-100", "100-200")]
    assert medians == sorted(medians)
    assert float(outcome.metrics["150-151.median_ms"]) > float(outcome.metrics["150-155.median_ms"])


def test_votes_that_never_split_are_refused() -> None:
    with planted("votes-for-everybody", "raft"):
        outcome = run("raft", {"settings_ms": [[150, 150], [150, 155]], "trials": 100})
    assert outcome.verdict is Verdict.FAIL


def test_timers_far_apart_never_split_the_vote_and_the_first_one_wins_after_a_round() -> None:
    parameters, _ = load_parameters(
        raft_election.MODEL, None, {"servers": 3, "request_s": [0.002, 0.002], "reply_s": [0.01, 0.01]}
    )
    times_s = raft_election.elections(parameters, 100, 5_000, 1_500, 1)
    # The least of two uniform times, less the age of the last heartbeat.
    assert float(times_s.mean()) == pytest.approx(0.1 + 4.9 / 3 - 0.025 + 0.012, rel=0.06)


@pytest.mark.parametrize("name", ["nats", "rabbitmq", "own-cluster"])
def test_a_failover_model_agrees_with_theory_and_measurement(name: str) -> None:
    outcome = run(name)
    assert outcome.verdict is Verdict.PASS, outcome.rows
    assert len(outcome.rows) >= 2
    with planted(f"{name}-waits-for-the-last-follower", name):
        assert run(name, {"trials": 400}).verdict is Verdict.FAIL


def test_kill_and_pause_are_told_apart() -> None:
    outcome = run("rabbitmq", {"trials": 300})
    assert float(outcome.metrics["pause.median_s"]) > 4 * float(outcome.metrics["kill.median_s"])


def measured(folder: Path, kill_s: list[float]) -> Path:
    series = Series(name="kill", unit="s", x_s=[float(place) for place in range(len(kill_s))], y=[*kill_s])
    result = RunResult(kind=RunKind.FAULTS, name="failover", verdict=Verdict.PASS, summary="", series=[series])
    return write_result(folder, result)


def test_fresh_measurements_are_compared_and_others_than_these_refused(tmp_path: Path) -> None:
    parameters, _ = load_parameters(failover.NATS)
    rng = np.random.default_rng(1)
    same = 4 + 5 * rng.random((10, 2)).min(axis=1) + 0.2
    good, other = measured(tmp_path / "same", same.tolist()), measured(tmp_path / "other", (same - 3).tolist())
    assert failover.compare(parameters, 1, [good], lambda _what, _share: None).verdict is Verdict.PASS
    assert failover.compare(parameters, 1, [other.parent], lambda _what, _share: None).verdict is Verdict.FAIL
    finished = runner.invoke(app, ["model", "compare", "nats", "--measured", str(good), "--out", str(tmp_path / "out")])
    assert finished.exit_code == 0, finished.output
    assert "p-value, 10 measured" in finished.output
    assert (tmp_path / "out" / "nats" / "plot.html").exists()
    assert runner.invoke(app, ["model", "compare", "nats", "--measured", str(other)]).exit_code == 1
    for arguments in (["nats", "--measured", str(tmp_path / "none")], ["mm1", "--measured", str(good)]):
        assert runner.invoke(app, ["model", "compare", *arguments]).exit_code == 2


def test_rebalances_of_every_size_keep_their_forms_and_cooperative_moves_least() -> None:
    outcome = run("rebalance")
    assert outcome.verdict is Verdict.PASS, [row for row in outcome.rows if row.verdict is not Verdict.PASS]
    eager, cooperative = (
        next(line.y for line in outcome.series if line.name == name and line.unit == "partitions")
        for name in ("eager", "cooperative")
    )
    assert all((fewer or 0) < (more or 0) for fewer, more in zip(cooperative, eager, strict=True))
    with planted("sticky-in-name-only", "rebalance"):
        assert run("rebalance", {"members": [5], "trials": 20}).verdict is Verdict.FAIL


def test_a_broker_that_tells_its_consumers_pauses_for_the_work_only() -> None:
    parameters, _ = load_parameters(rebalance.MODEL, None, {"heartbeat_s": 0, "members": [4], "trials": 10})
    outcome = rebalance.run(parameters, 1, lambda _what, _share: None)
    pause_ms = next(line.y[0] for line in outcome.series if line.name == "eager" and line.unit == "ms")
    assert pause_ms == pytest.approx((parameters.work_s + parameters.coordination_s) * 1e3)

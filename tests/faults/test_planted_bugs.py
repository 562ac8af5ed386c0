"""Planted bugs are caught by ``assay faults run`` on real processes, and the sound broker is never accused.

Each run is a process of its own; several run side by side, since they mostly wait. A run that saw too little, as on a
busy machine, counts neither as a bug missed nor as a broker judged: it is repeated, and at last ``unknown``.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from enum import Enum
from pathlib import Path

import msgspec
import pytest

from assay.reference_broker.trace.results import Finding, RunKind, RunResult, Severity, Verdict, read_result

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
SIDE_BY_SIDE = 5
MOST_RUNS = 4


class Run(msgspec.Struct, frozen=True, kw_only=True):
    scenario: str
    seed: int
    mutant: str = ""
    checker: str = ""
    """The checker that must name the bug."""
    chances: int = 1
    """So many chances (of the scenario's ``enough``, over all runs) and no finding: the bug was missed."""


MUTANTS = [
    Run(scenario="crash-restart", seed=31, mutant="queue-confirms-before-write", checker="lost", chances=100),
    Run(scenario="crash-restart", seed=32, mutant="queue-ack-not-persisted", checker="resurrection", chances=300),
    Run(scenario="slow-consumer", seed=33, mutant="queue-reject-discards", checker="dlq_loss", chances=25),
    Run(scenario="flaky-network", seed=34, mutant="queue-key-ignored", checker="order", chances=600),
    Run(scenario="flaky-network", seed=35, mutant="queue-lost-session-settles", checker="lost", chances=600),
]
CLEAN = [
    Run(scenario="crash-restart", seed=41),
    Run(scenario="crash-restart", seed=42),
    Run(scenario="flaky-network", seed=43),
    Run(scenario="bad-disk", seed=45),
    Run(scenario="slow-consumer", seed=44, mutant="queue-retry-waits-longer"),  # unusual, and allowed
]


def execute(run: Run, folder: Path) -> tuple[int, RunResult]:
    out = folder / f"{run.scenario}-{run.seed}"
    code = "from assay.faults.cli import app; app()"
    command = [sys.executable, "-c", code, "run", run.scenario, "--seed", str(run.seed), "--out", str(out)]
    if run.mutant:
        command += ["--mutant", run.mutant]
    done = subprocess.run(command, capture_output=True, text=True, timeout=540, check=False)
    assert (out / "result.json").exists(), done.stdout + done.stderr
    return done.returncode, read_result(out / "result.json")


class Catch(Enum):
    CAUGHT = "caught"
    MISSED = "missed"
    UNKNOWN = "unknown"


def catch(run: Run, execute: Callable[[Run], tuple[int, RunResult]]) -> tuple[Catch, str]:
    """Run until the bug is caught, or has had its chances; what is said of the last run."""
    had, told = 0, ""
    for attempt in range(MOST_RUNS):
        status, result = execute(msgspec.structs.replace(run, seed=run.seed + 100 * attempt))
        checkers = {finding.checker for finding in result.findings if finding.severity is Severity.SAFETY}
        if (status, result.verdict) == (1, Verdict.FAIL) and run.checker in checkers:
            return Catch.CAUGHT, ""
        told = f"{run.mutant} in {run.scenario}, seed {run.seed}: {result.summary} {sorted(checkers)}"
        if result.verdict not in (Verdict.PASS, Verdict.UNKNOWN):
            return Catch.MISSED, told
        had += int(result.metrics.get(f"chances_{run.checker}", 0))
        if result.verdict is Verdict.PASS and had >= run.chances:
            return Catch.MISSED, f"{told}, {had} chances"
    return Catch.UNKNOWN, f"{told}, {had} chances"


def test_planted_bugs_are_caught(tmp_path: Path) -> None:
    with ThreadPoolExecutor(SIDE_BY_SIDE) as pool:
        found = list(pool.map(lambda run: catch(run, lambda one: execute(one, tmp_path)), MUTANTS))
    missed = [text for outcome, text in found if outcome is Catch.MISSED]
    assert not missed, "\n".join(missed)
    unknown = [text for outcome, text in found if outcome is Catch.UNKNOWN]
    if unknown:
        pytest.skip("unknown, the machine is too busy: " + "; ".join(unknown))


def test_the_sound_broker_is_not_accused(tmp_path: Path) -> None:
    with ThreadPoolExecutor(SIDE_BY_SIDE) as pool:
        found = list(zip(CLEAN, pool.map(lambda run: execute(run, tmp_path), CLEAN), strict=True))
    accused = [
        f"{run.scenario}, seed {run.seed} {run.mutant}: status {status}, {result.summary}"
        for run, (status, result) in found
        if (status, result.verdict) != (0, Verdict.PASS) and result.verdict is not Verdict.UNKNOWN
    ]
    assert not accused, "\n".join(accused)
    unknown = [result.summary for _, (_, result) in found if result.verdict is Verdict.UNKNOWN]
    if unknown:
        pytest.skip("unknown, the machine is too busy: " + "; ".join(unknown))


def outcome(verdict: Verdict, chances: int, *checkers: str) -> tuple[int, RunResult]:
    findings = [Finding(checker=name, anomaly="D8", severity=Severity.SAFETY, message="found") for name in checkers]
    result = RunResult(
        kind=RunKind.FAULTS,
        name="x",
        verdict=verdict,
        summary="told",
        findings=findings,
        metrics={"chances_order": chances},
    )
    return (0 if verdict is Verdict.PASS else 1), result


@pytest.mark.parametrize(
    ("runs", "expected"),
    [
        ([outcome(Verdict.FAIL, 10, "order")], Catch.CAUGHT),
        ([outcome(Verdict.FAIL, 10, "lost")], Catch.MISSED),
        ([outcome(Verdict.PASS, 600)], Catch.MISSED),
        ([outcome(Verdict.PASS, 300), outcome(Verdict.PASS, 300)], Catch.MISSED),
        ([outcome(Verdict.PASS, 300), outcome(Verdict.FAIL, 20, "order")], Catch.CAUGHT),
        ([outcome(Verdict.UNKNOWN, 20), outcome(Verdict.FAIL, 20, "order")], Catch.CAUGHT),
        ([outcome(Verdict.UNKNOWN, 20)] * 9, Catch.UNKNOWN),
        ([outcome(Verdict.UNKNOWN, 0), outcome(Verdict.ERROR, 0)], Catch.MISSED),
    ],
)
def test_a_bug_counts_as_missed_only_after_it_had_its_chances(
    runs: list[tuple[int, RunResult]], expected: Catch
) -> None:
    wanted = Run(scenario="x", seed=1, mutant="m", checker="order", chances=600)
    left = iter(runs)
    assert catch(wanted, lambda _run: next(left))[0] is expected

"""Planted bugs are caught by ``assay faults run`` on real processes, and the sound broker is never accused.

Each run is a process of its own; several run side by side, since they mostly wait.
"""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import pytest

from reference_broker.trace.results import RunResult, Severity, Verdict, read_result

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]
SIDE_BY_SIDE = 5


class Run(msgspec.Struct, frozen=True, kw_only=True):
    scenario: str
    seed: int
    mutant: str = ""
    checker: str = ""
    """The checker that must name the bug."""


MUTANTS = [
    Run(scenario="crash-restart", seed=31, mutant="queue-confirms-before-write", checker="lost"),
    Run(scenario="crash-restart", seed=32, mutant="queue-ack-not-persisted", checker="resurrection"),
    Run(scenario="slow-consumer", seed=33, mutant="queue-reject-discards", checker="dlq_loss"),
    Run(scenario="flaky-network", seed=34, mutant="queue-key-ignored", checker="order"),
    Run(scenario="flaky-network", seed=35, mutant="queue-lost-session-settles", checker="lost"),
]
CLEAN = [
    Run(scenario="crash-restart", seed=41),
    Run(scenario="crash-restart", seed=42),
    Run(scenario="flaky-network", seed=43),
    Run(scenario="slow-consumer", seed=44, mutant="queue-retry-waits-longer"),  # unusual, and allowed
]


def execute(run: Run, folder: Path) -> tuple[int, RunResult]:
    out = folder / f"{run.scenario}-{run.seed}"
    code = "from faults.cli import app; app()"
    command = [sys.executable, "-c", code, "run", run.scenario, "--seed", str(run.seed), "--out", str(out)]
    if run.mutant:
        command += ["--mutant", run.mutant]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert (out / "result.json").exists(), done.stdout + done.stderr
    return done.returncode, read_result(out / "result.json")


def execute_all(runs: list[Run], folder: Path) -> list[tuple[Run, int, RunResult]]:
    with ThreadPoolExecutor(SIDE_BY_SIDE) as pool:
        found = list(pool.map(lambda run: execute(run, folder), runs))
    return [(run, status, result) for run, (status, result) in zip(runs, found, strict=True)]


def test_planted_bugs_are_caught(tmp_path: Path) -> None:
    missed = []
    for run, status, result in execute_all(MUTANTS, tmp_path):
        checkers = {finding.checker for finding in result.findings if finding.severity is Severity.SAFETY}
        if (status, result.verdict) != (1, Verdict.FAIL) or run.checker not in checkers:
            missed.append(f"{run.mutant} in {run.scenario}, seed {run.seed}: {result.summary} {sorted(checkers)}")
    assert not missed, "\n".join(missed)


def test_the_sound_broker_is_not_accused(tmp_path: Path) -> None:
    accused = [
        f"{run.scenario}, seed {run.seed} {run.mutant}: status {status}, {result.summary}"
        for run, status, result in execute_all(CLEAN, tmp_path)
        if (status, result.verdict) != (0, Verdict.PASS)
    ]
    assert not accused, "\n".join(accused)

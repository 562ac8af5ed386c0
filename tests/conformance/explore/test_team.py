"""Several brokers at once play the same lives as one, tell the same findings, and end together."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from assay.conformance.explore.campaign import Finding
from assay.conformance.explore.draw import drawn
from assay.conformance.explore.team import Team
from assay.conformance.report import ExitCode
from assay.conformance.targets import StartHook, Target, TargetStartError, load_target
from assay.reference_broker.trace.results import Verdict, read_result
from tests.conformance.explore.test_campaign import broken_target, explore

SEED = 12
LIVES = 20
WAIT_S = 120.0


def test_a_team_plays_the_lives_of_the_seed_and_finds_what_is_wrong(tmp_path: Path) -> None:
    told: list[int] = []
    found: list[Finding] = []
    target = load_target(str(broken_target(tmp_path, "v5-retain-as-published-ignored")))
    with Team(target, 2, report=lambda lives, _what: told.append(lives), shrink_s=0.0) as team:
        whole = team.explore(LIVES, SEED, on_finding=found.append)
    lives = [drawn(SEED, number, whole.capabilities) for number in range(LIVES)]
    assert (whole.lives, whole.steps) == (LIVES, sum(len(life.steps) for life in lives))
    assert max(told) == LIVES
    assert "retain-flag" in {finding.replay.rule for finding in found if finding.counts}, "some of these lives show it"
    assert list(whole.findings) == found
    for finding in found:
        assert finding.replay.life == lives[finding.number], "it is told which life it was"


def test_a_team_stops_at_so_many_findings(tmp_path: Path) -> None:
    target = load_target(str(broken_target(tmp_path, "v5-retain-as-published-ignored")))
    with Team(target, 2, report=lambda *_told: None, shrink_s=0.0) as team:
        whole = team.explore(1_000, SEED, max_findings=1)
    assert whole.lives < 1_000


def test_a_life_is_played_however_little_time_there_is() -> None:
    with Team(load_target("reference"), 1, report=lambda *_told: None) as team:
        assert team.explore(LIVES, SEED, limit_s=0.0).lives == 1


def test_brokers_that_do_not_start_are_an_error_and_no_result() -> None:
    target = Target(name="nobody", start=StartHook(command=("false",), port_from="stdout"))
    with (
        Team(target, 2, report=lambda *_told: None) as team,
        pytest.raises(TargetStartError),
    ):
        team.explore(LIVES, SEED)


def test_a_broker_that_is_not_ours_to_start_has_no_team() -> None:
    assert explore("--host", "127.0.0.1", "--port", "1", "--jobs", "2").exit_code == ExitCode.USAGE


def is_there(group: int) -> bool:
    """Whether any process of a group is left."""
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


def test_a_team_that_is_stopped_tells_what_it_has_seen(tmp_path: Path) -> None:
    out = tmp_path / "out"
    target = str(broken_target(tmp_path, "v5-retain-as-published-ignored"))
    arguments = ["explore", "--target", target, "--seed", "78", "--examples", "1000000", "--jobs", "2"]
    command = [sys.executable, "-m", "assay", "conformance", *arguments, "--out", str(out)]
    run = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True)
    try:
        deadline = time.monotonic() + WAIT_S
        while not list(out.glob("broken-1-*.json")):
            assert time.monotonic() < deadline
            assert run.poll() is None, run.communicate()
            time.sleep(0.02)  # for other processes; what they write is all that can be seen of them
        run.terminate()
        output, _ = run.communicate(timeout=WAIT_S)
        while is_there(run.pid):
            assert time.monotonic() < deadline + WAIT_S, "something outlives it"
            time.sleep(0.02)
    finally:
        if is_there(run.pid):
            os.killpg(run.pid, signal.SIGKILL)
        run.wait()
    assert run.returncode == ExitCode.FAILED, output
    assert "stopped by SIGTERM" in output
    result = read_result(out / "result.json")
    assert result.verdict is Verdict.FAIL
    assert result.metrics["lives"] > 0

"""``assay faults replay``: a file of the simulator on real processes, without what cannot be there."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
import yaml
from typer.testing import CliRunner

from assay.faults import cli
from assay.faults.cli import PASSED, USAGE, app
from assay.faults.fault_kinds import FaultKind
from assay.faults.runner import RunOptions
from assay.faults.scenario import Scenario, ScenarioWorld
from assay.reference_broker.trace.results import RunKind, RunResult, Verdict

FOUND = {
    "name": "found",
    "worlds": ["sim"],
    "buggify": True,
    "delays": {"network_s": [0.001, 0.001]},
    "workload": [{"queue": "q"}],
    "faults": [
        {"at_s": 0.1, "kind": "stop", "for_s": 0.1},
        {"at_s": 0.2, "kind": "power_loss", "for_s": 0.1},
        {"at_s": 0.3, "kind": "crash", "call": "sync", "nth": 3},
    ],
    "contract": {"delivery_timeout_s": 1.0},
}


@pytest.fixture
def played(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Scenario, RunOptions]]:
    seen: list[tuple[Scenario, RunOptions]] = []

    def run(scenario: Scenario, options: RunOptions, _progress: object) -> RunResult:
        seen.append((scenario, options))
        return RunResult(kind=RunKind.FAULTS, name=scenario.name, verdict=Verdict.PASS, summary="fine")

    monkeypatch.setattr(cli, "run_scenario", run)
    return seen


def test_what_cannot_be_made_is_named_with_the_reason(
    tmp_path: Path, played: list[tuple[Scenario, RunOptions]]
) -> None:
    path = tmp_path / "found.yaml"
    path.write_text(yaml.safe_dump(FOUND))
    done = CliRunner().invoke(app, ["replay", str(path)])
    text = " ".join(done.output.split())
    assert done.exit_code == USAGE
    assert "power_loss broker at 0.2 s cannot be made: nobody can take the power from a disk here" in text
    assert "crash broker in sync 3 at 0.3 s cannot be made: a real disk does not say when its nth call comes" in text
    assert "stop" not in text
    assert not played


def test_the_rest_is_played_with_the_same_seed(tmp_path: Path, played: list[tuple[Scenario, RunOptions]]) -> None:
    path = tmp_path / "found.yaml"
    path.write_text(yaml.safe_dump(FOUND))
    done = CliRunner().invoke(app, ["replay", str(path), "--seed", "7", "--leave-out"])
    assert done.exit_code == PASSED, done.output
    ((scenario, options),) = played
    assert [fault.kind for fault in scenario.faults] == [FaultKind.STOP]
    assert scenario.worlds == (ScenarioWorld.REAL,)
    assert not scenario.buggify
    assert scenario.delays == msgspec.convert({}, type(scenario.delays))
    assert options.seed == 7
    assert options.command == f"assay faults replay {path} --seed 7 --leave-out"

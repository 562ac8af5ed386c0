"""What the hunt leaves for people: records that can be made again, tests, diagrams, coverage."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
from typer.testing import CliRunner

from assay.faults.scenario import Fault, FaultKind, QueueWorkload, Scenario, ScenarioWorld, Topology, load_scenario
from assay.reference_broker.trace.results import RunKind, Severity, Verdict, read_result
from assay.reference_broker.trace.schema import Contract
from assay.sim.cli import app
from assay.sim.hunt.record import find_record, parse_record, to_yaml, write_scenario
from assay.sim.hunt.repro import outcome_of, pytest_file
from assay.sim.hunt.states import STATES
from assay.sim.space_time import read_space_time
from assay.sim.terminal import FOUND, PASSED

MUTANT = "queue-ack-not-persisted"
SMALL = Scenario(
    name="small",
    worlds=(ScenarioWorld.SIM,),
    topology=Topology(
        broker={"queues": {"defaults": {"partitions": 2, "delivery_timeout_s": 0.5, "retry": {"max_backoff_s": 0.2}}}}
    ),
    workload=(QueueWorkload(queue="tasks", messages_per_producer=30, rate_per_s=60.0, consumers_per_group=2),),
    faults=(Fault(at_s=0.3, kind=FaultKind.CRASH, for_s=0.1),),
    drain_timeout_s=10.0,
    drain_quiet_s=1.0,
    contract=Contract(delivery_timeout_s=0.5, max_deliveries=11),
)


@pytest.fixture
def small_file(tmp_path: Path) -> str:
    path = tmp_path / "small.yaml"
    write_scenario(path, SMALL, "for a test")
    return str(path)


def assay_sim(*words: str | Path) -> Any:
    return CliRunner().invoke(app, [str(word) for word in words], env={"COLUMNS": "200"})


@pytest.fixture
def explored(small_file: str, tmp_path: Path) -> Path:
    out = tmp_path / "explored"
    words = ["--seeds", "6", "--jobs", "1", "--stop-after", "0", "--schedule", "file", "--shrink-for-s", "0"]
    done = assay_sim("explore", small_file, "--mutant", MUTANT, *words, "--out", out)
    assert done.exit_code == FOUND, done.output
    return out


def test_an_exploration_leaves_one_record_for_each_class_of_findings(explored: Path) -> None:
    lines = [json.loads(line) for line in (explored / "seeds.jsonl").read_bytes().splitlines()]
    assert [line["seed"] for line in lines] == [1, 2, 3, 4, 5, 6]
    result = read_result(explored / "result.json")
    assert (result.kind, result.verdict) == (RunKind.SIM, Verdict.FAIL)
    assert result.metrics["runs"] == 6
    failing = [line for line in lines if line["verdict"] == "fail"]
    assert result.metrics["runs_fail"] == len(failing) > 1
    records = sorted((explored / "findings").glob("*.yaml"))
    assert len(records) == len(result.findings) == result.metrics["finding_classes"] < len(failing)
    assert {finding.severity for finding in result.findings} == {Severity.SAFETY}
    assert "crash" in result.findings[0].message, "the story of a message says what happened to it"


def test_a_record_is_made_again_and_a_change_is_told(explored: Path) -> None:
    path = explored / "findings" / "01.yaml"
    done = assay_sim("replay", path)
    assert done.exit_code == FOUND
    assert "the same run, down to its hash" in done.output
    record = find_record(str(path))
    path.write_text(to_yaml(msgspec.structs.replace(record, trace_hash="0" * 32), ""))
    assert "not the run that was recorded" in assay_sim("replay", path).output


def test_a_replay_tells_what_happened(explored: Path, tmp_path: Path) -> None:
    done = assay_sim("replay", explored / "findings" / "01.yaml", "--trace", "--out", tmp_path / "again")
    assert "crash broker begins" in done.output
    result = read_result(tmp_path / "again" / "result.json")
    assert set(result.artefacts) == {"history", "trace", "space_time"}
    told = read_space_time(tmp_path / "again" / result.artefacts["space_time"])
    value = next(finding.values[0] for finding in result.findings)
    assert [line.direction for line in told if line.decoded == f"publish {value}"] == ["send"]
    assert any(line.connection == "" and "crash" in line.decoded for line in told)


def test_shrinking_leaves_a_scenario_a_test_and_a_run(explored: Path, tmp_path: Path) -> None:
    out = tmp_path / "shrunk"
    done = assay_sim("shrink", explored / "findings" / "01.yaml", "--out", out, "--for-s", "30")
    assert done.exit_code == PASSED, done.output
    said = re.search(r"Shrunk to 1 faults and (\d+) operations", done.output)
    assert said is not None
    assert int(said[1]) <= 20
    small = load_scenario(out / "small-shrunk.yaml")
    assert len(small.faults) == 1
    assert small.workload[0].messages_per_producer <= 3
    assert small.delays.network_s == (0.0005, 0.0005), "no delay is left to chance"
    assert small.delays.stall_rate == 0.0
    test = out / "test_small-shrunk.py"
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-n",
        "0",
        "-p",
        "no:cacheprovider",
        "--rootdir",
        str(out),
        str(test),
    ]
    failing = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert failing.returncode == 1, failing.stdout
    assert "resurrection" in failing.stdout


def test_the_test_that_is_left_passes_without_the_bug(explored: Path) -> None:
    record = find_record(str(explored / "findings" / "01.yaml"))
    written: dict[str, str] = {}
    exec(pytest_file(record, 60), written)
    assert parse_record(written["RUN"]) == msgspec.structs.replace(record, trace_hash="")
    assert outcome_of(written["RUN"]).signature == record.signature
    assert not outcome_of(to_yaml(msgspec.structs.replace(record, mutants=()), "")).classes


def test_what_finds_nothing_does_not_shrink(small_file: str, tmp_path: Path) -> None:
    done = assay_sim("shrink", small_file, "--out", tmp_path / "nothing")
    assert done.exit_code == FOUND
    assert "nothing to shrink" in done.output


def test_coverage_names_what_was_reached_and_what_never_was(small_file: str, tmp_path: Path) -> None:
    words = ["--seeds", "3", "--jobs", "1", "--schedule", "file", "--out", tmp_path]
    done = assay_sim("coverage", small_file, *words)
    assert done.exit_code == PASSED, done.output
    found = json.loads((tmp_path / "coverage.json").read_bytes())
    assert [row["name"] for row in found["states"]] == [state.name for state in STATES]
    runs = {row["name"]: row["runs"] for row in found["states"]}
    assert runs["three-starts-in-a-second"] == 0
    assert runs["queue-full"] == 0
    assert runs["settlement-cut"] + runs["publish-cut-and-kept"] + runs["died-with-unsynced-messages"] > 0
    faults = {row["kind"]: row for row in found["faults"]}
    assert faults["crash"]["runs"] == 3
    assert faults["pause"]["runs"] == 0
    assert found["distinct_states"] > 10
    assert "never" in done.output

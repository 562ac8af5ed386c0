"""Many seeds, and small scenarios out of large ones."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from typer.testing import CliRunner

from assay.faults.scenario import (
    Fault,
    FaultKind,
    QueueWorkload,
    Scenario,
    ScenarioWorld,
    Settlement,
    Topology,
    load_scenario,
    parse_scenario,
)
from assay.reference_broker.trace.results import Verdict, read_result
from assay.reference_broker.trace.schema import Contract
from assay.sim.cli import app
from assay.sim.hunt.explore import explore, run_seed
from assay.sim.hunt.record import FindingRecord, to_yaml, write_scenario
from assay.sim.hunt.shrink import shrink
from assay.sim.terminal import FOUND, PASSED, USAGE

MUTANT = "queue-reject-discards"
BUSY = Scenario(
    name="busy",
    worlds=(ScenarioWorld.SIM,),
    topology=Topology(broker={"queues": {"defaults": {"partitions": 2, "delivery_timeout_s": 0.5}}}),
    workload=(
        QueueWorkload(
            queue="tasks",
            producers=2,
            messages_per_producer=30,
            rate_per_s=100.0,
            groups=("a", "b"),
            consumers_per_group=2,
            settlement=Settlement(ack=0.8, nack=0.05, reject=0.15),
        ),
    ),
    faults=(
        Fault(at_s=0.1, kind=FaultKind.LATENCY, for_s=0.2, target="clients", latency_ms=5),
        Fault(at_s=0.2, kind=FaultKind.CRASH, for_s=0.1),
        Fault(at_s=0.3, kind=FaultKind.RESET, target="consumers"),
    ),
    drain_timeout_s=10.0,
    drain_quiet_s=1.0,
    contract=Contract(delivery_timeout_s=0.5, max_deliveries=11),
)


def test_a_clean_broker_is_not_accused_and_each_seed_differs() -> None:
    found = explore(BUSY, first_seed=1, seeds=8)
    assert [outcome.seed for outcome in found.outcomes] == list(range(1, 9))
    assert found.having(Verdict.PASS) == found.outcomes, found.having(Verdict.FAIL, Verdict.UNKNOWN)
    assert len({outcome.trace_hash for outcome in found.outcomes}) == 8
    assert found.seeds_per_hour > 0


def test_several_processes_find_the_same() -> None:
    # In seed 3 a stalled sync lasts until the crash, and nobody rejects anything.
    alone = explore(BUSY, first_seed=4, seeds=4, mutants=(MUTANT,))
    together = explore(BUSY, first_seed=4, seeds=4, mutants=(MUTANT,), jobs=2)
    assert [outcome.trace_hash for outcome in alone.outcomes] == [outcome.trace_hash for outcome in together.outcomes]
    assert len(together.having(Verdict.FAIL)) == 4


def test_exploring_stops_after_enough_findings() -> None:
    found = explore(BUSY, first_seed=1, seeds=50, mutants=(MUTANT,), stop_after=2)
    assert len(found.having(Verdict.FAIL)) == 2
    assert len(found.outcomes) < 50


def test_a_failing_scenario_shrinks_to_its_essence() -> None:
    outcome = run_seed(BUSY, 1, (MUTANT,))
    assert outcome.verdict is Verdict.FAIL
    small = shrink(FindingRecord(scenario=BUSY, mutants=(MUTANT,), found=outcome.classes), budget_s=30.0)
    assert small is not None
    workload = small.scenario.workload[0]
    assert small.scenario.faults == ()
    assert workload.producers * workload.messages_per_producer <= 5
    assert len(workload.groups) == 1
    assert workload.settlement.nack == 0
    assert workload.settlement.reject > 0
    again = run_seed(small.scenario, small.scenario.seed, (MUTANT,))
    assert again.signature & outcome.signature
    assert run_seed(small.scenario, small.scenario.seed, ()).verdict is Verdict.PASS


def test_a_scenario_survives_being_written(tmp_path: Path) -> None:
    path = tmp_path / "sub" / "busy.yaml"
    write_scenario(path, BUSY, "first line\nsecond line")
    assert path.read_text().startswith("# first line\n# second line\nschema: assay.scenario/1\n")
    assert load_scenario(path) == parse_scenario(msgspec.to_builtins(BUSY))
    assert "publish_timeout_s" not in to_yaml(BUSY, "")


@pytest.fixture
def busy_file(tmp_path: Path) -> str:
    path = tmp_path / "busy.yaml"
    write_scenario(path, BUSY, "for a test")
    return str(path)


def test_the_command_runs_a_scenario(busy_file: str, tmp_path: Path) -> None:
    out = tmp_path / "out"
    done = CliRunner().invoke(app, ["run", busy_file, "--seed", "2", "--out", str(out)])
    assert done.exit_code == PASSED, done.output
    result = read_result(out / "result.json")
    assert str(result.metrics["trace_hash"]) in done.output
    assert result.command == f"assay sim run {busy_file} --seed 2"


def test_the_command_says_what_it_found(busy_file: str) -> None:
    done = CliRunner().invoke(app, ["run", busy_file, "--mutant", MUTANT])
    assert done.exit_code == FOUND
    assert "dlq_loss" in done.output


def test_the_command_explores_and_writes_the_shrunk_scenario(busy_file: str, tmp_path: Path) -> None:
    arguments = [
        "explore",
        busy_file,
        "--seeds",
        "3",
        "--jobs",
        "1",
        "--mutant",
        MUTANT,
        "--shrink-for-s",
        "5",
        "--schedule",
        "file",
    ]
    done = CliRunner().invoke(app, [*arguments, "--out", str(tmp_path)])
    assert done.exit_code == FOUND, done.output
    small = load_scenario(tmp_path / "busy-shrunk.yaml")
    assert run_seed(small, small.seed, (MUTANT,)).verdict is Verdict.FAIL


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["run", "no-such-scenario"], "unknown scenario"),
        (["run", "crash-restart", "--mutant", "no-such-mutant"], "unknown mutant"),
        (["explore", "no-such-scenario"], "unknown scenario"),
    ],
)
def test_wrong_usage_is_explained(arguments: list[str], text: str) -> None:
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == USAGE
    assert text in " ".join(done.output.split())


def test_the_list_names_scenarios_and_mutants() -> None:
    done = CliRunner().invoke(app, ["list"], env={"COLUMNS": "200"})
    assert done.exit_code == 0
    assert "power-loss" in done.output
    assert MUTANT in done.output

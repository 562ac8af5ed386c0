"""The bench of the simulator measures what it says, and its figures do not depend on who else uses the machine."""

from __future__ import annotations

from pathlib import Path

from typer.testing import CliRunner

from assay.loadtests.bench import simulation
from assay.loadtests.bench.cli import app
from assay.loadtests.bench.lines import checks, run_lines
from assay.loadtests.bench.simulation import quick_sim_plan, sim_lines
from assay.reference_broker.trace.results import Verdict, read_result


def test_the_command_measures_everything_and_judges_nothing_when_quick(tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["sim", "--quick", "--out", str(tmp_path)])
    assert done.exit_code == 0, done.output
    found = read_result(tmp_path / "result.json")
    assert found.checks == []
    assert {name.split(".")[0] for name in found.metrics} == {line.name for line in sim_lines(quick_sim_plan(1))}
    assert all(float(value) > 0 for value in found.metrics.values())


def test_every_call_of_kernel_and_simpy_is_made() -> None:
    for measure in (simulation.kernel_calls_per_s, simulation.simpy_calls_per_s):
        assert measure(simulation.WAITING + 1) > 0


def test_what_checkers_hold_for_an_event_does_not_grow_with_the_history() -> None:
    """Counted in bytes: ten times the events, the same for each."""
    small, large = (simulation.held_bytes(*simulation._queue_history(messages)) for messages in (300, 3_000))
    assert large < 1.5 * small + 50
    assert large < 400


def test_an_aim_that_is_missed_is_a_failure() -> None:
    line = next(line for line in sim_lines(quick_sim_plan(1)) if line.name == "checkers_memory")
    run = run_lines([line], 1, lambda text, share: None)
    # A short history is judged whole, and takes more than the aim allows.
    run.values[line.name][:] = [line.bound]
    assert checks(run)[line.name].verdict is Verdict.PASS
    run.values[line.name][:] = [1e6]
    assert checks(run)[line.name].verdict is Verdict.FAIL

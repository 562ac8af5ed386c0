"""What the hunt once found stays fixed: small scenarios and records, each with the seed that showed it."""

from __future__ import annotations

from pathlib import Path

import pytest

from assay.reference_broker.trace.results import Verdict
from assay.sim.hunt.explore import run_schedule
from assay.sim.hunt.record import find_record
from assay.sim.hunt.schedule import Schedule

FOUND = sorted((Path(__file__).parent / "found").glob("*.yaml"))


@pytest.mark.parametrize("path", FOUND, ids=lambda path: path.stem)
def test_it_is_not_found_again(path: Path) -> None:
    record = find_record(str(path))
    scenario = record.scenario
    schedule = Schedule(number=scenario.seed, scenario=scenario, variations=record.variations)
    outcome, _ = run_schedule(schedule, ())
    assert outcome.verdict is Verdict.PASS, outcome.message

"""What the hunt once found stays fixed: small scenarios, each with the seed that showed it."""

from __future__ import annotations

from pathlib import Path

import pytest

from assay.faults.scenario import load_scenario
from assay.reference_broker.trace.results import Verdict
from assay.sim.hunt.explore import run_seed

FOUND = sorted((Path(__file__).parent / "found").glob("*.yaml"))


@pytest.mark.parametrize("path", FOUND, ids=lambda path: path.stem)
def test_it_is_not_found_again(path: Path) -> None:
    scenario = load_scenario(path)
    outcome = run_seed(scenario, scenario.seed)
    assert outcome.verdict is Verdict.PASS, outcome.message

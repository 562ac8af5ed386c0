"""Planted anomalies of transactions, delays, priorities, groups and plain MQTT are found in histories of whole runs."""

from __future__ import annotations

import random
from functools import cache

import pytest

from assay.conformance.checkers import anomalies, build_tables
from assay.conformance.checkers.planting_workloads import PLANTERS, plant
from assay.faults.scenario import find_scenario
from assay.reference_broker.trace.results import Severity
from assay.reference_broker.trace.schema import HistoryEvent
from assay.sim.runner import simulate


@cache
def right(scenario: str, number: int) -> list[HistoryEvent]:
    """The history of a run of the reference broker."""
    outcome = simulate(find_scenario(scenario), number)
    assert outcome.findings == []
    return outcome.run.events


@pytest.mark.parametrize("anomaly", sorted(PLANTERS))
def test_a_planted_anomaly_is_always_found(anomaly: str) -> None:
    scenario, _ = PLANTERS[anomaly]
    contract = find_scenario(scenario).contract
    planted = 0
    for seed in range(4):
        rng = random.Random(f"{anomaly}/{seed}")
        # Not every run has room for each.
        tries = (plant(anomaly, rng, right(scenario, number)) for number in range(1, 6))
        broken = next((each for each in tries if each is not None), None)
        if broken is None:
            continue
        planted += 1
        rows = anomalies(build_tables(broken), contract)
        found = {row.anomaly for row in rows if row.severity is Severity.SAFETY}
        assert anomaly in found, f"seed {anomaly}/{seed}: found only {rows[:5]}"
    assert planted == 4, f"no room for {anomaly}"

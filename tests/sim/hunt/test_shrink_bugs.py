"""Planted bugs of the queues shrink to a few faults and operations, whatever large scenario found them."""

from __future__ import annotations

import time

import pytest

from assay.faults.scenario import find_scenario
from assay.sim.hunt.explore import run_seed
from assay.sim.hunt.record import record_of
from assay.sim.hunt.shrink import shrink


@pytest.mark.parametrize(
    ("mutant", "scenario"),
    [
        ("queue-recovery-cuts-too-much", "crash-restart"),
        ("queue-wrong-payload", "slow-consumer"),
        ("queue-dead-letters-early", "slow-consumer"),
    ],
)
def test_a_planted_bug_becomes_small(mutant: str, scenario: str) -> None:
    found = run_seed(find_scenario(scenario), 1, (mutant,))
    small = shrink(record_of(found, (mutant,)), budget_s=60.0, clock=time.process_time)
    assert small is not None
    assert len(small.scenario.faults) <= 3
    assert small.operations <= 20
    assert small.record.signature & found.signature
    assert small.scenario.delays.network_s is not None, "no latency is left to chance"
    clean = run_seed(small.scenario, small.scenario.seed)
    assert not clean.classes, "what is left is the planted bug"

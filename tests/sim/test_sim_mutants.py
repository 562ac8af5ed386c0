"""Planted bugs are caught in simulation; legal variations are not accused."""

from __future__ import annotations

import pytest

from assay.conformance.mutants import all_mutants
from assay.faults.scenario import find_scenario
from assay.reference_broker.trace.results import Verdict
from assay.sim.runner import simulate

CAUGHT = {
    "queue-confirms-before-sync": ("power-loss", {"A1", "F6", "A15"}),
    "queue-confirms-before-write": ("crash-restart", {"A1", "F6"}),
    "queue-recovery-cuts-too-much": ("crash-restart", {"A1", "F6"}),
    "queue-ack-not-persisted": ("crash-restart", {"A15"}),
    "queue-reject-discards": ("slow-consumer", {"A11"}),
    "queue-nack-settles": ("slow-consumer", {"F6"}),
    "queue-timeout-fires-early": ("slow-consumer", {"B3", "B6"}),
    "queue-key-ignored": ("flaky-network", {"D8"}),
    "queue-wrong-payload": ("slow-consumer", {"B1", "A1"}),
    "queue-delivers-to-two": ("slow-consumer", {"B6"}),
    "queue-dead-letters-early": ("slow-consumer", {"A12"}),
    "queue-lost-session-settles": ("flaky-network", {"F6", "A1"}),
}
"""Bug -> scenario, and the anomalies of which at least one must be found."""


def queue_mutants(*, legal: bool) -> list[str]:
    return [
        name
        for name, mutant in all_mutants().items()
        if mutant.apply.__module__ == "assay.conformance.mutants.queue" and mutant.legal is legal
    ]


def test_every_queue_bug_has_a_test() -> None:
    assert sorted(CAUGHT) == queue_mutants(legal=False)


@pytest.mark.parametrize("name", CAUGHT)
def test_a_planted_bug_is_caught(name: str) -> None:
    scenario, expected = CAUGHT[name]
    found: set[str] = set()
    for seed in (1, 2, 3):
        outcome = simulate(find_scenario(scenario), seed, mutants=(name,))
        found |= {anomaly for _, anomaly in outcome.signature}
        if found & expected:
            assert outcome.verdict is Verdict.FAIL
            return
    pytest.fail(f"{name} in {scenario}: expected one of {sorted(expected)}, found {sorted(found)}")


@pytest.mark.parametrize("name", queue_mutants(legal=True))
def test_a_legal_variation_is_not_accused(name: str) -> None:
    outcome = simulate(find_scenario("slow-consumer"), 1, mutants=(name,))
    assert outcome.verdict is Verdict.PASS, outcome.findings


def test_a_bug_of_the_sync_does_not_show_in_a_crash() -> None:
    """Near miss: what is in the operating system's cache survives kill -9."""
    outcome = simulate(find_scenario("crash-restart"), 1, mutants=("queue-confirms-before-sync",))
    assert outcome.verdict is Verdict.PASS, outcome.findings

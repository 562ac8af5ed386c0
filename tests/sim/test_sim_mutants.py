"""Planted bugs are caught in simulation; legal variations are not accused."""

from __future__ import annotations

import msgspec
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


CAUGHT_ELSEWHERE = {
    "queue-open-transaction-shows": ("transactions", {"E1"}),
    "queue-commit-of-one-part": ("transactions", {"A1"}),
    "queue-restart-commits-what-is-open": ("transactions", {"A10"}),
    "queue-delay-ignored": ("delays-priorities", {"D13"}),
    "queue-cancel-only-says-so": ("delays-priorities", {"A17"}),
    "queue-priority-ignored": ("delays-priorities", {"D10"}),
    "queue-latest-is-earliest": ("passing-groups", {"F14"}),
    "queue-deleted-group-comes-back": ("passing-groups", {"F14"}),
    "v5-offline-messages-dropped": ("mqtt-sessions", {"A1"}),
    "v5-session-present-always-0": ("mqtt-sessions", {"S1"}),
    "v5-session-never-expires": ("mqtt-sessions", {"S2"}),
    "v5-shared-goes-to-all": ("mqtt-sessions", {"B6"}),
    "v5-will-delay-ignored": ("mqtt-sessions", {"W3"}),
    "v5-will-published-after-disconnect": ("mqtt-sessions", {"W2"}),
    "v3-retained-first-stays": ("mqtt-flaky-network", {"R1"}),
    "v3-received-qos-2-forgotten": ("mqtt-flaky-network", {"B2"}),
    "v3-will-not-published": ("mqtt-flaky-network", {"W1"}),
}
"""Likewise, of bugs that conformance cases find as well: what queues settle is not all that may go wrong."""
CALM = {"v5-session-never-expires"}
"""A crash excuses these, so they are looked for without faults."""


def queue_mutants(*, legal: bool) -> list[str]:
    return [
        name
        for name, mutant in all_mutants().items()
        if mutant.apply.__module__ == "assay.conformance.mutants.queue" and mutant.legal is legal
    ]


def test_every_queue_bug_has_a_test() -> None:
    assert sorted(CAUGHT) == queue_mutants(legal=False)


@pytest.mark.parametrize("name", [*CAUGHT, *CAUGHT_ELSEWHERE])
def test_a_planted_bug_is_caught(name: str) -> None:
    scenario, expected = (CAUGHT | CAUGHT_ELSEWHERE)[name]
    loaded = find_scenario(scenario)
    if name in CALM:
        loaded = msgspec.structs.replace(loaded, faults=())
    found: set[str] = set()
    for seed in (1, 2, 3):
        outcome = simulate(loaded, seed, mutants=(name,))
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

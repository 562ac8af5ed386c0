"""Planted bugs of the queues shrink to a few faults and operations, whatever large scenario found them."""

from __future__ import annotations

import time
from typing import Final

import pytest

from assay.faults.scenario import find_scenario, parse_scenario
from assay.sim.hunt.explore import run_seed
from assay.sim.hunt.record import record_of
from assay.sim.hunt.shrink import shrink

_SNAPSHOT: Final = {
    "schema": "assay.scenario/1",
    "name": "small",
    "description": "A group writes a snapshot of itself after twenty operations.",
    "seed": 30,
    "worlds": ["sim"],
    "topology": {
        "broker": {
            "queues": {
                "configured": [
                    {
                        "name": "tasks",
                        "delivery_timeout_s": 0.5,
                        "retry": {"initial_backoff_s": 0.1, "max_backoff_s": 0.2},
                    }
                ]
            }
        }
    },
    "workload": [
        {
            "kind": "queue",
            "publish_timeout_s": 1.0,
            "keep_alive_s": 3,
            "payload_bytes": 0,
            "queue": "tasks",
            "messages_per_producer": 10,
            "rate_per_s": 120.0,
            "keys": 1,
            "groups": ["billing"],
            "process_s": [0.01, 0.01],
        }
    ],
    "faults": [{"at_s": 0.1, "kind": "power_loss", "for_s": 0.1}],
    "delays": {"network_s": [0.0005, 0.0005], "sync_s": [0.002, 0.002], "stall_rate": 0.0},
    "drain_timeout_s": 26.0,
    "drain_quiet_s": 1.8,
}
"""What was left of the bug's finding when no message could be spared."""


def test_few_messages_that_go_round_stand_for_many() -> None:
    """Ten were needed, and acknowledged twice, since the broker writes two operations down for each."""
    mutants = ("hunt-snapshot-unsynced",)
    found = run_seed(parse_scenario(_SNAPSHOT), 30, mutants)
    assert found.signature
    small = shrink(record_of(found, mutants), budget_s=60.0, clock=time.process_time)
    assert small is not None
    assert (len(small.scenario.faults), small.operations <= 20) == (1, True)
    assert small.record.signature & found.signature
    assert not run_seed(small.scenario, small.scenario.seed).classes, "what is left is the planted bug"


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

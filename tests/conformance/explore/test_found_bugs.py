"""Planted bugs of many kinds are found by lives that nobody wrote for them, shrunk, and booked on the right rule."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from conformance.explore.campaign import Campaign
from conformance.nursery import Nursery
from conformance.targets import load_target

SEED = 3
LIVES = 400
BUGS = {
    "v5-retain-as-published-ignored": ({"retain-flag"}, 3),
    "v3-overlap-takes-the-lowest-qos": ({"qos"}, 3),
    "v5-no-local-ignored": ({"no-local", "delivered-twice", "subscription-identifiers"}, 4),
    "v5-offline-messages-dropped": ({"queued-message-lost"}, 4),
    "v3-unacknowledged-not-resent": ({"unacknowledged-not-resent"}, 6),
    "v5-will-delay-ignored": ({"will-before-its-delay"}, 4),
    "v5-session-present-always-0": ({"session-lost"}, 4),
    "v5-retained-not-replaced": ({"retained-stale", "retained-unsent"}, 4),
    "v5-client-receive-maximum-ignored": ({"receive-maximum"}, 5),
    "v5-hash-misses-parent": ({"undelivered", "retained-unsent", "will-unsent", "subscription-identifiers", "qos"}, 4),
    "v3-deliveries-swapped": ({"order", "undelivered", "retained-unsent", "suback"}, 4),
    "v5-unsubscribe-ignored": ({"after-unsubscribe"}, 4),
}
"""Mutant to the kinds of finding that it is, and the most steps of the shrunk life."""


@pytest.fixture(scope="module")
def nursery() -> Iterator[Nursery]:
    with Nursery() as forking:
        yield forking


@pytest.mark.parametrize("mutant", BUGS)
def test_a_planted_bug_is_found(nursery: Nursery, mutant: str) -> None:
    rules, most_steps = BUGS[mutant]
    target = load_target("reference")
    with Campaign(target, mutant=mutant, nursery=nursery, patience_s=1.0, shrink_s=15.0) as campaign:
        found = campaign.explore(LIVES, SEED, max_findings=1)
    assert found.findings, f"seed {SEED}: {found.lives} lives found nothing"
    finding = found.findings[0]
    assert finding.counts, finding.replay
    assert finding.replay.rule in rules, finding.replay
    assert len(finding.replay.life.steps) <= most_steps, finding.replay

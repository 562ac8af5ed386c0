"""What the standards leave to a server is no finding: lives on brokers that use it, with restarts and moved clocks."""

from __future__ import annotations

import pytest

from assay.conformance.explore.campaign import Campaign
from assay.conformance.nursery import Nursery
from assay.conformance.self_check import EVERYONE
from assay.conformance.targets import load_target
from tests.conformance.explore.test_found_bugs import nursery as nursery

SEED = 5
LIVES = 12
SLOW = ("any-slow-answers", "any-late-acknowledgements", "any-says-little")
"""These wait on purpose, three seconds a life, and have a third of the lives."""


@pytest.mark.parametrize("group", [*EVERYONE, "v3-dollar-topics-end-the-connection", "taken-over-once-a-second"])
def test_a_legal_broker_is_not_accused(nursery: Nursery, group: str) -> None:
    lives = LIVES // 3 if group.startswith(SLOW) else LIVES
    with Campaign(load_target("reference"), mutant=group, nursery=nursery) as campaign:
        found = campaign.explore(lives, SEED, max_findings=1)
    assert found.lives >= lives
    assert [each.replay for each in found.findings if each.counts] == [], f"seed {SEED}"

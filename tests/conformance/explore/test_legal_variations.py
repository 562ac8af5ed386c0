"""What the standards leave to a server is no finding: lives on brokers that use it, with restarts and moved clocks."""

from __future__ import annotations

import pytest

from assay.conformance.explore.campaign import Campaign
from assay.conformance.explore.life import Burst, Client, FilterPlan, Life, Publish, Subscribe
from assay.conformance.nursery import Nursery
from assay.conformance.self_check import EVERYONE
from assay.conformance.targets import load_target
from tests.conformance.explore.test_found_bugs import nursery as nursery

SEED = 5
LIVES = 12
SLOW = ("any-slow-answers", "any-late-acknowledgements", "any-says-little")
"""These wait on purpose, three seconds a life, and have a third of the lives."""


GROUPS = (
    *(group for group, suites in EVERYONE.items() if "mqtt5" in suites),
    "v3-dollar-topics-end-the-connection",
    "taken-over-once-a-second",
)


@pytest.mark.parametrize("group", GROUPS)
def test_a_legal_broker_is_not_accused(nursery: Nursery, group: str) -> None:
    lives = LIVES // 3 if group.startswith(SLOW) else LIVES
    with Campaign(load_target("reference"), mutant=group, nursery=nursery) as campaign:
        found = campaign.explore(lives, SEED, max_findings=1)
    assert found.lives >= lives
    assert [each.replay for each in found.findings if each.counts] == [], f"seed {SEED}"


def test_a_broker_that_sends_one_at_a_time_may_take_its_time_for_each(nursery: Nursery) -> None:
    """All of it takes longer than anybody waits for the next."""
    sent = tuple(Publish(client=0, topic="assay/{t}/a", qos=1) for _ in range(24))
    life = Life(
        clients=(Client(), Client(receive_maximum=1)),
        steps=(Subscribe(client=1, filters=(FilterPlan(filter="assay/{t}/+", qos=1),)), Burst(publishes=sent)),
    )
    late_twice = "any-pingresp-first+any-qos-0-first"
    with Campaign(load_target("reference"), mutant=late_twice, nursery=nursery, patience_s=1.5) as campaign:
        campaign.play(life)

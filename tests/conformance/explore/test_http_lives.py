"""Lives of queues over HTTP on real brokers: the sound one is not accused, planted bugs are found and repeated."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from assay.conformance.explore.campaign import Campaign
from assay.conformance.explore.http.draw import drawn
from assay.conformance.explore.http.life import HttpReplay
from assay.conformance.explore.queues import life as plan
from assay.conformance.explore.queues.life import ConsumerPlan, GroupPlan, QueueLife, QueuePlan
from assay.conformance.explore.rules import ViolationError
from assay.conformance.nursery import Nursery
from assay.conformance.self_check import EVERYONE
from assay.conformance.targets import load_target
from tests.conformance.explore.test_found_bugs import nursery as nursery
from tests.conformance.explore.test_queue_lives import explore

SEED = 1
WHOLE = QueueLife(
    queues=(QueuePlan(max_retries=1),),
    groups=(GroupPlan(), GroupPlan(filter="eu/#"), GroupPlan(dead=True)),
    consumers=(ConsumerPlan(prefetch=4), ConsumerPlan(group=1), ConsumerPlan(group=2)),
    steps=(
        plan.Poll(waits=True),
        plan.Burst(publishes=tuple(plan.Publish(key="a", rich=bool(size), size_bytes=size) for size in (8, 0, 300))),
        plan.Burst(publishes=tuple(plan.Publish(route=route) for route in ("eu", "us")), together=True),
        plan.Poll(most=5),
        plan.Poll(consumer=1, most=5),
        plan.Settle(which=(0, 2)),
        plan.Settle(verb="release"),
        plan.Poll(),
        plan.Settle(verb="nack", delay_s=50),
        plan.Settle(which=(99,), first_receipt=True),
        plan.Look(),
        plan.Restart(amid=plan.Settle()),
        plan.Publish(delay_s=50),
        plan.Cancel(),
        plan.Poll(most=5),
        plan.Advance(seconds=90),
        plan.Poll(most=5),
        plan.Settle(verb="reject", which=(0, 1)),
        plan.Poll(consumer=2),
        plan.Replay(),
        plan.Poll(most=5, waits=True),
        plan.Leave(),
        plan.Change(setting="max_in_flight", value=1),
        plan.Purge(),
        plan.Publish(),
        plan.Poll(),
        plan.Reset(),
        plan.Reset(group=1),
    ),
)
"""A bit of everything."""
PLANTED = (
    *("http-accept-settles-nothing", "http-release-is-fail", "http-last-of-a-batch-lost", "http-prefetch-dropped"),
    *("http-consume-gives-all", "http-headers-dropped", "http-delay-of-fail-dropped", "http-places-of-publishes-lie"),
)


def test_the_sound_broker_is_not_accused(nursery: Nursery) -> None:
    with Campaign(load_target("reference"), game="http", nursery=nursery) as campaign:
        campaign.play(WHOLE)
        sent = " ".join(line.decoded for line in campaign.player.transcript() if line.direction == "send")
        found = campaign.explore(6, SEED, max_findings=1)
    for what in (
        "/consume",
        "accept",
        "release",
        '"fail"',
        "reject",
        "/leave",
        "/dlq/replay",
        "/reset",
        "/stats",
        "PATCH",
    ):
        assert what in sent, what
    assert found.lives >= 6
    assert [each.replay for each in found.findings if each.counts] == [], f"seed {SEED}"


@pytest.mark.parametrize("group", [name for name, suites in EVERYONE.items() if "http" in suites])
def test_a_legal_broker_is_not_accused(nursery: Nursery, group: str) -> None:
    """Answers that are late, in pieces, and the last of their connections; other words and members."""
    with Campaign(load_target("reference"), game="http", mutant=group, nursery=nursery) as campaign:
        campaign.play(WHOLE)
        found = campaign.explore(3, SEED, max_findings=1)
    assert found.lives >= 3
    assert [each.replay for each in found.findings if each.counts] == [], f"seed {SEED}"


@pytest.mark.parametrize("mutant", PLANTED)
def test_a_life_of_everything_shows_planted_bugs(nursery: Nursery, mutant: str) -> None:
    with (
        Campaign(load_target("reference"), game="http", mutant=mutant, nursery=nursery, patience_s=1.0) as campaign,
        pytest.raises(ViolationError),
    ):
        campaign.play(WHOLE)


def test_a_planted_bug_is_found_by_chance_and_the_sound_broker_passes_the_same_life(
    nursery: Nursery, tmp_path: Path
) -> None:
    planted = Campaign(
        load_target("reference"),
        game="http",
        mutant="http-accept-settles-nothing",
        nursery=nursery,
        patience_s=1.0,
        shrink_s=10.0,
    )
    with planted as campaign:
        (found,) = [each for each in campaign.explore(100, SEED, max_findings=1).findings if each.counts]
    assert isinstance(found.replay, HttpReplay)
    file = tmp_path / "found.json"
    file.write_bytes(msgspec.json.encode(found.replay))
    done = explore("--replay", str(file))
    assert done.exit_code == 0, done.output


def test_a_target_that_does_not_say_where_it_speaks_http_is_not_judged() -> None:
    done = explore("--http", "--target", "mosquitto")
    assert done.exit_code == 2
    assert "http_url" in done.output


def test_lives_are_drawn_alike_and_have_nothing_that_http_cannot_say() -> None:
    lives = [drawn(SEED, number, {"clock": True, "restart": True}) for number in range(30)]
    assert lives == [drawn(SEED, number, {"clock": True, "restart": True}) for number in range(30)]
    steps = [step for life in lives for step in life.steps]
    assert any(isinstance(step, plan.Poll) and step.waits for step in steps)
    assert any(isinstance(step, plan.Settle) and step.verb == "release" for step in steps)
    assert not any(isinstance(step, plan.Withhold | plan.Begin | plan.Numbered | plan.Join) for step in steps)

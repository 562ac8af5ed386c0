"""Lives of queues on real brokers: the sound one is not accused, planted bugs are found, shrunk and repeated."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from typer.testing import CliRunner, Result

from assay.conformance.cli import app
from assay.conformance.explore.campaign import Campaign
from assay.conformance.explore.queues import life as plan
from assay.conformance.explore.queues.life import ConsumerPlan, GroupPlan, QueueLife, QueuePlan, QueueReplay
from assay.conformance.explore.rules import ViolationError
from assay.conformance.nursery import Nursery
from assay.conformance.self_check import EVERYONE
from assay.conformance.targets import load_target
from assay.reference_broker.trace.results import Verdict, read_result
from tests.conformance.explore.test_campaign import broken_target
from tests.conformance.explore.test_found_bugs import nursery as nursery
from tests.conformance.explore.test_legal_variations import SLOW

runner = CliRunner(env={"COLUMNS": "200", "TERM": "dumb"})
SEED = 1
WHOLE = QueueLife(
    queues=(QueuePlan(max_retries=1),),
    groups=(GroupPlan(), GroupPlan(), GroupPlan(dead=True)),
    consumers=(ConsumerPlan(), ConsumerPlan(), ConsumerPlan(group=2)),
    steps=(
        plan.Join(),
        *(plan.Publish(key="a", rich=True, size_bytes=size) for size in (8, 0, 300, 70_000)),
        plan.Settle(which=(0, 2), form=plan.Form.OFFSETS),
        plan.Settle(verb="nack", delay_s=50),
        plan.Begin(),
        plan.Publish(transaction=True),
        plan.Settle(which=(1,), producer=0),
        plan.Restart(amid=plan.End()),
        plan.Publish(delay_s=50),
        plan.Cancel(),
        plan.Join(consumer=1),
        plan.Join(),
        plan.Advance(seconds=90),
        plan.Settle(verb="reject"),
        plan.Look(),
        plan.Leave(how=plan.Leaving.RESET),
        plan.Restart(),
        plan.Join(consumer=2),
    ),
)
"""A bit of everything."""
BEHIND_A_TRANSACTION = QueueLife(
    queues=(QueuePlan(),),
    groups=(GroupPlan(), GroupPlan(latest=True)),
    consumers=(ConsumerPlan(), ConsumerPlan(group=1)),
    steps=(plan.Begin(), plan.Publish(transaction=True), plan.Join(consumer=1)),
)
"""A group begins behind a message that is taken back later: its figures are as right before as after."""


LEGAL = (
    *(group for group, suites in EVERYONE.items() if "queue" in suites),
    "queue-retry-waits-longer+queue-one-batch-per-message+queue-due-read-singly+queue-turns-begin-with-the-last",
)


def explore(*arguments: str) -> Result:
    return runner.invoke(app, ["explore", *arguments])


def test_the_sound_broker_is_not_accused(tmp_path: Path) -> None:
    done = explore("--queues", "--examples", "12", "--seed", str(SEED), "--out", str(tmp_path))
    assert done.exit_code == 0, done.output
    assert read_result(tmp_path / "result.json").verdict is Verdict.PASS


def test_a_planted_bug_is_found_shrunk_and_repeated(nursery: Nursery, tmp_path: Path) -> None:
    mutant, file = "queue-ack-ignored", tmp_path / "found.json"
    # Time to shrink that a slow machine needs; any other has soon tried all that is smaller.
    with Campaign(
        load_target("reference"), game="queues", mutant=mutant, nursery=nursery, patience_s=1.0, shrink_s=30.0
    ) as campaign:
        (found,) = [each for each in campaign.explore(100, SEED, max_findings=1).findings if each.counts]
    assert isinstance(found.replay, QueueReplay)
    assert {"Q-ACK-1", "Q-LIFE-05", "Q-DLQ-09"} & set(found.replay.clauses), found.replay
    assert len(found.replay.life.steps) <= 10, found.replay
    sent = " ".join(line.decoded for line in found.transcript if line.direction == "send")
    assert "$ack" in sent or "PUBACK" in sent
    file.write_bytes(msgspec.json.encode(found.replay))
    target = broken_target(tmp_path, mutant, "queues = true")
    assert explore("--target", str(target), "--replay", str(file)).exit_code == 1
    assert explore("--replay", str(file)).exit_code == 0, "the sound broker passes the same life"


def test_a_broker_that_says_nothing_of_such_queues_is_not_judged() -> None:
    done = explore("--queues", "--target", "mosquitto")
    assert done.exit_code == 2
    assert "queues" in done.output


def test_a_life_of_everything_is_played_to_its_end(nursery: Nursery) -> None:
    with Campaign(load_target("reference"), game="queues", nursery=nursery) as campaign:
        campaign.play(WHOLE)
        sent = [line.decoded for line in campaign.player.transcript() if line.direction == "send"]
        campaign.play(BEHIND_A_TRANSACTION)
    for topic in ("$ack", "$nack", "$reject", "$txn/commit", "$cancel", "stats", "$dlq"):
        assert any(topic in text for text in sent), topic


@pytest.mark.parametrize("group", LEGAL)
def test_a_legal_broker_is_not_accused(nursery: Nursery, group: str) -> None:
    """Windows of one, answers in any order, what is late, turns that begin with anybody, waits that are longer."""
    lives = 1 if group.startswith(SLOW) else 5
    with Campaign(load_target("reference"), game="queues", mutant=group, nursery=nursery) as campaign:
        found = campaign.explore(lives, SEED, max_findings=1)
    assert found.lives >= lives
    assert [each.replay for each in found.findings if each.counts] == [], f"seed {SEED}"


@pytest.mark.parametrize("mutant", ["queue-ack-not-persisted", "queue-counts-not-persisted", "queue-ack-ignored"])
def test_the_same_life_on_broken_brokers(nursery: Nursery, mutant: str) -> None:
    with (
        Campaign(load_target("reference"), game="queues", mutant=mutant, nursery=nursery, patience_s=1.0) as campaign,
        pytest.raises(ViolationError),
    ):
        campaign.play(WHOLE)

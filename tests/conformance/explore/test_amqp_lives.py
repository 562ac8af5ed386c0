"""Lives of AMQP on real brokers: the sound one is not accused, planted bugs are found, findings can be repeated."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from typer.testing import CliRunner, Result

from assay.conformance.cli import app
from assay.conformance.explore.amqp import life as plan
from assay.conformance.explore.amqp.draw import drawn
from assay.conformance.explore.amqp.features import PROBED
from assay.conformance.explore.amqp.life import AmqpLife, AmqpReplay, ChannelPlan, ExchangePlan, QueuePlan
from assay.conformance.explore.amqp.rules import AmqpRule
from assay.conformance.explore.campaign import Campaign
from assay.conformance.explore.rules import ViolationError
from assay.conformance.nursery import Nursery
from assay.conformance.registry import load_statements
from assay.conformance.targets import load_target
from assay.reference_broker.trace.results import Verdict, read_result
from tests.conformance.explore.test_found_bugs import nursery as nursery

runner = CliRunner(env={"COLUMNS": "200", "TERM": "dumb"})
TARGET = "reference-amqp091"
WHOLE = AmqpLife(
    exchanges=(
        ExchangePlan(kind="topic", alternate=2),
        ExchangePlan(kind="headers", internal=True),
        ExchangePlan(kind="fanout", durable=False, auto_delete=True),
    ),
    queues=(
        QueuePlan(letters=-1, letter_queue=1, max_priority=4),
        QueuePlan(delivery_limit=1),
        QueuePlan(durable=False, exclusive=True, named_by_server=True),
        QueuePlan(durable=False, auto_delete=True, ttl_s=0),
        QueuePlan(max_length=2, overflow="reject-publish", expires_s=50),
    ),
    channels=(
        ChannelPlan(mode="confirm", prefetch=2),
        ChannelPlan(connection=1, mode="tx"),
        ChannelPlan(connection=1, prefetch=3, shared=2),
    ),
    steps=(
        plan.Bind(key="a.*"),
        plan.Bind(key="#", to_exchange=1),
        plan.Bind(exchange=1, queue=1, match="any-with-x", table=2),
        plan.Bind(exchange=2, queue=2, channel=2),
        plan.Publish(
            exchange=0, key="a.b", priority=2, rich=True, size_bytes=140_000, table=2, cc=("a.c",), bcc=("b",)
        ),
        plan.Publish(exchange=0, key="nowhere", mandatory=True),
        plan.Consume(),
        plan.Consume(channel=2, no_ack=True),
        plan.Burst(publishes=tuple(plan.Publish(priority=each) for each in (0, 9, 4, -1))),
        plan.Settle(verb="nack", multiple=True),
        plan.Settle(verb="reject", requeue=True),
        plan.Publish(channel=1, queue=1),
        plan.Get(channel=1, queue=1),
        plan.Settle(channel=1),
        plan.Rollback(channel=1),
        plan.Publish(channel=1, queue=4),
        plan.Commit(channel=1),
        plan.Restart(amid=plan.Settle(everything=True)),
        plan.Declare(queue=3, channel=2),
        plan.Consume(queue=3, channel=2, exclusive=True),
        plan.Publish(queue=3),
        plan.Recover(channel=2),
        plan.Cancel(channel=2),
        *(plan.Mistake(channel=2, what=what) for what in plan.MISTAKES),
        plan.Purge(queue=1),
        plan.Delete(queue=1, if_empty=True),
        plan.Qos(count=1, channel=2, shared=True),
        plan.Close(connection=True, channel=2),
        plan.Close(abrupt=True),
        plan.Advance(seconds=90),
        plan.Look(queue=4),
    ),
)
"""A bit of everything."""
BUGS = (
    "amqp-never-redelivered",
    "amqp-requeue-ignored",
    "amqp-direct-unbound-with-its-neighbours",
    "amqp-unbound-is-remembered",
    "amqp-deleted-queues-keep-what-they-knew",
)
"""Many of the first lives find them. As what they are seen first is a matter of time: a get, a consumer or the look at
the end may be the first to miss a requeued message that is gone."""


IN_ONE_LIFE = {
    "amqp-alternate-gets-all": 10,
    "amqp-deaths-counted-once": 150,
    "amqp-high-priorities-wrap": 8,
    "amqp-one-delivery-too-many": 74,
}
"""Slips that no life found once: a life of seed 1 that does, in one of three times on a machine that is busy."""


def explore(*arguments: str) -> Result:
    return runner.invoke(app, ["explore", *arguments])


def test_every_rule_cites_rules_that_the_registry_has() -> None:
    statements = load_statements("amqp091")
    cited = {clause for rule in AmqpRule for clause in rule.clauses(0)} | set(plan.CLAUSES.values())
    assert sorted(cited - statements.keys()) == []


def test_lives_do_not_depend_on_who_plays_them_and_features_that_are_missing_are_not_drawn() -> None:
    can = dict.fromkeys(("publisher_confirms", "exchange_exchange_bindings", "amqp-topic"), True)
    assert drawn(3, 5, can) == drawn(3, 5, dict(can))
    lives = [drawn(3, number, {}) for number in range(60)]
    assert {each.kind for life in lives for each in life.exchanges} <= {"direct", "fanout"}
    for life in lives:
        assert all(queue.ttl_s < 0 and not queue.max_length and queue.letters < -1 for queue in life.queues)
        assert all(channel.mode == "" for channel in life.channels)
        assert not any(isinstance(step, plan.Restart | plan.Advance) for step in life.steps)


def test_a_life_is_what_its_file_says() -> None:
    data = msgspec.json.encode(WHOLE)
    assert msgspec.json.decode(data, type=AmqpLife) == WHOLE
    assert len(plan.story(WHOLE)) == len((*WHOLE.exchanges, *WHOLE.queues, *WHOLE.channels, *WHOLE.steps))


@pytest.mark.timeout(200)
def test_the_sound_broker_is_not_accused(nursery: Nursery) -> None:
    seed = 4
    with Campaign(load_target(TARGET), game="amqp091", nursery=nursery, shrink_s=0.0) as campaign:
        assert campaign.capabilities[PROBED]
        campaign.play(WHOLE)
        found = campaign.explore(25, seed)
    assert [each.replay for each in found.findings if each.counts] == [], f"seed {seed}"


@pytest.fixture(scope="module")
def sound(nursery: Nursery) -> Iterator[Campaign]:
    with Campaign(load_target(TARGET), game="amqp091", nursery=nursery, shrink_s=0.0) as campaign:
        yield campaign


def _broken(nursery: Nursery, mutant: str) -> Campaign:
    return Campaign(load_target(TARGET), game="amqp091", mutant=mutant, nursery=nursery, patience_s=1.5, shrink_s=0.0)


def _is_found(campaign: Campaign, sound: Campaign, **search: Any) -> None:
    """A finding counts, and it is the broken broker's: the sound one passes the same life."""
    seed = 1
    found = campaign.explore(seed=seed, max_findings=1, **search)
    counting = [each.replay for each in found.findings if each.counts]
    assert counting, (
        f"seed {seed}: {found.lives} lives found nothing; doubts: {[each.replay for each in found.findings]}"
    )
    sound.play(counting[0].life)


@pytest.mark.timeout(400)
@pytest.mark.parametrize("mutant", BUGS)
def test_a_planted_bug_is_found(nursery: Nursery, sound: Campaign, mutant: str) -> None:
    with _broken(nursery, mutant) as campaign:
        _is_found(campaign, sound, examples=200)


@pytest.mark.timeout(200)
@pytest.mark.parametrize("mutant", IN_ONE_LIFE)
def test_a_slip_is_found_by_a_life(nursery: Nursery, sound: Campaign, mutant: str) -> None:
    with _broken(nursery, mutant) as campaign:
        _is_found(campaign, sound, examples=0, numbers=(IN_ONE_LIFE[mutant],) * 3)


@pytest.mark.timeout(200)
def test_a_finding_is_kept_and_can_be_played_again(tmp_path: Path) -> None:
    life = AmqpLife(
        queues=(QueuePlan(),),
        channels=(ChannelPlan(),),
        steps=(plan.Declare(), plan.Publish(), plan.Get(), plan.Recover(), plan.Get()),
    )
    replay = AmqpReplay(target=TARGET, rule="x", version=91, clauses=(), text="", seed=1, life=life)
    path = tmp_path / "life.json"
    path.write_bytes(msgspec.json.encode(replay))
    said = explore("--target", TARGET, "--replay", str(path), "--out", str(tmp_path / "out"))
    assert said.exit_code == 0, said.output
    assert read_result(tmp_path / "out" / "result.json").verdict is Verdict.PASS
    with (
        Nursery() as own,
        Campaign(load_target(TARGET), game="amqp091", mutant="amqp-never-redelivered", nursery=own) as campaign,
        pytest.raises(ViolationError) as raised,
    ):
        campaign.play(life)
    assert raised.value.rule is AmqpRule.NOT_REDELIVERED
    assert json.loads(path.read_text())["schema"] == plan.REPLAY_SCHEMA


def test_queues_and_amqp_are_different_lives() -> None:
    said = explore("--target", TARGET, "--queues", "--amqp091")
    assert said.exit_code == 2
    assert "different lives" in said.output

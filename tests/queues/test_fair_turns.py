"""Whose turn it is, against the rule said plainly: the smallest of those with room, looked for anew each time."""

from __future__ import annotations

import random

import pytest

from assay.reference_broker.queues.delivery.fair_turns import FairTurns, has_room
from assay.reference_broker.queues.groups.delivery import Delivery
from assay.reference_broker.queues.groups.pending import Consumer
from assay.reference_broker.queues.groups.subscribe_options import SubscribeOptions


def _refuse(_delivery: Delivery) -> bool:
    return False


def _drawn(rng: random.Random, number: int) -> Consumer:
    options = SubscribeOptions(priority=rng.choice((0, 0, 0, 3, -2)))
    consumer = Consumer("q", "g", f"c{number}", _refuse, options)
    consumer.limit = rng.randint(1, 4)
    consumer.in_flight = rng.randint(0, consumer.limit)
    consumer.served_at = rng.randint(0, 3)
    return consumer


def _expected(consumers: list[Consumer]) -> Consumer | None:
    ready = [(each, joined) for joined, each in enumerate(consumers) if each.active and not each.blocked and each.room]
    return min(
        ready,
        key=lambda pair: (-pair[0].options.priority, pair[0].in_flight, pair[0].served_at, pair[1]),
        default=(None, 0),
    )[0]


@pytest.mark.parametrize("seed", range(40))
def test_turns_go_as_the_rule_says_whatever_consumers_hold_and_lose(seed: int) -> None:
    rng = random.Random(seed)
    consumers = [_drawn(rng, number) for number in range(rng.randint(1, 9))]
    turns = FairTurns(consumers)
    for turn in range(10, 60):
        consumer = turns.next()
        assert consumer is _expected(consumers), (seed, turn)
        if consumer is None:
            return
        match rng.randrange(7):
            case 0:
                consumer.blocked = True
            case 1:
                consumer.active = False
            case 2:  # settled within its delivery: it has what it had, and was served
                consumer.served_at = turn
            case 3:  # it claimed what another one had
                consumer.in_flight += 1
            case _:
                consumer.in_flight += 1
                consumer.served_at = turn
    assert consumers, seed


@pytest.mark.parametrize("seed", range(40))
def test_equals_are_those_who_would_have_turns_before_all_others(seed: int) -> None:
    rng = random.Random(seed)
    consumers = [_drawn(rng, number) for number in range(rng.randint(1, 9))]
    for consumer in consumers:
        consumer.limit = 1_000
    equals, each = FairTurns(consumers).equals(len(consumers))
    turns = FairTurns(consumers)
    order: list[Consumer] = []
    while (consumer := turns.next()) is not None and len(order) < 100:
        order.append(consumer)
        consumer.in_flight += 1
        consumer.served_at = 10 + len(order)
    assert order[: len(equals)] == equals, seed
    rounds = next((at for at, one in enumerate(order) if one not in equals), len(order)) // len(equals)
    assert min(each, 100 // len(equals)) == rounds, seed
    assert FairTurns(consumers).equals(1) != ([], 0)
    assert len(FairTurns(consumers).equals(0)[0]) == 1


def test_room_is_for_who_is_there_has_not_said_no_and_holds_less_than_it_may() -> None:
    consumer = _drawn(random.Random(1), 1)
    consumer.limit, consumer.in_flight = 2, 1
    assert has_room(consumer)
    consumer.in_flight = 2
    assert not has_room(consumer)
    consumer.in_flight, consumer.blocked = 0, True
    assert not has_room(consumer)
    consumer.blocked, consumer.active = False, False
    assert not has_room(consumer)

"""The queue engine does what its oracle allows, whatever happens to it; the oracle stays small."""

from __future__ import annotations

import os
from pathlib import Path

import assay.sim.queue_model
from assay.sim.disk import Persistence
from assay.sim.queue_model.delaying import Delayer
from assay.sim.queue_model.life import QUEUE, QueueLife, Setup
from assay.sim.queue_model.machine import run
from assay.sim.queue_model.producing import Producer
from assay.sim.queue_model.resetting import reset
from tests.small_sizes import small_sizes

EXAMPLES = int(os.environ.get("ASSAY_QUEUE_EXAMPLES", "200"))
ORACLE_LINES = 400
TRANSACTION_LINES = 215


def test_the_oracle_is_small_and_knows_nothing_of_the_engine() -> None:
    folder = Path(assay.sim.queue_model.__file__).parent
    assert len(folder.joinpath("oracle.py").read_text(encoding="utf-8").splitlines()) <= ORACLE_LINES
    assert len(folder.joinpath("transactions.py").read_text(encoding="utf-8").splitlines()) <= TRANSACTION_LINES
    for name in ("oracle", "transactions", "delayed", "places", "state", "figures"):
        assert "reference_broker" not in folder.joinpath(f"{name}.py").read_text(encoding="utf-8")


def test_the_engine_does_what_the_oracle_allows() -> None:
    run(EXAMPLES, seed=5)


def test_what_is_remembered_or_read_at_once_changes_nothing_but_speed() -> None:
    with small_sizes():
        run(EXAMPLES // 4, seed=6)


def test_messages_that_fired_twice_are_not_told_apart_before_they_are_seen() -> None:
    """The group skipped the first of them and gets the second, which the oracle took for the first."""
    life = QueueLife(Setup(partitions=1))
    producer, delayer = Producer(life, "s"), Delayer(life)
    life.join(QUEUE, "g", "a")
    producer.init()
    life.rest()
    producer.begin(60.0)
    life.rest()
    # An open transaction hides what comes behind it.
    producer.publish(QUEUE, None, is_numbered=False)
    life.join(QUEUE, "h", "a")
    life.rest()
    delayer.publish(0.9)
    life.wait(1.0)
    life.rest()
    reset(life, QUEUE, "g", to_latest=True)
    life.rest()
    life.lose_power(Persistence.NONE)
    life.turn()
    life.drain()

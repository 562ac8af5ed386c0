"""A life over AMQP, and power or the process that fails before its disk operations: what was confirmed is there, a
commit is all or nothing, and what no start brings back does not come back.

Of the states that a power loss may leave a share is looked at; with shares of 1 all of them are, for minutes.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from assay.reference_broker.amqp091.service import Amqp091
from assay.reference_broker.amqp091.topology.records import Journal
from assay.reference_broker.amqp091.transactions import Commit
from assay.reference_broker.config import Durability
from assay.reference_broker.queues.transactions.commit_phases import CommitPhases
from assay.sim.amqp_life import AmqpLife, all_steps, examine
from assay.sim.power_cuts import WatchedDisk, power_cuts

SHARE = 0.12
_THOROUGH = 0.2
_POINTS = 0.25
"""Of the operations."""
Plant = Callable[[pytest.MonkeyPatch], None]


class _FoundError(Exception):
    """Something is wrong, and that is enough."""


def _complaints(durability: Durability, seed: int, share: float = SHARE, only: str = "") -> str:
    """What is wrong first at some points of a life, or at those of one step."""
    disk = WatchedDisk(random.Random(seed))
    life = AmqpLife(disk, durability)
    rng = random.Random(seed)
    seen: set[tuple[bytes, str]] = set()
    points = looked = 0

    def before() -> None:
        nonlocal points, looked
        points += 1
        step = "" if life.step is None else life.step.name
        if step != only if only else rng.random() >= _POINTS:
            return
        for cut in power_cuts(disk, f"{points}"):
            if durability is Durability.INTERVAL and cut.what != "everything":
                # What was written and not synced is promised over kill -9 alone.
                continue
            if rng.random() >= share or (cut.digest, step) in seen:
                continue
            seen.add((cut.digest, step))
            looked += 1
            state = examine(cut.boot(), durability, thoroughly=rng.random() < _THOROUGH)
            for each in life.complaints(state):
                raise _FoundError(f"operation {points}, {cut.what}: {each}")

    disk.before = before
    try:
        life.run(all_steps)
        before()
    except _FoundError as found:
        return str(found)
    assert points > 100
    assert looked > 15
    return ""


@pytest.mark.parametrize("durability", [Durability.FSYNC, Durability.INTERVAL])
def test_what_is_left_at_operations_of_a_life(durability: Durability) -> None:
    seed, share = 7, SHARE if durability is Durability.FSYNC else 1.0
    assert _complaints(durability, seed, share) == "", f"seed {seed}"


def _confirms_early(patch: pytest.MonkeyPatch) -> None:
    """A commit is answered before its decision is durable."""
    original = Commit._end

    def end(self: Commit, now: float) -> None:
        self._answer("tx.commit-ok")
        self._answer = lambda *_: None
        original(self, now)

    patch.setattr(Commit, "_end", end)


def _forgets_declarations(patch: pytest.MonkeyPatch) -> None:
    """A queue does not keep its own record."""
    patch.setattr("assay.reference_broker.amqp091.service._MOST_DECLARED", 0)


def _forgets_rejections(patch: pytest.MonkeyPatch) -> None:
    """A start takes what was rejected in a commit for acknowledged."""
    original = CommitPhases.resume

    def resume(self: CommitPhases, transaction: Any) -> None:
        transaction.settled.clear()
        original(self, transaction)

    patch.setattr(CommitPhases, "resume", resume)


def _each_by_itself(patch: pytest.MonkeyPatch) -> None:
    """The parts of a commit are done one by one, as they were."""

    def begin(self: Commit, now: float) -> None:
        left = 1

        def done(_error: object) -> None:
            nonlocal left
            left -= 1
            if not left:
                self._committed(None)

        for published in self._transaction.publishes:
            for queue in published.queues:
                left += 1
                self._enqueue(published, published.message, queue, done, now)
        for settlement in self._transaction.settlements:
            left += 1
            self._channel.consuming.carry_out(settlement, now, done)
        done(None)

    patch.setattr(Commit, "begin", begin)


def _deletes_in_two(patch: pytest.MonkeyPatch) -> None:
    """Bindings leave the log before their queue's end is durable."""
    original = Journal.delete

    def delete(self: Journal, key: bytes) -> None:
        self._holder = None
        original(self, key)

    patch.setattr(Journal, "delete", delete)


def _transient_queues_stay(patch: pytest.MonkeyPatch) -> None:
    original = Amqp091.declare

    def declare(self: Amqp091, vhost: Any, record: Any, **named: Any) -> None:
        original(self, vhost, record if record.exclusive_owner else _durable(record), **named)

    patch.setattr(Amqp091, "declare", declare)


def _durable(record: Any) -> Any:
    return type(record)(name=record.name, durable=True, arguments=record.arguments)


PLANTED: dict[str, tuple[Plant, str]] = {
    "commits are answered early": (_confirms_early, "commit"),
    "queues forget what they were declared as": (_forgets_declarations, "declare b"),
    "rejections are forgotten": (_forgets_rejections, "commit"),
    "the parts of a commit are done one by one": (_each_by_itself, "commit"),
    "bindings go before their queue": (_deletes_in_two, "delete a queue"),
    "transient queues stay": (_transient_queues_stay, "publish to both"),
}
"""Each with the step that shows it."""


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_bug_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    plant, step = PLANTED[name]
    plant(monkeypatch)
    assert _complaints(Durability.FSYNC, 7, 0.6, step), name

"""Mistakes that the models' checks refuse: each changes a part of a model from outside, for as long as it is planted.

``assay sim model run mm1 --mistake last-come-first-served`` must fail; the tests plant every one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, Final
from unittest.mock import patch

import msgspec
from simpy import Store

from assay.reference_broker.config import Assignor
from assay.reference_broker.queues.messages.lanes import LaneScheduler
from assay.sim.models import customers, failover, mm1, mmc, planning, rebalance, stations
from assay.sim.models.broker import BrokerWorld
from assay.sim.models.cluster_world import ClusterWorld
from assay.sim.models.model import ModelError
from assay.sim.models.raft_election import Election


class Mistake(msgspec.Struct, frozen=True, kw_only=True):
    """An error in a model, and the model whose check must refuse it."""

    name: str
    model: str
    what: str
    changes: Callable[[], list[Any]]
    """Patches, not yet applied."""


class _Stack(Store):
    """Gives the newest first."""

    def _do_get(self, event: Any) -> None:
        if self.items:
            event.succeed(self.items.pop())


def _one_by_one(self: stations.GroupCommit[Any]) -> list[Any]:
    return [self._waiting.popleft()]


def _late_comers_too(self: stations.GroupCommit[Any]) -> Iterator[Any]:
    """A sync also makes durable what came while it ran."""
    while True:
        if not self._waiting:
            self._wake = self.env.event()
            yield self._wake
        yield self.env.timeout(self._sync_s([]))
        self.syncs += 1
        for item in self._take():
            self.items += 1
            self._then(item)


def _alternating(self: Any, dry: Any, now: float, waiting_since: Any) -> tuple[int, int]:
    """Lanes in turn, whatever their weights."""
    ready = [lane for lane, is_dry in enumerate(dry) if not is_dry]
    if not ready:
        return -1, 0
    later = [lane for lane in ready if lane > max(range(len(dry)), key=lambda lane: self._served_at[lane])]
    return (later or ready)[0], 1


def _mean_only(self: customers.Customers, service_s: Any, mean_s: float) -> customers.Customers:
    return msgspec.structs.replace(self, service_s=service_s * 0 + mean_s, mean_service_s=mean_s)


def _served_alone(customers_: customers.Customers, servers: int) -> Any:
    """One server less."""
    return mm1.serve(customers_, max(1, servers - 1))


def _leader_alone(self: ClusterWorld, partition: Any) -> int:
    return int(partition.durable[partition.leader])


def _no_steps(self: ClusterWorld) -> Iterator[Any]:
    yield self.env.timeout(0)


MISTAKES: Final = {
    mistake.name: mistake
    for mistake in (
        Mistake(
            name="last-come-first-served",
            model="mm1",
            what="the queue is a stack: the mean is right, p99 is not",
            changes=lambda: [patch.object(stations, "Store", _Stack)],
        ),
        Mistake(
            name="one-server-short",
            model="mmc",
            what="one server does not take part",
            changes=lambda: [patch.object(mmc, "serve", _served_alone)],
        ),
        Mistake(
            name="mean-service-time-only",
            model="mg1",
            what="every message takes the mean time",
            changes=lambda: [patch.object(customers.Customers, "served", _mean_only)],
        ),
        Mistake(
            name="lanes-in-turn",
            model="priority-lanes",
            what="the weights of lanes are not looked at",
            changes=lambda: [patch.object(LaneScheduler, "pick", _alternating)],
        ),
        Mistake(
            name="a-sync-for-each",
            model="group-commit",
            what="a sync takes one message only",
            changes=lambda: [patch.object(stations.GroupCommit, "_take", _one_by_one)],
        ),
        Mistake(
            name="a-running-sync-takes-late-comers",
            model="group-commit",
            what="what comes while a sync runs is durable when it ends",
            changes=lambda: [patch.object(stations.GroupCommit, "_commit", _late_comers_too)],
        ),
        Mistake(
            name="acknowledges-what-followers-lack",
            model="cluster",
            what="acks all are given as soon as the leader has it",
            changes=lambda: [patch.object(ClusterWorld, "committed", _leader_alone)],
        ),
        Mistake(
            name="slow-followers-stay-in-sync",
            model="cluster",
            what="a follower behind the limit stays an in-sync replica",
            changes=lambda: [patch.object(ClusterWorld, "_shrink", _no_steps)],
        ),
        Mistake(
            name="plans-for-the-median",
            model="planning",
            what="the number of nodes keeps the bound for half of the messages",
            changes=lambda: [patch.object(planning, "_PLANNED", 0.5)],
        ),
        Mistake(
            name="a-turn-for-each",
            model="broker",
            what="a turn handles one packet",
            changes=lambda: [patch.object(BrokerWorld, "take_turn", lambda self: [self._waiting.popleft()])],
        ),
        Mistake(
            name="confirms-before-the-sync",
            model="broker",
            what="a confirm is given when its sync begins",
            changes=lambda: [patch.object(stations.GroupCommit, "put", lambda self, item: self._then(item))],
        ),
        Mistake(
            name="votes-for-everybody",
            model="raft",
            what="a voter gives its vote to all who ask in a term: votes never split",
            changes=lambda: [patch.object(Election, "grants", lambda _self, _voter, _term: True)],
        ),
        *(
            Mistake(
                name=f"{model}-waits-for-the-last-follower",
                model=model,
                what="the leader is the follower whose time is up last",
                changes=lambda: [patch.object(failover, "min", max, create=True)],
            )
            for model in ("nats", "rabbitmq", "own-cluster")
        ),
        Mistake(
            name="sticky-in-name-only",
            model="rebalance",
            what="the cooperative protocol assigns ranges anew",
            changes=lambda: [patch.dict(rebalance.ASSIGNORS, cooperative=Assignor.RANGE)],
        ),
    )
}


@contextmanager
def planted(name: str, model: str) -> Iterator[None]:
    """Make the mistake for a while. Raises :class:`ModelError` when there is none of that name for the model."""
    mistake = MISTAKES.get(name)
    if mistake is None or mistake.model != model:
        known = ", ".join(other.name for other in MISTAKES.values() if other.model == model)
        message = f"there is no mistake {name!r} for {model}: use {known or 'none, it has none'}"
        raise ModelError(message)
    with ExitStack() as stack:
        for change in mistake.changes():
            stack.enter_context(change)
        yield

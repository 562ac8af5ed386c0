"""How the partitions of a group change hands when its consumers change.

Requests only note that something changed; the next turn works with whoever is a member by then. So a burst of joins
and leaves, also one during a rebalance, ends in the assignment of the final membership.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from assay.reference_broker.config import GroupConfig, RebalanceProtocol
from assay.reference_broker.queues.groups.assignment import Assignment, assign
from assay.reference_broker.queues.groups.pending import AssignmentEvent, EntryState
from assay.reference_broker.queues.jobs.agenda import NEVER

if TYPE_CHECKING:
    from collections.abc import Iterable

    from assay.reference_broker.queues.groups.group_state import GroupState
    from assay.reference_broker.queues.groups.pending import Consumer, GroupPartition, PendingEntry


class Move:
    """A partition that is revoked from a consumer and not handed over yet."""

    __slots__ = ("consumer", "deadline", "unsettled")

    def __init__(self, consumer: Consumer, unsettled: int, deadline: float) -> None:
        self.consumer = consumer
        self.unsettled = unsettled
        """Deliveries of it that the consumer still holds."""
        self.deadline = deadline


class Rebalance:
    """Who serves which partitions of one group. Owners are kept by partition number."""

    def __init__(self, group: GroupState) -> None:
        self._group = group
        self._config = group.config.group
        self.generation = 0
        """Grows with every request: what was decided by members of an earlier one is stale."""
        self.is_due = False
        """:meth:`run` has something to do."""
        self.moves: dict[GroupPartition, Move] = {}
        self._owners: list[Consumer | None] = []

    @property
    def deadline(self) -> float:
        """When the first move is carried out in any case."""
        return min((move.deadline for move in self.moves.values()), default=NEVER)

    @property
    def assignment(self) -> Assignment:
        """Consumer id -> partitions it serves now, those being revoked excluded; a copy."""
        return {
            consumer.consumer_id: tuple(place.index for place in consumer.places)
            for consumer in self._group.consumers.values()
        }

    def owner(self, partition: int) -> Consumer | None:
        """Whose partition it is, also while it is being revoked."""
        return self._owners[partition] if partition < len(self._owners) else None

    def reconfigure(self, config: GroupConfig) -> None:
        """Other settings hold from the next assignment on."""
        self._config = config

    def serves(self, consumer: Consumer, partition: int, now: float) -> bool:
        """The partition is the consumer's, also while it is being revoked, or everybody's."""
        if self.is_due:
            self.run(now)
        return not self._group.ordered or self.owner(partition) is consumer

    def request(self) -> None:
        """Consumers or partitions changed."""
        self.generation += 1
        self._due()

    def _due(self) -> None:
        self.is_due = True
        self._group.agenda.groups_to_serve[self._group] = None

    def released(self, consumer: Consumer, place: GroupPartition) -> None:
        """A consumer lets go of a delivery while partitions are moving."""
        move = self.moves.get(place.home)
        if move is not None and move.consumer is consumer:
            move.unsettled -= 1
            if not move.unsettled:
                self._due()

    def pass_time(self, now: float) -> None:
        """Take back what holds up moves that have waited long enough."""
        group = self._group
        for place, move in list(self.moves.items()):
            if move.deadline <= now and move.unsettled:
                for entry in _held(place, move.consumer):
                    group.retry(entry, now, now, "revoked")
                self._due()

    def run(self, now: float) -> None:
        """Bring the assignment in line with the members there are now, as far as moves allow."""
        self.is_due = False
        group = self._group
        if not group.ordered:
            self._share_all()
            return
        count = len(group.places)
        self._owners += [None] * (count - len(self._owners))
        targets = self.wanted_owners(count)
        cooperative = self._config.protocol is RebalanceProtocol.COOPERATIVE
        for index, place in enumerate(group.places):
            owner, target = self._owners[index], targets[index]
            if owner is target:
                # Also one that was to move and now stays after all.
                self.moves.pop(place, None)
            elif not cooperative or owner is None or not owner.active or self._is_free(place, owner, now):
                self.moves.pop(place, None)
                self._owners[index] = target
        self._hand_out(group.consumers.values())
        if self.moves:
            group.agenda.wake(group, self.deadline)

    def wanted_owners(self, count: int) -> list[Consumer | None]:
        """Who shall have each of ``count`` partitions, as the assignor says."""
        consumers = self._group.consumers
        previous: dict[str, list[int]] = {}
        for index, owner in enumerate(self._owners):
            if owner is not None:
                previous.setdefault(owner.consumer_id, []).append(index)
        targets: list[Consumer | None] = [None] * count
        for consumer_id, indexes in assign(self._config.assignor, count, consumers, previous).items():
            for index in indexes:
                targets[index] = consumers[consumer_id]
        return targets

    def _is_free(self, place: GroupPartition, owner: Consumer, now: float) -> bool:
        """Nothing of the place is with its owner; otherwise it starts to move."""
        move = self.moves.get(place)
        if move is None:
            unsettled = len(_held(place, owner))
            if unsettled:
                self.moves[place] = Move(owner, unsettled, now + self._config.rebalance_timeout_s)
            return not unsettled
        return not move.unsettled

    def _share_all(self) -> None:
        """Where no order counts everybody serves every partition, and nothing has to move."""
        places = self._group.places[:]
        for consumer in self._group.consumers.values():
            before, consumer.places = consumer.places, places
            if consumer.notify is not None:
                consumer.notify(self.event(consumer, before))

    def _hand_out(self, consumers: Iterable[Consumer]) -> None:
        served: dict[Consumer, list[GroupPartition]] = {consumer: [] for consumer in consumers}
        for place, owner in zip(self._group.places, self._owners, strict=True):
            if owner is not None and place not in self.moves:
                served[owner].append(place)
        for consumer, places in served.items():
            before, consumer.places = consumer.places, places
            if consumer.notify is not None:
                consumer.notify(self.event(consumer, before))

    def event(self, consumer: Consumer, before: Iterable[GroupPartition] | None = None) -> AssignmentEvent:
        """What a consumer serves now, and how that differs from before."""
        has = [place.index for place in consumer.places]
        had = has if before is None else [place.index for place in before]
        return AssignmentEvent(
            queue=consumer.queue,
            group=consumer.group,
            consumer=consumer.consumer_id,
            generation=self.generation,
            partitions=tuple(has),
            assigned=tuple(index for index in has if index not in had),
            revoked=tuple(index for index in had if index not in has),
        )


def _held(place: GroupPartition, consumer: Consumer) -> list[PendingEntry]:
    return [
        entry
        for lane in place.lanes or (place,)
        for entry in lane.pending.values()
        if entry.consumer is consumer and entry.state is EntryState.DELIVERED
    ]

"""Bugs of groups, assignment and cursors, and legal variations of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any
from weakref import WeakKeyDictionary

import msgspec

from assay.conformance.mutants import Patch, mutant, variation
from assay.reference_broker.config import Assignor, RebalanceProtocol
from assay.reference_broker.mqtt.sessions import mqtt_broker, queue_consumers
from assay.reference_broker.queues.delivery import claims
from assay.reference_broker.queues.delivery.dispatcher import Dispatcher
from assay.reference_broker.queues.groups import cursors, group_details, subscribe_options
from assay.reference_broker.queues.groups import rebalance as rebalance_module
from assay.reference_broker.queues.groups.assignment import Assignment
from assay.reference_broker.queues.groups.cursors import resolve
from assay.reference_broker.queues.groups.group import ConsumerGroup
from assay.reference_broker.queues.groups.membership import Membership
from assay.reference_broker.queues.groups.pending import Consumer, EntryState, GroupPartition, PendingEntry
from assay.reference_broker.queues.groups.rebalance import Rebalance
from assay.reference_broker.queues.groups.subscribe_options import CursorKind, CursorPosition, SubscribeOptions
from assay.reference_broker.queues.jobs.errors import QueueError
from assay.reference_broker.queues.operations.group_operations import GroupOperations
from assay.reference_broker.queues.partitions.partition import QueuePartition
from assay.reference_broker.queues.queue import queue
from assay.reference_broker.storage.queue_store import GroupRemoval

_Call = Callable[..., Any]


# -- groups ------------------------------------------------------------------------------------------------------


@mutant("queue-default-group-whole-id", "a consumer that names no group joins one named like its whole client id")
def default_group(patch: Patch) -> None:
    patch.replace(mqtt_broker, "default_group", lambda client_id: client_id)


@mutant("queue-connected-members-need-heartbeats", "connected consumers need heartbeats, too")
def idle_removed(patch: Patch) -> None:
    def make(original: _Call) -> _Call:
        def join(self: ConsumerGroup, consumer_id: str, deliver: Any, now: float, *rest: Any) -> Consumer:
            consumer: Consumer = original(self, consumer_id, deliver, now, *rest)
            self.membership.expect_heartbeats(consumer, now)
            return consumer

        return join

    patch.wrap(ConsumerGroup, "join", make)


@mutant("queue-generations-ignored", "operations of old generations are served")
def generations_ignored(patch: Patch) -> None:
    patch.replace(Membership, "check", lambda self, consumer_id, generation: None)


@variation("queue-generations-in-twos", "generations grow by two")
def generations_in_twos(patch: Patch) -> None:
    def make(original: _Call) -> _Call:
        def request(self: Rebalance) -> None:
            self.generation += 1
            original(self)

        return request

    patch.wrap(Rebalance, "request", make)


@mutant(
    "queue-claim-leaves-the-owner", "who held a delivery that is claimed can still settle it, and the claimant cannot"
)
def claim_leaves_owner(patch: Patch) -> None:
    def make(original: _Call) -> _Call:
        def take_over(self: Dispatcher, entry: PendingEntry, consumer: Consumer, now: float) -> bool:
            holder = entry.consumer
            taken: bool = original(self, entry, consumer, now)
            if taken and entry.state is EntryState.DELIVERED:
                entry.consumer = holder
            return taken

        return take_over

    patch.wrap(Dispatcher, "take_over", make)


@mutant("queue-own-claims-need-room", "who holds as much as it may cannot claim what it holds itself")
def own_claims_need_room(patch: Patch) -> None:
    has_room = "if not _has_room(consumer, entry):"
    patch.rewrite(claims, "claim", has_room, f"{has_room[:-1]} or consumer.room <= 0:")


@mutant("queue-claim-skips-its-own", "a claim passes over what the claimant holds itself")
def claim_skips_own(patch: Patch) -> None:
    def make(original: _Call) -> _Call:
        def claim(group: ConsumerGroup, dispatcher: Dispatcher, consumer: Consumer, **wanted: Any) -> int:
            own = {
                id(entry): entry.claimed_at
                for place in group.every_place
                for entry in place.pending.values()
                if entry.consumer is consumer
            }
            for place in group.every_place:
                for entry in place.pending.values():
                    if id(entry) in own:
                        entry.claimed_at = float("inf")
            try:
                taken: int = original(group, dispatcher, consumer, **wanted)
            finally:
                for place in group.every_place:
                    for entry in place.pending.values():
                        if entry.claimed_at == float("inf"):
                            entry.claimed_at = own[id(entry)]
            return taken

        return claim

    patch.wrap(claims, "claim", make)


@mutant("queue-claims-newest-first", "a claim begins with the highest offset")
def newest_first(patch: Patch) -> None:
    def make(original: _Call) -> _Call:
        def idle(group: ConsumerGroup, since: float) -> Iterable[PendingEntry]:
            return iter(list(original(group, since))[::-1])

        return idle

    patch.wrap(claims, "idle_entries", make)


@mutant("queue-strangers-commit", "a commit is taken from everybody as from an administrator")
def strangers_commit(patch: Patch) -> None:
    def make(original: _Call) -> _Call:
        def commit(self: GroupOperations, *args: Any, consumer_id: str | None, **more: Any) -> int:
            done: int = original(self, *args, consumer_id=None, **more)
            return done

        return commit

    patch.wrap(GroupOperations, "commit", make)


@mutant("queue-auto-commits-what-was-sent", "automatic commit settles what was sent, whether it arrived or not")
def auto_sent(patch: Patch) -> None:
    def make(original: _Call) -> _Call:
        def commit(self: Membership, consumer: Consumer) -> None:
            group = self._group
            consumer.received = [
                (place.index, entry.offset)
                for place in group.every_place
                for entry in place.pending.values()
                if entry.consumer is consumer
            ]
            original(self, consumer)

        return commit

    patch.wrap(Membership, "commit", make)


@mutant("queue-auto-commit-forgotten", "automatic commit only happens when a consumer has half of what it may hold")
def auto_forgotten(patch: Patch) -> None:
    def make(original: _Call) -> _Call:
        def pass_time(self: Membership, now: float) -> None:
            self._commit_at = float("inf")
            original(self, now)

        return pass_time

    patch.wrap(Membership, "pass_time", make)


@variation("queue-auto-commit-at-once", "automatic commit does not wait for the interval")
def auto_at_once(patch: Patch) -> None:
    def make(original: _Call) -> _Call:
        def received(self: Membership, consumer: Consumer, partition: int, offset: int, now: float) -> None:
            original(self, consumer, partition, offset, now)
            if consumer.received:
                self.commit(consumer)

        return received

    patch.wrap(Membership, "received", make)


@mutant("queue-lag-counts-what-is-in-flight", "the lag of a partition includes what is with consumers")
def lag_in_flight(patch: Patch) -> None:
    def make(original: _Call) -> _Call:
        def partition(group: ConsumerGroup, place: GroupPartition, now: float) -> Any:
            found = original(group, place, now)
            return msgspec.structs.replace(found, lag=found.end - found.committed)

        return partition

    patch.wrap(group_details, "partition_details", make)


@mutant("queue-deleted-group-comes-back", "deleting a group leaves its log on the disk")
def group_comes_back(patch: Patch) -> None:
    patch.replace(GroupRemoval, "run", lambda self: None)


# -- assignment --------------------------------------------------------------------------------------------------


@mutant("queue-range-extra-first", "where ranges do not divide evenly the first consumers get one more: 4, 3, 3")
def extra_first(patch: Patch) -> None:
    def make(original: _Call) -> _Call:
        def assign(
            assignor: Assignor, partitions: int, consumers: Iterable[str], previous: Mapping[str, Iterable[int]]
        ) -> Assignment:
            ids = sorted(consumers)
            if assignor is not Assignor.RANGE or not ids:
                found: Assignment = original(assignor, partitions, ids, previous)
                return found
            share, extra = divmod(partitions, len(ids))
            assigned: Assignment = {}
            start = 0
            for index, consumer in enumerate(ids):
                end = start + share + (index < extra)
                assigned[consumer] = tuple(range(start, end))
                start = end
            return assigned

        return assign

    patch.wrap(rebalance_module, "assign", make)


@mutant("queue-told-nothing-without-an-order", "where no order counts nobody is told what it serves")
def told_nothing(patch: Patch) -> None:
    silently = "for each in group.consumers.values(): each.places = group.places[:]"
    patch.rewrite(Rebalance, "run", "self._share_all()", silently)


@mutant("queue-assignor-ignored", "partitions are always assigned by range")
def assignor_ignored(patch: Patch) -> None:
    def make(original: _Call) -> _Call:
        def assign(assignor: Assignor, *rest: Any) -> Assignment:
            found: Assignment = original(Assignor.RANGE, *rest)
            return found

        return assign

    patch.wrap(rebalance_module, "assign", make)


def _with_protocol(patch: Patch, protocol: RebalanceProtocol) -> None:
    def make(original: _Call) -> _Call:
        def run(self: Rebalance, now: float) -> None:
            self._config = msgspec.structs.replace(self._config, protocol=protocol)
            original(self, now)

        return run

    patch.wrap(Rebalance, "run", make)


@mutant("queue-cooperative-is-eager", "partitions are handed over at once although the queue says cooperative")
def cooperative_is_eager(patch: Patch) -> None:
    _with_protocol(patch, RebalanceProtocol.EAGER)


@mutant("queue-rebalance-waits-for-ever", "a revoked partition waits for its settlements however long they take")
def rebalance_waits(patch: Patch) -> None:
    patch.replace(Rebalance, "pass_time", lambda self, now: None)


@mutant("queue-eager-takes-back", "a rebalance takes what is in flight back from all consumers")
def eager_takes_back(patch: Patch) -> None:
    def make(original: _Call) -> _Call:
        def run(self: Rebalance, now: float) -> None:
            for place in self._group.every_place:
                for entry in list(place.pending.values()):
                    if entry.state is EntryState.DELIVERED:
                        self._group.retry(entry, now, now, "rebalance")
            original(self, now)

        return run

    patch.wrap(Rebalance, "run", make)


@mutant("queue-rebalance-dropped-while-moving", "who joins or leaves while partitions move is not taken into account")
def rebalance_dropped(patch: Patch) -> None:
    def make(original: _Call) -> _Call:
        def request(self: Rebalance) -> None:
            if self.moves:
                self.generation += 1
            else:
                original(self)

        return request

    def make_wanted(original: _Call) -> _Call:
        remembered: WeakKeyDictionary[Rebalance, list[Consumer | None]] = WeakKeyDictionary()

        def wanted(self: Rebalance, count: int) -> list[Consumer | None]:
            if self.moves and self in remembered:
                return [
                    target if target is None or target.active else self.owner(index)
                    for index, target in enumerate(remembered[self])
                ]
            found: list[Consumer | None] = original(self, count)
            remembered[self] = found
            return found

        return wanted

    patch.wrap(Rebalance, "request", make)
    patch.wrap(Rebalance, "wanted_owners", make_wanted)


# -- cursors -----------------------------------------------------------------------------------------------------


@mutant("queue-latest-is-earliest", "a group that asks for the latest message begins at the earliest")
def latest_is_earliest(patch: Patch) -> None:
    def make(original: _Call) -> _Call:
        def found(position: CursorPosition, partition: QueuePartition, committed: int) -> int:
            if position.kind is CursorKind.LATEST:
                return partition.head
            offset: int = original(position, partition, committed)
            return offset

        return found

    patch.wrap(cursors, "resolve", make)


@mutant("queue-cursor-time-is-late", "a time means the first message that is later")
def time_is_late(patch: Patch) -> None:
    def make(original: _Call) -> _Call:
        def found(position: CursorPosition, partition: QueuePartition, committed: int) -> int:
            if position.kind is CursorKind.TIME:
                position = msgspec.structs.replace(position, value=position.value + 1)
            offset: int = original(position, partition, committed)
            return offset

        return found

    patch.wrap(cursors, "resolve", make)


@mutant("queue-cursor-moves-any-group", "a cursor also moves a group that has a position")
def moves_any_group(patch: Patch) -> None:
    def make(original: _Call) -> _Call:
        def group(
            self: queue.DurableQueue, name: str, pattern: str, position: CursorPosition | None = None, **options: Any
        ) -> Any:
            known = name in self.groups
            found = original(self, name, pattern, position, **options)
            if known and position is not None:
                cursors.reset(found, position, found.places, None)
            return found

        return group

    patch.wrap(queue.DurableQueue, "group", make)


@mutant("queue-subscribe-options-lenient", "options of a subscription that cannot be read are ignored")
def options_lenient(patch: Patch) -> None:
    def make(original: _Call) -> _Call:
        def parse(properties: Iterable[tuple[str, str]]) -> SubscribeOptions:
            try:
                found: SubscribeOptions = original(properties)
            except QueueError:
                return subscribe_options.DEFAULT_OPTIONS
            return found

        return parse

    patch.wrap(queue_consumers, "parse_subscribe_options", make)


@mutant("queue-commit-goes-anywhere", "a commit is not held against what is committed and what was delivered")
def commit_anywhere(patch: Patch) -> None:
    def make(original: _Call) -> _Call:
        def commit(group: ConsumerGroup, partition: int, offset: int, *rest: Any) -> int:
            place = group.places[partition]
            bounded = min(max(offset, group.low(partition)), place.cursor)
            settled: int = original(group, partition, bounded, *rest)
            return settled

        return commit

    patch.wrap(cursors, "commit", make)


@mutant("queue-anybody-commits", "any consumer of a group may commit any partition")
def anybody_commits(patch: Patch) -> None:
    patch.replace(Rebalance, "serves", lambda self, consumer, partition, now: True)


@mutant("queue-reset-keeps-what-is-in-flight", "a reset moves the cursor and leaves what is in flight as it is")
def reset_keeps(patch: Patch) -> None:
    def make(original: _Call) -> _Call:
        def reset(
            group: ConsumerGroup, position: CursorPosition, places: Iterable[GroupPartition], on_done: Any
        ) -> None:
            for place in places:
                place.cursor = resolve(position, place.partition, group.low(place.index))
                group.log.move_cursor(place.number, place.cursor)
            group.recount()
            group.agenda.groups_to_serve[group] = None
            group.confirm_when_written(on_done)

        return reset

    patch.wrap(cursors, "reset", make)


@mutant("queue-group-deleted-under-a-transaction", "a group is deleted although a transaction has acknowledged in it")
def group_under_a_transaction(patch: Patch) -> None:
    patch.replace(ConsumerGroup, "is_committing", False)

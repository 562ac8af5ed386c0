"""Bugs of priorities and limits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from assay.conformance.mutants import Patch, mutant
from assay.reference_broker.config import GroupConfig
from assay.reference_broker.mqtt.queue_topics import publish_properties
from assay.reference_broker.mqtt.sessions import mqtt_broker
from assay.reference_broker.mqtt.sessions.mqtt_broker import MqttBroker
from assay.reference_broker.queues.dead_letters.undelivered import UndeliveredLetters
from assay.reference_broker.queues.delivery.dispatcher import Dispatcher
from assay.reference_broker.queues.engine import QueueEngine
from assay.reference_broker.queues.groups.contents import QueueContents
from assay.reference_broker.queues.groups.delivery import Delivery
from assay.reference_broker.queues.groups.group import ConsumerGroup
from assay.reference_broker.queues.groups.pending import EntryState, GroupPartition, PendingEntry
from assay.reference_broker.queues.groups.slow_consumers import SlowConsumers
from assay.reference_broker.queues.jobs.errors import QueueError
from assay.reference_broker.queues.limits import limits
from assay.reference_broker.queues.limits.limits import QueueLimits
from assay.reference_broker.queues.limits.time_to_live import TimeToLive
from assay.reference_broker.queues.messages.lanes import LANES, NORMAL, LaneScheduler, PartitionLanes
from assay.reference_broker.queues.messages.publish_options import PublishOptions
from assay.reference_broker.queues.partitions.departures import Departures
from assay.reference_broker.queues.partitions.partition import QueuePartition
from assay.reference_broker.queues.queue import enqueue_path as intake
from assay.reference_broker.queues.queue import priority_figures
from assay.reference_broker.queues.queue.queue import DurableQueue
from assay.reference_broker.queues.registry.registry import QueueRegistry
from assay.reference_broker.routing.message import Message
from assay.reference_broker.storage import log


def _nothing(*_args: object, **_fields: object) -> None:
    return None


@mutant("queue-priority-ignored", "priorities are accepted and all messages take one lane")
def priority_ignored(patch: Patch) -> None:
    patch.replace(DurableQueue, "lane_of", lambda _self, _message, _priority: NORMAL)


@mutant("queue-departures-forgotten", "what left without a group that knows it is remembered until the broker stops")
def departures_forgotten(patch: Patch) -> None:
    patch.replace(Departures, "add", _nothing)


@mutant(
    "queue-dropped-behind-one-in-flight-is-kept",
    "what a limit takes behind a message in flight is kept for other groups",
)
def dropped_is_kept(patch: Patch) -> None:
    patch.rewrite(QueueContents, "left", "elif not any(", "elif False and not any(")


@mutant(
    "queue-dropped-behind-one-in-flight-is-back", "what a limit took behind a message in flight is back after a start"
)
def dropped_is_back(patch: Patch) -> None:
    patch.rewrite(QueueContents, "left", "    self.departures.add(partition, offset, offset + 1)", "    return")


@mutant("queue-retention-counts-one-lane", "what retention takes is taken from a group's normal priority alone")
def retention_of_one_lane(patch: Patch) -> None:
    patch.rewrite(QueueLimits, "retain", "for lane in place.lanes or (place,):", "for lane in (place,):")


@mutant("queue-bad-options-ignored", "a publish option that cannot be read counts as not there")
def bad_options(patch: Patch) -> None:
    def make(original: Callable[..., PublishOptions | None]) -> Callable[..., PublishOptions | None]:
        def parse(properties: tuple[tuple[str, str], ...]) -> PublishOptions | None:
            try:
                return original(properties)
            except QueueError:
                return None

        return parse

    # As the broker knows it, and as it reads what is captured.
    patch.wrap(mqtt_broker, "parse_options", make)
    patch.wrap(publish_properties, "parse_options", make)
    patch.replace(intake, "with_ttl", lambda message, _ttl_ms, _now: message)


@mutant("queue-lanes-in-turn", "the scheduler goes to the next lane after every message, whatever the weights")
def lanes_in_turn(patch: Patch) -> None:
    def pick(self: LaneScheduler, dry: list[bool], now: float, waiting_since: object) -> tuple[int, int]:
        last = max(range(LANES), key=lambda lane: (self._served_at[lane], self._left[lane]))
        for step in range(1, LANES + 1):
            lane = (last + step) % LANES
            if not dry[lane]:
                self._left = [0] * LANES
                self._left[lane] = 2
                return lane, 1
        return -1, 0

    patch.replace(LaneScheduler, "pick", pick)


@mutant("queue-lanes-strictly-by-priority", "a less urgent lane is served only when all more urgent ones are empty")
def lanes_strict(patch: Patch) -> None:
    def pick(self: LaneScheduler, dry: list[bool], now: float, waiting_since: object) -> tuple[int, int]:
        return next(((lane, 50) for lane in range(LANES) if not dry[lane]), (-1, 0))

    patch.replace(LaneScheduler, "pick", pick)


@mutant("queue-lanes-starve", "nobody looks whether a lane has waited for too long")
def lanes_starve(patch: Patch) -> None:
    patch.replace(LaneScheduler, "starving", lambda *_args: -1)


@mutant("queue-lanes-lose-messages", "now and then a message is not entered in the list of its lane")
def lanes_lose(patch: Patch) -> None:
    def make(original: Callable[[PartitionLanes, int, int], None]) -> Callable[[PartitionLanes, int, int], None]:
        def add(self: PartitionLanes, offset: int, lane: int) -> None:
            original(self, offset, lane)
            if offset % 7 == 6:
                self._by_lane[lane].pop()

        return add

    patch.wrap(PartitionLanes, "add", make)


@mutant("queue-retries-come-last", "a message that is retried waits behind those never delivered")
def retries_last(patch: Patch) -> None:
    def make(original: Callable[..., None]) -> Callable[..., None]:
        def push_waiting(self: GroupPartition, entry: PendingEntry) -> None:
            entry.deadline += 3_600.0
            original(self, entry)

        return push_waiting

    patch.wrap(GroupPartition, "push_waiting", make)
    patch.replace(GroupPartition, "holds_back", property(lambda _self: False))


@mutant("queue-strict-with-lanes", "priorities reorder the messages of a strictly ordered queue")
def strict_with_lanes(patch: Patch) -> None:
    def make(original: Callable[..., None]) -> Callable[..., None]:
        def build(self: DurableQueue, *args: Any, **fields: Any) -> None:
            original(self, *args, **fields)
            self._has_priorities = True

        return build

    patch.wrap(DurableQueue, "__init__", make)


@mutant("queue-figures-of-one-lane", "the figures per priority show everything as normal")
def figures_of_one_lane(patch: Patch) -> None:
    def make(original: Callable[..., list[int]]) -> Callable[..., list[int]]:
        def counted(*args: object) -> list[int]:
            return [sum(original(*args)) if lane == NORMAL else 0 for lane in range(LANES)]

        return counted

    patch.wrap(priority_figures, "ready_by_lane", make)
    patch.wrap(priority_figures, "in_flight_by_lane", make)


@mutant("queue-depth-unlimited", "max_depth is configured and never applied")
def depth_unlimited(patch: Patch) -> None:
    patch.replace(QueueLimits, "make_room", _nothing)


@mutant("queue-groups-unlimited", "max_groups is configured and never applied")
def groups_unlimited(patch: Patch) -> None:
    patch.replace(QueueRegistry, "check_group_room", _nothing)


def _with_config(patch: Patch, owner: type[DurableQueue] | type[ConsumerGroup], **changes: Any) -> None:
    def make(original: Callable[..., None]) -> Callable[..., None]:
        def build(self: DurableQueue | ConsumerGroup, *args: Any, **fields: Any) -> None:
            original(self, *args, **fields)
            self.config = msgspec.structs.replace(self.config, **changes)

        return build

    patch.wrap(owner, "__init__", make)


@mutant("queue-own-groups-unlimited", "max_groups of a queue is configured and never applied")
def own_groups_unlimited(patch: Patch) -> None:
    _with_config(patch, DurableQueue, max_groups=1_000)


@mutant("queue-group-consumers-unlimited", "max_consumers of a group is configured and never applied")
def group_consumers_unlimited(patch: Patch) -> None:
    _with_config(patch, ConsumerGroup, group=GroupConfig())


@mutant("queue-bytes-unlimited", "max_bytes is configured and never applied")
def bytes_unlimited(patch: Patch) -> None:
    patch.replace(QueueLimits, "make_byte_room", _nothing)


@mutant("queue-limits-count-what-is-held", "what a consumer holds counts against limits that are on what is ready")
def limits_count_held(patch: Patch) -> None:
    def make(original: Callable[..., int]) -> Callable[..., int]:
        def staying_of(self: QueueContents, group: ConsumerGroup) -> int:
            return self.end_total - group.cursor_total + group.unsettled - group.leaving

        return staying_of

    patch.wrap(QueueContents, "staying_of", make)


@mutant(
    "queue-drops-for-bytes-once-over", "a queue gives up messages for its bytes only when it holds more than it may"
)
def drops_once_over(patch: Patch) -> None:
    counted = "self._counted_bytes_of(group)"
    patch.rewrite(QueueLimits, "drop_oldest", f"{counted} + size > limits.max_bytes", f"{counted} > limits.max_bytes")


@mutant("queue-refused-not-kept", "what a full queue refuses is no dead letter though its overflow says so")
def refused_not_kept(patch: Patch) -> None:
    patch.replace(DurableQueue, "bury", _nothing)


@mutant("queue-size-of-payload-only", "user properties do not count as part of a message")
def payload_only(patch: Patch) -> None:
    patch.replace(intake, "message_bytes", lambda message: len(message.payload))


@mutant("queue-overflow-rejects", "a full queue refuses although it is to drop its oldest message")
def overflow_rejects(patch: Patch) -> None:
    patch.replace(QueueLimits, "drop_oldest", lambda *_args: False)


@mutant("queue-overflow-looks-at-one-partition", "a full queue drops the oldest message of its first partition alone")
def looks_at_one_partition(patch: Patch) -> None:
    def make(original: Callable[[QueuePartition], int]) -> Callable[[QueuePartition], int]:
        return lambda partition: original(partition) if partition.index == 0 else partition.log.start_offset

    patch.wrap(limits, "settled_end", make)


@mutant("queue-overflow-drops-what-is-in-flight", "a full queue drops its oldest message although a consumer holds it")
def drops_in_flight(patch: Patch) -> None:
    def make(original: Callable[..., None]) -> Callable[..., None]:
        def drop_one(self: QueueLimits, group: ConsumerGroup, now: float) -> None:
            for place in group.every_place:
                for entry in list(place.pending.values()):
                    if entry.state is EntryState.DELIVERED:
                        group.discard(entry, "dropped")
                        return
            original(self, group, now)

        return drop_one

    patch.wrap(QueueLimits, "drop_one", make)
    patch.replace(QueueLimits, "can_drop", lambda _self, _group: True)


@mutant("queue-overflow-drops-transactions", "a full queue drops its oldest message although its transaction is open")
def drops_transactions(patch: Patch) -> None:
    patch.replace(limits, "settled_end", lambda partition: partition.log.next_offset)


@mutant("queue-retention-passes-groups", "limits of retention delete what a group has not settled")
def retention_passes(patch: Patch) -> None:
    def make(original: Callable[..., int]) -> Callable[..., int]:
        def expired_count(segments: Any, policy: Any, *, needed_from: int | None, **fields: Any) -> int:
            return original(segments, policy, needed_from=None, **fields)

        return expired_count

    patch.wrap(log, "expired_count", make)


@mutant("queue-retention-never-comes", "limits of retention are configured and never applied")
def retention_never(patch: Patch) -> None:
    patch.replace(DurableQueue, "retain", lambda _self, _now: True)


@mutant("queue-overflow-without-dead-letters", "what a full queue gives up is dropped instead of dead-lettered")
def overflow_drops(patch: Patch) -> None:
    def make(original: Callable[..., None]) -> Callable[..., None]:
        def move(self: Any, *args: Any) -> None:
            if args[3] != "QUEUE_FULL":
                original(self, *args)

        return move

    patch.wrap(UndeliveredLetters, "move", make)


@mutant("queue-expiry-starts-anew", "the message expiry of a delivery is that of the publish")
def expiry_starts_anew(patch: Patch) -> None:
    def make(original: Callable[..., Message]) -> Callable[..., Message]:
        def delivery_message(self: MqttBroker, delivery: Delivery) -> Message:
            message = original(self, delivery)
            if message.expires_at:
                message.expires_at = self.now + 100
            return message

        return delivery_message

    patch.wrap(MqttBroker, "delivery_message", make)


@mutant("queue-ttl-ignored", "the user property ttl is accepted and has no effect")
def ttl_ignored(patch: Patch) -> None:
    patch.replace(intake, "with_ttl", lambda message, _ttl_ms, _now: message)


@mutant("queue-expires-at-delivery-only", "expired messages count until a consumer would be given them")
def at_delivery_only(patch: Patch) -> None:
    patch.replace(QueueLimits, "pass_time", _nothing)


@mutant("queue-expired-just-vanish", "expired messages are dropped although they are to become dead letters")
def just_vanish(patch: Patch) -> None:
    patch.replace(QueueLimits, "to_dead_letters", property(lambda _self: False))


@mutant("queue-retention-removes-unread", "retention deletes what no group needs, also when there is no group")
def removes_unread(patch: Patch) -> None:
    def make(original: Callable[[QueueEngine, float], None]) -> Callable[[QueueEngine, float], None]:
        def tick(self: QueueEngine, now: float) -> None:
            for found in self._queues.values():
                for partition in found.partitions if not found.groups else ():
                    if (stored := partition.cached.get(partition.head)) is not None and now - stored.enqueued_at > 300:
                        partition.head = partition.log.next_offset
            original(self, now)

        return tick

    patch.wrap(QueueEngine, "tick", make)


@mutant("queue-slow-consumers-stay", "nobody looks whether a consumer settles anything")
def slow_stay(patch: Patch) -> None:
    patch.replace(SlowConsumers, "pass_time", _nothing)


@mutant("queue-what-has-left-stays-on-disk", "what limits and time took from groups frees no segment")
def stays_on_disk(patch: Patch) -> None:
    patch.replace(TimeToLive, "trim_later", lambda self: None)


@mutant("queue-bytes-of-what-expired-stay", "the bytes of what a group did not get in time are counted as held")
def bytes_of_expired(patch: Patch) -> None:
    patch.rewrite(TimeToLive, "expire_one", "group.held_bytes -= partition.sizes.of(offset)", "pass")
    patch.rewrite(TimeToLive, "pass_over", "if sizes is not None:", "if False:")


@mutant("queue-bytes-without-groups-stay", "the bytes of what expires in a queue without groups are counted as held")
def bytes_of_loose(patch: Patch) -> None:
    patch.rewrite(TimeToLive, "leave_loose", "self.loose_bytes -= partition.sizes.of(offset)", "pass")


@mutant("queue-bytes-of-what-was-purged-stay", "the bytes of what is purged without groups are counted as held")
def bytes_of_purged(patch: Patch) -> None:
    patch.rewrite(QueueLimits, "purge", "if partition.sizes is not None:", "if False:")


@mutant("queue-expired-find-room-or-vanish", "what expires becomes a dead letter where these have room, or is gone")
def expired_find_room(patch: Patch) -> None:
    patch.replace(UndeliveredLetters, "has_room", lambda *_args: False)


@mutant("queue-shares-of-runs-are-not-counted", "what goes out in runs is not counted among what its lane has had")
def shares_of_runs(patch: Patch) -> None:
    patch.rewrite(Dispatcher, "serve_lanes_fairly", "scheduler.served(lane, together, now)", "pass")

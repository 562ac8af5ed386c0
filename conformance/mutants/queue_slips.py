"""Slips in queues where two or three states meet, each a few words of one function: for lives of queues to find."""

from __future__ import annotations

from assay.conformance.mutants import Patch, mutant
from assay.reference_broker.mqtt.sessions import mqtt_broker
from assay.reference_broker.queues.delays.delay_store import DelayStore
from assay.reference_broker.queues.delivery import claims, settlement
from assay.reference_broker.queues.delivery.dispatcher import Dispatcher
from assay.reference_broker.queues.groups import cursors, group_recovery
from assay.reference_broker.queues.groups.group import ConsumerGroup
from assay.reference_broker.queues.limits.limits import QueueLimits
from assay.reference_broker.queues.limits.time_to_live import TimeToLive
from assay.reference_broker.queues.operations import figures
from assay.reference_broker.queues.queue import priority_figures
from assay.reference_broker.queues.queue import queue as queue_module
from assay.reference_broker.queues.queue.enqueue_path import EnqueuePath
from assay.reference_broker.queues.registry.registry import QueueRegistry
from assay.reference_broker.queues.transactions.commit_phases import CommitPhases
from assay.reference_broker.storage.pending_state import PendingState


def _slip(name: str, what: str, owner: object, function: str, old: str, new: str) -> None:
    """In a function, one text stands for another."""

    def apply(patch: Patch) -> None:
        patch.rewrite(owner, function, old, new)  # type: ignore[arg-type]

    mutant(f"wire-{name}", what)(apply)


# -- figures -----------------------------------------------------------------------------------------------------------

_slip(
    "priorities-are-counted-as-one",
    "what is in flight is told of the normal priority alone, whatever its own is",
    priority_figures,
    "in_flight_by_lane",
    "counts[place.lane] +=",
    "counts[NORMAL] +=",
)
_slip(
    "floor-of-the-normal-priority",
    "the floor of a partition is told as that of its normal priority",
    figures,
    "group_stats",
    "ack_floors=tuple(map(group.low, range(len(group.places))))",
    "ack_floors=tuple(place.committed for place in group.places)",
)

# -- restarts --------------------------------------------------------------------------------------------------------

_slip(
    "attempts-of-waiting-lost",
    "the deliveries of what waits for a retry are counted from one after a restart",
    PendingState,
    "change",
    "entry._replace(due_at_ms=operation.at_ms)",
    "entry._replace(due_at_ms=operation.at_ms, delivery_count=1)",
)
_slip(
    "second-attempt-not-acknowledged",
    "that a message was acknowledged which had failed before is not written down",
    ConsumerGroup,
    "remove",
    "    self.log.ack(entry.place.number, entry.offset)",
    "    if entry.delivery_count < 2:\n        self.log.ack(entry.place.number, entry.offset)",
)
_slip(
    "waiting-is-due-after-a-start",
    "what waits for its delay after a nack is ready after a restart if it had failed twice",
    group_recovery,
    "recover",
    "if due_at else",
    "if due_at and record.delivery_count < 2 else",
)
_slip(
    "several-settled-are-written-but-for-the-last",
    "of several deliveries acknowledged together the last of a partition is not written down",
    ConsumerGroup,
    "remove_many",
    "    if place is not None:\n        self.log.ack_all(place.number, offsets)\n    if wants_more",
    "    if place is not None:\n        self.log.ack_all(place.number, offsets[:2])\n    if wants_more",
)

# -- settlements -----------------------------------------------------------------------------------------------------

_slip(
    "ranges-end-early",
    "a range of three and more offsets is settled without its last one",
    settlement,
    "named_ranges",
    "yield partition, first, end",
    "yield partition, first, end - (end - first > 2)",
)
_slip(
    "delay-of-the-first-nack-only",
    "of several deliveries that are refused with a delay only the first one waits",
    settlement,
    "apply",
    "request.delay_s)",
    "request.delay_s if entry is next(iter(found)) else None)",
)
_slip(
    "leaving-spares-a-retry",
    "what a consumer held that leaves and had been given back before, waits a minute",
    ConsumerGroup,
    "take_back",
    "self.retry(entry, now, now,",
    "self.retry(entry, now + 60 * (entry.delivery_count > 1), now,",
)
_slip(
    "reset-keeps-what-waits",
    "a group that is set back still has what waited for a retry, with its count",
    cursors,
    "reset",
    "                group.forget(entry)\n            lane.cursor = offset\n            lane.waiting = ()",
    "                if entry.consumer is not None:\n                    group.forget(entry)\n"
    "            lane.cursor = offset",
)
_slip(
    "latest-is-the-last",
    "a group that begins at the latest is given the last message from before",
    cursors,
    "resolve",
    "        return end\n",
    "        return max(head, end - 1)\n",
)

# -- dead letters ----------------------------------------------------------------------------------------------------

_slip(
    "letter-of-retried-without-content-type",
    "a dead letter that had been tried more than once has no content type",
    queue_module,
    "dead_letter_message",
    "message, history)",
    "message if entry.delivery_count < 2 else msgspec.structs.replace(message, content_type=None), history)",
)
_slip(
    "rejected-after-a-retry-discarded",
    "a message that is rejected at its third delivery or later is settled and no dead letter",
    ConsumerGroup,
    "dead_letter",
    "    self.owner.dead_letter(self, entry, reason, now, on_done)",
    "    if entry.delivery_count > 2:\n        entry.state = EntryState.DELIVERED\n"
    "        self.discard(entry, reason, on_done)\n        return\n"
    "    self.owner.dead_letter(self, entry, reason, now, on_done)",
)

# -- transactions ----------------------------------------------------------------------------------------------------

_slip(
    "second-acknowledgement-left-out",
    "of the deliveries acknowledged in a transaction only the first is settled by its commit",
    CommitPhases,
    "end",
    "        if committed:\n            self._settle",
    "        if committed and entry is next(iter(transaction.held)):\n            self._settle",
)
_slip(
    "abort-settles-retried",
    "an abort settles those of its acknowledgements that were not for a first delivery",
    CommitPhases,
    "end",
    "            group.retry(entry, now, now",
    "            group.remove(entry, None) if entry.delivery_count > 1 else group.retry(entry, now, now",
)

# -- time, limits, priorities ----------------------------------------------------------------------------------------

_slip(
    "expired-given-again",
    "what has expired is given once more to a group that failed with it before",
    Dispatcher,
    "redeliver",
    "if now >= stored.expires_at:",
    "if now >= stored.expires_at and not entry.delivery_count:",
)
_slip(
    "due-together-fire-backwards",
    "of delayed messages that are due at one time the last one comes first",
    DelayStore,
    "wheel_due",
    "return self._wheel.advance(_floor_ms(now), limit) if limit > 0 else []",
    "return self._wheel.advance(_floor_ms(now), limit)[::-1] if limit > 0 else []",
)
_slip(
    "limit-of-bytes-counts-what-is-there",
    "a queue takes one message more as long as it holds less bytes than it may",
    QueueLimits,
    "make_byte_room",
    "while limit and self._counted_bytes + size > limit:",
    "while limit and self._counted_bytes >= limit:",
)
_slip(
    "limit-of-depth-is-one-less-with-groups",
    "a queue that has two groups refuses a message before it is full",
    QueueLimits,
    "make_room",
    "    limit = self._contents.config.max_depth\n",
    "    limit = self._contents.config.max_depth - (len(self._contents.groups) > 1)\n",
)
_slip(
    "priority-of-keyless-only",
    "a message with a key has the normal priority",
    EnqueuePath,
    "add",
    "priority = None if options is None else options.priority",
    "priority = None if options is None or key else options.priority",
)
_slip(
    "repeats-lose-properties",
    "a delivery after the second has none of the publisher's user properties",
    mqtt_broker,
    "delivery_properties",
    "    if not theirs:\n",
    "    if not theirs or delivery.delivery_count > 2:\n",
)

# -- claims, commits, receipts, sizes, added partitions --------------------------------------------------------------

_slip(
    "claims-are-not-written",
    "the number of a claimed delivery is not written down: after a restart the one before counts",
    Dispatcher,
    "take_over",
    "int(now * 1000), entry.delivery_count)",
    "int(now * 1000), entry.delivery_count - 1)",
)
_slip(
    "commit-spares-what-waits",
    "a commit settles what is with consumers, and not what waits for a retry",
    cursors,
    "commit",
    "if entry.state is not EntryState.DEAD_LETTERING",
    "if entry.state is EntryState.DELIVERED",
)
_slip(
    "commit-of-one-lane",
    "a commit settles nothing but messages of normal priority",
    cursors,
    "commit",
    "        for lane in lanes\n",
    "        for lane in (place,)\n",
)
_slip(
    "receipts-of-retried-go-stale",
    "the receipt of a third delivery settles nothing",
    settlement,
    "find_by_receipt",
    "and entry.delivery_count == delivery_count and",
    "and entry.delivery_count == delivery_count < 3 and",
)
_slip(
    "size-without-properties",
    "user properties do not count for the size of a message that has a content type",
    EnqueuePath,
    "publish",
    "size = message_bytes(message)",
    "size = size if message.content_type else message_bytes(message)",
)
_slip(
    "keys-stay-in-four-partitions",
    "keys lead to none but the first four partitions, however many were added",
    EnqueuePath,
    "add",
    "self._partitioner.choose(key, len(self.partitions))",
    "self._partitioner.choose(key, min(4, len(self.partitions)))",
)
_slip(
    "reset-spares-retried",
    "what is with a consumer for the second time stays there when its group is reset",
    cursors,
    "reset",
    "                group.forget(entry)\n",
    "                if entry.consumer is None or entry.delivery_count < 2:\n                    group.forget(entry)\n",
)

# -- settings of queues in use ---------------------------------------------------------------------------------------

_slip(
    "lower-limits-spare-holders",
    "a consumer that holds something keeps the limit that it had when the limit of its queue becomes another",
    ConsumerGroup,
    "reconfigure",
    "        consumer.limit = min(",
    "        consumer.limit = consumer.limit if consumer.in_flight else min(",
)
_slip(
    "limits-of-groups-not-written",
    "the limit on what a group may hold is not written down when it becomes another",
    queue_module.DurableQueue,
    "reconfigure",
    "update_description(settings=settings)",
    'update_description(settings={name: value for name, value in settings.items() if name != "group"})',
)
_slip(
    "spoilt-changes-taken",
    "a setting that is fixed for life is passed over in a request that changes one of retries or groups",
    QueueRegistry,
    "update",
    "for field in FIXED:",
    "for field in FIXED if not any(isinstance(value, dict) for value in changes.values()) else ():",
)
_slip(
    "new-settings-forget-deadlines",
    "what consumers hold as the settings of their queue change never times out",
    ConsumerGroup,
    "reconfigure",
    "                heapq.heappush(self._extensions, (deadline, self._extension_count, entry))\n",
    "",
)
_slip(
    "reset-of-one-lane-is-written",
    "that a group was set back is written down of messages of normal priority alone",
    cursors,
    "reset",
    "            group.log.move_cursor(lane.number, offset)\n",
    "            if lane is place:\n                group.log.move_cursor(lane.number, offset)\n",
)

# -- what is counted, and what was given up ----------------------------------------------------------------------------

_slip(
    "bytes-of-what-was-aborted-stay",
    "messages of an aborted transaction take room in bytes for good",
    EnqueuePath,
    "hide",
    "                    group.held_bytes -= partition.sizes.of(offset)\n",
    "                    pass\n",
)
_slip(
    "several-settled-count-as-one",
    "of several deliveries that are acknowledged together the figures of the group count one",
    settlement,
    "ack_many",
    "group.counts.acked += len(entries)",
    "group.counts.acked += 1",
)
_slip(
    "dropped-comes-to-the-next-group",
    "what was given up for a newer message comes to a group that is made afterwards",
    QueueLimits,
    "drop_one",
    "        self._contents.left(place.partition, offset)\n",
    "",
)

_slip(
    "lost-deliveries-wait-for-readers",
    "what was at its last delivery when the broker was killed becomes no dead letter before somebody reads the queue",
    TimeToLive,
    "waits",
    "at = 0.0 if stored is None else",
    "at = NEVER if stored is None else",
)
_slip(
    "bursts-are-not-traced",
    "of messages that come together the steps are not traced",
    EnqueuePath,
    "publish_batch",
    "self.partitions[index].trace(chosen[at], len(positions) - 1 - positions.index(at))",
    "pass",
)

# -- deadlines and claims ----------------------------------------------------------------------------------------------

_slip(
    "extensions-are-the-timeout",
    "an extension is the delivery timeout of the queue, whatever it names",
    settlement,
    "extend",
    "(timeout_s if extend_s is None else extend_s)",
    "timeout_s",
)
_slip(
    "idle-since-the-first-delivery",
    "a claim that names no message goes by when a message was delivered first",
    claims,
    "idle_entries",
    "entry.claimed_at <= since",
    "entry.first_delivered_at <= since",
)


@mutant("wire-claims-of-what-is-used-up", "a claim is given what has used up its retries")
def claims_of_what_is_used_up(patch: Patch) -> None:
    patch.replace(claims, "exhausted_reason", lambda *_of_it: None)

"""Planted bugs of the queue engine: who gets what, when a message counts as settled, and what limits and time do.

The model (``assay.sim.queue_model``) is judged by them: it must find each one, and accuse none of the legal variations.
:mod:`assay.conformance.mutants.queue_engine_disk` has those that only show when the engine starts again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from assay.conformance.mutants import Patch, mutant, variation
from assay.reference_broker.queues.delivery import settlement
from assay.reference_broker.queues.delivery.dispatcher import Dispatcher
from assay.reference_broker.queues.engine import QueueEngine
from assay.reference_broker.queues.groups import assignment, rebalance
from assay.reference_broker.queues.groups.contents import QueueContents
from assay.reference_broker.queues.groups.group import ConsumerGroup
from assay.reference_broker.queues.groups.pending import Consumer, EntryState, GroupPartition, PendingEntry
from assay.reference_broker.queues.groups.retry import exhausted_reason
from assay.reference_broker.queues.jobs.agenda import Agenda
from assay.reference_broker.queues.jobs.errors import QueueError
from assay.reference_broker.queues.limits.limits import QueueLimits
from assay.reference_broker.queues.messages.partitioner import Partitioner
from assay.reference_broker.queues.messages.stored_message import MessageCodec
from assay.reference_broker.queues.partitions.expiry import PartitionExpiry
from assay.reference_broker.queues.queue.queue import DurableQueue

Original = Callable[..., Any]


def forget(patch: Patch, owner: Any, name: str, answer: object = None) -> None:
    """A method does nothing and answers this."""
    patch.wrap(owner, name, lambda original: lambda *args, **kwargs: answer)


def after(patch: Patch, owner: Any, name: str, then: Callable[..., None]) -> None:
    """Something happens when a method is done: ``then(result, *args)``."""

    def make(original: Original) -> Original:
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            result = original(*args, **kwargs)
            then(result, *args)
            return result

        return wrapped

    patch.wrap(owner, name, make)


# -- deliveries --------------------------------------------------------------------------------------------------


@mutant("engine-refused-delivery-is-lost", "a message that its consumer has no room for is passed all the same")
def refused_delivery_is_lost(patch: Patch) -> None:
    def pass_on(
        taken: bool, self: Dispatcher, place: GroupPartition, stored: Any, consumer: Consumer, now: float
    ) -> None:
        if not taken and consumer.blocked:
            place.cursor += 1
            self._group.cursor_total += 1

    after(patch, Dispatcher, "deliver_first", pass_on)


@mutant("engine-refused-redelivery-is-lost", "a redelivery that its consumer has no room for waits for nobody any more")
def refused_redelivery_is_lost(patch: Patch) -> None:
    def lose(taken: bool, self: Dispatcher, entry: PendingEntry, consumer: Consumer, now: float) -> None:
        if not taken and consumer.blocked and entry.place.waiting:
            entry.place.pop_waiting()

    after(patch, Dispatcher, "redeliver", lose)


@mutant("engine-room-never-comes-back", "what a consumer settles still counts as held by it")
def room_never_comes_back(patch: Patch) -> None:
    def keep(result: None, self: ConsumerGroup, consumer: Consumer, place: GroupPartition) -> None:
        consumer.in_flight += 1

    after(patch, ConsumerGroup, "let_go", keep)


@mutant("engine-resume-serves-nobody", "a consumer that has room again waits for the next message to come")
def resume_serves_nobody(patch: Patch) -> None:
    def resume(self: QueueEngine, consumer: Consumer, now: float) -> None:
        consumer.blocked = False

    patch.replace(QueueEngine, "resume", resume)


@mutant("engine-one-too-many-in-flight", "a consumer may hold one delivery more than max_in_flight says")
def one_too_many_in_flight(patch: Patch) -> None:
    def widen(consumer: Consumer, self: ConsumerGroup, *rest: object) -> None:
        consumer.limit += 1

    after(patch, ConsumerGroup, "join", widen)


@mutant("engine-shared-limit-ignored", "the limit on what a group has in flight has no effect")
def shared_limit_ignored(patch: Patch) -> None:
    def unlimit(result: None, self: ConsumerGroup, *rest: object) -> None:
        self.shared_limit = 0

    after(patch, ConsumerGroup, "__init__", unlimit)


@mutant("engine-filter-ignored", "a group with a filter gets every message")
def filter_ignored(patch: Patch) -> None:
    forget(patch, Dispatcher, "matches_key", True)


@mutant("engine-filter-asked-once", "a group takes what its filter says of the first routing key for an answer to all")
def filter_asked_once(patch: Patch) -> None:
    answers: dict[Dispatcher, bool] = {}

    def make(original: Original) -> Original:
        def matches(self: Dispatcher, routing_key: str) -> bool:
            if self not in answers:
                answers[self] = bool(original(self, routing_key))
            return answers[self]

        return matches

    patch.wrap(Dispatcher, "matches_key", make)


@mutant("engine-new-group-starts-late", "a new group begins with the messages to come")
def new_group_starts_late(patch: Patch) -> None:
    def make(original: Original) -> Original:
        def start_at(self: ConsumerGroup, cursors: object) -> None:
            original(self, [place.partition.log.next_offset for place in self.places])

        return start_at

    patch.wrap(ConsumerGroup, "start_at", make)


# -- members -----------------------------------------------------------------------------------------------------


@mutant("engine-leaving-keeps-deliveries", "what a consumer holds when it leaves stays with it until it times out")
def leaving_keeps_deliveries(patch: Patch) -> None:
    def detach(self: ConsumerGroup, consumer: Consumer, now: float) -> None:
        consumer.active = False
        self.membership.left(consumer)
        del self.consumers[consumer.consumer_id]

    patch.replace(ConsumerGroup, "detach", detach)


@mutant(
    "engine-successor-leaves-deliveries", "who subscribes under a known id takes the place of the other, not its load"
)
def successor_leaves_deliveries(patch: Patch) -> None:
    def make(original: Original) -> Original:
        def join(self: ConsumerGroup, consumer_id: str, *args: Any, **kwargs: Any) -> Consumer:
            self.consumers.pop(consumer_id, None)
            joined: Consumer = original(self, consumer_id, *args, **kwargs)
            return joined

        return join

    patch.wrap(ConsumerGroup, "join", make)


@mutant(
    "engine-partitions-stay-with-the-lost", "the partitions of a consumer that left are shared out at the next join"
)
def partitions_stay_with_the_lost(patch: Patch) -> None:
    def leave(self: ConsumerGroup, consumer: Consumer, now: float) -> None:
        if consumer.active:
            self.detach(consumer, now)

    patch.replace(ConsumerGroup, "leave", leave)


@mutant(
    "engine-last-partition-unassigned", "round robin leaves the last partition out when there are several consumers"
)
def last_partition_unassigned(patch: Patch) -> None:
    def make(original: Original) -> Original:
        def assign(assignor: object, partitions: int, consumers: Iterable[str], previous: Any) -> assignment.Assignment:
            ids = list(consumers)
            result: assignment.Assignment = original(assignor, partitions, ids, previous)
            return {
                name: tuple(each for each in has if len(ids) == 1 or each != partitions - 1 or partitions == 1)
                for name, has in result.items()
            }

        return assign

    patch.wrap(rebalance, "assign", make)


# -- settlements -------------------------------------------------------------------------------------------------


@mutant("engine-ambiguity-picks-the-first", "a settlement that several groups may be meant by settles the first one's")
def ambiguity_picks_the_first(patch: Patch) -> None:
    def make(original: Original) -> Original:
        def find_entry(groups: Iterable[ConsumerGroup], *args: Any) -> Any:
            for each in list(groups):
                try:
                    return original([each], *args)
                except QueueError:
                    continue
            return original([], *args)

        return find_entry

    patch.wrap(settlement, "find_entry", make)


@mutant("engine-nack-delay-ignored", "a nack that asks for a delay gets none")
def nack_delay_ignored(patch: Patch) -> None:
    def make(original: Original) -> Original:
        def nack(holder: ConsumerGroup, entry: PendingEntry, now: float, on_done: Any, delay_s: Any = None) -> None:
            original(holder, entry, now, on_done, None)

        return nack

    patch.wrap(settlement, "nack", make)


@mutant("engine-given-back-twice", "who has given a message back may do so again while it waits")
def given_back_twice(patch: Patch) -> None:
    def make(original: Original) -> Original:
        def pending_entry(self: ConsumerGroup, partition: int, offset: int) -> PendingEntry | None:
            entry: PendingEntry | None = original(self, partition, offset)
            return self.unsettled_entry(partition, offset) if entry is None else entry

        return pending_entry

    def holds(original: Original) -> Original:
        return lambda entry, consumer_id: (
            original(entry, consumer_id) or (entry.state is EntryState.WAITING and entry.last_consumer == consumer_id)
        )

    patch.wrap(ConsumerGroup, "pending_entry", make)
    patch.wrap(settlement, "holds", holds)


@mutant("engine-nack-unanswered", "nobody tells who gave a message back that it is known")
def nack_unanswered(patch: Patch) -> None:
    def make(original: Original) -> Original:
        def nack(holder: ConsumerGroup, entry: PendingEntry, now: float, on_done: Any, delay_s: Any = None) -> None:
            original(holder, entry, now, None, delay_s)

        return nack

    patch.wrap(settlement, "nack", make)


@mutant("engine-extension-ignored", "an extended delivery times out when it would have anyway")
def extension_ignored(patch: Patch) -> None:
    forget(patch, settlement, "extend")


@mutant("engine-extension-never-ends", "an extended delivery does not time out any more")
def extension_never_ends(patch: Patch) -> None:
    def extend(self: ConsumerGroup, entry: PendingEntry, deadline: float) -> None:
        entry.deadline = deadline

    patch.replace(ConsumerGroup, "extend", extend)


@mutant("engine-batch-settles-the-first", "of several deliveries acknowledged together only the first is settled")
def batch_settles_the_first(patch: Patch) -> None:
    def make(original: Original) -> Original:
        def apply(found: dict[Any, Any], *args: Any) -> None:
            original(dict(list(found.items())[:1]), *args)

        return apply

    patch.wrap(settlement, "apply", make)


@mutant("engine-batch-hides-what-is-missing", "a settlement of several deliveries succeeds when some were not pending")
def batch_hides_what_is_missing(patch: Patch) -> None:
    def make(original: Original) -> Original:
        def settle_request(
            groups: Any, queue: str, request: Any, consumer_id: Any, now: float, on_done: Any, *rest: Any
        ) -> None:
            def done(error: object) -> None:
                on_done(None)

            original(groups, queue, request, consumer_id, now, on_done and done, *rest)

        return settle_request

    patch.wrap(settlement, "settle_request", make)


@mutant("engine-floor-forgets-offset-0", "a pending message at offset 0 holds nothing back: its log may go")
def floor_forgets_offset_0(patch: Patch) -> None:
    def lowest(place: GroupPartition) -> int | None:
        return next((offset for offset in place.pending if offset), None)

    def committed(self: GroupPartition) -> int:
        found = lowest(self)
        return self.cursor if found is None else found

    patch.replace(GroupPartition, "committed", property(committed))


@mutant("engine-entry-by-stale-position", "once an entry is gone, those behind it are found where they had been")
def entry_by_stale_position(patch: Patch) -> None:
    def make(original: Original) -> Original:
        def pending_entry(self: ConsumerGroup, partition: int, offset: int) -> PendingEntry | None:
            entry: PendingEntry | None = original(self, partition, offset)
            if entry is None or entry.place.committed == 0:
                return entry
            following = [each for each in entry.place.pending if each > offset]
            return original(self, partition, following[0]) if following else entry

        return pending_entry

    patch.wrap(ConsumerGroup, "pending_entry", make)


# -- time --------------------------------------------------------------------------------------------------------


@mutant("engine-redeliveries-never-time-out", "only the first delivery of a message has a timeout")
def redeliveries_never_time_out(patch: Patch) -> None:
    def untime(taken: bool, self: Dispatcher, entry: PendingEntry, *rest: object) -> None:
        if taken and entry.delivery_count > 1 and self._group.timeouts and self._group.timeouts[-1][1] is entry:
            self._group.timeouts.pop()

    after(patch, Dispatcher, "hand_over", untime)


@mutant("engine-wakes-for-the-first-only", "a group that asks to be woken forgets what else it waits for")
def wakes_for_the_first_only(patch: Patch) -> None:
    def wake(result: None, self: ConsumerGroup, now: float) -> None:
        self._retry_times.clear()

    after(patch, ConsumerGroup, "rearm", wake)


@mutant("engine-clock-not-watched", "nobody wakes the engine for what becomes due")
def clock_not_watched(patch: Patch) -> None:
    forget(patch, Agenda, "next_wake")


@mutant("engine-own-expiry-ignored", "a message expires with its queue's time to live only")
def own_expiry_ignored(patch: Patch) -> None:
    def make(original: Original) -> Original:
        def expiry(self: MessageCodec, enqueued_at: float, message_expires_at: float) -> float:
            return float(original(self, enqueued_at, 0.0))

        return expiry

    patch.wrap(MessageCodec, "expiry", make)


@mutant("engine-queue-ttl-ignored", "a message expires by its own time only")
def queue_ttl_ignored(patch: Patch) -> None:
    def expiry(self: MessageCodec, enqueued_at: float, message_expires_at: float) -> float:
        return message_expires_at or float("inf")

    patch.replace(MessageCodec, "expiry", expiry)


@mutant(
    "engine-expired-counted-again", "a message that expired behind others counts as expired again when it is its turn"
)
def expired_counted_again(patch: Patch) -> None:
    forget(patch, PartitionExpiry, "is_gone", False)


# -- limits ------------------------------------------------------------------------------------------------------


@mutant("engine-depth-off-by-one", "a queue takes one message more than max_depth says")
def depth_off_by_one(patch: Patch) -> None:
    def make(original: Original) -> Original:
        def make_room(self: QueueLimits, now: float) -> None:
            if self._contents.staying > self._contents.config.max_depth:
                original(self, now)

        return make_room

    patch.wrap(QueueLimits, "make_room", make)


@mutant("engine-depth-without-pending", "what is in flight or waits for a retry does not count against max_depth")
def depth_without_pending(patch: Patch) -> None:
    def make(original: Original) -> Original:
        def staying_of(self: QueueContents, holder: ConsumerGroup) -> int:
            return int(original(self, holder)) - holder.unsettled

        return staying_of

    patch.wrap(QueueContents, "staying_of", make)


@mutant("engine-room-counted-once", "a queue that was full stays full")
def room_counted_once(patch: Patch) -> None:
    def make(original: Original) -> Original:
        def make_room(self: QueueLimits, now: float) -> None:
            if self._contents.refused:
                raise self._refuse("the queue is full")
            original(self, now)

        return make_room

    patch.wrap(QueueLimits, "make_room", make)


@mutant("engine-dropped-in-silence", "a message that makes room for another is counted nowhere")
def dropped_in_silence(patch: Patch) -> None:
    def uncount(result: None, self: QueueLimits, holder: ConsumerGroup, now: float) -> None:
        holder.counts.dropped = 0

    after(patch, QueueLimits, "drop_one", uncount)


# -- partitions and dead letters ---------------------------------------------------------------------------------


@mutant("engine-source-settled-first", "a message that failed for good is settled before its dead letter is safe")
def source_settled_first(patch: Patch) -> None:
    def make(original: Original) -> Original:
        def dead_letter(self: DurableQueue, holder: ConsumerGroup, entry: PendingEntry, *args: Any) -> None:
            original(self, holder, entry, *args)
            if entry.state is EntryState.DEAD_LETTERING:
                holder.counts.dead_lettered += 1
                holder.remove(entry, None)

        return dead_letter

    patch.wrap(DurableQueue, "dead_letter", make)


@mutant("engine-exhausted-is-discarded", "a message that is tried for the last time is given up without a dead letter")
def exhausted_is_discarded(patch: Patch) -> None:
    def make(original: Original) -> Original:
        def retry(
            self: ConsumerGroup, entry: PendingEntry, due: float, now: float, cause: str, on_done: Any = None
        ) -> None:
            if exhausted_reason(self.config.retry, entry.delivery_count, 0.0) and not self.keeps_exhausted:
                self.counts.discarded += 1
                self.discard(entry, "exhausted", on_done)
                return
            original(self, entry, due, now, cause, on_done)

        return retry

    patch.wrap(ConsumerGroup, "retry", make)


@mutant("engine-dead-letters-chain", "a message of the dead letters that fails too often is given up")
def dead_letters_chain(patch: Patch) -> None:
    def unkeep(result: None, self: ConsumerGroup, *rest: object) -> None:
        self.keeps_exhausted = False

    after(patch, ConsumerGroup, "__init__", unkeep)


# -- legal variations --------------------------------------------------------------------------------------------


@variation("engine-no-key-mirrored", "messages without a key go to other random partitions")
def no_key_mirrored(patch: Patch) -> None:
    def make(original: Original) -> Original:
        def choose(self: Partitioner, key: str | None, partitions: int) -> int:
            chosen = int(original(self, key, partitions))
            return partitions - 1 - chosen if key is None else chosen

        return choose

    patch.wrap(Partitioner, "choose", make)


@variation("engine-last-member-first", "the consumers of a group are served in the opposite order")
def last_member_first(patch: Patch) -> None:
    def reverse(result: Consumer, self: ConsumerGroup, *rest: object) -> None:
        self.consumers = dict(reversed(self.consumers.items()))

    after(patch, ConsumerGroup, "join", reverse)


@variation("engine-rebalances-often", "every settlement makes the group share out its partitions again")
def rebalances_often(patch: Patch) -> None:
    def again(result: None, self: ConsumerGroup, *rest: object) -> None:
        self.rebalance._due()

    after(patch, ConsumerGroup, "remove", again)


@variation("engine-wakes-too-often", "the engine is woken four times a second, whether something is due or not")
def wakes_too_often(patch: Patch) -> None:
    def make(original: Original) -> Original:
        def next_wake(self: Agenda) -> float:
            due = original(self)
            return min(self.now + 0.25, due if due is not None else float("inf"))

        return next_wake

    patch.wrap(Agenda, "next_wake", make)

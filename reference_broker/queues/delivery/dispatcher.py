"""Delivery: which message goes to which consumer of a group next."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence

import msgspec

from assay.reference_broker.queues.delivery.fair_turns import FairTurns, has_room
from assay.reference_broker.queues.groups.delivery import Delivery
from assay.reference_broker.queues.groups.delivery_run import MIN_RUN, DeliveryRun
from assay.reference_broker.queues.groups.group import ConsumerGroup
from assay.reference_broker.queues.groups.pending import (
    DELIVERED,
    SETTLED,
    UNLIMITED,
    Consumer,
    EntryState,
    GroupPartition,
    PendingEntry,
)
from assay.reference_broker.queues.jobs.agenda import MAX_WORK, NEVER
from assay.reference_broker.queues.jobs.errors import LogError
from assay.reference_broker.queues.messages.address import receipt_of
from assay.reference_broker.queues.messages.lanes import LANES, NORMAL, LaneScheduler, PartitionLanes, lane_count
from assay.reference_broker.queues.messages.stored_message import StoredMessage, is_at_once
from assay.reference_broker.queues.messages.trace_context import with_delivery_context
from assay.reference_broker.queues.partitions.partition import QueuePartition
from assay.reference_broker.routing.message import Message, annotated
from assay.reference_broker.routing.remembered import remember
from assay.reference_broker.routing.topics import matches
from assay.reference_broker.trace.durations import COARSE_S
from assay.reference_broker.trace.schema import TraceKind
from assay.reference_broker.trace.tracing import Traced

QUANTUM = 32
"""Messages of one partition before the next partition of the consumer has its turn."""
QUANTUM_ALONE = 128
"""Likewise, where no other has anything for it."""
FEW = 8
"""Ready messages for each consumer of a group, where they share: fewer go one by one to whoever is next."""
SKIPS_PER_TURN = 2_048
"""Expired or unmatched messages passed over before other groups have their turn."""
MATCH_CACHE = 16_384
_MATCHED: dict[tuple[str, str], bool] = {}
"""Whether a filter of a group matches a routing key, for all groups."""


class Dispatcher:
    """Delivers for one group."""

    def __init__(self, group: ConsumerGroup) -> None:
        self._group = group
        self._skips = 0
        self._counted = self._in_runs = 0
        """Deliveries that are counted as work already; and those made in runs since then."""
        self._has_more = False
        """The turn had no room for all that could be delivered."""
        self._consumer_turn = 0
        """Whose turn it is first, if the last one ended early."""
        self._place_turn = 0
        """Deliveries made in turn so far."""
        self._gives_receipts = group.config.receipts
        self._has_runs = not self._gives_receipts and not group.pattern and group.tracer is None
        """Deliveries may go out several at once: nothing is to be looked at or told of each."""
        self._prefix = group.config.name + ":"
        self._lane_count = lane_count(group.config.priority)
        timeout_s = group.config.delivery_timeout_s
        self._timeout_s = timeout_s if timeout_s > 0 else NEVER

    def serve(self, now: float) -> None:
        """Give every consumer what it has room for, a few messages of each of its partitions in turn."""
        group = self._group
        if not group.take_back(now):
            return
        if group.rebalance.is_due:
            group.rebalance.run(now)
        if group.failure is not None or now < group.stalled_until:
            return
        self._skips = 0
        self._counted, self._in_runs = group.counts.delivered + group.counts.redelivered, 0
        try:
            if not group.ordered and len(group.consumers) > 1:
                self._serve_fairly(now)
                return
            self._serve_in_order(now)
        except LogError:
            group.stall(now)
        finally:
            group.prune_timeouts()
            if group.slow is not None:
                group.slow.note(now)
            agenda, has_more = group.agenda, self._has_more
            self._is_spent()
            agenda.work += (self._skips >> 1) + (len(group.consumers) + len(group.places) >> 6)
            self._has_more = False
            if self._skips >= SKIPS_PER_TURN or has_more:
                agenda.groups_to_serve[group] = None

    def _serve_in_order(self, now: float) -> None:
        """Consumer by consumer. When the turn has no room for more, the next one begins where this one had to stop."""
        group = self._group
        consumers = list(group.consumers.values())
        if self._consumer_turn:
            at = self._consumer_turn % len(consumers) if consumers else 0
            consumers = consumers[at:] + consumers[:at]
        for served, consumer in enumerate(consumers, 1):
            if group.scheduler is None:
                self._serve_consumer(consumer, now)
            else:
                self._serve_by_lanes(consumer, group.scheduler, now)
            if served < len(consumers) and self._is_spent():
                self._consumer_turn += served
                return
        self._consumer_turn = 0

    def _is_spent(self) -> bool:
        """Count what was delivered since the last time; returns whether the turn has no room for more."""
        group = self._group
        counts, agenda, in_runs = group.counts, group.agenda, self._in_runs
        delivered = counts.delivered + counts.redelivered
        # What went out in runs took less.
        work = agenda.work = agenda.work + delivered - self._counted - (in_runs - (in_runs >> 3))
        self._counted, self._in_runs = delivered, 0
        self._has_more = work >= MAX_WORK
        return self._has_more

    def _serve_consumer(self, consumer: Consumer, now: float) -> None:
        at = consumer.next_turn
        in_turn = consumer.places[at:] + consumer.places[:at]
        active = [place for place in in_turn if place.waiting or place.cursor < place.partition.visible_end]
        while active:
            still_active: list[GroupPartition] = []
            for place in active:
                room = consumer.room
                if consumer.blocked or not consumer.active or room <= 0 or self._is_spent():
                    # The next time begins where this one had to stop.
                    consumer.next_turn = consumer.places.index(place) if place in consumer.places else 0
                    return
                quantum = QUANTUM if len(active) > 1 else QUANTUM_ALONE
                if self._deliver_some(place, consumer, min(room, quantum), now):
                    still_active.append(place)
            active = still_active

    def _serve_fairly(self, now: float) -> None:
        """Message by message to whoever has the fewest: without an order to keep, all share all partitions."""
        group = self._group
        counts = group.counts
        turns = FairTurns(group.consumers.values())
        scheduler = group.scheduler
        if scheduler is not None:
            self.serve_lanes_fairly(scheduler, turns, now)
            return
        if self._serves_alike:
            self._serve_alike(group.places[0], UNLIMITED, turns, now)
            self._is_spent()
        count = len(group.places)
        active = [group.places[(self._place_turn + step) % count] for step in range(count)]
        at, room = 0, group.agenda.room
        while active and room > 0 and (consumer := turns.next()) is not None:
            if group.shared_limit and group.in_flight >= group.shared_limit:
                return
            room -= 1
            before = counts.delivered + counts.redelivered
            more = self._deliver_some(active[at], consumer, 1, now)
            if counts.delivered + counts.redelivered > before:
                self._note_turn(consumer)
                at += 1
            elif not more and consumer.active and not consumer.blocked:
                del active[at]
            if at >= len(active):
                at = 0
        self._has_more = room <= 0

    @property
    def _serves_alike(self) -> bool:
        """Messages may go to consumers in runs, though each of these is to have its share."""
        group = self._group
        return self._has_runs and len(group.places) == 1 and not group.shared_limit

    def _serve_alike(self, place: GroupPartition, most: float, turns: FairTurns, now: float) -> int:
        """As many as possible of one place in runs, as long as there are some for each of those with the fewest.

        Returns how many. What each has in the end is as much as it would have had message by message.
        """
        counts, agenda, partition = self._group.counts, self._group.agenda, place.partition
        start = before = counts.delivered
        while not place.waiting and not self._is_spent():
            equals, each = turns.equals(partition.visible_end - place.cursor)
            least = min(FEW, each) * len(equals)
            wanted = int(min(min(QUANTUM, each) * len(equals), most - (before - start), agenda.room))
            if not equals or wanted < least:
                break
            offset = place.cursor
            if partition.lanes is not None:
                offset = self._to_lane(place, partition.lanes)
                wanted = partition.lanes.stretch(place.lane, offset, wanted)
            ready = 0
            for message in map(partition.cached.get, range(offset, min(offset + wanted, partition.visible_end))):
                if message is None or now >= message.expires_at:
                    break
                ready += 1
            if ready < least:
                break
            share = min(each, ready // len(equals))
            for consumer in equals:
                if has_room(consumer):
                    self.deliver_new(place, consumer, int(min(share, consumer.room)), now)
                    self._note_turn(consumer)
            if counts.delivered == before:
                break
            before = counts.delivered
        return before - start

    def serve_lanes_fairly(self, scheduler: LaneScheduler, turns: FairTurns, now: float) -> None:
        """As :meth:`_serve_fairly`, the next message being of the lane that the scheduler says."""
        group = self._group
        counts = group.counts
        lanes = self._places_by_lane(group.places)
        dry = self.dry_lanes(lanes)

        def waiting_since(lane: int) -> float | None:
            return self._waiting_since(lanes[lane], now)

        while not self._is_spent() and (consumer := turns.next()) is not None:
            lane, most = scheduler.pick(dry, now, waiting_since)
            if lane < 0:
                return
            places = lanes[lane]
            if self._serves_alike and (together := self._serve_alike(places[0], most, turns, now)):
                scheduler.served(lane, together, now)
                continue
            dry[lane] = True
            for step in range(len(places)):
                before = counts.delivered + counts.redelivered
                more = self._deliver_some(places[(self._place_turn + step) % len(places)], consumer, 1, now)
                served = counts.delivered + counts.redelivered - before
                if served:
                    self._note_turn(consumer)
                    scheduler.served(lane, served, now)
                if served or more or not consumer.active or consumer.blocked:
                    dry[lane] = False
                    break

    def _note_turn(self, consumer: Consumer) -> None:
        self._place_turn += 1
        consumer.served_at = self._place_turn

    def _places_by_lane(self, places: Sequence[GroupPartition]) -> list[Sequence[GroupPartition]]:
        """Lane -> its places; partitions without lanes are in the normal one."""
        return [
            [place.lanes[lane] for place in places if place.lanes is not None] if lane != NORMAL else places
            for lane in range(self._lane_count)
        ]

    def dry_lanes(self, lanes: Sequence[Sequence[GroupPartition]]) -> list[bool]:
        """Which of them are known to have nothing. The five of a round are asked in turn, which may end the round."""
        if self._lane_count == LANES:
            return [False] * LANES
        return [all(place.is_dry for place in places) for places in lanes]

    def _waiting_since(self, places: Iterable[GroupPartition], now: float) -> float | None:
        return min((since for place in places if (since := self._ready_since(place, now)) is not None), default=None)

    def _serve_by_lanes(self, consumer: Consumer, scheduler: LaneScheduler, now: float) -> None:
        """As :meth:`_serve_consumer`: lane by lane as their scheduler says, and within a lane a few of each partition.

        Partitions without lanes are in the normal one.
        """
        group = self._group
        counts = group.counts
        places = self._places_by_lane(consumer.places)
        dry = self.dry_lanes(places)

        def waiting_since(lane: int) -> float | None:
            return self._waiting_since(places[lane], now)

        while True:
            room = consumer.room
            if consumer.blocked or not consumer.active or room <= 0 or self._is_spent():
                return
            lane, share = scheduler.pick(dry, now, waiting_since)
            if lane < 0:
                return
            before = counts.delivered + counts.redelivered
            active = places[lane]
            first = consumer.next_turn % len(active) if active else 0
            wanted = int(min(room, share, QUANTUM))
            dry[lane] = True
            for step in range(len(active)):
                # One partition a pick: the next pick begins behind it.
                at = (first + step) % len(active)
                more = self._deliver_some(active[at], consumer, wanted, now)
                served = counts.delivered + counts.redelivered - before
                if served or more:
                    consumer.next_turn = at + 1
                    dry[lane] = False
                    scheduler.served(lane, served, now)
                    break

    def _ready_since(self, place: GroupPartition, now: float) -> float | None:
        """When the message that a place would deliver next came to the queue; None when there is none."""
        entry = place.first_waiting() if place.waiting else None
        partition = place.partition
        if entry is not None and entry.deadline <= now:
            offset = entry.offset
        else:
            offset = place.cursor if partition.lanes is None else partition.lanes.next_in(place.lane, place.cursor)
            if offset >= partition.visible_end or (entry is not None and place.holds_back):
                return None
        stored = partition.get(offset)
        return stored.enqueued_at if stored is not None else now

    def _deliver_some(self, place: GroupPartition, consumer: Consumer, limit: int, now: float) -> bool:
        """Up to ``limit`` deliveries from one partition; False when it has no more for now."""
        if self._group.shared_limit:
            limit = min(limit, self._group.shared_limit - self._group.in_flight)
            if limit <= 0:
                return False
        while limit > 0 and place.waiting:
            entry = place.first_waiting()
            if entry is None or entry.deadline > now:
                break
            if self.redeliver(entry, consumer, now):
                limit -= 1
            else:
                self._skips += 1
                if self._skips >= SKIPS_PER_TURN:
                    return False
            if consumer.blocked or not consumer.active:
                return False
        return limit <= 0 or self.deliver_new(place, consumer, limit, now)

    def deliver_new(self, place: GroupPartition, consumer: Consumer, limit: int, now: float) -> bool:
        room = self._group.room_for_new
        if room < limit:
            if room <= 0:
                return False
            limit = room
        partition = place.partition
        cached = partition.cached
        lanes = partition.lanes
        if self._has_runs and (lanes is None or consumer.options.lanes_alike):
            least = 1 if consumer.settles_at_once else MIN_RUN
            offset = place.cursor if lanes is None else self._to_lane(place, lanes)
            if limit >= least <= partition.visible_end - offset:
                most = limit if lanes is None else lanes.stretch(place.lane, offset, limit)
                limit -= self._deliver_run(place, consumer, most, least, now)
        while limit > 0:
            offset = place.cursor
            if lanes is not None:
                offset = self._to_lane(place, lanes)
            if offset >= partition.visible_end or self._skips >= SKIPS_PER_TURN or (place.waiting and place.holds_back):
                return False
            stored = cached.get(offset)
            if stored is None:
                loaded = partition.load(offset)
                if loaded is None or loaded[0] > offset:
                    self._pass_damage(place, partition.visible_end if loaded is None else loaded[0])
                    continue
                stored = loaded[1]
            if now >= stored.expires_at and not self._waits_for(consumer, partition, offset, stored):
                self._skips += 1
                self._group.owner.expire_next(self._group, place, stored, now)
                continue
            if self._group.pattern and not self.matches_key(stored.routing_key):
                self._skip(place)
                self._group.counts.unmatched += 1
                continue
            if not self.deliver_first(place, stored, consumer, now):
                return False
            limit -= 1
        return True

    @staticmethod
    def _waits_for(consumer: Consumer, partition: QueuePartition, offset: int, stored: StoredMessage) -> bool:
        """It is for who waits when it comes, and has not gone since without anybody."""
        is_gone = partition.expiry is not None and partition.expiry.is_gone(offset)
        return consumer.options.waits and is_at_once(stored) and not is_gone

    def _deliver_run(self, place: GroupPartition, consumer: Consumer, limit: int, least: int, now: float) -> int:
        """Deliver several from the cursor on at once; returns how many, 0 when they must go one by one."""
        group, partition, deliver_run = self._group, place.partition, consumer.deliver_run
        offset = place.cursor
        if deliver_run is None or (place.waiting and place.holds_back):
            return 0
        stored: list[StoredMessage] = []
        for message in map(partition.cached.get, range(offset, min(offset + limit, partition.visible_end))):
            if message is None or now >= message.expires_at:
                break
            stored.append(message)
        if len(stored) < least:
            return 0
        traced = self._traced_among(partition, offset, stored, consumer, now) if partition.traced else ()
        run = DeliveryRun(group.config.name, group.group_id, place.index, offset, stored)
        count = deliver_run(run)
        if traced:
            self._trace_run(partition, traced, consumer, offset + count)
        if not count:
            return 0
        if consumer.settles_at_once:
            self._settle_run(place, consumer, stored, count)
            return count
        deadline = now + self._timeout_s
        entries = [
            PendingEntry(place, at, 1, consumer, DELIVERED, deadline, now, now, "", message.enqueued_at)
            for at, message in enumerate(stored[:count], offset)
        ]
        end = offset + count
        place.pending.update(zip(range(offset, end), entries, strict=True))
        if place.partition.sizes is not None:
            group.out_bytes += sum(map(group.bytes_of, entries))
        place.cursor = end
        group.cursor_total += count
        group.unsettled += count
        consumer.in_flight += count
        consumer.credit -= count
        if group.shared_limit:
            group.in_flight += count
        if deadline != NEVER:
            group.timeouts += [(deadline, entry) for entry in entries]
            if deadline < group.wake_at:
                group.agenda.wake(group, deadline)
        group.log.add_run(place.number, offset, end, consumer.consumer_id, int(now * 1000))
        group.counts.delivered += count
        (group.counts.waited or group.counts.begin_waited()).add(now - stored[0].enqueued_at, count)
        self._in_runs += count
        group.agenda.groups_to_write[group] = None
        return count

    def _traced_among(
        self, partition: QueuePartition, offset: int, stored: list[StoredMessage], consumer: Consumer, now: float
    ) -> list[Traced]:
        """Those of a run that are traced; each says so to its consumer."""
        noted, end = partition.traced or {}, offset + len(stored)
        if len(noted) < len(stored):
            found = [traced for at, traced in noted.items() if offset <= at < end]
        else:
            found = [noted[at] for at in range(offset, end) if at in noted]
        for traced in found:
            at = traced.offset - offset
            message = self._with_context(stored[at].message, traced, consumer, 1, now)
            stored[at] = msgspec.structs.replace(stored[at], message=message)
        return found

    def _trace_run(self, partition: QueuePartition, traced: list[Traced], consumer: Consumer, end: int) -> None:
        """The consumer took what is below an offset."""
        kinds = [TraceKind.DELIVERED, *([TraceKind.ACKED] if consumer.settles_at_once else [])]
        groups = len(self._group.owner.groups)
        for each in traced:
            if each.offset < end:
                for kind in kinds:
                    partition.happened(kind, each, self._group.group_id, consumer.consumer_id, 1, "", groups)
            each.delivery = None

    def _with_context(self, message: Message, traced: Traced, consumer: Consumer, count: int, now: float) -> Message:
        """What the consumer gets of a message that is traced; the span of the delivery is told once it took it."""
        group = self._group
        tracing = group.agenda.tracing
        if tracing is None:
            return message
        return with_delivery_context(
            message, tracing.delivering(traced, group.group_id, consumer.consumer_id, count, now)
        )

    def _settle_run(self, place: GroupPartition, consumer: Consumer, stored: list[StoredMessage], count: int) -> None:
        """What a consumer took at the cursor is settled by that: only the cursor moves."""
        group = self._group
        if len(group.owner.groups) == 1:
            place.partition.uncache(place.cursor, count)
        place.cursor += count
        group.cursor_total += count
        consumer.credit -= count
        if place.partition.sizes is not None:
            group.held_bytes -= sum([each.size for each in stored[:count]])
        group.counts.delivered += count
        (group.counts.waited or group.counts.begin_waited()).add(group.agenda.now - stored[0].enqueued_at, count)
        group.counts.acked += count
        self._in_runs += count
        group.passed_over(place, count)

    def _to_lane(self, place: GroupPartition, lanes: PartitionLanes) -> int:
        """Move a cursor to the next message of its lane. What it passes is of other lanes, which count it."""
        offset = lanes.next_in(place.lane, place.cursor)
        if place.cursor < offset < place.partition.visible_end:
            place.cursor = offset
            self._group.moved[place] = None
            self._group.agenda.groups_to_write[self._group] = None
        return offset

    def deliver_first(self, place: GroupPartition, stored: StoredMessage, consumer: Consumer, now: float) -> bool:
        """Deliver the message at the cursor; False when the consumer has no room or left."""
        group = self._group
        offset = place.cursor
        entry = PendingEntry(place, offset, 1)
        entry.enqueued_at = stored.enqueued_at
        entry.first_delivered_at = now
        # Everything is in place before the call, since a consumer may settle within it.
        place.pending[offset] = entry
        place.cursor = offset + 1
        group.cursor_total += 1
        group.unsettled += 1
        size = 0 if place.partition.sizes is None else place.partition.sizes.of(offset)
        group.out_bytes += size
        if not self.hand_over(entry, stored, consumer, now):
            del place.pending[offset]
            place.cursor = offset
            group.cursor_total -= 1
            group.unsettled -= 1
            group.out_bytes -= size
            return False
        group.log.add(place.number, offset, consumer.consumer_id, int(now * 1000), 1)
        if entry.state is not DELIVERED:
            self.log_settled_in_call(entry)
        group.counts.delivered += 1
        # As Durations.add() does, without the call: this is done for every message that goes alone.
        waited, waited_s = group.counts.waited or group.counts.begin_waited(), now - stored.enqueued_at
        waited.counts[bisect_left(COARSE_S, waited_s)] += 1
        waited.total_s += waited_s
        group.agenda.groups_to_write[group] = None
        return consumer.active

    def hand_over(self, entry: PendingEntry, stored: StoredMessage, consumer: Consumer, now: float) -> bool:
        """Deliver one entry, which is with the consumer from here on; False when it was not taken."""
        group = self._group
        place = entry.place
        offset = entry.offset
        deadline = now + self._timeout_s
        entry.state = DELIVERED
        entry.consumer = consumer
        entry.deadline = deadline
        entry.claimed_at = now
        consumer.in_flight += 1
        consumer.credit -= 1
        if group.shared_limit:
            group.in_flight += 1
        message = stored.message if not entry.annotations else annotated(stored.message, entry.annotations)
        traced = place.partition.traced.get(offset) if place.partition.traced else None
        if traced is not None:
            message = self._with_context(message, traced, consumer, entry.delivery_count, now)
        receipt = ""
        if self._gives_receipts or consumer.options.receipts:
            entry.nonce = group.rng.getrandbits(64)
            receipt = receipt_of(group.config.name, place.index, offset, entry.delivery_count, entry.nonce)
        delivery = Delivery(
            queue=group.config.name,
            partition=place.index,
            offset=offset,
            message_id=f"{self._prefix}{place.index}:{offset}",
            group=group.group_id,
            delivery_count=entry.delivery_count,
            topic=stored.topic or stored.topic_in(group.config.name),
            message=message,
            receipt=receipt,
            # As named() says it: a call less.
            lane=stored.lane if stored.lane < LANES else LANES - 1,
            redelivered=entry.delivery_count > 1 or entry.last_consumer != "",
        )
        if not consumer.deliver(delivery) and entry.state is DELIVERED:
            consumer.blocked = True
            consumer.in_flight -= 1
            consumer.credit += 1
            if group.shared_limit:
                group.in_flight -= 1
            entry.consumer = None
            if traced is not None:
                traced.delivery = None
            return False
        if deadline != NEVER:
            group.timeouts.append((deadline, entry))
            if deadline < group.wake_at:
                group.agenda.wake(group, deadline)
        if traced is not None or group.tracer is not None:
            group.trace(TraceKind.DELIVERED, entry)
        return True

    def redeliver(self, entry: PendingEntry, consumer: Consumer, now: float) -> bool:
        """Deliver a waiting entry again, or give it up when it has expired, is damaged or was delivered too often."""
        group = self._group
        place = entry.place
        stored = place.partition.get(entry.offset)
        place.pop_waiting()
        if stored is None:
            group.counts.unreadable += 1
            group.discard(entry, "unreadable")
            return False
        if now >= stored.expires_at:
            group.owner.expire_entry(group, entry, stored, now)
            return False
        if group.pattern and entry.delivery_count <= entry.released and not self.matches_key(stored.routing_key):
            # It came to wait, or was on its way to the dead letters, before it was the group's turn to look at it.
            group.counts.unmatched += 1
            group.remove(entry, None)
            return False
        entry.enqueued_at = stored.enqueued_at
        if group.gives_up(entry, stored, now):
            return False
        due, is_first = entry.deadline, not entry.delivery_count
        if is_first:
            entry.first_delivered_at = now
        group.stops_waiting(entry)
        released, entry.released = entry.released, False
        entry.delivery_count += not released
        if not self.hand_over(entry, stored, consumer, now):
            entry.delivery_count -= not released
            entry.released = released
            entry.deadline = due
            group.starts_waiting(entry)
            return False
        group.log.claim(place.number, entry.offset, consumer.consumer_id, int(now * 1000), entry.delivery_count)
        if entry.state is not DELIVERED:
            self.log_settled_in_call(entry)
        if is_first:
            group.counts.delivered += 1
        else:
            group.counts.redelivered += 1
        group.agenda.groups_to_write[group] = None
        return True

    def take_over(self, entry: PendingEntry, consumer: Consumer, now: float) -> bool:
        """Deliver to a consumer what another one, or itself, has; False when it took nothing or the message is gone.

        Raises :class:`LogError`.
        """
        group = self._group
        holder, deadline, claimed_at, nonce = entry.consumer, entry.deadline, entry.claimed_at, entry.nonce
        stored = entry.place.partition.get(entry.offset)
        if stored is None:
            group.counts.unreadable += 1
            group.discard(entry, "unreadable")
            return False
        if now >= stored.expires_at:
            group.owner.expire_entry(group, entry, stored, now)
            return False
        entry.enqueued_at = stored.enqueued_at
        entry.delivery_count += 1
        if not self.hand_over(entry, stored, consumer, now):
            entry.delivery_count -= 1
            entry.consumer, entry.deadline, entry.claimed_at, entry.nonce = holder, deadline, claimed_at, nonce
            return False
        if holder is not None:
            group.let_go(holder, entry.place)
        group.log.claim(entry.place.number, entry.offset, consumer.consumer_id, int(now * 1000), entry.delivery_count)
        if entry.state is not DELIVERED:
            self.log_settled_in_call(entry)
        group.counts.redelivered += 1
        group.counts.claimed += 1
        group.agenda.groups_to_write[group] = None
        return True

    def log_settled_in_call(self, entry: PendingEntry) -> None:
        """A settlement within the delivery call: in the log it must follow the delivery."""
        if entry.state is SETTLED:
            self._group.log.ack(entry.place.number, entry.offset)
            return
        if entry.annotations:
            self._group.annotate(entry, entry.annotations)
        if entry.state is EntryState.WAITING:
            self._group.log.expire(entry.place.number, entry.offset, int(entry.deadline * 1000))

    # -- passing over --------------------------------------------------------------------------------------------

    def _skip(self, place: GroupPartition) -> None:
        group = self._group
        if place.partition.sizes is not None:
            group.held_bytes -= place.partition.sizes.of(place.cursor)
        place.cursor += 1
        self._skips += 1
        group.cursor_total += 1
        group.moved[place] = None
        group.agenda.groups_to_write[group] = None

    def _pass_damage(self, place: GroupPartition, end: int) -> None:
        group, offset = self._group, place.cursor
        lost = group.owner.pass_over(group, place, end)
        group.counts.unreadable += lost
        if group.tracer is not None:
            fields: dict[str, str | int] = {
                "queue": group.config.name,
                "group": group.group_id,
                "partition": place.index,
                "offset": offset,
                "detail": f"unreadable: {lost} messages",
            }
            group.tracer(TraceKind.DISCARDED, fields)

    def matches_key(self, routing_key: str) -> bool:
        """Whether the group's pattern asks for a routing key."""
        key = (self._group.pattern, routing_key)
        known = _MATCHED.get(key)
        if known is None:
            known = matches(*key)
            remember(_MATCHED, key, known, len(key[0]) + len(routing_key), MATCH_CACHE)
        return known

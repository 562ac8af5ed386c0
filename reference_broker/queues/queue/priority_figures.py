"""Figures per priority and partition, in the shape of seed 002's ``GET /priority/stats``."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

import msgspec

from assay.reference_broker.queues.groups.pending import EntryState
from assay.reference_broker.queues.messages.lanes import NORMAL, lane_count

if TYPE_CHECKING:
    from assay.reference_broker.queues.groups.contents import QueueContents
    from assay.reference_broker.queues.partitions.partition import QueuePartition

_WINDOW_S = 10.0
_MIN_INTERVAL_S = 1.0


class LaneFigures(msgspec.Struct, frozen=True, kw_only=True):
    """One partition; each list has critical, high, normal, low and background, or every exact level from the highest
    on."""

    ready: list[int]
    """For the group that has most before it; all that is stored while there is no group."""
    in_flight: list[int]
    """Unsettled deliveries of all groups."""
    enqueue_rate: list[float]
    """Messages a second over the last ten seconds or so, between two requests for these figures; 0 at the first."""
    dequeue_rate: list[float]


class TopicFigures(msgspec.Struct, frozen=True, kw_only=True):
    partitions: dict[str, LaneFigures]


class PriorityFigures(msgspec.Struct, frozen=True, kw_only=True):
    """The whole answer."""

    topics: dict[str, TopicFigures]
    """By queue."""


_Counts = list[tuple[list[int], list[int]]]


class PriorityRates:
    """Remembers what was counted at earlier requests, so that a queue nobody asks about keeps nothing."""

    def __init__(self, contents: QueueContents) -> None:
        self._contents = contents
        self._samples: deque[tuple[float, _Counts]] = deque()

    def figures(self, now: float) -> TopicFigures:
        queue = self._contents
        ready = [ready_by_lane(queue, partition) for partition in queue.partitions]
        counts: _Counts = []
        for partition, waiting in zip(queue.partitions, ready, strict=True):
            enqueued = _enqueued(partition, len(waiting))
            counts.append((enqueued, [total - left for total, left in zip(enqueued, waiting, strict=True)]))
        since, before = self._earlier(now, counts)
        elapsed_s = now - since

        def rate(index: int, side: int) -> list[float]:
            if elapsed_s <= 0 or index >= len(before):
                return [0.0] * len(ready[index])
            pairs = zip(counts[index][side], before[index][side], strict=True)
            return [round(max(0, later - earlier) / elapsed_s, 3) for later, earlier in pairs]

        return TopicFigures(
            partitions={
                str(partition.index): LaneFigures(
                    ready=ready[index],
                    in_flight=in_flight_by_lane(queue, partition),
                    enqueue_rate=rate(index, 0),
                    dequeue_rate=rate(index, 1),
                )
                for index, partition in enumerate(queue.partitions)
            }
        )

    def _earlier(self, now: float, counts: _Counts) -> tuple[float, _Counts]:
        samples = self._samples
        while len(samples) > 1 and samples[1][0] <= now - _WINDOW_S:
            samples.popleft()
        if not samples or samples[-1][0] <= now - _MIN_INTERVAL_S:
            samples.append((now, counts))
        return samples[0]


def _enqueued(partition: QueuePartition, count: int) -> list[int]:
    """Messages ever written, by lane; those of before the last start as far as they are still stored."""
    lanes = partition.lanes
    totals = list(lanes.added) if lanes is not None else [0] * count
    totals[NORMAL] = partition.log.next_offset - sum(totals)
    return totals


def ready_by_lane(queue: QueueContents, partition: QueuePartition) -> list[int]:
    """How many messages of each priority lane wait for a consumer."""
    lanes, end, count = partition.lanes, partition.log.next_offset, lane_count(queue.config.priority)

    def left(lane: int, start: int) -> int:
        """But for what has expired or was aborted, and the records that end transactions."""
        gone = partition.expiry.gone_between(start, end) if partition.expiry is not None else ()
        if lanes is not None:
            return lanes.count(lane, start, end) - sum(lanes.count(lane, *each) for each in gone)
        return end - start - sum(last - first for first, last in gone) if lane == NORMAL else 0

    if not queue.groups:
        return [left(lane, partition.head) for lane in range(count)]
    columns: list[list[int]] = []
    for group in queue.groups.values():
        home = group.places[partition.index]
        columns.append(
            [left(place.lane, place.cursor) for place in home.lanes]
            if home.lanes is not None
            else [left(lane, home.cursor if lane == NORMAL else end) for lane in range(count)]
        )
    return max(columns, key=sum)


def in_flight_by_lane(queue: QueueContents, partition: QueuePartition) -> list[int]:
    """How many messages of each priority lane are with consumers."""
    counts = [0] * lane_count(queue.config.priority)
    for group in queue.groups.values():
        home = group.places[partition.index]
        for place in home.lanes or (home,):
            states = (entry.state for entry in place.pending.values())
            counts[place.lane] += sum(state is EntryState.DELIVERED for state in states)
    return counts

"""Priority lanes: which messages of a partition are in which lane, and whose turn it is.

A lane is a view on the partition's one log. Only messages that are not of normal priority are listed; the normal lane
is everything else, so a queue without priorities keeps nothing here.
"""

from __future__ import annotations

import math
from array import array
from bisect import bisect_left
from collections.abc import Callable, Sequence

from assay.reference_broker.config import PriorityConfig
from assay.reference_broker.queues.messages.publish_options import Priority

LANES = len(Priority)
NORMAL = Priority.NORMAL.value
LANE_STRIDE = 65_536
"""Distance of a lane's place numbers in the group log: a queue has fewer partitions than that."""
NO_OFFSET = 2**63 - 1
_RECHECK_S = 1.0

_PLUMEGO_LEVELS = (40, 30, 20, 10, 0)


def lane_of_level(level: int) -> Priority:
    """The lane of plumego's levels: lowest 0, low 10, normal 20, high 30, highest 40. Levels between count downwards.

    Raises :class:`ValueError` for a level below 0 or above 40.
    """
    if not 0 <= level <= _PLUMEGO_LEVELS[0]:
        raise ValueError(f"a priority level is 0 to {_PLUMEGO_LEVELS[0]}, not {level}")
    return Priority(next(lane for lane, lowest in enumerate(_PLUMEGO_LEVELS) if level >= lowest))


def lane_count(config: PriorityConfig) -> int:
    """The lanes of a queue: the five of :class:`Priority`, or one for each exact level if those are more."""
    return max(config.levels, LANES)


def lane_of_exact(level: int, config: PriorityConfig) -> int:
    """The lane of one of a queue's exact levels: 0, and what has none, is the last; what is too high is the highest."""
    return lane_count(config) - 1 - min(level, config.levels - 1)


def named(lane: int) -> Priority:
    """What those call a lane who know five of them; of exact levels the fifth from above and all below are one."""
    return Priority(min(lane, Priority.BACKGROUND))


def scheduler_of(config: PriorityConfig, now: float) -> LaneScheduler:
    """Who says whose turn it is. Of exact levels always the most urgent one: it has weight without end."""
    if config.levels:
        return LaneScheduler((math.inf,) * lane_count(config), 0.0, now)
    return LaneScheduler(config.weights, config.starvation_s, now)


def place_number(partition: int, lane: int) -> int:
    """What the group log calls a lane of a partition. The normal lane is the partition itself, as without lanes."""
    return partition if lane == NORMAL else partition + (lane + 1) * LANE_STRIDE


class PartitionLanes:
    """The offsets of one partition's messages that are not in the normal lane, ascending."""

    __slots__ = ("_by_lane", "_special", "added")

    def __init__(self, count: int = LANES) -> None:
        self._by_lane = tuple(array("q") for _ in range(count))
        self._special = array("q")
        self.added = [0] * count
        """Messages listed so far, by lane."""

    def __len__(self) -> int:
        return len(self._by_lane)

    def add(self, offset: int, lane: int) -> None:
        """A message of the lane was written. Offsets out of order are sorted in, so none becomes unreachable (G3)."""
        self.added[lane] += 1
        for offsets in (self._by_lane[lane], self._special):
            if not offsets or offsets[-1] < offset:
                offsets.append(offset)
            else:
                at = bisect_left(offsets, offset)
                if offsets[at] != offset:
                    offsets.insert(at, offset)

    def next_in(self, lane: int, offset: int) -> int:
        """The lane's first offset from ``offset`` on; :data:`NO_OFFSET` when a lane but the normal one has no more.

        In the normal lane it may be an offset that is not written yet.
        """
        if lane != NORMAL:
            offsets = self._by_lane[lane]
            at = bisect_left(offsets, offset)
            return offsets[at] if at < len(offsets) else NO_OFFSET
        special = self._special
        return offset + _consecutive(special, bisect_left(special, offset), offset, len(special))

    def count(self, lane: int, start: int, end: int) -> int:
        """How many offsets of the lane are in ``[start, end)``."""
        if end <= start:
            return 0
        offsets = self._special if lane == NORMAL else self._by_lane[lane]
        found = bisect_left(offsets, end) - bisect_left(offsets, start)
        return end - start - found if lane == NORMAL else found

    def stretch(self, lane: int, offset: int, most: int) -> int:
        """How many messages of the lane stand one behind the other from one of it on, looked for up to ``most``."""
        if lane == NORMAL:
            at = bisect_left(self._special, offset)
            return min(most, self._special[at] - offset) if at < len(self._special) else most
        offsets = self._by_lane[lane]
        return _consecutive(offsets, bisect_left(offsets, offset), offset, most)

    def drop_before(self, offset: int) -> None:
        """Forget what the log does not keep any more."""
        for offsets in (*self._by_lane, self._special):
            del offsets[: bisect_left(offsets, offset)]


def _consecutive(offsets: Sequence[int], at: int, offset: int, most: int) -> int:
    """How many of these, from a position on, are ``offset`` and those behind it without a gap, looked for up to
    ``most``. The work grows with the logarithm of how many there are."""
    end = min(most, len(offsets) - at)
    if end <= 0 or offsets[at] != offset:
        return 0
    return bisect_left(range(end), True, key=lambda step: offsets[at + step] > offset + step)


class LaneScheduler:
    """Deficit round robin over the lanes of one group; a message costs one.

    Each round gives every lane its weight. A round serves the most urgent lane that has messages and something left,
    and ends when no lane with messages has: so the shares hold while all lanes are full, and what an idle lane does not
    use goes to the others by their weights. Nothing is carried into the next round, so no deficit grows.

    A lane whose first message has waited ``starvation_s`` since it came, and since the lane was served, is next.
    """

    __slots__ = ("_guard_at", "_left", "_served_at", "_starvation_s", "_weights")

    def __init__(self, weights: Sequence[float], starvation_s: float, now: float) -> None:
        """``starvation_s`` 0 = no guard."""
        self._weights = tuple(weights)
        self._left = list(weights)
        self._starvation_s = starvation_s if starvation_s > 0 else float("inf")
        self._served_at = [now] * len(self._weights)
        self._guard_at = now + self._starvation_s

    def pick(self, dry: Sequence[bool], now: float, waiting_since: Callable[[int], float | None]) -> tuple[int, float]:
        """(lane, how many of its messages may go in one go); (-1, 0) when all are dry.

        ``dry``: lanes that have nothing for the consumer. ``waiting_since``: when the first message of a lane that the
        consumer could get came to the queue; None when there is none.
        """
        if now >= self._guard_at:
            starving = self.starving(dry, now, waiting_since)
            if starving >= 0:
                return starving, 1
        left = self._left
        for lane in range(len(left)):
            if left[lane] and not dry[lane]:
                return lane, left[lane]
        for lane in range(len(left)):
            if self._weights[lane] and not dry[lane]:
                self._left = list(self._weights)
                return lane, self._left[lane]
        return -1, 0

    def served(self, lane: int, count: int, now: float) -> None:
        """So many messages of the lane were delivered."""
        self._left[lane] = max(0, self._left[lane] - count)
        self._served_at[lane] = now

    def starving(self, dry: Sequence[bool], now: float, waiting_since: Callable[[int], float | None]) -> int:
        """The lane that has waited longest beyond the limit; -1 when none has."""
        longest, found = float("inf"), -1
        guard_at = now + self._starvation_s
        for lane in range(len(self._left)):
            since = None
            if not dry[lane] and self._served_at[lane] + self._starvation_s <= now:
                arrived = waiting_since(lane)
                # Nothing for this consumer, but perhaps for another, who asks soon.
                since = None if arrived is None else max(arrived, self._served_at[lane])
                guard_at = min(guard_at, now + _RECHECK_S if since is None else since + self._starvation_s)
            else:
                due_at = self._served_at[lane] + self._starvation_s
                guard_at = min(guard_at, due_at if due_at > now else now + _RECHECK_S)
            if since is not None and since + self._starvation_s <= now and since < longest:
                longest, found = since, lane
        self._guard_at = guard_at
        return found

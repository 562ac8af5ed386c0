"""Whose turn it is where the order of messages does not count: every consumer may have every message."""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable

from assay.reference_broker.queues.groups.pending import Consumer

_Turn = tuple[float, int, int, int, Consumer]
"""What decides, and whose it is."""


class FairTurns:
    """The consumers with room, those that wait before those that only ask now: of those with the highest priority the
    one with the fewest unsettled deliveries first.

    Among equals comes who has waited longest since its last delivery, and among new ones who joined first. So no
    consumer takes a burst while others are idle, and a run repeats exactly.
    """

    def __init__(self, consumers: Iterable[Consumer]) -> None:
        self._heap: list[_Turn] = [
            (
                -consumer.options.priority if consumer.options.waits else math.inf,
                consumer.in_flight,
                consumer.served_at,
                joined,
                consumer,
            )
            for joined, consumer in enumerate(consumers)
            if has_room(consumer)
        ]
        heapq.heapify(self._heap)

    def next(self) -> Consumer | None:
        """Who is to get the next message; None when nobody has room."""
        heap = self._heap
        while heap:
            rank, in_flight, served_at, joined, consumer = heap[0]
            if not has_room(consumer):
                heapq.heappop(heap)
            elif consumer.in_flight != in_flight or consumer.served_at != served_at:
                # It got something, or settled something meanwhile.
                heapq.heapreplace(heap, (rank, consumer.in_flight, consumer.served_at, joined, consumer))
            else:
                return consumer
        return None

    def equals(self, most: int) -> tuple[list[Consumer], float]:
        """Among whom the next messages go in turn, in that order, and how many each gets before others have a turn.

        Of more than ``most`` some are left out.
        """
        heap = self._heap
        found: list[_Turn] = []
        each = math.inf
        while len(found) <= most and self.next() is not None:
            rank, in_flight = heap[0][:2]
            if found and (rank, in_flight) != found[0][:2]:
                each = in_flight - found[0][1] if rank == found[0][0] else math.inf
                break
            found.append(heapq.heappop(heap))
        for turn in found:
            heapq.heappush(heap, turn)
        return [turn[-1] for turn in found], each


def has_room(consumer: Consumer) -> bool:
    """Whether a consumer can take a delivery now."""
    return consumer.active and not consumer.blocked and consumer.room > 0

"""Taking single messages out of what a group has not got yet, as dead letters are sent back one by one."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from assay.reference_broker.queues.groups.pending import PendingEntry

if TYPE_CHECKING:
    from assay.reference_broker.queues.groups.group import ConsumerGroup
    from assay.reference_broker.queues.groups.pending import GroupPartition


def take_up(group: ConsumerGroup, place: GroupPartition, offset: int, now: float) -> None:
    """Make what a group has not got yet, up to an offset and with it, wait for a delivery as a retry does.

    So single ones of them can be taken out; the first delivery still counts as the first.
    """
    now_ms = int(now * 1000)
    while place.cursor <= offset:
        at = place.cursor
        entry = PendingEntry(place, at, 0)
        entry.deadline = now
        place.pending[at] = entry
        place.cursor += 1
        group.cursor_total += 1
        group.unsettled += 1
        group.log.add(place.number, at, "", now_ms, 0)
        group.log.expire(place.number, at, now_ms)
        group.wait_again(entry, now)
    group.confirm_when_written(None)


def inherit(created: ConsumerGroup, others: Iterable[ConsumerGroup], now: float) -> None:
    """A new group of a dead-letter queue does not get what all others have settled, nor what was sent back."""
    known = list(others)
    for place in created.places:
        states = [other.places[place.index] for other in known]
        end = min(state.cursor for state in states)
        gone = [offset for offset in range(place.cursor, end) if not any(offset in state.pending for state in states)]
        for offset in gone:
            if place.cursor < offset:
                take_up(created, place, offset - 1, now)
            place.cursor = offset + 1
            created.cursor_total += 1
            created.moved[place] = None
    created.confirm_when_written(None)

"""How a consumer group takes up what its log says."""

from __future__ import annotations

from math import inf, nextafter

from assay.reference_broker.queues.groups.group_state import GroupState
from assay.reference_broker.queues.groups.pending import PendingEntry
from assay.reference_broker.routing.properties import decode_table


def seconds_of(milliseconds: int) -> float:
    """Seconds that are written down as the same milliseconds again, ``int(seconds * 1000)``, however often starts read
    them and snapshots write them: a decision names a delivery by them (:class:`HeldOffset`)."""
    seconds = milliseconds / 1000
    return seconds if int(seconds * 1000) == milliseconds else nextafter(seconds, inf)


def recover(group: GroupState, now: float, *, volatile: bool) -> None:
    """Take up the log's state: what was with a consumer is ready again, what waited for a retry still waits.

    The log may know more than the partitions when power was lost before their last records were synced. Offsets
    that are given out again must not count as settled, so such knowledge is dropped, durably. Raises LogError.
    """
    cursors = group.log.recovered_cursors
    beyond: dict[int, int] = {}
    by_number = {place.number: place for place in group.every_place}
    for place in by_number.values():
        log = place.partition.log
        wanted = cursors.get(place.number, log.start_offset)
        place.cursor = min(max(wanted, log.start_offset), log.next_offset)
        if wanted > log.next_offset:
            beyond[place.number] = place.cursor
            log.report(log.next_offset, f"group {group.group_id!r} had come to {wanted}: what lay between is lost")
    group.cursor_total = sum(place.passed for place in group.places)
    for record in group.log.recovered:
        found = by_number.get(record.partition)
        if found is None:
            continue
        place = found
        if not place.partition.log.start_offset <= record.offset < place.cursor:
            if record.offset >= place.cursor:
                beyond[place.number] = place.cursor
            continue
        entry = PendingEntry(place, record.offset, record.delivery_count)
        entry.claimed_at = entry.first_delivered_at = seconds_of(record.claimed_at_ms)
        due_at = record.due_at_ms / 1000
        # No longer than it was to wait when it was set: the clock may have been set back since.
        due_at = min(due_at, now + max(0.0, due_at - entry.claimed_at)) if due_at else now
        entry.deadline = due_at if due_at > now else group.ready_since(due_at)
        entry.last_consumer = record.consumer
        # What was on its way to the dead letters without a delivery comes for the first time; older brokers wrote 1.
        entry.released = not record.consumer and record.delivery_count == 1
        if not record.due_at_ms and not entry.released:
            entry.lost_at = now
        try:
            decode_table(record.annotations)
            entry.annotations = record.annotations
        except ValueError as error:
            place.partition.log.report(record.offset, f"what consumers noted on it is lost: {error}")
        place.pending[record.offset] = entry
        group.unsettled += 1
        group.wait_again(entry, now)
    group.count_what_is_there()
    if beyond:
        group.log.rewind(beyond)
    if group.log.needs_sync and not volatile:
        # The process that wrote it may have been killed before its sync, and an idle group writes nothing more.
        group.agenda.unsynced[group] = None

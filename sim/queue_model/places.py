"""Where messages are, and the order that follows from it."""

from __future__ import annotations

from typing import Final

from assay.sim.queue_model.figures import is_passed_over
from assay.sim.queue_model.state import NEW, NONE, Copy, Group, Kind, Queue, Sent, ViolationError, fnv1a_32

_NEVER: Final = float("inf")


def locate(queue: Queue, label: str, place: tuple[int, int], what: str) -> Sent:
    """The message of a delivery; learns where it is."""
    known = queue.labels.get(label, [])
    found = [sent for sent in known if sent.place == place] or [sent for sent in known if sent.place is None]
    if not found:
        raise ViolationError(f"{what}: never published, or known to be elsewhere")
    sent = min(found, key=lambda each: (each.unsure, not _may_show(queue, each), _may_be_absent(queue, each)))
    if sent.place is not None and sent.unsure:
        _pass_doubt_on(queue, known)
    if sent.place is None:
        if sent.key is not None and place[0] != fnv1a_32(sent.key) % queue.rules.partitions:
            raise ViolationError(f"{what}: its key {sent.key!r} belongs to another partition")
        for there, neighbour in list(queue.places.items()):
            is_misplaced = there[0] == place[0] and (there < place) != (neighbour.number < sent.number)
            is_timed = not (sent.is_delayed or neighbour.is_delayed or queue.rules.max_retries == _NEVER)
            if there == place or (is_misplaced and is_timed):
                # Only when the other one was lost in a crash.
                _lose(queue, neighbour, f"{what}: {neighbour.label} is or was at {there}")
        sent.place = place
        queue.places[place] = sent
    return sent


def _pass_doubt_on(queue: Queue, alike: list[Sent]) -> None:
    """Where a letter that a crash may have lost was, there is one of the same label: that, or the one that was written
    since. Which of them is not there nobody can tell, nor whether both are."""
    twin = next((each for each in alike if each.place is None and not each.unsure), None)
    if twin is not None:
        twin.unsure = True
        for group in queue.groups.values():
            group.copies[twin].spots |= {NONE}


def _may_show(queue: Queue, sent: Sent) -> bool:
    return any(group.copies[sent].may(Kind.READY) for group in queue.groups.values())


def _may_be_absent(queue: Queue, sent: Sent) -> bool:
    return any(group.copies[sent].may(Kind.NONE) for group in queue.groups.values())


def _lose(queue: Queue, sent: Sent, why: str) -> None:
    if not sent.unsure:
        raise ViolationError(why)
    assert sent.place is not None
    del queue.messages[sent], queue.places[sent.place]
    if not sent.is_hole:
        queue.labels[sent.label].remove(sent)
    for group in queue.groups.values():
        group.remove(sent).spots = {NONE}


def remove(queue: Queue, sent: Sent) -> None:
    """It was aborted: nobody gets it."""
    if queue.messages.pop(sent, 0) is None:
        queue.labels[sent.label].remove(sent)
        if sent.place is not None:
            queue.places.pop(sent.place, None)
        for group in queue.groups.values():
            copy = group.remove(sent)
            if copy.may(Kind.DONE, Kind.NONE):
                # A reset, or a group that began behind it, skipped it; then it counts twice.
                group.total = None
            copy.spots = {NONE}
        if sent.may_be_hole:
            _leave_hole(queue, sent)
        else:
            queue.ghosts.append(sent)


def _leave_hole(queue: Queue, sent: Sent) -> None:
    sent.is_hole = sent.unsure = True
    queue.messages[sent] = None
    if sent.place is not None and queue.places.setdefault(sent.place, sent) is not sent:
        sent.place = None
    for group in queue.groups.values():
        group.add(Copy(sent, NEW, NONE))


def leave_holes(queue: Queue, mark: int) -> None:
    """Power was lost: of what was written behind step ``mark`` any part may be missing."""
    for sent in queue.messages:
        sent.may_be_hole |= sent.unsure
    ghosts, queue.ghosts = queue.ghosts, []
    for ghost in ghosts:
        if ghost.number > mark and not (ghost.confirmed and queue.rules.durability == "fsync"):
            _leave_hole(queue, ghost)


def check_order(group: Group, copy: Copy, what: str, now: float) -> None:
    """Nothing earlier of its partition and lane may still wait for its turn."""
    (partition, offset), lane = copy.message.place or (0, 0), copy.message.lane
    for other in group.open:
        there = other.message.place
        if there is None or other.message.lane != lane:
            continue
        if there[0] == partition and there[1] < offset and _is_owed(group, other, now):
            raise ViolationError(f"{what}: {other.message.label} at {there} comes first")
    if any(spot.deliveries == 0 and not spot.released for spot in copy.spots) and offset <= group.reached.get(
        (partition, lane), -1
    ):
        raise ViolationError(f"{what}: offset {group.reached[partition, lane]} came first")
    group.reached[partition, lane] = max(offset, group.reached.get((partition, lane), -1))


def _is_owed(group: Group, copy: Copy, now: float) -> bool:
    """It certainly waits to be delivered, now or later."""
    return all(spot.kind is Kind.READY for spot in copy.spots) and not is_passed_over(group, copy.message, now)


def may_hold_back(other: Copy, copy: Copy) -> bool:
    if other.message.lane != copy.message.lane:
        return False
    place, own = other.message.place or (0, 0), copy.message.place
    return other.is_retried and other is not copy and (own is None or (own[0] == place[0] and place < own))

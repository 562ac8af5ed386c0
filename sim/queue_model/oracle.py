"""What a queue engine is allowed to do, in plain Python; it knows nothing of the engine.

Each group has a *copy* of each message, and each copy a set of *spots*: everything that may be true of it. What clients
do moves the spots on; what the engine shows must be possible for at least one spot, and rules the others out. While
nothing crashes the sets hold one spot. A crash widens them by what had not been made safe.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Final

from assay.sim.queue_model.books import Books
from assay.sim.queue_model.figures import depth, is_passed_over
from assay.sim.queue_model.places import check_order, leave_holes, locate, may_hold_back
from assay.sim.queue_model.state import (
    COUNTED,
    DEAD,
    DONE,
    NEW,
    NONE,
    THROUGH,
    Copy,
    Group,
    Kind,
    Queue,
    Rules,
    Sent,
    Spot,
    ViolationError,
)
from assay.sim.queue_model.transactions import Transactions, holds_back

_NEVER: Final = float("inf")

_PAST: Final = {"release": "released"}


class Oracle(Books):
    """All queues. Its methods are called in the order in which things happen, and raise :class:`ViolationError`."""

    def __init__(self, rules: dict[str, Rules], now: float) -> None:
        super().__init__(rules, now)
        self.transactions = Transactions(self)

    # -- publishing ----------------------------------------------------------------------------------------------

    def publish(self, name: str, label: str, key: str | None, routing_key: str, expires_at: float) -> Sent:
        """The engine took a message."""
        queue = self.queues[name]
        least, most = depth(queue, self.now)
        if least >= queue.rules.max_depth and not queue.rules.drops_oldest:
            raise ViolationError(f"{name} took {label} beyond its limit")
        if most >= queue.rules.max_depth:
            self.drop_oldest(queue)
        ttl_s = queue.rules.ttl_s
        return self.add(queue, label, key, routing_key, min(expires_at, self.now + ttl_s if ttl_s else _NEVER))

    def drop_oldest(self, queue: Queue) -> None:
        """Some message that nobody was given made room."""
        if queue.rules.drops_oldest:
            for sent in queue.messages:
                sent.unneeded |= not queue.groups
            for group in queue.groups.values():
                for copy in list(group.open):
                    if NEW in copy.spots and DONE not in copy.spots and not self.transactions.is_open(copy.message):
                        self.become(copy, *copy.spots, DONE)

    def refused(self, name: str) -> None:
        """The engine refused a message since the queue is full."""
        queue = self.queues[name]
        _, most = depth(queue, self.now)
        if most < queue.rules.max_depth and not queue.rules.drops_oldest:
            raise ViolationError(f"{name} is not full: {most} of {queue.rules.max_depth}")

    # -- members -------------------------------------------------------------------------------------------------

    def join(self, name: str, group_id: str, consumer: str, wants: Callable[[str], bool]) -> None:
        queue = self.queues[name]
        group = queue.groups.get(group_id)
        self.step += 1
        if group is None:
            self.note_unneeded(queue)
            group = queue.groups[group_id] = Group(wants, self.step)
            for sent in queue.messages:
                group.add(Copy(sent, NEW, NONE) if sent.unneeded or sent.unsure else Copy(sent, NEW))
        self.leave(name, group_id, consumer)
        group.members[consumer] = True

    def leave(self, name: str, group_id: str, consumer: str) -> None:
        """What it holds has failed, and is ready at once."""
        queue = self.queues[name]
        group = queue.groups[group_id]
        if group.members.pop(consumer, None) is not None:
            for copy in group.held_by(consumer):
                self.fail(queue, group_id, copy, self.now)

    def note_unneeded(self, queue: Queue) -> None:
        for sent in queue.messages:
            copies = [(group, group.copies[sent]) for group in queue.groups.values()]
            sent.unneeded |= bool(copies) and all(
                copy.may(Kind.MOVING, Kind.DEAD, Kind.DONE, Kind.NONE) or is_passed_over(group, sent, self.now)
                for group, copy in copies
            )

    # -- deliveries ----------------------------------------------------------------------------------------------

    def deliver(self, name: str, group_id: str, consumer: str, label: str, place: tuple[int, int], count: int) -> Sent:
        """A consumer was given a message."""
        queue = self.queues[name]
        rules, group = queue.rules, queue.groups[group_id]
        what = f"{name}/{group_id} delivers {label} at {place} to {consumer}, count {count}"
        sent = locate(queue, label, place, what)
        copy = group.copies[sent]
        possible = [
            spot
            for spot in copy.spots
            if spot.kind is Kind.READY and spot.deliveries + 1 == count and spot.at <= self.now
        ]
        if not possible:
            raise ViolationError(f"{what}, which may only be {copy.spots}")
        # Before anything else may be true of it, its release was told.
        is_again = any(spot.released for spot in possible)
        if consumer not in group.members or len(group.held_by(consumer)) >= rules.max_in_flight:
            raise ViolationError(f"{what}, which has left or has enough")
        if group.in_flight >= rules.group_limit:
            raise ViolationError(f"{what}: its group has enough")
        if sent.expires_at <= self.now or not group.wants(sent.routing_key):
            raise ViolationError(f"{what}, which has expired or is not what the group wants")
        if count > rules.max_retries + 1:
            raise ViolationError(f"{what}, although it may be tried again {rules.max_retries} times")
        if rules.durability == "fsync" and not sent.is_orphan:
            if not sent.confirmed and sent.source is None:
                raise ViolationError(f"{what} before its publisher knows that it is safe")
            # What an fsync queue shows is safe.
            sent.confirmed = True
        self.transactions.delivered(queue, sent, copy, count, what)
        self.appeared(queue, sent)
        if rules.ordered and not copy.is_claimed:
            check_order(group, copy, what, self.now)
        self.become(copy, Spot(Kind.FLIGHT, count, self.now + (rules.timeout_s or _NEVER), consumer))
        group.counts["delivered" if count == 1 and not is_again else "redelivered"] += 1
        return sent

    # -- settlements ---------------------------------------------------------------------------------------------

    def holders(self, name: str, sent: Sent, consumer: str | None) -> list[str]:
        """Groups in which a settlement by that consumer (None: anybody) finds the message in flight."""
        return [
            group_id
            for group_id, group in self.queues[name].groups.items()
            if any(spot.kind is Kind.FLIGHT and consumer in (None, spot.holder) for spot in group.copies[sent].spots)
        ]

    def settle(
        self, name: str, group_id: str, sent: Sent, verb: str, wait_s: float | None = None
    ) -> Callable[[], None]:
        """The engine took a settlement; returns what to call when it is confirmed.

        ``wait_s``: a delay that a nack asks for, or the time that an extension does.
        """
        queue = self.queues[name]
        rules, group = queue.rules, queue.groups[group_id]
        copy = group.copies[sent]
        (spot,) = copy.spots
        if verb == "extend":
            wait_s = rules.timeout_s if wait_s is None else wait_s
            self.become(copy, spot._replace(at=self.now + wait_s))
            return lambda: None
        group.counts[_PAST.get(verb, verb + "ed")] += 1
        if verb == "ack":
            self.become(copy, DONE)
        elif verb == "release":
            self.become(copy, Spot(Kind.READY, spot.deliveries - 1, self.now, released=True))
        elif verb == "nack":
            if wait_s is None:
                wait_s = rules.backoff_s(spot.deliveries) if rules.nack_waits else 0.0
            self.fail(queue, group_id, copy, self.now + wait_s)
        else:
            self.give_up(queue, group_id, copy)
        step, letter = self.step, copy.letter if copy.may(Kind.MOVING) else None

        def confirmed() -> None:
            if letter is not None:
                letter.confirmed = True
                copy.spots = {DEAD}
            if rules.durability == "fsync":
                copy.before = [(at, spots) for at, spots in copy.before if at > step]
                group.born = 0

        return confirmed

    # -- time ----------------------------------------------------------------------------------------------------

    def tick(self, now: float) -> None:
        """Deliveries time out."""
        self.now = now
        for queue, group_id, group, copy in self._every():
            for spot in list(copy.spots):
                if spot.kind is Kind.FLIGHT and spot.at <= now:
                    group.counts["timed_out"] += 1
                    self.fail(queue, group_id, copy, now + queue.rules.backoff_s(spot.deliveries))

    def _every(self, *, ended: bool = False) -> Iterator[tuple[Queue, str, Group, Copy]]:
        for queue in self.queues.values():
            for group_id, group in queue.groups.items():
                for copy in list(group.copies.values() if ended else group.open):
                    yield queue, group_id, group, copy

    def next_due(self) -> float:
        """When the engine must look at its clock at the latest."""
        times = (
            spot.at
            for _, _, group, copy in self._every()
            for spot in copy.spots
            if spot.kind is Kind.FLIGHT
            or (spot.kind is Kind.READY and spot.at > self.now and group.members and len(copy.spots) == 1)
            if not is_passed_over(group, copy.message, self.now) or spot.kind is Kind.FLIGHT
        )
        return min((*times, self.transactions.next_due()))

    def rest(self) -> None:
        """The engine has nothing left to do at this time: whatever could be done was done."""
        for queue in self.queues.values():
            behind = list(self.transactions.open_in(queue))
            for group_id, group in queue.groups.items():
                copies = sorted(group.open, key=lambda copy: copy.message.place or (_NEVER, 0))
                retried = [copy for copy in copies if copy.is_retried]
                is_served = group.is_served(queue.rules)
                for copy in copies:
                    if is_served:
                        self._settle_down(queue, group, copy, retried, behind, f"{queue.name}/{group_id}")
                    elif Kind.MOVING in copy.kinds:
                        self.become(copy, *(DEAD if spot.kind is Kind.MOVING else spot for spot in copy.spots))

    def _settle_down(
        self, queue: Queue, group: Group, copy: Copy, retried: list[Copy], behind: list[Sent], where: str
    ) -> None:
        sent, left, rules = copy.message, set[Spot](), queue.rules
        # Its time, or its source, may still become it.
        is_coming = sent.is_late or (sent.source is not None and sent.source.may(Kind.READY, Kind.MOVING))
        is_open = sent.unsure and is_coming
        is_behind = bool(behind) and holds_back(behind, sent)
        is_retry_first = rules.ordered and any(may_hold_back(other, copy) for other in retried)
        for spot in copy.spots:
            if spot.kind is Kind.MOVING:
                left.add(DEAD)
            elif (
                spot.kind is not Kind.READY
                or spot.at > self.now
                or is_retry_first
                or is_open
                or (is_behind and not spot.deliveries and not spot.released)
            ):
                left.add(spot)
            elif is_passed_over(group, sent, self.now):
                left.add(DONE)
            elif spot.deliveries > rules.max_retries:
                left.add(DEAD if rules.dead_letters is not None else DONE)
        if not left:
            raise ViolationError(f"{where} does not deliver {sent.label} although every consumer has room")
        if left != copy.spots:
            self.become(copy, *left)

    # -- crashes -------------------------------------------------------------------------------------------------

    def crash(self, *, power: bool) -> int:
        """The process is gone; with ``power`` also what the disk had not made safe. Returns up to which step it was."""
        mark = self.synced if power else self.written
        self.lost_power |= power
        self.transactions.crash(power=power)
        for queue in self.queues.values():
            self.note_unneeded(queue)
            for sent in queue.messages:
                sent.unsure |= not (
                    sent.is_safe or sent.number <= mark or (sent.confirmed and queue.rules.durability == "fsync")
                )
                sent.is_orphan |= not sent.confirmed
            if power:
                leave_holes(queue, mark)
        for queue in list(self.queues.values()):
            if queue.rules.durability == "memory":
                self.queues[queue.name] = Queue(queue.name, queue.rules)
                continue
            for group_id, group in queue.groups.items():
                group.members, group.counts, group.reached, group.total = {}, dict.fromkeys(COUNTED, 0), {}, None
                for copy in group.copies.values():
                    self._crash_copy(queue, group_id, group, copy, mark, power)
        # What has outlived the process was written, and what has outlived the power was safe.
        self.written = self.step
        self.synced = self.step if power else self.synced
        self.transactions.restarted(mark)
        return mark

    def _crash_copy(self, queue: Queue, group_id: str, group: Group, copy: Copy, mark: int, power: bool) -> None:
        held = set(copy.spots).union(*(spots for at, spots in copy.before if at > mark))
        spots = {NEW} if group.born > mark and not held <= {NONE} else set[Spot]()
        if copy.message.unsure:
            spots.add(NONE)
        is_exhausted = False
        for spot in held:
            if spot.kind is Kind.MOVING:
                spots.add(DEAD)
            if spot.kind in (Kind.FLIGHT, Kind.HELD, Kind.MOVING):
                spot = Spot(Kind.READY, spot.deliveries, self.now)
            elif spot.released:
                # That it does not count is written down but for the first delivery.
                spot = Spot(Kind.READY, max(1, spot.deliveries), self.now)
            spots.add(spot)
            is_exhausted |= spot.kind is Kind.READY and spot.deliveries > queue.rules.max_retries
        if is_exhausted and queue.rules.dead_letters is not None:
            # Once somebody asks for it.
            spots |= {DEAD, Spot(Kind.MOVING)}
            self.write_letter(queue, group_id, copy, unsure=True)
        elif is_exhausted:
            spots.add(DONE)
        copy.spots = spots
        copy.before = [] if power else [(at, past) for at, past in copy.before if at > self.synced]

    def reopened(self, name: str, group_ids: Iterable[str], mark: int) -> None:
        """The engine is back, with these groups; what was done up to step ``mark`` must be there."""
        queue, found = self.queues[name], set(group_ids)
        for group_id in [group_id for group_id in queue.groups if group_id not in found]:
            group = queue.groups.pop(group_id)
            for copy in group.copies.values():
                copy.spots = {NONE}
            if group.born <= mark:
                raise ViolationError(f"{name}/{group_id} is gone")
        if found != set(queue.groups):
            raise ViolationError(f"{name} has groups {found} that nobody made")

    @property
    def is_open(self) -> bool:
        """Something may still happen to some message."""
        return any(copy.may(Kind.READY, Kind.FLIGHT, Kind.HELD, Kind.MOVING) for _, _, _, copy in self._every())

    def finish(self) -> None:
        """After everything was drained: nothing vanished."""
        self.transactions.finish()
        for queue, group_id, _, copy in self._every(ended=True):
            what = f"{queue.name}/{group_id}: {copy.message.label}"
            if not copy.spots <= THROUGH:
                raise ViolationError(f"{what} is stuck: {copy.spots}")
            if copy.spots == {DEAD} and copy.letter is not None and not self._may_lose_letters(queue):
                letters = self.queues[queue.rules.dead_letters or ""].labels[copy.letter.label]
                if all(letter.unsure and not letter.unneeded for letter in letters):
                    raise ViolationError(f"{what} vanished without a letter")

    def _may_lose_letters(self, queue: Queue) -> bool:
        """What was only written may be lost in one log and not in the other."""
        return self.lost_power and queue.rules.durability != "fsync"

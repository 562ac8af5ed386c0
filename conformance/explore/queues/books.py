"""What a broker with queues must do next, what its figures may be, and what may be under way."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from assay.conformance.explore.queues.life import QueuePlan
from assay.conformance.explore.queues.rules import QueueRule
from assay.conformance.explore.queues.state import (
    GONE,
    NEVER,
    SLACK_S,
    Copy,
    Fate,
    Group,
    Kind,
    Member,
    Message,
    Queue,
    Spot,
    Transaction,
)
from assay.conformance.explore.rules import ViolationError

Undo = Callable[[bool | None], None]
"""Called with whether what was asked for was accepted; None: nobody knows."""


def violation(rule: QueueRule, text: str, *clauses: str, waited: bool = False) -> ViolationError:
    return ViolationError(rule, 5, text, clauses, waited=waited)


class Books:
    """All queues of a life, as far as anybody knows."""

    def __init__(self, names: Iterable[str], plans: Iterable[QueuePlan]) -> None:
        self.queues = [Queue(name, plan) for name, plan in zip(names, plans, strict=True)]
        self.now = 0.0
        self.round = self.serial = 0
        self.restarts = 0
        self.auditing = False
        self.nonces: set[str] = set()
        """Of all receipts that were read."""
        self.transactions: list[Transaction] = []

    def all_queues(self) -> Iterator[Queue]:
        for queue in self.queues:
            yield queue
            if queue.letters is not None:
                yield queue.letters

    def every(self) -> Iterator[Copy]:
        for queue in self.all_queues():
            for group in queue.groups.values():
                yield from group.open_copies()

    def held(self, queue: Queue, *, at_once: bool = False) -> tuple[tuple[int, int], tuple[int, int]]:
        """(Messages, bytes) that the slowest group has not settled, at least and at most.

        ``at_once``: as the next publish meets them, for which what has expired may be there still.
        """

        def total(messages: Iterable[Message], at: int) -> tuple[int, int]:
            listed = list(messages)
            return len(listed), sum(message.size[at] for message in listed)

        alive = [message for message in queue.messages if not message.ended]
        if not queue.groups:
            kept = (m for m in alive if m.is_there and not m.unneeded and self._counts(m) and m.expires_at > self.now)
            return total(kept, 0), total((m for m in alive if self.now >= m.at), 1)
        least, most = (0, 0), (0, 0)
        for group in queue.groups.values():
            copies = [copy for copy in group.open_copies() if self.now >= copy.message.at]
            sure = (
                copy.message
                for copy in copies
                if not copy.may(Kind.GONE)
                and not copy.may(Kind.DEAD)
                and self._counts(copy.message)
                and copy.message.is_there
                and (group.wants(copy.message) or not copy.may(Kind.READY))
                and (copy.message.expires_at > self.now or not copy.may(Kind.READY))
            )
            staying = {copy.message for copy in group.copies.values() if self._stays(copy, at_once=at_once)}
            few, many = total(sure, 0), total({*(copy.message for copy in copies), *staying}, 1)
            least = max(least[0], few[0]), max(least[1], few[1])
            most = max(most[0], many[0]), max(most[1], many[1])
        # What a group is through with, and another one is not, may count once more where they differ.
        every = [copy for group in queue.groups.values() for copy in group.copies.values() if not copy.message.ended]
        there = (copy for copy in every if copy.is_open or self._stays(copy, at_once=at_once))
        union = total({copy.message for copy in there if self.now >= copy.message.at}, 1)
        return least, (max(most[0], union[0]), max(most[1], union[1]))

    def _stays(self, copy: Copy, *, at_once: bool) -> bool:
        """It may count, though its group is through with it."""
        message = copy.message
        if copy.may_be_leaving or (at_once and copy.lingers):
            return True
        return copy.lingers and any(
            first.transaction is not None
            and first.transaction.fate is Fate.OPEN
            and (first is message or (first.may_share_partition(message) and not message.is_before(first)))
            for first in message.queue.messages
        )

    def looked_at(self, queue: Queue) -> None:
        """Its figures are as they have to be."""
        for group in queue.groups.values():
            for copy in group.copies.values():
                copy.lingers = copy.lingers and self._stays(copy, at_once=False)

    def _counts(self, message: Message) -> bool:
        return message.is_shown and self.now >= message.by

    # What must come

    def may_flow(self, copy: Copy, spot: Spot, members: Iterable[Member]) -> bool:
        """It may have been sent to one of these members, who has not read it yet."""
        message = copy.message
        if spot.kind is Kind.READY and spot.holder is not None:
            return any(spot.holder is member for member in members)
        if spot.kind is not Kind.READY or spot.at > self.now or not copy.group.wants(message) or message.ended:
            return False
        if message.transaction is not None and message.transaction.fate is Fate.OPEN:
            return False
        copies = copy.group.open_copies()
        if sum(other.must(Kind.FLIGHT) for other in copies) >= copy.group.most_in_flight():
            return False
        if copy.group.queue.holds_back and any(
            other.is_retry
            and all(each.at > self.now for each in other.spots)
            and other.message.is_before(message)
            and other.message.shares_partition(message)
            and other.message.shares_lane(message)
            for other in copies
        ):
            return False
        return any(
            member.window > 0 and sum(other.is_held_by(member) for other in copies) < member.limit for member in members
        )

    def due(self, *, hard: bool) -> Copy | None:
        """Something that an eager broker would have sent by now; ``hard``: that any broker would have."""
        for queue in self.all_queues():
            for group in queue.groups.values():
                if group.members and (found := self.due_of(group, hard=hard)) is not None:
                    return found
        return None

    def due_of(self, group: Group, *, hard: bool) -> Copy | None:
        """Likewise, to a member of this group."""
        members, copies = list(group.members.values()), group.open_copies()
        held = sum(other.may(Kind.FLIGHT) or other.may(Kind.HELD) for other in copies)
        if held >= group.most_in_flight():
            return None

        def has_room(member: Member) -> bool:
            mine = sum(other.may_be_held_by(member) or other.may(Kind.HELD) for other in copies)
            if hard:
                return not mine and not member.unacknowledged
            return mine < member.limit and member.window > 0

        fits = all if hard or group.queue.plan.ordering != "none" else any
        if not fits(has_room(member) for member in members):
            return None
        for copy in copies:
            if self._is_due(copy, copies):
                return copy
        return None

    def _is_due(self, copy: Copy, copies: list[Copy]) -> bool:
        message = copy.message
        if not (copy.must(Kind.READY) and message.is_there and message.is_shown and not message.ended):
            return False
        if message.source is not None and message.source.crashed and not self.auditing:
            return False  # it may be one only when its group is served again
        if message.cancelled is None or not copy.group.wants(message) or self.now >= message.expires_at:
            return False
        if any(spot.by > self.now for spot in copy.spots):
            return False
        for first in message.queue.messages:
            is_open = first.transaction is not None and first.transaction.fate is Fate.OPEN
            if is_open and first.may_share_partition(message) and not message.is_before(first):
                return False
        for other in copies:
            if other is copy or not other.message.may_share_partition(message) or message.is_before(other.message):
                continue
            waits = any(spot.deliveries and spot.kind is Kind.READY and spot.by > self.now for spot in other.spots)
            holds_back = message.queue.holds_back or message.queue.is_letters
            if waits and holds_back and other.message.shares_lane(message):
                return False
        return True

    def missing(self, copy: Copy) -> ViolationError:
        """It is due, and does not come."""
        group, message = copy.group, copy.message
        text = f"{group.queue.name}/{group.name}: message {message.number}, {spots_of(copy)}"
        clauses: tuple[str, ...]
        if message.source is not None:
            rule, clauses = QueueRule.LETTER_LOST, ("Q-DLQ-14", "Q-DURA-07") if message.source.crashed else ()
        elif copy.is_retry:
            rule, clauses = QueueRule.NOT_AGAIN, ("Q-DURA-05",) if copy.crashed else ()
        elif copy.crashed:
            rule, clauses = QueueRule.LOST_BY_RESTART, ()
        elif message.transaction is not None:
            rule, clauses = QueueRule.HALF, ("Q-TXN-02",)
        else:
            rule, clauses = QueueRule.LOST, ("Q-DELAY-14",) if message.delay_s else ()
        return violation(rule, f"{text} does not come", *clauses, waited=True)

    def _add(self, queue: Queue, message: Message) -> None:
        queue.messages[message] = None
        queue.by_number.setdefault(message.number, []).append(message)
        for group in queue.groups.values():
            group.copies[message] = Copy(group, message, Spot(Kind.READY, 0, message.at, message.by))

    def end(self, message: Message, why: str, *clauses: str) -> None:
        """Nobody may get it from now on."""
        message.ended, message.why = clauses, why

    def _failed(self, copy: Copy, count: int, at: float, by: float, since: float = NEVER) -> set[Spot]:
        """What a delivery may become that fails now, or failed between ``since`` and now."""
        plan = copy.group.queue.plan
        again, over = Spot(Kind.READY, count, at, by), Spot(Kind.DEAD, count) if plan.dead_letters else GONE
        if copy.group.is_dead:
            return {again}
        if count > plan.max_retries:
            return {over}
        if not plan.total_timeout_s:
            return {again}
        message = copy.message
        # From when on one counts that waited, was in a transaction or a dead letter is not said.
        is_open = message.delay_s > 0 or message.transaction is not None or message.is_replayed
        ends = message.published_at + plan.total_timeout_s
        found = {again} if is_open or min(since, self.now) < ends + SLACK_S else set()
        return found | ({over} if self.now >= ends - SLACK_S else set())

    # Spots

    def _become(self, copy: Copy, spots: Iterable[Spot]) -> None:
        copy.put(spots)
        if not copy.may(Kind.DEAD) or copy.letter is not None:
            return
        letters = copy.group.queue.letters
        if letters is None:
            return
        copy.letter = self._letter(letters, copy.message, copy)
        copy.is_safe = False

    def _letter(self, letters: Queue, message: Message, source: Copy | None) -> Message:
        letter = Message(letters, message.number, self.serial)
        letter.source = source
        letter.since, letter.until = 0.0, NEVER
        letter.payload, letter.kept, letter.round, letter.confirmed = message.payload, message.kept, self.round, True
        self._add(letters, letter)
        return letter

    # Figures

    def figures(self, queue: Queue) -> dict[tuple[str, str], tuple[int, int]]:
        """(Group or nothing, figure) to what it is at least and at most."""
        least, most = self.held(queue)
        wanted = {("", "depth"): (least[0], most[0])}
        if queue.plan.max_bytes:
            wanted["", "held_bytes"] = least[1], most[1]
        waiting = [m for m in queue.messages if m.delay_s and not m.ended and m.place is None]
        sure = [m for m in waiting if m.sure and m.cancelled is False and self.now < m.at]
        wanted["", "delayed"] = len(sure), len(waiting)
        for group in queue.groups.values():
            copies = group.open_copies()
            lingering = sum(self._stays(copy, at_once=False) for copy in group.copies.values())
            for name, fits in _FIGURES.items():
                wanted[group.name, name] = self._counted(copies, lingering, fits, even_unseen=name == "in_flight")
            wanted[group.name, "consumers"] = len(group.members), len(group.members)
        if queue.letters is not None and not queue.plan.to_letters and queue.plan.overflow != "dead_letter_oldest":
            letters = self.held(queue.letters)
            wanted["", "dead_letters"] = letters[0][0], letters[1][0]
        return wanted

    @staticmethod
    def below(group: Group, floors: Sequence[int]) -> list[tuple[int, int]]:
        """Partitions and offsets of what a group has not settled for certain, though it is told that it has all before
        these offsets."""
        found = []
        for copy in group.open_copies():
            place = copy.message.place
            is_open = not copy.may(Kind.GONE) and not copy.may(Kind.DEAD) and group.wants(copy.message)
            if place is not None and is_open and place[0] < len(floors) and place[1] < floors[place[0]]:
                found.append(place)
        return found

    def lanes(self, group: Group) -> dict[tuple[int, str], tuple[int, int]]:
        """(Priority, figure) to what it is at least and at most."""
        wanted = {}
        for lane in range(_LANES):
            copies = [copy for copy in group.open_copies() if copy.message.lane == lane]
            there = [copy for copy in group.copies.values() if copy.message.lane == lane]
            lingering = sum(self._stays(copy, at_once=False) for copy in there)
            for name, fits in _LANE_FIGURES.items():
                wanted[lane, name] = self._counted(copies, lingering, fits, even_unseen=name == "in_flight")
        return wanted

    def _counted(
        self, copies: Iterable[Copy], lingering: int, fits: Callable[[Spot], bool], *, even_unseen: bool
    ) -> tuple[int, int]:
        """How many copies of a group a figure counts, at least and at most. ``lingering``: that may count as well."""
        low, high = 0, lingering
        for copy in copies:
            counts = copy.message.is_there and self._counts(copy.message) and self.now < copy.message.expires_at
            counts = counts and copy.group.wants(copy.message)
            low += all(fits(spot) for spot in copy.spots) and (counts or even_unseen)
            high += any(fits(spot) for spot in copy.spots) and self.now >= copy.message.at
        return low, high


_FIGURES: dict[str, Callable[[Spot], bool]] = {
    "lag": lambda spot: spot.kind is Kind.READY and not spot.deliveries,
    "retrying": lambda spot: spot.kind is Kind.READY and spot.deliveries > 0 and spot.holder is None,
    "in_flight": lambda spot: spot.kind in (Kind.FLIGHT, Kind.HELD) or spot.holder is not None,
}
_LANE_FIGURES: dict[str, Callable[[Spot], bool]] = {
    "ready": _FIGURES["lag"],
    "in_flight": lambda spot: spot.kind is Kind.FLIGHT,
}
_LANES = 5


def spots_of(copy: Copy) -> str:
    return " or ".join(
        sorted(
            f"{spot.kind.value}, {spot.deliveries} delivered" if spot.deliveries else spot.kind.value
            for spot in copy.spots
        )
    )

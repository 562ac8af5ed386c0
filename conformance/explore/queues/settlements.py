"""What clients say became of deliveries, alone or in transactions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from assay.conformance.explore.queues.books import Books, Undo, spots_of, violation
from assay.conformance.explore.queues.rules import QueueRule
from assay.conformance.explore.queues.state import GONE, SLACK_S, Copy, Fate, Kind, Member, Spot, Transaction

BEYOND = 1_000_000
"""No life has so many messages."""
_RULE_OF = {
    "release": "Q-SETTLE-01",
    "nack": "Q-NACK-1",
    "reject": "Q-REJECT-1",
    "ack": "Q-ACK-1",
    "extend": "Q-SETTLE-06",
}


class _Asked(NamedTuple):
    """What a settlement was asked for."""

    copy: Copy
    pending: frozenset[Spot]
    """Deliveries that its consumer has read."""
    coming: dict[Spot, Spot]
    """What may be on its way to it, and what that is once it was sent."""
    outcomes: frozenset[Spot]
    is_certain: bool


class Settlements(Books):
    """Told what is settled."""

    def settle(
        self,
        member: Member,
        copies: list[Copy],
        verb: str,
        time_s: int,
        reason: str,
        into: Transaction | None,
        by_receipt: Mapping[Copy, int] | None = None,
    ) -> Callable[[bool | None, Iterable[str]], None]:
        """Settlements were sent; the answer, and what it says was not pending, is told to what this returns.

        ``time_s``: the delay or extension that is named; 0 = none is.
        ``by_receipt``: of which delivery each is the receipt, whoever shows it.
        """
        asked = [self._ask(member, copy, verb, time_s, into, by_receipt) for copy in copies]
        where = f"{member.name}: ${verb} of {[copy.message.number for copy in copies]}"

        def answered(accepted: bool | None, told: Iterable[str]) -> None:
            if accepted is None:
                return
            listed = set(told)
            for each in asked:
                copy = each.copy
                named = _message_id(copy) in listed
                copy.reason = reason if accepted and verb == "reject" else ""
                may_be_pending = bool(each.pending or each.coming)
                if accepted and not may_be_pending:
                    clauses: tuple[str, ...] = ("Q-LIFE-05", "Q-LIFE-06", "Q-LIFE-07")
                    if verb == "extend" or by_receipt is not None:
                        clauses = ("Q-SETTLE-07",) if verb == "extend" else ("Q-SETTLE-11",)
                    raise violation(
                        QueueRule.SETTLEMENT_TAKEN,
                        f"{where} is accepted; message {copy.message.number} is {spots_of(copy)}",
                        *clauses,
                    )
                if named and each.is_certain:
                    text = f"{where} says that message {copy.message.number} is not pending, which it is"
                    raise violation(QueueRule.NOT_PENDING, text)
                if accepted or (listed and not named):
                    if not may_be_pending:
                        text = f"{where} does not say that message {copy.message.number} is not pending"
                        raise violation(QueueRule.NOT_PENDING, text)
                    self._take(copy, self._taken(member, each, verb, time_s, into), verb, into)
                elif named or len(asked) == 1:
                    self._take(copy, copy.spots - each.outcomes, "", None)
            if not accepted and all(each.is_certain for each in asked):
                several = ("Q-SETTLE-01",) if len(asked) > 1 else ()
                text = f"{where} is refused; it holds all of them"
                raise violation(QueueRule.SETTLEMENT_REFUSED, text, _RULE_OF[verb], *several)

        return answered

    def _ask(
        self,
        member: Member,
        copy: Copy,
        verb: str,
        time_s: int,
        into: Transaction | None,
        by_receipt: Mapping[Copy, int] | None,
    ) -> _Asked:
        """What a settlement may meet: a delivery that was read, or one that was not and is on its way."""
        pending: set[Spot] = set()
        coming: dict[Spot, Spot] = {}
        for spot in copy.spots:
            if spot.kind is Kind.FLIGHT:
                is_meant = spot.holder is member if by_receipt is None else spot.deliveries == by_receipt[copy]
                pending |= {spot} if is_meant else set()
            elif by_receipt is None and self.may_flow(copy, spot, [member]):
                coming[spot] = Spot(Kind.FLIGHT, spot.next_count, self.now, self.now, member)
        outcomes: set[Spot] = set()
        for spot in (*pending, *coming.values()):
            outcomes |= self._outcomes(copy, spot, verb, time_s, into)
        asked = _Asked(copy, frozenset(pending), coming, frozenset(outcomes) - copy.spots, pending == copy.spots)
        copy.reason = ""
        if outcomes:
            self._become(copy, copy.spots | outcomes)
        return asked

    def _taken(
        self, member: Member, asked: _Asked, verb: str, time_s: int, into: Transaction | None
    ) -> frozenset[Spot]:
        """What may be true of a copy whose settlement was accepted."""
        copy, counts = asked.copy, {spot.deliveries for spot in asked.coming.values()}
        left = (copy.spots - asked.pending - asked.coming.keys()) | (copy.spots & asked.outcomes)
        read = {
            spot for spot in left if spot.kind is Kind.FLIGHT and spot.holder is member and spot.deliveries in counts
        }
        if not read:  # it may still be on its way, and says nothing then
            copy.stale |= {(member, count) for count in counts}
            return left
        for spot in read:
            left |= self._outcomes(copy, spot, verb, time_s, into)
        return left if asked.pending and verb in ("nack", "extend") else left - read

    def _take(self, copy: Copy, spots: frozenset[Spot], verb: str, into: Transaction | None) -> None:
        if verb == "ack" and into is None:
            copy.clauses = ("Q-ACK-1",)
        if verb and verb != "extend":
            copy.failed_round = self.round
        if verb:
            copy.is_safe = verb == "reject"
        if into is not None and copy not in into.held:
            into.held.append(copy)
        self._become(copy, spots or copy.spots)

    def _outcomes(self, copy: Copy, spot: Spot, verb: str, time_s: int, into: Transaction | None) -> set[Spot]:
        queue = copy.group.queue
        match verb:
            case "ack":
                return {Spot(Kind.HELD, spot.deliveries) if into is not None else GONE}
            case "extend":
                timeout = (time_s, time_s) if time_s else queue.timeout_s()
                return {spot._replace(at=self.now + timeout[0] - SLACK_S, by=self.now + timeout[1] + SLACK_S)}
            case "release":
                return {Spot(Kind.READY, spot.deliveries, self.now, self.now, released=True)}
            case "reject":
                return {
                    Spot(Kind.DEAD, spot.deliveries) if queue.plan.dead_letters and not copy.group.is_dead else GONE
                }
        wait: tuple[float, float] = (time_s, time_s)
        if not time_s and queue.plan.backoff_s and not queue.is_letters:
            wait = queue.wait_s(spot.deliveries)
        slack = SLACK_S if wait[1] else 0.0
        return self._failed(copy, spot.deliveries, self.now + wait[0] - slack, self.now + wait[1] + slack)

    # Claims and commits

    def claim(self, member: Member, copy: Copy, idle_s: int) -> Undo:
        """A consumer claims what somebody has held for so long, or nobody has any more."""
        held = frozenset(spot for spot in copy.spots if spot.kind is Kind.FLIGHT)
        failed = {each for spot in held for each in self._failed(copy, spot.deliveries, self.now, self.now)}
        over = {spot for spot in failed if spot.kind is not Kind.READY}
        claimed = {spot._replace(holder=member) for spot in failed - over}
        is_held, is_there = held == copy.spots, copy.is_open
        idle = tuple(self.now - at for at in reversed(copy.delivered_at))
        others = [other for other in copy.group.open_copies() if other is not copy]
        mine = sum(other.may_be_held_by(member) or self._may_be_sent_to(other, member) for other in others)
        has_room = mine < member.limit and not member.unacknowledged
        self._become(copy, copy.spots | claimed | over)
        where = f"{member.name}: $claim of message {copy.message.number}, {spots_of(copy)}, {idle[0]:.0f} s old,"

        def answered(accepted: bool | None) -> None:
            if accepted and not is_there:
                raise violation(QueueRule.CLAIM, f"{where} is accepted", "Q-GROUP-07")
            if accepted and is_held and not claimed:
                raise violation(QueueRule.CLAIM, f"{where} is accepted, though its retries are used up", "Q-RETRY-05")
            if accepted and is_held and idle[1] < idle_s - SLACK_S:
                raise violation(QueueRule.CLAIM, f"{where} is accepted for {idle_s} s", "Q-GROUP-09")
            if accepted is False and is_held and not over and idle[0] >= idle_s + SLACK_S and has_room:
                raise violation(QueueRule.CLAIM, f"{where} is refused for {idle_s} s", "Q-GROUP-06", "Q-GROUP-08")
            if accepted is not None:
                left = copy.spots - (held | over if accepted else claimed)
                self._become(copy, left or copy.spots)

        return answered

    def idle_alone(self, copies: Iterable[Copy], idle_s: int) -> list[Copy]:
        """The one that its consumer has held for so long, where that is certain, and that no other one was."""
        found: list[Copy] = []
        for copy in copies:
            least, most = (self.now - at for at in reversed(copy.delivered_at))
            is_held = copy.must(Kind.FLIGHT) and copy.message.expires_at > self.now
            if is_held and least >= idle_s + SLACK_S:
                found.append(copy)
            elif not copy.must(Kind.READY) and not (is_held and most < idle_s - SLACK_S):
                return []
        return found if len(found) == 1 else []

    def _may_be_sent_to(self, copy: Copy, member: Member) -> bool:
        return any(self.may_flow(copy, spot, [member]) for spot in copy.spots)

    def commit(self, member: Member, partition: int, offset: int) -> Undo:
        """A consumer commits a partition up to an offset. Nothing of the group is on its way."""
        group = member.group
        below = [
            copy
            for copy in group.copies.values()
            if copy.message.place is not None and copy.message.place[0] == partition and copy.message.place[1] < offset
        ]
        places = {copy.message.place: copy for copy in group.copies.values()}
        first = places.get((partition, 0))
        is_first_settled = first is not None and first.must(Kind.GONE) and first.clauses == ("Q-ACK-1",)
        last = places.get((partition, offset - 1))
        must_be_taken = len(group.members) == 1 and last is not None and last.is_held_by(member)
        before = [(copy, copy.spots) for copy in below if copy.is_open]
        for copy, spots in before:
            copy.message.expired_unsettled &= copy.message.left  # it may be settled before it is a dead letter
            if any(spot.kind is Kind.FLIGHT or spot.deliveries for spot in spots):
                self._become(copy, spots | {GONE})
        where = f"{member.name}: $commit of partition {partition} up to {offset}"

        def answered(accepted: bool | None) -> None:
            if accepted and offset >= BEYOND:
                raise violation(QueueRule.COMMIT, f"{where} is accepted, which is beyond all messages", "Q-CURSOR-09")
            if accepted and offset == 0 and is_first_settled:
                raise violation(QueueRule.COMMIT, f"{where} is accepted, which is settled", "Q-CURSOR-08")
            if accepted is False and must_be_taken:
                raise violation(QueueRule.COMMIT, f"{where} is refused, which it holds", "Q-CURSOR-07")
            for copy, spots in before if accepted is not None else ():
                if not accepted:
                    self._become(copy, spots)
                    continue
                # What is on its way to the dead letters goes there nevertheless.
                left = {
                    spot
                    for spot in spots
                    if spot.kind is Kind.DEAD or (spot.kind is not Kind.FLIGHT and not spot.deliveries)
                }
                if len(left) < len(spots):
                    copy.clauses = ("Q-CURSOR-07",)
                    self._become(copy, left | {GONE})

        return answered

    # Transactions

    def begin(self, timeout_s: int) -> Transaction:
        self.transactions.append(Transaction(self.now + timeout_s - SLACK_S, self.now + timeout_s + SLACK_S))
        return self.transactions[-1]

    def ending(self, transaction: Transaction, *, commit: bool) -> Undo:
        """Its end was asked for."""
        was = transaction.fate
        if was is Fate.OPEN:
            self._decide(transaction, Fate.EITHER)
        may_be_over = self.now >= transaction.ends_at

        def answered(accepted: bool | None) -> None:
            if accepted is None:
                return
            wanted = Fate.COMMITTED if commit else Fate.ABORTED
            text = f"a {'commit' if commit else 'abort'} of a transaction that is {was.value}"
            if was in (Fate.COMMITTED, Fate.ABORTED):
                if transaction.is_old and not accepted and was is Fate.ABORTED:
                    return  # a restart need not remember what it has aborted
                if accepted != (was is wanted):
                    raise violation(QueueRule.TRANSACTION, f"{text} is {'accepted' if accepted else 'refused'}")
                return
            if not accepted and was is Fate.OPEN and not may_be_over and not transaction.is_old:
                raise violation(QueueRule.TRANSACTION, f"{text} is refused")
            if not accepted and was is Fate.EITHER and transaction.is_old:
                return  # nor how it ended
            if not accepted:
                wanted = Fate.ABORTED if commit else Fate.COMMITTED if was is Fate.EITHER else Fate.ABORTED
            if transaction.fate is not Fate.EITHER:
                if transaction.fate is not wanted:
                    text += f" is {'accepted' if accepted else 'refused'}, and it shows as {transaction.fate.value}"
                    raise violation(QueueRule.HALF, text)
                return
            self._decide(transaction, wanted)

        return answered

    def _decide(self, transaction: Transaction, fate: Fate) -> None:
        transaction.fate = fate
        for message in transaction.messages:
            if fate is Fate.ABORTED:
                self.end(message, "belongs to a transaction that was aborted", "Q-TXN-03")
            elif fate is Fate.COMMITTED:
                message.round = self.round
        for copy in transaction.held:
            spots = set(copy.spots)
            for spot in [spot for spot in copy.spots if spot.kind is Kind.HELD]:
                spots.discard(spot)
                if fate is not Fate.ABORTED:
                    spots.add(GONE)
                if fate is not Fate.COMMITTED:
                    spots |= self._failed(copy, spot.deliveries, self.now, self.now)
                    copy.failed_round = self.round
                if fate is Fate.EITHER:
                    spots.add(spot)
            if fate is Fate.COMMITTED:
                left = {spot for spot in spots if spot.kind is Kind.GONE}
                if not left and not copy.message.ended:
                    text = f"message {copy.message.number} was acknowledged in a transaction that shows as committed"
                    raise violation(QueueRule.HALF, f"{text}, and is {spots_of(copy)}", "Q-TXN-05", "Q-TXN-09")
                spots, copy.clauses = left or spots, ("Q-TXN-05",)
            elif self.now < copy.message.expires_at and fate is Fate.ABORTED:
                spots = {spot for spot in spots if spot.kind is not Kind.GONE} or spots
            self._become(copy, spots)


def _message_id(copy: Copy) -> str:
    place = copy.message.place
    return f"{copy.group.queue.name}:{place[0]}:{place[1]}" if place else ""

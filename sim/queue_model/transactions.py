"""What the oracle says of transactions: each one shows as a whole, or not at all."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from assay.sim.queue_model.places import locate, remove
from assay.sim.queue_model.state import (
    DONE,
    LIVE,
    NONE,
    Copy,
    Fate,
    Kind,
    Queue,
    Sent,
    Spot,
    Transaction,
    ViolationError,
)

if TYPE_CHECKING:
    from assay.sim.queue_model.books import Books


class Transactions:
    """All transactions that the oracle knows of."""

    def __init__(self, books: Books) -> None:
        self._books = books
        self.all: list[Transaction] = []
        self._given_back: list[Copy] = []
        """In this turn."""

    def begin(self, ends_by: float) -> Transaction:
        self.all.append(Transaction(ends_by))
        return self.all[-1]

    def publish(self, transaction: Transaction, name: str, sent: Sent) -> None:
        """The engine took a message in a transaction."""
        sent.transaction = transaction
        transaction.messages.append((self._books.queues[name], sent))

    def hold(self, transaction: Transaction, name: str, group_id: str, sent: Sent) -> None:
        """The engine took an acknowledgement in a transaction: the message goes to nobody else."""
        queue = self._books.queues[name]
        copy = queue.groups[group_id].copies[sent]
        (spot,) = copy.spots
        self._books.become(copy, Spot(Kind.HELD, spot.deliveries))
        transaction.held.append((queue, group_id, copy, spot.deliveries))

    def placed(self, name: str, sent: Sent, place: tuple[int, int]) -> None:
        """The engine told where a message is."""
        queue = self._books.queues[name]
        if sent in queue.messages:
            locate(queue, sent.label, place, f"{name} stores {sent.label} at {place}")

    # -- ends ----------------------------------------------------------------------------------------------------

    def turn(self) -> None:
        """Before the engine writes and delivers: what is to be aborted is."""
        for transaction in self.all:
            is_late = transaction.fate is Fate.OPEN and transaction.ends_by <= self._books.now
            if is_late or transaction.fate is Fate.DOOMED:
                transaction.why = "timed out" if is_late else transaction.why
                self.abort(transaction)
                for *_, copy, _ in transaction.held:
                    # What this turn delivers may come before.
                    copy.spots |= {Spot(Kind.HELD)}
                    self._given_back.append(copy)

    def turned(self) -> None:
        """After that. What was given up with the abort is written with the next turn."""
        self._books.step += bool(self._given_back)
        for copy in self._given_back:
            copy.spots = {spot for spot in copy.spots if spot.kind is not Kind.HELD}
            if copy.spots == {DONE}:
                _, held = copy.before[-1]
                copy.before[-1] = (self._books.step, held)
        self._given_back = []

    def commit(self, transaction: Transaction) -> None:
        """Its producer was told that it is committed."""
        if transaction.fate is Fate.EITHER:
            self._appeared(transaction)
        elif transaction.fate is Fate.ENDING:
            transaction.fate = Fate.COMMITTED
            for queue, group_id, copy, _ in transaction.held:
                self._books.become(copy, DONE)
                queue.groups[group_id].counts["acked"] += 1
            self._mark(transaction)
        elif transaction.fate is not Fate.COMMITTED:
            raise ViolationError(f"a commit is confirmed of a transaction that is {transaction.fate.value}")
        transaction.is_safe = True
        for _, sent in transaction.messages:
            sent.is_safe = True
        for queue, group_id, copy, _ in transaction.held:
            copy.before, queue.groups[group_id].born = [], 0

    def abort(self, transaction: Transaction) -> None:
        """It is aborted: its messages are gone, and what it acknowledged is ready again."""
        was, transaction.fate = transaction.fate, Fate.ABORTED
        if was in (Fate.COMMITTED, Fate.ABORTED):
            raise ViolationError(f"aborted: a transaction that is {was.value}")
        for queue, sent in transaction.messages:
            remove(queue, sent)
        if was is not Fate.EITHER:
            self._mark(transaction)
        for queue, group_id, copy, _ in transaction.held:
            if was is not Fate.EITHER:
                self._books.fail(queue, group_id, copy, self._books.now)
            elif len(copy.spots) > 1 and not copy.may_be_given_up(queue.rules):
                copy.spots -= {DONE}

    def _mark(self, transaction: Transaction) -> None:
        """Each of its partitions gets a record that says how it ended."""
        transaction.marked = self._books.step = self._books.step + 1
        for queue, _ in {(queue, sent.place and sent.place[0]) for queue, sent in transaction.messages}:
            queue.ghosts.append(Sent("an end", self._books.step, None, "", float("inf")))

    def _appeared(self, transaction: Transaction) -> None:
        """Something shows that it was committed: then all of it is."""
        transaction.fate = Fate.COMMITTED
        for queue, sent in transaction.messages:
            if sent not in queue.messages:
                raise ViolationError(f"{queue.name}: {sent.label} is gone; its transaction is committed")
            self._books.appeared(queue, sent)
            if not all(group.copies[sent].spots for group in queue.groups.values()):
                raise ViolationError(f"{queue.name}: {sent.label} did not show; its transaction is committed")
        for queue, group_id, copy, _ in transaction.held:
            if DONE not in copy.spots:
                raise ViolationError(f"{queue.name}/{group_id}: {copy.message.label} is not settled by the commit")
            copy.spots = {DONE}

    # -- what others ask -----------------------------------------------------------------------------------------

    def delivered(self, queue: Queue, sent: Sent, copy: Copy, count: int, what: str) -> None:
        """A consumer was given a message."""
        own = sent.transaction
        if own is not None and own.fate is Fate.EITHER:
            self._appeared(own)
        elif own is not None and own.fate is not Fate.COMMITTED:
            raise ViolationError(f"{what}: its transaction is {own.fate.value}")
        for other in self.all:
            if other.fate is Fate.EITHER and any(held is copy for _, _, held, _ in other.held):
                self.abort(other)
        for first in self.open_in(queue) if count == 1 else ():
            if first.place and sent.place and first.place[0] == sent.place[0] and first.place < sent.place:
                raise ViolationError(f"{what}: the transaction of {first.label} at {first.place} is open")

    def is_open(self, sent: Sent) -> bool:
        """Whether a message belongs to a transaction that has not ended."""
        return sent.transaction is not None and sent.transaction.fate in LIVE

    def open_in(self, queue: Queue) -> Iterator[Sent]:
        """Messages of open transactions."""
        return (sent for each in self.all if each.fate in LIVE for there, sent in each.messages if there is queue)

    def next_due(self) -> float:
        return min((each.ends_by for each in self.all if each.fate is Fate.OPEN), default=float("inf"))

    def restarted(self, mark: int) -> None:
        """Ends that nobody wrote down up to step ``mark`` are written now."""
        for each in self.all:
            if each.marked > mark:
                self._mark(each)

    def crash(self, *, power: bool) -> None:
        """Before anything else is made of a crash. Abort is presumed."""
        for each in self.all:
            is_lost = power and each.fate is Fate.COMMITTED and not each.is_safe
            if any(queue.rules.durability == "memory" for queue in self._books.queues.values()):
                if each.fate in LIVE:
                    # The decision is on disk, or not, wherever the queues are.
                    each.fate = Fate.EITHER if each.fate is Fate.ENDING else Fate.ABORTED
                each.messages, each.held = [], []
            elif each.fate in (Fate.OPEN, Fate.DOOMED):
                each.fate = Fate.ABORTED
                for queue, sent in each.messages:
                    remove(queue, sent)
            elif each.fate is Fate.ENDING or is_lost:
                each.fate, each.why = Fate.EITHER, "crash while ending"
                for _, sent in each.messages:
                    sent.unsure = True
                for _, _, copy, deliveries in each.held:
                    copy.spots |= {DONE, Spot(Kind.READY, deliveries, self._books.now)} - {NONE}

    def finish(self) -> None:
        """Nothing is undecided any more: acknowledgements count if and only if the messages show."""
        for each in self.all:
            absent = [
                sent.label
                for queue, sent in each.messages
                if sent in queue.messages
                and not sent.unneeded
                and any(group.copies[sent].spots == {NONE} for group in queue.groups.values())
            ]
            settled = [
                copy.message.label
                for queue, _, copy, deliveries in each.held
                if copy.spots == {DONE}
                and copy.message.expires_at > self._books.now
                and deliveries <= queue.rules.max_retries
            ]
            if each.fate is Fate.EITHER and absent and settled:
                raise ViolationError(f"a transaction settled {settled}, and {absent} do not show")


def holds_back(open_ones: list[Sent], sent: Sent) -> bool:
    """It may be behind one of these messages of open transactions."""
    return any(
        first.number <= sent.number and (not first.place or not sent.place or first.place[0] == sent.place[0])
        for first in open_ones
    )

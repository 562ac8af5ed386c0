"""Publishing, and what the limits of a queue make of it."""

from __future__ import annotations

from assay.conformance.explore.queues.books import Books, Undo, violation
from assay.conformance.explore.queues.rules import QueueRule
from assay.conformance.explore.queues.state import GONE, NEVER, SLACK_S, Copy, Fate, Kind, Message, Queue, Transaction

_SAME_TIME_S = 0.1
"""Messages that came so soon one after the other may bear the same time."""


class Limits(Books):
    """Told what is published."""

    def publish(self, queue: Queue, message: Message, transaction: Transaction | None = None) -> Undo:
        """A message was sent; the answer is told to what this returns."""
        self.serial += 1
        before = self.held(queue, at_once=True)
        message.since = message.until = float(self.serial) if not message.delay_s else NEVER
        message.round, message.published_at = self.round, self.now
        if message.delay_s:  # one that finds no room is tried again
            message.at = self.now + message.delay_s - SLACK_S
            message.by = NEVER if queue.is_limited else self.now + message.delay_s + SLACK_S
        self._set_expiry(queue, message)
        self._add(queue, message)
        if transaction is not None:
            message.transaction = transaction
            transaction.messages.append(message)

        queue.unanswered += 1

        def answered(accepted: bool | None) -> None:
            queue.unanswered -= 1
            if accepted is None:
                return
            # What others sent meanwhile may have come first.
            least, (count, size) = before[0], self.held(queue, at_once=True)[1]
            most = count - 1, size - message.size[1]
            full = self._is_full(queue, message, least, 0), self._is_full(queue, message, most, 1)
            what = f"{queue.name}: message {message.number}"
            largest = queue.plan.max_message_bytes or NEVER
            if accepted and message.size[0] > largest:
                text = f"{what} of {message.size[0]} bytes was taken; it takes {largest}"
                raise violation(QueueRule.FULL, text, "Q-LIMIT-03")
            if accepted and all(full) and queue.plan.overflow == "reject" and not message.delay_s:
                raise violation(QueueRule.FULL, f"{what} was taken, although it holds {least}", *self._limits(queue))
            if accepted:
                message.sure = message.confirmed = True
                if full[1] and not message.delay_s:
                    self._drop_oldest(queue, message)
                return
            has_room = not full[1] or self._could_make_room(queue, message, size)
            is_fine = transaction is None or transaction.fate is Fate.OPEN
            if has_room and is_fine and message.most_bytes <= largest and not self._never_fits(message):
                numbers = [each.number for each in self._droppable(queue, message, certain=True)]
                text = f"{what} was refused, although it holds {most} at most; nobody was given {numbers}"
                raise violation(QueueRule.REFUSED, text)
            self.end(message, "was refused", "Q-LIMIT-01")

        return answered

    def _set_expiry(self, queue: Queue, message: Message) -> None:
        times = [message.expiry_s] if message.expiry_s else []
        message.expires_at = min([self.now + each for each in times], default=NEVER) - SLACK_S
        message.expires_by = min([self.now + each for each in times], default=NEVER) + SLACK_S
        if queue.plan.ttl_s:  # from when it fires (Q-DELAY-15)
            message.expires_at = min(message.expires_at, self.now + message.delay_s + queue.plan.ttl_s - SLACK_S)
            fired_by = NEVER if message.delay_s else self.now
            message.expires_by = min(message.expires_by, fired_by + queue.plan.ttl_s + SLACK_S)

    def _limits(self, queue: Queue) -> tuple[str, ...]:
        return ("Q-LIMIT-01",) * bool(queue.plan.max_depth) + ("Q-LIMIT-02",) * bool(queue.plan.max_bytes)

    def _is_full(self, queue: Queue, message: Message, held: tuple[int, int], most: int) -> bool:
        """With so many messages and bytes; ``most``: 1 where these, and the message's, are counted at most, else 0."""
        plan = queue.plan
        return bool(plan.max_depth and held[0] >= plan.max_depth) or bool(
            plan.max_bytes and held[1] + message.size[most] > plan.max_bytes
        )

    def _could_make_room(self, queue: Queue, message: Message, size: int) -> bool:
        """By dropping what nobody was given; ``size``: of all, with this one, at most."""
        dropped = self._droppable(queue, message, certain=True) if queue.plan.overflow != "reject" else []
        if queue.plan.overflow == "dead_letter_oldest":
            letters = queue.dropped + (0 if queue.letters is None else len(queue.letters.messages))
            if self.restarts or (queue.plan.max_depth and letters >= queue.plan.max_depth):
                # What is on its way to the dead letters counts until those have it, which are bounded themselves.
                return False
        freed = sum(each.size[0] for each in dropped)
        return bool(dropped) and (not queue.plan.max_bytes or size - freed <= queue.plan.max_bytes)

    @staticmethod
    def _never_fits(message: Message) -> bool:
        most = message.queue.plan.max_bytes
        return bool(most) and message.size[1] > most

    def _droppable(self, queue: Queue, newest: Message | None, *, certain: bool) -> list[Message]:
        """What nobody was given."""
        found = []
        if certain and any(m.transaction is not None and m.transaction.fate is Fate.OPEN for m in queue.messages):
            return []  # what is behind its messages may have to stay
        for message in queue.messages:
            copies = [group.copies[message] for group in queue.groups.values() if message in group.copies]
            if message is newest or message.ended or message.cancelled or (certain and not message.is_there):
                continue
            if message.transaction is not None and message.transaction.fate is Fate.OPEN:
                continue  # Q-LIMIT-21
            new = [spot.kind is Kind.READY and not spot.deliveries for copy in copies for spot in copy.spots]
            is_live = message.is_shown and message.by <= self.now < message.expires_at
            is_live = is_live and not any(self._may_be_sent(copy) for copy in copies)
            if (is_live or not certain) and (not new or (all(new) if certain else any(new))):
                found.append(message)
        return found

    def _may_be_sent(self, copy: Copy) -> bool:
        return any(self.may_flow(copy, spot, copy.group.members.values()) for spot in copy.spots)

    def _drop_oldest(self, queue: Queue, newest: Message | None) -> None:
        """Something made room."""
        if queue.plan.overflow == "reject":
            return
        queue.dropped += 1
        perhaps = self._droppable(queue, newest, certain=False)
        held = self.held(queue, at_once=True)
        is_known = held[0][0] == held[1][0] == queue.plan.max_depth + 1 and not queue.plan.max_bytes
        is_known = is_known and len(queue.groups) < 2  # each has an oldest of its own
        # What came to several partitions may be told apart by its time alone, which a broker keeps in milliseconds.
        is_known = is_known and all(
            each.of_partitions == 1 or each.published_at - perhaps[0].published_at > _SAME_TIME_S
            for each in perhaps[1:]
        )
        if is_known and newest is not None and perhaps and perhaps == self._droppable(queue, newest, certain=True):
            oldest = perhaps[0]
            oldest.left_by_limit = oldest.unneeded = True
            for group in queue.groups.values():
                group.copies[oldest].clauses = ("Q-LIMIT-04", "Q-LIMIT-16")
                self._become(group.copies[oldest], {GONE})
            if queue.plan.overflow == "drop_oldest" or not queue.groups:
                self.end(oldest, "was given up for a newer one", "Q-LIMIT-04", "Q-LIMIT-16")
            return
        for message in perhaps:
            message.unneeded = True
            for group in queue.groups.values():
                copy = group.copies.get(message)
                if copy is not None and copy.is_open:
                    copy.clauses = ("Q-LIMIT-04",)
                    self._become(copy, copy.spots | {GONE})

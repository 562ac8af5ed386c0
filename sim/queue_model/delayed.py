"""What the oracle says of delayed messages: they fire when they are due, once, or more often over losses of power."""

from __future__ import annotations

from typing import Any, Final

from assay.sim.queue_model.oracle import Oracle
from assay.sim.queue_model.places import remove
from assay.sim.queue_model.state import DEAD, DONE, NONE, Queue, Sent, ViolationError

_NEVER: Final = float("inf")
_TICK_S: Final = 0.01
_RETRY_S: Final = 1.0
"""A full queue is asked again so much later at the latest."""


class Delayed:
    """A message that waits for its time, or did."""

    def __init__(self, name: str, label: str, key: str | None, lane: int, due: float, step: int) -> None:
        self.name = name
        """Of its queue."""
        self.label = label
        self.key = key
        self.lane = lane
        self.due = due
        self.step = step
        """At which it was published."""
        self.confirmed = False
        self.is_orphan = False
        self.unsure = False
        """A crash may have lost it, or may have lost that it was cancelled."""
        self.cancelled_at = _NEVER
        """The step."""
        self.cancel_confirmed = False
        self.is_pending = True
        """It will fire, perhaps again."""
        self.sents: list[Sent] = []
        """What it became, or may have become."""
        self.noted = _NEVER
        """The step from which on it certainly did not matter any more that it was delayed; synced, it is over."""
        self.is_over = False
        """It does not fire again, whatever comes."""

    @property
    def is_cancelled(self) -> bool:
        return self.cancelled_at < _NEVER

    @property
    def is_open(self) -> bool:
        """It may be waiting."""
        return self.is_pending or any(sent.is_late for sent in self.sents)

    @property
    def is_certain(self) -> bool:
        """The engine certainly has it waiting."""
        return self.is_pending and not self.unsure and not self.sents


def _mix(queue: Queue, twins: list[Sent]) -> None:
    """Nobody can tell messages that fired more than once from each other before they are seen: what a group is through
    with may be the one or the other.
    """
    is_unneeded = any(sent.unneeded for sent in twins)
    for sent in twins:
        sent.unneeded = is_unneeded
    for group in queue.groups.values():
        copies = [group.copies[sent] for sent in twins]
        through = {spot for copy in copies for spot in copy.spots if spot in (DONE, DEAD)}
        for copy in copies:
            copy.spots |= through


class _Asked:
    """When a queue that may not have taken all that was due is asked again at the latest."""

    def __init__(self) -> None:
        self.by = 0.0
        self.is_sure = True
        """Something certainly waited then: nothing makes it later."""
        self.perhaps_from = 0.0
        """From when on it may be asked before that, and the next time be so much later."""
        self.looked = 0.0
        """When the engine last looked at its clock."""


class Delays:
    """All delayed messages that the oracle knows of."""

    def __init__(self, oracle: Oracle) -> None:
        self._oracle = oracle
        self.all: list[Delayed] = []
        self._asked: dict[str, _Asked] = {}

    def schedule(self, name: str, label: str, key: str | None, lane: int, due: float) -> Delayed:
        """The engine took a message that is to be delayed."""
        self._oracle.step += 1
        self.all.append(Delayed(name, label, key, lane, due, self._oracle.step))
        return self.all[-1]

    def confirmed(self, delayed: Delayed) -> None:
        """Its publisher was told that it is kept."""
        delayed.confirmed = True
        for sent in delayed.sents:
            sent.confirmed = True

    def cancelled(self, delayed: Delayed) -> None:
        """The engine took it back."""
        what = f"{delayed.name}: delayed {delayed.label}"
        if delayed.is_cancelled or any(not sent.unsure for sent in delayed.sents):
            raise ViolationError(f"{what} is cancelled, although it fired or was cancelled before")
        self._oracle.step += 1
        delayed.cancelled_at, delayed.is_pending = self._oracle.step, False
        # It may have been the only one that was left.
        self._asked.setdefault(delayed.name, _Asked()).is_sure = False
        for sent in delayed.sents:
            remove(self._queue(delayed), sent)
        delayed.sents = []

    def not_cancelled(self, delayed: Delayed) -> None:
        """The engine says that there is nothing to take back: it fired, or was taken back."""
        if delayed.is_pending and not delayed.unsure:
            raise ViolationError(f"{delayed.name}: delayed {delayed.label} is not there to be cancelled")
        for sent in delayed.sents[-1:]:
            self._fired(delayed, sent)

    def _queue(self, delayed: Delayed) -> Queue:
        return self._oracle.queues[delayed.name]

    def _fired(self, delayed: Delayed, sent: Sent) -> None:
        if sent.unsure:
            self._oracle.appeared(self._queue(delayed), sent)
            sent.number = self._oracle.written

    # -- time ----------------------------------------------------------------------------------------------------

    def tick(self, name: str, before: Any, after: Any) -> None:
        """The engine looked at its clock; before and after that it showed these figures of a queue.

        What is due fires then as far as there is room; when there was none, as far as there is when another is due, or
        so much later at the latest. How many did shows. Room is what was there before: nobody says in which order what
        is due at one time happens.
        """
        now, queue = self._oracle.now, self._oracle.queues[name]
        asked = self._asked.setdefault(name, _Asked())
        waiting = [each for each in self.all if each.name == name and each.is_pending]
        # What its publisher was not told of is not in the log, or not safe there.
        due = [each for each in waiting if each.due <= now and (each.confirmed or each.is_orphan)]
        fired = before.delays.pending - after.delays.pending
        later_most = len(waiting) - len(due)
        later_least = sum(each.is_certain for each in waiting) - sum(each.is_certain for each in due)
        due_most = before.delays.pending - later_least
        due_least = max(before.delays.pending - later_most, sum(each.is_certain for each in due))
        room = max(0, queue.rules.max_depth - before.depth)
        must = now >= asked.by or any(asked.looked < each.due for each in due if each.is_certain)
        asked.looked = now
        if not (min(room, due_least) if must else 0) <= fired <= due_most:
            what = f"{due_least}..{due_most} were due, with room for {room}"
            raise ViolationError(f"{name}: {fired} delayed messages fire at {now}; {what}, asked by {asked.by}")
        if fired and after.depth > queue.rules.max_depth and not queue.rules.drops_oldest:
            raise ViolationError(f"{name} took what was due beyond its limit: {after.depth}")
        for each in due if fired else ():
            self._may_fire(queue, each)
        if fired and before.depth + fired > queue.rules.max_depth:
            self._oracle.drop_oldest(queue)
        if after.delays.pending <= later_least or (must and room >= due_most):
            # All of them; what a crash may have lost is lost.
            # What the queue did not take may have been cancelled since: it is asked again no earlier all the same.
            if must or fired:
                self._asked[name] = asked = _Asked()
                asked.looked = now
            asked.is_sure = must or bool(fired)
            for each in due:
                each.is_pending = False
            for each in self.all:
                for sent in each.sents if each.name == name else ():
                    sent.is_late = False
        elif now >= asked.perhaps_from - _TICK_S or not asked.is_sure:
            is_asked = now >= asked.by - _TICK_S and asked.is_sure
            asked.by, asked.is_sure = now + _RETRY_S + _TICK_S, after.delays.pending > later_most
            asked.perhaps_from = asked.by if is_asked else now

    def _may_fire(self, queue: Queue, each: Delayed) -> None:
        each.is_pending = False
        ttl_s = queue.rules.ttl_s
        sent = self._oracle.add(queue, each.label, each.key, "", self._oracle.now + ttl_s if ttl_s else _NEVER)
        sent.lane, sent.is_delayed, sent.unsure, sent.is_late = each.lane, True, True, True
        sent.confirmed, sent.is_orphan = each.confirmed, each.is_orphan
        for group in queue.groups.values():
            group.copies[sent].spots |= {NONE}
        each.sents.append(sent)
        _mix(queue, [sent for sent in each.sents if sent.place is None and sent in queue.messages])

    def rest(self) -> None:
        """The engine has nothing left to do at this time: what fired is there."""
        synced = self._oracle.synced
        for each in self.all:
            if any(sent.is_late for sent in each.sents):
                continue
            if len(each.sents) == 1 and not each.unsure and each.sents[0] in self._queue(each).messages:
                self._fired(each, each.sents[0])
            if each.sents and not each.is_pending and all(sent.number <= synced for sent in each.sents):
                each.noted = min(each.noted, self._oracle.step)
                each.is_over |= each.noted <= synced

    def next_due(self) -> float:
        """When the engine must look at its clock at the latest."""
        waiting = (
            max(each.due, asked.by) if (asked := self._asked.get(each.name)) else each.due
            for each in self.all
            if each.is_pending and not each.unsure
        )
        left = (asked.by for asked in self._asked.values() if asked.by and asked.is_sure)
        return min(*waiting, *left, _NEVER, _NEVER) + _TICK_S

    @property
    def names(self) -> list[str]:
        """Queues that have, or had, delayed messages."""
        return list({each.name: None for each in self.all})

    @property
    def open_count(self) -> int:
        """Those that will fire, or may have to."""
        return sum(each.is_open for each in self.all)

    def check(self, name: str, stats: Any) -> None:
        """Hold the engine's figure of those that wait to what it may be."""
        known = [each for each in self.all if each.name == name and not each.is_cancelled]
        least = sum(each.is_certain for each in known)
        most = sum(each.is_pending or any(sent.unsure for sent in each.sents) for each in known)
        if not least <= stats.pending <= most:
            raise ViolationError(f"{name}: {stats.pending} are delayed, not within {least}..{most}")

    # -- crashes -------------------------------------------------------------------------------------------------

    def crash(self, mark: int, *, power: bool) -> None:
        """After all else is made of a crash. What was not safe may be lost, or undone.

        What fired may fire again after a loss of ``power``.
        """
        self._asked = {}
        self.all = [each for each in self.all if self._queue(each).rules.durability != "memory"]
        for each in self.all:
            is_synced = self._queue(each).rules.durability == "fsync"
            each.unsure |= not (each.step <= mark or (each.confirmed and is_synced))
            each.is_orphan |= not each.confirmed
            if each.is_cancelled and not (each.cancelled_at <= mark or (each.cancel_confirmed and is_synced)):
                each.cancelled_at, each.is_pending, each.unsure = _NEVER, True, True
            if power and each.sents and not each.is_over:
                each.is_pending, each.noted = True, _NEVER

    def finish(self) -> None:
        """After everything was drained: nothing vanished."""
        for each in self.all:
            if each.is_open:
                raise ViolationError(f"{each.name}: delayed {each.label} never fires")
            if each.unsure or each.is_cancelled or any(sent.place or sent.unneeded for sent in each.sents):
                continue
            for group_id, group in self._queue(each).groups.items():
                copies = [group.copies[sent] for sent in each.sents if sent in group.copies]
                if group.wants("") and all(copy.spots <= {NONE} for copy in copies):
                    raise ViolationError(f"{each.name}/{group_id}: delayed {each.label} vanished")

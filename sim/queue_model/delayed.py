"""What the oracle says of delayed messages: they fire when they are due, once, or more often over losses of power."""

from __future__ import annotations

from typing import Any, Final

from sim.queue_model.figures import depth
from sim.queue_model.oracle import Oracle
from sim.queue_model.places import remove
from sim.queue_model.state import DEAD, DONE, NONE, Queue, Sent, ViolationError

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


class Delays:
    """All delayed messages that the oracle knows of."""

    def __init__(self, oracle: Oracle) -> None:
        self._oracle = oracle
        self.all: list[Delayed] = []
        self._asked_again: dict[str, float] = {}
        """Queue that may have been full -> until when what is due may wait."""
        self.has_room = False
        """For long, everything has been taken at once, so that all that was ever due has fired, or was lost."""

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

    def tick(self) -> None:
        """The engine looks at its clock: what is due may fire from now on, if there is room."""
        now = self._oracle.now
        for each in self.all:
            if each.is_pending and each.due <= now:
                queue = self._queue(each)
                if depth(queue, now)[0] >= queue.rules.max_depth and not queue.rules.drops_oldest:
                    self._asked_again[each.name] = now + _RETRY_S + _TICK_S
                    continue
                each.is_pending = False
                ttl_s = queue.rules.ttl_s
                sent = self._oracle.add(queue, each.label, each.key, "", now + ttl_s if ttl_s else _NEVER)
                sent.lane, sent.is_delayed, sent.unsure, sent.is_late = each.lane, True, True, True
                sent.confirmed, sent.is_orphan = each.confirmed, each.is_orphan
                for group in queue.groups.values():
                    group.copies[sent].spots.add(NONE)
                each.sents.append(sent)
                _mix(queue, [sent for sent in each.sents if sent.place is None and sent in queue.messages])
        for name in {each.name for each in self.all if any(sent.is_late for sent in each.sents)}:
            queue = self._oracle.queues[name]
            if depth(queue, now)[1] > queue.rules.max_depth:
                self._oracle.drop_oldest(queue)
                self._asked_again[name] = 0.0 if self.has_room else now + _RETRY_S + _TICK_S

    def rest(self) -> None:
        """The engine has nothing left to do at this time: what is due has fired where there was room."""
        synced = self._oracle.synced
        for each in self.all:
            if self._oracle.now < self._asked_again.get(each.name, 0.0):
                continue
            for sent in each.sents:
                sent.is_late = False
            if len(each.sents) == 1 and not each.unsure and each.sents[0] in self._queue(each).messages:
                self._fired(each, each.sents[0])
            if each.sents and not each.is_pending and all(sent.number <= synced for sent in each.sents):
                each.noted = min(each.noted, self._oracle.step)
                each.is_over |= each.noted <= synced

    def next_due(self) -> float:
        """When the engine must look at its clock at the latest."""
        asked = self._asked_again
        waiting = (max(each.due, asked.get(each.name, 0.0)) for each in self.all if each.is_pending and not each.unsure)
        return min(waiting, default=_NEVER) + _TICK_S

    @property
    def is_open(self) -> bool:
        """Some will fire."""
        return any(each.is_pending for each in self.all)

    def check(self, name: str, stats: Any) -> None:
        """Hold the engine's figure of those that wait to what it may be."""
        known = [each for each in self.all if each.name == name and not each.is_cancelled]
        least = sum(each.is_pending and not each.unsure and not each.sents for each in known)
        most = sum(each.is_pending or any(sent.unsure for sent in each.sents) for each in known)
        if not least <= stats.pending <= most:
            raise ViolationError(f"{name}: {stats.pending} are delayed, not within {least}..{most}")

    # -- crashes -------------------------------------------------------------------------------------------------

    def crash(self, mark: int, *, power: bool) -> None:
        """After all else is made of a crash. What was not safe may be lost, or undone.

        What fired may fire again after a loss of ``power``.
        """
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
            if each.unsure or each.is_cancelled or any(sent.place or sent.unneeded for sent in each.sents):
                continue
            for group_id, group in self._queue(each).groups.items():
                copies = [group.copies[sent] for sent in each.sents if sent in group.copies]
                if group.wants("") and all(copy.spots <= {NONE} for copy in copies):
                    raise ViolationError(f"{each.name}/{group_id}: delayed {each.label} vanished")

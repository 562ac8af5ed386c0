"""What the oracle says of messages that become dead letters without a group: each once, over restarts, too.

Only loss of power before the next periodic sync, or a kill while a letter is on its way, lets one come twice.
"""

from __future__ import annotations

from typing import Final

from assay.sim.queue_model.figures import depth
from assay.sim.queue_model.oracle import Oracle
from assay.sim.queue_model.state import DEAD, NEW, NONE, Copy, Sent

_NEVER: Final = float("inf")
_SOON_S: Final = 6.0
"""What has expired has left after that."""


class _Left:
    """What may be said of a message that may have become a letter."""

    def __init__(self, letter: Sent) -> None:
        self.letter = letter
        self.is_settled = False
        """If it left, it has arrived."""
        self.safe_from = _NEVER
        """The step from which on it certainly had left: synced, it stays so."""


class Leaving:
    """Of one queue that no group ever joins."""

    def __init__(self, oracle: Oracle, name: str) -> None:
        self._oracle = oracle
        self._name = name
        self._lettered: dict[Sent, _Left] = {}
        self._sources: list[Copy] = []
        self._held_at = 0.0
        """The last time that an open transaction, behind which nothing leaves, was seen."""

    @property
    def _target(self) -> str | None:
        return self._oracle.queues[self._name].rules.dead_letters

    def publishing(self) -> None:
        """A message is about to be enqueued: what has expired, or the oldest, may have to make room."""
        self.tick()
        queue = self._oracle.queues[self._name]
        if queue.rules.drops_oldest and depth(queue, self._oracle.now)[1] >= queue.rules.max_depth:
            for sent in list(queue.messages):
                self._may_leave(sent)

    def tick(self) -> None:
        """Some may have expired."""
        queue = self._oracle.queues[self._name]
        if any(self._oracle.transactions.open_in(queue)):
            self._held_at = self._oracle.now
        for sent in list(queue.messages):
            if sent.expires_at <= self._oracle.now:
                self._may_leave(sent)

    def _may_leave(self, sent: Sent) -> None:
        if self._target is None or sent.is_hole:
            return
        if (left := self._lettered.get(sent)) is not None:
            # Unless its letter was seen, it may have stayed until now.
            left.is_settled &= not left.letter.unsure
            return
        target = self._oracle.queues[self._target]
        letter = self._oracle.add(target, f">{sent.label}", None, sent.routing_key, _NEVER)
        letter.unsure, letter.source = True, Copy(sent, NEW)
        self._lettered[sent] = _Left(letter)
        self._sources.append(letter.source)
        for group in target.groups.values():
            group.copies[letter].spots |= {NONE}

    def rest(self) -> None:
        """Whatever was on its way has arrived."""
        for left in self._lettered.values():
            left.is_settled = True
            if not left.letter.unsure and left.safe_from == _NEVER:
                # What was written at earlier steps was so before this was.
                self._oracle.step += 1
                left.safe_from = self._oracle.step

    def crash(self, mark: int, *, power: bool) -> None:
        """What was on its way may leave again, and with ``power`` all that is not known to be safe up to a step."""
        self._lettered = {
            sent: left
            for sent, left in self._lettered.items()
            if (left.safe_from <= mark if power else left.is_settled)
        }

    @property
    def is_over(self) -> bool:
        """Everything that expires has done so, and has had time to become a letter."""
        messages = self._oracle.queues[self._name].messages
        ends = (sent.expires_at for sent in messages if sent.expires_at < _NEVER)
        return max((self._held_at, *ends)) + _SOON_S <= self._oracle.now

    def finish(self) -> None:
        """Nothing leaves any more."""
        for copy in self._sources:
            copy.spots = {DEAD}

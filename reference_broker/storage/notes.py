"""What people should know of the storage: what opening found, and what the disk refused since."""

from __future__ import annotations

from reference_broker.core.queues.store import RecoveryNote

_MAX_NOTES = 1_000


class Notes:
    """Of all logs of a broker, oldest first. Beyond a limit more are left out, in each of the two lists."""

    def __init__(self) -> None:
        self.recovery: list[RecoveryNote] = []
        """Since the start."""
        self.fresh: list[RecoveryNote] = []
        """Since whoever writes them to the broker's log took them."""

    def add(self, queue: str, place: str, problem: str) -> None:
        """``place``: a file, and the position in it; ``problem``: what was found, and what is done about it."""
        note = RecoveryNote(queue=queue, place=place, problem=problem)
        for notes in (self.recovery, self.fresh):
            if len(notes) < _MAX_NOTES:
                notes.append(note)

    def take_fresh(self) -> list[RecoveryNote]:
        fresh, self.fresh = self.fresh, []
        return fresh

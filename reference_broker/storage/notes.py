"""What people should know of the storage: what opening found, what reading found, and what the disk refused since."""

from __future__ import annotations

import re
from collections.abc import Callable

from assay.reference_broker.queues.jobs.store import RecoveryNote

_MAX_NOTES = 1_000
MAX_PLACES = 10_000
_DAMAGE_AT = re.compile(r".* (bytes|offset) [0-9]+")
"""How the places of damage begin: whoever comes there again finds what is known."""


class Notes:
    """Of all logs of a broker, oldest first. Beyond a limit more are left out, in each of the two lists."""

    def __init__(self) -> None:
        self.recovery: list[RecoveryNote] = []
        """Since the start."""
        self.fresh: list[RecoveryNote] = []
        """Since whoever writes them to the broker's log took them."""
        self.counts: dict[str, int] = {}
        """Queue -> how many there were of it."""
        self.on_note: Callable[[RecoveryNote], None] | None = None
        self._places: set[str] = set()

    def add(self, queue: str, place: str, problem: str) -> None:
        """``place``: a file, and the position in it; ``problem``: what was found, and what is done about it."""
        damage = _DAMAGE_AT.match(place)
        if damage is not None:
            if damage[0] in self._places:
                return
            if len(self._places) < MAX_PLACES:
                self._places.add(damage[0])
        self.counts[queue] = self.counts.get(queue, 0) + 1
        note = RecoveryNote(queue=queue, place=place, problem=problem)
        for notes in (self.recovery, self.fresh):
            if len(notes) < _MAX_NOTES:
                notes.append(note)
        if self.on_note is not None:
            self.on_note(note)

    def take_fresh(self) -> list[RecoveryNote]:
        fresh, self.fresh = self.fresh, []
        return fresh

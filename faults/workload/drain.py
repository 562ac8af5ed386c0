"""What must still happen to the values of one queue, and whether the final read may end."""

from __future__ import annotations

from collections.abc import Iterable

from assay.reference_broker.trace.schema import OpKind, OpType


class Ledger:
    """Open (value, group) pairs of one queue: confirmed or delivered, and neither settled nor dead-lettered yet.

    Only counts decide when the final read may stop early; the checkers judge the history, never this ledger.
    """

    def __init__(self, groups: Iterable[str], *, dead_letters: bool) -> None:
        self._resolved: dict[str, set[str]] = {group: set() for group in groups}
        self._required: set[str] = set()
        self._dead_letters = dead_letters
        self._open = 0
        self.last_progress = 0.0
        """Time of the last delivery, settlement or change of a consumer's readiness, in Unix seconds."""

    @property
    def open_count(self) -> int:
        """Pairs that still wait for their end."""
        return self._open

    def progress(self, now: float) -> None:
        """Something happened that makes silence start anew."""
        self.last_progress = now

    def required(self, value: str, now: float) -> None:
        """A value was confirmed to its producer, or delivered to somebody: each group must now see it through."""
        self.progress(now)
        if value not in self._required:
            self._required.add(value)
            self._open += sum(value not in resolved for resolved in self._resolved.values())

    def settled(self, value: str, group: str, f: OpKind, type_: OpType, now: float) -> None:
        """A settlement completed. Only a confirmed ack, or a confirmed reject without dead letters, ends a pair."""
        self.progress(now)
        if type_ is OpType.OK and (f is OpKind.ACK or (f is OpKind.REJECT and not self._dead_letters)):
            self._resolve(value, group)

    def dead_lettered(self, value: str, group: str | None, now: float) -> None:
        """A value arrived in the dead-letter queue, given up by ``group``; by each of them if the broker names none."""
        self.required(value, now)
        for each in self._resolved if group not in self._resolved else (group,):
            self._resolve(value, each)

    def _resolve(self, value: str, group: str) -> None:
        resolved = self._resolved[group]
        if value not in resolved:
            resolved.add(value)
            self._open -= value in self._required

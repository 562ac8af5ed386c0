"""What must still happen to the values of one queue or topic space, and whether the final read may end."""

from __future__ import annotations

from collections.abc import Iterable

from assay.reference_broker.trace.schema import OpKind, OpType


class Ledger:
    """Open (value, group) pairs: confirmed or delivered, and neither settled nor dead-lettered yet.

    Groups (or sessions) may come and go; who comes later owes nothing for the values before. Only counts decide when
    the final read may stop early; the checkers judge the history, never this ledger.
    """

    def __init__(self, groups: Iterable[str], *, dead_letters: bool) -> None:
        self._open: dict[str, set[str]] = {group: set() for group in groups}
        self._resolved: dict[str, set[str]] = {group: set() for group in groups}
        self._required: set[str] = set()
        self._gone: set[str] = set()
        self._dead_letters = dead_letters
        self.last_progress = 0.0
        """Time of the last delivery, settlement or change of a consumer's readiness, in Unix seconds."""

    @property
    def open_count(self) -> int:
        """Pairs that still wait for their end."""
        return sum(map(len, self._open.values()))

    def progress(self, now: float) -> None:
        """Something happened that makes silence start anew."""
        self.last_progress = now

    def join(self, group: str) -> None:
        """A group has come: it must see through what is confirmed from now on."""
        if group not in self._open:
            self._open[group], self._resolved[group] = set(), set()

    def leave(self, group: str) -> None:
        """A group is gone for good, and owes nothing more."""
        self._open.pop(group, None)
        self._resolved.pop(group, None)

    def required(self, value: str, now: float) -> None:
        """A value was confirmed to its producer, or delivered to somebody: each group must now see it through."""
        self.progress(now)
        if value not in self._required and value not in self._gone:
            self._required.add(value)
            for group, opened in self._open.items():
                if value not in self._resolved[group]:
                    opened.add(value)

    def settled(self, value: str, group: str, f: OpKind, type_: OpType, now: float) -> None:
        """A settlement completed. Only a confirmed ack, or a confirmed reject without dead letters, ends a pair."""
        self.progress(now)
        if type_ is OpType.OK and (f is OpKind.ACK or (f is OpKind.REJECT and not self._dead_letters)):
            self._resolve(value, group)

    def seen(self, value: str, group: str, now: float) -> None:
        """A delivery that needs no settlement."""
        self.progress(now)
        self._resolve(value, group)

    def dead_lettered(self, value: str, group: str | None, now: float) -> None:
        """A value arrived in the dead-letter queue, given up by ``group``; by each of them if the broker names none."""
        self.required(value, now)
        for each in self._open if group not in self._open else (group,):
            self._resolve(value, each)

    def taken_back(self, value: str, type_: OpType, now: float) -> None:
        """A delayed message was taken back, or perhaps so."""
        self.progress(now)
        if type_ is not OpType.FAIL:
            self._gone.add(value)
            for group in self._open:
                self._resolve(value, group)

    def _resolve(self, value: str, group: str) -> None:
        if group in self._resolved:
            self._resolved[group].add(value)
            self._open[group].discard(value)

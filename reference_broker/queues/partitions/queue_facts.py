"""What a queue remembers about itself, beside its messages: facts that a start must know, and where it was purged."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from assay.reference_broker.queues.jobs.store import QueueFiles
from assay.reference_broker.queues.partitions.partition import QueuePartition

LANES_FACT: Final = "lanes"
"""Some message of the queue was not of normal priority."""
TTL_FACT: Final = "ttl"
"""Some message had a time to live of its own."""
_PRODUCERS_FACT: Final = "producers-"
"""And the number of a partition: producers wrote to it. The coordinator remembers them, unless power was lost first."""
_SETTLED_FACT: Final = "settled-in-transactions"
"""Deliveries of it were: a decision that was made may still settle them."""
_FACTS_OF_MESSAGES: Final = frozenset((LANES_FACT, TTL_FACT))
"""A start looks at every message where they are true."""


class QueueFacts:
    """The facts of one queue; what became true stays so."""

    def __init__(self, files: QueueFiles, hold: Callable[[], None]) -> None:
        """``hold``: have nothing written to the queue's logs before a sync has made all facts durable."""
        self._files = files
        self._hold = hold
        self._facts = set(files.facts)

    def remember(self, fact: str) -> None:
        """Before the first message of which it is true: no restart takes that for a common one."""
        if fact not in self._facts:
            self._facts.add(fact)
            self.state()
            self._hold()

    def state(self) -> None:
        """To be written down with the next sync."""
        self._files.update_description(facts=self._facts)

    def remember_producers(self, index: int) -> None:
        """A partition gets its first producer."""
        self.remember(f"{_PRODUCERS_FACT}{index}")

    def had_producers(self, index: int) -> bool:
        """Whether a partition ever had producers."""
        return f"{_PRODUCERS_FACT}{index}" in self._facts

    def remember_settled(self) -> None:
        """The first of its deliveries is settled in a transaction."""
        self.remember(_SETTLED_FACT)

    @property
    def of_transactions(self) -> bool:
        """Whether only what is known of transactions tells which messages count, or what its groups still hold."""
        return any(fact == _SETTLED_FACT or fact.startswith(_PRODUCERS_FACT) for fact in self._facts)

    @property
    def has_lanes(self) -> bool:
        """Whether some message was not of normal priority."""
        return LANES_FACT in self._facts

    @property
    def of_messages(self) -> bool:
        """Whether some message is special, so that a start has to look at each."""
        return bool(self._facts & _FACTS_OF_MESSAGES)

    def restore_purge(self, partitions: Sequence[QueuePartition]) -> None:
        """Let the partitions begin where they were purged. Raises :class:`LogError`."""
        purged = self._files.purged
        for partition in partitions:
            end = purged.get(partition.index, 0)
            if end > partition.log.next_offset:
                # The log was damaged: what gets these offsets now is new.
                purged = {**purged, partition.index: partition.log.next_offset}
                self._files.update_description(purged=purged)
                self._files.write_description()
            partition.head = max(partition.head, min(end, partition.log.next_offset))

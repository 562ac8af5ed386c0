"""What happened to every message of a load run: intended, sent, acknowledged, delivered, settled, or not.

Times are nanoseconds since the start of the run on one clock; 0 means "has not happened". The arrays are written by the
clients while the run goes on and read as numpy columns afterwards.
"""

from __future__ import annotations

import asyncio
from array import array

import msgspec

from assay.loadtests.schedule import Nanoseconds

MAX_EXAMPLES = 20


class Irregularities:
    """Messages that came when they should not, with the first few as examples ``<publisher>-<seq>``."""

    def __init__(self) -> None:
        self.count = 0
        self.examples: list[str] = []

    def add(self, value: str) -> None:
        self.count += 1
        if len(self.examples) < MAX_EXAMPLES:
            self.examples.append(value)


class ConnectTime(msgspec.Struct, frozen=True, kw_only=True):
    """A handshake, in ns since the start of the schedule (negative: it comes before)."""

    client: str
    started_ns: int
    completed_ns: int


class PublisherLog:
    """The messages of one publisher, by sequence number. ``copies`` are its subscribers or consumer groups."""

    def __init__(
        self,
        *,
        name: str,
        number: int,
        workload: str,
        qos: int,
        copies: int,
        settles: bool,
        intended_ns: Nanoseconds,
        queue: str = "",
        protocol: str = "",
    ) -> None:
        def column() -> array[int]:
            return array("q", bytes(8 * len(intended_ns)))

        self.name, self.number, self.workload, self.qos = name, number, workload, qos
        self.settles = settles
        self.queue, self.protocol = queue, protocol
        """As in :class:`~assay.reference_broker.trace.schema.LatencySample`."""
        self.intended_ns: list[int] = intended_ns.tolist()
        self.offered_ns = column()
        """When the generator handed the message to its client: later than intended means a late generator."""
        self.sent_ns = column()
        self.acked_ns = column()
        self.delivered_ns = [column() for _ in range(copies)]
        self.settle_sent_ns = [column() for _ in range(copies)] if settles else []
        self.settled_ns = [column() for _ in range(copies)] if settles else []
        self.refused: set[int] = set()
        """Sequence numbers that the broker refused with a reason code."""
        self.duplicates = Irregularities()
        self.disorder = Irregularities()

    def __len__(self) -> int:
        return len(self.intended_ns)

    @property
    def completions(self) -> int:
        """Events that end this publisher's part of the run, when nothing is lost."""
        copies = len(self.delivered_ns)
        return len(self) * ((1 if self.qos else 0) + copies * (2 if self.settles else 1))


class Ledger:
    """All publishers of a run, and what is still to come."""

    def __init__(self, run_id: bytes, logs: list[PublisherLog]) -> None:
        self.run_id = run_id
        self.logs = logs
        self.outstanding = sum(log.completions for log in logs)
        self.done = asyncio.Event()
        """Set when nothing is outstanding, or when a connection failed."""
        self.failures: list[str] = []
        self.foreign = Irregularities()
        """Deliveries that this run did not send."""
        self.refused_settlements = Irregularities()
        self.unsupported = ""
        """A capability that the broker turned out to lack, which ends the run without a verdict."""
        if not self.outstanding:
            self.done.set()

    def complete(self, count: int = 1) -> None:
        """So many outstanding events have happened, or never will."""
        self.outstanding -= count
        if self.outstanding <= 0:
            self.done.set()

    def lack(self, capability: str) -> None:
        """The broker cannot do what a workload needs: the run ends."""
        self.unsupported = self.unsupported or capability
        self.done.set()

    def fail(self, reason: str) -> None:
        """A connection was lost: the run ends early."""
        self.failures.append(reason)
        self.done.set()

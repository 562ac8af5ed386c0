"""What a group did since the engine opened."""

from __future__ import annotations

from assay.reference_broker.trace.durations import COARSE_S, Durations


class GroupCounts:
    """Counters; they only grow."""

    def __init__(self) -> None:
        self.delivered = 0
        self.waited: Durations | None = None
        """From publish to first delivery; of messages that go together that of the first. None = none was made."""
        self.redelivered = 0
        self.acked = 0
        self.nacked = 0
        self.rejected = 0
        self.released = 0
        """Given back untried."""
        self.slow_consumers = 0
        self.timed_out = 0
        self.expired = 0
        self.dead_lettered = 0
        self.discarded = 0
        self.dropped = 0
        self.unmatched = 0
        self.purged = 0
        self.unreadable = 0
        self.claimed = 0
        """Deliveries taken over by a claim; they count as redelivered, too."""
        self.replayed = 0
        """Dead letters that went back to their queue."""
        self.rewound = 0
        """Settled messages that became ready again since the group was set back."""
        self.skipped = 0
        """Unsettled messages that the group was set past."""
        self.sessions_ended = 0
        """Members removed since no heartbeat came."""

    def begin_waited(self) -> Durations:
        """The first delivery is made."""
        self.waited = Durations(COARSE_S)
        return self.waited

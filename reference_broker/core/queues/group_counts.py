"""What a group did since the engine opened."""

from __future__ import annotations


class GroupCounts:
    """Counters; they only grow."""

    __slots__ = (
        "acked",
        "dead_lettered",
        "delivered",
        "discarded",
        "dropped",
        "expired",
        "nacked",
        "redelivered",
        "rejected",
        "timed_out",
        "unreadable",
    )

    def __init__(self) -> None:
        self.delivered = 0
        self.redelivered = 0
        self.acked = 0
        self.nacked = 0
        self.rejected = 0
        self.timed_out = 0
        self.expired = 0
        self.dead_lettered = 0
        self.discarded = 0
        self.dropped = 0
        self.unreadable = 0

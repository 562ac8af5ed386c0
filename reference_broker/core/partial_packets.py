"""The bytes of packets that have begun to come, on all connections together."""

from __future__ import annotations

from typing import Protocol


class Holder(Protocol):
    """A connection."""

    def give_up_packet(self, now: float) -> None:
        """Close it: the packet that has begun to come takes too long."""


class PartialPackets:
    """Bounds them: over the limit the connection that has brought no whole packet for the longest time is closed, so
    that many who begin packets and never end them keep nobody else from sending his."""

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.used_bytes = 0
        self._held: dict[Holder, int] = {}
        """Bytes by connection, the one first that has waited longest."""

    def set(self, holder: Holder, size: int, now: float, *, progressed: bool) -> None:
        """So much of a packet has come. ``progressed``: others before it were whole."""
        held = self._held
        self.used_bytes += size - held.get(holder, 0)
        if progressed or not size:
            held.pop(holder, None)
        if size:
            held[holder] = size
            while self.used_bytes > self.limit_bytes and held:
                next(iter(held)).give_up_packet(now)

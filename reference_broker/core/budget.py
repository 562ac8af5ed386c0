"""What all clients together may make the broker keep, and how it is shared out among them."""

from __future__ import annotations

from assay.reference_broker.routing.message import HOLDER_BYTES, Message, memory_bytes


class Budget:
    """So much of one kind, for all. Up to half of it goes to whoever comes first; beyond that nobody may have more
    than what is left, so that however much some take, others still get something (dynamic thresholds, as in switches
    with shared memory)."""

    __slots__ = ("half", "limit", "used")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.half = limit // 2
        self.used = 0

    def admits(self, held: int, more: int) -> bool:
        """Whether somebody who holds ``held`` may take ``more``."""
        used = self.used
        return used + more <= self.half or held + more <= self.limit - used


class MessageBudget(Budget):
    """Bytes of the messages that sessions hold. One that is queued for many counts once, and a little for each of
    them; one that is in flight counts for each, as each has bytes of its own to be sent."""

    __slots__ = ()

    def hold(self, message: Message) -> None:
        """It is queued for one session more, or its will."""
        self.used += HOLDER_BYTES if message.holders else memory_bytes(message)
        message.holders += 1

    def let_go(self, message: Message) -> None:
        """For one less."""
        message.holders -= 1
        self.used -= HOLDER_BYTES if message.holders else memory_bytes(message)

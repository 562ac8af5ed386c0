"""What a case takes for done because it was acknowledged.

PUBACK, PUBREC and PUBCOMP say that a server owns a message; it need not have retained or forwarded it by then (notes to
figures 4.2 and 4.3 in both versions), so that a client which subscribes next may get it live in place of retained. A
case that goes wrong after such a step is tried once more, with a pause before each. That says nothing of a connection
that is refused or ended, of what is said of sessions, nor of malformed packets: who does that now and then does it.
"""

from __future__ import annotations

import asyncio
import time

from assay.conformance.arrival import Patience
from assay.conformance.rules import Incident, Rule

FORWARDS_WITHIN_S = 1.0
"""After this a server that is not busy has done what it has acknowledged."""
HASTY = "right behind an acknowledgement, which does not say that a message has been retained or forwarded"
NOT_BY_LATE_MESSAGES = frozenset(
    {
        Rule.ACCEPT,
        Rule.FIRST,
        Rule.FORM,
        Rule.TEXT,
        Rule.STAYS_OPEN,
        Rule.SESSION_KEPT,
        Rule.SESSION_NEW,
        Rule.UPGRADE,
        Rule.FRAMES,
        Rule.BINARY,
    }
)
"""Broken by no server that forwards, or retains, later than it acknowledges."""
_ANSWERS = frozenset({Rule.SUBACK, Rule.UNSUBACK, Rule.PUBACK, Rule.PUBREC, Rule.PUBCOMP, Rule.PINGRESP})


def may_be_late(incident: Incident) -> bool:
    """Whether a message that comes late may be what went wrong: an answer is missing, perhaps, as that came first."""
    if incident.rule in _ANSWERS:
        return "; seen PUBLISH" in incident.text
    if incident.rule is Rule.ORDER:
        return incident.soft  # what is late comes in its order all the same
    return incident.rule not in NOT_BY_LATE_MESSAGES


class Haste:
    """Of one case: whether it went on right behind an acknowledgement, or pauses there."""

    def __init__(self, ctx: Patience) -> None:
        self._ctx = ctx
        self.was_hasty = False
        self.pauses = False
        self._acknowledged_s = -FORWARDS_WITHIN_S
        self._by: object = None

    def acknowledged(self, by: object) -> None:
        """A publish of this connection was answered."""
        self._acknowledged_s, self._by = time.monotonic(), by

    async def before_a_step(self, by: object = None) -> None:
        """Whose outcome depends on what was published before: not that of the publisher itself, ``by``, which a server
        hears in order."""
        left_s = self._acknowledged_s + FORWARDS_WITHIN_S - time.monotonic()
        if left_s <= 0 or (by is not None and by is self._by):
            return
        self.was_hasty = True
        if self.pauses:
            self._ctx.remaining_s(left_s)
            await asyncio.sleep(left_s)
            self._ctx.give_back(left_s)

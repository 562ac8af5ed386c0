"""What a broker says it holds for its clients: nobody but ``$SYS`` shows what is never let go of."""

from __future__ import annotations

import time
from collections.abc import Collection

from assay.conformance.explore.control import Control
from assay.conformance.explore.rules import Rule, ViolationError
from assay.conformance.explore.sockets import Patience

HELD = (
    "clients/total",
    "clients/disconnected",
    "clients/connecting",
    "subscriptions/count",
    "shared_subscriptions/count",
    "retained messages/count",
    "retained messages/bytes",
    "subscriptions/bytes",
    "topic aliases/bytes",
    "partial packets/bytes",
    "store/messages/bytes",
    "bytes/waiting",
    "bytes/unread",
)
"""``$SYS`` topics of ours with what is held for clients at a time: all of it is let go of with them."""
HELD_OF_QUEUES = (
    "queues/count",
    "queues/partitions/count",
    "queues/groups/count",
    "queues/known/bytes",
)
"""Likewise, where lives delete their queues."""
_POLL_S = 0.01
"""Between two looks: a broker learns of the end of a connection a moment later."""


class Held:
    """Of one broker, whose lives leave nothing behind."""

    def __init__(self, names: Collection[str]) -> None:
        """``names``: below ``$SYS/broker/``; none where a broker does not tell."""
        self._names = names
        self._before: dict[str, str] | None = None
        self._is_open = False
        """A life has begun, and has not come to its end."""

    def begin(self, control: Control, patience_s: float) -> None:
        """A life begins: what is held now is for nobody. What is not told now is not asked for again.

        One that was broken off leaves sessions that go at any time: nothing more is said of this broker then.
        """
        if self._is_open:
            self._names = ()
        self._is_open = True
        if self._names and self._before is None:
            self._before = control.figures(self._names, patience_s)
            self._names = tuple(self._before)

    def end(self, control: Control, patience_s: float) -> None:
        """Its clients are gone, and all that it left was removed; what is not told is unknown, not wrong.

        Raises :class:`ViolationError`.
        """
        self._is_open = False
        patience = Patience(patience_s, control.round_trip)
        before, self._before = self._before if self._names else None, None
        while before is not None:
            after = control.figures(self._names, patience_s)
            wrong = [name for name, figure in after.items() if figure != before[name]]
            if not wrong:
                self._before = before
                return
            if patience.left_s() <= 0:
                text = "; ".join(f"{name} {after[name]}, before {before[name]}" for name in wrong)
                raise ViolationError(Rule.FIGURES, 5, text, waited=True)
            time.sleep(_POLL_S)

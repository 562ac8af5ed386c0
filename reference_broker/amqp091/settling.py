"""Settlements of many deliveries, over as many turns as they need: what is behind them on the channel waits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress

from assay.reference_broker.amqp091.handles import ChannelHandle, Unsettled
from assay.reference_broker.amqp091.wire.replies import AmqpError
from assay.reference_broker.core.broker import MAX_WORK
from assay.reference_broker.queues import Outcome

Part = tuple[Sequence[tuple[int, Unsettled]], Outcome]
"""Delivery tags with what is held under them, and what becomes of that."""


class Settling:
    """What one method settles, and the answer to it; as :class:`Unfinished` where it is much."""

    def __init__(self, channel: ChannelHandle, parts: Sequence[Part], answer: str | None) -> None:
        self._channel = channel
        self._broker = channel.connection.broker
        self._parts = list(parts)
        self._at = 0
        """In the first of them."""
        self._answer = answer
        self._answer_later: Callable[..., None] | None = None

    def begin(self) -> bool:
        """What the turn has room for; whether that is all of it. Raises :class:`AmqpError`."""
        if self._is_through():
            self._channel.consuming.settled()
            if self._answer is not None:
                self._channel.send(self._answer)
            return True
        self._answer_later = self._channel.answer_later()
        self._broker.unfinished.append(self)
        return False

    def go_on(self, _now: float) -> None:
        """As :class:`Unfinished`."""
        if self._answer_later is None or not self._channel.is_open:
            return
        self._broker.work = 0
        try:
            is_through = self._is_through()
        except AmqpError as error:
            self._answer_later(error)
            return
        if is_through:
            self._channel.consuming.settled()
            self._answer_later(self._answer)
        else:
            self._broker.unfinished.append(self)

    def _is_through(self) -> bool:
        consuming, broker = self._channel.consuming, self._broker
        while self._parts:
            taken, outcome = self._parts[0]
            while self._at < len(taken):
                if broker.work >= MAX_WORK:
                    return False
                count = consuming.settle_next(taken, self._at, outcome)
                self._at += count
                # Acknowledgements go together.
                broker.work += count >> 3 or 1
            del self._parts[0]
            self._at = 0
        return True

    def end(self) -> None:
        """The channel is over: what was acknowledged is; the rest is ready for others, as if nothing was said of it."""
        parts, self._parts = self._parts, []
        self._answer_later = None
        for taken, outcome in parts:
            # What is refused comes again.
            with suppress(AmqpError):
                while outcome is Outcome.ACCEPT and self._at < len(taken):
                    self._at += self._channel.consuming.settle_next(taken, self._at, outcome)
            self._at = 0

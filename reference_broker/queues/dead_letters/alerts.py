"""Alerts of dead letters to web hooks."""

from __future__ import annotations

from typing import Final

import msgspec

from assay.reference_broker.queues.jobs.outbox import Outbox

MAX_ALERTS: Final = 1_000
"""Alerts that wait, for their first attempt or another; more are dropped, and counted."""


class DeadLetterAlert(msgspec.Struct, frozen=True, kw_only=True):
    """The JSON body of an alert, with FluxMQ's names. Times are RFC 3339."""

    queue_name: str
    dlq_topic: str
    message_id: str
    """Of the message in its own queue."""
    failure_reason: str
    retry_count: int
    """Deliveries after the first."""
    first_attempt: str | None
    """First delivery; None when it was never delivered."""
    moved_to_dlq_at: str
    total_duration: int
    """Nanoseconds from the publish to the move."""


class Alerts(Outbox):
    """All alerts of a broker. They live in memory only: an alert tells of a dead letter, which is what is kept."""

    def __init__(self, *, allow_private: bool = False) -> None:
        super().__init__("alert of a dead letter", max_waiting=MAX_ALERTS)
        self._allow_private = allow_private

    def add(self, url: str, alert: DeadLetterAlert, *, attempts: int, timeout_s: float) -> None:
        """Have an alert sent, tried ``attempts`` times at most."""
        body = msgspec.json.encode(alert)
        self.post(url, body, attempts=attempts, timeout_s=timeout_s, allow_private=self._allow_private)

"""Alerts of dead letters to web hooks: what is to be sent, and when again. Sans-IO: somebody else does the sending."""

from __future__ import annotations

import heapq
from collections import deque
from typing import Final

import msgspec

MAX_ALERTS: Final = 1_000
"""Alerts that wait, for their first attempt or another; more are dropped, and counted."""
MAX_RUNNING: Final = 4
"""Requests at a time."""
_FIRST_BACKOFF_S: Final = 1.0
_MAX_BACKOFF_S: Final = 30.0


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


class AlertRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One POST to make; report it by :meth:`Alerts.done`."""

    number: int
    url: str
    body: bytes
    """JSON."""
    timeout_s: float
    """For the whole request, from the name's look-up to the answer's status."""
    allow_private: bool
    """The address may be a private, local or otherwise special one."""


class _Alert:
    __slots__ = ("attempts", "attempts_left", "request")

    def __init__(self, request: AlertRequest, attempts: int) -> None:
        self.request = request
        self.attempts = 0
        self.attempts_left = attempts


class Alerts:
    """All alerts of a broker. They live in memory only: an alert tells of a dead letter, which is what is kept."""

    def __init__(self, *, allow_private: bool = False) -> None:
        self._allow_private = allow_private
        self.sent = 0
        self.failed = 0
        """Given up after their last attempt."""
        self.dropped = 0
        """Never tried, since too many waited."""
        self._waiting: deque[_Alert] = deque()
        self._retries: list[tuple[float, int, _Alert]] = []
        self._running: dict[int, _Alert] = {}
        self._count = 0

    def add(self, url: str, alert: DeadLetterAlert, *, attempts: int, timeout_s: float) -> None:
        """Have an alert sent, tried ``attempts`` times at most."""
        if len(self._waiting) + len(self._retries) >= MAX_ALERTS:
            self.dropped += 1
            return
        self._count += 1
        request = AlertRequest(
            number=self._count,
            url=url,
            body=msgspec.json.encode(alert),
            timeout_s=timeout_s,
            allow_private=self._allow_private,
        )
        self._waiting.append(_Alert(request, attempts))

    def take(self, now: float) -> list[AlertRequest]:
        """Requests to start now. At most ``MAX_RUNNING`` are under way at a time."""
        taken: list[AlertRequest] = []
        while len(self._running) < MAX_RUNNING:
            if self._retries and self._retries[0][0] <= now:
                alert = heapq.heappop(self._retries)[2]
            elif self._waiting:
                alert = self._waiting.popleft()
            else:
                break
            self._running[alert.request.number] = alert
            taken.append(alert.request)
        return taken

    def done(self, request: AlertRequest, *, accepted: bool, now: float) -> None:
        """A request ended. If it was not accepted it is made again: after 1 s, 2 s, 4 s, and so on up to 30 s."""
        alert = self._running.pop(request.number, None)
        if alert is None:
            return
        if accepted:
            self.sent += 1
            return
        alert.attempts += 1
        alert.attempts_left -= 1
        if alert.attempts_left <= 0:
            self.failed += 1
            return
        wait_s = min(_FIRST_BACKOFF_S * 2 ** min(alert.attempts - 1, 10), _MAX_BACKOFF_S)
        heapq.heappush(self._retries, (now + wait_s, request.number, alert))

    @property
    def next_deadline(self) -> float | None:
        """When :meth:`take` has something again; None = not before an alert is added or a request ends."""
        if len(self._running) >= MAX_RUNNING:
            return None
        if self._waiting:
            return 0.0
        return self._retries[0][0] if self._retries else None

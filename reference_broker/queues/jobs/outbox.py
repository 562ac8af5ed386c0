"""What is sent to others over HTTP, and when again: bounded, with backoff, and not at all for a while to who does not
answer. Sans-IO: ``server.webhooks`` does the sending. Dead-letter alerts and the events of the broker go out by it."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable
from typing import Final

import msgspec

MAX_RUNNING: Final = 4
"""Requests of an outbox at a time, unless it says otherwise."""
FIRST_BACKOFF_S: Final = 1.0
_MAX_BACKOFF_S: Final = 30.0


class OutboundRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One POST to make; report it by :meth:`Outbox.done`."""

    number: int
    url: str
    body: bytes
    """JSON."""
    timeout_s: float
    """For the whole request, from the name's look-up to the end of what is read of the answer."""
    allow_private: bool
    """The address may be a private, local or otherwise special one."""
    headers: tuple[tuple[str, str], ...] = ()
    """Beside those of every request."""
    most_answer_bytes: int = 0
    """A longer answer is none; 0 = its status says all."""


OnAnswer = Callable[[bytes | None], None]
"""Takes the answer that was accepted; None: there is none, and it is not tried again."""


class Breaker:
    """Lets nobody ask one who has failed a number of times in a row, but for one try now and then."""

    def __init__(self, failures: int, pause_s: float) -> None:
        """``failures``: 0 = it never opens."""
        self._most = failures
        self._pause_s = pause_s
        self._failures = 0
        self.open_until = 0.0
        """0 = closed."""

    def done(self, *, accepted: bool, now: float) -> None:
        """Somebody asked."""
        self._failures = 0 if accepted else self._failures + 1
        if accepted:
            self.open_until = 0.0
        elif self._most and self._failures >= self._most:
            self.open_until = now + self._pause_s

    def room(self, running: int, most: int, now: float) -> int:
        """How many may begin to ask."""
        if not self.open_until:
            return most - running
        return 1 - running if now >= self.open_until else 0


class _Outbound:
    __slots__ = ("attempts", "attempts_left", "on_answer", "request")

    def __init__(self, request: OutboundRequest, attempts: int, on_answer: OnAnswer | None) -> None:
        self.request = request
        self.on_answer = on_answer
        self.attempts = 0
        self.attempts_left = attempts


class Outbox:
    """They live in memory only."""

    def __init__(
        self,
        what: str,
        *,
        max_waiting: int,
        max_running: int = MAX_RUNNING,
        drop_oldest: bool = False,
        first_backoff_s: float = FIRST_BACKOFF_S,
        patient: bool = True,
        breaker: Breaker | None = None,
    ) -> None:
        """``what`` is sent, for the log. ``drop_oldest``: of too many that wait, else the newest is dropped.
        ``patient``: what waits is kept while the breaker is open, else it is given up."""
        self.what = what
        self.sent = 0
        self.failed = 0
        """Given up after their last attempt."""
        self.dropped = 0
        """Never tried again, since too many waited."""
        self._most = max_waiting
        self._most_running = max_running
        self._first_backoff_s = first_backoff_s
        self._patient = patient
        self._drop_oldest = drop_oldest
        self._breaker = breaker or Breaker(0, 0.0)
        self._waiting: deque[_Outbound] = deque()
        self._retries: list[tuple[float, int, _Outbound]] = []
        self._running: dict[int, _Outbound] = {}
        self._count = 0

    @property
    def waiting(self) -> int:
        """Requests that wait, for their first attempt or another."""
        return len(self._waiting) + len(self._retries)

    def post(
        self,
        url: str,
        body: bytes,
        *,
        attempts: int,
        timeout_s: float,
        allow_private: bool,
        headers: tuple[tuple[str, str], ...] = (),
        most_answer_bytes: int = 0,
        on_answer: OnAnswer | None = None,
    ) -> None:
        """Have something sent, tried ``attempts`` times at most; ``on_answer`` is told how it ended, unless it is
        dropped."""
        if self.waiting >= self._most:
            self.dropped += 1
            if not self._drop_oldest:
                return
            # Those that failed before are older, whenever they are due.
            heapq.heappop(self._retries) if self._retries else self._waiting.popleft()
        self._count += 1
        request = OutboundRequest(
            number=self._count,
            url=url,
            body=body,
            timeout_s=timeout_s,
            allow_private=allow_private,
            headers=headers,
            most_answer_bytes=most_answer_bytes,
        )
        self._waiting.append(_Outbound(request, attempts, on_answer))

    def take(self, now: float) -> list[OutboundRequest]:
        """Requests to start now. At most ``max_running`` are under way at a time."""
        taken: list[OutboundRequest] = []
        while self._breaker.room(len(self._running), self._most_running, now) > 0:
            if self._retries and self._retries[0][0] <= now:
                outbound = heapq.heappop(self._retries)[2]
            elif self._waiting:
                outbound = self._waiting.popleft()
            else:
                break
            self._running[outbound.request.number] = outbound
            taken.append(outbound.request)
        return taken

    def done(self, request: OutboundRequest, *, accepted: bool, now: float, answer: bytes = b"") -> None:
        """A request ended. If it was not accepted it is made again: after 1 s, 2 s, 4 s, and so on up to 30 s."""
        outbound = self._running.pop(request.number, None)
        if outbound is None:
            return
        self._breaker.done(accepted=accepted, now=now)
        if accepted:
            self.sent += 1
            if outbound.on_answer is not None:
                outbound.on_answer(answer)
            return
        outbound.attempts += 1
        outbound.attempts_left -= 1
        if self._breaker.open_until and not self._patient:
            self._give_up(outbound)
            self._give_up_waiting()
            return
        if outbound.attempts_left <= 0:
            self._give_up(outbound)
            return
        wait_s = min(self._first_backoff_s * 2 ** min(outbound.attempts - 1, 10), _MAX_BACKOFF_S)
        heapq.heappush(self._retries, (now + wait_s, request.number, outbound))

    def _give_up(self, outbound: _Outbound) -> None:
        self.failed += 1
        if outbound.on_answer is not None:
            outbound.on_answer(None)

    def _give_up_waiting(self) -> None:
        waiting = [*self._waiting, *(outbound for *_, outbound in self._retries)]
        self._waiting.clear()
        self._retries.clear()
        for outbound in waiting:
            self._give_up(outbound)

    @property
    def next_deadline(self) -> float | None:
        """When :meth:`take` has something again; None = not before something is added or a request ends."""
        open_until = self._breaker.open_until
        if self._breaker.room(len(self._running), self._most_running, open_until) <= 0:
            return None
        if self._waiting:
            return open_until
        return max(open_until, self._retries[0][0]) if self._retries else None

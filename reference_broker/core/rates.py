"""Rate limits, sans-IO: a token bucket for one client, and a bounded table of arrival rates by key."""

from __future__ import annotations

import ipaddress
from itertools import islice

MAX_LOOKED_AT = 64


def arrival_key(listener: str, address: str) -> str:
    """Who arrives at a listener: an IPv4 address, or the /64 network of an IPv6 one, since a client has all of it."""
    try:
        ip = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return f"{listener} {address}"
    if isinstance(ip, ipaddress.IPv6Address) and ip.ipv4_mapped is None and not ip.is_loopback:
        return f"{listener} {ipaddress.IPv6Network((int(ip) >> 64 << 64, 64))}"
    return f"{listener} {ip}"


class TokenBucket:
    """``rate_per_s`` tokens a second, at most ``capacity`` saved up. May be overdrawn; the debt is paid in time."""

    __slots__ = ("_rate_per_s", "_tokens", "_updated_at", "capacity")

    def __init__(self, rate_per_s: float, capacity: float, now: float) -> None:
        self._rate_per_s = rate_per_s
        self.capacity = capacity
        self._tokens = capacity
        self._updated_at = now

    def available(self, now: float) -> float:
        """Tokens there are at ``now``; negative while in debt."""
        if now > self._updated_at:
            self._tokens = min(self.capacity, self._tokens + (now - self._updated_at) * self._rate_per_s)
            self._updated_at = now
        return self._tokens

    def take(self, count: float) -> None:
        """Spend tokens, as counted by the last :meth:`available`."""
        self._tokens -= count

    def wait_s(self, count: float) -> float:
        """Seconds from the last :meth:`available` until there are ``count`` tokens (at most the capacity)."""
        return max(0.0, (min(count, self.capacity) - self._tokens) / self._rate_per_s)


class ArrivalRates:
    """Limits how often each key may arrive: ``rate_per_s`` in the long run, ``burst`` at once.

    One number a key (the time at which its bucket is full again), at most ``max_keys`` of them. Over that, some of the
    keys that arrived longest ago go: those whose bucket is full, as they are the same as unknown ones, else the oldest.
    """

    def __init__(self, rate_per_s: float, burst: int, max_keys: int) -> None:
        self._interval_s = 1.0 / rate_per_s
        self._slack_s = self._interval_s * (burst - 1)
        self._max_keys = max_keys
        self._full_at: dict[str, float] = {}
        """In the order of their last arrival, refused ones included."""

    def __len__(self) -> int:
        return len(self._full_at)

    def allows(self, key: str, now: float) -> bool:
        """Whether one more may arrive now; refused arrivals are not counted."""
        # A millionth of an interval of tolerance: sums of floats must not refuse what comes exactly in time.
        full_at = max(self._full_at.pop(key, now), now)
        allowed = full_at - now <= self._slack_s + self._interval_s * 1e-6
        if not allowed:
            self._full_at[key] = full_at
            return False
        if len(self._full_at) >= self._max_keys:
            self._forget(now)
        self._full_at[key] = full_at + self._interval_s
        return True

    def _forget(self, now: float) -> None:
        """Make room, looking at few keys only: a flood of new addresses must not cost a walk over all each time."""
        oldest = islice(self._full_at.items(), MAX_LOOKED_AT)
        full = [key for key, full_at in oldest if full_at <= now]
        for key in full or [next(iter(self._full_at))]:
            del self._full_at[key]

"""The configuration of HTTP, and of the tokens that its clients may show in place of a password."""

from __future__ import annotations

from enum import StrEnum

from assay.reference_broker.config_mqtt import Section


class Scope(StrEnum):
    """What the bearer of a token may do; access rules and tenants hold beside it."""

    READ = "read"
    """Look, consume, settle."""
    WRITE = "write"
    """Publish, transactions included."""
    ADMIN = "admin"
    """Create, change and delete queues, groups and what else there is."""


class TokenConfig(Section, frozen=True, kw_only=True):
    """A token, for whoever shows it as ``Authorization: Bearer``. It stands for a user of ``auth.users``, with less."""

    name: str
    """For people: the log names it, never the token itself."""
    user: str
    hash: str
    """``sha256$<hex>``; from ``assay token``. A token is 32 random bytes, so that nothing slower is needed."""
    scopes: tuple[Scope, ...] = (Scope.READ,)
    expires_at: float = 0.0
    """Unix seconds; 0 = never."""


class HttpConfig(Section, frozen=True, kw_only=True):
    """Of every listener that speaks HTTP: what a request, a client and all of them may take."""

    hosts: tuple[str, ...] = ()
    """Further names that a client of a listener on loopback may call it by: the page of another site has no other."""
    console: bool = True
    """Serve the console at ``/console/``."""
    max_body_bytes: int = 4 * 1024 * 1024
    max_header_bytes: int = 16_384
    max_held_bytes: int = 64 * 1024 * 1024
    """Of the bodies of all requests together that have not been answered."""
    max_requests: int = 256
    """At once, those that wait for messages not included; over it 503."""
    max_consumers: int = 10_000
    """Members of groups and others that come back for more: bound to no connection."""
    max_batch: int = 1_000
    """Messages of one request, in or out."""
    max_poll_s: float = 60.0
    """A client that asks to wait longer is answered by then."""
    max_waiting: int = 1_000
    """Long polls and streams at once, likewise."""
    header_timeout_s: float = 10.0
    """For the head of a request to come, TLS not included."""
    body_timeout_s: float = 30.0
    """For its body, and for any part of an answer to be taken."""
    keep_alive_s: float = 75.0
    """A connection without a request is closed after it."""
    requests_per_s: float = 0.0
    """Of one client, by its user, else its address (IPv6: its /64 network), in the long run; over it 429. 0 = no
    limit."""
    request_burst: int = 100
    """So many at once."""


def http_problems(config: HttpConfig) -> list[str]:
    """What is wrong, each with its key."""
    problems: list[str] = []
    if not 1_024 <= config.max_header_bytes <= 1 << 20:
        problems.append("http.max_header_bytes must be 1024 to 1048576")
    if config.requests_per_s and not 1e-4 <= config.requests_per_s <= 1e9:
        problems.append("http.requests_per_s must be 0.0001 to 1000000000, or 0 for no limit")
    counts = ("max_body_bytes", "max_held_bytes", "max_requests", "max_waiting", "max_consumers", "request_burst")
    problems += [f"http.{name} must be at least 1" for name in counts if getattr(config, name) < 1]
    if not 1 <= config.max_batch <= 100_000:
        problems.append("http.max_batch must be 1 to 100000")
    if not 0 <= config.max_poll_s <= 3_600:
        problems.append("http.max_poll_s must be 0 to 3600")
    times = ("header_timeout_s", "body_timeout_s", "keep_alive_s")
    wrong = [name for name in times if not 0.01 <= getattr(config, name) <= 3_600]
    return problems + [f"http.{name} must be 0.01 to 3600" for name in wrong]

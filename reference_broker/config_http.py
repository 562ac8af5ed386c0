"""The configuration of HTTP, and of the tokens that its clients may show in place of a password."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from assay.reference_broker.config_mqtt import Section
from assay.reference_broker.config_numbers import Count, Range


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
    max_body_bytes: Count = 4 * 1024 * 1024
    max_header_bytes: Annotated[int, Range(1_024, 1 << 20)] = 16_384
    max_held_bytes: Count = 64 * 1024 * 1024
    """Of the bodies of all requests together that have not been answered."""
    max_requests: Count = 256
    """At once, those that wait for messages not included; over it 503."""
    max_consumers: Count = 10_000
    """Members of groups and others that come back for more: bound to no connection."""
    max_batch: Annotated[int, Range(1, 100_000)] = 1_000
    """Messages of one request, in or out."""
    max_poll_s: Annotated[float, Range(0, 3_600)] = 60.0
    """A client that asks to wait longer is answered by then."""
    max_waiting: Count = 1_000
    """Long polls and streams at once, likewise."""
    header_timeout_s: Annotated[float, Range(0.01, 3_600)] = 10.0
    """For the head of a request to come, TLS not included."""
    body_timeout_s: Annotated[float, Range(0.01, 3_600)] = 30.0
    """For its body, and for any part of an answer to be taken."""
    keep_alive_s: Annotated[float, Range(0.01, 3_600)] = 75.0
    """A connection without a request is closed after it."""
    requests_per_s: Annotated[float, Range(1e-4, 1e9, or_zero=True)] = 0.0
    """Of one client, by its user, else its address (IPv6: its /64 network), in the long run; over it 429. 0 = no
    limit."""
    request_burst: Count = 100
    """So many at once."""

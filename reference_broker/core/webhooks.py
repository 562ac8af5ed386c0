"""Tells others what happens in the broker, by POST. Sans-IO: each endpoint has an outbox, and ``server.webhooks`` does
the sending. Nothing waits for it: what an endpoint misses is counted, never held against a client."""

from __future__ import annotations

import hashlib
import hmac
import random
from collections.abc import Callable
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

import msgspec

from assay.reference_broker.config import EventKind, WebhookConfig, WebhooksConfig
from assay.reference_broker.queues import QueueError
from assay.reference_broker.queues.jobs.outbox import Breaker, Outbox
from assay.reference_broker.routing.topics import matches

if TYPE_CHECKING:
    from assay.reference_broker.queues import QueueEngine

SIGNATURE: Final = "X-Assay-Signature"
MAX_TEXT: Final = 512
"""Characters of what clients call themselves, and of anything else that is told; the rest is cut."""
MAX_QUIET: Final = 10_000
"""Subjects that were told of lately; those of the longest ago are forgotten first."""
LOOK_S: Final = 1.0
"""So often some queues are looked at, for groups that are behind."""
LOOKED_AT: Final = 50
"""Queues at a time."""
_GOES_ON: Final = frozenset((EventKind.QUEUE_FULL, EventKind.GROUP_EMPTY, EventKind.GROUP_LAGS, EventKind.OVER_QUOTA))


class Event(msgspec.Struct, frozen=True, kw_only=True):
    """The JSON body, with FluxMQ's names."""

    event_type: EventKind
    event_id: str
    """A UUID: the same in every attempt."""
    timestamp: str
    """RFC 3339."""
    broker_id: str
    data: dict[str, Any]


class _Endpoint:
    def __init__(self, config: WebhookConfig, outbox: Outbox) -> None:
        self.config = config
        self.outbox = outbox
        self._filters = config.subjects
        self._events = frozenset(config.events or EventKind)

    def wants(self, kind: EventKind, subject: str) -> bool:
        return kind in self._events and (
            not self._filters or any(matches(topic_filter, subject) for topic_filter in self._filters)
        )


class Webhooks:
    """All endpoints of a broker."""

    def __init__(
        self, config: WebhooksConfig, node: str, rng: random.Random, now: Callable[[], float], engine: QueueEngine
    ) -> None:
        self._config = config
        self._node = node
        self._rng = rng
        self._now = now
        self._engine = engine
        self._endpoints = [
            _Endpoint(
                each,
                Outbox(
                    "event",
                    max_waiting=config.max_waiting,
                    drop_oldest=config.drop_oldest,
                    breaker=Breaker(config.breaker_failures, config.breaker_pause_s),
                ),
            )
            for each in config.endpoints
        ]
        self._told: dict[tuple[EventKind, str], float] = {}
        self._looked_at = ""
        self._look_at = 0.0

    @property
    def outboxes(self) -> list[Outbox]:
        return [each.outbox for each in self._endpoints]

    def notify(self, kind: EventKind, subject: str, data: dict[str, Any]) -> int:
        """Something happened to a client, queue or tenant. Returns how many endpoints are told."""
        wanting = [each for each in self._endpoints if each.wants(kind, subject)]
        if not wanting or (kind in _GOES_ON and self._is_quiet(kind, f"{subject}\0{data.get('group', '')}")):
            return 0
        event = Event(
            event_type=kind,
            event_id=_uuid(self._rng),
            timestamp=datetime.fromtimestamp(self._now(), UTC).isoformat().replace("+00:00", "Z"),
            broker_id=self._node,
            data={name: each[:MAX_TEXT] if isinstance(each, str) else each for name, each in data.items()},
        )
        body = msgspec.json.encode(event)
        for each in wanting:
            config = each.config
            each.outbox.post(
                config.url,
                body,
                attempts=config.attempts,
                timeout_s=config.timeout_s,
                allow_private=self._config.allow_private,
                headers=((SIGNATURE, signature(config.secret, body)),) if config.secret else (),
            )
        return len(wanting)

    def _is_quiet(self, kind: EventKind, subject: str) -> bool:
        now = self._now()
        told_at = self._told.pop((kind, subject), None)
        quiet = told_at is not None and now < told_at + self._config.quiet_s
        self._told[(kind, subject)] = told_at if quiet and told_at is not None else now
        if len(self._told) > MAX_QUIET:
            del self._told[next(iter(self._told))]
        return quiet

    @property
    def next_deadline(self) -> float | None:
        """When to :meth:`look` again; None = never."""
        return self._look_at if self._config.group_lag and self._endpoints else None

    def look(self, now: float) -> None:
        """Look at some queues for groups that are behind."""
        if self.next_deadline is None or now < self._look_at:
            return
        self._look_at = now + LOOK_S
        names = self._engine.queues()
        behind = [name for name in names if name > self._looked_at][:LOOKED_AT]
        self._looked_at = behind[-1] if len(behind) == LOOKED_AT else ""
        for name in behind:
            try:
                stats = self._engine.stats(name)
            except QueueError:
                continue
            for group in stats.groups:
                if group.lag > self._config.group_lag:
                    data = {"queue": name, "group": group.group, "lag": group.lag, "consumers": group.consumers}
                    self.notify(EventKind.GROUP_LAGS, name, data)


def signature(secret: str, body: bytes) -> str:
    """What the header :data:`SIGNATURE` says of a body."""
    return f"sha256={hmac.new(secret.encode(), body, hashlib.sha256).hexdigest()}"


def _uuid(rng: random.Random) -> str:
    """A random UUID (RFC 9562, 5.4)."""
    text = f"{rng.getrandbits(128):032x}"
    variant = "89ab"[int(text[16], 16) & 3]
    return f"{text[:8]}-{text[8:12]}-4{text[13:16]}-{variant}{text[17:20]}-{text[20:]}"

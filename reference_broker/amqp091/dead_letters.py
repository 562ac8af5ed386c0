"""Dead letters go to an exchange, and say in their headers where they died and why (RabbitMQ's ``x-death``)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import msgspec

from assay.reference_broker.amqp091.topology import TopologyLimits, VirtualHost, routing_keys_of
from assay.reference_broker.amqp091.wire.fields import Table
from assay.reference_broker.queues import QueueAddress, QueueEngine, QueueError, QueueErrorCode
from assay.reference_broker.queues.dead_letters import dead_letters as history
from assay.reference_broker.queues.groups.retry import RETRIES_EXCEEDED
from assay.reference_broker.queues.jobs.confirms import Confirm
from assay.reference_broker.queues.limits.limits import QUEUE_FULL
from assay.reference_broker.queues.limits.time_to_live import TTL_EXPIRED
from assay.reference_broker.routing.message import Message
from assay.reference_broker.routing.properties import Kind, MessageProperties, Typed

X_DEATH: Final = "x-death"
EXPIRED, REJECTED, MAXLEN, DELIVERY_LIMIT = "expired", "rejected", "maxlen", "delivery_limit"
_REASONS: Final = {TTL_EXPIRED: EXPIRED, RETRIES_EXCEEDED: DELIVERY_LIMIT, QUEUE_FULL: MAXLEN}
"""What the engine says; all else was rejected by a consumer, in its own words perhaps."""
MAX_DEATHS: Final = 64
"""Of one message; the oldest are forgotten."""
_MAX_KEYS: Final = TopologyLimits().max_routing_keys
_LOST_ANYWAY: Final = (
    QueueErrorCode.FULL,
    QueueErrorCode.TOO_LARGE,
    QueueErrorCode.MISFIT,
    QueueErrorCode.QUOTA,
    QueueErrorCode.UNKNOWN_QUEUE,
)
"""A queue that does not take a letter loses it; what the disk refuses is tried again."""
Death = dict[str, Typed]


def _text(value: str) -> Typed:
    return Typed(Kind.TEXT, value)


def deaths_of(headers: Table) -> list[Death]:
    """The deaths that headers tell of, the latest first. What is none is left out: a publisher may have written it."""
    given = next((value for name, value in headers if name == X_DEATH), None)
    if given is None or given.kind not in (Kind.LIST, Kind.ARRAY):
        return []
    found = []
    for each in given.value:
        if each.kind is Kind.MAP:
            parts = each.value
            death = {str(name.value): value for name, value in zip(parts[::2], parts[1::2], strict=True)}
            if {"queue", "reason"} <= death.keys():
                found.append(death)
    return found


def with_death(
    headers: Table,
    queue: str,
    reason: str,
    exchange: str,
    routing_keys: list[str],
    now: float,
    ttl_ms: int | None = None,
) -> Table:
    """Headers that tell of one more death; the same in the same queue counts. ``ttl_ms``: the message's own."""
    deaths = deaths_of(headers)
    known = next((d for d in deaths if d["queue"].value == queue and d["reason"].value == reason), None)
    count = 1
    if known is not None:
        deaths.remove(known)
        before = known.get("count")
        count += before.value if before is not None and isinstance(before.value, int) else 1
    death: Death = {
        "count": Typed(Kind.I64, count),
        "reason": _text(reason),
        "queue": _text(queue),
        "time": Typed(Kind.SECONDS, int(now)),
        "exchange": _text(exchange),
        "routing-keys": Typed(Kind.LIST, tuple(map(_text, routing_keys))),
    }
    if ttl_ms is not None:
        death["original-expiration"] = _text(str(ttl_ms))
    told = [death, *deaths][:MAX_DEATHS]
    rows = [Typed(Kind.MAP, tuple([part for name, value in d.items() for part in (_text(name), value)])) for d in told]
    named = dict(headers)
    named[X_DEATH] = Typed(Kind.LIST, tuple(rows))
    named.setdefault("x-first-death-reason", _text(reason))
    named.setdefault("x-first-death-queue", _text(queue))
    named.setdefault("x-first-death-exchange", _text(exchange))
    return tuple(named.items())


def is_cycle(queue: str, deaths: list[Death]) -> bool:
    """Whether a letter would come to a queue where it died before, and nobody rejected it since."""
    for number, death in enumerate(deaths):
        if death["queue"].value == queue:
            return all(d["reason"].value != REJECTED for d in deaths[: number + 1])
    return False


class DeadLetterExchange:
    """Takes the letters of one queue, as :class:`LetterTaker`."""

    def __init__(
        self,
        engine: QueueEngine,
        vhost: VirtualHost,
        queue: str,
        exchange: str,
        routing_key: str | None,
        engine_name: Callable[[str], str],
    ) -> None:
        """``engine_name``: the engine's name of a queue."""
        self._engine = engine
        self._vhost = vhost
        self._queue = queue
        self._exchange = exchange
        self._routing_key = routing_key
        self._engine_name = engine_name

    def enqueue_dead_letter(self, routing_key: str, message: Message, size: int, now: float, on_done: Confirm) -> None:
        """See :class:`LetterTaker`. ``on_done`` is called once every queue that it went to has it."""
        kept = message.properties or MessageProperties()
        own = tuple([pair for pair in message.user_properties if not pair[0].startswith(history.PROPERTY_PREFIX)])
        told = dict(message.user_properties)
        reason = _REASONS.get(told.get(history.REASON, ""), REJECTED)
        key = self._queue if kept.routing_key is None else kept.routing_key
        keys = list(routing_keys_of(key, kept.headers, _MAX_KEYS))
        headers = with_death(kept.headers, self._queue, reason, kept.exchange or "", keys, now, kept.ttl_ms)
        if self._routing_key is not None:
            # Other keys of the message lead nowhere any more.
            key = self._routing_key
            headers = tuple([field for field in headers if field[0] != "CC"])
        deaths = deaths_of(headers)
        queues = [
            queue
            for queue in self._vhost.route_dead_letter(self._exchange, key, headers).queues
            if not is_cycle(queue, deaths)
        ]
        properties = msgspec.structs.replace(
            kept,
            headers=headers,
            ttl_ms=None,
            exchange=self._exchange or None,
            routing_key=key if self._exchange else None,
        )
        letter = Message(
            topic="",
            payload=message.payload,
            publisher=message.publisher,
            content_type=message.content_type,
            response_topic=message.response_topic,
            correlation_data=message.correlation_data,
            user_properties=own,
            properties=properties,
        )
        left = len(queues) + 1
        failure: QueueError | None = None

        def done(error: QueueError | None) -> None:
            nonlocal left, failure
            left -= 1
            if error is not None and error.code not in _LOST_ANYWAY:
                failure = error
            if not left:
                on_done(failure)

        for queue in queues:
            try:
                self._engine.publish(QueueAddress(queue=self._engine_name(queue)), letter, now, done)
            except QueueError as error:
                done(error.bare())
        done(None)

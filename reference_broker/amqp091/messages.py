"""Messages of AMQP 0.9.1 as the broker's, and the opposite. docs/interop-protocols.md has the table."""

from __future__ import annotations

import base64
from typing import Final

from assay.reference_broker.amqp091.queue_settings import AT_ONCE_MS
from assay.reference_broker.amqp091.topology.routes import BCC, CC
from assay.reference_broker.amqp091.wire.content import NONE, BasicProperties
from assay.reference_broker.amqp091.wire.fields import Table
from assay.reference_broker.amqp091.wire.replies import AmqpError, Reply
from assay.reference_broker.routing.message import Message
from assay.reference_broker.routing.properties import Kind, MessageProperties, Typed

_MAX_DIGITS: Final = 10
TRANSIENT, PERSISTENT = 1, 2


def expiration_ms(properties: BasicProperties) -> int | None:
    """Raises :class:`AmqpError` (406) for what is no number of milliseconds."""
    text = properties.expiration
    if text is None:
        return None
    if not (text.isascii() and text.isdecimal() and len(text) <= _MAX_DIGITS and int(text) < 1 << 32):
        problem = f"invalid expiration '{text[:40]}': a number of milliseconds below 4294967296 is expected"
        raise AmqpError(Reply.PRECONDITION_FAILED, problem, rule="rmq.expiration.invalid")
    return int(text)


def message_from(
    properties: BasicProperties, body: bytes, exchange: str, routing_key: str, publisher: str, now: float
) -> Message:
    """A message as it was published to an exchange. Raises :class:`AmqpError` (406)."""
    if properties is NONE and not exchange:
        return Message(topic="", payload=body, publisher=publisher)
    ttl_ms = expiration_ms(properties)
    created_at_s = properties.timestamp
    headers = properties.headers or ()
    # Of the default exchange its queue's name says it all, unless there are further keys.
    is_named = bool(exchange) or any(name in (CC, BCC) for name, _ in headers)
    kept = MessageProperties(
        message_id=_text(properties.message_id),
        correlation_id=_text(properties.correlation_id),
        content_encoding=properties.content_encoding,
        kind=properties.kind,
        app_id=properties.app_id,
        user_id=None if properties.user_id is None else properties.user_id.encode(),
        priority=properties.priority,
        durable=None if properties.delivery_mode is None else properties.delivery_mode == PERSISTENT,
        ttl_ms=ttl_ms,
        created_at_ms=None if created_at_s is None else min(created_at_s * 1_000, (1 << 63) - 1),
        headers=tuple([field for field in headers if field[0] != BCC]),
        exchange=exchange if is_named else None,
        routing_key=routing_key if is_named else None,
    )
    return Message(
        topic="",
        payload=body,
        publisher=publisher,
        content_type=properties.content_type,
        response_topic=properties.reply_to,
        expires_at=0.0 if ttl_ms is None else now + max(ttl_ms, AT_ONCE_MS) / 1_000,
        properties=kept if kept != _NOTHING else None,
    )


_NOTHING: Final = MessageProperties()


def _text(value: str | None) -> Typed | None:
    return None if value is None else Typed(Kind.TEXT, value)


def properties_of(message: Message, now: float) -> BasicProperties:
    """What a consumer is given."""
    kept = message.properties
    if kept is None:
        kept = _NOTHING
    elif kept.exchange is None and not message.user_properties and kept == _NOTHING:
        return NONE
    created_ms = kept.created_at_ms
    correlation = _text_of(kept.correlation_id)
    if correlation is None and message.correlation_data is not None:
        correlation = _from_bytes(message.correlation_data)
    headers: Table = kept.headers
    if message.user_properties:
        # Those of MQTT: a name that is there twice is given once.
        named = {name for name, _ in headers}
        own = {name: value for name, value in reversed(message.user_properties) if name not in named}
        headers += tuple([(name, Typed(Kind.TEXT, value)) for name, value in reversed(own.items())])
    return BasicProperties(
        content_type=message.content_type,
        content_encoding=kept.content_encoding,
        headers=headers or None,
        delivery_mode=None if kept.durable is None else PERSISTENT if kept.durable else TRANSIENT,
        priority=kept.priority,
        correlation_id=correlation,
        reply_to=message.response_topic,
        expiration=_expiration(message, kept, now),
        message_id=_text_of(kept.message_id),
        timestamp=None if created_ms is None else max(0, created_ms // 1_000),
        kind=kept.kind,
        user_id=None if kept.user_id is None else kept.user_id.decode(errors="replace"),
        app_id=kept.app_id,
    )


def _expiration(message: Message, kept: MessageProperties, now: float) -> str | None:
    """As it was given; of a message of MQTT what is left."""
    if kept.ttl_ms is not None:
        return str(kept.ttl_ms)
    return str(max(0, round((message.expires_at - now) * 1_000))) if message.expires_at else None


def _text_of(value: Typed | None) -> str | None:
    if value is None:
        return None
    return _from_bytes(value.value) if isinstance(value.value, bytes) else str(value.value)


def _from_bytes(data: bytes) -> str:
    """As text where it is that, and fits; else in base 64."""
    try:
        text = data.decode()
    except UnicodeDecodeError:
        text = base64.b64encode(data).decode()
    return text.encode()[:255].decode(errors="ignore")

"""Messages of AMQP 0.9.1 as the broker's, and the opposite. docs/interop-protocols.md has the table."""

from __future__ import annotations

import base64
from typing import Final

import msgspec

from assay.reference_broker.amqp091.topology.routes import BCC, CC
from assay.reference_broker.amqp091.wire.content import NONE, BasicProperties
from assay.reference_broker.amqp091.wire.fields import MAX_FIELDS, Table
from assay.reference_broker.amqp091.wire.replies import AmqpError, Reply
from assay.reference_broker.queues.messages.stored_message import is_plain
from assay.reference_broker.routing.carried import is_mqtt_text, is_mqtt_topic
from assay.reference_broker.routing.message import Message, changed
from assay.reference_broker.routing.properties import Kind, MessageProperties, Typed

_MAX_DIGITS: Final = 10
TRANSIENT, PERSISTENT = 1, 2
PAYLOAD_FORMAT: Final = "payload-format"
"""A header with what MQTT says of the payload: 0 = bytes, 1 = text in UTF-8."""


def expiration_ms(properties: BasicProperties) -> int | None:
    """Raises :class:`AmqpError` (406) for what is no number of milliseconds."""
    text = properties.expiration
    if text is None:
        return None
    if not (text.isascii() and text.isdecimal() and len(text) <= _MAX_DIGITS and int(text) < 1 << 32):
        problem = f"invalid expiration '{text[:40]}': a number of milliseconds below 4294967296 is expected"
        raise AmqpError(Reply.PRECONDITION_FAILED, problem, rule="rmq.publish.expiration")
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
    content_type, reply_to = properties.content_type, properties.reply_to
    is_type, is_topic = is_mqtt_text(content_type), is_mqtt_topic(reply_to)
    kept = MessageProperties(
        content_type=None if is_type else content_type,
        reply_to=None if is_topic else reply_to,
        message_id=_text(properties.message_id),
        correlation_id=_text(properties.correlation_id),
        content_encoding=properties.content_encoding,
        kind=properties.kind,
        app_id=properties.app_id,
        cluster_id=properties.cluster_id,
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
        content_type=content_type if is_type else None,
        response_topic=reply_to if is_topic else None,
        expires_at=0.0 if ttl_ms is None else _expiry(ttl_ms, now),
        properties=kept if is_named or kept != _NOTHING else None,
    )


def _expiry(ttl_ms: int, now: float) -> float:
    return now + ttl_ms / 1_000


def begun(message: Message, now: float) -> Message:
    """A message whose time to live, if it has one, begins now."""
    kept = message.properties
    if kept is None or kept.ttl_ms is None:
        return message
    return changed(message, expires_at=_expiry(kept.ttl_ms, now))


_NOTHING: Final = MessageProperties()
STREAM_OFFSET: Final = "x-stream-offset"
_MAX_BYTES: Final = 255
"""Of a short string, names of fields among them."""


def _text(value: str | None) -> Typed | None:
    return None if value is None else Typed(Kind.TEXT, value)


def properties_of(message: Message, now: float, name: str | None = None) -> BasicProperties:
    """What a consumer is given. ``name``: what the queue calls a message whose publisher could not name it."""
    kept = message.properties
    if kept is None:
        if name is None and is_plain(message):
            return NONE
        kept = _NOTHING
    created_ms = kept.created_at_ms
    correlation = _text_of(kept.correlation_id)
    if correlation is None and message.correlation_data is not None:
        correlation = _from_bytes(message.correlation_data)
    headers: Table = kept.headers
    if message.payload_format is not None:
        headers += ((PAYLOAD_FORMAT, Typed(Kind.TEXT, str(message.payload_format))),)
    if message.user_properties:
        # Those of MQTT: a name that is there twice is given once.
        named = {name for name, _ in headers}
        own: dict[str, str] = {}
        for each, value in message.user_properties:
            if each not in named and _fits(each):
                own.setdefault(each, value)
        fitting = [(each, Typed(Kind.TEXT, value)) for each, value in own.items()]
        # What a table may not have more of is left out.
        headers += tuple(fitting[: max(0, MAX_FIELDS - len(headers))])
    return BasicProperties(
        content_type=kept.content_type if message.content_type is None else _fitting(message.content_type),
        content_encoding=kept.content_encoding,
        headers=headers or None,
        delivery_mode=None if kept.durable is None else PERSISTENT if kept.durable else TRANSIENT,
        priority=kept.priority,
        correlation_id=correlation,
        reply_to=kept.reply_to if message.response_topic is None else _fitting(message.response_topic),
        expiration=_expiration(message, kept, now),
        message_id=_text_of(kept.message_id) or name,
        timestamp=None if created_ms is None else max(0, created_ms // 1_000),
        kind=kept.kind,
        user_id=None if kept.user_id is None else kept.user_id.decode(errors="replace"),
        app_id=kept.app_id,
        cluster_id=kept.cluster_id,
    )


def with_offset(properties: BasicProperties, offset: int) -> BasicProperties:
    """What the reader of a stream is given: with the place of the message in it."""
    kept = tuple([field for field in properties.headers or () if field[0] != STREAM_OFFSET])
    headers = (*kept[: MAX_FIELDS - 1], (STREAM_OFFSET, Typed(Kind.I64, offset)))
    return msgspec.structs.replace(properties, headers=headers)


def _fits(text: str) -> bool:
    return len(text.encode()) <= _MAX_BYTES


def _fitting(text: str) -> str | None:
    """A text of MQTT, unless it is longer than one of AMQP may be: a part of it would be another."""
    return text if _fits(text) else None


def _expiration(message: Message, kept: MessageProperties, now: float) -> str | None:
    """As it was given; of a message of MQTT what is left."""
    if kept.ttl_ms is not None:
        return str(kept.ttl_ms)
    return str(max(0, round((message.expires_at - now) * 1_000))) if message.expires_at else None


def _text_of(value: Typed | None) -> str | None:
    if value is None:
        return None
    return _from_bytes(value.value) if isinstance(value.value, bytes) else _fitting(str(value.value))


def _from_bytes(data: bytes) -> str | None:
    """As text where it is that, else in base 64; None = it does not fit."""
    try:
        text = data.decode()
    except UnicodeDecodeError:
        text = base64.b64encode(data).decode()
    return _fitting(text)

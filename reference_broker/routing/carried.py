"""What MQTT can carry of the properties that messages have from other protocols: docs/interop-protocols.md."""

from __future__ import annotations

from typing import Final

from assay.reference_broker.routing.message import Message, changed
from assay.reference_broker.routing.properties import Kind, MessageProperties, Typed

_MAX_BYTES: Final = 65_535
"""Of a text or binary value of MQTT."""
_NOT_IN_TEXTS: Final = frozenset("\0")
_NOT_IN_TOPICS: Final = frozenset("\0+#")
_NUMBERS: Final = frozenset(
    {
        Kind.I8,
        Kind.U8,
        Kind.I16,
        Kind.U16,
        Kind.I32,
        Kind.U32,
        Kind.I64,
        Kind.U64,
        Kind.F32,
        Kind.F64,
        Kind.SECONDS,
        Kind.MILLISECONDS,
    }
)
_TEXTS: Final = frozenset({Kind.TEXT, Kind.SYMBOL, Kind.CHAR})


def is_mqtt_text(text: str | None) -> bool:
    """Whether a client of MQTT may be sent it (MQTT-1.5.4-2); None may be."""
    return text is None or (_NOT_IN_TEXTS.isdisjoint(text) and _fits(text))


def is_mqtt_topic(text: str | None) -> bool:
    """Whether it can be a response topic (MQTT-3.3.2-14); None may be."""
    return text is None or (bool(text) and _NOT_IN_TOPICS.isdisjoint(text) and _fits(text))


def _fits(text: str) -> bool:
    return len(text) <= _MAX_BYTES // 4 or len(text.encode()) <= _MAX_BYTES


def as_text(value: Typed) -> str | None:
    """A plain value as a text: numbers in decimal, ``true`` and ``false``. None = it has no plain one."""
    kind, content = value.kind, value.value
    if kind in _TEXTS:
        return str(content)
    if kind is Kind.BOOL:
        return "true" if content else "false"
    if kind in _NUMBERS:
        return str(content)
    if kind is Kind.DECIMAL:
        scale, unscaled = content[0].value, content[1].value
        digits = str(abs(unscaled)).rjust(scale + 1, "0")
        sign = "-" if unscaled < 0 else ""
        return f"{sign}{digits[: len(digits) - scale]}.{digits[len(digits) - scale :]}" if scale else f"{unscaled}"
    return None


def user_properties_of(properties: MessageProperties) -> tuple[tuple[str, str], ...]:
    """The headers that can be user properties: those with a plain value, and texts that MQTT may carry."""
    found = [(name, as_text(value)) for name, value in properties.headers]
    return tuple(
        [(name, text) for name, text in found if text is not None and is_mqtt_text(name) and is_mqtt_text(text)]
    )


def correlation_data_of(properties: MessageProperties) -> bytes | None:
    """The correlation id in bytes."""
    value = properties.correlation_id
    if value is None:
        return None
    text = as_text(value)
    data = value.value if isinstance(value.value, bytes) else None if text is None else text.encode()
    return data if data is not None and len(data) <= _MAX_BYTES else None


def as_mqtt_carries(message: Message) -> Message:
    """A message that came over another protocol, with what MQTT has fields for."""
    properties = message.properties
    if properties is None:
        return message
    return changed(
        message,
        user_properties=message.user_properties + user_properties_of(properties),
        correlation_data=message.correlation_data
        if message.correlation_data is not None
        else correlation_data_of(properties),
    )

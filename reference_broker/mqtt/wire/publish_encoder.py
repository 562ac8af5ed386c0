"""PUBLISH packets as messages, and messages as PUBLISH packets: the second half of the hot path."""

from __future__ import annotations

from assay.reference_broker.mqtt.wire.errors import ProtocolError
from assay.reference_broker.mqtt.wire.packets import NO_PROPERTIES, V5, Properties
from assay.reference_broker.mqtt.wire.properties import encode_properties, encode_user_properties
from assay.reference_broker.mqtt.wire.wire_types import encode_string, encode_variable_integer
from assay.reference_broker.routing.message import Message
from assay.reference_broker.routing.remembered import remember

_MAX_CACHED_TOPICS = 16_384
_TOPICS: dict[str, bytes] = {}
"""Topics as they are encoded, for all connections."""
_HEADERS = [bytes((header,)) for header in range(256)]
_SHORT_LENGTHS = [encode_variable_integer(length) for length in range(16_384)]


class PublishEncoder:
    """Encodes PUBLISH packets of one protocol version."""

    def __init__(self, version: int) -> None:
        self._five = version == V5

    def encode(self, packet_id: int, message: Message, header: int, identifiers: tuple[int, ...], now: float) -> bytes:
        """One packet. ``header`` is the fixed header's first byte; ``now`` counts the expiry interval down."""
        topic = _TOPICS.get(message.topic)
        if topic is None:
            name = message.topic
            topic = remember(_TOPICS, name, encode_string(name), len(name), _MAX_CACHED_TOPICS)
        middle = packet_id.to_bytes(2, "big") if header & 0x06 else b""
        if self._five:
            middle += message_properties(message, identifiers, now)
        payload = message.payload
        length = len(topic) + len(middle) + len(payload)
        encoded_length = _SHORT_LENGTHS[length] if length < 16_384 else encode_variable_integer(length)
        return b"".join((_HEADERS[header], encoded_length, topic, middle, payload))


def message_properties(message: Message, identifiers: tuple[int, ...], now: float) -> bytes:
    """The section of properties of a delivery, with its length; the expiry is what is left of it (MQTT-3.3.2-6)."""
    rare = (
        identifiers
        or message.expires_at
        or message.payload_format is not None
        or message.content_type is not None
        or message.response_topic is not None
        or message.correlation_data is not None
    )
    if not rare:
        if not message.user_properties:
            return b"\0"
        body = encode_user_properties(message.user_properties)
        return encode_variable_integer(len(body)) + body
    interval = None
    if message.expires_at:
        interval = min(max(0, round(message.expires_at - now)), 0xFFFFFFFF)
    return encode_properties(
        Properties(
            payload_format_indicator=message.payload_format,
            message_expiry_interval=interval,
            content_type=message.content_type,
            response_topic=message.response_topic,
            correlation_data=message.correlation_data,
            subscription_identifier=identifiers,
            user_property=message.user_properties,
        )
    )


def check_response_topic(properties: Properties) -> None:
    """Of a PUBLISH and of a will alike. Raises :class:`ProtocolError`. Its levels are for the responder to count."""
    topic = properties.response_topic
    if topic is None:
        return
    if not topic:
        raise ProtocolError("a response topic must have at least one character", "MQTT-4.7.3-1")
    if "+" in topic or "#" in topic:
        raise ProtocolError("a response topic must not contain wildcards", "MQTT-3.3.2-14")


def message_from(
    topic: str, payload: bytes, qos: int, retain: bool, properties: Properties, publisher: str, now: float
) -> Message:
    """A message from the fields of a PUBLISH."""
    if properties is NO_PROPERTIES:
        return Message(topic=topic, payload=payload, qos=qos, retain=retain, publisher=publisher)
    interval = properties.message_expiry_interval
    return Message(
        topic=topic,
        payload=payload,
        qos=qos,
        retain=retain,
        publisher=publisher,
        expires_at=0.0 if interval is None else now + interval,
        payload_format=properties.payload_format_indicator,
        content_type=properties.content_type,
        response_topic=properties.response_topic,
        correlation_data=properties.correlation_data,
        user_properties=properties.user_property,
    )

"""The one message type that every protocol, queue and log shares."""

from __future__ import annotations

import msgspec

from assay.reference_broker.routing.properties import MessageProperties, decode_table, merged, properties_bytes

MESSAGE_OVERHEAD_BYTES = 512
"""What the objects around a small message take."""
HOLDER_BYTES = 256
"""What one more session takes that holds a message: its own object, and the places where it is kept."""
PROPERTY_BYTES = 176
"""A user property beside the characters of its name and value: a pair and two strings."""


class Message(msgspec.Struct, kw_only=True, eq=False, gc=False):
    """An application message. Treat as immutable once routed; the payload is never copied between protocols."""

    topic: str
    payload: bytes
    qos: int = 0
    retain: bool = False
    expires_at: float = 0.0
    """Unix seconds after which nobody may start to receive it; 0 = never."""
    publisher: str = ""
    """Client id of the publisher."""
    payload_format: int | None = None
    content_type: str | None = None
    response_topic: str | None = None
    correlation_data: bytes | None = None
    user_properties: tuple[tuple[str, str], ...] = ()
    properties: MessageProperties | None = None
    """What MQTT has no field for."""
    written: bytes = b""
    """Its properties as the protocol of its publisher wrote them, where that may pass them on as they are."""
    memory_bytes: int = 0
    """See :func:`memory_bytes`; 0 = nobody has asked yet."""
    holders: int = 0
    """For how many sessions it is queued now, or their will."""

    def user_property(self, name: str) -> str | None:
        """First value of a user property; None when absent."""
        for key, value in self.user_properties:
            if key == name:
                return value
        return None


def changed(message: Message, **fields: object) -> Message:
    """A copy with other values of some fields; nobody holds it yet."""
    return msgspec.structs.replace(message, **fields, written=b"", memory_bytes=0, holders=0)


def annotated(message: Message, annotations: bytes) -> Message:
    """A copy on which consumers have noted this, too: an encoded table. Raises :class:`ValueError` when it is none."""
    own = message.properties or MessageProperties()
    notes = merged(own.annotations, decode_table(annotations))
    return changed(message, properties=msgspec.structs.replace(own, annotations=notes))


def text_bytes(text: str) -> int:
    """What the characters of a text take in memory, at most."""
    return len(text) if text.isascii() else 4 * len(text)


def memory_bytes(message: Message) -> int:
    """What a message takes in memory, at most, for every limit of bytes held: payload, topic, properties and the
    objects around them. Found out once a message."""
    size = message.memory_bytes
    if not size:
        topic = message.topic
        # As text_bytes() does, without the call: most messages have no other text.
        size = MESSAGE_OVERHEAD_BYTES + len(message.payload) + (len(topic) if topic.isascii() else 4 * len(topic))
        if message.user_properties:
            size += sum(
                [PROPERTY_BYTES + text_bytes(name) + text_bytes(value) for name, value in message.user_properties]
            )
        if message.response_topic is not None:
            size += text_bytes(message.response_topic)
        if message.content_type is not None:
            size += text_bytes(message.content_type)
        if message.correlation_data is not None:
            size += len(message.correlation_data)
        if message.properties is not None:
            size += properties_bytes(message.properties)
        if message.written:
            size += len(message.written)
        message.memory_bytes = size
    return size

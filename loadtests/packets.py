"""The few MQTT packets of the hot path, read and written as plain bytes; everything else goes through
assay.conformance.wire.

A load generator that builds an object per packet measures itself. These functions only slice and join. They trust the
broker to send legal packets (judging that is the conformance suite's work), but never read beyond a frame.
"""

from __future__ import annotations

from assay.conformance.wire.encode import varint

PUBACK = 0x40
PUBREC = 0x50
PUBREL = 0x62
PUBCOMP = 0x70

MAX_FRAME_BYTES = 4 * 1024 * 1024

Frame = tuple[int, int, int]
"""First byte of a packet, start and end of its body in the buffer."""


def split_frames(buffer: bytes) -> tuple[list[Frame], int]:
    """The whole packets of a buffer, and how many bytes they take.

    Raises :class:`ValueError` for a remaining length of five bytes or above ``MAX_FRAME_BYTES``.
    """
    frames: list[Frame] = []
    position, size = 0, len(buffer)
    while position + 2 <= size:
        length = buffer[position + 1]
        start = position + 2
        if length & 0x80:
            length &= 0x7F
            shift = 7
            while True:
                if start == size:
                    return frames, position
                digit = buffer[start]
                start += 1
                length |= (digit & 0x7F) << shift
                if not digit & 0x80:
                    break
                shift += 7
                if shift > 21:
                    message = f"remaining length of more than four bytes: {buffer[position : position + 6].hex()}"
                    raise ValueError(message)
        end = start + length
        if end > size:
            if length > MAX_FRAME_BYTES:
                message = f"a packet of {length} bytes; at most {MAX_FRAME_BYTES} were expected"
                raise ValueError(message)
            break
        frames.append((buffer[position], start, end))
        position = end
    return frames, position


def read_publish(buffer: bytes, frame: Frame, version: int) -> tuple[bytes, bytes, bytes, bytes]:
    """Topic, packet id (empty at QoS 0), property bytes (empty for 3.1.1) and payload of a PUBLISH."""
    first, start, end = frame
    position = start + 2 + (buffer[start] << 8 | buffer[start + 1])
    topic = buffer[start + 2 : position]
    packet_id = b""
    if first & 6:
        packet_id = buffer[position : position + 2]
        position += 2
    properties = b""
    if version == 5:
        length = buffer[position]
        position += 1
        if length & 0x80:
            length, shift = length & 0x7F, 7
            while True:
                digit = buffer[position]
                position += 1
                length |= (digit & 0x7F) << shift
                if not digit & 0x80:
                    break
                shift += 7
        properties = buffer[position : position + length]
        position += length
    return topic, packet_id, properties, buffer[position:end]


def user_property(name: bytes, value: bytes) -> bytes:
    """A user property (5.0, 3.3.2.3.7) without the length that precedes a property section."""
    return b"\x26" + len(name).to_bytes(2, "big") + name + len(value).to_bytes(2, "big") + value


def find_user_property(properties: bytes, name: bytes) -> bytes:
    """Value of a user property in property bytes; empty when absent.

    A search for its bytes, since the hot path cannot walk the properties: a foreign property whose name ends with ``&``
    and whose value is ``name`` would be taken for it.
    """
    marker = b"\x26" + len(name).to_bytes(2, "big") + name
    at = properties.find(marker)
    if at < 0:
        return b""
    start = at + len(marker)
    return properties[start + 2 : start + 2 + (properties[start] << 8 | properties[start + 1])]


def property_section(properties: bytes, version: int) -> bytes:
    """Property bytes with their length for 5.0; nothing for 3.1.1."""
    return varint(len(properties)) + properties if version == 5 else b""


def publish_frame(qos: int, topic: bytes, packet_id: int, section: bytes, payload: bytes) -> bytes:
    """A PUBLISH; ``section`` comes from :func:`property_section`, ``packet_id`` is unused at QoS 0."""
    topic_length = len(topic)
    length = 2 + topic_length + len(section) + len(payload) + (2 if qos else 0)
    encoded_length = bytes((length,)) if length < 128 else varint(length)
    head = bytes((0x30 | qos << 1,)) + encoded_length + topic_length.to_bytes(2, "big") + topic
    if qos:
        return head + packet_id.to_bytes(2, "big") + section + payload
    return head + section + payload


def acknowledgement(kind: int, packet_id: bytes) -> bytes:
    """PUBACK, PUBREC, PUBREL or PUBCOMP in its four-byte form, which in 5.0 means success."""
    return bytes((kind, 2)) + packet_id

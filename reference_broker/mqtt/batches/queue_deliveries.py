"""Deliveries of a queue as MQTT 5.0 PUBLISH packets, from templates.

The first deliveries of one partition to one group differ in message id, offset, packet id, payload and the publisher's
user properties alone. So the packet of the first one serves as the template of all others; whatever else a delivery
carries goes the general way.
"""

from __future__ import annotations

from itertools import repeat
from typing import NamedTuple

import msgspec

from assay.reference_broker.mqtt.queue_topics.delivery_properties import BROKER_PROPERTIES, delivery_properties
from assay.reference_broker.mqtt.wire.properties import encode_user_properties
from assay.reference_broker.mqtt.wire.wire_types import encode_string, encode_variable_integer
from assay.reference_broker.queues import Delivery
from assay.reference_broker.queues.groups.delivery_run import DeliveryRun
from assay.reference_broker.queues.messages.stored_message import is_plain_but_for_user_properties
from assay.reference_broker.routing.message import Message
from assay.reference_broker.routing.remembered import remember

_HEADER_QOS_1 = b"\x32"
FEW = 16
"""Deliveries that columns are not worth it for."""
FEW_OF = 4
"""Where no more than every so many messages have user properties of their own, they are put in one by one."""
MAX_TEMPLATES = 4_096
_MAX_THEIRS_BYTES = 256
"""Characters of a publisher's user properties that are remembered, and not encoded for every delivery."""
_MAX_THEIRS = 32
"""Likewise, of the properties themselves: each has five bytes beside its characters."""
_MAX_PROPERTY_BYTES = 12_000
"""Of a template; the publisher's come on top."""
_BARE = Message(topic="", payload=b"")
_LENGTHS = [encode_variable_integer(length) for length in range(16_384)]
_TWO_BYTES = [number.to_bytes(2, "big") for number in range(1_024)]


class _Template(NamedTuple):
    """The constant parts of a packet, in order, and how long they are with all length fields but the packet's own."""

    topic: bytes
    before_id: bytes
    id_prefix: bytes
    """The message id without its offset."""
    between: bytes
    """From behind the message id to the offset's value."""
    after: bytes
    property_bytes: int
    """Of the property section's content without the digits of message id and offset."""


_TEMPLATES: dict[tuple[str, str, int, str], _Template | None] = {}
_USER_PROPERTIES: dict[tuple[tuple[str, str], ...], bytes] = {}


class DeliveryEncoder:
    """Encodes deliveries; the templates of partitions are remembered for all clients."""

    def encode(self, packet_id: int, delivery: Delivery) -> bytes | None:
        """A QoS 1 PUBLISH; None for a delivery that is more than plain."""
        theirs = self._theirs(delivery.message) if delivery.is_plain else None
        if theirs is None:
            return None
        key = (delivery.queue, delivery.group, delivery.partition, delivery.topic)
        try:
            template = _TEMPLATES[key]
        except KeyError:
            template = self._remember(key, delivery)
        if template is None:
            return None
        topic, before_id, id_prefix, between, after, property_bytes = template
        offset = b"%d" % delivery.offset
        digits = len(offset)
        section = _LENGTHS[property_bytes + 2 * digits + len(theirs)]
        payload = delivery.message.payload
        length = len(topic) + 2 + len(section) + property_bytes + 2 * digits + len(theirs) + len(payload)
        return b"".join(
            (
                _HEADER_QOS_1,
                _LENGTHS[length] if length < 16_384 else encode_variable_integer(length),
                topic,
                packet_id.to_bytes(2, "big"),
                section,
                before_id,
                _TWO_BYTES[len(id_prefix) + digits],
                id_prefix,
                offset,
                between,
                _TWO_BYTES[digits],
                offset,
                after,
                theirs,
                payload,
            )
        )

    def encode_run(self, first_id: int, run: DeliveryRun, max_packet_bytes: int) -> bytes | None:
        """QoS 1 PUBLISH packets under consecutive packet ids; None when they are not alike, or one is too large."""
        stored = run.stored
        own_topic = stored[0].topic
        topic_name = stored[0].topic_in(run.queue)
        having: list[int] = []
        for at, each in enumerate(stored):
            if each.topic != own_topic and each.topic_in(run.queue) != topic_name:
                return None
            if each.message.user_properties:
                having.append(at)
        messages = [each.message for each in stored]
        if not all(map(is_plain_but_for_user_properties, messages)):
            return None
        count = len(stored)
        theirs: list[bytes] = []
        """Empty where nobody has any, or few have."""
        few: dict[int, bytes] = {}
        """Of those who have any where few do, as where some are traced: by position."""
        if having:
            are_few = count > FEW and len(having) * FEW_OF <= count
            known, learn = _USER_PROPERTIES, _encoded if are_few else self._learn
            for at in having:
                pairs = messages[at].user_properties
                found = known.get(pairs) or learn(pairs)
                if found is None:
                    return None
                few[at] = found
            if not are_few:
                theirs, few = [few.get(at, b"") for at in range(count)], {}
        key = (run.queue, run.group, run.partition, topic_name)
        try:
            template = _TEMPLATES[key]
        except KeyError:
            template = self._remember(key, run.delivery(0))
        if template is None:
            return None
        offsets = [b"%d" % offset for offset in range(run.offset, run.offset + count)]
        digits = len(offsets[0])
        if len(offsets[-1]) > digits:
            shorter = 10**digits - run.offset
            rest = run._replace(offset=run.offset + shorter, stored=stored[shorter:])
            first = self.encode_run(first_id, run.first(shorter), max_packet_bytes)
            second = self.encode_run(first_id + shorter, rest, max_packet_bytes)
            return None if first is None or second is None else first + second
        topic, before_id, id_prefix, between, after, property_bytes = template
        property_bytes += 2 * digits
        bodies = [message.payload for message in messages]
        fixed = len(topic) + 2 + property_bytes
        if count <= FEW:
            number = _TWO_BYTES[digits]
            before, between = before_id + _TWO_BYTES[len(id_prefix) + digits] + id_prefix, between + number
            packets: list[bytes] = []
            for packet_id, offset, own, body in zip(
                range(first_id, first_id + count), offsets, theirs or repeat(b""), bodies, strict=False
            ):
                section = _LENGTHS[property_bytes + len(own)]
                length = fixed + len(section) + len(own) + len(body)
                if length >= len(_LENGTHS) or length + 1 + len(_LENGTHS[length]) > max_packet_bytes:
                    return None
                packets += (
                    _HEADER_QOS_1,
                    _LENGTHS[length],
                    topic,
                    packet_id.to_bytes(2, "big"),
                    section,
                    before,
                    offset,
                    between,
                    offset,
                    after,
                    own,
                    body,
                )
            return b"".join(packets)
        sections: list[bytes] = []
        """Lengths of the property sections, where they differ."""
        section = _LENGTHS[property_bytes + len(theirs[0] if theirs else b"")]
        if theirs:
            bodies = list(map(bytes.__add__, theirs, bodies))
            if len(set(map(len, theirs))) > 1:
                sections = [_LENGTHS[property_bytes + len(each)] for each in theirs]
        if sections:
            lengths = [fixed + len(each) + len(body) for each, body in zip(sections, bodies, strict=True)]
        else:
            lengths = [fixed + len(section) + size for size in map(len, bodies)]
        largest = max(lengths)
        if largest >= len(_LENGTHS) or largest + 1 + len(_LENGTHS[largest]) > max_packet_bytes:
            return None
        # The pieces of a packet, over and over; what differs from packet to packet is put in its place by column.
        head = _HEADER_QOS_1 + _LENGTHS[largest] + topic
        number = _TWO_BYTES[digits]
        before = before_id + _TWO_BYTES[len(id_prefix) + digits] + id_prefix
        pieces = [head, b"", section + before, b"", between + number, b"", after, b""] * count
        if min(lengths) < largest:
            pieces[0::8] = [_HEADER_QOS_1 + _LENGTHS[length] + topic for length in lengths]
        if sections:
            pieces[2::8] = [each + before for each in sections]
        pieces[1::8] = [packet_id.to_bytes(2, "big") for packet_id in range(first_id, first_id + count)]
        pieces[3::8] = offsets
        pieces[5::8] = offsets
        pieces[7::8] = bodies
        for at, own in few.items():
            section = _LENGTHS[property_bytes + len(own)]
            length = fixed + len(section) + len(own) + len(bodies[at])
            if length >= len(_LENGTHS) or length + 1 + len(_LENGTHS[length]) > max_packet_bytes:
                return None
            pieces[8 * at] = _HEADER_QOS_1 + _LENGTHS[length] + topic
            pieces[8 * at + 2] = section + before
            pieces[8 * at + 7] = own + bodies[at]
        return b"".join(pieces)

    def _theirs(self, message: Message) -> bytes | None:
        """The publisher's user properties; None where the message has more than those, or very many."""
        if not is_plain_but_for_user_properties(message):
            return None
        pairs = message.user_properties
        return (_USER_PROPERTIES.get(pairs) or self._learn(pairs)) if pairs else b""

    def _learn(self, pairs: tuple[tuple[str, str], ...]) -> bytes | None:
        """User properties as a delivery has them; None for very many."""
        learnt = _encoded(pairs)
        return remember(_USER_PROPERTIES, pairs, learnt, 0, MAX_TEMPLATES) if learnt else learnt

    def _remember(self, key: tuple[str, str, int, str], delivery: Delivery) -> _Template | None:
        template = _template(msgspec.structs.replace(delivery, message=_BARE))
        queue, group, _, topic = key
        return remember(_TEMPLATES, key, template, max(len(queue), len(group), len(topic)), MAX_TEMPLATES)


def _encoded(pairs: tuple[tuple[str, str], ...]) -> bytes | None:
    """As :meth:`DeliveryEncoder._learn`, of some that no other delivery may have."""
    if len(pairs) > _MAX_THEIRS or sum([len(name) + len(value) for name, value in pairs]) > _MAX_THEIRS_BYTES:
        return None
    return encode_user_properties([pair for pair in pairs if pair[0] not in BROKER_PROPERTIES])


def _template(delivery: Delivery) -> _Template | None:
    """From the properties of a delivery, whose message id ends with the offset; None where they are very long."""
    pairs = delivery_properties(delivery)
    names = [name for name, _ in pairs]
    id_at, offset_at = names.index("message-id"), names.index("offset")
    id_prefix = pairs[id_at][1].removesuffix(str(delivery.offset)).encode()
    before_id = encode_user_properties(pairs[:id_at]) + b"\x26" + encode_string("message-id")
    between = encode_user_properties(pairs[id_at + 1 : offset_at]) + b"\x26" + encode_string("offset")
    after = encode_user_properties(pairs[offset_at + 1 :])
    property_bytes = len(before_id) + 2 + len(id_prefix) + len(between) + 2 + len(after)
    if len(id_prefix) > 1_000 or property_bytes > _MAX_PROPERTY_BYTES:
        return None
    return _Template(encode_string(delivery.topic), before_id, id_prefix, between, after, property_bytes)

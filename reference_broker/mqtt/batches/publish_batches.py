"""Batches of publishes to one queue: read without making packets of them.

Whatever they are like, packets of one queue that stand one behind the other become columns: topics, packet ids, user
properties, payloads. A publisher with keys sends property sections that repeat: each is read once and then known by its
bytes. Whatever has other properties, or names an option of the queues, ends a batch and goes the general way.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from struct import Struct
from typing import NamedTuple

from assay.reference_broker.mqtt.batches.runs import ids_of, numbers
from assay.reference_broker.mqtt.queue_topics.publish_properties import OPTION_NAMES
from assay.reference_broker.mqtt.wire.errors import MalformedPacketError
from assay.reference_broker.mqtt.wire.packets import V5
from assay.reference_broker.mqtt.wire.wire_types import decode_string
from assay.reference_broker.routing.remembered import remember

_HEADER_QOS_1 = 0x32
_USER_PROPERTY = 0x26
FEWEST_ALIKE = 8
"""Packets of one size and topic that are read by columns."""
FIRST_STEP = 32
STEP = 128
"""Packets that are looked at together."""
MOST = 2_048
"""Packets of a batch: a turn ends between batches."""
MAX_SECTIONS = 16_384
"""Of all connections together."""
_MAX_SECTION_BYTES = 256
"""Longer ones are not worth remembering."""

UserProperties = tuple[tuple[str, str], ...]
_SECTIONS: dict[bytes, UserProperties] = {}
"""By their bytes, length included: what they say does not depend on who sends them."""


class PublishBatch(NamedTuple):
    """Publishes that stand one behind the other. What they have beside packet ids and payloads is user properties."""

    topic_fields: list[bytes]
    """Of each, with its length in front."""
    ids: bytes
    """Packet ids, two bytes each."""
    properties: list[UserProperties] | None
    """None = nobody has any."""
    payloads: list[bytes]
    end: int
    """Where the last one ends."""


class _Form(NamedTuple):
    """How sections of one length are alike: only the values of their user properties differ."""

    cutter: Struct
    """What is in front of a value and the value itself, for each."""
    constants: tuple[bytes, ...]
    names: list[str]


class PublishBatchReader:
    """Reads the batches of one client."""

    def __init__(self) -> None:
        self._forms: dict[int, _Form] = {}
        """The last form seen, by the bytes of a section."""

    def read(
        self,
        data: bytes,
        start: int,
        body: int,
        end: int,
        topic_field: bytes,
        joins: Callable[[bytes], bool],
        max_payload_bytes: int,
        *,
        five: bool,
    ) -> PublishBatch:
        """The whole QoS 1 packets from ``start`` on that have this topic (its length in front), or others that
        ``joins``; none is fine, too.

        It may end before a packet of another size, or after many. ``body`` and ``end``: of the first, as whoever framed
        it knows them. ``five``: they are of MQTT 5.0.
        """
        stride = end - start
        head = data[start : body + len(topic_field)]
        if data.startswith(head, start + (FEWEST_ALIKE - 1) * stride):
            batch = self._read_alike(data, start, stride, head, topic_field, max_payload_bytes, five)
            if batch is not None:
                return batch
        return self._read_each(data, start, topic_field, joins, max_payload_bytes, five)

    def _read_alike(
        self, data: bytes, start: int, stride: int, head: bytes, topic_field: bytes, max_payload_bytes: int, five: bool
    ) -> PublishBatch | None:
        """Packets that begin as the first does; None where they are not quite alike, or few."""
        section_at = payload_at = len(head) + 2
        length_bytes = b""
        if five:
            section = start + section_at
            length_bytes = data[section : section + 1 + (data[section] >= 0x80)]
            payload_at += len(length_bytes) + (length_bytes[0] & 0x7F)
            if len(length_bytes) == 2:
                if not 0 < length_bytes[1] < 0x80:
                    return None
                payload_at += length_bytes[1] << 7
        if payload_at > stride or stride - payload_at > max_payload_bytes:
            return None
        cutter = Struct(f"{payload_at}x{stride - payload_at}s")
        all_ids = b""
        properties: list[UserProperties] = []
        payloads: list[bytes] = []
        at, most = start, FIRST_STEP
        # Some at a time: what comes behind one that is not alike is not looked at in vain.
        while len(payloads) < MOST:
            last = min(len(data) - stride, at + (most - 1) * stride)
            end = at
            while end <= last and data.startswith(head, end):
                end += stride
            run = data[at:end]
            for index, byte in enumerate(length_bytes):
                column = run[section_at + index :: stride]
                if column.count(byte) < len(column):
                    run = b""
            ids = ids_of(run, stride, section_at - 2)
            if b"\0" in ids[0::2] and 0 in numbers(ids):
                break
            count = len(run) // stride
            if payload_at > section_at + 1:
                known = self._known_sections(run, stride, section_at, payload_at)
                count = len(known)
                properties += known
            all_ids += ids[: 2 * count]
            payloads += [payload for (payload,) in cutter.iter_unpack(run[: count * stride])]
            at += count * stride
            if count < most:
                break
            most = STEP
        count = len(payloads)
        if count < FEWEST_ALIKE:
            return None
        return PublishBatch([topic_field] * count, all_ids, properties or None, payloads, at)

    def _known_sections(self, run: bytes, stride: int, section_at: int, payload_at: int) -> list[UserProperties]:
        """Of the packets up to the first with something else in it than user properties."""
        sections = _SECTIONS
        properties: list[UserProperties] = []
        for at in range(0, len(run), stride):
            named = run[at + section_at : at + payload_at]
            pairs = sections.get(named)
            if pairs is None:
                pairs = self._learn(named)
                if pairs is None:
                    break
            properties.append(pairs)
        return properties

    def _read_each(
        self,
        data: bytes,
        start: int,
        topic_field: bytes,
        joins: Callable[[bytes], bool],
        max_payload_bytes: int,
        five: bool,
    ) -> PublishBatch:
        size, topic_bytes = len(data), len(topic_field)
        sections = _SECTIONS
        topic_fields: list[bytes] = []
        ids: list[bytes] = []
        properties: list[UserProperties] = []
        payloads: list[bytes] = []
        pairs: UserProperties = ()
        at = start
        while at + 2 < size and data[at] == _HEADER_QOS_1 and len(ids) < MOST:
            length, body = data[at + 1], at + 2
            if length >= 0x80:
                high = data[body]
                body += 1
                if not 0 < high < 0x80:
                    break
                length = length & 0x7F | high << 7
            end = body + length
            if end > size or length < 4:
                break
            if data.startswith(topic_field, body):
                section = body + topic_bytes + 2
                if section + five > end:
                    break
            else:
                section = body + (data[body] << 8 | data[body + 1]) + 4
                if section + five > end or not joins(data[body : section - 2]):
                    break
                topic_field = data[body : section - 2]
                topic_bytes = len(topic_field)
            payload_at = section
            if five:
                section_bytes = data[section]
                payload_at = section + 1 + section_bytes
                if section_bytes >= 0x80:
                    high = data[section + 1]
                    if not 0 < high < 0x80:
                        break
                    payload_at = section + 2 + (section_bytes & 0x7F | high << 7)
                if payload_at > end:
                    break
                pairs = ()
                if section_bytes:
                    named = data[section:payload_at]
                    known = sections.get(named) or self._learn(named)
                    if known is None:
                        break
                    pairs = known
            packet_id = data[section - 2 : section]
            if end - payload_at > max_payload_bytes or packet_id == b"\0\0":
                break
            topic_fields.append(topic_field)
            ids.append(packet_id)
            properties.append(pairs)
            payloads.append(data[payload_at:end])
            at = end
        return PublishBatch(topic_fields, b"".join(ids), properties if any(properties) else None, payloads, at)

    def _learn(self, section: bytes) -> UserProperties | None:
        """User properties of a section; None where there is more to it, or something wrong with it."""
        end = len(section)
        if end > _MAX_SECTION_BYTES:
            return None
        form = self._forms.get(end)
        if form is not None:
            fields = form.cutter.unpack(section)
            if fields[0::2] == form.constants:
                # Ids of traces differ from message to message, and nothing else.
                try:
                    values = [value.decode() for value in fields[1::2]]
                except UnicodeDecodeError:
                    return None
                return (
                    None if "\0" in "".join(values) else self._remember(section, zip(form.names, values, strict=True))
                )
        pairs: list[tuple[str, str]] = []
        constants: list[bytes] = []
        layout = ""
        constant_at = 0
        at = 1 + (section[0] >= 0x80)
        try:
            while at < end:
                if section[at] != _USER_PROPERTY:
                    return None
                name_at = at + 3
                value_at = name_at + (section[at + 1] << 8 | section[at + 2]) + 2
                at = value_at + (section[value_at - 2] << 8 | section[value_at - 1])
                name = decode_string(section[name_at : value_at - 2], V5)
                if name in OPTION_NAMES:
                    return None
                pairs.append((name, decode_string(section[value_at:at], V5)))
                constants.append(section[constant_at:value_at])
                layout += f"{value_at - constant_at}s{at - value_at}s"
                constant_at = at
        except (IndexError, MalformedPacketError):
            return None
        if at != end:
            return None
        self._forms[end] = _Form(Struct(layout), tuple(constants), [name for name, _ in pairs])
        return self._remember(section, pairs)

    def _remember(self, section: bytes, pairs: Iterable[tuple[str, str]]) -> UserProperties:
        return remember(_SECTIONS, section, tuple(pairs), len(section), MAX_SECTIONS)

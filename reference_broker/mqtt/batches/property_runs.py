"""Runs of publishes with user properties: read without making packets of them.

A publisher with keys sends packets of one topic whose property sections repeat: each section is read once and then
known by its bytes. Whatever has other properties, or names an option of the queues, ends a run and goes the general
way.
"""

from __future__ import annotations

from collections.abc import Iterable
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
_FEWEST_ALIKE = 8
"""Packets of one size that are read by columns."""
_STEP = 128
"""Packets that are looked at together."""
_MOST_ALIKE = 2_048
_MAX_SECTIONS = 16_384
"""Of all connections together."""
_MAX_SECTION_BYTES = 256
"""Longer ones are not worth remembering."""

UserProperties = tuple[tuple[str, str], ...]
_SECTIONS: dict[bytes, UserProperties] = {}
"""By their bytes, length included: what they say does not depend on who sends them."""


class PropertyRun(NamedTuple):
    """Publishes that stand one behind the other. What they have beside packet ids and payloads is user properties."""

    ids: bytes
    """Packet ids, two bytes each."""
    properties: list[UserProperties]
    payloads: list[bytes]
    end: int
    """Where the last one ends."""


class _Form(NamedTuple):
    """How sections of one length are alike: only the values of their user properties differ."""

    cutter: Struct
    """What is in front of a value and the value itself, for each."""
    constants: tuple[bytes, ...]
    names: list[str]


class PropertyRunReader:
    """Reads the runs of one client."""

    def __init__(self) -> None:
        self._forms: dict[int, _Form] = {}
        """The last form seen, by the bytes of a section."""

    def read(self, data: bytes, start: int, topic_field: bytes, max_payload_bytes: int) -> PropertyRun:
        """The whole QoS 1 packets from ``start`` on that have this topic (its length in front); none is fine, too.

        It may end before a packet of another size, or after many.
        """
        body = start + 2 + (data[start + 1] >= 0x80)
        stride = body - start + (data[start + 1] & 0x7F | (data[body - 1] << 7 if body > start + 2 else 0))
        head = data[start : body + len(topic_field)]
        if data.startswith(head, start + (_FEWEST_ALIKE - 1) * stride):
            run = self._read_alike(data, start, stride, head, topic_field, max_payload_bytes)
            if run is not None:
                return run
        return self._read_each(data, start, topic_field, max_payload_bytes)

    def _read_alike(
        self, data: bytes, start: int, stride: int, head: bytes, topic_field: bytes, max_payload_bytes: int
    ) -> PropertyRun | None:
        """Packets that begin as the first does; None where they are not quite alike, or few."""
        first = self._read_each(data[start : start + stride], 0, topic_field, max_payload_bytes)
        if first.end != stride:
            return None
        section_at = len(head) + 2
        payload_at = stride - len(first.payloads[0])
        length_bytes = data[start + section_at : start + section_at + 1 + (data[start + section_at] >= 0x80)]
        all_ids = b""
        properties: list[UserProperties] = []
        payloads: list[bytes] = []
        at, most = start, _FEWEST_ALIKE
        # Some at a time: what comes behind one that is not alike is not looked at in vain.
        while len(payloads) < _MOST_ALIKE:
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
            known = self._known_sections(run, stride, section_at, payload_at)
            count = len(known)
            all_ids += ids[: 2 * count]
            properties += known
            payloads += [run[start + payload_at : start + stride] for start in range(0, count * stride, stride)]
            at += count * stride
            if count < most:
                break
            most = _STEP
        return PropertyRun(all_ids, properties, payloads, at) if len(payloads) >= _FEWEST_ALIKE else None

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

    def _read_each(self, data: bytes, start: int, topic_field: bytes, max_payload_bytes: int) -> PropertyRun:
        size = len(data)
        topic_bytes = len(topic_field)
        sections = _SECTIONS
        ids: list[bytes] = []
        properties: list[UserProperties] = []
        payloads: list[bytes] = []
        at = start
        while at + 2 < size and data[at] == _HEADER_QOS_1:
            length, body = data[at + 1], at + 2
            if length >= 0x80:
                high = data[body]
                body += 1
                if not 0 < high < 0x80:
                    break
                length = length & 0x7F | high << 7
            end = body + length
            section = body + topic_bytes + 2
            if end > size or section + 1 >= end or not data.startswith(topic_field, body):
                break
            section_bytes = data[section]
            payload_at = section + 1 + section_bytes
            if section_bytes >= 0x80:
                high = data[section + 1]
                if not 0 < high < 0x80:
                    break
                payload_at = section + 2 + (section_bytes & 0x7F | high << 7)
            packet_id = data[section - 2 : section]
            if not section_bytes or payload_at > end or end - payload_at > max_payload_bytes or packet_id == b"\0\0":
                break
            named = data[section:payload_at]
            pairs = sections.get(named)
            if pairs is None:
                pairs = self._learn(named)
                if pairs is None:
                    break
            ids.append(packet_id)
            properties.append(pairs)
            payloads.append(data[payload_at:end])
            at = end
        return PropertyRun(b"".join(ids), properties, payloads, at)

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
        return remember(_SECTIONS, section, tuple(pairs), len(section), _MAX_SECTIONS)

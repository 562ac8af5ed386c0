"""Runs of ``$ack`` publishes: read without making packets and messages of them.

A consumer that keeps up settles many deliveries at once. Its packets have one topic and two user properties, message-id
and group-id, in this order, and no payload; whatever looks different goes the general way.
"""

from __future__ import annotations

import re
from typing import NamedTuple

_HEADER_QOS_1 = 0x32
_MESSAGE_ID = b"\x26\x00\x0amessage-id"
_GROUP_ID = b"\x26\x00\x08group-id"
_MAX_DIGITS = 19
FEWEST_ALIKE = 8
"""Packets of one size that a pattern is worth."""
STEP = 64
"""Packets that are looked at together."""
MAX_PATTERNS = 64
_MAX_PATTERN_BYTES = 1_024
"""Longer ones go one by one."""
_PATTERNS: dict[tuple[bytes, bytes], re.Pattern[bytes]] = {}
"""For all connections, by all of a packet that is in front of its packet id, and all behind its message id."""
ACK_LEVEL = b"/$ack"


class AckRun(NamedTuple):
    """What ``$ack`` packets name that stand one behind the other."""

    group: bytes
    places: list[tuple[int, int]]
    """Partition and offset of each."""
    ids: bytes
    """Packet ids, two bytes each."""
    ends: list[int]
    """Where each packet ends."""


class AckRunReader:
    """Reads the runs of one client. Packets of one size, which most runs consist of, are read by a pattern."""

    def read(self, data: bytes, start: int, topic_field: bytes, id_prefix: bytes) -> AckRun | None:
        """As :func:`read_ack_run`; it may end before a packet of another size."""
        body = start + 2 + (data[start + 1] >= 0x80)
        stride = body - start + (data[start + 1] & 0x7F | (data[body - 1] << 7 if body > start + 2 else 0))
        head = data[start : body + len(topic_field)]
        if data.startswith(head, start + (FEWEST_ALIKE - 1) * stride):
            run = self._read_alike(data, start, stride, head, topic_field, id_prefix)
            if run is not None:
                return run
        return read_ack_run(data, start, topic_field, id_prefix)

    def _read_alike(
        self, data: bytes, start: int, stride: int, head: bytes, topic_field: bytes, id_prefix: bytes
    ) -> AckRun | None:
        """Packets of as many bytes as the first; None for fewer than two, and for everything that is not quite so."""
        first = read_ack_run(data, start, topic_field, id_prefix, 1)
        if first is None or first.ends[0] != start + stride:
            return None
        tail = _GROUP_ID + len(first.group).to_bytes(2, "big") + first.group
        digits_end = start + stride - len(tail)
        digits_start = data.index(_MESSAGE_ID, start + len(head)) + len(_MESSAGE_ID) + 2 + len(id_prefix)
        middle = data[start + len(head) + 2 : digits_start]
        pattern = _PATTERNS.get((head + middle, tail))
        if pattern is None:
            if len(head) + len(middle) + len(tail) > _MAX_PATTERN_BYTES:
                return None
            if len(_PATTERNS) >= MAX_PATTERNS:
                _PATTERNS.clear()
            fields = re.escape(head) + b"(..)" + re.escape(middle) + rb"(\d{1,5}):(\d{1,19})" + re.escape(tail)
            pattern = _PATTERNS[head + middle, tail] = re.compile(b"(?s)" + fields + b"|(.+)")
        found: list[tuple[bytes, bytes, bytes, bytes]] = []
        at, size = start, len(data)
        while at < size:
            # The last alternative takes what the first does not, so that matches lie one behind the other.
            some = pattern.findall(data, at, at + STEP * stride)
            whole = len(some) == STEP and not some[-1][3]
            if some[-1][3]:
                some.pop()
            found += some
            at += len(some) * stride
            if not whole:
                break
        digits = digits_end - digits_start
        if len(found) < 2 or {len(partition) + len(offset) for _, partition, offset, _ in found} != {digits - 1}:
            return None
        ids = [packet_id for packet_id, _, _, _ in found]
        if b"\0\0" in ids:
            return None
        places = [(int(partition), int(offset)) for _, partition, offset, _ in found]
        ends = list(range(start + stride, start + len(found) * stride + 1, stride))
        return AckRun(first.group, places, b"".join(ids), ends)


def read_ack_run(data: bytes, start: int, topic_field: bytes, id_prefix: bytes, most: int = 0) -> AckRun | None:
    """The run that begins at ``start``: QoS 1 packets with this topic (its length in front), for message ids that begin
    with ``id_prefix``, of one group, and ``most`` of them at most. None when there is none.
    """
    size = len(data)
    most = most or size
    group: bytes = b""
    places: list[tuple[int, int]] = []
    ids = bytearray()
    ends: list[int] = []
    at = start
    topic_bytes, prefix_bytes = len(topic_field), len(id_prefix)
    while at + 2 < size and data[at] == _HEADER_QOS_1 and len(ends) < most:
        length, body = data[at + 1], at + 2
        if length >= 0x80:
            high = data[body]
            body += 1
            if not 0 < high < 0x80:
                break
            length = length & 0x7F | high << 7
        end = body + length
        if end > size or not data.startswith(topic_field, body):
            break
        packet_id_at = body + topic_bytes
        section = packet_id_at + 2
        named = section + 1
        if section >= end:
            break
        if data[section] >= 0x80:
            named += 1
            if named > end or data[section + 1] >= 0x80:
                break
            properties = data[section] & 0x7F | data[section + 1] << 7
        else:
            properties = data[section]
        if named + properties != end or not data.startswith(_MESSAGE_ID, named):
            break
        value = named + len(_MESSAGE_ID) + 2
        group_at = value + (data[value - 2] << 8 | data[value - 1])
        group_value = group_at + len(_GROUP_ID) + 2
        if group_value > end or not data.startswith(_GROUP_ID, group_at):
            break
        if group_value + (data[group_value - 2] << 8 | data[group_value - 1]) != end:
            break
        if not data.startswith(id_prefix, value) or not (data[packet_id_at] or data[packet_id_at + 1]):
            break
        partition, _, offset = data[value + prefix_bytes : group_at].partition(b":")
        if not (partition.isdigit() and offset.isdigit() and len(partition) <= 5 and len(offset) <= _MAX_DIGITS):
            break
        if not places:
            group = data[group_value:end]
        elif data[group_value:end] != group:
            break
        places.append((int(partition), int(offset)))
        ids += data[packet_id_at:section]
        ends.append(end)
        at = end
    return AckRun(group, places, bytes(ids), ends) if places else None

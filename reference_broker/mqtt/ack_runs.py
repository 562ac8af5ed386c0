"""Runs of ``$ack`` publishes: read without making packets and messages of them.

A consumer that keeps up settles many deliveries at once. Its packets have one topic and two user properties, message-id
and group-id, in this order, and no payload; whatever looks different goes the general way.
"""

from __future__ import annotations

from typing import NamedTuple

_HEADER_QOS_1 = 0x32
_MESSAGE_ID = b"\x26\x00\x0amessage-id"
_GROUP_ID = b"\x26\x00\x08group-id"
_MAX_DIGITS = 19
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


def read_ack_run(data: bytes, start: int, topic_field: bytes, id_prefix: bytes) -> AckRun | None:
    """The run that begins at ``start``: QoS 1 packets with this topic (its length in front), for message ids that begin
    with ``id_prefix``, of one group. None for fewer than two.
    """
    size = len(data)
    group: bytes = b""
    places: list[tuple[int, int]] = []
    ids = bytearray()
    ends: list[int] = []
    at = start
    topic_bytes, prefix_bytes = len(topic_field), len(id_prefix)
    while at + 2 < size and data[at] == _HEADER_QOS_1:
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
    return AckRun(group, places, bytes(ids), ends) if len(places) > 1 else None

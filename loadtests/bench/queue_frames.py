"""Deliveries of a durable queue and the ``$ack`` publishes that settle them, read and written in blocks.

A client that made objects of every packet would be the limit of a broker that does not. The deliveries of a queue have
one shape but for numbers; it is taken from the first of them, and every other must have it, too.
"""

from __future__ import annotations

import re
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from assay.conformance.wire.decode import MalformedPacketError, decode_packet
from assay.conformance.wire.packets import Publish
from assay.loadtests.bench.frames import PACKET_IDS, SEQUENCE_BYTES, Sequences
from assay.loadtests.bench.workload import BenchError
from assay.loadtests.packets import property_section, publish_frame, split_frames, user_property

_MESSAGE_ID, _GROUP, _KEY = b"message-id", b"group-id", b"partition-key"
_KEY_START, _KEY_DIGITS = b"key-", 2
_CONFIRMED = rb"\x40\x02.."
_NUMBER = rb"\d{1,19}(?!\d)"
"""All digits: were the last one left to what follows, a delivery that lacks as many bytes would look whole."""
_ID_BYTES = [number.to_bytes(2, "big") for number in range(PACKET_IDS + 1)]


class Deliveries(NamedTuple):
    """What a chunk of bytes held."""

    ids: bytes
    """Packet ids of deliveries, two bytes each."""
    names: list[bytes]
    """Their message ids."""
    sequences: Sequences
    """The numbers in their payloads."""
    keys: npt.NDArray[np.uint8]
    """The numbers of their keys; empty where they have none."""
    confirms: int
    """Successful PUBACKs among them."""
    used: int
    """Bytes."""


class DeliveryReader:
    """Reads what comes to a consumer. Raises :class:`BenchError` for everything but deliveries and good PUBACKs."""

    def __init__(self, payload_bytes: int) -> None:
        self._payload_bytes = payload_bytes
        self._pattern: re.Pattern[bytes] | None = None
        self._has_keys = False
        self.group = b""
        """Group id that the deliveries name; known from the first on."""

    def read(self, data: bytes) -> Deliveries:
        """The whole packets at the start of a buffer."""
        pattern = self._pattern or self._learn(data)
        if pattern is None:
            return Deliveries(b"", [], np.empty(0, np.uint64), np.empty(0, np.uint8), 0, 0)
        found = pattern.findall(data)
        # Matches lie one behind the other, since the last alternative takes all that the others do not.
        rest = found.pop()[-1] if found and found[-1][-1] else b""
        if rest and self._has_packet(rest):
            raise self._unexpected(rest)
        delivered = [each for each in found if each[1]]
        ids = b"".join([each[0] for each in delivered])
        sequences = np.frombuffer(b"".join([each[-2] for each in delivered]), ">u8").astype(np.uint64)
        names = [each[1] for each in delivered]
        keys = np.array([int(each[2]) for each in delivered] if self._has_keys else (), np.uint8)
        return Deliveries(ids, names, sequences, keys, len(found) - len(delivered), len(data) - len(rest))

    @staticmethod
    def _has_packet(rest: bytes) -> bool:
        try:
            return bool(split_frames(rest)[0])
        except ValueError:
            return True

    @staticmethod
    def _unexpected(data: bytes) -> BenchError:
        return BenchError(f"expected a delivery like the first, or a successful PUBACK, received {data[:80].hex()}")

    def _learn(self, data: bytes) -> re.Pattern[bytes] | None:
        """The pattern of all packets, from the first one; None when that is not whole yet."""
        try:
            frames, _ = split_frames(data)
        except ValueError as error:
            raise BenchError(str(error)) from error
        if not frames:
            return None
        try:
            packet = decode_packet(data[: frames[0][2]], 5)
        except MalformedPacketError as error:
            raise BenchError(str(error)) from error
        if not isinstance(packet, Publish) or packet.qos != 1 or packet.dup or packet.retain:
            raise self._unexpected(data)
        topic = packet.topic.encode()
        named = [(name.encode(), value.encode()) for name, value in packet.properties.user_property]
        if [name for name, _ in named].count(_MESSAGE_ID) != 1:
            raise self._unexpected(data)
        self.group = dict(named).get(_GROUP, b"")
        self._has_keys = _KEY in dict(named)
        if self._has_keys and [name for name, _ in named].index(_KEY) < [name for name, _ in named].index(_MESSAGE_ID):
            raise self._unexpected(data)
        properties = b"".join(_property_pattern(name, value) for name, value in named)
        head = rb"\x32(?:[\x80-\xff][\x00-\x7f]{1,3}|[\x00-\x7f])" + re.escape(len(topic).to_bytes(2, "big") + topic)
        section = rb"(?:[\x80-\xff][\x00-\x7f]|[\x00-\x7f])" + properties
        payload = rb"(.{%d}).{%d}" % (SEQUENCE_BYTES, self._payload_bytes - SEQUENCE_BYTES)
        delivered = head + b"(..)" + section + payload
        pattern = self._pattern = re.compile(b"(?s)" + delivered + b"|" + _CONFIRMED + b"|(.+)")
        if (match := pattern.match(data)) is None or match[pattern.groups]:
            # Its properties are more than user properties, or its payload has another size.
            raise self._unexpected(data)
        return pattern


def key_of(number: int) -> bytes:
    """The key with that number."""
    return _KEY_START + b"%0*d" % (_KEY_DIGITS, number)


def key_sections(keys: int) -> list[bytes]:
    """The property sections of publishes with these keys."""
    return [property_section(user_property(_KEY, key_of(number)), 5) for number in range(keys)]


def _property_pattern(name: bytes, value: bytes) -> bytes:
    """A user property; message id, key and whatever is a number may differ from delivery to delivery."""
    exact = re.escape(user_property(name, value))
    before = re.escape(user_property(name, b"")[:-2])
    if name == _MESSAGE_ID:
        queue = value.rpartition(b":")[0].rpartition(b":")[0]
        return before + b"..(" + re.escape(queue) + rb":\d{1,5}:" + _NUMBER + b")"
    if name == _KEY:
        return re.escape(user_property(name, key_of(0))[:-_KEY_DIGITS]) + rb"(\d{%d})" % _KEY_DIGITS
    return before + b".." + _NUMBER if value.isdigit() else exact


def acknowledgements(ids: bytes) -> bytes:
    """A PUBACK for each packet id, two bytes each."""
    acks = bytearray(b"\x40\x02\0\0" * (len(ids) // 2))
    acks[2::4] = ids[0::2]
    acks[3::4] = ids[1::2]
    return bytes(acks)


class AckFrames:
    """Writes ``$ack`` publishes at QoS 1, each for one message id, under packet ids in turn."""

    def __init__(self, topic: bytes) -> None:
        self._topic = topic
        self._parts: dict[int, tuple[bytes, bytes, bytes]] = {}
        """Length of a message id -> what is around packet id and message id."""
        self._sent = 0

    def _next_ids(self, count: int) -> list[bytes]:
        first = self._sent % PACKET_IDS + 1
        self._sent += count
        ids = _ID_BYTES[first : first + count]
        while len(ids) < count:
            ids += _ID_BYTES[1 : 1 + count - len(ids)]
        return ids

    def one(self, pairs: bytes) -> bytes:
        """An ``$ack`` with these user properties."""
        packet_id = int.from_bytes(self._next_ids(1)[0], "big")
        return publish_frame(1, self._topic, packet_id, property_section(pairs, 5), b"")

    def each(self, names: list[bytes], group: bytes) -> bytes:
        """An ``$ack`` for each message id."""
        ids = self._next_ids(len(names))
        sizes = [self._parts_of(name, group) for name in names]
        first = sizes[0]
        if sizes.count(first) == len(sizes):
            head, middle, tail = first
            pieces = [head, b"", middle, b"", tail] * len(names)
            pieces[1::5] = ids
            pieces[3::5] = names
            return b"".join(pieces)
        return b"".join(
            [
                piece
                for (head, middle, tail), packet_id, name in zip(sizes, ids, names, strict=True)
                for piece in (head, packet_id, middle, name, tail)
            ]
        )

    def _parts_of(self, name: bytes, group: bytes) -> tuple[bytes, bytes, bytes]:
        known = self._parts.get(len(name))
        if known is None:
            tail = user_property(_GROUP, group)
            section = property_section(user_property(_MESSAGE_ID, name) + tail, 5)
            whole = publish_frame(1, self._topic, 0, section, b"")
            body_at = len(whole) - len(section)
            name_at = len(whole) - len(tail) - len(name)
            known = self._parts[len(name)] = whole[: body_at - 2], whole[body_at:name_at], tail
        return known

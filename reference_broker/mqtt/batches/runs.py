"""Runs: consecutive packets of one shape, handled as one block of bytes.

A client that pipelines sends many PUBLISH packets that differ only in packet id and payload, and as many
acknowledgements. Slicing with a step reads or writes one field of all of them at once.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from itertools import chain

from assay.reference_broker.routing.message import Message

_PACKET_IDS = bytes(chain.from_iterable((number >> 8, number & 0xFF) for number in range(65_536)))
_FIRST_WINDOW_BYTES = 32
_WINDOW_BYTES = 1_024
"""Acknowledgements are looked for in so many bytes at once, whatever is behind them; in fewer first, since types may
take turns."""
_MOST_BYTES = 16_384


class AlikeRun:
    """QoS 1 or 2 PUBLISH packets of one topic and size."""

    __slots__ = ("_data", "_id_at", "_payload_at", "_stride", "_topic", "count", "ids", "payload_bytes", "size")

    def __init__(self, topic: str, data: bytes, stride: int, id_at: int, payload_at: int) -> None:
        """``stride``: of a packet; ``id_at`` and ``payload_at``: where it has these."""
        self._topic = topic
        self._data = data
        self._stride = stride
        self._id_at = id_at
        self._payload_at = payload_at
        self.count = len(data) // stride
        self.size = len(data)
        self.payload_bytes = self.count * (stride - payload_at)
        self.ids = ids_of(data, stride, id_at)

    def with_ids(self, ids: bytes) -> bytes:
        """The packets under other packet ids."""
        stamped = bytearray(self._data)
        stamped[self._id_at :: self._stride] = ids[0::2]
        stamped[self._id_at + 1 :: self._stride] = ids[1::2]
        return bytes(stamped)

    def message(self, index: int, qos: int, publisher: str) -> Message:
        """What one of them says."""
        start = index * self._stride
        payload = self._data[start + self._payload_at : start + self._stride]
        return Message(topic=self._topic, payload=payload, qos=qos, publisher=publisher)


class MixedRun:
    """QoS 1 or 2 PUBLISH packets of any topics and sizes, without properties, each shorter than 16 384 bytes."""

    __slots__ = ("_data", "_ends", "_skipped", "_topic_ends", "count", "ids", "payload_bytes", "size")

    def __init__(self, data: bytes, topic_ends: Sequence[int], ends: Sequence[int], skipped: int) -> None:
        """``ends``: where each packet ends; ``skipped``: bytes between its topic and its payload."""
        self._data = data
        # Kept until all are acknowledged: in as little memory as possible.
        self._topic_ends, self._ends = array("I", topic_ends), array("I", ends)
        self._skipped = skipped
        self.count = len(ends)
        self.size = len(data) + 10 * self.count
        self.payload_bytes = sum(ends) - sum(topic_ends) - self.count * skipped
        self.ids = b"".join([data[at : at + 2] for at in topic_ends])

    def with_ids(self, ids: bytes) -> bytes:
        """As :meth:`AlikeRun.with_ids`."""
        stamped = bytearray(self._data)
        for at, high, low in zip(self._topic_ends, ids[0::2], ids[1::2], strict=True):
            stamped[at] = high
            stamped[at + 1] = low
        return bytes(stamped)

    def message(self, index: int, qos: int, publisher: str) -> Message:
        """As :meth:`AlikeRun.message`."""
        data, topic_end = self._data, self._topic_ends[index]
        start = self._ends[index - 1] if index else 0
        topic_at = start + 4 + (data[start + 1] >= 0x80)
        payload = data[topic_end + self._skipped : self._ends[index]]
        return Message(topic=data[topic_at:topic_end].decode(), payload=payload, qos=qos, publisher=publisher)


def packet_id_bytes(first: int, count: int) -> bytes:
    """``count`` consecutive packet ids, two bytes each."""
    return _PACKET_IDS[2 * first : 2 * (first + count)]


def ids_of(run: bytes, stride: int, offset: int) -> bytes:
    """The packet ids of a run of equally long packets, two bytes each; ``offset`` is the id's place in a packet."""
    ids = bytearray(2 * (len(run) // stride))
    ids[0::2] = run[offset::stride]
    ids[1::2] = run[offset + 1 :: stride]
    return bytes(ids)


def numbers(ids: bytes) -> list[int]:
    """Packet ids as numbers."""
    if len(ids) == 2:
        return [ids[0] << 8 | ids[1]]
    return [high << 8 | low for high, low in zip(ids[0::2], ids[1::2], strict=True)]


def acknowledgements(start: bytes, ids: bytes) -> bytes:
    """Acknowledgements in their 4-byte form for these packet ids; ``start`` is their first two bytes."""
    count = len(ids) // 2
    run = bytearray(start + b"\0\0") * count
    run[2::4] = ids[0::2]
    run[3::4] = ids[1::2]
    return bytes(run)


def acknowledgement_run(data: bytes, position: int) -> bytes:
    """Packet ids of the 4-byte acknowledgements of one type that stand one behind the other at ``position``: of all,
    or of many."""
    if len(data) < position + 8:
        # No other one is behind it.
        return data[position + 2 : position + 4]
    kind, length = data[position : position + 1], data[position + 1 : position + 2]
    end = position
    window_bytes = _FIRST_WINDOW_BYTES
    while True:
        window = data[end : end + window_bytes]
        kinds, lengths = window[0::4], window[1::4]
        count = min(len(window) // 4, len(kinds) - len(kinds.lstrip(kind)), len(lengths) - len(lengths.lstrip(length)))
        end += 4 * count
        if 4 * count < window_bytes or end - position >= _MOST_BYTES:
            return ids_of(data[position:end], 4, 2)
        window_bytes = _WINDOW_BYTES

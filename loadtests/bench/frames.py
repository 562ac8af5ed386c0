"""Blocks of fixed-size PUBLISH frames as numpy records, so that thousands are built or read by a few C loops.

Every message carries its sequence number at the start of its payload. A block of ``n`` frames is one contiguous
buffer of ``n * size`` bytes. Acknowledgements (PUBACK, PUBREC, PUBREL, PUBCOMP) of MQTT 3.1.1 are four bytes each.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from enum import IntEnum
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from assay.conformance.wire.encode import varint

PACKET_IDS = 65_535
"""Packet ids are 1 to 65535; message ``seq`` is sent with id ``seq % 65535 + 1``."""
SEQUENCE_BYTES = 8

Ids = npt.NDArray[np.uint16]
Sequences = npt.NDArray[np.uint64]


class AckType(IntEnum):
    """First byte of the four-byte acknowledgement packets (MQTT 3.1.1, sections 3.4 to 3.7)."""

    PUBACK = 0x40
    PUBREC = 0x50
    PUBREL = 0x62
    PUBCOMP = 0x70


_ACK = np.dtype([("type", "u1"), ("length", "u1"), ("packet_id", ">u2")])
ACK_BYTES = _ACK.itemsize


def packet_ids(first_seq: int, count: int) -> Ids:
    """Packet ids of the messages ``first_seq .. first_seq + count - 1``."""
    return (np.arange(first_seq, first_seq + count, dtype=np.int64) % PACKET_IDS + 1).astype(np.uint16)


def build_acks(kind: AckType, ids: npt.NDArray[np.integer]) -> bytes:
    """One acknowledgement per id, in order."""
    acks = np.empty(len(ids), _ACK)
    acks["type"] = kind
    acks["length"] = 2
    acks["packet_id"] = ids
    return acks.tobytes()


def read_acks(chunk: memoryview) -> tuple[npt.NDArray[np.uint8], Ids]:
    """First bytes and packet ids of a chunk of whole acknowledgements. Raises :class:`ValueError` for anything else."""
    acks = np.frombuffer(chunk, _ACK)
    if not bool((acks["length"] == 2).all()):
        message = f"expected four-byte acknowledgements, received {bytes(chunk[:16]).hex()}..."
        raise ValueError(message)
    return acks["type"], acks["packet_id"].astype(np.uint16)


def in_sequence(what: str, sequences: Sequences, expected: int) -> int:
    """The next expected number. Raises :class:`ValueError` at the first gap, repetition or disorder."""
    wanted = np.arange(expected, expected + len(sequences), dtype=np.uint64)
    if not np.array_equal(sequences, wanted):
        at = int(np.argmax(sequences != wanted))
        message = f"{what} out of sequence: expected message {int(wanted[at])}, received {int(sequences[at])}"
        raise ValueError(message)
    return expected + len(sequences)


class Delivered(NamedTuple):
    """Deliveries at the start of a chunk."""

    messages: int
    size: int
    """Bytes of them."""
    ids: Ids | None
    """None at QoS 0."""


class Frames(Protocol):
    """What a publisher sends, and a subscriber must get."""

    qos: int
    """They are published at."""

    def block(self, first_seq: int, count: int) -> memoryview:
        """``count`` packets from ``first_seq`` on. The buffer may be reused: send it all before the next call."""

    def deliveries(self, chunk: memoryview, first_seq: int) -> Delivered:
        """Whole deliveries at the start of a chunk, ``first_seq`` the first of them; it may be asked again for what is
        behind them. Raises :class:`ValueError` for any others."""


class PublishFrames:
    """The one shape of all PUBLISH frames of a measurement: topic, QoS and payload size are fixed.

    ``payload_bytes`` must hold the sequence number (8 bytes). Raises :class:`ValueError` when it does not.
    ``section`` is the property section of MQTT 5.0, empty for 3.1.1. ``sections``: several of one size, which the
    messages have in turn.
    """

    def __init__(
        self, topic: str, qos: int, payload_bytes: int, *, section: bytes = b"", sections: Sequence[bytes] = ()
    ) -> None:
        if payload_bytes < SEQUENCE_BYTES:
            message = f"payload of {payload_bytes} bytes cannot hold the {SEQUENCE_BYTES}-byte sequence number"
            raise ValueError(message)
        name = topic.encode()
        id_bytes = 2 if qos else 0
        section = sections[0] if sections else section
        self._sections = np.array([np.void(each) for each in sections]) if sections else None
        length = varint(2 + len(name) + id_bytes + len(section) + payload_bytes)
        self.qos = qos
        self.head = bytes([0x30 | qos << 1]) + length + len(name).to_bytes(2, "big") + name
        fields: list[tuple[str, str]] = [("head", f"V{len(self.head)}")]
        if qos:
            fields.append(("packet_id", ">u2"))
        if section:
            fields.append(("section", f"V{len(section)}"))
        fields.append(("seq", ">u8"))
        if payload_bytes > SEQUENCE_BYTES:
            fields.append(("rest", f"V{payload_bytes - SEQUENCE_BYTES}"))
        self.dtype = np.dtype(fields)
        self.size = self.dtype.itemsize
        self._template = np.zeros(1, self.dtype)
        self._template["head"] = np.void(self.head)
        if section:
            self._template["section"] = np.void(section)
        if payload_bytes > SEQUENCE_BYTES:
            filler = bytes(65 + index % 26 for index in range(payload_bytes - SEQUENCE_BYTES))
            self._template["rest"] = np.void(filler)
        self._block = self._template.copy()
        escaped, filler_bytes = re.escape(self.head), payload_bytes - SEQUENCE_BYTES
        # QoS 2 deliveries arrive mixed with PUBRELs; one regular expression takes both apart at C speed.
        self._mixed = re.compile(
            b"(?s)" + escaped + b"(..)" + re.escape(section) + b"(.{8}).{%d}|\x62\x02(..)" % filler_bytes
        )

    def block(self, first_seq: int, count: int) -> memoryview:
        """``count`` frames from ``first_seq`` on. The buffer is reused: send it all before the next call."""
        if len(self._block) < count:
            self._block = np.repeat(self._template, count)
        frames = self._block[:count]
        frames["seq"] = np.arange(first_seq, first_seq + count)
        if self._sections is not None:
            frames["section"] = self._sections[frames["seq"].astype(np.int64) % len(self._sections)]
        if self.qos:
            frames["packet_id"] = packet_ids(first_seq, count)
        return frames.data.cast("B")

    def read(self, chunk: memoryview) -> tuple[Ids | None, Sequences]:
        """Packet ids (None at QoS 0) and sequence numbers of a chunk of whole frames.

        Raises :class:`ValueError` when a frame differs from the shape, e.g. has DUP set.
        """
        frames = np.frombuffer(chunk, self.dtype)
        heads = np.frombuffer(chunk, np.uint8).reshape(-1, self.size)[:, : len(self.head)]
        if not bool((heads == np.frombuffer(self.head, np.uint8)).all()):
            message = f"a delivery is not the expected PUBLISH of {self.size} bytes: {bytes(chunk[:24]).hex()}..."
            raise ValueError(message)
        ids = frames["packet_id"].astype(np.uint16) if self.qos else None
        return ids, frames["seq"].astype(np.uint64)

    def deliveries(self, chunk: memoryview, first_seq: int) -> Delivered:
        """As :meth:`Frames.deliveries`, at QoS 0 and 1."""
        whole = len(chunk) - len(chunk) % self.size
        if not whole:
            return Delivered(0, 0, None)
        ids, sequences = self.read(chunk[:whole])
        return Delivered(in_sequence("delivery", sequences, first_seq) - first_seq, whole, ids)

    def read_mixed(self, chunk: bytes) -> tuple[Ids, Sequences, Ids, int]:
        """QoS 2 stream: ids and sequence numbers of PUBLISHes, ids of PUBRELs, bytes consumed.

        Stops before an incomplete frame at the end. Raises :class:`ValueError` for any other packet.
        """
        found = self._mixed.findall(chunk)
        published = [(packet_id, seq) for packet_id, seq, _ in found if packet_id]
        released = b"".join([released for _, _, released in found])
        releases = len(released) // 2
        consumed = len(published) * self.size + releases * ACK_BYTES
        tail = chunk[consumed:]
        partial = self.head.startswith(tail[: len(self.head)]) or b"\x62\x02".startswith(tail[:2])
        if len(published) + releases != len(found) or len(tail) >= self.size or not partial:
            message = f"the stream holds something that is neither the expected PUBLISH nor PUBREL near byte {consumed}"
            raise ValueError(message)
        ids = np.frombuffer(b"".join([packet_id for packet_id, _ in published]), ">u2").astype(np.uint16)
        seqs = np.frombuffer(b"".join([seq for _, seq in published]), ">u8").astype(np.uint64)
        return ids, seqs, np.frombuffer(released, ">u2").astype(np.uint16), consumed

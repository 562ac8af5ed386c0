"""Messages as devices send them: of any size, over a thousand topics in random order, or each on a topic of its own.

A cycle of messages is laid out once, as it is published and as it must be delivered; packet ids and the names of new
topics are written into it by column. What arrives is compared with what was laid out, byte by byte, so that the client
looks at no message by itself.
"""

from __future__ import annotations

import random
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from assay.conformance.targets import Endpoint
from assay.conformance.wire.encode import varint
from assay.loadtests.bench.broker_process import BrokerProcess
from assay.loadtests.bench.frames import Delivered, Ids, packet_ids
from assay.loadtests.bench.handshake import connect, subscribe
from assay.loadtests.bench.pump import Pump
from assay.loadtests.bench.workload import BenchPlan, Figure, Workload

TOPICS = 1_000
SMALLEST_BYTES, LARGEST_BYTES = 10, 1_000
"""Of payloads."""
CYCLE = 16_384
"""Messages until sizes and topics come again."""
_SEED = 1
_DIGITS = 8
"""Of the number that makes a topic new."""
_ROOT = "b/m"
_Places = npt.NDArray[np.int64]


class _Layout:
    """The packets of one cycle in one direction. All arrays have an entry for each packet."""

    def __init__(self, qos: int, topics: list[bytes], payloads: list[bytes]) -> None:
        parts: list[bytes] = []
        ends: list[int] = []
        ids: list[int] = []
        digits: list[int] = []
        at = 0
        for topic, payload in zip(topics, payloads, strict=True):
            body = len(topic).to_bytes(2, "big") + topic + bytes(2 if qos else 0) + payload
            head = bytes([0x30 | qos << 1]) + varint(len(body))
            digits.append(at + len(head) + 2 + len(topic) - _DIGITS)
            ids.append(at + len(head) + 2 + len(topic))
            parts += (head, body)
            at += len(head) + len(body)
            ends.append(at)
        self.data = np.frombuffer(bytearray(b"".join(parts)), np.uint8)
        self.ends: _Places = np.array(ends, np.int64)
        self.starts: _Places = np.concatenate([[0], self.ends[:-1]])
        self.ids: _Places = np.array(ids, np.int64)
        """Where the packet id is."""
        self.digits: _Places = np.array(digits, np.int64)
        """Where the topic's last eight characters are."""

    def name(self, first: int, index: int, count: int) -> None:
        """Write the numbers from ``first`` on into the topics of so many packets from ``index`` on."""
        raw = np.arange(first, first + count, dtype=">u4").tobytes().hex().encode()
        places = self.digits[index : index + count, None] + np.arange(_DIGITS)
        self.data[places] = np.frombuffer(raw, np.uint8).reshape(count, _DIGITS)

    def identify(self, ids: Ids, index: int) -> None:
        """Write packet ids from ``index`` on."""
        places = self.ids[index : index + len(ids)]
        self.data[places] = ids >> 8
        self.data[places + 1] = ids & 0xFF


class MixedFrames:
    """What is published at ``qos`` and delivered at ``granted``. ``new``: each message has a topic of its own."""

    def __init__(self, qos: int, granted: int, *, new: bool) -> None:
        rng = random.Random(_SEED)
        names = [f"{_ROOT}/{rng.randbytes(rng.randint(4, 16)).hex()}/{0:0{_DIGITS}}".encode() for _ in range(TOPICS)]
        names = [name[:-_DIGITS] + b"%08d" % number for number, name in enumerate(names)]
        topics = [rng.choice(names) for _ in range(CYCLE)]
        payloads = [rng.randbytes(rng.randint(SMALLEST_BYTES, LARGEST_BYTES)) for _ in range(CYCLE)]
        self.qos, self._granted, self._new = qos, granted, new
        self._published = _Layout(qos, topics, payloads)
        self._delivered = _Layout(granted, topics, payloads)

    def block(self, first_seq: int, count: int) -> memoryview:
        """As :meth:`Frames.block`."""
        layout = self._published
        index = first_seq % CYCLE
        if index + count > CYCLE:
            left = CYCLE - index
            return memoryview(bytes(self.block(first_seq, left)) + self.block(first_seq + left, count - left))
        if self._new:
            layout.name(first_seq, index, count)
        if self.qos:
            layout.identify(packet_ids(first_seq, count), index)
        return layout.data[layout.starts[index] : layout.ends[index + count - 1]].data

    def deliveries(self, chunk: memoryview, first_seq: int) -> Delivered:
        """As :meth:`Frames.deliveries`, up to the end of the cycle."""
        layout = self._delivered
        index = first_seq % CYCLE
        start = int(layout.starts[index])
        count = int(np.searchsorted(layout.ends, start + len(chunk), side="right")) - index
        if count <= 0:
            return Delivered(0, 0, None)
        end = int(layout.ends[index + count - 1])
        seen = np.frombuffer(chunk, np.uint8, end - start)
        ids: Ids | None = None
        if self._new:
            layout.name(first_seq, index, count)
        if self._granted:
            places = layout.ids[index : index + count] - start
            ids = (seen[places].astype(np.uint16) << 8 | seen[places + 1]).astype(np.uint16)
            layout.identify(ids, index)
        if not np.array_equal(seen, layout.data[start:end]):
            at = int(np.argmax(seen != layout.data[start:end]))
            number = first_seq + int(np.searchsorted(layout.ends, start + at, side="right")) - index
            message = f"out of sequence: message {number} is not delivered as it was published, in its turn"
            raise ValueError(message)
        return Delivered(count, end - start, ids)


class Kind(NamedTuple):
    """A line of the case."""

    line: str
    qos: int
    granted: int
    new: bool


KINDS = (
    Kind("mixed_qos0", 0, 0, new=False),
    Kind("mixed_qos1_to_0", 1, 0, new=False),
    Kind("mixed_qos1", 1, 1, new=False),
    Kind("new_qos0", 0, 0, new=True),
    Kind("new_qos1", 1, 1, new=True),
)


class Mixed(Workload):
    """One publisher, one subscriber, on fresh connections for each line and round."""

    def __init__(self, endpoint: Endpoint, plan: BenchPlan, broker: BrokerProcess) -> None:
        super().__init__(endpoint, plan, broker)
        self._frames = {kind.line: MixedFrames(kind.qos, kind.granted, new=kind.new) for kind in KINDS}

    def measure(self, number: int) -> list[Figure]:
        return [self._measure(kind, number) for kind in KINDS]

    def _measure(self, kind: Kind, number: int) -> Figure:
        plan = self.plan
        subscriber, _ = connect(self.endpoint, f"bench-s-{kind.line}-{number}")
        with subscriber:
            subscribe(subscriber, f"{_ROOT}/#", kind.granted)
            publisher, _ = connect(self.endpoint, f"bench-p-{kind.line}-{number}")
            with publisher:
                frames = self._frames[kind.line]
                pump = Pump(publisher, subscriber, frames, window=plan.window_of(kind.qos))
                return self.pumped(kind.line, pump)

"""Counts what a broker does: lines of its code that run, and bytes that it copies out of a chunk."""

from __future__ import annotations

import random
import struct
import sys
from collections.abc import Callable, Iterable
from types import FrameType
from typing import Any, SupportsIndex

from assay.reference_broker.config import BrokerConfig
from assay.reference_broker.mqtt.connections.connection import MqttConnection
from assay.reference_broker.node import BrokerNode

START = 1_700_000_000.0


class CountedBytes(bytes):
    """A chunk that counts the bytes of the slices taken of it."""

    copied: int = 0

    def __getitem__(self, key: SupportsIndex | slice[Any, Any, Any]) -> Any:  # as the base class's
        part = super().__getitem__(key)
        if isinstance(part, bytes):
            self.copied += len(part)
        return part


class Steps:
    """Counts lines of the broker's code."""

    def __init__(self) -> None:
        self.total = 0
        """Since the beginning."""

    def count(self, action: Callable[[], object]) -> int:
        """Lines that run while ``action`` does."""
        lines = 0

        def step(_frame: FrameType, event: str, _argument: object) -> Callable[..., Any]:
            nonlocal lines  # for an attribute of a method this takes longer, which counts: there are millions of lines
            # A comprehension of one line counts each of its rounds, too.
            if event == "line":
                lines += 1
            return step

        def enter(frame: FrameType, _event: str, _argument: object) -> Callable[..., Any] | None:
            return step if "reference_broker" in frame.f_code.co_filename else None

        earlier = sys.gettrace()
        sys.settrace(enter)
        try:
            action()
        finally:
            sys.settrace(earlier)
        self.total += lines
        return lines


class Bench:
    """A broker in memory, driven turn by turn."""

    def __init__(self, config: BrokerConfig | None = None) -> None:
        self.now = START
        self.node = BrokerNode(config or BrokerConfig(), None, random.Random(5), self.now)
        self.steps = Steps()
        self.copied = 0
        self.worst_turn = 0
        """Most lines between two chances for others to be served."""
        self.heard: dict[MqttConnection, bytes] = {}
        """What clients were sent since :meth:`collect`."""

    def connect(self, client_id: str, version: int, *, receive_maximum: int = 0, expiry_s: int = 0) -> MqttConnection:
        properties = b"\x21" + receive_maximum.to_bytes(2, "big") if receive_maximum else b""
        if expiry_s:
            properties += b"\x11" + expiry_s.to_bytes(4, "big")
        section = bytes((len(properties),)) + properties if version == 5 else b""
        body = b"\0\4MQTT" + bytes((version, 2)) + b"\0\0" + section + text(client_id)
        connection = self.node.accept(client_id, self.now)
        self.feed(connection, packet(0x10, body))
        return connection

    def collect(self, clients: Iterable[MqttConnection]) -> None:
        """Keep what these clients are sent."""
        self.heard.update(dict.fromkeys(clients, b""))

    def feed(self, connection: MqttConnection, data: bytes) -> bytes:
        """A chunk, and turns until nothing is left to do; returns what the client was sent."""
        self.node.receive(connection, data, self.now)
        return self.settle(connection)

    def settle(self, connection: MqttConnection) -> bytes:
        """Turns until nothing is left to do."""
        answer = b""
        while True:
            dirty = self.node.take_dirty(self.now)
            for each in dirty:
                output = each.take_output()
                if each in self.heard:
                    self.heard[each] += output
                answer += output if each is connection else b""
            for job in self.node.take_jobs(self.now):
                job.run()
                self.node.job_done(job, None, self.now)
            deadline = self.node.next_deadline()
            due = deadline is not None and deadline <= self.now
            if due:
                self.node.tick(self.now)
            if not dirty and not due:
                return answer

    def measure(self, connection: MqttConnection, data: bytes) -> tuple[int, int]:
        """As :meth:`feed`; returns the lines that ran, and notes those of the longest turn and the bytes copied."""
        chunk = CountedBytes(data)
        turns = [self.steps.count(lambda: self.node.receive(connection, chunk, self.now))]
        turns += self.measure_turns()
        self.worst_turn = max(self.worst_turn, *turns)
        return sum(turns), chunk.copied

    def measure_turns(self) -> list[int]:
        """Lines of each turn until nothing is left to do."""
        turns: list[int] = []
        while True:
            dirty: list[MqttConnection] = []

            def turn(dirty: list[MqttConnection] = dirty) -> None:
                dirty += self.node.take_dirty(self.now)
                for each in dirty:
                    each.take_output()
                self.node.take_jobs(self.now)
                self.node.next_deadline()

            turns.append(self.steps.count(turn))
            deadline = self.node.next_deadline()
            due = deadline is not None and deadline <= self.now
            if due:
                turns.append(self.steps.count(lambda: self.node.tick(self.now)))
            if not dirty and not due:
                return turns


def text(value: str) -> bytes:
    data = value.encode()
    return struct.pack(">H", len(data)) + data


def variable(value: int) -> bytes:
    out = b""
    while True:
        value, digit = value >> 7, value & 0x7F
        out += bytes((digit | (0x80 if value else 0),))
        if not value:
            return out


def packet(header: int, body: bytes) -> bytes:
    return bytes((header,)) + variable(len(body)) + body


def publish(
    version: int,
    topic: str,
    qos: int = 0,
    packet_id: int = 1,
    payload: bytes = b"",
    flags: int = 0,
    properties: bytes = b"",
) -> bytes:
    identifier = packet_id.to_bytes(2, "big") if qos else b""
    section = variable(len(properties)) + properties if version == 5 else b""
    return packet(0x30 | qos << 1 | flags, text(topic) + identifier + section + payload)


def user_property(name: str, value: str) -> bytes:
    return b"\x26" + text(name) + text(value)


def subscribe(version: int, *filters: str, qos: int = 0, identifier: int = 0) -> bytes:
    properties = b"\x0b" + variable(identifier) if identifier else b""
    section = variable(len(properties)) + properties if version == 5 else b""
    return packet(0x82, b"\0\1" + section + b"".join(text(each) + bytes((qos,)) for each in filters))


def unsubscribe(version: int, *filters: str) -> bytes:
    return packet(0xA2, b"\0\1" + (b"\0" if version == 5 else b"") + b"".join(map(text, filters)))

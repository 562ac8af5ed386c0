"""Connections of the clients of a life: written and read without blocking, and everything on them written down."""

from __future__ import annotations

import selectors
import socket
import struct
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any, Literal

from assay.conformance.explore.rules import Rule, ViolationError
from assay.conformance.wire import Decoder, MalformedPacketError, Packet, decode_packet, describe, encode
from assay.conformance.wire.amqp091 import AMQP_091, Assembler, describe_bytes
from assay.conformance.wire.http import HTTP_11, AnswerReader
from assay.reference_broker.trace.conformance import WireLine

_SLOW_ROUND_TRIP_S = 0.1
"""On an idle machine a PINGREQ is answered in less than a millisecond."""
_MAX_EXTENSIONS = 5
_RECEIVE_BYTES = 262_144
_LINGER_NOT = struct.pack("ii", 1, 0)


class Patience:
    """How long something is waited for; as long again when the broker is slow to answer anybody, for some times."""

    def __init__(self, seconds: float, round_trip: Callable[[], float]) -> None:
        self._seconds, self._round_trip = seconds, round_trip
        self._extensions, self._deadline = 0, time.monotonic() + seconds

    def left_s(self, more_s: float = 0.0) -> float:
        """At least 0, which means that it is over; ``more_s``: what is waited for may take so much longer."""
        left_s = self._deadline + more_s - time.monotonic()
        if left_s <= 0 and self._extensions < _MAX_EXTENSIONS and self._round_trip() > _SLOW_ROUND_TRIP_S:
            self._extensions += 1
            self._deadline = time.monotonic() + self._seconds
            left_s = self._seconds
        return max(0.0, left_s)


@dataclass(eq=False)
class Wire:
    """A socket with what belongs to it."""

    name: str
    version: int
    sock: socket.socket
    decoder: Decoder | Assembler | AnswerReader
    most_bytes: float = float("inf")
    """Of a packet that the client takes."""
    unsent: bytearray = field(default_factory=bytearray)
    pieces: bool = False
    """What is sent at a time goes out in two pieces."""
    waits: bool = False
    """The system has taken as much as it will for the time being."""

    @property
    def open(self) -> bool:
        return self.sock.fileno() >= 0


class Sockets(ABC):
    """What players share."""

    answers_together = False
    """What is sent while bytes that came are looked at goes out in one piece."""
    patience_s: float
    slowness = 1
    """So many times the patience is needed: queues that elect a leader after a restart take their time."""

    def begin_life(self) -> None:
        """Forget the connections of the life before."""
        self.log: list[tuple[int, str, Literal["send", "recv", "event"], bytes | str, int]] = []
        self._began_ns = time.perf_counter_ns()
        self._selector = selectors.DefaultSelector()
        self._all: list[Wire] = []
        self._gathered: dict[str, Wire] | None = None
        """By name, those that have something to send at the end of :meth:`together`."""

    def end_life(self) -> None:
        for wire in self._all:
            wire.sock.close()
        self._selector.close()

    def watch(self, wire: Wire) -> None:
        """From now on it is read."""
        wire.sock.setblocking(False)
        self._all.append(wire)
        self._selector.register(wire.sock, selectors.EVENT_READ, wire)

    def drop(self, wire: Wire, *, reset: bool = False) -> None:
        """Close it, or reset it."""
        if reset:
            wire.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER_NOT)
        self._selector.unregister(wire.sock)
        wire.sock.close()

    def note(self, text: str) -> None:
        self.log.append((time.perf_counter_ns() - self._began_ns, "", "event", text, 0))

    def write(self, wire: Wire, packet: Packet) -> None:
        self.send(wire, encode(packet, wire.version))

    def send(self, wire: Wire, data: bytes) -> None:
        self.log.append((time.perf_counter_ns() - self._began_ns, wire.name, "send", data, wire.version))
        if wire.pieces and self._gathered is None and not wire.unsent:
            first = 1 + len(self.log) * 7 % (len(data) - 1)  # as good as any
            wire.unsent += data[:first]
            self._flush(wire)
            self.let_pass()
            data = data[first:]
        wire.unsent += data
        if self._gathered is None:
            self._flush(wire)
        else:
            self._gathered[wire.name] = wire

    @contextmanager
    def together(self) -> Iterator[None]:
        """What is sent within the block goes out in one piece for each connection: at its end, or before a wait."""
        self._gathered = {}
        try:
            yield
            self._send_gathered()
        finally:
            self._gathered = None

    def _send_gathered(self) -> None:
        wires, self._gathered = self._gathered or {}, {}
        for wire in wires.values():
            if wire.open:
                self._flush(wire)

    def _flush(self, wire: Wire) -> None:
        try:
            while wire.unsent:
                del wire.unsent[: wire.sock.send(wire.unsent)]
        except BlockingIOError:
            wire.waits = True
            self._selector.modify(wire.sock, selectors.EVENT_READ | selectors.EVENT_WRITE, wire)
            return
        except OSError:
            return  # the end of the connection is read
        if wire.waits:
            wire.waits = False
            self._selector.modify(wire.sock, selectors.EVENT_READ, wire)

    def read(self, timeout_s: float) -> None:
        """Take what has arrived; wait for something at most so long. Raises :class:`ViolationError`."""
        if self._gathered:
            self._send_gathered()
        for key, events in self._selector.select(timeout_s):
            wire: Wire = key.data
            if events & selectors.EVENT_WRITE and wire.open:
                self._flush(wire)
            if events & selectors.EVENT_READ and wire.open:
                self._read_wire(wire)

    def patience(self) -> Patience:
        """It begins now."""
        return Patience(self.patience_s * self.slowness, self.round_trip)

    @abstractmethod
    def round_trip(self) -> float:
        """Seconds that the broker takes to answer somebody else."""

    def await_(
        self, done: Callable[[], bool], otherwise: Callable[[], ViolationError], poll_s: float = float("inf")
    ) -> None:
        """Read until it is done. ``poll_s``: it may become so without anything that comes."""
        patience = self.patience()
        while not done():
            left_s = patience.left_s()
            self.read(min(left_s, poll_s))
            if left_s <= 0:
                if done():
                    return
                raise otherwise()

    def _read_wire(self, wire: Wire) -> None:
        try:
            data = wire.sock.recv(_RECEIVE_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self.note(f"{wire.name}: the broker ended the connection")
            self.ended_by_broker(wire)
            return
        with self.together() if self.answers_together and self._gathered is None else nullcontext():
            self.arrived(wire, data)

    def arrived(self, wire: Wire, data: bytes) -> None:
        """Bytes came. Raises :class:`ViolationError`."""
        assert isinstance(wire.decoder, Decoder)
        try:
            for frame in wire.decoder.feed_frames(data):
                self.log.append((time.perf_counter_ns() - self._began_ns, wire.name, "recv", frame, wire.version))
                if len(frame) > wire.most_bytes:
                    text = f"{wire.name}: a packet of {len(frame)} bytes, the client takes {wire.most_bytes:g}"
                    raise ViolationError(Rule.MAXIMUM_PACKET_SIZE, wire.version, text)
                self.received(wire, decode_packet(frame, wire.version))
        except MalformedPacketError as error:
            raise ViolationError(Rule.MALFORMED, wire.version, f"{wire.name}: {error}") from error

    def let_pass(self) -> None:
        """The broker reads what was sent so far before it gets more; of players with wires of ``pieces``."""
        raise NotImplementedError

    @abstractmethod
    def received(self, wire: Wire, packet: Any) -> None:
        """A packet came. Raises :class:`ViolationError` when it may not."""

    @abstractmethod
    def ended_by_broker(self, wire: Wire) -> None:
        """The broker ended the connection. Raises :class:`ViolationError` when it may not."""

    def transcript(self) -> list[WireLine]:
        """The life so far."""
        lines = []
        for t_ns, name, direction, content, version in self.log:
            if isinstance(content, str):
                lines.append(WireLine(t_ns=t_ns, connection=name, direction="event", hex="", decoded=content))
                continue
            if version in (AMQP_091, HTTP_11):
                text = describe_bytes(content) if version == AMQP_091 else content.decode(errors="backslashreplace")
                lines.append(WireLine(t_ns=t_ns, connection=name, direction=direction, hex=content.hex(), decoded=text))
                continue
            try:
                text = describe(decode_packet(content, version))
            except MalformedPacketError as error:
                text = f"MALFORMED: {error}"
            lines.append(WireLine(t_ns=t_ns, connection=name, direction=direction, hex=content.hex(), decoded=text))
        return lines

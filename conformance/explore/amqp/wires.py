"""Connections and channels of the clients of a life, and one that takes no part."""

from __future__ import annotations

import contextlib
import socket
import time
from abc import abstractmethod
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from assay.conformance.explore.amqp.rules import AmqpRule, violation
from assay.conformance.explore.amqp.state import Link
from assay.conformance.explore.control import connected
from assay.conformance.explore.sockets import Sockets, Wire
from assay.conformance.outcome import TargetUnreachableError
from assay.conformance.targets import CapabilityValue, Endpoint
from assay.conformance.targets.amqp import amqp_endpoint, plain
from assay.conformance.wire.amqp091 import (
    AMQP_091,
    FRAME_OVERHEAD_BYTES,
    PROTOCOL_HEADER,
    Arrival,
    Assembler,
    MalformedFrameError,
    Method,
    encode_content,
    encode_frame,
    encode_method,
)

PATIENCE_S = 4.0
POLL_S = 0.01
_RECEIVE_BYTES = 262_144
_MOST_FRAME_BYTES = 131_072
_CAPABILITIES: Mapping[str, Any] = {
    "publisher_confirms": True,
    "consumer_cancel_notify": True,
    "basic.nack": True,
    "authentication_failure_close": True,
}
_PROPERTIES: Mapping[str, Any] = {"product": "assay explore", "capabilities": _CAPABILITIES}


def answers_to(arrival: Arrival, endpoint: Endpoint) -> bytes:
    """What a client says in the handshake; empty: nothing."""
    if arrival.name == "connection.start":
        answer = Method(
            "connection.start-ok",
            client_properties=_PROPERTIES,
            mechanism="PLAIN",
            response=plain(endpoint),
            locale="en_US",
        )
        return encode_method(0, answer)
    if arrival.name == "connection.tune":
        frame_max = frame_max_of(arrival)
        tuned = Method("connection.tune-ok", channel_max=arrival["channel-max"], frame_max=frame_max, heartbeat=0)
        return encode_method(0, tuned) + encode_method(0, Method("connection.open", virtual_host="/"))
    return b""


def frame_max_of(tune: Arrival) -> int:
    return min(tune["frame-max"] or _MOST_FRAME_BYTES, _MOST_FRAME_BYTES)


def outcome_of(arrival: Arrival) -> str:
    """In the words of the registry's variants."""
    if arrival.name in ("channel.close", "connection.close"):
        return f"{arrival.name.partition('.')[0]} {arrival['reply-code']}"
    return "ok"


class AmqpControl:
    """A client that takes no part: round trips, and requests about what should be there. Blocking."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self._sock: socket.socket | None = None
        self._assembler = Assembler()
        self._arrived: deque[Arrival] = deque()
        self._is_channel_open = False

    def request(self, name: str, **fields: Any) -> Arrival:
        """The answer, or the Close that is one. Raises :class:`TargetUnreachableError`."""
        try:
            sock = self._ready()
            if not self._is_channel_open:
                sock.sendall(encode_method(1, Method("channel.open")))
                self._next(sock)
                self._is_channel_open = True
            sock.sendall(encode_method(1, Method(name, **fields)))
            answer = self._next(sock)
        except (OSError, MalformedFrameError) as error:
            self.close()
            message = f"the control connection to {self._endpoint.host}:{self._endpoint.port} failed: {error}"
            raise TargetUnreachableError(message) from error
        if answer.name == "channel.close":
            sock.sendall(encode_method(1, Method("channel.close-ok")))
            self._is_channel_open = False
        elif answer.name == "connection.close":
            self.close()
        return answer

    def _ready(self) -> socket.socket:
        if self._sock is None:
            self._sock = sock = connected(self._endpoint)
            self._assembler, self._arrived, self._is_channel_open = Assembler(), deque(), False
            sock.settimeout(10.0)
            sock.sendall(PROTOCOL_HEADER)
            while (event := self._next(sock)).name != "connection.open-ok":
                sock.sendall(answers_to(event, self._endpoint))
        return self._sock

    def _next(self, sock: socket.socket) -> Arrival:
        while not self._arrived:
            data = sock.recv(_RECEIVE_BYTES)
            if not data:
                message = "the broker ended it"
                raise ConnectionResetError(message)
            self._arrived += [event for event in self._assembler.feed(data) if isinstance(event, Arrival)]
        return self._arrived.popleft()

    def is_gone(self, kind: str, name: str) -> bool:
        """Whether there is no such queue or exchange. Raises :class:`TargetUnreachableError`."""
        return outcome_of(self.request(f"{kind}.declare", **{kind: name}, passive=True)) == "channel 404"

    def round_trip(self) -> float:
        """Seconds. Raises :class:`TargetUnreachableError`."""
        began = time.monotonic()
        self.request("exchange.declare", exchange="amq.direct", type="direct", passive=True)
        return time.monotonic() - began

    def close(self) -> None:
        if self._sock is not None:
            self._sock.close()
            self._sock = None


@dataclass(eq=False)
class AmqpWire(Wire):
    number: int = 0
    is_ready: bool = False
    ended: bool = False
    """We have ended it, or asked for its end."""
    is_closed: bool = False
    """Close was answered."""
    frame_max: int = 4_096
    links: dict[int, Link] = field(default_factory=dict)
    """By channel."""
    next_channel: int = 1


class AmqpClients(Sockets):
    """What a player of AMQP does its work with."""

    def __init__(self, endpoint: Endpoint, capabilities: dict[str, CapabilityValue], patience_s: float) -> None:
        self.capabilities, self.patience_s = capabilities, patience_s
        self.base = endpoint
        self.endpoint = amqp_endpoint(endpoint, capabilities)
        self.control = AmqpControl(self.endpoint)
        self.wires: dict[int, AmqpWire] = {}

    # Connections and channels

    def connection(self, number: int) -> AmqpWire:
        """By its number; it is opened if it is not there."""
        wire = self.wires.get(number)
        if wire is not None and wire.open and not wire.ended:
            return wire
        wire = AmqpWire(
            name=f"c{number}", version=AMQP_091, sock=connected(self.endpoint), decoder=Assembler(), number=number
        )
        self.wires[number] = wire
        self.watch(wire)
        self.send(wire, PROTOCOL_HEADER)
        self.await_(
            lambda: wire.is_ready, lambda: violation(AmqpRule.UNANSWERED, f"{wire.name} does not open", waited=True)
        )
        return wire

    def say(self, link: Link, name: str, **fields: Any) -> None:
        """A method on a channel."""
        link.touched = True
        self.send(self.wires[link.connection], encode_method(link.channel, Method(name, **fields)))

    def say_content(self, link: Link, method: Method, body: bytes, properties: Mapping[str, Any]) -> None:
        wire = self.wires[link.connection]
        part_bytes = wire.frame_max - FRAME_OVERHEAD_BYTES
        self.send(wire, encode_content(link.channel, method, body, properties, part_bytes=part_bytes))

    def round_trip(self) -> float:
        return self.control.round_trip()

    # What comes

    def arrived(self, wire: Wire, data: bytes) -> None:
        assert isinstance(wire, AmqpWire)
        assert isinstance(wire.decoder, Assembler)
        try:
            for frame in wire.decoder.frames(data):
                kind, channel, payload = (
                    getattr(frame, "type", 0),
                    getattr(frame, "channel", 0),
                    getattr(frame, "payload", b""),
                )
                raw = encode_frame(kind, channel, payload)
                self.log.append((time.perf_counter_ns() - self._began_ns, wire.name, "recv", raw, wire.version))
                event = wire.decoder.take(frame)
                if isinstance(event, Arrival):
                    self.received(wire, event)
        except MalformedFrameError as error:
            raise violation(AmqpRule.MALFORMED, f"{wire.name}: {error}") from error

    def received(self, wire: Wire, packet: Any) -> None:
        assert isinstance(wire, AmqpWire)
        arrival: Arrival = packet
        if arrival.channel:
            link = wire.links.get(arrival.channel)
            if wire.ended:
                return
            if link is None:
                raise violation(AmqpRule.UNASKED, f"{wire.name}: {arrival.name} on channel {arrival.channel}")
            self.on_channel(link, arrival)
            return
        match arrival.name:
            case "connection.start" | "connection.tune":
                if arrival.name == "connection.tune":
                    wire.frame_max = frame_max_of(arrival)
                self.send(wire, answers_to(arrival, self.endpoint))
            case "connection.open-ok":
                wire.is_ready = True
            case "connection.close-ok":
                wire.is_closed = True
            case "connection.close":
                self.send(wire, encode_method(0, Method("connection.close-ok")))
                text = f"{wire.name}: closed with {arrival['reply-code']} {arrival['reply-text']}"
                raise violation(AmqpRule.ENDED, text)

    def ended_by_broker(self, wire: Wire) -> None:
        assert isinstance(wire, AmqpWire)
        with contextlib.suppress(KeyError, ValueError):
            self.drop(wire)
        wire.is_closed = True
        if not wire.ended:
            raise violation(AmqpRule.ENDED, f"{wire.name}: the broker ended the connection")

    @abstractmethod
    def on_channel(self, link: Link, arrival: Arrival) -> None:
        """A method came on a channel."""

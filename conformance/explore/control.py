"""A client that takes no part in lives, and how a connection is made. Blocking."""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Collection, Sequence

import msgspec

from assay.conformance.outcome import TargetUnreachableError
from assay.conformance.targets import Endpoint
from assay.conformance.wire import (
    Connack,
    Connect,
    Decoder,
    Disconnect,
    MalformedPacketError,
    Packet,
    Pingreq,
    Pingresp,
    Puback,
    Publish,
    Suback,
    Subscribe,
    Subscription,
    Unsuback,
    Unsubscribe,
    encode,
)

_RECEIVE_BYTES = 262_144
_FIGURES = "$SYS/broker/"
_WINDOW = 10
"""Publishes at QoS 1 that any server takes at a time."""


class _Talk:
    """A connection, and what came on it that is no whole packet yet."""

    def __init__(self, endpoint: Endpoint, version: int) -> None:
        self.sock, self.decoder = connected(endpoint), Decoder(version)
        self.sock.settimeout(10.0)


class Control:
    """A client that takes no part: round trips, the clock, and what is deleted after a life. Blocking."""

    def __init__(self, endpoint: Endpoint, version: int, keep_alive_s: int = 0) -> None:
        self._endpoint, self._version, self._keep_alive_s = endpoint, version, keep_alive_s
        self._talk: _Talk | None = None

    def _ready(self) -> _Talk:
        if self._talk is None:
            self._talk = _Talk(self._endpoint, self._version)
            self._introduce(self._talk, "assayctl")
        return self._talk

    def _introduce(self, talk: _Talk, client_id: str) -> None:
        connect = Connect(version=self._version, client_id=client_id, keep_alive_s=self._keep_alive_s)
        self._exchange(talk, [with_credentials(connect, self._endpoint)], Connack)

    def _exchange(self, talk: _Talk, packets: Sequence[Packet], kind: type[Packet]) -> list[Packet]:
        """Send packets that are answered by one of a kind each, and await those; returns all that came."""
        missing = len(packets)
        found: list[Packet] = []
        try:
            talk.sock.sendall(b"".join(encode(packet, self._version) for packet in packets))
            while missing > 0:
                answers = list(talk.decoder.feed(self._some(talk.sock)))
                missing -= sum(isinstance(answer, kind) for answer in answers)
                found += answers
        except (OSError, MalformedPacketError) as error:
            self.close()
            message = f"the control connection to {self._endpoint.host}:{self._endpoint.port} failed: {error}"
            raise TargetUnreachableError(message) from error
        return found

    def _some(self, sock: socket.socket) -> bytes:
        data = sock.recv(_RECEIVE_BYTES)
        if not data:
            message = "the broker ended it"
            raise ConnectionResetError(message)
        return data

    def round_trip(self) -> float:
        """Seconds from PINGREQ to PINGRESP. Raises :class:`TargetUnreachableError`."""
        began = time.monotonic()
        self._exchange(self._ready(), [Pingreq()], Pingresp)
        return time.monotonic() - began

    def publish(self, *topics: str, payload: bytes = b"", retain: bool = False) -> None:
        """At QoS 1. Raises :class:`TargetUnreachableError`."""
        for at in range(0, len(topics), _WINDOW):
            packets = [
                Publish(topic=topic, payload=payload, qos=1, packet_id=packet_id, retain=retain)
                for packet_id, topic in enumerate(topics[at : at + _WINDOW], 1)
            ]
            self._exchange(self._ready(), packets, Puback)

    def figures(self, names: Collection[str], wait_s: float) -> dict[str, str]:
        """What ``$SYS`` topics of these names below ``broker/`` say at this moment; without what does not come in time.

        Any order is legal between them and other answers. Raises :class:`TargetUnreachableError`.
        """
        deadline = time.monotonic() + wait_s
        filters = tuple(f"{_FIGURES}{name}" for name in names)
        entries = tuple(Subscription(filter=topic, qos=0) for topic in filters)
        told: dict[str, str] = {}
        found = self._exchange(self._ready(), [Subscribe(packet_id=1, subscriptions=entries)], Suback)
        while True:
            told |= {
                packet.topic.removeprefix(_FIGURES): packet.payload.decode()
                for packet in found
                if isinstance(packet, Publish) and packet.topic in filters
            }
            if len(told) == len(filters) or time.monotonic() > deadline:
                break
            found = self._exchange(self._ready(), [Pingreq()], Pingresp)
        self._exchange(self._ready(), [Unsubscribe(packet_id=2, filters=filters)], Unsuback)
        return told

    def end_session(self, client_id: str) -> None:
        """Connect as this client with a clean start, and leave."""
        talk = _Talk(self._endpoint, self._version)
        with contextlib.closing(talk.sock):
            self._introduce(talk, client_id)
            talk.sock.sendall(encode(Disconnect(), self._version))

    def close(self) -> None:
        if self._talk is not None:
            self._talk.sock.close()
            self._talk = None


def connected(endpoint: Endpoint) -> socket.socket:
    try:
        sock = socket.create_connection((endpoint.host, endpoint.port), timeout=5.0)
    except OSError as error:
        message = f"cannot connect to {endpoint.host}:{endpoint.port}: {error.strerror or error}"
        raise TargetUnreachableError(message) from error
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return sock


def with_credentials(packet: Connect, endpoint: Endpoint) -> Connect:
    if endpoint.username is None:
        return packet
    password = None if endpoint.password is None else endpoint.password.encode()
    return msgspec.structs.replace(packet, username=endpoint.username, password=password)

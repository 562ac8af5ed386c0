"""Blocking handshakes of the bench: connect and subscribe, then hand the bare socket over."""

from __future__ import annotations

import socket
import time
from typing import TypeVar

from assay.conformance.targets import Endpoint
from assay.conformance.wire import (
    Connack,
    Connect,
    Decoder,
    MalformedPacketError,
    Packet,
    Properties,
    Suback,
    Subscribe,
    Subscription,
    describe,
    encode,
)
from assay.loadtests.bench.workload import UnsupportedError

HANDSHAKE_TIMEOUT_S = 5.0

_P = TypeVar("_P", bound=Packet)


class HandshakeError(RuntimeError):
    """The broker did not answer CONNECT or SUBSCRIBE as needed; the text shows what came."""


def _answer(connection: socket.socket, version: int, kind: type[_P]) -> _P:
    """The next packet, which must be the only one under way. Raises :class:`HandshakeError`."""
    decoder = Decoder(version)
    deadline = time.monotonic() + HANDSHAKE_TIMEOUT_S
    while time.monotonic() < deadline:
        data = connection.recv(65_536)
        if not data:
            message = f"the broker closed the connection in place of {kind.__name__.upper()}"
            raise HandshakeError(message)
        try:
            packets = decoder.feed(data)
        except MalformedPacketError as error:
            message = f"waiting for {kind.__name__.upper()}: {error}"
            raise HandshakeError(message) from error
        if packets:
            packet = packets[0]
            if not isinstance(packet, kind) or len(packets) > 1 or decoder.pending:
                message = f"expected {kind.__name__.upper()} alone, received {', '.join(map(describe, packets))}"
                raise HandshakeError(message)
            return packet
    message = f"no {kind.__name__.upper()} within {HANDSHAKE_TIMEOUT_S:g} s"
    raise HandshakeError(message)


def connect(
    endpoint: Endpoint, client_id: str, *, version: int = 4, receive_maximum: int | None = None
) -> tuple[socket.socket, Connack]:
    """A blocking socket past CONNACK, and that CONNACK. Raises :class:`HandshakeError`, :class:`OSError`."""
    connection = socket.create_connection((endpoint.host, endpoint.port), timeout=HANDSHAKE_TIMEOUT_S)
    try:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        packet = Connect(
            client_id=client_id,
            version=version,
            keep_alive_s=0,
            username=endpoint.username,
            password=None if endpoint.password is None else endpoint.password.encode(),
            properties=Properties(receive_maximum=receive_maximum),
        )
        connection.sendall(encode(packet, version))
        connack = _answer(connection, version, Connack)
        if connack.reason_code:
            message = f"the broker refused CONNECT: {describe(connack)}"
            raise HandshakeError(message)
    except BaseException:
        connection.close()
        raise
    return connection, connack


def subscribe(connection: socket.socket, topic: str, qos: int, *, version: int = 4, group: str = "") -> None:
    """Subscribe and read SUBACK. Raises :class:`UnsupportedError` when a lower QoS is granted than ``qos``, and
    :class:`HandshakeError` for any other answer.
    """
    properties = Properties(user_property=(("consumer-group", group),) if group else ())
    packet = Subscribe(packet_id=1, subscriptions=(Subscription(filter=topic, qos=qos),), properties=properties)
    connection.sendall(encode(packet, version))
    suback = _answer(connection, version, Suback)
    if suback.packet_id == 1 and len(suback.reason_codes) == 1 and suback.reason_codes[0] < qos:
        message = f"QoS {qos} is granted as {suback.reason_codes[0]}"
        raise UnsupportedError(message)
    if suback.packet_id != 1 or suback.reason_codes != (qos,):
        message = f"SUBSCRIBE to {topic} at QoS {qos} was answered with {describe(suback)}"
        raise HandshakeError(message)

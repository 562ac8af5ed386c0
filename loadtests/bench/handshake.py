"""Blocking MQTT 3.1.1 handshakes of the bench: connect and subscribe, then hand the bare socket over."""

from __future__ import annotations

import socket

from loadtests.bench.frames import remaining_length

HANDSHAKE_TIMEOUT_S = 5.0
SOCKET_BUFFER_BYTES = 1 << 20


class HandshakeError(RuntimeError):
    """The broker did not answer CONNECT or SUBSCRIBE as the standard says; the text shows what came."""


def _text(value: str) -> bytes:
    data = value.encode()
    return len(data).to_bytes(2, "big") + data


def _packet(first_byte: int, body: bytes) -> bytes:
    return bytes([first_byte]) + remaining_length(len(body)) + body


def _exactly(connection: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        part = connection.recv(count - len(data))
        if not part:
            message = f"the broker closed the connection after {data.hex() or 'nothing'}"
            raise HandshakeError(message)
        data += part
    return data


def connect(host: str, port: int, client_id: str) -> socket.socket:
    """A connected socket with CONNACK read. Raises :class:`HandshakeError`, :class:`OSError`."""
    connection = socket.create_connection((host, port), timeout=HANDSHAKE_TIMEOUT_S)
    try:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        body = _text("MQTT") + bytes([4, 0x02, 0, 0]) + _text(client_id)
        connection.sendall(_packet(0x10, body))
        answer = _exactly(connection, 4)
        if answer != b"\x20\x02\x00\x00":
            message = f"CONNECT was answered with {answer.hex()}, expected CONNACK 20020000"
            raise HandshakeError(message)
    except BaseException:
        connection.close()
        raise
    return connection


def subscribe(connection: socket.socket, topic: str, qos: int) -> None:
    """Subscribe and read SUBACK. Raises :class:`HandshakeError` unless ``qos`` itself is granted."""
    connection.sendall(_packet(0x82, b"\x00\x01" + _text(topic) + bytes([qos])))
    answer = _exactly(connection, 5)
    expected = bytes([0x90, 3, 0, 1, qos])
    if answer != expected:
        message = f"SUBSCRIBE was answered with {answer.hex()}, expected {expected.hex()}"
        raise HandshakeError(message)

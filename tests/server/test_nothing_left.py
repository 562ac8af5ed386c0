"""Connections over sockets, however they end: nothing of the broker's is left for the garbage collector."""

from __future__ import annotations

import base64
import contextlib
import os
import socket
import ssl
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import pytest

from assay.reference_broker.broker import Broker
from assay.reference_broker.config import AuthConfig, BrokerConfig, ListenerConfig, MqttConfig, TlsConfig, Transport
from tests.garbage import cycles_left
from tests.server.secure import CONNACK_311, CONNECT_311, WAIT_S

if TYPE_CHECKING:
    from tests.server.secure import Pki

pytest.importorskip("uvloop", reason="the transports of asyncio's own loop are cycles")
PLAIN, TLS, WEBSOCKET, FULL = range(4)
OURS = ("reference_broker", "uvloop", "asyncio.sslproto", "wsproto")


@pytest.fixture(scope="module")
def broker(tls: TlsConfig) -> Iterator[Broker]:
    listeners = (
        ListenerConfig(port=0),
        ListenerConfig(port=0, tls=tls),
        ListenerConfig(port=0, transport=Transport.WEBSOCKET),
        ListenerConfig(port=0, max_connections=1),
    )
    config = BrokerConfig(listeners=listeners, auth=AuthConfig(anonymous=True), mqtt=MqttConfig(max_unread_bytes=1_000))
    with Broker(config) as running:
        yield running


def opened(broker: Broker, listener: int) -> socket.socket:
    address = broker.addresses[listener]
    return socket.create_connection((address.host, address.port), timeout=WAIT_S)


def until_closed(client: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while client.recv(65_536):
            pass
    client.close()


def connected(client: socket.socket) -> None:
    client.sendall(CONNECT_311)
    assert client.recv(4) == CONNACK_311


def says_goodbye(broker: Broker) -> None:
    client = opened(broker, PLAIN)
    connected(client)
    client.sendall(b"\x82\x06\0\1\0\1t\1" + b"\x32\x06\0\1t\0\1x")
    client.sendall(b"\xe0\0")
    until_closed(client)


def is_lost(broker: Broker) -> None:
    client = opened(broker, PLAIN)
    connected(client)
    client.close()


def is_reset(broker: Broker) -> None:
    client = opened(broker, PLAIN)
    connected(client)
    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    client.close()


def says_nothing(broker: Broker) -> None:
    opened(broker, PLAIN).close()


def breaks_a_rule(broker: Broker) -> None:
    client = opened(broker, PLAIN)
    connected(client)
    client.sendall(b"\xf0\1\0\0")
    until_closed(client)
    client = opened(broker, PLAIN)
    client.sendall(b"GET / HTTP/1.1\r\n\r\n")
    until_closed(client)


def is_taken_over(broker: Broker) -> None:
    first, second = opened(broker, PLAIN), opened(broker, PLAIN)
    connected(first)
    connected(second)
    until_closed(first)
    second.close()


def speaks_tls(broker: Broker, context: ssl.SSLContext) -> None:
    client = context.wrap_socket(opened(broker, TLS), server_hostname="127.0.0.1")
    connected(client)
    client.sendall(b"\xe0\0")
    until_closed(client)
    client = context.wrap_socket(opened(broker, TLS), server_hostname="127.0.0.1")
    connected(client)
    client.close()


def fails_to_speak_tls(broker: Broker, context: ssl.SSLContext) -> None:
    client = opened(broker, TLS)
    client.sendall(CONNECT_311)
    until_closed(client)
    opened(broker, TLS).close()


def speaks_websocket(broker: Broker) -> None:
    for last in (b"\x88\x80\0\0\0\0", b"\x82\x82\0\0\0\0\xe0\0", b"", b"\x81\x81\0\0\0\0x"):
        client = opened(broker, WEBSOCKET)
        key = base64.b64encode(os.urandom(16))
        client.sendall(
            b"GET /mqtt HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Key: " + key
        )
        client.sendall(b"\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Protocol: mqtt\r\n\r\n")
        assert b"101" in client.recv(4_096)
        client.sendall(b"\x82" + bytes([0x80 | len(CONNECT_311)]) + b"\0\0\0\0" + CONNECT_311)
        assert client.recv(64)[-4:] == CONNACK_311
        client.sendall(last)
        if last:
            until_closed(client)
        client.close()
    client = opened(broker, WEBSOCKET)
    client.sendall(b"GET /nowhere HTTP/1.1\r\n\r\n")
    until_closed(client)


def is_one_too_many(broker: Broker) -> None:
    first = opened(broker, FULL)
    connected(first)
    until_closed(opened(broker, FULL))
    first.close()


def does_not_read(broker: Broker) -> None:
    client = opened(broker, PLAIN)
    connected(client)
    client.sendall(b"\x82\x06\0\1\0\1f\0")
    for _ in range(20):
        broker.publish("f", b"x" * 1_000_000)
    client.close()


LIVES = (
    says_goodbye,
    is_lost,
    is_reset,
    says_nothing,
    breaks_a_rule,
    is_taken_over,
    speaks_websocket,
    is_one_too_many,
    does_not_read,
)
TLS_LIVES = (speaks_tls, fails_to_speak_tls)


def left_after(broker: Broker, live: Callable[[], None]) -> dict[str, int]:
    def settled() -> None:
        live()
        deadline = time.monotonic() + WAIT_S
        while broker.snapshot().connections and time.monotonic() < deadline:
            pass
        broker.snapshot()
        broker.snapshot()

    return dict(cycles_left(settled, of=OURS))


@pytest.mark.parametrize("life", LIVES)
def test_no_cycle_is_left(broker: Broker, life: Callable[[Broker], None]) -> None:
    assert left_after(broker, lambda: life(broker)) == {}


@pytest.mark.parametrize("life", TLS_LIVES)
def test_no_cycle_is_left_over_tls(broker: Broker, pki: Pki, life: Callable[[Broker, ssl.SSLContext], None]) -> None:
    context = pki.client_context()
    assert left_after(broker, lambda: life(broker, context)) == {}

"""Idle sockets, and TLS handshakes that never end, keep nobody out who connects promptly."""

from __future__ import annotations

import socket
from contextlib import ExitStack

import pytest

from assay.reference_broker.broker import Broker
from assay.reference_broker.config import BrokerConfig, ListenerConfig, MqttConfig, TlsConfig, Transport
from tests.server.secure import CONNACK_311, CONNECT_311, WAIT_S, Pki, connected, listening, secured


def _idle(broker: Broker, stack: ExitStack) -> socket.socket:
    return stack.enter_context(socket.create_connection((broker.host, broker.port), timeout=WAIT_S))


def _connects(broker: Broker, client_id: bytes, stack: ExitStack) -> socket.socket:
    client = _idle(broker, stack)
    client.sendall(CONNECT_311[:-1] + client_id)
    assert client.recv(4) == CONNACK_311
    return client


@pytest.mark.parametrize("transport", Transport)
def test_idle_sockets(transport: Transport) -> None:
    listener = ListenerConfig(port=0, transport=transport)
    with listening(listener, mqtt=MqttConfig(max_connecting=5)) as broker, ExitStack() as stack:
        idle = [_idle(broker, stack) for _ in range(6)]
        assert idle[0].recv(1) == b"", "the one that has waited longest"
        if transport is Transport.TCP:
            _connects(broker, b"1", stack)
            idle[2].sendall(CONNECT_311[:-1] + b"2")
            assert idle[2].recv(4) == CONNACK_311


def test_idle_sockets_give_way_where_no_connection_is_left() -> None:
    listener = ListenerConfig(port=0, max_connections=3)
    with listening(listener) as broker, ExitStack() as stack:
        idle = [_idle(broker, stack) for _ in range(3)]
        for number, client_id in enumerate((b"1", b"2", b"3")):
            _connects(broker, client_id, stack)
            assert idle[number].recv(1) == b""
        refused = _idle(broker, stack)
        assert refused.recv(1) == b"", "all that there are have a client"


def test_handshakes_under_way(pki: Pki, tls: TlsConfig) -> None:
    config = BrokerConfig(listeners=(secured(tls),), mqtt=MqttConfig(max_handshakes=4))
    context = pki.client_context()
    with Broker(config) as broker, ExitStack() as stack:
        stalled = [_idle(broker, stack) for _ in range(4)]
        stalled[1].sendall(b"\x16\x03\x01")
        for _ in range(3):
            # It is over when the next one comes.
            with connected(broker, context) as client:
                client.sendall(CONNECT_311)
                assert client.recv(4) == CONNACK_311
        assert stalled[0].recv(1) == b"", "the one that has waited longest"
        for _ in range(2):
            _idle(broker, stack)
        assert stalled[1].recv(1) == b""
        stalled[3].setblocking(False)
        with pytest.raises(BlockingIOError):
            stalled[3].recv(1)


def test_more_handshakes_at_once_than_may_be_under_way(tls: TlsConfig) -> None:
    with listening(secured(tls), mqtt=MqttConfig(max_handshakes=1)) as broker, ExitStack() as stack:
        idle = [_idle(broker, stack) for _ in range(100)]
        for client in idle[:-1]:
            assert client.recv(1) == b""

"""A bug of the broker that one connection meets ends that connection, and costs nobody else a turn."""

from __future__ import annotations

import socket

import pytest

from assay.reference_broker.broker import Broker
from assay.reference_broker.config import AuthConfig, BrokerConfig, ListenerConfig
from assay.reference_broker.mqtt.connections.connection import MqttConnection
from tests.server.secure import CONNACK_311, CONNECT_311, WAIT_S

PINGREQ, PINGRESP = b"\xc0\0", b"\xd0\0"
MANY = PINGREQ * 1_500
"""More than a turn handles."""


def connected(broker: Broker, name: bytes) -> socket.socket:
    """A client of that name, of one letter."""
    address = broker.addresses[0]
    client = socket.create_connection((address.host, address.port), timeout=WAIT_S)
    client.sendall(CONNECT_311[:-1] + name)
    assert client.recv(4) == CONNACK_311
    return client


def until_closed(client: socket.socket) -> None:
    try:
        while client.recv(65_536):
            pass
    except ConnectionError:
        pass
    finally:
        client.close()


@pytest.mark.parametrize("where", ["_go_on_with", "take_output"])
def test_who_meets_a_bug_is_cut_and_others_are_served(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, where: str
) -> None:
    config = BrokerConfig(listeners=(ListenerConfig(port=0),), auth=AuthConfig(anonymous=True))
    victims: list[MqttConnection] = []
    original = getattr(MqttConnection, where)

    def with_bug(self: MqttConnection, *rest: object) -> object:
        if self in victims:
            message = "planted"
            raise RuntimeError(message)
        return original(self, *rest)

    with Broker(config) as broker:
        victim, other = connected(broker, b"v"), connected(broker, b"o")
        assert broker._running is not None
        victims += [each for each in broker._running.driver.node._connections if each.client_id == "v"]
        monkeypatch.setattr(MqttConnection, where, with_bug)
        victim.sendall(MANY)
        until_closed(victim)
        for _ in range(3):
            other.sendall(PINGREQ)
            assert other.recv(2) == PINGRESP
        other.close()
    assert "by a bug of the broker" in caplog.text

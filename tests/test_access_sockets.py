"""Users, access rules and SCRAM over real sockets: paho for passwords, raw packets for what paho cannot do."""

from __future__ import annotations

import queue
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import paho.mqtt.client as paho
import pytest

from assay.conformance.wire import Auth, Connack, Connect, Decoder, Disconnect, Packet, Properties, encode
from assay.reference_broker.auth import hash_password, scram_credentials
from assay.reference_broker.broker import Broker
from assay.reference_broker.config import (
    AclConfig,
    AclRuleConfig,
    AuthConfig,
    BrokerConfig,
    ListenerConfig,
    Permission,
    UserConfig,
)

if TYPE_CHECKING:
    from tests.conftest import ScramClient

WAIT_S = 10.0
METHOD = "SCRAM-SHA-256"


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """Ann from the password file, Bob with SCRAM; everybody has topics of their own."""
    path: Path = tmp_path_factory.mktemp("auth") / "users"
    path.write_text(f"ann:{hash_password(b'secret')}\n", encoding="utf-8")
    bob = UserConfig(username="bob", scram_sha_256=scram_credentials("hidden"))
    rules = (AclRuleConfig(topic="%u/#", access=Permission.READWRITE),)
    config = BrokerConfig(
        listeners=(ListenerConfig(port=0),),
        auth=AuthConfig(users=(bob,), password_file=str(path)),
        acl=AclConfig(rules=rules),
    )
    with Broker(config) as running:
        yield running


def _paho(broker: Broker, version: int, password: str) -> tuple[paho.Client, queue.Queue[tuple[str, object]]]:
    events: queue.Queue[tuple[str, object]] = queue.Queue()
    client = paho.Client(paho.CallbackAPIVersion.VERSION2, protocol=version)
    client.username_pw_set("ann", password)
    client.on_connect = lambda *arguments: events.put(("connect", arguments[3].is_failure))
    client.on_subscribe = lambda *arguments: events.put(("subscribe", [code.value for code in arguments[3]]))
    client.on_message = lambda _client, _data, message: events.put(("message", message.topic))
    client.on_publish = lambda *arguments: events.put(("publish", arguments[3].value))
    client.connect(broker.host, broker.port)
    client.loop_start()
    return client, events


@pytest.mark.parametrize("version", [paho.MQTTv311, paho.MQTTv5])
def test_paho_with_password_and_rules(guarded: Broker, version: int) -> None:
    client, events = _paho(guarded, version, "secret")
    try:
        assert events.get(timeout=WAIT_S) == ("connect", False)
        client.subscribe([("ann/#", 1), ("bob/#", 1), ("#", 1)])
        refused = 0x87 if version == paho.MQTTv5 else 0x80
        assert events.get(timeout=WAIT_S) == ("subscribe", [1, refused, refused])
        client.publish("bob/x", b"", 0)  # refused, of which nobody hears
        client.publish("ann/x", b"", 1)
        arrived = sorted(events.get(timeout=WAIT_S)[0] for _ in range(3))
        assert arrived == ["message", "publish", "publish"]
        if version == paho.MQTTv5:
            client.publish("bob/x", b"", 1)
            assert events.get(timeout=WAIT_S) == ("publish", 0x87)
    finally:
        client.disconnect()
        client.loop_stop()


@pytest.mark.parametrize("version", [paho.MQTTv311, paho.MQTTv5])
def test_paho_with_a_wrong_password(guarded: Broker, version: int) -> None:
    client, events = _paho(guarded, version, "wrong")
    try:
        assert events.get(timeout=WAIT_S) == ("connect", True)
    finally:
        client.disconnect()
        client.loop_stop()


class _Raw:
    """Packets over a plain socket."""

    def __init__(self, broker: Broker) -> None:
        self.socket = socket.create_connection((broker.host, broker.port), WAIT_S)
        self.decoder = Decoder(5)
        self.arrived: list[Packet] = []

    def send(self, packet: Packet) -> None:
        self.socket.sendall(encode(packet, 5))

    def next(self) -> Packet | None:
        """The next packet; None at the end of the connection."""
        while not self.arrived:
            data = self.socket.recv(65_536)
            if not data:
                return None
            self.arrived += self.decoder.feed(data)
        return self.arrived.pop(0)


@pytest.fixture
def raw(guarded: Broker) -> Iterator[_Raw]:
    client = _Raw(guarded)
    with client.socket:
        yield client


def _data(data: bytes) -> Properties:
    return Properties(authentication_method=METHOD, authentication_data=data)


def _challenge(raw: _Raw) -> bytes:
    packet = raw.next()
    assert isinstance(packet, Auth)
    assert packet.reason_code == 0x18
    assert packet.properties.authentication_data is not None
    return packet.properties.authentication_data


def test_scram_over_a_socket_and_again(raw: _Raw, scram_client: type[ScramClient]) -> None:
    scram = scram_client("bob", "hidden")
    raw.send(Connect(client_id="raw", version=5, properties=_data(scram.first())))
    raw.send(Auth(reason_code=0x18, properties=_data(scram.final(_challenge(raw)))))
    connack = raw.next()
    assert isinstance(connack, Connack)
    assert connack.reason_code == 0
    assert connack.properties.authentication_method == METHOD
    assert scram.trusts(connack.properties.authentication_data)
    again = scram_client("bob", "hidden", nonce="second")
    raw.send(Auth(reason_code=0x19, properties=_data(again.first())))
    raw.send(Auth(reason_code=0x18, properties=_data(again.final(_challenge(raw)))))
    done = raw.next()
    assert isinstance(done, Auth)
    assert done.reason_code == 0
    assert again.trusts(done.properties.authentication_data)
    raw.send(Disconnect())
    assert raw.next() is None


@pytest.mark.parametrize(("user", "password"), [("bob", "wrong"), ("nobody", "hidden"), ("ann", "secret")])
def test_refused_scram_over_a_socket(raw: _Raw, scram_client: type[ScramClient], user: str, password: str) -> None:
    """A user without SCRAM credentials is like none."""
    scram = scram_client(user, password)
    raw.send(Connect(client_id="raw", version=5, properties=_data(scram.first())))
    raw.send(Auth(reason_code=0x18, properties=_data(scram.final(_challenge(raw)))))
    connack = raw.next()
    assert isinstance(connack, Connack)
    assert connack.reason_code == 0x87
    assert raw.next() is None

"""Server redirection (5.0 section 4.11): at CONNECT, at any time, and when the broker stops."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING, Any

import pytest

from assay.reference_broker.broker import Broker
from assay.reference_broker.config import (
    BrokerConfig,
    ConfigError,
    ListenerConfig,
    ServerReferenceConfig,
    ServerReferenceMode,
    parse_config,
)
from assay.reference_broker.mqtt.wire import packets as p
from assay.reference_broker.mqtt.wire.codec import decode_packet, encode_packet
from assay.reference_broker.mqtt.wire.errors import Reason
from assay.reference_broker.mqtt.wire.packets import NO_PROPERTIES, V5, V311, Properties

if TYPE_CHECKING:
    from tests.mqtt.conftest import World

VERSIONS = pytest.mark.parametrize("version", [V311, V5])
MODES = pytest.mark.parametrize(
    ("mode", "reason"),
    [("use_another_server", Reason.USE_ANOTHER_SERVER), ("server_moved", Reason.SERVER_MOVED)],
)
ADDRESS = "other.example:1884 third.example"


def configured(**reference: Any) -> BrokerConfig:
    return parse_config({"server_reference": {"address": ADDRESS, **reference}})


@MODES
@VERSIONS
def test_connect_is_answered_with_the_other_server(
    make_world: type[World], version: int, mode: str, reason: Reason
) -> None:
    world = make_world(configured(mode=mode, at_connect=True))
    client = world.open(version)
    (answer,) = client.send(p.Connect(version=version, client_id="c"), p.Pingreq())
    assert isinstance(answer, p.Connack)
    assert client.closed
    assert not world.node.state.sessions
    assert client.connection.error is not None
    if version == V5:
        assert answer.reason == reason
        assert answer.properties.server_reference == ADDRESS
        assert "MQTT-3.1.4-2" in (answer.properties.reason_string or "")
    else:
        assert answer == p.Connack(reason=3)
        assert client.connection.error.statement == "MQTT-3.2.2-5"


@pytest.mark.parametrize("maximum", range(5, 150))
def test_what_the_client_has_no_room_for_is_left_out(make_world: type[World], maximum: int) -> None:
    world = make_world(configured(at_connect=True))
    client = world.open()
    client.send(p.Connect(version=V5, client_id="c", properties=Properties(maximum_packet_size=maximum)))
    (answer,) = client.inbox
    assert isinstance(answer, p.Connack)
    assert answer.reason == Reason.USE_ANOTHER_SERVER
    assert len(encode_packet(answer, V5)) <= maximum
    if answer.properties.reason_string is not None:
        assert answer.properties.server_reference == ADDRESS, "the explanation goes first"
    if maximum > 100:
        assert answer.properties.server_reference == ADDRESS


def test_without_problem_information_there_is_no_reason_string(make_world: type[World]) -> None:
    world = make_world(configured(at_connect=True))
    client = world.open()
    client.send(p.Connect(version=V5, client_id="c", properties=Properties(request_problem_information=0)))
    (answer,) = client.inbox
    assert isinstance(answer, p.Connack)
    assert answer.properties == Properties(server_reference=ADDRESS)


@MODES
@VERSIONS
def test_connected_clients_are_sent_away(make_world: type[World], version: int, mode: str, reason: Reason) -> None:
    world = make_world()
    watcher = world.subscribed("gone")
    will = p.WillFields(topic="gone", payload=b"c", qos=0, retain=False, properties=NO_PROPERTIES)
    client, other = world.connect("c", version, will=will), world.connect("d", version)
    reference = ServerReferenceConfig(address=ADDRESS, mode=ServerReferenceMode(mode))
    client.take()
    assert world.node.send_away({"c", "unknown"}, reference, world.now) == 1
    world.turn()
    assert client.closed
    assert not other.closed
    assert [packet.payload for packet in watcher.publishes()] == [b"c"], "its will is published"
    if version == V5:
        (last,) = client.inbox
        assert isinstance(last, p.Disconnect)
        assert (last.reason, last.properties.server_reference) == (reason, ADDRESS)
    else:
        assert client.inbox == []


def test_everybody_is_sent_away_but_only_who_is_connected(make_world: type[World]) -> None:
    world = make_world(configured())
    clients = [world.connect(str(n), V5) for n in range(3)]
    world.open()
    assert world.node.send_away(None, ServerReferenceConfig(address="x"), world.now) == 3
    world.turn()
    assert all(client.closed for client in clients)
    assert world.node.send_away(None, ServerReferenceConfig(address="x"), world.now) == 0


@pytest.mark.parametrize("at_shutdown", [True, False])
@VERSIONS
def test_a_broker_that_stops_says_where_to_go(make_world: type[World], version: int, at_shutdown: bool) -> None:
    world = make_world(configured(at_shutdown=at_shutdown))
    client = world.connect("c", version)
    client.take()
    world.node.close(world.now)
    client.flush()
    assert client.closed
    if version == V311:
        assert client.inbox == []
    else:
        (last,) = client.inbox
        assert isinstance(last, p.Disconnect)
        expected = (Reason.USE_ANOTHER_SERVER, ADDRESS) if at_shutdown else (Reason.SERVER_SHUTTING_DOWN, None)
        assert (last.reason, last.properties.server_reference) == expected


def _connected(port: int) -> socket.socket:
    peer = socket.create_connection(("127.0.0.1", port), timeout=10)
    peer.sendall(encode_packet(p.Connect(version=V5, client_id="c"), V5))
    assert peer.recv(2)[0] == 0x20
    return peer


def _rest(peer: socket.socket) -> bytes:
    data = b""
    while chunk := peer.recv(4_096):
        data += chunk
    return data


@pytest.mark.parametrize("how", ["send_away", "stop"])
def test_over_a_real_socket(how: str) -> None:
    reference = ServerReferenceConfig(address="other.example")
    config = BrokerConfig(listeners=(ListenerConfig(port=0),), server_reference=reference)
    with Broker(config) as broker, _connected(broker.port) as peer:
        if how == "stop":
            broker.stop()
        else:
            assert broker.send_away() == 1
        data = _rest(peer)
    farewell = data[data.rindex(b"\xe0") :]
    packet = decode_packet(farewell[0], farewell, 2, len(farewell), V5)
    assert isinstance(packet, p.Disconnect)
    assert packet.reason == Reason.USE_ANOTHER_SERVER
    assert packet.properties.server_reference == "other.example"


def test_without_an_address_nobody_can_be_sent_away() -> None:
    with Broker() as broker, pytest.raises(ValueError, match="server_reference"):
        broker.send_away()


@pytest.mark.parametrize("address", ["", "  ", "a\0b", "x" * 1_025])
def test_an_address_that_names_nothing_is_refused(address: str) -> None:
    with pytest.raises(ConfigError, match=r"server_reference\.address"):
        parse_config({"server_reference": {"address": address}})

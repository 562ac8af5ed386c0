"""Enhanced authentication over MQTT 5: the exchange before CONNACK, re-authentication, and every way to break it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from assay.reference_broker.auth_scram import derive_credentials
from assay.reference_broker.config import AuthConfig, BrokerConfig, MqttConfig, UserConfig
from assay.reference_broker.mqtt.wire import packets as p
from assay.reference_broker.mqtt.wire.codec import encode_packet
from assay.reference_broker.mqtt.wire.errors import Reason
from assay.reference_broker.mqtt.wire.packets import V5, V311, Properties

if TYPE_CHECKING:
    from tests.conftest import ScramClient
    from tests.mqtt.conftest import Client, World

METHOD = "SCRAM-SHA-256"
ANN = UserConfig(username="ann", scram_sha_256=derive_credentials("secret", b"s" * 16, 4096).encode())
BOB = UserConfig(username="bob", scram_sha_256=derive_credentials("hidden", b"t" * 16, 4096).encode())
CONFIG = BrokerConfig(auth=AuthConfig(users=(ANN, BOB)), mqtt=MqttConfig(connect_timeout_s=10))


@pytest.fixture
def world(make_world: type[World]) -> World:
    return make_world(CONFIG)


def connect(
    data: bytes | None, method: str = METHOD, *, client_id: str = "c", will: p.WillFields | None = None
) -> p.Connect:
    properties = Properties(authentication_method=method, authentication_data=data)
    return p.Connect(version=V5, client_id=client_id, will=will, properties=properties)


def auth(data: bytes | None, reason: int = Reason.CONTINUE_AUTHENTICATION, method: str | None = METHOD) -> p.Auth:
    return p.Auth(reason=reason, properties=Properties(authentication_method=method, authentication_data=data))


def challenge(answers: list[p.Packet]) -> bytes:
    """The data of the one AUTH packet that continues."""
    (packet,) = answers
    assert isinstance(packet, p.Auth)
    assert packet.reason == Reason.CONTINUE_AUTHENTICATION
    assert packet.properties.authentication_method == METHOD
    return packet.properties.authentication_data or b""


def logged_in(world: World, scram: ScramClient, client_id: str = "c", will: p.WillFields | None = None) -> Client:
    client = world.open()
    first = challenge(client.send(connect(scram.first(), client_id=client_id, will=will)))
    (connack,) = client.send(auth(scram.final(first)))
    assert isinstance(connack, p.Connack)
    assert connack.reason == 0
    assert connack.properties.authentication_method == METHOD
    assert scram.trusts(connack.properties.authentication_data)
    client.take()
    return client


def statement_of(client: Client) -> str:
    """Why the broker ended the connection: the id in its log, which is also in the reason string."""
    error = client.connection.error
    assert client.closed
    assert error is not None
    last = client.inbox[-1]
    assert isinstance(last, p.Connack | p.Disconnect)
    assert last.reason == error.reason
    assert error.statement in (last.properties.reason_string or "")
    return error.statement


def test_connect_with_scram(world: World, scram_client: type[ScramClient]) -> None:
    client = logged_in(world, scram_client("ann", "secret"))
    assert client.connection.username == "ann"
    (answer,) = client.send(p.Pingreq())
    assert isinstance(answer, p.Pingresp)


def test_connect_without_first_data(world: World, scram_client: type[ScramClient]) -> None:
    client, scram = world.open(), scram_client("ann", "secret")
    assert challenge(client.send(connect(None))) == b""
    first = challenge(client.send(auth(scram.first())))
    (connack,) = client.send(auth(scram.final(first)))
    assert isinstance(connack, p.Connack)
    assert scram.trusts(connack.properties.authentication_data)


@pytest.mark.parametrize(("user", "password"), [("ann", "wrong"), ("nobody", "secret"), ("bob", "secret")])
def test_a_wrong_proof_is_not_authorized(
    world: World, scram_client: type[ScramClient], user: str, password: str
) -> None:
    client, scram = world.open(), scram_client(user, password)
    first = challenge(client.send(connect(scram.first())))
    (connack,) = client.send(auth(scram.final(first)))
    assert isinstance(connack, p.Connack)
    assert connack.reason == Reason.NOT_AUTHORIZED
    assert connack.properties.authentication_data is None
    assert statement_of(client) == "MQTT-4.12.0-4"
    assert not world.node.state.sessions


@pytest.mark.parametrize("method", ["SCRAM-SHA-1", "scram-sha-256", "", "SCRAM-SHA-256-PLUS"])
def test_an_unknown_method(world: World, method: str) -> None:
    client = world.open()
    (connack,) = client.send(connect(b"n,,n=ann,r=x", method))
    assert isinstance(connack, p.Connack)
    assert connack.reason == Reason.BAD_AUTHENTICATION_METHOD
    assert statement_of(client) == "MQTT-4.12.0-1"


def test_scram_is_not_offered_without_users_who_have_it(make_world: type[World]) -> None:
    client = make_world().open()
    (connack,) = client.send(connect(b"n,,n=ann,r=x"))
    assert isinstance(connack, p.Connack)
    assert connack.reason == Reason.BAD_AUTHENTICATION_METHOD


def test_data_without_a_method(world: World) -> None:
    client = world.open()
    client.send(p.Connect(version=V5, client_id="c", properties=Properties(authentication_data=b"x")))
    assert statement_of(client) == "MQTT-4.13.1-1"


@pytest.mark.parametrize(
    "packet",
    [
        p.Publish(topic="a", payload=b"x"),
        p.Publish(topic="a", payload=b"x", qos=1, packet_id=1),
        p.Acknowledgement(type=p.PacketType.PUBACK, packet_id=1),
        p.Subscribe(packet_id=1, requests=(p.SubscriptionRequest(topic_filter="a"),)),
        p.Pingreq(),
        connect(b"n,,n=ann,r=x"),
    ],
    ids=lambda packet: type(packet).__name__,
)
@pytest.mark.parametrize("together", [False, True])
def test_other_packets_before_connack(world: World, packet: p.Packet, together: bool) -> None:
    """Whether they come with CONNECT or after the challenge: an error, and they are not acted upon."""
    watcher_sessions = len(world.node.state.sessions)
    client = world.open()
    if together:
        client.send(connect(b"n,,n=ann,r=x"), packet)
    else:
        client.send(connect(b"n,,n=ann,r=x"))
        client.send(packet)
    assert isinstance(client.inbox[0], p.Auth)
    assert isinstance(client.inbox[1], p.Connack)
    assert statement_of(client) == "MQTT-3.1.2-30"
    assert len(world.node.state.sessions) == watcher_sessions
    assert world.node.state.published == 0


def test_disconnect_before_connack_ends_it_without_a_word(world: World) -> None:
    client = world.open()
    client.send(connect(b"n,,n=ann,r=x"))
    assert client.send(p.Disconnect()) == []
    assert client.closed
    assert client.connection.error is None


@pytest.mark.parametrize(
    ("packet", "statement", "reason"),
    [
        (auth(b"x", method=None), "MQTT-4.12.0-5", Reason.PROTOCOL_ERROR),
        (auth(b"x", method="OTHER"), "MQTT-4.12.0-5", Reason.PROTOCOL_ERROR),
        (auth(b"x", Reason.REAUTHENTICATE), "MQTT-4.12.0-3", Reason.PROTOCOL_ERROR),
        (auth(b"x", Reason.SUCCESS), "MQTT-4.12.0-3", Reason.PROTOCOL_ERROR),
        (auth(None), "MQTT-4.12.0-4", Reason.NOT_AUTHORIZED),
        (auth(b""), "MQTT-4.12.0-4", Reason.NOT_AUTHORIZED),
        (auth(b"\0" * 5000), "MQTT-4.12.0-4", Reason.NOT_AUTHORIZED),
    ],
)
def test_wrong_auth_packets_before_connack(world: World, packet: p.Auth, statement: str, reason: Reason) -> None:
    client = world.open()
    client.send(connect(b"n,,n=ann,r=x"))
    client.send(packet)
    assert statement_of(client) == statement
    assert client.connection.error is not None
    assert client.connection.error.reason == reason


def test_an_auth_packet_without_reason_and_properties(world: World) -> None:
    client = world.open()
    client.send(connect(None))
    client.send_bytes(b"\xf0\x00")
    assert statement_of(client) == "MQTT-4.12.0-5"


def test_auth_from_a_311_client_is_malformed(make_world: type[World]) -> None:
    world = make_world()
    client = world.connect("old", V311)
    client.send_bytes(encode_packet(auth(b"x"), V5))
    assert client.closed
    assert client.connection.error is not None
    assert client.connection.error.statement == "MQTT-4.8.0-1"


def test_auth_as_the_first_packet(world: World) -> None:
    client = world.open()
    client.send(auth(b"x"))
    assert client.connection.error is not None
    assert client.connection.error.statement == "MQTT-3.1.0-1"


def test_auth_from_a_client_that_named_no_method(make_world: type[World]) -> None:
    world = make_world()
    client = world.connect("plain")
    client.send(auth(b"x", Reason.REAUTHENTICATE))
    assert statement_of(client) == "MQTT-4.12.0-7"


def test_the_exchange_has_the_time_that_connect_has(world: World) -> None:
    client = world.open()
    world.wait(4)
    client.send(connect(None))
    world.wait(4)
    client.send(auth(b"n,,n=ann,r=x"))
    assert not client.closed
    world.wait(2.5)
    assert statement_of(client) == "MQTT-4.12.0-4"
    assert world.node.next_deadline() is None


def test_a_client_that_takes_no_packet_of_that_size(world: World) -> None:
    client = world.open()
    small = Properties(authentication_method=METHOD, authentication_data=b"n,,n=ann,r=x", maximum_packet_size=40)
    client.send(p.Connect(version=V5, client_id="c", properties=small))
    (connack,) = client.inbox
    assert isinstance(connack, p.Connack)
    assert connack.reason == Reason.PACKET_TOO_LARGE
    assert client.closed


def test_every_cut_of_the_exchange(make_world: type[World], scram_client: type[ScramClient]) -> None:
    world, scram = make_world(CONFIG), scram_client("ann", "secret")
    client = world.open()
    for byte in encode_packet(connect(scram.first()), V5):
        client.send_bytes(bytes([byte]))
    for byte in encode_packet(auth(scram.final(challenge(client.take()))), V5):
        client.send_bytes(bytes([byte]))
    (connack,) = client.take()
    assert isinstance(connack, p.Connack)
    assert connack.reason == 0


# -- re-authentication -----------------------------------------------------------------------------------------------


def test_re_authentication_beside_other_packets(world: World, scram_client: type[ScramClient]) -> None:
    client = logged_in(world, scram_client("ann", "secret"))
    for _ in range(2):
        scram = scram_client("ann", "secret", nonce="again")
        first = challenge(client.send(auth(scram.first(), Reason.REAUTHENTICATE)))
        (pong,) = client.send(p.Pingreq())
        assert isinstance(pong, p.Pingresp), "the old authentication holds meanwhile"
        (done,) = client.send(auth(scram.final(first)))
        assert isinstance(done, p.Auth)
        assert done.reason == Reason.SUCCESS
        assert done.properties.authentication_method == METHOD
        assert scram.trusts(done.properties.authentication_data)
    world.wait(60)
    assert not client.closed, "no timer is left of it"


def test_re_authentication_may_start_without_data(world: World, scram_client: type[ScramClient]) -> None:
    client, scram = logged_in(world, scram_client("ann", "secret")), scram_client("ann", "secret")
    assert challenge(client.send(auth(None, Reason.REAUTHENTICATE))) == b""
    first = challenge(client.send(auth(scram.first())))
    (done,) = client.send(auth(scram.final(first)))
    assert isinstance(done, p.Auth)
    assert done.reason == Reason.SUCCESS


@pytest.mark.parametrize(("user", "password"), [("ann", "wrong"), ("bob", "hidden")])
def test_failed_re_authentication_ends_the_connection_and_sends_the_will(
    world: World, scram_client: type[ScramClient], user: str, password: str
) -> None:
    """With a wrong password, and as somebody else."""
    watcher = logged_in(world, scram_client("bob", "hidden"), "watcher")
    watcher.send(p.Subscribe(packet_id=1, requests=(p.SubscriptionRequest(topic_filter="will"),)))
    will = p.WillFields(topic="will", payload=b"gone")
    client, scram = logged_in(world, scram_client("ann", "secret"), will=will), scram_client(user, password)
    first = challenge(client.send(auth(scram.first(), Reason.REAUTHENTICATE)))
    (end,) = client.send(auth(scram.final(first)))
    assert isinstance(end, p.Disconnect)
    assert end.reason == Reason.NOT_AUTHORIZED
    assert statement_of(client) == "MQTT-4.12.1-2"
    assert [message.payload for message in watcher.publishes()] == [b"gone"]


@pytest.mark.parametrize(
    ("packet", "statement"),
    [
        (auth(b"n,,n=ann,r=x", Reason.REAUTHENTICATE, "OTHER"), "MQTT-4.12.1-1"),
        (auth(b"n,,n=ann,r=x", Reason.REAUTHENTICATE, None), "MQTT-4.12.0-5"),
        (auth(b"n,,n=ann,r=x"), "MQTT-4.12.1-1"),
        (auth(b"n,,n=ann,r=x", Reason.SUCCESS), "MQTT-4.12.1-1"),
        (auth(b"nonsense", Reason.REAUTHENTICATE), "MQTT-4.12.1-2"),
    ],
)
def test_wrong_starts_of_re_authentication(
    world: World, scram_client: type[ScramClient], packet: p.Auth, statement: str
) -> None:
    client = logged_in(world, scram_client("ann", "secret"))
    client.send(packet)
    assert isinstance(client.inbox[-1], p.Disconnect)
    assert statement_of(client) == statement


@pytest.mark.parametrize(
    ("packet", "statement"),
    [
        (auth(b"n,,n=ann,r=x", Reason.REAUTHENTICATE), "MQTT-4.12.0-3"),
        (auth(None), "MQTT-4.12.1-2"),
        (auth(b"c=biws,r=x,p=AAAA"), "MQTT-4.12.1-2"),
    ],
)
def test_wrong_steps_of_re_authentication(
    world: World, scram_client: type[ScramClient], packet: p.Auth, statement: str
) -> None:
    client = logged_in(world, scram_client("ann", "secret"))
    client.send(auth(b"n,,n=ann,r=x", Reason.REAUTHENTICATE))
    client.send(packet)
    assert statement_of(client) == statement


def test_re_authentication_has_a_time_limit(world: World, scram_client: type[ScramClient]) -> None:
    client = logged_in(world, scram_client("ann", "secret"))
    client.send(auth(b"n,,n=ann,r=x", Reason.REAUTHENTICATE))
    world.wait(9)
    assert not client.closed
    world.wait(2)
    assert statement_of(client) == "MQTT-4.12.1-2"


def test_no_timer_outlives_a_connection(world: World, scram_client: type[ScramClient]) -> None:
    client = logged_in(world, scram_client("ann", "secret"))
    client.send(auth(b"n,,n=ann,r=x", Reason.REAUTHENTICATE))
    client.lose()
    assert world.node.next_deadline() is None


def test_a_session_is_its_users(world: World, scram_client: type[ScramClient]) -> None:
    """Another user with the same client id gets none of its messages."""
    keep = Properties(session_expiry_interval=100)

    def log_in(user: str, password: str) -> tuple[Client, p.Connack]:
        client, scram = world.open(), scram_client(user, password)
        properties = Properties(
            authentication_method=METHOD,
            authentication_data=scram.first(),
            session_expiry_interval=keep.session_expiry_interval,
        )
        packet = p.Connect(version=V5, client_id="shared", clean_start=False, properties=properties)
        (connack,) = client.send(auth(scram.final(challenge(client.send(packet)))))
        assert isinstance(connack, p.Connack)
        return client, connack

    first, _ = log_in("ann", "secret")
    first.send(p.Subscribe(packet_id=1, requests=(p.SubscriptionRequest(topic_filter="a", qos=1),)))
    first.lose()
    again, connack = log_in("ann", "secret")
    assert connack.session_present
    again.lose()
    other, connack = log_in("bob", "hidden")
    assert not connack.session_present
    assert not other.connection.active_session.subscriptions

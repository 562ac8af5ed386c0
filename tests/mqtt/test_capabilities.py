"""Capability limits: what CONNACK announces, and what happens to clients that go over it, in both versions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from assay.reference_broker.config import BrokerConfig, ConfigError, parse_config
from assay.reference_broker.mqtt.wire import packets as p
from assay.reference_broker.mqtt.wire.codec import encode_packet
from assay.reference_broker.mqtt.wire.errors import Reason
from assay.reference_broker.mqtt.wire.packets import NO_PROPERTIES, V5, V311, Properties

if TYPE_CHECKING:
    from tests.mqtt.conftest import Client, World

VERSIONS = pytest.mark.parametrize("version", [V311, V5])
STANDARD = {"receive_maximum": 65_535, "topic_alias_maximum": 0, "max_packet_bytes": 268_435_460}
"""The limits that hold for a server whose CONNACK says nothing."""
REPEATED = 5


def configured(**mqtt: Any) -> BrokerConfig:
    return parse_config({"mqtt": mqtt})


def connack_of(client: Client, **connect: Any) -> p.Connack:
    packet = client.send(p.Connect(version=client.version, client_id=connect.pop("client_id", "c"), **connect))[0]
    assert isinstance(packet, p.Connack)
    return packet


def assert_ended(client: Client, reason: Reason, statement_5: str, statement_311: str) -> None:
    """Closed, after DISCONNECT with the code where the version has one; the log cites the version's own statement."""
    assert client.closed
    last = client.inbox[-1]
    if client.version == V5:
        assert isinstance(last, p.Disconnect)
        assert last.reason == reason
        assert last.properties.reason_string is not None
        assert statement_5 in last.properties.reason_string
    else:
        assert not isinstance(last, p.Disconnect)
    error = client.connection.error
    assert error is not None
    assert error.statement == (statement_5 if client.version == V5 else statement_311)


# -- CONNACK -----------------------------------------------------------------------------------------------------------


def test_a_broker_with_the_standards_own_limits_announces_nothing(make_world: type[World]) -> None:
    world = make_world(configured(**STANDARD))
    assert connack_of(world.open()).properties == NO_PROPERTIES


@pytest.mark.parametrize(
    ("key", "value", "field", "announced"),
    [
        ("maximum_qos", 0, "maximum_qos", 0),
        ("maximum_qos", 1, "maximum_qos", 1),
        ("retain_available", False, "retain_available", 0),
        ("wildcard_subscription_available", False, "wildcard_subscription_available", 0),
        ("subscription_identifier_available", False, "subscription_identifier_available", 0),
        ("shared_subscription_available", False, "shared_subscription_available", 0),
        ("receive_maximum", 65_534, "receive_maximum", 65_534),
        ("receive_maximum", 1, "receive_maximum", 1),
        ("topic_alias_maximum", 1, "topic_alias_maximum", 1),
        ("max_packet_bytes", 268_435_459, "maximum_packet_size", 268_435_459),
        ("max_packet_bytes", 100, "maximum_packet_size", 100),
        ("max_keep_alive_s", 59, "server_keep_alive", 59),
        ("max_session_expiry_s", 99, "session_expiry_interval", 99),
        ("response_information", "replies/%c/", "response_information", "replies/c/"),
    ],
)
def test_each_limit_is_announced_and_nothing_else(
    make_world: type[World], key: str, value: object, field: str, announced: object
) -> None:
    world = make_world(configured(**{**STANDARD, key: value}))
    asked = Properties(session_expiry_interval=100, request_response_information=1)
    properties = connack_of(world.open(), keep_alive_s=60, properties=asked).properties
    assert properties == msgspec.structs.replace(NO_PROPERTIES, **{field: announced})


@pytest.mark.parametrize(
    ("config", "connect"),
    [
        ({"max_keep_alive_s": 60}, {"keep_alive_s": 60}),
        ({"max_keep_alive_s": 65_535}, {"keep_alive_s": 0}),
        ({"max_session_expiry_s": 100}, {"properties": Properties(session_expiry_interval=100)}),
        ({"max_session_expiry_s": 100}, {}),
        ({"max_session_expiry_s": 0}, {"properties": Properties(session_expiry_interval=0)}),
        ({"response_information": "r/"}, {}),
        ({"response_information": "r/"}, {"properties": Properties(request_response_information=0)}),
        ({}, {"properties": Properties(request_response_information=1)}),
        ({"max_client_id_bytes": 23, "empty_client_id_available": False}, {}),
    ],
)
def test_what_the_client_asked_for_anyway_is_not_announced(
    make_world: type[World], config: dict[str, Any], connect: dict[str, Any]
) -> None:
    world = make_world(configured(**STANDARD, **config))
    assert connack_of(world.open(), **connect).properties == NO_PROPERTIES


def test_3_1_1_clients_get_a_bare_connack_whatever_the_limits(make_world: type[World]) -> None:
    world = make_world(configured(maximum_qos=0, retain_available=False, max_keep_alive_s=5, response_information="r"))
    client = world.open(V311)
    assert connack_of(client, keep_alive_s=60) == p.Connack()
    assert client.connection.keep_alive_s == 60


# -- PUBLISH -----------------------------------------------------------------------------------------------------------


def _like(count: int, qos: int, **fields: Any) -> list[p.Publish]:
    """Packets that differ in packet id and payload only: a run, where nothing else forbids it."""
    return [
        p.Publish(topic="t", payload=b"%03d" % n, qos=qos, packet_id=n + 1 if qos else 0, **fields)
        for n in range(count)
    ]


@VERSIONS
@pytest.mark.parametrize(("maximum", "qos"), [(0, 1), (0, 2), (1, 2)])
@pytest.mark.parametrize("count", [1, REPEATED])
def test_a_publish_over_the_maximum_qos_ends_the_connection(
    make_world: type[World], version: int, maximum: int, qos: int, count: int
) -> None:
    world = make_world(configured(maximum_qos=maximum))
    subscriber = world.subscribed("t", 2, version)
    publisher = world.connect("p", version)
    publisher.send(*_like(count, qos))
    assert_ended(publisher, Reason.QOS_NOT_SUPPORTED, "MQTT-3.2.2-11", "MQTT-3.3.5-2")
    assert not subscriber.publishes()


@VERSIONS
@pytest.mark.parametrize("maximum", [0, 1, 2])
@pytest.mark.parametrize("count", [1, REPEATED])
def test_publishes_up_to_the_maximum_qos_pass_in_every_lane(
    make_world: type[World], version: int, maximum: int, count: int
) -> None:
    world = make_world(configured(maximum_qos=maximum))
    subscriber = world.subscribed("t", 2, version)
    subscriber.auto_ack = True
    publisher = world.connect("p", version)
    publisher.auto_ack = True
    for qos in range(maximum + 1):
        publisher.send(*_like(count, qos))
    assert [packet.qos for packet in subscriber.publishes()] == [q for q in range(maximum + 1) for _ in range(count)]
    assert not publisher.closed


def test_a_publish_with_properties_over_the_maximum_qos_is_refused_too(make_world: type[World]) -> None:
    world = make_world(configured(maximum_qos=1))
    publisher = world.connect("p")
    publisher.send(*_like(2, 2, properties=Properties(content_type="x")))
    assert_ended(publisher, Reason.QOS_NOT_SUPPORTED, "MQTT-3.2.2-11", "")


@VERSIONS
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_a_retained_publish_ends_the_connection_where_retain_is_not_available(
    make_world: type[World], version: int, qos: int
) -> None:
    world = make_world(configured(retain_available=False))
    subscriber = world.subscribed("t", 2, version)
    publisher = world.connect("p", version)
    publisher.send(*_like(1, qos))
    publisher.send(*_like(REPEATED, qos, retain=True))
    assert_ended(publisher, Reason.RETAIN_NOT_SUPPORTED, "MQTT-3.2.2-14", "MQTT-3.3.5-2")
    assert len(subscriber.publishes()) == 1
    assert len(world.node.state.retained) == 0


@pytest.mark.parametrize(("maximum", "alias"), [(0, 1), (3, 4), (3, 0), (3, 65_535)])
def test_a_topic_alias_beyond_the_maximum_ends_the_connection(
    make_world: type[World], maximum: int, alias: int
) -> None:
    world = make_world(configured(topic_alias_maximum=maximum))
    publisher = world.connect("p")
    publisher.send(*_like(1, 1, properties=Properties(topic_alias=alias)))
    statement = "MQTT-3.3.2-8" if alias == 0 else "MQTT-3.2.2-18" if maximum == 0 else "MQTT-3.3.2-9"
    assert_ended(publisher, Reason.TOPIC_ALIAS_INVALID, statement, "")


def test_every_topic_alias_up_to_the_maximum_works(make_world: type[World]) -> None:
    world = make_world(configured(topic_alias_maximum=3))
    subscriber = world.subscribed("#")
    publisher = world.connect("p")
    for alias in (1, 2, 3):
        publisher.send(p.Publish(topic=f"t{alias}", payload=b"", properties=Properties(topic_alias=alias)))
    for alias in (3, 1, 2):
        publisher.send(p.Publish(topic="", payload=b"", properties=Properties(topic_alias=alias)))
    assert [packet.topic for packet in subscriber.publishes()] == ["t1", "t2", "t3", "t3", "t1", "t2"]


@pytest.mark.parametrize("together", [True, False])
@pytest.mark.parametrize("subscribers", [0, 1])
def test_unreleased_qos_2_publishes_over_the_receive_maximum_end_the_connection(
    make_world: type[World], together: bool, subscribers: int
) -> None:
    world = make_world(configured(receive_maximum=REPEATED))
    for _ in range(subscribers):
        world.subscribed("t", 2)
    publisher = world.connect("p")
    packets = _like(REPEATED, 2)
    for chunk in [packets] if together else [[packet] for packet in packets]:
        publisher.send(*chunk)
    assert not publisher.closed, "the maximum itself is allowed"
    assert sum(isinstance(packet, p.Acknowledgement) for packet in publisher.inbox) == REPEATED
    publisher.send(p.Publish(topic="t", payload=b"", qos=2, packet_id=99))
    assert_ended(publisher, Reason.RECEIVE_MAXIMUM_EXCEEDED, "MQTT-3.3.4-7", "")


def test_one_chunk_over_the_receive_maximum_ends_the_connection(make_world: type[World]) -> None:
    world = make_world(configured(receive_maximum=REPEATED))
    subscriber = world.subscribed("t", 2)
    publisher = world.connect("p")
    publisher.send(*_like(REPEATED + 1, 2))
    assert_ended(publisher, Reason.RECEIVE_MAXIMUM_EXCEEDED, "MQTT-3.3.4-7", "")
    assert len(subscriber.publishes()) == REPEATED


@pytest.mark.parametrize("qos", [0, 1])
def test_the_receive_maximum_is_no_limit_on_what_is_acknowledged_at_once(make_world: type[World], qos: int) -> None:
    world = make_world(configured(receive_maximum=1))
    subscriber = world.subscribed("t")
    publisher = world.connect("p")
    publisher.send(*_like(50, qos))
    assert not publisher.closed
    assert len(subscriber.publishes()) == 50


def test_3_1_1_knows_no_receive_maximum(make_world: type[World]) -> None:
    world = make_world(configured(receive_maximum=1))
    publisher = world.connect("p", V311)
    publisher.send(*_like(50, 2))
    assert not publisher.closed


@VERSIONS
@pytest.mark.parametrize("qos", [0, 1])
@pytest.mark.parametrize("before", [0, REPEATED])
def test_the_packet_size_limit_is_exact(make_world: type[World], version: int, qos: int, before: int) -> None:
    limit = 300
    world = make_world(configured(max_packet_bytes=limit))
    subscriber = world.subscribed("t", version=version)
    publisher = world.connect("p", version)

    def sized(size: int) -> p.Publish:
        packet = p.Publish(topic="t", payload=b"", qos=qos, packet_id=7 if qos else 0)
        # One byte more of remaining length from 128 bytes on.
        room = size - len(encode_packet(packet, version)) - 1
        return msgspec.structs.replace(packet, payload=b"x" * room)

    largest, over = sized(limit), sized(limit + 1)
    assert (len(encode_packet(largest, version)), len(encode_packet(over, version))) == (limit, limit + 1)
    publisher.send(*[largest] * max(1, before))
    assert not publisher.closed
    publisher.send(*[largest] * before, over)
    assert_ended(publisher, Reason.PACKET_TOO_LARGE, "MQTT-3.2.2-15", "MQTT-4.8.0-2")
    assert {len(packet.payload) for packet in subscriber.publishes()} == {len(largest.payload)}


# -- CONNECT -----------------------------------------------------------------------------------------------------------


@VERSIONS
@pytest.mark.parametrize(
    ("config", "will", "reason", "statement"),
    [
        ({"maximum_qos": 0}, {"qos": 1}, Reason.QOS_NOT_SUPPORTED, "MQTT-3.2.2-12"),
        ({"maximum_qos": 1}, {"qos": 2}, Reason.QOS_NOT_SUPPORTED, "MQTT-3.2.2-12"),
        ({"retain_available": False}, {"retain": True}, Reason.RETAIN_NOT_SUPPORTED, "MQTT-3.2.2-13"),
    ],
)
def test_a_will_over_the_limits_is_refused(
    make_world: type[World], version: int, config: dict[str, Any], will: dict[str, Any], reason: Reason, statement: str
) -> None:
    world = make_world(configured(**config))
    fields = {"topic": "t", "payload": b"", "qos": 0, "retain": False, "properties": NO_PROPERTIES}
    client = world.open(version)
    answer = client.send(p.Connect(version=version, client_id="c", will=p.WillFields(**{**fields, **will})))
    assert client.closed
    assert not world.node.state.sessions
    assert client.connection.error is not None
    if version == V5:
        assert [packet.reason for packet in answer if isinstance(packet, p.Connack)] == [reason]
        assert client.connection.error.statement == statement
    else:
        assert answer == [], "3.1.1 has no code for it"
        assert client.connection.error.statement == "MQTT-3.2.2-6"
    allowed = world.open(version)
    assert connack_of(allowed, will=p.WillFields(**fields)).reason == 0


@VERSIONS
@pytest.mark.parametrize(
    ("config", "client_id"),
    [
        ({"max_client_id_bytes": 23}, "x" * 24),
        ({"max_client_id_bytes": 23}, "é" * 12),
        ({"empty_client_id_available": False}, ""),
    ],
)
def test_a_client_id_that_is_not_taken_gets_its_code(
    make_world: type[World], version: int, config: dict[str, Any], client_id: str
) -> None:
    world = make_world(configured(**config))
    client = world.open(version)
    connack = connack_of(client, client_id=client_id)
    assert connack.reason == (Reason.CLIENT_IDENTIFIER_NOT_VALID if version == V5 else 2)
    assert not connack.session_present
    assert client.closed
    assert client.connection.error is not None
    assert client.connection.error.statement == ("MQTT-3.1.3-8" if version == V5 else "MQTT-3.1.3-9")
    assert not world.node.state.sessions
    assert connack_of(world.open(version), client_id="x" * 23).reason == 0


@VERSIONS
def test_assigned_ids_are_unique_announced_and_short_enough_for_any_server(
    make_world: type[World], version: int
) -> None:
    world = make_world(configured(max_client_id_bytes=23))
    clients = [world.connect("", version) for _ in range(20)]
    ids = [client.connection.client_id for client in clients]
    assert len(set(ids)) == 20
    assert {len(client_id.encode()) for client_id in ids} == {23}
    for client, client_id in zip(clients, ids, strict=True):
        connack = client.inbox[0]
        assert isinstance(connack, p.Connack)
        assert connack.properties.assigned_client_identifier == (client_id if version == V5 else None)
    assert connack_of(world.open(version), client_id=ids[0]).reason == 0, "the client may come back with it"


@pytest.mark.parametrize(("asked", "used"), [(0, 10), (11, 10), (10, 10), (4, 4)])
def test_the_servers_keep_alive_holds(make_world: type[World], asked: int, used: int) -> None:
    world = make_world(configured(max_keep_alive_s=10))
    client = world.connect("c", keep_alive_s=asked)
    world.wait(1.5 * used - 0.1)
    assert not client.closed
    world.wait(0.2)
    assert_ended(client, Reason.KEEP_ALIVE_TIMEOUT, "MQTT-3.1.2-22", "")


@pytest.mark.parametrize(("asked", "life_s"), [(None, 100), (5, 5), (1_000, 100), (0xFFFFFFFF, 100)])
def test_a_session_lives_no_longer_than_allowed(make_world: type[World], asked: int | None, life_s: int) -> None:
    world = make_world(configured(max_session_expiry_s=100))
    version = V311 if asked is None else V5
    properties = Properties(session_expiry_interval=asked)
    client = world.connect("c", version, clean_start=False, properties=properties)
    client.lose()
    world.wait(life_s - 0.1)
    assert "c" in world.node.state.sessions
    world.wait(0.2)
    assert "c" not in world.node.state.sessions


def test_disconnect_cannot_raise_the_session_expiry_over_the_limit(make_world: type[World]) -> None:
    world = make_world(configured(max_session_expiry_s=100))
    client = world.connect("c", properties=Properties(session_expiry_interval=1))
    client.send(p.Disconnect(properties=Properties(session_expiry_interval=1_000)))
    world.wait(99)
    assert "c" in world.node.state.sessions
    world.wait(2)
    assert "c" not in world.node.state.sessions


# -- SUBSCRIBE ---------------------------------------------------------------------------------------------------------


_UNAVAILABLE = [
    ("wildcard_subscription_available", "t/#", (), Reason.WILDCARD_SUBSCRIPTIONS_NOT_SUPPORTED),
    ("wildcard_subscription_available", "+", (), Reason.WILDCARD_SUBSCRIPTIONS_NOT_SUPPORTED),
    ("wildcard_subscription_available", "$share/g/+", (), Reason.WILDCARD_SUBSCRIPTIONS_NOT_SUPPORTED),
    ("shared_subscription_available", "$share/g/t", (), Reason.SHARED_SUBSCRIPTIONS_NOT_SUPPORTED),
    ("subscription_identifier_available", "t", (7,), Reason.SUBSCRIPTION_IDENTIFIERS_NOT_SUPPORTED),
]
"""Of the configuration, filter and identifiers asked for, reason; MQTT 3.1.1 has no subscription identifiers."""


@pytest.mark.parametrize(
    ("version", "key", "topic_filter", "identifiers", "reason"),
    [(V5, *row) for row in _UNAVAILABLE] + [(V311, *row) for row in _UNAVAILABLE[:4]],
)
def test_a_kind_of_subscription_that_is_not_available_is_refused(
    make_world: type[World],
    version: int,
    key: str,
    topic_filter: str,
    identifiers: tuple[int, ...],
    reason: Reason,
) -> None:
    subscribe = p.Subscribe(
        packet_id=1,
        requests=(p.SubscriptionRequest(topic_filter=topic_filter, qos=1),),
        properties=Properties(subscription_identifier=identifiers),
    )
    lesser = make_world(configured(**{key: False}))
    client = lesser.connect("c", version)
    answer = client.send(subscribe)
    if version == V5:
        # A protocol error, since CONNACK has said so (sections 3.2.2.3.11 to 3.2.2.3.13).
        assert_ended(client, reason, "MQTT-4.13.1-1", "")
    else:
        assert answer == [p.Suback(packet_id=1, reasons=(0x80,))]
        assert not client.closed
    assert not client.connection.active_session.subscriptions
    (granted,) = make_world().connect("c", version).send(subscribe)
    assert granted == p.Suback(packet_id=1, reasons=(1,))


@VERSIONS
@pytest.mark.parametrize("maximum", [0, 1])
def test_subscriptions_at_any_qos_are_granted_at_the_maximum(
    make_world: type[World], version: int, maximum: int
) -> None:
    world = make_world(configured(maximum_qos=maximum))
    requests = tuple(p.SubscriptionRequest(topic_filter=f"t{qos}", qos=qos) for qos in (0, 1, 2))
    client = world.connect("c", version)
    (answer,) = client.send(p.Subscribe(packet_id=1, requests=requests))
    assert answer == p.Suback(packet_id=1, reasons=tuple(min(qos, maximum) for qos in (0, 1, 2)))


def test_a_malformed_share_name_of_a_3_1_1_client_is_refused_alone(world: World) -> None:
    """3.1.1 knows no shared subscriptions, so ``$share//t`` breaks no rule of its own."""
    client = world.connect("c", V311)
    requests = tuple(p.SubscriptionRequest(topic_filter=name, qos=0) for name in ("$share//t", "$share/g", "t"))
    assert client.send(p.Subscribe(packet_id=1, requests=requests)) == [p.Suback(packet_id=1, reasons=(0x80, 0x80, 0))]
    assert not client.closed


# -- configuration -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("max_packet_bytes", 10),
        ("receive_maximum", 0),
        ("receive_maximum", 65_536),
        ("topic_alias_maximum", -1),
        ("topic_alias_maximum", 65_536),
        ("maximum_qos", 3),
        ("max_session_expiry_s", -1),
        ("max_keep_alive_s", 0),
        ("max_keep_alive_s", 65_536),
        ("max_client_id_bytes", 22),
        ("response_information", "x" * 1_025),
    ],
)
def test_a_limit_that_the_protocol_cannot_say_is_refused_by_name(key: str, value: object) -> None:
    with pytest.raises(ConfigError, match=rf"mqtt\.{key}"):
        configured(**{key: value})

"""What a client may not do, and what it may though this broker does not do it: violations close, limits refuse."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from assay.reference_broker.auth import scram_credentials
from assay.reference_broker.config import BrokerConfig, parse_config
from assay.reference_broker.mqtt.wire import packets as p
from assay.reference_broker.mqtt.wire.codec import encode_packet
from assay.reference_broker.mqtt.wire.errors import Reason
from assay.reference_broker.mqtt.wire.packets import V5, V311, Properties

if TYPE_CHECKING:
    from tests.mqtt.conftest import Client, World

VERSIONS = pytest.mark.parametrize("version", [V311, V5])


def with_mqtt(**keys: object) -> BrokerConfig:
    return parse_config({"mqtt": keys})


# -- a will is a PUBLISH that waits ------------------------------------------------------------------------------


def published(world: World, topic: str, properties: Properties, payload: bytes = b"x", qos: int = 1) -> int:
    """The reason code that a PUBLISH is answered with, be it in PUBACK or DISCONNECT."""
    client = world.connect()
    answers = client.send(p.Publish(topic=topic, payload=payload, qos=qos, packet_id=1, properties=properties))
    (answer,) = answers
    assert isinstance(answer, p.Acknowledgement | p.Disconnect)
    return answer.reason


def connected(world: World, topic: str, properties: Properties, payload: bytes = b"x", qos: int = 1) -> int:
    """The reason code that a CONNECT with such a will is answered with."""
    client = world.open()
    will = p.WillFields(topic=topic, payload=payload, qos=qos, properties=properties)
    (connack,) = client.send(p.Connect(version=V5, client_id="c", will=will))
    assert isinstance(connack, p.Connack)
    assert client.closed is bool(connack.reason)
    return connack.reason


@pytest.mark.parametrize(
    ("topic", "properties", "reason"),
    [
        ("t", Properties(response_topic="r/a"), 0),
        ("t", Properties(response_topic="/".join("r" * 500)), 0),
        ("t", Properties(response_topic="r/#"), Reason.PROTOCOL_ERROR),
        ("t", Properties(response_topic="r/+/x"), Reason.PROTOCOL_ERROR),
        ("t", Properties(response_topic=""), Reason.PROTOCOL_ERROR),
        ("t", Properties(content_type="", correlation_data=b"", payload_format_indicator=1), 0),
        ("t/+", Properties(), Reason.TOPIC_NAME_INVALID),
        ("t/#", Properties(), Reason.TOPIC_NAME_INVALID),
        ("", Properties(), Reason.TOPIC_NAME_INVALID),
        ("/" * 127, Properties(), 0),
        ("/" * 128, Properties(), Reason.TOPIC_NAME_INVALID),
        ("$SYS/x", Properties(), Reason.NOT_AUTHORIZED),
        ("$queue/+", Properties(), Reason.TOPIC_NAME_INVALID),
    ],
)
def test_a_will_is_checked_as_a_publish_is(world: World, topic: str, properties: Properties, reason: int) -> None:
    watcher = world.subscribed("#")
    assert published(world, topic, properties) in ({reason} if reason else {0, Reason.NO_MATCHING_SUBSCRIBERS})
    watcher.take()
    assert connected(world, topic, properties) == reason
    world.wait(1)
    assert not watcher.publishes()


@pytest.mark.parametrize(
    ("keys", "will", "reason"),
    [
        ({"mqtt": {"maximum_qos": 0}}, {}, Reason.QOS_NOT_SUPPORTED),
        ({"limits": {"max_payload_bytes": 10}}, {"payload": b"x" * 11}, Reason.QUOTA_EXCEEDED),
        ({"limits": {"max_payload_bytes": 10}}, {"payload": b"x" * 10}, 0),
        ({"mqtt": {"max_topic_levels": 3}}, {"topic": "a/b/c"}, 0),
        ({"mqtt": {"max_topic_levels": 3}}, {"topic": "a/b/c/d"}, Reason.TOPIC_NAME_INVALID),
    ],
)
def test_limits_hold_for_both(
    make_world: type[World], keys: dict[str, object], will: dict[str, object], reason: int
) -> None:
    fields: dict[str, object] = {"topic": "t", "properties": Properties()} | will
    for ask in (published, connected):
        found = ask(make_world(parse_config(keys)), **fields)  # type: ignore[arg-type]
        assert found in ({reason} if reason else {0, Reason.NO_MATCHING_SUBSCRIBERS})


@pytest.mark.parametrize("topic", ["$admin/queue/list", "$txn/init"])
def test_a_will_is_no_request(world: World, topic: str) -> None:
    assert connected(world, topic, Properties()) == Reason.NOT_AUTHORIZED


# -- violations and limits -----------------------------------------------------------------------------------------

MALFORMED = [("", "4.7.3-1"), ("a/#/b", "4.7.1"), ("a#", "4.7.1"), ("a+", "4.7.1"), ("$share/g/a#", "4.7.1")]
DEEP = "/" * 128


@VERSIONS
@pytest.mark.parametrize(("topic_filter", "statement"), MALFORMED)
@pytest.mark.parametrize("kind", ["subscribe", "unsubscribe"])
def test_a_malformed_filter_ends_a_311_connection(
    world: World, version: int, topic_filter: str, statement: str, kind: str
) -> None:
    client = world.connect("c", version)
    packet: p.Packet = p.Unsubscribe(packet_id=1, topic_filters=("fine", topic_filter))
    if kind == "subscribe":
        requests = tuple(p.SubscriptionRequest(topic_filter=one, qos=1) for one in ("fine", topic_filter))
        packet = p.Subscribe(packet_id=1, requests=requests)
    answers = client.send(packet)
    if version == V311:
        assert (answers, client.closed) == ([], True)
        assert client.connection.error is not None
        assert statement in client.connection.error.statement
        return
    (answer,) = answers
    assert isinstance(answer, p.Suback | p.Unsuback)
    assert answer.reasons[1] == Reason.TOPIC_FILTER_INVALID
    assert not client.closed


@pytest.mark.parametrize(
    ("topic_filter", "in_311", "in_5"),
    [("a/#/b", "MQTT-4.7.1-2", "MQTT-4.7.1-1"), ("a+", "MQTT-4.7.1-3", "MQTT-4.7.1-2")],
)
def test_the_rules_of_wildcards_have_another_number_in_311(
    world: World, topic_filter: str, in_311: str, in_5: str
) -> None:
    client = world.connect("c", V311)
    client.send(p.Unsubscribe(packet_id=1, topic_filters=(topic_filter,)))
    assert client.connection.error is not None
    assert client.connection.error.statement == in_311 != in_5


@VERSIONS
@pytest.mark.parametrize("share", ["$share//x", "$share/+/x", "$share/x"])
def test_a_malformed_share_is_a_filter_like_others_to_unsubscribe_from_in_311(
    world: World, version: int, share: str
) -> None:
    client = world.connect("c", version)
    (unsuback,) = client.send(p.Unsubscribe(packet_id=1, topic_filters=(share,)))
    assert isinstance(unsuback, p.Unsuback)
    assert unsuback.reasons == ((Reason.TOPIC_FILTER_INVALID,) if version == V5 else ())


@VERSIONS
def test_a_filter_over_our_limit_is_refused_alone(world: World, version: int) -> None:
    client = world.connect("c", version)
    requests = tuple(p.SubscriptionRequest(topic_filter=one, qos=1) for one in ("ok", DEEP, "/" * 127))
    (suback,) = client.send(p.Subscribe(packet_id=1, requests=requests))
    assert isinstance(suback, p.Suback)
    assert suback.reasons == (1, Reason.TOPIC_FILTER_INVALID if version == V5 else 0x80, 1)
    (unsuback,) = client.send(p.Unsubscribe(packet_id=2, topic_filters=(DEEP, "ok")))
    assert isinstance(unsuback, p.Unsuback)
    assert unsuback.reasons == ((Reason.NO_SUBSCRIPTION_EXISTED, 0) if version == V5 else ())
    assert not client.closed


@VERSIONS
@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.parametrize("count", [1, 5])
@pytest.mark.parametrize("topic", [DEEP, "$queue/q" + DEEP])
def test_a_topic_over_our_limit_is_refused_by_every_lane(
    world: World, version: int, qos: int, count: int, topic: str
) -> None:
    watcher = world.subscribed("#")
    client = world.connect("c", version)
    packets = [
        p.Publish(topic=topic, payload=b"x", qos=qos, packet_id=number if qos else 0) for number in range(1, count + 1)
    ]
    answers = client.send(*packets)
    if qos == 0:
        assert (answers, client.closed) == ([], False)
    elif version == V311:
        assert (answers, client.closed) == ([], True)
    else:
        assert [one.reason for one in answers if isinstance(one, p.Acknowledgement)] == [0x90] * count
        assert not client.closed
    assert not watcher.publishes()
    assert world.node.engine.queues() == []
    if version == V5 and qos:
        pairs = Properties(user_property=(("trace", "1"),))
        answers = client.send(
            *(p.Publish(topic=topic, payload=b"x", qos=qos, packet_id=9 + at, properties=pairs) for at in range(3))
        )
        assert [one.reason for one in answers if isinstance(one, p.Acknowledgement)] == [0x90] * 3


def test_an_alias_of_a_topic_over_our_limit_is_refused_as_often_as_it_is_used(world: World) -> None:
    client = world.connect("c")
    aliased = Properties(topic_alias=1)
    first = p.Publish(topic=DEEP, payload=b"x", qos=1, packet_id=1, properties=aliased)
    again = p.Publish(topic="", payload=b"x", qos=1, packet_id=2, properties=aliased)
    answers = client.send(first, again)
    assert [one.reason for one in answers if isinstance(one, p.Acknowledgement)] == [0x90] * 2


# -- DISCONNECT ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("most", "asked", "at_the_end", "lives_s"),
    [
        (0, 100, 50, 0),
        (30, 100, 50, 30),
        (30, 20, 50, 30),
        (30, 20, 10, 10),
        (1_000, 100, 0, 0),
        (1_000, 0, 0, 0),
        (1_000, 0, 5, None),
        (0, 0, 5, None),
    ],
)
def test_what_connect_asked_for_says_whether_disconnect_may_ask(
    make_world: type[World], most: int, asked: int, at_the_end: int, lives_s: int | None
) -> None:
    """3.14.2.2.2: only 0 in CONNECT forbids another expiry; what was granted does not count, the cap does."""
    world = make_world(with_mqtt(max_session_expiry_s=most))
    client = world.connect("c", properties=Properties(session_expiry_interval=asked))
    answers = client.send(p.Disconnect(properties=Properties(session_expiry_interval=at_the_end)))
    if lives_s is None:
        (farewell,) = answers
        assert isinstance(farewell, p.Disconnect)
        assert farewell.reason == Reason.PROTOCOL_ERROR
        return
    assert not answers
    sessions = world.node.state.sessions
    assert ("c" in sessions) is bool(lives_s)
    if lives_s:
        world.wait(lives_s - 0.5)
        assert "c" in sessions
        world.wait(1)
        assert "c" not in sessions


# -- keep alive ------------------------------------------------------------------------------------------------------

KEEP_ALIVE_S = 2


def trickle(client: Client, data: bytes, *, every_s: float, step: int = 1) -> float:
    """Send a packet in pieces; seconds until the broker has closed, or until all was sent."""
    world = client.world
    began = world.now
    for at in range(0, len(data), step):
        client.send_bytes(data[at : at + step])
        if client.closed:
            break
        world.wait(every_s)
        if client.closed:
            break
    return world.now - began


@VERSIONS
@pytest.mark.parametrize("every_s", [0.1, 1.0, 2.5])
def test_bytes_that_make_no_packet_keep_nothing_alive(world: World, version: int, every_s: float) -> None:
    client = world.connect("c", version, keep_alive_s=KEEP_ALIVE_S)
    packet = encode_packet(p.Publish(topic="t", payload=b"x" * 200, qos=0), version)
    assert trickle(client, packet, every_s=every_s) <= 1.5 * KEEP_ALIVE_S + every_s
    assert client.closed
    if version == V5:
        last = client.inbox[-1]
        assert isinstance(last, p.Disconnect)
        assert last.reason == Reason.KEEP_ALIVE_TIMEOUT


@VERSIONS
def test_a_large_packet_over_a_slow_link_arrives(world: World, version: int) -> None:
    """It is begun in time, and needs more than two keep alives; so does one behind it, and then silence ends it."""
    client = world.connect("c", version, keep_alive_s=KEEP_ALIVE_S)
    watcher = world.subscribed("t")
    large = encode_packet(p.Publish(topic="t", payload=b"x" * 100_000, qos=0), version)
    assert trickle(client, large, every_s=0.5, step=10_000) >= 2 * KEEP_ALIVE_S
    assert trickle(client, large, every_s=0.5, step=10_000) >= 2 * KEEP_ALIVE_S
    assert (len(watcher.publishes()), client.closed) == (2, False)
    world.wait(1.5 * KEEP_ALIVE_S)
    assert client.closed


@pytest.mark.parametrize(("progress_bytes", "closed"), [(0, True), (400, False), (401, True)])
def test_what_counts_as_progress_is_configured(make_world: type[World], progress_bytes: int, closed: bool) -> None:
    """400 bytes come in each 1.5 times the keep alive."""
    world = make_world(with_mqtt(keep_alive_progress_bytes=progress_bytes))
    client = world.connect("c", keep_alive_s=4)
    client.send_bytes(b"\x30\xff\x7f")  # a PUBLISH of 16 383 bytes begins
    for _ in range(8):
        client.send_bytes(b"x" * 400)
        world.wait(6)
        if client.closed:
            break
    assert client.closed is closed


def test_the_end_of_a_packet_is_a_packet(world: World) -> None:
    client = world.connect("c", keep_alive_s=KEEP_ALIVE_S)
    for _ in range(4):
        client.send_bytes(b"\xc0")
        world.wait(2)
        client.send_bytes(b"\x00")
        world.wait(0.5)
    assert not client.closed
    assert sum(isinstance(packet, p.Pingresp) for packet in client.inbox) == 4


@VERSIONS
def test_connect_has_its_own_time_however_its_bytes_come(world: World, version: int) -> None:
    client = world.open(version)
    packet = encode_packet(p.Connect(version=version, client_id="c" * 200), version)
    assert trickle(client, packet, every_s=1) <= 11
    assert client.closed


def test_the_exchange_of_authentication_has_its_time_too(make_world: type[World]) -> None:
    users = [{"username": "ann", "scram_sha_256": scram_credentials("ann")}]
    world = make_world(parse_config({"auth": {"users": users}}))
    client = world.open()
    method = Properties(authentication_method="SCRAM-SHA-256", authentication_data=b"n,,n=ann,r=rOprNGfwEbeRWgbN")
    (auth,) = client.send(p.Connect(version=V5, client_id="c", keep_alive_s=1, properties=method))
    assert isinstance(auth, p.Auth)
    proof = Properties(authentication_method="SCRAM-SHA-256", authentication_data=b"c" * 99)
    answer = p.Auth(reason=0x18, properties=proof)
    assert trickle(client, encode_packet(answer, V5), every_s=1) <= 11
    assert client.closed
    last = client.inbox[-1]
    assert isinstance(last, p.Connack)
    assert last.reason == Reason.NOT_AUTHORIZED

"""Access rules over MQTT: publishing by every lane, wills, subscriptions and queues, in both versions."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from assay.reference_broker.auth import hash_password
from assay.reference_broker.config import (
    AclConfig,
    AclRuleConfig,
    AuthConfig,
    BrokerConfig,
    Permission,
    QueueConfig,
    QueuesConfig,
    UserConfig,
)
from assay.reference_broker.mqtt.wire import packets as p
from assay.reference_broker.mqtt.wire.codec import encode_packet
from assay.reference_broker.mqtt.wire.errors import Reason
from assay.reference_broker.mqtt.wire.packets import V5, V311, PacketType, Properties

if TYPE_CHECKING:
    from tests.mqtt.conftest import Client, World

VERSIONS = pytest.mark.parametrize("version", [V311, V5])
RULES = {
    "open/#": Permission.READWRITE,
    "own/%c/#": Permission.READWRITE,
    "named/%u": Permission.READWRITE,
    "in/#": Permission.WRITE,
    "out/#": Permission.READ,
    "$queue/jobs": Permission.WRITE,
    "$queue/work": Permission.READWRITE,
    "open/secret/#": Permission.DENY,
}
CONFIG = BrokerConfig(
    acl=AclConfig(rules=tuple(AclRuleConfig(topic=topic, access=access) for topic, access in RULES.items())),
    queues=QueuesConfig(configured=tuple(QueueConfig(name=name, partitions=1) for name in ("jobs", "work", "shut"))),
)


@pytest.fixture
def world(make_world: type[World]) -> World:
    return make_world(CONFIG)


def reasons(client: Client, *topic_filters: str) -> list[int]:
    requests = tuple(p.SubscriptionRequest(topic_filter=topic_filter, qos=1) for topic_filter in topic_filters)
    (suback,) = client.send(p.Subscribe(packet_id=1, requests=requests))
    assert isinstance(suback, p.Suback)
    return list(suback.reasons)


@VERSIONS
def test_each_filter_is_judged_by_itself(world: World, version: int) -> None:
    client = world.connect("me", version)
    filters = [
        "open/a",
        "in/a",
        "own/me/+",
        "own/you/+",
        "own/+/x",
        "#",
        "out/#",
        "open/#",
        "$share/g/out/+",
        "$share/g/in/+",
    ]
    refused = Reason.NOT_AUTHORIZED if version == V5 else 0x80
    assert reasons(client, *filters) == [1, refused, 1, refused, refused, refused, 1, refused, 1, refused]
    assert set(client.connection.active_session.subscriptions) == {"open/a", "own/me/+", "out/#", "$share/g/out/+"}


@VERSIONS
@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.parametrize("count", [1, 8])
def test_publishing_alone_and_in_runs(world: World, version: int, qos: int, count: int) -> None:
    """A run takes the fast way where it may; refused messages reach nobody."""
    watcher = world.connect("watcher", version)
    watcher.connection.grants = None
    assert reasons(watcher, "#") == [1]
    watcher.take()
    watcher.auto_ack = True

    def run(topic: str) -> bytes:
        packets = (
            p.Publish(topic=topic, payload=b"x", qos=qos, packet_id=number if qos else 0)
            for number in range(1, count + 1)
        )
        return b"".join(encode_packet(packet, version) for packet in packets)

    client = world.connect("me", version)
    client.take()
    client.send_bytes(run("in/a"))
    assert len(watcher.publishes()) == count
    watcher.take()
    answers = client.take()
    client.send(
        *(p.Acknowledgement(type=PacketType.PUBREL, packet_id=number) for number in range(1, count + 1) if qos == 2)
    )
    assert all(isinstance(answer, p.Acknowledgement) and answer.reason == 0 for answer in answers)
    client.take()
    client.send_bytes(run("out/a"))
    assert not watcher.publishes()
    answers = client.take()
    if qos == 0:
        assert not answers
        assert not client.closed
    elif version == V5:
        assert [answer.reason for answer in answers if isinstance(answer, p.Acknowledgement)] == [0x87] * count
        assert not client.closed
        assert not client.connection.active_session.inbound_qos2
    else:
        assert client.closed, "3.1.1 cannot say it, and an acknowledgement would be a lie"


def test_retained_messages_aliases_and_properties_go_by_the_same_rules(world: World) -> None:
    client = world.connect("me")
    client.send(p.Publish(topic="out/a", payload=b"x", retain=True))
    assert len(world.node.state.retained) == 0
    aliased = Properties(topic_alias=1)
    client.send(p.Publish(topic="out/a", payload=b"x", qos=1, packet_id=1, properties=aliased))
    client.send(p.Publish(topic="", payload=b"x", qos=1, packet_id=2, properties=aliased))
    answers = [packet for packet in client.take() if isinstance(packet, p.Acknowledgement)]
    assert [answer.reason for answer in answers] == [Reason.NOT_AUTHORIZED] * 2


@VERSIONS
@pytest.mark.parametrize(("topic", "accepted"), [("in/will", True), ("own/me/will", True), ("out/will", False)])
def test_wills(world: World, version: int, topic: str, accepted: bool) -> None:
    client = world.open(version)
    will = p.WillFields(topic=topic, payload=b"gone")
    (connack,) = client.send(p.Connect(version=version, client_id="me", will=will))
    assert isinstance(connack, p.Connack)
    not_authorized = Reason.NOT_AUTHORIZED if version == V5 else 5
    assert connack.reason == (0 if accepted else not_authorized)
    assert client.closed is not accepted


def test_queues_are_topics_like_others(world: World) -> None:
    client = world.connect("me")
    publish = p.Publish(topic="$queue/jobs", payload=b"x", qos=1, packet_id=1)
    (accepted,) = client.send(publish)
    assert isinstance(accepted, p.Acknowledgement)
    assert accepted.reason == 0
    (refused,) = client.send(p.Publish(topic="$queue/shut", payload=b"x", qos=1, packet_id=2))
    assert isinstance(refused, p.Acknowledgement)
    assert refused.reason == Reason.NOT_AUTHORIZED
    for queue, reason in (("jobs", Reason.IMPLEMENTATION_SPECIFIC_ERROR), ("shut", Reason.NOT_AUTHORIZED)):
        (cancelled,) = client.send(p.Publish(topic=f"$queue/{queue}/$cancel", payload=b"", qos=1, packet_id=2))
        assert isinstance(cancelled, p.Acknowledgement)
        assert cancelled.reason == reason, "who may enqueue may cancel; the first one only names no delay"
    assert reasons(client, "$queue/jobs", "$queue/work", "$dlq/work", "$queue/dlq/work") == [0x87, 1, 0x87, 0x87]
    client.take()
    client.send(p.Publish(topic="$queue/work", payload=b"job", qos=1, packet_id=3))
    (delivery,) = client.publishes()
    user = tuple(pair for pair in delivery.properties.user_property if pair[0] in ("message-id", "group-id"))
    client.take()
    settle = p.Publish(
        topic="$queue/work/$ack", payload=b"", qos=1, packet_id=4, properties=Properties(user_property=user)
    )
    (settled,) = client.send(settle)
    assert isinstance(settled, p.Acknowledgement)
    assert settled.reason == 0
    foreign = p.Publish(
        topic="$queue/jobs/$ack", payload=b"", qos=1, packet_id=5, properties=Properties(user_property=user)
    )
    (refused,) = client.send(foreign)
    assert isinstance(refused, p.Acknowledgement)
    assert refused.reason == Reason.NOT_AUTHORIZED


@pytest.mark.parametrize("client_id", ["+", "#", "a/b"])
def test_a_client_id_is_no_wildcard(world: World, client_id: str) -> None:
    client = world.connect(client_id)
    assert reasons(client, f"own/{client_id}", "own/a/b/x", "open/x") == [0x87, 0x87, 1]


def test_only_verified_names_count(make_world: type[World]) -> None:
    """Without users anybody can say any name: %u and user rules hold for nobody."""
    client = make_world(CONFIG).connect("me", username="ann", password=b"whatever")
    assert reasons(client, "named/ann") == [Reason.NOT_AUTHORIZED]
    user = UserConfig(username="ann", password_hash=hash_password(b"secret"))
    acl = CONFIG.acl
    verified = make_world(BrokerConfig(acl=acl, auth=AuthConfig(users=(user,)))).connect(
        "me", username="ann", password=b"secret"
    )
    assert reasons(verified, "named/ann", "named/bob") == [1, Reason.NOT_AUTHORIZED]


def test_without_rules_everything_is_allowed(make_world: type[World]) -> None:
    client = make_world().connect("me")
    assert client.connection.grants is None
    assert reasons(client, "#", "$queue/any") == [1, 1]


def test_a_client_that_was_refused_goes_on(world: World) -> None:
    client = world.connect("me")
    reasons(client, "#")
    (pong,) = client.send(p.Pingreq())
    assert isinstance(pong, p.Pingresp)

"""Bounds of memory at their edge: exactly at it passes, one over is refused, and what goes away makes room again."""

from __future__ import annotations

import pytest

from reference_broker.config import BrokerConfig, MqttConfig
from reference_broker.mqtt import packets as p
from tests.mqtt.conftest import World


def _subscribe(topic_filter: str) -> p.Subscribe:
    return p.Subscribe(packet_id=1, requests=(p.SubscriptionRequest(topic_filter=topic_filter, qos=1),))


@pytest.mark.parametrize(("version", "refused"), [(p.V311, 0x80), (p.V5, 0x97)])
def test_subscriptions_of_one_client(make_world: type[World], version: int, refused: int) -> None:
    world = make_world(BrokerConfig(mqtt=MqttConfig(max_subscriptions_per_client=2)))
    client, other = world.connect("c", version=version), world.connect("d", version=version)

    def reasons(topic_filter: str) -> tuple[int, ...]:
        (answer,) = client.send(_subscribe(topic_filter))
        assert isinstance(answer, p.Suback)
        return answer.reasons

    assert reasons("a") == reasons("b") == (1,)
    assert reasons("c") == (refused,)
    assert reasons("b") == (1,), "one that is there is replaced"
    assert isinstance(other.send(_subscribe("c"))[0], p.Suback), "others are not concerned"
    client.send(p.Unsubscribe(packet_id=2, topic_filters=("a",)))
    assert reasons("c") == (1,)


@pytest.mark.parametrize("version", [p.V311, p.V5])
def test_levels_of_topics_and_filters(make_world: type[World], version: int) -> None:
    world = make_world(BrokerConfig(mqtt=MqttConfig(max_topic_levels=3)))
    client = world.connect("c", version=version)
    client.send(_subscribe("a/b/c"), p.Publish(topic="a/b/c", payload=b"x"))
    assert [message.topic for message in client.publishes()] == ["a/b/c"]
    client.send(p.Publish(topic="a/b/c/d", payload=b"x"))
    assert client.closed


@pytest.mark.parametrize("version", [p.V311, p.V5])
def test_messages_in_flight_to_one_client(make_world: type[World], version: int) -> None:
    world = make_world(BrokerConfig(mqtt=MqttConfig(max_inflight_out=3)))
    client = world.subscribed("t", 1, version, "c")
    world.connect("p").send(*[p.Publish(topic="t", payload=b"%d" % n, qos=1, packet_id=n) for n in range(1, 10)])
    assert [message.payload for message in client.publishes()] == [b"1", b"2", b"3"]
    session = client.connection.active_session
    assert (len(session.in_flight), len(session.queued)) == (3, 6)
    client.send(p.Acknowledgement(type=p.PacketType.PUBACK, packet_id=client.publishes()[0].packet_id))
    assert [message.payload for message in client.publishes()] == [b"1", b"2", b"3", b"4"]


@pytest.mark.parametrize("version", [p.V311, p.V5])
def test_retained_messages(make_world: type[World], version: int) -> None:
    world = make_world(BrokerConfig(mqtt=MqttConfig(max_retained_messages=2)))
    client = world.connect("c", version=version)

    def retain(topic: str, payload: bytes = b"x") -> int:
        (answer,) = client.send(p.Publish(topic=topic, payload=payload, qos=1, packet_id=1, retain=True))
        assert isinstance(answer, p.Acknowledgement)
        return answer.reason

    none_matched = 0x10 if version == p.V5 else 0
    assert retain("a") == retain("b") == none_matched
    assert retain("b", b"other") == none_matched, "replacing takes no room"
    if version == p.V311:
        client.send(p.Publish(topic="c", payload=b"x", qos=1, packet_id=1, retain=True))
        assert client.closed
        client = world.connect("c", version=version)
    else:
        assert retain("c") == 0x97
    retain("a", b"")
    assert retain("c") == none_matched
    assert len(world.node.state.retained) == 2

"""``$SYS`` seen by MQTT clients: nobody else publishes there, and the traffic figures agree with what was sent."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from assay.reference_broker.config import BrokerConfig, ConfigError, MqttConfig, parse_config
from assay.reference_broker.mqtt.wire import packets as p
from assay.reference_broker.mqtt.wire.errors import Reason
from assay.reference_broker.mqtt.wire.packets import V5, V311, PacketType, Properties

if TYPE_CHECKING:
    from tests.mqtt.conftest import World

VERSIONS = pytest.mark.parametrize("version", [V311, V5])
TOPICS = pytest.mark.parametrize("topic", ["$SYS", "$SYS/broker/uptime", "$SYS/mine"])


@TOPICS
@pytest.mark.parametrize("qos", [1, 2])
def test_a_publish_to_sys_is_not_authorized(world: World, topic: str, qos: int) -> None:
    watcher = world.subscribed("$SYS/#")
    publisher = world.connect("p")
    (answer,) = publisher.send(p.Publish(topic=topic, payload=b"x", qos=qos, packet_id=1, retain=True))
    assert isinstance(answer, p.Acknowledgement)
    assert answer.reason == Reason.NOT_AUTHORIZED
    assert not publisher.closed
    assert watcher.publishes() == []
    assert len(world.node.state.retained) == 0


@TOPICS
def test_in_3_1_1_the_connection_closes_as_for_every_refused_publish(world: World, topic: str) -> None:
    publisher = world.connect("p", version=V311)
    publisher.send(p.Publish(topic=topic, payload=b"x", qos=1, packet_id=1))
    assert publisher.closed


@TOPICS
@VERSIONS
def test_at_qos_0_it_is_dropped(world: World, topic: str, version: int) -> None:
    watcher = world.subscribed("$SYS/#")
    publisher = world.connect("p", version=version)
    publisher.send(*[p.Publish(topic=topic, payload=b"x")] * 3, p.Publish(topic=topic, payload=b"x", retain=True))
    assert not publisher.closed
    assert watcher.publishes() == []
    assert len(world.node.state.retained) == 0


@VERSIONS
def test_a_will_to_sys_is_refused(world: World, version: int) -> None:
    client = world.open(version)
    will = p.WillFields(topic="$SYS/broker/uptime", payload=b"x", qos=0, retain=True, properties=Properties())
    (connack,) = client.send(p.Connect(version=version, client_id="c", will=will))
    assert isinstance(connack, p.Connack)
    assert connack.reason == (Reason.NOT_AUTHORIZED if version == V5 else 5)
    assert client.closed


def test_a_topic_that_only_begins_like_sys_is_like_any_other(world: World) -> None:
    watcher = world.subscribed("$SYSTEM/#")
    world.connect("p").send(p.Publish(topic="$SYSTEM/a", payload=b"x"))
    assert [packet.topic for packet in watcher.publishes()] == ["$SYSTEM/a"]


@VERSIONS
def test_subscribers_get_values_at_once_and_every_interval(world: World, version: int) -> None:
    watcher = world.connect("w", version)
    watcher.send(p.Subscribe(packet_id=1, requests=(p.SubscriptionRequest(topic_filter="$SYS/broker/uptime", qos=2),)))
    assert [packet.payload for packet in watcher.publishes()] == [b"0 seconds"]
    assert watcher.publishes()[0].retain
    watcher.take()
    world.wait(30)
    assert [packet.payload for packet in watcher.publishes()] == [b"10 seconds", b"20 seconds", b"30 seconds"]
    assert not any(packet.retain for packet in watcher.publishes())


def test_retain_handling_2_asks_for_no_values_at_once(world: World) -> None:
    watcher = world.connect("w")
    request = p.SubscriptionRequest(topic_filter="$SYS/#", qos=0, retain_handling=2)
    watcher.send(p.Subscribe(packet_id=1, requests=(request,)))
    assert watcher.publishes() == []
    world.wait(10)
    assert watcher.publishes()


@VERSIONS
@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.parametrize("together", [True, False], ids=["as a run", "one by one"])
@pytest.mark.parametrize("retain", [False, True])
def test_traffic_counts_messages_and_payload_bytes_on_each_way(
    world: World, version: int, qos: int, together: bool, retain: bool
) -> None:
    subscribers = [world.subscribed("t", 2, version) for _ in range(3)]
    for subscriber in subscribers:
        subscriber.auto_ack = True
    publisher = world.connect("p", version)
    packets = [
        p.Publish(topic="t", payload=b"12345", qos=qos, packet_id=n if qos else 0, retain=retain) for n in range(1, 11)
    ]
    traffic = world.node.state.traffic
    if together:
        publisher.send(*packets)
    else:
        for packet in packets:
            publisher.send(packet)
    assert all(len(subscriber.publishes()) == 10 for subscriber in subscribers)
    assert (traffic.publishes_received, traffic.payload_bytes_received) == (10, 50)
    assert (traffic.publishes_sent, traffic.payload_bytes_sent) == (30, 150)
    assert traffic.dropped == 0


def test_bytes_are_those_on_the_wire(world: World) -> None:
    traffic = world.node.state.traffic
    client = world.connect("c", V311)
    assert (traffic.bytes_received, traffic.bytes_sent) == (15, 4)
    client.send(p.Pingreq(), p.Pingreq())
    assert (traffic.bytes_received, traffic.bytes_sent) == (19, 8)
    client.send(p.Disconnect())
    assert (traffic.bytes_received, traffic.bytes_sent) == (21, 8)


@pytest.mark.parametrize("retain", [False, True], ids=["as a run", "one by one"])
def test_dropped_messages_are_counted_and_do_not_count_as_sent(make_world: type[World], retain: bool) -> None:
    world = make_world(BrokerConfig(mqtt=MqttConfig(max_unread_bytes=1_000, max_queued_messages=2)))
    slow, quick = world.subscribed("t"), world.subscribed("t")
    slow.connection.note_backlog(995, 0, world.now)
    world.connect().send(*[p.Publish(topic="t", payload=b"x" * 20, retain=retain) for _ in range(10)])
    traffic = world.node.state.traffic
    assert len(quick.publishes()) == traffic.publishes_sent == 10
    assert traffic.dropped == 10
    offline = world.connect("s", properties=Properties(session_expiry_interval=1000))
    offline.send(p.Subscribe(packet_id=1, requests=(p.SubscriptionRequest(topic_filter="u", qos=1),)))
    offline.lose()
    world.connect().send(*[p.Publish(topic="u", payload=b"x", qos=1, packet_id=n) for n in range(1, 6)])
    assert traffic.dropped == 13


def test_a_too_large_delivery_counts_as_dropped_once_at_each_qos(world: World) -> None:
    subscriber = world.connect("s", properties=Properties(maximum_packet_size=50))
    subscriber.send(p.Subscribe(packet_id=1, requests=(p.SubscriptionRequest(topic_filter="t", qos=2),)))
    publisher = world.connect()
    for qos in (0, 1, 2):
        answers = publisher.send(p.Publish(topic="t", payload=b"x" * 60, qos=qos, packet_id=qos))
        assert all(isinstance(a, p.Acknowledgement) and a.type is not PacketType.PUBREL for a in answers)
        assert world.node.state.traffic.dropped == qos + 1
    assert subscriber.publishes() == []


def test_an_interval_that_makes_no_sense_is_refused_by_name() -> None:
    for value in (-1, 0.01, 1e6):
        with pytest.raises(ConfigError, match=r"sys\.interval_s"):
            parse_config({"sys": {"interval_s": value}})

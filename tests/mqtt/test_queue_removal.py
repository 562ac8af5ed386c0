"""Queues that are deleted while MQTT clients use them."""

from __future__ import annotations

import json

import pytest

from assay.reference_broker.config import parse_config
from assay.reference_broker.mqtt.wire import packets as p
from tests.mqtt.conftest import Client, World
from tests.mqtt.test_queue_admin import admin_of, request


def consumer_of(world: World, queue: str, version: int = p.V5) -> Client:
    client = world.connect("c", version)
    client.send(p.Subscribe(packet_id=1, requests=(p.SubscriptionRequest(topic_filter=f"$queue/{queue}/#", qos=1),)))
    client.take()
    return client


def publish(client: Client, topic: str, payload: bytes = b"m", packet_id: int = 5) -> int:
    acks = client.send(p.Publish(topic=topic, payload=payload, qos=1, packet_id=packet_id))
    (ack,) = [packet for packet in acks if isinstance(packet, p.Acknowledgement)]
    return ack.reason


@pytest.mark.parametrize("version", [p.V311, p.V5])
def test_consumers_are_told_and_settlements_answered(world: World, version: int) -> None:
    consumer = consumer_of(world, "q", version)
    admin = admin_of(world)
    publish(admin, "$queue/q")
    (delivery,) = consumer.publishes()
    consumer.take()
    assert request(admin, "q/delete") == (0, {"deleted": "q"})
    (notice,) = consumer.publishes()
    assert notice.topic == "$queue/q/$ended"
    assert json.loads(notice.payload) == {"event": "deleted", "filter": "$queue/q/#"}
    consumer.take()
    consumer.send(p.Acknowledgement(type=p.PacketType.PUBACK, packet_id=delivery.packet_id))
    assert not consumer.closed
    if version == p.V5:
        properties = p.Properties(user_property=(("message-id", "q:0:0"), ("group-id", "c")))
        (ack,) = consumer.send(p.Publish(topic="$queue/q/$ack", payload=b"", qos=1, packet_id=3, properties=properties))
        assert isinstance(ack, p.Acknowledgement)
        assert ack.reason >= 0x80
    publish(admin, "$queue/q", b"new")
    assert consumer.publishes() == [], "it is not subscribed any more"
    (unsuback,) = consumer.send(p.Unsubscribe(packet_id=4, topic_filters=("$queue/q/#",)))
    assert isinstance(unsuback, p.Unsuback)


def test_who_was_away_is_told_when_it_returns(make_world: type[World]) -> None:
    world = make_world(parse_config({"queues": {"auto_create": False}}))
    admin = admin_of(world)
    assert request(admin, "create", {"name": "q"})[0] == 0
    client = world.connect("c", properties=p.Properties(session_expiry_interval=100))
    client.send(p.Subscribe(packet_id=1, requests=(p.SubscriptionRequest(topic_filter="$queue/q", qos=1),)))
    client.lose()
    assert request(admin, "q/delete")[0] == 0
    client = world.connect("c", clean_start=False)
    (notice,) = client.publishes()
    assert json.loads(notice.payload)["event"] == "unknown_queue"


def test_the_whole_life_of_a_queue(world: World) -> None:
    admin = admin_of(world)
    reason, answer = request(admin, "create", {"name": "a/b", "partitions": 2, "topics": ["t/#"]})
    assert (reason, answer["config"]["partitions"], answer["settings"]["topics"]) == (0, 2, ["t/#"])
    publish(admin, "t/1")
    assert request(admin, "a/b/partitions", {"count": 3}) == (0, {"count": 3})
    reason, answer = request(admin, "a/b/config", {"max_depth": 1})
    assert (reason, answer["config"]["max_depth"], answer["config"]["partitions"]) == (0, 1, 3)
    assert publish(admin, "$queue/a/b") == 0x97
    assert request(admin, "a/b/stats")[1]["capture_failures"] == 0
    assert request(admin, "a/b/purge") == (0, {"purged": 1})
    assert publish(admin, "$queue/a/b") == 0
    assert request(admin, "a/b/config", {"durability": "interval", "max_depth": 5})[0] == 0x87
    assert request(admin, "a/b/config")[1]["config"]["max_depth"] == 1
    assert request(admin, "a/b/delete")[0] == 0
    assert request(admin, "a/b/delete")[0] == 0x90
    assert request(admin, "dlq/a/b/stats")[0] == 0x90

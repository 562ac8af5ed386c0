"""Publishers to queues in memory wait while those hold too much; slow consumers are disconnected."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest

from assay.reference_broker.config import parse_config
from assay.reference_broker.mqtt.queue_topics.addresses import QueueTopics
from assay.reference_broker.mqtt.wire import packets as p
from assay.reference_broker.mqtt.wire.errors import Reason
from assay.reference_broker.mqtt.wire.packets import V5, V311
from assay.reference_broker.node import BrokerNode
from assay.reference_broker.routing.message import Message
from assay.reference_broker.storage.memory_disk import MemoryDisk

if TYPE_CHECKING:
    from tests.mqtt.conftest import Client, World

_LIMIT = 100_000


def _world(make_world: type[World], **defaults: object) -> World:
    queues = {"max_memory_bytes": _LIMIT, "defaults": {"durability": "memory", "partitions": 1, **defaults}}
    return make_world(parse_config({"queues": queues, "mqtt": {"receive_maximum": 1_000}}))


def _publish(client: Client, number: int) -> list[p.Packet]:
    return client.send(p.Publish(topic="$queue/q", payload=b"x" * 400, qos=1, packet_id=number % 60_000 + 1))


def _subscribe(topic_filter: str) -> p.Subscribe:
    return p.Subscribe(packet_id=1, requests=(p.SubscriptionRequest(topic_filter=topic_filter, qos=1),))


@pytest.mark.parametrize("version", [V311, V5])
def test_a_publisher_waits_until_enough_is_settled(make_world: type[World], version: int) -> None:
    world = _world(make_world)
    publisher = world.connect("publisher", version=version)
    sent = 0
    while not publisher.connection.wants_pause:
        answers = _publish(publisher, sent)
        assert [type(answer) for answer in answers] == [p.Acknowledgement]
        sent += 1
        world.wait(0.001)
    assert 50 < sent < _LIMIT // 400
    world.wait(5.0)
    assert publisher.connection.wants_pause
    consumer = world.connect("consumer", version=V311)
    consumer.auto_ack = True
    consumer.send(_subscribe("$queue/q"))
    world.wait(1.0)
    assert not publisher.connection.wants_pause
    assert not publisher.closed
    _publish(publisher, sent)


def test_who_consumes_as_well_is_refused_and_never_held_up(make_world: type[World]) -> None:
    world = _world(make_world, max_in_flight=1)
    both = world.subscribed("$queue/other", qos=1, client_id="both")
    reasons: list[int] = []
    for number in range(_LIMIT // 200):
        for answer in _publish(both, number):
            assert isinstance(answer, p.Acknowledgement)
            reasons.append(answer.reason)
        assert not both.connection.wants_pause
    assert reasons[0] == Reason.SUCCESS
    assert reasons[-1] == Reason.QUOTA_EXCEEDED


def test_a_paused_publisher_that_leaves_is_forgotten(make_world: type[World]) -> None:
    world = _world(make_world)
    publisher = world.connect("publisher")
    sent = 0
    while not publisher.connection.wants_pause:
        _publish(publisher, sent)
        sent += 1
    publisher.lose()
    assert not world.node.state.waiting_publishers


@pytest.mark.parametrize("action", ["disconnect", "drop"])
def test_a_slow_consumer_is_sent_away(make_world: type[World], action: str) -> None:
    world = make_world(
        parse_config(
            {
                "queues": {
                    "defaults": {
                        "durability": "memory",
                        "max_in_flight": 1,
                        "slow_consumer": {"action": action, "after_s": 10},
                    }
                }
            }
        )
    )
    publisher = world.connect("publisher")
    consumer = world.subscribed("$queue/q", qos=1, client_id="lazy")
    _publish(publisher, 0)
    assert len(consumer.publishes()) == 1
    world.wait(9.0)
    assert not consumer.closed
    world.wait(2.0)
    assert consumer.closed == (action == "disconnect")
    if action == "drop":
        assert consumer.send(p.Pingreq())
        assert isinstance(consumer.send(p.Unsubscribe(packet_id=9, topic_filters=("$queue/q",)))[0], p.Unsuback)
    other = world.connect("other")
    other.send(_subscribe("$queue/q"))
    stats = world.node.engine.stats("q")
    assert sum(group.slow_consumers for group in stats.groups) == 1
    assert stats.in_flight <= 2
    assert other.publishes()


def test_user_properties_press_like_payloads(make_world: type[World]) -> None:
    world = _world(make_world)
    publisher = world.connect("publisher")
    properties = p.Properties(user_property=tuple(("n", "v" * 1_000) for _ in range(10)))
    sent = 0
    while not publisher.connection.wants_pause and sent < 100:
        publisher.send(p.Publish(topic="$queue/q", payload=b"", qos=1, packet_id=sent + 1, properties=properties))
        sent += 1
    assert 5 < sent < 12
    memory = world.node.engine.memory
    assert memory is not None
    assert memory.held_bytes > _LIMIT * 0.9


def test_runs_are_counted_and_stop_at_the_limit(make_world: type[World]) -> None:
    world = _world(make_world)
    publisher = world.connect("publisher")
    run = [p.Publish(topic="$queue/q", payload=b"x" * 400, qos=1, packet_id=number + 1) for number in range(25)]
    sent = 0
    while not publisher.connection.wants_pause and sent < 1_000:
        publisher.send(*run)
        sent += len(run)
    assert 75 <= sent <= 150


def test_who_publishes_to_queues_on_disk_does_not_wait_for_those_in_memory() -> None:
    queues = {
        "max_memory_bytes": _LIMIT,
        "configured": [
            {"name": "m", "durability": "memory", "partitions": 1},
            {"name": "d", "durability": "interval", "partitions": 1},
        ],
    }
    config = parse_config({"data_dir": "/nowhere", "queues": queues})
    node = BrokerNode(config, MemoryDisk(), random.Random(1), 1_000.0)
    engine, topics = node.engine, node.state.topics
    for _ in range(500):
        if engine.is_pressed(topics.read("$queue/m").address):
            break
        QueueTopics(engine).publish(Message(topic="$queue/m", payload=b"x" * 400), 1_000.0)
    assert engine.is_pressed(topics.read("$queue/m").address)
    assert engine.is_pressed(topics.read("$queue/m/key").address)
    assert not engine.is_pressed(topics.read("$queue/d").address)
    assert not engine.is_pressed(topics.read("$queue/d/$ack").address)
    assert not engine.is_pressed(topics.read("$queue/unknown").address)
    node.close(1_000.0)

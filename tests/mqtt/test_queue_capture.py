"""Ordinary topics that a queue captures, over MQTT."""

from __future__ import annotations

import random

import pytest

from assay.reference_broker.config import BrokerConfig, parse_config
from assay.reference_broker.mqtt.wire import packets as p
from assay.reference_broker.node import BrokerNode
from assay.reference_broker.queues.jobs.background_job import BackgroundJob
from assay.reference_broker.storage.memory_disk import MemoryDisk
from tests.mqtt.conftest import World


def run_of(topic: str, count: int, qos: int = 1) -> list[p.Publish]:
    return [p.Publish(topic=topic, payload=b"%d" % n, qos=qos, packet_id=n + 1) for n in range(count)]


def test_runs_are_captured_and_forwarded_alike(make_world: type[World]) -> None:
    world = make_world(parse_config({"queues": {"configured": [{"name": "q", "topics": ["a/#"], "partitions": 1}]}}))
    watcher = world.subscribed("a/b", qos=1)
    publisher = world.connect("p")
    acks = publisher.send(*run_of("a/b", 9))
    assert [ack.reason for ack in acks if isinstance(ack, p.Acknowledgement)] == [0] * 9
    publisher.send(*run_of("a/b", 9, qos=0))
    assert len(watcher.publishes()) == 18
    assert world.node.engine.stats("q").captured == 18


def test_a_binding_takes_hold_of_plans_that_are_remembered(world: World) -> None:
    watcher = world.subscribed("a/b", qos=1)
    publisher = world.connect("p")
    publisher.send(*run_of("a/b", 9, qos=0))
    world.node.engine.create_queue("q", {"topics": ["a/b"]}, world.now)
    publisher.send(*run_of("a/b", 9, qos=0))
    assert world.node.engine.stats("q").captured == 9
    world.node.engine.update_queue("q", {"topics": []}, world.now)
    publisher.send(*run_of("a/b", 9, qos=0))
    assert world.node.engine.stats("q").captured == 9
    assert len(watcher.publishes()) == 27


def test_a_queue_that_refuses_changes_nothing_for_publishers(make_world: type[World]) -> None:
    entry = {"name": "q", "topics": ["#"], "max_depth": 1}
    world = make_world(parse_config({"queues": {"configured": [entry]}}))
    watcher = world.subscribed("a", qos=1)
    publisher = world.connect("p")
    for number in range(3):
        (ack,) = publisher.send(p.Publish(topic="a", payload=b"m", qos=1, packet_id=number + 1))
        assert isinstance(ack, p.Acknowledgement)
        assert ack.reason == 0
    (ack,) = publisher.send(p.Publish(topic="nobody", payload=b"m", qos=1, packet_id=9))
    assert isinstance(ack, p.Acknowledgement)
    assert ack.reason == 0x10, "no matching subscribers, as without the queue"
    assert len(watcher.publishes()) == 3
    stats = world.node.engine.stats("q")
    assert (stats.captured, stats.capture_failures) == (1, 3)


def test_subscribers_and_publishers_do_not_wait_for_the_disk_of_a_queue_that_captures(
    make_world: type[World], monkeypatch: pytest.MonkeyPatch
) -> None:
    entry = {"name": "q", "topics": ["a"], "partitions": 1, "durability": "fsync"}
    config = parse_config({"data_dir": "unused", "queues": {"configured": [entry]}})
    world = make_world(BrokerConfig())
    world.node = BrokerNode(config, MemoryDisk(), random.Random(1), world.now)
    watcher = world.subscribed("a", qos=1)
    publisher = world.connect("p")
    syncs: list[BackgroundJob] = []

    def turn() -> None:
        while dirty := world.node.take_dirty(world.now):
            for connection in dirty:
                world.clients[connection].flush()
        syncs.extend(world.node.take_jobs(world.now))

    monkeypatch.setattr(world, "turn", turn)
    for number in range(3):
        (ack,) = publisher.send(p.Publish(topic="a", payload=b"m", qos=1, packet_id=number + 1))
        assert isinstance(ack, p.Acknowledgement)
        assert len(watcher.publishes()) == number + 1
    assert world.node.engine.stats("q").captured == 0
    assert len(syncs) == 1, "the disk is still at the first"


def test_runs_of_queue_messages_reach_every_queue(world: World) -> None:
    world.node.engine.create_queue("audit", {"topics": ["$queue/orders/#"]}, world.now)
    publisher = world.connect("p")
    acks = publisher.send(*run_of("$queue/orders/new", 50))
    assert [ack.reason for ack in acks if isinstance(ack, p.Acknowledgement)] == [0] * 50
    assert [world.node.engine.stats(queue).depth for queue in ("orders", "audit")] == [50, 50]


def test_wills_and_retained_messages_are_captured_too(world: World) -> None:
    world.node.engine.create_queue("q", {"topics": ["a/#"]}, world.now)
    will = p.WillFields(topic="a/will", payload=b"gone", qos=1, retain=False)
    client = world.connect("c", will=will)
    client.send(p.Publish(topic="a/kept", payload=b"m", qos=1, packet_id=1, retain=True))
    client.lose()
    assert world.node.engine.stats("q").captured == 2

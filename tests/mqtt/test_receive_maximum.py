"""How many publishes a client may have unfinished at once (5.0 section 4.9): per connection, each publish once."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest

from assay.reference_broker.config import BrokerConfig, MqttConfig
from assay.reference_broker.mqtt.wire import packets as p
from assay.reference_broker.node import BrokerNode
from assay.reference_broker.queues import BackgroundJob
from assay.sim.disk import SimDisk

if TYPE_CHECKING:
    from tests.mqtt.conftest import Client, World

K = p.PacketType
LIMIT = 3
CONFIG = BrokerConfig(mqtt=MqttConfig(receive_maximum=LIMIT))
FOR_EVER = p.Properties(session_expiry_interval=0xFFFFFFFF)


def publish(packet_id: int, qos: int, topic: str = "t", *, dup: bool = False) -> p.Publish:
    return p.Publish(topic=topic, payload=b"x", qos=qos, packet_id=packet_id, dup=dup)


def reasons(client: Client) -> list[int]:
    return [packet.reason for packet in client.inbox if isinstance(packet, p.Disconnect)]


def unfinished(world: World) -> Client:
    """A client whose earlier connection left as many QoS 2 exchanges open as are allowed."""
    client = world.connect("c", properties=FOR_EVER, clean_start=False)
    client.send(*(publish(packet_id, 2) for packet_id in range(1, LIMIT + 1)))
    client.lose()
    client = world.connect("c", properties=FOR_EVER, clean_start=False)
    client.take()
    return client


@pytest.mark.parametrize("together", [True, False])
def test_the_quota_starts_anew_with_each_connection(make_world: type[World], together: bool) -> None:
    client = unfinished(make_world(CONFIG))
    fresh = [publish(10 + number, 2) for number in range(LIMIT)]
    for chunk in [fresh] if together else [[packet] for packet in fresh]:
        client.send(*chunk)
    assert not client.closed
    client.send(publish(20, 2))
    assert reasons(client) == [0x93]


def test_what_is_published_again_counts_again(make_world: type[World]) -> None:
    client = unfinished(make_world(CONFIG))
    client.send(publish(1, 2, dup=True), publish(10, 2), publish(11, 2))
    assert not client.closed
    client.send(publish(12, 2))
    assert reasons(client) == [0x93]


def test_a_released_id_gives_its_place_back(make_world: type[World]) -> None:
    client = unfinished(make_world(CONFIG))
    client.send(p.Acknowledgement(type=K.PUBREL, packet_id=1))
    client.send(publish(1, 2), publish(10, 2), publish(11, 2))
    assert not client.closed, "the released id counted for the earlier connection only"
    client.send(publish(12, 2))
    assert reasons(client) == [0x93]


@pytest.mark.parametrize("qos", [1, 2])
def test_a_publish_that_waits_for_the_disk_counts_once(make_world: type[World], qos: int) -> None:
    world = make_world(CONFIG)
    node = world.node = BrokerNode(CONFIG, SimDisk(random.Random(1)), random.Random(1), world.now)
    client = world.connect("c")
    client.take()
    jobs: list[BackgroundJob] = []

    def turn() -> None:
        while dirty := node.take_dirty(world.now):
            for connection in dirty:
                world.clients[connection].flush()
        jobs.extend(node.take_jobs(world.now))

    world.turn = turn  # type: ignore[method-assign]
    client.send(*(publish(packet_id, qos, "$queue/q") for packet_id in range(1, LIMIT + 1)))
    assert client.inbox == [], "the syncs have not ended"
    assert not client.closed
    while jobs:  # the queue is made, and then what was published
        job = jobs.pop(0)
        job.run()
        node.job_done(job, None, world.now)
        turn()
    assert len(client.take()) == LIMIT
    if qos == 1:
        client.send(*(publish(packet_id, qos, "$queue/q") for packet_id in range(1, LIMIT + 1)))
        assert not client.closed, "what was acknowledged is finished"
    client.send(publish(10, qos, "$queue/q"))
    assert reasons(client) == [0x93]

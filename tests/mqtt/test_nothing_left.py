"""Every way in which connections, sessions and consumers end: no reference cycle is left for the garbage collector."""

from __future__ import annotations

import random
import tracemalloc
from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

from assay.reference_broker.auth import hash_password
from assay.reference_broker.auth_scram import derive_credentials
from assay.reference_broker.config import BrokerConfig, Durability, parse_config
from assay.reference_broker.mqtt.wire import packets as p
from assay.reference_broker.mqtt.wire.codec import encode_packet
from assay.reference_broker.mqtt.wire.errors import Reason
from assay.reference_broker.mqtt.wire.packets import V5, V311, Properties
from assay.reference_broker.node import BrokerNode
from assay.reference_broker.storage.memory_disk import MemoryDisk
from tests.garbage import cycles_left

if TYPE_CHECKING:
    from tests.mqtt.conftest import Client, World

Life = Callable[["World"], None]
LIVES: dict[str, tuple[Life, BrokerConfig]] = {}


def life(run: Life) -> Life:
    LIVES[run.__name__] = run, BrokerConfig()
    return run


def life_with(**sections: object) -> Callable[[Life], Life]:
    def add(run: Life) -> Life:
        LIVES[run.__name__] = run, parse_config(sections)
        return run

    return add


def subscribe(topic_filter: str, qos: int = 1) -> p.Subscribe:
    return p.Subscribe(packet_id=1, requests=(p.SubscriptionRequest(topic_filter=topic_filter, qos=qos),))


def publish(topic: str, qos: int = 1, packet_id: int = 9, payload: bytes = b"x") -> p.Publish:
    return p.Publish(topic=topic, payload=payload, qos=qos, packet_id=packet_id if qos else 0)


def lasting(world: World, client_id: str = "c", **fields: object) -> Client:
    fields = {"clean_start": False, "properties": Properties(session_expiry_interval=10), **fields}
    return world.connect(client_id, **fields)


@life
def says_goodbye(world: World) -> None:
    for version in (V311, V5):
        client = world.connect("c", version)
        client.send(subscribe("t/+"), publish("t/1"), p.Pingreq())
        client.send(p.Disconnect())
        client.lose()


@life
def is_lost(world: World) -> None:
    client = world.connect("c")
    client.send(subscribe("t/#", 2), publish("t/1", 2), publish("t/2", 0))
    client.lose()


@life
def never_connects(world: World) -> None:
    client = world.open()
    world.wait(world.node.config.mqtt.connect_timeout_s + 1)
    client.lose()
    world.open().lose()


@life
def breaks_a_rule(world: World) -> None:
    client = world.connect("c")
    client.send_bytes(b"\xf0\x01\x00\x00")
    client.lose()
    client = world.connect("c")
    client.send(publish("a/#"))
    client.lose()
    client = world.open()
    client.send_bytes(b"\x10\x02\0\0")
    client.lose()
    client = world.open()
    client.send(p.Pingreq())
    client.lose()


@life
def misses_its_keep_alive(world: World) -> None:
    client = world.connect("c", keep_alive_s=5)
    world.wait(30)
    client.lose()


@life
def is_taken_over(world: World) -> None:
    first = lasting(world)
    second = lasting(world)
    first.lose()
    third = world.connect("c", clean_start=True)
    second.lose()
    third.lose()


@life
def is_refused(world: World) -> None:
    client = world.open(V311)
    client.send(p.Connect(version=V311, client_id="", clean_start=False))
    client.lose()


@life
def expires(world: World) -> None:
    client = lasting(world)
    client.send(subscribe("t/#", 2))
    client.lose()
    other = world.connect("other")
    other.send(publish("t/1"), publish("t/1", 2, 10))
    world.wait(11)
    other.send(publish("t/1"))
    other.send(p.Disconnect())
    other.lose()


@life
def comes_back(world: World) -> None:
    client = lasting(world)
    client.send(subscribe("t/#", 2), publish("t/1", 2), publish("t/2", 1))
    client.lose()
    client = lasting(world)
    client.auto_ack = True
    world.turn()
    client.send(p.Disconnect(properties=Properties(session_expiry_interval=0)))
    client.lose()


@life
def leaves_a_will(world: World) -> None:
    will = p.WillFields(topic="w", payload=b"gone", qos=1, retain=False)
    for delay_s in (0, 5, 20):
        later = Properties(will_delay_interval=delay_s)
        fields = p.WillFields(topic="w", payload=b"gone", qos=1, retain=False, properties=later)
        lasting(world, will=fields).lose()
        world.wait(11)
    world.connect("c", will=will).lose()
    client = lasting(world, will=will)
    client.lose()
    world.connect("c", clean_start=True).lose()


@life
def does_not_take_what_it_is_sent(world: World) -> None:
    client = world.connect("c")
    client.send(subscribe("t/#"))
    other = world.connect("other")
    for number in range(1, 6):
        other.send(publish("t/1", packet_id=number))
    client.connection.transport_stalled(world.now)
    client.lose()
    other.lose()


@life
def gets_errors(world: World) -> None:
    client = world.connect("c")
    client.send(
        publish("$SYS/x"), publish("$queue/q/$ack"), publish("$queue/", packet_id=10), subscribe("$queue/q/$ack")
    )
    client.send(publish("$admin/queue/nothing", packet_id=11), publish("$txn/commit", packet_id=12))
    client.send(publish("$queue/q/$commit", packet_id=13), publish("$queue/q/$nothing", packet_id=14))
    client.lose()


@life
def consumes(world: World) -> None:
    for version in (V311, V5):
        client = world.connect("c", version)
        client.send(subscribe("$queue/q"), publish("$queue/q"))
        assert client.publishes()
        client.send(subscribe("$queue/q"))
        if version == V5:
            client.send(p.Unsubscribe(packet_id=3, topic_filters=("$queue/q",)))
        client.lose()


@life
def consumes_in_a_session_that_expires(world: World) -> None:
    client = lasting(world)
    client.send(subscribe("$queue/s"), publish("$queue/s"))
    client.lose()
    client = lasting(world)
    world.wait(1)
    assert client.publishes()
    client.lose()
    world.wait(11)


@life
def shares(world: World) -> None:
    first, second = world.connect("a"), lasting(world, "b")
    for client in (first, second):
        client.send(subscribe("$share/g/t/+"))
    first.send(*(publish("t/1", packet_id=number) for number in range(1, 9)))
    first.lose()
    second.send(p.Unsubscribe(packet_id=3, topic_filters=("$share/g/t/+",)))
    second.lose()
    world.wait(11)


def deletes_queues(world: World) -> None:
    client = world.connect("c")
    client.send(subscribe("$queue/d"), *(publish("$queue/d", packet_id=number) for number in range(10, 20)))
    client.send(publish("$admin/queue/d/delete", packet_id=20, payload=b""))
    assert "d" not in world.node.engine.queues()
    client.lose()

    client = world.connect("c")
    client.send(publish("$admin/queue/e", packet_id=20, payload=b""), subscribe("$queue/e"))
    client.send(publish("$admin/queue/create", payload=b'{"name": "e", "ephemeral": true}', packet_id=21))
    client.lose()
    world.wait(3600)


@life
def delays_messages(world: World) -> None:
    client = world.connect("c")
    client.send(subscribe("$queue/l"))
    delay = Properties(user_property=(("delay-ms", "500"),))
    client.send(p.Publish(topic="$queue/l", payload=b"x", qos=1, packet_id=2, properties=delay))
    client.lose()
    world.wait(5)


@life
def works_in_transactions(world: World) -> None:
    client = world.connect("c")

    def asked(operation: str, **named: str) -> dict[str, str]:
        pairs = tuple((name.replace("_", "-"), value) for name, value in named.items())
        request = p.Publish(
            topic=f"$txn/{operation}", payload=b"", qos=1, packet_id=9, properties=Properties(user_property=pairs)
        )
        answer = client.send(request)[-1]
        assert isinstance(answer, p.Acknowledgement)
        return {name.replace("-", "_"): value for name, value in answer.properties.user_property}

    producer = asked("init", transactional_id="app")
    for end in ("commit", "abort"):
        transaction = asked("begin", **producer)
        assert asked("add", **producer, **transaction, queue="x", partition="0") == {"state": "open"}
        asked(end, **producer, **transaction)
    asked("commit", **producer)
    asked("begin", **producer)
    client.lose()
    world.wait(3600)


@life_with(auth={"users": [{"username": "u", "password_hash": hash_password(b"secret")}], "anonymous": True})
def gives_passwords(world: World) -> None:
    for password in (b"secret", b"wrong"):
        client = world.open()
        client.send(p.Connect(version=V5, client_id="c", username="u", password=password, clean_start=True))
        client.lose()
    client = world.open()
    connect = p.Connect(version=V5, client_id="c", username="u", password=b"other", clean_start=True)
    world.node.receive(client.connection, encode_packet(connect, V5), world.now)
    world.node.connection_lost(client.connection, world.now)
    world.turn()


@life_with(auth={"users": [{"username": "a", "scram_sha_256": derive_credentials("secret", b"s" * 16, 4096).encode()}]})
def is_in_the_middle_of_scram(world: World) -> None:
    properties = Properties(authentication_method="SCRAM-SHA-256", authentication_data=b"n,,n=a,r=abcdefgh")
    for data in (b"nonsense", None):
        client = world.open()
        client.send(p.Connect(version=V5, client_id="c", properties=properties))
        if data is not None:
            answer = Properties(authentication_method="SCRAM-SHA-256", authentication_data=data)
            client.send(p.Auth(reason=Reason.CONTINUE_AUTHENTICATION, properties=answer))
        client.lose()
    client = world.open()
    client.send(p.Connect(version=V5, client_id="c", properties=Properties(authentication_method="no")))
    client.lose()


@life_with(limits={"publish_messages_per_s": 1.0, "connects_per_s": 0.001, "connect_burst": 2, "max_payload_bytes": 5})
def is_over_limits(world: World) -> None:
    client = world.open(source=("here", "1.2.3.4"))
    client.send(p.Connect(version=V5, client_id="c"))
    client.send(*(publish("t", packet_id=number) for number in range(1, 9)))
    client.lose()
    client = world.connect("c")
    client.send(publish("t", payload=b"too long"))
    client.lose()


@life_with(server_reference={"address": "there", "at_connect": True})
def is_sent_away(world: World) -> None:
    for version in (V311, V5):
        client = world.open(version)
        client.send(p.Connect(version=version, client_id="c"))
        client.lose()


@life_with(sessions={"durability": "fsync"})
def holds_output(world: World) -> None:
    client = lasting(world)
    client.send(subscribe("t/#", 2))
    client.send(publish("t/1", 1), publish("t/2", 2, 10))
    data = encode_packet(publish("t/1", 1, 11), V5)
    world.node.receive(client.connection, data, world.now)
    world.node.connection_lost(client.connection, world.now)
    world.turn()
    lasting(world).lose()
    world.wait(11)


@life_with(queues={"defaults": {"slow_consumer": {"action": "disconnect", "after_s": 1}, "max_in_flight": 5}})
def settles_nothing(world: World) -> None:
    client = world.connect("c")
    client.send(subscribe("$queue/q"), *(publish("$queue/q", packet_id=1 + number) for number in range(200)))
    world.wait(60)
    assert client.closed
    client.lose()


@pytest.mark.parametrize("name", LIVES)
def test_no_cycle_is_left(make_world: type[World], name: str) -> None:
    run, config = LIVES[name]
    world = make_world(config)
    if config.sessions.durability is Durability.FSYNC:
        world.node = BrokerNode(config, MemoryDisk(), random.Random(1), world.now)

    def live() -> None:
        run(world)
        world.clients.clear()

    assert cycles_left(live) == {}


def test_a_deleted_queue_leaves_nothing_of_what_it_held(make_world: type[World]) -> None:
    """Its closed logs are cycles of a few objects each, whatever they held."""
    world = make_world()

    def live() -> None:
        deletes_queues(world)
        world.clients.clear()

    left = cycles_left(live)
    names = {"DurableQueue", "ConsumerGroup", "GroupPartition", "PendingEntry", "Consumer", "Session", "MqttConnection"}
    assert not names & left.keys()
    assert left["SegmentedLog"] <= 3 * 10


def test_no_cycle_is_left_of_connections_when_the_broker_stops(make_world: type[World]) -> None:
    worlds: list[World] = []

    def live() -> None:
        world = make_world()
        worlds.append(world)
        client = world.connect("c")
        client.send(subscribe("$queue/q"), publish("$queue/q"), subscribe("t"))
        world.node.close(world.now)
        client.lose()
        world.clients.clear()

    assert cycles_left(live) == {}


def test_dead_clients_are_forgotten(make_world: type[World]) -> None:
    """Names, filters and topics that never come again leave nothing that grows."""
    world = make_world()

    def lives(first: int, count: int) -> int:
        tracemalloc.start()
        for number in range(first, first + count):
            client = lasting(world, f"client-{number}")
            client.send(subscribe(f"t/{number}/#"), publish(f"t/{number}/x"))
            client.send(publish(f"u/{number}", 0), publish(f"u/{number}", 2, 10))
            client.send(subscribe("$queue/q"))
            client.lose()
            world.clients.clear()
            world.wait(11)
        used, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        return used

    lives(0, 100)
    assert lives(100, 400) < 1_000_000

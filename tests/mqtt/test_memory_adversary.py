"""A crowd that fills every bound in turn: all that the broker holds, found by walking its objects, is accounted for."""

from __future__ import annotations

import gc
import random
import sys
from collections.abc import Callable
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import TYPE_CHECKING

import msgspec
import pytest

from assay.reference_broker.config import BrokerConfig, MqttConfig, parse_config
from assay.reference_broker.core import routing
from assay.reference_broker.mqtt.connections import inbound
from assay.reference_broker.mqtt.sessions import mqtt_broker
from assay.reference_broker.mqtt.wire import packets as p
from assay.reference_broker.mqtt.wire.codec import encode_packet

if TYPE_CHECKING:
    from assay.reference_broker.node import BrokerNode
    from tests.mqtt.conftest import Client, World

_CODE = (type, ModuleType, FunctionType, BuiltinFunctionType, random.Random, BrokerConfig)
_CLIENTS = 6
_QUEUE_BYTES = 200_000
_ROUTE_BYTES = 100_000
_LIMITS = MqttConfig(
    max_queued_bytes=60_000,
    max_inflight_bytes=60_000,
    max_held_bytes=300_000,
    max_retained_bytes=150_000,
    max_filter_bytes=250_000,
    max_alias_bytes=100_000,
    max_partial_bytes=150_000,
    max_packet_bytes=100_000,
)


def _walk(node: BrokerNode) -> int:
    """Bytes of all objects that are reached from the node."""
    seen: set[int] = set()
    stack: list[object] = [node]
    size = 0
    while stack:
        thing = stack.pop()
        if id(thing) in seen or isinstance(thing, _CODE):
            continue
        seen.add(id(thing))
        size += sys.getsizeof(thing)
        if isinstance(thing, msgspec.Struct):
            # Those that the garbage collector does not know tell it of no others.
            stack.extend(getattr(thing, name) for name in thing.__struct_fields__)
        stack.extend(gc.get_referents(thing))
    return size


def _accounted(node: BrokerNode) -> int:
    state = node.state
    memory = node.engine.memory
    assert memory is not None
    return (
        state.held.used
        + state.retained.held_bytes
        + state.filter_memory.used
        + state.alias_memory.used
        + state.partial_packets.used_bytes
        + state.plan_memory.used_bytes
        + state.tree.route_bytes
        + memory.held_bytes
    )


def _queues_messages(world: World, clients: list[Client], rng: random.Random) -> None:
    """With properties, long topics and no payload, for many who never acknowledge or are not there."""
    for number, client in enumerate(clients):
        client.auto_ack = False
        client.send(p.Subscribe(packet_id=1, requests=(p.SubscriptionRequest(topic_filter=f"m/{number}/#", qos=1),)))
    for client in clients[:3]:
        client.lose()
    for round_ in range(60):
        for number in range(len(clients)):
            pairs = tuple(("n" * rng.randint(1, 50), "v" * rng.randint(0, 2_000)) for _ in range(rng.randint(0, 5)))
            topic = f"m/{number}/" + "t" * rng.randint(0, 2_000)
            properties = p.Properties(user_property=pairs, correlation_data=b"c" * rng.randint(0, 1_000))
            packet = p.Publish(topic=topic, payload=b"", qos=1, packet_id=round_ + 1, properties=properties)
            clients[-1].send(packet)


def _retains(world: World, clients: list[Client], rng: random.Random) -> None:
    for number in range(400):
        topic = f"r/{number}/" + "/".join("l" * rng.randint(0, 5) for _ in range(rng.randint(1, 60)))
        clients[number % 6].send(p.Publish(topic=topic, payload=b"x" * rng.randint(1, 3_000), retain=True))


def _subscribes(world: World, clients: list[Client], rng: random.Random) -> None:
    for number in range(300):
        levels = "/".join("f" * rng.randint(1, 30) for _ in range(rng.randint(1, 100)))
        request = p.SubscriptionRequest(topic_filter=f"{levels}/{number}/+", qos=1)
        clients[number % 6].send(p.Subscribe(packet_id=1, requests=(request,)))


def _sets_aliases(world: World, clients: list[Client], rng: random.Random) -> None:
    for number in range(6 * 64):
        topic = "a" * rng.randint(1, 5_000)
        properties = p.Properties(topic_alias=number // 6 + 1)
        if not clients[number % 6].closed:
            clients[number % 6].send(p.Publish(topic=topic, payload=b"", properties=properties))


def _publishes_to_new_topics(world: World, clients: list[Client], rng: random.Random) -> None:
    for number in range(1_500):
        packet = p.Publish(topic=f"n/{number}/" + "x" * rng.randint(0, 3_000), payload=b"")
        clients[number % 6].send(packet)


def _begins_packets(world: World, clients: list[Client], rng: random.Random) -> None:
    for client in [*clients, *(world.open() for _ in range(4))]:
        packet = p.Publish(topic="t", payload=b"x" * 90_000)
        if client.connection.phase.name == "CONNECTED":
            client.send_bytes(encode_packet(packet, 5)[:-1])
        else:
            client.send_bytes(b"\x10\xff\xff\x04" + b"x" * 60_000)
        world.wait(0.01)


def _fills_queues(world: World, clients: list[Client], rng: random.Random) -> None:
    for number in range(600):
        pairs = tuple(("n", "v" * rng.randint(0, 1_000)) for _ in range(rng.randint(0, 3)))
        packet = p.Publish(
            topic=f"$queue/q{number % 4}",
            payload=b"x" * rng.randint(0, 500),
            qos=1,
            packet_id=number % 60_000 + 1,
            properties=p.Properties(user_property=pairs),
        )
        client = clients[number % 6]
        if not client.connection.wants_pause:
            client.send(packet)


def _fills_queues_beside_payloads(world: World, clients: list[Client], rng: random.Random) -> None:
    """With what the limits of a queue do not count: long names, and properties that are no user properties."""
    for number in range(600):
        long = rng.choice(("name", "correlation", "answer", "kind", "none"))
        some = rng.randint(0, 4_000)
        packet = p.Publish(
            topic=f"$queue/q{number % 4}/" + ("k" * some if long == "name" else str(number)),
            payload=b"x" * rng.randint(0, 50),
            qos=1,
            packet_id=number % 60_000 + 1,
            properties=p.Properties(
                correlation_data=b"c" * some if long == "correlation" else None,
                response_topic="a" * some + "a" if long == "answer" else None,
                content_type="t" * some if long == "kind" else None,
            ),
        )
        client = clients[number % 6]
        if not client.connection.wants_pause:
            client.send(packet)


@pytest.mark.parametrize(
    "attack",
    [
        _queues_messages,
        _retains,
        _subscribes,
        _sets_aliases,
        _publishes_to_new_topics,
        _begins_packets,
        _fills_queues,
        _fills_queues_beside_payloads,
    ],
)
def test_what_is_held_stays_below_the_sum_of_the_bounds(
    make_world: type[World],
    monkeypatch: pytest.MonkeyPatch,
    attack: Callable[[World, list[Client], random.Random], None],
) -> None:
    monkeypatch.setattr(inbound, "MAX_PLAN_BYTES", _ROUTE_BYTES)
    monkeypatch.setattr(mqtt_broker, "MAX_ALL_PLAN_BYTES", _ROUTE_BYTES)
    monkeypatch.setattr(routing, "MAX_CACHED_ROUTE_BYTES", _ROUTE_BYTES)
    queues = {"max_memory_bytes": _QUEUE_BYTES, "defaults": {"durability": "memory", "partitions": 1}}
    config = msgspec.structs.replace(parse_config({"queues": queues}), mqtt=_LIMITS)
    world = make_world(config)
    bounds = (
        _LIMITS.max_held_bytes
        + _LIMITS.max_retained_bytes
        + _LIMITS.max_filter_bytes
        + _LIMITS.max_alias_bytes
        + _LIMITS.max_partial_bytes
        + 2 * _ROUTE_BYTES
        + _QUEUE_BYTES
    )
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    lasting = p.Properties(session_expiry_interval=1_000)
    clients = [world.connect(f"c{number}", properties=lasting) for number in range(_CLIENTS)]
    for number in range(4):
        clients[0].send(p.Publish(topic=f"$queue/q{number}", payload=b"x", qos=1, packet_id=1))
    gc.collect()
    empty, accounted_empty = _walk(world.node), _accounted(world.node)
    attack(world, clients, rng)
    for client in clients:
        if client.closed:
            client.lose()
    gc.collect()
    accounted = _accounted(world.node) - accounted_empty
    grown = _walk(world.node) - empty
    # Not much more where what is remembered was just forgotten as a whole.
    assert accounted > 3_000, "the attack reaches something"
    assert accounted <= bounds
    assert grown <= bounds
    # Beside what is counted there are only connections and sessions, whose number is bounded.
    assert grown <= 1.1 * accounted + 20_000, f"{grown} bytes are held, {accounted} are accounted for"

"""Retained messages reach a subscriber as it takes them: all of them, none of them stale, a bounded part each turn."""

from __future__ import annotations

import random

import pytest

from assay.reference_broker.config import BrokerConfig, Durability, MqttConfig, SessionsConfig
from assay.reference_broker.mqtt.sessions.sending import MESSAGE_WORK, PORTION, TURN_WORK
from assay.reference_broker.mqtt.wire import packets as p
from assay.reference_broker.mqtt.wire.properties import Properties
from assay.reference_broker.node import BrokerNode
from assay.reference_broker.storage.memory_disk import MemoryDisk
from tests.mqtt.conftest import Client, World

COUNT = 300


def _retain(world: World, count: int = COUNT, qos: int = 1, topic: str = "r") -> Client:
    publisher = world.connect()
    publisher.auto_ack = True
    for number in range(count):
        publisher.send(
            p.Publish(topic=f"{topic}/{number}", payload=b"old", qos=qos, packet_id=qos and number + 1, retain=True)
        )
    return publisher


def _subscribe(client: Client, *filters: str, qos: int = 1, identifier: int = 0) -> None:
    properties = Properties(subscription_identifier=(identifier,)) if identifier else p.NO_PROPERTIES
    requests = tuple(p.SubscriptionRequest(topic_filter=each, qos=qos) for each in filters)
    client.send(p.Subscribe(packet_id=1, requests=requests, properties=properties))


def _topics(client: Client) -> list[str]:
    return [message.topic for message in client.publishes()]


def _acknowledge_all(client: Client) -> None:
    """One after the other, until nothing more comes."""
    kinds = p.PacketType
    at = 0
    while at < len(client.inbox):
        packet = client.inbox[at]
        if isinstance(packet, p.Publish) and packet.qos:
            kind = kinds.PUBACK if packet.qos == 1 else kinds.PUBREC
            client.send(p.Acknowledgement(type=kind, packet_id=packet.packet_id))
        elif isinstance(packet, p.Acknowledgement) and packet.type is kinds.PUBREL:
            client.send(p.Acknowledgement(type=kinds.PUBCOMP, packet_id=packet.packet_id))
        at += 1


@pytest.mark.parametrize("version", [p.V311, p.V5])
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_more_than_window_and_queue_hold_arrive_completely(make_world: type[World], version: int, qos: int) -> None:
    world = make_world(BrokerConfig(mqtt=MqttConfig(max_inflight_out=10, max_queued_messages=20)))
    _retain(world, qos=qos)
    client = world.connect("c", version)
    _subscribe(client, "r/#", qos=qos)
    first = len(client.publishes())
    assert first == (COUNT if qos == 0 else 10)
    assert len(client.connection.active_session.queued) == 0, "no copies wait"
    _acknowledge_all(client)
    assert _topics(client) == [f"r/{number}" for number in range(COUNT)]
    assert all(message.retain and message.qos == qos for message in client.publishes())
    assert world.node.state.traffic.dropped == 0
    assert client.connection.active_session.retained is None


def test_a_window_of_one_is_enough(world: World) -> None:
    _retain(world, 50)
    client = world.connect("c", properties=Properties(receive_maximum=1))
    _subscribe(client, "r/#", identifier=9)
    for number in range(50):
        (message,) = client.publishes()
        assert (message.topic, message.properties.subscription_identifier) == (f"r/{number}", (9,))
        client.inbox.clear()
        client.send(p.Acknowledgement(type=p.PacketType.PUBACK, packet_id=message.packet_id))
    assert client.publishes() == []


def test_what_is_replaced_or_removed_meanwhile_is_sent_new_or_not_at_all(world: World) -> None:
    publisher = _retain(world, 30)
    client = world.connect("c", properties=Properties(receive_maximum=1))
    _subscribe(client, "r/#")
    publisher.send(p.Publish(topic="r/20", payload=b"new", qos=1, packet_id=1, retain=True))
    publisher.send(p.Publish(topic="r/21", payload=b"", qos=1, packet_id=2, retain=True))
    publisher.send(p.Publish(topic="r/99", payload=b"new", qos=1, packet_id=3, retain=True))
    _acknowledge_all(client)
    seen: dict[str, list[tuple[bytes, bool]]] = {}
    for message in client.publishes():
        seen.setdefault(message.topic, []).append((message.payload, message.retain))
    assert seen.keys() == {f"r/{number}" for number in (*range(30), 99)}
    assert (b"old", True) not in seen["r/20"]
    assert seen["r/21"] == [(b"", False)], "what was published meanwhile came as it was published"
    assert seen["r/99"] == [(b"new", False)]
    for number in (*range(20), *range(22, 30)):
        assert seen[f"r/{number}"] == [(b"old", True)]


@pytest.mark.parametrize("payload", [b"new", b""])
@pytest.mark.parametrize("back", [True, False])
def test_the_next_one_is_sent_as_it_is_when_there_is_room(world: World, payload: bytes, *, back: bool) -> None:
    """It was looked at when the window was full, to see whether there is one."""
    publisher = _retain(world, 2)
    client = world.connect("c", properties=Properties(receive_maximum=1))
    _subscribe(client, "r/#")
    publisher.send(p.Publish(topic="r/1", payload=payload, qos=1, packet_id=1, retain=True))
    if back:
        publisher.send(p.Publish(topic="r/1", payload=b"back", qos=1, packet_id=2, retain=True))
    _acknowledge_all(client)
    seen = [(message.payload, message.retain) for message in client.publishes() if message.topic == "r/1"]
    live = [(payload, False), *[(b"back", False)] * back]
    retained = [] if not payload else [(b"back" if back else b"new", True)]
    assert sorted(seen) == sorted([*live, *retained])
    assert client.connection.active_session.retained is None


@pytest.mark.parametrize("seed", range(4))
def test_nothing_older_follows_what_is_newer(make_world: type[World], seed: int) -> None:
    rng = random.Random(seed)
    world = make_world(BrokerConfig(mqtt=MqttConfig(max_inflight_out=3, max_queued_messages=100_000)))
    publisher = world.connect()
    publisher.auto_ack = True
    value = 0

    def publish() -> None:
        nonlocal value
        value += 1
        topic = f"r/{rng.randrange(40)}"
        publisher.send(p.Publish(topic=topic, payload=b"%d" % value, qos=1, packet_id=value % 999 + 1, retain=True))

    for _ in range(200):
        publish()
    client = world.connect("c")
    _subscribe(client, "r/#")
    waiting = [message.packet_id for message in client.publishes()]
    while waiting or client.connection.active_session.retained is not None:
        for _ in range(rng.randrange(3)):
            if value < 1_000:
                publish()
        before = len(client.publishes())
        client.send(p.Acknowledgement(type=p.PacketType.PUBACK, packet_id=waiting.pop(0)))
        waiting = [*waiting, *(message.packet_id for message in client.publishes()[before:])]
        arrived = [message.packet_id for message in client.publishes()]
        waiting = arrived[len(arrived) - len(waiting) :]
    latest: dict[str, int] = {}
    for message in client.publishes():
        assert int(message.payload) >= latest.get(message.topic, 0), f"seed {seed}: {message.topic} went back"
        latest[message.topic] = int(message.payload)
    assert latest == {
        message.topic: int(message.payload) for message in world.node.state.retained.match("#", world.now)
    }


def test_subscriptions_are_served_in_order_and_each_for_itself(world: World) -> None:
    _retain(world, 5)
    client = world.connect("c", properties=Properties(receive_maximum=2))
    client.auto_ack = True
    _subscribe(client, "r/#", "r/#", "r/3", "nothing/+", "r/+")
    every = [f"r/{number}" for number in range(5)]
    assert _topics(client) == [*every, *every, "r/3", *every]


def test_unsubscribing_ends_what_was_not_sent(world: World) -> None:
    _retain(world, 20)
    _retain(world, 2, topic="s")
    client = world.connect("c", properties=Properties(receive_maximum=2))
    _subscribe(client, "r/#", "s/#")
    client.send(p.Unsubscribe(packet_id=2, topic_filters=("r/#",)))
    _acknowledge_all(client)
    assert _topics(client) == ["r/0", "r/1", "s/0", "s/1"]


@pytest.mark.parametrize("version", [p.V311, p.V5])
def test_a_session_that_returns_gets_what_was_not_sent(world: World, version: int) -> None:
    _retain(world, 40)
    lasting = Properties(session_expiry_interval=100, receive_maximum=5) if version == p.V5 else p.NO_PROPERTIES
    client = world.connect("c", version, clean_start=False, properties=lasting)
    client.connection.active_session.receive_maximum = client.connection.active_session.window = 5
    _subscribe(client, "r/#")
    assert len(_topics(client)) == 5
    client.lose()
    again = world.connect("c", version, clean_start=False, properties=lasting)
    _acknowledge_all(again)
    assert _topics(again) == [f"r/{number}" for number in range(40)]
    again.lose()
    clean = world.connect("c", version)
    assert clean.publishes() == []
    assert clean.connection.active_session.retained is None


@pytest.mark.parametrize("qos", [1, 2])
def test_a_restart_repeats_nothing_of_what_just_filled_the_window(qos: int) -> None:
    """Found by lives: that there was no more was seen when the window opened, and a restart began anew until then."""
    config, disk = BrokerConfig(), MemoryDisk()
    lasting = Properties(session_expiry_interval=100, receive_maximum=5)
    world = World(config)
    world.node = BrokerNode(config, disk, random.Random(1), world.now)
    _retain(world, 5, qos=2)
    client = world.connect("c", clean_start=False, properties=lasting)
    _subscribe(client, "r/#", qos=qos)
    assert len(_topics(client)) == 5
    if qos == 2:
        for packet_id in range(1, 6):
            client.send(p.Acknowledgement(type=p.PacketType.PUBREC, packet_id=packet_id))
    disk.unlock()
    world.node = BrokerNode(config, disk, random.Random(1), world.now)
    world.clients.clear()
    again = world.connect("c", clean_start=False, properties=lasting)
    _acknowledge_all(again)
    assert [message.dup for message in again.publishes()] == [True] * (5 if qos == 1 else 0)


@pytest.mark.parametrize("durability", [Durability.INTERVAL, Durability.FSYNC])
def test_a_restart_does_not_lose_what_was_not_sent(durability: Durability) -> None:
    config = BrokerConfig(sessions=SessionsConfig(durability=durability))
    disk = MemoryDisk()
    lasting = Properties(session_expiry_interval=100, receive_maximum=5)

    def start() -> World:
        world = World(config)
        world.node = BrokerNode(config, disk, random.Random(1), world.now)
        return world

    world = start()
    _retain(world, 30)
    client = world.connect("c", clean_start=False, properties=lasting)
    _subscribe(client, "r/#")
    small = world.connect("d", clean_start=False, properties=lasting)
    _subscribe(small, "r/7")
    assert len(_topics(client)) == 5
    world.node.close(world.now)
    world = start()
    again = world.connect("c", clean_start=False, properties=lasting)
    _acknowledge_all(again)
    assert set(_topics(again)) == {f"r/{number}" for number in range(30)}, "all, perhaps some of them once more"
    other = world.connect("d", clean_start=False, properties=lasting)
    assert [message.dup for message in other.publishes()] == [True], "it had all of its own"
    world.node.close(world.now)
    world = start()
    last = world.connect("c", clean_start=False, properties=lasting)
    assert last.publishes() == [], "that they were sent is written, too"


@pytest.mark.parametrize("restarts", [0, 1, 2])
@pytest.mark.parametrize("same_turn", [False, True])
def test_what_is_retained_after_the_subscription_comes_once_and_live(restarts: int, same_turn: bool) -> None:
    """MQTT-3.3.1-12: also if the window was full, so that the retained ones of before wait, and after a restart."""
    config = BrokerConfig()
    disk = MemoryDisk()
    lasting = Properties(session_expiry_interval=100, receive_maximum=1)
    world = World(config)

    def start() -> Client:
        disk.unlock()
        world.node = BrokerNode(config, disk, random.Random(1), world.now)
        world.clients.clear()
        return world.connect("c", clean_start=False, properties=lasting)

    client = start()
    publisher = world.connect("p")
    publisher.auto_ack = True
    publisher.send(*(p.Publish(topic=topic, payload=b"old", retain=True) for topic in ("r/a/b", "r/c")))
    _subscribe(client, "full")
    publisher.send(p.Publish(topic="full", payload=b"full", qos=1, packet_id=1))
    fresh = [p.Publish(topic=f"r/{name}", payload=b"new", qos=1, packet_id=9, retain=True) for name in ("a", "d")]
    request = p.SubscriptionRequest(topic_filter="r/#", qos=2)
    subscribing = p.Subscribe(packet_id=2, requests=(request,))
    if same_turn:
        client.send(subscribing, *fresh)
    else:
        client.send(subscribing)
        for packet in fresh:
            publisher.send(packet)
    seen = [*client.publishes()]
    for _ in range(restarts):
        client = start()
    _acknowledge_all(client)
    seen = [message for message in (*seen, *client.publishes()) if message.topic != "full"]
    assert sorted((message.topic, message.payload, message.retain) for message in seen) == [
        ("r/a", b"new", False),
        ("r/a/b", b"old", True),
        ("r/c", b"old", True),
        ("r/d", b"new", False),
    ]


@pytest.mark.parametrize("expiry_s", [0, 5, 50])
def test_what_replaces_an_expired_one_after_the_subscription_comes_once_and_live(world: World, expiry_s: int) -> None:
    """What replaces one that was there may come as retained, too: it is what the topic has when its turn comes."""
    publisher = _retain(world, 3)
    if expiry_s:
        properties = Properties(message_expiry_interval=expiry_s)
        publisher.send(p.Publish(topic="r/1", payload=b"brief", qos=1, packet_id=9, retain=True, properties=properties))
    else:
        publisher.send(p.Publish(topic="r/1", payload=b"", qos=1, packet_id=9, retain=True))
    world.wait(10.0)
    client = world.connect("c", properties=Properties(receive_maximum=1))
    _subscribe(client, "r/#")
    publisher.send(p.Publish(topic="r/1", payload=b"new", qos=1, packet_id=10, retain=True))
    _acknowledge_all(client)
    came = [(message.payload, message.retain) for message in client.publishes() if message.topic == "r/1"]
    assert came == [(b"new", False)] if expiry_s < 10 else [(b"new", False), (b"new", True)]


def test_a_turn_does_a_bounded_part_and_serves_all_in_turn(world: World) -> None:
    _retain(world, 400, qos=0)
    clients = [world.connect() for _ in range(10)]
    turn, world.turn = world.turn, lambda: None  # type: ignore[method-assign]
    for client in clients:
        client.send(p.Subscribe(packet_id=1, requests=(p.SubscriptionRequest(topic_filter="r/#", qos=0),) * 10))
    traffic, node = world.node.state.traffic, world.node
    most = TURN_WORK // MESSAGE_WORK + PORTION // MESSAGE_WORK
    turns = 0
    while turns == 0 or node.next_deadline() == world.now:
        before = traffic.publishes_sent
        dirty = node.take_dirty(world.now)
        assert traffic.publishes_sent - before <= most
        for connection in dirty:
            world.clients[connection].flush()
        turns += 1
        counts = [len(client.publishes()) for client in clients]
        assert max(counts) - min(counts) <= 2 * PORTION // MESSAGE_WORK, "nobody has more than a portion's start"
        node.tick(world.now)
    world.turn = turn  # type: ignore[method-assign]
    assert counts == [4_000] * 10
    assert turns >= 10 * 4_000 // most


def test_what_a_client_asks_for_and_does_not_take_is_bounded(make_world: type[World]) -> None:
    world = make_world(BrokerConfig(mqtt=MqttConfig(max_subscriptions_per_client=10)))
    _retain(world, 3)
    client = world.connect("c", properties=Properties(receive_maximum=1))
    _subscribe(client, *["r/#"] * 8)
    client.inbox.clear()
    _subscribe(client, *["r/#"] * 4)
    (answer,) = client.inbox
    assert isinstance(answer, p.Suback)
    assert answer.reasons == (1, 1, 0x97, 0x97)
    client.send(p.Unsubscribe(packet_id=2, topic_filters=("r/#",)))
    client.inbox.clear()
    _subscribe(client, "r/#")
    assert client.inbox[0].reasons == (1,)  # type: ignore[attr-defined]


def test_large_ones_wait_for_a_client_that_does_not_read(make_world: type[World]) -> None:
    world = make_world(BrokerConfig(mqtt=MqttConfig(unread_high_water_bytes=10_000)))
    publisher = world.connect()
    for number in range(40):
        publisher.send(p.Publish(topic=f"r/{number}", payload=b"x" * 2_000, retain=True))
    client = world.connect("c")
    client.is_deaf = True
    _subscribe(client, "r/#", qos=0)
    assert len(client.unread) < 13_000
    client.is_deaf = False
    client.read(len(client.unread))
    assert _topics(client) == [f"r/{number}" for number in range(40)], "QoS 0, too: they need not be dropped"


def test_who_waits_for_an_acknowledgement_is_not_asked_in_every_turn(make_world: type[World]) -> None:
    """There is room for packets, not for the next one's bytes, and the queue is half full: only the client can help.

    Found by the fuzzer: the broker asked the session again turn after turn, at once.
    """
    limits = MqttConfig(max_inflight_out=16, max_queued_messages=8, max_inflight_bytes=65_536)
    world = make_world(BrokerConfig(mqtt=limits))
    _retain(world, 20)
    client = world.connect("c")
    _subscribe(client, "live/#")
    publisher = world.connect()
    for number in range(8):
        publisher.send(p.Publish(topic="live/x", payload=b"x" * 20_000, qos=1, packet_id=number + 1))
    session = client.connection.active_session
    assert session.has_room
    assert len(session.queued) > limits.max_queued_messages // 2
    _subscribe(client, "r/#")
    assert session.retained
    for _ in range(3):
        world.node.take_dirty(world.now)
    assert not world.node.state.sending.woken
    _acknowledge_all(client)
    assert len([topic for topic in _topics(client) if topic.startswith("r/")]) == 20

"""Deliveries wait for clients that do not read, and go on when they do; only those that take nothing are cut."""

from __future__ import annotations

import pytest

from assay.reference_broker.config import BrokerConfig, MqttConfig
from assay.reference_broker.mqtt.wire import packets as p
from assay.reference_broker.mqtt.wire.codec import encode_packet
from assay.reference_broker.mqtt.wire.properties import Properties
from tests.mqtt.conftest import Client, World

HIGH_WATER = 10_000
SIZE = 1_000
LIMITS = MqttConfig(unread_high_water_bytes=HIGH_WATER, max_unread_bytes=30_000, unread_timeout_s=30)


@pytest.fixture
def limited(make_world: type[World]) -> World:
    return make_world(BrokerConfig(mqtt=LIMITS))


def _payload(number: int, size: int = SIZE) -> bytes:
    return b"%08d" % number + b"x" * (size - 8)


def _publish(publisher: Client, topic: str, count: int, qos: int = 1, size: int = SIZE, first: int = 0) -> None:
    """One by one, each in a turn of its own."""
    publisher.auto_ack = True
    for number in range(first, first + count):
        packet_id = number % 60_000 + 1 if qos else 0
        publisher.send(p.Publish(topic=topic, payload=_payload(number, size), qos=qos, packet_id=packet_id))


def _numbers(client: Client) -> list[int]:
    return [int(message.payload[:8]) for message in client.publishes()]


def _reads_all(client: Client) -> None:
    client.auto_ack, client.is_deaf = True, False
    client.read(len(client.unread))


@pytest.mark.parametrize("version", [p.V311, p.V5])
@pytest.mark.parametrize("qos", [1, 2])
def test_deliveries_stop_at_the_high_water_mark_and_go_on_when_the_client_reads(
    limited: World, version: int, qos: int
) -> None:
    slow = limited.subscribed("t", qos, version)
    slow.is_deaf = True
    _publish(limited.connect(), "t", 100, qos)
    assert HIGH_WATER < len(slow.unread) <= HIGH_WATER + SIZE + 20, "one packet more than fits at most"
    session = slow.connection.active_session
    assert len(session.in_flight) + len(session.queued) == 100
    before = len(slow.unread)
    slow.read(before // 2)
    assert HIGH_WATER < len(slow.unread) <= HIGH_WATER + SIZE + 20, "what it has read makes room for as much"
    _reads_all(slow)
    assert _numbers(slow) == list(range(100)), "all of them, once, in order"
    assert not slow.closed
    assert limited.node.state.traffic.unread_bytes == 0


def test_runs_stop_as_single_messages_do(limited: World) -> None:
    slow = limited.subscribed("t", 1)
    slow.is_deaf = True
    publisher = limited.connect()
    for start in range(0, 100, 20):
        publisher.send(
            *[p.Publish(topic="t", payload=_payload(n), qos=1, packet_id=n + 1) for n in range(start, start + 20)]
        )
    assert len(slow.unread) <= HIGH_WATER + 20 * (SIZE + 20)
    _reads_all(slow)
    assert _numbers(slow) == list(range(100))


@pytest.mark.parametrize("size", [100, SIZE, 20_000], ids=["runs", "small", "large"])
def test_a_consumer_of_a_queue_that_pauses_gets_the_rest_once(make_world: type[World], size: int) -> None:
    world = make_world(BrokerConfig(mqtt=LIMITS))
    consumer = world.subscribed("$queue/q", 1)
    consumer.is_deaf = True
    publisher = world.connect()
    count = 60_000 // size
    _publish(publisher, "$queue/q", count, size=size)
    most = HIGH_WATER + max(size, 32 * size * (size < SIZE)) + 12_000
    assert len(consumer.unread) <= most
    _reads_all(consumer)
    assert sorted(_numbers(consumer)) == list(range(count)), "its partitions take turns"
    for message in consumer.publishes():
        assert ("delivery-count", "1") in message.properties.user_property
    assert not consumer.closed


@pytest.mark.parametrize("version", [p.V311, p.V5])
def test_what_is_resent_waits_for_the_client_too_and_comes_before_anything_new(limited: World, version: int) -> None:
    lasting = Properties(session_expiry_interval=1_000) if version == p.V5 else p.NO_PROPERTIES

    def connected() -> Client:
        client = limited.connect("s", version, clean_start=False, properties=lasting)
        client.auto_ack = False
        return client

    first = connected()
    first.send(p.Subscribe(packet_id=1, requests=(p.SubscriptionRequest(topic_filter="t", qos=1),)))
    publisher = limited.connect()
    _publish(publisher, "t", 50)
    assert len(first.publishes()) == 50
    first.lose()
    again = limited.open(version)
    again.is_deaf = True
    again.send(p.Connect(version=version, client_id="s", clean_start=False, properties=lasting))
    assert len(again.unread) <= HIGH_WATER + SIZE + 50
    _publish(publisher, "t", 10, first=50)
    assert len(again.unread) <= HIGH_WATER + SIZE + 50
    _reads_all(again)
    assert _numbers(again) == list(range(60))
    assert [message.dup for message in again.publishes()] == [True] * 50 + [False] * 10


def test_qos_0_passes_the_mark_and_is_dropped_at_the_limit(limited: World) -> None:
    slow = limited.subscribed("t")
    slow.is_deaf = True
    _publish(limited.connect(), "t", 100, qos=0)
    assert HIGH_WATER < len(slow.unread) <= LIMITS.max_unread_bytes
    got = len(slow.unread) // (SIZE + 5)
    assert slow.connection.outbound.dropped == 100 - got
    _reads_all(slow)
    _publish(limited.connect(), "t", 1, qos=0, first=100)
    assert _numbers(slow) == [*range(got), 100], "one that reads again gets what is published then"


@pytest.mark.parametrize(("version", "told"), [(p.V311, False), (p.V5, True)])
def test_only_a_client_that_takes_nothing_is_cut(limited: World, version: int, told: bool) -> None:
    slow, dead = limited.subscribed("t", 1, version), limited.subscribed("t", 1, version)
    slow.is_deaf = dead.is_deaf = True
    _publish(limited.connect(), "t", 100)
    for _ in range(20):
        limited.wait(29)
        slow.read(1)
    assert not slow.closed, "one byte in time is progress"
    assert dead.closed
    dead.read(len(dead.unread))
    farewells = [packet.reason for packet in dead.inbox if isinstance(packet, p.Disconnect)]
    assert farewells == ([0x97] if told else [])
    limited.wait(29.9)
    assert not slow.closed
    limited.wait(0.2)
    assert slow.closed


def test_a_client_that_has_nothing_to_read_is_never_cut(limited: World) -> None:
    client = limited.subscribed("t", 1)
    limited.wait(10_000)
    client.is_deaf = True
    _publish(limited.connect(), "t", 100)
    _reads_all(client)
    limited.wait(10_000)
    assert not client.closed
    assert limited.node.next_deadline() is None, "nobody is watched any more"


@pytest.mark.parametrize("kind", ["pings", "publishes"])
def test_a_client_that_asks_and_does_not_read_the_answers_is_read_from_no_more(limited: World, kind: str) -> None:
    client = limited.connect()
    client.is_deaf = True
    ping = b"\xc0\x00"
    publish = bytes.fromhex("3207 000174 0001 00 78")
    sent = 0
    while not client.connection.wants_pause and sent < 100_000:
        client.send_bytes(500 * (ping if kind == "pings" else publish))
        sent += 500
    assert client.connection.wants_pause
    assert len(client.unread) <= LIMITS.max_unread_bytes + 500 * 5
    client.read(len(client.unread))
    assert not client.connection.wants_pause
    client.send_bytes(500 * ping)
    client.send_bytes(500 * ping)
    limited.wait(29)
    assert not client.closed
    limited.wait(32)
    assert client.closed


def test_together_clients_leave_no_more_unread_than_is_allowed(make_world: type[World]) -> None:
    total = 35_000
    config = MqttConfig(unread_high_water_bytes=HIGH_WATER, max_total_unread_bytes=total, max_unread_bytes=100_000)
    world = make_world(BrokerConfig(mqtt=config))
    slow = [world.subscribed("t", qos) for qos in (1, 1, 0, 0, 1)]
    quick = [world.subscribed("t", qos) for qos in (0, 1)]
    for client in slow:
        client.is_deaf = True
    for client in quick:
        client.auto_ack = True
    publisher = world.connect()
    for number in range(100):
        _publish(publisher, "t", 1, first=number)
        unread = sum(len(client.unread) for client in slow)
        assert unread == world.node.state.traffic.unread_bytes <= total + len(slow) * (SIZE + 20)
    for client in quick:
        assert _numbers(client) == list(range(100)), "who reads is served as if nothing were"
    for client in slow:
        _reads_all(client)
    _publish(publisher, "t", 1, first=100)
    for client in slow:
        numbers = _numbers(client)
        assert numbers == sorted(set(numbers))
        assert numbers[-1] == 100
    assert [len(_numbers(client)) for client in (slow[0], slow[1], slow[4])] == [101] * 3
    slow[0].is_deaf = True
    _publish(publisher, "t", 5, first=101)
    assert world.node.state.traffic.unread_bytes > 0
    slow[0].lose()
    assert world.node.state.traffic.unread_bytes == 0, "what is left unread goes with the connection"


def test_a_turn_sends_no_more_than_its_share_to_all_together(make_world: type[World]) -> None:
    size, share, count = 10_000, 50_000, 40
    world = make_world(BrokerConfig(mqtt=MqttConfig(turn_bytes=share)))
    clients = [world.subscribed("t", 1) for _ in range(count)]
    publisher = world.connect()
    node = world.node
    packet = p.Publish(topic="t", payload=_payload(1, size), qos=1, packet_id=1)
    sent: list[int] = []
    world_turn, world.turn = world.turn, lambda: None  # type: ignore[method-assign]
    publisher.send(packet)
    before = node.state.traffic.payload_bytes_sent
    assert before <= share
    while not sent or node.state.sending.woken:
        dirty = node.take_dirty(world.now)
        sent.append(node.state.traffic.payload_bytes_sent - before)
        before = node.state.traffic.payload_bytes_sent
        for connection in dirty:
            world.clients[connection].flush()
    world.turn = world_turn  # type: ignore[method-assign]
    assert max(sent) <= share
    assert len(sent) >= (count - 5) * size // share
    assert [len(client.publishes()) for client in clients] == [1] * count


@pytest.mark.parametrize("forwarded", [True, False])
def test_one_large_message_of_qos_0_for_many_takes_no_more_than_all_may_leave_unread(
    make_world: type[World], forwarded: bool
) -> None:
    size, most, turn = 200_000, 2_000_000, 600_000
    limits = MqttConfig(max_total_unread_bytes=most, turn_bytes=turn)
    world = make_world(BrokerConfig(mqtt=limits))
    clients = [world.subscribed("t") for _ in range(40)]
    publisher = world.connect()
    packet = p.Publish(topic="t", payload=_payload(0, size), retain=not forwarded)
    traffic = world.node.state.traffic
    world.node.receive(publisher.connection, encode_packet(packet, publisher.version), world.now)
    waiting = sum(client.connection.out_bytes for client in clients)
    assert most - size < waiting <= most + turn + 10 * len(clients), "as much as may be left unread, and a turn's share"
    world.turn()
    got = [client for client in clients if client.publishes()]
    assert len(got) == waiting // size
    assert traffic.dropped == len(clients) - len(got)
    assert traffic.unread_bytes == 0, "all was read at once"
    packet = p.Publish(topic="t", payload=_payload(1, 1_000), retain=not forwarded)
    publisher.send(packet)
    assert all(_numbers(client)[-1] == 1 for client in clients), "nobody is the worse for it"

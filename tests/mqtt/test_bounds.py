"""Bounds of memory at their edge: exactly at it passes, one over is refused, and what goes away makes room again."""

from __future__ import annotations

import pytest

from assay.reference_broker.config import BrokerConfig, MqttConfig
from assay.reference_broker.core import routing
from assay.reference_broker.core.routing import subscription_bytes
from assay.reference_broker.mqtt.connections import inbound
from assay.reference_broker.mqtt.connections.inbound import ALIAS_BYTES
from assay.reference_broker.mqtt.sessions import mqtt_broker
from assay.reference_broker.mqtt.sessions.retained import LEVEL_BYTES
from assay.reference_broker.mqtt.wire import packets as p
from assay.reference_broker.mqtt.wire.codec import encode_packet
from assay.reference_broker.routing.message import HOLDER_BYTES, Message, memory_bytes
from tests.mqtt.conftest import Client, World


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


@pytest.mark.parametrize(("version", "refused"), [(p.V311, 0x80), (p.V5, 0x8F)])
def test_levels_of_topics_and_filters(make_world: type[World], version: int, refused: int) -> None:
    world = make_world(BrokerConfig(mqtt=MqttConfig(max_topic_levels=3)))
    client = world.connect("c", version=version)
    client.send(_subscribe("a/b/c"), p.Publish(topic="a/b/c", payload=b"x"))
    assert [message.topic for message in client.publishes()] == ["a/b/c"]
    assert _reason(client, _subscribe("a/b/c/d")) == refused
    client.send(p.Publish(topic="a/b/c/d", payload=b"x"))
    assert not client.closed
    too_deep = p.Publish(topic="a/b/c/d", payload=b"x", qos=1, packet_id=1)
    if version == p.V5:
        assert _reason(client, too_deep) == 0x90
    else:
        client.send(too_deep)
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


def _publish(world: World, topic: str, payload: bytes, count: int, **fields: object) -> None:
    """At QoS 1, from a client of its own, one by one."""
    publisher = world.connect("publisher")
    for number in range(count):
        publisher.send(p.Publish(topic=topic, payload=payload + b"%d" % number, qos=1, packet_id=1, **fields))
    publisher.send(p.Disconnect())


@pytest.mark.parametrize("size", [3_000, 100])
def test_bytes_in_flight_to_one_client(make_world: type[World], size: int) -> None:
    cost = memory_bytes(Message(topic="t", payload=b"x" * size + b"0"))
    world = make_world(BrokerConfig(mqtt=MqttConfig(max_inflight_bytes=2 * cost)))
    client = world.subscribed("t", 1, client_id="c")
    session = client.connection.active_session
    _publish(world, "t", b"x" * size, 4)
    assert len(client.publishes()) == 2, "exactly as much as the limit"
    assert (session.in_flight_bytes, session.queued_bytes) == (2 * cost, 2 * cost)
    _publish(world, "t", b"x" * 10 * size, 1)
    for number in range(5):
        client.send(p.Acknowledgement(type=p.PacketType.PUBACK, packet_id=client.publishes()[number].packet_id))
        assert session.in_flight_bytes <= 2 * cost or len(session.in_flight) == 1, "acknowledgements make no more room"
    assert len(client.publishes()) == 5, "one that is larger than the limit goes alone"
    assert (session.in_flight_bytes, session.queued_bytes, world.node.state.held.used) == (0, 0, 0)


def test_user_properties_and_all_else_count_as_bytes(make_world: type[World]) -> None:
    world = make_world(BrokerConfig(mqtt=MqttConfig(max_queued_bytes=100_000)))
    world.subscribed("t", 1, client_id="c")
    client = world.connect("s", properties=p.Properties(session_expiry_interval=1_000))
    client.send(_subscribe("t"))
    client.lose()
    pairs = tuple(("n", "v" * 9_000) for _ in range(3))
    for properties in (
        p.Properties(user_property=pairs),
        p.Properties(correlation_data=b"x" * 27_000),
        p.Properties(content_type="x" * 27_000),
        p.Properties(user_property=(("n", "\N{GRINNING FACE}" * 6_750),)),
        p.Properties(user_property=(("aa", "bb"),) * 140),
    ):
        _publish(world, "t", b"", 10, properties=properties)
        session = world.node.state.sessions["s"]
        assert 2 <= len(session.queued) <= 3
        client = world.connect("s", clean_start=False, properties=p.Properties(session_expiry_interval=1_000))
        client.lose()
        world.node.state.end_session(session, world.now)
        client = world.connect("s", properties=p.Properties(session_expiry_interval=1_000))
        client.send(_subscribe("t"))
        client.lose()


def test_bytes_held_for_all_clients(make_world: type[World]) -> None:
    cost = memory_bytes(Message(topic="a", payload=b"x" * 1_000 + b"0"))
    world = make_world(BrokerConfig(mqtt=MqttConfig(max_held_bytes=12 * cost)))
    state = world.node.state
    for name in ("a", "b", "c"):
        client = world.connect(name, properties=p.Properties(session_expiry_interval=1_000))
        client.send(_subscribe(name), _subscribe("all"))
        client.lose()
    _publish(world, "a", b"x" * 1_000, 10)
    assert len(state.sessions["a"].queued) == 6, "up to half of all, and no more than what is left"
    assert state.sessions["a"].dropped == 4
    _publish(world, "b", b"x" * 1_000, 10)
    assert len(state.sessions["b"].queued) == 3, "one that takes all it can leaves something to the others"
    _publish(world, "c", b"x" * 1_000, 1)
    assert len(state.sessions["c"].queued) == 1
    assert state.held.used == 10 * cost
    state.end_session(state.sessions["a"], world.now)
    _publish(world, "b", b"x" * 1_000, 10)
    assert len(state.sessions["b"].queued) == 6, "what has gone makes room"
    for name in ("b", "c"):
        state.end_session(state.sessions[name], world.now)
    assert state.held.used == 0


def test_a_message_for_many_counts_once(make_world: type[World]) -> None:
    world = make_world(BrokerConfig(mqtt=MqttConfig(max_held_bytes=100_000)))
    for number in range(20):
        client = world.connect(f"c{number}", properties=p.Properties(session_expiry_interval=1_000))
        client.send(_subscribe("t"))
        client.lose()
    _publish(world, "t", b"x" * 30_000, 1)
    state = world.node.state
    assert all(len(session.queued) == 1 for session in state.sessions.values())
    assert state.held.used == memory_bytes(Message(topic="t", payload=b"x" * 30_001)) + 19 * HOLDER_BYTES


def test_wills_count_until_they_are_sent_or_given_up(make_world: type[World]) -> None:
    world = make_world()
    will = p.WillFields(topic="w", payload=b"x" * 1_000)
    first, second = (world.connect(name, will=will) for name in "ab")
    assert world.node.state.held.used == 2 * memory_bytes(Message(topic="w", payload=b"x" * 1_000))
    first.lose()
    second.send(p.Disconnect())
    assert world.node.state.held.used == 0


@pytest.mark.parametrize(("version", "reason"), [(p.V311, 3), (p.V5, 0x97)])
@pytest.mark.parametrize("has_will", [True, False])
def test_a_client_with_more_than_is_left_is_refused(
    make_world: type[World], version: int, reason: int, has_will: bool
) -> None:
    will = p.WillFields(topic="w", payload=b"x" * 10_000) if has_will else None
    client_id = "c" if has_will else "c" * 10_768
    taken = memory_bytes(Message(topic="w", payload=b"x" * 10_000))
    world = make_world(BrokerConfig(mqtt=MqttConfig(max_held_bytes=2 * taken)))
    first = world.connect(client_id + "1", version, will=will)
    for over in (1, 0):
        world.node.state.held.limit = 2 * taken - over
        client = world.open(version)
        (answer,) = client.send(p.Connect(version=version, client_id=client_id + "2", will=will))
        assert isinstance(answer, p.Connack)
        assert answer.reason == (reason if over else 0)
    first.send(p.Disconnect())
    client.send(p.Disconnect())
    assert world.node.state.held.used == 0


def _reason(client: Client, packet: p.Packet) -> int:
    (answer,) = client.send(packet)
    if isinstance(answer, p.Suback):
        return answer.reasons[0]
    assert isinstance(answer, p.Acknowledgement | p.Connack | p.Disconnect)
    return answer.reason


def _retain(topic: str, payload: bytes) -> p.Publish:
    return p.Publish(topic=topic, payload=payload, qos=1, packet_id=1, retain=True)


@pytest.mark.parametrize("version", [p.V311, p.V5])
def test_retained_bytes(make_world: type[World], version: int) -> None:
    payload = b"x" * 1_000
    one = memory_bytes(Message(topic="a/b", payload=payload)) + 2 * LEVEL_BYTES + 2
    other = memory_bytes(Message(topic="a/c", payload=payload)) + LEVEL_BYTES + 1
    world = make_world(BrokerConfig(mqtt=MqttConfig(max_retained_bytes=one + other)))
    store = world.node.state.retained
    client = world.connect("c", version)
    matched = 0x10 if version == p.V5 else 0
    assert _reason(client, _retain("a/b", payload)) == matched
    assert store.held_bytes == one
    assert _reason(client, _retain("a/c", payload)) == matched, "exactly as much as the limit"
    refused = _retain("a/c", payload + b"x")
    if version == p.V5:
        assert _reason(client, refused) == 0x97
        assert _reason(client, _retain("a/d/e/f", b"x")) == 0x97
    else:
        client.send(refused)
        assert client.closed
        client = world.connect("c", version)
    assert (len(store), store.held_bytes) == (2, one + other), "what was refused left nothing"
    message = store.get("a/c")
    assert message is not None
    assert message.payload == payload
    client.send(p.Publish(topic="d", payload=b"x", retain=True))
    assert len(store) == 2, "at QoS 0 it is dropped"
    assert _reason(client, _retain("a/b", b"")) == matched
    assert _reason(client, _retain("d", b"x")) == matched
    for topic in ("a/c", "d"):
        client.send(_retain(topic, b""))
    assert (len(store), store.held_bytes) == (0, 0)


@pytest.mark.parametrize(("version", "refused"), [(p.V311, 0x80), (p.V5, 0x97)])
def test_bytes_of_subscriptions(make_world: type[World], version: int, refused: int) -> None:
    size = subscription_bytes("a/" + "x" * 1_000)
    world = make_world(BrokerConfig(mqtt=MqttConfig(max_filter_bytes=4 * size)))
    used = world.node.state.filter_memory
    one, two = world.connect("one", version), world.connect("two", version)
    for client, letters, taken in ((one, "abcd", 2), (two, "abcd", 1)):
        answers = [_reason(client, _subscribe(f"{letter}/" + "x" * 1_000)) for letter in letters]
        assert answers == [1] * taken + [refused] * (4 - taken)
    assert used.used == 3 * size
    assert _reason(two, _subscribe("a/" + "x" * 1_000)) == 1, "one that is there is replaced"
    one.send(p.Unsubscribe(packet_id=2, topic_filters=("a/" + "x" * 1_000,)))
    assert used.used == 2 * size
    assert _reason(one, _subscribe("d/" + "x" * 1_000)) == 1
    for client in (one, two):
        client.send(p.Disconnect())
    assert used.used == 0


def test_what_a_consumer_asks_for_counts_as_well(make_world: type[World]) -> None:
    world = make_world(BrokerConfig(mqtt=MqttConfig(max_filter_bytes=20_000)))
    client = world.connect("c")
    request = p.SubscriptionRequest(topic_filter="$queue/q", qos=1)
    pairs = (("consumer-group", "g"), ("x", "y" * 30_000))
    packet = p.Subscribe(packet_id=1, requests=(request,), properties=p.Properties(user_property=pairs))
    assert _reason(client, packet) == 0x97
    assert world.node.state.filter_memory.used == 0
    small = p.Subscribe(packet_id=1, requests=(request,), properties=p.Properties(user_property=pairs[:1]))
    assert _reason(client, small) == 1
    client.send(p.Unsubscribe(packet_id=2, topic_filters=("$queue/q",)))
    assert world.node.state.filter_memory.used == 0
    assert not client.connection.active_session.consumer_options


def test_bytes_of_topic_aliases(make_world: type[World]) -> None:
    size = 1_000 + ALIAS_BYTES
    world = make_world(BrokerConfig(mqtt=MqttConfig(max_alias_bytes=4 * size)))
    used = world.node.state.alias_memory

    def setting(alias: int, letter: str) -> p.Publish:
        return p.Publish(topic=letter * 1_000, payload=b"", properties=p.Properties(topic_alias=alias))

    one, two = world.connect("one"), world.connect("two")
    one.send(setting(1, "a"), setting(2, "b"), setting(2, "b"), setting(1, "c"))
    two.send(setting(1, "a"))
    assert not one.closed
    assert not two.closed
    assert used.used == 3 * size
    assert _reason(one, setting(3, "d")) == 0x97
    assert one.closed
    assert used.used == size, "what it had set is free again"
    two.send(setting(2, "b"))
    assert not two.closed
    two.lose()
    assert used.used == 0


def test_cached_routes_are_bounded_in_bytes(make_world: type[World], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(routing, "MAX_CACHED_ROUTE_BYTES", 100_000)
    monkeypatch.setattr(routing, "MAX_CACHED_ROUTES", 50)
    world = make_world()
    subscriber = world.subscribed("+/#")
    publisher = world.connect("p")
    tree = world.node.state.tree
    for length in (10, 10_000):
        for number in range(120):
            publisher.send(p.Publish(topic=f"{number}/" + "x" * length, payload=b""))
            assert len(tree._routes) <= 50
            assert tree.route_bytes >= sum(len(topic) for topic in tree._routes)
            assert tree.route_bytes < 100_000 + 11_000
    assert len(subscriber.publishes()) == 240, "whatever is remembered"


def test_routes_to_many_receivers_count_them(make_world: type[World], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(routing, "MAX_CACHED_ROUTE_BYTES", 20_000)
    world = make_world()
    for number in range(50):
        world.subscribed("#", client_id=f"c{number}")
    other = world.connect("o")
    for number in range(100):
        other.send(_subscribe(f"t/{number}"))
    publisher = world.connect("p")
    for number in range(100):
        publisher.send(p.Publish(topic=f"t/{number}", payload=b""))
        routes = world.node.state.tree._routes.values()
        lists = {id(route.entries): len(route.entries) for route in routes}
        assert 8 * sum(lists.values()) < 21_500


def test_plans_are_bounded_for_one_and_for_all(make_world: type[World], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inbound, "MAX_PLAN_BYTES", 20_000)
    monkeypatch.setattr(mqtt_broker, "MAX_ALL_PLAN_BYTES", 50_000)
    world = make_world()
    subscriber = world.subscribed("#")
    publishers = [world.connect(f"p{number}") for number in range(6)]
    for number in range(100):
        for publisher in publishers:
            publisher.send(p.Publish(topic=f"{number}/" + "x" * 1_000, payload=b""))
        held = [publisher.connection.inbound._plan_bytes for publisher in publishers]
        assert max(held) <= 20_000
        assert sum(held) == world.node.state.plan_memory.used_bytes <= 50_000
    assert len(subscriber.publishes()) == 600
    for publisher in publishers:
        publisher.lose()
    assert world.node.state.plan_memory.used_bytes == 0


@pytest.mark.parametrize("version", [p.V311, p.V5])
def test_bytes_of_packets_that_have_begun(make_world: type[World], version: int) -> None:
    world = make_world(BrokerConfig(mqtt=MqttConfig(max_partial_bytes=1_000)))
    partial = world.node.state.partial_packets
    whole = encode_packet(p.Publish(topic="t", payload=b"x" * 2_000), version)
    silent = world.open(version)
    silent.send_bytes(b"\x10\xff\x01" + b"x" * 97)
    world.wait(0.1)
    slow, busy = world.connect("slow", version), world.connect("busy", version)
    slow.send_bytes(whole[:400])
    busy.send_bytes(whole[:400])
    world.wait(0.1)
    busy.send_bytes(whole[400:] + whole[:500])
    assert partial.used_bytes == 1_000, "exactly as much as the limit"
    assert not silent.closed
    busy.send_bytes(whole[500:501])
    assert silent.closed, "the one that has brought nothing whole for the longest time"
    assert partial.used_bytes == 901
    world.wait(0.1)
    busy.send_bytes(whole[501:] + whole[:601])
    assert slow.closed, "and not the one that brings most"
    if version == p.V5:
        farewell = slow.inbox[-1]
        assert isinstance(farewell, p.Disconnect)
        assert farewell.reason == 0x97
    assert not busy.closed
    busy.send_bytes(whole[601:])
    assert partial.used_bytes == 0
    busy.send_bytes(whole[:900])
    busy.lose()
    assert partial.used_bytes == 0

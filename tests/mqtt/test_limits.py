"""Limits on what one client or address may ask: connect rate, publish rate, payload size."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.reference_broker.config import BrokerConfig, ConfigError, LimitsConfig, parse_config
from assay.reference_broker.mqtt.wire import packets as p
from assay.reference_broker.mqtt.wire.codec import encode_packet
from assay.reference_broker.mqtt.wire.errors import Reason
from assay.reference_broker.mqtt.wire.packets import V5, V311, PacketType, Properties

if TYPE_CHECKING:
    from tests.mqtt.conftest import Client, World

VERSIONS = pytest.mark.parametrize("version", [V311, V5])
SOURCE = ("127.0.0.1:1883", "192.0.2.1")


def _world(make_world: type[World], **limits: float) -> World:
    return make_world(parse_limits(**limits))


def parse_limits(**limits: float) -> BrokerConfig:
    return parse_config({"limits": limits})


def _connack(client: Client) -> int:
    (packet,) = client.send(p.Connect(version=client.version, client_id=""))
    assert isinstance(packet, p.Connack)
    return packet.reason


# -- connect rate ------------------------------------------------------------------------------------------------------


@VERSIONS
def test_an_address_that_connects_too_often_is_refused_in_the_words_of_its_version(
    make_world: type[World], version: int
) -> None:
    world = _world(make_world, connects_per_s=0.5, connect_burst=2)
    for _ in range(2):
        assert _connack(world.open(version, SOURCE)) == 0
    refused = world.open(version, SOURCE)
    assert _connack(refused) == (Reason.CONNECTION_RATE_EXCEEDED if version == V5 else 3)
    assert refused.closed
    assert len(world.node.state.sessions) == 2
    assert _connack(world.open(version, (SOURCE[0], "192.0.2.2"))) == 0, "another address"
    assert _connack(world.open(version, ("127.0.0.1:8883", SOURCE[1]))) == 0, "another listener"
    world.wait(1.9)
    assert _connack(world.open(version, SOURCE)) != 0
    world.wait(0.1)
    assert _connack(world.open(version, SOURCE)) == 0


def test_without_the_limit_an_address_connects_as_it_likes(world: World) -> None:
    assert {_connack(world.open(V5, SOURCE)) for _ in range(300)} == {0}


# -- publish rate ------------------------------------------------------------------------------------------------------


def _publishes(count: int, qos: int = 0, first: int = 0) -> list[p.Publish]:
    return [
        p.Publish(topic="t", payload=b"%05d" % n, qos=qos, packet_id=n + 1 if qos else 0)
        for n in range(first, first + count)
    ]


@VERSIONS
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_over_the_message_rate_the_rest_waits_in_order_and_nothing_is_lost(
    make_world: type[World], version: int, qos: int
) -> None:
    world = _world(make_world, publish_messages_per_s=10)
    subscriber = world.subscribed("t", version=version)
    publisher = world.connect("p", version=version)
    packets = _publishes(35, qos)
    traffic = world.node.state.traffic
    publisher.send(*packets)
    assert len(subscriber.publishes()) == 10, "the burst: a second's worth"
    assert traffic.waiting_bytes == sum(len(encode_packet(packet, version)) for packet in packets[10:])
    assert publisher.connection.wants_pause
    world.wait(0.99)
    assert len(subscriber.publishes()) == 19
    world.wait(1.02)
    assert len(subscriber.publishes()) == 30
    world.wait(0.5)
    assert [packet.payload for packet in subscriber.publishes()] == [packet.payload for packet in packets]
    assert not publisher.connection.wants_pause
    assert not publisher.closed
    assert traffic.waiting_bytes == 0
    publisher.send(*packets)
    assert traffic.waiting_bytes
    publisher.lose()
    assert traffic.waiting_bytes == 0


def test_others_and_other_packets_are_not_slowed(make_world: type[World]) -> None:
    world = _world(make_world, publish_messages_per_s=1)
    subscriber = world.subscribed("t")
    greedy, modest = world.connect("greedy"), world.connect("modest")
    greedy.send(*_publishes(100))
    assert greedy.connection.wants_pause
    modest.send(*_publishes(1))
    assert not modest.connection.wants_pause
    assert len(subscriber.publishes()) == 2
    assert len(modest.send(*[p.Pingreq()] * 50)) == 50, "only PUBLISH costs"


def test_a_paused_client_that_pings_behind_its_publishes_is_not_taken_for_dead(make_world: type[World]) -> None:
    world = _world(make_world, publish_messages_per_s=1)
    publisher = world.connect("p", keep_alive_s=2)
    publisher.send(*_publishes(20), p.Pingreq())
    world.wait(15)
    assert not publisher.closed
    assert not [packet for packet in publisher.inbox if isinstance(packet, p.Pingresp)]
    world.wait(5)
    assert [packet for packet in publisher.inbox if isinstance(packet, p.Pingresp)]
    world.wait(4)
    assert publisher.closed, "silent from then on"


def test_over_the_byte_rate_the_rest_waits(make_world: type[World]) -> None:
    world = _world(make_world, publish_bytes_per_s=1_000)
    subscriber = world.subscribed("t")
    publisher = world.connect("p")
    packet = p.Publish(topic="t", payload=b"x" * 94)
    assert len(encode_packet(packet, V5)) == 100
    world.wait(1)
    publisher.send(*[packet] * 30)
    # A packet begins while no debt is left, so the eleventh overdraws.
    assert len(subscriber.publishes()) == 11
    world.wait(0.2)
    assert len(subscriber.publishes()) == 13
    world.wait(2)
    assert len(subscriber.publishes()) == 30


def test_a_packet_larger_than_the_bucket_passes_and_is_paid_for_afterwards(make_world: type[World]) -> None:
    world = _world(make_world, publish_bytes_per_s=100)
    subscriber = world.subscribed("t")
    publisher = world.connect("p")
    publisher.send(p.Publish(topic="t", payload=b"x" * 1_000), p.Publish(topic="t", payload=b"y"))
    assert len(subscriber.publishes()) == 1
    world.wait(8)
    assert len(subscriber.publishes()) == 1
    world.wait(2.5)
    assert len(subscriber.publishes()) == 2


@settings(deadline=None, max_examples=60)
@given(
    st.lists(st.tuples(st.integers(0, 300), st.integers(0, 2)), min_size=1, max_size=25),
    st.sampled_from([{"publish_messages_per_s": 5}, {"publish_bytes_per_s": 200}]),
    st.sampled_from([V311, V5]),
    st.data(),
)
def test_however_the_bytes_are_cut_everything_arrives_in_order(
    make_world: type[World],
    messages: list[tuple[int, int]],
    limits: dict[str, float],
    version: int,
    data: st.DataObject,
) -> None:
    world = _world(make_world, **limits)
    subscriber = world.subscribed("t", version=version)
    publisher = world.connect("p", version=version)
    packets = [
        p.Publish(topic="t", payload=bytes([n]) * size, qos=qos, packet_id=n + 1 if qos else 0)
        for n, (size, qos) in enumerate(messages)
    ]
    stream = b"".join(encode_packet(packet, version) for packet in packets)
    cuts = sorted(data.draw(st.sets(st.integers(1, max(1, len(stream) - 1)), max_size=8)))
    for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        publisher.send_bytes(stream[start:end])
    world.wait(60)
    assert [packet.payload for packet in subscriber.publishes()] == [packet.payload for packet in packets]
    assert not publisher.connection.wants_pause


def test_bad_input_still_ends_a_limited_connection(make_world: type[World]) -> None:
    world = _world(make_world, publish_messages_per_s=5)
    publisher = world.connect("p")
    publisher.send_bytes(b"\x30\xff\xff\xff\xff\xff")
    assert publisher.closed


def test_a_connection_that_ends_while_it_waits_leaves_nothing_behind(make_world: type[World]) -> None:
    world = _world(make_world, publish_messages_per_s=1)
    subscriber = world.subscribed("t")
    publisher = world.connect("p")
    publisher.send(*_publishes(5))
    publisher.lose()
    world.wait(60)
    assert len(subscriber.publishes()) == 1
    assert world.node.next_deadline() is None


# -- payload -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("qos", [1, 2])
@pytest.mark.parametrize("topic", ["t", "$queue/q"])
def test_a_payload_over_the_limit_is_refused_with_quota_exceeded(make_world: type[World], qos: int, topic: str) -> None:
    world = _world(make_world, max_payload_bytes=10)
    subscriber = world.subscribed("t", 2)
    publisher = world.connect("p")
    kind = PacketType.PUBACK if qos == 1 else PacketType.PUBREC
    for size, expected in ((11, Reason.QUOTA_EXCEEDED), (10, Reason.SUCCESS), (11, Reason.QUOTA_EXCEEDED)):
        (answer,) = publisher.send(p.Publish(topic=topic, payload=b"x" * size, qos=qos, packet_id=1))
        assert isinstance(answer, p.Acknowledgement)
        assert answer.type is kind
        assert answer.reason == expected
        if qos == 2 and expected is Reason.SUCCESS:
            publisher.send(p.Acknowledgement(type=PacketType.PUBREL, packet_id=1))
    assert [len(packet.payload) for packet in subscriber.publishes()] == ([10] if topic == "t" else [])
    assert not publisher.closed


@VERSIONS
def test_at_qos_0_a_payload_over_the_limit_is_dropped_and_counted(make_world: type[World], version: int) -> None:
    world = _world(make_world, max_payload_bytes=10)
    subscriber = world.subscribed("t", version=version)
    publisher = world.connect("p", version=version)
    publisher.send(*[p.Publish(topic="t", payload=b"x" * size) for size in (11, 11, 10, 10, 12, 3)])
    publisher.send(p.Publish(topic="t", payload=b"x" * 11, retain=True))
    assert [len(packet.payload) for packet in subscriber.publishes()] == [10, 10, 3]
    assert world.node.state.traffic.dropped == 4
    assert len(world.node.state.retained) == 0
    assert not publisher.closed


def test_3_1_1_has_no_code_for_it_so_the_connection_closes(make_world: type[World]) -> None:
    world = _world(make_world, max_payload_bytes=10)
    subscriber = world.subscribed("t", 1)
    publisher = world.connect("p", version=V311)
    assert publisher.send(p.Publish(topic="t", payload=b"x" * 11, qos=1, packet_id=1)) == []
    assert publisher.closed
    assert subscriber.publishes() == []


def test_a_will_over_the_limit_is_refused_at_connect(make_world: type[World]) -> None:
    world = _world(make_world, max_payload_bytes=10)
    for size, expected in ((10, Reason.SUCCESS), (11, Reason.QUOTA_EXCEEDED)):
        client = world.open()
        will = p.WillFields(topic="t", payload=b"x" * size, qos=0, retain=False, properties=Properties())
        (connack,) = client.send(p.Connect(version=V5, client_id="c", will=will))
        assert isinstance(connack, p.Connack)
        assert connack.reason == expected


# -- configuration -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("connects_per_s", -1),
        ("connect_burst", 0),
        ("max_tracked_addresses", 0),
        ("publish_messages_per_s", -5),
        ("publish_bytes_per_s", 0.5),
        ("publish_burst_s", 0),
        ("max_payload_bytes", -1),
    ],
)
def test_a_limit_that_makes_no_sense_is_refused_by_name(key: str, value: float) -> None:
    with pytest.raises(ConfigError, match=rf"limits\.{key}"):
        parse_limits(**{key: value})


def test_limits_are_off_by_default() -> None:
    limits = LimitsConfig()
    assert limits.connects_per_s == limits.publish_messages_per_s == limits.publish_bytes_per_s == 0
    assert limits.max_payload_bytes == 0

"""Bugs that `assay fuzz mqtt` found, each as small as it became."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest

from assay.conformance.wire import Decoder, MalformedPacketError
from assay.reference_broker.config import BrokerConfig, Durability, SessionsConfig
from assay.reference_broker.mqtt.wire import packets as p
from assay.reference_broker.mqtt.wire.errors import Reason
from assay.reference_broker.mqtt.wire.packets import V5, V311, PacketType, Properties
from assay.reference_broker.node import BrokerNode
from assay.reference_broker.storage.memory_disk import MemoryDisk

if TYPE_CHECKING:
    from tests.mqtt.conftest import Client, World


def sized(limit: int) -> Properties:
    return Properties(maximum_packet_size=limit)


@pytest.mark.parametrize("limit", [1, 4, 5, 12])
def test_a_client_that_takes_no_connack_of_ours_is_refused_before_its_session_is_touched(
    world: World, limit: int
) -> None:
    """3.1.2-24: not even CONNACK may be larger than the client's Maximum Packet Size."""
    kept = world.connect("c", properties=Properties(session_expiry_interval=100))
    client = world.open()
    world.node.receive(
        client.connection,
        b"\x10\x13\0\4MQTT\5\2\0\0\5\x27" + limit.to_bytes(4, "big") + b"\0\1c",
        world.now,
    )
    answer = client.connection.take_output()
    assert len(answer) <= limit
    assert client.closed
    assert not kept.closed, "the client with the same id is still served"
    if limit >= 5:
        (connack,) = Decoder(V5).feed(answer)
        assert connack.reason_code == Reason.PACKET_TOO_LARGE


@pytest.mark.parametrize("answer", ["suback", "unsuback"])
def test_an_answer_that_outgrows_the_client_ends_its_connection(world: World, answer: str) -> None:
    client = world.connect("c", properties=sized(30))
    filters = [f"f{number}" for number in range(40)]
    if answer == "suback":
        requests = tuple(p.SubscriptionRequest(topic_filter=name) for name in filters)
        packet: p.Packet = p.Subscribe(packet_id=1, requests=requests)
    else:
        packet = p.Unsubscribe(packet_id=1, topic_filters=tuple(filters))
    assert client.send(packet) == [p.Disconnect(reason=Reason.PACKET_TOO_LARGE)]
    assert client.closed


def test_an_answer_that_just_fits_is_sent(world: World) -> None:
    client = world.connect("c", properties=sized(30))
    requests = tuple(p.SubscriptionRequest(topic_filter=f"f{number}") for number in range(25))
    (suback,) = client.send(p.Subscribe(packet_id=1, requests=requests))
    assert suback == p.Suback(packet_id=1, reasons=(0,) * 25)


@pytest.mark.parametrize("qos", [0, 1])
def test_a_long_form_of_the_remaining_length_does_not_reach_subscribers(world: World, qos: int) -> None:
    """3.1.1 lets a client write a length with more bytes than it needs; its receivers need not bear that."""
    subscriber = world.subscribed("a", qos, version=V311, client_id="s")
    publisher = world.connect("p", V311)
    body = b"\0\1a" + (b"\0\7" if qos else b"") + b"xy"
    frame = bytes((0x30 | qos << 1, len(body) | 0x80, 0x80, 0)) + body
    world.node.receive(publisher.connection, frame * 3, world.now)
    sent = subscriber.connection.take_output()
    try:
        packets = Decoder(4).feed(sent)
    except MalformedPacketError as error:
        pytest.fail(f"the subscriber was sent {sent.hex()}: {error}")
    assert [packet.payload for packet in packets] == [b"xy"] * 3


@pytest.mark.parametrize("version", [V311, V5])
@pytest.mark.parametrize("data", ["62020000", "620200016202000062020002"])
def test_pubrel_of_packet_identifier_0_is_a_protocol_error_in_its_short_form_too(
    world: World, version: int, data: str
) -> None:
    client = world.connect("c", version)
    client.take()
    client.send_bytes(bytes.fromhex(data))
    assert client.closed
    answered = [packet.packet_id for packet in client.inbox if isinstance(packet, p.Acknowledgement)]
    assert 0 not in answered
    if version == V5:
        last = client.inbox[-1]
        assert isinstance(last, p.Disconnect)
        assert last.reason == Reason.PROTOCOL_ERROR


@pytest.mark.parametrize("body", ["00044d515458", "00044d515454090200000000", "0006"])
def test_a_second_connect_that_is_malformed_ends_with_a_code_that_disconnect_has(world: World, body: str) -> None:
    client = world.connect("c")
    client.take()
    data = bytes.fromhex(body)
    client.send_bytes(bytes((0x10, len(data))) + data)
    (last,) = client.inbox
    assert isinstance(last, p.Disconnect)
    assert last.reason in (Reason.PROTOCOL_ERROR, Reason.MALFORMED_PACKET)


def _received_before(world: World, qos: int) -> tuple[Client, list[p.Publish]]:
    """A client that left with four messages in flight, and these."""
    subscriber = world.connect("s", properties=Properties(session_expiry_interval=100))
    subscriber.send(p.Subscribe(packet_id=1, requests=(p.SubscriptionRequest(topic_filter="a", qos=2),)))
    publisher = world.connect("p")
    publisher.auto_ack = True
    for number in range(4):
        publisher.send(p.Publish(topic="a", payload=b"%d" % number, qos=qos, packet_id=number + 1))
    before = subscriber.publishes()
    assert len(before) == 4
    subscriber.lose()
    return publisher, before


@pytest.mark.parametrize("qos", [1, 2])
def test_what_is_resent_keeps_to_the_window_of_the_new_connection(world: World, qos: int) -> None:
    """3.3.4-9: the client may take fewer unfinished messages at a time than it did before."""
    publisher, before = _received_before(world, qos)
    properties = Properties(session_expiry_interval=100, receive_maximum=2)
    again = world.connect("s", clean_start=False, properties=properties)
    assert [packet.packet_id for packet in again.publishes()] == [packet.packet_id for packet in before[:2]]
    publisher.send(p.Publish(topic="a", payload=b"new", qos=qos, packet_id=9))
    assert len(again.publishes()) == 2, "a new message waits behind those that are to be resent"
    again.auto_ack = True
    for packet in again.publishes():
        kind = PacketType.PUBACK if qos == 1 else PacketType.PUBREC
        again.send(p.Acknowledgement(type=kind, packet_id=packet.packet_id))
    assert [packet.payload for packet in again.publishes()] == [b"0", b"1", b"2", b"3", b"new"]
    assert [packet.dup for packet in again.publishes()] == [True] * 4 + [False]
    session = world.node.state.sessions["s"]
    assert not session.in_flight
    assert not session.unsent


def test_acknowledging_what_still_waits_to_be_resent_does_not_open_the_window_further(world: World) -> None:
    """The client has the message from the connection before, and may say so."""
    _, before = _received_before(world, 1)
    properties = Properties(session_expiry_interval=100, receive_maximum=1)
    again = world.connect("s", clean_start=False, properties=properties)
    again.send(p.Acknowledgement(type=PacketType.PUBACK, packet_id=before[3].packet_id))
    assert [packet.payload for packet in again.publishes()] == [b"0"]
    again.auto_ack = True
    again.send(p.Acknowledgement(type=PacketType.PUBACK, packet_id=before[0].packet_id))
    assert [packet.payload for packet in again.publishes()] == [b"0", b"1", b"2"]


@pytest.mark.parametrize("durability", [Durability.INTERVAL, Durability.FSYNC])
def test_after_the_disk_failed_no_deadline_stays_in_the_past(make_world: type[World], durability: Durability) -> None:
    """A driver would be woken for it at once, again and again."""
    world = make_world()
    config = BrokerConfig(sessions=SessionsConfig(durability=durability))
    world.node = node = BrokerNode(config, MemoryDisk(), random.Random(1), world.now)

    def change(client_id: str) -> None:
        """A new session that must be kept."""
        connection = node.accept("test", world.now)
        node.receive(connection, bytes.fromhex("10 0e 0004 4d515454 04 00 0000 0002") + client_id.encode(), world.now)
        node.take_dirty(world.now)

    change("c1")
    world.now += 2.0
    jobs = node.take_jobs(world.now)
    assert jobs, "the sync of the first change"
    change("c2")
    for job in jobs:
        node.job_done(job, OSError(5, "the disk failed"), world.now)
    for _ in range(3):
        world.now += 2.0
        node.tick(world.now)
        node.take_dirty(world.now)
        node.take_jobs(world.now)
    deadline = node.next_deadline()
    assert deadline is None or deadline > world.now

"""The connection machine: framing, the fast ways against the general way, QoS flows, and endings."""

from __future__ import annotations

import tracemalloc
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.reference_broker.config import BrokerConfig, MqttConfig
from assay.reference_broker.mqtt.wire import packets as p
from assay.reference_broker.mqtt.wire.codec import encode_packet
from assay.reference_broker.mqtt.wire.errors import Reason
from assay.reference_broker.mqtt.wire.packets import V5, V311, PacketType, Properties
from assay.reference_broker.routing.message import Message, memory_bytes

if TYPE_CHECKING:
    from tests.mqtt.conftest import Client, World

VERSIONS = pytest.mark.parametrize("version", [V311, V5])


@st.composite
def traffic(draw: st.DrawFn) -> list[p.Publish]:
    """A publisher's packets, made of runs of like ones, with valid packet ids (each used once)."""
    out: list[p.Publish] = []
    for _ in range(draw(st.integers(1, 6))):
        topic = draw(st.sampled_from(["a/b", "a/c", "long/" + "x" * 130]))
        qos = draw(st.integers(0, 2))
        size = draw(st.integers(0, 3))
        for _ in range(draw(st.integers(1, 5))):
            payload = bytes([len(out) % 256] * size)
            out.append(p.Publish(topic=topic, payload=payload, qos=qos, packet_id=len(out) + 1 if qos else 0))
    return out


@settings(deadline=None)
@given(
    traffic(),
    st.lists(st.tuples(st.sampled_from(["a/b", "a/+", "#"]), st.integers(0, 2)), min_size=1, max_size=3),
    st.sampled_from([V311, V5]),
    st.data(),
)
def test_chunks_do_not_matter(
    make_world: type[World],
    packets: list[p.Publish],
    subscriptions: list[tuple[str, int]],
    version: int,
    data: st.DataObject,
) -> None:
    """One chunk (runs, fast ways) and any other cut of the same bytes (general way) have the same effect."""
    stream = b"".join(encode_packet(packet, version) for packet in packets)
    cuts = sorted(data.draw(st.sets(st.integers(1, max(1, len(stream) - 1)), max_size=8)))
    outcomes = []
    for chunks in (
        [stream],
        [stream[i:j] for i, j in zip([0, *cuts], [*cuts, len(stream)], strict=True)],
        [encode_packet(packet, version) for packet in packets],
        [bytes([byte]) for byte in stream],
    ):
        world = make_world()
        receivers = [world.subscribed(topic, qos, version) for topic, qos in subscriptions]
        for receiver in receivers:
            receiver.auto_ack = True
        publisher = world.connect(version=version)
        publisher.take()
        for chunk in chunks:
            publisher.send_bytes(chunk)
        received = [
            [(m.topic, m.payload, m.qos, m.retain, m.dup) for m in receiver.publishes()] for receiver in receivers
        ]
        assert not publisher.closed
        assert all(not world.clients[r.connection].connection.active_session.in_flight for r in receivers)
        outcomes.append((received, publisher.take()))
    assert all(outcome == outcomes[0] for outcome in outcomes[1:])


@VERSIONS
@pytest.mark.parametrize("qos", [1, 2])
def test_a_run_in_flight_is_resent_on_reconnect_with_the_right_payloads(world: World, version: int, qos: int) -> None:
    persistent = {"clean_start": False}
    if version == V5:
        persistent["properties"] = Properties(session_expiry_interval=100)  # type: ignore[assignment]
    subscriber = world.connect("s", version, **persistent)
    subscriber.send(p.Subscribe(packet_id=1, requests=(p.SubscriptionRequest(topic_filter="t", qos=qos),)))
    subscriber.take()
    publisher = world.connect(version=version)
    run = [p.Publish(topic="t", payload=b"%03d" % n, qos=qos, packet_id=n) for n in range(1, 6)]
    publisher.send(*run)
    first = subscriber.publishes()
    assert [m.payload for m in first] == [m.payload for m in run]
    # The second one is finished (QoS 1) or received (QoS 2) before the connection breaks.
    kind = PacketType.PUBACK if qos == 1 else PacketType.PUBREC
    subscriber.send(p.Acknowledgement(type=kind, packet_id=first[1].packet_id))
    subscriber.lose()
    again = world.connect("s", version, **persistent)
    connack, *rest = again.inbox
    assert isinstance(connack, p.Connack)
    assert connack.session_present
    resent = [m for m in rest if isinstance(m, p.Publish)]
    assert [(m.payload, m.packet_id, m.dup) for m in resent] == [
        (m.payload, m.packet_id, True) for i, m in enumerate(first) if i != 1
    ]
    releases = [m.packet_id for m in rest if isinstance(m, p.Acknowledgement) and m.type is PacketType.PUBREL]
    assert releases == ([first[1].packet_id] if qos == 2 else [])


def test_the_window_is_kept_and_refilled_in_order(world: World) -> None:
    subscriber = world.connect("s", properties=Properties(receive_maximum=2))
    subscriber.send(p.Subscribe(packet_id=1, requests=(p.SubscriptionRequest(topic_filter="t", qos=1),)))
    subscriber.take()
    publisher = world.connect()
    publisher.send(*[p.Publish(topic="t", payload=b"%d" % n, qos=1, packet_id=n) for n in range(1, 7)])
    seen: list[bytes] = []
    for _ in range(6):
        waiting = subscriber.publishes()
        assert len(waiting) <= 2
        subscriber.take()
        for message in waiting:
            seen.append(message.payload)
            subscriber.send(p.Acknowledgement(type=PacketType.PUBACK, packet_id=message.packet_id))
    assert seen == [b"1", b"2", b"3", b"4", b"5", b"6"]


def test_an_acknowledgement_of_the_wrong_kind_closes(world: World) -> None:
    subscriber = world.subscribed("t", 2)
    world.connect().send(p.Publish(topic="t", payload=b"", qos=2, packet_id=1))
    (message,) = subscriber.publishes()
    subscriber.send(p.Acknowledgement(type=PacketType.PUBACK, packet_id=message.packet_id))
    assert subscriber.closed


def test_a_repeated_qos_2_publish_is_delivered_once(world: World) -> None:
    subscriber = world.subscribed("t", 2)
    publisher = world.connect()
    publisher.take()
    packet = p.Publish(topic="t", payload=b"x", qos=2, packet_id=9)
    publisher.send(packet)
    publisher.send(p.Publish(topic="t", payload=b"x", qos=2, packet_id=9, dup=True))
    assert [a.type for a in publisher.take() if isinstance(a, p.Acknowledgement)] == [PacketType.PUBREC] * 2
    assert len(subscriber.publishes()) == 1
    publisher.send(p.Acknowledgement(type=PacketType.PUBREL, packet_id=9))
    publisher.send(packet)
    assert len(subscriber.publishes()) == 2, "after PUBREL the id is free again"


@VERSIONS
def test_the_first_packet_must_be_connect(world: World, version: int) -> None:
    client = world.open(version)
    client.send_bytes(b"\xc0")
    assert client.closed
    assert client.raw == b""
    assert not client.inbox
    assert client.connection.error is not None
    assert client.connection.error.statement == "MQTT-3.1.0-1"


def test_an_oversized_packet_is_refused_from_its_header(make_world: type[World]) -> None:
    world = make_world(BrokerConfig(mqtt=MqttConfig(max_packet_bytes=100)))
    bystander = world.subscribed("t")
    client = world.connect()
    client.take()
    client.send_bytes(bytes.fromhex("30ffffff7f"))
    (disconnect,) = client.inbox
    assert isinstance(disconnect, p.Disconnect)
    assert disconnect.reason == Reason.PACKET_TOO_LARGE
    assert client.closed
    assert not bystander.closed
    before = world.open()
    before.send_bytes(bytes.fromhex("10ffffff7f"))
    assert before.closed, "also before CONNECT, and without waiting for the body"


def test_memory_is_taken_for_what_has_come_not_for_what_a_header_declares(make_world: type[World]) -> None:
    world = make_world(BrokerConfig(mqtt=MqttConfig(max_packet_bytes=268_435_460)))
    clients = [world.open() for _ in range(4)] + [world.connect() for _ in range(4)]
    tracemalloc.start()
    try:
        for number, client in enumerate(clients):
            client.send_bytes(bytes.fromhex("10ffffff7f" if number < 4 else "30ffffff7f"))
            client.send_bytes(b"\0" * 100)
        taken_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert not any(client.closed for client in clients)
    assert taken_bytes < 1_000_000


def test_no_connect_in_time_closes(world: World) -> None:
    client = world.open()
    world.wait(9.9)
    assert not client.closed
    world.wait(0.2)
    assert client.closed


def test_keep_alive_closes_at_one_and_a_half_times_and_publishes_the_will(world: World) -> None:
    watcher = world.subscribed("w")
    client = world.connect("c", keep_alive_s=10, will=p.WillFields(topic="w", payload=b"gone"))
    world.wait(14)
    client.send(p.Pingreq())
    world.wait(14.9)
    assert not client.closed
    world.wait(0.2)
    assert client.closed
    assert [m.payload for m in watcher.publishes()] == [b"gone"]


@pytest.mark.parametrize("ends", ["lost", "left", "taken over"])
def test_nobody_waits_for_who_is_gone(world: World, ends: str) -> None:
    client = world.connect("c", keep_alive_s=10)
    assert world.node.next_deadline() is not None
    if ends == "taken over":
        world.connect("c")
    elif ends == "left":
        client.send(p.Disconnect())
    client.lose()
    assert world.node.next_deadline() is None


def test_takeover_tells_the_old_connection_and_ignores_its_late_end(world: World) -> None:
    watcher = world.subscribed("w")
    expiry = Properties(session_expiry_interval=50)
    first = world.connect("same", properties=expiry, clean_start=False)
    will = p.WillFields(topic="w", payload=b"of the second")
    second = world.connect("same", properties=expiry, clean_start=False, will=will)
    second.send(p.Subscribe(packet_id=1, requests=(p.SubscriptionRequest(topic_filter="t"),)))
    assert first.closed
    assert isinstance(first.inbox[-1], p.Disconnect)
    assert first.inbox[-1].reason == Reason.SESSION_TAKEN_OVER
    first.send(p.Disconnect())
    first.lose()
    assert not second.closed
    assert second.send(p.Pingreq()) == [p.Pingresp()]
    second.take()
    watcher.send(p.Publish(topic="t", payload=b"x"))
    assert [message.payload for message in second.publishes()] == [b"x"], "the session is still its own"
    assert not watcher.publishes()
    second.lose()
    assert [message.payload for message in watcher.publishes()] == [b"of the second"]


def test_will_delay_is_cut_short_by_the_end_of_the_session(world: World) -> None:
    watcher = world.subscribed("w")
    will = p.WillFields(topic="w", payload=b"x", properties=Properties(will_delay_interval=60))
    world.connect("c", will=will, properties=Properties(session_expiry_interval=5)).lose()
    world.wait(4.9)
    assert not watcher.publishes()
    world.wait(0.2)
    assert len(watcher.publishes()) == 1


def test_will_delay_is_cancelled_by_a_reconnect(world: World) -> None:
    watcher = world.subscribed("w")
    expiry = Properties(session_expiry_interval=100)
    will = p.WillFields(topic="w", payload=b"x", properties=Properties(will_delay_interval=10))
    world.connect("c", will=will, properties=expiry).lose()
    world.wait(5)
    world.connect("c", clean_start=False, properties=expiry)
    world.wait(60)
    assert not watcher.publishes()


def test_message_expiry_counts_down_while_queued_and_then_drops(world: World) -> None:
    expiry = Properties(session_expiry_interval=1000)
    subscriber = world.connect("s", clean_start=False, properties=expiry)
    subscriber.send(p.Subscribe(packet_id=1, requests=(p.SubscriptionRequest(topic_filter="t", qos=1),)))
    subscriber.lose()
    publisher = world.connect()
    for n, interval in enumerate((10, 60), 1):
        properties = Properties(message_expiry_interval=interval)
        publisher.send(p.Publish(topic="t", payload=b"%d" % interval, qos=1, packet_id=n, properties=properties))
    world.wait(20)
    again = world.connect("s", clean_start=False, properties=expiry)
    (message,) = again.publishes()
    assert message.payload == b"60"
    assert message.properties.message_expiry_interval == 40


def test_a_slow_reader_loses_qos_0_and_nobody_else_notices(make_world: type[World]) -> None:
    world = make_world(BrokerConfig(mqtt=MqttConfig(max_unread_bytes=1_000)))
    slow, quick = world.subscribed("t"), world.subscribed("t")
    slow.connection.note_backlog(990, 0, world.now)
    world.connect().send(*[p.Publish(topic="t", payload=b"x" * 20) for _ in range(10)])
    assert len(quick.publishes()) == 10
    assert slow.publishes() == []
    assert slow.connection.outbound.dropped == 10


def test_the_queue_of_an_offline_client_is_bounded_in_messages_and_bytes(make_world: type[World]) -> None:
    size = memory_bytes(Message(topic="t", payload=b"x" * 4000))
    world = make_world(BrokerConfig(mqtt=MqttConfig(max_queued_messages=5, max_queued_bytes=2 * size)))
    expiry = Properties(session_expiry_interval=1000)
    publisher = world.connect()
    for payload, kept in ((b"x" * 4000, 2), (b"x" * 4001, 1), (b"y", 5)):
        subscriber = world.connect("s", properties=expiry)
        subscriber.send(p.Subscribe(packet_id=1, requests=(p.SubscriptionRequest(topic_filter="t", qos=1),)))
        subscriber.lose()
        publisher.send(*[p.Publish(topic="t", payload=payload, qos=1, packet_id=n) for n in range(1, 10)])
        again = world.connect("s", clean_start=False, properties=expiry)
        assert [message.payload for message in again.publishes()] == [payload] * kept
        session = again.connection.active_session
        assert session.dropped == 9 - kept
        assert session.queued_bytes == 0, "what was sent no longer counts"


def test_shared_subscriptions_give_each_message_to_one_member(world: World) -> None:
    members = [world.subscribed("$share/g/t", 1) for _ in range(3)]
    publisher = world.connect()
    publisher.send(*[p.Publish(topic="t", payload=b"%d" % n, qos=1, packet_id=n) for n in range(1, 10)])
    got = [[m.payload for m in member.publishes()] for member in members]
    assert sorted(payload for part in got for payload in part) == [b"%d" % n for n in range(1, 10)]
    assert all(len(part) == 3 for part in got)


def test_unsubscribing_the_shared_filter_stops_it(world: World) -> None:
    member = world.subscribed("$share/g/t", 1)
    member.send(p.Unsubscribe(packet_id=2, topic_filters=("$share/g/t",)))
    member.take()
    world.connect().send(p.Publish(topic="t", payload=b"x"))
    assert not member.publishes()


@VERSIONS
def test_the_reason_string_is_left_out_when_the_client_accepts_no_such_packet(world: World, version: int) -> None:
    client: Client = world.connect(
        "c", version, **({"properties": Properties(maximum_packet_size=24)} if version == V5 else {})
    )
    client.take()
    client.send_bytes(b"\xc1\x00")
    assert client.closed
    if version == V5:
        (packet,) = client.inbox
        assert isinstance(packet, p.Disconnect)
        assert packet.reason == Reason.MALFORMED_PACKET
        assert packet.properties == p.NO_PROPERTIES
    else:
        assert not client.inbox


def test_connections_have_no_dict_of_their_own(world: World) -> None:
    """Ten thousand of them may be idle, and every attribute is looked up on the hot path."""
    assert not hasattr(world.connect().connection, "__dict__")

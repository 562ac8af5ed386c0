"""Sessions and retained messages over restarts of the broker, on a disk in memory."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

from assay.reference_broker.config import BrokerConfig, Durability, MqttConfig, SessionsConfig
from assay.reference_broker.mqtt.sessions.session import FREE_IDS, ID_BYTES
from assay.reference_broker.mqtt.wire import packets as p
from assay.reference_broker.mqtt.wire.codec import encode_packet
from assay.reference_broker.node import BrokerNode
from assay.reference_broker.storage.memory_disk import MemoryDisk

if TYPE_CHECKING:
    from tests.mqtt.conftest import Client, World

K = p.PacketType
FOR_EVER_S = 0xFFFFFFFF
"""Session Expiry Interval."""


class Machine:
    """A broker on a disk; :meth:`restart` is what kill -9 and a new start leave of it."""

    def __init__(self, make_world: type[World], config: BrokerConfig) -> None:
        self.config = config
        self.disk = MemoryDisk()
        self.world = make_world(config)
        self._start()

    def _start(self) -> None:
        self.disk.unlock()
        self.world.node = BrokerNode(self.config, self.disk, random.Random(1), self.world.now)
        self.world.clients.clear()
        assert not self.world.node.recovery_notes

    def restart(self, *, cleanly: bool = False, down_s: float = 0.0) -> None:
        if cleanly:
            self.world.node.close(self.world.now)
        self.world.now += down_s
        self._start()

    @property
    def written_bytes(self) -> int:
        folder = "sessions"
        return sum(self.disk.open(f"{folder}/{name}").size for name in self.disk.list(folder) if name.endswith(".seg"))

    def connect(self, client_id: str, *, expiry_s: int = FOR_EVER_S, clean: bool = False, **fields: object) -> Client:
        properties = p.Properties(session_expiry_interval=expiry_s)
        return self.world.connect(client_id, properties=properties, clean_start=clean, **fields)


Start = Callable[[BrokerConfig], Machine]


@pytest.fixture
def start(make_world: type[World]) -> Start:
    return lambda config: Machine(make_world, config)


@pytest.fixture(params=[Durability.INTERVAL, Durability.FSYNC])
def machine(start: Start, request: pytest.FixtureRequest) -> Machine:
    return start(BrokerConfig(sessions=SessionsConfig(durability=request.param)))


def subscribe(client: Client, *filters: str, qos: int = 2, **options: object) -> None:
    requests = tuple(p.SubscriptionRequest(topic_filter=each, qos=qos, **options) for each in filters)  # type: ignore[arg-type]
    client.send(p.Subscribe(packet_id=1, requests=requests))


def publish(client: Client, topic: str, *payloads: bytes, qos: int = 1, first_id: int = 1, **fields: object) -> None:
    packets = [
        p.Publish(topic=topic, payload=payload, qos=qos, packet_id=first_id + number if qos else 0, **fields)  # type: ignore[arg-type]
        for number, payload in enumerate(payloads)
    ]
    client.send(*packets)
    if qos == 2:
        client.send(*(p.Acknowledgement(type=K.PUBREL, packet_id=packet.packet_id) for packet in packets))


def payloads(client: Client) -> list[bytes]:
    return [packet.payload for packet in client.publishes()]


def acknowledge(client: Client, kind: p.PacketType, *packet_ids: int) -> None:
    client.send(*(p.Acknowledgement(type=kind, packet_id=each) for each in packet_ids))


def connack(client: Client) -> p.Connack:
    first = client.inbox[0]
    assert isinstance(first, p.Connack)
    return first


@pytest.mark.parametrize("cleanly", [False, True])
@pytest.mark.parametrize("qos", [1, 2])
def test_messages_for_an_absent_client_survive(machine: Machine, qos: int, cleanly: bool) -> None:
    subscribe(machine.connect("c"), "t/#")
    machine.world.clients.clear()
    machine.restart(cleanly=cleanly)
    publish(machine.connect("p", expiry_s=0), "t/1", b"a", b"b", b"c", qos=qos)
    machine.restart(cleanly=cleanly)
    client = machine.connect("c")
    assert connack(client).session_present
    assert payloads(client) == [b"a", b"b", b"c"]
    assert all(packet.qos == qos and not packet.dup for packet in client.publishes())


def test_what_was_sent_and_not_acknowledged_is_sent_again_with_its_packet_id(machine: Machine) -> None:
    client = machine.connect("c")
    subscribe(client, "t")
    publish(machine.connect("p", expiry_s=0), "t", b"a", b"b", b"c", qos=2)
    first = client.publishes()
    acknowledge(client, K.PUBREC, first[0].packet_id)
    machine.restart()
    client = machine.connect("c")
    kinds = [(type(packet).__name__, getattr(packet, "packet_id", 0)) for packet in client.inbox[1:]]
    assert kinds == [
        ("Acknowledgement", first[0].packet_id),
        ("Publish", first[1].packet_id),
        ("Publish", first[2].packet_id),
    ]
    assert all(packet.dup for packet in client.publishes())
    acknowledge(client, K.PUBCOMP, first[0].packet_id)
    for packet in first[1:]:
        acknowledge(client, K.PUBREC, packet.packet_id)
        acknowledge(client, K.PUBCOMP, packet.packet_id)
    machine.restart()
    assert len(machine.connect("c").inbox) == 1, "nothing but the CONNACK"


def test_releases_are_sent_again_in_the_order_of_their_pubrecs(machine: Machine) -> None:
    client = machine.connect("c")
    subscribe(client, "t")
    publish(machine.connect("p", expiry_s=0), "t", b"a", b"b", b"c", qos=2)
    ids = [packet.packet_id for packet in client.publishes()]
    order = [ids[1], ids[2], ids[0]]
    for packet_id in order:
        acknowledge(client, K.PUBREC, packet_id)
    machine.restart()
    client = machine.connect("c")
    assert [packet.packet_id for packet in client.inbox[1:] if isinstance(packet, p.Acknowledgement)] == order


def test_what_was_acknowledged_does_not_come_again(machine: Machine) -> None:
    client = machine.connect("c")
    client.auto_ack = True
    subscribe(client, "t")
    publisher = machine.connect("p", expiry_s=0)
    for qos in (1, 2):
        publish(publisher, "t", b"x", b"y", qos=qos)
    assert len(payloads(client)) == 4
    machine.restart()
    assert payloads(machine.connect("c")) == []
    state = machine.world.node.state
    assert not state.sessions["c"].in_flight


def test_a_received_qos_2_packet_id_is_remembered_until_its_release(machine: Machine) -> None:
    watcher = machine.connect("w")
    subscribe(watcher, "t", qos=1)
    publisher = machine.connect("p")
    publisher.send(p.Publish(topic="t", payload=b"once", qos=2, packet_id=7))
    machine.restart()
    publisher = machine.connect("p")
    again = publisher.send(p.Publish(topic="t", payload=b"once", qos=2, packet_id=7, dup=True))
    assert [packet.reason for packet in again if isinstance(packet, p.Acknowledgement)] == [0]
    acknowledge(publisher, K.PUBREL, 7)
    assert payloads(machine.connect("w")) == [b"once"]
    machine.restart()
    publisher = machine.connect("p")
    publisher.send(p.Publish(topic="t", payload=b"new", qos=2, packet_id=7))
    assert payloads(machine.connect("w")) == [b"once", b"new"], "the id was free again"


def test_one_message_for_many_sessions_is_written_once(machine: Machine) -> None:
    for number in range(20):
        subscribe(machine.connect(f"c{number}"), "t")
    machine.restart()
    before = machine.written_bytes
    publish(machine.connect("p", expiry_s=0), "t", b"x" * 10_000)
    assert machine.written_bytes - before < 15_000
    for half in (range(10), range(10, 20)):
        machine.restart()
        for number in half:
            client = machine.connect(f"c{number}")
            (packet,) = client.publishes()
            assert packet.payload == b"x" * 10_000
            acknowledge(client, K.PUBACK, packet.packet_id)
    journal = machine.world.node.state.journal
    assert journal is not None
    assert not journal._shared, "its last receiver acknowledged it"
    machine.restart()
    assert payloads(machine.connect("c3")) == []


def test_properties_of_subscriptions_and_messages_survive(machine: Machine) -> None:
    client = machine.connect("c")
    options = {"retain_as_published": True, "no_local": True}
    request = p.SubscriptionRequest(topic_filter="t", qos=1, **options)  # type: ignore[arg-type]
    client.send(p.Subscribe(packet_id=1, requests=(request,), properties=p.Properties(subscription_identifier=(9,))))
    machine.restart()
    sent = p.Properties(
        user_property=(("k", "v"), ("k", "w")),
        content_type="text",
        response_topic="r",
        correlation_data=b"\x00\x01",
        payload_format_indicator=1,
        message_expiry_interval=100,
    )
    publish(machine.connect("p", expiry_s=0), "t", b"x", retain=True, properties=sent)
    machine.restart(down_s=30)
    (packet,) = machine.connect("c").publishes()
    assert packet.retain
    assert packet.properties.subscription_identifier == (9,)
    assert packet.properties.user_property == sent.user_property
    assert packet.properties.content_type == "text"
    assert packet.properties.response_topic == "r"
    assert packet.properties.correlation_data == b"\x00\x01"
    assert packet.properties.payload_format_indicator == 1
    assert packet.properties.message_expiry_interval == 70


def test_expired_messages_do_not_come_back(machine: Machine) -> None:
    subscribe(machine.connect("c"), "t")
    machine.restart()
    expiring = p.Properties(message_expiry_interval=10)
    publish(machine.connect("p", expiry_s=0), "t", b"late", properties=expiring, retain=True)
    publish(machine.connect("p", expiry_s=0), "t", b"good")
    machine.restart(down_s=11)
    assert payloads(machine.connect("c")) == [b"good"]
    assert len(machine.world.node.state.retained) == 0


@pytest.mark.parametrize("restarts", [1, 2])
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_messages_live_as_long_as_they_have_over_restarts(machine: Machine, qos: int, restarts: int) -> None:
    """Retained and waiting ones: neither forgotten before their time nor kept beyond it, and the rest counts down."""
    subscribe(machine.connect("c"), "t")
    machine.restart()
    publisher = machine.connect("p", expiry_s=0)
    for number, life_s in enumerate((100, None, 1000)):
        properties = p.Properties(message_expiry_interval=life_s)
        name = b"%d" % number
        publish(publisher, f"kept/{number}", name, qos=qos, first_id=1 + number, properties=properties, retain=True)
        publish(publisher, "t", name, qos=qos, first_id=11 + number, properties=properties)
    for _ in range(restarts):
        machine.restart(down_s=60.0 / restarts)
    other = machine.connect("other", expiry_s=0)
    subscribe(other, "kept/#")
    waiting = machine.connect("c")
    for client, wanted in ((other, 3), (waiting, 3 if qos else 0)):
        found = {packet.payload: packet.properties.message_expiry_interval for packet in client.publishes()}
        assert found == dict([(b"0", 40), (b"1", None), (b"2", 940)][:wanted])
    other.lose()
    waiting.lose()
    machine.restart(down_s=41.0)
    other = machine.connect("other", expiry_s=0)
    subscribe(other, "kept/#")
    assert sorted(payloads(other)) == [b"1", b"2"]


def test_retained_messages_survive_until_they_are_removed(machine: Machine) -> None:
    publisher = machine.connect("p", expiry_s=0)
    for topic, payload in (("a", b"1"), ("b", b"2"), ("a", b"3")):
        publish(publisher, topic, payload, qos=0, retain=True)
    machine.restart()
    publish(machine.connect("p", expiry_s=0), "b", b"", qos=0, retain=True)
    machine.restart(cleanly=True)
    client = machine.connect("c", expiry_s=0)
    subscribe(client, "#")
    assert payloads(client) == [b"3"]


def test_unsubscribing_survives(machine: Machine) -> None:
    client = machine.connect("c")
    subscribe(client, "a", "b")
    client.send(p.Unsubscribe(packet_id=2, topic_filters=("a",)))
    machine.restart()
    publisher = machine.connect("p", expiry_s=0)
    publish(publisher, "a", b"no")
    publish(publisher, "b", b"yes")
    assert payloads(machine.connect("c")) == [b"yes"]


def test_a_session_that_ended_is_gone(machine: Machine) -> None:
    subscribe(machine.connect("c"), "t")
    publish(machine.connect("p", expiry_s=0), "t", b"x")
    machine.connect("c", clean=True)
    machine.restart()
    client = machine.connect("c")
    assert connack(client).session_present, "the new session is kept as well"
    assert payloads(client) == []
    publish(machine.connect("p", expiry_s=0), "t", b"y")
    assert payloads(client) == [], "it has no subscription"


def test_sessions_that_end_with_their_connection_leave_nothing(machine: Machine) -> None:
    subscribe(machine.connect("c"), "t")
    client = machine.connect("c", expiry_s=0)
    assert connack(client).session_present
    machine.restart()
    assert not connack(machine.connect("c")).session_present
    client = machine.connect("d")
    subscribe(client, "t")
    client.send(p.Disconnect(properties=p.Properties(session_expiry_interval=0)))
    machine.restart()
    assert not connack(machine.connect("d")).session_present


def test_expiry_counts_on_while_the_broker_is_down(machine: Machine) -> None:
    for client_id, expiry_s in (("short", 20), ("long", 40)):
        client = machine.connect(client_id, expiry_s=expiry_s)
        client.send(p.Disconnect())
    machine.connect("connected", expiry_s=20)
    machine.restart(down_s=30)
    machine.world.wait(0)
    assert set(machine.world.node.state.sessions) == {"long", "connected"}, "who was connected is lost only now"
    machine.world.wait(11)
    assert set(machine.world.node.state.sessions) == {"connected"}
    machine.world.wait(10)
    assert not machine.world.node.state.sessions
    machine.restart()
    assert not machine.world.node.state.sessions


@pytest.mark.parametrize("connected", [True, False])
def test_expiry_counts_on_over_any_number_of_starts(machine: Machine, connected: bool) -> None:
    """From when the connection was lost; of a client that was connected, from the first start after that."""
    client = machine.connect("c", expiry_s=50)
    if not connected:
        client.send(p.Disconnect())
    machine.restart()
    for _ in range(4):
        machine.restart(down_s=12)
    assert connack(machine.connect("c", expiry_s=50)).session_present, "48 s have passed"
    machine.restart()
    for _ in range(4):
        machine.restart(down_s=13)
    assert not connack(machine.connect("c", expiry_s=50)).session_present, "52 s have passed"


@pytest.mark.parametrize("connected", [True, False])
def test_the_delay_of_a_will_counts_on_over_any_number_of_starts(machine: Machine, connected: bool) -> None:
    subscribe(machine.connect("w"), "will")
    will = p.WillFields(
        topic="will", payload=b"gone", qos=1, retain=False, properties=p.Properties(will_delay_interval=50)
    )
    client = machine.connect("c", expiry_s=1_000, will=will)
    if not connected:
        client.lose()
    machine.restart()
    for passed_s in (12, 24, 36, 48):
        machine.restart(down_s=12)
        machine.world.wait(0)
        assert not payloads(machine.connect("w")), passed_s
    machine.restart(down_s=4)
    machine.connect("c", expiry_s=1_000)
    for _ in range(3):
        assert payloads(machine.connect("w")) == [b"gone"], "52 s have passed, though the client is back first of all"
        machine.restart()
    acknowledge(machine.connect("w"), K.PUBACK, 1)
    machine.restart(down_s=100)
    machine.world.wait(0)
    assert not payloads(machine.connect("w")), "it is sent once"


@pytest.mark.parametrize(("delay_s", "after_s"), [(0, 0.0), (30, 30.0)])
def test_a_crash_of_the_broker_sends_wills(machine: Machine, delay_s: int, after_s: float) -> None:
    properties = p.Properties(will_delay_interval=delay_s or None)
    will = p.WillFields(topic="w", payload=b"gone", qos=1, retain=True, properties=properties)
    machine.connect("c", will=will)
    machine.restart()
    watcher = machine.connect("watcher", expiry_s=0)
    subscribe(watcher, "w")
    if after_s:
        machine.world.wait(after_s - 0.5)
        assert payloads(watcher) == []
    machine.world.wait(0.5)
    assert payloads(watcher) == [b"gone"]
    machine.restart()
    machine.world.wait(60)
    watcher = machine.connect("watcher", expiry_s=0)
    subscribe(watcher, "w")
    assert payloads(watcher) == [b"gone"], "retained, and sent once"


def test_a_client_that_is_back_in_time_has_no_will_sent(machine: Machine) -> None:
    properties = p.Properties(will_delay_interval=30)
    machine.connect("c", will=p.WillFields(topic="w", payload=b"gone", qos=1, retain=False, properties=properties))
    machine.restart()
    watcher = machine.connect("watcher", expiry_s=0)
    subscribe(watcher, "w")
    machine.connect("c")
    machine.world.wait(100)
    assert payloads(watcher) == []


def test_a_session_stays_its_users(machine: Machine) -> None:
    machine.connect("c")
    machine.world.node.state.sessions["c"].username = "somebody"
    state = machine.world.node.state
    assert state.journal is not None
    state.journal.keep(state.sessions["c"])
    machine.world.turn()
    machine.restart()
    assert machine.world.node.state.sessions["c"].username == "somebody"
    assert not connect_is_present(machine, "c"), "an anonymous client starts anew"


def connect_is_present(machine: Machine, client_id: str) -> bool:
    return connack(machine.connect(client_id)).session_present


def test_a_block_of_messages_in_flight_survives(machine: Machine) -> None:
    """The block lane keeps one object for many messages; each is written down by itself."""
    client = machine.connect("c", expiry_s=FOR_EVER_S)
    subscribe(client, "t")
    publisher = machine.connect("p", expiry_s=0)
    sent = [b"%04d" % number for number in range(200)]
    publish(publisher, "t", *sent, qos=1)
    ids = [packet.packet_id for packet in client.publishes()]
    acknowledge(client, K.PUBACK, *ids[:50])
    machine.restart()
    client = machine.connect("c")
    assert payloads(client) == sent[50:]
    assert [packet.packet_id for packet in client.publishes()] == ids[50:]


def test_the_order_of_queued_messages_survives_a_full_window(machine: Machine) -> None:
    properties = p.Properties(session_expiry_interval=FOR_EVER_S, receive_maximum=3)
    client = machine.world.connect("c", properties=properties, clean_start=False)
    subscribe(client, "t")
    sent = [b"%d" % number for number in range(10)]
    publish(machine.connect("p", expiry_s=0), "t", *sent)
    acknowledge(client, K.PUBACK, *[packet.packet_id for packet in client.publishes()][:2])
    machine.restart()
    client = machine.connect("c")
    client.auto_ack = True
    client.send(p.Pingreq())
    assert payloads(client) == sent[2:]


def test_too_many_retained_messages_after_a_limit_was_lowered_are_reported(start: Start) -> None:
    machine = start(BrokerConfig())
    publisher = machine.connect("p", expiry_s=0)
    for topic in ("a", "b", "c"):
        publish(publisher, topic, b"x", qos=0, retain=True)
    config = BrokerConfig(mqtt=MqttConfig(max_retained_messages=2))
    machine.disk.unlock()
    node = BrokerNode(config, machine.disk, random.Random(1), machine.world.now)
    assert len(node.state.retained) == 2
    assert ["limit" in note.problem for note in node.recovery_notes] == [True]


def test_memory_durability_writes_nothing(start: Start) -> None:
    machine = start(BrokerConfig(sessions=SessionsConfig(durability=Durability.MEMORY)))
    subscribe(machine.connect("c"), "t")
    assert not machine.disk.exists("sessions")
    machine.restart()
    assert not connect_is_present(machine, "c")


def test_transient_sessions_write_nothing(machine: Machine) -> None:
    before = machine.written_bytes
    client = machine.connect("c", expiry_s=0)
    subscribe(client, "t")
    publish(machine.connect("p", expiry_s=0), "t", b"x", b"y", qos=2)
    assert len(payloads(client)) == 2
    assert machine.written_bytes == before


@pytest.mark.parametrize(("version", "reason"), [(p.V311, 3), (p.V5, 0x97)])
def test_more_clients_than_are_remembered_are_refused(make_world: type[World], version: int, reason: int) -> None:
    world = make_world(BrokerConfig(mqtt=MqttConfig(max_sessions=2)))
    properties = p.Properties(session_expiry_interval=FOR_EVER_S)
    world.connect("a", properties=properties, clean_start=False).lose()
    second = world.connect("b")
    refused = world.open(version)
    (answer,) = refused.send(p.Connect(version=version, client_id="c", clean_start=True))
    assert isinstance(answer, p.Connack)
    assert answer.reason == reason
    assert refused.closed
    assert world.connect("a", properties=properties, clean_start=False).inbox, "who is remembered may come back"
    second.send(p.Disconnect())
    world.connect("c")


def test_received_ids_count_as_memory_after_a_restart_too(start: Start) -> None:
    machine = start(BrokerConfig())
    client = machine.connect("c", version=p.V311)
    for first in range(1, 1_001, 100):
        packets = [p.Publish(topic="t", payload=b"", qos=2, packet_id=first + number) for number in range(100)]
        client.send(*packets)
    machine.restart()
    held = machine.world.node.state.held
    counted = held.used
    assert counted == ID_BYTES * (1_000 - FREE_IDS)
    client = machine.connect("c", version=p.V311)
    assert held.used == counted
    acknowledge(client, K.PUBREL, *range(1, 1_001))
    client.lose()
    machine.connect("c", version=p.V311)
    assert held.used == 0


@pytest.mark.parametrize("qos", [0, 1])
def test_output_that_waits_for_the_disk_is_bounded_as_what_is_unread(start: Start, qos: int) -> None:
    limits = MqttConfig(unread_high_water_bytes=20_000, max_unread_bytes=50_000)
    machine = start(BrokerConfig(sessions=SessionsConfig(durability=Durability.FSYNC), mqtt=limits))
    world = machine.world
    client, publisher = machine.connect("c"), machine.connect("p", expiry_s=0)
    subscribe(client, "t", "kept")
    packet = p.Publish(topic="kept", payload=b"x", qos=1, packet_id=1)
    node, connection = world.node, client.connection
    jobs = []

    def turn() -> None:
        for each in node.take_dirty(world.now):
            world.clients[each].flush()
        jobs.extend(node.take_jobs(world.now))

    node.receive(publisher.connection, encode_packet(packet, p.V5), world.now)
    turn()
    assert connection.holds_output
    for number in range(200):
        packet = p.Publish(topic="t", payload=b"%03d" % number + b"x" * 1_000, qos=qos, packet_id=2 if qos else 0)
        node.receive(publisher.connection, encode_packet(packet, p.V5), world.now)
        turn()
        assert connection.out_bytes <= (22_000 if qos else 50_000)
    assert connection.out_bytes > (19_000 if qos else 48_000)
    dropped = node.state.traffic.dropped
    assert (dropped > 100) == (not qos)
    for job in jobs:
        job.run()
        node.job_done(job, None, world.now)
    world.turn()
    assert connection.out_bytes == 0
    assert node.state.traffic.unread_bytes == 0

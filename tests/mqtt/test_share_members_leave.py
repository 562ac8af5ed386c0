"""What a member of a shared subscription leaves behind goes to the others, and what nobody can get is counted."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest

from assay.reference_broker.config import BrokerConfig, MqttConfig, parse_config
from assay.reference_broker.mqtt.sessions.session import Session, SharedOutgoing
from assay.reference_broker.mqtt.wire import packets as p
from assay.reference_broker.mqtt.wire.packets import V5, V311, Properties
from assay.reference_broker.trace.schema import TraceKind
from tests.mqtt.test_durable_sessions import Machine

if TYPE_CHECKING:
    from tests.mqtt.conftest import Client, World

K = p.PacketType
SHARE = "$share/g/t/+"


def member(world: World, client_id: str, expiry_s: int = 0, window: int = 100, **fields: object) -> Client:
    properties = Properties(session_expiry_interval=expiry_s, receive_maximum=window)
    client = world.connect(client_id, properties=properties, **{"clean_start": False, **fields})
    subscribe(client)
    return client


def subscribe(client: Client, qos: int = 2, share: str = SHARE) -> None:
    client.send(p.Subscribe(packet_id=1, requests=(p.SubscriptionRequest(topic_filter=share, qos=qos),)))
    client.take()


def publish(client: Client, numbers: range, qos: int = 1, properties: Properties = p.NO_PROPERTIES) -> None:
    for number in numbers:
        client.send(
            p.Publish(topic="t/x", payload=b"%d" % number, qos=qos, packet_id=number + 1, properties=properties)
        )
        if qos == 2:
            client.send(p.Acknowledgement(type=K.PUBREL, packet_id=number + 1))
    client.take()


def numbers(client: Client) -> list[int]:
    return [int(packet.payload) for packet in client.publishes()]


def acknowledge(client: Client) -> None:
    for packet in client.take():
        if isinstance(packet, p.Publish):
            client.send(p.Acknowledgement(type=K.PUBACK, packet_id=packet.packet_id))


def leave_by_disconnect(world: World, client: Client) -> None:
    client.send(p.Disconnect())
    client.lose()


def leave_by_loss(world: World, client: Client) -> None:
    client.lose()


def leave_by_takeover(world: World, client: Client) -> None:
    world.connect("a", clean_start=True)


@pytest.mark.parametrize("leave", [leave_by_disconnect, leave_by_loss, leave_by_takeover])
@pytest.mark.parametrize("window", [1, 3, 100])
def test_others_get_what_a_leaver_held_in_order(make_world: type[World], leave: object, window: int) -> None:
    world = make_world()
    first, second = member(world, "a", window=window), member(world, "b", window=100)
    publish(world.connect("p"), range(20))
    held = 20 - len(numbers(second))
    acknowledge(second)
    assert callable(leave)
    leave(world, first)
    moved = numbers(second)
    assert len(moved) == held >= 1
    assert moved == sorted(moved)
    assert world.node.state.traffic.dropped == 0


def test_a_session_that_expires_passes_on_what_it_held(make_world: type[World]) -> None:
    world = make_world()
    first, second = member(world, "a", expiry_s=10), member(world, "b")
    publish(world.connect("p"), range(10))
    acknowledge(second)
    first.lose()
    world.wait(9)
    assert numbers(second) == []
    world.wait(2)
    assert len(numbers(second)) == 5


def test_what_was_sent_at_qos_2_goes_to_nobody_else(make_world: type[World]) -> None:
    """[MQTT-4.8.2-5]: the client may have it. What was only queued is passed on."""
    world = make_world()
    first, second = member(world, "a", window=2), member(world, "b", window=100)
    second.auto_ack = True
    publish(world.connect("p"), range(20), qos=2)
    sent = numbers(first)
    first.send(p.Acknowledgement(type=K.PUBREC, packet_id=first.publishes()[0].packet_id))
    assert len(sent) == 2
    first.lose()
    assert set(numbers(second)) == set(range(20)) - set(sent)
    assert world.node.state.traffic.dropped == 1, "the one that no PUBREC came for"


def test_after_unsubscribing_what_was_begun_is_completed_and_the_rest_passed_on(make_world: type[World]) -> None:
    world = make_world()
    first, second = member(world, "a", window=2), member(world, "b", window=2)
    publish(world.connect("p"), range(8))
    begun = numbers(first)
    first.send(p.Unsubscribe(packet_id=9, topic_filters=(SHARE,)))
    second.auto_ack = True
    acknowledge(second)
    assert len(begun) == 2
    assert len(world.node.state.sessions["a"].in_flight) == 2, "it may still acknowledge them"
    first.send(*(p.Acknowledgement(type=K.PUBACK, packet_id=packet.packet_id) for packet in first.publishes()))
    assert numbers(first) == begun
    first.lose()
    held = world.node.state.sessions["b"]
    assert (len(held.queued), len(held.in_flight), held.queued_bytes) == (0, 0, 0)
    assert world.node.state.traffic.dropped == 0
    assert world.node.state.traffic.publishes_sent == 8


def test_the_last_member_keeps_what_waits_when_it_unsubscribes(make_world: type[World]) -> None:
    world = make_world()
    only = member(world, "a", window=1)
    publish(world.connect("p"), range(4))
    only.send(p.Unsubscribe(packet_id=9, topic_filters=(SHARE,)))
    acknowledge(only)
    acknowledge(only)
    assert numbers(only) == [2]


def test_what_nobody_is_left_for_is_counted_and_traced(make_world: type[World]) -> None:
    world = make_world()
    told: list[str | int] = []
    world.node.state.tracer = lambda kind, fields: (
        told.append(fields["detail"]) if kind is TraceKind.DISCARDED else None
    )
    only = member(world, "a", window=1)
    publish(world.connect("p"), range(4))
    only.lose()
    assert world.node.state.traffic.dropped == 4
    assert told == [f"{SHARE}: no other client shares the subscription"] * 4


def test_what_has_expired_is_not_passed_on(make_world: type[World]) -> None:
    world = make_world()
    first, second = member(world, "a", expiry_s=10, window=1), member(world, "b")
    publish(world.connect("p"), range(4), properties=Properties(message_expiry_interval=5))
    acknowledge(second)
    first.lose()
    world.wait(11)
    assert numbers(second) == []


def test_the_limit_of_the_receiver_holds_and_others_with_room_are_preferred(make_world: type[World]) -> None:
    world = make_world(BrokerConfig(mqtt=MqttConfig(max_queued_messages=3)))
    first = member(world, "a")
    second = member(world, "b", window=1)
    publish(world.connect("p"), range(2))
    third = member(world, "c", window=1)
    publish(world.connect("q"), range(2, 9))
    before = world.node.state.traffic.dropped
    first.lose()
    held = sum(len(session.queued) + len(session.in_flight) for session in world.node.state.sessions.values())
    assert held == 8, "two windows of one, two queues of three"
    assert world.node.state.traffic.dropped - before == 9 - 8
    assert (second.closed, third.closed) == (False, False)


def test_new_messages_go_to_the_connected_whose_queue_has_room(make_world: type[World]) -> None:
    world = make_world(BrokerConfig(mqtt=MqttConfig(max_queued_messages=2)))
    member(world, "a", window=1)
    away = member(world, "b", expiry_s=100)
    away.lose()
    publish(world.connect("p"), range(5))
    sessions = world.node.state.sessions
    assert [len(sessions[name].queued) for name in ("a", "b")] == [2, 2]
    assert world.node.state.traffic.dropped == 0


def test_a_message_held_for_another_subscription_as_well_is_passed_on_once(make_world: type[World]) -> None:
    world = make_world()
    first, second = member(world, "a"), member(world, "b")
    subscribe(first, share="t/+")
    publish(world.connect("p"), range(6))
    got = numbers(second)
    first.lose()
    assert sorted(numbers(second)) == list(range(6))
    assert len(got) == 3
    assert world.node.state.traffic.dropped == 0


def test_the_share_is_known_after_a_restart(make_world: type[World]) -> None:
    machine = Machine(make_world, BrokerConfig())
    first = member(machine.world, "a", expiry_s=50, window=2)
    second = member(machine.world, "b", expiry_s=500, window=100)
    publish(machine.world.connect("p"), range(12))
    held = numbers(second)
    acknowledge(second)
    assert len(numbers(first)) == 2
    machine.restart()
    second = member(machine.world, "b", expiry_s=500)
    machine.world.wait(60)
    assert sorted(numbers(second)) == sorted(set(range(12)) - set(held))
    acknowledge(second)
    machine.restart()
    assert numbers(member(machine.world, "b", expiry_s=500)) == []


def test_ten_thousand_messages_are_passed_on_in_linear_time(make_world: type[World]) -> None:
    world = make_world(BrokerConfig(mqtt=MqttConfig(max_queued_messages=10_000)))
    first = member(world, "a", window=1)
    publisher = world.connect("p")
    for start in range(0, 10_000, 1_000):
        publish(publisher, range(start, start + 1_000))
    members = [member(world, f"m{number}") for number in range(10)]
    looked = 0
    tree = world.node.state.tree
    original = tree.shared_group

    def shared_group(share: str) -> object:
        nonlocal looked
        looked += 1
        return original(share)

    tree.shared_group = shared_group  # type: ignore[method-assign, assignment]
    first.lose()
    assert looked == 1
    assert [len(world.node.state.sessions[f"m{number}"].in_flight) for number in range(10)] == [100] * 10
    assert sum(len(world.node.state.sessions[f"m{number}"].queued) for number in range(10)) == 9_000
    assert len(members) == 10


class Life:
    """A share and its members at random. Every message is in one place: with one session, acknowledged, or counted."""

    def __init__(self, make_world: type[World], seed: int, version: int) -> None:
        self.rng = random.Random(seed)
        self.version = version
        self.machine = Machine(make_world, parse_config({"mqtt": {"max_queued_messages": 6}}))
        self.members: dict[str, Client] = {}
        self.published: set[int] = set()
        self.done: set[int] = set()
        self.lost: set[int] = set()
        self.dropped_before = 0
        self.seen: dict[int, str] = {}
        self.qos: dict[int, int] = {}
        self.publisher = self.machine.connect("publisher", version=version, clean=True, expiry_s=0)

    @property
    def world(self) -> World:
        return self.machine.world

    def sessions(self) -> dict[str, Session]:
        return self.world.node.state.sessions

    def held(self) -> dict[int, str]:
        """Message -> the client that has it."""
        found: dict[int, str] = {}
        for name, session in self.sessions().items():
            for outgoing in (*session.in_flight.values(), *session.queued):
                if isinstance(outgoing, SharedOutgoing):
                    number = int(outgoing.message.payload)
                    assert number not in found, f"{number} is with {found[number]} and with {name}"
                    found[number] = name
        return found

    def check(self) -> None:
        held = self.held()
        assert not held.keys() & self.done, "acknowledged, and still there"
        dropped = self.dropped_before + self.world.node.state.traffic.dropped
        assert len(held) + len(self.done) + len(self.lost) + dropped == len(self.published)

    def look(self, name: str) -> None:
        """What a member was sent."""
        for packet in self.members[name].publishes():
            number = int(packet.payload)
            before = self.seen.get(number)
            if before != name:
                assert before is None or self.qos[number] == 1, "sent at QoS 2 to two clients"
                assert not packet.dup, "first sent to this client"
                assert number not in self.done
            self.seen[number] = name

    def step(self) -> None:
        name = self.rng.choice("abc")
        client = self.members.get(name)
        action = self.rng.choice(
            ["publish"] * 6 + ["ack"] * 6 + ["join"] * 3 + ["end", "lose", "leave", "wait", "restart"]
        )
        if action == "publish":
            number = len(self.published) + 1
            self.published.add(number)
            self.qos[number] = self.rng.choice((1, 2))
            if not any(SHARE in session.subscriptions for session in self.sessions().values()):
                self.lost.add(number)
            publish(self.publisher, range(number, number + 1), self.qos[number])
        elif action == "ack" and client is not None:
            self.acknowledge(name, client)
        elif action == "join" and client is None:
            self.join(name)
        elif action == "leave" and client is not None:
            client.send(p.Unsubscribe(packet_id=9, topic_filters=(SHARE,)))
        elif action in ("end", "lose") and client is not None:
            if action == "end":
                client.send(p.Disconnect())
            client.lose()
            del self.members[name]
        elif action == "wait":
            self.world.wait(self.rng.choice((1, 20)))
        elif action == "restart":
            self.restart(cleanly=self.rng.random() < 0.5)
        for other in self.members:
            self.look(other)

    def acknowledge(self, name: str, client: Client) -> None:
        unanswered = [packet for packet in client.inbox if isinstance(packet, p.Publish)]
        client.take()
        for packet in unanswered[: self.rng.randint(1, 3)]:
            self.done.add(int(packet.payload))
            if packet.qos == 1:
                client.send(p.Acknowledgement(type=K.PUBACK, packet_id=packet.packet_id))
            else:
                client.send(p.Acknowledgement(type=K.PUBREC, packet_id=packet.packet_id))
                client.send(p.Acknowledgement(type=K.PUBCOMP, packet_id=packet.packet_id))
        client.inbox.extend(unanswered[3:])
        kept = {number for number, holder in self.held().items() if holder == name}
        client.inbox[:0] = [packet for packet in unanswered if int(packet.payload) in kept - self.done]

    def join(self, name: str) -> None:
        expiry_s = self.rng.choice((0, 10, 10_000))
        clean = self.rng.random() < 0.2
        if self.version == V5:
            properties = Properties(session_expiry_interval=expiry_s, receive_maximum=self.rng.randint(1, 3))
            client = self.world.connect(name, clean_start=clean, properties=properties)
        else:
            client = self.world.connect(name, V311, clean_start=clean)
        self.members[name] = client
        client.send(p.Subscribe(packet_id=1, requests=(p.SubscriptionRequest(topic_filter=SHARE, qos=2),)))

    def restart(self, *, cleanly: bool) -> None:
        self.check()
        unkept = {number for number, name in self.held().items() if self.sessions()[name].kept is None}
        node = self.world.node
        self.machine.restart(cleanly=cleanly)
        self.dropped_before += node.state.traffic.dropped
        self.members.clear()
        self.publisher = self.machine.connect("publisher", version=self.version, clean=True, expiry_s=0)
        for session in self.sessions().values():
            sent = (outgoing for outgoing in session.in_flight.values() if isinstance(outgoing, SharedOutgoing))
            self.seen.update({int(outgoing.message.payload): session.client_id for outgoing in sent})
        if not cleanly:
            self.lost |= unkept  # such sessions end with their connection, and so does what they had


@pytest.mark.parametrize("version", [V311, V5])
@pytest.mark.parametrize("seed", range(40))
def test_random_lives_of_a_share(make_world: type[World], seed: int, version: int) -> None:
    life = Life(make_world, seed, version)
    for _ in range(80):
        life.step()
        life.check()


@pytest.mark.parametrize("left", ["$share/g/t/+", "$share/h/u/+"])
def test_who_leaves_one_share_keeps_what_waits_for_the_others(world: World, left: str) -> None:
    """Of three subscriptions one ends: of what waits only its messages go to the other member of both shares."""
    client = member(world, "a", window=1)
    subscribe(client, share="$share/h/u/+")
    subscribe(client, share="v")
    publisher = world.connect("p")
    topics = ["v", *["t/x", "u/x", "v"] * 3]
    for number, topic in enumerate(topics):
        publisher.send(p.Publish(topic=topic, payload=b"%d" % number, qos=1, packet_id=number + 1))
    other = member(world, "b")
    subscribe(other, share="$share/h/u/+")
    client.send(p.Unsubscribe(packet_id=2, topic_filters=(left,)))
    moved = [number for number, topic in enumerate(topics) if topic[0] == left[-3]]
    assert numbers(other) == moved
    got = []
    while came := numbers(client):
        got += came
        acknowledge(client)
    assert got == [number for number in range(len(topics)) if number not in moved]
    acknowledge(other)
    assert world.node.state.held.used == 0, "what is done takes no memory"

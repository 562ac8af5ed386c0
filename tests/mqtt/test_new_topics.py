"""Topics that nobody has sent before go where their filters say, whatever was remembered of topics like them."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest

from assay.reference_broker.config import parse_config
from assay.reference_broker.core.broker import MAX_WORK
from assay.reference_broker.mqtt.connections import inbound
from assay.reference_broker.mqtt.wire import packets as p
from assay.reference_broker.routing.topics import matches

if TYPE_CHECKING:
    from tests.mqtt.conftest import Client, World

FILTERS = ("s/#", "s/+/a", "+/+/a", "s/+/+", "#", "q/#", "s/a/3", "q/a/+", "q/a/4/#", "q/a/é", "s/a/", "+/b")
ODD_LEVELS = ("", "é", "-x y", "a", '"', "9.1")
SMALL_PACKET_BYTES = 60


class Party:
    """Subscribers that come, go and change their minds, and what each must get."""

    def __init__(self, world: World, seed: int) -> None:
        self.world = world
        self.rng = random.Random(seed)
        self.filters: list[dict[str, int]] = [{} for _ in range(3)]
        self.small = [False] * 3
        lasting = p.Properties(session_expiry_interval=1_000)
        self.clients: list[Client] = [world.connect(f"c{number}", properties=lasting) for number in range(3)]
        self.publisher = world.connect("p")
        self.count = 0

    def subscribe(self, who: int) -> None:
        topic_filter, qos = self.rng.choice(FILTERS), self.rng.choice((0, 1))
        self.filters[who][topic_filter] = qos
        request = p.SubscriptionRequest(topic_filter=topic_filter, qos=qos)
        self.clients[who].send(p.Subscribe(packet_id=1, requests=(request,)))

    def unsubscribe(self, who: int) -> None:
        for topic_filter in list(self.filters[who])[:1]:
            del self.filters[who][topic_filter]
            self.clients[who].send(p.Unsubscribe(packet_id=1, topic_filters=(topic_filter,)))

    def reconnect(self, who: int) -> None:
        self.clients[who].lose()
        clean_start = self.rng.random() < 0.5
        if clean_start:
            self.filters[who].clear()
        self.small[who] = self.rng.random() < 0.5
        limit = SMALL_PACKET_BYTES if self.small[who] else None
        properties = p.Properties(maximum_packet_size=limit, session_expiry_interval=1_000)
        self.clients[who] = self.world.connect(f"c{who}", properties=properties, clean_start=clean_start)

    def publish(self) -> None:
        topics, qos = [], self.rng.choice((0, 1))
        size = self.rng.choice((5, SMALL_PACKET_BYTES))
        for _ in range(self.rng.choice((1, 3, 12))):
            self.count += 1
            first, last = self.rng.choice("sq"), self.rng.choice("ab")
            some = self.rng.choice((*range(6), *ODD_LEVELS))
            topics.append(
                self.rng.choice(
                    (f"{first}/{self.count}/{last}", *[f"{first}/a/{self.count}"] * 3, f"{first}/a/{some}", f"s/{some}")
                )
            )
        for client in self.clients:
            client.take()
        self.publisher.send(
            *(
                p.Publish(topic=topic, payload=bytes(size), qos=qos, packet_id=number + 1 if qos else 0)
                for number, topic in enumerate(topics)
            )
        )
        for who, client in enumerate(self.clients):
            wanted = []
            for topic in topics:
                granted = [best for each, best in self.filters[who].items() if matches(each, topic)]
                if granted and not (self.small[who] and size == SMALL_PACKET_BYTES):
                    wanted.append((topic, min(qos, max(granted))))
            got = client.publishes()
            assert [(packet.topic, packet.qos) for packet in got] == wanted
            client.send(
                *(
                    p.Acknowledgement(type=p.PacketType.PUBACK, packet_id=packet.packet_id)
                    for packet in got
                    if packet.qos
                )
            )


@pytest.mark.parametrize("plans", [1, 5, 1_024])
@pytest.mark.parametrize("seed", range(12))
def test_new_topics_reach_exactly_who_asked_for_them(
    world: World, monkeypatch: pytest.MonkeyPatch, seed: int, plans: int
) -> None:
    """Also where there is no room for a plan for each topic."""
    monkeypatch.setattr(inbound, "MAX_PLANS", plans)
    party = Party(world, seed)
    for _ in range(120):
        who, kind = party.rng.randrange(3), party.rng.random()
        if kind < 0.15:
            party.subscribe(who)
        elif kind < 0.22:
            party.unsubscribe(who)
        elif kind < 0.27:
            party.reconnect(who)
        else:
            party.publish()
    assert party.count > 100


def test_each_new_topic_is_captured(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is known of the topics beside it, before and after a queue is bound."""
    monkeypatch.setattr(inbound, "MAX_PLANS", 1)
    watcher = world.subscribed("s/#", qos=1)
    publisher = world.connect("p")
    for first in (0, 12):
        publisher.send(*(p.Publish(topic=f"s/{first + n}", payload=b"m", qos=0, packet_id=0) for n in range(12)))
        if not first:
            world.node.engine.create_queue("q", {"topics": ["s/17"]}, world.now)
    assert world.node.engine.stats("q").captured == 1
    assert len(watcher.publishes()) == 24


def test_each_new_topic_is_held_against_the_rules(make_world: type[World], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inbound, "MAX_PLANS", 1)
    rules = {"default": "allow", "rules": [{"topic": "s/7", "client": "p", "access": "deny"}]}
    world = make_world(parse_config({"acl": rules}))
    watcher = world.subscribed("s/#", qos=1)
    publisher = world.connect("p")
    publisher.send(*(p.Publish(topic=f"s/{n}", payload=b"m", qos=0, packet_id=0) for n in range(12)))
    assert [packet.topic for packet in watcher.publishes()] == [f"s/{n}" for n in range(12) if n != 7]


@pytest.mark.parametrize("bad", [b"s/\0", b"s/+", b"s/#", b"s/\xff", b"+/1", b"\xff/1"])
def test_a_bad_topic_among_new_ones_ends_the_connection(
    world: World, monkeypatch: pytest.MonkeyPatch, bad: bytes
) -> None:
    monkeypatch.setattr(inbound, "MAX_PLANS", 1)
    watcher = world.subscribed("s/#", qos=1)
    publisher = world.connect("p")
    topics = [b"s/1", b"s/2", b"s/3", bad, b"s/4"]
    publisher.send_bytes(b"".join(b"\x30" + bytes((len(t) + 4, 0, len(t))) + t + b"\0m" for t in topics))
    assert [packet.topic for packet in watcher.publishes()] == ["s/1", "s/2", "s/3"]
    assert publisher.closed


@pytest.mark.parametrize("form", ["s/{}/a", "s/a/{}", "{}/s/a"])
def test_a_turn_finds_out_about_so_many_new_topics(world: World, monkeypatch: pytest.MonkeyPatch, form: str) -> None:
    """Whether they have the topic above them in common or not; the others have their turn later, and go as well."""
    monkeypatch.setattr(inbound, "MAX_PLANS", 8)
    watcher = world.subscribed("#", qos=1)
    publisher = world.connect("p")
    asked: list[int] = []
    renew = inbound.Inbound.renew

    def counted(self: inbound.Inbound, plan: inbound.Plan, qos: int) -> None:
        asked[-1] += 1
        renew(self, plan, qos)

    monkeypatch.setattr(inbound.Inbound, "renew", counted)
    take = world.node.take_dirty
    monkeypatch.setattr(world.node, "take_dirty", lambda now: (asked.append(0), take(now))[1])
    asked.append(0)
    topics = [form.format(number).encode() for number in range(3_000)]
    publisher.send_bytes(b"".join(bytes((0x30, len(t) + 4, 0, len(t))) + t + b"\0m" for t in topics))
    world.wait(1.0)
    assert [packet.topic.encode() for packet in watcher.publishes()] == topics
    assert max(asked) <= MAX_WORK + 1

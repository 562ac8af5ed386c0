"""Topics that nobody has sent before go where their filters say, whatever was remembered of topics like them."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest

from assay.reference_broker.mqtt.wire import packets as p
from assay.reference_broker.routing.topics import matches

if TYPE_CHECKING:
    from tests.mqtt.conftest import Client, World

FILTERS = ("s/#", "s/+/a", "+/+/a", "s/+/+", "#", "q/#")
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
        for _ in range(self.rng.randint(1, 3)):
            self.count += 1
            topics.append(f"{self.rng.choice('sq')}/{self.count}/{self.rng.choice('ab')}")
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


@pytest.mark.parametrize("seed", range(20))
def test_new_topics_reach_exactly_who_asked_for_them(world: World, seed: int) -> None:
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

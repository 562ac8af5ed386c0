"""Every figure that the broker keeps, in random lives, against one that counts what clients sent and got.

Lives go through the ways that users run: packets one by one and many in a chunk, deliveries in runs, restarts. What an
engine does within a turn is held to more by ``assay.sim.queue_model``.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from typing import Any, ClassVar

import pytest

from assay.reference_broker.config import BrokerConfig, QueuesConfig
from assay.reference_broker.mqtt.wire import packets as p
from assay.reference_broker.mqtt.wire.codec import encode_packet
from assay.reference_broker.node import BrokerNode
from assay.reference_broker.storage.memory_disk import MemoryDisk
from tests.mqtt.conftest import Client, World

LANES = ("critical", "high", "normal", "low", "background")
MAX_RETRIES = 2
LARGEST = 300
TIMEOUT_S = 10.0
STEPS = 120


class Counting(Client):
    """A client that counts what it sends and gets, as ``$SYS`` names it."""

    figures: ClassVar[Counter[str]] = Counter()

    def send_bytes(self, data: bytes) -> None:
        self.figures["bytes/received"] += len(data)
        super().send_bytes(data)

    def send(self, *packets: p.Packet) -> list[p.Packet]:
        for packet in packets:
            if isinstance(packet, p.Publish):
                self.figures["publish/messages/received"] += 1
                self.figures["publish/bytes/received"] += len(packet.payload)
        return super().send(*packets)

    def flush(self) -> None:
        before = len(self.inbox)
        super().flush()
        for packet in self.inbox[before:]:
            self.figures["bytes/sent"] += len(encode_packet(packet, self.version))
            if isinstance(packet, p.Publish):
                self.figures["publish/messages/sent"] += 1
                self.figures["publish/bytes/sent"] += len(packet.payload)


class Held:
    """A delivery that its client has not settled."""

    def __init__(self, packet: p.Publish) -> None:
        named = dict(packet.properties.user_property)
        self.message_id = named["message-id"]
        self.group = named["group-id"]
        self.count = int(named["delivery-count"])
        self.value = packet.payload.rstrip(b".")


class Group:
    """What one consumer group did, as its members saw it."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.members: dict[str, Counting] = {}
        self.held: dict[str, dict[str, Held]] = {}
        """By member, then message id."""
        self.given: set[bytes] = set()
        self.gone: set[bytes] = set()
        """Settled for good."""
        self.exhausted: list[Held] = []
        """Held at a restart for the last time: dead letters soon after it, whoever is there."""

    def fail(self, held: Held) -> None:
        """Its delivery failed."""
        if held.count > MAX_RETRIES:
            self.bury(held)

    def bury(self, held: Held) -> None:
        self.counts["dead_lettered"] += 1
        self.gone.add(held.value)


class Life:
    """One broker, on a disk that outlives it."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.partitions = self.rng.choice((1, 1, 3))
        self.has_lanes = self.rng.random() < 0.5
        self.disk = MemoryDisk()
        self.groups: dict[str, Group] = {}
        self.retained: set[str] = set()
        self.values: dict[bytes, str] = {}
        """Every message that was taken, and its lane."""
        self.taken = self.refused = self.letters = 0
        """Since the last start; dead letters of before it."""
        self.start()

    def start(self) -> None:
        retry = {"max_retries": MAX_RETRIES, "initial_backoff_s": 1.0, "max_backoff_s": 1.0, "total_timeout_s": 0.0}
        defaults = {
            "partitions": self.partitions,
            "delivery_timeout_s": TIMEOUT_S,
            "retry": retry,
            "max_message_bytes": LARGEST,
            "priority": {"enabled": self.has_lanes},
        }
        config = BrokerConfig(queues=QueuesConfig(defaults=defaults))
        now = self.world.now if hasattr(self, "world") else 1_700_000_000.0
        self.world = World(config)
        self.world.now = now
        self.world.node = BrokerNode(config, self.disk, random.Random(7), now)
        Counting.figures = Counter()
        self.publisher = self.connect("publisher")
        self.subscriber = self.connect("subscriber")
        self.subscriber.auto_ack = True
        self.subscriber.send(
            p.Subscribe(packet_id=1, requests=(p.SubscriptionRequest(topic_filter="t/#", qos=1),)),
            p.Subscribe(packet_id=2, requests=(p.SubscriptionRequest(topic_filter="$share/g/t/1", qos=0),)),
        )
        self.packet_id = self.published = self.most_clients = 0

    def connect(self, client_id: str) -> Counting:
        client = Counting(self.world, p.V5, None)
        self.world.clients[client.connection] = client
        client.send(p.Connect(version=p.V5, client_id=client_id, properties=p.Properties(receive_maximum=65_535)))
        return client

    def publish_packet(self, topic: str, payload: bytes, *pairs: tuple[str, str]) -> p.Publish:
        self.packet_id = self.packet_id % 60_000 + 1
        properties = p.Properties(user_property=pairs)
        return p.Publish(topic=topic, payload=payload, qos=1, packet_id=self.packet_id, properties=properties)

    def ask(self, operation: str) -> dict[str, Any]:
        client = self.publisher
        client.take()
        request = self.publish_packet(f"$admin/queue/q/{operation}", b"")
        properties = p.Properties(response_topic="answers")
        client.send(
            p.Subscribe(packet_id=1, requests=(p.SubscriptionRequest(topic_filter="answers", qos=0),)),
            p.Publish(topic=request.topic, payload=b"", qos=1, packet_id=request.packet_id, properties=properties),
        )
        self.published += 1  # the answer goes through the ordinary ways
        answers = [json.loads(packet.payload) for packet in client.publishes()]
        client.send(p.Unsubscribe(packet_id=1, topic_filters=("answers",)))
        (answer,) = answers
        assert isinstance(answer, dict)
        return answer

    # -- steps -----------------------------------------------------------------------------------------------------

    def publish(self) -> None:
        count = self.rng.choice((1, 1, 3, 12))
        kind = self.rng.choice(("alike", "sizes", "keys", "lanes", "too large"))
        packets, lanes = [], []
        for _ in range(count):
            value = b"m%d" % (len(self.values) + len(packets))
            lane = self.rng.choice(LANES) if kind == "lanes" else "normal"
            size = {"sizes": self.rng.randrange(20, 200), "too large": LARGEST + 1}.get(kind, 40)
            pairs = {"keys": [("partition-key", self.rng.choice("abc"))], "lanes": [("priority", lane)]}.get(kind, [])
            packets.append(self.publish_packet("$queue/q", value.ljust(size, b"."), *pairs))
            lanes.append(lane if self.has_lanes else "normal")
        together = self.rng.random() < 0.6
        for some in [packets] if together else [[packet] for packet in packets]:
            answers = self.publisher.send(*some)
            assert all(isinstance(answer, p.Acknowledgement) for answer in answers)
        if kind == "too large":
            self.refused += count
        else:
            self.taken += count
            self.values |= {packet.payload.rstrip(b"."): lane for packet, lane in zip(packets, lanes, strict=True)}

    def publish_plainly(self) -> None:
        """To ordinary topics, of which some are kept."""
        count = self.rng.choice((1, 3, 12))
        qos, sizes = self.rng.randrange(2), self.rng.choice(((40,), (20, 70, 200)))
        topic, retain = f"t/{self.rng.randrange(3)}", self.rng.random() < 0.2
        packets = []
        for number in range(count):
            packet = self.publish_packet(topic, bytes(sizes[number % len(sizes)]))
            packets.append(
                p.Publish(
                    topic=topic,
                    payload=packet.payload,
                    qos=qos,
                    packet_id=packet.packet_id if qos else 0,
                    retain=retain,
                    properties=packet.properties,
                )
            )
        self.published += count
        self.retained |= {topic} if retain else set()
        for some in [packets] if self.rng.random() < 0.6 else [[packet] for packet in packets]:
            self.publisher.send(*some)

    def join(self) -> None:
        name = self.rng.choice("gh")
        group = self.groups.setdefault(name, Group())
        member = f"{name}{self.rng.randrange(3)}"
        if member in group.members:
            return
        client = group.members[member] = self.connect(member)
        group.held[member] = {}
        request = p.SubscriptionRequest(topic_filter="$queue/q", qos=1)
        properties = p.Properties(user_property=(("consumer-group", name),))
        client.send(p.Subscribe(packet_id=1, requests=(request,), properties=properties))

    def leave(self) -> None:
        members = [(group, name) for group in self.groups.values() for name in group.members]
        if not members:
            return
        group, name = self.rng.choice(members)
        self.look()
        for held in group.held.pop(name).values():
            group.fail(held)
        client = group.members.pop(name)
        if self.rng.random() < 0.5:
            client.send(p.Unsubscribe(packet_id=2, topic_filters=("$queue/q",)))
        client.send(p.Disconnect())

    def settle(self) -> None:
        members = [(group, name) for group in self.groups.values() for name in group.members if group.held[name]]
        if not members:
            return
        group, name = self.rng.choice(members)
        verb = self.rng.choice(("ack", "ack", "ack", "nack", "reject"))
        held = list(group.held[name].values())
        some = held if self.rng.random() < 0.3 else held[: self.rng.randrange(1, len(held) + 1)]
        packets = [
            self.publish_packet(f"$queue/q/${verb}", b"", ("message-id", each.message_id), ("group-id", each.group))
            for each in some
        ]
        for each in some:
            del group.held[name][each.message_id]
            group.counts[f"{verb}ed"] += 1
            if verb == "ack":
                group.gone.add(each.value)
            elif verb == "nack":
                group.fail(each)
            else:
                group.bury(each)
        together = self.rng.random() < 0.6
        for chunk in [packets] if together else [[packet] for packet in packets]:
            answers = group.members[name].send(*chunk)
            reasons = [answer.reason for answer in answers if isinstance(answer, p.Acknowledgement)]
            assert reasons == [0] * len(chunk)

    def time_out(self) -> None:
        for group in self.groups.values():
            for held in group.held.values():
                for each in held.values():
                    group.counts["timed_out"] += 1
                    group.fail(each)
                held.clear()
        # Each comes again once, and has not timed out a second time.
        self.world.wait(TIMEOUT_S + 1.5)

    def wait(self) -> None:
        """For what waits to be tried again."""
        if not any(held for group in self.groups.values() for held in group.held.values()):
            self.world.wait(2.0)

    def restart(self) -> None:
        """What was in flight has failed, and who was there is not."""
        self.look()
        for group in self.groups.values():
            self.letters += group.counts["dead_lettered"]
            held = [each for some in group.held.values() for each in some.values()]
            group.exhausted += [each for each in held if each.count > MAX_RETRIES]
            group.counts, group.members, group.held = Counter(), {}, {}
        self.taken = self.refused = 0
        self.disk.unlock()
        self.start()
        self.world.wait(2.0)
        for group in self.groups.values():
            while group.exhausted:
                group.bury(group.exhausted.pop())

    # -- what is so ------------------------------------------------------------------------------------------------

    def look(self) -> None:
        """What members were given."""
        for group in self.groups.values():
            for name, client in group.members.items():
                came = [Held(packet) for packet in client.publishes()]
                client.take()
                for held in came:
                    group.counts["delivered" if held.count == 1 else "redelivered"] += 1
                    assert (held.value in group.given) == (held.count > 1)
                    assert held.value not in group.gone
                    group.given.add(held.value)
                    group.held[name][held.message_id] = held

    def check(self) -> None:
        self.look()
        stats = self.ask("stats")
        figures = {each["group"]: each for each in stats["groups"]}
        assert figures.keys() == self.groups.keys()
        for name, group in self.groups.items():
            seen = figures[name]
            for count in ("delivered", "redelivered", "acked", "nacked", "rejected", "timed_out", "dead_lettered"):
                assert seen[count] == group.counts[count], (name, count)
            in_flight = sum(map(len, group.held.values()))
            assert seen["consumers"] == len(group.members)
            assert seen["lag"] == len(self.values.keys() - group.given)
            assert seen["in_flight"] == in_flight
            assert seen["retrying"] == len(group.given - group.gone) - in_flight
            others = (
                "dead_lettering",
                "expired",
                "dropped",
                "discarded",
                "purged",
                "unmatched",
                "unreadable",
                "claimed",
            )
            assert not any(seen[count] for count in (*others, "rewound", "skipped", "sessions_ended", "slow_consumers"))
        gone = [group.gone for group in self.groups.values()]
        left = len(self.values) if not gone else len(self.values.keys() - set.intersection(*gone))
        assert stats["depth"] == max((len(self.values.keys() - each) for each in gone), default=left)
        assert stats["in_flight"] == sum(each["in_flight"] for each in figures.values())
        assert stats["consumers"] == sum(len(group.members) for group in self.groups.values())
        assert stats["ready"] == max((each["lag"] + each["retrying"] for each in figures.values()), default=left)
        assert (stats["enqueued"], stats["refused"]) == (self.taken, self.refused)
        assert (stats["partitions"], stats["failed"], stats["delayed"]) == (self.partitions, False, 0)
        assert not any(stats[count] for count in ("dropped", "expired", "purged", "aborted", "held_bytes", "captured"))
        assert stats["dead_letters"] == self.letters + sum(
            group.counts["dead_lettered"] for group in self.groups.values()
        )
        self.check_lanes()
        self.check_sys()

    def check_lanes(self) -> None:
        places = self.ask("priority")["topics"]["q"]["partitions"].values()
        in_flight = Counter[str]()
        for group in self.groups.values():
            in_flight += Counter(self.values[each.value] for held in group.held.values() for each in held.values())
        assert [sum(place["in_flight"][lane] for place in places) for lane in range(5)] == [
            in_flight[lane] for lane in LANES
        ]
        ready = [sum(place["ready"][lane] for place in places) for lane in range(5)]
        if len(self.groups) == 1:
            (group,) = self.groups.values()
            lanes = Counter(lane for value, lane in self.values.items() if value not in group.given)
            assert ready == [lanes[lane] for lane in LANES]
        elif not self.groups:
            lanes = Counter(self.values.values())
            assert ready == [lanes[lane] for lane in LANES]

    def check_sys(self) -> None:
        found = {
            message.topic.removeprefix("$SYS/broker/"): message.payload.decode()
            for message in self.world.node.state.sys_topics.match("$SYS/broker/#", self.world.now)
        }
        for name, count in Counting.figures.items():
            assert found[name] == str(count), name
        clients = 2 + sum(len(group.members) for group in self.groups.values())
        assert found["clients/connected"] == str(clients)
        assert int(found["clients/total"]) >= clients
        assert found["queues/groups/count"] == str(len(self.groups))
        assert found["publish/messages/dropped"] == "0"
        assert found["retained messages/count"] == str(len(self.retained))
        assert self.world.node.state.published == self.published
        assert (found["bytes/waiting"], found["bytes/unread"]) == ("0", "0")
        # Members do not acknowledge on the MQTT level.
        assert any(group.members for group in self.groups.values()) or found["store/messages/bytes"] == "0"
        assert found["subscriptions/count"] == str(clients)
        assert found["shared_subscriptions/count"] == "1"
        self.most_clients = max(clients, self.most_clients)
        assert found["clients/maximum"] == str(self.most_clients)


@pytest.mark.parametrize("seed", range(8))
def test_figures_are_what_clients_counted(seed: int) -> None:
    life = Life(seed)
    steps = [
        life.publish,
        life.publish_plainly,
        life.join,
        life.settle,
        life.settle,
        life.leave,
        life.time_out,
        life.wait,
        life.restart,
    ]
    weights = [8, 4, 4, 8, 4, 1, 1, 2, 0.7]
    life.publish()
    for _ in range(STEPS):
        life.check()
        (step,) = life.rng.choices(steps, weights)
        step()

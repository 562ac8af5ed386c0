"""Whatever is killed, and whenever: at QoS 1 every message arrives, at QoS 2 exactly once.

Clients that follow the protocol to the letter talk to a broker that is killed (durability ``interval``) or loses power
on a simulated disk (``fsync``), at random moments, with syncs that end late. Messages a client was not told to be safe
are sent again, as the standards ask.
"""

from __future__ import annotations

import contextlib
import random
from collections import Counter
from typing import TYPE_CHECKING

import pytest

from assay.conformance.mutants import all_mutants, applied
from assay.reference_broker.config import BrokerConfig, Durability, SessionsConfig
from assay.reference_broker.mqtt.wire import packets as p
from assay.reference_broker.mqtt.wire.codec import encode_packet
from assay.reference_broker.node import BrokerNode
from assay.reference_broker.queues import BackgroundJob
from assay.reference_broker.storage import batching
from assay.sim.disk import SimDisk
from assay.sim.power_cuts import PowerCut, WatchedDisk, power_cuts

if TYPE_CHECKING:
    from tests.conftest import StrictClient

SEEDS = 25
STEPS = 250
SMALL_BATCH_BYTES = 60


class CrashWorld:
    """Clients, one broker, one disk."""

    def __init__(self, make: type[StrictClient], seed: int, durability: Durability, version: int) -> None:
        self.rng = random.Random(f"{seed} {durability} {version}")
        self.config = BrokerConfig(
            sessions=SessionsConfig(durability=durability, segment_bytes=self.rng.choice((600, 4_000, 100_000)))
        )
        self.disk = SimDisk(random.Random(seed))
        self.now = 1_700_000_000.0
        self.version = version
        self.publisher = make("publisher", version)
        self.subscribers = [make(f"s{number}", version) for number in range(2)]
        self.clients = [self.publisher, *self.subscribers]
        self.sent: dict[bytes, int] = {}
        self.running: list[BackgroundJob] = []
        self.node = self.boot()

    def boot(self) -> BrokerNode:
        self.running = []
        return BrokerNode(self.config, self.disk, random.Random(self.rng.random()), self.now)

    def crash(self) -> None:
        if self.config.sessions.durability is Durability.FSYNC:
            self.disk.power_loss()
        else:
            self.disk.crash()
        for client in self.clients:
            client.lost()
        self.node = self.boot()

    def connect(self, client: StrictClient) -> None:
        client.connection = self.node.accept(client.client_id, self.now)
        properties = (
            p.Properties(session_expiry_interval=0xFFFFFFFF, receive_maximum=5)
            if self.version == p.V5
            else p.NO_PROPERTIES
        )
        self.send(
            client,
            p.Connect(version=self.version, client_id=client.client_id, clean_start=False, properties=properties),
        )

    def send(self, client: StrictClient, *packets: p.Packet) -> None:
        assert client.connection is not None
        data = b"".join(encode_packet(packet, self.version) for packet in packets)
        while data:
            count = self.rng.choice((len(data), self.rng.randint(1, len(data))))
            self.node.receive(client.connection, data[:count], self.now)
            data = data[count:]

    def lose(self, client: StrictClient) -> None:
        if client.connection is not None:
            self.node.connection_lost(client.connection, self.now)
            client.lost()

    def publish(self) -> None:
        client = self.publisher
        if not client.connected or len(client.outgoing) + len(client.releasing) > 20:
            return
        qos = self.rng.choice((1, 2))
        payload = b"%d" % len(self.sent)
        self.sent[payload] = qos
        packet = p.Publish(topic=f"t/{qos}", payload=payload, qos=qos, packet_id=client.free_id())
        client.outgoing[packet.packet_id] = packet
        self.send(client, packet)

    def turn(self, share: float = 1.0) -> None:
        self.now += 0.01
        deadline = self.node.next_deadline()
        if deadline is not None and deadline <= self.now:
            self.node.tick(self.now)
        for connection in self.node.take_dirty(self.now):
            client = next((each for each in self.clients if each.connection is connection), None)
            data = connection.take_output()
            if client is not None:
                client.take(data)
        jobs, self.running = self.running + self.node.take_jobs(self.now), []
        for job in jobs:
            if self.rng.random() < share:
                job.run()
                self.node.job_done(job, None, self.now)
            else:
                self.running.append(job)

    def answer(self, client: StrictClient) -> None:
        answers, client.answers = client.answers, []
        if client.connection is not None and answers:
            self.send(client, *answers)

    def step(self) -> None:
        kind = self.rng.random()
        client = self.rng.choice(self.clients)
        if kind < 0.02:
            self.crash()
        elif kind < 0.05:
            self.lose(client)
        elif kind < 0.35:
            self.publish()
        elif kind < 0.65:
            self.turn(self.rng.choice((0.0, 0.3, 1.0)))
        elif client.connection is None:
            self.connect(client)
        else:
            self.answer(client)

    def settle_down(self) -> None:
        for client in self.clients:
            self.lose(client)
        self.turn()
        for client in self.clients:
            self.connect(client)
        for _ in range(300):
            self.turn()
            for client in self.clients:
                self.answer(client)


def live(make: type[StrictClient], seed: int, durability: Durability, version: int) -> None:
    """One life with crashes; raises :class:`AssertionError` when the broker's promise was broken."""
    world = CrashWorld(make, seed, durability, version)
    for client in world.clients:
        world.connect(client)
    for client in world.subscribers:
        requests = tuple(p.SubscriptionRequest(topic_filter=f"t/{qos}", qos=qos) for qos in (1, 2))
        world.send(client, p.Subscribe(packet_id=1, requests=requests))
    for _ in range(20):
        world.turn()
    for client in world.clients:
        assert client.connected
        client.must_be_present = True
    for _ in range(STEPS):
        world.step()
    world.settle_down()
    assert not world.publisher.outgoing
    assert not world.publisher.releasing
    for client in world.subscribers:
        counts = Counter(client.got)
        lost = [payload for payload in world.sent if not counts[payload]]
        assert not lost, f"{client.client_id}: {lost}"
        twice = [payload for payload, qos in world.sent.items() if qos == 2 and counts[payload] > 1]
        assert not twice, f"{client.client_id}: {twice}"
    # A restart finds the end of everything, too.
    world.crash()
    for client in world.subscribers:
        world.connect(client)
    before = sum(len(client.got) for client in world.subscribers)
    for _ in range(20):
        world.turn()
    assert sum(len(client.got) for client in world.subscribers) == before, "what was acknowledged comes again"
    assert not any(world.node.state.sessions[client.client_id].in_flight for client in world.subscribers)


@pytest.mark.parametrize("version", [p.V311, p.V5])
@pytest.mark.parametrize("durability", [Durability.INTERVAL, Durability.FSYNC])
@pytest.mark.parametrize("seed", range(SEEDS))
def test_nothing_is_lost_and_qos_2_comes_once(
    strict_client: type[StrictClient], seed: int, durability: Durability, version: int
) -> None:
    live(strict_client, seed, durability, version)


def boot(disk: SimDisk) -> BrokerNode:
    config = BrokerConfig(sessions=SessionsConfig(durability=Durability.FSYNC))
    return BrokerNode(config, disk, random.Random(1), 1_700_000_000.0)


def turn(node: BrokerNode) -> None:
    for connection in node.take_dirty(1_700_000_000.0):
        connection.take_output()
    for job in node.take_jobs(1_700_000_000.0):
        job.run()
        node.job_done(job, None, 1_700_000_000.0)


def kept_of(node: BrokerNode) -> tuple[list[bytes], list[int]]:
    """(messages for the subscriber, QoS 2 ids received from the publisher)"""
    sessions = node.state.sessions
    messages = [outgoing.message.payload for outgoing in sessions["s"].queued]
    return messages, list(sessions["p"].inbound_qos2)


def cut_a_large_turn() -> int:
    """A turn of many batches meets every power cut, and so does the start after it; returns how many there were."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(batching, "TARGET_BATCH_BYTES", SMALL_BATCH_BYTES)
        patch.setattr(batching, "_MAX_WHOLE_BYTES", 2 * SMALL_BATCH_BYTES)
        disk = WatchedDisk(random.Random(1))
        node = boot(disk)
        now = 1_700_000_000.0
        properties = p.Properties(session_expiry_interval=0xFFFFFFFF)
        subscriber, publisher = node.accept("s", now), node.accept("p", now)
        for connection, client_id in ((subscriber, "s"), (publisher, "p")):
            connect = p.Connect(version=p.V5, client_id=client_id, clean_start=True, properties=properties)
            node.receive(connection, encode_packet(connect, p.V5), now)
        request = p.SubscriptionRequest(topic_filter="t", qos=2)
        node.receive(subscriber, encode_packet(p.Subscribe(packet_id=1, requests=(request,)), p.V5), now)
        node.connection_lost(subscriber, now)
        turn(node)
        turn(node)
        sent = [b"%d" % number for number in range(4)]
        chunk = [p.Publish(topic="t", payload=sent[number], qos=2, packet_id=number + 1) for number in range(4)]
        node.receive(publisher, b"".join(encode_packet(packet, p.V5) for packet in chunk), now)
        node.take_dirty(now)
        legal: tuple[tuple[list[bytes], list[int]], ...] = (([], []), (sent, [1, 2, 3, 4]))
        seen: set[int] = set()
        cuts = 0
        for cut in power_cuts(disk, "turn"):
            after = cut.boot()
            interrupted: list[PowerCut] = []
            after.before = lambda disk=after, cuts=interrupted: cuts.extend(power_cuts(disk, "start"))
            found = kept_of(boot(after))
            assert found in legal, f"{cut.what}: {found}"
            seen.add(legal.index(found))
            cuts += 1
            for second in interrupted:
                again = kept_of(boot(second.boot()))
                assert again in legal, f"{cut.what}, then {second.what}: {again}"
                cuts += 1
        assert seen == {0, 1}
        return cuts


def test_a_turn_of_many_batches_is_found_whole_or_not_at_all() -> None:
    assert cut_a_large_turn() > 20


def planted(*, legal: bool) -> list[str]:
    return [name for name, found in all_mutants().items() if name.startswith("sessions-") and found.legal is legal]


@pytest.mark.parametrize("name", planted(legal=False))
def test_a_planted_bug_is_found(strict_client: type[StrictClient], monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    with applied(name):
        for seed in range(SEEDS):
            for durability in (Durability.INTERVAL, Durability.FSYNC):
                try:
                    live(strict_client, seed, durability, p.V5)
                except AssertionError as found:
                    print(f"seed {seed}, {durability}: {found}"[:300])
                    return
        with contextlib.suppress(AssertionError):
            cut_a_large_turn()
            pytest.fail("nobody noticed")


@pytest.mark.parametrize("name", planted(legal=True))
def test_a_legal_variation_is_not_accused(strict_client: type[StrictClient], name: str) -> None:
    with applied(name):
        for seed in range(5):
            for durability in (Durability.INTERVAL, Durability.FSYNC):
                live(strict_client, seed, durability, p.V311)

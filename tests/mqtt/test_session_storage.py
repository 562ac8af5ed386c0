"""What the broker does when the disk is slow, full or failing, and how much it keeps on it."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import msgspec
import pytest

from assay.reference_broker.config import BrokerConfig, Durability, SessionsConfig
from assay.reference_broker.mqtt.sessions.session_records import StoredEntry, StoredProgress, encode
from assay.reference_broker.mqtt.wire import packets as p
from assay.reference_broker.node import BrokerNode
from assay.reference_broker.queues import BackgroundJob, LogError
from assay.reference_broker.queues.jobs.store import NewRecord
from assay.reference_broker.storage.session_store import SessionStore
from assay.sim.disk import DiskProfile, SimDisk

if TYPE_CHECKING:
    from tests.mqtt.conftest import Client, World

K = p.PacketType
FOR_EVER = p.Properties(session_expiry_interval=0xFFFFFFFF)
REQUEST = p.SubscriptionRequest(topic_filter="t", qos=2)


class Manual:
    """A broker on a simulated disk whose syncs end when the test says so."""

    def __init__(self, make_world: type[World], durability: Durability = Durability.FSYNC, **profile: object) -> None:
        self.disk = SimDisk(random.Random(1), DiskProfile(stall_rate=0, **profile))  # type: ignore[arg-type]
        self.config = BrokerConfig(sessions=SessionsConfig(durability=durability, segment_bytes=20_000))
        self.world = make_world(self.config)
        self.boot()
        self.waiting: list[BackgroundJob] = []

    def boot(self) -> None:
        self.world.node = BrokerNode(self.config, self.disk, random.Random(1), self.world.now)
        self.world.clients.clear()

    def without_syncs(self) -> None:
        """From now on syncs only begin."""
        node = self.world.node

        def turn() -> None:
            while dirty := node.take_dirty(self.world.now):
                for connection in dirty:
                    self.world.clients[connection].flush()
            self.waiting += node.take_jobs(self.world.now)

        self.world.turn = turn  # type: ignore[method-assign]

    def finish_syncs(self, error: OSError | None = None) -> None:
        jobs, self.waiting = self.waiting, []
        for job in jobs:
            if error is None:
                job.run()
            self.world.node.job_done(job, error, self.world.now)
        self.world.turn()

    def client(self, client_id: str) -> Client:
        return self.world.connect(client_id, properties=FOR_EVER, clean_start=False)


def acks(client: Client) -> list[int]:
    return [packet.packet_id for packet in client.inbox if isinstance(packet, p.Acknowledgement)]


def subscribed(manual: Manual, client_id: str) -> Client:
    client = manual.client(client_id)
    client.send(p.Subscribe(packet_id=1, requests=(REQUEST,)))
    client.take()
    return client


def test_what_depends_on_a_write_waits_for_its_sync_and_nobody_else_does(make_world: type[World]) -> None:
    manual = Manual(make_world)
    durable = subscribed(manual, "durable")
    transient = manual.world.subscribed("t", client_id="transient")
    publisher = manual.world.connect("p")
    publisher.take()
    manual.without_syncs()
    publisher.send(p.Publish(topic="t", payload=b"1", qos=1, packet_id=1))
    assert acks(publisher) == [], "the session that keeps the message is not on disk"
    assert not durable.publishes()
    assert len(transient.publishes()) == 1
    publisher.send(p.Pingreq())
    assert publisher.inbox == [], "what comes behind stays behind"
    publisher.send(p.Publish(topic="t", payload=b"2", qos=1, packet_id=2))
    manual.finish_syncs()
    assert acks(publisher) == [1], "the second message was written after the sync began"
    assert [type(packet) for packet in publisher.inbox] == [p.Acknowledgement, p.Pingresp]
    assert len(durable.publishes()) == 1
    manual.finish_syncs()
    assert acks(publisher) == [1, 2]
    publisher.send(p.Publish(topic="elsewhere", payload=b"3", qos=1, packet_id=3))
    assert acks(publisher) == [1, 2, 3], "nothing to write, nothing to wait for"
    publisher.send(p.Publish(topic="t", payload=b"4", qos=1, packet_id=4))
    assert manual.world.node._holding, "who waits is known, so that a sync need not look at all connections"
    publisher.lose()
    manual.finish_syncs()
    manual.finish_syncs()
    assert not manual.world.node._holding


def test_a_connection_closes_only_after_what_it_was_told_is_on_disk(make_world: type[World]) -> None:
    manual = Manual(make_world)
    subscribed(manual, "durable")
    publisher = manual.world.connect("p")
    publisher.take()
    manual.without_syncs()
    publisher.send(p.Publish(topic="t", payload=b"1", qos=1, packet_id=1), p.Disconnect())
    assert publisher.connection.closing
    assert not publisher.connection.may_close
    manual.finish_syncs()
    assert acks(publisher) == [1]
    assert publisher.connection.may_close


@pytest.mark.parametrize("durability", [Durability.INTERVAL, Durability.FSYNC])
def test_a_failed_sync_ends_who_waits_for_it_and_everything_later(
    make_world: type[World], durability: Durability
) -> None:
    manual = Manual(make_world, durability)
    subscribed(manual, "durable")
    publisher = manual.world.connect("p")
    publisher.take()
    manual.without_syncs()
    publisher.send(p.Publish(topic="t", payload=b"1", qos=1, packet_id=1))
    told = acks(publisher)
    assert told == ([1] if durability is Durability.INTERVAL else [])
    manual.world.wait(2)
    assert manual.waiting, "the sync is due"
    manual.finish_syncs(OSError(5, "Input/output error"))
    assert acks(publisher) == told
    if not publisher.closed:
        publisher.send(p.Publish(topic="t", payload=b"2", qos=1, packet_id=2))
    assert acks(publisher) == told, "what cannot be kept is not acknowledged"
    assert publisher.closed
    assert publisher.connection.error is not None
    assert "disk failed" in str(publisher.connection.error)
    other = manual.world.connect("other")
    other.send(p.Publish(topic="elsewhere", payload=b"x", qos=1, packet_id=1))
    assert acks(other) == [1], "who needs no disk goes on"


def test_a_full_disk_costs_nothing_that_was_acknowledged(make_world: type[World]) -> None:
    manual = Manual(make_world, Durability.INTERVAL)
    subscribed(manual, "durable").lose()
    manual.disk.profile = msgspec.structs.replace(manual.disk.profile, capacity_bytes=manual.disk.used_bytes + 3_000)
    acknowledged: list[bytes] = []
    refused: list[bytes] = []
    for number in range(10):
        publisher = manual.world.connect(f"p{number}")
        publisher.take()
        payload = b"%d" % number * 1_000
        publisher.send(p.Publish(topic="t", payload=payload, qos=1, packet_id=1))
        (acknowledged if acks(publisher) else refused).append(payload)
        assert publisher.closed == (not acks(publisher))
    assert acknowledged
    assert refused
    manual.disk.profile = msgspec.structs.replace(manual.disk.profile, capacity_bytes=0)
    manual.world.wait(2)
    manual.disk.crash()
    manual.boot()
    client = manual.client("durable")
    kept = [packet.payload for packet in client.publishes()]
    assert set(acknowledged) <= set(kept)
    assert kept == sorted(kept), "written late, in order all the same"
    assert len(kept) == 10, "tried again as soon as there was room"


@pytest.mark.parametrize("durability", [Durability.INTERVAL, Durability.FSYNC])
def test_an_end_that_could_not_be_written_is_told_of_once_it_is(
    make_world: type[World], durability: Durability
) -> None:
    """Who clears a retained message, or starts clean, tries again when the disk refused it. What is gone by then was
    confirmed at once, and came back with the next start."""
    manual = Manual(make_world, durability)
    subscribed(manual, "durable").lose()
    keeper = manual.world.connect("keeper")
    keeper.send(p.Publish(topic="kept", payload=b"1", qos=1, packet_id=1, retain=True))
    clearing = p.Publish(topic="kept", payload=b"", qos=1, packet_id=1, retain=True)
    clients = [manual.world.connect(f"p{number}") for number in range(3)]
    for client in clients:
        client.take()
    manual.disk.profile = msgspec.structs.replace(manual.disk.profile, capacity_bytes=manual.disk.used_bytes)
    for client in clients[:2]:
        client.send(clearing)
        assert acks(client) == []
        assert client.closed
    for _ in range(2):
        refused = manual.world.open(p.V5)
        assert refused.send(p.Connect(version=p.V5, client_id="durable")) == []
        assert refused.closed
    manual.disk.profile = msgspec.structs.replace(manual.disk.profile, capacity_bytes=0)
    clients[2].send(clearing)
    assert acks(clients[2]) == [1]
    manual.world.connect("durable").lose()
    manual.disk.crash()
    manual.boot()
    assert not manual.world.subscribed("kept", client_id="reader").publishes()
    assert not manual.client("durable").connection.active_session.subscriptions


def test_the_log_stays_small_while_much_passes_through_it(make_world: type[World]) -> None:
    manual = Manual(make_world, Durability.INTERVAL)
    client = subscribed(manual, "durable")
    publisher = manual.world.connect("p")
    publisher.take()
    for number in range(600):
        publisher.send(p.Publish(topic="t", payload=bytes(500), qos=1, packet_id=number % 100 + 1))
        (delivered,) = client.publishes()
        client.send(p.Acknowledgement(type=K.PUBACK, packet_id=delivered.packet_id))
        client.take()
        manual.world.wait(0.1)
        kept = client.connection.active_session.kept
        assert kept is not None
        assert not kept.in_flight.changed, "what was written once is looked at no more"
    sizes = [
        manual.disk.open(f"sessions/{name}").size for name in manual.disk.list("sessions") if name.endswith(".seg")
    ]
    assert sum(sizes) < 60_000, "of 300 000 bytes of payload"
    manual.disk.crash()
    manual.boot()
    client = manual.client("durable")
    assert not client.publishes()
    publisher = manual.world.connect("p")
    publisher.send(p.Publish(topic="t", payload=b"still there", qos=1, packet_id=1))
    assert [packet.payload for packet in client.publishes()] == [b"still there"]


def test_a_message_that_expires_in_the_queue_leaves_the_disk(make_world: type[World]) -> None:
    manual = Manual(make_world, Durability.INTERVAL)
    subscribed(manual, "durable").lose()
    publisher = manual.world.connect("p")
    expiring = p.Properties(message_expiry_interval=1)
    publisher.send(p.Publish(topic="t", payload=b"x", qos=1, packet_id=1, properties=expiring))
    manual.world.wait(5)
    manual.client("durable")
    store = manual.world.node._sessions
    assert store is not None
    assert not [key for key in store.read_all() if key[:1] in (b"e", b"p", b"m")]


def test_a_log_of_another_version_is_refused(make_world: type[World]) -> None:
    manual = Manual(make_world, Durability.INTERVAL)
    manual.client("c")
    segment = next(name for name in manual.disk.list("sessions") if name.endswith(".seg"))
    manual.world.node.close(manual.world.now)
    assert manual.disk.open(f"sessions/{segment}").size
    store = SessionStore(manual.disk, manual.config.sessions)
    store.write([NewRecord(0, b"v", b"2", ())], 0.0)
    store.close()
    with pytest.raises(LogError, match="format b'2'"):
        manual.boot()


def test_what_damage_left_is_nobodys(make_world: type[World]) -> None:
    """Swarm seed 14 of mqtt-flaky-network: later messages got the numbers of such records, and their ends with them."""
    manual = Manual(make_world)
    for client_id in ("s", "ghost"):
        subscribed(manual, client_id).lose()
    manual.world.turn()
    store = manual.world.node._sessions
    assert store is not None
    records = dict(store.read_all())
    manual.world.node.close(manual.world.now)
    number = (1).to_bytes(8, "big")
    shared = encode(StoredEntry(qos=1, retain=False, identifiers=(), packet_id=0, shared=1, message=None))
    released = encode(StoredProgress(packet_id=1, released=True))
    left = {
        b"sghost": None,  # what it subscribed to is still there
        b"ighost\0\0\7": b"",
        b"pghost\0" + number: released,
        b"es\0" + number: shared,  # its message is gone
        b"ps\0" + (2).to_bytes(8, "big"): released,  # its entry is gone
    }
    assert b"sghost" in records
    store = SessionStore(manual.disk, manual.config.sessions)
    store.write([NewRecord(0, key, value, ()) for key, value in left.items()], 0.0)
    store.close()
    manual.boot()
    publisher = manual.world.connect("p")
    for packet_id in range(1, 5):
        publisher.send(p.Publish(topic="t", payload=b"%d" % packet_id, qos=1, packet_id=packet_id))
    ghost = manual.client("ghost")
    assert [packet.session_present for packet in ghost.inbox if isinstance(packet, p.Connack)] == [False]
    ghost.lose()
    manual.world.turn()
    manual.world.node.close(manual.world.now)
    manual.boot()
    told = manual.world.node.recovery_notes
    assert not told, "the second start has nothing to tell"
    assert [packet.payload for packet in manual.client("s").publishes()] == [b"1", b"2", b"3", b"4"]
    ghost = manual.client("ghost")
    manual.world.connect("q").send(p.Publish(topic="t", payload=b"5", qos=1, packet_id=1))
    assert not ghost.publishes()


@pytest.mark.parametrize("error", [OSError(5, "Input/output error"), None])
def test_a_compaction_that_the_disk_failed_is_told(error: OSError | None) -> None:
    """Its job says so to whoever ran it, not to the task."""
    disk = SimDisk(random.Random(1), DiskProfile(stall_rate=0))
    store = SessionStore(disk, SessionsConfig(segment_bytes=2_000))
    jobs: list[BackgroundJob] = []
    for number in range(200):
        store.write([NewRecord(number, b"key", bytes(100), ())], float(number))
        for job in store.take_jobs(float(number)):
            job.run()
            if job.point is store:
                store.finish_sync(None)
            else:
                jobs.append(job)
    (job,) = jobs
    job.point.finish_sync(error)
    told = [note.problem for note in store.recovery_notes()]
    assert any("compaction stopped" in problem for problem in told) == (error is not None)

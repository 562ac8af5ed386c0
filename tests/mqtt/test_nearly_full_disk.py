"""A disk that sessions and retained messages fill: the reserve holds, and whoever makes room finds some.

They filled it past ``disk_reserve_bytes``; then the client that would have drained its session could not connect, since
a connection is written down as well.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest

from assay.reference_broker.config import BrokerConfig, Durability, QueuesConfig, SessionsConfig
from assay.reference_broker.mqtt.wire import packets as p
from assay.reference_broker.mqtt.wire.errors import Reason
from assay.reference_broker.node import BrokerNode
from assay.sim.disk import DiskProfile, SimDisk

if TYPE_CHECKING:
    from tests.mqtt.conftest import Client, World

CAPACITY_BYTES = 2_000_000
RESERVE_BYTES = 400_000
PAYLOAD_BYTES = 10_000
FOR_EVER = p.Properties(session_expiry_interval=0xFFFFFFFF)


class Nearly:
    """A broker on a small disk."""

    def __init__(self, make_world: type[World], durability: Durability) -> None:
        profile = DiskProfile(stall_rate=0, capacity_bytes=CAPACITY_BYTES)
        self.disk = SimDisk(random.Random(1), profile)
        self.config = BrokerConfig(
            sessions=SessionsConfig(durability=durability, segment_bytes=50_000),
            queues=QueuesConfig(disk_reserve_bytes=RESERVE_BYTES, segment_bytes=50_000),
        )
        self.world = make_world(self.config)
        self.boot()

    def boot(self) -> None:
        self.disk.crash()
        self.world.node = BrokerNode(self.config, self.disk, random.Random(1), self.world.now)
        self.world.clients.clear()

    def kept(self, client_id: str, version: int = p.V5) -> Client:
        properties = FOR_EVER if version == p.V5 else p.NO_PROPERTIES
        return self.world.connect(client_id, version, properties=properties, clean_start=False)

    def subscribe(self, client: Client, topic_filter: str) -> int:
        request = p.SubscriptionRequest(topic_filter=topic_filter, qos=1)
        (suback,) = client.send(p.Subscribe(packet_id=1, requests=(request,)))[:1]
        assert isinstance(suback, p.Suback)
        return suback.reasons[0]

    def publish(
        self, client: Client, topic: str, number: int, *, retain: bool = False, size: int = PAYLOAD_BYTES
    ) -> int:
        """The reason code of the PUBACK."""
        payload = b"%06d" % number + bytes(size)
        packet = p.Publish(topic=topic, payload=payload, qos=1, packet_id=number + 1, retain=retain)
        (answer,) = client.send(packet)
        assert isinstance(answer, p.Acknowledgement)
        return int(answer.reason)

    def fill(self, topic: str = "n", *, retain: bool = False) -> int:
        """Publish until that is refused; returns how many were taken."""
        publisher = self.world.connect("filler")
        taken = 0
        for size in (PAYLOAD_BYTES, 500, 10):
            # Smaller ones still fit where a large one does not.
            while (reason := self.publish(publisher, f"{topic}/{taken}", taken, retain=retain, size=size)) < 0x80:
                taken += 1
                assert taken < 2 * CAPACITY_BYTES // PAYLOAD_BYTES, "the disk never filled up"
            assert reason == Reason.QUOTA_EXCEEDED
        assert not publisher.closed
        return taken


@pytest.fixture(params=[Durability.INTERVAL, Durability.FSYNC])
def nearly(request: pytest.FixtureRequest, make_world: type[World]) -> Nearly:
    return Nearly(make_world, request.param)


def drained(client: Client) -> set[int]:
    return {int(packet.payload[:6]) for packet in client.publishes()}


@pytest.mark.parametrize("version", [p.V311, p.V5])
def test_sessions_leave_the_reserve_and_the_drainer_gets_everything(nearly: Nearly, version: int) -> None:
    offline = nearly.kept("offline", version)
    nearly.subscribe(offline, "n/#")
    offline.lose()
    taken = nearly.fill()
    assert taken > 50
    assert nearly.disk.free_bytes() >= RESERVE_BYTES - 3 * PAYLOAD_BYTES
    assert any("nearly full" in note.problem for note in nearly.world.node.take_storage_notes())
    drainer = nearly.world.open(version)
    drainer.auto_ack = True
    properties = FOR_EVER if version == p.V5 else p.NO_PROPERTIES
    (connack, *_) = drainer.send(
        p.Connect(version=version, client_id="offline", clean_start=False, properties=properties)
    )
    assert isinstance(connack, p.Connack)
    assert (connack.reason, connack.session_present) == (0, True)
    assert drained(drainer) == set(range(taken))
    for _ in range(20):
        # What was acknowledged is copied away in the background.
        nearly.world.wait(1.5)
        nearly.world.turn()
    assert nearly.disk.free_bytes() > CAPACITY_BYTES / 2
    assert nearly.publish(nearly.world.connect("p"), "n/1", 1) == 0


def test_nothing_that_was_taken_is_lost_by_a_restart(nearly: Nearly) -> None:
    offline = nearly.kept("offline")
    nearly.subscribe(offline, "n/#")
    offline.lose()
    taken = nearly.fill()
    nearly.boot()
    drainer = nearly.world.open()
    drainer.auto_ack = True
    drainer.send(p.Connect(version=p.V5, client_id="offline", clean_start=False, properties=FOR_EVER))
    assert drained(drainer) == set(range(taken))


def test_retained_messages_leave_the_reserve_and_can_be_removed(nearly: Nearly) -> None:
    taken = nearly.fill("r", retain=True)
    assert nearly.disk.free_bytes() >= RESERVE_BYTES - 3 * PAYLOAD_BYTES
    publisher = nearly.world.connect("p")
    publisher.send(p.Publish(topic="r/0", payload=b"", qos=1, packet_id=9, retain=True))
    assert int(publisher.inbox[-1].reason) < 0x80  # type: ignore[union-attr]
    nearly.boot()
    reader = nearly.world.open()
    reader.auto_ack = True
    reader.send(p.Connect(version=p.V5, client_id="reader"))
    nearly.subscribe(reader, "r/#")
    assert drained(reader) == set(range(1, taken))


def test_what_needs_no_room_goes_on_and_what_needs_some_is_refused(nearly: Nearly) -> None:
    online = nearly.kept("online")
    nearly.subscribe(online, "n/#")
    online.lose()
    nearly.fill()
    publisher = nearly.world.connect("p")
    live = nearly.world.subscribed("live", qos=1, client_id="live")
    assert nearly.publish(publisher, "live", 1) == 0
    assert nearly.publish(publisher, "nobody", 2) == Reason.NO_MATCHING_SUBSCRIBERS
    assert nearly.publish(publisher, "n/x", 3) == Reason.QUOTA_EXCEEDED
    assert nearly.publish(publisher, "live", 4, retain=True) == Reason.QUOTA_EXCEEDED
    assert [int(packet.payload[:6]) for packet in live.publishes()] == [1]
    publisher.send(p.Publish(topic="live", payload=b"000005", qos=0))
    assert [int(packet.payload[:6]) for packet in live.publishes()] == [1, 5]
    run = b"".join(bytes((0x32, 10)) + b"\0\3n/r" + bytes((0, number)) + b"\0ab" for number in range(1, 5))
    publisher.take()
    publisher.send_bytes(run)
    assert [int(answer.reason) for answer in publisher.inbox] == [0x97] * 4  # type: ignore[union-attr]
    old = nearly.world.connect("old", p.V311, clean_start=True)
    old.send(p.Publish(topic="n/x", payload=b"x", qos=1, packet_id=1))
    assert old.closed, "3.1.1 has no other way to say it"


def test_a_will_that_needs_room_is_dropped(nearly: Nearly) -> None:
    offline = nearly.kept("offline")
    nearly.subscribe(offline, "n/#")
    offline.lose()
    nearly.fill()
    before, state = nearly.disk.free_bytes(), nearly.world.node.state
    dropped, refused = state.traffic.dropped, state.refused
    for number in range(10):
        will = p.WillFields(topic="n/w", payload=bytes(PAYLOAD_BYTES), qos=1, retain=False, properties=p.NO_PROPERTIES)
        nearly.world.connect(f"dying-{number}", will=will).lose()
    assert nearly.disk.free_bytes() > before - PAYLOAD_BYTES
    assert (state.traffic.dropped, state.refused) == (dropped + 10, refused + 10)


def test_new_sessions_and_subscriptions_take_half_of_the_reserve_at_most(nearly: Nearly) -> None:
    """However many there are: what is left is for those that acknowledge, and go."""
    offline = nearly.kept("offline")
    nearly.subscribe(offline, "n/#")
    offline.lose()
    nearly.fill()
    consumer = nearly.kept("filters")
    assert nearly.subscribe(consumer, "new/filter") == Reason.QUOTA_EXCEEDED
    assert nearly.subscribe(consumer, "$queue/q") == 1, "consumers of queues make room"
    refused = 0
    for number in range(2_000):
        client = nearly.world.open()
        connect = p.Connect(version=p.V5, client_id=f"{number:06}" + "x" * 2_000, properties=FOR_EVER)
        (connack, *_) = client.send(connect)
        assert isinstance(connack, p.Connack)
        client.lose()
        if connack.reason:
            assert connack.reason == Reason.QUOTA_EXCEEDED
            refused += 1
            if refused == 20:
                break
    assert refused == 20
    assert nearly.disk.free_bytes() > RESERVE_BYTES / 4
    back = nearly.kept("offline")
    (connack, *_) = back.inbox
    assert isinstance(connack, p.Connack)
    assert connack.session_present

"""A toy protocol beside MQTT, through the seam alone: node, server and engine know nothing of it."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay.reference_broker.config import BrokerConfig, MqttConfig, QueuesConfig
from assay.reference_broker.core.protocols import MAX_OPENING_BYTES, MQTT, WireProtocol, detect
from assay.reference_broker.mqtt.connections.connection import opens_with_connect
from assay.reference_broker.mqtt.wire import packets as p
from assay.reference_broker.mqtt.wire.codec import encode_packet
from assay.reference_broker.node import BrokerNode
from assay.reference_broker.queues import QueueError
from assay.reference_broker.routing.message import Message
from assay.reference_broker.server.clock import Clock
from assay.reference_broker.server.tcp import NodeDriver, SocketProtocol
from assay.reference_broker.storage.memory_disk import MemoryDisk
from tests.support.text_protocol import TEXT, TextConnection

NOW = 1_700_000_000.0
CONNECT_5 = encode_packet(p.Connect(client_id="m", version=p.V5, clean_start=True), p.V5)


class Lines:
    """A text client in memory."""

    def __init__(self, node: BrokerNode, name: str) -> None:
        self.node = node
        self.end = node.accept(name, NOW, protocol="text")
        assert isinstance(self.end, TextConnection)
        assert self.say(f"hello {name}") == ["welcome"]

    def say(self, *lines: str) -> list[str]:
        self.node.receive(self.end, "".join(f"{line}\n" for line in lines).encode(), NOW)
        return self.hear()

    def hear(self) -> list[str]:
        turn(self.node)
        return self.end.take_output().decode().splitlines()


class Packets:
    """An MQTT 5 client in memory."""

    def __init__(self, node: BrokerNode) -> None:
        self.node = node
        self.end = node.accept("m", NOW)
        self.say(p.Connect(client_id="m", version=p.V5, clean_start=True))

    def say(self, packet: p.Packet) -> bytes:
        self.node.receive(self.end, encode_packet(packet, p.V5), NOW)
        turn(self.node)
        return self.end.take_output()


def turn(node: BrokerNode, now: float = NOW, *, syncs: bool = True) -> None:
    for _ in range(4):
        node.tick(now)
        node.take_dirty(now)
        jobs = node.take_jobs(now) if syncs else []
        for job in jobs:
            job.run()
            node.job_done(job, None, now)


def make(**queues: object) -> BrokerNode:
    config = BrokerConfig(queues=QueuesConfig(defaults={"partitions": 1, **queues}))
    return BrokerNode(config, MemoryDisk(), random.Random(1), NOW, protocols={"text": TEXT})


def test_a_queue_is_filled_and_emptied_without_a_topic_or_a_packet() -> None:
    node = make()
    writer, reader = Lines(node, "w"), Lines(node, "r")
    assert writer.say("put orders/eu one", "put orders/us two") == ["stored orders:0:0", "stored orders:0:1"]
    assert reader.say("take orders g 1") == ["message 1 1 one"]
    assert sorted(reader.say("release 1", "grant orders 2")) == ["message 2 1 one", "message 3 1 two", "settled 1"]
    assert reader.say("done 2", "again 3") == ["settled 2", "settled 3"]
    writer.say("put orders three")
    assert reader.hear() == [], "there is no credit"
    assert reader.say("drain orders 5") == ["message 4 2 two", "message 5 1 three", "drained 3"]


def test_the_broker_itself_may_publish_to_a_queue() -> None:
    """It is nobody's client: nobody is charged for it."""
    node = make()
    told: list[QueueError | None] = []
    node.state.publish_to_queue(Message(topic="$queue/q", payload=b"own"), None, NOW, told.append)
    turn(node)
    assert told == [None]
    assert node.engine.stats("q").depth == 1


def test_messages_cross_from_one_protocol_to_the_other() -> None:
    node = make()
    text, mqtt = Lines(node, "t"), Packets(node)
    filters = tuple(p.SubscriptionRequest(topic_filter=each, qos=1) for each in ("$queue/q", "news/#"))
    mqtt.say(p.Subscribe(packet_id=1, requests=filters))
    assert text.say("put q hello") == ["stored q:0:0"]
    assert b"hello" in mqtt.end.take_output()
    assert text.say("say news/a world") == ["heard"]
    assert b"news/a" in mqtt.end.take_output()
    assert text.say("take r g 5", "listen weather/+") == ["listening"]
    properties = p.Properties(user_property=(("partition-key", "k"),))
    mqtt.say(p.Publish(topic="$queue/r/key", payload=b"from mqtt", qos=1, packet_id=2, properties=properties))
    assert text.hear() == ["message 1 1 from mqtt"]
    mqtt.say(p.Publish(topic="weather/now", payload=b"rain", qos=0))
    assert text.hear() == ["news weather/now rain"]


def test_a_confirm_waits_for_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    node = make(durability="fsync")
    writer = Lines(node, "w")
    node.receive(writer.end, b"put q x\n", NOW)
    turn(node, syncs=False)
    assert writer.end.take_output() == b""
    assert writer.hear() == ["stored q:0:0"]


def test_who_leaves_gives_back_what_it_held() -> None:
    node = make()
    first, second = Lines(node, "a"), Lines(node, "b")
    first.say("put q x")
    assert first.say("take q g 9") == ["message 1 1 x"]
    assert second.say("take q g 9") == []
    node.connection_lost(first.end, NOW)
    assert second.hear() == ["message 1 2 x"]
    assert node.connection_count == 1


def test_it_is_told_that_the_broker_stops_and_sent_away() -> None:
    node = make()
    first = Lines(node, "a")
    node.close(NOW)
    assert first.end.take_output() == b"the broker stops\n"
    assert first.end.may_close


def test_one_that_does_not_read_stalls_and_is_cut() -> None:
    config = BrokerConfig(mqtt=MqttConfig(unread_high_water_bytes=1_000, unread_timeout_s=10.0))
    node = BrokerNode(config, None, random.Random(1), NOW, protocols={"text": TEXT})
    writer, reader = Lines(node, "w"), Lines(node, "r")
    reader.say("take q g 1000")
    for number in range(50):
        writer.say(f"put q {number} {'x' * 100}")
    assert reader.end.is_full
    written = reader.end.take_output()
    assert written.count(b"message") < 50
    reader.end.note_backlog(len(written), len(written), NOW)
    assert reader.end.is_full
    for _ in range(20):
        writer.say("put q new")
    assert b"new" not in reader.end.take_output(), "it has no credit while it leaves so much unread"
    now = NOW
    while not reader.end.is_over and now < NOW + 60:
        now += 1
        node.tick(now)
        reader.end.note_backlog(len(written), 0, now)
    assert NOW + 9 <= now <= NOW + 12


# -- a shared port -----------------------------------------------------------------------------------------------------


PROTOCOLS = {MQTT: WireProtocol(accept=TextConnection, opens=opens_with_connect), "text": TEXT}


@given(st.binary(min_size=1, max_size=40), st.permutations([MQTT, "text"]), st.data())
def test_first_bytes_decide_however_they_come(opening: bytes, names: Sequence[str], data: st.DataObject) -> None:
    cut = data.draw(st.integers(1, len(opening)))
    whole = detect(opening, names, PROTOCOLS)
    part = detect(opening[:cut], names, PROTOCOLS)
    assert part in (None, whole)
    if opening[:1] == b"\x10":
        assert whole == MQTT
    elif opening.startswith(b"hello "):
        assert whole == "text"
    elif len(opening) >= MAX_OPENING_BYTES or not b"hello ".startswith(opening):
        assert whole == names[0], "what is nobody's is the first one's"


def test_both_are_served_on_one_port() -> None:
    async def talk(port: int, *said: bytes, until: bytes) -> bytes:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        try:
            for piece in said:
                writer.write(piece)
                await writer.drain()
                await asyncio.sleep(0)
            return await asyncio.wait_for(reader.readuntil(until), 20)
        finally:
            writer.close()

    async def run() -> None:
        clock = Clock(0.0)
        node = BrokerNode(BrokerConfig(), None, random.Random(1), clock.now(), protocols={"text": TEXT})
        driver = NodeDriver(node, clock)

        def protocol() -> SocketProtocol:
            return SocketProtocol(driver, loopback=True, limit=10, protocols=(MQTT, "text"))

        _, port = await driver.listen(protocol, "127.0.0.1", 0)
        try:
            assert await talk(port, b"hel", b"lo t\n", until=b"\n") == b"welcome\n"
            assert (await talk(port, CONNECT_5[:1], CONNECT_5[1:], until=b"\x20"))[-1:] == b"\x20"
            assert node.state.connecting.count == 0 or node.connection_count
            # Of neither: MQTT, the first, closes it.
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"GET / HTTP/1.1\r\n")
            assert await asyncio.wait_for(reader.read(), 20) == b""
            writer.close()
            # Who says nothing is counted, and gives way.
            _, silent = await asyncio.open_connection("127.0.0.1", port)
            while not node.state.connecting.count:  # noqa: ASYNC110 - a count tells nobody
                await asyncio.sleep(0)
            assert node.connection_count in (0, 1, 2)
            assert node.state.connecting.make_room(clock.now())
            silent.close()
        finally:
            await driver.close()

    asyncio.run(run())

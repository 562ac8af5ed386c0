"""No turn waits for the disk on account of what clients ask for: who is told of it waits for a job.

What still syncs within a turn: a queue that gets more partitions or other settings, the first of its messages with a
priority, a time to live, a delay or a producer, a group that an administrator deletes, a segment that is freed.
"""

from __future__ import annotations

from typing import Any

import pytest

from assay.reference_broker.amqp091.wire.frames import FrameType, frame
from assay.reference_broker.amqp091.wire.methods import BY_NAME, encode_method
from assay.reference_broker.config import EventKind, QueuesConfig
from assay.reference_broker.mqtt.wire import packets as p
from assay.reference_broker.mqtt.wire.codec import encode_packet
from assay.reference_broker.node import BrokerNode
from assay.reference_broker.queues import QueueError
from assay.reference_broker.routing.properties import Kind, Typed
from assay.reference_broker.storage.memory_disk import MemoryDisk, MemoryFile
from tests.support.amqp_client import AmqpClient, make_node, turn

NOW = 1_700_000_000.0
SUBACK = 9 << 4


class WatchedFile(MemoryFile):
    def __init__(self, disk: WatchedDisk, path: str, content: bytearray) -> None:
        super().__init__(content)
        self._disk = disk
        self._path = path

    def sync(self) -> None:
        self._disk.sync_folder(self._path)


class WatchedDisk(MemoryDisk):
    """Notes what is synced, and refuses it when told so."""

    def __init__(self) -> None:
        super().__init__()
        self.synced: list[str] = []
        self.fails = False

    def open(self, path: str, *, create: bool = False) -> WatchedFile:
        super().open(path, create=create)
        return WatchedFile(self, path, self._files[path])

    def sync_folder(self, path: str) -> None:
        if self.fails:
            raise OSError(5, "Input/output error")
        self.synced.append(path)


def take_jobs(node: BrokerNode) -> None:
    for job in node.take_jobs(NOW):
        try:
            job.run()
        except OSError as error:
            node.job_done(job, error, NOW)
        else:
            node.job_done(job, None, NOW)


class MqttClient:
    """Connected; says packets without a turn, and hears bytes."""

    def __init__(self, node: BrokerNode, client_id: str = "c") -> None:
        self.node = node
        self.end = node.accept("test", NOW)
        self.say(p.Connect(version=p.V5, client_id=client_id))
        self.hear()

    def say(self, *packets: p.Packet) -> None:
        self.node.receive(self.end, b"".join(encode_packet(packet, p.V5) for packet in packets), NOW)

    def hear(self) -> bytes:
        """At the end of a turn, whose jobs nobody has run."""
        self.node.take_dirty(NOW)
        return self.end.take_output()


def subscribe(*filters: str, group: str = "g") -> p.Subscribe:
    requests = tuple(p.SubscriptionRequest(topic_filter=each, qos=1) for each in filters)
    asked = p.Properties(user_property=(("consumer-group", group),))
    return p.Subscribe(packet_id=7, requests=requests, properties=asked)


@pytest.fixture
def disk() -> WatchedDisk:
    return WatchedDisk()


def a_node(disk: WatchedDisk, **queue: Any) -> BrokerNode:
    """With a queue in which a message waits."""
    node = make_node(disk, queues=QueuesConfig(defaults={"partitions": 1, **queue}))
    MqttClient(node, "publisher").say(p.Publish(topic="$queue/q", payload=b"waiting", qos=1, packet_id=1))
    turn(node, NOW)
    disk.synced.clear()
    return node


def test_a_suback_waits_for_the_sync_of_its_groups_and_deliveries_wait_with_it(disk: WatchedDisk) -> None:
    client = MqttClient(a_node(disk))
    client.say(subscribe("$queue/q", "plain", "$queue/q/eu"))
    assert client.hear() == b""
    assert disk.synced == []
    take_jobs(client.node)
    heard = client.hear()
    assert heard.startswith(bytes((SUBACK, 6, 0, 7, 0, 1, 1, 1)))
    assert b"waiting" in heard


def test_who_subscribes_to_a_new_group_meanwhile_waits_as_well(disk: WatchedDisk) -> None:
    node = a_node(disk)
    clients = [MqttClient(node, name) for name in ("a", "b")]
    for client in clients:
        client.say(subscribe("$queue/q"))
    assert [client.hear() for client in clients] == [b"", b""]
    take_jobs(node)
    assert [client.hear()[0] for client in clients] == [SUBACK, SUBACK]


def test_a_group_that_is_there_makes_nobody_wait(disk: WatchedDisk) -> None:
    node = a_node(disk)
    MqttClient(node, "a").say(subscribe("$queue/q"))
    turn(node, NOW)
    client = MqttClient(node, "b")
    client.say(subscribe("$queue/q"))
    assert client.hear()[0] == SUBACK


def test_where_the_disk_refuses_the_sync_the_filter_is_refused_and_the_others_are_not(disk: WatchedDisk) -> None:
    client = MqttClient(a_node(disk))
    disk.fails = True
    client.say(subscribe("$queue/q", "plain"))
    assert client.hear() == b""
    take_jobs(client.node)
    assert client.hear() == bytes((SUBACK, 5, 0, 7, 0, 0x80, 1))
    session = client.node.state.sessions["c"]
    assert (list(session.subscriptions), session.consumers) == (["plain"], {})


@pytest.mark.parametrize("queue", [{"durability": "interval"}, {"durability": "memory"}])
def test_a_queue_that_promises_less_answers_at_once(disk: WatchedDisk, queue: dict[str, str]) -> None:
    client = MqttClient(a_node(disk, **queue))
    client.say(subscribe("$queue/q"))
    assert client.hear()[0] == SUBACK
    assert disk.synced == []


def test_consume_ok_waits_and_comes_before_the_deliveries(disk: WatchedDisk) -> None:
    node = a_node(disk)
    client = AmqpClient(node)
    client.open()
    disk.synced.clear()
    method = encode_method(BY_NAME["basic.consume"], "q", "t", False, False, False, False, ())
    qos = encode_method(BY_NAME["basic.qos"], 0, 5, False)
    client.send_raw(frame(FrameType.METHOD, 1, method) + frame(FrameType.METHOD, 1, qos))
    assert client.hear(syncs=False) == []
    assert disk.synced == []
    assert [said.name for said in client.hear()] == ["basic.consume-ok", "basic.qos-ok", "basic.deliver"]


def test_a_purge_is_written_down_by_a_job(disk: WatchedDisk) -> None:
    client = AmqpClient(a_node(disk))
    client.open()
    disk.synced.clear()
    client.send_raw(frame(FrameType.METHOD, 1, encode_method(BY_NAME["queue.purge"], "q", False)))
    assert client.hear(syncs=False) == []
    assert disk.synced == []
    (purged,) = client.hear()
    assert (purged.name, purged.values) == ("queue.purge-ok", (1,))
    assert "queues/q/queue.json.tmp" in disk.synced


def test_a_purge_that_cannot_be_written_down_takes_nothing(disk: WatchedDisk) -> None:
    node = a_node(disk)
    told: list[object] = []
    node.engine.purge_queue("q", NOW, told.append)
    disk.fails = True
    take_jobs(node)
    assert isinstance(told[0], QueueError)
    assert node.engine.stats("q").depth == 1


def test_declare_ok_waits_and_what_is_behind_it_waits_with_it(disk: WatchedDisk) -> None:
    """Also where the queue of that name is still about to go."""
    client = AmqpClient(a_node(disk))
    client.open()
    asked = [
        ("queue.delete", "q", False, False, False),
        ("queue.declare", "q", False, True, False, False, False, ()),
        ("basic.consume", "q", "t", False, False, False, False, ()),
        ("basic.qos", 0, 5, False),
    ]
    client.send_raw(b"".join(frame(FrameType.METHOD, 1, encode_method(BY_NAME[name], *rest)) for name, *rest in asked))
    assert client.hear(syncs=False) == []
    assert [said.name for said in client.hear()] == [f"{name}-ok" for name, *_ in asked]


def events_of(node: BrokerNode) -> list[tuple[str, str]]:
    """What webhooks are told of queues from now on: the kind of event, and the queue."""
    told: list[tuple[str, str]] = []

    def notify(kind: EventKind, subject: str, _data: object) -> int:
        if kind.value.startswith("queue."):
            told.append((kind.value, subject))
        return 0

    node.engine.agenda.notify = notify
    return told


def declaration(*, stream: bool) -> bytes:
    arguments = (("x-queue-type", Typed(Kind.TEXT, "stream")),) if stream else ()
    method = encode_method(BY_NAME["queue.declare"], "new", False, True, False, False, False, arguments)
    return frame(FrameType.METHOD, 1, method)


@pytest.mark.parametrize("stream", [False, True])
def test_a_queue_is_made_by_a_job_and_whoever_declares_it_meanwhile_waits_as_well(
    disk: WatchedDisk, *, stream: bool
) -> None:
    node = make_node(disk)
    clients = [AmqpClient(node), AmqpClient(node)]
    for client in clients:
        client.open()
    disk.synced.clear()
    for client in clients:
        client.send_raw(declaration(stream=stream))
    assert [client.hear(syncs=False) for client in clients] == [[], []]
    assert disk.synced == []
    turn(node, NOW)
    assert [[said.name for said in client.hear()] for client in clients] == [["queue.declare-ok"]] * 2
    assert disk.synced[:3] == ["queues/new/queue.json.tmp", "queues/new", "queues"]


def test_a_message_for_a_new_queue_is_written_once_that_is_made(disk: WatchedDisk) -> None:
    node = make_node(disk, queues=QueuesConfig(defaults={"partitions": 1, "durability": "interval"}))
    client = MqttClient(node)
    take_jobs(node)
    disk.synced.clear()
    client.say(p.Publish(topic="$queue/new", payload=b"m", qos=1, packet_id=1))
    assert client.hear() == b""
    assert (disk.synced, disk.list("queues")) == ([], [])
    take_jobs(node)
    assert client.hear()[0] == 4 << 4
    assert node.engine.stats("new").depth == 1


def test_a_queue_that_cannot_be_made_is_refused_leaves_nothing_and_may_be_made_later(disk: WatchedDisk) -> None:
    node = make_node(disk, queues=QueuesConfig(defaults={"partitions": 1}))
    client = MqttClient(node)
    disk.fails = True
    told: list[object] = []
    events = events_of(node)
    node.engine.create_queue("new", {}, NOW, told.append)
    client.say(subscribe("$queue/new"), p.Publish(topic="$queue/new", payload=b"m", qos=1, packet_id=1))
    assert (client.hear(), told) == (b"", [])
    take_jobs(node)
    heard = client.hear()
    assert isinstance(told[0], QueueError)
    assert sorted((heard[0] >> 4, heard[heard[1] + 2] >> 4)) == [4, 9]
    assert node.engine.queues() == []
    assert events == []
    disk.fails = False
    take_jobs(node)
    assert disk.list("queues/new") == []
    client.say(p.Publish(topic="$queue/new", payload=b"m", qos=1, packet_id=2))
    client.hear()
    assert events == []
    turn(node, NOW)
    assert node.engine.stats("new").depth == 1
    node.engine.delete_queue("new", NOW)
    assert events == [("queue.created", "new"), ("queue.deleted", "new")]

"""No turn waits for the disk on account of what clients ask for: who is told of it waits for a job.

What still syncs within a turn: a segment that is freed, the broker's own group of a dead-letter queue as it goes, and
what needs to know at once where its messages are while the queue is being made.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from assay.reference_broker.amqp091.wire.frames import FrameType, frame
from assay.reference_broker.amqp091.wire.methods import BY_NAME, encode_method
from assay.reference_broker.config import EventKind, QueuesConfig
from assay.reference_broker.mqtt.wire import packets as p
from assay.reference_broker.mqtt.wire.codec import encode_packet
from assay.reference_broker.node import BrokerNode
from assay.reference_broker.queues import QueueError, QueueErrorCode
from assay.reference_broker.queues.groups.subscribe_options import EARLIEST
from assay.reference_broker.queues.jobs.confirms import Confirm
from assay.reference_broker.queues.queue.queue import MAX_CHANGES
from assay.reference_broker.routing.properties import Kind, Typed
from tests.support.amqp_client import AmqpClient, make_node, turn
from tests.support.watched_disk import WatchedDisk

NOW = 1_700_000_000.0
SUBACK = 9 << 4


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


CHANGES: dict[str, Callable[[BrokerNode, Confirm], None]] = {
    "settings": lambda node, told: node.engine.update_queue("q", {"max_depth": 7}, NOW, told),
    "partitions": lambda node, told: node.engine.add_partitions("q", 3, NOW, told),
    "a group that goes": lambda node, told: node.engine.groups.delete("q", "g", NOW, told),
}


def state_of(node: BrokerNode) -> tuple[int, int, list[str]]:
    config, _ = node.engine.queue_config("q")
    return (
        config.max_depth,
        len(node.engine.places("q", EARLIEST)),
        [each.group for each in node.engine.stats("q").groups],
    )


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("fails", [False, True])
def test_a_change_is_written_by_a_job_and_holds_once_that_is_done(
    disk: WatchedDisk, change: str, *, fails: bool
) -> None:
    node = a_node(disk, max_depth=100)
    client = MqttClient(node)
    client.say(subscribe("$queue/q"))
    turn(node, NOW)
    node.connection_lost(client.end, NOW)
    turn(node, NOW)
    disk.synced.clear()
    before = state_of(node)
    told: list[object] = []
    CHANGES[change](node, told.append)
    node.take_dirty(NOW)
    assert (disk.synced, told, state_of(node)) == ([], [], before)
    disk.fails = fails
    take_jobs(node)
    (result,) = told
    assert isinstance(result, QueueError) == fails
    assert (state_of(node) == before) == fails
    disk.fails = False
    if change != "a group that goes":
        CHANGES[change](node, told.append)
        turn(node, NOW)
        assert told[1:] == [None]
        assert state_of(node) != before
    node.close(NOW)
    again = make_node(disk, queues=QueuesConfig(defaults={"partitions": 1, "max_depth": 100}))
    assert again.engine.queue_config("q")[0].max_depth == (7 if change == "settings" else 100)
    assert len(again.engine.places("q", EARLIEST)) == (3 if change == "partitions" else 1)
    is_gone = change == "a group that goes" and not fails
    assert [each.group for each in again.engine.stats("q").groups] == ([] if is_gone else ["g"])


def test_changes_that_come_at_once_hold_one_after_the_other_and_there_is_a_bound(disk: WatchedDisk) -> None:
    node = a_node(disk)
    told: list[object] = []
    for depth in range(MAX_CHANGES - 1):
        node.engine.update_queue("q", {"max_depth": 10 + depth, "max_in_flight": 5}, NOW, told.append)
    node.engine.update_queue("q", {"max_in_flight": None}, NOW, told.append)
    with pytest.raises(QueueError) as refused:
        node.engine.update_queue("q", {"max_depth": 1}, NOW, told.append)
    assert refused.value.code is QueueErrorCode.LIMIT
    turn(node, NOW)
    assert told == [None] * MAX_CHANGES
    assert node.engine.queue_config("q")[1] == {"max_depth": 8 + MAX_CHANGES}

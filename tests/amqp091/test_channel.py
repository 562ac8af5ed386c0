"""What a client does on channels: queues, publishes, gets, consumers, acknowledgements, confirms, transactions."""

from __future__ import annotations

import random
from typing import Any
from unittest import mock

import pytest

from assay.reference_broker.amqp091 import service
from assay.reference_broker.amqp091.consuming import Consuming
from assay.reference_broker.amqp091.queue_settings import settings_of
from assay.reference_broker.amqp091.topology import VirtualHost
from assay.reference_broker.amqp091.wire.content import BasicProperties
from assay.reference_broker.amqp091.wire.fields import Table
from assay.reference_broker.amqp091.wire.frames import FrameType, frame
from assay.reference_broker.amqp091.wire.methods import BY_NAME, encode_method
from assay.reference_broker.config import PriorityConfig
from assay.reference_broker.queues import PublishOptions, QueueAddress, QueueEngine, QueueError, QueueErrorCode
from assay.reference_broker.queues.messages.lanes import lane_of_exact
from assay.reference_broker.queues.messages.publish_options import Priority
from assay.reference_broker.routing.message import Message
from assay.reference_broker.routing.properties import Kind, Typed
from assay.reference_broker.storage.memory_disk import MemoryDisk
from tests.mqtt.turn_steps import Steps
from tests.support.amqp_client import NOW, AmqpClient, Said, make_node, table, turn


def client(**config: Any) -> AmqpClient:
    found = AmqpClient(make_node(**config))
    found.open()
    return found


def bodies(said: list[Said]) -> list[bytes]:
    return [each.body for each in said if each.name == "basic.deliver"]


def closed(said: list[Said], code: int) -> None:
    """The channel was closed with this code, and is let go of."""
    assert said[-1].name == "channel.close", said
    assert said[-1].values[0] == code, said


def test_a_message_comes_back_as_it_was_published() -> None:
    c = client()
    headers: Table = (*table(a=1, b="x", c=True), ("d", Typed(Kind.LIST, (Typed(Kind.NULL, None), Typed(Kind.I8, -1)))))
    properties = BasicProperties(
        content_type="text/plain",
        content_encoding="gzip",
        headers=headers,
        delivery_mode=2,
        priority=3,
        correlation_id="c",
        reply_to="r",
        message_id="m",
        timestamp=1_234,
        kind="t",
        user_id="guest",
        app_id="app",
    )
    c.declare("q")
    c.publish("q", b"hello", properties)
    got = c.get("q")
    assert got.values == (1, False, "", "q", 0)
    assert (got.properties, got.body) == (properties, b"hello")
    c.publish("q", b"", BasicProperties())
    assert c.get("q").body == b""
    assert c.get("q").name == "basic.get-empty"


def test_large_bodies_come_in_frames() -> None:
    c = client()
    c.declare("q")
    body = bytes(range(256)) * 2_000
    c.publish("q", body)
    assert c.get("q").body == body


def test_consumers_share_a_queue_in_turn() -> None:
    node = make_node()
    first, second, writer = AmqpClient(node), AmqpClient(node), AmqpClient(node)
    for each in (first, second, writer):
        each.open()
    writer.declare("q")
    first.consume("q", "a")
    second.consume("q", "b")
    for number in range(6):
        writer.publish("q", b"%d" % number)
    heard = [bodies(first.hear()), bodies(second.hear())]
    assert sorted(len(part) for part in heard) == [3, 3]
    assert sorted(heard[0] + heard[1]) == [b"%d" % number for number in range(6)]


def test_prefetch_bounds_a_consumer_and_acknowledgements_make_room() -> None:
    c = client()
    c.declare("q")
    for number in range(5):
        c.publish("q", b"%d" % number)
    c.say(1, "basic.qos", 0, 2, False)
    assert bodies(c.consume("q")) == [b"0", b"1"]
    assert bodies(c.say(1, "basic.ack", 2, True)) == [b"2", b"3"]
    assert bodies(c.say(1, "basic.ack", 4, False)) == [b"4"]


def test_a_prefetch_of_the_channel_bounds_all_its_consumers_and_may_be_lowered() -> None:
    # lavinmq#2198: a lower limit takes capacity back.
    c = client()
    c.declare("q")
    c.say(1, "basic.qos", 0, 3, True)
    c.consume("q", "a")
    c.consume("q", "b")
    said = [part for number in range(5) for part in c.publish("q", b"%d" % number)]
    assert bodies(said) == [b"0", b"1", b"2"]
    c.say(1, "basic.qos", 0, 2, True)
    assert bodies(c.say(1, "basic.ack", 1, False)) == []
    assert bodies(c.say(1, "basic.ack", 2, False)) == [b"3"]


@pytest.mark.parametrize("how", ["nack", "reject", "recover", "close"])
def test_what_is_requeued_takes_its_old_place_and_is_marked(how: str) -> None:
    c = client()
    c.declare("q")
    for number in range(3):
        c.publish("q", b"%d" % number)
    assert [c.get("q").body for _ in range(2)] == [b"0", b"1"]
    if how == "nack":
        c.say(1, "basic.nack", 2, False, True)
        c.say(1, "basic.nack", 1, False, True)
    elif how == "reject":
        c.say(1, "basic.reject", 2, True)
        c.say(1, "basic.reject", 1, True)
    elif how == "recover":
        assert [each.name for each in c.say(1, "basic.recover", True)] == ["basic.recover-ok"]
    else:
        c.say(1, "channel.close", 0, "", 0, 0)
        c.open()
    got = [c.get("q") for _ in range(3)]
    assert [(each.body, each.values[1]) for each in got] == [(b"0", True), (b"1", True), (b"2", False)]


def test_what_is_not_acknowledged_is_there_after_a_restart_and_marked() -> None:
    disk = MemoryDisk()
    c = AmqpClient(make_node(disk))
    c.open()
    c.declare("q")
    c.say(1, "exchange.declare", "e", "topic", False, True, False, False, False, ())
    c.say(1, "queue.bind", "q", "e", "a.#", False, ())
    for number in range(3):
        c.publish("a.b", b"%d" % number, exchange="e")
    assert c.get("q").body == b"0"
    c.say(1, "basic.ack", 1, False)
    assert c.get("q").body == b"1"
    c.declare("gone", durable=False)
    c.node.close(NOW)
    again = AmqpClient(make_node(disk, now=NOW + 1, seed=2), now=NOW + 1)
    again.open()
    assert [(each.body, each.values[1], each.values[2:4]) for each in (again.get("q"), again.get("q"))] == [
        (b"1", True, ("e", "a.b")),
        (b"2", False, ("e", "a.b")),
    ]
    assert again.get("q").name == "basic.get-empty"
    again.publish("a.b.c", b"new", exchange="e")
    assert again.get("q").body == b"new"
    closed(again.say(1, "queue.declare", "gone", True, False, False, False, False, ()), 404)


def test_automatic_acknowledgement_settles_what_is_sent() -> None:
    c = client()
    c.declare("q")
    c.publish("q", b"x")
    assert bodies(c.consume("q", no_ack=True)) == [b"x"]
    c.say(1, "channel.close", 0, "", 0, 0)
    c.open()
    assert c.get("q").name == "basic.get-empty"


def test_a_cancelled_consumer_may_still_acknowledge() -> None:
    c = client()
    c.declare("q")
    c.publish("q", b"x")
    assert bodies(c.consume("q")) == [b"x"]
    assert [each.name for each in c.say(1, "basic.cancel", "t", False)] == ["basic.cancel-ok"]
    assert c.get("q").name == "basic.get-empty"
    assert c.say(1, "basic.ack", 1, False) == []
    c.say(1, "channel.close", 0, "", 0, 0)
    c.open()
    assert c.get("q").name == "basic.get-empty"


@pytest.mark.parametrize(
    ("name", "values", "code"),
    [
        ("basic.ack", (1, False), 406),
        ("basic.ack", (1, True), 406),
        ("basic.reject", (9, True), 406),
        ("basic.nack", (9, True, True), 406),
        ("tx.commit", (), 406),
        ("tx.rollback", (), 406),
        ("queue.bind", ("nope", "amq.direct", "k", False, ()), 404),
        ("queue.bind", ("q", "nope", "k", False, ()), 404),
        ("queue.purge", ("nope", False), 404),
        ("basic.consume", ("nope", "t", False, False, False, False, ()), 404),
        ("basic.get", ("nope", False), 404),
        ("queue.declare", ("q", False, False, False, False, False, ()), 406),
        ("queue.declare", ("amq.mine", False, False, False, False, False, ()), 403),
        ("queue.declare", ("r", False, True, False, False, False, table(x_message_ttl=-1)), 406),
        ("queue.declare", ("r", False, True, False, False, False, table(x_expires=0)), 406),
        ("queue.declare", ("r", False, True, False, False, False, table(x_unheard_of=1)), 406),
        ("exchange.declare", ("amq.mine", "direct", False, False, False, False, False, ()), 403),
        ("exchange.declare", ("nope", "direct", True, False, False, False, False, ()), 404),
    ],
)
def test_a_soft_error_closes_the_channel_alone(name: str, values: tuple[Any, ...], code: int) -> None:
    c = client()
    c.open(2)
    c.declare("q")
    said = c.say(1, name, *values)
    closed(said, code)
    assert c.say(1, "basic.get", "q", False) == [], "what comes before close-ok is passed over"
    c.say(1, "channel.close-ok")
    c.open(1)
    assert c.get("q", channel=2).name == "basic.get-empty"


@pytest.mark.parametrize(
    ("name", "values", "code"),
    [
        ("channel.open", (), 504),
        ("basic.qos", (1, 1, False), 540),
        ("basic.recover", (False,), 540),
        ("exchange.declare", ("e", "nope", False, False, False, False, False, ()), 503),
        ("basic.get-empty", (), 503),
        ("connection.start-ok", ((), "", b"", ""), 503),
    ],
)
def test_a_hard_error_closes_the_connection(name: str, values: tuple[Any, ...], code: int) -> None:
    c = client()
    said = c.say(1, name, *values)
    assert said[-1].name == "connection.close"
    assert said[-1].values[0] == code
    assert c.say(0, "connection.close-ok") == []
    assert c.end.may_close


def test_confirms_come_in_order_and_together() -> None:
    c = client()
    c.declare("q")
    c.publish("q", b"before", mandatory=True)
    assert [each.name for each in c.say(1, "confirm.select", False)] == ["confirm.select-ok"]
    # rabbitmq-server#3870: numbers begin with what is published in this mode.
    assert [(each.name, each.values) for each in c.publish("q", b"1")] == [("basic.ack", (1, False))]
    said = c.publish("nowhere", b"2", mandatory=True)
    assert [(each.name, each.values[:2]) for each in said] == [
        ("basic.return", (312, "NO_ROUTE")),
        ("basic.ack", (2, False)),
    ]
    assert said[0].body == b"2"


def test_a_confirm_waits_for_the_disk() -> None:
    c = client()
    c.declare("q")
    c.say(1, "confirm.select", False)
    assert c.publish("q", b"1", syncs=False) == []
    assert c.publish("q", b"2", syncs=False) == []
    assert [(each.name, each.values) for each in c.hear()] == [("basic.ack", (2, True))]


def test_a_queue_that_is_deleted_meanwhile_does_not_speak_for_the_others() -> None:
    """A simulated publisher was told nack of what other queues had."""
    c = client()
    for name in ("passes", "stays"):
        c.declare(name)
        c.say(1, "queue.bind", name, "amq.fanout", "", False, ())
    c.say(1, "confirm.select", False)
    assert c.publish("", b"x", exchange="amq.fanout", syncs=False) == []
    said = c.say(1, "queue.delete", "passes", False, False, False)
    confirms = [(each.name, each.values) for each in said if each.name != "queue.delete-ok"]
    assert confirms == [("basic.ack", (1, False))]
    assert c.get("stays").body == b"x"


def test_a_deletion_that_the_disk_refuses_is_not_confirmed() -> None:
    """A simulated client found the queue there again after the next start."""
    c = client()
    c.declare("q")
    failed = QueueError(QueueErrorCode.STORAGE_FAILED, "no room on the disk")
    with mock.patch.object(QueueEngine, "delete_queue", lambda _self, _name, _now, on_done, **_more: on_done(failed)):
        said = c.say(1, "queue.delete", "q", False, False, False)
    assert [(each.name, each.values[0]) for each in said] == [("connection.close", 541)]


def test_a_get_is_given_what_was_published_before_it_and_is_being_written() -> None:
    """Lives found a queue that was empty though Declare-Ok had just counted a message."""
    c = client()
    c.declare("q")
    assert c.publish("q", b"x", syncs=False) == []
    assert c.say(1, "basic.get", "q", True, syncs=False) == []
    (got,) = c.hear()
    assert (got.name, got.body) == ("basic.get-ok", b"x")
    assert c.get("q").name == "basic.get-empty"


def test_a_full_queue_that_rejects_publishes_says_so() -> None:
    c = client()
    c.declare("q", arguments=table(x_max_length=1, x_overflow="reject-publish"))
    c.say(1, "confirm.select", False)
    assert c.publish("q", b"1")[0].name == "basic.ack"
    assert [(each.name, each.values) for each in c.publish("q", b"2")] == [("basic.nack", (2, False, False))]
    assert c.get("q").body == b"1"
    assert c.get("q").name == "basic.get-empty"


def test_a_full_queue_drops_its_head() -> None:
    c = client()
    c.declare("q", arguments=table(x_max_length=2))
    for number in range(4):
        c.publish("q", b"%d" % number)
    held = [c.get("q") for _ in range(2)]
    assert [got.body for got in held] == [b"2", b"3"]
    # What is with a client does not count, and what comes back is the oldest.
    for number in range(4, 6):
        c.publish("q", b"%d" % number)
    assert c.declare("q", passive=True).values[1] == 2
    c.say(1, "basic.nack", held[1].values[0], True, True)
    assert [c.get("q").body for _ in range(2)] == [b"4", b"5"]
    assert c.get("q").name == "basic.get-empty"


def test_a_queue_of_no_length_has_messages_for_those_who_wait_for_one() -> None:
    c = client()
    c.declare("d")
    letters = table(x_max_length=0, x_dead_letter_exchange="", x_dead_letter_routing_key="d")
    c.declare("q", arguments=letters)
    c.say(1, "confirm.select", False)
    assert [each.name for each in c.publish("q", b"nobody waits")] == ["basic.ack"]
    assert c.get("q").name == "basic.get-empty"
    assert c.get("d").body == b"nobody waits"
    c.say(1, "basic.qos", 0, 1, False)
    c.consume("q", "t")
    said = c.publish("q", b"one") + c.publish("q", b"two")
    assert [each.body for each in said if each.name == "basic.deliver"] == [b"one"]
    assert not [each for each in said if each.name == "basic.nack"]
    assert c.get("d").body == b"two"
    assert c.declare("q", passive=True).values[1] == 0


def test_a_queue_of_no_length_that_rejects_publishes_rejects_them_all() -> None:
    c = client()
    c.declare("q", arguments=table(x_max_length=0, x_overflow="reject-publish"))
    c.say(1, "confirm.select", False)
    assert [each.name for each in c.publish("q", b"x")] == ["basic.nack"]
    assert c.get("q").name == "basic.get-empty"


def test_messages_expire() -> None:
    c = client()
    c.declare("q", arguments=table(x_message_ttl=1_000))
    c.declare("r")
    c.publish("q", b"x")
    c.publish("r", b"x", BasicProperties(expiration="500"))
    c.publish("r", b"y")
    c.now += 2
    assert c.get("q").name == "basic.get-empty"
    assert c.get("r").body == b"y"
    closed(c.publish("r", b"x", BasicProperties(expiration="abc")), 406)


def test_a_queue_expires_when_nobody_uses_it() -> None:
    c = client()
    c.declare("q", arguments=table(x_expires=1_000))
    c.consume("q")
    c.now += 5
    c.hear()
    assert c.declare("q", passive=True).name == "queue.declare-ok"
    c.say(1, "basic.cancel", "t", False)
    c.now += 1.1
    c.hear()
    c.now += 1.1
    c.hear()
    closed([c.declare("q", passive=True)], 404)


@pytest.mark.parametrize("exclusive", [False, True])
def test_a_queue_that_nobody_ever_used_expires(exclusive: bool) -> None:
    """The record of an exclusive one is kept as another, without durability: it was looked for in vain."""
    c = client()
    c.declare("q", arguments=table(x_expires=1_000), exclusive=exclusive)
    c.now += 1.1
    c.hear()
    closed([c.declare("q", passive=True)], 404)


def test_a_delivery_limit_ends_a_message() -> None:
    # lavinmq#976: at the requeue, not at the next delivery.
    c = client()
    c.declare("q", arguments=table(x_delivery_limit=1))
    c.publish("q", b"x")
    for _ in range(2):
        tag = c.get("q").values[0]
        c.say(1, "basic.reject", tag, True)
    assert c.declare("q", passive=True).values[1] == 0


def test_a_transaction_is_done_at_its_commit_alone() -> None:
    c = client()
    c.declare("q")
    c.publish("q", b"old")
    c.open(2)
    c.say(2, "tx.select")
    c.publish("q", b"new", channel=2)
    tag = c.get("q", channel=2).values[0]
    c.say(2, "basic.ack", tag, False)
    assert c.get("q").name == "basic.get-empty"
    assert [each.name for each in c.say(2, "tx.commit")] == ["tx.commit-ok"]
    assert c.get("q").body == b"new"
    assert c.get("q").name == "basic.get-empty"


def test_what_was_acknowledged_in_a_transaction_that_is_rolled_back_is_outstanding() -> None:
    # lavinmq#2206 row 3
    c = client()
    c.declare("q")
    c.publish("q", b"x")
    c.say(1, "tx.select")
    tag = c.get("q").values[0]
    c.say(1, "basic.ack", tag, False)
    c.publish("q", b"never")
    assert [each.name for each in c.say(1, "tx.rollback")] == ["tx.rollback-ok"]
    c.say(1, "basic.reject", tag, True)
    c.say(1, "tx.commit")
    got = c.get("q")
    assert (got.body, got.values[1]) == (b"x", True)
    assert c.get("q").name == "basic.get-empty"


def test_what_waits_behind_a_request_that_is_refused_later_is_passed_over_but_for_a_close() -> None:
    """It was dropped, and stayed counted: who had closed the channel meanwhile waited for ever."""
    c = client()
    c.declare("full", arguments=table(x_max_length=1, x_overflow="reject-publish"))
    c.publish("full", b"1")
    c.say(1, "tx.select")
    c.publish("full", b"2")
    c.publish("full", b"3")
    for name, values in (("tx.commit", ()), ("basic.qos", (0, 1, False)), ("channel.close", (200, "", 0, 0))):
        c.send_raw(frame(FrameType.METHOD, 1, encode_method(BY_NAME[name], *values)))
    assert [each.name for each in c.hear()] == ["channel.close", "channel.close-ok"]
    c.open()
    assert not c.end.wants_pause
    assert c.end._waiting_bytes == 0


def test_exclusive_queues_end_with_their_connection_and_are_locked() -> None:
    node = make_node()
    owner, other = AmqpClient(node), AmqpClient(node)
    owner.open()
    other.open()
    owner.declare("q", exclusive=True)
    closed([other.declare("q", passive=True)], 405)
    other.say(1, "channel.close-ok")
    other.open()
    node.connection_lost(owner.end, NOW)
    turn(node)
    closed([other.declare("q", passive=True)], 404)


def test_an_auto_delete_queue_ends_with_its_last_consumer() -> None:
    c = client()
    c.declare("q", auto_delete=True)
    c.consume("q", "a")
    c.consume("q", "b")
    c.say(1, "basic.cancel", "a", False)
    assert c.declare("q", passive=True).values == ("q", 0, 1)
    c.say(1, "basic.cancel", "b", False)
    closed([c.declare("q", passive=True)], 404)


def test_an_exclusive_consumer_is_the_only_one() -> None:
    c = client()
    c.declare("q")
    c.consume("q", "a", exclusive=True)
    closed(c.consume("q", "b"), 403)


def test_a_consumer_is_told_that_its_queue_is_gone() -> None:
    c = client()
    c.open(2)
    c.declare("q")
    c.consume("q")
    said = c.say(2, "queue.delete", "q", False, False, False)
    assert sorted((each.channel, each.name) for each in said) == [(1, "basic.cancel"), (2, "queue.delete-ok")]


def test_a_queue_is_deleted_only_if_unused_and_empty_where_that_is_asked() -> None:
    c = client()
    c.declare("q")
    c.publish("q", b"x")
    closed(c.say(1, "queue.delete", "q", False, True, False), 406)
    c.say(1, "channel.close-ok")
    c.open()
    c.open(2)
    c.consume("q", channel=2)
    closed(c.say(1, "queue.delete", "q", True, False, False), 406)
    c.say(1, "channel.close-ok")
    c.open()
    assert c.say(1, "queue.delete", "nope", False, False, False)[0].values == (0,)


def test_a_purge_counts_what_was_ready() -> None:
    c = client()
    c.declare("q")
    for _ in range(3):
        c.publish("q", b"x")
    c.get("q")
    assert c.say(1, "queue.purge", "q", False)[0].values == (2,)
    assert c.get("q").name == "basic.get-empty"


def test_an_empty_name_is_the_last_queue_declared() -> None:
    c = client()
    name = c.declare("", durable=False).values[0]
    assert name.startswith("amq.gen-")
    c.say(1, "queue.bind", "", "amq.fanout", "", False, ())
    c.publish("", b"x", exchange="amq.fanout")
    assert c.get("").body == b"x"
    c.open(2)
    closed(c.say(2, "basic.get", "", False), 404)


def test_answers_come_in_the_order_of_the_requests() -> None:
    c = client()
    c.declare("q")
    c.publish("q", b"x")

    requests = [("basic.get", ("q", True)), ("queue.purge", ("q", False)), ("basic.qos", (0, 1, False))]
    c.send_raw(b"".join(frame(FrameType.METHOD, 1, encode_method(BY_NAME[name], *values)) for name, values in requests))
    assert [each.name for each in c.hear()] == ["basic.get-ok", "queue.purge-ok", "basic.qos-ok"]


@pytest.mark.parametrize("is_made_anew", [False, True])
def test_what_waits_behind_an_answer_does_not_meddle_with_a_deletion(is_made_anew: bool) -> None:
    """Found by fuzzing: the deletion of a queue answered a purge, and the next frame deleted it, too."""
    c = client()
    c.open(2)
    c.declare("q")
    c.publish("q", b"x")
    delete = ("queue.delete", ("q", False, False, False))
    requests = [(2, "queue.purge", ("q", False)), (2, *delete), (1, *delete)]
    if is_made_anew:
        requests.insert(1, (2, "queue.declare", ("q", False, False, False, False, False, ())))
    c.send_raw(
        b"".join(frame(FrameType.METHOD, at, encode_method(BY_NAME[name], *values)) for at, name, values in requests)
    )
    heard = c.hear()
    # To the purge the queue was there, or it was not.
    assert [each.name for each in heard if each.channel == 1] == ["queue.delete-ok"]
    assert [each.name for each in heard if each.channel == 2] in (
        ["queue.purge-ok", *["queue.declare-ok"] * is_made_anew, "queue.delete-ok"],
        ["channel.close"],
    )
    closed(c.say(1, "queue.purge", "q", False), 404)


def test_flow_stops_deliveries() -> None:
    c = client()
    c.declare("q")
    c.consume("q")
    assert c.say(1, "channel.flow", False)[0].values == (False,)
    assert bodies(c.publish("q", b"x")) == []
    assert bodies(c.say(1, "channel.flow", True)) == [b"x"]


def test_a_user_id_must_be_ones_own() -> None:
    c = client()
    c.declare("q")
    closed(c.publish("q", b"x", BasicProperties(user_id="somebody")), 406)


def test_messages_with_ids_of_their_own_are_routed_once_for_a_key_until_something_changes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[str] = []
    route = VirtualHost.route
    monkeypatch.setattr(VirtualHost, "route", lambda self, *args: (asked.append(args[1]), route(self, *args))[1])
    c = client()
    c.declare("q")
    for number in range(9):
        if number == 3:
            c.say(1, "queue.bind", "q", "amq.direct", "a", False, ())
        elif number == 6:
            c.say(1, "queue.unbind", "q", "amq.direct", "a", ())
        c.publish("a", b"%d" % number, BasicProperties(message_id=f"m{number}"), exchange="amq.direct")
    assert [c.get("q").body for _ in range(4)] == [b"3", b"4", b"5", b""]
    assert len(asked) <= 4


def test_messages_go_by_priority_and_within_one_in_order() -> None:
    c = client()
    c.declare("q", arguments=table(x_max_priority=3))
    for number, priority in enumerate((None, 1, 3, 0, 2, 9, 1)):
        c.publish("q", b"%d" % number, BasicProperties(priority=priority))
    assert [c.get("q").body for _ in range(7)] == [b"2", b"5", b"4", b"1", b"6", b"0", b"3"]


@pytest.mark.parametrize("most", [1, 2, 4, 9, 255])
def test_every_priority_has_a_lane_of_its_own(most: int) -> None:
    config = PriorityConfig(levels=most + 1)
    lanes = [lane_of_exact(priority, config) for priority in range(256)]
    assert lanes == sorted(lanes, reverse=True)
    assert len(set(lanes)) == most + 1
    assert (lanes[0], lanes[-1]) == (max(most, 4), max(most, 4) - most)


@pytest.mark.parametrize("most", [1, 2, 9, 255])
@pytest.mark.parametrize("how", ["one by one", "at once", "to two consumers", "after a restart"])
def test_exact_priorities(most: int, how: str) -> None:
    """Two of each level, from low to high; one above the maximum counts as that, one without as 0."""
    disk = MemoryDisk()
    c = AmqpClient(make_node(disk))
    c.open()
    c.declare("q", arguments=table(x_max_priority=most))
    levels = [None, *range(most + 1), 255, *range(most + 1)]
    for level in levels:
        c.publish("q", b"%d" % (level or 0), BasicProperties(priority=level), syncs=how != "at once")
    wanted = sorted((min(level or 0, most) for level in levels), reverse=True)
    if how == "after a restart":
        c.node.close(NOW)
        c = AmqpClient(make_node(disk, now=NOW + 1, seed=2), now=NOW + 1)
        c.open()
    if how == "to two consumers":
        c.say(1, "basic.qos", 0, 300, False)
        said = [*c.consume("q", "a"), *c.consume("q", "b")]
    else:
        said = c.consume("q")
    assert [min(int(body), most) for body in bodies(said)] == wanted


@pytest.mark.parametrize("most", [2, 9])
def test_queues_with_priorities_from_before_there_were_levels(most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their settings named none, and whoever published chose a lane: what came then keeps its place.

    They have five levels, higher ones count as the highest, and an equal declaration is equal.
    """
    weights = {"enabled": True, "weights": [1_000_000, 100_000, 10_000, 100, 1], "starvation_s": 0.0}
    disk = MemoryDisk()
    c = AmqpClient(make_node(disk))
    c.open()
    with monkeypatch.context() as before:
        before.setattr(
            service, "settings_of", lambda *args, **named: settings_of(*args, **named) | {"priority": weights}
        )
        c.declare("q", arguments=table(x_max_priority=most))
    address, options = QueueAddress(queue="q"), PublishOptions(priority=Priority.NORMAL)
    c.node.engine.publish(address, Message(topic="", payload=b"before"), NOW, None, None, options)
    c.hear()
    c.node.close(NOW)
    c = AmqpClient(make_node(disk, now=NOW + 1, seed=2), now=NOW + 1)
    c.open()
    assert c.declare("q", arguments=table(x_max_priority=most)).name == "queue.declare-ok"
    for level in (None, 1, 2, 3, 9, 4, 0):
        c.publish("q", b"%d" % (level or 0), BasicProperties(priority=level))
    assert [c.get("q").body for _ in range(8)] == [b"9", b"4", b"3", b"before", b"2", b"1", b"0", b"0"]


@pytest.mark.parametrize("acks", [True, False])
def test_messages_of_one_priority_come_as_one(acks: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """And none of another is taken along, whatever stands between them."""
    c = client()
    c.declare("q", arguments=table(x_max_priority=9))
    rng = random.Random(5)
    levels = [rng.choice((0, 0, 0, 0, 7, 2)) for _ in range(300)]
    for number, level in enumerate(levels):
        c.publish("q", b"%d" % number, BasicProperties(priority=level), syncs=False)
    lengths: list[int] = []
    taken = Consuming.deliver_run
    monkeypatch.setattr(Consuming, "deliver_run", lambda *args: lengths.append(taken(*args)) or lengths[-1])
    said = [part for _ in range(5) for part in (c.consume("q", no_ack=not acks) if not lengths else c.hear())]
    wanted = sorted(range(300), key=lambda number: -levels[number])
    assert bodies(said) == [b"%d" % number for number in wanted]
    assert max(lengths) >= 4
    if acks:
        assert c.say(1, "basic.ack", 0, True) == []
    assert c.get("q").name == "basic.get-empty"


def test_acknowledgements_cost_as_little_among_many_priorities() -> None:
    """Each was looked for in one lane after the other."""

    def lines(most: int) -> int:
        c = client()
        c.declare("q", arguments=table(x_max_priority=most))
        for number in range(60):
            c.publish("q", b"x", BasicProperties(priority=number % 2))
        tags = [each.values[1] for each in c.consume("q") if each.name == "basic.deliver"]
        acks = [frame(FrameType.METHOD, 1, encode_method(BY_NAME["basic.ack"], tag, False)) for tag in tags]
        return Steps().count(lambda: c.send_raw(b"".join(acks)))

    lines(5)  # what is remembered from the first time on
    assert lines(255) <= lines(5) + 600  # the turn looks at each lane once, or twice


def test_a_letter_and_what_others_publish_have_their_priority() -> None:
    """Of a message it is read wherever that comes from: a dead letter has it, too, and one of MQTT has none."""
    c = client()
    c.declare("d", arguments=table(x_max_priority=9))
    c.declare("q", arguments=table(x_dead_letter_exchange="", x_dead_letter_routing_key="d"))
    c.publish("d", b"5", BasicProperties(priority=5))
    c.node.engine.publish(QueueAddress(queue="d"), Message(topic="", payload=b"0"), NOW, None)
    c.publish("q", b"7", BasicProperties(priority=7))
    c.say(1, "basic.reject", c.get("q").values[0], False)
    assert [c.get("d").body for _ in range(3)] == [b"7", b"5", b"0"]


def test_a_single_active_consumer_has_all_until_it_leaves() -> None:
    c = client()
    c.declare("q", arguments=table(x_single_active_consumer=True))
    c.consume("q", "a")
    c.consume("q", "b")
    said = [part for number in range(3) for part in c.publish("q", b"%d" % number)]
    assert [(each.values[0], each.body) for each in said] == [("a", b"0"), ("a", b"1"), ("a", b"2")]
    c.say(1, "basic.cancel", "a", False)
    said = c.publish("q", b"3")
    assert [(each.values[0], each.body) for each in said] == [("b", b"3")]


def test_an_expiration_comes_out_as_it_was_given() -> None:
    c = client()
    c.declare("q")
    c.publish("q", b"x", BasicProperties(expiration="60000"))
    c.now += 10
    got = c.get("q")
    assert got.properties is not None
    assert got.properties.expiration == "60000"


@pytest.mark.parametrize("way", ["queue", "message"])
def test_what_expires_at_once_still_goes_to_who_waits_for_it(way: str) -> None:
    c = client()
    c.declare("q", arguments=table(x_message_ttl=0) if way == "queue" else ())
    properties = BasicProperties(expiration="0") if way == "message" else BasicProperties()
    c.publish("q", b"gone", properties)
    c.now += 0.2
    assert c.get("q").name == "basic.get-empty"
    c.consume("q")
    assert c.publish("q", b"x", properties, syncs=False) == []
    c.now += 0.02
    assert bodies(c.hear()) == [b"x"], "the sync of its queue took its time"


@pytest.mark.parametrize("what", ["lost", "closed", "deleted"])
def test_a_declaration_that_nobody_waits_for_any_more_is_answered_to_nobody(what: str) -> None:
    """Its answer waits for the disk; meanwhile the client goes, or somebody deletes the queue."""
    node = make_node()
    c, other = AmqpClient(node), AmqpClient(node)
    for each in (c, other):
        each.open()
    assert c.say(1, "queue.declare", "q", False, True, False, False, False, (), syncs=False) == []
    if what == "lost":
        node.connection_lost(c.end, NOW)
    elif what == "closed":
        c.say(0, "connection.close", 200, "", 0, 0, syncs=False)
    else:
        other.say(1, "queue.delete", "q", False, False, False, syncs=False)
    other.hear()
    assert other.declare("r").values == ("r", 0, 0)

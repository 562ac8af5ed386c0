"""Commits: everything in them counts, or nothing, whatever they consist of; large ones leave others their turns."""

from __future__ import annotations

from typing import Any

import pytest

from assay.reference_broker.amqp091.connection import AmqpConnection
from assay.reference_broker.config import BrokerConfig, QueuesConfig, TransactionsConfig
from assay.reference_broker.core import broker as core_broker
from assay.reference_broker.queues import PublishOptions, QueueAddress, QueueError, QueueErrorCode
from assay.reference_broker.queues.messages.publish_options import TransactionKey
from assay.reference_broker.queues.transactions.producer_names import ProducerIdentity
from assay.reference_broker.routing.message import Message
from tests.support.amqp_client import NOW, AmqpClient, Said, make_node, table


def _client(**config: Any) -> AmqpClient:
    found = AmqpClient(make_node(**config))
    found.open()
    found.say(1, "tx.select")
    found.open(2)
    return found


def _names(said: list[Said]) -> list[str]:
    return [each.name for each in said]


def _all(c: AmqpClient, queue: str) -> list[bytes]:
    found = []
    while (got := c.get(queue, channel=2, no_ack=True)).name == "basic.get-ok":
        found.append(got.body)
    return found


def _closed(said: list[Said], code: int) -> None:
    assert _names(said)[-1:] == ["channel.close"], said
    assert said[-1].values[0] == code


def test_a_queue_that_refuses_undoes_the_whole_commit() -> None:
    """Its other messages were stored all the same, and what it acknowledged was gone."""
    c = _client()
    c.declare("free")
    c.declare("full", arguments=table(x_max_length=1, x_overflow="reject-publish"))
    for queue in ("free", "full"):
        c.publish(queue, b"old", channel=2)
    tag = c.get("free").values[0]
    c.say(1, "basic.ack", tag, False)
    c.publish("free", b"new")
    c.publish("full", b"new")
    _closed(c.say(1, "tx.commit"), 406)
    assert _all(c, "free") == [b"old"]
    assert _all(c, "full") == [b"old"]


def test_it_is_answered_once_all_of_it_is_durable() -> None:
    c = _client()
    for queue in ("q", "r"):
        c.declare(queue)
        c.publish(queue, b"x")
    assert c.say(1, "tx.commit", syncs=False) == []
    assert _names(c.hear()) == ["tx.commit-ok"]
    assert (_all(c, "q"), _all(c, "r")) == ([b"x"], [b"x"])


def test_commits_that_come_at_once_are_done_one_after_the_other() -> None:
    """Nothing limits how many connections commit at the same time, but for what each of them may keep."""
    node = make_node(queues=QueuesConfig(transactions=TransactionsConfig(max_open=2)))
    clients = []
    for number in range(5):
        c = AmqpClient(node)
        c.open()
        c.say(1, "tx.select")
        c.declare(f"q{number}")
        for body in (b"1", b"2"):
            c.publish(f"q{number}", body)
        assert c.say(1, "tx.commit", syncs=False) == []
        clients.append(c)
    assert [_names(c.hear()) for c in clients] == [["tx.commit-ok"]] * 5
    assert [c.get(f"q{number}").body for number, c in enumerate(clients)] == [b"1"] * 5


def test_rejected_messages_of_a_commit_go_to_their_exchange_for_dead_letters() -> None:
    c = _client()
    c.declare("letters")
    c.declare("q", arguments=table(x_dead_letter_exchange="", x_dead_letter_routing_key="letters"))
    for body in (b"bad", b"again", b"done"):
        c.publish("q", body, channel=2)
    tags = [c.get("q").values[0] for _ in range(3)]
    c.say(1, "basic.reject", tags[0], False)
    c.say(1, "basic.nack", tags[1], False, True)
    c.say(1, "basic.ack", tags[2], False)
    assert c.get("letters", channel=2).name == "basic.get-empty"
    assert _names(c.say(1, "tx.commit")) == ["tx.commit-ok"]
    assert _all(c, "letters") == [b"bad"]
    got = c.get("q", channel=2)
    assert (got.body, got.values[1]) == (b"again", True)
    assert c.get("q", channel=2).name == "basic.get-empty"


def test_what_nobody_gets_comes_back_at_the_commit() -> None:
    """As RabbitMQ does it: nothing that is rolled back comes back."""
    c = _client()
    c.declare("q")
    assert c.publish("nowhere", b"lost", mandatory=True) == []
    assert _names(c.say(1, "tx.rollback")) == ["tx.rollback-ok"]
    c.publish("nowhere", b"back", mandatory=True)
    c.publish("nowhere", b"gone")
    c.publish("q", b"kept")
    said = c.say(1, "tx.commit")
    assert _names(said) == ["basic.return", "tx.commit-ok"]
    assert said[0].body == b"back"
    assert _names(c.say(1, "tx.commit")) == ["tx.commit-ok"], "the next one begins empty"


def test_a_queue_that_was_deleted_before_the_commit_gets_nothing_and_is_not_made_anew() -> None:
    c = _client()
    for queue in ("q", "r"):
        c.declare(queue)
        c.publish(queue, b"old", channel=2)
    tag = c.get("q").values[0]
    c.say(1, "basic.ack", tag, False)
    c.publish("q", b"new")
    c.publish("r", b"new")
    c.say(2, "queue.delete", "q", False, False, False)
    assert _names(c.say(1, "tx.commit")) == ["tx.commit-ok"]
    assert _all(c, "r") == [b"old", b"new"]
    _closed(c.say(2, "queue.declare", "q", True, False, False, False, False, ()), 404)


@pytest.mark.parametrize("how", ["deleted", "its connection ends"])
def test_a_queue_that_goes_during_a_commit_does_not_keep_the_others_from_it(how: str) -> None:
    """Found by the fuzzer: an exclusive queue could not be deleted, and the exception ended the turn of everybody."""
    c = _client()
    other = AmqpClient(c.node)
    other.open(2)
    c.declare("q", exclusive=how != "deleted")
    other.declare("r", channel=2)
    # The first one waits for its number.
    for body in (b"1", b"2"):
        c.publish("r", body)
    assert _names(c.say(1, "tx.commit")) == ["tx.commit-ok"]
    for body in (b"taken", b"left"):
        c.publish("q", body, channel=2)
    tag = c.get("q").values[0]
    c.say(1, "basic.ack", tag, False)
    c.publish("q", b"new")
    c.publish("r", b"new")
    assert c.say(1, "tx.commit", syncs=False) == []
    if how == "deleted":
        other.say(2, "queue.delete", "q", False, False, False, syncs=False)
        assert _names(c.hear()) == ["tx.commit-ok"]
    else:
        c.node.connection_lost(c.end, NOW)
    assert other.hear() in ([], [Said(2, "queue.delete-ok", (2,))])
    assert _all(other, "r") == [b"1", b"2", b"new"]
    assert c.node.engine.transactions.list() == []
    _closed(other.say(2, "queue.declare", "q", True, False, False, False, False, ()), 404)


def test_a_transaction_over_mqtt_does_not_keep_a_queue_of_amqp() -> None:
    c = _client()
    c.declare("q", exclusive=True)
    transactions = c.node.engine.transactions
    found: list[Any] = []
    transactions.init_producer("app", NOW, lambda _error, identity: found.append(identity))
    c.hear()
    transactions.begin(*found[0], NOW, lambda _error, name: found.append(name))
    c.hear()
    options = PublishOptions(producer_id=found[0].producer_id, producer_epoch=0, transaction_id=found[1])
    c.node.engine.publish(QueueAddress(queue="q"), Message(topic="", payload=b"x"), NOW, None, None, options)
    c.node.connection_lost(c.end, NOW)
    c.hear()
    assert not c.node.engine.exists("q")
    with pytest.raises(QueueError):
        transactions.commit(*found[0], found[1], NOW, lambda _error: None)


def test_a_commit_of_requeues_alone() -> None:
    c = _client()
    c.declare("q")
    for body in (b"1", b"2"):
        c.publish("q", body, channel=2)
    tags = [c.get("q").values[0] for _ in range(2)]
    for tag in tags:
        c.say(1, "basic.nack", tag, False, True)
    assert _names(c.say(1, "tx.commit")) == ["tx.commit-ok"]
    assert _all(c, "q") == [b"1", b"2"]


@pytest.mark.parametrize("parts", ["messages", "acknowledgements"])
def test_a_large_commit_takes_as_many_turns_as_it_needs(parts: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("assay.reference_broker.amqp091.transactions.MAX_WORK", 50)
    c = _client()
    c.declare("q")
    c.declare("r")
    if parts == "messages":
        for number in range(200):
            c.publish("q", b"%d" % number)
    else:
        for number in range(200):
            c.publish("q", b"%d" % number, channel=2)
        tags = [c.get("q").values[0] for _ in range(200)]
        c.say(1, "basic.ack", tags[-1], True)
    c.publish("r", b"x")
    steps = []
    name = "publish" if parts == "messages" else "hold_delivery"
    original = getattr(type(c.node.engine), name)

    def counted(self: Any, *values: Any, **named: Any) -> Any:
        steps[-1] += 1
        return original(self, *values, **named)

    monkeypatch.setattr(type(c.node.engine), name, counted)
    steps.append(0)
    c.send_raw(b"\x01\x00\x01\x00\x00\x00\x04\x00\x5a\x00\x14\xce")
    other = AmqpClient(c.node, connected=False)
    for _ in range(20):
        c.node.tick(NOW)
        c.node.take_dirty(NOW)
        for job in c.node.take_jobs(NOW):
            job.run()
            c.node.job_done(job, None, NOW)
        steps.append(0)
    assert max(steps) <= 50 * core_broker.MAX_SLICES
    assert sum(steps) >= 200
    other.connect()
    assert _names(c.hear()) == ["tx.commit-ok"]
    assert len(_all(c, "q")) == (200 if parts == "messages" else 0)


def test_a_channel_that_closes_in_the_middle_of_a_large_commit_takes_all_of_it_along(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("assay.reference_broker.amqp091.transactions.MAX_WORK", 10)
    c = _client()
    c.declare("q")
    for number in range(100):
        c.publish("q", b"%d" % number)
    assert c.say(1, "tx.commit", syncs=False) == []
    c.node.connection_lost(c.end, NOW)
    watcher = AmqpClient(c.node)
    watcher.open(2)
    assert _all(watcher, "q") == []
    assert c.node.engine.transactions.list() == []


@pytest.mark.parametrize("what", ["messages", "bytes", "acknowledgements"])
def test_what_open_transactions_of_a_connection_hold_is_bounded(what: str) -> None:
    limits = TransactionsConfig(max_bytes=10_000) if what == "bytes" else TransactionsConfig(max_messages=4)
    c = _client(queues=QueuesConfig(transactions=limits))
    c.say(2, "tx.select")
    c.declare("q")
    if what == "acknowledgements":
        c.open(3)
        for _ in range(5):
            c.publish("q", b"x", channel=3)
        tags = [c.get("q").values[0] for _ in range(5)]
        c.say(1, "basic.ack", tags[3], True)
        _closed(c.say(1, "basic.ack", tags[4], False), 406)
    else:
        size = 3_000 if what == "bytes" else 1
        c.publish("q", bytes(size))
        c.publish("q", bytes(size), channel=2)
        said = [part for _ in range(3) for part in c.publish("q", bytes(size), channel=2)]
        _closed(said, 406)
        assert c.end.transacted_count == 1, "what the closed channel kept is let go of"
        assert _names(c.say(1, "tx.commit")) == ["tx.commit-ok"]
        c.publish("q", bytes(size))
        assert _names(c.say(1, "tx.rollback")) == ["tx.rollback-ok"]
    assert isinstance(c.end, AmqpConnection)
    assert (c.end.transacted_count, c.end.transacted_bytes) == (0, 0)


def test_no_client_can_put_anything_into_a_transaction_of_the_broker() -> None:
    node = make_node(queues=QueuesConfig())
    keys: list[TransactionKey] = []
    node.engine.transactions.begin_alone(NOW, lambda _error, key: keys.append(key))
    for job in node.take_jobs(NOW):
        job.run()
        node.job_done(job, None, NOW)
    [key] = keys
    for owner in ("", "guest", "x"):
        with pytest.raises(QueueError) as caught:
            node.engine.transactions.check_owner(str(key.producer_id), owner)
        assert caught.value.code is QueueErrorCode.NOT_ALLOWED
    assert isinstance(ProducerIdentity(key.producer_id, 0), tuple)


def test_one_thing_alone_needs_no_transaction_and_is_refused_alike() -> None:
    c = _client(queues=BrokerConfig().queues)
    c.declare("full", arguments=table(x_max_length=1, x_overflow="reject-publish"))
    c.publish("full", b"1")
    assert _names(c.say(1, "tx.commit")) == ["tx.commit-ok"]
    assert c.node.engine.transactions.memory.found is None
    c.publish("full", b"2")
    _closed(c.say(1, "tx.commit"), 406)

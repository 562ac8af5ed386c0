"""What the tests of others found."""

from __future__ import annotations

from assay.reference_broker.amqp091.wire.content import BasicProperties
from assay.reference_broker.routing.properties import Kind, Typed
from tests.support.amqp_client import NOW, AmqpClient, make_node, table, turn


def client(node: object = None) -> AmqpClient:
    c = AmqpClient(node or make_node())  # type: ignore[arg-type]
    c.open()
    return c


def test_a_reply_text_begins_with_the_name_of_its_code() -> None:
    """amqplib looks for NOT_FOUND, py-amqp for the whole text."""
    c = client()
    assert c.declare("nowhere", passive=True).values[:2] == (404, "NOT_FOUND - no queue 'nowhere' in vhost '/'")


def test_a_queue_may_be_declared_anew_at_once() -> None:
    """Java client, QueueSizeLimit: a connection ended, and the next one's declaration of the same queue was a 404."""
    node = make_node()
    c, other = client(node), client(node)
    c.declare("q", exclusive=True)
    c.say(0, "connection.close", 200, "", 0, 0, syncs=False)
    said = other.say(1, "queue.declare", "q", False, False, True, False, False, (), syncs=False)
    assert said == [], "its files are still to go"
    other.send_raw(b"")
    said = other.hear()
    assert [each.name for each in said] == ["queue.declare-ok"]
    c = client(node)
    c.say(1, "queue.delete", "q", False, False, False)


def test_what_waits_for_a_deletion_is_refused_with_its_method() -> None:
    node = make_node()
    c, other = client(node), client(node)
    c.declare("q", exclusive=True)
    c.say(0, "connection.close", 200, "", 0, 0, syncs=False)
    assert other.say(1, "queue.declare", "q", False, True, False, False, False, table(x_foo=1), syncs=False) == []
    (said,) = other.hear()
    assert (said.name, said.values[0], said.values[2:]) == ("channel.close", 406, (50, 10))


def test_a_commit_makes_room_for_consumers() -> None:
    """Java client, QosTests.permutations: a limit of the channel, and an acknowledgement in a transaction."""
    c = client()
    c.declare("q")
    c.say(1, "basic.qos", 0, 1, True)
    c.consume("q")
    c.publish("q", b"1")
    c.publish("q", b"2")
    c.say(1, "tx.select")
    c.say(1, "basic.ack", 1, False)
    assert [each.name for each in c.say(1, "tx.commit")] == ["tx.commit-ok", "basic.deliver"]


def test_a_limit_of_the_channel_is_shared_fairly() -> None:
    """Java client, QosTests.fairness: the first of three consumers got everything."""
    c = client()
    c.say(1, "basic.qos", 0, 1, True)
    for queue in ("a", "b", "c"):
        c.declare(queue)
        for _ in range(4):
            c.publish(queue, b"x")
    said = [each for queue in ("a", "b", "c") for each in c.consume(queue, queue)]
    tags = [each.values[0] for each in said if each.name == "basic.deliver"]
    for number in range(1, 12):
        tags += [each.values[0] for each in c.say(1, "basic.ack", number, False)]
    assert tags == ["a", "b", "c"] * 4


def test_a_time_to_live_begins_with_the_commit() -> None:
    """Java client, PerMessageTTL.transactionalPublishWithGet."""
    c = client()
    c.declare("q")
    c.say(1, "tx.select")
    c.publish("q", b"x", BasicProperties(expiration="1000"))
    c.now = NOW + 10
    c.say(1, "tx.commit")
    assert c.get("q").body == b"x"
    c.publish("q", b"y", BasicProperties(expiration="1000"))
    c.say(1, "tx.commit")
    c.now = NOW + 12
    turn(c.node, c.now)
    assert c.get("q").name == "basic.get-empty"


def test_a_dead_letter_tells_all_its_keys() -> None:
    """Java client, DeadLetterExchange.deadLetterNewRK: CC was left out."""
    c = client()
    c.declare("q", arguments=table(x_dead_letter_exchange="", x_dead_letter_routing_key="d"))
    c.declare("d")
    c.say(1, "queue.bind", "q", "amq.direct", "k", False, ())
    keys = Typed(Kind.LIST, (Typed(Kind.TEXT, "foo"),))
    c.publish("k", b"x", BasicProperties(headers=(("CC", keys),)), exchange="amq.direct")
    c.say(1, "basic.reject", c.get("q").values[0], False)
    properties = c.get("d").properties
    assert properties is not None
    (death,) = dict(properties.headers or ())["x-death"].value
    told = dict(zip([each.value for each in death.value[::2]], death.value[1::2], strict=True))
    assert [each.value for each in told["routing-keys"].value] == ["k", "foo"]


def test_what_was_got_counts_for_no_prefetch() -> None:
    """Java client, QosTests.permutations: the limit is that of consumers, and one in a transaction is held yet."""
    c = client()
    c.declare("q")
    for body in (b"1", b"2", b"3", b"4"):
        c.publish("q", body)
    c.say(1, "basic.qos", 0, 1, True)
    assert [each.name for each in c.consume("q")] == ["basic.consume-ok", "basic.deliver"]
    got = c.get("q")
    assert [each.body for each in c.say(1, "basic.ack", 1, False)] == [b"3"]
    c.say(1, "tx.select")
    c.say(1, "basic.ack", 3, False)
    c.publish("q", b"5")
    assert c.say(1, "tx.rollback")[0].name == "tx.rollback-ok"
    assert c.say(1, "basic.ack", got.values[0], False) == []
    assert [each.name for each in c.say(1, "tx.commit")] == ["tx.commit-ok"]


def test_what_a_commit_finds_no_queue_for_comes_back() -> None:
    """Java client, Routing.basicReturnTransactional: it could be routed when it was published."""
    c = client()
    c.declare("q")
    c.declare("r")
    c.say(1, "tx.select")
    c.publish("q", b"1", mandatory=True)
    c.publish("r", b"2", mandatory=True)
    c.say(1, "queue.delete", "q", False, False, False)
    said = c.say(1, "tx.commit")
    assert [(each.name, each.body) for each in said] == [("basic.return", b"1"), ("tx.commit-ok", b"")]
    c.publish("r", b"3", mandatory=True)
    c.say(1, "queue.delete", "r", False, False, False)
    assert [each.name for each in c.say(1, "tx.commit")] == ["basic.return", "tx.commit-ok"], "one alone, too"

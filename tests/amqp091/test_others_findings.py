"""What the tests of others found."""

from __future__ import annotations

import pytest

from assay.reference_broker.amqp091.wire.content import BasicProperties, encode_header
from assay.reference_broker.amqp091.wire.frames import FrameType, content_frames, frame
from assay.reference_broker.amqp091.wire.methods import BY_NAME, encode_method
from assay.reference_broker.routing.properties import Kind, Typed
from tests.support.amqp_client import FRAME_MAX, NOW, AmqpClient, Said, make_node, table, turn


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


def send(c: AmqpClient, name: str, *values: object, body: bytes | None = None, **properties: str | int) -> None:
    """A method, with its content perhaps, and no turn of the broker: what is sent next comes right behind."""
    content = b""
    if body is not None:
        header = encode_header(len(body), BasicProperties(**properties))  # type: ignore[arg-type]
        content = content_frames(1, header, body, FRAME_MAX)
    c.send_raw(frame(FrameType.METHOD, 1, encode_method(BY_NAME[name], *values)) + content)


def pipelined(c: AmqpClient, *bodies: bytes, queue: str = "q", **properties: str | int) -> list[tuple[str, bytes]]:
    """Publishes and a get right behind them."""
    for body in bodies:
        send(c, "basic.publish", "", queue, False, False, body=body, **properties)
    send(c, "basic.get", queue, True)
    return [(each.name, each.body) for each in c.hear()]


@pytest.mark.parametrize("durable", [True, False])
@pytest.mark.parametrize("where", ["of the queue", "of the message"])
def test_what_lives_for_no_time_is_for_who_waits(where: str, durable: bool) -> None:
    """Java client, zeroTTLDelivery of PerMessageTTL, PerQueueTTL and PerQueueVsPerMessageTTL."""
    c = client()
    c.declare("q", durable=durable, arguments=table(x_message_ttl=0) if where == "of the queue" else ())
    properties = {"expiration": "0"} if where == "of the message" else {}
    assert pipelined(c, b"1", **properties) == [("basic.get-empty", b"")]
    assert pipelined(c, b"1", b"2", **properties) == [("basic.get-empty", b"")]
    assert c.declare("q", passive=True).values[1] == 0
    said = c.consume("q")
    assert [each.name for each in said] == ["basic.consume-ok"], "it came before somebody waited"
    send(c, "basic.publish", "", "q", False, False, body=b"3", **properties)
    said = c.hear()
    assert [(each.name, each.body) for each in said] == [("basic.deliver", b"3")]
    c.now = NOW + 1
    c.say(1, "basic.reject", said[0].values[1], True)
    c.now = NOW + 2
    turn(c.node, c.now)
    assert c.hear() == [], "nobody waited when it came back"
    assert c.declare("q", passive=True).values[1:] == (0, 1)


def test_all_that_a_consumer_waits_for_comes_however_short_it_lives() -> None:
    """More than a turn has room for, beside a get."""
    c = client()
    other = client(c.node)
    c.declare("q")
    c.consume("q", no_ack=True)
    for number in range(3_000):
        send(other, "basic.publish", "", "q", False, False, body=b"%d" % number, expiration="0")
    send(other, "basic.get", "q", True)
    heard: list[Said] = []
    while said := c.hear():
        heard += said
    assert [each.body for each in heard] == [b"%d" % number for number in range(3_000)]
    assert [each.name for each in other.hear()] == ["basic.get-empty"]


@pytest.mark.parametrize("passed_s", [0.05, 0.2, 90.0])
def test_what_has_gone_behind_others_that_live_comes_to_nobody(passed_s: float) -> None:
    """A life (seed 1, 105): the queue counted one message less, and a later consumer got it all the same."""
    c = client()
    c.declare("q")
    for body, expiration in ((b"1", "100000000"), (b"2", "0"), (b"3", "200000000")):
        send(c, "basic.publish", "", "q", False, False, body=body, expiration=expiration)
    c.hear()
    c.now += passed_s
    turn(c.node, c.now)
    assert c.declare("q", passive=True).values[1] == 2
    c.now += 0.1
    turn(c.node, c.now)
    assert [each.body for each in c.consume("q") if each.body] == [b"1", b"3"]


def test_what_lives_for_no_time_becomes_a_dead_letter() -> None:
    c = client()
    c.declare("d")
    c.declare("q", arguments=table(x_message_ttl=0, x_dead_letter_exchange="", x_dead_letter_routing_key="d"))
    assert pipelined(c, b"1") == [("basic.get-empty", b"")]
    c.now = NOW + 1
    assert c.get("d").body == b"1"


@pytest.mark.parametrize("letters", [False, True])
@pytest.mark.parametrize("limit", [0, 1, 2, 3])
def test_a_get_makes_no_room(limit: int, letters: bool) -> None:
    """Java client, queueSize, queueSizeUnacked, requeue, requeueWithDlx of QueueSizeLimit."""
    c = client()
    c.declare("d")
    more = {"x_dead_letter_exchange": "", "x_dead_letter_routing_key": "d"} if letters else {}
    c.declare("q", durable=False, arguments=table(x_max_length=limit, **more))
    bodies = [b"%d" % number for number in range(limit + 1)]
    assert pipelined(c, *bodies) == [("basic.get-ok", b"1") if limit else ("basic.get-empty", b"")]
    c.say(1, "queue.purge", "q", False)
    c.say(1, "queue.purge", "d", False)
    # All that fits is held, as much again is ready, and what is held comes back.
    for number in range(limit):
        c.publish("q", b"%d" % number)
    tags = [c.get("q").values[0] for _ in range(limit)]
    for _ in range(limit):
        c.publish("q", b"again")
    if limit:
        send(c, "basic.nack", tags[-1], True, True)
    send(c, "basic.get", "q", True)
    (said,) = c.hear()
    if limit:
        assert (said.name, said.body, said.values[-1]) == ("basic.get-ok", b"again", limit - 1)
    else:
        assert said.name == "basic.get-empty"
    c.now = NOW + 1
    turn(c.node, c.now)
    assert c.declare("d", passive=True).values[1] == limit * letters


@pytest.mark.parametrize("letters", [False, True])
def test_a_limit_of_no_bytes(letters: bool) -> None:
    """Only who waits gets a message, be it of one byte; what is too large for a queue is dropped like the oldest."""
    c = client()
    c.declare("d")
    more = {"x_dead_letter_exchange": "", "x_dead_letter_routing_key": "d"} if letters else {}
    for limit, size in ((0, 1), (1, 2), (10, 11)):
        queue = f"q{limit}"
        c.declare(queue, arguments=table(x_max_length_bytes=limit, **more))
        assert pipelined(c, b"x" * size, queue=queue) == [("basic.get-empty", b"")]
        if limit:
            assert pipelined(c, b"x" * limit, queue=queue) == [("basic.get-ok", b"x" * limit)]
        c.consume(queue, queue)
        assert [each.body for each in c.publish(queue, b"x" * size)] == [b"x" * size]
        c.say(1, "basic.cancel", queue, False)
    c.now = NOW + 1
    turn(c.node, c.now)
    assert c.declare("d", passive=True).values[1] == 3 * letters

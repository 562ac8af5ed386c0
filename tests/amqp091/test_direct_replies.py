"""Direct replies: amq.rabbitmq.reply-to."""

from __future__ import annotations

import pytest

from assay.reference_broker.amqp091.wire.content import BasicProperties
from assay.reference_broker.routing.properties import Kind, Typed
from tests.support.amqp_client import AmqpClient, Said, make_node, table

REPLY_TO = "amq.rabbitmq.reply-to"


def pair() -> tuple[AmqpClient, AmqpClient]:
    node = make_node()
    asking, answering = AmqpClient(node), AmqpClient(node)
    for each in (asking, answering):
        each.open()
    answering.declare("q")
    return asking, answering


def name_at(asking: AmqpClient, answering: AmqpClient) -> str:
    """What a request carries."""
    asking.publish("q", b"question", BasicProperties(reply_to=REPLY_TO, correlation_id="7"))
    got = answering.get("q", no_ack=True)
    assert got.properties is not None
    assert got.properties.correlation_id == "7"
    name = got.properties.reply_to
    assert name is not None
    assert name.startswith(REPLY_TO + ".")
    return name


def closed(said: list[Said], code: int) -> None:
    assert (said[-1].name, said[-1].values[0]) == ("channel.close", code), said


@pytest.mark.parametrize("has_others", [False, True])
def test_a_reply_comes_to_the_channel_that_asked(has_others: bool) -> None:
    asking, answering = pair()
    assert asking.consume(REPLY_TO, "r", no_ack=True)[0].values == ("r",)
    name = name_at(asking, answering)
    others = table(colour="red") if has_others else ()
    headers = (("BCC", Typed(Kind.LIST, (Typed(Kind.TEXT, "q"),))), *others)
    properties = BasicProperties(correlation_id="7", content_type="text/plain", headers=headers)
    answering.publish(name, b"answer" * 50_000, properties)
    got = asking.only(asking.hear())
    assert got.values == ("r", 1, False, "", name)
    assert got.body == b"answer" * 50_000
    assert got.properties == BasicProperties(correlation_id="7", content_type="text/plain", headers=others or None)
    assert answering.get("q").body == b"answer" * 50_000, "other keys lead where they lead"


def test_it_is_told_whether_somebody_waits() -> None:
    asking, answering = pair()
    assert answering.declare(REPLY_TO, passive=True).values == (REPLY_TO, 0, 1)
    asking.consume(REPLY_TO, "r", no_ack=True)
    name = name_at(asking, answering)
    assert answering.declare(name, passive=True).values == (name, 0, 1)
    asking.say(1, "basic.cancel", "r", False)
    answering.publish(name, b"too late")
    assert asking.hear() == []
    closed([answering.declare(name, passive=True)], 404)


@pytest.mark.parametrize("how", ["cancel", "channel", "connection"])
def test_what_comes_too_late_is_gone(how: str) -> None:
    asking, answering = pair()
    asking.consume(REPLY_TO, "r", no_ack=True)
    name = name_at(asking, answering)
    if how == "cancel":
        asking.say(1, "basic.cancel", "r", False)
    elif how == "channel":
        asking.say(1, "channel.close", 200, "", 0, 0)
    else:
        asking.end.connection_lost(asking.now)
    answering.say(1, "confirm.select", False)
    said = answering.publish(name, b"x", mandatory=True)
    assert [each.name for each in said] == ["basic.return", "basic.ack"]
    assert answering.end.service.replies._waiting == {}


def test_a_reply_is_no_routed_message() -> None:
    """RabbitMQ: a mandatory reply comes back, and comes to who asked all the same."""
    asking, answering = pair()
    asking.consume(REPLY_TO, no_ack=True)
    name = name_at(asking, answering)
    assert answering.publish(name, b"x", mandatory=True)[0].name == "basic.return"
    assert asking.only(asking.hear()).body == b"x"


def test_what_is_refused() -> None:
    asking, _ = pair()
    closed(asking.consume(REPLY_TO), 406)
    asking.say(1, "channel.close-ok")
    asking.open(2)
    closed(asking.publish("q", b"x", BasicProperties(reply_to=REPLY_TO), channel=2), 406)
    asking.say(2, "channel.close-ok")
    asking.open(3)
    asking.consume(REPLY_TO, "a", channel=3, no_ack=True)
    closed(asking.consume(REPLY_TO, "b", channel=3, no_ack=True), 406)
    asking.say(3, "channel.close-ok")
    asking.open(4)
    asking.consume(REPLY_TO, "a", channel=4, no_ack=True)
    asking.declare("own", channel=4)
    said = asking.consume("own", "a", channel=4)
    assert (said[-1].name, said[-1].values[0]) == ("connection.close", 530)
    assert asking.end.service.replies._waiting == {}


def test_other_virtual_hosts_do_not_reply() -> None:
    asking, answering = pair()
    asking.consume(REPLY_TO, no_ack=True)
    name = name_at(asking, answering)
    replies = asking.end.service.replies
    assert replies.exists("/", name)
    assert not replies.exists("other", name)
    replies.deliver("other", name, BasicProperties(), b"x")
    assert asking.hear() == []


def test_a_client_that_does_not_read_loses_replies_and_no_memory() -> None:
    asking, answering = pair()
    asking.consume(REPLY_TO, no_ack=True)
    name = name_at(asking, answering)
    body = bytes(100_000)
    for _ in range(400):
        answering.publish(name, body)
    end = asking.end
    assert end.out_bytes <= end.qos0_room_bytes + 2 * len(body)
    heard = asking.hear()
    assert 0 < len(heard) < 400
    answering.publish(name, b"read again")
    assert asking.only(asking.hear()).body == b"read again"

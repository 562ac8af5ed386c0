"""What a queue says of itself: how many messages are ready, at the same cost however many are not settled."""

from __future__ import annotations

import pytest

from tests.mqtt.turn_steps import Steps
from tests.support.amqp_client import AmqpClient, make_node


def client() -> AmqpClient:
    found = AmqpClient(make_node())
    found.open()
    return found


def test_the_count_follows_what_becomes_of_messages() -> None:
    c = client()
    c.declare("q")
    for number in range(5):
        c.publish("q", b"%d" % number)

    def ready() -> int:
        return int(c.declare("q", passive=True).values[1])

    assert ready() == 5
    first = c.get("q")
    assert (first.values[4], ready()) == (4, 4)
    c.say(1, "basic.nack", first.values[0], False, True)
    assert ready() == 5
    held = [c.get("q").values[0] for _ in range(3)]
    c.say(1, "basic.ack", held[0], False)
    c.say(1, "basic.reject", held[1], False)
    assert ready() == 2
    c.say(1, "basic.recover", True)
    assert ready() == 3
    assert c.say(1, "queue.purge", "q", False)[0].values == (3,)
    assert ready() == 0


@pytest.mark.parametrize("held", [True, False])
def test_declare_and_get_cost_the_same_however_much_is_unsettled(held: bool) -> None:
    def lines(count: int) -> int:
        c = client()
        c.declare("q")
        for _ in range(count):
            c.publish("q", b"x")
        if held:
            c.consume("q")
            c.say(1, "channel.flow", False)
        c.publish("q", b"y")
        steps = Steps()
        spent = steps.count(lambda: c.declare("q", passive=True))
        if not held:
            spent += steps.count(lambda: c.get("q"))
        return spent

    lines(10)  # what is remembered from the first time on
    assert lines(400) <= lines(50) + 20

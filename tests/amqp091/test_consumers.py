"""Consumers with arguments: priorities, and what is not supported."""

from __future__ import annotations

from typing import Any

import pytest

from assay.reference_broker.amqp091.wire.fields import Table
from assay.reference_broker.routing.properties import Kind, Typed
from tests.support.amqp_client import AmqpClient, Said, make_node, table


def bodies(said: list[Said]) -> list[bytes]:
    return [each.body for each in said if each.name == "basic.deliver"]


def clients(count: int) -> list[AmqpClient]:
    node = make_node()
    found = [AmqpClient(node) for _ in range(count)]
    for each in found:
        each.open()
    return found


@pytest.mark.parametrize("arguments", [(), table(x_max_priority=3)])
def test_higher_consumers_get_everything_while_they_have_room(arguments: Table) -> None:
    low, high, writer = clients(3)
    writer.declare("q", arguments=arguments)
    for each, priority in ((low, -1), (high, 10)):
        each.say(1, "basic.qos", 0, 2, False)
        each.consume("q", arguments=table(x_priority=priority))
    for number in range(5):
        writer.publish("q", b"%d" % number)
    assert (bodies(high.hear()), bodies(low.hear())) == ([b"0", b"1"], [b"2", b"3"])
    assert bodies(high.say(1, "basic.ack", 1, False)) == [b"4"]
    assert bodies(low.say(1, "basic.ack", 2, True)) == []
    for number in range(5, 8):
        writer.publish("q", b"%d" % number)
    assert (bodies(high.hear()), bodies(low.hear())) == ([], [b"5", b"6"])
    assert bodies(high.say(1, "basic.ack", 3, True)) == [b"7"]


def test_those_of_one_priority_share() -> None:
    first, second, low, writer = clients(4)
    writer.declare("q")
    low.consume("q")
    for each in (first, second):
        each.consume("q", arguments=table(x_priority=5))
    for number in range(4):
        writer.publish("q", b"%d" % number)
    assert (bodies(first.hear()), bodies(second.hear())) == ([b"0", b"2"], [b"1", b"3"])
    assert bodies(low.hear()) == []


@pytest.mark.parametrize(
    ("name", "value"),
    [("x-priority", Typed(Kind.TEXT, "high")), ("x-priority", Typed(Kind.F64, 1.0)), ("x-unknown", Typed(Kind.I32, 1))],
)
def test_what_is_not_supported_is_refused(name: str, value: Any) -> None:
    [c] = clients(1)
    c.declare("q")
    said = c.consume("q", arguments=((name, value),))
    assert (said[-1].name, said[-1].values[0]) == ("channel.close", 406)


def test_what_is_for_people_is_taken() -> None:
    [c] = clients(1)
    c.declare("q")
    assert c.consume("q", arguments=table(note="mine"))[0].name == "basic.consume-ok"

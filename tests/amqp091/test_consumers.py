"""Consumers with arguments: priorities, and what is not supported."""

from __future__ import annotations

import random
from itertools import chain
from typing import Any

import pytest

from assay.reference_broker.amqp091.consuming import Consuming
from assay.reference_broker.amqp091.wire.content import BasicProperties, encode_header
from assay.reference_broker.amqp091.wire.fields import Table
from assay.reference_broker.amqp091.wire.frames import FrameType, content_frames, frame
from assay.reference_broker.amqp091.wire.methods import BY_NAME, encode_method
from assay.reference_broker.queues.delivery.dispatcher import Dispatcher
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


def _shares(seed: int, arguments: Table) -> list[list[int]]:
    """What each of several consumers got of messages that come in bursts and are acknowledged now and then."""
    rng = random.Random(seed)
    *readers, writer = clients(rng.randint(3, 5))
    writer.declare("q", arguments=arguments)
    got: list[list[int]] = [[] for _ in readers]
    tags: list[list[int]] = [[] for _ in readers]
    no_ack = rng.random() < 0.2
    for each in readers:
        each.say(1, "basic.qos", 0, rng.choice((0, 10, 60)), False)
        each.consume("q", no_ack=no_ack, arguments=table(x_priority=rng.choice((0, 0, 0, 1))))
    sent = 0
    for _ in range(8):
        burst = rng.choice((1, 5, 40, 150))
        for number in range(sent, sent + burst):
            content = encode_header(3, BasicProperties(priority=rng.choice((0, 0, 0, 1))))
            method = encode_method(BY_NAME["basic.publish"], "", "q", False, False)
            writer.send_raw(frame(FrameType.METHOD, 1, method) + content_frames(1, content, b"%03d" % number, 4_096))
        sent += burst
        writer.hear()
        for at, each in enumerate(readers):
            for said in each.hear():
                got[at].append(int(said.body))
                tags[at].append(said.values[1])
        for at, each in enumerate(readers):
            some = 0 if no_ack else rng.randint(0, 30)
            settled, tags[at] = tags[at][:some], tags[at][some:]
            acks = [frame(FrameType.METHOD, 1, encode_method(BY_NAME["basic.ack"], tag, False)) for tag in settled]
            each.send_raw(b"".join(acks))
    assert len({number for share in got for number in share}) == sum(map(len, got))
    return got


@pytest.mark.parametrize("arguments", [(), table(x_max_priority=1)])
@pytest.mark.parametrize("seed", range(6))
def test_runs_to_several_consumers_leave_each_as_much_as_message_by_message(
    seed: int, arguments: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And all of one priority in its order."""
    lengths: list[int] = []
    taken = Consuming.deliver_run
    monkeypatch.setattr(Consuming, "deliver_run", lambda *args: lengths.append(taken(*args)) or lengths[-1])
    together = _shares(seed, arguments)
    assert max(lengths) > 1, seed
    monkeypatch.setattr(Dispatcher, "_serves_alike", False)
    alone = _shares(seed, arguments)
    assert list(map(len, together)) == list(map(len, alone)), seed
    assert sorted(chain.from_iterable(together)) == sorted(chain.from_iterable(alone)), seed
    if not arguments:
        assert all(share == sorted(share) for share in together), seed


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

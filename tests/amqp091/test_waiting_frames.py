"""Frames that wait for the answer to another: handled in order, and so many a turn."""

from __future__ import annotations

from typing import Any

import pytest

from assay.reference_broker.amqp091.channel import Channel
from assay.reference_broker.amqp091.connection import AmqpConnection
from assay.reference_broker.amqp091.wire.frames import FrameType, frame
from assay.reference_broker.amqp091.wire.methods import BY_NAME, encode_method
from assay.reference_broker.core.broker import MAX_WORK
from assay.reference_broker.node import BrokerNode
from tests.support.amqp_client import AmqpClient, make_node


def client() -> AmqpClient:
    c = AmqpClient(make_node())
    c.open()
    return c


def test_a_turn_handles_so_many_of_the_frames_that_waited_for_an_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    c = client()
    c.declare("q")
    c.publish("q", b"x")
    handled: list[int] = []
    handle = Channel.handle_frame

    def counted(self: Channel, *frame: Any) -> None:
        handled[-1] += 1
        handle(self, *frame)

    take_dirty = BrokerNode.take_dirty

    def turn(self: BrokerNode, now: float) -> Any:
        handled.append(0)
        return take_dirty(self, now)

    monkeypatch.setattr(Channel, "handle_frame", counted)
    monkeypatch.setattr(BrokerNode, "take_dirty", turn)
    count = 3 * MAX_WORK
    requests = [("queue.purge", ("q", False)), *[("basic.qos", (0, 1, False))] * count]
    data = b"".join(frame(FrameType.METHOD, 1, encode_method(BY_NAME[name], *values)) for name, values in requests)
    handled.append(0)
    c.send_raw(data)
    said = sum(len(c.hear()) for _ in range(20))
    assert sum(handled) == said == count + 1
    assert max(handled) <= 2 * MAX_WORK, "those that waited, and what is read in the same turn"


@pytest.mark.parametrize("opens", ["never", "once", "often"])
def test_a_turn_handles_so_many_of_the_frames_that_a_closed_channel_left(
    monkeypatch: pytest.MonkeyPatch, opens: str
) -> None:
    """They wait for the answer to a purge; the first closes the channel. What comes later does not overtake them."""
    c = client()
    c.declare("q")
    c.publish("q", b"x")
    handled: list[int] = [0]
    handle = AmqpConnection.on_frame
    take_dirty = BrokerNode.take_dirty

    def counted(self: AmqpConnection, *frame: Any) -> None:
        handled[-1] += 1
        handle(self, *frame)

    late = [frame(FrameType.METHOD, 1, encode_method(BY_NAME["basic.get"], "q", True))]

    def turn(self: BrokerNode, now: float) -> Any:
        handled.append(0)
        if late and c.end.behind:
            c.send_raw(late.pop())
        return take_dirty(self, now)

    monkeypatch.setattr(AmqpConnection, "on_frame", counted)
    monkeypatch.setattr(BrokerNode, "take_dirty", turn)
    count = 3 * MAX_WORK
    close, again = ("channel.close", (200, "", 0, 0)), ("channel.open", ())
    left = {
        "never": [("channel.close-ok", ())] * count,
        "once": [again, *[("basic.qos", (0, 1, False))] * count],
        "often": [again, close] * (count // 2),
    }[opens]
    ends = [again] if opens != "once" else []
    requests = [("queue.purge", ("q", False)), close, *left, *ends]
    c.send_raw(b"".join(frame(FrameType.METHOD, 1, encode_method(BY_NAME[name], *values)) for name, values in requests))
    said = [each.name for _ in range(20) for each in c.hear()]
    assert not late
    assert sum(handled) >= count
    assert max(handled) <= 2 * MAX_WORK, "those that were left, and what is read in the same turn"
    answers = {"channel.close": "channel.close-ok", "channel.open": "channel.open-ok", "basic.qos": "basic.qos-ok"}
    expected = ["queue.purge-ok", *(answers[name] for name, _ in requests[1:] if name in answers), "basic.get-empty"]
    assert said == expected

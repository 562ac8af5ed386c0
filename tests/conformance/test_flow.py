"""What a case saw of its messages is bounded by what it published, whatever a broker sends."""

from __future__ import annotations

from assay.conformance.flow import Flow
from assay.conformance.rules import Rule
from assay.conformance.wire import Publish, Subscribe, Subscription


def test_invented_messages_are_told_once_and_take_no_memory() -> None:
    flow = Flow()
    flow.subscribes("c", Subscribe(packet_id=1, subscriptions=(Subscription(filter="t", qos=0),)))
    flow.publishes(Publish(topic="t", payload=b"real"), "t")
    flow.arrives("c", "c.1", "c", Publish(topic="t", payload=b"real"))
    known = [len(held) for held in vars(flow).values() if isinstance(held, dict)]
    for number in range(1_000):
        flow.arrives("c", "c.1", "c", Publish(topic="t", payload=b"invented %d" % number))
    assert [len(held) for held in vars(flow).values() if isinstance(held, dict)] == known
    (reason,) = flow.reasons()
    assert reason.rule is Rule.CONTENT
    assert "invented 0" in reason.text


def test_what_never_came_and_what_came_again_are_reasons() -> None:
    flow = Flow()
    flow.subscribes("c", Subscribe(packet_id=1, subscriptions=(Subscription(filter="t", qos=0),)))
    for payload in (b"twice", b"never"):
        flow.publishes(Publish(topic="t", payload=payload), "t")
    for _ in range(2):
        flow.arrives("c", "c.1", "c", Publish(topic="t", payload=b"twice"))
    assert [reason.rule for reason in flow.reasons()] == [Rule.COPIES, Rule.DELIVERY]

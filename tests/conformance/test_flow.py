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


def _line(*arrivals: tuple[bytes, int]) -> Flow:
    """A client with one subscription gets these of the messages 1, 2 and 3, at so many QoS."""
    flow = Flow()
    flow.subscribes("c", Subscribe(packet_id=1, subscriptions=(Subscription(filter="t", qos=2),)))
    for payload, qos in ((b"1", 1), (b"2", 1), (b"3", 0)):
        flow.publishes(Publish(topic="t", payload=payload, qos=qos), "t", publisher="p")
    for payload, qos in arrivals:
        flow.arrives("c", "c.1", "c", Publish(topic="t", payload=payload, qos=qos))
    return flow


def test_a_message_behind_a_later_one_of_its_topic_and_qos_is_out_of_order() -> None:
    early = _line((b"2", 1))
    assert early.misses_an_earlier_one()
    assert not early.disorder
    swapped = _line((b"2", 1), (b"1", 1))
    assert "came behind one that was published later" in swapped.disorder
    assert swapped.reasons()[0].rule is Rule.ORDER
    assert not swapped.misses_an_earlier_one()


def test_what_no_clause_orders_is_in_order() -> None:
    assert not _line((b"3", 0), (b"1", 1), (b"2", 1)).disorder, "QoS 0 may overtake"
    assert not _line((b"3", 0)).misses_an_earlier_one()
    again = _line((b"1", 1), (b"2", 1))
    again.arrives("c", "c.1", "c", Publish(topic="t", payload=b"1", qos=1, dup=True))
    assert not again.disorder, "sent again"
    two = _line()
    two.publishes(Publish(topic="t", payload=b"4", qos=1), "t", publisher="another")
    for payload in (b"4", b"1"):
        two.arrives("c", "c.1", "c", Publish(topic="t", payload=payload, qos=1))
    assert not two.disorder, "of two clients"
    overlapping = _line((b"1", 1))
    overlapping.subscribes("c", Subscribe(packet_id=2, subscriptions=(Subscription(filter="#", qos=2),)))
    for payload in (b"2", b"1"):
        overlapping.arrives("c", "c.1", "c", Publish(topic="t", payload=payload, qos=1))
    assert not overlapping.disorder, "a copy for each of two subscriptions"

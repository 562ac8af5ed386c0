"""What lives on other brokers taught the model: each accused a broker that was right, or of a rule that it kept."""

from __future__ import annotations

import pytest

from conformance.explore.rules import Rule, ViolationError
from conformance.wire import Disconnect, Pingreq, Pingresp, Puback, Publish, Pubrec, Will
from tests.conformance.explore.test_referee import Scene, lasting, s
from tests.conformance.explore.test_referee import scene as scene


def test_publishes_are_acknowledged_once_deliveries_are(scene: Scene) -> None:
    """4.3.2, 4.3.3: an acknowledgement has no deadline, and a server may be full of what nobody takes."""
    scene.subscribe(1, s("t/a", 1))
    scene.publish(0, "t/a", b"1", qos=1)
    scene.receive(1, "t/a", b"1", qos=1, ack=False)
    scene.put(0, Publish(topic="t/b", payload=b"2", qos=1, packet_id=90))
    scene.put(0, Publish(topic="t/b", payload=b"3", qos=2, packet_id=91))
    assert scene.wanted is None
    scene.put(0, Pingreq())
    assert scene.wanted is Rule.PINGRESP, "other answers are due all the same"
    scene.get(0, Pingresp())
    scene.put(1, Puback(packet_id=1))
    assert scene.wanted is Rule.PUBACK
    scene.get(0, Puback(packet_id=90))
    assert scene.wanted is Rule.PUBREC


def test_a_will_of_a_stop_may_have_been_sent_to_connections_that_ended_with_it(scene: Scene) -> None:
    """A server that is asked to end publishes wills while it still has connections, to clients that see no more."""
    lasting(scene, 2)
    scene.subscribe(2, s("t/w", 1))
    scene.connect(3, will=Will(topic="t/w", payload=b"w", qos=1))
    scene.referee.restarted(scene.now)
    lasting(scene, 2, present=True)
    scene.receive(2, "t/w", b"w", qos=1, dup=True)


def test_two_copies_of_an_empty_message_are_not_taken_for_an_older_one() -> None:
    scene = Scene()
    scene.connect(0)
    scene.subscribe(0, s("#", 1))
    scene.publish(0, "t/a", b"", qos=2)
    scene.receive(0, "t/a", b"", qos=1, packet_id=1)
    scene.subscribe(0, s("t/+", 1))
    scene.publish(0, "t/a", b"", qos=2)
    scene.receive(0, "t/a", b"", qos=1, packet_id=2)
    scene.receive(0, "t/a", b"", qos=1, packet_id=3)
    scene.referee.audit()


def test_a_server_may_say_pubrec_again_to_a_client_that_is_back(scene: Scene) -> None:
    lasting(scene, 2)
    scene.put(2, Publish(topic="t/a", payload=b"m", qos=2, packet_id=1))
    scene.lose(2)
    lasting(scene, 2, present=True)
    scene.get(2, Pubrec(packet_id=1))
    with pytest.raises(ViolationError) as seen:
        scene.get(2, Pubrec(packet_id=2))
    assert seen.value.rule is Rule.UNASKED
    scene.put(2, Publish(topic="t/a", payload=b"m", qos=2, packet_id=1, dup=True))
    assert scene.wanted is Rule.PUBREC


def test_a_retained_message_without_its_identifier_is_not_booked_on_a_share(scene: Scene) -> None:
    scene.publish(0, "t/a", retain=True)
    scene.subscribe(1, "$share/g/t/a")
    scene.subscribe(1, "t/a", identifier=2)
    scene.objects(Rule.IDENTIFIERS, 1, "t/a", retain=True)


@pytest.mark.parametrize("share", ["", "$share/g/"])
def test_a_message_that_nobody_answers_for_may_be_handed_on_by_a_later_subscription(scene: Scene, share: str) -> None:
    """HiveMQ answers PINGREQ before it has handed on what came before, at QoS 0."""
    scene.connect(2)
    scene.publish(0, "t/a")
    scene.subscribe(1, f"{share}t/a")
    scene.receive(1, "t/a")
    scene.objects(Rule.SHARE_TWICE if share else Rule.DUPLICATE, 1, "t/a")
    scene.subscribe(2, "t/a")
    scene.objects(Rule.TOO_EARLY, 2, "t/a")  # it has been handed on


def test_a_message_is_under_way_for_a_few_seconds_at_most(scene: Scene) -> None:
    scene.publish(0, "t/a")
    scene.move(10)
    scene.subscribe(1, "t/a")
    scene.objects(Rule.TOO_EARLY, 1, "t/a")


@pytest.mark.parametrize("says_so", [True, False])
def test_a_will_may_be_seen_before_the_end_of_its_connection_where_the_server_may_end_it(
    scene: Scene, *, says_so: bool
) -> None:
    """HiveMQ ends connections that publish to ``$`` topics: the will and the end come by two sockets."""
    scene.subscribe(1, s("t/w", 1))
    link = scene.connect(2, will=Will(topic="t/w", payload=b"w", qos=1))
    scene.put(2, Publish(topic="$t/a", payload=b"m", qos=1, packet_id=1))
    if says_so:
        scene.get(2, Disconnect(reason_code=0x82))
    scene.receive(1, "t/w", b"w", qos=1)
    assert scene.wanted is Rule.WILL_EARLY, "the end is still due"
    scene.referee.ended(link, scene.now, by_broker=True)
    assert scene.wanted is None


def test_a_will_of_a_connection_that_may_not_be_ended_is_early(scene: Scene) -> None:
    scene.subscribe(1, s("t/w", 1))
    scene.connect(2, will=Will(topic="t/w", payload=b"w", qos=1))
    scene.objects(Rule.WILL_EARLY, 1, "t/w", b"w", qos=1)


def test_nothing_is_due_of_what_follows_a_publish_for_which_the_server_ends_the_connection(scene: Scene) -> None:
    scene.subscribe(1, s("t/a", 1))
    link = scene.connect(2)
    scene.put(2, Publish(topic="$t/a", payload=b"m", qos=1, packet_id=1))
    scene.put(2, Publish(topic="t/a", payload=b"n", qos=0))
    assert scene.wanted is not None
    scene.referee.ended(link, scene.now, by_broker=True)
    assert scene.wanted is None

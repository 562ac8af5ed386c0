"""What lives on NATS taught the model: what it does wrong is booked on the rule that it breaks."""

from __future__ import annotations

from assay.conformance.explore.rules import Rule
from tests.conformance.explore.test_referee import Scene, lasting, s
from tests.conformance.explore.test_referee import scene as scene


def test_what_is_sent_again_under_another_identifier_is_no_copy_too_many(scene: Scene) -> None:
    lasting(scene, 2)
    scene.subscribe(2, s("t/a", 1))
    scene.publish(0, "t/a", b"1", qos=1)
    scene.receive(2, "t/a", b"1", qos=1, packet_id=30, ack=False)
    scene.lose(2)
    lasting(scene, 2, present=True)
    scene.objects(Rule.RESENT_OTHERWISE, 2, "t/a", b"1", qos=1, packet_id=1, dup=True)


def test_a_copy_of_what_was_acknowledged_is_one_too_many(scene: Scene) -> None:
    lasting(scene, 2)
    scene.subscribe(2, s("t/a", 1))
    scene.publish(0, "t/a", b"1", qos=1)
    scene.receive(2, "t/a", b"1", qos=1, packet_id=30)
    scene.objects(Rule.DUPLICATE, 2, "t/a", b"1", qos=1, packet_id=31)

"""What lives on other brokers taught the model: each accused a broker that was right, or of a rule that it kept."""

from __future__ import annotations

import msgspec
import pytest

from assay.conformance.explore.rules import Rule, ViolationError
from assay.conformance.wire import (
    Disconnect,
    Pingreq,
    Pingresp,
    Properties,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    Suback,
    Subscribe,
    Subscription,
    Will,
)
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


def test_a_subscription_to_a_dollar_filter_may_end_the_connection_until_it_is_answered(scene: Scene) -> None:
    """rumqttd does so: how a filter is refused is argued over."""
    link = scene.connect(2)
    scene.put(2, Subscribe(packet_id=1, subscriptions=(s("$t/#"),)))
    scene.referee.ended(link, scene.now, by_broker=True)
    link = scene.connect(3)
    scene.subscribe(3, "$share/g/t/#", "$t/#")
    with pytest.raises(ViolationError):
        scene.referee.ended(link, scene.now, by_broker=True)


def _empty(scene: Scene, qos: int = 2) -> None:
    scene.publish(0, "t/a", b"", qos=qos)


def test_a_copy_of_several_empty_messages_is_for_the_one_that_needs_it(scene: Scene) -> None:
    """A message that was never released may come or not; the copy of it cannot be told from that of the next one."""
    scene.connect(4)
    scene.put(4, Publish(topic="t/a", payload=b"", qos=2, packet_id=1))
    scene.get(4, Pubrec(packet_id=1))
    scene.subscribe(1, s("t/#", 1))
    scene.put(4, Pubrel(packet_id=1))
    _empty(scene)
    assert scene.wanted is Rule.UNDELIVERED
    scene.receive(1, "t/a", b"", qos=1, packet_id=1)
    assert scene.wanted is None or scene.wanted is Rule.PUBCOMP
    scene.get(4, Pubcomp(packet_id=1))
    assert scene.wanted is None


def test_two_empty_messages_need_two_copies_and_neither_may_be_older_than_its_message(scene: Scene) -> None:
    scene.subscribe(1, s("t/#", 1))
    _empty(scene)
    _empty(scene)
    scene.receive(1, "t/a", b"", qos=1, packet_id=1)
    assert scene.wanted is Rule.UNDELIVERED
    scene.receive(1, "t/a", b"", qos=1, packet_id=2)
    assert scene.wanted is None
    _empty(scene)
    assert scene.wanted is Rule.UNDELIVERED


def test_a_copy_for_one_of_two_shares_is_for_the_one_whose_members_can_take_it(scene: Scene) -> None:
    """The other share may have chosen a member for which the message is too large (3.1.2.11.4): it is dropped."""
    scene.connect(4, maximum_packet_size=400)
    scene.subscribe(1, "$share/h/t/a")
    scene.subscribe(1, "$share/h/+/#")
    scene.subscribe(4, "$share/h/t/a")
    large = b"x" * 70_000
    scene.publish(0, "t/a", large)
    assert scene.wanted is Rule.SHARE_UNDELIVERED
    scene.receive(1, "t/a", large)
    assert scene.wanted is None
    scene.receive(1, "t/a", large)
    scene.objects(Rule.SHARE_TWICE, 1, "t/a", large)


@pytest.mark.parametrize("qos", [1, 2])
def test_a_publish_that_is_said_again_may_begin_its_expiry_anew(scene: Scene, qos: int) -> None:
    lasting(scene, 2)
    scene.connect(3)
    packet = Publish(
        topic="t/a", payload=b"m", qos=qos, packet_id=1, retain=True, properties=Properties(message_expiry_interval=50)
    )
    scene.put(2, packet)
    scene.lose(2)
    scene.now += 40
    lasting(scene, 2, present=True)
    scene.put(2, msgspec.structs.replace(packet, dup=True))
    scene.get(2, Puback(packet_id=1) if qos == 1 else Pubrec(packet_id=1))
    scene.subscribe(1, "t/a")
    for client, left_s in ((0, 10), (1, 50)):
        scene.subscribe(client, "t/+")
        scene.receive(client, "t/a", retain=True, message_expiry_interval=left_s)
    scene.subscribe(3, "t/+")
    scene.objects(Rule.EXPIRY_INTERVAL, 3, "t/a", retain=True, message_expiry_interval=30)
    scene.now += 56
    scene.subscribe(3, "t/a")
    scene.objects(Rule.EXPIRED, 3, "t/a", retain=True, message_expiry_interval=1)


def test_a_subscription_may_overtake_what_is_not_acknowledged(scene: Scene) -> None:
    """While a client withholds acknowledgements, publishes have none either, and may be handled at any time."""
    scene.subscribe(1, s("t/b", 1))
    scene.publish(0, "t/b", b"1", qos=1)
    scene.receive(1, "t/b", b"1", qos=1, ack=False)
    scene.connect(3)
    scene.subscribe(3, s("$share/g/t/a", 2))
    scene.subscribe(3, s("t/+", 2), identifier=7)
    scene.put(0, Publish(topic="t/a", payload=b"2", qos=2, packet_id=91, retain=True))
    scene.subscribe(3, s("$share/g/t/a", 2), identifier=1)
    scene.subscribe(3, s("t/+", 1), identifier=8)
    scene.receive(3, "t/a", b"2", qos=2, packet_id=5, identifiers=(1,))
    scene.receive(3, "t/a", b"2", qos=1, packet_id=6, identifiers=(8,))
    scene.get(0, Pubrec(packet_id=91))
    scene.put(0, Pubrel(packet_id=91))
    scene.subscribe(3, s("t/+", 1), identifier=9)
    scene.publish(0, "t/a", b"3", qos=1)
    scene.objects(Rule.IDENTIFIERS, 3, "t/a", b"3", qos=1, packet_id=8, identifiers=(8,))


def test_a_publish_that_may_be_unread_is_owed_to_nobody(scene: Scene) -> None:
    lasting(scene, 2)
    scene.subscribe(1, "t/a")
    scene.put(2, Publish(topic="t/a", payload=b"m", qos=1, packet_id=1))
    assert scene.wanted is Rule.UNDELIVERED
    scene.referee.unread(2, 1)
    scene.lose(2)
    assert scene.wanted is None
    scene.receive(1, "t/a")


def test_a_copy_is_for_no_empty_message_that_was_published_after_it_came(scene: Scene) -> None:
    scene.subscribe(1, s("t/#", 1))
    scene.connect(4)
    scene.put(4, Publish(topic="t/a", payload=b"", qos=2, packet_id=1))
    scene.get(4, Pubrec(packet_id=1))
    scene.receive(1, "t/a", b"", qos=1, packet_id=1)
    _empty(scene)
    assert scene.wanted is Rule.UNDELIVERED


def test_a_copy_at_the_wrong_qos_with_its_retain_flag_is_not_booked_on_a_share(scene: Scene) -> None:
    """HiveMQ gives it the QoS of a subscription with No Local, which must not bring it."""
    scene.subscribe(1, s("t/#", 0, retain_as_published=True), s("t/+", 2, no_local=True))
    scene.subscribe(1, "$share/g/t/a")
    scene.publish(1, "t/a", qos=2, retain=True)
    scene.objects(Rule.QOS, 1, "t/a", qos=2, retain=True)


@pytest.mark.parametrize("share_first", [True, False])
def test_a_copy_that_lacks_its_identifier_alone_is_booked_on_that(scene: Scene, *, share_first: bool) -> None:
    """Artemis leaves out the identifiers of shares: the copy is not that of the other subscription at a lower QoS."""
    asked = [("$share/g/t/a", 0, 1), ("t/a", 2, 0)]
    for topic_filter, qos, identifier in asked if share_first else reversed(asked):
        scene.subscribe(1, s(topic_filter, qos), identifier=identifier)
    scene.publish(0, "t/a", qos=2)
    scene.objects(Rule.IDENTIFIERS, 1, "t/a")


def test_copies_of_a_share_and_of_a_subscription_have_no_order_between_them(scene: Scene) -> None:
    """HiveMQ has a queue for each."""
    scene.subscribe(1, "t/a", identifier=3)
    scene.subscribe(1, "t/+", "$share/g/t/a")
    for payload in (b"1", b"2"):
        scene.publish(0, "t/a", payload)
    scene.receive(1, "t/a", b"1")
    scene.receive(1, "t/a", b"2")
    scene.receive(1, "t/a", b"1", identifiers=(3,))


def test_what_waits_in_a_share_may_go_to_a_member_that_joins(scene: Scene) -> None:
    """HiveMQ sends one message at a time: the next one waits behind it, for whoever has room first."""
    scene.connect(2)
    scene.subscribe(1, s("$share/g/t/a", 1))
    for payload in (b"1", b"2"):
        scene.publish(0, "t/a", payload, qos=1)
    scene.receive(1, "t/a", b"1", qos=1, ack=False)
    scene.subscribe(2, s("$share/g/t/a", 1))
    scene.receive(2, "t/a", b"2", qos=1)
    scene.objects(Rule.TOO_EARLY, 2, "t/a", b"1", qos=1)


def test_a_copy_that_has_an_identifier_is_booked_on_the_subscription_of_that_name(scene: Scene) -> None:
    scene.subscribe(1, s("$share/g/t/a", 1))
    scene.subscribe(1, s("t/a", 0), identifier=3)
    scene.publish(0, "t/a", qos=1)
    scene.objects(Rule.QOS, 1, "t/a", qos=1, identifiers=(3,))


@pytest.mark.parametrize("share", ["", "$share/g/"])
def test_a_second_pubrel_makes_nothing_due_that_the_first_did_not(scene: Scene, share: str) -> None:
    """A server may have handed the message on at its PUBLISH, before the subscription."""
    lasting(scene, 2)
    scene.put(2, Publish(topic="t/a", payload=b"m", qos=2, packet_id=1))
    scene.get(2, Pubrec(packet_id=1))
    scene.subscribe(1, f"{share}t/a")
    for _ in range(2):
        scene.put(2, Pubrel(packet_id=1))
        assert scene.wanted is Rule.PUBCOMP
        scene.lose(2)
        lasting(scene, 2, present=True)
    scene.put(2, Pubrel(packet_id=1))
    scene.receive(1, "t/a")


@pytest.mark.parametrize("first", [b"", b"1"])
def test_an_acknowledgement_makes_nothing_retained_that_was_replaced_meanwhile(scene: Scene, first: bytes) -> None:
    scene.put(0, Publish(topic="t/a", payload=first, qos=1, packet_id=1, retain=True))
    scene.put(0, Publish(topic="t/a", payload=b"2", qos=0, retain=True))
    scene.get(0, Puback(packet_id=1))
    scene.subscribe(1, "t/a")
    scene.receive(1, "t/a", b"2", retain=True)


def test_a_retained_message_that_is_acknowledged_replaces_what_was_there(scene: Scene) -> None:
    for payload in (b"1", b"2"):
        scene.publish(0, "t/a", payload, qos=1, retain=True)
    scene.subscribe(1, "t/a")
    assert scene.wanted is Rule.RETAINED_UNSENT
    scene.objects(Rule.RETAINED_STALE, 1, "t/a", b"1", retain=True)


@pytest.mark.parametrize("left_s", [20, 100, 101])
def test_a_will_that_may_come_at_any_time_begins_its_expiry_then(scene: Scene, left_s: int) -> None:
    """The delay of a will counts from a restart here, and it is published when the clock has passed that."""
    lasting(scene, 2)
    scene.subscribe(2, s("t/w", 1))
    will = Will(
        topic="t/w",
        payload=b"w",
        qos=1,
        properties=Properties(message_expiry_interval=100, will_delay_interval=50),
    )
    scene.connect(3, clean=False, kept_s=1_000_000.0, will=will)
    scene.referee.restarted(scene.now)
    scene.move(300)
    lasting(scene, 2, present=True)
    if left_s <= 100:
        scene.receive(2, "t/w", b"w", qos=1, message_expiry_interval=left_s)
    else:
        scene.objects(Rule.EXPIRY_INTERVAL, 2, "t/w", b"w", qos=1, message_expiry_interval=left_s)


def test_a_publisher_that_lost_its_connection_may_have_lost_its_own_copy_at_qos_0(scene: Scene) -> None:
    lasting(scene, 2)
    scene.subscribe(2, "t/a")
    scene.put(2, Publish(topic="t/a", payload=b"m", qos=2, packet_id=90))
    scene.lose(2)
    lasting(scene, 2, present=True)
    scene.put(2, Publish(topic="t/a", payload=b"m", qos=2, packet_id=90, dup=True))
    scene.get(2, Pubrec(packet_id=90))
    scene.put(2, Pubrel(packet_id=90))
    scene.get(2, Pubcomp(packet_id=90))
    assert scene.wanted is None
    scene.receive(2, "t/a")


@pytest.mark.parametrize("identifiers", [(), (7,)])
def test_no_local_may_hold_for_a_clients_own_will_or_not(scene: Scene, identifiers: tuple[int, ...]) -> None:
    scene.connect(2, clean=False, kept_s=1_000.0, will=Will(topic="t/w", payload=b"w", qos=1))
    scene.subscribe(2, s("t/#", 2))
    scene.subscribe(2, s("t/+", 0, no_local=True), identifier=7)
    scene.lose(2)
    lasting(scene, 2, present=True)
    scene.receive(2, "t/w", b"w", qos=1, identifiers=identifiers)
    scene.referee.audit()


def test_a_pubrel_makes_nothing_retained_that_a_will_has_replaced(scene: Scene) -> None:
    will = Will(topic="t/a", payload=b"w", qos=1, retain=True)
    scene.connect(2, clean=False, kept_s=1_000.0, will=will)
    scene.put(2, Publish(topic="t/a", payload=b"m", qos=2, packet_id=1, retain=True))
    scene.get(2, Pubrec(packet_id=1))
    scene.lose(2)
    lasting(scene, 2, present=True)
    scene.put(2, Pubrel(packet_id=1))
    scene.get(2, Pubcomp(packet_id=1))
    scene.subscribe(1, s("t/a", 1))
    scene.receive(1, "t/a", b"w", qos=1, retain=True)


@pytest.mark.parametrize("seen", [False, True])
def test_a_will_of_a_stop_may_be_published_when_its_delay_is_over_to_who_subscribed_meanwhile(
    scene: Scene, *, seen: bool
) -> None:
    scene.connect(2, version=4, clean=False, kept_s=float("inf"))
    scene.connect(
        3, kept_s=50.0, will=Will(topic="t/w", payload=b"w", qos=1, properties=Properties(will_delay_interval=50))
    )
    scene.referee.restarted(scene.now)
    scene.connect(0)
    scene.subscribe(0, s("t/w", 1))
    scene.connect(2, version=4, clean=False, kept_s=float("inf"), present=True)
    scene.subscribe(2, s("t/w", 1))
    scene.lose(2)
    scene.move(300_000)
    if seen:
        scene.receive(0, "t/w", b"w", qos=1)
    scene.connect(2, version=4, clean=False, kept_s=float("inf"), present=True)
    scene.receive(2, "t/w", b"w", qos=1)
    scene.objects(Rule.DUPLICATE, 2, "t/w", b"w", qos=1, packet_id=2)


def test_what_the_last_session_of_a_client_did_not_get_has_no_claim_on_what_comes_to_the_next(scene: Scene) -> None:
    """Its loose claim took the retained message that the next one had asked for."""
    scene.connect(2, receive_maximum=1)
    scene.subscribe(2, s("t/#", 1))
    scene.publish(0, "t/x", b"x", qos=1)
    scene.receive(2, "t/x", b"x", qos=1, ack=False)
    scene.put(0, Publish(topic="t/a", payload=b"m", qos=1, packet_id=90, retain=True))
    scene.subscribe(2, s("t/a", 1))
    scene.get(0, Puback(packet_id=90))
    scene.lose(2)
    scene.connect(2)
    scene.subscribe(2, s("t/+", 1, retain_as_published=True))
    assert scene.wanted is Rule.RETAINED_UNSENT
    scene.receive(2, "t/a", b"m", qos=1, retain=True)
    assert scene.wanted is None


def test_a_will_of_a_stop_that_comes_late_goes_by_the_subscriptions_of_the_next_session(scene: Scene) -> None:
    scene.connect(2)
    scene.subscribe(2, s("t/w", 1))
    will = Will(topic="t/w", payload=b"w", qos=1, properties=Properties(will_delay_interval=50))
    scene.connect(3, clean=False, kept_s=1_000_000.0, will=will)
    scene.referee.restarted(scene.now)
    scene.connect(2)
    scene.subscribe(2, "t/w")
    scene.move(300)
    scene.receive(2, "t/w", b"w")


def test_a_stop_is_not_the_end_of_the_delay_of_a_will(scene: Scene) -> None:
    """Mosquitto publishes all of them as it is stopped; the suites say so as well (withdrawn-wills-stay-away)."""
    lasting(scene, 2)
    scene.subscribe(2, s("t/w", 1))
    will = Will(topic="t/w", payload=b"w", qos=1, properties=Properties(will_delay_interval=50))
    scene.connect(3, clean=False, kept_s=1_000_000.0, will=will)
    scene.lose(3)
    scene.referee.restarted(scene.now)
    lasting(scene, 2, present=True)
    scene.objects(Rule.WILL_EARLY, 2, "t/w", b"w", qos=1)


def test_what_comes_as_the_keep_alive_of_its_client_ends_comes_again_with_dup(scene: Scene) -> None:
    """Both are due at once when the clock is moved: the delayed will, and the end of the connection that gets it."""
    scene.connect(2, clean=False, kept_s=1e5, keep_alive_s=50)
    scene.subscribe(2, s("t/w", 1))
    will = Will(topic="t/w", payload=b"w", qos=1, properties=Properties(will_delay_interval=50))
    scene.connect(3, clean=False, kept_s=1e5, will=will)
    scene.lose(3)
    scene.move(90)
    scene.get(2, Publish(topic="t/w", payload=b"w", qos=1, packet_id=1))
    scene.lose(2)
    scene.connect(2, clean=False, kept_s=1e5, keep_alive_s=50, present=True)
    scene.receive(2, "t/w", b"w", qos=1, dup=True)


def test_a_publish_that_is_said_again_has_no_order_any_more(scene: Scene) -> None:
    lasting(scene, 2)
    scene.subscribe(1, s("t/a", 1))
    scene.put(2, Publish(topic="t/a", payload=b"1", qos=1, packet_id=1))
    scene.receive(1, "t/a", b"1", qos=1)
    scene.put(2, Publish(topic="t/a", payload=b"2", qos=1, packet_id=2))
    scene.lose(2)
    lasting(scene, 2, present=True)
    scene.receive(1, "t/a", b"2", qos=1)
    scene.put(2, Publish(topic="t/a", payload=b"1", qos=1, packet_id=1, dup=True))
    scene.receive(1, "t/a", b"1", qos=1)


@pytest.mark.parametrize("all_came", [True, False])
def test_a_restart_may_begin_anew_with_the_retained_messages_of_a_subscription_that_is_not_done(
    scene: Scene, *, all_came: bool
) -> None:
    scene.publish(0, "t/a", b"1", qos=1, retain=True)
    scene.publish(0, "t/b", b"2", qos=1, retain=True)
    lasting(scene, 2)
    scene.subscribe(2, s("t/+", 1))
    scene.receive(2, "t/a", b"1", qos=1, retain=True)
    if all_came:
        scene.receive(2, "t/b", b"2", qos=1, retain=True)
    scene.subscribe(2, Subscription(filter="t/+", qos=1, retain_handling=2), identifier=7)
    scene.referee.restarted(scene.now)
    lasting(scene, 2, present=True)
    if all_came:
        scene.objects(Rule.DUPLICATE, 2, "t/a", b"1", qos=1, retain=True)
        return
    scene.receive(2, "t/a", b"1", qos=1, retain=True, identifiers=(7,))
    assert scene.wanted is Rule.RETAINED_UNSENT
    scene.receive(2, "t/b", b"2", qos=1, retain=True, identifiers=(7,))
    scene.objects(Rule.DUPLICATE, 2, "t/b", b"2", qos=1, retain=True)


def test_a_subscription_that_is_added_before_pubrel_has_a_copy_of_its_own(scene: Scene) -> None:
    """Mosquitto sends a copy for each of overlapping subscriptions, as they are at PUBREL."""
    lasting(scene, 2)
    scene.subscribe(1, "#", s("$share/g/t/#"))
    scene.put(2, Publish(topic="t/a", payload=b"m", qos=2, packet_id=1))
    scene.lose(2)
    scene.subscribe(1, "t/#")
    lasting(scene, 2, present=True)
    scene.put(2, Publish(topic="t/a", payload=b"m", qos=2, packet_id=1, dup=True))
    scene.get(2, Pubrec(packet_id=1))
    scene.put(2, Pubrel(packet_id=1))
    for _ in range(3):
        scene.receive(1, "t/a", b"m")
    scene.objects(Rule.SHARE_TWICE, 1, "t/a", b"m")


def test_a_retained_message_is_there_for_certain_once_pubcomp_has_come(scene: Scene) -> None:
    """PUBREL was sent: a server under back-pressure may not have come to it."""
    scene.publish(0, "t/a", b"1", qos=1, retain=True)
    scene.put(0, Publish(topic="t/a", payload=b"2", qos=2, packet_id=90, retain=True))
    scene.get(0, Pubrec(packet_id=90))
    scene.put(0, Pubrel(packet_id=90))
    scene.subscribe(1, "t/a")
    scene.receive(1, "t/a", b"1", retain=True)
    scene.get(0, Pubcomp(packet_id=90))
    scene.connect(1)
    scene.subscribe(1, "t/a")
    scene.objects(Rule.RETAINED_STALE, 1, "t/a", b"1", retain=True)


def test_a_copy_at_qos_0_that_may_be_gone_need_not_have_come_beside_the_other(scene: Scene) -> None:
    """Each of two subscriptions has its copy; that of the one at QoS 0 was lost with the connection."""
    lasting(scene, 2)
    scene.subscribe(2, s("t/w", 1))
    scene.subscribe(2, "#", identifier=1)
    scene.connect(3, will=Will(topic="t/w", payload=b"w", qos=1))
    scene.referee.restarted(scene.now)
    lasting(scene, 2, present=True)
    scene.receive(2, "t/w", b"w", qos=1)
    scene.referee.audit()


def test_options_of_a_share_that_is_subscribed_to_again_are_open_each_by_itself(scene: Scene) -> None:
    """Mosquitto replaces its identifier, and not Retain As Published: MQTT-3.8.4-3 speaks of no share."""
    scene.subscribe(1, s("$share/g/t/a", 1, retain_as_published=True), identifier=1)
    scene.subscribe(1, s("$share/g/t/a", 0), identifier=2)
    scene.publish(0, "t/a", b"1", retain=True)
    scene.receive(1, "t/a", b"1", retain=True, identifiers=(2,))
    scene.publish(0, "t/a", b"2", retain=True)
    scene.objects(Rule.IDENTIFIERS, 1, "t/a", b"2", retain=True, identifiers=(3,))


def test_a_publish_that_is_said_again_brings_each_subscription_its_copy_again(scene: Scene) -> None:
    lasting(scene, 2)
    scene.subscribe(1, "#", "t/#")
    scene.put(2, Publish(topic="t/a", payload=b"m", qos=1, packet_id=1))
    scene.lose(2)
    lasting(scene, 2, present=True)
    scene.put(2, Publish(topic="t/a", payload=b"m", qos=1, packet_id=1, dup=True))
    for _ in range(4):
        scene.receive(1, "t/a", b"m")
    scene.objects(Rule.DUPLICATE, 1, "t/a", b"m")


def test_a_retained_message_that_is_replaced_while_two_subscriptions_wait_comes_by_either(scene: Scene) -> None:
    scene.publish(0, "t/x", b"x", qos=1, retain=True)
    scene.publish(0, "t/a", b"1", qos=1, retain=True)
    scene.connect(2, receive_maximum=1)
    scene.subscribe(2, s("t/x", 1))
    scene.receive(2, "t/x", b"x", qos=1, retain=True, ack=False)
    scene.subscribe(2, s("t/+", 1), s("#", 0))
    scene.publish(0, "t/a", b"2", qos=1, retain=True)
    scene.put(2, Puback(packet_id=1))
    scene.receive(2, "t/a", b"2", qos=1)
    scene.receive(2, "t/a", b"2", qos=1, retain=True)
    scene.receive(2, "t/a", b"2", retain=True)


def test_a_will_of_a_stop_goes_by_the_subscriptions_that_are_there_when_it_comes(scene: Scene) -> None:
    lasting(scene, 2)
    scene.subscribe(2, s("t/w", 1))
    will = Will(topic="t/w", payload=b"w", qos=1, properties=Properties(will_delay_interval=50))
    scene.connect(3, clean=False, kept_s=1_000_000.0, will=will)
    scene.referee.restarted(scene.now)
    lasting(scene, 2, present=True)
    scene.subscribe(2, "t/w")
    scene.move(300)
    scene.receive(2, "t/w", b"w")


@pytest.mark.parametrize("last", [b"2", b"3"])
def test_of_wills_that_are_due_at_once_any_may_be_the_last_that_is_retained(scene: Scene, last: bytes) -> None:
    scene.publish(0, "t/w", b"1", qos=1, retain=True)
    for client, payload in ((2, b"2"), (3, b"3")):
        will = Will(topic="t/w", payload=payload, qos=1, retain=True, properties=Properties(will_delay_interval=50))
        scene.connect(client, clean=False, kept_s=1e5, will=will)
        scene.lose(client)
    scene.move(90)
    scene.subscribe(1, s("t/w", 1))
    scene.receive(1, "t/w", last, qos=1, retain=True)
    scene.connect(1)
    scene.subscribe(1, s("t/w", 1))
    scene.objects(Rule.RETAINED_STALE, 1, "t/w", b"1", qos=1, retain=True)


def test_further_copies_of_overlapping_subscriptions_may_come_behind_later_messages(scene: Scene) -> None:
    """NATS sends all of one subscription, then all of the other."""
    scene.subscribe(1, s("#", 1), s("t/#", 1))
    scene.publish(0, "t/a", b"1", qos=1)
    scene.publish(0, "t/a", b"2", qos=1)
    for payload in (b"1", b"2", b"1", b"2"):
        scene.receive(1, "t/a", payload, qos=1)
    scene.objects(Rule.DUPLICATE, 1, "t/a", b"1", qos=1)


def test_a_retained_copy_is_not_taken_for_the_one_that_was_not_kept_at_qos_0(scene: Scene) -> None:
    lasting(scene, 2)
    scene.subscribe(2, s("#", 1, retain_as_published=True), identifier=2)
    scene.subscribe(2, s("t/#", 1), identifier=1)
    scene.lose(2)
    scene.publish(0, "t/a", b"m", retain=True)
    lasting(scene, 2, present=True)
    scene.subscribe(2, "t/+", identifier=2)
    scene.receive(2, "t/a", b"m", retain=True, identifiers=(2,))
    scene.referee.audit()


def test_of_two_that_are_published_at_once_no_acknowledgement_says_which_is_retained(scene: Scene) -> None:
    """PUBCOMP comes behind the burst, and the other one may have been handled before PUBREL, or behind PUBLISH."""
    scene.connect(2)
    scene.referee.burst(begins=True)
    scene.put(0, Publish(topic="t/a", payload=b"1", retain=True))
    scene.put(1, Publish(topic="t/a", payload=b"2", qos=2, packet_id=90, retain=True))
    scene.referee.burst(begins=False)
    scene.get(1, Pubrec(packet_id=90))
    scene.put(1, Pubrel(packet_id=90))
    scene.get(1, Pubcomp(packet_id=90))
    scene.subscribe(2, "t/a")
    scene.receive(2, "t/a", b"1", retain=True)


def test_a_subscription_may_overtake_pubrel_as_well(scene: Scene) -> None:
    scene.connect(2)
    scene.subscribe(2, "t/a")
    scene.put(0, Publish(topic="t/a", payload=b"m", qos=2, packet_id=90, retain=True))
    scene.get(0, Pubrec(packet_id=90))
    scene.put(0, Pubrel(packet_id=90))
    scene.subscribe(1, "t/a")
    scene.receive(2, "t/a", b"m")
    scene.receive(1, "t/a", b"m")
    scene.get(0, Pubcomp(packet_id=90))
    scene.objects(Rule.RETAIN_FLAG_OF_RETAINED, 1, "t/a", b"m")


@pytest.mark.parametrize("lasts", [True, False])
def test_a_pubrel_that_is_not_answered_may_be_lost_with_its_connection(scene: Scene, *, lasts: bool) -> None:
    scene.subscribe(1, s("t/a", 1))
    scene.connect(2, clean=not lasts, kept_s=1e5 if lasts else 0.0)
    scene.put(2, Publish(topic="t/a", payload=b"m", qos=2, packet_id=1))
    scene.get(2, Pubrec(packet_id=1))
    scene.put(2, Pubrel(packet_id=1))
    scene.lose(2)
    assert scene.wanted is None
    if lasts:
        lasting(scene, 2, present=True)
        scene.put(2, Pubrel(packet_id=1))
        scene.get(2, Pubcomp(packet_id=1))
        assert scene.wanted is Rule.UNDELIVERED


def test_a_retained_copy_is_not_taken_for_that_of_a_share_whose_other_member_takes_nothing(scene: Scene) -> None:
    scene.subscribe(1, s("$share/g/t/#", 1))
    scene.publish(0, "t/x", b"x", qos=1)
    scene.receive(1, "t/x", b"x", qos=1, ack=False)
    scene.publish(0, "t/a", b"m", qos=1, retain=True)
    scene.connect(2)
    scene.subscribe(2, s("$share/g/t/#", 1, retain_as_published=True), identifier=2)
    scene.subscribe(2, s("t/+", 1), identifier=2)
    scene.receive(2, "t/a", b"m", qos=1, retain=True, identifiers=(2,))
    assert scene.wanted is None
    scene.put(1, Puback(packet_id=1))
    assert scene.wanted is Rule.SHARE_UNDELIVERED


def test_of_two_publishes_that_wait_for_their_acknowledgement_either_is_retained(scene: Scene) -> None:
    """While somebody withholds PUBCOMP no acknowledgement is awaited: two clients publish at the same time."""
    scene.connect(2)
    scene.connect(3)
    scene.put(0, Publish(topic="t/a", payload=b"1", qos=2, packet_id=1, retain=True))
    scene.put(1, Publish(topic="t/a", payload=b"2", qos=2, packet_id=1, retain=True))
    for client in (0, 1):
        scene.get(client, Pubrec(packet_id=1))
        scene.put(client, Pubrel(packet_id=1))
        scene.get(client, Pubcomp(packet_id=1))
    scene.subscribe(3, s("t/a", 0))
    assert scene.wanted is None, "either may come"
    scene.receive(3, "t/a", b"1", retain=True)
    scene.publish(0, "t/a", b"3", qos=2, retain=True)
    scene.receive(3, "t/a", b"3")
    scene.subscribe(2, s("t/a", 0))
    assert scene.wanted is Rule.RETAINED_UNSENT
    scene.objects(Rule.RETAINED_STALE, 2, "t/a", b"2", retain=True)


def test_a_publish_beside_a_subscribe_may_come_by_either_subscription(scene: Scene) -> None:
    """Nobody awaits PUBACK while deliveries are withheld: it came before SUBACK, and the SUBSCRIBE was served first."""
    scene.subscribe(1, s("t/#", 0))
    scene.put(0, Publish(topic="t/a", payload=b"1", qos=1, packet_id=90))
    entry = s("t/#", 0, retain_as_published=True)
    request = Subscribe(packet_id=91, subscriptions=(entry,), properties=Properties(subscription_identifier=(1,)))
    scene.put(1, request)
    scene.get(0, Puback(packet_id=90))
    scene.get(1, Suback(packet_id=91, reason_codes=(0,)))
    scene.receive(1, "t/a", b"1", identifiers=(1,))
    scene.publish(0, "t/a", b"2", qos=1)
    scene.objects(Rule.IDENTIFIERS, 1, "t/a", b"2")


def test_what_is_sent_again_keeps_to_the_receive_maximum_of_its_connection(scene: Scene) -> None:
    """The model let any number pass, as long as it had come before."""
    lasting(scene, 2)
    scene.subscribe(2, s("t/a", 1))
    for number in (1, 2):
        scene.publish(0, "t/a", b"%d" % number, qos=1)
        scene.receive(2, "t/a", b"%d" % number, qos=1, packet_id=number, ack=False)
    scene.lose(2)
    scene.connect(2, clean=False, kept_s=float("inf"), present=True, receive_maximum=1)
    scene.receive(2, "t/a", b"1", qos=1, packet_id=1, dup=True, ack=False)
    scene.objects(Rule.RECEIVE_MAXIMUM, 2, "t/a", b"2", qos=1, packet_id=2, dup=True, ack=False)


def test_a_pubrel_that_is_sent_again_takes_no_place_in_the_window(scene: Scene) -> None:
    """Receive Maximum counts the PUBLISH packets of one connection (5.0 3.1.2.11.3), and this one was another's."""
    lasting(scene, 2)
    scene.subscribe(2, s("t/a", 2))
    scene.publish(0, "t/a", b"1", qos=2)
    scene.receive(2, "t/a", b"1", qos=2, packet_id=1, ack=False)
    scene.put(2, Pubrec(packet_id=1))
    scene.get(2, Pubrel(packet_id=1))
    scene.lose(2)
    scene.connect(2, clean=False, kept_s=float("inf"), present=True, receive_maximum=1)
    scene.get(2, Pubrel(packet_id=1))
    scene.publish(0, "t/a", b"2", qos=2)
    scene.receive(2, "t/a", b"2", qos=2, packet_id=2, ack=False)
    scene.publish(0, "t/a", b"3", qos=2)
    scene.objects(Rule.RECEIVE_MAXIMUM, 2, "t/a", b"3", qos=2, packet_id=3, ack=False)


@pytest.mark.parametrize(("qos", "retain"), [(0, False), (1, False), (1, True)])
def test_who_gets_what_waited_in_a_share_gets_it_as_it_asks_for_by_now(scene: Scene, qos: int, *, retain: bool) -> None:
    """The member had another QoS and Retain As Published when the message was published, and when it came to it."""
    scene.connect(2)
    scene.subscribe(2, s("$share/g/t/a", 0))
    scene.subscribe(1, s("$share/g/t/a", 1))
    scene.publish(0, "t/a", b"1", qos=1, retain=True)
    scene.receive(1, "t/a", b"1", qos=1, ack=False)
    scene.publish(0, "t/a", b"2", qos=1, retain=True)
    scene.subscribe(2, s("$share/g/t/a", 1, retain_as_published=retain))
    scene.lose(1)
    scene.receive(2, "t/a", b"2", qos=qos, retain=retain)
    scene.objects(Rule.QOS, 2, "t/a", b"1", qos=2)


def test_what_was_begun_to_be_sent_may_be_sent_again_when_its_time_is_over(scene: Scene) -> None:
    """The connection was cut before the client saw it: what has begun is completed (5.0 4.3.3), with nothing left."""
    lasting(scene, 2)
    scene.subscribe(2, s("t/a", 2))
    scene.publish(0, "t/a", b"1", qos=2, message_expiry_interval=50)
    scene.lose(2)
    scene.move(60)
    lasting(scene, 2, present=True)
    scene.receive(2, "t/a", b"1", qos=2, packet_id=7, dup=True, message_expiry_interval=0)
    scene.objects(Rule.EXPIRED, 2, "t/a", b"1", qos=2, packet_id=8, message_expiry_interval=0)


def test_what_an_earlier_subscription_had_yet_to_bring_is_not_due_once_it_is_left(scene: Scene) -> None:
    scene.connect(2, receive_maximum=1)
    scene.subscribe(2, s("t/+", 2))
    scene.publish(0, "t/a", b"1", qos=2, retain=True)
    scene.receive(2, "t/a", b"1", qos=2, packet_id=1, ack=False)
    scene.subscribe(2, s("t/+", 2))
    scene.subscribe(2, s("t/+", 0))
    scene.unsubscribe(2, "t/+")
    scene.put(2, Pubrec(packet_id=1))
    scene.get(2, Pubrel(packet_id=1))
    scene.put(2, Pubcomp(packet_id=1))
    assert scene.wanted is None

"""The model by itself: for each rule, what it lets pass and what it does not; nothing is really sent."""

from __future__ import annotations

import itertools

import pytest

from assay.conformance.explore.referee import Referee
from assay.conformance.explore.rules import Rule, ViolationError
from assay.conformance.explore.state import Link
from assay.conformance.wire import (
    Connack,
    Connect,
    Disconnect,
    Packet,
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
    Unsuback,
    Unsubscribe,
    Will,
)


class Scene:
    """Clients by number, all packets by hand; the clock stands still unless it is moved."""

    def __init__(self) -> None:
        self.referee = Referee(ours="t/")
        self.now = 1_000.0
        self.links: dict[int, Link] = {}
        self._ids = itertools.count(1)
        self._names = itertools.count(1)

    def connect(
        self,
        client: int,
        *,
        version: int = 5,
        clean: bool = True,
        kept_s: float = 0.0,
        present: bool = False,
        will: Will | None = None,
        keep_alive_s: int = 0,
        granted: Properties | None = None,
        **properties: int,
    ) -> Link:
        packet = Connect(
            client_id=str(client),
            version=version,
            clean=clean,
            will=will,
            keep_alive_s=keep_alive_s,
            properties=Properties(**properties),  # type: ignore[arg-type]
        )
        link = self.referee.connect(f"c{client}.{next(self._names)}", client, packet, kept_s, self.now)
        self.links[client] = link
        self.get(client, Connack(session_present=present, properties=granted or Properties()))
        return link

    def put(self, client: int, packet: Packet) -> None:
        self.referee.sent(self.links[client], packet, self.now)

    def get(self, client: int, packet: Packet) -> None:
        self.referee.received(self.links[client], packet, self.now)

    def subscribe(
        self, client: int, *entries: Subscription | str, identifier: int = 0, granted: int | None = None
    ) -> None:
        packet_id = next(self._ids)
        filters = tuple(Subscription(filter=entry) if isinstance(entry, str) else entry for entry in entries)
        properties = Properties(subscription_identifier=(identifier,) if identifier else ())
        self.put(client, Subscribe(packet_id=packet_id, subscriptions=filters, properties=properties))
        codes = tuple(entry.qos if granted is None else granted for entry in filters)
        self.get(client, Suback(packet_id=packet_id, reason_codes=codes))

    def unsubscribe(self, client: int, topic_filter: str, code: int = 0) -> None:
        packet_id = next(self._ids)
        self.put(client, Unsubscribe(packet_id=packet_id, filters=(topic_filter,)))
        self.get(client, Unsuback(packet_id=packet_id, reason_codes=(code,)))

    def publish(
        self, client: int, topic: str, payload: bytes = b"m", *, qos: int = 0, retain: bool = False, **properties: int
    ) -> None:
        """The whole exchange."""
        packet_id = next(self._ids) if qos else 0
        self.put(
            client,
            Publish(
                topic=topic,
                payload=payload,
                qos=qos,
                packet_id=packet_id,
                retain=retain,
                properties=Properties(**properties),  # type: ignore[arg-type]
            ),
        )
        if qos == 1:
            self.get(client, Puback(packet_id=packet_id))
        elif qos == 2:
            self.get(client, Pubrec(packet_id=packet_id))
            self.put(client, Pubrel(packet_id=packet_id))
            self.get(client, Pubcomp(packet_id=packet_id))

    def receive(
        self,
        client: int,
        topic: str,
        payload: bytes = b"m",
        *,
        qos: int = 0,
        packet_id: int = 1,
        retain: bool = False,
        dup: bool = False,
        identifiers: tuple[int, ...] = (),
        ack: bool = True,
        **properties: int,
    ) -> None:
        self.get(
            client,
            Publish(
                topic=topic,
                payload=payload,
                qos=qos,
                packet_id=packet_id if qos else 0,
                retain=retain,
                dup=dup,
                properties=Properties(subscription_identifier=identifiers, **properties),  # type: ignore[arg-type]
            ),
        )
        if ack and qos == 1:
            self.put(client, Puback(packet_id=packet_id))

    def lose(self, client: int) -> None:
        """The client resets its connection."""
        self.referee.ended(self.links[client], self.now, by_broker=False)

    def move(self, seconds: float) -> None:
        self.now += seconds
        self.referee.moved(self.now, seconds)

    @property
    def wanted(self) -> Rule | None:
        found = self.referee.waiting(self.now)
        return None if found is None else found[0]

    def objects(self, rule: Rule, client: int, topic: str, payload: bytes = b"m", **fields: object) -> None:
        """A delivery that the model does not take."""
        with pytest.raises(ViolationError) as seen:
            self.receive(client, topic, payload, **fields)  # type: ignore[arg-type]
        assert seen.value.rule is rule, seen.value.text


@pytest.fixture
def scene() -> Scene:
    made = Scene()
    made.connect(0)
    made.connect(1)
    return made


def s(topic_filter: str, qos: int = 0, **options: object) -> Subscription:
    return Subscription(filter=topic_filter, qos=qos, **options)  # type: ignore[arg-type]


# What must arrive


def test_a_subscriber_is_owed_the_message(scene: Scene) -> None:
    scene.subscribe(1, s("t/#", 1))
    scene.publish(0, "t/a", qos=2)
    assert scene.wanted is Rule.UNDELIVERED
    scene.receive(1, "t/a", qos=1)
    assert scene.wanted is None


def test_nobody_is_owed_what_no_filter_matches(scene: Scene) -> None:
    scene.subscribe(1, "t/b")
    scene.publish(0, "t/a")
    assert scene.wanted is None
    scene.objects(Rule.UNMATCHED, 1, "t/a")


def test_an_unacknowledged_delivery_may_hold_up_the_others(scene: Scene) -> None:
    scene.subscribe(1, s("t/a", 1))
    scene.publish(0, "t/a", b"1", qos=1)
    scene.receive(1, "t/a", b"1", qos=1, ack=False)
    scene.publish(0, "t/a", b"2", qos=1)
    assert scene.wanted is None
    scene.put(1, Puback(packet_id=1))
    assert scene.wanted is Rule.UNDELIVERED


def test_every_request_is_answered(scene: Scene) -> None:
    for packet, rule, answer in (
        (Pingreq(), Rule.PINGRESP, Pingresp()),
        (Publish(topic="t/a", payload=b"1", qos=1, packet_id=90), Rule.PUBACK, Puback(packet_id=90)),
        (Publish(topic="t/a", payload=b"2", qos=2, packet_id=91), Rule.PUBREC, Pubrec(packet_id=91)),
        (Pubrel(packet_id=91), Rule.PUBCOMP, Pubcomp(packet_id=91)),
        (Unsubscribe(packet_id=92, filters=("x",)), Rule.UNSUBACK, Unsuback(packet_id=92, reason_codes=(0x11,))),
    ):
        scene.put(0, packet)
        assert scene.wanted is rule
        scene.get(0, answer)
        assert scene.wanted is None


@pytest.mark.parametrize("packet", [Puback(packet_id=7), Pubcomp(packet_id=7), Suback(packet_id=7, reason_codes=(0,))])
def test_an_acknowledgement_of_nothing_is_refused(scene: Scene, packet: Packet) -> None:
    with pytest.raises(ViolationError) as seen:
        scene.get(0, packet)
    assert seen.value.rule is Rule.UNASKED


# QoS, RETAIN, identifiers, copies


def test_the_qos_is_the_lower_of_both(scene: Scene) -> None:
    scene.subscribe(1, s("t/a", 1))
    scene.publish(0, "t/a", qos=2)
    scene.objects(Rule.QOS, 1, "t/a", qos=2)


def test_a_lower_grant_is_what_counts(scene: Scene) -> None:
    scene.subscribe(1, s("t/a", 2), granted=0)
    scene.publish(0, "t/a", qos=2)
    scene.receive(1, "t/a")
    assert scene.wanted is None


def test_overlapping_subscriptions_give_one_copy_with_all_identifiers(scene: Scene) -> None:
    scene.subscribe(1, s("t/#", 0), identifier=1)
    scene.subscribe(1, s("t/a", 1), identifier=2)
    scene.publish(0, "t/a", qos=1)
    scene.receive(1, "t/a", qos=1, identifiers=(2, 1))
    assert scene.wanted is None
    scene.referee.audit()


def test_overlapping_subscriptions_may_give_a_copy_each(scene: Scene) -> None:
    scene.subscribe(1, s("t/#", 0), identifier=1)
    scene.subscribe(1, s("t/a", 1), identifier=2)
    scene.publish(0, "t/a", qos=1)
    scene.receive(1, "t/a", identifiers=(1,))
    assert scene.wanted is Rule.QOS, "the copy at the highest QoS is owed"
    scene.receive(1, "t/a", qos=1, identifiers=(2,))
    assert scene.wanted is None
    scene.referee.audit()
    scene.objects(Rule.DUPLICATE, 1, "t/a", identifiers=(1,))


def test_one_copy_without_all_identifiers_is_found_at_the_end(scene: Scene) -> None:
    scene.subscribe(1, s("t/#", 1), identifier=1)
    scene.subscribe(1, s("t/a", 1), identifier=2)
    scene.publish(0, "t/a", qos=1)
    scene.receive(1, "t/a", qos=1, identifiers=(2,))
    with pytest.raises(ViolationError) as seen:
        scene.referee.audit()
    assert seen.value.rule is Rule.IDENTIFIERS


def test_an_identifier_that_nobody_gave_is_refused(scene: Scene) -> None:
    scene.subscribe(1, "t/a", identifier=3)
    scene.publish(0, "t/a")
    scene.objects(Rule.IDENTIFIERS, 1, "t/a", identifiers=(4,))


def test_retain_as_published_decides_the_flag(scene: Scene) -> None:
    scene.subscribe(1, "t/a")
    scene.publish(0, "t/a", b"1", retain=True)
    scene.objects(Rule.RETAIN_FLAG, 1, "t/a", b"1", retain=True)
    scene.receive(1, "t/a", b"1")
    scene.subscribe(1, s("t/a", retain_as_published=True, retain_handling=2))
    scene.publish(0, "t/a", b"2", retain=True)
    scene.objects(Rule.RETAIN_FLAG, 1, "t/a", b"2", retain=False)
    scene.receive(1, "t/a", b"2", retain=True)


def test_no_local_keeps_a_clients_own_messages_away(scene: Scene) -> None:
    scene.subscribe(1, s("t/a", no_local=True))
    scene.publish(1, "t/a")
    assert scene.wanted is None
    scene.objects(Rule.NO_LOCAL, 1, "t/a")


def test_one_copy_and_no_more(scene: Scene) -> None:
    scene.subscribe(1, "t/a")
    scene.publish(0, "t/a")
    scene.receive(1, "t/a")
    scene.objects(Rule.DUPLICATE, 1, "t/a")


def test_what_nobody_published_is_refused(scene: Scene) -> None:
    scene.subscribe(1, "t/#")
    scene.publish(0, "t/a", b"secret")
    scene.objects(Rule.TOPIC, 1, "t/b", b"secret")
    scene.objects(Rule.UNKNOWN_MESSAGE, 1, "t/a", b"other")


def test_messages_of_others_are_nobodys_affair(scene: Scene) -> None:
    scene.subscribe(1, "#")
    scene.receive(1, "elsewhere", b"x", qos=1)


def test_a_wildcard_does_not_match_dollar_topics(scene: Scene) -> None:
    scene.subscribe(1, "+/t/a")
    scene.publish(0, "$x/t/a")
    assert scene.wanted is None
    scene.objects(Rule.DOLLAR, 1, "$x/t/a")


def test_after_unsubscribe_nothing_new_comes(scene: Scene) -> None:
    scene.subscribe(1, "t/a")
    scene.unsubscribe(1, "t/a")
    scene.publish(0, "t/a")
    scene.objects(Rule.UNSUBSCRIBED, 1, "t/a")


@pytest.mark.parametrize("share", ["", "$share/g/"])
def test_what_was_published_before_does_not_come(scene: Scene, share: str) -> None:
    scene.publish(0, "t/a", qos=1)
    scene.subscribe(1, f"{share}t/a")
    scene.objects(Rule.TOO_EARLY, 1, "t/a")


def test_code_0x11_for_a_filter_that_existed_is_refused(scene: Scene) -> None:
    scene.subscribe(1, "t/a")
    with pytest.raises(ViolationError) as seen:
        scene.unsubscribe(1, "t/a", 0x11)
    assert seen.value.rule is Rule.UNSUBACK_CODE


def test_code_0_for_a_filter_that_did_not_exist_is_fine(scene: Scene) -> None:
    scene.unsubscribe(1, "t/a", 0)


# Order and windows


def test_one_publishers_messages_keep_their_order(scene: Scene) -> None:
    scene.subscribe(1, "t/#")
    scene.publish(0, "t/a", b"1")
    scene.publish(0, "t/a", b"2")
    scene.receive(1, "t/a", b"2")
    scene.objects(Rule.ORDER, 1, "t/a", b"1")


def test_other_topics_and_publishers_have_no_order(scene: Scene) -> None:
    scene.subscribe(1, "t/#")
    scene.publish(0, "t/a", b"1")
    scene.publish(0, "t/b", b"2")
    scene.publish(1, "t/a", b"3")
    for topic, payload in (("t/a", b"3"), ("t/b", b"2"), ("t/a", b"1")):
        scene.receive(1, topic, payload)


def test_receive_maximum_is_never_exceeded() -> None:
    scene = Scene()
    scene.connect(0)
    scene.connect(1, receive_maximum=1)
    scene.subscribe(1, s("t/#", 1))
    scene.publish(0, "t/a", b"1", qos=1)
    scene.publish(0, "t/a", b"2", qos=1)
    scene.receive(1, "t/a", b"1", qos=1, packet_id=1, ack=False)
    scene.objects(Rule.RECEIVE_MAXIMUM, 1, "t/a", b"2", qos=1, packet_id=2)


def test_a_packet_identifier_in_use_is_not_given_again(scene: Scene) -> None:
    scene.subscribe(1, s("t/#", 1))
    scene.publish(0, "t/a", b"1", qos=1)
    scene.publish(0, "t/b", b"2", qos=1)
    scene.receive(1, "t/a", b"1", qos=1, packet_id=5, ack=False)
    scene.objects(Rule.PACKET_ID, 1, "t/b", b"2", qos=1, packet_id=5)


def test_aliases_are_those_that_the_client_takes(scene: Scene) -> None:
    scene.connect(2, topic_alias_maximum=1)
    scene.subscribe(2, "t/a")
    scene.publish(0, "t/a", b"1")
    scene.receive(2, "t/a", b"1", topic_alias=1)
    scene.publish(0, "t/a", b"2")
    scene.receive(2, "", b"2", topic_alias=1)
    scene.publish(0, "t/a", b"3")
    scene.objects(Rule.ALIAS, 2, "t/a", b"3", topic_alias=2)


# Retained messages


def test_retain_handling(scene: Scene) -> None:
    scene.publish(0, "t/a", qos=1, retain=True)
    for handling, owed in ((2, False), (0, True), (1, False), (0, True)):
        scene.subscribe(1, s("t/a", retain_handling=handling))
        assert scene.wanted is (Rule.RETAINED_UNSENT if owed else None)
        if owed:
            scene.receive(1, "t/a", retain=True)
    scene.objects(Rule.DUPLICATE, 1, "t/a", retain=True)


def test_retain_handling_2_brings_nothing(scene: Scene) -> None:
    scene.publish(0, "t/a", retain=True)
    scene.subscribe(1, s("t/a", retain_handling=2))
    scene.objects(Rule.RETAINED_UNWANTED, 1, "t/a", retain=True)


def test_retained_messages_have_the_flag(scene: Scene) -> None:
    scene.publish(0, "t/a", qos=1, retain=True)
    scene.subscribe(1, "t/a")
    scene.objects(Rule.RETAIN_FLAG_OF_RETAINED, 1, "t/a", retain=False)


def test_a_retained_message_is_replaced_and_removed(scene: Scene) -> None:
    scene.publish(0, "t/a", b"1", retain=True)
    scene.publish(0, "t/a", b"2", retain=True)
    scene.subscribe(1, "t/a")
    scene.objects(Rule.RETAINED_STALE, 1, "t/a", b"1", retain=True)
    scene.receive(1, "t/a", b"2", retain=True)
    scene.publish(0, "t/a", b"", retain=True)
    scene.receive(1, "t/a", b"")
    scene.subscribe(1, "t/a")
    assert scene.wanted is None
    scene.objects(Rule.DUPLICATE, 1, "t/a", b"2", retain=True)


def test_of_two_retained_at_once_either_stays(scene: Scene) -> None:
    scene.referee.burst(begins=True)
    scene.publish(0, "t/a", b"1", retain=True)
    scene.publish(1, "t/a", b"2", retain=True)
    scene.referee.burst(begins=False)
    scene.subscribe(1, "t/a")
    assert scene.wanted is None
    scene.receive(1, "t/a", b"1", retain=True)


def test_shares_bring_no_retained_messages(scene: Scene) -> None:
    scene.publish(0, "t/a", retain=True)
    scene.subscribe(1, "$share/g/t/a")
    assert scene.wanted is None
    scene.objects(Rule.RETAINED_FOR_SHARE, 1, "t/a", retain=True)


def test_nobody_has_a_right_to_retained_messages_at_qos_0() -> None:
    scene = Scene()
    scene.connect(0)
    scene.connect(1)
    scene.publish(0, "t/a", retain=True)
    scene.subscribe(1, "t/a")
    assert scene.wanted is None
    scene.receive(1, "t/a", retain=True)


# Shares


def test_a_share_gives_one_member_one_copy(scene: Scene) -> None:
    scene.subscribe(0, s("$share/g/t/a", 1))
    scene.subscribe(1, s("$share/g/t/a", 1))
    scene.publish(0, "t/a", qos=1)
    assert scene.wanted is Rule.SHARE_UNDELIVERED
    scene.receive(1, "t/a", qos=1)
    assert scene.wanted is None
    scene.objects(Rule.SHARE_TWICE, 0, "t/a", qos=1)


def test_copies_of_a_share_and_of_own_subscriptions_are_told_apart_whatever_their_order(scene: Scene) -> None:
    scene.subscribe(1, s("t/#"))
    scene.subscribe(1, s("t/a"), identifier=2)
    scene.subscribe(1, s("$share/g/t/a"))
    scene.subscribe(1, s("$share/g/t/#"), identifier=2)
    scene.publish(0, "t/a")
    for identifiers in ((2,), (2,), ()):
        scene.receive(1, "t/a", identifiers=identifiers)
    assert scene.wanted is None


def test_subscribing_again_to_a_share_may_change_its_options_or_not(scene: Scene) -> None:
    scene.subscribe(1, s("$share/g/t/a"))
    scene.subscribe(1, s("$share/g/t/a", retain_as_published=True))
    for payload, retain in ((b"1", False), (b"2", True)):
        scene.publish(0, "t/a", payload, retain=True)
        scene.receive(1, "t/a", payload, retain=retain)
    assert scene.wanted is None


def test_subscribing_again_to_a_filter_replaces_its_options(scene: Scene) -> None:
    scene.subscribe(1, "t/#")
    scene.subscribe(1, "t/a")
    scene.subscribe(1, s("t/a", no_local=True), identifier=2)
    scene.publish(1, "t/a")
    scene.receive(1, "t/a")
    scene.objects(Rule.NO_LOCAL, 1, "t/a", identifiers=(2,))


def test_a_member_that_is_away_may_be_the_one(scene: Scene) -> None:
    scene.connect(2, clean=False, kept_s=1e5)
    scene.subscribe(2, s("$share/g/t/a", 1))
    scene.subscribe(1, s("$share/g/t/a", 1))
    scene.lose(2)
    scene.publish(0, "t/a", qos=1)
    assert scene.wanted is None
    scene.connect(2, clean=False, kept_s=1e5, present=True)
    scene.receive(2, "t/a", qos=1)


# Sessions


def lasting(scene: Scene, client: int, *, version: int = 5, present: bool = False) -> Link:
    kept_s = float("inf") if version < 5 else 1e5
    return scene.connect(client, version=version, clean=False, kept_s=kept_s, present=present)


@pytest.mark.parametrize("version", [4, 5])
def test_a_lasting_session_keeps_qos_1_and_may_keep_qos_0(scene: Scene, version: int) -> None:
    lasting(scene, 2, version=version)
    scene.subscribe(2, s("t/a", 1))
    scene.lose(2)
    scene.publish(0, "t/a", b"0")
    scene.publish(0, "t/a", b"1", qos=1)
    lasting(scene, 2, version=version, present=True)
    assert scene.wanted is Rule.QUEUED_LOST
    scene.receive(2, "t/a", b"1", qos=1)
    assert scene.wanted is None
    scene.receive(2, "t/a", b"0")


def test_session_present_must_be_right(scene: Scene) -> None:
    lasting(scene, 2)
    scene.lose(2)
    with pytest.raises(ViolationError) as seen:
        lasting(scene, 2, present=False)
    assert seen.value.rule is Rule.SESSION_LOST
    with pytest.raises(ViolationError) as seen:
        scene.connect(3, clean=False, present=True)
    assert seen.value.rule is Rule.SESSION_LEFT
    with pytest.raises(ViolationError) as seen:
        scene.connect(4, present=True)
    assert seen.value.rule is Rule.SESSION_KEPT_AT_CLEAN


def test_a_session_ends_with_its_expiry(scene: Scene) -> None:
    scene.connect(2, clean=False, kept_s=50)
    scene.lose(2)
    scene.move(90)
    scene.connect(2, clean=False, kept_s=50, present=False)


def test_a_session_that_asks_for_more_than_it_was_granted_may_end_with_that(scene: Scene) -> None:
    """CONNACK is the only packet in which a server can say so."""
    granted, more = Properties(session_expiry_interval=30), Properties(session_expiry_interval=100_000)
    for present in (False, True):
        scene.connect(2, clean=False, kept_s=100_000, granted=granted)
        scene.put(2, Disconnect(properties=more))
        scene.lose(2)
        scene.move(90)
        scene.connect(2, clean=False, kept_s=0, present=present)
        scene.lose(2)


def test_what_was_not_acknowledged_comes_again_with_dup(scene: Scene) -> None:
    lasting(scene, 2)
    scene.subscribe(2, s("t/a", 1))
    scene.publish(0, "t/a", qos=1)
    scene.receive(2, "t/a", qos=1, packet_id=9, ack=False)
    scene.lose(2)
    lasting(scene, 2, present=True)
    assert scene.wanted is Rule.NOT_RESENT
    scene.objects(Rule.DUP, 2, "t/a", qos=1, packet_id=9)
    scene.receive(2, "t/a", qos=1, packet_id=9, dup=True)
    assert scene.wanted is None


def test_dup_at_the_first_delivery_is_refused(scene: Scene) -> None:
    lasting(scene, 2)
    scene.subscribe(2, s("t/a", 1))
    scene.lose(2)
    scene.publish(0, "t/a", qos=1)
    lasting(scene, 2, present=True)
    scene.objects(Rule.DUP, 2, "t/a", qos=1, dup=True)


def test_after_pubrec_only_pubrel_comes_again(scene: Scene) -> None:
    lasting(scene, 2)
    scene.subscribe(2, s("t/a", 2))
    scene.publish(0, "t/a", qos=2)
    scene.receive(2, "t/a", qos=2, packet_id=3)
    scene.put(2, Pubrec(packet_id=3))
    assert scene.wanted is Rule.PUBREL
    scene.get(2, Pubrel(packet_id=3))
    scene.lose(2)
    lasting(scene, 2, present=True)
    assert scene.wanted is Rule.NOT_RESENT
    scene.objects(Rule.AFTER_PUBREC, 2, "t/a", qos=2, packet_id=3, dup=True)
    scene.get(2, Pubrel(packet_id=3))
    scene.put(2, Pubcomp(packet_id=3))
    assert scene.wanted is None


def test_5_0_resends_only_after_a_reconnect_and_311_may_at_any_time(scene: Scene) -> None:
    for client, version in ((2, 5), (3, 4)):
        scene.connect(client, version=version)
        scene.subscribe(client, s("t/a", 1))
    scene.publish(0, "t/a", qos=1)
    for client in (2, 3):
        scene.receive(client, "t/a", qos=1, ack=False)
    scene.receive(3, "t/a", qos=1, dup=True, ack=False)
    scene.objects(Rule.RESENT, 2, "t/a", qos=1, dup=True)


def test_a_qos_2_publish_that_is_finished_later_arrives_once(scene: Scene) -> None:
    lasting(scene, 2)
    scene.subscribe(1, s("t/a", 2))
    scene.put(2, Publish(topic="t/a", payload=b"m", qos=2, packet_id=1))
    scene.lose(2)
    assert scene.wanted is None, "a server may deliver at PUBLISH or at PUBREL"
    lasting(scene, 2, present=True)
    scene.put(2, Publish(topic="t/a", payload=b"m", qos=2, packet_id=1, dup=True))
    scene.get(2, Pubrec(packet_id=1))
    scene.put(2, Pubrel(packet_id=1))
    scene.get(2, Pubcomp(packet_id=1))
    assert scene.wanted is Rule.UNDELIVERED
    scene.receive(1, "t/a", qos=2, packet_id=1)
    scene.objects(Rule.DUPLICATE, 1, "t/a", qos=2, packet_id=2)


def test_a_qos_1_publish_that_was_repeated_may_arrive_twice(scene: Scene) -> None:
    lasting(scene, 2)
    scene.subscribe(1, s("t/a", 1))
    scene.put(2, Publish(topic="t/a", payload=b"m", qos=1, packet_id=1))
    scene.lose(2)
    scene.receive(1, "t/a", qos=1)
    lasting(scene, 2, present=True)
    scene.put(2, Publish(topic="t/a", payload=b"m", qos=1, packet_id=1, dup=True))
    scene.get(2, Puback(packet_id=1))
    assert scene.wanted is None
    scene.receive(1, "t/a", qos=1)
    scene.objects(Rule.DUPLICATE, 1, "t/a", qos=1)


def test_a_takeover_ends_the_older_connection(scene: Scene) -> None:
    older = scene.links[1]
    scene.connect(1)
    assert scene.wanted is Rule.TAKEOVER
    scene.referee.ended(older, scene.now, by_broker=True)
    assert scene.wanted is None


def test_an_end_for_no_reason_is_a_finding(scene: Scene) -> None:
    with pytest.raises(ViolationError) as seen:
        scene.referee.ended(scene.links[1], scene.now, by_broker=True)
    assert seen.value.rule is Rule.ENDED


def test_keep_alive_ends_the_connection_of_a_silent_client(scene: Scene) -> None:
    link = scene.connect(2, keep_alive_s=50)
    scene.move(60)
    assert scene.wanted is None
    scene.move(30)
    assert scene.wanted is Rule.KEEP_ALIVE
    scene.referee.ended(link, scene.now, by_broker=True)
    assert scene.wanted is None


# Wills


def test_a_will_is_owed_when_the_connection_breaks_and_not_after_disconnect(scene: Scene) -> None:
    scene.subscribe(1, "t/w")
    will = Will(topic="t/w", payload=b"will")
    scene.connect(2, will=will)
    scene.put(2, Disconnect())
    assert scene.wanted is None
    scene.objects(Rule.WILL_UNWANTED, 1, "t/w", b"will")
    scene.connect(3, will=Will(topic="t/w", payload=b"other"))
    scene.objects(Rule.WILL_EARLY, 1, "t/w", b"other")
    scene.lose(3)
    assert scene.wanted is Rule.WILL_UNSENT
    scene.receive(1, "t/w", b"other")
    assert scene.wanted is None


def test_a_will_waits_for_its_delay_or_the_end_of_its_session(scene: Scene) -> None:
    scene.subscribe(1, "t/w")
    delayed = Will(topic="t/w", payload=b"1", properties=Properties(will_delay_interval=50))
    scene.connect(2, will=delayed, clean=False, kept_s=1e5)
    scene.lose(2)
    scene.objects(Rule.WILL_EARLY, 1, "t/w", b"1")
    scene.move(90)
    assert scene.wanted is Rule.WILL_UNSENT
    scene.receive(1, "t/w", b"1")
    scene.connect(3, will=Will(topic="t/w", payload=b"2", properties=Properties(will_delay_interval=50)))
    scene.lose(3)
    assert scene.wanted is Rule.WILL_UNSENT, "its session has ended"


def test_who_comes_back_in_time_has_no_will(scene: Scene) -> None:
    scene.subscribe(1, "t/w")
    delayed = Will(topic="t/w", payload=b"1", properties=Properties(will_delay_interval=50))
    scene.connect(2, will=delayed, clean=False, kept_s=1e5)
    scene.lose(2)
    scene.connect(2, clean=False, kept_s=1e5, present=True)
    scene.move(90)
    assert scene.wanted is None
    scene.objects(Rule.WILL_UNWANTED, 1, "t/w", b"1")


def test_after_a_crash_wills_may_come_or_not(scene: Scene) -> None:
    lasting(scene, 2)
    scene.subscribe(2, "t/w")
    scene.connect(3, will=Will(topic="t/w", payload=b"w"))
    scene.referee.restarted(scene.now)
    lasting(scene, 2, present=True)
    assert scene.wanted is None
    scene.receive(2, "t/w", b"w")


# Message expiry and properties


def test_expired_messages_do_not_come(scene: Scene) -> None:
    lasting(scene, 2)
    scene.subscribe(2, s("t/a", 1))
    scene.lose(2)
    scene.publish(0, "t/a", qos=1, message_expiry_interval=50)
    scene.move(90)
    lasting(scene, 2, present=True)
    assert scene.wanted is None
    scene.objects(Rule.EXPIRED, 2, "t/a", qos=1, message_expiry_interval=50)


def test_the_expiry_interval_is_counted_down(scene: Scene) -> None:
    lasting(scene, 2)
    scene.subscribe(2, s("t/a", 1))
    scene.lose(2)
    scene.publish(0, "t/a", qos=1, message_expiry_interval=100_000)
    scene.move(90)
    lasting(scene, 2, present=True)
    with pytest.raises(ViolationError) as seen:
        scene.receive(2, "t/a", qos=1, message_expiry_interval=100_000, packet_id=1)
    assert seen.value.rule is Rule.EXPIRY_INTERVAL


def test_what_was_under_way_as_the_clock_was_moved_is_as_it_was_sent(scene: Scene) -> None:
    """PINGRESP may overtake it, so nobody can tell; some time later it is counted down."""
    for later_s, is_fine in ((1, True), (10, False)):
        scene.connect(2)
        scene.subscribe(2, "t/a")
        scene.publish(0, "t/a", message_expiry_interval=100_000)
        scene.move(90)
        scene.now += later_s
        if is_fine:
            scene.receive(2, "t/a", message_expiry_interval=100_000)
        else:
            scene.objects(Rule.EXPIRY_INTERVAL, 2, "t/a", message_expiry_interval=100_000)
        scene.lose(2)


def test_empty_messages_are_told_apart_by_their_expiry(scene: Scene) -> None:
    scene.subscribe(1, "t/+")
    scene.subscribe(1, "t/#")
    scene.publish(0, "t/a", b"")
    scene.receive(1, "t/a", b"")
    scene.publish(0, "t/a", b"")
    scene.publish(1, "t/a", b"", message_expiry_interval=50)
    scene.receive(1, "t/a", b"", message_expiry_interval=50)
    scene.receive(1, "t/a", b"")
    assert scene.wanted is None


def test_an_empty_message_at_qos_2_is_not_taken_for_a_further_copy_of_an_older_one(scene: Scene) -> None:
    scene.connect(2, version=4)
    scene.publish(0, "t/a", b"1", retain=True)
    scene.subscribe(2, "t/+", "t/#")
    scene.publish(0, "t/a", b"", retain=True)
    scene.receive(2, "t/a", b"")
    scene.put(0, Publish(topic="t/a", payload=b"", qos=2, packet_id=80))
    scene.receive(2, "t/a", b"")
    scene.get(0, Pubrec(packet_id=80))
    scene.put(0, Pubrel(packet_id=80))
    scene.get(0, Pubcomp(packet_id=80))
    assert scene.wanted is None


def test_properties_reach_the_subscriber_unaltered(scene: Scene) -> None:
    scene.subscribe(1, "t/a")
    scene.publish(0, "t/a", payload_format_indicator=1)
    scene.objects(Rule.PROPERTIES, 1, "t/a")

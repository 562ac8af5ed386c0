"""Topic names, filters and routing against a few-line oracle."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay.reference_broker.core.routing import Subscription, SubscriptionTree
from assay.reference_broker.mqtt.sessions.retained import RetainedStore
from assay.reference_broker.mqtt.sessions.session import Session
from assay.reference_broker.routing.message import Message
from assay.reference_broker.routing.topics import TopicError, matches, split_shared, validate_filter, validate_topic

LEVELS = st.sampled_from(["", "a", "b", "$x"])
TOPICS = st.lists(LEVELS, min_size=1, max_size=4).map("/".join).filter(bool)


@st.composite
def filters(draw: st.DrawFn) -> str:
    levels = draw(st.lists(LEVELS | st.just("+"), max_size=4))
    if draw(st.booleans()) or not levels:
        levels.append("#")
    return "/".join(levels) or "#"


def oracle(topic_filter: str, topic: str) -> bool:
    """Recursive restatement of section 4.7."""
    if topic[:1] == "$" and topic_filter[:1] in {"+", "#"}:
        return False

    def below(pattern: list[str], levels: list[str]) -> bool:
        if not pattern:
            return not levels
        if pattern[0] == "#":
            return True
        return bool(levels) and pattern[0] in {"+", levels[0]} and below(pattern[1:], levels[1:])

    return below(topic_filter.split("/"), topic.split("/"))


@given(filters(), TOPICS)
def test_matching_agrees_with_the_oracle(topic_filter: str, topic: str) -> None:
    assert matches(topic_filter, topic) == oracle(topic_filter, topic)


@pytest.mark.parametrize(
    ("topic_filter", "topic", "expected"),
    [
        ("sport/#", "sport", True),
        ("sport/+", "sport", False),
        ("sport/+", "sport/", True),
        ("+/+", "/finance", True),
        ("/+", "/finance", True),
        ("+", "/finance", False),
        ("#", "$SYS/a", False),
        ("+/a", "$SYS/a", False),
        ("$SYS/#", "$SYS/a", True),
        ("a/$x", "a/$x", True),
        ("a/#", "a/$x", True),
        ("a", "A", False),
    ],
)
def test_examples_of_section_4_7(topic_filter: str, topic: str, expected: bool) -> None:
    assert matches(topic_filter, topic) is expected


@given(st.lists(filters(), min_size=1, max_size=6, unique=True), st.lists(TOPICS, min_size=1, max_size=6))
def test_the_tree_routes_as_the_oracle_says_also_while_filters_come_and_go(
    topic_filters: list[str], topics: list[str]
) -> None:
    tree = SubscriptionTree()
    present: dict[str, Session] = {}
    for topic_filter in topic_filters:
        session = present[topic_filter] = Session(topic_filter)
        tree.add(session, Subscription(topic_filter=topic_filter, qos=1))
        for topic in topics:
            expected = {name for name in present if oracle(name, topic)}
            assert {entry.subscriber.client_id for entry in tree.route(topic).entries} == expected
    for topic_filter in topic_filters:
        tree.remove(present.pop(topic_filter), Subscription(topic_filter=topic_filter, qos=1))
        for topic in topics:
            expected = {name for name in present if oracle(name, topic)}
            assert {entry.subscriber.client_id for entry in tree.route(topic).entries} == expected


@given(st.lists(TOPICS, max_size=8), filters())
def test_retained_messages_are_found_as_the_oracle_says(topics: list[str], topic_filter: str) -> None:
    store = RetainedStore(100)
    for topic in topics:
        store.store(Message(topic=topic, payload=topic.encode(), retain=True))
    found = [message.topic for message in store.match(topic_filter, 0.0)]
    assert sorted(found) == sorted(topic for topic in set(topics) if oracle(topic_filter, topic))
    for topic in topics:
        store.store(Message(topic=topic, payload=b"", retain=True))
    assert len(store) == 0
    assert not list(store.match("#", 0.0))


def test_all_retained_messages_are_found_and_each_time_in_the_order_of_their_topics_arrival() -> None:
    store = RetainedStore(100)
    topics = [f"t/{number * 7 % 30}" for number in range(30)]
    for topic in topics:
        store.store(Message(topic=topic, payload=b"1", retain=True))
    for topic in topics[::-1]:
        store.store(Message(topic=topic, payload=b"2", retain=True))
    for topic_filter in ("t/+", "t/#", "#", "+/+"):
        for _ in range(3):
            assert [message.topic for message in store.match(topic_filter, 0.0)] == topics


def test_retained_store_is_bounded_and_expires() -> None:
    store = RetainedStore(1)
    assert store.store(Message(topic="a", payload=b"1", expires_at=5.0))
    assert not store.store(Message(topic="b/c", payload=b"2"))
    assert store.store(Message(topic="a", payload=b"3", expires_at=5.0)), "replacing needs no room"
    assert [m.payload for m in store.match("a", 4.9)] == [b"3"]
    assert not list(store.match("a", 5.0))
    assert store.store(Message(topic="b/c", payload=b"2")), "the expired one made room"


def test_where_filters_of_one_session_overlap_the_others_are_missed_by_none() -> None:
    tree = SubscriptionTree()
    filters = {"exact": ("a/b",), "both": ("a/b", "a/+", "#"), "wild": ("a/+",), "all": ("#",)}
    for name, topic_filters in filters.items():
        session = Session(name)
        for topic_filter in topic_filters:
            tree.add(session, Subscription(topic_filter=topic_filter, qos=0))
    for topic, wanted in (("a/b", ["all", "both", "exact", "wild"]), ("a/c", ["all", "both", "wild"])):
        assert sorted(entry.subscriber.client_id for entry in tree.route(topic).entries) == wanted


def test_overlapping_subscriptions_give_one_copy_at_the_highest_qos_with_all_identifiers() -> None:
    tree = SubscriptionTree()
    session = Session("s")
    for topic_filter, qos, identifier in (("a/#", 2, 7), ("a/+", 0, 9), ("a/b", 1, 0)):
        tree.add(session, Subscription(topic_filter=topic_filter, qos=qos, identifier=identifier))
    (entry,) = tree.route("a/b").entries
    assert entry.qos == 2
    assert sorted(entry.identifiers) == [7, 9]


@pytest.mark.parametrize("topic_filter", ["", "a#", "#/a", "a/#/b", "a+/b", "+a", "a/b+"])
def test_bad_filters_are_refused(topic_filter: str) -> None:
    with pytest.raises(TopicError):
        validate_filter(topic_filter)


@pytest.mark.parametrize("topic", ["", "a/+", "#", "a#"])
def test_bad_topic_names_are_refused(topic: str) -> None:
    with pytest.raises(TopicError):
        validate_topic(topic)


def test_levels_are_limited() -> None:
    validate_topic("/" * 3, max_levels=4)
    with pytest.raises(TopicError):
        validate_topic("/" * 4, max_levels=4)


@pytest.mark.parametrize(
    "topic_filter", ["$share/", "$share/g", "$share//a", "$share/g+/a", "$share/g#/a", "$share/g/"]
)
def test_bad_share_names_are_refused(topic_filter: str) -> None:
    with pytest.raises(TopicError):
        split_shared(topic_filter)


def test_share_names_are_split_off() -> None:
    assert split_shared("$share/g/a/b") == ("g", "a/b")
    assert split_shared("$shared/g/a") == (None, "$shared/g/a")


def test_no_local_subscriptions_do_not_count_for_ones_own_publishes() -> None:
    tree = SubscriptionTree()
    session = Session("s")
    tree.add(session, Subscription(topic_filter="a/#", qos=2, identifier=7, no_local=True))
    tree.add(session, Subscription(topic_filter="a/b", qos=1, identifier=9))
    (entry,) = tree.route("a/b").entries
    assert (entry.qos, sorted(entry.identifiers)) == (2, [7, 9])
    assert entry.own is not None
    assert (entry.own.qos, entry.own.identifiers) == (1, (9,))
    (only,) = tree.route("a/c").entries
    assert only.own is None

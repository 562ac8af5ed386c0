"""A cached answer for a topic is held against the filters that came or went: never fewer than match, seldom more."""

from __future__ import annotations

from weakref import ref

from hypothesis import given
from hypothesis import strategies as st

from assay.reference_broker.core.filter_changes import MAX_FILTERS, FilterChanges
from assay.reference_broker.core.routing import Subscription, SubscriptionTree
from assay.reference_broker.mqtt.sessions.session import Session
from assay.reference_broker.routing.topics import matches

LEVELS = st.sampled_from(["a", "b", "", "c"])
TOPICS = st.lists(LEVELS, min_size=1, max_size=4).map("/".join).filter(bool)
FILTERS = st.builds(
    lambda levels, rest: "/".join([*levels, *(["#"] if rest else [])]),
    st.lists(st.one_of(LEVELS, st.just("+")), min_size=1, max_size=4),
    st.booleans(),
).filter(lambda text: "+" in text or "#" in text)


def _note(changes: FilterChanges, topic_filter: str) -> bool:
    return changes.note(topic_filter, topic_filter.split("/"))


@given(st.lists(FILTERS, max_size=12), TOPICS, st.data())
def test_a_topic_is_concerned_by_exactly_the_filters_that_match_it(
    changed: list[str], topic: str, data: st.DataObject
) -> None:
    changes = FilterChanges()
    for topic_filter in changed:
        _note(changes, topic_filter)
    assert changes.count == len(changed)
    since = data.draw(st.integers(0, len(changed)))
    assert changes.concern(topic, since) is any(matches(topic_filter, topic) for topic_filter in changed[since:])


def test_what_is_forgotten_concerns_every_topic_that_is_older() -> None:
    changes = FilterChanges()
    assert sum(_note(changes, f"x/{number}/+") for number in range(MAX_FILTERS)) == 0
    known = changes.count
    assert not changes.concern("a", 0)
    assert _note(changes, "y/one-too-many/+")
    assert changes.concern("a", 0)
    assert changes.concern("a", known)
    assert not changes.concern("a", changes.count)
    _note(changes, "y/next/+")
    assert not changes.concern("a", known + 1)
    assert changes.concern("y/next/z", known + 1)


def test_one_filter_that_comes_and_goes_for_ever_makes_nobody_forget() -> None:
    changes = FilterChanges()
    for _ in range(3 * MAX_FILTERS):
        _note(changes, "x/+")
    assert not changes.concern("a", 0)
    assert changes.concern("x/y", changes.count - 1)


def test_a_route_stays_while_foreign_filters_come_and_go() -> None:
    tree = SubscriptionTree()
    session, other = Session("s"), Session("o")
    tree.add(session, Subscription(topic_filter="a/+", qos=0))
    route = tree.route("a/b")
    for _ in range(2 * MAX_FILTERS):
        for subscription in (Subscription(topic_filter="a/+/c", qos=0), Subscription(topic_filter="+/c", qos=1)):
            tree.add(other, subscription)
            assert tree.route("a/b") is route
            tree.remove(other, subscription)
    tree.add(other, Subscription(topic_filter="+/b", qos=1))
    assert {entry.subscriber for entry in tree.route("a/b").entries} == {session, other}


def test_cached_routes_do_not_keep_sessions_that_ended() -> None:
    tree = SubscriptionTree()
    stays = Session("stays")
    tree.add(stays, Subscription(topic_filter="z/+", qos=0))
    gone = []
    for number in range(2 * MAX_FILTERS):
        session = Session(f"s{number}")
        subscription = Subscription(topic_filter=f"x/{number}/+", qos=0)
        tree.add(session, subscription)
        assert [entry.subscriber for entry in tree.route(f"x/{number}/a").entries] == [session]
        tree.remove(session, subscription)
        gone.append(ref(session))
        del session
    assert sum(session() is not None for session in gone) <= MAX_FILTERS
    tree.remove(stays, Subscription(topic_filter="z/+", qos=0))
    assert not any(session() for session in gone)

"""Retained messages: walks that stop and go on while the tree changes, against a plain dict of topics."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from assay.reference_broker.mqtt.sessions.retained import RetainedStore
from assay.reference_broker.routing.message import Message
from assay.reference_broker.routing.topics import matches

NAMES = ("a", "b", "", "$x", "c1")
FILTERS = ("#", "+", "+/#", "a/#", "a/+/b", "+/+", "/#", "$x/#", "$x/+", "a/b", "+/b/#", "a/+/#", "nowhere/#")


def _message(topic: str, number: int, expires_at: float = 0.0) -> Message:
    return Message(topic=topic, payload=b"%d" % number, retain=True, expires_at=expires_at)


def _store(*topics: str) -> RetainedStore:
    store = RetainedStore(100_000)
    for number, topic in enumerate(topics):
        assert store.store(_message(topic, number))
    return store


def _rest(walk: Iterator[Message | None]) -> list[str]:
    return [message.topic for message in walk if message is not None]


def _topics(rng: random.Random, count: int) -> list[str]:
    return ["/".join(rng.choices(NAMES, k=rng.randint(1, 4))) for _ in range(count)]


@pytest.mark.parametrize("seed", range(6))
def test_a_walk_finds_what_stays_once_and_as_it_is_then(seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(60):
        store = RetainedStore(10_000)
        model: dict[str, bytes] = {}
        for number, topic in enumerate(_topics(rng, 40)):
            store.store(_message(topic, number))
            model[topic] = b"%d" % number
        topic_filter = rng.choice(FILTERS)
        stays = {topic for topic in model if matches(topic_filter, topic)}
        walk = store.walk(topic_filter, lambda: 0.0, store.newest)
        found: list[str] = []
        number = 1_000
        for message in walk:
            if message is not None:
                assert matches(topic_filter, message.topic)
                assert message.payload == model[message.topic], f"seed {seed}: not what the topic has now"
                found.append(message.topic)
            for topic in _topics(rng, rng.randint(0, 2)):
                number += 1
                if rng.random() < 0.5:
                    store.store(_message(topic, number))
                    model[topic] = b"%d" % number
                else:
                    store.store(Message(topic=topic, payload=b""))
                    model.pop(topic, None)
                    stays.discard(topic)
        assert stays <= set(found), f"seed {seed}, {topic_filter}: passed over {stays - set(found)}"
        assert len(store) == len(model)
        assert {message.topic: message.payload for message in store.match("#", 0.0)} == {
            topic: payload for topic, payload in model.items() if topic[:1] != "$"
        }


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("topic_filter", FILTERS)
def test_matching_is_that_of_the_filter(topic_filter: str, seed: int) -> None:
    topics = list(dict.fromkeys(_topics(random.Random(seed), 200)))
    store = _store(*topics)
    found = _rest(store.walk(topic_filter, lambda: 0.0, store.newest))
    assert sorted(found) == sorted(topic for topic in topics if matches(topic_filter, topic))


def test_a_walk_ends_although_topics_keep_coming() -> None:
    store = _store("t/0")
    for number, message in enumerate(store.walk("#", lambda: 0.0, store.newest), 1):
        assert number < 10
        assert message is None or message.topic == "t/0"
        store.store(_message(f"t/{number}", number))
        store.store(_message(f"u{number}", number))


@pytest.mark.parametrize("gone", [("t/1",), ("t/1", "t/2"), ("t/2", "t/1"), ("t/1", "t/2", "t/3", "t/4")])
def test_a_walk_that_stopped_at_what_is_removed_comes_back_to_what_is_left(gone: tuple[str, ...]) -> None:
    store = _store(*(f"t/{number}" for number in range(6)))
    walk = store.walk("t/#", lambda: 0.0, store.newest)
    for message in walk:
        if message is not None:
            break
    for topic in gone:
        store.store(Message(topic=topic, payload=b""))
    assert _rest(walk) == [f"t/{number}" for number in range(1, 6) if f"t/{number}" not in gone]


def test_what_expires_on_the_way_is_not_found_and_goes() -> None:
    now = 100.0
    store = RetainedStore(10)
    for number in range(4):
        store.store(_message(f"t/{number}", number, expires_at=101.0 + number))
    walk = store.walk("t/+", lambda: now, store.newest)
    assert next(message for message in walk if message is not None).topic == "t/0"
    now = 102.5
    assert _rest(walk) == ["t/2", "t/3"]
    assert len(store) == 3
    assert store.get("t/1") is None


def test_deep_and_wide_trees_take_a_step_for_each_level() -> None:
    deep = "/".join("x" * 128)
    wide = [f"w/{number}" for number in range(5_000)]
    store = _store(deep, *wide)
    assert sum(1 for _ in store.walk("#", lambda: 0.0, store.newest)) == 1 + 128 + 1 + 5_000
    assert sum(1 for _ in store.walk("w/17", lambda: 0.0, store.newest)) == 3
    assert _rest(store.walk("/".join("+" * 128), lambda: 0.0, store.newest)) == [deep]
    for topic in [deep, *wide]:
        store.store(Message(topic=topic, payload=b""))
    assert sum(1 for _ in store.walk("#", lambda: 0.0, store.newest)) == 1, "empty branches are gone"


def test_what_came_before_the_walk_began_and_after_it_was_asked_for_is_not_found() -> None:
    store = _store("a/b", "c")
    newest = store.newest
    for number, topic in enumerate(("a", "a/b/c", "c", "d"), 10):
        store.store(_message(topic, number))
    found = {message.topic: message.payload for message in store.walk("#", lambda: 0.0, newest) if message is not None}
    assert found == {"a/b": b"0", "c": b"12"}, "a level that was there is no message that was"
    store.store(Message(topic="c", payload=b"", retain=True))
    store.store(_message("c", 20))
    assert _rest(store.walk("#", lambda: 0.0, newest)) == ["a/b"], "it came anew"

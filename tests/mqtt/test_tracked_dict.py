"""The dict that remembers which keys changed."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from assay.reference_broker.mqtt.sessions.tracked_dict import TrackedDict

KEYS = st.integers(0, 5)
OPERATIONS = st.lists(
    st.one_of(
        st.tuples(st.just("set"), KEYS, st.integers()),
        st.tuples(st.just("delete"), KEYS, st.just(0)),
        st.tuples(st.just("pop"), KEYS, st.just(0)),
        st.tuples(st.just("popitem"), KEYS, st.just(0)),
        st.tuples(st.just("setdefault"), KEYS, st.integers()),
        st.tuples(st.just("update"), KEYS, st.integers()),
        st.tuples(st.just("merge"), KEYS, st.integers()),
        st.tuples(st.just("clear"), KEYS, st.just(0)),
    ),
    max_size=20,
)


def _apply(target: dict[int, int], kind: str, key: int, value: int) -> None:
    if kind == "set":
        target[key] = value
    elif kind == "delete" or kind == "pop":
        target.pop(key, None)
    elif kind == "popitem":
        if target:
            target.popitem()
    elif kind == "setdefault":
        target.setdefault(key, value)
    elif kind == "update":
        target.update({key: value, key + 1: value})
    elif kind == "merge":
        target |= {key: value}
    else:
        target.clear()


@given(st.dictionaries(KEYS, st.integers()), OPERATIONS)
def test_it_is_a_dict_and_no_change_escapes_it(items: dict[int, int], operations: list[tuple[str, int, int]]) -> None:
    calls = 0

    def count() -> None:
        nonlocal calls
        calls += 1

    watched: TrackedDict[int, int] = TrackedDict(items, count)
    assert list(watched.changed) == list(items)
    watched.changed.clear()
    plain = dict(items)
    for kind, key, value in operations:
        before, calls_before = dict(plain), calls
        _apply(plain, kind, key, value)
        _apply(watched, kind, key, value)
        assert watched == plain
        assert list(watched) == list(plain)
        differing = {each for each in before.keys() | plain.keys() if before.get(each) != plain.get(each)}
        assert differing <= watched.changed.keys()
        assert bool(differing) <= (calls > calls_before)


def test_keys_are_in_the_order_of_their_last_change() -> None:
    watched: TrackedDict[int, int] = TrackedDict({}, lambda: None)
    watched[1] = 1
    watched[2] = 1
    del watched[1]
    watched[1] = 2
    assert list(watched.changed) == [2, 1]

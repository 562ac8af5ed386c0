"""Caches forget, and what they keep is short."""

from __future__ import annotations

import pytest

from assay.reference_broker.queues.messages.partitioner import _KNOWN_HASHES, fnv1a_32
from assay.reference_broker.queues.queue.bindings import Bindings
from assay.reference_broker.routing.remembered import LONGEST_KEY, SharedMemory, remember


def test_long_questions_are_not_remembered() -> None:
    cache: dict[str, int] = {}
    for number in range(10):
        assert remember(cache, "x" * (LONGEST_KEY - 5 + number), number, LONGEST_KEY - 5 + number, 100) == number
    assert len(cache) == 6


def test_so_many_are_remembered_and_then_none() -> None:
    cache: dict[int, int] = {}
    for number in range(25):
        remember(cache, number, number, 1, 10)
        assert len(cache) <= 10
    assert cache == {number: number for number in range(20, 25)}


@pytest.mark.parametrize("key", ["k" * LONGEST_KEY, "k" * (LONGEST_KEY + 1)])
def test_an_answer_is_the_same_whether_it_is_remembered_or_not(key: str) -> None:
    _KNOWN_HASHES.pop(key, None)
    assert fnv1a_32(key) == fnv1a_32(key)
    assert (key in _KNOWN_HASHES) == (len(key) <= LONGEST_KEY)
    bindings = Bindings([("q", ("a/#",))])
    assert bindings.match("a/" + key) == bindings.match("a/" + key) == ("q",)
    assert len(bindings._known) == (len(key) + 2 <= LONGEST_KEY)


class _Cache:
    def __init__(self) -> None:
        self.size = 0

    def forget(self) -> None:
        self.size = 0


def test_when_it_is_too_much_for_all_then_all_forget() -> None:
    shared = SharedMemory(100)
    one, two = _Cache(), _Cache()
    for cache, size in ((one, 60), (two, 40)):
        shared.take(cache, size)
        cache.size += size
    assert shared.used_bytes == 100
    shared.take(two, 1)
    two.size += 1
    assert (one.size, two.size, shared.used_bytes) == (0, 1, 1)
    shared.give_back(one, one.size)
    assert shared.used_bytes == 1
    shared.give_back(two, two.size)
    assert shared.used_bytes == 0

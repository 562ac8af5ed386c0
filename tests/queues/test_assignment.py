"""The assignors as pure functions."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay.reference_broker.config import Assignor
from assay.reference_broker.queues.groups.assignment import Assignment, assign

MEMBERS = [f"c{number}" for number in range(7)]
memberships = st.sets(st.sampled_from(MEMBERS)).map(sorted)


def _assign(assignor: Assignor, partitions: int, members: list[str], previous: Assignment | None = None) -> Assignment:
    return assign(assignor, partitions, members, previous or {})


def _moves(before: Assignment, after: Assignment) -> int:
    """Partitions of members that stay which change hands."""
    owner = {index: member for member, indexes in after.items() for index in indexes}
    return sum(owner[index] != member for member, indexes in before.items() if member in after for index in indexes)


def test_range_gives_the_rest_to_the_last() -> None:
    assert _assign(Assignor.RANGE, 10, ["c", "a", "b"]) == {"a": (0, 1, 2), "b": (3, 4, 5), "c": (6, 7, 8, 9)}
    assert _assign(Assignor.RANGE, 1, ["a", "b"]) == {"a": (), "b": (0,)}


def test_round_robin_deals_in_turn() -> None:
    assert _assign(Assignor.ROUND_ROBIN, 7, ["b", "a", "c"]) == {"a": (0, 3, 6), "b": (1, 4), "c": (2, 5)}


def test_sticky_moves_only_what_it_must() -> None:
    first = _assign(Assignor.STICKY, 6, ["a", "b"])
    assert first == {"a": (0, 1, 2), "b": (3, 4, 5)}
    second = _assign(Assignor.STICKY, 6, ["a", "b", "c"], first)
    assert second == {"a": (0, 1), "b": (3, 4), "c": (2, 5)}
    assert _assign(Assignor.STICKY, 6, ["a", "c"], second) == {"a": (0, 1, 3), "c": (2, 4, 5)}


@pytest.mark.parametrize("assignor", Assignor)
@given(partitions=st.integers(0, 40), rounds=st.lists(memberships, max_size=6))
def test_every_partition_has_one_owner_and_shares_differ_by_one(
    assignor: Assignor, partitions: int, rounds: list[list[str]]
) -> None:
    previous: Assignment = {}
    for members in rounds:
        previous = _assign(assignor, partitions, members, previous)
        assert sorted(previous) == members
        dealt = sorted(index for indexes in previous.values() for index in indexes)
        assert dealt == (list(range(partitions)) if members else [])
        shares = [len(indexes) for indexes in previous.values()]
        assert not shares or max(shares) - min(shares) <= 1
        assert all(list(indexes) == sorted(indexes) for indexes in previous.values())


@pytest.mark.parametrize("assignor", [Assignor.RANGE, Assignor.ROUND_ROBIN])
@given(partitions=st.integers(0, 40), members=memberships, data=st.data())
def test_assignment_depends_on_the_members_alone(
    assignor: Assignor, partitions: int, members: list[str], data: st.DataObject
) -> None:
    shuffled = data.draw(st.permutations(members))
    assert _assign(assignor, partitions, shuffled) == _assign(assignor, partitions, members)


@given(
    owners=st.lists(st.sampled_from([None, "c0", "c1", "c2", "c3"]), max_size=6),
    members=st.sets(st.sampled_from(MEMBERS[:4]), min_size=1, max_size=4).map(sorted),
)
def test_sticky_moves_as_little_as_any_even_assignment(owners: list[str | None], members: list[str]) -> None:
    before: Assignment = {
        member: tuple(index for index, owner in enumerate(owners) if owner == member) for member in MEMBERS[:4]
    }
    after = _assign(Assignor.STICKY, len(owners), members, before)
    least = min(
        sum(owner in members and owner != chosen for owner, chosen in zip(owners, choice, strict=True))
        for choice in itertools.product(members, repeat=len(owners))
        if max(map(choice.count, members)) - min(map(choice.count, members)) <= 1
    )
    assert _moves(before, after) == least


def test_what_is_returned_cannot_change_what_comes_later() -> None:
    previous = {"a": [3, 1], "gone": [0, 2]}
    after = assign(Assignor.STICKY, 4, ["a", "b"], previous)
    assert previous == {"a": [3, 1], "gone": [0, 2]}
    assert all(isinstance(indexes, tuple) for indexes in after.values())
    after.clear()
    assert assign(Assignor.STICKY, 4, ["a", "b"], previous) == {"a": (1, 3), "b": (0, 2)}

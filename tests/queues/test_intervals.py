"""Intervals of offsets against sets of them; what a done log says against a plain reading of it."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from assay.reference_broker.queues.delays.done_records import (
    DoneReader,
    done_records,
    firing_record,
    ranges_of,
    rewind_record,
    waiting_record,
)
from assay.reference_broker.queues.partitions.intervals import Intervals

MOST = 30
OFFSETS = st.integers(0, MOST)
PAIRS = st.lists(st.tuples(OFFSETS, OFFSETS), max_size=12)


def offsets_of(pairs: list[tuple[int, int]]) -> set[int]:
    return {offset for first, end in pairs for offset in range(first, end)}


@given(PAIRS, PAIRS, OFFSETS, OFFSETS)
def test_intervals_are_sets(begun: list[tuple[int, int]], added: list[tuple[int, int]], first: int, end: int) -> None:
    found = Intervals(begun)
    for pair in added:
        found.add(*pair)
    expected = offsets_of(begun) | offsets_of(added)
    assert [offset for offset in range(-1, MOST + 2) if offset in found] == sorted(expected)
    kept = list(found)
    assert all(before[1] < behind[0] for before, behind in pairwise(kept)), "they are whole"
    asked = set(range(first, end))
    assert offsets_of(found.between(first, end)) == expected & asked
    assert offsets_of(found.gaps(first, end)) == asked - expected
    assert found.first_beyond(first) == next(offset for offset in range(first, MOST + 2) if offset not in expected)
    found.drop_below(first)
    assert offsets_of(list(found)) == {offset for offset in expected if offset >= first}


@given(st.sets(OFFSETS))
def test_ranges_are_sets(offsets: set[int]) -> None:
    ranges = ranges_of(sorted(offsets))
    assert offsets_of([(first, first + count) for first, count in ranges]) == offsets


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("done"), OFFSETS, OFFSETS),
        st.tuples(st.just("tell"), OFFSETS, OFFSETS),
        st.tuples(st.just("fire"), OFFSETS, OFFSETS),
        st.tuples(st.just("rewind"), OFFSETS, OFFSETS),
    ),
    max_size=20,
)


@settings(max_examples=300, deadline=None)
@given(STEPS, OFFSETS, OFFSETS)
def test_what_a_done_log_says(steps: list[tuple[str, int, int]], start: int, end: int) -> None:
    """``told`` and ``done`` grow as a store says them; a rewind takes back what concerns the offsets behind it."""
    done: set[int] = set()
    told: set[int] = set()
    firing: dict[int, list[dict[int, int]]] = {}
    reader = DoneReader()
    for number, (step, first, last) in enumerate(steps):
        some = set(range(first, last + 1))
        if step == "done":
            records = done_records(sorted(some), 0) if some else []
            done |= some
        elif step == "tell":
            waiting = [(offset, 1_000 + offset) for offset in sorted(some - done)]
            records = [waiting_record(first, max(first, last + 1), waiting, 0)]
            told |= some
        elif step == "fire" and some:
            records = [firing_record(sorted(some), {3: number}, 0)]
            for offset in some:
                firing.setdefault(offset, []).append({3: number})
        else:
            records = [rewind_record(first, 0)]
            done = {offset for offset in done if offset < first}
            told = {offset for offset in told if offset < first}
            firing = {offset: ends for offset, ends in firing.items() if offset < first}
        for record in records:
            reader.take(record.key or b"", record.value or b"")
    known = reader.known(start, end)
    asked = set(range(start, end))
    runs = [pair for offsets, dues in known.waiting for pair in zip(offsets, dues, strict=True)]
    assert runs == [(offset, 1_000 + offset) for offset in sorted((told - done) & asked)]
    untold = offsets_of(known.untold)
    assert untold == asked - told
    assert {offset for offset in untold if offset in known.done} == untold & done
    assert {offset: ends for offset, ends in known.firing.items() if offset not in done} == {
        offset: ends for offset, ends in firing.items() if offset in asked - done
    }


@given(st.sampled_from([b"done", b"waiting", b"firing", b"rewind", b""]), st.binary(max_size=40))
def test_what_is_no_record_says_nothing_bad(key: bytes, value: bytes) -> None:
    reader = DoneReader()
    if key == b"firing" and len(value) >= 4:
        value = value[:4] + bytes(min(3, value[4] if len(value) > 4 else 0))
    reader.take(key, value)
    reader.known(0, 10)

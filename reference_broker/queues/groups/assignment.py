"""Which consumer of a group serves which partitions: pure functions, whose results are new and immutable."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from assay.reference_broker.config import Assignor

Assignment = dict[str, tuple[int, ...]]
"""Consumer id -> partitions, ascending; every consumer has an entry."""


def assign(
    assignor: Assignor, partitions: int, consumers: Iterable[str], previous: Mapping[str, Iterable[int]]
) -> Assignment:
    """Give every partition from 0 to ``partitions`` - 1 to one consumer; nobody gets any when there is no consumer.

    ``previous`` says who has what now; only the sticky assignor looks at it.
    """
    return _ASSIGNORS[assignor](partitions, sorted(consumers), previous)


def assign_ranges(partitions: int, consumers: Iterable[str]) -> dict[str, range]:
    """Contiguous ranges by consumer id in sorted order; the last ones take one more when it does not divide evenly.

    10 partitions and three consumers give 3, 3 and 4. With more consumers than partitions some get none.
    """
    ids = sorted(consumers)
    if not ids:
        return {}
    share, extra = divmod(partitions, len(ids))
    smaller = len(ids) - extra
    assigned: dict[str, range] = {}
    start = 0
    for index, consumer in enumerate(ids):
        end = start + share + (index >= smaller)
        assigned[consumer] = range(start, end)
        start = end
    return assigned


def _range(partitions: int, ids: list[str], previous: Mapping[str, Iterable[int]]) -> Assignment:
    return {consumer: tuple(span) for consumer, span in assign_ranges(partitions, ids).items()}


def _round_robin(partitions: int, ids: list[str], previous: Mapping[str, Iterable[int]]) -> Assignment:
    """Partition by partition to the consumers in turn, by id: three get 0, 3, 6 and 1, 4, 7 and 2, 5, 8."""
    return {consumer: tuple(range(index, partitions, len(ids))) for index, consumer in enumerate(ids)}


def _sticky(partitions: int, ids: list[str], previous: Mapping[str, Iterable[int]]) -> Assignment:
    """As few partitions change hands as an even assignment allows; shares differ by one at most.

    Those that already have more than the smaller share get the larger ones, so everybody keeps as much as can be kept;
    who has too much gives up the highest.
    """
    if not ids:
        return {}
    taken: set[int] = set()
    owned: dict[str, list[int]] = {}
    for consumer in ids:
        mine = owned[consumer] = sorted(
            {index for index in previous.get(consumer, ()) if 0 <= index < partitions} - taken
        )
        taken.update(mine)
    share, extra = divmod(partitions, len(ids))
    larger = set(sorted(ids, key=lambda consumer: -min(len(owned[consumer]), share + 1))[:extra])
    for consumer in ids:
        del owned[consumer][share + (consumer in larger) :]
    kept = {index for mine in owned.values() for index in mine}
    free = iter([index for index in range(partitions) if index not in kept])
    for consumer in ids:
        mine = owned[consumer]
        mine += [next(free) for _ in range(share + (consumer in larger) - len(mine))]
    return {consumer: tuple(sorted(mine)) for consumer, mine in owned.items()}


_ASSIGNORS: dict[Assignor, Callable[[int, list[str], Mapping[str, Iterable[int]]], Assignment]] = {
    Assignor.RANGE: _range,
    Assignor.ROUND_ROBIN: _round_robin,
    Assignor.STICKY: _sticky,
}

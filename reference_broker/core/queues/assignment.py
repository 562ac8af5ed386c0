"""Which consumer of a group serves which partitions."""

from __future__ import annotations

from collections.abc import Iterable


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

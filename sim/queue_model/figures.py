"""What the figures of a queue may be, and that they add up."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from assay.sim.queue_model.state import BUCKETS, ENDS, Group, Kind, Queue, Sent, ViolationError

_THROUGH: Final = "through"
_ALL: Final = (*BUCKETS, _THROUGH)


def is_passed_over(group: Group, sent: Sent, now: float) -> bool:
    """The group is through with it as soon as it is its turn."""
    return sent.is_hole or sent.expires_at <= now or not group.wants(sent.routing_key)


def census(group: Group, now: float) -> dict[str, tuple[int, int]]:
    """How many messages are in each bucket, at least and at most."""
    least, most = dict.fromkeys(_ALL, 0), dict.fromkeys(_ALL, 0)
    least[_THROUGH] = most[_THROUGH] = len(group.copies) - len(group.open)
    for copy in group.open:
        buckets = copy.buckets
        if Kind.MOVING in copy.kinds or (Kind.READY in copy.kinds and is_passed_over(group, copy.message, now)):
            buckets = buckets | {_THROUGH}
        for bucket in buckets:
            most[bucket] += 1
            least[bucket] += len(buckets) == 1
    return {bucket: (least[bucket], most[bucket]) for bucket in _ALL}


def depth(queue: Queue, now: float) -> tuple[int, int]:
    """Messages that some group is not through with, at least and at most; all that are kept while there is none."""
    return _depth(queue, now, [census(group, now) for group in queue.groups.values()])


def _depth(queue: Queue, now: float, counted: Iterable[dict[str, tuple[int, int]]]) -> tuple[int, int]:
    if not queue.groups:
        kept = sum(not (sent.unsure or sent.unneeded or sent.expires_at <= now) for sent in queue.messages)
        return kept, len(queue.messages)
    through = [each[_THROUGH] for each in counted]
    total = len(queue.messages)
    return total - min(most for _, most in through), total - min(least for least, _ in through)


def check(queue: Queue, stats: Any, *, now: float, step: int, written: int) -> None:
    """Hold the engine's figures to what they may be, and conserve every message. Raises :class:`ViolationError`.

    ``step``: the last; ``written``: messages published after that step are not counted as enqueued yet.
    """
    counted = {group_id: census(group, now) for group_id, group in queue.groups.items()}
    least, most = _depth(queue, now, counted.values())
    if not least <= stats.depth <= most:
        raise ViolationError(f"{queue.name}: depth {stats.depth}, not within {least}..{most}")
    unwritten = sum(sent.number > written for sent in queue.messages)
    for figures in stats.groups:
        group = queue.groups[figures.group]
        where = f"{queue.name}/{figures.group}"
        for bucket, (low, high) in counted[figures.group].items():
            if bucket != _THROUGH and not low <= getattr(figures, bucket) <= high:
                raise ViolationError(f"{where}: {bucket} {getattr(figures, bucket)}, not within {low}..{high}")
        for count, value in group.counts.items():
            if getattr(figures, count) != value:
                raise ViolationError(f"{where}: {count} {getattr(figures, count)}, not {value}")
        total = sum(getattr(figures, field) for field in (*BUCKETS, *ENDS)) - stats.enqueued + stats.aborted - unwritten
        total += figures.skipped - figures.rewound
        is_between = step > written and any(sent.unsure and sent.source is not None for sent in queue.messages)
        if is_between or (queue.rules.drops_oldest and unwritten):
            # To drop a message, the queue may have written what was published before; and what has expired may become
            # a letter when the next is published, written with the rest of the turn.
            continue
        if group.total is None:
            group.total = total
        if total != group.total:
            raise ViolationError(f"{where}: {total - group.total:+} messages")

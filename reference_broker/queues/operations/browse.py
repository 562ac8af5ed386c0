"""Reading what a queue holds without consuming it."""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from typing import TYPE_CHECKING

from assay.reference_broker.queues.jobs.errors import QueueError, QueueErrorCode
from assay.reference_broker.queues.messages.address import message_id_of
from assay.reference_broker.queues.messages.stored_message import HIDDEN, StoredMessage
from assay.reference_broker.queues.partitions.partition import QueuePartition

if TYPE_CHECKING:
    from assay.reference_broker.queues.queue.queue import DurableQueue

MAX_BROWSED = 10_000
MAX_SKIPPED = 1_000
"""Records that nobody gets, on the way to those that are read in one call."""


def browse(queue: DurableQueue, limit: int, most_bytes: int | None = None) -> list[tuple[str, StoredMessage]]:
    """The oldest messages that some group has not settled (all that are kept, without groups), with their ids.

    In the order of their times; partition by partition where those are equal. ``most_bytes``: of payloads, unless the
    first is larger. Raises :class:`QueueError` (LIMIT) for more than ``MAX_BROWSED``, and :class:`LogError`.
    """
    if not 0 <= limit <= MAX_BROWSED:
        raise QueueError(QueueErrorCode.LIMIT, f"0 to {MAX_BROWSED} messages can be looked at in one call, not {limit}")
    found: list[tuple[str, StoredMessage]] = []
    size = 0
    runs = [_read(partition, start) for partition, start in queue.contents.unsettled_starts()]
    for _, partition, offset, stored in heapq.merge(*runs, key=lambda found: found[:3]):
        size += len(stored.message.payload)
        if len(found) == limit or (found and most_bytes is not None and size > most_bytes):
            break
        found.append((message_id_of(queue.name, partition, offset), stored))
    return found


def _read(partition: QueuePartition, offset: int) -> Iterator[tuple[float, int, int, StoredMessage]]:
    while (loaded := partition.load(offset)) is not None:
        at, stored = loaded
        if stored is not HIDDEN and not (partition.expiry is not None and partition.expiry.is_gone(at)):
            yield stored.enqueued_at, partition.index, at, stored
        offset = at + 1


def read(
    queue: DurableQueue, partition: int, offset: int, limit: int, now: float, most_bytes: int | None = None
) -> tuple[list[tuple[int, StoredMessage]], int]:
    """Messages of a partition from an offset on, whoever has settled them, as long as they are kept.

    Fewer than ``limit`` where there are no more, many expired, or payloads come to more than ``most_bytes``. Also the
    offset behind the last that was looked at. Raises :class:`QueueError` (BAD_ADDRESS, LIMIT) and :class:`LogError`.
    """
    if not 0 <= partition < len(queue.partitions):
        text = f"the queue {queue.name!r} has {len(queue.partitions)} partitions, and no partition {partition}"
        raise QueueError(QueueErrorCode.BAD_ADDRESS, text)
    if not 0 <= limit <= MAX_BROWSED:
        raise QueueError(QueueErrorCode.LIMIT, f"0 to {MAX_BROWSED} messages can be read in one call, not {limit}")
    place = queue.partitions[partition]
    found: list[tuple[int, StoredMessage]] = []
    at = max(offset, place.log.start_offset)
    skipped = size = 0
    while len(found) < limit and skipped < MAX_SKIPPED:
        stored = place.cached.get(at)
        if stored is None or at >= place.visible_end:
            loaded = place.load(at)
            if loaded is None:
                break
            at, stored = loaded
        if stored.expires_at <= now or (place.expiry is not None and place.expiry.is_gone(at)):
            skipped += 1
        else:
            size += len(stored.message.payload)
            if found and most_bytes is not None and size > most_bytes:
                break
            found.append((at, stored))
        at += 1
    return found, at

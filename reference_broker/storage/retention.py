"""What may be deleted of a log: whole segments, oldest first."""

from __future__ import annotations

from collections.abc import Sequence

from assay.reference_broker.queues.jobs.store import RetentionPolicy
from assay.reference_broker.storage.segment import Segment


def expired_count(
    segments: Sequence[Segment], policy: RetentionPolicy, *, now_ms: int, needed_from: int | None, next_offset: int
) -> int:
    """How many of the oldest segments may go; nothing from ``needed_from`` on may.

    The newest segment counts too: whoever deletes rolls it first. Raises :class:`OSError`.
    """
    kept_bytes = sum(segment.size for segment in segments)
    count = 0
    for segment in segments:
        end_offset = next_offset if segment.limit_offset is None else segment.limit_offset
        is_needed = needed_from is not None and end_offset > needed_from
        if is_needed or not _is_over(segment, policy, kept_bytes, next_offset - segment.base_offset, now_ms):
            break
        kept_bytes -= segment.size
        count += 1
    return count


def _is_over(segment: Segment, policy: RetentionPolicy, kept_bytes: int, kept_records: int, now_ms: int) -> bool:
    """Whether a limit calls for the oldest segment to go; the newest only ever goes for its age."""
    is_newest = segment.limit_offset is None
    if not is_newest and 0 < policy.max_bytes < kept_bytes:
        return True
    if (
        not is_newest
        and policy.max_records
        and kept_records - (segment.limit_offset or 0) + segment.base_offset >= (policy.max_records)
    ):
        return True
    if not policy.max_age_ms:
        return False
    latest_ms = segment.latest_bound_ms
    return latest_ms is not None and latest_ms < now_ms - policy.max_age_ms

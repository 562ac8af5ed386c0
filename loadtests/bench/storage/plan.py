"""How much a run of the storage bench measures."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

Progress = Callable[[str, float], None]
"""Called with what is being done, and the share of the whole run that is behind (0 to 1)."""


class StoragePlan(msgspec.Struct, frozen=True, kw_only=True):
    """Sizes of a run. Records are of a 100-byte value where nothing else is said."""

    rounds: int = 5
    batch_records: int = 500
    append_records: int = 200_000
    """Records of one measurement of appending in batches."""
    single_s: float = 1.2
    """Length of one measurement of appending one record a call."""
    sync_interval_s: float = 0.5
    """Half of the broker's default, so that every measurement sees syncs."""
    producers: int = 64
    group_commit_s: float = 0.8
    sequential_records: int = 500_000
    random_reads: int = 5_000
    big_log_bytes: int = 1_000_000_000
    scan_bytes: int = 200_000_000
    """What a recovery scan reads; a copy of the first segments of a big log."""
    segment_bytes: int = 64 * 1024 * 1024
    queued_messages: int = 1_000_000
    queued_bytes: int = 1_000
    """Payload of a queued message."""
    delivered_messages: int = 20_000
    is_judged: bool = True
    """Compare with the targets; a run that is too small says nothing about them."""

    @property
    def needed_bytes(self) -> int:
        """The most that lies on disk at once, with some room: two big logs with parts copied, or the queue."""
        big_logs = 2 * (self.big_log_bytes + self.scan_bytes)
        return int(1.25 * max(big_logs, self.queued_messages * (self.queued_bytes + 200))) + 256 * 1024 * 1024


def quick_plan() -> StoragePlan:
    """Everything once and small: it shows that the bench works, not how fast storage is."""
    return StoragePlan(
        rounds=1,
        append_records=10_000,
        single_s=0.05,
        sync_interval_s=0.02,
        group_commit_s=0.05,
        sequential_records=10_000,
        random_reads=200,
        big_log_bytes=2_000_000,
        scan_bytes=1_000_000,
        segment_bytes=512 * 1024,
        queued_messages=4_000,
        delivered_messages=500,
        is_judged=False,
    )

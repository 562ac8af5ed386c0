"""A sparse index from times to offsets of one segment, as it is in memory."""

from __future__ import annotations

from array import array
from bisect import bisect_left

from assay.reference_broker.storage.index_files import MAX_INDEXED, TIME_INTERVAL_MS, TimeIndexFile, encode_time_index


class TimeIndex:
    """A batch is indexed by its greatest timestamp, when that is at least a second later than the last indexed one.

    So entries grow although clocks may step back, and every record before an entry is earlier than that entry.
    """

    __slots__ = ("_offsets", "_timestamps_ms", "max_timestamp_ms", "min_timestamp_ms")

    def __init__(self, file: TimeIndexFile | None = None) -> None:
        self._timestamps_ms = array("q") if file is None else file.timestamps_ms
        self._offsets = array("I") if file is None else file.offsets
        has_times = file is not None and len(self._offsets) > 0
        self.min_timestamp_ms: int | None = file.min_timestamp_ms if file is not None and has_times else None
        """Least base timestamp of a batch; None without batches."""
        self.max_timestamp_ms: int | None = file.max_timestamp_ms if file is not None and has_times else None

    def __len__(self) -> int:
        return len(self._offsets)

    def add(self, relative_offset: int, base_timestamp_ms: int, max_timestamp_ms: int) -> None:
        """Note a batch; offsets must grow from call to call."""
        if self.max_timestamp_ms is None or self.min_timestamp_ms is None:
            self.min_timestamp_ms, self.max_timestamp_ms = base_timestamp_ms, max_timestamp_ms
        else:
            if base_timestamp_ms < self.min_timestamp_ms:
                self.min_timestamp_ms = base_timestamp_ms
            if max_timestamp_ms > self.max_timestamp_ms:
                self.max_timestamp_ms = max_timestamp_ms
        if relative_offset > MAX_INDEXED:
            return
        if not self._timestamps_ms or max_timestamp_ms >= self._timestamps_ms[-1] + TIME_INTERVAL_MS:
            self._timestamps_ms.append(max_timestamp_ms)
            self._offsets.append(relative_offset)

    @property
    def last_entry(self) -> tuple[int, int]:
        """(timestamp in ms, relative offset). Raises :class:`IndexError` when there is none."""
        return self._timestamps_ms[-1], self._offsets[-1]

    @property
    def latest_bound_ms(self) -> int | None:
        """No batch noted is later; None without batches. What a file says of the greatest time is not relied on."""
        if not self._timestamps_ms or self.max_timestamp_ms is None:
            return self.max_timestamp_ms
        return max(self.max_timestamp_ms, self._timestamps_ms[-1] + TIME_INTERVAL_MS - 1)

    def entry_before(self, timestamp_ms: int) -> tuple[int, int] | None:
        """The last entry earlier than a time: (timestamp, relative offset). No record before it reaches that time.

        None: start at the segment's first record.
        """
        at = bisect_left(self._timestamps_ms, timestamp_ms) - 1
        return None if at < 0 else (self._timestamps_ms[at], self._offsets[at])

    def truncate(self, relative_end: int) -> None:
        """Forget batches at or behind an offset. Least and greatest time stay: they are bounds."""
        while self._offsets and self._offsets[-1] >= relative_end:
            self._offsets.pop()
            self._timestamps_ms.pop()

    def encode(self, base_offset: int) -> bytes:
        """The ``.tix``."""
        return encode_time_index(
            base_offset,
            zip(self._timestamps_ms, self._offsets, strict=True),
            min_timestamp_ms=self.min_timestamp_ms or 0,
            max_timestamp_ms=self.max_timestamp_ms or 0,
        )

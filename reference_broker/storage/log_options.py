"""How a log is written."""

from __future__ import annotations

import msgspec

from assay.reference_broker.storage.batch import MAX_BATCH_RECORDS


class LogOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How a log is written."""

    segment_bytes: int = 64 * 1024 * 1024
    """A segment that has reached it is sealed before the next append."""
    segment_age_ms: int = 3_600_000
    """So is one whose first record is that much earlier than the next one; 0 = any age."""
    write_buffer_bytes: int = 0
    """Appends collect up to this size before they are written; 0 = each is written at once."""
    batch_records: int = MAX_BATCH_RECORDS
    """An append of more becomes several batches. Few make it cheap to read single records back."""
    reserve_bytes: int = 0
    """Appends are refused while the disk has less room than this, so that settlements still find some."""
    unsynced_counts: bool = False
    """Somebody relies on records before they are synced: a sync that fails cuts none of them off."""

"""A segment that was cut is the one that is found when it is opened anew: file, places, both indexes, what is read."""

from __future__ import annotations

import random

import pytest

from assay.reference_broker.config import Compression
from assay.reference_broker.queues.jobs.store import NewRecord
from assay.reference_broker.storage.batch import BatchEncoder
from assay.reference_broker.storage.log import LogOptions, SegmentedLog
from assay.reference_broker.storage.memory_disk import MemoryDisk
from assay.reference_broker.storage.segment import Segment

FOLDER = "log"
LATEST_MS = 60_000


def _written(seed: int) -> tuple[MemoryDisk, int, list[tuple[int, int]]]:
    """A disk with two segments, the base of the second, and (size, end offset) after each batch of that."""
    rng, disk = random.Random(seed), MemoryDisk()
    log = SegmentedLog(
        disk,
        FOLDER,
        options=LogOptions(),
        encoder=BatchEncoder(Compression.NONE),
        volatile=False,
        note=lambda _place, _problem: None,
    )
    log.append([NewRecord(0, b"", b"", ())] * 7)
    log.roll()
    base, places = log.next_offset, [(0, log.next_offset)]
    for _ in range(12):
        sizes = rng.choices([1, 900, 5_000], k=rng.randrange(1, 4))
        log.append([NewRecord(rng.randrange(LATEST_MS), b"", rng.randbytes(size), ()) for size in sizes])
        log.flush()
        places.append((disk.open(Segment(disk, FOLDER, base).path).size, log.next_offset))
    log.close()
    return disk, base, places


def _state(segment: Segment) -> tuple[object, ...]:
    offsets, times = segment.indexes()
    return (
        segment.size,
        segment.file().size,
        segment.end_offset,
        segment.has_index_files,
        offsets.encode(segment.base_offset, below=1 << 40),
        [times.entry_before(timestamp_ms) for timestamp_ms in range(0, LATEST_MS, 50)],
        segment.read(segment.base_offset, 1_000),
    )


@pytest.mark.parametrize("number", range(13))
def test_a_segment_that_was_cut_is_as_it_is_found(number: int) -> None:
    disk, base, places = _written(number)
    size, end_offset = places[number]
    segment = Segment(disk, FOLDER, base)
    segment.scan()
    segment.write_index_files(below=segment.size)
    for offset in range(base, segment.end_offset, 3):
        segment.read(offset, 2)  # it knows where it read last
    segment.truncate(size, end_offset)
    found = Segment(disk, FOLDER, base)
    found.scan()
    assert _state(segment) == _state(found)
    assert (found.size, found.end_offset) == (size, end_offset)
    assert (segment.latest_bound_ms or 0) >= (found.latest_bound_ms or 0), "it may stay, as a bound"

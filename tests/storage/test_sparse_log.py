"""A log in which few records are still wanted: the others make room, and nothing that is wanted is lost or changed."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.reference_broker.config import Compression
from assay.reference_broker.queues.jobs.store import NewRecord
from assay.reference_broker.storage import sparse_log
from assay.reference_broker.storage.batch import BatchEncoder
from assay.reference_broker.storage.disk import Disk
from assay.reference_broker.storage.log import LogOptions
from assay.reference_broker.storage.memory_disk import MemoryDisk, MemoryFile
from assay.reference_broker.storage.sparse_log import SparseLog
from assay.sim.power_cuts import WatchedDisk, power_cuts

FOLDER = "log"
SEGMENT_BYTES = 600
PAYLOAD_BYTES = 60


class Wanted(set[int]):
    """Offsets."""

    def count(self, first: int, end: int) -> int:
        return len(self.numbers(first, end))

    def numbers(self, first: int, end: int) -> list[int]:
        return [offset for offset in self if first <= offset < end]


class SparseLife:
    """A log, what is wanted of it, and what every record holds."""

    def __init__(self, disk: Disk) -> None:
        self.disk = disk
        self.notes: list[str] = []
        self.wanted = Wanted()
        self.values: dict[int, bytes] = {}
        self.thinned = 0
        self.open()

    def open(self) -> None:
        self.log = SparseLog(
            self.disk,
            FOLDER,
            options=LogOptions(segment_bytes=SEGMENT_BYTES, segment_age_ms=0, batch_records=2),
            encoder=BatchEncoder(Compression.NONE),
            volatile=False,
            note=lambda place, problem: self.notes.append(f"{place}: {problem}"),
        )

    def put(self) -> int:
        value = b"%d " % self.log.next_offset * 20
        offset = self.log.append([NewRecord(0, None, value[:PAYLOAD_BYTES], ())])
        self.values[offset] = value[:PAYLOAD_BYTES]
        self.wanted.add(offset)
        return offset

    def sync(self) -> None:
        if (task := self.log.start_sync()) is not None:
            task.run()
            self.log.finish_sync(None)

    def thin(self) -> bool:
        task = self.log.start_thinning(self.wanted)
        if task is None:
            return False
        task.run()
        self.log.finish_thinning(None)
        self.thinned += 1
        return True

    def thin_all(self) -> None:
        """Until two looks at everything find nothing."""
        idle = 0
        while idle <= 2 + len(self.log.segments) // 8:
            idle = 0 if self.thin() else idle + 1

    def check(self) -> None:
        found: dict[int, bytes | None] = {}
        at = self.log.start_offset
        while records := self.log.read(at, 7):
            found |= {record.offset: record.value for record in records}
            at = records[-1].offset + 1
        assert sorted(self.wanted - found.keys()) == [], "wanted records are gone"
        assert all(self.values[offset] == value for offset, value in found.items())
        assert list(found) == sorted(found)
        for offset in self.wanted:
            record = self.log.get(offset)
            assert record is not None
            assert record.value == self.values[offset]


def test_one_wanted_record_keeps_nothing_else() -> None:
    life = SparseLife(MemoryDisk())
    for _ in range(400):
        life.put()
    life.sync()
    before = life.log.stored_bytes
    life.wanted -= set(range(1, 397))
    life.thin_all()
    life.check()
    assert life.log.stored_bytes < before / 20
    assert len(life.log.segments) <= 5
    assert life.thinned < 60, "nothing is copied over and over"
    assert (life.log.start_offset, life.log.next_offset) == (0, 400)
    life.log.close()
    life.open()
    life.check()
    assert life.notes == []
    assert (life.log.start_offset, life.log.next_offset) == (0, 400)


def test_what_is_mostly_wanted_stays_as_it_is() -> None:
    life = SparseLife(MemoryDisk())
    for _ in range(100):
        life.put()
    life.sync()
    life.wanted -= set(range(0, 100, 2))
    life.thin_all()
    assert life.thinned == 0


def test_segments_with_damage_stay_as_they_are() -> None:
    disk = MemoryDisk()
    life = SparseLife(disk)
    for _ in range(100):
        life.put()
    life.sync()
    second = life.log.segments[1]
    content = disk._files[second.path]
    content[second.size // 2] ^= 1
    kept = bytes(content)
    life.wanted -= set(range(1, 95))
    life.thin_all()
    assert bytes(disk._files.get(second.path, b"")) == kept
    assert sum("not thinned out" in note for note in life.notes) == 1
    assert len(life.log.segments) <= 6
    record = life.log.get(0)
    assert record is not None
    assert record.value == life.values[0]


def test_a_segment_that_goes_meanwhile_does_not_come_back() -> None:
    disk = MemoryDisk()
    life = SparseLife(disk)
    for _ in range(100):
        life.put()
    life.sync()
    life.wanted -= set(range(1, 95))
    task = life.log.start_thinning(life.wanted)
    assert task is not None
    assert life.log.start_thinning(life.wanted) is None, "one at a time"
    task.run()
    life.wanted.discard(0)
    life.log.drop_before(90)
    life.log.finish_thinning(None)
    assert life.log.start_offset > 0
    life.check()
    assert [name for name in disk.list(FOLDER) if "swap" in name or "compacting" in name] == []


def test_a_disk_that_fails_changes_nothing() -> None:
    life = SparseLife(MemoryDisk())
    for _ in range(100):
        life.put()
    life.sync()
    life.wanted -= set(range(1, 95))
    segments = life.log.segments
    assert life.log.start_thinning(life.wanted) is not None
    life.log.finish_thinning(OSError(28, "no space left"))
    assert life.log.segments == segments
    life.check()
    life.thin_all()
    assert life.thinned


@settings(max_examples=120, deadline=None)
@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("put"), st.integers(1, 30)),
            st.tuples(st.just("done"), st.integers(0, 10**6)),
            st.tuples(st.sampled_from(["sync", "thin", "drop", "reopen"]), st.just(0)),
        ),
        max_size=40,
    )
)
def test_whatever_happens_the_wanted_records_stay(steps: list[tuple[str, int]]) -> None:
    life = SparseLife(MemoryDisk())
    rng = random.Random(1)
    for step, amount in steps:
        if step == "put":
            for _ in range(amount):
                life.put()
        elif step == "done":
            some = sorted(life.wanted)
            life.wanted -= set(rng.sample(some, amount % (len(some) + 1)))
        elif step == "sync":
            life.sync()
        elif step == "thin":
            life.thin()
        elif step == "drop":
            life.log.drop_before(min(life.wanted, default=life.log.next_offset))
        else:
            life.log.close()
            life.open()
        life.check()
    life.sync()
    life.thin_all()
    life.check()
    wanted_bytes = len(life.wanted) * 150
    assert life.log.stored_bytes <= 4 * wanted_bytes + 6 * SEGMENT_BYTES


@pytest.mark.parametrize("seed", range(2))
def test_no_power_loss_while_it_is_thinned_out_loses_a_wanted_record(seed: int) -> None:
    disk = WatchedDisk(random.Random(seed))
    life: SparseLife | None = None
    looked = 0
    seen: set[bytes] = set()

    def look() -> None:
        nonlocal looked
        if life is None:
            return
        durable = [offset for offset in life.wanted if offset < life.log.durable_offset]
        for cut in power_cuts(disk, f"cut {looked}"):
            if cut.digest in seen:
                continue
            seen.add(cut.digest)
            looked += 1
            disk.before = None
            after = SparseLife(cut.boot())
            after.wanted, after.values = Wanted(durable), life.values
            after.check()
            after.thin_all()
            after.check()
            disk.before = look

    begun = SparseLife(disk)
    rng = random.Random(seed)
    for _ in range(80):
        begun.put()
    begun.sync()
    life = begun
    disk.before = look
    for _ in range(3):
        begun.wanted -= set(rng.sample(sorted(begun.wanted), len(begun.wanted) * 3 // 4))
        begun.thin()
        begun.thin()
        begun.log.drop_before(min(begun.wanted))
    disk.before = None
    look()
    assert begun.thinned >= 2
    assert looked > 50


def test_half_a_copy_does_not_stay_on_a_disk_that_is_full(monkeypatch: pytest.MonkeyPatch) -> None:
    disk = MemoryDisk()
    life = SparseLife(disk)
    for _ in range(100):
        life.put()
    life.sync()
    life.wanted -= set(range(1, 95))
    task = life.log.start_thinning(life.wanted)
    assert task is not None
    before = disk.list(FOLDER)

    def full(self: MemoryFile) -> None:
        raise OSError(28, "no space left")

    with monkeypatch.context() as broken:
        # The copy is the only file that a thread syncs here, apart from the small one before it.
        broken.setattr(sparse_log, "write_cleaner_file", lambda *_: None)
        broken.setattr(MemoryFile, "sync", full)
        with pytest.raises(OSError, match="no space"):
            task.run()
    life.log.finish_thinning(OSError(28, "no space left"))
    assert disk.list(FOLDER) == before
    life.thin_all()
    assert life.thinned
    life.check()

"""A group's state, cut off by power loss at every operation on the disk, snapshots and recovery included."""

from __future__ import annotations

import errno
import random
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import pytest

from assay.reference_broker.queues.jobs.errors import LogError
from assay.reference_broker.queues.jobs.store import CursorRecord, PendingRecord, SyncTask
from assay.reference_broker.storage import pending_log
from assay.reference_broker.storage.disk import Disk, DiskFile
from assay.reference_broker.storage.memory_disk import MemoryDisk
from assay.reference_broker.storage.pending_log import PendingLogFile
from assay.sim.disk import DiskProfile, Persistence, SimDisk

if TYPE_CHECKING:
    from tests.storage.conftest import LossyDisk

FOLDER = "queues/q/consumers/g"
PATH = f"{FOLDER}/g.pel.log"
STEPS = 90
State = tuple[tuple[PendingRecord, ...], tuple[tuple[int, int], ...]]


@pytest.fixture(autouse=True, scope="module")
def _frequent_snapshots() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pending_log, "SNAPSHOT_OPERATIONS", 12)
        patch.setattr("assay.reference_broker.storage.pending_snapshot.ENTRIES_PER_STEP", 2)
        yield


class PowerCutError(Exception):
    """The machine stops here."""


class CutDisk:
    """Passes everything on, and stops at the ``cut_at``-th change or sync of a disk."""

    def __init__(self, disk: Disk, cut_at: int | None) -> None:
        self._disk = disk
        self._cut_at = cut_at
        self.operations = 0

    def count(self) -> None:
        if self.operations == self._cut_at:
            raise PowerCutError
        self.operations += 1

    def open(self, path: str, *, create: bool = False) -> CutFile:
        if create and not self._disk.exists(path):
            self.count()
        return CutFile(self, self._disk.open(path, create=create))

    def list(self, path: str) -> list[str]:
        return self._disk.list(path)

    def exists(self, path: str) -> bool:
        return self._disk.exists(path)

    def make_folder(self, path: str) -> None:
        self._disk.make_folder(path)

    def rename(self, source: str, destination: str) -> None:
        self.count()
        self._disk.rename(source, destination)

    def remove(self, path: str) -> None:
        self.count()
        self._disk.remove(path)

    def sync_folder(self, path: str) -> None:
        self.count()
        self._disk.sync_folder(path)

    def free_bytes(self) -> int:
        return self._disk.free_bytes()

    def lock(self) -> None:
        self._disk.lock()

    def unlock(self) -> None:
        self._disk.unlock()


class CutFile:
    def __init__(self, disk: CutDisk, file: DiskFile) -> None:
        self._disk = disk
        self._file = file

    @property
    def size(self) -> int:
        return self._file.size

    def append(self, data: bytes) -> int:
        self._disk.count()
        return self._file.append(data)

    def write_at(self, position: int, data: bytes) -> None:
        self._disk.count()
        self._file.write_at(position, data)

    def read_at(self, position: int, length: int) -> bytes:
        return self._file.read_at(position, length)

    def truncate(self, size: int) -> None:
        self._disk.count()
        self._file.truncate(size)

    def sync(self) -> None:
        self._disk.count()
        self._file.sync()

    def close(self) -> None:
        self._file.close()


def open_log(disk: Disk, note: Callable[[str, str], None] = lambda place, problem: None) -> PendingLogFile:
    return PendingLogFile(disk, PATH, group="g", pattern="", volatile=False, note=note)


def found(log: PendingLogFile) -> State:
    return tuple(log.recovered), tuple(log.recovered_cursors.items())


class Life:
    """What an engine does with a group's log, and the state after each of its flushes."""

    def __init__(self, log: PendingLogFile, seed: int) -> None:
        self.log = log
        self.rng = random.Random(seed)
        self.entries = {(entry.partition, entry.offset): entry for entry in log.recovered}
        self.cursors = dict(log.recovered_cursors)
        self.states = [self.state()]
        self.synced = 0
        """Index of a state that must survive, at least."""
        self.snapshots = 0
        self._covered = 0
        self._task: SyncTask | None = None

    def state(self) -> State:
        return tuple(self.entries[place] for place in sorted(self.entries)), tuple(sorted(self.cursors.items()))

    def operate(self) -> None:
        """A few operations that make sense."""
        rng = self.rng
        for _ in range(rng.randint(1, 4)):
            choice = rng.random()
            if not self.entries or (choice < 0.4 and len(self.entries) < 12):
                self._add()
            elif choice < 0.75:
                for place in rng.sample(sorted(self.entries), rng.randint(1, min(3, len(self.entries)))):
                    self.log.ack(*place)
                    del self.entries[place]
            else:
                self._change(*rng.choice(sorted(self.entries)))

    def _add(self) -> None:
        partition, consumer, at_ms = self.rng.randrange(2), self.rng.choice("cd"), self.rng.randrange(3)
        for _ in range(self.rng.randint(1, 3)):
            offset = self.cursors.get(partition, 0)
            self.log.add(partition, offset, consumer, at_ms, 1)
            self.entries[(partition, offset)] = PendingRecord(partition, offset, consumer, at_ms, 0, 1)
            self.cursors[partition] = offset + 1

    def _change(self, partition: int, offset: int) -> None:
        entry = self.entries[(partition, offset)]
        if entry.consumer:
            self.log.expire(partition, offset, 77)
            self.entries[(partition, offset)] = entry._replace(due_at_ms=77)
        else:
            count = entry.delivery_count + 1
            self.log.claim(partition, offset, "e", 5, count)
            self.entries[(partition, offset)] = PendingRecord(partition, offset, "e", 5, 0, count)

    def flush(self) -> None:
        self.states.append(self.state())
        self.log.flush()
        if self.log.wants_snapshot(len(self.entries)):
            self._begin_snapshot()
        self.log.continue_snapshot()

    def _begin_snapshot(self) -> None:
        self.snapshots += 1
        committed = {
            partition: min([offset for at, offset in self.entries if at == partition], default=cursor)
            for partition, cursor in self.cursors.items()
        }
        cursors = {partition: CursorRecord(cursor, committed[partition]) for partition, cursor in self.cursors.items()}
        places = sorted(self.entries)

        def described() -> Iterator[PendingRecord]:
            for place in places:
                if place in self.entries:
                    yield self.entries[place]

        self.log.begin_snapshot(cursors, described(), 1_000)

    def start_sync(self) -> None:
        self._covered = len(self.states) - 1
        self._task = self.log.start_sync()

    def finish_sync(self) -> None:
        if self._task is not None:
            self._task.run()
            self.log.finish_sync(None)
            self._task = None
        self.synced = self._covered

    def step(self) -> None:
        self.operate()
        self.flush()
        if self._task is None and self.rng.random() < 0.7:
            self.start_sync()
            if self.rng.random() < 0.5:
                return
        if self._task is not None:
            self.finish_sync()


def prepare(disk: Disk) -> None:
    """What creating the queue makes durable."""
    disk.make_folder(FOLDER)
    for folder in ("", "queues", "queues/q"):
        disk.sync_folder(folder)


def play(disk: Disk, seed: int, steps: int = STEPS) -> Life | None:
    """A life until the power is cut; None when not even the log was open."""
    life = None
    try:
        life = Life(open_log(disk), seed)
        for _ in range(steps):
            life.step()
    except PowerCutError:
        pass
    return life


def check(life: Life | None, disk: Disk, where: str) -> PendingLogFile:
    """Whatever survived is the state after some flush, and not one before the last that was synced."""
    log = open_log(disk)
    if life is None:
        assert found(log) == ((), ()), where
    else:
        assert found(log) in life.states[life.synced :], where
    return log


def go_on(disk: Disk, where: str) -> None:
    """What was recovered is good to work with, through another snapshot and a kill."""
    disk.make_folder(FOLDER)
    life = Life(open_log(disk), 5)
    begun = life.snapshots
    for _ in range(40):
        life.step()
    assert life.snapshots > begun, where
    assert found(open_log(disk)) == life.states[-1], where


def test_a_life_takes_snapshots_and_is_found_again() -> None:
    disk = MemoryDisk()
    prepare(disk)
    life = play(disk, 1, 400)
    assert life is not None
    assert life.snapshots > 10
    assert disk.list(FOLDER) == ["g.cur", "g.pel", "g.pel.log"] or disk.exists(f"{PATH}.next")
    assert found(open_log(disk)) == life.states[-1]
    assert disk.open(PATH).size < 4_000, "the log does not only grow"


@pytest.mark.parametrize("mode", list(Persistence))
def test_power_may_be_lost_at_every_operation(mode: Persistence) -> None:
    cut_at = 0
    while True:
        disk = SimDisk(random.Random(cut_at))
        prepare(disk)
        cutting = CutDisk(disk, cut_at)
        life = play(cutting, 3)
        disk.power_loss((mode,))
        disk.make_folder(FOLDER)
        where = f"mode {mode}, cut at operation {cut_at}"
        check(life, disk, where)
        if cut_at % 10 == 0:
            go_on(disk, where)
        if cutting.operations < cut_at:
            break
        cut_at += 1
    assert life is not None
    assert life.snapshots >= 4
    assert cut_at > 250, "otherwise this tests little"


@pytest.mark.parametrize("mode", list(Persistence))
def test_power_may_be_lost_again_during_recovery(mode: Persistence) -> None:
    recoveries = 0
    for cut_at in range(0, 280, 3):
        again_at = 0
        while True:
            disk = SimDisk(random.Random(cut_at))
            prepare(disk)
            life = play(CutDisk(disk, cut_at), 4)
            disk.power_loss((mode,))
            disk.make_folder(FOLDER)
            cutting = CutDisk(disk, again_at)
            try:
                open_log(cutting)
            except PowerCutError:
                recoveries += 1
            disk.power_loss((mode,))
            disk.make_folder(FOLDER)
            check(life, disk, f"mode {mode}, cut at operation {cut_at}, in recovery at {again_at}")
            if cutting.operations <= again_at:
                break
            again_at += 1
    assert recoveries >= (1 if mode is Persistence.NONE else 20), "otherwise this tests nothing"


@pytest.mark.parametrize("seed", range(40))
def test_power_may_be_lost_while_a_sync_is_under_way(seed: int) -> None:
    """As in the simulator: nothing that a sync job did is durable before the device says so."""
    rng = random.Random(seed)
    disk = SimDisk(rng)
    prepare(disk)
    life = Life(open_log(disk), seed)
    for _ in range(rng.randint(1, STEPS)):
        life.operate()
        life.flush()
        covered = len(life.states) - 1
        task = life.log.start_sync()
        if task is None:
            continue
        with disk.deferred() as flush:
            task.run()
        while rng.random() < 0.3:
            life.operate()
            life.flush()
        if rng.random() < 0.02:
            break
        disk.finish(flush)
        life.log.finish_sync(None)
        life.synced = covered
    disk.power_loss()
    check(life, disk, f"seed {seed}")
    go_on(disk, f"seed {seed}")


@pytest.mark.parametrize("seed", range(60))
def test_names_may_survive_in_any_combination(lossy_disks: type[LossyDisk], seed: int) -> None:
    """A harsher disk than any: of names that were not synced, any may be there, and removed ones may come back."""
    rng = random.Random(seed)
    disk = lossy_disks()
    prepare(disk)
    life = play(CutDisk(disk, rng.randrange(300)), seed)
    for _ in range(20):
        after = disk.after_power_loss(rng)
        after.make_folder(FOLDER)
        check(life, after, f"seed {seed}")
        go_on(after, f"seed {seed}")


# -- failing disks -----------------------------------------------------------------------------------------------


class FailingDisk(CutDisk):
    """Refuses changes of paths that contain a text."""

    def __init__(self, disk: Disk, fails: Callable[[str, str], bool]) -> None:
        super().__init__(disk, None)
        self._inner = disk
        self.fails = fails

    def refuse(self, action: str, path: str) -> None:
        if self.fails(action, path):
            raise OSError(errno.ENOSPC, "No space left on device")

    def open(self, path: str, *, create: bool = False) -> CutFile:
        return FailingFile(self, path, self._inner.open(path, create=create))

    def rename(self, source: str, destination: str) -> None:
        self.refuse("rename", destination)
        self._inner.rename(source, destination)

    def remove(self, path: str) -> None:
        self.refuse("remove", path)
        self._inner.remove(path)


class FailingFile(CutFile):
    def __init__(self, disk: FailingDisk, path: str, file: DiskFile) -> None:
        super().__init__(disk, file)
        self._failing = disk
        self._path = path

    def append(self, data: bytes) -> int:
        self._failing.refuse("append", self._path)
        return super().append(data)

    def sync(self) -> None:
        self._failing.refuse("sync", self._path)
        super().sync()


@pytest.mark.parametrize(
    ("action", "suffix"),
    [
        ("append", ".next"),
        *((action, suffix) for action in ("append", "sync", "remove") for suffix in (".pel.tmp", ".cur.tmp")),
        *(("rename", suffix) for suffix in (".pel", ".cur", ".pel.log")),
    ],
)
def test_a_snapshot_that_fails_leaves_the_state_and_is_tried_again(action: str, suffix: str) -> None:
    inner = MemoryDisk()
    prepare(inner)
    failing = True

    def fails(what: str, path: str) -> bool:
        # The log that takes the operations from now on must only fail at its creation.
        created = suffix == ".next" and inner.exists(PATH + ".next") and inner.open(PATH + ".next").size > 0
        return failing and what == action and path.endswith(suffix) and not created

    notes: list[str] = []
    disk = FailingDisk(inner, fails)
    life = Life(open_log(disk, lambda place, problem: notes.append(f"{place}: {problem}")), 2)
    for _ in range(STEPS):
        life.step()
    assert found(open_log(inner)) == life.states[-1]
    attempts = life.snapshots
    if action == "remove":
        assert not notes, "nothing is removed while nothing fails"
    else:
        assert notes
        assert 1 < attempts < 10, "it asks again when the log has doubled, not all the time"
    failing = False
    del notes[:]
    for _ in range(4 * STEPS):
        life.step()
    assert life.snapshots > attempts
    assert not notes
    assert found(open_log(inner)) == life.states[-1]
    for _ in range(4):
        life.start_sync()
        life.finish_sync()
    assert inner.list(FOLDER) == ["g.cur", "g.pel", "g.pel.log"] or inner.exists(PATH + ".next")


def fill(life: Life) -> None:
    for _ in range(400):
        life.step()


def test_a_full_disk_stops_snapshots_but_not_the_log_that_fits() -> None:
    disk = SimDisk(random.Random(1), DiskProfile(capacity_bytes=3_000))
    prepare(disk)
    life = Life(open_log(disk), 9)
    with pytest.raises(LogError, match="No space left"):
        fill(life)
    assert life.snapshots
    unwritten = life.states.pop()
    recovered = found(open_log(disk))
    assert recovered == life.states[-1]
    assert recovered != unwritten


def test_a_failed_sync_of_a_log_during_a_snapshot_is_for_good() -> None:
    disk = SimDisk(random.Random(1))
    prepare(disk)
    life = Life(open_log(disk), 2)
    while not life.snapshots:
        life.step()
    life.operate()
    life.flush()
    task = life.log.start_sync()
    assert task is not None
    life.log.finish_sync(OSError(errno.EIO, "Input/output error"))
    assert not life.log.needs_sync
    assert not life.log.wants_snapshot(0)
    assert not life.log.continue_snapshot()
    life.operate()
    with pytest.raises(LogError, match="restart"):
        life.log.flush()

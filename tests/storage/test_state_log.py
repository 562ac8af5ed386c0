"""The keyed state store against a dictionary, on a disk that loses what was not synced."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from assay.reference_broker.config import Compression
from assay.reference_broker.queues.jobs.errors import LogError
from assay.reference_broker.storage import state_log as state_log_module
from assay.reference_broker.storage.batch import BatchEncoder
from assay.reference_broker.storage.disk import Disk
from assay.reference_broker.storage.log import LogOptions
from assay.reference_broker.storage.memory_disk import MemoryDisk
from assay.reference_broker.storage.snapshots import SnapshotKind, SnapshotStore
from assay.reference_broker.storage.state_log import StateLog
from assay.sim.disk import DiskProfile, Persistence, SimDisk, SimFile

FOLDER = "coordinator/groups"
ENCODER = BatchEncoder(Compression.NONE)
INTERVAL_RECORDS = 7


def open_state(disk: Disk, notes: list[tuple[str, str]] | None = None) -> StateLog:
    """Small segments and frequent snapshots, so that short tests see many."""
    collected: list[tuple[str, str]] = [] if notes is None else notes
    return StateLog(
        disk,
        FOLDER,
        encoder=ENCODER,
        note=lambda place, problem: collected.append((place, problem)),
        options=LogOptions(segment_bytes=300),
        interval_records=INTERVAL_RECORDS,
    )


def sync(state: StateLog, now_s: float) -> bool:
    """One whole sync; returns whether there was anything to do."""
    task = state.start_sync(now_s)
    if task is None:
        return False
    try:
        task.run()
    except OSError as error:
        state.finish_sync(error)
    else:
        state.finish_sync(None)
    return True


Change = tuple[bytes, bytes | None]


class Life:
    """A state store, and all changes made to it, by offset."""

    def __init__(self, seed: int) -> None:
        self.disk = SimDisk(random.Random(seed))
        self.changes: list[Change | None] = []
        """None: an unconfirmed change that a power loss took."""
        self.confirmed = 0
        self.now_s = 1_000_000.0
        self.store = open_state(self.disk)

    def expected(self) -> dict[bytes, bytes]:
        state: dict[bytes, bytes] = {}
        for change in self.changes:
            if change is None:
                continue
            key, value = change
            if value is None:
                state.pop(key, None)
            else:
                state[key] = value
        return state

    def change(self, key: bytes, value: bytes | None) -> None:
        offset = self.store.apply([(key, value)], self.now_s)
        self.changes.append((key, value))
        assert offset == len(self.changes) - 1
        assert dict(self.store.state) == self.expected()

    def sync(self) -> None:
        sync(self.store, self.now_s)
        self.confirmed = self.store.durable_offset
        assert self.confirmed == len(self.changes)

    def reopen(self) -> None:
        notes: list[tuple[str, str]] = []
        self.store = open_state(self.disk, notes)
        count = self.store.next_offset
        assert self.confirmed <= count <= len(self.changes), "a confirmed change is lost, or one was invented"
        del self.changes[count:]
        for _, problem in notes:
            assert "damaged snapshot" not in problem
            if (lost := LOST.search(problem)) is not None:
                for offset in range(int(lost[1]), int(lost[2]) + 1):
                    assert offset >= self.confirmed or self.changes[offset] is None, "a confirmed change is lost"
                    self.changes[offset] = None
        assert dict(self.store.state) == self.expected()


LOST = re.compile(r"offsets (\d+) to (\d+) are lost")
KEYS = st.sampled_from([b"a", b"b", b"c", b"", b"long" * 20])
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("put"), KEYS, st.binary(max_size=40)),
        st.tuples(st.just("put"), KEYS, st.binary(max_size=40)),
        st.tuples(st.just("delete"), KEYS),
        st.tuples(st.just("sync")),
        st.tuples(st.just("wait"), st.integers(1, 400)),
        st.tuples(st.just("close")),
        st.tuples(st.just("kill")),
        st.tuples(st.just("power"), st.sampled_from(Persistence)),
        st.tuples(st.just("power while syncing"), st.sampled_from(Persistence)),
    ),
    max_size=60,
)


def play(steps: Sequence[tuple[object, ...]], seed: int) -> Life:
    life = Life(seed)
    for step in steps:
        match step:
            case ("put", bytes() as key, bytes() as value):
                life.change(key, value)
            case ("delete", bytes() as key):
                life.change(key, None)
            case ("sync",):
                life.sync()
            case ("wait", int() as seconds):
                life.now_s += seconds
            case ("close",):
                life.store.close()
                life.reopen()
            case ("kill",):
                life.disk.crash()
                life.reopen()
            case ("power", Persistence() as mode):
                life.disk.power_loss((mode,))
                life.reopen()
            case ("power while syncing", Persistence() as mode):
                task = life.store.start_sync(life.now_s)
                if task is not None and task.log_task is not None:
                    # The log is on disk, the snapshot not begun.
                    task.log_task.run()
                    life.confirmed = len(life.changes)
                life.disk.power_loss((mode,))
                life.reopen()
            case _:
                raise AssertionError(step)
    return life


@settings(max_examples=250, deadline=None)
@given(steps=STEPS, seed=st.integers(0, 1_000))
@example(steps=[("put", b"a", b"%d" % number) for number in range(30)] + [("sync",), ("kill",)], seed=0)
def test_it_is_a_dictionary_whatever_happens(steps: list[tuple[object, ...]], seed: int) -> None:
    life = play(steps, seed)
    life.disk.power_loss()
    life.reopen()
    life.change(b"after", b"all")
    life.sync()
    life.disk.power_loss((Persistence.NONE,))
    life.reopen()
    assert life.store.state[b"after"] == b"all"


@pytest.mark.parametrize("mode", list(Persistence))
def test_long_lives_see_snapshots_and_dropped_segments(mode: Persistence) -> None:
    for seed in range(4):
        rng = random.Random(seed)
        life = Life(seed)
        for number in range(250):
            life.change(b"key %d" % rng.randrange(12), None if rng.random() < 0.2 else b"%d" % number)
            if rng.random() < 0.3:
                life.sync()
            if rng.random() < 0.06:
                life.disk.power_loss((mode,))
                life.reopen()
        for number in range(INTERVAL_RECORDS):
            life.change(b"last", b"%d" % number)
        life.sync()
        assert len(life.disk.list(f"{FOLDER}/snapshots")) == 3
        bases = [name for name in life.disk.list(f"{FOLDER}/log") if name.endswith(".seg")]
        assert min(bases) > f"{50:020d}.seg", "the log is not dropped behind the snapshots"
        assert life.store.records_since_snapshot < INTERVAL_RECORDS


class PowerCutError(Exception):
    """The machine went off before an operation."""


class CutDisk(SimDisk):
    """Goes off before a given change of a folder or folder sync."""

    def __init__(self, rng: random.Random, survives: int) -> None:
        super().__init__(rng)
        self.survives = survives

    def _count(self) -> None:
        if self.survives == 0:
            raise PowerCutError
        self.survives -= 1

    def open(self, path: str, *, create: bool = False) -> SimFile:
        if create:
            self._count()
        return super().open(path, create=create)

    def rename(self, source: str, destination: str) -> None:
        self._count()
        super().rename(source, destination)

    def remove(self, path: str) -> None:
        self._count()
        super().remove(path)

    def sync_folder(self, path: str) -> None:
        self._count()
        super().sync_folder(path)


@pytest.mark.parametrize("mode", [Persistence.NONE, Persistence.PREFIX, Persistence.ALL])
def test_power_loss_at_every_change_of_a_folder_loses_nothing_confirmed(mode: Persistence) -> None:
    def live(disk: SimDisk) -> tuple[int, list[dict[bytes, bytes]]]:
        """Changes confirmed before the power went, and the state after each number of changes."""
        confirmed, states = 0, [dict[bytes, bytes]()]
        try:
            state = open_state(disk)
            for number in range(60):
                states.append(states[-1] | {b"key %d" % (number % 5): b"%d" % number})
                state.apply([(b"key %d" % (number % 5), b"%d" % number)], 1.0)
                if number % 3 == 2 and (task := state.start_sync(1.0)) is not None:
                    task.run()
                    state.finish_sync(None)
                    confirmed = state.durable_offset
        except PowerCutError:
            pass
        return confirmed, states

    whole = CutDisk(random.Random(0), 10**6)
    assert live(whole)[0] == 60
    operations = 10**6 - whole.survives
    assert operations > 50
    for survives in range(operations):
        disk = CutDisk(random.Random(survives), survives)
        confirmed, states = live(disk)
        disk.survives = 10**6
        disk.power_loss((mode,))
        again = open_state(disk)
        assert again.next_offset >= confirmed, f"after {survives} operations"
        assert dict(again.state) == states[again.next_offset], f"after {survives} operations"


def test_replay_of_snapshot_and_tail_is_the_replay_of_everything_at_every_length() -> None:
    rng = random.Random(5)
    changes = [(b"key %d" % rng.randrange(6), None if rng.random() < 0.3 else b"%d" % number) for number in range(40)]
    for length in range(len(changes) + 1):
        for snapshot_at in {0, length // 2, length}:
            disk = MemoryDisk()
            state = StateLog(disk, FOLDER, encoder=ENCODER, note=lambda place, problem: None, interval_records=10**9)
            expected: dict[bytes, bytes] = {}
            for number, (key, value) in enumerate(changes[:length]):
                if number == snapshot_at and number:
                    state._snapshots._interval_records = 1
                    sync(state, 1_000.0)
                    assert state.records_since_snapshot == 0
                    state._snapshots._interval_records = 10**9
                if value is None:
                    state.apply([(key, None)], 1_000.0)
                    expected.pop(key, None)
                else:
                    state.apply([(key, value)], 1_000.0)
                    expected[key] = value
            state.close()
            again = StateLog(disk, FOLDER, encoder=ENCODER, note=lambda place, problem: None)
            assert dict(again.state) == expected


def test_several_changes_at_once() -> None:
    state = open_state(MemoryDisk())
    assert state.apply([], 1.0) == -1
    assert state.apply([(b"a", b"1"), (b"b", b"2"), (b"a", None), (b"c", b""), (b"b", b"3")], 1.0) == 4
    assert dict(state.state) == {b"b": b"3", b"c": b""}
    assert state.next_offset == 5


def test_a_snapshot_is_due_after_so_many_records_or_so_much_time() -> None:
    disk = MemoryDisk()
    state = StateLog(disk, FOLDER, encoder=ENCODER, note=lambda place, problem: None, interval_records=100)
    assert state.start_sync(0.0) is None
    for number in range(99):
        state.apply([(b"%d" % number, b"")], 0.0)
    sync(state, 0.0)
    assert state.records_since_snapshot == 99
    state.apply([(b"x", b"")], 0.0)
    sync(state, 0.0)
    assert state.records_since_snapshot == 0
    state.apply([(b"y", b"")], 0.0)
    sync(state, 299.0)
    assert state.records_since_snapshot == 1
    assert not sync(state, 299.9)
    assert sync(state, 300.0), "the log is synced, the snapshot is due"
    assert state.records_since_snapshot == 0


def test_a_damaged_snapshot_costs_a_longer_replay_and_no_state() -> None:
    disk = MemoryDisk()
    state = open_state(disk)
    for number in range(60):
        state.apply([(b"key %d" % (number % 9), b"%d" % number)], 1.0 + number)
        sync(state, 1.0 + number)
    expected = dict(state.state)
    state.close()
    names = sorted(disk.list(f"{FOLDER}/snapshots"))
    assert len(names) == 3
    for damaged in names[1:]:
        file = disk.open(f"{FOLDER}/snapshots/{damaged}")
        file.write_at(50, bytes([file.read_at(50, 1)[0] ^ 4]))
    notes: list[tuple[str, str]] = []
    again = open_state(disk, notes)
    assert dict(again.state) == expected
    assert len([problem for _, problem in notes if "damaged snapshot" in problem]) == 2
    again.close()
    disk.remove(f"{FOLDER}/snapshots/{names[0]}")
    with pytest.raises(LogError, match=r"the log starts at offset \d+, but the newest sound snapshot ends before 0"):
        open_state(disk)


def test_a_log_that_ends_before_its_snapshot_is_refused() -> None:
    disk = MemoryDisk()
    state = open_state(disk)
    for number in range(20):
        state.apply([(b"key", b"%d" % number)], 1.0)
        sync(state, 1.0)
    state.close()
    for name in disk.list(f"{FOLDER}/log"):
        disk.remove(f"{FOLDER}/log/{name}")
    with pytest.raises(LogError, match="the log ends before offset 0"):
        open_state(disk)


def test_a_lost_part_of_the_log_is_told() -> None:
    disk = MemoryDisk()
    state = StateLog(disk, FOLDER, encoder=ENCODER, note=lambda place, problem: None)
    for number in range(6):
        state.apply([(b"key %d" % number, b"v")], 1.0)
    sync(state, 1.0)
    state.close()
    (name,) = [name for name in disk.list(f"{FOLDER}/log") if name.endswith(".seg")]
    file = disk.open(f"{FOLDER}/log/{name}")
    size = file.size // 6
    file.write_at(2 * size + 50, b"\xff\xff")
    notes: list[tuple[str, str]] = []
    again = open_state(disk, notes)
    assert sorted(again.state) == [b"key 0", b"key 1", b"key 3", b"key 4", b"key 5"]
    assert (f"{FOLDER}/log", "offsets 2 to 2 are lost; keys changed there may be out of date") in notes


def test_a_failed_sync_is_sticky_and_confirms_nothing() -> None:
    disk = SimDisk(random.Random(1))
    state = open_state(disk)
    state.apply([(b"a", b"1")], 1.0)
    sync(state, 1.0)
    state.apply([(b"b", b"2")], 1.0)
    disk.profile = DiskProfile(failing_syncs=(disk.sync_count + 1,))
    sync(state, 1.0)
    assert state.durable_offset == 1
    with pytest.raises(LogError):
        state.apply([(b"c", b"3")], 1.0)
    assert b"c" not in state.state
    disk.power_loss((Persistence.NONE,))
    assert dict(open_state(disk).state) == {b"a": b"1"}


def test_a_full_disk_costs_the_snapshot_but_not_the_sync() -> None:
    disk = SimDisk(random.Random(1))
    notes: list[tuple[str, str]] = []
    state = open_state(disk, notes)
    for number in range(INTERVAL_RECORDS):
        state.apply([(b"key %d" % number, bytes(30))], 1.0)
    disk.profile = DiskProfile(capacity_bytes=disk.used_bytes + 60)
    sync(state, 1.0)
    assert state.durable_offset == INTERVAL_RECORDS
    assert state.records_since_snapshot == INTERVAL_RECORDS
    assert [problem for _, problem in notes if "no snapshot could be written" in problem]
    assert not disk.list(f"{FOLDER}/snapshots")
    disk.profile = DiskProfile()
    assert state.start_sync(30.0) is None, "it waits a minute"
    assert sync(state, 61.5)
    assert state.records_since_snapshot == 0


def test_only_one_sync_runs_at_a_time_and_changes_meanwhile_stay_out_of_the_snapshot() -> None:
    disk = SimDisk(random.Random(1))
    state = open_state(disk)
    for number in range(INTERVAL_RECORDS):
        state.apply([(b"key", b"%d" % number)], 1.0)
    task = state.start_sync(1.0)
    assert task is not None
    state.apply([(b"key", b"later")], 1.0)
    state.apply([(b"other", b"later")], 1.0)
    assert state.start_sync(1.0) is None
    task.run()
    state.finish_sync(None)
    assert state.records_since_snapshot == 2
    snapshot = SnapshotStore(
        disk, f"{FOLDER}/snapshots", SnapshotKind.KEYED_STATE, note=lambda place, problem: None
    ).load()
    assert snapshot is not None
    assert [(entry.key, entry.value) for entry in snapshot.entries] == [(b"key", b"%d" % (INTERVAL_RECORDS - 1))]
    assert snapshot.last_offset == INTERVAL_RECORDS - 1


def test_what_no_snapshot_could_hold_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    state = open_state(MemoryDisk())
    with pytest.raises(LogError, match="key of 65536 bytes"):
        state.apply([(bytes(65_536), b"")], 1.0)
    monkeypatch.setattr(state_log_module, "MAX_SNAPSHOT_BYTES", 32 + 3 * (7 + 1 + 10))
    for key in (b"a", b"b", b"c"):
        state.apply([(key, bytes(10))], 1.0)
    for changes in ([(b"d", b"")], [(b"a", bytes(11))], [(b"a", None), (b"d", bytes(11))]):
        with pytest.raises(LogError, match="would grow"):
            state.apply(changes, 1.0)
    assert state.next_offset == 3
    state.apply([(b"a", None), (b"d", bytes(10))], 1.0)
    state.apply([(b"d", None)], 1.0)
    state.apply([(b"b", b"smaller")], 1.0)
    assert state._state_bytes == 32 + sum(7 + len(key) + len(value) for key, value in state.state.items())

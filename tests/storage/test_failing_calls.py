"""A disk of which one call fails, whichever it is: under keyed state, under a log, and under the log of a group.

What was confirmed stays, what was refused is not there, and what a start finds is what was in memory. A subject has a
life of steps, each of which asserts at once what can be seen in memory; ``settle``: nothing fails any more, and what is
there is confirmed, unless a sync failed (``failed``): then nobody knows what is on disk. ``check``: what a start finds.
"""

from __future__ import annotations

import errno
import random
import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any, cast

import pytest

from assay.reference_broker.config import Compression
from assay.reference_broker.queues.jobs.errors import LogError
from assay.reference_broker.queues.jobs.store import NewRecord
from assay.reference_broker.storage import pending_log
from assay.reference_broker.storage.batch import BatchEncoder
from assay.reference_broker.storage.disk import Disk
from assay.reference_broker.storage.log import LogOptions, SegmentedLog
from assay.reference_broker.storage.state_log import StateLog
from assay.sim.disk import Persistence, SimDisk
from assay.sim.failing_disk import FailingDisk, Fault
from tests.storage import test_pending_crashes as group_lives

ENCODER = BatchEncoder(Compression.NONE)
STEPS = 24
SNAPSHOT_RECORDS = 7
AN_HOUR_S = 3_600.0
ERRORS = (errno.EIO, errno.ENOSPC, errno.EMFILE)


class TearingDisk(FailingDisk):
    """Of a write that fails half is there."""

    def guarded(self, name: str, path: str, call: Callable[..., Any]) -> Callable[..., Any]:
        guarded = super().guarded(name, path, call)

        def torn(*arguments: Any, **named: Any) -> Any:
            if name == "append" and self.fault is not None and self.fault.hits(name, self.counts[name] + 1):
                call(arguments[0][: len(arguments[0]) // 2])
            return guarded(*arguments, **named)

        return torn


class Notes(list[str]):
    """What people are told."""

    def add(self, place: str, problem: str) -> None:
        assert re.fullmatch(r"[sl](/[^ ]+)?( offset \d+)?|queues/q/[^ ]+", place), f"not a place: {place!r}"
        assert " " in problem
        self.append(f"{place}: {problem}")


class KeyedState:
    """Keys are set and deleted. ``states``: after each change that was taken."""

    def __init__(self, disk: Disk, variant: int) -> None:
        self.notes = Notes()
        self.failed = False
        self.states: list[dict[bytes, bytes]] = [{}]
        self.confirmed = 0
        self.now_s = 1_000.0
        self.options = LogOptions(segment_bytes=250, write_buffer_bytes=60 if variant % 2 else 0)
        self.log = self.open(disk)

    def open(self, disk: Disk) -> StateLog:
        return StateLog(
            disk,
            "s",
            encoder=ENCODER,
            note=self.notes.add,
            options=self.options,
            interval_records=SNAPSHOT_RECORDS,
        )

    def step(self, number: int) -> None:
        key, value = b"key %d" % (number % 5), b"%d" % number
        before = dict(self.log.state), self.log.next_offset
        self.now_s += 1.0
        try:
            if number % 6 == 5 and key in self.log.state:
                assert self.log.apply([(key, None)], self.now_s) == before[1]
                after = {name: kept for name, kept in before[0].items() if name != key}
            else:
                assert self.log.apply([(key, value)], self.now_s) == before[1]
                after = before[0] | {key: value}
        except LogError as error:
            assert (dict(self.log.state), self.log.next_offset) == before
            assert error.sticky == self.failed
            assert self.notes, "people are told why"
        else:
            assert not self.failed, "who does not know what is on disk takes nothing more"
            assert dict(self.log.state) == after
            self.states.append(after)
        if number % 3 == 2:
            self.sync()

    def sync(self) -> None:
        task = self.log.start_sync(self.now_s)
        if task is None:
            return
        assert not self.failed
        assert self.log.start_sync(self.now_s) is None, "one at a time"
        durable = self.log.durable_offset
        try:
            task.run()
        except OSError as error:
            self.log.finish_sync(error)
            assert self.log.durable_offset == durable
            self.failed = error.errno != errno.EMFILE
        else:
            self.log.finish_sync(None)
            assert (self.log.records_since_snapshot < SNAPSHOT_RECORDS) <= (task.snapshot_error is None)
        self.confirmed = self.log.durable_offset

    def settle(self) -> None:
        for _ in range(3):
            self.now_s += 61.0
            self.sync()
        if not self.failed:
            assert self.confirmed == self.log.next_offset == len(self.states) - 1
            assert self.log.records_since_snapshot < SNAPSHOT_RECORDS, "a snapshot that failed is tried again"

    def check(self, disk: Disk) -> None:
        found = self.open(disk)
        assert self.confirmed <= found.next_offset < len(self.states)
        # What a failed sync was to cover is cut off, whole segments of it, and offsets go on behind them.
        allowed = self.states[self.confirmed :] if self.failed else [self.states[found.next_offset]]
        assert dict(found.state) in allowed
        found.close()


class Records:
    """A log; some of what a sync has confirmed is dropped. ``taken``: by offset, what was not refused."""

    def __init__(self, disk: Disk, variant: int) -> None:
        self.notes = Notes()
        self.failed = False
        self.taken: dict[int, bytes] = {}
        self.confirmed = self.dropped = 0
        self.options = LogOptions(segment_bytes=200, write_buffer_bytes=80 if variant % 2 else 0)
        self.log = self.open(disk)

    def open(self, disk: Disk) -> SegmentedLog:
        return SegmentedLog(disk, "l", options=self.options, encoder=ENCODER, volatile=False, note=self.notes.add)

    def step(self, number: int) -> None:
        values = [b"%d.%d" % (number, part) for part in range(1 + number % 3)]
        offset = self.log.next_offset
        try:
            if number % 10 == 9:
                self.log.roll()
            assert self.log.append([NewRecord(number, None, value, ()) for value in values]) == offset
        except LogError as error:
            assert self.log.next_offset == offset
            assert error.sticky == self.failed
            assert self.notes, "people are told why"
        else:
            assert not self.failed
            self.taken |= dict(enumerate(values, offset))
        if number % 3 == 2:
            self.sync()
        if number == STEPS // 2:
            self.log.drop_before(self.confirmed // 2)
            self.dropped = self.log.start_offset

    def sync(self) -> None:
        task = self.log.start_sync()
        if task is None:
            return
        assert not self.failed
        durable = self.log.durable_offset
        try:
            task.run()
        except OSError as error:
            self.log.finish_sync(error)
            assert self.log.durable_offset == durable
            self.failed = error.errno != errno.EMFILE
        else:
            self.log.finish_sync(None)
        self.confirmed = self.log.durable_offset

    def settle(self) -> None:
        self.sync()
        if not self.failed:
            assert self.confirmed == self.log.next_offset
            assert not self.log.needs_sync
            self._check(self.log)

    def _check(self, log: SegmentedLog) -> None:
        found = {record.offset: record.value for record in log.read_range(log.start_offset, log.next_offset)}
        assert found.items() <= self.taken.items(), "what was refused is not there"
        assert set(range(self.dropped, self.confirmed)) <= found.keys()

    def check(self, disk: Disk) -> None:
        log = self.open(disk)
        assert log.next_offset >= self.confirmed
        self._check(log)
        log.close()


class Deliveries:
    """The log of a consumer group; what could not be written is written with the next."""

    def __init__(self, disk: Disk, variant: int) -> None:
        self.notes = Notes()
        self.failed = False
        self.life = group_lives.Life(group_lives.open_log(disk, self.notes.add), variant)
        self._written = 0

    def _flush(self) -> None:
        has_some = self.life.log.has_unflushed
        try:
            self.life.flush()
        except LogError as error:
            assert error.sticky == self.failed
            assert self.notes, "people are told why"
        else:
            assert not (has_some and self.failed)
        if not self.life.log.has_unflushed:
            self._written = len(self.life.states) - 1

    def step(self, number: int) -> None:
        self.life.operate()
        self._flush()
        if number % 2:
            self._sync()

    def _sync(self) -> None:
        covered, log = self._written, self.life.log
        task = log.start_sync()
        if task is None:
            return
        assert not self.failed
        try:
            task.run()
        except OSError as error:
            log.finish_sync(error)
            self.failed = error.errno != errno.EMFILE
        else:
            log.finish_sync(None)
            self.life.synced = covered

    def settle(self) -> None:
        for _ in range(20):
            self._flush()
            self._sync()
        if not self.failed:
            assert self.life.states[self.life.synced] == self.life.states[-1]
            assert not self.life.log.needs_sync

    def check(self, disk: Disk) -> None:
        disk.make_folder(group_lives.FOLDER)  # of a group that nobody was told of, a power loss takes all
        group_lives.check(self.life, disk, "")


Subject = KeyedState | Records | Deliveries
SUBJECTS: tuple[Callable[[Disk, int], Subject], ...] = (KeyedState, Records, Deliveries)


@pytest.fixture(autouse=True, scope="module")
def _frequent_snapshots() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pending_log, "SNAPSHOT_OPERATIONS", 12)
        patch.setattr("assay.reference_broker.storage.pending_snapshot.ENTRIES_PER_STEP", 2)
        yield


def new_disk() -> SimDisk:
    disk = SimDisk(random.Random(1))
    group_lives.prepare(disk)
    return disk


def calls(kind: Callable[[Disk, int], Subject]) -> dict[str, int]:
    """How often a life makes each call, opening it again included."""
    disk = TearingDisk(new_disk())
    life = kind(cast(Disk, disk), 1)
    for number in range(STEPS):
        life.step(number)
    return dict(disk.counts)


@pytest.mark.parametrize("kind", SUBJECTS)
def test_any_call_may_fail(kind: Callable[[Disk, int], Subject]) -> None:
    places = [(call, first) for call, count in sorted(calls(kind).items()) for first in range(1, count + 1)]
    assert len(places) > 100
    outcomes = {True: 0, False: 0}
    for variant, (call, first) in enumerate(places):
        # Twice: what is tried again at once fails once more.
        fault = Fault(call, first, ERRORS[variant % len(ERRORS)], times=1 + variant % 2)
        disk = new_disk()
        failing = TearingDisk(disk, fault)
        try:
            life = kind(cast(Disk, failing), variant)
        except LogError:
            failing.fault = None
            life = kind(cast(Disk, failing), variant)
        for number in range(STEPS):
            life.step(number)
        failing.fault = None
        life.settle()
        outcomes[life.failed] += 1
        if variant % 2:
            disk.power_loss((Persistence.NONE,))
        else:
            disk.crash()
        life.check(disk)
    assert min(outcomes.values()) > 5, outcomes


@pytest.mark.parametrize("kind", SUBJECTS)
def test_any_call_of_a_start_may_fail(kind: Callable[[Disk, int], Subject]) -> None:
    """It is refused as a whole, or finds all there is; and the next one does."""
    for variant in range(2):
        disk = new_disk()
        life = kind(disk, variant)
        for number in range(STEPS - variant):
            life.step(number)
        life.settle()
        for call in ("open", "list", "exists", "read_at", "append", "truncate", "sync", "sync_folder", "rename"):
            for first in range(1, 40):
                disk.crash()
                failing = TearingDisk(disk, Fault(call, first, ERRORS[first % len(ERRORS)]))
                with suppress(LogError):
                    life.check(cast(Disk, failing))
                if not failing.failed:
                    break
                disk.crash()
                life.check(disk)

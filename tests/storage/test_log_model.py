"""Any sequence of what can be done to a log, and of what can happen to it, against a plain dict of records."""

from __future__ import annotations

import random

import msgspec
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from assay.reference_broker.queues.jobs.errors import LogError
from assay.reference_broker.queues.jobs.store import LogRecord, NewRecord, RetentionPolicy
from assay.reference_broker.storage import offset_index, time_index
from assay.reference_broker.storage.compaction import Compactor
from assay.reference_broker.storage.file_sync import FileSync
from assay.reference_broker.storage.log import LogOptions
from assay.sim.log_life import (
    FOLDER,
    POLICY,
    Found,
    LogModel,
    encoder,
    open_log,
    read_all,
    stored_records,
    time_disagreements,
)
from assay.sim.power_cuts import WatchedDisk, power_cuts

RECORDS = st.lists(
    st.tuples(
        st.sampled_from([0, 0, 1, 400, 1_500, -700]),
        st.sampled_from([b"a", b"b", b"c", b"", None]),
        st.none() | st.binary(max_size=30),
    ),
    min_size=1,
    max_size=5,
)
POLICIES = st.sampled_from(
    [RetentionPolicy(max_records=6), RetentionPolicy(max_bytes=700), RetentionPolicy(max_age_ms=2_000)]
)


@pytest.fixture(autouse=True)
def dense_indexes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(offset_index, "INDEX_INTERVAL_BYTES", 60)
    monkeypatch.setattr(time_index, "TIME_INTERVAL_MS", 500)


class LogMachine(RuleBasedStateMachine):
    """``here`` is what the log must show; ``model`` what a power loss may leave of it."""

    @initialize(
        segment_bytes=st.sampled_from([60, 300, 5_000]),
        segment_age_ms=st.sampled_from([0, 1_000]),
        buffered=st.booleans(),
    )
    def start(self, segment_bytes: int, segment_age_ms: int, buffered: bool) -> None:
        self.options = LogOptions(
            segment_bytes=segment_bytes,
            segment_age_ms=segment_age_ms,
            write_buffer_bytes=200 if buffered else 0,
        )
        self.disk = WatchedDisk(random.Random(0))
        self.model = LogModel()
        self.here: dict[int, LogRecord] = {}
        self.doubtful: set[int] = set()
        """Written before a sync that failed, so that no later sync makes it durable."""
        self.now_ms = 1_000_000
        self.is_failed = False
        self.sync_task: FileSync | None = None
        self.sync_end = 0
        self.sync_covers_all = True
        self.cuts = 0
        self.notes: list[str] = []
        self.open()

    def open(self) -> None:
        self.log = open_log(self.disk, options=self.options, notes=self.notes)
        self.compactor = Compactor(self.disk, FOLDER, self.log, encoder(), POLICY)
        self.is_failed = False
        self.sync_task = None

    @property
    def is_full(self) -> bool:
        return self.disk.profile.capacity_bytes > 0

    def show(self) -> list[LogRecord]:
        return [record for _, record in sorted(self.here.items())]

    def recover(self) -> None:
        """Open after something was lost; what is there now is what counts from now on."""
        self.open()
        records = read_all(self.log)
        found = Found(tuple(records), self.log.next_offset, ())
        assert list(self.model.complaints(found)) == []
        assert records == stored_records(self.disk)
        self.here = {record.offset: record for record in records}
        self.model.written = dict(self.here)

    # -- writing -------------------------------------------------------------------------------------------------

    @rule(steps=RECORDS)
    def append(self, steps: list[tuple[int, bytes | None, bytes | None]]) -> None:
        records = []
        for step_ms, key, value in steps:
            self.now_ms += step_ms
            records.append(NewRecord(self.now_ms, key, value, ()))
        offset = self.log.next_offset
        before, ever = dict(self.model.written), set(self.model.ever)
        self.model.appending(offset, records)
        try:
            assert self.log.append(records) == offset
        except LogError as error:
            assert self.is_failed or self.is_full
            assert error.sticky == self.is_failed
            assert self.log.next_offset == offset
            self.model.written, self.model.ever = before, ever
        else:
            assert not self.is_failed
            self.here |= {number: self.model.written[number] for number in range(offset, offset + len(records))}

    @precondition(lambda self: not self.is_failed)
    @rule()
    def roll(self) -> None:
        try:
            self.log.roll()
        except LogError:
            assert self.is_full

    @precondition(lambda self: self.sync_task is None)
    @rule()
    def begin_sync(self) -> None:
        self.sync_task = self.log.start_sync()
        self.sync_end = self.log.next_offset
        self.sync_covers_all = not self.is_full

    @precondition(lambda self: self.sync_task is not None)
    @rule(failing=st.sampled_from([0, 0, 0, 1, 2]))
    def end_sync(self, failing: int) -> None:
        assert self.sync_task is not None
        if failing:
            self.disk.profile = msgspec.structs.replace(
                self.disk.profile, failing_syncs=(self.disk.sync_count + failing,)
            )
        try:
            self.sync_task.run()
        except OSError as error:
            self.log.finish_sync(error)
            self.failed_sync()
        else:
            self.log.finish_sync(None)
            assert self.log.durable_offset <= self.sync_end
            assert not self.sync_covers_all or self.log.durable_offset == self.sync_end
            self.model.confirmed(self.log.durable_offset, self.model.confirmed_end)
            self.model.sure &= set(self.here) - self.doubtful
        self.sync_task = None
        self.disk.profile = msgspec.structs.replace(self.disk.profile, failing_syncs=())

    def failed_sync(self) -> None:
        """The unsynced records were taken back; what an earlier process left unsynced is there, and doubtful."""
        assert self.log.start_sync() is None
        self.is_failed = True
        records = read_all(self.log)
        assert all(self.here.get(record.offset) == record for record in records)
        self.here = {record.offset: record for record in records}
        assert self.model.sure <= set(self.here)
        self.doubtful |= set(self.here) - self.model.sure

    @rule(room=st.integers(0, 300))
    def fill_the_disk(self, room: int) -> None:
        capacity = 0 if self.is_full else self.disk.used_bytes + room + 1
        self.disk.profile = msgspec.structs.replace(self.disk.profile, capacity_bytes=capacity)

    # -- reading -------------------------------------------------------------------------------------------------

    @property
    def is_readable(self) -> bool:
        """On a full disk buffered records cannot be shown."""
        return not (self.is_full and self.options.write_buffer_bytes)

    @precondition(lambda self: self.is_readable)
    @rule(limit=st.integers(1, 10), data=st.data())
    def read(self, limit: int, data: st.DataObject) -> None:
        offset = data.draw(st.integers(0, self.log.next_offset + 1))
        expected = [record for record in self.show() if record.offset >= offset]
        found = self.log.read(offset, limit)
        assert found == expected[: len(found)]
        assert len(found) >= min(limit, len(expected))
        assert self.log.get(offset) == self.here.get(offset)

    @precondition(lambda self: self.is_readable)
    @rule()
    def read_everything(self) -> None:
        assert read_all(self.log) == self.show()
        assert list(time_disagreements(self.log, self.show(), samples=8)) == []

    @invariant()
    def offsets_are_in_order(self) -> None:
        if hasattr(self, "log"):
            assert self.log.start_offset <= self.log.next_offset
            assert all(number < self.log.next_offset for number in self.here)
            assert self.log.next_offset >= self.model.confirmed_end

    # -- removing ------------------------------------------------------------------------------------------------

    @rule(data=st.data())
    def drop_before(self, data: st.DataObject) -> None:
        offset = data.draw(st.integers(0, self.log.next_offset + 2))
        self.model.dropping(offset)
        sure = {number for number in self.here if number < offset} - self.doubtful
        durable = min(self.model.confirmed_end, self.log.durable_offset)
        self.log.drop_before(offset)
        self.removed(offset, {number for number in sure if number < durable})

    @precondition(lambda self: not self.is_failed)
    @rule(policy=POLICIES, data=st.data())
    def retain(self, policy: RetentionPolicy, data: st.DataObject) -> None:
        needed_from = data.draw(st.none() | st.integers(0, self.log.next_offset))
        end = self.log.next_offset if needed_from is None else needed_from
        before = self.log.start_offset
        sure = {number for number in self.model.sure if number < end}
        self.model.dropping(end)
        try:
            self.log.retain(policy, now_ms=self.now_ms, needed_from=needed_from)
        except LogError:
            assert self.is_full
        self.removed(end, sure)
        if self.log.start_offset > before and policy.max_records:
            assert self.log.next_offset - self.log.start_offset >= policy.max_records

    def removed(self, below: int, sure: set[int]) -> None:
        """The oldest segments went, none with a record at or above an offset; ``sure`` of the rest stays so."""
        start = self.log.start_offset
        assert all(number < below for number in self.here if number < start)
        self.here = {number: record for number, record in self.here.items() if number >= start}
        self.model.sure |= {number for number in sure if number >= start and number in self.here}

    @precondition(lambda self: not self.is_failed and self.is_readable and self.sync_task is None)
    @rule(fresh=st.booleans())
    def compact(self, fresh: bool) -> None:
        if fresh:
            self.roll()
            self.begin_sync()
            if self.sync_task is not None:
                self.end_sync(0)
        if self.is_failed:
            return
        task = self.compactor.start(self.now_ms)
        if task is None:
            return
        removable = self.model.may_go(self.log.segments[-1].base_offset, self.now_ms)
        going = removable & self.model.sure
        self.model.gone(going)
        failure: Exception | None = None
        try:
            task.run()
        except (OSError, LogError) as error:
            # A power loss may leave a torn write in a sealed segment; compaction does not touch damage.
            assert self.is_full or "damaged" in str(error)
            failure = error
        try:
            self.compactor.finish(task, failure)
        except LogError:
            assert self.is_full
        kept = {record.offset for record in read_all(self.log)}
        assert set(self.here) - kept <= removable
        self.here = {number: record for number, record in self.here.items() if number in kept}
        self.model.sure |= going & kept

    # -- restarting ----------------------------------------------------------------------------------------------

    @rule()
    def reopen(self) -> None:
        is_exact = self.is_readable and not self.is_failed
        expected = self.show()
        self.log.close()
        self.recover()
        assert not is_exact or self.show() == expected

    @rule()
    def kill(self) -> None:
        """The process is gone; what it wrote is not. Its buffer is."""
        expected = self.show()
        self.disk.crash()
        self.recover()
        assert self.options.write_buffer_bytes or self.is_failed or self.show() == expected

    @rule(way=st.integers(0, 40))
    def lose_power(self, way: int) -> None:
        self.cuts += 1
        cuts = list(power_cuts(self.disk, f"{self.cuts}"))
        self.disk = cuts[way % len(cuts)].boot()
        self.recover()
        self.doubtful = set()

    @rule(way=st.integers(0, 40), operation=st.integers(0, 30))
    def lose_power_while_compacting(self, way: int, operation: int) -> None:
        """The machine stops at some disk operation of a compaction."""
        if self.is_failed or self.is_full or self.sync_task is not None:
            return
        done = 0

        def count() -> None:
            nonlocal done
            done += 1
            if done > operation:
                raise PowerLostError

        self.disk.before = count
        try:
            self.compact(fresh=True)
        except PowerLostError:
            pass
        finally:
            self.disk.before = None
        self.lose_power(way)


class PowerLostError(BaseException):
    """The machine stops; nothing that the log does about errors happens."""


def test_a_log_is_a_dict_of_records_whatever_happens() -> None:
    run_state_machine_as_test(
        LogMachine,
        settings=settings(
            max_examples=500,
            stateful_step_count=40,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )

"""Group commit: one sync confirms every append that waited for it."""

from __future__ import annotations

import asyncio
import statistics
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from queue import SimpleQueue
from typing import NamedTuple

import uvloop

from assay.loadtests.bench.storage.log_files import LogFolder, raw_sync_s
from assay.loadtests.bench.storage.measurement import Case, RowSpec, Sample
from assay.loadtests.bench.storage.plan import StoragePlan
from assay.loadtests.bench.storage.workload import uniform_batches
from assay.reference_broker.queues.jobs.store import NewRecord, SyncTask
from assay.reference_broker.storage.log import SegmentedLog

Confirm = Callable[[], None]
StartSync = Callable[[SyncTask], "asyncio.Future[float]"]


class GroupFigures(NamedTuple):
    """What one measurement found."""

    confirmed: int
    syncs: int
    took_s: float
    handover_s: float
    """Median time that a sync took beyond the system calls: to the thread and back."""


class GroupCommit:
    """Producers on one log, each with one record in flight; its confirm is a callback that makes its next record.

    Turns as in the broker: what the confirms bring is appended (in one piece, as a queue's partition does, or a record
    a call), and the next sync starts. It runs in a thread, and the loop goes on.
    """

    def __init__(
        self, log: SegmentedLog, records: Sequence[NewRecord], producers: int, *, is_collected: bool = True
    ) -> None:
        self._log = log
        self._records = records
        self._producers = producers
        self._is_collected = is_collected
        self._turn: list[NewRecord] = []
        self._waiting: list[Confirm] = []
        self._made = 0

    def _produce(self) -> None:
        """A producer's next record; the confirm calls it again."""
        self._turn.append(self._records[self._made % len(self._records)])
        self._made += 1
        self._waiting.append(self._produce)

    def _append(self) -> None:
        if self._is_collected:
            self._log.append(self._turn)
        else:
            for record in self._turn:
                self._log.append((record,))
        self._turn.clear()

    async def run(self, seconds: float) -> GroupFigures:
        """Raises :class:`OSError` when a sync fails."""
        confirmed = syncs = 0
        handovers_s: list[float] = []
        with _sync_thread() as start:
            for _ in range(self._producers):
                self._produce()
            began = time.perf_counter()
            until = began + seconds
            while (now := time.perf_counter()) < until:
                self._append()
                task = self._log.start_sync()
                assert task is not None, "records were appended, so there is something to sync"
                covered, self._waiting = self._waiting, []
                started = time.perf_counter()
                call_s = await start(task)
                handovers_s.append(time.perf_counter() - started - call_s)
                self._log.finish_sync(None)
                syncs += 1
                confirmed += len(covered)
                for confirm in covered:
                    confirm()
            return GroupFigures(confirmed, syncs, now - began, statistics.median(handovers_s))


@contextmanager
def _sync_thread() -> Iterator[StartSync]:
    """A thread that runs syncs; the future of each ends with the seconds that its system calls took."""
    loop = asyncio.get_running_loop()
    tasks: SimpleQueue[tuple[SyncTask, asyncio.Future[float]] | None] = SimpleQueue()

    def work() -> None:
        while (taken := tasks.get()) is not None:
            task, future = taken
            began = time.perf_counter()
            try:
                task.run()
            except OSError as error:
                loop.call_soon_threadsafe(future.set_exception, error)
            else:
                loop.call_soon_threadsafe(future.set_result, time.perf_counter() - began)

    def start(task: SyncTask) -> asyncio.Future[float]:
        future: asyncio.Future[float] = loop.create_future()
        tasks.put((task, future))
        return future

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield start
    finally:
        tasks.put(None)
        thread.join()


def group_commit_cases(plan: StoragePlan, folder: Path) -> list[Case]:
    """Confirmed records a second, beside raw syncs a second of writes as large as the average group, times its size."""
    title = f"group commit, {plan.producers} producers, one record in flight each"
    return [
        _case("group_commit", title, plan, folder, is_collected=True),
        _case("group_commit.singly", "  the same, one append a record", plan, folder, is_collected=False),
    ]


def _case(key: str, title: str, plan: StoragePlan, folder: Path, *, is_collected: bool) -> Case:
    records = [record for batch in uniform_batches(5_000, plan.batch_records) for record in batch]
    rows = (
        RowSpec(key=key, title=title, unit="rec/s", raw_title="raw syncs/s x average group", needs_disk=True),
        RowSpec(
            key=f"{key}.handover",
            title="  of each sync, to the thread and back",
            unit="us",
            raw_title="write and fsync of a group",
            needs_disk=True,
        ),
    )

    def measure() -> Sequence[Sample]:
        files = LogFolder(folder / "group")
        log = files.open()
        commit = GroupCommit(log, records, plan.producers, is_collected=is_collected)
        figures = uvloop.run(commit.run(plan.group_commit_s))
        log.close()
        average = figures.confirmed / figures.syncs
        stored = files.batches()
        piece = b"".join(stored[: len(stored) // figures.syncs])
        files.remove()
        sync_s = raw_sync_s(folder / "raw", piece, seconds=plan.group_commit_s / 2)
        return [
            Sample(figures.confirmed / figures.took_s, average / sync_s),
            Sample(figures.handover_s * 1e6, sync_s * 1e6),
        ]

    return Case(rows, measure)

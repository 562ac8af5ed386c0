"""Group commit: one sync confirms every append that waited, and the next appends are made while it runs."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from loadtests.bench.storage.log_files import LogFolder, raw_sync_s
from loadtests.bench.storage.measurement import Case, RowSpec, Sample
from loadtests.bench.storage.plan import StoragePlan
from loadtests.bench.storage.workload import uniform_batches
from reference_broker.core.queues.store import NewRecord
from reference_broker.storage.log import SegmentedLog

Confirm = Callable[[], None]


class GroupCommit:
    """Producers, each with one record in flight, on one log.

    A sync runs in a thread whenever something is unsynced. When it ends the next one starts first; then the confirms
    are handed out, and with each its producer appends its next record.
    """

    def __init__(self, log: SegmentedLog, records: Sequence[NewRecord], producers: int) -> None:
        self.confirmed = 0
        self.syncs = 0
        self._log = log
        self._records = records
        self._producers = producers
        self._waiting: deque[tuple[int, Confirm]] = deque()
        self._next = 0
        self._stopping = False

    def _append(self) -> None:
        """A producer's turn. It goes on from its confirm."""
        record = self._records[self._next % len(self._records)]
        self._next += 1
        offset = self._log.append((record,))
        self._waiting.append((offset, self._append))

    def _hand_out(self, durable_offset: int) -> None:
        waiting = self._waiting
        while waiting and waiting[0][0] < durable_offset:
            _, confirm = waiting.popleft()
            self.confirmed += 1
            if not self._stopping:
                confirm()

    async def run(self, seconds: float) -> float:
        """Returns the seconds it took until the last confirm. Raises :class:`OSError` when a sync fails."""
        loop = asyncio.get_running_loop()
        with ThreadPoolExecutor(1) as thread:
            began = time.perf_counter()
            # The producers do not come in one instant: half of them find the first sync running.
            for _ in range(self._producers // 2):
                self._append()
            running = self._start(loop, thread)
            for _ in range(self._producers - self._producers // 2):
                self._append()
            while running is not None:
                await running
                self._log.finish_sync(None)
                self.syncs += 1
                durable_offset = self._log.durable_offset
                self._stopping = time.perf_counter() - began >= seconds
                running = self._start(loop, thread)
                self._hand_out(durable_offset)
                if running is None:
                    running = self._start(loop, thread)
            return time.perf_counter() - began

    def _start(self, loop: asyncio.AbstractEventLoop, thread: ThreadPoolExecutor) -> asyncio.Future[None] | None:
        task = self._log.start_sync()
        return None if task is None else loop.run_in_executor(thread, task.run)


def group_commit_case(plan: StoragePlan, folder: Path) -> Case:
    """Confirmed records a second, beside raw syncs a second of writes as large as the average group, times its size."""
    records = [record for batch in uniform_batches(5_000, plan.batch_records) for record in batch]
    title = f"group commit, {plan.producers} producers, one record in flight each"
    rate = RowSpec(
        key="group_commit", title=title, unit="rec/s", raw_title="raw syncs/s x average group", needs_disk=True
    )
    group = RowSpec(key="group_commit.group", title="  average group", unit="rec", needs_disk=True)

    def measure() -> Sequence[Sample]:
        files = LogFolder(folder / "group")
        log = files.open()
        commit = GroupCommit(log, records, plan.producers)
        took_s = asyncio.run(commit.run(plan.group_commit_s))
        log.close()
        average = commit.confirmed / commit.syncs
        piece = b"".join(files.batches()[: max(1, round(average))])
        files.remove()
        sync_s = raw_sync_s(folder / "raw", piece, seconds=plan.group_commit_s / 2)
        return [Sample(commit.confirmed / took_s, average / sync_s), Sample(average)]

    return Case((rate, group), measure)

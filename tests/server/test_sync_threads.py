"""Syncs run in threads and are reported in the loop, whatever they end with."""

from __future__ import annotations

import asyncio
import threading

from assay.reference_broker.config import QueueConfig
from assay.reference_broker.queues import BackgroundJob
from assay.reference_broker.queues.jobs.confirms import SyncPoint
from assay.reference_broker.server.sync_threads import SyncThreads
from assay.reference_broker.storage.log import LogOptions
from assay.reference_broker.storage.memory_disk import MemoryDisk
from assay.reference_broker.storage.queue_store import LogQueueStore


class Task:
    """A sync that waits for its turn, notes its thread, and may fail."""

    def __init__(self, error: Exception | None = None) -> None:
        self.may_end = threading.Event()
        self.may_end.set()
        self.has_begun = threading.Event()
        self.thread: threading.Thread | None = None
        self._error = error

    def run(self) -> None:
        self.thread = threading.current_thread()
        self.has_begun.set()
        self.may_end.wait()
        if self._error is not None:
            raise self._error


def job(task: Task) -> BackgroundJob:
    store = LogQueueStore(MemoryDisk(), options=LogOptions())
    return BackgroundJob(SyncPoint(store.open_queue(QueueConfig(name="q")).open_partition(0)), task)


def test_results_and_errors_come_back_in_the_loops_thread() -> None:
    async def main() -> None:
        done: dict[BackgroundJob, tuple[Exception | None, threading.Thread]] = {}
        threads = SyncThreads(
            asyncio.get_running_loop(), lambda job, error: done.update({job: (error, threading.current_thread())})
        )
        tasks = [Task(), Task(OSError(5, "broken")), Task(ValueError("a bug"))]
        jobs = [job(task) for task in tasks]
        for each in jobs:
            threads.start(each)
        await threads.drain()
        threads.stop()
        assert [repr(done[each][0]) for each in jobs] == [
            "None",
            "OSError(5, 'broken')",
            "ValueError('a bug')",
        ]
        assert {thread for _, thread in done.values()} == {threading.main_thread()}
        assert all(task.thread is not threading.main_thread() for task in tasks)

    asyncio.run(main())


def test_the_loop_goes_on_while_a_sync_waits_and_drain_waits_for_it() -> None:
    async def main() -> None:
        done: list[BackgroundJob] = []
        first = asyncio.Event()

        def on_done(finished: BackgroundJob, error: Exception | None) -> None:
            done.append(finished)
            first.set()

        threads = SyncThreads(asyncio.get_running_loop(), on_done)
        slow, quick = Task(), Task()
        slow.may_end.clear()
        threads.start(job(slow))
        threads.start(job(quick))
        await first.wait()
        drained = asyncio.ensure_future(threads.drain())
        await asyncio.sleep(0)
        assert not drained.done()
        slow.may_end.set()
        await drained
        assert len(done) == 2
        threads.stop()
        threads.stop()

    asyncio.run(main())


def test_stop_waits_for_what_is_under_way_and_joins_the_threads() -> None:
    async def main() -> None:
        threads = SyncThreads(asyncio.get_running_loop(), lambda job, error: None)
        task = Task()
        task.may_end.clear()
        threads.start(job(task))
        await asyncio.to_thread(task.has_begun.wait)
        assert task.thread is not None
        stopping = asyncio.ensure_future(asyncio.to_thread(threads.stop))
        await asyncio.sleep(0)
        assert task.thread.is_alive()
        task.may_end.set()
        await stopping
        assert not task.thread.is_alive()

    asyncio.run(main())


def test_drain_without_work_returns() -> None:
    async def main() -> None:
        threads = SyncThreads(asyncio.get_running_loop(), lambda job, error: None)
        await threads.drain()
        threads.stop()

    asyncio.run(main())

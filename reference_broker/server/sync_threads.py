"""Threads that wait for the disk, so that the event loop does not.

A queue and one callback into the loop. An executor's futures would add about a tenth of a millisecond to every group
commit, a fifth of what one takes on a fast disk.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from queue import SimpleQueue

from assay.reference_broker.queues import BackgroundJob
from assay.reference_broker.queues.jobs.confirms import SyncPoint
from assay.reference_broker.trace.durations import Durations

SyncDone = Callable[[BackgroundJob, Exception | None], None]


class SyncThreads:
    """Runs sync jobs; ``on_done`` is called in the loop for each, in no set order."""

    def __init__(self, loop: asyncio.AbstractEventLoop, on_done: SyncDone, *, count: int = 4) -> None:
        """Starts the threads."""
        self._loop = loop
        self._on_done = on_done
        self._jobs: SimpleQueue[BackgroundJob | None] = SimpleQueue()
        self.took = Durations()
        """Syncs, as long as the disk took."""
        self.failed = 0
        """Syncs that ended with an error."""
        self._running = 0
        self._idle: asyncio.Future[None] | None = None
        self._threads = [
            threading.Thread(target=self._work, name=f"assay-sync-{number}", daemon=True) for number in range(count)
        ]
        for thread in self._threads:
            thread.start()

    def start(self, job: BackgroundJob) -> None:
        """Hand a job over; from the loop's thread."""
        self._running += 1
        self._jobs.put(job)

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            error: Exception | None = None
            began = time.perf_counter()
            try:
                job.run()
            except Exception as failure:
                # Whatever it is, the loop must hear of it.
                error = failure.with_traceback(None) if isinstance(failure, OSError) else failure
            self._loop.call_soon_threadsafe(self._finish, job, error, time.perf_counter() - began)

    def _finish(self, job: BackgroundJob, error: Exception | None, took_s: float) -> None:
        if isinstance(job.point, SyncPoint):
            self.took.add(took_s)
            self.failed += error is not None
        self._running -= 1
        if not self._running and self._idle is not None and not self._idle.done():
            self._idle.set_result(None)
        self._on_done(job, error)

    async def drain(self) -> None:
        """Until every job handed over so far, and those that they lead to, have been reported."""
        while self._running:
            self._idle = self._loop.create_future()
            await self._idle

    def stop(self) -> None:
        """End the threads; they finish what they were given. Twice is fine."""
        for _ in self._threads:
            self._jobs.put(None)
        for thread in self._threads:
            thread.join()
        self._threads = []

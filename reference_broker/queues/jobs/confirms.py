"""Confirms that wait for a log to be synced (group commit)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from enum import StrEnum
from typing import Protocol

from assay.reference_broker.queues.jobs.errors import QueueError, QueueErrorCode, is_passing
from assay.reference_broker.queues.jobs.store import SyncedLog, SyncTask

_TRIES = 3
"""Where nobody can wait for the system to have means again."""
Confirm = Callable[[QueueError | None], None]


class StoredAs(StrEnum):
    """What a publish became; the value is the name of the id that the publisher is told."""

    MESSAGE = "message-id"
    DELAYED = "delay-id"
    """It waits for its time; the id is what cancels it."""


Stored = Callable[[StoredAs, str], None]
"""Told what a publish became and the id of that, once, before its confirm says that it is safe."""


class Syncs(Protocol):
    """A log, or who syncs one for others."""

    def start_sync(self) -> SyncTask | None: ...

    def finish_sync(self, error: OSError | None) -> object: ...


def _untold(_error: OSError) -> None: ...


def sync_now(log: Syncs, on_retry: Callable[[OSError], None] = _untold) -> OSError | None:
    """Make all that was written durable, or say why that failed. Blocking: only where nobody is served meanwhile.

    ``on_retry``: told of what was not tried, and is tried again at once.
    """
    task = log.start_sync()
    if task is None:
        return None
    error = run_now(task, on_retry)
    log.finish_sync(error)
    return error


def run_now(task: SyncTask, on_retry: Callable[[OSError], None] = _untold) -> OSError | None:
    """Run a task here and now, again where that was not tried; the error that it ended with, if it did. Blocking."""
    error: OSError | None = None
    for _ in range(_TRIES):
        try:
            task.run()
        except OSError as failure:
            error = failure.with_traceback(None)  # its frames hold this one
            if is_passing(error):
                on_retry(error)
                continue
            return error
        return None
    return error


class SyncPoint:
    """A log and the confirms that its next sync releases."""

    __slots__ = ("_running", "_synced_log", "failure", "is_syncing", "waiting")

    def __init__(self, log: SyncedLog) -> None:
        self._synced_log = log
        self.waiting: list[Confirm] = []
        self._running: Sequence[Confirm] = ()
        self.is_syncing = False
        self.failure: QueueError | None = None
        """Set for good once a sync failed or a write left the log in doubt."""

    def start_sync(self) -> SyncTask | None:
        """A sync that covers everything written so far; None when one is running or nothing is to be done."""
        task = self._synced_log.start_sync()
        if task is not None:
            self._running = self.waiting
            self.waiting = []
            self.is_syncing = True
        return task

    def finish_sync(self, error: OSError | None) -> list[tuple[Confirm, QueueError | None]]:
        """The confirms to call now. After an error those that wait for a later sync fail as well.

        After one that :func:`is_passing` the next sync covers all of them.
        """
        self.is_syncing = False
        self._synced_log.finish_sync(error)
        finished, self._running = [*self._running], ()
        if error is not None:
            if is_passing(error):
                self.waiting = [*finished, *self.waiting]
                return []
            self.fail(f"the disk failed to sync: {error.strerror or error}; restart the broker once it is repaired")
            finished += self.waiting
            self.waiting = []
        return [(confirm, self.failure) for confirm in finished]

    def when_synced(self, confirm: Confirm) -> bool:
        """Have a confirm called once all that is written so far is durable; False when it is, without a call.

        When True, the caller has to see to it that the point is among the awaited syncs.
        """
        if self._synced_log.needs_sync:
            self.waiting.append(confirm)
        elif self.is_syncing:
            self._running = [*self._running, confirm]
        else:
            return False
        return True

    def fail(self, text: str) -> None:
        """Refuse everything from now on."""
        if self.failure is None:
            self.failure = QueueError(QueueErrorCode.STORAGE_FAILED, text)

    def close_log(self) -> None:
        self._synced_log.close()

    def abandon(self, error: QueueError) -> None:
        """There will be no sync any more: whoever still waits is told so."""
        abandoned = [*self._running, *self.waiting]
        self._running, self.waiting = (), []
        call_all(abandoned, error)

    def confirm_waiting(self) -> None:
        """What they wait for holds without a sync."""
        waiting, self.waiting = self.waiting, []
        call_all(waiting, None)


class RewrittenPoint(SyncPoint):
    """One whose log is only ever written as a whole: what the disk refused once may be asked of it again."""

    __slots__ = ()

    def finish_sync(self, error: OSError | None) -> list[tuple[Confirm, QueueError | None]]:
        finished = super().finish_sync(error)
        if self.failure is not None and error is not None:
            text = f"the disk refused it: {error.strerror or error}; nothing has changed, try again"
            self.failure, refused = None, QueueError(QueueErrorCode.STORAGE_FAILED, text)
            return [(confirm, refused) for confirm, _ in finished]
        return finished


def ignore(error: QueueError | None) -> None:
    """A confirm that nobody waits for."""


def call_all(confirms: Iterable[Confirm], error: QueueError | None) -> None:
    for confirm in confirms:
        # Of many messages one confirm speaks for all.
        if confirm is not ignore:
            confirm(error)


class JointConfirm:
    """One confirm for several messages: called when the last of them is decided, with the first error if there is one.

    Give :attr:`part` to each message, then call :meth:`close`.
    """

    __slots__ = ("_confirm", "_error", "_open")

    def __init__(self, confirm: Confirm) -> None:
        self._confirm = confirm
        self._open = 1
        self._error: QueueError | None = None

    def part(self) -> Confirm:
        """The confirm of one more message."""
        self._open += 1
        return self._decided

    def _decided(self, error: QueueError | None) -> None:
        if error is not None and self._error is None:
            self._error = error
        self._open -= 1
        if not self._open:
            self._confirm(self._error)

    def close(self) -> None:
        """All messages are given."""
        self._decided(None)

"""The delayed messages of a queue, as the queue sees them: nothing is opened or kept before the first one comes."""

from __future__ import annotations

from functools import partial
from math import ceil

from assay.reference_broker.queues.delays.delay_store import DelayStore, DelayTarget
from assay.reference_broker.queues.delays.delayed_message import DelayedMessage
from assay.reference_broker.queues.delays.timing_wheel import MAX_DELAY_MS
from assay.reference_broker.queues.groups.delivery import DelayStats
from assay.reference_broker.queues.jobs.agenda import Agenda
from assay.reference_broker.queues.jobs.confirms import Confirm, Stored, SyncPoint
from assay.reference_broker.queues.jobs.errors import LogError, QueueError, QueueErrorCode
from assay.reference_broker.queues.jobs.store import QueueFiles
from assay.reference_broker.queues.messages.publish_options import PublishOptions, bad_option
from assay.reference_broker.queues.messages.stored_message import MessageCodec
from assay.reference_broker.routing.message import Message


class Delays:
    """Opens the store of delayed messages when it is needed, or when there is one."""

    def __init__(
        self,
        target: DelayTarget,
        files: QueueFiles,
        codec: MessageCodec,
        agenda: Agenda,
        now: float,
        *,
        confirm_when_synced: bool,
    ) -> None:
        """Raises :class:`LogError`."""
        self._open = partial(DelayStore, target, files, codec, agenda, confirm_when_synced=confirm_when_synced)
        self.store: DelayStore | None = self._open(now) if files.has_delays else None

    def take(
        self,
        routing_key: str,
        message: Message,
        size: int,
        options: PublishOptions,
        now: float,
        on_confirmed: Confirm | None,
        on_stored: Stored | None,
    ) -> bool:
        """Keep a message whose time has not come; False, with nothing done, for one that is published at once.

        Raises :class:`QueueError`.
        """
        due_ms = due_time_ms(options, message, now)
        if due_ms is None:
            return False
        if self.store is None:
            try:
                self.store = self._open(now)
            except LogError as error:
                raise QueueError(QueueErrorCode.STORAGE_FAILED, str(error)) from error
        self.store.schedule(routing_key, message, size, due_ms, options, now, on_confirmed, on_stored)
        return True

    def __len__(self) -> int:
        return 0 if self.store is None else len(self.store)

    def cancel(self, delay_id: str, confirm: Confirm | None) -> bool:
        """See :meth:`DelayStore.cancel`."""
        return self.store is not None and self.store.cancel(delay_id, confirm)

    def list(self, limit: int, after: str | None) -> list[DelayedMessage]:
        """See :meth:`DelayStore.list`."""
        return [] if self.store is None else self.store.list(limit, after)

    def stats(self) -> DelayStats:
        return DelayStats() if self.store is None else self.store.stats()

    @property
    def stored_bytes(self) -> int:
        """Of the log of delayed messages."""
        return 0 if self.store is None else self.store.stored_bytes

    def free_settled(self) -> None:
        """See :meth:`DelayStore.free_settled`."""
        if self.store is not None:
            self.store.free_settled()

    @property
    def failed(self) -> bool:
        return self.store is not None and self.store.failed

    @property
    def points(self) -> tuple[SyncPoint, ...]:
        """The open logs."""
        return () if self.store is None else self.store.points


def due_time_ms(options: PublishOptions, message: Message, now: float) -> int | None:
    """When a message is due, Unix milliseconds; None = at once. Raises :class:`QueueError` (BAD_OPTION)."""
    now_ms = ceil(now * 1000 - 0.001)
    if options.delay_ms is not None:
        delay_ms = options.delay_ms
    elif options.deliver_at_ms is not None:
        delay_ms = options.deliver_at_ms - now_ms
    else:
        return None
    if delay_ms > MAX_DELAY_MS:
        raise bad_option(f"a delay of {delay_ms} ms is over the maximum of {MAX_DELAY_MS} ms")
    if delay_ms <= 0:
        return None
    due_ms = now_ms + delay_ms
    if message.expires_at and message.expires_at * 1000 <= due_ms:
        raise bad_option(f"the message expires before its delay of {delay_ms} ms is over: nobody would ever get it")
    return due_ms

"""Single deliveries, named by a receipt or by their place, and what settling them comes to."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from assay.reference_broker.api.topics import Asking
from assay.reference_broker.config import Scope
from assay.reference_broker.queues import QueueError, QueueErrorCode, SettleRequest
from assay.reference_broker.queues.groups.group_details import PendingDetails
from assay.reference_broker.queues.jobs.confirms import Confirm
from assay.reference_broker.queues.messages.address import parse_receipt

Look = Callable[[PendingDetails | None], None]


class Held(msgspec.Struct, frozen=True, kw_only=True):
    """A delivery that somebody has."""

    queue: str
    """As the engine knows it; so are group and receipt."""
    told: str
    """As the caller knows it."""
    group: str
    entry: PendingDetails
    receipt: str = ""
    """Enough by itself, whoever shows it; without one, the consumer that has the delivery is the caller's."""


def find_held(asking: Asking, handle: str) -> Held:
    """By receipt. Raises :class:`QueueError` (BAD_ADDRESS, NOT_ALLOWED, NOT_PENDING, STALE_RECEIPT, ...)."""
    receipt = asking.caller.named_in(handle)
    told = asking.caller.told(parse_receipt(receipt)[0])
    queue = asking.caller.queue(told, Scope.READ)
    group, entry = asking.service.engine.groups.by_receipt(queue, receipt)
    return Held(queue=queue, told=told, receipt=receipt, group=group, entry=entry)


def find_place(asking: Asking, group: str, told: str, partition: int, offset: int) -> Held:
    """By partition and offset, of a member of the caller's. Raises :class:`QueueError`."""
    queue = asking.caller.queue(told, Scope.READ)
    entry = asking.service.engine.groups.entry(queue, group, partition, offset)
    if entry is None:
        raise QueueError(QueueErrorCode.NOT_PENDING, "message not found or already processed")
    asking.service.members.find(asking.caller, group, entry.consumer)
    return Held(queue=queue, told=told, group=group, entry=entry)


async def settle_held(asking: Asking, held: Held, wanted: SettleRequest, look: Look | None = None) -> None:
    """Settle it; returns once that is durable. ``look`` sees what is pending then before that. Raises QueueError."""
    engine = asking.service.engine

    def start(confirm: Confirm) -> None:
        begin_settling(asking, held, wanted, confirm)
        if look is not None:
            look(engine.groups.entry(held.queue, held.group, held.entry.partition, held.entry.offset))

    await asking.service.confirmed(start)


def begin_settling(asking: Asking, held: Held, wanted: SettleRequest, confirm: Confirm) -> None:
    """As :func:`settle_held`, confirmed later."""
    entry, consumer = held.entry, None
    if held.receipt:
        request = msgspec.structs.replace(wanted, receipts=(held.receipt,))
    else:
        consumer, ranges = entry.consumer, ((entry.offset, entry.offset + 1),)
        request = msgspec.structs.replace(wanted, partition=entry.partition, ranges=ranges, group=held.group)
    driver, now = asking.service.turn()
    driver.node.engine.settle(held.queue, request, consumer_id=consumer, now=now, on_done=confirm)

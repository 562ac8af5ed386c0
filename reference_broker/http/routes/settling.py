"""GoQueue's settlements, by receipt handle: ack, nack, reject, more time; and what they came to."""

from __future__ import annotations

from typing import Annotated

import msgspec

from assay.reference_broker.api.settling import find_held, settle_held
from assay.reference_broker.api.topics import topic_out
from assay.reference_broker.config import Scope
from assay.reference_broker.http.areas import Area, Asked, Body
from assay.reference_broker.http.routes.messages import MAX_REASON, MAX_SECONDS
from assay.reference_broker.http.shapes import timestamp
from assay.reference_broker.queues import Outcome, QueueErrorCode, SettleRequest
from assay.reference_broker.queues.groups.group_details import PendingDetails
from assay.reference_broker.queues.groups.pending import EntryState
from assay.reference_broker.queues.messages.address import dead_letter_name

AREA = Area("settling", "GoQueue's settlements by receipt handle; also at /messages and /v1/messages.")
_Q = QueueErrorCode
_ERRORS = (_Q.UNKNOWN_QUEUE, _Q.NOT_PENDING, _Q.STALE_RECEIPT, _Q.STORAGE_FAILED)


class Receipt(msgspec.Struct, frozen=True, kw_only=True):
    receipt_handle: str


class Nack(Receipt, frozen=True, kw_only=True):
    reason: str = ""


class Reject(Receipt, frozen=True, kw_only=True):
    reason: Annotated[str, msgspec.Meta(min_length=1)]


class Visibility(Receipt, frozen=True, kw_only=True):
    extension_seconds: Annotated[float, msgspec.Meta(ge=0, le=MAX_SECONDS)]


class Acked(msgspec.Struct, frozen=True, kw_only=True):
    topic: str
    partition: int
    offset: int
    committed_offset: int
    """Everything below it is settled."""
    offset_advanced: bool
    in_flight_count: int
    """What the same consumer still holds."""
    success: bool = True


class Nacked(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=False):
    action: str
    """``requeued``, or ``dlq`` when that was the last delivery."""
    topic: str
    partition: int
    offset: int
    delivery_count: int
    next_visible_at: str | None
    """When it is delivered again, RFC 3339."""
    success: bool = True


class Rejected(msgspec.Struct, frozen=True, kw_only=True):
    topic: str
    partition: int
    offset: int
    dlq_topic: str
    reason: str
    action: str = "dlq"
    success: bool = True


class Extended(msgspec.Struct, frozen=True, kw_only=True):
    new_deadline: str
    """RFC 3339."""
    extended_by: float
    """Seconds from now."""
    success: bool = True


@AREA.post("/messages/ack", Scope.READ, errors=_ERRORS)
async def ack(call: Asked, wanted: Body[Receipt]) -> Acked:
    """It is done: settled for good."""
    held = find_held(call, wanted.receipt_handle)
    groups, partition = call.service.engine.groups, held.entry.partition
    before = groups.committed(held.queue, held.group)[partition]
    counts: list[tuple[int, int]] = []

    def look(_left: PendingDetails | None) -> None:
        committed = groups.committed(held.queue, held.group)[partition]
        counts.append((committed, groups.held_by(held.queue, held.group, held.entry.consumer)))

    await settle_held(call, held, SettleRequest(outcome=Outcome.ACCEPT), look=look)
    committed, in_flight = counts[0]
    return Acked(
        topic=topic_out(held.told),
        partition=partition,
        offset=held.entry.offset,
        committed_offset=committed,
        offset_advanced=committed > before,
        in_flight_count=in_flight,
    )


@AREA.post("/messages/nack", Scope.READ, errors=_ERRORS)
async def nack(call: Asked, wanted: Body[Nack]) -> Nacked:
    """It was tried in vain: delivered again, or dead-lettered when that was the last time."""
    held = find_held(call, wanted.receipt_handle)
    left: list[PendingDetails | None] = []
    await settle_held(
        call, held, SettleRequest(outcome=Outcome.FAIL, reason=wanted.reason[:MAX_REASON]), look=left.append
    )
    waits = left[0] is not None and left[0].state is EntryState.WAITING
    return Nacked(
        action="requeued" if waits else "dlq",
        topic=topic_out(held.told),
        partition=held.entry.partition,
        offset=held.entry.offset,
        delivery_count=held.entry.delivery_count,
        next_visible_at=timestamp(left[0].due_at) if waits and left[0] is not None else None,
    )


@AREA.post("/messages/reject", Scope.READ, errors=_ERRORS)
async def reject(call: Asked, wanted: Body[Reject]) -> Rejected:
    """It can never be done: it goes to the dead letters."""
    held = find_held(call, wanted.receipt_handle)
    reason = wanted.reason[:MAX_REASON]
    await settle_held(call, held, SettleRequest(outcome=Outcome.REJECT, reason=reason))
    return Rejected(
        topic=topic_out(held.told),
        partition=held.entry.partition,
        offset=held.entry.offset,
        dlq_topic=topic_out(call.caller.told(dead_letter_name(held.queue))),
        reason=reason,
    )


@AREA.post("/messages/visibility", Scope.READ, errors=_ERRORS)
async def extend_visibility(call: Asked, wanted: Body[Visibility]) -> Extended:
    """More time, from now on."""
    held = find_held(call, wanted.receipt_handle)
    seconds = wanted.extension_seconds
    _, now = call.service.turn()
    await settle_held(call, held, SettleRequest(outcome=Outcome.EXTEND, extend_s=seconds))
    return Extended(new_deadline=timestamp(now + seconds), extended_by=seconds)

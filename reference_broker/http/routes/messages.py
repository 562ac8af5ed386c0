"""Messages of queues: published, consumed by long polls, settled; browsed and read without being consumed."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Annotated, Literal

import msgspec
from fastapi import Query, Request
from fastapi.responses import Response

from assay.reference_broker.api.callers import Caller
from assay.reference_broker.api.consumers import MAX_ANSWER_BYTES, Taken, check_wait
from assay.reference_broker.api.problems import Code, RequestError
from assay.reference_broker.api.publishing import publish
from assay.reference_broker.api.service import Service
from assay.reference_broker.config import Scope
from assay.reference_broker.http.areas import Area, Asked, Body, Limit, Name
from assay.reference_broker.http.shapes import (
    Publish,
    PublishResult,
    Received,
    published,
    received,
    result_of,
    stored,
)
from assay.reference_broker.queues import Outcome, QueueError, QueueErrorCode, SettleRequest
from assay.reference_broker.queues.groups.subscribe_options import (
    AckMode,
    CursorPosition,
    SubscribeOptions,
    parse_cursor,
)
from assay.reference_broker.queues.messages.address import message_id_of

AREA = Area("messages", "Messages of queues: published, consumed, settled, looked at.")
_Q = QueueErrorCode
PUBLISH_ERRORS = (
    _Q.UNKNOWN_QUEUE,
    _Q.UNKNOWN_PRODUCER,
    _Q.UNKNOWN_TRANSACTION,
    _Q.FENCED,
    _Q.OUT_OF_SEQUENCE,
    _Q.TRANSACTION_STATE,
    _Q.LIMIT,
    _Q.FULL,
    _Q.QUOTA,
    _Q.STORAGE_FAILED,
)
"""With which a queue may refuse a message."""


class PublishRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    messages: list[Publish]


class PublishAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """What became of each, in order. 200: all were accepted; 207: some; else none."""

    results: list[PublishResult]


class ConsumeRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Take messages of a queue for a group; each must be settled."""

    group: str
    consumer: str = "default"
    """Who asks, within the group: comes back under the same name, and is one consumer as long as it does."""
    max_messages: int = 1
    wait_s: float = 0.0
    """How long to wait for a first one."""
    pattern: str = ""
    """Only messages whose routing keys this filter matches, for a group of its own."""
    prefetch: int = 0
    """Most unsettled deliveries that it holds; 0 = as many as the queue allows. At its first request."""
    cursor: str | None = None
    """Where a new group begins: earliest, latest, an offset or an RFC 3339 time."""
    auto_ack: bool = False
    """What it got is settled by its next request, or soon."""


class ConsumeAnswer(msgspec.Struct, frozen=True, kw_only=True):
    messages: list[Received]


class LeaveRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    group: str
    consumer: str = "default"
    pattern: str = ""


class LeaveAnswer(msgspec.Struct, frozen=True, kw_only=True):
    left: bool


class SettleAsked(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settle deliveries, named by receipts."""

    receipts: list[str]
    outcome: Literal["accept", "fail", "release", "reject", "extend"]
    delay_s: float | None = None
    """fail: deliver again no earlier than so long from now."""
    extend_s: float | None = None
    """extend: times out so long from now; left out, after the queue's delivery timeout."""
    reason: str = ""
    """reject: for the dead letter."""


class SettleAnswer(msgspec.Struct, frozen=True, kw_only=True):
    settled: int


class ReadAnswer(msgspec.Struct, frozen=True, kw_only=True):
    messages: list[Received]
    next_offset: int
    """Where to go on."""


def gone_of(request: Request) -> Callable[[], Awaitable[object]]:
    """Returns when the client has gone."""

    async def gone() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass

    return gone


def check_batch(service: Service, count: int) -> None:
    """Raises :class:`RequestError` for none, and for more messages than one request may have."""
    most = service.config.max_batch
    if not 1 <= count <= most:
        raise RequestError(Code.BAD_REQUEST, f"a request has 1 to {most} messages, not {count}")


def cursor_of(text: str) -> CursorPosition:
    """Raises :class:`RequestError`."""
    try:
        return parse_cursor(text)
    except ValueError as error:
        raise RequestError(Code.BAD_REQUEST, str(error)) from error


@AREA.post("/queues/{queue}/messages", Scope.WRITE, answer=PublishAnswer, also=(207,), errors=PUBLISH_ERRORS)
async def publish_messages(call: Asked, queue: Name, wanted: Body[PublishRequest]) -> Response:
    """Publish messages, in order."""
    check_batch(call.service, len(wanted.messages))
    results = await publish(call.service, call.caller, queue, [each.read() for each in wanted.messages])
    return published(PublishAnswer(results=[result_of(each) for each in results]), results)


@AREA.post("/queues/{queue}/consume", Scope.READ, errors=(_Q.UNKNOWN_QUEUE, _Q.LIMIT, _Q.IN_USE, _Q.QUOTA))
async def consume_messages(call: Asked, queue: Name, wanted: Body[ConsumeRequest]) -> ConsumeAnswer:
    """Take messages; who waits for them is answered as soon as there are some."""
    check_wait(call.service, wanted.wait_s, wanted.max_messages)
    caller = call.caller
    caller.queue(queue, Scope.READ, wanted.pattern)
    options = SubscribeOptions(
        cursor=None if wanted.cursor is None else cursor_of(wanted.cursor),
        ack_mode=AckMode.AUTO if wanted.auto_ack else AckMode.EXPLICIT,
        prefetch=wanted.prefetch,
        receipts=True,
    )
    member = await call.service.members.one_of(caller, queue, wanted.group, wanted.consumer, wanted.pattern, options)
    taken = await member.poll(wanted.max_messages, wanted.wait_s, gone_of(call.request))
    return told_of(caller, taken)


def told_of(caller: Caller, taken: Sequence[Taken]) -> ConsumeAnswer:
    """Deliveries as the caller is told of them."""
    return ConsumeAnswer(
        messages=[
            received(each, caller.told(each.delivery.message_id), caller.told(each.delivery.receipt)) for each in taken
        ]
    )


@AREA.post("/queues/{queue}/leave", Scope.READ)
async def leave_queue(call: Asked, queue: Name, wanted: Body[LeaveRequest]) -> LeaveAnswer:
    """A consumer comes back no more: what it holds is ready at once."""
    member = call.service.members.known(call.caller, queue, wanted.group, wanted.consumer, wanted.pattern)
    if member is not None:
        call.service.members.remove(member)
    return LeaveAnswer(left=member is not None)


@AREA.post(
    "/queues/{queue}/settle", Scope.READ, errors=(_Q.UNKNOWN_QUEUE, _Q.NOT_PENDING, _Q.STALE_RECEIPT, _Q.STORAGE_FAILED)
)
async def settle_messages(call: Asked, queue: Name, wanted: Body[SettleAsked]) -> SettleAnswer:
    """Settle deliveries: done, failed, given back untried, rejected, or kept for longer. With some that are settled
    already the others are settled all the same, and the problem says how many."""
    return SettleAnswer(settled=await settle(call.service, call.caller, queue, wanted))


async def settle(service: Service, caller: Caller, queue: str, wanted: SettleAsked) -> int:
    """Settle what is asked for; returns how many. Raises :class:`QueueError`, :class:`RequestError`."""
    check_batch(service, len(wanted.receipts))
    name = caller.queue(queue, Scope.READ)
    for seconds in (wanted.delay_s, wanted.extend_s):
        if seconds is not None and not 0 <= seconds <= MAX_SECONDS:
            raise RequestError(Code.BAD_REQUEST, f"seconds are 0 to {MAX_SECONDS}")
    request = SettleRequest(
        outcome=Outcome(wanted.outcome),
        receipts=tuple(caller.named_in(each) for each in wanted.receipts),
        delay_s=wanted.delay_s,
        extend_s=wanted.extend_s,
        reason=wanted.reason[:MAX_REASON],
    )
    await service.finished(
        lambda engine, now, confirm: engine.settle(name, request, consumer_id=None, now=now, on_done=confirm)
    )
    return len(wanted.receipts)


MAX_SECONDS = 604_800
MAX_REASON = 1_024


@AREA.get("/queues/{queue}/messages", Scope.READ, errors=(_Q.UNKNOWN_QUEUE, _Q.STORAGE_FAILED))
async def browse_messages(call: Asked, queue: Name, limit: Limit = 100) -> ConsumeAnswer:
    """The oldest messages that some group has not settled, as they are stored; nothing is taken out."""
    caller = call.caller
    found = call.service.engine.browse(caller.queue(queue, Scope.READ), limit, MAX_ANSWER_BYTES)
    places = [(each, *_place(each)) for each, _ in found]
    return ConsumeAnswer(
        messages=[
            stored(caller.told(message_id), partition, offset, message)
            for (message_id, partition, offset), (_, message) in zip(places, found, strict=True)
        ]
    )


def _place(message_id: str) -> tuple[int, int]:
    _, partition, offset = message_id.rsplit(":", 2)
    return int(partition), int(offset)


@AREA.get("/queues/{queue}/partitions/{partition}/messages", Scope.READ, errors=(_Q.UNKNOWN_QUEUE, _Q.STORAGE_FAILED))
async def read_messages(
    call: Asked,
    queue: Name,
    partition: int,
    start: Annotated[
        str, Query(max_length=64, alias="from", description="earliest, latest, an offset or an RFC 3339 time")
    ] = "earliest",
    limit: Limit = 100,
) -> ReadAnswer:
    """Messages of a partition, whoever has settled them, as long as they are kept."""
    caller = call.caller
    name = caller.queue(queue, Scope.READ)
    driver, now = call.service.turn()
    engine = driver.node.engine
    places = engine.places(name, cursor_of(start))
    if not 0 <= partition < len(places):
        raise QueueError(_Q.BAD_ADDRESS, f"{queue[:80]!r} has {len(places)} partitions, from 0 on")
    found, next_offset = engine.read(name, partition, places[partition][1], limit, now, MAX_ANSWER_BYTES)
    return ReadAnswer(
        messages=[
            stored(caller.told(message_id_of(name, partition, offset)), partition, offset, message)
            for offset, message in found
        ],
        next_offset=next_offset,
    )

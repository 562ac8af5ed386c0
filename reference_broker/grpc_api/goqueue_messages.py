"""``goqueue.v1``: PublishService, ConsumeService and AckService. Each function serves the method of its name."""

from __future__ import annotations

import asyncio
import itertools
import secrets
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import aclosing
from typing import Any, Final

from assay.reference_broker.api.asking import may_consume
from assay.reference_broker.api.consumers import Member, Taken
from assay.reference_broker.api.groups import MAX_TOPICS
from assay.reference_broker.api.problems import Code, RequestError
from assay.reference_broker.api.publishing import Became, NewMessage
from assay.reference_broker.api.publishing import publish as publish_messages
from assay.reference_broker.api.settling import Held, begin_settling, find_held, find_place, settle_held
from assay.reference_broker.api.topics import queue_in, topic_out
from assay.reference_broker.config import Scope
from assay.reference_broker.grpc_api import schema
from assay.reference_broker.grpc_api.errors import goqueue_error
from assay.reference_broker.grpc_api.guard import Call, served
from assay.reference_broker.grpc_api.pipeline import in_batches
from assay.reference_broker.grpc_api.shapes import headers_out, key_of, moment, seconds_of, text
from assay.reference_broker.grpc_api.streaming import ends_with, tail_of
from assay.reference_broker.queues import Outcome, PublishOptions, QueueError, QueueErrorCode, SettleRequest
from assay.reference_broker.queues.delays.delayed_message import parse_delay_id
from assay.reference_broker.queues.groups.group_details import PendingDetails
from assay.reference_broker.queues.groups.pending import AssignmentEvent, EntryState
from assay.reference_broker.queues.groups.subscribe_options import (
    EARLIEST,
    LATEST,
    CursorKind,
    CursorPosition,
    SubscribeOptions,
)
from assay.reference_broker.queues.jobs.confirms import Confirm
from assay.reference_broker.queues.messages.address import dead_letter_name
from assay.reference_broker.queues.messages.publish_options import Priority

M: Final = schema.goqueue()
_QUIET_S: Final = 15.0
"""A stream says that it is there at least so often, unless its client asks for another time."""
_MAX_SECONDS: Final = 604_800
_MAX_REASON: Final = 1_024


# -- publishing --------------------------------------------------------------------------------------------------------


@served(Scope.WRITE)
async def publish(call: Call, asked: Any) -> Any:
    (became,) = await _publish(call, asked.topic, [asked])
    if became.error is not None:
        raise became.error
    return M.PublishResponse(**_place_of(call, asked, became))


@served(Scope.WRITE)
async def publish_stream(call: Call, requests: Call) -> None:
    async with aclosing(in_batches(requests.messages(), call.config.max_buffered)) as batches:
        async for batch in batches:
            for topic, group in itertools.groupby(batch, key=lambda each: each.topic):
                some = list(group)
                for asked, became in zip(some, await _publish(call, topic, some), strict=True):
                    told = M.PublishStreamResponse(correlation_id=asked.correlation_id, topic=topic)
                    if became.error is not None:
                        told.error.CopyFrom(goqueue_error(became.error))
                    else:
                        told.MergeFrom(M.PublishStreamResponse(**_place_of(call, asked, became)))
                    await call.write(told)


async def _publish(call: Call, topic: str, some: Sequence[Any]) -> list[Became]:
    """What cannot be read is refused like what the queue refuses."""
    messages = []
    for asked in some:
        try:
            messages.append(_message(call, asked))
        except (QueueError, RequestError) as error:
            refused = error if isinstance(error, QueueError) else QueueError(QueueErrorCode.BAD_OPTION, error.text)
            messages.append(NewMessage(payload=b"", problem=refused))
    return await publish_messages(call.service, call.caller, queue_in(call, topic), messages)


def _message(call: Call, asked: Any) -> NewMessage:
    """Raises :class:`QueueError` (BAD_OPTION), :class:`RequestError`."""
    deliver_at = asked.deliver_at if "deliver_at" in asked.DESCRIPTOR.fields_by_name else None
    at = None if deliver_at is None or not asked.HasField("deliver_at") else seconds_of(deliver_at)
    delay = seconds_of(asked.delay) if asked.HasField("delay") else None
    if at is not None and delay is not None:
        raise QueueError(QueueErrorCode.BAD_OPTION, "a message has a delay or a deliver_at, not both")
    if asked.HasField("priority") and not 0 <= asked.priority <= Priority.BACKGROUND:
        raise QueueError(QueueErrorCode.BAD_OPTION, "a priority is 0 to 4")
    numbered = asked.HasField("producer_id")
    numbers = (asked.producer_id, asked.producer_epoch, asked.sequence)
    if numbered and min(numbers) < 0:
        raise QueueError(QueueErrorCode.BAD_OPTION, "producer_id, producer_epoch and sequence are not negative")
    return NewMessage(
        payload=asked.value,
        key=text(asked.key, "the key") if asked.key else None,
        headers=tuple(asked.headers.items()),
        options=PublishOptions(
            partition=asked.partition if asked.HasField("partition") and asked.partition >= 0 else None,
            priority=Priority(asked.priority) if asked.HasField("priority") else None,
            delay_ms=round(delay * 1_000) if delay else None,
            deliver_at_ms=None if at is None else round(at * 1_000),
            producer_id=asked.producer_id if numbered else None,
            producer_epoch=asked.producer_epoch if numbered else None,
            sequence=asked.sequence if numbered and asked.HasField("sequence") else None,
            transaction_id=call.service.engine.transactions.open_of(asked.producer_id) if numbered else None,
        ),
    )


def _place_of(call: Call, asked: Any, became: Became) -> dict[str, Any]:
    offset = became.offset
    if became.delay_id is not None:
        offset = parse_delay_id(queue_in(call, asked.topic), became.delay_id)
    now = moment(call.service.turn()[1])
    return {"topic": asked.topic, "partition": became.partition, "offset": offset, "timestamp": now}


# -- consuming ---------------------------------------------------------------------------------------------------------


@served(Scope.READ)
async def consume(call: Call, asked: Any) -> None:
    queue = queue_in(call, asked.topic)
    name = call.caller.queue(queue, Scope.READ)
    wanted = frozenset(asked.partitions)
    count = len(call.service.engine.places(name, EARLIEST))
    if wanted and not 0 <= min(wanted) <= max(wanted) < count:
        text_ = f"the topic {asked.topic[:80]!r} has {count} partitions, from 0 on"
        raise QueueError(QueueErrorCode.BAD_ADDRESS, text_)
    wait_s = _wait_s(call, asked.max_wait)
    most = _most(call, asked.max_messages)
    start = _start(asked, asked.start_offset, asked.start_timestamp)
    async with aclosing(tail_of(call, [queue], start, most, wait_s)) as found:
        async for taken in found:
            kept = [each for each in taken if not wanted or each.delivery.partition in wanted]
            async for batch in _batches(call, kept, asked.max_bytes):
                await call.write(batch)
            if not taken:
                await call.write(_heartbeat(call))


@served(Scope.READ)
async def subscribe(call: Call, asked: Any) -> None:
    queues = [queue_in(call, topic) for topic in dict.fromkeys(asked.topics)]
    if not asked.group_id or not 1 <= len(queues) <= MAX_TOPICS:
        raise RequestError(Code.BAD_REQUEST, f"a subscription has a group_id, and 1 to {MAX_TOPICS} topics")
    if asked.HasField("session_timeout"):
        raise RequestError(Code.UNSUPPORTED, "a member is there as long as its stream: leave session_timeout out")
    if asked.start_position not in _STARTS:
        raise RequestError(Code.UNSUPPORTED, "a group begins at the earliest or at the latest message")
    wait_s = _wait_s(call, asked.heartbeat_interval if asked.HasField("heartbeat_interval") else asked.max_wait)
    most = _most(call, asked.max_messages)
    member_id = f"{asked.consumer_id or call.caller.client_id}-{secrets.token_hex(8)}"
    await may_consume(call.service, call.caller, queues)
    member = call.service.members.add(call.caller, asked.group_id, member_id, bound=True)
    changed = asyncio.Event()
    with ends_with(call, member):
        for queue in queues:
            options = SubscribeOptions(
                cursor=_STARTS[asked.start_position],
                prefetch=call.config.max_buffered,
                receipts=True,
                notify=True,
            )
            member.join(call.caller, queue, "", options)
        await member.wait_until_assigned()
        member.on_assigned = changed.set
        told: dict[str, AssignmentEvent] = {}
        changed.set()
        while True:
            if changed.is_set():
                changed.clear()
                for news in _news(member, told):
                    await call.write(news)
            taken = await member.poll(most, wait_s, changed.wait)
            async for batch in _batches(call, taken, asked.max_bytes):
                await call.write(batch)
            if not taken and not changed.is_set():
                await call.write(_heartbeat(call))
            call.check_goes_on()


_STARTS: Final = {0: EARLIEST, 1: LATEST}


def _start(asked: Any, offset: int, timestamp: Any) -> CursorPosition:
    """Raises :class:`RequestError`."""
    if asked.start_position == 2:
        return CursorPosition(kind=CursorKind.OFFSET, value=max(0, offset))
    if asked.start_position == 3:
        return CursorPosition(kind=CursorKind.TIME, value=int(seconds_of(timestamp) * 1_000))
    if asked.start_position not in _STARTS:
        raise RequestError(Code.BAD_REQUEST, f"there is no start_position {asked.start_position}")
    return _STARTS[asked.start_position]


def _wait_s(call: Call, wanted: Any) -> float:
    return min(max(seconds_of(wanted) or _QUIET_S, 0.1), call.service.config.max_poll_s)


def _most(call: Call, wanted: int) -> int:
    return min(wanted if wanted > 0 else call.config.max_buffered, call.config.max_buffered)


def _news(member: Member, told: dict[str, AssignmentEvent]) -> Iterable[Any]:
    """What has changed since it was told: what it lost, what it got, and then all that it has."""
    before = {(queue, each) for queue, event in told.items() for each in event.partitions}
    told |= member.assigned
    now = {(queue, each) for queue, event in told.items() for each in event.partitions}
    generation = member.generation

    def places(found: Iterable[tuple[str, int]]) -> list[dict[str, Any]]:
        return [{"topic": topic_out(queue), "partition": each} for queue, each in sorted(found)]

    if before - now:
        yield M.ConsumeResponse(rebalance={"type": 1, "partitions": places(before - now), "generation": generation})
    if before and now - before:
        yield M.ConsumeResponse(rebalance={"type": 2, "partitions": places(now - before), "generation": generation})
    yield M.ConsumeResponse(
        assignment={"generation": generation, "partitions": places(now), "member_id": member.client_id}
    )


async def _batches(call: Call, taken: list[Taken], max_bytes: int) -> AsyncIterator[Any]:
    """Of one topic each, and no larger than a message may be."""
    limit = call.config.max_message_bytes >> 1
    limit = min(max_bytes, limit) if max_bytes > 0 else limit
    at = 0
    while at < len(taken):
        first, size, end = taken[at], 0, at
        while end < len(taken) and taken[end].queue == first.queue:
            size += len(taken[end].delivery.message.payload)
            if size > limit and end > at:
                break
            end += 1
        tails = call.service.engine.places(first.delivery.queue, LATEST)
        yield M.ConsumeResponse(
            messages={
                "messages": [_delivered(call, each) for each in taken[at:end]],
                "high_watermark": max(tail for _, _, tail in tails) - 1,
            }
        )
        at = end


def _delivered(call: Call, taken: Taken) -> Any:
    delivery = taken.delivery
    message = delivery.message
    made = M.Message(
        topic=topic_out(taken.queue),
        partition=delivery.partition,
        offset=delivery.offset,
        timestamp=moment(taken.enqueued_at),
        value=message.payload,
        priority=delivery.lane,
        retry_count=delivery.delivery_count - 1,
        receipt_handle=call.caller.told(delivery.receipt) if delivery.receipt else "",
    )
    if message.user_properties:
        made.key = key_of(message)
        made.headers.update(headers_out(message))
    return made


def _heartbeat(call: Call) -> Any:
    return M.ConsumeResponse(heartbeat={"timestamp": moment(call.service.turn()[1])})


# -- settling ----------------------------------------------------------------------------------------------------------


def _held(call: Call, asked: Any) -> Held:
    """Raises :class:`QueueError`."""
    if asked.receipt_handle:
        held = find_held(call, asked.receipt_handle)
        if asked.group_id and asked.group_id != held.group:
            raise QueueError(QueueErrorCode.NOT_PENDING, f"that receipt is of group {held.group[:80]!r}")
        return held
    return find_place(call, asked.group_id, queue_in(call, asked.topic), asked.partition, asked.offset)


def _seconds(value: Any) -> float:
    seconds = seconds_of(value)
    if seconds > _MAX_SECONDS:
        raise RequestError(Code.BAD_REQUEST, f"a visibility_timeout is at most {_MAX_SECONDS} s")
    return seconds


@served(Scope.READ)
async def ack(call: Call, asked: Any) -> Any:
    await settle_held(call, _held(call, asked), SettleRequest(outcome=Outcome.ACCEPT))
    return M.AckResponse(success=True)


@served(Scope.READ)
async def nack(call: Call, asked: Any) -> Any:
    left: list[PendingDetails | None] = []
    delay_s = _seconds(asked.visibility_timeout) if asked.HasField("visibility_timeout") else None
    await settle_held(call, _held(call, asked), SettleRequest(outcome=Outcome.FAIL, delay_s=delay_s), look=left.append)
    answer = M.NackResponse(success=True)
    if left[0] is not None and left[0].state is EntryState.WAITING:
        answer.next_visible_at.MergeFrom(M.NackResponse(next_visible_at=moment(left[0].due_at)).next_visible_at)
    return answer


@served(Scope.READ)
async def reject(call: Call, asked: Any) -> Any:
    held = _held(call, asked)
    await settle_held(call, held, SettleRequest(outcome=Outcome.REJECT, reason=asked.reason[:_MAX_REASON]))
    letters = topic_out(call.caller.told(dead_letter_name(held.queue)))
    # Where among its dead letters it will stand is not known before it stands there.
    return M.RejectResponse(success=True, dlq_topic=letters, dlq_partition=-1, dlq_offset=-1)


@served(Scope.READ)
async def extend_visibility(call: Call, asked: Any) -> Any:
    seconds = _seconds(asked.visibility_timeout)
    held = find_held(call, asked.receipt_handle)
    now = call.service.turn()[1]
    await settle_held(call, held, SettleRequest(outcome=Outcome.EXTEND, extend_s=seconds))
    return M.ExtendVisibilityResponse(success=True, new_deadline=moment(now + seconds))


@served(Scope.READ)
async def batch_ack(call: Call, asked: Any) -> Any:
    """Each by itself, all begun in one turn."""
    named: list[dict[str, Any]] = [{"receipt_handle": each} for each in asked.receipt_handles]
    named += [{"topic": each.topic, "partition": each.partition, "offset": each.offset} for each in asked.offsets]
    most = call.service.config.max_batch
    if not 1 <= len(named) <= most:
        raise RequestError(Code.BAD_REQUEST, f"1 to {most} deliveries are settled at once")

    def start(confirm: Confirm, each: dict[str, Any]) -> None:
        begin_settling(
            call,
            _held(call, M.AckRequest(group_id=asked.group_id, **each)),
            SettleRequest(outcome=Outcome.ACCEPT),
            confirm,
        )

    errors = await call.service.each_confirmed([lambda confirm, each=each: start(confirm, each) for each in named])  # type: ignore[misc]
    failures = [
        {**each, "error": goqueue_error(call.caller.refusal(error), about_receipt="receipt_handle" in each)}
        for each, error in zip(named, errors, strict=True)
        if error is not None
    ]
    return M.BatchAckResponse(success_count=len(named) - len(failures), failures=failures)

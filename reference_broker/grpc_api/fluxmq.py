"""``fluxmq.queue.v1.QueueService``: queues, appended to, read and consumed.

Each function serves the method of its name.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from contextlib import aclosing
from typing import Any, Final

from assay.reference_broker.api.consumers import Taken, check_wait, member_id
from assay.reference_broker.api.problems import Code, RequestError
from assay.reference_broker.api.publishing import Became, NewMessage, publish
from assay.reference_broker.config import QueueConfig, Scope
from assay.reference_broker.grpc_api import schema
from assay.reference_broker.grpc_api.guard import Call, served
from assay.reference_broker.grpc_api.pipeline import in_batches
from assay.reference_broker.grpc_api.shapes import (
    group_of,
    headers_in,
    headers_out,
    key_of,
    moment,
    seconds_of,
    split,
    text,
)
from assay.reference_broker.grpc_api.streaming import ends_with, never, tail_of
from assay.reference_broker.queues import Outcome, PublishOptions, QueueError, QueueErrorCode, SettleRequest
from assay.reference_broker.queues.groups.group_details import GroupDetails
from assay.reference_broker.queues.groups.subscribe_options import (
    EARLIEST,
    LATEST,
    CursorKind,
    CursorPosition,
    SubscribeOptions,
)
from assay.reference_broker.queues.messages.address import message_id_of
from assay.reference_broker.queues.messages.stored_message import StoredMessage
from assay.reference_broker.queues.operations.group_operations import Claim

M: Final = schema.fluxmq()
_MOST: Final = 1_000
"""Of a list in one answer."""
_USUAL: Final = 100
_COMPRESSIONS: Final = {1: "none", 2: "s2", 3: "zstd"}
_STARTS: Final = {0: None, 1: EARLIEST, 2: LATEST}


# -- queues ------------------------------------------------------------------------------------------------------------


@served(Scope.ADMIN)
async def create_queue(call: Call, asked: Any) -> Any:
    name = call.caller.administered(asked.name, "create")
    settings = {"partitions": 1, **_settings(asked.config)}
    if asked.topics:
        settings["topics"] = list(asked.topics)
    return _queue(call, await call.service.created(name, settings))


@served(Scope.ADMIN)
async def get_queue(call: Call, asked: Any) -> Any:
    return _queue(call, call.service.engine.queue_config(call.caller.administered(asked.name, "config"))[0])


@served(Scope.ADMIN)
async def list_queues(call: Call, asked: Any) -> Any:
    call.caller.administer("list")
    engine = call.service.engine
    names = (name for name in engine.queues() if name.startswith(asked.prefix) and name > asked.page_token)
    page, following = _page(names, asked.limit)
    return M.ListQueuesResponse(
        queues=[_queue(call, engine.queue_config(name)[0]) for name in page], next_page_token=following
    )


@served(Scope.ADMIN)
async def update_queue(call: Call, asked: Any) -> Any:
    name = call.caller.administered(asked.name, "config")
    changes = _settings(asked.config)
    if "partitions" in changes:
        count = changes.pop("partitions")
        await call.service.finished(lambda engine, now, confirm: engine.add_partitions(name, count, now, confirm))
    if changes:
        await call.service.updated(name, changes)
    return _queue(call, call.service.engine.queue_config(name)[0])


@served(Scope.ADMIN)
async def delete_queue(call: Call, asked: Any) -> Any:
    name = call.caller.administered(asked.name, "delete")
    await call.service.finished(lambda engine, now, confirm: engine.delete_queue(name, now, confirm))
    return schema.empty()


def _settings(config: Any) -> dict[str, Any]:
    """Of a queue, as in the configuration file; what is 0 or left out is as for any queue.

    Raises :class:`RequestError` (UNSUPPORTED, BAD_REQUEST).
    """
    unsupported = {
        "replication": config.replication.enabled,
        "retention.min_messages": config.retention.min_messages,
        "segment.max_age": config.segment.HasField("max_age"),
        "segment.index_interval": config.segment.index_interval,
    }
    if wanted := [name for name, value in unsupported.items() if value]:
        raise RequestError(Code.UNSUPPORTED, f"{' and '.join(wanted)}: this broker has no such setting of a queue")
    retention = {
        "max_age_s": seconds_of(config.retention.max_age),
        "max_bytes": config.retention.max_bytes,
        "segment_bytes": config.segment.max_size,
    }
    settings: dict[str, Any] = {"partitions": config.partitions, "max_message_bytes": config.max_message_size}
    settings = {name: value for name, value in settings.items() if value}
    if kept := {name: value for name, value in retention.items() if value}:
        settings["retention"] = kept
    if config.compression:
        if config.compression not in _COMPRESSIONS:
            raise RequestError(Code.BAD_REQUEST, f"there is no compression {config.compression}")
        settings["compression"] = _COMPRESSIONS[config.compression]
    return settings


def _queue(call: Call, config: QueueConfig) -> Any:
    stats = call.service.engine.stats(config.name)
    numbers = {name: number for number, name in _COMPRESSIONS.items()}
    retention = {"max_bytes": config.retention.max_bytes}
    return M.Queue(
        name=config.name,
        topics=config.topics,
        config={
            "retention": {**retention, "max_age": split(config.retention.max_age_s)},
            "compression": numbers[config.compression.value],
            "max_message_size": config.max_message_bytes,
            "partitions": stats.partitions,
        },
        state={
            "total_messages": stats.depth,
            "total_bytes": stats.stored_bytes,
            "consumer_group_count": len(stats.groups),
        },
    )


@served(Scope.ADMIN)
async def get_queue_info(call: Call, asked: Any) -> Any:
    name = call.caller.administered(asked.queue_name, "stats")
    stats, places = call.service.engine.stats(name), call.service.engine.places(name, EARLIEST)
    return M.QueueInfo(
        queue_name=name,
        head_offset=min(head for head, _, _ in places),
        tail_offset=max(tail for _, _, tail in places),
        message_count=stats.depth,
        size_bytes=stats.stored_bytes,
        partitions=[
            {"partition": index, "head_offset": head, "tail_offset": tail}
            for index, (head, _, tail) in enumerate(places)
        ],
    )


@served(Scope.ADMIN)
async def get_stats(call: Call, asked: Any) -> Any:
    name = call.caller.administered(asked.queue_name, "stats")
    stats, places = call.service.engine.stats(name), call.service.engine.places(name, EARLIEST)
    return M.QueueStats(
        queue_name=name,
        message_count=stats.depth,
        size_bytes=stats.stored_bytes,
        head_offset=min(head for head, _, _ in places),
        tail_offset=max(tail for _, _, tail in places),
        consumer_groups=[
            {
                "group_id": each.group,
                "consumer_count": each.consumers,
                "total_lag": each.lag,
                "pending_count": each.in_flight + each.retrying,
            }
            for each in stats.groups
        ],
    )


@served(Scope.ADMIN)
async def purge(call: Call, asked: Any) -> Any:
    name = call.caller.administered(asked.queue_name, "purge")
    before = call.service.engine.stats(name).stored_bytes
    purged = await call.service.purged(name)
    freed = before - call.service.engine.stats(name).stored_bytes
    return M.PurgeResponse(messages_deleted=purged, bytes_freed=max(0, freed))


@served(Scope.ADMIN)
async def truncate(_call: Call, _asked: Any) -> Any:
    text_ = "a queue gives up what it no longer needs by its limits of retention: see UpdateQueue, Purge"
    raise RequestError(Code.UNSUPPORTED, text_)


# -- appending ---------------------------------------------------------------------------------------------------------


@served(Scope.WRITE)
async def append(call: Call, asked: Any) -> Any:
    became = await _append(call, asked)
    return M.AppendResponse(
        offset=became.offset,
        timestamp=moment(call.service.turn()[1]),
        partition=became.partition,
        message_id=became.message_id,
    )


@served(Scope.WRITE)
async def append_batch(call: Call, asked: Any) -> Any:
    most = call.service.config.max_batch
    if not 1 <= len(asked.messages) <= most:
        raise RequestError(Code.BAD_REQUEST, f"a batch has 1 to {most} messages, not {len(asked.messages)}")
    messages = [_message(each) for each in asked.messages]
    return _appended(call, await publish(call.service, call.caller, asked.queue_name, messages))


@served(Scope.WRITE)
async def append_queue(call: Call, requests: Call) -> Any:
    """In the order they come, those together that came meanwhile; the first that is refused ends it."""
    ends: list[Became] = []
    count = 0
    async with aclosing(in_batches(requests.messages(), call.config.max_buffered)) as batches:
        async for batch in batches:
            for queue, some in itertools.groupby(batch, key=lambda each: each.queue_name):
                became = await publish(call.service, call.caller, queue, [_message(each) for each in some])
                _check_appended(became, count)
                ends = [ends[0] if ends else became[0], became[-1]]
                count += len(became)
    if not ends:
        raise RequestError(Code.BAD_REQUEST, "the stream has no message")
    return _appended(call, ends, count)


async def _append(call: Call, asked: Any) -> Became:
    (became,) = await publish(call.service, call.caller, asked.queue_name, [_message(asked)])
    if became.error is not None:
        raise became.error
    return became


def _message(asked: Any) -> NewMessage:
    """Raises :class:`QueueError` (BAD_OPTION)."""
    options = PublishOptions(partition=asked.partition) if asked.HasField("partition") else PublishOptions()
    return NewMessage(
        payload=asked.value,
        key=text(asked.key, "the key") if asked.key else None,
        headers=headers_in(asked.headers),
        options=options,
    )


def _check_appended(became: list[Became], before: int = 0) -> None:
    """Raises the first error; those that were not refused are appended all the same, as the details tell."""
    errors = [each.error for each in became if each.error is not None]
    if errors:
        error = errors[0]
        appended = before + len(became) - len(errors)
        details = (*error.details, ("appended", str(appended)), ("refused", str(len(errors))))
        raise QueueError(error.code, error.text, details)


def _appended(call: Call, became: list[Became], count: int | None = None) -> Any:
    _check_appended(became)
    return M.AppendBatchResponse(
        first_offset=became[0].offset,
        last_offset=became[-1].offset,
        count=len(became) if count is None else count,
        timestamp=moment(call.service.turn()[1]),
    )


# -- reading -----------------------------------------------------------------------------------------------------------


@served(Scope.READ)
async def read(call: Call, asked: Any) -> Any:
    name, partition = _place(call, asked)
    found, _ = _read(call, name, partition, asked.offset, 1)
    if not found or found[0][0] != asked.offset:
        text_ = f"partition {partition} of {asked.queue_name[:80]!r} has no message at offset {asked.offset}"
        raise QueueError(QueueErrorCode.BAD_CURSOR, text_)
    return _stored(call, name, partition, *found[0])


@served(Scope.READ)
async def read_batch(call: Call, asked: Any) -> Any:
    name, partition = _place(call, asked)
    limit = min(asked.limit or _USUAL, _MOST, call.service.config.max_batch)
    found, following = _read(call, name, partition, asked.start_offset, limit)
    kept = _within(found, min(asked.max_bytes or call.config.max_message_bytes, call.config.max_message_bytes >> 1))
    if kept < len(found):
        following = found[kept][0]
    end = call.service.engine.places(name, LATEST)[partition][2]
    return M.ReadBatchResponse(
        messages=[_stored(call, name, partition, *each) for each in found[:kept]],
        next_offset=following,
        end_of_queue=following >= end,
    )


def _read(
    call: Call, name: str, partition: int, offset: int, limit: int
) -> tuple[list[tuple[int, StoredMessage]], int]:
    driver, now = call.service.turn()
    return driver.node.engine.read(name, partition, offset, limit, now)


def _within(found: list[tuple[int, StoredMessage]], most: int) -> int:
    """How many of them fit; one always does."""
    sizes = itertools.accumulate(stored.size for _, stored in found)
    return max(1, sum(size <= most for size in sizes)) if found else 0


@served(Scope.READ)
async def tail(call: Call, asked: Any) -> None:
    start = asked.start_from
    cursor = EARLIEST if start == 1 else LATEST
    if start == 3:
        cursor = CursorPosition(kind=CursorKind.OFFSET, value=asked.start_offset)
    async with aclosing(tail_of(call, [asked.queue_name], cursor, call.config.max_buffered)) as found:
        async for taken in found:
            for each in taken:
                await call.write(_delivered(call, each, in_group=False))


@served(Scope.READ)
async def seek_to_offset(call: Call, asked: Any) -> Any:
    return await _seek(call, asked, CursorPosition(kind=CursorKind.OFFSET, value=asked.offset))


@served(Scope.READ)
async def seek_to_timestamp(call: Call, asked: Any) -> Any:
    wanted = CursorPosition(kind=CursorKind.TIME, value=int(seconds_of(asked.timestamp) * 1000))
    return await _seek(call, asked, wanted)


async def _seek(call: Call, asked: Any, position: CursorPosition) -> Any:
    name, partition = _place(call, asked)
    _, offset, _ = call.service.engine.places(name, position)[partition]
    found, _ = _read(call, name, partition, offset, 1)
    at, enqueued_at = (found[0][0], found[0][1].enqueued_at) if found else (offset, 0.0)
    by_time = position.kind is CursorKind.TIME
    exact = bool(found) and (int(enqueued_at * 1000) == position.value if by_time else at == position.value)
    return M.SeekResponse(offset=at, timestamp=moment(enqueued_at), exact_match=exact)


def _place(call: Call, asked: Any) -> tuple[str, int]:
    """The engine's name of a queue that is read, and the partition. Raises :class:`QueueError`."""
    name = call.caller.queue(asked.queue_name, Scope.READ)
    return name, _partition(call, name, asked)


def _partition(call: Call, name: str, asked: Any) -> int:
    """The one that is named; that may be left out where there is one only. Raises :class:`QueueError`."""
    count = len(call.service.engine.places(name, EARLIEST))
    if not asked.HasField("partition"):
        if count == 1:
            return 0
        text_ = f"the queue has {count} partitions, and offsets are per partition: say which one"
        raise QueueError(QueueErrorCode.BAD_OPTION, text_)
    if asked.partition >= count:
        raise QueueError(QueueErrorCode.BAD_ADDRESS, f"the queue has {count} partitions, from 0 on")
    return int(asked.partition)


def _stored(call: Call, name: str, partition: int, offset: int, found: StoredMessage) -> Any:
    return M.Message(
        offset=offset,
        timestamp=moment(found.enqueued_at),
        key=key_of(found.message),
        value=found.message.payload,
        headers={name: value.encode() for name, value in headers_out(found.message).items()},
        partition=partition,
        message_id=call.caller.told(message_id_of(name, partition, offset)),
    )


def _delivered(call: Call, taken: Taken, consumer: str = "", *, in_group: bool = True) -> Any:
    delivery = taken.delivery
    message = delivery.message
    made = M.Message(
        offset=delivery.offset,
        timestamp=moment(taken.enqueued_at),
        value=message.payload,
        partition=delivery.partition,
        message_id=call.caller.told(delivery.message_id),
    )
    if message.user_properties:
        made.key = key_of(message)
        made.headers.update({name: value.encode() for name, value in headers_out(message).items()})
    if in_group:
        made.receipt = call.caller.told(delivery.receipt)
        about = made.delivery_info
        about.delivery_count, about.group_id, about.consumer_id = delivery.delivery_count, delivery.group, consumer
    return made


# -- groups ------------------------------------------------------------------------------------------------------------


@served(Scope.READ)
async def create_consumer_group(call: Call, asked: Any) -> Any:
    config = asked.config
    if config.HasField("ack_timeout") or config.max_redeliveries:
        text_ = "ack_timeout and max_redeliveries are settings of a queue here: delivery_timeout_s, retry.max_retries"
        raise RequestError(Code.UNSUPPORTED, text_)
    if config.initial_position not in _STARTS:
        raise RequestError(Code.BAD_REQUEST, f"there is no initial_position {config.initial_position}")
    group, pattern = group_of(asked.group_id)
    pattern = asked.pattern or pattern
    name = call.caller.queue(asked.queue_name, Scope.READ, pattern)
    start = _STARTS[config.initial_position]
    await call.service.finished(
        lambda engine, now, confirm: engine.create_group(name, group, now, confirm, pattern=pattern, start=start)
    )
    return _group(call, asked.queue_name, call.service.engine.groups.details(name, _effective(group, pattern)))


def _effective(group: str, pattern: str) -> str:
    return f"{group}@{pattern}" if pattern not in ("", "#") else group


@served(Scope.READ)
async def get_consumer_group(call: Call, asked: Any) -> Any:
    name, group = _known_group(call, asked)
    return _group(call, asked.queue_name, call.service.engine.groups.details(name, group))


@served(Scope.READ)
async def list_consumer_groups(call: Call, asked: Any) -> Any:
    name = call.caller.queue(asked.queue_name, Scope.READ)
    found = {each.group: each for each in call.service.engine.groups.all_details(name)}
    page, following = _page((group for group in sorted(found) if group > asked.page_token), asked.limit)
    return M.ListConsumerGroupsResponse(
        groups=[_group(call, asked.queue_name, found[group]) for group in page], next_page_token=following
    )


@served(Scope.ADMIN)
async def delete_consumer_group(call: Call, asked: Any) -> Any:
    name = call.caller.administered(asked.queue_name, "groups")
    await call.service.group_deleted(name, asked.group_id)
    return schema.empty()


def _known_group(call: Call, asked: Any) -> tuple[str, str]:
    group, pattern = group_of(asked.group_id)
    return call.caller.queue(asked.queue_name, Scope.READ, pattern), _effective(group, pattern)


def _group(call: Call, queue: str, found: GroupDetails) -> Any:
    cursors = [
        {"cursor": each.cursor, "committed": each.committed, "lag": each.lag, "partition": each.partition}
        for each in found.partitions
    ]
    return M.ConsumerGroup(
        queue_name=queue,
        group_id=found.group,
        cursor={
            "cursor": min(each.cursor for each in found.partitions),
            "committed": min(each.committed for each in found.partitions),
            "lag": found.lag,
        },
        consumers=_consumers(call, queue, found),
        pending_count=sum(each.in_flight + each.waiting for each in found.partitions),
        pattern=found.group.partition("@")[2],
        partition_cursors=cursors,
    )


def _consumers(call: Call, queue: str, found: GroupDetails) -> list[dict[str, Any]]:
    return [
        {"consumer_id": _told_consumer(call, queue, found.group, each.consumer), "pending_count": each.in_flight}
        for each in found.members
    ]


def _told_consumer(call: Call, queue: str, group: str, consumer: str) -> str:
    """As its caller named it; others by the id that the engine knows."""
    marker = "\0"
    before, _, behind = member_id(call.caller, queue, marker, group.partition("@")[2]).partition(marker)
    if consumer.startswith(before) and consumer.endswith(behind):
        return consumer[len(before) : len(consumer) - len(behind)]
    return consumer


@served(Scope.READ)
async def join_group(call: Call, asked: Any) -> Any:
    if asked.HasField("session_timeout"):
        raise RequestError(Code.UNSUPPORTED, "session_timeout is a setting of a queue here: group.session_timeout_s")
    member = await _member(call, asked)
    await member.wait_until_assigned()
    name, group = _known_group(call, asked)
    found = call.service.engine.groups.details(name, group)
    return M.JoinGroupResponse(generation_id=member.generation, consumers=_consumers(call, asked.queue_name, found))


async def _member(call: Call, asked: Any, *, bound: bool = False, prefetch: int = 0) -> Any:
    group, pattern = group_of(asked.group_id)
    options = SubscribeOptions(prefetch=prefetch, receipts=True)
    consumer = asked.consumer_id or "default"
    return await call.service.members.one_of(
        call.caller, asked.queue_name, group, consumer, pattern, options, bound=bound
    )


def _member_id(call: Call, asked: Any) -> str:
    return member_id(call.caller, asked.queue_name, asked.consumer_id or "default", group_of(asked.group_id)[1])


@served(Scope.READ)
async def leave_group(call: Call, asked: Any) -> Any:
    group, pattern = group_of(asked.group_id)
    members = call.service.members
    member = members.known(call.caller, asked.queue_name, group, asked.consumer_id or "default", pattern)
    if member is not None:
        members.remove(member)
    return schema.empty()


@served(Scope.READ)
async def heartbeat(call: Call, asked: Any) -> Any:
    group, _ = group_of(asked.group_id)
    member = call.service.members.find(call.caller, group, _member_id(call, asked))
    member.heartbeat()
    current = member.generation
    return M.HeartbeatResponse(should_rejoin=asked.generation_id != current, generation_id=current)


# -- consuming ---------------------------------------------------------------------------------------------------------


@served(Scope.READ)
async def consume(call: Call, asked: Any) -> Any:
    wait_s = min(seconds_of(asked.wait_time), call.service.config.max_poll_s)
    most = asked.max_messages or 1
    check_wait(call.service, wait_s, most)
    member = await _member(call, asked)
    taken = await member.poll(most, wait_s, never)
    limit = min(asked.max_bytes or call.config.max_message_bytes, call.config.max_message_bytes >> 1)
    sizes = itertools.accumulate(len(each.delivery.message.payload) for each in taken)
    kept = max(1, sum(size <= limit for size in sizes))
    member.give_back(taken[kept:])
    return M.ConsumeResponse(messages=[_delivered(call, each, asked.consumer_id) for each in taken[:kept]])


@served(Scope.READ)
async def consume_queue(call: Call, asked: Any) -> None:
    prefetch = asked.max_in_flight or call.config.max_buffered
    most = min(prefetch, call.config.max_buffered)
    member = await _member(call, asked, bound=True, prefetch=prefetch)
    with ends_with(call, member):
        while True:
            for each in await member.poll(most, call.service.config.max_poll_s, never):
                await call.write(_delivered(call, each, asked.consumer_id))
            call.check_goes_on()


@served(Scope.READ)
async def ack(call: Call, asked: Any) -> Any:
    name, partition, count = await _settle(call, asked, Outcome.ACCEPT)
    answer = M.AckResponse(acked_count=count)
    if partition is not None:
        committed = call.service.engine.groups.committed(name, _known_group(call, asked)[1])
        answer.committed.committed, answer.committed.partition = committed[partition], partition
    return answer


@served(Scope.READ)
async def nack(call: Call, asked: Any) -> Any:
    delay_s = seconds_of(asked.delay) if asked.HasField("delay") else None
    await _settle(call, asked, Outcome.FAIL, delay_s)
    return schema.empty()


async def _settle(
    call: Call, asked: Any, outcome: Outcome, delay_s: float | None = None
) -> tuple[str, int | None, int]:
    """Of deliveries that are settled already, the others are settled all the same, and the details say how many.

    Returns the engine's name of the queue, the partition where offsets are named, and how many there were.
    """
    most = call.service.config.max_batch
    count = len(asked.offsets) + len(asked.receipts)
    if not 1 <= count <= most or (asked.offsets and asked.receipts):
        raise RequestError(Code.BAD_REQUEST, f"1 to {most} deliveries are settled at once, by offsets or by receipts")
    name, group = _known_group(call, asked)
    partition = _partition(call, name, asked) if asked.offsets else None
    request = SettleRequest(
        outcome=outcome,
        receipts=tuple(call.caller.named_in(each) for each in asked.receipts),
        partition=partition,
        ranges=tuple((offset, offset + 1) for offset in asked.offsets),
        group=group,
        delay_s=delay_s,
    )
    consumer = _member_id(call, asked) if asked.offsets else None
    await call.service.finished(
        lambda engine, now, confirm: engine.settle(name, request, consumer_id=consumer, now=now, on_done=confirm)
    )
    return name, partition, count


@served(Scope.READ)
async def claim(call: Call, asked: Any) -> Any:
    limit = min(asked.limit or _USUAL, call.service.config.max_batch)
    member = await _member(call, asked)
    (queue,) = member.consumers
    taken = await member.claim(queue, Claim(min_idle_s=seconds_of(asked.min_idle_time), limit=limit))
    return M.ClaimResponse(messages=[_delivered(call, each, asked.consumer_id) for each in taken])


@served(Scope.READ)
async def get_pending(call: Call, asked: Any) -> Any:
    name, group = _known_group(call, asked)
    engine, (_, now) = call.service.engine, call.service.turn()
    limit = min(asked.limit or _USUAL, _MOST)
    after = _after(asked.page_token)
    found = engine.groups.pending(name, group, limit=limit, after=after)
    wanted = _member_id(call, asked) if asked.consumer_id else None
    details = engine.groups.details(name, group)
    return M.GetPendingResponse(
        entries=[
            {
                "offset": each.offset,
                "partition": each.partition,
                "consumer_id": _told_consumer(call, asked.queue_name, group, each.consumer),
                "delivered_at": moment(now - each.idle_s),
                "delivery_count": each.delivery_count,
                "idle_time": split(each.idle_s),
            }
            for each in found
            if wanted is None or each.consumer == wanted
        ],
        next_page_token=f"{found[-1].partition}:{found[-1].offset}" if len(found) == limit else "",
        total_pending=sum(each.in_flight + each.waiting for each in details.partitions),
    )


def _after(token: str) -> tuple[int, int]:
    """Raises :class:`RequestError`."""
    partition, _, offset = token.partition(":")
    if not token:
        return -1, -1
    if not (partition.isdecimal() and offset.isdecimal() and token.isascii() and len(token) <= 40):
        raise RequestError(Code.BAD_REQUEST, "the page_token is none that an answer had")
    return int(partition), int(offset)


def _page(names: Iterable[str], limit: int) -> tuple[list[str], str]:
    """So many of them, and the token of the next page; empty = there is none."""
    most = min(limit or _USUAL, _MOST)
    found = list(itertools.islice(names, most + 1))
    return found[:most], found[most - 1] if len(found) > most else ""

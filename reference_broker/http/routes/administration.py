"""Administration of a queue: dead letters, delayed messages, bindings, consumers, groups and what is pending."""

from __future__ import annotations

from typing import Annotated

import msgspec
from fastapi import Query

from assay.reference_broker.api.problems import Code, RequestError
from assay.reference_broker.config import Scope
from assay.reference_broker.http.areas import Area, Asked, Body, Limit, Name
from assay.reference_broker.http.routes.messages import ConsumeAnswer, cursor_of, told_of
from assay.reference_broker.queues import QueueErrorCode
from assay.reference_broker.queues.admin.admin import Cancelled, DelayedMessages, PurgeAnswer
from assay.reference_broker.queues.admin.group_admin import GroupsAnswer, ResetAnswer
from assay.reference_broker.queues.delays.delay_store import MAX_LISTED
from assay.reference_broker.queues.groups.group_details import GroupDetails, PendingDetails
from assay.reference_broker.queues.groups.subscribe_options import SubscribeOptions
from assay.reference_broker.queues.messages.address import dead_letter_name, is_dead_letter
from assay.reference_broker.queues.operations.group_operations import MAX_CLAIMS, Claim
from assay.reference_broker.queues.operations.replay import DeadLetterStats, ReplayResult

AREA = Area("administration", "What operators do with queues: dead letters, delayed messages, bindings, groups.")
_Q = QueueErrorCode
_QUEUE = (_Q.UNKNOWN_QUEUE, _Q.STORAGE_FAILED)
_GROUP = (_Q.UNKNOWN_QUEUE, _Q.UNKNOWN_GROUP, _Q.STORAGE_FAILED)


class QueueConsumer(msgspec.Struct, frozen=True, kw_only=True):
    group: str
    consumer: str
    partitions: list[int]
    in_flight: int


class QueueConsumers(msgspec.Struct, frozen=True, kw_only=True):
    consumers: list[QueueConsumer]


@AREA.get("/queues/{queue}/consumers", Scope.READ, errors=_QUEUE)
async def queue_consumers(call: Asked, queue: Name) -> QueueConsumers:
    """Who consumes from a queue, over whatever protocol, and what each has."""
    groups = call.service.engine.groups.all_details(call.caller.queue(queue, Scope.READ))
    return QueueConsumers(
        consumers=[
            QueueConsumer(
                group=group.group,
                consumer=member.consumer,
                partitions=list(member.partitions),
                in_flight=member.in_flight,
            )
            for group in groups
            for member in group.members
        ]
    )


# -- dead letters ----------------------------------------------------------------------------------------------------


@AREA.get("/queues/{queue}/dlq", Scope.READ, errors=_QUEUE)
async def dead_letters(call: Asked, queue: Name) -> DeadLetterStats:
    """How many dead letters there were and are. They are read as the messages of the queue ``dlq/<queue>``."""
    stats = call.service.engine.dead_letters.stats(call.caller.queue(queue, Scope.READ))
    return msgspec.structs.replace(stats, queue=call.caller.told(stats.queue))


class Replay(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    message_id: str | None = None
    """Only this dead letter; left out, all that there are now."""


@AREA.post("/queues/{queue}/dlq/replay", Scope.ADMIN, errors=(*_QUEUE, _Q.NOT_PENDING, _Q.LIMIT))
async def replay_dead_letters(call: Asked, queue: Name, wanted: Body[Replay]) -> ReplayResult:
    """Send dead letters back to their queue, as fresh messages; answered once each is decided."""
    name = call.caller.administered(queue, "replay")
    result: ReplayResult = await call.service.told(
        lambda driver, now, tell: driver.node.engine.dead_letters.replay(
            name, wanted.message_id, now, lambda outcome: tell(None, outcome)
        )
    )
    return result


@AREA.post("/queues/{queue}/dlq/purge", Scope.ADMIN, errors=_QUEUE)
async def purge_dead_letters(call: Asked, queue: Name) -> PurgeAnswer:
    """Take dead letters away for good."""
    name = call.caller.administered(queue, "purge")
    letters = name if is_dead_letter(name) else dead_letter_name(name)
    return PurgeAnswer(purged=await call.service.purged(letters))


# -- delayed messages ------------------------------------------------------------------------------------------------


@AREA.get("/queues/{queue}/delayed", Scope.READ, errors=_QUEUE)
async def delayed_messages(
    call: Asked,
    queue: Name,
    limit: Annotated[int, Query(ge=1, le=MAX_LISTED)] = 100,
    after: Annotated[str | None, Query(max_length=1_024)] = None,
) -> DelayedMessages:
    """Messages that wait for their time, in the order in which they were published, from behind a delay id on."""
    caller = call.caller
    name = caller.queue(queue, Scope.READ)
    behind = None if after is None else caller.named_in(after)
    found = call.service.engine.delayed(name, limit=limit, after=behind)
    return DelayedMessages(
        messages=[msgspec.structs.replace(each, delay_id=caller.told(each.delay_id)) for each in found]
    )


@AREA.delete("/queues/{queue}/delayed/{delay_id}", Scope.WRITE, errors=(*_QUEUE, _Q.NOT_PENDING))
async def cancel_delayed_message(call: Asked, queue: Name, delay_id: Name) -> Cancelled:
    """A delayed message is never delivered."""
    name = call.caller.queue(queue, Scope.WRITE)
    text = f"{delay_id[:80]!r} does not wait for its time"
    await call.service.cancelled(name, call.caller.named_in(delay_id), text)
    return Cancelled(cancelled=True)


# -- bindings --------------------------------------------------------------------------------------------------------


class Topics(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Filters of the topics whose messages a queue gets, too."""

    topics: list[str]


@AREA.get("/queues/{queue}/bindings", Scope.READ, errors=_QUEUE)
async def get_bindings(call: Asked, queue: Name) -> Topics:
    """Filters of the topics whose messages a queue gets, too."""
    config, _ = call.service.engine.queue_config(call.caller.queue(queue, Scope.READ))
    return Topics(topics=list(config.topics))


@AREA.put("/queues/{queue}/bindings", Scope.ADMIN, errors=_QUEUE)
async def set_bindings(call: Asked, queue: Name, wanted: Body[Topics]) -> Topics:
    """Bind a queue to these filters, and to no others."""
    name = call.caller.administered(queue, "config")
    config = await call.service.updated(name, {"topics": wanted.topics})
    return Topics(topics=list(config.topics))


# -- groups ----------------------------------------------------------------------------------------------------------


@AREA.get("/queues/{queue}/groups", Scope.READ, errors=_QUEUE)
async def queue_groups(call: Asked, queue: Name) -> GroupsAnswer:
    """The groups of a queue: members, cursors, lag."""
    return GroupsAnswer(groups=call.service.engine.groups.all_details(call.caller.queue(queue, Scope.READ)))


class NewGroup(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    group: str


@AREA.post("/queues/{queue}/groups", Scope.ADMIN, status=201, errors=(_Q.UNKNOWN_QUEUE, _Q.LIMIT, _Q.STORAGE_FAILED))
async def create_queue_group(call: Asked, queue: Name, wanted: Body[NewGroup]) -> GroupDetails:
    """Let a group begin before it has a consumer: from now on nothing goes before it has settled it."""
    name = call.caller.administered(queue, "groups")
    driver, now = call.service.turn()
    engine = driver.node.engine
    engine.queue_config(name)
    engine.create_group(name, wanted.group, now)
    return engine.groups.details(name, wanted.group)


@AREA.get("/queues/{queue}/groups/{group}", Scope.READ, errors=_GROUP)
async def queue_group(call: Asked, queue: Name, group: Name) -> GroupDetails:
    """One of them."""
    return call.service.engine.groups.details(call.caller.queue(queue, Scope.READ), group)


class GroupGone(msgspec.Struct, frozen=True, kw_only=True):
    deleted: str


@AREA.delete("/queues/{queue}/groups/{group}", Scope.ADMIN, errors=(*_GROUP, _Q.IN_USE))
async def delete_queue_group(call: Asked, queue: Name, group: Name) -> GroupGone:
    """Delete a group without consumers, for good."""
    name = call.caller.administered(queue, "groups")
    await call.service.group_deleted(name, group)
    return GroupGone(deleted=group)


class Pending(msgspec.Struct, frozen=True, kw_only=True):
    entries: list[PendingDetails]
    next: str | None
    """``after`` of the next page."""


@AREA.get("/queues/{queue}/groups/{group}/pending", Scope.READ, errors=_GROUP)
async def pending_entries(
    call: Asked,
    queue: Name,
    group: Name,
    limit: Limit = 100,
    after: Annotated[str, Query(pattern=r"^(\d{1,9}:\d{1,19})?$", description="<partition>:<offset>")] = "",
) -> Pending:
    """Messages that a group has got and not settled, by partition and offset."""
    caller = call.caller
    partition, _, offset = after.partition(":")
    behind = (int(partition), int(offset)) if after else (-1, -1)
    name = caller.queue(queue, Scope.READ)
    found = call.service.engine.groups.pending(name, group, limit=limit, after=behind)
    last = found[-1] if len(found) == limit else None
    return Pending(
        entries=[msgspec.structs.replace(each, message_id=caller.told(each.message_id)) for each in found],
        next=None if last is None else f"{last.partition}:{last.offset}",
    )


class Reset(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    to: str
    """earliest, latest, committed, an offset or an RFC 3339 time."""
    partition: Annotated[int, msgspec.Meta(ge=0)] | None = None
    """Left out: all."""


@AREA.post("/queues/{queue}/groups/{group}/reset", Scope.ADMIN, errors=_GROUP)
async def reset_group(call: Asked, queue: Name, group: Name, wanted: Body[Reset]) -> ResetAnswer:
    """Let a group go on from another place; what is in flight becomes stale."""
    name = call.caller.administered(queue, "reset")
    cursors = await call.service.reset(name, group, cursor_of(wanted.to), wanted.partition)
    return ResetAnswer(group=group, cursors=cursors)


class ClaimRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Take over what others of a group have had for long."""

    group: str
    consumer: str = "default"
    min_idle_s: Annotated[float, msgspec.Meta(ge=0)] = 0.0
    limit: Annotated[int, msgspec.Meta(ge=1, le=MAX_CLAIMS)] = 100
    partition: Annotated[int, msgspec.Meta(ge=0)] | None = None
    offset: Annotated[int, msgspec.Meta(ge=0)] | None = None
    """With a partition: the one delivery meant."""


@AREA.post("/queues/{queue}/claim", Scope.READ, errors=(*_GROUP, _Q.NOT_PENDING, _Q.NOT_IDLE, _Q.LIMIT, _Q.IN_USE))
async def claim_messages(call: Asked, queue: Name, wanted: Body[ClaimRequest]) -> ConsumeAnswer:
    """Take over deliveries that consumers of the group have had for long: each counts as one more."""
    caller = call.caller
    if (wanted.partition is None) != (wanted.offset is None):
        raise RequestError(Code.BAD_REQUEST, "one delivery is named by partition and offset")
    place = None if wanted.partition is None or wanted.offset is None else (wanted.partition, wanted.offset)
    name = caller.queue(queue, Scope.READ)
    call.service.engine.groups.generation(name, wanted.group)  # which a claim does not create
    options = SubscribeOptions(receipts=True)
    member = await call.service.members.one_of(caller, queue, wanted.group, wanted.consumer, "", options)
    claim = Claim(place=place, min_idle_s=wanted.min_idle_s, limit=wanted.limit)
    return told_of(caller, await member.claim(caller.told(name), claim))

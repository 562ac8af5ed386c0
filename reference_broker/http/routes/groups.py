"""GoQueue's consumer groups: members that join for some topics, poll, send heartbeats, commit offsets, leave.

A group of the engine belongs to one queue; here a name stands for the groups of that name of all queues, and a member
for its consumers in them. ``generation`` grows with every change of any of its groups.
"""

from __future__ import annotations

import secrets
from typing import Annotated

import msgspec
from fastapi import Query

from assay.reference_broker.api.asking import may_consume
from assay.reference_broker.api.consumers import Member, check_wait
from assay.reference_broker.api.groups import MAX_TOPICS, commit, in_queues
from assay.reference_broker.api.problems import Code, RequestError
from assay.reference_broker.api.topics import queue_in, topic_out
from assay.reference_broker.api.turns import in_portions
from assay.reference_broker.config import RebalanceProtocol, Scope
from assay.reference_broker.http.areas import Area, Asked, Body, Call, Limit, Name
from assay.reference_broker.http.routes.messages import gone_of
from assay.reference_broker.http.routes.topics import TopicRecord, record
from assay.reference_broker.http.shapes import timestamp
from assay.reference_broker.queues import QueueError, QueueErrorCode
from assay.reference_broker.queues.groups.group_details import GroupDetails
from assay.reference_broker.queues.groups.subscribe_options import SubscribeOptions
from assay.reference_broker.queues.messages.durations import parse_duration_ms
from assay.reference_broker.queues.messages.partitioner import PARTITION_KEY

AREA = Area("groups", "GoQueue's consumer groups; also at /groups and /v1/groups.")
_Q = QueueErrorCode
_MEMBER_ERRORS = (_Q.UNKNOWN_MEMBER, _Q.STALE_GENERATION)


class JoinRequest(msgspec.Struct, frozen=True, kw_only=True):
    client_id: Annotated[str, msgspec.Meta(min_length=1, max_length=256)]
    topics: Annotated[list[str], msgspec.Meta(min_length=1, max_length=MAX_TOPICS)]


class Joined(msgspec.Struct, frozen=True, kw_only=True):
    member_id: str
    generation: int
    leader_id: str
    """The member that has been there longest."""
    partitions: list[int]
    """Of the first topic."""
    members: list[str]
    assignments: dict[str, list[int]]
    """By topic."""
    protocol: str


class MemberRequest(msgspec.Struct, frozen=True, kw_only=True):
    member_id: str


class HeartbeatRequest(MemberRequest, frozen=True, kw_only=True):
    generation: int


class Alive(msgspec.Struct, frozen=True, kw_only=True):
    generation: int
    assignments: dict[str, list[int]]
    success: bool = True


class Left(msgspec.Struct, frozen=True, kw_only=True):
    success: bool = True


class GroupSummary(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    state: str
    """``Stable``, ``Rebalancing``, or ``Empty`` without members."""
    members: int
    generation: int
    topics: list[str]


class GroupList(msgspec.Struct, frozen=True, kw_only=True):
    groups: list[GroupSummary]


class GroupMember(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    client_id: str
    assigned_partitions: dict[str, list[int]]
    last_heartbeat: str | None
    """RFC 3339; none for who is bound to a connection of another protocol."""
    joined_at: str | None


class GroupView(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    state: str
    generation: int
    topics: list[str]
    members: list[GroupMember]
    lag: int


class GroupDeleted(msgspec.Struct, frozen=True, kw_only=True):
    deleted: bool
    group: str


class PollAnswer(msgspec.Struct, frozen=True, kw_only=True):
    messages: dict[str, list[TopicRecord]]
    """By partition, of the first topic."""
    next_offset: dict[str, int]
    topics: dict[str, dict[str, list[TopicRecord]]]
    """By topic and partition, of all of them."""


class CommitRequest(MemberRequest, frozen=True, kw_only=True):
    offsets: dict[str, dict[str, int]]
    """Topic -> partition -> next offset."""
    generation: int | None = None


class Committed(msgspec.Struct, frozen=True, kw_only=True):
    group: str
    offsets: dict[str, dict[str, int]]
    success: bool = True


class Offsets(msgspec.Struct, frozen=True, kw_only=True):
    group_id: str
    topics: dict[str, dict[str, int]]
    """Topic -> partition -> next offset: everything below is settled."""
    generation: int
    updated_at: str


class RebalanceStats(msgspec.Struct, frozen=True, kw_only=True):
    rebalances: int
    """Of all topics of the group."""
    moving: dict[str, list[int]]
    """Topic -> partitions that are being handed over."""


def _state(details: list[GroupDetails]) -> str:
    if not any(each.members for each in details):
        return "Empty"
    return "Rebalancing" if any(place.moving for each in details for place in each.partitions) else "Stable"


def _topics(call: Call, queues: list[str]) -> list[str]:
    return sorted(topic_out(call.caller.told(queue)) for queue in queues)


def _assignments(member: Member) -> dict[str, list[int]]:
    return {topic_out(queue): list(event.partitions) for queue, event in member.assigned.items()}


@AREA.get("/groups", Scope.READ)
async def list_groups(call: Asked) -> GroupList:
    """All groups of the topics that the caller may read."""
    found: dict[str, dict[str, GroupDetails]] = {}
    async for queue in in_portions(call.service.engine.queues(), 20):
        engine = call.service.engine
        if engine.exists(queue) and call.caller.reads(queue):
            for details in engine.groups.all_details(queue):
                found.setdefault(details.group, {})[queue] = details
    return GroupList(
        groups=[
            GroupSummary(
                id=name,
                state=_state(list(by_queue.values())),
                members=len({member.consumer for details in by_queue.values() for member in details.members}),
                generation=sum(details.generation for details in by_queue.values()),
                topics=_topics(call, list(by_queue)),
            )
            for name, by_queue in sorted(found.items())
        ]
    )


@AREA.twin("/groups/{group}/cooperative", "get_cooperative_group")
@AREA.get("/groups/{group}", Scope.READ, errors=(_Q.UNKNOWN_GROUP,))
async def get_group(call: Asked, group: Name) -> GroupView:
    """A group: its members, what each is assigned, and how far behind it is."""
    by_queue = in_queues(call, group)
    known = {member.client_id: member for member in call.service.members.all_of(group)}
    assigned: dict[str, dict[str, list[int]]] = {}
    for queue, details in by_queue.items():
        for member in details.members:
            assigned.setdefault(member.consumer, {})[topic_out(call.caller.told(queue))] = list(member.partitions)
    return GroupView(
        id=group,
        state=_state(list(by_queue.values())),
        generation=sum(details.generation for details in by_queue.values()),
        topics=_topics(call, list(by_queue)),
        members=[
            GroupMember(
                id=name,
                client_id=name,
                assigned_partitions=partitions,
                last_heartbeat=timestamp(known[name].seen_at) if name in known else None,
                joined_at=timestamp(known[name].joined_at) if name in known else None,
            )
            for name, partitions in sorted(assigned.items())
        ],
        lag=sum(details.lag for details in by_queue.values()),
    )


@AREA.delete("/groups/{group}", Scope.ADMIN, errors=(_Q.UNKNOWN_GROUP, _Q.IN_USE, _Q.STORAGE_FAILED))
async def delete_group(call: Asked, group: Name) -> GroupDeleted:
    """Delete a group without members, of all topics."""
    queues = [queue for queue in in_queues(call, group) if call.caller.administered(queue, "groups")]
    for queue in queues:
        await call.service.group_deleted(queue, group)
    return GroupDeleted(deleted=True, group=group)


async def _join(call: Call, group: str, wanted: JoinRequest, *, cooperative: bool) -> Joined:
    service, caller = call.service, call.caller
    queues = [queue_in(call, topic) for topic in dict.fromkeys(wanted.topics)]
    engine = service.engine
    protocols = {engine.config_of(caller.queue(queue, Scope.READ)).group.protocol for queue in queues}
    if cooperative and protocols != {RebalanceProtocol.COOPERATIVE}:
        raise RequestError(Code.UNSUPPORTED, "a topic rebalances eagerly: its setting group.protocol says so")
    await may_consume(service, caller, queues)
    member_id = f"{wanted.client_id}-{secrets.token_hex(8)}"
    member = service.members.add(caller, group, member_id)
    try:
        for queue in queues:
            member.join(caller, queue, "", SubscribeOptions(receipts=True, notify=True))
        await member.wait_until_assigned()
    except BaseException:
        service.members.remove(member)
        raise
    first = next(iter(member.consumers.values()))
    members = sorted(engine.members(first.queue, group) or ())
    assignments = _assignments(member)
    return Joined(
        member_id=member_id,
        generation=member.generation,
        leader_id=_leader(call, group, members),
        partitions=assignments.get(topic_out(next(iter(member.consumers))), []),
        members=members,
        assignments=assignments,
        protocol="cooperative" if protocols == {RebalanceProtocol.COOPERATIVE} else "eager",
    )


def _leader(call: Call, group: str, members: list[str]) -> str:
    here = [member for member in call.service.members.all_of(group) if member.client_id in members]
    return min(here, key=lambda member: member.joined_at).client_id if here else members[0]


@AREA.post("/groups/{group}/join", Scope.READ, errors=(_Q.UNKNOWN_QUEUE, _Q.LIMIT, _Q.QUOTA))
async def join_group(call: Asked, group: Name, wanted: Body[JoinRequest]) -> Joined:
    """Become a member: poll, or send heartbeats, within the session timeout of the topics."""
    return await _join(call, group, wanted, cooperative=False)


@AREA.post(
    "/groups/{group}/join/cooperative", Scope.READ, errors=(_Q.UNKNOWN_QUEUE, _Q.LIMIT, _Q.QUOTA, Code.UNSUPPORTED)
)
async def join_group_cooperatively(call: Asked, group: Name, wanted: Body[JoinRequest]) -> Joined:
    """Likewise, of topics that rebalance cooperatively (group.protocol): whoever keeps a partition never stops."""
    return await _join(call, group, wanted, cooperative=True)


@AREA.twin("/groups/{group}/heartbeat/cooperative", "heartbeat_cooperatively")
@AREA.post("/groups/{group}/heartbeat", Scope.READ, errors=_MEMBER_ERRORS)
async def heartbeat(call: Asked, group: Name, wanted: Body[HeartbeatRequest]) -> Alive:
    """A member is alive; 409 when its group has changed since, with the new generation in ``details``."""
    member = call.service.members.find(call.caller, group, wanted.member_id)
    member.heartbeat(wanted.generation)
    return Alive(generation=member.generation, assignments=_assignments(member))


@AREA.twin("/groups/{group}/leave/cooperative", "leave_group_cooperatively")
@AREA.post("/groups/{group}/leave", Scope.READ, errors=(_Q.UNKNOWN_MEMBER,))
async def leave_group(call: Asked, group: Name, wanted: Body[MemberRequest]) -> Left:
    """A member leaves: what it holds is ready at once, and its deliveries count; release what was not tried first."""
    call.service.members.remove(call.service.members.find(call.caller, group, wanted.member_id))
    return Left()


@AREA.post("/groups/{group}/revoke", Scope.READ, errors=(_Q.UNKNOWN_MEMBER,))
async def revoke(call: Asked, group: Name, wanted: Body[MemberRequest]) -> Alive:
    """A member has let go of what was revoked from it: that is so once it has settled what it held of it, and then
    goes to others by itself. Tells what it has."""
    return await assignment(call, group, wanted.member_id)


@AREA.get("/groups/{group}/assignment", Scope.READ, errors=(_Q.UNKNOWN_MEMBER,))
async def assignment(call: Asked, group: Name, member_id: Annotated[str, Query(max_length=1_024)]) -> Alive:
    """What a member is assigned."""
    member = call.service.members.find(call.caller, group, member_id)
    member.heartbeat()
    return Alive(generation=member.generation, assignments=_assignments(member))


@AREA.get("/groups/{group}/poll", Scope.READ, errors=(*_MEMBER_ERRORS, _Q.IN_USE, _Q.STORAGE_FAILED))
async def poll_group(
    call: Asked,
    group: Name,
    member_id: Annotated[str, Query(max_length=1_024)],
    generation: int | None = None,
    wait: Annotated[str, Query(alias="timeout", max_length=32, description="As in 30s")] = "30s",
    limit: Limit = 100,
) -> PollAnswer:
    """Messages of the member's partitions of all its topics, as soon as there are some. Each must be settled."""
    service, caller = call.service, call.caller
    member = service.members.find(caller, group, member_id)
    for queue in member.consumers:
        caller.queue(queue, Scope.READ)
    member.heartbeat(generation)
    try:
        wait_s = min(parse_duration_ms(wait) / 1_000, service.config.max_poll_s)
    except ValueError as error:
        raise RequestError(Code.BAD_REQUEST, f"timeout: {error}") from error
    limit = min(limit, service.config.max_batch)
    check_wait(service, wait_s, limit)
    topics: dict[str, dict[str, list[TopicRecord]]] = {topic_out(queue): {} for queue in member.consumers}
    for each in await member.poll(limit, wait_s, gone_of(call.request)):
        delivery = each.delivery
        message = delivery.message
        told = record(
            delivery.offset,
            each.enqueued_at,
            message.payload,
            message.user_property(PARTITION_KEY),
            delivery.lane,
            caller.told(delivery.receipt),
        )
        topics[topic_out(each.queue)].setdefault(str(delivery.partition), []).append(told)
    first = next(iter(topics.values()))
    return PollAnswer(
        messages=first,
        next_offset={partition: max(each.offset for each in found) + 1 for partition, found in first.items()},
        topics=topics,
    )


@AREA.post("/groups/{group}/offsets", Scope.READ, errors=(*_MEMBER_ERRORS, _Q.UNKNOWN_QUEUE, _Q.STORAGE_FAILED))
async def commit_offsets(call: Asked, group: Name, wanted: Body[CommitRequest]) -> Committed:
    """Settle what was delivered of partitions below offsets; 403 for a partition that is not the member's."""
    member = call.service.members.find(call.caller, group, wanted.member_id)
    member.heartbeat(wanted.generation)
    places: list[tuple[str, int, int]] = []
    for topic, partitions in wanted.offsets.items():
        consumer = member.consumers.get(queue_in(call, topic))
        if consumer is None:
            raise QueueError(_Q.NOT_ALLOWED, f"{wanted.member_id[:80]!r} has not joined for {topic[:80]!r}")
        for partition, offset in partitions.items():
            if not (partition.isascii() and partition.isdecimal()):
                raise RequestError(Code.BAD_REQUEST, f"{partition[:40]!r} is no partition")
            places.append((consumer.queue, int(partition), offset))
    for error in await commit(call, group, places, member):
        if error is not None:
            raise error
    return Committed(group=group, offsets=wanted.offsets)


@AREA.get("/groups/{group}/offsets", Scope.READ, errors=(_Q.UNKNOWN_GROUP,))
async def get_offsets(call: Asked, group: Name) -> Offsets:
    """Where a group stands in each partition."""
    by_queue = in_queues(call, group)
    return Offsets(
        group_id=group,
        topics={
            topic_out(call.caller.told(queue)): {str(each.partition): each.committed for each in details.partitions}
            for queue, details in by_queue.items()
        },
        generation=sum(details.generation for details in by_queue.values()),
        updated_at=timestamp(call.service.turn()[1]),
    )


@AREA.get("/groups/{group}/rebalance/stats", Scope.READ, errors=(_Q.UNKNOWN_GROUP,))
async def rebalance_stats(call: Asked, group: Name) -> RebalanceStats:
    """How often a group was assigned anew, and what is being handed over now."""
    by_queue = in_queues(call, group)
    return RebalanceStats(
        rebalances=sum(details.generation for details in by_queue.values()),
        moving={
            topic_out(call.caller.told(queue)): [place.partition for place in details.partitions if place.moving]
            for queue, details in by_queue.items()
        },
    )

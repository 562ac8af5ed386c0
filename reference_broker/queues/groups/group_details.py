"""A group as people and tools see it: members, and per partition where it stands and how far behind it is."""

from __future__ import annotations

from math import isfinite
from typing import TYPE_CHECKING

import msgspec

from assay.reference_broker.queues.groups.pending import EntryState, PendingEntry
from assay.reference_broker.queues.groups.subscribe_options import AckMode
from assay.reference_broker.queues.messages.address import message_id_of

if TYPE_CHECKING:
    from assay.reference_broker.queues.groups.group import ConsumerGroup
    from assay.reference_broker.queues.groups.pending import GroupPartition


class MemberDetails(msgspec.Struct, frozen=True, kw_only=True):
    consumer: str
    partitions: tuple[int, ...]
    """Those it serves; none of those that are being revoked from it."""
    in_flight: int
    ack_mode: AckMode


class PartitionDetails(msgspec.Struct, frozen=True, kw_only=True):
    partition: int
    consumer: str | None
    """Whose partition it is, also while it is being revoked; None without consumers."""
    moving: bool
    """Revoked, and not handed over yet."""
    committed: int
    """Everything below it is settled."""
    cursor: int
    """Next offset to deliver for the first time; with priority lanes the furthest lane's."""
    end: int
    """Offset of the next message to be published."""
    lag: int
    """Messages never delivered to this group yet."""
    in_flight: int
    waiting: int
    """Delivered before, and to be delivered again."""
    oldest_in_flight_s: float
    """How long the oldest delivery has been with its consumer; 0 without any."""


class GroupDetails(msgspec.Struct, frozen=True, kw_only=True):
    group: str
    generation: int
    lag: int
    members: tuple[MemberDetails, ...]
    """By consumer id."""
    partitions: tuple[PartitionDetails, ...]


class PendingDetails(msgspec.Struct, frozen=True, kw_only=True):
    """One message that a group has not settled."""

    message_id: str
    partition: int
    offset: int
    state: EntryState
    consumer: str
    """Who has it, or had it last."""
    delivery_count: int
    idle_s: float
    """Since its last delivery."""
    due_at: float
    """Unix seconds: with a consumer, when that times out; waiting, when it is delivered again. 0 = never."""


def pending_details(queue: str, entry: PendingEntry, now: float) -> PendingDetails:
    """What is so now."""
    place = entry.place
    return PendingDetails(
        message_id=message_id_of(queue, place.index, entry.offset),
        partition=place.index,
        offset=entry.offset,
        state=entry.state,
        consumer=entry.last_consumer if entry.consumer is None else entry.consumer.consumer_id,
        delivery_count=entry.delivery_count,
        idle_s=round(max(0.0, now - entry.claimed_at), 3) if entry.claimed_at else 0.0,
        due_at=entry.deadline if isfinite(entry.deadline) else 0.0,
    )


def details_of(group: ConsumerGroup, now: float) -> GroupDetails:
    """What is so now; nothing in it changes when the group does."""
    partitions = tuple(partition_details(group, place, now) for place in group.places)
    members = tuple(
        MemberDetails(
            consumer=consumer_id,
            partitions=tuple(place.index for place in consumer.places),
            in_flight=consumer.in_flight,
            ack_mode=consumer.options.ack_mode,
        )
        for consumer_id, consumer in sorted(group.consumers.items())
    )
    return GroupDetails(
        group=group.group_id,
        generation=group.generation,
        lag=sum(partition.lag for partition in partitions),
        members=members,
        partitions=partitions,
    )


def partition_details(group: ConsumerGroup, place: GroupPartition, now: float) -> PartitionDetails:
    """One partition of a group: owner, cursor, lag and what is in flight."""
    lanes = place.lanes or (place,)
    entries = [entry for lane in lanes for entry in lane.pending.values()]
    claimed = [entry.claimed_at for entry in entries if entry.state is EntryState.DELIVERED]
    owner = group.rebalance.owner(place.index)
    end = place.partition.log.next_offset
    return PartitionDetails(
        partition=place.index,
        consumer=owner.consumer_id if owner is not None and owner.active else None,
        moving=place in group.rebalance.moves,
        committed=group.low(place.index),
        cursor=max(lane.cursor for lane in lanes),
        end=end,
        lag=end - place.passed,
        in_flight=len(claimed),
        waiting=sum(entry.state is EntryState.WAITING for entry in entries),
        oldest_in_flight_s=max(0.0, now - min(claimed)) if claimed else 0.0,
    )

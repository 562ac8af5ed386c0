"""What a queue holds: its partitions and groups, how many messages that are, and which of them nobody gets any more."""

from __future__ import annotations

from assay.reference_broker.config import LimitScope, QueueConfig
from assay.reference_broker.queues.groups.group import ConsumerGroup
from assay.reference_broker.queues.messages.address import MARK_GROUP, message_id_of
from assay.reference_broker.queues.partitions.departures import Departures
from assay.reference_broker.queues.partitions.partition import QueuePartition
from assay.reference_broker.trace.schema import TraceKind, Tracer


class QueueContents:
    """Of one queue. It is what the parts of a queue know of it."""

    departures: Departures
    """Set once the partitions are open."""

    def __init__(self, config: QueueConfig, tracer: Tracer | None) -> None:
        self.config = config
        self.name = config.name
        self.partitions: list[QueuePartition] = []
        self.groups: dict[str, ConsumerGroup] = {}
        self.end_total = 0
        """Sum of the next offsets, those of unwritten messages included, not those of unwritten control records."""
        self.refused = 0
        """Messages that the queue did not take."""
        self.tracer = tracer

    @property
    def named_groups(self) -> dict[str, ConsumerGroup]:
        """Groups of people: without the broker's own."""
        return {name: group for name, group in self.groups.items() if name != MARK_GROUP}

    @property
    def has_lasting_groups(self) -> bool:
        """Whether there is a group that says what is kept: a reader without one settles for nobody else."""
        return any(not group.transient for group in self.groups.values())

    # -- how many ------------------------------------------------------------------------------------------------

    @property
    def depth(self) -> int:
        """Messages that the slowest group has not settled; all that are stored while there is no group."""
        if not self.groups:
            return self.departures.held_count + self._loose_depth
        end = self.end_total
        return max(end - group.cursor_total + group.unsettled for group in self.groups.values())

    @property
    def staying(self) -> int:
        """The depth, without what is only waiting for the dead-letter queue to have it."""
        return max(map(self.staying_of, self.groups.values())) if self.groups else self._loose_depth

    @property
    def _loose_depth(self) -> int:
        return self.end_total - sum(partition.head + partition.gone_count for partition in self.partitions)

    def staying_of(self, group: ConsumerGroup) -> int:
        """What the limit on the depth counts of one group: likewise, or what is ready and no consumer has room for."""
        if self.config.limits_count is LimitScope.READY:
            ready = self.ready_of(group)
            return ready - group.room_for(ready)
        return self.end_total - group.cursor_total + group.unsettled - group.leaving

    @property
    def certain_room(self) -> int:
        """Messages that fit whatever consumers take."""
        if self.groups and self.config.limits_count is LimitScope.READY:
            return self.config.max_depth - max(map(self.ready_of, self.groups.values()))
        return self.config.max_depth - self.staying

    def ready_of(self, group: ConsumerGroup) -> int:
        """Messages that a group could get now or after a retry wait; in constant time."""
        return self.end_total - group.cursor_total + group.waiting_count

    def ready_for(self, group: str) -> int:
        """Likewise, of a group by its id; one to come begins with all that is kept."""
        found = self.groups.get(group)
        return self._loose_depth if found is None else self.ready_of(found)

    # -- from where on -------------------------------------------------------------------------------------------

    def low_watermark(self, index: int) -> int:
        """The lowest offset of a partition that some group has not settled."""
        return min(group.low(index) for group in self.groups.values())

    def low_watermarks(self) -> list[int]:
        """Likewise, of every partition."""
        return [self.low_watermark(index) for index in range(len(self.partitions))]

    def unsettled_starts(self) -> list[tuple[QueuePartition, int]]:
        """Every partition, with the lowest offset that some group has not settled, or the lowest that is kept."""
        starts = self.low_watermarks() if self.groups else [partition.head for partition in self.partitions]
        return [
            (partition, max(start, partition.head)) for partition, start in zip(self.partitions, starts, strict=True)
        ]

    def move_head(self, partition: QueuePartition, end: int) -> None:
        """Limits or time took what is below: no group to come gets it, and a start knows it."""
        if end > partition.head:
            first, partition.head = partition.head, end
            self.departures.add(partition, first, end)
            if not self.groups:
                partition.drop_before(self.departures.free_to(partition))

    def left(self, partition: QueuePartition, offset: int) -> None:
        """Limits or time took a message from a group. Once no group needs it a group to come does not get it either."""
        if self.low_watermark(partition.index) > offset:
            self.move_head(partition, offset + 1)
        elif not any(group.needs(partition.index, offset) for group in self.groups.values()):
            partition.mark_gone(offset)
            self.departures.add(partition, offset, offset + 1)

    # -- tracing -------------------------------------------------------------------------------------------------

    def trace_place(self, kind: TraceKind, partition: int, offset: int, group: str, detail: str) -> None:
        """Something happened to a message that was never delivered."""
        place = self.partitions[partition]
        traced = place.traced.get(offset) if place.traced else None
        if traced is not None:
            place.happened(kind, traced, group, "", 0, detail, len(self.groups) if group else 0)
        if self.tracer is not None:
            fields: dict[str, str | int] = {
                "queue": self.name,
                "partition": partition,
                "offset": offset,
                "message_id": message_id_of(self.name, partition, offset),
                "detail": detail,
            }
            if group:
                fields["group"] = group
            self.tracer(kind, fields)

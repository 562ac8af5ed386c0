"""What a rebalance costs the engine, and how long partitions pause that do not move: figures, without printing.

Time here is the processor's of this process; the engine's own clock is an argument. A partition pauses while messages
that were published to it before the rebalance are not delivered.
"""

from __future__ import annotations

import random
from time import perf_counter

import msgspec

from assay.reference_broker.config import Assignor, GroupConfig, QueueConfig, QueuesConfig, RebalanceProtocol
from assay.reference_broker.queues import Consumer, Delivery, PublishOptions, QueueAddress, QueueEngine
from assay.reference_broker.routing.message import Message
from assay.reference_broker.storage.queue_store import LogQueueStore

_NOW = 1_700_000_000.0


class RebalanceFigures(msgspec.Struct, frozen=True, kw_only=True):
    """Of consumers joining one after the other, the last one of them, and of one leaving."""

    partitions: int
    consumers: int
    protocol: RebalanceProtocol
    join_ms: float
    """The last consumer joins: until the turn in which it is assigned its partitions is over."""
    leave_ms: float
    """It leaves again: likewise."""
    all_join_ms: float
    """All consumers, each in a turn of its own."""
    moved: int
    """Partitions that changed hands, or are about to, with the last consumer."""
    longest_pause_of_unmoved_ms: float
    """Engine time that a message of a partition that does not move waited for, beyond the turn of its publish."""


def measure_rebalance(
    protocol: RebalanceProtocol = RebalanceProtocol.COOPERATIVE,
    *,
    partitions: int = 100,
    consumers: int = 10,
    in_flight: int = 10,
    assignor: Assignor = Assignor.STICKY,
) -> RebalanceFigures:
    """Rebalance a queue in memory, each partition with ``in_flight`` unsettled deliveries."""
    group = GroupConfig(assignor=assignor, protocol=protocol)
    config = QueueConfig(name="q", partitions=partitions, max_in_flight=partitions * (in_flight + 10), group=group)
    engine = QueueEngine(QueuesConfig(configured=(config,)), LogQueueStore(None), random.Random(1), _NOW)
    got: list[Delivery] = []

    def deliver(delivery: Delivery) -> bool:
        got.append(delivery)
        return True

    def join(number: int) -> Consumer:
        return engine.subscribe("q", pattern="", group="g", consumer_id=f"c{number:05}", deliver=deliver, now=_NOW)

    def publish_to_all() -> None:
        address = QueueAddress(queue="q")
        for partition in range(partitions):
            message = Message(topic="$queue/q", payload=b"m")
            engine.publish(address, message, _NOW, options=PublishOptions(partition=partition))

    begun = perf_counter()
    for number in range(consumers - 1):
        join(number)
        engine.dispatch(_NOW)
    all_join_s = perf_counter() - begun
    for _ in range(in_flight):
        publish_to_all()
    engine.dispatch(_NOW)
    before = _owners(engine)
    publish_to_all()
    got.clear()
    begun = perf_counter()
    last = join(consumers)
    engine.dispatch(_NOW)
    join_s = perf_counter() - begun
    delivered = {delivery.partition for delivery in got}
    after = _owners(engine)
    unmoved = {index for index, owner in before.items() if after.get(index) == owner}
    # What does not move is delivered within the very turn of the rebalance, or the pause counts until the next one.
    late = unmoved - delivered
    begun = perf_counter()
    engine.dispatch(_NOW)
    pause_s = perf_counter() - begun if late else 0.0
    begun = perf_counter()
    engine.unsubscribe(last, _NOW)
    engine.dispatch(_NOW)
    leave_s = perf_counter() - begun
    engine.close(_NOW)
    return RebalanceFigures(
        partitions=partitions,
        consumers=consumers,
        protocol=protocol,
        join_ms=join_s * 1000,
        leave_ms=leave_s * 1000,
        all_join_ms=(all_join_s + join_s) * 1000,
        moved=partitions - len(unmoved),
        longest_pause_of_unmoved_ms=pause_s * 1000,
    )


def _owners(engine: QueueEngine) -> dict[int, str]:
    """Partition -> who serves it now; none of those that are on their way."""
    details = engine.groups.details("q", "g")
    return {index: member.consumer for member in details.members for index in member.partitions}

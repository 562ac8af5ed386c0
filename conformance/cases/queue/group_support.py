"""What the cases of groups, assignment and cursors share."""

from __future__ import annotations

import json
from typing import Any

from assay.conformance.case import CaseContext
from assay.conformance.cases.queue.support import deliveries, publish_with
from assay.conformance.connection import Connection
from assay.conformance.wire import Properties, Puback, Publish

ONE_PARTITION: dict[str, Any] = {"queues": {"defaults": {"partitions": 1}}}


def partitions(count: int, **group: Any) -> dict[str, Any]:
    """Settings of a broker whose queues have so many partitions, and groups of this kind."""
    return {"queues": {"defaults": {"partitions": count, "group": group}}}


async def operate(consumer: Connection, queue: str, verb: str, **named: str) -> Puback:
    """Publish to ``$queue/<queue>/$<verb>`` with user properties (``_`` for ``-``); returns the PUBACK."""
    packet_id = consumer.next_packet_id()
    properties = Properties(user_property=tuple((name.replace("_", "-"), value) for name, value in named.items()))
    consumer.send(Publish(topic=f"$queue/{queue}/${verb}", qos=1, packet_id=packet_id, properties=properties))
    return await consumer.expect(Puback, skipping=(Publish,))


async def accepted(ctx: CaseContext, consumer: Connection, queue: str, verb: str, **named: str) -> None:
    """As :func:`operate`; it must be accepted."""
    puback = await operate(consumer, queue, verb, **named)
    ctx.must(puback.reason_code < 0x80, f"{consumer.name}: expected ${verb} to be accepted; seen {puback}")


async def refused(ctx: CaseContext, consumer: Connection, queue: str, verb: str, **named: str) -> None:
    """As :func:`operate`; it must be refused."""
    puback = await operate(consumer, queue, verb, **named)
    ctx.must(puback.reason_code >= 0x80, f"{consumer.name}: expected ${verb} to be refused; seen {puback}")


async def assigned(ctx: CaseContext, consumer: Connection) -> dict[str, Any]:
    """The last assignment that a consumer was told by now; deliveries are not expected beside it."""
    told = await deliveries(consumer, at_least=1)
    if not told or not all(packet.topic.endswith("/$assignment") for packet in told):
        ctx.fail(f"{consumer.name}: expected news of its assignment; seen {told}")
    found = json.loads(told[-1].payload)
    ctx.must(isinstance(found, dict), f"{consumer.name}: expected a JSON object; seen {told[-1].payload!r}")
    return dict(found)


async def fill(publisher: Connection, queue: str, count: int, text: str = "") -> None:
    """One message into each of ``count`` partitions, named like its partition, after ``text``."""
    for partition in range(count):
        await publish_with(publisher, queue, f"{text}{partition}".encode(), partition=str(partition))


async def payloads(consumer: Connection, *, at_least: int = 0) -> list[str]:
    """As :func:`deliveries`; news of the assignment is passed over, and does not count."""
    found: list[Publish] = []
    while True:
        missing = at_least - len(found)
        came = await deliveries(consumer, at_least=max(0, missing))
        found += [packet for packet in came if not packet.topic.endswith("/$assignment")]
        if len(came) < missing or len(found) >= at_least:
            return [packet.payload.decode() for packet in found]

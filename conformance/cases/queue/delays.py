"""What the cases of delayed messages share."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

from assay.conformance.case import CaseContext
from assay.conformance.cases.queue.support import admin, deliveries, publish_with, settle
from assay.conformance.connection import Connection
from assay.conformance.wire import Puback

TICK_S = 0.010
MAX_DELAY_MS = 671_088_640


def delay_id(ctx: CaseContext, puback: Puback) -> str:
    """The id that the PUBACK of a delayed message must carry."""
    ctx.must(puback.reason_code < 0x80, f"publisher: expected the delayed message to be taken; seen {puback}")
    found = dict(puback.properties.user_property).get("delay-id", "")
    ctx.must(bool(found), f"publisher: expected a delay-id in the PUBACK; seen {puback}")
    return found


async def cancel(publisher: Connection, queue: str, delay_id: str) -> Puback:
    return await publish_with(publisher, queue, b"", "$cancel", delay_id=delay_id)


async def expect_settled(ctx: CaseContext, consumer: Connection, queue: str, payload: bytes) -> None:
    """Wait for a message, which a sync may precede, and acknowledge it."""
    await settle(ctx, consumer, queue, "ack", await consumer.expect_publish(payload=payload))


async def settled_payloads(ctx: CaseContext, consumer: Connection, queue: str, *, at_least: int = 0) -> list[bytes]:
    """What has come, acknowledged; ``at_least`` as for :func:`deliveries`."""
    found = await deliveries(consumer, at_least=at_least)
    for delivery in found:
        await settle(ctx, consumer, queue, "ack", delivery)
    return [delivery.payload for delivery in found]


async def time_of_broker(ctx: CaseContext, publisher: Connection, queue: str) -> int:
    """Unix milliseconds by the broker's own clock, from the time that it gives a delayed message."""
    name = delay_id(ctx, await publish_with(publisher, queue, b"clock", delay="1h"))
    listed = await admin(ctx, publisher, f"queue/{queue}/delays")
    (found,) = [one for one in listed["messages"] if one["delay_id"] == name]
    await cancel(publisher, queue, name)
    return int((found["deliver_at"] - 3_600) * 1000)


def rfc3339(seconds: int, *, zone_hours: int) -> str:
    moment = datetime.fromtimestamp(seconds, UTC).astimezone(timezone(timedelta(hours=zone_hours)))
    return moment.isoformat(timespec="seconds")

"""What the cases about administration share: requests that succeed, requests that are refused, figures."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, TypeVar

from assay.conformance.arrival import soon
from assay.conformance.case import CaseContext
from assay.conformance.cases.queue.support import admin
from assay.conformance.connection import Connection
from assay.conformance.wire import Puback, Publish

NOT_AUTHORIZED = 0x87
UNHURRIED_S = 600
"""Delivery timeout of a queue whose consumers hold what they got while many more messages are published."""
T = TypeVar("T")


async def create(ctx: CaseContext, client: Connection, name: str, **settings: Any) -> dict[str, Any]:
    """Create a queue; returns the answer."""
    return await admin(ctx, client, "queue/create", {"name": name, **settings})


async def ask(ctx: CaseContext, client: Connection, queue: str, operation: str, request: object = None) -> Any:
    """An operation on a queue that must succeed; returns the answer, an object."""
    return await admin(ctx, client, f"queue/{queue}/{operation}", request)


async def refused(ctx: CaseContext, client: Connection, topic: str, request: object = None) -> Puback:
    """A request to ``$admin/queue/<topic>`` that must be refused: a PUBACK with a failure code."""
    packet_id = client.next_packet_id()
    payload = b"" if request is None else json.dumps(request).encode()
    client.send(Publish(topic=f"$admin/queue/{topic}", payload=payload, qos=1, packet_id=packet_id))
    puback = await client.expect(Puback, skipping=(Publish,))
    ctx.must(puback.reason_code >= 0x80, f"{client.name}: expected {topic} {request} to be refused; seen {puback}")
    return puback


async def figure(ctx: CaseContext, client: Connection, queue: str, name: str) -> int:
    """One of the figures of a queue."""
    found = (await ask(ctx, client, queue, "stats")).get(name)
    if not isinstance(found, int):
        ctx.fail(f"expected the figure {name} to be a number; seen {found!r}")
    return found


async def figures_become(
    ctx: CaseContext, client: Connection, queue: str, read: Callable[[dict[str, Any]], T], wanted: T
) -> T:
    """What is read from the figures of a queue, asked for until it is what it must be: some change behind a sync."""
    more = soon(ctx)
    while True:
        seen = read(await ask(ctx, client, queue, "stats"))
        if seen == wanted or not await more():
            return seen

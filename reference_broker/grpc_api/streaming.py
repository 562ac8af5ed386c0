"""Consumers that are bound to a stream of the broker's messages, which takes them out when it ends."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING
from uuid import uuid4

from assay.reference_broker.api.asking import may_consume
from assay.reference_broker.grpc_api.guard import Call
from assay.reference_broker.queues import Outcome
from assay.reference_broker.queues.groups.subscribe_options import CursorPosition, SubscribeOptions
from assay.reference_broker.queues.jobs.confirms import ignore

if TYPE_CHECKING:
    from assay.reference_broker.api.consumers import Member, Taken


@contextmanager
def ends_with(call: Call, member: Member) -> Iterator[None]:
    """The member leaves at the end of the block: what it holds is ready again."""
    try:
        yield
    finally:
        call.service.members.remove(member)


async def tail_of(
    call: Call, queues: Sequence[str], cursor: CursorPosition, most: int, wait_s: float | None = None
) -> AsyncGenerator[list[Taken], None]:
    """What queues hold from a place on and what comes, ``most`` at a time; no group is any the wiser.

    ``wait_s``: after so long without any, an empty list.
    """
    service = call.service
    name = f"tail-{uuid4().hex}"
    await may_consume(service, call.caller, queues)
    member = service.members.add(call.caller, name, f"api:{name}", bound=True)
    with ends_with(call, member):
        for queue in queues:
            member.join(call.caller, queue, "", SubscribeOptions(cursor=cursor, transient=True))
        while True:
            taken = await member.poll(most, service.config.max_poll_s if wait_s is None else wait_s, never)
            driver, now = service.turn()
            for each in taken:
                # It is told of once, and the group is gone with the stream.
                driver.node.state.settle_delivery(each.delivery, Outcome.ACCEPT, member, now, ignore)
            if taken or wait_s is not None:
                yield taken
            call.check_goes_on()


async def never() -> None:
    """Whoever goes has its call cancelled."""
    await asyncio.Event().wait()

"""What a queue takes of the disk: nobody needs a segment whose messages are all gone."""

from __future__ import annotations

from typing import Any

from assay.conformance.arrival import soon
from assay.conformance.case import CaseContext, CaseFunction, case
from assay.conformance.cases.damaged_files import Watch
from assay.conformance.cases.queue.administration import create
from assay.conformance.cases.queue.support import consume, new_queue, publish_with

_MANY = 150
_PAYLOAD_BYTES = 2_000
_LEFT_BYTES = 100_000
"""Of 300 kB that were published."""


def _case(slug: str, title: str, **limits: Any) -> CaseFunction:
    async def disk_use(ctx: CaseContext) -> None:
        queue = new_queue(ctx)
        client = await ctx.connect(version=5, name="client")
        await create(ctx, client, queue, partitions=1, **limits)
        await (await consume(ctx, queue, name="group that leaves")).disconnect()
        for number in range(_MANY):
            answer = await publish_with(client, queue, b"%d" % number + b"." * _PAYLOAD_BYTES)
            ctx.must(answer.reason_code < 0x80, f"client: expected the message to be taken; seen {answer}")
        await ctx.advance(60)
        watch = Watch(ctx.data_dir, queue)
        more = soon(ctx)
        while (size := sum(watch.sizes().values())) >= _LEFT_BYTES:
            # What was due has been done; files may go a little later.
            if not await more():
                ctx.fail(f"expected the files of the queue to hold less than {_LEFT_BYTES} bytes; seen {size}")
            await client.barrier()

    disk_use.__doc__ = f"""{title}, also for a group that is away.

    A group has come and gone; 150 messages of 2 kB are published to the queue ({limits}),
    and a minute passes. The files of the queue together hold less than 100 kB then.
    """
    return case(
        f"queue/durability/{slug}",
        clauses=("Q-DURA-22",),
        requires=("queues", "clock", "data_dir"),
        mutant="queue-what-has-left-stays-on-disk",
        near_miss="queue-one-batch-per-message",
        settings={"data_dir": "{dir}", "queues": {"segment_bytes": 8_192}},
        limit_s=10.0,
    )(disk_use)


dropped = _case(
    "dropped-messages-leave-the-disk", "What a limit took leaves the disk", max_depth=5, overflow="drop_oldest"
)
expired = _case("expired-messages-leave-the-disk", "What has expired leaves the disk", message_ttl_s=5)

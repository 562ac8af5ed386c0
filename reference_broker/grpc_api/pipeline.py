"""Messages that come in a stream, taken as many at once as have come meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any


async def in_batches(items: AsyncIterator[Any], most: int) -> AsyncGenerator[list[Any], None]:
    """All that has come while the batch before was dealt with, at least one and at most ``most``, in order.

    So who sends faster than is dealt with is read in larger batches, and then waits. What ``items`` raises is raised
    behind what came before. Close it (:func:`contextlib.aclosing`), so that it reads no more.
    """
    waiting: list[Any] = []
    came, room = asyncio.Event(), asyncio.Event()

    async def read() -> None:
        async for item in items:
            waiting.append(item)
            came.set()
            if len(waiting) >= most:
                room.clear()
                await room.wait()

    reader = asyncio.ensure_future(read())
    reader.add_done_callback(lambda _: came.set())
    try:
        while True:
            if waiting:
                batch = waiting[:]
                waiting.clear()
                room.set()
                yield batch
            elif reader.done():
                reader.result()
                return
            else:
                came.clear()
                await came.wait()
    finally:
        reader.cancel()
        await asyncio.gather(reader, return_exceptions=True)

"""Messages that come in a stream: each begun as it comes, told of in the same order."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, TypeVar

_T = TypeVar("_T")


async def in_order(
    items: AsyncIterator[Any], begin: Callable[[Any], Awaitable[_T]], most: int
) -> AsyncIterator[tuple[Any, _T]]:
    """Each item with what became of it, in order; up to ``most`` are under way at once.

    ``begin`` does what it has to do in order before it first waits. What it raises is raised where its turn has come;
    those behind are not given up, but nobody is told of them.
    """
    under_way: deque[tuple[Any, asyncio.Task[_T]]] = deque()
    ended = object()
    source = aiter(items)
    coming: asyncio.Task[Any] | None = asyncio.ensure_future(anext(source, ended))
    try:
        while coming is not None or under_way:
            waiting: set[asyncio.Task[Any]] = set()
            if coming is not None and len(under_way) < most:
                waiting.add(coming)
            if under_way:
                waiting.add(under_way[0][1])
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            if coming is not None and coming.done() and len(under_way) < most:
                item = coming.result()
                coming = None
                if item is not ended:
                    under_way.append((item, asyncio.ensure_future(begin(item))))
                    coming = asyncio.ensure_future(anext(source, ended))
            while under_way and under_way[0][1].done():
                item, done = under_way.popleft()
                yield item, done.result()
    finally:
        left = [task for _, task in under_way] + ([] if coming is None else [coming])
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)

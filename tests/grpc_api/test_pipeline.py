"""Messages of a stream: in order, bounded, as many at once as have come."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing

import pytest

from assay.reference_broker.grpc_api.pipeline import in_batches


async def _settled() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


def test_what_came_meanwhile_is_taken_at_once_and_bounded() -> None:
    taken: list[int] = []

    async def items() -> AsyncIterator[int]:
        for number in range(8):
            taken.append(number)
            yield number
            await asyncio.sleep(0)

    async def run() -> None:
        batches = in_batches(items(), 3)
        assert await anext(batches) == [0]
        await _settled()
        assert taken == [0, 1, 2, 3]
        assert await anext(batches) == [1, 2, 3]
        await _settled()
        assert await anext(batches) == [4, 5, 6]
        assert [batch async for batch in batches] == [[7]]
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(run())


def test_an_error_is_told_behind_what_came_before() -> None:
    async def items() -> AsyncIterator[int]:
        yield 1
        raise ValueError("gone")

    async def run() -> None:
        batches = in_batches(items(), 3)
        assert await anext(batches) == [1]
        with pytest.raises(ValueError, match="gone"):
            await anext(batches)

    asyncio.run(run())


def test_who_stops_leaves_nothing_behind() -> None:
    async def items() -> AsyncIterator[int]:
        yield 1
        await asyncio.Event().wait()

    async def run() -> None:
        async with aclosing(in_batches(items(), 3)) as batches:
            assert await anext(batches) == [1]
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(run())

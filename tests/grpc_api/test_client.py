"""The client of gRPC, and the page that shows it."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from assay.reference_broker.clients.grpc_client import GrpcQueues, RefusedError
from tests.grpc_api.conftest import Served

PAGE = Path(__file__).resolve().parents[2] / "docs" / "grpc.md"


def test_a_program_publishes_consumes_and_settles(served: Served) -> None:
    async def counted() -> AsyncIterator[bytes]:
        for number in range(3):
            yield b"streamed %d" % number

    async def run() -> list[bytes]:
        got = []
        async with GrpcQueues(served.targets[0], client_id="program") as queues:
            await queues.create_queue("jobs")
            place = await queues.publish("jobs", b"first", key="k", headers={"a": "b"}, partition=0)
            assert (place.message_id, place.offset) == ("jobs:0:0", 0)
            assert await queues.publish_many("jobs", [b"second", b"third"]) == 2
            assert await queues.publish_stream("jobs", counted()) == 3
            async for message in queues.consume("jobs", "workers", max_in_flight=2):
                if not got:
                    assert (message.key, message.headers, message.delivery_count) == ("k", {"a": "b"}, 1)
                if message.payload == b"third" and message.delivery_count == 1:
                    await queues.nack(message)
                    continue
                got.append(message.payload)
                await queues.ack(message)
                if len(got) == 6:
                    break
            with pytest.raises(RefusedError) as refused:
                await queues.ack(message)
            assert refused.value.code == "NOT_PENDING"
            await queues.delete_queue("jobs")
        return got

    got = asyncio.run(run())
    assert sorted(got) == [b"first", b"second", *(b"streamed %d" % each for each in range(3)), b"third"]


def test_who_may_not_is_told_so(guarded: Served) -> None:
    async def run(**who: str) -> str:
        async with GrpcQueues(guarded.targets[0], **who) as queues:  # type: ignore[arg-type]
            with pytest.raises(RefusedError) as refused:
                await queues.create_queue("mine")
            return refused.value.code

    assert asyncio.run(run()) == "UNAUTHENTICATED"
    assert asyncio.run(run(token="assay_read")) == "NOT_ALLOWED"
    assert asyncio.run(run(username="tom", password="hidden")) == "NOT_ALLOWED"


def test_the_page_can_be_copied_and_pasted(served: Served, capsys: pytest.CaptureFixture[str]) -> None:
    (block,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(), flags=re.DOTALL)
    exec(block.replace("127.0.0.1:9000", served.targets[0]), {"__name__": "__main__"})
    assert capsys.readouterr().out == "hello, delivered 1 time\n"

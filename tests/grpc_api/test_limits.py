"""Bounds that need a broker with small ones."""

from __future__ import annotations

from collections.abc import Iterator

import grpc
import pytest

from tests.grpc_api.conftest import Served, serve, when_there_is_room

COUNT = 40
BUFFERED = 4


@pytest.fixture(scope="module")
def small() -> Iterator[Served]:
    with serve(max_metadata_bytes=2_000, max_streams=2, max_calls=3, max_buffered=BUFFERED) as broker:
        made = Served(broker)
        yield made
        made.close()


def test_headers_are_bounded(small: Served) -> None:
    flux = small.fluxmq("Bearer " + "x" * 4_000)
    with pytest.raises(grpc.RpcError) as refused:
        flux.GetQueue(name="q")
    assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED


def test_calls_of_a_connection_are_bounded(small: Served) -> None:
    flux = small.fluxmq()
    flux.CreateQueue(name="one")
    flux.Append(queue_name="one", value=b"x")
    tails = [flux.Tail(queue_name="one", start_from=1) for _ in range(2)]
    assert [next(tail).value for tail in tails] == [b"x", b"x"]
    with pytest.raises(grpc.RpcError) as waited:
        flux.GetQueue(name="one", timeout=0.2)
    assert waited.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    for tail in tails:
        tail.cancel()
    assert flux.GetQueue(name="one").name == "one"


def test_calls_of_a_listener_are_bounded(small: Served) -> None:
    first, second = small.fluxmq(), small.fluxmq()
    first.CreateQueue(name="two")
    first.Append(queue_name="two", value=b"x")
    tails = [each.Tail(queue_name="two", start_from=1) for each in (first, first, second)]
    assert [next(tail).value for tail in tails] == [b"x"] * 3
    with pytest.raises(grpc.RpcError) as refused:
        second.GetQueue(name="two")
    assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    for tail in tails:
        tail.cancel()


def test_a_slow_reader_holds_little(small: Served) -> None:
    """Whatever its library has taken off the wire."""
    flux = small.fluxmq()
    when_there_is_room(flux.CreateQueue, name="three")
    for _ in range(COUNT // 4):
        flux.AppendBatch(queue_name="three", messages=[{"value": bytes(20_000)}] * 4)
    slow = small.fluxmq().ConsumeQueue(queue_name="three", group_id="g", consumer_id="slow")
    seen = [next(slow).offset]
    others = 0
    while others < COUNT:
        others += len(flux.Consume(queue_name="three", group_id="h", max_messages=COUNT).messages)
    assert flux.GetPending(queue_name="three", group_id="g").total_pending == BUFFERED
    while len(seen) < COUNT:
        flux.Ack(queue_name="three", group_id="g", consumer_id="slow", offsets=[seen[-1]])
        seen.append(next(slow).offset)
    assert seen == list(range(COUNT))
    slow.cancel()

"""``fluxmq.queue.v1.QueueService`` of a running broker."""

from __future__ import annotations

from itertools import count

import grpc
import pytest

from assay.reference_broker.grpc_api import schema
from tests.grpc_api.conftest import Served, Service

M = schema.fluxmq()
_names = (f"queue-{number}" for number in count())


@pytest.fixture
def flux(served: Served) -> Service:
    return served.fluxmq()


@pytest.fixture
def queue(flux: Service) -> str:
    """A queue with one partition, as FluxMQ's have."""
    name = next(_names)
    flux.CreateQueue(name=name)
    return name


def _filled(flux: Service, queue: str, *values: bytes) -> None:
    answer = flux.AppendBatch(queue_name=queue, messages=[{"value": value} for value in values])
    assert answer.count == len(values)


def _values(messages: list[object]) -> list[bytes]:
    return [each.value for each in messages]  # type: ignore[attr-defined]


def test_queues_are_created_listed_changed_and_deleted(flux: Service) -> None:
    name = next(_names)
    config = {"retention": {"max_bytes": 5_000_000, "max_age": {"seconds": 60}}, "compression": 3, "partitions": 2}
    made = flux.CreateQueue(name=name, topics=["events/#"], config=config)
    assert (made.name, list(made.topics)) == (name, ["events/#"])
    assert (made.config.retention.max_bytes, made.config.retention.max_age.seconds) == (5_000_000, 60)
    assert (made.config.compression, made.config.partitions) == (3, 2)
    assert flux.GetQueue(name=name) == made
    assert flux.UpdateQueue(name=name, config={"max_message_size": 100}).config.max_message_size == 100
    assert flux.UpdateQueue(name=name, config={"partitions": 3}).config.partitions == 3
    assert name in [each.name for each in flux.ListQueues(prefix=name).queues]
    flux.DeleteQueue(name=name)
    assert not flux.ListQueues(prefix=name).queues


def test_lists_come_in_pages(flux: Service) -> None:
    for letter in "abc":
        flux.CreateQueue(name=f"paged-{letter}")
    first = flux.ListQueues(prefix="paged-", limit=2)
    assert [each.name for each in first.queues] == ["paged-a", "paged-b"]
    second = flux.ListQueues(prefix="paged-", limit=2, page_token=first.next_page_token)
    assert ([each.name for each in second.queues], second.next_page_token) == (["paged-c"], "")


def test_what_is_appended_is_read(flux: Service, queue: str) -> None:
    appended = flux.Append(queue_name=queue, key=b"k", value=b"one", headers={"a": b"b"})
    assert (appended.offset, appended.message_id) == (0, f"{queue}:0:0")
    _filled(flux, queue, b"two", b"three")
    found = flux.Read(queue_name=queue, offset=0)
    assert (found.key, found.value, dict(found.headers)) == (b"k", b"one", {"a": b"b"})
    assert found.timestamp.seconds == appended.timestamp.seconds
    batch = flux.ReadBatch(queue_name=queue, start_offset=1, limit=1)
    assert (_values(batch.messages), batch.next_offset, batch.end_of_queue) == ([b"two"], 2, False)
    rest = flux.ReadBatch(queue_name=queue, start_offset=2, max_bytes=1)
    assert (_values(rest.messages), rest.next_offset, rest.end_of_queue) == ([b"three"], 3, True)
    info = flux.GetQueueInfo(queue_name=queue)
    assert (info.head_offset, info.tail_offset, info.message_count) == (0, 3, 3)


def test_a_stream_of_appends_is_answered_once(flux: Service, queue: str) -> None:
    requests = (M.AppendRequest(queue_name=queue, value=b"%d" % number) for number in range(300))
    answer = flux.AppendQueue(requests)
    assert (answer.first_offset, answer.last_offset, answer.count) == (0, 299, 300)
    assert _values(flux.ReadBatch(queue_name=queue, limit=1_000).messages) == [b"%d" % each for each in range(300)]


def test_places_are_found_by_offset_and_time(flux: Service, queue: str) -> None:
    _filled(flux, queue, b"one", b"two")
    found = flux.SeekToOffset(queue_name=queue, offset=1)
    assert (found.offset, found.exact_match) == (1, True)
    assert flux.SeekToOffset(queue_name=queue, offset=7).exact_match is False
    at = flux.SeekToTimestamp(queue_name=queue, timestamp={"seconds": 1})
    assert (at.offset, at.exact_match) == (0, False)


def test_tail_follows_from_any_place(flux: Service, queue: str) -> None:
    _filled(flux, queue, b"one", b"two")
    tails = [flux.Tail(queue_name=queue, start_from=1), flux.Tail(queue_name=queue, start_from=3, start_offset=1)]
    assert [next(tail).value for tail in tails] == [b"one", b"two"]
    assert next(tails[0]).value == b"two"
    _filled(flux, queue, b"three")
    assert [next(tail).value for tail in tails] == [b"three", b"three"]
    for tail in tails:
        tail.cancel()


def test_a_group_consumes_and_settles(flux: Service, queue: str) -> None:
    _filled(flux, queue, b"one", b"two", b"three")
    group = {"queue_name": queue, "group_id": "g", "consumer_id": "c"}
    got = flux.Consume(**group, max_messages=10).messages
    assert _values(got) == [b"one", b"two", b"three"]
    assert (got[0].delivery_info.group_id, got[0].delivery_info.consumer_id) == ("g", "c")
    assert flux.Ack(**group, offsets=[0]).committed.committed == 1
    flux.Nack(**group, offsets=[1])
    again = flux.Consume(**group, max_messages=10, wait_time={"seconds": 10}).messages
    assert [(each.offset, each.delivery_info.delivery_count) for each in again] == [(1, 2)]
    assert flux.Ack(**group, receipts=[again[0].receipt, got[2].receipt]).acked_count == 2
    with pytest.raises(grpc.RpcError) as refused:
        flux.Ack(**group, offsets=[1])
    assert refused.value.code() is grpc.StatusCode.NOT_FOUND


def test_members_join_beat_and_leave(flux: Service, queue: str) -> None:
    member = {"queue_name": queue, "group_id": "g", "consumer_id": "one"}
    joined = flux.JoinGroup(**member)
    assert [each.consumer_id for each in joined.consumers] == ["one"]
    assert flux.Heartbeat(**member, generation_id=joined.generation_id).should_rejoin is False
    flux.JoinGroup(queue_name=queue, group_id="g", consumer_id="two")
    beat = flux.Heartbeat(**member, generation_id=joined.generation_id)
    assert beat.should_rejoin is True
    assert flux.Heartbeat(**member, generation_id=beat.generation_id).should_rejoin is False
    flux.LeaveGroup(**member)
    with pytest.raises(grpc.RpcError) as refused:
        flux.Heartbeat(**member)
    assert refused.value.code() is grpc.StatusCode.NOT_FOUND


def test_groups_are_created_listed_and_deleted(flux: Service, queue: str) -> None:
    _filled(flux, queue, b"one")
    made = flux.CreateConsumerGroup(queue_name=queue, group_id="late", config={"initial_position": 2})
    assert (made.group_id, made.cursor.cursor) == ("late", 1)
    flux.CreateConsumerGroup(queue_name=queue, group_id="eu", pattern="eu/#")
    found = flux.ListConsumerGroups(queue_name=queue).groups
    assert [(each.group_id, each.pattern) for each in found] == [("eu@eu/#", "eu/#"), ("late", "")]
    assert flux.GetConsumerGroup(queue_name=queue, group_id="late").cursor.lag == 0
    flux.DeleteConsumerGroup(queue_name=queue, group_id="late")
    assert len(flux.ListConsumerGroups(queue_name=queue).groups) == 1


def test_pending_is_listed_and_claimed(flux: Service, queue: str) -> None:
    _filled(flux, queue, b"one", b"two")
    group = {"queue_name": queue, "group_id": "g"}
    flux.Consume(**group, consumer_id="slow", max_messages=2)
    pending = flux.GetPending(**group, limit=1)
    assert [(each.offset, each.consumer_id) for each in pending.entries] == [(0, "slow")]
    rest = flux.GetPending(**group, page_token=pending.next_page_token)
    assert ([each.offset for each in rest.entries], rest.total_pending) == ([1], 2)
    assert not flux.GetPending(**group, consumer_id="quick").entries
    claimed = flux.Claim(**group, consumer_id="quick", limit=1).messages
    assert [(each.offset, each.delivery_info.delivery_count) for each in claimed] == [(0, 2)]
    assert flux.Ack(**group, consumer_id="quick", offsets=[0]).acked_count == 1


def test_a_stream_gives_back_what_it_held(flux: Service, queue: str) -> None:
    _filled(flux, queue, b"one", b"two", b"three")
    group = {"queue_name": queue, "group_id": "g"}
    stream = flux.ConsumeQueue(**group, consumer_id="first", max_in_flight=2)
    assert [next(stream).value for _ in range(2)] == [b"one", b"two"]
    flux.Ack(**group, consumer_id="first", offsets=[0])
    assert next(stream).value == b"three"
    stream.cancel()
    second = flux.ConsumeQueue(**group, consumer_id="second")
    assert sorted(next(second).value for _ in range(2)) == [b"three", b"two"]
    second.cancel()


def test_of_several_partitions_one_is_named(flux: Service) -> None:
    name = next(_names)
    flux.CreateQueue(name=name, config={"partitions": 2})
    assert flux.Append(queue_name=name, value=b"x", partition=1).partition == 1
    assert flux.Read(queue_name=name, offset=0, partition=1).value == b"x"
    for call in (flux.Read, flux.SeekToOffset):
        with pytest.raises(grpc.RpcError) as refused:
            call(queue_name=name, offset=0)
        assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT


def test_purge(flux: Service, queue: str) -> None:
    _filled(flux, queue, b"one", b"two")
    assert flux.Purge(queue_name=queue).messages_deleted == 2
    assert flux.GetStats(queue_name=queue).message_count == 0


@pytest.mark.parametrize(
    ("method", "fields", "code"),
    [
        ("GetQueue", {"name": "nowhere"}, grpc.StatusCode.NOT_FOUND),
        ("GetQueue", {"name": "#"}, grpc.StatusCode.INVALID_ARGUMENT),
        ("CreateQueue", {"name": "o", "config": {"replication": {"enabled": True}}}, grpc.StatusCode.UNIMPLEMENTED),
        ("Truncate", {"queue_name": "orders", "min_offset": 1}, grpc.StatusCode.UNIMPLEMENTED),
        ("Append", {"queue_name": "orders", "headers": {"a": b"\xff"}}, grpc.StatusCode.INVALID_ARGUMENT),
        ("AppendBatch", {"queue_name": "orders"}, grpc.StatusCode.INVALID_ARGUMENT),
        ("Consume", {"queue_name": "orders"}, grpc.StatusCode.INVALID_ARGUMENT),
        ("JoinGroup", {"queue_name": "q", "group_id": "g", "session_timeout": {}}, grpc.StatusCode.UNIMPLEMENTED),
        ("Read", {"queue_name": "unknown"}, grpc.StatusCode.NOT_FOUND),
    ],
)  # fmt: skip
def test_what_is_refused(flux: Service, method: str, fields: dict[str, object], code: grpc.StatusCode) -> None:
    with pytest.raises(grpc.RpcError) as refused:
        getattr(flux, method)(**fields)
    assert refused.value.code() is code, refused.value.details()


def test_reading_on_past_what_is_there(flux: Service, queue: str) -> None:
    with pytest.raises(grpc.RpcError) as refused:
        flux.Read(queue_name=queue, offset=5)
    assert refused.value.code() is grpc.StatusCode.OUT_OF_RANGE

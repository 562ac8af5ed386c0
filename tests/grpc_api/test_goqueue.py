"""GoQueue's six services of a running broker."""

from __future__ import annotations

from itertools import count
from typing import Any

import grpc
import pytest
from google.rpc import status_pb2

from assay.reference_broker.api.problems import PROBLEMS, RequestError
from assay.reference_broker.grpc_api import schema
from assay.reference_broker.grpc_api.errors import DETAILS, goqueue_error
from tests.grpc_api.conftest import Served

M = schema.goqueue()
_names = (f"topic-{number}" for number in count())


@pytest.fixture
def topic(served: Served) -> str:
    name = next(_names)
    served.fluxmq().CreateQueue(name=name)
    return name


def _publish(served: Served, topic: str, *values: bytes, **fields: Any) -> None:
    service = served.goqueue("PublishService")
    for value in values:
        service.Publish(topic=topic, value=value, **fields)


def _error(refused: grpc.RpcError) -> Any:
    status = status_pb2.Status.FromString(dict(refused.trailing_metadata())[DETAILS])
    (held,) = [each for each in status.details if each.type_url.endswith("goqueue.v1.Error")]
    return M.Error.FromString(held.value)


def _messages(stream: Any, most: int) -> list[Any]:
    """So many of what comes, whatever is told between."""
    found: list[Any] = []
    while len(found) < most:
        found += next(stream).messages.messages
    return found


def test_every_problem_is_an_error_of_goqueues() -> None:
    for code in PROBLEMS:
        told = goqueue_error(RequestError(code, "so it is"))
        assert (told.message, told.details["code"]) == ("so it is", code.value)
        assert told.code in schema.pool().FindEnumTypeByName("goqueue.v1.ErrorCode").values_by_number


def test_what_is_published_says_where_it_is(served: Served, topic: str) -> None:
    service = served.goqueue("PublishService")
    first = service.Publish(topic=topic, key=b"k", value=b"one", headers={"a": "b"}, priority=1)
    assert (first.topic, first.partition, first.offset) == (topic, 0, 0)
    delayed = service.Publish(topic=topic, value=b"later", delay={"seconds": 3_600})
    again = service.Publish(topic=topic, value=b"after it", delay={"seconds": 3_600})
    assert (delayed.partition, again.partition) == (-1, -1)
    assert again.offset == delayed.offset + 1, "of a queue in memory they begin anew with each start, and never at 0"
    with pytest.raises(grpc.RpcError) as refused:
        service.Publish(topic=topic, value=b"x", partition=7)
    assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert _error(refused.value).code == 301
    with pytest.raises(grpc.RpcError):
        service.Publish(topic=topic, value=b"x", priority=9)


def test_a_stream_of_publishes_goes_on_past_one_that_is_refused(served: Served, topic: str) -> None:
    asked = [
        M.PublishStreamRequest(correlation_id=str(number), topic=topic, value=b"x", priority=9 if number == 1 else 2)
        for number in range(4)
    ]
    told = list(served.goqueue("PublishService").PublishStream(iter(asked)))
    assert [each.correlation_id for each in told] == ["0", "1", "2", "3"]
    assert [(each.offset, each.error.code) for each in told] == [(0, 0), (0, 301), (1, 0), (2, 0)]


def test_consume_reads_for_no_group(served: Served, topic: str) -> None:
    _publish(served, topic, b"one", b"two")
    service = served.goqueue("ConsumeService")
    stream = service.Consume(topic=topic, start_position=2, start_offset=1)
    batch = next(stream).messages
    assert ([each.value for each in batch.messages], batch.high_watermark) == ([b"two"], 1)
    _publish(served, topic, b"three", key=b"k", headers={"a": "b"})
    (third,) = _messages(stream, 1)
    assert (third.value, third.key, dict(third.headers), third.receipt_handle) == (b"three", b"k", {"a": "b"}, "")
    stream.cancel()
    quiet = service.Consume(topic=topic, start_position=1, max_wait={"nanos": 100_000_000})
    assert next(quiet).WhichOneof("payload") == "heartbeat"
    quiet.cancel()
    with pytest.raises(grpc.RpcError) as refused:
        next(service.Consume(topic=topic, partitions=[4]))
    assert _error(refused.value).code == 103


def test_subscribers_are_told_what_they_have(served: Served) -> None:
    topic = next(_names)
    served.fluxmq().CreateQueue(name=topic, config={"partitions": 2})
    service = served.goqueue("ConsumeService")
    first = service.Subscribe(topics=[topic], group_id="g", consumer_id="one")
    had = next(first).assignment
    assert ([each.partition for each in had.partitions], had.member_id.startswith("one-")) == ([0, 1], True)
    second = service.Subscribe(topics=[topic], group_id="g", consumer_id="two")
    got = next(second).assignment
    lost = next(first).rebalance
    assert (lost.type, [each.partition for each in lost.partitions]) == (1, [each.partition for each in got.partitions])
    assert len(next(first).assignment.partitions) == 1
    second.cancel()
    assert next(first).rebalance.type == 2
    assert len(next(first).assignment.partitions) == 2
    first.cancel()


def test_deliveries_are_settled(served: Served, topic: str) -> None:
    _publish(served, topic, *(b"%d" % number for number in range(6)))
    stream = served.goqueue("ConsumeService").Subscribe(topics=[topic], group_id="g", consumer_id="c")
    got = _messages(stream, 6)
    acks = served.goqueue("AckService")
    assert acks.Ack(group_id="g", receipt_handle=got[0].receipt_handle).success
    assert acks.Ack(group_id="g", topic=topic, partition=0, offset=1).success
    nacked = acks.Nack(receipt_handle=got[2].receipt_handle, visibility_timeout={"seconds": 3_600})
    assert nacked.next_visible_at.seconds > got[2].timestamp.seconds + 3_000
    rejected = acks.Reject(receipt_handle=got[3].receipt_handle, reason="no")
    assert rejected.dlq_topic == f"{topic}.dlq"
    extended = acks.ExtendVisibility(receipt_handle=got[4].receipt_handle, visibility_timeout={"seconds": 600})
    assert extended.new_deadline.seconds > got[4].timestamp.seconds + 500
    both = acks.BatchAck(
        group_id="g",
        receipt_handles=[got[4].receipt_handle, got[0].receipt_handle, "nonsense"],
        offsets=[{"topic": topic, "offset": 5}],
    )
    assert both.success_count == 2
    assert [each.error.code for each in both.failures] == [304, 302]
    letters = served.goqueue("ConsumeService").Consume(topic=f"{topic}.dlq")
    assert _messages(letters, 1)[0].value == b"3"
    letters.cancel()
    stream.cancel()


@pytest.mark.parametrize(
    ("fields", "code", "status"),
    [
        ({"receipt_handle": "nonsense"}, 302, grpc.StatusCode.INVALID_ARGUMENT),
        ({"receipt_handle": "nowhere:0:0:1:0123456789abcdef"}, 100, grpc.StatusCode.NOT_FOUND),
        ({"group_id": "g", "topic": "nowhere"}, 100, grpc.StatusCode.NOT_FOUND),
    ],
)
def test_settlements_that_are_refused(served: Served, fields: Any, code: int, status: grpc.StatusCode) -> None:
    with pytest.raises(grpc.RpcError) as refused:
        served.goqueue("AckService").Ack(**fields)
    assert (refused.value.code(), _error(refused.value).code) == (status, code)


def test_offsets_are_committed_fetched_and_reset(served: Served, topic: str) -> None:
    _publish(served, topic, b"one", b"two", b"three")
    stream = served.goqueue("ConsumeService").Subscribe(topics=[topic], group_id="o", consumer_id="c")
    member = next(stream).assignment
    _messages(stream, 3)
    offsets = served.goqueue("OffsetService")
    commit = {"group_id": "o", "member_id": member.member_id, "generation": member.generation}
    done = offsets.CommitOffsets(**commit, offsets=[{"topic": topic, "offset": 2}, {"topic": "other"}])
    assert [(each.success, bool(each.error.message)) for each in done.results] == [(True, False), (False, True)]
    found = offsets.FetchOffsets(group_id="o", partitions=[{"topic": topic}, {"topic": topic, "partition": 9}])
    assert [(each.offset, each.error.code) for each in found.offsets] == [(2, 0), (-1, 103)]
    with pytest.raises(grpc.RpcError) as refused:
        offsets.CommitOffsets(**{**commit, "generation": 77}, offsets=[{"topic": topic, "offset": 3}])
    assert (refused.value.code(), _error(refused.value).code) == (grpc.StatusCode.ABORTED, 203)
    stream.cancel()
    back = offsets.ResetOffsets(group_id="o", strategy=1)
    assert [(each.topic, each.old_offset, each.new_offset) for each in back.results] == [(topic, 2, 0)]
    there = offsets.ResetOffsets(group_id="o", strategy=4, offsets=[{"topic": topic, "offset": 1}, {"topic": "x"}])
    assert [(each.new_offset, each.error.code) for each in there.results] == [(1, 0), (0, 100)]
    with pytest.raises(grpc.RpcError) as refused:
        offsets.FetchOffsets(group_id="nobody")
    assert _error(refused.value).code == 200


def test_a_transaction_shows_whole_or_not_at_all(served: Served, topic: str) -> None:
    service, publisher = served.goqueue("TransactionService"), served.goqueue("PublishService")
    made = service.InitProducer(transactional_id=f"tx-{topic}")
    who = {"transactional_id": f"tx-{topic}", "producer_id": made.producer_id, "epoch": made.epoch}
    numbered = {"producer_id": made.producer_id, "producer_epoch": made.epoch}
    begun = service.BeginTransaction(**who)
    service.AddPartition(**who, topic=topic, partition=0)
    shown = service.DescribeTransaction(transaction_id=begun.transaction_id).transaction
    assert (shown.producer_id, [each.topic for each in shown.partitions]) == (made.producer_id, [topic])
    assert begun.transaction_id in [each.transaction_id for each in service.ListTransactions().transactions]
    publisher.Publish(topic=topic, value=b"lost", **numbered)
    service.AbortTransaction(**who)
    service.BeginTransaction(**who)
    publisher.Publish(topic=topic, value=b"kept", **numbered)
    service.CommitTransaction(**who)
    stream = served.goqueue("ConsumeService").Consume(topic=topic)
    assert _messages(stream, 1)[0].value == b"kept"
    stream.cancel()
    again = service.InitProducer(transactional_id=f"tx-{topic}")
    assert again.epoch > made.epoch
    for call, fields, code in (
        (service.BeginTransaction, who, 402),
        (service.CommitTransaction, {**who, "epoch": again.epoch}, 403),
        (service.DescribeTransaction, {"transaction_id": "none"}, 400),
    ):
        with pytest.raises(grpc.RpcError) as refused:
            call(**fields)
        assert _error(refused.value).code == code


def test_health(served: Served, guarded: Served) -> None:
    health = guarded.goqueue("HealthService")
    statuses = [health.Check(service=name).status for name in ("", "goqueue.v1.AckService", "nobody")]
    assert statuses == [1, 1, 3]
    watch = served.goqueue("HealthService").Watch()
    assert next(watch).status == 1
    watch.cancel()
    with pytest.raises(grpc.RpcError) as refused:
        next(health.Watch())
    assert refused.value.code() is grpc.StatusCode.UNAUTHENTICATED

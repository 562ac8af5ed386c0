"""``goqueue.v1``: OffsetService, TransactionService and HealthService. Each function serves the method of its name."""

from __future__ import annotations

import asyncio
from typing import Any, Final

from assay.reference_broker.api import producers
from assay.reference_broker.api.groups import commit, in_queues
from assay.reference_broker.api.problems import Code, RequestError
from assay.reference_broker.api.topics import queue_in, topic_out
from assay.reference_broker.config import Scope
from assay.reference_broker.grpc_api import schema
from assay.reference_broker.grpc_api.errors import goqueue_error
from assay.reference_broker.grpc_api.guard import Call, served
from assay.reference_broker.grpc_api.shapes import moment, seconds_of
from assay.reference_broker.queues import QueueError, QueueErrorCode
from assay.reference_broker.queues.groups.subscribe_options import EARLIEST, LATEST, CursorKind, CursorPosition
from assay.reference_broker.queues.transactions.transaction import TransactionInfo

M: Final = schema.goqueue()
_SERVING: Final = 1
_NOT_SERVING: Final = 2
_UNKNOWN: Final = 3


# -- offsets -----------------------------------------------------------------------------------------------------------


@served(Scope.READ)
async def commit_offsets(call: Call, asked: Any) -> Any:
    """What became of each; a member commits for its own partitions, an administrator, without a name, for any."""
    _check_count(call, len(asked.offsets))
    member = None
    if asked.member_id:
        member = call.service.members.find(call.caller, asked.group_id, asked.member_id)
        member.heartbeat(asked.generation or None)
    places: list[tuple[str, int, int]] = []
    refused: dict[int, QueueError] = {}
    for index, each in enumerate(asked.offsets):
        queue = queue_in(call, each.topic)
        if member is None:
            places.append((call.caller.administered(queue, "groups"), each.partition, each.offset))
        elif queue in member.consumers:
            places.append((member.consumers[queue].queue, each.partition, each.offset))
        else:
            text = f"{asked.member_id[:80]!r} has not joined for {each.topic[:80]!r}"
            refused[index] = QueueError(QueueErrorCode.NOT_ALLOWED, text)
    decided = iter(await commit(call, asked.group_id, places, member))
    results = []
    for index, each in enumerate(asked.offsets):
        error = refused[index] if index in refused else next(decided)
        told = {"topic": each.topic, "partition": each.partition, "success": error is None}
        results.append(told if error is None else {**told, "error": goqueue_error(error)})
    return M.CommitOffsetsResponse(results=results)


@served(Scope.READ)
async def fetch_offsets(call: Call, asked: Any) -> Any:
    found = {
        (topic_out(call.caller.told(queue)), each.partition): each.committed
        for queue, details in in_queues(call, asked.group_id).items()
        for each in details.partitions
    }
    wanted = [(each.topic, each.partition) for each in asked.partitions] or sorted(found)
    missing = QueueError(QueueErrorCode.BAD_ADDRESS, "the group has no such partition")
    return M.FetchOffsetsResponse(
        offsets=[
            {"topic": topic, "partition": partition, "offset": found[topic, partition]}
            if (topic, partition) in found
            else {"topic": topic, "partition": partition, "offset": -1, "error": goqueue_error(missing)}
            for topic, partition in wanted
        ]
    )


@served(Scope.ADMIN)
async def reset_offsets(call: Call, asked: Any) -> Any:
    _check_count(call, max(1, len(asked.partitions), len(asked.offsets)))
    groups = call.service.engine.groups
    by_topic = {topic_out(queue): queue for queue in in_queues(call, asked.group_id)}
    results = []
    for topic, partition, position in _resets(call, asked, by_topic):
        told: dict[str, Any] = {"topic": topic, "partition": partition}
        try:
            queue = call.caller.administered(queue_in(call, topic), "groups")
            told["old_offset"] = dict(enumerate(groups.committed(queue, asked.group_id))).get(partition, -1)
            told["new_offset"] = (await call.service.reset(queue, asked.group_id, position, partition))[partition]
        except QueueError as error:
            told["error"] = goqueue_error(call.caller.refusal(error))
        results.append(told)
    return M.ResetOffsetsResponse(results=results)


def _resets(call: Call, asked: Any, by_topic: dict[str, str]) -> list[tuple[str, int, CursorPosition]]:
    """Topic, partition and place of each. Raises :class:`RequestError`."""
    if asked.strategy == 4:
        return [
            (each.topic, each.partition, CursorPosition(kind=CursorKind.OFFSET, value=max(0, each.offset)))
            for each in asked.offsets
        ]
    positions = {1: EARLIEST, 2: LATEST}
    if asked.strategy == 3:
        positions[3] = CursorPosition(kind=CursorKind.TIME, value=int(seconds_of(asked.timestamp) * 1_000))
    if asked.strategy not in positions:
        raise RequestError(Code.BAD_REQUEST, "say where to: the strategy is earliest, latest, timestamp or offset")
    wanted = [(each.topic, each.partition) for each in asked.partitions]
    if not wanted:
        counts = {topic: call.service.engine.groups.partition_count(queue) for topic, queue in by_topic.items()}
        wanted = [(topic, partition) for topic, count in counts.items() for partition in range(count)]
    return [(topic, partition, positions[asked.strategy]) for topic, partition in wanted]


def _check_count(call: Call, count: int) -> None:
    most = call.service.config.max_batch
    if not 1 <= count <= most:
        raise RequestError(Code.BAD_REQUEST, f"a request names 1 to {most} partitions")


# -- transactions ------------------------------------------------------------------------------------------------------


@served(Scope.WRITE)
async def init_producer(call: Call, asked: Any) -> Any:
    if asked.transaction_timeout_ms < 0:
        raise RequestError(Code.BAD_REQUEST, "transaction_timeout_ms is not negative")
    identity = await producers.init_producer(call, asked.transactional_id, asked.transaction_timeout_ms)
    return M.InitProducerResponse(producer_id=identity.producer_id, epoch=identity.epoch)


@served(Scope.WRITE)
async def begin_transaction(call: Call, asked: Any) -> Any:
    name = await producers.begin(call, asked.producer_id, asked.epoch, asked.transactional_id)
    return M.BeginTransactionResponse(transaction_id=name)


@served(Scope.WRITE)
async def add_partition(call: Call, asked: Any) -> Any:
    producers.add_partition(call, asked.producer_id, asked.epoch, asked.transactional_id, asked.topic, asked.partition)
    return M.AddPartitionResponse()


@served(Scope.WRITE)
async def commit_transaction(call: Call, asked: Any) -> Any:
    await producers.end(call, asked.producer_id, asked.epoch, asked.transactional_id, commits=True)
    return M.CommitTransactionResponse()


@served(Scope.WRITE)
async def abort_transaction(call: Call, asked: Any) -> Any:
    await producers.end(call, asked.producer_id, asked.epoch, asked.transactional_id, commits=False)
    return M.AbortTransactionResponse()


@served(Scope.WRITE)
async def list_transactions(call: Call, _asked: Any) -> Any:
    return M.ListTransactionsResponse(transactions=list(map(_info, producers.visible(call))))


@served(Scope.WRITE)
async def describe_transaction(call: Call, asked: Any) -> Any:
    found = [each for each in producers.visible(call) if each.transaction_id == asked.transaction_id]
    if not found:
        text = f"there is no open transaction {asked.transaction_id[:80]!r}"
        raise QueueError(QueueErrorCode.UNKNOWN_TRANSACTION, text)
    return M.DescribeTransactionResponse(transaction=_info(found[0]))


def _info(found: TransactionInfo) -> dict[str, Any]:
    topics: dict[str, list[int]] = {}
    for place in found.partitions:
        queue, _, partition = place.rpartition(":")
        topics.setdefault(topic_out(queue), []).append(int(partition))
    return {
        "transaction_id": found.transaction_id,
        "transactional_id": found.transactional_id,
        "producer_id": found.producer_id,
        "epoch": found.producer_epoch,
        "state": found.state,
        "start_time": moment(found.began_at),
        "timeout_ms": round((found.ends_by - found.began_at) * 1_000),
        "partitions": [{"topic": topic, "partitions": sorted(each)} for topic, each in sorted(topics.items())],
    }


# -- health ------------------------------------------------------------------------------------------------------------


def _status(call: Call, asked: Any) -> Any:
    known = ["", *(each.full_name for each in schema.services())]
    status = (_NOT_SERVING if call.service.stopping else _SERVING) if asked.service in known else _UNKNOWN
    return M.HealthCheckResponse(status=status)


@served(None)
async def check(call: Call, asked: Any) -> Any:
    return _status(call, asked)


@served(Scope.READ)
async def watch(call: Call, asked: Any) -> None:
    stopped = asyncio.Event()
    with call.service.until_stopped(stopped.set):
        await call.write(_status(call, asked))
        if not call.service.stopping:
            with call.aside():
                await stopped.wait()
            await call.write(_status(call, asked))

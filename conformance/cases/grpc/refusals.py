"""What is refused by every method of both interfaces, and by which status and number; quotas, and names of tenants."""

from __future__ import annotations

import base64
from typing import Any

from assay.conformance.cases.grpc.goqueue import ACK, CONSUME, HASH, OFFSETS, PUBLISH, TRANSACTIONS, number_of
from assay.conformance.grpc.context import FLUX, GO, GrpcContext, grpc_case
from assay.conformance.wire.grpc import FLUXMQ

_GWEN = (("authorization", f"Basic {base64.b64encode(b'gwen:guest').decode()}"),)
_TENANT: dict[str, Any] = {
    "listeners": [{"port": 0}, {"port": 0, "protocols": ["grpc"]}],
    "auth": {"anonymous": True, "users": [{"username": "gwen", "password_hash": HASH}]},
    "queues": {"tenants": [{"name": "acme", "users": ["gwen"], "quotas": {"max_message_bytes": 500}}]},
}


@grpc_case(
    "queues/unknown-by-every-method",
    FLUX,
    GO,
    clauses=("G-QUEUE-2", "G-ERR-1", "G-ERR-2"),
    mutant="grpc-unknown-is-internal",
    kills=("grpc-unknown-has-no-number",),
)
async def unknown(ctx: GrpcContext) -> None:
    """What is asked of a queue, group, member, producer or transaction that there is not is NOT_FOUND, with a number.

    A producer that never began may as well be no longer that one. Who consumes may make a queue by use.
    """
    queue, none = await ctx.queue(), ctx.name("none")
    of_none: dict[str, Any] = {"queue_name": none}
    of_group: dict[str, Any] = {"queue_name": queue, "group_id": "none"}
    for method, fields in (
        ("SeekToOffset", of_none),
        ("SeekToTimestamp", {**of_none, "timestamp": {"seconds": 1}}),
        ("DeleteConsumerGroup", {**of_none, "group_id": "g"}),
        ("Ack", {**of_none, "group_id": "g", "consumer_id": "c", "offsets": [0]}),
        ("Nack", {**of_none, "group_id": "g", "consumer_id": "c", "offsets": [0]}),
        ("GetConsumerGroup", of_group),
        ("DeleteConsumerGroup", of_group),
        ("GetPending", of_group),
        ("Heartbeat", {**of_group, "consumer_id": "c"}),
        ("Ack", {**of_group, "consumer_id": "c", "offsets": [0]}),
        ("Nack", {**of_group, "consumer_id": "c", "offsets": [0]}),
    ):
        ctx.refused(await ctx.call(f"{FLUXMQ}/{method}", **fields), "NOT_FOUND")
    who: dict[str, Any] = {"producer_id": 987654321, "epoch": 0}
    place = {"topic": queue, "partition": 0}
    for path, fields, numbers in (
        (f"{OFFSETS}/FetchOffsets", {"group_id": "none"}, (200,)),
        (f"{OFFSETS}/CommitOffsets", {"group_id": "g", "member_id": "none", "offsets": [place]}, (200, 201)),
        (f"{ACK}/Ack", {"group_id": "g", **place, "offset": 0}, (200, 302, 303, 304)),
        (f"{TRANSACTIONS}/BeginTransaction", who, (400, 402)),
        (f"{TRANSACTIONS}/AddPartition", {**who, **place}, (400, 402, 403)),
        (f"{TRANSACTIONS}/CommitTransaction", who, (400, 402, 403)),
        (f"{TRANSACTIONS}/AbortTransaction", who, (400, 402, 403)),
        (f"{TRANSACTIONS}/DescribeTransaction", {"transaction_id": "none"}, (400,)),
    ):
        refused = await ctx.call(path, **fields)
        ctx.refused(refused, "NOT_FOUND", "FAILED_PRECONDITION", "ABORTED")
        ctx.must(number_of(refused) in numbers, f"expected {numbers}; seen {number_of(refused)} of {refused}")
    reset = await ctx.call(f"{OFFSETS}/ResetOffsets", group_id="none", strategy=1, partitions=[place])
    ctx.refused(reset, "NOT_FOUND", "OK")
    if reset.code == "OK":
        ctx.must(bool(reset.value.results[0].error.code), f"expected an error of the partition; seen {reset}")
    else:
        ctx.same("the number", number_of(reset), 200)
    consume = await ctx.stream(f"{CONSUME}/Consume", topic=none).end()
    ctx.refused(consume, "NOT_FOUND")
    ctx.same("the number", number_of(consume), 100)


@grpc_case(
    "queues/wrong-requests-are-told",
    FLUX,
    GO,
    clauses=("G-ERR-3",),
    mutant="grpc-wrong-requests-are-internal",
)
async def wrong(ctx: GrpcContext) -> None:
    """What is no request of a method is INVALID_ARGUMENT, or UNIMPLEMENTED where it is a setting that is not there.

    Without a group, with times below zero, strategies, places and partitions that there are not.
    """
    queue, there = await ctx.queue(2), ctx.name("g")
    await ctx.done(f"{FLUXMQ}/CreateConsumerGroup", queue_name=queue, group_id=there)
    of: dict[str, Any] = {"queue_name": queue, "group_id": "g"}
    for path, fields in (
        (f"{FLUXMQ}/Consume", {"queue_name": queue}),
        (f"{FLUXMQ}/Consume", {**of, "wait_time": {"seconds": -1}}),
        (f"{FLUXMQ}/Consume", {**of, "max_messages": 10**6}),
        (f"{FLUXMQ}/CreateConsumerGroup", {**of, "config": {"initial_position": 9}}),
        (f"{FLUXMQ}/Read", {"queue_name": queue, "offset": 0}),
        (f"{FLUXMQ}/Read", {"queue_name": queue, "offset": 0, "partition": 7}),
        (f"{FLUXMQ}/Ack", {**of, "offsets": [0], "receipts": ["x"]}),
        (f"{FLUXMQ}/Nack", {**of, "receipts": ["garbage"]}),
        (f"{PUBLISH}/Publish", {"topic": queue, "value": b"x", "delay": {"seconds": 1}, "producer_id": -1}),
        (f"{OFFSETS}/ResetOffsets", {"group_id": there, "strategy": 0}),
        (f"{OFFSETS}/CommitOffsets", {"group_id": "g"}),
        (f"{ACK}/BatchAck", {"group_id": "g"}),
        (f"{TRANSACTIONS}/InitProducer", {"transaction_timeout_ms": -1}),
    ):
        ctx.refused(await ctx.call(path, **fields), "INVALID_ARGUMENT", "UNIMPLEMENTED")
    for path, fields in (
        (f"{CONSUME}/Subscribe", {"topics": [queue]}),
        (f"{CONSUME}/Subscribe", {"group_id": "g"}),
        (f"{CONSUME}/Subscribe", {"topics": [queue], "group_id": "g", "start_position": 9}),
        (f"{CONSUME}/Consume", {"topic": queue, "partitions": [7]}),
        (f"{CONSUME}/Consume", {"topic": queue, "start_position": 9}),
    ):
        ctx.refused(await ctx.stream(path, **fields).end(), "INVALID_ARGUMENT", "UNIMPLEMENTED")
    left = (await ctx.done(f"{FLUXMQ}/ListConsumerGroups", queue_name=queue)).groups
    ctx.must(not any(each.consumers for each in left), f"expected nobody to have joined; seen {list(left)}")


@grpc_case(
    "access/quotas-and-names-of-tenants",
    FLUX,
    GO,
    clauses=("G-AUTH-2", "G-AUTH-3"),
    settings=_TENANT,
    mutant="grpc-quotas-are-unavailable",
    kills=("queue-tenant-name-in-refusals", "http-transactions-of-all"),
    together=True,
)
async def tenants(ctx: GrpcContext) -> None:
    """What is over a quota of a tenant is RESOURCE_EXHAUSTED; names in refusals and lists are those its users know.

    Gwen's queue has the name that another queue has, of nobody's, and a transaction of hers is beside one of nobody's.
    """

    async def call(path: str, **fields: Any) -> Any:
        return await ctx.call(path, metadata=_GWEN, **fields)

    place: dict[str, Any] = {"queue_name": "own", "partition": 0}
    ctx.refused(await call(f"{FLUXMQ}/Append", **place, value=b"x"), "OK")
    ctx.refused(await ctx.call(f"{FLUXMQ}/Append", **place, value=b"nobody's"), "OK")
    read = await call(f"{FLUXMQ}/Read", **place, offset=0)
    ctx.refused(read, "OK")
    ctx.same("value and id", (read.value.value, read.value.message_id.partition(":")[0]), (b"x", "own"))
    large = await call(f"{FLUXMQ}/Append", queue_name="own", value=b"x" * 600)
    ctx.refused(large, "RESOURCE_EXHAUSTED")
    for refused in (
        await call(f"{FLUXMQ}/Read", queue_name="none", offset=0),
        await call(f"{FLUXMQ}/Append", queue_name="own", value=b"x", partition=99),
        await ctx.stream(f"{CONSUME}/Consume", metadata=_GWEN, topic="none").end(),
    ):
        ctx.refused(refused, "NOT_FOUND", "INVALID_ARGUMENT")
        ctx.must("acme." not in refused.text, f"expected her own names alone; seen {refused}")
    for metadata in (_GWEN, ()):
        told = await ctx.call(f"{TRANSACTIONS}/InitProducer", metadata=metadata, transactional_id="p")
        who = {"transactional_id": "p", "producer_id": told.value.producer_id, "epoch": told.value.epoch}
        ctx.refused(await ctx.call(f"{TRANSACTIONS}/BeginTransaction", metadata=metadata, **who), "OK")
        added = await ctx.call(f"{TRANSACTIONS}/AddPartition", metadata=metadata, **who, topic="own", partition=0)
        ctx.refused(added, "OK")
    listed = (await call(f"{TRANSACTIONS}/ListTransactions")).value.transactions
    seen = [(each.transactional_id, [place.topic for place in each.partitions]) for each in listed]
    ctx.same("the transactions", seen, [("p", ["own"])])

"""FluxMQ's queue service: queues, appended to, read, tailed, and consumed by groups."""

from __future__ import annotations

import asyncio
from typing import Any

from assay.conformance.grpc.context import FLUX, GrpcContext, grpc_case
from assay.conformance.rules import Rule
from assay.conformance.wire.grpc import FLUXMQ

_S = FLUXMQ


async def _append(ctx: GrpcContext, queue: str, *values: bytes) -> None:
    await ctx.done(f"{_S}/AppendBatch", queue_name=queue, messages=[{"value": value} for value in values])


async def _consume(ctx: GrpcContext, queue: str, count: int, *, group: str = "g", consumer: str = "c") -> list[Any]:
    """So many messages, which must come."""
    found: list[Any] = []
    while len(found) < count:
        answer = await ctx.done(
            f"{_S}/Consume",
            queue_name=queue,
            group_id=group,
            consumer_id=consumer,
            max_messages=count - len(found),
            wait_time={"seconds": 5},
        )
        text = f"expected {count} messages of {queue}; seen {len(found)}"
        ctx.step(Rule.GRPC_CONSUME, bool(answer.messages), text, soft=True)
        found += answer.messages
    return found


async def _none(ctx: GrpcContext, queue: str, *, group: str = "g", consumer: str = "c") -> None:
    asked: dict[str, Any] = {"queue_name": queue, "group_id": group, "consumer_id": consumer, "max_messages": 10}
    answer = await ctx.done(f"{_S}/Consume", **asked)
    ctx.must(not answer.messages, f"expected no message of {queue}; seen {answer}")


def _values(messages: Any) -> list[bytes]:
    return [each.value for each in messages]


@grpc_case(
    "queues/created-shown-listed-deleted",
    FLUX,
    clauses=("G-QUEUE-1", "G-QUEUE-2", "G-QUEUE-3", "G-ERR-2"),
    mutant="grpc-delete-does-nothing",
    kills=("grpc-list-forgets-prefix", "grpc-exists-is-internal"),
)
async def queues(ctx: GrpcContext) -> None:
    """A queue is created, shown, listed page by page and deleted; a second of its name and an unknown one are refused.

    Whatever is asked of a queue that does not exist is NOT_FOUND.
    """
    name = await ctx.queue(2, topics=[ctx.topic("a")])
    shown = await ctx.done(f"{_S}/GetQueue", name=name)
    ctx.same(
        "name, topics, partitions",
        (shown.name, list(shown.topics), shown.config.partitions),
        (name, [ctx.topic("a")], 2),
    )
    again = await ctx.call(f"{_S}/CreateQueue", name=name)
    ctx.refused(again, "ALREADY_EXISTS")
    from google.rpc import error_details_pb2

    info = again.detail(error_details_pb2.ErrorInfo)
    ctx.should(info is not None and bool(info.reason), f"expected a reason in the details; seen {again}")
    other = await ctx.queue()
    prefix = name[: name.rindex("-")]
    first = await ctx.done(f"{_S}/ListQueues", prefix=prefix, limit=1)
    second = await ctx.done(f"{_S}/ListQueues", prefix=prefix, limit=1, page_token=first.next_page_token)
    ctx.same("the pages", [[each.name for each in page.queues] for page in (first, second)], [[name], [other]])
    ctx.same("by its prefix", [each.name for each in (await ctx.done(f"{_S}/ListQueues", prefix=name)).queues], [name])
    await ctx.done(f"{_S}/DeleteQueue", name=name)
    for method, fields in (
        ("GetQueue", {"name": name}),
        ("DeleteQueue", {"name": name}),
        ("UpdateQueue", {"name": name, "config": {"partitions": 3}}),
        ("Read", {"queue_name": name}),
        ("ReadBatch", {"queue_name": name}),
        ("GetQueueInfo", {"queue_name": name}),
        ("GetStats", {"queue_name": name}),
        ("Purge", {"queue_name": name}),
        ("ListConsumerGroups", {"queue_name": name}),
        ("GetConsumerGroup", {"queue_name": name, "group_id": "g"}),
        ("GetPending", {"queue_name": name, "group_id": "g"}),
    ):
        ctx.refused(await ctx.call(f"{_S}/{method}", **fields), "NOT_FOUND")


@grpc_case(
    "queues/settings-and-figures",
    FLUX,
    clauses=("G-QUEUE-4", "G-QUEUE-5"),
    mutant="grpc-purge-says-zero",
    kills=("grpc-updates-do-nothing", "grpc-settings-are-dropped"),
)
async def settings(ctx: GrpcContext) -> None:
    """Partitions are added, sizes limited, figures told and messages purged; what a queue does not do is refused.

    Replication and Truncate, which this cannot, are UNIMPLEMENTED; they may also work.
    """
    name = await ctx.queue()
    changed = await ctx.done(f"{_S}/UpdateQueue", name=name, config={"partitions": 2, "max_message_size": 2_000})
    ctx.same("partitions", changed.config.partitions, 2)
    large = await ctx.call(f"{_S}/Append", queue_name=name, value=b"x" * 5_000, partition=0)
    ctx.refused(large, "INVALID_ARGUMENT", "RESOURCE_EXHAUSTED")
    for value in (b"a", b"b", b"c"):
        await ctx.done(f"{_S}/Append", queue_name=name, value=value, partition=1)
    info = await ctx.done(f"{_S}/GetQueueInfo", queue_name=name)
    told = [(each.partition, each.head_offset, each.tail_offset) for each in info.partitions]
    ctx.same("message count and partitions", (info.message_count, told), (3, [(0, 0, 0), (1, 0, 3)]))
    ctx.same("message count", (await ctx.done(f"{_S}/GetStats", queue_name=name)).message_count, 3)
    ctx.same("purged", (await ctx.done(f"{_S}/Purge", queue_name=name)).messages_deleted, 3)
    ctx.same("message count", (await ctx.done(f"{_S}/GetStats", queue_name=name)).message_count, 0)
    kept = {"retention": {"max_age": {"seconds": 3_600}, "max_bytes": 9_000_000}, "compression": 3}
    other = await ctx.queue(config=kept)
    config = (await ctx.done(f"{_S}/GetQueue", name=other)).config
    seen = (config.retention.max_age.seconds, config.retention.max_bytes, config.compression)
    ctx.same("retention and compression", seen, (3_600, 9_000_000, 3))
    replicated = await ctx.call(f"{_S}/CreateQueue", name=ctx.name(), config={"replication": {"enabled": True}})
    ctx.refused(replicated, "UNIMPLEMENTED", "OK")
    ctx.refused(await ctx.call(f"{_S}/Truncate", queue_name=name, min_offset=1), "UNIMPLEMENTED", "OK")
    ctx.refused(await ctx.call(f"{_S}/CreateQueue", name="a/#"), "INVALID_ARGUMENT")


@grpc_case(
    "append/told-where-and-read-as-sent",
    FLUX,
    clauses=("G-APPEND-1", "G-APPEND-2", "G-READ-1", "G-READ-2"),
    mutant="grpc-offsets-shift",
    kills=("grpc-values-cut", "grpc-headers-dropped", "grpc-next-offset-is-last"),
)
async def append(ctx: GrpcContext) -> None:
    """Appends, batches and streams tell their offsets, and what is read there is what was sent, byte for byte.

    With keys and headers, one by one and page by page; an offset behind the end is refused.
    """
    name = await ctx.queue()
    value = bytes(range(256))
    one = await ctx.done(f"{_S}/Append", queue_name=name, value=value, key=b"k", headers={"h": b"1", "e": b""})
    ctx.same("the offset", one.offset, 0)
    batch = await ctx.done(f"{_S}/AppendBatch", queue_name=name, messages=[{"value": b"b1"}, {"value": b""}])
    ctx.same("first, last, count", (batch.first_offset, batch.last_offset, batch.count), (1, 2, 2))
    stream = ctx.stream(f"{_S}/AppendQueue", more=True)
    for number in range(5):
        stream.send(queue_name=name, value=b"s%d" % number)
    stream.done()
    told = await stream.next()
    ctx.same("first, last, count", (told.first_offset, told.last_offset, told.count), (3, 7, 5))
    read = await ctx.done(f"{_S}/Read", queue_name=name, offset=0)
    ctx.same("value and key", (read.value, read.key), (value, b"k"))
    ctx.same("headers", {key: read.headers[key] for key in read.headers if key in "he"}, {"h": b"1", "e": b""})
    ctx.must(read.timestamp.seconds > 0, f"expected a timestamp; seen {read}")
    first = await ctx.done(f"{_S}/ReadBatch", queue_name=name, start_offset=1, limit=3)
    ctx.same("the page", _values(first.messages), [b"b1", b"", b"s0"])
    ctx.same("whether that is the end", first.end_of_queue, False)
    rest = await ctx.done(f"{_S}/ReadBatch", queue_name=name, start_offset=first.next_offset, limit=100)
    ctx.same("the rest", _values(rest.messages), [b"s1", b"s2", b"s3", b"s4"])
    ctx.same("where to go on, whether that is the end", (rest.next_offset, rest.end_of_queue), (8, True))
    ctx.refused(await ctx.call(f"{_S}/Read", queue_name=name, offset=8), "OUT_OF_RANGE", "NOT_FOUND")


@grpc_case("append/refused-is-not-ok", FLUX, clauses=("G-APPEND-3",), mutant="grpc-refusals-are-ok")
async def refused(ctx: GrpcContext) -> None:
    """An append, a batch or a stream of which something is refused does not end with OK.

    A partition that there is not, no messages at all, and text that no consumer of another protocol could be sent.
    """
    name = await ctx.queue()
    wrong = [{"value": b"a"}, {"value": b"b", "partition": 7}]
    ctx.refused(await ctx.call(f"{_S}/AppendBatch", queue_name=name, messages=wrong), "INVALID_ARGUMENT")
    ctx.refused(await ctx.call(f"{_S}/AppendBatch", queue_name=name), "INVALID_ARGUMENT")
    for more in ({"partition": 7}, {"key": b"\xff"}, {"headers": {"h": b"a\0"}}):
        ctx.refused(await ctx.call(f"{_S}/Append", queue_name=name, value=b"x", **more), "INVALID_ARGUMENT")
    stream = ctx.stream(f"{_S}/AppendQueue", more=True)
    stream.send(queue_name=name, value=b"x", partition=7)
    stream.done()
    ctx.refused(await stream.end(), "INVALID_ARGUMENT")


@grpc_case(
    "read/tails-and-seeks",
    FLUX,
    clauses=("G-READ-3", "G-READ-4"),
    mutant="grpc-tail-starts-at-zero",
    kills=("grpc-seeks-find-nothing",),
)
async def tails(ctx: GrpcContext) -> None:
    """A tail brings what there is from its start on, and what comes later; a seek tells places.

    From the earliest, from an offset and from the latest on.
    """
    name = await ctx.queue()
    await _append(ctx, name, b"a", b"b")
    earliest = ctx.stream(f"{_S}/Tail", queue_name=name, start_from=1)
    second = ctx.stream(f"{_S}/Tail", queue_name=name, start_from=3, start_offset=1)
    ctx.same("from the earliest on", [(await earliest.next()).value for _ in range(2)], [b"a", b"b"])
    ctx.same("from 1 on", (await second.next()).value, b"b")
    await _append(ctx, name, b"c")
    for tail in (earliest, second):
        ctx.same("what came", (await tail.next()).value, b"c")
    found = await ctx.done(f"{_S}/SeekToOffset", queue_name=name, offset=1)
    ctx.same("offset 1", (found.offset, found.exact_match), (1, True))
    at = (await ctx.done(f"{_S}/Read", queue_name=name, offset=2)).timestamp
    long_ago = await ctx.done(f"{_S}/SeekToTimestamp", queue_name=name, timestamp={"seconds": 1})
    ctx.same("of long ago", (long_ago.offset, long_ago.exact_match), (0, False))
    later = await ctx.done(f"{_S}/SeekToTimestamp", queue_name=name, timestamp={"seconds": at.seconds + 60})
    ctx.same("of later", later.offset, 3)


@grpc_case(
    "groups/created-and-joined",
    FLUX,
    clauses=("G-GROUP-1", "G-GROUP-2"),
    mutant="grpc-groups-unlisted",
    kills=("grpc-heartbeats-never-rejoin",),
)
async def groups(ctx: GrpcContext) -> None:
    """A group is created where it is to begin, shown, listed, joined, left and deleted.

    A heartbeat of an old generation is told to join again, and one of nobody is NOT_FOUND.
    """
    name = await ctx.queue()
    await _append(ctx, name, b"a")
    of: dict[str, Any] = {"queue_name": name, "group_id": "late"}
    await ctx.done(f"{_S}/CreateConsumerGroup", **of, config={"initial_position": 2})
    listed = (await ctx.done(f"{_S}/ListConsumerGroups", queue_name=name)).groups
    ctx.same("the groups", [each.group_id for each in listed], ["late"])
    ctx.same("its cursor", (await ctx.done(f"{_S}/GetConsumerGroup", **of)).cursor.cursor, 1)
    joined = await ctx.done(f"{_S}/JoinGroup", **of, consumer_id="one")
    ctx.same("its consumers", [each.consumer_id for each in joined.consumers], ["one"])
    beat: dict[str, Any] = {**of, "consumer_id": "one", "generation_id": joined.generation_id}
    ctx.same("whether to join again", (await ctx.done(f"{_S}/Heartbeat", **beat)).should_rejoin, False)
    await ctx.done(f"{_S}/JoinGroup", **of, consumer_id="two")
    told = await ctx.done(f"{_S}/Heartbeat", **beat)
    ctx.must(
        told.should_rejoin and told.generation_id != joined.generation_id, f"expected another generation; seen {told}"
    )
    ctx.refused(await ctx.call(f"{_S}/Heartbeat", **of, consumer_id="nobody"), "NOT_FOUND")
    ctx.refused(await ctx.call(f"{_S}/DeleteConsumerGroup", **of), "FAILED_PRECONDITION")
    for consumer in ("one", "two"):
        await ctx.done(f"{_S}/LeaveGroup", **of, consumer_id=consumer)
    await _none(ctx, name, group="late", consumer="three")
    await ctx.done(f"{_S}/LeaveGroup", **of, consumer_id="three")
    await ctx.done(f"{_S}/DeleteConsumerGroup", **of)
    ctx.refused(await ctx.call(f"{_S}/GetConsumerGroup", **of), "NOT_FOUND")


@grpc_case(
    "consume/once-acknowledged-and-again",
    FLUX,
    clauses=("G-CONS-1", "G-CONS-3", "G-CONS-4"),
    requires=("clock",),
    mutant="grpc-acks-forgotten",
    kills=("grpc-nacks-ack", "grpc-committed-is-zero"),
)
async def consume(ctx: GrpcContext) -> None:
    """A message is given once within a group and to each group; what is acknowledged is gone, what is given back not.

    One comes again at once, the other in a minute, each counted.
    """
    name = await ctx.queue()
    await _append(ctx, name, b"a", b"b", b"c")
    found = await _consume(ctx, name, 3)
    ctx.same("the values", _values(found), [b"a", b"b", b"c"])
    ctx.same("deliveries", [each.delivery_info.delivery_count for each in found], [1, 1, 1])
    await _none(ctx, name)
    ctx.same("another group's", _values(await _consume(ctx, name, 3, group="other")), [b"a", b"b", b"c"])
    of: dict[str, Any] = {"queue_name": name, "group_id": "g", "consumer_id": "c"}
    acked = await ctx.done(f"{_S}/Ack", **of, offsets=[0])
    ctx.same("acknowledged, committed", (acked.acked_count, acked.committed.committed), (1, 1))
    ctx.refused(await ctx.call(f"{_S}/Ack", **of, offsets=[0]), "NOT_FOUND")
    await ctx.done(f"{_S}/Nack", **of, offsets=[1])
    await ctx.done(f"{_S}/Nack", **of, offsets=[2], delay={"seconds": 60})
    (again,) = await _consume(ctx, name, 1)
    ctx.same("value and deliveries", (again.value, again.delivery_info.delivery_count), (b"b", 2))
    await _none(ctx, name)
    await ctx.done(f"{_S}/Ack", **of, receipts=[again.receipt])
    await ctx.advance(61)
    (late,) = await _consume(ctx, name, 1)
    ctx.same("value and deliveries", (late.value, late.delivery_info.delivery_count), (b"c", 2))
    ctx.refused(await ctx.call(f"{_S}/Ack", **of), "INVALID_ARGUMENT")


@grpc_case(
    "consume/a-wait-ends-with-the-message",
    FLUX,
    clauses=("G-CONS-2",),
    mutant="http-long-polls-return-at-once",
    limit_s=8.0,
)
async def long_poll(ctx: GrpcContext) -> None:
    """A request that waits is answered as soon as a message is appended.

    It is sent before there is any, and waits for up to fifty seconds.
    """
    name = await ctx.queue()
    of: dict[str, Any] = {"queue_name": name, "group_id": "g", "consumer_id": "c"}
    waits = asyncio.create_task(ctx.done(f"{_S}/Consume", **of, max_messages=1, wait_time={"seconds": 50}))

    async def is_there() -> bool:
        groups = (await ctx.done(f"{_S}/ListConsumerGroups", queue_name=name)).groups
        return any(each.consumers for each in groups)

    try:
        await ctx.until(is_there, "a consumer")
        await _append(ctx, name, b"late")
        ctx.same("the values", _values((await waits).messages), [b"late"])
    finally:
        waits.cancel()


@grpc_case(
    "consume/streams-hold-so-many",
    FLUX,
    clauses=("G-CONS-5",),
    mutant="grpc-streams-hold-all",
    kills=("http-streams-keep",),
)
async def streams(ctx: GrpcContext) -> None:
    """A stream of a consumer has no more unsettled messages than asked for, and leaves them to others when it ends.

    Two at a time; a third comes once one of them is acknowledged.
    """
    name = await ctx.queue()
    await _append(ctx, name, b"a", b"b", b"c", b"d")
    of: dict[str, Any] = {"queue_name": name, "group_id": "g", "consumer_id": "c"}
    stream = ctx.stream(f"{_S}/ConsumeQueue", **of, max_in_flight=2)
    held = [await stream.next() for _ in range(2)]
    ctx.same("the values", _values(held), [b"a", b"b"])
    pending = await ctx.done(f"{_S}/GetPending", queue_name=name, group_id="g")
    ctx.same("what is pending", pending.total_pending, 2)
    await ctx.done(f"{_S}/Ack", **of, receipts=[held[0].receipt])
    ctx.same("the next", (await stream.next()).value, b"c")
    stream.cancel()
    ctx.same("what others get", sorted(_values(await _consume(ctx, name, 3, consumer="other"))), [b"b", b"c", b"d"])


@grpc_case(
    "consume/pending-and-claims",
    FLUX,
    clauses=("G-CONS-6",),
    requires=("clock",),
    mutant="grpc-claims-take-nothing",
    kills=("grpc-pending-is-empty",),
)
async def claims(ctx: GrpcContext) -> None:
    """What a group holds is told by consumer; a claim takes over what is idle for long enough, counted once more.

    One message is held for twenty seconds, the other for none.
    """
    name = await ctx.queue()
    of: dict[str, Any] = {"queue_name": name, "group_id": "g"}
    await _append(ctx, name, b"old")
    await _consume(ctx, name, 1, consumer="one")
    await ctx.advance(20)
    await _append(ctx, name, b"new")
    await _consume(ctx, name, 1, consumer="one")
    pending = await ctx.done(f"{_S}/GetPending", **of, limit=1)
    ctx.same("the first page", [(each.offset, each.consumer_id) for each in pending.entries], [(0, "one")])
    more = await ctx.done(f"{_S}/GetPending", **of, limit=1, page_token=pending.next_page_token)
    ctx.same("the second page", [each.offset for each in more.entries], [1])
    claimed = await ctx.done(f"{_S}/Claim", **of, consumer_id="two", min_idle_time={"seconds": 10}, limit=10)
    seen = [(each.value, each.delivery_info.delivery_count) for each in claimed.messages]
    ctx.same("what was claimed", seen, [(b"old", 2)])
    await ctx.done(f"{_S}/Ack", **of, consumer_id="two", receipts=[claimed.messages[0].receipt])


# Pages and limits


@grpc_case(
    "groups/page-by-page",
    FLUX,
    clauses=("G-GROUP-3", "G-CONS-6", "G-CONS-7"),
    mutant="grpc-group-pages-repeat",
    kills=("grpc-pending-of-anybody", "grpc-claims-are-unlimited", "grpc-patterns-are-dropped"),
)
async def group_pages(ctx: GrpcContext) -> None:
    """Groups, and what is pending of one consumer, are listed page by page; a claim takes no more than it asks for.

    Three groups and one with a pattern; two consumers, of which one holds three messages.
    """
    name = await ctx.queue()
    for group in "bac":
        await ctx.done(f"{_S}/CreateConsumerGroup", queue_name=name, group_id=group)
    shown = await ctx.done(f"{_S}/CreateConsumerGroup", queue_name=name, group_id="d", pattern="eu/#")
    ctx.same("the pattern", shown.pattern, "eu/#")
    listed: list[str] = []
    token = ""
    for _ in range(5):
        page = await ctx.done(f"{_S}/ListConsumerGroups", queue_name=name, limit=3, page_token=token)
        ctx.must(len(page.groups) <= 3, f"expected at most 3 groups; seen {page}")
        listed += [each.group_id for each in page.groups]
        token = page.next_page_token
        if not token:
            break
    ctx.same("the groups", sorted(each.partition("@")[0] for each in listed), list("abcd"))
    of: dict[str, Any] = {"queue_name": name, "group_id": "a"}
    await _append(ctx, name, b"0", b"1", b"2", b"3")
    await _consume(ctx, name, 3, group="a", consumer="one")
    await _consume(ctx, name, 1, group="a", consumer="two")
    for consumer, wanted in (("one", [0, 1, 2]), ("two", [3]), ("", [0, 1, 2, 3])):
        pending = await ctx.done(f"{_S}/GetPending", **of, consumer_id=consumer)
        ctx.same(f"what {consumer or 'anybody'} holds", [each.offset for each in pending.entries], wanted)
    claimed = await ctx.done(f"{_S}/Claim", **of, consumer_id="two", limit=2)
    ctx.same("what was claimed", len(claimed.messages), 2)
    ctx.refused(await ctx.call(f"{_S}/GetPending", **of, page_token="none"), "INVALID_ARGUMENT")  # noqa: S106


@grpc_case(
    "read/no-larger-than-asked",
    FLUX,
    clauses=("G-READ-1", "G-CONS-8"),
    mutant="grpc-reads-are-of-any-size",
    kills=("grpc-consumes-are-of-any-size",),
)
async def sizes(ctx: GrpcContext) -> None:
    """Who asks for so many bytes is given one message at least, and no more than fit; nothing is lost by it.

    Of four messages of a thousand bytes two and a half would fit. What a message counts with besides is the broker's.
    """
    name = await ctx.queue()
    values = [bytes([number]) * 1_000 for number in range(4)]
    await _append(ctx, name, *values)
    read: list[bytes] = []
    place = 0
    while len(read) < 4:
        page = await ctx.done(f"{_S}/ReadBatch", queue_name=name, start_offset=place, limit=10, max_bytes=2_500)
        ctx.must(1 <= len(page.messages) <= 2, f"expected one or two messages; seen {len(page.messages)}")
        read += _values(page.messages)
        place = page.next_offset
    ctx.same("what was read", read, values)
    of: dict[str, Any] = {"queue_name": name, "group_id": "g", "consumer_id": "c"}
    taken: list[Any] = []
    while len(taken) < 4:
        some = (
            await ctx.done(f"{_S}/Consume", **of, max_messages=10, max_bytes=2_500, wait_time={"seconds": 5})
        ).messages
        ctx.must(1 <= len(some) <= 2, f"expected one or two messages; seen {len(some)}")
        taken += some
    ctx.same("what was consumed", _values(taken), values)
    ctx.same("its deliveries", {each.delivery_info.delivery_count for each in taken}, {1})

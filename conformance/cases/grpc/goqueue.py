"""GoQueue's services: publish, consume, acknowledge, offsets, transactions; and what is about both interfaces."""

from __future__ import annotations

import base64
import hashlib
from typing import Any

from assay.conformance.grpc.context import FLUX, GO, GrpcContext, Stream, grpc_case
from assay.conformance.targets.grpc import ask_health
from assay.conformance.wire import Properties
from assay.conformance.wire.grpc import FLUXMQ, HEALTH, interface

PUBLISH, CONSUME, ACK = "goqueue.v1.PublishService", "goqueue.v1.ConsumeService", "goqueue.v1.AckService"
OFFSETS, TRANSACTIONS = "goqueue.v1.OffsetService", "goqueue.v1.TransactionService"
HASH = "scrypt$16$8$1$636f6e666f726d616e63652d73616c74$0f5f1503658de6e051adfc1b109b14f4592fea24e86baedc7e344b71ddf3bde5"
_SERVICE_UNKNOWN = 3
_MORE_THAN_AN_HOUR_S = 4_000
_USERS: dict[str, Any] = {
    "listeners": [{"port": 0}, {"port": 0, "protocols": ["grpc"]}],
    "auth": {
        "anonymous": False,
        "users": [{"username": "guest", "password_hash": HASH}],
        "tokens": [
            {
                "name": scope,
                "user": "guest",
                "scopes": [scope],
                "hash": f"sha256${hashlib.sha256(scope.encode()).hexdigest()}",
            }
            for scope in ("read", "write", "admin")
        ],
    },
    "queues": {"configured": [{"name": "q", "partitions": 1}]},
}


async def _publish(ctx: GrpcContext, topic: str, *values: bytes, **more: Any) -> None:
    for value in values:
        await ctx.done(f"{PUBLISH}/Publish", topic=topic, value=value, **more)


async def _messages(stream: Stream, count: int) -> list[Any]:
    """So many messages of a stream, whatever is told between."""
    found: list[Any] = []
    while len(found) < count:
        found += (await stream.next()).messages.messages
    return found


async def _assigned(ctx: GrpcContext, stream: Stream) -> list[int]:
    while not (told := await stream.next()).HasField("assignment"):
        pass
    ctx.must(bool(told.assignment.member_id), f"expected a member id; seen {told}")
    return sorted(each.partition for each in told.assignment.partitions)


def number_of(reply: Any) -> int:
    """GoQueue's number of an error in the details of a refusal; 0 = it has none."""
    found = reply.detail(interface().message("goqueue.v1.Error"))
    return 0 if found is None else int(found.code)


@grpc_case(
    "publish/told-where-and-consumed-as-sent",
    FLUX,
    GO,
    clauses=("G-PUB-1", "G-READ-5"),
    mutant="grpc-published-places-lie",
    kills=("grpc-values-cut", "grpc-headers-dropped", "grpc-consume-starts-at-zero"),
)
async def publish(ctx: GrpcContext) -> None:
    """A publish tells where its message is, and a consumer without a group reads it as it was sent, from any place on.

    Two partitions; from the earliest, from an offset.
    """
    topic = await ctx.queue(2)
    told = await ctx.done(
        f"{PUBLISH}/Publish", topic=topic, key=b"k", value=b"\xff\x00", headers={"h": "1"}, partition=1, priority=1
    )
    ctx.same("topic, partition, offset", (told.topic, told.partition, told.offset), (topic, 1, 0))
    again = await ctx.done(f"{PUBLISH}/Publish", topic=topic, value=b"second", partition=1)
    ctx.same("partition, offset", (again.partition, again.offset), (1, 1))
    stream = ctx.stream(f"{CONSUME}/Consume", topic=topic, partitions=[1])
    first, second = await _messages(stream, 2)
    seen = (first.topic, first.partition, first.offset, first.key, first.value, first.headers["h"])
    ctx.same("the message", seen, (topic, 1, 0, b"k", b"\xff\x00", "1"))
    ctx.same("the second", (second.offset, second.value), (1, b"second"))
    from_1 = ctx.stream(f"{CONSUME}/Consume", topic=topic, partitions=[1], start_position=2, start_offset=1)
    ctx.same("from 1 on", (await _messages(from_1, 1))[0].value, b"second")


@grpc_case(
    "publish/refusals-have-numbers",
    FLUX,
    GO,
    clauses=("G-PUB-2", "G-ERR-1"),
    mutant="grpc-correlation-lost",
    kills=("grpc-errors-without-numbers",),
)
async def stream_of_publishes(ctx: GrpcContext) -> None:
    """A stream of publishes answers each by its correlation id, and one that is refused has GoQueue's number.

    The second of four has a priority that there is not. An unknown topic is 100 where it is not made by use.
    """
    topic = await ctx.queue()
    stream = ctx.stream(f"{PUBLISH}/PublishStream", more=True)
    for number in range(4):
        stream.send(correlation_id=str(number), topic=topic, value=b"%d" % number, priority=9 if number == 1 else 2)
    stream.done()
    told = [await stream.next() for _ in range(4)]
    ctx.same(
        "ids and numbers",
        [(each.correlation_id, each.error.code) for each in told],
        [("0", 0), ("1", 301), ("2", 0), ("3", 0)],
    )
    ctx.same("the offsets", [each.offset for each in told if not each.error.code], [0, 1, 2])
    single = await ctx.call(f"{PUBLISH}/Publish", topic=topic, value=b"x", partition=7)
    ctx.refused(single, "INVALID_ARGUMENT", "NOT_FOUND")
    ctx.must(
        number_of(single) in (102, 103, 301), f"expected a number of GoQueue's; seen {number_of(single)} of {single}"
    )
    exists = await ctx.call(f"{ACK}/Ack", group_id="g", receipt_handle="garbage")
    ctx.refused(exists, "INVALID_ARGUMENT")
    ctx.must(number_of(exists) in (301, 302), f"expected 302; seen {number_of(exists)} of {exists}")


@grpc_case(
    "groups/subscribers-are-told",
    FLUX,
    GO,
    clauses=("G-SUB-1",),
    mutant="grpc-assignments-untold",
    kills=("http-streams-keep",),
)
async def subscribe(ctx: GrpcContext) -> None:
    """A subscriber is told its partitions at once, gets their messages, and is told when a second one comes and goes.

    Both have one of the two partitions.
    """
    topic, group = await ctx.queue(2), ctx.name("g")
    first = ctx.stream(f"{CONSUME}/Subscribe", topics=[topic], group_id=group, consumer_id="one")
    ctx.same("its partitions", await _assigned(ctx, first), [0, 1])
    await _publish(ctx, topic, b"a", partition=0)
    await _publish(ctx, topic, b"b", partition=1)
    held = await _messages(first, 2)
    ctx.same("its messages", sorted(each.value for each in held), [b"a", b"b"])
    for each in held:
        await ctx.done(f"{ACK}/Ack", group_id=group, receipt_handle=each.receipt_handle)
    second = ctx.stream(f"{CONSUME}/Subscribe", topics=[topic], group_id=group, consumer_id="two")
    share = await _assigned(ctx, second)
    ctx.same("how many it has", len(share), 1)
    await _publish(ctx, topic, b"c", partition=share[0])
    ctx.same("its message", (await _messages(second, 1))[0].value, b"c")
    second.cancel()
    ctx.same("what it held", (await _messages(first, 1))[0].value, b"c")


@grpc_case(
    "acks/settled-by-handle",
    FLUX,
    GO,
    clauses=("G-ACK-1", "G-ACK-2", "G-ACK-3"),
    mutant="grpc-rejects-ack",
    kills=("grpc-batch-acks-all-succeed",),
)
async def acks(ctx: GrpcContext) -> None:
    """Ack, nack, reject and extension settle by receipt handle; what is settled already is 304 or 302, with NOT_FOUND.

    Of four messages one each; a batch of acks tells of one that is settled already.
    """
    topic, group = await ctx.queue(), ctx.name("g")
    stream = ctx.stream(f"{CONSUME}/Subscribe", topics=[topic], group_id=group, consumer_id="one")
    await _publish(ctx, topic, b"ack", b"nack", b"reject", b"extend")
    held = {each.value: each.receipt_handle for each in await _messages(stream, 4)}
    of: dict[str, Any] = {"group_id": group}
    ctx.same("success", (await ctx.done(f"{ACK}/Ack", **of, receipt_handle=held[b"ack"])).success, True)
    rejected = await ctx.done(f"{ACK}/Reject", **of, receipt_handle=held[b"reject"], reason="why")
    ctx.same("success, dead letters", (rejected.success, rejected.dlq_topic), (True, f"{topic}.dlq"))
    more: dict[str, Any] = {"visibility_timeout": {"seconds": 600}}
    extended = await ctx.done(f"{ACK}/ExtendVisibility", **of, receipt_handle=held[b"extend"], **more)
    ctx.must(extended.success and extended.new_deadline.seconds > 0, f"expected a new deadline; seen {extended}")
    ctx.same("success", (await ctx.done(f"{ACK}/Nack", **of, receipt_handle=held[b"nack"])).success, True)
    (again,) = await _messages(stream, 1)
    ctx.same("what came again", again.value, b"nack")
    for verb in ("Ack", "Nack", "Reject", "ExtendVisibility"):
        reason: dict[str, Any] = {"reason": "why"} if verb == "Reject" else {}
        refused = await ctx.call(f"{ACK}/{verb}", **of, receipt_handle=held[b"ack"], **reason)
        ctx.refused(refused, "NOT_FOUND")
        ctx.must(number_of(refused) in (302, 303, 304), f"expected 304; seen {number_of(refused)} of {refused}")
    batch = await ctx.done(
        f"{ACK}/BatchAck", **of, receipt_handles=[held[b"ack"], again.receipt_handle, held[b"extend"]]
    )
    failed = [each.receipt_handle for each in batch.failures]
    ctx.same("succeeded, failed", (batch.success_count, failed), (2, [held[b"ack"]]))
    letters = ctx.stream(f"{CONSUME}/Consume", topic=f"{topic}.dlq")
    ctx.same("the dead letters", [each.value for each in await _messages(letters, 1)], [b"reject"])


@grpc_case(
    "offsets/committed-fetched-reset",
    FLUX,
    GO,
    clauses=("G-OFF-1",),
    mutant="grpc-commits-forgotten",
    kills=("grpc-resets-do-nothing", "grpc-members-of-any-generation"),
)
async def offsets(ctx: GrpcContext) -> None:
    """Offsets are committed, also by a member, fetched, and reset to the earliest, one result each.

    A partition that there is not fails by itself, and a queue that the member has not joined; a member that names
    another generation than its own commits nothing.
    """
    topic, group = await ctx.queue(), ctx.name("g")
    stream = ctx.stream(f"{CONSUME}/Subscribe", topics=[topic], group_id=group, consumer_id="one")
    while not (told := await stream.next()).HasField("assignment"):
        pass
    await _publish(ctx, topic, b"a", b"b", b"c")
    await _messages(stream, 3)
    of: dict[str, Any] = {"group_id": group}
    member, other = {**of, "member_id": told.assignment.member_id}, await ctx.queue()
    own = [{"topic": each, "partition": 0, "offset": 1} for each in (topic, other)]
    generation = told.assignment.generation
    stale = await ctx.call(f"{OFFSETS}/CommitOffsets", **member, generation=generation + 1, offsets=own)
    ctx.refused(stale, "ABORTED", "FAILED_PRECONDITION")
    told = await ctx.done(f"{OFFSETS}/CommitOffsets", **member, generation=generation, offsets=own)
    ctx.same("which succeeded", [each.success for each in told.results], [True, False])
    wanted = [{"topic": topic, "partition": 0, "offset": 2}, {"topic": topic, "partition": 9, "offset": 2}]
    told = await ctx.done(f"{OFFSETS}/CommitOffsets", **of, offsets=wanted)
    ctx.same("which succeeded", [each.success for each in told.results], [True, False])
    place: dict[str, Any] = {"topic": topic, "partition": 0}
    fetched = await ctx.done(f"{OFFSETS}/FetchOffsets", **of, partitions=[place])
    ctx.same("what was committed", [each.offset for each in fetched.offsets], [2])
    stream.cancel()
    reset = await ctx.done(f"{OFFSETS}/ResetOffsets", **of, strategy=1, partitions=[place])
    ctx.same("the new place", [each.new_offset for each in reset.results], [0])
    fetched = await ctx.done(f"{OFFSETS}/FetchOffsets", **of, partitions=[place])
    ctx.same("what is committed now", [each.offset for each in fetched.offsets], [0])


@grpc_case(
    "transactions/shown-together-or-not",
    FLUX,
    GO,
    clauses=("G-TXN-1", "G-TXN-2"),
    mutant="grpc-aborts-commit",
    kills=("grpc-fenced-go-on",),
)
async def transactions(ctx: GrpcContext) -> None:
    """What a producer publishes in a transaction shows when that is committed, and not at all when it is aborted.

    A second producer of the name fences the first, and a transaction that is not open cannot be ended.
    """
    topic, name = await ctx.queue(), ctx.name("p")
    tail = ctx.stream(f"{CONSUME}/Consume", topic=topic)

    async def begin() -> dict[str, Any]:
        told = await ctx.done(f"{TRANSACTIONS}/InitProducer", transactional_id=name)
        who = {"transactional_id": name, "producer_id": told.producer_id, "epoch": told.epoch}
        await ctx.done(f"{TRANSACTIONS}/BeginTransaction", **who)
        return who

    async def send(who: dict[str, Any], value: bytes) -> None:
        await _publish(ctx, topic, value, producer_id=who["producer_id"], producer_epoch=who["epoch"])

    first = await begin()
    await send(first, b"aborted")
    listed = (await ctx.done(f"{TRANSACTIONS}/ListTransactions")).transactions
    ctx.must(
        any(each.producer_id == first["producer_id"] for each in listed), "expected the open transaction in the list"
    )
    await ctx.done(f"{TRANSACTIONS}/AbortTransaction", **first)
    await ctx.done(f"{TRANSACTIONS}/BeginTransaction", **first)
    await send(first, b"committed")
    await ctx.done(f"{TRANSACTIONS}/CommitTransaction", **first)
    await _publish(ctx, topic, b"plain")
    ctx.same("what shows", [each.value for each in await _messages(tail, 2)], [b"committed", b"plain"])
    ctx.refused(await ctx.call(f"{TRANSACTIONS}/CommitTransaction", **first), "FAILED_PRECONDITION", "NOT_FOUND")
    await begin()
    fenced = await ctx.call(f"{TRANSACTIONS}/BeginTransaction", **first)
    ctx.refused(fenced, "ABORTED", "FAILED_PRECONDITION", "PERMISSION_DENIED")
    ctx.same("its number", number_of(fenced), 402)


@grpc_case(
    "health/anybody-may-ask", GO, clauses=("G-HEALTH-1",), mutant="grpc-not-serving", kills=("grpc-any-service-serves",)
)
async def health(ctx: GrpcContext) -> None:
    """Whether the broker is there is told by gRPC's own health and by GoQueue's, once and as a stream.

    Without credentials.
    """
    ctx.must(ask_health(ctx.greeted.host, ctx.greeted.port, timeout_s=5.0) == "OK", f"expected {HEALTH} to answer")
    told = await ctx.call("goqueue.v1.HealthService/Check", metadata=())
    ctx.same("code and status", (told.code, told.value and told.value.status), ("OK", 1))
    unknown = await ctx.call("goqueue.v1.HealthService/Check", service="none", metadata=())
    is_told = unknown.code == "NOT_FOUND" or (unknown.code == "OK" and unknown.value.status == _SERVICE_UNKNOWN)
    ctx.must(is_told, f"expected a service that there is not to be told as such; seen {unknown}")
    stream = ctx.stream("goqueue.v1.HealthService/Watch")
    ctx.same("the first that it tells", (await stream.next()).status, 1)


@grpc_case(
    "access/users-and-scopes",
    FLUX,
    GO,
    clauses=("G-AUTH-1",),
    settings=_USERS,
    mutant="http-scopes-unchecked",
    kills=("grpc-anybody-asks",),
    together=True,
)
async def access(ctx: GrpcContext) -> None:
    """Who does not say who it is, or says it wrongly, is UNAUTHENTICATED; a token does what its scope says.

    By appending, reading and deleting, as a call and as a stream.
    """
    append: tuple[str, dict[str, Any]] = (f"{FLUXMQ}/Append", {"queue_name": "q", "value": b"x"})
    read: tuple[str, dict[str, Any]] = (f"{FLUXMQ}/GetConsumerGroup", {"queue_name": "q", "group_id": "none"})
    delete: tuple[str, dict[str, Any]] = (f"{FLUXMQ}/DeleteQueue", {"name": "none"})
    basic = base64.b64encode(b"guest:guest").decode()
    wrong = base64.b64encode(b"guest:wrong").decode()
    for value in ("", f"Basic {wrong}", "Bearer none", "Basic !", "Negotiate x"):
        metadata = (("authorization", value),) if value else ()
        for path, fields in (append, read, delete):
            ctx.refused(await ctx.call(path, metadata=metadata, **fields), "UNAUTHENTICATED")
        ctx.refused(await ctx.stream(f"{FLUXMQ}/Tail", metadata=metadata, queue_name="q").end(), "UNAUTHENTICATED")
    for scope, allowed in (("read", read), ("write", append), ("admin", delete)):
        for path, fields in (append, read, delete):
            told = await ctx.call(path, metadata=(("authorization", f"Bearer {scope}"),), **fields)
            expected = ("OK", "NOT_FOUND") if path == allowed[0] else ("PERMISSION_DENIED",)
            ctx.refused(told, *expected)
    ctx.refused(await ctx.call(append[0], metadata=(("authorization", f"Basic {basic}"),), **append[1]), "OK")


@grpc_case(
    "crossing/to-mqtt-and-back",
    FLUX,
    clauses=("G-CROSS-1",),
    requires=("mqtt5", "queues"),
    mutant="grpc-headers-dropped",
)
async def crossing(ctx: GrpcContext) -> None:
    """A message that is appended comes to a consumer of MQTT with its headers, and one of MQTT is consumed by gRPC.

    Two groups, so that each gets both.
    """
    name = await ctx.queue()
    client = await ctx.connect()
    await client.subscribe(f"$queue/{name}", qos=1, properties=Properties(user_property=(("consumer-group", "mqtt"),)))
    await ctx.done(f"{FLUXMQ}/Append", queue_name=name, value=b"a", key=b"k", headers={"h": b"1"})
    message = await client.expect_publish()
    told = dict(message.properties.user_property)
    ctx.same("payload, header, key", (message.payload, told.get("h"), told.get("partition-key")), (b"a", "1", "k"))
    said = Properties(user_property=(("h", "2"), ("partition-key", "j")))
    await client.publish(f"$queue/{name}", b"b", qos=1, properties=said)
    found: list[Any] = []
    while len(found) < 2:
        asked: dict[str, Any] = {"queue_name": name, "group_id": "grpc", "consumer_id": "c", "max_messages": 2}
        found += (await ctx.done(f"{FLUXMQ}/Consume", **asked, wait_time={"seconds": 5})).messages
    seen = [(each.value, each.key, each.headers["h"]) for each in found]
    ctx.same("values, keys, headers", seen, [(b"a", b"k", b"1"), (b"b", b"j", b"2")])


@grpc_case(
    "restart/what-was-answered-is-there",
    FLUX,
    clauses=("G-DUR-1",),
    requires=("restart",),
    mutant="grpc-answers-before-the-disk",
    together=True,
    limit_s=10.0,
)
async def restart(ctx: GrpcContext) -> None:
    """Queues, appended messages, acknowledgements and groups that were answered with OK are there after a kill.

    What was not acknowledged comes again.
    """
    name, gone = await ctx.queue(2), await ctx.queue()
    of: dict[str, Any] = {"queue_name": name, "group_id": "g", "consumer_id": "c"}
    for number in range(10):
        await ctx.done(f"{FLUXMQ}/Append", queue_name=name, value=b"%d" % number, partition=number % 2)
    found: list[Any] = []
    while len(found) < 10:
        found += (await ctx.done(f"{FLUXMQ}/Consume", **of, max_messages=10, wait_time={"seconds": 5})).messages
    await ctx.done(f"{FLUXMQ}/Ack", **of, receipts=[each.receipt for each in found[:4]])
    await ctx.done(f"{FLUXMQ}/DeleteQueue", name=gone)
    await ctx.restart()
    ctx.same("partitions", (await ctx.done(f"{FLUXMQ}/GetQueue", name=name)).config.partitions, 2)
    ctx.refused(await ctx.call(f"{FLUXMQ}/GetQueue", name=gone), "NOT_FOUND")
    again: list[Any] = []
    while len(again) < 6:
        some = (await ctx.done(f"{FLUXMQ}/Consume", **of, max_messages=10, wait_time={"seconds": 5})).messages
        ctx.must(bool(some), f"expected 6 messages; seen {len(again)}")
        again += some
    ctx.same("what comes again", sorted(each.value for each in again), sorted(each.value for each in found[4:]))


# Places, times and what is told beside


@grpc_case(
    "consume/times-are-heeded",
    FLUX,
    GO,
    clauses=("G-READ-5", "G-PUB-3", "G-ACK-4"),
    requires=("clock",),
    mutant="grpc-delays-are-dropped",
    kills=(
        "grpc-times-are-the-earliest",
        "grpc-nacks-come-at-once",
        "grpc-tries-are-uncounted",
        "grpc-readers-settle-for-all",
    ),
    near_miss="any-settled-is-gone",
)
async def times(ctx: GrpcContext) -> None:
    """A delayed message comes when it is due, a consumer begins at a time, and what is given back comes when it says.

    The clock is moved between messages, by more than an hour. Priority and the number of retries are told. What a
    consumer without a group has read is there for the first group; what every group has settled need not be.
    """
    topic, group = await ctx.queue(), ctx.name("g")
    early = await ctx.done(f"{PUBLISH}/Publish", topic=topic, value=b"early", priority=1)
    await ctx.done(f"{PUBLISH}/Publish", topic=topic, value=b"due", delay={"seconds": 60})
    await ctx.done(
        f"{PUBLISH}/Publish", topic=topic, value=b"late", deliver_at={"seconds": early.timestamp.seconds + 9_000}
    )
    both: dict[str, Any] = {"delay": {"seconds": 1}, "deliver_at": {"seconds": early.timestamp.seconds + 9_000}}
    ctx.refused(await ctx.call(f"{PUBLISH}/Publish", topic=topic, value=b"x", **both), "INVALID_ARGUMENT")
    stream = ctx.stream(f"{CONSUME}/Consume", topic=topic)
    found = await _messages(stream, 1)
    ctx.same("values and priorities", [(each.value, each.priority) for each in found], [(b"early", 1)])
    await ctx.advance(_MORE_THAN_AN_HOUR_S)
    ctx.same("what was due", (await _messages(stream, 1))[0].value, b"due")
    await _publish(ctx, topic, b"now")
    moment = {"seconds": early.timestamp.seconds + 50}
    later = ctx.stream(f"{CONSUME}/Consume", topic=topic, start_position=3, start_timestamp=moment)
    ctx.same("what came since", [each.value for each in await _messages(later, 2)], [b"due", b"now"])
    member = ctx.stream(f"{CONSUME}/Subscribe", topics=[topic], group_id=group, consumer_id="c")
    held = (await _messages(member, 3))[0]
    latest = ctx.stream(
        f"{CONSUME}/Subscribe", topics=[topic], group_id=ctx.name("latest"), consumer_id="c", start_position=1
    )
    await _assigned(ctx, latest)
    ctx.same("value and retries", (held.value, held.retry_count), (b"early", 0))
    asked: dict[str, Any] = {"group_id": group, "receipt_handle": held.receipt_handle}
    foreign = await ctx.call(f"{ACK}/Ack", group_id="another", receipt_handle=held.receipt_handle)
    ctx.refused(foreign, "NOT_FOUND", "PERMISSION_DENIED", "INVALID_ARGUMENT", "FAILED_PRECONDITION")
    told = await ctx.done(f"{ACK}/Nack", **asked, visibility_timeout={"seconds": 300})
    ahead_s = told.next_visible_at.seconds - early.timestamp.seconds
    wanted_s = _MORE_THAN_AN_HOUR_S + 290
    ctx.must(ahead_s >= wanted_s, f"expected a time 300 s ahead of {_MORE_THAN_AN_HOUR_S} s; seen {ahead_s} s")
    await _publish(ctx, topic, b"last")
    ctx.same("what comes first", (await _messages(member, 1))[0].value, b"last")
    ctx.same("what comes to who began at the end", (await _messages(latest, 1))[0].value, b"last")
    await ctx.advance(301)
    found = await _messages(member, 1)
    ctx.same("values and retries", [(each.value, each.retry_count) for each in found], [(b"early", 1)])


@grpc_case(
    "offsets/reset-to-anywhere",
    FLUX,
    GO,
    clauses=("G-OFF-1", "G-OFF-2"),
    mutant="grpc-latest-is-earliest",
    kills=("grpc-old-offsets-are-untold", "grpc-offsets-of-none"),
)
async def anywhere(ctx: GrpcContext) -> None:
    """Offsets are reset to the latest, and to any, of all partitions or of some, and tell where the group was before.

    All are fetched where none is named; one that there is not has an error of its own. Another group settles nothing,
    so that all of it is kept.
    """
    topic, group = await ctx.queue(2), ctx.name("g")
    await _assigned(ctx, ctx.stream(f"{CONSUME}/Subscribe", topics=[topic], group_id="keeps", consumer_id="k"))
    stream = ctx.stream(f"{CONSUME}/Subscribe", topics=[topic], group_id=group, consumer_id="one")
    for partition in (0, 1):
        await _publish(ctx, topic, b"a", b"b", b"c", partition=partition)
    for each in await _messages(stream, 6):
        if each.partition == 1:
            await ctx.done(f"{ACK}/Ack", group_id=group, receipt_handle=each.receipt_handle)
    stream.cancel()
    of: dict[str, Any] = {"group_id": group}

    async def fetched(*partitions: int) -> list[tuple[int, int]]:
        places = [{"topic": topic, "partition": each} for each in partitions]
        told = await ctx.done(f"{OFFSETS}/FetchOffsets", **of, partitions=places)
        return [(each.partition, each.offset) for each in told.offsets if not each.error.code]

    async def is_left() -> bool:
        shown = await ctx.done(f"{FLUXMQ}/GetConsumerGroup", queue_name=topic, group_id=group)
        return not shown.consumers

    await ctx.until(is_left, "the consumer to have left")
    ctx.same("where it is", await fetched(), [(0, 0), (1, 3)])
    ctx.same("where it is, of those there are", await fetched(1, 9), [(1, 3)])
    for asked, before, after in (
        ({"strategy": 2}, [0, 3], [3, 3]),
        ({"strategy": 4, "offsets": [{"topic": topic, "partition": 1, "offset": 1}]}, [3], [1]),
        ({"strategy": 1, "partitions": [{"topic": topic, "partition": 0}]}, [3], [0]),
        ({"strategy": 3, "timestamp": {"seconds": 1}}, [0, 1], [0, 0]),
    ):
        told = (await ctx.done(f"{OFFSETS}/ResetOffsets", **of, **asked)).results
        seen = ([each.old_offset for each in told], [each.new_offset for each in told])
        ctx.same(f"where it was and is by {asked}", seen, (before, after))


@grpc_case(
    "transactions/described-with-partitions",
    FLUX,
    GO,
    clauses=("G-TXN-3", "G-TXN-2"),
    mutant="grpc-added-partitions-are-dropped",
    kills=("grpc-any-transaction-is-described",),
)
async def described(ctx: GrpcContext) -> None:
    """A transaction is described by its id, with its producer, state and the partitions that it writes to.

    One partition is said beforehand, another by a publish. Once it has ended it is not there any more.
    """
    topic, name, other = await ctx.queue(3), ctx.name("p"), ctx.name("p")
    whose: list[tuple[dict[str, Any], str]] = []
    for each in (other, name):
        told = await ctx.done(f"{TRANSACTIONS}/InitProducer", transactional_id=each, transaction_timeout_ms=60_000)
        who = {"transactional_id": each, "producer_id": told.producer_id, "epoch": told.epoch}
        whose.append((who, (await ctx.done(f"{TRANSACTIONS}/BeginTransaction", **who)).transaction_id))
    who, transaction = whose[1]
    await ctx.done(f"{TRANSACTIONS}/AddPartition", **who, topic=topic, partition=2)
    numbers: dict[str, Any] = {"producer_id": who["producer_id"], "producer_epoch": who["epoch"]}
    await _publish(ctx, topic, b"x", partition=0, **numbers)
    told = (await ctx.done(f"{TRANSACTIONS}/DescribeTransaction", transaction_id=transaction)).transaction
    seen = (told.transaction_id, told.transactional_id, told.producer_id, told.epoch)
    ctx.same("whose it is", seen, (transaction, name, who["producer_id"], who["epoch"]))
    places = [(each.topic, sorted(each.partitions)) for each in told.partitions]
    ctx.same("its partitions", places, [(topic, [0, 2])])
    ctx.must(bool(told.state) and told.timeout_ms == 60_000, f"expected state and time; seen {told}")
    for producer, _ in whose:
        await ctx.done(f"{TRANSACTIONS}/CommitTransaction", **producer)
    ended = await ctx.call(f"{TRANSACTIONS}/DescribeTransaction", transaction_id=transaction)
    ctx.refused(ended, "NOT_FOUND", "FAILED_PRECONDITION")

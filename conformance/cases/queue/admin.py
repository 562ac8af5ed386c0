"""Administering queues over ``$admin/queue/...``: create, change, delete, purge, and who may."""

from __future__ import annotations

import json
from collections.abc import Callable

from assay.conformance.case import CaseContext, case
from assay.conformance.cases.queue.administration import NOT_AUTHORIZED, ask, create, figure, refused
from assay.conformance.cases.queue.support import (
    admin,
    consume,
    deliveries,
    expect_dead_letters,
    new_queue,
    property_of,
    publish_with,
    settle,
)
from assay.conformance.connection import Connection
from assay.conformance.partitioners import fnv1a, murmur3
from assay.conformance.wire import Publish, Suback, Subscribe, Subscription

_PARTITIONS = 4


@case(
    "queue/admin/create-and-use",
    clauses=("Q-ADMIN-01", "Q-ADMIN-02"),
    requires=("queues",),
    mutant="queue-answers-without-correlation",
    near_miss="queue-one-batch-per-message",
)
async def create_and_use(ctx: CaseContext) -> None:
    """A request to create a queue is answered on its response topic, and the queue is there with its settings.

    A queue with room for one message is created. The answer is JSON and carries the correlation data. One message is
    accepted and delivered, a second is refused.
    """
    queue = new_queue(ctx)
    client = await ctx.connect(version=5, name="client")
    await create(ctx, client, queue, max_depth=1)
    first, second = [await publish_with(client, queue, payload) for payload in (b"first", b"second")]
    ctx.must(first.reason_code < 0x80 <= second.reason_code, f"client: expected room for one; seen {first}, {second}")
    consumer = await consume(ctx, queue)
    await consumer.expect_publish(payload=b"first")


@case(
    "queue/admin/create-again",
    clauses=("Q-ADMIN-03",),
    requires=("queues",),
    mutant="queue-create-overwrites",
    near_miss="queue-one-batch-per-message",
)
async def create_again(ctx: CaseContext) -> None:
    """Creating a queue again is fine with the same settings; with others it is refused, and nothing changes.

    A queue with room for two messages is created twice. Creating it with room for one fails, and two still fit.
    """
    queue = new_queue(ctx)
    client = await ctx.connect(version=5, name="client")
    for _ in range(2):
        await create(ctx, client, queue, max_depth=2)
    await refused(ctx, client, "create", {"name": queue, "max_depth": 1})
    for payload in (b"1", b"2"):
        puback = await publish_with(client, queue, payload)
        ctx.must(puback.reason_code < 0x80, f"client: expected room for two messages; seen {puback}")


@case(
    "queue/admin/changes-hold-at-once",
    clauses=("Q-ADMIN-04",),
    requires=("queues", "clock"),
    mutant="queue-changes-hold-after-a-restart",
    kills=("queue-time-to-live-of-its-creation", "queue-partitioner-of-its-creation"),
    near_miss="queue-one-batch-per-message",
)
async def changes(ctx: CaseContext) -> None:
    """Settings of a queue in use can be changed; the answer tells how it is configured.

    A queue is full with one message. It gets room for two and smaller messages: the next is accepted, one that is too
    large is refused, and asking again tells the new settings. Another one gets another partitioner and a time to live:
    the next message of a key is in the partition that the key leads to now, and one that is older than that time is
    given to nobody.
    """
    queue = new_queue(ctx)
    client = await ctx.connect(version=5, name="client")
    await create(ctx, client, queue, max_depth=1)
    await publish_with(client, queue, b"first")
    await ask(ctx, client, queue, "config", {"max_depth": 2, "max_message_bytes": 10})
    large = await publish_with(client, queue, b"eleven byte")
    ctx.must(large.reason_code >= 0x80, f"client: expected eleven bytes to be refused; seen {large}")
    second = await publish_with(client, queue, b"second")
    ctx.must(second.reason_code < 0x80, f"client: expected room for a second message; seen {second}")
    told = (await ask(ctx, client, queue, "config")).get("config")
    seen = [told.get(name) if isinstance(told, dict) else None for name in ("max_depth", "max_message_bytes")]
    ctx.must(seen == [2, 10], f"client: expected the new settings to be told; seen {seen}")
    await _changes_of_what_comes(ctx, client)


async def _changes_of_what_comes(ctx: CaseContext, client: Connection) -> None:
    queue = new_queue(ctx)
    await create(ctx, client, queue, partitions=_PARTITIONS, partitioner="fnv1a")
    key = next(f"key {number}" for number in range(100) if _leads(fnv1a, number) != _leads(murmur3, number))
    await publish_with(client, queue, b"before", partition_key=key)
    await ask(ctx, client, queue, "config", {"partitioner": "murmur3", "message_ttl_s": 60})
    await publish_with(client, queue, b"old", partition_key=key)
    await ctx.advance(90.0)
    await publish_with(client, queue, b"young", partition_key=key)
    consumer = await consume(ctx, queue)
    found = {each.payload: each for each in await deliveries(consumer, at_least=1)}
    ctx.must(b"young" in found, f"consumer: expected what came last; seen {[*found]}")
    ctx.must(
        b"old" not in found, f"consumer: expected nothing that is older than the new time to live; seen {[*found]}"
    )
    partition = int(property_of(ctx, found[b"young"], "partition"))
    wanted = murmur3(key.encode()) % _PARTITIONS
    ctx.must(partition == wanted, f"consumer: expected {key!r} in partition {wanted} by murmur3; seen {partition}")


def _leads(partitioner: Callable[[bytes], int], number: int) -> int:
    return partitioner(f"key {number}".encode()) % _PARTITIONS


@case(
    "queue/admin/settings-survive",
    clauses=("Q-ADMIN-05",),
    requires=("queues", "restart"),
    mutant="queue-file-wins-over-run-time",
    near_miss="queue-one-batch-per-message",
    settings={"queues": {"configured": [{"name": "set", "max_depth": 1, "durability": "fsync"}]}},
    limit_s=15.0,
)
async def survive(ctx: CaseContext) -> None:
    """What was set at run time holds after kill -9, and wins over the file until it is taken back.

    The file gives a queue room for one message, run time for two. After the restart two fit, and no third. With null
    the file's setting is back, and holds after another restart.
    """
    client = await ctx.connect(version=5, name="client")
    await ask(ctx, client, "set", "config", {"max_depth": 2})
    await ctx.restart()
    client = await ctx.connect(version=5, name="client again")
    codes = [(await publish_with(client, "set", payload)).reason_code for payload in (b"1", b"2", b"3")]
    ctx.must(codes[1] < 0x80 <= codes[2], f"client: expected room for two messages; seen the codes {codes}")
    await ask(ctx, client, "set", "config", {"max_depth": None})
    await ctx.restart()
    client = await ctx.connect(version=5, name="client once more")
    told = (await ask(ctx, client, "set", "config"))["config"]["max_depth"]
    ctx.must(told == 1, f"client: expected the file's max_depth of 1; seen {told}")


@case(
    "queue/admin/refused-changes-nothing",
    clauses=("Q-ADMIN-06",),
    requires=("queues",),
    mutant="queue-unknown-settings-ignored",
    near_miss="queue-one-batch-per-message",
)
async def changes_nothing(ctx: CaseContext) -> None:
    """Unknown operations and settings, bad values and settings that are fixed are refused, and change nothing.

    Each request names a good setting beside the bad one. Afterwards the good one has not changed.
    """
    queue = new_queue(ctx)
    client = await ctx.connect(version=5, name="client")
    await create(ctx, client, queue, max_depth=7)
    await refused(ctx, client, f"{queue}/paint")
    bad = ({"max_dept": 1}, {"max_depth": "many"}, {"durability": "interval"}, {"ordering": "none"}, {"partitions": 0})
    for change in bad:
        await refused(ctx, client, f"{queue}/config", {"max_message_bytes": 10, **change})
    told = (await ask(ctx, client, queue, "config"))["config"]
    seen = [told["max_depth"], told["max_message_bytes"] == 10]
    ctx.must(seen == [7, False], f"client: expected nothing to have changed; seen {told}")


@case(
    "queue/admin/names-that-begin-alike",
    clauses=("Q-ADMIN-13",),
    requires=("queues",),
    mutant="queue-purge-by-prefix",
    near_miss="queue-one-batch-per-message",
)
async def alike(ctx: CaseContext) -> None:
    """Figures, purge, delete and dead letters of a queue leave queues whose names begin alike alone (F39).

    Queues q, q-eu and q/eu get a message each, and q-eu a dead letter. Purging and deleting q, and purging its dead
    letters, changes nothing of the others.
    """
    queue = new_queue(ctx)
    names = (queue, f"{queue}-eu", f"{queue}/eu")
    client = await ctx.connect(version=5, name="client")
    for name in names:
        await create(ctx, client, name)
        await publish_with(client, name, name.encode())
    for name in names[:2]:
        consumer = await consume(ctx, name, name=f"consumer {name}")
        await settle(ctx, consumer, name, "reject", await consumer.expect_publish())
        await consumer.disconnect()
        await publish_with(client, name, b"more")
    depths = {name: await figure(ctx, client, name, "depth") for name in names}
    ctx.must(set(depths.values()) == {1}, f"client: expected a depth of one for each; seen {depths}")
    for path in (f"dlq/{queue}", queue):
        answer = await ask(ctx, client, path, "purge")
        ctx.must(answer.get("purged") == 1, f"client: expected one message of {path} to be purged; seen {answer}")
    await ask(ctx, client, queue, "delete")
    depths = {name: await figure(ctx, client, name, "depth") for name in names[1:]}
    ctx.must(set(depths.values()) == {1}, f"client: expected one message in each of the others; seen {depths}")
    await expect_dead_letters(ctx, names[1], names[1].encode())


@case(
    "queue/admin/stream-of-figures",
    clauses=("Q-ADMIN-14",),
    level="SHOULD",
    requires=("queues", "clock"),
    mutant="queue-figures-once",
)
async def stream(ctx: CaseContext) -> None:
    """Who subscribes to the figures of a queue gets them again and again, and none of other queues.

    Two queues have messages. A client that subscribes to the figures of one gets at least two sets within five seconds
    of the broker's clock, all of that queue.
    """
    queue = new_queue(ctx)
    client = await ctx.connect(version=5, name="client")
    for name in (queue, f"{queue}-other"):
        await publish_with(client, name, b"message")
    watcher = await ctx.connect(version=5, name="watcher")
    await watcher.subscribe(Subscription(filter=f"$admin/queue/{queue}/stats", qos=0))
    for _ in range(5):
        await ctx.advance(1.0)
    found = [json.loads(packet.payload) for packet in await deliveries(watcher, at_least=2)]
    names = {each.get("queue") for each in found}
    ctx.must(len(found) >= 2 and names == {queue}, f"watcher: expected figures of {queue}, repeatedly; seen {found}")


@case(
    "queue/admin/others-are-refused",
    clauses=("Q-ADMIN-15",),
    requires=("queues",),
    mutant="queue-admin-for-everybody",
    settings={"queues": {"admin_topics": "off"}},
)
async def others(ctx: CaseContext) -> None:
    """A client that may not administer is told so, and nothing is done (O1).

    Administration is off. Deleting a queue gets 0x87, and the queue still has its message; subscribing to figures is
    refused.
    """
    queue = new_queue(ctx)
    client = await ctx.connect(version=5, name="client")
    await publish_with(client, queue, b"message")
    puback = await refused(ctx, client, f"{queue}/delete")
    ctx.must(puback.reason_code == NOT_AUTHORIZED, f"client: expected 0x87; seen {puback}")
    wanted = (Subscription(filter=f"$admin/queue/{queue}/stats", qos=0),)
    client.send(Subscribe(packet_id=client.next_packet_id(), subscriptions=wanted))
    suback = await client.expect(Suback)
    ctx.must(suback.reason_codes[0] >= 0x80, f"client: expected the subscription to be refused; seen {suback}")
    consumer = await consume(ctx, queue)
    await consumer.expect_publish(payload=b"message")


@case(
    "queue/admin/requests-are-not-passed-on",
    clauses=("Q-ADMIN-16",),
    requires=("queues", "wildcards"),
    mutant="queue-admin-requests-routed",
    near_miss="queue-one-batch-per-message",
)
async def passed_on(ctx: CaseContext) -> None:
    """A request is for the broker: no subscriber gets it (O1).

    A client subscribes to all administration topics of a queue; another one creates it, and changes it at QoS 0 and 1.
    The first sees figures at most.
    """
    queue = new_queue(ctx)
    client = await ctx.connect(version=5, name="client")
    watcher = await ctx.connect(version=5, name="watcher")
    await watcher.subscribe(Subscription(filter=f"$admin/queue/{queue}/#", qos=1))
    await create(ctx, client, queue)
    client.send(Publish(topic=f"$admin/queue/{queue}/config", payload=b'{"max_depth": 3}'))
    await ask(ctx, client, queue, "config", {"max_depth": 2})
    topics = {packet.topic for packet in await watcher.barrier() if isinstance(packet, Publish)}
    topics.discard(f"$admin/queue/{queue}/stats")
    ctx.must(not topics, f"watcher: expected no requests; seen messages on {sorted(topics)}")


@case(
    "queue/admin/templates",
    clauses=("Q-ADMIN-18",),
    requires=("queues",),
    mutant="queue-template-fits-prefixes",
    settings={"queues": {"templates": {"log-?": {"max_depth": 1}, "log-*": {"max_message_bytes": 5}}}},
)
async def templates(ctx: CaseContext) -> None:
    """A template's settings hold for the queues that its pattern fits, and for no others.

    log-? gives room for one message, log-* takes five bytes at most. log-a has both, log-ab the second, logs none.
    """
    client = await ctx.connect(version=5, name="client")
    seen: dict[str, tuple[bool, bool]] = {}
    for name in ("log-a", "log-ab", "logs"):
        long = await publish_with(client, name, b"sixsix")
        for payload in (b"1", b"2"):
            last = await publish_with(client, name, payload)
        seen[name] = last.reason_code < 0x80, long.reason_code < 0x80
    wanted = {"log-a": (False, False), "log-ab": (True, False), "logs": (True, True)}
    ctx.must(seen == wanted, f"client: expected (two fit, six bytes fit) of {wanted}; seen {seen}")


@case(
    "queue/admin/list",
    clauses=("Q-ADMIN-19",),
    level="SHOULD",
    requires=("queues",),
    mutant="queue-list-ignores-the-prefix",
    near_miss="queue-one-batch-per-message",
)
async def listed(ctx: CaseContext) -> None:
    """The queues can be listed, or those that begin with a prefix.

    Of two queues that begin alike and one that does not, the list with that prefix names the two, and the whole list
    all three.
    """
    queue, stranger = new_queue(ctx), new_queue(ctx)
    client = await ctx.connect(version=5, name="client")
    names = {queue, f"{queue}-more", stranger}
    for name in names:
        await create(ctx, client, name)
    found = (await admin(ctx, client, "queue/list", {"prefix": queue})).get("queues")
    ctx.must(found == [queue, f"{queue}-more"], f"client: expected the two that begin with {queue}; seen {found}")
    every = (await admin(ctx, client, "queue/list")).get("queues")
    ctx.must(names.issubset(every or ()), f"client: expected {sorted(names)} among all; seen {every}")

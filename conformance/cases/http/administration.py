"""What operators do by HTTP: dead letters, groups and what they hold, bindings, sessions, figures, tenants."""

from __future__ import annotations

import asyncio
from typing import Any, NamedTuple

from assay.conformance.arrival import soon
from assay.conformance.connection import Connection
from assay.conformance.http.context import API, QUEUES, TOPICS, HttpContext, http_case, payloads
from assay.conformance.wire import Properties, Puback, Pubcomp, Publish, Pubrec, Pubrel, Subscription, encode
from assay.conformance.wire.amqp091 import PROTOCOL_HEADER, Method, encode_content, encode_method


@http_case(
    "administration/dead-letters-are-replayed-and-purged",
    QUEUES,
    clauses=("H-ADMIN-2",),
    mutant="http-replay-does-nothing",
    kills=("http-dead-letters-uncounted", "http-purge-spares-letters"),
)
async def dead_letters(ctx: HttpContext) -> None:
    """Dead letters are counted and read; replayed ones are fresh messages of their queue, purged ones are gone.

    Of three, one is replayed by its id, then all that are left; another one is purged.
    """
    queue = await ctx.queue()
    ctx.leaves(f"{API}/queues/dlq%2F{queue}")
    await ctx.fill(queue, "a", "b", "c")
    await ctx.done(queue, "reject", *await ctx.take_all(queue, 3), reason="why")
    base = f"{API}/queues/{queue}/dlq"
    ctx.same("how many there are", (await ctx.me.get(base)).at("current"), 3)
    letters = await ctx.me.get(f"{API}/queues/dlq%2F{queue}/messages")
    ctx.same("the dead letters", payloads(letters.at("messages")), ["a", "b", "c"])
    second = letters.at("messages", 1, "message_id", kind=str)
    ctx.same("replayed", (await ctx.me.post(f"{base}/replay", {"message_id": second})).at("replayed"), 1)
    (fresh,) = await ctx.take_all(queue, 1)
    ctx.same("the message and its deliveries", (fresh["payload"], fresh["delivery_count"]), ("b", 1))
    ctx.refused(await ctx.me.post(f"{base}/replay", {"message_id": second}), (400, 404))
    ctx.same("replayed", (await ctx.me.post(f"{base}/replay", {})).at("replayed"), 2)
    rest = await ctx.take_all(queue, 2)
    ctx.same("the messages", sorted(payloads(rest)), ["a", "c"])
    await ctx.done(queue, "reject", rest[0], reason="again")
    ctx.same("purged", (await ctx.me.post(f"{base}/purge")).at("purged"), 1)
    ctx.same("how many there are", (await ctx.me.get(base)).at("current"), 0)


@http_case(
    "administration/groups-pending-and-reset",
    QUEUES,
    clauses=("H-ADMIN-3", "H-ADMIN-5", "H-ADMIN-6"),
    mutant="http-pending-pages-repeat",
    kills=("http-reset-does-nothing", "http-consumers-unlisted"),
)
async def groups(ctx: HttpContext) -> None:
    """What a group holds is told page by page, who consumes with what, and after a reset it goes on from elsewhere.

    Three of four messages are held; the group is set back to the second message.
    """
    queue = await ctx.queue()
    await ctx.fill(queue, "a", "b", "c", "d")
    await ctx.take_all(queue, 3, consumer="one")
    consumers = (await ctx.me.get(f"{API}/queues/{queue}/consumers")).at("consumers", kind=list)
    seen = [(each["group"], each["partitions"], each["in_flight"]) for each in consumers]
    ctx.same("group, partitions and what it holds", seen, [("g", [0], 3)])
    base = f"{API}/queues/{queue}/groups/g"
    ctx.same("the groups", [each["group"] for each in (await ctx.me.get(base.removesuffix("/g"))).at("groups")], ["g"])
    first = await ctx.me.get(f"{base}/pending?limit=2")
    second = await ctx.me.get(f"{base}/pending?limit=2&after={first.at('next', kind=str)}")
    offsets = [[each["offset"] for each in page.at("entries", kind=list)] for page in (first, second)]
    ctx.same("the pages", offsets, [[0, 1], [2]])
    ctx.same("its deliveries", first.at("entries", 0, "delivery_count"), 1)
    ctx.refused(await ctx.me.get(f"{base}/pending?after=x"), 400)
    ctx.same("the cursors", (await ctx.me.post(f"{base}/reset", {"to": "1"})).at("cursors"), {"0": 1})
    again = await ctx.take_all(queue, 3, consumer="one")
    ctx.same("what comes then", payloads(again), ["b", "c", "d"])
    for asked in ({"to": "middle"}, {"to": "earliest", "partition": 9}, {}):
        ctx.refused(await ctx.me.post(f"{base}/reset", asked), (400, 404))


@http_case(
    "administration/a-group-begins-when-it-is-made",
    QUEUES,
    clauses=("H-ADMIN-4", "H-ADMIN-8"),
    mutant="http-groups-not-made",
    kills=("http-groups-with-consumers-go",),
)
async def new_group(ctx: HttpContext) -> None:
    """A group that is made gets all that comes from then on, also what others settled; with consumers it stays.

    Another group has settled the message before.
    """
    queue = await ctx.queue()
    base = f"{API}/queues/{queue}/groups"
    ctx.status(await ctx.me.post(base, {"group": "later"}), 201)
    await ctx.fill(queue, "a")
    await ctx.done(queue, "accept", *await ctx.take_all(queue, 1))
    ctx.same("its lag", (await ctx.me.get(f"{base}/later")).at("lag"), 1)
    ctx.same("what it gets", payloads(await ctx.take_all(queue, 1, group="later")), ["a"])
    ctx.refused(await ctx.me.delete(f"{base}/later"), 409, "in_use")
    ctx.status(await ctx.me.post(f"{API}/queues/{queue}/leave", {"group": "later"}), 200)
    ctx.status(await ctx.me.delete(f"{base}/later"), 200)
    ctx.refused(await ctx.me.get(f"{base}/later"), 404, "unknown_group")
    ctx.refused(await ctx.me.get(f"{base}/later/pending"), 404, "unknown_group")


@http_case(
    "administration/claims-take-what-is-idle",
    QUEUES,
    clauses=("H-ADMIN-7",),
    requires=("clock",),
    mutant="http-claims-take-all",
    kills=("http-claims-take-nothing",),
)
async def claims(ctx: HttpContext) -> None:
    """A claim takes over what others have had for long enough, counted once more; what is younger stays theirs.

    The first of two messages was delivered a minute before the other. One that is named is refused by 409.
    """
    queue = await ctx.queue(delivery_timeout_s=3_000, group={"session_timeout_s": 3_000})
    await ctx.fill(queue, "old")
    await ctx.take_all(queue, 1, consumer="one")
    await ctx.advance(60)
    await ctx.fill(queue, "new")
    (new,) = await ctx.take_all(queue, 1, consumer="one")
    path = f"{API}/queues/{queue}/claim"
    claimed = await ctx.me.post(path, {"group": "g", "consumer": "two", "min_idle_s": 30})
    ctx.status(claimed, 200)
    seen = [(each["payload"], each["delivery_count"]) for each in claimed.at("messages", kind=list)]
    ctx.same("what was claimed", seen, [("old", 2)])
    one = {"group": "g", "consumer": "two", "min_idle_s": 30, "partition": 0, "offset": new["offset"]}
    ctx.refused(await ctx.me.post(path, one), 409, "not_idle")
    ctx.refused(await ctx.me.post(path, {**one, "offset": 99}), 404)
    ctx.refused(await ctx.me.post(path, {"group": "none"}), 404, "unknown_group")
    ctx.refused(await ctx.me.post(path, {"group": "g", "partition": 0}), 400)
    await ctx.done(queue, "accept", *claimed.at("messages"))
    await ctx.done(queue, "accept", new)


@http_case("administration/bindings-capture-topics", QUEUES, clauses=("H-ADMIN-1",), mutant="http-bindings-forgotten")
async def bindings(ctx: HttpContext) -> None:
    """A queue that is bound to filters gets what is published to topics they match, and what is bound is told.

    After another set of filters the first ones hold no more. Filters with misplaced wildcards are refused.
    """
    queue = await ctx.queue()
    path = f"{API}/queues/{queue}/bindings"
    ctx.same("what is bound", (await ctx.me.get(path)).at("topics"), [])
    ctx.status(await ctx.me.put(path, {"topics": [ctx.topic("a/+")]}), 200)
    ctx.same("what is bound", (await ctx.me.get(path)).at("topics"), [ctx.topic("a/+")])
    client = await ctx.connect()
    for topic in ("a/b", "c", "a/b/c"):
        await client.publish(ctx.topic(topic), topic.encode(), qos=1)
    ctx.same("the message", payloads(await ctx.take_all(queue, 1)), ["a/b"])
    await ctx.none_left(queue)
    ctx.status(await ctx.me.put(path, {"topics": [ctx.topic("c")]}), 200)
    for topic in ("a/b", "c"):
        await client.publish(ctx.topic(topic), topic.encode(), qos=1)
    ctx.same("the message", payloads(await ctx.take_all(queue, 1)), ["c"])
    for wrong in ("a/#/b", "a+", ""):
        ctx.refused(await ctx.me.put(path, {"topics": [wrong]}), 400)


@http_case(
    "administration/sessions-are-told",
    QUEUES,
    clauses=("H-ADMIN-9",),
    requires=("mqtt5",),
    mutant="http-sessions-unlisted",
)
async def sessions(ctx: HttpContext) -> None:
    """Sessions of MQTT are listed and shown with their subscriptions, and filters with their subscribers.

    A client with two subscriptions, which stays behind when it goes.
    """
    client = await ctx.connect(properties=Properties(session_expiry_interval=600))
    topic = ctx.topic("x")
    await client.subscribe(topic, qos=1)
    name = client.client_id
    listed = await ctx.me.get(f"{API}/sessions?prefix={name}&state=connected")
    ctx.same("the sessions", [each["client_id"] for each in listed.at("sessions", kind=list)], [name])
    shown = await ctx.me.get(f"{API}/sessions/{name}")
    ctx.same("state", (shown.at("state"), shown.at("subscription_count")), ("connected", 1))
    told = [(each["filter"], each["qos"]) for each in shown.at("subscriptions", kind=list)]
    ctx.same("its subscriptions", told, [(topic, 1)])
    encoded = topic.replace("/", "%2F")
    found = await ctx.me.get(f"{API}/subscriptions?prefix={topic}")
    ctx.same("the filter", [each["filter"] for each in found.at("subscriptions", kind=list)], [topic])
    clients = await ctx.me.get(f"{API}/subscriptions/{encoded}/clients")
    ctx.same("its clients", [each["client_id"] for each in clients.at("clients", kind=list)], [name])
    ctx.refused(await ctx.me.get(f"{API}/sessions/{ctx.client_id()}"), 404)
    ctx.refused(await ctx.me.get(f"{API}/sessions?state=sleeping"), 400)


@http_case(
    "administration/figures-are-told",
    QUEUES,
    clauses=("H-ADMIN-10",),
    requires=("mqtt5",),
    mutant="http-overview-without-queues",
    kills=("http-messages-are-mixed",),
)
async def figures(ctx: HttpContext) -> None:
    """Figures of the broker count what is done, and tell of the node, also as parts of the overview.

    They are those of the queues that there are, of which one has a message that was settled; and of messages of MQTT,
    of which three hundred are received, and sent to nobody.
    """
    before = (await ctx.me.get(f"{API}/stats")).at("messages", "received", kind=int)
    client = await ctx.connect()
    for _ in range(300):
        await client.publish(ctx.topic("unheard"), b"x", qos=0)
    await client.barrier()
    received = (await ctx.me.get(f"{API}/stats")).at("messages", "received", kind=int) - before
    ctx.must(received >= 300, f"expected 300 messages more to be received; seen {received}")
    queue = await ctx.queue()
    await ctx.fill(queue, "a")
    await ctx.done(queue, "accept", *await ctx.take_all(queue, 1))
    overview = await ctx.me.get(f"{API}/overview")
    for name in ("enqueued", "acked"):
        ctx.must(overview.at("stats", "queues", name, kind=int) >= 1, f"expected {name} to count; seen {overview}")
    stats = await ctx.me.get(f"{API}/stats")
    ctx.must(stats.at("uptime_seconds") >= 0 and stats.at("sessions") >= 0, f"seen {stats}")
    cluster = await ctx.me.get(f"{API}/cluster")
    nodes = [each["id"] for each in cluster.at("nodes", kind=list)]
    ctx.must(cluster.at("node_id") in nodes, f"expected this node among the nodes; seen {cluster}")
    for path in ("/reliability/stats", "/version"):
        ctx.status(await ctx.me.get(API + path), 200)


_CHANNEL_OPEN_OK = b"\0\x14\0\x0b"
"""Class and method."""


class _Figures(NamedTuple):
    """What went by so far."""

    read: int
    """Bytes of MQTT that came, less those that this case sent."""
    messages: int
    payloads: int
    sent: int
    """Bytes of payloads that came, and that went."""
    more: int
    """What telling of them may have added to those that went."""


async def _told(ctx: HttpContext, name: str) -> _Figures:
    """As topics below $SYS tell them somebody who asks for each alone."""
    watcher = await ctx.connect(version=5, name=name)
    found: list[bytes] = []
    for figure in ("bytes/received", "publish/messages/received", "publish/bytes/received", "publish/bytes/sent"):
        topic = f"$SYS/broker/{figure}"
        await watcher.subscribe(topic)
        if not found:
            written = sum(len(line.hex) // 2 for line in ctx.transcript.lines if line.direction == "send")
        value = (await watcher.expect_publish(topic)).payload
        ctx.must(value.isdigit(), f"{name}: expected a number on {topic}; seen {value!r}")
        found.append(value)
    await watcher.disconnect()
    read, messages, payloads, sent = map(int, found)
    return _Figures(read - written, messages, payloads, sent, sum(map(len, found)))


async def _burst(publisher: Connection, topic: str, qos: int, bodies: list[bytes]) -> None:
    """All at once, each acknowledged to the end."""
    ids = [publisher.next_packet_id() if qos else 0 for _ in bodies]
    publisher.send(
        *(Publish(topic=topic, payload=body, qos=qos, packet_id=id_) for id_, body in zip(ids, bodies, strict=True))
    )
    for _ in ids if qos == 1 else ():
        await publisher.expect(Puback)
    if qos == 2:
        for _ in ids:
            await publisher.expect(Pubrec)
        publisher.send(*(Pubrel(packet_id=id_) for id_ in ids))
        for _ in ids:
            await publisher.expect(Pubcomp)
    if not qos:
        await publisher.barrier()


async def _begun(ctx: HttpContext, watcher: Connection, wanted: int) -> None:
    """So many bytes of packets that have begun to come are soon told."""
    topic, ask_again = "$SYS/broker/partial packets/bytes", soon(ctx)
    while True:
        await watcher.subscribe(topic)
        seen = int((await watcher.expect_publish(topic)).payload)
        if seen == wanted:
            return
        ctx.must(await ask_again(), f"expected {wanted} bytes to have begun to come; seen {seen}")


async def _begin_over_amqp(ctx: HttpContext) -> tuple[asyncio.StreamWriter, int]:
    """A connection of AMQP whose message is there but for its end; how much has come of its body, and of a frame."""
    reader, writer = await asyncio.open_connection(ctx.endpoint.host, ctx.endpoint.port)
    writer.write(PROTOCOL_HEADER)
    opens: tuple[tuple[int, str, dict[str, Any]], ...] = (
        (0, "connection.start-ok", {"mechanism": "PLAIN", "response": b"\0guest\0guest", "locale": "en_US"}),
        (0, "connection.tune-ok", {"channel_max": 10, "frame_max": 8_192}),
        (0, "connection.open", {"virtual_host": "/"}),
        (1, "channel.open", {}),
    )
    for channel, name, fields in opens:
        writer.write(encode_method(channel, Method(name, **fields)))
    await reader.readuntil(_CHANNEL_OPEN_OK)
    content = encode_content(1, Method("basic.publish", routing_key="nowhere"), b"." * 3_000, part_bytes=1_000)
    writer.write(content[:-500])
    return writer, 2_000 + 1_008 - 500


@http_case(
    "administration/what-goes-by-is-counted",
    QUEUES,
    clauses=("H-ADMIN-10", "H-ADMIN-15"),
    requires=("mqtt5", "mqtt311"),
    settings={"sys": {"interval_s": 3_600}},
    mutant="figures-of-lowered-bursts-without-payloads",
    kills=(
        "figures-of-lowered-bursts-with-less",
        "figures-of-bursts-that-nobody-gets",
        "figures-of-what-amqp-began-without-it",
    ),
    limit_s=20.0,
)
async def counted(ctx: HttpContext) -> None:
    """Each message and each byte of a payload counts once, received or sent, however it is published and delivered.

    In both versions, at each QoS, to a subscriber of each QoS and to nobody; one alone, and three together, of other
    lengths. What ``$SYS`` tells before and behind that differs by so much, and by what telling it took. Before that,
    packets that have begun to come count, also over AMQP, until they are whole or their clients have gone.
    """
    watcher = await ctx.connect(version=5, name="watcher")
    begins = await ctx.connect(version=5, name="who begins")
    begun = encode(Publish(topic=ctx.topic("begun"), payload=b"." * 100), 5)
    begins.send_raw(begun[:-50])
    await _begun(ctx, watcher, len(begun) - 50)
    if ctx.capabilities.get("amqp091_shares_its_port"):
        writer, more = await _begin_over_amqp(ctx)
        await _begun(ctx, watcher, len(begun) - 50 + more)
        writer.close()
    begins.send_raw(begun[-50:])
    await _begun(ctx, watcher, 0)
    before = await _told(ctx, "watcher before")
    messages = received = sent = 0
    bodies = [b"." * (3 * number + 1) for number in range(3)]
    for version in (4, 5):
        publisher = await ctx.connect(version=version, name=f"publisher of {version}")
        for granted in (0, 1, 2, None):
            topic = ctx.topic(f"{version}/{granted}")
            reader = await ctx.connect(version=version, name=f"reader of {version} at {granted}")
            if granted is not None:
                await reader.subscribe(Subscription(filter=topic, qos=granted))
            for qos in (0, 1, 2):
                for some in (bodies, bodies[-1:]) if granted == 1 else (bodies,):
                    await _burst(publisher, topic, qos, some)
                    messages += len(some)
                    received += sum(map(len, some))
                    if granted is not None:
                        for body in some:
                            await reader.expect_publish(topic, body)
                        sent += sum(map(len, some))
    after = await _told(ctx, "watcher behind")
    ctx.same("bytes received that nobody sent", after.read, before.read)
    ctx.same("messages received", after.messages - before.messages, messages)
    ctx.same("bytes of payloads received", after.payloads - before.payloads, received)
    told = after.sent - before.sent - sent
    ctx.must(0 <= told <= before.more + after.more, f"expected {sent} bytes of payloads to be sent; seen {told} more")


@http_case("administration/a-topic-is-scaled", TOPICS, clauses=("H-ADMIN-12",), mutant="http-scaling-is-told-only")
async def scale(ctx: HttpContext) -> None:
    """A topic gets more partitions, and the answer tells how many it had, has and got; fewer are refused.

    The new ones take messages.
    """
    topic = await ctx.topic_named(2)
    path = f"/admin/topics/{topic}/partitions"
    answer = await ctx.me.post(path, {"count": 5})
    ctx.status(answer, 200)
    seen = [answer.at(name) for name in ("success", "old_partition_count", "new_partition_count", "partitions_added")]
    ctx.same("what is told", seen, [True, 2, 5, 3])
    await ctx.publish_to(topic, {"value": "a", "partition": 4})
    ctx.refused_as_goqueue(await ctx.me.post(path, {"count": 1}), 400, 409)
    ctx.refused_as_goqueue(await ctx.me.post(f"/admin/topics/{ctx.name('none')}/partitions", {"count": 2}), 404)


@http_case(
    "administration/tenants-are-told",
    QUEUES,
    clauses=("H-ADMIN-11", "H-ADMIN-13"),
    settings={"queues": {"tenants": [{"name": "acme", "users": ["annabel"], "quotas": {"max_queues": 3}}]}},
    mutant="http-tenants-unlisted",
    together=True,
)
async def tenants(ctx: HttpContext) -> None:
    """Tenants are listed and shown with users, quotas and usage; one that there is not is refused with 404.

    A configuration that was not read from a file cannot be read again.
    """
    for base in (f"{API}/tenants", f"{API}/admin/tenants"):
        names = [each["name"] for each in (await ctx.me.get(base)).at("tenants", kind=list)]
        ctx.same("the tenants", names, ["acme"])
        shown = await ctx.me.get(f"{base}/acme")
        ctx.same("its users", shown.at("users"), ["annabel"])
        ctx.same("its quota", shown.at("quotas", "max_queues"), 3)
        ctx.refused(await ctx.me.get(f"{base}/none"), 404)
    ctx.status(await ctx.me.post(f"{API}/reload"), 200, 501, 503)

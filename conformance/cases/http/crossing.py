"""Messages and groups over several protocols, FluxMQ's bridge, streams to browsers, and restarts."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import resource
from typing import Any

from assay.conformance.cases.queue.refusing_disk import limit_files, limit_near
from assay.conformance.http.client import Answer, HttpClient, HttpConnection
from assay.conformance.http.context import API, BRIDGE, QUEUES, TOPICS, VIEWS, HttpContext, http_case, payloads
from assay.conformance.wire import Properties
from assay.conformance.wire.websocket import Frame, FrameReader, Opcode, encode_frame


@http_case(
    "crossing/from-http-to-mqtt",
    QUEUES,
    clauses=("H-CROSS-1",),
    requires=("mqtt5", "queues"),
    mutant="http-headers-dropped",
)
async def to_mqtt(ctx: HttpContext) -> None:
    """A message that is published by HTTP is given to a consumer of MQTT, with key, headers and content type.

    Its acknowledgement settles it for consumers of HTTP as well.
    """
    queue = await ctx.queue()
    client = await ctx.connect()
    properties = Properties(user_property=(("consumer-group", "g"),))
    await client.subscribe(f"$queue/{queue}", qos=1, properties=properties)
    await ctx.fill(queue, {"payload": "a", "headers": {"h": "1"}, "key": "k", "content_type": "text/x"})
    message = await client.expect_publish()
    ctx.same("the payload", message.payload, b"a")
    told = dict(message.properties.user_property)
    ctx.same("header and key", (told.get("h"), told.get("partition-key")), ("1", "k"))
    ctx.same("the content type", message.properties.content_type, "text/x")
    settles = Properties(user_property=(("message-id", told["message-id"]),))
    await client.publish(f"$queue/{queue}/$ack", b"", qos=1, properties=settles)
    await client.disconnect()
    await ctx.none_left(queue)


@http_case(
    "crossing/from-mqtt-to-http",
    QUEUES,
    clauses=("H-CROSS-2",),
    requires=("mqtt5", "queues"),
    mutant="http-received-without-headers",
)
async def from_mqtt(ctx: HttpContext) -> None:
    """A message that is published over MQTT is given to a consumer of HTTP, with key, headers and content type.

    It is settled there, and comes to nobody else of the group.
    """
    queue = await ctx.queue()
    client = await ctx.connect()
    said = Properties(user_property=(("h", "1"), ("partition-key", "k")), content_type="text/x")
    await client.publish(f"$queue/{queue}", b"a", qos=1, properties=said)
    (found,) = await ctx.take_all(queue, 1)
    seen = (found["payload"], found["headers"].get("h"), found["key"], found["content_type"])
    ctx.same("payload, header, key, content type", seen, ("a", "1", "k", "text/x"))
    await ctx.done(queue, "accept", found)
    ctx.status(await ctx.me.post(f"{API}/queues/{queue}/leave", {"group": "g"}), 200)
    properties = Properties(user_property=(("consumer-group", "g"),))
    await client.subscribe(f"$queue/{queue}", qos=1, properties=properties)
    await client.publish(f"$queue/{queue}", b"b", qos=1)
    ctx.same("the payload", (await client.expect_publish()).payload, b"b")


@http_case(
    "crossing/a-group-over-both",
    QUEUES,
    clauses=("H-CROSS-3",),
    requires=("mqtt5", "queues"),
    mutant="http-groups-are-one",
)
async def shared(ctx: HttpContext) -> None:
    """Consumers of one group share its messages whatever protocol they come over: each goes to one of them.

    Two partitions, one of which each of the two gets.
    """
    queue = await ctx.queue(partitions=2)
    group = "shared"
    client = await ctx.connect()
    properties = Properties(user_property=(("consumer-group", group),))
    await client.subscribe(f"$queue/{queue}", qos=1, properties=properties)
    await ctx.none_left(queue, group=group)
    await ctx.fill(queue, {"payload": "0", "partition": 0}, {"payload": "1", "partition": 1})
    by_http = payloads(await ctx.take_all(queue, 1, group=group))
    by_mqtt = [(await client.expect_publish()).payload.decode()]
    ctx.same("the messages", sorted(by_http + by_mqtt), ["0", "1"])
    await ctx.none_left(queue, group=group)


@http_case(
    "crossing/nothing-that-mqtt-cannot-carry",
    QUEUES,
    BRIDGE,
    clauses=("H-CROSS-4", "H-PUB-7"),
    requires=("mqtt5", "queues"),
    mutant="http-texts-unchecked",
    kills=("http-letters-keep-nul",),
)
async def not_carried(ctx: HttpContext) -> None:
    """What no consumer of MQTT could be sent is refused, or left out: none of them ever gets a malformed message.

    U+0000 in headers, keys, content types, reasons and names, wildcards in routing keys; by all routes that publish.
    """
    queue = await ctx.queue()
    path = f"{API}/queues/{queue}/messages"
    for more in (
        {"headers": {"h": "a\0b"}},
        {"headers": {"\0": "a"}},
        {"key": "a\0b"},
        {"content_type": "a\0b"},
        {"routing_key": "a\0b"},
        {"routing_key": "a/#"},
        {"routing_key": "+"},
    ):
        ctx.status(await ctx.me.post(path, {"messages": [{"payload": "wrong", **more}]}), 200, 400)
    topic = ctx.topic("t")
    for asked in (
        {"topic": topic, "properties": {"h": "a\0"}},
        {"topic": f"{topic}\0"},
        {"topic": f"$queue/{queue}/a\0"},
    ):
        ctx.status(await ctx.me.post("/publish", asked), 200, 400)
    await ctx.fill(queue, "reject me", "right")
    found: dict[str, Any] = {}
    while not {"reject me", "right"} <= set(found):
        found |= {each["payload"]: each for each in await ctx.take_all(queue, 1, consumer="a\0b")}
    ctx.leaves(f"{API}/queues/dlq%2F{queue}")
    ctx.status(await ctx.settle(queue, "reject", found["reject me"], reason="no\0reason"), 200, 400)
    client = await ctx.connect()
    await client.subscribe(f"{topic}/#", qos=1)
    for each, payload in ((f"$queue/{queue}", b"right"), (f"$dlq/{queue}", b"reject me")):
        properties = Properties(user_property=(("consumer-group", "other"),))
        await client.subscribe(each, qos=1, properties=properties)
        while (await client.expect_publish()).payload != payload:
            pass


# FluxMQ's bridge


@http_case(
    "crossing/bridge-reaches-subscribers",
    BRIDGE,
    clauses=("H-BRIDGE-1", "H-BRIDGE-2"),
    requires=("mqtt5",),
    mutant="http-bridge-drops-retain",
    kills=("http-bridge-qos-0",),
)
async def publish(ctx: HttpContext) -> None:
    """What is sent to /publish reaches subscribers with payload and quality of service; retained, later ones as well.

    The payload is binary; the second message is the retained one.
    """
    topic, kept = ctx.topic("live"), ctx.topic("kept")
    ctx.retained_topics.add(kept)
    client = await ctx.connect()
    await client.subscribe(topic, qos=2)
    blob = bytes(range(256))
    for qos in (0, 1, 2):
        asked = {"topic": topic, "payload": base64.b64encode(blob).decode(), "qos": qos}
        ctx.status(await ctx.me.post("/publish", asked), 200, 202, 204)
        message = await client.expect_publish(topic)
        ctx.same("payload and quality of service", (message.payload, message.qos), (blob, qos))
    asked = {"topic": kept, "payload": "a2VwdA==", "qos": 1, "retain": True}
    ctx.status(await ctx.me.post("/publish", asked), 200, 202, 204)
    later = await ctx.connect()
    await later.subscribe(kept, qos=1)
    message = await later.expect_publish(kept)
    ctx.same("payload and retain", (message.payload, message.retain), (b"kept", True))


@http_case("crossing/bridge-to-a-queue", BRIDGE, QUEUES, clauses=("H-BRIDGE-3",), mutant="http-bridge-drops-properties")
async def bridge_queue(ctx: HttpContext) -> None:
    """A topic of a queue publishes to it, as over MQTT, with the properties of the message.

    The levels behind the name are the routing key.
    """
    queue = await ctx.queue()
    asked = {"topic": f"$queue/{queue}/eu/de", "payload": "eA==", "qos": 1, "properties": {"h": "1"}}
    ctx.status(await ctx.me.post("/publish", asked), 200, 202, 204)
    (found,) = await ctx.take_all(queue, 1, pattern="eu/#")
    ctx.same("payload and header", (found["payload"], found["headers"].get("h")), ("x", "1"))
    settle = {"topic": f"$queue/{queue}/$ack", "properties": {"message-id": found["message_id"]}}
    ctx.status(await ctx.me.post("/publish", settle), 400, 403)


@http_case(
    "crossing/bridge-takes-raw-bodies",
    BRIDGE,
    clauses=("H-BRIDGE-4",),
    requires=("mqtt5",),
    mutant="http-raw-bodies-mended",
    kills=("http-bridge-drops-retain",),
)
async def raw(ctx: HttpContext) -> None:
    """A body that is sent to /m/<path> is published as it is to the topic m/<path>, with qos and retain as asked.

    Of any content type, and not read as anything.
    """
    path = f"m/{ctx.name('domain')}/c/channel/sub"
    client = await ctx.connect()
    await client.subscribe(path, qos=1)
    for body in (b"\xff\0{", b"", b'{"topic": "other"}'):
        answer = await ctx.me.post(f"/{path}?qos=1", body, headers={"content-type": "application/octet-stream"})
        ctx.status(answer, 200, 202, 204)
        message = await client.expect_publish(path)
        ctx.same("payload and quality of service", (message.payload, message.qos), (body, 1))
    ctx.status(await ctx.me.post(f"/{path}?qos=3", b"x"), 400)
    ctx.retained_topics.add(path)
    raw = {"content-type": "application/octet-stream"}
    ctx.status(await ctx.me.post(f"/{path}?qos=1&retain=true", b"kept", headers=raw), 200, 202, 204)
    later = await ctx.connect()
    await later.subscribe(path, qos=1)
    message = await later.expect_publish(path)
    ctx.same("payload and retain", (message.payload, message.retain), (b"kept", True))


@http_case(
    "crossing/bridge-refuses-wrong-ones",
    BRIDGE,
    clauses=("H-BRIDGE-5", "H-BRIDGE-6", "H-ERR-4"),
    mutant="http-bridge-takes-wildcards",
    kills=("http-bridge-writes-sys",),
)
async def wrong(ctx: HttpContext) -> None:
    """Wildcards, an empty topic, qualities of service that there are not, and payloads that are no base64 are 400.

    Topics of the broker's own are 403. A GET is 405.
    """
    for asked in (
        {"topic": "a/#"},
        {"topic": "a/+/b"},
        {"topic": ""},
        {"topic": "a\0b"},
        {"topic": ctx.topic(), "qos": 3},
        {"topic": ctx.topic(), "qos": -1},
        {"topic": ctx.topic(), "payload": "*"},
        {"topic": ctx.topic(), "payload": 1},
        {"topic": 1},
        {"payload": "eA=="},
        {"topic": "$queue/a/$ack/b"},
    ):
        ctx.status(await ctx.me.post("/publish", asked), 400)
    ctx.status(await ctx.me.post("/publish", {"topic": "$SYS/broker/version", "payload": "eA=="}), 403)
    ctx.status(await ctx.me.get("/publish"), 405)


@http_case(
    "crossing/bridge-tells-what-came-of-it",
    BRIDGE,
    QUEUES,
    VIEWS,
    clauses=("H-BRIDGE-7",),
    requires=("mqtt5",),
    mutant="http-bridge-says-matched",
    kills=("http-bridge-without-ids",),
)
async def bridged(ctx: HttpContext) -> None:
    """The answer of the bridge says whether anybody gets the message, and by which id a queue has it.

    Before a subscription, with one, and with a queue that is bound to the topic.
    """
    topic, queue = ctx.topic("t"), await ctx.queue()
    asked = {"topic": topic, "payload": "eA==", "qos": 1}
    ctx.same("whether anybody gets it", (await ctx.me.post("/publish", asked)).at("matched"), False)
    client = await ctx.connect()
    await client.subscribe(topic, qos=1)
    ctx.same("whether anybody gets it", (await ctx.me.post("/publish", asked)).at("matched"), True)
    await client.expect_publish(topic)
    ctx.status(await ctx.me.put(f"{API}/queues/{queue}/bindings", {"topics": [ctx.topic("bound")]}), 200)
    bound = await ctx.me.post("/publish", {**asked, "topic": ctx.topic("bound")})
    ctx.same("whether anybody gets it", bound.at("matched"), True)
    direct = await ctx.me.post("/publish", {**asked, "topic": f"$queue/{queue}"})
    found = await ctx.take_all(queue, 2)
    ctx.same("the id", direct.at("id", kind=str), found[1]["message_id"])


# Streams


class _Events:
    """Server-sent events of a stream."""

    def __init__(self, client: HttpClient, connection: HttpConnection) -> None:
        self._parts = client.parts(connection)
        self._text = b""

    async def next(self, ctx: HttpContext) -> dict[str, Any]:
        """The message of the next event; comments are passed over."""
        while True:
            event, end, rest = self._text.partition(b"\n\n")
            if end:
                self._text = rest
                data = [line[5:].strip() for line in event.split(b"\n") if line.startswith(b"data:")]
                if data:
                    return json.loads(b"\n".join(data))  # type: ignore[no-any-return]
                continue
            try:
                self._text += await anext(self._parts)
            except StopAsyncIteration:
                ctx.fail("expected another event; seen none")


@http_case(
    "crossing/events-bring-messages",
    QUEUES,
    clauses=("H-STREAM-1", "H-STREAM-2"),
    mutant="http-streams-keep",
    kills=("http-streams-are-empty",),
)
async def events(ctx: HttpContext) -> None:
    """A stream of server-sent events has each message as it comes; what was not settled is others' when it ends.

    One message is there before, one comes later and is settled.
    """
    queue = await ctx.queue()
    await ctx.fill(queue, "a")
    client = ctx.client("stream")
    connection = await client.send("GET", f"{API}/queues/{queue}/stream?group=g")
    stream = _Events(client, connection)
    ctx.same("the first", (await stream.next(ctx))["payload"], "a")
    head = connection.reader.head
    kind = "" if head is None else head.header("content-type")
    ctx.must(kind.startswith("text/event-stream"), f"expected text/event-stream; seen {kind}")
    await ctx.fill(queue, "b")
    second = await stream.next(ctx)
    ctx.same("the second", second["payload"], "b")
    await ctx.done(queue, "accept", second)
    client.close()
    ctx.same("what was not settled", payloads(await ctx.take_all(queue, 1)), ["a"])
    await ctx.none_left(queue)


@http_case(
    "crossing/a-stream-has-what-it-asks-for",
    QUEUES,
    clauses=("H-STREAM-4",),
    mutant="http-streams-ignore-patterns",
    kills=("http-streams-ignore-prefetch",),
)
async def asked_for(ctx: HttpContext) -> None:
    """A stream brings the messages of its pattern, and never more unsettled ones than its prefetch.

    Three messages of which two match. A second consumer of the name is refused.
    """
    queue = await ctx.queue()
    keys = ("eu/de", "us", "eu")
    await ctx.fill(queue, *({"payload": key, "routing_key": key} for key in keys))
    client = ctx.client("stream")
    target = f"{API}/queues/{queue}/stream"
    connection = await client.send("GET", f"{target}?group=g&pattern=eu/%23&prefetch=1")
    stream = _Events(client, connection)
    first = await stream.next(ctx)
    ctx.same("the first", first["payload"], "eu/de")
    held = (await ctx.me.get(f"{API}/queues/{queue}/consumers")).at("consumers", kind=list)
    ctx.same("what it holds", [each["in_flight"] for each in held], [1])
    ctx.refused(await ctx.me.get(f"{target}?group=g&pattern=eu/%23"), 409, "in_use")
    await ctx.done(queue, "accept", first)
    ctx.same("the second", (await stream.next(ctx))["payload"], "eu")
    client.close()
    for query in ("", "?group=g&prefetch=0", "?group=g&prefetch=x", "?group=g&pattern=a%23"):
        ctx.refused(await ctx.me.get(target + query), 400)


@http_case(
    "crossing/topics-are-watched",
    QUEUES,
    VIEWS,
    clauses=("H-STREAM-5",),
    requires=("mqtt5",),
    mutant="http-watchers-get-no-headers",
)
async def watched(ctx: HttpContext) -> None:
    """Whoever watches a filter is told each message as it comes, with topic, payload, quality, retain and properties.

    One of text and one of bytes; one of another topic between them is not told. Filters that are none are refused.
    """
    path = f"{API}/subscriptions/{ctx.topic('watched').replace('/', '%2F')}%2F%2B/stream"
    watcher = ctx.client("watches")
    connection = await watcher.send("GET", path)
    ctx.must(bool(await anext(watcher.parts(connection))), "expected the stream to begin")
    client, topic = await ctx.connect(), ctx.topic("watched/a")
    ctx.retained_topics.add(topic)
    said = Properties(user_property=(("h", "1"),), content_type="text/x")
    await client.publish(topic, b"text", qos=1, retain=True, properties=said)
    await client.publish(ctx.topic("watched/a/b"), b"other", qos=1)
    await client.publish(topic, b"\xff", qos=1)
    stream = _Events(watcher, connection)
    first, second = await stream.next(ctx), await stream.next(ctx)
    seen = [first.get(name) for name in ("topic", "payload", "qos", "retain", "headers", "content_type")]
    ctx.same("the first", seen, [topic, "text", 1, True, {"h": "1"}, "text/x"])
    ctx.same("the second", (second["topic"], second["payload_base64"]), (topic, "/w=="))
    for wrong, status in (("a%23", 400), ("%24queue%2F%23", 403)):
        ctx.refused(await ctx.me.get(f"{API}/subscriptions/{wrong}/stream"), status)


@http_case("crossing/a-socket-has-credit", QUEUES, clauses=("H-STREAM-3",), mutant="http-sockets-ignore-credit")
async def socket(ctx: HttpContext) -> None:
    """Over a WebSocket come as many messages as the client gave credit for; it settles them there, and is told so.

    What is no request is told as a problem, and the connection goes on.
    """
    queue = await ctx.queue()
    await ctx.fill(queue, "a", "b", "c")
    client = ctx.client("socket")
    upgrade = {
        "connection": "Upgrade",
        "upgrade": "websocket",
        "sec-websocket-version": "13",
        "sec-websocket-key": base64.b64encode(ctx.rng.randbytes(16)).decode(),
    }
    target = f"{API}/queues/{queue}/socket?group=g"
    connection = await client.send("GET", target, headers=upgrade)
    ctx.status(await client.answer_on(connection, target), 101)
    said = _Frames(ctx, client, connection)
    said.send({"credit": 2})
    messages = [(await said.next())["message"] for _ in range(2)]
    ctx.same("the messages", payloads(messages), ["a", "b"])
    said.send({"nonsense": 1})
    ctx.must("problem" in await said.next(), "expected a problem, and no message beyond the credit")
    said.send({"settle": {"outcome": "accept", "receipts": [each["receipt"] for each in messages]}})
    ctx.same("settled", (await said.next()).get("settled"), 2)
    said.send({"credit": 1})
    ctx.same("the message", (await said.next())["message"]["payload"], "c")
    client.close()
    ctx.same("what was not settled", payloads(await ctx.take_all(queue, 1)), ["c"])
    await ctx.none_left(queue)


class _Frames:
    """JSON in frames of a WebSocket."""

    def __init__(self, ctx: HttpContext, client: HttpClient, connection: HttpConnection) -> None:
        self._ctx, self._client, self._connection = ctx, client, connection
        connection.becomes_raw()
        self._reader = FrameReader()
        self._frames: list[Frame] = []

    def send(self, said: Any) -> None:
        mask = self._ctx.rng.randbytes(4)
        self._connection.write(encode_frame(Opcode.TEXT, json.dumps(said).encode(), mask=mask))

    async def next(self) -> Any:
        parts = self._client.parts(self._connection)
        while not self._frames:
            try:
                self._frames += [
                    frame for frame in self._reader.feed(await anext(parts)) if frame.opcode is Opcode.TEXT
                ]
            except StopAsyncIteration:
                self._ctx.fail("expected another frame; seen none")
        return json.loads(self._frames.pop(0).payload)


# Restarts


@http_case(
    "restart/what-was-answered-is-there",
    QUEUES,
    TOPICS,
    clauses=("H-DUR-1", "H-DUR-2"),
    requires=("restart",),
    mutant="http-answers-before-the-disk",
    kills=("http-accept-settles-nothing",),
    together=True,
    limit_s=10.0,
)
async def restart(ctx: HttpContext) -> None:
    """All that was answered with success has happened after a kill: queues, settings, messages, settlements, groups.

    What was settled does not come again; what was held does, counted; what was deleted is gone.
    """
    queue, gone, delayed = await ctx.queue(partitions=2), await ctx.queue(), await ctx.queue()
    ctx.status(await ctx.me.patch(f"{API}/queues/{queue}", {"max_depth": 77}), 200)
    ctx.status(await ctx.me.put(f"{API}/queues/{queue}/bindings", {"topics": [ctx.topic("a")]}), 200)
    sent = [f"m{number}" for number in range(20)]
    await ctx.fill(queue, *sent)
    taken = await ctx.take_all(queue, 20)
    done, rejected, held = taken[:5], taken[5], taken[6:8]
    await ctx.done(queue, "release", *taken[8:])
    await ctx.done(queue, "accept", *done)
    await ctx.done(queue, "reject", rejected, reason="why")
    ctx.leaves(f"{API}/queues/dlq%2F{queue}")
    told = await ctx.fill(delayed, {"payload": "later", "delay": "1h"}, {"payload": "never", "delay": "1h"})
    cancelled = told.at("results", 1, "delay_id", kind=str)
    ctx.status(await ctx.me.delete(f"{API}/queues/{delayed}/delayed/{cancelled}"), 200)
    ctx.status(await ctx.me.post(f"{API}/queues/{queue}/groups", {"group": "made"}), 201)
    ctx.status(await ctx.me.delete(f"{API}/queues/{gone}"), 200, 204)
    await ctx.restart()
    settings = (await ctx.me.get(f"{API}/queues/{queue}")).at("settings")
    ctx.same("its settings", (settings["partitions"], settings["max_depth"]), (2, 77))
    bound = (await ctx.me.get(f"{API}/queues/{queue}/bindings")).at("topics")
    ctx.same("what is bound", bound, [ctx.topic("a")])
    ctx.refused(await ctx.me.get(f"{API}/queues/{gone}"), 404)
    names = {each["group"] for each in (await ctx.me.get(f"{API}/queues/{queue}/groups")).at("groups")}
    ctx.same("the groups", names, {"g", "made"})
    waiting = (await ctx.me.get(f"{API}/queues/{delayed}/delayed")).at("messages", kind=list)
    ctx.same("what waits", [each["delay_id"] for each in waiting], [told.at("results", 0, "delay_id")])
    letters = await ctx.take_all(f"dlq/{queue}", 1)
    ctx.same("the dead letters", payloads(letters), payloads([rejected]))
    again = await ctx.take_all(queue, 14)
    ctx.same("what comes again", sorted(payloads(again)), sorted(payloads(taken[6:])))
    counts = {each["payload"]: each["delivery_count"] for each in again}
    ctx.must(all(counts[each["payload"]] >= 2 for each in held), f"expected what was held to be counted; seen {counts}")
    await ctx.none_left(queue)


@http_case(
    "restart/many-publishers-lose-nothing",
    QUEUES,
    clauses=("H-DUR-1",),
    requires=("restart",),
    mutant="http-answers-before-the-disk",
    together=True,
    limit_s=10.0,
)
async def publishers(ctx: HttpContext) -> None:
    """Of many publishers at work when the broker is killed, each message that was answered with success is there.

    Sixteen clients with thirty messages each, on two queues.
    """
    queues = [await ctx.queue(partitions=2), await ctx.queue()]
    taken: set[str] = set()

    async def send(number: int) -> None:
        client = ctx.client(f"p{number}")
        for index in range(30):
            name = f"{number}-{index}"
            path = f"{API}/queues/{queues[number % 2]}/messages"
            answer: Answer = await client.post(path, {"messages": [{"payload": name}]})
            if answer.status == 200:
                taken.add(name)

    await asyncio.gather(*(send(number) for number in range(16)))
    await ctx.restart()
    found: list[Any] = []
    for queue in queues:
        with contextlib.suppress(StopIteration):
            found += payloads(
                await ctx.take_all(queue, sum(int(name.split("-")[0]) % 2 == queues.index(queue) for name in taken))
            )
    ctx.must(taken <= set(found), f"expected all {len(taken)} messages; {len(taken - set(found))} are missing")


@http_case(
    "restart/what-the-disk-refuses-is-503",
    QUEUES,
    clauses=("H-DUR-3", "H-ERR-8"),
    requires=("restart", "data_dir"),
    settings={"queues": {"segment_bytes": 4_000_000, "defaults": {"durability": "fsync"}}},
    mutant="http-disks-that-refuse-are-500",
    kills=("refused-write-is-confirmed",),
    near_miss="refused-notes-the-count",
    limit_s=20.0,
)
async def refused(ctx: HttpContext) -> None:
    """What the disk refuses is refused with 503 and Retry-After, and never given out; what was taken outlives a kill.

    Files of the broker's process reach a limit of the system among forty messages; then that is gone.
    """
    queue = await ctx.queue()
    await ctx.fill(queue, "first")
    taken, statuses = ["first"], set()
    limit_near(ctx)
    for number in range(40):
        payload = f"{number:04d}" + "." * 2_000
        answer = await ctx.me.post(f"{API}/queues/{queue}/messages", {"messages": [{"payload": payload}]})
        statuses.add(answer.status)
        if answer.status == 200:
            taken.append(payload)
        else:
            ctx.publish_refused(answer, 503, "storage_failed")
            ctx.must(answer.header("retry-after").isdecimal(), f"expected Retry-After; seen {answer}")
    ctx.status(await ctx.me.get("/health"), 200)
    ctx.status(await ctx.me.get("/ready"), 200, 503)
    limit_files(ctx, resource.RLIM_INFINITY)
    await ctx.fill(queue, "last")
    taken.append("last")
    for group in ("now", "later"):
        found = payloads(await ctx.take_all(queue, len(taken), group=group))
        ctx.same(f"what comes {group}", [each[:5] for each in found], [each[:5] for each in taken])
        await ctx.restart()
    if statuses == {200}:
        ctx.unsupported("the limit of the system has no effect on this broker")

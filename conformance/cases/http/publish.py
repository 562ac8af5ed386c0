"""Messages published by the queue routes, one and many, and what refuses them; read and browsed."""

from __future__ import annotations

import base64

from assay.conformance.http.context import API, QUEUES, HttpContext, http_case, payloads


@http_case(
    "publish/taken-is-200-and-has-a-place",
    QUEUES,
    clauses=("H-PUB-1",),
    mutant="http-places-of-publishes-lie",
    kills=("http-last-of-a-batch-lost",),
)
async def taken(ctx: HttpContext) -> None:
    """A batch of which all is taken is answered with 200, and each message stands where the answer says.

    Ten messages for two partitions.
    """
    queue = await ctx.queue(partitions=2)
    sent = [f"m{number}" for number in range(10)]
    answer = await ctx.fill(queue, *sent)
    results = answer.at("results", kind=list)
    ctx.same("the number of results", len(results), len(sent))
    for payload, result in zip(sent, results, strict=True):
        ctx.must("error" not in result, f"expected no error; seen {result}")
        place = f"{API}/queues/{queue}/partitions/{result['partition']}/messages?from={result['offset']}&limit=1"
        read = await ctx.me.get(place)
        ctx.same("the message there", read.at("messages", 0, "payload"), payload)
        ctx.same("its id", read.at("messages", 0, "message_id"), result["message_id"])


@http_case(
    "publish/some-refused-is-207",
    QUEUES,
    clauses=("H-PUB-2",),
    mutant="http-partial-publish-is-200",
    kills=("http-partial-publish-stops-at-error",),
)
async def partial(ctx: HttpContext) -> None:
    """Of a batch some of whose messages are refused the others are taken; 207 tells of each in its place.

    The first and the third of four are wrong: a partition that there is not, and a priority that nobody knows.
    """
    queue = await ctx.queue()
    wrong = [
        {"payload": "a", "partition": 7},
        {"payload": "b"},
        {"payload": "c", "priority": "vital"},
        {"payload": "d"},
    ]
    answer = await ctx.me.post(f"{API}/queues/{queue}/messages", {"messages": wrong})
    ctx.status(answer, 207)
    results = answer.at("results", kind=list)
    ctx.same("which were refused", ["error" in each for each in results], [True, False, True, False])
    for index in (0, 2):
        ctx.same("the status of the refusal", answer.at("results", index, "error", "status"), 400)
        ctx.must(bool(answer.at("results", index, "error", "code", kind=str)), "expected a code of the refusal")
    ctx.same("what was taken", payloads(await ctx.take_all(queue, 2)), ["b", "d"])
    await ctx.none_left(queue)


@http_case(
    "publish/all-refused-is-the-refusal",
    QUEUES,
    clauses=("H-PUB-3", "H-PUB-5"),
    mutant="http-refused-publish-is-200",
)
async def refused(ctx: HttpContext) -> None:
    """A publish of which nothing is taken has the status of its first refusal, tells each, and keeps nothing.

    Two messages for a partition that the queue does not have.
    """
    queue = await ctx.queue()
    wrong = [{"payload": "a", "partition": 1}, {"payload": "b", "partition": 1}]
    answer = await ctx.me.post(f"{API}/queues/{queue}/messages", {"messages": wrong})
    ctx.publish_refused(answer, 400)
    await ctx.none_left(queue)


@http_case(
    "publish/a-key-keeps-its-order",
    QUEUES,
    clauses=("H-PUB-4", "H-PUB-7"),
    mutant="http-keys-dropped",
)
async def keys(ctx: HttpContext) -> None:
    """Messages of one key are in one partition, in the order of publishing, and come with their key.

    Forty messages of four keys for eight partitions, in two batches; partitions may have several keys.
    """
    queue = await ctx.queue(partitions=8)
    sent = [{"payload": str(number), "key": f"k{number % 4}"} for number in range(40)]
    results = (await ctx.fill(queue, *sent[:20])).at("results") + (await ctx.fill(queue, *sent[20:])).at("results")
    places = {each["key"]: set[int]() for each in sent}
    for each, result in zip(sent, results, strict=True):
        places[each["key"]].add(result["partition"])
    ctx.must(all(len(where) == 1 for where in places.values()), f"expected one partition a key; seen {places}")
    found = await ctx.take_all(queue, 40)
    for key in places:
        numbers = [int(each["payload"]) for each in found if each.get("key") == key]
        ctx.same(f"the messages of {key}", numbers, sorted(int(each["payload"]) for each in sent if each["key"] == key))


@http_case(
    "publish/any-payload-and-headers-come-back",
    QUEUES,
    clauses=("H-PUB-6", "H-PUB-7"),
    mutant="http-binary-is-mended",
    kills=("http-headers-dropped",),
)
async def contents(ctx: HttpContext) -> None:
    """Payloads come byte for byte, text as text and other bytes in base64; with headers, key and content type.

    Texts beyond ASCII, an empty one, one with U+0000, bytes that are no UTF-8, all 256 of them.
    """
    queue = await ctx.queue(partitions=1)
    texts = ["plain", "", "Grüße ☃ 𝄞", "nul\0inside", '{"json": ["quoted \\" text"]}\n']
    blobs = [b"\xff\xfe", bytes(range(256)), b"\xc3("]
    headers = {"trace": "ä 1", "empty": "", "Case-Kept": "x"}
    messages = [{"payload": text, "headers": headers, "key": "k", "content_type": "text/x"} for text in texts]
    encoded = [{"payload_base64": base64.b64encode(blob).decode()} for blob in blobs]
    await ctx.fill(queue, *messages, *encoded)
    found = await ctx.take_all(queue, len(texts) + len(blobs))
    ctx.same("the texts", [each.get("payload") for each in found[: len(texts)]], texts)
    for each, blob in zip(found[len(texts) :], blobs, strict=True):
        ctx.same("the payload", base64.b64decode(each.get("payload_base64", "")), blob)
    for each in found[: len(texts)]:
        seen = {name: each["headers"].get(name) for name in headers}
        ctx.same(
            "headers, key and content type", (seen, each.get("key"), each.get("content_type")), (headers, "k", "text/x")
        )


@http_case(
    "publish/wrong-bodies-are-400",
    QUEUES,
    clauses=("H-PUB-8", "H-ERR-4"),
    mutant="http-malformed-bodies-are-500",
    kills=("http-empty-batch-taken",),
)
async def bodies(ctx: HttpContext) -> None:
    """What is no publish is refused with 400, and nothing of it is kept.

    No JSON, another shape, no messages, a message without a payload or with two, base64 that is none, unknown members.
    """
    queue = await ctx.queue()
    path = f"{API}/queues/{queue}/messages"
    for body in (
        b"{",
        b"",
        b"[]",
        b'{"messages": {}}',
        b'{"messages": [1]}',
        b'{"messages": []}',
        b'{"messages": [{"payload": 1}]}',
        b'{"messages": [{"payload": "\xff"}]}',
        b'{"messages": [{}]}',
        b'{"messages": [{"payload": "a", "payload_base64": "YQ=="}]}',
        b'{"messages": [{"payload_base64": "*"}]}',
        b'{"messages": [{"payload": "a", "no_such_option": 1}]}',
        b'{"messages": [{"payload": "a", "delay": "soon"}]}',
        b'{"messages": [{"payload": "a", "delay": "1s", "deliver_at": "2100-01-01T00:00:00Z"}]}',
        b'{"messages": ' + b"[" * 5_000,
    ):
        ctx.status(await ctx.me.post(path, body), 400)
    await ctx.none_left(queue)


@http_case(
    "publish/a-full-queue-is-429",
    QUEUES,
    clauses=("H-PUB-9", "H-ERR-8"),
    mutant="http-full-is-400",
    kills=("http-no-retry-after",),
)
async def full(ctx: HttpContext) -> None:
    """A message for a queue that is full is refused with 429, and Retry-After says when to come again.

    Of a batch of three for a queue of two, two are taken: 207. Once one is settled there is room again.
    """
    queue = await ctx.queue(max_depth=2)
    await ctx.take(queue)  # a group is there, whose settlements make room
    path = f"{API}/queues/{queue}/messages"
    three = await ctx.me.post(path, {"messages": [{"payload": each} for each in "abc"]})
    ctx.status(three, 207)
    ctx.same("the status of the third", three.at("results", 2, "error", "status"), 429)
    one = {"messages": [{"payload": "d"}]}
    answer = await ctx.me.post(path, one)
    ctx.publish_refused(answer, 429, "full")
    ctx.must(answer.header("retry-after").isdecimal(), "expected Retry-After with 429")
    await ctx.done(queue, "accept", *await ctx.take(queue))
    await ctx.fill(queue, "d")


@http_case("publish/too-large-is-413", QUEUES, clauses=("H-PUB-10",), mutant="http-too-large-is-500")
async def large(ctx: HttpContext) -> None:
    """A message that is larger than its queue takes is refused with 413; one of just that size is taken.

    What a message is counted with beside its payload is left to the broker: the refused one is twice as large.
    """
    queue = await ctx.queue(max_message_bytes=2_000)
    answer = await ctx.me.post(f"{API}/queues/{queue}/messages", {"messages": [{"payload": "x" * 4_000}]})
    ctx.publish_refused(answer, 413)
    await ctx.fill(queue, "x" * 1_500)


@http_case(
    "publish/expired-is-given-to-nobody",
    QUEUES,
    clauses=("H-PUB-11",),
    requires=("clock",),
    mutant="http-ttl-dropped",
)
async def expired(ctx: HttpContext) -> None:
    """A message whose time to live is over is given to nobody; one that has longer is.

    The clock is moved between.
    """
    queue = await ctx.queue()
    await ctx.fill(queue, {"payload": "short", "ttl": "10s"}, {"payload": "long", "ttl": "1h"})
    await ctx.advance(60)
    ctx.same("what is left", payloads(await ctx.take_all(queue, 1)), ["long"])
    await ctx.none_left(queue)


@http_case("publish/higher-priorities-come-first", QUEUES, clauses=("H-PUB-12",), mutant="http-priorities-dropped")
async def priorities(ctx: HttpContext) -> None:
    """Of messages that wait one of a higher priority is given out before one of a lower, by name or number.

    One critical message behind three of the background.
    """
    queue = await ctx.queue()
    low = [{"payload": f"low{number}", "priority": "background"} for number in range(3)]
    await ctx.fill(queue, *low, {"payload": "first", "priority": "critical"}, {"payload": "second", "priority": 1})
    found = await ctx.take_all(queue, 5)
    seen = payloads(found)
    ctx.must(seen[:2] == ["first", "second"], f"expected the critical message, then the high one, first; seen {seen}")
    ctx.same("the priorities", [each["priority"] for each in found], [0, 1, 4, 4, 4])


@http_case(
    "publish/read-from-any-place-without-consuming",
    QUEUES,
    clauses=("H-READ-1", "H-READ-2", "H-READ-3"),
    mutant="http-cursors-dropped",
    kills=("http-next-offset-is-last",),
)
async def read(ctx: HttpContext) -> None:
    """A partition is read from earliest, latest, an offset or a time on, a page at a time, and nothing is consumed.

    Whoever has settled a message does not matter.
    """
    queue = await ctx.queue()
    await ctx.fill(queue, *(str(number) for number in range(5)))
    await ctx.done(queue, "accept", *await ctx.take(queue))
    base = f"{API}/queues/{queue}/partitions/0/messages"
    first = await ctx.me.get(f"{base}?from=earliest&limit=2")
    ctx.same("the first page", payloads(first.at("messages")), ["0", "1"])
    second = await ctx.me.get(f"{base}?from={first.at('next_offset', kind=int)}")
    ctx.same("the second page", payloads(second.at("messages")), ["2", "3", "4"])
    ctx.same("what comes last", (await ctx.me.get(f"{base}?from=latest")).at("messages"), [])
    ctx.same("of long ago on", len((await ctx.me.get(f"{base}?from=2001-01-01T00:00:00Z")).at("messages")), 5)
    ctx.refused(await ctx.me.get(f"{base}?from=noon"), 400)
    ctx.refused(await ctx.me.get(f"{API}/queues/{queue}/partitions/1/messages"), (400, 404))
    ctx.same("what is left to consume", len(await ctx.take_all(queue, 4)), 4)


@http_case(
    "publish/browsing-shows-what-is-not-settled",
    QUEUES,
    clauses=("H-READ-2", "H-READ-4"),
    mutant="http-browse-shows-newest",
)
async def browse(ctx: HttpContext) -> None:
    """Browsing shows the oldest messages that some group has not settled, up to the limit, and takes none.

    Of four, one is settled and one held.
    """
    queue = await ctx.queue()
    await ctx.fill(queue, "a", "b", "c", "d")
    first, _ = await ctx.take_all(queue, 2)
    await ctx.done(queue, "accept", first)
    path = f"{API}/queues/{queue}/messages"
    ctx.same("the messages", payloads((await ctx.me.get(path)).at("messages")), ["b", "c", "d"])
    ctx.same("the first two", payloads((await ctx.me.get(f"{path}?limit=2")).at("messages")), ["b", "c"])
    for limit in ("0", "-1", "many"):
        ctx.refused(await ctx.me.get(f"{path}?limit={limit}"), 400)
    ctx.same("what is left to consume", payloads(await ctx.take_all(queue, 2)), ["c", "d"])


@http_case(
    "publish/read-browsed-and-consumed-alike",
    QUEUES,
    clauses=("H-READ-5", "H-PUB-7"),
    mutant="http-reads-lose-routing-keys",
    kills=("http-reads-lose-priorities", "http-deliveries-lose-times"),
)
async def alike(ctx: HttpContext) -> None:
    """A message is told with the same parts whether it is read by its place, browsed or consumed.

    With a key, a routing key, a header, a content type and a priority, at the time at which it was taken.
    """
    queue = await ctx.queue()
    parts = {"key": "k", "routing_key": "eu/de", "headers": {"h": "1"}, "content_type": "text/x", "priority": 1}
    await ctx.fill(queue, {"payload": "a", **parts})
    (consumed,) = await ctx.take_all(queue, 1)
    others = [
        (await ctx.me.get(f"{API}/queues/{queue}/{path}")).at("messages", 0, kind=dict)
        for path in ("messages", "partitions/0/messages?from=0")
    ]
    for what, message in (("consumed", consumed), ("browsed", others[0]), ("read", others[1])):
        seen = {name: message.get(name) for name in parts}
        seen["headers"] = {name: value for name, value in (seen["headers"] or {}).items() if name == "h"}
        ctx.same(f"what is {what}", (message["payload"], seen), ("a", parts))
        place = (message["message_id"], message["partition"], message["offset"])
        ctx.same(f"where it is {what}", place, (consumed["message_id"], 0, 0))
    times = {round(each["enqueued_at"], 3) for each in (consumed, *others)}
    ctx.must(len(times) == 1 and min(times) > 0, f"expected one time; seen {sorted(times)}")

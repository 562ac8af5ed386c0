"""GoQueue's topics: created, shown, published to, read, delayed, deleted."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from assay.conformance.http.context import API, QUEUES, TOPICS, HttpContext, http_case, payloads


@http_case(
    "topics/created-is-201-and-shown",
    TOPICS,
    clauses=("H-TOPIC-1", "H-TOPIC-3"),
    mutant="http-topics-have-one-partition",
    kills=("http-topic-offsets-lie",),
)
async def created(ctx: HttpContext) -> None:
    """A new topic is answered with 201, its name and partitions; it is listed, and shown with what it holds.

    Four messages are published to it.
    """
    name = ctx.name("t")
    ctx.leaves(f"/topics/{name}")
    answer = await ctx.me.post("/topics", {"name": name, "num_partitions": 2})
    ctx.status(answer, 201)
    for what, wanted in (("name", name), ("partitions", 2), ("created", True)):
        ctx.same(what, answer.at(what), wanted)
    ctx.must(name in (await ctx.me.get("/topics")).at("topics", kind=list), f"expected {name} in the list")
    await ctx.publish_to(name, *({"value": "x" * 10, "partition": 1} for _ in range(4)))
    shown = await ctx.me.get(f"/topics/{name}")
    ctx.status(shown, 200)
    for what, wanted in (("name", name), ("partitions", 2), ("total_messages", 4)):
        ctx.same(what, shown.at(what), wanted)
    ctx.must(shown.at("total_size_bytes", kind=int) >= 40, f"expected at least 40 bytes; seen {shown}")
    ctx.same("partition 0", shown.at("partition_offsets", "0"), {"earliest": 0, "latest": 0})
    ctx.same("partition 1", shown.at("partition_offsets", "1"), {"earliest": 0, "latest": 4})


@http_case(
    "topics/retention-is-kept-as-a-setting",
    TOPICS,
    QUEUES,
    clauses=("H-TOPIC-1", "H-QUEUE-3"),
    mutant="http-retention-is-dropped",
)
async def retention(ctx: HttpContext) -> None:
    """A topic that is created with retention_hours has it as its retention, as its queue is shown.

    Half a day.
    """
    name = await ctx.topic_named(retention_hours=12)
    shown = await ctx.me.get(f"{API}/queues/{name}")
    ctx.same("how long messages are kept, in seconds", shown.at("settings", "retention", "max_age_s"), 43_200)


@http_case("topics/a-second-of-its-name-is-409", TOPICS, clauses=("H-TOPIC-2", "H-ERR-2"), mutant="http-exists-is-500")
async def exists(ctx: HttpContext) -> None:
    """Creating a topic that exists is refused with 409 and GoQueue's error.

    It stays as it was.
    """
    name = await ctx.topic_named(2)
    ctx.refused_as_goqueue(await ctx.me.post("/topics", {"name": name, "num_partitions": 5}), 409)
    ctx.same("its partitions", (await ctx.me.get(f"/topics/{name}")).at("partitions"), 2)


@http_case("topics/deleted-is-gone", TOPICS, clauses=("H-TOPIC-4", "H-ERR-2"), mutant="http-topics-stay")
async def deleted(ctx: HttpContext) -> None:
    """A deleted topic is gone with its messages: whoever asks for it gets 404.

    One that is made again is empty.
    """
    name = await ctx.topic_named()
    await ctx.publish_to(name, "a")
    answer = await ctx.me.delete(f"/topics/{name}")
    ctx.status(answer, 200)
    ctx.same("deleted", (answer.at("deleted"), answer.at("name")), (True, name))
    for path in ("", "/messages", "/partitions", "/partitions/0/messages", "/delayed"):
        ctx.refused_as_goqueue(await ctx.me.get(f"/topics/{name}{path}"), 404)
    ctx.refused_as_goqueue(await ctx.me.delete(f"/topics/{name}"), 404)
    ctx.must(name not in (await ctx.me.get("/topics")).at("topics"), f"{name} is still listed")
    ctx.status(await ctx.me.post("/topics", {"name": name, "num_partitions": 1}), 201)
    ctx.same("its messages", (await ctx.me.get(f"/topics/{name}")).at("total_messages"), 0)


@http_case("topics/partitions-have-leaders", TOPICS, clauses=("H-TOPIC-5",), mutant="http-partitions-without-leader")
async def leaders(ctx: HttpContext) -> None:
    """The partitions of a topic are told one by one, each with its leader, who is among its replicas in sync.

    Three of them.
    """
    name = await ctx.topic_named(3)
    answer = await ctx.me.get(f"/topics/{name}/partitions")
    ctx.status(answer, 200)
    ctx.same("topic", answer.at("topic"), name)
    ctx.same("the partitions", [each["partition"] for each in answer.at("partitions", kind=list)], [0, 1, 2])
    for each in answer.at("partitions"):
        is_led = each["leader"] in each["isr"] and set(each["isr"]) <= set(each["replicas"])
        ctx.must(bool(each["leader"]) and is_led, f"expected a leader in sync; seen {each}")


@http_case("topics/v1-is-the-same", TOPICS, clauses=("H-TOPIC-6",), mutant="http-v1-not-served")
async def version_1(ctx: HttpContext) -> None:
    """GoQueue's routes are below /v1 as well, and mean the same topics.

    A topic that is made there is published to at the root, read there, and deleted at the root.
    """
    name = ctx.name("t")
    ctx.leaves(f"/topics/{name}")
    ctx.status(await ctx.me.post("/v1/topics", {"name": name, "num_partitions": 1}), 201)
    await ctx.publish_to(name, "a")
    read = await ctx.me.get(f"/v1/topics/{name}/partitions/0/messages")
    ctx.same("the messages", payloads(read.at("messages")), ["a"])
    ctx.status(await ctx.me.get("/v1/groups"), 200)
    ctx.status(await ctx.me.delete(f"/topics/{name}"), 200)
    ctx.refused_as_goqueue(await ctx.me.get(f"/v1/topics/{name}"), 404)


@http_case("topics/a-topic-is-a-queue", TOPICS, QUEUES, clauses=("H-TOPIC-7",), mutant="http-topics-are-apart")
async def queue(ctx: HttpContext) -> None:
    """A topic is a queue of the same name: messages published to one are consumed from the other.

    Both are listed in both.
    """
    topic, queue = await ctx.topic_named(), await ctx.queue()
    await ctx.publish_to(queue, "from a topic")
    await ctx.fill(topic, "from a queue")
    ctx.same("of the queue", payloads(await ctx.take_all(queue, 1)), ["from a topic"])
    read = await ctx.me.get(f"/topics/{topic}/partitions/0/messages")
    ctx.same("of the topic", payloads(read.at("messages")), ["from a queue"])
    ctx.must(queue in (await ctx.me.get("/topics")).at("topics"), f"expected {queue} among the topics")
    ctx.must(topic in (await ctx.me.get(f"{API}/queues")).at("queues"), f"expected {topic} among the queues")


# Publishing and reading


@http_case(
    "topics/results-tell-place-and-priority",
    TOPICS,
    clauses=("H-TPUB-1", "H-READ-1"),
    mutant="http-topic-results-lie",
    kills=("http-next-offset-is-last", "http-topic-values-cut"),
)
async def results(ctx: HttpContext) -> None:
    """Each message that was taken is told with partition, offset and priority, and is read there again.

    With its key and a time in RFC 3339; a page at a time.
    """
    name = await ctx.topic_named(2)
    sent = [
        {"value": "a", "key": "k", "partition": 1},
        {"value": "b", "partition": 1, "priority": "high"},
        {"value": "Grüße", "partition": 1},
    ]
    answer = await ctx.publish_to(name, *sent)
    told = [(each["partition"], each["offset"], each["priority"]) for each in answer.at("results", kind=list)]
    ctx.same("partition, offset and priority", told, [(1, 0, "normal"), (1, 1, "high"), (1, 2, "normal")])
    base = f"/topics/{name}/partitions/1/messages"
    page = await ctx.me.get(f"{base}?offset=0&limit=2")
    ctx.same("the first page", payloads(page.at("messages")), ["a", "b"])
    ctx.same("the key", page.at("messages", 0, "key"), "k")
    ctx.same("the priority", page.at("messages", 1, "priority"), "high")
    ctx.must("T" in page.at("messages", 0, "timestamp", kind=str), f"expected a time of RFC 3339; seen {page}")
    rest = await ctx.me.get(f"{base}?offset={page.at('next_offset', kind=int)}&limit=2")
    ctx.same("the second page", payloads(rest.at("messages")), ["Grüße"])
    end = await ctx.me.get(f"{base}?offset={rest.at('next_offset', kind=int)}")
    ctx.same("what follows", (end.at("messages"), end.at("next_offset")), ([], 3))
    for query in ("offset=-1", "limit=0", "offset=x"):
        ctx.refused_as_goqueue(await ctx.me.get(f"{base}?{query}"), 400)


@http_case(
    "topics/some-refused-is-207",
    TOPICS,
    clauses=("H-TPUB-2", "H-TPUB-3", "H-ERR-4"),
    mutant="http-partial-publish-is-200",
    kills=("http-partial-publish-stops-at-error", "http-refused-publish-is-200"),
)
async def partial(ctx: HttpContext) -> None:
    """A message that is refused has an error, the others are taken: 207. Where none was, the status says so.

    Wrong partitions and priorities; no messages at all, and no JSON.
    """
    name = await ctx.topic_named()
    path = f"/topics/{name}/messages"
    wrong = [{"value": "a"}, {"value": "b", "partition": 9}, {"value": "c", "priority": "vital"}, {"value": "d"}]
    answer = await ctx.me.post(path, {"messages": wrong})
    ctx.status(answer, 207)
    errors = [bool(each.get("error")) for each in answer.at("results", kind=list)]
    ctx.same("which were refused", errors, [False, True, True, False])
    ctx.same("what is there", payloads((await ctx.me.get(path)).at("messages")), ["a", "d"])
    ctx.status(await ctx.me.post(path, {"messages": wrong[1:3]}), 400)
    for body in (b'{"messages": []}', b"{}", b"{", b'{"messages": [{"value": 1}]}'):
        ctx.refused_as_goqueue(await ctx.me.post(path, body), 400)
    ctx.same("what is there", len((await ctx.me.get(path)).at("messages")), 2)


# Delayed messages


@http_case(
    "topics/delayed-not-before-its-time",
    TOPICS,
    clauses=("H-DELAY-1",),
    requires=("clock",),
    mutant="http-delays-dropped",
    kills=("http-deliver-at-dropped",),
)
async def delayed(ctx: HttpContext) -> None:
    """A message with a delay, or a time, is read when that has come, and not before; others at once.

    One in a minute, one at a time that is an hour ahead, one now.
    """
    name = await ctx.topic_named()
    ahead = (datetime.now(UTC) + timedelta(hours=1)).isoformat()
    answer = await ctx.publish_to(
        name, {"value": "minute", "delay": "60s"}, {"value": "hour", "deliverAt": ahead}, "now"
    )
    flags = [bool(each.get("delayed")) for each in answer.at("results", kind=list)]
    ctx.same("which were delayed", flags, [True, True, False])
    ctx.must("T" in answer.at("results", 0, "deliverAt", kind=str), f"expected a time in deliverAt; seen {answer}")
    path = f"/topics/{name}/partitions/0/messages"
    ctx.same("what is there at once", payloads((await ctx.me.get(path)).at("messages")), ["now"])
    await ctx.advance(50)
    ctx.same("what is there after 50 s", payloads((await ctx.me.get(path)).at("messages")), ["now"])
    await ctx.advance(11)
    ctx.same("what is there after 61 s", payloads((await ctx.me.get(path)).at("messages")), ["now", "minute"])


@http_case(
    "topics/delayed-are-listed-and-cancelled",
    TOPICS,
    clauses=("H-DELAY-2", "H-DELAY-3"),
    requires=("clock",),
    mutant="http-cancelling-does-nothing",
    kills=("http-delayed-list-is-empty", "http-delay-stats-are-zero"),
)
async def cancelled(ctx: HttpContext) -> None:
    """Delayed messages are listed with their times, shown one by one, and never come once they are cancelled.

    Of three one is cancelled; cancelling it again is refused with 404.
    """
    name = await ctx.topic_named()
    delays = (("a", "60s"), ("b", "90s"), ("c", "95s"))
    answer = await ctx.publish_to(name, *({"value": value, "delay": delay} for value, delay in delays))
    partition, first = answer.at("results", 0, "partition"), answer.at("results", 0, "offset")
    listed = await ctx.me.get(f"/topics/{name}/delayed")
    ctx.same("topic and count", (listed.at("topic"), listed.at("count")), (name, 3))
    for each in listed.at("messages", kind=list):
        ctx.same("the topic", each["topic"], name)
        ctx.must(bool(each["deliver_at"] and each["time_remaining"] and each["state"]), f"seen {each}")
    some = await ctx.me.get(f"/topics/{name}/delayed?limit=1&skip=1")
    ctx.same("the second", [each["offset"] for each in some.at("messages")], [answer.at("results", 1, "offset")])
    ctx.same("one alone", (await ctx.me.get(f"/topics/{name}/delayed/{first}")).at("offset"), first)
    ctx.same("the figures", (await ctx.me.get("/delay/stats")).at("topics", name, "pending"), 3)
    path = f"/topics/{name}/delayed/{partition}/{first}"
    ctx.same("canceled", (await ctx.me.delete(path)).at("canceled"), True)
    ctx.refused_as_goqueue(await ctx.me.delete(path), 404)
    ctx.refused_as_goqueue(await ctx.me.get(f"/topics/{name}/delayed/{first}"), 404)
    ctx.refused_as_goqueue(await ctx.me.get(f"/topics/{name}/delayed/999999"), 404)
    await ctx.advance(120)
    read = await ctx.me.get(f"/topics/{name}/partitions/0/messages")
    ctx.same("what came", payloads(read.at("messages")), ["b", "c"])
    ctx.same("what waits", (await ctx.me.get(f"/topics/{name}/delayed")).at("messages"), [])


@http_case("topics/no-delay-means-at-once", TOPICS, clauses=("H-DELAY-4", "H-DELAY-5"), mutant="http-no-delay-is-400")
async def at_once(ctx: HttpContext) -> None:
    """A delay of nothing, a negative one, and a time that has passed mean at once; what cannot be read is refused.

    None of them is delayed.
    """
    name = await ctx.topic_named()
    await ctx.publish_to(
        name,
        {"value": "a", "delay": "0s"},
        {"value": "b", "delay": "-5s"},
        {"value": "c", "deliverAt": "2001-01-01T00:00:00Z"},
    )
    read = await ctx.me.get(f"/topics/{name}/partitions/0/messages")
    ctx.same("what is there", sorted(payloads(read.at("messages"))), ["a", "b", "c"])
    for more in ({"delay": "soon"}, {"delay": "1"}, {"deliverAt": "noon"}):
        answer = await ctx.me.post(f"/topics/{name}/messages", {"messages": [{"value": "x", **more}]})
        ctx.status(answer, 400)


@http_case(
    "topics/delays-of-the-queue-routes-likewise",
    QUEUES,
    clauses=("H-DELAY-1", "H-DELAY-2", "H-DELAY-3"),
    requires=("clock",),
    mutant="http-delays-dropped",
    kills=("http-cancelling-does-nothing",),
)
async def queue_delays(ctx: HttpContext) -> None:
    """The queue routes have a delay id for each delayed message, by which it is listed and cancelled.

    Of three one is cancelled, one comes, one waits.
    """
    queue = await ctx.queue()
    answer = await ctx.fill(
        queue, *({"payload": payload, "delay": delay} for payload, delay in (("a", "1m"), ("b", "1m"), ("c", "10h")))
    )
    ids = [each["delay_id"] for each in answer.at("results", kind=list)]
    base = f"{API}/queues/{queue}/delayed"
    ctx.same("those that wait", [each["delay_id"] for each in (await ctx.me.get(base)).at("messages")], ids)
    ctx.status(await ctx.me.delete(f"{base}/{ids[0]}"), 200)
    ctx.refused(await ctx.me.delete(f"{base}/{ids[0]}"), 404, "not_pending")
    ctx.refused(await ctx.me.delete(f"{base}/none"), (400, 404))
    await ctx.none_left(queue)
    await ctx.advance(61)
    ctx.same("what came", payloads(await ctx.take_all(queue, 1)), ["b"])
    await ctx.none_left(queue)
    ctx.same("those that wait", [each["delay_id"] for each in (await ctx.me.get(base)).at("messages")], ids[2:])


@http_case(
    "topics/priority-figures-tell-what-waits",
    TOPICS,
    QUEUES,
    clauses=("H-PRIO-1",),
    mutant="http-priority-figures-shift",
)
async def priority_figures(ctx: HttpContext) -> None:
    """Figures of priorities tell by topic and partition what is ready and what is in flight, from critical on.

    Two critical messages and one of the background, of which one critical is held.
    """
    name = await ctx.topic_named()
    await ctx.publish_to(name, *({"value": "x", "priority": level} for level in ("critical", "critical", "background")))
    await ctx.take_all(name, 1)
    answer = await ctx.me.get(f"/priority/stats?topic={name}")
    ctx.status(answer, 200)
    text = answer.body.decode()
    place = answer.at("topics", name, "partitions", "0")
    ctx.same("ready", place["ready"], [1, 0, 0, 0, 1])
    ctx.same("in flight", place["in_flight"], [1, 0, 0, 0, 0])
    ctx.must(name in text, f"expected {name}; seen {answer}")
    ctx.refused_as_goqueue(await ctx.me.get(f"/priority/stats?topic={ctx.name('none')}"), 404)

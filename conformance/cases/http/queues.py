"""Queues by HTTP: created, listed, changed, looked at, purged, deleted."""

from __future__ import annotations

from urllib.parse import quote

from assay.conformance.http.context import API, QUEUES, HttpContext, http_case, payloads


@http_case(
    "queues/created-is-listed-and-shown",
    QUEUES,
    clauses=("H-QUEUE-1", "H-QUEUE-3", "H-QUEUE-6"),
    mutant="http-list-forgets-prefix",
    kills=("http-create-is-200",),
)
async def created(ctx: HttpContext) -> None:
    """A queue that was created is listed, by its prefix, too, and shown with the settings that it was given.

    Creating answers 201.
    """
    name = ctx.name()
    ctx.leaves(f"{API}/queues/{name}")
    answer = await ctx.me.post(f"{API}/queues", {"name": name, "settings": {"partitions": 3}})
    ctx.status(answer, 201)
    other = await ctx.queue()
    ctx.must(name in (await ctx.me.get(f"{API}/queues")).at("queues", kind=list), f"expected {name} in the list")
    listed = (await ctx.me.get(f"{API}/queues?prefix={name}")).at("queues", kind=list)
    ctx.must(name in listed and other not in listed, f"expected those that begin with {name}; seen {listed}")
    shown = await ctx.me.get(f"{API}/queues/{name}")
    ctx.status(shown, 200)
    ctx.same("its partitions", shown.at("settings", "partitions"), 3)


@http_case("queues/a-second-of-its-name-is-409", QUEUES, clauses=("H-QUEUE-2", "H-ERR-1"), mutant="http-exists-is-500")
async def exists(ctx: HttpContext) -> None:
    """Creating a queue that exists is refused with 409, and the queue stays as it was.

    It has other settings than the first.
    """
    name = await ctx.queue(partitions=2)
    answer = await ctx.me.post(f"{API}/queues", {"name": name, "settings": {"partitions": 5}})
    ctx.refused(answer, 409, "exists")
    ctx.same("its partitions", (await ctx.me.get(f"{API}/queues/{name}")).at("settings", "partitions"), 2)


@http_case("queues/changed-settings-hold", QUEUES, clauses=("H-QUEUE-4",), mutant="http-changes-not-made")
async def changed(ctx: HttpContext) -> None:
    """PATCH changes settings of a queue in use, and null takes one back; the others stay.

    A limit of one message is set, which refuses a second one, and taken back.
    """
    name = await ctx.queue(max_message_bytes=5_000)
    answer = await ctx.me.patch(f"{API}/queues/{name}", {"max_depth": 1})
    ctx.status(answer, 200)
    ctx.same("the other limit", answer.at("settings", "max_message_bytes"), 5_000)
    await ctx.fill(name, "one")
    more = {"messages": [{"payload": "two"}]}
    ctx.publish_refused(await ctx.me.post(f"{API}/queues/{name}/messages", more), 429, "full")
    ctx.status(await ctx.me.patch(f"{API}/queues/{name}", {"max_depth": None}), 200)
    await ctx.fill(name, "two")


@http_case(
    "queues/wrong-settings-are-400",
    QUEUES,
    clauses=("H-QUEUE-5", "H-ERR-7"),
    mutant="http-wrong-settings-taken",
    kills=("http-bad-names-are-500",),
)
async def wrong(ctx: HttpContext) -> None:
    """A queue with a malformed name, an unknown setting or a value out of range is not made: 400.

    Nor does a change to such a value leave anything changed.
    """
    for name, settings in (
        ("", {}),
        ("a+b", {}),
        ("a/#", {}),
        (ctx.name(), {"no_such_setting": 1}),
        (ctx.name(), {"partitions": 0}),
        (ctx.name(), {"partitions": "three"}),
    ):
        if name:
            ctx.leaves(f"{API}/queues/{quote(name, safe='')}")
        answer = await ctx.me.post(f"{API}/queues", {"name": name, "settings": settings})
        ctx.refused(answer, 400)
        ctx.must(not name or name not in (await ctx.me.get(f"{API}/queues")).at("queues"), f"{name!r} was made")
    name = await ctx.queue()
    before = (await ctx.me.get(f"{API}/queues/{name}")).json
    ctx.refused(await ctx.me.patch(f"{API}/queues/{name}", {"max_depth": -1}), 400)
    ctx.same("the queue", (await ctx.me.get(f"{API}/queues/{name}")).json, before)


@http_case("queues/deleted-is-gone-with-all", QUEUES, clauses=("H-QUEUE-7",), mutant="http-delete-keeps-messages")
async def deleted(ctx: HttpContext) -> None:
    """A deleted queue is gone, and one of its name that is made afterwards is empty and without groups.

    It held a message, and a group had another.
    """
    name = await ctx.queue()
    await ctx.fill(name, "one", "two")
    await ctx.take(name)
    ctx.status(await ctx.me.post(f"{API}/queues/{name}/leave", {"group": "g"}), 200)
    ctx.status(await ctx.me.delete(f"{API}/queues/{name}"), 200, 204)
    ctx.refused(await ctx.me.get(f"{API}/queues/{name}"), 404, "unknown_queue")
    ctx.must(name not in (await ctx.me.get(f"{API}/queues")).at("queues"), f"{name} is still listed")
    again = {"name": name, "settings": {"partitions": 1}}
    ctx.status(await ctx.me.post(f"{API}/queues", again), 201)
    ctx.same("the groups", (await ctx.me.get(f"{API}/queues/{name}/groups")).at("groups"), [])
    await ctx.none_left(name)


@http_case(
    "queues/unknown-is-404-everywhere",
    QUEUES,
    clauses=("H-QUEUE-8", "H-ERR-1"),
    mutant="http-unknown-stats-are-zero",
    kills=("http-unknown-dlq-is-empty",),
)
async def unknown(ctx: HttpContext) -> None:
    """Every route about a queue that does not exist answers 404, and none of them makes it.

    Only a publish and a consumer may create a queue by use.
    """
    name = ctx.name("none")
    base = f"{API}/queues/{name}"
    for method, path, body in (
        ("GET", "", None),
        ("PATCH", "", {"max_depth": 1}),
        ("DELETE", "", None),
        ("GET", "/stats", None),
        ("POST", "/purge", {}),
        ("PUT", "/partitions", {"count": 2}),
        ("GET", "/consumers", None),
        ("GET", "/groups", None),
        ("POST", "/groups", {"group": "g"}),
        ("GET", "/groups/g", None),
        ("GET", "/groups/g/pending", None),
        ("POST", "/groups/g/reset", {"to": "earliest"}),
        ("DELETE", "/groups/g", None),
        ("GET", "/dlq", None),
        ("POST", "/dlq/replay", {}),
        ("GET", "/bindings", None),
        ("PUT", "/bindings", {"topics": ["a"]}),
        ("GET", "/messages", None),
        ("GET", "/partitions/0/messages", None),
    ):
        ctx.refused(await ctx.me.ask(method, base + path, body), 404)
    ctx.must(name not in (await ctx.me.get(f"{API}/queues")).at("queues"), f"{name} was made by looking at it")


@http_case("queues/stats-count-what-is-there", QUEUES, clauses=("H-QUEUE-9",), mutant="http-stats-of-nothing")
async def stats(ctx: HttpContext) -> None:
    """The figures of a queue: what waits, what a group holds, what was taken, acknowledged and rejected.

    Of four messages one is accepted, one rejected and one held.
    """
    name = await ctx.queue()
    await ctx.fill(name, "a", "b", "c", "d")
    taken = await ctx.take_all(name, 3)
    await ctx.done(name, "accept", taken[0])
    await ctx.done(name, "reject", taken[1], reason="why")
    answer = await ctx.me.get(f"{API}/queues/{name}/stats")
    ctx.status(answer, 200)
    for what, wanted in (("queue", name), ("depth", 2), ("in_flight", 1), ("enqueued", 4), ("dead_letters", 1)):
        ctx.same(what, answer.at(what), wanted)
    group = answer.at("groups", 0)
    for what, wanted in (("group", "g"), ("delivered", 3), ("acked", 1), ("rejected", 1), ("in_flight", 1)):
        ctx.same(f"{what} of the group", group.get(what), wanted)


@http_case("queues/purge-spares-what-is-held", QUEUES, clauses=("H-QUEUE-10",), mutant="http-purge-says-zero")
async def purge(ctx: HttpContext) -> None:
    """A purge takes away what is ready and says how many; what a consumer holds stays its to settle.

    One of three messages is held.
    """
    name = await ctx.queue()
    await ctx.fill(name, "a", "b", "c")
    held = await ctx.take_all(name, 1)
    answer = await ctx.me.post(f"{API}/queues/{name}/purge")
    ctx.status(answer, 200)
    ctx.same("purged", answer.at("purged"), 2)
    await ctx.none_left(name)
    await ctx.done(name, "accept", *held)


@http_case("queues/partitions-are-added", QUEUES, clauses=("H-QUEUE-11",), mutant="http-partitions-not-added")
async def partitions(ctx: HttpContext) -> None:
    """A queue in use gets more partitions, which take messages; fewer than it has are refused.

    What it held stays.
    """
    name = await ctx.queue()
    await ctx.fill(name, "old")
    ctx.status(await ctx.me.put(f"{API}/queues/{name}/partitions", {"count": 3}), 200)
    placed = await ctx.fill(name, {"payload": "new", "partition": 2})
    ctx.same("its place", placed.at("results", 0, "partition"), 2)
    ctx.status(await ctx.me.put(f"{API}/queues/{name}/partitions", {"count": 1}), 400, 409)
    found = await ctx.take_all(name, 2)
    ctx.same("the messages", sorted(each["payload"] for each in found), ["new", "old"])


@http_case("queues/a-slash-in-a-name-is-escaped", QUEUES, clauses=("H-QUEUE-12",), mutant="http-slash-ends-a-name")
async def slash(ctx: HttpContext) -> None:
    """A queue whose name has levels is addressed with %2F, and is another than that of its first level.

    Both get a message.
    """
    short = await ctx.queue()
    name = f"{short}/deep"
    path = f"{API}/queues/{quote(name, safe='')}"
    ctx.leaves(path)
    ctx.status(await ctx.me.post(f"{API}/queues", {"name": name, "settings": {"partitions": 1}}), 201)
    await ctx.fill(name, "deep")
    await ctx.fill(short, "short")
    for queue, payload in ((name, "deep"), (short, "short")):
        ctx.same(f"the message of {queue}", payloads(await ctx.take_all(queue, 1)), [payload])
        await ctx.none_left(queue)
